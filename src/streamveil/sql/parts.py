"""What both spellings share: durations, aggregates, clocks, and one way to finish a plan.

SQL and Python differ in how a query is written and in nothing else: both end in `finish`, which
puts every text into its canonical form, fills what follows from other parts, and checks the plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from streamveil.calendars import DAY, LAST_DAY, clock_of, day_of_month, instant_of
from streamveil.errors import PlanError, got, nearest, require_text
from streamveil.expressions import conjunction, may_leave_out, normalize_expression, times
from streamveil.kinds import AGGREGATES
from streamveil.plan import Aggregate, Clock, KeyColumn, Plan, TableSource, Window
from streamveil.plan.check import check_plan
from streamveil.types import own

UNIT_MONTHS = {unit.lower(): months for unit, months in times.UNIT_MONTHS.items()}
WEEKDAYS = (*map(str.lower, times.WEEKDAYS[1:]), "sunday")
MONDAY = 4  # days from 1970-01-01, a Thursday, to the first Monday
MOST_MONTHS = 12 * 100
UNIT_US = {unit.lower(): us for unit, us in times.UNIT_US.items()}
SHORT = {"us": "microsecond", "ms": "millisecond", "s": "second", "sec": "second", "m": "minute",
         "min": "minute", "h": "hour", "hr": "hour", "d": "day", "w": "week",
         "mo": "month", "q": "quarter", "y": "year"}  # fmt: skip
_PIECE = re.compile(r"\s*(\d{1,15})\s*([A-Za-z]+)\s*(?:,|and)?\s*")

Duration = str | timedelta
Instant = str | datetime


class Length(NamedTuple):
    """A length of time as it is written: a number of microseconds, or of months."""

    us: int = 0
    months: int = 0
    weeks: bool = False  # written in weeks, which begin on Mondays


def length_of(value: Duration, what: str = "a duration") -> Length:
    """The length of '1 month', '2 weeks', '15 min' or a timedelta.

    >>> length_of("1 quarter"), length_of("1 week") == length_of("7 days")
    (Length(us=0, months=3, weeks=False), False)
    """
    pieces = _pieces(value, what) if isinstance(value, str) else []
    months = [count * UNIT_MONTHS[unit] for count, unit in pieces if unit in UNIT_MONTHS]
    if not months:
        return Length(duration_us(value, what), weeks={unit for _, unit in pieces} == {"week"})
    if len(months) < len(pieces):
        raise PlanError(f"{what} mixes months with lengths of hours or days: '{str(value)[:40]}'")
    return Length(months=require_months(sum(months), what))


def require_months(months: int, what: str) -> int:
    """The number of months, if a calendar cell may have it; else PlanError."""
    if not 1 <= months <= MOST_MONTHS:
        raise PlanError(f"{what} must be between 1 month and 100 years, not {months} months")
    return months


def origin_us(
    length: Length,
    *,
    origin: Instant | None = None,
    offset: Duration | int | None = None,
    week_start: str | None = None,
) -> int:
    """The clock time at which windows begin: midnight of 1970-01-01, or of a Monday for weeks."""
    if week_start is not None and (not length.weeks or origin is not None):
        raise PlanError(
            "week_start goes with a size in weeks (1 week, not 7 days), and without an origin"
        )
    first = MONDAY * DAY if length.weeks else 0
    if week_start is not None:
        if str(week_start).lower() not in WEEKDAYS:
            raise PlanError(f"unknown week_start{nearest(str(week_start)[:20], WEEKDAYS)}")
        first = (MONDAY + WEEKDAYS.index(week_start.lower())) * DAY
    if origin is not None:
        moment = moment_of(origin, "origin")
        if moment.tzinfo is not None:
            raise PlanError(
                "origin is what the clocks of the time zone show: give it without an offset"
            )
        first = instant_us(moment, "origin")
    if offset is not None:
        first += offset if isinstance(offset, int) else duration_us(offset, "offset")
    if length.months and day_of_month(first) > LAST_DAY:
        raise PlanError(
            f"windows of months begin on a day up to {LAST_DAY}, which every month has.\n"
            "  to fix  another origin or offset"
        )
    return first % length.us if length.us else first


def window_of(
    kind: str, size: Length, second: Length | None = None, zone: str = "", **placed: Any
) -> Window:
    """Windows of a size that begin (or grow) every `second`; `placed`: see `origin_us`."""
    require_text(tz=zone)
    if second is not None and bool(second.months) != bool(size.months) and kind != "cumulate":
        raise PlanError(
            "size and slide are both in months, or both in weeks, days and hours: a row would "
            "count in windows of a number that changes"
        )
    begin = second if kind == "hop" and second is not None and second.weeks else size
    slide = second or Length()
    return Window(
        kind=kind,  # type: ignore[arg-type]  # from `scope.WINDOWS` or the builder
        size_us=size.us,
        slide_us=slide.us,
        size_months=size.months,
        slide_months=slide.months,
        zone=zone,
        origin_us=origin_us(begin, **placed),
    )


def duration_us(value: Duration, what: str = "a duration") -> int:
    """Microseconds of '15 min', '1 day', '1 hour 30 minutes' or a timedelta; above zero.

    >>> duration_us("15 min"), duration_us("1 day") == duration_us("24 hours")
    (900000000, True)
    """
    if isinstance(value, timedelta):
        total = value // timedelta(microseconds=1)
    elif isinstance(value, str):
        total = _spelled(value, what)
    else:
        raise PlanError(f"{what} must be a text such as '15 min' or a timedelta, not {got(value)}")
    if not 0 < total < 2**62:
        raise PlanError(
            f"{what} must be longer than zero and shorter than 100,000 years, not '{value}'"
        )
    return total


def _spelled(text: str, what: str) -> int:
    total = 0
    for count, unit in _pieces(text, what):
        if unit not in UNIT_US:
            raise PlanError(f"{what}: a {unit} has no fixed length; use days or weeks")
        total += count * UNIT_US[unit]
    return total


def _pieces(text: str, what: str) -> list[tuple[int, str]]:
    """Numbers and units of a length, in order."""
    found: list[tuple[int, str]] = []
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise PlanError(f"{what} must read like '15 min' or '1 day', not '{text[:40]}'")
        word = piece[2].lower()
        unit = SHORT.get(word, word.removesuffix("s"))
        if unit not in UNIT_US and unit not in UNIT_MONTHS:
            known = (*UNIT_US, *UNIT_MONTHS)
            raise PlanError(f"{what} has an unknown unit '{word[:20]}'{nearest(word, known)}")
        found.append((int(piece[1]), unit))
        at = piece.end()
    return found


def instant_us(value: Instant, what: str, zone: str = "") -> int:
    """Microseconds since 1970 of an ISO 8601 text or a datetime, in the zone if without offset."""
    value = moment_of(value, what)
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    found = (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return found if value.tzinfo else instant_of(found, zone)


def make_aggregate(
    name: str,
    function: str,
    expression: str | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    quantum: float | None = None,
    options: Mapping[str, Any] | None = None,
) -> Aggregate:
    """One aggregate in canonical form."""
    if function not in AGGREGATES:
        raise PlanError(f"unknown aggregate '{function}'{nearest(function, AGGREGATES)}")
    if not isinstance(name, str) or not name:
        raise PlanError(f"an output column of {function} needs a name")
    low, high = (None, None) if bounds is None else _pair(name, bounds)
    return Aggregate(
        name=name,
        function=function,  # type: ignore[arg-type]  # checked above
        expression=None if expression is None else normalize_expression(expression),
        low=low,
        high=high,
        quantum=None if quantum is None else real_number(quantum, f"quantum of '{name}'"),
        options=dict(options or {}),
    )


def _pair(name: str, bounds: Any) -> tuple[float, float]:
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise PlanError(f"bounds of '{name}' must be a pair (low, high), such as (0, 60)")
    return real_number(bounds[0], f"low of '{name}'"), real_number(bounds[1], f"high of '{name}'")


def real_number(value: Any, what: str) -> float:
    """A float from any class of numbers; PlanError for anything else."""
    number = own(value)
    if type(number) not in (int, float, Fraction, Decimal):
        raise PlanError(f"{what} must be a number, not {got(value)}")
    try:
        return float(number)
    except (OverflowError, ValueError):
        raise PlanError(f"{what} must be between -1.8e308 and 1.8e308, and is not") from None


def moment_of(value: object, what: str) -> datetime:
    """The time of an ISO 8601 text or a datetime."""
    found = value
    if isinstance(value, str):
        with suppress(ValueError):
            found = datetime.fromisoformat(value)
    if not isinstance(found, datetime) or found != found:  # NaT of pandas
        raise PlanError(f"{what} must be a time such as '2026-01-31 12:00:00', not {got(value)}")
    return found


@dataclass(frozen=True, kw_only=True)
class Ticks:
    """When releases happen, as a query states it: EMIT EVERY (`every=`) and options about time."""

    every_us: int | None = None
    months: int | None = None  # instead of every_us
    zone: str = ""  # time zone of start, end and days
    rows: int | None = None
    kind: str | None = None  # 'event' or 'wall'
    start: Instant | None = None
    end: Instant | None = None
    steps: int | str | None = None  # a number or 'unbounded'
    arrival: str | None = None
    unbounded: bool = False  # the source never ends

    def clock(self) -> Clock:
        """The clock that these settings describe."""
        whole = isinstance(self.steps, int) and not isinstance(self.steps, bool)
        if self.steps is not None and not whole and not self.endless:
            raise PlanError(f"steps is a whole number or 'unbounded', not {got(self.steps)}")
        if self.every_us is None and self.months is None and self.rows is None:
            return self._once()
        if self.rows is not None:
            return self._by_rows()
        return self._by_time(self.kind or ("wall" if self.unbounded else "event"))

    @property
    def endless(self) -> bool:
        """Whether the query asks for counters without a horizon."""
        return isinstance(self.steps, str) and self.steps == "unbounded"

    @property
    def _horizon(self) -> int | None:
        return self.steps if isinstance(self.steps, int) else None

    def _once(self) -> Clock:
        for name in ("start", "end", "steps", "arrival", "kind"):
            if getattr(self, name) is not None:
                raise PlanError(
                    f"'{'clock' if name == 'kind' else name}' belongs to a continual query, but "
                    "there is no EMIT EVERY (in Python every=)"
                )
        return Clock(kind="once")

    def _by_rows(self) -> Clock:
        if self.kind is not None or self.start is not None or self.end is not None:
            raise PlanError("EMIT EVERY n ROWS counts source rows; it takes no start, end or clock")
        return Clock(kind="rows", every=self.rows or 0, steps=self._horizon, arrival=self.arrival)

    def _by_time(self, kind: str) -> Clock:
        if kind not in ("event", "wall"):
            raise PlanError(f"clock is 'event' or 'wall'{nearest(kind[:20], ['event', 'wall'])}")
        start = None if self.start is None else instant_us(self.start, "start", self.zone)
        end = None if self.end is None else instant_us(self.end, "end", self.zone)
        if start is not None and end is not None and end <= start:
            raise PlanError(
                f"end ({self.end}) must be later than start ({self.start}): a release needs time "
                "between them"
            )
        clock = Clock(
            kind="event" if kind == "event" else "wall",
            every=self.every_us or 0,
            months=self.months or 0,
            zone=self.zone,
            start_us=start,
            end_us=end,
            steps=self._horizon,
            arrival=self.arrival,
        )
        return clock if start is None or not (clock.every > 0 or clock.months) else ends(clock)


def ends(clock: Clock) -> Clock:
    """The clock with both its end and its number of steps, if one follows from the other."""
    start, end, steps = clock.start_us or 0, clock.end_us, clock.steps
    if clock.months and day_of_month(clock_of(start, clock.zone)) > LAST_DAY:
        raise PlanError(
            f"releases every so many months start on a day up to {LAST_DAY}, which every month has"
        )
    if clock.ticks.start(0) != start:
        raise PlanError(
            f"the clocks of {clock.zone} show the time of start twice, and this is the first.\n"
            "  to fix  a start at another time of the day"
        )
    if end is None and steps is not None and clock.kind == "event":
        return replace(clock, end_us=clock.due_us(steps))
    if end is not None and steps is None:
        return replace(clock, steps=clock.steps_until(end))
    if end is not None and steps is not None and end != clock.due_us(steps):
        raise PlanError("start, end and steps disagree; give two of the three")
    return clock


def quoted(column: str) -> str:
    """A column name as an expression."""
    if not isinstance(column, str) or not column:
        raise PlanError(
            f"a column must be named by a text, as in group_by('url', 'country'), not {got(column)}"
        )
    return "`" + column.replace("\\", "\\\\").replace("`", "\\`") + "`"


def without_idle_rows(plan: Plan) -> Plan:
    """The plan without rows that add to no answer, which would use up the bounds of their units.

    It applies if IF or CASE may leave out the value of every aggregate, as in COUNTIF, and only
    with public groups or without groups: SQL shows a group that has only such rows, and its units
    would not be counted.

    Proof: a row's own values decide, before bounding, as those of a WHERE by the query do.
    """
    known = plan.key_set.public is not None or not plan.keys
    other = (
        plan.preset != "default" or plan.bounding.combine or isinstance(plan.source, TableSource)
    )
    texts = [one.expression or "" for one in plan.aggregates]
    if other or not known or not (texts and all(map(may_leave_out, texts))):
        return plan
    some = " OR ".join(f"(({text}) IS NOT NULL)" for text in dict.fromkeys(texts))
    return replace(plan, where=conjunction([*([plan.where] if plan.where else []), some]))


def finish(plan: Plan) -> Plan:
    """The plan in canonical form, checked. Raises PlanError."""
    plan = without_idle_rows(plan)
    done = replace(
        plan,
        unit=normalize_expression(plan.unit) if plan.unit else "",
        where=None if plan.where is None else conjunction([plan.where]),
        keys=tuple(
            KeyColumn(name=key.name, expression=normalize_expression(key.expression))
            for key in plan.keys
        ),
        options=dict(sorted(plan.options.items())),
    )
    if isinstance(plan.source, TableSource):
        from streamveil.sql.table_check import check_table  # only for changing tables

        check_table(done)
    else:
        check_plan(done)
    kept = {name: value for name, value in done.options.items() if name != "horizon"}
    return replace(done, options=kept)  # only the checks read the others
