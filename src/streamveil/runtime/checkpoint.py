"""Checkpoints: the whole state after one micro-batch, so that the log before it can be dropped.

`checkpoint-N` is a row of frames, each of whole blocks. The first has the place after batch N and
its releases as Arrow streams, since there is no log left to make them from and they may still have
to be published again. Then come the operator's arrays, in portions: what was copied at batch N,
and what was copied after later ones (`docs/decisions/0023-checkpoints-in-portions.md`). The last
says how many there are and up to which batch the log must be there. The file appears under its name
only when it is durable, and so is that batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from streamveil.batch import Release
from streamveil.connectors.blocks import ROOM_BYTES, room
from streamveil.runtime import disk, frame, wal
from streamveil.runtime.ring import Ring
from streamveil.runtime.tables import from_bytes, to_bytes
from streamveil.types import Array

VERSION = 5
CHECKPOINT = "checkpoint-"
PORTION_BYTES = 8 << 20  # arrays are put together up to this
Work = Callable[[], None]


class Behind(Protocol):
    """Does work in the background, in order; `after` also when it failed, or one before it did."""

    def __call__(self, work: Work, after: Work | None = None) -> None:
        """Takes a piece of work."""


@dataclass(frozen=True, repr=False)  # secret: holds private state
class Saved:
    """A checkpoint."""

    record: wal.Record  # of its batch, with the operator's whole state in place of the delta
    tables: tuple[pa.Table, ...] = ()  # its releases, one for each mark
    until: int = 0  # the log must be there up to this batch

    @property
    def releases(self) -> tuple[Release, ...]:
        """What was released at its batch."""
        known = zip(self.tables, self.record.releases, strict=True)
        return tuple(Release(table, one.window, one.trigger, one.step) for table, one in known)


class Draft:
    """A checkpoint under way. What is added is copied at once and written behind."""

    def __init__(self, directory: Path, epoch: str, saved: Saved, behind: Behind) -> None:
        self.bytes = 0
        self._directory, self._behind = directory, behind
        self._batch = saved.record.place.batch
        self._portions = 0
        self._file: disk.Unnamed | None = None
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

    def add(self, arrays: Mapping[str, Array], ring: Ring) -> None:
        """Copies arrays, when there is room for them; what lies in a file is passed on as it is."""
        for portion in grouped(arrays):
            number, self._portions = self._portions, self._portions + 1
            if any(map(on_disk, portion.values())):
                kept = {k: held if on_disk(held) else held.copy() for k, held in portion.items()}
                self._behind(partial(self._write, {"portion": number}, kept))
            else:
                layout, parts = frame.pack(portion)
                copy = ring.copy(parts)
                rest = len(copy.data) - sum(len(part) + frame.padding(len(part)) for part in parts)
                head = {"portion": number, "arrays": layout, "blobs": [rest]}
                self._behind(partial(self._put, head, [copy.data], copy.crc), ring.give_back)

    def finish(self, until: int) -> None:
        """Gives the file its name, once it is durable, and removes what it replaces.

        The log must be durable up to `until`, the batch after which something was added last.
        """
        self._behind(partial(self._finish, until))

    def _finish(self, until: int) -> None:
        self._write({"portions": self._portions, "until": until}, {})
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
        self.bytes += self._file.write(frame.seal(head, body, crc, large=0))

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
        with disk.crash_only("read", path):
            frames = list(frames_of(path, epoch))
    except frame.TornFrameError:
        raise wal.damaged(path) from None
    first, *portions, last = frames if len(frames) > 1 else 2 * frames
    numbers = [one.head.get("portion") for one in portions]
    if numbers != list(range(last.head.get("portions", -1))):
        raise wal.damaged(path)
    arrays = {name: array for one in portions for name, array in one.arrays.items()}
    record = replace(wal.from_frame(first), delta=arrays)
    return Saved(record, tuple(map(from_bytes, first.blobs)), last.head["until"])


def frames_of(path: Path, epoch: str) -> Iterator[frame.Frame]:
    """All frames of a file that is this job's."""
    with path.open("rb") as file:
        size = left = path.stat().st_size
        while left:
            read = frame.read(file, left, mapped=True)
            if left == size:
                wal.require_mine(path, read.head, VERSION, epoch)
            yield read
            left -= read.size


def heads_of(path: Path) -> list[frame.Head]:
    """The heads of all frames of a checkpoint."""
    with disk.crash_only("read", path), path.open("rb") as file:
        return [head for _, head, _ in frame.heads(file)]


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
