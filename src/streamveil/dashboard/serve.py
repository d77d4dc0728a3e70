"""The page, served while a job goes on: released numbers and the ledger, and nothing else.

The server offers only three files and the numbers; no path of a request is ever opened. By default
only this machine is let in: the server listens on the loopback address, and refuses requests whose
`Host` is another name, so that no page of another site reads it through a browser.

Privacy: the answer to a request is a function of releases, of the ledger and of the files of this
package, all of them public; the public clock of the job decides when a release appears.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from streamveil.api import Query
from streamveil.api.answers import answers
from streamveil.api.script import JointQuery
from streamveil.dashboard import page, view
from streamveil.errors import PlanError, StreamveilError
from streamveil.results.answers import Answers

SECONDS = 5  # between two questions of an open page
LOCAL = ("127.0.0.1", "::1", "localhost")
NOTHING_NOW = "there is nothing to show now: this page asks again"
Read = Callable[[], tuple[Answers, view.Records]]


class DashboardServer(ThreadingHTTPServer):
    """Serves the page of one job. `read` gives the releases and the ledgers as they are now."""

    daemon_threads = True

    def __init__(self, host: str, port: int, read: Read) -> None:
        self.read, self.host, self.lock = read, host, threading.Lock()
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise PlanError(
                f"the dashboard cannot listen on {host}:{port}: {error.strerror}.\n"
                "  to fix  another --port, or 0 for any that is free"
            ) from None

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{self.host}:{self.server_address[1]}/"

    def now(self) -> tuple[Answers, view.Records]:
        """The releases and ledgers to show. One reader at a time."""
        with self.lock:
            return self.read()

    def handle_error(self, *whom: Any) -> None:
        """Says nothing of a reader that went away, or never said what it wants."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(*whom)

    def known(self, host: str) -> bool:
        """Whether the `Host` of a request is a name that the operator allows."""
        name = host.rsplit(":", 1)[0].strip("[]")
        return name in LOCAL or self.host not in LOCAL  # else the operator let others in


class Handler(BaseHTTPRequestHandler):
    """Answers GET for the page, its scripts and its numbers."""

    server: DashboardServer
    server_version, sys_version = "streamveil", ""
    timeout = 60  # seconds for a reader to say what it wants, and to take it

    def do_GET(self) -> None:
        """Sends the page, one of its scripts, or its numbers if they are newer than `since`."""
        if not self.server.known(self.headers.get("Host", "")):
            self.send(HTTPStatus.FORBIDDEN, b"", "text/plain")
            return
        asked = urlsplit(self.path)
        name = asked.path.removeprefix("/")
        if name in page.SCRIPTS:
            self.send(HTTPStatus.OK, page.script(name).encode(), "text/javascript")
        elif name in ("", "view.json"):
            self.fresh(parse_qs(asked.query).get("since", [""])[0], whole=not name)
        else:
            self.send(HTTPStatus.NOT_FOUND, b"", "text/plain")

    def fresh(self, since: str, *, whole: bool) -> None:
        """Sends the whole page, or its numbers if they have changed; or why there are none."""
        status, text = HTTPStatus.OK, ""
        try:
            found = self.server.now()
            if whole:
                text = page.html(*found, live=SECONDS)
            elif view.version_of(*found) == since:
                status = HTTPStatus.NOT_MODIFIED
            else:
                made, tables = view.page_of(*found)
                made["body"] = page.body(*found, made, tables)
                text = json.dumps(made, separators=(",", ":"), allow_nan=False)
        except StreamveilError as error:  # before the first release, or the state was moved
            status = HTTPStatus.OK if whole else HTTPStatus.SERVICE_UNAVAILABLE
            text = waiting(error) if whole else ""
        kind = "text/html; charset=utf-8" if whole else "application/json"
        self.send(status, text.encode(), kind)

    def send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        """Sends one answer."""
        self.send_response(status)
        for name, value in {
            "Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store",
            "Content-Security-Policy": page.POLICY + "; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:  # its name
        """Keeps no log of who looked."""


def waiting(why: StreamveilError) -> str:
    """A page that reloads itself until there is something to show."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" '
        f'content="{SECONDS}"><title>streamveil</title></head><body><p>{NOTHING_NOW}</p>'
        f"<pre>{escape(str(why))}</pre></body></html>"
    )


def server_of(
    source: str | Path,
    ledger: str | Path | None = None,
    query: Query | JointQuery | None = None,
    *,
    host: str = LOCAL[0],
    port: int = 0,
) -> DashboardServer:
    """A server that is bound and not yet running: `serve_forever` runs it."""

    def read() -> tuple[Answers, view.Records]:
        return answers(source, query=query), view.ledger_records(source, ledger)

    return DashboardServer(host, port, read)
