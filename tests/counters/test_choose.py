"""Choosing and comparing counters; vectors and reals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from streamveil.core.accounting.budget import Budget
from streamveil.core.noise.keyed import Place, SeededNoise, SilentNoise
from streamveil.counters import (
    COUNTERS,
    AnytimeBltCounter,
    BltCounter,
    HaarCounter,
    KaryTreeCounter,
    Participation,
    Quanta,
    VectorCounter,
    choose,
    compare,
)
from tests.counters.examples import NAMES, examples
from tests.statistics import SAMPLES

BUDGET = Budget(epsilon=2, delta=1e-9)


@pytest.mark.parametrize(
    ("horizon", "budget", "touched", "kind"),
    [
        (1000, BUDGET, 1.0, BltCounter),
        (None, BUDGET, 1.0, AnytimeBltCounter),
        (10_000, Budget(epsilon=1, delta=1e-6), 0.01, HaarCounter),
        (10_000, BUDGET, 0.01, KaryTreeCounter),
        (1000, Budget(epsilon=1), 1.0, KaryTreeCounter),
        (100, Budget(epsilon=1, delta=1e-9), 1.0, KaryTreeCounter),  # Laplace wins
        (1000, Budget(epsilon=1, delta=1e-6), 1.0, BltCounter),
        (1000, Budget(mu=0.3), 1.0, BltCounter),
    ],
)
def test_the_choice_and_its_reason(horizon, budget, touched, kind):
    choice = choose(horizon, budget, touched=touched)
    assert type(choice.counter) is kind
    assert choice.counter.loss(1).fits(budget)
    assert str(choice).startswith(kind.__name__)
    assert "max sd" in choice.reason


def test_the_person_is_protected_with_all_rows():
    person = Participation(rows=8, per_key=2)
    choice = choose(1000, BUDGET, person=person)
    assert choice.counter.loss(4, 8).fits(BUDGET)
    assert not choice.counter.loss(4.01, 8).fits(BUDGET)


def test_impossible_settings_are_named():
    with pytest.raises(ValueError, match="needs a horizon"):
        choose(None, Budget(epsilon=1))
    with pytest.raises(ValueError, match="touched"):
        choose(10, BUDGET, touched=2)


def test_comparison_is_sorted_and_complete():
    ticks = iter(np.arange(0, 1000, 0.001).tolist())
    table = compare(60, BUDGET, clock=lambda: next(ticks))
    errors = [row.max_std for row in table.rows]
    assert errors == sorted(errors)
    assert table.rows[0].name == "dense"
    assert {row.name for row in table.rows} == set(COUNTERS) - {"k-ary-tree"}
    by_name = {row.name: row for row in table.rows}
    assert by_name["honaker"].max_std > 1.9 * by_name["blt"].max_std
    assert by_name["blt"].ns_per_step == pytest.approx(1e6 / 20_000 * 1e0, rel=1e-6)
    assert str(table).count("\n") == len(table.rows)
    only = compare(60, Budget(epsilon=1), counters=["k-ary-tree"])
    assert [row.name for row in only.rows] == ["k-ary-tree"]
    with pytest.raises(ValueError, match="none of the named"):
        compare(60, Budget(epsilon=1), counters=["blt"])


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_counted_by_coordinate(name):
    vectors = VectorCounter(counter=examples(9)[name], width=3)
    steps = np.random.default_rng(1).integers(-5, 5, (9, 2, 3))
    states = vectors.init(2)
    for t in range(9):
        noisy, states = vectors.step(states, steps[t], Place(SilentNoise(), "x"))
        np.testing.assert_array_equal(noisy, steps[: t + 1].sum(axis=0))
    assert vectors.loss(2).rho() == vectors.counter.loss(2).rho()
    with pytest.raises(ValueError, match="3 columns"):
        vectors.step(states, steps[0][:, :2], Place(SilentNoise(), "x"))


@pytest.mark.parametrize("name", NAMES)
def test_real_vectors_through_every_counter(name):
    """Fixed-point reals in, estimates of their totals with the stated deviation out."""
    counter, grams = examples(9)[name], Quanta(quantum=Fraction(1, 8), low=-3, high=10)
    vectors, keys = VectorCounter(counter=counter, width=2), 6000
    values = np.random.default_rng(2).uniform(-5, 12, (9, 1, 2)).repeat(keys, axis=1)
    values[3, 0, 1] = np.nan
    exact = np.cumsum(grams.encode(values), axis=0)
    silent, noisy = vectors.init(keys), vectors.init(keys)
    place = Place(SeededNoise(7), "v")
    for t in range(9):
        rows = grams.encode(values[t])
        assert np.abs(rows).max() <= grams.largest
        plain, silent = vectors.step(silent, rows, Place(SilentNoise(), "x"))
        np.testing.assert_array_equal(grams.decode(plain), exact[t] / 8)
        released, noisy = vectors.step(noisy, rows, place)
    error = grams.decode(released) - exact[-1] / 8
    stated = float(counter.std(np.array([9]))[0]) / 8
    assert np.abs(error.std(axis=0) / stated - 1).max() < 0.075  # eight deviations, kurtosis 6
    assert np.abs(error.std(axis=0) / (1.1 * stated) - 1).min() > 0.03
    assert np.abs(error.mean(axis=0)).max() < 7 * stated / keys**0.5


@pytest.mark.parametrize("name", NAMES)
def test_coordinates_have_independent_noise(name):
    vectors = VectorCounter(counter=examples(9)[name], width=2)
    ids = np.arange(2 * SAMPLES, dtype=np.uint64).reshape(-1, 2)
    zero = np.zeros((SAMPLES, 2), np.int64)
    noisy, _ = vectors.step(vectors.init(SAMPLES), zero, Place(SeededNoise(1), "x"), ids)
    assert abs(np.corrcoef(noisy.T)[0, 1]) < 7 / np.sqrt(SAMPLES)
    np.testing.assert_allclose(noisy.std(axis=0), vectors.counter.std(np.array([1, 1])), rtol=0.1)


def test_reals_become_quanta_and_come_back():
    metres = Quanta(quantum=Fraction(1, 8), low=-3, high=10)
    values = np.array([-9.0, -3.0, 0.1, 2.5, 99.0, np.inf, -np.inf, np.nan])
    quanta = metres.encode(values)
    np.testing.assert_array_equal(quanta, [-24, -24, 1, 20, 80, 80, -24, 0])
    assert np.abs(quanta).max() <= metres.largest == 80
    inside = values[1:4]
    assert np.abs(metres.decode(metres.encode(inside)) - inside).max() <= metres.rounding
    assert Quanta(quantum=Fraction(2, 3), low=-1, high=1).ends == (-1, 1)
    with pytest.raises(ValueError, match="low"):
        Quanta(quantum=1, low=2, high=1)
    with pytest.raises(ValueError, match="2\\*\\*52"):
        Quanta(quantum=Fraction(1, 2**60), low=0, high=1)
