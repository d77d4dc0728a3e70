"""The compiled loops of the unit stage. A plain twin in tests is their oracle.

A slot is a few 64-bit words, the first of them the unit's fingerprint (0: free). What follows is,
from the low bits up:

    inline   rows 14 · groups 2 · three groups of 16
    compact  rows or spent 16 · groups 16 · slots taken 4 · block 28
    wide     rows 32 · spent 32 | groups 32 · slots taken 32 | block 64

A block holds the groups a unit has entered. It lies in the pool of 32-bit words and is found by its
first granule. A granule holds 16 bits each of four groups, then (where they matter) the four sums
of weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from streamveil.operators.probing import (
    AHEAD,
    DONE,
    GROW_POOL,
    GROW_TABLE,
    LOAD,
    MOST_PROBES,
    SOON,
    home,
    prefetch,
)
from streamveil.types import Array, Bool, Int64, UInt8, UInt16, UInt32, UInt64

INLINE, COMPACT, WIDE = 0, 1, 2
WORDS = (2, 2, 4)  # of a slot
NOTHING, HIDDEN, ALL = 0, 1, 2  # groups that are remembered
GRANULE = 4  # groups
CLASSES = 60  # sizes of blocks: 1, 2, 3, 4, 6, 8, 12, 16, 24 ... granules
INLINE_GROUPS = 3
TOTAL_BITS, TOTAL = 14, np.uint64(0x3FFF)
UNLIMITED = 1 << 62
HALF, HIGH = 0xFFFFFFFF, np.uint64(32)
ONES, TOPS = np.uint64(0x0001000100010001), np.uint64(0x8000800080008000)
LANE_0, LANE_1, LANE_2 = np.uint64(0xFFFF), np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFF)


@njit(cache=True)
def bound_inline(  # noqa: PLR0913 (one loop over structure-of-arrays state)
    unit: UInt64[Array, " rows"],
    group: UInt16[Array, " rows"],
    hidden: Bool[Array, " rows"],
    at: int,
    limits: Int64[Array, " 4"],
    remembered: int,
    slots: UInt64[Array, " words"],
    meta: Int64[Array, " cells"],
    accepted: Bool[Array, " rows"],
    first: Bool[Array, " rows"],
) -> tuple[int, int]:
    """Bounds rows from `at` on, units in their slots; where it stopped and what must grow."""
    capacity = len(slots) // 2
    wide = np.uint64(capacity)
    most = np.int64(LOAD * capacity)
    max_rows, max_slots = limits[0], limits[3]
    remembers = remembered == HIDDEN
    for row in range(at, len(unit)):
        if row + AHEAD < len(unit):
            prefetch(slots, 2 * home(unit[row + AHEAD], wide))
        name = unit[row]
        slot, probes = home(name, wide), 0
        while slots[2 * slot] != name and slots[2 * slot] != 0:
            slot += 1
            probes += 1
            if slot == capacity:
                slot = 0
        known = slots[2 * slot] == name
        state = slots[2 * slot + 1]
        used = (state >> np.uint64(TOTAL_BITS)) & np.uint64(3)
        differs = (state >> np.uint64(16)) ^ (np.uint64(group[row]) * ONES)
        inside = (np.uint64(1) << (np.uint64(16) * used)) - np.uint64(1)
        met = ((differs - ONES) & ~differs & TOPS & inside) != 0
        enters = remembers & hidden[row] & (not met)
        refused = np.int64(state & TOTAL) >= max_rows
        refused |= enters & (np.int64(used) >= max_slots)
        if refused:
            continue
        if not known:
            if meta[0] >= most or probes > MOST_PROBES:
                return row, GROW_TABLE
            slots[2 * slot] = name
            meta[0] += 1
        if enters:
            state |= np.uint64(group[row]) << (np.uint64(16) * (used + np.uint64(1)))
            state += np.uint64(1 << TOTAL_BITS)
        slots[2 * slot + 1] = state + np.uint64(1)
        accepted[row] = True
        first[row] = enters
    return len(unit), DONE


@njit(cache=True)
def bound_pooled(  # noqa: PLR0913, PLR0915, C901 (one loop over structure-of-arrays state)
    unit: UInt64[Array, " rows"],
    group: UInt16[Array, " rows"],
    weight: UInt8[Array, " rows"],
    hidden: Bool[Array, " rows"],
    at: int,
    limits: Int64[Array, " 4"],
    shape: Int64[Array, " 5"],
    slots: UInt64[Array, " words"],
    pool: UInt32[Array, " words"],
    meta: Int64[Array, " cells"],
    accepted: Bool[Array, " rows"],
    first: Bool[Array, " rows"],
) -> tuple[int, int]:
    """As `bound_inline` where groups lie in the pool."""
    max_rows, per_group, quadratic, max_slots = limits
    layout, remembered, counts_rows, width, most_groups = shape
    link = 2 + width  # words of a granule
    words = 4 if layout == WIDE else 2
    capacity = len(slots) // words
    wide = np.uint64(capacity)
    most = np.int64(LOAD * capacity)
    limits_slots = np.int64(max_slots < UNLIMITED)
    largest = (1 << (8 * width)) - 1
    block_shift = np.uint64(0 if layout == WIDE else 36)
    n = len(unit)
    found = np.empty(SOON, np.int64)
    for ahead in range(at, n + SOON):
        row = ahead - SOON
        place = found[row % SOON]
        if ahead < n:
            if ahead + AHEAD < n:
                prefetch(slots, words * home(unit[ahead + AHEAD], wide))
            soon = words * home(unit[ahead], wide)
            while slots[soon] != unit[ahead] and slots[soon] != 0:
                soon += words
                if soon == len(slots):
                    soon = 0
            found[row % SOON] = soon
            prefetch(pool, link * np.int64(slots[soon + words - 1] >> block_shift))
        if row < at:
            continue
        name = unit[row]
        while slots[place] != name and slots[place] != 0:  # another may have come since
            place += words
            if place == len(slots):
                place = 0
        known = slots[place] == name
        if layout == WIDE:
            rows, spent = np.int64(slots[place + 1]) & HALF, np.int64(slots[place + 1] >> HIGH)
            used, taken = np.int64(slots[place + 2]) & HALF, np.int64(slots[place + 2] >> HIGH)
        else:
            word = np.int64(slots[place + 1])
            rows = word & 0xFFFF if counts_rows else np.int64(0)
            spent = np.int64(0) if counts_rows else word & 0xFFFF
            used, taken = (word >> 16) & 0xFFFF, (word >> 32) & 0xF
        block = np.int64(slots[place + words - 1] >> block_shift)
        remembers = remembered == ALL or (remembered == HIDDEN and hidden[row])
        entry: Any = np.int64(-1)
        old: Any = np.int64(0)
        if remembers:
            wanted, start = np.uint64(group[row]) * ONES, link * block
            for i in range(0, used, GRANULE):
                lane = _lane_of(pool[start], pool[start + 1], wanted, used - i)
                if lane >= 0:
                    entry = i + lane
                    old = np.int64(1)  # without sums a limit per group can only be one
                    if width > 0:
                        byte = width * lane
                        old = np.int64(pool[start + 2 + (byte >> 2)] >> (8 * (byte & 3))) & largest
                    break
                start += link
        new = remembers & (entry < 0)
        takes_slot = new & hidden[row]
        w = np.int64(weight[row])
        charge = (2 * old + w) * w
        refused = (rows >= max_rows) | (spent + charge > quadratic)
        refused |= remembers & (old + w > per_group)
        refused |= (new & (used >= most_groups)) | (takes_slot & (taken >= max_slots))
        if refused:
            continue
        if not known:
            distance = (place // words - home(name, wide) + capacity) % capacity
            if meta[0] >= most or distance > MOST_PROBES:
                return row, GROW_TABLE
        if new:
            if used % GRANULE == 0 and _is_full(used):
                block = _allocate(used, block, link, pool, meta)
                if block < 0:
                    return row, GROW_POOL
            entry = used
            used += 1
            taken += np.int64(takes_slot) & limits_slots
            first[row] = True
        if remembers:
            start, lane = link * (block + entry // GRANULE), entry % GRANULE
            if new:
                pair, shift = start + (lane >> 1), 16 * (lane & 1)
                kept = np.int64(pool[pair]) & (0xFFFF >> (16 - shift))
                pool[pair] = kept | (np.int64(group[row]) << shift)
            if width > 0:
                byte = width * lane
                cell, shift = start + 2 + (byte >> 2), 8 * (byte & 3)
                pool[cell] = (np.int64(pool[cell]) & ~(largest << shift)) | ((old + w) << shift)
        if not known:
            slots[place] = name
            meta[0] += 1
        accepted[row] = True
        if layout == WIDE:
            slots[place + 1] = np.uint64((rows + 1) | ((spent + charge) << 32))
            slots[place + 2] = np.uint64(used | (taken << 32))
            slots[place + 3] = np.uint64(block)
        else:
            total = rows + 1 if counts_rows else spent + charge
            slots[place + 1] = np.uint64(total | (used << 16) | (taken << 32) | (block << 36))
    return n, DONE


@njit(cache=True)
def _lane_of(first: Any, second: Any, wanted: Any, used: Any) -> Any:
    """Which of the four groups in two words is the wanted one (given four times); -1: none."""
    differs = (np.uint64(first) | (np.uint64(second) << HIGH)) ^ wanted
    same = (differs - ONES) & ~differs & TOPS  # the lowest bit is exact; those above it may not be
    lowest = same & (~same + np.uint64(1))
    lane = np.int64(lowest > LANE_0) + np.int64(lowest > LANE_1) + np.int64(lowest > LANE_2)
    return lane if same != 0 and lane < used else np.int64(-1)


@njit(cache=True)
def _is_full(used: Any) -> Any:  # pragma: no cover (compiled)
    return used == 0 or used == GRANULE * _granules(_size_class(used))


@njit(cache=True)
def _size_class(used: Any) -> Any:  # pragma: no cover (compiled)
    if used <= 4 * GRANULE:
        return max(used - 1, 0) >> 2
    size = 4
    while GRANULE * _granules(size) < used:
        size += 1
    return size


@njit(cache=True)
def _granules(size: Any) -> Any:  # pragma: no cover (compiled)
    """1, 2, 3, 4, 6, 8, 12, 16, 24 ..."""
    if size < 3:
        return size + 1
    whole = 4 << ((size - 3) >> 1)
    return whole + (whole >> 1) * ((size - 3) & 1)


@njit(cache=True)
def _allocate(used: Any, old: Any, link: Any, pool: Array, meta: Array) -> Any:
    """A block with room for one group more than `used`, holding the old ones; -1: no room.

    `meta` holds: units, granules in use, then the first free block of each size (0: none).
    """
    size = _size_class(used + 1)
    block = meta[2 + size] - 1
    if block >= 0:
        meta[2 + size] = pool[block * link]
    else:
        block = meta[1]
        if (block + _granules(size)) * link > len(pool):
            return np.int64(-1)
        meta[1] += _granules(size)
    if used > 0:
        smaller = _size_class(used)
        for i in range(_granules(smaller) * link):
            pool[block * link + i] = pool[old * link + i]
        pool[old * link] = meta[2 + smaller]
        meta[2 + smaller] = old + 1
    return np.int64(block)


@njit(cache=True)
def resettle(old: UInt64[Array, " words"], new: UInt64[Array, " words"], words: int) -> None:
    """Puts all units into an empty larger table: one pass over both, since both are in order."""
    capacity = len(new) // words
    wide = np.uint64(capacity)
    for start in range(0, len(old), words):
        if old[start] != 0:
            slot = home(old[start], wide)
            while new[words * slot] != 0:
                slot += 1
                if slot == capacity:
                    slot = 0
            for i in range(words):
                new[words * slot + i] = old[start + i]


@njit(cache=True)
def measure_parts(
    slots: UInt64[Array, " words"], kind: Int64[Array, " 3"], sizes: Int64[Array, "parts 2"]
) -> None:
    """Counts units and granules by the low bits of the fingerprint. `kind`: layout, words, link."""
    layout, words, _ = kind
    for place in range(0, len(slots), words):
        if slots[place] != 0:
            part = np.int64(slots[place] % np.uint64(len(sizes)))
            sizes[part, 0] += 1
            if layout != INLINE:
                used = _used(slots[place + 1], slots[place + words - 2], layout)
                sizes[part, 1] += _granules(_size_class(used)) if used else 0


@njit(cache=True)
def _used(first: Any, second: Any, layout: Any) -> Any:
    """The groups of a unit, from the words of its slot that may hold their number."""
    return np.int64(second) & HALF if layout == WIDE else np.int64(first >> np.uint64(16)) & 0xFFFF


@njit(cache=True)
def copy_part(
    slots: UInt64[Array, " words"],
    pool: UInt32[Array, " words"],
    kind: Int64[Array, " 3"],
    places: Int64[Array, " units"],
    new: UInt64[Array, " words"],
    new_pool: UInt32[Array, " words"],
) -> int:
    """Puts the units at some places into an empty table; returns the granules it takes."""
    layout, words, link = kind
    wide = np.uint64(len(new) // words)
    block_shift = np.uint64(0 if layout == WIDE else 36)
    taken = 0
    for start in places:
        place = words * home(slots[start], wide)
        while new[place] != 0:
            place += words
            if place == len(new):
                place = 0
        for i in range(words):
            new[place + i] = slots[start + i]
        used = _used(slots[start + 1], slots[start + words - 2], layout)
        if layout != INLINE and used:
            last = place + words - 1
            block = np.int64(new[last] >> block_shift)
            size = _granules(_size_class(used))
            for i in range(size * link):
                new_pool[taken * link + i] = pool[block * link + i]
            new[last] ^= np.uint64(block ^ taken) << block_shift
            taken += size
    return taken
