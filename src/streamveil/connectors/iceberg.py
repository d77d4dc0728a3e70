"""Iceberg tables as a source and as a sink.

The source reads the rows of one snapshot, and then of each one that follows.

The rows of the first snapshot come file by file, in the order of their paths. For each later one
the files that it appends follow, in that order too. Files and snapshots never change, and a
snapshot names its parent, so (snapshot, file, row) is a place that stays, also when older snapshots
expire. A snapshot that only moves rows into other files (`replace`: compaction) adds none. One that
removes rows or rewrites them is refused: counted rows cannot be taken back.

A job stays with the table it began with, recognised by the table's own identifier.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from streamveil.batch import Release, plain_schema
from streamveil.connectors import Chunk, in_words, select, signed
from streamveil.connectors.databases import plain
from streamveil.connectors.file_reader import as_named, parquet_file
from streamveil.connectors.lakes import AT_ONCE, FileRows, LakeSource
from streamveil.connectors.marks import ContentMark, MarkedSink
from streamveil.connectors.rejected_rows import FittedRows, fitted, groups_behind
from streamveil.errors import SourceError, require_file_name, requires_extra
from streamveil.release_metadata import sentences

NUMBER = b"PARQUET:field_id"  # of a column, whatever it is called
NOTHING = 0  # the snapshot of a table that has none


@dataclass(frozen=True)
class IcebergPosition:
    """How far reading has come: `row` rows of a file of a snapshot are done."""

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
        tasks: list[Any] | None
        if place.snapshot == place.first:
            try:
                tasks = list(table.scan(snapshot_id=place.snapshot).plan_files())
            except ValueError as error:  # rows deleted by their values: PyIceberg plans none
                if "equality deletes" not in str(error):
                    raise
                tasks = None
        else:
            kind = snapshot.summary.operation.value if snapshot.summary else "overwrite"
            if kind not in ("append", "replace"):
                raise self.takes_away(f"snapshot {place.snapshot}", kind)
            added = table.incremental_append_scan(
                from_snapshot_id_exclusive=snapshot.parent_snapshot_id,
                to_snapshot_id_inclusive=place.snapshot,
            )
            tasks = [] if kind == "replace" else list(added.plan_files())
        if tasks is None or any(
            one.delete_files or one.file.file_format.value != "PARQUET" for one in tasks
        ):
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
            file = parquet_file(opened_file)
            names, known = columns_of(file.schema_arrow, table, data)
            sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            groups, first = groups_behind(sizes, start)
            own = [names[name] for name in wanted.names if name in names]
            tables = (
                as_named(pa.Table.from_batches([batch]), names, known, wanted)
                for batch in file.iter_batches(max_rows, row_groups=groups, columns=own)
            )
            yield from fitted(tables, first, start, wanted, max_rows)


def columns_of(file: pa.Schema, table: Any, data: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """For each column of a table, its name in a file, or its value in all rows of the file.

    A file that another program wrote lacks the columns that its folders name, and identifies the
    others only by name: the table keeps the names that each of its columns may have there.
    """
    partition = partition_of(table, data)
    by_number = {
        int(field.metadata[NUMBER]): field.name
        for field in file
        if field.metadata and NUMBER in field.metadata
    } or by_names(file, table)
    names, known = {}, {}
    for field in table.schema().fields:
        if field.field_id in by_number:
            names[field.name] = by_number[field.field_id]
        elif field.field_id in partition:
            known[field.name] = partition[field.field_id]
        elif getattr(field, "initial_default", None) is not None:
            raise SourceError(
                f"column '{field.name}' of the Iceberg table has a default for older files, which"
                " is not read here.\n  to fix  rewrite its data files (compaction)"
            )
    return names, known


def by_names(file: pa.Schema, table: Any) -> dict[int, str]:
    """For each column number of a table, its name in a file without numbers.

    Where the table keeps no names for that, it is one that the column had at some time.
    """
    known = table.name_mapping()
    if known is None:
        had = {(one.field_id, one.name) for old in table.schemas().values() for one in old.fields}
        if len({name for _, name in had}) < len(had):
            raise SourceError(
                "two columns of the Iceberg table had one name, and a file tells its columns by"
                " their names alone.\n"
                "  to fix  set schema.name-mapping.default, or rewrite its data files (compaction)"
            )
        known_names = [(one.field_id, [*(name for number, name in had if number == one.field_id),
                                       one.name]) for one in table.schema().fields]  # fmt: skip
    else:
        known_names = [(field.field_id, field.names) for field in known]
    return {number: name for number, some in known_names for name in some if name in file.names}


def partition_of(table: Any, data: Any) -> dict[int, Any]:
    """The values that all rows of a file have, by the numbers of their columns."""
    parts = table.specs()[data.spec_id].fields
    return {
        part.source_id: value
        for part, value in zip(parts, data.partition, strict=True)
        if str(part.transform) == "identity" and value is not None
    }


def schema_of(table: Any) -> pa.Schema:
    """The columns of a table."""
    return plain_schema(table.schema().as_arrow()).remove_metadata()


# ---- the sink: one commit for each release, with the mark of the release in it
#
# Exactly once. Proof: the rows of a release and its mark, a property of the table, are one commit
# of the catalogue. A commit names the snapshot that it follows, and the catalogue takes one commit
# for each; so if two lives of a job send a release at once, one fails, reads the table again and
# finds the mark. No commit is tried again without this check (`RETRIES`).

RETRIES = "commit.retry.num-retries"
OWN = {
    RETRIES: "0",  # see the proof
    "write.metadata.metrics.default": "counts",  # least and most of a time no calendar has: none
}
ATTEMPTS = 20


class IcebergSink(MarkedSink):
    """Appends every release to one table, each once. The table is made at the first release.

    `catalog` names one of PyIceberg's configuration (`~/.pyiceberg.yaml`, or variables of the
    environment), which holds addresses and credentials.
    """

    def __init__(self, table: str, catalog: str = "default") -> None:
        require_package()
        self.name, self.catalog = table_name(table), catalog
        self.what = f"the Iceberg table '{self.name}'"

    def write(self, job: str, release: Release) -> None:
        """See `Sink.write`. Looks again where another commit came first."""
        from pyiceberg.exceptions import CommitFailedException

        with words(self.name):
            for attempt in range(ATTEMPTS):
                try:
                    return super().write(job, release)
                except CommitFailedException:
                    if attempt + 1 == ATTEMPTS:
                        raise
        return None

    @contextmanager
    def opened(self, job: str, release: Release) -> Iterator[Any]:
        """The table as it is now; made where it is missing."""
        from pyiceberg.exceptions import NoSuchTableError

        catalog = opened(self.catalog)
        try:
            table = catalog.load_table(self.name)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
            schema = for_iceberg(release.table).schema
            table = catalog.create_table_if_not_exists(self.name, schema)
        yield table

    def kept(self, place: Any, job: str, release: Release) -> ContentMark | None:
        """See `MarkedSink`. A table keeps the mark of the last release of each window."""
        known = json.loads(place.properties.get(property_of(job, release), '{"trigger": 0}'))
        if known["trigger"] == release.trigger:
            return ContentMark(known["digest"], known["norm"])
        return ContentMark.of(release.table) if known["trigger"] > release.trigger else None

    def put(self, place: Any, job: str, release: Release, mark: ContentMark) -> None:
        """See `MarkedSink`."""
        place.metadata.properties.update(OWN)  # of this copy alone
        said = {"trigger": release.trigger, **vars(mark)}
        change = place.transaction()
        change.append(
            for_iceberg(release.table),
            snapshot_properties={"streamveil.notes": json.dumps(sentences(release.table))},
        )
        change.set_properties({property_of(job, release): json.dumps(said)})
        change.commit_transaction()


def property_of(job: str, release: Release) -> str:
    """The property of a table that holds the mark of a window's last release."""
    return f"streamveil.{require_file_name('job', job)}/{release.window}"


