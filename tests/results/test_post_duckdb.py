"""What SELECTs make of released rows is what DuckDB makes of the same numbers."""

import json
from datetime import UTC, datetime
from tempfile import TemporaryDirectory

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamveil as sv
from streamveil.results.post import processed

ROWS = [(c, d, n) for (c, d), n in zip(
    [("x", 1), ("x", 2), ("y", 1), ("y", 3), ("z", 2), (None, 1), ("z", None), ("w", 3)],
    [50, 31, 20, -3, 7, 64, 12, 0], strict=True,
)]  # fmt: skip
PRIVATE = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 8, delta = 1e-6, privacy_unit_column = u,"
    " max_rows_contributed = 1, name = 'job') c, d, COUNT(*) AS n FROM t GROUP BY c, d"
)


def ours(text):
    """The rows that a SELECT over a private answer (`p`) gives, without intervals."""
    rows = pa.table({"u": ["a"], "c": ["a"], "d": [1]})
    plan = sv.sql(f"WITH p AS ({PRIVATE}) {text}", {"t": rows}).plan
    c, d, n = zip(*ROWS, strict=True)
    table = pa.table({
        "c": c, "d": d, "n": n, "n_sd": [3.0] * len(n), "n_low": [one - 6.0 for one in n],
        "n_high": [one + 6.0 for one in n], "trigger": [1] * len(n),
    })  # fmt: skip
    said = {"version": 1, "rounds": False, "confidence": 0.95, "keys": ["c", "d"],
            "outputs": [{"name": "n", "function": "count", "lanes": [0]}]}  # fmt: skip
    found = processed(table.replace_schema_metadata({b"streamveil": json.dumps(said).encode()}),
                      plan.post)  # fmt: skip
    beside = tuple(f"{name}_{end}" for name in found.column_names for end in ("sd", "low", "high"))
    kept = [name for name in found.column_names if name not in (*beside, "trigger")]
    return [tuple(row.values()) for row in found.select(kept).to_pylist()]


