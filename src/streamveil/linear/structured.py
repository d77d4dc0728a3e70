"""Query classes whose structure replaces a matrix: marginals and ranges.

All weights are 0 or 1, so exact answers are counts of records.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from streamveil.core.accounting import take_numbers
from streamveil.errors import PlanError, require_between, require_with, whole
from streamveil.linear.queries import check_histogram, points_of, reals, whole_numbers
from streamveil.types import Array, Float64, Int64

DENSE = 1 << 21  # entries up to which marginals are kept as a matrix
Shape = tuple[int, ...]


def check_shape(shape: Sequence[int]) -> Shape:
    """The sizes of the attributes, validated."""
    sizes = whole_numbers("shape", shape)
    known = tuple(np.atleast_1d(sizes).tolist())
    if sizes.ndim != 1 or not known or min(known) < 1 or math.prod(known) > 1 << 40:
        raise PlanError(f"shape must be sizes of at least 1, of 2**40 points at most, not {known}")
    return known


@dataclass(frozen=True)
class Marginals:
    """Every cell of every listed marginal of a product domain: the GROUP BYs of a table.

    A point is a tuple of attribute values; its number is its position in C order. Cells are
    numbered set after set, each set in C order of its own attributes.

    Algorithm: all sums at once, by summing attributes out one after another and sharing what the
        sets have in common: about 1.3 w^3/3 * N additions for all w-way marginals of bits, instead
        of N for each marginal.

    Raises:
        PlanError: a set does not list attributes of the domain in order.

    >>> both = Marginals((2, 3), ((0,), (0, 1)))
    >>> both.exact(np.array([1, 2, 3, 4, 5, 6]))
    array([ 6, 15,  1,  2,  3,  4,  5,  6])
    >>> both.label(1), both.label(7)
    ('a0=1', 'a0=1, a1=2')
    """

    shape: Shape  # sizes of the axes of the domain
    sets: tuple[tuple[int, ...], ...]
    names: tuple[str, ...] = ()  # of the axes, for people
    shift: ClassVar[int] = 0  # weights are whole

    def __post_init__(self) -> None:
        take_numbers(self)
        object.__setattr__(self, "shape", check_shape(self.shape))
        many = len(self.shape)
        require_with("names", self.names, "__iter__", "a text for each attribute")
        names = tuple(self.names) or tuple(f"a{i}" for i in range(many))
        require_with("sets", self.sets, "__iter__", "sets of attributes such as ((0,), (0, 1))")
        sets = tuple(tuple(points_of("a set", one, many).tolist()) for one in self.sets)
        if not sets or any(tuple(sorted(set(one))) != one for one in sets):
            raise PlanError(f"each set lists attributes of 0..{many - 1} in order")
        if len(names) != many:
            raise PlanError(f"names must be {many}, one for each attribute, not {len(names)}")
        object.__setattr__(self, "sets", sets)
        object.__setattr__(self, "names", names)

    @classmethod
    def ways(cls, shape: Sequence[int], ways: int) -> Marginals:
        """All marginals of exactly `ways` attributes.

        Args:
            shape: points of each attribute, at least 1 each.
            ways: attributes of a marginal, from 0.

        Raises:
            PlanError: an argument is of another kind, or there are not so many attributes.
        """
        sizes = check_shape(shape)
        ways = whole("ways", ways, 0)
        return cls(sizes, tuple(itertools.combinations(range(len(sizes)), ways)))

    @cached_property
    def starts(self) -> Int64[Array, " sets"]:
        """The number of the first cell of each set, and the number of all cells."""
        sizes = [math.prod(self.shape[a] for a in attributes) for attributes in self.sets]
        return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)

    @property
    def size(self) -> int:
        """See `Queries`."""
        return int(self.starts[-1])

    @property
    def domain(self) -> int:
        """See `Queries`."""
        return math.prod(self.shape)

    @property
    def l1(self) -> int:
        """A record is in one cell of each marginal."""
        return len(self.sets)

    @property
    def l2_squared(self) -> int:
        """A record is in one cell of each marginal."""
        return len(self.sets)

    def exact(self, histogram: Int64[Array, " N"]) -> Int64[Array, " k"]:
        """See `Queries`."""
        return self._tables(check_histogram(self, histogram))

    def answers(self, histogram: Float64[Array, " N"]) -> Float64[Array, " k"]:
        """See `Queries`."""
        return self._tables(reals("a histogram", histogram, self.domain))

    def weights(self, index: int) -> Float64[Array, " N"]:
        """See `Queries`."""
        attributes, cell = self.cell(index)
        mask = np.ones((1,) * len(self.shape))
        for attribute, value in zip(attributes, cell, strict=True):
            along = np.zeros(self.shape[attribute])
            along[value] = 1.0
            mask = mask * along.reshape([-1 if a == attribute else 1 for a in range(mask.ndim)])
        return np.broadcast_to(mask, self.shape).reshape(-1).copy()

    def cell(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The attributes of a query and their values; `index`: its number, from 0.

        Raises:
            PlanError: there are not so many.
        """
        require_between(0, self.size - 1, index=whole("index", index))
        which = int(np.searchsorted(self.starts, index, side="right")) - 1
        attributes = self.sets[which]
        sizes = tuple(self.shape[a] for a in attributes)
        at = np.unravel_index(index - int(self.starts[which]), sizes) if sizes else ()
        return attributes, tuple(int(value) for value in at)

    def label(self, index: int) -> str:
        """See `Queries`."""
        attributes, values = self.cell(index)
        pairs = zip(attributes, values, strict=True)
        return ", ".join(f"{self.names[a]}={v}" for a, v in pairs) or "all"

    @cached_property
    def _dense(self) -> Array:
        """The queries as a matrix: faster than the descent when it is small."""
        return np.stack([self.weights(index) for index in range(self.size)])

    def _tables(self, histogram: Array) -> Array:
        if self.size * self.domain <= DENSE:
            whole = self._dense @ histogram  # exact for records: far fewer than 2**53
            return whole if histogram.dtype == np.float64 else np.rint(whole).astype(np.int64)
        out = np.empty(self.size, histogram.dtype)
        wanted = [(attributes, index) for index, attributes in enumerate(self.sets)]
        self._descend(histogram.reshape(-1, 1), len(self.shape), wanted, out)
        return out

    def _descend(
        self, table: Array, left: int, wanted: Sequence[tuple[tuple[int, ...], int]], out: Array
    ) -> None:
        """`table` has the first `left` attributes flat in axis 0, the kept later ones in axis 1."""
        if left == 0:
            for _, index in wanted:
                out[self.starts[index] : self.starts[index + 1]] = table[0]
            return
        size = self.shape[left - 1]
        split = table.reshape(-1, size, table.shape[1])
        keep = [(s[:-1], index) for s, index in wanted if s and s[-1] == left - 1]
        drop = [(s, index) for s, index in wanted if not s or s[-1] != left - 1]
        if keep:
            self._descend(split.reshape(len(split), -1), left - 1, keep, out)
        if drop:
            whole = split[:, 0].copy()
            for value in range(1, size):  # several times faster than sum(axis=1) of few
                whole += split[:, value]
            self._descend(whole, left - 1, drop, out)


