"""A sum beside a mean, or a count, of the same values: fewer lanes, less noise, true intervals."""

from dataclasses import replace
from functools import lru_cache
from math import sqrt

import numpy as np
import pyarrow as pa
import pytest
from scipy.stats import norm

from streamveil.audit.pipeline import unbroken
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.plan_forecast import answer_sd, lane_sd
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.dataflow.outputs import Output, Totals
from streamveil.dataflow.release_tables import Thresholds, since_counted, since_shown
from streamveil.results.post import post_processed
from streamveil.sql.post import read_step
from tests.compiler.beside import GROUPS, SIZE, UNITS, held, plant_noise_apart, query_of, release_of
from tests.released import made
from tests.statistics import assert_rate, assert_rejects_rate, rounded_gaussian

RNG = np.random.default_rng(27)
TABLE = pa.table({
    "u": np.arange(UNITS), "g": np.arange(UNITS) % GROUPS,
    "x": pa.array(RNG.gamma(2, 20, UNITS), mask=RNG.random(UNITS) < 0.2),
})  # fmt: skip
BOUNDS = (-10, 90)
X = np.clip(TABLE["x"].to_numpy(), *BOUNDS)
HERE = ~np.isnan(X)
TRUE = {
    "s": np.bincount(TABLE["g"].to_numpy()[HERE], X[HERE], GROUPS),
    "n": np.bincount(TABLE["g"].to_numpy()[HERE], minlength=GROUPS),
    "r": np.full(GROUPS, SIZE),
}  # fmt: skip


def of(function, low, high):
    return f"{function}(x, contribution_bounds_per_row => ({low}, {high}))"


def asked(columns, options="epsilon = 4, delta = 1e-6"):
    return query_of(TABLE, columns, options)


def sd_of(columns, name):
    operator = compile_plan(asked(columns).plan)
    output = next(one for one in operator.outputs if one.name == name)
    return answer_sd(operator, output, 1), operator


@pytest.mark.parametrize(
    ("low", "high", "beside", "lanes", "narrower"),
    [
        (0, 60, "AVG", 2, 1 / 3), (-50, 60, "AVG", 2, 0.565), (-60, 60, "AVG", 2, 0.5),
        (20, 60, "STDDEV", 3, 0.370), (-60, -20, "VARIANCE", 3, 0.370),
        (0, 60, "COUNT", 2, 0.5), (40, 60, "COUNT", 2, 0.722), (-50, 60, "COUNT", 2, 0.847),
    ],
)  # fmt: skip
def test_it_has_no_lane_of_its_own(low, high, beside, lanes, narrower):
    """`narrower`: its variance over that with a lane of its own, as proved."""
    beside_it = "COUNT(x)" if beside == "COUNT" else of(beside, low, high)
    apart = "COUNTIF(x > 0)" if beside == "COUNT" else of(beside, low, high + 1e-9)
    total = f"{of('SUM', low, high)} AS s"
    (sd, operator), (own, other) = (
        sd_of(f"{total}, {one} AS o", "s") for one in (beside_it, apart)
    )
    assert len(operator.aggregation.lanes) == lanes
    assert (sd / own) ** 2 == pytest.approx(
        narrower, rel=0.03
    )  # sums of whole numbers have a bit more
    assert len(other.outputs[0].lanes) == 1
    for place, lane in enumerate(operator.aggregation.lanes):  # and nothing else has more noise
        if lane in other.aggregation.lanes:
            same = other.aggregation.lanes.index(lane)
            assert lane_sd(operator, place, 1) <= lane_sd(other, same, 1) * 1.001


COLUMNS = f"{of('SUM', *BOUNDS)} AS s, {of('AVG', *BOUNDS)} AS a, COUNT(x) AS n, COUNT(*) AS r"


@lru_cache
def released(noise):
    """The one release of the query."""
    return release_of(TABLE, COLUMNS, noise)


def test_without_noise_it_is_the_sum():
    table = released(SilentNoise()).table.sort_by("g")
    np.testing.assert_allclose(table["s"], TRUE["s"], atol=1e-3)
    np.testing.assert_allclose(table["n"], TRUE["n"])


def before(numbers):
    """The number of the row before."""
    return np.r_[np.nan, numbers[:-1]]


@pytest.mark.parametrize(("low", "high"), [(0, 100), (18, 90), (1990, 2025), (-1010, -1000)])
@pytest.mark.parametrize("beside", ["AVG", "COUNT"])
def test_the_count_that_moves_it_back_has_coarse_steps(low, high, beside):
    """Chances are exact. Without room for these steps some are below .9."""
    beside_it = "COUNT(x)" if beside == "COUNT" else of(beside, low, high)
    found, plain = [], []
    for epsilon in (1, 2, 5, 8, 9, 14, 20, 40):
        options = f"epsilon = {epsilon}, delta = 1e-6"
        operator = compile_plan(
            asked(f"{of('SUM', low, high)} AS s, {beside_it} AS o", options).plan
        )
        output = operator.outputs[0]
        sds = np.array([[lane_sd(operator, lane, 1)] for lane in output.lanes])
        noise, law = np.arange(-200.0, 201), rounded_gaussian(np.sqrt(sds[0] ** 2 - 1 / 12))
        for one, chances in ((output, found), (replace(output, room=0.0), plain)):
            reach = one.answer(Totals(0 * sds, sds**2), 0.95).high
            rest = (norm.cdf((side * reach - output.centre * noise) / sds[1]) for side in (1, -1))
            held = np.subtract(*rest) * (law.cdf(noise) - law.cdf(noise - 1))
            chances.append(held.sum())
    assert min(found) > 0.948  # where finer noise spreads the steps out, but for this much
    assert min(plain) < 0.935 or low == 0


