"""Selection: exact laws of small streams against certified bounds, and exact draws."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streamveil.compiler.table_design import (
    NoTableError,
    SelectionDesign,
    TableShape,
    design_selection,
    opening_chance,
)
from streamveil.core.accounting import Budget
from streamveil.core.accounting.coin_table import COIN, Coins, worst_near, worst_openings
from streamveil.core.accounting.convert import nothing_delta
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.core.selection.coins import COARSE, NEVER, SelectionTable
from tests.statistics import ALPHA, DETECTABLE, SAMPLES, assert_fits, assert_rejects

EPSILONS = np.array([-2.0, -0.7, -0.2, 0.0, 0.1, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0, 7.0])
SIX = Budget(epsilon=6, delta=1e-9)


def losses(selection, places):
    """The losses of all keys of one unit: (with, without) and (without, with)."""
    return selection.certificate(0, places).laws(16)


def chance_of(selection, units):
    return opening_chance(selection.coins.chances, float(selection.shift_epsilon), units)


def opens(selection, words, gap):
    """One coin per key: the same law as `next_opening`, trigger by trigger."""
    row = (COIN, *selection.coins.coins, 0)
    return np.array([
        int(word) < row[min(max(int(a), 0), len(row) - 1)]
        for word, a in zip(words, gap, strict=True)
    ])  # fmt: skip


def published(horizon: int) -> tuple[SelectionTable, float]:
    """The two tables measured at full size, with the mu of the releases beside them."""
    shape, shift, mu = {
        100: (("0.55", "0.1172", "1"), "0.765", 0.65),
        1000: (("0.50", "0.0703", "1.2"), "0.665", 0.70),
    }[horizon]
    floor = Fraction(1, 20 * 3 * 10**9)
    coins = TableShape(horizon, *(Fraction(number) for number in shape), floor).coins()
    selection = SelectionTable(
        horizon=horizon, keys_per_unit=3, shift_epsilon=Fraction(shift), coins=coins
    )
    return selection, mu


def single(coins: Coins, horizon: int, shift: Fraction) -> SelectionTable:
    return SelectionTable(horizon=horizon, keys_per_unit=1, shift_epsilon=shift, coins=coins)


def geometric_table(length: int, fall: float) -> Coins:
    return Coins(tuple(int(COIN * np.exp(-fall * gap)) for gap in range(1, length + 1)))


# --- the law of one key, by enumeration -----------------------------------------------------------


def opening_law(selection: SelectionTable, units: np.ndarray, since: int = 0) -> np.ndarray:
    """P(opens at test t), t = 1.., then P(never); given that it has not opened before `since`."""
    q = np.exp(-float(selection.shift_epsilon))
    shifts = np.arange(int(60 / float(selection.shift_epsilon)) + 2)
    gaps = np.clip(
        selection.threshold + shifts[:, None] - units[None, :], 0, len(selection.coins.coins) + 1
    )
    chance = selection.coins.chances[gaps]
    closed = np.cumprod(np.hstack([np.ones((len(shifts), 1)), 1 - chance]), axis=1)
    prior = (1 - q) * q**shifts
    law = np.hstack([closed[:, :-1] * chance, closed[:, -1:]])
    law[:, :since] = 0.0
    law = prior @ law
    return law / law.sum()


def divergence(p: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    return float(np.sum(np.maximum(0.0, p - np.exp(epsilon) * other)))


def excess(
    selection: SelectionTable, without: np.ndarray, with_unit: np.ndarray, since: int
) -> float:
    """The largest divergence minus its bound, over both directions and all epsilons."""
    p1, p0 = (opening_law(selection, path, since) for path in (with_unit, without))
    bounds = losses(selection, COARSE)
    return max(
        divergence(a, b, epsilon) - law.delta_at(epsilon, nothing_delta)
        for a, b, law in ((p1, p0, bounds[0]), (p0, p1, bounds[1]))
        for epsilon in EPSILONS
    )


paths = st.lists(st.integers(0, 4), min_size=6, max_size=6).map(np.cumsum)


@given(
    paths, st.integers(0, 5), st.sampled_from([0.3, 0.8, 2.0]), st.sampled_from(["0.2", "0.7", "2"])
)
@settings(max_examples=300, deadline=None)
def test_no_small_stream_exceeds_the_bounds(
    units: np.ndarray, arrival: int, fall: float, shift: str
) -> None:
    selection = single(geometric_table(6, fall), 6, Fraction(shift))
    with_unit = units + (np.arange(6) >= arrival)
    assert excess(selection, units, with_unit, since=0) <= 1e-12
    assert excess(selection, units, with_unit, since=arrival) <= 1e-12  # given the past


@pytest.mark.parametrize("horizon", [100, 1000])
def test_no_stream_exceeds_the_bounds_of_the_published_tables(horizon: int) -> None:
    selection = published(horizon)[0]
    alone = single(selection.coins, horizon, selection.shift_epsilon)
    rng = np.random.default_rng(horizon)
    for trial in range(40 if horizon == 100 else 10):
        final = int(rng.integers(2, 60))
        shape = rng.choice([0.2, 1.0, 3.0])
        units = np.floor(final * (np.arange(1, horizon + 1) / horizon) ** shape).astype(int)
        arrival = int(rng.integers(0, horizon)) if trial % 2 else 0
        with_unit = units + (np.arange(horizon) >= arrival)
        assert excess(alone, units, with_unit, since=0) <= 1e-12


def test_a_bound_is_attained_when_a_unit_is_missing() -> None:
    """P(never) is 1 without the last unit and q with it: 1 - gamma q, exactly."""
    selection = single(Coins((1,)), 1, Fraction(7, 10))
    units = np.array([selection.threshold - 1])
    p1, p0 = opening_law(selection, units + 1), opening_law(selection, units)
    for epsilon in (0.0, 0.3, 0.6):
        bound = losses(selection, COARSE)[1].delta_at(epsilon, nothing_delta)
        assert divergence(p0, p1, epsilon) >= bound * (1 - 1e-6) - 1e-9


@pytest.mark.parametrize("fall", [0.6, 1.5])
def test_a_bound_is_approached_when_a_unit_is_added(fall: float) -> None:
    """With Z = 0 almost surely, the worst monotone stream comes within a few per cent."""
    selection = single(geometric_table(5, fall), 4, Fraction(25))
    law = losses(selection, 2500)[0]
    streams = [np.array(path) for path in itertools.combinations_with_replacement(range(1, 8), 4)]
    for epsilon in (0.0, 0.5 * fall, 0.9 * fall):
        best = max(
            divergence(opening_law(selection, units + 1), opening_law(selection, units), epsilon)
            for units in streams
        )
        bound = law.delta_at(epsilon, nothing_delta)
        assert 0.9 * bound <= best <= bound + 1e-12


def exact_worst(coins: Coins, horizon: int, x: Fraction) -> Fraction:
    """The recursion over all gap paths in exact arithmetic: r with, 1 without."""
    if horizon == 0:
        return Fraction(0)
    best = exact_worst(coins, horizon - 1, x)  # a gap beyond the table changes nothing
    for gap in range(1, len(coins.coins) + 2):
        more, less = coins.chance(gap - 1), coins.chance(gap)
        later = exact_worst(coins, horizon - 1, x * (1 - more) / (1 - less))
        best = max(best, max(Fraction(0), x * more - less) + (1 - less) * later)
    return best


def test_the_recursion_is_an_upper_bound_and_close() -> None:
    coins = geometric_table(4, 0.8)
    step = 0.005
    worst = worst_openings(coins, 4, step, 16.0)
    for place in (0, 17, 100, 160, 400):
        exact = float(exact_worst(coins, 4, Fraction(float(np.exp(-step * place)))))
        assert exact <= worst[place] <= exact * 1.002 + 1e-9


def flat_table() -> tuple[TableShape, Coins]:
    """A table such as small epsilons have."""
    numbers = (Fraction(text) for text in ("0.03", "0.004", "1", "1e-10"))
    shape = TableShape(60, *numbers)
    return shape, shape.coins()


def test_nothing_changes_beyond_the_largest_fall() -> None:
    """Nodes further than `reach` lie on a line."""
    coins, step = flat_table()[1], 0.002
    reach = coins.reach(step, 3.0)
    assert reach < 0.3
    near, far = (worst_openings(coins, 60, step, most) for most in (reach, 3.0))
    np.testing.assert_allclose(near, far[: len(near)], rtol=1e-9)
    line = far[len(near) - 1] * np.exp(-step * np.arange(len(far) - len(near) + 1))
    np.testing.assert_allclose(far[len(near) - 1 :], line, rtol=1e-6)
    assert coins.reach(step, 0.01) == 0.01


def test_gaps_much_alike_are_as_good_as_all() -> None:
    shape, coins = flat_table()
    chances = shape.near(10_000)
    np.testing.assert_allclose(chances, coins.chances, rtol=1e-7)
    assert shape.near(len(coins.coins)) is not None
    assert shape.near(len(coins.coins) - 1) is None
    step = 0.002
    reach = coins.reach(step, 3.0)
    few, every = worst_near(chances, 60, step, reach), worst_openings(coins, 60, step, reach)
    np.testing.assert_allclose(few, every, rtol=0.01)


@pytest.mark.parametrize("horizon", [1, 7, 200])
def test_a_chance_of_opening_is_that_of_its_law(horizon: int) -> None:
    coins = geometric_table(9, 0.7)
    selection = single(coins, horizon, Fraction(1, 3))
    for final in (1, 5, 11, 40, 10**9):
        units = final * np.arange(1, horizon + 1) // horizon
        wanted = 1 - opening_law(selection, units)[-1]
        assert chance_of(selection, units) == pytest.approx(wanted, abs=1e-9)


# --- planted faults are seen ----------------------------------------------------------------------


def worst_excess(truth: SelectionTable, claimed: SelectionTable, extra: int) -> float:
    """As `excess`, but the streams run `truth` and the bounds are of `claimed`."""
    found = -1.0
    bounds = losses(claimed, COARSE)
    for path in itertools.combinations_with_replacement(range(1, 14), 3):
        units = np.array(path)
        p1, p0 = opening_law(truth, units + extra), opening_law(truth, units)
        for a, b, law in ((p1, p0, bounds[0]), (p0, p1, bounds[1])):
            for epsilon in EPSILONS:
                found = max(found, divergence(a, b, epsilon) - law.delta_at(epsilon, nothing_delta))
    return found


def test_planted_faults_exceed_the_bounds() -> None:
    good = single(geometric_table(6, 0.8), 3, Fraction(7, 10))
    assert worst_excess(good, good, extra=1) <= 1e-12
    assert worst_excess(good, good, extra=2) > 1e-3  # a unit counted twice
    steep = single(geometric_table(6, 1.6), 3, Fraction(7, 10))
    assert worst_excess(steep, good, extra=1) > 1e-3
    hasty = single(good.coins, 3, Fraction(14, 10))
    assert worst_excess(hasty, good, extra=1) > 1e-3
    short = single(Coins((COIN // 2, COIN // 2)), 3, Fraction(7, 10))
    assert worst_excess(short, good, extra=1) > 1e-3  # a table that ends abruptly


# --- the certified delta of a job -----------------------------------------------------------------


@pytest.mark.parametrize("horizon", [100, 1000])
def test_the_published_designs_are_certified(horizon: int) -> None:
    selection, mu = published(horizon)
    assert selection.threshold == {100: 27, 1000: 34}[horizon]
    fine, coarse = selection.delta_at(6, mu), selection.delta_at(6, mu, COARSE)
    assert fine <= coarse <= 1.03 * fine
    assert fine <= {100: 8.7e-10, 1000: 9.0e-10}[horizon]  # earlier, uncertified figures
    assert fine >= 0.85 * {100: 8.7e-10, 1000: 9.0e-10}[horizon]
    # more than the releases alone, less than with plain composition
    assert selection.delta_at(6, 0) < fine
    assert selection.delta_at(5, mu) > fine
    assert selection.loss(6, mu, COARSE).epsilon(1e-9) < 6


def test_a_job_of_two_keys_stays_below_the_composition() -> None:
    """The exact product of two keys' laws against the certified composition."""
    selection = SelectionTable(
        horizon=3, keys_per_unit=2, shift_epsilon=Fraction(1), coins=geometric_table(6, 0.8)
    )
    largest = 0.0
    for path in itertools.combinations_with_replacement(range(1, 12), 3):
        units = np.array(path)
        p1, p0 = opening_law(selection, units + 1), opening_law(selection, units)
        both1, both0 = np.outer(p1, p1).ravel(), np.outer(p0, p0).ravel()
        for a, b, law in zip(
            (both1, both0), (both0, both1), losses(selection, COARSE), strict=True
        ):
            for epsilon in EPSILONS:
                bound = law.delta_at(epsilon, nothing_delta)
                assert divergence(a, b, epsilon) <= bound + 1e-12
                if 0 <= epsilon <= 1:
                    largest = max(largest, divergence(a, b, epsilon) / bound)
    assert largest > 0.5  # the bound is not vacuous


