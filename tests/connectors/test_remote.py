"""Files of an object store are read as those on disk: once each, and as they were."""

import gzip
import io
import shutil
import time
from itertools import count
from urllib.request import Request

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamveil as sv
from streamveil.connectors.file_reader import nothing_to_read
from streamveil.connectors.files import FilesSource
from streamveil.connectors.http_files import Redirects
from streamveil.connectors.manifest import FileGoneError
from streamveil.connectors.remote import address, asked, opened
from streamveil.core.noise import SeededNoise
from streamveil.engines.spark.splits import require_parquet
from streamveil.errors import OperatorWarning, SourceError
from streamveil.runtime.run import warn_of_nothing
from tests.connectors.object_store import object_store
from tests.servers.web import WebServer

COLUMNS = {"n": "INT64"}


@pytest.fixture(autouse=True)
def _keys(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-key")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.fixture
def store():
    with object_store() as made:
        yield made


def text(*numbers):
    return ("n\n" + "".join(f"{n}\n" for n in numbers)).encode()


def parquet(*numbers):
    made = io.BytesIO()
    pq.write_table(pa.table({"n": numbers}), made, row_group_size=1)
    return made.getvalue()


def source(store, path="in", columns=COLUMNS, bucket="bucket", **options):
    return FilesSource(f"s3://{bucket}/{path}?{store.settings}", columns=columns, **options)


def numbers(chunks):
    return [n for chunk in chunks for n in chunk.rows["n"].to_pylist()]


def test_files_of_a_store_are_read_in_order_and_late_ones_later(store, tmp_path):
    store.put("in/b.csv", text(1, 2))
    store.put("in/c.csv.gz", gzip.compress(text(3)))
    store.put("in/d.parquet", parquet(4, 5))
    for name in ("in/_x.csv", "in/e.csv.tmp", "in/note.txt", "in/deep/f.csv", "other/g.csv"):
        store.put(name, text(9))
    reading = source(store, follow=True)
    chunks = list(reading.read(None, 1))
    assert numbers(chunks) == [1, 2, 3, 4, 5]
    for done, chunk in enumerate(chunks[:2], start=1):
        assert numbers(source(store).read(chunk.position, 9)) == [1, 2, 3, 4, 5][done:]
    store.put("in/a.csv", text(6))
    del store.objects["bucket", "in/c.csv.gz"]
    assert numbers(reading.read(chunks[-1].position, 9)) == [6]
    assert not list(tmp_path.glob("streamveil-*"))  # copies went


def test_names_of_folders_of_a_store_are_columns(store):
    for month, name, data in (("1", "a.csv", text(1, 2)), ("2", "b.parquet", parquet(3))):
        store.put(f"in/month={month}/city=S%C3%A3o/{name}", data)
    reading = source(store, "in/**/*", folder_columns=["month", "city"])
    found = [row for chunk in reading.read(None, 9, ["city", "n", "month"])
             for row in chunk.rows.to_pylist()]  # fmt: skip
    assert [(row["n"], row["month"]) for row in found] == [(1, "1"), (2, "1"), (3, "2")]
    assert {row["city"] for row in found} == {"São"}


@pytest.mark.parametrize(("path", "expected"), [
    ("in/a.csv", [1]), ("in/*.csv", [1, 2]), ("in/**/*.csv", [1, 2, 3]), ("*/a.csv", [1]),
    ("in/[b]*", [2]), ("none", []),
])  # fmt: skip
def test_an_address_names_a_file_a_folder_or_a_pattern(store, path, expected):
    for name, n in (("in/a.csv", 1), ("in/b.csv", 2), ("in/deep/a.csv", 3), ("in", 4)):
        store.put(name, text(n))
    assert numbers(source(store, path).read(None, 9)) == expected


@pytest.mark.parametrize("when", ["half read", "read"])
def test_a_file_that_changed_in_the_store_is_refused_and_a_copy_is_not(store, when):
    store.put("in/a.csv", text(1, 2))
    half, whole = (chunk.position for chunk in source(store).read(None, 1))
    position, left = (half, [2]) if when == "half read" else (whole, [])
    store.put("in/a.csv", text(1, 2), time=1)
    assert numbers(source(store).read(position, 9)) == left
    store.put("in/a.csv", text(1, 3), time=2)
    with pytest.raises(SourceError, match="changed after it was read"):
        list(source(store).read(position, 9))


def test_a_file_that_changes_while_its_copy_is_read_is_refused_at_the_next_look(store):
    store.put("in/a.csv", text(1, 2))
    files = source(store)
    reading = files.read(None, 1)
    first = next(reading)
    store.put("in/a.csv", text(1, 7), time=1)
    rest = list(reading)
    assert numbers([first, *rest]) == [1, 2], "the copy is of one moment"
    for again in (files, source(store)):
        with pytest.raises(SourceError, match="or while it was"):
            list(again.read(rest[-1].position, 1))


@pytest.mark.parametrize("after", [text(1, 7), text(1, 2, 3), None], ids=["same", "more", "gone"])
def test_a_file_that_changes_or_goes_while_it_is_copied_is_refused(store, after, tmp_path):
    times = count(1)

    def change(key):
        if after is None:
            store.objects.pop(("bucket", key), None)
        else:
            store.put(key, after, time=next(times))

    store.put("in/a.csv", text(1, 2))
    store.taken = change
    with pytest.raises(SourceError, match=r"(changed|disappeared) while it was (.|\n)*to fix"):
        list(source(store).read(None, 9))
    assert not list(tmp_path.glob("streamveil-*"))


def test_a_file_that_changed_since_it_was_listed_is_read_as_it_is_now(store):
    for name in "ab":
        store.put(f"in/{name}.csv", text(1, 2))
    files = source(store)
    files._store.found(files.patterns)
    for name, now in (("a", text(7, 8)), ("b", text(5, 6, 7))):  # of the same size, of another
        store.put(f"in/{name}.csv", now, time=9)
        with files._store.local(f"bucket/in/{name}.csv") as path:
            assert path.read_bytes() == now
    store.objects.pop(("bucket", "in/a.csv"))
    with pytest.raises(FileGoneError), files._store.local("bucket/in/a.csv"):
        pass


@pytest.mark.parametrize("numbers", [[1, 2, 3], [1]])
def test_a_parquet_file_that_changed_since_it_was_listed_is_read_as_it_is_now(store, numbers):
    store.put("in/a.parquet", parquet(5, 6))
    files = source(store, columns=None)
    files._store.found(files.patterns)
    store.put("in/a.parquet", parquet(*numbers), time=9)
    with files._store.local("bucket/in/a.parquet", ("n",)) as path:
        assert path.read_bytes() == parquet(*numbers)


def test_the_next_file_is_copied_while_one_is_read_and_none_is_left_behind(store, tmp_path):
    for name in "abcd":
        store.put(f"in/{name}.csv", text(*range(50)))
    reading = source(store).read(None, 10)
    next(reading)
    wait_until(lambda: ("GET", "in/b.csv") in store.asked)
    assert ("GET", "in/c.csv") not in store.asked, "two at most are there"
    assert len(numbers(reading)) == 190
    assert [store.asked.count(("GET", f"in/{name}.csv")) for name in "bcd"] == [1] * 3
    reading = source(store).read(None, 10)
    next(reading)
    reading.close()
    wait_until(lambda: not [*tmp_path.glob("streamveil-*")])


def wait_until(holds, seconds=100):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_of_a_parquet_file_those_columns_are_copied_that_are_read(store):
    noise = np.random.default_rng(1)
    wide = pa.table({"n": range(9)} | {
        f"c{i}": [noise.bytes(400_000) for _ in range(9)] for i in range(3)})  # fmt: skip
    made = io.BytesIO()
    pq.write_table(wide, made, row_group_size=4)
    for name in "ab":
        store.put(f"in/{name}.parquet", made.getvalue())
    reading = source(store, columns=None)
    assert reading.schema().names == wide.column_names
    assert numbers(reading.read(None, 5, ["n"])) == [*range(9)] * 2
    assert store.sent < len(made.getvalue()), "of both, and for the columns' names"
    [*chunks] = reading.read(None, 9, ["c2", "n"])
    assert [row for chunk in chunks for row in chunk.rows["c2"].to_pylist()] == [
        *wide["c2"].to_pylist() * 2
    ]


@pytest.mark.parametrize(("name", "data"), [("a.parquet", parquet(1, 2)), ("a.csv", text(1, 2))])
def test_a_small_file_costs_a_look_before_and_behind_and_one_answer_between(store, name, data):
    store.put(f"in/{name}", data)
    reading = source(store, columns=None if name == "a.parquet" else COLUMNS)
    reading.schema()
    store.asked.clear()
    assert numbers(reading.read(None, 9)) == [1, 2]
    assert [how for how, key in store.asked if key == f"in/{name}"] == ["HEAD", "GET", "HEAD"]


def test_looking_again_takes_no_file_from_the_store(store):
    store.put("in/a.parquet", parquet(1))
    reading = source(store, columns=None, follow=True)
    [chunk] = reading.read(None, 9)
    store.asked.clear()
    for _ in range(3):
        assert list(reading.read(chunk.position, 9)) == []
    assert ("GET", "in/a.parquet") not in store.asked


def test_a_store_that_refuses_says_so_and_no_key(store):
    store.refuses = True
    with pytest.raises(SourceError, match=r"from its store: .*ACCESS_DENIED(.|\n)*to fix") as error:
        list(source(store).read(None, 9))
    assert "hidden-key" not in str(error.value)


@pytest.mark.parametrize("pattern", [
    "s3://me:hidden-key@bucket/in", "s3://bucket/in?secret_key=hidden-key",
    "abfs://:hidden-key@account.dfs.core.windows.net/in",
    "https://me:hidden-key@host/in", "https://host/in?signed=hidden-key", "ftp://bucket/in", "s4://bucket/in",
])  # fmt: skip
def test_addresses_with_keys_or_of_other_stores_are_refused(pattern):
    with pytest.raises(SourceError, match="to fix") as error:
        FilesSource(pattern)
    assert "hidden-key" not in str(error.value)


def test_spark_and_replays_leave_files_of_a_store_alone(store):
    store.put("in/a.parquet", parquet(1))
    assert nothing_to_read(source(store), "n", (0, 1)) is None
    with pytest.raises(SourceError, match="run on the embedded engine"):
        require_parquet(source(store))


def test_files_of_two_stores_are_no_source():
    for patterns in (["s3://a/x", "s3://b/x"], ["s3://a/x", "x"]):
        with pytest.raises(SourceError, match="one store"):
            FilesSource(patterns)


@pytest.mark.parametrize(("pattern", "kind", "base"), [
    ("s3://bucket/in?region=eu-west-1", "s3", "bucket"),
    ("gs://anonymous@bucket/in", "gcs", "bucket"),
    ("az://box/in", "abfs", "box"), ("abfs://account@box/in", "abfs", "box"),
])  # fmt: skip
def test_each_scheme_opens_its_store(pattern, kind, base, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "account")
    made, path = asked(pattern, lambda: opened(address(pattern)[0]))
    assert (made.type_name, path.strip("/")) == (kind, base)


def test_an_account_that_is_not_told_is_asked_for(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT", raising=False)
    with pytest.raises(SourceError, match="AZURE_STORAGE_ACCOUNT"):
        FilesSource("az://box/in")


def test_a_job_over_a_store_goes_on_in_another_bucket_with_the_same_answers(store, tmp_path):
    def released(path, state, steps):
        clicks = sv.files(path, columns=COLUMNS, follow=True).protect(unit="n")
        query = clicks.agg(count=sv.count()).bound(max_rows=1).release(
            every=sv.rows(2), steps=2, budget=sv.Budget(epsilon=1, delta=1e-9), name="files"
        )  # fmt: skip
        with query.run(state=tmp_path / state, noise=SeededNoise(1), insecure=True) as job:
            return [next(job).table for _ in range(steps)]

    def of(bucket):
        return f"s3://{bucket}/in?{store.settings}"

    (tmp_path / "disk").mkdir()
    for name, rows in (("b.csv", text(1, 2)), ("c.csv", text(3, 4))):
        (tmp_path / "disk" / name).write_bytes(rows)
        store.put(f"in/{name}", rows, bucket="new", time=5)
    expected = released(tmp_path / "disk", "one", 2)
    store.put("in/b.csv", text(1, 2))
    assert released(of("bucket"), "two", 1) == expected[:1]
    assert released(of("new"), "two", 2) == expected


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A web server over a folder, which asks for a password."""
    made = WebServer(tmp_path / "web")
    for name, value in made.keys.items():
        monkeypatch.setenv(name, value)
    for name, n in (("in/a b.csv", 1), ("in/c.csv", 2), ("in/deep/a.csv", 3), ("in/note.txt", 9)):
        made.put(name, text(n))
    made.put("in/some.list", b"c.csv\n\n/bucket/in/deep/a.csv?signed=hidden-key\n")
    yield made
    made.stop()


def of_web(web, path, **options):
    return FilesSource(web.address(path), columns=COLUMNS, **options)


def test_a_web_server_gives_the_files_of_its_pages_and_lists(web):
    for path, expected in (
        ("in", [1, 2]), ("in/", [1, 2]), ("in/*.csv", [1, 2]), ("in/**/*.csv", [1, 2, 3]),
        ("in/c.csv", [2]), ("in/some.list", [2, 3]), ("none", []), ("none/*.csv", []),
    ):  # fmt: skip
        assert numbers(of_web(web, path).read(None, 9)) == expected, path


def test_every_file_that_a_list_names_is_read_whatever_it_is_called(web):
    web.put("in/named.list", b"\xef\xbb\xbfnote.txt\n# others\nc.csv\n")
    assert numbers(of_web(web, "in/named.list", format="csv").read(None, 9)) == [2, 9]
    with pytest.raises(SourceError, match=r"note\.txt"):
        list(of_web(web, "in/named.list").read(None, 9))


def test_a_list_stands_for_its_folder_and_a_job_goes_on_with_either(web):
    [first, second] = of_web(web, "in/some.list").read(None, 9)
    assert numbers(of_web(web, "in/**/*.csv").read(first.position, 9)) == [1, 3]
    web.put("in/c.csv", text(77))
    with pytest.raises(SourceError, match="changed after it was read"):
        list(of_web(web, "in/some.list").read(second.position, 9))


@pytest.mark.parametrize("path", ["in", "in/*.csv"])
@pytest.mark.parametrize("what", ["bucket", "folder"])
def test_a_bucket_or_a_folder_of_the_web_that_goes_is_told_from_files_that_go(
    store, web, what, path
):
    """Without it, a job went on with releases of nothing."""
    folder = web.home / "data" / "bucket" / "in"
    store.put("in/a.csv", text(1))
    place, where = (of_web, web) if what == "folder" else (source, store)
    made = place(where, path, follow=True)
    position = list(made.read(None, 9))[-1].position
    store.objects.clear()
    for one in folder.glob("*.*"):
        one.unlink()
    assert numbers(made.read(position, 9)) == []
    store.gone = "bucket"
    shutil.rmtree(folder)
    with pytest.raises(SourceError, match=rf"{what} '.*', of which files were read, is missing"):
        list(made.read(position, 9))


def test_a_bucket_or_file_of_a_slip_is_told_before_anything_is_charged(store):
    """A job over it was charged, and released nothing."""
    store.put("in/a.csv", text(1))
    once = f"s3://bucket/{{}}?{store.settings}"

    def asked(path, **more):
        stream = sv.files(once.format(path), columns=COLUMNS, **more)
        counted = stream.protect("n").agg(n=sv.count()).bound(max_rows=1)
        every = (
            {"every": "1 hour", "start": "2026-01-01", "clock": "wall", "steps": 3} if more else {}
        )
        return counted.release(**every, budget=sv.Budget(epsilon=1, delta=1e-6)).plan

    warn_of_nothing(asked("in"))
    with pytest.raises(SourceError, match="no file matches"):
        warn_of_nothing(asked("inn/a.csv"))
    with pytest.warns(OperatorWarning, match="no file is there yet"):
        warn_of_nothing(asked("inn/*.csv"))
    store.gone = "bucket"
    for path, more in (("in/*.csv", {}), ("in", {"follow": True})):
        with pytest.warns(OperatorWarning, match="no file is there yet: the bucket 'bucket' is"):
            warn_of_nothing(asked(path, **more))


def test_a_web_server_that_refuses_or_sends_elsewhere_is_told_without_words(web, monkeypatch):
    web.put("in/some.list", b"http://127.0.0.1:1/hidden-key.csv\n")
    with pytest.raises(SourceError, match="another server") as error:
        list(of_web(web, "in/some.list").read(None, 9))
    assert "hidden-key" not in str(error.value)
    monkeypatch.setenv("NETRC", web.wrong_keys["NETRC"])
    with pytest.raises(SourceError, match="HTTP 401"):
        list(of_web(web, "in").read(None, 9))


def test_a_password_goes_to_the_server_that_it_is_of_and_to_no_other():
    for to, sent in (("http://one/b", True), ("https://one/b", False), ("http://two/b", False)):
        asked = Request("http://one/a")
        asked.add_unredirected_header("Authorization", "Basic x")
        told = Redirects().redirect_request(asked, None, 301, "", {}, to)
        assert ("Authorization" in told.unredirected_hdrs) == sent
        assert "Authorization" not in told.headers
