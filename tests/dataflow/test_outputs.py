"""Intervals of quantiles, means and variances cover the exact answers, for any noise."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy import stats

import streamveil as sv
from streamveil.dataflow.outputs import (
    AT_ONCE,
    FUNCTIONS,
    OF_POPULATIONS,
    Estimate,
    Output,
    Totals,
    apart,
    at_edges,
    clip,
    fieller,
    in_turn,
    quantile_of,
    reach_of,
)
from streamveil.dataflow.release import to_totals
from streamveil.dataflow.release_tables import risen
from streamveil.kinds import AGGREGATES, SKETCHES
from streamveil.results.intervals import RoundedPart, plain, ratio
from tests.audit import queries
from tests.statistics import ALPHA, assert_rate, discrete_gaussian, rounded_gaussian

FAN, LEVELS, CONFIDENCE = 4, 3, 0.95
DRAWS = 4_000
LEAVES = FAN**LEVELS
VALUES = {
    "even": np.linspace(0, 1, 601),
    "skewed": np.linspace(0, 1, 601) ** 4,
    "one point": np.full(300, 0.3),
    "few": np.linspace(0.4, 0.6, 30),
}


def exact_totals(values):
    leaf = np.minimum((values * LEAVES).astype(int), LEAVES - 1)
    rows = [
        np.bincount(leaf // FAN ** (LEVELS - level), minlength=FAN**level)
        for level in range(1, LEVELS + 1)
    ]
    return np.concatenate(rows).astype(float)[:, None]


def answer(totals, variance, q, confidence=CONFIDENCE):
    output = Output(
        name="x", function="quantile", lanes=tuple(range(len(totals))), low=0.0, high=1.0, q=q,
        levels=LEVELS, fan=FAN,
    )  # fmt: skip
    return output.answer(Totals(totals, np.full_like(totals, variance)), confidence)


@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("q", [0.0, 0.01, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("sd", [3.0, 30.0])
def test_the_interval_of_a_quantile_covers_it(values, q, sd):
    """Fails on intervals made of a noisy rank: at q = 0.99 these covered 36 to 66 of 100."""
    exact = exact_totals(VALUES[values])
    true = answer(exact, 1e-12, q).value[0]
    noisy = exact + sd * np.random.default_rng(7).standard_normal((len(exact), DRAWS))
    found = answer(noisy, sd**2, q)
    covered = int(np.sum((found.low <= true) & (true <= found.high)))
    assert stats.binom.cdf(covered, DRAWS, CONFIDENCE) > ALPHA
    assert np.all((found.low <= found.value) & (found.value <= found.high))
    assert np.all((found.low >= 0) & (found.high <= 1))


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.999])
def test_intervals_of_whole_noise_cover_as_often_as_they_say(confidence):
    """Chances are exact. In parts of deviations alone they are too small: the fault is seen."""
    z, covered, missed = quantile_of(confidence), [], []
    for spread in np.geomspace(0.05, 60, 500):
        law, sd = rounded_gaussian(spread), np.sqrt([spread**2 + 1 / 12])
        for step, found in ((1.0, covered), (0.0, missed)):
            reach = np.floor(reach_of(sd, z, step)[0])
            found.append(law.cdf(reach) - law.cdf(-reach - 1))
    assert min(covered) >= confidence
    assert min(missed) < confidence - 0.003


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_intervals_of_sums_of_whole_noise_cover_as_often_as_they_say(confidence):
    """Of two numbers, one of them times a factor; chances are exact."""
    z, covered = quantile_of(confidence), []
    for spreads in product(np.linspace(0.5, 4, 8), repeat=2):
        one, two = (discrete_gaussian(spread) for spread in spreads)
        chances = np.multiply.outer(one.masses, two.masses)
        spread = [law.masses @ law.values**2 for law in (one, two)]
        for factor in (1.0, -1.0, 0.5, 0.9, 2.0, 3.0, 0.01):
            found = plain(
                np.zeros(1),
                np.array([spread[0] + factor**2 * spread[1]]),
                z,
                [
                    RoundedPart(np.ones(1), spread[0]),
                    RoundedPart(np.array([abs(factor)]), factor**2 * spread[1]),
                ],
            )
            noise = np.add.outer(one.values, factor * two.values)
            covered.append(chances[np.abs(noise) <= found.high + 1e-9].sum())
    assert min(covered) >= confidence - 0.002


def test_ratios_of_whole_noise_cover_as_often_as_they_say():
    """Of two counts with the same noise; in parts of deviations alone they do not."""
    z, found = quantile_of(CONFIDENCE), {0.0: [], 1.0: []}
    for spread, r in product(np.linspace(0.3, 4, 20), (0.02, 0.1, 1 / 3, 0.5, 0.75, 1.0)):
        law, noise = rounded_gaussian(spread), np.arange(-40.0, 41)
        chances = law.cdf(noise) - law.cdf(noise - 1)
        bottom, top = (count.ravel() for count in np.meshgrid(1e3 + noise, 1e3 * r + noise))
        variance = np.full(len(top), spread**2 + 1 / 12)
        none = np.zeros(len(top))
        for step, shares in found.items():
            ends = ratio((top, variance), (bottom, variance), (none, none), z, (step / 2, step / 2))
            inside = (ends.low <= r + 1e-9) & (r - 1e-9 <= ends.high)
            shares.append(np.multiply.outer(chances, chances).ravel()[inside].sum())
    assert min(found[1.0]) >= CONFIDENCE
    assert min(found[0.0]) < 0.92


def test_a_count_with_little_noise_covers_as_often_as_it_says():
    """Of 4,000 groups, with deviations at which few multiples are within 1.96 of them."""
    groups = [f"{at:04}" for at in range(4_000)]
    rows = {"user": range(8_000), "k": groups * 2}
    for epsilon in (4, 1.6):
        table = (
            sv.memory(rows).protect("user").group_by("k", keys=sv.public(groups))
            .agg(n=sv.count()).bound(max_rows=1)
            .release(budget=sv.Budget(epsilon=epsilon, delta=1e-9)).answer().table
        )  # fmt: skip
        value, sd, low, high = (table["n" + end].to_numpy() for end in ("", "_sd", "_low", "_high"))
        inside, sd = int(((low <= 2) & (high >= 2)).sum()), sd[0]
        chance = rounded_gaussian(np.sqrt(sd**2 - 1 / 12)).cdf(np.rint(1.96 * sd))
        assert 2 * chance - 1 > CONFIDENCE + 0.005
        assert_rate(inside, len(value), 2 * chance - 1)
        assert (np.abs(value - 2) <= 1.96 * sd).mean() < CONFIDENCE - 0.005


def test_too_little_noise_is_told_apart():
    """The power of the test above: noise twice as large as declared is not covered."""
    exact = exact_totals(VALUES["even"])
    noisy = exact + 6.0 * np.random.default_rng(8).standard_normal((len(exact), DRAWS))
    found, true = answer(noisy, 1.5**2, 0.5), answer(exact, 1e-12, 0.5).value[0]
    covered = int(np.sum((found.low <= true) & (true <= found.high)))
    assert stats.binom.cdf(covered, DRAWS, CONFIDENCE) < ALPHA


def test_the_interval_of_a_quantile_closes_as_the_noise_does():
    exact = exact_totals(VALUES["even"])
    found = answer(exact, 1e-12, 0.5)
    assert found.high[0] - found.low[0] <= 1 / LEAVES + 1e-12


def test_the_answer_for_a_key_does_not_depend_on_keys_beside_it():
    exact, part = exact_totals(VALUES["skewed"]), AT_ONCE // LEAVES
    noisy = exact + 10 * np.random.default_rng(9).standard_normal((len(exact), part + 3))
    together = answer(noisy, 100.0, 0.9)
    for key in (0, part - 1, part, part + 2):
        alone = answer(noisy[:, key : key + 1], 100.0, 0.9)
        for one, other in zip(vars(alone).values(), vars(together).values(), strict=True):
            assert one[0] == other[key]


HALF = 0.5  # of the width of the values' bounds, which are 0 and 1
SUMMARIES = {  # of the values: mean, mean squared distance from it
    "even": (0.5, 0.08),
    "half at each bound": (0.5, 0.25),
    "few at a bound": (0.01, 0.0099),
    "all at a bound": (1.0, 0.0),
    "near a bound": (0.9, 0.01),
}


def noisy_moments(n, summary, sds):
    """Many draws of a count, of a centred sum and of one of squares, as totals."""
    mean, distance = SUMMARIES[summary]
    sums = np.array([n, n * (mean - HALF), n * (distance + (mean - HALF) ** 2)])
    rng = np.random.default_rng(7)
    estimate = sums[:, None] + rng.normal(0, 1, (3, DRAWS)) * np.array(sds)[:, None]
    estimate[0] = np.rint(estimate[0])
    variance = np.array(sds)[:, None] ** 2 + np.array([1 / 12, 0, 0])[:, None]
    return Totals(estimate, np.broadcast_to(variance, estimate.shape))


@pytest.mark.parametrize("summary", SUMMARIES)
@pytest.mark.parametrize("n", [2, 5, 30, 300, 3000])
@pytest.mark.parametrize("sds", [(10.0, 2.5, 1.25), (10.0, 10.0, 5.0), (3.0, 3.0, 0.5)], ids=str)
def test_intervals_of_means_and_variances_cover_them(summary, n, sds):
    """Fails on the delta method: at 0.95 it covered 84 of 100 means and 1 of 100 variances."""
    mean, distance = SUMMARIES[summary]
    sample = distance * n / (n - 1)
    truths = {"avg": mean, "variance": sample, "var_pop": distance}
    moments = noisy_moments(n, summary, sds)
    for (function, true), confidence in product(truths.items(), (0.95, 0.999)):
        lanes = (0, 1) if function == "avg" else (0, 1, 2)
        output = Output(name="x", function=function, lanes=lanes, low=0.0, high=1.0, centre=0.5)
        found = output.answer(moments, confidence)
        covered = int(np.sum((found.low <= true + 1e-12) & (true - 1e-12 <= found.high)))
        assert stats.binom.cdf(covered, DRAWS, confidence) > ALPHA, (function, confidence)
        assert np.all((found.low <= found.value) & (found.value <= found.high))
        assert np.all(found.low >= 0)


@pytest.mark.parametrize(("of", "square"), [("stddev", "variance"), ("stddev_pop", "var_pop")])
def test_a_standard_deviation_is_the_root_of_its_variance_with_its_interval(of, square):
    """So what covers the one covers the other."""
    moments = noisy_moments(30, "near a bound", (10.0, 2.5, 1.25))
    asked = Output(name="x", function=square, lanes=(0, 1, 2), low=0.0, high=1.0, centre=0.5)
    square = asked.answer(moments, 0.95)
    root = replace(asked, function=of).answer(moments, 0.95)
    for name in ("value", "low", "high"):
        assert np.allclose(getattr(root, name) ** 2, getattr(square, name), atol=1e-12)


def test_the_variance_of_a_population_is_that_of_its_values():
    """And of a sample n / (n - 1) times as much."""
    values = np.array([0.1, 0.4, 0.4, 0.9]) - 0.5
    exact = Totals(np.array([[4.0], [values.sum()], [(values**2).sum()]]), np.zeros((3, 1)))
    for function, wanted in {"var_pop": np.var(values), "variance": np.var(values, ddof=1)}.items():
        output = Output(name="x", function=function, lanes=(0, 1, 2), high=1.0, centre=0.5)
        found = output.answer(exact, 0.95)
        assert [found.low[0], found.value[0], found.high[0]] == pytest.approx([wanted] * 3)


@pytest.mark.parametrize("function", ["avg", "variance"])
def test_intervals_of_means_and_variances_close_as_the_noise_does(function):
    """Where the noise is small, those of the delta method are hardly narrower."""
    lanes = (0, 1) if function == "avg" else (0, 1, 2)
    output = Output(name="x", function=function, lanes=lanes, low=0.0, high=1.0, centre=0.5)
    found = output.answer(noisy_moments(100_000, "even", (3.0, 3.0, 3.0)), 0.95)
    ratio = (found.high - found.low) / (2 * 1.96 * found.sd)
    assert np.all((ratio > 0.99) & (ratio < 1.06))


@pytest.mark.parametrize("function", ["avg", "variance", "stddev"])
def test_a_count_that_may_be_zero_leaves_all_open(function):
    lanes = (0, 1) if function == "avg" else (0, 1, 2)
    output = Output(name="x", function=function, lanes=lanes, low=-2.0, high=4.0, centre=1.0)
    found = output.answer(Totals(np.zeros((3, 1)), np.ones((3, 1))), 0.95)
    low, high = {"avg": (-2, 4), "variance": (0, 18), "stddev": (0, 18**0.5)}[function]
    assert found.low[0] == low
    assert found.high[0] == pytest.approx(high)


def test_the_ends_of_a_ratio_are_where_its_noise_explains_it_just_so():
    top, bottom = (np.array([3.0, 3.0, -4.0]), np.array([1.0, 1.0, 2.0])), (
        np.array([10.0, 1.0, 0.8]), np.array([4.0, 4.0, 0.05]))  # fmt: skip
    cov, z = np.array([0.5, 0.0, -0.3]), 1.5
    low, high = fieller(top, bottom, cov, z)
    assert (low[1], high[1]) == (-np.inf, np.inf), "a count that may be zero bounds nothing"
    for end in (low, high):
        rest = top[0] - end * bottom[0]
        allowed = z**2 * (top[1] - 2 * end * cov + end**2 * bottom[1])
        np.testing.assert_allclose(rest[[0, 2]] ** 2, allowed[[0, 2]])
    assert np.all((low < top[0] / bottom[0]) & (top[0] / bottom[0] < high))


def test_deviations_share_the_chance_of_errors():
    assert quantile_of(0.95) == pytest.approx(stats.norm.ppf(0.975))
    for share in (0.05, 0.5, 0.85):
        missed = 2 * stats.norm.sf(apart(quantile_of(0.95), share))
        assert missed == pytest.approx(0.05 * share)


def test_sums_at_edges_are_those_of_all_nodes_to_the_left():
    rng = np.random.default_rng(2)
    nodes = rng.integers(-9, 9, (6, 3, 2)).astype(float)  # parents, children, keys
    left = np.cumsum(np.concatenate([np.zeros((1, 2)), nodes.sum(axis=1)]), axis=0)[:-1]
    flat = nodes.reshape(-1, 2)
    wanted = np.cumsum(np.concatenate([np.zeros((1, 2)), flat]), axis=0)[:-1]
    np.testing.assert_array_equal(at_edges(left, nodes), wanted)
    np.testing.assert_array_equal(in_turn(flat), flat.sum(axis=0))


def test_answers_are_cut_to_bounds_or_rise_to_a_floor_and_keep_their_deviation():
    found = Estimate(*np.array([[1.0, 5.0], [2.0, 2.0], [-3.0, 1.0], [5.0, 9.0]]))
    cut = clip(found, 0.0, np.array([4.0, 6.0]))
    assert [part.tolist() for part in vars(cut).values()] == [[1, 5], [2, 2], [0, 1], [4, 6]]
    rose = risen(found, np.array([7.0, 2.0]))
    assert [part.tolist() for part in vars(rose).values()] == [[7, 5], [2, 2], [-3, 1], [7, 9]]


def test_totals_are_quanta_times_their_size_in_every_span():
    estimates, variances = [np.ones((1, 2)), np.full((2, 2), 3.0)], [np.full(2, 4.0), np.ones(2)]
    made = to_totals(((0, 1), (1, 3)), (0.5, 2.0), 2, *estimates, *variances)
    assert made.estimate.tolist() == [[0.5, 0.5], [6, 6], [6, 6]]
    assert made.variance.tolist() == [[1, 1], [4, 4], [4, 4]]


def test_every_aggregate_has_a_formula_and_a_place_in_the_account():
    asked = AGGREGATES.keys() - set(SKETCHES)
    assert asked == FUNCTIONS.keys()
    same_lanes = set(OF_POPULATIONS)  # as those of samples
    assert asked - same_lanes == {one.function for one in queries.AGGREGATES}
