"""Bounds for people who take part several times, against all patterns of small horizons."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise, product

import numpy as np
import pytest

from streamveil.core.accounting import Budget
from streamveil.counters import AnytimeBltCounter, BltCounter, Participation, fit, moved_by
from streamveil.counters.participation import best_allocation, squared_norms
from tests.counters.examples import NAMES, examples
from tests.counters.oracle import factors

HORIZON = 12


def worst_of_one_key(encoder: np.ndarray, rows: int, gap: int, *, one_norm: bool) -> float:
    """Largest norm of a signed sum of `rows` columns at least `gap` apart."""
    worst = 0.0
    for steps in combinations_with_replacement(range(encoder.shape[1]), rows):
        if all(b - a >= gap for a, b in pairwise(steps)):
            for signs in product([1, -1], repeat=rows - 1):
                move = encoder[:, list(steps)] @ np.array([1, *signs])
                worst = max(worst, np.abs(move).sum() if one_norm else np.linalg.norm(move))
    return worst


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("rows", "gap"), [(1, 0), (2, 0), (2, 3), (3, 4), (3, 1), (4, 3)])
def test_no_pattern_moves_one_key_further(name, rows, gap):
    counter = examples(HORIZON)[name]
    _, encoder = factors(counter, HORIZON)
    pure = bool(counter.loss().pure)
    exact = worst_of_one_key(encoder, rows, gap, one_norm=pure)
    bound = counter.sensitivity * moved_by(counter, Participation(rows=rows, per_key=rows, gap=gap))
    assert exact <= bound
    if rows == 1 and counter.needs_horizon:
        assert bound <= exact * (1 + 1e-9)


@pytest.mark.parametrize("name", ["blt d=1 plain"])
@pytest.mark.parametrize(("rows", "gap"), [(2, 3), (3, 4), (4, 3), (3, 1)])
def test_the_bound_is_attained_without_column_scales(name, rows, gap):
    counter = examples(HORIZON)[name]
    _, encoder = factors(counter, HORIZON)
    regular = encoder[:, ::gap][:, :rows].sum(axis=1)
    bound = counter.sensitivity * moved_by(counter, Participation(rows=rows, per_key=rows, gap=gap))
    assert np.linalg.norm(regular) == pytest.approx(bound, rel=1e-9)


def test_the_bound_with_column_scales_is_nearly_attained():
    counter = examples(HORIZON)["blt"]
    _, encoder = factors(counter, HORIZON)
    exact = worst_of_one_key(encoder, 3, 4, one_norm=False)
    bound = counter.sensitivity * moved_by(counter, Participation(rows=3, per_key=3, gap=4))
    assert exact <= bound <= 1.02 * exact


def test_a_stream_without_an_end_is_bounded_hardly_worse_than_a_long_one():
    apart = Participation(rows=8, per_key=8, gap=100)
    endless, known = AnytimeBltCounter(sigma=1, tuned=1000), BltCounter(horizon=10**6, sigma=1)
    moved = endless.sensitivity * moved_by(endless, apart)
    assert moved < 0.5 * 8 * endless.sensitivity, "far from all rows in one step"
    assert moved < 1.6 * known.sensitivity * moved_by(known, apart)


def test_rows_are_spread_over_keys_in_the_worst_way():
    rng = np.random.default_rng(0)
    for most, rows in product(range(1, 5), range(1, 9)):
        norms = np.concatenate([[0.0], np.sort(rng.uniform(1, 9, most))])
        every = [
            sum(norms[k] for k in ks)
            for ks in combinations_with_replacement(range(most + 1), rows)
            if sum(ks) <= rows
        ]
        assert best_allocation(norms, rows) == pytest.approx(max(every))
    wide = np.arange(11.0) ** 2
    assert best_allocation(wide, 10**7) == pytest.approx(10 * 10**7)  # the linear bound


def test_uneven_shares_are_cheaper_than_the_usual_bound():
    counter = BltCounter(horizon=100, sigma=1)
    usual = np.sqrt(7 * 3)
    assert moved_by(counter, Participation(rows=7, per_key=3)) == pytest.approx(np.sqrt(9 + 9 + 1))
    assert moved_by(counter, Participation(rows=7, per_key=3)) < usual


def test_a_gap_leaves_more_budget():
    counter = BltCounter(horizon=1000, sigma=1)
    daily = Participation(rows=10, per_key=10, gap=96)
    assert squared_norms(counter, 10, 96)[10] < 50
    apart = fit(counter, Budget(rho=0.1), moved_by(counter, daily))
    together = fit(counter, Budget(rho=0.1), 10)
    assert apart.sigma < 0.7 * together.sigma


def test_a_gap_limits_how_often_one_fits_in():
    counter = BltCounter(horizon=20, sigma=1)
    few = moved_by(counter, Participation(rows=50, per_key=50, gap=10))
    assert few <= np.sqrt(25 * 4) * (1 + 1e-9)  # two per key, 25 keys


def test_bad_numbers_are_named():
    with pytest.raises(ValueError, match="per_key"):
        Participation(rows=2, per_key=3)
    with pytest.raises(ValueError, match="gap"):
        Participation(rows=2, per_key=2, gap=-1)
