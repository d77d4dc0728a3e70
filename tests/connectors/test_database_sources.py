"""Databases as sources: every row once and in one order, of types that no value decides."""

from __future__ import annotations

import sqlite3
import sys
from collections import Counter
from contextlib import closing, nullcontext
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.connectors import open_source
from streamveil.connectors.database_sources import in_reach, of_any, require_rows
from streamveil.connectors.rejected_rows import traced
from streamveil.errors import MissingExtraError, PlanError, SourceError
from tests.connectors.test_kafka import counts
from tests.servers.postgres import PASSWORD

COLUMNS = {"u": "INT64", "page": "STRING", "amount": "FLOAT64", "ts": "TIMESTAMP"}
NAME = 'visits "of" us'
ROWS = [(u % 7, "ab"[u % 2], u / 4 - 2, f"2026-01-0{u % 3 + 1} 00:00:00") for u in range(100)]
ROWS += [(3, "a", None, None), (3, None, 0.5, None), (3, "", 0.5, None), (3, "", 0.5, None)]


def run(place, *statements, rows=()):
    """Statements, and rows for the last of them, which holds `{}` for their parameters."""
    kind = place["kind"]
    mark = "%s" if kind == "postgres" else "?"
    with closing(connected(place)) as connection:
        cursor = connection.cursor()
        for statement in statements:
            if "{}" in statement:
                cursor.executemany(statement.format(", ".join([mark] * len(rows[0]))), rows)
            else:
                cursor.execute(statement)
        connection.commit()


def connected(place):
    if place["kind"] == "postgres":
        import psycopg

        return psycopg.connect(place["url"], password=PASSWORD)
    if place["kind"] == "duckdb":
        import duckdb

        return duckdb.connect(place["path"])
    return sqlite3.connect(place["path"])


@pytest.fixture
def visits(place):
    """A database with a table, and how to read it."""
    real = {"duckdb": "DOUBLE", "postgres": "double precision", "sqlite": "REAL"}[place["kind"]]
    quoted = '"visits ""of"" us"'
    run(
        place, f"CREATE TABLE {quoted} (u BIGINT, page VARCHAR(9), amount {real}, ts TIMESTAMP)",
        f"INSERT INTO {quoted} VALUES ({{}})", rows=ROWS,
    )  # fmt: skip
    return place


def opened(visits, **more):
    options = {name: value for name, value in visits.items() if name not in ("kind", "table")}
    if visits["kind"] == "sqlite":
        options["columns"] = COLUMNS
    return open_source(visits["kind"], {**options, **(more or {"table": NAME})})


def whole(chunks):
    return [tuple(row.values()) for chunk in chunks for row in chunk.rows.to_pylist()]


def test_every_position_goes_on_with_the_same_rows(visits):
    source = opened(visits)
    assert source.schema().names == list(COLUMNS)
    assert [str(kind) for kind in source.schema().types[:3]] == ["int64", "string", "double"]
    chunks = list(source.read(None, 7))
    rows = whole(chunks)
    assert len(rows) == len(ROWS)
    plain = {
        (u, page, amount, ts and ts.replace(tzinfo=None).isoformat(" "))
        for u, page, amount, ts in rows
    }
    assert plain == set(ROWS)
    for at, chunk in enumerate(chunks):
        for most in (5, 1000):
            assert whole(opened(visits).read(chunk.position, most)) == whole(chunks[at + 1 :])


def test_a_table_that_changed_before_a_position_is_refused_and_behind_it_is_read(visits):
    chunks = list(opened(visits).read(None, 40))
    run(visits, "INSERT INTO " + '"visits ""of"" us" VALUES (9, \'z\', 1.0, NULL)')
    follows = whole(opened(visits).read(chunks[0].position, 1000))
    assert len(follows) == len(ROWS) - 40 + 1
    run(visits, 'DELETE FROM "visits ""of"" us" WHERE u = 0')
    for chunk in (chunks[0], chunks[-1]):
        with pytest.raises(SourceError, match="has changed since"):
            list(opened(visits).read(chunk.position, 1000))


