"""Event time, windows and triggers: public arithmetic on each row alone.

Which windows a row counts in, which trigger of a window a step is and when a window closes follow
from the query, the row's own event time and the public number of the step. No row can move
another's window, and the largest event time seen plays no part (a watermark made of it would let
one person's clock drop other people's rows).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from math import gcd

import numpy as np

from streamveil.batch import RejectNotes
from streamveil.calendars import (
    END_US,
    Cells,
    begins_days,
    clock_of,
    common,
    instant_named,
    name_of,
    never_meet,
)
from streamveil.core.accounting import Neighbours
from streamveil.dataflow import repeated
from streamveil.errors import PlanError
from streamveil.release_metadata import ReleaseTime, kept_time
from streamveil.types import Array, Bool, Int64

LATE, EARLY = "late", "early"
MOST_WINDOWS = 4_000_000  # of a calendar, that are checked one by one
MOST_NAMES = 64  # of windows, that are cached
Numbers = Int64[Array, " windows"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The calendar of a job: public steps, and windows made of cells of a grid.

    Step i ends where cell i of `steps_of` begins, and step 1 begins where cell 0 does. A window
    [a, b) is released at every step that ends after a, up to the first that ends at or after
    b + lateness_us; those steps are its triggers 1..T. Window w is the `parts` cells from cell
    w * stride on. With `spans` windows cumulate: window w goes from the begin of the span that
    holds cell w to the end of that cell. Without cells the whole stream is one window that never
    ends and is released at every step.

    >>> day = Schedule(ticks=Cells(length_us=6), cells=Cells(length_us=24))
    >>> day.first_step(1), day.last_step(1), day.triggers
    (5, 8, 4)
    >>> day.active(5), day.trigger(1, 6)
    ((1,), 2)
    """

    ticks: Cells | None = None  # steps; None: they have no time of their own
    cells: Cells | None = None  # what windows are made of; None: one window
    parts: int = 1  # cells of a window
    stride: int = 1  # cells from one window's begin to the next's
    spans: Cells | None = None  # cumulating windows grow up to a cell of these
    lateness_us: int = 0
    steps: int | None = None  # of the job; None: no end

    def __post_init__(self) -> None:
        if self.cells is None:
            return
        if self.ticks is None:
            raise ValueError("windows need steps that have a time")
        if not 1 <= self.stride <= self.parts:
            raise ValueError("windows begin at most as far apart as they are long")
        if self.spans is not None and not self.cells.refines(self.spans):
            raise ValueError("the size of a growing window must be a multiple of its step")

    @property
    def whole(self) -> bool:
        """Whether there is one window only."""
        return self.cells is None

    @property
    def _cells(self) -> Cells:
        assert self.cells is not None  # noqa: S101  (asked of windows only)
        return self.cells

    @property
    def _ticks(self) -> Cells:
        assert self.ticks is not None  # noqa: S101  (asked of steps with a time only)
        return self.ticks

    @cached_property
    def fixed(self) -> bool:
        """Whether all steps, cells and spans are equally long: no calendar."""
        return all(g is None or g.fixed for g in (self.ticks, self.cells, self.spans))

    @cached_property
    def overlap(self) -> int:
        """How many windows one row counts in, at most."""
        if self.cells is None:
            return 1
        if self.spans is None:
            return -(-self.parts // self.stride)
        if self.fixed:
            return self.spans.length_us // self.cells.length_us
        numbers, begins = self._windows(), self._begins(self._windows())
        ends = self.spans.starts(self.spans.numbers(begins) + 1)
        return int((self.cells.numbers(ends - 1) - numbers).max()) + 1

    @cached_property
    def triggers(self) -> int | None:
        """The largest number of triggers of any window; None when nothing bounds it.

        Counters are sized for it, so it must hold for every window; that it is exact saves noise.
        Proof: window [a, b) has one trigger for every step i that ends after a and begins before
            b + lateness. On a calendar, all windows of the job are checked: those from the first
            that step 1 releases to the last that begins before the job ends, or before 2200, after
            which nothing is released (`_last`). If steps have length e from s on, with a = s + q e
            + r and 0 <= r < e, there are ceil((r + b - a + lateness) / e) triggers, which rises
            with r and with b - a. Windows of the largest length begin at o + k m for all whole k,
            so the largest r is e - g + (o - s) mod g with g = gcd(m, e). Step 1 and the last step
            can only take triggers away.
        """
        if self.whole:
            return self.steps
        if not self.fixed:
            return self._most_triggers()
        ticks, cells, spans = self._ticks, self._cells, self.spans
        every, size = ticks.length_us, cells.length_us * self.parts
        apart, origin = cells.length_us * self.stride, cells.origin_us
        if spans is not None:
            size = apart = spans.length_us
            origin = spans.origin_us
        rest = gcd(apart, every)
        into = every - rest + (origin - ticks.origin_us) % rest
        most = -(-(into + size + self.lateness_us) // every)
        return most if self.steps is None else max(1, min(most, self.steps))

    def _most_triggers(self) -> int:
        """The largest number of triggers, by looking at all windows."""
        first, last = self._released(self._windows())
        return max(1, int((last - first).max(initial=0)) + 1)

    def _released(self, windows: Numbers) -> tuple[Numbers, Numbers]:
        """The first and the last steps at which windows of a calendar are released."""
        begins, ends = self._edges(windows)
        first = np.maximum(1, self._ticks.numbers(begins) + 1)
        last = self._ticks.numbers(ends + self.lateness_us - 1) + 1
        return first, np.minimum(last, self._last)

    def _windows(self) -> Numbers:
        """The numbers of all windows of a job on a calendar that any step releases."""
        end = min(self._ticks.start(self._last), END_US)
        low = self._first_after(self._ticks.start(0) - self.lateness_us)
        high = self._last_before(end)
        if high - low >= MOST_WINDOWS:
            raise PlanError(
                f"{high - low + 1:,} windows of a calendar are more than can be looked at.\n"
                "  to fix  give an end, longer windows, or no time zone"
            )
        numbers = np.arange(low, max(low, high) + 1, dtype=np.int64)
        return numbers[~self._void(numbers)] if len(numbers) > 1 else numbers

    @cached_property
    def _last(self) -> int:
        """The last step of a job on a calendar: nothing after 2200 is ever released."""
        known = self._ticks.number(END_US)
        return known if self.steps is None else min(self.steps, known)

    @property
    def _end(self) -> int | None:
        return self.steps if self.fixed else self._last

    @cached_property
    def open_windows(self) -> int:
        """How many windows may be open at one time, at most."""
        if self.whole:
            return 1
        parts = self.parts if self.spans is None else self.overlap
        cells, ticks = self._cells, self._ticks
        shortest = cells.length_us or cells.months * 28 * 86_400_000_000
        step = ticks.length_us or ticks.months * 31 * 86_400_000_000
        open_cells = parts + -(-(self.lateness_us + 2 * step) // shortest)
        return -(-open_cells // self.stride) + 1

    def bounds(self, window: int) -> tuple[int, int]:
        """Start and end of a window in event time, microseconds."""
        if self.fixed:
            cells, begin = self._cells, window * self.stride
            if self.spans is None:
                return cells.start(begin), cells.start(begin + self.parts)
            return self.spans.start(self.spans.number(cells.start(begin))), cells.start(begin + 1)
        begins, ends = self._edges(np.array([window], np.int64))
        return int(begins[0]), int(ends[0])

    def _edges(self, windows: Numbers) -> tuple[Numbers, Numbers]:
        """Starts and ends of windows."""
        first = windows * self.stride
        return self._begins(windows), self._cells.starts(first + self.parts)

    def _begins(self, windows: Numbers) -> Numbers:
        begins = self._cells.starts(windows * self.stride)
        return begins if self.spans is None else self.spans.starts(self.spans.numbers(begins))

    def _void(self, windows: Numbers) -> Bool[Array, " windows"]:
        """Which windows add no time to the one before, because clocks skipped it."""
        if self.fixed:
            return np.zeros(len(windows), np.bool_)
        if self.spans is not None:
            return self._cells.empty(windows)
        begins, ends = self._edges(windows)
        return np.asarray(begins == ends)

    @property
    def zone(self) -> str:
        """The zone whose clocks windows follow; '': UTC."""
        return next((g.zone for g in (self.cells, self.spans, self.ticks) if g and g.zone), "")

    def name(self, window: int) -> str:
        """When a window begins; for windows that grow, also when it ends. Names are unique.

        >>> day = Cells(length_us=86_400_000_000)
        >>> Schedule(ticks=day, cells=day).name(20454)
        '2026-01-01'
        """
        if self.whole:
            return str(window)
        days = begins_days(self._cells)
        begin, end = (name_of(us, self.zone, days=days) for us in self.bounds(window))
        return begin if self.spans is None else f"{begin}--{end}"

    @cached_property
    def _names(self) -> Names:
        return Names(self)

    def window_named(self, name: str) -> int | None:
        """The window with this name; None if there is none.

        >>> day = Cells(length_us=86_400_000_000)
        >>> Schedule(ticks=day, cells=day).window_named("2026-01-01")
        20454
        """
        begin, _, end = name.partition("--")
        us = instant_named(end or begin, self.zone)
        if self.whole or us is None:
            return None
        window = self._cells.number(us - bool(end)) // self.stride
        return window if self.name(window) == name else None

    def release_time(self, window: int, step: int) -> bytes:
        """The time that a release of a window states: see `release_metadata.TIME`."""
        until = None if self.ticks is None else self.ticks.start(step)
        return kept_time(ReleaseTime(window, self._names[window], until, self.zone))

    def first_step(self, window: int) -> int:
        """The first step at which a window is released."""
        if self.whole:
            return 1
        return max(1, self._ticks.number(self.bounds(window)[0]) + 1)

    def last_step(self, window: int) -> int | None:
        """The last step at which a window is released; rows of later steps are late."""
        if self.whole:
            return self.steps
        last, end = self.step_reaching(self.bounds(window)[1] + self.lateness_us), self._end
        return last if end is None else min(last, end)

    def step_reaching(self, time_us: int) -> int:
        """The first step whose end is at or after a time."""
        return self._ticks.number(time_us - 1) + 1

    def trigger(self, window: int, step: int) -> int:
        """The number of a step among the triggers of a window, from 1."""
        return step - self.first_step(window) + 1

    def active(self, step: int) -> tuple[int, ...]:
        """The windows released at a step; none after the job's last, where noise would repeat."""
        if self.whole:
            return (0,) if self.steps is None or step <= self.steps else ()
        if self._end is not None and step > self._end:
            return ()
        low = self._first_after(self._ticks.start(step - 1) - self.lateness_us)
        high = self._last_before(self._ticks.start(step))
        numbers = np.arange(low, high + 1, dtype=np.int64)
        return tuple(w for w in numbers[~self._void(numbers)].tolist() if self._covers(w, step))

    def _covers(self, window: int, step: int) -> bool:
        last = self.last_step(window)
        return self.first_step(window) <= step and (last is None or step <= last)

    def _first_after(self, time_us: int) -> int:
        """The first window that ends after a time."""
        return (self._cells.number(time_us) - self.parts) // self.stride + 1

    def _last_before(self, time_us: int) -> int:
        """The last window that starts before a time."""
        if self.spans is None:
            return self._cells.number(time_us - 1) // self.stride
        end = self.spans.start(self.spans.number(time_us - 1) + 1)
        return self._cells.number(end - 1)


class Names(dict[int, str]):
    """The names of the windows that were released last."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def __missing__(self, window: int) -> str:
        if len(self) >= MOST_NAMES:
            self.clear()
        self[window] = name = self.schedule.name(window)
        return name


def hopping(size: Cells, slide: Cells) -> tuple[int, int, Cells]:
    """The cells of a window, the cells from one window's begin to the next, and the grid."""
    cells = common(slide, size)
    if size.months:
        return size.months // cells.months, slide.months // cells.months, cells
    return size.length_us // cells.length_us, slide.length_us // cells.length_us, cells


def assign(
    schedule: Schedule,
    event_us: Int64[Array, " rows"],
    step: int,
    every: Int64[Array, " rows"] | None = None,
    due: int = 0,
    reject_notes: RejectNotes | None = None,
) -> tuple[Int64[Array, " pairs"], Int64[Array, " pairs"], dict[str, int]]:
    """The (row, window) pairs that count at a step, rows in order, and rejected pairs by reason.

    A pair is late when its window had its last trigger before this step, and early when its window
    has its first trigger more than one step ahead. `every`: the numbers of all rows, if known.
    `due`: how many steps have ended by the public clock. A job that was down closes these steps one
    by one; the first sees all rows that came meanwhile, also those of later windows.
    """
    ahead = max(step, due) + 1
    if schedule.whole:
        rows = np.arange(len(event_us), dtype=np.int64) if every is None else every
        over = 0 if schedule.active(step) else len(rows)
        if reject_notes is not None and over:
            reject_notes.add(LATE, rows)
        rows = rows[over:]
        return rows, repeated(np.int64(0), len(rows)), {LATE: over} if over else {}
    rows, windows = candidates(schedule, event_us)
    if schedule.fixed and len(windows) and bool((windows == windows[0]).all()):
        one = int(windows[0])
        if schedule.first_step(one) <= ahead and step <= _or_never(schedule.last_step(one)):
            return rows, windows, {}
    numbers, places = np.unique(windows, return_inverse=True)
    if schedule.fixed:
        last = np.array([_or_never(schedule.last_step(int(w))) for w in numbers], np.int64)
        first = np.array([schedule.first_step(int(w)) for w in numbers], np.int64)
    else:
        first, last = schedule._released(numbers)
    late, early = (step > last)[places], (first > ahead)[places]
    keep = ~(late | early)
    if keep.all():
        return rows, windows, {}
    reject_counts = {LATE: int(late.sum()), EARLY: int((early & ~late).sum())}
    if reject_notes is not None:
        reject_notes.add(LATE, rows[late])
        reject_notes.add(EARLY, rows[early & ~late])
    return rows[keep], windows[keep], {reason: n for reason, n in reject_counts.items() if n}


def candidates(
    schedule: Schedule, event_us: Int64[Array, " rows"]
) -> tuple[Int64[Array, " pairs"], Int64[Array, " pairs"]]:
    """Every (row, window) pair by event time alone, ordered by row and then by window."""
    cells, spans = schedule._cells, schedule.spans
    held = cells.numbers(event_us)
    if spans is None and schedule.parts == 1:
        return np.arange(len(event_us), dtype=np.int64), held
    if spans is None:
        first = (held - schedule.parts) // schedule.stride + 1
        count = held // schedule.stride - first + 1
    else:
        first = held
        count = cells.numbers(spans.starts(spans.numbers(event_us) + 1) - 1) - held + 1
    rows = np.repeat(np.arange(len(event_us), dtype=np.int64), count)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    windows = first[rows] + nth
    if spans is None or schedule.fixed:
        return rows, windows
    kept = ~schedule._void(windows)
    return rows[kept], windows[kept]


def periods_apart(schedule: Schedule, period: Cells | None) -> bool:
    """See `never_meet`."""
    side_by_side = schedule.parts == 1 and schedule.spans is None
    return never_meet(schedule.cells if side_by_side else None, period)


def periods_until(
    schedule: Schedule, periods: Cells | None, steps: int | None
) -> tuple[int, int] | None:
    """The first and the last unit-period that a look at so many steps reads; None: all.

    Where no window meets two periods, it reads those of the steps, which are public. See `Survey`.
    """
    if periods is None or not periods_apart(schedule, periods):
        return None
    ticks = schedule._ticks
    end = ticks.start(min(steps or 1, schedule._end or 1)) - 1
    first = periods.number(ticks.start(0) - schedule.lateness_us)
    return first, max(first, periods.number(end))


def period_closes(schedule: Schedule, period: int, periods: Cells) -> int | None:
    """The last step that may take rows of a unit-period; None when steps carry no time."""
    if schedule.ticks is None:
        return None
    end = periods.start(period + 1)
    if not schedule.whole:
        end = schedule.bounds(schedule._last_before(end))[1]  # of the last window with its rows
    return schedule.step_reaching(end + schedule.lateness_us)


def is_over(schedule: Schedule, period: int, periods: Cells | None, step: int) -> bool:
    """Whether a unit-period takes no more rows after a step."""
    closes = None if periods is None else period_closes(schedule, period, periods)
    return closes is not None and closes <= step


def still_taken(
    schedule: Schedule, numbers: Int64[Array, " rows"], periods: Cells | None, step: int
) -> Bool[Array, " rows"]:
    """Which rows are of unit-periods that take rows at a step."""
    if periods is None or not len(numbers):
        return np.ones(len(numbers), np.bool_)
    if (numbers == numbers[0]).all():
        return np.full(len(numbers), not is_over(schedule, int(numbers[0]), periods, step - 1))
    known, places = np.unique(numbers, return_inverse=True)
    over = np.array([is_over(schedule, one, periods, step - 1) for one in known.tolist()], np.bool_)
    return np.asarray(~over[places])


def far_ahead(
    schedule: Schedule, numbers: Int64[Array, " rows"], periods: Cells, step: int
) -> Bool[Array, " rows"]:
    """Which unit-periods begin more than one step ahead and are early, if no window shows that.

    Every period keeps units of its own until it closes: rows of one unit in many future years would
    slow down all others.
    """
    if not schedule.whole or schedule.ticks is None:
        return np.zeros(len(numbers), np.bool_)
    return np.asarray(schedule.ticks.numbers(periods.starts(numbers)) > step)


def periods_met(schedule: Schedule, periods: Cells | None) -> int | None:
    """About how many windows the rows of one unit, within its scope, can fall into."""
    if schedule.whole:
        return 1
    cells, ticks = schedule._cells, schedule._ticks
    if periods is not None:
        begin = ticks.start(0)
        number = periods.number(begin)
        low, high = periods.start(number), periods.start(number + 1)
    elif schedule.steps is None:
        return None
    else:
        low, high = ticks.start(0), ticks.start(schedule._end or schedule.steps)
    return max(1, cells.number(high - 1) // schedule.stride - schedule._first_after(low) + 1)


def most_windows(schedule: Schedule, periods: Cells | None) -> int | None:
    """An upper bound of the consecutive windows that a unit meets in its scope; None: no end.

    With lateness these begin before the job does. Rows dated after its end are not considered.
    """
    if periods is None or schedule.cells is None:
        met = periods_met(schedule, periods)
        if met is None or schedule.cells is None or schedule.ticks is None:
            return met
        begin, lateness = schedule.ticks.start(0), schedule.lateness_us
        return met + schedule._first_after(begin) - schedule._first_after(begin - lateness)
    if periods.refines(schedule.cells):
        return 1
    longest = periods.length_us or periods.months * 31 * 86_400_000_000
    return -(-longest // schedule.cells.shortest_us) + 1


def better_start(schedule: Schedule) -> tuple[int, int] | None:
    """A start at which windows have fewer triggers, and how many; None if the start is as good.

    At such a start a window begins, and the first step releases it.
    """
    if schedule.cells is None or schedule.ticks is None or schedule.triggers is None:
        return None
    start, ticks = schedule.ticks.start(0), schedule.ticks
    begin = schedule.bounds(schedule._last_before(start + 1))[0]
    try:
        moved = replace(ticks, origin_us=clock_of(begin, "" if ticks.fixed else ticks.zone))
        most = replace(schedule, ticks=moved).triggers
    except ValueError:  # releases of months do not start on the last days of one
        return None
    return (begin, most) if most is not None and most < schedule.triggers else None


def _or_never(step: int | None) -> int:
    return np.iinfo(np.int64).max if step is None else step


def protected(unit: str, periods: Cells | None, bound: int = 1) -> Neighbours:
    """Who is protected, with the shortest period of protection."""
    period = None if periods is None else timedelta(microseconds=periods.shortest_us)
    calendar, begins = ("", "") if periods is None else (periods.words, periods.begins)
    return Neighbours(unit, bound, period=period, calendar=calendar, begins=begins)
