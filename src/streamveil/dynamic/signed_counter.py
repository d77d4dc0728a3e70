"""Counters over signed changes: with additive noise a changing table needs nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from streamveil.core.accounting import Neighbours, exact_between, take_numbers
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.measure import sums_with_noise
from streamveil.core.noise import Place
from streamveil.core.noisy import post_process, public, restored, values
from streamveil.dynamic.interval_tree import RECORD
from streamveil.dynamic.protocol import Bag, Changes, in_one_go, require_growth, require_points
from streamveil.dynamic.trees import Accumulator, accumulator, require_tree
from streamveil.errors import HorizonError, PlanError, require_flag, require_positive
from streamveil.linear.additive import Additive, grain
from streamveil.linear.budget_shares import Share, require_share
from streamveil.linear.protocol import QueryAnswers
from streamveil.linear.queries import Queries
from streamveil.linear.strategies import Strategy
from streamveil.types import Array, Float64, Int64

LONGEST = 1 << 14  # steps of a root counter: step t costs t row operations
SLACK = 1 + 1e-9  # covers floating point in the norms of the encoder's columns
LIMB, LIMBS = 14, 3  # a coefficient is a multiple of 2^-42, taken in parts of 14 bits


@dataclass(repr=False)  # secret
class RootState:
    """Secret: the exact changes. Public: the noisy encoder outputs, from which all else follows."""

    exact: Int64[Array, "steps rows"]
    noisy: Float64[Array, "steps rows"]
    t: int = 0  # steps taken


def root_coefficients(steps: int) -> Float64[Array, " steps"]:
    """Coefficients of the square root of the running sum: 1, 1/2, 3/8, 5/16, ..., on a lattice."""
    j = np.arange(1, steps)
    exact, unit = np.concatenate(([1.0], np.cumprod((2 * j - 1) / (2 * j)))), 2.0 ** (LIMB * LIMBS)
    return np.asarray(np.rint(exact * unit) / unit)


def exact_sum(
    coefficients: Float64[Array, " steps"], changes: Int64[Array, "steps rows"]
) -> tuple[Int64[Array, " rows"], Float64[Array, " rows"]]:
    """The sum of coefficient times change of every row: whole part and fraction, both exact.

    Proof: each part of a coefficient is an integer of at most 2^14, so all sums of products are
        integers, below 2^53 if a row's changes add up to less than 2^39 in absolute value:
        exact in floating point, in any order. Carries are integer arithmetic.

    >>> whole, fraction = exact_sum(np.array([0.375, 1.0]), np.array([[3], [-7]]))
    >>> whole.tolist(), fraction.tolist()
    ([-6], [0.125])
    """
    left, parts = coefficients * 2.0**LIMB, []
    for _ in range(LIMBS):
        part = np.floor(left)
        parts.append(part)
        left = (left - part) * 2.0**LIMB
    sums = (np.array(parts) @ changes.astype(np.float64)).astype(np.int64)
    carry, fraction = np.zeros(sums.shape[1], np.int64), np.zeros(sums.shape[1])
    for place in reversed(range(LIMBS)):
        total = sums[place] + carry
        carry, rest = total >> LIMB, total & ((1 << LIMB) - 1)
        fraction += rest * 2.0 ** (-LIMB * (place + 1))
    return carry, fraction


def root_sensitivity(steps: int, *, paired: bool) -> float:
    """The L2 norm by which one record moves the encoder's outputs over all steps.

    A record that only arrives moves them by a column of the encoder; one that arrives and leaves,
    by the difference of two columns. A later pair is an earlier one cut short, so the first column
    is the worst start, and all distances from it are tried.

    >>> [round(root_sensitivity(1023, paired=paired), 3) for paired in (False, True)]
    [1.809, 2.329]
    """
    c = root_coefficients(steps)
    square = np.cumsum(c * c)
    worst = square[-1]
    if paired and steps > 1:
        from scipy.signal import fftconvolve  # slow to load

        overlap = fftconvolve(c, c[::-1])[steps:]  # sum over k of c[k + d] c[k], d = 1 ..
        distance = square[-1] + square[-2::-1] - 2 * overlap
        worst = max(worst, distance.max() + 1e-9)
    return math.sqrt(float(worst)) * SLACK


class OfStrategy:
    """The common part of both counters of signed changes."""

    strategy: Strategy
    share: Share
    only_grows: bool

    @property
    def queries(self) -> Queries:
        """See `DynamicMechanism`."""
        return self.strategy.queries

    @property
    def protects(self) -> Neighbours:
        """One record with its insertion and its deletion; in a growing table, one insertion."""
        return Neighbours("row", relation="event") if self.only_grows else RECORD

    @cached_property
    def relative(self) -> Float64[Array, " k"]:
        """The noise of every answer, as a fraction of the worst one's."""
        return self.strategy.units(self.share.kind) / self.strategy.unit(self.share.kind)

    def net(self, changes: Changes) -> Bag:
        """The changes that a step makes to the table, with signs.

        Args:
            changes: records that came and went in the step.

        Raises:
            PlanError: a growing table shrinks.
        """
        if self.only_grows:
            require_growth(changes)
        return Bag.sum([Bag.of(changes.born), Bag.of(changes.gone, -1)])


