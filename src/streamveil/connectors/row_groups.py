"""What the footers of Parquet files, or first rows, tell of times before a job reads its files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamveil.connectors.base import Source, micros
from streamveil.errors import StreamveilError

UNITS = {"milliseconds": ("ms", 1_000, 1), "microseconds": ("us", 1, 1),
         "nanoseconds": ("ns", 1, 1_000)}  # fmt: skip


class RowGroup(NamedTuple):
    """A row group, in the order in which files are read."""

    rows: int
    nbytes: int  # of all its columns, before compression
    span: tuple[int, int] | None  # its first and last time, microseconds; None: not known


UNKNOWN = RowGroup(0, 0, None)
LOOKED_AT = 100_000  # rows of files whose footers tell no times
AT_ONCE = 10_000


def nothing_to_read(source: Source, column: str | None, span: tuple[int, int] | None) -> str | None:
    """What to tell the operator where no file is, or none of a time from start to before end.

    Where footers tell no times, as in CSV and JSON, rows are read until one is of that time, at
    most `LOOKED_AT` of them.
    """
    if not getattr(source, "on_disk", False):
        return None
    files: list[Path] = source.files()  # type: ignore[attr-defined]  # whoever says so has them
    if not files:
        return "no file is there yet"
    if span is None or column is None:
        return None
    start_us, end_us = span
    try:
        spans = [group.span for group in row_groups(files, column) or [UNKNOWN]]
    except (OSError, pa.ArrowException):
        spans = [None]  # no Parquet
    known = [span for span in spans if span is not None]
    if len(known) < len(spans):
        return nothing_in_first_rows(source, column, span)
    first, last = min(first for first, _ in known), max(last for _, last in known)
    return (
        None
        if first < end_us and start_us <= last
        else "no file holds a time between start and end"
    )


def nothing_in_first_rows(source: Source, column: str, span: tuple[int, int]) -> str | None:
    """What to tell where none of the first rows is of a time from start to before end."""
    start_us, end_us = span
    seen = 0
    try:
        for chunk in source.read(None, AT_ONCE, [column]):
            us = np.asarray(pc.drop_null(micros(chunk.rows.column(column), column)))
            if ((us >= start_us) & (us < end_us)).any():
                return None
            seen += len(chunk.rows)
            if seen >= LOOKED_AT:
                return f"none of the first {LOOKED_AT:,} rows has a time between start and end"
    except (OSError, pa.ArrowException, StreamveilError):
        return None  # the job will meet it, and say so
    return "no row has a time between start and end"


def row_groups(
    paths: Iterable[Path], column: str | None, kind: pa.DataType | None = None
) -> list[RowGroup] | None:
    """All row groups of some files; None where a file does not hold the column as that type.

    `kind`: None stands for any timestamp.
    """
    found: list[RowGroup] = []
    for path in paths:
        with pq.ParquetFile(path) as file:
            facts, schema = file.metadata, file.schema_arrow
            places = [i for i in range(facts.num_columns) if facts.schema.column(i).path == column]
            if len(places) != 1 or kind not in (None, schema.field(column).type):
                return None
            for number in range(facts.num_row_groups):
                group = facts.row_group(number)
                span = span_of(group.column(places[0]), kind)
                found.append(RowGroup(group.num_rows, group.total_byte_size, span))
    return found


def span_of(chunk: pq.ColumnChunkMetaData, kind: pa.DataType | None) -> tuple[int, int] | None:
    """The first and last time of a row group as its statistics have them, rounded down.

    They are read as whole numbers: a time that no calendar has stops nothing.
    """
    told = chunk.statistics
    if told is None or not told.has_min_max or told.physical_type != "INT64":
        return None
    if kind is not None and pa.types.is_int64(kind):
        return told.min_raw, told.max_raw
    logical = json.loads(told.logical_type.to_json())
    unit = logical.get("timeUnit")
    if logical["Type"] != "Timestamp" or unit not in UNITS:
        return None
    if kind is not None and (not pa.types.is_timestamp(kind) or UNITS[unit][0] != kind.unit):
        return None
    _, factor, parts = UNITS[unit]
    return told.min_raw * factor // parts, told.max_raw * factor // parts