def test_a_key_with_one_unit_never_opens() -> None:
    selection, _ = published(100)
    assert chance_of(selection, np.ones(100, np.int64)) == 0.0
    words = np.zeros((5, 2), np.uint64)
    words[:] = [np.uint64(2**64 - 1), np.uint64(2**64 - 1)]  # the most eager draw
    gap = selection.threshold + np.zeros(5, np.int64) - 1
    assert np.all(selection.next_opening_from(words, gap, 1) == NEVER)


def test_designs_fit_the_budget_and_open_early() -> None:
    design = design_selection(100, SIX, 3)
    assert isinstance(design, SelectionDesign)
    assert design.delta <= 1e-9
    assert design.selection.delta_at(6, design.mu) == pytest.approx(design.delta, rel=0.02)
    assert design.loss.fits(SIX)
    assert design.half <= 24.0  # the published table, with the same mu, needs 23.6
    assert design_selection(100, SIX, 3) == design
    with pytest.raises(NoTableError, match="a smaller mu_share"):
        design_selection(100, SIX, 3, "0.9999")
    with pytest.raises(ValueError, match="epsilon and delta"):
        design_selection(100, Budget(rho=1), 3)


@pytest.mark.parametrize(
    "coins", [(), (COIN,), (5, 6), (5, 0)], ids=["empty", "sure", "rising", "zero"]
)
def test_tables_must_fall(coins: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="coin"):
        Coins(coins)


