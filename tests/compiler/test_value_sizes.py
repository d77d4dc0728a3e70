"""Tails of values that noise hides, and the bounds that are chosen by them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr

import streamveil as sv
from streamveil.compiler.value_sizes import (
    LOGS,
    MIDDLES,
    POWERS,
    WHOLE_LOGS,
    ValueSizes,
    laws_of_sizes,
    with_tail,
)
from streamveil.core.noise import SeededNoise
from streamveil.plan.look import CLAMPED, LOOKED, with_look
from streamveil.runtime.look import looked

SIGMA = 30.0


def seen_of(exact):
    """Noisy bins, and those of them that stand out."""
    noisy = exact + np.round(np.random.default_rng(2).normal(0, SIGMA, len(exact))).astype(int)
    return noisy, np.where(noisy > 6 * SIGMA, noisy, 0.0)


def bins_of(cumulated, units):
    return np.round(units * np.diff(cumulated, prepend=0, append=1)).astype(np.int64)


@pytest.mark.parametrize(
    "cumulated",
    [ndtr((LOGS - 4) / 2.8), ndtr((LOGS + 20) / 1.5), 1 - (1 + POWERS / 9) ** -2.0,
     1 - np.exp(-POWERS / 50)],
    ids=["log-normal", "small and log-normal", "Pareto", "exponential"],
)  # fmt: skip
def test_what_noise_hides_of_a_tail_is_found_within_two_fifths(cumulated):
    exact = bins_of(cumulated, 30_000)
    noisy, seen = seen_of(exact)
    hidden = np.arange(len(exact)) > np.flatnonzero(seen)[-1]
    truth, found = (float(one[hidden] @ MIDDLES[hidden])
                    for one in (exact, with_tail(noisy, seen, SIGMA, 1.0)))  # fmt: skip
    assert found == pytest.approx(truth, rel=0.4)


@pytest.mark.parametrize(("mean", "seed"), [(0.25, 3), (0.7, 4), (2.0, 5)])
def test_of_whole_numbers_the_tail_is_found_although_bins_hold_none(mean, seed):
    """No number lies between the root of 2 and 2: a law of fractions would stop there."""
    values = np.random.default_rng(seed).poisson(mean, 20_000)
    exact = np.bincount(np.searchsorted(POWERS, values[values > 0], side="right"),
                        minlength=len(POWERS) + 1)  # fmt: skip
    noisy, seen = seen_of(exact)
    end = POWERS[np.flatnonzero(seen)[-1]]
    truth = np.maximum(values - end, 0).sum() / values.sum()
    found = ValueSizes(
        np.zeros(len(exact)), with_tail(noisy, seen, SIGMA, 1.0, whole=True), whole=True
    )
    assert found.beyond(0, end) == pytest.approx(truth, abs=0.01)
    assert found.mean == pytest.approx(values[values > 0].mean(), rel=0.1)


def test_no_law_of_whole_numbers_puts_any_where_there_are_none():
    places = np.searchsorted(POWERS, np.arange(1, 10**5), side="right")
    empty = np.setdiff1d(np.arange(1, places.max()), places)
    assert len(empty) > 20
    assert not laws_of_sizes(1.5, WHOLE_LOGS)[:, empty].any()


@pytest.mark.parametrize("prices", [(1, 5, 10, 20, 100), (3,), (0.001, 1_000)])
def test_values_that_end_have_hardly_a_tail(prices):
    exact = np.zeros(len(MIDDLES), np.int64)
    exact[np.searchsorted(POWERS, prices, side="right")] = 30_000 // np.arange(1, len(prices) + 1)
    noisy, seen = seen_of(exact)
    more = with_tail(noisy, seen, SIGMA, 1.0) - seen
    assert more @ MIDDLES < 0.05 * (exact @ MIDDLES)


def test_zeros_alone_stay_as_they_are():
    seen = np.append(9e3, np.zeros(len(POWERS)))
    assert (with_tail(seen.astype(np.int64), seen, SIGMA, 1.0) == seen).all()


def told(groups, columns="SUM(x) AS s", units=20_000):
    """A look at log-normal values in groups of about the same size."""
    rng = np.random.default_rng(19)
    rows = pa.table({"user": np.arange(units), "page": rng.integers(0, groups, units),
                     "x": np.exp(rng.normal(0, 2, units))})  # fmt: skip
    plan = sv.sql(
        "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 2, delta = 1e-9,"
        f" privacy_unit_column = user) page, {columns} FROM t GROUP BY page", {"t": rows}
    ).plan  # fmt: skip
    return looked(with_look(plan), SeededNoise(5))[0], rows


def test_bounds_are_wide_for_few_groups_and_narrow_for_many():
    few, many = (told(groups)[0].aggregates[0].high for groups in (3, 400))
    assert few >= 4 * many


def test_quantiles_keep_the_bounds_that_hold_what_was_seen():
    alone, beside = (told(400, "SUM(x) AS s" + more)[0].aggregates[0].high
                     for more in ("", ", APPROX_QUANTILES(x, 2) AS q"))  # fmt: skip
    assert beside >= 2 * alone


def test_what_clamping_takes_is_said_and_near_the_truth():
    plan, rows = told(3)
    x, high = rows["x"].to_numpy(), plan.aggregates[0].high
    truth = np.maximum(x - high, 0).sum() / x.sum()
    assert plan.options[LOOKED]["options"][CLAMPED]["x"] == pytest.approx(truth, abs=0.05)
    assert f"to {high:.4g}, beyond which about" in plan.options[LOOKED]["said"][-1]
