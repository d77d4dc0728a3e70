"""Copies of a state in memory that is kept: equal to it, apart from it, and good until the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamveil.runtime import spare
from streamveil.runtime.spare import Spare, copied


def state(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {
        "words": rng.integers(0, 2**60, rows).astype(np.uint64), "none": np.zeros(0, np.int16),
        "flags": rng.random(rows) < 0.5, "turned": rng.random((rows, 3)).T,
        "part": np.arange(2 * rows)[::2], "one": np.array(7),
    }  # fmt: skip


@pytest.mark.parametrize("rows", [1, 30_001, 200_000])
def test_a_copy_is_equal_and_apart(rows: int) -> None:
    kept = Spare()
    for _ in range(3):
        arrays = state(rows)
        copies = kept.copy(arrays)
        for name, copy in copies.items():
            assert copy.dtype == arrays[name].dtype
            assert copy.shape == arrays[name].shape
            assert np.array_equal(copy, arrays[name])
            assert not np.shares_memory(copy, arrays[name])
            copy[...] = 0
        assert all(np.array_equal(state(rows)[name], arrays[name]) for name in arrays)
        kept.rest()


def test_memory_is_kept_while_it_suffices() -> None:
    kept = Spare()
    places = [
        kept.copy(state(rows))["words"].__array_interface__["data"][0]
        for rows in (100_000, 150_000, 100_000, 1_800_000, 1_800_000)
    ]
    assert places[0] == places[1] == places[2] != places[3] == places[4]


def test_what_lies_in_a_file_is_passed_on(tmp_path: Path) -> None:
    np.arange(300_000).tofile(tmp_path / "x")
    held = np.memmap(tmp_path / "x", np.int64, "r")
    arrays = {**state(50_000), "held": held}
    assert Spare().copy(arrays)["held"] is held
    assert copied(arrays)["held"] is held
    assert not np.shares_memory(copied(arrays)["words"], arrays["words"])


def test_room_to_grow_may_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real, asked = spare.mmap.mmap, list[int]()

    def strict(fd: int, size: int, flags: int) -> Any:
        asked.append(size)
        if size > 20_000_000:
            raise OSError("no memory")
        return real(fd, size, flags)

    monkeypatch.setattr(spare.mmap, "mmap", strict)
    arrays = state(200_000)
    assert np.array_equal(Spare().copy(arrays)["words"], arrays["words"])
    assert asked[-1] < 20_000_000 < asked[-2]


def test_a_system_that_takes_no_advice_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare.mmap, "MADV_HUGEPAGE", 12345, raising=False)
    assert len(Spare().copy(state(200_000))["words"]) == 200_000
