"""The job of a plan on Spark: state, checkpoint and epoch together; compute, publish, mark.

Spark writes the step to its offset log before anything runs, so a replayed micro-batch has the same
rows. Shards read version i - 1 and write version i, so a repeated task writes the same bytes.
Releases are published under their identity (job, window, trigger) and the step is then marked as
committed; a step that is marked is not computed again. The ledger is charged once, at creation.
"""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import pyarrow as pa

from streamveil.batch import Batch, Release
from streamveil.connectors import open_sink
from streamveil.connectors.base import Sink
from streamveil.connectors.files import FilesSource
from streamveil.engines.compile import compile_plan
from streamveil.engines.spark import stages, tasks
from streamveil.engines.spark.shards import KEPT, Shards
from streamveil.engines.spark.source import NAME, StepSource, options_for
from streamveil.engines.spark.splits import Reading
from streamveil.errors import PlanError, SourceError, StoreError, StreamveilError
from streamveil.operators.dp_sqlp import RoundTotalling
from streamveil.operators.group_by import GroupBy
from streamveil.operators.state import State, types_to_bytes
from streamveil.privacy.ledger import Ledger
from streamveil.privacy.noise import KeyedNoise, Noise
from streamveil.queries.plan import Plan
from streamveil.queries.schema import check_schema
from streamveil.runtime import secret as secrets
from streamveil.runtime.describe import describe
from streamveil.runtime.keys import Keys, check
from streamveil.runtime.lock import Lock
from streamveil.runtime.run import needed_columns
from streamveil.runtime.store import LEDGER, new_epoch

HEADER, MARK, CHECKPOINT, SHARDS = "spark.json", "committed", "checkpoint", "shards"
VERSION = 1
INSECURE = "insecure"
PLACES = ("env", "file", "command")
POLL = 0.05  # seconds


