"""Plain readings of the compiled stages: slow, short, and the oracle of the fast ones."""

from dataclasses import fields

import numpy as np

from streamveil.core.reference import UnitLimits, UnitMemory, UnitRow, bound_row
from streamveil.dataflow.unit_kernels import BUCKET, WORDS
from streamveil.dataflow.witness import entry_at

NO = np.zeros(0, bool)


def bound(rows, bounds):
    """What `unit_stage` must answer, by the specification: accepted, new to its group, counted."""
    limits = UnitLimits(**{f.name: getattr(bounds, f.name) for f in fields(UnitLimits)})
    memories, decisions = {}, []
    for unit, *row in zip(*(np.asarray(x).tolist() for x in rows), strict=True):
        memory = memories.setdefault(unit, UnitMemory())
        decisions.append(bound_row(memory, UnitRow(*row), limits))
    return (
        tuple(np.array(column, bool) for column in zip(*decisions, strict=True))
        if decisions
        else (NO,) * 3
    )


def named(table):
    """The fingerprints of all slots of a unit table; 0 in a free one."""
    return table.slots.reshape(-1, WORDS[table.shape.layout] * BUCKET)[:, :BUCKET]


def remembered(table):
    """What a unit table holds, read slot by slot: unit -> (totals, slots taken, group -> sum)."""
    found = {}
    for bucket, names in enumerate(named(table).tolist()):
        found |= {n: entry_at(table, bucket, lane) for lane, n in enumerate(names) if n}
    return found


def key_rows(names, accepted, known):
    """What `enter` must answer: rows by first appearance, and where each new key came from."""
    rows, fresh = [], []
    for i, name in enumerate(map(tuple, names.tolist())):
        if accepted[i] and name not in known:
            known[name] = len(known)
            fresh.append(i)
        rows.append(known.get(name, -1))
    return rows, fresh


def sip128(message, k0, k1):
    """SipHash-2-4-128 of one message, in Python's own integers."""
    mask = 2**64 - 1

    def rotated(x, b):
        return (x << b | x >> 64 - b) & mask

    def rounds(v, n):
        v0, v1, v2, v3 = v
        for _ in range(n):
            v0 = v0 + v1 & mask
            v2 = v2 + v3 & mask
            v1, v3 = rotated(v1, 13) ^ v0, rotated(v3, 16) ^ v2
            v0 = rotated(v0, 32) + v3 & mask
            v2 = v2 + v1 & mask
            v3, v1 = rotated(v3, 21) ^ v0, rotated(v1, 17) ^ v2
            v2 = rotated(v2, 32)
        return [v0, v1, v2, v3]

    v = [0x736F6D6570736575 ^ k0, 0x646F72616E646F6D ^ k1 ^ 0xEE]
    v += [0x6C7967656E657261 ^ k0, 0x7465646279746573 ^ k1]
    size = len(message)
    padded = message + bytes(7 - size % 8) + bytes([size & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        v = rounds(v, 2)
        v[0] ^= word
    v[2] ^= 0xEE
    v = rounds(v, 4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    v = rounds(v, 4)
    return low, v[0] ^ v[1] ^ v[2] ^ v[3]
