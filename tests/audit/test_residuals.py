"""Noise of lanes is tested by itself: half of it is refuted at any budget, honest noise stands."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import streamveil as sv
from streamveil.audit.reduced import halved, reduced
from streamveil.audit.residuals import GROUPS, bet, lane_tests, noise_tests
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import SeededNoise
from tests.audit.test_reduced import FOUND, PUBLIC, query

ALPHA = 1e-6
BUDGETS = {epsilon: sv.Budget(epsilon=epsilon, delta=1e-9) for epsilon in (1, 2, 6)}
MEASURES = {
    "n": sv.count(), "ms": sv.avg("ms", bounds=(0, 9)), "people": sv.count_units(),
}  # fmt: skip
PLANS = {
    f"{name} {epsilon}": query(keys, budget, measures=MEASURES, max_rows=2, max_rows_per_group=1)
    for name, keys in (("public", PUBLIC), ("found", FOUND))
    for epsilon, budget in BUDGETS.items()
}


def fewer(place):
    """Three quarters of the noise of one lane."""

    def change(operator):
        noises = list(operator.design.noises)
        noises[place] = Fraction(noises[place]) * Fraction(3, 4)
        return replace(operator, design=replace(operator.design, noises=tuple(noises)))

    return change


@pytest.mark.parametrize("name", PLANS)
def test_half_of_the_noise_is_refuted_lane_by_lane(name):
    tests = noise_tests(PLANS[name].plan, ALPHA, halved)
    assert len(tests) >= 3
    assert all(test.refuted_after < 150 for test in tests)


@pytest.mark.parametrize("name", PLANS)
def test_honest_noise_stands(name):
    tests = noise_tests(PLANS[name].plan, ALPHA)
    assert len(tests) >= 3
    assert all(test.stands and test.groups == GROUPS for test in tests)


def test_a_quarter_less_in_one_lane_is_seen_in_that_lane():
    claimed = compile_plan(reduced(PLANS["public 2"].plan, GROUPS))
    noises = SeededNoise(1), SeededNoise(2)
    tests = list(lane_tests(claimed, fewer(1)(claimed), noises, ALPHA))
    assert [test.stands for test in tests] == [place != 1 for place in range(len(tests))]


def test_the_stake_on_honest_noise_passes_a_limit_no_more_often_than_it_may():
    rng = np.random.default_rng(1)
    runs, alpha = 4_000, 0.05
    wrong = sum(not bet(rng.normal(size=200), alpha).stands for _ in range(runs))
    assert wrong <= alpha * runs  # Ville: the chance is at most alpha
    wide = sum(not bet(1.1 * rng.normal(size=200), alpha).stands for _ in range(runs))
    assert wide < wrong
    seen = sum(not bet(0.8 * rng.normal(size=200), alpha).stands for _ in range(200))
    assert seen > 190


def test_lanes_whose_lattice_is_as_coarse_as_their_noise_are_named_and_not_tested():
    plan = query(PUBLIC, sv.Budget(epsilon=400, delta=1e-9), measures={"n": sv.count()}).plan
    (test,) = noise_tests(plan, ALPHA, halved)
    assert test.stands
    assert not test.is_tested
