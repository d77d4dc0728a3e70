"""What makes the samplers exact: proved bounds, tables, and the multiprecision fallback."""

from dataclasses import dataclass, field
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from streamveil.core.noise import SeededNoise, samplers
from streamveil.core.noise.samplers import choice, inverse, quantiles

NOISE = SeededNoise(3)
RNG = np.random.default_rng(3)
IDS = RNG.integers(0, 2**64, (40, 2), dtype=np.uint64)
WORD = 2**64


def words_of_every_octave(per_octave=12):
    """Words with every number of leading zeros, both signs, and the ends of rows."""
    words = []
    for zeros in range(1, 41):
        low, high = 1 << (63 - zeros), (1 << (64 - zeros)) - 1
        words += [low, high, low + 1, low + (low >> 6), low + (low >> 6) - 1]
        words += [
            int(RNG.integers(low, high)) | int(RNG.integers(2)) << 63 for _ in range(per_octave)
        ]
    return np.array(words, np.uint64)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_the_bound_of_every_octave_holds(law):
    table, mp = samplers.LAWS[law].table(), mpmath.mp.clone()
    mp.dps = 40
    worst = 0.0
    for word in words_of_every_octave():
        x, bound, tabulated = quantiles.quantile_word(word, table)
        v = int(word) & (2**63 - 1)
        assert tabulated == (v >= 2**24)
        for theta in (0, 1):
            p = (v + theta) * mp.mpf(2) ** -64
            if not tabulated or p == 0:
                continue
            truth = -mp.log(2 * p) if law == "laplace" else mp.sqrt(2) * mp.erfinv(1 - 2 * p)
            if law == "gaussian" and p < 1e-9:
                truth = mp.findroot(lambda z, p=p: mp.erfc(z / mp.sqrt(2)) / 2 / p - 1, x)
            assert abs(mp.mpf(x) - truth) <= bound
            worst = max(worst, float(abs(mp.mpf(x) - truth) / bound))
    assert worst > 0.2  # the bound is not vacuous


def test_bounds_are_small_where_draws_are():
    for table in (samplers.gaussian_table(), samplers.laplace_table()):
        assert table.shape == (quantiles.OCTAVES * quantiles.ROWS, 8)
        assert not table.flags.writeable
        assert table[: 10 * quantiles.ROWS, 7].max() < 2**-49
        assert np.all(table[:, 7] > 0)


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0, 1e8])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_sure_kernels_agree_with_multiprecision(law, scale):
    table, checked = samplers.LAWS[law].table(), 0
    for word in words_of_every_octave(4):
        fraction = float(RNG.uniform(-0.5, 0.5))
        y, sure = samplers.rounded_word(word, fraction, scale, table)
        if sure:
            tail = samplers.tail_at(NOISE.at("unused"), 0)
            assert y == samplers.rounded(samplers.LAWS[law].shape, int(word), tail, fraction, scale)
            checked += 1
    assert checked > 300


def test_an_ambiguous_draw_is_settled_by_its_further_bits():
    """The centre puts the known bits of the draw on a half-integer, to within float64."""
    table, sides, settled = samplers.gaussian_table(), set(), 0
    mp = mpmath.mp.clone()
    mp.prec = 400
    for i in range(60):
        draws = NOISE.at("ambiguous", i)
        word = int(draws.words(1)[0])
        v, sign = word & (2**63 - 1), -1 if word >> 63 else 1
        x = mp.sqrt(2) * mp.erfinv(1 - (2 * v + 1) * mp.mpf(2) ** -64)
        sigma = 1000.0
        z = sign * sigma * x
        centre = float(mp.floor(z) + 0.5 - z)
        centre -= round(centre)
        _, sure = samplers.rounded_gaussian_word(np.uint64(word), centre, sigma, table)
        assert not sure
        y = int(samplers.rounded_gaussian(draws, np.array([centre]), sigma)[0])
        more = draws.at("tail", 0).words(4)
        p = mp.mpf(v)
        for j, extra in enumerate(more):
            p += mp.mpf(int(extra)) * mp.mpf(2) ** (-64 * (j + 1))
        truth = mp.mpf(centre) + sign * sigma * mp.sqrt(2) * mp.erfinv(1 - 2 * p / WORD)
        assert y == int(mp.floor(truth + 0.5))
        sides.add(truth - mp.floor(truth) < 0.5)
        settled += 1
    assert settled == 60
    assert sides == {True, False}  # both outcomes occur


