"""What private sketches are compared with: sketches without privacy, and the system before.

A sketch without privacy is the floor for speed and error.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamveil.core.accounting import Budget, Neighbours
from streamveil.sketches import Layout, LazySketch
from streamveil.sketches.hashing import Kind
from streamveil.sketches.keys import Keys, key_words, weight_words
from streamveil.sketches.linear import add_keys, add_weighted, read_rows, require_same
from streamveil.types import Array, Float64

LARGEST_WEIGHT = 2**31 - 1


@dataclass(repr=False)  # secret: exact counts
class LinearSketch:
    """A table of exact counts. Not private: never publish it or what is computed from it.

    Algorithm: Count-Min (Cormode & Muthukrishnan 2005) adds to one cell in each row and estimates
        by the smallest; Count Sketch (Charikar, Chen & Farach-Colton 2002) adds with random signs
        and estimates by the median.
    Error: `PublishedSketch.error_bound` with no noise.
    Memory: 4 bytes a cell, 8 once the total reaches 2^31.

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

    >>> sketch = CountSketch(width=1000)
    >>> sketch.update(["a", "b", "a"])
    >>> sketch.estimate(["a"]).tolist()
    [2.0]
    """
    return LinearSketch(Layout(kind="count-sketch", depth=depth, width=width, seed=seed))


def PunctualSketch(  # noqa: N802  (reads as a kind of sketch)
    *,
    kind: Kind,
    width: int,
    horizon: int | None,
    protects: Neighbours,
    budget: Budget,
    **options: Any,
) -> LazySketch:
    """Every arrival pushes every cell (Epasto et al. 2023): the baseline, at depth x width a key.

    Args:
        kind: "count-min" or "count-sketch".
        width: columns of the table.
        horizon: arrivals that the guarantee covers; None: an unknown number.
        protects: whom the guarantee is for.
        budget: of everything that is published.
        **options: further fields of `LazySketch`.

    >>> sketch = PunctualSketch(kind="count-min", width=33, horizon=1024,
    ...     protects=Neighbours(relation="event"), budget=Budget(epsilon=1, delta=1e-6))
    >>> sketch.cell.name, sketch.cell.pushes
    ('tree', 1024)
    """  # fmt: skip
    return LazySketch(
        kind=kind, width=width, horizon=horizon, protects=protects, budget=budget, round=1,
        block=width, **{"counter": "tree", **options},
    )  # fmt: skip
