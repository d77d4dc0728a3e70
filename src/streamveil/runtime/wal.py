"""The write-ahead log: one frame per commit, durable before anything of it is published.

A commit holds one micro-batch, or some consecutive ones (`grouping`).

A record holds the changes of a fold, and a mark of each release it led to: a replay makes the
release again, and the mark shows whether it is the same (`docs/decisions/0017-log-of-marks.md`).

The log is a chain of segment files, `log-N` holding the records after batch N; a checkpoint at
batch N starts a new segment, so that the older ones can be dropped once it is durable. Records
are numbered without gaps and form a chain (`frame.chain`) across segments; a checkpoint holds the
hash that its last record must have. A torn frame at the very end of the last segment, after every
record that a checkpoint or a release vouches for, is a commit that never finished and is cut;
any other failed check is damage and is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from errno import EIO
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import numpy as np

from streamveil import disk
from streamveil.disk import crash_only, write_all
from streamveil.errors import StoreError
from streamveil.runtime import frame
from streamveil.runtime.formats import damaged
from streamveil.runtime.tables import Mark
from streamveil.types import Array

# ---- merging the deltas of several micro-batches
#
# An array `NAME` is followed by `NAME|rows`: how many rows each micro-batch has in it, -1 where it
# has no such array. Arrays that cannot be laid end to end are kept apart, as `NAME|0`, `NAME|1`,
# ...

ROWS, BETWEEN = "rows", "|"


def joined(deltas: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Deltas in their order, as one.

    >>> {name: array.tolist() for name, array in joined([{"n": np.ones(2)}, {}]).items()}
    {'n': [1.0, 1.0], 'n|rows': [2, -1]}
    """
    found: dict[str, Array] = {}
    for name in dict.fromkeys(chain.from_iterable(deltas)):
        parts = [delta.get(name) for delta in deltas]
        there = [part for part in parts if part is not None]
        if len({(part.dtype, part.ndim, part.shape[1:]) for part in there}) == 1 and there[0].ndim:
            found[name] = np.concatenate(there)
            rows = [-1 if part is None else len(part) for part in parts]
            found[name + BETWEEN + ROWS] = np.array(rows, np.int64)
        else:
            apart = {f"{name}{BETWEEN}{turn}": part for turn, part in enumerate(parts)}
            found |= {key: part for key, part in apart.items() if part is not None}
    return found


def parted(arrays: Mapping[str, Array], deltas: int) -> list[dict[str, Array]]:
    """The inverse of `joined`, of so many deltas.

    >>> parted(joined([{"n": np.ones(2)}, {}]), 2)
    [{'n': array([1., 1.])}, {}]
    """
    found: list[dict[str, Array]] = [{} for _ in range(deltas)]
    for key, array in arrays.items():
        name, _, which = key.rpartition(BETWEEN)
        if which == ROWS:
            ends = np.cumsum(np.maximum(array, 0))
            for delta, rows, end in zip(found, array.tolist(), ends.tolist(), strict=True):
                if rows >= 0:
                    delta[name] = arrays[name][end - rows : end]
        elif name and which.isdigit() and key + BETWEEN + ROWS not in arrays:
            found[int(which)][name] = array
    return found


# ---- the write-ahead log: one frame per commit

VERSION = 1
SEGMENT = "log-"
MORE = "more"  # in a record's head, if it is so
GROUP = "group"  # in the head of a frame of several records
T = TypeVar("T")


@dataclass(frozen=True)
class JobPosition:
    """How far a job has come: all that is needed to go on, besides the operator's state."""

    batch: int = 0  # micro-batches folded
    step: int = 0  # of the last one
    closed: bool = True  # whether it closed its step
    position: str | None = None  # where the source resumes
    rejected: dict[str, int] = field(default_factory=dict)  # rows by reason so far; operator-only


@dataclass(frozen=True)
class Until:
    """The end of the log that a checkpoint needs."""

    batch: int
    hash: str  # of all records until then


