"""MWEM that never starts over: one synthetic histogram follows the changing table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.core.accounting import exact_between, take_numbers
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Place
from streamveil.core.noisy import restored
from streamveil.dynamic.interval_tree import RECORD
from streamveil.dynamic.protocol import Bag, Changes, in_one_go, require_points
from streamveil.dynamic.signed_counter import (
    RootState,
    SignedCounter,
    TreeCounter,
    TreeCounterState,
    counter_of,
)
from streamveil.errors import HorizonError, require_between, require_positive
from streamveil.linear.budget_shares import Share, require_share
from streamveil.linear.mwem import measure_worst
from streamveil.linear.protocol import QueryAnswers
from streamveil.linear.queries import Matrix, Queries
from streamveil.linear.strategies import Direct
from streamveil.linear.weights import MOST_STEP, Weights
from streamveil.types import Array, Exact, Float64


@dataclass(repr=False)  # secret
class ContinualState:
    """Secret: the records. Public: the synthetic distribution and the noisy size."""

    live: Bag
    weights: Float64[Array, " N"]
    size: RootState | TreeCounterState
    t: int = 0  # steps taken


@dataclass(frozen=True, kw_only=True)
class ContinualMwem:
    """A few rounds of MWEM a step, from where the last step ended.

    Algorithm: a signed counter keeps the number of records; each step mixes the distribution with a
        little of the uniform one, `mixing`, and then corrects the queries that are worst now.
    Protects: one record with its insertion and its deletion.
    Guarantee: the share: a part `size_share` for the counter; horizon * rounds rounds share the
        rest, each half for its choice and half for its measurement. A record is in the table for at
        most `horizon` steps and moves every query by at most 1 in each.
    Error: measured only. Why it works: with F = n * relative entropy, an insertion with mixing adds
        at most ln N to F, a deletion at most 1 + ln n, and a round with gap g takes off 2 g^2 n; so
        rounds pay for turnover, not for history.
    Memory: one histogram of floats.

    Raises:
        PlanError: a setting is out of its range.
        HorizonError: a step after the last of `horizon`.

    >>> from streamveil.linear import Marginals
    >>> table = ContinualMwem(
    ...     queries=Marginals((2, 2), ((0,),)), share=Share("pure", 1), horizon=12)
    >>> table.guarantee.protects.relation, float(table.round_share.amount) < 1 / 24
    ('record', True)
    """

    queries: Queries  # the class that is answered
    share: Share
    horizon: int  # steps that the guarantee covers, >= 1
    rounds: int = 2  # corrections a step, >= 1
    step_size: float = 4.0  # of the multiplicative update, > 0, at most 100
    mixing: float = 0.01  # part of the uniform distribution mixed in at a step, in [0, 1]
    size_share: Exact = Fraction(1, 20)  # of the share, for the number of records, in (0, 1)

    def __post_init__(self) -> None:
        take_numbers(self)
        require_share(self.share)
        require_positive(horizon=self.horizon, rounds=self.rounds, step_size=self.step_size)
        require_between(0.0, 1.0, mixing=self.mixing)
        require_between(0.0, MOST_STEP, step_size=self.step_size)
        exact_between("size_share", self.size_share, 0, 1)
        self.share.require_choices()

    @property
    def counter(self) -> SignedCounter | TreeCounter:
        """The counter of the number of records."""
        part = self.share.scale(self.size_share)
        return counter_of(Direct(Matrix.of([[1.0]])), part, self.horizon)

    @property
    def round_share(self) -> Share:
        """What one round spends."""
        rest = 1 - Fraction(self.size_share)
        return self.share.scale(rest / (self.horizon * self.rounds))

    @property
    def guarantee(self) -> Guarantee:
        """See `DynamicMechanism`."""
        rounds = self.round_share.loss.times(self.horizon * self.rounds)
        return Guarantee(RECORD, self.counter.guarantee.loss + rounds, self.horizon)

    def init(self, place: Place) -> ContinualState:
        """See `DynamicMechanism`."""
        uniform = np.full(self.queries.domain, 1 / self.queries.domain)
        return ContinualState(Bag(), uniform, self.counter.init(place.inside(b"size")))

    @in_one_go
    def step(self, state: ContinualState, changes: Changes, place: Place) -> None:
        """See `DynamicMechanism`."""
        if state.t >= self.horizon:
            raise HorizonError(self.horizon)
        require_points(changes, self.queries.domain)
        state.t += 1
        state.live = Bag.sum([state.live, Bag.of(changes.born), Bag.of(changes.gone, -1)])
        zeros = [np.zeros(len(part), np.int64) for part in (changes.born, changes.gone)]
        self.counter.step(state.size, Changes(zeros[0], zeros[1]), place.inside(b"size"))  # type: ignore[arg-type]  # the counter's own state
        size = max(self._size(state), 1.0)
        exact = self.queries.exact(state.live.histogram(self.queries.domain))
        true = np.ldexp(exact.astype(np.float64), -self.queries.shift)
        weights = (1 - self.mixing) * state.weights + self.mixing / self.queries.domain
        fitted, unit = Weights.of(self.queries, weights), 1 << self.queries.shift
        for turn in range(self.rounds):
            here = place.inside(b"round", state.t, turn)
            guesses = fitted.answers()
            query, value = measure_worst(true, guesses, size, self.round_share, here, unit)
            fitted.move(query, value, self.step_size)
        state.weights = fitted.distribution

    def _size(self, state: ContinualState) -> float:
        if not state.t:
            return 0.0
        return float(self.counter.answers(state.size).values[0])  # type: ignore[arg-type]

    def answers(self, state: ContinualState) -> QueryAnswers:
        """See `DynamicMechanism`."""
        synthetic = max(self._size(state), 0.0) * state.weights
        return QueryAnswers(restored(self.queries.answers(synthetic)), restored(synthetic))

    def bound(self, state: ContinualState, beta: float) -> float:
        """See `DynamicMechanism`: only the trivial bound, the number of records, is proved."""
        counter = self.counter.bound(state.size, beta)  # type: ignore[arg-type]
        return max(self._size(state), 0.0) + counter if math.isfinite(counter) else math.inf
