"""Keys published by a continual Gaussian count of their units. A published key stays published.

By its threshold, a key of one unit alone passes at no trigger, except with a stated chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import inf, log, pi, sqrt
from typing import ClassVar

import numpy as np

from streamveil.compiled import ndtri_exp
from streamveil.core.accounting import exact_between, portable, take_numbers
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import Counter, CounterState, l2_loss, skip_with
from streamveil.core.noise import Address, Place
from streamveil.core.noisy import Noisy, drawn
from streamveil.core.selection import Counted, Held, Names, PerKey, Stepped
from streamveil.core.sensitivity import Bounds, root_up
from streamveil.errors import require_positive
from streamveil.types import Array, Exact, Float64, Int64, UInt64

ROUNDING_SHARE = 2.0**-10  # of a trigger's failure probability, left for rounding errors
REMEMBERED = 4096  # triggers whose thresholds are kept
SAFETY = 1 + 1e-7  # covers the float64 arithmetic of a threshold, and `portable`
LEAST_NOISE = 2.0  # quanta, of a scaled draw: the mean of its rounding error is below 1e-34


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
        with means given the past below exp(-2 pi^2 (sigma min D)^2): from `LEAST_NOISE` on all
        together are far below what `SAFETY` adds; with less noise no trigger has a threshold. By
        Hoeffding the sum exceeds s z' / (2 sigma min D), s the standard deviation, with probability
        at most exp(-z'^2 / 2). So trigger t fails with at most its share of beta, and the shares
        add up to at most beta: a union bound, which needs neither independence nor a fixed set of
        tests, as long as the noise of an untested trigger has not been seen.
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
        take_numbers(self)
        require_positive(quanta=self.quanta, floor=self.floor)
        exact_between("beta", self.beta, 0, 1)
        exact_between("last", self.last, 0, 1)
        l2_loss(self.counter)  # refuses pure noise, whose tails are longer

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
        less than Hoeffding's bound, and sure. With less noise than `LEAST_NOISE` errors have
        means other than 0, and only the sure bound holds.
    """
    z = -ndtri_exp(np.log(chance) + log(1 - ROUNDING_SHARE))
    even = sigma >= LEAST_NOISE * counter.sensitivity
    z_rounding = np.sqrt(-2 * np.log(np.asarray(chance) * ROUNDING_SHARE)) if even else inf
    # min D is 1 / sensitivity
    return np.asarray(z + np.minimum(z_rounding, sqrt(steps)) * counter.sensitivity / (2 * sigma))


FINE = 1024  # quanta per privacy unit in a selection counter: rounding becomes negligible