@dataclass(frozen=True)
class SecretFrom:
    """Loads the job's noise where a task runs; carries where the secret is, never the secret."""

    place: str  # 'file:PATH', 'env:NAME' or 'command:PROGRAM ARGS'; 'insecure:HEX' in tests
    epoch: str

    def __call__(self) -> Noise:
        """The noise."""
        kind, _, where = self.place.partition(":")
        if kind == INSECURE:
            return KeyedNoise(bytes.fromhex(where), secure=False)
        found = secrets.given(self.place)
        if found is None:
            raise StoreError("the job's secret is not where the task was told to find it")
        return KeyedNoise(found, bytes.fromhex(self.epoch))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a job is spread; fixed when its state is created."""

    shards: int = 4  # two to four times the executor cores
    storage: str | None = None  # of shard state: a URI all executors reach; None: in the state

    def __post_init__(self) -> None:
        if self.shards < 1:
            raise PlanError(f"shards must be at least 1, not {self.shards}")


@dataclass(frozen=True, kw_only=True)
class Header:
    """What ties state, checkpoint, epoch and secret together."""

    fingerprint: str
    shards: int
    storage: str | None
    epoch: str
    noise_check: str
    ready: bool = False  # whether the charge was taken
    version: int = VERSION

    @classmethod
    def read(cls, path: Path) -> Header | None:
        """The header of a state, if it is one."""
        if not path.exists():
            return None
        try:
            found = cls(**json.loads(path.read_text()))
        except (ValueError, TypeError):
            raise StoreError(f"'{path.name}' of the state is damaged") from None
        if found.version != VERSION:
            raise StoreError("the state was written by another version of streamveil")
        return found


class SparkJob:
    """Runs or resumes a plan on a Spark session; iterating gives its releases."""

    def __init__(
        self, plan: Plan, *, state: str | Path, session: Any, layout: Layout | None = None,
        keys: Keys | None = None, once: bool = False,
    ) -> None:  # fmt: skip
        self.plan, self.session, self.home = plan, session, Path(state).absolute()
        self.layout, self.once = layout or Layout(), once
        self.operator = operator_of(plan)
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock = Lock(self.home)
        try:
            self.secret = self._open(keys or Keys())
            self.shards = Shards(self.layout.storage or str(self.home / SHARDS))
            self._require_whole()
            self.setup = self._setup()
        except BaseException:
            self.lock.close()
            raise
        self.sink: Sink | None = None
        if plan.sink is not None:
            self.sink = open_sink(plan.sink.kind, plan.sink.options)
        self.out: SimpleQueue[Release] = SimpleQueue()
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[Release]:
        """Runs to the end of what is there, or of a live schedule; gives releases as they come."""
        self.session.dataSource.register(StepSource)
        frame = self.session.readStream.format(NAME).options(**self._options()).load()
        query = (
            frame.writeStream.foreachBatch(self._guarded_step)
            .option("checkpointLocation", str(self.home / CHECKPOINT)).start()
        )  # fmt: skip
        waiter = Thread(target=self._wait, args=(query,), daemon=True)
        waiter.start()
        try:
            while waiter.is_alive() or not self.out.empty():
                try:
                    yield self.out.get(timeout=POLL)
                except Empty:
                    continue
        finally:
            query.stop()
            waiter.join()
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> SparkJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets another process have the state."""
        if self.sink is not None:
            self.sink.close()
        self.lock.close()

    @property
    def committed(self) -> int:
        """The last step whose releases are all published."""
        mark = self.home / MARK
        return int(mark.read_text()) if mark.exists() else 0

    # ---- creation and checks

    def _open(self, keys: Keys) -> SecretFrom:
        """Creates header, epoch, secret and charge together, or checks that all are still there."""
        header = Header.read(self.home / HEADER)
        if header is None:
            self._require_empty()
            place = place_of(keys, self.home)
            if place == f"file:{self.home / secrets.SECRET}":
                fresh = not (self.home / secrets.SECRET).exists()
                (secrets.create if fresh else secrets.kept)(self.home)
            secret = SecretFrom(place, new_epoch().hex())
            header = Header(
                fingerprint=self.plan.fingerprint, shards=self.layout.shards,
                storage=self.layout.storage, epoch=secret.epoch, noise_check=check(secret()),
            )  # fmt: skip
            self._write(header)
        secret = SecretFrom(place_of(keys, self.home), header.epoch)
        if (header.fingerprint, header.shards, header.storage) != (
            self.plan.fingerprint, self.layout.shards, self.layout.storage,
        ):  # fmt: skip
            raise StoreError(
                "this state was created by another query, or with other shards or storage.\n"
                "  to fix  use a state directory of its own for each query"
            )
        if secret.place.startswith("file:"):
            require_present(Path(secret.place.removeprefix("file:")), "secret")
        if header.noise_check != check(secret()):
            raise StoreError(
                "the secret is not the one this state was created with.\n"
                "  to fix  give that secret; other noise on the same data would reveal it"
            )
        self._charge(header)
        return secret

    def _require_empty(self) -> None:
        if any((self.home / name).exists() for name in (LEDGER, MARK, CHECKPOINT, SHARDS)):
            raise StoreError(
                f"the state directory '{self.home.name}' has lost its '{HEADER}', and with it the"
                " epoch of its noise.\n  to fix  restore it, or start in an empty directory"
            )

    def _charge(self, header: Header) -> None:
        path, guarantee = self.home / LEDGER, self.operator.guarantee
        if header.ready:
            require_present(path, "ledger")
        with Ledger.open(path, self.plan.budget, guarantee.protects) as ledger:
            if not header.ready:
                about = describe(self.plan, self.operator, time.time())  # noqa: TID251  (a date)
                ledger.charge(self.plan.name, guarantee, key=header.epoch, about=about)
            elif header.epoch not in {charge.key for charge in ledger.entries()}:
                raise StoreError(
                    "the ledger of the state does not hold this job's charge.\n"
                    "  to fix  restore the whole directory from a backup of one moment"
                )
        if not header.ready:
            self._write(Header(**{**asdict(header), "ready": True}))

    def _write(self, header: Header) -> None:
        durable(self.home / HEADER, json.dumps(asdict(header), indent=2))

    def _require_whole(self) -> None:
        """Refuses to go on when a part is missing: the same noise could meet other data."""
        offsets = self.home / CHECKPOINT / "offsets"
        if not self.committed:
            if any((self.home / SHARDS / "key").glob("*")) and not offsets.exists():
                raise missing("checkpoint")
            if offsets.exists() and self._logged() > 1:
                raise missing("mark of committed steps")
            return
        if not offsets.exists() or self._logged() < self.committed:
            raise missing("checkpoint")
        for stage in ("unit", "key"):
            if not self.shards.has(stage, self.committed, self.layout.shards):
                raise missing("shards' state")

    def _logged(self) -> int:
        """The last step in Spark's offset log."""
        offsets = self.home / CHECKPOINT / "offsets"
        batches = [int(path.name) for path in offsets.iterdir() if path.name.isdecimal()]
        return self._step_of(max(batches)) if batches else 0

    # ---- running

    def _options(self) -> dict[str, str]:
        return options_for(self.plan.source.options, self.plan.clock, self._arrival)

    @property
    def _arrival(self) -> str | None:
        clock = self.plan.clock
        return (clock.arrival or self.plan.source.event_time) if clock.kind == "event" else None

    def _setup(self) -> tasks.Setup:
        """What tasks need; the types of the keys follow from the schema alone."""
        schema = FilesSource(**self.plan.source.options).schema()
        check_schema(self.plan, schema)
        wanted = pa.schema([schema.field(name) for name in needed_columns(self.plan, schema)])
        state = State()
        self.operator.arrive(state, Batch(wanted.empty_table(), 1, True, "{}"), self.secret())  # noqa: FBT003
        types = types_to_bytes(state.types or ()).tobytes()
        packed = tasks.Packed.of(self.plan, self.operator)
        return tasks.Setup(
            packed, self.layout.shards, self.shards, self.secret, types,
            Reading(wanted, self.plan.clock, self._arrival),
        )  # fmt: skip

    def _wait(self, query: Any) -> None:
        """Returns when the job is done or has failed; keeps the reason."""
        live = self.plan.clock.kind == "wall" and not self.once
        last = self.plan.clock.steps
        try:
            if not live:
                query.processAllAvailable()
            while live and query.isActive and (last is None or self.committed < last):
                time.sleep(POLL)
            if query.exception() is not None:
                raise query.exception()
        except Exception as error:
            self.failure = self.failure or explained(error)

    def _guarded_step(self, frame: Any, batch: int) -> None:
        try:
            self._step(frame, batch)
        except Exception as error:
            self.failure = explained(error)
            raise self.failure from None

    def _step(self, frame: Any, batch: int) -> None:
        """One micro-batch: compute, publish, mark."""
        step = self._step_of(batch)
        if step <= self.committed:
            return
        if step != self.committed + 1:
            raise missing("step after the last committed one")
        for release in stages.merged(self._releases(frame, step)):
            if self.sink is not None:
                self.sink.write(self.plan.name, release.window, release.trigger, release.table)
            self.out.put(release)
        durable(self.home / MARK, str(step))
        self.shards.drop(step - KEPT)

    def _releases(self, frame: Any, step: int) -> list[Release]:
        """Runs the three stages on Spark; one job, three stages of tasks."""
        setup, shards = self.setup, self.layout.shards
        admitted = frame.mapInArrow(
            tasks.admit_task(setup, step), spark_schema(stages.admitted_schema(self.operator))
        )
        bounded = admitted.repartitionById(shards, admitted["unit_shard"]).mapInArrow(
            tasks.bound_task(setup, step), spark_schema(stages.bounded_schema(self.operator))
        )
        released = bounded.repartitionById(shards, bounded["key_shard"]).mapInArrow(
            tasks.release_task(setup, step), spark_schema(tasks.RELEASED)
        )
        return tasks.unpacked(released.toArrow(), step)

    def _step_of(self, batch: int) -> int:
        """The step that Spark logged for a batch before running it."""
        log = self.home / CHECKPOINT / "offsets" / str(batch)
        return int(json.loads(log.read_text().splitlines()[-1])["step"])


