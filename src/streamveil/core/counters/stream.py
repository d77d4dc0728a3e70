"""How every counter gets its noise: from one place for its whole life, one address a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import numpy as np

from streamveil.core.counters.protocol import (
    CounterState,
    Estimates,
    Ids,
    Increments,
    column,
    next_step,
)
from streamveil.core.noise.keyed import (
    Draws,
    KeyedNoise,
    Noise,
    Place,
    once_of,
    require_place,
    saved_once,
)
from streamveil.types import Array


class Steppable(Protocol):
    """What `Stepping` needs of the counter it is part of."""

    keyed: ClassVar[bool]

    @property
    def horizon(self) -> int:
        """Steps the guarantee covers."""

    def init(self, keys: int, t: int = 0) -> CounterState:
        """See `Counter.init`."""

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """One step with the draws that belong to it."""


class Stepping:
    """The step of every counter, and the stream that owns its noise."""

    def step(
        self: Steppable,
        state: CounterState,
        increments: Increments,
        place: Place,
        ids: Ids | None = None,
    ) -> tuple[Estimates, CounterState]:
        """See `Counter.step`."""
        t = next_step(self.horizon, state)
        increments = column(increments, state.keys)
        return self._advance(state, increments, draws_at(self, place, t), ids)

    def _skipped(
        self: Steppable, state: CounterState, steps: int, draws: Draws, ids: Ids | None
    ) -> CounterState:
        """See `Counter`. Takes every step: the noise of each is used by all later ones."""
        for step in range(1, steps + 1):
            nothing = np.zeros(state.keys, np.int64)
            _, state = self._advance(state, nothing, draws.at("skipped", step), ids)
        return state

    def stream(
        self, keys: int = 1, noise: Noise | None = None, name: str = "counter"
    ) -> CounterStream:
        """A running count of so many keys that owns its noise: see `CounterStream`.

        Without `noise` it is drawn under a fresh key of the operating system, and the stream ends
        with the process: to resume one, keep its `KeyedNoise`.
        """
        noise = noise or KeyedNoise.fresh()
        return CounterStream(self, self.init(keys), Place.opened(noise, "counter", name.encode()))  # type: ignore[attr-defined]

    def resume(
        self, saved: Mapping[str, Array], noise: Noise, name: str = "counter"
    ) -> CounterStream:
        """The stream that `CounterStream.save` saved, under the same noise and name."""
        place = Place.reopened(once_of(saved), noise, "counter", name.encode())
        return CounterStream(self, self.load(saved), place)

    def dump(self, state: Any) -> dict[str, Array]:
        """The state as arrays."""
        return dict(state.to_arrays())

    def load(self, saved: Mapping[str, Array]) -> Any:
        """The inverse of `dump`; raises StoreError when the arrays are not a state."""
        return CounterState.from_arrays(saved)


class CounterStream:
    """A counter that is counting: increments in, private running totals out. Owns its noise.

    Its noise has an address of its own, never used before under secure noise, and each step
    draws at its own number. `save` keeps both, so that a resumed stream goes on as if it had never
    stopped. One saved state must not be resumed twice and fed different data: both would draw the
    same noise.

    `counter.stream(...)` opens one: it hands over the `counter`, its `state` and the `place` where
    noise is drawn.

    Raises:
        ValueError: increments are not one whole number per key.
        HorizonError: a step after the last of the counter's horizon.

    >>> from streamveil.counters import BltCounter
    >>> from streamveil.core.noise.keyed import SilentNoise
    >>> visits = BltCounter(horizon=24, sigma=10).stream(keys=2, noise=SilentNoise())
    >>> _ = visits.step([3, 0])
    >>> visits.step([1, 5]).tolist(), visits.t
    ([4, 5], 2)
    """

    def __init__(self, counter: Any, state: Any, place: Place) -> None:
        self.counter = counter
        self._state, self._place = state, place  # of several coordinates: a tuple of states

    def __repr__(self) -> str:
        return f"CounterStream({self.counter!r}, t={self.t})"

    @property
    def t(self) -> int:
        """Steps taken."""
        one = self._state[0] if isinstance(self._state, tuple) else self._state
        return int(one.t)

    def step(self, increments: Any) -> Estimates:
        """Adds one whole number per key; the noisy totals."""
        place = self._place.again()  # the step number never repeats here: nothing to remember
        estimates, self._state = self.counter.step(self._state, np.asarray(increments), place)
        return estimates  # type: ignore[no-any-return]

    def save(self) -> dict[str, Array]:
        """The state as arrays, to be kept as secret as the data."""
        return {**self.counter.dump(self._state), **saved_once(self._place)}


def draws_at(counter: Steppable, place: Place, t: int) -> Draws:
    """The draws of step t: an address of its own, or the place itself for keyed counters."""
    place = require_place(place)
    return place.lasting(t) if counter.keyed else place.draws(t)