@dataclass(frozen=True, kw_only=True)
class GaussianSelection:
    """A continual count of distinct units for every possible key, tested against thresholds.

    Algorithm: design of DP-SQLP's key selection (Zhang et al. 2023, arXiv:2303.18086) with one
        Gaussian counter, no restarts, and thresholds that hold at all triggers together.
    Protects: all rows of one unit, which adds at most 1 to each of at most `groups` keys; `groups`
        and `hidden`, how many of them may not be published yet, follow from the bounds, in which
        every row weighs 1.
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
        most hidden * beta, by `GaussianThresholds`: no factor e^eps. Nobody has seen noise of a key
        in X before u enters it, so this holds given any past.
        Late keys: a key's counter is created when its first row arrives, at trigger t, and the
        steps before are then executed with zero input, on words of an address of their own. In G
        they would use this key's words of triggers 1 .. t-1. Neither set of words is used for
        anything else and nobody is shown the estimates of those steps, so the joint law of all that
        is shown is that of G. The words depend on the window and the key, not on t: a key has one
        first row, which a restart repeats.
    Error: the threshold; see `GaussianThresholds`.
    Numerics: estimates count in 1/1024 units, so rounding to integers hardly adds noise.
    """

    once: ClassVar[bool] = False
    restarts: ClassVar[bool] = False
    counter: Counter  # of units, in quanta of 1 / FINE
    bounds: Bounds
    beta: float  # that a key of one unit alone is published at any trigger, at most
    floor: int = 1  # keys need well above this many units
    last: Exact | float = Fraction(1, 2)  # of beta, for the last trigger of a window

    def __post_init__(self) -> None:
        if self.bounds.scale > 1:  # light rows let a unit into more groups than `groups`
            raise ValueError("a count of units that shows groups has no weights")

    @property
    def groups(self) -> int:
        """Groups that one unit may be counted in."""
        return self.bounds.units_l2_squared

    @property
    def hidden(self) -> int:
        """How many of these groups may not be published yet."""
        return self.bounds.hidden_groups

    @cached_property
    def thresholds(self) -> GaussianThresholds:
        """The test."""
        return GaussianThresholds(
            counter=self.counter, beta=self.beta, quanta=FINE, floor=self.floor, last=self.last
        )

    @property
    def loss(self) -> Loss:
        """See the class."""
        moved = Fraction(FINE) * root_up(Fraction(self.groups))
        slack = Loss(delta=Fraction(self.hidden) * Fraction(self.beta))
        return l2_loss(self.counter, moved, self.groups) + slack

    def threshold(self, trigger: int) -> float:
        """The number of units that the estimate must exceed at a trigger."""
        return self.thresholds.threshold(trigger)

    def deviation(self, trigger: int) -> float:
        """The standard deviation of the estimate at a trigger, in units."""
        return self.thresholds.deviation(trigger)

    def init(self, trigger: int) -> Held:
        """See `Selection.init`."""
        return self.counter.init(0, trigger - 1).to_arrays() | {"estimate": np.zeros(0, np.int64)}

    def step(self, state: Held, units: PerKey, names: Names, trigger: int, at: Address) -> Stepped:
        """See `Selection.step`."""
        counted = CounterState.from_arrays(state)
        new = names[counted.keys :]
        if len(new):
            counted = join(counted, self._catch_up(new, trigger, at))
        added = units * FINE
        units[:] = 0
        place = Place(at.noise, "group-by/select", (at.job, at.window))
        estimate, counted = self.counter.step(counted, added, place, names)
        passing = np.flatnonzero(estimate > self.threshold(trigger) * FINE)
        return counted.to_arrays() | {"estimate": np.asarray(estimate)}, passing

    def _catch_up(self, names: UInt64[Array, "new 2"], trigger: int, at: Address) -> CounterState:
        """New keys after the triggers before their first row, run with zero input."""
        missed = at.noise.at("group-by/missed", at.job, at.window)
        return skip_with(self.counter, self.counter.init(len(names)), trigger - 1, missed, names)

    def counts(
        self, state: dict[str, Array], rows: Int64[Array, " some"]
    ) -> Noisy[Float64[Array, " some"]]:
        """The latest estimates of some keys, in units: noise was drawn over them by `step`."""
        return drawn(state["estimate"][rows] / FINE)


@dataclass(frozen=True, kw_only=True)
class GaussianSettings:
    """A count of units discovers groups: what bounds and triggers do not imply."""

    noise: Exact  # of the counter
    beta: float
    floor: int = 1

    @property
    def slots(self) -> None:
        """A unit is counted in every group that it enters."""

    def over(self, counted: Counted, bounds: Bounds, triggers: int | None) -> GaussianSelection:
        """See `core.mechanism.Discovery`."""
        counter = counted(self.noise)
        return GaussianSelection(counter=counter, bounds=bounds, beta=self.beta, floor=self.floor)


def join(left: CounterState, right: CounterState) -> CounterState:
    """Two states at the same step, side by side."""
    pairs = (left.whole, right.whole), (left.real, right.real)
    return CounterState(left.t, *(np.concatenate(pair, axis=1) for pair in pairs))