# --- draws ----------------------------------------------------------------------------------------


def ids(n: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 2**64, (n, 2), dtype=np.uint64)


def test_shifts_are_geometric() -> None:
    selection, _ = published(100)
    shift = selection.shift(SeededNoise(1).at("selection-shift", 0), ids(SAMPLES))
    q = np.exp(-float(selection.shift_epsilon))
    assert_fits(shift, stats.geom(1 - q, loc=-1), alpha=ALPHA)
    wrong = np.exp(-float(selection.shift_epsilon) * DETECTABLE)
    assert_rejects(shift, stats.geom(1 - wrong, loc=-1), alpha=ALPHA)


def test_openings_have_the_law_of_coins_and_forget() -> None:
    """A run of gaps 6, 4 at tests 1-3, 4-9: draws that restart at 4 against the coins' law."""
    selection = single(geometric_table(8, 0.35), 9, Fraction(1))
    noise, keys = SeededNoise(2), ids(SAMPLES)
    nothing = np.zeros(SAMPLES, np.int64)
    early = np.full(SAMPLES, selection.threshold - 6)
    draws = noise.at("selection-wait", 0)
    first = selection.next_opening(draws, keys, early, nothing, 1)
    second = selection.next_opening(draws, keys, early + 2, nothing, 4)
    opened = np.where(first <= 3, first, np.minimum(second, 10))
    gaps = np.repeat([6, 4], [3, 6])
    chance = selection.coins.chances[gaps]
    closed = np.cumprod(np.concatenate([[1.0], 1 - chance]))
    masses = np.append(closed[:-1] * chance, closed[-1])
    counts = np.bincount(opened, minlength=11)[1:]
    assert stats.chisquare(counts, masses * SAMPLES).pvalue > ALPHA
    faulty = np.append(np.diff(-np.append(closed, 0))[:-1], 0) * DETECTABLE
    faulty[-1] = 1 - faulty.sum()
    assert stats.chisquare(counts, faulty * SAMPLES).pvalue < ALPHA
    words = noise.at("coin").words(SAMPLES)
    heads = opens(selection, words, np.full(SAMPLES, 4)).sum()
    assert stats.binomtest(int(heads), SAMPLES, chance[-1]).pvalue > ALPHA
    assert stats.binomtest(int(heads), SAMPLES, chance[-1] / DETECTABLE).pvalue < ALPHA


def test_openings_belong_to_the_key_and_its_count() -> None:
    selection, _ = published(100)
    keys, draws = ids(500), SeededNoise(3).at("selection-wait", 7)
    units = np.full(500, selection.threshold - 2)
    shift = np.zeros(500, np.int64)
    at = selection.next_opening(draws, keys, units, shift, 5)
    order = np.random.default_rng(0).permutation(500)
    again = selection.next_opening(draws, keys[order], units[order], shift, 5)
    assert np.array_equal(at[order], again)
    assert np.all(at >= 5)
    assert np.all((at <= 100) | (at == NEVER))
    later = selection.next_opening(draws, keys, units + 1, shift + 1, 5)  # same gap, new count
    assert not np.array_equal(at, later)
    assert np.all(selection.next_opening(draws, keys, units + 2, shift, 5) == 5)  # gap 0


def test_silent_draws_open_at_the_threshold() -> None:
    selection, _ = published(100)
    draws, keys = SilentNoise().at("x"), ids(3)
    shift = selection.shift(draws, keys)
    assert np.array_equal(shift, [0, 0, 0])
    units = selection.threshold + np.array([-1, 0, 1])
    assert list(selection.next_opening(draws, keys, units, shift, 9)) == [NEVER, 9, 9]
