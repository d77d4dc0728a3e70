"""Plain readings of the compiled stages: slow, short, and the oracle of the fast ones."""

import numpy as np


def bound(rows, bounds):
    """What `unit_stage` must answer, from dictionaries: accepted, new to its group, counted."""
    total, spent, slots, weights = {}, {}, {}, {}
    limit = None if bounds.quadratic is None else bounds.quadratic * bounds.scale**2
    accepted, first, counted = [], [], []
    for unit, group, weight, hidden in zip(*(np.asarray(x).tolist() for x in rows), strict=True):
        old = weights.get((unit, group), 0)
        charge = (old + weight) ** 2 - old**2
        new = (unit, group) not in weights
        fits = (
            (bounds.max_rows is None or total.get(unit, 0) < bounds.max_rows)
            and (bounds.per_group is None or old + weight <= bounds.per_group * bounds.scale)
            and (limit is None or spent.get(unit, 0) + charge <= limit)
        )
        full = bounds.slots is not None and hidden and slots.get(unit, 0) >= bounds.slots
        accepted.append(fits)
        first.append(fits and new)
        counted.append(fits and new and not full)
        if fits:
            total[unit] = total.get(unit, 0) + 1
            spent[unit] = spent.get(unit, 0) + charge
            slots[unit] = slots.get(unit, 0) + (new and hidden and not full)
            weights[unit, group] = old + weight
    return tuple(np.array(column, bool) for column in (accepted, first, counted))


def remembered(table):
    """What a unit table holds, read slot by slot: unit -> (totals, slots taken, group -> sum)."""
    shape, found = table.shape, {}
    words, pool = (2, 2, 4)[shape.layout], table.pool.astype(np.int64)
    buckets = table.slots.reshape(-1, words, 4)
    for slot in buckets.transpose(0, 2, 1).reshape(-1, words).tolist():
        if slot[0] == 0:
            continue
        if shape.layout == 0:
            used = slot[1] >> 14 & 3
            groups = {slot[1] >> 16 + 16 * i & 0xFFFF: None for i in range(used)}
            found[slot[0]] = (slot[1] & 0x3FFF,), used, groups
            continue
        if shape.layout == 1 and slot[1] & 3:
            found[slot[0]] = held_inside(slot[1], shape)
            continue
        if shape.layout == 1:
            totals, used = (slot[1] >> 2 & 0xFFFF,), slot[1] >> 18 & 0xFFFF
            taken, block = slot[1] >> 34 & 0xF, slot[1] >> 38
        else:
            totals, used = (slot[1] & 2**32 - 1, slot[1] >> 32), slot[2] & 2**32 - 1
            taken, block = slot[2] >> 32, slot[3]
        groups = {}
        for i in range(used):
            granule = pool[(2 + shape.width) * (block + i // 4) :][: 2 + shape.width]
            data = granule.astype(np.uint32).view(np.uint8)
            group = int(data[2 * (i % 4) :][:2].copy().view(np.uint16)[0])
            cell = data[8 + shape.width * (i % 4) :][: shape.width]
            groups[group] = int.from_bytes(cell.tobytes(), "little") if shape.width else None
        found[slot[0]] = totals, taken, groups
    return found


def held_inside(word, shape):
    """What a compact slot with few groups says: totals, slots taken, group -> sum."""
    used, taken, start = word & 3, word >> 2 & 3, 64 - 16 * shape.lanes
    sums, bits = (word & 2**start - 1) >> 4, {2: 14, 3: 4}[shape.lanes]
    groups = {}
    for i in range(used):
        held = sums >> bits * i & 2**bits - 1 if shape.width else None
        groups[word >> start + 16 * i & 0xFFFF] = held
    if shape.total == 0:
        return (sums,), taken, groups
    return (sum(held**shape.total for held in groups.values()),), taken, groups


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
