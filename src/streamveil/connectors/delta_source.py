"""A Delta table as a source: the rows of one version, and then of each version that follows.

The rows of the first version come file by file, in the order of their paths. For each later version
the files that its commit adds follow, in that order too. Delta's files and commits never change
once they are written, so (version, file, row) is a place that stays. A commit that only moves rows
into other files (`dataChange` = false: OPTIMIZE) adds none. One that removes rows or rewrites them
is refused: counted rows cannot be taken back.

A job stays with the table it began with, recognised by the table's own identifier.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
import pyarrow.fs

from streamveil.batch import plain_schema, with_fields
from streamveil.connectors import Chunk, absolute, select
from streamveil.connectors.file_reader import TIMES_OF_96_BITS, as_named, columns_in
from streamveil.connectors.lakes import AT_ONCE, FileRows, LakeSource
from streamveil.connectors.manifest import shown
from streamveil.connectors.rejected_rows import fitted, groups_behind
from streamveil.errors import SourceError, requires_extra

PHYSICAL = "delta.columnMapping.physicalName"  # of a column, in the metadata of a table


@dataclass(frozen=True)
class DeltaPosition:
    """How far reading has come: `row` rows of a file of a version are done."""

    table: str  # identifier of the table
    first: int  # version that was read whole
    version: int
    file: int = 0  # its place among those that the version adds
    row: int = 0


class DeltaSource(LakeSource):
    """Rows of the table in the folder `path`, as of `version`: the newest one if not given.

    With `follow`, the rows that later versions add come after them.
    """

    def __init__(self, path: str, version: int | None = None, *, follow: bool = False) -> None:
        with requires_extra("the source 'delta'", "delta"):
            import deltalake
            import deltalake.fs
        if version is not None and (isinstance(version, bool) or version < 0):
            raise SourceError(f"version counts from 0, so it cannot be {version}")
        super().__init__(f"the Delta table '{shown(str(path))}'", bounded=not follow)
        self.path, self.version = absolute(str(path)), version
        self._delta: Any = deltalake

    def schema(self) -> pa.Schema:
        """See `Source.schema`. When following, the first version may be gone from the log."""
        with self._words():
            return schema_of(self._at(self.version if self.bounded else None))

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        wanted = select(self.schema(), columns, self.what)
        with self._words():
            newest = self._at(None)
            place = self._place(position, newest)
            last = place.first if self.bounded else newest.version()
            for version in range(place.version, last + 1):
                if version > place.version:
                    place = replace(place, version=version, file=0, row=0)
                yield from self._rows_of(place, wanted, min(max_rows, AT_ONCE))

    def _place(self, position: str | None, newest: Any) -> DeltaPosition:
        """A position, or the first one; SourceError if it is of another table."""
        table = newest.metadata().id
        if position is None:
            first = newest.version() if self.version is None else self.version
            return DeltaPosition(table, first, first)
        place = DeltaPosition(**json.loads(position))
        if place.table != table or place.version > newest.version() + 1:
            raise self.another(", or is an older copy of it")
        return place

    def _rows_of(self, place: DeltaPosition, wanted: pa.Schema, max_rows: int) -> Iterator[Chunk]:
        """The rows of one version from a place on."""
        added = None if place.version == place.first else self._added(place.version)
        if added is not None and not added:
            return
        table = self._at(place.version)
        require_columns(schema_of(table), wanted, place.version)
        own = plain_schema(pa.schema(table.schema().to_arrow()))
        parts = tuple(f"{name}." for name in wanted.names)  # and structures that hold one
        held = [name for name in own.names if any(part.startswith(f"{name}.") for part in parts)]
        files = sorted(fragments_of(table, self._store()), key=lambda one: str(one.path))
        files = [one for one in files if added is None or one.path in added]
        if added is not None and len(files) < len(added):
            raise gone(self.path, f"a file of version {place.version} is not in it")

        def read(file: Any, start: int) -> FileRows:
            sizes = [group.num_rows for group in file.row_groups]
            groups, row = groups_behind(sizes, start)
            scanned = file.subset(row_group_ids=groups).to_batches(
                schema=as_stored(own, file.physical_schema), columns=held, batch_size=max_rows
            ) if groups else ()  # fmt: skip
            rows = (with_fields(pa.Table.from_batches([batch])) for batch in scanned)
            tables = (as_named(some, {name: name for name in some.column_names}, {}, wanted)
                      for some in rows)  # fmt: skip
            return FileRows(file.path, sum(sizes), fitted(tables, row, start, wanted, max_rows))

        last = replace(place, version=place.version + 1, file=0, row=0)
        yield from self.chunks(files, place, last, read)

    def _added(self, version: int) -> set[str]:
        """Paths of the files that a version adds; SourceError if it takes rows away."""
        try:
            with self._store().open_input_stream(f"_delta_log/{version:020}.json") as file:
                actions = [json.loads(line) for line in file.read().splitlines() if line.strip()]
        except FileNotFoundError:
            raise gone(self.path, f"its log no longer holds version {version}") from None
        changes = [
            (kind, action)
            for line in actions
            for kind, action in line.items()
            if kind in ("add", "remove") and action.get("dataChange", True)
        ]
        if any(kind == "remove" for kind, _ in changes):
            raise self.takes_away(f"version {version}", "DELETE, UPDATE, MERGE, overwrite")
        return {unquote(action["path"]) for _, action in changes}  # a log holds them quoted

    def _store(self) -> Any:
        return pa.fs.PyFileSystem(self._delta.fs.DeltaStorageHandler(self.path))

    def _at(self, version: int | None) -> Any:
        return self._delta.DeltaTable(self.path, version=version)

    @contextmanager
    def _words(self) -> Iterator[None]:
        """Errors in words, without a library's text, which may hold values."""
        errors = self._delta.exceptions
        try:
            yield
        except (errors.DeltaProtocolError, MappedColumnsError):
            raise SourceError(
                f"{self.what} uses what cannot be read here, such as"
                " deletion vectors or column mapping.\n"
                "  to fix  turn that off (delta.enableDeletionVectors = false and REORG TABLE ..."
                " APPLY (PURGE)), or copy the table"
            ) from None
        except (errors.DeltaError, pa.ArrowException, OSError, json.JSONDecodeError) as error:
            raise gone(self.path, type(error).__name__) from None