def test_a_query_is_read_and_only_the_wanted_columns_of_it(visits):
    query = 'SELECT u, UPPER(page) AS page FROM "visits ""of"" us" WHERE u < 3; -- few'
    more = {"columns": {"u": "INT64", "page": "STRING"}} if visits["kind"] == "sqlite" else {}
    source = opened(visits, query=query, **more)
    rows = whole(source.read(None, 100, ["page"]))
    assert sorted(rows) == sorted((row[1].upper(),) for row in ROWS if row[0] < 3)


@pytest.mark.parametrize(
    "query",
    ["SELECT SUM(x) AS x FROM t", "SELECT list(x) FROM t", "SELECT mine(x) FROM t", "DELETE FROM t",
     "SELECT x FROM t LIMIT 1", "SELECT DISTINCT x FROM t", "SELECT x FROM t GROUP BY x",
     "SELECT x, RANK() OVER (ORDER BY x) FROM t", "SELECT t.x FROM t, s", "SELECT x FROM t JOIN s",
     "SELECT x FROM t UNION ALL SELECT x FROM t", "SELECT x FROM (SELECT x FROM t)",
     "SELECT (SELECT MAX(x) FROM t) AS x FROM t", "SELECT x FROM t WHERE x IN (SELECT x FROM t)",
     "WITH t AS (SELECT 1 AS x) SELECT x FROM t", "SELECT x FROM t; SELECT x FROM t", "SELECT 1",
     "SELECT x FROM t ORDER BY x", "SELECT x FROM t TABLESAMPLE (10 PERCENT)", "SELECT x FROM",
     "SELECT x FROM f(1)", "SELECT x FROM t WHERE EXISTS (SELECT 1 FROM s)", ""],
)  # fmt: skip
def test_a_query_that_mixes_rows_is_refused(query):
    for dialect in ("sqlite", "duckdb", "postgres"):
        with pytest.raises(SourceError, match="mixes people"):
            require_rows(query, dialect)


@pytest.mark.parametrize(
    "part",
    ["CAST(page AS INT)", "TRY_CAST(page AS INT)", "1 / u", "u + u", "-u", "SUBSTR(page, 1, -1)",
     "page LIKE page", "page LIKE 'x\\'", "u = amount", "u IN (1, amount)", "ABS(u)",
     "u BETWEEN 1 AND amount", "CAST('1' AS DOUBLE PRECISION) = u", "COALESCE(u, amount)",
     "NULLIF(u, 1)", "CASE page WHEN 1 THEN TRUE END", "DATE_TRUNC('day', ts)"],
)  # fmt: skip
def test_a_query_that_one_row_can_make_fail_is_refused(part):
    for dialect in ("sqlite", "duckdb", "postgres"):
        for query in (f"SELECT {part} AS x FROM t", f"SELECT u FROM t WHERE {part} IS NULL"):
            with pytest.raises(SourceError, match="may fail on one row"):
                require_rows(query, dialect)


@pytest.mark.parametrize("condition", ["page", "NOT page", "page IN (1, 2)", "page = TRUE"])
def test_a_condition_that_casts_a_column_by_itself_fails_for_all_rows_or_for_none(
    condition, tmp_path
):
    """DuckDB casts the texts of a column: one that is no number stopped the job."""
    place, told = {"kind": "duckdb", "path": str(tmp_path / "x.duckdb")}, []
    for odd in ("1", "not a number"):
        run(place, "CREATE OR REPLACE TABLE t AS SELECT '1' AS page, 1 AS u",
            f"INSERT INTO t VALUES ('{odd}', 2)")  # fmt: skip
        source = open_source("duckdb", {"path": place["path"], "query":
                                        f"SELECT u FROM t WHERE {condition}"})  # fmt: skip
        told.append(sorted(whole(source.read(None, 10))))
    assert [row for row in told[0] if row != (2,)] == [row for row in told[1] if row != (2,)]


