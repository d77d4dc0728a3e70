"""Fields of structures are columns, in files and in memory, and never their last word alone."""

import datetime as dt
from collections import Counter

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.connectors.files import FilesSource
from streamveil.engines.spark import splits
from streamveil.errors import PlanError, SourceError
from streamveil.plan import Clock

N = 600
USER = pa.struct([
    ("id", pa.int64()), ("geo", pa.struct([("city", pa.string()), ("lat", pa.float64())])),
])  # fmt: skip
EVENT = pa.struct(
    [("at", pa.timestamp("us", "UTC")), ("ms", pa.int64()), ("tags", pa.list_(pa.string()))]
)
NESTED = pa.table({
    "user": pa.array([
        None if i % 50 == 7 else {"id": i % 90, "geo": None if i % 40 == 3 else {
            "city": "abc"[i % 3], "lat": i % 4 + 0.5}} for i in range(N)
    ], USER),
    "event": pa.array([
        {"at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=i), "ms": i % 11,
         "tags": ["x", "y"][: i % 3]} for i in range(N)
    ], EVENT),
    "id": ["p", "q", "r", "s"] * (N // 4),  # whoever took `user.id` for `id` would protect these
    "city": ["none"] * N,
})  # fmt: skip
LEAVES = ["user.id", "user.geo.city", "user.geo.lat", "event.at", "event.ms", "event.tags"]
QUERY = """
CREATE STREAM events WITH (source = 'files', path = '{path}', event_time = 'event.at');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 900, delta = 1e-6,
    privacy_unit_column = {unit}, max_rows_contributed = {most},
    public_groups = ['a', 'b', 'c', NULL]{more})
  {key}, COUNT(*) AS n, SUM({ms}, contribution_bounds_per_row => (0, 10)) AS ms
FROM {table} WHERE {lat} > 1 OR {lat} IS NULL GROUP BY {key}
"""
PLAIN = {"table": "events", "unit": "user.id", "key": "user.geo.city", "ms": "event.ms",
         "lat": "user.geo.lat", "most": 20, "more": ""}  # fmt: skip
ALIAS = {"table": "events AS e", "unit": "e.user.id", "key": "e.user.geo.city", "ms": "e.event.ms",
         "lat": "E.USER.geo.LAT", "most": 20, "more": ""}  # fmt: skip


def stored(folder, table=NESTED, name="a.parquet"):
    pq.write_table(table, folder / name, row_group_size=70)
    return folder / name


def released(query, folder):
    (release,) = query.run(state=folder / "s.veil")
    made = release.to_arrow().to_pylist()
    return {row["city"]: (row["n"], row["ms"]) for row in made}


def close(found, truth):
    """Noise has deviations of 0.9 and 6 at most: false alarms below 10^-15."""
    assert found.keys() == truth.keys()
    return all(
        abs(found[city][0] - n) < 8 and abs(found[city][1] - ms) < 50
        for city, (n, ms) in truth.items()
    )


@pytest.mark.parametrize("form", [PLAIN, ALIAS])
def test_a_query_over_fields_gives_what_duckdb_counts(form, tmp_path):
    path = stored(tmp_path)
    found = released(sv.sql(QUERY.format(path=path, **form)), tmp_path)
    told = duckdb.sql(f"""
        SELECT "user".geo.city, COUNT(*), SUM(event.ms) FROM '{path}'
        WHERE "user".id IS NOT NULL AND ("user".geo.lat > 1 OR "user".geo.lat IS NULL) GROUP BY 1
    """).fetchall()
    assert close(found, {city: (n, ms) for city, n, ms in told})


def test_the_unit_is_the_field_and_not_a_column_of_its_last_name(tmp_path):
    form = {**PLAIN, "most": 1, "lat": "2"}
    found = released(sv.sql(QUERY.format(path=stored(tmp_path), **form)), tmp_path)
    assert abs(sum(n for n, _ in found.values()) - 90) < 20  # by `id` there would be four rows


@pytest.mark.parametrize("alias", ["AS e", "e"])
def test_an_alias_hides_the_name_of_a_file_that_a_structure_has_too(alias, tmp_path):
    path = stored(tmp_path, name="user.parquet")
    form = {**PLAIN, "table": f"'{path}' {alias}", "lat": "2"}
    assert sv.sql(QUERY.format(path=path, **form)).plan.unit == "`user.id`"  # and not `id`


def test_python_names_fields_as_sql_does(tmp_path):
    query = (
        sv.memory(NESTED).protect("user.id")
        .group_by("user.geo.city", keys=sv.public(["a", "b", "c"]))
        .agg(n=sv.count(), ms=sv.sum("event.ms * 2", bounds=(0, 20))).bound(max_rows=20)
        .release(budget=sv.Budget(epsilon=900, delta=1e-6))
    )  # fmt: skip
    (release,) = query.run(state=tmp_path / "s.veil")
    found = {row["user.geo.city"]: row["n"] for row in release.to_arrow().to_pylist()}
    rows = [user for user in NESTED["user"].to_pylist() if user and user["geo"]]
    truth = Counter(user["geo"]["city"] for user in rows)
    assert found.keys() == truth.keys()
    assert all(abs(found[city] - truth[city]) < 8 for city in truth)


@pytest.mark.parametrize("table", ["", "t."])
def test_fields_may_lie_at_any_depth(table, tmp_path):
    held = [{"b": {"c": {"d": {"e": {"u": i, "k": "xy"[i % 2]}}}}} for i in range(N)]
    deep = pa.table({"a": held, "k": ["x"] * N})
    query = sv.sql(f"""
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 900, delta = 1e-6,
            privacy_unit_column = {table}a.b.c.d.e.u, public_groups = ['x', 'y'])
          {table}a.b.c.d.e.k, COUNT(*) AS n
        FROM '{stored(tmp_path, deep, "deep.parquet")}' AS t
        WHERE {table}a.b.c.d.e.u < 400 GROUP BY 1
    """)
    (release,) = query.run(state=tmp_path / "s.veil")
    assert all(abs(row["n"] - 200) < 8 for row in release.to_arrow().to_pylist())
    assert release.to_arrow().column_names[:2] == ["k", "n"]


def test_using_never_joins_by_the_last_name_of_a_field(tmp_path):
    stored(tmp_path, pa.table({"city": ["none"], "land": ["L"]}), "p.parquet")
    public = (
        f"CREATE TABLE p WITH (source = 'files', path = '{tmp_path}/p.parquet', public = TRUE);"
    )
    form = {**PLAIN, "table": "events JOIN p USING (user.geo.city)"}
    with pytest.raises(PlanError, match=r"unknown column 'user\.geo\.city'; known: city, land"):
        sv.sql(public + QUERY.format(path=stored(tmp_path), **form)).run(state=tmp_path / "s.veil")


def test_each_place_in_a_file_goes_on_with_the_same_rows(tmp_path):
    source = FilesSource(str(stored(tmp_path)))
    flat = NESTED.flatten().flatten()
    assert {*LEAVES, "id", "city"} == {*source.schema().names} == {*flat.column_names}
    for columns in (None, LEAVES[:1], ["event.tags", "user.geo.lat", "id"]):
        whole = flat.select(columns or source.schema().names).to_pylist()
        chunks = [*source.read(None, 90, columns)]
        assert [row for chunk in chunks for row in chunk.rows.to_pylist()] == whole
        for place in (chunks[0].position, chunks[3].position):
            again = [*FilesSource(str(tmp_path)).read(place, 64, columns)]
            rest = [row for chunk in again for row in chunk.rows.to_pylist()]
            assert rest == whole[len(whole) - len(rest) :]
            assert 0 < len(rest) < N


def test_a_structure_may_hold_values_of_an_extension_type(tmp_path):
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16], pa.binary(16)))
    user = pa.StructArray.from_arrays([ids], ["id"])
    source = FilesSource(str(stored(tmp_path, pa.table({"user": user, "n": [1]}))))
    assert source.schema() == pa.schema({"user.id": pa.binary(16), "n": pa.int64()})
    (chunk,) = source.read(None, N)
    assert chunk.rows.to_pylist() == [{"user.id": b"a" * 16, "n": 1}]


