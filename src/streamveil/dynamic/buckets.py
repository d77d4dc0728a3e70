"""A bucket: the remaining records of a block of segments, answered until it is merged.

Its contents are released once (the base); later deletions go through an accumulator whose answers
are subtracted, so that the error follows the records that remain once the base is renewed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

from streamveil.core.accounting import take_numbers
from streamveil.core.noise import Place
from streamveil.core.noisy import values
from streamveil.dynamic.protocol import Bag
from streamveil.dynamic.trees import Accumulator, accumulator, released, require_tree
from streamveil.errors import require_positive
from streamveil.linear.budget_shares import Share
from streamveil.linear.protocol import QueryAnswers, StaticMechanism, combine, size_tail
from streamveil.linear.sparse_vector import AboveState, AboveThreshold
from streamveil.types import Exact


@dataclass(repr=False)  # secret: holds the records
class BucketState:
    """Public: share, remaining, rounds, round, size. Secret: the records and counts."""

    share: Share
    remaining: int | None  # steps it still lives; None: for ever
    live: Bag
    rounds: int
    round: int
    size: float  # public estimate of the number of records at the start of the round
    base: QueryAnswers
    deletions: Any = None  # state of the accumulator of this round
    above: AboveState | None = None
    counter: Any = None  # published only: the noisy count of deletions
    count: int = 0  # deletions in this round
    halted: bool = False


@runtime_checkable
class BucketPlan(Protocol):
    """How a bucket spends its share."""

    @property
    def static(self) -> StaticMechanism:
        """The mechanism it is built on."""

    def factor(self, mode: str, kind: str) -> Fraction:
        """The cost of one change of the input, as a multiple of the share.

        Args:
            mode: 'ids' or 'labels': how deletions name records.
            kind: law of the noise: 'pure' (Laplace), 'zcdp' or 'gdp' (Gaussian).
        """

    def open(self, bag: Bag, remaining: int | None, share: Share, place: Place) -> BucketState:
        """A new bucket with these records.

        Args:
            bag: its first records.
            remaining: segments that it may see, at least 0; None: any number.
            share: part of a budget (`Share`) that it may spend, above 0.
            place: where its noise is drawn, of this bucket alone.

        Raises:
            PlanError: an argument is beyond its range.
        """

    def step(self, state: BucketState, gone: Bag, place: Place) -> None:
        """Takes the deletions of one closed segment, possibly none.

        Args:
            state: what `open` returned.
            gone: records of the bucket that the segment deleted.
            place: as given to `open`.

        Raises:
            HorizonError: all segments are over.
        """

    def answers(self, state: BucketState) -> QueryAnswers:
        """The answers about the records that remain; `state`: what `open` returned."""

    def parts(self, state: BucketState) -> list[Share]:
        """The shares of the releases whose sum is the answer; `state`: what `open` returned."""

    def most(self, state: BucketState, beta: float) -> float:
        """A bound on the records that those releases read, counted as often as they are read.

        Args:
            state: what `open` returned.
            beta: chance that it fails, above 0 and below 1.
        """


@dataclass(frozen=True, kw_only=True)
class Repaired:
    """A bucket that restarts a number of times fixed in advance; the default.

    Algorithm: the number of records is estimated once; it decides, publicly, into how many rounds
        the base's share is cut. A round ends when a cumulative AboveThreshold finds half of its
        records deleted. Where the error of the static mechanism does not depend on the number of
        records there is one round and nothing to estimate.
    Guarantee: with record ids, the share. With labels, `factor` times it.
    Proof: one record enters the estimate once and at most every base: share n + rounds * (share s /
        rounds). It is deleted at most once, so it enters the accumulator and the AboveThreshold of
        at most one round; which one is read from earlier outputs (adaptive parallel composition).
        With labels matched last-in first-out, one update moves either the first contents and one
        deletion, or the times of at most two deletions: those enter at most two blocks of each
        level of an accumulator, and shift an AboveThreshold by two events.

    Raises:
        PlanError: a setting is out of its range.
        HorizonError: a step after the last of `horizon`.

    >>> from streamveil.linear import Marginals, noisy_queries
    >>> bucket = Repaired(static=noisy_queries(Marginals((2, 2), ((0,),))))
    >>> bucket.factor("ids", "pure"), sum(bucket.split)
    (Fraction(1, 1), Fraction(1, 1))
    """

    static: StaticMechanism  # what answers about one fixed table
    most_rounds: int = 3  # of a bucket, each with a base of its own, >= 1
    arity: int = 4  # children of a node of its tree, >= 2
    split: tuple[Exact, Exact, Exact, Exact] = (  # shares: size, base, deletions, test
        Fraction(3, 100), Fraction(57, 100), Fraction(35, 100), Fraction(5, 100),
    )  # fmt: skip

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(most_rounds=self.most_rounds)
        require_tree(None, self.arity)

    def factor(self, mode: str, kind: str) -> Fraction:
        """See `BucketPlan`."""
        if mode == "ids":
            return Fraction(1)
        size, base, deletions, test = self._weights
        again = base if self.static.adaptive else Fraction(0)  # one round never reads them again
        moved = again + 2 * deletions + (2 if kind == "pure" else 4) * test
        return max(Fraction(1), moved / (size + base + deletions + test))

    @property
    def _weights(self) -> tuple[Fraction, Fraction, Fraction, Fraction]:
        size, base, deletions, test = (Fraction(part) for part in self.split)
        if not self.static.adaptive:
            return Fraction(0), base, deletions, Fraction(0)
        return size, base, deletions, test

    def _split(self, share: Share) -> tuple[Share, ...]:
        return share.split(*self._weights)

    def open(self, bag: Bag, remaining: int | None, share: Share, place: Place) -> BucketState:
        """See `BucketPlan`."""
        empty = released_nothing(self.static)
        state = BucketState(share, remaining, bag, 1, 0, 0.0, empty)
        if remaining == 0:
            state.base = released(self.static, bag, share, place.inside(b"base"))
            state.round = 1
            return state
        if self.static.adaptive:
            size, base, _, test = self._split(share)
            noisy = size.noisy(bag.size, place.draws(b"size"), 1, 1)
            state.size = max(float(values(noisy)), 1.0)
            floor = max(4 / float(test.epsilon), self.static.error.useful_size(base))
            if state.size > floor:
                state.rounds = min(self.most_rounds, 1 + int(math.log2(state.size / floor)))
        self._start(state, place)
        return state

    def _start(self, state: BucketState, place: Place) -> None:
        """Begins the next round: a fresh base, an empty accumulator."""
        state.round += 1
        _, base, deletions, _ = self._split(state.share)
        here = place.inside(b"round", state.round)
        # the estimate is right when it is new; later, a step may have deleted more than half
        size = state.size if self.static.adaptive and state.round == 1 else None
        part = base.scale(Fraction(1, state.rounds))
        state.base = released(self.static, state.live, part, here.inside(b"base"), size)
        state.count = 0
        state.above = self._above(state).init(here) if state.round < state.rounds else None
        state.deletions = None
        if state.remaining != 0:
            state.deletions = self._accumulator(state, deletions).init()

    def _above(self, state: BucketState) -> AboveThreshold:
        return AboveThreshold.cumulative(self._split(state.share)[3].epsilon)

    def _accumulator(self, state: BucketState, share: Share) -> Accumulator:
        # the tree keeps the horizon the round began with: remaining + steps already taken in it
        remaining = state.remaining
        taken = 0 if state.deletions is None else state.deletions.t
        return accumulator(
            self.static, share, None if remaining is None else remaining + taken, self.arity
        )

    def step(self, state: BucketState, gone: Bag, place: Place) -> None:
        """See `BucketPlan`."""
        deletions = self._split(state.share)[2]
        tree = self._accumulator(state, deletions)
        here = place.inside(b"round", state.round)
        state.live = Bag.sum([state.live, -gone])
        tree.step(state.deletions, gone, here.inside(b"deletions"))
        state.count += gone.size
        if state.remaining is not None:
            state.remaining -= 1
        if state.above is None or state.remaining == 0:
            return
        if self._above(state).ask(state.above, state.count, math.ceil(state.size / 2), here):
            state.size /= 2
            self._start(state, place)

    def answers(self, state: BucketState) -> QueryAnswers:
        """See `BucketPlan`."""
        if state.deletions is None:
            return state.base
        tree = self._accumulator(state, self._split(state.share)[2])
        removed = tree.answers(state.deletions)
        return combine([(1.0, state.base), (-1.0, removed)], self.static.queries.size)

    def parts(self, state: BucketState) -> list[Share]:
        """See `BucketPlan`."""
        if state.deletions is None:
            return [state.share]
        _, base, deletions, _ = self._split(state.share)
        tree = self._accumulator(state, deletions)
        return [base.scale(Fraction(1, state.rounds)), *tree.parts(state.deletions)]

    def most(self, state: BucketState, beta: float) -> float:
        """See `BucketPlan`: the base and, at most once more, its deletions.

        A bucket that lives for no further segment never estimates its size: nothing is known.
        """
        if not self.static.adaptive:
            return 2.0
        if state.deletions is None:
            return math.inf
        size, _, _, test = self._split(state.share)
        estimate = size_tail(size, beta / 2)
        asked = 1 if state.above is None else 1 + state.above.asked
        late = AboveThreshold.cumulative(test.epsilon).slack(beta / 2, state.rounds * asked)
        return 2 * (state.size + estimate + state.rounds * late)


def released_nothing(static: StaticMechanism) -> QueryAnswers:
    """Zeros for every query: the answers of an empty bucket."""
    return combine([], static.queries.size)
