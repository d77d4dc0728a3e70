"""A few groups over time, for drawings: the largest, with their intervals."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import TypeVar

import numpy as np
import pyarrow as pa

from streamveil.batch import Moment
from streamveil.calendars import clock_of, instant_named
from streamveil.display import key_label, rows_of
from streamveil.release_metadata import ReleaseTime, missing, unbounded_sentence
from streamveil.results.releases import Releases
from streamveil.types import Array, Float64

T = TypeVar("T")
LINES = 6  # groups of a chart
POINTS = 240  # releases of a chart; when there are more, see `chosen`
BETWEEN = " · "  # the time of a window and the number of a trigger
SAWTEETH = 24  # windows whose totals can be seen to rise


@dataclass(frozen=True)
class Line:
    """One group over time; NaN where it was not shown."""

    label: str
    value: Float64[Array, " moments"]
    low: Float64[Array, " moments"]
    high: Float64[Array, " moments"]


@dataclass(frozen=True)
class Chart:
    """One number of the releases, for its largest groups."""

    name: str
    ticks: tuple[str, ...]  # one per release
    times: tuple[datetime, ...]  # of the releases, if all of them state it
    breaks: tuple[int, ...]  # where a window starts
    lines: tuple[Line, ...]
    bias: str
    unknown: str = ""  # why the number is null in all groups

    @property
    def turns(self) -> Float64[Array, " moments"]:
        """A place for each release on an axis without times, with room between windows."""
        step = np.ones(len(self.ticks))
        step[list(self.breaks)] = 2
        return np.cumsum(step)


def chosen(moments: list[Moment]) -> list[Moment]:
    """At most `POINTS` releases: evenly many of each window, or its last one alone of many windows.

    Totals of windows that ended can be compared; those of any moments within them cannot.

    >>> of_year = [Moment(day, trigger) for day in range(365) for trigger in range(1, 97)]
    >>> shown = chosen(of_year)
    >>> len(shown), {moment.trigger for moment in shown}, shown[-1] == of_year[-1]
    (240, {96}, True)
    >>> len(chosen(of_year[: 7 * 96])), len(chosen(of_year[: 90 * 96]))
    (238, 90)
    """
    if len(moments) <= POINTS:
        return moments
    windows = [list(some) for _, some in groupby(moments, key=lambda moment: moment.window)]
    some = evenly(windows, POINTS)
    each = POINTS // len(some) if len(some) <= SAWTEETH else 1
    return [moment for window in some for moment in evenly(window, each)]


def evenly(things: list[T], most: int) -> list[T]:
    """At most so many of some things, the last one included."""
    places = np.linspace(len(things) - 1, 0, min(most, len(things))).round().astype(int)
    return [things[place] for place in places[::-1]]


def chart(releases: Releases, name: str, moments: list[Moment], most: int = LINES) -> Chart:
    """The groups with the largest last values."""
    keys, labels = lately(releases, name, moments, most)
    found = {end: np.full((len(keys), len(moments)), np.nan) for end in ("", "_low", "_high")}
    for place, moment in enumerate(moments):
        at = pa.compute.index_in(keys, value_set=releases.keys(moment))
        shown = at.is_valid().to_numpy(zero_copy_only=False)
        rows = at.fill_null(0).to_numpy()[shown]
        for end, cells in found.items():
            cells[shown, place] = releases.column(moment, name + end)[rows]
    lines = tuple(
        Line(label, *(found[end][row] for end in found)) for row, label in enumerate(labels)
    )
    breaks = [i for i in range(1, len(moments)) if moments[i].window != moments[i - 1].window]
    ticks, times = [tick(releases, moment) for moment in moments], times_of(releases, moments)
    if breaks and len(breaks) == len(moments) - 1:  # one of each window: a line through them
        breaks, ticks = [], [text.rpartition(BETWEEN)[0] or text for text in ticks]
        times = times and (begins_of(releases, moments) or times)
    unknown = unbounded_sentence(releases.facts or {}, (name,)) or ""
    bias = bias_of(releases, name)
    return Chart(name, tuple(ticks), times, tuple(breaks), lines, bias, unknown)


def lately(
    releases: Releases, name: str, moments: list[Moment], most: int
) -> tuple[pa.Array, list[str]]:
    """Keys and labels of the groups of a chart: the largest of the last release that shows any.

    Where it shows too few, the largest of the releases before it follow.
    """
    found: dict[bytes, str] = {}
    for moment in reversed(moments):
        order = pa.array(np.argsort(-releases.column(moment, name), kind="stable"))
        keys = releases.keys(moment).take(order).to_pylist()[: most + len(found)]
        labels = key_labels(releases.table(moment).take(order[: len(keys)]), releases.key_names)
        for key, label in zip(keys, labels, strict=True):
            found.setdefault(key, label)
        if len(found) >= most:
            break
    chosen_keys = list(found)[:most]
    return pa.array(chosen_keys, pa.large_binary()), [found[key] for key in chosen_keys]


def key_labels(table: pa.Table, names: list[str]) -> list[str]:
    """Keys as short texts."""
    rows = rows_of(table.select(names)) if names else [{} for _ in range(table.num_rows)]
    return [key_label(row, names) for row in rows]


def times_of(releases: Releases, moments: list[Moment]) -> tuple[datetime, ...]:
    """The time up to which each release has rows, on the clocks of the query; or nothing."""
    found = [moment_of(releases.time(moment)) for moment in moments]
    known = tuple(time for time in found if time is not None)
    return known if len(known) == len(found) else ()


def begins_of(releases: Releases, moments: list[Moment]) -> tuple[datetime, ...]:
    """When the windows of some releases begin: June stands at June, and not where July does.

    Nothing where windows share their beginnings, or a release does not say its window.
    """
    places = [releases.time(moment) for moment in moments]
    begins = [None if one is None else instant_named(one.name, one.zone) for one in places]
    found = [
        None if us is None or one is None else moment_of(one._replace(until=us))
        for one, us in zip(places, begins, strict=True)
    ]
    known = tuple(time for time in found if time is not None)
    return known if len({*known}) == len(moments) else ()


def moment_of(place: ReleaseTime | None) -> datetime | None:
    """The time of a release as its clocks show it."""
    if place is None or place.until is None:
        return None
    shown = clock_of(place.until, place.zone)
    try:
        return datetime(1970, 1, 1) + timedelta(microseconds=shown)  # noqa: DTZ001  (a clock's)
    except OverflowError:
        return None


def tick(releases: Releases, moment: Moment) -> str:
    """A release on the axis: its trigger, and the day or time of its window."""
    place = releases.time(moment)
    if place is None or place.name == str(moment.window):
        return str(moment.trigger)
    return f"{place.name}{BETWEEN}{moment.trigger}"


def bias_of(releases: Releases, name: str) -> str:
    """The bias that the intervals do not cover."""
    outputs = (releases.facts or {}).get("outputs", [])
    bias = [one["bias"] for one in outputs if one["name"] == name and "bias" in one]
    lost = missing(releases.table(releases.moments[-1]).schema, (name,))
    return "; ".join(dict.fromkeys([*bias, *lost]))
