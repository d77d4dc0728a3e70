"""Files on disk: which ones a pattern stands for, their order, and what one is now."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import pyarrow as pa

from streamveil.errors import SourceError

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

    Nothing is asked of a file that its folder tells: a folder that is followed for months has many.
    """
    names = {name for pattern in patterns for name in matching(pattern)}
    return sorted(names, key=lambda name: name.split(os.sep))


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


def entries_of(folder: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder; nothing if it is not there."""
    with suppress(FileGoneError), guarded(folder, lambda: os.scandir(folder)) as entries:
        while entry := guarded(folder, partial(next, entries, None)):
            yield entry


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
    """What a listing tells of a file."""

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
        """What one is now."""
        facts = guarded(Path(name), Path(name).stat)
        return ListedFile(facts.st_size, facts.st_mtime_ns)

    listed = facts

    def exists(self, name: str) -> bool:
        """Whether it is there."""
        return guarded(Path(name), Path(name).exists)

    @contextmanager
    def local(self, name: str, columns: Columns = None) -> Iterator[Path]:
        """One of them to read; `columns`: of a Parquet file no others are. None: all of it."""
        yield Path(name)

    def expect(self, name: str | None, columns: Columns = None) -> None:
        """Tells which one is read after the next one; None: there is no other."""

    def forget(self) -> None:
        """Tells that none is read now."""
