"""EXPLAIN: computed from the mechanisms, complete, and without reading data."""

import re
import sqlite3
import warnings
from contextlib import closing
from dataclasses import replace
from math import hypot

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil import sql
from streamveil.advise import explain, mechanism_rows, memory_rows, published_chance, shown_triggers
from streamveil.advise.explain_memory import Limit
from streamveil.advise.tune import forecast, read_sample
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.idle_options import idle_options
from streamveil.compiler.plan_forecast import threshold_of
from streamveil.core.accounting import Budget
from streamveil.errors import NoiseWarning, PlanError, SourceError
from streamveil.plan.look import with_look

SUMMED = {"n": sv.count(), "ms": sv.sum("ms", bounds=(0, 60_000))}


def query(budget=Budget(epsilon=2, delta=1e-8), keys=None, measures=SUMMED, **options):  # noqa: B008  # frozen
    return (
        sv.files("/nowhere/at/all.parquet", event_time="ts")
        .protect("user_id", per="1 day")
        .window(sv.tumble("1 day"))
        .group_by("url", keys=keys)
        .agg(**measures)
        .bound(max_rows=4, max_rows_per_group=1)
        .release(every="1 hour", start="2026-01-01", end="2026-02-01", budget=budget, **options)
    )


def test_it_is_complete_and_reads_nothing():
    text = str(query().explain(forecast=True))
    for words in ("PROMISE", "one user_id", "epsilon = ", "tumble of 1 day", "744 steps",
                  "standard deviation at release", "24", "units that publish a new", "FORECAST",
                  "BIAS", "MEMORY", "confidence", "0.95", "lateness", "counter"):  # fmt: skip
        assert words in text


SCRIPT = """
CREATE STREAM clicks (user_id STRING, url STRING, ts TIMESTAMP)
  WITH (source = 'files', path = '/nowhere/*.csv', event_time = 'ts', {source});
CREATE STREAM others (user_id STRING, url STRING, ts TIMESTAMP)
  WITH (source = 'files', path = '/nowhere/too/*.csv', event_time = 'ts', {other});
CREATE SINK pages WITH (sink = 'files', path = '/nowhere', {sink});
INSERT INTO pages SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6,
  privacy_unit_column = user_id, max_rows_contributed = 3) url, COUNT(*) AS n
FROM (SELECT c.user_id, c.url FROM clicks AS c JOIN others AS o ON c.user_id = o.user_id)
GROUP BY url
"""
RIGHT = {
    "source": "delimiter = ';'",
    "other": "max_line_bytes = 1000",
    "sink": "format = 'csv'",
}
WRONG = [
    ("source", "delimiter = ';;'", "delimiter is what ends a field"),
    ("source", "delimter = ';'", "did you mean 'delimiter'"),
    ("source", "format = 'cvs'", "unknown format 'cvs'; did you mean 'csv'"),
    ("source", "follow = 'no'", "the option 'follow' is TRUE or FALSE, without quotes, not 'no'"),
    ("other", "max_line_bytes = '9'", "'max_line_bytes' is a whole number, not '9'"),
    ("other", "fill_missing = 1", "'fill_missing' is TRUE or FALSE, without quotes, not 1"),
    ("other", "folder_columns = [1]", "'folder_columns' is a text in quotes or a list of texts"),
    ("sink", "format = 'cvs'", "sink 'files': unknown format 'cvs'"),
    ("sink", "fromat = 'csv'", "sink 'files' has no option 'fromat'"),
]


def test_options_of_sources_and_sinks_are_checked_and_nothing_is_read():
    assert sql(SCRIPT.format(**RIGHT)).explain().promise
    for place, option, message in WRONG:
        with pytest.raises(SourceError, match=message):
            sql(SCRIPT.format(**{**RIGHT, place: option})).explain()


@pytest.mark.parametrize(
    "change",
    [{"unit": "usr"}, {"key": "pgae"}, {"value": "mss"}],
    ids=["the unit", "a key", "a value"],
)
def test_a_column_that_a_table_in_memory_lacks_is_refused(change):
    names = {"unit": "user", "key": "page", "value": "ms"} | change
    rows = sv.memory({"user": [1, 2], "page": ["a", "b"], "ms": [3, 4]}).protect(names["unit"])
    made = rows.group_by(names["key"]).agg(ms=sv.sum(names["value"], bounds=(0, 9)))
    asked = made.bound(max_rows=4).release(budget=sv.Budget(epsilon=2, delta=1e-8))
    with pytest.raises(PlanError, match="unknown column"):
        asked.explain()


