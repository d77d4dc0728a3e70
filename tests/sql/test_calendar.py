"""Calendar time in the two spellings: months, weeks, zones, origins, and what is refused."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.calendars import DAY, HOUR, zone_info
from streamveil.errors import PlanError
from streamveil.expressions import compile_expression
from streamveil.expressions.dialect import canonical, parse_text

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BERLIN = zone_info("Europe/Berlin")
BUDGET = sv.Budget(epsilon=1, delta=1e-9)
CLAUSE = "epsilon = 1, delta = 1e-9, privacy_unit_column = u, max_rows_contributed = 4"


def us_of(*parts, zone=UTC):
    return (datetime(*parts, tzinfo=zone) - EPOCH) // timedelta(microseconds=1)


def rows(times):
    at = pa.array(times, pa.timestamp("us", "UTC"))
    return pa.table({"u": range(len(times)), "ts": at})


TABLE = rows([us_of(2026, 1, 1)])


def asked(frame, emit, more=""):
    text = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({CLAUSE}, start = '2026-01-01', "
        f"end = '2027-01-01'{more}) COUNT(*) AS n FROM {frame} EMIT EVERY {emit}"
    )
    return sv.sql(text, {"t": sv.memory(TABLE, event_time="ts")})


def built(window, every, per=None, **more):
    return (
        sv.memory(TABLE, event_time="ts", name="t").protect("u", per=per).window(window)
        .agg(n=sv.count()).bound(max_rows=4)
        .release(every=every, start="2026-01-01", end="2027-01-01", budget=BUDGET, **more)
    )  # fmt: skip


def frame(kind, rest):
    return f"{kind}(TABLE t, DESCRIPTOR(ts), {rest})"


SPELLINGS = {
    "months in a zone": (
        frame("TUMBLE", "size => INTERVAL 1 MONTH"), "INTERVAL 1 MONTH",
        "time_zone = 'Europe/Berlin', privacy_unit_period = INTERVAL 1 MONTH",
        lambda: built(sv.tumble("1 month", tz="Europe/Berlin"), "1 month", per="1 month"),
    ),
    "quarters by day": (
        frame("CUMULATE", "step => INTERVAL 1 DAY, size => INTERVAL 1 QUARTER"), "INTERVAL 1 DAY",
        "time_zone = 'America/New_York'",
        lambda: built(sv.cumulate("1 quarter", "1 day"), "1 day", time_zone="America/New_York"),
    ),
    "years": (
        frame("TUMBLE", "size => INTERVAL 1 YEAR, origin => TIMESTAMP '2020-07-01'"),
        "INTERVAL 1 MONTH", "",
        lambda: built(sv.tumble("1 year", origin="2020-07-01"), "1 month"),
    ),
    "weeks from Sunday": (
        frame("TUMBLE", "size => INTERVAL 1 WEEK, week_start => 'sunday'"), "INTERVAL 1 DAY",
        "privacy_unit_period = INTERVAL 1 WEEK",
        lambda: built(sv.tumble("1 week", week_start="sunday"), "1 day", per="1 week"),
    ),
    "days from six": (
        frame("TUMBLE", "size => INTERVAL 1 DAY, offset => INTERVAL 6 HOUR"), "INTERVAL 6 HOUR",
        "privacy_unit_period = INTERVAL 1 DAY",
        lambda: built(sv.tumble("1 day", offset="6 hours"), "6 hours", per="1 day"),
    ),
    "half years every quarter": (
        frame("HOP", "slide => INTERVAL 3 MONTH, size => INTERVAL 6 MONTH"), "INTERVAL 1 QUARTER",
        "", lambda: built(sv.hop("6 months", "1 quarter"), "1 quarter"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SPELLINGS.values(), ids=SPELLINGS)
def test_both_spellings_are_one_plan(case):
    text, emit, more, python = case
    sql = asked(text, emit, f", {more}" if more else "").plan
    assert sql.fingerprint == python().plan.fingerprint


@pytest.mark.parametrize(("name", "triggers"), [
    ("months in a zone", 1), ("quarters by day", 92), ("years", 6), ("weeks from Sunday", 7),
    ("days from six", 4), ("half years every quarter", 2),
])  # fmt: skip
def test_noise_is_sized_for_the_releases_of_the_longest_window(name, triggers):
    assert SPELLINGS[name][3]().explain().facts["triggers"] == triggers


WEEKS = [  # windows, and whether weeks that begin on Mondays are made of them
    ("size => INTERVAL 1 DAY", True), ("size => INTERVAL 6 HOUR", True),
    ("size => INTERVAL 1 WEEK", True), ("size => INTERVAL 1 DAY, offset => INTERVAL 1 HOUR", False),
    ("size => INTERVAL 1 WEEK, week_start => 'sunday'", False), ("size => INTERVAL 7 DAY", False),
    ("size => INTERVAL 5 HOUR", False),
]  # fmt: skip


@pytest.mark.parametrize("zone", ["", ", time_zone = 'Europe/Berlin'"])
@pytest.mark.parametrize(("window", "mondays"), WEEKS)
def test_protected_weeks_begin_on_mondays_where_windows_let_them(window, mondays, zone):
    more = zone + ", privacy_unit_period = INTERVAL 1 WEEK"
    plan = asked(frame("TUMBLE", window), "INTERVAL 1 HOUR", more).plan
    assert (plan.periods.begins == "1970-01-05 00:00") is mondays
    assert plan.window.size.refines(plan.periods) is (plan.window.size_us != 5 * HOUR)


@pytest.mark.parametrize("name", ["months in a zone", "weeks from Sunday", "days from six"])
def test_unit_periods_begin_where_windows_do(name):
    assert SPELLINGS[name][3]().explain().facts["guarantee"]["separate"]


def test_time_zones_decide_when_a_query_starts_and_releases(tmp_path):
    """Every day at local midnight, over both changes of the clocks; each row in its day."""
    days = [datetime(2026, 3, d, tzinfo=BERLIN) for d in range(27, 32)]
    days += [datetime(2026, 10, d, tzinfo=BERLIN) for d in range(23, 28)]
    edges = [(day - EPOCH) // timedelta(microseconds=1) for day in days]
    times = np.repeat(edges, 1000) + np.tile([0, 1], 5000)
    query = (
        sv.memory(rows(times.tolist()), event_time="ts").protect("u", per="1 day")
        .window(sv.tumble("1 day", tz="Europe/Berlin")).agg(n=sv.count()).bound(max_rows=1)
        .release(every="1 day", start="2026-03-27", end="2026-10-28",
                 budget=sv.Budget(epsilon=40, delta=1e-9))
    )  # fmt: skip
    assert query.explain().facts["triggers"] == 1
    found = {}
    for release in query.run(state=tmp_path / "s"):
        [row] = release.to_arrow().to_pylist()
        hours = (row["window_end"] - row["window_start"]) / timedelta(hours=1)
        assert hours in (23, 24, 25)
        found[row["window_start"]] = row["n"]
    assert len(found) == 215
    for day in days:
        assert abs(found[day] - 1000) < 50  # noise of about 1; 1,000 rows in a day beside it
    others = [n for start, n in found.items() if start not in days]
    assert max(map(abs, others)) < 50


REFUSED = {
    "weeks in months": (frame("CUMULATE", "step => INTERVAL 1 WEEK, size => INTERVAL 1 MONTH"),
                        "INTERVAL 1 WEEK", "", "a multiple of its step"),
    "months by days": (frame("HOP", "slide => INTERVAL 1 DAY, size => INTERVAL 1 MONTH"),
                       "INTERVAL 1 DAY", "", "both in months"),
    "an unknown zone": (frame("TUMBLE", "size => INTERVAL 1 DAY"), "INTERVAL 1 DAY",
                        ", time_zone = 'Europe/Berlim'", "did you mean 'Europe/Berlin'"),
    "a week of days": (frame("TUMBLE", "size => INTERVAL 7 DAY, week_start => 'monday'"),
                       "INTERVAL 1 DAY", "", "week_start goes with a size in weeks"),
    "a day of no week": (frame("TUMBLE", "size => INTERVAL 1 WEEK, week_start => 'mon'"),
                         "INTERVAL 1 DAY", "", "did you mean 'monday'"),
    "an origin with an offset": (
        frame("TUMBLE", "size => INTERVAL 1 DAY, origin => TIMESTAMP '2026-01-01 00:00:00+01:00'"),
        "INTERVAL 1 DAY", "", "without an offset"),
    "months from the 31st": (
        frame("TUMBLE", "size => INTERVAL 1 MONTH, origin => TIMESTAMP '2026-01-31'"),
        "INTERVAL 1 DAY", "", "a day up to 28"),
    "days in months between releases": (frame("TUMBLE", "size => INTERVAL 1 DAY"),
                                        "INTERVAL 1 MONTH", "", "shorter than the time between"),
    "a lateness of a month": (frame("TUMBLE", "size => INTERVAL 1 MONTH"), "INTERVAL 1 MONTH",
                              ", lateness = INTERVAL 1 MONTH", "no fixed length"),
    "an unknown argument": (frame("TUMBLE", "size => INTERVAL 1 DAY, week_stat => 'monday'"),
                            "INTERVAL 1 DAY", "", "did you mean 'week_start'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_names_the_cause(case):
    text, emit, more, message = case
    with pytest.raises(PlanError) as caught:
        asked(text, emit, more)
    assert message in str(caught.value)


def test_python_refuses_what_sql_does():
    with pytest.raises(PlanError, match="one time zone, not"):
        built(sv.tumble("1 day", tz="Asia/Tokyo"), "1 day", time_zone="Europe/Berlin")
    with pytest.raises(PlanError, match="mixes months"):
        sv.tumble("1 month 2 days")
    with pytest.raises(PlanError, match="up to the year 2200"):
        sv.memory(TABLE, event_time="ts").protect("u").window(sv.tumble("1 month")).agg(
            n=sv.count()).bound(max_rows=1).release(
            every="1 month", start="2190-01-01", end="2300-01-01", budget=BUDGET)  # fmt: skip


def test_a_start_in_the_hour_that_is_shown_twice_is_refused():
    text = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({CLAUSE}, time_zone = 'Europe/Berlin', "
        "start = '2026-10-25 02:30:00+02:00', steps = 3) COUNT(*) AS n FROM t "
        "EMIT EVERY INTERVAL 1 DAY"
    )
    with pytest.raises(PlanError, match="show the time of start twice"):
        sv.sql(text, {"t": sv.memory(TABLE, event_time="ts")})


def test_a_start_inside_a_week_is_warned_of_and_the_way_out_is_one():
    query = built(sv.tumble("1 week"), "1 week")  # 1 January 2026 is a Thursday
    text = str(query.explain())
    assert "windows get up to 2 releases" in text
    assert "start = '2025-12-29 00:00:00'" in text
    better = built(sv.tumble("1 week", week_start="thursday"), "1 week").explain()
    assert "WARNING" not in str(better)
    assert better.facts["triggers"] == 1


def test_plans_without_a_calendar_are_named_as_before():
    """States of queries that say nothing about calendars go on: their plans have no new fields."""
    plan = built(sv.tumble("1 day"), "1 day").plan
    assert "zone" not in str(plan.fingerprint)
    from streamveil.plan import plain

    assert set(plain(plan.window)) == {"kind", "size_us", "slide_us", "lateness_us"}
    assert not {"months", "zone"} & set(plain(plan.clock))
    assert {"origin_us", "zone"} < set(
        plain(built(sv.tumble("1 week", tz="Asia/Tokyo"), "1 week").plan.window)
    )


def test_other_rules_of_a_zone_are_another_query(monkeypatch):
    before = built(sv.tumble("1 month", tz="Europe/Berlin"), "1 month").plan.fingerprint
    monkeypatch.setattr("streamveil.plan.digest", lambda zone: "other rules")
    after = built(sv.tumble("1 month", tz="Europe/Berlin"), "1 month").plan.fingerprint
    assert before != after


def test_a_query_may_ask_for_parts_of_times_in_a_zone():
    """Written again for the plan, the zone became DATETIME(...), which no row has."""
    hour = "EXTRACT(HOUR FROM ts AT TIME ZONE 'Europe/Berlin')"
    assert canonical(parse_text(hour)) == hour
    times = pa.array([us_of(2026, 7, 1, 4)] * 400, pa.timestamp("us"))
    t = pa.table({"u": range(400), "ts": times})
    text = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 9, delta = 1e-6,
        privacy_unit_column = u, max_rows_contributed = 1, public_groups = [4, 6])
        {} AS hour, COUNT(*) AS n FROM t GROUP BY hour"""
    asked = [
        sv.sql(text.format(hour), {"t": t}),
        sv.memory(t, name="t").protect("u").group_by(hour=hour, keys=sv.public([4, 6]))
        .agg(n=sv.count()).bound(max_rows=1).release(budget=sv.Budget(epsilon=9, delta="1e-6")),
    ]  # fmt: skip
    for query in asked:
        found = {row["hour"]: row["n"] for row in query.answer().to_arrow().to_pylist()}
        assert found[4] < 200 < found[6]


