"""Shards as bases, deltas and replicas: whoever opens a version finds the same state."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

from streamveil.engines.spark import shards, state_cache, versioned_state
from streamveil.engines.spark.shards import BASE, DELTA, Shards
from streamveil.engines.spark.state_cache import Replica, Stamp
from streamveil.engines.spark.versioned_state import Chain
from streamveil.errors import StoreError


class Sums:
    """A state of two arrays: one changed in place, one that grows and is made anew."""

    def __init__(self, arrays=None):
        arrays = {"sums": np.zeros(500, np.int64), "log": np.zeros(0)} if arrays is None else arrays
        self.sums, self.log = arrays["sums"], arrays["log"]

    def step(self, number):
        delta = {"at": np.arange(number, number + 3) % 500, "more": np.arange(3) + number}
        self.add(delta, number)
        return delta

    def add(self, delta, number):
        np.add.at(self.sums, delta["at"], delta["more"])
        self.log = np.append(self.log, float(number))

    def save(self):
        return {"sums": self.sums, "log": self.log, "none": np.zeros((0, 2)), "n": np.array(3)}


def chain(root, shard=0, origin="a"):
    return Chain(Shards(str(root), origin), "key", shard, Sums, Sums.save, Sums.add)


def advance(made, first, last):
    """Runs steps; returns how many wrote bases."""
    bases = 0
    for step in range(first, last + 1):
        with made.open(step - 1) as held:
            delta = held.state.step(step)
            bases += held.commit(delta, {})["counters"]["bases"]
    return bases


def expected(last):
    state = Sums()
    for step in range(1, last + 1):
        state.step(step)
    return state


def assert_holds(made, version):
    with made.open(version) as held:
        wanted = expected(version)
        assert held.state.sums.tolist() == wanted.sums.tolist()
        assert held.state.log.tolist() == wanted.log.tolist()
        assert held.stamp.version == version


@pytest.fixture
def local(tmp_path, monkeypatch):
    """An executor's own folder."""
    (tmp_path / "local").mkdir()
    monkeypatch.setenv(state_cache.FOLDERS, f"{tmp_path}/local,/elsewhere")
    return tmp_path / "local" / "streamveil"


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.delenv(state_cache.FOLDERS, raising=False)


def reads(monkeypatch):
    """Every file that is read whole from now on."""
    seen, get = [], Shards.get

    def counted(shards, stage, shard, version, kind):
        seen.append((version, kind))
        return get(shards, stage, shard, version, kind)

    monkeypatch.setattr(Shards, "get", counted)
    return seen


@pytest.mark.parametrize("executor", ["local", "alone"])
def test_any_version_is_found_without_a_replica(executor, tmp_path, request, monkeypatch):
    request.getfixturevalue(executor)
    made = chain(tmp_path)
    bases = advance(made, 1, 150)
    often = 150 / versioned_state.COLD if executor == "alone" else 150 / 8
    assert 1 <= bases < often + 5  # a step writes its rows, not the state
    monkeypatch.delenv(state_cache.FOLDERS, raising=False)
    for version in (0, 1, 40, 149, 150):
        assert_holds(made, version)


def test_whoever_repeats_many_steps_spares_others_that(tmp_path, local, monkeypatch):
    made = chain(tmp_path)
    advance(made, 1, 20)
    monkeypatch.delenv(state_cache.FOLDERS)
    assert advance(made, 21, 21) == 1
    seen = reads(monkeypatch)
    assert advance(made, 22, 22) == 0
    assert seen == [(21, BASE)]


def test_a_replica_far_behind_is_given_up(tmp_path, local, monkeypatch):
    made = chain(tmp_path)
    advance(made, 1, 2)
    monkeypatch.delenv(state_cache.FOLDERS)
    advance(made, 3, 3 + versioned_state.FARTHEST)
    monkeypatch.setenv(state_cache.FOLDERS, str(local.parent))
    seen = reads(monkeypatch)
    assert_holds(made, 3 + versioned_state.FARTHEST)
    assert seen[0][1] == BASE


