"""Subqueries by the privacy unit: DuckDB gives the same, and no rows of two people meet."""

from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from math import inf

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamveil as sv
from streamveil.audit.worst import search
from streamveil.compiler.group_by import compile_plan
from streamveil.connectors.memory import MemorySource
from streamveil.errors import PlanError
from streamveil.expressions import compile_predicate, compile_value
from streamveil.plan import KeyColumn, SortKey, check_own_rows, combined_plan
from streamveil.plan import own_rows as module
from streamveil.plan.own_columns import OwnColumn
from streamveil.plan.own_rows import OwnGroup, OwnWindows, own_rows
from streamveil.runtime.combined import MappedSource, per_unit

PRIVATE = (
    "WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 50, delta = 1e-9, privacy_unit_column = id, "
    "max_rows_contributed = 4)"
)
SUBQUERIES = [
    "SELECT id, MIN(day) AS first, MAX(day) AS latest FROM t GROUP BY id",
    "SELECT id, day, SUM(x) AS total, COUNT(*) AS n, AVG(y) AS mean FROM t GROUP BY id, day",
    "SELECT id, COUNT(DISTINCT place) AS places, COUNT(x) AS xs FROM t WHERE day > 1 GROUP BY 1",
    "SELECT id, place, COUNT(*) AS n, SUM(x) / COUNT(*) AS ratio FROM t GROUP BY ALL "
    "HAVING n > 1 OR SUM(x) > 3",
    "SELECT id, place, MAX(x) AS x FROM t GROUP BY id, place HAVING MAX(x) > 1",
    "SELECT id, x > 2 AS x, COUNT(DISTINCT x) AS n FROM t GROUP BY ALL "
    "HAVING COUNT(DISTINCT x) > 1",
    "SELECT DISTINCT id, place FROM t",
    "SELECT id, COUNTIF(x > 2) AS many, LOGICAL_OR(x > 3) AS any_many FROM t GROUP BY id",
    "SELECT id, day, ROW_NUMBER() OVER (PARTITION BY id ORDER BY day, x, place, y) AS k FROM t",
    "SELECT *, RANK() OVER (PARTITION BY id ORDER BY day DESC) AS k FROM t",
    "SELECT id, DENSE_RANK() OVER (PARTITION BY place, id ORDER BY x) = 1 AS least FROM t",
    "SELECT id, x FROM t QUALIFY MIN(day) OVER (PARTITION BY id) = day",
    "SELECT * FROM t QUALIFY RANK() OVER (PARTITION BY id ORDER BY day) = 1",
    "SELECT id, LAG(day) OVER (PARTITION BY id ORDER BY day) AS earlier, "
    "LEAD(day, 2) OVER (PARTITION BY id ORDER BY day) AS later FROM t",
    "SELECT id, FIRST_VALUE(day) OVER (PARTITION BY id ORDER BY day) AS first, "
    "SUM(x) OVER (PARTITION BY id ORDER BY day) AS so_far, "
    "COUNT(x) OVER (PARTITION BY id ORDER BY place DESC, day) AS seen FROM t WHERE x <> 4",
    "SELECT id, LAST_VALUE(day) OVER (PARTITION BY id ORDER BY day ROWS BETWEEN UNBOUNDED PRECEDING"
    " AND UNBOUNDED FOLLOWING) AS latest, FIRST_VALUE(day) OVER (PARTITION BY id ORDER BY day ROWS"
    " BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS first, SUM(x) OVER (PARTITION BY id ORDER BY"
    " day RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS so_far, COUNT(*) OVER (PARTITION BY"
    " id ORDER BY day ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS n FROM t",
    "SELECT id, MIN_BY(day * 2, day) AS first, MAX_BY(day + 1, day) AS latest FROM t GROUP BY id",
    "SELECT id, day, MAX_BY(day * 2, day) OVER (PARTITION BY id) AS latest FROM t",
    "SELECT id, LAG(day) OVER w AS earlier, RANK() OVER (v ORDER BY day DESC) AS k, COUNT(*) OVER v"
    " AS n FROM t WINDOW v AS (PARTITION BY id), w AS (v ORDER BY day)",
    "SELECT id, earlier, RANK() OVER w AS k FROM (SELECT id, x, LAG(day) OVER w AS earlier FROM t"
    " WINDOW w AS (PARTITION BY id ORDER BY day)) WINDOW w AS (PARTITION BY id ORDER BY x)",
    "SELECT id, n, MAX(n) OVER (PARTITION BY id) AS most FROM "
    "(SELECT id, day, COUNT(*) AS n FROM t GROUP BY id, day)",
    "SELECT id, COUNT(*) AS sessions FROM (SELECT id, SUM(IF(away > 1, 1, 0)) OVER (PARTITION BY id"
    " ORDER BY day) AS session FROM (SELECT id, day, day - LAG(day) OVER (PARTITION BY id"
    " ORDER BY day) AS away FROM t)) GROUP BY id, session",
]


def rows_of(seed, rows=60):
    rng = np.random.default_rng(seed)

    def some(values, missing=0.1):
        return pa.array(values, mask=rng.random(rows) < missing)

    return pa.table({
        "id": pa.array(rng.integers(0, 9, rows)),
        "day": some(rng.integers(0, 5, rows)), "x": some(rng.integers(-3, 6, rows)),
        "y": some(rng.integers(-8, 9, rows) / 4),  # which floats add up exactly
        "place": some(rng.choice(["a", "b", "c"], rows)),
    })  # fmt: skip


