"""Which keys may be published: Gaussian thresholds, and coins from a table.

Interface for the operator that runs it. Both designs need from it:
- a privacy unit counts at most once per key while the key is unopened (distinct units), and for at
  most `keys_per_unit` keys in all, a function of the unit's own rows and of what was released; a
  unit's place is not given back when the key opens;
- a key opens once, is public from then on, and is released at every later trigger.

`thresholds.GaussianThresholds`: `thresholds(sd, rounding)` gives the estimate that a key must
exceed at every trigger, and `loss` what that costs beside the counter's own Gaussian loss.

`SelectionTable` (design V): needs no counter before a key opens, only its number of units S.
- when a key is first seen:  z = shift(noise.at("selection-shift", window), ids)
- when its S has changed before trigger t:
      at = next_opening(noise.at("selection-wait", window), ids, S, z, t)
  and the key opens at trigger `at` unless S changes again before it (then ask again; the new answer
  replaces the old one). NEVER means it does not open without more units. A key that nobody touches
  costs nothing. `ids` are the keys' 128-bit keyed fingerprints; draws are addressed by key and S,
  so a replay, another engine or another order of keys gives the same openings.
- silent draws: z = 0 and a key opens when S >= threshold.
`table_design.design_selection` chooses the table from public numbers only and certifies its delta.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import mpmath
import numpy as np

from streamveil.core.accounting import convert
from streamveil.core.accounting.above_threshold import COIN, Coins
from streamveil.core.accounting.budget import Number, exact
from streamveil.core.accounting.coin_table import NEVER, PRECISION, WORDS, CoinTable, waits
from streamveil.core.accounting.guarantee import Gdp, Loss
from streamveil.core.noise.keyed import Draws
from streamveil.core.selection.protocol import Names, PerKey
from streamveil.errors import require_positive
from streamveil.types import Array, Float64, UInt64

FINE, COARSE = 100, 40  # lattice steps per shift_epsilon: all sound, more are tighter


@dataclass(frozen=True, kw_only=True)
class SelectionTable:
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
    Error: see `compiler.coin_tables.opening_chance`.
    Memory: one Z and one opening time per unopened key.
    Numerics: coins are integers over 2^64; what 128-bit draws leave undecided is charged, see
        `CoinTable`.

    >>> from streamveil.compiler.coin_tables import TableShape
    >>> numbers = (Fraction(text) for text in ("0.55", "0.1172", "1", "1e-10"))
    >>> coins = TableShape(100, *numbers).coins()
    >>> selection = SelectionTable(
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

    def certificate(self, epsilon: Number, places: int = FINE) -> CoinTable:
        """What it costs, for a job that is stated at an epsilon."""
        return CoinTable(
            horizon=self.horizon,
            keys_per_unit=self.keys_per_unit,
            shift_epsilon=self.shift_epsilon,
            coins=self.coins.coins,
            places=places,
            epsilon=exact("epsilon", epsilon),
        )

    def loss(self, epsilon: Number, mu: Number = 0, places: int = FINE) -> Loss:
        """Selection and mu-GDP releases together, for a job that is stated at an epsilon."""
        return Gdp(mu) + Loss(tables=((self.certificate(epsilon, places), 1),))

    def delta_at(self, epsilon: Number, mu: Number = 0, places: int = FINE) -> float:
        """A certified delta for selection and mu-GDP releases together."""
        at = convert.exact_below(exact("epsilon", epsilon))
        return self.loss(epsilon, mu, places).delta_at(at)

    def shift(self, draws: Draws, ids: Names) -> PerKey:
        """Z of each key, drawn once when it is first seen."""
        count = len(ids)
        if draws.silent:
            return np.zeros(count, np.int64)
        which, most = np.zeros(count, np.int64), int(NEVER) - 2
        return waits(draws.words_for(ids, WORDS), *self._shift_rate, which, most)

    @cached_property
    def _shift_rate(self) -> tuple[Float64[Array, " 1"], list[Any]]:
        """Of the geometric law of Z, as a float and exactly."""
        with mpmath.workprec(PRECISION):
            rate = mpmath.mpf(self.shift_epsilon.numerator) / self.shift_epsilon.denominator
        return np.array([float(self.shift_epsilon)]), [rate]

    def next_opening(
        self, draws: Draws, ids: Names, units: PerKey, shift: PerKey, step: int
    ) -> PerKey:
        """The trigger >= step at which each key opens if its units do not change; NEVER if none."""
        gap = self.threshold + shift - units
        if draws.silent:
            return np.where(gap <= 0, np.int64(step), NEVER)
        own = np.ascontiguousarray(ids, np.uint64).copy()
        own[:, 0] ^= units.astype(np.uint64)  # one draw per key and count
        return self.next_opening_from(draws.words_for(own, WORDS), gap, step)

    def next_opening_from(
        self, words: UInt64[Array, "keys words"], gap: PerKey, step: int
    ) -> PerKey:
        """As `next_opening`, from words: step + floor(-ln U / -ln(1 - pi(gap)))."""
        found = waits(words, *self._rates, gap, self.horizon - step)
        found[found != NEVER] += step
        return found

    @cached_property
    def _rates(self) -> tuple[Float64[Array, " gaps"], list[Any]]:
        with mpmath.workprec(PRECISION):
            inner = [-mpmath.log1p(-mpmath.mpf(coin) / COIN) for coin in self.coins.coins]
        rates = [mpmath.inf, *inner, mpmath.mpf(0)]
        return np.array([float(rate) for rate in rates]), rates
