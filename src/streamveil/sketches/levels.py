"""The common part of all sketches: one or several tables under one budget."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.counters.cells import CellCounter
from streamveil.core.noise import KeyedNoise, Noise, Place, once_of, require_place, saved_once
from streamveil.core.noise.bulk.keystream import key_schedule
from streamveil.core.noisy import values
from streamveil.errors import (
    HorizonError,
    PlanError,
    StoreError,
    require_between,
    require_text,
    require_with,
    whole,
)
from streamveil.sketches.hashing import Layout
from streamveil.sketches.keys import NULLS, Words, weight_words
from streamveil.sketches.privacy import Calibration, NoisePlan
from streamveil.sketches.published import PublishedSketch
from streamveil.sketches.schedule import PushSchedule
from streamveil.sketches.table import Arrays, SketchTable, cell_types, save
from streamveil.types import Array

BEAM, WIDEST_BEAM = 512, 2**20  # prefixes kept at each level


class LevelWords(NamedTuple):
    """The words of some keys that one table counts."""

    number: int  # of the table
    words: Words
    weights: Array  # one for each word; empty: all are 1


class Levels(Protocol):
    """The interface of sketches: tables under one budget, and how keys fall into them."""

    protects: Neighbours
    budget: Budget
    horizon: int | None
    width: int
    max_weight: int
    counter: Any  # the name of a `CellCounter`
    seed: int
    most_levels: int  # of any sketch of its kind, so that no two seeds share a hash
    calibration: Calibration = "analytic"
    opened_as: str = "heavy-hitters"  # a sketch without a name: part of its noise addresses

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """One layout per table."""
        ...

    def schedule_of(self, width: int) -> PushSchedule:
        """Push times of a table of `width` columns.

        Args:
            width: columns of the table, at least 1.

        Raises:
            PlanError: an argument is beyond its range.
        """
        ...

    def items(self, keys: Any) -> Any:
        """Keys as they are counted.

        Args:
            keys: integers or texts, as many as are counted.

        Raises:
            PlanError: this sketch cannot count a key.
        """
        ...

    def counted(self, items: Any, weights: Array) -> Iterator[LevelWords]:
        """The words of some keys that the tables count; each key at most once in each table.

        Args:
            items: what `items` returned.
            weights: how often each counts, at least 0; empty: once.
        """
        ...

    def shown(self, levels: tuple[PublishedSketch, ...]) -> Any:
        """The published tables as an object to ask: a hierarchy, texts, or the one table.

        Args:
            levels: the published tables, in order.
        """
        ...

    @property
    def parts(self) -> tuple[int, ...]:
        """The number that a key adds to a cell of each table, see `NoisePlan`; empty: 1 to each."""
        return ()

    def address(self, number: int) -> tuple[int, ...]:
        """The part of a table's name and noise addresses that only this table has.

        Args:
            number: of the table, from 0.
        """
        return (number,)

    def layout_of(self, family: Any, depth: int, width: int, number: int) -> Layout:
        """The layout of one table, with hashes of its own.

        Args:
            family: of its hash functions: 'multiply' or 'identity'.
            depth: rows, 1 to 64.
            width: columns of the table, at least 1.
            number: of the table, from 0.

        Raises:
            PlanError: an argument is beyond its range.
        """
        seed = self.seed * self.most_levels + number
        return Layout(kind="count-min", depth=depth, width=width, family=family, seed=seed)

    @cached_property
    def noise(self) -> NoisePlan:
        """Sensitivity and noise scale of all tables together."""
        schedule = self.schedule_of(self.width)
        types = cell_types(schedule, self.max_weight)
        return NoisePlan(
            layouts=self.layouts, counter=CellCounter(self.counter, schedule.pushes),
            protects=self.protects, budget=self.budget, max_weight=self.max_weight,
            calibration=self.calibration, word_bytes=np.dtype(types.noise).itemsize,
            parts=self.parts,
        )  # fmt: skip

    @cached_property
    def tables(self) -> tuple[SketchTable, ...]:
        """The cells of every table."""
        schedules = [self.schedule_of(layout.width) for layout in self.layouts]
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
        """The guarantee for everything ever published."""
        return Guarantee(self.protects, self.noise.loss, self.horizon)

    def open(self, noise: Noise | None = None, name: str = "") -> LiveSketch:
        """An empty sketch that counts. Without `noise`, it has a fresh key from the system.

        Args:
            noise: where its draws come from.
            name: of the stream; two under one noise need two names.

        Raises:
            PlanError: the noise is no `Noise`, or the name no text.
        """
        state = [table.init() for table in self.tables]
        place = Place.opened(KeyedNoise.fresh() if noise is None else noise, *self._name(name))
        return LiveSketch(self, state, place)

    def resume(self, arrays: Arrays, noise: Noise, name: str = "") -> LiveSketch:
        """The sketch that `LiveSketch.save` saved, under the same noise and name.

        Args:
            arrays: what `LiveSketch.save` returned.
            noise: the one it was opened with.
            name: the one it was opened with.

        Raises:
            PlanError: the noise is no `Noise`.
            StoreError: the arrays are of another sketch, or of another kind of noise.
        """
        once = once_of(arrays, self)
        state = []
        for number, table in enumerate(self.tables):
            own = prefix(self, number)
            mine = {n.removeprefix(own): array for n, array in arrays.items() if n.startswith(own)}
            state.append(table.load(mine))
        place = Place.reopened(once, noise, *self._name(name))
        return LiveSketch(self, state, place)

    def _name(self, name: str) -> tuple[str, bytes]:
        require_text(name=name)
        return "sketch", (name or self.opened_as).encode()


def prefix(config: Levels, number: int) -> str:
    """The beginning of the names of a table's saved arrays."""
    return "".join(f"{part}/" for part in config.address(number))


