"""The job of a plan on Spark: compute a step, publish its releases, mark it.

Spark writes the step to its offset log before anything runs, so a replayed micro-batch has the same
rows. Shards read version i - 1 and write version i, so a repeated task writes the same bytes.
Releases are published under their identity (job, window, trigger) and the step is then marked as
committed; a step that is marked is not computed again. The ledger is charged once, at creation.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, cast

import pyarrow as pa

from streamveil import compiler
from streamveil.accounts.ledger import Where
from streamveil.batch import Batch, Release
from streamveil.compiler import require_ends
from streamveil.compiler.group_by import check_public
from streamveil.connectors import open_sinks, open_source, signed
from streamveil.connectors.files import FilesSource
from streamveil.connectors.kafka_rows import TopicRows
from streamveil.connectors.kafka_topic import Topic
from streamveil.dataflow import Operator, total
from streamveil.dataflow.state import types_to_bytes
from streamveil.disk import Lock
from streamveil.engines.spark import stages, state_cache, tasks
from streamveil.engines.spark.kafka import KafkaReading
from streamveil.engines.spark.session import require_callbacks
from streamveil.engines.spark.shards import Shards
from streamveil.engines.spark.source import NAME, StepSource
from streamveil.engines.spark.source_offsets import FilesReading, Reading, options_for
from streamveil.engines.spark.splits import require_columns
from streamveil.engines.spark.stage_plan import spread_of
from streamveil.errors import (
    INNER,
    PlanError,
    SourceError,
    StoreError,
    StreamveilError,
    require_outer,
)
from streamveil.expressions.dialect import shown
from streamveil.plan import Plan, TableSource, combined_plan
from streamveil.plan.combine import combined_schema
from streamveil.plan.joins import OwnJoin, digest_of
from streamveil.plan.options import ASK_SHARE, CUT_SHARE, INTERVALS, LOOK_SHARE
from streamveil.plan.own_rows import ALONE, OwnRows, OwnStep, after_steps, column_text, own_rows
from streamveil.results.post import post_processed, require_post
from streamveil.runtime.account import Account, describe
from streamveil.runtime.combined import all_rows
from streamveil.runtime.formats import calibration
from streamveil.runtime.progress import Listener, Progress, silent
from streamveil.runtime.run import warn_of_future, warn_of_noise, warn_of_nothing
from streamveil.runtime.secret import Randomness
from streamveil.runtime.spark_state import (
    CHECKPOINT,
    SHARDS,
    Home,
    Made,
    PublishedStep,
    SecretFrom,
    SparkLayout,
    missing,
    place_of,
)
from streamveil.sql.schema import check_schema, needed_columns, time_named

Publish = Callable[[Any, Release], None]  # a Spark DataFrame of a release, and the release
POLL = 0.05  # seconds
ATTEMPTS = 4  # at a step, on a machine too busy for Spark's Python workers
REST = 3.0  # seconds between them
LATE = "Python worker failed to connect back"  # Spark gives a new one ten seconds
RESUMES = "then run again: the job resumes from its last step"
ENDS = {  # what Spark, Java and py4j say of memory that is not there -> what it means, the way out
    r"Python worker exited unexpectedly|\bMemoryError\b": (
        "a Python worker of Spark ended or ran out of memory; most often the system or the"
        " container killed it for the memory it took.",
        "give Spark fewer cores or executors more memory (spark.executor.memoryOverhead),"
        f" {RESUMES}",
    ),
    r"java\.lang\.OutOfMemoryError|Cannot allocate memory|error=12\b": (
        "Spark's Java ran out of memory.",
        f"give it more (SPARK_DRIVER_MEMORY, spark.executor.memory) or free some, {RESUMES}",
    ),
    r"Py4JNetworkError|ConnectionRefusedError|Answer from Java side is empty|SparkContext was shut"
    r" down|Cannot call methods on a stopped SparkContext": (
        "Spark's Java process is gone, or its session was stopped; where nobody ended it, the"
        " system or the container killed it for the memory it took.",
        f"give it more memory or fewer cores, {RESUMES}",
    ),
}
PATIENCE = 10.0  # seconds for executors to clean up; a cluster that is gone does not answer
CONF = {  # of the job's own Spark session; the user's stays as it is
    "spark.sql.adaptive.enabled": "false",  # shards must stay where their state is written
    "spark.sql.execution.arrow.maxRecordsPerBatch": "16",  # cells are pieces of many rows
    "spark.sql.streaming.numRecentProgressUpdates": "2",
    "spark.sql.streaming.offsetLog.formatVersion": "1",  # as `Home.step_of` reads it
    "spark.sql.session.timeZone": "UTC",
}


class LateWorkerError(StreamveilError):
    """A Python worker did not answer Spark in time. Going on from the last step is safe."""


class SparkJob:
    """Runs or resumes a plan on a Spark session; iterating gives its releases.

    A new job is charged at once, or without `charge` when it begins to run.
    """

    def __init__(  # noqa: PLR0913  (what `SparkEngine.start` was given)
        self, plan: Plan, *, state: str | Path, session: Any, layout: SparkLayout | None = None,
        keys: Randomness | None = None, once: bool = False, progress: Listener | None = None,
        ledger: Where | None = None, publish: Publish | None = None, charge: bool = True,
    ) -> None:  # fmt: skip
        fingerprint, plan = plan.fingerprint, placed(plan)
        self.plan, self.session, self.once = plan, session, once
        self.layout, self.tell, self.publish = layout or SparkLayout(), progress or silent, publish
        self.operator, self.arriving = operator_of(plan), schema_of(plan)
        self.own: OwnRows | None = None
        self.schema = self.arriving
        if isinstance(plan.source, OwnRows):
            self.own = with_rows(plan.source)
            fingerprint = same_rows(fingerprint, self.own)
            self.schema = own_rows(self.own, self.arriving.empty_table(), tasks.held_rows).schema
        check_schema(plan, self.schema)
        require_post(plan, self.schema)
        check_public(self.operator, combined_schema(plan, self.schema))
        self.spread = spread_of(plan, self.operator)
        if plan.source.kind == "files":
            files = cast(FilesSource, open_source("files", plan.source.options))
            require_columns(files, self._reads())
        path, self.account = Path(state).absolute(), self._account(ledger)
        self.home, keys = Home(path), keys or Randomness()
        if self.home.is_new:  # refused before anything is made
            self.home.require_empty()
            place_of(keys, path)
            require_ends(plan, there=True)
            self.account.require_room()
            warn_of_new(plan, self.operator)
            self.session = begun(session)
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock = Lock(path)
        try:
            made = Made(fingerprint, calibration(self.operator))
            header, secret = self.home.open(made, self.layout, keys)
            self.session = begun(self.session)
            self.shards = Shards(header.storage or str(path / SHARDS), header.epoch)
            self.setup = self._setup(header.shards, secret)
            self.home.require_charged(header, self.account)
            self.home.require_whole(self.shards, self.spread.shards(header.shards))
            self.sink = open_sinks([(one.kind, one.options) for one in plan.sinks])
            self.header = self.home.charge(header, self.account) if charge else header
        except BaseException:
            self.lock.close()
            raise
        self.mark, self.ran = self.home.mark, False
        self.out: SimpleQueue[Release] = SimpleQueue()
        self.failure: Exception | None = None
        self.started, self.rows, self.published = time.perf_counter(), 0, 0

    def __iter__(self) -> Iterator[Release]:
        """Runs to the end of what is there, or of a live schedule; gives releases as they come."""
        try:
            yield from self._attempts()
        except Exception as error:  # Java may go at any moment, and every call to it fails then
            raise explained(error) from None

    def _attempts(self) -> Iterator[Release]:
        session, self.ran = self.session.newSession(), True
        self.charge()
        for name, value in CONF.items():
            session.conf.set(name, value)
        at_most = self.layout.tasks or 2 * session.sparkContext.defaultParallelism
        self.setup = replace(self.setup, tasks=min(self.setup.shards, at_most))
        session.dataSource.register(StepSource)
        frame = session.readStream.format(NAME).options(**self._options()).load()
        steps = frame.writeStream.foreachBatch(self._guarded_step)
        require_callbacks(session)
        steps = steps.option("checkpointLocation", str(self.home.path / CHECKPOINT))
        attempts = 0
        while True:
            self.failure, before = None, self.committed
            yield from self._stream(steps.start())
            attempts = 1 + attempts * (self.committed == before)
            if attempts == ATTEMPTS or not isinstance(self.failure, LateWorkerError):
                break
            time.sleep(REST)
        if self.failure is not None:
            raise self.failure

    def _stream(self, query: Any) -> Iterator[Release]:
        """What a started stream gives until it ends or fails."""
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

    def __enter__(self) -> SparkJob:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives up the state to other processes, and the room of its replicas to executors."""
        if self.sink is not None:
            self.sink.close()
        self.lock.close()
        if self.ran:
            self.ran, cleaner = False, Thread(target=self._forget_replicas, daemon=True)
            cleaner.start()
            cleaner.join(PATIENCE)

    def charge(self) -> None:
        """Charges a new job; a job that was charged pays nothing."""
        self.header = self.home.charge(self.header, self.account)

    @property
    def committed(self) -> int:
        """The last step whose releases are all published."""
        return self.mark.step

    @property
    def closed_steps(self) -> int:
        """The same: a step is published whole."""
        return self.committed

    def _account(self, shared: Where | None) -> Account:
        plan, operator = self.plan, self.operator
        return Account(
            name=plan.name, limit=plan.budget, guarantee=operator.guarantee, shared=shared,
            about=lambda: describe(plan, operator, time.time()),  # noqa: TID251  (a date)
        )  # fmt: skip

    # ---- running

    def _forget_replicas(self) -> None:
        """Deletes replicas where tasks can reach them; others go a day after their last use."""
        job = self.shards.job

        def task(_: Iterator[int]) -> None:
            state_cache.forget(job)

        with suppress(Exception):  # a session that was stopped took them along
            context = self.session.sparkContext
            count = context.defaultParallelism
            context.parallelize(range(count), count).foreachPartition(task)

    def _options(self) -> dict[str, str]:
        source = self.plan.source
        return options_for(source.kind, source.options, self.plan.clock, self._arrival)

    @property
    def _arrival(self) -> str | None:
        clock, source = self.plan.clock, self.plan.source
        name = (clock.arrival or source.event_time) if clock.kind == "event" else None
        if name is None or not isinstance(source, OwnRows):
            return time_named(self.arriving, name)
        read = source.as_read(name)
        if read is None or read.lower() not in {one.lower() for one in self.arriving.names}:
            raise PlanError(
                f"on Spark rows are read by '{shown(name)}' as the files hold it, and a subquery or"
                " a join makes it.\n"
                "  to fix  select the column as it is, or run on the embedded engine"
            )
        return time_named(self.arriving, read)

    def _reads(self) -> list[str]:
        """The columns of the source that tasks read."""
        names = needed_columns(self.plan, self.schema)
        if self.own is not None:
            names = self.own.reads(self.arriving, [*names, *filter(None, [self._arrival])])
        return names

    def _setup(self, shards: int, secret: SecretFrom) -> tasks.Setup:
        """What tasks need; the types of the keys follow from the schema alone."""
        wanted = pa.schema([self.arriving.field(name) for name in self._reads()])
        made = tasks.Setup(
            tasks.Packed.of(self.plan, self.operator), shards, shards, self.shards, secret, b"",
            self._reading(wanted), self.own,
        )  # fmt: skip
        return replace(made, types=self._key_types(made.changed(wanted.empty_table()), secret))

    def _key_types(self, nothing: pa.Table, secret: SecretFrom) -> bytes:
        """Of a group-by; raises for columns that an operator cannot take, before any row is."""
        state = self.operator.init()
        arrived = combined_schema(self.plan, nothing.schema).empty_table()
        self.operator.fold(state, Batch(arrived, 1, True, "{}"), secret())  # noqa: FBT003
        return types_to_bytes(getattr(state, "types", None) or ()).tobytes()

    def _reading(self, wanted: pa.Schema) -> Reading:
        source = self.plan.source
        if source.kind == "kafka":
            return KafkaReading(Topic.of(source.options), wanted)
        return FilesReading(wanted, self.plan.clock, self._arrival)

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
        step = self.home.step_of(batch)
        if step <= self.mark.step:
            return
        if step != self.mark.step + 1:
            raise missing("step after the last committed one")
        found, report = self._compute(frame, step)
        self.lock.require_own()
        releases = found
        if not self.spread.alone:
            releases = stages.merged(found, len(self.plan.keys))
        releases = [post_processed(release, self.plan.post) for release in releases]
        for release in releases:
            if self.sink is not None:
                self.sink.write(self.plan.name, release)
            if self.publish is not None:
                made = frame.sparkSession.createDataFrame(signed(release.table))
                handed_over(self.publish, made, release)
        for release in releases:  # all are public: a step that is tried again gives none twice
            self.out.put(release)
            self.published += 1
        rejected = total([self.mark.rejected, report["reject_counts"]])
        mark = PublishedStep(
            step=step, rows=self.mark.rows + report["rows"], rejected=rejected, tags=report["tags"]
        )
        self.home.commit(mark)
        self.mark = mark
        self.shards.tidy(step - 1)
        self._report(report)

    def _report(self, report: dict[str, Any]) -> None:
        """Tells how the step went. Operator-only: the counts depend on private rows."""
        self.rows += report["rows"]
        self.tell(
            Progress(
                batch=self.mark.step, step=self.mark.step, rows=self.rows, releases=self.published,
                seconds=time.perf_counter() - self.started, log_bytes=0,
                checkpoint_bytes=report["counters"].get("bytes", 0),
                rejected=self.mark.rejected, counters=report["counters"],
            )
        )  # fmt: skip

    def _compute(self, frame: Any, step: int) -> tuple[list[Release], dict[str, Any]]:
        """Runs all stages on Spark: one job, a shuffle between any two stages."""
        setup, (first, *rest) = self.setup, self.spread.stages
        rows = frame.mapInArrow(first(setup, step), spark_schema(tasks.MOVING))
        for stage, count in zip(rest, self.spread.tasks(setup.tasks), strict=True):
            made = spark_schema(tasks.RELEASED if stage is rest[-1] else tasks.MOVING)
            rows = rows.repartitionById(count, rows["task"]).mapInArrow(stage(setup, step), made)
        return tasks.unpacked(rows.toArrow(), step)


