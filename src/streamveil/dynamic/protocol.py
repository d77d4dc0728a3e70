"""The interface of mechanisms for changing tables: a state takes the changes of a public step.

Raw updates (insert, delete) are first matched with records (`records.py`): a deletion then names
the step in which its record was born. All noise is drawn in `step`; `answers` and `bound` are
post-processing of what was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import numpy as np

from streamveil.core.accounting import Neighbours
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Place
from streamveil.errors import HorizonError, PlanError, StoreError, whole
from streamveil.linear.protocol import QueryAnswers, StaticMechanism
from streamveil.linear.queries import Queries, points_of
from streamveil.linear.queries import whole_numbers as whole_numbers  # for `records`
from streamveil.types import Array, Int64

EMPTY = np.zeros(0, np.int64)


@dataclass(frozen=True, repr=False)  # secret
class Bag:
    """Records by label, with counts of any sign: the part of a table that one release reads.

    Raises:
        PlanError: a label is no whole number, or not of the domain.

    >>> bag = Bag.sum([Bag.of(np.array([2, 0, 2])), Bag.of(np.array([0]), sign=-1)])
    >>> bag.histogram(3), bag.size
    (array([0, 0, 2]), 2)
    """

    labels: Int64[Array, " n"] = field(default_factory=lambda: EMPTY)  # increasing
    counts: Int64[Array, " n"] = field(default_factory=lambda: EMPTY)

    @classmethod
    def of(cls, labels: Int64[Array, " n"], sign: int = 1) -> Bag:
        """One record for each label given.

        Args:
            labels: point of each, from 0.
            sign: 1 for records that come, -1 for those that go.

        Raises:
            PlanError: a label or the sign is no whole number.
        """
        found, counts = np.unique(whole_numbers("labels", labels), return_counts=True)
        return cls(found, whole("sign", sign) * counts.astype(np.int64))

    @classmethod
    def sum(cls, bags: Iterable[Bag]) -> Bag:
        """The union of bags; labels that cancel disappear.

        Args:
            bags: any number of them.
        """
        bags = [bag for bag in bags if len(bag.labels)]
        if len(bags) < 2:
            return bags[0] if bags else cls()
        labels = np.concatenate([bag.labels for bag in bags])
        found, at = np.unique(labels, return_inverse=True)
        weights = np.concatenate([bag.counts for bag in bags]).astype(np.float64)
        counts = np.rint(np.bincount(at, weights, len(found))).astype(np.int64)
        kept = counts != 0
        return cls(found[kept], counts[kept])

    def __neg__(self) -> Bag:
        return Bag(self.labels, -self.counts)

    @property
    def size(self) -> int:
        """The number of records."""
        return int(self.counts.sum())

    def histogram(self, domain: int) -> Int64[Array, " N"]:
        """Counts for every point of the domain.

        Args:
            domain: how many points there are.

        Raises:
            PlanError: a label is not one of them, or `domain` is no number of points.
        """
        out = np.zeros(whole("domain", domain, 0), np.int64)
        out[points_of("labels", self.labels, domain)] = self.counts
        return out


@dataclass(frozen=True, repr=False)  # secret
class Changes:
    """The changes of the table in one public step.

    `updates` is the number of updates that a partition counts, at least the number of records that
    came and went; see `records.py`.

    Raises:
        PlanError: `updates` is no whole number of at least 0.

    >>> step = Changes(born=np.array([0, 0, 2]))
    >>> len(step.born), len(step.gone), step.updates
    (3, 0, 3)
    """

    born: Int64[Array, " a"] = field(default_factory=lambda: EMPTY)  # labels inserted
    gone: Int64[Array, " d"] = field(default_factory=lambda: EMPTY)  # labels deleted
    birth: Int64[Array, " d"] = field(default_factory=lambda: EMPTY)  # birth steps of the deleted
    updates: int = 0  # updates that a partition counts, >= 0

    def __post_init__(self) -> None:
        least = np.size(self.born) + np.size(self.gone)
        object.__setattr__(self, "updates", max(whole("updates", self.updates, 0), least))


Step = TypeVar("Step", bound=Callable[..., None])
State = Any  # each mechanism's own; mutable, never shown


@runtime_checkable
class DynamicMechanism(Protocol):
    """Answers to a class of linear queries about a table that changes, after every step.

    >>> from streamveil.dynamic import TwoStream
    >>> from streamveil.linear import Marginals, Share, noisy_queries
    >>> counts = noisy_queries(Marginals((2, 2), ((0,),)))
    >>> table: DynamicMechanism = TwoStream(static=counts, share=Share("pure", 1), horizon=8)
    >>> str(table.guarantee.loss)
    'epsilon=0.5 x2'
    """

    @property
    def queries(self) -> Queries:
        """The class."""

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for everything it ever releases."""

    def init(self, place: Place) -> State:
        """The state before any step.

        Args:
            place: where its noise is drawn, the same at every step and of no other run.
        """

    def step(self, state: State, changes: Changes, place: Place) -> None:
        """Ends one public step, in place. `place` is the same for every step.

        Args:
            state: what `init` returned.
            changes: records that came and went in the step.
            place: where its noise is drawn, the same at every step and of no other run.

        Raises:
            HorizonError: all steps are over.
            StoreError: an earlier step of the state was cut off, as by Ctrl-C.
            PlanError: records go from a table that only grows, or are not of the domain; nothing
                is changed then.
        """

    def answers(self, state: State) -> QueryAnswers:
        """The latest answers: they reflect the last closed step (or segment).

        Args:
            state: what `init` returned.
        """

    def bound(self, state: State, beta: float) -> float:
        """An error bound for all queries now, in records, except with probability beta.

        Args:
            state: what `init` returned.
            beta: chance that it fails, above 0 and below 1.

        Raises:
            PlanError: beta is beyond its range.
        """