@dataclass(frozen=True, repr=False)  # secret: holds private state
class Record:
    """One committed micro-batch."""

    place: JobPosition  # after it
    delta: dict[str, Array]  # the changes of the operator's fold
    releases: tuple[Mark, ...] = ()  # of its step
    more: bool = False  # whether the next record is published with it: see `grouping`


def to_head(record: Record, owner: frame.Head) -> frame.Head:
    """The head of a record's frame; `owner` names the format and the job."""
    return {**owner, "batch": record.place.batch, **said_of(record)}


def said_of(record: Record) -> frame.Head:
    """All of a record but its delta."""
    marks = [list(vars(one).values()) for one in record.releases]
    more = {MORE: True} if record.more else {}
    return {"place": vars(record.place), "releases": marks, **more}


def to_frame(
    records: Sequence[Record], before: str, start: int = 0
) -> AbstractContextManager[list[memoryview]]:
    """The frame of records that begins at `start` in its file, after frames of a hash.

    Several records make one frame, which a crash leaves whole or not at all: its head is that of
    the last record, and holds those of all.
    """
    head, delta = to_head(records[-1], {frame.BEFORE: before}), records[-1].delta
    if len(records) > 1:
        head |= {GROUP: [said_of(record) for record in records]}
        delta = joined([record.delta for record in records])
    return frame.gathered(*frame.laid_out(head, delta), start=start)


def from_frame(read: frame.Frame) -> list[Record]:
    """The records of a frame."""
    heads = each_in(read.head)
    deltas = [read.arrays] if GROUP not in read.head else parted(read.arrays, len(heads))
    return [
        Record(JobPosition(**head["place"]), delta, tuple(marks), head.get(MORE, False))
        for head, delta, marks in zip(heads, deltas, map(marks_of, heads), strict=True)
    ]


def each_in(head: frame.Head) -> list[frame.Head]:
    """The head of each record in a frame's head."""
    heads: list[frame.Head] = head.get(GROUP, [head])
    return heads


def marks_of(head: frame.Head) -> list[Mark]:
    """The marks of releases in a frame's head."""
    return [Mark(*values) for one in each_in(head) for values in one["releases"]]


class Log:
    """The open log of one state directory. Every error of a write ends its use."""

    def __init__(self, directory: Path, epoch: str) -> None:
        self.directory = directory
        self.epoch = epoch
        self.size = 0  # bytes of the records after the last checkpoint
        self.hash = frame.first_hash(epoch)  # of all records so far
        self._end = 0  # of the open segment
        self._fd = -1

    def start(self, after: int) -> None:
        """Begins a segment and makes it durable; the log goes on there."""
        self.close()
        path = self.directory / f"{SEGMENT}{after:012d}"
        owner = {"version": VERSION, "epoch": self.epoch}
        head = {**owner, "after": after, frame.BEFORE: self.hash}
        disk.create(path, frame.encode(head, {}))
        with crash_only("open", path):
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            self._end = os.lseek(self._fd, 0, os.SEEK_END)
        self.size = 0

    def append(self, *records: Record) -> int:
        """Writes records, all or none, and makes them durable. Returns their size in bytes."""
        with (
            crash_only("write the log in", self.directory),
            to_frame(records, self.hash, self._end) as buffers,
        ):
            after = frame.chain(self.hash, buffers[0])
            size = write_all(self._fd, buffers)
            os.fdatasync(self._fd)
        self.hash = after
        self.size += size
        self._end += size
        return size

    def replay(self, after: int, until: Until | None = None) -> Iterator[Record]:
        """Every record after a batch, in order; then cuts a torn tail and opens for appending.

        All records up to `until` must be there, the same as at the checkpoint.
        """
        segments = needed(self.directory, after)
        start, end, batch = 0, 0, 0
        for part in linked(segments, self.epoch, whole_frames):
            start, end = part.offset, part.offset + part.size
            batch, self.hash = part.batch, part.hash
            part.require(until)
            if part.is_record and batch > after:
                self.size += part.size
                yield from from_frame(part.read)
        if batch < max(after, until.batch if until else 0):
            raise lost(self.directory, batch)
        self._resume(segments[-1][1], start, end)

    def _resume(self, path: Path, start: int, end: int) -> None:
        """Cuts what follows `end` and opens for appending.

        The last frame may come from a process that died before its fsync returned. Its bytes are
        written again in place, which changes nothing, and synced before anything is published.
        """
        with crash_only("repair", path):
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


