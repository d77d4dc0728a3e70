"""The Python spelling, and that SQL and Python give the same plan."""

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamveil as sv
from streamveil.core.accounting import Budget
from streamveil.errors import PlanError
from streamveil.sql.parts import duration_us
from streamveil.sql.sql import parse_script
from tests.dynamic.test_arguments import Lies

BUDGET = Budget(epsilon=1, delta=1e-9)


def base():
    return sv.files("t.parquet", event_time="ts").protect(unit="user_id").bound(max_rows=4)


def test_steps_are_values():
    one = base().group_by("url")
    two = one.agg(n=sv.count())
    assert one.measures == ()
    assert two.release(budget=BUDGET).plan.clock.kind == "once"
    with pytest.raises(PlanError, match="nothing is aggregated"):
        one.release(budget=BUDGET)


def test_a_step_adds_to_an_earlier_one():
    several = base().agg(n=sv.count()).agg(s=sv.sum("ms", bounds=(0, 1)))
    more = several.bound(max_rows_per_group=2).bound(max_rows=8)
    assert (
        more.release(budget=BUDGET).plan
        == (
            base()
            .agg(n=sv.count(), s=sv.sum("ms", bounds=(0, 1)))
            .bound(8, 2)
            .release(budget=BUDGET)
        ).plan
    )
    people = sv.table(sv.files("t.parquet"), id="id", operation="op", domains={"age": range(9)})
    counted = people.agg(n=sv.count()).agg(young=sv.count_if("age < 5"))
    assert counted.measures == people.agg(n=sv.count(), young=sv.count_if("age < 5")).measures
    for again in (
        lambda: base().group_by("url").group_by("city"),
        lambda: base().window(sv.tumble("1 day")).window(sv.tumble("1 hour")),
        lambda: people.group_by("age").marginals(ways=1),
    ):
        with pytest.raises(PlanError, match="was called before"):
            again()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: base().agg(n=sv.count()).release(budget=BUDGET, evry="1 h"), "did you mean"),
        (lambda: base().agg(n=sv.count()).release(budget=1), "must be a Budget"),
        (lambda: base().agg(n="count"), "must be an aggregate"),
        (lambda: base().window("1 day"), "window takes"),
        (lambda: base().group_by("url", keys=["a"]), "discover"),
        (lambda: base().where("lowr(x) = 1").agg(n=sv.count()).release(budget=BUDGET), "'LOWER'?"),
        (lambda: base().where("x IN (SELECT 1)").agg(n=sv.count()).release(budget=BUDGET), "rows"),
        (lambda: sv.tumble("1 fortnight"), "unknown unit"),
        (lambda: sv.tumble("day"), "must read like"),
        (lambda: sv.tumble(3600), "timedelta"),
        (lambda: sv.tumble("1 day", tz=5), "tz must be text, not 5"),
        (lambda: base().group_by("url", sets=[5]), "a set must be groups"),
        (lambda: sv.tumble("0 days"), "longer than zero"),
        (lambda: sv.rows(0), "at least 1"),
        (lambda: sv.rows(np.timedelta64(3, "s")), "whole number"),
        (lambda: sv.rows(np.True_), "whole number"),
        (lambda: base().agg(s=sv.sum("x", bounds=3)).release(budget=BUDGET), "pair"),
        (lambda: base().agg(q=sv.quantile("x", 2, bounds=(0, 1))).release(budget=BUDGET), "0 and"),
        (lambda: sv.files("t.parquet").agg(n=sv.count()).release(budget=BUDGET), "who is"),
        (lambda: base().agg(n=sv.count(per_unit=(0, np.nan))).release(budget=BUDGET), "whole n"),
        (lambda: base().agg(n=sv.count("x", per_unit=(0, 1.5))).release(budget=BUDGET), "whole n"),
        (lambda: base().to(5).agg(n=sv.count()).release(budget=BUDGET), "must be text, not 5"),
        (lambda: base().to("console", name=5), "name must be text, not 5"),
        (lambda: base().group_by("url", sets=5), "sets must be"),
        (lambda: sv.table(sv.memory({"u": [1]}), domains={"u": [1]}, id=5), "id must be text"),
        (lambda: sv.files("t.parquet", public="no"), "public must be True or False, not 'no'"),
        (lambda: sv.memory({"u": [1]}, name=5), "must be text, not 5"),
        (lambda: sv.tumble("1 day", offset=5), "offset must be a text such as"),
        (lambda: base().agg(n=sv.count()).release(budget=BUDGET).order_by(None), "must be text"),
    ],
)  # fmt: skip
def test_refusals(make, message):
    with pytest.raises(PlanError, match=message):
        make()