def test_a_replica_spares_reading_the_storage(tmp_path, local, monkeypatch):
    made, seen = chain(tmp_path), reads(monkeypatch)
    advance(made, 1, 100)
    assert seen == []
    with made.open(100) as held:
        assert held.state.log.tolist() == expected(100).log.tolist()


def test_a_replica_of_an_older_version_catches_up(tmp_path, local, monkeypatch):
    made = chain(tmp_path)
    advance(made, 1, 10)
    monkeypatch.delenv(state_cache.FOLDERS)
    advance(made, 11, 14)  # by another executor
    monkeypatch.setenv(state_cache.FOLDERS, str(local.parent))
    seen = reads(monkeypatch)
    assert_holds(made, 14)
    assert seen == [(version, DELTA) for version in range(11, 15)]


def test_a_step_that_failed_or_was_killed_leaves_no_replica(tmp_path, local):
    made = chain(tmp_path)
    advance(made, 1, 5)

    def fail():
        with made.open(5) as held:
            held.state.sums[:] = 77  # changes what is mapped
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(local.glob("*.json"))
    assert_holds(made, 5)
    advance(made, 6, 9)
    assert_holds(made, 9)


def test_a_task_that_runs_twice_at_once_works_apart_and_writes_the_same(tmp_path, local):
    made = chain(tmp_path)
    advance(made, 1, 5)
    with made.open(5) as one, made.open(5) as two:
        assert one.replica is not None
        assert two.replica is None
        assert not np.shares_memory(one.state.sums, two.state.sums)
        written = []
        for held in (one, two):
            held.commit(held.state.step(6), {})
            written.append((tmp_path / "key" / "00000" / "00000006.delta").read_bytes())
        assert written[0] == written[1]
    assert_holds(made, 6)


def test_a_step_that_is_repeated_ignores_the_replica_of_the_first_time(tmp_path, local):
    made = chain(tmp_path)
    advance(made, 1, 6)
    advance(made, 6, 6)  # as after a crash between the task and the mark
    assert_holds(made, 6)


def test_the_replica_of_another_history_is_not_used(tmp_path, local):
    first, second = chain(tmp_path / "one"), chain(tmp_path / "two")
    advance(first, 1, 4)
    advance(second, 1, 3)
    with second.open(3) as held:
        delta = {"at": np.array([9]), "more": np.array([100])}
        held.state.add(delta, 4)
        held.commit(delta, {})
        wanted = held.state.sums.copy()
    folder = tmp_path / "one" / "key" / "00000"
    other = tmp_path / "two" / "key" / "00000" / "00000004.delta"
    (folder / "00000004.delta").write_bytes(other.read_bytes())
    with first.open(4) as held:
        assert held.state.sums.tolist() == wanted.tolist()


def test_versions_of_two_states_are_never_mixed(tmp_path, alone):
    one, two = chain(tmp_path / "one", origin="a"), chain(tmp_path / "two", origin="b")
    advance(one, 1, 3)
    advance(two, 1, 3)
    name = "key/00000/00000002.delta"
    (tmp_path / "one" / name).write_bytes((tmp_path / "two" / name).read_bytes())
    with pytest.raises(StoreError, match="belongs to another state"):
        one.open(3)


def test_a_base_of_another_state_is_refused(tmp_path, alone):
    one, two = chain(tmp_path / "one", origin="a"), chain(tmp_path / "two", origin="b")
    advance(one, 1, 30)
    advance(two, 1, 30)
    name = max(path.name for path in (tmp_path / "two" / "key" / "00000").glob("*.base"))
    shutil.copy(tmp_path / "two/key/00000" / name, tmp_path / "one/key/00000" / name)
    with pytest.raises(StoreError, match="belongs to another state"):
        one.open(30)


