"""Every sampler against its law, at several parameters and in every output coordinate."""

import hashlib
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from streamveil.compiler.table_design import TableShape
from streamveil.core.accounting import coin_table, float_above
from streamveil.core.counters.blt import BltCounter, prepare
from streamveil.core.noise import KeyedNoise, SeededNoise, SilentNoise, samplers
from streamveil.core.noise.samplers import choice, inverse
from streamveil.core.selection.coins import SelectionTable
from tests.statistics import (
    DETECTABLE,
    SAMPLES,
    assert_fits,
    assert_rejects,
    discrete_laplace,
    rounded_gaussian,
    rounded_laplace,
)

NOISE = SeededNoise(20261120)
SILENT = SilentNoise().at("test")
IDS = np.arange(2 * SAMPLES, dtype=np.uint64).reshape(SAMPLES, 2)


def at(*path):
    return NOISE.at("test samplers", *path)


@pytest.mark.parametrize("scale", [0.8, 1.0, 7.0, 250.0, 1e5, 1e9])
@pytest.mark.parametrize("centre", [0.0, 0.5, -1000.3, 2.0**40 + 0.25])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_rounded_noise_has_its_law(law, scale, centre):
    draw, truth = {
        "gaussian": (samplers.rounded_gaussian, rounded_gaussian),
        "laplace": (samplers.rounded_laplace, rounded_laplace),
    }[law]
    whole = round(centre)  # scipy cannot resolve a quantum beside 2^40
    seen = draw(at(law.encode(), int(scale * 10), whole), np.full(SAMPLES, centre), scale) - whole
    assert seen.dtype == np.int64
    assert_fits(seen, truth(scale, centre - whole))
    assert_rejects(seen, truth(DETECTABLE * scale, centre - whole))


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_keyed_noise_has_its_law_in_every_column(law, width):
    draw, truth = {
        "gaussian": (samplers.rounded_gaussian, rounded_gaussian),
        "laplace": (samplers.rounded_laplace, rounded_laplace),
    }[law]
    centre = np.tile(np.array([0.2, 7.0, -3.5])[:width], (SAMPLES, 1))
    scale = np.array([3.0, 9.0, 1.0])[:width]
    seen = draw(at(law.encode(), width), centre, np.broadcast_to(scale, centre.shape), IDS)
    for column in range(width):
        assert_fits(seen[:, column], truth(scale[column], centre[0, column]))
        assert_rejects(seen[:, column], truth(DETECTABLE * scale[column], centre[0, column]))
    for column in range(1, width):
        assert abs(np.corrcoef(seen[:, 0], seen[:, column])[0, 1]) < 6.2 / SAMPLES**0.5


@pytest.mark.parametrize("scale", [0.5, 1, 3, Fraction(50, 3), 1000, 10**7])
def test_discrete_laplace_has_its_law(scale):
    seen = inverse.discrete_laplace(at(int(scale)), scale, SAMPLES)
    assert_fits(seen, discrete_laplace(float(scale)))
    assert_rejects(seen, discrete_laplace(DETECTABLE * float(scale)))


@pytest.mark.parametrize("epsilon", [0.3, 2])
def test_exponential_choice_has_its_law(epsilon):
    scores, sensitivity = np.array([3.0, 0.0, 2.5, -4.0, 3.0]), Fraction(3, 2)
    weights = np.exp(epsilon * scores / 2 / float(sensitivity))
    wrong = np.exp(DETECTABLE * 1.2 * epsilon * scores / 2 / float(sensitivity))
    seen = np.array(
        [choice.exponential_choice(at(i), scores, epsilon, sensitivity) for i in range(SAMPLES)]
    )
    assert_fits(seen, stats.rv_discrete(values=(range(5), weights / weights.sum())))
    assert_rejects(seen, stats.rv_discrete(values=(range(5), wrong / wrong.sum())))


def test_silence_returns_the_centre():
    centre = np.array([[0.4, -7.6], [2.5, 1e9]])
    expected = np.rint(centre).astype(np.int64)
    ids = IDS[:2]
    for draw in (samplers.rounded_gaussian, samplers.rounded_laplace):
        assert np.array_equal(draw(SILENT, centre, 5), expected)
        assert np.array_equal(draw(SILENT, centre, 5, ids), expected)
    assert not inverse.discrete_laplace(SILENT, 5, (3, 2)).any()
    assert choice.exponential_choice(SILENT, np.array([1.0, 9.0, 3.0]), 1, 1) == 1


def test_integer_centres_are_exact_at_any_size():
    centre = np.array([2**62 + 1, -(2**62) - 1, 3])
    moved = samplers.rounded_gaussian(at(), centre, 4) - centre
    assert np.array_equal(moved, samplers.rounded_gaussian(at(), np.zeros(3), 4))


