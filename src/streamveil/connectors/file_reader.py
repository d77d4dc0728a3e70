"""Files of one format, read in parts: Parquet here, text in `text_files`.

Also times from the footers of Parquet files, or from first rows, before a job reads its files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streamveil.batch import plain_schema, with_fields
from streamveil.connectors import Source, micros, select
from streamveil.connectors.manifest import MARK, folders_of, guarded, shown
from streamveil.connectors.rejected_rows import MISFIT, as_lines, fitted, groups_behind, misfits
from streamveil.errors import SourceError, StreamveilError, nearest
from streamveil.types import Array, Int64

MOST_LINE = 1 << 24  # bytes of a line of text, unless another limit is given
UNITS = {"milliseconds": ("ms", 1_000, 1), "microseconds": ("us", 1, 1),
         "nanoseconds": ("ns", 1, 1_000)}  # fmt: skip
# as Spark and Impala write them; nanoseconds, Arrow's own way, end in 2262: 9999 was read as 1816
TIMES_OF_96_BITS: dict[str, Any] = {"coerce_int96_timestamp_unit": "us"}


@dataclass(frozen=True)
class ReadPosition:
    """How far reading has come within a file: `row` rows are done. No name: between two files.

    Names are relative to the folder that holds all files, which may move.
    """

    name: str = ""
    row: int = 0
    size: int = 0  # bytes of that file
    mark: int | None = None  # digest of its content
    malformed: int | None = None  # its malformed lines so far; None: those before `row`


Numbers = Int64[Array, " rows"]


class RejectedLines(NamedTuple):
    """The rejected rows of a file."""

    reason: str
    numbers: Numbers
    lines: list[bytes]
    size: int | None = None  # of a line that is kept only in part


class FilePart(NamedTuple):
    """Rows of a file."""

    rows: pa.Table
    rejected: dict[str, int]
    malformed: int = 0  # malformed lines of the file, up to here
    numbers: Numbers | None = None  # of the rows in the file, from 1; None: not wanted
    rejected_rows: Sequence[RejectedLines] = ()  # if wanted


class Reader:
    """One file format. `read` goes on at a place and yields parts of `max_rows`."""

    def __init__(
        self,
        declared: pa.Schema | None,
        traced: bool = False,  # noqa: FBT001,FBT002
        most_line: int = MOST_LINE,
        delimiter: str = ",",  # of CSV
        quoted_newlines: bool = False,  # noqa: FBT001,FBT002  (of CSV)
    ) -> None:
        self.declared, self.traced, self.most_line = declared, traced, most_line
        self.delimiter, self.quoted_newlines = delimiter, quoted_newlines

    def schema(self, path: Path) -> pa.Schema:
        """Columns of one file."""
        raise NotImplementedError

    def read(
        self, path: Path, wanted: pa.Schema, start: ReadPosition, max_rows: int
    ) -> Iterator[FilePart]:
        """Rows of one file."""
        raise NotImplementedError

    def _require(self, own: pa.Schema, wanted: pa.Schema, path: Path) -> None:
        """SourceError unless a file has all wanted columns, once each."""
        lacking = [name for name in wanted.names if name not in own.names]
        if self.declared is not None and {*lacking} & {*self.declared.names}:
            if any(part.startswith(f"{lacking[0]}=") for part in path.parts):
                raise SourceError(
                    f"column '{lacking[0]}' is not in '{shown(path.name)}' but in the name of its"
                    f" folder.\n  to fix  say folder_columns = ['{lacking[0]}']"
                )
            raise SourceError(
                f"column '{lacking[0]}' is not in '{shown(path.name)}'"
                f"{nearest(lacking[0], own.names)}.\n"
                "  to fix  declare it as the file has it, or say fill_missing = TRUE: declared"
                " columns are then null in files that lack them"
            )
        select(own, wanted.names, f"'{shown(path.name)}'")


def as_named(
    rows: pa.Table, names: Mapping[str, str], known: Mapping[str, Any], wanted: pa.Schema
) -> pa.Table:
    """The wanted columns of a file's rows, by `names` in the file; null for later columns.

    `known`: the table's values for columns that the file lacks.
    """
    columns = [
        rows.column(names[field.name]) if field.name in names
        else pa.repeat(pa.scalar(known.get(field.name), field.type), rows.num_rows)
        for field in wanted
    ]  # fmt: skip
    return pa.table(columns, wanted.names)


def parquet_file(file: Any, **how: Any) -> pq.ParquetFile:
    """An open file of Parquet."""
    return pq.ParquetFile(file, **TIMES_OF_96_BITS, **how)


class ParquetReader(Reader):
    """Parquet, one row group after the other; a resumed read skips whole groups unread."""

    def schema(self, path: Path) -> pa.Schema:
        """From the footer."""
        with guarded(path, lambda: parquet_file(path)) as file:
            return columns_in(file.schema_arrow)

    def read(
        self, path: Path, wanted: pa.Schema, start: ReadPosition, max_rows: int
    ) -> Iterator[FilePart]:
        """See `Reader.read`."""
        # not mapped: one that is cut meanwhile would end the process; what is read before it is
        # wanted stays in memory until the file's end
        file = guarded(path, lambda: parquet_file(path, pre_buffer=False, buffer_size=BUFFER))
        own = columns_in(file.schema_arrow)
        self._require(own, wanted, path)
        for field in wanted:
            if pa.types.is_null(field.type) and own.field(field.name).type != field.type:
                raise SourceError(
                    f"column '{field.name}' has no type in the first file, and one in"
                    f" '{shown(path.name)}': every value would be read as null.\n"
                    "  to fix  declare the column with its type"
                )
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        groups, first = groups_behind(sizes, start.row)
        batches = file.iter_batches(
            max_rows, row_groups=groups, columns=wanted.names, use_threads=True
        )
        tables = (
            with_fields(pa.Table.from_batches([batch])).select(wanted.names)
            for batch in iter(lambda: guarded(path, lambda: next(batches, None)), None)
        )
        for rows, rejected, end, before in fitted(tables, first, start.row, wanted, max_rows):
            if not self.traced:
                yield FilePart(rows, rejected)
                continue
            numbers, rejected_rows = np.arange(end - rows.num_rows, end) + 1, []
            if rejected:
                odd = misfits(before, rows)
                rejected_rows = [
                    RejectedLines(MISFIT, numbers[odd], as_lines(before.filter(pa.array(odd))))
                ]
            yield FilePart(rows, rejected, 0, numbers, rejected_rows)


def columns_in(schema: pa.Schema) -> pa.Schema:
    """The columns of rows with fields of structures as columns: see `with_fields`."""
    while any(pa.types.is_struct(field.type) for field in schema):
        schema = pa.schema([part for field in schema for part in field.flatten()])
    return plain_schema(schema).remove_metadata()


class RowGroup(NamedTuple):
    """A row group, in the order in which files are read."""

    rows: int
    nbytes: int  # of all its columns, before compression
    span: tuple[int, int] | None  # its first and last time, microseconds; None: not known
    complete: bool = False  # whether every row is known to have a time


UNKNOWN = RowGroup(0, 0, None)
BUFFER = 1 << 20  # bytes of a column that are read at once
LOOKED_AT = 100_000  # rows that are tried of files whose footers state no times
AT_ONCE = 10_000
NO_ROW = "no file holds a row"


def nothing_to_read(source: Source, column: str | None, span: tuple[int, int] | None) -> str | None:
    """The warning to the operator if there is no file, or no row with a time within a span.

    Where footers state no times, as in CSV and JSON, rows are read until one lies in the span, at
    most `LOOKED_AT` of them; without a span, until there is one.

    Raises SourceError for a named file that is to be read once and does not exist: a slip. This
    depends on nobody's rows, since a file without rows exists, too.
    """
    named: list[str] | None = getattr(source, "patterns", None)
    if named is None:
        return None
    files: Any = source  # any source with patterns
    if not files.found():
        plain = [one.partition("?")[0] if MARK in one else one for one in named]
        if files.bounded and not any(has_magic(one) or Path(one).exists() for one in plain):
            raise SourceError(
                f"no file matches {', '.join(map(shown, named))}.\n"
                "  to fix  check the path; a folder of a disk, or *, may be empty"
            )
        if files.declared is None:
            return None  # no file tells the columns: the job is refused, and nothing is spent
        return f"no file is there yet{not_there(source)}{folders_of(named)}"
    if not files.on_disk:
        return None
    if span is None or column is None:
        return None if has_row(source) else NO_ROW
    start_us, end_us = span
    try:
        spans = [group.span for group in row_groups(files.files(), column) or [UNKNOWN]]
    except (OSError, pa.ArrowException):
        spans = [None]  # no Parquet
    known = [span for span in spans if span is not None]
    if len(known) < len(spans):
        return nothing_in_first_rows(source, column, span)
    first, last = min(first for first, _ in known), max(last for _, last in known)
    if first < end_us and start_us <= last:
        return None
    return "no file holds a time between start and end"


def not_there(source: Source) -> str:
    """A sentence on a missing folder or bucket of files; else nothing."""
    gone = getattr(source, "missing", lambda: None)()
    return "" if gone is None else f": the {gone} is missing"


def has_row(source: Source) -> bool:
    """Whether files hold a row; True if they cannot be read, which the job will report."""
    try:
        chunks = source.read(None, AT_ONCE, source.schema().names[:1])
        return any(len(chunk.rows) for chunk in chunks)
    except (OSError, pa.ArrowException, StreamveilError):
        return True


def as_read(source: Source, column: str) -> str:
    """The sentence on how integers are read as times; empty for other types."""
    kind = source.schema().field(column).type
    return (
        " (its integers are read as microseconds since 1970)" if pa.types.is_integer(kind) else ""
    )


def nothing_in_first_rows(source: Source, column: str, span: tuple[int, int]) -> str | None:
    """The warning if no time of the first rows lies within a span."""
    start_us, end_us = span
    seen = 0
    try:
        for chunk in source.read(None, AT_ONCE, [column]):
            us = np.asarray(pc.drop_null(micros(chunk.rows.column(column), column)))
            if ((us >= start_us) & (us < end_us)).any():
                return None
            seen += len(chunk.rows)
            if seen >= LOOKED_AT:
                said = f"none of the first {LOOKED_AT:,} rows has a time between start and end"
                return f"{said}{as_read(source, column)}"
    except (OSError, pa.ArrowException, StreamveilError):
        return None  # the job will meet it, and say so
    return f"no row has a time between start and end{as_read(source, column)}" if seen else NO_ROW


def row_groups(
    paths: Iterable[Path], column: str | None, kind: pa.DataType | None = None
) -> list[RowGroup] | None:
    """All row groups of some files; None where a file does not hold the column as that type.

    `kind`: None stands for any timestamp.
    """
    found: list[RowGroup] = []
    for path in paths:
        with parquet_file(path) as file:
            facts, schema = file.metadata, columns_in(file.schema_arrow)
            places = [i for i in range(facts.num_columns) if facts.schema.column(i).path == column]
            if len(places) != 1 or kind not in (None, schema.field(column).type):
                return None
            for number in range(facts.num_row_groups):
                group = facts.row_group(number)
                chunk = group.column(places[0])
                span, told = span_of(chunk, kind), chunk.statistics
                complete = told is not None and told.has_null_count and told.null_count == 0
                found.append(RowGroup(group.num_rows, group.total_byte_size, span, complete))
    return found


def span_of(chunk: pq.ColumnChunkMetaData, kind: pa.DataType | None) -> tuple[int, int] | None:
    """The first and last time of a row group by its statistics, rounded down.

    They are read as integers, so that no time outside the calendar causes an error.
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
