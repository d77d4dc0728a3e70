"""What a unit table holds of one unit, read in plain Python: for the witness and for tests.

`unit_kernels` describes the words of a slot. This reader shares no code with its loops.
"""

from __future__ import annotations

from typing import NamedTuple

from streamveil.dataflow.bounding import UnitTable
from streamveil.dataflow.unit_kernels import (
    BUCKET,
    COMPACT,
    GRANULE,
    INLINE,
    INLINE_GROUPS,
    ROWS,
    WORDS,
)


class UnitEntry(NamedTuple):
    """One unit: totals (rows, spent, or the one that is kept), slots taken, group -> sum.

    A sum is None where none is kept.
    """

    totals: tuple[int, ...]
    taken: int
    groups: dict[int, int | None]


def find_entry(table: UnitTable, unit: int) -> UnitEntry | None:
    """The entry of a unit, None where it has none."""
    words = WORDS[table.shape.layout] * BUCKET
    buckets = len(table.slots) // words
    bucket = (unit >> 32) * buckets >> 32
    for _ in range(buckets):
        start = bucket * words
        names = table.slots[start : start + BUCKET].tolist()
        if unit in names:
            return entry_at(table, bucket, names.index(unit))
        if 0 in names:
            return None
        bucket = (bucket + 1) % buckets
    return None


def entry_at(table: UnitTable, bucket: int, lane: int) -> UnitEntry:
    """The entry in one slot."""
    shape, words = table.shape, WORDS[table.shape.layout]
    start = bucket * words * BUCKET
    slot = table.slots[start : start + words * BUCKET].tolist()[lane::BUCKET]
    word = slot[1]
    if shape.layout == INLINE:
        held = {word >> 16 + 16 * i & 0xFFFF: None for i in range(word >> 14 & INLINE_GROUPS)}
        return UnitEntry((word & 0x3FFF,), word >> 14 & 3, dict(held))
    if shape.layout == COMPACT and word & 3:
        return _inside(word, table)
    if shape.layout == COMPACT:
        totals: tuple[int, ...] = (word >> 2 & 0xFFFF,)
        used, taken, block = word >> 18 & 0xFFFF, word >> 34 & 0xF, word >> 38
    else:
        totals, block = (word & 2**32 - 1, word >> 32), slot[3]
        used, taken = slot[2] & 2**32 - 1, slot[2] >> 32
    return UnitEntry(totals, taken, _pooled(table, block, used))


def _inside(word: int, table: UnitTable) -> UnitEntry:
    """A compact slot that holds its groups itself."""
    shape = table.shape
    used, taken, start = word & 3, word >> 2 & 3, 64 - 16 * shape.lanes
    sums, bits = (word & 2**start - 1) >> 4, {2: 14, 3: 4}[shape.lanes]
    groups: dict[int, int | None] = {}
    for i in range(used):
        held = sums >> bits * i & 2**bits - 1 if shape.width else None
        groups[word >> start + 16 * i & 0xFFFF] = held
    if shape.total == ROWS:
        return UnitEntry((sums,), taken, groups)
    return UnitEntry((sum((held or 0) ** shape.total for held in groups.values()),), taken, groups)


def _pooled(table: UnitTable, block: int, used: int) -> dict[int, int | None]:
    """The groups of a unit in its block of the pool."""
    width, groups = table.shape.width, {}
    words = 2 + width  # of a granule
    for granule in range(-(-used // GRANULE)):
        at = words * (block + granule)
        data = b"".join(word.to_bytes(4, "little") for word in table.pool[at : at + words].tolist())
        for i in range(min(GRANULE, used - GRANULE * granule)):
            group = int.from_bytes(data[2 * i : 2 * i + 2], "little")
            cell = data[8 + width * i : 8 + width * (i + 1)]
            groups[group] = int.from_bytes(cell, "little") if width else None
    return groups
