"""Databases as sinks: a release is in the table once, wherever a process or the server dies."""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from streamveil.cli import app
from streamveil.connectors import databases, open_sink
from streamveil.errors import MissingExtraError, SourceError, StoreError
from streamveil.release_metadata import ReleaseTime, kept_time, noted
from streamveil.runtime.job import Job
from tests.connectors.conftest import NAME
from tests.connectors.test_sinks import ODD
from tests.released import made
from tests.runtime.toy import Stream, work
from tests.servers.postgres import PASSWORD

TABLE = pa.table({"key": ["a", None, "c"], "n": [4.5, 5.5, 6.5]})
OTHER = pa.table({"key": ["a", None, "c"], "n": [4.5, 5.5, 7.5]})
READ = "streamveil_job, streamveil_window, streamveil_trigger, key, n"


def opened(place, **more) -> Any:
    options = {**place, **more}
    return open_sink(options.pop("kind"), options)


def said(sink, statement):
    with closing(sink.connect()) as connection:
        answer = sink._ask(connection, statement)
        if sink.dialect == "postgres":
            connection.commit()
        return answer


def rows(sink, what=READ):
    order = " ORDER BY 1, 2, 3, 4, 5" if what == READ else ""
    return said(sink, f"SELECT {what} FROM {sink.quoted(sink.table)}{order}")


TWICE = ((0, 1), (0, 2))


def send(sink, which=(*TWICE, (1, 1))):
    for window, trigger in which:
        sink.write("job", made(TABLE if trigger == 1 else OTHER, window, trigger))


@pytest.mark.parametrize("mode", databases.MODES)
def test_every_release_is_there_once(place, mode):
    sink = opened(place, mode=mode)
    send(sink)
    once = rows(sink)
    send(opened(place, mode=mode))  # the second life repeats all
    assert rows(sink) == once
    assert len(once) == (9 if mode == "append" else 6)
    newest = [row[2:] for row in once if row[:2] == ("job", 0) and row[3] == "c"]
    assert newest == ([(1, "c", 6.5), (2, "c", 7.5)] if mode == "append" else [(2, "c", 7.5)])


def test_jobs_share_a_table_and_a_job_has_many(place):
    sink, other = opened(place, mode="upsert"), opened(place, mode="upsert", table="more")
    sink.write("job", made(TABLE))
    sink.write("another", made(OTHER))
    other.write("job", made(OTHER))
    assert [len(rows(one)) for one in (sink, other)] == [6, 3]


def test_another_release_under_its_name_is_refused_and_a_last_digit_is_not(place):
    sink = opened(place)
    sink.write("job", made(TABLE))
    before = rows(sink)
    near = TABLE.set_column(1, "n", pa.array([4.5, 5.5, np.nextafter(6.5, 7)]))
    sink.write("job", made(near))
    for other in (OTHER, TABLE.slice(0, 2), TABLE.rename_columns(["key", "m"])):
        with pytest.raises(StoreError, match="holds another release") as caught:
            sink.write("job", made(other))
        assert "7.5" not in str(caught.value)
    assert rows(sink) == before


def test_what_no_number_holds_stands_beside_the_release(place):
    note = "about 12 rows were over the bound"
    table = noted(TABLE, note, kept_time(ReleaseTime(0, "2026-01-01", None)))
    sink = opened(place)
    sink.write("job", made(table))
    ((metadata, notes),) = said(sink, f"SELECT metadata, notes FROM {databases.MARKS}")
    assert notes == note
    assert "2026-01-01" in metadata


@pytest.mark.parametrize("key", ODD)
def test_no_group_stops_a_publication(place, key):
    texts = pa.array(["\0", "'; DROP TABLE x; --", "\\."])
    table = pa.table({key: ODD[key], "n": [1.5, float("nan"), None], "text": texts})
    whole = pa.array([2**64 - 1, 0, 1], pa.uint64())
    table = table.append_column("id", whole).append_column("kind", texts.dictionary_encode())
    for _ in range(2):
        opened(place).write("job", made(table))
    assert rows(opened(place), "COUNT(*)") == [(3,)]
    found = {row[0] for row in rows(opened(place), '"id"')}
    assert found == {str(2**64 - 1), "0", "1"}