def needed(directory: Path, after: int) -> list[tuple[int, Path]]:
    """The segments that hold what came after a batch, in order; StoreError if there are none.

    Some older ones may be left: a power failure may undo removals that were not yet durable.
    """
    segments = kept(directory)
    begun = [number for number, (first, _) in enumerate(segments) if first <= after]
    if not begun:
        raise lost(directory, after)
    return segments[begun[-1] :]


@dataclass(frozen=True, repr=False)  # secret: holds private state
class LogPart(Generic[T]):
    """A frame of the log: the first one of a segment, or a record."""

    path: Path
    offset: int
    size: int
    head: frame.Head
    batch: int  # records until here
    hash: str  # of these
    read: T

    @property
    def is_record(self) -> bool:
        """Whether it is a record: not the first frame of a segment."""
        return "batch" in self.head

    def require(self, until: Until | None) -> None:
        """Refuses a log other than the one at the checkpoint."""
        if until is not None and self.batch == until.batch and self.hash != until.hash:
            raise damaged(self.path)


Read = Callable[[BinaryIO], Iterator[tuple[int, frame.Head, bytes, int, T]]]


def linked(segments: list[tuple[int, Path]], epoch: str, read: Read[T]) -> Iterator[LogPart[T]]:
    """All frames of the log up to a torn tail, in the order of their chain; damage is refused.

    `read` gives offset, head, prefix, size and content of each frame of a file.
    """
    batch, known = -1, frame.first_hash(epoch)
    for first, path in segments:
        found = False
        for offset, head, prefix, size, content in frames_of(path, read, path != segments[-1][1]):
            if not offset:
                require_mine(path, head, VERSION, epoch)
                if batch < 0:  # what came before is behind a checkpoint
                    batch, known = first, head[frame.BEFORE] if first else known
                number = head["after"] if head["after"] == first else -1
            else:
                batch, number = batch + len(each_in(head)), head.get("batch")
            if number != batch or head.get(frame.BEFORE) != known:
                raise damaged(path)
            if offset:
                known = frame.chain(known, prefix)
            found = True
            yield LogPart(path, offset, size, head, batch, known, content)
        if not found:
            raise damaged(path)


def frames_of(
    path: Path,
    read: Read[T],
    must_be_whole: bool,  # noqa: FBT001
) -> Iterator[tuple[int, frame.Head, bytes, int, T]]:
    """The frames of a segment; a torn tail, where there may be one, is left out."""
    end = 0
    try:
        with crash_only("read", path), path.open("rb") as file:
            for found in read(file):
                yield found
                end = found[0] + found[3]
            if must_be_whole and end != os.fstat(file.fileno()).st_size:
                raise damaged(path)
    except frame.TornFrameError:
        raise damaged(path) from None


def whole_frames(file: BinaryIO) -> Iterator[tuple[int, frame.Head, bytes, int, frame.Frame]]:
    """Every frame with its body."""
    size, offset = os.fstat(file.fileno()).st_size, 0
    while offset < size:
        file.seek(offset)
        try:
            read = frame.read(file, size - offset)
        except frame.TornFrameError:
            frame.require_torn(file, offset)
            return
        yield offset, read.head, read.prefix, read.size, read
        offset += read.size


def heads_only(file: BinaryIO) -> Iterator[tuple[int, frame.Head, bytes, int, None]]:
    """Every frame without its body."""
    for offset, head, sizes in frame.heads(file):
        yield offset, head, sizes.prefix, sizes.frame, None


def lost(directory: Path, after: int) -> StoreError:
    """The error for missing records that a checkpoint needs."""
    return StoreError(
        f"the state directory '{directory.name}' has lost its log after batch {after}.\n"
        "  to fix  restore the whole directory from a backup of one moment"
    )


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
