"""A changing table cut for Spark: rows are read by many tasks, and one holds the table.

    rows -> read (stateless) -> one task: match records, answer and release

What travels is 25 bytes a row: what it does, its record's fingerprint, its point. Matching goes by
the order of the source, so it happens in one place: the last task works through all rows of a step
and holds all living records, as the embedded engine does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.changing_tables.operator import REASONS, ChangingTable, TableState
from streamveil.core.noise import Noise
from streamveil.engines.spark import tasks
from streamveil.engines.spark.shuffle import Rows, joined, total
from streamveil.engines.spark.versioned_state import Chain
from streamveil.types import Array

LAST = "key"  # the stage that releases; it has one shard
REJECTED = "rejected_"


def read_task(setup: tasks.Setup, step: int) -> tasks.Task:
    """Splits to what their rows do."""

    def task(batches: tasks.Batches) -> tasks.Batches:
        operator, noise = setup.operator.open(), setup.keys()
        for place, rows, rejected in tasks.arriving(setup, batches, step):
            read, reject_counts = read_rows(operator, rows, noise)
            report = {"rows": rows.num_rows, "reject_counts": total([reject_counts, rejected])}
            yield tasks.sent(tasks.alone(setup), place, [read], report)

    return task


def release_task(setup: tasks.Setup, step: int) -> tasks.Task:
    """All rows of a step to its release; writes the table's next version."""

    def task(batches: tasks.Batches) -> tasks.Batches:
        operator, noise = setup.operator.open(), setup.keys()
        for shard, pieces in tasks.received(tasks.alone(setup), batches):
            with table_shard(operator, setup, shard, noise).open(step - 1) as held:
                delta = delta_of(joined(pieces))
                operator.apply(held.state, delta)
                releases = operator.release(held.state, step, noise)
                size, whole = held.commit(delta)
                counters = {**counted(operator, held.state), "bytes": size, "bases": int(whole)}
                report = {"counters": counters, "tags": held.share}
            report = tasks.reported([p.facts for p in pieces] + [report])
            yield tasks.packed(releases, report)

    return task


def counted(operator: ChangingTable, state: TableState) -> dict[str, int]:
    """The table's counters without rejected rows: those are counted where they are read."""
    counters = operator.counters(state)
    return {name: n for name, n in counters.items() if not name.startswith(REJECTED)}


def table_shard(operator: ChangingTable, setup: tasks.Setup, shard: int, noise: Noise) -> Chain:
    """The table: a step's delta is its rows, and a release is a part of the step."""

    def load(arrays: Mapping[str, Array] | None) -> Any:
        return operator.init() if arrays is None else operator.load(arrays)

    def replay(state: Any, delta: dict[str, Array], step: int) -> None:
        operator.apply(state, delta)
        operator.release(state, step, noise)

    return Chain(setup.state, LAST, shard, load, operator.save, replay)


def read_rows(operator: ChangingTable, rows: pa.Table, noise: Noise) -> tuple[Rows, dict[str, int]]:
    """What each row does, and why the others do nothing."""
    signs, ids, labels, rejected = operator.read(rows, noise)
    reject_counts = {
        f"{REJECTED}{why}": int(n) for why, n in zip(REASONS, rejected, strict=True) if n
    }
    return Rows({"signs": signs, "ids": ids, "labels": labels}), reject_counts


def delta_of(rows: Rows | None) -> dict[str, Array]:
    """What a step's rows do, in the order of the source, as the embedded engine logs it."""
    none = {"rejected": np.zeros(len(REASONS), np.int64)}  # reported where they were read
    if rows is not None:
        return rows.columns | none
    signs, ids, labels = np.zeros(0, np.int8), np.zeros((0, 2), np.int64), np.zeros(0, np.int64)
    return {"signs": signs, "ids": ids, "labels": labels, **none}
