"""A job over a toy operator: durable, resumable, and refusing what it must refuse."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamveil.batch import Batch, Release
from streamveil.connectors.sinks import MemorySink
from streamveil.core.accounting import Budget
from streamveil.core.noise import KeyedDraws, KeyedNoise, SeededNoise, SilentNoise
from streamveil.errors import BudgetError, PlanError, SourceError, StoreError
from streamveil.runtime import store
from streamveil.runtime.job import Job, Work, begin
from streamveil.runtime.progress import Progress
from streamveil.runtime.secret import Randomness
from streamveil.runtime.store import CheckpointPolicy
from streamveil.runtime.wal import Log, Record
from tests.runtime.toy import LIMIT, SEEDED, State, Stream, Toy, work

pytestmark = pytest.mark.filterwarnings("ignore:insecure noise")
OFTEN = CheckpointPolicy(log_bytes=1500, log_per_state=0)
SECRET = bytes(range(32))


@pytest.fixture(autouse=True)
def _no_secret_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMVEIL_SECRET", raising=False)


def run(
    folder: Path, what: Work | None = None, keys: Randomness = SEEDED, **options: Any
) -> list[Release]:
    with Job(folder, what or work(), keys, **options) as job:
        return list(job)


def values(releases: list[Release]) -> list[list[int]]:
    return [release.table["n"].to_pylist() for release in releases]


def stop_after(folder: Path, releases: int, keys: Randomness = SEEDED, **options: Any) -> None:
    with Job(folder, work(), keys, **options) as job:
        for _ in range(releases):
            next(job)


def test_silent_releases_are_running_counts(tmp_path: Path) -> None:
    released = run(tmp_path / "s", keys=Randomness(noise=SilentNoise(), insecure=True))
    rows = np.concatenate([Stream().batch(number).rows["key"].to_numpy() for number in range(12)])
    expected = [np.bincount(rows[: 40 * step], minlength=8).tolist() for step in range(1, 7)]
    assert values(released) == expected
    assert [(one.window, one.trigger, one.step) for one in released] == [
        (0, step, step) for step in range(1, 7)
    ]


@pytest.mark.parametrize("policy", [None, OFTEN])
@pytest.mark.parametrize("stop", range(1, 6))
def test_stopping_anywhere_changes_nothing(tmp_path: Path, stop: int, policy: Any) -> None:
    expected = values(run(tmp_path / "unbroken"))
    stop_after(tmp_path / "broken", stop, policy=policy)
    seen = run(tmp_path / "broken", policy=policy)
    assert values(seen) == expected[seen[0].trigger - 1 :]
    assert seen[0].trigger <= stop + 1, "a release was lost"


def test_names_that_a_killed_process_gave_are_durable_before_more_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, synced = os.fsync, list[int]()

    def killed_at(place: int | None) -> Callable[[int], None]:
        def fsync(fd: int) -> None:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                synced.append(status.st_ino)
                if place is not None and len(synced) >= place:
                    raise KeyboardInterrupt  # what it gave a name has it, but not durably
            sync(fd)

        return fsync

    killed, place = True, 0
    while killed:
        place, killed, synced = place + 1, False, []
        folder = tmp_path / str(place) / "of" / "all" / "states"
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", killed_at(place))
            try:
                run(folder, policy=OFTEN)
            except (KeyboardInterrupt, StoreError):  # there, or where the job waits for it
                killed = True
            undone, synced = synced[place - 1 :], []
            patch.setattr(os, "fsync", killed_at(None))
            with Job(folder, work(), SEEDED) as job:
                next(job)
        assert {*undone} <= {*synced}, place
    assert place > 10


@pytest.mark.parametrize("why", [errno.EACCES, errno.EROFS, errno.EINVAL, errno.EIO])
def test_a_folder_that_none_of_us_made_need_not_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    """A mounted state lies in a folder that its job may not read, or that no one may change."""
    (tmp_path / "s").mkdir()
    above, sync = tmp_path.stat().st_ino, os.fsync

    def fsync(fd: int) -> None:
        if os.fstat(fd).st_ino == above:
            raise OSError(why, os.strerror(why))
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    if why == errno.EIO:
        with pytest.raises(StoreError, match="Input/output error"):
            run(tmp_path / "s")
    else:
        assert run(tmp_path / "s")


def test_a_job_that_stopped_at_an_error_does_not_seem_to_be_done(tmp_path: Path) -> None:
    """A loop that tried again came to its end at once, as if nothing were left to release."""

    class Failing(MemorySink):
        def write(self, job: str, release: Release) -> None:
            raise OSError("unplugged")

    with Job(tmp_path / "s", work(sink=Failing()), SEEDED) as job:
        with pytest.raises(OSError, match="unplugged"):
            next(job)
        with pytest.raises(StoreError, match=r"stopped by an error(.|\n)*to fix"):
            next(job)
    assert len(run(tmp_path / "s", work())) == 6


def test_a_finished_job_shows_its_last_release_again(tmp_path: Path) -> None:
    expected = values(run(tmp_path / "s"))
    assert values(run(tmp_path / "s")) == expected[-1:]


def test_a_longer_stream_goes_on(tmp_path: Path) -> None:
    expected = values(run(tmp_path / "unbroken", work(Stream(batches=20))))
    run(tmp_path / "s", policy=OFTEN)
    assert values(run(tmp_path / "s", work(Stream(batches=20)))) == expected[5:]


def test_every_release_reaches_the_sink_under_its_identity(tmp_path: Path) -> None:
    sink = MemorySink()
    released = run(tmp_path / "s", work(sink=sink))
    assert list(sink.releases) == [("toy", 0, trigger) for trigger in range(1, 7)]
    assert [table["n"].to_pylist() for table in sink.releases.values()] == values(released)


def test_a_sink_that_fails_gets_the_committed_release_again(tmp_path: Path) -> None:
    class Failing(MemorySink):
        def write(self, job: str, release: Release) -> None:
            if release.trigger == 3:
                raise OSError("unplugged")
            super().write(job, release)

    with pytest.raises(OSError, match="unplugged"):
        run(tmp_path / "s", work(sink=Failing()))
    sink = MemorySink()
    released = run(tmp_path / "s", work(sink=sink))
    assert [one.trigger for one in released] == [3, 4, 5, 6]
    assert list(sink.releases) == [("toy", 0, trigger) for trigger in range(3, 7)]


def test_the_source_is_never_read_far_ahead(tmp_path: Path) -> None:
    read = 0

    def counted(position: str | None) -> Iterator[Batch]:
        nonlocal read
        for batch in Stream(batches=100, per_step=1)(position):
            read += 1
            yield batch

    with Job(tmp_path / "s", work(counted), SEEDED) as job:
        for taken in range(1, 20):
            next(job)
            assert read <= taken + 5


def test_a_source_error_ends_the_run_and_a_restart_goes_on(tmp_path: Path) -> None:
    expected = values(run(tmp_path / "unbroken"))

    def broken(position: str | None) -> Iterator[Batch]:
        for batch in Stream()(position):
            if batch.step == 4:
                raise SourceError("the file is gone")
            yield batch

    seen: list[Release] = []
    job = Job(tmp_path / "s", work(broken), SEEDED)
    with pytest.raises(SourceError, match="gone"):
        seen.extend(job)
    job.close()
    seen += run(tmp_path / "s")
    assert {one.trigger: one.table["n"].to_pylist() for one in seen} == dict(
        enumerate(expected, start=1)
    )


def test_keyed_noise_differs_between_states_and_not_between_lives(tmp_path: Path) -> None:
    stop_after(tmp_path / "a", 1, Randomness(secret=SECRET))
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    first, copy = (
        values(run(tmp_path / name, keys=Randomness(secret=SECRET)))[-1] for name in ("a", "copy")
    )
    other = values(run(tmp_path / "b", keys=Randomness(secret=SECRET)))[-1]
    assert first == copy
    assert first != other


def test_a_secure_noise_gets_the_epoch_of_the_state(tmp_path: Path) -> None:
    keys = Randomness(noise=KeyedNoise(SECRET))
    assert values(run(tmp_path / "a", keys=keys)) != values(run(tmp_path / "b", keys=keys))
    assert run(tmp_path / "a", keys=keys)
    assert not (tmp_path / "a" / "secret").exists()


def test_the_secret_is_kept_in_one_private_file_only(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    run(folder, keys=Randomness(), policy=OFTEN)
    path = folder / "secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    secret = path.read_text().strip()
    for other in folder.iterdir():
        if other != path:
            assert bytes.fromhex(secret) not in other.read_bytes()
            assert secret.encode() not in other.read_bytes()


def test_a_secret_from_elsewhere_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(SECRET.hex())
    (tmp_path / "key").chmod(0o600)
    monkeypatch.setenv("MY_KEY", SECRET.hex())
    ways = [
        SECRET,
        SECRET.hex(),
        "env:MY_KEY",
        f"file:{tmp_path / 'key'}",
        f"command:cat {tmp_path / 'key'}",
    ]
    for way in ways:
        assert run(tmp_path / "s", keys=Randomness(secret=way))
    monkeypatch.setenv("STREAMVEIL_SECRET", SECRET.hex())
    assert run(tmp_path / "s", keys=Randomness())
    assert not (tmp_path / "s" / "secret").exists()


@pytest.mark.parametrize(
    "way",
    [
        "env:NOT_SET",
        "command:false",
        "command:no-such-program",
        "command:",
        "short",
        "file:/nonexistent",
        b"short",
    ],
)
def test_a_secret_that_is_none_is_refused_before_anything_is_spent(
    tmp_path: Path, way: str | bytes
) -> None:
    with pytest.raises(StoreError):
        run(tmp_path / "s", keys=Randomness(secret=way))
    assert not (tmp_path / "s" / "ledger").exists()


def test_a_readable_secret_file_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "s", keys=Randomness())
    (tmp_path / "s" / "secret").chmod(0o640)
    with pytest.raises(StoreError, match="chmod 600"):
        run(tmp_path / "s", keys=Randomness())


def test_a_moved_state_resumes_with_its_secret_and_refuses_without(tmp_path: Path) -> None:
    stop_after(tmp_path / "s", 2, Randomness())
    shutil.copytree(tmp_path / "s", tmp_path / "witness")
    shutil.move(tmp_path / "s", tmp_path / "moved")
    (tmp_path / "moved" / "secret").rename(tmp_path / "kept")
    with pytest.raises(StoreError, match="does not hold its secret"):
        run(tmp_path / "moved", keys=Randomness())
    with pytest.raises(StoreError, match="not the one"):
        run(tmp_path / "moved", keys=Randomness(secret=SECRET))
    resumed = run(tmp_path / "moved", keys=Randomness(secret=f"file:{tmp_path / 'kept'}"))
    assert values(resumed) == values(run(tmp_path / "witness", keys=Randomness()))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"fingerprint": "beef"}, "query"),
        ({"name": "other"}, "name"),
        ({"operator": replace(Toy(), kind="tree")}, "operator"),
    ],
)
def test_a_changed_job_is_refused(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    run(tmp_path / "s")
    before = {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    with pytest.raises(StoreError, match=word):
        run(tmp_path / "s", replace(work(), **change))
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("ledger", "lost its ledger"),
        ("state.json", "lost its 'state.json'"),
        ("log-000000000000", "lost its log"),
    ],
)
def test_a_lost_file_is_refused(tmp_path: Path, name: str, word: str) -> None:
    run(tmp_path / "s")
    (tmp_path / "s" / name).unlink()
    with pytest.raises(StoreError, match=word):
        run(tmp_path / "s")


def test_a_ledger_without_the_charge_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "s")
    ledger = tmp_path / "s" / "ledger"
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(StoreError, match="charge"):
        run(tmp_path / "s")


@pytest.mark.parametrize("text", ["", "{}", "[]", "nonsense"])
def test_a_damaged_header_is_refused(tmp_path: Path, text: str) -> None:
    run(tmp_path / "s")
    (tmp_path / "s" / "state.json").write_text(text)
    with pytest.raises(StoreError, match=r"state\.json"):
        run(tmp_path / "s")


def test_a_changed_header_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "s")
    path = tmp_path / "s" / "state.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "epoch": "00" * 16}))
    with pytest.raises(StoreError, match="damaged"):
        run(tmp_path / "s")
    path.write_text(json.dumps({**content, "version": 4}))
    with pytest.raises(StoreError, match="version 4; this streamveil reads version 1"):
        run(tmp_path / "s")


def test_whatever_a_power_failure_leaves_of_a_discarded_state_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "s"
    begin(state, work(), Randomness())
    with monkeypatch.context() as patch:
        patch.setattr(store, "rmtree", lambda _: None)  # nothing of it became durable
        store.discard(state)
    (state / "secret").unlink()  # but this
    assert run(state, keys=Randomness())


def test_a_foreign_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StoreError, match="not empty"):
        run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    (tmp_path / "state.json").write_text('{"version": 4, "lineage": ""}')
    with pytest.raises(StoreError, match=r"'state.json' in .* of another program"):
        run(tmp_path)  # it was to be run by "the streamveil that wrote it"


def test_the_state_of_a_job_on_spark_is_refused_and_told(tmp_path: Path) -> None:
    for name in ("spark.json", "ledger"):
        (tmp_path / name).touch()
    with pytest.raises(StoreError, match="job that runs on Spark"):
        run(tmp_path)


def test_a_file_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(StoreError, match="'notes' is a file"):
        run(tmp_path / "notes")
    with pytest.raises(StoreError, match="'null' is a file"):
        run(Path("/dev/null"))


def test_a_second_start_is_refused(tmp_path: Path) -> None:
    with Job(tmp_path / "s", work(), SEEDED) as job:
        next(job)
        with pytest.raises(StoreError, match="another process"):
            Job(tmp_path / "s", work(), SEEDED)
    assert run(tmp_path / "s")


def lock_removed(state: Path) -> None:
    """What somebody does who takes a lock for a left-over."""
    (state / "lock").unlink()


def moved_and_restored(state: Path) -> None:
    """What somebody does who takes a job for dead."""
    shutil.copytree(state, state.with_name("backup"))
    state.rename(state.with_name("old"))
    state.with_name("backup").rename(state)


@pytest.mark.parametrize("lost", [lock_removed, moved_and_restored])
@pytest.mark.parametrize("when", ["before", "while it commits"])
def test_a_job_that_lost_its_lock_publishes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Callable[[Path], None], when: str
) -> None:
    """A second job with its noise may have begun, and may read other rows.

    The planted fault, until this was mended: both went on, and their difference had no noise.
    """
    append = Log.append

    def losing(log: Log, *records: Record) -> None:
        append(log, *records)
        lost(log.directory)

    sink = MemorySink()
    with Job(tmp_path / "s", replace(work(), sink=sink), SEEDED) as job:
        seen = [next(job) for _ in range(2)]
        published = len(sink.releases)
        if when == "before":
            lost(tmp_path / "s")
        else:
            monkeypatch.setattr(Log, "append", losing)
        with pytest.raises(StoreError, match="was moved, or the file 'lock' in it was removed"):
            list(job)
        assert len(sink.releases) <= published + 1, "what was being sent"
        monkeypatch.undo()
        with Job(tmp_path / "s", work(), SEEDED) as second:
            seen += list(second)
    assert values(seen[-4:]) == values(run(tmp_path / "whole"))[-4:]


def test_a_job_that_is_making_a_release_is_neither_asked_nor_closed(tmp_path: Path) -> None:
    """Its listener is called in another thread meanwhile."""
    said: list[str] = []

    def hear(_: Progress) -> None:
        for action in (lambda: next(job), job.close):
            with pytest.raises(StoreError, match="in one thread") as refused:
                action()
            said.append(str(refused.value))

    with Job(tmp_path / "s", work(), SEEDED, progress=hear) as job:
        seen = list(job)
    assert said
    assert values(seen) == values(run(tmp_path / "alone"))


def in_a_child(action: Callable[[], object]) -> str:
    """What an action says in a process that is forked now."""
    here, there = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(30)  # whoever runs a parent's job waits for its threads for ever
        try:
            said = str(action())
        except StoreError as error:
            said = str(error)
        os.write(there, said.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(there)
    with os.fdopen(here) as heard:
        return heard.read()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of forks beside threads
@pytest.mark.parametrize("taken", [0, 2])
def test_a_forked_child_cannot_run_its_parents_job(tmp_path: Path, taken: int) -> None:
    expected = values(run(tmp_path / "unforked"))
    with Job(tmp_path / "s", work(), SEEDED) as job:
        seen = [next(job) for _ in range(taken)]
        before = (tmp_path / "s" / "log-000000000000").stat().st_size if not taken else None
        assert "forked" in in_a_child(lambda: next(job))
        assert "None" in in_a_child(job.close)  # lets go of its own copies only
        if before is not None:
            assert (tmp_path / "s" / "log-000000000000").stat().st_size == before
        with pytest.raises(StoreError, match="another process"):
            Job(tmp_path / "s", work(), SEEDED)
        seen += list(job)
    assert values(seen) == expected
    assert run(tmp_path / "s")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_lives_on_does_not_keep_the_state(tmp_path: Path) -> None:
    with Job(tmp_path / "s", work(), SEEDED) as job:
        until, end = os.pipe()
        child = os.fork()
        if not child:
            os.close(end)
            os.read(until, 1)
            os._exit(0)
        list(job)
    try:
        assert run(tmp_path / "s")
    finally:
        os.close(end)
        os.waitpid(child, 0)


def test_overspending_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(BudgetError):
            run(tmp_path / "s", replace(work(), limit=Budget(mu=0.1)))
    assert not list((tmp_path / "s").glob("log-*"))


def test_insecure_noise_must_be_asked_for_and_is_announced(tmp_path: Path) -> None:
    for noise in (SeededNoise(1), SilentNoise()):
        with pytest.raises(PlanError, match="insecure=True"):
            Randomness(noise=noise)
    with pytest.warns(UserWarning, match="protect nobody"):
        run(tmp_path / "s")

    class SaysSo(KeyedNoise):
        """Draws the same for every job that it is given to: it knows no epoch."""

        def at(self, purpose: str, *path: int | bytes) -> KeyedDraws:
            return KeyedNoise(self.secret).at(purpose, *path)

    with pytest.raises(PlanError, match="insecure=True"):
        Randomness(noise=SaysSo(SECRET))
    with pytest.raises(StoreError, match="secret"):
        run(tmp_path / "s", keys=Randomness(secret=SECRET))


def test_a_replay_that_differs_is_refused(tmp_path: Path) -> None:
    stop_after(tmp_path / "s", 2)

    class Other(Toy):
        def apply(self, state: State, delta: dict[str, np.ndarray]) -> None:
            super().apply(state, {**delta, "counts": delta["counts"] + 1})

    with pytest.raises(StoreError, match="another version"):
        run(tmp_path / "s", work(operator=Other()))


def test_progress_tells_numbers_only(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run(tmp_path / "s", progress=seen.append)
    assert [one.batch for one in seen] == list(range(1, 13))
    last = seen[-1]
    assert (last.step, last.rows, last.releases) == (6, 240, 6)
    assert last.rejected == {"malformed row": 4}
    assert last.rows_per_second > 0
    assert last.counters == {"keys": 8}
    assert last.memory_bytes > 1 << 20
    again: list[Progress] = []
    run(tmp_path / "s", work(Stream(batches=13)), progress=again.append)
    assert again[-1].rejected == {"malformed row": 5}, "counts survive a restart"


def test_no_secret_state_is_shown(tmp_path: Path) -> None:
    with Job(tmp_path / "s", work(), Randomness(secret=SECRET)) as job:
        next(job)
        for thing in (job, job._last, job._state, Randomness(secret=SECRET)):
            assert SECRET.hex() not in repr(thing)
        assert "totals" not in repr(job)
        assert "delta" not in repr(job._last)


def test_limit_is_the_ledgers(tmp_path: Path) -> None:
    run(tmp_path / "s")
    header = json.loads((tmp_path / "s" / "ledger").read_bytes().splitlines()[0])
    assert header["record"]["limit"] == LIMIT.to_dict()


def test_a_checkpoint_keeps_the_releases_nobody_has_seen(tmp_path: Path) -> None:
    def failing(progress: Progress) -> None:
        if progress.batch == 2:  # after its checkpoint was begun, before its release was taken
            raise RuntimeError("gone")

    stream = work(Stream(per_step=1))
    always = CheckpointPolicy(log_bytes=0, log_per_state=0)
    with pytest.raises(RuntimeError, match="gone"):
        run(tmp_path / "s", stream, progress=failing, policy=always)
    assert list((tmp_path / "s").glob("checkpoint-*2"))
    assert [one.trigger for one in run(tmp_path / "s", stream)] == list(range(2, 13))
