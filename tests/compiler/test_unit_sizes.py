"""Rows of units beyond what stands out of the noise of a look."""

import numpy as np
import pytest

from streamveil.compiler.group_sizes import GroupLaw
from streamveil.compiler.unit_sizes import ROW_EDGES, bins_of_laws, fitted_units, of_all_releases
from streamveil.plan.look import CONCENTRATION, LAWS, MEAN_ROWS


def binned(rows):
    place = np.searchsorted(ROW_EDGES, rows, side="right") - 1
    return np.bincount(place, minlength=len(ROW_EDGES))


@pytest.mark.parametrize("kind", ["heavy", "geometric", "alike"])
def test_a_tail_that_the_noise_hides_is_about_that_of_the_law(kind):
    """Of 30,000 units, noise of 60: bins of fewer than 240 do not stand out."""
    rng = np.random.default_rng(5)
    n = np.arange(1, 1_001)
    law = {
        "heavy": (n + 25.0) ** -6.7, "geometric": 0.8**n, "alike": np.exp(-((n - 8) ** 2) / 16),
    }[kind]  # fmt: skip
    exact = binned(rng.choice(n, 30_000, p=law / law.sum()))
    for _ in range(5):
        found = fitted_units(np.round(exact + rng.normal(0, 60, len(exact))).astype(np.int64), 60.0)
        beyond = np.flatnonzero(exact > 240)[-1] + 1
        assert found[beyond:].sum() == pytest.approx(exact[beyond:].sum(), rel=0.6, abs=300)
        assert found.sum() == pytest.approx(30_000, rel=0.03)
        assert found[beyond + 8 :].sum() < 10


def test_laws_are_shares_of_units():
    laws = bins_of_laws()
    assert np.abs(laws.sum(axis=1) - 1).max() < 1e-9
    assert laws.min() >= 0
    assert fitted_units(np.zeros(len(ROW_EDGES), np.int64), 10.0).sum() == 0


def test_a_first_release_of_rows_in_groups_of_their_own_says_nothing_of_others():
    own, usual = GroupLaw(9_000.0, 0.0, 0.9, 0.7), GroupLaw(300.0, 1.2, 0.1, 0.0)
    known = {"expected_units": 1000.0, "expected_rows": 1.7, LAWS: [own, usual, own]}
    assert of_all_releases(known, 10)[LAWS] == [usual]
    assert LAWS not in of_all_releases(known | {LAWS: [own, own]}, 10)
    assert of_all_releases(known, 1)[LAWS] == known[LAWS]


def test_units_with_many_rows_in_a_first_release_may_come_back():
    """They were taken for others in each: of devices with 60 rows an hour, 23 hours were cut."""
    known = {"expected_units": 1000.0, "expected_rows": 60.0, CONCENTRATION: (0.0, 0.9, 0.1)}
    told = of_all_releases(known, 24)
    assert told[MEAN_ROWS] == [60.0, 294.0, 1440.0]
    assert told[CONCENTRATION] == known[CONCENTRATION]
    assert told["expected_units"] == 1000.0
    few = of_all_releases(known | {"expected_rows": 6.0}, 24)
    assert CONCENTRATION not in few
