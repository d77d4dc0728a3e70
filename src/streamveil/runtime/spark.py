"""The job of a plan on Spark: state, checkpoint and epoch together; commit, then publish.

Spark writes the step to its offset log before anything runs, so a replayed micro-batch has the same
rows. Shards read version i - 1 and write version i, so a repeated task writes the same bytes.
Releases are published under their identity (job, window, trigger) and the step is then marked as
committed; a step that is marked is not computed again. The ledger is charged once, at creation.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from streamveil.batch import Batch, Release
from streamveil.connectors import open_sink
from streamveil.connectors.base import Sink
from streamveil.connectors.files import FilesSource
from streamveil.engines.compile import compile_plan
from streamveil.engines.spark import stages, tasks
from streamveil.engines.spark.shards import KEPT, Shards
from streamveil.engines.spark.source import (
    NAME,
    POSITION,
    STEP,
    StepSource,
    arrow_schema,
    options_for,
)
from streamveil.errors import PlanError, StoreError
from streamveil.operators.group_by import GroupBy
from streamveil.operators.state import State, types_to_bytes
from streamveil.privacy.ledger import Ledger
from streamveil.privacy.noise import KeyedNoise, Noise, SeededNoise
from streamveil.queries.plan import Plan
from streamveil.runtime import secret as secrets
from streamveil.runtime.lock import Lock
from streamveil.runtime.run import needed_columns
from streamveil.runtime.store import new_epoch

HEADER = "spark.json"


@dataclass(frozen=True)
class SecretFrom:
    """Loads the job's noise where a task runs; carries where the secret is, never the secret."""

    place: str  # 'file:PATH', 'env:NAME' or 'cmd:COMMAND'; 'seed:N' in tests
    epoch: str

    def __call__(self) -> Noise:
        """The noise."""
        kind, _, where = self.place.partition(":")
        if kind == "seed":
            return SeededNoise(int(where))
        if kind == "file":
            return KeyedNoise(secrets.read(Path(where)), bytes.fromhex(self.epoch))
        found = secrets.given(self.place)
        if found is None:
            raise StoreError("the job's secret is not where the task was told to find it")
        return KeyedNoise(found, bytes.fromhex(self.epoch))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a job is spread; fixed when its state is created."""

    shards: int = 4  # two to four times the executor cores
    storage: str | None = None  # of shard state: a URI all executors reach; None: in the state


class SparkJob:
    """Runs or resumes a plan on a Spark session; iterating gives its releases."""

    def __init__(
        self, plan: Plan, *, state: str | Path, session: Any, layout: Layout | None = None,
        seed: int | None = None,
    ) -> None:  # fmt: skip
        if plan.source.kind != "files":
            raise PlanError(
                f"Spark cannot read the source '{plan.source.kind}' here.\n"
                "  to fix  use files, or run on the embedded engine"
            )
        self.plan, self.session, self.home = plan, session, Path(state)
        self.layout = layout or Layout()
        self.operator: GroupBy = compile_plan(plan)
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock = Lock(self.home)
        self.epoch = self._open(seed)
        self.sink: Sink | None = None
        if plan.sink is not None:
            self.sink = open_sink(plan.sink.kind, plan.sink.options)
        self.out: SimpleQueue[Release] = SimpleQueue()

    def __iter__(self) -> Iterator[Release]:
        """Runs to the end of what is there, then gives the releases in order."""
        self.session.dataSource.register(StepSource)
        query = (
            self._frame().writeStream.foreachBatch(self._step)
            .option("checkpointLocation", str(self.home / "checkpoint")).start()
        )  # fmt: skip
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        while not self.out.empty():
            yield self.out.get()

    def close(self) -> None:
        """Lets another process have the state."""
        self.lock.close()

    def _open(self, seed: int | None) -> str:
        """Creates header, epoch, secret and ledger together, or checks that all are still there."""
        header, checkpoint = self.home / HEADER, self.home / "checkpoint"
        wanted = {"fingerprint": self.plan.fingerprint, "shards": self.layout.shards, "seed": seed}
        if header.exists():
            found = json.loads(header.read_text())
            if any(found[name] != wanted[name] for name in wanted):
                raise StoreError(
                    "this state was created by another query or with another number of shards.\n"
                    "  to fix  use a state directory of its own for each query"
                )
            if self._committed() and not checkpoint.exists():
                raise StoreError(
                    "Spark's checkpoint is missing, and with it the place in the source.\n"
                    "  to fix  restore it; a new start needs a new state and a new budget"
                )
            return str(found["epoch"])
        if checkpoint.exists():
            raise StoreError(
                "there is a Spark checkpoint but no state: noise could be used twice.\n"
                "  to fix  restore the state, or start in an empty directory"
            )
        epoch = new_epoch().hex()
        if seed is None:
            secrets.create(self.home)
        ledger = Ledger.open(self.home / "ledger", self.plan.budget, self.operator.protects)
        ledger.charge(self.plan.name, self.operator.loss, key=f"{self.plan.name}/{epoch}")
        durable(header, json.dumps({**wanted, "epoch": epoch}))
        return epoch

    def _frame(self) -> Any:
        options = self._source_options()
        return self.session.readStream.format(NAME).options(**options).load()

    def _source_options(self) -> dict[str, str]:
        schema = FilesSource(**self.plan.source.options).schema()
        arrival = self.plan.clock.arrival or self.plan.source.event_time
        arrival = arrival if self.plan.clock.kind == "event" else None
        columns = needed_columns(self.plan, schema)
        return options_for(self.plan.source.options, self.plan.clock, columns, arrival)

    def _setup(self, seed: int | None) -> tasks.Setup:
        source = FilesSource(**self.plan.source.options)
        columns = needed_columns(self.plan, source.schema())
        schema = arrow_schema(source, columns)
        state = State()
        noise = self._keys(seed)()
        empty = schema.empty_table().drop_columns([POSITION, STEP])
        self.operator.arrive(state, Batch(empty, 1, True, "{}"), noise)  # noqa: FBT003
        return tasks.Setup(
            self.plan, self.layout.shards, Shards(self.layout.storage or str(self.home / "shards")),
            self._keys(seed), types_to_bytes(state.types or ()).tobytes(), schema,
        )  # fmt: skip

    def _keys(self, seed: int | None) -> Callable[[], Noise]:
        place = f"file:{self.home / secrets.SECRET}" if seed is None else f"seed:{seed}"
        return SecretFrom(place, self.epoch)

    def _step(self, frame: Any, batch: int) -> None:
        """One micro-batch: compute, publish, mark."""
        step = self._step_of(batch)
        if step == 0 or step <= self._committed():
            return
        header = json.loads((self.home / HEADER).read_text())
        setup, shards = self._setup(header["seed"]), self.layout.shards
        admitted = frame.mapInArrow(tasks.admit_task(setup, step), spark_schema(stages.ADMITTED))
        bounded = admitted.repartitionById(shards, admitted["unit_shard"]).mapInArrow(
            tasks.bound_task(setup, step), spark_schema(stages.BOUNDED)
        )
        released = bounded.repartitionById(shards, bounded["key_shard"]).mapInArrow(
            tasks.release_task(setup, step), spark_schema(tasks.RELEASED)
        )
        releases = stages.merged(tasks.unpacked(released.toArrow(), step))
        for release in releases:
            if self.sink is not None:
                self.sink.write(self.plan.name, release.window, release.trigger, release.table)
            self.out.put(release)
        durable(self.home / "committed", str(step))
        setup.state.drop(step - KEPT)

    def _step_of(self, batch: int) -> int:
        """The step that Spark logged for a batch before running it."""
        log = self.home / "checkpoint" / "offsets" / str(batch)
        return int(json.loads(log.read_text().splitlines()[-1])["step"])

    def _committed(self) -> int:
        mark = self.home / "committed"
        return int(mark.read_text()) if mark.exists() else 0


def spark_schema(schema: Any) -> Any:
    """An Arrow schema as Spark's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def durable(path: Path, text: str) -> None:
    """Writes a small file whole: beside it, synced, renamed."""
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
