"""Any query can be audited at reduced size: what decides its privacy stays."""

import pytest

import streamveil as sv
from streamveil.audit.reduced import reduced
from streamveil.compiler.group_by import compile_plan
from streamveil.errors import PlanError

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


def test_sketches_are_refused():
    top = sv.memory(ROWS).protect("user").agg(top=sv.heavy_hitters("page", k=2)).bound(max_rows=2)
    plan = top.release(every=sv.rows(10), steps=3, budget=sv.Budget(epsilon=2, delta=1e-6)).plan
    with pytest.raises(PlanError, match="group-by queries"):
        reduced(plan, 3)
