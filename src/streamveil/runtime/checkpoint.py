"""Checkpoints: the whole state after one micro-batch, so that the log before it can be dropped.

`checkpoint-N` is a row of frames, each of whole blocks. The first has the place after batch N and
its releases as Arrow streams, since there is no log left to make them from and they may still have
to be published again. Then come the operator's arrays, in portions: those copied at batch N, and
those copied after later batches (`docs/decisions/0023-checkpoints-in-portions.md`). The last frame
lists what the checkpoint needs besides itself (`Needs`): the log up to some batch, and the archive
of releases up to its own batch, each by its length and its hash. The file appears under its name
only when the checkpoint and all that it needs are durable.

Copies of the state pass through a buffer on their way to a checkpoint.

Memory that a process has never touched costs the kernel a fault and a cleared page: many times the
copy itself. So all copies pass through the same few pages, one after the other. If there is no
room, a copy waits until the oldest one has been written.
"""

from __future__ import annotations

import mmap
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Condition
from typing import IO, Any, BinaryIO, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from streamveil import disk
from streamveil.batch import Release
from streamveil.core.noisy import restored
from streamveil.dataflow import Arrays, Operator
from streamveil.disk import (
    BLOCK,
    OWN,
    ROOM_BYTES,
    advise,
    crash_only,
    crc32,
    in_scratch,
    room,
    to_block,
)
from streamveil.errors import StoreError
from streamveil.runtime import formats, frame, wal
from streamveil.runtime.frame import padded, padding, put
from streamveil.runtime.tables import from_bytes, to_bytes
from streamveil.types import Array

SIZE = 32 << 20  # bytes in use at once, unless a single copy is larger
ROOM_TO_GROW = 4  # bytes reserved per byte needed; untouched pages take no memory


class Copy(NamedTuple):
    """A copy and its checksum, which is taken while it is in the cache."""

    data: memoryview
    crc: int


