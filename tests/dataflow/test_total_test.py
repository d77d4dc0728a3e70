"""Hidden keys that their noisy totals show: what junk cannot block, and what one unit can move."""

from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm

import streamveil as sv
from streamveil.compiler.group_by import compile_plan
from streamveil.core.accounting import Budget
from streamveil.core.counters.kernels import Coefficients
from streamveil.core.noise import Address, SeededNoise
from streamveil.core.release import WeightRule
from streamveil.core.selection.total_test import TotalTest, can_test
from streamveil.core.sensitivity import Bounds, Lane
from streamveil.counters import BltCounter
from streamveil.dataflow import release_tables
from streamveil.dataflow.outputs import Totals
from streamveil.dataflow.release import PublishedKeys
from streamveil.dataflow.release_tables import Numbers, ReleasePoint
from streamveil.plan import Bounding, Clock
from tests.dataflow.streams import AGGREGATES, batches, compiled, run
from tests.planting import forced
from tests.statistics import ALPHA, assert_rejects_rate, rate_p_value

ROWS = Lane(kind="rows")
TotalTest.__test__ = False


def made(bounds, horizon=8, tests=3, sigma=9, **changes):
    counter = BltCounter(horizon=horizon, sigma=sigma)
    settings = {
        "counter": counter, "lane": ROWS, "place": 0, "bounds": bounds, "rule": None,
        "tests": tests, "beta": Fraction(1, 20),
    }  # fmt: skip
    return TotalTest(**settings | changes)


# ---- what it is for


def junk_first(tokens, users=3_000, keys=20, rows=4, seed=1):
    """Every user's first rows are on keys of its own; the others on common keys."""
    rng = np.random.default_rng(seed)
    return [
        (u, f"{u}-{i}" if i < tokens else f"{rng.integers(keys):03}", 1, 1 + i, 0)
        for u in range(users) for i in range(tokens + rows)
    ]  # fmt: skip


@pytest.mark.parametrize("tokens", [3, 6])
def test_junk_keys_cannot_keep_the_others_hidden(tokens):
    """All slots are taken by keys that only one user has: no coin sees another key."""
    operator = compiled(
        bounding=Bounding(max_rows=12, max_rows_per_group=1), budget=Budget(epsilon=6, delta=1e-6),
        options={"selection": "table"},
    )  # fmt: skip
    assert operator.bounds.slots <= tokens
    releases, _ = run(operator, batches(junk_first(tokens)), SeededNoise(3))
    shown = releases[-1].table.column("k").to_pylist()
    assert shown == [f"{k:03}" for k in range(20)]
    assert operator.loss.fits(operator_budget := Budget(epsilon=6, delta=1e-6)), operator_budget


def test_what_is_tested_is_what_is_released():
    """The same draws: of a key that a total showed, the released total is above the threshold."""
    operator = compiled(
        bounding=Bounding(max_rows=12, max_rows_per_group=1), budget=Budget(epsilon=6, delta=1e-6),
        options={"selection": "table"},
    )  # fmt: skip
    test, found = operator.aggregation.test, 0
    assert len(test.triggers) > 1
    releases, _ = run(operator, batches(junk_first(3, users=1_300, keys=40)), SeededNoise(5))
    for release in releases:
        if release.trigger in test.triggers:
            low = test.threshold(release.trigger)
            for row in release.table.to_pylist():
                if row["opened"] == release.trigger:
                    assert row["n"] > low
                    found += 1
    assert found


# ---- what one unit can do: chances


