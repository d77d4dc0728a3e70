"""What every continual counter is: a frozen config, a state of plain arrays, one pure step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from streamveil.core.accounting.guarantee import Loss
from streamveil.core.noise.keyed import Draws, Place
from streamveil.errors import HorizonError, StoreError
from streamveil.types import Array, Exact, Float64, Int64, UInt64

Ids = UInt64[Array, "keys 2"]
Increments = Int64[Array, " keys"]
Estimates = Int64[Array, " keys"] | Float64[Array, " keys"]


@dataclass(frozen=True, repr=False)  # secret: a state is stored, never shown
class CounterState:
    """The state of one counter for many keys: one column per key, all keys at the same step.

    What the rows mean is the counter's own business. A column of zeros is a key that starts now:
    whatever its stream held before is taken to be zero and was never released.

    Raises:
        StoreError: the arrays given to `from_arrays` are no saved state.

    >>> from streamveil.counters import HaarCounter
    >>> state = HaarCounter(horizon=100, sigma=5).init(keys=3)
    >>> state.grow(2).keys, CounterState.from_arrays(state.to_arrays()).t
    (5, 0)
    """

    t: int  # steps taken, >= 0
    whole: Int64[Array, "rows keys"]  # quanta
    real: Float64[Array, "cells keys"]  # noise that is kept, where a counter has any

    @property
    def keys(self) -> int:
        """How many keys are counted."""
        return int(self.whole.shape[1])

    def take(self, columns: Int64[Array, " kept"]) -> CounterState:
        """The keys at these columns, in this order."""
        return CounterState(self.t, self.whole[:, columns], self.real[:, columns])

    def grow(self, keys: int) -> CounterState:
        """`keys` further columns that start late: at the current step."""
        return CounterState(self.t, _widen(self.whole, keys), _widen(self.real, keys))

    def to_arrays(self) -> dict[str, Array]:
        """Everything, as arrays to store."""
        return {"t": np.array(self.t, np.int64), "whole": self.whole, "real": self.real}

    @classmethod
    def from_arrays(cls, saved: Mapping[str, Array]) -> CounterState:
        """The inverse of `to_arrays`; raises StoreError when the arrays are not a state."""
        try:
            t, whole, real = int(saved["t"]), saved["whole"], saved["real"]
        except (KeyError, TypeError, ValueError):
            raise StoreError("a saved counter needs the arrays t, whole and real") from None
        shaped = whole.ndim == real.ndim == 2 and whole.shape[1] == real.shape[1]
        if t < 0 or not shaped or whole.dtype != np.int64 or real.dtype != np.float64:
            raise StoreError("the saved arrays of a counter have the wrong shape or type")
        return cls(t, whole, real)


@runtime_checkable
class Counter(Protocol):
    """Running totals of many keys, released after every step, under one noise scale `sigma`.

    Two streams of one key that differ by a step-wise difference d move the private part by at most
    `sensitivity` * (sum of |d|), in the norm of the noise (L2 for Gaussian, L1 for Laplace). Over
    all keys: `loss(moved)` with `moved` the same norm, taken over keys, of those sums. A person
    with at most C rows, at most c of them per key, moves it by sqrt(C c) (Gaussian) or C (Laplace).

    >>> from streamveil.counters import HaarCounter
    >>> isinstance(HaarCounter(horizon=100, sigma=5), Counter)
    True
    """

    keyed: ClassVar[bool]  # True: the noise of all steps is computed from one address

    @property
    def horizon(self) -> int:
        """Steps the guarantee covers."""

    @property
    def sigma(self) -> Exact | float:
        """The scale of one noise draw, in quanta (the scale of Laplace for pure counters)."""

    @property
    def needs_horizon(self) -> bool:
        """Whether the number of steps must be known in advance."""

    @property
    def sensitivity(self) -> float:
        """The largest column norm of the encoder, rounded up."""

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """The privacy loss of the whole run when one person moves the streams by `moved`."""

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """Standard deviation of the estimate after t steps, rounding included."""

    @property
    def state_bytes(self) -> int:
        """Bytes of state per key."""

    def init(self, keys: int, t: int = 0) -> CounterState:
        """No counts yet; `t` steps of the horizon are already over."""

    def step(
        self, state: CounterState, increments: Increments, place: Place, ids: Ids | None = None
    ) -> tuple[Estimates, CounterState]:
        """Adds one increment to every key; returns the noisy totals and the next state.

        `place` is the same at every step, and this run's alone: step t draws at the address t below
        it. With `ids` the noise of a key depends on its id alone and not on its column; ids differ.
        """

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """A step with given draws: for counters inside counters."""

    def _skipped(
        self, state: CounterState, steps: int, draws: Draws, ids: Ids | None
    ) -> CounterState:
        """The state after steps without increments whose estimates nobody saw (`skip`)."""


def zeros(t: int, keys: int, whole: int, real: int) -> CounterState:
    """An empty state."""
    return CounterState(t, np.zeros((whole, keys), np.int64), np.zeros((real, keys), np.float64))


def next_step(horizon: int, state: CounterState) -> int:
    """The number of the step that begins now; raises HorizonError after the last."""
    if state.t >= horizon:
        raise HorizonError(horizon)
    return state.t + 1


def column(increments: Array, keys: int) -> Int64[Array, " keys"]:
    """The increments as int64, one per key; a number is broadcast."""
    array = np.asarray(increments)
    if array.dtype.kind not in "iu":
        raise ValueError(f"increments must be integers (quanta), not {array.dtype}")
    if array.ndim > 1 or (array.ndim == 1 and len(array) != keys):
        raise ValueError(f"increments must have one entry per key ({keys}), not {array.shape}")
    return np.broadcast_to(array.astype(np.int64, copy=False), (keys,))


def checked_times(t: Array, horizon: int) -> Int64[Array, " times"]:
    """Step numbers as int64; raises unless all are between 1 and the horizon."""
    times = np.asarray(t, np.int64)
    if np.any(times < 1) or np.any(times > horizon):
        raise ValueError(f"t must be between 1 and {horizon}")
    return times


def _widen(rows: Array, keys: int) -> Array:
    return np.concatenate([rows, np.zeros((len(rows), keys), rows.dtype)], axis=1)
