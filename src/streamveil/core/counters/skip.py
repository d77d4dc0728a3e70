"""Passing over steps at which a key received nothing and nobody looked, without taking them.

Trees and keyed counters skip exactly: a block's noise is drawn when the block is first used, so
blocks that were opened and closed in between need none. A BLT must take every step, but takes them
in one compiled pass.
"""

from __future__ import annotations

from streamveil.core.counters.protocol import Counter, CounterState, Ids
from streamveil.core.noise.keyed import Draws, Place, SilentDraws, require_place
from streamveil.errors import HorizonError


def skip(
    counter: Counter, state: CounterState, steps: int, place: Place, ids: Ids | None = None
) -> CounterState:
    """The state after `steps` steps without increments whose estimates nobody saw.

    The law of everything released later is that of taking the steps one by one. Whether steps were
    skipped may depend on the data: the noise of a block is drawn once, whoever asks first.

    Args:
        counter: whose steps are passed over.
        state: after the last step that was taken.
        steps: how many are passed over.
        place: the one of the counter's steps.
        ids: names of the keys, where they are not the columns' numbers.

    Raises:
        ValueError: `steps` is negative.
        HorizonError: the counter ends earlier.
        TypeError: `place` is no Place: the same draws at two steps would reveal the increments.

    >>> from streamveil.core.noise.keyed import SeededNoise
    >>> from streamveil.counters import HaarCounter
    >>> counter, place = HaarCounter(horizon=100, sigma=1), Place(SeededNoise(1), "doctest")
    >>> skip(counter, counter.init(2), 40, place).t
    40
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
    return counter._skipped(state, steps, draws, ids) if steps else state
