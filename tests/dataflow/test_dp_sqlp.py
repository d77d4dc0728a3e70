"""The published system: its trees are Honaker's, its rounds restart, its noise is kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from streamveil.core.accounting import Budget
from streamveil.core.counters.restarting_trees import tree_rounding
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.core.selection.rounds import FINE, RoundSelection
from streamveil.core.sensitivity import Bounds
from streamveil.counters import HonakerCounter
from streamveil.errors import PlanError
from streamveil.plan import Bounding
from tests.dataflow.streams import AGGREGATES, ROWS, batches, bounded, compiled, run

ROOMY = Budget(epsilon=200, delta=0.3)


def published(**changes):
    return compiled(**{
        "preset": "dp-sqlp", "bounding": Bounding(max_rows=4), "budget": ROOMY,
        "aggregates": AGGREGATES[:1] + AGGREGATES[3:], **changes,
    })  # fmt: skip


@settings(max_examples=40)
@given(ROWS)
def test_without_noise_rounds_equal_a_plain_simulation(rows):
    operator = published()
    selection = operator.aggregation.selection
    assert isinstance(selection, RoundSelection)
    releases, _ = run(operator, batches(rows), SilentNoise())
    kept, _ = bounded(operator, rows)
    begun, people, buffer, shown = {}, {}, {}, {}
    for release in releases:
        for u, k, _, _, step, _ in kept:
            if step == release.step:
                people.setdefault(k, set()).add(u)
                buffer[k] = buffer.get(k, 0) + 1
        for k in "abcd":
            index = release.step - begun.get(k, 0)
            if people.get(k) and len(people[k]) > selection.threshold(index):
                shown[k] = shown.get(k, 0) + buffer.pop(k)
                begun[k], people[k] = release.step, set()
        table = release.table
        assert dict(zip(table["k"].to_pylist(), table["n"].to_pylist(), strict=True)) == shown


@settings(max_examples=20)
@given(ROWS, st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_splits_saving_and_replaying_give_the_same_bytes(rows, cuts):
    operator, noise = published(), SeededNoise(3)
    whole, _ = run(operator, batches(rows), noise)
    state, replayed, pieces = operator.init(), operator.init(), []
    for batch in batches(rows, cuts):
        operator.apply(replayed, operator.fold(state, batch, noise))
        if batch.closes_step:
            pieces += operator.release(state, batch.step, noise)
            again = operator.release(replayed, batch.step, noise)
            assert again[-1].table == pieces[-1].table
            state = operator.load({k: v.copy() for k, v in operator.save(state).items()})
    assert [r.table for r in pieces] == [r.table for r in whole]


def test_the_corrected_thresholds_fit_the_budget_and_the_published_ones_do_not():
    budget = Budget(epsilon=6, delta=1e-9)
    rigorous = published(budget=budget)
    as_printed = published(budget=budget, options={"thresholds": "published"})
    assert rigorous.loss.fits(budget)
    assert not as_printed.loss.fits(budget)  # the union over triggers is missing
    assert as_printed.aggregation.selection.threshold(3) < rigorous.aggregation.selection.threshold(
        3
    )


def test_failures_are_bounded_where_noise_is_hardly_larger_than_its_rounding():
    """One node: the exact tail of a rounded Gaussian, which may be above that of its deviation."""
    for sigma in (20, 51.9, 247.2, 1000):
        for beta in (1e-3, 1e-7, 3.3e-7, 1e-12):
            selection = RoundSelection(horizon=1, noise=sigma, bounds=Bounds(max_rows=1), beta=beta)
            needed = np.floor((selection.threshold(1) - 1) * FINE) + 0.5
            assert norm.sf(needed / sigma) <= min(selection.failure, beta)


def test_the_rounding_of_an_estimate_is_bounded_by_its_nodes():
    tree = HonakerCounter(horizon=100, sigma=1)
    for t in (1, 2, 37, 64, 100):
        parts = tree.mix(t).parts
        assert tree_rounding(tree.levels, np.array([t]))[0] == pytest.approx(
            np.abs(parts).sum() / 2
        )


def test_it_refuses_what_it_cannot_do():
    with pytest.raises(PlanError, match="needs epsilon"):
        published(bounding=Bounding(quadratic=5))
    with pytest.raises(PlanError, match="discovers its keys"):
        published(keys=())
    with pytest.raises(PlanError, match="count them again"):  # a unit is new in every round
        published(aggregates=AGGREGATES)
