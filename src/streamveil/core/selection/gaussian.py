"""Keys published by a continual Gaussian count of their units. A published key stays published."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np

from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters.protocol import Counter, CounterState, skip_with
from streamveil.core.noise.keyed import Address, Place
from streamveil.core.noisy import Noisy, drawn
from streamveil.core.selection.protocol import Counted, Held, Names, PerKey, Stepped
from streamveil.core.selection.thresholds import GaussianThresholds
from streamveil.core.sensitivity import Bounds, root_up
from streamveil.types import Array, Exact, Float64, Int64, UInt64

FINE = 1024  # quanta per privacy unit in a selection counter: rounding becomes negligible


@dataclass(frozen=True, kw_only=True)
class GaussianSelection:
    """A continual count of distinct units for every possible key, tested against thresholds.

    Algorithm: design of DP-SQLP's key selection (Zhang et al. 2023, arXiv:2303.18086) with one
        Gaussian counter, no restarts, and thresholds that hold at all triggers together.
    Protects: all rows of one unit, which adds at most 1 to each of at most `groups` keys; `groups`
        and `hidden`, how many of them may not be published yet, follow from the bounds.
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

    @property
    def groups(self) -> int:
        """Groups that one unit may be counted in."""
        return self.bounds.units_l2_squared

    @property
    def hidden(self) -> int:
        """Of those, not yet published."""
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
        return self.counter.loss(moved, self.groups) + slack

    def threshold(self, trigger: int) -> float:
        """The number of units that the estimate must exceed at a trigger."""
        return self.thresholds.threshold(trigger)

    def deviation(self, trigger: int) -> float:
        """Of the estimate at a trigger, in units."""
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
    return CounterState(
        left.t,
        np.concatenate([left.whole, right.whole], axis=1),
        np.concatenate([left.real, right.real], axis=1),
    )
