"""Tables with inserts and deletes: buckets of doubling numbers of segments."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np

from streamveil.core.accounting import Neighbours, take_numbers
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Place
from streamveil.core.noisy import post_process
from streamveil.dynamic.buckets import BucketPlan, BucketState, Repaired
from streamveil.dynamic.insertion_only import partition_share, require_one_change
from streamveil.dynamic.partition import Partition, PartitionState, TimeVarying
from streamveil.dynamic.protocol import (
    EMPTY,
    Bag,
    Changes,
    OfStatic,
    in_one_go,
    require_covered,
    require_points,
    require_same,
)
from streamveil.dynamic.trees import error_of
from streamveil.errors import (
    HorizonError,
    PlanError,
    require_flag,
    require_one_of,
    require_positive,
)
from streamveil.linear.budget_shares import Share
from streamveil.linear.protocol import QueryAnswers, StaticMechanism, combine, require_choices
from streamveil.types import Array

Matching = Literal["ids", "labels"]
LevelPlan = Literal["even", "published"]
ROOT = Fraction(1, 3)  # share of the frozen buckets when the horizon is unknown
RECORD = Neighbours("record", relation="record")
UPDATE = Neighbours("update", relation="update")


@dataclass(repr=False)  # secret
class Live:
    """A bucket and the segments it covers: first < segment <= last."""

    first: int
    last: int
    frozen: bool
    state: BucketState


@dataclass(repr=False)  # secret
class TreeTableState:
    """Closed segments, the buckets that cover them in order, and the open segment."""

    partition: PartitionState | None
    q: int = 0  # segments closed
    t: int = 0  # steps taken
    closed: list[int] = field(default_factory=list)  # the step with which each segment closed
    buckets: list[Live] = field(default_factory=list)
    born: list[Array] = field(default_factory=list)  # of the open segment
    gone: list[Array] = field(default_factory=list)
    birth: list[Array] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class FullyDynamic(OfStatic):
    """Answers about the current records, from any static mechanism.

    Algorithm: the online interval tree of Qiu & Yi (2022, arXiv:2209.01387; 2025), which is a
        Fenwick tree: when segment q closes, the records born in the last lowbit(q) segments and
        still alive become one bucket, which replaces the buckets of those segments and lives for
        lowbit(q) segments. Every living record is in exactly one bucket; at most log2(q) + 1 are
        alive. Known lives and an even split over levels replace the published infinite ones. With
        an unknown horizon and ids, epoch e holds segments 2^e .. 2^(e+1) - 1 in a tree of its own
        and is frozen at its end into one bucket that lives for ever; with labels there is one tree
        without an end, whose level l gets 1 / (l (l + 1)).
    Protects: by ids, 'record': one record with its insertion and its deletion; by labels, 'update':
        one of the two. A deletion names a record, or a label, whose last inserted copy goes. Other
        ways to pick the copy break the proof: first-in first-out moves t / 2^l buckets of level l.
    Guarantee: the share. It pays for all levels, the label factor, and twice the partition for
        'record'.
    Proof: a record's label is in at most one bucket of each level, because blocks of a level are
        disjoint, and levels add up: L / L for a known horizon, the sum of 1 / (l (l + 1)) = 1
        without one; with epochs, a record is in the tree of one epoch and in one frozen bucket.
        With labels last-in first-out, two runs that differ in one update differ by one copy at any
        time, and that copy moves to older ones only. A bucket of level l that opens at q is merged
        at q + 2^l at the latest, when the next one of its level opens over later segments: buckets
        of one level live one after another over increasing blocks, so the copy meets at most one
        of them. Frozen buckets would all live at once, and the copy could meet one after another:
        so labels have none. For the cost of a bucket see its plan.
    Error: `bound`.
    Memory: every living record's label once, the raw blocks of the accumulators.

    Raises:
        PlanError: a setting is out of its range, or `matching`, `protects` and what the partition
            protects do not go together, the share buys Gaussian noise only and `static` chooses, or
            the bucket has another `static`.
        HorizonError: a segment after the last of `horizon`.

    >>> from streamveil.core.noise import SilentNoise
    >>> from streamveil.linear import Marginals, noisy_queries
    >>> table = FullyDynamic.repaired(
    ...     noisy_queries(Marginals((2, 2), ((0,),))), Share("pure", 1), horizon=8)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = table.init(place)
    >>> table.step(state, Changes(born=np.array([0, 3])), place)
    >>> table.answers(state).values
    array([1., 1.])
    """

    static: StaticMechanism  # what answers about one fixed table
    share: Share  # for everything
    horizon: int | None  # segments, >= 1; None: unknown
    bucket: BucketPlan
    partition: Partition | None = None
    partition_part: Share | None = None  # what of `share` the partition spends
    matching: Matching = "ids"  # what a deletion names: a record by id, or a value by label
    plan: LevelPlan = "even"
    protects: Neighbours = RECORD  # whom the guarantee is for

    def __post_init__(self) -> None:
        take_numbers(self)
        if self.horizon is not None:
            require_positive(horizon=self.horizon)
        require_one_of("matching", self.matching, ("ids", "labels"))
        require_one_of("plan", self.plan, ("even", "published"))
        require_one_change(self.protects, self.partition)
        require_choices(self.static, self.share)
        require_same(self.static, self.bucket)
        if self.matching == "labels" and self.protects.relation not in ("update", "event"):
            raise PlanError("labels have no records: protect 'update' (two of them for a record)")
        if self.matching == "ids" and self.protects.relation != "record":
            raise PlanError("ids protect all rows of a record, not one of them: protect 'record'")
        require_covered(self.static, self.protects)

    @classmethod
    def repaired(
        cls,
        static: StaticMechanism,
        share: Share,
        *,
        horizon: int | None,
        most_rounds: int = 3,
        public_steps: bool = True,
        matching: Matching = "ids",
    ) -> FullyDynamic:
        """The default. `public_steps`: every step is a segment; else a partition hides them.

        Args:
            static: what answers the records of a bucket.
            share: part of a budget (`Share`) that it may spend, above 0.
            horizon: segments at most; None: any number.
            most_rounds: of a bucket, at least 1.
            public_steps: whether the steps may be known.
            matching: 'ids' or 'labels': how deletions name records.

        Raises:
            PlanError: an argument is beyond its range.
        """
        require_flag(public_steps=public_steps)
        protects = RECORD if matching == "ids" else UPDATE
        part, partition = None, None
        if not public_steps:
            part = share.scale(Fraction(1, 5))
            epsilon = partition_share(part, protects)
            partition = TimeVarying(epsilon=epsilon, protects=protects)
        return cls(
            static=static, share=share, horizon=horizon, partition=partition, partition_part=part,
            bucket=Repaired(static=static, most_rounds=most_rounds), matching=matching,
            protects=protects,
        )  # fmt: skip

    @property
    def tree_share(self) -> Share:
        """The share of all levels together, for one record in one bucket of each level."""
        left = self.share
        if self.partition_part is not None:
            rest = 1 - Fraction(self.partition_part.amount) / Fraction(self.share.amount)
            left = self.share.scale(rest)
        return left.scale(1 / self.bucket.factor(self.matching, self.share.kind))

    @property
    def guarantee(self) -> Guarantee:
        """See `DynamicMechanism`."""
        cost = self.tree_share.scale(self.bucket.factor(self.matching, self.share.kind)).loss
        if self.partition is not None:
            cost = cost + self.partition.guarantee.loss
        bounded = self.horizon if self.partition is None else None
        return Guarantee(self.protects, cost, bounded)

    @property
    def freezes(self) -> bool:
        """Whether epochs end in buckets that live for ever."""
        return self.horizon is None and self.plan == "even" and self.matching == "ids"

    def level_share(self, level: int, epoch: int) -> Share:
        """The share of a bucket of a level.

        Args:
            level: of a bucket, from 1; 0: a frozen one.
            epoch: doublings of the number of segments so far, from 0.
        """
        whole = self.tree_share
        if self.plan == "published":
            return whole.scale(6 / (math.pi * level) ** 2 * (1 - 1e-12))
        if self.horizon is not None:
            return whole.scale(Fraction(1, self.horizon.bit_length()))
        if not self.freezes:
            return whole.scale(Fraction(1, level * (level + 1)))
        if level == 0:
            return whole.scale(ROOT)
        return whole.scale((1 - ROOT) / max(epoch, 1))

    def init(self, place: Place) -> TreeTableState:
        """See `DynamicMechanism`."""
        cut = self.partition
        return TreeTableState(None if cut is None else cut.init(place.inside(b"partition")))

    @in_one_go
    def step(self, state: TreeTableState, changes: Changes, place: Place) -> None:
        """See `DynamicMechanism`."""
        if self.partition is None and self.horizon is not None and state.q >= self.horizon:
            raise HorizonError(self.horizon)
        require_points(changes, self.queries.domain)
        state.t += 1
        state.born.append(changes.born)
        state.gone.append(changes.gone)
        state.birth.append(changes.birth)
        if self.partition is not None and state.partition is not None:
            here = place.inside(b"partition")
            if not self.partition.step(state.partition, changes.updates, here):
                return
            if self.horizon is not None and state.q >= self.horizon:
                raise HorizonError(self.horizon)
        state.q += 1
        state.closed.append(state.t)
        self._close(state, place.inside(b"bucket", state.q))

    def _close(self, state: TreeTableState, place: Place) -> None:
        """Closes a segment: merges its block and passes deletions to the other buckets."""
        gone, segment = np.concatenate(state.gone), segments_of(state)
        pending = Bag.sum(
            [Bag.of(np.concatenate(state.born)), Bag.of(gone[segment == state.q], -1)]
        )
        first, frozen = self._block(state.q)
        merged, kept = [pending], []
        for bucket in state.buckets:
            inside = (segment > bucket.first) & (segment <= bucket.last)
            lost = Bag.of(gone[inside])
            if bucket.first >= first:
                merged += [bucket.state.live, -lost]
            else:
                kept.append(bucket)
                here = place.inside(b"step", bucket.last)
                self.bucket.step(bucket.state, lost, here)
        level = 0 if frozen else (state.q - first).bit_length()
        epoch = state.q.bit_length() - 1
        opened = self.bucket.open(
            Bag.sum(merged),
            self._life(state.q, state.q - first, frozen=frozen),
            self.level_share(level, epoch),
            place.inside(b"open"),
        )
        state.buckets = [*kept, Live(first, state.q, frozen, opened)]
        state.born, state.gone, state.birth = [], [], []

    def _block(self, q: int) -> tuple[int, bool]:
        """The segment before the block that closes with q, and whether it is frozen."""
        if not self.freezes:
            return q - (q & -q), False
        start = 1 << (q.bit_length() - 1)  # the epoch's first segment
        u = q - start + 1
        if u == start:
            return start - 1, True
        return q - (u & -u), False

    def _life(self, q: int, length: int, *, frozen: bool) -> int | None:
        """For how many more segments the bucket takes deletions."""
        if frozen:
            return None
        if self.plan == "published":
            return length - 1 if getattr(self.bucket, "finite", False) else None
        if self.horizon is not None:
            return min(length - 1, self.horizon - q)
        return length - 1

    def answers(self, state: TreeTableState) -> QueryAnswers:
        """See `DynamicMechanism`. Counts below zero are shown as zero."""
        parts = [(1.0, self.bucket.answers(bucket.state)) for bucket in state.buckets]
        found = combine(parts, self.queries.size)
        return QueryAnswers(post_process(np.maximum, found.noisy, 0.0))

    def bound(self, state: TreeTableState, beta: float) -> float:
        """See `DynamicMechanism`: the bound of closed segments, plus what the open one may hide.

        Infinite where the error grows with a number nobody released.
        """
        hidden = 0.0
        if self.partition is not None and state.partition is not None:
            beta /= 2
            hidden = self.partition.hidden(state.partition, beta)
        buckets = [bucket.state for bucket in state.buckets]
        parts = [share for bucket in buckets for share in self.bucket.parts(bucket)]
        if not self.static.adaptive:
            return hidden + error_of(self.static, parts, beta)
        beta /= 2
        size = sum(self.bucket.most(bucket, beta / max(len(buckets), 1)) for bucket in buckets)
        return hidden + error_of(self.static, parts, beta, size)


def segments_of(state: TreeTableState) -> Array:
    """For each record that goes now, the segment in which it was born."""
    birth = np.concatenate(state.birth) if state.birth else EMPTY
    return np.searchsorted(np.asarray(state.closed, np.int64), birth, side="left") + 1
