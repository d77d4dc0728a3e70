"""COUNT(DISTINCT x): SQL without noise; no unit moves it further than is paid for."""

from itertools import combinations_with_replacement

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamveil as sv
from streamveil.batch import Batch
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.core.release import weighted_loss
from streamveil.core.sensitivity import FIRSTS, lane_move
from streamveil.dataflow.aggregate import KeyTable
from streamveil.dataflow.distinct import first_seen
from streamveil.dataflow.rows import lane_quanta
from streamveil.errors import PlanError
from streamveil.plan import Aggregate, Bounding, Window
from streamveil.runtime.run import run as run_plan
from tests.dataflow.streams import (
    BOUNDINGS,
    LOOSE,
    PUBLIC,
    ROWS,
    WINDOWS,
    batches,
    bounded,
    compiled,
    run,
    sql,
)
from tests.dataflow.test_group_by import (
    CUTS,
    PERIODS,
    TABLE,
    assert_same,
    no_two_groups_look_alike,
)
from tests.dataflow.test_group_by_noise import ALL, moves, reach, without

DISTINCT = (
    Aggregate(name="values", function="count_distinct", expression="v"),
    Aggregate(name="n", function="count"),
    Aggregate(name="signs", function="count_distinct", expression="IF(v > 5, 'big', NULL)"),
)
QUERY = """SELECT k, count(DISTINCT v), count(*), count(DISTINCT if(v > 5, 'big', NULL))
           FROM kept GROUP BY k"""


@settings(max_examples=30)
@given(ROWS, WINDOWS, BOUNDINGS, PERIODS, CUTS, st.booleans())
def test_without_noise_it_is_sql_over_the_accepted_rows(
    rows, window, bounding, period, cuts, public
):
    changes = {"key_set": PUBLIC} if public else {}
    operator = compiled(
        window=window, bounding=bounding, period_us=period, aggregates=DISTINCT, **changes
    )
    kept, history = bounded(operator, rows, public={"a", "c", "z"} if public else None)
    no_two_groups_look_alike(kept, SilentNoise())
    releases, state = run(operator, batches(rows, cuts), SilentNoise())
    for release in releases:
        answers = {row[0]: row[1:] for row in sql(kept, release.window, release.step, QUERY)}
        shown = [k for w, k in history[release.step] if w == release.window]
        assert release.table.column("k").to_pylist() == (
            ["a", "c", "z"] if public else sorted(shown)
        )
        for row in release.table.to_pylist():
            assert (row["values"], row["n"], row["signs"]) == answers.get(row["k"], (0, 0, 0))
            assert row["values_low"] <= row["values"] <= row["values_high"]
    assert {window for window, _ in state.seen} <= set(
        state.windows
    )  # closed windows are forgotten


@settings(max_examples=20)
@given(ROWS, WINDOWS, BOUNDINGS, CUTS, st.sampled_from(["public", "counter", "table"]))
def test_any_split_saving_and_replaying_give_the_same_bytes(rows, window, bounding, cuts, kind):
    operator = compiled(
        window=Window() if kind == "table" else window,  # every horizon designs its own table
        bounding=bounding,
        aggregates=DISTINCT,
        options={"selection": "table"} if kind == "table" else {},
        budget=TABLE if kind == "table" else LOOSE,
        **({"key_set": PUBLIC} if kind == "public" else {}),
    )
    noise = SeededNoise(7)
    whole, _ = run(operator, batches(rows), noise)
    state, replayed, pieces = operator.init(), operator.init(), []
    for batch in batches(rows, cuts):
        operator.apply(replayed, operator.fold(state, batch, noise))
        assert_same(operator.save(state), operator.save(replayed))
        if batch.closes_step:
            pieces += operator.release(state, batch.step, noise)
            operator.release(replayed, batch.step, noise)
            saved = {name: array.copy() for name, array in operator.save(state).items()}
            state = operator.load(saved)
            assert_same(operator.save(state), saved)
    assert [release.table for release in pieces] == [release.table for release in whole]


NAMES = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=80)


