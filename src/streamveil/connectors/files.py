"""Parquet, CSV and JSON-lines files: a path, a glob, or a directory that grows.

Files are read in the order of their paths; within a file rows keep their order. That order is the
canonical one, so new files must sort after those already read (dated names do). A file that
appears before the position, or a file that changed after it was read in part, is an error: silently
skipping or re-reading it would lose or double rows.

Types are never guessed from values, because one person's odd value could then change how everybody
is read. Parquet carries types; CSV and JSON lines take them from declared columns. Undeclared CSV
columns are text, and times where the query reads them as such. A field that does not fit its type
becomes null and is counted. Text may be compressed: places are numbers of rows in any case.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.connectors.base import MOST_BYTES, Chunk, declared_schema, select, slices
from streamveil.connectors.fit import TIME, fit, is_text_or_bytes
from streamveil.connectors.json_lines import json_block
from streamveil.connectors.lines import MOST_LINE, Long, ahead, blocks, first_line, opened
from streamveil.connectors.names import (
    FORMATS,
    below,
    digests,
    format_of,
    found,
    guarded,
    require_formats,
    shown,
)
from streamveil.connectors.rejected_rows import (
    MALFORMED,
    MISFIT,
    TOO_LONG,
    as_lines,
    misfits,
    rejected_lines,
    with_places,
)
from streamveil.connectors.text import HeaderError, Lines, csv_names, csv_rows
from streamveil.errors import SourceError, require_one_of
from streamveil.frames import plain, plain_schema
from streamveil.types import Array, Int64


@dataclass(frozen=True)
class ReadPosition:
    """Where reading stands: `row` rows of the file `name` are done, and all files before it.

    Names are those below the folder that holds all files: it may move.
    """

    name: str = ""
    row: int = 0
    size: int = 0  # bytes of that file when it was last read; a changed size is an error
    before: str = ""  # digest of the files that precede it, by name and size
    malformed: int | None = None  # its lines that were no rows, so far; None: those before `row`

    @classmethod
    def parse(cls, position: str | None) -> ReadPosition:
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
        max_line_bytes: int = MOST_LINE,
    ) -> None:
        if isinstance(max_line_bytes, bool) or not 1 <= max_line_bytes <= MOST_BYTES:
            raise SourceError(f"max_line_bytes is from 1 to {MOST_BYTES:,}, not {max_line_bytes}")
        self.patterns = [path] if isinstance(path, str) else list(path)
        if format is not None:
            require_one_of("format", format, set(FORMATS.values()))
        self.format = format
        self.declared = declared_schema(columns) if columns else None
        self.bounded = not follow
        self.max_line_bytes = max_line_bytes
        self.times: tuple[str, ...] = ()  # columns that hold times, since a query says so
        self.traced = False  # see `connectors.rejected_rows`
        self.known: pa.Schema | None = None  # once somebody asked, where columns are declared
        self.names: list[str] = []  # of the files, when they were last looked for
        self._sizes: dict[str, int] = {}  # of files, in bytes
        self._finished: set[str] = set()  # files before the last one that was begun

    def files(self) -> list[Path]:
        """All present files in canonical order."""
        return [Path(name) for name in found(self.patterns)]

    def schema(self) -> pa.Schema:
        """Declared columns, and the others of the first file that has any bytes."""
        if self.known is not None:
            return self.known  # without a listing
        names = found(self.patterns)
        if not names:
            require_formats(self.patterns)
        made = self._schema(names)
        self.known = None if self.declared is None else made
        return made

    def _schema(self, names: list[str], columns: list[str] | None = None) -> pa.Schema:
        """All columns; where all `columns` are declared, those: no file need be opened."""
        if self.known is not None:
            return self.known
        declared = self.declared
        if declared is not None and (
            not names or (columns is not None and {*columns} <= {*declared.names})
        ):
            return declared
        if not names:
            raise SourceError(
                f"no file matches {', '.join(self.patterns)}.\n"
                "  to fix  check the path, or declare the columns to start before the first file"
            )
        files = map(Path, names)  # a followed folder has many: no further than to the first
        first = next((path for path in files if guarded(path, path.stat).st_size), Path(names[0]))
        if declared is not None and not guarded(first, first.stat).st_size:
            return declared
        own = self._reader(first).schema(first)
        fields = [field for field in own if declared is None or field.name not in declared.names]
        return pa.schema([*(declared or ()), *map(self._timed, fields)])

    def _timed(self, field: pa.Field) -> pa.Field:
        """A column of text that a query reads as times holds times: no value has a say in it."""
        named = field.name.lower() in {name.lower() for name in self.times}
        return field.with_type(TIME) if named and pa.types.is_string(field.type) else field

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        names = found(self.patterns)
        place, wanted = (
            ReadPosition.parse(position),
            select(self._schema(names, columns), columns, "the source"),
        )
        self.names = [shown(name) for name in names]
        own = below(self.patterns, names)
        first = own.index(place.name) if place.name in own else 0
        marks = digests(zip(own, map(self._size, names), strict=True))
        for index, before in enumerate(marks):
            if index < first:
                continue
            if index == first:
                check_before(place, own[index] if index < len(own) else None, before)
            if index == len(names):
                return
            if index > first:
                self._finished.add(names[index - 1])
            path, size = Path(names[index]), self._sizes[names[index]]
            start = place if own[index] == place.name else ReadPosition(malformed=0)
            if (start.row or start.malformed) and size != start.size:
                raise SourceError(
                    f"the file '{shown(path.name)}' changed after it was read in part; rows would"
                    " be lost or read twice.\n"
                    "  to fix  restore it, and put new rows in new files"
                )
            row = start.row
            for part in self._reader(path).read(path, wanted, start, max_rows):
                row += part.rows.num_rows
                here = ReadPosition(own[index], row, size, before, part.malformed).text()
                rows, rejected_rows = part.rows, ()
                if part.numbers is not None:
                    rows = with_places(rows, index, part.numbers)
                    rejected_rows = tuple(
                        rejected_lines(wanted, self.names[index], *some)
                        for some in part.rejected_rows
                    )
                yield Chunk(rows, here, part.rejected, rejected_rows)

    def _size(self, name: str) -> int:
        """Bytes of a file; as they were when it was read, where this process read it."""
        if name not in self._finished:
            self._sizes[name] = guarded(Path(name), Path(name).stat).st_size
        return self._sizes[name]

    def _reader(self, path: Path) -> Reader:
        form = self.format or format_of(path.name)
        if form is None:
            raise SourceError(
                f"the format of '{shown(path.name)}' is not known from its name.\n"
                "  to fix  give format = 'parquet', 'csv' or 'json'"
            )
        return {"parquet": ParquetReader, "csv": CsvReader, "json": JsonReader}[form](
            self.declared, self.traced, self.max_line_bytes
        )


def check_before(place: ReadPosition, name: str | None, before: str) -> None:
    """SourceError unless the file to go on with, and those before it, are what they were."""
    if place.name and (name != place.name or before != place.before):
        raise SourceError(
            "the files already read are no longer the first ones in order of their names: a file "
            "was added before them, removed, renamed or changed.\n"
            "  to fix  give new files names that sort after the old ones, and keep the old ones;"
            " all may move together to another folder"
        )


Numbers = Int64[Array, " rows"]


class RejectedLines(NamedTuple):
    """What of a file is set aside."""

    reason: str
    numbers: Numbers
    lines: list[bytes]
    size: int | None = None  # of a line of which only the start is here


class FilePart(NamedTuple):
    """Rows of a file."""

    rows: pa.Table
    rejected: dict[str, int]
    malformed: int = 0  # lines of the file that were no rows, up to here
    numbers: Numbers | None = None  # of the rows in the file, from 1; None: nobody asked
    rejected_rows: Sequence[RejectedLines] = ()  # if asked for


class Reader:
    """One file format. `read` goes on at a place and yields parts of `max_rows`."""

    def __init__(
        self,
        declared: pa.Schema | None,
        traced: bool = False,  # noqa: FBT001,FBT002
        most_line: int = MOST_LINE,
    ) -> None:
        self.declared, self.traced, self.most_line = declared, traced, most_line

    def schema(self, path: Path) -> pa.Schema:
        """Columns of one file."""
        raise NotImplementedError

    def read(
        self, path: Path, wanted: pa.Schema, start: ReadPosition, max_rows: int
    ) -> Iterator[FilePart]:
        """Rows of one file."""
        raise NotImplementedError

    def _pieces(
        self, path: Path, file: BinaryIO, size: int, read: Callable[[bytes], Lines]
    ) -> Iterator[Lines]:
        """Lines of a file of text, some at a time; those that are too long by themselves."""
        found = blocks(file, size, self.most_line)

        def lines(block: bytes | Long) -> Lines:
            if isinstance(block, Long):
                one = np.zeros(1, np.int64)
                return Lines(read(b"").rows, one, lambda: [block.start], block.size)
            return guarded(path, partial(read, block))

        some: Iterator[bytes | Long] = iter(lambda: guarded(path, partial(next, found, None)), None)
        return ahead(lines, some)


class ParquetReader(Reader):
    """Parquet, one row group after the other; a resumed read skips whole groups unread."""

    def schema(self, path: Path) -> pa.Schema:
        """From the footer."""
        return plain_schema(guarded(path, lambda: pq.read_schema(path)).remove_metadata())

    def read(
        self, path: Path, wanted: pa.Schema, start: ReadPosition, max_rows: int
    ) -> Iterator[FilePart]:
        """See `Reader.read`."""
        file = guarded(path, lambda: pq.ParquetFile(path, memory_map=True))
        select(file.schema_arrow, wanted.names, f"'{shown(path.name)}'")
        groups: list[int] = []
        passed, skip, row = 0, start.row, start.row
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
            table = plain(pa.Table.from_batches([batch]).select(wanted.names))
            kept, skip = table.slice(skip), max(0, skip - table.num_rows)
            for part in slices(kept, max_rows):
                rows, rejected = fit(part, wanted)
                if not self.traced:
                    yield FilePart(rows, rejected)
                    continue
                numbers = np.arange(row, row + rows.num_rows) + 1
                row += rows.num_rows
                rejected_rows = []
                if rejected:
                    odd = misfits(part, rows)
                    rejected_rows = [
                        RejectedLines(MISFIT, numbers[odd], as_lines(part.filter(pa.array(odd))))
                    ]
                yield FilePart(rows, rejected, 0, numbers, rejected_rows)


class CsvReader(Reader):
    """CSV with a header line; one line is one row. Every field is read as text, then fitted.

    Arrow's threads take no part: one that still held a block when the process ends would abort it.
    """

    BYTES = 1 << 22

    def schema(self, path: Path) -> pa.Schema:
        """The header's names; text unless declared."""
        with opened(path) as file:
            header = guarded(path, lambda: first_line(file, self.most_line))
        try:
            if header is None:
                raise HeaderError(f"has a header of more than {self.most_line:,} bytes")
            names = csv_names(header)
        except HeaderError as error:
            raise SourceError(f"'{shown(path.name)}' {error}") from None
        return pa.schema([(name, pa.string()) for name in names])

    def read(
        self, path: Path, wanted: pa.Schema, start: ReadPosition, max_rows: int
    ) -> Iterator[FilePart]:
        """See `Reader.read`. A line with the wrong number of fields is counted, never raised."""
        if guarded(path, path.stat).st_size == 0:
            return
        own = self.schema(path)
        select(own, wanted.names, f"'{shown(path.name)}'")
        typed = [field.name for field in wanted if not is_text_or_bytes(field.type)]
        read = partial(csv_rows, names=own.names, wanted=wanted.names, typed=typed)
        with opened(path) as file:
            guarded(path, lambda: first_line(file, self.most_line))
            pieces = self._pieces(path, file, self.BYTES, read)
            fitting = Fitting(wanted, max_rows, first=2 if self.traced else None)
            yield from fitting.parts(pieces, start)


