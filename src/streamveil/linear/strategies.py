"""Strategies: which numbers to measure with noise, for the best answers.

A strategy measures whole-number linear functions of a histogram (a row each), adds noise of a given
relative scale to every row, and recovers the answers linearly. One record moves the measured
vector, each row divided by its scale, by at most 1: in L1 for pure noise, in L2 for Gaussian. The
same strategies serve a single release and a counter that runs over a stream of changes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Protocol, runtime_checkable

import numpy as np

from streamveil.linear.budget_shares import Kind
from streamveil.linear.queries import Queries, check_histogram, reals, widths
from streamveil.linear.structured import Marginals
from streamveil.types import Array, Float64, Int64

SLACK = 1 + 1e-9  # covers the rounding of scales that are computed in floating point


@runtime_checkable
class Strategy(Protocol):
    """Measured rows, and how answers are recovered from them.

    >>> cells: Strategy = Points(Marginals.ways((2, 2), 1))
    >>> cells.recover(cells.measure(np.array([1, 2, 3, 4])).astype(float))
    array([3., 7., 4., 6.])
    """

    @property
    def queries(self) -> Queries:
        """The queries whose answers are recovered."""

    @property
    def rows(self) -> int:
        """How many numbers are measured."""

    def measure(self, histogram: Int64[Array, " N"]) -> Int64[Array, " rows"]:
        """The measured numbers, exactly.

        Args:
            histogram: records at each point of the domain, whole numbers of at least 0.

        Raises:
            PlanError: the histogram is of another domain, or records are not whole.
        """

    def recover(self, measured: Float64[Array, " rows"]) -> Float64[Array, " k"]:
        """All answers, in records; `measured`: the numbers that were measured, with noise.

        Raises:
            PlanError: `measured` has more or fewer numbers than `rows`.
        """

    def scales(self, kind: Kind) -> Float64[Array, " rows"]:
        """The relative noise scale of each row.

        Args:
            kind: law of the noise: 'pure' (Laplace), 'zcdp' or 'gdp' (Gaussian).
        """

    def unit(self, kind: Kind) -> float:
        """The standard deviation (in units of one scale) of the worst recovered answer.

        Args:
            kind: law of the noise: 'pure' (Laplace), 'zcdp' or 'gdp' (Gaussian).
        """

    def units(self, kind: Kind) -> Float64[Array, " k"]:
        """The standard deviation of every recovered answer, in units of one scale.

        Args:
            kind: law of the noise: 'pure' (Laplace), 'zcdp' or 'gdp' (Gaussian).
        """

    @property
    def single(self) -> bool:
        """Whether an answer is one measured row."""


@dataclass(frozen=True)
class Direct:
    """Measures the queries themselves.

    >>> sums = Direct(Marginals.ways((2, 2), 1))
    >>> sums.measure(np.array([1, 2, 3, 4])), round(sums.unit("pure"), 6)
    (array([3, 7, 4, 6]), 2.0)
    """

    queries: Queries  # the class that is answered
    single: bool = True  # whether the noise of one answer is a single draw

    @property
    def rows(self) -> int:
        """See `Strategy`."""
        return self.queries.size

    def measure(self, histogram: Int64[Array, " N"]) -> Int64[Array, " rows"]:
        """See `Strategy`."""
        return self.queries.exact(histogram)

    def recover(self, measured: Float64[Array, " rows"]) -> Float64[Array, " k"]:
        """See `Strategy`."""
        return np.ldexp(np.asarray(measured, np.float64), -self.queries.shift)

    def scales(self, kind: Kind) -> Float64[Array, " rows"]:
        """See `Strategy`."""
        norm = self.queries.l1 if kind == "pure" else math.sqrt(self.queries.l2_squared)
        return np.full(self.rows, max(norm, 1) * SLACK)  # 1: queries that count nothing

    def unit(self, kind: Kind) -> float:
        """See `Strategy`."""
        return math.ldexp(float(self.scales(kind)[0]), -self.queries.shift)

    def units(self, kind: Kind) -> Float64[Array, " k"]:
        """See `Strategy`."""
        return np.full(self.queries.size, self.unit(kind))


@dataclass(frozen=True)
class Points:
    """Measures the histogram: best when queries are few points wide or cover everything.

    Raises:
        PlanError: a histogram is of another domain, or records are not whole.

    >>> Points(Marginals.ways((2, 2), 1)).measure(np.array([1, 2, 3, 4]))
    array([1, 2, 3, 4])
    """

    queries: Queries  # the class that is answered
    single: bool = False  # whether the noise of one answer is a single draw

    @property
    def rows(self) -> int:
        """See `Strategy`."""
        return self.queries.domain

    def measure(self, histogram: Int64[Array, " N"]) -> Int64[Array, " rows"]:
        """See `Strategy`."""
        return check_histogram(self.queries, histogram)

    def recover(self, measured: Float64[Array, " rows"]) -> Float64[Array, " k"]:
        """See `Strategy`."""
        return self.queries.answers(measured)

    def scales(self, kind: Kind) -> Float64[Array, " rows"]:
        """See `Strategy`."""
        return np.ones(self.rows)

    def unit(self, kind: Kind) -> float:
        """See `Strategy`."""
        return self._widest

    def units(self, kind: Kind) -> Float64[Array, " k"]:
        """See `Strategy`."""
        return widths(self.queries)

    @cached_property
    def _widest(self) -> float:
        return float(widths(self.queries).max())


def contrasts(size: int) -> Int64[Array, "size size"]:
    """Orthogonal whole-number rows: all ones, then (1, -1, 0..), (1, 1, -2, 0..), ... (Helmert).

    >>> contrasts(3).tolist()
    [[1, 1, 1], [1, -1, 0], [1, 1, -2]]
    """
    rows = np.zeros((size, size), np.int64)
    rows[0] = 1
    for row in range(1, size):
        rows[row, :row] = 1
        rows[row, row] = -row
    return rows


@dataclass(frozen=True)
class Residuals:
    """Measures marginals without redundancy: each interaction of attributes once.

    Algorithm: the marginals of a set of attributes are sums over its subsets of that subset's pure
        interaction (parities, when attributes are bits), which are orthogonal. Each interaction is
        measured once as whole-number contrasts; the scales minimise the total variance of all
        wanted cells. For Gaussian noise this is the optimal matrix mechanism for marginals (Xiao,
        He, Zhang & Kifer 2023, arXiv:2305.08175), here on an integer lattice.
    Proof: the rows of one attribute are orthogonal, row j with squared norm w_j, so each column has
        sum_j row_j[x]^2 / w_j = 1, of which the row of ones has 1/size. An interaction of the set B
        whose rows have scale s_B sqrt(w) therefore moves by prod (1 - 1/size) / s_B^2 in squared
        L2, the same for every record; these add up to 1. In L1 the maxima over records are summed.

    Raises:
        PlanError: answers are recovered from more or fewer numbers than were measured.

    >>> bits = Residuals(Marginals.ways((2,) * 9, 3))
    >>> bits.rows, round(bits.unit("zcdp"), 2), round(Direct(bits.queries).unit("zcdp"), 2)
    (130, 3.22, 9.17)
    """

    queries: Marginals  # the class that is answered
    single: bool = False  # whether the noise of one answer is a single draw

    @cached_property
    def closure(self) -> tuple[tuple[int, ...], ...]:
        """All subsets of the wanted sets, small ones first."""
        found = {
            part
            for attributes in self.queries.sets
            for length in range(len(attributes) + 1)
            for part in itertools.combinations(attributes, length)
        }
        return tuple(sorted(found, key=lambda part: (len(part), part)))

    @cached_property
    def starts(self) -> dict[tuple[int, ...], int]:
        """The first row of each interaction."""
        sizes = [self._coordinates(part) for part in self.closure]
        return dict(zip(self.closure, itertools.accumulate(sizes, initial=0), strict=False))

    @cached_property
    def rows(self) -> int:
        """See `Strategy`."""
        return sum(self._coordinates(part) for part in self.closure)

    def _coordinates(self, part: Sequence[int]) -> int:
        return math.prod(self.queries.shape[a] - 1 for a in part)

    @cached_property
    def groups(self) -> list[tuple[tuple[int, ...], Int64[Array, " sets"], Array, Array]]:
        """Wanted sets of one shape: (shape, indices of sets, cells, rows), both [sets, *shape]."""
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for index, attributes in enumerate(self.queries.sets):
            by_shape.setdefault(tuple(self.queries.shape[a] for a in attributes), []).append(index)
        out = []
        for shape, members in by_shape.items():
            starts = self.queries.starts[np.array(members)]
            cells = starts[:, None] + np.arange(math.prod(shape))
            rows = np.stack([self._row_numbers(self.queries.sets[index]) for index in members])
            full = (len(members), *shape)
            out.append((shape, np.array(members), cells.reshape(full), rows.reshape(full)))
        return out

    def _row_numbers(self, attributes: tuple[int, ...]) -> Array:
        """For each coefficient of one set (0 along an axis: not in the interaction), its row."""
        shape = tuple(self.queries.shape[a] for a in attributes)
        numbers = np.zeros(shape, np.int64)
        for part in itertools.product(*[(False, True)] * len(shape)):
            inside = tuple(a for a, used in zip(attributes, part, strict=True) if used)
            block = tuple(slice(1, None) if used else slice(0, 1) for used in part)
            count = self._coordinates(inside)
            numbers[block] = (self.starts[inside] + np.arange(count)).reshape(numbers[block].shape)
        return numbers

    def measure(self, histogram: Int64[Array, " N"]) -> Int64[Array, " rows"]:
        """See `Strategy`. An interaction of several wanted sets comes out the same from each."""
        cells = self.queries.exact(histogram)
        out = np.zeros(self.rows, np.int64)
        for shape, _, at, rows in self.groups:
            out[rows] = along_axes([contrasts(size) for size in shape], cells[at])
        return out

    def recover(self, measured: Float64[Array, " rows"]) -> Float64[Array, " k"]:
        """See `Strategy`."""
        measured = reals("measured", measured, self.rows)
        out = np.empty(self.queries.size)
        for shape, _, at, rows in self.groups:
            out[at] = along_axes([inverse_contrasts(size) for size in shape], measured[rows])
        return out

    def scales(self, kind: Kind) -> Float64[Array, " rows"]:
        """See `Strategy`."""
        return self._pure_scales if kind == "pure" else self._gaussian_scales

    @cached_property
    def _gaussian_scales(self) -> Array:
        return self._optimal(2)

    @cached_property
    def _pure_scales(self) -> Array:
        return self._optimal(1)

    def _optimal(self, norm: int) -> Array:
        """Scales that minimise the total variance for a bound on the L1 or L2 norm of a column."""
        moved = np.array([self._moved(part, norm) for part in self.closure])
        weight = np.array([self._weight(part) for part in self.closure])
        any_rows = weight > 0  # none where an attribute has one value
        scale = np.divide(moved, weight, out=np.ones_like(moved), where=any_rows) ** (
            1 / (norm + 2)
        )
        scale *= (moved / scale**norm).sum() ** (1 / norm) * SLACK
        out = np.empty(self.rows)
        for part, value in zip(self.closure, scale, strict=True):
            start = self.starts[part]
            out[start : start + self._coordinates(part)] = value * self._row_norms(part)
        return out

    def _row_norms(self, part: tuple[int, ...]) -> Array:
        norms = [np.sqrt((contrasts(self.queries.shape[a])[1:] ** 2.0).sum(axis=1)) for a in part]
        return reduce(np.multiply.outer, norms, np.ones(())).reshape(-1)

    def _moved(self, part: tuple[int, ...], norm: int) -> float:
        """The most that one record adds to the norm of the normalised rows, at scale 1."""
        product = 1.0
        for attribute in part:
            rows = contrasts(self.queries.shape[attribute])[1:].astype(np.float64)
            rows /= np.sqrt((rows**2).sum(axis=1, keepdims=True))
            product *= float((np.abs(rows) ** norm).sum(axis=0).max())
        return product

    def _weight(self, part: tuple[int, ...]) -> float:
        """The variance that scale 1 adds over all wanted cells."""
        sizes = self.queries.shape
        around = sum(
            math.prod(1 / sizes[a] for a in attributes if a not in part)
            for attributes in self.queries.sets
            if set(part) <= set(attributes)
        )
        return self._coordinates(part) * around

    def unit(self, kind: Kind) -> float:
        """See `Strategy`."""
        return float(self.units(kind).max())

    def units(self, kind: Kind) -> Float64[Array, " k"]:
        """See `Strategy`."""
        square = self.scales(kind) ** 2
        out = np.empty(self.queries.size)
        for shape, _, at, rows in self.groups:
            out[at] = along_axes([inverse_contrasts(size) ** 2 for size in shape], square[rows])
        return np.sqrt(out)


def inverse_contrasts(size: int) -> Float64[Array, "size size"]:
    """The inverse of `contrasts`: its transpose with each row divided by its squared norm."""
    rows = contrasts(size).astype(np.float64)
    return np.asarray((rows / (rows**2).sum(axis=1, keepdims=True)).T)


def along_axes(matrices: Sequence[Array], table: Array) -> Array:
    """Multiplies every axis but the first by its matrix."""
    for axis, matrix in enumerate(matrices, start=1):
        table = np.moveaxis(np.tensordot(matrix, table, axes=(1, axis)), 0, axis)
    return table
