"""The counter without stored noise: exact rounding, random access, one address."""

from __future__ import annotations

from time import process_time

import mpmath
import numpy as np
import pytest

from benchmarks.papers import haar as module
from benchmarks.papers.haar import HaarCounter, gaussian_between, haar_path, node_words, settle
from streamveil.core.noise import Place, SeededNoise, samplers
from streamveil.counters import KaryTreeCounter

KEYS = 40


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("sigma", [0.3, 20.0, 1e6])
def test_float64_and_multiprecision_agree(sigma, named, monkeypatch):
    counter, t = HaarCounter(horizon=100, sigma=sigma), 77
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 2**63, (KEYS, 2)).astype(np.uint64) if named else None
    draws, totals = SeededNoise(4).at("x"), np.zeros(KEYS, np.int64)
    fast = counter._read(totals, t, draws, ids)
    compiled = module._path_sum

    def doubtful(*args):
        compiled(*args)
        assert args[-1].all()
        args[-1][:] = False
        args[-2][:] = 10**9

    monkeypatch.setattr(module, "_path_sum", doubtful)
    np.testing.assert_array_equal(counter._read(totals, t, draws, ids), fast)
    assert np.any(fast != 0)


def test_more_bits_only_narrow_a_gaussian():
    draws = SeededNoise(2).at("y")
    for word in (5, 2**63 + 9, 2**62, 2**64 - 1):
        with samplers.LOCK, samplers.context().workprec(400):
            wide = gaussian_between(word, draws.words(0))
            narrow = gaussian_between(word, draws.words(2))
            assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]
            assert narrow[1] - narrow[0] < mpmath.mpf(2) ** -100


def test_a_draw_on_a_rounding_boundary_asks_for_more_bits():
    """A tail of zero bits is a Gaussian of unknown size: only further words decide it."""
    asked = []

    def tail(n):
        asked.append(n)
        return np.full(n, 2**63, np.uint64)

    path = haar_path(4, 2)
    found = settle(path, ((1.0, 1.0, 1.0), 1.0), np.zeros(len(path), np.uint64), [tail] * len(path))
    assert asked
    assert found > 9


@pytest.mark.parametrize("kind", [HaarCounter, KaryTreeCounter])
def test_any_step_can_be_read_without_the_others(kind):
    counter, place = kind(horizon=50, sigma=5), Place(SeededNoise(1), "z")
    xs = np.random.default_rng(0).integers(0, 9, (50, 3))
    state, released = counter.init(3), []
    for increments in xs:
        estimates, state = counter.step(state, increments, place)
        released.append(estimates)
    totals, draws = np.cumsum(xs, axis=0), SeededNoise(1).at("z")
    for t in (50, 7, 23):
        np.testing.assert_array_equal(counter._read(totals[t - 1], t, draws), released[t - 1])


@pytest.mark.parametrize("kind", [HaarCounter, KaryTreeCounter])
def test_a_second_address_is_refused(kind):
    """Fresh noise about one total at every step would average away."""
    counter, place = kind(horizon=50, sigma=5), Place(SeededNoise(1), "z")
    _, state = counter.step(counter.init(2), np.ones(2, np.int64), place)
    with pytest.raises(ValueError, match="two places"):
        counter.step(state, np.ones(2, np.int64), Place(SeededNoise(1), "another"))
    counter.step(state.grow(1), np.ones(3, np.int64), place)


def test_nodes_have_words_of_their_own():
    draws = SeededNoise(1).at("z")
    words = {int(node_words(draws, None, 1, level, i)[0]) for level in range(4) for i in range(4)}
    assert len(words) == 16


def test_weights_are_a_minimum():
    """No small change of the weights lowers the largest variance."""
    counter, rng = HaarCounter(horizon=100, sigma=2**20), np.random.default_rng(3)
    parts = module.variance_parts(np.arange(1, 101), counter.levels)
    norms = np.array(module.column_weights(counter.levels))

    def largest(weights):
        weights = weights / (weights @ norms)
        return max(sum(part / w for part, w in zip(parts, weights, strict=True)))

    least, weights = largest(np.array(counter.weights)), np.array(counter.weights)
    for _ in range(300):
        assert largest(weights * np.exp(rng.normal(0, 0.02, len(weights)))) >= least * (1 - 1e-6)


@pytest.mark.parametrize("horizon", [1, 2, 3, 10, 365, 10**4, 2**20])
@pytest.mark.parametrize("aim", ["max", "mean"])
def test_weights_are_found_for_any_horizon_and_kept(horizon, aim):
    start = process_time()
    counter = HaarCounter(horizon=horizon, sigma=2.0**20, aim=aim)
    found = counter.weights
    assert process_time() - start < 10
    assert min(found) > 0
    assert 1 <= counter.sensitivity < 1 + 1e-9
    t = np.unique(np.geomspace(1, horizon, 500).astype(int))
    error = (counter.std(t) / 2**20).max()
    assert error < max(1.0, np.log(horizon) / np.pi + 0.701) * 1.55  # of the lower bound
    assert HaarCounter(horizon=horizon, sigma=3, aim=aim).weights is found


def test_limits_are_named():
    with pytest.raises(ValueError, match="horizon must be at most"):
        HaarCounter(horizon=2**25, sigma=1)
    with pytest.raises(ValueError, match="k must be odd"):
        KaryTreeCounter(horizon=9, sigma=1, k=4)