def operator_of(plan: Plan) -> GroupBy:
    """The group-by of a plan, when its shards can run apart."""
    if plan.source.kind != "files":
        raise PlanError(
            f"Spark cannot read the source '{plan.source.kind}' here.\n"
            "  to fix  use files, or run on the embedded engine"
        )
    operator = compile_plan(plan)
    if isinstance(operator.totalling, RoundTotalling):
        raise PlanError(
            "the preset 'dp-sqlp' runs on the embedded engine only.\n"
            "  to fix  leave the preset out, or use --engine embedded"
        )
    if operator.distinct_lanes:
        raise PlanError(
            "COUNT(DISTINCT x) of values runs on the embedded engine only.\n"
            "  to fix  use --engine embedded, or ask for it in a query of its own"
        )
    return operator


def place_of(keys: Keys, home: Path) -> str:
    """Where tasks find the secret; refuses to send a secret itself to them."""
    if isinstance(keys.noise, KeyedNoise) and not keys.noise.secure:
        warnings.warn("insecure noise: this job's releases protect nobody", stacklevel=3)
        return f"{INSECURE}:{keys.noise.secret.hex()}"
    if keys.noise is None and keys.secret is None:
        known = os.environ.get(secrets.ENVIRONMENT)
        return f"env:{secrets.ENVIRONMENT}" if known else f"file:{home / secrets.SECRET}"
    text = keys.secret if isinstance(keys.secret, str) else ""
    if keys.noise is not None or text.partition(":")[0] not in PLACES:
        raise PlanError(
            "on Spark a secret is named by its place, so that it never travels with the tasks.\n"
            "  to fix  give env:NAME, file:PATH or command:PROGRAM"
        )
    return text


def explained(error: Exception) -> StreamveilError:
    """Our own error, wherever Spark wrapped it; of anything else only the type is told."""
    if isinstance(error, StreamveilError):
        return error
    found = re.search(r"streamveil\.errors\.(\w+): (.+?)(?:\n\s*\n|\n\s+at |\Z)", str(error), re.S)
    if found is None:
        return StreamveilError(
            f"Spark stopped the job ({type(error).__name__}); the message is withheld because it"
            " could hold a value from the data.\n  to fix  see Spark's own log"
        )
    known = {kind.__name__: kind for kind in (PlanError, SourceError, StoreError)}
    return known.get(found[1], StreamveilError)(found[2].rstrip())


def missing(what: str) -> StoreError:
    """The error for a part of a state that is not there."""
    return StoreError(
        f"the state has lost its {what}; going on could use noise twice.\n"
        "  to fix  restore the directory from one moment; a new start needs a new state and budget"
    )


def require_present(path: Path, what: str) -> None:
    """Raises StoreError when a part of a state is gone."""
    if not path.exists():
        raise missing(what)


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
