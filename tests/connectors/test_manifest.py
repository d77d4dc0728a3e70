"""What was read is kept with the position: names in any order, files that go, files that change."""

import gzip
import json
import os
import random
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.connectors import manifest
from streamveil.connectors.files import FilesSource
from streamveil.connectors.manifest import MANIFEST, RECENT, FileIdentity, Manifest
from streamveil.core.noise import SeededNoise
from streamveil.errors import SourceError, StoreError

COLUMNS = {"n": "INT64"}


def put(folder, name, numbers):
    path, text = folder / name, "n\n" + "".join(f"{n}\n" for n in numbers)
    if name.endswith(".parquet"):
        pq.write_table(pa.table({"n": numbers}), path, row_group_size=1)
    else:
        # A gzip header holds the time unless told otherwise: the same rows would differ by it.
        packed = gzip.compress(text.encode(), mtime=0) if name.endswith(".gz") else text.encode()
        path.write_bytes(packed)
    return path


def source(folder, state=None, **options):
    made = FilesSource(str(folder), columns=COLUMNS, **options)
    if state is not None:
        made.keep_in(state)
    return made


def numbers(chunks):
    return [n for chunk in chunks for n in chunk.rows["n"].to_pylist()]


NAMES = ["b.csv", "b.csv.gz", "b.parquet"]


def other_bytes(path):
    """Another content of the same size, which the system's clock does not tell."""
    facts, data = path.stat(), bytearray(path.read_bytes())
    if path.suffix == ".parquet":
        put(path.parent, path.name, [7, 5, 6])
        assert path.stat().st_size == facts.st_size
    else:
        data[-2] ^= 1
        path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 3], ids=["read in part", "read to its end"])
def test_a_file_that_was_read_and_changed_is_refused_though_its_size_is_the_same(
    tmp_path, name, rows
):
    path = put(tmp_path, name, [4, 5, 6])
    place = next(source(tmp_path).read(None, rows)).position
    facts = path.stat()
    os.utime(path, ns=(1, 1))  # copied: the same file at another time
    assert numbers(source(tmp_path).read(place, 9)) == [4, 5, 6][rows:]
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other_bytes(path)
    with pytest.raises(SourceError, match=f"'{name}' changed after it was read.*\n.*to fix"):
        list(source(tmp_path).read(place, 9))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_may_go_once_it_was_read_to_its_end_and_not_before(tmp_path, name):
    put(tmp_path, "c.csv", [7])
    path = put(tmp_path, name, [4, 5])
    half, whole, last = (chunk.position for chunk in source(tmp_path).read(None, 1))
    path.unlink()
    assert numbers(source(tmp_path).read(whole, 9)) == [7]
    with pytest.raises(
        SourceError, match=rf"'{name}' was read in part, and is missing now(.|\n)*fix"
    ):
        list(source(tmp_path).read(half, 9))
    put(tmp_path, name, [4, 5])
    assert numbers(source(tmp_path).read(last, 9)) == []  # restored: not read twice
    put(tmp_path, name, [4, 5, 6])
    with pytest.raises(SourceError, match="changed"):
        list(source(tmp_path).read(last, 9))


def test_a_file_that_was_read_may_go_between_a_listing_and_a_look(tmp_path, monkeypatch):
    path = put(tmp_path, "b.csv", [4, 5])
    put(tmp_path, "c.csv", [7])
    first = next(source(tmp_path).read(None, 9)).position
    found = manifest.LocalFiles.found

    def listing(store, patterns):
        listed = found(store, patterns)
        path.unlink()
        return listed

    monkeypatch.setattr(manifest.LocalFiles, "found", listing)
    assert numbers(source(tmp_path).read(first, 9)) == [7]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = put(tmp_path, "a.csv", [1, 2])
    reading = source(tmp_path).read(None, 1)
    next(reading)
    with path.open("a") as file:
        file.write("3\n")
    with pytest.raises(SourceError, match="or while it was"):
        list(reading)


def test_names_of_unfinished_files_are_passed_over_and_those_asked_for_are_read(tmp_path):
    for name in ("_a.csv", ".b.csv", "c.csv.tmp", "d.csv.crdownload", "e.csv"):
        put(tmp_path, name, [len(name)])
    for pattern in (tmp_path, tmp_path / "*"):
        assert numbers(source(pattern, format="csv").read(None, 9)) == [len("e.csv")]
    assert numbers(source(tmp_path / "_a.csv").read(None, 9)) == [len("_a.csv")]


def test_parquet_that_is_not_whole_yet_is_read_when_it_is(tmp_path, caplog):
    data = put(tmp_path, "a.parquet", [1, 2]).read_bytes()
    (tmp_path / "a.parquet").write_bytes(data[:-20])
    live = source(tmp_path, follow=True)
    put(tmp_path, "b.parquet", [3])
    chunks = list(live.read(None, 9))
    assert numbers(chunks) == [3]
    assert numbers(live.read(chunks[-1].position, 9)) == []
    assert caplog.text.count("'a.parquet' is not whole yet") == 1
    (tmp_path / "a.parquet").write_bytes(data)
    assert numbers(live.read(chunks[-1].position, 9)) == [1, 2]
    (tmp_path / "a.parquet").write_bytes(data[:-20])
    with pytest.raises(SourceError, match="damaged"):
        list(source(tmp_path).read(None, 9))