class Killed(BaseException):
    """A process that ends here."""


class Dying:
    """A connection that calls `step` with the statement before and after each effect."""

    def __init__(self, inner, step):
        self._inner, self._step = inner, step

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name == "cursor":
            return lambda: Dying(found(), self._step)
        if name not in {"execute", "executemany", "copy"}:
            return found

        def effect(*arguments):
            self._step(arguments[0], "before")
            answer = found(*arguments)
            self._step(arguments[0], "after")
            return answer

        return effect


def test_a_kill_between_any_two_effects_neither_loses_nor_doubles(place, monkeypatch):
    whole, effects = opened(place, mode="upsert", table="whole"), []
    watched(whole, lambda *effect: effects.append(effect), monkeypatch)
    kept = rows(whole)
    assert {row[2] for row in kept} == {2}
    assert len(effects) >= 32  # begin, marks, columns, rows, mark, commit
    for number in range(1, len(effects), 2):  # after each one is before the next one
        sink, left = opened(place, mode="upsert", table=f"{NAME}{number}"), [number]
        said(sink, f"DROP TABLE {databases.MARKS}")  # it is made anew, too

        def step(*_, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        with pytest.raises(Killed):
            watched(sink, step, monkeypatch)
        assert len(rows(sink) if table_is_there(sink) else ()) in {0, 3}  # never a part
        send(sink, TWICE)
        assert rows(sink) == kept


def watched(sink, step, monkeypatch):
    plain = type(sink).connect
    with monkeypatch.context() as patch:
        patch.setattr(type(sink), "connect", lambda sink: Dying(plain(sink), step))
        send(sink, TWICE)


def table_is_there(sink):
    with closing(sink.connect()) as connection:
        return bool(sink._ask(connection, sink.known, sink.table))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of forks beside threads
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_dies_at_the_commit_is_made_good_by_the_next(place, when):
    def step(*effect):
        if effect == ("COMMIT", when):
            os._exit(9)

    child = os.fork()
    if not child:
        try:
            sink = opened(place)
            connect = sink.connect
            sink.connect = lambda: Dying(connect(), step)
            send(sink)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    sink = opened(place)
    assert (len(rows(sink)) if table_is_there(sink) else 0) == (3 if when == "after" else 0)
    send(sink)
    assert len(rows(sink)) == 9


def test_a_job_that_is_killed_after_the_commit_goes_on(place, tmp_path, monkeypatch):
    sink = opened(place, table="toy")
    plain, left = type(sink).write, [3]

    def write(self, job, release):
        plain(self, job, release)
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(type(sink), "write", write)
        job = Job(tmp_path / "s", replace(work(Stream(batches=24)), sink=sink))
        with pytest.raises(Killed), job:
            list(job)
    again = replace(work(Stream(batches=24)), sink=opened(place, table="toy"))
    with Job(tmp_path / "s", again) as job:
        list(job)
    triggers = said(
        sink, 'SELECT streamveil_window, streamveil_trigger, COUNT(*) FROM "toy" GROUP BY 1, 2'
    )
    marked = said(sink, f"SELECT COUNT(*) FROM {databases.MARKS}")
    assert len(triggers) == marked[0][0] == 12
    assert len({count for *_, count in triggers}) == 1


def test_a_table_with_other_columns_is_refused(place):
    sink = opened(place)
    sink.write("job", made(TABLE))
    before = rows(sink)
    for other in (
        TABLE.append_column("m", pa.array([1, 2, 3])), TABLE.select(["key"]),
        TABLE.set_column(1, "n", pa.array([1, 2, 3])), TABLE.select(["n", "key"]),
    ):  # fmt: skip
        with pytest.raises(SourceError, match=r"has other columns.*\n.*name another table"):
            sink.write("job", made(other, 0, 2))
    assert rows(sink) == before
    with pytest.raises(SourceError, match="two columns 'n'"):
        sink.write("job", made(TABLE.append_column("N", TABLE["n"]), 0, 2))


def test_a_database_that_cannot_be_written_stops_the_job_in_words(place, tmp_path):
    sink = opened(place)
    sink.write("job", made(TABLE))
    if place["kind"] == "postgres":
        sink.server.url += "?options=-cdefault_transaction_read_only%3Don"
        reason = "ReadOnlySqlTransaction"
    else:
        sink.path = str(tmp_path / "no" / "where.db")
        reason = "SQLITE_CANTOPEN|IOException"
    with pytest.raises(SourceError, match=f"cannot write to the table.*({reason})") as caught:
        sink.write("job", made(OTHER, 0, 2))
    assert "7.5" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_full_sqlite_database_keeps_what_it_has(tmp_path, monkeypatch):
    sink = open_sink("sqlite", {"path": str(tmp_path / "a.db"), "table": "t"})
    sink.write("job", made(TABLE))
    plain = type(sink).connect

    def small(sink):
        connection = plain(sink)
        connection.execute("PRAGMA max_page_count = 8")
        return connection

    large = pa.table({"key": ["x" * 5000] * 30, "n": [1.5] * 30})
    with monkeypatch.context() as patch:
        patch.setattr(type(sink), "connect", small)
        with pytest.raises(SourceError, match="SQLITE_FULL"):
            sink.write("job", made(large, 0, 2))
    assert len(rows(sink)) == 3
    sink.write("job", made(large, 0, 2))
    assert len(rows(sink)) == 33


def test_one_writer_waits_for_another(tmp_path, monkeypatch):
    monkeypatch.setattr(databases, "WAIT", 0.05)
    path = str(tmp_path / "a.db")
    sink = open_sink("sqlite", {"path": path, "table": "t"})
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SourceError, match="SQLITE_BUSY"):
            sink.write("job", made(TABLE))
        other.execute("ROLLBACK")
    sink.write("job", made(TABLE))


