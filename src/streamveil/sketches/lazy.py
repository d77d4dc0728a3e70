"""Private sketches under continual observation: lazy (a few columns at a time) and punctual."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.counters.cell_kernels import Tables
from streamveil.core.counters.cells import CellCounter
from streamveil.core.noise import (
    ADDRESS,
    KeyedNoise,
    Noise,
    Place,
    once_of,
    require_place,
    saved_once,
)
from streamveil.core.noise.bulk.keystream import key_schedule
from streamveil.core.noisy import values
from streamveil.errors import require_with
from streamveil.sketches.hashing import Kind, Layout
from streamveil.sketches.keys import Keys, key_words, weight_words
from streamveil.sketches.privacy import Calibration, NoisePlan
from streamveil.sketches.published import PublishedSketch
from streamveil.sketches.schedule import ClockName, PushSchedule
from streamveil.sketches.table import Arrays, SketchTable, cell_types, save
from streamveil.types import Array

ROUNDS = 256  # rounds in a horizon when the round is left to us: noise and lag are both small there
BLOCK = 1024


@dataclass(frozen=True, kw_only=True)
class LazySketch:
    """Frequencies of any key at any time, in bounded memory, under one budget for the whole stream.

    Algorithm: LazySketch (Holland 2025, arXiv:2507.03361v4): keys are counted in a linear sketch
        and a rolling block of columns is pushed into continual counters, whose totals are public.
        Ours differs in the counter inside a cell (buffered Toeplitz by default), in rounds whose
        length is chosen apart from the width, in one draw per push, and in the calibration. The
        paper's form is counter='tree', round=width, block=1, calibration='textbook'.
    Protects: `protects.relation` and at most `protects.bound` items per unit; see `NoisePlan`. The
        caller enforces the bound, and with the arrival clock puts weight 0 in place of what it
        drops, so that no other item's place in time moves.
    Guarantee: `guarantee`, computed from sigma; covers everything ever published.
    Proof: `NoisePlan`.
    Error: `PublishedSketch.error_bound`; noise `PublishedSketch.sd`, lag at most a round.
    Memory: `nbytes`: per cell 10 bytes with BLT-1 on the arrival clock (rounds below 2^15, stream
        below 2^30), 6 with tree-prf.
    Numerics: integers throughout; noise is exact up to `distance`, which is charged to delta.

    Raises:
        ValueError: a setting is out of its range.
        HorizonError: keys after the last of `horizon`, or more pushes than a sketch without one can
            hold.
        StoreError: `resume` is given arrays of another configuration.

    >>> from streamveil.core.noise import SeededNoise
    >>> sketch = LazySketch(kind="count-min", width=500, horizon=2**16,
    ...     protects=Neighbours(relation="event-change"), budget=Budget(epsilon=1, delta=1e-6))
    >>> live = sketch.open(SeededNoise(1))
    >>> live.update(np.repeat([3, 4], [40_000, 20_000]))
    >>> [abs(round(x / 1000)) for x in live.published().estimate([3, 4, 5])]
    [40, 20, 0]
    """

    kind: Kind
    width: int  # columns of the table, 1 to 2**30
    horizon: int | None  # arrivals or ticks covered, >= 1; None: unknown
    protects: Neighbours
    budget: Budget
    depth: int = 3  # rows of the table, >= 1
    clock: ClockName = "arrivals"
    round: int | None = None  # arrivals or ticks between two pushes of a column, >= 1
    block: int | None = None  # columns pushed together, >= 1
    counter: Literal["blt-1", "blt-2", "tree", "tree-prf"] = "blt-1"
    flushes: int = 0  # further pushes of everything, at public times, >= 0
    max_weight: int = 1  # of one item, >= 1
    seed: int = 0  # public, any whole number
    calibration: Calibration = "analytic"

    def __post_init__(self) -> None:
        _ = self.layout
        warn_about_delta(self.budget, self.schedule)
        _ = self.noise.loss, self.table  # every setting is checked now

    @cached_property
    def layout(self) -> Layout:
        """Shape and hash functions."""
        return Layout(kind=self.kind, depth=self.depth, width=self.width, seed=self.seed)

    @cached_property
    def schedule(self) -> PushSchedule:
        """Push times."""
        return make_schedule(self)

    @cached_property
    def cell(self) -> CellCounter:
        """The counter of every cell."""
        return CellCounter(self.counter, self.schedule.pushes)

    @cached_property
    def noise(self) -> NoisePlan:
        """Sensitivity and noise scale."""
        types = cell_types(self.schedule, self.max_weight)
        return NoisePlan(
            layouts=(self.layout,), counter=self.cell, protects=self.protects, budget=self.budget,
            max_weight=self.max_weight, calibration=self.calibration,
            word_bytes=np.dtype(types.noise).itemsize,
        )  # fmt: skip

    @cached_property
    def table(self) -> SketchTable:
        """The cells."""
        return SketchTable(
            layout=self.layout, schedule=self.schedule, counter=self.cell,
            types=cell_types(self.schedule, self.max_weight), sigma=self.noise.sigma,
            bits=self.noise.bits, max_weight=self.max_weight,
        )  # fmt: skip

    @property
    def sigma(self) -> float:
        """Scale of the noise of one push."""
        return self.noise.sigma

    @property
    def nbytes(self) -> int:
        """Bytes of all cells."""
        return self.table.nbytes

    @property
    def guarantee(self) -> Guarantee:
        """What everything ever published can reveal."""
        return Guarantee(self.protects, self.noise.loss, self.horizon)

    def open(self, noise: Noise | None = None, name: str = "sketch") -> LiveSketch:
        """An empty running sketch. Without `noise`, under a fresh key of the operating system."""
        place = Place.opened(noise or KeyedNoise.fresh(), "sketch", name.encode())
        return LiveSketch(self, self.table.init(), place)

    def resume(self, arrays: Arrays, noise: Noise, name: str = "sketch") -> LiveSketch:
        """A running sketch from `LiveSketch.save`, under the same noise and name."""
        place = Place.reopened(once_of(arrays), noise, "sketch", name.encode())
        tables = {name: array for name, array in arrays.items() if name != ADDRESS}
        return LiveSketch(self, self.table.load(tables), place)


class LiveSketch:
    """A sketch that is counting. Secret but for `published`.

    `LazySketch.open` makes one, and hands over `config`, `tables` and the `place` of its noise.

    Raises:
        ValueError: weights are not one from 0 to `max_weight` per key.
        TypeError: weights or keys are of a wrong type, or noise is of a kind that is not keyed.

    >>> from streamveil.core.noise import SeededNoise
    >>> sketch = LazySketch(kind="count-min", width=64, horizon=1000, clock="ticks",
    ...     protects=Neighbours(relation="event"), budget=Budget(epsilon=1, delta=1e-6))
    >>> live = sketch.open(SeededNoise(1))
    >>> live.tick([3, 3, 5])
    >>> live, live.published().time
    (LiveSketch(time=1), 1)
    """

    def __init__(self, config: LazySketch, tables: Tables, place: Place) -> None:
        require_with("config", config, "table", "a LazySketch, whose open() makes live sketches")
        self.config = config
        self._tables, self._place = tables, require_place(place)
        self._keys = key_schedule(place.draws())

    def __repr__(self) -> str:
        return f"LiveSketch(time={int(self._tables.clock[0])})"

    def update(self, keys: Keys, weights: Array | None = None) -> None:
        """Counts keys, in order. On the arrival clock each takes one unit of time."""
        words = key_words(keys)
        amounts = weight_words(weights, len(words), self.config.max_weight)
        self.config.table.count(self._tables, words, amounts, self._keys)

    def tick(self, keys: Keys | None = None, ticks: int = 1) -> None:
        """Counts keys, if any, and ends the tick: what falls due is pushed."""
        if keys is not None:
            self.update(keys)
        self.config.table.tick(self._tables, ticks, self._keys)

    def flush(self) -> None:
        """Pushes every column now; at most `flushes` times, at public times."""
        self.config.table.flush(self._tables, self._keys)

    def published(self) -> PublishedSketch:
        """What is public now."""
        return values(self.config.table.published(self._tables))

    def save(self) -> Arrays:
        """The state, to be kept as secret as the data."""
        arrays = {name: array.copy() for name, array in save(self._tables).items()}
        return {**arrays, **saved_once(self._place)}


def make_schedule(config: Any) -> PushSchedule:
    """The schedule of a sketch's fields; defaults: ROUNDS rounds per horizon, a tick each."""
    length = config.round
    if length is None:
        if config.clock == "ticks":
            length = 1
        elif config.horizon is None:
            raise ValueError("an unknown horizon on the arrival clock needs a round length")
        else:
            length = max(1, config.horizon // ROUNDS)
    return PushSchedule(
        width=config.width, clock=config.clock, round=length,
        block=min(config.width, BLOCK) if config.block is None else config.block,
        horizon=config.horizon, flushes=config.flushes,
    )  # fmt: skip


def warn_about_delta(budget: Budget, schedule: PushSchedule) -> None:
    """A delta of 1/T or more allows publishing whole records."""
    horizon = schedule.horizon if schedule.clock == "arrivals" else None
    if horizon is not None and budget.delta is not None and budget.delta * horizon >= 1:
        warnings.warn(
            f"delta = {float(budget.delta):g} is at least 1 / {horizon}: a mechanism that"
            " publishes a record outright would satisfy it; use a much smaller delta",
            stacklevel=4,
        )
