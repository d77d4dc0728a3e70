"""A changing table in memory: insert, delete, tick, query."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streamveil.core.accounting import exact_between
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Noise, Place
from streamveil.dynamic.protocol import EMPTY, Changes, DynamicMechanism, State
from streamveil.dynamic.records import BORN, GONE, Records, protected
from streamveil.errors import HorizonError, require_text, require_with
from streamveil.linear.protocol import QueryAnswers
from streamveil.types import Array, Int64


class LiveTable:
    """The curator's handle of a dynamic mechanism.

    `open` makes one: it hands over the `mechanism`, the `matching` and the `place` of its noise.
    `tick` ends a public step. Only `tick` and `open` draw noise. What `delete` returns, and how
    long anything takes, is raw data: for the curator's code only. Where replaced rows are protected
    ('event-change'), ids are public, as sizes are.

    Raises:
        PlanError: the mechanism protects updates, and rows come with ids.

    >>> from streamveil.dynamic import FullyDynamic
    >>> from streamveil.linear import Marginals, Share, noisy_queries
    >>> from streamveil.core.noise import SilentNoise
    >>> cells = Marginals((2, 2), ((0,), (1,)))
    >>> mechanism = FullyDynamic.repaired(noisy_queries(cells), Share("pure", 1), horizon=8)
    >>> table = LiveTable.open(mechanism, SilentNoise(), "doc")
    >>> table.insert(3, 7), table.insert(1, 8), table.delete(7)
    (True, True, True)
    >>> table.tick()
    >>> table.answers().values
    array([1., 0., 0., 1.])
    """

    def __init__(self, mechanism: DynamicMechanism, matching: str, place: Place) -> None:
        self.mechanism, self.place = mechanism, place  # noise is drawn at this place
        self.records = Records(
            matching=matching,  # type: ignore[arg-type]  # checked by Records
            domain=mechanism.queries.domain,
            counts_no_ops=protected(mechanism.guarantee.protects, matching).relation == "update",
        )
        self.state: State = mechanism.init(place)  # secret
        self.table = self.records.init()
        self.steps = [0]  # how many are over; all copies share it
        self.pending: list[Changes] = []  # secret: changes since the last step

    @classmethod
    def open(
        cls, mechanism: DynamicMechanism, noise: Noise, name: str, *, matching: str = "ids"
    ) -> LiveTable:
        """An empty table, whose noise has addresses of its own; `name` is part of them.

        Args:
            mechanism: what answers.
            noise: where draws come from.
            name: of the table; two under one noise need two names.
            matching: 'ids' or 'labels': how deletions name records.

        Raises:
            PlanError: the mechanism does not protect such records, or an argument is of another
                kind.
        """
        require_with("mechanism", mechanism, "guarantee", "one such as choose(...).best.mechanism")
        require_with("noise", noise, "secure", "noise such as KeyedNoise.fresh()")
        require_text(name=name)
        return cls(mechanism, matching, Place.opened(noise, "changing table", name.encode()))

    @property
    def t(self) -> int:
        """Steps taken."""
        return self.steps[0]

    def insert(self, label: int, rid: int = 0) -> bool:
        """A record arrives. False: its id is alive or used up, nothing changed.

        Args:
            label: its point, from 0.
            rid: its id, a whole number.

        Raises:
            PlanError: there is no such point, or a number is not whole.
        """
        return bool(self.change(np.array([1]), np.array([rid]), np.array([label]))[0] == BORN)

    def delete(self, rid_or_label: int) -> bool:
        """A record leaves, named by id or (matching labels) by label. False: there is none.

        Args:
            rid_or_label: its id, or the point where labels match.

        Raises:
            PlanError: there is no such point, or it is no whole number.
        """
        one = np.array([rid_or_label])
        return bool(self.change(np.array([-1]), one, one)[0] == GONE)

    def change(
        self, signs: Int64[Array, " n"], ids: Int64[Array, " n"], labels: Int64[Array, " n"]
    ) -> Int64[Array, " n"]:
        """Many updates in order: +1 inserts, -1 deletes.

        Args:
            signs: 1 or -1 for each update.
            ids: the id of each record, whole numbers.
            labels: the point of each record, from 0.

        Raises:
            PlanError: there is no such point, or a number is not whole.
        """
        with self.place.drawn.turn():
            changes, outcome = self.records.step(self.table, signs, ids, labels, self.t + 1)
            self.pending.append(changes)
        return outcome

    def tick(self) -> None:
        """Ends the public step.

        Raises:
            HorizonError: all steps are over; changes since the last one are in no answer then.
            StoreError: an earlier step was cut off, as by Ctrl-C; its answers stay.
        """
        with self.place.drawn.turn():
            self.steps[0] += 1
            pending = together(self.pending)
            self.pending.clear()  # after a broken step they no longer count, in no copy either
            try:
                self.mechanism.step(self.state, pending, self.place)
            except HorizonError:
                self.steps[0] -= 1
                self.pending.append(pending)
                raise

    def answers(self) -> QueryAnswers:
        """The latest answers."""
        return self.mechanism.answers(self.state)

    def query(self, index: int) -> float:
        """One of them; `index`: its number, from 0.

        Raises:
            PlanError: there are not so many.
        """
        return self.answers()(index)

    def error_bound(self, beta: float = 0.05) -> float:
        """The error bound of all queries now, except with probability beta, above 0 and below 1.

        Raises:
            PlanError: beta is beyond its range.
        """
        exact_between("beta", beta, 0, 1)
        return self.mechanism.bound(self.state, beta)

    def privacy(self) -> Guarantee:
        """The guarantee of the table.

        Raises:
            PlanError: the mechanism does not protect such records.
        """
        one = self.mechanism.guarantee
        return replace(one, protects=protected(one.protects, self.records.matching))


def together(parts: list[Changes]) -> Changes:
    """All changes of one step."""
    if not parts:
        return Changes()
    return Changes(
        np.concatenate([EMPTY, *(part.born for part in parts)]),
        np.concatenate([EMPTY, *(part.gone for part in parts)]),
        np.concatenate([EMPTY, *(part.birth for part in parts)]),
        sum(part.updates for part in parts),
    )
