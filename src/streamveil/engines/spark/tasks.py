"""The code of Spark's tasks: load a shard, call a stage, write the shard. Nothing else."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from streamveil.batch import Release
from streamveil.connectors import slices
from streamveil.core.noise import Noise
from streamveil.core.noisy import restored
from streamveil.dataflow import total
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.state import State, types_from_bytes
from streamveil.engines.spark import published_keys_cache, stages
from streamveil.engines.spark.shards import Shards
from streamveil.engines.spark.shuffle import Piece, Rows, joined
from streamveil.engines.spark.source_offsets import Reading
from streamveil.engines.spark.versioned_state import Chain
from streamveil.plan import Plan
from streamveil.plan.own_rows import OwnRows, own_rows
from streamveil.types import Array

MOVING = pa.schema([("task", pa.int32()), ("shard", pa.int32()), ("piece", pa.binary())])
RELEASED = pa.schema([("window", pa.int64()), ("trigger", pa.int64()), ("table", pa.binary())])
Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]
ROWS = 250_000  # admitted at once: bounds the size of a piece


@dataclass(frozen=True)
class Setup:
    """All that a task needs. It travels to executors, so it never holds the secret itself."""

    operator: Packed
    shards: int
    tasks: int  # a task has every `tasks`-th shard
    state: Shards
    keys: Callable[[], Noise]  # loads the secret where the task runs
    types: bytes  # of the key columns
    reading: Reading
    own: OwnRows | None = None  # steps over single rows, with the rows that these may meet

    def changed(self, rows: pa.Table) -> pa.Table:
        """The rows that were read, after the steps of `own`."""
        return rows if self.own is None else own_rows(self.own, rows, held_rows)


def held_rows(other: OwnRows) -> pa.Table:
    """The rows of another relation, which the steps carry with them."""
    table: pa.Table = other.options["table"]
    return table


@dataclass(frozen=True)
class Packed:
    """A compiled operator on its way to tasks; opened once per process that runs them.

    Compiling calibrates noise, which takes seconds: it is done on the driver alone. The copy holds
    no cache, because caches hold keys derived from the secret.
    """

    fingerprint: str
    content: bytes  # for transport only: nothing durable is pickled

    @classmethod
    def of(cls, plan: Plan, operator: Any) -> Packed:
        """Packs an operator without its caches."""
        return cls(plan.fingerprint, bytes(dumps(replace(operator))))

    def open(self) -> Any:
        """The operator, of the kind that its tasks work with."""
        if next(TASKS) < LOADING:
            gc.freeze()
        made = OPENED.pop(self.fingerprint, None) or cloudpickle.loads(self.content)
        while len(OPENED) >= JOBS:
            OPENED.pop(next(iter(OPENED)))
        OPENED[self.fingerprint] = made  # the last one used stands last
        return made


dumps: Callable[[Any], bytes] = cloudpickle.dumps
OPENED: dict[str, Any] = {}
JOBS = 4  # a worker keeps the operators of so many jobs
LOADING = 8  # first tasks of a worker that still import, compile and load
TASKS = count()  # of this process: Spark collects garbage after each, but not what is frozen


Admit = Callable[[Any, pa.Table, int, Noise, int], tuple[list[Rows], dict[str, int]]]


def admitting(admit: Admit) -> Callable[[Setup, int], Task]:
    """The stage from splits to admitted rows by shard: the task that reads a row admits it.

    `admit` takes an operator, rows, their step, noise and the number of shards. It returns the rows
    of each shard, and counts of the others by reason.
    """

    def stage(setup: Setup, step: int) -> Task:
        def task(batches: Batches) -> Batches:
            operator, noise = setup.operator.open(), setup.keys()
            for place, rows, rejected in arriving(setup, batches, step):
                admitted, reject_counts = admit(operator, rows, step, noise, setup.shards)
                report = {"rows": rows.num_rows, "reject_counts": total([reject_counts, rejected])}
                yield sent(setup, place, admitted, report)

        return task

    return stage


admit_task = admitting(stages.admit)


def arriving(
    setup: Setup, batches: Batches, step: int
) -> Iterator[tuple[int, pa.Table, dict[str, int]]]:
    """The rows of a step in the named splits, in runs: place, rows, rejected rows by reason."""
    for text in (text for batch in batches for text in batch.column(0).to_pylist()):
        read = setup.reading.rows(text, step)
        start, whole = 0, read.table
        for rows in slices(whole, ROWS) if whole.num_rows else [whole]:
            yield read.place + start, setup.changed(rows), {} if start else read.rejected
            start += rows.num_rows


def bound_task(
    setup: Setup, step: int, ready: Callable[[list[Piece]], list[Piece]] = list
) -> Callable[[Batches], Batches]:
    """Admitted rows of unit shards to rows that count; writes the shards' next versions.

    `ready` turns a shard's received pieces into admitted rows, if they are not already.
    """

    def task(batches: Batches) -> Batches:
        operator = setup.operator.open()
        groups = published_keys_cache.of_shards(operator, setup.state, setup.shards, step - 1)
        for shard, came in received(setup, batches):
            pieces = ready(came)
            rows = joined(pieces)
            bounded = stages.Bounded([], {}, {})
            with unit_shard(operator, setup, shard).open(step - 1) as held:
                if rows is not None:
                    bounded = stages.bound(operator, held.state, rows, groups, setup.shards)
                operator.expire(held.state, step)
                report = held.commit(
                    bounded.delta, {"units": operator.counters(held.state)["units"]}
                )
            rejected = {"reject_counts": bounded.reject_counts}
            facts = reported([*(p.facts for p in pieces), report, rejected])
            yield sent(setup, shard, bounded.rows, facts)

    return task


def release_task(setup: Setup, step: int) -> Callable[[Batches], Batches]:
    """Counted rows of key shards to their releases; writes the shards' next versions."""

    def task(batches: Batches) -> Batches:
        operator, noise = setup.operator.open(), setup.keys()
        for shard, pieces in received(setup, batches):
            place = shard, setup.shards, step
            with key_shard(operator, setup, shard, noise).open(step - 1) as held:
                windows, tag = held.state.windows, held.stamp.tag
                before = {number: len(one.published_rows) for number, one in windows.items()}
                delta = stages.gather(operator, held.state, joined(pieces), noise, place)
                keys = operator.counters(held.state)
                releases = operator.release(held.state, step, noise)
                own = held.commit(delta, {name: keys[name] for name in ("keys", "shown keys")})
                whole = bool(own["counters"]["bases"])
                told = published_keys_cache.Step(shard, step, tag, held.stamp.tag, whole)
                published_keys_cache.tell(operator, setup.state, told, held.state, before)
                made = packed(releases, reported([*(p.facts for p in pieces), own]))
            yield made

    return task