def warn_of_new(plan: Plan, operator: Operator) -> None:
    """Warns of a new job before it is charged, as the embedded engine does."""
    warn_of_nothing(plan)
    warn_of_noise(plan, operator)
    warn_of_future(plan)


def handed_over(publish: Publish, frame: Any, release: Release) -> None:
    """Calls a user's function. What it says in an error may be shown: it knows releases alone."""
    try:
        publish(frame, release)
    except Exception as error:
        own = isinstance(error, StreamveilError)
        if own or type(error).__module__.startswith(("py4j.", "pyspark.")):  # see `explained`
            raise
        raise StreamveilError(
            f"publish raised {type(error).__name__}: {error}\n"
            f"  to fix  repair what it needs, {RESUMES} and calls publish again with the same"
            " releases"
        ) from error


def begun(session: Any) -> Any:
    """A Spark session; given a function that starts one, started now."""
    return session() if callable(session) else session


def operator_of(plan: Plan) -> Operator:
    """The operator of a plan, when its source can be read in parts, the same in every replay."""
    kind = plan.source.kind
    if isinstance(plan.source, TableSource) and ASK_SHARE.of(plan.options):
        raise PlanError(
            "questions to a table are answered by the embedded engine, from its own state; on Spark"
            " their share of the budget would be lost.\n"
            "  to fix  leave ask_share out, or use --engine embedded"
        )
    if isinstance(plan.source, OwnRows):
        require_alone(plan.source)
    if kind not in ("files", "kafka"):
        raise PlanError(
            f"the source '{kind}' cannot be read on Spark: its order must be public and the same in"
            " every replay.\n"
            "  to fix  land it in Parquet files and read these, or run on the embedded engine"
        )
    if kind == "kafka" and plan.clock.kind != "wall":
        raise PlanError("a topic has no end: give the query a wall clock with a start")
    return compiler.operator_of(as_on_spark(combined_plan(plan)))


