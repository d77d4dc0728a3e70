"""The changes of a table: its first rows and all that follows, each once, wherever a job stops."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest

import streamveil as sv
from streamveil.connectors import open_source, postgres_changes
from streamveil.connectors.rejected_rows import traced
from streamveil.errors import PlanError, SourceError
from streamveil.runtime.fork import fork
from streamveil.runtime.run import Pace, run
from tests.servers.postgres import ABSENT, PASSWORD, Postgres, binaries


@pytest.fixture
def table(server, monkeypatch):
    """A published table with ten rows; its slots go with it."""
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    dropped(server)
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    server.ask("CREATE TABLE visits (id bigint PRIMARY KEY, page text, note text)")
    server.ask("ALTER TABLE visits ALTER page SET STORAGE PLAIN, ALTER note SET STORAGE PLAIN")
    server.ask("CREATE TABLE other (id bigint)")
    server.ask("DROP PUBLICATION IF EXISTS p; CREATE PUBLICATION p FOR TABLE visits, other")
    server.ask("INSERT INTO visits SELECT i, chr(97 + i % 2), 'x' FROM generate_series(1, 10) i")
    yield "visits"
    dropped(server)


def dropped(server):
    for _ in range(50):
        try:
            server.ask("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        except Exception:  # one is still read
            time.sleep(0.1)
        else:
            return


def opened(server, folder=None, **more):
    source = open_source(
        "postgres_changes", {"url": server.url, "table": "visits", "publication": "p", **more}
    )
    if folder is not None:
        source.keep_in(folder)
    return source


def rows(chunks):
    return [
        (row["pg_operation"], row["id"], row["page"])
        for chunk in chunks for row in chunk.rows.to_pylist()
    ]  # fmt: skip


def applied(changes):
    """The table that changes make."""
    found = {}
    for operation, key, page in changes:
        if operation == "delete":
            del found[key]
        else:
            assert (key in found) == (operation == "update")
            found[key] = page
    return found


def truth(server):
    return dict(server.ask("SELECT id, page FROM visits"))


def busy(server, n):
    """Some transactions of all kinds."""
    server.ask(f"INSERT INTO visits VALUES ({100 + n}, 'a', 'y'), ({200 + n}, NULL, '')")
    server.ask(f"UPDATE visits SET page = 'c' WHERE id = {100 + n}")
    server.ask(f"DELETE FROM visits WHERE id = {200 + n}")
    server.ask(
        f"UPDATE visits SET id = {300 + n} WHERE id = {100 + n}; INSERT INTO other VALUES (1)"
    )


def test_first_rows_and_changes_go_on_from_every_position(server, table, tmp_path):
    source = opened(server, tmp_path)
    first = rows(source.read(None, 3))
    assert sorted(first) == [("insert", i, "ab"[i % 2]) for i in range(1, 11)]
    dropped(server)
    chunks = []
    reading = opened(server, tmp_path).read(None, 3)
    chunks += [next(reading)]  # the slot and the snapshot are there
    busy(server, 0)
    chunks += list(reading)
    busy(server, 1)
    with pytest.raises(Exception, match="rolled back"):
        server.ask(
            "INSERT INTO visits VALUES (999, 'z', 'z'); DO $$ BEGIN RAISE 'rolled back'; END $$"
        )
    chunks += opened(server, tmp_path).read(chunks[-1].position, 3)
    found = rows(chunks)
    assert found[:10] == first
    per_turn = ["insert", "insert", "update", "delete", "delete", "insert"]
    assert [one[0] for one in found[10:]] == per_turn * 2
    assert applied(found) == truth(server)
    assert json.loads(chunks[-1].position)["rows"] == len(found)
    for at, chunk in enumerate(chunks):
        for most in (1, 100):
            follows = rows(opened(server, tmp_path).read(chunk.position, most))
            assert follows == rows(chunks[at + 1 :])


def test_rows_that_are_gone_do_not_decide_in_which_order_the_first_rows_come(
    server, table, tmp_path
):
    """PostgreSQL puts new rows where old ones were; a bound lets the first of a person pass."""
    import psycopg

    found = []
    for more in (False, True):
        dropped(server)
        server.ask("TRUNCATE visits")
        if more:
            server.ask("INSERT INTO visits SELECT i, 'z', '' FROM generate_series(100, 300) i")
        server.ask("INSERT INTO visits SELECT i, 'a', '' FROM generate_series(1, 20) i")
        server.ask("DELETE FROM visits WHERE page = 'z'")
        with psycopg.connect(server.url, password=PASSWORD, autocommit=True) as connection:
            connection.execute("VACUUM visits")
        server.ask("INSERT INTO visits SELECT i, 'b', '' FROM generate_series(21, 40) i")
        (tmp_path / str(more)).mkdir()
        found.append(rows(opened(server, tmp_path / str(more)).read(None, 10)))
    assert found[0] == found[1]
    assert sorted(one[1] for one in found[0]) == [*range(1, 41)]


@contextmanager
def left_open(server, statement):
    import psycopg

    with psycopg.connect(server.url, password=PASSWORD) as connection:
        connection.execute(statement)
        yield connection


def test_transactions_that_straddle_the_snapshot_are_read_once(
    server, table, tmp_path, monkeypatch
):
    """Committed before the slot, between slot and snapshot, and after both."""
    keep = postgres_changes.PostgresChanges._keep
    made = postgres_changes.PostgresChanges._first

    server.ask("SELECT pg_create_logical_replication_slot('p', 'pgoutput')")
    with left_open(server, "INSERT INTO visits VALUES (21, 'a', 'x')") as across:
        server.ask("INSERT INTO visits VALUES (22, 'a', 'x')")  # behind the slot, in the snapshot

        def keeps(self, *arguments):
            across.commit()  # the snapshot is taken, and has it not
            server.ask("INSERT INTO visits VALUES (23, 'a', 'x')")
            keep(self, *arguments)

        monkeypatch.setattr(postgres_changes.PostgresChanges, "_keep", keeps)
        chunks = list(opened(server, tmp_path).read(None, 4))
    found = rows(chunks)
    assert Counter(key for _, key, _ in found) == Counter([*range(1, 11), 21, 22, 23])
    assert 22 in [key for _, key, _ in found[:11]]
    assert [key for _, key, _ in found[11:]] == [21, 23]
    assert applied(found) == truth(server)
    assert made is postgres_changes.PostgresChanges._first


def test_the_log_is_freed_once_rows_are_durable_and_lost_rows_are_told(server, table, tmp_path):
    source = opened(server, tmp_path)
    chunks = list(source.read(None, 100))
    early, late = chunks[1].position, chunks[-1].position
    assert (tmp_path / postgres_changes.SNAPSHOT).exists()
    busy(server, 0)
    chunks = list(source.read(late, 100))
    assert rows(opened(server, tmp_path).read(late, 100)) == rows(chunks)  # nobody said durable
    source.committed(chunks[-1].position)
    assert not (tmp_path / postgres_changes.SNAPSHOT).exists()
    list(source.read(chunks[-1].position, 100))
    for gone, why in ((early, "first rows"), (late, "are gone")):
        with pytest.raises(SourceError, match=why):
            until_it_fails(opened(server, tmp_path), gone)
    assert rows(opened(server, tmp_path).read(chunks[-1].position, 100)) == []


def until_it_fails(source, position):
    for _ in range(50):  # the server takes note when it can
        list(source.read(position, 100))
        time.sleep(0.1)


@pytest.mark.parametrize("again", [False, True])
def test_a_slot_that_was_dropped_is_told_also_where_one_was_made_again(
    server, table, tmp_path, again
):
    position = list(opened(server, tmp_path).read(None, 100))[-1].position
    busy(server, 0)
    dropped(server)
    if again:
        server.ask("SELECT pg_create_logical_replication_slot('p', 'pgoutput')")
        busy(server, 1)
    with pytest.raises(SourceError, match=r"are gone that this job had not read(.|\n)*to fix"):
        list(opened(server, tmp_path).read(position, 100))


@pytest.fixture
def standby():
    """A server, what keeps a copy of it, and what lets that copy take over."""
    if binaries() is None:
        pytest.skip(ABSENT)
    pytest.importorskip("psycopg")
    server = Postgres()
    copy = server.home / "copy"

    def stopped():
        server.process.send_signal(signal.SIGINT)
        server.process.wait(30)

    def keep():
        stopped()
        subprocess.run(["cp", "-a", server.home / "data", copy], check=True)
        server.start()

    def take_over(*, promoted):
        stopped()
        (server.home / "data").rename(server.home / "lost")
        copy.rename(server.home / "data")
        if promoted:  # recovery ends in a timeline of its own
            (server.home / "data" / "recovery.signal").touch()
            with (server.home / "data" / "postgresql.auto.conf").open("a") as settings:
                settings.write("restore_command = 'false'\n")
        server.start()
        while server.ask("SELECT pg_is_in_recovery()") != [(False,)]:
            time.sleep(0.1)

    yield server, keep, take_over
    server.remove()


@pytest.mark.parametrize("promoted", [True, False])
def test_a_server_that_took_over_without_what_was_read_is_told(
    standby, promoted, tmp_path, monkeypatch
):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    server, keep, take_over = standby
    server.ask("CREATE TABLE visits (id bigint PRIMARY KEY, page \"char\"); "
               "CREATE PUBLICATION p FOR TABLE visits")  # fmt: skip
    list(opened(server, tmp_path).read(None, 100))
    position = list(opened(server, tmp_path).read(None, 100))[-1].position
    server.ask("INSERT INTO visits VALUES (1, 'a')")
    before = list(opened(server, tmp_path).read(position, 100))[-1].position
    keep()
    server.ask("INSERT INTO visits VALUES (2, 'a')")
    after = list(opened(server, tmp_path).read(before, 100))[-1].position
    take_over(promoted=promoted)

    def require_told():
        with pytest.raises(SourceError, match=r"does not have(.|\n)*to fix  start a new state"):
            list(opened(server, tmp_path).read(after, 100))

    if not promoted:  # a copy of the disk: it is told from the server until it has written as much
        require_told()
        return
    for n in range(50):
        server.ask(f"INSERT INTO visits VALUES ({100 + n}, 'b')")
    require_told()  # also where the log of the new timeline is longer
    found = list(opened(server, tmp_path).read(before, 100))
    assert [key for _, key, _ in rows(found)] == [*range(100, 150)]
    assert json.loads(found[-1].position)["timeline"] == 2
    older = json.dumps({k: v for k, v in json.loads(before).items() if k != "timeline"})
    assert rows(opened(server, tmp_path).read(older, 100)) == rows(found)


def test_another_table_of_the_name_is_told_and_so_is_one_that_inherits(server, table, tmp_path):
    """What the first table was sent was lost in silence, or its rows were counted again."""
    position = list(opened(server, tmp_path).read(None, 99))[-1].position
    server.ask("INSERT INTO visits VALUES (11, 'a', 'x'); ALTER TABLE visits RENAME TO away")
    server.ask("CREATE TABLE visits (LIKE away INCLUDING ALL)")
    server.ask("ALTER PUBLICATION p ADD TABLE visits")
    with pytest.raises(SourceError, match=r"not the one that this job has read(.|\n)*to fix"):
        list(opened(server, tmp_path).read(position, 99))
    server.ask("DROP TABLE visits; ALTER TABLE away RENAME TO visits")
    [*_, last] = opened(server, tmp_path).read(position, 99)
    assert json.loads(last.position)["rows"] == 11
    server.ask("CREATE TABLE more () INHERITS (visits)")
    with pytest.raises(SourceError, match=r"inherit from 'visits'(.|\n)*to fix"):
        list(opened(server, tmp_path).read(last.position, 99))


def test_what_would_be_left_out_is_refused(server, table, tmp_path):
    for how in ("FOR TABLE other", "FOR TABLE visits (id)", "FOR TABLE visits WHERE (id > 3)",
                "FOR TABLE visits WITH (publish = 'insert')"):  # fmt: skip
        server.ask(f"DROP PUBLICATION p; CREATE PUBLICATION p {how}")
        with pytest.raises(SourceError, match="does not publish all changes"):
            list(opened(server, tmp_path).read(None, 10))
    server.ask("DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE visits")
    server.ask("ALTER TABLE visits ADD twice bigint GENERATED ALWAYS AS (id * 2) STORED")
    with pytest.raises(SourceError, match="makes the values of column 'twice'"):
        list(opened(server, tmp_path).read(None, 10))
    server.ask("ALTER TABLE visits DROP twice")
    position = list(opened(server, tmp_path).read(None, 10))[-1].position
    server.ask("TRUNCATE visits")
    with pytest.raises(SourceError, match="TRUNCATE"):
        list(opened(server, tmp_path).read(position, 10))


def test_a_column_of_which_the_log_may_lack_values_is_refused_whatever_the_rows_are(
    server, table, tmp_path
):
    """With and without a long value: one person's row must not decide whether a job goes on."""
    server.ask("ALTER TABLE visits ALTER note SET STORAGE EXTENDED")
    columns = ["id", "page", "pg_operation"]
    position = list(opened(server, tmp_path).read(None, 100, columns))[-1].position
    told = []
    long = "SELECT string_agg(md5(i::text), '') FROM generate_series(1, 500) i"
    for value in ("'short'", long):
        server.ask(f"DELETE FROM visits; INSERT INTO visits VALUES (50, 'a', ({value}))")
        position = list(opened(server, tmp_path).read(position, 100, columns))[-1].position
        server.ask("UPDATE visits SET page = 'b' WHERE id = 50")
        for place in (None, position):
            with pytest.raises(SourceError, match=r"'note'.*\n.*REPLICA IDENTITY FULL") as error:
                list(opened(server, tmp_path).read(place, 10))
            told.append(str(error.value))
        assert rows(opened(server, tmp_path).read(position, 10, columns)) == [("update", 50, "b")]
    assert len({*told}) == 1
    server.ask("ALTER TABLE visits REPLICA IDENTITY FULL")
    position = list(opened(server, tmp_path).read(position, 10, columns))[-1].position
    server.ask("UPDATE visits SET page = 'c' WHERE id = 50")
    (row,) = [row for chunk in opened(server, tmp_path).read(position, 10)
              for row in chunk.rows.to_pylist()]  # fmt: skip
    assert len(row["note"]) == 500 * 32