ASKED = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-8,"
    " privacy_unit_column = user_id{more}) {column}, COUNT(*) AS n FROM s GROUP BY {column}"
)


@pytest.mark.parametrize("form", ["parquet", "csv", "sqlite", "kafka"])
def test_a_column_that_is_known_to_be_missing_without_a_server_is_refused(form, tmp_path):
    table = pa.table({"user_id": [1, 2], "page": ["a", "b"]})
    pq.write_table(table, tmp_path / "s.parquet")
    pyarrow.csv.write_csv(table, tmp_path / "s.csv")
    with closing(sqlite3.connect(tmp_path / "s.sqlite")) as database:
        database.execute("CREATE TABLE s (user_id INTEGER, page TEXT)")
    declared, path = "(user_id INT64, page STRING)", f"path = '{tmp_path}/s.{form}'"
    stream = {
        "sqlite": f"{declared} WITH (source = 'sqlite', table = 's', {path})",
        "kafka": f"{declared} WITH (source = 'kafka', servers = 'nowhere:9', topic = 's')",
    }.get(form, f"WITH (source = 'files', {path})")
    live = ", start = TIMESTAMP '2026-01-01 00:00:00', end = TIMESTAMP '2026-01-03 00:00:00'"
    more, ending = (live, " EMIT EVERY INTERVAL 1 DAY") if form == "kafka" else ("", "")

    def explained(column: str) -> str:
        query = ASKED.format(column=column, more=more)
        return str(sv.sql(f"CREATE STREAM s {stream}; {query}{ending}").explain())

    assert "one user_id" in explained("page")
    with pytest.raises(PlanError, match=r"unknown column 'pages'; did you mean 'page'\?"):
        explained("pages")


@pytest.mark.parametrize("kind", ["noise", "true"])
def test_it_says_which_cut_rows_intervals_do_not_hold(kind):
    left_out = str(section(query(intervals=kind), "BIAS (not in the intervals)").rows)
    assert ("three times its share" in left_out) is (kind == "true")
    assert "rows of one unit beyond max_rows = 4" in left_out


@pytest.mark.parametrize(("value", "said"), [
    ("IF(ms > 100, 1, 0)", False), ("ms", True),
])  # fmt: skip
def test_values_are_said_to_be_cut_to_bounds_only_where_they_may_lie_beyond(value, said):
    made = query(measures={"share": sv.avg(value, bounds=(0, 1))})
    left_out = str(section(made, "BIAS (not in the intervals)").rows)
    assert ("values beyond [0, 1] count as the nearer end" in left_out) is said
    assert "clamped" not in left_out


def test_the_promise_is_that_of_the_operator_and_within_the_budget():
    made = query()
    facts = made.explain().facts
    assert facts["epsilon"] == compile_plan(with_look(made.plan)).guarantee.epsilon(
        made.plan.budget.delta
    )
    assert 1.9 < facts["epsilon"] <= 2
    small = query(Budget(epsilon="0.5", delta=1e-8)).explain().facts
    assert small["noise"]["n"][1] > 3 * facts["noise"]["n"][1]
    assert small["threshold"][24] > facts["threshold"][24] > 1


def test_the_promise_is_restated_only_where_there_is_a_number():
    table, plain = (query(selection=kind).explain().promise for kind in ("table", "gaussian"))
    assert "In other terms, apart from what delta pays for: " in table
    assert table.endswith("-zCDP.")
    assert "-zCDP and " in plain
    assert plain.endswith("-GDP.")
    assert "inf" not in table + plain


def test_the_noise_is_that_of_the_counters():
    operator = compile_plan(with_look(query().plan))
    output, lanes = operator.outputs[1], operator.aggregation.lanes
    expected = hypot(*(
        factor * float(operator.aggregation.counters[place].std(np.array([10]))[0])
        * float(lanes[place].quantum)
        for factor, place in zip(output.factors, output.lanes, strict=True)
    ))  # fmt: skip
    assert query().explain().facts["noise"]["ms"][10] == pytest.approx(expected)


def test_public_groups_have_no_threshold():
    made = query(keys=sv.public(["a", "b"]))
    assert "2 public" in str(made.explain(forecast=True))
    assert made.explain().facts["threshold"] == {1: None, 10: None, 24: None}


