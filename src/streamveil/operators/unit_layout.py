"""The compiled loops that move units: into a table that grew, and into the parts of a set."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from streamveil.operators.addresses import equal, load64, lowest, store64
from streamveil.operators.probing import home
from streamveil.operators.unit_kernels import (
    BLOCK_AT,
    BUCKET,
    HALF,
    INLINE,
    NONE,
    THREE,
    USED_AT,
    WIDE,
    WORD,
    granules_of,
)
from streamveil.types import Array, Int64, UInt32, UInt64


@njit(cache=True)
def _copy(unit: Any, place: Any, step: Any) -> Any:  # pragma: no cover (compiled)
    for word in range(0, step, WORD):
        store64(place + word, load64(unit + word))


@njit(cache=True)
def _settle_anywhere(slots: Any, span: Any, unit: Any) -> Any:  # pragma: no cover (compiled)
    """Copies the slot at an address to the first free one from its place on.

    `span`: buckets, and bytes of one.
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
    slots: int, words: int, before: int, buckets: int, moving: UInt64[Array, " words"]
) -> None:
    """Moves the units of a table's first `before` buckets to where the longer table wants them.

    From the last bucket to the first: a unit that only moves back finds room behind all that are
    still to be moved. The few that do not (they had overflowed) wait until all others are placed.
    How many slots of a bucket are taken is counted apart: to read again what was just written would
    wait for it. `moving` has room for one bucket; it belongs to the caller, since compiled code frees
    an array of its own after the last use of its name, whoever has its address.
    """
    size, step = BUCKET * words, WORD * words
    waiting, taken = np.zeros(8 * size, np.uint64), np.zeros(buckets, np.uint8)
    moved = moving.ctypes.data
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
                longer[: late * size] = waiting[: late * size]
                waiting = longer
            _copy(unit, waiting.ctypes.data + late * step, step)
            late += 1
    for one in range(late):
        _settle_anywhere(slots, (buckets, step), waiting.ctypes.data + one * step)


@njit(cache=True)
def measure_parts(
    slots: UInt64[Array, " words"], kind: Int64[Array, " 3"], sizes: Int64[Array, "parts 2"]
) -> None:
    """Counts units and granules by the low bits of the fingerprint. `kind`: layout, words, link."""
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
def copy_part(
    slots: UInt64[Array, " words"],
    pool: UInt32[Array, " words"],
    kind: Int64[Array, " 3"],
    places: Int64[Array, " units"],
    new: tuple[int, int],
    new_pool: UInt32[Array, " words"],
) -> int:
    """Puts the units whose fingerprints are at some places into an empty table.

    `new` is the address of its slots, and its buckets. Returns the granules it takes.
    """
    layout, words, link = kind
    shift = np.uint64(0) if layout == WIDE else BLOCK_AT
    unit, step = np.zeros(BUCKET * words, np.uint64), WORD * words
    last, taken = BUCKET * (words - 1), 0
    for start in places:
        _copy(slots.ctypes.data + 8 * start, unit.ctypes.data, step)
        granules = granules_of(_outside(unit[BUCKET], unit[last - BUCKET], layout))
        if granules:
            block = np.int64(unit[last] >> shift)
            for i in range(granules * link):
                new_pool[taken * link + i] = pool[block * link + i]
            unit[last] ^= np.uint64(block ^ taken) << shift
            taken += granules
        _settle_anywhere(new[0], (new[1], step), unit.ctypes.data)
    return taken
