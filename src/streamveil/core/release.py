"""From exact increments to totals that may leave: the noise of continual counts.

Every counter draws in its own way (`Counter.step`). The totals of groups become `Noisy` here, with
the noise of this step in them. The counts of units of a `GaussianSelection`, restarting trees and
the cells of sketches become `Noisy` where their noise is drawn, in the core too.

Keys may carry public weights: large ones are then counted less precisely, and cost less.

Rows of a key of weight w are charged w in their unit's quadratic filter, and the noise of the key
is 1 / w times larger. Where a key's total is large, that noise is still small beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.core import counters
from streamveil.core.accounting import float_above, take_numbers
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import (
    Counter,
    CounterState,
    Estimates,
    Ids,
    Increments,
    draws_at,
    next_step,
)
from streamveil.core.counters.blt import BltCounter
from streamveil.core.counters.kernels import Coefficients, blt_step
from streamveil.core.noise import Place
from streamveil.core.noisy import Noisy, drawn
from streamveil.core.sensitivity import within_64_bits
from streamveil.types import Array, Exact, Float64, Int64, UInt8

MOST_QUANTA = 255  # weights are kept in bytes


@dataclass(frozen=True, kw_only=True)
class WeightRule:
    """Which weight a key has, in quanta of 1 / scale; a function of what has been released.

    Algorithm: a key enters with `entry`; from then on its weight is the smallest so far of
        entry * (reference / forecast of its total)^(1/3), rounded down, at least one quantum
        (also where it is no number). With noise 1 / w and cost w^2 per row, the sum over keys of
        their noise is least when the weights fall as the cube root of the totals. The forecast
        assumes that rows come evenly over the window, but is at most `growth` times the total so
        far: if they come early, weights would fall too far; if they come evenly, few rows of a key
        come while so small a part of the window is over. Totals are taken `caution` deviations too
        low: keys that are public from the start have no total yet when their weight is first asked
        for, and a weight never rises again.
    """

    scale: int  # quanta of weight one; entry..255
    entry: int  # of a key that is not shown, or just shown; 1..scale
    reference: float  # total up to which a key keeps its first weight
    caution: float = 0.0
    growth: float = 16.0  # a forecast is at most so many times the total so far

    def __post_init__(self) -> None:
        take_numbers(self)
        if not 1 <= self.entry <= self.scale <= MOST_QUANTA:
            most = f"at most {MOST_QUANTA}, not {self.entry} and {self.scale}"
            raise ValueError(f"entry must be from 1 to scale, quanta of weight, and scale {most}")

    def next(
        self, weights: UInt8[Array, " keys"], totals: Float64[Array, " keys"], share: float
    ) -> UInt8[Array, " keys"]:
        """The weights after a release; `share` is the part of the window that is over."""
        forecast = np.maximum(totals / max(share, 1 / self.growth), self.reference)
        wanted = np.floor(self.entry * np.cbrt(self.reference / forecast))
        return np.asarray(np.minimum(weights, np.fmax(wanted, 1).astype(np.uint8)))


def blt_of(counter: Counter) -> BltCounter | None:
    """The BLT inside a counter, if it is one."""
    inside = getattr(counter, "inner", counter)  # of an `AnytimeBltCounter`, which is not loaded
    return inside if isinstance(inside, BltCounter) else None


def weighted_loss(counter: Counter, moved: Exact, keys: int, rule: WeightRule | None) -> Loss:
    """The loss of a counter when one unit's weighted moves sum to `moved` in L2 over all keys.

    Proof: given what was released, step t of a key adds a Gaussian of scale sigma D_t / w_t
        about a centre that moves by D_t (C D^-1 dx)_t. As w does not rise, column s of the weighted
        encoder has entries w_t (C D^-1)_ts <= w_s (C D^-1)_ts, so its norm is at most w_s times the
        plain one, and the moves of one key add up to at most (sum of w_s |dx_s|) times it; over
        keys, the sum of squares is what the quadratic filter bounds.
        Slack for float64 offsets: up to step t no weight of the key was below w_t, so its noise,
        its rounding and the moves of its z and buffers are at most 1 / w_t times those that
        `core.counters` bounds for weight 1 (where the bias of rounding, which falls with the noise,
        is largest). So z_t is off by at most eta / w_t, against noise of scale sigma / w_t: a key
        adds the plain slack, whatever its weight. Each group moves by one or more, at a weight of
        1 / scale or more: a unit touches at most `keys` of them, and at most (moved * scale)^2.
        Both parts of mu fall as sigma grows: (moves + rounding) / sigma, and a constant. That is
        the floor which no noise passes.
    """
    if rule is None:
        return counters.l2_loss(counter, moved, keys)
    blt = blt_of(counter)
    if blt is None:
        raise ValueError("weights need a BLT: other counters do not draw noise by weight")
    slack = float_above(Fraction(blt.slack(moved)) * rule.scale)
    whole = -(-keys // rule.scale**2)  # as many keys of weight 1 have the slack of all of them
    return counters.gaussian_loss(blt.sigma, blt.sensitivity, moved, slack, whole)


def count(
    counter: Counter, state: CounterState, increments: Increments, place: Place, ids: Ids
) -> tuple[Noisy[Estimates], CounterState]:
    """One step of a counter: see `Counter.step`. The totals may leave, the state may not."""
    totals, after = counter.step(state, increments, place, ids)
    return drawn(within_64_bits(totals)), after


def lanes_start(counter: BltCounter, lanes: int, keys: int, t: int = 0) -> CounterState:
    """The state after t steps without noise of so many lanes that share a counter."""
    one = counter.init(keys, t)
    return CounterState(t, np.repeat(one.whole, lanes, axis=0), np.repeat(one.real, lanes, axis=0))


def count_weighted(
    counter: BltCounter,
    state: CounterState,
    increments: Int64[Array, "lanes keys"],
    at: tuple[Place, Ids],
    share: Float64[Array, " keys"] | None,
) -> tuple[Noisy[Int64[Array, "lanes keys"]], CounterState]:
    """One step with the noise of every key divided by its share (its weight, at most 1; None: 1).

    Keys beyond those of the state start now. Lanes that share a counter take the step together:
    lane l uses word l of every key at the one address of all of them. Its total is row l of the
    state, its i-th buffer row `lanes * i + l`.
    """
    t, plan = next_step(counter.horizon, state), counter.schedule
    if not increments.shape[1]:
        return drawn(state.whole), CounterState(t, state.whole, state.real)
    scale = plan.scale(t)
    step = Coefficients(plan.keep, plan.drain, scale, counter.noise_scale * scale, share)
    place, ids = at
    draws = draws_at(counter, place, t)
    totals, real = blt_step(state.whole, state.real, increments, step, draws, ids)
    return drawn(within_64_bits(totals)), CounterState(t, totals, real)
