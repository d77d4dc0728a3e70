"""Neighbours, losses, their composition and conversion. Here: the protected change, and budgets."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cache
from math import inf, isfinite, nextafter
from typing import Any, Literal, TypeAlias

import numpy as np

from streamveil.errors import PlanError, fitting, require_one_of, require_positive, whole
from streamveil.types import Array, Exact

Number: TypeAlias = int | float | Fraction | Decimal | str
REALS, KINDS = (float, np.floating), (int, np.integer, float, np.floating, Fraction, Decimal, str)
ANY_NUMBER = "Exact | float"  # the type of a field, as it is written
NULL = " | None"
LONGEST = 10_000  # digits before or after the point; a short text may stand for billions
NUMBERS = ("int", "Exact", "Fraction", ANY_NUMBER)


def exact(name: str, value: Number) -> Fraction:
    """The number a person meant: a float or a text is read as the decimal it prints.

    Numerator and denominator are ints of Python: those of NumPy could wrap around when squared.

    >>> exact("epsilon", 0.1), exact("delta", "1e-9")
    (Fraction(1, 10), Fraction(1, 1000000000))
    >>> exact("mu", Fraction(np.int64(2**33))) ** 2 == 2**66
    True
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, KINDS):
        raise PlanError(f"{name} must be a number, not {type(value).__name__}")
    if isinstance(value, int | np.integer | Fraction):
        parts = value.numerator, value.denominator
        if type(value) is Fraction and {*map(type, parts)} == {int}:
            return value
        return Fraction(*(whole(name, part) for part in parts))
    try:
        decimal = Decimal(repr(float(value)) if isinstance(value, REALS) else value)
        return Fraction(decimal if abs(decimal.adjusted()) <= LONGEST else Decimal("nan"))
    except (InvalidOperation, ValueError, OverflowError):
        raise PlanError(f"{name} must be a finite number in decimals, not {value}") from None


def held(name: str, value: Exact | float) -> Fraction:
    """The number that a machine holds: a float by its binary digits, not by what it prints."""
    real = isinstance(value, REALS) and isfinite(value)
    return Fraction(float(value)) if real else exact(name, value)


def float_above(value: Exact | float) -> float:
    """The least float that is not below a number.

    >>> float_above(Fraction(1, 3)) > Fraction(1, 3) > float_below(Fraction(1, 3)), float_above(2)
    (True, 2.0)
    """
    number = float(value)
    return number if Fraction(number) >= Fraction(value) else nextafter(number, inf)


def float_below(value: Exact | float) -> float:
    """The largest float that is not above a number."""
    number = float(value)
    return number if Fraction(number) <= Fraction(value) else nextafter(number, -inf)


@cache
def numbers_of(kind: Any) -> tuple[tuple[str, str, bool], ...]:
    """The numeric fields of a dataclass: name, type, and whether None is allowed."""
    types = {one.name: str(one.type) for one in fields(kind)}
    found = ((name, of.removesuffix(NULL), of.endswith(NULL)) for name, of in types.items())
    return tuple(one for one in found if one[1] in NUMBERS)


def take_numbers(one: Any) -> None:
    """Converts the numbers of a frozen dataclass to Python's own, by the types of its fields.

    In an exact field, a float is read as the decimal that it prints.

    Raises:
        PlanError: a value is not a number, or not whole where it must be.
    """
    for name, kind, may_be_none in numbers_of(one.__class__):
        value = getattr(one, name)
        if type(value) is int or (value is None and may_be_none):
            continue
        if kind == "int":
            value = whole(name, value)
        elif kind == ANY_NUMBER and isinstance(value, REALS):
            value = float(value)
        else:
            value = exact(name, value)
        object.__setattr__(one, name, value)


def exact_between(name: str, value: Number, low: Fraction | int, high: Fraction | int) -> Fraction:
    """The number that `exact` reads, if it lies strictly between the two ends."""
    number = exact(name, value)
    if not low < number < high:
        raise PlanError(f"{name} must be above {low} and below {high}, not {value}")
    return number


BITS = 24  # where processors differ by one in 2^50, one number in 2^26 still differs


def portable(values: Array | float, bits: int = BITS) -> Array:
    """The values rounded to `bits` significant binary digits: the same on every processor.

    Additions, products, quotients and square roots have the same bits everywhere; `exp`, `log`,
    powers and products of matrices do not: they use the processor's vector instructions, and the
    last digits differ. Results of these that decide what a job publishes are rounded to the digits
    that agree, so that a job can continue on another machine.

    >>> float(portable(0.1, 8)), float(portable(3.0))
    (0.10009765625, 3.0)
    """
    parts, powers = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(parts, bits)), powers - bits))


