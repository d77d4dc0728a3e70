"""How the noise of one counter at different steps is correlated: public, from its decoder.

Every counter's noise at step t is a fixed combination of independent draws, N_t = sum_j B_tj z_j:
one draw a step for the counters with feedback, one draw a node for the trees. A key that starts at
step o has no draws from before o. So

    cov(N_t, N_s) = sum over draws j made at steps o .. min(t, s) of B_tj B_sj var(z_j),

with var(z_j) = sigma^2 / w_j^2 + (rounding); w_j is the weight of the key at that step.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from streamveil.core.counters import ALWAYS, ROUNDING, Counter, Mix
from streamveil.core.counters.blt import BltCounter, decoded, scales_up_to
from streamveil.errors import PlanError
from streamveil.types import Array, Float64, Int64


@lru_cache(maxsize=4096)
def known_mix(counter: Counter, t: int) -> Mix:
    """`Counter.mix`, remembered."""
    if not 1 <= t <= counter.horizon:
        raise PlanError(f"t must be between 1 and {counter.horizon}, not {t}")
    return counter.mix(t)


def products(counter: Counter, t: int, s: int) -> tuple[Array, Array, Array]:
    """(steps, scaled, fixed): the parts of two steps' covariance, by their shared draws."""
    one, two = (known_mix(counter, at) for at in (t, s))  # type: ignore[arg-type]  # every counter is a frozen dataclass
    if t == s:
        squares = one.parts**2
        return one.steps, squares * one.scaled, squares * one.fixed
    kind = np.dtype([("level", np.int64), ("place", np.int64)])
    keys = []
    for each in (one, two):
        key = np.empty(len(each.parts), kind)
        key["level"], key["place"] = each.draws
        keys.append(key)
    _, mine, theirs = np.intersect1d(keys[0], keys[1], assume_unique=True, return_indices=True)
    order = np.argsort(one.steps[mine], kind="stable")
    mine, theirs = mine[order], theirs[order]
    both = one.parts[mine] * two.parts[theirs]
    return one.steps[mine], both * one.scaled[mine], both * one.fixed[mine]


@lru_cache(maxsize=4096)
def tails(counter: Counter, t: int, s: int) -> tuple[Array, Array]:
    """Steps and the sums of products from each of them on: the covariance for every late start."""
    steps, scaled, fixed = products(counter, t, s)
    sums = np.append(np.cumsum((scaled + fixed)[::-1])[::-1], 0.0)
    return steps, sums


def covariance(
    counter: Counter, t: int, s: int, opened: Int64[Array, " keys"]
) -> Float64[Array, " keys"]:
    """cov(N_t, N_s) for keys that started at the given steps, in squared quanta."""
    steps, sums = tails(counter, t, s)  # type: ignore[arg-type]  # every counter is a frozen dataclass
    first = np.searchsorted(steps, np.where(steps[:1].sum() == ALWAYS, ALWAYS, opened))
    return np.asarray(sums[first])


def weighted_covariance(
    counter: Counter, t: int, s: int, weights: Float64[Array, "steps keys"]
) -> Float64[Array, " keys"]:
    """As `covariance`, for keys with weights; row j holds those of step j + 1, NaN before a start.

    Only counters with one draw a step are run with weights.
    """
    steps, scaled, fixed = products(counter, t, s)
    rows = weights[steps - 1]
    counted = ~np.isnan(rows)
    parts = np.where(counted, scaled[:, None] / np.where(counted, rows, 1.0) ** 2, 0.0)
    return np.asarray((parts + np.where(counted, fixed[:, None], 0.0)).sum(axis=0))


def tested_covariance(
    counter: BltCounter,
    moments: tuple[int, int],
    opened: Int64[Array, " keys"],
    tests: Int64[Array, " tests"],
    weights: Float64[Array, "steps keys"] | None,
) -> Float64[Array, " keys"]:
    """As `covariance` for keys whose counters took the steps of some tests before they started.

    `weights` as for `weighted_covariance`, with a key's weight in tests where it had not started.
    """
    found = np.zeros(len(opened))
    of_steps = scales_up_to(counter, max(moments))  # type: ignore[arg-type]  # a frozen dataclass
    for start in np.unique(opened).tolist():
        mine = opened == start
        steps = [
            np.append(tests[tests < start], np.arange(start, t + 1)) - 1 for t in sorted(moments)
        ]
        first, last = (decoded(counter, of_steps[some]) for some in steps)
        scales = of_steps[steps[0]]
        share = np.ones((len(steps[0]), 1)) if weights is None else weights[steps[0]][:, mine]
        drawn = (float(counter.sigma) / share) ** 2
        both = (first * last[: len(first)])[:, None]
        found[mine] = (both * (drawn + (ROUNDING / scales**2)[:, None])).sum(axis=0)
    return found
