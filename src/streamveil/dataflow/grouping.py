"""What the stages of a group-by and its release metadata read of the operator."""

# ruff: noqa: D102  (the members of `Grouping` are described in `group_by.GroupBy`)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch
from streamveil.calendars.cells import Cells
from streamveil.core.accounting.neighbours import Neighbours
from streamveil.core.mechanism import Look
from streamveil.core.noise.keyed import Noise
from streamveil.core.sensitivity import Bounds, Lane
from streamveil.dataflow.bounding import Firsts, Passed, UnitRows, UnitTable
from streamveil.dataflow.keys import Types
from streamveil.dataflow.outputs import Output
from streamveil.dataflow.release import AggregationPlan, WindowState
from streamveil.dataflow.rows import Prepared, RowProgram, prepare_batch
from streamveil.dataflow.state import BatchScratch, State
from streamveil.dataflow.windows import Schedule
from streamveil.types import Array, Bool, Int64, UInt64

Tree = tuple[int, Lane, int]  # its first lane, a lane of it, its levels


class Grouping(Protocol):
    """A group-by (`group_by.GroupBy` is the one there is), as its stages see it."""

    @property
    def job(self) -> str: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def periods(self) -> Cells | None: ...
    @property
    def separate(self) -> bool: ...
    @property
    def bounds(self) -> Bounds: ...
    @property
    def key_names(self) -> tuple[str, ...]: ...
    @property
    def public(self) -> tuple[tuple[Any, ...], ...] | None: ...
    @property
    def aggregation(self) -> AggregationPlan: ...
    @property
    def trees(self) -> tuple[Tree, ...]: ...
    @property
    def outputs(self) -> tuple[Output, ...]: ...
    @property
    def confidence(self) -> float: ...
    @property
    def protects(self) -> Neighbours: ...
    @property
    def max_units(self) -> int: ...
    @property
    def look(self) -> Look | None: ...
    @property
    def omitted(self) -> tuple[str, ...]: ...
    @property
    def true_intervals(self) -> bool: ...
    @property
    def plain_lanes(self) -> tuple[Lane, ...]: ...
    @property
    def placed_trees(self) -> tuple[Tree, ...]: ...
    @property
    def lane_places(self) -> tuple[tuple[Array, Array, Array], Array]: ...
    @property
    def distinct_lanes(self) -> tuple[int, ...]: ...
    @property
    def firsts(self) -> Firsts: ...
    def first_bit(self, place: int) -> int: ...
    def key_types(self, schema: pa.Schema) -> Types: ...
    def blank_window(self, names: UInt64[Array, "keys 2"], keys: pa.Array) -> WindowState: ...
    def program(self, schema: pa.Schema) -> RowProgram: ...
    def unit_table(self, state: State, period: int, unit: int) -> UnitTable | None: ...
    def bound(self, state: State, period: int, rows: UnitRows) -> Passed: ...
    def in_open_period(
        self, periods: Int64[Array, " pairs"], step: int
    ) -> Bool[Array, " pairs"]: ...
    def is_public(
        self, names: UInt64[Array, "rows 2"], types: Types, name_key: bytes
    ) -> Bool[Array, " rows"]: ...
    def make_windows(
        self, state: State, windows: Int64[Array, " pairs"], name_key: bytes
    ) -> dict[str, Array]: ...


# ---- preparing a micro-batch without the state

LARGE = 1 << 14  # rows from which on a thread of its own is worth its while


def row_stage(operator: Grouping, batch: Batch, noise: Noise, scratch: BatchScratch) -> Prepared:
    """A function of the rows and of public settings: it depends on no state."""
    program, most = operator.program(batch.rows.schema), batch.rows.num_rows
    room, unit_key = scratch.take("unit", most, np.uint64), noise.derive("group-by/units")
    prepared = prepare_batch(program, batch, unit_key, names_key(noise), room)
    if batch.prepared is None:
        prepared.room = scratch.take("names", 2 * most, np.uint64)
    return prepared


def names_key(noise: Noise) -> bytes:
    """The key under which groups are named."""
    return noise.derive("group-by/keys")


def asked_keys(operator: Grouping, prepared: Prepared) -> Array:
    """What tells the key of every row: the integer that it is, or else its name (two words)."""
    needs_names = operator.public is not None or operator.aggregation.restarts
    if needs_names or prepared.plain is None:
        return prepared.names
    return prepared.plain


def ahead(operator: Grouping, batches: Iterator[Batch], noise: Noise) -> Iterator[Batch]:
    """The same micro-batches, large ones with their row stage done.

    Whoever takes one does not use the one before it any more: each lies in the memory of the next
    but one, as in `runtime.prefetch`.
    """
    rooms = cycle((BatchScratch(), BatchScratch()))
    for batch in batches:
        made = batch
        if batch.block is None and batch.reject_notes is None and batch.rows.num_rows >= LARGE:
            prepared = row_stage(operator, batch, noise, next(rooms))
            asked_keys(operator, prepared)  # kept with it
            made = replace(batch, prepared=prepared)
            del prepared
        del batch  # or it would be here while the next one is made
        yield made
        del made