def asked(subquery, private=PRIVATE, around="SELECT {} COUNT(*) AS n FROM ({})", table=None):
    text = around.format(private, subquery)
    return sv.sql(text, {"t": rows_of(0) if table is None else table}).plan


def plain(value):
    """A number as a float: DuckDB's sums are decimals."""
    return value if value is None or isinstance(value, str) else float(value)


def sorted_rows(table):
    return sorted(repr([plain(value) for value in row.values()]) for row in table.to_pylist())


def counted(plan, table):
    """The rows that a plan counts: its keys, of combined rows that pass its condition."""
    rows = own_rows(plan.source, table)
    if plan.where is not None:
        rows = rows.filter(
            pc.fill_null(compile_predicate(plan.where, rows.schema)(rows), fill_value=False)
        )
    keys = {key.name: compile_value(key.expression, rows.schema)(rows) for key in plan.keys}
    return pa.table({**keys, "the unit": rows[plan.source.person]})


@pytest.mark.parametrize("subquery", SUBQUERIES, ids=range(len(SUBQUERIES)))
def test_a_subquery_by_the_unit_gives_what_duckdb_gives(subquery):
    t = rows_of(1)
    duck = duckdb.connect()
    duck.register("t", t)
    duck.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
    theirs = subquery.replace("LOGICAL_OR", "BOOL_OR").replace("GROUP BY 1", "GROUP BY id")
    wanted = duck.sql(theirs).arrow().read_all()
    names = ", ".join(f"`{name}`" for name in wanted.column_names)
    around = f"SELECT {{}} {names}, COUNT(*) AS rows_counted FROM ({{}}) GROUP BY ALL"
    made = counted(asked(subquery, around=around, table=t), t).drop_columns("the unit")
    assert made.num_rows > 5
    assert sorted_rows(made) == sorted_rows(wanted)


def test_rows_are_ordered_by_times_in_nanoseconds():
    """As data frames have them; what is below a microsecond is a tie, as equal times are."""
    rows = pa.table({
        "id": [1, 1, 1, 2], "x": [3, 1, 2, 9], "t": pa.array([3, 1, 2, 1], pa.timestamp("s"))
    })  # fmt: skip
    nanos = rows.set_column(2, "t", rows["t"].cast(pa.timestamp("ns")))
    text = "SELECT id, LAG(x) OVER (PARTITION BY id ORDER BY t) AS before FROM t"
    around = "SELECT {} before, COUNT(*) AS n FROM ({}) GROUP BY before"
    made = [own_rows(asked(text, around=around, table=one).source, one) for one in (rows, nanos)]
    assert made[0]["before"].to_pylist() == made[1]["before"].to_pylist() == [2, None, 1, None]


def left_alone(plan, table, unit):
    """Whether the rows of all others come out as they would without a unit, in their order."""
    others = table.filter(pc.not_equal(table["id"], unit))
    rows = own_rows(plan.source, table)
    rows = rows.filter(pc.not_equal(rows[plan.source.person], unit))
    return rows.to_pylist() == own_rows(plan.source, others).to_pylist()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SUBQUERIES), st.integers(0, 999), st.integers(0, 8))
def test_without_a_unit_the_rows_of_all_others_are_the_same(subquery, seed, unit):
    table = rows_of(seed, 40)
    assert left_alone(asked(subquery), table, unit)


def steps_without_unit():
    """Steps that do not name the unit, which they need not."""
    of_x = OwnColumn(name="s", function="SUM", expression="x")
    by = SortKey(expression="y")
    return [
        OwnGroup(columns=(of_x,)),
        OwnGroup(keys=(KeyColumn(name="day", expression="day"),), columns=(of_x,)),
        OwnGroup(columns=(replace(of_x, function="FIRST_VALUE", order=(by,)),)),
        OwnWindows(columns=(of_x,)),
        *(OwnWindows(columns=(replace(of_x, function=name, order=(by,)),))
          for name in ("SUM", "COUNT", "LAG", "LEAD", "FIRST_VALUE")),
        *(OwnWindows(columns=(OwnColumn(name="k", function=name, order=(by,)),))
          for name in ("ROW_NUMBER", "RANK", "DENSE_RANK")),
    ]  # fmt: skip


@pytest.mark.parametrize("step", steps_without_unit())
def test_a_planted_group_of_two_people_is_seen(step, monkeypatch):
    """No step can leave the unit out; where the code does, some unit moves another's rows."""
    plan = asked(SUBQUERIES[0])
    plan = replace(plan, source=replace(plan.source, steps=(step,)))
    tables = [rows_of(seed) for seed in range(3)]
    assert all(left_alone(plan, t, unit) for t in tables for unit in range(9))
    whole = module.numbered
    monkeypatch.setattr(module, "numbered", lambda columns: whole([pa.repeat(0, len(columns[0])),
                                                                  *columns[1:]]))  # fmt: skip
    assert not all(left_alone(plan, t, unit) for t in tables for unit in range(9))


FLOATS = pa.table({"id": [1, 2, 1, 2, 1], "y": [1e16, 1.0, 1.0, 3.0, -1e16], "day": [1] * 5})


