"""One suite over every source and every sink: what a new one must hold as well.

What is told of single sources (loss by retention, rebalances, versions that take rows away) stands
in their own tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.accounts.ledger import Ledger
from streamveil.connectors import open_sink, open_sinks, open_source
from streamveil.errors import StreamveilError
from streamveil.kinds import SINKS, SOURCES
from streamveil.runtime.inspect import words
from streamveil.runtime.job import Job
from streamveil.runtime.run import Pace, run
from tests.connectors import places
from tests.connectors.test_databases import Killed
from tests.connectors.test_kafka import counts
from tests.released import made
from tests.runtime.toy import SEEDED, Stream, work
from tests.servers import kafka
from tests.servers.postgres import ABSENT, PASSWORD, Postgres, binaries
from tests.servers.proxy import Proxy
from tests.servers.stores import STORES

NOT_HERE = {"memory"}  # a source of no place
SENDS = ("files", "sqlite", "duckdb", "postgres", "kafka", "delta", "iceberg")


def test_every_source_and_every_sink_is_tried():
    assert set(places.KINDS) - {*STORES} == SOURCES.keys() - NOT_HERE
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


RARE = ("gcs", "azure")  # Arrow's clients again; their servers take long


@pytest.fixture
def place(request, tmp_path, monkeypatch):
    found = places.made(request.param, request, tmp_path, monkeypatch)
    yield found
    found.close()


def over(*left):
    """A test over every place but those that have nothing of what it tries."""
    kinds = [kind for kind in places.KINDS if not any(kind in some for some in left)]
    slow = [
        pytest.param(kind, marks=pytest.mark.slow(landing=True)) if kind in RARE else kind
        for kind in kinds
    ]
    return pytest.mark.parametrize("place", slow, indirect=True)


def rows_of(chunks):
    return [(row["u"], row["page"]) for chunk in chunks for row in chunk.rows.to_pylist()]


def all_of(source, most):
    """What there is, read again and again: it may come too slowly for one read."""
    position, found = None, [None]
    while found:
        found = [one for one in source.read(position, most) if one.rows.num_rows]
        yield from found
        position = found[-1].position if found else None


def expected(users):
    return [(u, places.page(u)) for u in users]


def numbers_and_texts(value):
    """All of a position that is longer than a count or a short name."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from numbers_and_texts(inner)
    elif len(str(value)) > 9:
        yield str(value)


def require_no_digest(position):
    """What `inspect` shows of a position is no digest of rows: who guesses one could check it."""
    shown = words(position).replace(",", "")
    at = json.loads(position)
    public = {str(at[name]) for name in ("lsn", "snapshot") if isinstance(at, dict) and name in at}
    assert any(char.isdigit() for char in shown), shown  # and it tells where reading stands
    assert not [one for one in {*numbers_and_texts(at)} - public if one in shown]


@over()
def test_every_position_goes_on_with_the_rows_that_follow(place):
    place.put(range(9))
    place.put(range(9, 13))
    chunks = list(place.open().read(None, 3))
    assert sorted(rows_of(chunks)) == expected(range(13))
    for at, chunk in enumerate(chunks):
        require_no_digest(chunk.position)
        most = (1, 2, 100)[at % 3]
        follows = list(place.open().read(chunk.position, most))
        assert rows_of(follows) == rows_of(chunks[at + 1 :])
        assert all(one.rows.num_rows <= most for one in follows)
    assert at > 2, "each limit is tried"
    if place.live:
        assert rows_of(place.open().read(chunks[-1].position, 100)) == []
        place.put(range(13, 15))
        later = place.open().read(chunks[-1].position, 100)
        assert sorted(rows_of(later)) == expected(range(13, 15))


def another(place, request, folder, monkeypatch):
    """An empty place of the same kind."""
    folder.mkdir()
    place.close()
    if place.kind == "kafka":
        name = f"{place.topic[:70]}.again"
        place.server.make(name, 2)
        return places.Kafka(place.server, name)
    if place.kind == "iceberg":
        place.catalog.drop_table("shop.visits")
    return places.made(request.node.callspec.params["place"], request, folder, monkeypatch)


