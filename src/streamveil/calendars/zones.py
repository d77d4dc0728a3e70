"""The rules of a time zone as arrays: what its clocks showed, and will show, at every instant.

The rules come from the package `tzdata`, which is pinned, and not from the machine: all machines
of a job divide time in the same way. Times are microseconds; an instant counts from 1970 UTC, what
a clock shows counts from midnight 1970-01-01 on that clock.
"""

from __future__ import annotations

import hashlib
import io
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from importlib.resources import files
from zoneinfo import ZoneInfo

import numpy as np

from streamveil.errors import PlanError, nearest
from streamveil.types import Array, Int64

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
        """What clocks show at instants."""
        part = np.searchsorted(self.starts, us, side="right") - 1
        return np.asarray(us + self.offsets[part])

    def passed(self, us: Int64[Array, " n"]) -> Int64[Array, " n"]:
        """The time that clocks have passed for good: the least they show at an instant or later.

        It never falls. It is what clocks show, but for what comes before they are set back: of an
        hour that is shown twice the first pass counts as the place where the second begins.
        """
        part = np.searchsorted(self.starts, us, side="right") - 1
        return np.asarray(np.minimum(us + self.offsets[part], self.settled[part]))

    def instants(self, clock: Int64[Array, " n"]) -> Int64[Array, " n"]:
        """The first instant from which clocks never show less: where `passed` reaches a time.

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
        """The first instant at which clocks show a time, or more: also the first of two passes.

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
    """A name for the rules of a zone: other rules are another division of time."""
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
    """The changes after the last that is listed: by a rule for every year, weeks apart."""
    for low in range(first, LAST, WEEK):
        before, end, high = offset(low), offset(low + WEEK), low + WEEK
        while before != end and high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if offset(middle) == before else (low, middle)
        if before != end:
            yield high
