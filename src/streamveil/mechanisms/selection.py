"""Which unknown keys may be shown: Gaussian thresholds, and coins from a table.

Interface for the operator that runs it. Both designs need from it:
- a privacy unit counts at most once per key while the key is unopened (distinct units), and for at
  most `keys_per_unit` keys in all, a function of the unit's own rows and of what was released; a
  unit's place is not given back when the key opens;
- a key opens once, is public from then on, and is released at every later trigger.

`thresholds.GaussianThresholds`: `thresholds(sd, rounding)` gives the estimate that a key must
exceed at every trigger, and `loss` what that costs beside the counter's own Gaussian loss.

`TableSelection` (design V): needs no counter before a key opens, only its number of units S.
- when a key is first seen:  z = shift(noise.at("selection-shift", window), ids)
- when its S has changed before trigger t:
      at = next_opening(noise.at("selection-wait", window), ids, S, z, t)
  and the key opens at trigger `at` unless S changes again before it (then ask again; the new answer
  replaces the old one). NEVER means it does not open without more units. A key that nobody touches
  costs nothing. `ids` are the keys' 128-bit keyed fingerprints; draws are addressed by key and S,
  so a replay, another engine or another order of keys gives the same openings.
- silent draws: z = 0 and a key opens when S >= threshold.
`design_selection` chooses the table from public numbers only and certifies its delta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from math import ceil, inf
from typing import Any, TypeAlias

import mpmath
import numpy as np

from streamveil.errors import require_positive
from streamveil.mechanisms.above_threshold import (
    COIN,
    Coins,
    TableShape,
    curve_with,
    curve_without,
    worst_openings,
)
from streamveil.mechanisms.pld import LossLaw, law_under
from streamveil.mechanisms.waiting import NEVER, PRECISION, WORDS, doubt, waits
from streamveil.privacy import convert
from streamveil.privacy.budget import Budget, Number, exact, exact_between
from streamveil.privacy.calibrate import gaussian_mu
from streamveil.privacy.guarantee import Approx, Loss
from streamveil.privacy.noise import Draws
from streamveil.types import Array, Float64, Int64, UInt64

Shape: TypeAlias = tuple[Fraction, Fraction]  # slope and bend of a table
DRAWS = 1 << 48  # shifts and waits that one deployment may draw; charged as distance
FINE, COARSE, ROUGH = 100, 40, 16  # lattice steps per shift_epsilon: all sound, more are tighter
FLATTER = tuple(Fraction(2, 3) ** times for times in range(8))  # slopes tried until one fits
REACH = 4  # losses further than this above epsilon count as infinite


@dataclass(frozen=True, kw_only=True)
class TableSelection:
    """A key opens by a coin whose chance grows with the number of its units (design V).

    Algorithm: AboveThreshold on integers. A key with S units has the gap threshold + Z - S, with
        its own geometric Z, P(Z = j) = (1 - q) q^j, q = e^-shift_epsilon, and opens at each trigger
        with chance pi(gap), fresh coins. pi is a table: 1 up to gap 0, falling, 0 from threshold -
        1.
    Protects: all rows of one unit; it adds exactly 1 to S of at most `keys_per_unit` keys in all.
    Guarantee: `delta_at(epsilon, mu)` together with all Gaussian releases of total loss mu.
    Proof: one key; s is the first test after the unit's row. Tests before s have the same law with
        and without it, so let everything below be conditioned on the past: Z then has a law
        p'(z) proportional to p(z) G(z), where G, the chance of not opening before, grows with z.
        *Without against with* (gamma >= 1). With Z + 1 and the unit, all gaps from s on are what
        they are with Z and without it. So P0(t | z) = P1(t | z + 1) for every t >= s and for
        "never", and for any set of these, P0 - gamma P1 <= sum of [p'(z - 1) - gamma p'(z)]+ over
        z >= 1 <= [1 - gamma q]+, as p'(z) >= q p'(z - 1). This needs the unit to add exactly 1.
        *With against without* (gamma >= 1). For each z, the bound of `worst_openings`, which no
        path of the others' units can exceed; by joint convexity it holds for the mixture over z.
        Curves at gamma < 1 follow from the reverse direction: h(gamma) = 1 - gamma + gamma
        h'(1/gamma).
        *A key that only this unit has*: S <= 1, the gap is at least threshold - 1, pi = 0. It never
        opens in either world: unknown keys cost nothing (beta = 0).
        *A job*: all that differs between the worlds are the tests of at most keys_per_unit keys,
        entered by the unit one by one at times that depend on releases, and the Gaussian releases.
        Conditioned on its past, each entered key is an interactive mechanism with the curves above,
        whatever its past was; the other keys are the same in both worlds, so an adversary can play
        them. Hence the job is a concurrent composition of keys_per_unit such mechanisms and the
        Gaussian one (Vadhan & Zhang 2023, arXiv:2207.08335; Lyu 2022, arXiv:2207.10635; adaptively
        opened: Haney et al. 2023, arXiv:2309.05901), and loses at most what the product of the
        dominating pairs does, in each direction (`pld`).
    Error: see `opening_chance`.
    Memory: one Z and one opening time per unopened key.
    Numerics: coins are integers over 2^64 and drawn exactly; `waiting.doubt` bounds what 128-bit
        draws leave undecided and is charged as a distance.

    >>> numbers = (Fraction(text) for text in ("0.55", "0.1172", "1", "1e-10"))
    >>> coins = TableShape(100, *numbers).coins()
    >>> selection = TableSelection(
    ...     horizon=100, keys_per_unit=3, shift_epsilon=Fraction("0.765"), coins=coins
    ... )
    >>> selection.coins.threshold, selection.delta_at(6, 0.65) < 1e-9
    (27, True)
    """

    horizon: int  # triggers at which one key is tested
    keys_per_unit: int
    shift_epsilon: Fraction
    coins: Coins

    def __post_init__(self) -> None:
        require_positive(
            horizon=self.horizon,
            keys_per_unit=self.keys_per_unit,
            shift_epsilon=self.shift_epsilon,
        )

    @property
    def threshold(self) -> int:
        """Units at which a key with Z = 0 opens surely."""
        return self.coins.threshold

    def delta_at(self, epsilon: Number, mu: Number = 0, places: int = FINE) -> float:
        """A certified delta for selection and mu-GDP releases together."""
        at = convert.exact_below(exact("epsilon", epsilon))
        rest = partial(convert.gaussian_delta, mu=float(exact("mu", mu)) * (1 + 1e-15))
        both = [law.delta_at(at, rest) for law in self.losses(places, int(at) + REACH)]
        slack = float(self.distance) * (1 + float(np.exp(at))) * (1 + 1e-12)
        return min(1.0, (max(both) + slack) * (1 + 1e-15))

    def epsilon(self, delta: Number, mu: Number = 0, places: int = FINE) -> float:
        """The least epsilon with that delta, rounded up; inf when there is none."""
        largest = convert.exact_below(exact("delta", delta))
        return convert.smallest_epsilon(largest, lambda at: self.delta_at(at, mu, places), 64.0)

    def loss(self, epsilon: Number, mu: Number = 0) -> Loss:
        """Selection and mu-GDP releases together, as one (epsilon, delta) loss."""
        return Approx(epsilon, self.delta_at(epsilon, mu))

    @property
    def distance(self) -> Fraction:
        """How far the words at hand let the draws be from exact, in total variation."""
        shifts = int(90 / self.shift_epsilon) + 1
        return doubt(self.horizon + 1 + shifts, DRAWS)

    def losses(self, places: int = FINE, reach: int = 16) -> tuple[LossLaw, LossLaw]:
        """The losses of all keys of one unit: (with, without) and (without, with)."""
        return _losses(self, places, reach)

    def shift(self, draws: Draws, ids: UInt64[Array, "keys 2"]) -> Int64[Array, " keys"]:
        """Z of each key, drawn once when it is first seen."""
        count = len(ids)
        if draws.silent:
            return np.zeros(count, np.int64)
        which = np.zeros(count, np.int64)
        rate = np.full(count, float(self.shift_epsilon))
        with mpmath.workprec(PRECISION):
            exact_rate = [mpmath.mpf(self.shift_epsilon.numerator) / self.shift_epsilon.denominator]
        return waits(draws.words_for(ids, WORDS), rate, exact_rate, which, int(NEVER) - 2)

    def next_opening(
        self,
        draws: Draws,
        ids: UInt64[Array, "keys 2"],
        units: Int64[Array, " keys"],
        shift: Int64[Array, " keys"],
        step: int,
    ) -> Int64[Array, " keys"]:
        """The trigger >= step at which each key opens if its units do not change; NEVER if none."""
        gap = self.threshold + shift - units
        if draws.silent:
            return np.where(gap <= 0, np.int64(step), NEVER)
        own = np.ascontiguousarray(ids, np.uint64).copy()
        own[:, 0] ^= units.astype(np.uint64)  # one draw per key and count
        return self.next_opening_from(draws.words_for(own, WORDS), gap, step)

    def next_opening_from(
        self, words: UInt64[Array, "keys words"], gap: Int64[Array, " keys"], step: int
    ) -> Int64[Array, " keys"]:
        """As `next_opening`, from words: step + floor(-ln U / -ln(1 - pi(gap)))."""
        place = np.clip(gap, 0, len(self.coins.coins) + 1)
        rates, exact_rates = self._rates
        found = waits(words, rates[place], exact_rates, place, self.horizon - step)
        return np.where(found == NEVER, NEVER, found + step)

    def opens(self, words: UInt64[Array, " keys"], gap: Int64[Array, " keys"]) -> Array:
        """One coin per key: the same law as `next_opening`, trigger by trigger."""
        row = (COIN, *self.coins.coins, 0)
        return np.array(
            [
                int(word) < row[min(max(int(a), 0), len(row) - 1)]
                for word, a in zip(words, gap, strict=True)
            ]
        )

    @cached_property
    def _rates(self) -> tuple[Float64[Array, " gaps"], list[Any]]:
        with mpmath.workprec(PRECISION):
            inner = [-mpmath.log1p(-mpmath.mpf(coin) / COIN) for coin in self.coins.coins]
        rates = [mpmath.inf, *inner, mpmath.mpf(0)]
        return np.array([float(rate) for rate in rates]), rates

    def opening_chance(self, units: Int64[Array, " horizon"]) -> float:
        """The chance that a key with this path of units has opened by the last trigger."""
        q = float(np.exp(-float(self.shift_epsilon)))
        shifts = np.arange(int(40 / float(self.shift_epsilon)) + 2)
        gaps = self.threshold + shifts[:, None] - np.asarray(units)[None, :]
        chances = self.coins.chances[np.clip(gaps, 0, len(self.coins.coins) + 1)]
        closed = np.prod(1 - chances, axis=1)
        return float(1 - np.sum((1 - q) * q**shifts * closed))


@lru_cache(maxsize=256)
def _losses(selection: TableSelection, places: int, reach: int) -> tuple[LossLaw, LossLaw]:
    """Both directions. The lattice step divides the shift's epsilon: q lies on the lattice."""
    step = float(selection.shift_epsilon / places)
    worst = _worst(selection.coins, selection.horizon, step, reach)
    added, missing = curve_with(worst, step, places), curve_without(worst, step, places)
    keys = selection.keys_per_unit
    return law_under(added, step).self_compose(keys), law_under(missing, step).self_compose(keys)


