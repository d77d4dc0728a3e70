"""Replicas of shards: one file each, mapped by whichever worker of an executor runs the task.

Spark gives a shard's task to any of its Python workers, and ends workers that were idle for a
minute. A state held by one worker would be lost or stale at most steps. A state in a mapped file is
there for all of them, is changed in place, and costs a step only the pages it touches. The kernel
may write pages out and drop them as it does with any file.

A replica is never the authority. Before it is changed it is made unreadable; when all is written it
becomes readable again, with its new version and tag. A task that finds no replica reads the
storage. Replicas lie in the executor's own local folder, beside its shuffle files; Spark makes this
folder anew at every start and removes it at the end. Replicas that a killed Spark left there, or
that a long session no longer uses, are deleted a day after their last use, when the next replica is
opened.

They are a cache: a full or read-only disk costs time and fails no task.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamveil.dataflow.raw_memory import address
from streamveil.types import Array, UInt8

FOLDERS = "SPARK_LOCAL_DIRS"  # which Spark sets for its Python workers
WANTED = "STREAMVEIL_REPLICAS"  # 'off': none, for executors whose disks must not hold state
ALIGNMENT = 64
SPARE = 0.05  # of the disk stays free
UNUSED = 86_400  # seconds after which an unused replica is deleted
PAUSE = 3600  # seconds between two searches for unused replicas
SWEPT: dict[Path, float] = {}  # when this process last searched a folder
BLOCKS = "blockmgr-"  # prefix of the names of executors' local folders
LOCK = ".lock"
LOOSE = 64 << 20  # bytes that may be unused, in addition to as many as are used


class Stamp(NamedTuple):
    """The version that a replica holds."""

    version: int
    tag: int
    logged: int  # bytes of the deltas since its last base
    links: int  # how many deltas there are since that base


@dataclass
class Replica:
    """One shard's replica, locked by this task."""

    path: Path
    lock: int  # a file descriptor
    whole: UInt8[Array, " bytes"] | None = None  # the mapped file

    @classmethod
    def of(cls, name: str) -> Replica | None:
        """The replica of a shard, unless another task has it or there is no folder for it."""
        with contextlib.suppress(OSError):
            folder = folder_of(os.environ.get(FOLDERS, ""))
            if folder is not None:
                sweep(folder)
                return cls._locked(folder / name)
        return None

    @classmethod
    def _locked(cls, path: Path) -> Replica | None:
        place = path.with_name(path.name + LOCK)
        lock = os.open(place, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_ino == place.stat().st_ino:  # else it was just deleted
                os.utime(lock)
                return cls(path, lock)
        except OSError:
            pass
        os.close(lock)
        return None

    def take(self) -> tuple[Stamp, dict[str, Array]] | None:
        """The replica's state, to be changed in place; from now on no other task finds it."""
        label = self.path.with_suffix(".json")
        try:
            stamp, layout = json.loads(label.read_text())
            places = [ArrayPlace(*entry) for entry in layout]
            label.unlink()
            with self.path.open("r+b") as file:
                self.whole = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
        except (OSError, ValueError):
            return None
        return Stamp(*stamp), {place.name: place.within(self.whole) for place in places}

    def give(self, stamp: Stamp, arrays: dict[str, Array]) -> None:
        """Makes a state readable: mapped arrays stay where they are, others are copied."""
        try:
            self._write(stamp, arrays)
        except OSError:
            self.forget()

    def forget(self) -> None:
        """Deletes the replica; the next task reads the storage."""
        for name in (".json", ".partial", ""):
            with contextlib.suppress(OSError):
                self.path.with_name(self.path.name + name).unlink()

    def _write(self, stamp: Stamp, arrays: dict[str, Array]) -> None:
        kept, new = self._sorted(arrays)
        used = sum(place.size for place in kept) + sum(array.nbytes for _, array in new)
        if self.whole is not None and len(self.whole) > 2 * used + LOOSE:
            kept, new = [], [(name, array.copy()) for name, array in arrays.items()]
            self.whole = None
        if self.whole is None:
            self.path.unlink(missing_ok=True)
        made = placed(kept, new, 0 if self.whole is None else len(self.whole))
        with os.fdopen(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600), "r+b") as file:
            if not reserve(file.fileno(), max((p.start + p.size for p in made), default=1)):
                self.path.unlink()
                return
            for place, (_, array) in zip(made[len(kept) :], new, strict=True):
                write_at(file.fileno(), place.start, array)
        label = self.path.with_suffix(".json")
        partial = label.with_suffix(".partial")
        partial.write_text(json.dumps([stamp, made]))
        partial.replace(label)

    def _sorted(self, arrays: dict[str, Array]) -> tuple[list[ArrayPlace], list[tuple[str, Array]]]:
        """Arrays that lie in the mapped file, and all others, which then do not overlap it."""
        kept: list[ArrayPlace] = []
        new: list[tuple[str, Array]] = []
        start, size = (0, 0) if self.whole is None else (address(self.whole), len(self.whole))
        for name, array in arrays.items():
            at = address(array) - start
            inside = 0 <= at < size
            if inside and array.flags.c_contiguous and array.size:
                kept.append(ArrayPlace(name, array.dtype.str, array.shape, at, array.nbytes))
            else:
                whole = array.flags.c_contiguous and not inside
                new.append((name, array if whole else array.copy()))
        return kept, new

    def close(self) -> None:
        """Releases the replica for other tasks."""
        self.whole = None
        os.close(self.lock)

    @classmethod
    def delete(cls, path: Path) -> None:
        """Deletes a replica with its lock, unless a task has it."""
        found = cls._locked(path)
        if found is not None:
            found.forget()
            with contextlib.suppress(OSError):
                path.with_name(path.name + LOCK).unlink()
            found.close()