def test_sums_are_rounded_by_rows_of_the_unit_alone():
    plan = asked("SELECT id, SUM(y) AS s, SUM(y) OVER (PARTITION BY id) AS w FROM t GROUP BY id, y",
                 table=FLOATS)  # fmt: skip
    assert left_alone(plan, FLOATS, 2)
    plan = asked("SELECT id, SUM(y) OVER (PARTITION BY id ORDER BY day) AS s FROM t", table=FLOATS)
    with pytest.raises(PlanError, match="rounded by what was added before"):
        own_rows(plan.source, FLOATS)


MIXING = [  # a subquery, and what its refusal names
    ("SELECT id, ROW_NUMBER() OVER (ORDER BY day) AS k FROM t", "PARTITION BY"),
    ("SELECT id, SUM(x) OVER (PARTITION BY place) AS s FROM t", "PARTITION BY"),
    ("SELECT id, MAX(day) OVER () AS latest FROM t", "PARTITION BY"),
    ("SELECT id FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY day ORDER BY x) = 1", "PARTITION"),
    ("SELECT place, ANY_VALUE(day) AS id FROM t GROUP BY place", "several rows"),
    ("SELECT MAX(id) AS id FROM t", "several rows"),
    ("SELECT day AS id, SUM(x) AS s FROM (SELECT day, SUM(x) AS x FROM t GROUP BY day) "
     "GROUP BY day", ""),
    ("SELECT DISTINCT id FROM (SELECT MIN(id) OVER (PARTITION BY day) AS id FROM t)", "several"),
    ("SELECT id, n FROM (SELECT id, COUNT(*) AS n FROM t GROUP BY id, day) "
     "QUALIFY RANK() OVER (ORDER BY n DESC) = 1", "PARTITION BY"),
    ("SELECT id, x FROM t WHERE x > (SELECT AVG(x) FROM t)", "other rows"),
    ("SELECT t.id, u.x FROM t JOIN t AS u USING (day)", "join"),
    ("SELECT id, x FROM t ORDER BY x LIMIT 3", "LIMIT"),
    ("SELECT id, LAST_VALUE(x) OVER (PARTITION BY place ORDER BY day ROWS BETWEEN UNBOUNDED"
     " PRECEDING AND UNBOUNDED FOLLOWING) AS x FROM t", "PARTITION BY"),
    ("SELECT id, MIN_BY(x, day) OVER () AS x FROM t", "PARTITION BY"),
    ("SELECT MAX_BY(id, day) AS id, place FROM t GROUP BY place", "several rows"),
]  # fmt: skip


@pytest.mark.parametrize(("subquery", "reason"), MIXING)
def test_what_would_mix_people_is_refused(subquery, reason):
    if not reason:  # two names for one thing: the unit is the day, and days are grouped by
        assert asked(subquery).source.unit == "day"
        return
    with pytest.raises(PlanError, match=reason):
        asked(subquery)


@pytest.mark.parametrize("clause", ["", " HAVING id > 1", " QUALIFY RANK() OVER (PARTITION BY id"
                                                          " ORDER BY x) = 1"])  # fmt: skip
def test_a_column_is_not_taken_for_a_group_that_has_its_name(clause):
    """`id AS other` was `day`, which the subquery calls `id`."""
    with pytest.raises(PlanError, match=r"'(id|x)' is neither in GROUP BY"):
        asked(f"SELECT day AS id, id AS other, COUNT(*) AS n FROM t GROUP BY day{clause}")


def test_sets_of_groups_go_around_a_subquery():
    table = pa.table({"id": [1, 1, 2], "page": ["a", "b", "a"], "day": [1, 1, 2]})
    text = f"SELECT {PRIVATE} {{}} FROM (SELECT id, page, day FROM t GROUP BY {{}}) {{}}"
    with pytest.raises(PlanError, match="GROUP BY all their columns in the subquery"):
        sv.sql(text.format("COUNT(*) AS n", "id, ROLLUP (page, day)", ""), {"t": table})
    around = text.format("page, day, COUNT(*) AS n", "id, page, day", "GROUP BY ROLLUP (page, day)")
    assert sv.sql(around, {"t": table}).plan.keys


def test_the_unit_may_be_computed_inside_and_grouped_by_what_it_reads():
    t = pa.table({"name": ["A", "a", "b", "B"], "x": [1, 2, 3, 4]})
    inside = "SELECT LOWER(name) AS id, name, SUM(x) AS s FROM t GROUP BY id, name"
    plan = asked(inside, table=t)
    assert (plan.source.unit, plan.source.person) == ("LOWER(name)", "id")
    assert own_rows(plan.source, t)["id"].to_pylist() == ["a", "a", "b", "b"]
    assert asked("SELECT name AS id, SUM(x) AS s FROM t GROUP BY name", table=t).unit == "id"


@pytest.mark.parametrize("changed", ["unit", "person"])
def test_a_plan_whose_unit_is_another_than_the_grouped_one_is_refused(changed):
    plan = asked(SUBQUERIES[0])
    other = {"unit": replace(plan, unit="first"),
             "person": replace(plan, source=replace(plan.source, person="first"))}  # fmt: skip
    with pytest.raises(PlanError, match="protect the same unit"):
        compile_plan(other[changed])


