"""The compiled loops of the unit stage. A plain twin in tests is their oracle.

A slot is a few 64-bit words, the first of them the unit's fingerprint (0: free). What follows is,
from the low bits up:

    inline   rows 14 · groups 2 · three groups of 16
    compact  groups 2 · slots taken 2 · rows, or a sum of weights for each group · groups of 16
        or   0 of 2 bits · rows or spent 16 · groups 16 · slots taken 4 · block 26
    wide     rows 32 · spent 32 | groups 32 · slots taken 32 | block 64

A compact slot takes its second form when it holds no group, or more than the two or three `lanes`
of the first: three sums of 4 bits, or two of 14. What such a unit has spent follows from its sums.

A block holds the groups a unit has entered. It lies in the pool of 32-bit words and is found by its
first granule. A granule holds 16 bits each of four groups, then (where they matter) the four sums
of weights.

Four slots are a bucket, filled from the left: first their four fingerprints, which are compared at
once, then four of each further word. So a bucket of slots of two words is one cache line. A look-up
goes on to the next bucket only if a bucket is full. `unit_layout` moves units when tables grow.

A row is visited three times before it is decided, each time in a short loop over a block of rows.
So the processor has many rows under way, and a wrong guess about one costs no other. First its
bucket is computed and prefetched. A block later the names in it are compared, without a branch,
and the next bucket is prefetched if this one is full and lacks the unit. A block later the few
units that are not in their first bucket are looked up in the next ones.

The place found is the unit's slot, or the free slot it would take. Rows that are decided in the
meantime may enter other units there: whoever uses the place compares the name again. Nothing leaves
a table, so a place stays valid until a table grows.

Within a loop no array is sliced or passed to another function: each time an atomic instruction
would count its references, and that waits until all earlier writes have reached memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamveil.compiled import njit
from streamveil.dataflow.raw_memory import (
    LINE,
    ask,
    equal,
    load32,
    load64,
    lowest,
    store32,
    store64,
)
from streamveil.types import Array, Bool, Int64, UInt8, UInt16, UInt64

# ---- the place of a name in a hash table

DONE, GROW_TABLE, GROW_POOL = 0, 1, 2
LOAD = 0.8  # share of slots in use at which a table grows
MOST_PROBES = 512  # names that arrive sorted fill a table from one end: grow where it is crowded
SOON = 16  # rows between prefetching what a slot points to and reading it
HALF, HIGH = 0xFFFFFFFF, np.uint64(32)


@njit(cache=True)
def home(name: np.uint64, capacity: np.uint64) -> Any:  # pragma: no cover (compiled)
    """The first slot to try: slots are in the order of names, for any capacity below 2^32."""
    return np.int64(((name >> HIGH) * capacity) >> HIGH)


# ---- finding the slots of units

BLOCK = 32  # rows visited in one loop
AHEAD = 3  # blocks from the one being decided to the one first visited
RING = AHEAD + 1  # blocks whose places are kept
LOOKED_AT = (RING + 1) * BLOCK  # places, and rows of a block to look up in later buckets
HEAD = 5  # cells of a table: address of slots, buckets, most units, address of pool, granules
MOST_BUCKETS = 128  # names that arrive sorted crowd one end: grow where it is crowded
FREE = np.uint64(0)  # the name in a free slot


@njit(cache=True)
def locate(slots: Any, buckets: Any, name: Any, step: Any) -> Any:  # pragma: no cover (compiled)
    """The address of a unit's slot, or of the free one it would take, and whether it is known."""
    at = slots + home(name, np.uint64(buckets)) * step
    while True:
        hit, free = equal(at, name), equal(at, FREE)
        if (hit | free) != 0:
            return at + 8 * lowest(hit if hit != 0 else free), hit != 0
        at += step
        if at == slots + buckets * step:
            at = slots


@njit(cache=True)
def is_far(place: Any, slots: Any, buckets: Any, name: Any, step: Any) -> Any:
    """Whether a free slot is too many buckets behind the one that a unit would like."""
    behind = place - (slots + home(name, np.uint64(buckets)) * step)
    if behind < 0:
        behind += buckets * step
    return behind > MOST_BUCKETS * step