@lru_cache(maxsize=16)
def _worst(coins: Coins, horizon: int, step: float, reach: int) -> Array:
    return worst_openings(coins, horizon, step, reach)


@dataclass(frozen=True, kw_only=True)
class SelectionDesign:
    """A table, what the Gaussian releases beside it may use, and the certified delta of both."""

    selection: TableSelection
    mu: Fraction  # all Gaussian releases together
    epsilon: Fraction
    delta: float  # certified, at most the budget's
    half: float  # units by the last trigger, arriving evenly, with which half of all keys open

    @property
    def loss(self) -> Loss:
        """Selection and releases together."""
        return Approx(self.epsilon, self.delta)


class NoTableError(ValueError):
    """No table fits the budget beside the releases; another kind of selection may."""


def design_selection(
    horizon: int, budget: Budget, keys_per_unit: int, mu_share: Number = Fraction(2, 3)
) -> SelectionDesign:
    """The table that opens keys with the fewest units, from public numbers only.

    Algorithm: the releases get `mu_share` of the mu that the budget would allow them alone. For
        each table shape tried (a fixed descent over slope and bend), the largest shift_epsilon
        inside the budget; the shape with the least `half` wins. The winner's delta is certified
        again on the fine lattice. Takes seconds, once per setting. Horizons of many thousands can
        test every few triggers only: the horizon here is the number of tests.
    """
    if budget.epsilon is None or budget.delta is None:
        raise ValueError("discovering keys by a table needs a budget in epsilon and delta")
    require_positive(horizon=horizon, keys_per_unit=keys_per_unit)
    share = exact_between("mu_share", mu_share, 0, 1)
    mu = Fraction(int(share * Fraction(gaussian_mu(budget)) * 1000), 1000)
    return _design(horizon, budget, keys_per_unit, mu)


