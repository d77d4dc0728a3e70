"""The changes of a table of PostgreSQL, by logical replication: its rows first, then what happens.

A row has the columns of the table, `pg_operation` ('insert', 'update' or 'delete'; 'insert' for the
rows that were there at first) and `pg_time`, when its transaction was committed. A deletion has the
columns of the replica identity, others are null. An update that moves a row to another key is a
deletion and an insertion.

A position is the end of a transaction in the log and a number of rows after it. Proof that rows go
on the same: a server sends transactions whole, in the order of their commits, those whose commit
begins at the position or behind it; what a transaction changed is in the log, which does not
change, and the slot keeps it until a job has made durable that it is past it. Where a slot is past
the position, or on another server, rows are gone, and the source says so. A server that takes over
from another continues its log from some place on, in a timeline of its own: a position behind that
place is of transactions that this server does not have.

No gap and no doubling where the first rows meet the changes. The slot is made first; from there on
it has every transaction. Then one snapshot is taken, and its rows are kept in the job's state: they
can be read again. A transaction is in the snapshot or not, and PostgreSQL says which are: those are
passed over in the log, all others are read. Behind the end that the log had after the snapshot
none of them is in it, since a commit is in the log before anybody sees it.
"""

from __future__ import annotations

import json
import math
import os
import re
import select as wait_for
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from streamveil.connectors import Chunk, as_declared, declared_schema, in_words, select, slices
from streamveil.connectors.database_sources import AT_ONCE, PLAIN_TEXT, schema_of
from streamveil.connectors.postgres_server import WAIT, PostgresServer, copied
from streamveil.connectors.rejected_rows import TIME, TracedSource, fit
from streamveil.disk import crash_only, scratch_folder, sync_directory
from streamveil.errors import SourceError

OF_CHANGES = pa.schema([("pg_operation", pa.string()), ("pg_time", TIME)])
SNAPSHOT = "changes-snapshot"  # a file of the job's state, until its rows are durable
HALF = 1 << 31  # transactions that PostgreSQL tells apart on each side
EPOCH_2000 = 946_684_800_000_000  # microseconds
SETTINGS = (
    "-c TimeZone=UTC -c DateStyle=ISO -c extra_float_digits=3 -c bytea_output=hex "
    "-c wal_sender_timeout=0"
)
Cells = list[str | None]


@dataclass(frozen=True)
class LogPlace:
    """Where reading stands: `skip` rows after the transactions that end at `lsn`."""

    lsn: int
    server: str  # its identifier
    rows: int = 0  # read in all
    skip: int = 0
    snapshot: str | None = None  # the name of the first rows, while they are read
    seen: str = ""  # transactions in the snapshot, as PostgreSQL writes them
    until: int = 0  # behind it none of them is
    timeline: int = 0  # of the log; 0: an older version did not ask

    def text(self) -> str:
        """The JSON of the position."""
        return json.dumps(vars(self))

    def has_seen(self, commit: int, xid: int) -> bool:
        """Whether the first rows hold what a transaction did.

        >>> place = LogPlace(0, "", seen="4294967290:4294967299:4294967297", until=100)
        >>> [place.has_seen(90, xid) for xid in (4294967289, 0, 1, 2, 3, 4)]
        [True, True, False, True, False, False]
        >>> place.has_seen(100, 0)
        False
        """
        if commit >= self.until:
            return False
        low, high, running = self.seen.split(":")
        behind = (int(high) - xid + HALF) % (2 * HALF) - HALF  # the log has 32 bits of a number
        whole = int(high) - behind
        return whole < int(low) or (whole < int(high) and str(whole) not in running.split(","))


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
        return self._schema

    @cached_property
    def _schema(self) -> pa.Schema:
        with self._connection() as connection:
            found = connection.execute(f"SELECT * FROM {self._quoted} LIMIT 0")  # noqa: S608
            known = schema_of(found)
        known = as_declared(known, self.declared, f"table '{self.table}'")
        for name in OF_CHANGES.names:
            if name in known.names:
                raise SourceError(f"the source 'postgres_changes' has a column '{name}' of its own")
        return pa.schema([*known, *OF_CHANGES])

    @property
    def _quoted(self) -> str:
        parts = [exp.to_identifier(one, quoted=True) for one in self.table.split(".")]
        return ".".join(part.sql("postgres") for part in parts)

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        wanted = select(self.schema(), columns, f"table '{self.table}'")
        most = min(max_rows, AT_ONCE)
        with self._connection() as connection:
            facts = TableFacts.of(connection, self, wanted.names)
            place = LogPlace(**json.loads(position)) if position else self._first(connection)
        if position is None:
            yield self._chunk([], place, wanted)
        if place.snapshot is not None:
            for rows in self._first_rows(place, most):
                done = place.rows + rows.num_rows
                place = replace(place, rows=done)
                table, rejected = read_as(rows, wanted)
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
        rows, rejected = read_as(pa.table(columns, wanted.names), wanted)
        return Chunk(self.placed(rows, place.rows), place.text(), rejected)

    def _first(self, connection: Any) -> LogPlace:
        """Makes the slot where it is missing, then keeps a snapshot of the table."""
        with self._replication() as replication:
            server, timeline = identifiers(replication)
        ask = connection.execute
        slot = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = $1"
        if not (found := ask(slot, [self.slot]).fetchall()):
            connection.commit()
            ask("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", [self.slot])
            connection.commit()
            found = ask(slot, [self.slot]).fetchall()
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
        asked = ", ".join(
            exp.to_identifier(one, quoted=True).sql("postgres") + "::text" for one in names
        )
        query = f"SELECT {asked} FROM {self._quoted}"  # noqa: S608
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
            slots = connection.execute(
                "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = $1",
                [self.slot],
            ).fetchall()
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