def order_in_steps(place, odd):
    """Of rows that come step by step, with those of one user or without: which user has each."""
    batches, position, found = [[3, 8, 5], [1, 6, 2, 3], [8, 5, 4], [7, 6, 1]], None, []
    more = [[1000], [], [1001], [1000, 1001]] if odd else [[]] * 4  # of both partitions
    for batch, added in zip(batches, more, strict=True):
        place.put([*batch, *added])
        while place.live and (chunks := list(place.open().read(position, 2))):
            position = chunks[-1].position
            found += [u for u, _ in rows_of(chunks)]
            if not any(chunk.rows.num_rows for chunk in chunks):
                break
    found = found if place.live else [u for u, _ in rows_of(place.open().read(None, 2))]
    assert len(found) == sum(map(len, batches + more))
    return [u for u in found if u < 1000]


@over()
def test_nobody_elses_rows_decide_in_which_order_rows_come(place, request, tmp_path, monkeypatch):
    """A bound lets the first rows of a person pass: which these are follows from his own alone."""
    without = order_in_steps(place, odd=False)
    beside = another(place, request, tmp_path / "beside", monkeypatch)
    assert order_in_steps(beside, odd=True) == without
    beside.close()


@over(places.TYPED)
def test_what_is_no_row_is_counted_and_no_word_tells_it(place, capfd):
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


@over(places.ALONE)
def test_a_server_that_goes_is_named_and_nothing_is_lost(place, monkeypatch):
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


@pytest.fixture
def impatient(monkeypatch):
    """Nobody waits long for an answer."""
    for module in (
        "http_files",
        "kafka_topic",
        "nats",
        "postgres_log",
        "postgres_server",
        "sse",
    ):
        monkeypatch.setattr(f"streamveil.connectors.{module}.WAIT", 2)
    monkeypatch.setattr("streamveil.connectors.postgres_server.SILENT", 2)


@over(places.ALONE)
@pytest.mark.usefixtures("impatient")
def test_a_slow_server_gives_the_same_rows(place):
    """The whole takes longer than anybody waits for one answer."""
    place.put(range(1500))
    direct = rows_of(place.open().read(None, 100))
    proxy = place.proxied(rate=place.slow)
    try:
        began = time.monotonic()
        slowly = rows_of(all_of(place.open(**place.by_way_of(proxy.port)), 100))
        assert time.monotonic() - began > 2
    finally:
        proxy.close()
    assert slowly == direct
    assert sorted(slowly) == expected(range(1500))


@over(places.ALONE, places.PATIENT)
@pytest.mark.usefixtures("impatient")
def test_a_server_that_falls_silent_is_named_in_time(place):
    """It takes connections and says nothing: from the beginning, and amid its rows."""
    place.put(range(3000))
    whole = rows_of(place.open().read(None, 100))
    for after in (0, place.amid) if place.ends else (0,):
        proxy = place.proxied(rate=2 * place.slow if after else 1e9)
        proxy.most = after
        try:
            began, found = time.monotonic(), []
            source = place.open(**place.by_way_of(proxy.port))
            with pytest.raises(StreamveilError, match="to fix"):
                found.extend(source.read(None, 100))
            assert time.monotonic() - began < 30
        finally:
            proxy.close()
        position = found[-1].position if found else None
        assert rows_of(found) + rows_of(place.open().read(position, 100)) == whole


@over(places.ALONE, places.OPEN)
def test_wrong_credentials_are_refused_soon_and_not_told(place):
    place.put(range(3))
    with place.wrong() as options:
        began = time.monotonic()
        with pytest.raises(StreamveilError, match="to fix") as caught:
            list(place.open(**options).read(None, 3))
        assert time.monotonic() - began < 20, "nobody is waited for who has refused"
    assert "wrong-word" not in places.words_of(caught.value)
    assert sorted(rows_of(place.open().read(None, 3))) == expected(range(3))


