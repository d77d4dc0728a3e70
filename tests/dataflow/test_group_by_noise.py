"""The whole pipeline: one unit never moves the counters further than declared, and the noise that
is released has the scale that is released with it, at every trigger, for late and weighted keys."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamveil.batch import Batch
from streamveil.calibrate import zcdp_rho
from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.core.selection.gaussian import FINE
from streamveil.core.sensitivity import lane_move
from streamveil.plan import Aggregate, Bounding, Clock, KeySet, SourceSpec
from streamveil.results.noise import tested_covariance as of_tests
from streamveil.results.noise import weighted_covariance
from tests.dataflow.streams import (
    AGGREGATES,
    BOUNDINGS,
    ROWS,
    STEPS,
    WINDOWS,
    batches,
    compiled,
    run,
)
from tests.statistics import (
    DETECTABLE,
    SAMPLES,
    assert_fits,
    assert_rate,
    assert_rejects,
    assert_rejects_rate,
    gaussian,
)

ALL = KeySet(public=tuple((k,) for k in "abcd"))
EVERYTHING = (
    *AGGREGATES,
    Aggregate(name="mean", function="avg", expression="v", low=0, high=8),
    Aggregate(name="m2", function="variance", expression="v", low=0, high=8),
    Aggregate(name="q", function="quantile", expression="v", low=0, high=8,
              options={"fan": 2, "levels": 2}),
    Aggregate(name="d", function="count_distinct", expression="v"),
)  # fmt: skip
ROUNDED = tuple(one for one in EVERYTHING if one.function != "count_units")


def moves(operator, rows):
    """What enters every lane: {(window, key, lane): {step: quanta}}, shown or not."""
    state, seen, noise = operator.init(), defaultdict(dict), SilentNoise()
    left = {}
    for batch in batches(rows):
        operator.fold(state, batch, noise)
        if batch.closes_step:
            for place, quanta in waiting(state).items():
                if place[0] in operator.schedule.active(batch.step):
                    seen[place][batch.step] = quanta - left.get(place, 0)
            operator.release(state, batch.step, noise)
            left = waiting(state)
    return seen


def waiting(state):
    """What no counter has taken yet, by window, key and lane."""
    found = {}
    for window, held in state.windows.items():
        keys = held.table.key_bytes(np.arange(held.table.keys)).to_pylist()
        for key, lanes in zip(keys, held.table.pending.tolist(), strict=False):
            found |= {(window, key, lane): quanta for lane, quanta in enumerate(lanes)}
    return found


def reach(one, other, lanes):
    """Sum over (window, key) and the given lanes of (sum over steps of the differences)^2."""
    total = 0
    for place in set(one) | set(other):
        if place[2] in lanes:
            steps = set(one[place]) | set(other[place])
            total += sum(abs(one[place].get(s, 0) - other[place].get(s, 0)) for s in steps) ** 2
    return total


def without(rows, unit, period, which):
    """The rows of a neighbouring stream: one unit less, or one unit in one period less."""
    return [
        row for row in rows
        if row[0] != unit or (period is not None and row[3] // period != which)
    ]  # fmt: skip


SHOWN = {  # how keys come to be shown
    "public": {"key_set": ALL},
    "counter": {"options": {"selection": "gaussian"}},
    "table": {
        "options": {"selection": "table", "weights": "flat"},
        "budget": Budget(epsilon=20, delta=0.1),
    },
}


@settings(max_examples=30)
@given(
    ROWS, WINDOWS, BOUNDINGS, st.sampled_from([None, 20]), st.integers(0, 12), st.integers(0, 2),
    st.sampled_from([*SHOWN]), st.permutations(EVERYTHING), st.integers(1, len(EVERYTHING)),
    st.sampled_from([1, 10**6, 7 * 10**17]), st.sampled_from([1, 9]),
)  # fmt: skip
def test_one_unit_moves_no_lane_further_than_its_counter_pays_for(
    rows, window, bounding, period, unit, which, shown, aggregates, asked, far, times
):
    rows = [(u, k, v * far, *when) for u, k, v, *when in rows for _ in range(times)]
    operator = compiled(
        window=window, bounding=bounding, period_us=period, aggregates=aggregates[:asked],
        **SHOWN[shown],
    )  # fmt: skip
    one, other = moves(operator, rows), moves(operator, without(rows, unit, period, which))
    lanes, ahead = operator.aggregation.lanes, int(operator.aggregation.tracks_units)
    assert (
        operator.aggregation.rule is None
    )  # weights follow from what is shown: not the same twice
    for place, lane in enumerate(lanes):
        if lane.place == 0 and place != operator.aggregation.shared:
            level = [ahead + p for p, other_lane in enumerate(lanes)
                     if replace(other_lane, place=0) == lane]  # fmt: skip
            moved, _ = lane_move(lane, operator.bounds)
            assert reach(one, other, level) <= moved**2
    if ahead and operator.bounds.slots is not None:
        assert reach(one, other, [0]) <= operator.bounds.slots  # what the table is made for
    elif ahead and operator.firsts == "all":
        assert reach(one, other, [0]) <= operator.bounds.units_l2_squared


@settings(max_examples=30)
@given(ROWS, WINDOWS, BOUNDINGS, st.integers(0, 12))
def test_one_unit_moves_the_selection_no_further_than_declared(rows, window, bounding, unit):
    operator = compiled(window=window, bounding=bounding, aggregates=AGGREGATES[:1])
    one = moves(operator, rows)
    other = moves(operator, [row for row in rows if row[0] != unit])
    assert reach(one, other, [0]) <= operator.aggregation.selection.groups


def test_the_declared_reach_is_reached():
    """Were the noise a tenth smaller, some stream would move further than is paid for."""
    operator = compiled(key_set=ALL, bounding=Bounding(max_rows=4, max_rows_per_group=2),
                        aggregates=AGGREGATES[3:])  # fmt: skip
    rows = [(1, "a", 8, 5, 0), (1, "a", 8, 15, 0), (1, "b", 8, 5, 0), (1, "b", 8, 5, 0)]
    moved, _ = lane_move(operator.aggregation.lanes[0], operator.bounds)
    found = reach(moves(operator, rows), moves(operator, []), [0])
    assert found > (moved / DETECTABLE) ** 2


def wide(keys, **changes):
    """A plan over integer keys with row steps, many keys at once."""
    return compiled(**{
        "source": SourceSpec(name="s", kind="memory"),
        "clock": Clock(kind="rows", every=1, steps=5), "budget": Budget(epsilon=1, delta=1e-6),
        "key_set": KeySet(public=tuple((k,) for k in range(keys))),
        "aggregates": (Aggregate(name="n", function="count"),
                       Aggregate(name="s", function="sum", expression="v", low=0, high=100)),
        **changes,
    })  # fmt: skip


def table(units, keys):
    n = len(units)
    return pa.table({"u": units, "k": keys, "v": np.full(n, 50)})


NOTHING = np.zeros(0, np.int64)


def standardised(released, name, truth):
    return (released.column(name).to_numpy() - truth) / released.column(f"{name}_sd").to_numpy()


def test_released_noise_has_the_released_scale_and_intervals_cover():
    operator, noise = wide(SAMPLES), SeededNoise(11)
    state = operator.init()
    for step in range(1, 6):
        operator.fold(state, Batch(table(NOTHING, NOTHING), step, True, ""), noise)
        [release] = operator.release(state, step, noise)
        for name in ("n", "s"):
            scores = standardised(release.table, name, 0)
            sd = release.table.column(f"{name}_sd").to_numpy()
            assert len(set(sd)) == 1
            jitter = np.random.default_rng(step).uniform(-0.5, 0.5, SAMPLES) / sd
            smooth = scores + (jitter if name == "n" else 0)  # whole counts
            assert_fits(smooth, gaussian(np.sqrt(1 + (name == "n") / (12 * sd[0] ** 2))))
            assert_rejects(smooth, gaussian(DETECTABLE))
            inside = (release.table.column(f"{name}_low").to_numpy() <= 0) & (
                release.table.column(f"{name}_high").to_numpy() >= 0
            )
            if name == "s":
                assert_rate(int(inside.sum()), SAMPLES, 0.95)
                assert_rejects_rate(int(inside.sum()), SAMPLES, 0.97)


def test_late_and_weighted_keys_release_the_scale_they_have():
    """Keys are shown by the table at different triggers and lose weight as they grow."""
    operator = wide(
        1,
        key_set=KeySet(),
        budget=Budget(epsilon=20, delta=1e-3),
        bounding=Bounding(quadratic=40),
        options={"selection": "table", "entry_weight": 0.8, "weight_reference": 4},
    )
    noise, state = SeededNoise(5), operator.init()
    people = operator.aggregation.selection.table.threshold + 12
    rng = np.random.default_rng(1)
    keys = np.repeat(np.arange(SAMPLES), people)
    units = np.arange(len(keys))
    order = rng.permutation(len(keys))
    for step, part in enumerate(np.array_split(order, 5), start=1):
        rows = table(units[part], keys[part])
        operator.fold(state, Batch(rows, step, True, ""), noise)
        held = state.windows[0]
        [release] = operator.release(state, step, noise)
    seen = np.concatenate(np.array_split(order, 5))
    truth = np.bincount(keys[seen], minlength=SAMPLES)
    shown = release.table.column("k").to_numpy()
    assert len(shown) > SAMPLES / 2
    assert len(set(np.round(release.table.column("s_sd").to_numpy(), 6))) > 5
    scores = standardised(release.table, "s", 50 * truth[shown])
    assert_fits(scores, gaussian(1))
    assert_rejects(scores, gaussian(DETECTABLE))
    assert held.weights.max() <= operator.aggregation.rule.entry


@pytest.mark.parametrize("trigger", [1, 4])
def test_a_key_of_one_unit_is_shown_no_more_often_than_beta(trigger):
    """One hidden key per trial: with a large beta the failures can be counted."""
    operator = wide(1, key_set=KeySet(), budget=Budget(mu=1, delta=0.5),
                    aggregates=(Aggregate(name="n", function="count_units"),),
                    bounding=Bounding(max_rows=1))  # fmt: skip
    selection = operator.aggregation.selection
    noise, state, shown = SeededNoise(9), operator.init(), 0
    keys = np.arange(SAMPLES)
    for step in range(1, 6):
        rows = table(keys, keys) if step == trigger else table(NOTHING, NOTHING)
        operator.fold(state, Batch(rows, step, True, ""), noise)
        [release] = operator.release(state, step, noise)
        shown = release.table.num_rows
    assert shown <= selection.beta * SAMPLES + 6 * np.sqrt(selection.beta * SAMPLES)
    assert shown > 0.2 * selection.beta * SAMPLES * (6 - trigger) / 5  # and the bound is not empty
    assert selection.threshold(5) * FINE > FINE


WEIGHED = {"options": {"selection": "table"}, "bounding": Bounding(quadratic=9)}


FOUND_BY_ITS_TOTAL = [(0, "a", 0, 0, 0), (0, "a", 0, 0, 0), (1, "a", 0, 0, 0), (2, "a", 0, 0, 10),
                      (3, "a", 0, 0, 0)]  # fmt: skip


@settings(max_examples=25)
@example(FOUND_BY_ITS_TOTAL, list(EVERYTHING), "table")
@given(ROWS, st.permutations(EVERYTHING), st.sampled_from([*SHOWN, "weights"]))
def test_every_aggregate_states_the_noise_of_its_own_counter(rows, mixed, shown):
    """In any order: rounding adds much to the counter of one, nothing to that of another."""
    made = SHOWN["table"] | WEIGHED if shown == "weights" else SHOWN[shown]
    operator = compiled(aggregates=tuple(mixed), **made)
    aggregation, known = operator.aggregation, defaultdict(lambda: np.full(STEPS, np.nan))
    tested = aggregation.test
    for release in run(operator, batches(rows), SeededNoise(3))[0]:
        for row in release.table.to_pylist():
            weights, opened = known[row["k"]], np.array([row["opened"]])
            weights[release.trigger - 1] = row.get("noise_weight", 1.0)
            before = np.array(() if tested is None else tested.before(row["opened"]), np.int64)
            weights[before - 1] = 1.0 if tested is None or tested.share is None else tested.share
            for output in operator.outputs:
                [place, *others] = output.lanes
                if others or place == aggregation.shared:
                    continue
                counter = aggregation.counters[place]
                quantum = float(aggregation.lanes[place].quantum)
                at = release.trigger, release.trigger
                if len(before):
                    [variance] = of_tests(counter, at, opened, before, weights[:, None])
                else:
                    [variance] = weighted_covariance(counter, *at, weights[:, None])
                assert row[f"{output.name}_sd"] == pytest.approx(variance**0.5 * quantum)


@pytest.mark.parametrize("shown", SHOWN)
@pytest.mark.parametrize("aggregates", [*((one,) for one in EVERYTHING), EVERYTHING], ids=str)
@pytest.mark.parametrize("bounding", [Bounding(max_rows=4), Bounding(quadratic=9, max_rows=5)])
def test_the_budget_is_used_up(shown, aggregates, bounding):
    """What is stated is what the noise was made for: neither more nor less."""
    budget = Budget(epsilon=2, delta=1e-6)
    made = SHOWN[shown] | {"budget": budget, "aggregates": aggregates, "bounding": bounding}
    operator = compiled(**made)
    assert operator.loss.fits(budget)
    assert 1.99 < operator.guarantee.epsilon(1e-6) <= 2


@pytest.mark.parametrize("aggregates", [*((one,) for one in ROUNDED), ROUNDED], ids=str)
def test_the_published_system_states_what_its_noise_was_made_for(aggregates):
    """Twice rho of half of epsilon and a third of delta: for selection, and for all values."""
    operator = compiled(
        preset="dp-sqlp", bounding=Bounding(max_rows=4), aggregates=aggregates,
        budget=Budget(epsilon=2, delta=1e-6),
    )  # fmt: skip
    rho = zcdp_rho(Budget(epsilon=1, delta=Fraction(1, 3 * 10**6)))
    assert float(operator.loss.gaussian) == pytest.approx(4 * rho, rel=1e-3)
