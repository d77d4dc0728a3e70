"""Dividing a unit table into parts that grow one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamveil.operators.addresses import address, reserved
from streamveil.operators.bounding import FULL, GROWTH, SMALLEST, UnitTable
from streamveil.operators.unit_kernels import BUCKET, WORDS
from streamveil.operators.unit_layout import copy_part, measure_parts


def split(table: UnitTable, parts: int) -> Iterator[UnitTable]:
    """The units of a table in as many tables, by the low bits of their fingerprints."""
    shape = table.shape
    kind = np.array([shape.layout, WORDS[shape.layout], 2 + shape.width], np.int64)
    sizes = np.zeros((parts, 2), np.int64)
    measure_parts(table.slots, kind, sizes)
    bucket, lane = np.nonzero(table.named)
    homes = (table.named[bucket, lane] % np.uint64(parts)).astype(np.uint16)
    order = np.argsort(homes, kind="stable")
    order = bucket[order] * (BUCKET * WORDS[shape.layout]) + lane[order]
    places = np.split(order, np.cumsum(sizes[:-1, 0]))
    for part, (units, granules) in enumerate(sizes.tolist()):
        new = gradual(table, (part + 1) / parts)
        new.meta[: -len(shape)] = 0
        room = 1 + int(units * 1000 * (1 + GROWTH / 100) / FULL)  # whatever the share
        slots = -(-max(SMALLEST, room) // BUCKET) * BUCKET
        new.slots = reserved(slots * WORDS[shape.layout], np.uint64)
        new.slots = new.slots[: slots * WORDS[shape.layout]]
        new.pool = np.zeros(max(SMALLEST, granules) * shape.group_bytes, np.uint32)
        where = (address(new.slots), slots // BUCKET)
        taken = copy_part(table.slots, table.pool, kind, places[part], where, new.pool)
        new.meta[:2] = units, taken
        yield new


def gradual(table: UnitTable, share: float) -> UnitTable:
    """The same units in a table that grows at a fill of its own; `share` in (0, 1] of a set.

    The shares of a set cover one growth evenly: always some table is growing, never many.
    """
    meta = table.meta.copy()
    meta[-1] = FULL * (1 + GROWTH / 100) ** -share
    return UnitTable(table.slots, table.pool, meta)
