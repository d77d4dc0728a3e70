"""Continual counters, each with its sensitivity: frozen config, arrays as state, one pure step.

Here: what every counter is (`Counter`), and what the counters share that keep the noise of past
steps and subtract it again.

Such a counter with encoder C (unit lower triangular) and column scales D_t publishes, at step t,

    y_t = y_(t-1) + x_t + k_t,   k_t = round(o_t + sigma D_t G_t),   z_t = (k_t - o_t) / D_t

where the offset o_t = -D_t (terms of C^-1 on z_1 .. z_(t-1)) is real. So (C^-1 z)_t D_t = y_t -
y_(t-1) - x_t: given the outputs, z = C D^-1 (dy - x) is linear in the data.

Guarantee and proof. Given y_1 .. y_(t-1), step t is a Gaussian with scale sigma D_t about a
centre that moves by D_t (C D^-1 dx)_t between two streams; rounding to integers is post-processing
of a real centre, whatever it is. Composition over t, adaptive, gives a Gaussian mechanism with
mu = |C D^-1 dx| / sigma, at most (sum |dx|) * (largest column norm of C D^-1) / sigma.

Numerics: the offset is a float64, so its move between two streams is not exactly the ideal one.
Proof of the slack. Fix the outputs, so that k_t differs between the streams by the integer dx_t
only. Rounding injects g_t into z_t and e_it into buffer i; both act on later z through C alone:
z = C (ideal + g + sum_i drain_i x/(1 - keep_i x) e_i). Let A be the sum of |c_k|, |z_t| <= Z, and
|s_i| <= Y_i for buffer i. The offset's terms sum to at most Z, sum drain_i/q_i being 1 - 1/C(1),
so |g_t| <= (d + 5) u Z and |e_it| <= 2.01 u Y_i, and z is off in each of the two streams by at most

    eta = A u ((d + 5) Z + 2.01 sum_i (drain_i / q_i) Y_i).

L2 over T steps adds at most 2 eta sqrt(T) / sigma to mu, per key the person touches.
Bounds: z_t = sigma G_t + r_t / D_t with |r_t| <= 1/2. On the first stream |z_t| <= REACH
sigma + 1/(2 min D); a buffer is a weighted sum of z, a martingale but for the bias of
rounding, with terms sub-Gaussian of scale sigma + 1/(2D), so it stays below REACH times that over
sqrt(1 - keep_i^2), plus bias / q_i. The second stream has the first one's z moved by a vector of
norm at most moved * norm, and its buffers by that over sqrt(1 - keep_i^2). A bound fails
with probability below 2 exp(-REACH^2/2) < 2^-207, so 2^64 draws all keep theirs except with chance
2^-128. That is part of the distance of any computed noise from its ideal (as is the cipher's), and
is not charged again here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, exp, inf, pi, sqrt
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from streamveil.core.accounting import float_above, float_below, held
from streamveil.core.accounting.guarantee import Gdp, Loss
from streamveil.core.noise import (
    Draws,
    KeyedNoise,
    Noise,
    Place,
    SilentDraws,
    once_of,
    require_place,
    saved_once,
)
from streamveil.core.noise.samplers import LARGEST_SCALE, rounded_gaussian
from streamveil.core.sensitivity import within_64_bits
from streamveil.errors import HorizonError, PlanError, StoreError, at_least, require_positive, whole
from streamveil.types import Array, Exact, Float64, Int64, UInt64

Ids = UInt64[Array, "keys 2"]
Increments = Int64[Array, " keys"]
Estimates = Int64[Array, " keys"] | Float64[Array, " keys"]
ROUNDING = 1 / 12  # variance of rounding to an integer
FOREVER = 2**40  # steps at most; at one per second, 35,000 years
ALWAYS = 0  # the step of draws that every key has, whenever it starts


@dataclass(frozen=True, repr=False)  # secret: a state is stored, never shown
class CounterState:
    """The state of one counter for many keys: one column per key, all keys at the same step.

    What the rows mean is the counter's own business. A column of zeros is a key that starts now:
    whatever its stream held before is taken to be zero and was never released.

    Raises:
        StoreError: the arrays given to `from_arrays` are no saved state.
        PlanError: the argument of `grow` is no number of keys.

    >>> from streamveil.counters import KaryTreeCounter
    >>> state = KaryTreeCounter(horizon=100, sigma=5).init(keys=3)
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
        """`keys` further columns that start late: at the current step.

        Raises:
            PlanError: `keys` is below 0, or no whole number.
        """
        return CounterState(self.t, _widen(self.whole, keys), _widen(self.real, keys))

    def to_arrays(self) -> dict[str, Array]:
        """Everything, as arrays to store."""
        return {"t": np.array(self.t, np.int64), "whole": self.whole, "real": self.real}

    @classmethod
    def from_arrays(cls, saved: Mapping[str, Array]) -> CounterState:
        """The inverse of `to_arrays`.

        Args:
            saved: what `to_arrays` returned.

        Raises:
            StoreError: the arrays are no state of a counter.
        """
        try:
            t, whole, real = int(saved["t"]), saved["whole"], saved["real"]
        except (KeyError, IndexError, TypeError, ValueError):
            raise StoreError("a saved counter needs the arrays t, whole and real") from None
        shaped = whole.ndim == real.ndim == 2 and whole.shape[1] == real.shape[1]
        if t < 0 or not shaped or whole.dtype != np.int64 or real.dtype != np.float64:
            raise StoreError("the saved arrays of a counter have the wrong shape or type")
        return cls(t, whole, real)


