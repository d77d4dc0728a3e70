"""Files of an object store, by Arrow's file systems (s3://, gs://, az://, abfs://), and of the web.

A file is copied before it is read, into a private folder that is removed afterwards. So one version
of it is read, as from disk. Of a Parquet file in a store, only the columns that are read are copied
(`spans`). The next file is copied while one is read, so the disk needs room for two. The one after
that is written over the first copy, which costs less than new pages. Keys come from where the
store's own programs take them, never from the address, which queries, descriptions and logs show.
"""

from __future__ import annotations

import os
import posixpath
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.connectors.manifest import (
    LIST,
    MARK,
    Columns,
    FileGoneError,
    ListedFile,
    format_of,
    is_temporary,
    shown,
)
from streamveil.disk import NO_ROOM, no_scratch, room, scratch_folder
from streamveil.errors import SourceError, nearest

# ---- which bytes of a Parquet file hold some of its columns
#
# A copy needs only these bytes. A reader that went beyond them would find zeros, which are no page
# of Parquet: it fails, as with a damaged file, and returns no wrong value.

TAIL = 1 << 16  # bytes in which most footers lie
END = 8  # bytes: the length of the footer, and a word
GAP = 1 << 20  # bytes between two parts that are asked for at once
PADDING = 128  # bytes behind a chunk: some writers state it shorter than it is
Spans = list[tuple[int, int]]


def spans(file: pa.NativeFile, size: int, columns: Collection[str]) -> tuple[Spans, bytes]:
    """The spans to copy, in order, and the end of the file, which has been read.

    All of a file whose end is no footer.
    """
    tail = file.read_at(min(size, TAIL), max(0, size - TAIL))
    whole = [(0, size - len(tail))]
    length = int.from_bytes(tail[-END:-4], "little") + END
    if tail[-4:] != b"PAR1" or length > size:
        return whole, tail
    if length > len(tail):
        tail = file.read_at(length, size - length)
        whole = [(0, size - length)]
    try:
        found = [*chunks(pq.read_metadata(pa.BufferReader(tail)), set(columns))]
    except (pa.ArrowException, OSError):
        return whole, tail
    if not all(0 <= start < end for start, end in found):
        return whole, tail
    before = size - len(tail)
    ends = sorted((start, min(end + PADDING, before)) for start, end in found if start < before)
    return joined(ends), tail


def chunks(facts: Any, columns: set[str]) -> Iterator[tuple[int, int]]:
    """Where the parts of some columns lie, of every row group."""
    names = tuple(f"{name}." for name in columns)  # the path of a part goes on behind its column
    wanted = [
        place for place in range(facts.num_columns)
        if f"{facts.schema.column(place).path}.".startswith(names)
    ]  # fmt: skip
    for number in range(facts.num_row_groups):
        group = facts.row_group(number)
        for place in wanted:
            one = group.column(place)
            first = one.dictionary_page_offset if one.has_dictionary_page else None
            start = one.data_page_offset if first is None else min(first, one.data_page_offset)
            yield start, start + one.total_compressed_size


def joined(some: Spans) -> Spans:
    """Spans with those made one that are next to each other, or nearly.

    >>> joined([(0, 4), (90, 200), (GAP + 100, GAP + 400), (3 * GAP, 3 * GAP + 1)])
    [(0, 1048976), (3145728, 3145729)]
    """
    made = some[:1]
    for start, end in some[1:]:
        if start - made[-1][1] > GAP:
            made.append((start, end))
        else:
            made[-1] = (made[-1][0], max(made[-1][1], end))
    return made


# ---- files of a store

WEB = ("http", "https")
SCHEMES = ("s3", "gs", "az", "abfs", "abfss", *WEB)
SETTINGS = (  # of an address; none is a secret
    "region", "scheme", "endpoint_override", "tls_ca_file_path", "enable_tls",
    "blob_storage_authority", "blob_storage_scheme", "dfs_storage_authority", "dfs_storage_scheme",
    "retry_limit_seconds",
)  # fmt: skip
AZURE_KEYS = {"account_key": "AZURE_STORAGE_KEY", "sas_token": "AZURE_STORAGE_SAS_TOKEN"}
OF_AZURE = ("_authority", "_scheme")
RETRIED = 15  # seconds for which a store that does not answer is asked again
SECOND = 10**9  # nanoseconds
PIECE = 1 << 24  # bytes asked for at once: each time a store is waited for


