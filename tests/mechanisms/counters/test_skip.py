"""Skipping empty steps leaves the law of everything that follows as it was."""

from __future__ import annotations

import numpy as np
import pytest

from streamveil.errors import HorizonError
from streamveil.mechanisms.counters import best_blt, skip
from streamveil.mechanisms.counters.skip import blt_jump
from streamveil.privacy.noise import Place, SeededNoise, SilentNoise
from tests.mechanisms.counters.examples import NAMES, examples
from tests.mechanisms.counters.oracle import factors
from tests.mechanisms.counters.test_conformance import spread
from tests.statistics import DETECTABLE, SAMPLES

HORIZON = 21


def run(counter, plan, increments, noise, keys):
    """`plan` alternates numbers of steps taken and skipped."""
    state, released, times, place = counter.init(keys), [], [], Place(noise, "c")
    for taken, skipped in plan:
        for _ in range(taken):
            t = state.t + 1
            estimates, state = counter.step(state, increments[t - 1], place)
            released.append(estimates)
            times.append(t)
        state = skip(counter, state, skipped, place)
    return np.array(released), np.array(times)


PLAN = [(2, 3), (1, 0), (1, 6), (3, 1), (4, 0)]


@pytest.mark.parametrize("name", NAMES)
def test_silent_skipping_keeps_the_total(name):
    counter = examples(HORIZON)[name]
    released, times = run(counter, PLAN, np.full(HORIZON, 3), SilentNoise(), 2)
    np.testing.assert_array_equal(released[:, 0], 3 * np.arange(1, len(times) + 1))


@pytest.mark.parametrize("name", NAMES)
def test_the_joint_law_after_skips_is_that_of_taking_every_step(name):
    counter = examples(HORIZON)[name]
    errors, times = run(counter, PLAN, np.zeros(HORIZON, int), SeededNoise(6), SAMPLES)
    decoder = factors(counter, HORIZON)[0][times - 1]
    expected = decoder @ decoder.T * spread(counter) ** 2
    found = errors @ errors.T / SAMPLES
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    tolerance = 8 * np.sqrt((5 if counter.loss().pure else 2) / SAMPLES) + 0.004
    assert (np.abs(found - expected) / scale).max() < tolerance
    assert (np.abs(found - DETECTABLE**2 * expected) / scale).max() > tolerance


def test_no_skipping_beyond_the_horizon():
    counter = examples(4)["haar"]
    with pytest.raises(HorizonError):
        skip(counter, counter.init(1), 5, Place(SilentNoise(), "x"))
    with pytest.raises(ValueError, match="steps"):
        skip(counter, counter.init(1), -1, Place(SilentNoise(), "x"))


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 7, 100, 12345])
@pytest.mark.parametrize("horizon", [100, 2**20])
def test_a_blt_jump_has_the_covariance_of_its_steps(horizon, steps):
    blt = best_blt(horizon, 4)
    decay, lower = blt_jump(blt, steps)
    theta = 1 - np.concatenate([[0.0], blt.q])
    powers = theta[:, None] ** np.arange(steps)
    np.testing.assert_allclose(lower @ lower.T, powers @ powers.T, rtol=1e-9)
    np.testing.assert_allclose(decay, theta**steps, rtol=1e-9)
    beta = blt.beta()
    # the total's own variance, where cancellation would show
    np.testing.assert_allclose(
        np.sum((beta @ lower) ** 2), np.sum(blt.decoder(steps) ** 2), rtol=1e-10
    )
    assert np.all(lower[:, steps:] == 0)


def test_two_jumps_are_one():
    blt = best_blt(1000, 3)
    (first, one), (second, two), (both, whole) = (blt_jump(blt, k) for k in (5, 9, 14))
    np.testing.assert_allclose(first * second, both, rtol=1e-12)
    moved = second[:, None] * one
    np.testing.assert_allclose(moved @ moved.T + two @ two.T, whole @ whole.T, rtol=1e-9)
