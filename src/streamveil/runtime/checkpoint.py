"""Checkpoints: the whole state after one micro-batch, so that the log before it can be dropped.

`checkpoint-N` is a row of frames, each of whole blocks. The first has the place after batch N and
its releases as Arrow streams, since there is no log left to make them from and they may still have
to be published again. Then come the operator's arrays, in portions: what was copied at batch N,
and what was copied after later ones (`docs/decisions/0023-checkpoints-in-portions.md`). The last
says what it needs beside itself (`Needs`): the log up to some batch, and the archive of releases up
to its own batch, each by its length and its hash. The file appears under its name only when it is
durable, and so is all that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa

from streamveil.batch import Release
from streamveil.connectors.blocks import ROOM_BYTES, crash_only, room
from streamveil.core.noisy import restored
from streamveil.dataflow import Arrays, Operator
from streamveil.runtime import disk, formats, frame, wal
from streamveil.runtime.copy_buffer import CopyBuffer
from streamveil.runtime.tables import from_bytes, to_bytes
from streamveil.types import Array

VERSION = 1
CHECKPOINT = "checkpoint-"
PORTION_BYTES = 8 << 20  # arrays are put together up to this
Work = Callable[[], None]


class Behind(Protocol):
    """Does work in the background, in order; `after` also when it failed, or one before it did."""

    def __call__(self, work: Work, after: Work | None = None) -> None:
        """Takes a piece of work."""


@dataclass(frozen=True)
class Extent:
    """The archive of releases up to some moment."""

    releases: int  # how many, with those that were dropped since
    hash: str  # of these


@dataclass(frozen=True)
class Needs:
    """What must be there beside a checkpoint, and be what it was."""

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
        """What was released at its batch."""
        known = zip(self.tables, self.record.releases, strict=True)
        return tuple(
            Release(restored(table), one.window, one.trigger, one.step) for table, one in known
        )


class CheckpointDraft:
    """A checkpoint under way. What is added is copied at once and written behind."""

    def __init__(
        self, directory: Path, epoch: str, saved: Saved, behind: Behind,
        version: int = formats.FIRST,
    ) -> None:  # fmt: skip
        """`version`: of the operator."""
        self.bytes = 0
        self._directory, self._behind = directory, behind
        self._batch = saved.record.place.batch
        self._portions = 0
        self._file: disk.Unnamed | None = None
        self._hash = frame.first_hash(epoch)  # of all frames so far
        behind(partial(self._begin, epoch, saved, version))

    def _begin(self, epoch: str, saved: Saved, version: int) -> None:
        self._file = disk.Unnamed(self._directory / name(self._batch))
        owner = {"version": VERSION, "epoch": epoch, wal.OPERATOR: version}
        head = wal.to_head(saved.record, owner)
        with room(ROOM_BYTES + 2 * sum(table.nbytes for table in saved.tables)) as own:
            blobs = list[memoryview]()
            for table in saved.tables:
                blobs.append(to_bytes(table, own=own))
                own = own[len(blobs[-1]) :]
            self._write(head, {}, blobs)

    def add(self, arrays: Mapping[str, Array], copies: CopyBuffer) -> None:
        """Copies arrays, when there is room for them; what lies in a file is passed on as it is."""
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

        The log must be durable up to the batch after which something was added last.
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
        """Gives up what has no name yet; after all work behind."""
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
        raise wal.damaged(path) from None
    needs = checked(path, epoch, [(one.head, one.prefix) for one in frames])
    arrays = {name: array for one in frames[1:-1] for name, array in one.arrays.items()}
    version = frames[0].head.get(wal.OPERATOR, formats.FIRST)
    (head,) = wal.from_frame(frames[0], version)
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
    """The heads of all frames of a checkpoint, and what it needs. Arrays are not read."""
    try:
        with crash_only("read", path), path.open("rb") as file:
            found = [(head, sizes.prefix) for _, head, sizes in frame.heads(file)]
    except frame.TornFrameError:
        raise wal.damaged(path) from None
    return [head for head, _ in found], checked(path, epoch, found)


def checked(path: Path, epoch: str, found: Sequence[tuple[frame.Head, bytes]]) -> Needs:
    """What the last frame of a checkpoint says, if all are there in their order."""
    if not found:
        raise wal.damaged(path)
    first, last = found[0][0], found[-1][0]
    wal.require_mine(path, first, VERSION, epoch)
    known = frame.first_hash(epoch)
    for head, prefix in found:
        if head.get(frame.BEFORE) != known:
            raise wal.damaged(path)
        known = frame.chain(known, prefix)
    if last.get("portions") != len(found) - 2 or name(first.get("batch", -1)) != path.name:
        raise wal.damaged(path)
    archive = last["archive"]
    return Needs(wal.Until(**last["log"]), None if archive is None else Extent(**archive))


def kept(directory: Path) -> list[tuple[int, Path]]:
    """The checkpoints in order of their batch."""
    paths = directory.glob(f"{CHECKPOINT}*[0-9]")
    return sorted((int(path.name[len(CHECKPOINT) :]), path) for path in paths)


def name(batch: int) -> str:
    """The file of the checkpoint after a batch."""
    return f"{CHECKPOINT}{batch:012d}"


def grouped(arrays: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """The same arrays in portions of not many bytes, or of one array."""
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
# that a checkpoint may take; when that is over, what is left is copied even if the disk must be
# waited for, so that a restart never repeats more than the policy says.

SPREAD = 0.5  # of the patience with a log: what a checkpoint may take until its last portion
Portion = Callable[[], Arrays]  # as it is when it is asked for


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
        """Copies what is due when so much of the patience is gone since it began. Is it whole?"""
        share = used_up / SPREAD
        while self._left and (share >= 1 or self._all - len(self._left) < share * self._all):
            arrays = self._left[0]()
            if share < 1 and not self._copies.has_room(sum(one.nbytes for one in arrays.values())):
                return False
            self.draft.add(arrays, self._copies)
            del self._left[0]
        return not self._left


def portions(operator: Operator, state: Any) -> tuple[Arrays, list[Portion]]:
    """What must be saved at once, and what may be later: nothing, if the operator does not say."""
    named = getattr(operator, "portions", None)
    return named(state) if named is not None else (operator.save(state), [])
