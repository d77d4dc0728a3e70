"""A ledger that may be a file or a table of PostgreSQL."""

import pytest

from tests.servers import postgres


@pytest.fixture(scope="session")
def server():
    if postgres.binaries() is None:
        pytest.skip(postgres.ABSENT)
    pytest.importorskip("psycopg")
    server = postgres.Postgres()
    yield server
    server.remove()


@pytest.fixture
def empty(server, monkeypatch):
    """The server with an empty database."""
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return server


@pytest.fixture(params=["file", "server"])
def where(request, tmp_path):
    """Where a ledger named visits can be made."""
    if request.param == "file":
        return tmp_path / "visits.jsonl"
    return f"{request.getfixturevalue('empty').url}#visits"
