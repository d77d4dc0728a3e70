"""Waiting times and discrete dominating pairs, each against exact arithmetic."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import exp
from operator import itemgetter

import mpmath
import numpy as np
import pytest
from dp_accounting.pld.pld_pmf import DensePLDPmf
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import stats

from streamveil.compiler.table_design import TableShape, law_near
from streamveil.core.accounting import convert
from streamveil.core.accounting.coin_table import (
    COIN,
    NEVER,
    UNCLEAR,
    Coins,
    CoinTable,
    curve_with,
    curve_without,
    doubt,
    wait_word,
    waits,
    worst_openings,
)
from streamveil.core.accounting.convert import (
    LONGEST,
    RARE,
    CurvePoints,
    LossLaw,
    gaussian_delta,
    law_under,
    nothing_delta,
)
from streamveil.core.accounting.guarantee import Gdp, Loss, Pure
from streamveil.core.noise import SeededNoise
from tests.statistics import ALPHA, DETECTABLE, SAMPLES, assert_fits, assert_rejects


def draw(words: np.ndarray, rate: mpmath.mpf, horizon: int = 10**6) -> np.ndarray:
    count = len(words)
    return waits(words, np.array([float(rate)]), [rate], np.zeros(count, np.int64), horizon)


def exact_wait(words: list[int], rate: mpmath.mpf) -> int:
    with mpmath.workprec(600):
        u = mpmath.mpf((words[0] << 64) + words[1]) / 2**128
        return int(mpmath.floor(-mpmath.log(u + mpmath.mpf(2) ** -129) / rate))


@pytest.mark.parametrize("rate", [3.0, 0.7, 0.01, 1e-5])
def test_waits_are_geometric(rate: float) -> None:
    words = SeededNoise(4).at("wait").words(2 * SAMPLES).reshape(-1, 2)
    found = draw(words, mpmath.mpf(rate), int(NEVER) - 2)
    assert_fits(found, stats.geom(-np.expm1(-rate), loc=-1), alpha=ALPHA)
    assert_rejects(found, stats.geom(-np.expm1(-rate * DETECTABLE), loc=-1), alpha=ALPHA)


@pytest.mark.parametrize("rate", ["0.7", "0.001", "1e-9"])
def test_words_at_an_edge_are_decided_by_the_next_word(rate: str) -> None:
    with mpmath.workprec(600):
        number = mpmath.mpf(rate)
        edges = [int(mpmath.floor(mpmath.exp(-number * n) * 2**128)) for n in range(1, 40)]
    rows = [
        [(value >> 64) & (2**64 - 1), value & (2**64 - 1)]
        for edge in edges
        for value in (edge - 3, edge - 1, edge + 1, edge + 3)
    ]
    words = np.array(rows, np.uint64)
    assert wait_word.py_func(words[0, 0], float(number), 10**6) == UNCLEAR
    found = draw(words, number)
    assert found.tolist() == [exact_wait(row, number) for row in rows]


def test_the_ends_of_the_range() -> None:
    top, rate = 2**64 - 1, mpmath.mpf(1)
    words = np.array([[top, top], [0, 0], [0, 1], [2**63, 0]], np.uint64)
    assert draw(words, rate, 10**6).tolist() == [0, 88, 88, 0]
    assert draw(words, rate, 50).tolist() == [0, NEVER, NEVER, 0]
    sure = waits(words, np.array([np.inf]), [mpmath.inf], np.zeros(4, np.int64), 5)
    never = waits(words, np.zeros(1), [mpmath.mpf(0)], np.zeros(4, np.int64), 5)
    assert sure.tolist() == [0] * 4
    assert never.tolist() == [NEVER] * 4
    assert float(doubt(1001, 2**48)) < 1e-20


def randomised_response(epsilon: float, step: float) -> CurvePoints:
    """Points of its curve, rounded up."""
    places = np.arange(-round(epsilon / step), round(epsilon / step) + 1)
    p, gammas = exp(epsilon) / (1 + exp(epsilon)), np.exp(places * step)
    heights = np.maximum(p - gammas * (1 - p), 0.0) + np.maximum((1 - p) - gammas * p, 0.0)
    return CurvePoints(gammas, heights * (1 + 1e-14) + 1e-16, places)


def law_by_fractions(points: CurvePoints, step: float) -> LossLaw:
    """The definition: hull and masses of `law_under` in fractions."""
    nodes = [(Fraction(0), Fraction(1), 0)]
    for place in np.argsort(points.gammas, kind="stable"):
        gamma, height = (Fraction(float(row[place])) for row in (points.gammas, points.heights))
        while len(nodes) > 1:
            (a, x, _), (b, y, _) = nodes[-2:]
            if (y - x) * (gamma - a) < (height - x) * (b - a):
                break
            nodes.pop()
        nodes.append((gamma, height, int(points.places[place])))
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(nodes)] + [Fraction(0)]
    masses = np.zeros(nodes[-1][2] - nodes[1][2] + 1)
    for place in range(1, len(nodes)):
        mass = float(nodes[place][0] * (slopes[place] - slopes[place - 1]))
        masses[nodes[place][2] - nodes[1][2]] += mass * (1 + 2.0**-51)
    infinite = float(nodes[-1][1]) * (1 + 2.0**-51) + RARE * len(masses)
    return LossLaw(step, nodes[1][2], np.where(masses < RARE, 0.0, masses), infinite)


def assert_same_law(found: LossLaw, wanted: LossLaw) -> None:
    assert (found.first, found.infinite) == (wanted.first, wanted.infinite)
    assert_array_equal(found.masses, wanted.masses)


@pytest.mark.parametrize("curve", [curve_with, curve_without])
@pytest.mark.parametrize(("horizon", "places"), [(3, 16), (100, 40)])
def test_integers_give_the_law_of_fractions(
    curve: Callable[..., CurvePoints], horizon: int, places: int
) -> None:
    coins, step = Coins(tuple(int(COIN * exp(-0.6 * gap)) for gap in range(1, 24))), 0.7 / places
    points = curve(worst_openings(coins, horizon, step, 10), step, places)
    assert_same_law(law_under(points, step), law_by_fractions(points, step))


@given(
    st.lists(st.tuples(st.integers(-40, 40), st.floats(0, 1)), min_size=1, unique_by=itemgetter(0))
)
def test_any_points_give_the_law_of_fractions(drawn: list[tuple[int, float]]) -> None:
    places = np.array([place for place, _ in drawn])
    heights = np.array([height for _, height in drawn])
    points = CurvePoints(np.exp(0.3 * places), heights, places)
    assert_same_law(law_under(points, 0.3), law_by_fractions(points, 0.3))


def worst_plainly(coins: Coins, horizon: int, step: float, reach: float) -> np.ndarray:
    """`worst_openings` as its docstring says it: every test and gap, each value raised."""
    nodes = np.exp(-step * np.arange(int(np.ceil(reach / step)) + 1))
    worst, up = np.zeros(len(nodes)), 1 + 1e-15
    gaps = []
    for more, less in pairwise((COIN, *coins.coins, 0)):
        shrink = (COIN - more) / (COIN - less) * up
        place = max(0, int(np.floor(-np.log(shrink or 1.0) * (1 - 1e-14) / step)))
        upper, lower = np.exp(-step * place), np.exp(-step * (place + 1))
        w, stay = (shrink - lower) / (upper - lower) + 1e-12, (COIN - less) / COIN * up
        gain = (nodes * (more / COIN * up) - less / COIN * (1 - 1e-15)) * up
        gaps.append((gain, place, w, stay if shrink else 0.0))
    beyond = np.exp(-step * np.arange(1, max(place for _, place, _, _ in gaps) + 2)) * (1 + 1e-12)
    for _ in range(horizon):
        below, later = np.append(worst, worst[-1] * beyond), worst
        for gain, place, w, stay in gaps:
            upper, lower = (below[at : at + len(nodes)] for at in (place, place + 1))
            value = gain + stay * (w * upper + (1 - w) * lower)
            later = np.where(gain > 0, np.maximum(later, value * (1 + 2.0**-49)), later)
        worst = later
    return worst


@pytest.mark.parametrize(("fall", "horizon", "step"), [(0.6, 30, 0.05), (2.3, 12, 0.21)])
def test_the_compiled_recursion_gives_the_bits_of_its_formula(
    fall: float, horizon: int, step: float
) -> None:
    coins = Coins(tuple(int(COIN * exp(-fall * gap)) for gap in range(1, 12)))
    found = worst_openings(coins, horizon, step, 4.0)
    assert_array_equal(found, worst_plainly(coins, horizon, step, 4.0))


@pytest.mark.parametrize(("fall", "gaps", "step"), [(0.6, 12, 0.2), (0.3, 60, 0.05), (2.3, 9, 0.1)])
def test_runs_of_tests_bound_each_single_one_from_above(
    fall: float, gaps: int, step: float
) -> None:
    coins = Coins(tuple(int(COIN * exp(-fall * gap)) for gap in range(1, gaps)))
    found, plain = worst_openings(coins, 4000, step, 6.0), worst_plainly(coins, 4000, step, 6.0)
    assert np.all(found >= plain)
    assert np.all(found <= plain * 1.001)
    assert not np.array_equal(found, plain)  # there were runs


@pytest.mark.parametrize("curve", [curve_with, curve_without])
def test_the_law_in_floats_is_near(curve: Callable[..., CurvePoints]) -> None:
    coins, step = Coins(tuple(int(COIN * exp(-0.6 * gap)) for gap in range(1, 24))), 0.7 / 16
    points = curve(worst_openings(coins, 100, step, 10), step, 16)
    exact, near = (make(points, step).self_compose(3) for make in (law_under, law_near))
    for epsilon in (0.5, 3.0, 6.0):
        for rest in (nothing_delta, partial(gaussian_delta, mu=0.6)):
            wanted = exact.delta_at(epsilon, rest)
            assert near.delta_at(epsilon, rest) == pytest.approx(wanted, rel=1e-7)


def test_a_curve_gives_back_its_pair() -> None:
    law = law_under(randomised_response(0.4, 0.1), 0.1)
    p = exp(0.4) / (1 + exp(0.4))
    assert law.first == -4
    assert law.masses == pytest.approx([1 - p, 0, 0, 0, 0, 0, 0, 0, p], abs=1e-12)
    assert law.infinite < 1e-15


@pytest.mark.parametrize("times", [1, 2, 5])
def test_compositions_are_never_below_the_exact_ones_and_close(times: int) -> None:
    law = law_under(randomised_response(0.4, 0.1), 0.1).self_compose(times)
    exact = Pure("0.4").times(times)
    with_gaussian = exact + Gdp("0.7")
    for epsilon in (0.0, 0.35, 1.1):
        assert law.delta_at(epsilon, nothing_delta) >= exact.delta_at(epsilon) * (1 - 1e-8)
        assert law.delta_at(epsilon, nothing_delta) <= exact.delta_at(epsilon) + 1e-9
        found = law.delta_at(epsilon, partial(gaussian_delta, mu=0.7))
        assert found == pytest.approx(with_gaussian.delta_at(epsilon), rel=1e-6)


def test_tails_of_a_composition_count_as_infinite_loss() -> None:
    law = LossLaw(0.1, -3, np.array([1e-30, 1e-3, 0.9, 0.098, 1e-3, 2e-30, 0.0]), 1e-20)
    cut = law.trimmed()
    assert (cut.first, len(cut.masses)) == (-2, 4)
    assert cut.infinite >= law.infinite + 3e-30
    for epsilon in (0.0, 0.1, 2.0):
        full, short = (one.delta_at(epsilon, nothing_delta) for one in (law, cut))
        assert full * (1 - 1e-14) <= short <= full * (1 + 1e-14) + 1e-25
    lost = LossLaw(0.1, 0, np.zeros(4), 1.0).compose(law)
    assert lost.delta_at(0.1, nothing_delta) == 1.0


def test_points_above_the_hull_change_nothing() -> None:
    points = randomised_response(0.4, 0.1)
    loose = replace(points, heights=points.heights + 0.1 * (points.places == -1))
    fit = CurvePoints(
        *(np.delete(row, 3) for row in (points.gammas, points.heights, points.places))
    )
    assert_array_equal(law_under(loose, 0.1).masses, law_under(fit, 0.1).masses)


@pytest.mark.parametrize(("many", "few"), [(7, 1), (9, 9), (40, 23)])
def test_sums_of_products_by_pieces_are_right(
    many: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "PIECE", 5)
    rng = np.random.default_rng(many)
    one, two = rng.random(many), rng.random(few) ** 9
    found = convert.convolved(two, one)
    assert len(found) == many + few - 1
    for place, value in enumerate(found):
        pairs = [(i, place - i) for i in range(many) if 0 <= place - i < few]
        exact = sum(Fraction(one[i]) * Fraction(two[j]) for i, j in pairs)
        assert abs(Fraction(value) / exact - 1) <= Fraction(len(pairs), 2**52)


def test_sums_of_products_do_not_depend_on_threads() -> None:
    code = (
        "import hashlib, numpy as np; from streamveil.core.accounting.convert import convolved;"
        "a, b = np.random.default_rng(1).random((2, 12_000));"
        "print(hashlib.sha256(convolved(a, b).tobytes()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "OPENBLAS_NUM_THREADS": threads},
            check=True, capture_output=True,
        ).stdout
        for threads in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def composed_by_peer(law: LossLaw, times: int) -> DensePLDPmf:
    """The same loss law in dp_accounting, which composes by Fourier transforms."""
    pmf = DensePLDPmf(law.step, law.first, law.masses, law.infinite, pessimistic_estimate=True)
    return pmf.self_compose(times)


@pytest.mark.parametrize("times", [7, 366])
def test_many_periods_agree_with_dp_accounting(times: int) -> None:
    coins = Coins(tuple(int(COIN * exp(-0.4 * gap)) for gap in range(1, 60)))
    step = 0.3 / 40
    law = law_under(curve_with(worst_openings(coins, 5, step, 8), step, 40), step).self_compose(3)
    many, peer = law.many(times), composed_by_peer(law, times)
    assert len(many.masses) <= LONGEST
    for epsilon in np.linspace(0.0, 3.0, 5) * np.sqrt(times):
        wanted = peer.get_delta_for_epsilon(float(epsilon))
        found = many.delta_at(float(epsilon), nothing_delta)
        assert found >= wanted * (1 - 1e-9) - 1e-11  # of a Fourier transform
        assert found <= wanted * (1 + 1e-4) + 1e-11


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30).filter(any),
    st.integers(-40, 40), st.floats(1.0, 7.5),
)  # fmt: skip
def test_a_coarser_lattice_never_loses_less(drawn: list[float], first: int, ratio: float) -> None:
    masses = np.array(drawn) / sum(drawn)
    law = LossLaw(0.05, first, masses, 1e-9)
    coarse = law.onto(0.05 * ratio)
    assert coarse.masses.sum() == pytest.approx(1, rel=1e-9)
    for epsilon in np.linspace(-2.5, 4.0, 40):
        fine = law.delta_at(float(epsilon), nothing_delta)
        assert coarse.delta_at(float(epsilon), nothing_delta) >= fine * (1 - 1e-12) - 1e-13
    # and little more: every mass moves by less than a step, and the mean of e^-loss stays
    losses, wide = (one.step * (one.first + np.arange(len(one.masses))) for one in (law, coarse))
    assert np.exp(-wide) @ coarse.masses <= np.exp(-losses) @ masses * (1 + 1e-8)


@pytest.mark.parametrize("horizon", [4, 1000])
def test_draws_that_are_not_exact_cost_a_year_nothing_that_shows(horizon: int) -> None:
    coins = TableShape(horizon, *(Fraction(x) for x in ("0.55", "0.1172", "1", "1e-10"))).coins()
    table = CoinTable(horizon, 4, Fraction("0.765"), coins.coins, 40, Fraction(6))
    assert 366 * table.tilt < Fraction(1, 10**6)
    assert 366 * table.rare < Fraction(1, 10**12)
    exact, year = table.laws()[0].many(366), Loss(tables=((table, 366),))
    for epsilon in (60.0, 90.0):
        assert year.delta_at(epsilon) <= exact.delta_at(epsilon - 1e-6, nothing_delta) + 1e-12
        by_distance = float(366 * table.distance) * exp(epsilon)
        assert by_distance > 1  # why a distance would not do
