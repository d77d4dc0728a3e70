"""From exact increments to totals that may leave: what draws the noise of continual counts.

Every counter draws in its own way (`Counter.step`); what it gives becomes `Noisy` here and nowhere
else, with the noise of this step in it.
"""

from __future__ import annotations

import numpy as np

from streamveil.core.counters.blt import BltCounter
from streamveil.core.counters.kernels import Coefficients, blt_step
from streamveil.core.counters.protocol import (
    Counter,
    CounterState,
    Estimates,
    Ids,
    Increments,
    draws_at,
    next_step,
)
from streamveil.core.noise.keyed import Place
from streamveil.core.noisy import Noisy, drawn
from streamveil.types import Array, Float64, Int64


def count(
    counter: Counter, state: CounterState, increments: Increments, place: Place, ids: Ids
) -> tuple[Noisy[Estimates], CounterState]:
    """One step of a counter: see `Counter.step`. The totals may leave, the state may not."""
    totals, after = counter.step(state, increments, place, ids)
    return drawn(totals), after


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
    scale, noise = plan.scales(t)
    spread = counter.noise_scale * (noise * scale)
    step = Coefficients(plan.keep, plan.drain, scale, spread, share)
    place, ids = at
    draws = draws_at(counter, place, t)
    totals, real = blt_step(state.whole, state.real, increments, step, draws, ids)
    return drawn(totals), CounterState(t, totals, real)
