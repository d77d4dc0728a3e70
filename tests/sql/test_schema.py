"""A plan against the columns of its source."""

from datetime import UTC, date, datetime

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.errors import PlanError
from streamveil.expressions import columns_of, compile_expression, compile_unit, compile_value
from streamveil.sql.schema import check_schema

SCHEMA = pa.schema([
    ("user_id", pa.string()), ("url", pa.string()), ("ms", pa.int32()),
    ("ts", pa.timestamp("us", "UTC")), ("when", pa.string()), ("ok", pa.bool_()),
])  # fmt: skip


def plan(unit="user_id", key="url", value="ms", where="ok", time="ts"):
    return (
        sv.files("t.parquet", event_time=time).protect(unit).where(where)
        .group_by(k=key).agg(s=sv.sum(value, bounds=(0, 1))).bound(max_rows=1)
        .release(budget=sv.Budget(epsilon=1, delta=1e-9)).plan
    )  # fmt: skip


def grouped(key, groups):
    return (
        sv.files("t.parquet", event_time="ts").protect("user_id")
        .group_by(k=key, keys=sv.public(groups)).agg(n=sv.count()).bound(max_rows=1)
        .release(budget=sv.Budget(epsilon=1)).plan
    )  # fmt: skip


def test_a_fitting_plan():
    check_schema(plan(), SCHEMA)
    check_schema(plan(time="TS"), SCHEMA)
    check_schema(plan(key="DATE(ts)", value="ms * 1.5", where="ms > 1"), SCHEMA)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "userid"}, "did you mean 'user_id'?"),
        ({"unit": "NULL"}, "always null"),
        ({"key": "ulr"}, "did you mean 'url'?"),
        ({"value": "url"}, "needs numbers, not string"),
        ({"value": "ok"}, "needs numbers, not bool.\n  to fix  IF(ok, 1, 0)"),
        ({"where": "ms"}, "must be a condition"),
        ({"time": "tss"}, "did you mean 'ts'?"),
        ({"time": "when"}, "not times"),
    ],
)
def test_what_does_not_fit(change, message):
    with pytest.raises(PlanError) as caught:
        check_schema(plan(**change), SCHEMA)
    assert message in str(caught.value)


@pytest.mark.parametrize("kind", [pa.decimal128(38, 0), pa.decimal256(40, 2), pa.timestamp("ns")])
def test_a_unit_whose_last_digits_would_be_lost_is_refused(kind):
    kinds = [kind, pa.dictionary(pa.int32(), kind)]
    for one in kinds:
        schema = SCHEMA.set(0, pa.field("user_id", one))
        with pytest.raises(PlanError, match="several units would count as one"):
            check_schema(plan(), schema)


@pytest.mark.parametrize("kind", [pa.decimal128(15, 2), pa.uint64(), pa.timestamp("us")])
def test_a_unit_that_is_read_exactly_is_taken(kind):
    check_schema(plan(), SCHEMA.set(0, pa.field("user_id", kind)))


@pytest.mark.parametrize(
    ("word", "fine"), [("NUMERIC", False), ("Float64", False), ("INT64", True)]
)
@pytest.mark.parametrize("table", [True, False])
def test_a_unit_that_is_read_from_text_as_a_float_is_refused(tmp_path, word, fine, table):
    path = tmp_path / "t.csv"
    path.write_text("u,op,g\n9007199254740992,+,a\n9007199254740993,+,a\n")
    source = sv.files(str(path), columns={"u": word, "op": "STRING", "g": "STRING"})
    budget = sv.Budget(epsilon=1, delta=1e-9)
    if table:
        people = sv.table(source, id="u", operation="op", domains={"g": ["a"]})
        query = people.group_by("g").agg(n=sv.count()).release(expected_size=500, budget=budget)
    else:
        query = source.protect("u").agg(n=sv.count()).bound(max_rows=1).release(budget=budget)
    if word == "INT64":
        assert len(list(query.run(state=tmp_path / "s"))) == 1
        return
    with pytest.raises(PlanError, match="several units would count as one"):
        query.run(state=tmp_path / "s")


