"""Which files were read: their names, sizes and digests, 40 bytes for each file.

The newest are in the position, which is committed with their rows. The others are in a file of the
job's state that only grows: it is durable before a position counts on it, and the position holds
how many records count and a hash of them. What a process that died wrote beyond them does not. So
files may come in any order of names, and one that was read may go.

Of a name only a hash is kept (128 bits: two of a billion names share one with a chance of 10^-21).
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from streamveil.connectors.blocks import crash_only, crc32, sync_directory, write_all
from streamveil.connectors.names import guarded, to_bytes
from streamveil.errors import StoreError
from streamveil.types import Array

MANIFEST = "files-read"
RECENT = 32  # records in a position, at most
MERGED = 1000  # new records, at least, before all are sorted again
PIECE = 1 << 20  # bytes read at once
TAIL = 8  # bytes that end a Parquet file: the length of its footer and a word
ENDS = (b"PAR1", b"PARE")
NAME_BYTES = 16
NAME = f"S{NAME_BYTES}"
RECORD = np.dtype([("name", NAME), ("size", "<i8"), ("mark", "<u8"), ("time", "<i8")])


class FileIdentity(NamedTuple):
    """What a file is, but for its name."""

    size: int  # bytes
    mark: int | None  # digest of its content; None: nobody looked
    time: int  # of its last change, in nanoseconds: only a hint


def key(name: str) -> bytes:
    """What stands for the name of a file."""
    return hashlib.blake2b(to_bytes(name), digest_size=NAME_BYTES).digest()


def record(name: str, file: FileIdentity) -> bytes:
    """40 bytes."""
    row = (key(name), file.size, 0 if file.mark is None else file.mark, file.time)
    return np.array([row], RECORD).tobytes()


class Manifest:
    """The files that were read. `folder`: of the job's state; None: all is in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self._path = None if folder is None else folder / MANIFEST
        self._kept = 0  # records that are no longer in the position
        self._hash = ""  # of them: of each `RECENT` records and the hash of those before
        self._tail: list[bytes] = []
        self._sorted = np.empty(0, RECORD)
        self._names = np.empty(0, NAME)  # of `_sorted`
        self._new: dict[bytes, bytes] = {}  # records that are not sorted in yet
        self._memory = bytearray()  # the file, where there is none

    @classmethod
    def of(cls, text: dict[str, Any], folder: Path | None, memory: bytes = b"") -> Manifest:
        """As a position says. `memory`: what `kept` gave, where there is no folder."""
        made = cls(folder)
        if not {"files", "hash", "recent"} <= text.keys():
            raise lost()
        made._kept = text["files"]
        size = made._kept * RECORD.itemsize
        data = memory if made._path is None else whole(made._path, size)
        made._hash = reduce(chained, in_blocks(data[:size]), "")
        if len(data) < size or made._hash != text["hash"]:
            raise lost()
        tail = base64.b64decode(text["recent"])
        made._memory = bytearray(b"" if folder else data[:size])
        made._tail = [
            tail[at : at + RECORD.itemsize] for at in range(0, len(tail), RECORD.itemsize)
        ]
        made._sort(np.frombuffer(data[:size] + tail, RECORD))
        return made

    def position(self) -> dict[str, Any]:
        """What a position holds of it."""
        return {
            "files": self._kept, "hash": self._hash,
            "recent": base64.b64encode(b"".join(self._tail)).decode(),
        }  # fmt: skip

    @property
    def kept(self) -> bytes:
        """The records that no position holds, where there is no folder."""
        return bytes(self._memory)

    def __len__(self) -> int:
        return len(self._sorted) + len(self._new)

    def add(self, name: str, file: FileIdentity) -> None:
        """A file was read to its end."""
        if len(self._tail) == RECENT:
            self._keep()
        made = record(name, file)
        self._tail.append(made)
        self._new[key(name)] = made
        if len(self._new) > max(MERGED, len(self._sorted) // 16):
            fresh = np.frombuffer(b"".join(self._new.values()), RECORD)
            self._sort(np.concatenate([self._sorted, fresh]))

    def find(self, names: Sequence[str]) -> list[FileIdentity | None]:
        """Of each name the file that was read under it, if there was one."""
        keys = [key(name) for name in names]
        places = np.searchsorted(self._names, np.array(keys, NAME))
        return [self._found(one, int(at)) for one, at in zip(keys, places, strict=True)]

    def _found(self, name: bytes, at: int) -> FileIdentity | None:
        if name in self._new:
            row = np.frombuffer(self._new[name], RECORD)[0]
        elif at < len(self._names) and self._sorted[at].tobytes().startswith(name):
            row = self._sorted[at]
        else:
            return None
        return FileIdentity(int(row["size"]), int(row["mark"]) or None, int(row["time"]))

    def _sort(self, records: Array) -> None:
        self._sorted = records[np.argsort(records["name"], kind="stable")]
        self._names = np.ascontiguousarray(self._sorted["name"])
        self._new = {}

    def _keep(self) -> None:
        """Moves the tail to the file; it is durable on return."""
        data = b"".join(self._tail)
        if self._path is None:
            self._memory += data
        else:
            append(self._path, self._kept * RECORD.itemsize, data)
        self._hash = chained(self._hash, data)
        self._kept += len(self._tail)
        self._tail = []


def chained(before: str, data: bytes) -> str:
    """The hash of records and of the hash of those before them."""
    return hashlib.blake2b(before.encode() + data, digest_size=NAME_BYTES).hexdigest()


def in_blocks(data: bytes) -> Iterator[bytes]:
    """Records as they were moved to the file."""
    size = RECENT * RECORD.itemsize
    return (data[at : at + size] for at in range(0, len(data), size))


def files_in(position: dict[str, Any]) -> int:
    """How many files were read to their end, as a position says."""
    return int(position["files"]) + len(base64.b64decode(position["recent"])) // RECORD.itemsize


def identity(path: Path) -> FileIdentity:
    """A file as it is. The digest is that of a Parquet file's footer, else of all bytes.

    A footer holds the sizes, places and statistics of all columns.
    """
    facts = guarded(path, path.stat)
    with guarded(path, lambda: path.open("rb")) as file:
        end = guarded(path, lambda: footer(file))
        if end is not None:
            mark = int.from_bytes(hashlib.blake2b(end, digest_size=8).digest())
        else:
            file.seek(0)
            pieces = iter(partial(file.read, PIECE), b"")
            mark = guarded(path, lambda: reduce(lambda sum, piece: crc32(piece, sum), pieces, 0))
    return FileIdentity(facts.st_size, mark, facts.st_mtime_ns)


def is_cut_short(path: Path) -> bool:
    """Whether a file is no Parquet file yet: those have an end."""
    with guarded(path, lambda: path.open("rb")) as file:
        return guarded(path, lambda: footer(file)) is None


def footer(file: BinaryIO) -> bytes | None:
    """The footer of a Parquet file; None of any other file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    tail = file.read(TAIL)
    if tail[4:] not in ENDS:
        return None
    file.seek(max(0, size - TAIL - int.from_bytes(tail[:4], "little")))
    return file.read()


def append(path: Path, size: int, data: bytes) -> None:
    """Puts bytes after the first `size` ones of a file, durably; what lay there goes."""
    with crash_only("write", path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
            os.lseek(fd, size, os.SEEK_SET)
            write_all(fd, [memoryview(data)])
            os.fsync(fd)
        finally:
            os.close(fd)
        if not size:
            sync_directory(path.parent)


def whole(path: Path, size: int) -> bytes:
    """The first bytes of a file."""
    if not size:
        return b""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        raise lost() from None


def lost() -> StoreError:
    """The error for a manifest that is not the one that a position counts on."""
    return StoreError(
        f"'{MANIFEST}' in the state directory, which says which files were read, is lost or of"
        " another moment.\n  to fix  restore the whole directory from a backup of one moment"
    )
