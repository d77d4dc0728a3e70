"""A tree counter whose error is the same at every step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import comb, sqrt
from typing import ClassVar

import numpy as np

from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import correlated_noise
from streamveil.core.counters.correlated_noise import gaussian_rows
from streamveil.core.counters.protocol import (
    CounterState,
    Estimates,
    Ids,
    Increments,
    Stepping,
    checked_times,
    column,
    next_step,
    zeros,
)
from streamveil.core.counters.schedule import check_horizon
from streamveil.core.noise.keyed import Draws
from streamveil.counters.tree import renewed
from streamveil.errors import require_positive
from streamveil.types import Array, Exact, Float64, Int64


@dataclass(frozen=True, kw_only=True)
class SmoothTreeCounter(Stepping):
    """Running totals over the leaves of a binary tree whose paths have equally many ones.

    Algorithm: Andersson & Pagh 2023, arXiv:2306.09666: step t sits at leaf t-1 among the words of
        length `height` with `ones` ones, in order; the first t steps are the left siblings at the
        ones of word t. Both numbers are chosen for the horizon.
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = moved * sqrt(height - ones) / sigma.
    Proof: only left children are used, and a leaf is below one left child per zero of its word.
        A block is complete before it is used and has its own draw.
    Error: variance ones * (sigma^2 + 1/12), at every t.
    Memory: 8 (height + 1) bytes per key: the exact total and the noise of the blocks in use.
    Numerics: exact integers.

    Raises:
        ValueError: a setting is out of its range, or increments are not one whole number per key.
        HorizonError: a step after the last of `horizon`.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = SmoothTreeCounter(horizon=100, sigma=10)
    >>> counter.shape, round(counter.sensitivity * float(counter.std(np.array([1]))[0]) / 10, 2)
    ((9, 4), 4.47)
    """

    keyed: ClassVar[bool] = False
    horizon: int  # steps the guarantee covers, >= 1
    sigma: Exact | float  # scale of one block's noise, quanta, > 0

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        require_positive(sigma=self.sigma)

    @property
    def shape(self) -> tuple[int, int]:
        """(height, ones)."""
        return best_shape(self.horizon)

    @property
    def needs_horizon(self) -> bool:
        """The tree has a fixed height."""
        return True

    @property
    def sensitivity(self) -> float:
        """See `Counter`."""
        height, ones = self.shape
        return sqrt(height - ones) * correlated_noise.UP

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`."""
        return correlated_noise.gaussian_loss(self.sigma, self.sensitivity, moved, keys=keys)

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        times = checked_times(t, self.horizon)
        return np.full(times.shape, sqrt(self.shape[1] * (float(self.sigma) ** 2 + 1 / 12)))

    @property
    def state_bytes(self) -> int:
        """See `Counter`."""
        return 8 * (self.shape[0] + 1)

    def init(self, keys: int, t: int = 0) -> CounterState:
        """See `Counter.init`."""
        return zeros(t, keys, whole=self.shape[0] + 1, real=0)

    def _skipped(
        self, state: CounterState, steps: int, draws: Draws, ids: Ids | None
    ) -> CounterState:
        """See `Counter`. Blocks that opened and closed in between need no noise."""
        t, (height, ones) = state.t + steps, self.shape
        before, word = word_at(state.t, height, ones), word_at(t, height, ones)
        kept = [i for i in range(height) if word[: i + 1] == before[: i + 1]]
        fresh = [i for i in range(height) if word[i] and i not in kept]
        return renewed(self.sigma, state, t, (kept, fresh), (draws, ids))

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Steppable`."""
        t, (height, ones) = next_step(self.horizon, state), self.shape
        before, word = word_at(t - 1, height, ones), word_at(t, height, ones)
        changed = next(i for i in range(height) if word[i] != before[i])
        fresh = [i for i in range(changed, height) if word[i]]
        whole = state.whole.copy()
        whole[0] += column(increments, state.keys)
        whole[1 + changed :] = 0
        whole[[1 + i for i in fresh]] = gaussian_rows(
            draws, ids, state.keys, len(fresh), self.sigma
        )
        return whole.sum(axis=0), CounterState(t, whole, state.real)


@lru_cache(maxsize=64)
def best_shape(horizon: int) -> tuple[int, int]:
    """(height, ones) of least error sqrt(ones (height - ones)) with more than `horizon` words."""
    shapes = [
        (ones * (height - ones), height, ones)
        for height in range(2, 4 + 2 * horizon.bit_length())
        for ones in range(1, height)
        if comb(height, ones) > horizon
    ]
    if not shapes:
        return horizon + 1, 1
    _, height, ones = min(shapes)
    return height, ones


def word_at(rank: int, height: int, ones: int) -> tuple[int, ...]:
    """The word of this rank among words with that many ones, in lexicographic order."""
    word, left = [], ones
    for position in range(height):
        with_zero = comb(height - position - 1, left)
        word.append(int(rank >= with_zero))
        if word[-1]:
            rank, left = rank - with_zero, left - 1
    return tuple(word)
