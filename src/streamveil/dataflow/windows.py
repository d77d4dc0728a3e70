"""Event time, windows and triggers: public arithmetic on each row alone.

Which windows a row counts in, which trigger of a window a step is and when a window closes follow
from the query, the row's own event time and the public number of the step. No row can move
another's window, and the largest event time seen plays no part (a watermark made of it would let
one person's clock drop other people's rows).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.batch import RejectNotes
from streamveil.types import Array, Bool, Int64

LATE, EARLY = "late", "early"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The calendar of a job: steps of `every_us`, windows of `size_us` starting each `slide_us`.

    Step i ends at start_us + i * every_us. A window [a, b) is released at every step whose end
    lies after a, up to the first whose end reaches b + lateness_us; those steps are its triggers
    1..T. A size of 0 is one window that never ends: the whole stream, released at every step.

    >>> day = Schedule(every_us=6, start_us=0, size_us=24, slide_us=24)
    >>> day.first_step(1), day.last_step(1), day.triggers
    (5, 8, 4)
    >>> day.active(5), day.trigger(1, 6)
    (range(1, 2), 2)
    """

    every_us: int = 0  # 0: steps have no time of their own
    start_us: int = 0
    size_us: int = 0
    slide_us: int = 0  # distance of window starts; size_us for tumbling windows
    lateness_us: int = 0
    steps: int | None = None  # of the job; None: no end
    growing: bool = False  # cumulating windows: share a start, grow by slide_us up to size_us

    def __post_init__(self) -> None:
        if self.size_us and not 0 < self.slide_us <= self.size_us:
            raise ValueError("slide_us must be above zero and at most the size of the window")
        if self.growing and self.size_us % self.slide_us:
            raise ValueError("the size of a growing window must be a multiple of its step")

    @property
    def whole(self) -> bool:
        """Whether there is one window only."""
        return self.size_us == 0

    @property
    def overlap(self) -> int:
        """How many windows one row counts in, at most."""
        return 1 if self.whole else -(-self.size_us // self.slide_us)

    @property
    def triggers(self) -> int | None:
        """The largest number of triggers of any window; None when nothing bounds it."""
        if self.whole:
            return self.steps
        span = self.size_us + self.lateness_us
        fits = span % self.every_us == 0 and self._aligned
        longest = span // self.every_us + (0 if fits else 2)
        return max(1, longest) if self.steps is None else max(1, min(longest, self.steps))

    @property
    def _aligned(self) -> bool:
        return self.start_us % self.every_us == 0 and self.slide_us % self.every_us == 0

    def bounds(self, window: int) -> tuple[int, int]:
        """Start and end of a window in event time, microseconds."""
        if self.growing:
            parts = self.size_us // self.slide_us
            start = window // parts * self.size_us
            return start, start + (window % parts + 1) * self.slide_us
        return window * self.slide_us, window * self.slide_us + self.size_us

    def first_step(self, window: int) -> int:
        """The first step at which a window is released."""
        if self.whole:
            return 1
        return max(1, (self.bounds(window)[0] - self.start_us) // self.every_us + 1)

    def last_step(self, window: int) -> int | None:
        """The last step at which a window is released; rows of later steps are late."""
        if self.whole:
            return self.steps
        last = self.step_reaching(self.bounds(window)[1] + self.lateness_us)
        return last if self.steps is None else min(last, self.steps)

    def step_reaching(self, time_us: int) -> int:
        """The first step whose end is at or after a time."""
        return -((self.start_us - time_us) // self.every_us)

    def trigger(self, window: int, step: int) -> int:
        """The number of a step among the triggers of a window, from 1."""
        return step - self.first_step(window) + 1

    def active(self, step: int) -> range:
        """The windows released at a step: none after the last, whose noise would come again."""
        if self.whole:
            return range(int(self.steps is None or step <= self.steps))
        end = self.start_us + step * self.every_us
        reach = self.size_us + self.lateness_us + self.every_us
        low, high = self._number(end - reach), self._number(end - 1) + self.overlap
        inside = [w for w in range(low, high + 1) if self._covers(w, step)]
        return range(inside[0], inside[-1] + 1) if inside else range(0)

    def _covers(self, window: int, step: int) -> bool:
        last = self.last_step(window)
        return self.first_step(window) <= step and (last is None or step <= last)

    def _number(self, time_us: int) -> int:
        """The first window that can hold a time."""
        if self.growing:
            parts = self.size_us // self.slide_us
            return time_us // self.size_us * parts + time_us % self.size_us // self.slide_us
        return (time_us - self.size_us) // self.slide_us + 1


def assign(
    schedule: Schedule,
    event_us: Int64[Array, " rows"],
    step: int,
    every: Int64[Array, " rows"] | None = None,
    reject_notes: RejectNotes | None = None,
) -> tuple[Int64[Array, " pairs"], Int64[Array, " pairs"], dict[str, int]]:
    """The (row, window) pairs that count at a step, rows in order, and pairs turned away by reason.

    A pair is late when its window had its last trigger before this step, and early when its window
    has its first trigger more than one step ahead. `every`: the numbers of all rows, if at hand.
    """
    if schedule.whole:
        rows = np.arange(len(event_us), dtype=np.int64) if every is None else every
        over = 0 if schedule.active(step) else len(rows)
        if reject_notes is not None and over:
            reject_notes.add(LATE, rows)
        rows = rows[over:]
        return rows, np.broadcast_to(np.int64(0), len(rows)), {LATE: over} if over else {}
    rows, windows = candidates(schedule, event_us)
    numbers, places = np.unique(windows, return_inverse=True)
    last = np.array([_or_never(schedule.last_step(int(w))) for w in numbers], np.int64)
    first = np.array([schedule.first_step(int(w)) for w in numbers], np.int64)
    late, early = (step > last)[places], (first > step + 1)[places]
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
    size, slide = schedule.size_us, schedule.slide_us
    if size == slide:
        return np.arange(len(event_us), dtype=np.int64), event_us // slide
    if schedule.growing:
        parts = size // slide
        inside = event_us % size // slide
        first, count = event_us // size * parts + inside, parts - inside
    else:
        first = (event_us - size) // slide + 1
        count = event_us // slide - first + 1
    rows = np.repeat(np.arange(len(event_us), dtype=np.int64), count)
    nth = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return rows, first[rows] + nth


def periods_apart(schedule: Schedule, period_us: int | None) -> bool:
    """Whether different periods of a unit never meet in one window."""
    size = schedule.size_us
    return bool(period_us and size and period_us % size == 0 and schedule.slide_us == size)


def period_closes(schedule: Schedule, period: int, period_us: int) -> int | None:
    """The last step that may take rows of a unit-period; None when steps carry no time."""
    if schedule.every_us == 0:
        return None
    end = (period + 1) * period_us
    if schedule.whole:
        return schedule.step_reaching(end + schedule.lateness_us)
    window = (end - 1) // schedule.slide_us  # the last window its rows can be in
    if schedule.growing:
        window = ((end - 1) // schedule.size_us + 1) * (schedule.size_us // schedule.slide_us) - 1
    return schedule.step_reaching(schedule.bounds(window)[1] + schedule.lateness_us)


def far_ahead(
    schedule: Schedule, periods: Int64[Array, " rows"], period_us: int, step: int
) -> Bool[Array, " rows"]:
    """Which unit-periods begin more than one step ahead, where no window says so: they are early.

    Every period keeps units of its own until it closes: rows of one unit in many years to come
    would slow down all others.
    """
    if not schedule.whole or schedule.every_us == 0:
        return np.zeros(len(periods), np.bool_)
    return np.asarray((periods * period_us - schedule.start_us) // schedule.every_us > step)


def _or_never(step: int | None) -> int:
    return np.iinfo(np.int64).max if step is None else step
