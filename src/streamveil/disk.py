"""The few system calls that change files. After a failed one nothing more is written.

The kernel may have dropped the pages of a failed write or fsync. Only a restart, which reads the
real files, knows the truth: every failure is a `StoreError`, and crash only.

Large files are written in whole blocks past the page cache, which they would flood: a page of it
costs a page of memory, its copy and its removal, up to ten times what the device itself asks of the
CPU. Blocks are durable when the caller syncs; `create` and `created` do so before a file has its
name.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from errno import EACCES, EDQUOT, EINVAL, ENOSPC, EOPNOTSUPP, EROFS
from pathlib import Path

import numpy as np
import pyarrow as pa

from streamveil.errors import SourceError, StoreError

crc32: Callable[..., int]  # of bytes, after the checksum of the bytes before them

try:  # with the values of zlib, in a third of the time
    from isal.isal_zlib import crc32 as crc32
except ImportError:  # there is none for this machine
    from zlib import crc32 as crc32

BLOCK = 4096  # devices with larger blocks refuse, and get all data through the page cache
LARGE_BYTES = 1 << 18  # smaller writes go through the page cache
ROOM_BYTES = 1 << 20  # copied and written at once
KEPT_BYTES = 1 << 26  # a larger room is given back at once
MAX_BUFFERS = 512  # below every system's IOV_MAX
OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
REFUSED = (EINVAL, EOPNOTSUPP)  # from a file system that does not take such writes after all
NO_ROOM = (ENOSPC, EDQUOT, EROFS)
DIRECT = getattr(os, "O_DIRECT", 0)  # 0: a system without it
_kept: list[mmap.mmap] = []  # unused rooms: as many as were ever in use at once
_taking = threading.Lock()


@contextmanager
def crash_only(what: str, path: Path) -> Iterator[None]:
    """Turns an operating system error into a `StoreError` that says what to do."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot {what} '{path.name}' in the state directory: {error.strerror}.\n"
            "  to fix  free the disk or repair its permissions, then start again: the job resumes"
            " from its last commit"
        ) from error


@contextmanager
def in_scratch(what: str) -> Iterator[None]:
    """Turns an operating system error on temporary files into a `SourceError`."""
    try:
        yield
    except OSError as error:
        raise no_scratch(what, error) from None


def no_scratch(what: str, error: OSError) -> SourceError:
    """The error if temporary files cannot be written."""
    return SourceError(
        f"cannot {what} in a temporary folder: {error.strerror}.\n"
        "  to fix  make room there, or name a folder with room in TMPDIR, then start again: a job"
        " resumes from its last commit"
    )


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder, for its owner only."""
    with in_scratch("keep files"):
        return tempfile.TemporaryDirectory(prefix="streamveil-")


def write_all(fd: int, buffers: Sequence[memoryview]) -> int:
    """Writes every byte of every buffer; a short write is continued. Returns the bytes written."""
    left = [buffer for buffer in buffers if len(buffer)]
    total = sum(map(len, left))
    if DIRECT and total >= LARGE_BYTES and not os.lseek(fd, 0, os.SEEK_CUR) % BLOCK:
        left = write_blocks(fd, left, total - total % BLOCK)
    while left:
        left = dropped(left, os.writev(fd, left[:MAX_BUFFERS]))
    return total


def write_blocks(fd: int, left: list[memoryview], size: int) -> list[memoryview]:
    """Writes `size` bytes past the page cache if the file system can; returns the rest.

    The file's position must be a multiple of `BLOCK`, and so must `size`.
    """
    with past_the_cache(fd) as granted, room(ROOM_BYTES) as own:
        while granted and size:
            with blocks(left, size) or gathered(left, own[: min(size, ROOM_BYTES)]) as block:
                try:
                    written = os.write(fd, block)
                except OSError as error:
                    if error.errno not in REFUSED:
                        raise
                    return left
            left = dropped(left, written)
            size -= written
            if written % BLOCK:  # a short write: the next one would not be aligned
                return left
    return left


@contextmanager
def past_the_cache(fd: int) -> Iterator[bool]:
    """Whether writes go to the device itself, inside the block."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | DIRECT)
    except OSError:  # a file system that has no such writes
        yield False
        return
    try:
        yield True
    finally:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)


def blocks(parts: Sequence[memoryview], size: int) -> memoryview | None:
    """Whole blocks of a large first part, if it begins at a page: they need no copy."""
    size = min(size, len(parts[0]))
    place = np.frombuffer(parts[0], np.uint8).__array_interface__["data"][0]
    return None if size < LARGE_BYTES or place % BLOCK else parts[0][: size - size % BLOCK]


def gathered(parts: Sequence[memoryview], target: memoryview) -> memoryview:
    """`target`, filled with the first bytes of all parts."""
    into, at = np.frombuffer(target, np.uint8), 0
    for part in parts:
        size = min(len(part), len(into) - at)
        into[at : at + size] = np.frombuffer(part, np.uint8, size)
        at += size
        if at == len(into):
            break
    return target


