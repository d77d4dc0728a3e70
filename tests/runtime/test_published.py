"""Released numbers are read again: the same bytes, free, after any crash; others are refused."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.connectors import open_sink
from streamveil.connectors.sinks import FilesSink
from streamveil.core.noise import KeyedNoise
from streamveil.errors import PlanError, SourceError, StoreError
from streamveil.runtime import archive, published
from streamveil.runtime.job import Job
from streamveil.runtime.store import FORK, HEADER, CheckpointPolicy
from streamveil.runtime.tables import to_bytes
from tests.runtime.toy import SEEDED, Stream, work

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
OFTEN = CheckpointPolicy(log_bytes=500, log_per_state=0)


def run(folder, what=None, stop=None, **options):
    made = []
    with Job(folder, what or work(), SEEDED, **options) as job:
        for release in job:
            made.append(release)
            if len(made) == stop:
                break
    return made


def ledger(folder: Path) -> bytes:
    return (folder / "ledger").read_bytes()


@pytest.mark.parametrize("policy", [None, OFTEN])
@pytest.mark.parametrize("stop", [1, 3, 5])
def test_reads_give_the_published_bytes_before_and_after_a_crash(
    tmp_path, stop, policy, monkeypatch
):
    folder = tmp_path / "s"
    first = run(folder, stop=stop, policy=policy)
    charged = ledger(folder)
    seen = {(r.window, r.trigger): bytes(to_bytes(r.table)) for r in first}
    seen |= {(r.window, r.trigger): bytes(to_bytes(r.table)) for r in run(folder, policy=policy)}
    assert len(seen) == 6

    def none(*_):
        raise AssertionError("a read drew noise")

    monkeypatch.setattr(KeyedNoise, "at", none)
    releases = published.of_state(folder)
    assert releases.moments == sorted(seen)
    for moment, data in seen.items():
        assert bytes(to_bytes(releases.table(moment))) == data
        assert sv.read(folder, window=moment[0], trigger=moment[1]).table.num_rows == 8
    assert ledger(folder) == charged


def test_a_job_reads_while_it_runs(tmp_path):
    with Job(tmp_path / "s", work(), SEEDED) as job:
        first = next(job)
        assert job.read(0, 1).table.equals(first.table)
        for trigger in (0, 7):
            with pytest.raises(PlanError, match=f"there is no release {trigger} of window 0"):
                job.read(0, trigger)


def test_a_state_is_read_whenever_its_job_has_committed_and_not_yet_archived(tmp_path, monkeypatch):
    """A state was called damaged if all attempts to read it fell between the two."""
    waiting, contents = [], published.contents
    with Job(tmp_path / "s", work(Stream(batches=40)), SEEDED) as job:
        keep = job._archive.keep

        def late(*releases):
            for one in waiting:
                keep(*one)
            waiting[:] = [releases]

        def then_the_job_goes_on(*args):
            held = contents(*args)
            next(job)
            return held

        monkeypatch.setattr(job._archive, "keep", late)
        monkeypatch.setattr(published, "contents", then_the_job_goes_on)
        next(job)
        assert [one.trigger for one in published.of_state(tmp_path / "s").moments] == [1]


def test_what_the_archive_lost_in_a_crash_comes_back_from_the_log(tmp_path):
    folder = tmp_path / "s"
    run(folder, stop=3)
    whole = (folder / published.ARCHIVE).read_bytes()
    for cut in (1, 200, len(whole) // 2):  # pages that never reached the disk
        (folder / published.ARCHIVE).write_bytes(whole[:-cut])
        with pytest.raises(StoreError, match="lacks releases that were committed"):
            published.of_state(folder)
        with Job(folder, work(), SEEDED):
            pass
        assert (folder / published.ARCHIVE).read_bytes()[: len(whole)] == whole
    for place in (len(whole) - 9, len(whole) // 2):  # a page of zeros, its neighbours written
        (folder / published.ARCHIVE).write_bytes(whole[:place] + bytes(8) + whole[place + 8 :])
        with Job(folder, work(), SEEDED):
            pass
        assert (folder / published.ARCHIVE).read_bytes() == whole
    (folder / published.ARCHIVE).write_bytes(b"x" * 40)
    with pytest.raises(StoreError, match="damaged"):
        published.of_state(folder)


def test_an_archive_of_another_version_is_refused(tmp_path, monkeypatch):
    run(tmp_path / "s")
    monkeypatch.setattr(archive, "VERSION", 5)
    for reads in (published.of_state, run):
        with pytest.raises(StoreError, match="version 1; this streamveil reads version 5"):
            reads(tmp_path / "s")


def test_a_sink_that_keeps_releases_is_read_instead(tmp_path):
    folder, out = tmp_path / "s", tmp_path / "out"
    sink = FilesSink(str(out))
    made = run(folder, replace(work(), sink=sink))
    assert not (folder / published.ARCHIVE).exists()
    assert json.loads((folder / published.ELSEWHERE).read_text())["path"] == str(out)
    releases = published.of_state(folder)
    for release in made:
        again = releases.table(published.Moment(release.window, release.trigger))
        assert bytes(to_bytes(again)) == bytes(to_bytes(release.table))
    assert sv.read(out, trigger=2).table.equals(made[1].table)
    with pytest.raises(PlanError, match="trigger must be a whole number"):
        sv.read(out, trigger=[])


@pytest.mark.parametrize("policy", [None, OFTEN])
def test_releases_before_a_sink_had_another_folder_are_read_as_well(policy, tmp_path):
    """Those in the earlier folder were missing without a word, and `verify` called all whole."""
    folder, sinks = tmp_path / "s", [FilesSink(str(tmp_path / name)) for name in "abc"]
    made = run(folder, replace(work(), sink=sinks[0]), stop=2, policy=policy)
    made += run(folder, replace(work(), sink=sinks[1]), stop=2, policy=policy)
    (tmp_path / "a").rename(tmp_path / "c")  # a folder that was moved is where the sink is now
    made += run(folder, replace(work(), sink=sinks[2]), policy=policy)
    moments = {published.Moment(one.window, one.trigger) for one in made}
    assert set(published.of_state(folder).moments) == moments


def test_only_what_was_released_is_given(tmp_path):
    folder = tmp_path / "s"
    with pytest.raises(SourceError, match="no folder"):
        sv.read(folder)
    folder.mkdir()
    with pytest.raises(SourceError, match="no release"):
        sv.read(folder)
    run(tmp_path / "late", work(Stream(batches=1)))
    with pytest.raises(StoreError, match="has not released anything"):
        sv.read(tmp_path / "late")


def test_one_key_is_picked_by_value_or_text():
    table = pa.table({"k": ["a", "b", None], "m": [1, 2, 3], "n": [5, 6, 7]})
    names = ["k", "m"]
    assert published.rows_of(table, names, {"k": "b"})["n"].to_pylist() == [6]
    assert published.rows_of(table, names, {"m": "1"})["n"].to_pylist() == [5]
    assert published.rows_of(table, names, {"k": None})["n"].to_pylist() == [7]
    for key, words in (
        ({"k": "zz"}, "shows no such group"),
        ({"kk": "a"}, "is not a key column; did you mean"),
        ({"m": "one"}, "holds int64"),
    ):
        with pytest.raises(PlanError, match=words) as caught:
            published.rows_of(table, names, key)
        assert "zz" not in str(caught.value)


def test_a_key_is_found_by_what_is_typed_for_it():
    moments = pa.array([0, 1_000_000, None]).cast(pa.timestamp("us", "UTC"))
    table = pa.table({"at": moments, "size": [math.nan, 0.5, -math.inf], "n": [1, 2, 3]})

    def found(**key):
        return published.rows_of(table, ["at", "size"], key)["n"].to_pylist()

    assert found(at="1970-01-01 00:00:01") == found(at="1970-01-01T01:00:01+01:00") == [2]
    assert found(at="1970-01-01") == found(size="nan") == [1]
    assert found(size="-inf") == found(at=None) == [3]
    with pytest.raises(PlanError, match="'2026-01-31 12:00:00'"):
        found(at="one o'clock")


def test_the_folder_of_a_delta_table_is_told_to_be_none_of_a_sink_of_files(tmp_path):
    """It was said to give the folder of the sink, which it is."""
    pytest.importorskip("deltalake")
    sink = open_sink("delta", {"path": str(tmp_path / "out")})
    with Job(tmp_path / "s", replace(work(), sink=sink)) as job:
        list(job)
    with pytest.raises(SourceError, match=r"no release that a sink of files wrote[^$]*Delta"):
        published.read(tmp_path / "out")
    assert published.read(tmp_path / "s").trigger == 6


def test_a_fork_that_has_not_started_and_a_state_without_its_header_are_no_folders_of_sinks(
    tmp_path,
):
    fork = tmp_path / "fork"
    fork.mkdir()
    (fork / FORK).write_text("{}")
    with pytest.raises(StoreError, match="a fork that has not started"):
        sv.read(fork)
    run(tmp_path / "s")
    (tmp_path / "s" / HEADER).unlink()
    with pytest.raises(StoreError, match="is not a state directory"):
        sv.read(tmp_path / "s")