def test_a_value_of_each_type_is_the_same_at_first_and_as_a_change(server, table, tmp_path):
    server.ask(
        "DROP TABLE other; CREATE TABLE other (id int, b boolean, d date, t timestamptz,"
        " f float8, n numeric, y bytea, i interval, j jsonb, a int[], c char(3), ip inet);"
        "ALTER TABLE other REPLICA IDENTITY FULL; ALTER PUBLICATION p ADD TABLE other"
    )
    odd = (
        "INSERT INTO other VALUES (1, TRUE, '2020-01-02', '2020-01-02 03:04:05.6+05', 1e300, 1.5,"
        " '\\x00ff', '1 month', '{\"a\": 1}', '{1,2}', 'a', '10.0.0.5'), (2, FALSE, 'infinity',"
        " 'infinity', 'NaN', 'NaN', '', '-1 s', 'null', '{}', '', '::1'), (3, NULL,"
        " '0044-03-15 BC', '-infinity', '-infinity', 1e400, NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    server.ask(odd)
    source = opened(server, tmp_path, table="other")
    first = list(source.read(None, 10))
    server.ask(odd)
    after = list(source.read(first[-1].position, 10))
    kept = [
        [{**row, "pg_time": None} for chunk in chunks for row in chunk.rows.to_pylist()]
        for chunks in (first, after)
    ]
    kept[0].sort(key=lambda row: row["id"])
    assert repr(kept[0]) == repr(kept[1])
    assert [row["b"] for row in kept[1]] == [True, False, None]
    assert [row["y"] for row in kept[1]] == [b"\x00\xff", b"", None]
    read = open_source("postgres", {"url": server.url, "table": "other"}).read(None, 10)
    once = sorted((row["id"], row["c"], row["ip"]) for chunk in read
                  for row in chunk.rows.to_pylist())  # fmt: skip
    assert once[::2] == [(row["id"], row["c"], row["ip"]) for row in kept[1]]


@pytest.mark.parametrize("kind", ["postgres", "postgres_changes"])
def test_a_database_whose_texts_can_fail_to_be_read_is_refused(kind, server, table):
    import psycopg

    with psycopg.connect(server.url, password=PASSWORD, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS plain")
        connection.execute("CREATE DATABASE plain ENCODING SQL_ASCII TEMPLATE template0"
                           " LC_COLLATE 'C' LC_CTYPE 'C'")  # fmt: skip
    url = server.url.rsplit("/", 1)[0] + "/plain"
    more = {"publication": "p"} if kind == "postgres_changes" else {}
    with pytest.raises(SourceError, match="encoding SQL_ASCII"):
        open_source(kind, {"url": url, "table": "visits", **more}).schema()


def test_rows_have_places_where_they_are_traced(server, table, tmp_path):
    chunks = list(traced(opened(server, tmp_path)).read(None, 4))
    places = np.concatenate([chunk.rows.column(-1).to_numpy() for chunk in chunks])
    assert places.tolist() == list(range(1, 11))


def query(server):
    return sv.source("postgres_changes", "visits", url=server.url, table="visits", publication="p")


BUDGET = sv.Budget(epsilon=9e5, delta=1e-9)


def test_a_job_that_is_cut_off_at_any_commit_counts_every_row_once(server, table, tmp_path):
    """Stopped after each commit, while rows come and the server dies: as if never stopped."""
    asked = (
        query(server).protect("id").group_by("page", keys=sv.public(["a", "b"]))
        .agg(n=sv.count()).bound(max_rows=1).release(budget=BUDGET, every=sv.rows(8), steps=4)
    )  # fmt: skip
    found, freed, state = {}, [], str(tmp_path / "s")
    for turn in range(40):
        server.ask(
            f"INSERT INTO visits SELECT {100 + 3 * turn} + i, 'a' FROM generate_series(0, 2) i"
        )
        if turn == 3:
            server.stop()
            with pytest.raises(SourceError, match=r"refused|closed the connection"):
                list(run(asked.plan, state=state, pace=Pace(max_rows=3, once=True)))
            server.start()
        job = run(asked.plan, state=state, pace=Pace(max_rows=3, once=True))
        for _ in range(2):  # commits
            release = next(job, None)
            if release is not None:
                found[release.step] = int(np.rint(release.table["n"]).sum())
        job.close()
        if len(found) == 4:
            break
        freed += server.ask("SELECT confirmed_flush_lsn FROM pg_replication_slots")
    assert found == {1: 8, 2: 16, 3: 24, 4: 32}
    assert len({*freed}) > 1  # what is durable goes from the server's log


def test_a_fork_by_the_time_of_changes_is_refused(server, table, tmp_path):
    """Its first window held the whole table."""
    source = sv.source("postgres_changes", "visits", event_time="pg_time", url=server.url,
                       table="visits", publication="p")  # fmt: skip
    asked = (
        source.protect("id").window(sv.tumble("1 hour")).agg(n=sv.count()).bound(max_rows=1)
        .release(budget=BUDGET, every="1 hour", clock="wall", start="2026-01-01", steps=10**6)
    )  # fmt: skip
    next(run(asked.plan, state=str(tmp_path / "s"), pace=Pace(once=True)), None)
    with pytest.raises(PlanError, match="its first window would count them all"):
        fork(asked.plan, tmp_path / "s", tmp_path / "t")


def test_a_changing_table_is_what_the_table_is(server, table, tmp_path):
    for n in range(4):
        busy(server, n)
    source = query(server)
    people = sv.table(
        source, id="id", operation="pg_operation", domains={"page": ["a", "b", "c"]}, lives=3
    )
    asked = people.marginals("page").agg(n=sv.count()).release(
        every=sv.rows(7), steps=4, expected_size=20, budget=BUDGET, accept_error=True
    )  # fmt: skip
    pace = Pace(max_rows=5, once=True)
    list(run(asked.plan, state=str(tmp_path / "s"), pace=pace))
    server.ask("UPDATE visits SET page = 'b' WHERE id IN (2, 4, 6)")
    server.ask("DELETE FROM visits WHERE id = 302; INSERT INTO visits VALUES (1000, 'c')")
    server.ask("UPDATE visits SET id = 1001, page = 'a' WHERE id = 301")
    server.ask("INSERT INTO visits SELECT i, 'b' FROM generate_series(1002, 1008) i")
    releases = list(run(asked.plan, state=str(tmp_path / "s"), pace=pace))
    assert releases[-1].step == 4
    counts = dict(
        zip(*(releases[-1].table[name].to_pylist() for name in ("page", "n")), strict=True)
    )
    assert {page: round(n) for page, n in counts.items()} == Counter(truth(server).values())
