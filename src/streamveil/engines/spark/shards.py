"""Versioned state of shards on storage that all executors reach: a directory or an object store.

A version is written whole, beside its predecessor, under a name that its content decides: a task
that runs twice writes the same bytes. Version i is read only by step i + 1, and kept until step
i + 2 is published, so a replay always finds what it read the first time.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import fs

from streamveil.engines.spark.columns import pack, unpack
from streamveil.errors import StoreError
from streamveil.types import Array

FORMAT = 2
KEPT = 2  # versions besides the newest
STAGES = ("unit", "key", "public")


@dataclass(frozen=True)
class Shards:
    """The state of one job. `root` is a path, or a URI that pyarrow.fs or fsspec knows."""

    root: str

    def read(self, stage: str, shard: int, version: int) -> dict[str, Array] | None:
        """The arrays of a version; None for version 0, which holds nothing."""
        if version == 0:
            return None
        system, base = opened(self.root)
        what = f"version {version} of shard {shard} ({stage})"
        try:
            with system.open_input_file(f"{base}/{self._name(stage, shard, version)}") as file:
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
        if facts != {"format": FORMAT}:
            raise StoreError("the state was written by another version of streamveil")
        return arrays

    def write(self, stage: str, shard: int, version: int, arrays: dict[str, Array]) -> int:
        """Writes a version: to a temporary name, then moved into place. Returns its bytes."""
        system, base = opened(self.root)
        path = f"{base}/{self._name(stage, shard, version)}"
        parts = pack({"format": FORMAT}, arrays)
        if isinstance(system, fs.LocalFileSystem):
            put_local(Path(path), parts)
        else:
            system.create_dir(path.rsplit("/", 1)[0], recursive=True)
            with system.open_output_stream(path) as file:  # object stores show whole objects only
                for part in parts:
                    file.write(part)
        return sum(map(len, parts))

    def has(self, stage: str, version: int, shards: int) -> bool:
        """Whether all shards of a version are there."""
        system, base = opened(self.root)
        names = [f"{base}/{self._name(stage, shard, version)}" for shard in range(shards)]
        return all(found.type == fs.FileType.File for found in system.get_file_info(names))

    def started(self) -> bool:
        """Whether any version was ever written."""
        system, base = opened(self.root)
        found = system.get_file_info([f"{base}/{stage}" for stage in STAGES])
        return any(folder.type == fs.FileType.Directory for folder in found)

    def drop(self, version: int) -> None:
        """Deletes a version of all stages and shards."""
        if version < 1:
            return
        system, base = opened(self.root)
        for stage in STAGES:
            folder = f"{base}/{stage}/{version:08d}"
            if system.get_file_info(folder).type == fs.FileType.Directory:
                system.delete_dir(folder)

    @staticmethod
    def _name(stage: str, shard: int, version: int) -> str:
        return f"{stage}/{version:08d}/{shard:05d}.state"


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
    partial = path.with_suffix(f".{own}.partial")
    with partial.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