@dataclass(frozen=True, kw_only=True)
class SignedCounter(OfStrategy):
    """Running totals of signed changes of the rows of a strategy, with Gaussian noise.

    Algorithm: the matrix mechanism in time by the square root of the running sum (Henzinger,
        Upadhyay & Upadhyay 2023, arXiv:2202.11205), in space by a `Strategy`: encoder output t of
        a row is sum_j c_j x_(t-j) plus noise, the answer at t is the same sum of encoder outputs.
    Protects: one record with its insertion and its deletion, or one update by labels: removing an
        insertion makes its deletion a no-op, so the table changes by one record for a while, either
        way. With `only_grows`, one insertion.
    Guarantee: mu-GDP, mu = sensitivity in time / noise scale: in space a strategy moves by 1.
    Error: deviation `deviation(t)`, whatever the number of records and updates.
    Memory: 16 bytes per row and step.
    Numerics: encoder outputs are exact (`exact_sum`), each released as the rounding of a Gaussian
        about it. `SLACK` covers the floating point of the norms.

    Raises:
        PlanError: a setting is out of its range, the share is pure, or a growing table shrinks.
        HorizonError: a step after the last of `horizon`.

    >>> from streamveil.core.noise import SilentNoise
    >>> from streamveil.linear import Marginals, Points
    >>> table = SignedCounter(
    ...     strategy=Points(Marginals((2, 2), ((0,),))), share=Share("zcdp", 1), horizon=8)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = table.init(place)
    >>> table.step(state, Changes(born=np.array([0, 3])), place)
    >>> table.answers(state).values
    array([1., 1.])
    """

    strategy: Strategy  # what is measured, and how answers follow from it
    share: Share  # 'gdp' or 'zcdp'
    horizon: int  # steps that the guarantee covers, >= 1
    only_grows: bool = False

    def __post_init__(self) -> None:
        take_numbers(self)
        require_share(self.share)
        require_positive(horizon=self.horizon)
        require_flag(only_grows=self.only_grows)
        if self.share.kind == "pure":
            raise PlanError("pure noise has no root: use TreeCounter")
        if self.horizon > LONGEST:
            raise PlanError(f"a root counter takes at most {LONGEST} steps: use TreeCounter")

    @property
    def guarantee(self) -> Guarantee:
        """See `DynamicMechanism`: all noise is Gaussian."""
        loss = Share("gdp", self.share.amount).loss
        return Guarantee(self.protects, loss, self.horizon)

    @cached_property
    def coefficients(self) -> Float64[Array, " steps"]:
        """The coefficients of the encoder, which are also the decoder's."""
        return root_coefficients(self.horizon)

    @cached_property
    def scales(self) -> Float64[Array, " rows"]:
        """The noise scale of each row's encoder outputs."""
        moved = root_sensitivity(self.horizon, paired=not self.only_grows)
        base = float(self.share.spread(1, 1)) * (1 + 1e-12)
        return base * moved * self.strategy.scales(self.share.kind)

    def init(self, place: Place) -> RootState:
        """See `DynamicMechanism`."""
        shape = (0, self.strategy.rows)
        return RootState(np.zeros(shape, np.int64), np.zeros(shape))

    @in_one_go
    def step(self, state: RootState, changes: Changes, place: Place) -> None:
        """See `DynamicMechanism`."""
        if state.t >= self.horizon:
            raise HorizonError(self.horizon)
        row = self.strategy.measure(self.net(changes).histogram(self.queries.domain))
        room(state)
        state.exact[state.t] = row
        state.t += 1
        whole, rest = exact_sum(self.coefficients[: state.t][::-1], state.exact[: state.t])
        draws = place.draws(b"step", state.t)
        state.noisy[state.t - 1] = values(sums_with_noise(whole, rest, self.scales, draws))

    def answers(self, state: RootState) -> QueryAnswers:
        """See `DynamicMechanism`."""
        weights = self.coefficients[: state.t][::-1]
        measured = restored(weights @ state.noisy[: state.t])
        return QueryAnswers(
            post_process(type(self.strategy).recover, public(self.strategy), measured)
        )

    def deviation(self, t: int) -> float:
        """The standard deviation of the worst answer after t steps."""
        moved = root_sensitivity(self.horizon, paired=not self.only_grows)
        noise = float(self.share.spread(1, 1)) * moved * self.strategy.unit(self.share.kind)
        rounded = noise * grain(self.scales, self.share.kind)
        return rounded * math.sqrt(float((self.coefficients[:t] ** 2).sum()))

    def deviations(self, state: RootState) -> Float64[Array, " k"]:
        """The standard deviation of every answer now; `state`: what `init` returned."""
        return self.deviation(max(state.t, 1)) * self.relative

    def bound(self, state: RootState, beta: float) -> float:
        """See `DynamicMechanism`.

        Raises:
            PlanError: beta is beyond its range.
        """
        exact_between("beta", beta, 0, 1)
        tail = math.sqrt(2 * math.log(2 * self.queries.size / beta))
        return self.deviation(max(state.t, 1)) * tail


