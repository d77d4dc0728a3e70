"""A ledger in PostgreSQL keeps the promise of a file: two writers, lost answers, crashes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from streamveil import cli
from streamveil.accounts import server_journal
from streamveil.accounts.ledger import Ledger
from streamveil.accounts.server_journal import TABLE, ServerJournal, lock_of
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Zcdp
from streamveil.errors import BudgetError, PlanError, SourceError, StoreError
from streamveil.runtime.run import run
from streamveil.sql.sql import parse_script
from tests.servers.postgres import PASSWORD, Postgres

USER = Neighbours("user_id")
RHO = Budget(rho=1)
SQL = """
CREATE STREAM clicks WITH (source = 'files', path = '{path}', event_time = 'ts');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 3,
         public_groups = ['a', 'b'],
         start = TIMESTAMP '1970-01-01', end = TIMESTAMP '1970-01-01 02:00:00')
       page, COUNT(*) AS n
FROM clicks GROUP BY page EMIT EVERY INTERVAL 1 HOUR;
"""


@pytest.fixture
def at(empty: Postgres) -> str:
    return f"{empty.url}#visits"


def rows(server: Postgres) -> int:
    return int(server.ask(f"SELECT count(*) FROM {TABLE}")[0][0])


def test_the_chain_is_that_of_a_file(at: str, tmp_path: Path, empty: Postgres) -> None:
    heads = []
    for place in (at, tmp_path / "visits.jsonl"):
        with Ledger.open(place, RHO, USER) as ledger:
            ledger.charge("a", Zcdp("0.25"), key="k")
            ledger.charge("b", Zcdp("0.5"))
            heads.append(ledger.verify())
    assert heads[0] == heads[1]
    with Ledger.load(at) as again:
        again.charge("a", Zcdp("0.25"), key="k")
        assert again.left() == Zcdp("0.25")
        with pytest.raises(BudgetError, match="'visits'"):
            again.charge("c", Zcdp("0.5"))
        assert again.verify(heads[0]) == heads[0]
    assert rows(empty) == 3


def test_ledgers_of_one_database_are_apart(at: str) -> None:
    other = at.replace("#visits", "#clicks")
    Ledger.open(at, RHO, USER).close()
    with pytest.raises(StoreError, match="no ledger 'clicks' in its database"):
        Ledger.load(other)
    with Ledger.open(other, RHO, USER) as ledger:
        ledger.charge("a", Zcdp(1))
    with Ledger.load(at) as first:
        assert first.entries() == []
    with pytest.raises(PlanError, match="ends in its name"):
        Ledger.load(at.removesuffix("#visits"))


def test_two_writers_who_read_the_same_cannot_both_charge(
    at: str, monkeypatch: pytest.MonkeyPatch, empty: Postgres
) -> None:
    """Planted: the lock is taken by nobody, so both judge by the same records."""
    Ledger.open(at, RHO, USER).close()
    monkeypatch.setattr(server_journal, "lock_of", lambda _: int.from_bytes(os.urandom(7), "big"))
    both, told = threading.Barrier(2), []
    real = ServerJournal.append

    def append(self, records):
        both.wait(100)  # each has read, neither has written
        real(self, records)

    monkeypatch.setattr(ServerJournal, "append", append)

    def write(name: str) -> None:
        try:
            with Ledger.load(at) as ledger:
                ledger.charge(name, Zcdp("0.75"))
            told.append("charged")
        except SourceError as error:
            told.append(str(error))

    threads = [threading.Thread(target=write, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one == "charged" for one in told) == [False, True]
    assert any("UniqueViolation" in one for one in told)
    assert rows(empty) == 2


def test_a_writer_waits_for_the_other(at: str, empty: Postgres) -> None:
    import psycopg

    with Ledger.open(at, RHO, USER) as ledger:
        with psycopg.connect(empty.url, password=PASSWORD) as other:
            other.execute(f"SELECT pg_advisory_xact_lock({lock_of('visits')})")
            waiting = threading.Thread(target=ledger.charge, args=("late", Zcdp("0.5")))
            waiting.start()
            waiting.join(0.3)
            assert waiting.is_alive()
        waiting.join(100)
        assert ledger.spent() == Zcdp("0.5")


@pytest.mark.parametrize("answered", [False, True])
def test_a_lost_answer_to_commit_is_settled_by_the_key(
    at: str, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """The connection dies before COMMIT reaches the server, or before its answer comes back."""
    import psycopg

    ledger = Ledger.open(at, RHO, USER)
    real = psycopg.Connection.commit

    def commit(self):
        if answered:
            real(self)
        self.pgconn.finish()
        raise psycopg.OperationalError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "commit", commit)
        with pytest.raises(SourceError, match=r"recorded or not; nothing(.|\n)*a survey .* is;"):
            ledger.charge("a", Zcdp("0.75"), key="k")
    ledger.charge("a", Zcdp("0.75"), key="k")
    assert [one.name for one in ledger.entries()] == ["a"]
    ledger.close()
    with Ledger.load(at) as again:
        assert again.spent() == Zcdp("0.75")
        again.verify()


def test_records_are_never_changed_and_a_change_in_spite_of_that_is_seen(
    at: str, empty: Postgres
) -> None:
    import psycopg

    with Ledger.open(at, RHO, USER) as ledger:
        for name in "abc":
            ledger.charge(name, Zcdp("0.1"))
        head = ledger.verify()
    changes = (
        f"UPDATE {TABLE} SET record = replace(record, '1/10', '1/90') WHERE number = 2",
        f"DELETE FROM {TABLE} WHERE number = 2",
        f"UPDATE {TABLE} SET number = number + 10 WHERE number = 3",
        f"DELETE FROM {TABLE} WHERE number = 3",
    )
    for change in (*changes, f"TRUNCATE {TABLE}"):
        with pytest.raises(psycopg.Error, match="takes new records alone"):
            empty.ask(change)
    for change in changes:
        empty.ask(f"CREATE TABLE kept AS TABLE {TABLE}")
        empty.ask(f"ALTER TABLE {TABLE} DISABLE TRIGGER USER; {change}")
        with pytest.raises(StoreError, match=r"altered|lost records"):
            Ledger.load(at).verify(head)
        empty.ask(f"TRUNCATE {TABLE}; INSERT INTO {TABLE} TABLE kept; DROP TABLE kept")
        empty.ask(f"ALTER TABLE {TABLE} ENABLE TRIGGER USER")
    with Ledger.load(at) as whole:
        assert whole.verify(head) == head


def test_records_that_a_standby_lacks_are_missed(at: str, empty: Postgres) -> None:
    with Ledger.open(at, RHO, USER) as ledger:
        ledger.charge("a", Zcdp("0.75"), key="job")
        empty.ask(f"ALTER TABLE {TABLE} DISABLE TRIGGER USER; DELETE FROM {TABLE} WHERE number = 1")
        with pytest.raises(StoreError, match="has lost records"):
            ledger.charge("b", Zcdp("0.75"))
    with Ledger.load(at) as shorter, pytest.raises(StoreError, match="does not hold this job"):
        shorter.require_charged("job")


def test_a_user_who_may_insert_alone_can_charge(at: str, empty: Postgres) -> None:
    Ledger.open(at, RHO, USER).close()
    empty.ask(f"DROP ROLE IF EXISTS job; CREATE ROLE job LOGIN PASSWORD '{PASSWORD}'")
    empty.ask(f"GRANT USAGE ON SCHEMA public TO job; GRANT SELECT, INSERT ON {TABLE} TO job")
    with Ledger.load(at.replace("writer@", "job@")) as ledger:
        ledger.charge("a", Zcdp("0.5"))
        assert ledger.spent() == Zcdp("0.5")
    empty.ask("DROP OWNED BY job; DROP ROLE job")


def test_a_server_that_forgets_is_refused_and_one_that_is_lazy_is_told(
    at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c synchronous_commit=off")
    seen = []
    real = ServerJournal._ask

    def ask(self, statement, *values):
        seen.append(statement)
        return (
            [("off",)] if forgets and statement == "SHOW fsync" else real(self, statement, *values)
        )

    forgets = False
    monkeypatch.setattr(ServerJournal, "_ask", ask)
    Ledger.open(at, RHO, USER).close()
    assert "SET SESSION synchronous_commit TO on" in seen
    forgets = True
    with pytest.raises(StoreError, match="fsync = off"):
        Ledger.load(at)


def test_a_server_that_goes_and_comes_back(server: Postgres, at: str) -> None:
    with Ledger.open(at, RHO, USER) as ledger:
        ledger.charge("a", Zcdp("0.25"))
        server.stop()
        with pytest.raises(SourceError, match="cannot be used") as told:
            ledger.charge("b", Zcdp("0.25"))
        assert PASSWORD not in str(told.value)
        server.start()
        ledger.charge("b", Zcdp("0.25"))
        assert ledger.spent() == Zcdp("0.5")


def test_wrong_credentials_are_said_without_them(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", "wrong horse")
    with pytest.raises(SourceError, match="password authentication failed") as told:
        Ledger.load(at)
    assert "wrong horse" not in str(told.value)
    with pytest.raises(SourceError, match="holds a password"):
        Ledger.load("postgresql://writer:secret@127.0.0.1/x#visits")


@pytest.fixture
def plan(tmp_path: Path):
    path = tmp_path / "rows.parquet"
    table = {"user_id": range(20), "page": ["a", "b"] * 10,
             "ts": pa.array(range(20), pa.timestamp("us"))}  # fmt: skip
    pq.write_table(pa.table(table), path)
    (tmp_path / "q.sql").write_text(SQL.format(path=path))
    return parse_script((tmp_path / "q.sql").read_text(), {}).query.plan


KILLED = """
import os, sys
from streamveil.accounts import ledger
from streamveil import cli

