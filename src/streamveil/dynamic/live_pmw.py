"""Answers to adaptive questions about a changing table, between its public steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from streamveil.core.accounting import exact_between, take_numbers
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.noise import Place
from streamveil.dynamic.pmwg import SPLIT, Pmwg, PmwgState, first_share
from streamveil.dynamic.protocol import Changes
from streamveil.errors import (
    at_least,
    require_between,
    require_flag,
    require_one_of,
    require_positive,
)
from streamveil.linear.budget_shares import Meter, Share
from streamveil.linear.queries import LARGEST, points_of
from streamveil.linear.sparse_vector import SparseAnswer, epoch_share
from streamveil.types import Array, Float64

CLEAR = 5.0  # thresholds clear the scale of the noise of comparisons by this factor


@dataclass(frozen=True, kw_only=True)
class LivePmw:
    """Answers questions from a synthetic table that is corrected where a question shows it wrong.

    Algorithm: private multiplicative weights (`Pmwg`) on records that come and go. After each step
        the weights mix with the uniform distribution: by the growth of the estimated size if it
        grew, by `mixing` otherwise. The caller may then fit them to any other release. Sizes are
        estimates released elsewhere.
    Protects: whatever moves every question by at most 1 at every time: one record with its
        insertion and deletion, one update, one insertion.
    Guarantee: the share, whatever is asked, whenever, and for ever.
    Proof: estimates of the size are public, so given them a neighbour moves the distance between a
        true and a synthetic answer by at most 1 at every question; a run of the sparse vector and
        its measurement are pure-DP, whatever happens to the table while the run lasts. `Meter`
        refuses the run or measurement that would pass the share.
    Error: `reach`, proved for each answer that is not EXHAUSTED; how long answers last is measured
        only. With `only_grows` a correction becomes cheaper each time the table doubles, as noise
        may grow with it; otherwise `halts` corrections are paid for in all.
    Memory: two histograms.

    Raises:
        PlanError: a setting is out of its range, or a question is not one weight in [0, 1] for
            each point of the domain.

    >>> from streamveil.core.noise import Place, SilentNoise
    >>> live = LivePmw(share=Share("pure", 1), start=1000, domain=4, halts=5)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = live.init(place)
    >>> live.step(state, Changes(np.repeat([0, 1], 500)), 1000, place)
    >>> live.ask(state, np.array([1.0, 0, 0, 0]), place).value
    500.0
    """

    share: Share
    start: int  # records expected, >= 1: sets thresholds, and where a growing table doubles
    domain: int  # points that a record may be, >= 1
    halts: int = 20  # corrections planned (with `only_grows`: in each doubling), >= 1
    only_grows: bool = False
    mixing: float = 0.0  # a public guess: part of the table that a step replaces; in [0, 1]

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(start=self.start, domain=self.domain, halts=self.halts)
        require_between(0.0, 1.0, mixing=self.mixing)
        require_flag(only_grows=self.only_grows)

    @property
    def loss(self) -> Loss:
        """The whole share."""
        return self.share.loss

    @cached_property
    def inner(self) -> Pmwg:
        """The mechanism between two steps."""
        power = 0.5 if self.only_grows else 0.0
        first = first_share(self.share, self.halts, self.halts if self.only_grows else 0, power)
        least = CLEAR / float(SPLIT[1] * first.epsilon)
        return Pmwg(
            share=self.share, start=self.start, domain=self.domain, first=first, power=power,
            threshold=least / self.start, least=least, step=None,
        )  # fmt: skip

    def init(self, place: Place) -> PmwgState:
        """An empty table.

        Args:
            place: where its noise is drawn, the same at every step and of no other run.
        """
        uniform = np.full(self.domain, 1 / self.domain)
        state = PmwgState(np.zeros(self.domain, np.int64), uniform, 0, Meter(self.share))
        self.inner.open_run(state, place)
        return state

    def step(self, state: PmwgState, changes: Changes, size: float, place: Place) -> None:
        """Ends a public step, in place.

        Args:
            state: what `init` returned.
            changes: records that came and went in the step.
            size: estimated number of records now, public or noisy.
            place: where its noise is drawn, the same at every step and of no other run.

        Raises:
            PlanError: the size is no number, or a record is not of the domain.
        """
        require_between(-LARGEST, LARGEST, size=size)
        born, gone = (
            points_of(name, getattr(changes, name), self.domain) for name in ("born", "gone")
        )
        histogram = state.histogram + np.bincount(born, minlength=self.domain)
        histogram -= np.bincount(gone, minlength=self.domain)
        after = max(0, round(size))
        grown = max(0.0, (after - state.size) / max(after, 1))
        mixed = max(grown, self.mixing)
        weights = (1 - mixed) * state.weights + mixed / self.domain
        if self.only_grows:
            self.inner.enter_epoch(state, after, place)  # cut off here, a step has taken no record
        state.histogram, state.weights, state.size = histogram, weights, after

    def ask(self, state: PmwgState, query: Float64[Array, " N"], place: Place) -> SparseAnswer:
        """Answers one question, given by weights of 0 or 1, in records; free when EASY.

        When EXHAUSTED, it returns the synthetic answer, without a promise on its error.

        Args:
            state: what `init` returned.
            query: its weight at each point of the domain.
            place: where its noise is drawn, the same at every step and of no other run.
        """
        return self.inner.ask(state, query, place)

    def reach(self, state: PmwgState, kind: str, asked: int, beta: float) -> float:
        """The error bound of the `asked`-th answer; all bounds hold with probability 1-beta.

        Proof: the Laplace tails of the noises that decided answer i fail together with probability
            at most beta_i = 6 beta / (pi i)^2; these add up to beta.

        Args:
            state: what `init` returned.
            kind: of the answer: 'EASY', 'HARD' or 'EXHAUSTED'.
            asked: number of the answer, from 1.
            beta: chance that it fails, above 0 and below 1.

        Raises:
            PlanError: there is no such kind or answer, or beta is beyond its range.
        """
        require_one_of("kind", kind, ("EASY", "HARD", "EXHAUSTED"))
        at_least(1, asked=asked)
        exact_between("beta", beta, 0, 1)
        if kind == "EXHAUSTED":
            return math.inf
        beta_i = 6 * beta / (math.pi * asked) ** 2
        if kind == "HARD":
            power = Fraction(self.inner.power)
            whole = epoch_share(self.inner.first, state.epoch, power).epsilon
            return 1 + math.log(2 / beta_i) / float(whole * SPLIT[2])
        return 1 + math.ceil(self.inner.limit(state)) + self.inner.above(state.epoch).slack(beta_i)

    def left(self, state: PmwgState) -> int:
        """About how many corrections can still be paid for, at today's price.

        Args:
            state: what `init` returned.
        """
        one = epoch_share(self.inner.first, state.epoch, Fraction(self.inner.power)).amount
        rest = self.share.amount - state.meter.spent
        return int(rest / one) + (state.run is not None)