class OfStatic:
    """A mechanism that answers from releases of a static one."""

    static: StaticMechanism

    @property
    def queries(self) -> Queries:
        """See `DynamicMechanism`."""
        return self.static.queries


def in_one_go(step: Step) -> Step:
    """A step of a mechanism, refused to a state of which an earlier step was cut off.

    Such a state has lost some records, or counts some already that would be given again.
    """

    @wraps(step)
    def call(self: Any, state: State, *given: Any, **named: Any) -> None:
        if getattr(state, "is_cut_off", False):
            raise StoreError(
                "an earlier step of this state was cut off, by an interrupt or an error: it lacks"
                " records, or counts some already.\n"
                "  to fix  its last answers stay; for others begin anew, which costs a budget anew"
            )
        state.is_cut_off = True
        try:
            step(self, state, *given, **named)
        except (PlanError, HorizonError):  # it was refused: nothing has changed
            state.is_cut_off = False
            raise
        state.is_cut_off = False

    return cast("Step", call)


def require_growth(changes: Changes) -> None:
    """Refuses deletions where noise is sized for insertions alone."""
    if len(changes.gone):
        raise PlanError("this table only grows: use a mechanism for inserts and deletes")


def require_points(changes: Changes, domain: int) -> None:
    """Refuses records that are not of the domain, before a state takes them in."""
    points_of("born", changes.born, domain)
    points_of("gone", changes.gone, domain)


def require_covered(static: StaticMechanism, protects: Neighbours) -> None:
    """Refuses to protect a change of a record for which the noise is not made."""
    if not static.covers(protects):
        raise PlanError(
            f"'{protects.relation}' is {protects.verb} a record, and the noise of this"
            f" {type(static).__name__} is for another change.\n"
            "  to fix  for a replaced record noisy_queries(..., replaced=True), or growing(...);\n"
            "          for others a mechanism that does not take sizes for public"
        )


def require_same(static: StaticMechanism, part: Any) -> None:
    """Refuses a part that answers by another static mechanism: errors are stated for `static`."""
    if part.static is not static and part.static != static:
        raise PlanError(
            f"static must be what {type(part).__name__} answers by: error bounds follow from it.\n"
            "  to fix  pass one static mechanism to both"
        )
