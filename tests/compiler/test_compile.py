"""From a plan to its operator."""

from dataclasses import replace

import numpy as np
import pytest

import streamveil as sv
from streamveil.compiler.group_by import compile_plan
from streamveil.core.selection.gaussian import LEAST_NOISE
from streamveil.errors import PlanError


@pytest.mark.parametrize("measure", [sv.sum, sv.variance])
@pytest.mark.parametrize("high", [1e-69, 1e-3, 1e70])
def test_no_row_adds_more_than_the_reach_of_its_lane(measure, high):
    query = (
        sv.files("t.parquet").protect("u").agg(v=measure("v", bounds=(0, high))).bound(max_rows=2)
        .release(budget=sv.Budget(epsilon=1, delta=1e-9))
    )  # fmt: skip
    values = np.array([-1e308, 0.0, high / 3, high, 1e308])
    for lane in compile_plan(query.plan).aggregation.lanes:
        if lane.kind in ("sum", "square"):
            assert int(np.abs(lane.quanta(values)).astype(np.uint64).max()) <= lane.reach


@pytest.mark.parametrize("measure", [sv.sum, sv.avg, sv.variance, sv.stddev, sv.median])
@pytest.mark.parametrize("high", [1e155, 1.7e308])
def test_bounds_whose_noise_no_float_can_tell_are_refused(measure, high):
    stream = sv.files("t.parquet").protect("u").bound(max_rows=2)
    with pytest.raises(PlanError, match="must lie between"):
        stream.agg(v=measure("v", bounds=(-high, high))).release(
            budget=sv.Budget(epsilon=1, delta=1e-9)
        )


def test_quantiles_of_unlike_depth_share_no_tree():
    query = (
        sv.files("t.parquet").protect("u").bound(max_rows=2)
        .agg(a=sv.median("v", bounds=(0, 1)), b=sv.quantile("v", 0.9, bounds=(0, 1)))
        .release(budget=sv.Budget(epsilon=1, delta=1e-9))
    )  # fmt: skip
    assert len(compile_plan(query.plan).trees) == 1
    one, other = query.plan.aggregates
    deeper = replace(other, options={"q": 0.9, "levels": 5})
    with pytest.raises(PlanError, match="levels"):
        compile_plan(replace(query.plan, aggregates=(one, deeper)))


def counts(bound, epsilon=1, **options):
    query = sv.files("t.parquet").protect("u").group_by("k").agg(n=sv.count()).bound(**bound)
    return query.release(budget=sv.Budget(epsilon=epsilon, delta=1e-9), **options).plan


@pytest.mark.parametrize(("bound", "options"), [
    (1, {"selection": "gaussian"}), (2**16, {"selection": "gaussian"}), (2**16 + 1, {}),
    (10**9, {}),
])  # fmt: skip
def test_squared_rows_may_be_many(bound, options):
    made = compile_plan(counts({"max_squared_rows": bound}, **options))
    assert made.bounds.quadratic == bound


def test_the_largest_budget_leaves_a_count_that_shows_groups_the_noise_of_its_proof():
    bound = {"max_rows": 5, "max_rows_per_group": 1}
    made = compile_plan(counts(bound, epsilon=999_999, selection="gaussian")).aggregation.selection
    assert made.counter.sigma == pytest.approx(LEAST_NOISE * made.counter.sensitivity)
    assert 1 < made.threshold(1) < 1.1


@pytest.mark.parametrize("steps", [None, 24])
def test_rows_of_a_group_are_limited_one_by_one(steps):
    """Rows of a smaller weight would pass many times as often."""
    stream = sv.files("t.parquet").protect("u").group_by("k").bound(max_rows_per_group=2)
    often = {} if steps is None else {"every": sv.rows(100), "steps": steps}
    query = stream.agg(n=sv.count()).release(budget=sv.Budget(epsilon=6, delta=1e-9), **often)
    made = compile_plan(query.plan)
    assert made.aggregation.rule is None
    assert made.bounds.per_group == 2
    one = sv.files("t.parquet").protect("u").bound(max_rows_per_group=50).agg(n=sv.count())
    many = {"expected_rows": 50, "expected_units": 10_000, **often}
    bounds = compile_plan(one.release(budget=sv.Budget(epsilon=6, delta=1e-9), **many).plan).bounds
    assert bounds.most_in_group() <= 50
    with pytest.raises(PlanError, match="max_rows_per_group and entry_weight do not go together"):
        counts({"max_rows_per_group": 2}, entry_weight=0.5)


def test_a_budget_that_is_too_small_is_refused():
    with pytest.raises(PlanError, match="too small"):
        compile_plan(counts({"max_rows": 3}, 1e-7, preset="dp-sqlp"))


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "many", 1.5])
def test_a_number_of_tests_that_is_none_is_refused(value):
    with pytest.raises(PlanError, match="total_tests"):
        compile_plan(counts({"max_squared_rows": 9}, total_tests=value))


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "many", 1.5])
@pytest.mark.parametrize(
    "name",
    ["max_units", "hidden_groups", "delta_share", "selection_share", "mu_share", "entry_weight",
     "weight_reference"],
)  # fmt: skip
def test_settings_that_are_no_numbers_of_their_kind_are_refused(name, value):
    """Without units no chance of equal fingerprints would be charged, nor overflow excluded."""
    if name == "weight_reference" and value == 1.5:
        return
    with pytest.raises(PlanError, match=name):
        compile_plan(counts({"max_squared_rows": 9}, **{name: value}))


@pytest.mark.parametrize(("size", "rows"), [("1 month", 1), ("1 week", 6), ("1 quarter", 1)])
def test_units_that_count_once_a_window_need_no_bound(size, rows):
    """Active users per month had 26 times the noise of the bound that cuts nobody."""

    def operator(*functions):
        asked = (
            sv.files("t.parquet", event_time="ts").protect("u", per="1 month")
            .window(sv.tumble(size))
            .agg(**{f"n{place}": function for place, function in enumerate(functions)})
            .release(
                every=size, start="2024-01-01", end="2024-04-01",
                budget=sv.Budget(epsilon=1, delta=1e-6),
            )
        )  # fmt: skip
        return compile_plan(asked.plan)

    once = operator(sv.count_units())
    assert once.bounds.l2_squared == rows
    assert once.design.cut is None
    assert operator(sv.count_units(), sv.count()).bounds.quadratic is not None


@pytest.mark.parametrize(
    ("selection", "most"), [("table", 1), ("table", 3), ("gaussian", 1), ("totals", 3)]
)
def test_only_the_rows_of_a_group_may_be_bounded(selection, most):
    plan = counts({"max_rows_per_group": most}, selection=selection, weights="flat")
    (count,) = plan.aggregates
    people = replace(count, function="count_units")
    total = replace(count, function="sum", expression="v", low=0.0, high=8.0)
    for aggregate in (count, people, total):
        made = compile_plan(replace(plan, aggregates=(aggregate,)))
        assert made.bounds.most_in_group() <= most


@pytest.mark.parametrize(
    ("bound", "limits"),
    [
        ({"max_rows": 3, "max_rows_per_group": 2}, "max_rows = 3, max_rows_per_group = 2"),
        ({"max_rows_per_group": 2}, "max_rows_per_group = 2, the bound chosen by forecast"),
        ({}, "the bound chosen by forecast"),
    ],
)
def test_releases_say_every_bound_that_cuts_rows(bound, limits):
    (output,) = compile_plan(counts(bound)).outputs
    assert output.cut == f"rows of one unit beyond {limits} are not counted"