def require_alone(source: OwnRows) -> None:
    """Refuses steps that look at several rows of the stream, which are in several tasks."""
    for step in source.steps:
        live = isinstance(step, OwnJoin) and step.kept is not None
        if live or not isinstance(step, (*ALONE, OwnJoin)):
            what = "a join on live data" if live else source.words
            raise PlanError(
                f"{what} is not supported on Spark.\n"
                "  to fix  run it with --engine embedded, or let Spark store the rows that it"
                " makes in files first, and query these"
            )


UNIT = f"{INNER}unit"  # column of rows that are held, after their own steps


def with_rows(source: OwnRows) -> OwnRows:
    """The same steps with all rows of other relations in them, which each task holds.

    Proof: a join by the unit computes the results of a stream row from its unit's rows in the other
        relation, and every task has all of these: the results are those of one process, in their
        order, wherever a row is read. `same_rows` ties a state to them, so that a step that is
        computed again has the same.
    """
    made = list[OwnStep]()
    for step in source.steps:
        if isinstance(step, OwnJoin) and isinstance(step.other, OwnRows):
            table, units = after_steps(step.other, all_rows(step.other), all_rows)
            require_outer(table.column_names)
            columns = dict(zip(table.column_names, table.columns, strict=True))
            held = pa.table({**columns, UNIT: units}).combine_chunks()
            other = OwnRows(
                name=step.other.name, kind="memory", options={"table": held},
                unit=column_text(UNIT), person=UNIT, steps=(),
            )  # fmt: skip
            made.append(replace(step, other=other))
        else:
            made.append(step)
    return replace(source, steps=tuple(made))