@dataclass(frozen=True, eq=False)
class Mix:
    """The noise of an estimate, as a combination of independent draws in the order of their steps.

    It decides no guarantee: intervals of differences and sums over time follow from it.
    """

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


@runtime_checkable
class Counter(Protocol):
    """Running totals of many keys, released after every step, under one noise scale `sigma`.

    Two streams of one key that differ by a step-wise difference d move the private part by at most
    `sensitivity` * (sum of |d|), in the norm of the noise (L2 for Gaussian, L1 for Laplace). Over
    all keys: `loss(moved)` with `moved` the same norm, taken over keys, of those sums. A person
    with at most C rows, at most c of them per key, moves it by sqrt(C c) (Gaussian) or C (Laplace).

    >>> from streamveil.counters import KaryTreeCounter
    >>> isinstance(KaryTreeCounter(horizon=100, sigma=5), Counter)
    True
    """

    keyed: ClassVar[bool]  # True: the noise of all steps is computed from one address
    needs_horizon: ClassVar[bool]  # whether the number of steps must be known in advance

    @property
    def horizon(self) -> int:
        """Steps the guarantee covers."""

    @property
    def sigma(self) -> Exact | float:
        """The scale of one noise draw, in quanta (the scale of Laplace for pure counters)."""

    @property
    def sensitivity(self) -> float:
        """The largest column norm of the encoder, rounded up."""

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """The privacy loss of the whole run when one person moves the streams by `moved`.

        Args:
            moved: the L2 distance between the streams, in quanta (the L1 distance under Laplace
                noise), at least 0.
            keys: keys that one person moves at most; None: any number.

        Raises:
            PlanError: the distance is below 0, or no number.
        """

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """Standard deviation of the estimate after t steps, rounding included.

        Args:
            t: steps, each from 1 to the horizon.

        Raises:
            PlanError: a step is beyond the horizon, or no whole number.
        """

    def mix(self, t: int) -> Mix:
        """The noise of the estimate after t steps, of a key that started at step 1.

        Args:
            t: a step, from 1 to the horizon.
        """

    @property
    def state_bytes(self) -> int:
        """Bytes of state per key."""

    def init(self, keys: int, t: int = 0) -> CounterState:
        """No counts yet; `t` steps of the horizon are already over.

        Args:
            keys: how many are counted side by side, at least 0.
            t: steps that are over, from 0.

        Raises:
            PlanError: one is below 0, or no whole number.
        """

    def step(
        self, state: CounterState, increments: Increments, place: Place, ids: Ids | None = None
    ) -> tuple[Estimates, CounterState]:
        """Adds one increment to every key; returns the noisy totals and the next state.

        `place` is the same at every step, and this run's alone: step t draws at the address t below
        it. With `ids` the noise of a key depends on its id alone and not on its column; ids differ.

        Args:
            state: after the step before.
            increments: a whole number for each key, in quanta.
            place: where its noise is drawn, the same at every step and in no other run.
            ids: of the keys, from 0.

        Raises:
            HorizonError: all steps are over.
            PlanError: increments are not one whole number for each key.
            StoreError: the state is another counter's.
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
    at_least(0, keys=keys, t=t)
    return CounterState(t, np.zeros((whole, keys), np.int64), np.zeros((real, keys), np.float64))


def next_step(horizon: int, state: CounterState) -> int:
    """The number of the step that begins now; raises HorizonError after the last."""
    if state.t >= horizon:
        raise HorizonError(horizon)
    return state.t + 1


def own(counter: Counter, state: CounterState) -> CounterState:
    """The state, unless its rows are another counter's: a compiled step would read beyond it."""
    like = counter.init(0)
    for rows, known in ((state.whole, like.whole), (state.real, like.real)):
        if rows.shape != (len(known), state.keys):
            raise StoreError(f"this is no state of {counter!r}.\n  to fix  pass one of its own")
    return state


