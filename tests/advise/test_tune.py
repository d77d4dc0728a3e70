"""Tuning: what it forecasts is what the pipeline does."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace as Namespace

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.advise.tune import (
    Facts,
    _totals,
    admitted,
    epsilon_for,
    forecast,
    passes,
    read_sample,
    solve_epsilon,
    tune,
)
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.plan_forecast import answer_sd
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.core.release import WeightRule
from streamveil.errors import PlanError
from streamveil.plan import Bounding, combined_plan
from streamveil.plan.look import with_look
from streamveil.runtime.run import run

KEYS = [f"k{i:02}" for i in range(12)]


def clicks(units=300, seed=3):
    """Clumpy rows: heavy users, repeated keys, values."""
    rng = np.random.default_rng(seed)
    user = rng.zipf(1.7, units * 5) % units
    key = np.where(rng.random(len(user)) < 0.5, user % 12, rng.integers(0, 12, len(user)))
    return pa.table({"user": user, "key": [KEYS[k] for k in key],
                     "ms": rng.exponential(50.0, len(user))})  # fmt: skip


def plan(table, bounding=None, aggregates=None, keys=None, steps=8, **options):
    bounding = bounding or Bounding(max_rows=8)
    return (
        sv.memory(table).protect("user").group_by("key", keys=keys)
        .agg(**(aggregates or {"n": sv.count()}))
        .bound(bounding.max_rows, bounding.max_rows_per_group, max_squared_rows=bounding.quadratic)
        .release(every=sv.rows(len(table) // steps), steps=steps,
                 budget=sv.Budget(epsilon=2, delta=1e-6), **{"selection": "gaussian"} | options)
        .plan
    )  # fmt: skip


BOUNDS = [Bounding(max_rows=4), Bounding(max_rows=6, max_rows_per_group=2), Bounding(quadratic=9)]


@pytest.mark.parametrize("bounding", BOUNDS, ids=str)
def test_bounding_of_the_sample_is_bounding_of_the_pipeline(tmp_path, bounding):
    table = clicks()
    made = plan(table, bounding, keys=sv.public(KEYS))
    sample = read_sample(made, table, 1.0)
    held = _totals(sample, passes(sample, bounding).passed, "count", int(sample.cell.max()) + 1)
    with pytest.warns(UserWarning, match="insecure"):
        releases = list(run(made, state=tmp_path / "s", noise=SilentNoise(), insecure=True))
    last = releases[-1].table.to_pydict()
    assert sorted(last["n"]) == sorted(held.astype(int).tolist())


def test_the_forecast_is_the_mean_error(tmp_path):
    table = clicks()
    bounding = Bounding(max_rows=6, max_rows_per_group=2)
    made = plan(table, bounding, keys=sv.public(KEYS))
    expected = forecast(made, read_sample(made, table, 1.0), bounding)
    truth = {k: n for k, n in zip(*np.unique(table["key"].to_pylist(), return_counts=True),
                                  strict=True)}  # fmt: skip
    errors = []
    for seed in range(12):
        with pytest.warns(UserWarning, match="insecure"):
            *_, last = run(made, state=tmp_path / str(seed), noise=SeededNoise(seed), insecure=True)
        rows = last.table.to_pylist()
        errors.append(sum(abs(row["n"] - truth[row["key"]]) for row in rows))
    assert expected.keys == len(KEYS)
    assert np.mean(errors) == pytest.approx(expected.l1, rel=0.1)


def test_the_forecast_knows_weights(tmp_path):
    table = clicks(3_000)
    bounding = Bounding(quadratic=2)
    expected = {"expected_rows": 5, "expected_units": 3_000, "expected_groups": 12}
    made = plan(table, bounding, keys=sv.public(KEYS), **expected)
    found = forecast(made, read_sample(made, table, 1.0), bounding)
    flat = plan(table, bounding, keys=sv.public(KEYS))
    plain = forecast(flat, read_sample(flat, table, 1.0), bounding)
    assert found.kept > 2 * plain.kept
    truth = {k: n for k, n in zip(*np.unique(table["key"].to_pylist(), return_counts=True),
                                  strict=True)}  # fmt: skip
    errors = []
    for seed in range(6):
        with pytest.warns(UserWarning, match="insecure"):
            *_, last = run(made, state=tmp_path / str(seed), noise=SeededNoise(seed), insecure=True)
        errors.append(sum(abs(row["n"] - truth[row["key"]]) for row in last.table.to_pylist()))
    assert np.mean(errors) == pytest.approx(found.l1, rel=0.3)


@pytest.mark.parametrize("steps", [4, 50])
def test_a_forecast_has_the_weights_that_groups_of_such_totals_get(steps):
    sample = read_sample(plan(clicks(3_000)), clicks(3_000), 1.0)
    sizes, rows = np.bincount(sample.cell).astype(float), len(sample.cell)
    rule = WeightRule(scale=127, entry=127, reference=20.0)
    limit = Bounding(quadratic=4)

    def kept(rule):
        bounds = Namespace(max_rows=None, per_group=None, quadratic=4, slots=None)
        made = Namespace(rule=rule, selection=Namespace(half=1e-9))
        operator = Namespace(aggregation=made, bounds=bounds, schedule=Namespace(triggers=steps))
        return admitted(operator, sample, sizes, 0.0)[0].passed

    weight, weights = np.ones(rows), np.full(len(sizes), 127, np.uint8)
    ends = np.ceil(np.arange(1, steps + 1) * rows / steps).astype(int)
    for step, (end, after) in enumerate(pairwise(ends), start=1):
        weights = rule.next(weights, sizes * step / steps, step / steps)
        weight[end:after] = weights[sample.cell[end:after]] / 127
    exact = passes(sample, limit, Facts(np.zeros(rows, np.bool_), weight)).passed
    off = np.sum(kept(rule) != exact)  # weights are not rounded there
    assert off < 0.05 * exact.sum()
    if steps > rule.growth:
        assert np.sum(kept(replace(rule, growth=1e9)) != exact) > 2 * off


def test_the_best_is_first_and_bounds_matter():
    table = clicks(3_000)
    tuning = tune(plan(table, keys=sv.public(KEYS)), table)
    costs = [one.l1 for one in tuning.forecasts]
    assert costs == sorted(costs)
    assert costs[-1] > 1.5 * costs[0]
    assert f"{tuning.best.kept:.1%}" in tuning.reason
    by_keys = tune(plan(table), table, metric="keys")
    assert by_keys.best.keys == max(one.keys for one in by_keys.forecasts) > 0


def test_a_fraction_scales_the_groups():
    table = clicks()
    whole, tenth = (
        forecast(plan(table), read_sample(plan(table), table, scale), Bounding(max_rows=4))
        for scale in (1, 10)
    )
    assert tenth.keys > whole.keys
    assert tenth.sd == whole.sd


def test_distinct_values_are_scored(tmp_path):
    table = clicks()
    asked = {"d": sv.count_distinct("ms"), "n": sv.count()}
    bounding = Bounding(max_rows=3)
    made = plan(table, bounding, asked, keys=sv.public(KEYS))
    sample = read_sample(made, table, 1.0)
    held = _totals(
        sample, passes(sample, bounding).passed, "count_distinct", int(sample.cell.max()) + 1
    )
    with pytest.warns(UserWarning, match="insecure"):
        *_, last = run(made, state=tmp_path / "s", noise=SilentNoise(), insecure=True)
    assert sorted(last.table.to_pydict()["d"]) == sorted(held.astype(int).tolist())
    assert forecast(made, sample, bounding).l1 > 0
    with pytest.raises(PlanError, match="whole sample"):
        tune(made, table, fraction=0.5)


def test_epsilon_for_a_target():
    table = clicks(1_000)
    made = plan(table, Bounding(max_rows=6, max_rows_per_group=2))
    now = forecast(made, read_sample(made, table, 1.0), made.bounding)
    epsilon, found = solve_epsilon(made, table, now.l1)
    assert found.l1 <= now.l1
    assert epsilon == pytest.approx(2, rel=0.2)  # designs change with it, and errors jump
    with pytest.raises(PlanError, match="no epsilon"):
        solve_epsilon(made, table, 1e-3)


def test_refusals():
    table = clicks(50)
    with pytest.raises(ValueError, match="metric"):
        tune(plan(table), table, metric="l3")
    with pytest.raises(PlanError, match="fraction"):
        tune(plan(table), table, fraction=0)
    with pytest.raises(PlanError, match="no usable row"):
        tune(plan(table), table.slice(0, 0))
    with pytest.raises(PlanError, match="counts and sums"):
        tune(plan(table, aggregates={"a": sv.avg("ms", bounds=(0, 1))}), table)


def test_forecasts_on_a_sample_have_the_noise_that_a_look_leaves():
    table = clicks(300)
    made = plan(table, Bounding(max_rows=8))
    operator = compile_plan(combined_plan(with_look(made)))
    sd = answer_sd(operator, operator.outputs[0], operator.schedule.triggers)
    assert made != with_look(made)
    assert forecast(made, read_sample(made, table, 1.0), made.bounding).sd == pytest.approx(sd)


def test_epsilon_for_a_group_pays_for_the_look():
    made = plan(clicks(100), Bounding(max_rows=8))
    assert made != with_look(made)
    found = epsilon_for(made, 500, 0.1)
    asked = replace(made, budget=sv.Budget(epsilon=f"{found:.6g}", delta=made.budget.delta))
    operator = compile_plan(combined_plan(with_look(asked)))
    last = operator.schedule.triggers
    assert 0.097 * 500 < answer_sd(operator, operator.outputs[0], last) <= 0.1 * 500 * (1 + 1e-6)


def test_epsilon_for_a_group_of_some_size():
    table = clicks(100)
    made = plan(table, Bounding(max_rows=6, max_rows_per_group=2), keys=sv.public(KEYS))
    last = np.array([8])
    sd = float(compile_plan(made).aggregation.counters[0].std(last)[0])
    assert epsilon_for(made, 1_000, sd / 1_000) == pytest.approx(2, rel=0.03)
    assert epsilon_for(made, 1_000, sd / 2_000) > 3
    with pytest.raises(PlanError, match="no epsilon"):
        epsilon_for(made, 1, 1e-6)
    with pytest.raises(PlanError, match="for counts"):
        epsilon_for(plan(table, aggregates={"s": sv.sum("ms", bounds=(0, 9))}), 10, 0.1)