def same_rows(fingerprint: str, source: OwnRows) -> str:
    """The digest of a query and of the rows that it holds."""
    rows = [digest_of(tasks.held_rows(other)) for other in source.others]
    text = json.dumps([fingerprint, *rows])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest() if rows else fingerprint


def as_on_spark(plan: Plan) -> Plan:
    """The plan as Spark runs it: shards share no count of cut rows, and nobody looks first."""
    wanted = plan.options.get(CUT_SHARE.name) or INTERVALS.of(plan.options) != INTERVALS.value
    if Fraction(str(LOOK_SHARE.of(plan.options))):  # of text where SQL says it
        raise PlanError("look_share is for the embedded engine.\n  to fix  leave it out")
    if wanted:
        raise PlanError(
            "cut_share and intervals = 'true' need a count of all rows over the bound, which the"
            " shards of Spark do not share.\n"
            "  to fix  leave them out, or run on the embedded engine"
        )
    if plan.preset != "default" or compiler.is_sketched(plan):
        return plan
    return replace(plan, options={**plan.options, CUT_SHARE.name: 0, LOOK_SHARE.name: 0})


def placed(plan: Plan) -> Plan:
    """The plan with paths that mean the same in the folder of any task, and of the next start."""
    name = next(iter(plan.source.known.places), "")
    given = plan.source.options.get(name)
    if given is None:
        return plan
    one = isinstance(given, str | Path)
    found = [str(Path(path).absolute()) for path in ([given] if one else given)]
    options = {**plan.source.options, name: found[0] if one else found}
    return replace(plan, source=replace(plan.source, options=options))


