"""Thresholds that a key nobody else has passes at no trigger, but with a stated chance."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf, log, pi, sqrt

import numpy as np

from streamveil.core.accounting.budget import exact_between
from streamveil.core.counters.protocol import Counter
from streamveil.core.portable import portable
from streamveil.errors import require_positive
from streamveil.special import ndtri_exp
from streamveil.types import Array, Exact, Float64

ROUNDING_SHARE = 2.0**-10  # of a trigger's failure probability, left for rounding errors
REMEMBERED = 4096  # triggers whose thresholds are kept
SAFETY = 1 + 1e-7  # covers the float64 arithmetic of a threshold, and `portable`


@dataclass(frozen=True, kw_only=True)
class GaussianThresholds:
    """What a Gaussian counter's estimate of a key must exceed at each trigger to publish the key.

    Algorithm: beta is divided over the triggers. With a horizon the last one gets `last` of it and
        the others the same share each: the last trigger of a window sees every unit, so a lower
        threshold there shows more keys than anywhere else (by 8 to 11 % in units for 100 to 10,000
        triggers), and raises the others by about 1 %. Without one, trigger t gets
        6 / (pi t)^2 of it.
    Guarantee: a key whose true count never exceeds `floor` passes at any of the triggers with
        probability at most beta, whichever triggers it is tested at and whenever its rows come.
    Proof: passing at t needs noise above threshold(t) - floor. The noise is Gaussian but for the
        rounding of feedback counters, which adds a sum of errors of at most half a quantum each,
        with means given the past below exp(-2 pi^2 sigma^2) (zero in float64); by Hoeffding the sum
        exceeds s z' / (2 sigma min D), s the standard deviation, with probability at most
        exp(-z'^2 / 2). So trigger t fails with at most its share of beta, and the shares add up to
        at most beta: a union bound, which needs neither independence nor a fixed set of tests, as
        long as the noise of an untested trigger has not been seen.
    Numerics: thresholds are rounded up, further than a processor rounds otherwise.

    >>> from streamveil.counters import BltCounter
    >>> counter = BltCounter(horizon=100, sigma=30)
    >>> test = GaussianThresholds(counter=counter, quanta=10, beta=1e-9)
    >>> round(test.threshold(99), 1), round(test.threshold(100), 1)
    (29.4, 25.9)
    """

    counter: Counter  # of units, in quanta
    beta: Exact | float
    quanta: int = 1  # of one unit
    floor: int = 1  # units that must not be enough; of these, one person's at least
    last: Exact | float = Fraction(1, 2)

    def __post_init__(self) -> None:
        require_positive(quanta=self.quanta, floor=self.floor)
        exact_between("beta", self.beta, 0, 1)
        if not 0 < self.last < 1:
            raise ValueError(f"last must be above 0 and below 1, not {self.last}")

    def share(self, trigger: int) -> float:
        """The part of beta that a trigger may use."""
        beta, last = float(self.beta), float(self.last)
        if not self.counter.needs_horizon:
            return 6 * beta / (pi * trigger) ** 2
        if self.counter.horizon == 1:
            return beta
        rest = (1 - last) / (self.counter.horizon - 1)
        return beta * (last if trigger == self.counter.horizon else rest)

    def threshold(self, trigger: int) -> float:
        """The number of units that the estimate must exceed at a trigger."""
        return self._at(trigger)[0]

    def deviation(self, trigger: int) -> float:
        """The standard deviation of the estimate at a trigger, in units."""
        return self._at(trigger)[1]

    def _at(self, trigger: int) -> tuple[float, float]:
        known = self._known
        if trigger not in known:
            if len(known) >= REMEMBERED:
                known.clear()
            known[trigger] = self._computed(trigger)
        return known[trigger]

    @cached_property
    def _known(self) -> dict[int, tuple[float, float]]:
        """Of the last triggers: every window asks for the same ones."""
        return {}

    def _computed(self, trigger: int) -> tuple[float, float]:
        sd = float(self.counter.std(np.array([trigger]))[0]) / self.quanta
        reach = float(reaches(self.counter, float(self.counter.sigma), self.share(trigger)))
        return float(portable((self.floor + sd * reach) * SAFETY)), float(portable(sd))


def reaches(
    counter: Counter, sigma: float, chance: Float64[Array, " any"] | float, steps: float = inf
) -> Float64[Array, " any"]:
    """Deviations that a counter's noise exceeds with at most some chance, rounding included.

    `sigma` is the scale of a draw that is rounded; `steps`: how many of them the noise sums, at
    most, where that is known.

    Proof: see `GaussianThresholds`. The sum of errors e_i of at most half a quantum, with weights
        a_i / D_i where the noise is the sum of a_i draws and s^2 = sigma^2 sum a_i^2, never exceeds
        sum |a_i| / (2 D_i) <= sqrt(steps) s / (2 sigma min D), by Cauchy and Schwarz: for few steps
        less than Hoeffding's bound, and sure.
    """
    z = -ndtri_exp(np.log(chance) + log(1 - ROUNDING_SHARE))
    z_rounding = np.sqrt(-2 * np.log(np.asarray(chance) * ROUNDING_SHARE))
    # min D is 1 / sensitivity
    return np.asarray(z + np.minimum(z_rounding, sqrt(steps)) * counter.sensitivity / (2 * sigma))
