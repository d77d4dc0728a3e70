"""Memory that copies of a state pass through on their way to a checkpoint.

Memory that a process has never touched costs the kernel a fault and a cleared page: many times the
copy itself. So all copies pass through the same few pages, one after the other. If there is no
room, a copy waits until the oldest one has been written.
"""

from __future__ import annotations

import mmap
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from threading import Condition
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.connectors.blocks import BLOCK, OWN, advise, crc32, in_scratch, to_block
from streamveil.runtime.frame import padded, padding, put

SIZE = 32 << 20  # bytes in use at once, unless a single copy is larger
ROOM_TO_GROW = 4  # reserved per byte needed; what is not touched takes no memory


class Copy(NamedTuple):
    """A copy and its checksum, which is taken while it is in the cache."""

    data: memoryview
    crc: int


class CopyBuffer:
    """Copies lie one behind the other, and are given back in the order they were made in."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._room = mmap.mmap(-1, mmap.PAGESIZE, OWN)
        self._used = deque[tuple[int, int]]()  # first and last byte of each copy, in order
        self._changed = Condition()

    def has_room(self, size: int) -> bool:
        """Whether a copy of so many bytes would not have to wait."""
        with self._changed:
            return self._start(size + BLOCK) is not None

    def copy(self, parts: Sequence[memoryview]) -> Copy:
        """All parts, each padded as in a frame, with zeros up to the end of a block."""
        size = needed(parts)
        with self._changed:
            self._changed.wait_for(lambda: self._start(size) is not None)
            start = self._start(size) or 0
            self._used.append((start, start + size))
        room = memoryview(self._room)[start : start + size]
        into = np.frombuffer(room, np.uint8)
        at, crc = put(padded(parts), into)
        into[at:] = 0
        return Copy(room, crc32(room[at:], crc))

    def give_back(self) -> None:
        """The oldest copy is not needed any more."""
        with self._changed:
            self._used.popleft()
            self._changed.notify()

    def _start(self, size: int) -> int | None:
        """Where a copy may lie now; None: nowhere yet."""
        if not self._used:
            self._reserve(size)
            return 0
        first, end = self._used[0][0], self._used[-1][1]
        if end <= first:  # the latest copies lie before the oldest
            return end if end + size <= first else None
        if end + size <= self._size:
            return end
        return 0 if size <= first else None

    def _reserve(self, size: int) -> None:
        """Makes the buffer large enough; only while nothing lies in it."""
        self._size = max(self._size, size)
        if len(self._room) < self._size:
            self._room = reserved(self._size)
            advise(self._room)


def needed(parts: Sequence[memoryview]) -> int:
    """Bytes of a copy, whole blocks."""
    size = sum(len(part) + padding(len(part)) for part in parts)
    return max(BLOCK, size + to_block(size))


def reserved(size: int) -> mmap.mmap:
    """Memory of a size, and room to grow where the system grants it."""
    try:
        return mmap.mmap(-1, size * ROOM_TO_GROW, OWN)
    except OSError:
        return mmap.mmap(-1, size, OWN)


# ---- a buffer of tables that may outgrow memory

SPILL_BYTES = 1 << 26  # what is more goes to a file without a name


class SpillBuffer:
    """Tables in the order in which they were added.

    >>> buffer = SpillBuffer()
    >>> buffer.add(pa.table({"n": [1]}))
    >>> [table.num_rows for table in buffer]
    [1]
    """

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: Any = None

    def add(self, table: pa.Table) -> None:
        """Puts a table on the buffer."""
        self._tables.append(table)
        self._bytes += table.nbytes
        if self._bytes > SPILL_BYTES:
            self._spill()

    def _spill(self) -> None:
        with in_scratch("set rows aside"):
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="streamveil-")  # noqa: SIM115
                self._writer = pa.ipc.new_stream(self._file, self._tables[0].schema)
            for table in self._tables:
                self._writer.write_table(table)
        self._tables, self._bytes = [], 0

    def __iter__(self) -> Iterator[pa.Table]:
        """All tables; none can be added after."""
        if self._file is not None:
            with in_scratch("set rows aside"):
                self._writer.close()
                self._file.seek(0)
            for batch in pa.ipc.open_stream(self._file):
                yield pa.Table.from_batches([batch])
        yield from self._tables