class JsonReader(Reader):
    """JSON lines: one object a line. Columns must be declared."""

    BYTES = 1 << 20

    def schema(self, path: Path) -> pa.Schema:
        """Always declared: reading it from values would let one row decide everybody's types."""
        if self.declared is None:
            raise SourceError(
                f"JSON lines carry no types ('{shown(path.name)}').\n"
                "  to fix  declare the columns: CREATE STREAM name (column TYPE, …) WITH (…), "
                "or columns={'column': 'TYPE'}"
            )
        return self.declared

    def read(
        self, path: Path, wanted: pa.Schema, start: ReadPosition, max_rows: int
    ) -> Iterator[FilePart]:
        """See `Reader.read`. A line that is no JSON object is counted, never raised."""
        read = partial(json_block, wanted=wanted)
        with opened(path) as file:
            pieces = self._pieces(path, file, self.BYTES, read)
            fitting = Fitting(wanted, max_rows, first=1 if self.traced else None)
            yield from fitting.parts(pieces, start)


class Origin(NamedTuple):
    """Lines of a file, and which of them the rows are that come next."""

    first: int  # number of the first line
    lines: list[bytes]
    rows: Numbers

    size: int | None  # see `Lines`

    def rejected_lines(self, reason: str, which: Numbers) -> RejectedLines:
        """Some of the lines, set aside."""
        lines = [self.lines[line] for line in which]
        return RejectedLines(reason, which + self.first, lines, self.size)

    def after(self, rows: int) -> Origin:
        """The same behind some rows."""
        return self._replace(rows=self.rows[rows:])


