"""Gaussian thresholds: each trigger uses its share of beta, and the shares are not more than it."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from streamveil.core.selection.gaussian import LEAST_NOISE, GaussianThresholds, reaches
from streamveil.counters import AnytimeBltCounter, BltCounter, HonakerCounter

SIGMA = 2.0**20  # quanta so fine that rounding does not show
COUNTERS = {
    "one": BltCounter(horizon=1, sigma=SIGMA),
    "two": BltCounter(horizon=2, sigma=SIGMA),
    "blt": BltCounter(horizon=200, sigma=SIGMA),
    "tree": HonakerCounter(horizon=200, sigma=SIGMA),
    "anytime": AnytimeBltCounter(sigma=SIGMA, tuned=200),
}


def chances(test: GaussianThresholds, triggers: np.ndarray, own: int) -> np.ndarray:
    """That a key of `own` units exceeds the threshold of each trigger, rounding aside."""
    limits = np.array([test.threshold(int(t)) for t in triggers])
    return stats.norm.sf((limits - own) * test.quanta / test.counter.std(triggers))


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("beta", [1e-1, 1e-4, 1e-12])
def test_every_trigger_uses_its_share_and_all_of_them_beta(name, beta):
    test = GaussianThresholds(counter=COUNTERS[name], beta=beta, quanta=1024)
    triggers = np.arange(1, min(COUNTERS[name].horizon, 4000) + 1)
    shares = np.array([test.share(int(t)) for t in triggers])
    found = chances(test, triggers[:400], own=1)
    assert np.all(found <= shares[:400])
    assert np.all(found >= 0.99 * shares[:400])
    assert 0.999 * beta <= shares.sum() <= beta * (1 + 1e-12)
    assert chances(test, triggers, own=2).sum() > beta  # planted: the own unit forgotten
    if len(triggers) > 2:  # planted: no union over the triggers
        alone = 1 + test.counter.std(triggers) / 1024 * stats.norm.isf(beta)
        forgot = stats.norm.sf((alone - 1) * 1024 / test.counter.std(triggers))
        assert forgot.sum() > 50 * beta


def test_the_last_trigger_is_favoured():
    """What the uneven shares are for: fewer units are needed there, hardly more before."""
    for horizon, gain in ((100, 0.08), (1000, 0.10), (10_000, 0.11)):
        counter = BltCounter(horizon=horizon, sigma=5 * 1024)
        uneven = GaussianThresholds(counter=counter, beta=1e-9, quanta=1024)
        even = GaussianThresholds(
            counter=counter, beta=1e-9, quanta=1024, last=Fraction(1, horizon)
        )
        assert uneven.threshold(horizon) < (1 - gain) * even.threshold(horizon)
        for t in (1, horizon // 2, horizon - 1):
            assert even.threshold(t) < uneven.threshold(t) < 1.02 * even.threshold(t)


def test_the_floor_counts_in_full_and_rounding_leaves_room():
    counter = BltCounter(horizon=20, sigma=3)  # coarse quanta: rounding errors matter
    low, high = (GaussianThresholds(counter=counter, beta=1e-6, floor=f) for f in (1, 8))
    assert high.threshold(7) - low.threshold(7) == pytest.approx(7)
    fine = GaussianThresholds(
        counter=BltCounter(horizon=20, sigma=3 * 2**20), beta=1e-6, quanta=2**20
    )
    assert low.threshold(7) > 1.05 * fine.threshold(7)


def test_only_the_sure_bound_holds_where_rounding_has_a_mean():
    least = LEAST_NOISE * BltCounter(horizon=20, sigma=1).sensitivity
    for sigma, finite in ((least, True), (0.99 * least, False)):
        counter = BltCounter(horizon=20, sigma=sigma)
        assert (GaussianThresholds(counter=counter, beta=1e-6).threshold(7) < np.inf) == finite
        none, four, many = (float(reaches(counter, sigma, 1e-6, steps)) for steps in (0, 4, 400))
        assert four - none == pytest.approx(counter.sensitivity / sigma)
        sure = many - none == pytest.approx(10 * (four - none))
        assert sure != finite


def test_impossible_settings_are_named():
    with pytest.raises(ValueError, match="last"):
        GaussianThresholds(counter=COUNTERS["blt"], beta=0.1, last=1)
    with pytest.raises(ValueError, match="beta"):
        GaussianThresholds(counter=COUNTERS["blt"], beta=2)
    with pytest.raises(ValueError, match="floor"):
        GaussianThresholds(counter=COUNTERS["blt"], beta=0.1, floor=0)