@pytest.mark.parametrize(
    ("key", "groups"),
    [
        ("ms", ["a"]),
        ("ms", [1, 2.5]),
        ("ms", [2**64 - 1]),
        ("url", [1]),
        ("ok", ["yes"]),
        ("DATE(ts)", ["2026-01-01"]),
        ("DATE(ts)", [datetime(2026, 1, 1, 5, tzinfo=UTC)]),  # was cut to its date
        ("DATE(ts)", [20_454]),
        ("ts", [1.5]),  # was cut to a microsecond after 1970
        ("ts", [date(2026, 1, 1)]),
        ("ms * 1.5", [True]),  # was 1.0
    ],
)
def test_public_groups_of_another_type_are_refused_before_anything_is_spent(key, groups):
    with pytest.raises(PlanError, match="values of its type"):
        check_schema(grouped(key, groups), SCHEMA)


@pytest.mark.parametrize(
    ("key", "groups"),
    [
        ("ms", [1, None, -(2**63), 2.0]),
        ("ms * 1.5", [1, 1.5, float("nan")]),
        ("url", ["a", None]),
        ("ok", [True, None]),
        ("DATE(ts)", [date(2026, 1, 1)]),
        ("ts", [datetime(2026, 1, 1, tzinfo=UTC)]),
        ("ok", pa.array([True, None])),
        ("ts", pa.array([datetime(2026, 1, 1, tzinfo=UTC)])),
    ],
)
def test_public_groups_of_the_columns_type_are_taken(key, groups):
    check_schema(grouped(key, groups), SCHEMA)


@pytest.mark.parametrize("groups", [[0.25, None, float("nan"), float("inf")], [0.1], [1e300]])
def test_public_groups_that_a_narrow_column_cannot_hold_are_refused(groups):
    rows = sv.memory(pa.table({"u": [1, 2], "x": pa.array([0.1, 0.25], pa.float32())})).protect("u")
    made = rows.group_by("x", keys=sv.public(groups)).agg(n=sv.count()).bound(max_rows=1)
    asked = made.release(budget=sv.Budget(epsilon=9, delta=1e-9))
    if groups[0] == 0.25:
        asked.explain()
        return
    with pytest.raises(PlanError, match="does not have every public group"):
        asked.explain()


def test_public_groups_of_a_sketch_are_of_the_type_it_counts():
    query = "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, \
        privacy_unit_column = user_id, max_rows_contributed = 1, public_groups = [{}]) \
        APPROX_FREQUENCY(url) AS n FROM t"
    source = {"t": sv.files("t.parquet")}
    check_schema(sv.sql(query.format("'a'"), source).plan, SCHEMA)
    with pytest.raises(PlanError, match="values of its type"):
        check_schema(sv.sql(query.format("1"), source).plan, SCHEMA)


def test_public_groups_of_a_sketch_are_one_value_each():
    """Of a pair the second value was left out without a word."""
    query = sv.files("t.parquet").protect("user_id").agg(n=sv.approx_frequency("url"))
    for groups in ([("a", "b")], [()]):
        with pytest.raises(PlanError, match="one value"):
            query.group_by(keys=sv.public(groups)).bound(max_rows=1).release(
                budget=sv.Budget(epsilon=1, delta=1e-9)
            )


SEARCH = """
CREATE STREAM t (ts TIMESTAMP, u INT64, page {kind})
WITH (source = 'files', path = 'x/*.csv', event_time = 'ts');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = u,
    max_rows_contributed = 2, start = '2026-01-01', end = '2026-01-02')
  HEAVY_HITTERS(page, k => 5{options}) FROM t EMIT EVERY INTERVAL 1 HOUR
"""


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [("STRING", "", "searches text.*\n.*text_length => 8"), ("FLOAT64", "", "not float"),
     ("DATE", "", "not date"), ("BOOL", "", "not bool"),
     ("INT64", ", text_length => 4", "this is int, with text_length"), ("INT64", "", None),
     ("STRING", ", text_length => 4", None)],
)  # fmt: skip
def test_heavy_hitters_are_integers_or_text_of_a_known_length(kind, options, words):
    query = sv.sql(SEARCH.format(kind=kind, options=options))
    schema = pa.schema([("ts", pa.timestamp("us", "UTC")), ("u", pa.int64()),
                        ("page", {"STRING": pa.string(), "INT64": pa.int64(),
                                  "FLOAT64": pa.float64(), "DATE": pa.date32(),
                                  "BOOL": pa.bool_()}[kind])])  # fmt: skip
    if words is None:
        query.explain()
        check_schema(query.plan, schema)
        return
    with pytest.raises(PlanError, match=words):
        query.explain()
    with pytest.raises(PlanError, match=words):
        check_schema(query.plan, schema)


