"""Waiting times and discrete dominating pairs, each against exact arithmetic."""

from __future__ import annotations

from functools import partial
from math import exp

import mpmath
import numpy as np
import pytest
from scipy import stats

from streamveil.mechanisms.pld import Point, law_under
from streamveil.mechanisms.waiting import NEVER, UNCLEAR, doubt, wait_word, waits
from streamveil.privacy.convert import gaussian_delta, nothing_delta
from streamveil.privacy.guarantee import Gdp, Pure
from streamveil.privacy.noise import SeededNoise
from tests.statistics import ALPHA, DETECTABLE, SAMPLES, assert_fits, assert_rejects


def draw(words: np.ndarray, rate: mpmath.mpf, horizon: int = 10**6) -> np.ndarray:
    count = len(words)
    return waits(words, np.full(count, float(rate)), [rate], np.zeros(count, np.int64), horizon)


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
    sure = waits(words, np.full(4, np.inf), [mpmath.inf], np.zeros(4, np.int64), 5)
    never = waits(words, np.zeros(4), [mpmath.mpf(0)], np.zeros(4, np.int64), 5)
    assert sure.tolist() == [0] * 4
    assert never.tolist() == [NEVER] * 4
    assert float(doubt(1001, 2**48)) < 1e-20


def randomised_response(epsilon: float, step: float) -> list[Point]:
    """Points of its curve, rounded up."""
    places = round(epsilon / step)
    p = exp(epsilon) / (1 + exp(epsilon))

    def point(place: int) -> Point:
        gamma = exp(place * step)
        height = max(p - gamma * (1 - p), 0.0) + max((1 - p) - gamma * p, 0.0)
        return Point(gamma, height * (1 + 1e-14) + 1e-16, place)

    return [point(place) for place in range(-places, places + 1)]


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


def test_points_above_the_hull_change_nothing() -> None:
    points = randomised_response(0.4, 0.1)
    loose = [*points[:3], Point(points[3].gamma, points[3].height + 0.1, points[3].place)]
    kept = law_under([*loose, *points[4:]], 0.1)
    fit = law_under([*points[:3], *points[4:]], 0.1)
    assert kept.masses == pytest.approx(fit.masses)