@dataclass(frozen=True)
class TableFacts:
    """What the catalog says of a table."""

    oid: int
    key: tuple[str, ...]  # columns of the primary key
    columns: frozenset[str]  # those that are read

    @classmethod
    def of(cls, connection: Any, source: PostgresChanges, wanted: list[str]) -> TableFacts:
        """Raises SourceError where the publication would leave changes out."""
        ask = connection.execute
        oid, schema, name = ask(
            "SELECT c.oid, n.nspname, c.relname FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::regclass",
            [source._quoted],
        ).fetchone()
        whole = ask(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication"
            " WHERE pubname = $1", [source.publication],
        ).fetchall()  # fmt: skip
        listed = ask(
            "SELECT to_jsonb(t) FROM pg_publication_tables t"
            " WHERE pubname = $1 AND schemaname = $2 AND tablename = $3",
            [source.publication, schema, name],
        ).fetchall()
        names = frozenset(wanted) - {*OF_CHANGES.names}
        told = listed[0][0] if listed else {"rowfilter": "all"}
        if whole != [(True,)] or told.get("rowfilter") or names - {*told.get("attnames", names)}:
            raise SourceError(
                f"the publication '{source.publication}' does not publish all changes of "
                f"'{source.table}'.\n  to fix  CREATE PUBLICATION {source.publication} FOR TABLE "
                f"{source.table}, without a list of columns, a condition or `publish`"
            )
        if left := names & {name for (name,) in ask(MAYBE_UNSENT, [oid]).fetchall()}:
            raise unsent(min(left))
        key = ask(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a"
            " ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)"
            " WHERE i.indrelid = $1 AND i.indisprimary", [oid],
        ).fetchall()  # fmt: skip
        connection.commit()
        return cls(oid, tuple(name for (name,) in key), names)


@dataclass(frozen=True)
class TableChange:
    """A row, or no more than a place."""

    place: LogPlace  # behind it
    operation: str = ""
    cells: dict[str, str | None] | None = None
    time: int = 0  # microseconds since 1970


def read_as(texts: pa.Table, wanted: pa.Schema) -> tuple[pa.Table, dict[str, int]]:
    """See `fit`; truth values are 't' and 'f' in the log, and 'true' and 'false' in a query.

    >>> texts = pa.table({"x": ["t", "false", "?"]})
    >>> read_as(texts, pa.schema({"x": pa.bool_()}))[0]["x"].to_pylist()
    [True, False, None]
    """
    for one in wanted:
        if pa.types.is_boolean(one.type):
            whole = texts.column(one.name)
            for short, long in (("^t$", "true"), ("^f$", "false")):
                whole = pc.replace_substring_regex(whole, short, long)
            texts = texts.set_column(texts.column_names.index(one.name), one.name, whole)
    return fit(texts.select(wanted.names), wanted)


