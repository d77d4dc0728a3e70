"""Queries that add up cells of a marginal: how many records of a group meet a condition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar, get_args

import numpy as np

from streamveil.core.accounting import take_numbers
from streamveil.errors import (
    PlanError,
    fitting,
    require_between,
    require_one_of,
    require_with,
    whole,
)
from streamveil.linear.budget_shares import Kind
from streamveil.linear.queries import CELLS, Queries, require_quanta, require_queries
from streamveil.linear.strategies import Direct, Points, Residuals, Strategy
from streamveil.linear.structured import Marginals, check_shape
from streamveil.types import Array, Bool, Float64, Int64

Wanted = tuple[tuple[int, ...], Bool[Array, " N"]]  # grouped by these attributes, these points

MOST_ENTRIES = 1 << 27  # of the matrix: 1 GB


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums of cells, each within one marginal. Weights are 0 or 1.

    Raises:
        PlanError: groups times counted cells are too many.
        PlanError: a set of attributes is not in order, or not of the domain; weights are not 0 or
            1, or of cells of several marginals.

    >>> shape, old = (2, 3), np.array([0, 0, 1, 0, 0, 1], bool)
    >>> both = Sums.of(shape, [((0,), old), ((), old)])
    >>> both.exact(np.array([1, 2, 3, 4, 5, 6])), both.cells.sets
    (array([3, 6, 9]), ((0, 1), (1,)))
    """

    cells: Marginals
    matrix: Float64[Array, "k cells"]  # 0 or 1; the cells of a row belong to one marginal
    shift: ClassVar[int] = 0  # weights are whole

    def __post_init__(self) -> None:
        take_numbers(self)
        object.__setattr__(self, "matrix", require_quanta(self.matrix, 0))
        if self.matrix.shape[1] != self.cells.size:
            raise PlanError(f"matrix must have {self.cells.size} columns, one for each cell")
        parts = np.add.reduceat(self.matrix, self.cells.starts[:-1], axis=1)
        if np.any((parts > 0).sum(axis=1) > 1):
            raise PlanError("a sum has cells of one marginal: in two, a record would count twice")

    @classmethod
    def of(cls, shape: Sequence[int], wanted: Sequence[Wanted]) -> Sums:
        """Queries for all groups of each part: the records of a group at the part's points.

        Args:
            shape: points of each attribute, at least 1 each.
            wanted: for each part the attributes that group it and the points that count in it.

        Raises:
            PlanError: groups and cells are too many.
            PlanError: an argument is beyond its range.
        """
        shape = check_shape(shape)
        require_with("wanted", wanted, "__len__", "pairs of attributes and points")
        needed = [
            tuple(sorted({*group, *varying(points.reshape(shape))})) for group, points in wanted
        ]
        cells = Marginals(shape, tuple(dict.fromkeys(needed)))
        groups = sum(prod(shape[axis] for axis in group) for group, _ in wanted)
        if groups * cells.size > MOST_ENTRIES:
            raise PlanError(
                f"{groups:,} groups over {cells.size:,} counted cells are too many: their product"
                f" must be at most {MOST_ENTRIES:,}.\n"
                "  to fix  group by fewer columns, declare coarser domains, or ask conditions on"
                " grouped columns only"
            )
        blocks = []
        for (group, points), attributes in zip(wanted, needed, strict=True):
            block = grouped(points.reshape(shape), group, attributes)
            full = np.zeros((len(block), cells.size))
            start = int(cells.starts[cells.sets.index(attributes)])
            full[:, start : start + block.shape[1]] = block
            blocks.append(full)
        return cls(cells, np.concatenate(blocks))

    @property
    def size(self) -> int:
        """See `Queries`."""
        return len(self.matrix)

    @property
    def domain(self) -> int:
        """See `Queries`."""
        return self.cells.domain

    @cached_property
    def l1(self) -> int:
        """See `Queries`: the most queries that one point counts in."""
        many = self.matrix.sum(axis=0)
        shape, count = self.cells.shape, np.zeros(self.cells.shape)
        for place, attributes in enumerate(self.cells.sets):
            part = many[self.cells.starts[place] : self.cells.starts[place + 1]]
            count = count + part.reshape(
                [shape[a] if a in attributes else 1 for a in range(len(shape))]
            )
        return int(count.max())

    @property
    def l2_squared(self) -> int:
        """Weights are 0 or 1."""
        return self.l1

    def exact(self, histogram: Int64[Array, " N"]) -> Int64[Array, " k"]:
        """See `Queries`. Sums stay far below 2**53, so they are exact."""
        found = self.cells.exact(histogram).astype(np.float64)
        return np.asarray(np.rint(self.matrix @ found), np.int64)

    def answers(self, histogram: Float64[Array, " N"]) -> Float64[Array, " k"]:
        """See `Queries`."""
        return np.asarray(self.matrix @ self.cells.answers(histogram))

    def weights(self, index: int) -> Float64[Array, " N"]:
        """See `Queries`."""
        require_between(0, self.size - 1, index=whole("index", index))
        shape, row = self.cells.shape, self.matrix[index]
        found = np.flatnonzero(row)
        if not len(found):
            return np.zeros(self.domain)
        place = int(np.searchsorted(self.cells.starts, found[0], side="right")) - 1
        part = row[self.cells.starts[place] : self.cells.starts[place + 1]]
        sizes = [shape[a] if a in self.cells.sets[place] else 1 for a in range(len(shape))]
        return np.broadcast_to(part.reshape(sizes), shape).reshape(-1).copy()

    def label(self, index: int) -> str:
        """See `Queries`."""
        return f"q{index}"