real = ledger.Ledger.charge

def charge(self, *args, **more):
    if {before!r} and self.name == {name!r}:
        os.kill(os.getpid(), 9)
    real(self, *args, **more)
    if self.name == {name!r}:
        os.kill(os.getpid(), 9)

ledger.Ledger.charge = charge
sys.argv = ["streamveil", "run", "q.sql", "--state", "s", "--quiet", "--ledger", {at!r}]
cli.main()
"""


@pytest.mark.parametrize(
    ("name", "before"),
    [pytest.param("visits", True, marks=pytest.mark.slow), ("visits", False), ("ledger", False)],
)
def test_a_job_killed_between_its_charges_and_its_first_draw_pays_once(
    at: str, tmp_path: Path, plan, name: str, before: bool
) -> None:
    limit = Budget(epsilon=1, delta="1e-9")  # room for one
    Ledger.open(at, limit, USER).close()
    code = KILLED.format(name=name, before=before, at=at)
    where = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=where, check=False)
    assert done.returncode == -9
    assert not list((tmp_path / "s").glob("releases")), "nothing was drawn"
    with run(plan, state=tmp_path / "s", ledger=at) as job:
        assert len(list(job)) == 2
    with Ledger.load(at) as ledger:
        assert len(ledger.entries()) == 1
        ledger.verify()
    with pytest.raises(BudgetError):
        run(plan, state=tmp_path / "other", ledger=at)


def test_commands_take_the_address(at: str, empty: Postgres) -> None:
    def told(*command: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli.app, ["ledger", *command])
        return done.exit_code, done.output

    made = ("create", at, "--unit", "user_id", "--rho", "1")
    assert told(*made)[0] == 0
    assert "exists already" in str(CliRunner().invoke(cli.app, ["ledger", *made]).exception)
    assert told("check", at, "--warn-below", "0.5") == (
        0, f"left: rho = 1 of rho=1, hash {Ledger.load(at).verify()}\n"
    )  # fmt: skip
    with Ledger.load(at) as ledger:
        ledger.charge("a", Zcdp("0.75"))
    code, said = told("check", at, "--warn-below", "0.5")
    assert code == 7
    assert re.search(r"left: rho = 0.25 of rho=1, hash [0-9a-f]{32}\nless than 0.5 is left", said)
    assert told("check", at, "--warn-below", "0.25")[0] == 0
    assert "spent" in told("show", at)[1]