def counted(place, every):
    """Six counts of a place's rows, with next to no noise."""
    return (
        sv.source(place.kind, "visits", **place.options()).protect("u")
        .group_by("page", keys=sv.public(["a", "b"])).agg(n=sv.count())
        .bound(max_rows=1).release(budget=sv.Budget(epsilon=9e5, delta=1e-9),
                                   every=sv.rows(every), steps=6)
    )  # fmt: skip


def one_life(asked, state, found):
    """Runs a job to the end of what is there; what it gave, also before it failed."""
    job = run(asked.plan, state=str(state), pace=Pace(max_rows=2, once=True))
    try:
        found.extend(one for one in job if one is not None)
    finally:
        job.close()


def words_of_failure(*life):
    try:
        one_life(*life)
    except StreamveilError as error:
        return str(error)
    return ""


def totals_of(found):
    return {one.step: sum(counts(one.table).values()) for one in found}


@over(places.ONCE)
@pytest.mark.parametrize("begun", [False, True], ids=["new", "begun"])
def test_a_full_disk_under_the_state_and_copies_stops_the_job_in_words(
    place, begun, tmp_path, monkeypatch
):
    """With no room at all, then with ever more: each write in turn is the one that fails."""
    place.put(range(10))
    asked, found, told = counted(place, every=5), [], []
    with small_disk(tmp_path / "small", 20_000):
        state, scratch = tmp_path / "small" / "s", tmp_path / "small" / "tmp"
        scratch.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(scratch))
        if begun:
            one_life(asked, state, found)
            place.put(range(10, 20))
        while told[-1:] != [""]:
            with filled(tmp_path / "small", 4096 * len(told)):
                told.append(words_of_failure(asked, state, found))
        assert len(told) > 2
        assert all("to fix" in words for words in told[:-1])
        if not begun:
            place.put(range(10, 20))
        for start in (20, 30):
            one_life(asked, state, found)
            place.put(range(start, start + 10))
        one_life(asked, state, found)
        assert totals_of(found) == {step: 5 * step for step in range(1, 7)}
        with Ledger.load(state / "ledger") as ledger:
            assert len(ledger.entries()) == 1, "a job is charged once"


LIVES = [10, pytest.param(30, marks=pytest.mark.slow(landing=True))]


