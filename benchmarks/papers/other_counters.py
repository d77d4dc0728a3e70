"""Counters that the engine does not run, beside those it does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import ClassVar, Final

import numpy as np
from numba import njit

from benchmarks.papers.haar import (
    ROUNDS,
    column_weights,
    haar_std,
    least_maximum,
    variance_parts,
    weights_of_mean,
)
from streamveil.core import counters
from streamveil.core.accounting import take_numbers
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import (
    CounterState,
    Estimates,
    Ids,
    Increments,
    Stepping,
    checked_times,
    column,
    gaussian_rows,
    next_step,
    zeros,
)
from streamveil.core.counters.anytime import FOREVER, root_coefficients, root_squared_norm
from streamveil.core.counters.blt import MARGIN
from streamveil.core.counters.restarting_trees import ROUNDING, blocks_of
from streamveil.core.noise import Draws
from streamveil.counters.tree import trailing_zeros
from streamveil.errors import require_positive
from streamveil.types import Array, Exact, Float64, Int64

LEVELS: Final = FOREVER.bit_length() - 1
LEADING = 7  # bits of a tested time that are tried in full


@dataclass(frozen=True, kw_only=True)
class BinaryTreeCounter(Stepping):
    """Running totals from noisy sums of dyadic blocks.

    Algorithm: the binary mechanism (Dwork, Naor, Pitassi & Rothblum 2010,
        doi:10.1145/1806689.1806787; Chan, Shi & Song 2011, doi:10.1145/2043621.2043626).
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = moved * sqrt(levels) / sigma.
    Proof: a step lies in one block per level; blocks are integers, so noise rounded about zero is
        noise rounded about them. Only nodes completed at a step are used at it, and each has its
        own draw, so later increments may depend on earlier releases.
    Error: variance popcount(t) (sigma^2 + 1/12).
    Memory: 8 (levels + 1) bytes per key: the exact total and the noise of the open path.
    Numerics: exact integers.

    Raises:
        ValueError: a setting is out of its range, or increments are not one whole number per key.
        HorizonError: a step after the last of `horizon`.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = BinaryTreeCounter(horizon=1000, sigma=10)
    >>> counter.levels, round(float(counter.std(np.array([7]))[0]), 3)
    (10, 17.328)
    """

    keyed: ClassVar[bool] = False
    horizon: int  # steps the guarantee covers, >= 1
    sigma: Exact | float  # scale of one node's noise, quanta, > 0

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(horizon=self.horizon, sigma=self.sigma)

    @property
    def levels(self) -> int:
        """Blocks that one step can lie in."""
        return self.horizon.bit_length()

    @property
    def needs_horizon(self) -> bool:
        """The number of levels is fixed in advance."""
        return True

    @property
    def sensitivity(self) -> float:
        """See `Counter`."""
        return sqrt(self.levels) * counters.UP

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`."""
        return counters.gaussian_loss(self.sigma, self.sensitivity, moved, keys=keys)

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        nodes = blocks_of(checked_times(t, self.horizon), self.levels).sum(axis=0)
        return np.asarray(np.sqrt(nodes * (float(self.sigma) ** 2 + ROUNDING)))

    @property
    def state_bytes(self) -> int:
        """See `Counter`."""
        return 8 * (self.levels + 1)

    def init(self, keys: int, t: int = 0) -> CounterState:
        """See `Counter.init`."""
        return zeros(t, keys, whole=self.levels + 1, real=0)

    def _skipped(
        self, state: CounterState, steps: int, draws: Draws, ids: Ids | None
    ) -> CounterState:
        """See `Counter`. Blocks that opened and closed in between need no noise."""
        t = state.t + steps
        kept = [level for level in range(self.levels) if state.t >> level == t >> level]
        fresh = [level for level in range(self.levels) if t >> level & 1 and level not in kept]
        whole = np.zeros_like(state.whole)
        rows = [0, *(1 + level for level in kept)]  # the total, and what is still open
        whole[rows] = state.whole[rows]
        if fresh:
            noise = gaussian_rows(draws, ids, state.keys, len(fresh), self.sigma)
            whole[[1 + level for level in fresh]] = noise
        return CounterState(t, whole, state.real)

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Steppable`."""
        t = next_step(self.horizon, state)
        level = trailing_zeros(t)
        whole = state.whole.copy()
        whole[0] += column(increments, state.keys)
        whole[1 : level + 1] = 0
        whole[level + 1] = gaussian_rows(draws, ids, state.keys, 1, self.sigma)[0]
        return whole.sum(axis=0), CounterState(t, whole, state.real)


@dataclass(frozen=True, kw_only=True)
class SquareRoot:
    """The error of C = B = the square root of the running-sum matrix, columns of equal norm.

    Algorithm: Bennett (1977); Fichtenberger, Henzinger & Upadhyay 2023, arXiv:2202.11205; with
        columns scaled to equal norm (arXiv:2509.14334), in feedback form.
    Memory: 8 (horizon + 1) bytes per key.
    """

    horizon: int
    sigma: float

    @property
    def sensitivity(self) -> float:
        """See `Counter`."""
        return float(np.sqrt((root_coefficients(self.horizon) ** 2).sum()))

    @property
    def state_bytes(self) -> int:
        """See `Counter`."""
        return 8 * (self.horizon + 1)

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        gaussian, rounding = _variances_of(self.horizon)[:, t - 1]
        return np.asarray(np.sqrt(gaussian * self.sigma**2 + rounding / 12))


@dataclass(frozen=True, kw_only=True)
class AnytimeHaar:
    """The error of a Haar basis (see `HaarCounter`) over 2^40 steps, of which any is the last.

    Algorithm: the level weights minimise the largest ratio, over t up to `tuned`, to the
        square-root factorization made for horizon t.
    """

    sigma: float
    tuned: int = 2**20
    sensitivity: ClassVar[float] = 1.0
    state_bytes: ClassVar[int] = 16

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        return haar_std(t, anytime_weights(self.tuned), self.sigma)


@lru_cache(maxsize=16)
def anytime_weights(tuned: int) -> tuple[float, ...]:
    """Weights of column norm 1 with the least largest ratio at tested times up to `tuned`.

    Algorithm: as `best_weights`, each time's variance divided by its goal.
    """
    times = candidate_times(tuned)
    goals, norms = root_squared_norm(times) ** 2, np.array(column_weights(LEVELS))
    parts = [part / goals for part in variance_parts(times, LEVELS)]
    octaves = np.frexp(times.astype(float))[1]
    alike = [np.flatnonzero(octaves == octave) for octave in np.unique(octaves)]

    def worst(ratios: Array) -> set[int]:
        """That of every octave: all of them matter."""
        return {int(here[np.argmax(ratios[here])]) for here in alike}

    weights, chosen = weights_of_mean(parts, norms), set[int]()
    for _ in range(ROUNDS):
        total = sum(part / w for part, w in zip(parts, weights, strict=True))
        if chosen and total.max() <= (1 + 1e-6) * max(total[i] for i in chosen):
            break
        chosen |= worst(total)
        rows = np.array([[part[i] for part in parts] for i in sorted(chosen)])
        weights = least_maximum(rows, norms, weights)
    return tuple(map(float, weights / (weights @ norms)))


def candidate_times(tuned: int) -> Int64[Array, " times"]:
    """All short times; of long ones every start of `LEADING` bits, with tails that bend most.

    A tent is high where the bits below its level read 0111.. or 1000..; 0101.. serves all levels.
    """
    found = set(range(1, min(tuned, 2**LEADING) + 1)) | {tuned}
    for rest in range(1, tuned.bit_length() - LEADING + 1):
        full = 2**rest - 1
        tails = {0, 1, full // 3, full - full // 3, full // 2, full // 2 + 1, full}
        starts = range(2 ** (LEADING - 1), 2**LEADING)
        found |= {(start << rest) + tail for start in starts for tail in tails}
    return np.array(sorted(t for t in found if t <= tuned), np.int64)


@lru_cache(maxsize=16)
def inverse_coefficients(n: int) -> Float64[Array, " n"]:
    """e_k of (1-x)^(1/2) = 1 - sum_(k >= 1) e_k x^k; e_0 is not used."""
    return root_coefficients(n) / np.abs(2 * np.arange(n) - 1)


@lru_cache(maxsize=16)
def column_scales(horizon: int) -> Float64[Array, " horizon"]:
    """D_t = sqrt(S_(T-t+1) / S_T), a little larger."""
    squares = np.cumsum(root_coefficients(horizon) ** 2)[::-1]
    return np.asarray(np.sqrt(squares / squares[0]) * MARGIN * (1 + 8 * horizon * counters.U))


@lru_cache(maxsize=8)
def _variances_of(horizon: int) -> Float64[Array, "2 horizon"]:
    """Row norms of the decoder, for noise of variance 1 and 1/D^2."""
    scales = column_scales(horizon)
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
