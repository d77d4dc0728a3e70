"""contribution_bounds_per_group: without noise, a one-shot answer equals the two-step SQL."""

from functools import partial

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamveil as sv
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.connectors import rejected_rows
from streamveil.connectors.memory import MemorySource
from streamveil.core.noise import SilentNoise
from streamveil.dataflow import NOT_FINITE
from streamveil.errors import SourceError
from streamveil.plan import combined_plan
from streamveil.plan.combine import combine_rows
from streamveil.runtime.combined import CombinedSource
from streamveil.runtime.run import run

QUERY = """
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = id,
         max_groups_contributed = 9, public_groups = ['a', 'b', 'c'])
       item, COUNT(*, contribution_bounds_per_group => (0, 3)) AS n,
       SUM(x, contribution_bounds_per_group => (-5, 5)) AS s,
       AVG(x, contribution_bounds_per_group => (-5, 5)) AS m, COUNT(DISTINCT id) AS u
FROM t WHERE x < 90 GROUP BY item
"""
ORACLE = """
WITH one AS (SELECT id, item, COUNT(*) AS n, SUM(x) AS s, AVG(x) AS m FROM t
             WHERE x < 90 AND id IS NOT NULL GROUP BY id, item)
SELECT item, SUM(LEAST(n, 3)) AS n, SUM(LEAST(GREATEST(s, -5), 5)) AS s,
       AVG(LEAST(GREATEST(m, -5), 5)) AS m, COUNT(*) AS u FROM one GROUP BY item ORDER BY item
"""
ROWS = st.lists(
    st.tuples(st.sampled_from(["u", "v", "w", None]), st.sampled_from("abc"), st.integers(-9, 99)),
    min_size=1, max_size=30,
)  # fmt: skip


def table_of(rows):
    ids, items, values = zip(*rows, strict=True)
    return pa.table({"id": pa.array(ids, pa.string()), "item": items,
                     "x": pa.array(values, pa.int64())})  # fmt: skip


@given(ROWS)
@settings(max_examples=8, deadline=None)
def test_without_noise_it_is_the_two_step_query(tmp_path_factory, rows):
    table = table_of(rows)
    plan = sv.sql(QUERY, {"t": table}).plan
    assert plan.bounding.combine
    state = tmp_path_factory.mktemp("state")
    with pytest.warns(UserWarning, match="insecure"):
        (release,) = run(plan, state=state / "q", noise=SilentNoise(), insecure=True)
    ours = {row["item"]: row for row in release.table.to_pylist()}
    with duckdb.connect() as db:
        db.register("t", table)
        theirs = {row[0]: row for row in db.execute(ORACLE).fetchall()}
    for item in "abc":
        _, n, s, m, u = theirs.get(item, (item, 0, 0, None, 0))
        assert ours[item]["n"] == pytest.approx(n, abs=1e-4)
        assert ours[item]["s"] == pytest.approx(s, abs=1e-4)
        assert ours[item]["u"] == u
        if m is not None:
            assert ours[item]["m"] == pytest.approx(m, abs=1e-4)


MEASURES = {  # by name: what is asked, of one unit in one group, of all units
    "n": ("COUNT(*, {0})", "COUNT(*)", "SUM"), "nx": ("COUNT(x, {0})", "COUNT(x)", "SUM"),
    "few": ("COUNTIF(x > 3, {0})", "COUNT(*) FILTER (x > 3)", "SUM"),
    "s": ("SUM(x, {0})", "SUM(x)", "SUM"), "m": ("AVG(x, {0})", "AVG(x)", "AVG"),
}  # fmt: skip
PLACES = st.sampled_from([0.0, -0.0, 1.5, None])
MORE_ROWS = st.lists(
    st.tuples(st.sampled_from("uvw"), PLACES, st.integers(0, 6) | st.none()), min_size=1
)
ASKED = st.lists(st.sampled_from([*MEASURES]), min_size=1, unique=True)


@settings(max_examples=40, deadline=None)
@given(MORE_ROWS, ASKED, st.lists(st.integers(1, 3), min_size=5, max_size=5), st.booleans())
def test_any_aggregates_with_any_bounds_are_the_two_step_query(rows, asked, most, grouped):
    ids, places, values = zip(*rows, strict=True)
    table = pa.table({"id": ids, "place": pa.array(places, pa.float64()),
                      "x": pa.array(values, pa.int64())})  # fmt: skip
    bounds = {
        name: f"contribution_bounds_per_group => (0, {k})"
        for name, k in zip(asked, most, strict=False)
    }
    ours = [f"{MEASURES[name][0].format(bounds[name])} AS {name}" for name in asked]
    inner = [f"{MEASURES[name][1]} AS {name}" for name in asked]
    outer = [f"{MEASURES[name][2]}(CASE WHEN {name} IS NOT NULL THEN LEAST({name}, {k}) END) "
             for name, k in zip(asked, most, strict=False)]  # fmt: skip
    key = ["place"] if grouped else []
    by = "GROUP BY place" if grouped else ""
    text = f"""
        SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (mu = 60, delta = 0.1, privacy_unit_column = id,
            max_groups_contributed = 3 {", public_groups = [0.0, 1.5, NULL]" if grouped else ""})
            {", ".join(key + ours)} FROM t {by}"""
    plan = sv.sql(text, {"t": table}).plan
    combined = combined_plan(plan)
    operator = compile_plan(combined)
    state = operator.init()
    operator.fold(
        state,
        Batch(combine_rows(plan, table).rows if plan.bounding.combine else table, 1, True, ""),
        SilentNoise(),
    )
    (release,) = operator.release(state, 1, SilentNoise())
    with duckdb.connect() as db:
        db.register("t", table)
        query = f"""
            WITH one AS (SELECT {", ".join(["id", *key, *inner])} FROM t GROUP BY ALL)
            SELECT {", ".join(key + outer)} FROM one GROUP BY ALL"""
        theirs = {row[: len(key)]: row[len(key) :] for row in db.execute(query).fetchall()}
    for row in release.table.to_pylist():
        for name, wanted in zip(asked, theirs.get(tuple(row[k] for k in key), ()), strict=False):
            if wanted is not None:
                assert row[name] == pytest.approx(float(wanted), abs=1e-5)
            assert isinstance(row[name], int) == name.startswith(("n", "few"))


