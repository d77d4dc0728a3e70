"""The square-root factorization: near-optimal error at O(T) memory; the yardstick for BLTs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from streamveil.compiled import njit
from streamveil.core import counters
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import (
    CounterState,
    Estimates,
    Ids,
    Increments,
    Stepping,
    checked_times,
    column,
    gaussian_about,
    next_step,
    zeros,
)
from streamveil.core.counters.blt import MARGIN, check_horizon
from streamveil.core.counters.rational import root_coefficients
from streamveil.core.noise import Draws
from streamveil.errors import require_one_of, require_positive
from streamveil.types import Array, Exact, Float64, Int64

LARGEST_HORIZON = 2**16  # beyond, a BLT is as good at a thousandth of the memory
WEIGHTINGS = ("none", "columns")


@dataclass(frozen=True, kw_only=True)
class SqrtToeplitzCounter(Stepping):
    """Running totals with C = B = the square root of the running-sum matrix.

    Algorithm: Bennett (1977); Fichtenberger, Henzinger & Upadhyay 2023, arXiv:2202.11205; with
        columns scaled to equal norm (arXiv:2509.14334), in feedback form.
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = (moved * sensitivity + slack) / sigma.
    Proof: see `feedback`. The encoder that runs is the inverse of 1 - sum e_k x^k with float64
        e_k > 0 of relative error r <= 3 T u. As C * C = 1/(1-x), c_n is off by at most 1.1 r, so
        S_T by at most 2.2 r sum(c); `sensitivity` contains it.
    Error: without column scales, sigma^2 S_t.
    Memory: 8 (horizon + 1) bytes per key.
    Numerics: as `BltCounter`.

    Raises:
        ValueError: a setting is out of its range, or increments are not one whole number per key.
        HorizonError: a step after the last of `horizon`.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = SqrtToeplitzCounter(horizon=16, sigma=100, weighting="none")
    >>> round(counter.sensitivity * float(counter.std(np.array([16]))[0]) / 100, 3)
    1.944
    """

    keyed: ClassVar[bool] = False
    horizon: int  # steps the guarantee covers, >= 1
    sigma: Exact | float  # scale of one noise draw, quanta, > 0
    weighting: Literal["none", "columns"] = "columns"

    def __post_init__(self) -> None:
        if check_horizon(self.horizon) > LARGEST_HORIZON:
            raise ValueError(f"horizon must be at most {LARGEST_HORIZON}; use BltCounter beyond")
        require_positive(sigma=self.sigma)
        require_one_of("weighting", self.weighting, WEIGHTINGS)

    @property
    def sensitivity(self) -> float:
        """See `Counter`."""
        c = root_coefficients(self.horizon)
        relative = 3 * self.horizon * counters.U
        square = float((c**2).sum())
        return float(np.sqrt(square + 2.2 * relative * c.sum()) * (1 + relative)) * counters.UP

    @property
    def needs_horizon(self) -> bool:
        """The state is as long as the horizon."""
        return True

    def slack(self, moved: Exact | float) -> float:
        """See `BltCounter.slack`; an offset is a sum of at most T terms of total weight below 1."""
        recursion = counters.Recursion(
            amplification=float(root_coefficients(self.horizon).sum()) * counters.EASE,
            norm=self.sensitivity,
            terms=self.horizon,
            rest=np.empty(0),
            drain=np.empty(0),
            smallest_column=float(self.scales().min()),
            largest_noise=1.0,
        )
        return float(2 * recursion.deviation(self.sigma, moved) * np.sqrt(self.horizon))

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`."""
        slack = self.slack(moved)
        return counters.gaussian_loss(self.sigma, self.sensitivity, moved, slack, keys)

    @property
    def state_bytes(self) -> int:
        """See `Counter`."""
        return 8 * (self.horizon + 1)

    def init(self, keys: int, t: int = 0) -> CounterState:
        """See `Counter.init`."""
        return zeros(t, keys, whole=1, real=self.horizon)

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        times = checked_times(t, self.horizon)
        gaussian, rounding = _variances_of(self.horizon, self.weighting)[:, times - 1]
        return np.asarray(np.sqrt(gaussian * float(self.sigma) ** 2 + rounding / 12))

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Steppable`."""
        t = next_step(self.horizon, state)
        scale = float(self.scales()[t - 1])
        weights = np.ascontiguousarray(inverse_coefficients(self.horizon)[t - 1 : 0 : -1])
        offset = -scale * weighted_history(weights, state.real)
        fresh = gaussian_about(draws, ids, offset, counters.up(self.sigma) * scale)
        total, real = state.whole[0] + column(increments, state.keys) + fresh, state.real.copy()
        real[state.t] = (fresh - offset) / scale
        return total, CounterState(t, total[None, :], real)

    def scales(self) -> Float64[Array, " horizon"]:
        """By how much the noise of each step is scaled before it is correlated."""
        return column_scales(self.horizon, self.weighting)


@lru_cache(maxsize=16)
def inverse_coefficients(n: int) -> Float64[Array, " n"]:
    """e_k of (1-x)^(1/2) = 1 - sum_(k >= 1) e_k x^k; e_0 is not used."""
    return root_coefficients(n) / np.abs(2 * np.arange(n) - 1)


@lru_cache(maxsize=16)
def column_scales(horizon: int, weighting: str) -> Float64[Array, " horizon"]:
    """D_t = sqrt(S_(T-t+1) / S_T), a little larger; or ones."""
    if weighting == "none":
        return np.ones(horizon)
    squares = np.cumsum(root_coefficients(horizon) ** 2)[::-1]
    return np.asarray(np.sqrt(squares / squares[0]) * MARGIN * (1 + 8 * horizon * counters.U))


@njit(cache=True)  # type: ignore[misc]  # numba is untyped
def weighted_history(weights: Array, history: Array) -> Array:
    """sum_i weights_i history_i, added in order of i for every key."""
    total = np.zeros(history.shape[1])
    for i in range(len(weights)):
        for key in range(history.shape[1]):
            total[key] += weights[i] * history[i, key]
    return total


@lru_cache(maxsize=8)
def _variances_of(horizon: int, weighting: str) -> Float64[Array, "2 horizon"]:
    """Row norms of the decoder, for noise of variance 1 and 1/D^2."""
    scales = column_scales(horizon, weighting)
    out: Array = _row_norms(inverse_coefficients(horizon), scales)
    return out


@njit(cache=True)  # type: ignore[misc]  # numba is untyped
def _row_norms(weights: Array, scales: Array) -> Array:
    n = len(scales)
    squares = np.zeros((2, n))
    for j in range(n):
        total = 0.0
        for i in range(j, n):
            total += scales[i] * (1.0 if i == j else -weights[i - j])
            squares[0, i] += total**2
            squares[1, i] += (total / scales[j]) ** 2
    return squares
