"""Every counter that a query may name runs a query, or is refused with the reason."""

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.batch import Batch
from streamveil.engines.compile import compile_plan
from streamveil.errors import PlanError
from streamveil.mechanisms.counters import COUNTERS
from streamveil.privacy.noise import SilentNoise

ROWS = pa.table({"u": [1, 2, 3], "k": ["a", "a", "b"]})


@pytest.mark.parametrize("kind", COUNTERS)
def test_a_named_counter_runs_or_is_refused(kind):
    asked = (
        sv.memory(ROWS).protect(unit="u").group_by("k", keys=sv.public(["a", "b"]))
        .agg(n=sv.count()).bound(max_rows=4)
        .release(every=sv.rows(10), steps=4, budget=sv.Budget(epsilon=1, delta=1e-6), counter=kind)
    )  # fmt: skip
    if COUNTERS[kind].keyed:
        with pytest.raises(PlanError, match="use counter = 'auto'"):
            compile_plan(asked.plan)
        return
    operator, noise = compile_plan(asked.plan), SilentNoise()
    assert operator.guarantee.epsilon(1e-6) <= 1
    state = operator.init()
    for step in range(1, 5):
        operator.fold(state, Batch(ROWS, step, True, "{}"), noise)
        [release] = operator.release(state, step, noise)
        wanted = {"a": min(2 * step, 8), "b": min(step, 4)}
        assert dict(zip(*(release.table[c].to_pylist() for c in ("k", "n")), strict=True)) == wanted
