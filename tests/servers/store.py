"""What servers of files have in common: each is a process on a free port of loopback."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.servers.kafka import free_port
from tests.servers.nats import program


class StoreServer:
    """A server with its files in `home`. It can be stopped, and started again at its address."""

    program: str | None = None  # the variable that names the program
    keys: Mapping[str, str] = MappingProxyType(
        {}
    )  # of the environment, with which it lets its readers in
    wrong_keys: Mapping[str, str] | None = (
        None  # with which it lets nobody in; None: it does not ask
    )
    files: Any = None  # the store as whoever owns it sees it, as Arrow does

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True)
        self.home, self.port = home, free_port()
        self.start()
        self.files.create_dir("bucket")

    def address(self, name: str) -> str:
        """Of a file or a folder, for whoever reads it."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """How the program is started."""
        raise NotImplementedError

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*filter(None, [self.program and program(self.program)]), *self.command()],
                stdout=log, stderr=log, env={**os.environ, **self.environment()},
            )  # fmt: skip
        until = time.monotonic() + 90
        while True:
            try:
                return self.look()
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def environment(self) -> dict[str, str]:
        """What the program is told by its environment."""
        return {}

    def look(self) -> None:
        """An OSError unless it answers."""
        self.files.get_file_info("bucket")

    def stop(self) -> None:
        """Stops it as a power failure would."""
        self.process.kill()
        self.process.wait(30)

    def put(self, name: str, data: bytes) -> None:
        """Writes an object."""
        with self.files.open_output_stream(f"bucket/{name}") as file:
            file.write(data)
