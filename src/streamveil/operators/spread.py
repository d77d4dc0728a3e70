"""Standard deviations of counters that started late: public facts, computed once per counter."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit

from streamveil.mechanisms.counters.blt import BltCounter
from streamveil.mechanisms.counters.protocol import Counter
from streamveil.types import Array, Float64, Int64

LARGEST_TABLE = 2048  # steps up to which every (start, step) pair is tabulated


@dataclass(frozen=True)
class Spread:
    """Noise of a counter by the step at which a key's column started.

    Error: exact for the default counter up to 2,048 steps; otherwise the value of a key counted
        from the first step, which is never smaller.
    """

    counter: Counter

    def late(self, started: Int64[Array, " keys"], t: int) -> Float64[Array, " keys"]:
        """Standard deviations at step t, in quanta."""
        if isinstance(self.counter, BltCounter) and self.counter.horizon <= LARGEST_TABLE:
            return np.asarray(np.sqrt(_table(self.counter)[started - 1, t - 1]))
        return np.full(len(started), float(self.counter.std(np.array([t]))[0]))


@lru_cache(maxsize=16)
def _table(counter: BltCounter) -> Float64[Array, "start step"]:
    plan, steps = counter.schedule, range(1, counter.horizon + 1)
    scales = np.array([plan.scales(t) for t in steps])
    sigma = float(counter.sigma)
    squares = (sigma * scales[:, 1]) ** 2 + 1 / (12 * scales[:, 0] ** 2)
    table: Array = late_variances(plan.keep, plan.drain, scales[:, 0].copy(), squares)
    return table


@njit(cache=True)
def late_variances(keep: Array, drain: Array, columns: Array, squares: Array) -> Array:
    """Variance of the total's noise at every step for every start: z has variances `squares`."""
    d, n = len(keep), len(columns)
    out = np.zeros((n, n))
    for start in range(n):
        cov, cross, total = np.zeros((d, d)), np.zeros(d), 0.0
        for t in range(start, n):
            scale, fresh = columns[t], squares[t]
            spent = cov @ drain
            total += scale**2 * (fresh + drain @ spent) - 2 * scale * (cross @ drain)
            out[start, t] = total
            for i in range(d):
                cross[i] = keep[i] * (cross[i] - scale * spent[i]) + scale * fresh
            for i in range(d):
                for j in range(d):
                    cov[i, j] = cov[i, j] * keep[i] * keep[j] + fresh
    return out
