"""An append-only file of JSON records: none can be changed, dropped or reordered unseen.

One record is one line `{"hash": ..., "record": ...}`. The hash covers the record and the hash of
the line before it, so every line vouches for all lines above. Not covered: cutting whole lines off
the end leaves a valid shorter file; whoever must notice that keeps `head` elsewhere and gives it to
`Ledger.verify`.

A line is written and synced before `append` returns. A line without its end was never acknowledged,
so it is cut off when the next record is appended. An exclusive lock is held only while reading or
appending, so that many processes can share one journal; each reads what the others have added.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from errno import EACCES, EPERM, EROFS
from pathlib import Path
from typing import Any

from streamveil.connectors.blocks import sync_directory
from streamveil.errors import StoreError

Record = dict[str, Any]
START = "0" * 32
OPENING = b'{"hash":"'  # of every line
NO_WRITING = (EROFS, EACCES, EPERM)  # errors of a file that may still be read


ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def chain(previous: str, text: str) -> str:
    """The hash of a record's text that follows `previous`."""
    return hashlib.blake2b(f"{previous}{text}".encode(), digest_size=16).hexdigest()


class Journal:
    """The records of one file, or of this process's memory when there is no path."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.head = START  # the hash of the last record read or appended
        self._at = 0  # bytes read so far, always at a line's start
        self._file: int | None = None
        self._locked = False
        self._refused: OSError | None = None  # why nothing can be written to the open file

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the exclusive lock of the file; waits for other processes."""
        if self._locked or self.path is None:
            yield
            return
        file = self._open()
        fcntl.flock(file, fcntl.LOCK_EX)
        self._locked = True
        try:
            yield
        finally:
            self._locked = False
            fcntl.flock(file, fcntl.LOCK_UN)

    def unread(self) -> list[Record]:
        """The records appended since the last call, by anyone; StoreError when one was altered."""
        return [record for record, _ in self._unread()]

    @property
    def name(self) -> str:
        """What messages call it."""
        return "in memory" if self.path is None else self.path.stem

    def make(self) -> None:
        """Nothing: a file is made when it is opened."""

    def exists(self) -> bool:
        """Whether there is a file."""
        return self.path is not None and self.path.is_file()

    def reread(self) -> list[str]:
        """The hashes of all records, read again from the first; refuses a torn tail."""
        if self.path is None:
            return [self.head]
        fresh = Journal(self.path)
        with fresh.locked():
            torn = has_torn_tail(self.path)
            hashes = [claimed for _, claimed in fresh._unread()]
        fresh.close()
        if torn:
            raise StoreError(f"{self.path} ends within a record; it was never acknowledged")
        return hashes

    def _unread(self) -> list[tuple[Record, str]]:
        if self.path is None:
            return []
        with self.locked():
            size = os.fstat(self._open()).st_size
            if size < self._at:
                raise StoreError(f"{self.path} has lost records.\n  to fix  restore it from a copy")
            data = _read(self._open(), self._at, size)
        if not self._at:
            self._require_ours(data)
        whole = data[: data.rfind(b"\n") + 1]  # a torn tail was never acknowledged
        self._require_torn(data[len(whole) :])
        found = []
        for line in whole.splitlines():
            record, self.head = self._checked(line)
            found.append((record, self.head))
        self._at += len(whole)
        return found

    def _require_ours(self, data: bytes) -> None:
        """Refuses a file of another kind: it would be cut off as a torn tail, or called altered.

        A power failure may leave a file its size but none of its bytes: zeros.
        """
        if any(data) and not OPENING.startswith(data[: len(OPENING)]):
            raise StoreError(
                f"{self.path} is not a ledger of streamveil, and was left as it is.\n"
                "  to fix  name the ledger's own file, or one that does not exist yet"
            )

    def _require_torn(self, tail: bytes) -> None:
        """Refuses a whole record whose last byte is another than it was: it was acknowledged."""
        with suppress(ValueError):
            json.loads(tail[:-1])
            raise altered(str(self.path))

    def append(self, records: Sequence[Record]) -> None:
        """Adds records with one write and one sync: all of them are durable, or none is.

        The caller holds the lock and has read to the end.
        """
        lines, head = [], self.head
        for record in records:
            text = ENCODER.encode(record)
            head = chain(head, text)
            lines.append(f'{{"hash":"{head}","record":{text}}}\n')
        if self.path is not None:
            self._write("".join(lines).encode())
        self.head = head

    def close(self) -> None:
        """Gives the file back; the journal may be used again."""
        if self._file is not None:
            os.close(self._file)
            self._file = self._refused = None

    def __del__(self) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        file = self._open()
        if self._refused is not None:
            raise self._unwritten(self._refused) from self._refused
        try:
            os.ftruncate(file, self._at)  # a torn tail
            done = 0
            while done < len(data):
                done += os.pwrite(file, data[done:], self._at + done)
            os.fsync(file)
        except OSError as error:
            os.ftruncate(file, self._at)
            raise self._unwritten(error) from error
        self._at += len(data)

    def _unwritten(self, error: OSError) -> StoreError:
        return StoreError(
            f"{self.path} could not be written: {error.strerror}. Nothing was recorded.\n"
            "  to fix  free space or repair the disk or its permissions, then start again"
        )

    def _checked(self, line: bytes) -> tuple[Record, str]:
        try:
            entry = json.loads(line)
            record, claimed = entry["record"], entry["hash"]
        except (ValueError, KeyError, TypeError):
            record, claimed = None, ""
        return record, checked(str(self.path), self.head, record, claimed)

    def _open(self) -> int:
        if self._file is None:
            assert self.path is not None  # noqa: S101  (callers return early without a path)
            fresh = not self.path.exists()
            try:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                self._file = self._open_to_read(error)
            if fresh:
                sync_directory(self.path.parent)
        return self._file

    def _open_to_read(self, error: OSError) -> int:
        """The file of a backup, or of somebody else: what was charged may be read all the same."""
        assert self.path is not None  # noqa: S101  (there was something to open)
        if error.errno in NO_WRITING:
            with suppress(OSError):
                file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                self._refused = error
                return file
        raise StoreError(
            f"{self.path} cannot be opened: {error.strerror}.\n"
            "  to fix  let this user read and write it and its folder, then start again"
        ) from error


def checked(where: str, head: str, record: Record | None, claimed: str) -> str:
    """The hash of a record that follows `head`, which must be the one that is claimed."""
    if record is None or chain(head, ENCODER.encode(record)) != claimed:
        raise altered(where)
    return claimed


def altered(where: str) -> StoreError:
    """What to say of records that are not as they were written."""
    return StoreError(
        f"{where} was altered: a record does not match its hash.\n"
        "  to fix  restore it from a copy; nothing more may be charged to it"
    )


def has_torn_tail(path: Path) -> bool:
    """Whether the file ends within a line."""
    data = path.read_bytes()
    return bool(data) and not data.endswith(b"\n")


def _read(file: int, start: int, end: int) -> bytes:
    parts = []
    while start < end:
        part = os.pread(file, end - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)