@given(ROWS, st.sampled_from("uvw"))
def test_removing_a_unit_removes_its_rows_and_nothing_else(rows, unit):
    plan = sv.sql(QUERY, {"t": table_of(rows)}).plan
    kept = [row for row in rows if row[0] != unit] or [(None, "a", 0)]
    whole = combine_rows(plan, table_of(rows)).rows.to_pylist()
    without = combine_rows(plan, table_of(kept)).rows.to_pylist()
    named = [row for row in whole if row["id"] not in (unit, None)]
    assert named == [row for row in without if row["id"] is not None]


def many(seed, rows=6000, units=400):
    rng = np.random.default_rng(seed)
    ids = pa.array([f"u{u}" for u in rng.integers(0, units, rows)])
    item = pa.array(rng.choice(["a", "b", "c"], rows))
    return pa.table({"id": ids, "item": item, "x": rng.integers(0, 90, rows)})


def orders(table):
    """The groups of every unit, in the order in which bounding meets them."""
    found = {}
    for row in table.to_pylist():
        found.setdefault(row["id"], []).append(row["key_0"])
    return found


def test_combined_rows_come_in_the_order_of_first_rows_whoever_else_is_there():
    table = many(seed=4)
    plan = sv.sql(QUERY, {"t": table}).plan
    found = combine_rows(plan, table).rows
    first = table.select(["id", "item"]).to_pandas().drop_duplicates()
    assert found["id"].to_pylist() == first["id"].tolist()
    assert found["key_0"].to_pylist() == first["item"].tolist()
    whole = orders(found)
    for unit in ["u0", "u7"]:
        rest = orders(combine_rows(plan, table.filter(pc.not_equal(table["id"], unit))).rows)
        assert rest == {u: groups for u, groups in whole.items() if u != unit}


def test_a_hash_table_alone_would_not_keep_that_order():
    """What the sort is for: in the order of Arrow's hash table, the order of others can change."""
    table = many(seed=4)
    by = table.group_by(["id", "item"], use_threads=False).aggregate([])
    first = table.select(["id", "item"]).to_pandas().drop_duplicates()
    assert list(zip(by["id"].to_pylist(), by["item"].to_pylist(), strict=True)) != list(
        zip(first["id"], first["item"], strict=True)
    )


def test_a_resumed_read_refuses_other_rows():
    table = many(seed=5, rows=300)
    plan = sv.sql(QUERY, {"t": table}).plan
    first, *rest = CombinedSource(MemorySource(table), partial(combine_rows, plan)).read(None, 100)
    again = list(
        CombinedSource(MemorySource(table), partial(combine_rows, plan)).read(first.position, 37)
    )
    assert pa.concat_tables([c.rows for c in again]) == pa.concat_tables([c.rows for c in rest])
    for other in (table.slice(1), pa.concat_tables([table, many(seed=6, rows=1)])):
        with pytest.raises(SourceError, match="no longer the same"):
            list(
                CombinedSource(MemorySource(other), partial(combine_rows, plan)).read(
                    first.position, 100
                )
            )


@pytest.mark.parametrize("traced", [False, True])
def test_rows_without_a_finite_number_are_counted_and_set_aside(traced):
    table = pa.table({"id": ["u", "v", "u", None], "item": ["a"] * 4,
                      "x": [1.0, float("nan"), 99.0, float("-inf")]})  # fmt: skip
    plan = sv.sql(QUERY, {"t": table}).plan
    source = MemorySource(table)
    combined = CombinedSource(
        rejected_rows.traced(source) if traced else source, partial(combine_rows, plan)
    )
    (chunk,) = combined.read(None, 10)
    assert chunk.rows.num_rows == 1
    assert chunk.rejected == {NOT_FINITE: 1}  # of those that pass WHERE
    found = [row for part in chunk.rejected_rows for row in part.to_pylist()]
    assert [(row["reason"], row["number"]) for row in found] == [(NOT_FINITE, 4)] * traced
    assert all(row["row"] is None and b'"x": -Infinity' in row["line"] for row in found)