def for_iceberg(table: pa.Table) -> pa.Table:
    """The same rows in types that Iceberg has: its times are in UTC, or of no zone."""
    table = signed(plain(table)).replace_schema_metadata(None)
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            kind = pa.timestamp("us", tz="UTC")
            table = table.set_column(place, field.with_type(kind), table.column(place).cast(kind))
    return table


def require_package() -> None:
    """MissingExtraError where PyIceberg is not installed."""
    with requires_extra("Iceberg", "iceberg"):
        import pyiceberg.catalog  # noqa: F401


def table_name(table: str) -> str:
    """A table with its namespace; SourceError for another text."""
    if not all(table.split(".")) or "." not in table:
        raise SourceError(
            f"table = '{table}' has no namespace.\n  to fix  write it as 'namespace.table'"
        )
    return table


def opened(catalog: str) -> Any:
    """A catalogue of PyIceberg's configuration."""
    from pyiceberg.catalog import load_catalog

    return load_catalog(catalog)


def words(name: str) -> AbstractContextManager[None]:
    """Errors in words, without a library's text, which may hold values or a password."""
    return in_words(
        Exception,
        f"the Iceberg table '{name}' cannot be loaded",
        "check that PyIceberg's configuration names its catalogue and its storage, that the table"
        " has the same columns, and that this user may use it; snapshots and files must be kept"
        " until they are read",
    )