class LiveSketch:
    """A sketch that is counting. All but `published` is secret.

    `LazySketch.open`, `HeavyHitters.open` or `HeavyTexts.open` makes one, and hands over `config`,
    `state` and the `place` of its noise.

    Raises:
        PlanError: weights are not one from 0 to `max_weight` per key, or a key has too many bits.
        PlanError: weights or keys are of a wrong type, or noise is of a kind that is not keyed.
        StoreError: an earlier call was cut off, as by Ctrl-C: some tables count what others lack.

    >>> from streamveil.core.noise import SeededNoise
    >>> from streamveil.sketches import LazySketch
    >>> sketch = LazySketch(kind="count-min", width=64, horizon=1000, clock="ticks",
    ...     protects=Neighbours(relation="event"), budget=Budget(epsilon=1, delta=1e-6))
    >>> live = sketch.open(SeededNoise(1))
    >>> live.tick([3, 3, 5])
    >>> live, live.published().time
    (LiveSketch(time=1), 1)
    """

    def __init__(self, config: Levels, state: list[Any], place: Place) -> None:
        require_with("config", config, "tables", "a sketch, whose open() makes live sketches")
        self.config = config
        self._state, self._place = state, require_place(place)
        self._is_cut_off = False
        self._keys = [key_schedule(place.draws(*config.address(i))) for i in range(len(state))]

    def __repr__(self) -> str:
        return f"LiveSketch(time={int(self._state[0].clock[0])})"

    def update(self, keys: Any, weights: Array | None = None) -> None:
        """Counts keys, in order. On the arrival clock each takes one unit of time.

        Args:
            keys: integers or texts, one for each arrival.
            weights: how often each counts, at least 0; empty: once.

        Raises:
            PlanError: a key is missing, a weight is beyond `max_weight`, or there is not one weight
                per key.
        """
        given = self._given(keys, weights)
        with self._in_one_go():
            self._count(*given)

    def _given(self, keys: Any, weights: Array | None = None) -> tuple[Any, Array]:
        """Keys and weights as they are counted."""
        if np.ma.is_masked(keys):
            raise PlanError(NULLS)
        items = self.config.items(keys)
        return items, weight_words(weights, len(items), self.config.max_weight)

    def _count(self, items: Any, amounts: Array) -> None:
        config = self.config
        for number, words, each in config.counted(items, amounts):
            wide = words.astype(np.uint64, copy=False)  # hash alike: loops are compiled for one
            config.tables[number].count(self._state[number], wide, each, self._keys[number])

    def tick(self, keys: Any = None, ticks: int = 1) -> None:
        """Counts keys, if any, and ends the tick: columns that fall due are pushed.

        Args:
            keys: integers or texts that arrive before the tick ends.
            ticks: how many pass, at least 1.

        Raises:
            PlanError: this sketch cannot count a key.
        """
        given = None if keys is None else self._given(keys)
        with self._in_one_go():
            self.config.tables[0].time_after(self._state[0], ticks)  # refused before keys count
            if given is not None:
                self._count(*given)
            for table, state, key in zip(self.config.tables, self._state, self._keys, strict=True):
                table.tick(state, ticks, key)

    def flush(self) -> None:
        """Pushes every column now; at most `flushes` times, at public times."""
        with self._in_one_go():
            for table, state, key in zip(self.config.tables, self._state, self._keys, strict=True):
                table.flush(state, key)

    @contextmanager
    def _in_one_go(self) -> Iterator[None]:
        """A block that all tables take part in; where it was cut off, only some have."""
        with self._place.drawn.turn():
            if self._is_cut_off:
                raise StoreError(
                    "this sketch was cut off while it counted, by an interrupt or an error: some of"
                    " its tables count keys that others lack.\n"
                    "  to fix  resume() what was saved before, and count exactly the same"
                    " keys again: other keys would get the same noise; what it shows stays"
                )
            self._is_cut_off = True
            try:
                yield
            except (PlanError, HorizonError):  # it was refused: nothing has changed
                self._is_cut_off = False
                raise
            self._is_cut_off = False

    def published(self) -> Any:
        """The tables that are public now; see `shown` of its configuration."""
        tables = zip(self.config.tables, self._state, strict=True)
        with self._place.drawn.turn():
            found = tuple(values(table.published(state)) for table, state in tables)
        return self.config.shown(found)

    def save(self) -> Arrays:
        """The state; keep it as secret as the data."""
        with self._in_one_go():
            arrays = {
                prefix(self.config, number) + name: array.copy()
                for number, state in enumerate(self._state)
                for name, array in save(state).items()
            }
        return {**arrays, **saved_once(self._place, self.config)}


def require_search(k: int, beam: int, threshold: float | None) -> None:
    """Refuses a search for no keys, with too few or too many prefixes, or a strange threshold."""
    if not 1 <= whole("k", k) <= whole("beam", beam):
        raise PlanError(f"k must be at least 1 and the beam at least k, not {k} and {beam}")
    require_between(k, WIDEST_BEAM, beam=beam)
    if threshold is not None:
        require_between(-math.inf, math.inf, threshold=threshold)
