"""SQLite, DuckDB and PostgreSQL as sinks: a release and its mark in one transaction.

Exactly once, as `MarkedSink` proves: one transaction writes the rows of a release and its mark in
`streamveil_releases`. Where an answer to COMMIT is lost, the sink raises, and the next life of the
job asks for the mark. Writers are one after the other (the lock of the file; an advisory lock of
PostgreSQL), so no two of them see the same mark missing.

Next to the mark are the other facts of a release: its metadata, and sentences on rows that no
number and no interval holds.

A connection lasts for one release: a server may restart between two, and a file is free for readers
in other processes. Messages hold no data: they give only the kind of a driver's error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from streamveil.batch import Release
from streamveil.connectors import absolute, in_words, signed
from streamveil.connectors.marks import ContentMark, MarkedSink
from streamveil.connectors.postgres_server import WAIT, PostgresServer
from streamveil.display import rows_of
from streamveil.errors import SourceError, require_one_of, requires_extra
from streamveil.release_metadata import sentences, to_json

MARKS = "streamveil_releases"
PLACE = {  # of every row: which release it is of
    "streamveil_job": pa.string(), "streamveil_window": pa.int64(), "streamveil_trigger": pa.int64()
}  # fmt: skip
LOCK = 0x5EA3_0E11  # of PostgreSQL, for all writers of releases into a database
MODES = ("append", "upsert")
Words = tuple[str, str, str, str, str, str, str, str]  # SQL types, in the order of `kind_of`


class Database:
    """The common parts of sources and sinks."""

    dialect: ClassVar[str]
    error: type[Exception]  # what the driver raises

    def connect(self) -> Any:
        """A connection: a sink's commits nothing by itself, a source's only reads."""
        raise NotImplementedError

    def detail(self, _error: Exception) -> str:
        """Details of an error that hold no data."""
        return ""

    def quoted(self, name: str) -> str:
        """A name as SQL of this database."""
        return exp.to_identifier(name, quoted=True).sql(dialect=self.dialect)

    @contextmanager
    def connection(self, cannot: str, check: str) -> Iterator[Any]:
        """A connection for a block, rolled back at its end unless committed; errors in words."""
        with in_words(self.error, cannot, check, self._why), closing(self.connect()) as connection:
            yield connection

    def _why(self, error: Exception) -> str:
        reason = getattr(error, "sqlite_errorname", None) or type(error).__name__
        return f"{reason}{self.detail(error)}"


class DatabaseSink(Database, MarkedSink):
    """Writes releases into the table `table`, made at the first one, and marks into another.

    `mode`: 'append' keeps every release; 'upsert' keeps the newest of each window, so one row for
    each group. Columns `streamveil_job`, `streamveil_window` and `streamveil_trigger` come first.
    """

    types: ClassVar[Words]
    folder: Path | None = None  # of a file
    begin: ClassVar[str] = "BEGIN TRANSACTION"
    known: ClassVar[str] = (
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND table_name = $1 ORDER BY ordinal_position"
    )

    def __init__(self, where: str, table: str, mode: str) -> None:
        require_one_of("mode", mode, MODES)
        self.where, self.table, self.mode = where, table, mode
        self.what = f"the table '{table}'"

    def insert(self, connection: Any, table: pa.Table) -> None:
        """Adds rows to the table."""
        raise NotImplementedError

    def writing(self) -> AbstractContextManager[Any]:
        """A connection for a release."""
        return self.connection(
            f"the sink cannot write to {self.what} of {self.where}",
            "check that the database is there, has room and lets this user make and write tables,"
            " then start again: what is committed is sent then",
        )

    def try_out(self) -> None:
        """See `try_connectors`; another sink may make a missing folder.

        Tables are made and rolled back, so that missing rights, and a table of something else, are
        found before the charge.
        """
        if self.folder is not None and not self.folder.is_dir():
            return
        with self.writing() as connection:
            self._ask(connection, self.begin)
            self._prepare(connection)
            first, known = next(iter(PLACE)), self._ask(connection, self.known, self.table)
            if not known:
                columns = f"{first} {self.types[3]}"
                self._ask(connection, f"CREATE TABLE {self.quoted(self.table)} ({columns})")
            elif known[0][0] != first:
                raise self._other_columns(first)
            for table, column in ((MARKS, "target"), (self.table, first)):  # no row: only the right
                text = f"INSERT INTO {self.quoted(table)} ({column}) SELECT '' WHERE 1 = 0"
                self._ask(connection, text)
            self._ask(connection, "ROLLBACK")

    @contextmanager
    def opened(self, job: str, release: Release) -> Iterator[Any]:
        """A connection with an open transaction."""
        with self.writing() as connection:
            self._ask(connection, self.begin)
            self._prepare(connection)
            yield connection

    def kept(self, place: Any, job: str, release: Release) -> ContentMark | None:
        """See `MarkedSink`."""
        found = self._ask(
            place,
            f"SELECT digest, norm FROM {MARKS} WHERE target = $1 AND job = $2"  # noqa: S608
            " AND window_number = $3 AND trigger_number = $4",
            *self._name(job, release),
        )
        return ContentMark(*found[0]) if found else None

    def put(self, place: Any, job: str, release: Release, mark: ContentMark) -> None:
        """See `MarkedSink`."""
        name, rows = self._name(job, release), self._rows(job, release)
        beside = (to_json(release.table.schema) or b"{}").decode()
        self._require_columns(place, rows.schema)
        if self.mode == "append" or self._replaces(place, *name):
            self.insert(place, rows)
        self._ask(
            place,
            f"INSERT INTO {MARKS} VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",  # noqa: S608
            *name, mark.digest, mark.norm, beside, "\n".join(sentences(release.table)),
        )  # fmt: skip
        self._ask(place, "COMMIT")

    def _name(self, job: str, release: Release) -> tuple[str, str, int, int]:
        return self.table, job, release.window, release.trigger

    def _replaces(self, connection: Any, *name: Any) -> bool:
        """Deletes the rows of a window, unless they are newer; returns whether it did."""
        *window, trigger = name
        [[newest]] = self._ask(
            connection,
            f"SELECT max(trigger_number) FROM {MARKS} WHERE target = $1 AND job = $2"  # noqa: S608
            " AND window_number = $3",
            *window,
        )
        if newest is not None and newest > trigger:
            return False
        self._ask(
            connection,
            f"DELETE FROM {self.quoted(self.table)}"  # noqa: S608
            " WHERE streamveil_job = $1 AND streamveil_window = $2",
            *window[1:],
        )
        return True

    def _ask(self, connection: Any, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The result of a statement with numbered parameters."""
        cursor = connection.cursor()
        cursor.execute(statement, values or None)
        return list(cursor.fetchall()) if cursor.description else []

    def _prepare(self, connection: Any) -> None:
        """Makes the table of marks, if it is not there: a user may have no right to make one."""
        if self._ask(connection, self.known, MARKS):
            return
        text, whole, real = self.types[3], self.types[0], self.types[1]
        self._ask(
            connection,
            f"CREATE TABLE IF NOT EXISTS {MARKS} (target {text}, job {text},"
            f" window_number {whole}, trigger_number {whole}, digest {text} NOT NULL,"
            f" norm {real} NOT NULL, metadata {text} NOT NULL, notes {text} NOT NULL,"
            " PRIMARY KEY (target, job, window_number, trigger_number))",
        )

    def _rows(self, job: str, release: Release) -> pa.Table:
        """The rows of a release with its identity in each, in types that databases have."""
        table = signed(plain(release.table))
        names = [name.casefold() for name in (*PLACE, *table.column_names)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SourceError(
                f"the table '{self.table}' would have two columns '{twice[0]}'; databases read "
                "names without case.\n  to fix  give one of them another name, with AS"
            )
        for place, ((name, kind), value) in enumerate(
            zip(PLACE.items(), self._name(job, release)[1:], strict=True)
        ):
            column = pa.repeat(pa.scalar(value, kind), table.num_rows)
            table = table.add_column(place, name, column)
        return table

    def _require_columns(self, connection: Any, schema: pa.Schema) -> None:
        """Makes the table, or refuses one that has other columns."""
        wanted = [(one.name, self.types[kind_of(one)]) for one in schema]
        known = self._ask(connection, self.known, self.table)
        if not known:
            parts = ", ".join(f"{self.quoted(name)} {kind}" for name, kind in wanted)
            self._ask(connection, f"CREATE TABLE {self.quoted(self.table)} ({parts})")
            known = self._ask(connection, self.known, self.table)
        if known != wanted:
            odd = next(
                (name for name, _ in wanted if (name, dict(wanted)[name]) not in known),
                next((name for name, _ in known if name not in dict(wanted)), wanted[0][0]),
            )
            raise self._other_columns(odd)

    def _other_columns(self, odd: str) -> SourceError:
        return SourceError(
            f"the table '{self.table}' of {self.where} has other columns than the releases of "
            f"this query: see '{odd}'.\n"
            "  to fix  name another table, or rename that one: a new one is made"
        )


def plain(table: pa.Table) -> pa.Table:
    """A table with few types: integers and reals of 64 bits, microseconds, no dictionaries."""
    for place, one in enumerate(table.schema):
        if (kind := plain_kind(one.type)) != one.type:
            column = pc.cast(table.column(place), kind, safe=False)
            table = table.set_column(place, one.name, column)
    return table


def plain_kind(kind: pa.DataType) -> pa.DataType:
    """The one of a few types that stands for a type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind


KINDS: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_int64, pa.types.is_float64, pa.types.is_boolean,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind),
    pa.types.is_date32, lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,
    lambda kind: pa.types.is_timestamp(kind) and kind.tz is None,
)  # fmt: skip


def kind_of(column: pa.Field) -> int:
    """The place of a column's type among those of a database; decimals are texts."""
    for place, fits in enumerate(KINDS):
        if fits(column.type):
            return place
    if pa.types.is_decimal(column.type):
        return 3
    raise SourceError(
        f"column '{column.name}' is of type {column.type}, which this sink cannot write.\n"
        "  to fix  CAST it to a number, text, time or bytes in the query"
    )


class SqliteSink(DatabaseSink):
    """A table in a file of SQLite. Times are texts (ISO 8601), as SQLite has none; NaN is null."""

    dialect = "sqlite"
    error = sqlite3.Error
    types = ("INTEGER", "REAL", "BOOLEAN", "TEXT", "BLOB", "TEXT", "TEXT", "TEXT")
    begin = "BEGIN IMMEDIATE"
    known = "SELECT name, type FROM pragma_table_info($1)"

    def __init__(self, path: str, table: str, mode: str = "append") -> None:
        super().__init__(f"'{require_file(path)}'", table, mode)
        self.path, self.folder = absolute(path), Path(path).absolute().parent

    def connect(self) -> Any:
        """See `DatabaseSink`."""
        return sqlite3.connect(self.path, timeout=WAIT, isolation_level=None)

    def _ask(self, connection: Any, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        named = {str(number): value for number, value in enumerate(values, 1)}
        return list(connection.execute(statement, named).fetchall())

    def insert(self, connection: Any, table: pa.Table) -> None:
        """See `DatabaseSink`."""
        marks = ", ".join("?" * table.num_columns)
        connection.executemany(
            f"INSERT INTO {self.quoted(self.table)} VALUES ({marks})",  # noqa: S608
            (tuple(map(simple, row.values())) for row in rows_of(table)),
        )


class DuckdbSink(DatabaseSink):
    """A table in a file of DuckDB."""

    dialect = "duckdb"
    types = (
        "BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR", "BLOB", "DATE", "TIMESTAMP WITH TIME ZONE",
        "TIMESTAMP",
    )  # fmt: skip

    def __init__(self, path: str, table: str, mode: str = "append") -> None:
        with requires_extra("the sink 'duckdb'", "duckdb"):
            import duckdb
        super().__init__(f"'{require_file(path)}'", table, mode)
        self.path, self.folder = absolute(path), Path(path).absolute().parent
        self._duckdb, self.error = duckdb, duckdb.Error

    def connect(self) -> Any:
        """See `DatabaseSink`."""
        return self._duckdb.connect(self.path)

    def insert(self, connection: Any, table: pa.Table) -> None:
        """See `DatabaseSink`."""
        connection.register("streamveil_rows", table)
        self._ask(connection, f"INSERT INTO {self.quoted(self.table)} FROM streamveil_rows")
        connection.unregister("streamveil_rows")

    def _ask(self, connection: Any, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(connection.execute(statement, values or None).fetchall())


class PostgresSink(DatabaseSink):
    r"""A table of PostgreSQL, in the first schema of the search path.

    Times outside PostgreSQL's range are infinite; a null character in a text, which it refuses, is
    written as \x00. `url`: see `PostgresServer`.
    """

    dialect = "postgres"
    types = (
        "bigint", "double precision", "boolean", "text", "bytea", "date",
        "timestamp with time zone", "timestamp without time zone",
    )  # fmt: skip
    begin = f"SELECT pg_advisory_xact_lock({LOCK})"  # psycopg begins with the first statement

    def __init__(self, url: str, table: str, mode: str = "append") -> None:
        self.server = PostgresServer(url, "sink 'postgres'")
        self.error = self.server.error
        super().__init__("the database of PostgreSQL", table, mode)

    def connect(self) -> Any:
        """See `DatabaseSink`."""
        return self.server.connect()

    def insert(self, connection: Any, table: pa.Table) -> None:
        """See `DatabaseSink`."""
        columns = [column_for_postgres(column) for column in table.columns]
        with connection.cursor().copy(f"COPY {self.quoted(self.table)} FROM STDIN") as copy:
            for row in zip(*columns, strict=True):
                copy.write_row(row)

    def detail(self, error: Exception) -> str:
        """See `Database`."""
        return self.server.detail(error)


def column_for_postgres(column: pa.ChunkedArray) -> list[Any]:
    """Values of a column that PostgreSQL takes."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.replace_substring(column, "\0", "\\x00")
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        wide = pa.int32() if column.type.bit_width == 32 else pa.int64()
        signs = column.cast(wide).to_pylist()
        found = [next(iter(row.values())) for row in rows_of(pa.table({"": column}))]
        return [
            cell if not isinstance(cell, str) else "infinity" if sign > 0 else "-infinity"
            for cell, sign in zip(found, signs, strict=True)
        ]


def simple(cell: Any) -> Any:
    """A value that SQLite keeps as it is; times and decimals as text."""
    if cell is None or isinstance(cell, int | float | str | bytes):
        return cell
    return cell.isoformat() if hasattr(cell, "isoformat") else str(cell)


def require_file(path: str) -> str:
    """The path of a database, unless it is one in memory, which would be gone at once."""
    if not path or path.startswith(":memory:"):
        raise SourceError(
            "a database in memory is gone when a release is written.\n"
            "  to fix  path = 'answers.db', a file"
        )
    return path
