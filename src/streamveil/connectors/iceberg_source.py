"""An Iceberg table as a source: the rows of one snapshot, and then of each one that follows.

The rows of the first snapshot come file by file, in the order of their paths. Of each later one
come the files that it appends, in that order too. Files and snapshots never change, and a snapshot
names its parent, so (snapshot, file, row) is a place that stays, also when older ones expire. One
that only puts rows into other files (`replace`: compaction) adds none. One that takes rows away or
writes them anew is refused: what was counted cannot be taken back.

A job holds to the table it began with, by the identifier that the table gave itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.batch import plain_schema
from streamveil.connectors import Chunk, select
from streamveil.connectors.iceberg import opened, require_package, table_name, words
from streamveil.connectors.lakes import AT_ONCE, FileRows, LakeSource
from streamveil.connectors.rejected_rows import FittedRows, fitted, groups_behind
from streamveil.errors import SourceError

NUMBER = b"PARQUET:field_id"  # of a column, whatever it is called
NOTHING = 0  # the snapshot of a table that has none


@dataclass(frozen=True)
class IcebergPosition:
    """Where reading stands: `row` rows are done of a file of a snapshot."""

    table: str  # identifier of the table
    first: int  # snapshot that was read whole
    snapshot: int
    file: int = 0  # its place among those that the snapshot adds
    row: int = 0
    done: bool = False  # with the whole snapshot


class IcebergSource(LakeSource):
    """Rows of a table as of `snapshot`: the newest one if not given.

    With `follow`, the rows that later snapshots append come after them. `catalog` names one of
    PyIceberg's configuration.
    """

    def __init__(
        self, table: str, catalog: str = "default", snapshot: int | None = None, *,
        follow: bool = False,
    ) -> None:  # fmt: skip
        require_package()
        self.name, self.catalog, self.snapshot = table_name(table), catalog, snapshot
        super().__init__(f"the Iceberg table '{self.name}'", bounded=not follow)

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        with words(self.name):
            return schema_of(self._table())

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        with words(self.name):
            table = self._table()
            wanted = select(schema_of(table), columns, self.what)
            place = self._place(position, table)
            todo = [] if place.done else [place]
            if not self.bounded:
                todo += [
                    replace(place, snapshot=one.snapshot_id, file=0, row=0, done=False)
                    for one in self._later(table, place)
                ]
            for here in todo:
                yield from self._rows_of(table, here, wanted, min(max_rows, AT_ONCE))

    def _table(self) -> Any:
        return opened(self.catalog).load_table(self.name)

    def _place(self, position: str | None, table: Any) -> IcebergPosition:
        """A position, or the first one; SourceError if it is of another table."""
        own = str(table.metadata.table_uuid)
        if position is None:
            newest = table.current_snapshot()
            first = self.snapshot or (newest.snapshot_id if newest else NOTHING)
            return IcebergPosition(own, first, first, done=first == NOTHING)
        place = IcebergPosition(**json.loads(position))
        if place.table != own:
            raise self.another()
        return place

    def _later(self, table: Any, place: IcebergPosition) -> list[Any]:
        """The snapshots that follow a place, in order; SourceError if the newest does not."""
        found, at = [], table.current_snapshot()
        while at is not None and at.snapshot_id != place.snapshot:
            found.append(at)
            parent = at.parent_snapshot_id
            if parent == place.snapshot or (parent is None and place.snapshot == NOTHING):
                return found[::-1]
            at = None if parent is None else table.snapshot_by_id(parent)
        if at is None and (found or place.snapshot != NOTHING):
            raise SourceError(
                f"the newest snapshot of {self.what} does not follow the one"
                " that this job has read: one between them expired, or the table was rolled"
                " back.\n"
                "  to fix  keep snapshots until they are read; to go on without what is lost,"
                " start a new state, which is charged"
            )
        return []

    def _rows_of(
        self, table: Any, place: IcebergPosition, wanted: pa.Schema, max_rows: int
    ) -> Iterator[Chunk]:
        """The rows of one snapshot from a place on."""
        files = self._files(table, place)
        last = replace(place, file=len(files), row=0, done=True)

        def read(file: Any, start: int) -> FileRows:
            parts = self._rows(table, file, start, wanted, max_rows)
            return FileRows(file.file_path, file.record_count, parts)

        yield from self.chunks(files, place, last, read)
        if place.file >= len(files):  # none is left: the next read may begin behind it
            yield Chunk(self.placed(wanted.empty_table(), 0), json.dumps(asdict(last)))

    def _files(self, table: Any, place: IcebergPosition) -> list[Any]:
        """The files that a snapshot adds, or all where it is the first; in order."""
        snapshot = table.snapshot_by_id(place.snapshot)
        if snapshot is None:
            raise SourceError(
                f"{self.what} no longer has snapshot {place.snapshot}.\n"
                "  to fix  keep snapshots until they are read, or start a new state, which is"
                " charged"
            )
        if place.snapshot == place.first:
            tasks = list(table.scan(snapshot_id=place.snapshot).plan_files())
        else:
            kind = snapshot.summary.operation.value if snapshot.summary else "overwrite"
            if kind not in ("append", "replace"):
                raise self.takes_away(f"snapshot {place.snapshot}", kind)
            added = table.incremental_append_scan(
                from_snapshot_id_exclusive=snapshot.parent_snapshot_id,
                to_snapshot_id_inclusive=place.snapshot,
            )
            tasks = [] if kind == "replace" else list(added.plan_files())
        if any(one.delete_files or one.file.file_format.value != "PARQUET" for one in tasks):
            raise SourceError(
                f"{self.what} has files of deleted rows, or files that are not"
                " Parquet, which are not read here.\n"
                "  to fix  rewrite its data files (compaction), or copy the table"
            )
        return sorted((one.file for one in tasks), key=lambda one: str(one.file_path))

    def _rows(
        self, table: Any, data: Any, start: int, wanted: pa.Schema, max_rows: int
    ) -> Iterator[FittedRows]:
        """The rows of one file behind the first `start`."""
        with table.io.new_input(data.file_path).open() as opened_file:
            file = pq.ParquetFile(opened_file)
            names = columns_of(file.schema_arrow, table)
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            groups, first = groups_behind(sizes, start)
            own = [names[name] for name in wanted.names if name in names]
            tables = (
                as_named(pa.Table.from_batches([batch]), names, wanted)
                for batch in file.iter_batches(max_rows, row_groups=groups, columns=own)
            )
            yield from fitted(tables, first, start, wanted, max_rows)


def as_named(table: pa.Table, names: dict[str, str], wanted: pa.Schema) -> pa.Table:
    """Columns by the names that the table gives them; null where the file is older than one."""
    columns = [
        table.column(names[field.name]) if field.name in names
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in wanted
    ]  # fmt: skip
    return pa.table(columns, wanted.names)


def columns_of(file: pa.Schema, table: Any) -> dict[str, str]:
    """Of each column of a table what it is called in a file: by its number, else by its name."""
    by_number = {
        int(field.metadata[NUMBER]): field.name
        for field in file
        if field.metadata and NUMBER in field.metadata
    }
    found = {}
    for field in table.schema().fields:
        if by_number.get(field.field_id) is not None:
            found[field.name] = by_number[field.field_id]
        elif not by_number and field.name in file.names:
            found[field.name] = field.name
        elif getattr(field, "initial_default", None) is not None:
            raise SourceError(
                f"column '{field.name}' of the Iceberg table has a default for older files, which"
                " is not read here.\n  to fix  rewrite its data files (compaction)"
            )
    return found


def schema_of(table: Any) -> pa.Schema:
    """The columns of a table."""
    return plain_schema(table.schema().as_arrow()).remove_metadata()
