"""Memory for the copy of a state that a checkpoint is written from.

Memory that a process has never touched costs the kernel a fault and a cleared page: several times
the copy itself. A job without a memory limit therefore keeps the pages of one copy for the next;
in between they are marked as free to be taken by whoever needs memory.
"""

from __future__ import annotations

import mmap

import numpy as np

from streamveil.types import Array

FEWEST_BYTES = 1 << 20  # smaller states are copied without ado
ROOM_TO_GROW = 16  # reserved per byte needed; what is not touched takes no memory
ALIGNMENT = 64
OWN = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


class Spare:
    """Keeps the memory of one copy. A copy is good until the next one is made."""

    def __init__(self) -> None:
        self._room = mmap.mmap(-1, mmap.PAGESIZE, OWN)

    def copy(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """The same arrays, which nobody changes until the next call.

        What lies in a file, read only, is passed on as it is.
        """
        moving = {name: array for name, array in arrays.items() if not on_disk(array)}
        needed = sum(padded(array.nbytes) for array in moving.values())
        if needed < FEWEST_BYTES:
            return {**arrays, **{name: array.copy() for name, array in moving.items()}}
        self._reserve(needed)
        copies, at = dict[str, Array](), 0
        for name, array in moving.items():
            copy = np.frombuffer(self._room, array.dtype, array.size, at).reshape(array.shape)
            np.copyto(copy, array)
            copies[name] = copy
            at += padded(array.nbytes)
        return {**arrays, **copies}

    def _reserve(self, needed: int) -> None:
        if len(self._room) < needed:
            self._room = reserved(needed)
            advise(self._room, "MADV_HUGEPAGE")

    def rest(self) -> None:
        """The last copy is not needed any more."""
        advise(self._room, "MADV_FREE")


def reserved(needed: int) -> mmap.mmap:
    """Room for a copy, and to grow where the system grants it."""
    try:
        return mmap.mmap(-1, needed * ROOM_TO_GROW, OWN)
    except OSError:
        return mmap.mmap(-1, needed, OWN)


def copied(arrays: dict[str, Array]) -> dict[str, Array]:
    """The same arrays in memory of their own, but for what lies in a file."""
    return {name: array if on_disk(array) else array.copy() for name, array in arrays.items()}


def on_disk(array: Array) -> bool:
    """Whether an array is a read-only map of a file, which the operator will not change."""
    return isinstance(array, np.memmap) and not array.flags.writeable


def padded(size: int) -> int:
    """Bytes that an array takes in a copy."""
    return size + -size % ALIGNMENT


def advise(room: mmap.mmap, advice: str) -> None:
    """Tells the system about memory, where it listens."""
    number = getattr(mmap, advice, None)
    if number is not None:
        try:
            room.madvise(number)
        except OSError:  # a kernel without it: nothing is lost
            return
