"""Power loss, simulated: what a disk may hold when nothing but completed syncs can be relied on.

A recorder stands before every call through which durable files change. It knows what each sync has
made durable: the bytes of a file, the names in a directory. Whatever came after may have reached
the disk or not, in any order: of a file's blocks written since its last sync any subset, with the
size of before or after or between; of a directory's links, renames and removals since its last sync
any subset. `image` draws one such disk. Syncing a file does not make its name durable, and a rename
may overtake the data of the file it names: stricter than the file systems in use.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tests.crash.faults import OTHERS, SYNCS, WRITES

Omitted = Literal["none", "log", "files", "directories"]
REAL_FSYNC = os.fsync


@dataclass(frozen=True)
class Power:
    """How a life is recorded: where images go, how many, and which syncs count for nothing."""

    images: str
    seed: int
    each: int = 3  # images per moment
    every: int = 1  # calls between two moments
    omitted: Omitted = "none"


@dataclass
class Folder:
    """The names of one directory: what is durable, and what has happened since."""

    durable: dict[str, int] = field(default_factory=dict)  # name -> inode
    now: dict[str, int] = field(default_factory=dict)
    since: list[tuple[str, str, int]] = field(default_factory=list)  # (old name, name, inode)


class Recorder:
    """Everything below a root. Holds every file open, so that no inode number is used twice."""

    def __init__(self, root: Path, power: Power) -> None:
        self.root, self.power = root, power
        self.rng = np.random.default_rng(power.seed)
        self.folders: dict[int, Folder] = {}
        self.handles: dict[int, int] = {}
        self.calls = self.made = 0
        self.lock = threading.Lock()
        self._look(root)
        for folder in self.folders.values():  # what is there from the start is durable
            folder.durable, folder.since = dict(folder.now), []
        self.durable = {inode: self._content(inode) for inode in self.handles}

    def _look(self, path: Path) -> None:
        folder = self.folders.setdefault(path.stat().st_ino, Folder())
        names: dict[str, int] = {}
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
            names[entry.name] = entry.inode()
            if entry.is_dir():
                self._look(Path(entry.path))
            elif entry.inode() not in self.handles:
                self.handles[entry.inode()] = os.open(entry.path, os.O_RDONLY)
        old = folder.now
        gone = {name: inode for name, inode in old.items() if names.get(name) != inode}
        for name in [name for name in names if old.get(name) != names[name]]:
            source = next((n for n, inode in gone.items() if inode == names[name]), "")
            gone.pop(source, None)
            gone.pop(name, None)
            folder.since.append((source, name, names[name]))
        folder.since += [(name, "", inode) for name, inode in gone.items()]
        folder.now = names

    def synced(self, name: str, fd: int) -> None:
        """After a sync has returned."""
        self._look(self.root)
        status = os.fstat(fd)
        kind = "directories" if stat.S_ISDIR(status.st_mode) else "files"
        if self.power.omitted in (kind, "log" if name == "fdatasync" else ""):
            return
        if kind == "directories":
            folder = self.folders.get(status.st_ino)
            if folder is not None:
                folder.durable, folder.since = dict(folder.now), []
        elif status.st_ino in self.handles:
            self.durable[status.st_ino] = self._content(status.st_ino)

    def _content(self, inode: int) -> bytes:
        handle = self.handles[inode]
        return os.pread(handle, os.fstat(handle).st_size, 0)

    def moment(self) -> None:
        """Before a call: draws what the disk could hold if the power went now."""
        self.calls += 1
        if self.calls % self.power.every:
            return
        self._look(self.root)
        for _ in range(self.power.each):
            target = Path(self.power.images) / f"{self.made:05d}"
            self.made += 1
            target.mkdir(parents=True)
            self._draw(self.root.stat().st_ino, target / "disk")
            seen = [path.stem for path in (self.root / "out").rglob("trigger=*.json")]
            visible = max((int(name.split("=")[1]) for name in seen), default=0)
            (target / "about").write_text(json.dumps({"call": self.calls, "visible": visible}))

    def _draw(self, inode: int, target: Path) -> None:
        if inode not in self.folders:
            target.write_bytes(self._file(inode))
            target.chmod(os.fstat(self.handles[inode]).st_mode & 0o777)
            return
        target.mkdir(mode=0o700)
        folder = self.folders[inode]
        names = dict(folder.durable)
        for (old, new, held), kept in zip(folder.since, self._some(len(folder.since)), strict=True):
            if kept:
                names.pop(old, None)
                if new:
                    names[new] = held
        for name, held in names.items():
            self._draw(held, target / name)

    def _file(self, inode: int) -> bytes:
        """Durable bytes, with any of the blocks written since."""
        old, new = self.durable.get(inode, b""), self._content(inode)
        block = int(self.rng.choice([64, 512]))
        sizes = sorted((len(old), len(new)))
        size = int(self.rng.choice([*sizes, self.rng.integers(sizes[0], sizes[1] + 1)]))
        made = bytearray(old[:size].ljust(size, b"\0"))
        starts = range(0, min(size, len(new)), block)
        for start, kept in zip(starts, self._some(len(starts)), strict=True):
            if kept:
                end = min(start + block, size, len(new))
                made[start:end] = new[start:end]
        return bytes(made)

    def _some(self, n: int) -> list[bool]:
        """All, none, some from the start, or any subset."""
        way = self.rng.integers(4)
        if way < 2:
            return [bool(way)] * n
        first = int(self.rng.integers(n + 1))
        return [bool(i < first if way == 2 else self.rng.integers(2)) for i in range(n)]


def record(root: Path, power: Power) -> Recorder:
    """Puts a recorder before every call that changes durable files below a root."""
    recorder = Recorder(root, power)

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            with recorder.lock:
                recorder.moment()
                done = real(*arguments, **named)
                if name in SYNCS:
                    recorder.synced(name, arguments[0])
                return done

        return call

    for name in WRITES + SYNCS + OTHERS:
        setattr(os, name, watched(name, getattr(os, name)))
    return recorder
