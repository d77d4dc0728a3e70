"""Static releases now and then with trees in between, against which the engine's are measured."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Place
from streamveil.core.noisy import values
from streamveil.dynamic.insertion_only import partition_share
from streamveil.dynamic.interval_tree import RECORD
from streamveil.dynamic.protocol import Bag, Changes, OfStatic
from streamveil.dynamic.trees import Difference, Hybrid, HybridState, Tree, error_of, released
from streamveil.errors import HorizonError, require_positive
from streamveil.linear.budget_shares import Share
from streamveil.linear.protocol import QueryAnswers, StaticMechanism, combine
from streamveil.linear.sparse_vector import AboveState, AboveThreshold

SPLIT = (Fraction(9, 20), Fraction(1, 20), Fraction(9, 40), Fraction(9, 40), Fraction(1, 20))
CLEAR = 8  # a snapshot waits for this many noise scales of updates at least


def since(before: QueryAnswers | None, changes: QueryAnswers) -> QueryAnswers:
    """What there was, and what came and went after it."""
    first = [] if before is None else [(1.0, before)]
    return combine([*first, (1.0, changes)], len(changes.values))


@dataclass(repr=False)  # secret
class SnapshotState:
    """The records that are there, the last snapshot, and what came and went since."""

    t: int
    live: Bag
    latest: QueryAnswers
    born: Any
    gone: Any


@dataclass(frozen=True, kw_only=True)
class SnapshotDelta(OfStatic):
    """A static release every `every` steps, and trees of insertions and deletions in between.

    Protects: one record with its insertion and its deletion.
    Guarantee: the share: half for all snapshots, of which there are horizon / every; a quarter for
        insertions and a quarter for deletions, each of which a record enters once.
    Error: that of one snapshot with its small part, plus that of a tree over at most `every` steps:
        it follows the records that are there, and the turnover only polynomially.

    Raises:
        ValueError: a setting is out of its range.
        HorizonError: a step after the last of `horizon`.

    >>> import numpy as np
    >>> from streamveil.core.noise import SilentNoise
    >>> from streamveil.linear import Marginals, noisy_queries
    >>> table = SnapshotDelta(
    ...     static=noisy_queries(Marginals((2, 2), ((0,),))), share=Share("pure", 1), horizon=8,
    ...     every=4)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = table.init(place)
    >>> table.step(state, Changes(born=np.array([0, 3])), place)
    >>> table.answers(state).values
    array([1., 1.])
    """

    static: StaticMechanism  # what answers about one fixed table
    share: Share
    horizon: int  # steps that the guarantee covers, >= 1
    every: int  # steps between two snapshots, >= 1
    arity: int = 4  # children of a node of its tree, >= 2

    def __post_init__(self) -> None:
        require_positive(horizon=self.horizon, every=self.every)

    @property
    def most(self) -> int:
        """How many snapshots there are: one with the first step, then one every `every` steps."""
        return -(-self.horizon // self.every)

    @property
    def snapshot(self) -> Share:
        """What one snapshot spends."""
        return self.share.scale(Fraction(1, 2 * self.most))

    @property
    def _since(self) -> Difference:
        quarter = self.share.scale(Fraction(1, 4))
        return Difference(Tree(self.static, quarter, max(self.every - 1, 1), self.arity))

    @property
    def guarantee(self) -> Guarantee:
        """See `DynamicMechanism`."""
        loss = self.snapshot.loss.times(self.most) + self._since.loss
        return Guarantee(RECORD, loss, self.horizon)

    def init(self, place: Place) -> SnapshotState:
        """See `DynamicMechanism`."""
        nothing, side = combine([], self.queries.size), self._since.side
        return SnapshotState(0, Bag(), nothing, side.init(), side.init())

    def step(self, state: SnapshotState, changes: Changes, place: Place) -> None:
        """See `DynamicMechanism`."""
        if state.t >= self.horizon:
            raise HorizonError(self.horizon)
        born, gone = Bag.of(changes.born), Bag.of(changes.gone)
        state.live = Bag.sum([state.live, born, -gone])
        here = place.inside(state.t + 1)
        if state.t % self.every == 0:
            state.latest = released(self.static, state.live, self.snapshot, here.inside(b"whole"))
            state.born, state.gone = self._since.side.init(), self._since.side.init()
        else:
            self._since.step(state, born, gone, here)
        state.t += 1

    def answers(self, state: SnapshotState) -> QueryAnswers:
        """See `DynamicMechanism`."""
        return since(state.latest, self._since.answers(state))

    def bound(self, state: SnapshotState, beta: float) -> float:
        """See `DynamicMechanism`; infinite where the error grows with a number nobody released."""
        return error_of(self.static, [self.snapshot, *self._since.parts(state)], beta)


@dataclass(repr=False)  # secret
class TriggeredState:
    """The records, the last snapshot, what came and went since, and the open comparison."""

    t: int = 0  # steps taken
    live: Bag = field(default_factory=Bag)
    latest: QueryAnswers | None = None  # None: no snapshot yet
    born: HybridState = field(default_factory=HybridState)
    gone: HybridState = field(default_factory=HybridState)
    since: int = 0  # updates since the snapshot
    limit: int = 0  # at which the next one is due: public
    taken: int = 0  # snapshots: public
    above: AboveState | None = None


@dataclass(frozen=True, kw_only=True)
class TriggeredSnapshots(OfStatic):
    """A static release whenever about half of the table has changed, trees in between.

    Algorithm: `SnapshotDelta` with times of snapshots from a sparse vector: one comparison of the
        number of updates since the last snapshot, at every step, with half of the size that was
        estimated then. At most `most` snapshots; after the last one the trees go on alone.
    Protects: one record with its insertion and its deletion.
    Guarantee: the share: snapshots and sizes, `most` of each; a tree of insertions, one of
        deletions; the comparisons.
    Proof: a record is in the table at no more than `most` snapshots. Its insertion lies between two
        snapshots, its deletion as well, so each enters one tree of its kind and one run of the
        sparse vector, whose counts are cumulative: one update costs its epsilon, the two of a
        record twice that, in two runs or in one. When snapshots are taken is an output.
    Error: a snapshot with its small part, and trees over about half as many updates as there were
        records; updates the comparison overlooks are in the trees all the same.

    Raises:
        ValueError: a setting is out of its range.
        HorizonError: a step after the last of `horizon`.

    >>> import numpy as np
    >>> from streamveil.core.noise import SilentNoise
    >>> from streamveil.linear import Marginals, noisy_queries
    >>> table = TriggeredSnapshots(
    ...     static=noisy_queries(Marginals((2, 2), ((0,),))), share=Share("pure", 1), most=3)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = table.init(place)
    >>> table.step(state, Changes(born=np.array([0, 3])), place)
    >>> table.answers(state).values
    array([1., 1.])
    """

    static: StaticMechanism  # what answers about one fixed table
    share: Share
    most: int  # snapshots: about updates / (size / 2), >= 1
    arity: int = 4  # children of a node of its tree, >= 2

    def __post_init__(self) -> None:
        require_positive(most=self.most)

    @property
    def parts(self) -> tuple[Share, Share, Share, Share]:
        """One snapshot, one size, insertions (and deletions as much), comparisons."""
        whole, size, side, _, test = self.share.split(*SPLIT)
        each = Fraction(1, self.most)
        return whole.scale(each), size.scale(each), side, test

    @property
    def above(self) -> AboveThreshold:
        """The comparisons between two snapshots."""
        return AboveThreshold.cumulative(partition_share(self.parts[3], RECORD))

    @property
    def guarantee(self) -> Guarantee:
        """See `DynamicMechanism`."""
        whole, size, _, test = self.parts
        loss = (whole.loss + size.loss).times(self.most) + self._since.loss + test.loss
        return Guarantee(RECORD, loss, None)

    def init(self, place: Place) -> TriggeredState:
        """See `DynamicMechanism`."""
        return TriggeredState()

    def step(self, state: TriggeredState, changes: Changes, place: Place) -> None:
        """See `DynamicMechanism`. The first step takes a snapshot."""
        state.t += 1
        born, gone = Bag.of(changes.born), Bag.of(changes.gone)
        state.live = Bag.sum([state.live, born, -gone])
        state.since += changes.updates
        here = place.inside(b"snapshot", state.taken)
        due = state.latest is None
        if state.above is not None:
            due = self.above.ask(state.above, state.since, state.limit, here)
        if due:
            self._snapshot(state, place.inside(b"snapshot", state.taken + 1))
            return
        self._since.step(state, born, gone, here)

    def _snapshot(self, state: TriggeredState, place: Place) -> None:
        whole, size, *_ = self.parts
        found = float(values(size.noisy(state.live.size, place.draws(b"size"), 1, 1)))
        state.latest = released(self.static, state.live, whole, place.inside(b"whole"), found)
        state.taken, state.since = state.taken + 1, 0
        state.born, state.gone = HybridState(), HybridState()
        clear = CLEAR / float(self.above.epsilon1)
        state.limit = math.ceil(max(found / 2, clear))
        state.above = self.above.init(place) if state.taken < self.most else None

    @property
    def _since(self) -> Difference:
        return Difference(Hybrid(self.static, self.parts[2], arity=self.arity))

    def answers(self, state: TriggeredState) -> QueryAnswers:
        """See `DynamicMechanism`."""
        return since(state.latest, self._since.answers(state))

    def bound(self, state: TriggeredState, beta: float) -> float:
        """See `DynamicMechanism`; infinite where the error grows with a number nobody released."""
        return error_of(self.static, [self.parts[0], *self._since.parts(state)], beta)
