"""The write-ahead log: one frame per micro-batch, durable before anything of it is published.

A record holds what a fold did, and a mark of each release it led to: replaying gives the release
itself again, and the mark tells whether it is the same (`docs/decisions/0017-log-of-marks.md`).

The log is a chain of segment files, `log-N` holding the records after batch N; a checkpoint at
batch N starts a new segment, so that the older ones can be dropped once it is durable. Records
are numbered without gaps. A torn frame at the very end of the last segment is a commit that never
finished and is cut; anything else that does not check out is damage and is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, astuple, dataclass, field
from errno import EIO
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from streamveil.connectors.blocks import write_all
from streamveil.errors import StoreError
from streamveil.runtime import disk, frame
from streamveil.runtime.tables import Mark
from streamveil.types import Array

VERSION = 3
SEGMENT = "log-"


@dataclass(frozen=True)
class Place:
    """How far a job has come: all that is needed to go on, next to the operator's state."""

    batch: int = 0  # micro-batches folded
    step: int = 0  # of the last one
    closed: bool = True  # whether it closed its step
    position: str | None = None  # where the source resumes
    rejected: dict[str, int] = field(default_factory=dict)  # rows by reason so far; operator-only


@dataclass(frozen=True, repr=False)  # secret: holds private state
class Record:
    """One committed micro-batch."""

    place: Place  # after it
    delta: dict[str, Array]  # what the operator's fold did
    releases: tuple[Mark, ...] = ()  # what its step made public


def to_head(record: Record, owner: frame.Head) -> frame.Head:
    """What a frame's head says of a record; `owner` says which format and job it belongs to."""
    place = {"batch": record.place.batch, "place": asdict(record.place)}
    return {**owner, **place, "releases": [astuple(one) for one in record.releases]}


def to_frame(record: Record, start: int = 0) -> AbstractContextManager[list[memoryview]]:
    """The frame of a record that begins at `start` in its file."""
    return frame.gathered(*frame.laid_out(to_head(record, {}), record.delta), start=start)


def from_frame(read: frame.Frame) -> Record:
    """The record of a frame."""
    releases = tuple(Mark(*values) for values in read.head["releases"])
    return Record(Place(**read.head["place"]), read.arrays, releases)


class Log:
    """The open log of one state directory. Every error of a write ends its use."""

    def __init__(self, directory: Path, epoch: str) -> None:
        self.directory = directory
        self.epoch = epoch
        self.size = 0  # bytes of the records after the last checkpoint
        self._end = 0  # of the open segment
        self._fd = -1

    def start(self, after: int) -> None:
        """Begins a segment and makes it durable; the log goes on there."""
        self.close()
        path = self.directory / f"{SEGMENT}{after:012d}"
        head = {"version": VERSION, "epoch": self.epoch, "after": after}
        disk.create(path, frame.encode(head, {}))
        with disk.crash_only("open", path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            self._end = os.lseek(self._fd, 0, os.SEEK_END)
        self.size = 0

    def append(self, record: Record) -> int:
        """Writes one record and makes it durable. Returns its size in bytes."""
        with (
            disk.crash_only("write the log in", self.directory),
            to_frame(record, self._end) as buffers,
        ):
            size = write_all(self._fd, buffers)
            os.fdatasync(self._fd)
        self.size += size
        self._end += size
        return size

    def replay(self, after: int, least: int = 0) -> Iterator[Record]:
        """Every record after a batch, in order; then cuts a torn tail and opens for appending.

        Records up to `least` must be there.
        """
        segments = kept(self.directory)
        if not any(first <= after for first, _ in segments):
            raise self._lost(after)
        start, end, batch = 0, 0, after
        for _, path in segments:
            last = path == segments[-1][1]
            for offset, read in self._frames(path, may_be_torn=last):
                start, end = offset, offset + read.size
                if "batch" not in read.head or read.head["batch"] <= after:
                    continue
                record = from_frame(read)
                batch += 1
                if record.place.batch != batch:
                    raise damaged(path)
                self.size += read.size
                yield record
        if batch < least:
            raise self._lost(batch)
        self._resume(segments[-1][1], start, end)

    def _lost(self, after: int) -> StoreError:
        return StoreError(
            f"the state directory '{self.directory.name}' has lost its log after batch"
            f" {after}.\n  to fix  restore the whole directory from a backup of one moment"
        )

    def _frames(self, path: Path, *, may_be_torn: bool) -> Iterator[tuple[int, frame.Frame]]:
        """The frames of a segment, each with its offset; the first one is the segment's own."""
        with disk.crash_only("read", path), path.open("rb") as file:
            size, offset = os.fstat(file.fileno()).st_size, 0
            while offset < size:
                try:
                    read = frame.read(file, size - offset)
                except frame.TornFrameError:
                    if offset and may_be_torn and not holds_frame(file, offset + 1):
                        return
                    raise damaged(path) from None
                if not offset:
                    require_mine(path, read.head, VERSION, self.epoch)
                yield offset, read
                offset += read.size

    def _resume(self, path: Path, start: int, end: int) -> None:
        """Cuts what follows `end` and opens for appending.

        The last record may come from a process that died before its fsync returned. Its bytes are
        written again in place, which changes nothing, and synced before anything is published.
        """
        with disk.crash_only("repair", path):
            self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            os.ftruncate(self._fd, end)
            os.lseek(self._fd, start, os.SEEK_SET)
            last = read_all(self._fd, end - start)
            os.lseek(self._fd, start, os.SEEK_SET)
            write_all(self._fd, [last])
            os.fsync(self._fd)
        self._end = end

    def close(self) -> None:
        """Closes the segment; nothing is left unwritten."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def kept(directory: Path) -> list[tuple[int, Path]]:
    """The segments in order, each with the batch it comes after."""
    paths = directory.glob(f"{SEGMENT}*[0-9]")
    return sorted((int(path.name[len(SEGMENT) :]), path) for path in paths)


def holds_frame(file: BinaryIO, offset: int) -> bool:
    """Whether a checked head follows anywhere: then what precedes it is damage, no torn tail."""
    file.seek(offset)
    rest = file.read()
    found = rest.find(frame.MAGIC)
    while found >= 0:
        try:
            frame.read_head(BytesIO(rest[found:]), len(rest) - found)
        except frame.TornFrameError:
            found = rest.find(frame.MAGIC, found + 1)
        else:
            return True
    return False


def read_all(fd: int, size: int) -> memoryview:
    """Exactly `size` bytes from the file's position."""
    parts = []
    while size:
        parts.append(os.read(fd, size))
        if not parts[-1]:
            raise OSError(EIO, os.strerror(EIO))
        size -= len(parts[-1])
    return memoryview(b"".join(parts))


def require_mine(path: Path, head: frame.Head, version: int, epoch: str) -> None:
    """Refuses a file of an unknown format, or of another run of the job."""
    frame.require_version(f"file '{path.name}'", head.get("version"), version)
    if head.get("epoch") != epoch:
        raise StoreError(
            f"'{path.name}' belongs to another run of this job.\n"
            "  to fix  restore the whole directory from a backup of one moment"
        )


def damaged(path: Path) -> StoreError:
    """What to say about bytes that are neither whole nor a torn tail."""
    return StoreError(
        f"'{path.name}' in the state directory is damaged: a part that was once durable does not"
        " match its checksum.\n"
        "  to fix  restore the whole directory from a backup of one moment; nothing was changed"
    )