@pytest.mark.parametrize(
    ("bounds", "rule"),
    [
        (Bounds(max_rows=6, per_group=2), None),
        (Bounds(quadratic=4), None),
        (Bounds(quadratic=4, scale=10), WeightRule(scale=10, entry=5, reference=9.0)),
    ],
)
def test_one_units_keys_are_shown_no_more_often_than_beta(bounds, rule):
    """Over all tests and keys of one unit, however it spreads its rows; planted: a lower bar."""
    test = made(bounds, rule=rule)
    keys, at = 40_000, Address(SeededNoise(7), b"job", 0)
    names = np.random.default_rng(2).integers(1, 2**63, (keys, 2)).astype(np.uint64)
    for rows in range(1, test.most + 1):
        alike = bounds.most_groups(test.entry) // (rows if bounds.quadratic is None else rows**2)
        lower = shown = np.zeros(0, np.int64)
        for trigger in test.triggers:
            totals = np.full(keys, test.floor - 1 + rows)
            shown = np.union1d(shown, test.passing(totals, names, trigger, at))
            totals += 2 * int(test.deviation(trigger))
            lower = np.union1d(lower, test.passing(totals, names, trigger, at))
        limit = float(test.beta) / alike
        assert len(shown) / keys <= limit or rate_p_value(len(shown), keys, limit) > ALPHA
        assert_rejects_rate(len(lower), keys, limit)


@pytest.mark.parametrize("sigma", [1.5, 4.3, 30])
def test_one_draw_is_off_by_half_a_quantum_and_no_more(sigma):
    """A bound for sums of many rounding errors cost four rows at a sigma of four."""
    beta, bounds = Fraction(1, 10**10), Bounds(max_rows=16, per_group=1)
    asked = made(bounds, horizon=1, tests=1, sigma=sigma, beta=beta).threshold(1)

    def passes(threshold):  # exactly: rounded noise is above threshold - 1
        return norm.sf((threshold - 0.5) / sigma)

    assert passes(asked) <= beta / 16
    assert passes(asked - 2) > beta / 16


def test_a_key_of_too_few_units_is_never_shown():
    """At least k units: what k - 1 of them may add is not even tested."""
    test = made(Bounds(max_rows=6, per_group=2), least_units=5, sigma=1000)
    names = np.random.default_rng(2).integers(1, 2**63, (20_000, 2)).astype(np.uint64)
    at = Address(SeededNoise(7), b"job", 0)
    totals = np.full(len(names), 4 * 2)
    assert all(not len(test.passing(totals, names, t, at)) for t in test.triggers)
    assert len(test.passing(totals + 4_000, names, 8, at))


def test_totals_that_fall_or_that_one_unit_fills_are_not_tested():
    few, many = Bounds(max_rows=6), Bounds(max_rows=10_000)
    counter = BltCounter(horizon=4, sigma=3)
    falling = Lane(kind="sum", value=0, low=-1.0, high=1.0)
    assert can_test(counter, ROWS, few, None)
    assert not can_test(counter, falling, few, None)
    assert not can_test(counter, ROWS, many, None)
    with pytest.raises(ValueError, match="one unit"):
        made(few, lane=falling)


def test_a_test_is_made_for_the_query_that_runs():
    operator = compiled(
        bounding=Bounding(max_rows=4), budget=Budget(epsilon=6, delta=1e-6),
        options={"selection": "table"}, aggregates=AGGREGATES[:1],
    )  # fmt: skip
    design = operator.design
    fewer = replace(design, limits=replace(design.limits, max_rows=1))
    later = replace(design, selection=replace(design.selection, offset=2))
    quiet = replace(design, noises=(1,))
    for changed, name, value in (
        (fewer, "bounds", replace(operator.bounds, max_rows=1)),
        (later, "least_units", 3),
        (quiet, "counter", replace(operator.aggregation.counters[0], sigma=1)),
    ):
        test = replace(operator, design=changed).aggregation.test
        assert getattr(test, name) == value != getattr(operator.aggregation.test, name)
        assert test.threshold(test.triggers[-1]) != operator.aggregation.test.threshold(
            test.triggers[-1]
        )


# ---- what one unit can do: the whole law, exactly

EPSILON, REACH, MOST = 1.5, 30, 24  # REACH: integers on both sides that a draw can be