@given(NAMES, st.integers(1, 4), st.integers(0, 80))
def test_first_seen_is_the_plain_loop_on_any_partition_of_the_groups(pairs, shards, cut):
    names = np.array([(g * 0x9E3779B97F4A7C15 % 2**64, x) for g, x in pairs], np.uint64)
    names = names.reshape(-1, 2)
    known: set[tuple[int, int]] = set()
    expected = [pair not in known and not known.add(pair) for pair in pairs]
    found = np.zeros(len(pairs), bool)
    for shard in range(shards):
        table = KeyTable.empty(0)
        mine = np.array([i for i, (g, _) in enumerate(pairs) if g % shards == shard], np.int64)
        for part in (mine[mine < cut], mine[mine >= cut]):
            found[part] = first_seen(table, names[part])
    assert found.tolist() == expected


def test_many_values_outgrow_the_table_and_are_replayed_alike():
    rng = np.random.default_rng(3)
    operator = compiled(aggregates=DISTINCT[:1], key_set=ALL, bounding=Bounding(max_rows=9))
    state, replayed, noise = operator.init(), operator.init(), SilentNoise()
    values = rng.integers(0, 5_000, (3, 4_000))
    for piece, mine in enumerate(values):
        rows = pa.table({
            "u": np.arange(4_000), "k": ["a"] * 4_000, "v": mine,
            "ts": np.ones(4_000, np.int64), "at": np.ones(4_000, np.int64),
        })  # fmt: skip
        batch = Batch(rows, 1, piece == 2, "")
        operator.apply(replayed, operator.fold(state, batch, noise))
    assert_same(operator.save(state), operator.save(replayed))
    [release] = operator.release(state, 1, noise)
    assert release.table.to_pylist()[0]["values"] == len(np.unique(values))


def all_pairs():
    """Every stream of two rows of other units, and every unit of up to two rows to add to it."""
    places = [("a", x, 10 * step + 5, 0) for step in (0, 2) for x in (1, 2)]
    for others in combinations_with_replacement(places, 2):
        base = [(unit, *place) for unit, place in enumerate(others)]
        for n in (1, 2):
            for own in combinations_with_replacement(places, n):
                yield base, base + [(9, *place) for place in own]


def furthest(operator):
    """The largest squared move of the first lane among all pairs of neighbours."""
    known = {}

    def moved(rows):
        return known.setdefault(str(rows), moves(operator, rows))

    return max(reach(moved(base), moved(more), [0]) for base, more in all_pairs())


def test_no_unit_moves_it_further_than_declared_and_some_unit_moves_it_that_far():
    operator = compiled(aggregates=DISTINCT[:1], key_set=ALL, bounding=Bounding(max_rows=2))
    moved, _ = lane_move(operator.aggregation.lanes[0], operator.bounds)
    found = furthest(operator)
    assert found <= moved**2
    assert found == (FIRSTS * 2) ** 2  # two rows, each one more at a step and one less later
    planted = moved / FIRSTS  # a reach of 1, as of COUNT
    assert found > planted**2


@settings(max_examples=20)
@given(ROWS, WINDOWS, BOUNDINGS, st.sampled_from([None, 20]), st.integers(0, 12), st.integers(0, 2))
def test_one_unit_of_any_stream_moves_it_no_further(rows, window, bounding, period, unit, which):
    operator = compiled(
        window=window, bounding=bounding, period_us=period, key_set=ALL, aggregates=DISTINCT
    )
    one, other = moves(operator, rows), moves(operator, without(rows, unit, period, which))
    for place, lane in enumerate(operator.aggregation.lanes):
        moved, _ = lane_move(lane, operator.bounds)
        assert reach(one, other, [place]) <= moved**2


def test_it_is_charged_with_twice_the_reach_of_count():
    operator = compiled(aggregates=DISTINCT[:1], key_set=ALL)
    [lane], [counter] = operator.aggregation.lanes, operator.aggregation.counters
    moved, groups = lane_move(lane, operator.bounds)
    told = operator.aggregation.cut.loss.gaussian
    assert operator.loss.gaussian == weighted_loss(counter, moved, groups, None).gaussian + told
    assert moved >= FIRSTS
    assert operator.loss.fits(LOOSE)
    plain = compiled(key_set=ALL).aggregation.counters[0]
    assert float(counter.sigma) == pytest.approx(2 * float(plain.sigma), rel=1e-3)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["x", "y", "x", None, ""], pa.string(), 3),
        ([2**60, 2**60 + 1, 2**60, None, 0], pa.int64(), 3),  # alike as floats
        ([0.0, -0.0, 0.5, 0.5, None], pa.float64(), 2),
        ([True, True, False, None, None], pa.bool_(), 2),
        ([None] * 5, pa.string(), 0),
        ([None] * 5, pa.null(), 0),
    ],
)
def test_values_of_every_type_are_told_apart_exactly(values, kind, expected):
    operator = compiled(aggregates=DISTINCT[:1], keys=(), bounding=Bounding(max_rows=1))
    rows = pa.table({
        "u": list(range(5)), "v": pa.array(values, kind), "ts": [1] * 5, "at": [1] * 5,
    })  # fmt: skip
    state = operator.init()
    operator.fold(state, Batch(rows, 1, True, ""), SilentNoise())
    [release] = operator.release(state, 1, SilentNoise())
    assert release.table.column("values").to_pylist() == [expected]