def room(state: RootState) -> None:
    """Doubles the arrays when they are full."""
    if state.t == len(state.exact):
        more = max(len(state.exact), 64)
        state.exact = np.concatenate(
            [state.exact, np.zeros((more, state.exact.shape[1]), np.int64)]
        )
        state.noisy = np.concatenate([state.noisy, np.zeros((more, state.noisy.shape[1]))])


@dataclass(repr=False)  # secret
class TreeCounterState:
    """The state of the accumulator."""

    inner: object = field(default=None)


@dataclass(frozen=True, kw_only=True)
class TreeCounter(OfStrategy):
    """Running totals of signed changes by a tree, for pure shares, long or unknown horizons.

    Protects: as `SignedCounter`.
    Guarantee: the share: a record enters at most two released blocks of each level, as +1 and -1
        (one, when both cancel), so the accumulator gets half. With `only_grows`, all of it.
    Error: `bound`; does not depend on the number of records.

    Raises:
        PlanError: a growing table shrinks.
        HorizonError: a step after the last of the horizon.

    >>> from streamveil.core.noise import SilentNoise
    >>> from streamveil.linear import Marginals, Points
    >>> table = TreeCounter(
    ...     strategy=Points(Marginals((2, 2), ((0,),))), share=Share("pure", 1), horizon=8)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = table.init(place)
    >>> table.step(state, Changes(born=np.array([0, 3])), place)
    >>> table.answers(state).values
    array([1., 1.])
    """

    strategy: Strategy  # what is measured, and how answers follow from it
    share: Share
    horizon: int | None  # steps that the guarantee covers, >= 1; None: all there will ever be
    arity: int = 8  # children of a node of its tree, >= 2
    only_grows: bool = False

    def __post_init__(self) -> None:
        take_numbers(self)
        require_share(self.share)
        require_flag(only_grows=self.only_grows)
        require_tree(self.horizon, self.arity)

    @property
    def inner(self) -> Accumulator:
        """The accumulator of signed batches."""
        share = self.share if self.only_grows else self.share.split(1, 1)[0]
        return accumulator(Additive(self.strategy), share, self.horizon, self.arity)

    @property
    def guarantee(self) -> Guarantee:
        """See `DynamicMechanism`."""
        loss = self.inner.loss if self.only_grows else self.inner.loss.times(2)
        return Guarantee(self.protects, loss, self.horizon)

    def init(self, place: Place) -> TreeCounterState:
        """See `DynamicMechanism`."""
        return TreeCounterState(self.inner.init())

    @in_one_go
    def step(self, state: TreeCounterState, changes: Changes, place: Place) -> None:
        """See `DynamicMechanism`."""
        require_points(changes, self.queries.domain)
        self.inner.step(state.inner, self.net(changes), place)

    def answers(self, state: TreeCounterState) -> QueryAnswers:
        """See `DynamicMechanism`."""
        return self.inner.answers(state.inner)

    def deviations(self, state: TreeCounterState) -> Float64[Array, " k"]:
        """The standard deviation of every answer now; `state`: what `init` returned."""
        static, kind = Additive(self.strategy), self.share.kind
        square = sum(
            (part.deviation(1, 1) * grain(static.scales(part), kind)) ** 2
            for part in self.inner.parts(state.inner)
        )
        return math.sqrt(square) * self.strategy.units(kind)

    def bound(self, state: TreeCounterState, beta: float) -> float:
        """See `DynamicMechanism`."""
        parts = [(part, 0.0) for part in self.inner.parts(state.inner)]
        return Additive(self.strategy).error.union(parts, beta)


def counter_of(
    strategy: Strategy, share: Share, steps: int | None, *, only_grows: bool = False
) -> SignedCounter | TreeCounter:
    """The better of the two counters: the root, if noise is Gaussian and steps are few."""
    if share.kind == "pure" or steps is None or steps > LONGEST:
        return TreeCounter(strategy=strategy, share=share, horizon=steps, only_grows=only_grows)
    return SignedCounter(strategy=strategy, share=share, horizon=steps, only_grows=only_grows)
