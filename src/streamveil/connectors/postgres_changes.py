"""The changes of a table of PostgreSQL, by logical replication: its rows first, then what happens.

A row has the columns of the table, `pg_operation` ('insert', 'update' or 'delete'; 'insert' for the
rows that were there at first) and `pg_time`, when its transaction was committed. A deletion has the
columns of the replica identity, others are null. An update that moves a row to another key is a
deletion and an insertion.

A position is the end of a transaction in the log and a number of rows after it. Proof that rows go
on the same: a server sends transactions whole, in the order of their commits, those whose commit
begins at the position or after it; the changes of a transaction are in the log, which does not
change, and the slot keeps them until a job's durable position is past them. Where a slot is past
the position, or on another server, rows are gone, and the source says so. A server that takes over
from another continues its log from some place on, in a timeline of its own: a position behind that
place is of transactions that this server does not have.

No gap and no doubling where the first rows meet the changes. The slot is made first; from there on
it has every transaction. Then one snapshot is taken, and its rows are kept in the job's state: they
can be read again. A transaction is in the snapshot or not, and PostgreSQL says which are: those are
passed over in the log, all others are read. Behind the end that the log had after the snapshot
none of them is in it, since a commit is in the log before anybody sees it.

The first rows are sorted by a hash of their content. A bound lets the first rows of a unit pass,
and the server's own order depends on rows that others deleted.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from streamveil.connectors import Chunk, as_declared, declared_schema, in_words, select, slices
from streamveil.connectors.database_sources import AT_ONCE, PLAIN_TEXT, schema_of, with_bytes
from streamveil.connectors.postgres_log import (
    ChangeLog,
    LogPlace,
    TableChange,
    TableChanges,
    TableFacts,
    identifiers,
    left_at,
    quoted,
    sent,
    started,
)
from streamveil.connectors.postgres_server import PostgresServer, copied
from streamveil.connectors.rejected_rows import TIME, TracedSource, fit
from streamveil.disk import crash_only, scratch_folder, sync_directory
from streamveil.errors import SourceError

OF_CHANGES = pa.schema([("pg_operation", pa.string()), ("pg_time", TIME)])
SNAPSHOT = "changes-snapshot"  # a file of the job's state, until its rows are durable
CASTS = {  # type -> what its texts become, as PostgreSQL casts its values to text
    16: (("^t$", "true"), ("^f$", "false")),  # boolean
    869: (("^[0-9.]+$", r"\0/32"), ("^[0-9a-f.:]+$", r"\0/128")),  # inet
    1042: ((" +$", ""),),  # character(n)
}
FLUSHED = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = $1"
SETTINGS = (
    "-c TimeZone=UTC -c DateStyle=ISO -c extra_float_digits=3 -c bytea_output=hex "
    "-c wal_sender_timeout=0"
)


class PostgresChanges(TracedSource):
    """Changes of the table `table`, which the publication `publication` publishes.

    `slot`: the replication slot of this job alone; made where it is missing. `follow = FALSE` reads
    to the present end of the log.
    """

    def __init__(
        self,
        url: str,
        table: str,
        publication: str,
        slot: str | None = None,
        columns: dict[str, str] | None = None,
        follow: bool = True,  # noqa: FBT001,FBT002  (an option of SQL, given by name)
    ) -> None:
        self.server = PostgresServer(url, "source 'postgres_changes'")
        self.table, self.publication, self.slot = table, publication, slot or publication
        if not self.slot.replace("_", "a").isalnum() or self.slot != self.slot.lower():
            raise SourceError(
                f"slot='{self.slot}': a slot's name has lower-case letters, digits and _ only.\n"
                "  to fix  give another slot"
            )
        self.bounded, self.names = not follow, [table]
        self.declared = declared_schema(columns or {})
        self._folder: Path | None = None
        self._durable = 0

    def keep_in(self, folder: Path) -> None:
        """Tells where the job's state is: the first rows are kept there."""
        self._folder = folder

    def committed(self, position: str | None) -> None:
        """Tells that a position is durable: the server may forget what lies before it."""
        if position is not None:
            place = LogPlace(**json.loads(position))
            self._durable = place.lsn
            if place.snapshot is None:
                self._spool.unlink(missing_ok=True)

    @cached_property
    def _own(self) -> Any:
        return scratch_folder()

    @property
    def _spool(self) -> Path:
        return (self._folder or Path(self._own.name)) / SNAPSHOT

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        return as_declared(self._known[0], self.declared, f"table '{self.table}'")

    @cached_property
    def _known(self) -> tuple[pa.Schema, dict[str, int]]:
        """The columns with the server's types, and the server's number for the type of each."""
        with self._connection() as connection:
            found = connection.execute(f"SELECT * FROM {quoted(self.table)} LIMIT 0")  # noqa: S608
            known, kinds = schema_of(found), {one.name: one.type_code for one in found.description}
        for name in OF_CHANGES.names:
            if name in known.names:
                raise SourceError(f"the source 'postgres_changes' has a column '{name}' of its own")
        return pa.schema([*known, *OF_CHANGES]), kinds

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        wanted = select(self.schema(), columns, f"table '{self.table}'")
        most = min(max_rows, AT_ONCE)
        with self._connection() as connection:
            names = frozenset(wanted.names) - {*OF_CHANGES.names}
            facts = TableFacts.of(connection, self.table, self.publication, names)
            place = LogPlace(**json.loads(position)) if position else self._first(connection)
            if place.table not in (0, facts.oid):
                raise SourceError(
                    f"the table '{self.table}' is not the one that this job has read: that was"
                    " dropped or has another name now.\n"
                    "  to fix  give it its name again; or start a new state, which reads the table"
                    " anew and is charged"
                )
            place = replace(place, table=facts.oid)
        if position is None:
            yield self._chunk([], place, wanted)
        if place.snapshot is not None:
            for rows in self._first_rows(place, most):
                done = place.rows + rows.num_rows
                place = replace(place, rows=done)
                table, rejected = self._read_as(rows, wanted)
                yield Chunk(self.placed(table, done), place.text(), rejected)
            place = replace(place, snapshot=None)
        with self._stream(place) as (place, stream):
            changes: list[TableChange] = []
            for change in TableChanges(place, facts, stream):
                changes.append(change)
                if len(changes) >= most or change.cells is None:
                    rows = [one for one in changes if one.cells is not None]
                    yield self._chunk(rows, change.place, wanted)
                    changes = []

    def _chunk(self, changes: list[TableChange], place: LogPlace, wanted: pa.Schema) -> Chunk:
        """Rows of some changes."""
        told = {
            "pg_operation": pa.array([one.operation for one in changes], pa.string()),
            "pg_time": pa.array([one.time for one in changes], pa.int64()).cast(TIME),
        }
        columns = [
            told[name] if name in told
            else pa.array([sent(one, name) for one in changes], pa.string())
            for name in wanted.names
        ]  # fmt: skip
        rows, rejected = self._read_as(pa.table(columns, wanted.names), wanted)
        return Chunk(self.placed(rows, place.rows), place.text(), rejected)

    def _read_as(self, texts: pa.Table, wanted: pa.Schema) -> tuple[pa.Table, dict[str, int]]:
        """See `fit`. The texts are those of the log, also of first rows."""
        known, kinds = self._known
        for place, name in enumerate(texts.column_names):
            for form, cast in CASTS.get(kinds.get(name, 0), ()):
                column = pc.replace_substring_regex(texts.column(name), form, cast)
                texts = texts.set_column(place, name, column)
        return fit(with_bytes(texts.select(wanted.names), known, wanted), wanted)

    def _first(self, connection: Any) -> LogPlace:
        """Makes the slot where it is missing, then keeps a snapshot of the table."""
        with self._replication() as replication:
            server, timeline = identifiers(replication)
        ask = connection.execute
        if not (found := ask(FLUSHED, [self.slot]).fetchall()):
            connection.commit()
            ask("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", [self.slot])
            connection.commit()
            found = ask(FLUSHED, [self.slot]).fetchall()
        connection.commit()
        connection.isolation_level, connection.read_only = 3, True  # one snapshot for all
        seen, until, now = ask(
            "SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn() - '0/0',"
            " (extract(epoch FROM now()) * 1000000)::bigint"
        ).fetchone()
        ask(PLAIN_TEXT)
        name = uuid.uuid4().hex
        self._keep(connection, name, now)
        return LogPlace(int(found[0][0]), server, 0, 0, name, seen, int(until), timeline)

    def _keep(self, connection: Any, name: str, now: int) -> None:
        """Writes the table as it is into a file, durably."""
        names = self.schema().names[: -len(OF_CHANGES)]
        told = [("pg_operation", pa.string()), ("pg_time", pa.int64())]
        schema = pa.schema([*((one, pa.string()) for one in names), *told], {"name": name})
        partial = self._spool.with_suffix(".partial")
        asked = ", ".join(exp.to_identifier(one, quoted=True).sql("postgres") for one in names)
        whole = 'CAST(streamveil_row.* AS text) COLLATE "C"'
        query = (
            f"SELECT {asked} FROM {quoted(self.table)} AS streamveil_row"  # noqa: S608
            f" ORDER BY hashtextextended({whole}, 0), {whole}"
        )
        with crash_only("write", self._spool):
            fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with (
                os.fdopen(fd, "wb") as file, pa.ipc.new_file(file, schema) as writer,
            ):  # fmt: skip
                for rows in copied(connection, query, names):
                    more = [pa.repeat("insert", len(rows)), pa.repeat(now, len(rows))]
                    writer.write_table(pa.table([*rows.columns, *more], schema))
                writer.close()
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._spool)
            sync_directory(self._spool.parent)

    def _first_rows(self, place: LogPlace, most: int) -> Iterator[pa.Table]:
        """The first rows that are left."""
        try:
            file = pa.ipc.open_file(pa.memory_map(str(self._spool)))
        except (OSError, pa.ArrowInvalid):
            file = None
        if file is None or (file.schema.metadata or {}).get(b"name") != place.snapshot.encode():  # type: ignore[union-attr]
            raise SourceError(
                f"the first rows of the table '{self.table}', which the state keeps, are missing"
                " or have changed.\n  to fix  restore the state as it was, or start a new one"
            )
        left = place.rows
        for number in range(file.num_record_batches):
            table = pa.Table.from_batches([file.get_batch(number)])
            yield from slices(table.slice(min(left, table.num_rows)), most)
            left -= min(left, table.num_rows)

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        """A connection that ends with the block, and errors in words."""
        with (
            in_words(
                self.server.error,
                f"the changes of '{self.table}' cannot be read",
                "check that the server runs with wal_level = logical, and that this user has the"
                " right REPLICATION and may read the table; then start again: the job goes on where"
                " it was",
                self._why,
            ),
            closing(self.server.connect_to_read()) as connection,
        ):
            yield connection

    def _why(self, error: Exception) -> str:
        state = str(getattr(error, "sqlstate", None) or "")
        told = state[:2] in ("42", "55", "53", "28")  # of names, settings and rights, not data
        more = f" ({str(error).splitlines()[0]})" if told else self.server.detail(error)
        return type(error).__name__ + more

    @contextmanager
    def _replication(self) -> Iterator[Any]:
        """A connection that speaks the protocol of replication."""
        options = f"{self.server.settings.get('options', '')} {SETTINGS}"
        with closing(self.server.connect(
            replication="database", autocommit=True, options=options
        )) as connection:  # fmt: skip
            yield connection.pgconn

    @contextmanager
    def _stream(self, place: LogPlace) -> Iterator[tuple[LogPlace, ChangeLog]]:
        """The log from a place on, and that place in the timeline of the server."""
        with self._connection() as connection, self._replication() as replication:
            slots = connection.execute(FLUSHED, [self.slot]).fetchall()
            server, timeline = identifiers(replication)
            if not slots or slots[0][0] > place.lsn or server != place.server:
                raise SourceError(
                    f"changes of '{self.table}' are gone that this job had not read: the slot "
                    f"'{self.slot}' is missing, is past them, or is one of another server.\n"
                    "  to fix  give each job a slot of its own; to go on without them, start a new "
                    "state, which reads the table anew and is charged"
                )
            (end,) = connection.execute("SELECT pg_current_wal_flush_lsn() - '0/0'").fetchone()
            connection.commit()
            if place.lsn > min(end, left_at(replication, place.timeline, timeline)):
                raise SourceError(
                    f"this job has read changes of '{self.table}' that the server does not have: it"
                    " was restored from a backup, or took over from another one before it had"
                    " them.\n"
                    "  to fix  start a new state, which reads the table anew and is charged"
                )
            started(replication, self.slot, place.lsn, self.publication)
            log = ChangeLog(replication, int(end), min(self._durable, place.lsn))
            yield replace(place, timeline=timeline), log
