"""Files on disk: which ones a pattern stands for, their order, and which of them were read.

The newest are in the position, which is committed with their rows. The others are in a file of the
job's state that only grows: it is durable before a position counts on it, and the position holds
how many records count and a hash of them. Records beyond, of a process that died, do not count. So
files may come in any order of names, and a file that was read may be deleted.

Of a name only a hash is kept (128 bits: two of a billion names share one with a chance of 10^-21).

`Manifest` keeps which files were read: their names, sizes and digests, 40 bytes for each file.
"""

from __future__ import annotations

import base64
import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial, reduce
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from streamveil.disk import crash_only, crc32, sync_directory, write_all
from streamveil.errors import SourceError, StoreError
from streamveil.types import Array

FORMATS = {".parquet": "parquet", ".csv": "csv", ".jsonl": "json", ".ndjson": "json",
           ".json": "json"}  # fmt: skip
UNFINISHED = (".tmp", ".temp", ".part", ".partial", ".crdownload", ".filepart", ".inprogress")
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}  # of text
MARK = "://"  # of the address of a file that is not on disk
Columns = tuple[str, ...] | None
LIST = ".list"  # ends the name of a file of the web that lists others
T = TypeVar("T")


def found(patterns: Iterable[str]) -> list[str]:
    """All files of some patterns in canonical order.

    A file whose facts the folder lists is not asked again: a folder followed for months has many.
    """
    names = {name for pattern in patterns for name in matching(pattern)}
    return sorted(names, key=lambda name: name.replace(os.sep, "\0"))  # folder by folder


def require_formats(patterns: Iterable[str]) -> None:
    """SourceError where folders hold files, and none whose name tells its format."""
    folders = [Path(pattern) for pattern in patterns]
    folders = [path for path in folders if guarded(path, path.is_dir)]
    entries = [entry for path in folders for entry in guarded(path, lambda: [*path.iterdir()])]  # noqa: B023
    others = sorted(
        {entry.suffix for entry in entries if not is_temporary(entry.name) and entry.is_file()}
    )
    if others:
        raise SourceError(
            f"no file in {', '.join(shown(path.name) for path in folders)} has a name that tells"
            f" its format; there are others: {', '.join(f'*{shown(one)}' for one in others[:5])}.\n"
            "  to fix  give them such names (.csv.gz), or say path = 'folder/*' and format = 'csv'"
        )


def folders_of(patterns: Iterable[str]) -> str:
    """A hint where folders hold folders: the pattern of the files in those; else nothing."""
    for pattern in patterns:
        path = Path(pattern)
        if guarded(path, path.is_dir) and any(
            entry.is_dir() and not is_temporary(entry.name) for entry in entries_of(path)
        ):
            below = shown(str(path / "**" / "*.parquet"))
            return f"; '{shown(pattern)}' holds folders, and '{below}' would name the files in them"
    return ""


def format_of(name: str) -> str | None:
    """The format that a file's name tells.

    >>> format_of("a.CSV"), format_of("a.jsonl.gz"), format_of("a.parquet.gz"), format_of("a.gz")
    ('csv', 'json', None, None)
    """
    stem, end = os.path.splitext(name.lower())
    if end not in COMPRESSIONS:
        return FORMATS.get(end)
    inner = FORMATS.get(os.path.splitext(stem)[1])
    return None if inner == "parquet" else inner


def matching(pattern: str) -> Iterator[str]:
    """The files that a file's own name, a folder's or a pattern stands for."""
    path = Path(pattern)
    if guarded(path, path.is_dir):
        before = str(path / "x")[:-1]
        for entry in entries_of(path):
            known = format_of(entry.name) is not None
            if known and not is_temporary(entry.name) and guarded(path, entry.is_file):
                yield before + entry.name
    elif guarded(path, path.is_file):
        yield str(path)
    else:
        yield from matched(Path(), path.parts)