@lru_cache(maxsize=64)
def _design(horizon: int, budget: Budget, keys_per_unit: int, mu: Fraction) -> SelectionDesign:
    trial = partial(_trial, horizon, budget, keys_per_unit, mu)
    rough = cache(lambda shape: trial(shape, shape[0] / ROUGH).half)
    steep = Fraction(budget.epsilon or 0) / keys_per_unit * Fraction(2, 5)
    starts = (_short((steep * part, steep * part / 5)) for part in FLATTER)
    shape = next((start for start in starts if rough(start) < inf), None)
    if shape is not None:
        shape = _descend(rough, shape)
        design = trial(shape, shape[0] / FINE)
        if design.half < inf:
            return design
    raise NoTableError(
        f"no table fits {budget} beside releases with mu = {float(mu):g} for {keys_per_unit} keys"
        " per unit; take a smaller mu_share, fewer keys per unit or a larger budget"
    )


def _descend(cost: Callable[[Shape], float], start: Shape) -> Shape:
    """Coordinate descent on (slope, bend) by factors that approach 1."""
    best, lowest = start, cost(start)
    for factor in (Fraction(6, 5), Fraction(10, 9), Fraction(20, 19)):
        moved = True
        while moved:
            moved = False
            for ratio in (factor, 1 / factor):
                for near in ((best[0] * ratio, best[1]), (best[0], best[1] * ratio)):
                    value = cost(_short(near))
                    if value < lowest:
                        best, lowest, moved = _short(near), value, True
    return best


