"""Dividing a unit table into parts that grow one after the other."""

from __future__ import annotations

from math import isqrt

import numpy as np

from streamveil.dataflow.bounding import SMALLEST, Shape, UnitTable, grow_table
from streamveil.dataflow.unit_kernels import BUCKET, WORDS
from streamveil.dataflow.unit_layout import count_unseen, deal, measure_parts
from streamveil.types import Array, Int64, UInt64

GROWTH = 50  # percent by which a part grows
SAMPLE = 13  # bits of a number: of that many rows, or up to twice as many, units are counted


def split(table: UnitTable, parts: int) -> list[UnitTable]:
    """The units of a table in as many tables, by the low bits of their fingerprints."""
    shape = table.shape
    words, link = WORDS[shape.layout], 2 + shape.width
    kind = np.array([shape.layout, words, link], np.int64)
    sizes = np.zeros((parts, 2), np.int64)
    measure_parts(table.slots, kind, sizes)
    made = [part_of(shape, (part + 1) / parts) for part in range(parts)]
    for new, (units, granules) in zip(made, sizes.tolist(), strict=True):
        make_room(new, units)
        new.lengthen("pool", max(SMALLEST, granules) * shape.group_bytes)
        new.meta[:2] = units, granules
    heads = np.array([new.head for new in made], np.int64).reshape(-1)
    deal(table.slots, table.pool, kind, heads, np.zeros(words * BUCKET, np.uint64))
    return made


def part_of(shape: Shape, share: float) -> UnitTable:
    """An empty part of a set, of a size of its own; `share` in (0, 1] of the set.

    The sizes of a set cover one growth evenly, and still do when all have grown: always some table
    is growing, never many.
    """
    slots = int(4 * SMALLEST * (1 + GROWTH / 100) ** share) // BUCKET * BUCKET
    return UnitTable.of(shape._replace(growth=GROWTH), slots)


def make_room(table: UnitTable, units: int) -> None:
    """Grows a table at once so far that it takes so many units."""
    if units > table.most:
        grow_table(table, units)


def unseen(unit: UInt64[Array, " rows"], heads: Int64[Array, " cells"], words: int) -> int:
    """How many units of some rows are in none of the tables with these heads; rather too few.

    Fingerprints are uniform: those with some bits zero are a fair sample. Its deviation is taken
    off, so that memory is not asked for in vain; where it was too little, a few parts grow again.
    """
    bits = max(0, len(unit).bit_length() - SAMPLE - 1)
    met = np.zeros(2 * BUCKET * (1 + (len(unit) >> bits) // BUCKET), np.uint64)
    found = count_unseen(unit, bits, heads, words, met)
    return min(len(unit), (found - isqrt(found) if bits else found) << bits)
