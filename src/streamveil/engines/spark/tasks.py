"""What Spark's tasks run: load a shard, call a stage, write the shard. Nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from streamveil.batch import Release
from streamveil.engines.spark import stages
from streamveil.engines.spark.feeds import Reading
from streamveil.engines.spark.moving import Piece, Rows, joined, total
from streamveil.engines.spark.shards import Shards
from streamveil.operators.group_by import GroupBy
from streamveil.operators.state import State, types_from_bytes
from streamveil.privacy.noise import Noise
from streamveil.queries.plan import Plan

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


@dataclass(frozen=True)
class Packed:
    """A compiled operator on its way to tasks; opened once per process that runs them.

    Compiling calibrates noise, which takes seconds: it is done on the driver alone. The copy holds
    no cache, because caches hold keys derived from the secret.
    """

    fingerprint: str
    content: bytes  # for the way only: nothing durable is pickled

    @classmethod
    def of(cls, plan: Plan, operator: Any) -> Packed:
        """Packs an operator without its caches."""
        return cls(plan.fingerprint, bytes(dumps(replace(operator))))

    def open(self) -> Any:
        """The operator: of the kind that the tasks it is given to work with."""
        if self.fingerprint not in OPENED:
            OPENED[self.fingerprint] = cloudpickle.loads(self.content)
        return OPENED[self.fingerprint]


dumps: Callable[[Any], bytes] = cloudpickle.dumps
OPENED: dict[str, Any] = {}


def admit_task(setup: Setup, step: int) -> Callable[[Batches], Batches]:
    """Splits of any partition to admitted rows: files are read here, raw rows go nowhere else."""

    def task(batches: Batches) -> Batches:
        operator, noise = setup.operator.open(), setup.keys()
        for place, rows, rejected in arriving(setup, batches, step):
            admitted, turned = stages.admit(operator, rows, step, noise, setup.shards)
            report = {"rows": rows.num_rows, "turned": total([turned, rejected])}
            yield sent(setup, place, admitted, report)

    return task


def arriving(
    setup: Setup, batches: Batches, step: int
) -> Iterator[tuple[int, pa.Table, dict[str, int]]]:
    """What the named splits hold of a step, in runs of rows: place, rows, rejected by reason."""
    for text in (text for batch in batches for text in batch.column(0).to_pylist()):
        read = setup.reading.rows(text, step)
        for start in range(0, max(read.table.num_rows, 1), ROWS):
            rejected = {} if start else read.rejected
            yield read.place + start, read.table.slice(start, ROWS), rejected


def as_it_came(pieces: list[Piece]) -> list[Piece]:
    """Admitted rows need nothing before they are bounded."""
    return pieces


def bound_task(
    setup: Setup, step: int, ready: Callable[[list[Piece]], list[Piece]] = as_it_came
) -> Callable[[Batches], Batches]:
    """Admitted rows of unit shards to rows that count; writes the shards' next versions.

    `ready` turns what a shard received into admitted rows.
    """

    def task(batches: Batches) -> Batches:
        operator = setup.operator.open()
        shown = public_facts(operator, setup, step - 1)
        for shard, came in received(setup, batches):
            pieces = ready(came)
            state = load(operator, setup, "unit", shard, step - 1)
            rows = joined(pieces)
            bounded: list[Rows] = []
            turned: dict[str, int] = {}
            if rows is not None:
                bounded, turned = stages.bound(operator, state, rows, shown, setup.shards)
            operator.expire(state, step)
            size = setup.state.write("unit", shard, step, operator.save(state))
            units = operator.counters(state)["units"]
            report = {"turned": turned, "counters": {"units": units, "bytes": size}}
            yield sent(setup, shard, bounded, reported([p.facts for p in pieces] + [report]))

    return task


def release_task(setup: Setup, step: int) -> Callable[[Batches], Batches]:
    """Rows that count of key shards to their releases; writes the shards' next versions."""

    def task(batches: Batches) -> Batches:
        operator, noise = setup.operator.open(), setup.keys()
        for shard, pieces in received(setup, batches):
            state = load(operator, setup, "key", shard, step - 1)
            place = shard, setup.shards, step
            stages.gather(operator, state, joined(pieces), noise, place)
            keys = operator.counters(state)
            releases = operator.release(state, step, noise)
            size = setup.state.write("key", shard, step, operator.save(state))
            if stages.facts_matter(operator):
                setup.state.write("public", shard, step, stages.shown_facts(operator, state))
            counters = {"keys": keys["keys"], "shown keys": keys["shown keys"], "bytes": size}
            report = reported([p.facts for p in pieces] + [{"counters": counters}])
            yield packed(releases, report)

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
    while found:  # one shard's rows are let go before the next is worked on
        shard = next(iter(found))
        yield shard, found.pop(shard)


def alone(setup: Setup) -> Setup:
    """For a stage of one task that holds a whole state."""
    return replace(setup, shards=1, tasks=1)


def reported(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Reports added up: rows read, rows turned away by reason, sizes of the state."""
    return {
        "rows": sum(report.get("rows", 0) for report in reports),
        "turned": total([report.get("turned", {}) for report in reports]),
        "counters": total([report.get("counters", {}) for report in reports]),
    }


def load(operator: GroupBy, setup: Setup, stage: str, shard: int, version: int) -> State:
    """A shard's state after a step."""
    arrays = setup.state.read(stage, shard, version)
    state = operator.init() if arrays is None else operator.load(arrays)
    state.types = types_from_bytes(np.frombuffer(setup.types, np.uint8))
    return state


def public_facts(operator: GroupBy, setup: Setup, version: int) -> stages.Shown:
    """The shown groups of all shards after a step, where bounding asks for them."""
    found = [stages.shown_facts(operator, State())]
    if stages.facts_matter(operator):
        read = [setup.state.read("public", shard, version) for shard in range(setup.shards)]
        found += [facts for facts in read if facts is not None]
    names = found[0].keys()
    return stages.Shown.of(
        operator, {name: np.concatenate([facts[name] for facts in found]) for name in names}
    )


def packed(releases: list[Release], report: dict[str, Any]) -> pa.RecordBatch:
    """Releases, and the report of what led to them, as rows that Spark can carry."""
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
            releases.append(Release(table, row["window"], row["trigger"], step))
        else:
            reports.append(json.loads(row["table"]))
    return releases, reported(reports)
