"""A sketch query divided for Spark: units by hash, and the sketches in one task.

    rows -> admit (stateless) -> by unit: bound and count -> one task: add up, push and release

The counts of a window are sums over rows. So every unit shard counts its own bounded rows and sends
the cells that they fall into, with their counts: never more cells than a sketch has, however many
rows there are. The last task holds the sketches, whose size does not depend on the data.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch
from streamveil.core.noise import Noise
from streamveil.dataflow import BOUNDED
from streamveil.dataflow.state import parts
from streamveil.engines.spark import tasks
from streamveil.engines.spark.columns import pack, tag_of
from streamveil.engines.spark.shards import share_of
from streamveil.engines.spark.shuffle import Rows, joined
from streamveil.engines.spark.versioned_state import Chain
from streamveil.sketches.items import chosen
from streamveil.sketches.operator import SketchQuery, SketchState
from streamveil.types import Array

LAST = "key"  # the stage that releases; it has one shard


def bound_task(setup: tasks.Setup, step: int) -> tasks.Task:
    """Rows of unit shards to the cells that count; writes the shards' next versions."""

    def task(batches: tasks.Batches) -> tasks.Batches:
        operator = setup.operator.open()
        for shard, pieces in tasks.received(setup, batches):
            with unit_shard(operator, setup, shard).open(step - 1) as held:
                found = bound(operator, held.state, joined(pieces))
                operator.expire(held.state, step)
                report = held.commit(found.delta, {"units": operator.counters(held.state)["units"]})
            rejected = {"reject_counts": found.reject_counts}
            facts = tasks.reported([*(p.facts for p in pieces), report, rejected])
            yield tasks.sent(tasks.alone(setup), shard, [found.cells], facts)

    return task


def release_task(setup: tasks.Setup, step: int) -> tasks.Task:
    """Counted cells of all shards to releases; writes the sketches' next version."""

    def task(batches: tasks.Batches) -> tasks.Batches:
        operator, noise = setup.operator.open(), setup.keys()
        for shard, pieces in tasks.received(tasks.alone(setup), batches):
            rows, before = joined(pieces), setup.state.read(LAST, shard, step - 1)
            state = operator.init() if before is None else operator.load(before.arrays)
            gather(operator, state, rows)
            releases = operator.release(state, step, noise)
            after = setup.state.start if before is None else before.facts["tag"]
            # the tag of the history with the counted cells: a release forgets these
            tag = tag_of(pack({"after": after}, {} if rows is None else rows.columns))
            size = setup.state.write(LAST, shard, step, tag, operator.save(state))
            own = {"counters": {"bytes": size}, "tags": share_of(LAST, shard, tag)}
            yield tasks.packed(releases, tasks.reported([*(p.facts for p in pieces), own]))

    return task


def admit(
    operator: SketchQuery, rows: pa.Table, step: int, noise: Noise, shards: int
) -> tuple[list[Rows], dict[str, int]]:
    """Per-row work: finds the rows that may count, and the counts of the others."""
    came = operator.arrive(Batch(rows, step, False, "{}"), noise)  # noqa: FBT003
    columns = {"unit": came.unit, "window": came.window, "period": came.period}
    words = isinstance(came.items, np.ndarray)
    admitted = Rows(columns | {"word": came.items}) if words else Rows(columns, came.items)
    return admitted.by_shard(came.unit, shards), came.reject_counts


admit_task = tasks.admitting(admit)


def unit_shard(operator: SketchQuery, setup: tasks.Setup, shard: int) -> Chain:
    """A shard of the unit stage: a step's delta is its rows that counted."""

    def replay(state: Any, delta: dict[str, Array], step: int) -> None:
        operator.accept(state, delta["unit"], delta["period"])
        operator.expire(state, step)

    return Chain(setup.state, "unit", shard, tasks.from_saved(operator), operator.save, replay)


class Counted(NamedTuple):
    """The results of a unit shard for a step's rows."""

    cells: Rows  # window, cell, how many rows fell into it
    reject_counts: dict[str, int]  # reason -> rows left out
    delta: dict[str, Array]  # the units of the rows that counted, and their periods


def bound(operator: SketchQuery, state: SketchState, rows: Rows | None) -> Counted:
    """Bounds the rows of a unit shard, in place; returns the cells of those that count."""
    windows, cells, counts = ([np.zeros(0, np.int64)] for _ in range(3))
    reject_counts: dict[str, int] = {}
    delta = {"unit": np.zeros(0, np.uint64), "period": np.zeros(0, np.int64)}
    if rows is not None:
        accepted = operator.accept(state, rows["unit"], rows["period"])
        over = len(rows) - int(accepted.sum())
        reject_counts = {BOUNDED: over} if over else {}
        kept = rows.take(np.flatnonzero(accepted))
        delta = {"unit": kept["unit"], "period": kept["period"]}
        for window, mine in parts(kept["window"]):
            items = kept["word"] if kept.keys is None else kept.keys
            hit, count = operator.cells(chosen(items, mine))
            windows.append(np.full(len(hit), window, np.int64))
            cells.append(hit)
            counts.append(count)
    names = ("window", "cell", "count")
    found = [np.concatenate(column) for column in (windows, cells, counts)]
    return Counted(Rows(dict(zip(names, found, strict=True))), reject_counts, delta)


def gather(operator: SketchQuery, state: SketchState, rows: Rows | None) -> None:
    """Adds the counted cells of all shards, in place: exact sums, the same in any order."""
    if rows is None:
        return
    for window, mine in parts(rows["window"]):
        operator.add_cells(state, window, rows["cell"][mine], rows["count"][mine])