@pytest.mark.parametrize(
    "option",
    ["secret", "ledger", "rejects", "insecure", "progress", "pace", "keep_releases"],
)
def test_an_option_of_another_kind_is_refused_before_there_is_a_state(option, tmp_path):
    query = sv.memory({"u": [1]}).protect("u").agg(n=sv.count()).bound(1).release(budget=BUDGET)
    with pytest.raises(PlanError, match=f"{option} must be .*, not 2.5"):
        query.run(state=tmp_path / "state", **{option: 2.5})
    assert not [*tmp_path.iterdir()]


def of_classes(whole, real, flag):
    """A query with its numbers and truth values made by some classes."""
    measures = {
        "n": sv.count(per_unit=(whole(0), whole(4))),
        "s": sv.sum("x", bounds=(whole(0), real(9.5)), quantum=real(0.5)),
        "p": sv.quantile("x", real(0.5), bounds=(0, whole(9))),
    }
    return (
        sv.files("t.parquet").protect(unit="u").bound(whole(8), whole(4)).group_by("k")
        .agg(**measures).release(
            every=sv.rows(whole(30)), steps=whole(12), budget=BUDGET, confidence=real(0.9),
            expected_units=whole(100), intervals="true", integer=flag(True),
        ).plan
    )  # fmt: skip


@pytest.mark.parametrize(("whole", "real"), [(np.int64, np.float64), (np.int8, np.float32),
                                             (Lies, type("Real", (float,), {}))])  # fmt: skip
def test_numbers_of_other_classes_are_those_of_python(whole, real):
    own, plan = of_classes(int, float, bool), of_classes(whole, real, np.bool_)
    if real is np.float32:  # whose .9 is another number
        own = replace(own, options={**own.options, "confidence": float(np.float32(0.9))})
    assert repr(plan) == repr(own)
    assert plan.fingerprint == own.fingerprint
    for one in (plan.bounding.max_rows, plan.clock.steps, plan.clock.every, plan.aggregates[1].low,
                *plan.options.values()):  # fmt: skip
        assert type(one) in (int, float, bool, str)
    sizes = sv.heavy_hitters("x", k=whole(7), memory=whole(9)).options.values()
    assert {*map(type, sizes)} == {int}


