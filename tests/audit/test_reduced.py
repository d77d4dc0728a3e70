"""Any query can be attacked at reduced size: its claim stands, half of its noise is caught."""

import pytest

import streamveil as sv
from streamveil.audit.reduced import attacks, halved, reduced, scenarios
from streamveil.compiler.group_by import compile_plan
from streamveil.errors import PlanError

TRIALS = 3_000
ROWS = {"user": [1], "page": ["a"], "ms": [1.0], "ts": [0]}


def query(keys, budget, window=None, measures=None, **bounds):
    stream = sv.memory(ROWS, event_time="ts").protect("user")
    stream = stream if window is None else stream.window(window)
    measures = measures or {"n": sv.count(), "ms": sv.sum("ms", bounds=(0, 9))}
    grouped = stream.where("ms > 0").group_by("page", keys=keys).agg(**measures)
    return grouped.bound(**(bounds or {"max_rows": 3})).release(
        every="1 hour", start="2026-01-01", steps=48, budget=budget
    )


PUBLIC, FOUND = sv.public(["a", "b"]), sv.discover()
QUERIES = {
    "public": query(PUBLIC, sv.Budget(mu=0.5, delta=1e-6)),
    "windows": query(PUBLIC, sv.Budget(mu=0.5, delta=1e-6), sv.hop("4 hours", "2 hours")),
    "found": query(FOUND, sv.Budget(epsilon=2, delta=1e-3), max_rows=2, max_rows_per_group=1),
    "weights": query(FOUND, sv.Budget(epsilon=6, delta=1e-4), max_squared_rows=4),
}


@pytest.mark.parametrize("name", QUERIES)
def test_the_reduced_query_keeps_what_matters(name):
    plan = QUERIES[name].plan
    small = reduced(plan, 5)
    operator, whole = compile_plan(small), compile_plan(plan)
    assert (small.budget, small.bounding) == (plan.budget, plan.bounding)
    assert type(operator.aggregation.selection) is type(whole.aggregation.selection)
    assert operator.guarantee.loss.fits(plan.budget)
    assert operator.schedule.steps == 6
    for scenario in scenarios(small, operator):
        units = {row[0] for row in scenario.background}
        assert max((*units, 0)) < 999
        assert {row[0] for row in scenario.added} == {999}


@pytest.mark.parametrize("name", ["public", pytest.param("found", marks=pytest.mark.slow)])
def test_claims_stand(name):
    heard = []
    found = list(attacks(QUERIES[name].plan, TRIALS // 2, 1e-6, tell=heard.append))
    assert len(found) == len(heard) == 10
    assert all(verdict.stands for verdict in found)
    assert all(0 <= verdict.proven < verdict.claimed for verdict in found)


@pytest.mark.parametrize("bounds", [
    {"max_rows": 10**9}, {"max_rows": 5_000, "max_rows_per_group": 2_500},
    {"max_squared_rows": 10**9},
], ids=str)  # fmt: skip
def test_bounds_of_any_size_are_attacked(bounds, monkeypatch):
    """Fewer copies run than public groups are named for, since each of them has many rows."""
    monkeypatch.setattr("streamveil.audit.reduced.FEWEST", 8)
    monkeypatch.setattr("streamveil.audit.reduced.MOST_ROWS", 30_000)
    monkeypatch.setattr("streamveil.audit.reduced.MOST_ADDED", 1_500)
    plan = query(PUBLIC, sv.Budget(mu=0.5, delta=1e-6), **bounds).plan
    found = list(attacks(plan, 12, 1e-6, tell=lambda text: None))
    assert len(found) == 10
    assert all(verdict.stands for verdict in found)


@pytest.mark.parametrize(("low", "high"), [(0, 9), (-9, 0), (-9, 2)])
def test_the_added_unit_reaches_both_bounds_with_values_of_its_own(low, high):
    measures = {"n": sv.count(), "ms": sv.sum("ms", bounds=(low, high))}
    small = reduced(query(PUBLIC, sv.Budget(mu=0.5, delta=1e-6), measures=measures).plan, 5)
    *far, near = (
        [row[4] for row in scenario.added] for scenario in scenarios(small, compile_plan(small))
    )
    ends = (high, low) if high >= -low else (low, high)
    for values, end in [*((values, ends[0]) for values in far), (near, ends[1])]:
        assert {min(max(value, low), high) for value in values} == {end}
        assert len({*values}) == len(values)


@pytest.mark.parametrize("measure", [sv.count(), sv.sum("ms", bounds=(-9, 0))])
def test_half_of_the_noise_is_caught(measure):
    alone = query(PUBLIC, sv.Budget(mu=0.5, delta=1e-6), measures={"n": measure})
    found = attacks(alone.plan, 2 * TRIALS, 1e-6, halved, tell=lambda _: None)
    assert any(not verdict.stands for verdict in found)  # the first is enough


def test_sketches_are_refused():
    top = sv.memory(ROWS).protect("user").agg(top=sv.heavy_hitters("page", k=2)).bound(max_rows=2)
    plan = top.release(every=sv.rows(10), steps=3, budget=sv.Budget(epsilon=2, delta=1e-6)).plan
    with pytest.raises(PlanError, match="group-by queries"):
        reduced(plan, 3)
