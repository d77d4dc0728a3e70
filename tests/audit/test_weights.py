"""Weights of public keys and of sums under attack: the claim stands, uncharged rows are found."""

from dataclasses import replace

import pytest

import streamveil as sv
from streamveil.audit.pipeline import Scenario, unbroken
from streamveil.audit.worst import WorstFound, accounts
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import SeededNoise
from tests.audit.attack import audit, restarted
from tests.audit.test_pipeline import EMPTY, crowd, lone
from tests.planting import forced

COPIES, NOISES = 2_500, (SeededNoise(21), SeededNoise(22))
KEYS = sv.public([1000 * copy + key for copy in range(COPIES) for key in range(3)])
COUNT, SUM = {"n": sv.count()}, {"s": sv.sum("value", bounds=(-1, 1))}


def weighted(measures, **options):
    query = (
        sv.memory(EMPTY, event_time="at").protect(unit="unit").group_by("key", keys=KEYS)
        .agg(**measures).bound(max_squared_rows=4)
        .release(every=sv.rows(10**9), steps=5, budget=sv.Budget(epsilon=2, delta=0.01),
                 entry_weight=0.5, weight_reference=4, **options)
    )  # fmt: skip
    return compile_plan(query.plan)


# key 0 is large by step 2, so that its rows are charged little from step 3 on
LARGE = Scenario(
    name="many rows on a large key, some on small ones", steps=5,
    background=tuple((*row[:4], 1.0) for row in crowd([0], 90) + crowd([1, 2], 2)),
    added=lone(*[(0, 4)] * 9, *[(1, 4)] * 2, (2, 5)),
)  # fmt: skip
SMALL = replace(LARGE, name="all rows before any weight has fallen", added=lone(*[(0, 1)] * 4))


@pytest.mark.parametrize(
    ("scenario", "run"), [(LARGE, restarted), (SMALL, unbroken)], ids=["large", "small"]
)
@pytest.mark.parametrize("measures", [COUNT, SUM], ids=["count", "sum"])
def test_the_claim_stands(measures, scenario, run):
    operator = weighted(measures)
    assert operator.aggregation.rule is not None
    found = audit(operator, scenario, NOISES, COPIES, run=run)
    assert not found.violates(operator.guarantee.epsilon)
    assert found.epsilon(0.01) > 0.1  # and the attack is no blank


@pytest.mark.parametrize("measures", [COUNT, SUM], ids=["count", "sum"])
def test_rows_that_are_not_charged_are_found(measures):
    operator = weighted(measures)
    faulty = forced(operator, bounds=replace(operator.bounds, quadratic=64))
    scenario = replace(SMALL, added=lone(*[(0, 1)] * 16))
    assert audit(faulty, scenario, NOISES, COPIES).violates(operator.guarantee.epsilon)


@pytest.mark.parametrize("measures", [COUNT, SUM], ids=["count", "sum"])
def test_weights_that_are_charged_but_not_noised_are_found(measures, monkeypatch):
    """Rows of a large key cost little; were its noise not larger, they would show."""
    from streamveil.dataflow import release

    honest, operator = release.count_weighted, weighted(measures)
    scenario = replace(LARGE, added=lone(*[(0, 4)] * 40))

    def quiet(counter, state, increments, at, share):
        return honest(counter, state, increments, at, share * 0 + 1.0)

    assert not audit(operator, scenario, NOISES, COPIES).violates(operator.guarantee.epsilon)
    monkeypatch.setattr(release, "count_weighted", quiet)
    assert audit(operator, scenario, NOISES, COPIES).violates(operator.guarantee.epsilon)


def test_a_search_fills_all_groups_that_light_rows_leave_room_for():
    """A unit counts once in each of 231 groups of weight 15/51: 20 groups are .09 of its loss."""
    query = (
        sv.memory(EMPTY, event_time="at").protect(unit="unit").group_by("key")
        .agg(n=sv.count_units()).bound(max_squared_rows=20)
        .release(every=sv.rows(10**9), steps=4, budget=sv.Budget(epsilon=2, delta=1e-6),
                 entry_weight=0.3, look_share=0)
    )  # fmt: skip
    operator, found = compile_plan(query.plan), WorstFound()
    for tried in accounts(operator, 5, 60):
        found.add(tried)
    assert found.stands
    assert found.parts["lane 0 (units)"].tightness > 0.5
