"""Structured query classes equal the matrix they stand for."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from benchmarks.papers.halfspaces import Halfspaces
from streamveil.linear import Marginals, Matrix, Ranges, Sums, functions

RNG = np.random.default_rng(7)


def classes():
    shape = (2, 3, 4)
    low = RNG.integers(0, 2, (20, 3))
    high = np.minimum(low + RNG.integers(0, 3, (20, 3)), shape)
    yield Marginals(shape, ((), (1,), (0, 2), (0, 1, 2)))
    yield Marginals.ways((2,) * 6, 3)
    yield Marginals.ways((2,) * 11, 3)  # too large for a matrix: the descent
    yield Ranges.of(shape, np.minimum(low, high), high)
    yield Ranges.prefixes(17)
    normals = np.concatenate([RNG.normal(size=(20, 3)), np.eye(3), -np.eye(3), np.zeros((1, 3))])
    yield Halfspaces.of(shape, normals, np.concatenate([RNG.normal(size=20) * 3, np.arange(7.0)]))
    yield Halfspaces.of((9,), [[1.0], [-2.0]], [4.0, -7.0])
    yield Matrix.of(RNG.random((5, 24)))


@pytest.mark.parametrize("queries", list(classes()), ids=lambda q: type(q).__name__)
def test_all_answers_equal_the_weights_row_by_row(queries):
    histogram = RNG.integers(0, 50, queries.domain)
    rows = np.stack([queries.weights(i) for i in range(queries.size)])
    assert rows.min() >= 0
    assert rows.max() <= 1
    assert_allclose(np.ldexp(queries.exact(histogram), -queries.shift), rows @ histogram)
    assert_allclose(queries.answers(histogram / 3), rows @ (histogram / 3), atol=1e-9)
    whole = np.ldexp(rows, queries.shift)
    assert queries.l1 >= whole.sum(axis=0).max()
    assert queries.l2_squared >= (whole**2).sum(axis=0).max()
    if not isinstance(queries, Halfspaces):
        assert queries.l1 == whole.sum(axis=0).max()
    assert len({queries.label(i) for i in range(queries.size)}) >= queries.size - 15


def test_marginal_cells_are_the_group_by():
    shape = (2, 3, 2)
    points = RNG.integers(0, 12, 400)
    queries = Marginals.ways(shape, 2)
    answers = queries.exact(np.bincount(points, minlength=12))
    values = np.stack(np.unravel_index(points, shape))
    for index in range(queries.size):
        attributes, cell = queries.cell(index)
        wanted = np.ones(len(points), bool)
        for attribute, value in zip(attributes, cell, strict=True):
            wanted &= values[attribute] == value
        assert answers[index] == wanted.sum()


def test_halfspaces_are_what_they_say():
    shape = (5, 7)
    normals, offsets = RNG.normal(size=(30, 2)), RNG.normal(size=30) * 4
    grid = np.array(list(itertools.product(range(5), range(7))))
    queries = Halfspaces.of(shape, normals, offsets)
    for index in range(30):
        assert_array_equal(queries.weights(index), grid @ normals[index] >= offsets[index])


@pytest.mark.parametrize("weights", [[[0.5, 1.5]], [[-0.1, 0]], [[np.nan, 0]], [[np.inf, 0]], []])
def test_weights_outside_the_unit_interval_are_refused(weights):
    with pytest.raises(ValueError, match=r"weights|matrix"):
        Matrix.of(weights)


def test_functions_are_evaluated_and_checked():
    points = np.linspace(0, 1, 5)[:, None]
    queries = functions([lambda x: x[:, 0], lambda x: x[:, 0] > 0.5], points)
    assert_allclose(queries.answers(np.ones(5)), [2.5, 2.0])
    with pytest.raises(ValueError, match="one weight per point"):
        functions([lambda x: 1.0], points)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Ranges.of((4,), [[1]], [[5]]),
        lambda: Ranges.of((4,), [[3]], [[2]]),
        lambda: Halfspaces.of((4,), [[np.nan]], [0.0]),
        lambda: Halfspaces.of((4, 4), [[1.0]], [0.0]),
        lambda: Marginals((2, 2), ((1, 0),)),
        lambda: Marginals((2, 2), ((2,),)),
        lambda: Marginals((0, 2), ((0,),)),
        # made by hand: sensitivities would be wrong
        lambda: Ranges((4,), np.array([[3]]), np.array([[2]])),
        lambda: Halfspaces((4,), np.ones((1, 1)), np.ones(1), np.array([[5]])),
        lambda: Matrix(np.array([[1.0, -1.0]]), 0),
        lambda: Matrix(np.array([[1.0, 3.0]]), 1),
        lambda: Matrix(np.array([[1.0, 0.5]]), 1),
        lambda: Sums(Marginals((4,), ((0,),)), np.eye(4) * 3),
        lambda: Sums(Marginals((2, 2), ((0,), (1,))), np.ones((1, 4))),
    ],
)
def test_impossible_classes_are_refused(make):
    with pytest.raises(ValueError, match=r"."):
        make()