@njit(cache=True)
def rows_in(rows: Any, turn: Any) -> Any:  # pragma: no cover (compiled)
    """How many of `rows` rows are in a block; 0 before the first and behind the last."""
    return min(max(rows - turn * BLOCK, 0), BLOCK) if turn >= 0 else 0


@njit(cache=True)
def look_ahead(  # noqa: PLR0913 (compiled)
    unit: Any, rows: Any, turn: Any, heads: Any, low: Any, step: Any, found: Any, late: Any
) -> Any:  # pragma: no cover (compiled)
    """Finds the slots of block `turn + 1`, and makes the first two visits to the blocks after it.

    `unit`: address of the names of `rows` rows. `found`: address of the places of the last blocks,
    then the numbers of the `late` rows that are not in their first bucket. Returns how many rows of
    the next block are not in theirs. The `low` bits of a unit's name choose its table.
    """
    later = found + 8 * RING * BLOCK
    names, places = unit + 8 * BLOCK * (turn + 1), found + 8 * BLOCK * ((turn + 1) % RING)
    for k in range(late):
        behind = 8 * np.int64(load64(later + 8 * k))
        name = load64(names + behind)
        head = heads + 8 * HEAD * np.int64(name & low)
        slots, buckets = np.int64(load64(head)), np.int64(load64(head + 8))
        place, _ = locate(slots, buckets, name, step)
        store64(places + behind, np.uint64(place))
    names, places = unit + 8 * BLOCK * (turn + 2), found + 8 * BLOCK * ((turn + 2) % RING)
    full = np.int64(0)
    for i in range(rows_in(rows, turn + 2)):
        name, place = load64(names + 8 * i), np.int64(load64(places + 8 * i))
        hit, free = equal(place, name), equal(place, FREE)
        either = hit if hit != 0 else free
        ask(place + step * np.int64(either == 0))
        store64(places + 8 * i, np.uint64(place + 8 * lowest(either | 16)))
        store64(later + 8 * full, np.uint64(i))
        full += np.int64(either == 0)
    names, places = unit + 8 * BLOCK * (turn + AHEAD), found + 8 * BLOCK * ((turn + AHEAD) % RING)
    for i in range(rows_in(rows, turn + AHEAD)):
        name = load64(names + 8 * i)
        head = heads + 8 * HEAD * np.int64(name & low)
        place = np.int64(load64(head)) + home(name, load64(head + 8)) * step
        store64(places + 8 * i, np.uint64(place))
        ask(place)
        if step > LINE:
            ask(place + LINE)
    return full


INLINE, COMPACT, WIDE = 0, 1, 2
WORDS = (2, 2, 4)  # of a slot
BUCKET = 4  # slots
NOTHING, HIDDEN, ALL = 0, 1, 2  # groups that are remembered
ROWS, SUMS, SQUARES = 0, 1, 2  # the total of a compact slot with groups: kept, or one of two sums
GRANULE = 4  # groups
CLASSES = 60  # sizes of blocks: 1, 2, 3, 4, 6, 8, 12, 16, 24 ... granules
INLINE_GROUPS = 3
TOTAL_BITS, TOTAL = 14, np.uint64(0x3FFF)
NEW, COUNTED = 1, 2  # a unit's first row in a group; and the selection may count it there
REPEATED = 4  # refused, in a group that the unit is known to be in
UNLIMITED = 1 << 62
ONES, TOPS = np.uint64(0x0001000100010001), np.uint64(0x8000800080008000)
LANE_0, LANE_1, LANE_2 = np.uint64(0xFFFF), np.uint64(0xFFFFFFFF), np.uint64(0xFFFFFFFFFFFF)
NONE, ONE, TWO, THREE = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
LANE, WORD = np.uint64(16), np.int64(8 * BUCKET)  # from a slot's word to its next, in bytes
USED_AT, TAKEN_AT, BLOCK_AT = np.uint64(18), np.uint64(34), np.uint64(38)  # of the second form