@dataclass(frozen=True, init=False)
class Budget:
    """The most that one privacy unit may lose to everything published. No defaults.

    Either (epsilon, delta); or epsilon alone (pure); or rho (zCDP); or mu (GDP). With rho or mu a
    delta may be added: it pays for what is not zCDP or GDP, such as the threshold of discovered
    keys. Floats are read as the decimals they print, so Budget(epsilon=0.3) is exactly 3/10.

    Args:
        epsilon: the privacy loss, above 0.
        delta: the probability that epsilon does not hold, between 0 and 1.
        rho: the loss in zero-concentrated differential privacy, above 0.
        mu: the loss in Gaussian differential privacy, above 0.

    Raises:
        PlanError: none or several of epsilon, rho and mu are given, or one is out of range.
        PlanError: an argument is missing or unknown; the message shows a call that works.

    >>> Budget(epsilon=6, delta=1e-9)
    Budget(epsilon=6, delta=1e-09)
    >>> Budget(epsilon=0)
    Traceback (most recent call last):
    ...
    streamveil.errors.PlanError: epsilon must be above 0 and below 1000000, not 0
    """

    epsilon: Fraction | None
    delta: Fraction | None
    rho: Fraction | None
    mu: Fraction | None

    @fitting("Budget(epsilon=1, delta=1e-9), or rho=..., or mu=...")
    def __init__(
        self,
        *,
        epsilon: Number | None = None,
        delta: Number | None = None,
        rho: Number | None = None,
        mu: Number | None = None,
    ) -> None:
        given = {"epsilon": epsilon, "rho": rho, "mu": mu}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            fault = f"not {' and '.join(names)} together" if names else "none was given"
            raise PlanError(f"a budget is epsilon (with or without delta), rho or mu; {fault}")
        for name, value in given.items():
            number = None if value is None else exact_between(name, value, 0, 10**6)
            object.__setattr__(self, name, number)
        share = None if delta is None else exact_between("delta", delta, 0, 1)
        object.__setattr__(self, "delta", share)

    @property
    def quoted_delta(self) -> Fraction:
        """The delta at which losses are shown as an epsilon: its own, else 1e-9."""
        return self.delta or Fraction(1, 10**9)

    @property
    def is_pure(self) -> bool:
        """Whether only pure epsilon differential privacy fits."""
        return self.epsilon is not None and self.delta is None

    def __repr__(self) -> str:
        return f"Budget({self})"

    def __str__(self) -> str:
        named = {"epsilon": self.epsilon, "rho": self.rho, "mu": self.mu, "delta": self.delta}
        return ", ".join(f"{k}={float(v):.12g}" for k, v in named.items() if v is not None)

    def to_dict(self) -> dict[str, str]:
        """Exact numbers as text, for durable records."""
        named = {"epsilon": self.epsilon, "delta": self.delta, "rho": self.rho, "mu": self.mu}
        return {name: str(value) for name, value in named.items() if value is not None}

    @classmethod
    def from_dict(cls, saved: dict[str, str]) -> Budget:
        """The inverse of `to_dict`.

        Args:
            saved: the amounts as text, by name.
        """
        return cls(**{name: Fraction(value) for name, value in saved.items()})


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
    Periods of a calendar (months, days of a time zone) vary in length. That matters only for how
    many of them a longer time holds: no more than it would hold of the shortest. Periods that begin
    at other times are different periods, whatever their length: each overlaps two of the first
    kind, so that losses of both kinds do not add up period by period.
    """

    unit: str = "row"  # column or phrase naming who is protected
    bound: Exact = 1
    relation: Relation = "add-remove"
    period: timedelta | None = None  # of a calendar, the shortest
    calendar: str = ""  # what a period of a calendar is, in words
    begins: str = ""  # what clocks show where one begins, where none begins with 1970

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(bound=self.bound)
        require_one_of("relation", self.relation, RELATIONS)
        if not all(isinstance(text, str) for text in (self.unit, self.calendar, self.begins)):
            raise PlanError("unit, calendar and begins must be texts, such as unit='user_id'")
        long = isinstance(self.period, timedelta) and self.period > timedelta(0)
        if not (long or self.period is None):
            raise PlanError(f"period must be longer than zero, a timedelta, not {self.period}")

    @property
    def verb(self) -> str:
        """What happens to the unit's rows between two neighbours."""
        return "replacing" if "change" in self.relation else "adding or removing"

    def covers(self, other: Neighbours) -> bool:
        """Whether both protect the same unit in the same way and periods, whatever the bound."""
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
        scope += f", one of which begins at {self.begins}" if self.begins else ""
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
        words = {"calendar": self.calendar, "begins": self.begins}
        return saved | {name: said for name, said in words.items() if said}

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
            saved.get("begins", ""),
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