def test_a_base_of_another_history_of_one_state_is_refused(tmp_path, alone):
    one, two = chain(tmp_path / "one"), chain(tmp_path / "two")
    advance(one, 1, 30)
    with two.open(0) as held:
        other = {"at": np.array([7]), "more": np.array([7])}
        held.state.add(other, 1)
        held.commit(other, {})
    advance(two, 2, 30)
    folder = tmp_path / "one/key/00000"
    name = max(path.name for path in folder.glob("*.base"))
    shutil.copy(tmp_path / "two/key/00000" / name, folder / name)
    with pytest.raises(StoreError, match="does not follow"):
        one.open(30)


def test_a_file_in_the_place_of_another_shard_is_refused(tmp_path, alone):
    advance(chain(tmp_path, shard=0), 1, 2)
    advance(chain(tmp_path, shard=1), 1, 2)
    name = "00000001.delta"
    shutil.copy(tmp_path / "key" / "00001" / name, tmp_path / "key" / "00000" / name)
    with pytest.raises(StoreError, match="belongs to another state"):
        chain(tmp_path, shard=0).open(2)


def test_a_version_is_written_once(tmp_path, local):
    made = chain(tmp_path)
    advance(made, 1, 70)
    files = sorted((tmp_path / "key" / "00000").glob("*.*"))
    assert {path.suffix for path in files} == {".base", ".delta"}
    before = [(path.stat().st_ino, path.read_bytes()) for path in files]
    for step in range(60, 71):
        advance(made, step, step)
    assert [(path.stat().st_ino, path.read_bytes()) for path in files] == before
    with made.open(69) as held:
        held.state.sums[3] += 1
        with pytest.raises(StoreError, match="over other rows"):
            held.commit({"at": np.array([3]), "more": np.array([1])}, {})
    assert [(path.stat().st_ino, path.read_bytes()) for path in files] == before


@pytest.mark.parametrize("left", [0, 20, -8])
def test_what_a_stopped_writer_left_is_replaced(left, tmp_path, alone):
    made = chain(tmp_path)
    advance(made, 1, 3)
    path = tmp_path / "key" / "00000" / "00000003.delta"
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    advance(made, 3, 3)
    assert path.read_bytes() == whole


def test_a_whole_file_is_not_changed_through_the_name_that_its_stopped_writer_left(
    tmp_path, monkeypatch
):
    system, folder = shards.opened(str(tmp_path))[0], tmp_path / "a"
    unlink = os.unlink

    def stopped(path):
        if (folder / "1.delta").exists():
            raise OSError("input/output error")
        unlink(path)

    monkeypatch.setattr("os.unlink", stopped)
    with pytest.raises(OSError, match="input"):
        shards.create(system, str(folder / "1.delta"), [memoryview(b"one")])
    monkeypatch.undo()
    assert shards.create(system, str(folder / "1.base"), [memoryview(b"two")])
    assert (folder / "1.delta").read_bytes() == b"one"
    assert sorted(path.name for path in folder.iterdir()) == ["1.base", "1.delta"]


def test_of_two_that_write_at_once_one_is_told(tmp_path):
    system, path = shards.opened(str(tmp_path))[0], str(tmp_path / "a" / "x.base")
    assert shards.create(system, path, [memoryview(b"one")])
    assert not shards.create(system, path, [memoryview(b"two")])
    assert (tmp_path / "a" / "x.base").read_bytes() == b"one"
    assert len(list((tmp_path / "a").iterdir())) == 1


