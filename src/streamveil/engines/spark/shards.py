"""Versioned state of shards on storage that all executors reach: a directory or an object store.

A shard's version is a base, which holds all of it, or a delta, which holds what one step did to the
version before it, or both. Files are written whole under a name that tells their version, and never
change: a task that runs twice writes the same deltas, and bases that mean the same. Version i is
read only by step i + 1, and all it is made of is kept until step i + 1 is published, so a replay
always finds what it read the first time.
"""

from __future__ import annotations

import os
import socket
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import fs

from streamveil.engines.spark.columns import PREFIX, pack, unpack
from streamveil.errors import StoreError
from streamveil.types import Array

FORMAT = 3
STAGES = ("unit", "key", "public")
BASE, DELTA, PARTIAL = "base", "delta", "partial"


class File(NamedTuple):
    """A file of a shard, by its name."""

    path: str
    stage: str
    shard: int
    version: int
    kind: str


class Part(NamedTuple):
    """What a file holds."""

    facts: dict[str, Any]
    arrays: dict[str, Array]
    tag: int  # checksum of all that it holds
    size: int  # bytes


@dataclass(frozen=True)
class Shards:
    """The state of one job. `root` is a path, or a URI that pyarrow.fs or fsspec knows."""

    root: str
    origin: str = ""  # tells states apart that lay in the same place: the job's epoch

    @property
    def start(self) -> int:
        """The tag of version 0, which holds nothing."""
        return zlib.crc32(self.origin.encode())

    # ---- whole versions, for states that are small or change everywhere

    def read(self, stage: str, shard: int, version: int) -> dict[str, Array] | None:
        """The arrays of a version; None for version 0, which holds nothing."""
        return self.get(stage, shard, version, BASE).arrays if version else None

    def write(self, stage: str, shard: int, version: int, arrays: dict[str, Array]) -> int:
        """Writes a version whole. Returns its bytes."""
        return self.put(stage, shard, version, BASE, ({}, arrays)).size

    # ---- files

    def get(self, stage: str, shard: int, version: int, kind: str) -> Part:
        """Reads a file; StoreError where it is missing or damaged. Its arrays may be changed."""
        system, base = opened(self.root)
        what = f"version {version} of shard {shard} ({stage})"
        try:
            with system.open_input_file(f"{base}/{name_of(stage, shard, version, kind)}") as file:
                data = np.empty(file.size(), np.uint8)
                file.readinto(data)
            facts, arrays = unpack(data.data)
        except FileNotFoundError:
            raise StoreError(
                f"{what} is missing.\n"
                "  to fix  restore the state directory; state, checkpoint and epoch belong together"
            ) from None
        except (OSError, ValueError, StoreError):
            raise StoreError(f"{what} is damaged") from None
        if facts.pop("format", None) != FORMAT:
            raise StoreError("the state was written by another version of streamveil")
        if facts.pop("version") != version:
            raise StoreError(f"{what} is damaged")
        return Part(facts, arrays, PREFIX.unpack(data[: PREFIX.size].data)[1], len(data))

    def put(
        self, stage: str, shard: int, version: int, kind: str,
        content: tuple[dict[str, Any], dict[str, Array]],
    ) -> Part:  # fmt: skip
        """Writes a file of facts and arrays: to a temporary name, then moved into place."""
        system, base = opened(self.root)
        path = f"{base}/{name_of(stage, shard, version, kind)}"
        facts, arrays = content
        parts = pack({"format": FORMAT, "version": version, **facts}, arrays)
        if isinstance(system, fs.LocalFileSystem):
            put_local(Path(path), parts)
        else:
            system.create_dir(path.rsplit("/", 1)[0], recursive=True)
            with system.open_output_stream(path) as file:  # object stores show whole objects only
                for part in parts:
                    file.write(part)
        return Part(facts, arrays, PREFIX.unpack(parts[0])[1], sum(map(len, parts)))

    def tag(self, stage: str, shard: int, version: int) -> int | None:
        """The tag of a delta that is there, from its first bytes; None where there is none."""
        system, base = opened(self.root)
        try:
            with system.open_input_file(f"{base}/{name_of(stage, shard, version, DELTA)}") as file:
                return int(PREFIX.unpack(file.read(PREFIX.size))[1])
        except (OSError, ValueError):
            return None

    def newest_base(self, stage: str, shard: int, version: int) -> int:
        """The last version up to a given one that is there whole; 0 without any."""
        found = self._files(f"{stage}/{shard:05d}")
        return max((f.version for f in found if f.kind == BASE and f.version <= version), default=0)

    def has(self, stage: str, version: int, shards: int) -> bool:
        """Whether all shards of a version are there."""
        system, base = opened(self.root)
        kinds = [
            [f"{base}/{name_of(stage, shard, version, kind)}" for shard in range(shards)]
            for kind in (BASE, DELTA)
        ]
        bases, deltas = (
            [found.type == fs.FileType.File for found in system.get_file_info(names)]
            for names in kinds
        )
        return all(one or other for one, other in zip(bases, deltas, strict=True))

    def started(self) -> bool:
        """Whether any version was ever written."""
        system, base = opened(self.root)
        found = system.get_file_info([f"{base}/{stage}" for stage in STAGES])
        return any(folder.type == fs.FileType.Directory for folder in found)

    def tidy(self, oldest: int) -> None:
        """Deletes what versions from `oldest` on are not made of."""
        system, _ = opened(self.root)
        for stage in STAGES:
            shards: dict[int, list[File]] = {}
            for file in self._files(stage):
                shards.setdefault(file.shard, []).append(file)
            for files in shards.values():
                whole = [f.version for f in files if f.kind == BASE and f.version <= oldest]
                first = max(whole, default=0)
                for file in files:
                    left = file.kind == PARTIAL and file.version <= oldest  # by a killed task
                    if file.version < first or left:
                        system.delete_file(file.path)

    def _files(self, folder: str) -> Iterator[File]:
        system, base = opened(self.root)
        where = fs.FileSelector(f"{base}/{folder}", allow_not_found=True, recursive=True)
        for found in system.get_file_info(where):
            if found.type == fs.FileType.File:
                stage, shard, name = found.path.rsplit("/", 3)[1:]
                version, *_, kind = name.split(".")
                yield File(found.path, stage, int(shard), int(version), kind)


def name_of(stage: str, shard: int, version: int, kind: str) -> str:
    """Where a file lies under the root."""
    return f"{stage}/{shard:05d}/{version:08d}.{kind}"


def opened(root: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it."""
    if "://" not in root:
        return fs.LocalFileSystem(), root
    try:
        system, base = fs.FileSystem.from_uri(root)
    except pa.ArrowInvalid:  # a scheme that Arrow does not know
        system, base = through_fsspec(root)
    return system, str(base).rstrip("/")


def through_fsspec(root: str) -> tuple[fs.FileSystem, str]:
    """The same for the schemes of fsspec, where it is installed."""
    scheme = root.split("://", maxsplit=1)[0]
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-not-found]  # optional

        system, base = url_to_fs(root)
    except (ImportError, ValueError):
        raise StoreError(
            f"no file system is known for '{scheme}://'.\n"
            "  to fix  use file, s3, gs, abfs or hdfs, or install fsspec and its package for it"
        ) from None
    return fs.PyFileSystem(fs.FSSpecHandler(system)), base


def put_local(path: Path, parts: list[memoryview]) -> None:
    """Writes one file whole: beside its name, synced, renamed. Tasks that race write the same."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    partial = path.with_suffix(f".{own}.{PARTIAL}")
    with partial.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
