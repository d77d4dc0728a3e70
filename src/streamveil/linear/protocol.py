"""The interface of static mechanisms for linear queries: one release, one error function.

A static mechanism reads a histogram once and gives answers to all queries of its class. Dynamic
mechanisms are built from releases on disjoint parts of the data, whose answers add; `ErrorBound`
therefore also bounds the error of such a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, runtime_checkable

import numpy as np

from streamveil.core.accounting import Neighbours, exact_between
from streamveil.core.noise import Place
from streamveil.core.noisy import Noisy, restored, values
from streamveil.errors import PlanError, require_between, require_with, whole
from streamveil.linear.budget_shares import Kind, Share, require_share
from streamveil.linear.queries import Queries, reals
from streamveil.types import Array, Exact, Float64, Int64

SMALLEST = 0.25  # where `rounded_scale` is smallest
Part = tuple[Share, float]  # the share of one release, and the number of records that it reads


@dataclass(frozen=True, init=False)
class QueryAnswers:
    """Released answers to a query class, in records: made of noisy numbers only, never of data.

    `synthetic` is a histogram that answers any linear query, where the mechanism makes one.

    Raises:
        PlanError: `noisy` was asked for where there is no histogram.

    >>> QueryAnswers(restored(np.array([12.0, 30.0]))).values
    array([12., 30.])
    """

    values: Float64[Array, " k"]  # one for each query, in records
    synthetic: Float64[Array, " N"] | None

    def __init__(
        self,
        answers: Noisy[Float64[Array, " k"]],
        synthetic: Noisy[Float64[Array, " N"]] | None = None,
    ) -> None:
        object.__setattr__(self, "values", values(answers))
        object.__setattr__(self, "synthetic", None if synthetic is None else values(synthetic))

    @property
    def noisy(self) -> Noisy[Float64[Array, " k"]]:
        """The answers as released numbers."""
        return restored(self.values)

    def __call__(self, query: int | Float64[Array, " N"]) -> float:
        """One answer: by number, or by weights when there is a synthetic histogram.

        Raises:
            PlanError: there are not so many, or weights are given where there is no histogram, or
                of other points.
        """
        if isinstance(query, int | np.integer):
            require_between(0, len(self.values) - 1, query=query)
            return float(self.values[query])
        if self.synthetic is None:
            raise PlanError("these answers cover their own queries only: ask by number")
        return float(np.dot(self.synthetic, reals("query", query, len(self.synthetic))))


def combine(parts: Sequence[tuple[float, QueryAnswers]], size: int) -> QueryAnswers:
    """A weighted sum of answers to the same `size` queries.

    Args:
        parts: each answer with its weight.
        size: number of queries.

    Raises:
        PlanError: a part has another number of answers, or the number is no possible one.

    >>> ones = QueryAnswers(restored(np.ones(2)))
    >>> combine([(1, ones), (-1, ones)], 2).values
    array([0., 0.])
    """
    require_between(0, 2**40, size=whole("size", size))
    require_with("parts", parts, "__len__", "pairs of a weight and answers")
    total_answers = np.zeros(size)
    for weight, answers in parts:
        if len(answers.values) != size:
            raise PlanError(f"size must be that of all answers, {len(answers.values)}, not {size}")
        total_answers += weight * answers.values
    made = [(weight, answers.synthetic) for weight, answers in parts]
    if not made or any(synthetic is None for _, synthetic in made):
        return QueryAnswers(restored(total_answers))
    total = np.zeros_like(np.asarray(made[0][1]))
    for weight, synthetic in made:
        total += weight * np.asarray(synthetic)
    return QueryAnswers(restored(total_answers), restored(total))


@runtime_checkable
class ErrorBound(Protocol):
    """Bounds on the error of answers: the largest over all queries, in records.

    >>> from streamveil.linear import Marginals, Share, noisy_queries
    >>> bound = noisy_queries(Marginals.ways((2, 2), 1)).error
    >>> round(bound.alpha(Share("pure", 1), size=1000, beta=0.05), 1)
    9.0
    """

    def alpha(self, share: Share, size: float, beta: float) -> float:
        """A bound that fails with probability at most beta, for one release on `size` records.

        Args:
            share: part of a budget (`Share`) that it may spend, above 0.
            size: records, at least 0.
            beta: chance that it fails, above 0 and below 1.

        Raises:
            PlanError: beta is beyond its range.
        """

    def union(self, parts: Sequence[Part], beta: float) -> float:
        """The bound for the sum of releases on disjoint parts.

        Args:
            parts: share and size of each.
            beta: chance that it fails, above 0 and below 1.
        """

    def spread(self, shares: Sequence[Share], size: float, beta: float) -> float:
        """The bound for such a sum if only the total size is known: for the worst way to cut it.

        Args:
            shares: one for each part.
            size: records of all parts together.
            beta: chance that it fails, above 0 and below 1.
        """

    def useful_size(self, share: Share) -> float:
        """The number of records at which the error in practice is about half that number.

        Args:
            share: part of a budget (`Share`) that it may spend, above 0.
        """


@runtime_checkable
class StaticMechanism(Protocol):
    """Answers all queries of a class from one histogram, once.

    >>> from streamveil.linear import Marginals, noisy_queries
    >>> counts: StaticMechanism = noisy_queries(Marginals.ways((2, 2), 1))
    >>> counts.queries.size, counts.adaptive
    (4, False)
    """

    @property
    def queries(self) -> Queries:
        """The class."""

    @property
    def error(self) -> ErrorBound:
        """Its error."""

    @property
    def adaptive(self) -> bool:
        """Whether it chooses, and its error grows with the number of records (so restarts pay)."""

    def covers(self, protects: Neighbours) -> bool:
        """Whether its noise hides this change of one record: added or removed, or replaced.

        Args:
            protects: whom a guarantee made of its releases is for.
        """

    def release(
        self,
        histogram: Int64[Array, " N"],
        share: Share,
        place: Place,
        size_hat: float | None = None,
    ) -> QueryAnswers:
        """Releases answers: spends exactly `share` and draws all noise at `place`.

        `size_hat` is a public size or an estimate that is already paid for; without it a mechanism
        that needs one pays for it out of the share.

        Args:
            histogram: records at each point of the domain, whole numbers of at least 0.
            share: part of a budget (`Share`) that it may spend, above 0.
            place: where all noise is drawn, of this release alone.
            size_hat: about how many records there are.

        Raises:
            PlanError: the histogram is of another domain, or the share pays for nothing.
        """


def require_static(static: object) -> None:
    """Refuses anything but a static mechanism, by the argument's name."""
    require_with("static", static, "release", "one such as Mwem(queries=...)")


