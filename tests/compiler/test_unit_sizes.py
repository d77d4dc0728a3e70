"""Rows of units beyond what stands out of the noise of a look."""

from math import lgamma

import numpy as np
import pytest

from streamveil.compiler.expected_stream import known_rows
from streamveil.compiler.unit_sizes import ROW_EDGES, ROW_ENDS, bins_of_laws, fitted_units


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


def poisson(n):
    return np.exp((n - 1) * np.log(5) - 5 - [lgamma(one) for one in n])


@pytest.mark.parametrize("law", [poisson, lambda n: 0.8**n, lambda n: (n + 3.0) ** -4])
def test_units_within_a_bin_follow_those_beside_it(law):
    """Alike within each bin, many units had more rows than any: bounds were too large for them."""
    wanted = law(np.arange(1.0, ROW_EDGES[16]))
    bins = [
        (int(low), int(high), float(wanted[int(low) - 1 : int(high)].sum()))
        for low, high in zip(ROW_EDGES[:16], ROW_ENDS[:16], strict=True)
    ]
    widths = ROW_ENDS[:16].astype(int) - ROW_EDGES[:16].astype(int) + 1
    alike = np.repeat([units for _, _, units in bins] / widths, widths)
    off = np.abs(known_rows(tuple(bins))[: len(wanted)] - wanted).sum()
    assert off < 0.35 * np.abs(alike - wanted).sum()
    assert known_rows(tuple(bins)).sum() == pytest.approx(wanted.sum())
