"""The statistical helpers pass the right law, reject a wrong one, and refuse to be vacuous."""

import numpy as np
import pytest
from scipy import stats

from tests.statistics import (
    DETECTABLE,
    SAMPLES,
    Table,
    assert_different_law,
    assert_fits,
    assert_rate,
    assert_rejects,
    assert_rejects_rate,
    assert_same_law,
    discrete_gaussian,
    discrete_laplace,
    gaussian,
    p_value,
    rounded_gaussian,
    rounded_laplace,
)

RNG = np.random.default_rng(20261120)


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0, 5.0, 24.0, 1e6])
@pytest.mark.parametrize("centre", [0.0, 0.5, -3.3])
def test_rounded_gaussian_is_told_from_a_scale_fault(sigma, centre):
    samples = np.rint(centre + sigma * RNG.standard_normal(SAMPLES))
    assert_fits(samples, rounded_gaussian(sigma, centre))
    assert_rejects(samples, rounded_gaussian(DETECTABLE * sigma, centre))


@pytest.mark.parametrize(
    ("samples", "law", "wrong"),
    [
        (RNG.standard_normal(SAMPLES), gaussian(1), gaussian(DETECTABLE)),
        (np.rint(RNG.laplace(0, 7, SAMPLES)), rounded_laplace(7), rounded_laplace(7 * DETECTABLE)),
        (
            stats.dlaplace(1 / 3).rvs(SAMPLES, random_state=1),
            discrete_laplace(3),
            discrete_laplace(3 * DETECTABLE),
        ),
        (
            RNG.choice(4, SAMPLES, p=[0.1, 0.2, 0.3, 0.4]),
            Table.of({0: 0.1, 1: 0.2, 2: 0.3, 3: 0.4}),
            Table.of({0: 0.2, 1: 0.1, 2: 0.3, 3: 0.4}),
        ),
    ],
)
def test_right_law_fits_and_wrong_law_is_rejected(samples, law, wrong):
    assert_fits(samples, law)
    assert_rejects(samples, wrong)


def test_an_impossible_sample_fails():
    samples = np.zeros(SAMPLES)
    samples[0] = 9.0
    samples[1::2] = 1.0
    assert p_value(samples, Table.of({0: 0.5, 1: 0.5})) == 0.0


def test_p_values_are_uniform_under_the_law():
    law = discrete_gaussian(2.0, 0.25)
    values, masses = law.values, law.masses / law.masses.sum()
    p = [p_value(RNG.choice(values, 4000, p=masses), law) for _ in range(2000)]
    assert stats.kstest(p, "uniform").pvalue > 1e-9
    assert np.mean(np.array(p) < 0.01) < 0.05


def test_a_vacuous_test_is_refused():
    with pytest.raises(ValueError, match="single cell"):
        p_value(np.zeros(SAMPLES), rounded_gaussian(0.01))
    with pytest.raises(ValueError, match="at least"):
        p_value(np.zeros(10), gaussian(1))


def test_rates():
    assert_rate(5_040, 10_000, 0.5)
    assert_rejects_rate(5_500, 10_000, 0.5)


def test_two_samples():
    first, second = RNG.poisson(3, SAMPLES), RNG.poisson(3, SAMPLES)
    assert_same_law(first, second)
    assert_different_law(first, RNG.poisson(3 * DETECTABLE, SAMPLES))
