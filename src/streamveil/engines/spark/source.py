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
from dataclasses import asdict
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StringType, StructField, StructType

from streamveil.connectors.files import FilesSource
from streamveil.engines.spark.splits import (
    Group,
    Split,
    digest,
    footers,
    last_step,
    plan_step,
)
from streamveil.errors import SourceError
from streamveil.queries.plan import Clock

NAME = "streamveil"
SCHEMA = StructType([StructField("split", StringType())])
PIECE = 250_000  # rows of one task, about; a row group is never cut for it


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


class Piece(InputPartition):
    """The splits that one task reads."""

    def __init__(self, splits: list[str]) -> None:
        super().__init__(None)
        self.splits = splits


class StepReader(DataSourceStreamReader):
    """Offsets {"step": i, "groups": n, "digest": d}.

    Step i is planned when it starts, over the first n row groups, and never again differently: a
    replay that does not find the same row groups is refused, because the same noise on other data
    would reveal the difference.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self.source = FilesSource(**json.loads(options["source"]))
        self.clock = Clock(**json.loads(options["clock"]))
        self.arrival = options.get("arrival") or None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Before the first step."""
        return {"step": 0, "groups": 0, "digest": digest([])}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """One step further, once its public time has come; else where we are."""
        step, clock = int(start["step"]) + 1, self.clock
        if clock.kind == "wall":
            due = ((clock.start_us or 0) + step * clock.every) / 1e6
            ended = clock.steps is not None and step > clock.steps
            if ended or time.time() < due:  # noqa: TID251  (a source's clock)
                return start
        groups = self._groups(start)
        if clock.kind != "wall" and step > last_step(groups, clock):
            return start
        return {"step": step, "groups": len(groups), "digest": digest(groups)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The splits of the step in pieces for tasks; one empty piece when there are none."""
        step = int(end["step"])
        if step == int(start["step"]):
            return []
        groups = self._groups(end)[: end["groups"]]
        if self.clock.kind == "wall":
            groups = groups[start["groups"] :]
        return [Piece(texts) for texts in pieces(plan_step(groups, self.clock, step))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The names of one piece's splits."""
        assert isinstance(partition, Piece)  # noqa: S101  (Spark hands back what we made)
        yield pa.RecordBatch.from_pydict({"split": pa.array(partition.splits, pa.string())})

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to release: files stay."""

    def stop(self) -> None:
        """Nothing is open."""

    def _groups(self, seen: dict[str, Any]) -> list[Group]:
        """What is there now, which must begin with what was there before."""
        groups = footers(self.source, self.arrival)
        if digest(groups[: seen["groups"]]) != seen["digest"]:
            raise SourceError(
                "the files already read changed, or a new one sorts before them.\n"
                "  to fix  give new files names that sort after the old ones, and keep the old ones"
            )
        return groups


def pieces(splits: list[Split]) -> Iterator[list[str]]:
    """Splits in runs of about `PIECE` rows; at least one run."""
    held: list[str] = []
    rows = 0
    for split in splits:
        if held and rows + split.rows > PIECE:
            yield held
            held, rows = [], 0
        held.append(split.text())
        rows += split.rows
    yield held


def options_for(source: dict[str, Any], clock: Clock, arrival: str | None) -> dict[str, str]:
    """The options that name a source, as Spark wants them."""
    return {
        "source": json.dumps(source), "clock": json.dumps(asdict(clock)), "arrival": arrival or "",
    }  # fmt: skip