class CopyBuffer:
    """Copies lie one after the other, and are given back in the order in which they were made."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._room = mmap.mmap(-1, mmap.PAGESIZE, OWN)
        self._used = deque[tuple[int, int]]()  # first and last byte of each copy, in order
        self._changed = Condition()

    def has_room(self, size: int) -> bool:
        """Whether a copy of so many bytes would not have to wait."""
        with self._changed:
            return self._start(size + BLOCK) is not None

    def copy(self, parts: Sequence[memoryview]) -> Copy:
        """All parts, each padded as in a frame, with zeros up to the end of a block."""
        size = needed(parts)
        with self._changed:
            self._changed.wait_for(lambda: self._start(size) is not None)
            start = self._start(size) or 0
            self._used.append((start, start + size))
        room = memoryview(self._room)[start : start + size]
        into = np.frombuffer(room, np.uint8)
        at, crc = put(padded(parts), into)
        into[at:] = 0
        return Copy(room, crc32(room[at:], crc))

    def give_back(self) -> None:
        """The oldest copy is not needed any more."""
        with self._changed:
            self._used.popleft()
            self._changed.notify()

    def _start(self, size: int) -> int | None:
        """Where a copy may lie now; None: nowhere yet."""
        if not self._used:
            self._reserve(size)
            return 0
        first, end = self._used[0][0], self._used[-1][1]
        if end <= first:  # the latest copies lie before the oldest
            return end if end + size <= first else None
        if end + size <= self._size:
            return end
        return 0 if size <= first else None

    def _reserve(self, size: int) -> None:
        """Makes the buffer large enough; only while nothing lies in it."""
        self._size = max(self._size, size)
        if len(self._room) < self._size:
            self._room = reserved(self._size)
            advise(self._room)


def needed(parts: Sequence[memoryview]) -> int:
    """Bytes of a copy, whole blocks."""
    size = sum(len(part) + padding(len(part)) for part in parts)
    return max(BLOCK, size + to_block(size))


def reserved(size: int) -> mmap.mmap:
    """Memory of a size, and room to grow where the system grants it."""
    try:
        return mmap.mmap(-1, size * ROOM_TO_GROW, OWN)
    except OSError:
        return mmap.mmap(-1, size, OWN)


# ---- a buffer of tables that may outgrow memory

SPILL_BYTES = 1 << 26  # beyond this size, tables move to an anonymous temporary file


class SpillBuffer:
    """Tables in the order in which they were added.

    >>> buffer = SpillBuffer()
    >>> buffer.add(pa.table({"n": [1]}))
    >>> [table.num_rows for table in buffer]
    [1]
    """

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add(self, table: pa.Table) -> None:
        """Puts a table on the buffer."""
        self._tables.append(table)
        self._bytes += table.nbytes
        if self._bytes > SPILL_BYTES:
            self._spill()

    def _spill(self) -> None:
        with in_scratch("set rows aside"):
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="streamveil-")  # noqa: SIM115
                self._writer = pa.ipc.new_stream(self._file, self._tables[0].schema)
            for table in self._tables:
                self._writer.write_table(table)
        self._tables, self._bytes = [], 0

    def __iter__(self) -> Iterator[pa.Table]:
        """All tables; none can be added after."""
        if self._file is not None:
            with in_scratch("set rows aside"):
                self._writer.close()
                self._file.seek(0)
            for batch in pa.ipc.open_stream(self._file):
                yield pa.Table.from_batches([batch])
        yield from self._tables


VERSION = 1
CHECKPOINT = "checkpoint-"
PORTION_BYTES = 8 << 20  # small arrays are grouped up to this size
Work = Callable[[], None]
T = TypeVar("T")


class Behind(Protocol):
    """Does work in the background, in order; then `after`, even if this work or earlier failed."""

    def __call__(self, work: Work, after: Work | None = None) -> None:
        """Takes a piece of work."""


@dataclass(frozen=True)
class Extent:
    """The archive of releases up to some moment."""

    releases: int  # how many, including those dropped since
    hash: str  # of these


@dataclass(frozen=True)
class Needs:
    """The files that a checkpoint needs besides itself, unchanged."""

    log: wal.Until
    archive: Extent | None  # None: releases are kept by the sink alone


@dataclass(frozen=True, repr=False)  # secret: holds private state
class Saved:
    """A checkpoint."""

    record: wal.Record  # of its batch, with the operator's whole state in place of the delta
    tables: tuple[pa.Table, ...] = ()  # its releases, one for each mark
    needs: Needs | None = None  # None: not yet known

    @property
    def releases(self) -> tuple[Release, ...]:
        """The releases of its batch."""
        known = zip(self.tables, self.record.releases, strict=True)
        return tuple(
            Release(restored(table), one.window, one.trigger, one.step) for table, one in known
        )


class CheckpointDraft:
    """A checkpoint under way. Arrays are copied at once and written in the background."""

    def __init__(self, directory: Path, epoch: str, saved: Saved, behind: Behind) -> None:
        self.bytes = 0
        self._directory, self._behind = directory, behind
        self._batch = saved.record.place.batch
        self._portions = 0
        self._file: disk.Unnamed | None = None
        self._hash = frame.first_hash(epoch)  # of all frames so far
        behind(partial(self._begin, epoch, saved))

    def _begin(self, epoch: str, saved: Saved) -> None:
        self._file = disk.Unnamed(self._directory / name(self._batch))
        head = wal.to_head(saved.record, {"version": VERSION, "epoch": epoch})
        with room(ROOM_BYTES + 2 * sum(table.nbytes for table in saved.tables)) as own:
            blobs = list[memoryview]()
            for table in saved.tables:
                blobs.append(to_bytes(table, own=own))
                own = own[len(blobs[-1]) :]
            self._write(head, {}, blobs)

    def add(self, arrays: Mapping[str, Array], copies: CopyBuffer) -> None:
        """Copies arrays, waiting for room; arrays that are maps of a file are not copied."""
        for portion in grouped(arrays):
            number, self._portions = self._portions, self._portions + 1
            if any(map(on_disk, portion.values())):
                kept = {k: held if on_disk(held) else held.copy() for k, held in portion.items()}
                self._behind(partial(self._write, {"portion": number}, kept))
            else:
                layout, parts = frame.pack(portion)
                copy = copies.copy(parts)
                rest = len(copy.data) - sum(len(part) + frame.padding(len(part)) for part in parts)
                head = {"portion": number, "arrays": layout, "blobs": [rest]}
                self._behind(partial(self._put, head, [copy.data], copy.crc), copies.give_back)

    def finish(self, needs: Needs) -> None:
        """Gives the file its name, once it is durable, and removes what it replaces.

        The log must be durable up to the batch after which the last array was added.
        """
        self._behind(partial(self._finish, needs))

    def _finish(self, needs: Needs) -> None:
        self._write({"portions": self._portions, **asdict(needs)}, {})
        assert self._file is not None  # noqa: S101  (begin came first)
        self._file.name()
        old = [path for number, path in kept(self._directory) if number < self._batch]
        segments = wal.kept(self._directory)
        old += [path for (_, path), (after, _) in pairwise(segments) if after <= self._batch]
        disk.remove(old)

    def _write(
        self, head: frame.Head, arrays: dict[str, Array], blobs: Sequence[frame.Buffer] = ()
    ) -> None:
        self._put(*frame.laid_out(head, arrays, blobs))

    def _put(self, head: frame.Head, body: list[memoryview], crc: int | None = None) -> None:
        assert self._file is not None  # noqa: S101  (begin came first)
        buffers = frame.seal({**head, frame.BEFORE: self._hash}, body, crc, large=0)
        self._hash = frame.chain(self._hash, buffers[0])
        self.bytes += self._file.write(buffers)

    def close(self) -> None:
        """Gives up an unfinished file, after all background work."""
        if self._file is not None:
            self._file.close()


def read(directory: Path, epoch: str) -> Saved | None:
    """The newest checkpoint, or None before the first; raises when it is damaged."""
    paths = kept(directory)
    if not paths:
        return None
    _, path = paths[-1]
    try:
        with crash_only("read", path), path.open("rb") as file:
            frames = list(frames_of(path, file))
    except frame.TornFrameError:
        raise formats.damaged(path) from None
    needs = checked(path, epoch, [(one.head, one.prefix) for one in frames])
    arrays = {name: array for one in frames[1:-1] for name, array in one.arrays.items()}
    (head,) = wal.from_frame(frames[0])
    record = replace(head, delta=arrays)
    return Saved(record, tuple(map(from_bytes, frames[0].blobs)), needs)


def frames_of(path: Path, file: BinaryIO) -> Iterator[frame.Frame]:
    """All frames of a file."""
    left = path.stat().st_size
    while left:
        read = frame.read(file, left, mapped=True)
        yield read
        left -= read.size


def heads_of(path: Path, epoch: str) -> tuple[list[frame.Head], Needs]:
    """The heads of all frames of a checkpoint, and its `Needs`. Arrays are not read."""
    try:
        with crash_only("read", path), path.open("rb") as file:
            found = [(head, sizes.prefix) for _, head, sizes in frame.heads(file)]
    except frame.TornFrameError:
        raise formats.damaged(path) from None
    return [head for head, _ in found], checked(path, epoch, found)


def checked(path: Path, epoch: str, found: Sequence[tuple[frame.Head, bytes]]) -> Needs:
    """The `Needs` in the last frame of a checkpoint, if all frames are there in order."""
    if not found:
        raise formats.damaged(path)
    first, last = found[0][0], found[-1][0]
    wal.require_mine(path, first, VERSION, epoch)
    known = frame.first_hash(epoch)
    for head, prefix in found:
        if head.get(frame.BEFORE) != known:
            raise formats.damaged(path)
        known = frame.chain(known, prefix)
    if last.get("portions") != len(found) - 2 or name(first.get("batch", -1)) != path.name:
        raise formats.damaged(path)
    archive = last["archive"]
    return Needs(wal.Until(**last["log"]), None if archive is None else Extent(**archive))


def kept(directory: Path) -> list[tuple[int, Path]]:
    """The checkpoints in order of their batch."""
    paths = directory.glob(f"{CHECKPOINT}*[0-9]")
    return sorted((int(path.name[len(CHECKPOINT) :]), path) for path in paths)


def at_one_moment(directory: Path, read: Callable[[list[tuple[int, Path]]], T]) -> T:
    """Reads checkpoints and log as of one moment, while a job may be running.

    A job cuts its log after it has made a new checkpoint: then both are read again.
    """
    while True:
        saved = kept(directory)
        try:
            found = read(saved)
        except (StoreError, FileNotFoundError):
            if kept(directory) == saved:
                raise
        else:
            if kept(directory) == saved:
                return found


def name(batch: int) -> str:
    """The file of the checkpoint after a batch."""
    return f"{CHECKPOINT}{batch:012d}"


def grouped(arrays: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """The same arrays in portions of few bytes, or of one array."""
    portion, size = dict[str, Array](), 0
    for key, array in arrays.items():
        if portion and size + array.nbytes > PORTION_BYTES:
            yield portion
            portion, size = {}, 0
        portion[key] = array
        size += array.nbytes
    if portion:
        yield portion


def on_disk(array: Array) -> bool:
    """Whether an array is a read-only map of a file, which the operator will not change."""
    return isinstance(array, np.memmap) and not array.flags.writeable


# ---- a checkpoint in portions
#
# An operator may name portions of its state that can be saved at a later micro-batch than the rest
# (`Operator.portions`). They are copied one after the other, so that no micro-batch waits for a
# copy of everything and the copies pass through little memory. Each is due at its share of the time
# that a checkpoint may take; when that is over, the rest is copied even if that means waiting for
# the disk, so that a restart never repeats more than the policy says.

SPREAD = 0.5  # a checkpoint may take this part of the patience with a log until its last portion
Portion = Callable[[], Arrays]  # as it is when called


class IncrementalCheckpoint:
    """A checkpoint under way."""

    def __init__(
        self, draft: CheckpointDraft, operator: Operator, state: Any, copies: CopyBuffer
    ) -> None:
        self.draft, self._copies = draft, copies
        now, self._left = portions(operator, state)
        self._all = len(self._left)
        self.draft.add(now, copies)

    def go_on(self, used_up: float) -> bool:
        """Copies portions due when so much of the patience is used up. Returns whether all are."""
        share = used_up / SPREAD
        while self._left and (share >= 1 or self._all - len(self._left) < share * self._all):
            arrays = self._left[0]()
            if share < 1 and not self._copies.has_room(sum(one.nbytes for one in arrays.values())):
                return False
            self.draft.add(arrays, self._copies)
            del self._left[0]
        return not self._left


def portions(operator: Operator, state: Any) -> tuple[Arrays, list[Portion]]:
    """The arrays to save at once, and portions for later: none if the operator names none."""
    named = getattr(operator, "portions", None)
    return named(state) if named is not None else (operator.save(state), [])
