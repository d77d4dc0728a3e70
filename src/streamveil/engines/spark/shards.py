"""Versioned state of shards on storage that all executors reach: a directory or an object store.

A shard's version is a base, which holds the whole state, or a delta, which holds the change of one
step from the version before, or both. Files are written whole, under a name with their version, and
never change: a task that runs twice makes the same deltas, and equivalent bases. Version i is read
only by step i + 1, and all its files are kept until step i + 1 is published. So a replay always
finds what it read the first time.

Protects: against the same noise on other rows. A delta is a function of the history and of the
    step's rows; its tag is the checksum of both. A task that makes an existing version with another
    tag has run a step again over other rows. It is refused before anything is published, since a
    step is published only when all of its shards are written. So it does not matter how the rows
    changed: in their files, by a topic's retention, or for another job on a copy of the state.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import fs

from streamveil.disk import crc32, sync_directory
from streamveil.engines.spark.columns import PREFIX, Head, head_of, pack, tag_of, unpack
from streamveil.errors import StoreError
from streamveil.types import Array

# ---- file systems that all executors reach, and one way to make a file on them: whole, and once
#
# An existing file is never overwritten. If two make the same name at once, one of them learns it.

PARTIAL = "partial"
OBJECTS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss"}


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
    """`opened` for the schemes of fsspec, if it is installed."""
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


def create(system: fs.FileSystem, path: str, parts: list[memoryview]) -> bool:
    """Writes a file whole. False, and nothing is written, if it already exists.

    On local disks the check and the write are one atomic act. Elsewhere another writer may come
    between; then the file of the last writer stays, whole.
    """
    if isinstance(system, fs.LocalFileSystem):
        return create_local(Path(path), parts)
    if there(system, path):
        return False
    system.create_dir(path.rsplit("/", 1)[0], recursive=True)
    if shows_whole_files(system):
        write(system, path, parts)
        return True
    partial = partial_of(path)
    try:
        write(system, partial, parts)
        system.move(partial, path)
    except OSError:
        if not there(system, path):
            raise
        return False  # another was faster
    finally:
        remove(system, partial)
    return True


def create_local(path: Path, parts: list[memoryview]) -> bool:
    """`create` on a local disk, durably: writes under a temporary name, syncs, links the name."""
    for folder in reversed([f for f in (path.parent, *path.parent.parents) if not f.exists()]):
        folder.mkdir(exist_ok=True, mode=0o700)
        sync_directory(folder.parent)
    partial = Path(partial_of(str(path)))
    partial.unlink(missing_ok=True)  # a stopped writer's may be linked: never write through it
    try:
        with partial.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(partial, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links
            if path.exists():
                return False
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def write(system: fs.FileSystem, path: str, parts: list[memoryview]) -> None:
    """Writes a file; cut short when that fails."""
    with system.open_output_stream(path) as file:
        for part in parts:
            file.write(part)


def there(system: fs.FileSystem, path: str) -> bool:
    """Whether a file has that name."""
    return bool(system.get_file_info(path).type == fs.FileType.File)


def remove(system: fs.FileSystem, path: str) -> None:
    """Deletes a file, if nobody else was faster."""
    with contextlib.suppress(FileNotFoundError):
        system.delete_file(path)


def shows_whole_files(system: fs.FileSystem) -> bool:
    """Whether a file appears when it is closed, as in object stores, not while it is written."""
    if not isinstance(system, fs.PyFileSystem):
        return system.type_name in OBJECTS
    names = system.handler.fs.protocol
    return not OBJECTS.isdisjoint([names] if isinstance(names, str) else names)


def partial_of(path: str) -> str:
    """A temporary name in the folder of a file, which no other writer uses."""
    own = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}.{own}.{PARTIAL}"


# ---- shards

Content = tuple[dict[str, Any], dict[str, Array]]  # of a file: facts and arrays
FORMAT = 1  # of a file
STAGES = ("unit", "key", "public")
BASE, DELTA = "base", "delta"
OWNER = "owner"  # names the state that the storage belongs to
NAME = re.compile(rf"(\w+)/(\d+)/(\d+)\.(?:({BASE}|{DELTA})|.+\.{PARTIAL})")
AT_ONCE = 16  # files looked at


class File(NamedTuple):
    """A file of a shard, by its name."""

    path: str
    stage: str
    shard: int
    version: int
    kind: str


class ShardPart(NamedTuple):
    """The contents of a file."""

    facts: dict[str, Any]
    arrays: dict[str, Array]
    tag: int  # checksum of all that it holds
    size: int  # bytes


@dataclass(frozen=True)
class Shards:
    """The state of one job. `root` is a path, or a URI that pyarrow.fs or fsspec knows."""

    root: str
    origin: str = ""  # the job's epoch, which tells apart states that lay in the same place

    @property
    def start(self) -> int:
        """The tag of version 0, which holds nothing."""
        return crc32(self.origin.encode(), 0)

    @property
    def job(self) -> str:
        """A short name of the state, for files outside of its place."""
        return blake2b(f"{self.root}|{self.origin}".encode(), digest_size=8).hexdigest()

    # ---- whole versions, for states that are small or change completely

    def read(self, stage: str, shard: int, version: int) -> ShardPart | None:
        """A version; None for version 0, which holds nothing."""
        return self.get(stage, shard, version, BASE) if version else None

    def write(
        self, stage: str, shard: int, version: int, tag: int, arrays: dict[str, Array]
    ) -> int:
        """Writes a version whole, with the tag of its history. Returns its bytes."""
        return self.put(stage, shard, version, BASE, ({"tag": tag}, arrays)).size

    # ---- files

    def get(self, stage: str, shard: int, version: int, kind: str) -> ShardPart:
        """Reads a file; StoreError if it is missing or damaged. Its arrays may be changed."""
        system, base = opened(self.root)
        what = f"version {version} of shard {shard} ({stage})"
        try:
            data = read_whole(system, f"{base}/{name_of(stage, shard, version, kind)}")
            facts, arrays = unpack(data.data)
        except FileNotFoundError:
            raise StoreError(
                f"{what} is missing.\n"
                "  to fix  restore the state directory; state, checkpoint and epoch belong together"
            ) from None
        except (OSError, ValueError, StoreError):
            raise StoreError(f"{what} is damaged") from None
        require_format(facts.pop("format", None))
        if (facts.pop("origin"), facts.pop("place")) != (self.origin, [stage, shard, version]):
            raise StoreError(
                f"{what} belongs to another state.\n"
                "  to fix  restore the directory from a backup of one moment"
            )
        return ShardPart(facts, arrays, tag_of([data.data]), len(data))

    def put(
        self, stage: str, shard: int, version: int, kind: str,
        content: Content,
    ) -> ShardPart:  # fmt: skip
        """Writes a file of facts and arrays, unless it exists; StoreError if another one does.

        Files whose facts name the tag of their history are the same if their facts are equal: their
        layout may vary.
        """
        system, base = opened(self.root)
        path = f"{base}/{name_of(stage, shard, version, kind)}"
        facts, arrays = content
        own = {"format": FORMAT, "origin": self.origin, "place": [stage, shard, version]}
        parts = pack({**own, **facts}, arrays)
        part = ShardPart(facts, arrays, tag_of(parts), sum(map(len, parts)))
        for _ in range(2):  # once more if another was faster
            found = self._found(system, path, part)
            if found is not None and isinstance(system, fs.LocalFileSystem):
                sync_directory(Path(path).parent)  # its writer may have died before syncing
            if found is not None or create(system, path, parts):
                return part if found is None else part._replace(tag=found)
        raise StoreError(f"version {version} of shard {shard} ({stage}) cannot be written")

    def _found(self, system: fs.FileSystem, path: str, part: ShardPart) -> int | None:
        """The tag of an equal file, if it exists; removes a file that was cut short."""
        try:
            head, size = peek(system, path)
        except FileNotFoundError:
            return None
        if head is None or size < head.size:  # its writer was stopped, so it was never published
            if head is None or self._agrees(head, part):
                remove(system, path)
                return None
        elif self._agrees(head, part):
            return part.tag
        raise StoreError(
            "this step was already run over other rows; the same noise on both would reveal how"
            " they differ.\n"
            "  to fix  restore the rows, or the state with its storage from a backup of one moment;"
            " else start a new state, with a new budget"
        )

    def _agrees(self, head: Head, part: ShardPart) -> bool:
        if "tag" in part.facts:
            named = {name: head.facts.get(name) for name in part.facts}
            return head.facts.get("origin") == self.origin and named == part.facts
        return head.tag == part.tag

    def tag(self, stage: str, shard: int, version: int) -> int | None:
        """The tag of a version's history: that of its delta, or the one that a lone base names."""
        system, base = opened(self.root)
        for kind in (DELTA, BASE):
            try:
                head, _ = peek(system, f"{base}/{name_of(stage, shard, version, kind)}")
            except (OSError, StoreError):
                continue
            if head is not None:
                return int(head.tag if kind == DELTA else head.facts.get("tag", head.tag))
        return None

    def tags(self, stage: str, version: int, shards: int) -> list[int | None]:
        """The tags of all shards of a version; None for missing ones."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda shard: self.tag(stage, shard, version), range(shards)))

    def newest_base(self, stage: str, shard: int, version: int) -> int:
        """The last version up to a given one that has a base; 0 without any."""
        found = self._files(f"{stage}/{shard:05d}")
        return max((f.version for f in found if f.kind == BASE and f.version <= version), default=0)

    # ---- all of it

    def newest(self) -> int:
        """The last version with any file; 0 without any."""
        found = (file for stage in STAGES for file in self._files(stage))
        return max((file.version for file in found if file.kind != PARTIAL), default=0)

    def started(self) -> bool:
        """Whether any version was ever written."""
        system, base = opened(self.root)
        found = system.get_file_info([f"{base}/{stage}" for stage in STAGES])
        return any(folder.type == fs.FileType.Directory for folder in found)

    def owner(self) -> str | None:
        """The origin of the state that has claimed this place; None if none has."""
        system, base = opened(self.root)
        try:
            with system.open_input_file(f"{base}/{OWNER}") as file:
                return str(file.read().decode())
        except FileNotFoundError:
            return None

    def claim(self) -> None:
        """Claims this place for the state; StoreError if another state has it."""
        system, base = opened(self.root)
        create(system, f"{base}/{OWNER}", [memoryview(self.origin.encode())])
        if self.owner() != self.origin:
            raise StoreError(
                "the storage belongs to another state.\n"
                "  to fix  give each state a storage of its own"
            )

    def tidy(self, oldest: int) -> None:
        """Deletes files that no version from `oldest` on needs."""
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
                        remove(system, file.path)

    def _files(self, folder: str) -> Iterator[File]:
        """The files of shards in a folder; other files, such as a file manager's, are ignored."""
        system, base = opened(self.root)
        where = fs.FileSelector(f"{base}/{folder}", allow_not_found=True, recursive=True)
        for found in system.get_file_info(where):
            name = NAME.fullmatch("/".join(found.path.rsplit("/", 3)[1:]))
            if name is not None and found.type == fs.FileType.File:
                stage, shard, version, kind = name.groups()
                yield File(found.path, stage, int(shard), int(version), kind or PARTIAL)