def test_parts_of_a_list_have_another_name_than_the_unit():
    """The unit was the column that came with the row, and the text said the parts."""
    rows = {"t": pa.table({"id": [1, 2], "friend": ["a", "b"], "friends": [["a", "b"], ["a"]]})}
    private = PRIVATE.replace("= id", "= friend")
    for clause in ("t, UNNEST(friends) AS friend", "(SELECT Friend FROM t, UNNEST(friends) AS"
                   " Friend)"):  # fmt: skip
        with pytest.raises(PlanError, match="whose a row is would be unclear"):
            sv.sql(f"SELECT {private} COUNT(*) AS n FROM {clause}", rows)
    with pytest.raises(PlanError, match="unclear"):
        sv.memory(rows["t"]).protect("friend").unnest(part="friends").unnest(friend="friends")


DAYS = [datetime(2026, 1, day) for day in range(1, 20)]  # noqa: DTZ001  (they name no zone)
VISITS = pa.table({"id": [1, 2], "ts": DAYS[:2], "k": ["x", "y"], "times": [DAYS, DAYS[:1]]})
CALENDAR = pa.table({"k": ["x"] * 19, "ts": DAYS})
SEVERAL = [  # rows whose time `w` is one of several, though a unit has one row
    "SELECT id, w FROM v, UNNEST(times) AS w",
    "SELECT v.id, c.ts AS w FROM v JOIN c ON v.k = c.k",
    "SELECT id, w FROM (SELECT v.id, c.ts AS w, v.k FROM v JOIN c ON v.k = c.k) AS s"
    " JOIN c AS d ON s.k = d.k",
]


def daily(rows, event_time=None):
    """The plan over unit-days of rows with times `w`."""
    given = {"v": sv.memory(VISITS, event_time=event_time), "c": sv.memory(CALENDAR, public=True)}
    return sv.sql(
        f"WITH own AS ({rows}) SELECT {PRIVATE[:-1]}, privacy_unit_period = INTERVAL 1 DAY, start ="
        " '2026-01-01', end = '2026-01-21') window_start, COUNT(*) AS n FROM TUMBLE(TABLE own,"
        " DESCRIPTOR(w), size => INTERVAL 1 DAY) GROUP BY window_start EMIT EVERY INTERVAL 1 DAY",
        given,
    ).plan


@pytest.mark.parametrize("rows", SEVERAL)
def test_one_row_is_of_one_period(rows):
    """A row that became rows of 19 days was in 19 periods, and each was protected alone."""
    with pytest.raises(PlanError, match="one row would be of several periods"):
        daily(rows)


@pytest.mark.parametrize("rows", [
    "SELECT id, ts AS w FROM v, UNNEST(times) AS other", "SELECT id, ts AS w FROM v",
    "SELECT v.id, v.ts AS w FROM v JOIN c ON v.k = c.k",
])  # fmt: skip
@pytest.mark.parametrize("time", [None, "ts"])
def test_times_that_rows_come_with_may_be_those_of_periods(rows, time):
    if time is None or "JOIN" not in rows:
        assert daily(rows, time)


def test_in_python_one_row_is_of_one_period():
    people = sv.memory(VISITS, event_time="ts").protect("id", per="1 day")
    for several in (people.unnest(ts="times"), people.join(
        sv.memory(CALENDAR.rename_columns(["k", "day"]), public=True), on="k"
    ).unnest(TS="times")):  # fmt: skip
        with pytest.raises(PlanError, match="one row would be of several periods"):
            several.agg(n=sv.count()).release(budget=sv.Budget(epsilon=1))


def test_one_row_would_be_in_the_numbers_of_many_periods(monkeypatch):
    """What the refusal is for: 19 unit-days change with one row, whatever the bound is."""
    monkeypatch.setattr(check_own_rows, "may_have_several_times", lambda _: False)
    for rows in SEVERAL:
        plan = daily(rows)
        made = own_rows(plan.source, VISITS.slice(0, 1))
        assert len(made[plan.source.event_time].unique()) == 19


NOT_THERE = [
    ("privacy_unit_period = INTERVAL 1 DAY, steps = 3", "EMIT EVERY 20 ROWS", "more may come"),
    ("privacy_unit_period = INTERVAL 1 DAY, start = '1970-01-01', end = '1970-01-03'",
     "EMIT EVERY INTERVAL 1 DAY", "leave out privacy_unit_period"),
    ("clock = 'wall', start = '1970-01-01', steps = 3", "EMIT EVERY INTERVAL 1 DAY", "may come"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "emit", "reason"), NOT_THERE)
def test_streams_and_periods_are_refused_with_the_way_out(option, emit, reason):
    table = {"id": [1], "at": pa.array([0], pa.timestamp("us", "UTC"))}
    with pytest.raises(PlanError, match=reason):
        sv.sql(
            f"SELECT {PRIVATE.removesuffix(')')}, {option}) COUNT(*) AS n FROM "
            f"(SELECT id, MIN(at) AS at FROM t GROUP BY id) {emit}",
            {"t": sv.memory(pa.table(table), event_time="at")},
        )


def visits():
    at = np.array([0, 3, 40, 41, 80, 1, 35, 36])
    return pa.table(
        {
            "id": [*[1] * 5, 2, 2, 3] * 40,
            "at": pa.array(np.tile(at * 86_400_000_000, 40), pa.timestamp("us", "UTC")),
            "copy": np.repeat(np.arange(40), 8),
        }
    )


