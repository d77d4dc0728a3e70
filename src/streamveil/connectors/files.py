"""Parquet, CSV and JSON-lines files: a path, a glob, or a directory that grows.

Each look takes the files that have not been read yet, in the order of their paths; within a file
rows keep their order. The list of read files is kept with the position (`manifest`): new files may
have any names, and a file that was read to its end may be deleted. It is an error if a file changes
after it was read, or is deleted half read: rows would be lost or doubled in silence.

Types are never guessed from values, because one person's odd value could then change how everybody
is read. Parquet carries types; CSV and JSON lines take them from declared columns. Undeclared CSV
columns are text, and times where the query reads them as such. A field that does not fit its type
becomes null and is counted. Text may be compressed: places are row numbers in any case.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import pyarrow as pa

from streamveil.connectors import MOST_BYTES, Chunk, absolute, declared_schema, select
from streamveil.connectors.file_reader import (
    MOST_LINE,
    FilePart,
    ParquetReader,
    Reader,
    ReadPosition,
    RowGroup,
    row_groups,
)
from streamveil.connectors.manifest import (
    FORMATS,
    MARK,
    RECENT,
    FileGoneError,
    FileIdentity,
    ListedFile,
    LocalFiles,
    Manifest,
    folders_of,
    format_of,
    identity,
    is_cut_short,
    require_formats,
    shown,
)
from streamveil.connectors.rejected_rows import TIME, TracedSource, rejected_lines, with_places
from streamveil.errors import SourceError, require_one_of

if TYPE_CHECKING:
    from streamveil.connectors.remote import RemoteFiles

LOG = logging.getLogger("streamveil.files")


class FilesSource(TracedSource):
    """Rows of many files. `path` may be a file, a glob or a directory, or a list of those.

    An address in an object store may take the place of a path: s3://bucket/folder/*.csv (`remote`).
    """

    looks_at_options_alone: ClassVar = True  # when it is made

    def __init__(  # noqa: PLR0913  (the options of a source, by name)
        self,
        path: str | list[str],
        format: str | None = None,
        columns: dict[str, str] | None = None,
        *,
        follow: bool = False,
        max_line_bytes: int = MOST_LINE,
        fill_missing: bool = False,
        delimiter: str = ",",
        allow_quoted_newlines: bool = False,
        folder_columns: str | list[str] | None = None,
    ) -> None:
        if fill_missing and not (columns or folder_columns):
            raise SourceError(
                "fill_missing is for declared columns, and none are declared.\n"
                "  to fix  declare those that some files lack, with their types"
            )
        if isinstance(max_line_bytes, bool | None) or not 1 <= max_line_bytes <= MOST_BYTES:
            raise SourceError(f"max_line_bytes is from 1 to {MOST_BYTES:,}, not {max_line_bytes}")
        if not isinstance(delimiter, str) or len(delimiter) != 1 or delimiter not in ",;\t|":
            raise SourceError(
                f"delimiter is what ends a field of CSV, one of ',', ';', '|' and a tab, not"
                f" {str(delimiter)[:20]!r}.\n"
                "  to fix  leave it out for commas, or delimiter = ';'"
            )
        self.patterns = [absolute(one) for one in ([path] if isinstance(path, str) else path)]
        self.delimiter, self.allow_quoted_newlines = delimiter, allow_quoted_newlines
        if format is not None:
            require_one_of("format", format, set(FORMATS.values()))
        self.format = format
        given = declared_schema(columns) if columns else None
        self.folders, self.declared = divided(given, folder_columns)
        self.bounded = not follow
        self.max_line_bytes = max_line_bytes
        self.fill_missing = fill_missing  # a declared column that a file lacks is null in its rows
        self._times: set[str] = set()  # columns that hold times, since a query says so
        self.known: pa.Schema | None = None  # once somebody asked, where columns are declared
        self._store = store_of(self.patterns)
        self.names: list[str] = []
        self._folder: Path | None = None  # of the job's state
        self._manifest = Manifest()
        self._reached: str | None = None  # the position that it belongs to
        self._checked = False  # whether those that were read, and are there, are what they were
        self._recent: deque[str] = deque(maxlen=RECENT)  # read since then
        self._waiting: set[str] = set()  # files that are not whole yet
        # the last schema that was read, and of what
        self._seen: tuple[str, ListedFile | None, pa.Schema] = ("", None, pa.schema([]))

    @property
    def on_disk(self) -> bool:
        """Whether the files need not be copied to be read."""
        return isinstance(self._store, LocalFiles)

    at_hand = on_disk

    def keep_in(self, folder: Path) -> None:
        """Takes the folder of the job's state, in which the list of read files is kept."""
        self._folder = folder

    def files(self) -> list[Path]:
        """All existing files in canonical order; SourceError unless they are on disk."""
        if not self.on_disk:
            raise SourceError(
                "this reads files on disk, not in an object store.\n"
                "  to fix  run on the embedded engine, or copy the files to a disk"
            )
        return [Path(name) for name in self.found()]

    def found(self) -> list[str]:
        """Names of all existing files in canonical order, as their store has them."""
        return self._store.found(self.patterns)

    def missing(self) -> str | None:
        """The folder or bucket that is to hold files, in words, if it is not there."""
        return self._store.missing(self.patterns)

    def read_as_times(self, columns: list[str]) -> None:
        """Takes the columns that a query reads as times: files of text need not declare them."""
        self._times = {name.lower() for name in columns}

    def schema(self) -> pa.Schema:
        """Declared columns, and the others of the first file that has any bytes."""
        if self.known is not None:
            return self.known  # without a listing
        names = self.found()
        if not names and self.on_disk:
            require_formats(self.patterns)
        made = self._schema(names)
        self.known = None if self.declared is None else made
        return made

    def _schema(self, names: list[str], columns: list[str] | None = None) -> pa.Schema:
        """All columns: those of files, and those that names of folders hold."""
        if self.known is not None:
            return self.known
        if not self.folders:
            return self._file_schema(names, columns)
        held = self.folders.names
        inside = None if columns is None else [name for name in columns if name not in held]
        own = [field for field in self._file_schema(names, inside) if field.name not in held]
        return pa.schema([*own, *self.folders])

    def row_groups(self, column: str) -> list[RowGroup] | None:
        """Row groups in reading order; None unless all files are Parquet and on disk."""
        paths = self.files() if self.on_disk and self.bounded else []
        if not paths or not all(isinstance(self._reader(path), ParquetReader) for path in paths):
            return None
        try:
            kind = self._schema([*map(str, paths)], [column]).field(column).type
            return row_groups(paths, column, kind)
        except (OSError, KeyError, pa.ArrowException):
            return None  # reading the rows will show what is wrong

    def _file_schema(self, names: list[str], columns: list[str] | None) -> pa.Schema:
        """Columns of files; where all `columns` are declared, those: no file need be opened."""
        declared = self.declared
        if declared is not None and (
            not names or (columns is not None and {*columns} <= {*declared.names})
        ):
            return declared
        if not names:
            raise SourceError(
                f"no file matches {', '.join(self.patterns)}{folders_of(self.patterns)}.\n"
                "  to fix  check the path, or declare the columns to start before the first file"
            )
        first = next(filter(self._has_columns, names), names[0])  # of many, no further
        if declared is not None and not self._has_columns(first):
            return declared
        own = self._own_schema(first)
        fields = [field for field in own if declared is None or field.name not in declared.names]
        return pa.schema([*(declared or ()), *map(self._timed, fields)])

    def _own_schema(self, name: str) -> pa.Schema:
        """The schema of one file; that of the last file is cached."""
        facts = self._store.listed(name)
        if (name, facts) != self._seen[:2]:
            with self._store.local(name, self._columns(name, ())) as path:
                self._seen = (name, facts, self._reader(path).schema(path))
        return self._seen[2]

    def _has_columns(self, name: str) -> bool:
        """Whether there is a file that is not empty."""
        if not self.bounded and not self._store.exists(name):
            return False
        with suppress(FileGoneError):
            return self._store.listed(name).size > 0 and (self.bounded or not self._is_early(name))
        return False

    def _timed(self, field: pa.Field) -> pa.Field:
        """Times for a column of text that a query reads as times, whatever its values are."""
        named = field.name.lower() in self._times
        return field.with_type(TIME) if named and pa.types.is_string(field.type) else field

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        names = self.found()
        present = dict(zip(self._store.below(self.patterns, names), names, strict=True))
        place = self._resumed(position)
        left = self._left(present, place)
        schema = self._schema(names, columns)
        wanted = select(schema, columns, "the source")
        inside = self._inside(schema, wanted)
        try:
            for name, later in zip_longest(left, left[1:]):
                self._expect(None if later is None else present[later], inside.names)
                start = place if name == place.name else ReadPosition(name, malformed=0)
                begun = start.row or start.malformed or self.bounded
                if begun or not self._is_early(present[name]):
                    known = self._folders_of(present[name])
                    for chunk in self._rows(present[name], start, inside, max_rows):
                        yield chunk if wanted is inside else placed(chunk, wanted, known)
        finally:
            self._store.forget()

    def _inside(self, schema: pa.Schema, wanted: pa.Schema) -> pa.Schema:
        """The wanted columns that files hold; at least one, so that rows can be counted."""
        held = self.folders.names
        inside = [field for field in wanted if field.name not in held]
        if len(inside) == len(wanted):
            return wanted
        return pa.schema(inside or [field for field in schema if field.name not in held][:1])

    def _folders_of(self, name: str) -> dict[str, str | None]:
        """The values in the names of a file's folders: see `folder_columns`."""
        if not self.folders:
            return {}
        from streamveil.connectors.folder_columns import values_of  # where some are asked for

        return values_of(name, self.folders.names, must=not self.fill_missing)

    def _resumed(self, position: str | None) -> ReadPosition:
        """The place within a file; also loads the list of read files."""
        at = json.loads(position) if position else {}
        if position is None:
            self._manifest = Manifest(self._folder)
        elif position != self._reached:  # else this process has come here by itself
            self._checked = False
            self._manifest = Manifest.of(at, self._folder, self._manifest.kept)
        self._reached = position
        return ReadPosition(**{name: at[name] for name in PLACE_IN_FILE if name in at})

    def _left(self, present: dict[str, str], place: ReadPosition) -> list[str]:
        """The files to read now, in order; SourceError if a file that was read has changed.

        All files that still exist are compared when a process begins, later only the newest ones.
        """
        held = dict(zip(present, self._manifest.holds([*present]), strict=True))
        for name in [*held] if not self._checked else self._recent:
            if held.get(name):
                with suppress(FileGoneError):  # it may go at any time, also since it was listed
                    self._require_same(present[name], self._manifest.find(name))
        self._checked = True
        if not present and len(self._manifest):
            self._require_folder()
        fresh = [name for name, read in held.items() if not read and name != place.name]
        if place.name and place.name not in present:
            raise SourceError(
                f"the file '{shown(place.name)}' was read in part, and is missing now: the rest of"
                " its rows would be lost.\n"
                "  to fix  restore it as it was; only files that were read to their end may go"
            )
        if place.row or place.malformed:
            self._require_same(present[place.name], FileIdentity(place.size, place.mark, -1))
        return [place.name] * bool(place.name) + fresh

    def _require_folder(self) -> None:
        """SourceError if files were read, and both they and their folders are gone.

        The disk of the folder may be missing: waiting would look as if no new files had come.
        """
        gone = self.missing()
        names = [Path(one.partition("?")[0]).name for one in self.patterns]
        if gone is not None and not any(self._manifest.holds(names)):  # else it was a file
            raise SourceError(
                f"the {gone}, of which files were read, is missing now.\n"
                "  to fix  mount or restore it, or make an empty one of its name, then start again:"
                " the job goes on where it was"
            )

    def _require_same(self, name: str, known: FileIdentity) -> None:
        """SourceError if the content of a file that was read has changed.

        Its time only says whether to compare: a copy of a file has another time. Some stores list
        times with fractions of a second that they leave out for a single file.
        """
        for told in (self._store.listed, self._store.facts):
            facts = told(name)
            if facts.size == known.size and (facts.time == known.time or known.mark is None):
                return
        if facts.size == known.size:
            with self._store.local(name, self._columns(name, ())) as path:
                if identity(path).mark == known.mark:
                    return
        raise changed(name)

    def _columns(self, name: str, columns: Sequence[str]) -> tuple[str, ...] | None:
        """The columns to read of a file; None for text, which is read whole."""
        is_parquet = isinstance(self._reader(Path(name)), ParquetReader)
        return tuple(columns) if is_parquet else None

    def _expect(self, name: str | None, columns: Sequence[str]) -> None:
        """Tells the store which file follows the next one."""
        self._store.expect(name, None if name is None else self._columns(name, columns))

    def _is_early(self, name: str) -> bool:
        """Whether a file of a followed folder is missing or not yet complete."""
        path = Path(name)
        early = not self._store.exists(name) or (
            self.on_disk  # stores show a file when it is whole
            and isinstance(self._reader(path), ParquetReader)
            and is_cut_short(path)
        )
        if early and path.name not in self._waiting:
            LOG.warning("'%s' is not whole yet, and is read when it is", shown(path.name))
        (self._waiting.add if early else self._waiting.discard)(path.name)
        return early

    def _rows(
        self, name: str, start: ReadPosition, wanted: pa.Schema, max_rows: int
    ) -> Iterator[Chunk]:
        """The rows of one file from a place on; after the last ones it counts as read."""
        if self.traced:
            self.names.append(shown(name))
        with self._store.local(name, self._columns(name, wanted.names)) as path:
            file, row, ended = identity(path), start.row, False
            if (row or start.malformed) and (file.size, file.mark) != (start.size, start.mark):
                raise changed(name)
            held = self._held(path, wanted)
            parts = self._reader(path).read(path, held, start, max_rows)
            for part, ended in with_last(self._unchanged(parts, name, file)):
                row += part.rows.num_rows
                here = ReadPosition(start.name, row, file.size, file.mark, part.malformed)
                if ended:
                    self._finish(name, start.name, file)
                    here = ReadPosition()
                self._reached = json.dumps({**self._manifest.position(), **asdict(here)})
                rows = part.rows
                if held is not wanted:  # null where the file has no such column
                    some = [wanted.empty_table(), rows]
                    rows = pa.concat_tables(some, promote_options="default")
                yield self._chunk(part._replace(rows=rows), wanted, self._reached)
            if not ended:
                self._finish(name, start.name, file)

    def _unchanged(
        self, parts: Iterator[FilePart], name: str, file: FileIdentity
    ) -> Iterator[FilePart]:
        """Parts of a file; an error in reading may mean that it was cut or replaced meanwhile."""
        try:
            yield from parts
        except SourceError:
            if self.on_disk and self._store.facts(name) != (file.size, file.time):
                raise changed(name) from None
            raise

    def _held(self, path: Path, wanted: pa.Schema) -> pa.Schema:
        """The wanted columns, without those that the file may lack and does lack.

        A file with none of them is of another kind, which its reader refuses.
        """
        if not self.fill_missing or self.declared is None or not path.stat().st_size:
            return wanted
        own = {*self._reader(path).schema(path).names}
        lacking = {*self.declared.names} - own
        held = [field for field in wanted if field.name not in lacking]
        return pa.schema(held) if own & {*wanted.names} and len(held) < len(wanted) else wanted

    def _chunk(self, part: FilePart, wanted: pa.Schema, position: str) -> Chunk:
        if part.numbers is None:
            return Chunk(part.rows, position, part.rejected, ())
        rows = with_places(part.rows, len(self.names) - 1, part.numbers)
        rejected_rows = tuple(
            rejected_lines(wanted, self.names[-1], *some) for some in part.rejected_rows
        )
        return Chunk(rows, position, part.rejected, rejected_rows)

    def _finish(self, name: str, own: str, file: FileIdentity) -> None:
        """Notes that a file was read to its end; one on disk must not have changed meanwhile."""
        if self.on_disk and self._store.facts(name) != (file.size, file.time):
            raise changed(name)
        self._manifest.add(own, file)
        self._recent.append(own)

    def _reader(self, path: Path) -> Reader:
        form = self.format or format_of(path.name)
        if form is None:
            raise SourceError(
                f"the format of '{shown(path.name)}' is not known from its name.\n"
                f"  to fix  give format = {' or '.join(map(repr, sorted({*FORMATS.values()})))}"
            )
        return reader_of(form)(
            self.declared, self.traced, self.max_line_bytes, self.delimiter,
            self.allow_quoted_newlines,
        )  # fmt: skip