DRAWS = {
    "rounded Gaussian": lambda d, n: samplers.rounded_gaussian(d, np.linspace(-9, 9, n), 1e6),
    "rounded Gaussian, keyed": lambda d, n: samplers.rounded_gaussian(
        d, np.zeros((n, 3)), 1e6, IDS[:n]
    ),
    "rounded Laplace": lambda d, n: samplers.rounded_laplace(d, np.linspace(-9, 9, n), 1e6),
    "rounded Laplace, keyed": lambda d, n: samplers.rounded_laplace(d, np.zeros(n), 1e6, IDS[:n]),
    "discrete Laplace": lambda d, n: inverse.discrete_laplace(d, 10**6, n),
    "choice": lambda d, n: np.array(
        [choice.exponential_choice(d.at("one", i), np.linspace(0, 9, 99), 1, 1) for i in range(n)]
    ),
}
PINNED = {  # made by this code at its first version with all samplers: releases depend on them
    "rounded Gaussian": "1ffa97c9708fbda2",
    "rounded Gaussian, keyed": "c687b1f7246b91c1",
    "rounded Laplace": "51268cfa380e4ef3",
    "rounded Laplace, keyed": "7fca21dc64332ae9",
    "discrete Laplace": "5f4db6cd8f6f46b9",
    "choice": "890feae68f7fa6ef",
}


@pytest.mark.parametrize("name", DRAWS)
def test_replay_gives_the_same_noise_and_other_addresses_do_not(name):
    draw, again = DRAWS[name], KeyedNoise(NOISE.secret)
    first = draw(NOISE.at("replay", 3), 64)
    assert np.array_equal(first, draw(again.at("replay", 3), 64))
    assert not np.array_equal(first, draw(NOISE.at("replay", 4), 64))


@pytest.mark.parametrize("name", DRAWS)
def test_known_answers(name):
    drawn = DRAWS[name](NOISE.at("pinned"), 500)
    assert hashlib.sha256(drawn.astype("<i8").tobytes()).hexdigest()[:16] == PINNED[name]


def test_a_keys_noise_does_not_depend_on_the_other_keys():
    every = samplers.rounded_gaussian(at(), np.zeros((SAMPLES, 3)), 1e6, IDS)
    some = samplers.rounded_gaussian(at(), np.zeros((len(IDS[::-7]), 3)), 1e6, IDS[::-7])
    assert np.array_equal(every[::-7], some)


@pytest.mark.parametrize(
    "call",
    [
        lambda: samplers.rounded_gaussian(at(), np.array([np.nan]), 1),
        lambda: samplers.rounded_gaussian(at(), np.array([np.inf]), 1),
        lambda: samplers.rounded_gaussian(at(), np.array([2.0**62]), 1),
        lambda: samplers.rounded_gaussian(at(), np.zeros(2), 0),
        lambda: samplers.rounded_gaussian(at(), np.zeros(2), np.array([1.0, -1.0])),
        lambda: samplers.rounded_gaussian(at(), np.zeros(2), float("nan")),
        lambda: samplers.rounded_gaussian(at(), np.zeros(2), 2.0**51),
        lambda: samplers.rounded_gaussian(at(), np.zeros(4), 1, IDS[:3]),
        lambda: inverse.discrete_laplace(at(), -1, 3),
        lambda: inverse.discrete_laplace(at(), 2**51, 3),
        lambda: choice.exponential_choice(at(), np.array([]), 1, 1),
        lambda: choice.exponential_choice(at(), np.array([np.inf]), 1, 1),
        lambda: choice.exponential_choice(at(), np.array([1.0]), 0, 1),
    ],
)
def test_impossible_settings_are_refused(call):
    with pytest.raises(ValueError, match=r"must be|multiple"):
        call()


def test_scales_are_never_rounded_down():
    for scale in (Fraction(1, 3), Fraction(10**20 + 1, 10**19), 2**49 + 1, 0.1):
        assert Fraction(float_above(scale)) >= Fraction(scale)
        assert Fraction(float(np.nextafter(float_above(scale), 0))) < Fraction(scale)


# ---- nobody else's precision


def test_no_precision_that_others_set_reaches_what_noise_rests_on():
    """mpmath's own context belongs to the process: any package or thread may change it."""
    blt = BltCounter(horizon=1000, sigma=1).blt
    coins = TableShape(100, *map(Fraction, ("0.55", "0.1172", "1", "1e-10"))).coins()
    words = [2**63 + 12345, 0, 0]

    def everything():
        table = SelectionTable(
            horizon=100, keys_per_unit=3, shift_epsilon=Fraction("0.765"), coins=coins
        )
        rates = [*table._shift_rate[1], *table._rates[1]]
        norm = prepare.__wrapped__(blt, 1000, "columns").norm
        return norm, rates, [coin_table._slow(words, rate, 10**12) for rate in rates[:1]]

    alone = everything()
    with mpmath.workprec(4):
        assert everything() == alone
