"""Dividing a unit table, and growing one before it must."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamveil.operators.bounding import SMALLEST, UnitTable, grow_pool, grow_table
from streamveil.operators.probing import LOAD
from streamveil.operators.unit_kernels import WORDS, copy_part, measure_parts

GROWTH = 25  # percent by which one of many tables grows: it is never much emptier than it must be
EARLY = 0.1  # share of its fill by which the first table of a set grows before the last


def split(table: UnitTable, parts: int) -> Iterator[UnitTable]:
    """The units of a table in as many tables, by the low bits of their fingerprints."""
    shape = table.shape
    kind = np.array([shape.layout, WORDS[shape.layout], 2 + shape.width], np.int64)
    sizes = np.zeros((parts, 2), np.int64)
    measure_parts(table.slots, kind, sizes)
    names = table.slots[:: WORDS[shape.layout]]
    filled = np.flatnonzero(names)
    homes = (names[filled] % np.uint64(parts)).astype(np.uint16)
    order = filled[np.argsort(homes, kind="stable")] * WORDS[shape.layout]
    places = np.split(order, np.cumsum(sizes[:-1, 0]))
    for part, (units, granules) in enumerate(sizes.tolist()):
        capacity = max(SMALLEST, int(units / (LOAD * (1 - EARLY))) + 1)
        room = max(SMALLEST, int(granules * (1 + EARLY)) + 1)
        slots = np.zeros(capacity * WORDS[shape.layout], np.uint64)
        pool = np.zeros(room * shape.group_bytes, np.uint32)
        meta = table.meta.copy()
        meta[: -len(shape)] = 0
        meta[-1] = GROWTH
        meta[:2] = units, copy_part(table.slots, table.pool, kind, places[part], slots, pool)
        yield UnitTable(slots, pool, meta)


def crowded(table: UnitTable, share: float) -> bool:
    """Whether a table should grow now; `share` in (0, 1] spreads a set of tables over time."""
    fill = 1 - EARLY * share
    return table.units > LOAD * fill * table.capacity


def pool_is_crowded(table: UnitTable, share: float) -> bool:
    """The same for the groups that units remember."""
    used, room = table.granules
    return used > (1 - EARLY * share) * room > 0


def grow_ahead(table: UnitTable, share: float) -> None:
    """Grows what is crowded."""
    if crowded(table, share):
        grow_table(table)
    if pool_is_crowded(table, share):
        grow_pool(table)


def gradual(table: UnitTable) -> UnitTable:
    """The same units in a table that grows in smaller steps."""
    meta = table.meta.copy()
    meta[-1] = GROWTH
    return UnitTable(table.slots, table.pool, meta)