def test_a_bound_on_rows_favours_neither_groups_nor_values(place):
    """Each unit has 20 equal rows of `a`, as many of `b`, and values from 0 to 19 in both."""
    name = "streamveil_copy"  # as a column was called that is added to rows
    real = {"duckdb": "DOUBLE", "postgres": "double precision", "sqlite": "REAL"}[place["kind"]]
    rows = [f"({u}, '{page}', {n}.0)" for u in range(200) for page in "ab" for n in range(20)]
    create = f"CREATE TABLE taps (u BIGINT, {name} VARCHAR(9), amount {real})"
    run(place, create, f"INSERT INTO taps VALUES {', '.join(rows)}")
    more = {"columns": {"u": "INT64", name: "STRING", "amount": "FLOAT64"}}
    source = opened(place, table="taps", **(more if place["kind"] == "sqlite" else {}))
    for columns in (["u", name], ["u", name, "amount"]):
        kept, of_unit = [], Counter()
        for row in whole(source.read(None, 100, columns)):
            of_unit[row[0]] += 1
            kept += [row] if of_unit[row[0]] <= 8 else []
        of_a = sum(row[1] == "a" for row in kept) / len(kept)
        assert (len(of_unit), len(kept), abs(of_a - 0.5) < 0.06) == (200, 1_600, True)
    assert abs(np.mean([row[2] for row in kept]) - 9.5) < 0.7


