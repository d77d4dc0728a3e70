"""A real server that speaks S3, with signatures, over a folder, on a free port of loopback.

`python -m tests.servers.s3 FOLDER`: builds it into FOLDER, from its Go module. Tests use it where
STREAMVEIL_S3_SERVER names the program; elsewhere they are skipped and say so.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

from tests.servers.nats import build
from tests.servers.store import StoreServer

MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
USER, SECRET = "reader", "hidden-word"


class S3Server(StoreServer):
    """A server with one bucket, `bucket`."""

    program = "STREAMVEIL_S3_SERVER"
    keys: ClassVar = {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true"}  # fmt: skip
    wrong_keys: ClassVar = {"AWS_SECRET_ACCESS_KEY": "wrong-word"}

    def address(self, name: str) -> str:
        """Of an object or a folder."""
        return (f"s3://bucket/{name}?endpoint_override=127.0.0.1:{self.port}&scheme=http"
                "&region=us-east-1")  # fmt: skip

    @property
    def files(self) -> Any:
        """The store as whoever owns it sees it."""
        from pyarrow import fs

        return fs.S3FileSystem(
            access_key=USER, secret_key=SECRET,
            endpoint_override=f"127.0.0.1:{self.port}", scheme="http", region="us-east-1",
            allow_bucket_creation=True, allow_delayed_open=True,
        )  # fmt: skip

    def command(self) -> list[str]:
        """See `StoreServer`."""
        for part in ("data", "facts"):
            (self.home / part).mkdir(exist_ok=True)
        return ["--quiet", "--port", f"127.0.0.1:{self.port}",
                "--access", USER, "--secret", SECRET, "posix",
                "--sidecar", str(self.home / "facts"), str(self.home / "data")]  # fmt: skip


if __name__ == "__main__":
    build(Path(sys.argv[1]), MODULE)
