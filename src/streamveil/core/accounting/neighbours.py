"""The protected change: which two inputs nobody may tell apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from fractions import Fraction
from typing import Any, Literal

from streamveil.errors import require_one_of, require_positive
from streamveil.types import Exact

Relation = Literal["add-remove", "change-one", "event", "event-change", "update", "record"]
RELATIONS: tuple[Relation, ...] = (
    "add-remove",  # all rows of one unit present or absent
    "change-one",  # one unit's rows replaced by others; the number of units is public
    "event",  # at one step an item or nothing; arrival times private
    "event-change",  # the item at one step replaced; sizes and arrival times public
    "update",  # one insertion or deletion present or absent
    "record",  # one record with its insertion and, if any, its deletion
)


@dataclass(frozen=True)
class Neighbours:
    """Two streams are neighbours when they differ by one unit in the stated way.

    `bound` is how far one such change can move the input of the mechanism that declares it, in the
    mechanism's own norm (its docstring names it). With a `period`, the unit is a unit-period (a
    user-day): the guarantee holds for each separately and adds up over the periods of one unit.
    Periods of a calendar (months, days of a time zone) have several lengths. Nothing but their
    number in a longer time depends on it, and of periods at least as long as the shortest no more
    fit into any time than of that length.
    """

    unit: str = "row"  # column or phrase naming who is protected
    bound: Exact = 1
    relation: Relation = "add-remove"
    period: timedelta | None = None  # of a calendar, the shortest
    calendar: str = ""  # what a period of a calendar is, in words

    def __post_init__(self) -> None:
        require_positive(bound=self.bound)
        require_one_of("relation", self.relation, RELATIONS)
        if self.period is not None and self.period <= timedelta(0):
            raise ValueError(f"period must be longer than zero, not {self.period}")

    @property
    def verb(self) -> str:
        """What happens to the unit's rows between two neighbours."""
        replaced = self.relation in ("change-one", "event-change")
        return "replacing" if replaced else "adding or removing"

    def covers(self, other: Neighbours) -> bool:
        """Whether both protect the same unit in the same way and period, whatever the bound."""
        return replace(self, bound=1) == replace(other, bound=1)

    @property
    def span(self) -> str:
        """One period in words."""
        return self.calendar or duration(self.period)

    @property
    def each(self) -> str:
        """Every period in words: "each day", "each period of 7 days"."""
        one = self.span.removeprefix("1 ")
        return f"each {one}" if one != self.span else f"each period of {one}"

    @property
    def several(self) -> str:
        """More than one period in words: "days", "periods of 7 days"."""
        name, space, rest = self.span.removeprefix("1 ").partition(" ")
        return f"{name}s{space}{rest}" if self.span.startswith("1 ") else f"periods of {self.span}"

    @property
    def phrase(self) -> str:
        """Who is protected, in words, for `explain`."""
        scope = f" within {self.each}" if self.period else " over the whole stream"
        return {
            "add-remove": f"adding or removing all rows of one {self.unit}{scope}",
            "change-one": f"replacing all rows of one {self.unit}{scope}",
            "event": "adding or removing one event",
            "event-change": "replacing one event",
            "update": "adding or removing one update (an insertion or a deletion)",
            "record": "adding or removing one record with its insertion and deletion",
        }[self.relation]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able record."""
        period = None if self.period is None else self.period // timedelta(microseconds=1)
        saved = {
            "unit": self.unit,
            "bound": str(self.bound),
            "relation": self.relation,
            "period_us": period,
        }
        return saved | ({"calendar": self.calendar} if self.calendar else {})

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Neighbours:
        """The inverse of `to_dict`."""
        us = saved["period_us"]
        period = None if us is None else timedelta(microseconds=us)
        return cls(
            saved["unit"],
            Fraction(saved["bound"]),
            saved["relation"],
            period,
            saved.get("calendar", ""),
        )


def duration(span: timedelta | None) -> str:
    """A time span in words.

    >>> duration(timedelta(days=1)), duration(timedelta(minutes=90)), duration(timedelta(seconds=1))
    ('1 day', '90 minutes', '1 second')
    """
    if span is None:
        return "the whole stream"
    for name, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        count, rest = divmod(span, timedelta(seconds=size))
        if not rest:
            return f"{count} {name}{'s' if count > 1 else ''}"
    return str(span)
