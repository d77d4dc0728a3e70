"""Checkpoints: the whole state after one micro-batch, so that the log before it can be dropped.

`checkpoint-N` is one frame: the place after batch N, the operator's arrays and the releases of
batch N, which may still have to be published again. It appears under its name only when durable.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from streamveil.runtime import disk, frame, wal

VERSION = 1
CHECKPOINT = "checkpoint-"


def write(directory: Path, epoch: str, saved: wal.Record) -> int:
    """Makes a checkpoint durable, then removes what it replaces. Returns its bytes.

    `saved` is the record of the batch, with the operator's whole state in place of its delta.
    """
    buffers = wal.to_frame(saved, {"version": VERSION, "epoch": epoch})
    disk.create(directory / name(saved.place.batch), buffers)
    old = [path for batch, path in kept(directory) if batch < saved.place.batch]
    segments = wal.kept(directory)
    old += [path for (_, path), (after, _) in pairwise(segments) if after <= saved.place.batch]
    disk.remove(old)
    return sum(map(len, buffers))


def read(directory: Path, epoch: str) -> wal.Record | None:
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
    return wal.from_frame(read)


def kept(directory: Path) -> list[tuple[int, Path]]:
    """The checkpoints in order of their batch."""
    paths = directory.glob(f"{CHECKPOINT}*[0-9]")
    return sorted((int(path.name[len(CHECKPOINT) :]), path) for path in paths)


def name(batch: int) -> str:
    """The file of the checkpoint after a batch."""
    return f"{CHECKPOINT}{batch:012d}"
