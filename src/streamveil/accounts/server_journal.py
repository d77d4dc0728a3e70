"""A journal in a table of PostgreSQL: one ledger for jobs on several hosts.

Records, hashes and their chain are those of `journal.Journal`; a row holds one record.

Guarantee: that of the file. A charge is judged by all charges that were acknowledged before it, and
    then refused, or durable before `append` returns; none is changed, dropped or reordered unseen.
Proof: *One after the other.* `append` adds records from number n on, where n is how many records
    this process has read. (ledger, number) is the primary key, so of two transactions that add
    number n one fails; and only a process that has read all records before n adds number n, since
    numbers have no gaps: the first is 0, and each `append` begins where its reader ended. So a
    charge is judged by exactly the records before it. This needs neither a lock nor an isolation
    level; the advisory lock only makes writers wait for each other instead of failing.
    *Fresh.* Each statement sees what was committed before it began (READ COMMITTED), and one
    statement takes the lock before another reads: a process that waited sees the other's records.
    *Durable.* `append` returns after COMMIT with `synchronous_commit` at least `local`, so after
    the server's own log is flushed; a server with `fsync = off` is refused. A standby that lacks
    commits may take over: then a record that this process has read is gone, which it notices, and
    a job notices that its charge is gone (`Ledger.require_charged`); where the server waits for it
    (`synchronous_standby_names`) this does not happen.
    *A crash.* Before COMMIT nothing is there. Where the answer to COMMIT is lost, `append` raises
    and nothing is drawn; a job that starts again finds its key, or charges it then.
    *Append-only.* A trigger refuses UPDATE, DELETE and TRUNCATE, to the owner too; the owner can
    drop it, and jobs need only INSERT and SELECT. The chain shows changes made in spite of it,
    except for records cut off the end: keep a `head` elsewhere, as with a file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from streamveil.accounts import ENCODER, START, Record, Shared, altered, chain, checked
from streamveil.connectors.postgres_server import PostgresServer
from streamveil.errors import PlanError, SourceError, StoreError, require_file_name

TABLE = "streamveil_ledgers"
MAKE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (ledger text, number bigint CHECK (number >= 0),"
    " hash text NOT NULL, record text NOT NULL, PRIMARY KEY (ledger, number))",
    f"CREATE OR REPLACE FUNCTION {TABLE}_append_only() RETURNS trigger LANGUAGE plpgsql AS"
    f" $$BEGIN RAISE EXCEPTION '{TABLE} takes new records alone'; END$$",
    *(
        f"CREATE OR REPLACE TRIGGER {name} BEFORE {event} ON {TABLE}"
        f" FOR EACH {level} EXECUTE FUNCTION {TABLE}_append_only()"
        for name, event, level in (
            ("no_change", "UPDATE OR DELETE", "ROW"), ("no_truncate", "TRUNCATE", "STATEMENT")
        )
    ),
)  # fmt: skip


class ServerJournal(Shared):
    """The records of one ledger of a database, URL#NAME."""

    def __init__(self, where: str) -> None:
        url, _, name = where.partition("#")
        if not name:
            raise PlanError(
                "the address of a ledger on a server ends in its name.\n"
                "  to fix  postgresql://user@host:5432/database#clicks"
            )
        super().__init__()
        self.name = require_file_name("ledger", name)
        self.head = START  # the hash of the last record read or appended
        self._server = PostgresServer(url, f"ledger '{name}'")
        self._read = 0  # records so far
        self._connection: Any = None
        self._parents: Any = None  # connection, if this process was forked: never used nor closed

    @contextmanager
    def _held(self) -> Iterator[None]:
        """See `Shared`: the ledger's lock, for one transaction."""
        with self._asking():
            self._ask("SELECT pg_advisory_xact_lock($1)", lock_of(self.name))
            yield
            self._connection.rollback()

    def unread(self) -> list[Record]:
        """See `Journal.unread`."""
        return [record for record, _ in self._unread()]

    def _unread(self) -> list[tuple[Record, str]]:
        with self.locked():
            if not self._ask("SELECT to_regclass($1)::text", TABLE)[0][0]:
                rows = []
            else:
                rows = self._ask(
                    f"SELECT number, hash, record FROM {TABLE}"  # noqa: S608  (a constant)
                    " WHERE ledger = $1 AND number >= $2 ORDER BY number",
                    self.name, self._read - 1,
                )  # fmt: skip
            if self._read:
                if not rows or rows[0][:2] != (self._read - 1, self.head):
                    raise StoreError(
                        f"the ledger '{self.name}' has lost records that were in it.\n"
                        "  to fix  restore the database from a copy that has them; nothing more"
                        " may be charged before"
                    )
                del rows[0]
            found = []
            for number, claimed, text in rows:
                if number != self._read:
                    raise altered(f"the ledger '{self.name}'")
                record: Record = {}
                with suppress(ValueError):
                    record = json.loads(text)
                self.head = checked(f"the ledger '{self.name}'", self.head, record, claimed)
                found.append((record, self.head))
                self._read += 1
        return found

    def append(self, records: Sequence[Record]) -> None:
        """See `Journal.append`: all are committed, or none is."""
        head, rows = self.head, []
        for number, record in enumerate(records, self._read):
            text = ENCODER.encode(record)
            head = chain(head, text)
            rows.append((self.name, number, head, text))
        with self._asking():
            for row in rows:
                self._ask(f"INSERT INTO {TABLE} VALUES ($1, $2, $3, $4)", *row)  # noqa: S608
            self._connection.commit()
        self.head, self._read = head, self._read + len(rows)

    def make(self) -> None:
        """Makes the table, and the trigger that keeps it append-only, if they do not exist."""
        with self._asking():
            self._ask("SELECT pg_advisory_xact_lock($1)", lock_of(TABLE))
            if not self._ask("SELECT to_regclass($1)::text", TABLE)[0][0]:
                for statement in MAKE:
                    self._ask(statement)
            self._connection.commit()

    def exists(self) -> bool:
        """Whether the ledger has a record."""
        return bool(ServerJournal(f"{self._server.url}#{self.name}").reread())

    def reread(self) -> list[str]:
        """The hashes of all records, read again from the first; this journal's are among them."""
        with closing(ServerJournal(f"{self._server.url}#{self.name}")) as fresh:
            return [claimed for _, claimed in fresh._unread()]

    def close(self) -> None:
        """Ends the connection; the journal may be used again."""
        if self._connection is not None:
            with suppress(self._server.error):
                self._connection.close()
            self._connection = None

    def part(self) -> None:
        """See `Shared`: the forked process opens a connection of its own."""
        super().part()
        self._parents = self._connection or self._parents
        self._connection = None

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self.close()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Turns errors of the driver into words. Afterwards there is a new connection."""
        try:
            self._connect()
            yield
        except self._server.error as error:
            detail, kind = self._server.detail(error), type(error).__name__
            self.close()
            raise SourceError(
                f"the database of the ledger '{self.name}' cannot be used: {kind}{detail}.\n"
                "  A charge that was being made may be recorded or not; nothing was drawn.\n"
                "  to fix  check that the server is there and lets this user select from and insert"
                f" into {TABLE}, then start again: a job is not charged twice, but a survey (tune"
                " --private) is; `ledger show` says what is recorded"
            ) from None
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        """A connection whose commits are durable when they return."""
        if self._connection is not None and not self._connection.closed:
            return
        self._connection = self._server.connect()
        self._ask("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
        if self._ask("SHOW fsync")[0][0] == "off":
            raise StoreError(
                f"the server of the ledger '{self.name}' runs with fsync = off: it may forget a"
                " charge.\n  to fix  fsync = on"
            )
        if self._ask("SHOW synchronous_commit")[0][0] == "off":
            self._ask("SET SESSION synchronous_commit TO on")
        self._connection.commit()

    def _ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        cursor.execute(statement, values or None)
        return list(cursor.fetchall()) if cursor.description else []


def lock_of(name: str) -> int:
    """The advisory lock of a ledger: 64 bits from its name. Ledgers with equal bits share it."""
    digest = hashlib.blake2b(f"streamveil ledger {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