def test_a_server_may_stop_in_the_middle(server, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    sink = open_sink("postgres", {"url": server.url, "table": "restarted"})
    sink.write("job", made(TABLE))
    plain = type(sink).insert

    def insert(self, connection, table):
        plain(self, connection, table)
        server.stop()

    with monkeypatch.context() as patch:
        patch.setattr(type(sink), "insert", insert)
        with pytest.raises(SourceError, match="cannot write"):
            sink.write("job", made(OTHER, 0, 2))
    try:
        with pytest.raises(SourceError, match="refused") as caught:
            sink.write("job", made(OTHER, 0, 2))
    finally:
        server.start()  # other tests share it
    assert PASSWORD not in str(caught.value)
    sink.write("job", made(TABLE))
    sink.write("job", made(OTHER, 0, 2))
    assert len(rows(sink)) == 6


def test_no_password_is_kept_or_shown(server, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", wrong := "battery staple")
    sink = open_sink("postgres", {"url": server.url, "table": "t"})
    with pytest.raises(SourceError, match="authentication failed for user") as caught:
        sink.write("job", made(TABLE))
    assert wrong not in str(caught.value) + repr(sink) + repr(vars(sink))
    for url in (
        f"postgresql://writer:{PASSWORD}@host/db".replace(" ", "%20"), "host=h password=hunter2",
        "postgresql://h/db?sslpassword=hunter2", "hunter2",
    ):  # fmt: skip
        with pytest.raises(SourceError, match="PGPASSWORD") as caught:
            open_sink("postgres", {"url": url, "table": "t"})
        assert not {"hunter2", "correct"} & set(str(caught.value).replace("@", " ").split())


@pytest.mark.parametrize(("kind", "module"), [("duckdb", "duckdb"), ("postgres", "psycopg")])
def test_a_missing_package_names_the_extra(kind, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    options = {"url": "host=h"} if kind == "postgres" else {"path": "x.db"}
    with pytest.raises(MissingExtraError, match=rf"streamveil\[{kind}\]"):
        open_sink(kind, {**options, "table": "t"})


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_database_in_memory_is_refused(kind):
    with pytest.raises(SourceError, match="in memory"):
        open_sink(kind, {"path": ":memory:", "table": "t"})


def test_no_file_is_made_before_the_first_release(tmp_path: Path) -> None:
    for kind in ("sqlite", "duckdb"):
        open_sink(kind, {"path": str(tmp_path / kind), "table": "t"}).close()
    assert not list(tmp_path.iterdir())


def test_trying_a_sink_out_leaves_no_table(place):
    sink = opened(place)
    for _ in range(2):
        sink.try_out()
        assert not said(sink, tables(sink))
    send(sink)
    once = rows(sink)
    sink.try_out()
    assert rows(sink) == once


def tables(sink):
    if sink.dialect == "sqlite":
        return "SELECT name FROM sqlite_master"
    return "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"


def test_a_database_that_takes_no_table_is_told_before_the_charge(place):
    """It was charged, and its first release could not be written."""
    if place["kind"] == "postgres":
        server = place["url"]
        with psycopg_of(server) as connection:
            connection.execute("DROP ROLE IF EXISTS reader")
            connection.execute(f"CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'")
            connection.execute("GRANT USAGE ON SCHEMA public TO reader")
        place = {**place, "url": re.sub("//[^@]*@", "//reader@", server)}
    else:
        Path(place["path"]).write_bytes(b"no database " * 1_000)
    with pytest.raises(SourceError, match="lets this user make and write tables"):
        opened(place).try_out()
    if place["kind"] == "postgres":
        with psycopg_of(server) as connection:
            connection.execute("DROP OWNED BY reader")
            connection.execute("DROP ROLE reader")


def test_a_table_of_something_else_is_told_before_the_charge(place):
    """It was found at the first release."""
    sink = opened(place)
    said(sink, f"CREATE TABLE {sink.quoted(sink.table)} (a {sink.types[0]})")
    with pytest.raises(SourceError, match=r"has other columns.* see 'streamveil_job'"):
        sink.try_out()


def test_a_user_of_postgres_needs_no_right_to_make_tables_that_are_there(server, monkeypatch):
    """One who might write both was refused; one who might not was charged first."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    place = {"kind": "postgres", "url": server.url, "table": "granted"}
    opened(place).write("job", made(TABLE))
    server.ask(f"CREATE ROLE clerk LOGIN PASSWORD '{PASSWORD}'")
    server.ask("GRANT USAGE ON SCHEMA public TO clerk")
    server.ask("GRANT SELECT, INSERT ON streamveil_releases TO clerk")
    clerk = opened({**place, "url": server.url.replace("//writer@", "//clerk@")})
    try:
        with pytest.raises(SourceError, match=r"Privilege .permission denied for"):
            clerk.try_out()
        server.ask("GRANT INSERT ON granted TO clerk")
        clerk.try_out()
        clerk.write("job", made(OTHER, 0, 2))
    finally:
        server.ask("DROP OWNED BY clerk; DROP ROLE clerk; DROP TABLE granted")


def psycopg_of(url):
    import psycopg

    return psycopg.connect(url, password=PASSWORD)


PAGE = Path(__file__).parents[2] / "docs" / "databases.md"


def test_the_recipes_of_the_page_run(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    times = pa.array([1_767_225_600_000_000 + 100_000_000 * (i % 1700) for i in range(4000)])
    pq.write_table(
        pa.table({
            "user_id": list(range(4000)), "country": ["fi", "is"] * 2000,
            "ts": times.cast(pa.timestamp("us", "UTC")),
        }),
        "visits.parquet",
    )  # fmt: skip
    whole, *others = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (first,) = re.findall(r"CREATE SINK.*?;", whole, re.S)
    (sink,) = [one for one in (first, *others) if f"'{place['kind']}'" in one]
    if place["kind"] == "postgres":
        sink = re.sub("postgresql://[^']*", place["url"], sink)
    Path("visits.sql").write_text(whole.replace(first, sink))
    command = ["run", "visits.sql", "--state", "visits.veil"]
    for _ in range(2):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    options = {**place, "table": "visits_per_day"}
    if "path" in options:
        options["path"] = re.search("path = '(.*?)'", sink).group(1)
    found = said(
        opened(options), "SELECT country, COUNT(*), MAX(streamveil_trigger) FROM visits_per_day"
        " GROUP BY country ORDER BY country"
    )  # fmt: skip
    releases = 2 if "upsert" in sink else 4
    assert found == [("fi", releases, 2), ("is", releases, 2)]
    assert said(opened(options), f"SELECT COUNT(*) FROM {databases.MARKS}") == [(4,)]
