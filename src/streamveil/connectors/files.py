"""Parquet, CSV and JSON-lines files: a path, a glob, or a directory that grows.

Files are read in the order of their paths; within a file rows keep their order. That order is the
canonical one, so new files must sort after those already read (dated names do). A file that
appears before the position, or a file that changed after it was read in part, is an error: silently
skipping or re-reading it would lose or double rows.

Types are never guessed from values, because one person's odd value could then change how everybody
is read. Parquet carries types; CSV and JSON lines take them from declared columns (undeclared CSV
columns are text). A field that does not fit its declared type becomes null and is counted.
"""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from streamveil.connectors.base import Chunk, declared_schema, select, slices
from streamveil.errors import SourceError, require_one_of

FORMATS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "json", ".ndjson": "json",
           ".json": "json"}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where reading stands: `row` rows of the file `name` are done, and all files before it."""

    name: str = ""
    row: int = 0
    size: int = 0  # bytes of that file when it was last read; a changed size is an error
    before: str = ""  # digest of the names that precede it

    @classmethod
    def parse(cls, position: str | None) -> Place:
        """From the JSON of a position."""
        return cls(**json.loads(position)) if position else cls()

    def text(self) -> str:
        """To the JSON of a position."""
        return json.dumps(self.__dict__)


class FilesSource:
    """Rows of many files. `path` may be a file, a glob or a directory, or a list of those."""

    def __init__(
        self,
        path: str | list[str],
        format: str | None = None,
        columns: dict[str, str] | None = None,
        *,
        follow: bool = False,
    ) -> None:
        self.patterns = [path] if isinstance(path, str) else list(path)
        if format is not None:
            require_one_of("format", format, set(FORMATS.values()))
        self.format = format
        self.declared = declared_schema(columns) if columns else None
        self.bounded = not follow

    def files(self) -> list[Path]:
        """All present files in canonical order."""
        found: set[Path] = set()
        for pattern in self.patterns:
            if Path(pattern).is_dir():
                found |= {p for p in Path(pattern).iterdir() if p.suffix.lower() in FORMATS}
            else:
                found |= {Path(name) for name in glob.glob(pattern, recursive=True)}
        return sorted(path for path in found if path.is_file() and not path.name.startswith("."))

    def schema(self) -> pa.Schema:
        """Declared columns, or those of the first file."""
        if self.declared is not None:
            return self.declared
        files = self.files()
        if not files:
            raise SourceError(
                f"no file matches {', '.join(self.patterns)}.\n"
                "  to fix  check the path, or declare the columns to start before the first file"
            )
        return self._reader(files[0]).schema(files[0])

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        place, wanted = Place.parse(position), select(self.schema(), columns, "the source")
        files = self.files()
        names = [str(path) for path in files]
        first = check_prefix(names, place)
        for index in range(first, len(files)):
            path, before = files[index], digest(names[:index])
            size = path.stat().st_size
            skip = place.row if names[index] == place.name else 0
            if skip and size != place.size:
                raise SourceError(
                    f"the file '{path.name}' changed after it was read in part; rows would be lost "
                    "or read twice.\n  to fix  restore it, and put new rows in new files"
                )
            row = skip
            for rows, rejected in self._reader(path).read(path, wanted, skip, max_rows):
                row += rows.num_rows
                yield Chunk(rows, Place(names[index], row, size, before).text(), rejected)

    def _reader(self, path: Path) -> Reader:
        form = self.format or FORMATS.get(path.suffix.lower())
        if form is None:
            raise SourceError(
                f"the format of '{path.name}' is not known from its name.\n"
                "  to fix  give format = 'parquet', 'csv' or 'json'"
            )
        return {"parquet": ParquetReader, "csv": CsvReader, "json": JsonReader}[form](self.declared)


def check_prefix(names: list[str], place: Place) -> int:
    """The index of the first file to read; SourceError when files before the place changed."""
    if not place.name:
        return 0
    index = next((i for i, name in enumerate(names) if name == place.name), None)
    if index is None or digest(names[:index]) != place.before:
        raise SourceError(
            "the files already read are no longer the first ones in order of their names: a file "
            "was added before them, removed or renamed.\n"
            "  to fix  give new files names that sort after the old ones, and keep the old ones"
        )
    return index


def digest(names: list[str]) -> str:
    """A short digest of a list of names."""
    return hashlib.blake2b("\0".join(names).encode(), digest_size=8).hexdigest()


T = TypeVar("T")
Part = tuple[pa.Table, dict[str, int]]


class Reader:
    """One file format. `read` skips the first `skip` rows and yields parts of `max_rows`."""

    def __init__(self, declared: pa.Schema | None) -> None:
        self.declared = declared

    def schema(self, path: Path) -> pa.Schema:
        """Columns of one file."""
        raise NotImplementedError

    def read(self, path: Path, wanted: pa.Schema, skip: int, max_rows: int) -> Iterator[Part]:
        """Rows of one file."""
        raise NotImplementedError


class ParquetReader(Reader):
    """Parquet, one row group after the other; a resumed read skips whole groups unread."""

    def schema(self, path: Path) -> pa.Schema:
        """From the footer."""
        return guarded(path, lambda: pq.read_schema(path)).remove_metadata()

    def read(self, path: Path, wanted: pa.Schema, skip: int, max_rows: int) -> Iterator[Part]:
        """See `Reader.read`."""
        file = guarded(path, lambda: pq.ParquetFile(path, memory_map=True))
        select(file.schema_arrow, wanted.names, f"'{path.name}'")
        groups: list[int] = []
        passed = 0
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if groups or passed + rows > skip:
                groups.append(group)
            else:
                passed += rows
        batches = file.iter_batches(
            max_rows, row_groups=groups, columns=wanted.names, use_threads=True
        )
        skip -= passed
        while (batch := guarded(path, lambda: next(batches, None))) is not None:
            table = pa.Table.from_batches([batch]).select(wanted.names)
            kept, skip = table.slice(skip), max(0, skip - table.num_rows)
            for rows in slices(kept, max_rows):
                yield fit(rows, wanted)


class CsvReader(Reader):
    """CSV with a header line; one line is one row. Every field is read as text, then fitted.

    Arrow alone would read on over line breaks between quotes: a line with one quote too many would
    take the rows that follow with it, whoever's they are. Such a line is malformed, and only it.
    Arrow's threads take no part: one that still held a block when the process ends would abort it.
    """

    BYTES = 1 << 22

    def schema(self, path: Path) -> pa.Schema:
        """The header's names; text unless declared."""
        with guarded(path, lambda: path.open("rb")) as file:
            header = file.readline()
        if not header.strip():
            raise SourceError(f"'{path.name}' has no header line")
        read = pyarrow.csv.read_csv(
            pa.BufferReader(header), pyarrow.csv.ReadOptions(use_threads=False)
        )
        return pa.schema([(name, pa.string()) for name in read.column_names])

    def read(self, path: Path, wanted: pa.Schema, skip: int, max_rows: int) -> Iterator[Part]:
        """See `Reader.read`. A line with the wrong number of fields is counted, never raised."""
        if path.stat().st_size == 0:
            return
        own = self.schema(path)
        select(own, wanted.names, f"'{path.name}'")
        with guarded(path, lambda: path.open("rb")) as file:
            file.readline()
            blocks = iter(lambda: file.read(self.BYTES) + file.readline(), b"")
            read = partial(csv_rows, names=own.names, wanted=wanted.names)
            tables = (guarded(path, partial(read, block)) for block in blocks)
            yield from fitted(tables, wanted, skip, max_rows)


