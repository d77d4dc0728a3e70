"""Skipping empty steps leaves the law of everything that follows as it was."""

from __future__ import annotations

import numpy as np
import pytest

from streamveil.core.noise import Place, SeededNoise, SilentNoise
from streamveil.counters import skip
from streamveil.errors import HorizonError
from tests.counters.examples import NAMES, examples
from tests.counters.oracle import factors
from tests.counters.test_conformance import spread
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
    counter = examples(4)["k-ary-tree"]
    with pytest.raises(HorizonError):
        skip(counter, counter.init(1), 5, Place(SilentNoise(), "x"))
    with pytest.raises(ValueError, match="steps"):
        skip(counter, counter.init(1), -1, Place(SilentNoise(), "x"))