SEED = 20261127
SUMS = {
    "s": lambda s, n, r: s, "s + 40 * n": lambda s, n, r: s + 40 * n,
    "s - 40 * n": lambda s, n, r: s - 40 * n, "n - s": lambda s, n, r: n - s,
    "s - LAG(s) OVER (ORDER BY g)": lambda s, n, r: s - before(s),
    "s - 40 * LAG(n) OVER (ORDER BY g)": lambda s, n, r: s - 40 * before(n),
    "s + n - 40 * r": lambda s, n, r: s + n - 40 * r,
}  # fmt: skip
RATIOS = {"s / n": lambda s, n, r: s / n, "s / r": lambda s, n, r: s / r}


def covered(text, exact):
    true = exact(TRUE["s"], TRUE["n"], TRUE["r"])
    return held(released(SeededNoise(SEED)), asked(COLUMNS).plan, text, true)


@pytest.mark.parametrize("text", SUMS)
def test_intervals_of_sums_hold_the_truth_as_often_as_they_say(text):
    """A sum shares the noise of the count of its values; false alarms: 1e-9."""
    assert_rate(*covered(text, SUMS[text]), 0.95)


@pytest.mark.parametrize("text", RATIOS)
def test_intervals_of_ratios_hold_the_truth_at_least_as_often(text):
    """6.2 deviations of as many coins below: false alarms 1e-9."""
    hits, trials = covered(text, RATIOS[text])
    assert hits > 0.95 * trials - 6.2 * sqrt(trials * 0.95 * 0.05)


@pytest.mark.parametrize("text", ["s + 40 * n", "s - 40 * n"])
def test_noise_taken_for_apart_is_seen(text, monkeypatch):
    plant_noise_apart(monkeypatch)
    assert_rejects_rate(*covered(text, SUMS[text]), 0.95)


@pytest.mark.parametrize(("text", "ends"), [("s / n", BOUNDS), ("s / r", BOUNDS),
                                            ("-2 * s / n", (-180, 20))])  # fmt: skip
def test_a_sum_for_each_row_lies_within_the_bounds(text, ends):
    release = released(SeededNoise(SEED))
    table = release.table
    counts = [name for name in ("n", "r") if name in text]
    for name in counts:  # as if there were hardly any rows: the ratio is mostly noise
        low = pa.array(table[f"{name}_low"].to_numpy() - SIZE * 0.8)
        high = pa.array(table[f"{name}_high"].to_numpy() - SIZE * 0.8)
        fewer = pa.array(table[name].to_numpy() - 10)
        for column, cells in ((f"{name}_low", low), (f"{name}_high", high), (name, fewer)):
            table = table.set_column(table.column_names.index(column), column, cells)
    steps = read_step(f"g, {text} AS d", "WHERE n <> 0 AND r <> 0", asked(COLUMNS).plan)
    found = post_processed(made(table), tuple(steps)).table
    number, low, high = (found[name].to_numpy() for name in ("d", "d_low", "d_high"))
    assert ends[0] == low.min() <= number.min()
    assert number.max() <= high.max() == ends[1]
    assert {*number} & {*ends}
    assert ((low <= number) & (number <= high)).all()


def test_a_sum_for_each_row_of_other_values_may_lie_anywhere():
    columns = f"{of('SUM', *BOUNDS)} AS s, COUNT(x + 1) AS n"
    operator = compile_plan(asked(columns).plan)
    [release] = unbroken(operator, [Batch(TABLE, 1, True, "{}")], SeededNoise(SEED))
    steps = read_step("g, s / n AS d", "", asked(columns).plan)
    assert post_processed(release, steps).table["d_high"].to_numpy().max() > BOUNDS[1]


def passed(order, threshold):
    """A threshold that the count of every group was above."""
    return Thresholds(*np.repeat([[threshold], [1.0], [0.0]], len(order), axis=1))


