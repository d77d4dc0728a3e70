"""From exact increments to totals that may leave: what draws the noise of continual counts.

Every counter draws in its own way (`Counter.step`); what it gives becomes `Noisy` here and nowhere
else, with the noise of this step in it.
"""

from __future__ import annotations

from streamveil.core.counters.blt import BltCounter
from streamveil.core.counters.kernels import Coefficients, blt_step
from streamveil.core.counters.protocol import (
    Counter,
    CounterState,
    Estimates,
    Ids,
    Increments,
    next_step,
)
from streamveil.core.counters.stream import draws_at
from streamveil.core.noise.keyed import Place
from streamveil.core.noisy import Noisy, drawn
from streamveil.types import Array, Float64


def count(
    counter: Counter, state: CounterState, increments: Increments, place: Place, ids: Ids
) -> tuple[Noisy[Estimates], CounterState]:
    """One step of a counter: see `Counter.step`. The totals may leave, the state may not."""
    totals, after = counter.step(state, increments, place, ids)
    return drawn(totals), after


def count_weighted(
    counter: BltCounter,
    state: CounterState,
    increments: Increments,
    at: tuple[Place, Ids],
    share: Float64[Array, " keys"] | None,
) -> tuple[Noisy[Estimates], CounterState]:
    """One step with the noise of every key divided by its share (its weight, at most 1; None: 1).

    Keys beyond those of the state start now.
    """
    t, plan = next_step(counter.horizon, state), counter.schedule
    if not len(increments):
        return drawn(state.whole[0]), CounterState(t, state.whole, state.real)
    scale, noise = plan.scales(t)
    spread = counter.noise_scale * (noise * scale)
    step = Coefficients(plan.keep, plan.drain, scale, spread, share)
    place, ids = at
    draws = draws_at(counter, place, t)
    total, real = blt_step(state.whole[0], state.real, increments, step, draws, ids)
    return drawn(total), CounterState(t, total[None, :], real)