def matched(folder: Path, parts: Sequence[str]) -> Iterator[str]:
    """The files below a folder that the parts of a pattern stand for.

    Unlike `glob`, which passes over a folder that may not be read, this raises a SourceError.
    """
    part, rest = parts[0], parts[1:]
    if not glob.has_magic(part):
        path = folder / part
        if rest:
            yield from matched(path, rest)
        elif not is_temporary(part) and guarded(path, path.is_file):
            yield str(path)
        return
    deep = part == "**"
    if deep and rest:
        yield from matched(folder, rest)
    for entry in entries_of(folder):
        hidden = entry.name.startswith(".") and not part.startswith(".")
        if hidden or not (deep or fnmatchcase(entry.name, part)):
            continue
        path = folder / entry.name
        if guarded(path, entry.is_dir):
            below = parts if deep else rest
            if below and not (deep and leads_back(path)):
                yield from matched(path, below)
        elif not rest and not is_temporary(entry.name) and guarded(path, entry.is_file):
            yield str(path)


def entries_of(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing if it is not there."""
    with suppress(FileGoneError):
        return guarded(folder, lambda: [*os.scandir(folder)])
    return []


def leads_back(path: Path) -> bool:
    """Whether a link leads to a folder that holds it: a loop of names."""
    above = path.parent.resolve()
    return path.is_symlink() and path.resolve() in (above, *above.parents)


def is_temporary(name: str) -> bool:
    """Whether writers use such a name for what is not whole yet, or is no data.

    >>> [is_temporary(name) for name in ("a.csv", "_a.csv", ".a.csv", "a.csv.tmp")]
    [False, True, True, True]
    """
    return name.startswith((".", "_")) or name.lower().endswith(UNFINISHED)


def fixed_part(pattern: str) -> str:
    """The folder of a pattern's files, as far as it is the same for all.

    >>> fixed_part("data/2026-*/x.csv"), fixed_part("a.csv")
    ('data', '')
    """
    path = Path(pattern)
    if guarded(path, path.is_dir):
        return pattern
    if guarded(path, path.is_file):
        return str(path.parent) if path.parent != Path() else ""
    parts = pattern.split(os.sep)
    fixed = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return os.sep.join(parts[:fixed]) or (os.sep if pattern.startswith(os.sep) else "")


def below(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """Names of found files below the folder that holds all: they stay when that folder moves.

    >>> below(["data/*.csv"], ["data/a.csv", "data/b.csv"])
    ['a.csv', 'b.csv']
    >>> below(["x/a/1.csv", "x/b/1.csv"], ["x/a/1.csv", "x/b/1.csv"])
    ['a/1.csv', 'b/1.csv']
    """
    folders = [str(Path(fixed_part(pattern))) for pattern in patterns]
    if len(folders) == 1:  # fast: a followed folder has many
        start = 0 if folders[0] == "." else len(folders[0].rstrip(os.sep)) + 1
        return [name[start:] for name in names]
    root = os.path.commonpath([os.path.abspath(folder) for folder in folders])
    return [os.path.relpath(os.path.abspath(name), root) for name in names]


def to_bytes(name: str) -> bytes:
    """A name as the file system has it, which need not be text."""
    return name.encode(errors="surrogateescape")


def shown(name: str) -> str:
    """A name as text."""
    return to_bytes(name).decode(errors="backslashreplace")


class FileGoneError(SourceError):
    """A file that is not there any more."""


def guarded(path: Path, action: Callable[[], T]) -> T:
    """Runs `action`; a failure to read becomes an error that names the file and no content."""
    try:
        return action()
    except (OSError, pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else (
            "it is damaged or of another format")  # fmt: skip
        kind, fix = SourceError, ""
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            kind = FileGoneError
        elif isinstance(error, PermissionError):
            fix = (
                ".\n  to fix  let this user read it and its folder, then start again: the job goes"
                " on where it was"
            )
        raise kind(f"cannot read '{shown(path.name)}': {reason}{fix}") from None
    except UnicodeEncodeError:
        raise SourceError(
            f"cannot read '{shown(path.name)}': files of this format need a name in UTF-8.\n"
            "  to fix  rename it"
        ) from None


class ListedFile(NamedTuple):
    """The facts of a file in a listing."""

    size: int  # bytes
    time: int  # of its last change, in nanoseconds


class LocalFiles:
    """Files on disk."""

    def found(self, patterns: Sequence[str]) -> list[str]:
        """All files of some patterns in canonical order."""
        return found(patterns)

    def below(self, patterns: Sequence[str], names: Sequence[str]) -> list[str]:
        """Their names below the folder that holds all."""
        return below(patterns, names)

    def facts(self, name: str) -> ListedFile:
        """The present facts of a file."""
        facts = guarded(Path(name), Path(name).stat)
        return ListedFile(facts.st_size, facts.st_mtime_ns)

    listed = facts

    def exists(self, name: str) -> bool:
        """Whether it is there."""
        return guarded(Path(name), Path(name).exists)

    def missing(self, patterns: Sequence[str]) -> str | None:
        """Their first folder, in words, if none of their folders is there."""
        folders = [Path(fixed_part(one) if glob.has_magic(one) else one) for one in patterns]
        there = any(guarded(one, one.exists) for one in folders)
        return None if there else f"folder '{shown(folders[0].name)}'"

    @contextmanager
    def local(self, name: str, columns: Columns = None) -> Iterator[Path]:
        """One of them to read; `columns`: of a Parquet file no others are. None: all of it."""
        yield Path(name)

    def expect(self, name: str | None, columns: Columns = None) -> None:
        """Tells which one is read after the next one; None: there is no other."""

    def forget(self) -> None:
        """Tells that none is read now."""


MANIFEST = "files-read"
RECENT = 32  # records in a position, at most
MERGED = 1000  # new records, at least, before all are sorted again
PIECE = 1 << 20  # bytes read at once
TAIL = 8  # bytes that end a Parquet file: the length of its footer and a word
ENDS = (b"PAR1", b"PARE")
NAME_BYTES = 16
NAME = f"S{NAME_BYTES}"
RECORD = np.dtype([("name", NAME), ("size", "<i8"), ("mark", "<u8"), ("time", "<i8")])


class FileIdentity(NamedTuple):
    """The identity of a file, without its name."""

    size: int  # bytes
    mark: int | None  # digest of its content; None: nobody looked
    time: int  # of its last change, in nanoseconds: only a hint


def key(name: str) -> bytes:
    """The hash that stands for the name of a file."""
    return hashlib.blake2b(to_bytes(name), digest_size=NAME_BYTES).digest()


def record(name: str, file: FileIdentity) -> bytes:
    """40 bytes."""
    row = (key(name), file.size, 0 if file.mark is None else file.mark, file.time)
    return np.array([row], RECORD).tobytes()


class Manifest:
    """The files that were read. `folder`: of the job's state; None: all is in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self._path = None if folder is None else folder / MANIFEST
        self._kept = 0  # records that are no longer in the position
        self._hash = ""  # of them: of each `RECENT` records and the hash of those before
        self._tail: list[bytes] = []
        self._sorted = np.empty(0, RECORD)
        self._names = np.empty(0, NAME)  # of `_sorted`
        self._new: dict[bytes, bytes] = {}  # records that are not sorted in yet
        self._memory = bytearray()  # the file, where there is none

    @classmethod
    def of(cls, text: dict[str, Any], folder: Path | None, memory: bytes = b"") -> Manifest:
        """The manifest of a position. `memory`: the result of `kept`, where there is no folder."""
        made = cls(folder)
        if not {"files", "hash", "recent"} <= text.keys():
            raise lost()
        made._kept = text["files"]
        size = made._kept * RECORD.itemsize
        data = memory if made._path is None else whole(made._path, size)
        made._hash = reduce(chained, in_blocks(data[:size]), "")
        if len(data) < size or made._hash != text["hash"]:
            raise lost()
        tail = base64.b64decode(text["recent"])
        made._memory = bytearray(b"" if folder else data[:size])
        made._tail = [
            tail[at : at + RECORD.itemsize] for at in range(0, len(tail), RECORD.itemsize)
        ]
        made._sort(np.frombuffer(data[:size] + tail, RECORD))
        return made

    def position(self) -> dict[str, Any]:
        """The part of it that a position holds."""
        return {
            "files": self._kept, "hash": self._hash,
            "recent": base64.b64encode(b"".join(self._tail)).decode(),
        }  # fmt: skip

    @property
    def kept(self) -> bytes:
        """The records that no position holds, where there is no folder."""
        return bytes(self._memory)

    def __len__(self) -> int:
        return len(self._sorted) + len(self._new)

    def add(self, name: str, file: FileIdentity) -> None:
        """Adds a file that was read to its end."""
        if len(self._tail) == RECENT:
            self._keep()
        made = record(name, file)
        self._tail.append(made)
        self._new[key(name)] = made
        if len(self._new) > max(MERGED, len(self._sorted) // 16):
            fresh = np.frombuffer(b"".join(self._new.values()), RECORD)
            self._sort(np.concatenate([self._sorted, fresh]))

    def holds(self, names: Sequence[str]) -> list[bool]:
        """For each name, whether a file was read under it."""
        keys = [key(name) for name in names]
        rows = np.array(keys, NAME)
        at = np.searchsorted(self._names, rows)
        inside = at < len(self._names)
        inside[inside] = self._names[at[inside]] == rows[inside]
        return [held or one in self._new for one, held in zip(keys, inside.tolist(), strict=True)]

    def find(self, name: str) -> FileIdentity:
        """The file that was read under a name that it `holds`."""
        row = self._new.get(key(name))
        found = (
            self._sorted[np.searchsorted(self._names, np.array(key(name), NAME))]
            if row is None
            else np.frombuffer(row, RECORD)[0]
        )
        return FileIdentity(int(found["size"]), int(found["mark"]) or None, int(found["time"]))

    def _sort(self, records: Array) -> None:
        self._sorted = records[np.argsort(records["name"], kind="stable")]
        self._names = np.ascontiguousarray(self._sorted["name"])
        self._new = {}

    def _keep(self) -> None:
        """Moves the tail to the file; it is durable on return."""
        data = b"".join(self._tail)
        if self._path is None:
            self._memory += data
        else:
            append(self._path, self._kept * RECORD.itemsize, data)
        self._hash = chained(self._hash, data)
        self._kept += len(self._tail)
        self._tail = []


def chained(before: str, data: bytes) -> str:
    """The hash of some bytes and of the hash of those before them."""
    return hashlib.blake2b(before.encode() + data, digest_size=NAME_BYTES).hexdigest()


def in_blocks(data: bytes) -> Iterator[bytes]:
    """Records as they were moved to the file."""
    size = RECENT * RECORD.itemsize
    return (data[at : at + size] for at in range(0, len(data), size))


def files_in(position: dict[str, Any]) -> int:
    """How many files were read to their end, as a position says."""
    return int(position["files"]) + len(base64.b64decode(position["recent"])) // RECORD.itemsize


def identity(path: Path) -> FileIdentity:
    """A file as it is. The digest is that of a Parquet file's footer, else of all bytes.

    A footer holds the sizes, places and statistics of all columns.
    """
    facts = guarded(path, path.stat)
    with guarded(path, lambda: path.open("rb")) as file:
        end = guarded(path, lambda: footer(file))
        if end is not None:
            mark = int.from_bytes(hashlib.blake2b(end, digest_size=8).digest())
        else:
            file.seek(0)
            pieces = iter(partial(file.read, PIECE), b"")
            mark = guarded(path, lambda: reduce(lambda sum, piece: crc32(piece, sum), pieces, 0))
    return FileIdentity(facts.st_size, mark, facts.st_mtime_ns)


def is_cut_short(path: Path) -> bool:
    """Whether a file is no Parquet file yet: those have an end."""
    with guarded(path, lambda: path.open("rb")) as file:
        return guarded(path, lambda: footer(file)) is None


def footer(file: BinaryIO) -> bytes | None:
    """The footer of a Parquet file; None of any other file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    tail = file.read(TAIL)
    if tail[4:] not in ENDS:
        return None
    file.seek(max(0, size - TAIL - int.from_bytes(tail[:4], "little")))
    return file.read()


def append(path: Path, size: int, data: bytes) -> None:
    """Writes bytes after the first `size` bytes of a file, durably, over any others."""
    with crash_only("write", path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, size)
            os.lseek(fd, size, os.SEEK_SET)
            write_all(fd, [memoryview(data)])
            os.fsync(fd)
        finally:
            os.close(fd)
        if not size:
            sync_directory(path.parent)


def whole(path: Path, size: int) -> bytes:
    """The first bytes of a file."""
    if not size:
        return b""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError:
        raise lost() from None


def lost() -> StoreError:
    """The error for a manifest that differs from that of a position."""
    return StoreError(
        f"'{MANIFEST}' in the state directory, which says which files were read, is lost or of"
        " another moment.\n  to fix  restore the whole directory from a backup of one moment"
    )