class ArrayPlace(NamedTuple):
    """Where an array lies in a replica."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int

    def within(self, whole: UInt8[Array, " bytes"]) -> Array:
        """The array itself."""
        part = whole[self.start : self.start + self.size]
        return part.view(self.dtype).reshape(self.shape)


def placed(kept: list[ArrayPlace], new: list[tuple[str, Array]], size: int) -> list[ArrayPlace]:
    """Finds room for new arrays between the kept ones, or behind the first `size` bytes."""
    gaps, end = [], 0
    for place in sorted(kept, key=lambda p: p.start):
        gaps.append([end, place.start])
        end = max(end, aligned(place.start + place.size))
    gaps.append([end, size])
    made, last = list(kept), max(aligned(size), end)
    for name, array in new:
        wanted = aligned(array.nbytes)
        gap = next((gap for gap in gaps if gap[1] - gap[0] >= wanted), None)
        if gap is None:
            start, last = last, last + wanted
        else:
            start, gap[0] = gap[0], gap[0] + wanted
        made.append(ArrayPlace(name, array.dtype.str, array.shape, start, array.nbytes))
    return made


def aligned(size: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def reserve(file: int, size: int) -> bool:
    """Reserves disk space, so that every mapped page can be written; False if space is scarce."""
    disk, has = os.fstatvfs(file), os.fstat(file).st_size
    if size <= has:
        return True
    if disk.f_bavail * disk.f_frsize - (size - has) < SPARE * disk.f_blocks * disk.f_frsize:
        return False
    try:
        os.posix_fallocate(file, 0, size)
    except (OSError, AttributeError):  # a full disk; a system without the call
        return False
    return True


def write_at(file: int, start: int, array: Array) -> None:
    """Copies an array into a file."""
    data = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
    while len(data):
        done = os.pwrite(file, data, start)
        data, start = data[done:], start + done


def sweep(folder: Path) -> None:
    """Deletes replicas unused for a day, here and in the folders of killed executors."""
    now = time.time()  # noqa: TID251  (dates of files)
    if now < SWEPT.get(folder, 0) + PAUSE:
        return
    SWEPT[folder] = now
    others = folder.parent.parent.glob(f"{BLOCKS}*/{folder.name}")
    for place in (folder, *(place for place in others if ours(place.parent) and ours(place))):
        for lock in place.glob(f"*-*-*{LOCK}"):
            with contextlib.suppress(OSError):
                if lock.lstat().st_mtime < now - UNUSED:
                    Replica.delete(lock.with_name(lock.name.removesuffix(LOCK)))


def ours(folder: Path) -> bool:
    """Whether we made a folder: others may write beside ours, and link elsewhere."""
    facts = folder.lstat()
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()


def forget(job: str) -> None:
    """Deletes the replicas of a job from this executor."""
    with contextlib.suppress(OSError):
        folder = folder_of(os.environ.get(FOLDERS, ""))
        for lock in folder.glob(f"{job}-*{LOCK}") if folder else ():
            Replica.delete(lock.with_name(lock.name.removesuffix(LOCK)))


def folder_of(local: str) -> Path | None:
    """The folder of replicas, given the local folders of an executor."""
    first = local.partition(",")[0]
    if os.environ.get(WANTED) == "off" or not first or not Path(first).is_dir():
        return None
    folder = Path(first) / "streamveil"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
