"""Where a PostgreSQL is, and a connection to it. No message holds a password or a row."""

from __future__ import annotations

import os
from typing import Any

from streamveil.errors import MissingExtraError, SourceError

WAIT = 30  # seconds for a server


class PostgresServer:
    """`url` is a connection string without a password.

    That comes from PGPASSWORD, a password file (~/.pgpass) or a service file where the job runs.
    """

    def __init__(self, url: str, what: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise MissingExtraError(f"the {what}", "postgres") from None
        try:
            settings = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.Error:
            settings = None
        if settings is None or {"password", "sslpassword"} & settings.keys():
            fault = "is no connection string" if settings is None else "holds a password"
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
        settings = limit | self.settings | more
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
        """Why no connection was made; an error of a statement may hold data."""
        made = isinstance(error, self._psycopg.OperationalError)
        connecting = made and getattr(error, "pgconn", None) is not None and error.sqlstate is None  # type: ignore[attr-defined]
        return f" ({str(error).strip().splitlines()[0]})" if connecting else ""
