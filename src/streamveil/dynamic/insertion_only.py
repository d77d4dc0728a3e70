"""Tables that only grow: an accumulator of releases, behind a partition when rows are rare."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from streamveil.core.accounting import Neighbours
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Place
from streamveil.dynamic.partition import EVENT, Partition, PartitionState, TimeVarying, updates
from streamveil.dynamic.protocol import (
    Bag,
    Changes,
    OfStatic,
    in_one_go,
    require_covered,
    require_growth,
    require_same,
)
from streamveil.dynamic.trees import Accumulator, Tree, accumulator, error_of
from streamveil.errors import PlanError
from streamveil.linear.budget_shares import Share
from streamveil.linear.protocol import QueryAnswers, StaticMechanism
from streamveil.linear.queries import points_of
from streamveil.types import Exact

SPARSE = (Fraction(3, 10), Fraction(7, 10))  # partition, accumulator


@dataclass(repr=False)  # secret
class InsertionState:
    """The partition, the rows of the open segment, the accumulator over closed segments."""

    partition: PartitionState | None
    inner: Any
    open: list[Any] = field(default_factory=list)  # arrays of labels
    steps: int = 0


@dataclass(frozen=True, kw_only=True)
class InsertionOnly(OfStatic):
    """Answers about everything inserted so far, on dense or sparse streams, with or without an end.

    Algorithm: Qiu & Yi (2022, arXiv:2209.01387), theorem 8, with any accumulator and partition.
        Without a partition every step is a segment. The paper uses a partition with a fixed
        threshold for half of the budget, and `Hybrid` with r = 1/2; here it is `TimeVarying` for
        3/10.
    Protects: one row present or absent ('event'), or one row replaced at its public step
        ('event-change', no partition and a static mechanism for replacement).
    Guarantee: the partition's plus the accumulator's.
    Proof: given where segments close, neighbours differ in the batch of one segment.
    Error: the accumulator's, and the rows of the open segment, which are not counted yet.
    Memory: raw counts of the blocks of the accumulator.

    Raises:
        PlanError: a step deletes records, `protects` is not what the parts protect, or `inner` has
            another `static`.
        HorizonError: a step after the last of the horizon.

    >>> from streamveil.core.noise import SilentNoise
    >>> from streamveil.linear import Marginals, noisy_queries
    >>> table = InsertionOnly.dense(
    ...     noisy_queries(Marginals((2, 2), ((0,),))), Share("pure", 1), horizon=8)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = table.init(place)
    >>> table.step(state, Changes(born=np.array([0, 3])), place)
    >>> table.answers(state).values
    array([1., 1.])
    """

    inner: Accumulator  # adds up the static mechanism's answers about batches
    static: StaticMechanism  # what answers about one fixed table
    partition: Partition | None = None
    protects: Neighbours = EVENT  # whom the guarantee is for

    def __post_init__(self) -> None:
        require_one_change(self.protects, self.partition)
        require_same(self.static, self.inner)
        require_covered(self.static, self.protects)

    @classmethod
    def sparse(
        cls, static: StaticMechanism, share: Share, horizon: int | None = None
    ) -> InsertionOnly:
        """The mechanism for streams where most steps bring nothing; its horizon counts segments.

        Args:
            static: what answers the records of a segment.
            share: part of a budget (`Share`) that it may spend, above 0.
            horizon: segments at most; None: any number.

        Raises:
            PlanError: an argument is beyond its range.
        """
        first, rest = share.split(*SPARSE)
        partition = TimeVarying(epsilon=first.epsilon)
        return cls(inner=accumulator(static, rest, horizon, 8), static=static, partition=partition)

    @classmethod
    def dense(
        cls, static: StaticMechanism, share: Share, horizon: int | None = None
    ) -> InsertionOnly:
        """The mechanism whose segments are the steps.

        Args:
            static: what answers the records of a step.
            share: part of a budget (`Share`) that it may spend, above 0.
            horizon: steps at most; None: any number.

        Raises:
            PlanError: an argument is beyond its range.
        """
        return cls(inner=accumulator(static, share, horizon, 4), static=static)

    @property
    def guarantee(self) -> Guarantee:
        """See `DynamicMechanism`."""
        loss = self.inner.loss
        if self.partition is not None:
            loss = loss + self.partition.guarantee.loss
        horizon = self.inner.horizon if isinstance(self.inner, Tree) else None
        return Guarantee(self.protects, loss, None if self.partition else horizon)

    def init(self, place: Place) -> InsertionState:
        """See `DynamicMechanism`."""
        cut = self.partition
        opened = None if cut is None else cut.init(place.inside(b"partition"))
        return InsertionState(opened, self.inner.init())

    @in_one_go
    def step(self, state: InsertionState, changes: Changes, place: Place) -> None:
        """See `DynamicMechanism`."""
        require_growth(changes)
        state.open.append(points_of("born", changes.born, self.queries.domain))
        if self.partition is not None and state.partition is not None:
            here = place.inside(b"partition")
            if not self.partition.step(state.partition, changes.updates, here):
                return
        batch = Bag.of(np.concatenate(state.open))
        state.open = []
        state.steps += 1
        self.inner.step(state.inner, batch, place.inside(b"inner"))

    def answers(self, state: InsertionState) -> QueryAnswers:
        """See `DynamicMechanism`."""
        return self.inner.answers(state.inner)

    def bound(self, state: InsertionState, beta: float) -> float:
        """See `DynamicMechanism`: the bound of closed segments, plus what the open one may hide.

        Infinite where the error grows with the number of rows, which is private.
        """
        hidden = 0.0
        if self.partition is not None and state.partition is not None:
            beta /= 2
            hidden = self.partition.hidden(state.partition, beta)
        return hidden + error_of(self.static, self.inner.parts(state.inner), beta)


def partition_share(share: Share, protects: Neighbours) -> Exact:
    """The epsilon per update that makes a partition cost exactly this share."""
    return share.epsilon / updates(protects)


def require_one_change(protects: Neighbours, partition: Partition | None) -> None:
    """Refuses a guarantee for more than one change: noise, also in a partition, is made for one.

    Raises:
        PlanError: more than one record or update, or the partition protects something else.
    """
    if protects.bound != 1:
        raise PlanError(f"this mechanism protects one {protects.unit}, not {protects.bound}")
    if partition is not None and partition.guarantee.protects.relation != protects.relation:
        raise PlanError(
            f"the partition protects '{partition.guarantee.protects.relation}' and the table"
            f" '{protects.relation}': give both the same `protects`"
        )
