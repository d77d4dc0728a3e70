"""Tails of values that noise hides, and the bounds that are chosen by them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtr

import streamveil as sv
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.value_sizes import (
    LOGS,
    MIDDLES,
    POWERS,
    WHOLE_LOGS,
    ValueSizes,
    laws_of_sizes,
    tails,
)
from streamveil.core.noise import SeededNoise
from streamveil.plan.look import CLAMPED, CLAMPED_VARIANCE, LOOKED, with_look
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
                    for one in (exact, tails(noisy, seen, SIGMA).mean(1.0)))  # fmt: skip
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
        np.zeros(len(exact)), tails(noisy, seen, SIGMA, whole=True).mean(1.0), whole=True
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
    more = tails(noisy, seen, SIGMA).mean(1.0) - seen
    assert more @ MIDDLES < 0.05 * (exact @ MIDDLES)


def test_zeros_alone_stay_as_they_are():
    seen = np.append(9e3, np.zeros(len(POWERS)))
    assert (tails(seen.astype(np.int64), seen, SIGMA).mean(1.0) == seen).all()


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


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("bounds", [(-np.inf, np.inf), (-3.0, 5.0), (0.0, 100.0)])
def test_mean_and_variance_of_clamped_values_are_those_of_the_rows(share, bounds):
    rng = np.random.default_rng(23)
    values = np.exp(rng.normal(1, 1, 100_000)) * rng.choice([1, 1, -1], 100_000)
    sides = [np.bincount(np.searchsorted(POWERS, side[side > 0], side="right"),
                         minlength=len(POWERS) + 1) for side in (-values, values)]  # fmt: skip
    rows = np.append(values, np.zeros(round(len(values) * (1 / share - 1)))).clip(*bounds)
    mean, variance = ValueSizes(sides[0] * 1.0, sides[1] * 1.0, share).moments(*bounds)
    assert mean == pytest.approx(rows.mean(), abs=0.02 * rows.std())
    assert variance == pytest.approx(rows.var(), rel=0.05)


def test_a_variance_moves_its_bounds_by_the_error_of_squares():
    columns = "STDDEV(LN(x)) AS s"
    few, many = (told(groups, columns)[0].aggregates[0] for groups in (1, 400))
    assert few.high - few.low >= 2 * (many.high - many.low)


def test_of_a_variance_it_is_said_which_share_of_it_is_clamped_away():
    columns = "AVG(LN(x)) AS mean, STDDEV(LN(x)) AS spread"
    plan, rows = told(300, columns)
    x, bounds = np.log(rows["x"].to_numpy()), plan.aggregates[1]
    truth = 1 - x.clip(bounds.low, bounds.high).var() / x.var()
    share = plan.options[LOOKED]["options"][CLAMPED_VARIANCE]["LN(x)"]
    assert share == pytest.approx(truth, abs=0.1)
    assert f"and about {share:.1%} of their variance" in plan.options[LOOKED]["said"][-1]
    means, spreads = (output.clamped for output in compile_plan(plan).outputs)
    assert "of what values add up to" in means
    assert f"about {share:.1%} of their variance" in spreads