def theirs(text):
    """The same by DuckDB, whose nulls are told to be the least."""
    with duckdb.connect() as database:
        database.execute("SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
        values = ", ".join("(?, ?::BIGINT, ?::BIGINT)" for _ in ROWS)
        flat = [cell for row in ROWS for cell in row]
        database.execute("CREATE TABLE p (c VARCHAR, d BIGINT, n BIGINT)")
        database.execute(f"INSERT INTO p VALUES {values}", flat)
        return database.execute(text).fetchall()


def same(one, other):
    """Whether two rows are equal, real numbers but for their last digits."""
    return len(one) == len(other) and all(
        a == (None if b is None else pytest.approx(float(b)) if isinstance(a, float) else b)
        for a, b in zip(one, other, strict=True)
    )


NUMBERS = ["n", "n + 1", "2 * n - d", "n / 4", "-n", "ABS(n)", "COALESCE(d, 9) + n"]
TEXTS, WHOLE = ["c", "UPPER(c)"], ["d", "COALESCE(d, 0)", "d + 1", "LENGTH(c)"]
CONDITIONS = ["n > 10", "c <> 'x'", "d IS NULL OR n < 40", "c IN ('x', 'y')", "NOT d = 1",
              "c LIKE 'z'", "n BETWEEN 0 AND 31"]  # fmt: skip
MOVED = [
    "LAG(n) OVER (ORDER BY c, d)", "LEAD(n, 2) OVER (ORDER BY d DESC, c)",
    "LAG(n) OVER (PARTITION BY c ORDER BY d)", "SUM(n) OVER (PARTITION BY d)",
    "AVG(n) OVER ()", "COUNT(*) OVER (PARTITION BY c)", "RANK() OVER (ORDER BY n DESC)",
    "ROW_NUMBER() OVER (PARTITION BY c ORDER BY n)",
    "SUM(n) OVER (ORDER BY c, d ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)",
    "AVG(n) OVER (PARTITION BY c ORDER BY d ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING)",
]  # fmt: skip
TOTALS = ["SUM(n)", "COUNT(*)", "AVG(n)", "SUM(n) / COUNT(*)", "SUM(n) - 2 * COUNT(*)"]


@st.composite
def plain(draw, source, keys):
    """A SELECT of three columns: k, m and n."""
    key = draw(st.sampled_from(keys))
    number = draw(st.sampled_from([*NUMBERS, *MOVED]))
    where = draw(st.sampled_from(["", *(f" WHERE {one}" for one in CONDITIONS)]))
    return f"SELECT {key} AS k, {number} AS m, n FROM {source}{where}"


@st.composite
def grouped(draw, source, keys):
    """The same columns of a SELECT that adds up."""
    key, total = draw(st.sampled_from(keys)), draw(st.sampled_from(TOTALS))
    where = draw(st.sampled_from(["", *(f" WHERE {one}" for one in CONDITIONS)]))
    having = draw(st.sampled_from(["", " HAVING SUM(n) > 12", " HAVING COUNT(*) < 3"]))
    by = draw(st.sampled_from(["1", "k", key]))
    return (
        f"SELECT {key} AS k, {total} AS m, SUM(n) AS n FROM {source}{where} GROUP BY {by}{having}"
    )


@st.composite
def selects(draw):
    """A SELECT around the private answer, or around several of those."""
    keys = draw(st.sampled_from([TEXTS, WHOLE]))
    inner = f"(SELECT c, d, n FROM p WHERE {draw(st.sampled_from(CONDITIONS))}) AS q"
    one, other = (draw(st.sampled_from(["p", inner])) for _ in range(2))
    first = draw(plain(one, keys) | grouped(one, keys))
    second = draw(plain(other, keys) | grouped(other, keys))
    return draw(st.sampled_from([
        first,
        f"SELECT k, m, n - 1 AS less FROM ({first}) AS r WHERE n > 5 OR k IS NULL",
        f"SELECT k, COUNT(*) AS m, SUM(n) AS n FROM ({first}) AS r GROUP BY k",
        f"SELECT k, SUM(n) OVER (PARTITION BY k) AS m, n FROM ({first}) AS r",
        f"SELECT k, m, n FROM ({first}) AS r QUALIFY SUM(n) OVER (PARTITION BY k) > 20",
        f"SELECT k, m, n FROM ({first}) AS r QUALIFY RANK() OVER (PARTITION BY k ORDER BY n) = 1",
        f"SELECT a.k, a.n AS n, b.n AS m FROM ({first}) AS a JOIN ({second}) AS b ON a.k = b.k",
        f"SELECT a.k, a.n, a.n - b.n AS m FROM ({first}) AS a LEFT JOIN ({second}) AS b USING (k)",
        f"SELECT k, COUNT(*) AS m, SUM(o) AS n FROM (SELECT a.k, b.n AS o FROM ({first}) AS a LEFT"
        f" JOIN ({second}) AS b ON a.k = b.k) AS r GROUP BY k",
        f"SELECT k, n + 1 AS m, n FROM ({first}) AS a UNION ALL SELECT k, 2 * n, n FROM ({second})"
        " AS b",
    ]))  # fmt: skip


def order(row):
    """In which nulls and numbers of any kind have a place."""
    return [repr(cell if cell is None or isinstance(cell, str) else float(cell)) for cell in row]


@settings(max_examples=60)
@given(selects(), st.sampled_from(["", " LIMIT 3", " LIMIT 2 OFFSET 1"]))
def test_duckdb_makes_the_same_of_released_rows(text, limit):
    """In their order where LIMIT needs one; else in any."""
    text = f"{text} ORDER BY 3 DESC, 1, 2{limit}" if limit else text
    found, expected = ours(text), theirs(text)
    if not limit:
        found, expected = sorted(found, key=order), sorted(expected, key=order)
    assert len(found) == len(expected)
    assert all(map(same, found, expected)), (found, expected)


@pytest.mark.parametrize("exact", [
    "COUNT(*) OVER (PARTITION BY c)", "RANK() OVER (ORDER BY n DESC)",
    "DENSE_RANK() OVER (PARTITION BY c ORDER BY n)",
])  # fmt: skip
@pytest.mark.parametrize("outer", [
    "SELECT k, SUM(m) AS s, AVG(m) AS a, COUNT(*) AS b FROM {} GROUP BY k",
    "SELECT k, m, SUM(m) OVER (PARTITION BY k) AS s FROM {}",
    "SELECT k, m, m * n / SUM(m) OVER (PARTITION BY k) AS s FROM {}",
    "SELECT k, m FROM {} QUALIFY SUM(m) OVER (PARTITION BY k) > 3",
])  # fmt: skip
def test_numbers_without_an_interval_are_added_up(exact, outer):
    """A total of ranks, or of numbers of rows, ended with a KeyError."""
    inner = f"(SELECT c AS k, {exact} AS m, n FROM p WHERE d IS NOT NULL AND c IS NOT NULL) AS q"
    text = outer.format(inner)
    found, expected = sorted(ours(text), key=order), sorted(theirs(text), key=order)
    assert len(found) == len(expected)
    assert all(map(same, found, expected)), (found, expected)


@pytest.mark.parametrize("text", [
    "SELECT COUNT(*) AS k, SUM(n) AS m, AVG(n) AS a FROM p WHERE n > 99",
    "SELECT SUM(n) / COUNT(*) AS a, 'all' AS c, COALESCE(SUM(n), 7) AS n FROM p WHERE c = 'v'",
    "SELECT COUNT(*) AS k, SUM(m) AS m FROM (SELECT COUNT(*) AS m FROM p WHERE n > 99) AS q",
    "SELECT COUNT(*) AS k FROM (SELECT c, SUM(n) AS n FROM p GROUP BY c) AS q WHERE n > 999",
    "SELECT SUM(n) AS n FROM p WHERE n > 99 HAVING COUNT(*) > 0",
    "SELECT c, SUM(n) AS n FROM p WHERE n > 99 GROUP BY c",
    "SELECT c, n FROM p WHERE c = 'x' UNION ALL SELECT 'all', SUM(n) FROM p WHERE c = 'v'",
])  # fmt: skip
def test_a_total_of_no_rows_is_a_row(text):
    """There was none: how many groups are above a level was no number, where it is 0."""
    assert ours(text) == theirs(text)


def test_a_total_of_no_rows_says_of_which_release_it_is():
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2)]
    rows = {"u": range(4000), "t": days * 2000}
    text = """
        SELECT COUNT(*) AS k, SUM(n) AS s FROM (
            SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 8, delta = 1e-6, start =
                '2026-01-01', end = '2026-01-03', privacy_unit_column = u, max_rows_contributed = 1)
            window_start, MOD(u, {groups}) AS c, COUNT(*) AS n
            FROM TUMBLE(TABLE t, DESCRIPTOR(t), size => INTERVAL 1 DAY) GROUP BY window_start, c
            EMIT EVERY INTERVAL 1 DAY) WHERE n > 99999"""
    for groups, begins in ((2, days), (4000, [None, None])):  # of which none is shown
        query = sv.sql(text.format(groups=groups), {"t": sv.memory(rows, event_time="t")})
        with TemporaryDirectory() as folder:
            found = [row for one in query.run(state=f"{folder}/s") for row in one.table.to_pylist()]
        assert [(row["k"], row["s"], row["trigger"]) for row in found] == [(0, None, 1)] * 2
        assert [row["window_start"] for row in found] == begins


