"""File systems that all executors reach, and one way to make a file on them: whole, and only once.

A file that is there is never written over. Where two make the same name at once, one is told so.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from streamveil.disk import sync_directory
from streamveil.errors import StoreError

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


def create(system: fs.FileSystem, path: str, parts: list[memoryview]) -> bool:
    """Writes a file whole. False, and nothing is written, where one is already there.

    The look and the writing are one act on local disks. Elsewhere another writer may come between;
    then the last one's file stays, whole.
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
    """The same on a local disk, durably: beside its name, synced, linked to its name."""
    for folder in reversed([f for f in (path.parent, *path.parent.parents) if not f.exists()]):
        folder.mkdir(exist_ok=True, mode=0o700)
        sync_directory(folder.parent)
    partial = Path(partial_of(str(path)))
    try:
        with partial.open("wb") as file:
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
    """A name beside a file that no other writer takes."""
    own = f"{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
    folder, _, name = path.rpartition("/")
    return f"{folder}/{name.partition('.')[0]}.{own}.{PARTIAL}"
