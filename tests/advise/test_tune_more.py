"""Tuning of values, split and pace: what it says is what other settings would do."""

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.advise import tune_more
from streamveil.advise.tune_more import draw, epsilon_for, lines, over_releases, tune_over
from streamveil.compiler.group_by import compile_plan
from streamveil.errors import PlanError
from streamveil.plan.plan import Bounding
from tests.advise.test_tune import KEYS, clicks, plan


def test_bounds_on_values_weigh_clamping_against_noise():
    table = clicks(2_000)
    made = plan(table, aggregates={"s": sv.sum("ms", bounds=(0, 50))}, keys=sv.public(KEYS))
    tuning = tune_over(made, table, "values")
    by_bound = sorted(tuning.forecasts, key=lambda one: one.sd)
    assert [one.choice for one in by_bound] == sorted(
        (one.choice for one in by_bound), key=lambda text: float(text.split()[-1].replace(",", ""))
    )
    assert tuning.best.l1 < by_bound[0].l1  # half of all values clamped is too tight
    with pytest.raises(PlanError, match="belong to a SUM"):
        tune_over(plan(table), table, "values")


@pytest.mark.parametrize(("options", "name"), [
    ({}, "selection_share"), ({"selection": "table"}, "mu_share"),
])  # fmt: skip
def test_the_split_of_the_budget(options, name, monkeypatch):
    monkeypatch.setattr(tune_more, "SHARES", (0.5, 2 / 3, 0.8))
    table = clicks(2_000)
    bounding = Bounding(quadratic=4)
    made = plan(table, bounding, {"n": sv.count()}, **options)
    tuning = tune_over(made, table, "split", metric="keys")
    assert name in tuning.best.choice
    noise = {one.choice: one.sd for one in tuning.forecasts}
    keys = {one.choice: one.keys for one in tuning.forecasts}
    quiet, loud = min(noise, key=noise.get), max(noise, key=noise.get)
    assert keys[quiet] < keys[loud]  # what the values get, the selection lacks
    with pytest.raises(PlanError, match="no budget to split"):
        tune_over(plan(table, keys=sv.public(KEYS)), table, "split")


def test_one_counter_for_both_has_nothing_to_split():
    table = clicks(500)
    made = plan(table, Bounding(max_rows=4, max_rows_per_group=1))
    with pytest.raises(PlanError, match="nothing to split"):
        tune_over(made, table, "split")


def test_seldom_is_precise_and_often_is_fresh():
    table = clicks(1_600)
    tuning = tune_over(plan(table, keys=sv.public(KEYS), steps=8), table, "releases")
    by_steps = {int(one.choice.split()[0]): one for one in tuning.forecasts}
    assert by_steps.keys() == {32, 16, 8, 4, 2, 1}
    noise = [by_steps[steps].sd for steps in sorted(by_steps)]
    assert noise == sorted(noise)
    rows = np.unique(table["key"].to_pylist(), return_counts=True)[1]
    once = by_steps[1]
    alone = plan(table, keys=sv.public(KEYS), steps=1)
    assert once.l1 > rows.sum() / 2  # a single release at the end: half of all rows are missing
    assert once.sd < compile_sd(alone) * 1.01
    with pytest.raises(PlanError, match="how often"):
        tune_over(
            sv.memory(table).protect("user").group_by("key", keys=sv.public(KEYS))
            .agg(n=sv.count()).bound(4).release(budget=sv.Budget(epsilon=1, delta=1e-6)).plan,
            table, "releases",
        )  # fmt: skip


def compile_sd(made):
    operator = compile_plan(made)
    return float(operator.aggregation.counters[0].std(np.array([1]))[0])


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


def test_pictures(tmp_path):
    table = clicks(300)
    for over in ("bounds", "releases"):
        tuning = tune_over(plan(table, keys=sv.public(KEYS)), table, over)
        draw(tuning, str(tmp_path / f"{over}.png"))
        assert (tmp_path / f"{over}.png").stat().st_size > 1_000
    names = [name for name, _ in lines(tune_over(plan(table), table, "bounds"), "l1")]
    assert "c = C" in names
    assert "squared rows <= B" in names


def test_words_that_are_not_known():
    table = clicks(50)
    with pytest.raises(ValueError, match="over"):
        tune_over(plan(table), table, "everything")


def test_releases_of_months_are_tried_in_months():
    at = np.datetime64("2026-01-01", "us") + np.arange(3_000) * np.timedelta64(2, "h")
    rows = pa.table({"u": np.arange(3_000) % 300, "ts": at})
    query = (
        sv.memory(rows, event_time="ts").protect("u").agg(n=sv.count()).bound(max_rows=4)
        .release(every="1 month", start="2026-01-01", end="2027-01-01",
                 budget=sv.Budget(epsilon=1, delta=1e-9))
    )  # fmt: skip
    tried = [one.choice for one in over_releases(query.plan, rows, 1.0)]
    assert tried == ["12 releases", "6 releases", "3 releases"]
