"""The counter without stored noise and without a known end."""

from __future__ import annotations

import numpy as np
import pytest

from streamveil.core.counters.anytime import root_squared_norm
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.counters import AnytimeHaarCounter
from streamveil.counters.anytime_haar import LEVELS, candidate_times
from streamveil.counters.haar import column_weights, variance_parts


def largest_ratio(tuned: int, times: np.ndarray) -> float:
    errors = AnytimeHaarCounter(sigma=2**30, tuned=tuned).std(times) / 2**30
    return float((errors / root_squared_norm(times)).max())


@pytest.mark.parametrize("tuned", [1000, 2**20])
def test_weights_are_within_a_thousandth_of_a_certified_minimum(tuned):
    """For any distribution p over times, no weights have a ratio below (sum sqrt(part norm))."""
    times, norms = candidate_times(tuned), np.array(column_weights(LEVELS))
    parts = np.array(variance_parts(times, LEVELS)) / root_squared_norm(times) ** 2
    p, bound = np.full(len(times), 1 / len(times)), 0.0
    for k in range(1500):
        mean = parts @ p
        bound = max(bound, float(np.sqrt(mean * norms).sum()))
        ratios = parts.T @ np.sqrt(norms / mean)
        p *= np.exp(4 / (1 + k / 100) * (ratios / ratios.max() - 1))
        p /= p.sum()
    every = np.arange(1, min(tuned, 2**17) + 1)  # not only the times that were tested
    assert bound <= largest_ratio(tuned, times) <= bound * 1.001
    assert largest_ratio(tuned, every) <= bound * 1.001
    if tuned == 2**20:
        assert 1.575 < bound < 1.58


def test_the_far_end_is_read_as_well_as_the_start():
    """Paths of 40 levels: exact sums without noise, and noise of the stated size with it."""
    counter, totals = AnytimeHaarCounter(sigma=50, tuned=1000), np.zeros(20_000, np.int64)
    for t in (1, 3 * 10**11 + 1, 2**40):
        assert not counter._read(totals, t, SilentNoise().at("x")).any()
        noise = counter._read(totals, t, SeededNoise(7).at("x"))
        stated = float(counter.std(np.array([t]))[0])
        # a sample variance of 20,000 Gaussians is off by 1 % per standard deviation
        assert noise.var() == pytest.approx(stated**2, rel=0.08)


def test_tuning_is_checked():
    with pytest.raises(ValueError, match="tuned"):
        AnytimeHaarCounter(sigma=5, tuned=1)