@over(places.ONCE)
@pytest.mark.parametrize("lives", LIVES)
def test_a_job_that_dies_at_any_place_of_its_source_counts_every_row_once(
    place, lives, tmp_path, monkeypatch
):
    users = iter(range(10_000))
    place.put([next(users) for _ in range(lives)])
    asked = counted(place, every=lives // 2)
    kind, found = type(place.open()), []
    plain = kind.read

    def live():
        """One life; whether it was killed."""
        try:
            one_life(asked, tmp_path / "s", found)
        except Killed:
            return True
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
    assert totals_of(found) == {step: lives // 2 * step for step in range(1, 7)}


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

    def open(self, **more):
        return open_sink(self.kind, {**self.options(), **more})

    def by_way_of(self, port):
        """Its options with another port of its server."""
        if self.kind == "kafka":
            return {"servers": f"127.0.0.1:{port}"}
        return {"url": self.server.url.replace(f":{self.server.port}", f":{port}")}

    def proxied(self, rate):
        """What stands before its server."""
        if self.kind == "kafka":
            return self.server.proxied(rate)
        return Proxy(self.server.port, rate=rate)

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
            with sink.connection("the answers cannot be read", "see the server") as connection:
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


LOCAL = {  # options of a sink and of a source of the same place
    "files": ({"path": "out", "format": "csv"}, {"path": "out/**/*.csv"}),
    "sqlite": ({"path": "out", "table": "t"},) * 2,
    "duckdb": ({"path": "out", "table": "t"},) * 2,
    "delta": ({"path": "out"},) * 2,
}


@pytest.mark.parametrize("kind", LOCAL)
def test_a_path_stays_the_same_place_when_the_process_works_elsewhere(kind, tmp_path, monkeypatch):
    """Releases would be divided between two places, and rows read from another."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    to, of = LOCAL[kind]
    declared = {"columns": {"n": "FLOAT64"}} if kind in ("files", "sqlite") else {}
    sink, source = open_sink(kind, to), open_source(kind, {**of, **declared})
    monkeypatch.chdir(tmp_path / "there")
    sink.write("job", made(pa.table({"n": [4.5]}), 0, 1))
    assert not [*(tmp_path / "there").iterdir()]
    assert next(iter(source.read(None, 10))).rows["n"].to_pylist() == [4.5]


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


@pytest.mark.slow(landing=True)
@pytest.mark.parametrize(("target", "rate"), [("postgres", 10_000), ("kafka", 40_000)],
                         indirect=["target"])  # fmt: skip
def test_a_slow_server_gets_every_release_once(target, rate, tmp_path):
    """The way to it takes seconds, in which the job is stopped twice."""
    whole, slow = target("whole"), target("slow")
    with Job(tmp_path / "a", replace(work(Stream(batches=8)), sink=whole.open()), SEEDED) as job:
        list(job)
    proxy = slow.proxied(rate)
    try:
        began = time.monotonic()
        for releases in (1, 1, 9):
            sink = slow.open(**slow.by_way_of(proxy.port))
            again = replace(work(Stream(batches=8)), sink=sink)
            with Job(tmp_path / "b", again, SEEDED) as job:
                for _ in zip(range(releases), job, strict=False):
                    pass
        assert time.monotonic() - began > 1
    finally:
        proxy.close()
    assert slow.content() == whole.content()
    assert len(slow.content()) == 4 * 8


@pytest.mark.slow(landing=True)
@pytest.mark.usefixtures("impatient")
def test_servers_that_are_away_for_a_minute_lose_no_row(request, tmp_path, monkeypatch):
    """Jobs over all of them are started again and again meanwhile."""
    jobs = {}
    for kind in ("s3", "http", "kafka", "nats", "sse", "postgres_changes"):
        (tmp_path / kind).mkdir()
        place = places.made(kind, request, tmp_path / kind, monkeypatch)
        place.put(range(10))
        jobs[kind] = place, counted(place, every=5), []
        one_life(jobs[kind][1], tmp_path / kind / "s", jobs[kind][2])
    for place, _, _ in jobs.values():
        place.server.stop()
    try:
        until, tries = time.monotonic() + 60, 0
        while time.monotonic() < until:
            for kind, (_, asked, found) in jobs.items():
                with pytest.raises(StreamveilError, match="to fix"):
                    one_life(asked, tmp_path / kind / "s", found)
            tries += 1
        assert tries > 1
    finally:
        for place, _, _ in jobs.values():
            place.server.start()
    for kind, (place, asked, found) in jobs.items():
        for start in range(10, 50, 10):
            place.put(range(start, start + 10))
            one_life(asked, tmp_path / kind / "s", found)
        assert totals_of(found) == {step: 5 * step for step in range(1, 7)}, kind
        place.close()


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


@contextmanager
def filled(folder, left=0):
    """A file system without room, but for so many bytes."""
    filler = folder / "filler.tmp"
    file = os.open(filler, os.O_CREAT | os.O_WRONLY)
    with suppress(OSError):
        while os.write(file, b"x" * 512):
            pass
    os.ftruncate(file, max(0, os.fstat(file).st_size - left))
    os.close(file)
    try:
        yield
    finally:
        filler.unlink()


@pytest.mark.parametrize("target", ["files", "sqlite", "duckdb", "delta"], indirect=True)
def test_a_full_disk_stops_the_job_in_words_and_it_goes_on_when_there_is_room(target, tmp_path):
    with small_disk(tmp_path / "small", 8_000):
        place = target("small")
        first = replace(work(Stream(batches=2)), sink=place.open())
        with Job(tmp_path / "s", first) as job:
            list(job)
        more = replace(work(Stream(batches=50)), sink=place.open())
        with (
            filled(place.folder),
            pytest.raises(StreamveilError, match="to fix"),
            Job(tmp_path / "s", more) as job,
        ):
            list(job)
        more = replace(work(Stream(batches=50)), sink=place.open())
        with Job(tmp_path / "s", more) as job:
            list(job)
        assert len(place.content()) == (25 if place.kind == "files" else 25 * 8)


@pytest.mark.slow(landing=True)
def test_a_full_disk_under_postgres_stops_the_job_and_it_goes_on(tmp_path, monkeypatch):
    if not binaries():
        pytest.skip(ABSENT)
    pytest.importorskip("psycopg")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with tempfile.TemporaryDirectory() as home, small_disk(Path(home) / "small", 150_000):
        Path(home).chmod(0o755)  # the server has a user of its own
        server = Postgres(Path(home) / "small")
        try:
            asked = {"url": server.url, "table": "answers"}
            with Job(tmp_path / "s", to_postgres(asked, 4), SEEDED) as job:
                list(job)
            server.ask("CREATE TABLE other AS SELECT 1 AS n")
            with filled(Path(home) / "small"), pytest.raises(StreamveilError, match="to fix"):  # noqa: PT012
                for batches in range(100, 10_000, 200):
                    with Job(tmp_path / "s", to_postgres(asked, batches), SEEDED) as job:
                        list(job)
            with suppress(Exception):
                server.stop()
            server.start()
            with Job(tmp_path / "s", to_postgres(asked, batches), SEEDED) as job:
                list(job)
            sent = "SELECT streamveil_trigger, count(*) FROM answers GROUP BY 1 ORDER BY 1"
            assert server.ask(sent) == [(step, 8) for step in range(1, batches // 2 + 1)]
        finally:
            with suppress(Exception):
                server.stop()


def to_postgres(asked, batches):
    return replace(work(Stream(batches=batches)), sink=open_sink("postgres", asked))


@pytest.mark.parametrize(
    ("target", "deaths"),
    [
        ("postgres", 1),
        pytest.param("postgres", 4, marks=pytest.mark.slow(landing=True)),
        pytest.param("kafka", 4, marks=pytest.mark.slow(landing=True)),
    ],
    indirect=["target"],
)
@pytest.mark.usefixtures("impatient")
def test_a_server_that_is_gone_for_a_while_gets_every_release_once(
    target, deaths, tmp_path, monkeypatch
):
    """Killed before a release or behind one; the job is started again and again meanwhile."""
    whole, broken = target("whole"), target("broken")
    with Job(tmp_path / "a", replace(work(Stream(batches=20)), sink=whole.open()), SEEDED) as job:
        list(job)
    kind = type(broken.open())
    plain = kind.write
    for turn in range(deaths):

        def write(self, job, release, left=[2], after=turn % 2):  # noqa: B006  (of this turn)
            left[0] -= 1
            if left[0] == 0 and not after:
                broken.server.stop()
            plain(self, job, release)
            if left[0] == 0 and after:
                broken.server.stop()

        with monkeypatch.context() as patch:
            patch.setattr(kind, "write", write)
            for _ in range(3):  # one in which it goes, and two in which it is away
                sent = replace(work(Stream(batches=20)), sink=broken.open())
                with (
                    pytest.raises(StreamveilError, match="to fix"),
                    Job(tmp_path / "b", sent, SEEDED) as job,
                ):
                    list(job)
        broken.server.start()
    with Job(tmp_path / "b", replace(work(Stream(batches=20)), sink=broken.open()), SEEDED) as job:
        list(job)
    assert broken.content() == whole.content()
    assert len(broken.content()) == 10 * 8
