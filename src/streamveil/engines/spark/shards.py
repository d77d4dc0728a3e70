"""Versioned state of shards on storage that all executors reach: a directory or an object store.

A version is written whole, beside its predecessor, under a name that its content decides: a task
that runs twice writes the same bytes. Version i is read only by step i + 1, and kept until step
i + 2 is published, so a replay always finds what it read the first time.
"""

from __future__ import annotations

import io
import os
import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from pyarrow import fs

from streamveil.errors import StoreError
from streamveil.types import Array

FORMAT = 1
KEPT = 2  # versions besides the newest


@dataclass(frozen=True)
class Shards:
    """The state of one job. `root` is a path or a URI of pyarrow.fs (file, s3, gs, hdfs)."""

    root: str

    def read(self, stage: str, shard: int, version: int) -> dict[str, Array] | None:
        """The arrays of a version; None for version 0, which holds nothing."""
        if version == 0:
            return None
        system, base = self._open()
        path = f"{base}/{self._name(stage, shard, version)}"
        try:
            with system.open_input_stream(path) as file:
                data = file.read()
            with np.load(io.BytesIO(data), allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in saved.files}
        except FileNotFoundError:
            raise StoreError(
                f"version {version} of shard {shard} ({stage}) is missing.\n"
                "  to fix  restore the state directory; state, checkpoint and epoch belong together"
            ) from None
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):
            raise StoreError(f"version {version} of shard {shard} ({stage}) is damaged") from None
        if int(arrays.pop("format", np.array(0))) != FORMAT:
            raise StoreError("the state was written by another version of streamveil")
        return arrays

    def write(self, stage: str, shard: int, version: int, arrays: dict[str, Array]) -> None:
        """Writes a version: to a temporary name, then moved into place."""
        system, base = self._open()
        path = f"{base}/{self._name(stage, shard, version)}"
        buffer = io.BytesIO()
        np.savez(buffer, format=np.array(FORMAT), **arrays)  # type: ignore[arg-type]
        if isinstance(system, fs.LocalFileSystem):
            put_local(Path(path), buffer.getbuffer())
            return
        system.create_dir(path.rsplit("/", 1)[0], recursive=True)
        with system.open_output_stream(path) as file:  # object stores show whole objects only
            file.write(buffer.getbuffer())

    def has(self, stage: str, version: int, shards: int) -> bool:
        """Whether all shards of a version are there."""
        system, base = self._open()
        names = [f"{base}/{self._name(stage, shard, version)}" for shard in range(shards)]
        return all(found.type == fs.FileType.File for found in system.get_file_info(names))

    def drop(self, version: int) -> None:
        """Deletes a version of all stages and shards."""
        if version < 1:
            return
        system, base = self._open()
        for stage in ("unit", "key", "public"):
            folder = f"{base}/{stage}/{version:08d}"
            if system.get_file_info(folder).type == fs.FileType.Directory:
                system.delete_dir(folder)

    def _open(self) -> tuple[fs.FileSystem, str]:
        if "://" in self.root:
            system, base = fs.FileSystem.from_uri(self.root)
            return system, str(base)
        return fs.LocalFileSystem(), self.root

    @staticmethod
    def _name(stage: str, shard: int, version: int) -> str:
        return f"{stage}/{version:08d}/{shard:05d}.npz"


def put_local(path: Path, data: memoryview) -> None:
    """Writes one file whole: beside its name, synced, renamed. Tasks that race write the same."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    own = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    partial = path.with_suffix(f".{own}.partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
