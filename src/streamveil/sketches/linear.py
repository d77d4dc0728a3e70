"""Count-Min and Count Sketch without privacy: the floor for speed and error, and the exact half.

Both are linear in the data, which is all that privacy needs. Conservative update is left out on
purpose: it is not linear, and one changed item could move every cell.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from streamveil.compiled import njit
from streamveil.sketches.hashing import Layout, find_places
from streamveil.sketches.keys import Keys, Words, key_words, weight_words
from streamveil.types import Array, Float64, Int32

CHUNK = 1024  # keys hashed together before their cells are touched
LARGEST_WEIGHT = 2**31 - 1


@dataclass(repr=False)  # secret: exact counts
class LinearSketch:
    """A table of exact counts. Not private: never publish it or what is computed from it.

    Algorithm: Count-Min (Cormode & Muthukrishnan 2005) adds to one cell in each row and estimates
        by the smallest; Count Sketch (Charikar, Chen & Farach-Colton 2002) adds with random signs
        and estimates by the median.
    Error: `PublishedSketch.error_bound` with no noise.
    Memory: 4 bytes a cell, 8 once the total reaches 2^31.

    Raises:
        ValueError: weights are not one from 0 to 2**31 - 1 per key, or layouts to merge differ.
        TypeError: weights are no whole numbers.

    >>> sketch = CountMin(width=100)
    >>> sketch.update([4, 4, 9], weights=np.array([1, 2, 5]))
    >>> sketch.merge(sketch).estimate([4, 9]).tolist(), sketch.total
    ([6.0, 10.0], 8)
    """

    layout: Layout  # shape and hash functions
    table: Array = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    total: int = 0  # sum of all weights, >= 0

    def __post_init__(self) -> None:
        if self.table.size == 0:
            self.table = np.zeros((self.layout.depth, self.layout.width), np.int32)

    def update(self, keys: Keys, weights: Array | None = None) -> None:
        """Adds keys, each with a weight (1 when none is given)."""
        words = key_words(keys)
        if weights is None:
            added = len(words)
            self._make_room(added)
            add_keys(words, self.layout.code, self.layout.factors, self.table)
        else:
            amounts = weight_words(weights, len(words), LARGEST_WEIGHT)
            added = int(amounts.sum(dtype=np.int64))
            self._make_room(added)
            add_weighted(words, amounts, self.layout.code, self.layout.factors, self.table)
        self.total += added

    def _make_room(self, added: int) -> None:
        if self.table.dtype == np.int32 and self.total + added > LARGEST_WEIGHT:
            self.table = self.table.astype(np.int64)

    def estimate(self, keys: Keys) -> Float64[Array, " keys"]:
        """The usual estimate: the smallest row, or the median of signed rows."""
        rows = read_rows(self.layout, self.table, key_words(keys))
        return np.median(rows, axis=0) if self.layout.signed else rows.min(axis=0)

    def merge(self, other: LinearSketch) -> LinearSketch:
        """The sketch of both streams; the layouts, seed included, must be equal."""
        require_same(self.layout, other.layout)
        total = self.total + other.total
        wide = np.int64 if total > LARGEST_WEIGHT else np.int32
        return replace(self, table=self.table.astype(wide) + other.table.astype(wide), total=total)

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        return self.table.nbytes


def CountMin(*, depth: int = 3, width: int, seed: int = 0) -> LinearSketch:  # noqa: N802
    """A Count-Min sketch. Not private.

    Args:
        depth: rows; more make collisions rarer.
        width: columns; more make them smaller.
        seed: of the hash functions, public.

    Raises:
        ValueError: a setting is out of its range.

    >>> sketch = CountMin(width=1000)
    >>> sketch.update([1, 1, 2])
    >>> sketch.estimate([1, 2, 3]).tolist()
    [2.0, 1.0, 0.0]
    """
    return LinearSketch(Layout(kind="count-min", depth=depth, width=width, seed=seed))


def CountSketch(*, depth: int = 3, width: int, seed: int = 0) -> LinearSketch:  # noqa: N802
    """A Count Sketch. Not private.

    Args:
        depth: rows; more make collisions rarer.
        width: columns; more make them smaller.
        seed: of the hash functions, public.

    Raises:
        ValueError: a setting is out of its range.

    >>> sketch = CountSketch(width=1000)
    >>> sketch.update(["a", "b", "a"])
    >>> sketch.estimate(["a"]).tolist()
    [2.0]
    """
    return LinearSketch(Layout(kind="count-sketch", depth=depth, width=width, seed=seed))


def require_same(first: Layout, second: Layout) -> None:
    """Sketches add up only cell by cell."""
    if first != second:
        raise ValueError(
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
    """`add_keys` in given work space."""
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