def fragments_of(table: Any, store: Any) -> list[Any]:
    """The files of a version, each with the values of its folders.

    `deltalake` turns the statistics into dates of Python, and raises a ValueError for one outside
    the years 1 to 9999. It has checked the protocol by then; statistics are not needed.
    """
    options = pds.ParquetReadOptions(**TIMES_OF_96_BITS)
    with suppress(ValueError):
        return list(table.to_pyarrow_dataset(parquet_read_options=options).get_fragments())
    actions, parquet = pa.table(table.get_add_actions()), pds.ParquetFileFormat(options)
    folders = actions["partition"] if "partition" in actions.column_names else [{}] * len(actions)
    return [
        parquet.make_fragment(unquote(path), store, reduce(and_, [
            pc.field(name) == one if one.is_valid else pc.field(name).is_null()
            for name, one in values.items()
        ]) if values else None)
        for path, values in zip(actions["path"].to_pylist(), folders, strict=True)
    ]  # fmt: skip


def is_mapped(kind: Any) -> bool:
    """Whether files have other names for fields of a type, at any depth."""
    if isinstance(kind, dict) and kind.get("name") is not None:
        known = (kind.get("metadata") or {}).get(PHYSICAL, kind["name"])
        return bool(known != kind["name"] or is_mapped(kind["type"]))
    parts = kind.values() if isinstance(kind, dict) else kind if isinstance(kind, list) else ()
    return any(map(is_mapped, parts))


class MappedColumnsError(Exception):
    """A table's files name its columns differently: under the table's names they would be null."""


def schema_of(table: Any) -> pa.Schema:
    """The columns of a version of a table; MappedColumnsError if files name them differently.

    `deltalake` refuses a mapping only where the table's protocol lists it as a feature.
    """
    if is_mapped(json.loads(table.schema().to_json())):
        raise MappedColumnsError
    return columns_in(pa.schema(table.schema().to_arrow()))


def as_stored(own: pa.Schema, file: pa.Schema) -> pa.Schema:
    """The columns of a version as a file stores them: its rows are cast one by one.

    A library that casts a file stops at the first value that does not fit.
    """
    kinds = {one.name: one.type for one in file}
    return pa.schema([one.with_type(kinds.get(one.name, one.type)) for one in own])


def require_columns(own: pa.Schema, wanted: pa.Schema, version: int) -> None:
    """SourceError unless a version has all wanted columns, of the types they began with."""
    for field in wanted:
        if field.name not in own.names or own.field(field.name).type != field.type:
            raise SourceError(
                f"column '{field.name}' is not in version {version} of the Delta table, or has"
                " another type there than in the version that this process began with.\n"
                "  to fix  give the column back, or start a new state, which is charged"
            )


def gone(path: str, reason: str) -> SourceError:
    """The error for a table that cannot be read."""
    return SourceError(
        f"the source cannot read the Delta table '{shown(path)}': {reason}.\n"
        "  to fix  check that it is there and that this user may read it; versions and files must"
        " be kept until they are read (delta.logRetentionDuration, VACUUM)"
    )
