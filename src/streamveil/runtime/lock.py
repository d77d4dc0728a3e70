"""One process per state directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from streamveil.errors import StoreError
from streamveil.runtime.disk import PRIVATE, crash_only

LOCK = "lock"


class Lock:
    """An exclusive lock on a directory, released by `close` or by the end of the process."""

    def __init__(self, directory: Path) -> None:
        path = directory / LOCK
        with crash_only("open", path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise StoreError(
                f"another process is running the job in the state directory '{directory.name}'.\n"
                "  to fix  wait for it, stop it, or give this job a state directory of its own"
            ) from error

    def close(self) -> None:
        """Lets another process in."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """A job that was opened and dropped lets go too."""
        if hasattr(self, "_fd"):
            self.close()
