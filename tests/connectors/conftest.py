"""One server of each kind for all tests of connectors."""

from typing import Any

import pytest

from tests.servers import events, kafka, nats, postgres
from tests.servers.stores import STORES

KINDS = ("sqlite", "duckdb", "postgres")
NAME = 'pages of "b%s" $1 ?'  # of a table


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    made = kafka.Broker(tmp_path_factory.mktemp("kafka") / "broker")
    yield made
    made.stop()


@pytest.fixture
def topic(broker, request):
    name = request.node.name.translate(str.maketrans("[] ", "...")).lower()[:80]
    broker.make(name, 2)
    return name


@pytest.fixture(scope="session")
def server():
    if postgres.binaries() is None:
        pytest.skip(postgres.ABSENT)
    pytest.importorskip("psycopg")
    server = postgres.Postgres()
    yield server
    server.remove()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory):
    if nats.program() is None:
        pytest.skip(f"no NATS server: {nats.PROGRAM} names no program")
    made = nats.NatsServer(tmp_path_factory.mktemp("nats") / "server")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def events_server(tmp_path_factory):
    if nats.program(events.PROGRAM) is None:
        pytest.skip(f"no server of events: {events.PROGRAM} names no nginx")
    made = events.EventsServer(tmp_path_factory.mktemp("events") / "server")
    yield made
    made.close()


@pytest.fixture(scope="session")
def store_of(tmp_path_factory):
    """The server of each kind of files, once somebody asks for it."""
    made = {}

    def store(kind):
        if kind not in made:
            wanted = STORES[kind].program
            if wanted is not None and nats.program(wanted) is None:
                pytest.skip(f"no server of {kind}: {wanted} names no program")
            made[kind] = STORES[kind](tmp_path_factory.mktemp(kind) / "server")
        return made[kind]

    yield store
    for one in made.values():
        one.stop()


@pytest.fixture(params=KINDS)
def place(request, tmp_path, monkeypatch) -> dict[str, Any]:
    """The options of a sink into an empty database."""
    if request.param != "postgres":
        pytest.importorskip("sqlite3" if request.param == "sqlite" else "duckdb")
        return {"kind": request.param, "path": str(tmp_path / "answers.db"), "table": NAME}
    server = request.getfixturevalue("server")
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return {"kind": "postgres", "url": server.url, "table": NAME}