def _short(shape: Shape) -> Shape:
    """Numbers of a few digits, for records that people read."""
    return (Fraction(ceil(shape[0] * 5000), 5000), Fraction(ceil(shape[1] * 5000), 5000))


def _trial(
    horizon: int,
    budget: Budget,
    keys_per_unit: int,
    mu: Fraction,
    shape: Shape,
    step: Fraction,
) -> SelectionDesign:
    """The best shift for one shape, a multiple of the lattice step."""
    assert budget.epsilon is not None  # noqa: S101  (checked by design_selection)
    assert budget.delta is not None  # noqa: S101
    epsilon, limit = budget.epsilon, convert.exact_below(budget.delta)
    floor = budget.delta / (20 * keys_per_unit)
    coins = TableShape(horizon, *shape, Fraction(1), floor).coins()

    def build(places: int) -> TableSelection:
        return TableSelection(
            horizon=horizon, keys_per_unit=keys_per_unit, shift_epsilon=places * step, coins=coins
        )

    def fits(places: int) -> bool:
        return build(places).delta_at(epsilon, mu, places) <= limit

    low, high = 0, int(shape[0] / step) // 4 + 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    chosen = build(max(low, 1))
    return SelectionDesign(
        selection=chosen,
        mu=mu,
        epsilon=epsilon,
        delta=chosen.delta_at(epsilon, mu, max(low, 1)),
        half=_units_for_half(chosen) if low else inf,
    )


def _units_for_half(selection: TableSelection) -> float:
    """See `SelectionDesign.half`; interpolated between integers."""
    steps = np.arange(1, selection.horizon + 1)

    def chance(units: int) -> float:
        return selection.opening_chance(units * steps // selection.horizon)

    low, high = 1, 2
    while chance(high) < 0.5:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chance(middle) >= 0.5 else (middle, high)
    below, above = chance(low), chance(high)
    return low + (0.5 - below) / (above - below)
