"""One suite over every source and every sink: what a new one must hold as well.

What is told of single sources (loss by retention, rebalances, versions that take rows away) stands
in their own tests.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

import streamveil as sv
from streamveil.connectors import SINKS, SOURCES, open_sink, open_sinks
from streamveil.errors import StreamveilError
from streamveil.runtime.job import Job
from streamveil.runtime.run import Pace, run
from tests.connectors import places
from tests.connectors.test_databases import Killed
from tests.connectors.test_kafka import counts
from tests.runtime.toy import SEEDED, Stream, work
from tests.servers import kafka
from tests.servers.postgres import PASSWORD

NOT_HERE = {"memory", "rate"}  # sources of no place
SENDS = ("files", "sqlite", "duckdb", "postgres", "kafka", "delta", "iceberg")


def test_every_source_and_every_sink_is_tried():
    assert set(places.KINDS) - {"s3"} == SOURCES.keys() - NOT_HERE
    assert set(SENDS) == SINKS.keys() - {"console", "memory"}


@pytest.fixture
def emptied(server):
    """A server without tables."""
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return server


@pytest.fixture
def catalog(tmp_path, monkeypatch):
    """A catalogue of Iceberg on disk."""
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog import load_catalog
    from pyiceberg.utils.config import Config

    (tmp_path / "lake").mkdir()
    prefix = "PYICEBERG_CATALOG__DEFAULT__"
    monkeypatch.setenv(f"{prefix}TYPE", "sql")
    monkeypatch.setenv(f"{prefix}URI", f"sqlite:///{tmp_path}/lake/catalog.db")
    monkeypatch.setenv(f"{prefix}WAREHOUSE", f"file://{tmp_path}/lake")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    found = load_catalog("default")
    yield found
    found.close()


@pytest.fixture(params=places.KINDS)
def place(request, tmp_path, monkeypatch):
    found = places.made(request.param, request, tmp_path, monkeypatch)
    yield found
    found.close()


def rows_of(chunks):
    return [(row["u"], row["page"]) for chunk in chunks for row in chunk.rows.to_pylist()]


def expected(users):
    return [(u, places.page(u)) for u in users]


def test_every_position_goes_on_with_the_rows_that_follow(place):
    place.put(range(9))
    place.put(range(9, 13))
    chunks = list(place.open().read(None, 3))
    assert sorted(rows_of(chunks)) == expected(range(13))
    for at, chunk in enumerate(chunks):
        for most in (1, 2, 100):
            follows = list(place.open().read(chunk.position, most))
            assert rows_of(follows) == rows_of(chunks[at + 1 :])
            assert all(one.rows.num_rows <= most for one in follows)
    if place.live:
        assert rows_of(place.open().read(chunks[-1].position, 100)) == []
        place.put(range(13, 15))
        later = place.open().read(chunks[-1].position, 100)
        assert sorted(rows_of(later)) == expected(range(13, 15))


def test_what_is_no_row_is_counted_and_no_word_tells_it(place, capfd):
    if not hasattr(place, "spoil") or not place.junk:
        pytest.skip("a table with types holds rows alone")
    place.put(range(4))
    place.spoil()
    place.put(range(4, 6))
    chunks = list(place.open().read(None, 2))
    found = rows_of(chunks)
    assert sorted(row for row in found if row[0] is not None) == expected(range(6))
    assert [row for row in found if row[0] is None] == [(None, "a")]
    rejected = sum(sum(chunk.rejected.values()) for chunk in chunks)
    assert rejected in (2, 3)  # with the blank message
    for at, chunk in enumerate(chunks):
        assert rows_of(place.open().read(chunk.position, 1)) == rows_of(chunks[at + 1 :])
    assert "hidden-row" not in "".join(capfd.readouterr())


def test_a_server_that_goes_is_named_and_nothing_is_lost(place, monkeypatch):
    if place.server is None:
        pytest.skip("no server")
    for module in ("kafka_topic", "nats"):
        monkeypatch.setattr(f"streamveil.connectors.{module}.WAIT", 2.0)
    place.put(range(10))
    source = place.open()
    reading = source.read(None, 2)
    found = [next(reading)]
    while not found[-1].rows.num_rows:
        found.append(next(reading))
    reading.close()
    place.server.stop()
    try:
        with pytest.raises(StreamveilError, match="to fix") as caught:
            list(place.open().read(found[-1].position, 2))
    finally:
        place.server.start()
    assert PASSWORD not in places.words_of(caught.value)
    found += place.open().read(found[-1].position, 2)
    assert sorted(rows_of(found)) == expected(range(10))


def test_wrong_credentials_are_refused_and_not_told(place, monkeypatch):
    place.put(range(3))
    with place.wrong() as options:
        if options is None:
            pytest.skip("nobody is asked who he is")
        with pytest.raises(StreamveilError, match="to fix") as caught:
            list(place.open(**options).read(None, 3))
    assert "wrong-word" not in places.words_of(caught.value)
    assert sorted(rows_of(place.open().read(None, 3))) == expected(range(3))


LIVES = [10, pytest.param(50, marks=pytest.mark.slow)]


@pytest.mark.parametrize("lives", LIVES)
def test_a_job_that_dies_at_any_place_of_its_source_counts_every_row_once(
    place, lives, tmp_path, monkeypatch
):
    if not place.live:
        pytest.skip("it is asked once")
    users = iter(range(10_000))
    place.put([next(users) for _ in range(lives)])
    asked = (
        sv.source(place.kind, "visits", **place.options()).protect("u")
        .group_by("page", keys=sv.public(["a", "b"])).agg(n=sv.count())
        .bound(max_rows=1).release(budget=sv.Budget(epsilon=9e5, delta=1e-9),
                                   every=sv.rows(lives // 2), steps=6)
    )  # fmt: skip
    kind, found = type(place.open()), []
    plain = kind.read

    def live():
        """One life; whether it was killed."""
        job = run(asked.plan, state=str(tmp_path / "s"), pace=Pace(max_rows=2, once=True))
        try:
            found.extend(one for one in job if one is not None)
        except Killed:
            return True
        finally:
            job.close()
        return False

    deaths = 0
    for turn in range(lives):
        if turn % 5 == 4:
            place.put([next(users) for _ in range(lives // 2)])

        def read(self, *where, left=turn % 3 + 1):
            for number, chunk in enumerate(plain(self, *where)):
                if number == left:
                    raise Killed
                yield chunk

        with monkeypatch.context() as patch:
            patch.setattr(kind, "read", read)
            deaths += live()
    while len({one.step for one in found}) < 6:
        place.put([next(users) for _ in range(lives // 2)])
        assert not live()
    assert deaths > lives // 3
    totals = {one.step: sum(counts(one.table).values()) for one in found}
    assert totals == {step: lives // 2 * step for step in range(1, 7)}


class Target:
    """A place for releases."""

    def __init__(self, kind, folder, request, monkeypatch):
        self.kind, self.folder, self.name = kind, folder, "answers"
        self.server = None
        folder.mkdir(exist_ok=True)
        if kind == "duckdb":
            pytest.importorskip("duckdb")
        if kind == "delta":
            pytest.importorskip("deltalake")
        if kind == "postgres":
            self.server = request.getfixturevalue("emptied")
            monkeypatch.setenv("PGPASSWORD", PASSWORD)
        if kind == "kafka":
            if kafka.jars() is None:
                pytest.skip(f"no Apache Kafka: {kafka.JARS} names no folder with its jars")
            self.server = request.getfixturevalue("broker")
            self.name = f"{request.getfixturevalue('topic')}.{folder.name}"
            self.server.make(self.name)
        if kind == "iceberg":
            self.catalog = request.getfixturevalue("catalog")

    def options(self):
        return {
            "files": {"path": str(self.folder), "format": "csv"},
            "delta": {"path": str(self.folder / "t")},
            "iceberg": {"table": f"{self.folder.name}.answers"},
            "postgres": {"url": self.server and getattr(self.server, "url", None),
                         "table": self.folder.name},
            "kafka": {"servers": getattr(self.server, "servers", None), "topic": self.name},
        }.get(self.kind, {"path": str(self.folder / "db"), "table": "answers"})  # fmt: skip

    def open(self):
        return open_sink(self.kind, self.options())

    def content(self):
        """What a reader finds, as it is told from another."""
        if self.kind == "files":
            files = sorted(self.folder.rglob("*.csv"))
            return [(str(one.relative_to(self.folder)), one.read_bytes()) for one in files]
        if self.kind == "kafka":
            sent = [(*sorted(dict(one.headers()).items()), one.value())
                    for one in self.server.read(self.name)]  # fmt: skip
            return sorted(map(repr, sent))
        if self.kind == "delta":
            import deltalake

            found = deltalake.DeltaTable(self.folder / "t").to_pyarrow_table()
        elif self.kind == "iceberg":
            found = self.catalog.load_table(f"{self.folder.name}.answers").scan().to_arrow()
        else:
            sink = self.open()
            with sink._connection() as connection:
                columns = "streamveil_window, streamveil_trigger, key, n"
                return sorted(
                    sink._ask(connection, f"SELECT {columns} FROM {sink.quoted(sink.table)}")
                )
        return sorted(map(json.dumps, found.to_pylist()))


@pytest.fixture(params=SENDS)
def target(request, tmp_path, monkeypatch):
    return lambda name: Target(request.param, tmp_path / name, request, monkeypatch)


@pytest.mark.parametrize("lives", LIVES)
def test_kills_around_what_is_sent_leave_what_an_unbroken_run_leaves(
    target, lives, tmp_path, monkeypatch
):
    whole, broken = target("whole"), target("broken")
    with Job(
        tmp_path / "a", replace(work(Stream(batches=lives)), sink=whole.open()), SEEDED
    ) as job:
        assert len(list(job)) == lives // 2
    kind = type(broken.open())
    plain, deaths = kind.write, 0
    for turn in range(lives):

        def write(self, job, release, after=turn % 2):
            if after:
                plain(self, job, release)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(kind, "write", write)
            sink = broken.open()
            with (
                pytest.raises(Killed),
                Job(tmp_path / "b", replace(work(Stream(batches=lives)), sink=sink), SEEDED) as job,
            ):
                list(job)
            deaths += 1
    with Job(
        tmp_path / "b", replace(work(Stream(batches=lives)), sink=broken.open()), SEEDED
    ) as job:
        list(job)
    assert deaths == lives
    content = broken.content()
    assert content == whole.content()
    assert len(content) == lives // 2 * (1 if broken.kind == "files" else 8)


def test_several_sinks_of_a_job_get_every_release_once_each(request, tmp_path, monkeypatch):
    """Killed before and after every sink in turn: each holds what it would hold alone."""
    places = [Target(kind, tmp_path / kind, request, monkeypatch)
              for kind in ("files", "postgres", "sqlite", "kafka")]  # fmt: skip
    alone = []
    for place in places:
        other = Target(place.kind, tmp_path / f"{place.kind}.alone", request, monkeypatch)
        whole = replace(work(Stream(batches=8)), sink=other.open())
        with Job(tmp_path / f"{place.kind}.state", whole, SEEDED) as job:
            list(job)
        alone.append(other.content())
    asked = [(place.kind, place.options()) for place in places]
    kinds = [type(place.open()) for place in places for _ in range(2)]
    for turn, kind in enumerate(kinds):

        def write(self, job, release, plain=kind.write, after=turn % 2):
            if after:
                plain(self, job, release)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(kind, "write", write)
            again = replace(work(Stream(batches=8)), sink=open_sinks(asked))
            with pytest.raises(Killed), Job(tmp_path / "s", again, SEEDED) as job:
                list(job)
    again = replace(work(Stream(batches=8)), sink=open_sinks(asked))
    with Job(tmp_path / "s", again, SEEDED) as job:
        list(job)
    assert [place.content() for place in places] == alone
    assert [len(one) for one in alone] == [4, 32, 32, 32]


@contextmanager
def small_disk(folder, kilobytes):
    """A file system of a size of its own."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)],
        check=False, capture_output=True,
    ) if os.geteuid() == 0 else None  # fmt: skip
    if made is None or made.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("target", ["files", "sqlite", "duckdb", "delta"], indirect=True)
def test_a_full_disk_stops_the_job_in_words_and_it_goes_on_when_there_is_room(target, tmp_path):
    with small_disk(tmp_path / "small", 8_000):
        place = target("small")
        first = replace(work(Stream(batches=2)), sink=place.open())
        with Job(tmp_path / "s", first) as job:
            list(job)
        filler = place.folder / "filler.tmp"
        filled = os.open(filler, os.O_CREAT | os.O_WRONLY)
        with suppress(OSError):
            while os.write(filled, b"x" * 512):
                pass
        os.close(filled)
        more = replace(work(Stream(batches=50)), sink=place.open())
        with pytest.raises(StreamveilError, match="to fix"), Job(tmp_path / "s", more) as job:
            list(job)
        filler.unlink()
        more = replace(work(Stream(batches=50)), sink=place.open())
        with Job(tmp_path / "s", more) as job:
            list(job)
        assert len(place.content()) == (25 if place.kind == "files" else 25 * 8)
