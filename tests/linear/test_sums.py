"""Sums of cells of marginals: the same numbers as their matrix, and noise as declared."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.errors import PlanError
from streamveil.linear import (
    Additive,
    Marginals,
    Matrix,
    Place,
    Points,
    Queries,
    Residuals,
    Share,
    Sums,
    Through,
    best_strategy,
)
from streamveil.linear.strategies import Direct
from streamveil.linear.sums import varying

SHAPE = (2, 3, 4)


def wanted(seed):
    rng = np.random.default_rng(seed)
    grid = np.ones(SHAPE, bool)
    young = grid & (np.arange(4) < 2)
    odd = grid & (np.arange(3) % 2 == 1)[:, None]
    groups = [(), (0,), (0, 2), (1, 2)]
    parts = [(groups[int(rng.integers(4))], p.reshape(-1)) for p in (grid, young, odd, odd & young)]
    return [*parts, ((1,), rng.random(24) < 0.5)]


@given(st.integers(0, 10**6))
def test_they_are_their_matrix(seed):
    parts = wanted(seed)
    sums = Sums.of(SHAPE, parts)
    rows = []
    for group, points in parts:
        cells = Marginals(SHAPE, (group,))
        rows += [cells.weights(cell) * points for cell in range(cells.size)]
    matrix = Matrix.of(rows)
    assert isinstance(sums, Queries)
    histogram = np.random.default_rng(seed).integers(0, 50, 24)
    assert_array_equal(sums.exact(histogram), matrix.exact(histogram))
    assert_allclose(sums.answers(histogram / 3), matrix.answers(histogram / 3))
    assert_array_equal(np.stack([sums.weights(i) for i in range(sums.size)]), np.stack(rows))
    assert (sums.l1, sums.l2_squared) == (matrix.l1, matrix.l2_squared)


def test_only_the_attributes_a_condition_needs_are_measured():
    sums = Sums.of(SHAPE, [((0,), np.ones(24, bool)), ((0,), np.arange(24) % 4 < 2)])
    assert sums.cells.sets == ((0,), (0, 2))
    assert varying(np.zeros(SHAPE, bool)) == ()


@pytest.mark.parametrize("share", [Share("zcdp", 1), Share("pure", 2)])
def test_the_declared_deviation_is_that_of_the_noise(share):
    sums = Sums.of(SHAPE, wanted(3))
    strategy = Through(sums)
    histogram = np.arange(24)
    silent = Additive(strategy).release(histogram, share, Place(SilentNoise(), "t"))
    assert_allclose(silent.values, sums.exact(histogram), atol=1e-9)
    draws = np.stack([
        Additive(strategy).release(histogram, share, Place(SeededNoise(seed), "t")).values
        for seed in range(400)
    ])  # fmt: skip
    said = strategy.units(share.kind) * share.deviation(1, 1)
    ratio = draws.std(axis=0) / said
    assert ratio.max() < 1.25
    assert ratio.min() > 0.8
    assert abs(ratio.mean() - 1) < 0.05
    assert strategy.unit(share.kind) == strategy.units(share.kind).max()


def test_one_record_moves_the_measured_rows_by_at_most_one():
    strategy = Through(Sums.of(SHAPE, wanted(1)))
    for kind, norm in (("pure", 1), ("zcdp", 2)):
        for point in range(24):
            one = np.zeros(24, np.int64)
            one[point] = 1
            moved = strategy.measure(one) / strategy.scales(kind)
            assert np.linalg.norm(moved, norm) <= 1


@pytest.mark.parametrize("kind", ["pure", "zcdp"])
def test_each_answer_has_its_own_deviation_in_every_strategy(kind):
    cells = Marginals(SHAPE, ((), (0,), (0, 1, 2)))
    for strategy in (Direct(cells), Points(cells), Residuals(cells)):
        assert strategy.units(kind).max() == strategy.unit(kind)
        eye = np.eye(strategy.rows) * strategy.scales(kind)
        recovered = np.stack([strategy.recover(row) for row in eye], axis=1)
        assert_allclose(np.sqrt((recovered**2).sum(axis=1)), strategy.units(kind))


def test_the_best_strategy_measures_interactions_when_that_is_better():
    shape = (2,) * 8
    pairs = [((a, b), np.ones(256, bool)) for a in range(8) for b in range(a)]
    low = (np.arange(256) % 2 == 0) & (np.arange(256) // 2 % 2 == 0)
    sums = Sums.of(shape, [(tuple(sorted(group)), points) for group, points in pairs] + [((), low)])
    assert isinstance(best_strategy(sums, "zcdp"), Through)


def test_a_column_of_very_many_values_needs_no_matrix_of_them():
    """Contrasts of its values took memory with the square of their number: 8 TiB here."""
    assert isinstance(best_strategy(Marginals((2**20,), ((0,), ())), "gdp"), Direct)


def test_a_matrix_beyond_memory_is_refused_before_it_is_made():
    points = np.arange(100_000) // 100 < 3  # a condition that needs both attributes
    with pytest.raises(PlanError, match="must be at most"):
        Sums.of((1000, 100), [((0, 1), np.ones(100_000, bool)), ((0, 1), points)])