@pytest.mark.parametrize(("low", "high"), [(0.0, 2.0), (-2.0, 0.0), (-1.0, 2.0)])
def test_sums_of_groups_that_their_counts_showed(low, high):
    """False alarms: 1e-9. Without the correction the truth is held too rarely."""
    rng, threshold, sds = np.random.default_rng(5), 60.0, np.array([9.0, 4.0])[:, None]
    true = np.tile([20.0, 35, 45, 50, 55, 60, 70, 80, 130, 400], 20_000)
    middle = (low + high) / 2
    output = Output(name="s", function="sum", lanes=(0, 1), low=low, high=high, centre=middle)
    exact = np.stack([true, 0.3 * true])
    noisy = exact + sds * rng.standard_normal(exact.shape)
    totals = Totals(noisy, np.broadcast_to(sds**2, noisy.shape))
    order = np.flatnonzero(noisy[0] > threshold).astype(np.int32)
    plain = output.in_order(totals, order, 0.95)
    fixed = since_shown(plain, output, totals, order, passed(order, threshold), 0.95)
    wanted = (output.factors[0] * exact[0] + exact[1])[order]
    for size in (55, 60, 70, 130, 400):
        some = true[order] == size
        hits = [int(((one.low <= wanted) & (wanted <= one.high))[some].sum())
                for one in (plain, fixed)]  # fmt: skip
        trials = int(some.sum())
        assert hits[1] > 0.95 * trials - 6.2 * sqrt(trials * 0.95 * 0.05)
        if size == 55 and abs(low + high) > 1:
            assert_rejects_rate(hits[0], trials, 0.95)
        if size == 400:  # far above the threshold, which says nothing of their noise
            np.testing.assert_array_equal(fixed.low[some], plain.low[some])
    unseen = since_shown(plain, output, totals, order, passed(order, -np.inf), 0.95)
    np.testing.assert_array_equal(unseen.low, plain.low)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("part", [0.01, 0.3, 0.7, 0.99])  # of the variance that the count has
def test_lower_ends_of_such_sums_fail_as_often_as_they_say_at_most(part, confidence):
    """Integrated over all noise, for true counts below and above the threshold."""
    noise = np.linspace(-9, 9, 2_001)
    weight, sds = norm.pdf(noise) * (noise[1] - noise[0]), np.sqrt([part, 1 - part])
    output, nowhere = Output(name="s", function="sum", lanes=(0, 1), centre=1.0), noise + np.inf
    for above in np.arange(-5, 9, 0.5):  # the true count, in deviations
        count = (above + noise) * sds[0]
        totals = Totals(
            np.stack([count, 0 * count]), np.repeat(sds[:, None] ** 2, len(count), axis=1)
        )
        least = min(above, -4.0) * sds[0]
        law = Thresholds(*np.repeat([[0.0], [least], [0.0]], len(count), axis=1))
        low, _ = since_counted(output, totals, law, (nowhere, nowhere), confidence)
        missed = weight * norm.cdf((low - above * sds[0]) / sds[1])  # by the noise of the rest
        assert missed[count > 0].sum() < norm.cdf(above) * (1 - confidence) / 2
        assert missed.sum() < (1 - confidence) / 2
        late = missed[count > 0].sum() / norm.cdf(above)
    assert late > 0.9 * (1 - confidence) / 2  # far above the threshold hardly wider than without it


@pytest.mark.parametrize(
    ("function", "far", "groups"),  # means, from the middle of their bounds to an end
    [
        ("avg", 0.9, 20_000),
        ("avg", -0.9, 20_000),
        ("variance", 0.9, 10_000),
        ("stddev", -0.9, 10_000),
    ],
)
def test_means_of_groups_that_their_counts_showed(function, far, groups):
    """False alarms: 1e-9. Without the correction a mean near a bound is held too rarely."""
    rng, threshold = np.random.default_rng(6), 60.0
    sds = np.array([9.0, 2.0, 2.0])[:, None]
    true = np.tile([45.0, 50, 55, 60, 70, 80, 130, 400], groups)
    output = Output(name="a", function=function, lanes=(0, 1, 2), low=-1.0, high=1.0)
    output = replace(output, lanes=(0, 1)) if function == "avg" else output
    exact = np.stack([true, far * true, (far**2 + 0.05) * true])
    noisy = exact + sds * rng.standard_normal(exact.shape)
    totals = Totals(noisy, np.broadcast_to(sds**2, noisy.shape))
    order = np.flatnonzero(noisy[0] > threshold).astype(np.int32)
    plain = output.in_order(totals, order, 0.95)
    fixed = since_shown(plain, output, totals, order, passed(order, threshold), 0.95)
    spread = 0.05 * true / (true - 1)
    wanted = {"avg": far + 0 * true, "variance": spread, "stddev": np.sqrt(spread)}[function][order]
    for size in (45, 50, 55, 60, 70, 130, 400):
        some = true[order] == size
        hits = [int(((one.low <= wanted) & (wanted <= one.high))[some].sum())
                for one in (plain, fixed)]  # fmt: skip
        trials = int(some.sum())
        assert hits[1] > 0.95 * trials - 6.2 * sqrt(trials * 0.95 * 0.05)
        if size <= 55 and function == "avg":
            assert_rejects_rate(hits[0], trials, 0.95)
        if size == 400:  # far above the threshold, which says nothing of their noise
            np.testing.assert_array_equal(fixed.low[some], plain.low[some])
    unseen = since_shown(plain, output, totals, order, passed(order, -np.inf), 0.95)
    np.testing.assert_array_equal(unseen.low, plain.low)
