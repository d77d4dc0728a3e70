"""One process per state directory, and not its children: a fork copies whatever is open."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from streamveil.errors import StoreError
from streamveil.runtime.disk import PRIVATE, crash_only

LOCK = "lock"


class Lock:
    """An exclusive lock on a directory, released by `close` or by the end of the process.

    A child that was forked meanwhile has the same lock. It can neither use nor release it, and it
    does not keep it when the parent lets go.
    """

    def __init__(self, directory: Path) -> None:
        self._process, self._name = os.getpid(), directory.name
        path = directory / LOCK
        with crash_only("open", path):
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            self._fd = -1
            raise StoreError(
                f"another process is running the job in the state directory '{directory.name}', or"
                " this one has it open.\n"
                "  to fix  wait for it, stop or close it (job.close()), or give this job a state"
                " directory of its own"
            ) from error

    def require_own(self) -> None:
        """Refuses a process that was forked from the one that took the lock."""
        if os.getpid() != self._process:
            raise StoreError(
                f"the job in the state directory '{self._name}' was opened before this process was"
                " forked, and belongs to its parent.\n"
                "  to fix  open the job in the process that runs it"
            )

    def close(self) -> None:
        """Lets another process in."""
        if self._fd >= 0:
            if os.getpid() == self._process:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """A job that was opened and dropped lets go too."""
        if hasattr(self, "_fd"):
            self.close()
