"""The tree of pure privacy: its digits, its blocks, and the choice of how many children."""

from itertools import pairwise

import numpy as np
import pytest

from streamveil.counters import HonakerCounter, KaryTreeCounter
from streamveil.counters.kary import (
    LARGEST_LEVELS,
    balanced_digits,
    best_arity,
    blocks_of,
    largest_digit_sum,
    levels_for,
    smallest_arity,
)
from streamveil.errors import PlanError


@pytest.mark.parametrize(("k", "levels"), [(3, 5), (5, 3), (7, 2), (13, 2), (121, 1)])
def test_signed_blocks_make_up_every_prefix(k, levels):
    horizon = (k**levels - 1) // 2
    for t in range(horizon + 1):
        covered = np.zeros(k**levels, np.int64)
        for level, index, sign in blocks_of(t, k, levels):
            covered[index * k**level : (index + 1) * k**level] += sign
        assert covered.tolist() == [1] * t + [0] * (k**levels - t)


@pytest.mark.parametrize(("k", "levels"), [(3, 6), (5, 4), (9, 3)])
def test_digits_are_balanced_and_spell_the_number(k, levels):
    numbers = np.arange((k**levels - 1) // 2 + 1)
    digits = balanced_digits(numbers, k, levels)
    assert np.abs(digits).max() == (k - 1) // 2
    np.testing.assert_array_equal(k ** np.arange(levels) @ digits, numbers)


@pytest.mark.parametrize("k", [3, 5, 7, 11])
def test_the_largest_digit_sum_is_that_of_all_prefixes(k):
    for horizon in range(1, 400):
        levels = levels_for(k, horizon)
        sums = np.abs(balanced_digits(np.arange(1, horizon + 1), k, levels)).sum(axis=0)
        assert largest_digit_sum(horizon, k, levels) == sums.max(), horizon


def test_levels_and_children_are_the_fewest_that_reach():
    for horizon in (1, 2, 3, 4, 12, 13, 14, 40, 41, 1000, 9841, 9842, 10**6):
        for k in (3, 5, 13):
            levels = levels_for(k, horizon)
            assert (k**levels - 1) // 2 >= horizon > (k ** (levels - 1) - 1) // 2 * (levels > 1)
        for levels in range(1, 6):
            k = smallest_arity(horizon, levels)
            assert k % 2 == 1
            assert (k**levels - 1) // 2 >= horizon
            assert k == 1 or ((k - 2) ** levels - 1) // 2 < horizon


def test_no_other_number_of_children_has_a_smaller_error():
    def error(horizon, k):
        levels = levels_for(k, horizon)
        return levels * largest_digit_sum(horizon, k, levels) ** 0.5

    for horizon in (1, 2, 5, 13, 40, 100, 365, 1000, 4000):
        best = error(horizon, best_arity(horizon))
        assert (
            best <= min(error(horizon, k) for k in range(3, 2 * min(horizon, 300) + 2, 2)) + 1e-12
        )
    errors = [error(h, best_arity(h)) for h in 10 ** np.arange(1, 7)]
    assert all(a < b for a, b in pairwise(errors))
    assert levels_for(3, 10**6) > LARGEST_LEVELS, "more levels than are tried still end in a tree"


@pytest.mark.parametrize("kind", [KaryTreeCounter, HonakerCounter])
@pytest.mark.parametrize("t", [0, 9, 10**30, -1, 1.5, "5", np.array([1, 2])])
def test_a_step_that_there_is_not_has_no_draws(kind, t):
    """Step -1 had some, and step 10^30 was looked for without end."""
    with pytest.raises(PlanError, match="t must be"):
        kind(horizon=8, sigma=1).mix(t)