QUESTION = """
WITH own AS (SELECT id + 10 * copy AS who, MIN(at) AS first FROM visits GROUP BY who)
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 60, delta = 1e-9, privacy_unit_column = who,
  max_rows_contributed = 1, start = '1970-01-01', end = '1970-04-01') COUNT(*) AS new_people
FROM TUMBLE(TABLE own, DESCRIPTOR(first), size => INTERVAL 1 MONTH)
EMIT EVERY INTERVAL 1 MONTH
"""


def test_new_people_per_month_are_asked_in_windows_of_their_first_event():
    frames = {"visits": visits()}
    table = sv.sql(QUESTION, **frames).to_arrow()
    assert [round(n) for n in table["new_people"].to_pylist()] == [80, 40, 0]


def test_python_says_the_same_as_sql(tmp_path):
    t = rows_of(3)
    grouped = "SELECT id, day, SUM(x) AS total, COUNT(*) AS n FROM t WHERE x > 0 GROUP BY id, day"
    windowed = "SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY day) AS k FROM t"
    stream = sv.memory(t, name="t").protect("id")
    in_sets = "SELECT {} place, day, COUNT(*) AS n FROM t WHERE x > 0 GROUP BY ROLLUP (place, day)"
    mine = stream.where("x > 0").group_by("place", "day", sets=[("place", "day"), ("place",), ()])
    query = mine.agg(n=sv.count()).bound(max_rows=4)
    made = query.release(budget=sv.Budget(epsilon=50, delta=1e-9)).plan
    assert made.fingerprint == asked("", around=in_sets + "{}", table=t).fingerprint
    both = [
        (
            "SELECT * FROM t, UNNEST(SPLIT(place, '-')) AS part",
            stream.unnest(part="SPLIT(place, '-')"),
        ),
        (grouped, stream.where("x > 0").per_unit("day", total="SUM(x)", n="COUNT(*)")),
        (windowed, stream.per_unit(k="ROW_NUMBER() OVER (ORDER BY day)")),
    ]
    for text, mine in both:
        query = mine.agg(n=sv.count()).bound(max_rows=4)
        made = query.release(budget=sv.Budget(epsilon=50, delta=1e-9)).plan
        assert made.fingerprint == asked(text, table=t).fingerprint


def test_a_text_becomes_a_row_for_each_part_and_a_list_for_each_element():
    t = pa.table({"id": [1, 2, 3, 4], "tags": ["a,b", "", None, "b"],
                  "list": [[1, 2], [], None, [3]]})  # fmt: skip
    around = "SELECT {} part, COUNT(*) AS n FROM {} GROUP BY part"
    plan = asked("t, UNNEST(SPLIT(tags)) AS part", around=around, table=t)
    assert counted(plan, t).to_pylist() == [
        {"part": part, "the unit": unit} for part, unit in [("a", 1), ("b", 1), ("", 2), ("b", 4)]
    ]
    plan = asked("t CROSS JOIN UNNEST(list) AS part", around=around, table=t)
    assert counted(plan, t)["part"].to_pylist() == [1, 2, 3]
    assert all(left_alone(plan, t, unit) for unit in range(1, 5))


