"""The compiled loops that move units: into a table that grew, and into the parts of a set.

Other loops here count the units to come, so that a table grows once for all of them, divide rows
among threads, and put their answers together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamveil.compiled import njit
from streamveil.dataflow.raw_memory import ask, equal, load64, lowest, store32, store64
from streamveil.dataflow.unit_kernels import (
    BLOCK_AT,
    BUCKET,
    HALF,
    HEAD,
    INLINE,
    NONE,
    THREE,
    USED_AT,
    WIDE,
    WORD,
    granules_of,
    home,
    locate,
)
from streamveil.types import Array, Bool, Int64, UInt8, UInt32, UInt64

DRAWN_AT = 8  # first bit of a fingerprint that draws a sample, apart from bits of part and place
WAIT = 16  # names between prefetching a bucket and reading it


@njit(cache=True)
def _copy(unit: Any, place: Any, step: Any) -> Any:  # pragma: no cover (compiled)
    for word in range(0, step, WORD):
        store64(place + word, load64(unit + word))


@njit(cache=True)
def _settle_anywhere(slots: Any, span: Any, unit: Any) -> Any:  # pragma: no cover (compiled)
    """Copies the slot at an address to the first free slot from its place on.

    `span`: the number of buckets, and the bytes of one.
    """
    buckets, step = span
    at = slots + home(load64(unit), np.uint64(buckets)) * step
    while equal(at, NONE) == 0:
        at += step
        if at == slots + buckets * step:
            at = slots
    _copy(unit, at + 8 * lowest(equal(at, NONE)), step)


@njit(cache=True)
def spread(
    slots: int, words: int, before: int, buckets: int, spare: UInt64[Array, " words"]
) -> None:
    """Moves the units of a table's first `before` buckets to their places in the longer table.

    It goes from the last bucket to the first: a unit that only moves back finds room behind all
    units still to be moved. The few others (they had overflowed) wait until all others are placed.
    The taken slots of a bucket are counted apart: reading what was just written would wait for the
    write. `spare` has room for one bucket. It belongs to the caller, since compiled code frees an
    array of its own after the last use of its name, even if its address is still in use.
    """
    size, step = BUCKET * words, WORD * words
    waiting, taken = np.zeros(8 * size, np.uint64), np.zeros(buckets, np.uint8)
    moved = spare.ctypes.data
    late = 0  # in buckets of `waiting`, each of one unit
    for bucket in range(before - 1, -1, -1):
        start = slots + bucket * step
        for at in range(0, step, 8):
            store64(moved + at, load64(start + at))
            store64(start + at, NONE)
        for lane in range(BUCKET):
            unit = moved + 8 * lane
            name = load64(unit)
            if name == NONE:
                break
            to = home(name, np.uint64(buckets))
            fits = to >= bucket
            while fits and taken[to] == BUCKET:
                to += 1
                fits = to < buckets
            if fits:
                _copy(unit, slots + to * step + 8 * np.int64(taken[to]), step)
                taken[to] += np.uint8(1)
                continue
            if (late + 1) * size > len(waiting):
                longer = np.zeros(2 * len(waiting), np.uint64)
                for i in range(late * size):
                    longer[i] = waiting[i]
                waiting = longer
            _copy(unit, waiting.ctypes.data + late * step, step)
            late += 1
    for one in range(late):
        _settle_anywhere(slots, (buckets, step), waiting.ctypes.data + one * step)


@njit(cache=True)
def measure_parts(
    slots: UInt64[Array, " words"], kind: Int64[Array, " 3"], sizes: Int64[Array, "parts 2"]
) -> None:
    """Counts units and granules by low bits of the fingerprint. `kind`: layout, words, link."""
    layout, words, _ = kind
    for bucket in range(0, len(slots), BUCKET * words):
        for place in range(bucket, bucket + BUCKET):
            if slots[place] != NONE:
                part = np.int64(slots[place] % np.uint64(len(sizes)))
                second = slots[place + BUCKET * (words - 2)]
                sizes[part, 0] += 1
                sizes[part, 1] += granules_of(_outside(slots[place + BUCKET], second, layout))


@njit(cache=True)
def _outside(first: Any, second: Any, layout: Any) -> Any:
    """How many groups of a unit are in a block, from the words that may hold their number."""
    if layout == WIDE:
        return np.int64(second) & HALF
    pooled = layout != INLINE and (first & THREE) == NONE
    return np.int64(first >> USED_AT) & 0xFFFF if pooled else np.int64(0)


@njit(cache=True)
def deal(
    slots: UInt64[Array, " words"],
    pool: UInt32[Array, " words"],
    kind: Int64[Array, " 3"],
    heads: Int64[Array, " cells"],
    spare: UInt64[Array, " words"],
) -> None:
    """Puts units into empty tables, chosen by the low bits of their fingerprints.

    `spare` has room for one bucket; it belongs to the caller, as in `spread`.
    """
    layout, words, link = kind
    parts = len(heads) // HEAD
    taken, low = np.zeros(parts, np.int64), np.uint64(parts - 1)
    shift = np.uint64(0) if layout == WIDE else BLOCK_AT
    step, last = WORD * words, BUCKET * (words - 1)
    for bucket in range(0, len(slots), BUCKET * words):
        for start in range(bucket, bucket + BUCKET):
            if slots[start] == NONE:
                break
            part = np.int64(slots[start] & low)
            _copy(slots.ctypes.data + 8 * start, spare.ctypes.data, step)
            granules = granules_of(_outside(spare[BUCKET], spare[last - BUCKET], layout))
            if granules:
                block, to = np.int64(spare[last] >> shift), taken[part]
                for i in range(granules * link):
                    store32(heads[HEAD * part + 3] + 4 * (to * link + i), pool[block * link + i])
                spare[last] ^= np.uint64(block ^ to) << shift
                taken[part] += granules
            where = heads[HEAD * part], (heads[HEAD * part + 1], step)
            _settle_anywhere(where[0], where[1], spare.ctypes.data)


@njit(cache=True)
def count_unseen(
    unit: UInt64[Array, " rows"],
    bits: int,
    heads: Int64[Array, " cells"],
    words: int,
    met: UInt64[Array, " slots"],
) -> int:
    """How many units of rows are in no table, among a sample of one in 2^`bits`.

    `met` comes with zeros and takes their names; counting stops when half of it is filled.
    """
    low = np.uint64(len(heads) // HEAD - 1)
    drawn, step = np.uint64(((1 << bits) - 1) << DRAWN_AT), WORD * words
    waiting, came, found = np.zeros(WAIT, np.uint64), 0, 0
    for row in range(len(unit) + WAIT):  # the last turns only serve the names that wait
        name = unit[row] if row < len(unit) else NONE
        if name & drawn != NONE:
            continue
        if name != NONE:
            head = HEAD * np.int64(name & low)
            ask(heads[head] + home(name, np.uint64(heads[head + 1])) * step)
        name, waiting[came % WAIT] = waiting[came % WAIT], name
        came += 1
        if name == NONE:
            continue
        head = HEAD * np.int64(name & low)
        _, known = locate(heads[head], heads[head + 1], name, step)
        if not known:
            place, again = locate(met.ctypes.data, len(met) // BUCKET, name, WORD)
            if not again:
                store64(place, name)
                found += 1
                if 2 * found >= len(met):
                    break
    return found


@njit(cache=True)
def take_share(
    rows: tuple[Array, ...], into: tuple[Array, ...], low: np.uint64, share: np.uint64
) -> int:
    """Copies the rows of units whose `low` bits are `share`, in order; returns how many.

    `rows` and `into`: the columns of `UnitRows`; `into` has room for one row more than it takes.
    """
    unit, group, weight, hidden = rows
    units, groups, weights, hides = into
    n: Any = 0
    for i in range(len(unit)):  # without a branch, which could not be predicted
        units[n], groups[n], weights[n], hides[n] = unit[i], group[i], weight[i], hidden[i]
        n += np.int64(unit[i] & low == share)
    return int(n)


@njit(cache=True)
def put_together(
    unit: UInt64[Array, " rows"],
    starts: Int64[Array, " shares"],
    found: tuple[Bool[Array, " rows"], UInt8[Array, " rows"]],
    into: tuple[Bool[Array, " rows"], UInt8[Array, " rows"]],
) -> None:
    """Puts answers in the order of all rows; in `found` they stand share after share."""
    at, low = starts.copy(), np.uint64(len(starts) - 1)
    for i in range(len(unit)):
        share = np.int64(unit[i] & low)
        into[0][i], into[1][i] = found[0][at[share]], found[1][at[share]]
        at[share] += 1