def test_a_total_in_which_a_number_is_missing_is_missing():
    """SQL passes over nulls; here they are groups of which nothing is known."""
    some = "SELECT c, d, n FROM p WHERE n > 10"
    both = f"SELECT a.c AS k, b.n AS o FROM p AS a LEFT JOIN ({some}) AS b USING (c, d)"
    found = dict(ours(f"SELECT k, SUM(o) AS s FROM ({both}) AS r GROUP BY k"))
    assert found == {"x": 81, "y": None, "z": None, None: None, "w": None}
    assert dict(theirs(f"SELECT k, SUM(o) AS s FROM ({both}) AS r GROUP BY k"))["y"] == 20


@pytest.mark.parametrize("function", ["SUM", "AVG"])
def test_a_frame_in_which_a_number_is_missing_has_none(function):
    """A number that is missing before a row was added up as 0, one of the row itself was not."""
    some = "SELECT c, d, n FROM p WHERE n > 10"
    both = f"SELECT a.c AS k, a.d AS d, b.n AS o FROM p AS a LEFT JOIN ({some}) AS b USING (c, d)"
    window = "ORDER BY k, d ROWS BETWEEN 1 PRECEDING AND CURRENT ROW"
    rows = f"SELECT k, d, o, {function}(o) OVER ({window}) AS s FROM ({both}) AS r ORDER BY k, d"
    found = ours(rows)
    assert [row[2] for row in found] == [None, None, 50, 31, 20, None, None, None]
    third, fourth = (81, 51) if function == "SUM" else (40.5, 25.5)
    assert [row[3] for row in found] == [None, None, None, third, fourth, None, None, None]
