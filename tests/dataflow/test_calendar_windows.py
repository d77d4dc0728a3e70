"""Windows, steps and unit-periods of a calendar against a plain reading of their definition."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.calendars import DAY, HOUR, Cells, clock_of, rules_of
from streamveil.dataflow.windows import (
    Schedule,
    assign,
    better_start,
    hopping,
    period_closes,
    periods_apart,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = ("Europe/Berlin", "Pacific/Apia", "America/St_Johns", "Australia/Lord_Howe")
SIZES = (
    {"months": 1}, {"months": 3}, {"length_us": DAY}, {"length_us": 7 * DAY},
    {"length_us": 6 * HOUR},
)  # fmt: skip


def us_of(*parts):
    return (datetime(*parts, tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


@st.composite
def calendars(draw):
    """Schedules of a year or less around a change of the clocks."""
    zone = draw(st.sampled_from(ZONES))
    changes = [at for at in rules_of(zone).starts.tolist() if us_of(1990, 1, 1) < at]
    near = draw(st.sampled_from(changes[:80])) - draw(st.integers(0, 40)) * DAY
    size = draw(st.sampled_from(SIZES))
    every = draw(st.sampled_from([{"length_us": DAY}, {"months": 1}, {"length_us": 5 * HOUR}]))
    day = Cells(length_us=DAY, zone=zone)
    start = day.start(day.number(near)) if draw(st.booleans()) else near // HOUR * HOUR
    try:
        ticks = Cells(**every, origin_us=clock_of(start, zone), zone=zone)
    except ValueError:  # on the 29th to 31st of a month
        ticks = Cells(length_us=DAY, origin_us=clock_of(start, zone), zone=zone)
    steps = draw(st.integers(1, 4 if ticks.months else 90))
    late = draw(st.sampled_from([0, 3 * HOUR, 2 * DAY]))
    schedule = Schedule(ticks=ticks, steps=steps, lateness_us=late)
    cells = Cells(**size, zone=zone)
    shape = draw(st.sampled_from(["tumble", "hop", "cumulate"]))
    if shape == "hop":
        longer = replace(cells, months=2 * cells.months, length_us=2 * cells.length_us)
        parts, stride, common = hopping(longer, cells)
        return replace(schedule, cells=common, parts=parts, stride=stride)
    finer = Cells(length_us=DAY, zone=zone)
    if shape == "cumulate" and finer.refines(cells):
        return replace(schedule, cells=finer, spans=cells)
    return replace(schedule, cells=cells)


def numbers_near(schedule):
    low, high = schedule.ticks.start(0), schedule.ticks.start(schedule.steps)
    first = schedule.cells.number(low - 200 * DAY) // schedule.stride - 3
    return range(first, schedule.cells.number(high + 100 * DAY) // schedule.stride + 3)


def released(schedule, window):
    """The steps that release a window, by the sentence that defines them."""
    start, end = schedule.bounds(window)
    ends = [schedule.ticks.start(i) for i in range(schedule.steps + 1)]
    reached = end + schedule.lateness_us
    return [
        i for i in range(1, schedule.steps + 1)
        if start < end and ends[i] > start and ends[i - 1] < reached
    ]  # fmt: skip


def cell_is_empty(schedule, window):
    return schedule.spans is not None and bool(schedule.cells.empty(np.array([window]))[0])


@settings(max_examples=60, deadline=None)
@given(calendars(), st.data())
def test_windows_of_a_calendar_are_released_as_defined(schedule, data):
    step = data.draw(st.integers(1, schedule.steps))
    numbers = numbers_near(schedule)
    steps = {w: released(schedule, w) for w in numbers if not cell_is_empty(schedule, w)}
    assert [w for w in steps if step in steps[w]] == list(schedule.active(step))
    assert schedule.triggers == max(1, *map(len, steps.values()))  # exact, and never too few
    for window in schedule.active(step):
        assert schedule.trigger(window, step) == steps[window].index(step) + 1


@settings(max_examples=60, deadline=None)
@given(calendars(), st.data())
def test_rows_meet_exactly_their_windows_of_a_calendar(schedule, data):
    low, high = schedule.ticks.start(0) - 3 * DAY, schedule.ticks.start(schedule.steps) + 2 * DAY
    changes = [at + d for at in rules_of(schedule.ticks.zone).starts.tolist() for d in (-1, 0)
               if low <= at <= high]  # fmt: skip
    picked = st.one_of(st.integers(low, high), *([st.sampled_from(changes)] if changes else []))
    times = data.draw(st.lists(picked, min_size=1, max_size=8))
    step = data.draw(st.integers(1, schedule.steps))
    rows, windows, _ = assign(schedule, np.array(times, np.int64), step)
    wanted = []
    for row, time in enumerate(times):
        for window in numbers_near(schedule):
            start, end = schedule.bounds(window)
            if not start <= time < end or cell_is_empty(schedule, window):
                continue
            if schedule.first_step(window) <= step + 1 and step <= schedule.last_step(window):
                wanted.append((row, window))
    assert list(zip(rows.tolist(), windows.tolist(), strict=True)) == wanted


@settings(max_examples=60, deadline=None)
@given(calendars(), st.sampled_from(SIZES), st.data())
def test_a_period_of_a_calendar_takes_rows_until_its_last_window_closes(schedule, size, data):
    periods = Cells(**size, zone=schedule.ticks.zone)
    low, high = schedule.ticks.start(0), schedule.ticks.start(schedule.steps)
    time = data.draw(st.integers(low, high))
    closes = period_closes(schedule, periods.number(time), periods)
    endless = replace(schedule, steps=None)
    _, windows, _ = assign(endless, np.array([time], np.int64), closes + 1)
    assert len(windows) == 0
    if periods_apart(schedule, periods):
        window = int(schedule.cells.number(time))
        start, end = schedule.bounds(window)
        assert periods.number(start) == periods.number(end - 1) == periods.number(time)


def test_the_most_releases_of_a_month_are_those_of_its_longest():
    """31 days, and one hour more where clocks are set back; noise is sized for no more and no less.

    A planted fault: sized by 30 days, or by 31 days of 24 hours, a counter would run out.
    """
    zone = "Europe/Berlin"
    month = Cells(months=1, zone=zone)
    for every, most in (
        (Cells(length_us=DAY, zone=zone), 31),
        (Cells(length_us=HOUR), 31 * 24 + 1),
    ):
        start = month.start(672)  # January 2026
        ticks = replace(every, origin_us=clock_of(start, every.zone))
        year = Schedule(ticks=ticks, cells=month, steps=ticks.number(month.start(684)))
        assert year.triggers == most
        assert replace(year, steps=None).triggers == most  # endless, up to 2200
        short = replace(year, steps=ticks.number(month.start(674)) - ticks.number(month.start(673)))
        moved = replace(
            short, ticks=replace(ticks, origin_us=clock_of(month.start(673), every.zone))
        )
        assert moved.triggers == 28 * (1 if every.zone else 24)  # February alone


def test_nothing_is_released_after_the_calendar_ends():
    zone = "Europe/Berlin"
    day, month = Cells(length_us=DAY, zone=zone), Cells(months=1, zone=zone)
    endless = Schedule(ticks=day, cells=month)
    last = day.number(us_of(2200, 1, 1))
    assert endless.active(last)
    assert endless.active(last + 1) == ()


@pytest.mark.parametrize(("start", "better"), [
    ((2026, 1, 5), None), ((2026, 1, 7), (us_of(2026, 1, 5), 1)),
])  # fmt: skip
def test_a_start_inside_a_week_is_told_with_the_way_out(start, better):
    week = Cells(length_us=7 * DAY, origin_us=4 * DAY)
    schedule = Schedule(ticks=replace(week, origin_us=us_of(*start)), cells=week, steps=9)
    assert schedule.triggers == (1 if better is None else 2)
    assert better_start(schedule) == better


def test_periods_of_other_clocks_share_windows():
    berlin = Schedule(ticks=Cells(length_us=HOUR), cells=Cells(length_us=DAY, zone="Europe/Berlin"))
    assert periods_apart(berlin, Cells(months=1, zone="Europe/Berlin"))
    assert not periods_apart(berlin, Cells(length_us=DAY))
    assert not periods_apart(berlin, Cells(length_us=12 * HOUR, zone="Europe/Berlin"))