def schema_of(plan: Plan) -> pa.Schema:
    """The columns of a plan's source."""
    options = plan.source.options
    if plan.source.kind == "kafka":
        return TopicRows(Topic.of(options)).schema
    schema = open_source(plan.source.kind, options).schema()
    require_outer(schema.names)
    return schema


def explained(error: Exception) -> StreamveilError:
    """Our own error, wherever Spark wrapped it; for any other error, only its type."""
    if isinstance(error, StreamveilError):
        return error
    if LATE in str(error):
        return LateWorkerError(
            "Spark's Python workers did not start within ten seconds: the machine is too busy.\n"
            "  to fix  free it or give Spark fewer cores, then run again: the job resumes from its"
            " last step"
        )
    told = f"{type(error).__name__} {error}"
    found = re.search(r"streamveil\.errors\.(\w+): (.+?)(?:\n\s*\n|\n\s+at |\Z)", str(error), re.S)
    if found is None:
        for pattern, (what, way_out) in ENDS.items():
            if re.search(pattern, told):
                return StreamveilError(f"{what}\n  to fix  {way_out}")
        return StreamveilError(
            f"Spark stopped the job ({type(error).__name__}); the message is withheld because it"
            " could hold a value from the data.\n  to fix  see Spark's own log"
        )
    known = {kind.__name__: kind for kind in (PlanError, SourceError, StoreError)}
    return known.get(found[1], StreamveilError)(found[2].rstrip())


def spark_schema(schema: Any) -> Any:
    """An Arrow schema as Spark's."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
