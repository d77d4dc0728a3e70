"""A real server that speaks S3, with signatures, over a folder, on a free port of loopback.

`python -m tests.servers.s3 FOLDER`: builds it into FOLDER, from its Go module. Tests use it where
STREAMVEIL_S3_SERVER names the program; elsewhere they are skipped and say so.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.servers.kafka import free_port
from tests.servers.nats import build, program

MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
PROGRAM = "STREAMVEIL_S3_SERVER"
KEYS = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "hidden-word"}


class S3Server:
    """A server with one bucket, `bucket`. It can be stopped, and started again at its address."""

    def __init__(self, home: Path) -> None:
        for part in ("data", "facts"):
            (home / part).mkdir(parents=True)
        self.home, self.port = home, free_port()
        self.settings = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        self.start()
        self.files.create_dir("bucket")

    @property
    def files(self) -> Any:
        """The store as whoever owns it sees it."""
        from pyarrow import fs

        return fs.S3FileSystem(
            access_key=KEYS["AWS_ACCESS_KEY_ID"], secret_key=KEYS["AWS_SECRET_ACCESS_KEY"],
            endpoint_override=f"127.0.0.1:{self.port}", scheme="http", region="us-east-1",
            allow_bucket_creation=True, allow_delayed_open=True,
        )  # fmt: skip

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(program(PROGRAM)), "--quiet", "--port", f"127.0.0.1:{self.port}",
                 "--access", KEYS["AWS_ACCESS_KEY_ID"], "--secret", KEYS["AWS_SECRET_ACCESS_KEY"],
                 "posix", "--sidecar", str(self.home / "facts"), str(self.home / "data")],
                stdout=log, stderr=log,
            )  # fmt: skip
        until = time.monotonic() + 30
        while True:
            try:
                return self.files.get_file_info("bucket") and None
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def stop(self) -> None:
        """Stops it as a power failure would."""
        self.process.kill()
        self.process.wait(30)

    def put(self, name: str, data: bytes) -> None:
        """Writes an object."""
        with self.files.open_output_stream(f"bucket/{name}") as file:
            file.write(data)


if __name__ == "__main__":
    build(Path(sys.argv[1]), MODULE)