def column(increments: Array, keys: int) -> Int64[Array, " keys"]:
    """The increments as int64, one per key; a number is broadcast."""
    array = np.asarray(increments)
    if array.dtype.kind != "i" and (array.dtype.kind != "u" or np.any(array > 2**63 - 1)):
        raise PlanError(f"increments must be integers (quanta) below 2**63, not {array.dtype}")
    if array.ndim > 1 or (array.ndim == 1 and len(array) != keys):
        raise PlanError(f"increments must have one entry per key ({keys}), not {array.shape}")
    whole = array.astype(np.int64, copy=False)
    return whole if array.ndim else np.broadcast_to(whole, (keys,))


def checked_times(t: Array, horizon: int) -> Int64[Array, " times"]:
    """Step numbers as int64; raises unless all are between 1 and the horizon."""
    times = np.asarray(t)
    if times.dtype.kind not in "iu" or np.any(times < 1) or np.any(times > horizon):
        raise PlanError(f"t must be whole numbers between 1 and {horizon}")
    return times.astype(np.int64, copy=False)


def _widen(rows: Array, keys: int) -> Array:
    return np.concatenate([rows, np.zeros((len(rows), whole("keys", keys, 0)), rows.dtype)], axis=1)


def l2_loss(counter: Counter, moved: Exact = 1, keys: int | None = None) -> Loss:
    """The loss of a counter where one unit moves the streams by `moved` in L2."""
    if counter.loss().pure:
        raise PlanError("what one unit moves is known in L2, and pure noise asks for L1")
    return counter.loss(moved, keys)


# ---- where a counter's noise comes from


class Stepping:
    """The step of every counter, and the stream that owns its noise."""

    def step(
        self: Counter, state: CounterState, increments: Increments, place: Place,
        ids: Ids | None = None,
    ) -> tuple[Estimates, CounterState]:  # fmt: skip
        """See `Counter.step`."""
        t = next_step(self.horizon, own(self, state))
        return self._advance(state, column(increments, state.keys), draws_at(self, place, t), ids)

    def _skipped(
        self: Counter, state: CounterState, steps: int, draws: Draws, ids: Ids | None
    ) -> CounterState:
        """See `Counter`. Takes every step: the noise of each is used by all later ones."""
        for step in range(1, steps + 1):
            nothing = np.zeros(state.keys, np.int64)
            _, state = self._advance(state, nothing, draws.at("skipped", step), ids)
        return state

    def stream(
        self: Counter, keys: int = 1, noise: Noise | None = None, name: str = "counter"
    ) -> CounterStream:
        """A running count of some keys that owns its noise: see `CounterStream`.

        Without `noise` it is drawn under a fresh key of the operating system, and the stream ends
        with the process: to resume one, keep its `KeyedNoise`.

        Args:
            keys: how many are counted side by side, at least 1.
            noise: where its draws come from.
            name: of the stream; two under one noise need two names.

        Raises:
            PlanError: the noise is no `Noise`.
        """
        noise = KeyedNoise.fresh() if noise is None else noise
        place = Place.opened(noise, "counter", name.encode())
        return CounterStream(self, self.init(whole("keys", keys, 1)), place)

    def resume(
        self: Counter, saved: Mapping[str, Array], noise: Noise, name: str = "counter"
    ) -> CounterStream:
        """The stream that `CounterStream.save` saved, of the same counter, noise and name.

        Args:
            saved: what it returned.
            noise: as the stream was opened with.
            name: as the stream was opened with.

        Raises:
            PlanError: the noise is no `Noise`.
            StoreError: what was saved is no state of this counter, or of another kind of noise.
        """
        place = Place.reopened(once_of(saved, self), noise, "counter", name.encode())
        return CounterStream(self, own(self, CounterState.from_arrays(saved)), place)


