"""The counter for pure differential privacy, whose noise is computed from an address.

It draws the noise of a tree node from an address that names the node, so none is stored. All its
steps must have ONE place: new noise about the same totals at every step would average away. The
state holds a mark of the address (row 1, below the exact total), which every step compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np

from streamveil.core import counters
from streamveil.core.accounting import take_numbers
from streamveil.core.accounting.guarantee import Loss, Pure
from streamveil.core.counters import (
    ALWAYS,
    FOREVER,
    CounterState,
    Estimates,
    Ids,
    Increments,
    Mix,
    Stepping,
    checked_times,
    column,
    zeros,
)
from streamveil.core.noise import Draws
from streamveil.core.noise.samplers import rounded_laplace
from streamveil.errors import PlanError, require_between, whole
from streamveil.types import Array, Exact, Float64, Int64

LARGEST_LEVELS = 12  # tried by `best_arity`


@dataclass(frozen=True, kw_only=True)
class KaryTreeCounter(Stepping):
    """Running totals from a tree with k children per node, adding and subtracting blocks.

    Algorithm: a prefix is written in balanced base k; a digit adds that many blocks of its level,
        or subtracts them from the right (Andersson, Pagh, Steiner & Torkamani 2024,
        arXiv:2408.07021). Noise is Laplace, rounded to integers, one draw per block, by address.
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: pure epsilon = moved * levels / sigma, also for increments that depend on earlier
        releases.
    Proof: a step lies in one block per level, so the blocks' sums move by at most levels * sum
        |d_t| in L1; rounding about integers is post-processing of Laplace noise. Subtracted blocks
        reach into the future: y = S + B z with B in {-1, 0, 1}, and column j of the encoder times
        the rows of B before j is zero (it is A above its diagonal), so shifting z by what step j
        moves changes no earlier output, and the ratio of densities bounds every path.
    Error: variance (number of blocks) * (2 sigma^2 + 1/12); blocks: the digit sum of t.
    Memory: 16 bytes per key: the exact total and a mark of the address.
    Numerics: exact.

    Raises:
        PlanError: a setting is out of its range, or increments are not one whole number per key.
        PlanError: the noise has more than 2**50 quanta, which 64 bits may not hold.
        HorizonError: a step after the last of `horizon`.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = KaryTreeCounter(horizon=1000, sigma=3)
    >>> counter.arity, counter.levels, str(counter.loss())
    (13, 3, 'epsilon=1')
    """

    keyed: ClassVar[bool] = True
    needs_horizon: ClassVar[bool] = True  # the number of levels is fixed in advance
    horizon: int  # steps the guarantee covers, 1 to 2**40
    sigma: Exact | float  # scale of one block's Laplace noise, quanta, > 0
    k: int | None = None  # odd, 3 to 2**41 + 1; None: the best for this horizon

    def __post_init__(self) -> None:
        take_numbers(self)
        require_between(1, FOREVER, horizon=self.horizon)
        counters.check_noise(self.sigma)
        if self.k is not None and (not 3 <= self.k <= 2 * FOREVER + 1 or self.k % 2 == 0):
            raise PlanError(f"k must be odd, from 3 to 2**41 + 1, not {self.k}")

    @property
    def arity(self) -> int:
        """Children per node."""
        return self.k or best_arity(self.horizon)

    @property
    def levels(self) -> int:
        """Blocks that one step lies in: the least h with (k^h - 1) / 2 >= horizon."""
        return levels_for(self.arity, self.horizon)

    @property
    def sensitivity(self) -> float:
        """The number of levels: the L1 norm of a column."""
        return float(self.levels)

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`; `moved` in L1 over keys. Exact."""
        size = counters.check_moved(moved)
        return Pure(size * self.levels / Fraction(self.sigma)) if size else Loss()

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        times = checked_times(t, self.horizon)
        blocks = np.abs(balanced_digits(times, self.arity, self.levels)).sum(axis=0)
        return np.asarray(np.sqrt(blocks * (2 * float(self.sigma) ** 2 + 1 / 12)))

    def mix(self, t: int) -> Mix:
        """See `Counter.mix`: drawn by address, so a key has all draws whenever it starts.

        Raises:
            PlanError: there is no such step.
        """
        require_between(1, self.horizon, t=whole("t", t))
        square = 2 * float(self.sigma) ** 2
        blocks = blocks_of(t, self.arity, self.levels)
        return Mix.of([(level, place, ALWAYS, sign, square) for level, place, sign in blocks])

    @property
    def state_bytes(self) -> int:
        """See `Counter`."""
        return 16

    def init(self, keys: int, t: int = 0) -> CounterState:
        """See `Counter.init`."""
        return zeros(t, keys, whole=2, real=0)

    def _skipped(
        self, state: CounterState, steps: int, draws: Draws, ids: Ids | None
    ) -> CounterState:
        """See `Counter`. A block's noise is drawn when the block is first used."""
        return CounterState(state.t + steps, state.whole, state.real)

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Counter`; `draws` have the same address at every step."""
        total = state.whole[0] + column(increments, state.keys)
        marks = check_mark(state.whole[1], mark_of(draws))
        t = state.t + 1
        return self._read(total, t, draws, ids), CounterState(
            t, np.stack([total, marks]), state.real
        )

    def _read(
        self, totals: Int64[Array, " keys"], t: int, draws: Draws, ids: Ids | None = None
    ) -> Int64[Array, " keys"]:
        """The release of step t from the exact totals alone: no state, no earlier step needed."""
        released, about = totals.copy(), np.zeros(len(totals))
        for level, index, sign in blocks_of(t, self.arity, self.levels):
            node = draws.at("node", level, index)
            released += sign * rounded_laplace(node, about, self.sigma, ids)
        return released


def mark_of(draws: Draws) -> int:
    """A number that tells addresses apart, never 0; reveals nothing about their noise."""
    return int(draws.at("mark").words(1)[0] >> np.uint64(2)) + 1


def check_mark(marks: Int64[Array, " keys"], mark: int) -> Int64[Array, " keys"]:
    """The marks after a step; raises when a column was fed from another address before."""
    if np.any((marks != 0) & (marks != mark)):
        raise PlanError(
            "a keyed counter was given two places: its noise would average away.\n"
            "  to fix  pass the same place at every step, or let counter.stream(...) own the noise"
        )
    return np.full(len(marks), mark, np.int64)


def levels_for(k: int, horizon: int) -> int:
    """The least h with (k^h - 1) / 2 >= horizon."""
    levels = 1
    while (k**levels - 1) // 2 < horizon:
        levels += 1
    return levels


def balanced_digits(t: Int64[Array, " times"], k: int, levels: int) -> Int64[Array, "levels times"]:
    """Digits of t in base k between -(k-1)/2 and (k-1)/2, the smallest first."""
    half, left, digits = (k - 1) // 2, np.array(t, np.int64), []
    for _ in range(levels):
        digit = (left + half) % k - half
        digits.append(digit)
        left = (left - digit) // k
    return np.array(digits)


def blocks_of(t: int, k: int, levels: int) -> list[tuple[int, int, int]]:
    """(level, index, sign) of the blocks that make up the first t steps."""
    digits = balanced_digits(np.array([t]), k, levels)[:, 0]
    found, position = [], 0
    for level in reversed(range(levels)):
        digit, length = int(digits[level]), k**level
        first, after = position // length, position // length + digit
        found += [(level, i, 1 if digit > 0 else -1) for i in range(*sorted((first, after)))]
        position += digit * length
    return found


@lru_cache(maxsize=64)
def best_arity(horizon: int) -> int:
    """The odd k of least largest error: for each number of levels the smallest k that reaches."""
    best, least = 3, float("inf")
    for levels in range(1, LARGEST_LEVELS + 1):
        k = max(3, smallest_arity(horizon, levels))
        height = levels_for(k, horizon)
        error = height * float(np.sqrt(largest_digit_sum(horizon, k, height)))
        if error < least:
            best, least = k, error
    return best


def smallest_arity(horizon: int, levels: int) -> int:
    """The smallest odd k with (k^levels - 1) / 2 >= horizon."""
    k = max(1, int((2 * horizon + 1) ** (1 / levels)) - 3) | 1
    while (k**levels - 1) // 2 < horizon:
        k += 2
    return k


def largest_digit_sum(horizon: int, k: int, levels: int) -> int:
    """The largest sum of |digits| over 1..horizon, by the leading digits of the horizon.

    With the top digits those of the horizon and the next one smaller, the rest is free.
    """
    digits = [int(d) for d in balanced_digits(np.array([horizon]), k, levels)[::-1, 0]]
    half, best, fixed = (k - 1) // 2, sum(map(abs, digits)), 0
    for i, digit in enumerate(digits):
        free = (levels - 1 - i) * half
        lower = -half if i else 0  # the top digit of a prefix is never negative
        if digit > lower:
            best = max(best, fixed + max(abs(lower), abs(digit - 1)) + free)
        fixed += abs(digit)
    return best