def require_choices(static: StaticMechanism, share: Share) -> None:
    """Refuses a share for noise alone if a mechanism chooses: else only large tables would fail."""
    require_static(static)
    require_share(share)
    if static.adaptive:
        share.require_choices()


def sized(
    histogram: Int64[Array, " N"], share: Share, part: Exact, place: Place, size_hat: float | None
) -> tuple[float, Share]:
    """The number of records and the rest of the share: `size_hat`, or bought for `part`."""
    if size_hat is not None:
        return size_hat, share
    noisy = share.scale(part).noisy(int(histogram.sum()), place.draws(b"size"), 1, 1)
    return float(values(noisy)), share.scale(1 - Fraction(part))


def size_tail(share: Share, beta: float) -> float:
    """A bound on the error of a number of records bought by this share, except for beta; plus 1."""
    scale = float(share.spread(1, 1))
    pure = share.kind == "pure"
    return 1 + scale * (math.log(1 / beta) if pure else math.sqrt(2 * math.log(2 / beta)))


@dataclass(frozen=True)
class ConcaveBound:
    """A bound `one`, concave in the size and falling with the share, and its sums.

    Proof of `spread`: no share is below the smallest, and of a concave function k equal parts have
        the largest sum.
    """

    one: Callable[[Share, float, float], float]
    practical: Callable[[Share], float]

    def alpha(self, share: Share, size: float, beta: float) -> float:
        """See `ErrorBound`."""
        return self.one(share, size, beta)

    def union(self, parts: Sequence[Part], beta: float) -> float:
        """See `ErrorBound`: the failure probabilities add up."""
        return sum(self.one(share, size, beta / len(parts)) for share, size in parts)

    def spread(self, shares: Sequence[Share], size: float, beta: float) -> float:
        """See `ErrorBound`."""
        count, least = len(shares), min(shares, key=lambda share: share.amount)
        return count * self.one(least, size / count, beta / count)

    def useful_size(self, share: Share) -> float:
        """See `ErrorBound`."""
        return self.practical(share)


