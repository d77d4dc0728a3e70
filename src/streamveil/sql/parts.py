"""What both spellings share: durations, aggregates, clocks, and one way to finish a plan.

SQL and Python differ in how a query is written and in nothing else: both end in `finish`, which
puts every text into its canonical form, fills what follows from other parts, and checks the plan.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from streamveil.errors import PlanError, nearest
from streamveil.expressions.expr import conjunction, normalize_expression
from streamveil.plan import options
from streamveil.plan.check import check_plan
from streamveil.plan.plan import Aggregate, Clock, Function, KeyColumn, Plan, TableSource
from streamveil.sql.table_check import check_table

UNIT_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
SHORT = {"us": "microsecond", "ms": "millisecond", "s": "second", "sec": "second", "m": "minute",
         "min": "minute", "h": "hour", "hr": "hour", "d": "day", "w": "week"}  # fmt: skip
_PIECE = re.compile(r"\s*(\d{1,15})\s*([A-Za-z]+)\s*(?:,|and)?\s*")

# options that only the validator reads: once allowed, they change nothing
SAID = frozenset({
    *map(str, options.HABITUAL), options.RERUN.name, options.PUBLIC_SIZE.name,
    "budget_refresh_us", "horizon",
})  # fmt: skip

Duration = str | timedelta
Instant = str | datetime


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
        raise PlanError(f"{what} must be a text such as '15 min' or a timedelta")
    if not 0 < total < 2**62:
        raise PlanError(
            f"{what} must be longer than zero and shorter than 100,000 years, not '{value}'"
        )
    return total


def _spelled(text: str, what: str) -> int:
    total, at = 0, 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None:
            raise PlanError(f"{what} must read like '15 min' or '1 day', not '{text[:40]}'")
        word = piece[2].lower()
        unit = SHORT.get(word, word.removesuffix("s"))
        if unit not in UNIT_US:
            raise PlanError(f"{what} has an unknown unit '{word[:20]}'{nearest(word, UNIT_US)}")
        total, at = total + int(piece[1]) * UNIT_US[unit], piece.end()
    return total


def instant_us(value: Instant, what: str) -> int:
    """Microseconds since 1970 of an ISO 8601 text or a datetime (without a zone: UTC)."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise PlanError(f"{what} must be a time such as '2026-01-31 12:00:00'") from None
    if not isinstance(value, datetime):
        raise PlanError(f"{what} must be a time such as '2026-01-31 12:00:00'")
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


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
    if function not in get_args(Function):
        known = get_args(Function)
        raise PlanError(f"unknown aggregate '{function}'{nearest(function, known)}")
    if not isinstance(name, str) or not name:
        raise PlanError(f"an output column of {function} needs a name")
    low, high = (None, None) if bounds is None else _pair(name, bounds)
    return Aggregate(
        name=name,
        function=function,  # type: ignore[arg-type]  # checked above
        expression=None if expression is None else normalize_expression(expression),
        low=low,
        high=high,
        quantum=None if quantum is None else _number(quantum, f"quantum of '{name}'"),
        options=dict(options or {}),
    )


def _pair(name: str, bounds: Any) -> tuple[float, float]:
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise PlanError(f"bounds of '{name}' must be a pair (low, high), such as (0, 60)")
    return _number(bounds[0], f"low of '{name}'"), _number(bounds[1], f"high of '{name}'")


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlanError(f"{what} must be a number, not {type(value).__name__}")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class Ticks:
    """When releases happen, as a query says it: EMIT EVERY (`every=`) and options about time."""

    every_us: int | None = None
    rows: int | None = None
    kind: str | None = None  # 'event' or 'wall'
    start: Instant | None = None
    end: Instant | None = None
    steps: int | str | None = None  # a number or 'unbounded'
    arrival: str | None = None
    unbounded: bool = False  # the source never ends

    def clock(self) -> Clock:
        """The clock these words describe."""
        whole = isinstance(self.steps, int) and not isinstance(self.steps, bool)
        if self.steps is not None and not whole and not self.endless:
            raise PlanError("steps is a whole number or 'unbounded'")
        if self.every_us is None and self.rows is None:
            return self._once()
        if self.rows is not None:
            return self._by_rows()
        return self._by_time(self.kind or ("wall" if self.unbounded else "event"))

    @property
    def endless(self) -> bool:
        """Whether the query asks for counters without a horizon."""
        return self.steps == "unbounded"

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
        every, steps = self.every_us or 0, self._horizon
        start = None if self.start is None else instant_us(self.start, "start")
        end = None if self.end is None else instant_us(self.end, "end")
        if start is not None and end is not None and end <= start:
            raise PlanError(
                f"end ({self.end}) must be later than start ({self.start}): a release needs time "
                "between them"
            )
        if start is not None and every > 0:
            if end is None and steps is not None and kind == "event":
                end = start + steps * every
            elif end is not None and steps is None:
                steps = -((start - end) // every)
            elif end is not None and steps is not None and end != start + steps * every:
                raise PlanError("start, end and steps disagree; give two of the three")
        return Clock(
            kind="event" if kind == "event" else "wall",
            every=every,
            start_us=start,
            end_us=end,
            steps=steps,
            arrival=self.arrival,
        )


def finish(plan: Plan) -> Plan:
    """The plan in canonical form, checked. Raises PlanError."""
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
    check = check_table if isinstance(plan.source, TableSource) else check_plan
    check(done)
    decided = {name: value for name, value in done.options.items() if name not in SAID}
    return replace(done, options=decided)
