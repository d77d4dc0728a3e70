"""The archive: damage is refused or mended, never taken for the end; it may be bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from streamveil.errors import PlanError, StoreError
from streamveil.runtime import archive, published
from streamveil.runtime.archive import ARCHIVE, contents
from streamveil.runtime.job import Job
from streamveil.runtime.store import CheckpointPolicy, read_header
from streamveil.runtime.tables import to_bytes
from tests.runtime.toy import SEEDED, Stream, work

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
ONCE = CheckpointPolicy(log_bytes=3500, log_per_state=100)  # in the middle of a run
STREAM = Stream(batches=24)


def run(folder: Path, stop: int | None = None, *, keep: int | None = None) -> None:
    with Job(folder, replace(work(STREAM), keep_releases=keep), SEEDED, policy=ONCE) as job:
        for number, _ in enumerate(job, start=1):
            if number == stop:
                break


def read(folder: Path) -> dict[published.Moment, bytes]:
    """Every release that is read back."""
    releases = published.of_state(folder)
    return {place: bytes(to_bytes(releases.table(place))) for place in releases.moments}


def held(folder: Path) -> archive.Contents:
    header = read_header(folder)
    assert header is not None
    return contents(folder / ARCHIVE, header.epoch)


def vouched(folder: Path) -> int:
    """How many releases the checkpoint knew."""
    header = read_header(folder)
    assert header is not None
    extent = published.led_to(folder, header).extent
    assert extent is not None
    return extent.releases


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def test_a_bit_in_the_head_of_an_early_release_is_no_end(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    run(folder, 11)
    assert 3 < vouched(folder) < 11
    path = folder / ARCHIVE
    flip(path, held(folder).entries[2].offset + 40)
    damaged = path.read_bytes()
    for action in (read, run):
        with pytest.raises(StoreError, match="'releases' in the state directory is damaged"):
            action(folder)
        assert path.read_bytes() == damaged, "what follows the damage is not deleted"


def mutations(folder: Path) -> dict[str, Callable[[bytes], bytes]]:
    entries = held(folder).entries
    early, last = entries[1], entries[-1]

    def head_of(one: archive.Entry) -> Callable[[bytes], bytes]:
        return lambda data: data[: one.offset + 40] + b"!" + data[one.offset + 41 :]

    after = entries[vouched(folder)]
    return {
        "body of an early one": lambda data: data[: early.end - 9] + b"!" + data[early.end - 8 :],
        "an early one removed": lambda data: data[: early.offset] + data[early.end :],
        "an early one twice": lambda data: data[: early.end] + data[early.offset :],
        "cut within an early one": lambda data: data[: early.end - 1],
        "cut after an early one": lambda data: data[: early.end],
        "nothing": lambda data: b"",
        "zeros": lambda data: bytes(len(data)),
        "head of a late one": head_of(after),
        "a late one removed": lambda data: data[: after.offset] + data[after.end :],
        "cut before the last": lambda data: data[: last.offset],
        "cut within the last": lambda data: data[: last.end - 20],
    }  # fmt: skip


def test_damage_is_refused_or_mended_from_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    run(folder, 9)
    path = folder / ARCHIVE
    state = {one: one.read_bytes() for one in folder.iterdir()}
    expected, refused = read(folder), set()
    run(tmp_path / "unbroken")
    for what, change in mutations(folder).items():
        for one in folder.iterdir():
            one.unlink()
        for one, data in state.items():
            one.write_bytes(data)
            one.chmod(0o600)
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(StoreError):
            assert read(folder) != expected, what
        try:
            run(folder)
        except StoreError:
            refused.add(what)
        else:
            assert read(folder) == read(tmp_path / "unbroken"), what
    mended = {"head of a late one", "a late one removed", "cut before the last"}
    assert refused == mutations(tmp_path / "unbroken").keys() - mended - {"cut within the last"}


def test_an_archive_that_is_ahead_of_the_log_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    run(folder, 9)
    segment = max(folder.glob("log-*"))
    segment.write_bytes(segment.read_bytes()[:-20])
    with pytest.raises(StoreError, match="lost its last micro-batches"):
        run(folder)


def test_a_lost_archive_is_refused_once_a_checkpoint_needs_it(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    run(folder, 2)
    (folder / ARCHIVE).unlink()
    run(folder, 2)
    assert len(read(folder)) >= 3
    run(folder, 9)
    (folder / ARCHIVE).unlink()
    for action in (read, run):
        with pytest.raises(StoreError, match="has lost its releases"):
            action(folder)


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_a_bounded_archive_keeps_the_newest_releases(tmp_path: Path, stop: int) -> None:
    run(tmp_path / "all")
    whole = read(tmp_path / "all")
    folder = tmp_path / "s"
    for _ in range(4):
        run(folder, stop, keep=2)
        assert 1 <= len(held(folder).entries) <= 4
    run(folder, keep=2)
    kept = read(folder)
    assert 2 <= len(kept) < 4
    assert kept == dict(list(whole.items())[-len(kept) :])
    with pytest.raises(PlanError, match="earlier ones are not kept any more"):
        published.read(folder, window=0, trigger=1)
    run(folder)  # without the bound: what is there stays, and nothing comes back
    assert read(folder) == kept
    for none in (0, True):
        with pytest.raises(PlanError, match="keep_releases must be a whole number"):
            run(folder, keep=none)