def test_what_the_user_set_is_no_default():
    rows = {row[0] for row in section(query(), "DEFAULTS").rows}
    set_now = {row[0] for row in section(query(confidence=0.9, lateness="1 h"), "DEFAULTS").rows}
    assert rows - set_now == {"confidence", "lateness"}
    assert all(len(row) == 3 and row[2] for row in section(query(), "DEFAULTS").rows)


def section(made, title):
    return next(one for one in made.explain().sections if one.title == title)


def test_releases_that_are_shown():
    assert shown_triggers(24) == (1, 10, 24)
    assert shown_triggers(1) == (1,)
    assert shown_triggers(None) == (1, 10, 100, 1_000)


@pytest.mark.parametrize(("end", "is_cut"), [("10:00", False), ("12:00", True)])
def test_it_says_that_an_end_between_two_steps_cuts_the_last(end, is_cut):
    text = f"""SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6,
      privacy_unit_column = u, start = '2026-01-01', end = '2026-01-01 {end}:00')
      k, COUNT(*) AS n FROM t GROUP BY k EMIT EVERY INTERVAL 5 HOUR"""
    rows = sv.memory({"u": [1], "k": ["a"], "at": [0]}, event_time="at")
    releases = dict(section(sv.sql(text, {"t": rows}), "QUERY").rows)["releases"]
    assert ("rows before 2026-01-01 12:00:00 UTC count" in releases) is is_cut


def test_a_whole_stream_and_a_zcdp_budget():
    plan = replace(query().plan, period_us=None)
    assert "over the whole stream" in explain(plan).promise
    zcdp = query(Budget(rho="0.1", delta=1e-8)).explain()
    assert "zCDP" in zcdp.promise
    assert zcdp.facts["epsilon"] < 3


def test_the_published_preset_is_explained():
    made = query(preset="dp-sqlp").explain(forecast=True)
    assert "in every round" in str(made)
    assert made.facts["epsilon"] <= 2
    assert made.facts["threshold"][24] > 1


def test_groups_that_do_not_fit_are_sent_to_a_sketch():
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, steps = 4, "
        "privacy_unit_column = u, max_rows_contributed = 4) k, COUNT(*) AS n FROM t GROUP BY k "
        "EMIT EVERY 100 ROWS"
    )
    plan = sv.sql(text, {"t": {"u": [1], "k": ["a"]}}).plan
    small = str(explain(plan, limit=Limit(memory=10**6, groups=10**5)))
    assert "HEAVY_HITTERS(k, k => 100, memory => 1000000)" in small
    assert "HEAVY_HITTERS" not in str(explain(plan, limit=Limit(memory=10**9, groups=10**5)))
    assert "groups in" not in str(explain(plan))


def test_memory_is_forecast_for_the_expected_units():
    plan = query().plan
    text = str(explain(plan, limit=Limit(units=10**6)))
    assert "1,000,000 units" in text
    assert "swept" not in text
    enough = str(explain(plan, limit=Limit(memory=4 << 30, units=10**6)))
    assert "units in 4,096 MiB" in enough
    assert "do not fit" not in enough
    text = str(explain(plan, limit=Limit(memory=1 << 30, units=10**9)))
    assert "1,000,000,000 units do not fit" in text
    fewer = str(explain(plan, limit=Limit(memory=1 << 30, units=10**9, groups=10**6)))
    assert fewer != text, "groups take room"


def test_groups_that_fit_leave_room_for_the_program():
    """Where no unit fits, no group does: the whole limit was said to be theirs."""
    plan = query().plan
    rows = dict(memory_rows(plan, compile_plan(plan), Limit(memory=400 << 20)))
    assert rows["groups in 400 MiB"] == "about 0, all published"
    assert rows["units in 400 MiB"].startswith("about 0;")
    most = dict(memory_rows(plan, compile_plan(plan), Limit(memory=1 << 30)))["groups in 1,024 MiB"]
    fits = int(most.split()[1].rstrip(",").replace(",", ""))
    beside = Limit(memory=1 << 30, groups=fits + 1)
    units = dict(memory_rows(plan, compile_plan(plan), beside))["units in 1,024 MiB"]
    assert fits > 10**5
    assert units.startswith("about 0;")


