"""Steps of each row by itself, and joins with tables that tasks hold: as in one process."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.core.noise import SeededNoise
from streamveil.errors import PlanError, StoreError

pytestmark = pytest.mark.filterwarnings("ignore")
DECLARED = """
CREATE STREAM v WITH (source = 'files', path = 'in/*.parquet', event_time = 'ts');
CREATE TABLE people WITH (source = 'files', path = 'people.parquet');
CREATE TABLE cities WITH (source = 'files', path = 'cities.parquet', public = TRUE);
CREATE STREAM others WITH (source = 'files', path = 'others.parquet', event_time = 'ts');
"""
OPTIONS = (
    "WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 9, delta = 1e-6, privacy_unit_column = u,"
    " max_rows_contributed = 2, look_share = 0, cut_share = 0, start = '1970-01-01',"
    " end = '1970-01-01 03:00:00')"
)
RELATIONS = {  # k, FROM
    "by the unit": ("p.plan", "v JOIN people p ON v.u = p.u"),
    "left, and one row each": (
        "plans", "v LEFT JOIN (SELECT u, COUNT(*) AS plans FROM people GROUP BY u) AS p USING (u)",
    ),
    "in": ("c", "(SELECT u, c, ts FROM v WHERE u NOT IN (SELECT u FROM people WHERE plan = 'b'))"),
    "public": ("land", "v JOIN cities USING (c)"),
    "parts": ("part", "v, UNNEST(SPLIT(tags, ',')) AS part"),
}  # fmt: skip


def text_of(name):
    key, relation = RELATIONS[name]
    return (
        f"{DECLARED} SELECT {OPTIONS} {key} AS k, COUNT(*) AS n FROM {relation} GROUP BY k"
        " EMIT EVERY INTERVAL 1 HOUR"
    )


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    rng, count = np.random.default_rng(4), 3_000
    rows = pa.table({
        "u": pa.array(rng.integers(0, 900, count), mask=rng.random(count) < 0.03),
        "c": np.array(["x", "y", "z"])[rng.integers(0, 3, count)],
        "tags": np.array(["s,t", "t", ",", "t,t,s"])[rng.integers(0, 4, count)],
        "ts": pa.array(np.sort(rng.integers(0, 10_800_000_000, count)), pa.timestamp("us", "UTC")),
    })  # fmt: skip
    for number in range(2):
        part = rows.slice(number * count // 2, count // 2)
        pq.write_table(part, tmp_path / "in" / f"{number}.parquet", row_group_size=400)
    people = pa.table({
        "u": rng.integers(0, 900, 1_500), "plan": np.array(["a", "b"])[rng.integers(0, 2, 1_500)],
    })  # fmt: skip
    pq.write_table(people, tmp_path / "people.parquet")
    pq.write_table(rows, tmp_path / "others.parquet")
    pq.write_table(
        pa.table({"c": ["x", "y", "y"], "land": ["m", "n", "o"]}), tmp_path / "cities.parquet"
    )
    return people


def run(text, state, **where):
    noise = {"noise": SeededNoise(5), "insecure": True}
    return [release.table for release in sv.sql(text).run(state=state, **noise, **where)]


@pytest.mark.spark
@pytest.mark.parametrize("name", RELATIONS)
def test_rows_are_those_of_one_process(name, tables, session):
    one = run(text_of(name), "one")
    assert [table.num_rows > 1 for table in one] == [True] * 3
    assert run(text_of(name), "many", engine=sv.spark(session, shards=2)) == one


@pytest.mark.spark
def test_a_state_goes_on_with_the_same_rows_alone(tables, session):
    engine, plan = sv.spark(session, shards=2), sv.sql(text_of("by the unit")).plan
    with engine.start(plan, state="state") as job:
        assert len([*job]) == 3
    with engine.start(plan, state="state") as job:
        assert job.closed_steps == 3
    pq.write_table(tables.slice(1), "people.parquet")
    with pytest.raises(StoreError, match="another query"):
        engine.start(plan, state="state")


NAMED = "SELECT v.u, v.c, p.plan, v.ts AS came FROM v JOIN people AS p ON v.u = p.u"
TIMED = {  # a subquery that names the times of one table of its join, and how they are used
    "of windows": (NAMED.replace(" AS came", ""), "TUMBLE(TABLE own, DESCRIPTOR(ts), size => "
                   "INTERVAL 2 HOUR)", ""),
    "of arrival": (NAMED, "own", ", arrival = came"),
    "of a join of a join": (f"SELECT w.u, w.plan, w.came FROM ({NAMED}) AS w JOIN cities AS c"
                            " ON w.c = c.c", "own", ", arrival = came"),
}  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("name", TIMED)
def test_rows_are_read_by_the_times_of_a_joins_first_table(name, tables, session):
    own, relation, more = TIMED[name]
    text = (
        f"{DECLARED} WITH own AS ({own}) SELECT {OPTIONS[:-1]}{more}) plan AS k, COUNT(*) AS n"
        f" FROM {relation} GROUP BY k EMIT EVERY INTERVAL 1 HOUR"
    )
    one = run(text, "one")
    assert any(table.num_rows > 1 for table in one)
    assert run(text, "many", engine=sv.spark(session, shards=2)) == one


@pytest.mark.spark
@pytest.mark.parametrize(
    ("relation", "reason"),
    [
        ("(SELECT u, c, ts FROM v UNION ALL SELECT u, c, ts FROM v)", "UNION ALL of rows is not"),
        ("(SELECT u, c, MIN(ts) AS ts FROM v GROUP BY u, c)", "a subquery by the privacy unit"),
        ("(SELECT u, c, TIMESTAMP_ADD(ts, INTERVAL 1 SECOND) AS ts FROM v) AS w JOIN people"
         " USING (u)", "as the files hold it"),
        ("(SELECT v.u, v.c, o.ts FROM v JOIN others AS o ON v.u = o.u)", "as the files hold it"),
    ],
)  # fmt: skip
def test_what_looks_at_several_rows_is_refused(relation, reason, tables, session):
    text = (
        f"{DECLARED} SELECT {OPTIONS[:-1]}, arrival = ts) c, COUNT(*) AS n FROM {relation}"
        " GROUP BY c EMIT EVERY INTERVAL 1 HOUR"
    )
    with pytest.raises(PlanError, match=reason) as caught:
        run(text, "state", engine=sv.spark(session))
    assert "embedded" in str(caught.value)  # the way out, which runs
    assert run(text, "one")
