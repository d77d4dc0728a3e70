"""The compiled loops of the group-by. Each has a plain twin in tests that is its oracle."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from streamveil.types import Array, Bool, Int64, UInt8, UInt16, UInt64

DONE, GROW_TABLE, GROW_POOL = 0, 1, 2
MOST_PROBES = 96  # rows visited in table order fill it from one end: grow where it is crowded
ENDLESS = 1 << 40
LOAD = 0.8  # share of slots in use at which a table doubles
AHEAD = 64  # rows whose memory is touched before they are decided
BLOCK = 4  # entries of the smallest block of a pool


@njit(cache=True)
def spread(names: UInt64[Array, " rows"], bits: int) -> Int64[Array, " rows"]:
    """The stable order of rows by the high bits of their names (a counting sort)."""
    shift = np.uint64(64 - bits)
    starts = np.zeros((1 << bits) + 1, np.int64)
    for name in names:
        starts[np.int64(name >> shift) + 1] += 1
    for i in range(1 << bits):
        starts[i + 1] += starts[i]
    order = np.empty(len(names), np.int64)
    for i in range(len(names)):
        part = np.int64(names[i] >> shift)
        order[starts[part]] = i
        starts[part] += 1
    return order


@njit(cache=True)
def settle_names(
    names: UInt64[Array, " names"], places: UInt64[Array, " slots"]
) -> Int64[Array, " names"]:
    """Puts distinct names into an empty table of a power of two slots; returns their slots."""
    mask = len(places) - 1
    shift = _shift(len(places))
    slots = np.empty(len(names), np.int64)
    for i in range(len(names)):
        slot = np.int64(names[i] >> shift)
        while places[slot] != 0:
            slot = (slot + 1) & mask
        places[slot] = names[i]
        slots[i] = slot
    return slots


@njit(inline="always")
def _shift(capacity: int) -> np.uint64:  # pragma: no cover (compiled)
    bits = 0
    while (1 << bits) < capacity:
        bits += 1
    return np.uint64(64 - bits)


@njit(cache=True)
def bound_rows(  # noqa: PLR0913, PLR0915, C901 (one loop over structure-of-arrays state)
    unit: UInt64[Array, " rows"],
    group: UInt16[Array, " rows"],
    weight: UInt8[Array, " rows"],
    hidden: Bool[Array, " rows"],
    order: Int64[Array, " rows"],
    at: int,
    limits: Int64[Array, " 4"],
    t_unit: Array,
    t_rows: Array,
    t_spent: Array,
    t_slots: Array,
    t_used: Array,
    t_block: Array,
    pool_group: Array,
    pool_sum: Array,
    meta: Array,
    accepted: Bool[Array, " rows"],
    first: Bool[Array, " rows"],
) -> tuple[int, int]:
    """Bounds rows from place `at` of the order on; returns where it stopped and what must grow."""
    max_rows, per_group, quadratic, max_slots = limits
    mask = len(t_unit) - 1
    shift = _shift(len(t_unit))
    most = np.int64(LOAD * len(t_unit))
    by_group = len(pool_group) > 0
    for place in range(at, len(order)):
        if (place - at) % AHEAD == 0:
            _touch_units(
                unit, order, place, t_unit, t_rows, t_spent, t_used, t_block, pool_group, pool_sum
            )  # fmt: skip
        row = order[place]
        name = unit[row]
        slot = np.int64(name >> shift)
        probes = 0
        while t_unit[slot] != name and t_unit[slot] != 0:
            slot = (slot + 1) & mask
            probes += 1
        known = t_unit[slot] == name
        if not known and (meta[0] >= most or probes > MOST_PROBES):
            return place, GROW_TABLE
        if len(t_rows) and np.int64(t_rows[slot]) >= max_rows:
            continue
        w = np.int64(weight[row])
        entry: Any = np.int64(-1)
        used: Any = np.int64(0)
        old, start = np.int64(0), used
        if by_group:
            used, start = np.int64(t_used[slot]), np.int64(t_block[slot])
            for i in range(start, start + used):
                if pool_group[i] == group[row]:
                    entry, old = i, np.int64(pool_sum[i])
                    break
            if old + w > per_group:
                continue
            charge = (2 * old + w) * w
            if len(t_spent) and np.int64(t_spent[slot]) + charge > quadratic:
                continue
            takes_slot = len(t_slots) > 0 and entry < 0 and hidden[row]
            if takes_slot and np.int64(t_slots[slot]) >= max_slots:
                continue
            if entry < 0:
                if used == 65535:
                    continue
                full = used == 0 or (used >= BLOCK and used & (used - 1) == 0)
                if full:
                    start = _allocate(used, start, pool_group, pool_sum, meta)
                    if start < 0:
                        return place, GROW_POOL
                    t_block[slot] = start
                entry = start + used
                pool_group[entry] = group[row]
                pool_sum[entry] = 0
                t_used[slot] = used + 1
                first[row] = True
            pool_sum[entry] = old + w
            if len(t_spent):
                t_spent[slot] += charge
            if takes_slot:
                t_slots[slot] += 1
        if not known:
            t_unit[slot] = name
            meta[0] += 1
        if len(t_rows):
            t_rows[slot] += 1
        accepted[row] = True
    return len(order), DONE


@njit(cache=True)
def _touch_units(  # noqa: PLR0913 (one loop over structure-of-arrays state)
    unit: Array,
    order: Array,
    at: int,
    t_unit: Array,
    t_rows: Array,
    t_spent: Array,
    t_used: Array,
    t_block: Array,
    pool_group: Array,
    pool_sum: Array,
) -> Any:
    """Reads what the next rows will need: independent reads overlap, dependent ones would not."""
    shift = _shift(len(t_unit))
    end = min(at + AHEAD, len(order))
    seen = np.uint64(0)
    blocks = np.empty(AHEAD, np.int64)
    for place in range(at, end):
        slot = np.int64(unit[order[place]] >> shift)
        seen += t_unit[slot]
        if len(t_rows):
            seen += np.uint64(t_rows[slot])
        if len(t_spent):
            seen += np.uint64(t_spent[slot])
        if len(t_used):
            seen += np.uint64(t_used[slot])
            blocks[place - at] = t_block[slot]
    if len(t_used):
        for place in range(at, end):
            seen += np.uint64(pool_group[blocks[place - at]])
            seen += np.uint64(pool_sum[blocks[place - at]])
    return seen


@njit(cache=True)
def _allocate(used: Any, start: Any, pool_group: Array, pool_sum: Array, meta: Array) -> Any:
    """A block with room for one entry more than `used`, holding the old ones; -1: no room."""
    size = BLOCK if used == 0 else 2 * used
    size_class = 0
    while (BLOCK << size_class) < size:
        size_class += 1
    head = meta[2 + size_class]
    if head >= 0:
        block = head
        after = np.int64(pool_group[head]) | (np.int64(pool_group[head + 1]) << 16)
        meta[2 + size_class] = after - 1
    else:
        block = meta[1]
        if block + size > len(pool_group):
            return -1
        meta[1] += size
    for i in range(used):
        pool_group[block + i] = pool_group[start + i]
        pool_sum[block + i] = pool_sum[start + i]
    if used > 0:
        previous = meta[1 + size_class] + 1  # 0: end of list
        pool_group[start] = previous & 0xFFFF
        pool_group[start + 1] = (previous >> 16) & 0xFFFF
        meta[1 + size_class] = start
    return np.int64(block)


@njit(cache=True)
def find_rows(  # noqa: PLR0913 (one loop over structure-of-arrays state)
    names: UInt64[Array, "rows 2"],
    order: Int64[Array, " rows"],
    at: int,
    t_slots: Array,
    t_names: UInt64[Array, "keys 2"],
    meta: Array,
    found: Int64[Array, " rows"],
    source: Int64[Array, " rows"],
) -> tuple[int, int]:
    """The key row of every name, new names being appended; stops where something must grow.

    `meta` holds the keys there are; source[k] becomes the batch row that brought new key k.
    """
    mask = len(t_slots) - 1
    shift = _shift(len(t_slots))
    most = np.int64(LOAD * len(t_slots))
    for place in range(at, len(order)):
        if (place - at) % AHEAD == 0:
            _touch_keys(names, order, place, t_slots, t_names)
        i = order[place]
        low, high = names[i, 0], names[i, 1]
        slot = np.int64(low >> shift)
        row = np.int64(t_slots[slot]) - 1
        probes = 0
        while row >= 0 and (t_names[row, 0] != low or t_names[row, 1] != high):
            slot = (slot + 1) & mask
            row = np.int64(t_slots[slot]) - 1
            probes += 1
        if row < 0:
            row = meta[0]
            if row >= most or probes > MOST_PROBES:
                return place, GROW_TABLE
            if row >= len(t_names):
                return place, GROW_POOL
            t_names[row, 0] = low
            t_names[row, 1] = high
            t_slots[slot] = row + 1
            source[meta[1]] = i
            meta[0] += 1
            meta[1] += 1
        found[i] = row
    return len(order), DONE


@njit(cache=True)
def _touch_keys(
    names: UInt64[Array, "rows 2"],
    order: Int64[Array, " rows"],
    at: int,
    t_slots: Array,
    t_names: UInt64[Array, "keys 2"],
) -> Any:
    """Reads what the next rows will need; see `_touch_units`."""
    shift = _shift(len(t_slots))
    end = min(at + AHEAD, len(order))
    rows = np.empty(AHEAD, np.int64)
    seen = np.uint64(0)
    for place in range(at, end):
        rows[place - at] = t_slots[np.int64(names[order[place], 0] >> shift)]
    for place in range(at, end):
        seen += t_names[max(rows[place - at] - 1, 0), 0]
    return seen


@njit(cache=True)
def settle_rows(names: UInt64[Array, "keys 2"], t_slots: Array, start: int, patience: int) -> int:
    """Enters key rows from `start` on, in row order; returns the first that finds no room."""
    mask = len(t_slots) - 1
    shift = _shift(len(t_slots))
    most = np.int64(LOAD * len(t_slots))
    for row in range(start, len(names)):
        slot = np.int64(names[row, 0] >> shift)
        probes = 0
        while t_slots[slot] != 0:
            slot = (slot + 1) & mask
            probes += 1
        if patience < ENDLESS and (row >= most or probes > patience):
            return row
        t_slots[slot] = row + 1
    return len(names)


@njit(cache=True)
def add_lanes(
    pending: Int64[Array, "keys lanes"],
    found: Int64[Array, " rows"],
    lanes: Int64[Array, "rows lanes"],
) -> None:
    """Adds every row's increments to the lanes of its key."""
    for i in range(len(found)):
        for lane in range(lanes.shape[1]):
            pending[found[i], lane] += lanes[i, lane]


@njit(cache=True)
def add_hits(
    pending: Int64[Array, "keys nodes"], found: Int64[Array, " rows"], hits: Array
) -> None:
    """Adds one to every node a row hits; negative nodes are skipped."""
    for i in range(len(found)):
        for level in range(hits.shape[1]):
            if hits[i, level] >= 0:
                pending[found[i], hits[i, level]] += 1


@njit(cache=True)
def peek_rows(
    names: UInt64[Array, "rows 2"],
    order: Int64[Array, " rows"],
    t_slots: Array,
    t_names: UInt64[Array, "keys 2"],
    found: Int64[Array, " rows"],
) -> None:
    """The key row of every name, -1 where there is none; changes nothing."""
    mask = len(t_slots) - 1
    shift = _shift(len(t_slots))
    for place in range(len(order)):
        if place % AHEAD == 0:
            _touch_keys(names, order, place, t_slots, t_names)
        i = order[place]
        low, high = names[i, 0], names[i, 1]
        slot = np.int64(low >> shift)
        row = np.int64(t_slots[slot]) - 1
        while row >= 0 and (t_names[row, 0] != low or t_names[row, 1] != high):
            slot = (slot + 1) & mask
            row = np.int64(t_slots[slot]) - 1
        found[i] = row