PLACE_IN_FILE = tuple(ReadPosition.__dataclass_fields__)


def divided(
    declared: pa.Schema | None, folder_columns: str | list[str] | None
) -> tuple[pa.Schema, pa.Schema | None]:
    """The columns in the names of folders, and those declared for files."""
    if folder_columns is None:
        return pa.schema([]), declared
    from streamveil.connectors.folder_columns import schema_of  # where some are asked for

    folders = schema_of(folder_columns, declared)
    own = [field for field in declared or () if field.name not in folders.names]
    return folders, pa.schema(own) if own else None


def placed(chunk: Chunk, wanted: pa.Schema, values: dict[str, str | None]) -> Chunk:
    """Rows of a file with the columns of its folders."""
    from streamveil.connectors.folder_columns import with_values

    return with_values(chunk, wanted, values)


def store_of(patterns: Sequence[str]) -> LocalFiles | RemoteFiles:
    """The store of the files: the disk, or one that an address names."""
    if not any(MARK in pattern for pattern in patterns):
        return LocalFiles()
    from streamveil.connectors.remote import RemoteFiles  # loaded where an address is given

    return RemoteFiles(patterns)


def reader_of(form: str) -> type[Reader]:
    """The reader of a format."""
    if form == "parquet":
        return ParquetReader
    from streamveil.connectors.text_files import READERS  # where files are of text

    return READERS[form]


def changed(name: str) -> SourceError:
    """The error for a file with other rows than those that were read."""
    return SourceError(
        f"the file '{shown(Path(name).name)}' changed after it was read, or while it was; rows"
        " would be lost or read twice.\n"
        "  to fix  restore it, and put new rows in new files: write them under a name that ends"
        " in .tmp, and rename them when they are whole"
    )


T = TypeVar("T")


def with_last(items: Iterable[T]) -> Iterator[tuple[T, bool]]:
    """Each item, with whether it is the last one.

    >>> list(with_last("ab"))
    [('a', False), ('b', True)]
    """
    waiting: list[T] = []
    for item in items:
        if waiting:
            yield waiting.pop(), False
        waiting.append(item)
        del item
    for item in waiting:
        yield item, True
