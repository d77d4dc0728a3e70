"""Large writes past the page cache: the same bytes, wherever they begin and whatever is refused."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamveil import disk
from streamveil.disk import BLOCK, LARGE_BYTES, write_all

REAL_WRITE = os.write
DATA = np.random.default_rng(1).integers(0, 256, 3 * LARGE_BYTES + 777, np.uint8).tobytes()
SIZES = [100, BLOCK, LARGE_BYTES - 1, LARGE_BYTES, LARGE_BYTES + 1, len(DATA)]


def write(path: Path, size: int, start: int = 0, cuts: int = 7) -> bytes:
    """What a file holds after some bytes were written in uneven pieces behind others."""
    data = memoryview(DATA)[:size]
    ends = sorted({0, size, *(size * n // cuts for n in range(cuts))})
    parts = [data[a:b] for a, b in pairwise(ends)]
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, bytes(start))
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        assert write_all(fd, parts) == size
        assert fcntl.fcntl(fd, fcntl.F_GETFL) == flags
        assert os.lseek(fd, 0, os.SEEK_CUR) == start + size
    finally:
        os.close(fd)
    return path.read_bytes()[start:]


@pytest.mark.parametrize("start", [0, 5, BLOCK])
@pytest.mark.parametrize("size", SIZES)
def test_all_bytes_arrive(tmp_path: Path, size: int, start: int) -> None:
    assert write(tmp_path / "x", size, start) == DATA[:size]


def test_large_writes_go_past_the_cache_from_a_block_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not disk.DIRECT:
        pytest.skip("no such writes on this system")
    seen: list[tuple[bool, int]] = []

    def watched(fd: int, data: Any) -> int:
        seen.append((bool(fcntl.fcntl(fd, fcntl.F_GETFL) & disk.DIRECT), len(data)))
        return REAL_WRITE(fd, data)

    monkeypatch.setattr(os, "write", watched)
    write(tmp_path / "x", len(DATA))
    assert sum(size for direct, size in seen if direct) == len(DATA) - len(DATA) % BLOCK
    seen.clear()
    write(tmp_path / "y", len(DATA), start=8)
    write(tmp_path / "z", LARGE_BYTES - 1)
    assert not any(direct for direct, _ in seen)


def faulty(at: int, strike: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
    calls = 0

    def call(fd: int, data: Any) -> int:
        nonlocal calls
        calls += 1
        return strike(fd, data) if calls == at else REAL_WRITE(fd, data)

    return call


def short(fd: int, data: Any) -> int:
    """Some bytes, no whole block."""
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~disk.DIRECT)
    return REAL_WRITE(fd, bytes(data[: BLOCK + 100]))


def refused(_fd: int, _data: Any) -> int:
    raise OSError(errno.EINVAL, "not aligned")


@pytest.mark.parametrize("strike", [short, refused])
@pytest.mark.parametrize("at", [2, 3])  # the first call writes what comes before
def test_what_is_cut_short_or_refused_goes_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, strike: Any
) -> None:
    monkeypatch.setattr(disk, "ROOM_BYTES", 1 << 17)
    monkeypatch.setattr(os, "write", faulty(at, strike))
    assert write(tmp_path / "x", len(DATA)) == DATA


def test_an_error_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int, _data: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", faulty(2, full))
    with pytest.raises(OSError, match="full"):
        write(tmp_path / "x", len(DATA))


def test_a_file_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with disk.created(path) as file:
        file.write([memoryview(b"one"), memoryview(b"two")])
        assert not path.exists()
    assert path.read_bytes() == b"onetwo"

    def killed() -> None:
        with disk.created(path) as file:
            file.write([memoryview(b"half")])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert path.read_bytes() == b"onetwo", "what fails leaves the one before"


def test_a_system_without_such_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "DIRECT", 0)
    assert write(tmp_path / "x", len(DATA)) == DATA


def test_what_lies_in_whole_pages_is_written_without_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with disk.room(len(DATA)) as own:
        own[: len(DATA)] = DATA
        monkeypatch.setattr(disk, "gathered", None)
        fd = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
        assert write_all(fd, [own[: len(DATA)]]) == len(DATA)
        os.close(fd)
    assert (tmp_path / "x").read_bytes() == DATA


def test_rooms_are_apart_while_they_are_used_and_used_again_afterwards() -> None:
    def place(own: memoryview) -> int:
        return int(np.frombuffer(own, np.uint8).__array_interface__["data"][0])

    with disk.room(1000) as one, disk.room(1000) as other:
        places = {place(one), place(other)}
        assert len(places) == 2
    with disk.room(500) as one, disk.room(1500) as other:
        assert {place(one), place(other)} == places
    with disk.room(2 * disk.KEPT_BYTES) as large:
        assert len(large) >= 2 * disk.KEPT_BYTES
    with disk.room(1) as one:
        assert len(one) <= disk.KEPT_BYTES


def test_a_room_is_used_again_and_the_smallest_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_kept", [])
    with disk.room(BLOCK) as small, disk.room(100 * BLOCK) as large:
        sizes = [len(small), len(large)]
        small[:1], large[:1] = b"s", b"l"
    for size, mark in [(BLOCK, b"s"), (50 * BLOCK, b"l"), (2, b"s"), (100 * BLOCK, b"l")]:
        with disk.room(size) as again:
            assert bytes(again[:1]) == mark
    with disk.room(1000 * BLOCK) as larger:
        assert len(larger) > max(sizes)
    assert sorted(map(len, disk._kept)) == sorted([sizes[0], len(larger)])