EMPTY = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6,
    privacy_unit_column = u, max_rows_contributed = 1) {asked} FROM t{tail}"""


@pytest.mark.parametrize(("asked", "tail"), [
    ("g, COUNT(*) AS n", " GROUP BY g"), ("SUM(x, contribution_bounds_per_row => (0, 5)) AS s", ""),
    ("HEAVY_HITTERS(g, k => 3, text_length => 4) AS n", ""),
])  # fmt: skip
def test_a_frame_without_rows_and_types_says_so_and_one_with_types_answers(asked, tail):
    text = EMPTY.format(asked=asked, tail=tail)
    for bare in (pd.DataFrame(columns=["u", "g", "x"]), {"u": [], "g": [], "x": []}):
        with pytest.raises(
            PlanError, match=r"column '\w+' has no type: the frame has no rows"
        ) as said:
            sv.sql(text, t=bare)
        assert ".astype({'" in str(said.value)
    typed = pd.DataFrame({
        "u": pd.Series([], dtype="int64"), "g": pd.Series([], dtype="string"),
        "x": pd.Series([], dtype="float64"),
    })  # fmt: skip
    found = sv.sql(text, t=typed).table
    assert found.num_rows <= 3
    assert {"n", "s"} & set(found.column_names)


@pytest.mark.parametrize("column", ["op", "id"])
def test_operations_and_ids_are_no_lists(column):
    query = sv.sql("""
        CREATE TABLE people (op STRING, id INT64, city STRING CHECK (city IN ('Lima', 'Oslo')))
        WITH (source = 'files', path = 'x', changelog = 'insert-delete', operation = op, id = id);
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 9, delta = 1e-6,
            expected_size = 20000, steps = 2)
          city, COUNT(*) AS n FROM people GROUP BY city EMIT EVERY 4 ROWS
    """)
    kinds = {"op": pa.string(), "id": pa.int64(), "city": pa.string()}
    for kind in (pa.list_(pa.string()), pa.struct([("a", pa.int64())])):
        with pytest.raises(PlanError, match=f"column '{column}' of table 'people' holds"):
            check_schema(query.plan, pa.schema({**kinds, column: kind}))


def test_mixed_types_are_told_by_their_place():
    with pytest.raises(PlanError, match=r"argument 1 is int, argument 3 is string\.\n.*CAST"):
        compile_expression("COALESCE(a, 1, b)", pa.schema([("a", pa.int64()), ("b", pa.string())]))


DOTTED = pa.table({"id": ["a", "b", "c"], "user.id": ["x", "x", "y"], "n": [1, 2, 3]})


def test_a_name_with_a_dot_is_one_column_and_never_its_last_word():
    """A unit `user.id` that was read as `id` would protect rows, and none of their users."""
    assert columns_of("`user.id`") == ("user.id",)
    units = compile_unit("`user.id`", DOTTED.schema)(DOTTED)
    assert units.to_pylist()[0] == units.to_pylist()[1] != units.to_pylist()[2]
    for text in ("user.id", "`user`.id"):
        assert columns_of(text) == ("user.id",)
        assert compile_unit(text, DOTTED.schema)(DOTTED).equals(units)
    with pytest.raises(PlanError, match=r"unknown column 'a\.user\.id'"):
        compile_value("a.user.id", DOTTED.schema)


@pytest.mark.parametrize("spelling", ["sql", "aliased", "python"])
def test_a_unit_whose_name_has_a_dot_is_the_one_that_is_bounded(spelling, tmp_path):
    rows = pa.table({"id": range(900), "user.id": [0] * 900})
    if spelling == "python":
        query = sv.memory(rows).protect("`user.id`").agg(n=sv.count()).bound(max_rows=1)
        query = query.release(budget=sv.Budget(epsilon=50, delta=1e-6))
    else:
        unit, alias = ("r.`user.id`", "AS r") if spelling == "aliased" else ("`user.id`", "")
        pq.write_table(rows, tmp_path / "r.parquet")
        query = sv.sql(
            "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 50, delta = 1e-6, "
            f"privacy_unit_column = {unit}, max_rows_contributed = 1) COUNT(*) AS n "
            f"FROM '{tmp_path}/r.parquet' {alias}"
        )
    (release,) = query.run(state=str(tmp_path / "s"))
    assert abs(release.to_arrow()["n"][0].as_py() - 1) < 20  # of 900: noise has a deviation of .3
