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
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from streamveil.connectors.files import FilesSource
from streamveil.engines.spark.splits import Split, footers, last_step, plan_step, read_split
from streamveil.queries.plan import Clock

NAME = "streamveil"
POSITION = "__position"  # global position of a row; -1 on the row that only marks the step
STEP = "__step"
SPLITS = 64  # splits in one task, at most


class StepSource(DataSource):
    """Spark's entry: options carry the source, the clock and the columns as JSON."""

    @classmethod
    def name(cls) -> str:
        """The format name."""
        return NAME

    def schema(self) -> StructType:
        """The wanted columns, the position and the step."""
        return from_arrow_schema(arrow_schema(source_of(self.options), columns_of(self.options)))

    def streamReader(self, schema: StructType) -> StepReader:  # noqa: N802  (Spark's name)
        """The reader of one query."""
        return StepReader(dict(self.options))


class Piece(InputPartition):
    """The splits that one task reads."""

    def __init__(self, step: int, splits: list[str]) -> None:
        super().__init__(None)
        self.step, self.splits = step, splits


class StepReader(DataSourceStreamReader):
    """Offsets {"step": i}; step i is planned when it starts and never again differently."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.clock = Clock(**json.loads(options["clock"]))
        self.columns = columns_of(options)
        self.arrival = options.get("arrival") or None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Before the first step."""
        return {"step": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """One step further, once its public time has come; else where we are."""
        step = int(start["step"]) + 1
        if self.clock.kind == "wall":
            due = ((self.clock.start_us or 0) + step * self.clock.every) / 1e6
            ended = self.clock.steps is not None and step > self.clock.steps
            return start if ended or time.time() < due else self._wall_offset(start, step)  # noqa: TID251  (a source's clock)
        return {"step": step} if step <= self._last() else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The splits of the step, and one piece that only marks it."""
        step = int(end["step"])
        if step == int(start["step"]):
            return []
        groups = footers(source_of(self.options), self.arrival)
        if self.clock.kind == "wall":
            groups = [g for g in groups if start.get("rows", 0) <= g.base < end["rows"]]
        splits = [split.text() for split in plan_step(groups, self.clock, step)]
        pieces = [Piece(step, splits[i : i + 1]) for i in range(len(splits))]
        return [Piece(step, []), *pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one piece as Arrow."""
        schema = arrow_schema(source_of(self.options), self.columns)
        assert isinstance(partition, Piece)  # noqa: S101  (Spark hands back what we made)
        if not partition.splits:
            mark = {
                **{name: [None] for name in schema.names},
                POSITION: [-1],
                STEP: [partition.step],
            }
            yield pa.RecordBatch.from_pydict(mark, schema=schema)
        for text in partition.splits:
            split = Split(**json.loads(text))
            table, position, _ = read_split(
                split, self.columns, self.clock, partition.step, self.arrival
            )
            table = table.append_column(POSITION, pa.array(position))
            step = pa.array([partition.step], pa.int64()).take(
                pa.array([0] * table.num_rows, pa.int64())
            )
            yield from table.append_column(STEP, step).cast(schema).to_batches()

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to release: files stay."""

    def stop(self) -> None:
        """Nothing is open."""

    def _last(self) -> int:
        return last_step(footers(source_of(self.options), None), self.clock)

    def _wall_offset(self, start: dict[str, Any], step: int) -> dict[str, Any]:
        groups = footers(source_of(self.options), None)
        rows = groups[-1].base + groups[-1].rows if groups else 0
        return {"step": step, "rows": max(rows, int(start.get("rows", 0)))}


def options_for(
    source: dict[str, Any], clock: Clock, columns: list[str], arrival: str | None
) -> dict[str, str]:
    """The options that name a source, as Spark wants them."""
    return {
        "source": json.dumps(source),
        "clock": json.dumps(asdict(clock)),
        "columns": json.dumps(columns),
        "arrival": arrival or "",
    }


def source_of(options: Any) -> FilesSource:
    """The source of some options."""
    return FilesSource(**json.loads(options["source"]))


def columns_of(options: Any) -> list[str]:
    """The wanted columns of some options."""
    return list(json.loads(options["columns"]))


def arrow_schema(source: FilesSource, columns: list[str]) -> pa.Schema:
    """What the source yields: wanted columns, position, step."""
    own = source.schema()
    wanted = [own.field(name).with_nullable(True) for name in columns]  # noqa: FBT003
    return pa.schema([*wanted, pa.field(POSITION, pa.int64()), pa.field(STEP, pa.int64())])