class Wanted(NamedTuple):
    """A file and the columns to read of it."""

    name: str
    columns: Columns


class CopiedFile(NamedTuple):
    """A copy, in a folder that goes with it."""

    folder: tempfile.TemporaryDirectory[str]
    path: Path


def drop(coming: tuple[Wanted, Future[CopiedFile]] | None) -> None:
    """Removes a copy that nobody needs, when it is there."""
    if coming is not None:
        coming[1].add_done_callback(
            lambda done: None if done.exception() else done.result().folder.cleanup()
        )


class RemoteFiles:
    """Files of one store. Names are those in the store, with its bucket or container."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._pool = ThreadPoolExecutor(1, "copy")
        self._next: Wanted | None = None
        self._coming: tuple[Wanted, Future[CopiedFile]] | None = None
        self._used: list[CopiedFile] = []  # read; the next one is written over it
        addresses = {address(pattern)[0] for pattern in patterns if MARK in pattern}
        if len(addresses) != 1 or not all(MARK in pattern for pattern in patterns):
            raise SourceError(
                "all files of a source must lie in one store.\n"
                "  to fix  give addresses that differ only behind the bucket, or join two streams"
            )
        self._root = addresses.pop()
        self._store: tuple[Any, str] | None = None
        self._listed: dict[str, ListedFile | None] = {}  # None: the listing told its name alone
        self._folders: dict[str, str] = {}  # of each pattern, once it was looked for

    def found(self, patterns: Sequence[str]) -> list[str]:
        """All files of some patterns in canonical order. One listing for each pattern."""
        self._listed = {
            info.path: None if info.size is None else facts_of(info)
            for pattern in patterns for info in self._matching(pattern)
        }  # fmt: skip
        return sorted(self._listed, key=lambda name: name.split("/"))

    def below(self, patterns: Sequence[str], names: Sequence[str]) -> list[str]:
        """The names of found files below the folder that holds all."""
        root = posixpath.commonpath({self._folders[pattern] for pattern in patterns})
        return [posixpath.relpath(name, root) for name in names]

    def facts(self, name: str) -> ListedFile:
        """What one is now."""
        [info] = asked(name, lambda: self._files.get_file_info([name]))
        if not info.is_file:
            raise FileGoneError(
                f"'{shown(name)}' disappeared while it was read.\n"
                "  to fix  restore it, and start again"
            )
        return facts_of(info)

    def listed(self, name: str) -> ListedFile:
        """What it was when the files were listed, as far as that told: no store is asked."""
        return self._listed[name] or self.facts(name)

    def exists(self, name: str) -> bool:
        """Whether it was there when the files were listed."""
        return name in self._listed

    def missing(self, patterns: Sequence[str]) -> str | None:
        """See `LocalFiles`. A store has no folders: there it is the bucket, if that may be told."""
        web = self._root.partition(MARK)[0] in WEB
        bases = [self._base_of(one) if web else self._opened()[1] for one in patterns]
        with suppress(OSError):
            if not any(info.type for info in self._files.get_file_info(bases)):  # none is found
                return f"{'folder' if web else 'bucket'} '{shown(posixpath.basename(bases[0]))}'"
        return None

    @contextmanager
    def local(self, name: str, columns: Columns = None) -> Iterator[Path]:
        """A copy to read, of one moment. The one that is expected is copied meanwhile."""
        wanted = Wanted(name, columns)
        coming, self._coming = self._coming, None
        if coming is not None and coming[0] == wanted:
            copied = coming[1].result()
        else:
            drop(coming)
            copied = self._copied(wanted)
        try:
            if self._next is not None and self._next.name != name:
                self._coming = self._next, self._pool.submit(self._copied, self._next)
            yield copied.path
        finally:
            self._used.append(copied)
            if self._next is None:
                self._clean()

    def expect(self, name: str | None, columns: Columns = None) -> None:
        """See `LocalFiles`."""
        self._next = None if name is None else Wanted(name, columns)

    def forget(self) -> None:
        """See `LocalFiles`."""
        drop(self._coming)
        self._next = self._coming = None
        self._clean()

    def _clean(self) -> None:
        while self._used:
            self._used.pop().folder.cleanup()

    def _copied(self, wanted: Wanted) -> CopiedFile:
        name = wanted.name
        folder, before = self._place()
        try:
            path = Path(folder.name) / PurePosixPath(name).name
            if before is not None:
                before.rename(path)
            told = (ask(name) for ask in (self.listed, self.facts))  # it may be another by now
            if not any(self._is_copied(wanted, one, path) for one in told):
                raise SourceError(
                    f"'{path.name}' changed while it was copied.\n"
                    "  to fix  start again, and put new rows in new files"
                )
        except BaseException:
            folder.cleanup()
            raise
        return CopiedFile(folder, path)

    def _is_copied(self, wanted: Wanted, told: ListedFile, path: Path) -> bool:
        """Copies a file; whether it was the listed version before the copy and after it."""
        name = wanted.name
        try:
            asked(name, lambda: self._copy(wanted, told.size, path))
        except SourceError:
            if is_same(told, self.facts(name)):
                raise
            return False
        now = self.facts(name)
        os.utime(path, ns=(now.time, now.time))
        return is_same(told, now) and path.stat().st_size == now.size

    def _place(self) -> tuple[tempfile.TemporaryDirectory[str], Path | None]:
        """A folder for a copy, and the file in it that is to be written over."""
        with suppress(IndexError):  # none is there: the first two copies
            return self._used.pop()
        return scratch_folder(), None

    def _copy(self, wanted: Wanted, size: int, path: Path) -> None:
        path.touch(0o600)
        files = self._files
        with path.open("r+b") as to, room(PIECE) as own:
            if wanted.columns is None or not hasattr(files, "open_input_file"):
                with files.open_input_stream(wanted.name, compression=None) as source:
                    while read := source.readinto(own):
                        to.write(own[:read])
                to.truncate()
                return
            with files.open_input_file(wanted.name) as source:
                found, tail = spans(source, size, wanted.columns)
                for start, end in found:
                    if start > to.tell():
                        to.truncate()  # between parts lie zeros
                    source.seek(start), to.seek(start)
                    while start < end and (read := source.readinto(own[: end - start])):
                        to.write(own[:read])
                        start += read
            to.truncate(), to.seek(size - len(tail))
            to.write(tail)

    def _matching(self, pattern: str) -> Iterator[Any]:
        from pyarrow import fs

        path = address(pattern)[1]
        base = self._base_of(pattern)
        wanted = path[len(fixed(path)) :].strip("/").split("/") if has_magic(path) else []
        named = self._root.partition(MARK)[0] in WEB and base.endswith(LIST)
        [one] = asked(base, lambda: self._files.get_file_info([base]))
        self._folders[pattern] = posixpath.dirname(base) if one.is_file else one.path.rstrip("/")
        if one.is_file and not wanted:
            yield one
            return
        selector = fs.FileSelector(base, allow_not_found=True, recursive=bool(wanted))
        for info in asked(base, lambda: self._files.get_file_info(selector)):
            parts = info.path[len(base) :].strip("/").split("/")
            known = matches(parts, wanted) if wanted else format_of(info.base_name) is not None
            if info.is_file and (known or named) and not is_temporary(info.base_name):
                yield info

    def _base_of(self, pattern: str) -> str:
        return f"{self._opened()[1].strip('/')}/{fixed(address(pattern)[1])}".rstrip("/")

    @property
    def _files(self) -> Any:
        return self._opened()[0]

    def _opened(self) -> tuple[Any, str]:
        if self._store is None:
            self._store = asked(self._root, lambda: opened(self._root))
        return self._store


T = TypeVar("T")


def opened(root: str) -> tuple[Any, str]:
    """What gives the files of a store, and how their names begin."""
    from pyarrow import fs

    scheme, _, host = root.partition(MARK)
    if scheme in WEB:
        from streamveil.connectors.http_files import HttpFiles  # loaded where a server is named

        return HttpFiles(root), host
    keys = {option: os.environ[name] for option, name in AZURE_KEYS.items() if os.environ.get(name)}
    host, _, settings = host.partition("?")
    account, _, container = host.rpartition("@")
    if scheme == "abfs" and keys and account and "." not in container:
        options = {name: value for name, value in parse_qsl(settings) if name.endswith(OF_AZURE)}
        return fs.AzureFileSystem(account, **keys, **options), container
    if scheme == "gs" and "retry_limit_seconds" not in settings:  # it asks for 15 minutes
        root = f"{root}{'&' if settings else '?'}retry_limit_seconds={RETRIED}"
    found: tuple[Any, str] = fs.FileSystem.from_uri(root)
    return found


def asked(name: str, action: Callable[[], T]) -> T:
    """What a store answers; in its own words if it fails: they are about names and settings."""
    try:
        return action()
    except (OSError, pa.ArrowInvalid) as error:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            raise no_scratch(f"keep a copy of '{shown(name)}'", error) from None
        raise SourceError(
            f"cannot read '{shown(name)}' from its store: {' '.join(str(error).split())[:300]}.\n"
            "  to fix  check the address, the settings behind its question mark, and the keys that"
            " the environment holds"
        ) from None


def facts_of(info: Any) -> ListedFile:
    """Of a listed file."""
    return ListedFile(info.size, info.mtime_ns or 0)


def is_same(listed: ListedFile, told: ListedFile) -> bool:
    """Whether a file is the listed one. Some stores give fractions of a second only in listings."""
    return listed.size == told.size and told.time in (listed.time, listed.time // SECOND * SECOND)


def has_magic(path: str) -> bool:
    """Whether a path is a pattern. In an address, a question mark begins settings."""
    return "*" in path or "[" in path


def fixed(path: str) -> str:
    """The part of a path before the first pattern.

    >>> fixed("logs/2026-*/a.csv"), fixed("logs/a.csv")
    ('logs', 'logs/a.csv')
    """
    parts = path.split("/")
    return "/".join(parts[: next((at for at, one in enumerate(parts) if has_magic(one)), None)])


def matches(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the parts of a path fit those of a pattern; `**` stands for any number of folders.

    >>> [matches(path.split("/"), ["**", "*.csv"]) for path in ("a.csv", "x/y/a.csv", "x/a.txt")]
    [True, True, False]
    """
    if not wanted:
        return not parts
    if wanted[0] == "**" and matches(parts, wanted[1:]):
        return True
    if not parts or not (wanted[0] == "**" or fnmatchcase(parts[0], wanted[0])):
        return False
    return matches(parts[1:], wanted if wanted[0] == "**" else wanted[1:])


