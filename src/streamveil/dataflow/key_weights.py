"""Counters whose keys carry public weights: large keys are counted less precisely, and cost less.

Rows of a key of weight w are charged w in their unit's quadratic filter, and the noise of the key
is 1 / w times larger. Where a key's total is large, that noise is still small beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from streamveil.compiled import njit
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import correlated_noise
from streamveil.core.counters.anytime import AnytimeBltCounter
from streamveil.core.counters.blt import BltCounter
from streamveil.core.counters.protocol import Counter
from streamveil.core.counters.protocol import CounterState as CounterState
from streamveil.core.portable import portable
from streamveil.types import Array, Exact, Float64, Int64, UInt8


@dataclass(frozen=True, kw_only=True)
class WeightRule:
    """Which weight a key has, in quanta of 1 / scale; a function of what has been released.

    Algorithm: a key enters with `entry`; from then on its weight is the smallest so far of
        entry * (reference / forecast of its total)^(1/3), rounded down, at least one quantum. With
        noise 1 / w and cost w^2 per row, the sum over keys of their noise is least when the
        weights fall as the cube root of the totals. Totals are taken `caution` deviations too low:
        keys that are public from the start have no total yet when their weight is first asked for,
        and a weight never rises again.
    """

    scale: int  # quanta of weight one
    entry: int  # of a key that is not shown, or just shown; 1..scale
    reference: float  # total up to which a key keeps its first weight
    caution: float = 0.0

    def next(
        self, weights: UInt8[Array, " keys"], totals: Float64[Array, " keys"], share: float
    ) -> UInt8[Array, " keys"]:
        """The weights after a release; `share` is the part of the window that is over."""
        forecast = np.maximum(totals / share, self.reference)
        wanted = np.floor(self.entry * np.cbrt(self.reference / forecast))
        return np.asarray(np.minimum(weights, np.maximum(wanted, 1).astype(np.uint8)))


def blt_of(counter: Counter) -> BltCounter | None:
    """The BLT inside a counter, if it is one."""
    if isinstance(counter, AnytimeBltCounter):
        return counter.inner
    return counter if isinstance(counter, BltCounter) else None


def weighted_loss(counter: Counter, moved: Exact, keys: int, rule: WeightRule | None) -> Loss:
    """The loss of a counter when one unit's weighted moves sum to `moved` in L2 over all keys.

    Proof: given what was released, step t of a key adds a Gaussian of scale sigma v_t D_t / w_t
        about a centre that moves by D_t (C D^-1 dx)_t. As w does not rise, column s of the weighted
        encoder has entries w_t (C D^-1)_ts <= w_s (C D^-1)_ts, so its norm is at most w_s times the
        plain one, and the moves of one key add up to at most (sum of w_s |dx_s|) times it; over
        keys, the sum of squares is what the quadratic filter bounds.
        Slack for float64 offsets: up to step t no weight of the key was below w_t, so its noise,
        its rounding and the moves of its z and buffers are at most 1 / w_t times those that
        `feedback` bounds for weight 1 (where the bias of rounding, which falls with the noise, is
        largest). So z_t is off by at most eta / w_t, against noise of scale sigma v_t / w_t: a key
        adds the plain slack, whatever its weight. Each group moves by one or more, at a weight of
        1 / scale or more: a unit touches at most `keys` of them, and at most (moved * scale)^2.
        Both parts of mu fall as sigma grows: (moves + rounding) / sigma, and a constant. That is
        the floor which no noise passes.
    """
    if rule is None:
        return counter.loss(moved, keys)
    blt = blt_of(counter)
    if blt is None:
        raise ValueError("weights need a BLT: other counters do not draw noise by weight")
    slack = correlated_noise.up(Fraction(blt.slack(moved)) * rule.scale)
    whole = -(-keys // rule.scale**2)  # as many keys of weight 1 have the slack of all of them
    return correlated_noise.gaussian_loss(blt.sigma, blt.sensitivity, moved, slack, whole)


@dataclass(repr=False)
class Spread:
    """The variance of the noise of shown keys: public, exact for any late start.

    In two parts, because all lanes of a query share the counter's shape but not its sigma. Rows of
    both: the covariance of the buffers (upper triangle), their covariance with the total, and the
    variance of the total.
    """

    rows: Float64[Array, "cells columns"]  # of noise of sigma 1: a key's, or as below if no weights
    rounding: Float64[Array, "cells cohorts"]  # of all keys that start together

    @classmethod
    def empty(cls, counter: Counter) -> Spread:
        """No keys."""
        blt = blt_of(counter)
        d = 0 if blt is None else blt.buffers
        nothing = np.zeros((d * (d + 1) // 2 + d + 1, 0))
        return cls(nothing, nothing)

    @classmethod
    def after(cls, counter: Counter, triggers: tuple[int, ...], share: float | None) -> Spread:
        """Of one cohort in one column whose only steps so far were these, at such a share."""
        found = cls.empty(counter)
        found.grow(1)
        for trigger in triggers:
            found.step(counter, trigger, None if share is None else np.array([share]))
        return found

    def grow(self, columns: int, start: Spread | None = None) -> None:
        """A further cohort of so many columns; with noise as in `start`, or none so far."""
        fresh = np.zeros((len(self.rows), 1))
        rows, rounding = (fresh, fresh) if start is None else (start.rows, start.rounding)
        self.rows = np.hstack([self.rows, np.repeat(rows, columns, axis=1)])
        self.rounding = np.hstack([self.rounding, rounding])

    def step(
        self, counter: Counter, trigger: int, share: Float64[Array, " columns"] | None
    ) -> None:
        """One more trigger. `share` None: all are 1. Counters of any sigma give the same."""
        blt = blt_of(counter)
        if blt is None or not self.rows.shape[1]:
            return
        scale, noise = blt.schedule.scales(trigger)
        share = np.ones(self.rows.shape[1]) if share is None else share
        rounded = np.full(self.rounding.shape[1], 1 / (12 * scale**2))
        for rows, fresh in ((self.rows, (noise / share) ** 2), (self.rounding, rounded)):
            advance_spread(rows, blt.schedule.keep, blt.schedule.drain, scale, fresh)

    def variances(
        self, counter: Counter, trigger: int, sizes: Int64[Array, " cohorts"]
    ) -> Float64[Array, " keys"]:
        """Of one lane's counter at the last step, for cohorts of these sizes.

        For counters other than BLTs: of a key counted from the first trigger, never smaller.
        """
        if blt_of(counter) is None:
            sd = counter.std(np.array([trigger]))[0]
            return np.full(sizes.sum(), float(portable(sd)) ** 2)
        noise, rounding = self.rows[-1], np.repeat(self.rounding[-1], sizes)
        noise = noise if len(noise) == len(rounding) else np.repeat(noise, sizes)
        return np.asarray(noise * float(counter.sigma) ** 2 + rounding)


@njit(cache=True)
def advance_spread(rows: Array, keep: Array, drain: Array, scale: float, fresh: Array) -> None:
    """Adds one step of noise of variance `fresh` to the second moments of every key."""
    d = len(keep)
    pairs = d * (d + 1) // 2
    spent = np.empty(d)
    for key in range(rows.shape[1]):
        quadratic, mixed = 0.0, 0.0
        for i in range(d):
            spent[i] = 0.0
            for j in range(d):
                low, high = min(i, j), max(i, j)
                spent[i] += rows[high * (high + 1) // 2 + low, key] * drain[j]
            quadratic += drain[i] * spent[i]
            mixed += drain[i] * rows[pairs + i, key]
        new = fresh[key]
        rows[pairs + d, key] += scale**2 * (new + quadratic) - 2 * scale * mixed
        for i in range(d):
            cross = rows[pairs + i, key]
            rows[pairs + i, key] = keep[i] * (cross - scale * spent[i]) + scale * new
            for j in range(i + 1):
                cell = i * (i + 1) // 2 + j
                rows[cell, key] = rows[cell, key] * keep[i] * keep[j] + new
