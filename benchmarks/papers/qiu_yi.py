"""The interval tree of Qiu & Yi (2022, arXiv:2209.01387) as published, for comparison.

Its parts are a partition (algorithm 2), a bucket (algorithm 3) and the budgets of levels.
`streamveil.dynamic` has better ones of each (docs/dynamic-data.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from streamveil.core.accounting import Neighbours
from streamveil.core.accounting.guarantee import Guarantee, Pure
from streamveil.core.noise import Place
from streamveil.core.noisy import values
from streamveil.dynamic import FullyDynamic, Hybrid, Tree
from streamveil.dynamic.buckets import BucketState, released_nothing
from streamveil.dynamic.insertion_only import partition_share
from streamveil.dynamic.interval_tree import RECORD
from streamveil.dynamic.partition import EVENT, PartitionState, advance, updates
from streamveil.dynamic.protocol import Bag
from streamveil.dynamic.trees import Accumulator, released
from streamveil.errors import require_positive
from streamveil.linear import Matrix, QueryAnswers, Share, StaticMechanism, combine, noisy_queries
from streamveil.linear.sparse_vector import AboveThreshold
from streamveil.types import Exact

ORIGIN = np.zeros(1, np.int64)
COUNT = noisy_queries(Matrix.of([[1.0]]))  # how many records, as a query class over one point


@dataclass(frozen=True, kw_only=True)
class Squaring:
    """The infinite partition, algorithm 2.

    Algorithm: segment j waits at most until the square of the step before which it opened, with the
        threshold of that horizon and beta_j = 6 beta / (pi j)^2; at the time-out it is closed.
    Protects: as `TimeVarying`.
    Guarantee: epsilon for each update: the time-outs are public.
    Error: at most n_t + O(log log t) segments of O(log(t / beta) / epsilon) updates each:
        `TimeVarying` has segments a third to a seventh as long at the same budget.
    """

    epsilon: Exact
    beta: float = 0.05
    protects: Neighbours = EVENT

    FIRST: ClassVar[int] = 2  # the first time-out

    def __post_init__(self) -> None:
        require_positive(epsilon=self.epsilon, beta=self.beta)

    @property
    def above(self) -> AboveThreshold:
        """The mechanism of one segment."""
        half = Fraction(self.epsilon) / 2
        return AboveThreshold(epsilon1=half, epsilon2=half)

    @property
    def guarantee(self) -> Guarantee:
        """See `Partition`."""
        return Guarantee(self.protects, Pure(Fraction(self.epsilon)).group(updates(self.protects)))

    def limit(self, opened: int, segment: int) -> tuple[int, int]:
        """Public: the time-out of a segment and its threshold."""
        until = max(opened * opened, self.FIRST)
        beta = 6 * self.beta / (math.pi * segment) ** 2
        return until, math.ceil(7 / float(self.epsilon) * math.log(2 * until / beta))

    def init(self, place: Place) -> PartitionState:
        """See `Partition`."""
        return PartitionState(self.above.init(place.inside(1)))

    def step(self, state: PartitionState, updates: int, place: Place) -> bool:
        """See `Partition`."""
        until, threshold = self.limit(state.opened, state.segment)
        return advance(self.above, state, updates, (threshold, state.t + 1 >= until), place)

    def hidden(self, state: PartitionState, beta: float) -> float:
        """See `Partition`."""
        return self.limit(state.opened, state.segment)[1] + self.above.slack(beta)


@dataclass(frozen=True, kw_only=True)
class Published:
    """The bucket, algorithm 3.

    Algorithm: round r has 4 equal parts of 3 / (2 pi^2 r^2) of the share each: a noisy size n, a
        base, an accumulator of deletions, and a counter of deletions. A new round starts when the
        counter passes n/2 + 2 gamma, gamma being its error bound; if then n < 2 gamma the bucket
        answers 0 for ever. With `finite` the accumulators know the life of the bucket, which is
        kinder than the paper.
    Guarantee: with record ids, the share: sum over r of 4 * 3 / (2 pi^2 r^2) = 1. With labels, four
        times it by two steps of neighbours (the paper's argument does not cover labels).

    Raises:
        ValueError: a setting is out of its range.
        HorizonError: a step after the last of `horizon`.
    """

    static: StaticMechanism  # what answers about one fixed table
    beta: float = 0.05  # chance that a stated error bound fails, in (0, 1)
    finite: bool = False
    arity: int = 2  # children of a node of its tree, >= 2

    def factor(self, mode: str, kind: str) -> Fraction:
        """See `BucketPlan`."""
        return Fraction(1) if mode == "ids" else Fraction(2 if kind == "pure" else 4)

    def _part(self, state: BucketState) -> Share:
        return state.share.scale(3 / (2 * math.pi**2 * state.round**2) * (1 - 1e-12))

    def _accumulators(self, state: BucketState) -> tuple[Accumulator, Accumulator]:
        """Of deletions, for the queries and for their number."""
        part = self._part(state)
        if not self.finite or state.remaining is None:
            half = Fraction(1, 2)
            return Hybrid(self.static, part, half, self.arity), Hybrid(
                COUNT, part, half, self.arity
            )
        taken = 0 if state.deletions is None else state.deletions.t
        horizon = max(state.remaining + taken, 1)
        return Tree(self.static, part, horizon, self.arity), Tree(COUNT, part, horizon, self.arity)

    def open(self, bag: Bag, remaining: int | None, share: Share, place: Place) -> BucketState:
        """See `BucketPlan`."""
        empty = released_nothing(self.static)
        state = BucketState(share, remaining, bag, 0, 0, 0.0, empty)
        self._start(state, place)
        return state

    def _start(self, state: BucketState, place: Place) -> None:
        state.round += 1
        part = self._part(state)
        here = place.inside(b"round", state.round)
        state.size = float(values(part.noisy(state.live.size, here.draws(b"size"), 1, 1)))
        state.base = released(
            self.static, state.live, part, here.inside(b"base"), max(state.size, 1.0)
        )
        state.deletions = state.counter = None
        queries, count = self._accumulators(state)
        state.deletions, state.counter = queries.init(), count.init()

    def _gamma(self, state: BucketState) -> float:
        count = self._accumulators(state)[1]
        beta = self.beta / (math.pi**2 * state.round**2)
        return COUNT.error.union([(part, 0.0) for part in count.parts(state.counter)], beta)

    def step(self, state: BucketState, gone: Bag, place: Place) -> None:
        """See `BucketPlan`."""
        state.live = Bag.sum([state.live, -gone])
        if state.halted:
            return
        queries, count = self._accumulators(state)
        here = place.inside(b"round", state.round)
        queries.step(state.deletions, gone, here.inside(b"deletions"))
        number = Bag(ORIGIN, np.array([gone.size])) if gone.size else Bag()
        count.step(state.counter, number, here.inside(b"count"))
        if state.remaining is not None:
            state.remaining -= 1
        gamma = self._gamma(state)
        if count.answers(state.counter).values[0] > state.size / 2 + 2 * gamma:
            self._start(state, place)
            state.halted = state.size < 2 * gamma

    def answers(self, state: BucketState) -> QueryAnswers:
        """See `BucketPlan`."""
        if state.halted:
            return released_nothing(self.static)
        removed = self._accumulators(state)[0].answers(state.deletions)
        return combine([(1.0, state.base), (-1.0, removed)], self.static.queries.size)

    def parts(self, state: BucketState) -> list[Share]:
        """See `BucketPlan`."""
        if state.halted:
            return []
        queries = self._accumulators(state)[0]
        return [self._part(state), *queries.parts(state.deletions)]

    def most(self, state: BucketState, beta: float) -> float:
        """See `BucketPlan`."""
        return 2 * (max(state.size, 0.0) + 3 * self._gamma(state))


def published(
    static: StaticMechanism, share: Share, *, public_steps: bool = True, finite: bool = False
) -> FullyDynamic:
    """The whole tree: level l gets 6 / (pi l)^2, infinite buckets, half for a partition.

    `finite` lets accumulators know the life of their bucket, which is kinder than the paper.
    """
    part, partition = None, None
    if not public_steps:
        part = share.scale(Fraction(1, 2))
        partition = Squaring(epsilon=partition_share(part, RECORD), protects=RECORD)
    return FullyDynamic(
        static=static, share=share, horizon=None, partition=partition, partition_part=part,
        bucket=Published(static=static, finite=finite), plan="published",
    )  # fmt: skip
