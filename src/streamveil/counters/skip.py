"""Passing over steps at which a key received nothing and nobody looked, without taking them.

Trees and keyed counters skip exactly: a block's noise is drawn when the block is first used, so
blocks that were opened and closed in between need none. A BLT must take every step, but takes them
in one compiled pass.
"""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from streamveil.core.counters.anytime import AnytimeBltCounter
from streamveil.core.counters.blt import BltCounter
from streamveil.core.counters.correlated_noise import up
from streamveil.core.counters.kernels import StepRun, blt_run
from streamveil.core.counters.noise import gaussian_rows
from streamveil.core.counters.protocol import Counter, CounterState, Ids
from streamveil.core.noise.keyed import Draws, Place, SilentDraws, require_place
from streamveil.counters.anytime_haar import AnytimeHaarCounter
from streamveil.counters.haar import HaarCounter
from streamveil.counters.kary import KaryTreeCounter
from streamveil.counters.smooth import SmoothTreeCounter, word_at
from streamveil.counters.tree import BinaryTreeCounter
from streamveil.errors import HorizonError
from streamveil.types import Exact

DIGITS = 60


def skip(
    counter: Counter, state: CounterState, steps: int, place: Place, ids: Ids | None = None
) -> CounterState:
    """The state after `steps` steps without increments whose estimates nobody saw.

    The law of everything released later is that of taking the steps one by one. Whether steps were
    skipped may depend on the data: the noise of a block is drawn once, whoever asks first.
    `place` is the one of the counter's steps.
    """
    if counter.keyed or not steps:  # a keyed counter draws nothing here
        return skip_with(counter, state, steps, SilentDraws(), ids)
    draws = require_place(place).draws(b"skip", state.t + 1)
    return skip_with(counter, state, steps, draws, ids)


def skip_with(
    counter: Counter, state: CounterState, steps: int, draws: Draws, ids: Ids | None = None
) -> CounterState:
    """`skip` with given draws: for who owns addresses, each used once for each key."""
    if steps < 0:
        raise ValueError(f"steps must be at least 0, not {steps}")
    if state.t + steps > counter.horizon:
        raise HorizonError(counter.horizon)
    return _skipped(counter, state, steps, draws, ids) if steps else state


@singledispatch
def _skipped(
    counter: Counter, state: CounterState, steps: int, draws: Draws, ids: Ids | None
) -> CounterState:
    """Counters that must take every step: the noise of each is used by all later ones."""
    for step in range(1, steps + 1):
        nothing = np.zeros(state.keys, np.int64)
        _, state = counter._advance(state, nothing, draws.at("skipped", step), ids)
    return state


@_skipped.register(AnytimeHaarCounter)
@_skipped.register(HaarCounter)
@_skipped.register(KaryTreeCounter)
def _(
    counter: Counter, state: CounterState, steps: int, draws: Draws, ids: Ids | None
) -> CounterState:
    return CounterState(state.t + steps, state.whole, state.real)


@_skipped.register
def _(
    counter: AnytimeBltCounter, state: CounterState, steps: int, draws: Draws, ids: Ids | None
) -> CounterState:
    return _skipped(counter.inner, state, steps, draws, ids)


@_skipped.register
def _(
    counter: BltCounter, state: CounterState, steps: int, draws: Draws, ids: Ids | None
) -> CounterState:
    if draws.silent or not state.keys:
        return CounterState(state.t + steps, state.whole, state.real)
    plan, t = counter.schedule, state.t + steps
    scales, noise = plan.steps(state.t + 1, t)
    run = StepRun(plan.keep, plan.drain, scales, up(counter.sigma) * (noise * scales))
    total, real = blt_run((state.whole[0], state.real), run, draws, ids)
    return CounterState(t, total[None, :], real)


@_skipped.register
def _(
    counter: BinaryTreeCounter, state: CounterState, steps: int, draws: Draws, ids: Ids | None
) -> CounterState:
    t = state.t + steps
    kept = [level for level in range(counter.levels) if state.t >> level == t >> level]
    fresh = [level for level in range(counter.levels) if t >> level & 1 and level not in kept]
    return _renewed(counter.sigma, state, t, (kept, fresh), (draws, ids))


@_skipped.register
def _(
    counter: SmoothTreeCounter, state: CounterState, steps: int, draws: Draws, ids: Ids | None
) -> CounterState:
    t, (height, ones) = state.t + steps, counter.shape
    before, word = word_at(state.t, height, ones), word_at(t, height, ones)
    kept = [i for i in range(height) if word[: i + 1] == before[: i + 1]]
    fresh = [i for i in range(height) if word[i] and i not in kept]
    return _renewed(counter.sigma, state, t, (kept, fresh), (draws, ids))


def _renewed(
    sigma: Exact | float,
    state: CounterState,
    t: int,
    nodes: tuple[list[int], list[int]],
    source: tuple[Draws, Ids | None],
) -> CounterState:
    """Totals and kept nodes stay; fresh nodes are drawn; the others close."""
    kept, fresh = nodes
    whole = np.zeros_like(state.whole)
    whole[0] = state.whole[0]
    rows = [1 + i for i in kept]
    whole[rows] = state.whole[rows]
    if fresh:
        noise = gaussian_rows(*source, state.keys, len(fresh), sigma)
        whole[[1 + i for i in fresh]] = noise
    return CounterState(t, whole, state.real)