@pytest.mark.parametrize("least", [1, 20])
def test_half_of_the_groups_of_the_size_it_names_are_shown(least):
    made = query(keys=sv.discover(min_units=least))
    plan = with_look(made.plan)
    operator = compile_plan(plan)
    said = next(text for *_, text in mechanism_rows(plan, operator) if "of groups with" in text)
    units = float(said.split()[3])
    last = operator.schedule.triggers
    assert published_chance(operator, round(units), last) == pytest.approx(0.5, abs=0.15)
    asked = threshold_of(operator.aggregation, last, 0.0).units
    assert asked == pytest.approx(units, abs=0.1)


def test_the_longest_line_that_is_read_is_told_where_files_of_text_may_come():
    from streamveil.connectors.file_reader import MOST_LINE

    def told(path, **options):
        query = sv.files(path, event_time="ts", **options).protect("u").agg(n=sv.count())
        return str(
            query.bound(max_rows=2).release(budget=sv.Budget(epsilon=1, delta=1e-6)).explain()
        )

    line = rf"max_line_bytes +{MOST_LINE:,} +longer lines"
    assert re.search(line, told("a/*"))
    assert re.search(line, told("a.csv.gz"))
    assert "max_line_bytes" not in told("a.parquet") + told("a/*", format="parquet")
    assert "max_line_bytes" not in told("a.csv", max_line_bytes=1000)


HOURLY = "EMIT EVERY INTERVAL 1 HOUR"
DAYS = (
    "k, COUNT(*) AS n FROM TUMBLE(TABLE s, DESCRIPTOR(ts), size => INTERVAL 1 DAY)"
    " GROUP BY k, window_start"
)
LIVE = {
    "windows": ("source = 'kafka', servers = 'none:1', topic = 's', event_time = 'ts'", "steps = 3",
                "in windows"),
    "not read twice": ("source = 'sse', url = 'http://none/'", "steps = 3", "not read twice"),
    "no end": ("source = 'kafka', servers = 'none:1', topic = 's'", "steps = 'unbounded'",
               "no known number of releases"),
    "many releases": ("source = 'kafka', servers = 'none:1', topic = 's'", "steps = 101",
                      "more than 100 releases"),
    "periods": ("source = 'kafka', servers = 'none:1', topic = 's', event_time = 'ts'",
                "steps = 3, privacy_unit_period = INTERVAL 1 DAY", None),
    "curves": ("source = 'kafka', servers = 'none:1', topic = 's', event_time = 'ts'",
               "steps = 3, privacy_unit_period = INTERVAL 1 DAY", "would weaken the promise"),
    "none is wanted": ("source = 'kafka', servers = 'none:1', topic = 's'",
                       "steps = 3, look_share = 0", "look_share is 0"),
    "expected": ("source = 'sse', url = 'http://none/'", "steps = 3, expected_rows = 5", None),
    "a look": ("source = 'kafka', servers = 'none:1', topic = 's'", "steps = 3", None),
}  # fmt: skip


@pytest.mark.parametrize("name", LIVE)
def test_it_says_why_no_look_chooses_the_settings(name):
    source, asked, why = LIVE[name]
    what = DAYS if name in ("windows", "curves") else "k, COUNT(*) AS n FROM s GROUP BY k"
    plan = sql(
        f"CREATE STREAM s (u BIGINT, k BIGINT, ts TIMESTAMP) WITH ({source});"
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-9,"
        f" privacy_unit_column = u, clock = 'wall', start = '2026-01-01', {asked})"
        f" {what} {HOURLY}"
    ).plan
    text = " ".join(str(explain(plan)).split())
    assert ("no look at the rows" in text) == (why is not None)
    if why is not None:
        assert why in text
        assert "expected_units, expected_rows and expected_groups" in text


def test_it_says_which_options_decide_nothing_for_a_sketch(tmp_path):
    """All were passed over in silence, intervals = 'true' and confidence = 0.999 among them."""
    rows = sv.memory({"u": range(4000), "k": [1, 2] * 2000}).protect("u")
    budget = sv.Budget(epsilon=2, delta=1e-6)
    given = {"intervals": "true", "non_negative": True, "confidence": 0.999, "max_units": 10**6}
    query = rows.agg(n=sv.heavy_hitters("k", k=1)).bound(max_rows=1).release(budget=budget, **given)
    said = str(query.explain()).partition("NOT USED")[2]
    assert all((name in said) == (name in ("intervals", "non_negative")) for name in given)
    with pytest.warns(NoiseWarning, match="intervals = true is for counts and sums"):
        (release,) = query.run(state=tmp_path / "s")
    assert "over the contribution bound" in release.notes[0]
    row = release.table.to_pylist()[0]
    assert row["n_high"] - row["n"] == round(3.2905 * row["n_sd"])  # whole steps away


