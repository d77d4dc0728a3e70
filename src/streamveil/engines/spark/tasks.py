"""What Spark's tasks run: load a shard, call a stage, write the shard. Nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from streamveil.batch import Release
from streamveil.engines.spark import stages
from streamveil.engines.spark.shards import Shards
from streamveil.engines.spark.splits import Reading, Split
from streamveil.operators.group_by import GroupBy
from streamveil.operators.state import State, types_from_bytes
from streamveil.privacy.noise import Noise
from streamveil.queries.plan import Plan

RELEASED = pa.schema([("window", pa.int64()), ("trigger", pa.int64()), ("table", pa.binary())])
Batches = Iterator[pa.RecordBatch]
ROWS = 500_000  # admitted at once: bounds the memory of a task


@dataclass(frozen=True)
class Setup:
    """All that a task needs. It travels to executors, so it never holds the secret itself."""

    operator: Packed
    shards: int
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
    def of(cls, plan: Plan, operator: GroupBy) -> Packed:
        """Packs an operator without its caches."""
        return cls(plan.fingerprint, bytes(dumps(replace(operator))))

    def open(self) -> GroupBy:
        """The operator."""
        if self.fingerprint not in OPENED:
            OPENED[self.fingerprint] = cloudpickle.loads(self.content)
        return OPENED[self.fingerprint]


dumps: Callable[[Any], bytes] = cloudpickle.dumps
OPENED: dict[str, GroupBy] = {}


def admit_task(setup: Setup, step: int) -> Callable[[Batches], Batches]:
    """Splits of any partition to admitted rows: files are read here, raw rows go nowhere else."""

    def task(batches: Batches) -> Batches:
        operator, noise = parts(setup)
        for text in (text for batch in batches for text in batch.column(0).to_pylist()):
            rows, position = setup.reading.rows(Split.parse(text), step)
            for start in range(0, len(position), ROWS):
                some = rows.slice(start, ROWS), position[start : start + ROWS]
                admitted, _ = stages.admit(operator, *some, step, noise, setup.shards)
                yield from admitted.to_batches()

    return task


def bound_task(setup: Setup, step: int) -> Callable[[Batches], Batches]:
    """Admitted rows of one unit shard to rows that count; writes the shard's next version."""

    def task(batches: Batches) -> Batches:
        operator, _ = parts(setup)
        shard = partition()
        state = load(operator, setup, "unit", shard, step - 1)
        facts = public_facts(operator, setup, step - 1)
        rows = received(batches, stages.admitted_schema(operator))
        bounded = stages.bound(operator, state, rows, facts, setup.shards)
        operator.expire(state, step)
        setup.state.write("unit", shard, step, operator.save(state))
        yield from bounded.to_batches()

    return task


def release_task(setup: Setup, step: int) -> Callable[[Batches], Batches]:
    """Rows that count of one key shard to its releases; writes the shard's next version."""

    def task(batches: Batches) -> Batches:
        operator, noise = parts(setup)
        shard = partition()
        state = load(operator, setup, "key", shard, step - 1)
        rows = received(batches, stages.bounded_schema(operator))
        stages.gather(operator, state, rows, noise, (shard, setup.shards, step))
        releases = operator.release(state, step, noise)
        setup.state.write("key", shard, step, operator.save(state))
        if stages.facts_matter(operator):
            setup.state.write("public", shard, step, stages.shown_facts(state))
        yield from packed(releases).to_batches()

    return task


def parts(setup: Setup) -> tuple[GroupBy, Noise]:
    """The operator and the noise, where the task runs."""
    return setup.operator.open(), setup.keys()


def partition() -> int:
    """The number of this task's shard."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return int(context.partitionId())


def load(operator: GroupBy, setup: Setup, stage: str, shard: int, version: int) -> State:
    """A shard's state after a step."""
    arrays = setup.state.read(stage, shard, version)
    state = operator.init() if arrays is None else operator.load(arrays)
    state.types = types_from_bytes(np.frombuffer(setup.types, np.uint8))
    return state


def public_facts(operator: GroupBy, setup: Setup, version: int) -> stages.Facts:
    """The shown groups of all shards after a step."""
    if not stages.facts_matter(operator):
        return stages.shown_facts(State())
    found = [setup.state.read("public", shard, version) for shard in range(setup.shards)]
    some = [facts for facts in found if facts is not None] or [stages.shown_facts(State())]
    return {name: np.concatenate([facts[name] for facts in some]) for name in some[0]}


def received(batches: Batches, schema: pa.Schema) -> pa.Table:
    """All rows of a task, in our own types whatever Spark made of them."""
    parts = [pa.Table.from_batches([batch]).cast(schema) for batch in batches]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def packed(releases: list[Release]) -> pa.Table:
    """Releases as rows that Spark can carry."""
    cells = []
    for release in releases:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, release.table.schema) as writer:
            writer.write_table(release.table)
        cells.append(sink.getvalue().to_pybytes())
    return pa.table(
        [[r.window for r in releases], [r.trigger for r in releases], cells], schema=RELEASED
    )


def unpacked(rows: pa.Table, step: int) -> list[Release]:
    """The inverse of `packed`."""
    return [
        Release(pa.ipc.open_stream(row["table"]).read_all(), row["window"], row["trigger"], step)
        for row in rows.to_pylist()
    ]
