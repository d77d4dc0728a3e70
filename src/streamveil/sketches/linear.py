"""The exact half of Count-Min and Count Sketch: adding keys to a table, and reading them.

Both are linear in the data, which is all that privacy needs. Conservative update is left out on
purpose: it is not linear, and one changed item could move every cell.
"""

from __future__ import annotations

import numpy as np

from streamveil.compiled import njit
from streamveil.errors import PlanError
from streamveil.sketches.hashing import Layout, find_places
from streamveil.sketches.keys import Words
from streamveil.types import Array, Float64, Int32

CHUNK = 1024  # keys hashed together before their cells are touched


def require_same(first: Layout, second: Layout) -> None:
    """Sketches add up only cell by cell."""
    if first != second:
        raise PlanError(
            "only sketches of equal kind, depth, width, hash family and public seed can be merged"
        )


def read_rows(layout: Layout, table: Array, words: Words) -> Float64[Array, "depth keys"]:
    """The cells of every key, signs undone."""
    places = layout.places(words)
    rows = np.arange(layout.depth)[:, None]
    if not layout.signed:
        return np.asarray(table[rows, places], np.float64)
    values = np.asarray(table[rows, places >> np.uint32(1)], np.float64)
    return values * (1.0 - 2.0 * (places & np.uint32(1)))


@njit(cache=True)
def add_keys(words: Words, code: int, factors: Array, table: Array) -> None:
    """Adds 1 for every key: hashes a chunk on vector registers, then touches its cells."""
    places = np.empty((len(table), CHUNK), np.uint32)
    add_chunks(words, code, factors, table, places)


@njit(cache=True)
def add_chunks(words: Words, code: int, factors: Array, table: Array, places: Array) -> None:
    """`add_keys` in the work space `places`."""
    for start in range(0, len(words), CHUNK):
        chunk = words[start : start + CHUNK]
        find_places(chunk, code, table.shape[1], factors, places)
        touch(places, len(chunk), code, table)


@njit(inline="always")
def touch(places: Array, count: int, code: int, table: Array) -> None:
    """Adds 1 (or the sign) to every place. Rows alternate, so that hot cells do not queue up."""
    depth = len(table)
    if code == 3:
        if depth == 3:
            for q in range(count):
                p0, p1, p2 = places[0, q], places[1, q], places[2, q]
                table[0, p0 >> 1] += 1 - 2 * np.int64(p0 & 1)
                table[1, p1 >> 1] += 1 - 2 * np.int64(p1 & 1)
                table[2, p2 >> 1] += 1 - 2 * np.int64(p2 & 1)
        else:
            for q in range(count):
                for row in range(depth):
                    p = places[row, q]
                    table[row, p >> 1] += 1 - 2 * np.int64(p & 1)
    elif depth == 3:
        for q in range(count):
            table[0, places[0, q]] += 1
            table[1, places[1, q]] += 1
            table[2, places[2, q]] += 1
    else:
        for q in range(count):
            for row in range(depth):
                table[row, places[row, q]] += 1


@njit(cache=True)
def add_weighted(
    words: Words, weights: Int32[Array, " keys"], code: int, factors: Array, table: Array
) -> None:
    """Adds the weight of every key."""
    depth, width = table.shape
    places = np.empty((depth, CHUNK), np.uint32)
    for start in range(0, len(words), CHUNK):
        chunk = words[start : start + CHUNK]
        find_places(chunk, code, width, factors, places)
        for q in range(len(chunk)):
            for row in range(depth):
                p = np.int64(places[row, q])
                weight = np.int64(weights[start + q])
                if code == 3:
                    table[row, p >> 1] += weight * (1 - 2 * (p & 1))
                else:
                    table[row, p] += weight