FIELD = r'(?:"(?:[^"]|"")*"(?:[^",][^,]*)?|[^",][^,]*|)'
PAIRED = f"^{FIELD}(?:,{FIELD})*$"
QUOTED = re.compile(rb'(^|,)"(?:[^"]|"")*"')


def csv_rows(block: bytes, names: list[str], wanted: list[str]) -> tuple[pa.Table, int]:
    r"""The wanted fields of whole lines, as bytes, and how many lines are no rows.

    >>> csv_rows(b'1,"a\n2,"b""c"\n3,d\n', ["n", "t"], ["t"])[0]["t"].to_pylist()
    [b'b"c', b'd']
    """
    malformed = 0
    if b'"' in block:
        lines = pa.array(block.splitlines(), pa.large_binary())
        kept = lines.filter(pc.match_substring_regex(lines, PAIRED))
        malformed, block = len(lines) - len(kept), b"\n".join(kept.to_pylist())
    if not is_text(block):  # Arrow cannot even count a line that it has to show and cannot
        rest = block.splitlines()
        whole = [line for line in rest if is_text(line) or fields_in(line) == len(names)]
        malformed, block = malformed + len(rest) - len(whole), b"\n".join(whole)
    if not block.strip(b"\r\n"):
        return pa.table({name: pa.array([], pa.binary()) for name in wanted}), malformed

    def count(_: Any) -> str:
        nonlocal malformed
        malformed += 1
        return "skip"

    table = pyarrow.csv.read_csv(
        pa.BufferReader(block),
        read_options=pyarrow.csv.ReadOptions(
            column_names=names, block_size=len(block) + 1, use_threads=False
        ),
        parse_options=pyarrow.csv.ParseOptions(invalid_row_handler=count),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={name: pa.binary() for name in names}, include_columns=wanted,
            strings_can_be_null=True,
        ),
    )  # fmt: skip
    return table, malformed