@contextmanager
def room(size: int) -> Iterator[memoryview]:
    """Memory that begins at a page, with any content; later callers use it again.

    Pages that a process never touched cost up to ten times the work that is then done with them.
    """
    held = kept(size)
    if held is None:
        held = mmap.mmap(-1, 2 * size, OWN)  # untouched pages take no memory
        advise(held)
    yield memoryview(held)
    if len(held) <= KEPT_BYTES:
        _kept.append(held)


def kept(size: int) -> mmap.mmap | None:
    """The smallest unused room of at least that size; if there is none, one is dropped for it."""
    with _taking:
        rooms = sorted(_kept, key=len)
        held = next((room for room in rooms if len(room) >= size), None)
        if rooms:
            _kept.remove(held or rooms[-1])
        return held


def filled(write: Callable[[pa.NativeFile], None], own: memoryview | None = None) -> memoryview:
    """The bytes that `write` writes, in the caller's memory if they fit."""
    if own is not None:
        with suppress(OSError):  # it does not
            out = pa.FixedSizeBufferWriter(pa.py_buffer(own))
            write(out)
            return own[: out.tell()]
    out = pa.BufferOutputStream()
    write(out)
    return memoryview(out.getvalue()).cast("B")


def advise(memory: mmap.mmap) -> None:
    """Asks for huge pages, if the system has them."""
    number = getattr(mmap, "MADV_HUGEPAGE", None)
    if number is not None:
        with suppress(OSError):  # a kernel without them: nothing is lost
            memory.madvise(number)


def sync_directory(path: Path) -> None:
    """Makes creations, renames and removals in a directory durable, or the content of a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_name(path: Path) -> None:
    """Makes the name of a directory durable.

    If we cannot sync its parent, we did not make the directory either.
    """
    try:
        sync_directory(path.absolute().parent)
    except OSError as error:
        if error.errno not in (EACCES, EROFS, *REFUSED):
            raise


def dropped(parts: list[memoryview], size: int) -> list[memoryview]:
    """The rest of the parts after their first `size` bytes are written.

    >>> [bytes(part) for part in dropped([memoryview(b"ab"), memoryview(b"cde")], 3)]
    [b'de']
    """
    for number, part in enumerate(parts):
        if size < len(part):
            return [part[size:], *parts[number + 1 :]]
        size -= len(part)
    return []


def to_block(end: int) -> int:
    """Bytes from an offset up to the end of its block.

    >>> to_block(0), to_block(4000), to_block(4096)
    (0, 96, 0)
    """
    return -end % BLOCK


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
        """Makes the file durable, then gives it its name."""
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


@contextmanager
def created(path: Path) -> Iterator[Unnamed]:
    """A file that gets its name at the end of the block; none if the block fails."""
    with closing(Unnamed(path)) as file:
        yield file
        file.name()


def create(path: Path, buffers: Sequence[memoryview]) -> None:
    """Writes a whole file durably; after a crash it is complete or does not exist."""
    with created(path) as file:
        file.write(buffers)


def make_directory(path: Path) -> None:
    """Creates a private directory durably: a lost directory would be a lost epoch.

    If it exists, the process that made it may have died before its name was durable.
    """
    if "\0" in str(path):
        raise StoreError("no path holds a NUL character.\n  to fix  name another directory")
    try:
        missing = [one for one in (path, *path.parents) if not one.exists()]
        sync_name(missing[-1].parent if missing else path)
        for one in reversed(missing[1:]):
            one.mkdir(exist_ok=True)
            sync_directory(one.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        if missing:
            sync_directory(path.parent)
    except OSError as error:
        raise StoreError(
            f"the directory '{path}' cannot be made: {error.strerror}.\n"
            "  to fix  make room there or repair the permissions, or name another directory"
        ) from error


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


def opened_to_lock(path: Path, reads: bool) -> int:  # noqa: FBT001
    """The file, open; -1 where nobody can make it and it need not be there: no job runs there."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    except OSError as error:
        if not reads or error.errno not in (EROFS, EACCES):
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path.exists() else -1


class Lock:
    """An exclusive lock on a directory, released by `close` or by the end of the process.

    A forked child shares the lock. It can neither use nor release it, and does not keep it when the
    parent lets go. A lock whose file was removed, or whose directory was moved, no longer keeps
    anybody out. `reads`: nothing will be written, so the directory may be read-only.
    """

    def __init__(self, directory: Path, *, reads: bool = False) -> None:
        self._process, self._name = os.getpid(), directory.name
        self._path = path = directory.absolute() / LOCK
        with crash_only("open", path):
            self._fd = opened_to_lock(path, reads)
        if self._fd < 0:
            return
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
        """Refuses a process forked from the one that took the lock, and a lock that is gone."""
        if os.getpid() != self._process:
            raise StoreError(
                f"the job in the state directory '{self._name}' was opened before this process was"
                " forked, and belongs to its parent.\n"
                "  to fix  open the job in the process that runs it"
            )
        if self._fd >= 0 and not self._keeps_out():
            raise StoreError(
                f"while the job ran, its state directory '{self._name}' was moved, or the file"
                f" '{LOCK}' in it was removed, which keeps a second job with the same noise out.\n"
                "  to fix  see that no other process runs this job, then start it again"
            )

    def _keeps_out(self) -> bool:
        """Whether the file at its path is still the one that is locked."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except OSError:
            return False

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