@pytest.mark.parametrize(("given", "idle"), [
    ({"selection": "gaussian", "hidden_groups": 2, "mu_share": 0.5}, ("hidden_groups", "mu_share")),
    ({"selection": "gaussian", "total_tests": 1, "delta_share": 0.3}, ("total_tests",)),
    ({"selection": "totals", "selection_share": 0.3, "total_tests": 2}, ("selection_share",)),
    ({"selection": "table", "hidden_groups": 2, "thresholds": "published"}, ("thresholds",)),
    ({"weights": "flat", "entry_weight": 0.5, "selection": "table"}, ("entry_weight",)),
    ({"look_share": 0, "expected_units": 1000}, ("expected_units",)),
    ({"expected_rows": 3, "expected_units": 1000}, ()),
    ({"selection": "table", "total_tests": 0}, ()),
    ({"preset": "dp-sqlp", "selection": "gaussian", "thresholds": "published"}, ("selection",)),
])  # fmt: skip
def test_it_says_which_options_decide_nothing(given, idle, tmp_path):
    """They were passed over in silence. What is not named changes the mechanisms."""
    rows = sv.memory({"u": [1, 2], "k": [1, 1]}).protect("u").group_by("k").agg(n=sv.count())
    budget = sv.Budget(epsilon=2, delta=1e-6)
    query = rows.bound(max_rows=4).release(budget=budget, **given)
    operator = compile_plan(with_look(query.plan))
    assert {name for name, *_ in idle_options(with_look(query.plan), operator)} == {*idle}
    said = str(query.explain())
    assert ("NOT USED" in said) == bool(idle)
    for name in given.keys() - {"preset", "look_share", "weights"}:
        others = {one: value for one, value in given.items() if one != name}
        without = rows.bound(max_rows=4).release(budget=budget, **others)
        same = compile_plan(with_look(without.plan)).design == operator.design
        assert same or name not in idle, f"{name} decides something"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        list(query.run(state=tmp_path / "s"))
    assert any("decides nothing" in str(one.message) for one in seen) == bool(idle)


@pytest.mark.parametrize(("given", "says"), [
    ("min_privacy_units_per_group = 5", "without GROUP BY .* always shown"),
    ("lateness = INTERVAL 1 HOUR", "lateness does not apply"),
])  # fmt: skip
def test_what_can_never_apply_is_refused(given, says):
    text = (
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, {given},"
        " privacy_unit_column = u) COUNT(*) AS n FROM t"
    )
    with pytest.raises(PlanError, match=says):
        sv.sql(text, {"t": sv.memory({"u": [1]})})


@pytest.mark.parametrize(
    "every", [{}, {"every": "1 hour", "start": "2026-01-01", "end": "2026-01-02"}]
)
def test_noise_of_large_groups_is_what_was_forecast(every, tmp_path):
    rows = 40_000
    at = np.datetime64("2026-01-01", "us") + np.arange(rows) * (86_400_000_000 // rows)
    table = pa.table({
        "user": np.arange(rows), "page": np.arange(rows) % 4,
        "ts": pa.array(at, pa.timestamp("us", "UTC")),
    })  # fmt: skip
    asked = (
        sv.memory(table, event_time="ts").protect("user").group_by("page").agg(n=sv.count())
        .release(budget=sv.Budget(epsilon=4, delta=1e-6), look_share=0, **every)
    )  # fmt: skip
    *_, release = asked.run(state=tmp_path / "state")
    sd = np.mean(release.table["n_sd"].to_pylist())
    told = str(asked.explain(forecast=True))
    line = next(line for line in told.splitlines() if "10,000 units by then" in line)
    assert float(line.rpartition("± ")[2].rstrip("%")) == pytest.approx(sd / 100, abs=0.06)
    share = sv.what_if(asked, units=10_000).table.to_pylist()[0]["error"]
    assert share * 10_000 == pytest.approx(sd, rel=0.03)
    assert ("large groups: noise grows" in told) == bool(every)
    if not every:
        errors = forecast(asked.plan, read_sample(asked.plan, table, 1.0), asked.plan.bounding)
        assert errors.l1 == pytest.approx(4 * sd * (2 / np.pi) ** 0.5, rel=0.03)
