"""Copies in a buffer: equal to the original, apart from it, and good until given back."""

from __future__ import annotations

import threading
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.disk import BLOCK
from streamveil.runtime import checkpoint, frame
from streamveil.runtime.checkpoint import CopyBuffer, needed


def parts(*sizes: int) -> list[memoryview]:
    return [memoryview(np.random.default_rng(size).bytes(size)) for size in sizes]


@pytest.mark.parametrize("sizes", [(), (0,), (1, 0, 7), (BLOCK,), (5000, 8, 70_000)])
def test_a_copy_is_the_body_of_a_frame_in_whole_blocks(sizes: tuple[int, ...]) -> None:
    copy, crc = CopyBuffer().copy(parts(*sizes))
    assert crc == zlib.crc32(copy)
    body = b"".join(frame.padded(parts(*sizes)))
    assert bytes(copy[: len(body)]) == body
    assert not any(copy[len(body) :])
    assert len(copy) % BLOCK == 0 == np.frombuffer(copy, np.uint8).ctypes.data % BLOCK


@given(st.lists(st.tuples(st.integers(0, 5 * BLOCK), st.booleans()), max_size=30))
def test_copies_never_meet(steps: list[tuple[int, bool]]) -> None:
    kept, held = CopyBuffer(4 * BLOCK), list[tuple[memoryview, bytes]]()
    for size, gives in steps:
        if held and gives:
            kept.give_back()
            held.pop(0)
        while held and not kept.has_room(size):
            kept.give_back()
            held.pop(0)
        content = parts(size)
        held.append((kept.copy(content).data, bytes(content[0])))
        for copy, before in held:
            assert bytes(copy[: len(before)]) == before


def test_who_is_too_early_waits() -> None:
    kept, order = CopyBuffer(4 * BLOCK), list[str]()
    kept.copy(parts(2 * BLOCK))
    kept.copy(parts(BLOCK))

    def late() -> None:
        kept.copy(parts(2 * BLOCK))
        order.append("copied")

    thread = threading.Thread(target=late)
    thread.start()
    thread.join(0.05)
    order.append("given back")
    kept.give_back()
    thread.join(100)
    assert order == ["given back", "copied"]


def test_a_larger_copy_makes_the_ring_larger_once_it_is_empty() -> None:
    kept = CopyBuffer(2 * BLOCK)
    kept.copy(parts(10))
    assert not kept.has_room(9 * BLOCK)
    kept.give_back()
    assert kept.has_room(9 * BLOCK)
    assert len(kept.copy(parts(9 * BLOCK)).data) == 9 * BLOCK == needed(parts(9 * BLOCK))


def test_memory_is_used_again() -> None:
    kept = CopyBuffer()
    places = set()
    for _ in range(100):
        places.add(np.frombuffer(kept.copy(parts(10)).data, np.uint8).ctypes.data)
        kept.give_back()
    assert len(places) == 1


def test_room_to_grow_and_advice_may_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = checkpoint.mmap.mmap, list[int]()

    def strict(fd: int, size: int, flags: int) -> Any:
        asked.append(size)
        if size > checkpoint.SIZE:
            raise OSError("no memory")
        return real(fd, size, flags)

    monkeypatch.setattr(checkpoint.mmap, "mmap", strict)
    monkeypatch.setattr(checkpoint.mmap, "MADV_HUGEPAGE", 12345, raising=False)
    assert bytes(CopyBuffer().copy(parts(BLOCK)).data) == bytes(parts(BLOCK)[0])
    assert asked[-1] == checkpoint.SIZE < asked[-2]
