"""Files, memory and the terminal as sinks. One file per release, named by its identity.

Releases of a window that are published together are one Parquet file (`release_metadata`), named
by the first and the last of them.

A file is written under a temporary name, synced, and renamed: a reader sees all of it or nothing,
and writing the same release again replaces it by the same bytes. If another processor computed it
again with other last digits, the file stays as it is. Another release under its name is refused: it
comes from another state, or from a copy of this one. A copy draws the same noise over other rows,
so that the difference of the two releases would be exact.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import date, datetime
from errno import EACCES, ENOTDIR
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from streamveil.batch import Release, alike, require_release
from streamveil.connectors import Sink, in_words
from streamveil.connectors.parquet import to_parquet
from streamveil.disk import ROOM_BYTES, room, sync_directory, write_all
from streamveil.display import rows_of, time_texts
from streamveil.errors import (
    SourceError,
    StoreError,
    require_file_name,
    require_one_of,
    require_path,
)
from streamveil.release_metadata import (
    PACKED,
    metadata_file,
    name_of,
    packed,
    read_parquet,
    read_time,
    same_columns,
    sentences,
    triggers_in,
)
from streamveil.release_metadata import to_json as to_json_metadata
from streamveil.terminal import Terminal, label, table_of

SHOWN = "backslashreplace"
PARQUET = "parquet"
FORMULA = r"\A(['=+\-@\t\r\n])"
MOST_FOLDERS = 64  # whose files are remembered
MOST = 2  # bytes of a file per byte of a table, nearly always


class FilesSink(Sink):
    """Writes `<path>/<job>/window=2026-01-01/trigger=T.<format>`: a window by its time.

    Releases that come together are `trigger=T-U.parquet`; other formats keep one file for each.

    The facts of a release besides its numbers are in the metadata of a Parquet file; for other
    formats they are in `metadata=T.json`, which is written first.

    `escape_formulas`: see `without_formulas`; for CSV, which spreadsheets open.
    """

    looks_at_options_alone: ClassVar = True  # when it is made

    def __init__(
        self,
        path: str,
        format: str = PARQUET,
        escape_formulas: bool = False,  # noqa: FBT001,FBT002  (an option of SQL, given by name)
    ) -> None:
        require_path("path", path)
        require_one_of("format", format, WRITERS)
        if escape_formulas and format != "csv":
            raise SourceError(
                f"escape_formulas is for format = 'csv', and this sink writes '{format}'.\n"
                "  to fix  leave it out: only spreadsheets compute cells, and they read CSV"
            )
        self.path, self.format = Path(path).absolute(), format
        self.escape_formulas = escape_formulas
        self._named: Path | None = None  # the last folder whose own name is durable
        self._names: dict[Path, set[str]] = {}  # of files in some folders, as far as they are known

    @property
    def keeps(self) -> bool:
        """Whether releases can be read back as they were written, to the last bit and type."""
        return self.format == PARQUET

    def write(self, job: str, release: Release) -> None:
        """See `Sink.write`."""
        window, trigger, table = require_release(release).identity
        self._publish(job, [(window, {trigger: table})])

    def write_together(self, job: str, releases: Sequence[Release]) -> None:
        """Publishes releases in their order; those of a window that fit into one file as one."""
        files = runs(releases) if self.format == PARQUET else [[one] for one in releases]
        self._publish(job, [(run[0].window, {r.trigger: r.table for r in run}) for run in files])

    def try_out(self) -> None:
        """See `try_connectors`."""
        above = next(one for one in (self.path, *self.path.parents) if one.exists())
        with self._in_words():
            if not above.is_dir():
                raise NotADirectoryError(ENOTDIR, os.strerror(ENOTDIR))
            if not os.access(above, os.W_OK | os.X_OK):
                raise PermissionError(EACCES, os.strerror(EACCES))

    def _in_words(self) -> AbstractContextManager[None]:
        return in_words(
            OSError,
            f"the sink cannot write to '{self.path}'",
            "make room or repair its permissions, then start again: what is committed is sent then",
            lambda error: str(error.strerror),
        )

    def _publish(self, job: str, files: Sequence[tuple[int, dict[int, pa.Table]]]) -> None:
        """Publishes releases in a row of a window in each file, then makes all names durable."""
        with self._in_words():
            folders = [*dict.fromkeys(self._write(job, *file) for file in files)]
            # a process that made these may have died before it made their names durable
            above = () if folders == [self._named] else folders[0].parents[:3]
            for name in (*folders, *above):
                sync_directory(name)  # what was published stays so after a power failure
            self._named = folders[-1]

    def _write(self, job: str, window: int, tables: dict[int, pa.Table]) -> Path:
        """Writes a file of releases of a window, or finds the same there; in which folder."""
        named = folder_of(window, next(iter(tables.values())))
        folder = self.path / require_file_name("job", job) / named
        folder.mkdir(parents=True, exist_ok=True)
        final = folder / f"{name_of(*tables)}.{self.format}"
        self._require_apart(final)
        table, told = next(iter(tables.values())), None
        if len(tables) > 1:
            table, told = packed(list(tables.values()))
        beside = None if self.keeps else to_json_metadata(table.schema, sentences(table))
        with room(MOST * table.nbytes + ROOM_BYTES) as own:
            cells = without_formulas(as_text(table)) if self.escape_formulas else table
            data = (
                WRITERS[self.format](cells, own) if told is None
                else to_parquet(table, own, {PACKED: told})
            )  # fmt: skip
            if final.exists() and final.read_bytes() != data:
                self._require_same(final, list(tables.values()))
            else:
                self._write_metadata(final, beside)
                _replace(final, data)
        return folder

    def _write_metadata(self, final: Path, text: bytes | None) -> None:
        """Writes what stands beside a file: before the file, or where a power failure took it."""
        beside = metadata_file(final)
        if text is not None and not (final.exists() and beside.exists()):
            _replace(beside, memoryview(text))

    def _require_apart(self, final: Path) -> None:
        """Refuses a file that overlaps another one, where either holds several releases."""
        if final.parent not in self._names:
            if len(self._names) >= MOST_FOLDERS:
                self._names.clear()
            there = os.listdir(final.parent) if self.format == PARQUET else []
            self._names[final.parent] = {name for name in there if len(triggers_in(name)) > 1}
        known, mine = self._names[final.parent], triggers_in(final.name)
        if len(mine) > 1:
            known = known | {name for name in os.listdir(final.parent) if triggers_in(name)}
            self._names[final.parent].add(final.name)
        for name in known - {final.name}:
            found = triggers_in(name)
            if found[0] <= mine[-1] and mine[0] <= found[-1]:
                raise another(final.with_name(name))

    def _require_same(self, final: Path, tables: Sequence[pa.Table]) -> None:
        """Refuses other releases than those in a file.

        The file may come from another version of Arrow, or from a processor that rounds otherwise.
        """
        try:
            if self.keeps:
                there = read_parquet(final)
                pairs = zip(there, tables, strict=True) if len(there) == len(tables) else ()
                if there and len(there) == len(tables) and all(alike(*pair) for pair in pairs):
                    return
        except (pa.ArrowException, OSError):  # no whole Parquet file; its bytes were read before
            pass
        raise another(final)


def another(file: Path) -> StoreError:
    """The error for a file that already holds another release."""
    return StoreError(
        f"'{file}' holds another release of this job, window and trigger.\n"
        "  to fix  give a new state, or changed post-processing, a path of its own, or remove "
        "what an older one published; never go on from a copy of a state that has published "
        "since"
    )


def runs(releases: Sequence[Release]) -> list[list[Release]]:
    """Releases by window, in runs of triggers in a row with the same columns."""
    found: list[list[Release]] = []
    open_runs: dict[int, list[Release]] = {}
    named: dict[int, str] = {}  # the folders of the open runs
    for release in map(require_release, releases):
        run, folder = open_runs.get(release.window), folder_of(release.window, release.table)
        if (
            run is None
            or run[-1].trigger + 1 != release.trigger
            or folder != named[release.window]
            or not same_columns(run[-1].table, release.table)
        ):
            run, named[release.window] = [], folder
            open_runs[release.window] = run
            found.append(run)
        run.append(release)
    return found


def folder_of(window: int, table: pa.Table) -> str:
    """The folder of a window, named by its time: `window=2026-01-01`."""
    place = read_time(table.schema)
    return f"window={window if place is None else place.name}"


def _replace(final: Path, data: memoryview) -> None:
    """Writes a file durably under a name beside its own, then gives it its own."""
    partial = final.with_suffix(final.suffix + ".partial")
    with partial.open("wb", buffering=0) as file:
        write_all(file.fileno(), [data])
        os.fsync(file.fileno())
    partial.replace(final)


def to_csv(table: pa.Table, _own: memoryview | None = None) -> memoryview:
    """Comma-separated values with a line of names; bytes that are no text as in Python."""
    out = pa.BufferOutputStream()
    table = as_text(table)
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz == "UTC":
            texts = time_texts(table.column(place))
            if pc.any(pc.starts_with(texts, "<")).as_py():  # Arrow would write them as others
                table = table.set_column(place, field.name, texts)
    pyarrow.csv.write_csv(table, out)
    return memoryview(out.getvalue()).cast("B")


def as_text(table: pa.Table) -> pa.Table:
    """The same with bytes as text."""
    for place, field in enumerate(table.schema):
        if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
            cells = table.column(place).to_pylist()
            shown = [None if cell is None else cell.decode(errors=SHOWN) for cell in cells]
            table = table.set_column(place, field.name, pa.array(shown, pa.string()))
    return table


def without_formulas(table: pa.Table) -> pa.Table:
    """The same with ' before each name and text that a spreadsheet would compute.

    Those begin with = + - @, a tab or an end of line. A text that begins with ' gets one as well,
    so that nothing is lost: take one ' away from every text that begins with it.
    """
    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            table = table.set_column(place, field.name, harmless(table.column(place)))
    return table.rename_columns(harmless(pa.array(table.column_names, pa.string())).to_pylist())


def harmless(texts: Any) -> Any:
    """Texts that are no formulas."""
    return pc.replace_substring_regex(texts, FORMULA, r"'\1")


def to_json(table: pa.Table, _own: memoryview | None = None) -> memoryview:
    """JSON lines; timestamps in ISO 8601, and bytes as in CSV."""

    def text(value: Any) -> str:
        return value.isoformat() if isinstance(value, datetime | date) else str(value)

    lines = [json.dumps(row, default=text) + "\n" for row in rows_of(as_text(table))]
    return memoryview("".join(lines).encode())


Writer = Callable[[pa.Table, memoryview | None], memoryview]  # into the given memory, or new one
WRITERS: dict[str, Writer] = {PARQUET: to_parquet, "csv": to_csv, "json": to_json}


class MemorySink(Sink):
    """Keeps every release in a dict, for tests and notebooks."""

    def __init__(self) -> None:
        self.releases: dict[tuple[str, int, int], pa.Table] = {}

    def write(self, job: str, release: Release) -> None:
        """See `Sink.write`."""
        window, trigger, table = require_release(release).identity
        self.releases[job, window, trigger] = table


class ConsoleSink(Sink):
    """Prints the first rows of each release."""

    def __init__(self, rows: int = 10) -> None:
        self.rows, self.console = rows, Terminal()

    def write(self, job: str, release: Release) -> None:
        """See `Sink.write`."""
        window, trigger, table = require_release(release).identity
        title = f"{job} · window {window} · trigger {trigger} · {table.num_rows} rows"
        self.console.print(table_of(table, title, self.rows))
        for sentence in sentences(table):
            self.console.print(label(sentence))