def sent(setup: Setup, place: int, rows: list[Rows], report: dict[str, Any]) -> pa.RecordBatch:
    """One piece for each shard that has rows; the report goes with the first."""
    some = [shard for shard, part in enumerate(rows) if len(part)]
    shards = some or [0]
    cells = []
    for shard in shards:
        part = rows[shard] if some else None
        cells.append(Piece(place, part, report if shard == shards[0] else {}).to_bytes())
    return pa.record_batch(
        [[shard % setup.tasks for shard in shards], shards, cells], schema=MOVING
    )


def received(setup: Setup, batches: Batches) -> Iterator[tuple[int, list[Piece]]]:
    """The shards of this task with their pieces, also those without any."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    mine = range(int(context.partitionId()), setup.shards, setup.tasks)
    found: dict[int, list[Piece]] = {shard: [] for shard in mine}
    for batch in batches:
        for shard, cell in zip(
            batch.column("shard").to_pylist(), batch.column("piece"), strict=True
        ):
            found[shard].append(Piece.from_bytes(cell.as_buffer()))
    while found:  # one shard's rows are freed before the next shard is processed
        shard = next(iter(found))
        yield shard, found.pop(shard)


def alone(setup: Setup) -> Setup:
    """The setup of a stage of one task, which holds a whole state."""
    return replace(setup, shards=1, tasks=1)


def reported(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of reports: rows read, rows rejected by reason, sizes and tags of the state."""
    return {
        "rows": sum(report.get("rows", 0) for report in reports),
        "reject_counts": total([report.get("reject_counts", {}) for report in reports]),
        "counters": total([report.get("counters", {}) for report in reports]),
        "tags": sum(report.get("tags", 0) for report in reports),
    }


def unit_shard(operator: GroupBy, setup: Setup, shard: int) -> Chain:
    """A shard of the unit stage."""
    replay = partial(stages.bound_again, operator)
    return Chain(setup.state, "unit", shard, loading(operator, setup), operator.save, replay)


def key_shard(operator: GroupBy, setup: Setup, shard: int, noise: Noise) -> Chain:
    """A shard of the key stage."""

    def replay(state: State, delta: stages.Delta, step: int) -> None:
        place = shard, setup.shards, step
        stages.gather_again(operator, state, delta, noise, place)

    return Chain(setup.state, "key", shard, loading(operator, setup), operator.save, replay)


def from_saved(operator: Any) -> Callable[[Mapping[str, Array] | None], Any]:
    """An operator's function that makes a state of saved arrays, or of nothing."""
    return lambda arrays: operator.init() if arrays is None else operator.load(arrays)


def loading(operator: GroupBy, setup: Setup) -> Callable[[Mapping[str, Array] | None], State]:
    """A function that makes a state of saved arrays, which it keeps, or of nothing."""
    types = types_from_bytes(np.frombuffer(setup.types, np.uint8))
    spans, width = len(operator.aggregation.spans), operator.aggregation.width

    def load(arrays: Mapping[str, Array] | None) -> State:
        state = operator.init() if arrays is None else State.from_arrays(
            arrays, spans, width, own=kept
        )  # fmt: skip
        state.types = types
        return state

    return load


def kept(array: Array) -> Array:
    """The array itself: its reader has no other use for it."""
    return array


def packed(releases: list[Release], report: dict[str, Any]) -> pa.RecordBatch:
    """Releases and the report of their step, as rows that Spark can carry."""
    cells = [json.dumps(report).encode()]
    for release in releases:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, release.table.schema) as writer:
            writer.write_table(release.table)
        cells.append(sink.getvalue().to_pybytes())
    windows = [0, *(r.window for r in releases)]
    triggers = [0, *(r.trigger for r in releases)]
    return pa.record_batch([windows, triggers, cells], schema=RELEASED)


def unpacked(rows: pa.Table, step: int) -> tuple[list[Release], dict[str, Any]]:
    """The inverse of `packed`, for all shards."""
    releases, reports = [], []
    for row in rows.to_pylist():
        if row["trigger"]:
            table = pa.ipc.open_stream(row["table"]).read_all()
            place = row["window"], row["trigger"], step
            releases.append(Release(restored(table), *place))
        else:
            reports.append(json.loads(row["table"]))
    return releases, reported(reports)