def address(pattern: str) -> tuple[str, str]:
    """The store of an address and the path in it; SourceError where it is none, or holds a key.

    >>> address("s3://bucket/logs/*.csv?region=eu-west-1")
    ('s3://bucket?region=eu-west-1', 'logs/*.csv')
    """
    scheme, _, rest = pattern.partition(MARK)
    rest, _, settings = rest.partition("?")
    host, _, path = rest.partition("/")
    if scheme not in SCHEMES:
        raise SourceError(
            f"no files are read from '{scheme}://'{nearest(scheme, SCHEMES)}.\n"
            f"  to fix  give a path, or an address that begins with one of {', '.join(SCHEMES)}"
        )
    if scheme in WEB and ("?" in pattern or "@" in host):
        raise SourceError(
            "an address of files holds no keys, and one of the web no question mark.\n"
            "  to fix  put a user and a password into ~/.netrc, and signed addresses into a list"
            f" on the same server whose name ends in {LIST}"
        )
    unknown = {name for name, _ in parse_qsl(settings, keep_blank_values=True)} - {*SETTINGS}
    if unknown or ":" in host.rpartition("@")[0]:
        raise SourceError(
            f"an address of files holds no keys; its settings are {', '.join(SETTINGS)}.\n"
            "  to fix  give keys where the store's own programs look for them: AWS_ACCESS_KEY_ID"
            " and its like, a profile, or the identity of the machine"
        )
    if scheme == "az":
        scheme, host = "abfs", of_account(host)
    return f"{scheme}{MARK}{host}" + (f"?{settings}" if settings else ""), path


def of_account(container: str) -> str:
    """A container with its account, which the environment tells."""
    account = os.environ.get("AZURE_STORAGE_ACCOUNT")
    if "@" in container or account is None:
        if "@" not in container:
            raise SourceError(
                f"'az://{container}' does not tell its account.\n"
                f"  to fix  set AZURE_STORAGE_ACCOUNT, or write az://account@{container}"
            )
        return container
    return f"{account}@{container}"
