"""A Spark source that advances only at public times: one micro-batch is one step.

The step number is part of the offset, so Spark writes it to its offset log before anything is
computed, a replay sees the same rows in the same step, and a step happens also without rows. The
last offset of a batch names its step; nothing is ever inferred from Spark's batch numbers or
watermarks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StringType, StructField, StructType

from streamveil.connectors.files import FilesSource
from streamveil.connectors.kafka_topic import Topic
from streamveil.engines.spark.kafka import KafkaFeed
from streamveil.engines.spark.source_offsets import Feed, FilesFeed
from streamveil.plan import Clock

NAME = "streamveil"
SCHEMA = StructType([StructField("split", StringType())])


class StepSource(DataSource):
    """Spark's entry: options carry the source and the clock as JSON. Its rows only name splits.

    The rows themselves are read by the tasks that use them: through this source they would be
    turned into Spark's own rows and back for nothing.
    """

    @classmethod
    def name(cls) -> str:
        """The format name."""
        return NAME

    def schema(self) -> StructType:
        """One column: a split as JSON."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> StepReader:  # noqa: N802  (Spark's name)
        """The reader of one query."""
        return StepReader(dict(self.options))


class TaskSplits(InputPartition):
    """The splits that one task reads."""

    def __init__(self, splits: list[str]) -> None:
        super().__init__(None)
        self.splits = splits


class StepReader(DataSourceStreamReader):
    """Offsets {"step": i, ...what the feed saw when the step was planned...}.

    Step i is planned once, when it starts. A replay that does not find the same rows is refused,
    because the same noise on other data would reveal the difference.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self.feed = feed_of(options)
        self.clock = Clock(**json.loads(options["clock"]))

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The offset before the first step."""
        return {"step": 0, **self.feed.nothing()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The offset after the next step, once its public time has come; else the present one."""
        step, clock = int(start["step"]) + 1, self.clock
        due = clock.due_us(step) / 1e6 if clock.timed else 0.0
        if clock.kind == "wall":
            ended = clock.steps is not None and step > clock.steps
            if ended or time.time() < due:  # noqa: TID251  (a source's clock)
                return start
        seen = self.feed.seen(start, due)
        if clock.kind != "wall" and not self.feed.has(seen, step):
            return start
        return {"step": step, **seen}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The splits of the step in pieces for tasks; one empty piece when there are none."""
        step = int(end["step"])
        if step == int(start["step"]):
            return []
        return [TaskSplits(texts) for texts in self.feed.splits(start, end, step)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The names of one piece's splits."""
        assert isinstance(partition, TaskSplits)  # noqa: S101  (Spark hands back what we made)
        yield pa.RecordBatch.from_pydict({"split": pa.array(partition.splits, pa.string())})

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to release: rows stay where they are."""

    def stop(self) -> None:
        """Nothing is open."""


def feed_of(options: dict[str, str]) -> Feed:
    """The inverse of `options_for`."""
    clock = Clock(**json.loads(options["clock"]))
    source = json.loads(options["from"])
    if options["kind"] == "kafka":
        return KafkaFeed(Topic.of(source), clock)
    return FilesFeed(FilesSource(**source), clock, options.get("arrival") or None)