def test_no_row_is_made_into_more_than_memory_holds():
    """A text of commas beside another long text: its rows were gigabytes, and stopped the job."""
    rows = [
        {"id": 1, "tags": "," * 200_000, "note": "x" * 20_000},
        {"id": 2, "tags": "," * 5_000, "note": ""},
        {"id": 3, "tags": "a,b", "note": "y"},
    ]
    plan = asked("t, UNNEST(SPLIT(tags)) AS part", around="SELECT {} part, COUNT(*) AS n FROM {}"
                 " GROUP BY part", table=pa.Table.from_pylist(rows))  # fmt: skip
    table = pa.Table.from_pylist(rows)
    made = own_rows(plan.source, table)
    count = {one["values"]: one["counts"] for one in pc.value_counts(made["id"]).to_pylist()}
    assert count == {1: -(-module.MOST_REPEATED // 220_001), 2: module.MOST_PARTS, 3: 2}
    for kept in (rows[1:], rows[:1]):  # each row by itself
        alone = own_rows(plan.source, pa.Table.from_pylist(kept))
        wanted = made.filter(pc.is_in(made["id"], pa.array([row["id"] for row in kept])))
        assert alone.to_pylist() == wanted.to_pylist()
    assert plan.source.reads(table.schema, ["id", "part"]) == ["id", "tags"]


SETS = "SELECT {} place, day, COUNT(*) AS n, SUM(x, contribution_bounds_per_row => (-3, 5)) AS s "


@pytest.mark.parametrize("by", ["ROLLUP (place, day)", "CUBE (place, day)", "day, ROLLUP (place)",
                                "GROUPING SETS ((place, day), (place), ())"])  # fmt: skip
def test_sets_of_groups_give_what_duckdb_gives(by):
    t = rows_of(4, 200)
    plan = asked(by, around=SETS + "FROM t WHERE x > 0 GROUP BY {}", table=t)
    sets = plan.source.steps[0].sets
    assert (plan.bounding.max_rows, plan.bounding.max_rows_per_group) == (4 * len(sets), 4)
    rows = counted(plan, t).drop_columns("the unit")
    mine = rows.group_by(["grouping_set", "place", "day"]).aggregate([([], "count_all")])
    wanted = duckdb.sql(f"SELECT place, day, COUNT(*) FROM t WHERE x > 0 GROUP BY {by}")
    assert sorted_rows(mine.drop_columns("grouping_set")) == sorted_rows(wanted.arrow().read_all())
    assert all(left_alone(plan, t, unit) for unit in range(9))


def test_rows_that_come_once_for_each_set_come_fewer_at_a_time():
    """Many sets and a public size of micro-batches: how many rows there are takes no more room."""
    t = rows_of(4, 200)
    plan = asked("", around=SETS + "FROM t GROUP BY CUBE (place, day){}", table=t)
    chunks = [*per_unit(plan.source, MemorySource(t)).read(None, 20)]
    assert max(chunk.rows.num_rows for chunk in chunks) == 20
    assert sum(chunk.rows.num_rows for chunk in chunks) == 4 * t.num_rows


@pytest.mark.parametrize("by", ["ROLLUP (place, day)", "GROUPING SETS ((place), (day))"])
def test_the_exact_account_covers_all_sets_together(by):
    """Two to three times the rows of one set, in as many groups: charged, and no more is lost."""
    plan = asked(by, around=SETS + "FROM t GROUP BY {}")
    operator = compile_plan(plan)
    *_, worst = islice(search(operator, inf, seed=1), 15)
    assert worst.stands
    assert worst.tightness > 0.5
    one_set = asked("place", around=SETS.replace("day, ", "") + "FROM t GROUP BY {}")
    assert compile_plan(one_set).bounds.max_rows < operator.bounds.max_rows


def test_sets_of_groups_may_name_the_windows_that_all_have():
    t = pa.table(
        {"id": [1], "a": ["x"], "b": ["y"], "at": pa.array([0], pa.timestamp("us", "UTC"))}
    )
    private = PRIVATE.removesuffix(")") + (
        ", privacy_unit_period = INTERVAL 1 DAY, start = '1970-01-01', end = '1970-01-03')"
    )
    for by, sets in {
        "window_start, ROLLUP (a, b)": ((0, 1), (0,), ()),
        "GROUPING SETS ((window_start, a), (window_start, b), (window_start))": ((0,), (1,), ()),
        "GROUPING SETS ((window_start, a, b), window_start)": ((0, 1), ()),
        "window_start, GROUPING SETS (a, (a, b), ())": ((0,), (0, 1), ()),
    }.items():
        plan = sv.sql(
            f"SELECT {private} window_start, a, b, COUNT(*) AS n FROM TUMBLE(TABLE t, "
            f"DESCRIPTOR(at), size => INTERVAL 1 DAY) GROUP BY {by} EMIT EVERY INTERVAL 12 HOUR",
            {"t": sv.memory(t, event_time="at")},
        ).plan
        assert plan.source.steps[0].sets == sets


def test_rows_that_become_several_go_on_without_end_and_resume(tmp_path):
    t = pa.table({"id": list(range(40)), "tags": ["a,b"] * 40, "at": pa.array(
        [i * 3_600_000_000 for i in range(40)], pa.timestamp("us", "UTC"))})  # fmt: skip
    query = sv.sql(
        f"SELECT {PRIVATE.removesuffix(')')}, start = '1970-01-01', end = '1970-01-03') part, "
        "COUNT(*) AS n FROM t, UNNEST(SPLIT(tags, ',')) AS part GROUP BY part "
        "EMIT EVERY INTERVAL 1 DAY",
        {"t": sv.memory(t, event_time="at")},
    )
    *_, final = query.run(state=str(tmp_path / "s"))
    assert all(abs(n - 40) < 25 for n in final.table["n"].to_pylist())  # 1e-9: noise of sd 2
    change, needs = partial(own_rows, query.plan.source), query.plan.source.reads
    source = MappedSource(MemorySource(t), change, needs)
    first, *rest = source.read(None, 7, ["part"])
    assert first.rows.num_rows == 14
    again = list(source.read(first.position, 7, ["part"]))
    assert [c.rows for c in again] == [c.rows for c in rest]


def test_the_time_of_grouped_rows_stays_through_later_windows():
    """Windows after a grouping lost it: new people per month could not be asked in Python."""
    stream = (
        sv.files("t.parquet", event_time="ts").protect("id")
        .per_unit(ts="TIMESTAMP_TRUNC(ts, MONTH)").per_unit(k="ROW_NUMBER() OVER (ORDER BY ts)")
    )  # fmt: skip
    assert stream.source.event_time == "ts"
    assert stream.per_unit(n="COUNT(*)").source.event_time is None


TIMED = pa.table({
    "id": [1, 1, 2, 2, 3], "place": ["a", "b", "a", "a", "b"],
    "t": pa.array([0, 7_000_000, 86_400_000_000, 86_400_500_000, 5], pa.timestamp("us", "UTC")),
})  # fmt: skip
OF_TIMES = [  # an expression over rows of a person, and what it is for each
    ("TIMESTAMP_DIFF(MAX(t), MIN(t), SECOND)", [7, 0, 0]),
    ("DATE_DIFF(DATE(MAX(t)), DATE '1970-01-01', day)", [0, 1, 0]),
    ("DATE_DIFF(DATE(MAX(t)), DATE(MIN(t)), WEEK(MONDAY))", [0, 0, 0]),
    ("UNIX_SECONDS(TIMESTAMP_TRUNC(MAX(t), DAY, 'Europe/Berlin'))", [-3600, 82_800, -3600]),
    ("MAX(EXTRACT(DAY FROM t)) * COUNT(*)", [2, 4, 1]),
]


@pytest.mark.parametrize(("expression", "values"), OF_TIMES)
@pytest.mark.parametrize("inner", ["t", "(SELECT id, t, place FROM t)"])
def test_units_of_time_are_no_columns(expression, values, inner):
    subquery = f"SELECT id, {expression} AS x FROM {inner} GROUP BY id"
    made = counted(asked(subquery, around="SELECT {} x, COUNT(*) AS n FROM ({}) GROUP BY x",
                         table=TIMED), TIMED)  # fmt: skip
    assert made["x"].to_pylist() == values


@pytest.mark.parametrize("inner", ["t", "(SELECT id, t, place FROM t)"])
def test_units_of_time_are_no_columns_in_sets_of_groups(inner):
    month = "TIMESTAMP_TRUNC(t, MONTH, 'Europe/Berlin')"
    plan = sv.sql(f"SELECT {PRIVATE} {month.replace('MONTH', 'month')} AS m, place, COUNT(*) AS n"
                  f" FROM {inner} GROUP BY ROLLUP({month}, place)", {"t": TIMED}).plan  # fmt: skip
    assert {key.name for key in plan.keys} == {"grouping_set", "m", "place"}


def test_a_total_that_is_none_is_named():
    with pytest.raises(PlanError, match="ARRAY_AGG cannot combine one person's rows"):
        asked("SELECT id, ARRAY_AGG(day)[SAFE_OFFSET(0)] AS d FROM t GROUP BY id")
    with pytest.raises(PlanError, match="not a window that the subquery names"):
        asked("SELECT id, RANK() OVER w AS k FROM t WINDOW v AS (PARTITION BY id)")
    with pytest.raises(PlanError, match="has a frame"):
        asked("SELECT id, SUM(x) OVER (PARTITION BY id ORDER BY day ROWS 1 PRECEDING) AS s FROM t")
    with pytest.raises(PlanError, match="of the row itself"):
        asked("SELECT id, LAST_VALUE(x) OVER (PARTITION BY id ORDER BY day) AS s FROM t")
    with pytest.raises(PlanError, match="nulls cannot be skipped"):
        asked("SELECT id, LAG(x IGNORE NULLS) OVER (PARTITION BY id ORDER BY day) AS s FROM t")


@pytest.mark.parametrize(("subquery", "one"), [
    ("(SELECT u, COUNT(*) AS c FROM t GROUP BY u) GROUP BY c", True),
    ("(SELECT u, c + 1 AS c FROM (SELECT u, COUNT(*) AS c FROM t GROUP BY u)) GROUP BY c", True),
    ("(SELECT u, c, COUNT(*) AS k FROM t GROUP BY u, c) GROUP BY c", False),
    ("(SELECT c, u FROM (SELECT u, c FROM t GROUP BY u, c)) GROUP BY c", False),
    ("(SELECT u, p FROM (SELECT u, MAX(c) AS c FROM t GROUP BY u), UNNEST(SPLIT(c, '/')) AS p)"
     " GROUP BY p", False),
])  # fmt: skip
def test_nothing_is_said_to_be_cut_where_everybody_has_one_row(subquery, one, tmp_path):
    """Nor is anything of the budget spent on what cannot be cut."""
    rows = pa.table({"u": [row // 3 for row in range(1200)], "c": ["a", "b"] * 600})
    text = (
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6, privacy_unit_column"
        f" = u{{}}) {subquery.rsplit(' ', 1)[1]}, COUNT(*) AS n FROM {subquery}"
    )
    for place, bound in enumerate(("", ", max_rows_contributed = 1", ", max_rows_contributed = 2")):
        query = sv.sql(text.format(bound), {"t": rows})
        *_, release = query.run(str(tmp_path / str(place)))
        said = " ".join(release.notes)
        assert ("contribution bound" in said or "are not counted" in said) is not one
        assert ("which every bound lets in" in str(query.explain())) is one
        if one and not bound:
            assert compile_plan(combined_plan(query.plan)).bounds.max_rows == 1
            assert compile_plan(combined_plan(query.plan)).aggregation.cut is None


@pytest.mark.parametrize(("grouped", "cut"), [("", False), (" GROUP BY c", True)])
def test_who_is_counted_once_loses_no_row(grouped, cut, tmp_path):
    rows = pa.table({"u": [row // 3 for row in range(1200)], "c": ["a", "b"] * 600})
    query = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-6, look_share = 0,"
        " cut_share = 0, privacy_unit_column = u, max_rows_contributed = 1)"
        f" COUNT(DISTINCT u) AS n FROM t{grouped}", {"t": rows},
    )  # fmt: skip
    *_, release = query.run(str(tmp_path))
    assert any("are not counted" in note for note in release.notes) is cut
    assert ("which every bound lets in" in str(query.explain())) is not cut


@pytest.mark.parametrize("asked_for", [
    "MIN(page) OVER (PARTITION BY user)", "FIRST_VALUE(page) OVER (PARTITION BY user ORDER BY ts)",
    "LAG(page) OVER (PARTITION BY user ORDER BY ts)",
])  # fmt: skip
def test_texts_that_are_repeated_may_take_more_than_32_bits_count(asked_for):
    """One long text of a person with many rows ended the job: Arrow has no room for so many."""
    table = pa.table({"user": [1, 1, 2], "page": ["a", "b", "c"], "ts": [3, 1, 2]})
    plan = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, max_rows_contributed"
        f" = 1, privacy_unit_column = user) p, COUNT(*) AS n FROM (SELECT user, {asked_for} AS p"
        " FROM t) GROUP BY p",
        {"t": table},
    ).plan
    assert own_rows(plan.source, table).schema.field("p").type == pa.large_string()


# -- one person's row beside everybody's: lists, codes and long texts ------------------------------

UNNESTED = "t CROSS JOIN UNNEST(list) AS part"
SHIFTED = "SELECT {} part, COUNT(*) AS n FROM {} GROUP BY part"


def test_what_a_null_list_covers_is_no_part():
    """Arrow numbers the parts that a null covers and does not hand them out: the job ended."""
    offsets = pa.array([0, 2, 4, 5], pa.int32()).buffers()[1]
    covered = pa.ListArray.from_buffers(
        pa.list_(pa.int64()), 3, [pa.py_buffer(b"\x05"), offsets],
        children=[pa.array([1, 2, 3, 4, 5])],
    )  # fmt: skip
    table = pa.table({"id": [1, 2, 3], "list": covered})
    plan = asked(UNNESTED, around=SHIFTED, table=table)
    made = own_rows(plan.source, table).select(["id", "part"])
    assert made.to_pylist() == [{"id": 1, "part": 1}, {"id": 1, "part": 2}, {"id": 3, "part": 5}]


@pytest.mark.parametrize("twice", [False, True])
def test_a_long_list_is_not_repeated_beside_each_of_its_parts(twice):
    """A list of a million, a thousand times: one row of one person filled the memory."""
    table = pa.table({"id": [1, 2], "list": [[0] * 1_000_000, [1, 2, 3]]})
    around = f"{UNNESTED} CROSS JOIN UNNEST(list) AS other" if twice else UNNESTED
    plan = asked(around, around=SHIFTED, table=table)
    made = own_rows(plan.source, table)
    assert made.nbytes < 2 * module.MOST_REPEATED
    counts = pc.value_counts(made["id"]).to_pylist()
    assert counts == [
        {"values": 1, "counts": module.MOST_PARTS},
        {"values": 2, "counts": 9 if twice else 3},
    ]
    alone = own_rows(plan.source, table.slice(1))
    assert alone.to_pylist() == made.filter(pc.equal(made["id"], 2)).to_pylist()


SETS_OF = "SELECT {} id, tags, COUNT(*) AS n FROM {} GROUP BY GROUPING SETS ((tags), (id), ())"


@pytest.mark.parametrize(("query", "around"), [
    ("t, UNNEST(SPLIT(tags)) AS part", SHIFTED), ("t", SETS_OF),
    ("(SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY tags) AS part FROM t)", SHIFTED),
])  # fmt: skip
def test_codes_of_several_chunks_need_not_fit_into_one(query, around):
    """Codes of 8 bits, of which no person's rows have many: together they ended the job."""
    kind = pa.dictionary(pa.int8(), pa.string())
    users = [[f"{name}{i}" for i in range(100)] for name in "ab"]
    table = pa.table({
        "id": pa.chunked_array([pa.array(some).dictionary_encode().cast(kind) for some in users]),
        "tags": ["x,y"] * 200,
    })  # fmt: skip
    plan = asked(query, around=around, table=table)
    made = own_rows(plan.source, table)
    alone = own_rows(plan.source, table.slice(0, 1))
    assert made.slice(0, alone.num_rows).to_pylist() == alone.to_pylist()
    assert made.num_rows == 200 * alone.num_rows
    assert not any(pa.types.is_dictionary(kind) for kind in made.schema.types)


def test_keys_of_grouping_sets_are_repeated_with_offsets_of_64_bits():
    """A long text once for each set: the job ended where all took 2 GiB."""
    table = pa.table({"id": ["a"], "tags": ["x"]})
    made = own_rows(asked("t", around=SETS_OF, table=table).source, table)
    assert not any(pa.types.is_string(kind) for kind in made.schema.types)


def test_rows_may_be_ordered_by_what_is_null_everywhere():
    """A column without a type has one rank."""
    table = pa.table({"id": [1, 1, 2], "x": pa.nulls(3)})
    ranked = "(SELECT *, RANK() OVER (PARTITION BY id ORDER BY x) AS part FROM t)"
    made = own_rows(asked(ranked, around=SHIFTED, table=table).source, table)
    assert made["part"].to_pylist() == [1, 1, 1]


@pytest.mark.parametrize(("subquery", "message"), [
    ("SELECT id, SUM(DISTINCT x) AS s FROM t GROUP BY id", "only COUNT takes DISTINCT"),
    ("SELECT id, LAG(x, 0) OVER (PARTITION BY id ORDER BY day) AS s FROM t", "at least 1, not 0"),
    ("SELECT id, LAG(x, -1) OVER (PARTITION BY id ORDER BY day) AS s FROM t",
     "a whole number written out, such as 1, of at most 18 digits, not -1"),
])  # fmt: skip
def test_totals_and_distances_that_there_are_not_name_the_way_out(subquery, message):
    with pytest.raises(PlanError, match=message):
        asked(subquery)