def varying(mask: Bool[Array, "*shape"]) -> tuple[int, ...]:
    """The attributes that a condition depends on.

    >>> varying(np.array([[True, False], [True, False]]))
    (1,)
    """
    return tuple(axis for axis in range(mask.ndim) if np.any(mask != mask.take([0], axis=axis)))


def grouped(
    mask: Bool[Array, "*shape"], group: tuple[int, ...], attributes: tuple[int, ...]
) -> Array:
    """For each group of `group`, the cells of the marginal of `attributes` that are in the mask."""
    corner = tuple(slice(None) if a in attributes else slice(0, 1) for a in range(mask.ndim))
    cells = mask[corner]
    numbers = np.zeros(cells.shape, np.int64)  # of the group of each cell
    for attribute in group:
        along = [-1 if a == attribute else 1 for a in range(mask.ndim)]
        values = np.arange(mask.shape[attribute]).reshape(along)
        numbers = numbers * mask.shape[attribute] + values
    count = int(np.prod([mask.shape[a] for a in group], dtype=np.int64))
    same = np.arange(count)[:, None] == numbers.reshape(-1)[None, :]
    return np.asarray(same & cells.reshape(-1)[None, :])


# ---- answers that are sums of other answers

ENTRIES = 1 << 24  # of the matrix from measured rows to answers


@dataclass(frozen=True, eq=False)
class Through:
    """Measures the interactions of the marginals whose cells the queries add up.

    The scales are the best ones for the marginals; the error is the exact one of the sums.

    >>> old = np.array([0, 0, 1, 0, 0, 1], bool)
    >>> through = Through(Sums.of((2, 3), [((0,), old)]))
    >>> through.recover(through.measure(np.array([1, 2, 3, 4, 5, 6])).astype(float)).round(9)
    array([3., 6.])
    """

    queries: Sums  # the class that is answered
    single: bool = False  # whether the noise of one answer is a single draw

    @cached_property
    def base(self) -> Residuals:
        """The strategy that is measured."""
        return Residuals(self.queries.cells)

    @property
    def rows(self) -> int:
        """See `Strategy`."""
        return self.base.rows

    def measure(self, histogram: Int64[Array, " N"]) -> Int64[Array, " rows"]:
        """See `Strategy`."""
        return self.base.measure(histogram)

    def recover(self, measured: Float64[Array, " rows"]) -> Float64[Array, " k"]:
        """See `Strategy`."""
        return np.asarray(self.queries.matrix @ self.base.recover(measured))

    def scales(self, kind: Kind) -> Float64[Array, " rows"]:
        """See `Strategy`."""
        return self.base.scales(kind)

    def unit(self, kind: Kind) -> float:
        """See `Strategy`."""
        return float(self.units(kind).max())

    def units(self, kind: Kind) -> Float64[Array, " k"]:
        """See `Strategy`."""
        return np.asarray(np.sqrt((self._recovery**2) @ self.scales(kind) ** 2))

    @cached_property
    def _recovery(self) -> Array:
        columns = (self.recover(unit) for unit in np.eye(self.rows))
        return np.stack(list(columns), axis=1)


@fitting('best_strategy(Marginals.ways((2, 2), 1), "zcdp")')
def best_strategy(queries: Queries, kind: Kind) -> Strategy:
    """The strategy with the least error of the worst answer: direct, points, or residuals.

    Args:
        queries: the class that is answered.
        kind: the currency of the budget: 'pure', 'zcdp' or 'gdp'.

    Raises:
        PlanError: an argument is missing, or `queries` is no class of queries.
        PlanError: `kind` is none of these.

    >>> type(best_strategy(Marginals.ways((2, 2, 2), 2), "zcdp")).__name__
    'Residuals'
    """
    require_queries(queries)
    require_one_of("kind", kind, get_args(Kind))
    known: list[Strategy] = [Direct(queries)]
    if queries.domain <= 1 << 20:
        known.append(Points(queries))
    if isinstance(queries, Marginals):
        widest = max((queries.shape[a] for some in queries.sets for a in some), default=1)
        known += [Residuals(queries)] * (widest**2 <= CELLS)  # a matrix of `contrasts`
    if isinstance(queries, Sums):
        through = Through(queries)
        if through.rows * max(queries.size, through.rows) <= ENTRIES:
            known.append(through)
    return min(known, key=lambda strategy: strategy.unit(kind))
