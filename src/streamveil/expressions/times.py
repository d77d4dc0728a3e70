"""Calendar arithmetic on whole columns, in UTC or by the clocks of a named time zone.

Times are microseconds since 1970 and dates are days; every function is total (see `kernels`). As in
GoogleSQL a time lies in the years 1 to 9999: others, given or computed, are null.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.calendars import begin_of_month, months_of, rules_of
from streamveil.errors import PlanError, nearest
from streamveil.expressions.kernels import (
    AFTER_US,
    DAY_US,
    FIRST_US,
    INSTANT,
    Column,
    dense,
    from_micros,
    from_numpy,
)
from streamveil.types import Array

UNIT_US = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": DAY_US,
    "WEEK": 7 * DAY_US,
}
UNIT_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
WEEKDAYS = ("SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY", "THURSDAY", "FRIDAY", "SATURDAY")
TRUNC_UNITS = (*UNIT_US, *UNIT_MONTHS, "ISOWEEK", *(f"WEEK({day})" for day in WEEKDAYS))
SPAN_US = AFTER_US - FIRST_US
TOO_LONG = "the interval is longer than all years from 1 to 9999"


def micros(column: Column) -> tuple[Array, Array]:
    """Microseconds since 1970 of a timestamp or date column, and which rows hold one."""
    values, ok = dense(column)
    scale = DAY_US if pa.types.is_date32(column.type) else 1
    near = (values >= FIRST_US // scale) & (values < AFTER_US // scale)
    return np.where(near, values, 0) * scale, ok & near


def of_micros(function: Callable[[Array], Array], kind: Any = None) -> Callable[[Column], Column]:
    """A function of microseconds, over columns of times.

    `kind`: the Arrow type of the result; None: that of the column. For a time or a date, the
    function gives microseconds.
    """

    def run(column: Column) -> Column:
        values, ok = micros(column)
        made, found = column.type if kind is None else kind, function(values)
        return (from_micros if pa.types.is_temporal(made) else from_numpy)(found, ok, made)

    return run


to_date = of_micros(lambda us: us, pa.date32())
"""The UTC day of a timestamp."""
to_instant = of_micros(lambda us: us, INSTANT)
"""Midnight UTC of a date."""


def on_clocks(zone: str) -> Callable[[Column], Column]:
    """The time that the clocks of a zone show at each time, as if it were UTC."""
    return of_micros(rules_of(zone).shown, INSTANT)


def on_calendar(zone: str) -> Callable[[Column], Column]:
    """The day by the clocks of a zone."""
    clocks = on_clocks(zone)
    return lambda column: to_date(clocks(column))


def truncate_on_clocks(unit: str, zone: str) -> Callable[[Column], Column]:
    """Start of the unit by the clocks of a zone; days and longer units begin as windows (`Cells`).

    Below a day, the time since the unit's start is read off the clocks: an hour that is shown twice
    is two hours.
    """
    plain, rules = truncate(unit), rules_of(zone)
    short = UNIT_US.get(unit, DAY_US) < DAY_US

    def run(column: Column) -> Column:
        values, ok = micros(column)
        clock = rules.shown(values) if short else rules.passed(values)
        start, fits = micros(plain(from_micros(clock, ok)))
        moved = values - (clock - start) if short else rules.instants(start)
        return from_micros(moved, ok & fits)

    return run


def truncate(unit: str) -> Callable[[Column], Column]:
    """Start of the unit that holds each time; weeks start on Sunday unless said otherwise."""
    if unit in UNIT_MONTHS:
        return of_micros(partial(_month_floor, count=UNIT_MONTHS[unit]))
    if unit in UNIT_US and unit != "WEEK":
        return of_micros(lambda us: us // UNIT_US[unit] * UNIT_US[unit])
    if unit == "ISOYEAR":
        return of_micros(_iso_year_start)
    if unit not in TRUNC_UNITS:
        raise PlanError(f"unknown time unit '{unit[:20]}'{nearest(unit, TRUNC_UNITS[:10])}")
    shift = (first_day(unit) - 4) * DAY_US  # 1970-01-01 was a Thursday
    return of_micros(lambda us: (us - shift) // UNIT_US["WEEK"] * UNIT_US["WEEK"] + shift)


def first_day(unit: str) -> int:
    """The first weekday of a kind of week, counted from Sunday."""
    if unit == "ISOWEEK":
        return WEEKDAYS.index("MONDAY")
    return WEEKDAYS.index(unit[5:-1]) if unit.startswith("WEEK(") else 0


def _iso_year_start(values: Array) -> Array:
    """The Monday with which the first ISO week of a time's ISO year begins."""
    fourth = _year_start(_iso_thursday(values)) // DAY_US + 3  # January 4 is in week 1
    return np.asarray((fourth - (fourth + 3) % 7) * DAY_US)


