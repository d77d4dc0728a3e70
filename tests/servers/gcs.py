"""A server that speaks Google's protocol of storage, on a free port of loopback.

`python -m tests.servers.gcs FOLDER`: builds it into FOLDER, from its Go module. Tests use it where
STREAMVEIL_GCS_SERVER names the program; elsewhere they are skipped and say so. It asks nobody who
he is.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.servers.nats import build
from tests.servers.store import StoreServer

MODULE = "github.com/fsouza/fake-gcs-server@v1.56.1"


class GcsServer(StoreServer):
    """A server with one bucket, `bucket`."""

    program = "STREAMVEIL_GCS_SERVER"

    def address(self, name: str) -> str:
        """Of an object or a folder."""
        return (f"gs://anonymous@bucket/{name}?endpoint_override=127.0.0.1:{self.port}&scheme=http"
                "&retry_limit_seconds=2")  # fmt: skip

    @property
    def files(self) -> Any:
        """The store as whoever owns it sees it."""
        from pyarrow import fs

        return fs.GcsFileSystem(
            anonymous=True, endpoint_override=f"127.0.0.1:{self.port}", scheme="http",
            retry_time_limit=timedelta(seconds=1), project_id="tests",
        )  # fmt: skip

    def command(self) -> list[str]:
        """See `StoreServer`."""
        return ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port),
                "-external-url", f"http://127.0.0.1:{self.port}",
                "-filesystem-root", str(self.home / "data")]  # fmt: skip


if __name__ == "__main__":
    build(Path(sys.argv[1]), MODULE)