def test_without_links_a_file_is_still_whole(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr("os.link", refuse)
    test_of_two_that_write_at_once_one_is_told(tmp_path)


def test_names_are_synced_with_their_folders(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(shards, "sync_directory", lambda folder: synced.append(folder.name))
    root = tmp_path / "r"
    advance(chain(root), 1, 1)
    assert synced == [tmp_path.name, "r", "key", "00000"]
    advance(chain(root), 1, 1)  # what made it may have died before it synced
    assert synced[4:] == ["00000"]


def test_files_of_others_and_files_already_gone_stop_nothing(tmp_path, local, monkeypatch):
    made, shards = chain(tmp_path), Shards(str(tmp_path), "a")
    advance(made, 1, 70)
    folder = tmp_path / "key" / "00000"
    strange = [
        folder / ".nfs0001",
        folder / ".DS_Store",
        folder / "x.base",
        folder.parent / "1.base",
    ]
    for path in strange:
        path.write_bytes(b"x")
    listed = Shards._files

    def raced(found, where):
        for file in listed(found, where):
            if file.version == 2:
                (folder / "00000002.delta").unlink(missing_ok=True)
            yield file

    monkeypatch.setattr(Shards, "_files", raced)
    shards.tidy(70)
    assert all(path.exists() for path in strange)
    assert not (folder / "00000003.delta").exists()
    assert shards.newest() == 70
    monkeypatch.delenv(state_cache.FOLDERS)
    assert_holds(made, 70)


def test_a_missing_or_damaged_delta_is_refused(tmp_path, alone):
    made = chain(tmp_path)
    advance(made, 1, 3)
    path = tmp_path / "key" / "00000" / "00000002.delta"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(StoreError, match="damaged"):
        made.open(3)
    path.unlink()
    with pytest.raises(StoreError, match="missing"):
        made.open(3)


def test_what_a_version_needs_is_kept_and_the_rest_deleted(tmp_path, local):
    made, shards = chain(tmp_path), Shards(str(tmp_path), "a")
    for step in range(1, 201):
        advance(made, step, step)
        shards.tidy(step - 1)
        if step % 50 == 0:
            assert_holds(made, step)
            assert_holds(made, step - 1)
    files = [path.name for path in (tmp_path / "key").rglob("*.*")]
    assert len(files) < 2 * versioned_state.LONGEST + 4
    assert sum(name.endswith(BASE) for name in files) <= 2


def test_files_of_killed_tasks_are_deleted(tmp_path, alone):
    made, shards = chain(tmp_path), Shards(str(tmp_path), "a")
    advance(made, 1, 3)
    left = tmp_path / "key" / "00000" / "00000002.host-1-2.partial"
    left.write_bytes(b"x")
    shards.tidy(1)
    assert left.exists()
    shards.tidy(2)
    assert not left.exists()
    assert_holds(made, 3)


def test_shards_write_their_bases_at_different_steps(tmp_path, local):
    when = []
    for shard in range(4):
        made = chain(tmp_path, shard)
        when.append([step for step in range(1, 150) if advance(made, step, step)])
    assert len({tuple(steps) for steps in when}) == 4


def test_a_replica_reuses_room_and_stays_small(local, tmp_path, monkeypatch):
    monkeypatch.setenv(state_cache.FOLDERS, str(local.parent))
    monkeypatch.setattr(state_cache, "LOOSE", 1 << 12)
    rng = np.random.default_rng(0)
    held, wanted = {str(i): rng.integers(0, 9, 1000) for i in range(5)}, {}
    for step in range(60):
        replica = Replica.of("x")
        found = replica.take()
        if step:
            stamp, held = found
            assert stamp.version == step - 1
            assert {k: v.tolist() for k, v in held.items()} == wanted
        held["0"][step] += 1  # in place
        held["1"] = np.append(held["1"], rng.integers(0, 9, 10))  # anew, longer
        held["2"] = held["2"][::-1]  # mapped, but not as it must be stored
        held["3"], held["4"] = held["4"], held["3"]  # stays, under another name
        held["5"] = np.broadcast_to(np.int64(step), (3, 5))
        wanted = {k: v.tolist() for k, v in held.items()}
        replica.give(Stamp(step, 0, 0, 0), held)
        replica.close()
    assert (local / "x").stat().st_size < 4 * sum(v.nbytes for v in held.values()) + (1 << 13)


def test_a_replica_needs_room_on_the_disk(tmp_path, local, monkeypatch):
    monkeypatch.setattr(state_cache, "SPARE", 1.0)
    made = chain(tmp_path)
    advance(made, 1, 3)
    assert not list(local.glob("*.json"))
    assert_holds(made, 3)


def test_a_disk_that_is_full_or_cannot_be_written_fails_no_task(tmp_path, local, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    made = chain(tmp_path)
    advance(made, 1, 2)
    monkeypatch.setattr("os.pwrite", full)
    advance(made, 3, 4)
    monkeypatch.undo()
    monkeypatch.setenv(state_cache.FOLDERS, f"{tmp_path}/other")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "streamveil").write_text("no folder")
    advance(made, 5, 6)
    assert_holds(made, 6)


def test_replicas_unused_for_a_day_go_also_those_of_executors_that_were_killed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(state_cache, "SWEPT", {})
    folders = [tmp_path / f"blockmgr-{name}" for name in "abc"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        monkeypatch.setenv(state_cache.FOLDERS, str(folder))
        advance(chain(tmp_path, shard=number), 1, 1)
    for lock in tmp_path.glob("blockmgr-[ab]/streamveil/*.lock"):
        os.utime(lock, (1, 1))
    used = state_cache.Replica._locked(
        next(tmp_path.glob("blockmgr-b/streamveil/*.lock")).with_suffix("")
    )
    os.utime(used.path.with_suffix(".lock"), (1, 1))
    monkeypatch.setattr(state_cache, "SWEPT", {})
    advance(chain(tmp_path, shard=9), 1, 1)
    assert not list(tmp_path.glob("blockmgr-a/streamveil/*"))
    assert len(list(tmp_path.glob("blockmgr-b/streamveil/*"))) == 3
    assert len(list(tmp_path.glob("blockmgr-c/streamveil/*"))) == 6
    used.close()


def test_what_others_link_to_is_not_swept(tmp_path, local, monkeypatch):
    precious = tmp_path / "home"
    precious.mkdir()
    (precious / "a-b-c.lock").write_text("mine")
    os.utime(precious / "a-b-c.lock", (1, 1))
    (tmp_path / "blockmgr-x").mkdir()
    (tmp_path / "blockmgr-x" / "streamveil").symlink_to(precious)
    local.mkdir()
    (local / "d-e-f.lock").symlink_to(precious / "a-b-c.lock")
    os.utime(local / "d-e-f.lock", (1, 1), follow_symlinks=False)
    monkeypatch.setattr(state_cache, "SWEPT", {})
    advance(chain(tmp_path), 1, 1)
    facts = (precious / "a-b-c.lock").stat()
    assert (facts.st_mtime, facts.st_size) == (1, 4)


def test_a_job_that_ends_takes_its_replicas_along_and_no_other(tmp_path, local):
    mine, other = chain(tmp_path, origin="a"), chain(tmp_path / "other", origin="b")
    advance(mine, 1, 2)
    advance(other, 1, 2)
    state_cache.forget(mine.shards.job)
    assert {path.name.split("-")[0] for path in local.iterdir()} == {other.shards.job}
    assert_holds(mine, 2)


def test_a_lock_whose_file_was_deleted_is_none(tmp_path, local, monkeypatch):
    made, flock = chain(tmp_path), state_cache.fcntl.flock
    advance(made, 1, 1)

    def deleted(lock, how):
        flock(lock, how)
        next(local.glob("*.lock")).unlink()

    monkeypatch.setattr(state_cache.fcntl, "flock", deleted)
    with made.open(1) as held:
        assert held.replica is None


def test_replicas_can_be_forbidden(tmp_path, local, monkeypatch):
    monkeypatch.setenv(state_cache.WANTED, "off")
    made = chain(tmp_path)
    advance(made, 1, 3)
    assert not local.exists()
    assert_holds(made, 3)


def test_replicas_are_for_their_owner_only(tmp_path, local):
    advance(chain(tmp_path), 1, 2)
    assert local.stat().st_mode & 0o77 == 0
    assert all(path.stat().st_mode & 0o77 == 0 for path in local.iterdir() if path.suffix == "")
    (label,) = local.glob("*.json")
    assert json.loads(label.read_text())[0][0] == 2