class CounterStream:
    """A counter that is counting: increments in, private running totals out. Owns its noise.

    Its noise has an address of its own, never used before under secure noise, and each step
    draws at its own number. `save` keeps both, so that a resumed stream goes on as if it had never
    stopped. One saved state must not be resumed twice and fed different data: both would draw the
    same noise.

    `counter.stream(...)` opens one: it hands over the `counter`, its `state` and the `place` where
    noise is drawn.

    Raises:
        PlanError: increments are not one whole number per key.
        HorizonError: a step after the last of the counter's horizon.

    >>> from streamveil.counters import BltCounter
    >>> from streamveil.core.noise import SilentNoise
    >>> visits = BltCounter(horizon=24, sigma=10).stream(keys=2, noise=SilentNoise())
    >>> _ = visits.step([3, 0])
    >>> visits.step([1, 5]).tolist(), visits.t
    ([4, 5], 2)
    """

    def __init__(self, counter: Counter, state: CounterState, place: Place) -> None:
        self.counter = counter
        self._last, self._place = [state], require_place(place)  # a shallow copy shares both

    def __repr__(self) -> str:
        return f"CounterStream({self.counter!r}, t={self.t})"

    @property
    def t(self) -> int:
        """Steps taken."""
        return self._last[0].t

    def step(self, increments: Any) -> Estimates:
        """Adds one whole number per key; the noisy totals.

        Args:
            increments: a whole number for each key, in quanta.

        Raises:
            HorizonError: all steps are over.
            PlanError: a total has 2**60 quanta or more, which 64 bits may not hold.
        """
        with self._place.drawn.turn():  # no step number comes again: `again` remembers nothing
            found = self.counter.step(self._last[0], np.asarray(increments), self._place.again())
            estimates, self._last[0] = found
        return np.array(within_64_bits(estimates))  # the caller's own: totals are state too

    def save(self) -> dict[str, Array]:
        """The state as arrays, to be kept as secret as the data."""
        return {**self._last[0].to_arrays(), **saved_once(self._place, self.counter)}


def draws_at(counter: Counter, place: Place, t: int) -> Draws:
    """The draws of step t: an address of its own, or the place itself for keyed counters."""
    place = require_place(place)
    return place.lasting(t) if counter.keyed else place.draws(t)


# ---- skipping empty steps
#
# Trees and keyed counters skip exactly: a block's noise is drawn when the block is first used, so
# blocks that were opened and closed in between need none. A BLT must take every step, but takes
# them in one compiled pass.


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
        PlanError: `steps` is negative, or no whole number.
        HorizonError: the counter ends earlier.
        StoreError: the state is another counter's.
        PlanError: `place` is no Place: the same draws at two steps would reveal the increments.

    >>> from streamveil.core.noise import SeededNoise
    >>> from streamveil.counters import KaryTreeCounter
    >>> counter, place = KaryTreeCounter(horizon=100, sigma=1), Place(SeededNoise(1), "doctest")
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
    """`skip` with given draws: for callers that use each address once for each key."""
    steps = whole("steps", steps, 0)
    if own(counter, state).t + steps > counter.horizon:
        raise HorizonError(counter.horizon)
    return counter._skipped(state, steps, draws, ids) if steps else state


