"""The log and checkpoints: torn tails are cut, damage and strangers are refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from streamveil.disk import BLOCK
from streamveil.errors import StoreError
from streamveil.runtime import checkpoint, frame, wal
from streamveil.runtime.checkpoint import CopyBuffer
from streamveil.runtime.tables import Mark

EPOCH = "e0"


def record(batch: int) -> wal.Record:
    place = wal.JobPosition(batch, batch, True, f"at {batch}", {"late": batch})
    return wal.Record(
        place, {"x": np.arange(batch)}, (Mark(0, batch, batch, 7, 1000 + batch, 0.1 * batch),)
    )


def saved(batch: int) -> checkpoint.Saved:
    return checkpoint.Saved(record(batch), (pa.table({"n": [batch]}),))


def put(folder: Path, batch: int, until: int = 0) -> None:
    """Writes a whole checkpoint, in two portions."""

    def at_once(work: checkpoint.Work, after: checkpoint.Work | None = None) -> None:
        work()
        if after is not None:
            after()

    draft = checkpoint.CheckpointDraft(folder, EPOCH, saved(batch), at_once)
    copies = CopyBuffer(8192)
    draft.add({"x": np.arange(batch)}, copies)
    draft.add({"y": np.arange(2 * batch)}, copies)
    needs = checkpoint.Needs(wal.Until(until or batch, hash_after(folder, until or batch)), None)
    draft.finish(needs)
    draft.close()


def hash_after(folder: Path, batch: int) -> str:
    """The hash of the log after a batch, or some other where there is none."""
    parts = wal.linked(wal.kept(folder), EPOCH, wal.heads_only)
    return next((one.hash for one in parts if one.batch == batch), frame.first_hash(EPOCH))


def write(folder: Path, batches: range) -> None:
    log = wal.Log(folder, EPOCH)
    if batches.start > 1 and wal.kept(folder):
        log.hash = hash_after(folder, batches.start - 1)
    log.start(batches.start - 1)
    for batch in batches:
        log.append(record(batch))
    log.close()


def read(folder: Path, after: int = 0) -> list[wal.Record]:
    log = wal.Log(folder, EPOCH)
    records = list(log.replay(after))
    log.close()
    return records


def segment(folder: Path) -> Path:
    return wal.kept(folder)[-1][1]


def test_what_is_appended_is_replayed(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    again = read(tmp_path)
    assert [one.place for one in again] == [record(batch).place for batch in (1, 2, 3)]
    assert [one.delta["x"].tolist() for one in again] == [[0], [0, 1], [0, 1, 2]]
    assert [one.releases for one in again] == [record(batch).releases for batch in (1, 2, 3)]


def test_every_torn_tail_is_cut_and_the_log_goes_on(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    path = segment(tmp_path)
    two = path.stat().st_size
    log = wal.Log(tmp_path, EPOCH)
    list(log.replay(0))
    log.append(record(3))
    log.close()
    whole = path.read_bytes()
    for end in range(two, len(whole)):
        path.write_bytes(whole[:end])
        log = wal.Log(tmp_path, EPOCH)
        assert len(list(log.replay(0))) == 2
        assert path.stat().st_size == two
        log.append(record(3))
        log.close()
        assert path.read_bytes() == whole


def test_a_changed_bit_is_damage_unless_it_is_in_the_tail(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    path = segment(tmp_path)
    whole = path.read_bytes()
    with wal.to_frame([record(3)], hash_after(tmp_path, 2)) as buffers:
        last = len(whole) - sum(map(len, buffers))
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        if place < last:
            with pytest.raises(StoreError, match="damaged"):
                read(tmp_path)
            assert len(path.read_bytes()) == len(whole), "nothing may be cut from a damaged log"
        else:
            assert len(read(tmp_path)) == 2


def test_segments_chain(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    write(tmp_path, range(4, 6))
    assert [one.place.batch for one in read(tmp_path)] == [1, 2, 3, 4, 5]
    assert [one.place.batch for one in read(tmp_path, after=3)] == [4, 5]
    assert [one.place.batch for one in read(tmp_path, after=2)] == [3, 4, 5]
    wal.kept(tmp_path)[0][1].unlink()
    assert [one.place.batch for one in read(tmp_path, after=3)] == [4, 5]
    with pytest.raises(StoreError, match="lost its log"):
        read(tmp_path, after=2)


def test_segments_that_a_checkpoint_replaced_may_be_left_with_gaps(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    write(tmp_path, range(3, 5))
    write(tmp_path, range(5, 7))
    wal.kept(tmp_path)[1][1].unlink()  # a power failure kept this removal, not the one before it
    assert [one.place.batch for one in read(tmp_path, after=4)] == [5, 6]
    assert [one.place.batch for one in read(tmp_path, after=5)] == [6]
    with pytest.raises(StoreError, match="damaged"):
        read(tmp_path, after=3)


def test_a_gap_is_damage(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    write(tmp_path, range(4, 6))
    with pytest.raises(StoreError, match="damaged"):
        read(tmp_path)


def test_another_run_and_another_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, range(1, 3))
    with pytest.raises(StoreError, match="another run"):
        list(wal.Log(tmp_path, "other").replay(0))
    monkeypatch.setattr(wal, "VERSION", 7)
    with pytest.raises(StoreError, match="version 1; this streamveil reads version 7"):
        read(tmp_path)


def test_a_checkpoint_replaces_what_came_before(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    put(tmp_path, 1)
    log = wal.Log(tmp_path, EPOCH)
    log.start(3)
    log.close()
    put(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-000000000003",
        "log-000000000003",
    ]
    read = checkpoint.read(tmp_path, EPOCH)
    assert read is not None
    assert read.record.place == record(3).place
    assert {name: held.tolist() for name, held in read.record.delta.items()} == {
        "x": [0, 1, 2], "y": [0, 1, 2, 3, 4, 5]
    }  # fmt: skip
    assert [one.table.to_pydict() for one in read.releases] == [{"n": [3]}]
    assert [(one.window, one.trigger, one.step) for one in read.releases] == [(0, 3, 3)]


def test_a_checkpoint_of_another_run_or_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, 3)
    with pytest.raises(StoreError, match="another run"):
        checkpoint.read(tmp_path, "other")
    monkeypatch.setattr(checkpoint, "VERSION", 7)
    with pytest.raises(StoreError, match="version 1; this streamveil reads version 7"):
        checkpoint.read(tmp_path, EPOCH)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    put(tmp_path, 3)
    path = tmp_path / "checkpoint-000000000003"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(StoreError, match="damaged"):
            checkpoint.read(tmp_path, EPOCH)
    starts = [start for start in range(0, len(whole), BLOCK) if whole[start:][:4] == frame.MAGIC]
    assert len(starts) == 4
    for start, end in pairwise(
        [*starts, len(whole)]
    ):  # every frame is whole, but not all are there
        path.write_bytes(whole[:start] + whole[end:])
        with pytest.raises(StoreError, match="damaged" if start else "format version None"):
            checkpoint.read(tmp_path, EPOCH)


def test_a_checkpoint_needs_the_log_up_to_its_last_portion(tmp_path: Path) -> None:
    write(tmp_path, range(1, 5))
    put(tmp_path, 2, until=4)
    saved = checkpoint.read(tmp_path, EPOCH)
    assert saved is not None
    assert saved.needs is not None
    until = saved.needs.log
    assert until.batch == 4
    log = wal.Log(tmp_path, EPOCH)
    assert [one.place.batch for one in log.replay(2, until)] == [3, 4]
    log.close()
    size = segment(tmp_path).stat().st_size
    with pytest.raises(StoreError, match="lost its log after batch 4"):
        list(wal.Log(tmp_path, EPOCH).replay(2, wal.Until(5, until.hash)))
    with pytest.raises(StoreError, match="damaged"):
        list(wal.Log(tmp_path, EPOCH).replay(2, wal.Until(4, "00")))
    assert segment(tmp_path).stat().st_size == size


def test_a_checkpoint_that_comes_while_the_log_is_read_is_seen(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    tries = 0

    def read_log(saved: list[tuple[int, Path]]) -> list[int]:
        nonlocal tries
        tries += 1
        if tries == 1:  # a job goes on between the two listings
            write(tmp_path, range(4, 6))
            put(tmp_path, 3, until=5)
        if tries == 2:
            write(tmp_path, range(6, 7))
            put(tmp_path, 5, until=6)
            saved[-1][1].stat()
        segments = wal.needed(tmp_path, saved[-1][0] if saved else 0)
        return [one.batch for one in wal.linked(segments, EPOCH, wal.heads_only) if one.is_record]

    assert checkpoint.at_one_moment(tmp_path, read_log) == [6]
    assert tries == 3
    for _, path in wal.kept(tmp_path):
        path.unlink()
    with pytest.raises(StoreError, match="lost its log"):
        checkpoint.at_one_moment(tmp_path, read_log)


def test_a_record_of_another_job_or_another_place_is_damage(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    path, other = segment(tmp_path), tmp_path / "other"
    other.mkdir()
    log = wal.Log(other, EPOCH)
    log.start(0)
    log.append(replace(record(1), delta={}))
    log.append(record(2))
    log.close()
    mine, theirs = (frames(one) for one in (path, segment(other)))
    for wrong in (
        [mine[0], mine[1], theirs[2], mine[3]],
        [mine[0], mine[2], mine[1], mine[3]],
        [mine[0], mine[1], mine[1], mine[2], mine[3]],
        [mine[0], mine[1], mine[3]],
        mine[1:],
    ):
        path.write_bytes(b"".join(wrong))
        with pytest.raises(StoreError, match=r"damaged|version None"):
            read(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(StoreError, match="damaged"):
        read(tmp_path)


def frames(path: Path) -> list[bytes]:
    """The frames of a file, each as it is."""
    with path.open("rb") as file:
        places = [(offset, sizes.frame) for offset, _, sizes in frame.heads(file)]
    return [path.read_bytes()[start : start + size] for start, size in places]


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    put(tmp_path, 1)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
