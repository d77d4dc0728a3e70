"""One table of private cells under a schedule: pure functions of arrays, and what it publishes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from streamveil.compiled import njit
from streamveil.core.accounting import take_numbers
from streamveil.core.counters.cell_kernels import (
    LARGEST_SMALL,
    Law,
    ReleasedCells,
    Tables,
    advance,
    flatten,
    next_push,
    push_all,
    push_block,
    released,
)
from streamveil.core.counters.cells import LONGEST, CellCounter
from streamveil.core.noise.bulk.gaussian import new_scratch
from streamveil.core.noisy import Noisy, post_process, public
from streamveil.errors import HorizonError, PlanError, StoreError, whole
from streamveil.sketches.cell_noise import row_norm
from streamveil.sketches.hashing import Layout
from streamveil.sketches.keys import Words
from streamveil.sketches.linear import CHUNK, add_chunks, add_keys, add_weighted
from streamveil.sketches.published import PublishedSketch
from streamveil.sketches.schedule import PushSchedule
from streamveil.types import Array, Int32, UInt64


@njit(cache=True)
def count(tables: Tables, law: Law, words: Words, weights: Int32[Array, " keys"]) -> None:
    """Adds keys to the pending counts."""
    if len(weights):
        add_weighted(words, weights, law.code, law.factors, tables.pending)
    else:
        add_keys(words, law.code, law.factors, tables.pending)


@njit(cache=True)
def arrive(
    tables: Tables, law: Law, keys: Array, words: Words, weights: Int32[Array, " keys"]
) -> None:
    """Adds keys, each one tick of the clock, and pushes columns on the way."""
    flat, scratch = flatten(tables), new_scratch()
    pending, clock, blocks = tables.pending, tables.clock, len(tables.pushes)
    places = np.empty((len(pending), CHUNK), np.uint32)
    code, factors = law.code, law.factors
    at = 0
    due = next_push(tables, law)
    while at < len(words):
        take = min(due - clock[0], len(words) - at)
        if len(weights):
            add_weighted(words[at : at + take], weights[at : at + take], code, factors, pending)
        else:
            add_chunks(words[at : at + take], code, factors, pending, places)
        clock[0] += take
        at += take
        while due == clock[0]:
            push_block(tables, flat, law, keys, scratch, clock[1] % blocks)
            clock[1] += 1
            due = next_push(tables, law)


Arrays = dict[str, Array]
LARGEST_DRAW = 9.5  # standard deviations, of 64-bit uniforms
COMPACT = 2**30  # totals below this fit 32-bit cells with room for the noise


@dataclass(frozen=True, kw_only=True)
class CellTypes:
    """Integer types of pending counts, noise and shown counts."""

    pending: type[Any]
    noise: type[Any]
    shown: type[Any]

    @property
    def fixed_bytes(self) -> int:
        """Bytes of a cell without its noise state."""
        return np.dtype(self.pending).itemsize + np.dtype(self.shown).itemsize


def cell_types(schedule: PushSchedule, max_weight: int) -> CellTypes:
    """The narrowest types that public bounds prove wide enough.

    With the arrival clock a round holds at most `round` items and the stream at most `horizon`;
    with ticks any number may arrive, so pending and shown counts take 64 bits.
    """
    noise = np.int64 if schedule.horizon is None else np.int32
    if schedule.clock == "ticks" or schedule.horizon is None:
        return CellTypes(pending=np.int64, noise=noise, shown=np.int64)
    if schedule.horizon * max_weight >= COMPACT:
        return CellTypes(pending=np.int64, noise=noise, shown=np.int64)
    small = schedule.round * max_weight < 2**15
    return CellTypes(pending=np.int16 if small else np.int32, noise=noise, shown=np.int32)


@dataclass(frozen=True, kw_only=True)
class SketchTable:
    """A table of cells with a layout, a schedule, a counter and a noise scale."""

    layout: Layout
    schedule: PushSchedule
    counter: CellCounter
    types: CellTypes
    sigma: float
    bits: int  # binary places of a buffer
    max_weight: int = 1  # of one item

    def __post_init__(self) -> None:
        take_numbers(self)
        pushes = (self.counter.pushes or LONGEST) + 1
        if pushes * self.layout.cells >= 2**57:
            raise PlanError("this many cells and pushes exceed the keystream of one sketch")

    def init(self) -> Tables:
        """Nothing counted, nothing pushed."""
        depth, width, blocks = self.layout.depth, self.layout.width, self.schedule.blocks
        return Tables(
            np.zeros((depth, width), self.types.pending),
            np.zeros((self.counter.words, depth, width), self.types.noise),
            np.zeros((depth, width), self.types.shown),
            np.zeros(blocks, np.int64),
            np.zeros(blocks, np.int64),
            np.zeros(3, np.int64),
        )

    @cached_property
    def law(self) -> Law:
        """Numbers for the compiled loops."""
        unit = 2.0**self.bits
        omega, theta = (
            (np.zeros(0), np.zeros(0)) if self.counter.is_tree else self.counter.coefficients
        )
        return Law(
            self.counter.code,
            self.layout.code,
            self.layout.factors,
            self.schedule.block,
            self.schedule.round,
            self.counter.epoch_factors * self.sigma,
            omega / unit,
            theta,
            self.bits,
            self._decay(),
            unit,
            float(LARGEST_SMALL) if self.types.noise is np.int32 else 2.0**52,
        )

    def _decay(self) -> int:
        """`Law.decay`: set if there is one buffer and 32 bits hold its next value."""
        if self.counter.name != "blt-1" or self.types.noise is not np.int32:
            return 0
        omega, theta = (float(values[0]) for values in self.counter.coefficients)
        largest = float(LARGEST_SMALL)
        noise = (LARGEST_DRAW * self.sigma + 1) * 2.0**self.bits + omega * largest
        return round((1 - theta) * 2**32) if theta * largest + noise < 2**31 - 1 else 0

    @property
    def cell_bytes(self) -> int:
        """Bytes of state per cell."""
        return self.types.fixed_bytes + self.counter.words * np.dtype(self.types.noise).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all cells."""
        return self.layout.cells * self.cell_bytes

    def count(
        self, tables: Tables, words: Words, weights: Array, keys: UInt64[Array, "r 8"]
    ) -> None:
        """Adds keys; with the arrival clock time passes and columns are pushed on the way."""
        self._check_words(words)
        if self.schedule.clock == "ticks":
            count(tables, self.law, words, weights)
            return
        self._check_time(tables, int(tables.clock[0]) + len(words))
        arrive(tables, self.law, keys, words, weights)

    def time_after(self, tables: Tables, ticks: int) -> int:
        """The tick clock after `ticks` more; refuses negative ticks and time beyond the end."""
        if self.schedule.clock != "ticks":
            raise PlanError("with the arrival clock time passes by itself")
        if (ticks := whole("ticks", ticks)) < 0:
            raise PlanError(f"time does not run backwards: {ticks} ticks")
        time = int(tables.clock[0]) + ticks
        self._check_time(tables, time)
        return time

    def tick(self, tables: Tables, ticks: int, keys: UInt64[Array, "r 8"]) -> None:
        """Advances the tick clock."""
        advance(tables, self.law, keys, self.time_after(tables, ticks))

    def flush(self, tables: Tables, keys: UInt64[Array, "r 8"]) -> None:
        """Pushes every column now. The times of calls must not depend on the data."""
        if self.schedule.horizon is not None and tables.clock[2] >= self.schedule.flushes:
            raise HorizonError(self.schedule.flushes)
        if self.schedule.horizon is None and int(tables.pushes.max()) >= LONGEST:
            raise HorizonError(LONGEST)
        push_all(tables, self.law, keys)

    def _check_time(self, tables: Tables, time: int) -> None:
        horizon = self.schedule.horizon
        if horizon is not None and time > horizon:
            raise HorizonError(horizon)
        if horizon is None:
            left = LONGEST - int(tables.pushes.max())
            if time - int(tables.clock[0]) >= left * self.schedule.round:
                raise HorizonError(LONGEST)

    def _check_words(self, words: Words) -> None:
        limit = self.layout.width
        if self.layout.family == "identity" and len(words) and int(words.max()) >= limit:
            raise PlanError(f"every key of this table must be below {limit}")

    def published(self, tables: Tables) -> Noisy[PublishedSketch]:
        """A copy of what is public so far."""
        return post_process(SketchTable._snapshot, public(self), released(tables))

    def _snapshot(self, cells: ReleasedCells) -> PublishedSketch:
        """Post-processing: the released cells and the noise in them."""
        columns = np.arange(self.layout.width) // self.schedule.block
        pushes, at = np.unique(cells.pushes, return_inverse=True)
        sds = np.sqrt(self.sigma**2 + 1 / 12) * row_norm(self.counter, pushes)[at]
        return PublishedSketch(
            self.layout,
            cells.shown,
            cells.time,
            cells.pushed_at[columns],
            sds[columns],
            self.max_weight if self.schedule.clock == "arrivals" else None,
        )

    def load(self, arrays: Arrays) -> Tables:
        """Tables from saved arrays of exactly the expected shapes and types."""
        empty = self.init()
        for name, expected in empty._asdict().items():
            found = arrays.get(name)
            if found is None or found.shape != expected.shape or found.dtype != expected.dtype:
                raise StoreError(f"saved sketch: array '{name}' does not fit this configuration")
        return Tables(*(np.array(arrays[name]) for name in empty._fields))


def save(tables: Tables) -> Arrays:
    """The whole state as arrays. Secret: pending counts and noise are in it."""
    return dict(tables._asdict())