@dataclass(frozen=True, eq=False)
class Ranges:
    """Boxes of a grid: low[i] <= point < high[i] in every coordinate. Any number of dimensions.

    Raises:
        PlanError: corners do not fit the domain.

    >>> Ranges.of((4,), [[0], [1]], [[4], [3]]).exact(np.array([1, 2, 3, 4]))
    array([10,  5])
    """

    shape: Shape  # sizes of the axes of the domain
    low: Int64[Array, "k d"]  # first point of each box
    high: Int64[Array, "k d"]  # one past its last point
    shift: ClassVar[int] = 0  # weights are whole

    def __post_init__(self) -> None:
        take_numbers(self)
        sizes = check_shape(self.shape)
        at, to = whole_numbers("low", self.low), whole_numbers("high", self.high)
        object.__setattr__(self, "shape", sizes)
        if at.shape != to.shape or at.shape[1:] != (len(sizes),) or not len(at):
            raise PlanError(f"low and high need one row of {len(sizes)} corners per range")
        if np.any(at < 0) or np.any(to > np.array(sizes)) or np.any(at > to):
            raise PlanError(f"ranges must lie inside {sizes}")

    @classmethod
    def of(cls, shape: Sequence[int], low: object, high: object) -> Ranges:
        """Ranges from their corners; `high` is exclusive.

        Args:
            shape: points of each attribute, at least 1 each.
            low: first corner of each range, a row each.
            high: last corner of each range, exclusive.

        Raises:
            PlanError: a corner is no whole number, or not of the domain.
        """
        at, to = whole_numbers("low", low), whole_numbers("high", high)
        return cls(check_shape(shape), np.atleast_2d(at), np.atleast_2d(to))

    @classmethod
    def prefixes(cls, size: int) -> Ranges:
        """All ranges [0, i): the cumulative distribution.

        Args:
            size: points of the one attribute, at least 1.
        """
        ends = np.arange(1, size + 1)[:, None]
        return cls.of((size,), np.zeros_like(ends), ends)

    @property
    def size(self) -> int:
        """See `Queries`."""
        return len(self.low)

    @property
    def domain(self) -> int:
        """See `Queries`."""
        return math.prod(self.shape)

    @cached_property
    def l1(self) -> int:
        """The most ranges that share a point, counted by differences at the corners."""
        cover = np.zeros([size + 1 for size in self.shape], np.int64)
        for sign, corner in self._corners():
            np.add.at(cover, tuple(corner.T), sign)
        for axis in range(cover.ndim):
            cover = cover.cumsum(axis=axis)
        return int(cover.max())

    @property
    def l2_squared(self) -> int:
        """Weights are 0 or 1."""
        return self.l1

    def exact(self, histogram: Int64[Array, " N"]) -> Int64[Array, " k"]:
        """See `Queries`."""
        return self._sums(check_histogram(self, histogram))

    def answers(self, histogram: Float64[Array, " N"]) -> Float64[Array, " k"]:
        """See `Queries`."""
        return self._sums(reals("a histogram", histogram, self.domain))

    def weights(self, index: int) -> Float64[Array, " N"]:
        """See `Queries`."""
        require_between(0, self.size - 1, index=whole("index", index))
        box = np.zeros(self.shape)
        box[tuple(slice(a, b) for a, b in zip(self.low[index], self.high[index], strict=True))] = 1
        return box.reshape(-1)

    def label(self, index: int) -> str:
        """See `Queries`."""
        pairs = zip(self.low[index], self.high[index], strict=True)
        return " x ".join(f"[{a},{b})" for a, b in pairs)

    def _corners(self) -> Iterable[tuple[int, Int64[Array, "k d"]]]:
        for ends in itertools.product((0, 1), repeat=len(self.shape)):
            corner = np.where(np.array(ends) == 1, self.high, self.low)
            yield (-1) ** sum(ends), corner

    def _sums(self, histogram: Array) -> Array:
        table = np.zeros([size + 1 for size in self.shape], histogram.dtype)
        table[(slice(1, None),) * table.ndim] = histogram.reshape(self.shape)
        for axis in range(table.ndim):
            table = table.cumsum(axis=axis)
        out = np.zeros(self.size, histogram.dtype)
        for sign, corner in self._corners():
            out += sign * (-1) ** len(self.shape) * table[tuple(corner.T)]
        return out