@dataclass(frozen=True)
class Spelled:
    """Draws whose first word and further words are given."""

    first: tuple
    more: tuple = ()
    silent: bool = False
    asked: list = field(default_factory=list)

    def words(self, n):
        self.asked.append(n)
        spelled = (*self.first, *([0] * n))[:n]
        return np.array(spelled, np.uint64)

    def at(self, purpose, *path):
        return Spelled(self.more, (), False, self.asked)


@pytest.mark.parametrize("shape", [samplers.GAUSSIAN, samplers.LAPLACE])
def test_a_draw_beyond_the_table_and_beyond_one_word(shape):
    """v = 0, and again 64 zeros: 2^-128 tails, at a scale that sees them."""
    spelled = Spelled((0,), (0, 0, 5, 9, 9, 9, 9, 9))
    y = samplers.rounded(shape, 0, samplers.tail_at(spelled, 0), 0.25, 1e6)
    law = stats.norm if shape is samplers.GAUSSIAN else stats.laplace
    assert y == pytest.approx(1e6 * law.isf(5 / 2.0**256), rel=1e-2)
    assert max(spelled.asked) >= 4
    assert samplers.rounded(shape, 1 << 63, samplers.tail_at(spelled, 0), -0.25, 1e6) == -y


def test_a_tie_at_one_half_is_decided_by_the_sign():
    for sign in (0, 1):
        word = 2**63 - 5 + (sign << 63)
        y = samplers.rounded(
            samplers.GAUSSIAN, word, samplers.tail_at(Spelled((word,)), 0), 0.5, 1e-9
        )
        assert y == 1 - sign


def never_sure(table):
    doubtful = table.copy()
    doubtful[:, 7] = np.inf
    return lambda: doubtful


def test_forced_fallback_gives_the_same_noise(monkeypatch):
    """Every kernel made to doubt every draw: the multiprecision path is the whole sampler."""
    centre = RNG.normal(0, 1e4, (40, 2))
    calls = {
        "gaussian": lambda d: samplers.rounded_gaussian(d, centre, 55.5),
        "gaussian_for": lambda d: samplers.rounded_gaussian(d, centre, 0.3, IDS),
        "laplace": lambda d: samplers.rounded_laplace(d, centre, 1e6),
        "laplace_for": lambda d: samplers.rounded_laplace(d, centre, 4.5, IDS),
        "discrete_laplace": lambda d: inverse.discrete_laplace(d, Fraction(100, 3), (30, 2)),
        "tiny_laplace": lambda d: inverse.discrete_laplace(d, 0.4, 60),
        "choice": lambda d: choice.exponential_choice(d, np.linspace(0, 3, 30), 1, 1),
    }
    fast = {name: call(NOISE.at("forced")) for name, call in calls.items()}
    for law in ("gaussian", "laplace"):
        known = samplers.LAWS[law]
        doubtful = samplers.NoiseLaw(never_sure(known.table()), known.shape)
        monkeypatch.setitem(samplers.LAWS, law, doubtful)
    for module in (inverse, choice):
        monkeypatch.setattr(module, "laplace_table", never_sure(samplers.laplace_table()))

    asked = count_calls(monkeypatch, samplers, "locate")
    slow = {name: call(NOISE.at("forced")) for name, call in calls.items()}
    for name, expected in fast.items():
        assert np.array_equal(expected, slow[name]), name
    assert len(asked) == 4 * 80 + 60 * 2


def count_calls(monkeypatch, module, name):
    calls, original = [], getattr(module, name)

    def counted(*args):
        calls.append(name)
        return original(*args)

    monkeypatch.setattr(module, name, counted)
    return calls


def test_a_choice_between_equal_words_is_settled_by_further_bits():
    draws = Ordered((12345678901234567, 12345678901234567))
    # a larger p is a smaller exponential, so a larger Gumbel: the later tail wins
    assert choice.exponential_choice(draws, np.zeros(2), 1, 1) == 1


class Ordered(Spelled):
    """Tails that grow with the number of the draw."""

    def at(self, purpose, *path):
        return Spelled((1000 * (path[0] + 1),), (), False, self.asked)


def test_every_draw_beyond_the_table_is_a_candidate():
    scores = np.array([0.0, -30.0])
    words = np.array([2**24 - 1, 2**62], np.uint64)  # E = 27.03.. or more, against 0.69
    assert choice.exponential_choice(Spelled(tuple(words.tolist())), scores, 1, 1) == 0
    scores = np.array([0.0, -0.5])
    assert choice.exponential_choice(Spelled(tuple(words.tolist())), scores, 1, 1) == 1
