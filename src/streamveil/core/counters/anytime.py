"""A counter for streams without a known end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from streamveil.core.accounting import take_numbers
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import (
    FOREVER,
    CounterState,
    Estimates,
    Ids,
    Increments,
    Mix,
    Stepping,
    check_noise,
)
from streamveil.core.counters.blt import (
    Blt,
    BltCounter,
    check_buffers,
    decoder_weights,
    geometric,
    geometric_start,
    output_scales,
    pairs,
    quadratic,
    rates_of,
    rounded_blt,
    with_zero,
)
from streamveil.core.noise import Draws
from streamveil.errors import PlanError, require_positive
from streamveil.minimum import least_maximum
from streamveil.types import Array, Exact, Float64, Int64

PER_OCTAVE = 6  # times tested between t and 2t
SHORT = ((20, 1), (200, 2), (512, 3))  # below so many steps so many buffers are within 0.2 %
MILLION = Blt(  # what `searched` finds for 2^20 steps and 6 buffers: 20 bits of each rate
    p=(1.8554055714048445e-06, 4.366174107417464e-05, 0.0004924722015857697,
       0.004879876971244812, 0.04319489002227783, 0.2974057197570801),
    q=(9.950788808055222e-06, 0.00013355165719985962, 0.0013632867485284805,
       0.012315288186073303, 0.09493470191955566, 0.4872612953186035),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AnytimeBltCounter(Stepping):
    """Running totals whose horizon nobody knows: the error at every t is near what T = t allows.

    Algorithm: a BLT (see `BltCounter`) whose infinite columns have finite norm, with the rates that
        minimise the largest ratio, over t up to `tuned`, to the square-root factorization made for
        horizon t.
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = (moved * sensitivity + slack) / sigma, for 2^40 steps.
    Proof: as `BltCounter` without schedules.
    Error: at most 1.33 times the square root made for T = t, up to 2^20 steps with d = 6 (1.39 up
        to 2^30 with d = 7, 1.45 up to 2^40 with d = 8), and with d = 6 at most 1.45 times a
        `BltCounter` made for T = t; beyond, it grows like sqrt(t).
    Memory: 8 (d + 1) bytes per key.
    Numerics: as `BltCounter`.

    Raises:
        PlanError: a setting is out of its range, or increments are not one whole number per key.
        PlanError: the noise has more than 2**50 quanta, which 64 bits may not hold.
        HorizonError: more than 2**40 steps.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = AnytimeBltCounter(sigma=10, tuned=1000, d=3)
    >>> round(counter.sensitivity, 3), counter.needs_horizon
    (1.223, False)
    """

    keyed: ClassVar[bool] = False
    needs_horizon: ClassVar[bool] = False  # nothing depends on when the stream ends
    sigma: Exact | float  # scale of one noise draw, quanta, > 0
    tuned: int = 2**20  # steps over which the error is near-optimal, 2 to 2**40
    d: int | None = None  # buffers at most; None: as many as help

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(d=1 if self.d is None else self.d)
        if not 2 <= self.tuned <= FOREVER:
            raise PlanError(f"tuned must be between 2 and 2**40 steps, not {self.tuned}")
        check_noise(self.sigma)

    @cached_property
    def inner(self) -> BltCounter:
        """The same counter, as a BLT with a horizon that is never reached."""
        most = anytime_buffers(self.tuned)
        factors = anytime_blt(self.tuned, min(self.d or most, most))
        return BltCounter(horizon=FOREVER, sigma=self.sigma, weighting="none", factors=factors)

    @property
    def horizon(self) -> int:
        """2^40: not an end anyone reaches, but the slack of float64 offsets is summed so far."""
        return FOREVER

    @property
    def sensitivity(self) -> float:
        """See `Counter`."""
        return self.inner.sensitivity

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`."""
        return self.inner.loss(moved, keys)

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        return self.inner.std(t)

    def mix(self, t: int) -> Mix:
        """See `Counter.mix`."""
        return self.inner.mix(t)

    @property
    def state_bytes(self) -> int:
        """See `Counter`."""
        return self.inner.state_bytes

    def init(self, keys: int, t: int = 0) -> CounterState:
        """See `Counter.init`."""
        return self.inner.init(keys, t)

    def _skipped(
        self, state: CounterState, steps: int, draws: Draws, ids: Ids | None
    ) -> CounterState:
        """See `Counter`."""
        return self.inner._skipped(state, steps, draws, ids)

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Counter`."""
        return self.inner._advance(state, increments, draws, ids)


def anytime_buffers(tuned: int) -> int:
    """The number of buffers beyond which more do not help.

    Over few steps, further rates change nothing: it does not matter where they lie, and a search
    may find any.
    """
    for limit, buffers in SHORT:
        if tuned < limit:
            return buffers
    return min(8, 4 + (tuned.bit_length() - 1) // 10)


def anytime_blt(tuned: int, d: int) -> Blt:
    """The BLT of least largest ratio, over t <= tuned, to the square-root factorization of T = t.

    The one for queries without an end is a constant of this module; others are searched for.
    """
    check_buffers(d)
    return MILLION if (tuned, d) == (2**20, 6) else searched(tuned, d)


@lru_cache(maxsize=16)
def root_coefficients(n: int) -> Float64[Array, " n"]:
    """c_k = binom(2k, k) / 4^k."""
    k = np.arange(1, n)
    return np.concatenate([[1.0], np.cumprod(1 - 1 / (2 * k))])


def root_squared_norm(t: Array) -> Float64[Array, " times"]:
    """S_t of the square-root factorization: its squared error and sensitivity for horizon t."""
    short = np.cumsum(root_coefficients(2**14) ** 2)
    n = float(len(short))
    times = np.asarray(t, float)
    # beyond, c_k^2 = (1 - 1/(4k) + O(k^-2)) / (pi k), summed by the midpoint rule
    tail = np.log((times - 0.5) / (n - 0.5)) - (1 / n - 1 / np.maximum(times, 1)) / 4
    inside = short[np.minimum(times, n).astype(int) - 1]
    return np.asarray(np.where(times <= n, inside, short[-1] + tail / np.pi))


@lru_cache(maxsize=32)
def searched(tuned: int, d: int) -> Blt:
    """See `anytime_blt`."""
    octaves = PER_OCTAVE * tuned.bit_length()
    times = np.unique(np.rint(np.geomspace(1, tuned, octaves + 1)))
    goals = np.log(root_squared_norm(times))

    def ratios(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(log_errors(x, times) - goals)

    return rounded_blt(least_maximum(ratios, geometric_start(0.1 / tuned, d)))


def log_errors(x: Array, times: Array) -> Array:
    """Log of (infinite sensitivity * standard deviation at each time) of points of the search."""
    p, q = rates_of(x)
    omega, beta = output_scales(p, q), decoder_weights(p, q)
    rows, columns = pairs(p)
    square = 1 + quadratic(omega, 1 / (rows + columns - rows * columns))
    both = with_zero(q)[..., None, :]  # an axis of times
    sums = geometric(*pairs(both), times[:, None, None])
    error = quadratic(beta[..., None, :], sums)
    return np.asarray(np.log(square[..., None] * error) / 2)