def test_rows_that_duckdb_sorts_beyond_memory_lie_in_a_private_folder(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = str(tmp_path / "taps.duckdb")
    duckdb.connect(path).execute("CREATE TABLE taps AS SELECT 1 AS u")
    with closing(open_source("duckdb", {"path": path, "table": "taps"}).connect()) as connection:
        (place,) = connection.execute("SELECT current_setting('temp_directory')").fetchone()
    assert not place.startswith(path)
    assert Path(place).stat().st_mode & 0o077 == 0


SAME_LETTERS = {"duckdb": "VARCHAR COLLATE NOCASE", "sqlite": "TEXT COLLATE NOCASE",
                "postgres": "text COLLATE nocase"}  # fmt: skip


def test_the_order_of_somebodys_rows_does_not_follow_who_is_equal_by_a_collation(place):
    """Of `ANN` where `ann` is there: her rows were numbered behind those of the other one."""
    kind = place["kind"]
    if kind == "postgres":
        run(place, "CREATE COLLATION nocase"
            " (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")  # fmt: skip

    def order(*users):
        rows = [(u, n) for u in reversed(users) for n in range(20)]
        made = f"CREATE TABLE people (u {SAME_LETTERS[kind]}, n INT)"
        run(place, "DROP TABLE IF EXISTS people", made, "INSERT INTO people VALUES ({})", rows=rows)
        columns = {"columns": {"u": "STRING", "n": "INT64"}} if kind == "sqlite" else {}
        source = opened(place, table="people", **columns)
        return [row for row in whole(source.read(None, 100)) if row[0] == users[0]]

    for user, other in (("ann", "ANN"), ("ANN", "ann")):
        assert order(user, other) == order(user)


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_nor_who_is_equal_up_to_a_null_character(kind, tmp_path):
    """SQLite quotes a text up to there: rows of `ann` were numbered with those of `ann\\0x`."""
    pytest.importorskip({"sqlite": "sqlite3"}.get(kind, kind))
    found = []
    for number, users in enumerate((["ann\0x", "ann"], ["ann"])):
        place = {"kind": kind, "path": str(tmp_path / f"{number}.db")}
        run(place, "CREATE TABLE people (u VARCHAR, n INT)", "INSERT INTO people VALUES ({})",
            rows=[(u, n) for u in users for n in range(20)])  # fmt: skip
        columns = {"columns": {"u": "STRING", "n": "INT64"}} if kind == "sqlite" else {}
        rows = whole(opened(place, table="people", **columns).read(None, 100))
        found.append([row for row in rows if row[0] == "ann"])
    assert found[0] == found[1]
    assert len(found[0]) == 20


def test_times_of_more_digits_than_are_kept_name_no_unit(tmp_path):
    """Two people whom DuckDB told apart by nanoseconds counted as one."""
    duckdb = pytest.importorskip("duckdb")
    path = str(tmp_path / "taps.duckdb")
    with closing(duckdb.connect(path)) as connection:
        connection.execute("CREATE TABLE taps (t TIMESTAMP_NS, us TIMESTAMP, n INT)")
    rows = sv.source("duckdb", name="taps", path=path, table="taps")
    for column, refused in (
        ("t", pytest.raises(PlanError, match=r"timestamp\[ns\].*several units would count as one")),
        ("us", nullcontext()),
    ):
        query = rows.protect(column).agg(n=sv.count()).bound(max_rows=1).release(
            budget=sv.Budget(epsilon=1, delta=1e-6), look_share=0
        )  # fmt: skip
        with refused:
            list(query.run(str(tmp_path / column)))


@pytest.mark.parametrize(
    ("kind", "odd"),
    [(pa.timestamp("s"), 10**13), (pa.timestamp("ms"), -(2**63)), (pa.timestamp("us"), -(2**63)),
     (pa.time64("us"), 2**62), (pa.time64("ns"), -1)],
)  # fmt: skip
@pytest.mark.parametrize("declared", [None, "STRING"])
def test_a_time_that_duckdb_cannot_show_stops_nobody(kind, odd, declared, tmp_path):
    """It keeps what Arrow hands over, and one such row ended the reading of all."""
    duckdb = pytest.importorskip("duckdb")
    path = str(tmp_path / "visits.duckdb")
    times = pa.Array.from_buffers(kind, 3, pa.array([0, odd, 7]).buffers())
    with closing(duckdb.connect(path)) as connection:
        connection.register("rows", pa.table({"u": [1, 2, 3], "Time": times}))
        connection.execute("CREATE TABLE visits AS SELECT * FROM rows")
    columns = {"columns": {"u": "INT64", "Time": declared}} if declared else {}
    found = dict(whole(opened({"kind": "duckdb", "path": path}, table="visits", **columns).read(
        None, 10)))  # fmt: skip
    assert [found[u] is None for u in (1, 2, 3)] == [False, True, False]


T, ODD = pa.timestamp("ms"), 2**62


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(T), [[0, ODD], [], [0, None]]),
        (pa.list_(T, 1), [[ODD], [None], [0]]),
        (pa.list_(pa.list_(T)), [[[0], [ODD]], [None], [[0]]]),
        (pa.map_(T, pa.int64()), [[(ODD, 1)], [], [(0, 1)]]),
        (pa.map_(pa.int64(), T), [[(1, ODD)], [(1, None)], [(1, 0)]]),
        (pa.struct([("it's", pa.list_(T))]), [{"it's": [ODD]}, {"it's": None}, {"it's": [0]}]),
    ],
)
def test_nor_does_one_inside_another_value(kind, values):
    duckdb = pytest.importorskip("duckdb")
    with closing(duckdb.connect()) as connection:
        connection.register("rows", pa.table({"u": [1, 2, 3], "x": pa.array(values, kind)}))
        connection.execute("CREATE TABLE visits AS SELECT * FROM rows")
        kind = connection.sql("FROM visits").types[1]
        shown = f"CAST(CASE WHEN {in_reach(kind, 'x')} THEN x END AS VARCHAR)"
        found = connection.sql(f"SELECT {shown} FROM visits ORDER BY u").fetchall()
    assert [one is None for (one,) in found] == [True, False, False]