def whole_law(operator, counted, totals):
    """The law of all that is released of one key over two triggers, from its exact numbers.

    `counted` units and `totals` at each trigger. Outcomes: both numbers; the second; nothing.
    """
    selection, test = operator.aggregation.selection, operator.aggregation.test
    chances = np.array([1.0, *selection.table.coins.chances, 0.0])
    rate, z = float(selection.table.shift_epsilon), np.arange(400)
    weight = np.exp(-rate * z) * -np.expm1(-rate)
    coins = [
        chances[np.clip(selection.table.threshold + z - s, 0, len(chances) - 1)] if s else 0 * z
        for s in counted
    ]
    first, second = float(weight @ coins[0]), float(weight @ ((1 - coins[0]) * coins[1]))
    both, one, two = drawn_noise(operator.aggregation.counters[0])
    y1, y2 = totals[0] + one, totals[1] + two
    passes1 = ((totals[0] >= test.floor) & (y1 > test.threshold(1)))[:, None]
    passes2 = (totals[1] >= test.floor) & (y2 > test.threshold(2))
    rest = both * ~passes1
    pairs = np.zeros((2 * REACH + 1 + MOST, 4 * REACH + 1 + MOST))
    places = y1[:, None] + REACH + np.zeros_like(y2), y2 + 2 * REACH
    np.add.at(pairs, places, both * np.where(passes1, 1.0, first))
    alone = np.zeros(pairs.shape[1])
    np.add.at(alone, places[1], rest * np.where(passes2, 1 - first, second))
    return pairs, alone, np.sum(rest * ~passes2) * (1 - first - second)


@cache
def drawn_noise(counter):
    """The joint law of the two draws, the noise of the first total, and that of the second."""
    plan, noise = counter.schedule, np.arange(-REACH, REACH + 1)
    d1, d2 = plan.scale(1), plan.scale(2)
    step = Coefficients(plan.keep, plan.drain, d2, counter.noise_scale * d2)
    both = np.repeat(rounded(noise, 0.0, counter.noise_scale * d1)[:, None], len(noise), axis=1)
    for k1, row in zip(noise, both, strict=True):
        offset = step.offset(np.full((len(plan.keep), 1), k1 / d1))
        row *= rounded(noise, float(offset[0]), counter.noise_scale * d2)
    assert both.sum() > 1 - 1e-9
    return both, noise, noise[:, None] + noise[None, :]


def rounded(noise, centre, scale):
    """The law of a Gaussian rounded to integers."""
    return norm.cdf(noise + 0.5, centre, scale) - norm.cdf(noise - 0.5, centre, scale)


def hockey(one, other):
    return sum(
        np.maximum(p - np.exp(EPSILON) * q, 0).sum() for p, q in zip(one, other, strict=True)
    )


def two_triggers(**options):
    grouped = sv.memory({"u": [1], "k": ["a"]}).protect("u").group_by("k", keys=sv.discover())
    query = grouped.agg(n=sv.count()).bound(max_rows=1).release(
        every=sv.rows(10), steps=2, budget=sv.Budget(epsilon=EPSILON, delta=0.02),
        selection="table", max_units=1000, **options,
    )  # fmt: skip
    return compile_plan(query.plan)


def worst(operator, most=7):
    """The largest divergence over neighbouring streams of one key, both ways."""
    found = 0.0
    for before, more in product((*range(3), most - 1, most, most + 8), (0, 1, 8)):
        for with_slots, arrives, slot in product((0, 1), (0, 1), (0, 1)):
            others = np.array([before, before + more])
            mine = np.array([arrives == 0, 1])
            one = whole_law(operator, with_slots * others, others)
            other = whole_law(operator, with_slots * others + slot * mine, others + mine)
            found = max(found, hockey(one, other), hockey(other, one))
    return found


def test_no_neighbouring_streams_are_told_apart_further_than_claimed():
    """Coins, tests and released numbers together, over two triggers, from their exact laws."""
    operator = two_triggers(total_tests=2)
    test = operator.aggregation.test
    assert test.triggers == (1, 2)
    claimed = operator.loss.delta_at(EPSILON)
    assert 0 < worst(operator) <= claimed <= 0.02 + 1e-12
    planted = forced(operator, aggregation=forced(operator.aggregation, test=Low(**vars_of(test))))
    assert worst(planted) > claimed  # thresholds that one unit passes


