"""The whole operator: without noise it is SQL; split, saved or replayed it is itself."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streamveil.batch import Batch
from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.core.selection.coins import CoinSelection
from streamveil.dataflow import Operator
from streamveil.dataflow.hashing import name_column
from streamveil.dataflow.rows import groups_of
from streamveil.errors import PlanError, StoreError
from streamveil.plan import Aggregate, Bounding, KeyColumn, KeySet, Window
from tests.dataflow.streams import (
    AGGREGATES,
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

PERIODS = st.sampled_from([None, 20, 30])
CUTS = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def no_two_groups_look_alike(kept, noise):
    """Sixteen bits may make two groups of a unit one; the plain oracle knows no such thing."""
    pairs = sorted({(k, w) for _, k, _, w, _, _ in kept} | {(k, 0) for k in "abcd"})
    names = name_column(pa.array([k for k, _ in pairs]), noise.derive("group-by/keys"))
    groups = groups_of(names, np.array([w for _, w in pairs], np.int64))
    assume(len(set(groups.tolist())) == len(pairs))


QUERY = """SELECT k, count(*), count(v), count(DISTINCT (u, p)),
           sum(greatest(0, least(8, v))) FROM kept GROUP BY k"""


@settings(max_examples=40)
@given(ROWS, WINDOWS, BOUNDINGS, PERIODS, CUTS)
def test_without_noise_discovered_keys_equal_sql(rows, window, bounding, period, cuts):
    operator = compiled(window=window, bounding=bounding, period_us=period, aggregates=AGGREGATES)
    kept, history = bounded(operator, rows)
    no_two_groups_look_alike(kept, SilentNoise())
    releases, _ = run(operator, batches(rows, cuts), SilentNoise())
    expected_places = [(w, step) for step in range(1, 7) for w in operator.schedule.active(step)]
    assert [(r.window, r.step) for r in releases] == expected_places
    for release in releases:
        answers = {row[0]: row for row in sql(kept, release.window, release.step, QUERY)}
        shown = [k for w, k in history[release.step] if w == release.window]
        table = release.table
        assert table.column("k").to_pylist() == sorted(shown)
        for row in table.to_pylist():
            _, n, nv, people, total = answers[row["k"]]
            assert (row["n"], row["nv"], row["people"]) == (n, nv, people)
            assert row["total"] == pytest.approx(total, abs=1e-5)
            assert row["n_low"] <= row["n"] <= row["n_high"]


TABLE = Budget(epsilon=30, delta=0.01)


@settings(max_examples=15)
@given(
    st.integers(0, 2**32),
    st.sampled_from([Window(), Window(kind="tumble", size_us=30)]),
    st.sampled_from([Bounding(quadratic=6), Bounding(max_rows=6, max_rows_per_group=2)]),
    CUTS,
)
def test_without_noise_the_table_and_its_weights_equal_a_plain_simulation(
    seed, window, bounding, cuts
):
    rng = np.random.default_rng(seed)
    rows = [
        (int(u), "abcd"[min(k, 3)], int(v), int(ts), int(d))
        for u, k, v, ts, d in zip(
            rng.integers(0, 60, 400),
            rng.geometric(0.5, 400) - 1,
            rng.integers(-3, 12, 400),
            rng.integers(0, 60, 400),
            rng.integers(0, 9, 400),
            strict=True,
        )
    ]
    weights = {"weight_reference": 8, "entry_weight": 0.7}
    operator = compiled(
        window=window,
        bounding=bounding,
        budget=TABLE,
        aggregates=AGGREGATES,
        options={"selection": "table", **(weights if bounding.quadratic else {})},
    )
    assert isinstance(operator.aggregation.selection, CoinSelection)
    kept, history = bounded(operator, rows)
    no_two_groups_look_alike(kept, SilentNoise())
    releases, _ = run(operator, batches(rows, cuts), SilentNoise())
    for release in releases:
        answers = {row[0]: row for row in sql(kept, release.window, release.step, QUERY)}
        shown = [k for w, k in history[release.step] if w == release.window]
        assert release.table.column("k").to_pylist() == sorted(shown)
        for row in release.table.to_pylist():
            _, n, nv, people, total = answers[row["k"]]
            assert (row["n"], row["nv"], row["people"]) == (n, nv, people)
            assert row["total"] == pytest.approx(total, abs=1e-5)
    assert operator.loss.fits(TABLE)


@settings(max_examples=20)
@given(ROWS, WINDOWS, BOUNDINGS)
def test_public_keys_are_released_at_every_trigger_whatever_the_data(rows, window, bounding):
    operator = compiled(window=window, bounding=bounding, key_set=PUBLIC, aggregates=AGGREGATES)
    kept, _ = bounded(operator, rows, public={"a", "c", "z"})
    no_two_groups_look_alike(kept, SilentNoise())
    releases, _ = run(operator, batches(rows), SilentNoise())
    for release in releases:
        answers = {row[0]: row for row in sql(kept, release.window, release.step, QUERY)}
        assert release.table.column("k").to_pylist() == ["a", "c", "z"]
        for row in release.table.to_pylist():
            wanted = answers.get(row["k"], (row["k"], 0, 0, 0, 0))
            assert (row["n"], row["nv"], row["people"]) == wanted[1:4]
            assert row["total"] == pytest.approx(wanted[4], abs=1e-5)


MOMENTS = (
    Aggregate(name="mean", function="avg", expression="v", low=-3, high=12),
    Aggregate(name="spread", function="variance", expression="v", low=-3, high=12),
    Aggregate(name="sd", function="stddev", expression="v", low=-3, high=12),
    Aggregate(
        name="median",
        function="quantile",
        expression="v",
        low=-4,
        high=12,
        options={"q": 0.5, "fan": 4, "levels": 2},
    ),
)


@settings(max_examples=15)
@given(ROWS)
def test_without_noise_a_global_aggregate_equals_sql(rows):
    operator = compiled(keys=(), aggregates=MOMENTS, bounding=Bounding(max_rows=50))
    kept, _ = bounded(operator, rows)
    releases, _ = run(operator, batches(rows), SilentNoise())
    for release in releases:
        [wanted] = sql(
            kept,
            0,
            release.step,
            "SELECT avg(v), var_samp(v), stddev_samp(v), list(v), count(v) FROM kept",
        )
        [row] = release.table.to_pylist()
        if wanted[4] >= 2:
            assert row["mean"] == pytest.approx(wanted[0], abs=1e-4)
            assert row["spread"] == pytest.approx(wanted[1], abs=1e-4)
            assert row["sd"] == pytest.approx(wanted[2], abs=1e-3)
            values = np.array(wanted[3])  # leaves are one wide; ties leave a range of medians
            assert (
                np.mean(values < row["median"] - 1) <= 0.5 <= np.mean(values <= row["median"] + 1)
            )


SELECTIONS = {
    "public": {"key_set": PUBLIC},
    "counter": {},
    "table": {"budget": TABLE, "options": {"selection": "table"}},
}
MIXED = st.permutations([*AGGREGATES, *MOMENTS[:2], MOMENTS[3]])


@settings(max_examples=30)
@given(ROWS, BOUNDINGS, st.sampled_from([*SELECTIONS]), MIXED)
def test_aggregates_are_the_same_in_any_order_and_beside_any_selection(rows, bounding, kind, mixed):
    operator = compiled(bounding=bounding, aggregates=tuple(mixed), **SELECTIONS[kind])
    public = {"a", "c", "z"} if kind == "public" else None
    kept, _ = bounded(operator, rows, public=public)
    no_two_groups_look_alike(kept, SilentNoise())
    releases, _ = run(operator, batches(rows), SilentNoise())
    moments = "SELECT k, avg(v), list(v), count(v) FROM kept GROUP BY k"
    for release in releases:
        answers = {row[0]: row for row in sql(kept, release.window, release.step, QUERY)}
        beside = {row[0]: row for row in sql(kept, release.window, release.step, moments)}
        for row in release.table.to_pylist():
            _, n, nv, people, total = answers.get(row["k"], (row["k"], 0, 0, 0, 0))
            assert (row["n"], row["nv"], row["people"]) == (n, nv, people)
            assert row["total"] == pytest.approx(total, abs=1e-5)
            if nv:
                _, mean, values, _ = beside[row["k"]]
                assert row["mean"] == pytest.approx(mean, abs=1e-4)
                below = np.mean(np.array(values) < row["median"] - 1)
                assert below <= 0.5 <= np.mean(np.array(values) <= row["median"] + 1)


@settings(max_examples=30)
@given(st.sampled_from([*SELECTIONS]), MIXED, st.integers(-3, 12), st.integers(1, 3))
def test_rows_of_a_unit_move_no_lane_further_than_its_noise_hides(kind, mixed, value, count):
    operator = compiled(bounding=Bounding(max_rows=3), aggregates=tuple(mixed), **SELECTIONS[kind])
    state = operator.init()
    for batch in batches([(1, "a", value, 5, 0)] * count, [1]):
        operator.fold(state, batch, SilentNoise())
        break
    table = state.windows[0].table
    [moved] = table.pending[: table.keys][np.any(table.pending[: table.keys], axis=1)]
    aggregation = operator.aggregation
    if aggregation.tracks_units:
        assert moved[0] == 1  # a unit is one, however many rows it has
    values = moved[int(aggregation.tracks_units) :]
    for lane, most in zip(aggregation.lanes, values, strict=True):
        assert abs(most) <= lane.reach * (1 if lane.kind == "units" else count)
    for level in (1, 2):  # of the tree: each row is in one node
        nodes = [lane.kind == "node" and lane.level == level for lane in aggregation.lanes]
        assert values[nodes].sum() == count


def test_the_nodes_of_trees_are_the_last_lanes():
    operator = compiled(keys=(), aggregates=MOMENTS, bounding=Bounding(max_rows=50))
    nodes = [lane.kind == "node" for lane in operator.aggregation.lanes]
    assert nodes == sorted(nodes)
    assert nodes.index(True) == operator.trees[0][0] == len(operator.design.plain)
    with pytest.raises(ValueError, match="no plain lanes"):
        replace(operator.design, plain=operator.aggregation.lanes[::-1])


@settings(max_examples=15)
@given(ROWS, WINDOWS, BOUNDINGS, PERIODS, CUTS, st.sampled_from(["public", "counter", "table"]))
def test_any_split_saving_and_replaying_give_the_same_bytes(
    rows, window, bounding, period, cuts, kind
):
    window = Window() if kind == "table" else window  # every horizon designs its own table
    operator = compiled(
        window=window,
        bounding=bounding,
        period_us=period,
        key_set=PUBLIC if kind == "public" else KeySet(),
        aggregates=AGGREGATES[:1] + AGGREGATES[3:],
        options={"selection": "table"} if kind == "table" else {},
        budget=TABLE if kind == "table" else LOOSE,
    )
    noise = SeededNoise(7)
    whole, _ = run(operator, batches(rows), noise)
    state, replayed, pieces = operator.init(), operator.init(), []
    for batch in batches(rows, cuts):
        delta = operator.fold(state, batch, noise)
        operator.apply(replayed, delta)
        assert_same(operator.save(state), operator.save(replayed))
        if batch.closes_step:
            pieces += operator.release(state, batch.step, noise)
            operator.release(replayed, batch.step, noise)
            saved = {name: array.copy() for name, array in operator.save(state).items()}
            state = operator.load(saved)
            assert_same(operator.save(state), saved)
    assert [r.table for r in pieces] == [r.table for r in whole]
    assert [(r.window, r.trigger, r.step) for r in pieces] == [
        (r.window, r.trigger, r.step) for r in whole
    ]


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name, array in left.items():
        np.testing.assert_array_equal(array, right[name], err_msg=name)


def test_it_is_an_operator_whose_loss_fits_the_budget():
    for changes in (
        {},
        {"key_set": PUBLIC},
        {"aggregates": AGGREGATES},
        {"period_us": 20},
        {"keys": (), "aggregates": MOMENTS},
    ):
        operator = compiled(**changes)
        assert isinstance(operator, Operator)
        assert operator.loss.fits(LOOSE)


def test_a_late_key_has_the_noise_it_would_have_had_from_the_start():
    rows = [(u, "a", 1, 5, 0) for u in range(9)]
    late = [(u, "a", 1, 45, 0) for u in range(9)]
    options = {"selection": "gaussian"}
    noise, operator = SeededNoise(3), compiled(bounding=Bounding(max_rows=1), options=options)
    early_run, _ = run(operator, batches(rows), noise)
    late_run, _ = run(operator, batches(late), noise)
    for trigger in (5, 6):  # all units have arrived in both: the same totals, the same noise
        early, after = (run[trigger - 1].table for run in (early_run, late_run))
        apart = ["opened", "n_low", "n_high"]  # a first release has an interval of its own
        assert early.drop_columns(apart).equals(after.drop_columns(apart))


def test_bad_rows_are_counted_by_reason_and_never_raise():
    operator = compiled(aggregates=AGGREGATES)
    table = pa.table(
        {
            "u": pa.array([1, None, 2, 3, 4, 5]),
            "k": pa.array(["a", "a", None, "b", "b", "b"]),
            "v": pa.array([1.0, 1.0, None, float("nan"), float("inf"), 1e300]),
            "ts": pa.array([1, 1, 1, 1, 1, None]),
            "at": pa.array([1] * 6),
        }
    )
    state = operator.init()
    operator.fold(state, Batch(table, 1, closes_step=True, position=""), SilentNoise())
    counted = operator.counters(state)
    assert counted["null unit"] == 1
    assert counted["null event time"] == 1
    assert counted["not a finite number"] == 2
    assert counted["keys"] == 2  # the null key is a group, as in SQL


def test_where_and_computed_columns_run_before_bounding():
    operator = compiled(
        where="v > 0",
        keys=(
            KeyColumn(name="even", expression="v % 2 = 0"),
            KeyColumn(name="k", expression="UPPER(k)"),
        ),
        bounding=Bounding(max_rows=2),
    )
    rows = [(u, "b", v, 1, 0) for u in range(20) for v in (-1, 0, 2, 3)]
    releases, _ = run(operator, batches(rows), SilentNoise())
    assert [(r["even"], r["k"], r["n"]) for r in releases[0].table.to_pylist()] == [
        (False, "B", 20),
        (True, "B", 20),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"aggregates": (Aggregate(name="s", function="sum", expression="v"),)},
            "no contribution bounds",
        ),
        ({"options": {"non_negativ": True}}, "did you mean 'non_negative'"),
        (
            {"aggregates": (Aggregate(name="s", function="heavy_hitters", expression="v"),)},
            "not an aggregate",
        ),
        ({"key_set": KeySet(public=(("a", "b"),))}, "one per GROUP BY column"),
        ({"counter": "blp"}, "did you mean 'blt'"),
    ],
)
def test_plans_that_cannot_be_kept_are_refused(changes, message):
    with pytest.raises(PlanError, match=message):
        compiled(**changes)


def test_a_foreign_state_is_refused():
    one, other = compiled(), compiled(aggregates=AGGREGATES)
    state = one.init()
    one.fold(state, next(batches([(1, "a", 1, 5, 0)])), SilentNoise())
    saved = one.save(state)
    with pytest.raises(StoreError):
        other.load(saved)
    with pytest.raises(StoreError):
        one.load({})


def test_one_release_over_even_groups_loses_no_row_to_the_test_that_shows_them():
    """A unit is counted in 3 hidden groups here; its rows in the 7 others are no less rows."""
    rng = np.random.default_rng(4)
    rows = [(u, int(k), 1, 1, 0) for u in range(400) for k in rng.permutation(40)[:10]]
    keys = {f"{k:02}": sum(row[1] == k for row in rows) for k in range(40)}
    named = [(u, f"{k:02}", v, ts, d) for u, k, v, ts, d in rows]
    operator = compiled(
        bounding=Bounding(max_rows=10), aggregates=AGGREGATES[:1], budget=TABLE,
        options={"selection": "table", "hidden_groups": 3},
    )  # fmt: skip
    assert operator.bounds.slots == 3
    releases, _ = run(operator, batches(named, [60]), SilentNoise())
    table = releases[-1].table
    assert dict(zip(*(table.column(c).to_pylist() for c in ("k", "n")), strict=True)) == keys