GROUPS = {
    "numpy": ([0, 1], np.arange(2), np.arange(2) + 5),
    "texts": (["a", "b"], np.array(["a", "b"]), np.array(["a", "c"])),
    "times": (None, [np.datetime64("2026-01-01")], [np.datetime64("2026-01-02")]),
    "bytes": (None, [b"a", b"b"], [b"a", b"c"]),
    "uuids": (None, [UUID(int=1)], [UUID(int=2)]),
    "clocks": (None, [time(1)], [time(2)]),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_a_plan_tells_public_groups_apart_whatever_their_class(kind):
    def plan_of(groups):
        rows = base().group_by("k", keys=sv.public(groups)).agg(n=sv.count())
        return rows.release(budget=BUDGET).plan

    same, some, others = GROUPS[kind]
    assert plan_of(some).fingerprint != plan_of(others).fingerprint
    assert same is None or plan_of(some) == plan_of(same)
    assert same is None or plan_of(some).fingerprint == plan_of(same).fingerprint


def test_domains_may_be_arrays_of_numpy():
    rows = sv.files("t.csv")
    one, two = (sv.table(rows, domains={"x": given}) for given in (range(3), np.arange(3)))
    assert repr(one.source) == repr(two.source)
    with pytest.raises(PlanError, match="lives must be"):
        sv.table(rows, domains={"x": [1]}, id="id", lives=np.True_)


def test_options_of_connectors_are_those_of_python():
    """Of a truth value of NumPy `is True` is false; of its numbers a plan kept the type alone."""
    given = {"follow": np.True_, "max_line_bytes": np.int64(99), "delimiter": np.str_(";")}
    rows = sv.files("t.csv", **given).to("files", path=np.str_("out"))
    for options in (rows.source.options, rows.sinks[0].options):
        assert {*map(type, options.values())} <= {bool, int, str}
    assert rows.source.is_endless
    assert rows.source == sv.files("t.csv", follow=True, max_line_bytes=99, delimiter=";").source


def test_paths_are_texts_in_a_plan():
    """Those of a list, of any connector and of a sink ended in an error of Python's."""
    texts, paths = ["a/b.csv", "c.csv"], [Path("a/b.csv"), Path("c.csv")]
    for path, kept in ((paths, texts), (tuple(paths), texts), (paths[1], texts[1])):
        assert sv.files(path).source.options == {"path": kept}
        assert sv.source("files", name="x", path=path).source.options == {"path": kept}
    rows = sv.files("t.csv").to("files", path=paths[0])
    assert rows.sinks[0].options == {"path": texts[0]}


def test_durations():
    for text in ("90 min", "1 hour 30 minutes", "1h30m", "1 hour and 30 min", "5400s"):
        assert duration_us(text) == 5_400_000_000
    assert duration_us(timedelta(days=1)) == duration_us("1 day")


def test_a_table_in_memory_never_shows():
    table = pa.table({"user_id": ["patient-4711"], "x": [1]})
    query = sv.memory(table).protect(unit="user_id").bound(max_rows=1).agg(n=sv.count())
    made = query.release(budget=BUDGET)
    assert "patient-4711" not in repr(made)
    assert "patient-4711" not in repr(query)
    other = sv.memory(pa.table({"user_id": ["b"], "x": [2]})).protect(unit="user_id")
    same = other.bound(max_rows=1).agg(n=sv.count()).release(budget=BUDGET)
    assert made.plan.fingerprint == same.plan.fingerprint


def test_sql_over_a_table_in_memory():
    table = pa.table({"user_id": ["a"], "x": [1]})
    text = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9,
              privacy_unit_column = user_id, max_rows_contributed = 1) COUNT(*) AS n FROM t"""
    made = sv.sql(text, {"t": table}).plan
    assert made.source.kind == "memory"
    python = sv.memory(table, name="t").protect(unit="user_id").bound(max_rows=1)
    assert python.agg(n=sv.count()).release(budget=BUDGET).plan.fingerprint == made.fingerprint


# -- one plan, two spellings ----------------------------------------------------------------------

AGGREGATES = {  # SQL, Python
    "n": ("COUNT(*) AS n", sv.count()),
    "c": ("COUNT(kind) AS c", sv.count("kind")),
    "u": ("COUNT(DISTINCT user_id) AS u", sv.count_units()),
    "s": ("SUM(ms, contribution_bounds_per_row => (-1.5, 60000)) AS s",
          sv.sum("ms", bounds=(-1.5, 60_000))),
    "z": ("SUM(ms * 2, contribution_bounds_per_row => (0, 8), quantum => 0.25) AS z",
          sv.sum("ms*2", bounds=(0, 8), quantum=0.25)),
    "a": ("AVG(ms, contribution_bounds_per_row => (0, 9)) AS a", sv.avg("ms", bounds=(0, 9))),
    "v": ("VARIANCE(ms, contribution_bounds_per_row => (0, 9)) AS v",
          sv.variance("ms", bounds=(0, 9))),
    "q": ("PERCENTILE_CONT(ms, 0.9, contribution_bounds_per_row => (0, 9)) AS q",
          sv.quantile("ms", 0.9, bounds=(0, 9))),
}  # fmt: skip
KEYS = {  # SELECT item, GROUP BY item, Python
    "url": ("url", "url", "`url`"),
    "hour": ("EXTRACT(HOUR FROM ts) AS hour", "hour", "extract(hour from ts)"),
    "group": ("`group`", "`group`", "`group`"),
    "low": ("lower(kind) AS low", "2", "LOWER(kind)"),
}
WHERE = ["kind = 'view'", "ms > 1 OR ok", "NOT ok", "url LIKE '/a%' AND ms IN (1, 2)",
         "ts >= TIMESTAMP '2026-01-01'"]  # fmt: skip
WINDOWS = [
    (None, None),
    ("TUMBLE(TABLE t, DESCRIPTOR(ts), size => INTERVAL 1 DAY)", sv.tumble("24 hours")),
    ("HOP(TABLE t, DESCRIPTOR(ts), slide => INTERVAL 1 HOUR, size => INTERVAL 1 DAY)",
     sv.hop("1 day", "60 min")),
    ("CUMULATE(TABLE t, DESCRIPTOR(ts), step => INTERVAL 6 HOUR, size => INTERVAL 1 DAY)",
     sv.cumulate(timedelta(days=1), "6 h")),
]  # fmt: skip
FLAGS = ["non_negative", "integer", "monotone"]


@st.composite
def both_spellings(draw):
    """The same random query as SQL text and as a Python query."""
    aggregates = draw(st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, unique=True))
    keys = draw(st.lists(st.sampled_from(["url", "hour", "group"]), unique=True))
    where = draw(st.lists(st.sampled_from(WHERE), max_size=3))
    table, shape = draw(st.sampled_from(WINDOWS))
    period = draw(st.booleans())
    limits = draw(st.sampled_from([(32, None, None), (32, 1, None), (8, None, 16)]))
    least = draw(st.integers(1, 50)) if keys else 1
    lateness = draw(st.booleans()) and shape is not None
    flags = draw(st.lists(st.sampled_from(FLAGS), unique=True))
    minutes = draw(st.sampled_from([15, 60]))
    confidence = draw(st.sampled_from([None, 0.9]))
    options = [
        "epsilon = 0.1", "delta = 1e-9", "privacy_unit_column = user_id",
        f"max_rows_contributed = {limits[0]}", "start = '2026-01-01'", "end = '2026-01-03'",
        f"min_privacy_units_per_group = {least}", *[f"{flag} = TRUE" for flag in flags],
    ]  # fmt: skip
    options += ["privacy_unit_period = INTERVAL 1 DAY"] if period else []
    options += [f"max_rows_per_group = {limits[1]}"] if limits[1] else []
    options += [f"max_squared_rows = {limits[2]}"] if limits[2] else []
    options += ["lateness = INTERVAL 2 HOUR"] if lateness else []
    options += [f"confidence = {confidence}"] if confidence else []
    select = [KEYS[key][0] for key in keys] + [AGGREGATES[name][0] for name in aggregates]
    sql = (
        "CREATE STREAM t WITH (source = 'files', path = 't.parquet', event_time = 'ts');"
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({', '.join(draw(st.permutations(options)))}) "
        f"{', '.join(select)} FROM {table or 't'}"
        + (f" WHERE {' AND '.join(f'({w})' for w in where)}" if where else "")
        + (f" GROUP BY {', '.join(KEYS[key][1] for key in keys)}" if keys else "")
        + f" EMIT EVERY INTERVAL {minutes} MINUTE"
    )
    query = sv.files("t.parquet", event_time="ts")
    query = query.protect("user_id", per="1 day" if period else None)
    for condition in where:
        query = query.where(condition)
    query = query if shape is None else query.window(shape)
    python = (
        query.group_by(keys=sv.discover(least), **{key: KEYS[key][2] for key in keys})
        .agg(**{name: AGGREGATES[name][1] for name in aggregates})
        .bound(max_rows=limits[0], max_rows_per_group=limits[1], max_squared_rows=limits[2])
        .release(
            every=f"{minutes} min",
            start=datetime(2026, 1, 1, tzinfo=UTC),
            end="2026-01-03 00:00:00",
            budget=Budget(epsilon=0.1, delta=1e-9),
            lateness="2 h" if lateness else None,
            confidence=confidence,
            **dict.fromkeys(flags, True),
        )
    )
    return sql, python


@given(both_spellings())
def test_both_spellings_give_the_same_plan(pair):
    sql, python = pair
    assert parse_script(sql).query.plan == python.plan
    assert parse_script(sql).query.plan.fingerprint == python.plan.fingerprint


def test_the_fingerprint_changes_with_every_part():
    plan = base().group_by("url").agg(n=sv.count()).release(budget=BUDGET).plan
    changed = [
        replace(plan, name="other"),
        replace(plan, unit="x"),
        replace(plan, where="ok"),
        replace(plan, budget=Budget(epsilon=1, delta=2e-9)),
        replace(plan, counter="tree"),
        replace(plan, options={"integer": True}),
        replace(plan, bounding=replace(plan.bounding, max_rows=5)),
        replace(plan, source=replace(plan.source, options={"path": "t", "follow": True})),
    ]
    prints = {plan.fingerprint, *(one.fingerprint for one in changed)}
    assert len(prints) == 1 + len(changed)
    moved = replace(plan, source=replace(plan.source, options={"path": "u.parquet"}, name="u"))
    assert moved.fingerprint == plan.fingerprint  # where rows lie is no part of a job
    sink = (
        base().to("console").group_by("url").agg(n=sv.count()).release(budget=BUDGET, name="query")
    )
    assert sink.plan.fingerprint == plan.fingerprint
    both = base().to("files", name="kept", path="out").to("console").group_by("url")
    made = both.agg(n=sv.count()).release(budget=BUDGET).plan
    assert (made.name, [one.kind for one in made.sinks]) == ("kept", ["files", "console"])