def _month_floor(values: Array, count: int) -> Array:
    """The start of the first of `count` months that hold each time."""
    return begin_of_month(months_of(values) // count * count)


def shift_by(amount: int, unit: str) -> Callable[[Column], Column]:
    """Adds `amount` units; a day that the target month lacks becomes its last day."""
    if unit in UNIT_US:
        step = amount * UNIT_US[unit]
        if abs(step) >= SPAN_US:
            raise PlanError(TOO_LONG)
        return of_micros(lambda us: us + step)
    if unit in UNIT_MONTHS:
        months = amount * UNIT_MONTHS[unit]
        if abs(months) >= 12 * 9_999:
            raise PlanError(TOO_LONG)
        return of_micros(partial(_months_on, count=months))
    raise PlanError(f"unknown time unit '{unit[:20]}'{nearest(unit, (*UNIT_US, *UNIT_MONTHS))}")


def _months_on(values: Array, count: int) -> Array:
    """The same day and time, `count` months on."""
    months = months_of(values)
    within = values - begin_of_month(months)
    start, after = begin_of_month(months + count), begin_of_month(months + count + 1)
    day = np.minimum(within // DAY_US, (after - start) // DAY_US - 1)
    return np.asarray(start + day * DAY_US + within % DAY_US)


def extract(part: str) -> Callable[[Column], Column]:
    """EXTRACT(part FROM time) as an integer."""
    if part not in PARTS:
        raise PlanError(f"unknown part '{part[:20]}' in EXTRACT{nearest(part, PARTS)}")
    return of_micros(PARTS[part], pa.int64())


def _year_start(values: Array) -> Array:
    return _month_floor(values, 12)


def _iso_thursday(values: Array) -> Array:
    """The Thursday of the week that starts on Monday."""
    days = values // DAY_US
    return np.asarray((days - (days + 3) % 7 + 3) * DAY_US)


def _day_of_year(values: Array) -> Array:
    return (values - _year_start(values)) // DAY_US


def _week_from(first: int) -> Callable[[Array], Array]:
    """The week of the year, for weeks that begin with the weekday `first` (from Sunday)."""
    return lambda us: (_day_of_year(us) + 7 - (us // DAY_US + 4 - first) % 7) // 7


PARTS: dict[str, Callable[[Array], Array]] = {
    "YEAR": lambda us: months_of(us) // 12 + 1970,
    "QUARTER": lambda us: months_of(us) % 12 // 3 + 1,
    "MONTH": lambda us: months_of(us) % 12 + 1,
    "DAY": lambda us: (us - begin_of_month(months_of(us))) // DAY_US + 1,
    "DAYOFYEAR": lambda us: _day_of_year(us) + 1,
    "DAYOFWEEK": lambda us: (us // DAY_US + 4) % 7 + 1,  # Sunday is 1
    "ISOYEAR": lambda us: months_of(_iso_thursday(us)) // 12 + 1970,
    "ISOWEEK": lambda us: _day_of_year(_iso_thursday(us)) // 7 + 1,
    "WEEK": _week_from(0),  # 0 before the year's first Sunday
    **{f"WEEK({day})": _week_from(place) for place, day in enumerate(WEEKDAYS)},
    "HOUR": lambda us: us // UNIT_US["HOUR"] % 24,
    "MINUTE": lambda us: us // UNIT_US["MINUTE"] % 60,
    "SECOND": lambda us: us // UNIT_US["SECOND"] % 60,
    "MILLISECOND": lambda us: us // 1_000 % 1_000,
    "MICROSECOND": lambda us: us % 1_000_000,
}


def difference(unit: str, *, borders: bool) -> Callable[[Column, Column], Column]:
    """DATE_DIFF, DATETIME_DIFF (borders of units crossed) or TIMESTAMP_DIFF (whole units)."""
    known = (*TRUNC_UNITS, "ISOYEAR") if borders else tuple(UNIT_US)[:-1]
    if unit not in known:
        raise PlanError(f"unknown unit '{unit[:20]}' of a difference{nearest(unit, known)}")

    def run(left: Column, right: Column) -> Column:
        (a, a_ok), (b, b_ok) = micros(left), micros(right)
        if unit in UNIT_MONTHS:
            count = UNIT_MONTHS[unit]
            gap = months_of(a) // count - months_of(b) // count
        elif unit == "ISOYEAR":
            gap = PARTS[unit](a) - PARTS[unit](b)
        elif unit not in UNIT_US or unit == "WEEK":
            first = 4 - first_day(unit)
            gap = (a // DAY_US + first) // 7 - (b // DAY_US + first) // 7
        elif borders:
            gap = a // UNIT_US[unit] - b // UNIT_US[unit]
        else:
            whole = a - b
            gap = np.abs(whole) // UNIT_US[unit] * np.sign(whole)
        return from_numpy(gap, a_ok & b_ok, pa.int64())

    return run


def move_days(sign: int) -> Callable[[Column, Column], Column]:
    """A date plus or minus a number of days."""

    def run(dates: Column, days: Column) -> Column:
        (values, ok), (count, there) = micros(dates), dense(days)
        near = np.abs(count) < SPAN_US // DAY_US
        moved = values + sign * np.where(near, count, 0) * DAY_US
        return from_micros(moved, ok & there & near, dates.type)

    return run


def from_days(column: Column) -> Column:
    """The date of a number of days since 1970-01-01."""
    return to_date(from_epoch(DAY_US)(column))


def from_epoch(scale: int) -> Callable[[Column], Column]:
    """TIMESTAMP_SECONDS, _MILLIS, _MICROS: integer to time."""

    def run(column: Column) -> Column:
        values, ok = dense(column)
        near = (values > -(SPAN_US // scale)) & (values < SPAN_US // scale)
        return from_micros(np.where(near, values, 0) * scale, ok & near)

    return run


def to_epoch(scale: int) -> Callable[[Column], Column]:
    """UNIX_SECONDS, _MILLIS, _MICROS, UNIX_DATE: time to integer, rounded down."""
    return of_micros(lambda us: us // scale, pa.int64())
