"""A changing table cut for Spark: rows are read by many tasks, and one holds the table.

    rows -> read (stateless) -> one task: match records, answer and release

What travels is 17 bytes a row: what it does, its record's fingerprint, its point. Matching goes by
the order of the source, so it happens in one place: the last task works through all rows of a step
and holds all living records, as the embedded engine does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.engines.spark import tasks
from streamveil.engines.spark.moving import Rows, joined, total
from streamveil.operators.table import REASONS, ChangingTable, TableState
from streamveil.privacy.noise import Noise

LAST = "key"  # the stage that releases; it has one shard


def read_task(setup: tasks.Setup, step: int) -> tasks.Task:
    """Splits to what their rows do."""

    def task(batches: tasks.Batches) -> tasks.Batches:
        operator, noise = setup.operator.open(), setup.keys()
        for place, rows, rejected in tasks.arriving(setup, batches, step):
            read, turned = read_rows(operator, rows, noise)
            report = {"rows": rows.num_rows, "turned": total([turned, rejected])}
            yield tasks.sent(tasks.alone(setup), place, [read], report)

    return task


def release_task(setup: tasks.Setup, step: int) -> tasks.Task:
    """All rows of a step to its release; writes the table's next version."""

    def task(batches: tasks.Batches) -> tasks.Batches:
        operator, noise = setup.operator.open(), setup.keys()
        for shard, pieces in tasks.received(tasks.alone(setup), batches):
            arrays = setup.state.read(LAST, shard, step - 1)
            state = operator.init() if arrays is None else operator.load(arrays)
            change(operator, state, joined(pieces))
            releases = operator.release(state, step, noise)
            size = setup.state.write(LAST, shard, step, operator.save(state))
            counters = {**operator.counters(state), "bytes": size}
            report = tasks.reported([p.facts for p in pieces] + [{"counters": counters}])
            yield tasks.packed(releases, report)

    return task


def read_rows(operator: ChangingTable, rows: pa.Table, noise: Noise) -> tuple[Rows, dict[str, int]]:
    """What each row does, and why the others do nothing."""
    signs, ids, labels, rejected = operator.read(rows, noise)
    turned = {f"rejected_{why}": int(n) for why, n in zip(REASONS, rejected, strict=True) if n}
    return Rows({"signs": signs, "ids": ids, "labels": labels}), turned


def change(operator: ChangingTable, state: TableState, rows: Rows | None) -> None:
    """Applies the rows of a step in source order, in place."""
    if rows is None:
        return
    none: dict[str, Any] = {"rejected": np.zeros(len(REASONS), np.int64)}
    operator.apply(state, {**rows.columns, **none})
