"""Where a PostgreSQL is, and a connection to it. No message holds a password or a row."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv

from streamveil.errors import SourceError, requires_extra

WAIT = 30  # seconds for a server
SILENT = 300  # seconds amid the rows of a query before a server is taken for gone
ALIVE = {  # else a server that vanished is noticed after two hours
    "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}  # fmt: skip
AT_ONCE = 50_000  # rows
MOST = 1 << 26  # bytes
AS_TEXT = pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)


class PostgresServer:
    """`url` is a connection string without a password.

    That comes from PGPASSWORD, a password file (~/.pgpass) or a service file where the job runs.
    """

    def __init__(self, url: str, what: str) -> None:
        with requires_extra(f"the {what}", "postgres"):
            import psycopg
        try:
            settings = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            settings = None
        if settings is None or {"password", "sslpassword"} & settings.keys():
            fault = "is not a connection string" if settings is None else "holds a password"
            raise SourceError(
                f"the url of the {what} {fault}; it is not shown here.\n"
                "  to fix  url = 'postgresql://user@host:5432/database', and the password in "
                "PGPASSWORD or in the file ~/.pgpass"
            )
        self.error: type[Exception] = psycopg.Error
        self.url, self._psycopg = url, psycopg

    @property
    def settings(self) -> dict[str, Any]:
        """What the connection string says."""
        found: dict[str, Any] = self._psycopg.conninfo.conninfo_to_dict(self.url)
        return found

    def connect(self, **more: Any) -> Any:
        """A connection that commits nothing by itself, unless told so."""
        limit: dict[str, Any] = (
            {} if "PGCONNECT_TIMEOUT" in os.environ else {"connect_timeout": WAIT}
        )
        settings = ALIVE | limit | self.settings | more
        return self._psycopg.connect(
            **settings, cursor_factory=self._psycopg.RawCursor, client_encoding="utf8"
        )

    def connect_to_read(self) -> Any:
        """As `connect`, to a database of whose texts none can fail to be read."""
        connection = self.connect()
        kind = connection.info.parameter_status("server_encoding")
        if kind != "UTF8":
            connection.close()
            raise SourceError(
                f"the database has the encoding {kind}, in which one row's text can fail to be read"
                " and stop a job.\n  to fix  copy it into a database with the encoding UTF8"
            )
        return connection

    def detail(self, error: Exception) -> str:
        """Why no connection was made, or which name is wrong; other errors may hold data."""
        state = getattr(error, "sqlstate", None)
        made = isinstance(error, self._psycopg.OperationalError)
        connecting = made and getattr(error, "pgconn", None) is not None and state is None
        of_names = str(state).startswith("42")
        return f" ({str(error).strip().splitlines()[0]})" if connecting or of_names else ""


def copied(connection: Any, query: str, names: list[str]) -> Iterator[pa.Table]:
    """What a query gives, as text, some rows at a time.

    The driver would call Python for every row; here it is asked for what has come, and Arrow reads
    some rows at once. Every text has quotes, so what has none is null.
    """
    libpq = connection.pgconn
    connection.execute("SELECT 1")  # begins a transaction, if none has begun
    libpq.send_query(f"COPY ({query}) TO STDOUT (FORMAT csv, FORCE_QUOTE *)".encode())
    while libpq.is_busy():
        wait_for(libpq)
    require_done(libpq.get_result())
    rows: list[bytes] = []
    size, begun = 0, False  # a server may sort for long before its first row
    while (found := libpq.get_copy_data(1))[0] >= 0:
        length, row = found
        if length == 0:
            wait_for(libpq, SILENT if begun else None)
            continue
        begun = True
        rows.append(bytes(row))
        size += length
        if len(rows) == AT_ONCE or size > MOST:
            yield as_table(rows, names)
            rows, size = [], 0
    while libpq.is_busy():
        wait_for(libpq)
    while (result := libpq.get_result()) is not None:
        require_done(result)
    if rows:
        yield as_table(rows, names)


def wait_for(libpq: Any, most: float | None = None) -> None:
    """Takes what comes next from a server, if it comes within so many seconds."""
    if not select.select([libpq.socket], [], [], most)[0]:
        import psycopg

        raise psycopg.OperationalError
    libpq.consume_input()


def require_done(result: Any) -> None:
    """Raises what the server said, if it failed."""
    import psycopg

    if result is None or result.status not in (
        psycopg.pq.ExecStatus.COPY_OUT,
        psycopg.pq.ExecStatus.COMMAND_OK,
    ):
        raise psycopg.errors.error_from_result(result) if result else psycopg.OperationalError


def as_table(rows: list[bytes], names: list[str]) -> pa.Table:
    """Rows of CSV as columns of text."""
    block = b"".join(rows)
    return pyarrow.csv.read_csv(
        pa.BufferReader(block),
        pyarrow.csv.ReadOptions(
            use_threads=False, block_size=len(block) + 1, column_names=names
        ),
        AS_TEXT,
        pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), null_values=[""],
            strings_can_be_null=True, quoted_strings_can_be_null=False,
        ),
    )  # fmt: skip
