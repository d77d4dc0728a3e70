"""Losses against dp-accounting (privacy-loss distributions, Renyi) and against exact arithmetic."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import timedelta
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from dp_accounting.dp_event import GaussianDpEvent, ZCDpEvent
from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import (
    from_gaussian_mechanism,
    from_privacy_parameters,
    from_randomized_response,
)
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.core.accounting import Budget, Neighbours, convert
from streamveil.core.accounting.coin_table import COIN, CoinTable
from streamveil.core.accounting.guarantee import (
    NOTHING,
    Gdp,
    Guarantee,
    Loss,
    Pure,
    Zcdp,
)
from tests.losses import approx

DAY = timedelta(days=1)
USER = Neighbours("user_id")
USER_DAY = Neighbours("user_id", period=DAY)
TABLE = CoinTable(
    horizon=4,
    keys_per_unit=2,
    shift_epsilon=Fraction(1, 4),
    coins=tuple(int(COIN * math.exp(-0.4 * gap)) for gap in range(1, 40)),
    places=20,
    epsilon=Fraction(2),
)
OTHER_TABLE = dataclasses.replace(TABLE, shift_epsilon=Fraction(1, 3), horizon=2)
losses = st.builds(
    Loss,
    gaussian=st.fractions(0, 4, max_denominator=100),
    zcdp=st.fractions(0, 1, max_denominator=100),
    pure=st.lists(
        st.tuples(st.fractions(0, 1, max_denominator=20), st.integers(0, 4)), max_size=3
    ).map(tuple),
    delta=st.fractions(0, Fraction(1, 1000), max_denominator=10**6),
    distance=st.just(Fraction(0)),
    chance=st.fractions(0, Fraction(1, 1000), max_denominator=10**6),
    tables=st.sampled_from([(), ((TABLE, 1),), ((TABLE, 2), (OTHER_TABLE, 1))]),
)


def exact_gaussian_delta(epsilon: float, mu: float) -> mpmath.mpf:
    with mpmath.workdps(60):
        a, e = mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu, mpmath.exp(mpmath.mpf(epsilon))
        return mpmath.ncdf(a) - e * mpmath.ncdf(a - mu)


@pytest.mark.parametrize("mu", [1e-4, 0.01, 0.3, 0.9744, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.1, 1.0, 6.0, 20.0, 80.0])
def test_gaussian_delta_is_above_the_exact_value_and_close(mu: float, epsilon: float) -> None:
    ours = Gdp(mu).delta_at(epsilon)
    exact = exact_gaussian_delta(epsilon, mu)
    assert ours >= exact
    with mpmath.workdps(60):
        scale = mpmath.ncdf(mu / 2 - epsilon / mu)
    assert ours <= exact + 1e-9 * scale + 2e-300


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-5, 1e-2])
def test_gaussian_epsilon_agrees_with_a_privacy_loss_distribution(mu: float, delta: float) -> None:
    ours = Gdp(mu).epsilon(delta)
    assert exact_gaussian_delta(ours, mu) <= delta
    if ours:
        assert exact_gaussian_delta(ours * (1 - 1e-6), mu) > delta  # and no larger than needed
    pld = from_gaussian_mechanism(
        1 / mu, value_discretization_interval=1e-3, log_mass_truncation_bound=-70
    )
    assert ours <= pld.get_epsilon_for_delta(delta) <= ours + 0.01 * max(1.0, ours)


@pytest.mark.parametrize("rho", [0.001, 0.05, 0.5, 4.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-4])
def test_zcdp_conversion_is_never_below_and_close_to_renyi_accounting(
    rho: float, delta: float
) -> None:
    ours = Zcdp(rho).epsilon(delta)
    assert ours >= Gdp(math.sqrt(2 * rho)).epsilon(delta)  # a Gaussian is rho-zCDP
    orders = np.concatenate([1 + np.geomspace(1e-3, 1e4, 3000)])
    peer = RdpAccountant(orders).compose(ZCDpEvent(rho)).get_epsilon(delta)
    assert ours <= peer * (1 + 1e-9)
    assert ours >= peer * (1 - 2e-3)
    gaussian = RdpAccountant(orders).compose(GaussianDpEvent(1 / math.sqrt(2 * rho)))
    assert ours >= gaussian.get_epsilon(delta) * (1 - 2e-3)


def optimal_pure_delta(epsilon0: Fraction, times: int, epsilon: float) -> mpmath.mpf:
    """Kairouz, Oh & Viswanath 2015: k-fold randomised response, summed in high precision."""
    with mpmath.workdps(60):
        e = mpmath.exp(mpmath.mpf(epsilon0.numerator) / epsilon0.denominator)
        total = mpmath.mpf(0)
        for wins in range(times + 1):
            p = mpmath.binomial(times, wins) * e**wins / (1 + e) ** times
            q = mpmath.binomial(times, wins) * e ** (times - wins) / (1 + e) ** times
            total += max(mpmath.mpf(0), p - mpmath.exp(epsilon) * q)
        return total


@pytest.mark.parametrize(
    ("epsilon0", "times"), [("0.1", 1), ("0.1", 50), ("0.7", 9), ("0.01", 900)]
)
def test_pure_composition_is_optimal(epsilon0: str, times: int) -> None:
    loss = Pure(epsilon0).times(times)
    for share in (0.0, 0.2, 0.5, 0.9):
        epsilon = share * float(epsilon0) * times
        exact = optimal_pure_delta(Fraction(epsilon0), times, epsilon)
        assert exact <= loss.delta_at(epsilon) <= exact * (1 + 1e-8) + 1e-15
    assert loss.epsilon(0) == pytest.approx(float(epsilon0) * times, rel=1e-14)


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_mixtures_are_never_below_a_privacy_loss_distribution(delta: float) -> None:
    step = 1e-3
    gaussian = from_gaussian_mechanism(
        1 / 0.4, value_discretization_interval=step, log_mass_truncation_bound=-60
    )
    pure = from_privacy_parameters(
        DifferentialPrivacyParameters(0.2, 0), value_discretization_interval=step
    ).self_compose(8)
    unlike = from_privacy_parameters(
        DifferentialPrivacyParameters(0.317, delta / 10), value_discretization_interval=step
    )
    peer = gaussian.compose(pure).compose(unlike)  # pessimistic: above the truth by about a step
    ours = Gdp(0.4) + Pure(0.2).times(8) + approx(0.317, delta / 10)
    assert ours.epsilon(delta) <= peer.get_epsilon_for_delta(delta) + 1e-4
    assert ours.epsilon(delta) >= peer.get_epsilon_for_delta(delta) - 12 * step
    assert (
        ours.epsilon(delta)
        <= (Gdp(0.4) + Loss(delta=Fraction(repr(delta / 10)))).epsilon(delta)
        + 0.2 * 8
        + 0.317
        + 1e-9
    )


@pytest.mark.parametrize("mu", [0.2, 0.9, 2.0])
@pytest.mark.parametrize("epsilon0", [0.1, 0.6])
@pytest.mark.parametrize("times", [1, 6])
def test_no_conversion_is_below_an_optimistic_privacy_loss_distribution(
    mu: float, epsilon0: float, times: int
) -> None:
    """Gaussian and randomised responses together; their zCDP is an upper bound, too."""
    options = {"value_discretization_interval": 2e-4, "pessimistic_estimate": False}
    flip = 2 / (1 + math.exp(epsilon0))  # two buckets: e^epsilon0 = (1 - flip/2) / (flip/2)
    response = from_randomized_response(flip, 2, **options)
    peer = from_gaussian_mechanism(1 / mu, **options).compose(response.self_compose(times))
    ours = Gdp(mu) + Pure(epsilon0).times(times)
    as_zcdp = Zcdp(ours.rho())
    for epsilon in (0.0, 0.5, 1.5, 4.0):
        least = peer.get_delta_for_epsilon(epsilon)
        assert ours.delta_at(epsilon) >= least * (1 - 1e-9) - 1e-13
        assert ours.delta_at(epsilon) <= least * 1.03 + 1e-12  # the peer rounds seven losses down
        assert as_zcdp.delta_at(epsilon) >= least * (1 - 1e-9) - 1e-13


@given(losses, st.sampled_from([1e-3, 1e-5]))
@settings(max_examples=60, deadline=None)
def test_epsilon_and_delta_are_inverse_from_the_private_side(loss: Loss, delta: float) -> None:
    epsilon = loss.epsilon(delta)
    if epsilon < math.inf:
        assert loss.delta_at(epsilon * (1 + 1e-15)) <= delta
        if epsilon > 1e-9:
            assert loss.delta_at(epsilon * (1 - 1e-6)) > delta * (1 - 1e-3)
    else:
        assert loss.delta_at(500.0) > delta


@given(losses, losses, losses)
@settings(max_examples=40, deadline=None)
def test_composition_is_exact_associative_and_never_free(a: Loss, b: Loss, c: Loss) -> None:
    assert (a + b) + c == a + (b + c) == c.compose(b, a)
    assert a.times(3) == a + a + a
    assert hash(a + b) == hash(b + a)
    assert a + NOTHING == a
    assert (a + b).delta_at(1.0) >= a.delta_at(1.0) * (1 - 1e-9) - 1e-9
    assert Loss.from_dict(json.loads(json.dumps(a.to_dict()))) == a


def test_many_small_charges_are_one_large_charge() -> None:
    assert sum((Gdp(0.1) for _ in range(100)), NOTHING) == Gdp(1)
    assert sum((Zcdp("0.003") for _ in range(1000)), NOTHING) == Zcdp(3)


def test_pure_loss_as_zcdp_is_above_renyi_at_every_order_and_attained() -> None:
    for epsilon in (0.01, 0.3, 1.0, 4.0, 12.0):
        rho = convert.pure_zcdp(epsilon)
        v = 0.5 + np.concatenate([1 + np.geomspace(1e-6, 1e3, 4000)]) - 1
        log_cosh = np.logaddexp(v * epsilon, -v * epsilon)
        renyi = log_cosh - np.logaddexp(epsilon / 2, -epsilon / 2)
        order = v + 0.5
        assert np.all(renyi <= rho * order * (order - 1) * (1 + 1e-6) + 1e-12)
        near = np.argmin(np.abs(order - 1.001))
        assert renyi[near] >= 0.98 * rho * order[near] * (order[near] - 1)
        assert rho <= epsilon**2 / 2 * (1 + 1e-14)


def test_thousands_of_unlike_pure_losses_as_zcdp_are_not_below_their_sum() -> None:
    losses = [5 + Fraction(i, 3_000_000) for i in range(5000)]
    with mpmath.workdps(30):
        exact = [mpmath.mpf(one.numerator) / one.denominator for one in losses]
        assert Loss(pure=tuple((one, 1) for one in losses)).rho() >= mpmath.fsum(
            one * mpmath.tanh(one / 2) for one in exact
        )


def test_group_privacy_without_delta_scales_the_parameters() -> None:
    loss = (Gdp(1) + Zcdp(Fraction(1, 2)) + Pure(Fraction(1, 3))).group(3)
    assert loss == Gdp(3) + Zcdp(Fraction(9, 2)) + Pure(1)


def test_group_privacy_with_delta_walks_from_neighbour_to_neighbour() -> None:
    loss = approx(1, 1e-9)
    expected = 1e-9 * (1 + math.e + math.e**2)
    assert loss.group(3).delta_at(3.0) >= expected * (1 - 1e-12)
    assert loss.group(3).delta_at(3.0) <= expected * (1 + 1e-9)
    mixed = (Gdp(0.2) + Loss(delta=Fraction(1, 10**14))).group(7)
    assert mixed.epsilon(1e-9) >= Gdp(0.2).group(7).epsilon(1e-9)
    assert mixed.delta_at(mixed.epsilon(1e-9)) <= 1e-9
    with pytest.raises(ValueError, match="n must be a whole number of at least 0, not -1"):
        Gdp(1).times(-1)
    with pytest.raises(ValueError, match="what is added must be a loss such as Gdp"):
        Gdp(1) + 3
    with pytest.raises(ValueError, match="budget must be a Budget"):
        Gdp(1).fits(5)
    with pytest.raises(ValueError, match="compose losses first"):
        mixed.compose(Gdp(1))


def test_chances_are_no_steps_of_a_group() -> None:
    loss = Gdp(0.4) + Loss(chance=Fraction(1, 10**11))
    year = loss.group(365)
    assert year.chance == Fraction(365, 10**11)
    assert Gdp(146).epsilon(1e-5) <= year.epsilon(1e-5) <= 1.001 * Gdp(146).epsilon(1e-5)
    assert year.delta_at(10**6) >= 365e-11
    assert (Gdp(0.4) + Loss(delta=Fraction(1, 10**11))).group(365).epsilon(1e-5) == math.inf
    with_slack = loss + Loss(delta=Fraction(1, 10**15))
    walked = (Gdp(0.4) + Loss(delta=Fraction(1, 10**15))).group(5)
    assert with_slack.group(5).delta_at(9) == pytest.approx(walked.delta_at(9) + 5e-11, rel=1e-9)


@pytest.mark.parametrize(("loss", "epsilon"), [(Pure(1), 1.0), (Gdp(1), math.inf)])
def test_a_delta_below_all_floats_is_no_delta(loss: Loss, epsilon: float) -> None:
    assert loss.epsilon("1e-400") == epsilon


def test_tables_compose_far_below_their_stated_epsilons() -> None:
    table = Loss(tables=((TABLE, 1),))
    stated = table.stated()
    assert stated.pure_total == 2
    assert stated.delta == Fraction(table.delta_at(2.0))
    delta = 1e-3 + 60 * float(stated.delta)
    assert table.times(60).epsilon(delta) < stated.times(60).epsilon(delta) / 2
    assert (table + Gdp(1)).epsilon(0.1) > table.epsilon(0.1)
    assert (table + Pure(1)).epsilon(0.1) == pytest.approx(table.epsilon(0.1) + 1)
    assert not table.fits(Budget(mu=100, delta=0.9))
    assert table.mu() == math.inf


def test_a_distance_alone_leaves_a_finite_epsilon_of_a_group() -> None:
    loss = Gdp("0.1") + Loss(distance=Fraction(1, 10**20))
    assert loss.group(30).epsilon(1e-6) == pytest.approx(Gdp(3).epsilon(1e-6), rel=1e-4)
    walked = Gdp("0.1") + Loss(delta=Fraction(1, 10**15))
    both = walked + Loss(distance=Fraction(1, 10**12))
    paid = both.group(5).delta_at(7) - walked.group(5).delta_at(7)
    assert paid == pytest.approx(5e-12 * (1 + math.exp(7)), rel=1e-9)


def test_a_group_reaches_the_draws_of_all_its_units() -> None:
    """The distance of a sketch is that of the draws in the cells that one unit touches."""
    loss = Gdp("0.1") + Loss(distance=Fraction(1, 10**20))
    assert loss.group(30).distance == loss.times(30).distance == Fraction(30, 10**20)
    assert (loss + Loss(delta=Fraction(1, 10**15))).group(3).distance == Fraction(3, 10**20)
    assert loss.group(2).group(3) == loss.group(6)


def test_the_least_distance_is_too_much_at_the_largest_epsilon() -> None:
    """At epsilon 720, e^720 times a distance of 1e-305 is above 1; e^700 times it is 0.1."""
    assert Loss(distance=Fraction(1, 10**305)).delta_at(720.0) == 1.0
    assert Loss(distance=Fraction(1, 10**340)).delta_at(9.0) < 1e-290


def test_a_distance_is_paid_on_both_streams() -> None:
    loss = Pure(1) + Loss(distance=Fraction(1, 10**12))
    assert loss.delta_at(1.0) >= 1e-12 * (1 + math.e)
    assert loss.delta_at(1.0) <= 1e-12 * (1 + math.e) * (1 + 1e-9)
    assert loss.epsilon(1e-13) == math.inf


def test_nothing_is_finite_without_the_delta_it_needs() -> None:
    assert Gdp(1).epsilon(0) == math.inf
    assert approx(1, 1e-6).epsilon(1e-9) == math.inf
    assert approx(1, 1e-9).epsilon(1e-9) <= 1.0 + 1e-9
    assert Pure(1).epsilon(0) == 1.0
    for call in (lambda: Zcdp(-1), lambda: Gdp(-1), lambda: Gdp(1).delta_at(math.nan)):
        with pytest.raises(ValueError, match="must not be negative"):
            call()


def test_a_day_becomes_a_week_by_composition_or_by_group_privacy() -> None:
    separate = Guarantee(USER_DAY, Gdp(0.5), separate=True)
    shared = Guarantee(USER_DAY, Gdp(0.5))
    assert separate.over(7).loss == Gdp.squared(Fraction(7, 4))
    assert shared.over(timedelta(days=7)).loss == Gdp(3.5)
    assert "at most 7 days" in shared.over(7).sentence(1e-9)
    with pytest.raises(ValueError, match="whole stream"):
        Guarantee(USER, Gdp(1)).over(7)


def test_large_groups_are_beyond_any_epsilon_and_raise_nothing() -> None:
    loss = (Gdp("0.7") + Loss(distance=Fraction(1, 2**50))).group(365)
    assert loss.delta_at(1e5) == 1.0
    assert loss.epsilon(1e-7) == math.inf


def test_the_sentence_says_who_what_how_much_and_how_long() -> None:
    guarantee = Guarantee(USER, Gdp("0.97"), horizon=1000)
    words = guarantee.sentence(1e-9)
    assert "adding or removing all rows of one user_id over the whole stream" in words.lower()
    assert "over 1,000 triggers" in words
    assert "delta = 1e-09" in words
    shown = float(words.split("epsilon = ")[1].split(",")[0])
    assert guarantee.epsilon(1e-9) <= shown <= guarantee.epsilon(1e-9) + 0.01
    assert "No finite epsilon" in guarantee.sentence(0)
    for delta in ("1.2345642e-9", "8.784e-6"):  # to the nearest digit, less than is lost
        told = guarantee.sentence(delta).split(" plus ")[1].split(" (")[0]
        assert Fraction(delta) <= Fraction(told) <= Fraction(delta) * Fraction("1.001")


@pytest.mark.parametrize("size", [0, -1])
def test_a_group_has_at_least_one_unit(size: int) -> None:
    for made in (lambda: Loss(gaussian=1, group_size=size), lambda: Gdp(1).group(size)):
        with pytest.raises(ValueError, match="at least 1"):
            made()


def test_guarantees_are_values() -> None:
    one, other = (
        Guarantee(USER_DAY, Gdp(1) + approx(1, 1e-9), horizon=3, separate=True) for _ in range(2)
    )
    assert len({one, other}) == 1
    assert json.loads(json.dumps(one.to_dict())) == one.to_dict()
