"""Windows against a plain reading of their definition."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import streamveil as sv
from streamveil.calendars import Cells
from streamveil.dataflow.windows import (
    Schedule,
    assign,
    far_ahead,
    hopping,
    most_windows,
    period_closes,
)
from tests.schedules import fixed_schedule


@st.composite
def schedules(draw):
    slide = draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["tumble", "hop", "cumulate"]))
    parts, origin = draw(st.integers(1, 4)), draw(st.integers(-20, 20))
    size = {"tumble": slide, "hop": draw(st.integers(slide, 30)), "cumulate": slide * parts}[kind]
    steps = draw(st.one_of(st.none(), st.integers(1, 20)))
    ticks = Cells(length_us=draw(st.integers(1, 15)), origin_us=draw(st.integers(-20, 20)))
    span, slides = (Cells(length_us=length, origin_us=origin) for length in (size, slide))
    schedule = Schedule(ticks=ticks, steps=steps, lateness_us=draw(st.integers(0, 10)))
    if kind == "cumulate":
        return replace(schedule, cells=slides, spans=span)
    pieces, stride, cells = hopping(span, slides)
    return replace(schedule, cells=cells, parts=pieces, stride=stride)


def holds(schedule, window, time):
    start, end = schedule.bounds(window)
    return start <= time < end


@given(
    schedules(), st.lists(st.integers(-60, 60), max_size=12), st.integers(1, 20), st.integers(0, 9)
)
def test_rows_meet_exactly_their_windows(schedule, times, step, due):
    assume(schedule.steps is None or step <= schedule.steps)
    rows, windows, reject_counts = assign(schedule, np.array(times, np.int64), step, due=due)
    wanted, late, early = [], 0, 0
    for row, time in enumerate(times):
        for window in range(-300, 300):
            if not holds(schedule, window, time):
                continue
            last = schedule.last_step(window)
            if last is not None and step > last:
                late += 1
            elif schedule.first_step(window) > max(step, due) + 1:
                early += 1
            else:
                wanted.append((row, window))
    assert list(zip(rows.tolist(), windows.tolist(), strict=True)) == wanted
    assert reject_counts == {k: v for k, v in {"late": late, "early": early}.items() if v}


@given(schedules(), st.integers(1, 20))
def test_active_windows_and_their_trigger_numbers(schedule, step):
    assume(schedule.steps is None or step <= schedule.steps)
    before, end = schedule.ticks.start(step - 1), schedule.ticks.start(step)
    wanted = []
    for window in range(-300, 300):
        start, stop = schedule.bounds(window)
        released_before = step > 1 and before >= stop + schedule.lateness_us
        if (
            end > start
            and not released_before
            and not (
                step == 1 and before >= stop + schedule.lateness_us  # over before the job began
            )
        ):
            wanted.append(window)
    assert list(schedule.active(step)) == wanted
    for window in wanted:
        assert 1 <= schedule.trigger(window, step) <= schedule.triggers


@given(schedules())
def test_triggers_are_the_most_of_any_window_and_no_more(schedule):
    """Of an endless schedule; every distance of windows and steps comes up within their product."""
    endless = replace(schedule, steps=None)
    counts = [
        endless.last_step(w) - endless.first_step(w) + 1
        for w in range(-300, 700)
        if endless.bounds(w)[0] >= endless.ticks.start(0)
    ]
    assert max(counts) == endless.triggers
    if schedule.steps is not None:
        assert schedule.triggers == min(endless.triggers, schedule.steps)


@given(schedules(), st.integers(1, 25), st.integers(-60, 60))
def test_a_period_takes_rows_until_its_last_window_closes(schedule, period, time):
    closes = period_closes(schedule, time // period, Cells(length_us=period))
    endless = replace(schedule, steps=None)
    _, windows, _ = assign(endless, np.array([time], np.int64), closes + 1)
    assert len(windows) == 0


def test_the_whole_stream_is_one_window():
    whole = Schedule(steps=5)
    rows, windows, reject_counts = assign(whole, np.array([5, -5], np.int64), 3)
    assert (rows.tolist(), windows.tolist(), reject_counts) == ([0, 1], [0, 0], {})
    assert (whole.active(3), whole.triggers, whole.trigger(0, 3)) == ((0,), 5, 3)


def test_after_its_last_step_the_whole_stream_takes_no_rows_and_makes_no_release():
    whole = Schedule(steps=5)
    rows, windows, reject_counts = assign(whole, np.array([5, -5], np.int64), 6)
    assert (len(rows), len(windows), reject_counts) == (0, 0, {"late": 2})
    assert (whole.active(5), whole.active(6), Schedule().active(6)) == (
        (0,),
        (),
        (0,),
    )


def test_unit_periods_far_ahead_are_early_where_no_window_says_so():
    whole = fixed_schedule(every_us=6, start_us=12, steps=9)
    periods = np.array([-5, 0, 1, 2, 3, 10**9])  # of 10: they begin at -50, 0, 10, 20, 30, ...
    assert (
        far_ahead(whole, periods, Cells(length_us=10), step=1).tolist() == [False] * 4 + [True] * 2
    )
    assert far_ahead(whole, periods, Cells(length_us=10), step=3).tolist() == [False] * 5 + [True]
    tumbling = fixed_schedule(every_us=6, size_us=24)
    for other in (tumbling, Schedule()):  # whose rows are early by their window, or at no time
        assert not far_ahead(other, periods, Cells(length_us=10), step=1).any()


@pytest.mark.parametrize("select", ["COUNT(*) AS n FROM t", "APPROX_FREQUENCY(g) AS n FROM t"])
def test_rows_of_one_unit_in_many_periods_to_come_keep_no_units(tmp_path, select):
    days = np.arange(200) * 86_400_000_000
    kind, ones = pa.timestamp("us", "UTC"), np.ones(200, np.int64)
    table = pa.table({"u": ones, "g": ones, "ts": pa.array(days, kind),
                      "seen": pa.array(days * 0, kind)})  # fmt: skip
    more = ", public_groups = [1]" if "APPROX" in select else ""
    query = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, steps = 2, "
        "privacy_unit_column = u, privacy_unit_period = INTERVAL 1 DAY, max_rows_contributed = 1, "
        f"start = '1970-01-01', arrival = seen{more}) {select} EMIT EVERY INTERVAL 1 DAY",
        {"t": sv.memory(table, event_time="ts")},
    )
    with query.run(state=tmp_path / "s") as job:
        next(job)
        assert job.counters()["early"] == 198
        assert job.counters()["units"] <= 2


@given(schedules())
def test_no_unit_meets_more_windows_than_a_bound_that_cuts_nobody_says(schedule):
    assume(schedule.parts == 1 and schedule.spans is None and schedule.steps is not None)
    every = np.arange(-80, schedule.ticks.start(schedule.steps))
    met = {
        window
        for step in range(1, schedule.steps + 1)
        for window in assign(schedule, every, step)[1].tolist()
    }
    assert len(met) <= most_windows(schedule, None)