def alone(**options):
    return compiled(
        bounding=Bounding(max_rows=1), aggregates=AGGREGATES[:1],
        budget=Budget(epsilon=EPSILON, delta=Fraction(1, 100)),
        clock=Clock(kind="event", every=100, start_us=0, end_us=100),
        options={"selection": "totals", "cut_share": 0, "max_units": 1, **options},
    )  # fmt: skip


def apart(operator, others):
    """Both directions, for a key of some units and one more: shown with its number, or hidden."""
    test, sd = operator.aggregation.test, operator.aggregation.test.deviation(1)
    numbers = np.arange(test.threshold(1) + 1, others + 40 * int(sd + 1))
    laws = []
    for total in (others, others + 1):
        shown = np.zeros(len(numbers))
        if total >= test.floor:
            shown = norm.cdf(numbers + 0.5, total, sd) - norm.cdf(numbers - 0.5, total, sd)
        laws.append(np.append(shown, 1 - shown.sum()))
    return max(hockey(*laws), hockey(*laws[::-1]))


def test_totals_alone_tell_neighbours_no_further_apart_than_claimed():
    operator = alone()
    assert operator.aggregation.selected_by == "totals"
    claimed = operator.loss.delta_at(EPSILON)
    assert 0 < max(apart(operator, others) for others in range(60)) <= claimed <= 0.01
    test = operator.aggregation.test
    planted = forced(operator, aggregation=forced(operator.aggregation, test=Low(**vars_of(test))))
    assert apart(planted, 0) > claimed


@pytest.mark.parametrize("selection", ["totals", "table"])
def test_intervals_of_groups_that_their_totals_show_allow_for_it(selection):
    """Groups of fewer rows than the threshold are seen when their noise is high."""
    operator = alone(selection=selection)
    test = operator.aggregation.test
    units = test.threshold(1) - round(1.2 * test.deviation(1))
    rows = [(k * units + u, f"{k:04}", 1, 1, 0) for k in range(4_000) for u in range(units)]
    releases, _ = run(operator, batches(rows), SeededNoise(3))
    table = releases[-1].table.to_pandas()
    passed = table[table.n > test.threshold(1)]
    assert 200 < len(passed) < 1_000
    assert selection == "table" or len(passed) == len(table)  # coins show others
    missed = int(((table.n_low > units) | (table.n_high < units)).sum())
    assert rate_p_value(missed, len(table), 0.05) > ALPHA
    uncorrected = int((passed.n - 1.96 * passed.n_sd > units).sum())
    assert_rejects_rate(uncorrected, len(passed), 0.05)


@pytest.mark.parametrize("coins", [False, True])
def test_whose_totals_may_have_shown_them(coins):
    """With coins those alone that are first shown above the threshold: coins may have shown others.

    Without coins all: also totals that rounding or later noise took below it.
    """
    moment = ReleasePoint(3, 0, 40.2, 5.0, 0.5, coins, 0.0, (), b"", b"")
    keys = PublishedKeys((), np.arange(3, dtype=np.int32), np.array([3, 3, 2]))
    totals = Totals(np.array([[40.0, 41.0, 45.0]]), np.ones((1, 3)))
    numbers = Numbers(keys, totals, np.zeros((0, 3)), None, None)
    found = release_tables.tested_above([moment, moment._replace(shared=None)], [numbers] * 2)
    some = [-np.inf, 40.2, -np.inf] if coins else [40.2] * 3
    assert found.above.tolist() == [*some, *[-np.inf] * 3]
    assert (found.least.tolist(), found.half.tolist()) == ([5.0] * 6, [0.5] * 6)


class Low(TotalTest):
    """A test that forgets what one unit adds, and most of the noise."""

    def threshold(self, trigger):
        return super().threshold(trigger) // 3


def vars_of(test):
    return {name: getattr(test, name) for name in TotalTest.__dataclass_fields__}
