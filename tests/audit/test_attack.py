"""The attack stays under a true claim and refutes claims that are 10 % or more too small."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from tests.audit.attack import EventCounts, clopper_pearson, distinguish

ALPHA = 1e-9
TRIALS = 100_000


def gaussian_curve(mu):
    def epsilon(delta):
        def gap(e):
            return norm.cdf(mu / 2 - e / mu) - np.exp(e) * norm.cdf(-mu / 2 - e / mu) - delta

        return 0.0 if gap(0) <= 0 else brentq(gap, 0, 500)

    return epsilon


def attack(mu, seed=1, features=4):
    rng = np.random.default_rng(seed)
    shift = np.full(features, mu / np.sqrt(features))
    a = rng.normal(size=(TRIALS, features)) + shift
    return distinguish(a, rng.normal(size=(TRIALS, features)), ALPHA)


@pytest.mark.parametrize(("mu", "detectable"), [(0.25, 1.4), (1.0, 1.2), (2.0, 1.2)])
def test_a_true_claim_stands_and_a_small_one_falls(mu, detectable):
    claim = gaussian_curve(mu)
    assert not attack(mu).violates(claim)
    assert attack(detectable * mu).violates(claim)
    assert attack(2 * mu).violates(claim)  # noise halved


def test_the_presence_of_a_number_is_an_event():
    rng = np.random.default_rng(2)
    a = np.where(rng.random((TRIALS, 1)) < 0.02, 5.0, np.nan)
    b = np.full((TRIALS, 1), np.nan)
    assert distinguish(a, b, ALPHA).epsilon(1e-3) > 3
    assert distinguish(b, b, ALPHA).epsilon(1e-6) == 0


def test_both_directions_and_complements_count():
    for finding in (
        EventCounts("x", 900, 100, 1000, ALPHA),
        EventCounts("x", 100, 900, 1000, ALPHA),
    ):
        assert finding.epsilon(0.0) > 1
    assert EventCounts("x", 500, 500, 1000, ALPHA).epsilon(0.0) == 0


def test_the_interval_covers():
    rng = np.random.default_rng(3)
    low, high = np.transpose(
        [clopper_pearson(int(k), 50, 0.05) for k in rng.binomial(50, 0.3, 4000)]
    )
    missed = ((low > 0.3) | (high < 0.3)).mean()
    assert missed < 0.05 + 6 * np.sqrt(0.05 * 0.95 / 4000)