def name_of(stage: str, shard: int, version: int, kind: str) -> str:
    """Where a file lies under the root."""
    return f"{stage}/{shard:05d}/{version:08d}.{kind}"


def require_format(found: object) -> None:
    """Refuses a file of another format."""
    if found != FORMAT:
        raise StoreError(
            f"a shard has format version {found}; this streamveil reads version {FORMAT}.\n"
            "  to fix  use the streamveil version that wrote it, or start a new state directory"
        )


def read_whole(system: fs.FileSystem, path: str) -> Array:
    """The bytes of a file."""
    with system.open_input_file(path) as file:
        data = np.empty(file.size(), np.uint8)
        file.readinto(data)
    return data


def peek(system: fs.FileSystem, path: str) -> tuple[Head | None, int]:
    """The head of a file (None if it is cut short), and the number of bytes of the file."""
    with system.open_input_file(path) as file:
        prefix = file.read(PREFIX.size)
        wanted = PREFIX.unpack(prefix)[0] if len(prefix) == PREFIX.size else 0
        return head_of(prefix + file.read(wanted)), file.size()


def share_of(stage: str, shard: int, tag: int) -> int:
    """The term of a shard's tag in the number that stands for a version of all shards."""
    return int.from_bytes(blake2b(f"{stage}|{shard}|{tag}".encode(), digest_size=6).digest())
