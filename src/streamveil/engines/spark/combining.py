"""A unit's rows combined per group before bounding, cut for Spark: in the unit's own shard.

    rows -> by unit (stateless) -> combine, admit and bound -> by key: gather and release

Combining needs all rows of a unit at once, in the order of the source, and no rows of other units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamveil.core.noise import Noise
from streamveil.dataflow import NOT_FINITE, count
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.rows import fingerprints
from streamveil.engines.spark import stages, tasks
from streamveil.engines.spark.shuffle import Piece, Rows
from streamveil.expressions import compile_unit
from streamveil.plan import Plan
from streamveil.plan.combine import combine_rows

CELL = "arrow"  # rows of a piece as an Arrow stream


@dataclass(frozen=True)
class Combining:
    """The plan whose rows are combined. It travels with the tasks and holds no secret."""

    plan: Plan

    def split_task(self, setup: tasks.Setup, step: int) -> tasks.Task:
        """Splits to raw rows by unit shard."""

        def task(batches: tasks.Batches) -> tasks.Batches:
            noise = setup.keys()
            for place, rows, rejected in tasks.arriving(setup, batches, step):
                by_unit = self.split(rows, noise, setup.shards)
                yield tasks.sent(setup, place, by_unit, {"reject_counts": rejected})

        return task

    def bound_task(self, setup: tasks.Setup, step: int) -> tasks.Task:
        """Raw rows of unit shards to combined rows that count; writes the next versions."""

        def task(batches: tasks.Batches) -> tasks.Batches:
            operator, noise = setup.operator.open(), setup.keys()

            def ready(pieces: list[Piece]) -> list[Piece]:
                return self.combined(operator, pieces, step, noise)

            yield from tasks.bound_task(setup, step, ready)(batches)

        return task

    def split(self, rows: pa.Table, noise: Noise, shards: int) -> list[Rows]:
        """Whole rows by unit, in order."""
        units = compile_unit(self.plan.unit, rows.schema)(rows)
        home = fingerprints(units, noise.derive("group-by/units")) % np.uint64(shards)
        return [carried(rows.filter(pa.array(home == shard))) for shard in range(shards)]

    def combined(
        self, operator: GroupBy, pieces: list[Piece], step: int, noise: Noise
    ) -> list[Piece]:
        """The combined and admitted rows of one shard as one piece; facts are unchanged."""
        facts = [Piece(p.place, None, p.facts) for p in pieces]
        ordered = sorted((p for p in pieces if p.rows is not None), key=lambda p: p.place)
        if not ordered:
            return facts
        table, unusable = combine_rows(self.plan, pa.concat_tables(read(p) for p in ordered))
        (rows,), reject_counts = stages.admit(operator, table, step, noise, 1)
        count(reject_counts, {NOT_FINITE: unusable.num_rows})
        return [*facts, Piece(0, rows, {"rows": table.num_rows, "reject_counts": reject_counts})]


def carried(table: pa.Table) -> Rows:
    """Whole rows as the bytes of an Arrow stream; no bytes for no rows."""
    if not table.num_rows:
        return Rows({CELL: np.zeros(0, np.uint8)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Rows({CELL: np.frombuffer(sink.getvalue(), np.uint8)})


def read(piece: Piece) -> pa.Table:
    """The inverse of `carried`."""
    assert piece.rows is not None  # noqa: S101  (asked for such pieces only)
    return pa.ipc.open_stream(pa.py_buffer(piece.rows[CELL])).read_all()