def test_a_file_that_goes_unread_while_the_folder_is_followed_stops_nothing(tmp_path, monkeypatch):
    put(tmp_path, "b.csv", [2])
    listed = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    monkeypatch.setattr(manifest, "found", lambda _: listed)
    assert numbers(source(tmp_path, follow=True).read(None, 9)) == [2]


def test_a_manifest_takes_forty_bytes_a_file_and_finds_them_all(tmp_path):
    rng, many = random.Random(1), 3 * manifest.MERGED
    files = {f"{rng.getrandbits(64):x}": FileIdentity(n, n + 1, n + 2) for n in range(many)}
    made, places = Manifest(tmp_path), []
    for name, file in files.items():
        made.add(name, file)
        places.append(made.position())
    assert (tmp_path / MANIFEST).stat().st_size == 40 * ((many - 1) // RECENT * RECENT)
    assert max(len(json.dumps(place)) for place in places) < 2_000
    for place, count in ((places[-1], many), (places[4], 5), (places[1999], 2_000)):
        again = Manifest.of(place, tmp_path)
        held = again.holds([*files, "other"])
        assert held == [True] * count + [False] * (many + 1 - count)
        assert [again.find(name) for name in [*files][:count]] == [*files.values()][:count]
        assert len(again) == count


@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_a_manifest_that_is_not_the_one_of_the_position_is_refused(tmp_path, damage):
    made = Manifest(tmp_path)
    for n in range(2 * RECENT):
        made.add(str(n), FileIdentity(n, 1, 1))
    path = tmp_path / MANIFEST
    data = path.read_bytes()
    path.write_bytes(data[:-1] if damage == "cut" else b"x" + data[1:])
    if damage == "gone":
        path.unlink()
    with pytest.raises(StoreError, match="restore the whole directory"):
        Manifest.of(made.position(), tmp_path)


def writers(folder, rng, count):
    """Files of 8 writers under random names; each number is one file."""
    for n in range(count):
        name = f"{uuid.UUID(int=rng.getrandbits(128))}-{n % 8}.{rng.choice(['csv', 'csv.gz'])}"
        yield put(folder, name, [n])


def crowd(tmp_path, count, kills, seed):
    """Reads what 8 writers write, with kills anywhere, and deletes what was read to its end."""
    rng, folder, state = random.Random(seed), tmp_path / "in", tmp_path / "state"
    folder.mkdir()
    state.mkdir()
    arriving, committed, place, seen, dead = writers(folder, rng, count), [], None, 0, 0
    paths = {}
    while len(committed) < count:
        for path in [next(arriving, None) for _ in range(rng.randrange(1, count // 8))]:
            if path is not None:
                paths[seen], seen = path, seen + 1
        kill = rng.randrange(1, count // 12) if dead < kills else count
        for number, chunk in enumerate(source(folder, state, follow=True).read(place, 9)):
            if number == kill:
                dead += 1
                break  # read, and not committed
            committed += numbers([chunk])
            place = chunk.position
        for n in committed[-count // 10 :]:
            if n in paths and rng.random() < 0.5:
                paths.pop(n).unlink()
    return committed, dead, (state / MANIFEST).stat().st_size


def test_rows_of_many_writers_are_read_once_each_whatever_is_killed_or_deleted(tmp_path):
    committed, dead, size = crowd(tmp_path, 400, 10, seed=5)
    assert sorted(committed) == list(range(400))
    assert dead >= 3
    assert size <= 40 * 400


@pytest.mark.slow
def test_ten_thousand_files_of_eight_writers_with_sixty_kills_are_counted_exactly(tmp_path):
    committed, dead, _ = crowd(tmp_path, 10_000, 60, seed=6)
    assert sorted(committed) == list(range(10_000))
    assert dead >= 5


def test_a_job_publishes_the_same_bytes_whatever_arrives_and_goes_between_its_lives(tmp_path):
    def counted(folder):
        clicks = sv.files(folder, columns=COLUMNS, follow=True).protect(unit="n")
        query = clicks.agg(count=sv.count()).bound(max_rows=1).release(
            every=sv.rows(4), steps=2, budget=sv.Budget(epsilon=1, delta=1e-9), name="files"
        )  # fmt: skip
        noise = {"noise": SeededNoise(1), "insecure": True}
        return query.run(state=tmp_path / f"{folder.name}.veil", **noise)

    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = tmp_path / "one", tmp_path / "two"
    put(one, "b.csv", [1, 2, 3, 4])
    with counted(one) as job:
        first = next(job)
    (one / "b.csv").unlink()
    put(one, "a.csv", [5, 6, 7, 8])
    with counted(one) as job:
        released = [first, *(release for release in job if release.step > 1)]
    put(two, "a.csv", [1, 2, 3, 4])
    put(two, "b.csv", [5, 6, 7, 8])
    with counted(two) as job:
        expected = list(job)
    assert [one.table for one in released] == [one.table for one in expected]
