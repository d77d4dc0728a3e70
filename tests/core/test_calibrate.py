"""Noise scales: inside the budget by the forward formula, and no larger than needed."""

from __future__ import annotations

from fractions import Fraction

import pytest
from dp_accounting.dp_event import GaussianDpEvent
from dp_accounting.mechanism_calibration import calibrate_dp_mechanism
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.calibrate import fit, gaussian_mu, gaussian_sigma, zcdp_rho
from streamveil.core.accounting import Budget
from streamveil.core.accounting.guarantee import Gdp, Loss, Zcdp
from streamveil.core.sensitivity import root_up

BUDGETS = [
    Budget(epsilon=epsilon, delta=delta)
    for epsilon in ("0.01", "0.5", "1", "6", "30")
    for delta in ("1e-12", "1e-9", "1e-5")
]


@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_the_gaussian_fits_and_a_little_less_noise_would_not(budget: Budget) -> None:
    mu = gaussian_mu(budget)
    assert Gdp(mu).fits(budget)
    assert not Gdp(mu * (1 + 1e-9)).fits(budget)
    sigma = gaussian_sigma(3, budget)
    assert Gdp.squared(9 / sigma**2).fits(budget)
    assert not Gdp.squared(9 / (sigma * (1 - Fraction(1, 10**9))) ** 2).fits(budget)
    rho = zcdp_rho(budget)
    assert Zcdp(rho).fits(budget)
    assert not Zcdp(rho * (1 + 1e-9)).fits(budget)


def test_the_scale_agrees_with_dp_accounting() -> None:
    peer = calibrate_dp_mechanism(
        lambda: PLDAccountant(value_discretization_interval=1e-4),
        GaussianDpEvent,
        target_epsilon=1.0,
        target_delta=1e-6,
        tol=1e-6,
    )
    ours = float(gaussian_sigma(1, Budget(epsilon=1, delta=1e-6)))
    assert ours <= peer <= ours * 1.001


@pytest.mark.parametrize("limit", ["0.01", "0.05", "0.1", "0.2", "0.3", "0.7", "1", "3.3"])
def test_what_fits_fits_as_the_number_it_is(limit: str) -> None:
    """The float 0.1 is above 1/10: a mechanism with it would be refused by the budget's ledger."""
    assert Fraction(zcdp_rho(Budget(rho=limit))) <= Fraction(limit)
    assert Fraction(gaussian_mu(Budget(mu=limit))) <= Fraction(limit)
    assert Fraction(gaussian_mu(Budget(rho=limit))) ** 2 / 2 <= Fraction(limit)
    assert Gdp.squared(1 / gaussian_sigma(1, Budget(rho=limit)) ** 2).fits(Budget(rho=limit))


def test_exact_budgets_give_exact_scales() -> None:
    assert gaussian_sigma(3, Budget(mu="0.5")) == 6
    assert gaussian_mu(Budget(rho=2)) == pytest.approx(2, rel=1e-12)
    assert gaussian_mu(Budget(rho=2)) <= 2


def test_a_share_of_delta_leaves_the_rest_for_thresholds() -> None:
    budget = Budget(epsilon=6, delta=1e-9)
    mu = gaussian_mu(Budget(epsilon=6, delta=Fraction(1, 2 * 10**9)))
    assert (Gdp(mu) + Loss(delta=Fraction(1, 2 * 10**9))).fits(budget)
    assert mu == pytest.approx(0.958, abs=5e-4)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: gaussian_mu(Budget(epsilon=1)), "needs a delta"),
        (lambda: zcdp_rho(Budget(epsilon=1)), "needs a delta"),
        (lambda: zcdp_rho(Budget(mu=1)), "has no loss in mu"),
        (lambda: gaussian_sigma(0, Budget(mu=1)), "l2 must be above 0"),
        (lambda: fit(5, Budget(mu=1)), "counter must be one such as"),  # type: ignore[type-var]
        *[
            (call, "must be a Budget such as")
            for call in (
                lambda: gaussian_mu(1),
                lambda: zcdp_rho(1),
                lambda: gaussian_sigma(1, 1),
            )
        ],
    ],
)
def test_impossible_requests_say_what_is_missing(call: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()  # type: ignore[operator]


@given(st.fractions("1e-12", 10**12))
@settings(deadline=None)
def test_roots_are_cautious(square: Fraction) -> None:
    root = root_up(square)
    assert square <= root**2 <= square * (1 + Fraction(1, 10**9))
