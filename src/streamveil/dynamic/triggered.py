"""Snapshots taken when enough has changed, without knowing when the stream ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction

from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Place
from streamveil.core.noisy import values
from streamveil.dynamic.insertion_only import partition_share
from streamveil.dynamic.interval_tree import RECORD
from streamveil.dynamic.protocol import Bag, Changes, OfStatic
from streamveil.dynamic.trees import Difference, Hybrid, HybridState, error_of, released
from streamveil.errors import require_positive
from streamveil.linear.budget_shares import Share
from streamveil.linear.protocol import QueryAnswers, StaticMechanism
from streamveil.linear.sparse_vector import AboveState, AboveThreshold

SPLIT = (Fraction(9, 20), Fraction(1, 20), Fraction(9, 40), Fraction(9, 40), Fraction(1, 20))
CLEAR = 8  # a snapshot waits for this many noise scales of updates at least


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
        return self._since.answers(state, state.latest)

    def bound(self, state: TriggeredState, beta: float) -> float:
        """See `DynamicMechanism`; infinite where the error grows with a number nobody released."""
        return error_of(self.static, [self.parts[0], *self._since.parts(state)], beta)
