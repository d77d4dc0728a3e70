"""Every counter that a query may name runs a query, or is refused with the reason."""

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import SilentNoise
from streamveil.core.release import WeightRule, blt_of, weighted_loss
from streamveil.counters import COUNTERS
from streamveil.errors import PlanError

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


@pytest.mark.parametrize("kind", [kind for kind, made in COUNTERS.items() if not made.keyed])
def test_rows_are_charged_less_only_where_noise_follows_the_weights(kind):
    one = pa.table({"u": [1] * 300, "k": ["a"] * 300})  # all rows of one unit in one group
    asked = (
        sv.memory(one).protect(unit="u").group_by("k", keys=sv.public(["a", "b"]))
        .agg(n=sv.count()).bound(max_squared_rows=16)
        .release(every=sv.rows(300), steps=4, budget=sv.Budget(epsilon=1, delta=1e-6),
                 counter=kind, weight_reference=100)
    )  # fmt: skip
    operator, noise = compile_plan(asked.plan), SilentNoise()
    state = operator.init()
    operator.fold(state, Batch(one, 1, True, "{}"), noise)
    [release] = operator.release(state, 1, noise)
    weighted = blt_of(operator.aggregation.counters[0]) is not None
    assert weighted == ("noise_weight" in release.table.column_names)
    weight = release.table["noise_weight"].to_pylist()[0] if weighted else 1
    moved = release.table["n"].to_pylist()[0]
    assert 3.5 < moved * weight <= 4


def test_a_weighted_loss_without_a_blt_is_refused():
    rule = WeightRule(scale=51, entry=26, reference=100)
    with pytest.raises(ValueError, match="need a BLT"):
        weighted_loss(COUNTERS["honaker"](horizon=4, sigma=1), 4, 1, rule)