@njit(cache=True)
def bound_inline(  # noqa: PLR0913 (one loop over structure-of-arrays state)
    unit: UInt64[Array, " rows"],
    group: UInt16[Array, " rows"],
    hidden: Bool[Array, " rows"],
    at: int,
    limits: Int64[Array, " 4"],
    remembered: int,
    heads: Int64[Array, " cells"],
    metas: Int64[Array, " cells"],
    found: Int64[Array, " cells"],
    accepted: Bool[Array, " rows"],
    first: UInt8[Array, " rows"],
) -> tuple[int, int, int]:
    """Bounds rows from `at` on; returns where it stopped, what must grow, and in which table.

    Units fit in their slots. The low bits of a unit's name choose one of 2^k tables. `found` has
    room for `LOOKED_AT` places.
    """
    parts = len(heads) // HEAD
    cells, low = len(metas) // parts, np.uint64(parts - 1)
    step = np.int64(WORD * WORDS[INLINE])
    max_rows, max_slots = limits[0], limits[3]
    remembers = np.int64(remembered == HIDDEN)
    names, where, places = unit.ctypes.data + 8 * at, heads.ctypes.data, found.ctypes.data
    late, n = np.int64(0), len(unit) - at
    for turn in range(-AHEAD, (n + BLOCK - 1) // BLOCK):
        late = look_ahead(names, n, turn, where, low, step, places, late)
        for i in range(rows_in(n, turn)):
            row = at + turn * BLOCK + i
            place = found[BLOCK * (turn % RING) + i]
            name, wide_group = unit[row], np.uint64(group[row])
            enters = remembers & np.int64(hidden[row])
            if load64(place) != name:
                part = np.int64(name & low)
                head = HEAD * part
                if load64(place) != NONE:  # another unit took the slot since
                    place, _ = locate(heads[head], heads[head + 1], name, step)
                if load64(place) == NONE:
                    crowded = metas[cells * part] >= heads[head + 2]
                    if crowded or is_far(place, heads[head], heads[head + 1], name, step):
                        return row, GROW_TABLE, int(part)
                    metas[cells * part] += 1
                    store64(place, name)
            state = load64(place + WORD)  # from here on without a branch: what fits is random
            used = (state >> np.uint64(TOTAL_BITS)) & THREE
            differs = (state >> LANE) ^ (wide_group * ONES)
            inside = (ONE << (LANE * used)) - ONE
            enters &= np.int64(((differs - ONES) & ~differs & TOPS & inside) == NONE)
            fits = np.int64(np.int64(state & TOTAL) < max_rows)
            enters &= fits & np.int64(np.int64(used) < max_slots)
            entered = wide_group << ((LANE * (used + ONE)) & np.uint64(63))
            state |= entered * np.uint64(enters)
            state += np.uint64(fits) + (np.uint64(enters) << np.uint64(TOTAL_BITS))
            store64(place + WORD, state)
            accepted[row] = fits != 0
            first[row] = (NEW | COUNTED) * enters
    return len(unit), DONE, 0


@njit(cache=True)
def bound_pooled(  # noqa: PLR0913, PLR0915, C901 (one loop over structure-of-arrays state)
    unit: UInt64[Array, " rows"],
    group: UInt16[Array, " rows"],
    weight: UInt8[Array, " rows"],
    hidden: Bool[Array, " rows"],
    at: int,
    limits: Int64[Array, " 4"],
    shape: Int64[Array, " 7"],
    heads: Int64[Array, " cells"],
    metas: Int64[Array, " cells"],
    found: Int64[Array, " cells"],
    accepted: Bool[Array, " rows"],
    first: UInt8[Array, " rows"],
) -> tuple[int, int, int]:
    """As `bound_inline`, for units that may have more groups than a slot holds."""
    max_rows, per_group, quadratic, max_slots = limits
    layout, remembered, counts_rows, width, most_groups, lanes, total_is = shape
    parts = len(heads) // HEAD
    cells, low = len(metas) // parts, np.uint64(parts - 1)
    link = 4 * (2 + width)  # bytes of a granule
    step = np.int64(WORD * (4 if layout == WIDE else 2))
    limits_slots = np.int64(max_slots < UNLIMITED)
    lane_bits = np.uint64(4 if lanes == 3 else 14)
    lane_mask = (ONE << lane_bits) - ONE
    groups_at = np.uint64(64 - 16 * lanes)
    n = len(unit)
    names, where, places = unit.ctypes.data + 8 * at, heads.ctypes.data, found.ctypes.data
    kept, late = metas.ctypes.data, np.int64(0)
    for row in range(at - AHEAD * BLOCK, n):
        turn, i = (row - at) // BLOCK, (row - at) % BLOCK
        if i == 0:
            late = look_ahead(names, n - at, turn, where, low, step, places, late)
            ahead = rows_in(n - at, turn + 1)
            ask_for_groups(names, ahead, turn + 1, where, low, layout, link, places)
        if row < at:
            continue
        name, place = unit[row], found[BLOCK * (turn % RING) + i]
        part = np.int64(name & low)
        head, cell = HEAD * part, cells * part
        there = load64(place)
        if there != name and there != NONE:  # another unit took the slot since
            place, _ = locate(heads[head], heads[head + 1], name, step)
            there = load64(place)
        known = there == name
        word = load64(place + WORD)
        w, wide_group = np.int64(weight[row]), np.uint64(group[row])
        remembers = remembered == ALL or (remembered == HIDDEN and hidden[row])
        inline = np.int64(word & THREE) if layout == COMPACT else np.int64(0)
        entry: Any = np.int64(-1)
        old: Any = np.int64(0)
        block = np.int64(0)
        if inline != 0:
            used, taken = inline, np.int64((word >> TWO) & THREE)
            rows = spent = np.int64(0)
            sums = (word & ((ONE << groups_at) - ONE)) >> np.uint64(4)
            if total_is == ROWS:
                rows = np.int64(sums)
            else:
                a, b = np.int64(sums & lane_mask), np.int64((sums >> lane_bits) & lane_mask)
                c = np.int64(sums >> (lane_bits + lane_bits))
                rows, spent = (
                    (a + b + c, spent) if total_is == SUMS else (rows, a * a + b * b + c * c)
                )
            if remembers:
                entry = _lane_of(word >> groups_at, wide_group * ONES, used)
                if entry >= 0:
                    old = np.int64(1)
                    if width > 0:
                        old = np.int64((sums >> (lane_bits * np.uint64(entry))) & lane_mask)
        else:
            if layout == WIDE:
                rows, spent = np.int64(word) & HALF, np.int64(word >> HIGH)
                word = load64(place + 2 * WORD)
                used, taken = np.int64(word) & HALF, np.int64(word >> HIGH)
                block = np.int64(load64(place + 3 * WORD))
            else:
                total = np.int64(word >> TWO) & 0xFFFF
                rows = total if counts_rows else np.int64(0)
                spent = np.int64(0) if counts_rows else total
                used = np.int64(word >> USED_AT) & 0xFFFF
                taken, block = np.int64(word >> TAKEN_AT) & 0xF, np.int64(word >> BLOCK_AT)
            if remembers:
                start = heads[head + 3] + link * block
                for i in range(0, used, GRANULE):
                    pair = np.uint64(load32(start)) | (np.uint64(load32(start + 4)) << HIGH)
                    lane = _lane_of(pair, wide_group * ONES, used - i)
                    if lane >= 0:
                        entry = i + lane
                        old = np.int64(1)  # without sums a limit per group can only be one
                        if width > 0:
                            old = _sum_of(start, lane, width)
                        break
                    start += link
        new = remembers & (entry < 0)
        uncounted = new & hidden[row] & (taken >= max_slots)
        if uncounted and remembered == HIDDEN:  # nothing would ever ask for it
            new = remembers = False
        charge = (2 * old + w) * w
        refused = (rows >= max_rows) | (spent + charge > quadratic)
        refused |= (remembers & (old + w > per_group)) | (new & (used >= most_groups))
        if refused:
            first[row] = REPEATED * np.int64(entry >= 0)
            continue
        if not known:
            crowded = metas[cell] >= heads[head + 2]
            if crowded or is_far(place, heads[head], heads[head + 1], name, step):
                return row, GROW_TABLE, int(part)
        held_inside = lanes > 0 and used + np.int64(new) <= lanes and used + np.int64(new) > 0
        if new and not held_inside:
            before = np.int64(0) if inline != 0 else used
            pool = heads[head + 3], heads[head + 4], link
            block = _with_room(before, block, pool, kept + 8 * cell)
            if block < 0:
                return row, GROW_POOL, int(part)
            if inline != 0:
                _move_out(word, used, (groups_at, lane_bits), heads[head + 3] + link * block, width)
        taken += np.int64(new & hidden[row] & (not uncounted)) & limits_slots
        rows += 1
        spent += charge
        if not known:
            store64(place, name)
            metas[cell] += 1
        accepted[row] = True
        first[row] = NEW * np.int64(new) + COUNTED * np.int64(new & (not uncounted))
        if held_inside:
            if inline == 0:
                word = NONE
                if total_is == ROWS:
                    word = np.uint64(rows - 1) << np.uint64(4)
            if new:
                entry = used
                word |= wide_group << (groups_at + LANE * np.uint64(entry))
            by = w
            at_bit = np.uint64(4) + lane_bits * np.uint64(entry)
            if total_is == ROWS:
                by, at_bit = np.int64(1), np.uint64(4)
            word = (word & ~np.uint64(15)) + (np.uint64(by) << at_bit)
            store64(place + WORD, word | np.uint64((used + new) | (taken << 2)))
            continue
        if remembers:
            if new:
                entry = used
                used += 1
            start = heads[head + 3] + link * (block + entry // GRANULE)
            if new:
                _put_group(start, entry % GRANULE, group[row])
            if width > 0:
                _put_sum(start, entry % GRANULE, old + w, width)
        if layout == WIDE:
            store64(place + WORD, np.uint64(rows | (spent << 32)))
            store64(place + 2 * WORD, np.uint64(used | (taken << 32)))
            store64(place + 3 * WORD, np.uint64(block))
        else:
            total = rows if counts_rows else spent
            held = np.uint64((total << 2) | (used << 18) | (taken << 34))
            store64(place + WORD, held | (np.uint64(block) << BLOCK_AT))
    return n, DONE, 0


@njit(cache=True)
def ask_for_groups(  # noqa: PLR0913 (compiled)
    unit: Any, rows: Any, turn: Any, heads: Any, low: Any, layout: Any, link: Any, found: Any
) -> Any:  # pragma: no cover (compiled)
    """Prefetches the first and last group of the units of a block, if they are in the pool."""
    names, places = unit + 8 * BLOCK * turn, found + 8 * BLOCK * (turn % RING)
    for i in range(rows):
        place, head = np.int64(load64(places + 8 * i)), np.int64(load64(names + 8 * i) & low)
        block, used = _block(place, layout)
        start = np.int64(load64(heads + 8 * (HEAD * head + 3))) + link * block
        ask(start if block >= 0 else place)
        ask(start + link * ((used - 1) >> 2) if block >= 0 else place)


@njit(cache=True)
def _block(place: Any, layout: Any) -> Any:  # pragma: no cover (compiled)
    """The block of a slot, and how many groups it has; -1: the slot itself holds its groups."""
    if layout == WIDE:
        return np.int64(load64(place + 3 * WORD)), np.int64(load64(place + 2 * WORD)) & HALF
    word = load64(place + WORD)
    block = np.int64(word >> BLOCK_AT) if (word & THREE) == NONE else np.int64(-1)
    return block, np.int64(word >> USED_AT) & 0xFFFF


@njit(cache=True)
def _lane_of(groups: Any, wanted: Any, used: Any) -> Any:  # pragma: no cover (compiled)
    """Which of the groups in a word is `wanted` (one group, four times); -1: none."""
    differs = groups ^ wanted
    same = (differs - ONES) & ~differs & TOPS  # only its lowest set bit is sure to be right
    lowest = same & (~same + ONE)
    lane = np.int64(lowest > LANE_0) + np.int64(lowest > LANE_1) + np.int64(lowest > LANE_2)
    return lane if same != NONE and lane < used else np.int64(-1)


@njit(cache=True)
def _sum_of(start: Any, lane: Any, width: Any) -> Any:  # pragma: no cover (compiled)
    byte = width * lane
    word = np.int64(load32(start + 8 + 4 * (byte >> 2)))
    return (word >> (8 * (byte & 3))) & ((1 << (8 * width)) - 1)


@njit(cache=True)
def _put_sum(start: Any, lane: Any, value: Any, width: Any) -> Any:  # pragma: no cover (compiled)
    byte = width * lane
    place, shift = start + 8 + 4 * (byte >> 2), 8 * (byte & 3)
    kept = np.int64(load32(place)) & ~(((1 << (8 * width)) - 1) << shift)
    store32(place, np.uint32(kept | (value << shift)))


@njit(cache=True)
def _put_group(start: Any, lane: Any, group: Any) -> Any:  # pragma: no cover (compiled)
    place, shift = start + 4 * (lane >> 1), 16 * (lane & 1)
    kept = np.int64(load32(place)) & (0xFFFF >> (16 - shift))
    store32(place, np.uint32(kept | (np.int64(group) << shift)))


@njit(cache=True)
def _move_out(word: Any, used: Any, form: Any, start: Any, width: Any) -> Any:
    """Copies the groups of a slot into the first granule of its block."""
    groups_at, lane_bits = form
    for i in range(used):
        _put_group(start, i, (word >> (groups_at + LANE * np.uint64(i))) & np.uint64(0xFFFF))
        if width > 0:
            held = (word >> (np.uint64(4) + lane_bits * np.uint64(i))) & ((ONE << lane_bits) - ONE)
            _put_sum(start, i, np.int64(held), width)


@njit(cache=True)
def granules_of(used: Any) -> Any:  # pragma: no cover (compiled)
    """Granules of a block of `used` groups."""
    return _granules(_size_class(used)) if used > 0 else np.int64(0)


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
    """Granules of a block by size class: 1, 2, 3, 4, 6, 8, 12, 16, 24 ..."""
    if size < 3:
        return np.int64(size + 1)
    whole = 4 << ((size - 3) >> 1)
    return np.int64(whole + (whole >> 1) * ((size - 3) & 1))


@njit(cache=True)
def _with_room(used: Any, old: Any, pool: Any, cells: Any) -> Any:  # pragma: no cover (compiled)
    """A block with the `used` groups of an old one and room for one more; -1: the pool is full.

    `pool`: address, granules, bytes of one. `cells`: address of a table's cells of `metas`, which
    are units, granules in use, and the first free block of each size (0: none).
    """
    start, most, link = pool
    if used > 0 and used < GRANULE * granules_of(used):
        return np.int64(old)
    size, free = _size_class(used + 1), cells + 16
    block = np.int64(load64(free + 8 * size)) - 1
    if block >= 0:
        store64(free + 8 * size, np.uint64(load32(start + block * link)))
    else:
        block = np.int64(load64(cells + 8))
        if block + _granules(size) > most:
            return np.int64(-1)
        store64(cells + 8, np.uint64(block + _granules(size)))
    if used > 0:
        smaller = _size_class(used)
        for at in range(0, _granules(smaller) * link, 4):
            store32(start + block * link + at, load32(start + old * link + at))
        store32(start + old * link, np.uint32(load64(free + 8 * smaller)))
        store64(free + 8 * smaller, np.uint64(old + 1))
    return np.int64(block)