CLOCKS = [us_of(2026, 3, 29, 0, 59), us_of(2026, 3, 29, 1), us_of(2026, 10, 25, 0, 30),
          us_of(2026, 10, 25, 1, 30), us_of(2026, 12, 31, 23, 30), None, 9 * 10**18]  # fmt: skip


def test_functions_of_a_row_follow_the_clocks_of_a_zone():
    table = pa.table({"ts": pa.array(CLOCKS, pa.timestamp("us", "UTC"))})

    def found(text):
        return compile_expression(text, table.schema)(table).to_pylist()[:6]

    local = [None if us is None else (EPOCH + timedelta(microseconds=us)).astimezone(BERLIN)
             for us in CLOCKS[:6]]  # fmt: skip
    assert found("DATE(ts, 'Europe/Berlin')") == [one and one.date() for one in local]
    hours = found("EXTRACT(HOUR FROM ts AT TIME ZONE 'Europe/Berlin')")
    assert hours == [None if one is None else one.hour for one in local]
    days = found("TIMESTAMP_TRUNC(ts, DAY, 'Europe/Berlin')")
    midnight = {"hour": 0, "minute": 0, "second": 0, "microsecond": 0, "fold": 0}
    assert days == [one and one.replace(**midnight) for one in local]
    months = found("TIMESTAMP_TRUNC(ts, MONTH, 'Europe/Berlin')")
    assert months == [one and one.replace(**midnight, day=1) for one in local]
    hours = found("TIMESTAMP_TRUNC(ts, HOUR, 'Europe/Berlin')")
    assert [one and one.hour for one in hours] == [0, 1, 0, 1, 23, None]
    assert found("TIMESTAMP(DATE(ts, 'Europe/Berlin'), 'Europe/Berlin')") == days
    window = sv.tumble("1 month", tz="Europe/Berlin").size
    starts = [
        (EPOCH + timedelta(microseconds=window.start(window.number(us)))) for us in CLOCKS[:5]
    ]
    assert months[:5] == starts  # what is grouped by is the window


def test_windows_of_hours_that_divide_a_day_follow_clocks_and_shorter_ones_do_not():
    six, one = (sv.tumble(size, tz="Europe/Berlin").size for size in ("6 hours", "1 hour"))
    night = six.number(us_of(2026, 10, 25, 0))
    assert six.start(night + 1) - six.start(night) == 7 * HOUR
    assert one.start(5) - one.start(4) == HOUR
    assert sv.tumble("1 day").size.length_us == DAY