# Columns of any length whose values an update may leave out of the log. They are refused before a
# row is read: that some value is long must not decide whether a job goes on.
MAYBE_UNSENT = """
    SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    WHERE c.oid = $1 AND c.relreplident <> 'f' AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attstorage <> 'p' AND NOT EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY(i.indkey)
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END)"""


def unsent(name: str) -> SourceError:
    """What to say where the log may lack values of a column."""
    return SourceError(
        f"the log lacks a long value of column '{name}' where an update leaves it as it was.\n"
        "  to fix  ALTER TABLE ... REPLICA IDENTITY FULL, and start a new state; or read the "
        "other columns alone"
    )


def sent(change: TableChange, name: str) -> str | None:
    """A cell of a change."""
    cell = (change.cells or {}).get(name)
    if cell == UNSENT:  # never where the table stayed as `MAYBE_UNSENT` found it
        raise unsent(name)
    return cell


class TableChanges:
    """The changes of one table in the messages of `pgoutput` (protocol 1), then an empty one.

    https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
    """

    def __init__(self, place: LogPlace, facts: TableFacts, log: ChangeLog) -> None:
        self.place, self.facts, self.log = place, facts, log
        self._names: list[str] = []
        self._passed, self._time, self._skip = False, 0, place.skip

    def __iter__(self) -> Iterator[TableChange]:
        for message in self.log:
            kind = message[:1]
            if kind == b"B":
                commit, when, xid = struct.unpack_from(">QqI", message, 1)
                self._passed = self.place.has_seen(commit, xid)
                self._time = when + EPOCH_2000
                self.place = replace(self.place, skip=0)
            elif kind == b"C":
                _, _, end = struct.unpack_from(">BQQ", message, 1)
                self.place, self._skip = replace(self.place, lsn=end, skip=0), 0
            elif kind == b"T":
                self._require_whole(message)
            elif kind in b"RIUD" and MessageFields(message, 1).number("I") == self.facts.oid:
                yield from self._rows(kind, MessageFields(message, 5))
        end = max(self.place.lsn, self.log.end)
        yield TableChange(replace(self.place, lsn=end, skip=0))

    def _require_whole(self, message: bytes) -> None:
        count, _ = struct.unpack_from(">IB", message, 1)
        oids = struct.unpack_from(f">{count}I", message, 6)
        if self.facts.oid in oids and not self._passed:
            raise SourceError(
                "the table was emptied by TRUNCATE, which does not tell which rows are gone.\n"
                "  to fix  delete rows by DELETE; start a new state, which reads the table anew"
            )

    def _rows(self, kind: bytes, message: MessageFields) -> Iterator[TableChange]:
        if kind == b"R":
            self._names = message.relation()
            if gone := sorted(self.facts.columns - {*self._names}):
                raise SourceError(
                    f"the table had no column '{gone[0]}' when this change was made.\n"
                    "  to fix  leave it out of the query; or start a new state, which reads the "
                    "table anew"
                )
        elif kind in b"IUD" and not self._passed:
            for operation, cells in self._changes(kind, message):
                at = self.place
                self.place = replace(at, skip=at.skip + 1, rows=at.rows + (at.skip >= self._skip))
                if at.skip >= self._skip:
                    yield TableChange(self.place, operation, cells, self._time)

    def _changes(self, kind: bytes, message: MessageFields) -> Iterator[tuple[str, Any]]:
        """What becomes of an insertion, an update or a deletion."""
        old: dict[str, str | None] | None = None
        mark = message.take(1)
        if mark in b"KO":
            old = dict(zip(self._names, message.row(), strict=True))
            mark = message.take(1)
        if mark != b"N":
            yield "delete", old
            return
        cells = dict(zip(self._names, message.row(), strict=True))
        kept = {
            name: (old or {}).get(name, UNSENT) for name, cell in cells.items() if cell is UNSENT
        }
        new = cells | kept
        moved = old is not None and not (
            self.facts.key and all(old[name] in (new[name], None) for name in self.facts.key)
        )
        if moved:
            yield "delete", old
        yield ("insert" if moved or kind == b"I" else "update"), new


UNSENT = (
    "\0"  # a value that an update left as it was, and that is not in the log; no text of theirs
)


