"""Frequent keys, found from published tables alone.

A list of candidates kept from arriving keys would leak: a rare key that happens to collide with
frequent ones enters the list only if it occurred. So the search below takes a `PublishedHierarchy`
or a `PublishedSketch`, public values that hold no key, and everything it does is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from streamveil.core.accounting import Budget, Neighbours, take_numbers
from streamveil.errors import at_least, require_between, require_positive
from streamveil.sketches.hashing import WORD, Layout
from streamveil.sketches.keys import Keys, Words, integer_words
from streamveil.sketches.lazy import make_schedule, warn_about_delta
from streamveil.sketches.levels import BEAM, Levels, LevelWords, require_search
from streamveil.sketches.published import PublishedSketch, deviations
from streamveil.sketches.schedule import ClockName, PushSchedule
from streamveil.types import Array, Float64, UInt64

GUARD = 4.0  # standard deviations of noise a reported key must show


class HeavyKeys(NamedTuple):
    """Keys in order of estimated weight, largest first.

    >>> found = HeavyKeys(np.array([7, 9], np.uint64), np.array([120.0, 80.0]), sd=4.0)
    >>> [(int(key), float(n)) for key, n in zip(found.keys, found.estimates)]
    [(7, 120.0), (9, 80.0)]
    """

    keys: UInt64[Array, " found"]
    estimates: Float64[Array, " found"]
    sd: float  # standard deviation of the noise in a cell; of the worst cell, if corrected for lag


@dataclass(frozen=True, kw_only=True)
class HeavyHitters(Levels):
    """The most frequent integer keys at any time, without a list of candidates.

    Algorithm: a key of `bits` bits is cut into digits of `digit` bits; level l counts its first l
        digits, exactly where that table is at most `exact_cells` wide, else in a sketch. From the
        top, keep the `beam` largest prefixes, look at all their children, and so on.
    Protects: as `LazySketch`.
    Guarantee: one budget for all levels together: their changes m add up under one sigma.
    Proof: `NoisePlan` on the concatenation of all tables; the search reads published tables only.
    Error: with G a bound on collisions and noise of all prefixes looked at and R the most arrivals
        in a round, every key of weight at least threshold + G + R is found if beam is at least
        N / (threshold - G), and no key below threshold - G is.
    Memory: `nbytes`.

    Raises:
        PlanError: a setting is out of its range.
        HorizonError: keys after the last of `horizon`, or more pushes than a sketch without one can
            hold.
        StoreError: `resume` is given arrays of another configuration.

    >>> from streamveil.core.noise import SeededNoise
    >>> finder = HeavyHitters(bits=16, width=512, horizon=2**15,
    ...     protects=Neighbours(relation="event"), budget=Budget(epsilon=1, delta=1e-6))
    >>> live = finder.open(SeededNoise(1))
    >>> live.update(np.repeat([77, 1234], 2**14))
    >>> sorted(live.published().top(2).keys.tolist())
    [77, 1234]
    """

    horizon: int | None  # arrivals or ticks covered, >= 1; None: unknown
    protects: Neighbours
    budget: Budget
    width: int  # columns of each table, >= 1
    bits: int = 32  # of a key, 1 to 64
    digit: int = 8  # bits that one level adds, 1 to 16
    depth: int = 3  # rows of each table, >= 1
    exact_cells: int = 2**16  # most cells of a level that is counted exactly, >= 1
    clock: ClockName = "arrivals"  # what a step is
    round: int | None = None  # arrivals or ticks between two pushes of a column, >= 1
    block: int | None = None  # columns pushed together, >= 1
    counter: Literal["blt-1", "blt-2", "tree", "tree-prf"] = "blt-1"  # of a cell
    flushes: int = 0  # further pushes of everything, >= 0
    max_weight: int = 1  # of one item, >= 1
    seed: int = 0  # public, any whole number; choose it before seeing data

    most_levels = 64

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(width=self.width, horizon=self.horizon)
        require_between(1, 16, digit=self.digit)
        require_between(1, 64, bits=self.bits, depth=self.depth)
        at_least(0, exact_cells=self.exact_cells)
        _ = self.noise.loss, self.tables  # every setting is checked now
        warn_about_delta(self.budget, self.schedule_of(self.width))

    @property
    def level_bits(self) -> tuple[int, ...]:
        """The number of leading bits that each level counts."""
        return tuple(range((self.bits - 1) % self.digit + 1, self.bits + 1, self.digit))

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """One layout per level."""
        return tuple(
            self.layout_of("identity", 1, 2**bits, level)
            if 2**bits <= self.exact_cells
            else self.layout_of("multiply", self.depth, self.width, level)
            for level, bits in enumerate(self.level_bits)
        )

    def schedule_of(self, width: int) -> PushSchedule:
        """Push times of a level: the same round for all.

        Args:
            width: columns of the table, at least 1.

        Raises:
            PlanError: an argument is beyond its range.
        """
        block = None if self.block is None else min(self.block, width)
        return make_schedule(self, width, block)

    def items(self, keys: Keys) -> Words:
        """Keys as they are counted.

        Args:
            keys: integers of at most `bits` bits.

        Raises:
            PlanError: a key has more bits.
        """
        return integer_words(keys, self.bits)

    def counted(self, words: Words, weights: Array) -> Iterator[LevelWords]:
        """The words of some keys that every table counts: their first bits.

        Args:
            words: what `items` returned.
            weights: how often each counts, at least 0; empty: once.
        """
        for number, bits in enumerate(self.level_bits):
            yield LevelWords(number, words >> words.dtype.type(self.bits - bits), weights)

    def shown(self, levels: tuple[PublishedSketch, ...]) -> PublishedHierarchy:
        """Published tables, ready for a search; `levels`: the published tables, in order."""
        return PublishedHierarchy(levels, self.level_bits)


@dataclass(frozen=True)
class PublishedHierarchy:
    """Public snapshots of all levels. Holds no key.

    Raises:
        PlanError: k is below 1, the beam below k, or a key has too many bits.
        PlanError: keys are not integers; `text_words` makes integers of texts.

    >>> from streamveil.core.noise import SeededNoise
    >>> finder = HeavyHitters(bits=16, width=512, horizon=2**15,
    ...     protects=Neighbours(relation="event"), budget=Budget(epsilon=1, delta=1e-6))
    >>> live = finder.open(SeededNoise(1))
    >>> live.update(np.repeat([77, 1234], 2**14))
    >>> public = live.published()
    >>> public.level_bits[-1], bool(public.estimate([77])[0] > 10_000)
    (16, True)
    """

    levels: tuple[PublishedSketch, ...]
    level_bits: tuple[int, ...]  # leading bits of a key that each level counts

    @property
    def sd(self) -> float:
        """The largest standard deviation of the noise in a cell of the last level."""
        return self.levels[-1].sd

    def estimate(self, keys: Keys, **options: Any) -> Float64[Array, " keys"]:
        """Estimated weight of any keys, from the last level.

        Args:
            keys: integers of at most `bits` bits.
            **options: those of `PublishedSketch.estimate`.

        Raises:
            PlanError: a key has more bits, or an option is unknown.
        """
        words = integer_words(keys, self.level_bits[-1])
        return self.levels[-1].estimate_words(words, **options)

    def top(
        self,
        k: int,
        *,
        threshold: float | None = None,
        beam: int = BEAM,
        lag_corrected: bool = False,
    ) -> HeavyKeys:
        """At most k keys with the largest estimates of at least `threshold`.

        Without a threshold, `GUARD` standard deviations of the noise, and no key before the first
        push. The beam should be at least twice k; a wider one finds more and takes longer.

        Args:
            k: keys at most, at least 1.
            threshold: the least estimate of a key.
            beam: how many prefixes the search follows at each level, at least k.
            lag_corrected: scale cells up to the time since their last push: for streams that do not
                change.

        Raises:
            PlanError: k is below 1, the beam is below k, or the threshold is no number.
        """
        require_search(k, beam, threshold)
        found = np.arange(2 ** self.level_bits[0], dtype=np.uint64)
        for level, sketch in enumerate(self.levels):
            if level:
                step = self.level_bits[level] - self.level_bits[level - 1]
                children = np.arange(2**step, dtype=np.uint64)
                found = ((found[:, None] << np.uint64(step)) | children[None, :]).ravel()
            if self.level_bits[level] <= WORD:
                found = found.astype(np.uint32)
            estimates = sketch.estimate_words(found, lag_corrected=lag_corrected)
            sds = deviations(sketch, found, lag_corrected=lag_corrected)
            clear = np.where(sds > 0, GUARD * sds, math.inf)
            least = clear if threshold is None else np.full(len(found), threshold)
            last = level == len(self.levels) - 1
            found, estimates = largest(found, estimates, k if last else beam, least)
            found = found.astype(np.uint64)
        sds = deviations(self.levels[-1], found, lag_corrected=lag_corrected)
        return HeavyKeys(found, estimates, float(sds.max(initial=self.sd)))


def largest(
    keys: Array, estimates: Float64[Array, " keys"], count: int, least: Float64[Array, " keys"]
) -> tuple[Array, Float64[Array, " kept"]]:
    """The `count` largest estimates of at least `least`, in order; ties by key."""
    kept = np.flatnonzero(estimates >= least)
    order = kept[np.lexsort((keys[kept], -estimates[kept]))][:count]
    return keys[order], estimates[order]