@dataclass(frozen=True)
class Fitting:
    """From lines of text to parts of rows."""

    wanted: pa.Schema
    max_rows: int
    first: int | None  # number of the first line; None: nobody asks where rows come from

    def parts(self, pieces: Iterable[Lines], start: ReadPosition) -> Iterator[FilePart]:
        """What comes after a place; malformed lines go with the next rows, or without any."""
        skip, told, malformed, line = start.row, start.malformed, 0, self.first
        for piece in pieces:
            odd = piece.malformed[len(piece.malformed) if told is None and skip else 0 :]
            odd = odd[max(0, (told or 0) - malformed) :]
            malformed += len(piece.malformed)
            rest, skip = piece.rows.slice(skip), max(0, skip - piece.rows.num_rows)
            origin = None
            if line is not None:
                gone = piece.rows.num_rows - rest.num_rows
                origin = Origin(line, piece.all(), piece.of_rows()[gone:], piece.size)
                line += len(origin.lines)
            for part in slices(rest, self.max_rows) if rest.num_rows else [rest][: len(odd)]:
                reason = MALFORMED if piece.size is None else TOO_LONG
                yield self._part(part, (reason, odd), max(malformed, told or 0), origin)
                odd, origin = odd[:0], origin and origin.after(part.num_rows)

    def _part(
        self, part: pa.Table, unread: tuple[str, Numbers], malformed: int, origin: Origin | None
    ) -> FilePart:
        (reason, odd), (rows, rejected) = unread, fit(part, self.wanted)
        if len(odd):
            rejected = {**rejected, reason: len(odd)}
        if origin is None:
            return FilePart(rows, rejected, malformed)
        mine = origin.rows[: part.num_rows]
        wrong = mine[misfits(part, rows)] if rejected else mine[:0]
        found = [origin.rejected_lines(reason, odd), origin.rejected_lines(MISFIT, wrong)]
        return FilePart(rows, rejected, malformed, mine + origin.first, found)
