"""Which discovered keys may be shown, and from when. A key once shown stays shown."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import log, pi, sqrt
from typing import Protocol

import numpy as np
from scipy.special import ndtri_exp

from streamveil.mechanisms.counters.protocol import Counter
from streamveil.mechanisms.counters.protocol import State as CounterState
from streamveil.privacy.calibrate import root_up
from streamveil.privacy.guarantee import Loss
from streamveil.privacy.noise import Draws, Noise
from streamveil.types import Array, Bool, Float64, Int64, UInt64

FINE = 1024  # quanta per privacy unit in a selection counter: rounding becomes negligible
ROUNDING_SHARE = 2.0**-10  # of a trigger's failure probability, left for rounding errors
SAFETY = 1 + 1e-9  # covers the float64 arithmetic of a threshold


@dataclass(frozen=True)
class Address:
    """Where a window's noise lives: every draw adds its trigger."""

    noise: Noise
    job: bytes
    window: int


class Selection(Protocol):
    """Decides at each trigger which keys of a window become public."""

    def threshold(self, trigger: int) -> float:
        """Units above which a key passes at a trigger, for forecasts and for the silent test."""

    def init(self, trigger: int) -> dict[str, Array]:
        """The state of a window with no keys, before its given trigger."""

    def step(
        self,
        state: dict[str, Array],
        units: Int64[Array, " keys"],
        names: UInt64[Array, "keys 2"],
        trigger: int,
        at: Address,
    ) -> tuple[dict[str, Array], Bool[Array, " keys"]]:
        """Adds the new distinct units of every key seen so far; which keys pass at this trigger.

        Keys beyond the state's are new: they must get the law they would have had from the
        window's first trigger.
        """


@dataclass(frozen=True, kw_only=True)
class GaussianSelection:
    """A continual count of distinct units for every possible key, tested against thresholds.

    Algorithm: design of DP-SQLP's key selection (Zhang et al. 2023, arXiv:2303.18086) with one
        Gaussian counter, no restarts, and thresholds that hold at all triggers together.
    Protects: all rows of one unit, which adds at most 1 to each of at most `groups` keys.
    Guarantee: `counter.loss(sqrt(groups))` plus delta = `hidden` * `beta`.
    Proof: Let G run the counter for every key of the universe from the start, and let Post open a
        key at the first trigger with at least one accepted row whose estimate exceeds the
        threshold, and show its estimates from then on. Let D = D' + unit u and let X be the (key,
        trigger) pairs where key k has accepted rows in D but none in D'. A, what runs, mutes keys
        without rows; B(D) is Post on G(D) with X muted as well. (i) B(D) and A(D') are the same
        function of G(D) and G(D'), so they are as close as the Gaussian mechanism says. (ii) On the
        event F that no muted pair exceeds its threshold, A(D) = B(D), and F is an event of G's
        output. Hence P[A(D) in E] <= P[B(D) in E] + P(not F), and P[A(D') in E] <= P[G(D') in
        Post^-1(E) and F] + P_D'(not F) <= e^eps P[A(D) in E] + delta_G + P_D'(not F). (iii) Pairs
        in X belong to at most `hidden` keys that hold u alone, count 1, so not-F has probability at
        most hidden * sum over t of P[noise_t > threshold_t - 1] <= hidden * beta: no factor e^eps.
        A key's counter is created when its first row arrives, but its skipped steps are executed
        with zero input and the noise of their own addresses, which nobody has seen: the law of G.
    Error: the threshold; see `threshold`.
    Numerics: estimates count in 1/1024 units. The noise of a feedback counter is a Gaussian of
        standard deviation at most s plus a sum of rounding errors of at most 1/2 quantum each,
        whose means given the past are below exp(-2 pi^2 sigma^2) and are zero in float64; by
        Hoeffding the sum exceeds s z' / (2 sigma min D) with probability at most exp(-z'^2 / 2).
    """

    counter: Counter  # of units, in quanta of 1 / FINE
    groups: int  # groups one unit may be counted in
    hidden: int  # of those, not yet shown
    beta: float  # that a key of one unit alone is shown at any trigger, at most
    floor: int = 1  # keys need well above this many units

    @property
    def loss(self) -> Loss:
        """See the class."""
        moved = Fraction(FINE) * root_up(Fraction(self.groups))
        slack = Loss(delta=Fraction(self.hidden) * Fraction(self.beta))
        return self.counter.loss(moved, self.groups) + slack

    def threshold(self, trigger: int) -> float:
        """The number of units that the estimate must exceed at a trigger."""
        share = 6 * self.beta / (pi * trigger) ** 2
        if self.counter.needs_horizon and self.counter.horizon:
            share = self.beta / self.counter.horizon
        z = -float(ndtri_exp(log(share) + log(1 - ROUNDING_SHARE)))
        z_rounding = sqrt(-2 * log(share * ROUNDING_SHARE))
        sigma = float(self.counter.sigma)
        sd = float(self.counter.std(np.array([trigger]))[0]) / FINE
        extra = z_rounding * self.counter.sensitivity / (2 * sigma)  # min D is 1 / sensitivity
        return (self.floor + sd * (z + extra)) * SAFETY

    def init(self, trigger: int) -> dict[str, Array]:
        """See `Selection.init`."""
        return self.counter.init(0, trigger - 1).to_arrays() | {"estimate": np.zeros(0, np.int64)}

    def step(
        self,
        state: dict[str, Array],
        units: Int64[Array, " keys"],
        names: UInt64[Array, "keys 2"],
        trigger: int,
        at: Address,
    ) -> tuple[dict[str, Array], Bool[Array, " keys"]]:
        """See `Selection.step`."""
        counted = CounterState.from_arrays(state)
        new = names[counted.keys :]
        if len(new):
            counted = join(counted, self._catch_up(new, trigger, at))
        estimate, counted = self.counter.step(
            counted, units * FINE, self._draws(trigger, at), names
        )
        passes = estimate > self.threshold(trigger) * FINE
        return counted.to_arrays() | {"estimate": np.asarray(estimate)}, passes

    def _catch_up(self, names: UInt64[Array, "new 2"], trigger: int, at: Address) -> CounterState:
        """The triggers before a key's first row, run with zero input and their own noise."""
        counted = self.counter.init(len(names))
        nothing = np.zeros(len(names), np.int64)
        for past in range(1, trigger):
            _, counted = self.counter.step(counted, nothing, self._draws(past, at), names)
        return counted

    def _draws(self, trigger: int, at: Address) -> Draws:
        return at.noise.at("group-by/select", at.job, at.window, trigger)

    def counts(self, state: dict[str, Array]) -> Float64[Array, " keys"]:
        """The latest estimates, in units."""
        return np.asarray(state["estimate"] / FINE)


def join(left: CounterState, right: CounterState) -> CounterState:
    """Two states at the same step, side by side."""
    return CounterState(
        left.t,
        np.concatenate([left.whole, right.whole], axis=1),
        np.concatenate([left.real, right.real], axis=1),
    )
