"""Simple ways to answer queries about a changing table; at many sizes they are the best ones."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from streamveil.core.accounting import take_numbers
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Place
from streamveil.dynamic.interval_tree import RECORD
from streamveil.dynamic.protocol import (
    Bag,
    Changes,
    OfStatic,
    in_one_go,
    require_covered,
    require_points,
)
from streamveil.dynamic.trees import Difference, accumulator, error_of, released, require_tree
from streamveil.errors import HorizonError, PlanError, require_positive
from streamveil.linear.budget_shares import Share
from streamveil.linear.protocol import QueryAnswers, StaticMechanism, combine, require_choices


@dataclass(repr=False)  # secret
class TwoState:
    """One accumulator for insertions, one for deletions."""

    born: Any
    gone: Any


@dataclass(frozen=True, kw_only=True)
class TwoStream(OfStatic):
    """Separate counts of insertions and deletions, subtracted: the naive way.

    Protects: one record with its insertion and its deletion.
    Guarantee: the share: half for each stream. A record enters each stream once.
    Error: that of all updates so far, however few records remain.

    Raises:
        PlanError: a setting is out of its range, or the share buys Gaussian noise only and the
            static mechanism chooses.
        HorizonError: a step after the last of `horizon`.

    >>> import numpy as np
    >>> from streamveil.core.noise import SilentNoise
    >>> from streamveil.linear import Marginals, noisy_queries
    >>> table = TwoStream(
    ...     static=noisy_queries(Marginals((2, 2), ((0,),))), share=Share("pure", 1), horizon=8)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = table.init(place)
    >>> table.step(state, Changes(born=np.array([0, 3])), place)
    >>> table.answers(state).values
    array([1., 1.])
    """

    static: StaticMechanism  # what answers about one fixed table
    share: Share
    horizon: int | None  # steps that the guarantee covers, >= 1; None: all there will ever be
    arity: int = 4  # children of a node of its tree, >= 2

    def __post_init__(self) -> None:
        take_numbers(self)
        require_tree(self.horizon, self.arity)
        require_choices(self.static, self.share)
        require_covered(self.static, RECORD)

    @property
    def guarantee(self) -> Guarantee:
        """See `DynamicMechanism`."""
        return Guarantee(RECORD, self._both.loss, self.horizon)

    @property
    def _both(self) -> Difference:
        half = self.share.scale(Fraction(1, 2))
        return Difference(accumulator(self.static, half, self.horizon, self.arity))

    def init(self, place: Place) -> TwoState:
        """See `DynamicMechanism`."""
        return TwoState(self._both.side.init(), self._both.side.init())

    @in_one_go
    def step(self, state: TwoState, changes: Changes, place: Place) -> None:
        """See `DynamicMechanism`."""
        require_points(changes, self.queries.domain)
        self._both.step(state, Bag.of(changes.born), Bag.of(changes.gone), place)

    def answers(self, state: TwoState) -> QueryAnswers:
        """See `DynamicMechanism`."""
        return self._both.answers(state)

    def bound(self, state: TwoState, beta: float) -> float:
        """See `DynamicMechanism`; infinite where the error grows with a number nobody released."""
        return error_of(self.static, self._both.parts(state), beta)


@dataclass(repr=False)  # secret
class BaselineState:
    """The current records and the latest answers."""

    t: int
    live: Bag
    latest: QueryAnswers


@dataclass(frozen=True, kw_only=True)
class Rerun(OfStatic):
    """The static mechanism, run again on the current records after every step.

    Protects: one record with its insertion and its deletion.
    Guarantee: the share. With `steps`, at most `steps` releases of share / steps. With `retention`,
        share / retention each, for ever: the operator promises that no record stays for more steps.
    Error: that of a static release with the part of one step; nothing is stale.

    Raises:
        PlanError: not one of `steps` and `retention`, or one that is below 1; or the share buys
            Gaussian noise only and the static mechanism chooses.
        HorizonError: a step after the last of `steps`.

    >>> import numpy as np
    >>> from streamveil.core.noise import SilentNoise
    >>> from streamveil.linear import Marginals, noisy_queries
    >>> table = Rerun(
    ...     static=noisy_queries(Marginals((2, 2), ((0,),))), share=Share("pure", 1), steps=8)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = table.init(place)
    >>> table.step(state, Changes(born=np.array([0, 3])), place)
    >>> table.answers(state).values
    array([1., 1.])
    """

    static: StaticMechanism  # what answers about one fixed table
    share: Share
    steps: int | None = None  # releases in all, >= 1; None: `retention` is given
    retention: int | None = None  # most steps that a record stays, >= 1; None: `steps` is given

    def __post_init__(self) -> None:
        take_numbers(self)
        if (self.steps is None) == (self.retention is None):
            raise PlanError(
                "rerunning for ever needs a bound: give `steps`, or `retention` if every record is "
                "deleted within that many steps"
            )
        require_positive(steps=self.releases)
        require_choices(self.static, self.share)
        require_covered(self.static, RECORD)

    @property
    def releases(self) -> int:
        """How many releases one record can enter."""
        return self.steps if self.steps is not None else self.retention or 0

    @property
    def part(self) -> Share:
        """What one release spends."""
        return self.share.scale(Fraction(1, self.releases))

    @property
    def guarantee(self) -> Guarantee:
        """See `DynamicMechanism`."""
        return Guarantee(RECORD, self.part.loss.times(self.releases), self.steps)

    def init(self, place: Place) -> BaselineState:
        """See `DynamicMechanism`."""
        return BaselineState(0, Bag(), combine([], self.queries.size))

    @in_one_go
    def step(self, state: BaselineState, changes: Changes, place: Place) -> None:
        """See `DynamicMechanism`."""
        if self.steps is not None and state.t >= self.steps:
            raise HorizonError(self.steps)
        require_points(changes, self.queries.domain)
        state.t += 1
        state.live = Bag.sum([state.live, Bag.of(changes.born), Bag.of(changes.gone, -1)])
        state.latest = released(self.static, state.live, self.part, place.inside(state.t))

    def answers(self, state: BaselineState) -> QueryAnswers:
        """See `DynamicMechanism`. A copy: a reader may change it."""
        return combine([(1.0, state.latest)], self.queries.size)

    def bound(self, state: BaselineState, beta: float) -> float:
        """See `DynamicMechanism`; infinite where the error grows with a number nobody released."""
        return float("inf") if self.static.adaptive else self.static.error.alpha(self.part, 0, beta)
