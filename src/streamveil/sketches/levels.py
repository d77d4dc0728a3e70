"""Several tables under one budget, that are searched from the first to the last."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.counters.cells import CellCounter
from streamveil.core.noise import KeyedNoise, Noise, Place, once_of, saved_once
from streamveil.core.noise.bulk.keystream import key_schedule
from streamveil.core.noisy import values
from streamveil.errors import require_between
from streamveil.sketches.hashing import Layout
from streamveil.sketches.keys import Words, weight_words
from streamveil.sketches.privacy import NoisePlan
from streamveil.sketches.published import PublishedSketch
from streamveil.sketches.schedule import PushSchedule
from streamveil.sketches.table import Arrays, SketchTable, cell_types, save
from streamveil.types import Array

BEAM, WIDEST_BEAM = 512, 2**20  # prefixes kept at each level


class LevelWords(NamedTuple):
    """What one table counts of some keys."""

    number: int  # of the table
    words: Words
    weights: Array  # one a word; empty: all one


class Levels(Protocol):
    """What a finder of frequent keys has: tables under one budget, and how keys fall into them."""

    protects: Neighbours
    budget: Budget
    horizon: int | None
    width: int
    max_weight: int
    counter: Any  # the name of a `CellCounter`
    seed: int
    most_levels: int  # that any of its kind has, so that no two seeds share a hash

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One layout per table."""
        ...

    def schedule(self, width: int) -> PushSchedule:
        """Push times of a table of so many columns."""
        ...

    def items(self, keys: Any) -> Any:
        """Keys as they are counted."""
        ...

    def counted(self, items: Any, weights: Array) -> Iterator[LevelWords]:
        """What the tables count of some keys; a key at most once in each table."""
        ...

    def shown(self, levels: tuple[PublishedSketch, ...]) -> Any:
        """Published tables as what is searched: a `PublishedHierarchy`, or `PublishedTexts`."""
        ...

    @property
    def parts(self) -> tuple[int, ...]:
        """What a key adds to a cell of each table, as `NoisePlan` has it; empty: one to each."""
        return ()

    def layout(self, family: Any, depth: int, width: int, number: int) -> Layout:
        """That of one table, whose hashes are its own."""
        seed = self.seed * self.most_levels + number
        return Layout(kind="count-min", depth=depth, width=width, family=family, seed=seed)

    @cached_property
    def noise(self) -> NoisePlan:
        """Sensitivity and noise scale of all tables together."""
        schedule = self.schedule(self.width)
        types = cell_types(schedule, self.max_weight)
        return NoisePlan(
            layouts=self.layouts, counter=CellCounter(self.counter, schedule.pushes),
            protects=self.protects, budget=self.budget, max_weight=self.max_weight,
            word_bytes=np.dtype(types.noise).itemsize, parts=self.parts,
        )  # fmt: skip

    @cached_property
    def tables(self) -> tuple[SketchTable, ...]:
        """The cells of every table."""
        schedules = [self.schedule(layout.width) for layout in self.layouts]
        return tuple(
            SketchTable(
                layout=layout, schedule=schedule, counter=self.noise.counter,
                types=cell_types(schedule, self.max_weight), sigma=self.noise.sigma,
                bits=self.noise.bits, max_weight=self.max_weight,
            )
            for layout, schedule in zip(self.layouts, schedules, strict=True)
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        """Bytes of all cells."""
        return sum(table.nbytes for table in self.tables)

    @property
    def guarantee(self) -> Guarantee:
        """What everything ever published can reveal."""
        return Guarantee(self.protects, self.noise.loss, self.horizon)

    def open(self, noise: Noise | None = None, name: str = "heavy-hitters") -> LiveHeavyHitters:
        """Empty and counting. Without `noise`, under a fresh key of the operating system."""
        state = [table.init() for table in self.tables]
        place = Place.opened(noise or KeyedNoise.fresh(), "sketch", name.encode())
        return LiveHeavyHitters(self, state, place)

    def resume(self, arrays: Arrays, noise: Noise, name: str = "heavy-hitters") -> LiveHeavyHitters:
        """Counting again from `LiveHeavyHitters.save`, under the same noise and name."""
        state = [
            table.load(
                {n.removeprefix(f"{i}/"): a for n, a in arrays.items() if n.startswith(f"{i}/")}
            )
            for i, table in enumerate(self.tables)
        ]
        place = Place.reopened(once_of(arrays), noise, "sketch", name.encode())
        return LiveHeavyHitters(self, state, place)


class LiveHeavyHitters:
    """A finder that is counting. Secret but for `published`.

    `HeavyHitters.open` or `HeavyTexts.open` makes one, and hands over `config`, `state` and the
    `place` of its noise.

    Raises:
        ValueError: weights are not one from 0 to `max_weight` per key, or a key has too many bits.
        TypeError: weights or keys are of a wrong type, or noise is of a kind that is not keyed.

    >>> import numpy as np
    >>> from streamveil.core.accounting import Budget
    >>> from streamveil.core.noise import SeededNoise
    >>> from streamveil.sketches import HeavyHitters
    >>> finder = HeavyHitters(bits=16, width=64, horizon=1000, clock="ticks",
    ...     protects=Neighbours(relation="event"), budget=Budget(epsilon=1, delta=1e-6))
    >>> live = finder.open(SeededNoise(1))
    >>> live.tick(np.array([3, 3, 5], np.uint32))
    >>> live
    LiveHeavyHitters(time=1)
    """

    def __init__(self, config: Levels, state: list[Any], place: Place) -> None:
        self.config = config
        self._state, self._place = state, place
        self._keys = [key_schedule(place.draws(level)) for level in range(len(state))]

    def __repr__(self) -> str:
        return f"LiveHeavyHitters(time={int(self._state[0].clock[0])})"

    def update(self, keys: Any, weights: Array | None = None) -> None:
        """Counts keys, in order. On the arrival clock each takes one unit of time."""
        config = self.config
        items = config.items(keys)
        amounts = weight_words(weights, len(items), config.max_weight)
        for number, words, each in config.counted(items, amounts):
            config.tables[number].count(self._state[number], words, each, self._keys[number])

    def tick(self, keys: Any = None, ticks: int = 1) -> None:
        """Counts keys, if any, and ends the tick: what falls due is pushed."""
        if keys is not None:
            self.update(keys)
        for table, state, key in zip(self.config.tables, self._state, self._keys, strict=True):
            table.tick(state, ticks, key)

    def flush(self) -> None:
        """Pushes every column of every level now; at most `flushes` times, at public times."""
        for table, state, key in zip(self.config.tables, self._state, self._keys, strict=True):
            table.flush(state, key)

    def published(self) -> Any:
        """What is public now: a `PublishedHierarchy`, or `PublishedTexts`."""
        tables = zip(self.config.tables, self._state, strict=True)
        return self.config.shown(tuple(values(table.published(state)) for table, state in tables))

    def save(self) -> Arrays:
        """The state, to be kept as secret as the data."""
        arrays = {
            f"{i}/{name}": array.copy()
            for i, state in enumerate(self._state)
            for name, array in save(state).items()
        }
        return {**arrays, **saved_once(self._place)}


def require_beam(k: int, beam: int) -> None:
    """Refuses a search for no keys, or one that keeps too few or too many prefixes."""
    if not 1 <= k <= beam:
        raise ValueError(f"k must be at least 1 and the beam at least k, not {k} and {beam}")
    require_between(k, WIDEST_BEAM, beam=beam)
