"""A division of time into cells, numbered in order: hours, days, weeks, months of a calendar."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from math import gcd

import numpy as np

from streamveil.calendars.zones import DAY, FIRST, HOUR, LAST, SECOND, Rules, rules_of
from streamveil.types import Array, Bool, Int64

END_US = LAST * SECOND  # cells of a calendar are known up to here
FAR = 200_000 * 366 * DAY  # times further away belong to the cell at this distance
LAST_DAY = 28  # of the day of a month on which cells of months may begin: every month has it
Times = Int64[Array, " n"]


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Cells of one length: so many microseconds, or so many months, on the clocks of a zone.

    Cell k begins when clocks show origin_us + k lengths, for good: where an hour is shown twice,
    it is in one cell; where one is left out, a cell may be shorter, or empty. Lengths that no
    clock change moves (below two hours, or not fitting a day) are real time: `follows_clocks`.
    Proof that cells tile time: what clocks show for good (`Rules.passed`) never falls and grows
        beyond all bounds, and every such time is in exactly one of the half-open pieces
        [begin(k), begin(k + 1)) of the line; so every instant is in exactly one cell, the cells
        come in order, and cell k is the instants from start(k) to before start(k + 1).

    >>> month = Cells(months=1, zone="Europe/Berlin")
    >>> month.number(1_767_225_600_000_000)  # 2026-01-01 01:00 in Berlin
    672
    >>> (month.start(673) - month.start(672)) // 3_600_000_000
    744
    """

    length_us: int = 0  # of a cell; 0: months
    months: int = 0
    origin_us: int = 0  # what clocks show where cell 0 begins; without a zone: UTC
    zone: str = ""

    def __post_init__(self) -> None:
        if (self.length_us > 0) == (self.months > 0) or min(self.length_us, self.months) < 0:
            raise ValueError("a cell lasts microseconds or months, above zero")
        if self.months and day_of_month(self.origin_us) > LAST_DAY:
            raise ValueError(f"a month begins on a day up to {LAST_DAY}")

    @cached_property
    def fixed(self) -> bool:
        """Whether all cells are equally long."""
        return not self.months and not self._follows

    @property
    def _follows(self) -> bool:
        return bool(self.zone) and (bool(self.months) or follows_clocks(self.length_us))

    @property
    def _rules(self) -> Rules | None:
        return rules_of(self.zone) if self._follows else None

    @cached_property
    def shortest_us(self) -> int:
        """The length of the shortest cell that is not empty, before 2200."""
        if self.fixed:
            return self.length_us
        known = np.arange(self.number(FIRST * SECOND), self.number(END_US) + 1, dtype=np.int64)
        lengths = np.diff(self.starts(known))
        return int(lengths[lengths > 0].min())

    @property
    def words(self) -> str:
        """What a cell of a calendar is: '3 months', '1 day in Europe/Berlin'; '' for real time."""
        if self.fixed:
            return ""
        count, unit = (self.length_us // DAY, "day") if self.length_us % DAY == 0 else (
            self.length_us // HOUR, "hour")  # fmt: skip
        count, unit = (self.months, "month") if self.months else (count, unit)
        where = f" in {self.zone}" if self.zone else ""
        return f"{count} {unit}{'s' if count > 1 else ''}{where}"

    def number(self, us: int) -> int:
        """The cell that holds an instant."""
        if self.fixed:
            return (us - self.origin_us) // self.length_us
        return int(self.numbers(np.array([us], np.int64))[0])

    def numbers(self, us: Times) -> Times:
        """The cells that hold instants."""
        if self.fixed and not self.origin_us:
            return us // self.length_us
        near, rules = np.clip(us, -FAR, FAR), self._rules
        clock = near if rules is None else rules.passed(near)
        if not self.months:
            return np.asarray((clock - self.origin_us) // self.length_us)
        month, within = _month_of(self.origin_us)
        return np.asarray((_months(clock - within) - month) // self.months)

    def start(self, number: int) -> int:
        """The instant at which a cell begins."""
        if self.fixed:
            return self.origin_us + number * self.length_us
        return int(self.starts(np.array([number], np.int64))[0])

    def starts(self, numbers: Times) -> Times:
        """The instants at which cells begin."""
        clock, rules = self._begins(numbers), self._rules
        return clock if rules is None else rules.instants(clock)

    def _begins(self, numbers: Times) -> Times:
        """What clocks show where cells begin."""
        if not self.months:
            return self.origin_us + numbers * self.length_us
        month, within = _month_of(self.origin_us)
        return np.asarray(_begin_of_month(month + numbers * self.months) + within)

    def empty(self, numbers: Times) -> Bool[Array, " n"]:
        """Which cells hold no instant: clocks left them out."""
        return np.asarray(self.starts(numbers) == self.starts(numbers + 1))

    def refines(self, coarse: Cells) -> bool:
        """Whether every cell of `coarse` is made of whole cells of this grid.

        Proof: by what clocks show. Where every begin of a coarse cell is one of ours, so is its
            instant, which is a function of it, of the zone and of whether the clocks matter.
            Months among months: every so many, from a month of ours, at the same time of the
            month. Fixed lengths among fixed ones: likewise. A begin of a month is a whole number
            of days and the time of the month after 1970, so lengths that divide a day and the
            distance of the two origins on the day have a begin there.
        """
        if (self._follows, self._follows and self.zone) != (
            coarse._follows,
            coarse._follows and coarse.zone,
        ):
            return False
        if self.months and coarse.months:
            (own, within), (other, there) = _month_of(self.origin_us), _month_of(coarse.origin_us)
            return (
                within == there and coarse.months % self.months == (other - own) % self.months == 0
            )
        if self.months:
            return False
        apart = (coarse.origin_us - self.origin_us) % self.length_us
        length = DAY if coarse.months else coarse.length_us
        return apart == 0 and length % self.length_us == 0


def follows_clocks(length_us: int) -> bool:
    """Whether cells of a length follow clocks that are changed: days, and hours that divide one.

    Shorter ones would vanish or be twice as long when clocks change; they are real time.
    """
    hours = length_us % HOUR == 0 and length_us >= 2 * HOUR
    return hours and (DAY % length_us == 0 or length_us % DAY == 0)


def common(first: Cells, second: Cells) -> Cells:
    """The coarsest grid with the origin and zone of the first that both are made of."""
    return Cells(
        length_us=gcd(first.length_us, second.length_us),
        months=gcd(first.months, second.months),
        origin_us=first.origin_us,
        zone=first.zone,
    )


def _months(us: Times) -> Times:
    """Months since 1970 of what clocks show."""
    return (us // DAY).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def _begin_of_month(months: Times) -> Times:
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) * DAY


def _month_of(us: int) -> tuple[int, int]:
    """The month since 1970 of a time on a clock, and how far it is into it."""
    month = _months(np.array([us], np.int64))
    return int(month[0]), us - int(_begin_of_month(month)[0])


def day_of_month(us: int) -> int:
    """The day of the month of a time on a clock."""
    return _month_of(us)[1] // DAY + 1


def clock_of(us: int, zone: str) -> int:
    """What the clocks of a zone show at an instant."""
    return int(rules_of(zone).shown(np.array([us], np.int64))[0]) if zone else us


def instant_of(clock_us: int, zone: str) -> int:
    """The instant at which clocks of a zone show a time for good."""
    return int(rules_of(zone).instants(np.array([clock_us], np.int64))[0]) if zone else clock_us


# ---- names of windows

SECOND = 1_000_000


def begins_days(cells: Cells) -> bool:
    """Whether every cell begins with a day of its zone."""
    return cells.origin_us % DAY == 0 and (bool(cells.months) or cells.length_us % DAY == 0)


def name_of(us: int, zone: str = "", *, days: bool = False) -> str:
    """An instant on the clocks of a zone; with `days` its date alone.

    Names are in the order of time, but where clocks are put back. No two instants have one name,
    no two beginnings of days of a zone have one date.

    >>> name_of(1_767_225_600_000_000, days=True), name_of(1_767_225_600_000_000)
    ('2026-01-01', '2026-01-01T0000Z')
    >>> name_of(1_792_886_400_000_000, "Europe/Berlin")
    '2026-10-25T0200+0200'
    >>> name_of(1_792_886_400_000_000 + 3_600_000_000, "Europe/Berlin")
    '2026-10-25T0200+0100'
    """
    clock = clock_of(us, zone)
    try:
        shown = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock)
    except OverflowError:  # a year that Python has no name for
        return str(us)
    if days:
        return f"{shown:%Y-%m-%d}"
    time = f"{shown:%Y-%m-%dT%H%M}"
    if clock % (60 * SECOND):
        time += f"{shown:%S}" + (f".{shown:%f}" if clock % SECOND else "")
    apart = (clock - us) // SECOND
    if not zone or not apart:
        return time + "Z"
    hours, seconds = divmod(abs(apart), 3600)
    minutes, seconds = divmod(seconds, 60)
    offset = f"{hours:02}{minutes:02}" + (f"{seconds:02}" if seconds else "")
    return f"{time}{'+' if apart > 0 else '-'}{offset}"


def instant_named(name: str, zone: str = "") -> int | None:
    """The instant of a name that `name_of` gives, in microseconds since 1970; None of another text.

    >>> instant_named("2026-10-25T0200+0100", "Europe/Berlin") - instant_named("2026-01-01")
    25664400000000
    """
    try:
        time = datetime.fromisoformat(name)
    except ValueError:
        return None
    apart = time.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    clock = apart // timedelta(microseconds=1)
    if time.tzinfo is None:
        return instant_of(clock, zone)
    offset = time.utcoffset() or timedelta()
    return clock - offset // timedelta(microseconds=1)