@pytest.mark.parametrize(
    "made", ["union_value(at := x)", "ROW(1, x)", "ROW([union_value(at := x)])"]
)
def test_nor_does_one_in_a_union_or_a_tuple(made):
    duckdb = pytest.importorskip("duckdb")
    rows = pa.table({"u": [1, 2], "x": pa.array([-(2**63), 0]).view(pa.timestamp("us"))})
    with closing(duckdb.connect()) as connection:
        connection.register("rows", rows)
        connection.execute(f"CREATE TABLE visits AS SELECT u, {made} AS x FROM rows")
        kind = connection.sql("FROM visits").types[1]
        shown = f"CAST(CASE WHEN {in_reach(kind, 'x')} THEN x END AS VARCHAR)"
        found = connection.sql(f"SELECT {shown} FROM visits ORDER BY u").fetchall()
    assert [one is None for (one,) in found] == [True, False]


def test_a_column_that_may_hold_such_a_time_unseen_is_refused(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    path = str(tmp_path / "visits.duckdb")
    with closing(duckdb.connect(path)) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 1 AS u, [TIME '01:00:00'::VARIANT] AS x")
    with pytest.raises(SourceError, match=r"VARIANT.*\n.*query = 'SELECT"):
        opened({"kind": "duckdb", "path": path}, table="visits").schema()
    named = opened({"kind": "duckdb", "path": path}, query="SELECT u FROM visits")
    assert whole(named.read(None, 10)) == [(1,)]


def test_a_database_answers_one_question(visits):
    options = {name: value for name, value in visits.items() if name not in ("kind", "table")}
    columns = {"columns": COLUMNS} if visits["kind"] == "sqlite" else {}
    source = sv.source(visits["kind"], "visits", **options, table=NAME, **columns, event_time="ts")
    asked = source.protect("u").group_by("page", keys=sv.public(["a", "b"])).agg(n=sv.count())
    budget = sv.Budget(epsilon=9e5, delta=1e-9)
    answer = asked.bound(max_rows=60).release(budget=budget).answer().table
    assert counts(answer) == {"a": 50, "b": 50}  # rows with a time
    with pytest.raises(PlanError, match="sorted by their values"):
        asked.bound(max_rows=60).release(budget=budget, every=sv.rows(10), steps=2)


EXACT = {"v": "numeric(20, 0)", "w": "numeric(38, 2)", "few": "numeric(15, 2)", "real": "float"}


@pytest.mark.parametrize("column", EXACT)
def test_numbers_of_more_digits_than_reals_hold_name_no_unit(place, column, tmp_path):
    """Two people with ids beyond 2^53 counted as one: without one, rows of the other passed."""
    kinds = ", ".join(f"{name} {kind}" for name, kind in EXACT.items())
    made = f"INSERT INTO ids VALUES ({', '.join(['{0}'] * 4)})".format(1)
    run(place, f"CREATE TABLE ids ({kinds})", made)
    given = {name: value for name, value in place.items() if name not in ("kind", "table")}
    if place["kind"] == "sqlite":  # which keeps no types: numbers are declared
        given["columns"] = dict.fromkeys(EXACT, "FLOAT64")
    exact = column not in ("few", "real") or place["kind"] == "sqlite"
    rows = sv.source(place["kind"], name="ids", table="ids", **given)
    ways = rows.protect(column), rows.protect(column).per_unit(k="COUNT(*)")
    for place_of, way in enumerate(ways):
        query = way.agg(n=sv.count()).bound(max_rows=1).release(
            budget=sv.Budget(epsilon=1, delta=1e-6), look_share=0
        )  # fmt: skip
        refused = pytest.raises(PlanError, match="several units would count as one")
        with refused if exact else nullcontext():
            list(query.run(str(tmp_path / f"{place_of}")))


@pytest.mark.parametrize(("declared", "expected"), [
    (None, [3.0, float(2**128 - 1)]), ({"n": "STRING"}, ["3", str(2**128 - 1)]),
    ({"n": "INT64"}, [3, None]),
])  # fmt: skip
def test_the_largest_whole_numbers_of_duckdb_are_not_negative(declared, expected, tmp_path):
    """Arrow gets -1 for 2^128 - 1."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(str(tmp_path / "t")) as made:
        made.execute(f"CREATE TABLE t AS SELECT unnest([3::UHUGEINT, {2**128 - 1}]) AS n")
    given = {"columns": declared} if declared else {}
    source = open_source("duckdb", {"path": str(tmp_path / "t"), "table": "t", **given})
    (chunk,) = source.read(None, 9)
    assert sorted(chunk.rows["n"].to_pylist(), key=str) == sorted(expected, key=str)


@pytest.mark.parametrize("declared", [None, "BYTES"])
def test_bytes_are_the_bytes_that_they_are(declared, place):
    """Those of PostgreSQL were texts, and with the type BYTES the bytes of these texts."""
    kind = {"duckdb": "BLOB", "postgres": "bytea", "sqlite": "BLOB"}[place["kind"]]
    rows = [(1, b"\xff\x00", "\\xff00"), (2, b"", ""), (3, None, None), (4, b"\\xff00", "a")]
    run(place, f"CREATE TABLE raw (u BIGINT, b {kind}, t VARCHAR(9))",
        "INSERT INTO raw VALUES ({})", rows=rows)  # fmt: skip
    columns = {"u": "INT64", "b": declared or "BYTES", "t": declared or "STRING"}
    given = {name: value for name, value in place.items() if name not in ("kind", "table")}
    if declared or place["kind"] == "sqlite":
        given["columns"] = columns
    found = sorted(whole(open_source(place["kind"], {**given, "table": "raw"}).read(None, 10)))
    if declared and place["kind"] != "sqlite":
        rows = [(u, b, None if t is None else t.encode()) for u, b, t in rows]
    assert [row[:2] for row in found] == [row[:2] for row in rows]
    assert place["kind"] == "sqlite" or found == rows


def test_a_value_that_does_not_fit_says_nothing_of_others(visits):
    declared = {**COLUMNS, "page": "INT64"}
    chunks = list(opened(visits, table=NAME, columns=declared).read(None, 1000))
    texts = sum(row[1] is not None for row in ROWS)
    assert sum(sum(chunk.rejected.values()) for chunk in chunks) == texts
    kinds = [
        pa.int64(),
        pa.float64(),
        pa.string(),
        pa.bool_(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
    ]
    odd = [1, "2", 2.5, None, b"3", "true", "2026-01-01", "2026-01-01T00:00:00+02:00"]
    for kind in kinds:
        alone = [of_any([value], kind)[0].to_pylist()[0] for value in odd]
        assert of_any(odd, kind)[0].to_pylist() == alone


@pytest.mark.parametrize("kind", COLUMNS.values())
def test_no_value_of_sqlite_stops_a_job(kind, tmp_path):
    odd = [2**63 - 1, -(2**63), 2**53 + 1, 1e308, float("inf"), "1e400", "9" * 400, "\0", "NaN",
           "99999-01-01", " 1", b"\xff", b"1", "x", "2026-01-01", None]  # fmt: skip
    place = {"kind": "sqlite", "path": str(tmp_path / "odd.db")}
    run(place, "CREATE TABLE t (u, v)", "INSERT INTO t VALUES ({})", rows=[*enumerate(odd)])
    columns = {"u": "INT64", "v": kind}
    source = open_source("sqlite", {"path": place["path"], "table": "t", "columns": columns})
    chunks = list(source.read(None, 3))
    assert sorted(row["u"] for row in plain_rows(chunks)) == [*range(len(odd))]
    if kind == "FLOAT64":
        found = {row["u"]: row["v"] for row in plain_rows(chunks)}
        assert (found[0], found[1], found[2]) == (2.0**63, -(2.0**63), 2.0**53)


def test_two_texts_of_sqlite_are_never_one_person(tmp_path):
    """What is no UTF-8 is null and counted: written in any other way, it could be another text."""
    texts = [b"M\xfcller", b"M\xf6ller", b"\\xff", b"\xff", "Müller".encode()]
    place = {"kind": "sqlite", "path": str(tmp_path / "odd.db")}
    run(place, "CREATE TABLE t (n, u)", "INSERT INTO t VALUES ({})", rows=[*enumerate(texts)])
    run(place, "UPDATE t SET u = CAST(u AS TEXT)")
    columns = {"n": "INT64", "u": "STRING"}
    source = open_source("sqlite", {"path": place["path"], "table": "t", "columns": columns})
    chunks = list(source.read(None, 9))
    found = {row["n"]: row["u"] for row in plain_texts(chunks)}
    assert found == {0: None, 1: None, 2: "\\xff", 3: None, 4: "Müller"}
    assert sum(sum(chunk.rejected.values()) for chunk in chunks) == 3


def plain_texts(chunks):
    return [row for chunk in chunks for row in chunk.rows.to_pylist()]


def plain_rows(chunks):
    """The rows, with times as numbers: some are in no calendar."""
    return [
        row for chunk in chunks
        for row in chunk.rows.set_column(1, "v", as_number(chunk.rows["v"])).to_pylist()
    ]  # fmt: skip


def as_number(column):
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def test_rows_have_places_where_they_are_traced(visits):
    chunks = list(traced(opened(visits)).read(None, 50))
    places = np.concatenate([chunk.rows.column(-1).to_numpy() for chunk in chunks])
    assert places.tolist() == list(range(1, len(ROWS) + 1))


def test_what_cannot_be_read_is_told_without_values(visits):
    with pytest.raises(SourceError, match=r"cannot read.*nowhere") as caught:
        opened(visits, table="nowhere").schema()
    assert caught.value.__cause__ is None
    with pytest.raises(SourceError, match="and not both"):
        opened(visits, table="t", query="SELECT 1")
    if visits["kind"] != "sqlite":  # which casts everything
        run(visits, "CREATE VIEW broken AS SELECT u, page, amount, "
            """CAST(page || 'secret' AS INTEGER) + 0 AS ts FROM "visits ""of"" us\"""")  # fmt: skip
        with pytest.raises(SourceError, match="cannot read") as caught:
            list(opened(visits, table="broken").read(None, 10))
        run(visits, "DROP VIEW broken")
        assert "secret" not in str(caught.value)


def test_a_table_of_a_schema_is_told_to_be_named_in_a_query(visits):
    with pytest.raises(SourceError, match=r"in a query: 'SELECT \* FROM shop\.visits'"):
        whole(opened(visits, table="shop.visits").read(None, 10))


def test_sqlite_needs_types():
    with pytest.raises(SourceError, match="SQLite keeps none"):
        open_source("sqlite", {"path": "x.db", "table": "t"})


def test_an_older_duckdb_that_loses_rows_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(metadata, "version", lambda _: "1.4.1")
    with pytest.raises(MissingExtraError, match=r"duckdb 2\.0 or later: 1\.4\.1 loses rows"):
        open_source("duckdb", {"path": str(tmp_path / "x.duckdb"), "table": "t"})


@pytest.mark.parametrize(("kind", "module"), [("duckdb", "duckdb"), ("postgres", "psycopg")])
def test_a_missing_package_names_the_extra(kind, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    options = {"url": "host=h"} if kind == "postgres" else {"path": "x.db"}
    with pytest.raises(MissingExtraError, match=rf"streamveil\[{kind}\]"):
        open_source(kind, {**options, "table": "t"})
