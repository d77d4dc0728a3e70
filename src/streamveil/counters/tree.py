"""Binary tree counters: the classical mechanism and its bottom-up refinement."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

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
    gaussian_rows,
    next_step,
    zeros,
)
from streamveil.core.counters.blt import check_horizon
from streamveil.core.counters.restarting_trees import (
    ROUNDING,
    blocks_of,
    levels_over,
    refined_variances,
    tree_loss,
    tree_rounding,
    tree_std,
)
from streamveil.core.noise import Draws
from streamveil.errors import require_positive
from streamveil.types import Array, Exact, Float64, Int64


@dataclass(frozen=True, kw_only=True)
class Dyadic(Stepping):
    """What both trees are made from: a step lies in one block of each level."""

    keyed: ClassVar[bool] = False
    horizon: int  # steps the guarantee covers, >= 1
    sigma: Exact | float  # scale of one node's noise, quanta, > 0

    def __post_init__(self) -> None:
        check_horizon(self.horizon)
        require_positive(sigma=self.sigma)

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


@dataclass(frozen=True, kw_only=True)
class BinaryTreeCounter(Dyadic):
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
class HonakerCounter(Dyadic):
    """Running totals from dyadic blocks, each block's sum refined by the blocks inside it.

    Algorithm: the bottom-up estimator of Honaker (2015), used by DP-SQLP; the best linear unbiased
        estimator from the nodes completed by time t (completed blocks are disjoint full subtrees).
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = moved * sqrt(levels) / sigma, levels = ceil(log2 horizon), at least 1.
    Proof: as for `BinaryTreeCounter`; estimates are computed from noisy nodes alone. At horizon
        2^h the two halves are added and no node for the whole is made.
    Error: variance (sigma^2 + 1/12) times the sum of a_l over the binary digits l of t, where
        a_0 = 1 and 1/a_l = 1 + 1/(2 a_(l-1)).
    Memory: 16 levels bytes per key.
    Numerics: nodes are exact integers; estimates are float64, post-processing.

    Raises:
        ValueError: a setting is out of its range, or increments are not one whole number per key.
        HorizonError: a step after the last of `horizon`.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = HonakerCounter(horizon=16, sigma=100)
    >>> round(float(counter.std(np.array([15]))[0]) * 2 / 100, 3)
    3.33
    """

    @property
    def levels(self) -> int:
        """Blocks that one step can lie in."""
        return levels_over(self.horizon)

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`."""
        return tree_loss(self.sigma, self.levels, moved)

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        return tree_std(self.sigma, self.levels, checked_times(t, self.horizon))

    def rounding(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """The most that rounding every node to an integer moves the estimate after t steps."""
        return tree_rounding(self.levels, checked_times(t, self.horizon))

    @property
    def state_bytes(self) -> int:
        """See `Counter`."""
        return 16 * self.levels

    def init(self, keys: int, t: int = 0) -> CounterState:
        """See `Counter.init`."""
        return zeros(t, keys, whole=self.levels, real=self.levels)

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Steppable`."""
        t = next_step(self.horizon, state)
        level, top = trailing_zeros(t), self.levels - 1
        done = min(level, top)
        noise = gaussian_rows(draws, ids, state.keys, done + 1, self.sigma)
        whole, real = state.whole.copy(), state.real.copy()
        block = column(increments, state.keys)
        estimate = (block + noise[0]).astype(np.float64)
        weights = refined_variances(self.levels)
        for inner in range(done):  # the block closes together with its left neighbour
            block = block + whole[inner]
            inside = estimate + real[inner]
            weight = weights[inner + 1]
            estimate = weight * (block + noise[inner + 1]) + (1 - weight) * inside
        whole[:done], real[:done] = 0, 0.0
        whole[done] = block if level <= top else whole[done] + block
        real[done] = estimate if level <= top else real[done] + estimate
        return real.sum(axis=0), CounterState(t, whole, real)


def trailing_zeros(t: int) -> int:
    """The level of the largest block that step t completes."""
    return (t & -t).bit_length() - 1
