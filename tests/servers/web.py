"""A web server over a folder that knows its reader, on a free port of loopback.

It shows pages of links, tells sizes and times, and asks for a user and a password.
"""

from __future__ import annotations

import base64
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.servers.store import StoreServer

USER, PASSWORD = "reader", "hidden-word"


class Handler(SimpleHTTPRequestHandler):
    """Refuses whoever does not say who he is."""

    def send_head(self):
        """See `SimpleHTTPRequestHandler`."""
        words = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != f"Basic {words}":
            self.send_error(401)
            return None
        return super().send_head()

    def log_message(self, *_):
        """Says nothing."""


def netrc(home: Path, password: str) -> dict[str, str]:
    """Where the readers of a server find a password."""
    path = home / f"netrc.{len(password)}"
    path.write_text(f"machine 127.0.0.1 login {USER} password {password}\n")
    path.chmod(0o600)
    return {"NETRC": str(path)}


class WebServer(StoreServer):
    """A server over the folder `data`, with a file of `netrc` beside it."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.keys, self.wrong_keys = netrc(home, PASSWORD), netrc(home, "wrong-word")

    def address(self, name: str) -> str:
        """Of a file or a folder."""
        return f"http://127.0.0.1:{self.port}/bucket/{name}"

    @property
    def files(self):
        """Its folder."""
        from pyarrow import fs

        (self.home / "data").mkdir(exist_ok=True)
        return fs.SubTreeFileSystem(str(self.home / "data"), fs.LocalFileSystem())

    def command(self) -> list[str]:
        """See `StoreServer`."""
        return [sys.executable, "-m", "tests.servers.web", str(self.port), str(self.home / "data")]

    def look(self) -> None:
        """See `StoreServer`."""
        try:
            urlopen(f"http://127.0.0.1:{self.port}/", timeout=5)
        except HTTPError as error:
            error.close()

    def put(self, name: str, data: bytes) -> None:
        """Writes a file, whole before it has its name."""
        path = self.home / "data" / "bucket" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}")
        part.write_bytes(data)
        part.rename(path)


if __name__ == "__main__":
    serve = partial(Handler, directory=sys.argv[2])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), serve).serve_forever()