def is_text(data: bytes) -> bool:
    """Whether bytes are UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def fields_in(line: bytes) -> int:
    r"""How many fields a line with paired quotes has.

    >>> fields_in(b'1,"a,b"\xff,')
    3
    """
    return QUOTED.sub(rb"\1", line).count(b",") + 1


class JsonReader(Reader):
    """JSON lines: one object a line. Columns must be declared."""

    LINES = 65_536

    def schema(self, path: Path) -> pa.Schema:
        """Always declared: reading it from values would let one row decide everybody's types."""
        if self.declared is None:
            raise SourceError(
                f"JSON lines carry no types ('{path.name}').\n"
                "  to fix  declare the columns: CREATE STREAM name (column TYPE, …) WITH (…), "
                "or columns={'column': 'TYPE'}"
            )
        return self.declared

    def read(self, path: Path, wanted: pa.Schema, skip: int, max_rows: int) -> Iterator[Part]:
        """See `Reader.read`. A line that is no JSON object is counted, never raised."""
        with guarded(path, lambda: path.open("rb")) as file:
            pieces = iter(lambda: file.readlines(1 << 24), [])
            tables = (json_rows(lines, wanted.names) for lines in pieces)
            yield from fitted(tables, wanted, skip, max_rows)


def fitted(
    tables: Iterable[tuple[pa.Table, int]], wanted: pa.Schema, skip: int, max_rows: int
) -> Iterator[Part]:
    """The rows behind the first `skip`, fitted; with them, how many lines before them were none.

    Tables without a row hand their lines on to the next. Behind the last row they are not counted:
    no position says that they were, and whoever waits for more rows would count them again.
    """
    malformed = 0
    for table, more in tables:
        malformed = 0 if skip else malformed + more  # with skipped rows they were counted
        rest, skip = table.slice(skip), max(0, skip - table.num_rows)
        for part in slices(rest, max_rows):
            rows, rejected = fit(part, wanted)
            if malformed:
                rejected = {**rejected, "malformed row": malformed}
            yield rows, rejected
            malformed = 0


def json_rows(lines: list[bytes], names: list[str]) -> tuple[pa.Table, int]:
    """The named fields of every line that is a JSON object, as text; and the number of others."""
    fields: dict[str, list[str | None]] = {name: [] for name in names}
    malformed = 0
    for line in lines:
        try:
            row = json.loads(line)
            found = [json_text(row.get(name)) for name in names] if isinstance(row, dict) else None
        except (ValueError, RecursionError):  # the latter: nested without end
            malformed += bool(line.strip())
            continue
        if found is None:
            malformed += 1
            continue
        for values, text in zip(fields.values(), found, strict=True):
            values.append(text)
    return pa.table({name: text_array(values) for name, values in fields.items()}), malformed


def json_text(value: Any) -> str | None:
    """A field as text."""
    return value if isinstance(value, str) or value is None else json.dumps(value)


def text_array(values: list[str | None]) -> pa.Array:
    """Text; as bytes where some is no Unicode (half a surrogate pair), for `fit` to find."""
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        raw = [None if text is None else text.encode("utf-8", "surrogatepass") for text in values]
        return pa.array(raw, pa.binary())


def fit(table: pa.Table, wanted: pa.Schema) -> Part:
    """Casts every column to its wanted type; what does not fit becomes null and is counted."""
    arrays, misfits = [], 0
    for field in wanted:
        column = table.column(field.name)
        if column.type != field.type:
            cast = cast_or_null(column, field.type)
            misfits += cast.null_count - column.null_count
            column = cast
        arrays.append(column)
    table = pa.Table.from_arrays(arrays, schema=pa.schema(wanted))
    return table, ({"field of the wrong type (read as null)": misfits} if misfits else {})


def cast_or_null(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """`column` as `target`, with null where a value cannot be read."""
    try:
        return parse(column, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass  # some value does not fit; find which without letting it into a message
    values = column.combine_chunks()
    if len(values) <= 1:
        return pa.chunked_array([pa.nulls(len(values), target)], target)
    half = len(values) // 2  # bisection: a few bad values cost a few logarithms of casts
    parts = [cast_or_null(pa.chunked_array([part]), target)
             for part in (values.slice(0, half), values.slice(half))]  # fmt: skip
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], target)


def parse(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """One strict cast; text to timestamps accepts ISO 8601 with or without an offset (UTC)."""
    if pa.types.is_binary(column.type) and target != pa.binary():
        return parse(column.cast(pa.string()), target)  # refuses what is not UTF-8
    if pa.types.is_timestamp(target) and pa.types.is_string(column.type):
        zoned = pc.match_substring_regex(column, r"(Z|[+-]\d\d:?\d\d)\s*$")
        some = pc.any(zoned).as_py()
        if some and pc.all(pc.fill_null(zoned, True)).as_py():  # noqa: FBT003  (the fill value)
            return column.cast(pa.timestamp("us", tz="UTC"))
        if some:
            raise pa.ArrowInvalid("mixed")  # bisection separates the two forms
        return column.cast(pa.timestamp("us")).cast(target)
    return column.cast(target)


def guarded(path: Path, action: Callable[[], T]) -> T:
    """Runs `action`; a failure to read becomes an error that names the file and no content."""
    try:
        return action()
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else (
            "it is damaged or of another format")  # fmt: skip
        raise SourceError(f"cannot read '{path.name}': {reason}") from None
