"""From a plan to its operator."""

import numpy as np
import pytest

import streamveil as sv
from streamveil.engines.compile import compile_plan


@pytest.mark.parametrize("measure", [sv.sum, sv.variance])
@pytest.mark.parametrize("high", [5e-324, 1e-310, 1e-161, 1e-3, 1e150])
def test_no_row_adds_more_than_the_reach_of_its_lane(measure, high):
    query = (
        sv.files("t.parquet").protect("u").agg(v=measure("v", bounds=(0, high))).bound(max_rows=2)
        .release(budget=sv.Budget(epsilon=1, delta=1e-9))
    )  # fmt: skip
    values = np.array([-1e308, 0.0, high / 3, high, 1e308])
    for lane in compile_plan(query.plan).totalling.lanes:
        if lane.kind in ("sum", "square"):
            assert int(np.abs(lane.quanta(values)).astype(np.uint64).max()) <= lane.reach
