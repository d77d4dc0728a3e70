"""Dividing a unit table, and growing one before it must."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamveil.operators.bounding import SMALLEST, UnitTable, _grow_pool, _grow_table
from streamveil.operators.kernels import BLOCK, LOAD, settle_names
from streamveil.types import Array, Int64

EARLY = 0.25  # share of its fill by which the first table of a set grows before the last


def split(table: UnitTable, parts: int) -> Iterator[UnitTable]:
    """The units of a table in as many tables, by the low bits of their fingerprints.

    The given table is used up column by column no sooner than its last part is made.
    """
    filled = np.flatnonzero(table.unit)
    homes = (table.unit[filled] % np.uint64(parts)).astype(np.uint16)
    order = np.argsort(homes, kind="stable")
    ends = np.cumsum(np.bincount(homes, minlength=parts))
    for slots in np.split(filled[order], ends[:-1]):
        yield restrict(table, slots)


def restrict(table: UnitTable, slots: Int64[Array, " units"]) -> UnitTable:
    """A table of the units in some slots only, with the groups they remember."""
    capacity = SMALLEST
    while len(slots) > LOAD * (1 - EARLY) * capacity:
        capacity *= 2
    places = np.zeros(capacity, np.uint64)
    target = settle_names(table.unit[slots], places)
    columns: dict[str, Array] = {"unit": places}
    for name in ("rows", "spent", "slots", "used", "block"):
        column = getattr(table, name)
        columns[name] = np.zeros(capacity if len(column) else 0, column.dtype)
        if len(column):
            columns[name][target] = column[slots]
    meta = np.full_like(table.meta, -1)
    meta[0], meta[1] = len(slots), 0
    pool = {name: getattr(table, name) for name in ("pool_group", "pool_sum")}
    if len(pool["pool_group"]):
        used = table.used[slots].astype(np.int64)
        size = block_sizes(used)
        start = np.cumsum(size) - size
        columns["block"][target] = start
        meta[1] = size.sum()
        entries = np.arange(used.sum()) - np.repeat(np.cumsum(used) - used, used)
        source = entries + np.repeat(table.block[slots].astype(np.int64), used)
        room = SMALLEST
        while room < meta[1] * (1 + EARLY):
            room *= 2
        for name, old in pool.items():
            pool[name] = np.zeros(room, old.dtype)
            pool[name][entries + np.repeat(start, used)] = old[source]
    return UnitTable(**columns, **pool, meta=meta)


def block_sizes(used: Int64[Array, " units"]) -> Int64[Array, " units"]:
    """Entries of the block that holds so many groups.

    >>> block_sizes(np.array([0, 1, 4, 5, 8, 9])).tolist()
    [0, 4, 4, 8, 8, 16]
    """
    doublings = np.ceil(np.log2(np.maximum(used, BLOCK) / BLOCK)).astype(np.int64)
    return np.where(used > 0, BLOCK << doublings, 0)


def crowded(table: UnitTable, share: float) -> bool:
    """Whether a table should grow now; `share` in (0, 1] spreads a set of tables over time."""
    fill = 1 - EARLY * share
    return table.units > LOAD * fill * len(table.unit)


def pool_is_crowded(table: UnitTable, share: float) -> bool:
    """The same for the groups that units remember."""
    entries = len(table.pool_group)
    return bool(table.meta[1] > (1 - EARLY * share) * entries > 0)


def grow_ahead(table: UnitTable, share: float) -> None:
    """Grows what is crowded."""
    if crowded(table, share):
        _grow_table(table)
    if pool_is_crowded(table, share):
        _grow_pool(table)
