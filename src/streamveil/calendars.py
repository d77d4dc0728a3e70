"""Time as clocks of a zone show it, and its division into cells: hours, days, weeks, months.

Cells are numbered in order. The rules of a zone say what its clocks show at every instant. They
come from the pinned package `tzdata` and not from the machine: all machines of a job divide time in
the same way. Times are microseconds; an instant counts from 1970 UTC, a time on a clock from
midnight 1970-01-01 on that clock.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from importlib.resources import files
from math import gcd
from zoneinfo import ZoneInfo

import numpy as np

from streamveil.errors import PlanError, nearest
from streamveil.types import Array, Bool, Int64

SECOND = 1_000_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
ZERO = timedelta()
WEEK = 7 * 86_400  # seconds
FIRST = -5_364_662_400  # 1800, seconds: before all rules; local mean time from the beginning
LAST = 7_258_118_400  # 2200, seconds: rules are unfolded up to here; then clocks stay
NEVER = 2**63 - 1  # microseconds


@dataclass(frozen=True, eq=False)
class Rules:
    """Clocks of one zone: from `starts[j]` on they show the instant plus `offsets[j]`."""

    starts: Int64[Array, " parts"]
    offsets: Int64[Array, " parts"]
    settled: Int64[Array, " parts"]  # the least that clocks show in any later part

    def shown(self, us: Int64[Array, " n"]) -> Int64[Array, " n"]:
        """The times that clocks show at instants."""
        part = np.searchsorted(self.starts, us, side="right") - 1
        return np.asarray(us + self.offsets[part])

    def passed(self, us: Int64[Array, " n"]) -> Int64[Array, " n"]:
        """The time that clocks have passed for good: the least they show at an instant or later.

        It never falls. It is the time on the clocks, except before they are set back: if an hour is
        shown twice, its whole first pass counts as the beginning of the second.
        """
        part = np.searchsorted(self.starts, us, side="right") - 1
        return np.asarray(np.minimum(us + self.offsets[part], self.settled[part]))

    def instants(self, clock: Int64[Array, " n"]) -> Int64[Array, " n"]:
        """The first instant from which clocks never show less than a time: `passed` reaches it.

        Proof: in part j `passed` is min(t + offsets[j], settled[j]), which reaches w exactly if
            settled[j] >= w and t >= w - offsets[j]. `settled` rises with j, so the first part where
            it can is the first with settled[j] >= w, and there it does so by the end of the part:
            what clocks show just before the next start is at least w, or that start, where they
            show settled[j] or more, is the first instant of the next part.
        """
        part = np.searchsorted(self.settled, clock, side="left")
        met = np.maximum(self.starts[part], clock - self.offsets[part])
        following = np.append(self.starts[1:], np.int64(NEVER))[part]
        return np.asarray(np.minimum(met, following))

    def first(self, clock: Int64[Array, " n"]) -> Int64[Array, " n"]:
        """The first instant at which clocks show a time or more: of two passes, in the first.

        Proof: within part j clocks rise from starts[j] + offsets[j] up to, and without, what they
            would show at the next start. So the first part that shows w or more is the first that
            ends above w, and there it does so at w - offsets[j] or at the part's start.
        """
        ends = np.append(self.starts[1:] + self.offsets[:-1], np.int64(NEVER))
        part = np.searchsorted(np.maximum.accumulate(ends), clock, side="right")
        return np.asarray(np.maximum(self.starts[part], clock - self.offsets[part]))


def require_zone(name: object) -> str:
    """The name of a zone, if there is one."""
    known = zone_names()
    if not isinstance(name, str) or name not in known:
        given = str(name)[:40]
        close = nearest(given, known).partition("; known")[0]
        raise PlanError(
            f"unknown time zone '{given}'{close}\n"
            "  to fix  a name of the IANA database, such as 'Europe/Berlin' or 'UTC'"
        )
    return name


@lru_cache(maxsize=1)
def zone_names() -> tuple[str, ...]:
    """The names of all zones."""
    text = files("tzdata").joinpath("zones").read_text(encoding="utf-8")
    return tuple(text.split())


def zone_info(name: str) -> ZoneInfo:
    """The zone as the standard library reads it, by the pinned rules."""
    return ZoneInfo.from_file(io.BytesIO(_file(name)), key=name)


def _file(name: str) -> bytes:
    return files("tzdata").joinpath("zoneinfo", *require_zone(name).split("/")).read_bytes()


def digest(name: str) -> str:
    """A digest of the rules of a zone: other rules divide time differently."""
    rules = rules_of(name)
    text = rules.starts.tobytes() + rules.offsets.tobytes()
    return hashlib.blake2b(text, digest_size=8).hexdigest()


@lru_cache(maxsize=64)
def rules_of(name: str) -> Rules:
    """The rules of a zone from 1800 to 2200."""
    data = _file(name)
    zone = zone_info(name)

    def offset(at: int) -> int:  # seconds since 1970 -> seconds
        return round((datetime.fromtimestamp(at, zone).utcoffset() or ZERO).total_seconds())

    listed = [at for at in changes(data) if FIRST < at < LAST]
    starts, offsets = [FIRST], [offset(FIRST)]
    later = yearly(offset, max(listed, default=FIRST))
    for at in (*listed, *later):
        if offset(at) != offsets[-1]:
            starts.append(at)
            offsets.append(offset(at))
    begins, shifts = (np.array(part, np.int64) * SECOND for part in (starts, offsets))
    begins[0] = -NEVER - 1
    least = np.append((begins + shifts)[1:], NEVER)
    settled = np.asarray(np.minimum.accumulate(least[::-1])[::-1])
    return Rules(begins, shifts, settled)


def changes(data: bytes) -> tuple[int, ...]:
    """The instants (seconds) that a file of zone rules lists (RFC 8536, the 64-bit block)."""
    head = struct.Struct(">4sc15x6l")
    *_, utc, standard, leaps, times, types, letters = head.unpack_from(data)
    block = head.size + 5 * times + 6 * types + letters + 8 * leaps + standard + utc
    *_, times, _, _ = head.unpack_from(data, block)
    return struct.unpack_from(f">{times}q", data, block + head.size)


def yearly(offset: Callable[[int], int], first: int) -> Iterator[int]:
    """The changes after the last listed one, by a rule for every year; they are weeks apart."""
    for low in range(first, LAST, WEEK):
        before, end, high = offset(low), offset(low + WEEK), low + WEEK
        while before != end and high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == before else (low, middle)
        if before != end:
            yield high


END_US = LAST * SECOND  # cells of a calendar are known up to here
FAR = 200_000 * 366 * DAY  # times further away belong to the cell at this distance
LAST_DAY = 28  # the last day of a month on which cells of months may begin: every month has it
Times = Int64[Array, " n"]


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Cells of one length, in microseconds or in months, on the clocks of a zone.

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
    origin_us: int = 0  # the time on the clocks at which cell 0 begins; without a zone: UTC
    zone: str = ""

    def __post_init__(self) -> None:
        if (self.length_us > 0) == (self.months > 0) or min(self.length_us, self.months) < 0:
            raise PlanError("a cell lasts microseconds or months, above zero")
        if self.months and day_of_month(self.origin_us) > LAST_DAY:
            raise PlanError(f"a month begins on a day up to {LAST_DAY}")

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
        """A calendar cell in words: '3 months', '1 day in Europe/Berlin'; '' for real time."""
        if self.fixed:
            return ""
        count, unit = (self.length_us // DAY, "day") if self.length_us % DAY == 0 else (
            self.length_us // HOUR, "hour")  # fmt: skip
        count, unit = (self.months, "month") if self.months else (count, unit)
        where = f" in {self.zone}" if self.zone else ""
        return f"{count} {unit}{'s' if count > 1 else ''}{where}"

    @property
    def begins(self) -> str:
        """The time on clocks at which the first cell of 1970 begins; '' if that is with the year.

        Two grids of one length and zone are the same exactly if this is the same: origins that are
        whole cells apart give the same grid.

        >>> quarters = Cells(months=3, origin_us=90 * DAY)
        >>> quarters.begins, Cells(length_us=7 * DAY, origin_us=11 * DAY).begins
        ('', '1970-01-05 00:00')
        """
        if self.months:
            month, within = _month_of(self.origin_us)
            first = int(begin_of_month(np.array([month % self.months]))[0]) + within
        else:
            first = self.origin_us % self.length_us
        shown = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=first)
        return str(shown.replace(tzinfo=None)).removesuffix(":00") if first else ""

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
        return np.asarray((months_of(clock - within) - month) // self.months)

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
        """The times on clocks at which cells begin."""
        if not self.months:
            return self.origin_us + numbers * self.length_us
        month, within = _month_of(self.origin_us)
        return np.asarray(begin_of_month(month + numbers * self.months) + within)

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


def never_meet(windows: Cells | None, periods: Cells | None) -> bool:
    """Whether different periods of a unit never meet in one window.

    `windows`: their cells, if they lie side by side; None if they do not, or there is only one.

    Proof: every period is made of whole cells.

    >>> day, week = Cells(length_us=DAY), Cells(length_us=7 * DAY)
    >>> never_meet(day, week), never_meet(week, day), never_meet(None, week)
    (True, False, False)
    """
    return windows is not None and periods is not None and windows.refines(periods)


def follows_clocks(length_us: int) -> bool:
    """Whether cells of a length follow clock changes: days, and hours that divide a day.

    Shorter cells would vanish or be twice as long when clocks change; they are real time.
    """
    hours = length_us % HOUR == 0 and length_us >= 2 * HOUR
    return hours and (DAY % length_us == 0 or length_us % DAY == 0)


def common(first: Cells, second: Cells) -> Cells:
    """The coarsest grid, with the origin and zone of the first, whose cells make up both."""
    return Cells(
        length_us=gcd(first.length_us, second.length_us),
        months=gcd(first.months, second.months),
        origin_us=first.origin_us,
        zone=first.zone,
    )


def months_of(us: Times) -> Times:
    """Months since 1970 of times on clocks."""
    return (us // DAY).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def begin_of_month(months: Times) -> Times:
    """The beginnings of months since 1970, in microseconds on clocks."""
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64) * DAY


def _month_of(us: int) -> tuple[int, int]:
    """The month since 1970 of a time on a clock, and the time since the month began."""
    month = months_of(np.array([us], np.int64))
    return int(month[0]), us - int(begin_of_month(month)[0])


def day_of_month(us: int) -> int:
    """The day of the month of a time on a clock."""
    return _month_of(us)[1] // DAY + 1


def clock_of(us: int, zone: str) -> int:
    """The time that the clocks of a zone show at an instant."""
    return int(rules_of(zone).shown(np.array([us], np.int64))[0]) if zone else us


def instant_of(clock_us: int, zone: str) -> int:
    """The instant at which clocks of a zone show a time for good."""
    return int(rules_of(zone).instants(np.array([clock_us], np.int64))[0]) if zone else clock_us


# ---- names of windows


def begins_days(cells: Cells) -> bool:
    """Whether every cell begins with a day of its zone."""
    return cells.origin_us % DAY == 0 and (bool(cells.months) or cells.length_us % DAY == 0)


def name_of(us: int, zone: str = "", *, days: bool = False) -> str:
    """An instant on the clocks of a zone; with `days` its date alone.

    Names are in the order of time, except where clocks are put back. No two instants share a name,
    and no two beginnings of days of a zone share a date.

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
    """The instant of a name from `name_of`, in microseconds since 1970; None for other texts.

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
