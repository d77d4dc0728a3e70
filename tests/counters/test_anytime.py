"""The counter without a known end."""

from __future__ import annotations

import numpy as np
import pytest

from streamveil.core.counters.anytime import MILLION, root_squared_norm, searched
from streamveil.counters import AnytimeBltCounter, BltCounter

TIMES = np.unique(np.rint(np.geomspace(1, 2**20, 400)).astype(np.int64))


def largest_ratio(counter: AnytimeBltCounter, times: np.ndarray) -> float:
    large = type(counter)(sigma=2**30, tuned=counter.tuned, d=counter.d)
    errors = large.sensitivity * large.std(times) / 2**30
    return float((errors / root_squared_norm(times)).max())


def test_error_is_within_a_third_of_the_square_root_for_a_known_end():
    assert largest_ratio(AnytimeBltCounter(sigma=1), TIMES) < 1.3235


def test_error_is_at_most_that_much_above_a_counter_made_for_a_known_end():
    """A third was said of this, too: that counter is better than the square root."""
    anytime, worst = AnytimeBltCounter(sigma=2**30), 0.0
    for t in (1, 3, 11, 40, 1_000, 2**20):
        known = BltCounter(horizon=t, sigma=2**30)
        largest = known.sensitivity * known.std(TIMES[t >= TIMES]).max()
        worst = max(worst, anytime.sensitivity * anytime.std(np.array([t]))[0] / largest)
    assert 1.4 < worst < 1.45


@pytest.mark.slow
@pytest.mark.parametrize(("power", "ratio"), [(30, 1.391), (40, 1.4455)])
def test_longer_tunings(power, ratio):
    times = np.unique(np.rint(np.geomspace(1, 2**power, 600)).astype(np.int64))
    assert largest_ratio(AnytimeBltCounter(sigma=1, tuned=2**power), times) < ratio


def test_known_parameters_for_a_million_steps():
    """Found independently by autodiff on another grid of times."""
    blt = searched(2**20, 6)
    p = [1.8621e-6, 4.33763e-5, 4.954e-4, 0.00502329, 0.04460892, 0.30208376]
    np.testing.assert_allclose(blt.p, p, rtol=0.05)
    assert float(np.sqrt(blt.squared_norm(np.inf))) == pytest.approx(1.323129, abs=5e-4)


def test_the_design_that_is_written_down_is_what_the_search_finds():
    found, kept = searched(2**20, 6), AnytimeBltCounter(sigma=1).inner.blt
    assert kept is MILLION
    np.testing.assert_allclose((*kept.p, *kept.q), (*found.p, *found.q), rtol=2**-19)


SHORT = [
    (2, 1.033),
    (3, 1.0545),
    (5, 1.0763),
    (8, 1.0953),
    (19, 1.1271),
    (20, 1.127),
    (60, 1.1593),
    (128, 1.1792),
    (199, 1.1908),
    (200, 1.1893),
    (300, 1.1983),
    (511, 1.2097),
    (512, 1.2098),
    (1000, 1.223),
]


@pytest.mark.parametrize(("tuned", "ratio"), SHORT)
def test_short_times_have_as_many_buffers_as_they_can_tell_apart(tuned, ratio):
    counter = AnytimeBltCounter(sigma=1, tuned=tuned, d=8)
    assert counter.inner.buffers == AnytimeBltCounter(sigma=1, tuned=tuned).inner.buffers
    assert counter.inner.blt.p[0] > 1 / tuned  # no rate of what never happens
    assert largest_ratio(counter, np.arange(1, tuned + 1)) < ratio


def test_sensitivity_holds_forever():
    counter = AnytimeBltCounter(sigma=1, tuned=100, d=2)
    c = counter.inner.blt.encoder(200_000)
    assert np.sqrt((c**2).sum()) <= counter.sensitivity <= np.sqrt((c**2).sum()) * (1 + 1e-6)


def test_the_yardstick_is_the_sum_of_squares():
    exact = np.cumsum(np.cumprod(np.r_[1, 1 - 1 / (2 * np.arange(1, 10**6))]) ** 2)
    times = np.array([1, 2, 1000, 2**14, 2**14 + 1, 10**5, 10**6])
    np.testing.assert_allclose(root_squared_norm(times), exact[times - 1], rtol=1e-9)


def test_slack_stays_small_for_all_time():
    assert AnytimeBltCounter(sigma=5).inner.slack(1) / 5 < 1e-3
    with pytest.raises(ValueError, match="tuned"):
        AnytimeBltCounter(sigma=5, tuned=1)