REACH = 17.0  # standard deviations; P(|G| > 17) < 2^-208
U = 2.0**-53
UP = 1 + 1e-14  # covers a handful of roundings of positive numbers
EASE = 1.01  # second-order terms of the analysis


@dataclass(frozen=True)
class Recursion:
    """The public numbers of one encoder that decide how rounding errors spread."""

    amplification: float  # A
    norm: float  # the sensitivity
    terms: int  # d, or the length of the history
    rest: Float64[Array, " d"]  # q_i = 1 - keep_i; empty when there are no buffers
    drain: Float64[Array, " d"]
    smallest_column: float  # min D_t

    def deviation(self, sigma: Exact | float, moved: Exact | float) -> float:
        """The eta of the module's proof; raises when float64 is not accurate enough."""
        spread, half = float_above(sigma), 0.5 / self.smallest_column
        shift = float_above(check_moved(moved)) * self.norm
        z = REACH * spread + half + shift
        wander = (REACH * (spread + half) + shift) / np.sqrt(self.rest * (2 - self.rest))
        wander += rounding_bias(float_below(sigma) * self.smallest_column) * 2 * half / self.rest
        buffers = np.minimum(wander, z / self.rest)
        spent = float((self.drain / self.rest * buffers).sum())
        eta = self.amplification * U * EASE * ((self.terms + 5) * z + 2.01 * spent)
        if not eta * 1000 < z:
            raise PlanError("float64 offsets are too inaccurate for this horizon and noise scale")
        return eta


def rounding_bias(spread: float) -> float:
    """At most how far the mean of round(m + s G) is from m: sum_k exp(-2 (pi k s)^2) / (pi k)."""
    decay = exp(-2 * (pi * spread) ** 2)
    return min(0.5, decay / ((1 - decay) * pi)) if decay < 1 else 0.5


def gaussian_loss(
    sigma: Exact | float,
    sensitivity: float,
    moved: Exact | float,
    slack: float = 0.0,
    keys: int | None = None,
) -> Loss:
    """The loss of a Gaussian counter whose centre moves by moved * sensitivity, plus slack per key.

    Streams are integers, so whoever moves them by `moved` in L2 touches at most moved^2 keys.
    """
    size = check_moved(moved)
    if not size:
        return Loss()
    touched = min(max(1, ceil(size * size)), inf if keys is None else whole("keys", keys, 1))
    mu = (float_above(size) * sensitivity + sqrt(touched) * slack) / float_below(sigma) * UP
    return Gdp.squared(Fraction(mu) ** 2)


def check_noise(sigma: Exact | float) -> None:
    """Raises PlanError unless noise is positive, and 64 bits surely hold a total with it."""
    require_positive(sigma=sigma)
    if sigma > LARGEST_SCALE:
        raise PlanError(
            f"the noise of a sum would have {float(sigma):.2g} quanta, and {LARGEST_SCALE:.2g} are"
            " the most that 64 bits hold safely.\n"
            "  to fix  a larger budget, or tighter bounds on rows"
        )


def check_moved(moved: Exact | float) -> Fraction:
    """The move as an exact number; raises unless it is finite and not negative."""
    if (size := held("moved", moved)) < 0:
        raise PlanError(f"moved must be at least 0, not {moved}")
    return size


# ---- Gaussian noise for all keys at once
#
# Compiled steps (`kernels`) and the Laplace tree (`kary`) draw their own.


def gaussian_about(
    draws: Draws, ids: Ids | None, centre: Float64[Array, " keys"], sigma: float | Array
) -> Int64[Array, " keys"]:
    """round(centre + sigma G), one draw per key."""
    return rounded_gaussian(draws, centre, sigma, ids)


def gaussian_rows(
    draws: Draws, ids: Ids | None, keys: int, rows: int, sigma: Exact | float
) -> Int64[Array, "rows keys"]:
    """round(sigma G), `rows` independent draws per key."""
    centre = np.zeros((keys, rows))
    return np.ascontiguousarray(gaussian_about(draws, ids, centre, float_above(sigma)).T)