def test_values_that_cannot_be_compared_are_refused_before_any_row():
    operator = compiled(aggregates=DISTINCT[:1], keys=())
    rows = pa.table({"u": [1], "v": [[1, 2]], "ts": [1], "at": [1]})
    with pytest.raises(PlanError, match="'v' has type list"):
        operator.fold(operator.init(), Batch(rows, 1, True, ""), SilentNoise())


def test_an_engine_that_knows_no_first_appearance_is_refused():
    operator = compiled(aggregates=DISTINCT[:1], key_set=ALL)
    prepared, pairs = operator.arrive(operator.init(), next(batches([])), SilentNoise())
    with pytest.raises(PlanError, match="embedded engine"):
        lane_quanta(operator.plain_lanes, prepared, pairs.rows, np.zeros(0, bool))


CLICKS = pa.table({
    "user_id": [i % 500 for i in range(3_000)],
    "page": ["ab"[i % 2] for i in range(3_000)],
    "city": [f"c{i % 37}" for i in range(3_000)],
})  # fmt: skip
SQL = """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 8, delta = 1e-6,
    privacy_unit_column = user_id, max_rows_contributed = 2)
  page, COUNT(DISTINCT city) AS cities FROM clicks GROUP BY page"""


def test_explain_names_its_noise_and_memory():
    text = str(sv.sql(SQL, {"clicks": CLICKS}).explain(forecast=True))
    assert "cities" in text
    assert "per different value of a group" in text


def test_both_spellings_run_end_to_end(tmp_path):
    python = (
        sv.memory(CLICKS, name="clicks").protect("user_id").group_by("page")
        .agg(cities=sv.count_distinct("city")).bound(max_rows=2)
        .release(budget=sv.Budget(epsilon=8, delta=1e-6))
    )  # fmt: skip
    plans = {"sql": sv.sql(SQL, {"clicks": CLICKS}).plan, "python": python.plan}
    assert plans["sql"].aggregates == plans["python"].aggregates
    for name, plan in plans.items():
        with pytest.warns(UserWarning, match="insecure"):
            releases = list(
                run_plan(plan, state=tmp_path / name, noise=SilentNoise(), insecure=True)
            )
        [release] = releases
        assert release.table.column("cities").to_pylist() == [37, 37]


@pytest.mark.filterwarnings("ignore:insecure noise")
@pytest.mark.parametrize("where", ["", "WHERE y IS NOT NULL", "WHERE u > 0"])
def test_values_that_are_only_counted_need_not_be_finite(where):
    """NaN and infinity are values; one that is summed takes its row out of every number."""
    rows = {"u": [1, 2, 3, 4, 5, 6], "y": [1.0, np.inf, np.nan, None, -np.inf, np.nan]}
    private = (
        "WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 9, delta = 1e-9, privacy_unit_column = u,"
        " max_rows_contributed = 1)"
    )
    asked = "COUNT(*) AS n, COUNT(y) AS ys, COUNT(DISTINCT y) AS kinds"
    everything = 5 if "NULL" in where else 6
    for more, wanted in (
        ("", (everything, 5, 4)),
        (", SUM(y, contribution_bounds_per_row => (0, 2)) AS s", (everything - 4, 1, 1)),
    ):
        query = sv.sql(f"SELECT {private} {asked}{more} FROM t {where}", {"t": pa.table(rows)})
        [found] = query.answer(noise=SilentNoise(), insecure=True).to_arrow().to_pylist()
        assert (found["n"], found["ys"], found["kinds"]) == wanted
