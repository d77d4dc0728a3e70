"""Counts of the different values among the records of a changing table, for every group."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from streamveil.core.accounting import take_numbers
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Place
from streamveil.core.sensitivity import presence_moves
from streamveil.dynamic.interval_tree import RECORD
from streamveil.dynamic.protocol import EMPTY, Changes, in_one_go
from streamveil.dynamic.signed_counter import SignedCounter, TreeCounter, counter_of
from streamveil.errors import require_positive
from streamveil.linear.budget_shares import Share
from streamveil.linear.protocol import QueryAnswers
from streamveil.linear.strategies import Direct
from streamveil.linear.structured import Marginals
from streamveil.types import Array, Bool, Float64, Int64

BITS = 62  # of a key: a value and a cell


@dataclass(repr=False)  # secret
class DistinctState:
    """Every value that a cell ever had, as keys (value * cells + cell), and the counter's state."""

    inner: Any  # of its kind of counter
    keys: Int64[Array, " n"] = field(default_factory=lambda: EMPTY)  # increasing
    records: Int64[Array, " n"] = field(default_factory=lambda: EMPTY)  # that have it now
    shown: Bool[Array, " n"] = field(default_factory=lambda: EMPTY.astype(bool))
    used: Int64[Array, " n"] = field(default_factory=lambda: EMPTY)  # changes that were passed on


@dataclass(frozen=True, kw_only=True)
class DistinctCounter:
    """Counts the values that at least one record has, in every cell of some marginals.

    Algorithm: for each value in each cell, the first `changes` changes of its presence between ends
        of steps go through a counter of signed changes; later ones do not, and the value is counted
        as it was. The bound on changes is the flippancy of Jain, Kalemaj, Raskhodnikova,
        Sivakumar & Smith (2023, arXiv:2306.06723).
    Protects: one record with its insertion and its deletion. A label is value * domain + point.
    Guarantee: that of the counter for one record, composed `moves` times.
    Proof: without the record, only the series of its value differ, in its cell of each set; the
        cells are counted one by one, so the rest is `presence_moves`. The names of values do not
        depend on other records.
    Error: that of the counter; it leaves out the changes beyond `changes`.
    Memory: 25 bytes for each value that a cell ever had, and the counter's.

    Raises:
        PlanError: a setting is out of its range.
        HorizonError: a step after the last of `horizon`.

    >>> from streamveil.core.noise import SilentNoise
    >>> cells = Marginals((2,), ((), (0,)))
    >>> table = DistinctCounter(cells=cells, share=Share("zcdp", 1), horizon=8, changes=2)
    >>> place = Place(SilentNoise(), "doc")
    >>> state = table.init(place)
    >>> table.step(state, Changes(born=np.array([0, 7 * 2, 7 * 2 + 1])), place)
    >>> table.answers(state).values  # of all records, at point 0, at point 1
    array([2., 2., 1.])
    >>> table.moves, float(table.guarantee.loss.gaussian) <= 2  # mu^2
    (8, True)
    """

    cells: Marginals  # the groups
    share: Share  # of one life of a record
    horizon: int | None  # steps that the guarantee covers, >= 1; None: all there will ever be
    changes: int  # most changes of the presence of one value that are passed on, >= 1

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(changes=self.changes)
        if self.horizon is not None:
            require_positive(horizon=self.horizon)

    @property
    def queries(self) -> Marginals:
        """The cells, as `DynamicMechanism` has them."""
        return self.cells

    @property
    def values(self) -> int:
        """How many values there is room for."""
        return int(2 ** (BITS - max(self.cells.domain, self.cells.size).bit_length()))

    @property
    def moves(self) -> int:
        """See `presence_moves`."""
        pure = self.share.kind == "pure"
        return presence_moves(self.changes, len(self.cells.sets), pure=pure)

    @cached_property
    def counter(self) -> SignedCounter | TreeCounter:
        """The counter, of each cell by itself."""
        apart = Marginals((self.cells.size,), ((0,),))
        return counter_of(Direct(apart), self.share.scale(Fraction(1, self.moves)), self.horizon)

    @property
    def guarantee(self) -> Guarantee:
        """See `DynamicMechanism`."""
        loss = self.counter.guarantee.loss.times(self.moves)
        return Guarantee(RECORD, loss, self.horizon)

    def init(self, place: Place) -> DistinctState:
        """See `DynamicMechanism`."""
        return DistinctState(self.counter.init(place))

    @in_one_go
    def step(self, state: DistinctState, changes: Changes, place: Place) -> None:
        """See `DynamicMechanism`."""
        labels = np.concatenate([changes.born, changes.gone])
        signs = np.repeat([1.0, -1.0], [len(changes.born), len(changes.gone)])
        values, points = np.divmod(labels, self.cells.domain)
        keys = (values * self.cells.size + self._cells(points)).reshape(-1)
        found, at = np.unique(keys, return_inverse=True)
        net = np.bincount(at.reshape(-1), np.tile(signs, len(self.cells.sets)), len(found))
        _make_room(state, found[net != 0])
        at = np.searchsorted(state.keys, found[net != 0])
        state.records[at] += np.rint(net[net != 0]).astype(np.int64)
        moved = (state.records[at] > 0) != state.shown[at]
        at = at[moved & (state.used[at] < self.changes)]
        state.shown[at] = ~state.shown[at]
        state.used[at] += 1
        cells, came = state.keys[at] % self.cells.size, state.shown[at]
        self.counter.step(state.inner, Changes(cells[came], cells[~came]), place)

    def _cells(self, points: Int64[Array, " n"]) -> Int64[Array, "sets n"]:
        """The cell of each point in every set."""
        shape, sets = self.cells.shape, self.cells.sets
        axes = np.unravel_index(points, shape)
        found = np.zeros((len(sets), len(points)), np.int64)
        for place, attributes in enumerate(sets):
            for a in attributes:
                found[place] = found[place] * shape[a] + axes[a]
        return found + self.cells.starts[:-1, None]

    def answers(self, state: DistinctState) -> QueryAnswers:
        """See `DynamicMechanism`."""
        return self.counter.answers(state.inner)

    def bound(self, state: DistinctState, beta: float) -> float:
        """See `DynamicMechanism`: about the values as they are counted."""
        return self.counter.bound(state.inner, beta)

    def deviations(self, state: DistinctState) -> Float64[Array, " k"]:
        """The standard deviation of every answer now."""
        return self.counter.deviations(state.inner)

    @property
    def relative(self) -> Float64[Array, " k"]:
        """The noise of every answer, as a fraction of the worst one's."""
        return self.counter.relative


def _make_room(state: DistinctState, keys: Int64[Array, " new"]) -> None:
    """Adds the keys that are new; keys stay in increasing order."""
    new = keys[~np.isin(keys, state.keys, assume_unique=True)]
    at = np.searchsorted(state.keys, new)
    state.keys = np.insert(state.keys, at, new)
    state.records = np.insert(state.records, at, 0)
    state.shown = np.insert(state.shown, at, False)
    state.used = np.insert(state.used, at, 0)