class MessageFields:
    """Fields of a message, one after the other."""

    def __init__(self, message: bytes, at: int) -> None:
        self.message, self.at = message, at

    def take(self, count: int) -> bytes:
        """So many bytes; fewer at the end."""
        self.at += count
        return self.message[self.at - count : self.at]

    def number(self, form: str) -> int:
        """A number."""
        found: int = struct.unpack_from(f">{form}", self.message, self.at)[0]
        self.at += struct.calcsize(form)
        return found

    def text(self) -> str:
        """A text that a null ends."""
        end = self.message.index(0, self.at)
        found = self.message[self.at : end].decode()
        self.at = end + 1
        return found

    def relation(self) -> list[str]:
        """The names of the columns of a table."""
        self.text()
        self.text()
        self.take(1)
        names = []
        for _ in range(self.number("H")):
            self.take(1)
            names.append(self.text())
            self.take(8)
        return names

    def row(self) -> Cells:
        """The cells of a row as text."""
        cells: Cells = []
        for _ in range(self.number("H")):
            kind = self.take(1)
            if kind == b"t":
                cells.append(self.take(self.number("I")).decode(errors="replace"))
            else:
                cells.append(None if kind == b"n" else UNSENT)
        return cells


@dataclass
class ChangeLog:
    """Messages of a slot up to an end, or a bit further. `durable`: what the server may forget."""

    connection: Any
    end: int
    durable: int

    def __iter__(self) -> Iterator[bytes]:
        self._tell()
        reached, late = 0, time.monotonic() + WAIT
        while reached < self.end:
            size, data = self.connection.get_copy_data(1)
            if size > 0 and data[:1] == b"w":
                late = time.monotonic() + WAIT
                yield bytes(data[25:])
            elif size > 0:
                (reached,) = struct.unpack_from(">Q", data, 1)
                if data[17]:
                    self._tell()
            elif size == 0 and time.monotonic() < late:
                if wait_for.select([self.connection.socket], [], [], 0.1)[0]:
                    self.connection.consume_input()
                else:
                    self._tell()
            else:
                raise SourceError(
                    "the server ended the stream of changes, or does not answer any more.\n"
                    "  to fix  start again when it does: the job goes on where it was"
                )
        self.end = reached  # where a record ends: a crash leaves all before it as it is
        self._end()

    def _tell(self) -> None:
        """Says what is durable, and asks how far the server is."""
        now = time.time_ns() // 1000 - EPOCH_2000
        lsn = self.durable
        self.connection.put_copy_data(struct.pack(">cQQQqB", b"r", lsn, lsn, lsn, now, 1))
        self.connection.flush()

    def _end(self) -> None:
        """Leaves the slot to the next reading."""
        self.connection.put_copy_end()
        self.connection.flush()


def identifiers(connection: Any) -> tuple[str, int]:
    """Which server it is, and which timeline of its log it writes."""
    found = connection.exec_(b"IDENTIFY_SYSTEM")
    return found.get_value(0, 0).decode(), int(found.get_value(0, 1))


def left_at(connection: Any, known: int, now: int) -> float:
    """The place behind which a timeline `now` has nothing of the timeline `known`.

    A timeline's history names those before it, and where it left each of them.
    """
    if known in (0, now):
        return math.inf
    told = connection.exec_(f"TIMELINE_HISTORY {now}".encode())
    history = (told.get_value(0, 1) or b"" if told.ntuples else b"").decode(errors="replace")
    left = re.search(rf"^{known}\s+([0-9A-F]+)/([0-9A-F]+)", history, re.MULTILINE)
    return -math.inf if left is None else (int(left[1], 16) << 32) + int(left[2], 16)


def started(connection: Any, slot: str, lsn: int, publication: str) -> None:
    """Begins to read a slot, when the reading before has left it."""
    name = exp.to_identifier(publication, quoted=True).sql("postgres").replace("'", "''")
    command = (
        f"START_REPLICATION SLOT {slot} LOGICAL {lsn >> 32:X}/{lsn & 0xFFFFFFFF:X} "
        f"(proto_version '1', publication_names '{name}')"
    )
    until = time.monotonic() + WAIT
    while (found := connection.exec_(command.encode())).status != 8:  # PGRES_COPY_BOTH
        busy = (found.error_field(ord("C")) or b"") == b"55006"
        if not busy or time.monotonic() > until:
            why = (found.error_field(ord("M")) or b"").decode(errors="replace")
            raise SourceError(
                f"the slot '{slot}' cannot be read: {why}.\n"
                "  to fix  give each job a slot of its own, made with pgoutput in this database"
            )
        time.sleep(0.1)