def test_a_column_and_a_field_of_one_name_are_told_apart_by_nobody(tmp_path):
    path = stored(tmp_path, pa.table({"user.id": [1], "user": [{"id": 2}]}))
    query = sv.files(str(path)).protect("user.id").agg(n=sv.count())
    with pytest.raises(PlanError, match=r"2 columns called 'user\.id'"):
        query.release(budget=sv.Budget(epsilon=1, delta=1e-6)).run(state=tmp_path / "s.veil")


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ("x.user.geo.city", r"did you mean 'user\.geo\.city'"),
        ("transactions_2025.city", "did you mean 'city'"),
        ("event.ms", r"did you mean 'event\.ms'.*event\.event\.ms"),
    ],
)
def test_names_that_are_no_columns_lead_to_those_that_are(column, told, tmp_path):
    form = {**PLAIN, "table": "events AS event", "ms": column}
    query = sv.sql(QUERY.format(path=stored(tmp_path), **form))
    with pytest.raises(PlanError, match=f"(?s){told}"):
        query.run(state=tmp_path / "s.veil")


def test_a_later_file_without_the_field_is_refused_and_one_of_another_type_is_read(tmp_path):
    stored(tmp_path)
    other = pa.table({"user": [{"id": "7", "new": 1}, {"id": "x", "new": 2}]})
    stored(tmp_path, other, "b.parquet")
    read = FilesSource(str(tmp_path)).read(None, N, ["user.id"])
    chunks = [*read]
    assert [row for chunk in chunks for row in chunk.rows["user.id"].to_pylist()][N:] == [7, None]
    with pytest.raises(SourceError, match=r"no column 'user\.geo\.city'|'user\.geo\.city' is not"):
        [*FilesSource(str(tmp_path)).read(None, N, ["user.geo.city"])]


def test_spark_reads_the_same_columns_and_knows_their_times(tmp_path):
    path = str(stored(tmp_path))
    schema = FilesSource(path).schema()
    groups = [*splits.groups_in(path, schema.field("event.at"), splits.version_of(path))]
    assert [one.low for one in groups] == [int(1_767_225_600e6 + 70 * i * 60e6) for i in range(9)]
    wanted = pa.schema([schema.field(name) for name in ("event.ms", "user.geo.city", "id")])
    parts = [splits.rows_of(one, wanted, Clock(kind="once"), (None, 1))[0]
             for one in splits.between(groups, 13, N)]  # fmt: skip
    flat = NESTED.flatten().flatten().select(wanted.names)
    assert pa.concat_tables(parts).to_pylist() == flat.slice(13).to_pylist()
