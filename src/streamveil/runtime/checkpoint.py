"""Checkpoints: the whole state after one micro-batch, so that the log before it can be dropped.

`checkpoint-N` is one frame: the place after batch N, the operator's arrays and the releases of
batch N as Arrow streams, since there is no log left to make them from and they may still have to
be published again. It appears under its name only when durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from streamveil.batch import Release
from streamveil.runtime import disk, frame, wal
from streamveil.runtime.tables import from_bytes, to_bytes

VERSION = 3
CHECKPOINT = "checkpoint-"


@dataclass(frozen=True, repr=False)  # secret: holds private state
class Saved:
    """A checkpoint."""

    record: wal.Record  # of its batch, with the operator's whole state in place of the delta
    tables: tuple[pa.Table, ...] = ()  # its releases, one for each mark

    @property
    def releases(self) -> tuple[Release, ...]:
        """What was released at its batch."""
        known = zip(self.tables, self.record.releases, strict=True)
        return tuple(Release(table, one.window, one.trigger, one.step) for table, one in known)


def write(directory: Path, epoch: str, saved: Saved) -> int:
    """Makes a checkpoint durable, then removes what it replaces. Returns its bytes."""
    streams = [to_bytes(table) for table in saved.tables]
    buffers = wal.to_frame(saved.record, {"version": VERSION, "epoch": epoch}, streams)
    batch = saved.record.place.batch
    disk.create(directory / name(batch), buffers)
    old = [path for number, path in kept(directory) if number < batch]
    segments = wal.kept(directory)
    old += [path for (_, path), (after, _) in pairwise(segments) if after <= batch]
    disk.remove(old)
    return sum(map(len, buffers))


def read(directory: Path, epoch: str) -> Saved | None:
    """The newest checkpoint, or None before the first; raises when it is damaged."""
    paths = kept(directory)
    if not paths:
        return None
    _, path = paths[-1]
    try:
        with disk.crash_only("read", path), path.open("rb") as file:
            read = frame.read(file, path.stat().st_size, mapped=True)
    except frame.TornFrameError:
        raise wal.damaged(path) from None
    wal.require_mine(path, read.head, VERSION, epoch)
    return Saved(wal.from_frame(read), tuple(map(from_bytes, read.blobs)))


def kept(directory: Path) -> list[tuple[int, Path]]:
    """The checkpoints in order of their batch."""
    paths = directory.glob(f"{CHECKPOINT}*[0-9]")
    return sorted((int(path.name[len(CHECKPOINT) :]), path) for path in paths)


def name(batch: int) -> str:
    """The file of the checkpoint after a batch."""
    return f"{CHECKPOINT}{batch:012d}"
