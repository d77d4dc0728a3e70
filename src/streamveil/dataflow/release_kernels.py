"""The compiled loops of the release stage. Each has a plain twin in tests that is its oracle."""

from __future__ import annotations

import numpy as np

from streamveil.compiled import AHEAD, njit, prefetch
from streamveil.types import Array, Float64, Int32, Int64, UInt8, UInt64

TOP = np.uint64(63)
WORD = 8
BLOCK = 1024
MOST_TIES = 16  # keys of one mark that are sorted by insertion


@njit(cache=True)
def take_names(names: UInt64[Array, " words"], rows: Array, taken: UInt64[Array, "some 2"]) -> None:
    """The names of some keys; `names` holds two words for each."""
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch(names, 2 * np.int64(rows[i + AHEAD]))
        row = np.int64(rows[i])
        taken[i, 0], taken[i, 1] = names[2 * row], names[2 * row + 1]


@njit(cache=True)
def take_lanes(
    pending: Int64[Array, " cells"],
    rows: Int64[Array, " shown"],
    first: int,
    width: int,
    taken: Int64[Array, "lanes shown"],
) -> None:
    """The sums of some keys, a row for each lane from `first` on, of `width`; clears them."""
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch(pending, rows[i + AHEAD] * width)
        at = rows[i] * width
        for lane in range(first, width):
            taken[lane - first, i] = pending[at + lane]
            pending[at + lane] = 0


@njit(cache=True)
def plain_cells(  # noqa: PLR0913  (one flat loop for numba)
    estimate: Float64[Array, " shown"],
    variance: Float64[Array, " shown"],
    order: Int32[Array, " shown"],
    z: float,
    step: float,
    least: float,
    whole: bool,  # noqa: FBT001
    value: Array,
    rest: Float64[Array, "3 shown"],
) -> None:
    """Value, deviation and interval of a total, in key order; `outputs.normal` and its bounds.

    It works in blocks: gathered values stay in the first cache, and the rest is vectorised.
    """
    middles = np.empty(BLOCK)
    for start in range(0, len(order), BLOCK):
        part = order[start : start + BLOCK]
        middle, sd = middles[: len(part)], rest[0, start : start + BLOCK]
        for k in range(len(part)):
            middle[k], sd[k] = estimate[part[k]], variance[part[k]]
        low, high = rest[1, start : start + BLOCK], rest[2, start : start + BLOCK]
        for k in range(len(part)):
            sd[k] = np.sqrt(sd[k])
            reach = z * sd[k]
            if step > 0:
                reach = step * np.floor(reach / step + 0.5)
            low[k] = max(middle[k] - reach, least)
            high[k] = max(middle[k] + reach, least)
            middle[k] = max(middle[k], least)
        if whole:
            for k in range(len(part)):
                middle[k] = np.rint(middle[k])
        cells = value[start : start + BLOCK]
        for k in range(len(part)):
            cells[k] = middle[k]


@njit(cache=True)
def take_cells(
    data: UInt8[Array, " bytes"],
    ends: Int64[Array, " keys_plus_1"],
    rows: Array,
    starts: Int64[Array, " some_plus_1"],
) -> UInt8[Array, " bytes"]:
    """The bytes of some key rows, concatenated; sets where each starts."""
    starts[0] = 0
    for i in range(len(rows)):
        starts[i + 1] = starts[i] + ends[rows[i] + 1] - ends[rows[i]]
    taken = np.empty(starts[len(rows)], np.uint8)
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch(data, ends[rows[i + AHEAD]])
        start, at = ends[rows[i]], starts[i]
        for k in range(starts[i + 1] - at):
            taken[at + k] = data[start + k]
    return taken


@njit(cache=True)
def mark_keys(
    data: UInt8[Array, " bytes"], starts: Int64[Array, " keys_plus_1"]
) -> UInt64[Array, " keys"]:
    """A word for every key that sorts by the first bits of the key.

    The first byte of a key is a tag, 0 or 1. It gives the highest bit; the next 63 bits follow.
    """
    marks = np.zeros(len(starts) - 1, np.uint64)
    for key in range(len(marks)):
        start, stop = starts[key], starts[key + 1]
        if start < stop:
            word = np.uint64(0)
            for i in range(start + 1, start + 1 + WORD):
                byte = np.uint64(data[i]) if i < stop else np.uint64(0)
                word = (word << np.uint64(8)) | byte
            marks[key] = (np.uint64(data[start]) << TOP) | (word >> np.uint64(1))
    return marks


@njit(cache=True)
def is_before(
    data: UInt8[Array, " bytes"], ends: Int64[Array, " keys_plus_1"], one: int, other: int
) -> bool:
    """Whether the bytes of one key row sort before those of another."""
    start, begin = ends[one], ends[other]
    size, length = ends[one + 1] - start, ends[other + 1] - begin
    for i in range(min(size, length)):
        if data[start + i] != data[begin + i]:
            return bool(data[start + i] < data[begin + i])
    return bool(size < length)


@njit(cache=True)
def settle_ties(
    data: UInt8[Array, " bytes"],
    starts: Int64[Array, " keys_plus_1"],
    marks: UInt64[Array, " keys"],
    order: Int64[Array, " keys"],
) -> bool:
    """Sorts keys of equal marks in `order` by their bytes; False if too many marks are equal."""
    run = 0
    for i in range(1, len(order)):
        key = order[i]
        run = run + 1 if marks[key] == marks[order[i - 1]] else 0
        if run > MOST_TIES:
            return False
        at = i
        while at > i - run and is_before(data, starts, key, order[at - 1]):
            order[at] = order[at - 1]
            at -= 1
        order[at] = key
    return True


@njit(cache=True)
def merge_keys(
    data: UInt8[Array, " bytes"],
    ends: Int64[Array, " keys_plus_1"],
    rows: Int64[Array, " shown"],
    old: tuple[Array, Array],
    new: tuple[Array, Array],
    places: Int64[Array, " new"],
) -> None:
    """How many old keys come before each new one. `old` and `new`: order and marks."""
    (order, marks), (coming, fresh) = old, new
    low = 0
    for i in range(len(coming)):
        row, high = rows[coming[i]], len(order)
        while low < high:
            middle = (low + high) // 2
            before = marks[middle] < fresh[i]
            if marks[middle] == fresh[i]:
                before = is_before(data, ends, rows[order[middle]], row)
            low, high = (middle + 1, high) if before else (low, middle)
        places[i] = low


@njit(cache=True)
def interleave(old: Array, new: Array, places: Int64[Array, " new"], merged: Array) -> None:
    """Inserts each new item behind as many old ones as its place says."""
    at = 0
    for i in range(len(new)):
        for k in range(at, places[i]):
            merged[k + i] = old[k]
        at = places[i]
        merged[at + i] = new[i]
    for k in range(at, len(old)):
        merged[k + len(new)] = old[k]
