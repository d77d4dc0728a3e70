"""Memory that copies of a state pass through on their way to a checkpoint.

Memory that a process has never touched costs the kernel a fault and a cleared page: many times the
copy itself. So all copies pass through the same few pages, one after the other; who is too early
waits until what was copied first is written.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Sequence
from threading import Condition

import numpy as np

from streamveil.connectors.blocks import BLOCK, OWN, to_block
from streamveil.runtime.frame import padding

SIZE = 32 << 20  # bytes in use at once, unless a single copy is larger
ROOM_TO_GROW = 4  # reserved per byte needed; what is not touched takes no memory


class Ring:
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

    def copy(self, parts: Sequence[memoryview]) -> memoryview:
        """All parts, each padded as in a frame, with zeros up to the end of a block."""
        size = needed(parts)
        with self._changed:
            self._changed.wait_for(lambda: self._start(size) is not None)
            start = self._start(size) or 0
            self._used.append((start, start + size))
        room = memoryview(self._room)[start : start + size]
        into, at = np.frombuffer(room, np.uint8), 0
        for part in parts:
            into[at : at + len(part)] = part
            at += len(part)
            into[at : at + padding(at)] = 0
            at += padding(at)
        into[at:] = 0
        return room

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
        """Makes the ring large enough; only while nothing lies in it."""
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


def advise(room: mmap.mmap) -> None:
    """Asks for huge pages, where the system knows them."""
    number = getattr(mmap, "MADV_HUGEPAGE", None)
    if number is not None:
        try:
            room.madvise(number)
        except OSError:  # a kernel without them: nothing is lost
            return
