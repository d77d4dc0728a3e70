"""Binary tree counters: the classical mechanism and its bottom-up refinement."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np

from streamveil.core import counters
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
    checked_times,
    column,
    gaussian_rows,
    next_step,
    zeros,
)
from streamveil.core.counters.restarting_trees import (
    levels_over,
    refined_variances,
    tree_loss,
    tree_std,
)
from streamveil.core.noise import Draws
from streamveil.errors import require_between, whole
from streamveil.types import Array, Exact, Float64, Int64


@dataclass(frozen=True, kw_only=True)
class HonakerCounter(Stepping):
    """Running totals from dyadic blocks, each block's sum refined by the blocks inside it.

    Algorithm: the bottom-up estimator of Honaker (2015), used by DP-SQLP; the best linear unbiased
        estimator from the nodes completed by time t (completed blocks are disjoint full subtrees).
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = moved * sqrt(levels) / sigma, levels = ceil(log2 horizon), at least 1.
    Proof: a step lies in one block per level; blocks are integers, so noise rounded about zero is
        noise rounded about them. Only nodes completed at a step are used at it, and each has its
        own draw, so later increments may depend on earlier releases. Estimates are computed from
        noisy nodes alone. At horizon 2^h the two halves are added and no node for the whole is
        made.
    Error: variance (sigma^2 + 1/12) times the sum of a_l over the binary digits l of t, where
        a_0 = 1 and 1/a_l = 1 + 1/(2 a_(l-1)).
    Memory: 16 levels bytes per key.
    Numerics: nodes are exact integers; estimates are float64, post-processing.

    Raises:
        PlanError: a setting is out of its range, or increments are not one whole number per key.
        PlanError: the noise has more than 2**50 quanta, which 64 bits may not hold.
        HorizonError: a step after the last of `horizon`.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = HonakerCounter(horizon=16, sigma=100)
    >>> round(float(counter.std(np.array([15]))[0]) * 2 / 100, 3)
    3.33
    """

    keyed: ClassVar[bool] = False
    needs_horizon: ClassVar[bool] = True  # the number of levels is fixed in advance
    horizon: int  # steps the guarantee covers, 1 to 2**40
    sigma: Exact | float  # scale of one node's noise, quanta, > 0

    def __post_init__(self) -> None:
        take_numbers(self)
        require_between(1, FOREVER, horizon=self.horizon)
        counters.check_noise(self.sigma)

    @property
    def levels(self) -> int:
        """Blocks that one step can lie in."""
        return levels_over(self.horizon)

    @property
    def sensitivity(self) -> float:
        """See `Counter`."""
        return sqrt(self.levels) * counters.UP

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`."""
        return tree_loss(self.sigma, self.levels, moved)

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        return tree_std(self.sigma, self.levels, checked_times(t, self.horizon))

    def mix(self, t: int) -> Mix:
        """See `Counter.mix`: each block's refined sum is made of the draws of all blocks in it.

        Raises:
            PlanError: there is no such step.
        """
        require_between(1, self.horizon, t=whole("t", t))
        square, top = float(self.sigma) ** 2, self.levels - 1
        weights = refined_variances(self.levels)
        nodes = []
        blocks = [(level, (t >> level) << level) for level in range(top) if t >> level & 1]
        blocks += [(top, place << top) for place in range(1, (t >> top) + 1)]
        for level, end in blocks:
            part, ends = 1.0, [end]
            for inside in range(level, -1, -1):
                own = weights[inside] if inside else 1.0
                nodes += [(inside, one, one, part * own, square) for one in ends]
                part, half = part * (1 - own), 1 << inside >> 1
                ends = [one for whole in ends for one in (whole - half, whole)]
        return Mix.of(nodes)

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
        """See `Counter`."""
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
