"""Portions of a state are copied when due and never too late; nobody waits after a failure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamveil.disk import BLOCK
from streamveil.errors import StoreError
from streamveil.runtime import checkpoint
from streamveil.runtime.checkpoint import SPREAD, CopyBuffer, IncrementalCheckpoint
from streamveil.runtime.store import Header, Identity, Store
from streamveil.runtime.wal import JobPosition, Record
from tests.runtime.toy import Toy

PORTIONS = 10


@dataclass
class Added:
    """A draft that writes nothing."""

    names: list[str] = field(default_factory=list)

    def add(self, arrays: dict[str, np.ndarray], copies: CopyBuffer) -> None:
        self.names += arrays
        copies.copy([memoryview(array.view(np.uint8).data) for array in arrays.values()])


class Parted(Toy):
    """A toy whose state has portions of one block each."""

    def portions(self, state: Any) -> tuple[dict[str, np.ndarray], list[Callable[[], Any]]]:
        def portion(number: int) -> dict[str, np.ndarray]:
            return {f"part {number}": np.zeros(BLOCK, np.uint8)}

        return self.save(state), [lambda at=at: portion(at) for at in range(PORTIONS)]  # type: ignore[misc]  # the default binds it


def begun(copies: CopyBuffer, operator: Any = None) -> tuple[IncrementalCheckpoint, Added]:
    draft, operator = Added(), operator or Parted()
    return IncrementalCheckpoint(draft, operator, operator.init(), copies), draft  # type: ignore[arg-type]  # as a draft


def test_an_operator_without_portions_is_saved_at_once() -> None:
    checkpoint, draft = begun(CopyBuffer(), Toy())
    assert draft.names == ["totals", "steps"]
    assert checkpoint.go_on(0)


def test_portions_are_due_by_their_share_of_the_patience() -> None:
    checkpoint, draft = begun(CopyBuffer())
    for used_up, copied in ((0, 0), (0.31, 4), (0.31, 4), (0.5, 5), (0.95, 10)):
        whole = checkpoint.go_on(used_up * SPREAD)
        assert len(draft.names) == 2 + copied
        assert whole == (copied == PORTIONS)


def test_portions_wait_for_room_until_they_are_late() -> None:
    copies = CopyBuffer(5 * BLOCK)
    checkpoint, draft = begun(copies)
    assert not checkpoint.go_on(0.9 * SPREAD)
    assert 2 < len(draft.names) < 7, "the buffer is full"
    real, waited = copies.copy, list[int]()

    def copy(parts: Any) -> memoryview:
        while not copies.has_room(BLOCK):
            waited.append(1)
            copies.give_back()
        return real(parts)

    copies.copy = copy  # type: ignore[method-assign]
    assert checkpoint.go_on(SPREAD)
    assert waited
    assert draft.names[2:] == [f"part {number}" for number in range(PORTIONS)]


def test_nobody_waits_for_memory_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copies = Store(tmp_path / "s"), CopyBuffer(2 * BLOCK)
    store.begin(Header(Identity("toy", "f00d", "toy", 1), "e0", "", secure=False))
    store.finish()

    def full(draft: checkpoint.CheckpointDraft, head: Any, body: Any) -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(checkpoint.CheckpointDraft, "_put", full)
    draft = store.begin_checkpoint(checkpoint.Saved(Record(JobPosition(1), {})))
    for _ in range(9):
        draft.add({"x": np.zeros(BLOCK, np.uint8)}, copies)
    store.finish_checkpoint(draft, 1, None)
    with pytest.raises(StoreError, match="earlier write"):
        store.wait()
    store.close()
    assert not list((tmp_path / "s").glob("checkpoint-*[0-9]"))
