"""A look and whatever it chose: certified together, and refused where the curve is passed."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.calibrate import gaussian_mu
from streamveil.compiler.table_design import design_selection
from streamveil.core.accounting import Budget
from streamveil.core.accounting.guarantee import Gdp, Loss
from streamveil.core.accounting.sequel import Sequel
from streamveil.core.mechanism import Look
from tests.audit.looks import joint_delta
from tests.losses import approx

EPSILON, DELTA = Fraction(1), Fraction(6, 10**7)
LOOK, STEEPEST = Fraction(3, 100), Fraction(15, 100)
SEQUEL = Sequel(EPSILON, DELTA, LOOK, STEEPEST)


def gaussian(delta, slack=Fraction(0)):
    """All of a delta at EPSILON for Gaussian releases, but for some slack."""
    mu = Fraction(gaussian_mu(Budget(epsilon=EPSILON, delta=delta - slack)))
    return Gdp(mu) + Loss(delta=slack)


def tables():
    """Losses of tables that are steeper and flatter, each of the whole delta."""
    budget = Budget(epsilon=EPSILON, delta=DELTA)
    for slots, share in ((1, Fraction(3, 4)), (3, Fraction(1, 2)), (3, Fraction(4, 5))):
        yield design_selection(10, budget, slots, share, SEQUEL).loss


@cache
def followers():
    return [gaussian(DELTA), gaussian(DELTA, DELTA / 2), *tables()]


def test_the_joint_delta_covers_the_worst_choice_after_every_look_and_is_near_it():
    assert all(map(SEQUEL.admits, followers()))
    worst = joint_delta(float(LOOK), float(EPSILON), followers())
    assert worst <= SEQUEL.joint <= 1.35 * worst
    steep = Gdp(STEEPEST) + Loss(pure=((SEQUEL_SHIFT, 1),))
    assert SEQUEL.admits(steep)
    worst = joint_delta(float(LOOK), float(EPSILON), [*followers(), steep])
    assert worst <= SEQUEL.joint <= 1.25 * worst


def pure_beside(mu):
    """The largest pure loss beside Gaussian releases that keeps DELTA at EPSILON."""
    low, high = Fraction(0), EPSILON
    for _ in range(40):
        middle = (low + high) / 2
        fits = Gdp(mu).delta_at(float(EPSILON - middle)) <= float(DELTA)
        low, high = (middle, high) if fits else (low, middle)
    return low


SEQUEL_SHIFT = pure_beside(STEEPEST)


def test_a_choice_may_cost_more_than_each_of_its_ends():
    """What a maximum of means would miss: steep where the loss is high, flat where it is low."""
    steep = Gdp(STEEPEST) + Loss(pure=((SEQUEL_SHIFT, 1),))
    flat = Loss(delta=DELTA)
    alone = [joint_delta(float(LOOK), 1.0, [one]) for one in (steep, flat)]
    assert joint_delta(float(LOOK), 1.0, [steep, flat]) > 1.01 * max(alone)


@given(st.integers(1, 2400), st.integers(2, 12), st.integers(1, 40), st.integers(50, 100))
@settings(max_examples=40, deadline=None)
def test_gaussian_releases_of_the_whole_delta_may_always_follow(size, digits, look, steepest):
    """A job that fails after its look would waste what the look cost."""
    epsilon, delta = Fraction(size, 20), Fraction(1, 10**digits)
    budget = Budget(epsilon=epsilon, delta=delta)
    mu = Fraction(gaussian_mu(budget))
    sequel = Sequel(epsilon, delta, mu * Fraction(look, 100), mu * Fraction(steepest, 100))
    half = Fraction(gaussian_mu(Budget(epsilon=epsilon, delta=delta / 2)))
    assert sequel.admits(Gdp(mu))
    assert sequel.admits(Gdp(half) + Loss(delta=delta / 2))
    assert not sequel.admits(Gdp(mu * Fraction(101, 100)))
    assert float(delta) < sequel.joint


FAULTS = {
    "the curve is passed below epsilon alone": approx(Fraction(97, 100), DELTA / 2),
    "the look's share is spent again": gaussian(Fraction(1, 10**6)),
    "releases of more than is left": gaussian(DELTA).times(2),
    "a delta beyond epsilon": Loss(delta=DELTA * 2),
    "steeper than the steepest": Gdp(STEEPEST / 2) + Loss(pure=((pure_beside(STEEPEST / 2), 1),)),
    "several units": Loss(gaussian=Fraction(1, 10**4), delta=DELTA / 10**6).group(2),
    "a table of the whole budget": design_selection(
        10, Budget(epsilon=EPSILON, delta=Fraction(1, 10**6)), 3
    ).loss,
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_passes_the_curve_is_refused(name):
    with pytest.raises(ValueError, match="more than was set aside"):
        Look(Gdp(LOOK), SEQUEL).before(FAULTS[name])


def test_the_chance_of_a_look_is_lost_as_well():
    chance = Loss(chance=Fraction(1, 10))
    assert Look(Gdp(LOOK) + chance, Gdp(1)).before(Gdp(1) + chance).chance == Fraction(1, 5)


def test_most_faults_keep_the_budget_at_epsilon_and_are_refused_for_what_lies_below():
    for name in ("the curve is passed below epsilon alone", "steeper than the steepest"):
        assert FAULTS[name].delta_at(float(EPSILON)) <= float(DELTA)


def test_a_sequel_is_of_one_look():
    chance = Loss(chance=Fraction(1, 10**9))
    whole = Look(Gdp(LOOK), SEQUEL).before(followers()[0] + chance)
    assert whole == Look(Gdp(LOOK), SEQUEL).before(followers()[-1] + chance)
    assert whole.delta_at(float(EPSILON)) == pytest.approx(SEQUEL.joint + 1e-9, rel=1e-12)
    assert whole.stated().delta >= Fraction(SEQUEL.joint)
    for fault in (Gdp(LOOK * 2), Gdp(LOOK).times(2), approx(1, "1e-9"), Loss()):
        with pytest.raises(ValueError, match="of a look that loses"):
            Look(fault, SEQUEL).before(followers()[0])


def test_what_is_said_of_other_epsilons_is_true():
    whole = Look(Gdp(LOOK), SEQUEL).before(followers()[0])
    for epsilon in (0.0, 0.3, 0.7, 0.9, 0.97, 1.0, 1.2):
        assert joint_delta(float(LOOK), epsilon, followers()) <= whole.delta_at(epsilon)
    assert whole.delta_at(0) < 0.35 < approx(1, DELTA).delta_at(0)
    twice = whole + Gdp(Fraction(1, 10))
    assert twice.delta_at(1) > whole.delta_at(1)
    assert whole.times(2).delta_at(2) < 3 * SEQUEL.joint


def test_a_record_of_a_looked_job_is_read_again():
    whole = Look(Gdp(LOOK), SEQUEL).before(followers()[0]) + followers()[-1]
    assert Loss.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole
    assert "what a look with mu=0.03 chose" in str(whole)


@pytest.mark.parametrize("change", ["epsilon", "delta", "look", "steepest"])
def test_a_sequel_needs_numbers_above_nought(change):
    with pytest.raises(ValueError, match="above 0"):
        replace(SEQUEL, **{change: Fraction(0)})


def test_a_larger_look_costs_more_and_none_costs_nothing():
    joint = [replace(SEQUEL, look=Fraction(part, 1000)).joint for part in (1, 10, 30, 60)]
    assert joint == sorted(joint)
    assert float(DELTA) < joint[0] < 1.1 * float(DELTA)
