"""The log of PostgreSQL as a replication slot sends it, and the changes of one table in it."""

from __future__ import annotations

import json
import math
import re
import select as wait_for
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from streamveil.connectors.postgres_server import WAIT
from streamveil.errors import SourceError

HALF = 1 << 31  # transactions that PostgreSQL tells apart on each side
EPOCH_2000 = 946_684_800_000_000  # microseconds
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
    table: int = 0  # its number in the catalog; 0 as well

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


def quoted(table: str) -> str:
    """A table's name in SQL.

    >>> quoted("shop.Orders")
    '"shop"."Orders"'
    """
    parts = [exp.to_identifier(one, quoted=True) for one in table.split(".")]
    return ".".join(part.sql("postgres") for part in parts)


@dataclass(frozen=True)
class TableFacts:
    """What the catalog says of a table."""

    oid: int
    key: tuple[str, ...]  # columns of the primary key
    columns: frozenset[str]  # those that are read

    @classmethod
    def of(cls, connection: Any, table: str, publication: str, names: frozenset[str]) -> TableFacts:
        """Raises SourceError where the publication would leave changes of some columns out."""
        ask = connection.execute
        oid, schema, name, divided = ask(
            "SELECT c.oid, n.nspname, c.relname, c.relkind <> 'p'"
            " AND EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid) FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::regclass",
            [quoted(table)],
        ).fetchone()
        if divided:
            raise SourceError(
                f"other tables inherit from '{table}', and the log does not tell changes of their"
                " rows as its own.\n"
                "  to fix  follow each of them by itself; or PARTITION BY, and a publication WITH"
                " (publish_via_partition_root = true)"
            )
        whole = ask(
            "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication"
            " WHERE pubname = $1", [publication],
        ).fetchall()  # fmt: skip
        listed = ask(
            "SELECT to_jsonb(t) FROM pg_publication_tables t"
            " WHERE pubname = $1 AND schemaname = $2 AND tablename = $3",
            [publication, schema, name],
        ).fetchall()
        told = listed[0][0] if listed else {"rowfilter": "all"}
        if whole != [(True,)] or told.get("rowfilter") or names - {*told.get("attnames", names)}:
            raise SourceError(
                f"the publication '{publication}' does not publish all changes of "
                f"'{table}'.\n  to fix  CREATE PUBLICATION {publication} FOR TABLE "
                f"{table}, without a list of columns, a condition or `publish`"
            )
        if made := names & {name for (name,) in ask(GENERATED, [oid]).fetchall()}:
            raise SourceError(
                f"the server makes the values of column '{min(made)}', and the log lacks them.\n"
                "  to fix  read the columns that they follow from, and compute them in the query"
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


GENERATED = """
    SELECT attname FROM pg_attribute WHERE attrelid = $1 AND attgenerated <> '' AND NOT attisdropped
    AND current_setting('server_version_num')::int < 180000"""  # later ones say what they publish
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


UNSENT = "\0"  # a value that an update left as it was, which is not in the log; no text of theirs


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
