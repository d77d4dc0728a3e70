"""Weights moved in place equal the formula, whatever kind of query moves them."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from benchmarks.papers.halfspaces import Halfspaces
from streamveil.linear import Marginals, Matrix, Ranges, Sums
from streamveil.linear.weights import Weights

RNG = np.random.default_rng(1)
CORNERS = np.sort(RNG.integers(0, 5, (20, 2, 2)), axis=1)
CLASSES = [
    Marginals((2, 3, 4), ((), (0,), (1, 2), (0, 1, 2))),
    Ranges.of((4, 4), CORNERS[:, 0], CORNERS[:, 1]),
    Halfspaces.of((4, 4), RNG.normal(size=(6, 2)), RNG.normal(size=6)),
    Matrix.of(RNG.random((5, 12))),
    Matrix.of(RNG.random((5, 12)) < 0.4),
    Sums.of((3, 4), [((0,), RNG.random(12) < 0.5)]),
]


@pytest.mark.parametrize("queries", CLASSES, ids=lambda q: type(q).__name__)
def test_steps_are_those_of_the_formula(queries):
    weights = Weights.uniform(queries)
    plain = np.full(queries.domain, 1 / queries.domain)
    for turn in range(60):
        query, value = int(RNG.integers(queries.size)), RNG.random()
        direction = queries.weights(query)
        if turn % 2:
            weights.move(query, value, 4.0)
            power = 4.0 * (value - direction @ plain)
        else:
            power = float(RNG.normal())
            weights.move_by(query, power)
        plain = plain * np.exp(power * direction)
        plain /= plain.sum()
        assert_allclose(weights.distribution, plain, rtol=1e-9, atol=1e-300)
        assert_allclose(weights.answers(), queries.answers(plain), rtol=1e-9, atol=1e-12)


def test_long_fits_neither_overflow_nor_lose_their_total():
    queries = Marginals((2, 2), ((0,),))
    weights = Weights.uniform(queries)
    for _ in range(3000):
        weights.move_by(0, 3.0)
        weights.move_by(1, 3.0)
    assert_allclose(weights.answers(), [0.5, 0.5], rtol=1e-6)


def test_a_copy_leaves_its_origin_alone():
    queries = Marginals((2, 2), ((0,),))
    origin = np.full(4, 0.25)
    Weights.of(queries, origin).move(0, 1.0, 4.0)
    assert (origin == 0.25).all()
