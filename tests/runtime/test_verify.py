"""`streamveil verify` reads everything, and names what is damaged."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streamveil.accounts.ledger import Ledger
from streamveil.cli import app
from streamveil.connectors.sinks import FilesSink
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Gdp
from streamveil.disk import LOCK
from streamveil.errors import StoreError
from streamveil.runtime.backup import backup
from streamveil.runtime.job import Job
from streamveil.runtime.rejects import Routing
from streamveil.runtime.secret import Randomness
from streamveil.runtime.spark_state import Home, PublishedStep, SparkHeader
from streamveil.runtime.store import CheckpointPolicy
from streamveil.runtime.verify import verify
from tests.runtime.toy import COLUMNS, Stream, work

ONCE = CheckpointPolicy(log_bytes=4000, log_per_state=100)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A job that keeps releases, and rejected rows in another directory."""
    routing = Routing(directory=tmp_path / "aside", columns=COLUMNS)
    done = replace(work(Stream(batches=24)), rejects=routing)
    with Job(tmp_path / "s", done, Randomness(), policy=ONCE) as job:
        list(job)
    return tmp_path / "s"


def damaged(folder: Path) -> set[str]:
    return {one.part for one in verify(folder) if not one.is_whole}


def test_a_whole_state_is_said_to_be_whole_and_is_not_changed(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    words = {one.part: one.words for one in verify(folder) if one.is_whole}
    assert words.keys() == {
        "identity", "secret", "ledger", "checkpoint", "log", "archive", "sink", "rejected rows"
    }  # fmt: skip
    assert "12 releases" in words["archive"]
    assert "8 files" in words["rejected rows"]
    assert "to 24" in words["log"]
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("state.json", {"identity"}),
        ("secret", {"secret"}),
        ("ledger", {"ledger"}),
        ("checkpoint-", {"checkpoint", "log", "archive", "sink"}),
        ("log-", {"log", "archive"}),
        ("releases", {"archive", "sink"}),
        ("rejects.json", {"rejected rows"}),
        ("../aside/batch-000000000004.parquet", {"rejected rows"}),
        ("../aside/_owner.json", {"rejected rows"}),
    ],
)
def test_every_damaged_file_is_named_and_the_exit_code_tells(
    folder: Path, name: str, parts: set[str]
) -> None:
    assert CliRunner().invoke(app, ["verify", str(folder)]).exit_code == 0
    path = next(iter(folder.glob(f"{name}*")), folder / name)
    data = bytearray(path.read_bytes())
    data[40 if path.suffix == ".parquet" else len(data) // 2] ^= 8
    path.write_bytes(data)
    found = damaged(folder)
    assert found
    assert found <= parts
    told = CliRunner().invoke(app, ["verify", str(folder)])
    assert told.exit_code == 4
    assert "damaged" in told.output


def test_releases_of_a_sink_are_read_too(tmp_path: Path) -> None:
    with Job(tmp_path / "s", replace(work(), sink=FilesSink(str(tmp_path / "out")))) as job:
        list(job)
    assert not damaged(tmp_path / "s")
    path = next((tmp_path / "out").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-9])
    assert damaged(tmp_path / "s") == {"sink"}
    (tmp_path / "s" / "sink.json").write_text("{}")
    assert "sink" in damaged(tmp_path / "s")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_state_on_a_read_only_device_is_verified_and_copied(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    if not is_there:  # in copies it is not
        (folder / LOCK).unlink()
    before, opened = sorted(folder.iterdir()), os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).startswith(str(folder)) and flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr("streamveil.disk.os.open", read_only)
    assert damaged(folder) == set()
    backup(folder, tmp_path / "copy")
    with pytest.raises(StoreError, match="Read-only"):
        Job(folder, work(Stream(batches=24)), Randomness())
    assert before == sorted(folder.iterdir())


def test_a_release_that_its_sink_has_lost_is_told(tmp_path: Path) -> None:
    """The sink was called whole. Its folder is no part of a backup, which is made all the same."""
    with Job(tmp_path / "s", replace(work(), sink=FilesSink(str(tmp_path / "out")))) as job:
        list(job)
    files = sorted((tmp_path / "out").rglob("*.parquet"))
    files[-1].unlink()  # as where a job died before it wrote it
    assert not damaged(tmp_path / "s")
    files[2].unlink()
    [words] = [one.words for one in verify(tmp_path / "s") if not one.is_whole]
    assert "lacks 1 release between those that it has, first number 3 of window 0" in words
    backup(tmp_path / "s", tmp_path / "copy")


def test_a_state_whose_job_has_released_nothing_yet_is_whole(tmp_path: Path) -> None:
    """It was called damaged, and could not be backed up."""
    Job(tmp_path / "s", replace(work(), sink=FilesSink(str(tmp_path / "out")))).close()
    assert not damaged(tmp_path / "s")


def test_what_runs_or_is_no_state_is_not_verified(tmp_path: Path) -> None:
    assert [one.is_whole for one in verify(tmp_path)] == [False]
    with pytest.raises(StoreError, match="there is no directory"):
        verify(tmp_path / "nowhere")
    with Job(tmp_path / "s", work()), pytest.raises(StoreError, match="another process"):
        verify(tmp_path / "s")


def test_a_state_on_spark_that_lost_a_part_is_not_whole(tmp_path: Path) -> None:
    """It was called whole, and 'step 0 was published'."""
    state, home = tmp_path / "s", Home(tmp_path / "s")
    (state / "checkpoint" / "offsets").mkdir(parents=True)
    (state / "checkpoint" / "offsets" / "1").write_text('v1\n{}\n{"step": 2}')
    (state / "shards").mkdir()
    home._write(
        SparkHeader(
            fingerprint="", calibration="", shards=1, storage=None, epoch="00", noise_check=""
        )
    )
    home.commit(PublishedStep(step=2))
    assert not damaged(state)
    for part in ("committed", "checkpoint", "shards"):
        (state / part).rename(tmp_path / part)
        assert damaged(state) == {"mark"}
        (tmp_path / part).rename(state / part)


def test_damaged_notes_of_a_state_on_spark_are_named(tmp_path: Path) -> None:
    home, mark = Home(tmp_path), PublishedStep(step=3, rows=20, tags=9)
    home.commit(mark)
    assert home.mark == mark
    path = tmp_path / "committed"
    path.write_text(path.read_text().replace('"step": 3', '"step": 2'))
    for text in (path.read_text(), "", "[]", "{}", path.read_text()[:30]):
        path.write_text(text)
        with pytest.raises(StoreError, match="'committed' in the state directory is damaged"):
            assert home.mark
    (tmp_path / "spark.json").write_text("null")
    assert damaged(tmp_path) == {"identity", "ledger", "mark"}


def test_a_charge_whose_last_byte_changed_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with Ledger.open(path, Budget(mu=1), Neighbours("user")) as ledger:
        ledger.charge("a", Gdp(0.9))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\x0b")
    with pytest.raises(StoreError, match="was altered"), Ledger.load(path) as ledger:
        ledger.charge("b", Gdp(0.9))
    path.write_bytes(whole + whole[-90:-40])  # a record that was never acknowledged
    with Ledger.load(path) as ledger:
        assert [one.name for one in ledger.entries()] == ["a"]
