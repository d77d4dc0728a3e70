"""Cutting a sparse stream into segments with few updates each, without showing when they came.

A partition sees how many updates every step brings and says, publicly, after which steps a segment
closes. Later mechanisms then work with segments, about as many as there are updates, instead of
steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, runtime_checkable

from streamveil.core.accounting import Neighbours, take_numbers
from streamveil.core.accounting.guarantee import Guarantee, Pure
from streamveil.core.noise import Place
from streamveil.errors import require_between, require_positive
from streamveil.linear.sparse_vector import AboveState, AboveThreshold
from streamveil.types import Exact

EVENT = Neighbours("event", relation="event")


@dataclass
class PartitionState:
    """Public: t, segment, opened. Secret: updates since the segment opened, the noisy offset."""

    run: AboveState
    t: int = 0  # steps taken
    segment: int = 1  # number of the open segment
    opened: int = 0  # step after which it opened
    count: int = 0  # secret

    def __repr__(self) -> str:
        return f"PartitionState(t={self.t}, segment={self.segment})"


@runtime_checkable
class Partition(Protocol):
    """Any way to cut a stream."""

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for all segments of the stream together."""

    def init(self, place: Place) -> PartitionState:
        """Opens the first segment."""

    def step(self, state: PartitionState, updates: int, place: Place) -> bool:
        """Counts a step's updates; True if the segment closes with the step."""

    def hidden(self, state: PartitionState, beta: float) -> float:
        """How many updates the open segment may hide, except with probability beta."""


def advance(  # all partitions differ only in threshold and time-out
    above: AboveThreshold,
    state: PartitionState,
    updates: int,
    limit: tuple[int, bool],
    place: Place,
) -> bool:
    """One step: `limit` is the public threshold of this step and whether the segment must close.

    Proof: conditioned on what was closed before, neighbours differ in the segment that holds the
        differing update only; there the counts are cumulative, so `above` protects them, and which
        segment it is can be read from the outputs before it (adaptive parallel composition, Qiu &
        Yi 2022, arXiv:2209.01387, theorem 6). `above` is pure, so its bound holds on every
        transcript and the adversary may choose the update, and its segment, after any past.
    """
    state.t += 1
    state.count += updates
    threshold, forced = limit
    here = place.inside(state.segment)
    closes = above.ask(state.run, state.count, threshold, here) or forced
    if closes:
        state.segment += 1
        state.opened, state.count = state.t, 0
        state.run = above.init(place.inside(state.segment))
    return closes


@dataclass(frozen=True, kw_only=True)
class TimeVarying:
    """A partition for ever, whose threshold follows the number of steps and of segments.

    Algorithm: segment j closes at step t when its count passes 1 + kappa/epsilon (ln(pi^2 t^2 /
        3 beta) + ln(pi^2 j^2 / 3 beta)), with noise of scale 1/epsilon on both.
    Protects: one update present or absent, for 'event' and 'update'; with 'record', an insertion
        and its deletion, which is two updates.
    Guarantee: epsilon for each update.
    Proof: the cumulative case of `AboveThreshold`, once: segments are disjoint (see `advance`).
    Error: with kappa = 1 and probability 1 - 2 beta, for all times at once: every closed segment
        has at least one update, every segment fewer than 2 thresholds plus one step of updates.
        The tails of t sum to beta because sum 1/t^2 = pi^2/6, those of j likewise. kappa = 1/2
        halves the delay; fewer than one segment in 2^40 steps was then seen empty.
    """

    epsilon: Exact
    beta: float = 0.05
    kappa: float = 0.5
    protects: Neighbours = EVENT

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(epsilon=self.epsilon, beta=self.beta, kappa=self.kappa)
        require_between(0.0, 1.0, beta=self.beta)

    @property
    def above(self) -> AboveThreshold:
        """The mechanism of one segment."""
        return AboveThreshold.cumulative(self.epsilon)

    @property
    def guarantee(self) -> Guarantee:
        """See `Partition`."""
        return Guarantee(self.protects, Pure(Fraction(self.epsilon)).group(updates(self.protects)))

    def threshold(self, t: int, segment: int) -> int:
        """The public number with which the count of an open segment is compared."""
        tails = math.log(math.pi**2 / (3 * self.beta)) * 2 + 2 * math.log(t) + 2 * math.log(segment)
        return 1 + math.ceil(self.kappa / float(self.epsilon) * tails)

    def init(self, place: Place) -> PartitionState:
        """See `Partition`."""
        return PartitionState(self.above.init(place.inside(1)))

    def step(self, state: PartitionState, updates: int, place: Place) -> bool:
        """See `Partition`."""
        limit = self.threshold(state.t + 1, state.segment)
        return advance(self.above, state, updates, (limit, False), place)

    def hidden(self, state: PartitionState, beta: float) -> float:
        """See `Partition`."""
        return self.threshold(max(state.t, 1), state.segment) + self.above.slack(beta)


def updates(protects: Neighbours) -> int:
    """How many updates one change of the input adds or removes: `bound` records or updates."""
    return math.ceil(protects.bound) * (2 if protects.relation == "record" else 1)
