"""Counters in cells: their matrices, norms and published errors."""

import numpy as np
import pytest

from streamveil.core.counters.cells import FITS, GRID, CellCounter
from streamveil.sketches.cell_noise import blt_row_norms, row_norm


def dense(name, n):
    """B and C of n pushes, by definition."""
    if name.startswith("tree"):
        rows = []
        decode = np.zeros((n, n))
        for k in range(1, n + 1):
            size = k & -k
            rows.append([1.0 if k - size < i <= k else 0.0 for i in range(1, n + 1)])
            end = k
            while end:
                decode[k - 1, end - 1] = 1
                end &= end - 1
        return decode, np.array(rows)
    omega, theta = CellCounter(name, n).coefficients
    column = np.array([1.0] + [(omega * theta ** (k - 1)).sum() for k in range(1, n)])
    encode = np.array([[column[i - j] if i >= j else 0 for j in range(n)] for i in range(n)])
    return np.tril(np.ones((n, n))) @ np.linalg.inv(encode), encode


NAMES = ["blt-1", "blt-2", "tree", "tree-prf"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 7, 64, 100])
def test_norms_are_those_of_the_dense_matrices(name, n):
    decode, encode = dense(name, n)
    counter = CellCounter(name, n)
    assert np.allclose(decode @ encode, np.tril(np.ones((n, n))))
    largest = np.sqrt((encode**2).sum(axis=0)).max()
    assert largest <= counter.column_norm <= largest * (1.5 if "tree" in name else 1 + 1e-9)
    assert np.allclose(row_norm(counter, np.arange(1, n + 1)), np.sqrt((decode**2).sum(axis=1)))


def test_tree_of_seven_pushes_publishes_the_three_expected_nodes():
    decode, encode = dense("tree", 7)
    nodes = [np.flatnonzero(encode[k]) + 1 for k in np.flatnonzero(decode[6])]
    assert sorted(node.tolist() for node in nodes) == [[1, 2, 3, 4], [5, 6], [7]]


def test_no_leaf_lies_under_more_nodes_than_claimed():
    for n in range(1, 1025):
        covered = np.zeros(n + 1, int)
        for k in range(1, n + 1):
            covered[k - (k & -k) + 1 : k + 1] += 1
        assert covered.max() <= CellCounter("tree", n).levels == n.bit_length()


@pytest.mark.parametrize("name", ["blt-1", "blt-2"])
def test_an_unbounded_norm_is_above_every_bounded_one_of_the_same_fit(name):
    unbounded = CellCounter(name, None)
    omega, theta = unbounded.coefficients
    column = np.array([1.0] + [(omega * theta ** (k - 1)).sum() for k in range(1, 20_000)])
    norms = np.sqrt(np.cumsum(column**2))
    assert (norms <= unbounded.column_norm).all()
    assert norms[-1] > unbounded.column_norm * (1 - 1e-6)


def test_fits_are_near_the_best_and_on_the_grid():
    # the square root of the prefix-sum matrix (Henzinger et al. 2023) is the best Toeplitz encoder
    for n, best in ((128, 2.6101), (1024, 3.2726)):
        for buffers, slack in ((1, 1.19), (2, 1.02)):
            counter = CellCounter(f"blt-{buffers}", n)
            error = counter.column_norm * blt_row_norms(counter.name, n, n)[n]
            assert best <= error <= slack * best
    for n, fits in FITS.items():
        for omega, theta in fits:
            assert 0 < sum(omega) < GRID
            assert all(0 < t < GRID for t in theta), n


def test_unbounded_tree_has_epochs():
    counter = CellCounter("tree", None)
    assert counter.column_norm == 1.0
    # pushes 1 | 2 3 | 4 5 6 7: finished epochs, then the open nodes, each with its own scale
    assert np.allclose(row_norm(counter, [1, 2, 3, 4, 5, 6, 7]) ** 2, [1, 3, 3, 6, 6, 9, 6])


def test_rounding_adds_little_and_grows_with_the_unit():
    counter = CellCounter("blt-1", 128)
    assert counter.rounding_norm(2.0**-21) < 1e-4 * counter.column_norm
    assert counter.rounding_norm(2.0**-10) > counter.rounding_norm(2.0**-21)


@pytest.mark.parametrize("bad", ["trees", ""])
def test_unknown_counters_are_refused(bad):
    with pytest.raises(ValueError, match="unknown counter"):
        CellCounter(bad, 10)


def test_pushes_are_checked():
    with pytest.raises(ValueError, match="pushes"):
        CellCounter("tree", 0)
