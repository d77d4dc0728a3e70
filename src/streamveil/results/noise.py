"""How the noise of one counter at different steps is correlated: public, from its decoder.

Every counter's noise at step t is a fixed combination of independent draws, N_t = sum_j B_tj z_j:
of the feedback counters one draw a step, of the trees one draw a node. A key that starts at step o
has no draw that was made before o. So

    cov(N_t, N_s) = sum over draws j made at steps o .. min(t, s) of B_tj B_sj var(z_j),

with var(z_j) = sigma^2 / w_j^2 + (rounding); w_j is the weight of the key at that step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, singledispatch

import numpy as np

from streamveil.core.counters import Counter
from streamveil.core.counters.restarting_trees import refined_variances
from streamveil.counters import AnytimeBltCounter, BltCounter, HonakerCounter, KaryTreeCounter
from streamveil.counters.kary import blocks_of
from streamveil.types import Array, Float64, Int64

ROUNDING = 1 / 12  # variance of rounding to an integer
ALWAYS = 0  # the step of draws that every key has, whenever it starts
SUM = -1  # the node of a rounded sum: every step rounds anew


@dataclass(frozen=True, eq=False)
class Mix:
    """The noise at one step, as a combination of independent draws. Draws are in order of step."""

    draws: tuple[Array, Array]  # what tells draws apart: a node's level and place
    steps: Int64[Array, " draws"]  # when each was made
    parts: Float64[Array, " draws"]  # B_tj
    scaled: Float64[Array, " draws"]  # variance of a draw that a key's weight changes
    fixed: Float64[Array, " draws"]  # and the rest of it: rounding

    @classmethod
    def of(
        cls, nodes: Sequence[tuple[int, int, int, float, float]], fixed: float = ROUNDING
    ) -> Mix:
        """From rows (level, place, step, part, variance), each rounded alone."""
        rows = np.array(sorted(nodes, key=lambda row: row[2]), float).reshape(-1, 5)
        level, place, steps = rows[:, :3].T.astype(np.int64)
        return cls((level, place), steps, rows[:, 3], rows[:, 4], np.full(len(rows), fixed))


@singledispatch
def mix(counter: Counter, t: int) -> Mix:
    """The noise of a counter's estimate after t steps, of a key that started at step 1."""
    raise TypeError(f"the noise of {type(counter).__name__} is not known")


@lru_cache(maxsize=4096)
def known_mix(counter: Counter, t: int) -> Mix:
    """As `mix`, remembered."""
    if not 1 <= t <= counter.horizon:
        raise ValueError(f"t must be between 1 and {counter.horizon}")
    return mix(counter, t)


def products(counter: Counter, t: int, s: int) -> tuple[Array, Array, Array]:
    """(steps, scaled, fixed): what the shared draws of two steps add to their covariance."""
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


def correlated_mix(
    parts: Float64[Array, " t"],
    scales: Float64[Array, " t"],
    sigma: float,
) -> Mix:
    """One draw a step, of scale sigma, plus a rounding that its column scale D_j enlarges."""
    steps = np.arange(1, len(parts) + 1)
    scaled = np.full(parts.shape, sigma**2)
    return Mix((np.zeros_like(steps), steps), steps, parts, scaled, ROUNDING / scales**2)


@mix.register
def _(counter: BltCounter, t: int) -> Mix:
    scales = scales_up_to(counter, min(1 << (t - 1).bit_length(), counter.horizon))[:t]  # type: ignore[arg-type]  # a frozen dataclass
    return correlated_mix(decoded(counter, scales), scales, float(counter.sigma))


def decoded(counter: BltCounter, scales: Float64[Array, " steps"]) -> Float64[Array, " steps"]:
    """B = A D C^-1: B_tj = D_j - sum_i drain_i sum_(u = j+1..t) D_u keep_i^(u-1-j).

    Steps are counted where the counter took them: it may have left some out.
    """
    from scipy.signal import lfilter  # slow to load, and rarely needed

    plan, parts = counter.schedule, scales.copy()
    for keep, drain in zip(plan.keep, plan.drain, strict=True):
        later = lfilter([1.0], [1.0, -keep], scales[::-1])[::-1]
        parts[:-1] -= drain * later[1:]
    return parts


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


@lru_cache(maxsize=64)
def scales_up_to(counter: BltCounter, steps: int) -> Float64[Array, " steps"]:
    """D_t of the first steps."""
    return counter.schedule.scales(1, steps)


@mix.register
def _(counter: AnytimeBltCounter, t: int) -> Mix:
    return mix(counter.inner, t)


@mix.register
def _(counter: HonakerCounter, t: int) -> Mix:
    """Each block's refined sum is made of the draws of all blocks inside it."""
    square, top = float(counter.sigma) ** 2, counter.levels - 1
    weights = refined_variances(counter.levels)
    nodes = []
    blocks = [(level, (t >> level) << level) for level in range(top) if t >> level & 1]
    blocks += [(top, place << top) for place in range(1, (t >> top) + 1)]
    for level, end in blocks:
        part, ends = 1.0, [end]
        for inside in range(level, -1, -1):
            own = weights[inside] if inside else 1.0
            nodes += [(inside, one, one, part * own, square) for one in ends]
            part, half = part * (1 - own), 1 << inside >> 1
            ends = [one for whole in ends for one in (whole - half, whole)]
    return Mix.of(nodes)


@mix.register
def _(counter: KaryTreeCounter, t: int) -> Mix:
    """Blocks with signs. Drawn by address: a key has them all, whenever it starts."""
    square = 2 * float(counter.sigma) ** 2
    blocks = blocks_of(t, counter.arity, counter.levels)
    return Mix.of([(level, place, ALWAYS, sign, square) for level, place, sign in blocks])
