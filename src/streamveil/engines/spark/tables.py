"""A changing table divided for Spark: many tasks read rows, and one holds the table.

    rows -> read (stateless) -> one task: match records, answer and release

A row travels as 25 bytes: its operation, its record's fingerprint, its point. Matching follows the
order of the source, so one task does it: the last task processes all rows of a step and holds all
living records, as the embedded engine does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.changing_tables.operator import REASONS, ChangingTable, TableState
from streamveil.core.noise import Noise
from streamveil.engines.spark import tasks
from streamveil.engines.spark.shuffle import Rows, joined
from streamveil.engines.spark.versioned_state import Chain
from streamveil.types import Array

LAST = "key"  # the stage that releases; it has one shard
REJECTED = "rejected_"


def release_task(setup: tasks.Setup, step: int) -> tasks.Task:
    """All rows of a step to its release; writes the table's next version."""

    def task(batches: tasks.Batches) -> tasks.Batches:
        operator, noise = setup.operator.open(), setup.keys()
        for shard, pieces in tasks.received(tasks.alone(setup), batches):
            with table_shard(operator, setup, shard, noise).open(step - 1) as held:
                delta = delta_of(joined(pieces))
                operator.apply(held.state, delta)
                releases = operator.release(held.state, step, noise)
                report = held.commit(delta, counted(operator, held.state))
            yield tasks.packed(releases, tasks.reported([*(p.facts for p in pieces), report]))

    return task


def counted(operator: ChangingTable, state: TableState) -> dict[str, int]:
    """The table's counters without rejected rows, which are counted when they are read."""
    counters = operator.counters(state)
    return {name: n for name, n in counters.items() if not name.startswith(REJECTED)}


def table_shard(operator: ChangingTable, setup: tasks.Setup, shard: int, noise: Noise) -> Chain:
    """The table: a step's delta is its rows, and a release is a part of the step."""

    def replay(state: Any, delta: dict[str, Array], step: int) -> None:
        operator.apply(state, delta)
        operator.release(state, step, noise)

    return Chain(setup.state, LAST, shard, tasks.from_saved(operator), operator.save, replay)


def read_rows(
    operator: ChangingTable, rows: pa.Table, _step: int, noise: Noise, _shards: int
) -> tuple[list[Rows], dict[str, int]]:
    """The operation of each usable row, and counts of rejected rows by reason."""
    signs, ids, labels, rejected = operator.read(rows, noise)
    reject_counts = {
        f"{REJECTED}{why}": int(n) for why, n in zip(REASONS, rejected, strict=True) if n
    }
    return [Rows({"signs": signs, "ids": ids, "labels": labels})], reject_counts


read_task = tasks.admitting(read_rows)  # all rows go to the one shard


def delta_of(rows: Rows | None) -> dict[str, Array]:
    """The operations of a step's rows, in the order of the source, as the embedded engine logs."""
    none = {"rejected": np.zeros(len(REASONS), np.int64)}  # reported when they were read
    if rows is not None:
        return rows.columns | none
    signs, ids, labels = np.zeros(0, np.int8), np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
    return {"signs": signs, "ids": ids, "labels": labels, **none}
