"""A sketch query cut for Spark: units by hash, what their rows count in one task.

    rows -> admit (stateless) -> by unit: bound and count -> one task: add up, push and release

What a window has counted is a sum over rows, so every unit shard counts its own bounded rows and
sends the cells they fall into with their counts: never more than a sketch has cells, however many
rows there are. The last task holds the sketches, whose size does not depend on the data.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch
from streamveil.engines.spark import tasks
from streamveil.engines.spark.moving import Rows, joined, total
from streamveil.operators.sketch import BOUNDED, SketchQuery, SketchState
from streamveil.operators.state import parts
from streamveil.privacy.noise import Noise

LAST = "key"  # the stage that releases; it has one shard


def admit_task(setup: tasks.Setup, step: int) -> tasks.Task:
    """Splits to the rows that may count, by unit shard."""

    def task(batches: tasks.Batches) -> tasks.Batches:
        operator, noise = setup.operator.open(), setup.keys()
        for place, rows, rejected in tasks.arriving(setup, batches, step):
            admitted, turned = admit(operator, rows, step, noise)
            report = {"rows": rows.num_rows, "turned": total([turned, rejected])}
            by_unit = admitted.by_shard(admitted["unit"], setup.shards)
            yield tasks.sent(setup, place, by_unit, report)

    return task


def bound_task(setup: tasks.Setup, step: int) -> tasks.Task:
    """Rows of unit shards to the cells that count; writes the shards' next versions."""

    def task(batches: tasks.Batches) -> tasks.Batches:
        operator = setup.operator.open()
        for shard, pieces in tasks.received(setup, batches):
            arrays = setup.state.read("unit", shard, step - 1)
            state = operator.init() if arrays is None else operator.load(arrays)
            cells, turned = bound(operator, state, joined(pieces))
            operator.expire(state, step)
            size = setup.state.write("unit", shard, step, operator.save(state))
            units = operator.counters(state)["units"]
            report = {"turned": turned, "counters": {"units": units, "bytes": size}}
            facts = tasks.reported([p.facts for p in pieces] + [report])
            yield tasks.sent(tasks.alone(setup), shard, [cells], facts)

    return task


def release_task(setup: tasks.Setup, step: int) -> tasks.Task:
    """Counted cells of all shards to releases; writes the sketches' next version."""

    def task(batches: tasks.Batches) -> tasks.Batches:
        operator, noise = setup.operator.open(), setup.keys()
        for shard, pieces in tasks.received(tasks.alone(setup), batches):
            arrays = setup.state.read(LAST, shard, step - 1)
            state = operator.init() if arrays is None else operator.load(arrays)
            gather(operator, state, joined(pieces))
            releases = operator.release(state, step, noise)
            size = setup.state.write(LAST, shard, step, operator.save(state))
            report = tasks.reported([p.facts for p in pieces] + [{"counters": {"bytes": size}}])
            yield tasks.packed(releases, report)

    return task


def admit(
    operator: SketchQuery, rows: pa.Table, step: int, noise: Noise
) -> tuple[Rows, dict[str, int]]:
    """Per-row work: the rows that may count, and counts of the others."""
    came = operator.arrive(Batch(rows, step, False, "{}"), noise)  # noqa: FBT003
    columns = {
        "unit": came.unit, "word": came.word, "window": came.window, "period": came.period,
    }  # fmt: skip
    return Rows(columns), came.turned


def bound(
    operator: SketchQuery, state: SketchState, rows: Rows | None
) -> tuple[Rows, dict[str, int]]:
    """Which rows of a unit shard count, in place; the cells of those that do, by window."""
    windows, cells, counts = ([np.zeros(0, np.int64)] for _ in range(3))
    turned: dict[str, int] = {}
    if rows is not None:
        accepted = operator.accept(state, rows["unit"], rows["period"])
        over = len(rows) - int(accepted.sum())
        turned = {BOUNDED: over} if over else {}
        kept = rows.take(np.flatnonzero(accepted))
        for window, mine in parts(kept["window"]):
            hit, count = operator.cells(kept["word"][mine])
            windows.append(np.full(len(hit), window, np.int64))
            cells.append(hit)
            counts.append(count)
    names = ("window", "cell", "count")
    found = [np.concatenate(column) for column in (windows, cells, counts)]
    return Rows(dict(zip(names, found, strict=True))), turned


def gather(operator: SketchQuery, state: SketchState, rows: Rows | None) -> None:
    """Adds the counted cells of all shards, in place: exact, in any order the same."""
    if rows is None:
        return
    for window, mine in parts(rows["window"]):
        operator.add_cells(state, window, rows["cell"][mine], rows["count"][mine])
