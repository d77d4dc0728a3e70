"""Rows of units beyond what stands out of the noise of a look."""

import numpy as np
import pytest

from streamveil.compiler.unit_sizes import ROW_EDGES, bins_of_laws, fitted_units


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
