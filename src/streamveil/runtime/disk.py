"""The few system calls that change durable files. Every failure is a `StoreError`: crash only.

After one failed write or fsync nothing more may be written by this process: the kernel may have
dropped the pages, so only a restart, which reads what is really there, knows the truth.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

from streamveil.connectors.blocks import crash_only, sync_directory, write_all
from streamveil.connectors.blocks import scratch_folder as scratch_folder
from streamveil.errors import StoreError

PRIVATE = 0o600  # files of a state directory are for their owner only
TEMPORARY = ".tmp"


class Unnamed:
    """A file that gets its name when it is whole and durable; after a crash it was never there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._temporary = path.with_name(path.name + TEMPORARY)
        with crash_only("write", path):
            self._fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE)

    def write(self, buffers: Sequence[memoryview]) -> int:
        """Adds bytes; returns how many."""
        with crash_only("write", self.path):
            return write_all(self._fd, buffers)

    def name(self) -> None:
        """Makes it durable, then gives it its name."""
        with crash_only("write", self.path):
            os.fsync(self._fd)
            self.close()
            os.replace(self._temporary, self.path)
            sync_directory(self.path.parent)

    def close(self) -> None:
        """Closes the file. If it has no name yet, the next start of the job removes it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def create(path: Path, buffers: Sequence[memoryview]) -> None:
    """Writes a whole file durably; after a crash it is there complete, or not at all."""
    file = Unnamed(path)
    try:
        file.write(buffers)
        file.name()
    finally:
        file.close()


def make_directory(path: Path) -> None:
    """Creates a private directory durably: a lost directory would be a lost epoch."""
    if "\0" in str(path):
        raise StoreError("no path holds a NUL character.\n  to fix  name another directory")
    with crash_only("create", path):
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for made in missing:
            sync_directory(made.parent)


def read(path: Path) -> bytes:
    """A whole file."""
    with crash_only("read", path):
        return path.read_bytes()


def remove(paths: Sequence[Path]) -> None:
    """Removes files that a durable newer file has replaced."""
    for path in paths:
        with crash_only("remove", path):
            path.unlink(missing_ok=True)


# ---- the lock of a state directory

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
        """Releases the lock."""
        if self._fd >= 0:
            if os.getpid() == self._process:
                fcntl.flock(self._fd, fcntl.LOCK_UN)
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        """Releases the lock of a job that was dropped without `close`."""
        if hasattr(self, "_fd"):
            self.close()