@dataclass(frozen=True)
class NoiseBound:
    """Unbiased noise of known deviations, whatever the number of records.

    `unit`, by kind of share, is the norm of the coefficients of the worst answer for noise of scale
    one (sigma, or the Laplace scale); `least` is the smallest scale of a row then, in whole numbers
    of what is measured; `count` is the number of answers; `single` says that the noise of one
    answer is one draw.

    Proof: noise is rounded to whole numbers. One Laplace draw of scale b is beyond m after rounding
        with probability exp(-(m + 1/2) / b). In sums a rounded draw counts as a continuous one of
        scale b' = b sqrt(cosh(1 / 2b)): with u = sinh(l/2)^2 / sinh(1/2b)^2, at most (b l)^2 by
        convexity, its moment generating function is 1 + cosh(1/2b) u / (1 - u), which is at most
        1 / (1 - (b' l)^2). It grows with b, so `SMALLEST` takes the place of a smaller b. A
        combination of Laplace draws with coefficients of norm `unit` has a moment generating
        function below that of one draw of scale `unit`, so Chernoff's bound covers it. A rounded
        Gaussian has tails within those of variance sigma^2 + 1/8 (tested over sigma).
    """

    unit: dict[Kind, float]
    least: dict[Kind, float]
    count: int
    single: bool = True  # whether the noise of one answer is a single draw

    def alpha(self, share: Share, size: float, beta: float) -> float:
        """See `ErrorBound`."""
        return self.union([(share, size)], beta)

    def union(self, parts: Sequence[Part], beta: float) -> float:
        """See `ErrorBound`: variances add up."""
        exact_between("beta", beta, 0, 1)
        if not parts:
            return 0.0
        kind = parts[0][0].kind
        unit, least = self.unit[kind], self.least[kind]
        scales = [float(share.spread(1, 1)) for share, _ in parts]
        if kind != "pure":
            square = sum(scale**2 + 1 / (8 * least**2) for scale in scales)
            return unit * math.sqrt(square) * math.sqrt(2 * math.log(2 * self.count / beta))
        if self.single and len(scales) == 1:
            beyond = scales[0] * least * math.log(self.count / beta) - 0.5
            return unit / least * max(0, math.ceil(beyond * (1 + 1e-12)))
        inflated = [unit / least * rounded_scale(scale * least) for scale in scales]
        # a zero: Chernoff, not the tail of a single draw
        return laplace_tail([*inflated, 0.0], beta / self.count)

    def spread(self, shares: Sequence[Share], size: float, beta: float) -> float:
        """See `ErrorBound`: sizes do not matter."""
        return self.union([(share, size) for share in shares], beta)

    def useful_size(self, share: Share) -> float:
        """See `ErrorBound`."""
        return 2 * self.alpha(share, 0.0, 0.5)


def rounded_scale(scale: float) -> float:
    """The Laplace scale whose sums cover those of rounded draws; see `NoiseBound`.

    >>> [round(rounded_scale(b), 3) for b in (0.01, 1.0, 10.0)]
    [0.485, 1.062, 10.006]
    """
    scale = max(scale, SMALLEST)
    return scale * math.sqrt(math.cosh(1 / (2 * scale)))


def laplace_tail(scales: Sequence[float], beta: float) -> float:
    """The x with P(|sum of Laplace(b_i)| > x) <= beta: the best Chernoff bound, on a grid.

    Proof: the logarithm of the moment generating function of Laplace(b) is -ln(1 - (b l)^2); for
        one scale alone the exact tail exp(-x / b) is smaller and is used.

    >>> round(laplace_tail([1.0], 0.05), 3), round(laplace_tail([1.0] * 100, 0.05), 1)
    (2.996, 38.8)
    """
    if len(scales) == 1:
        return scales[0] * math.log(1 / beta)
    array = np.asarray(scales, np.float64)
    rates = np.linspace(0.002, 0.998, 499) / array.max()
    moment = -np.log1p(-(np.outer(rates, array) ** 2)).sum(axis=1)
    return float(np.min((math.log(2 / beta) + moment) / rates))
