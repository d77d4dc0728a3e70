"""Classes of linear queries: how many records, each weighted by a number in [0, 1].

A class answers all its queries at once, on an exact histogram (integers) and on a synthetic one
(floating point), and gives the weights of one query. Nothing else is ever needed, so classes far
too large for a matrix (marginals, ranges, halfspaces over a million points) are structured.
Weights are multiples of 2**-shift: exact answers are integers in quanta of 2**-shift.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streamveil.core.accounting import take_numbers
from streamveil.errors import PlanError, got, require_between, require_with, whole
from streamveil.types import Array, Float64, Int64

LARGEST = 1 << 61  # most quanta that one adaptive question may count: leaves room for noise
CELLS = 1 << 27  # entries of a dense matrix of queries: one gigabyte
Function = Callable[[Array], Array]


@runtime_checkable
class Queries(Protocol):
    """k linear queries over a domain of N points, numbered from 0.

    >>> from streamveil.linear import Ranges
    >>> half: Queries = Ranges.of((4,), [[2]], [[4]])
    >>> half.size, half.domain, half.weights(0)
    (1, 4, array([0., 0., 1., 1.]))
    """

    @property
    def size(self) -> int:
        """k, the number of queries."""

    @property
    def domain(self) -> int:
        """N, the number of points."""

    @property
    def shift(self) -> int:
        """Weights are integers times 2**-shift."""

    @property
    def l1(self) -> int:
        """The most that one record moves all answers together, in quanta."""

    @property
    def l2_squared(self) -> int:
        """The most that one record moves the sum of squares of all answers, in quanta squared."""

    def exact(self, histogram: Int64[Array, " N"]) -> Int64[Array, " k"]:
        """All answers on a histogram of whole records, in quanta, without rounding.

        Args:
            histogram: records at each point of the domain, whole numbers of at least 0.

        Raises:
            PlanError: they are of another domain, or too many for exact answers.
        """

    def answers(self, histogram: Float64[Array, " N"]) -> Float64[Array, " k"]:
        """All answers on any histogram, in records.

        Args:
            histogram: records at each point of the domain.

        Raises:
            PlanError: it is of another domain, or of no numbers.
        """

    def weights(self, index: int) -> Float64[Array, " N"]:
        """The weights of one query, in [0, 1]; `index`: its number, from 0.

        Raises:
            PlanError: there are not so many.
        """

    def label(self, index: int) -> str:
        """A short public name of one query; `index`: its number, from 0."""


def require_queries(queries: object) -> None:
    """Raises PlanError for anything but a class of queries."""
    require_with("queries", queries, "domain", "queries such as Marginals.ways((2, 2), 1)")


def as_array(name: str, given: Any) -> Array:
    """Numbers as a NumPy array; PlanError if they have no common shape, or some are masked."""
    if np.ma.is_masked(given):
        raise PlanError(f"{name} must be numbers, and some are masked: drop these first")
    try:
        return np.asarray(given)
    except ValueError:
        raise PlanError(f"{name} must be numbers, as many in each row") from None


def whole_numbers(name: str, given: Any) -> Int64[Array, " ..."]:
    """Whole numbers as int64: different ones stay different, and others are refused.

    Numbers from 2**63 on become negative, since ids may be unsigned hashes of 64 bits.

    Raises:
        PlanError: they are fractions, missing, truth values, texts, or have more than 64 bits.

    >>> whole_numbers("ids", np.array([3, 2**63], np.uint64)).tolist(), whole_numbers("ids", [])
    ([3, -9223372036854775808], array([], dtype=int64))
    >>> whole_numbers("ids", np.array([3.0]))
    Traceback (most recent call last):
    ...
    streamveil.errors.PlanError: ids must be whole numbers of 64 bits, not float64.
      to fix  give integers, such as array.astype(numpy.int64), where none is missing
    """
    found = as_array(name, given)
    if found.dtype.kind not in "iu" and found.size:
        raise PlanError(
            f"{name} must be whole numbers of 64 bits, not {found.dtype}.\n"
            "  to fix  give integers, such as array.astype(numpy.int64), where none is missing"
        )
    return found.astype(np.int64, copy=False)


def points_of(name: str, given: Any, domain: int) -> Int64[Array, " n"]:
    """Points of a domain, from 0.

    Raises:
        PlanError: one is not of the domain, or no whole number.
    """
    found = whole_numbers(name, given)
    if found.ndim != 1 or np.any((found < 0) | (found >= domain)):
        raise PlanError(f"{name} must be numbers from 0 to {domain - 1}, in a list")
    return found


def reals(name: str, given: Any, size: int | None = None) -> Float64[Array, " ..."]:
    """`size` numbers as float64; PlanError for texts, complex numbers and other values."""
    found = as_array(name, given)
    if size is not None and found.shape != (size,):
        raise PlanError(f"{name} needs {size} entries, not {found.shape}")
    with suppress(TypeError, ValueError):
        if found.dtype.kind in "biufO":
            return found.astype(np.float64, copy=False)
    raise PlanError(f"{name} must be numbers, not {found.dtype}")


def rounded_weights(weights: Array, shift: int, name: str) -> Int64[Array, "*shape"]:
    """Weights as whole quanta; refuses what is not a number in [0, 1]."""
    weights = reals("weights", weights)
    if not np.all(np.isfinite(weights)) or weights.min(initial=0) < 0 or weights.max(initial=0) > 1:
        raise PlanError(f"the weights of {name} must be finite and in [0, 1]")
    shift = whole("shift", shift)
    require_between(0, 52, shift=shift)
    return np.asarray(np.rint(np.ldexp(weights, shift)), np.int64)


@dataclass(frozen=True, eq=False)
class Matrix:
    """Any queries, one row each. Weights are first rounded to multiples of 2**-shift.

    Numerics: exact answers use floating-point products of integers; they stay below 2**53 because
        a table of 2**(52 - shift) records or more is refused.

    Raises:
        PlanError: the weights are no matrix of finite numbers in [0, 1], or it is too large.

    >>> both = Matrix.of([[1, 0, 1], [0.5, 0.5, 0.5]])
    >>> both.answers(np.array([1.0, 2.0, 3.0])), both.shift
    (array([4., 3.]), 16)
    """

    quanta: Float64[Array, "k N"]  # integers, at most 2**shift
    shift: int  # weights are multiples of 2**-shift, >= 0

    def __post_init__(self) -> None:
        take_numbers(self)
        require_between(0, 52, shift=self.shift)
        object.__setattr__(self, "quanta", require_quanta(self.quanta, self.shift))

    @classmethod
    def of(cls, weights: object, shift: int | None = None) -> Matrix:
        """From rows of weights; 0/1 weights need no shift.

        Args:
            weights: a row for each query, a column for each point; within [0, 1].
            shift: binary places that are kept, at least 0; 16 if left out and one is needed.

        Raises:
            PlanError: it is no matrix, or has too many cells.
        """
        rows = np.atleast_2d(reals("weights", weights))
        if rows.ndim != 2 or not rows.size:
            raise PlanError(f"queries must be a matrix with a row each, not of shape {rows.shape}")
        if rows.size > CELLS:
            raise PlanError(
                f"{rows.shape[0]} queries over {rows.shape[1]} points are too many for a matrix: "
                "use marginals, ranges or halfspaces"
            )
        if shift is None:
            shift = 0 if np.all((rows == 0) | (rows == 1)) else 16
        return cls(rounded_weights(rows, shift, "a query").astype(np.float64), shift)

    @property
    def size(self) -> int:
        """See `Queries`."""
        return int(self.quanta.shape[0])

    @property
    def domain(self) -> int:
        """See `Queries`."""
        return int(self.quanta.shape[1])

    @cached_property
    def l1(self) -> int:
        """See `Queries`."""
        return int(self.quanta.sum(axis=0).max())

    @cached_property
    def l2_squared(self) -> int:
        """See `Queries`. Sums of at most 2**27 squares of 2**16 are exact in floating point."""
        return int(np.einsum("kn,kn->n", self.quanta, self.quanta).max())

    def exact(self, histogram: Int64[Array, " N"]) -> Int64[Array, " k"]:
        """See `Queries`."""
        found = check_histogram(self, histogram, 1 << (52 - self.shift))
        return np.asarray(np.rint(self.quanta @ found.astype(np.float64)), np.int64)

    def answers(self, histogram: Float64[Array, " N"]) -> Float64[Array, " k"]:
        """See `Queries`."""
        found = reals("a histogram", histogram, self.domain)
        return np.asarray(np.ldexp(self.quanta @ found, -self.shift))

    def weights(self, index: int) -> Float64[Array, " N"]:
        """See `Queries`."""
        require_between(0, self.size - 1, index=whole("index", index))
        return np.asarray(np.ldexp(self.quanta[index], -self.shift))

    def label(self, index: int) -> str:
        """See `Queries`."""
        return f"q{index}"


def functions(
    asked: Sequence[Function], points: Float64[Array, "N d"], shift: int | None = None
) -> Matrix:
    """Queries given as functions of an array of points, each returning one weight per point.

    Args:
        asked: functions of all points at once, with weights from 0 to 1.
        points: the domain, one row each.
        shift: weights are rounded to multiples of 2**-shift; exact ones choose it if left out.

    Raises:
        PlanError: a function does not return one weight per point.

    >>> functions([lambda x: x[:, 0] > 1], np.array([[0.0], [1.0], [2.0]])).weights(0)
    array([0., 0., 1.])
    """
    points = as_array("points", points)
    if points.ndim != 2:
        raise PlanError(f"points must have a row each, not {points.ndim} dimensions")
    if not isinstance(asked, Sequence) or not all(map(callable, asked)):
        raise PlanError(f"asked must be a list of functions of all points, not {got(asked)}")
    rows = np.empty((len(asked), len(points)))
    for row, function in zip(rows, asked, strict=True):
        given = reals("what a query returns", function(points))
        if given.shape != row.shape:
            raise PlanError(f"a query must return one weight per point, {row.shape} in all")
        row[:] = given
    return Matrix.of(rows, shift)


def require_quanta(given: Any, shift: int) -> Float64[Array, "k N"]:
    """Refuses weights other than whole quanta in [0, 1]: sensitivities rest on that."""
    quanta = reals("weights", given)
    if quanta.ndim != 2:
        raise PlanError(f"weights must be a matrix with a row each, not of shape {quanta.shape}")
    if not (np.all(quanta == np.rint(quanta)) and np.all((quanta >= 0) & (quanta <= 2.0**shift))):
        raise PlanError(f"weights must be whole numbers from 0 to 2**{shift}: quanta of a record")
    return quanta


def check_histogram(queries: Queries, given: Any, beyond: int = LARGEST) -> Int64[Array, " N"]:
    """A histogram of whole records, fewer than `beyond` in all, so that sums are exact."""
    found = whole_numbers("a histogram", given)
    if found.shape != (queries.domain,):
        raise PlanError(f"a histogram needs {queries.domain} entries, not {found.shape}")
    if np.abs(found.astype(np.float64)).sum() >= beyond:  # of whole numbers it would wrap around
        raise PlanError(f"a histogram must have fewer than {beyond} records for exact answers")
    return found


def whole_quanta(query: Array, shift: int, domain: int) -> Int64[Array, " N"]:
    """The weights of one question as quanta; refuses fractions of a quantum."""
    query = reals("a question", query)
    if query.shape != (domain,):
        raise PlanError(
            f"a question needs one weight in [0, 1] for every point of the domain, {domain} in all,"
            f" not {query.shape}"
        )
    quanta = rounded_weights(query, shift, "a question")
    if not np.array_equal(np.ldexp(quanta.astype(np.float64), -shift), query):
        raise PlanError(
            f"the weights of a question must be multiples of 2**-{shift}.\n"
            "  to fix  set a larger shift (16 is plenty), and round weights to its multiples"
        )
    return quanta


def counted(quanta: Int64[Array, " N"], histogram: Int64[Array, " N"]) -> int:
    """The answer to one question in quanta, at most `LARGEST`.

    Proof: halves of the quanta are summed apart, without overflow below 2^36 records, and added as
        Python's integers; no cut at a fixed number moves two answers apart.
    """
    half = 26
    upper, lower = quanta >> half, quanta & ((1 << half) - 1)
    return min((int(upper @ histogram) << half) + int(lower @ histogram), LARGEST)


def require_room(size: float, shift: int) -> None:
    """Refuses a public size whose quanta and noise do not fit a whole number of 64 bits."""
    require_between(0, 60, shift=shift)
    if size >= LARGEST >> shift:
        raise PlanError(
            f"size or start = {size:.3g} is too many records for questions at shift = {shift},"
            f" which takes fewer than 2**{61 - shift}.\n"
            f"  to fix  set a smaller shift (16 is plenty)"
        )


def widths(queries: Queries) -> Float64[Array, " k"]:
    """The L2 norm of the weights of each query: its noise, if every point has noise of scale 1."""
    if isinstance(queries, Matrix):
        square = np.einsum("kn,kn->k", queries.quanta, queries.quanta)
        return np.asarray(np.ldexp(np.sqrt(square), -queries.shift))
    return np.sqrt(queries.answers(np.ones(queries.domain)))
