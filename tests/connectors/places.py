"""Every source over a real place, in one shape: what the suite of sources is run on.

Rows are (u, page). What a place cannot do it leaves None: then there is nothing to test.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamveil.connectors import open_source
from tests.connectors.test_kafka import COLUMNS
from tests.servers import kafka
from tests.servers.postgres import PASSWORD
from tests.servers.proxy import Proxy
from tests.servers.stores import STORES

JUNK = b'{"u": "hidden-row", "page": ["hidden-row"'
ODD = b'{"u": "hidden-row", "page": "a"}'  # a row with a field that does not fit


def page(u: int) -> str:
    """Of a user."""
    return "ab"[u % 2]


def lines(users) -> list[bytes]:
    """As JSON."""
    return [json.dumps({"u": u, "page": page(u)}).encode() for u in users]


def table(users) -> pa.Table:
    """As a table."""
    return pa.table({"u": pa.array(users, pa.int64()), "page": [page(u) for u in users]})


class Place:
    """Where rows lie. `live`: more of them may come."""

    kind, slow = "", 30_000  # bytes a second at which 1,500 rows take some seconds
    amid = 15_000  # bytes after which some of 3,000 rows are read
    live = True
    server: Any = None
    ends = True  # silence amid its statements is noticed; else only at the first

    def options(self) -> dict[str, Any]:
        """Of the source."""
        raise NotImplementedError

    def put(self, users) -> None:
        """Adds rows."""
        raise NotImplementedError

    def spoil(self) -> None:
        """Adds something that is no row, and a row with a field that does not fit."""
        raise NotImplementedError

    def open(self, **more: Any) -> Any:
        """A new source."""
        return open_source(self.kind, {**self.options(), **more})

    @contextmanager
    def wrong(self):
        """Its options with wrong credentials, while they are wrong."""
        raise NotImplementedError
        yield

    def by_way_of(self, port: int) -> dict[str, Any]:
        """Its options with another port of its server."""
        mine = f":{self.server.port}"
        return {name: one.replace(mine, f":{port}") if isinstance(one, str) else one
                for name, one in self.options().items()}  # fmt: skip

    def proxied(self, rate: float) -> Proxy:
        """What stands before its server."""
        return Proxy(self.server.port, rate=rate)

    def close(self) -> None:
        """Nothing is left behind."""


class Files(Place):
    kind = "files"

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder / "in", 0
        self.folder.mkdir()

    def options(self):
        return {"path": str(self.folder), "format": "json", "columns": COLUMNS, "follow": True}

    def put(self, users):
        self.write(b"\n".join(lines(users)) + b"\n")

    def spoil(self):
        self.write(JUNK + b"\n" + ODD + b"\n")

    def write(self, data):
        self.count += 1
        name = f"{self.count * 7 % 10}-{self.count}.jsonl"  # in no order
        (self.folder / f"{name}.tmp").write_bytes(data)
        (self.folder / f"{name}.tmp").rename(self.folder / name)


class Stored(Files):
    """Files of a store."""

    def __init__(self, folder, server, monkeypatch):
        super().__init__(folder)
        self.server, self.monkeypatch, self.name = server, monkeypatch, folder.name
        for name, value in server.keys.items():
            monkeypatch.setenv(name, value)

    def options(self):
        return {**super().options(), "path": self.server.address(self.name)}

    def write(self, data):
        self.count += 1
        self.server.put(f"{self.name}/{self.count * 7 % 10}-{self.count}.jsonl", data)

    @contextmanager
    def wrong(self):
        with self.monkeypatch.context() as patch:
            for name, value in self.server.wrong_keys.items():
                patch.setenv(name, value)
            yield self.options()


class Kafka(Place):
    kind = "kafka"

    def __init__(self, broker, topic):
        self.server, self.topic = broker, topic

    def options(self):
        return {"servers": self.server.servers, "topic": self.topic, "columns": COLUMNS}

    def by_way_of(self, port):
        return {**self.options(), "servers": f"127.0.0.1:{port}"}

    def proxied(self, rate):
        return self.server.proxied(rate)

    @contextmanager
    def wrong(self):
        path = self.server.home / "wrong.json"
        path.write_text(json.dumps(self.server.settings("wrong-word")))
        yield {**self.options(), "servers": self.server.secure, "config": str(path)}

    def put(self, users):
        half = len(users) // 2
        for some, how in ((users[:half], "plain"), (users[half:], "committed")):
            placed = [(u % 2, one) for u, one in zip(some, lines(some), strict=True)]
            self.server.send(self.topic, placed, how)
        self.server.send(self.topic, [(0, lines([-1])[0])], "aborted")

    def spoil(self):
        self.server.send(self.topic, [(0, JUNK), (1, ODD), (1, b" ")])


class Nats(Place):
    kind = "nats"

    def __init__(self, server, stream):
        self.server, self.stream = server, stream
        server.make(stream)

    def options(self):
        return {"servers": self.server.servers, "stream": self.stream, "columns": COLUMNS,
                "config": self.server.config}  # fmt: skip

    def put(self, users):
        self.server.send(self.stream, lines(users))

    def spoil(self):
        self.server.send(self.stream, [JUNK, ODD, b" "])

    @contextmanager
    def wrong(self):
        path = self.server.home / "wrong.json"
        path.write_text(json.dumps({"user": "reader", "password": "wrong-word"}))
        yield {**self.options(), "config": str(path)}


class Sse(Place):
    kind, ends = "sse", False

    def __init__(self, server, stream, monkeypatch):
        self.server, self.stream, self.monkeypatch = server, stream, monkeypatch
        for name, value in server.keys.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("streamveil.connectors.sse.QUIET", 0.5)

    def options(self):
        return {"url": self.server.url(self.stream), "columns": COLUMNS}

    def put(self, users):
        self.server.send(self.stream, lines(users))

    def spoil(self):
        self.server.send(self.stream, [JUNK, ODD, b" "])

    @contextmanager
    def wrong(self):
        with self.monkeypatch.context() as patch:
            for name, value in self.server.wrong_keys.items():
                patch.setenv(name, value)
            yield self.options()


class Delta(Place):
    kind = "delta"

    def __init__(self, folder):
        self.path = str(folder / "visits")

    def options(self):
        return {"path": self.path, "version": 0, "follow": True}

    def put(self, users):
        import deltalake

        deltalake.write_deltalake(self.path, table(users), mode="append")


class Iceberg(Place):
    kind = "iceberg"

    def __init__(self, catalog):
        self.catalog = catalog

    def options(self):
        first = self.catalog.load_table("shop.visits").snapshots()[0]
        return {"table": "shop.visits", "snapshot": first.snapshot_id, "follow": True}

    def put(self, users):
        rows = table(users)
        self.catalog.create_namespace_if_not_exists("shop")
        self.catalog.create_table_if_not_exists("shop.visits", rows.schema).append(rows)


class Database(Place):
    """A table that is read once; its rows are sorted."""

    live, slow, amid = False, 6_000, 8_000

    def __init__(self, kind, folder, server, monkeypatch):
        self.kind, self.path, self.server = kind, str(folder / "db"), server
        if kind == "postgres":
            monkeypatch.setenv("PGPASSWORD", PASSWORD)
            server.ask("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        self.monkeypatch = monkeypatch
        self.run("CREATE TABLE visits (u BIGINT, page VARCHAR(9))")

    def run(self, statement):
        if self.kind == "postgres":
            self.server.ask(statement)
        else:
            import importlib

            connection = importlib.import_module(
                {"sqlite": "sqlite3", "duckdb": "duckdb"}[self.kind]
            ).connect(self.path)
            connection.execute(statement)
            connection.commit()
            connection.close()

    def options(self):
        if self.kind == "postgres":
            return {"url": self.server.url, "table": "visits"}
        more = {"columns": COLUMNS} if self.kind == "sqlite" else {}
        return {"path": self.path, "table": "visits", **more}

    def put(self, users):
        self.run("INSERT INTO visits VALUES "
                 + ", ".join(f"({u}, '{page(u)}')" for u in users))  # fmt: skip

    @contextmanager
    def wrong(self):
        with self.monkeypatch.context() as patch:
            patch.setenv("PGPASSWORD", "wrong-word")
            yield self.options()


class Changes(Database):
    """The log of a table."""

    live, ends = True, False

    def __init__(self, folder, server, monkeypatch):
        from tests.connectors.test_postgres_changes import dropped

        self.dropped, self.folder = dropped, folder / "changes"
        self.folder.mkdir()
        dropped(server)
        super().__init__("postgres", folder, server, monkeypatch)
        server.ask("ALTER TABLE visits REPLICA IDENTITY FULL")
        server.ask("DROP PUBLICATION IF EXISTS p; CREATE PUBLICATION p FOR TABLE visits")
        self.kind = "postgres_changes"

    def run(self, statement):
        self.server.ask(statement)

    def options(self):
        return {"url": self.server.url, "table": "visits", "publication": "p"}

    def open(self, **more):
        made = super().open(**more)
        made.keep_in(self.folder)
        return made

    @contextmanager
    def wrong(self):
        with self.monkeypatch.context() as patch:
            patch.setenv("PGPASSWORD", "wrong-word")
            yield self.options()

    def close(self):
        self.dropped(self.server)


KINDS = ("files", *STORES, "kafka", "nats", "sse", "delta", "iceberg", "sqlite", "duckdb",
         "postgres", "postgres_changes")  # fmt: skip
ONCE = ("sqlite", "duckdb", "postgres")  # read once
TYPED = (*ONCE, "delta", "iceberg", "postgres_changes")  # hold rows alone: nothing is malformed
ALONE = ("files", "delta", "iceberg", "sqlite", "duckdb")  # have no server
OPEN = ("gcs",)  # their server asks nobody who he is
PATIENT = ("s3", "gcs", "azure")  # Arrow's clients ask a silent server again for minutes
NEEDS = {"nats": "nats", "delta": "deltalake", "duckdb": "duckdb"}  # packages


def made(kind: str, request: Any, folder: Path, monkeypatch: Any) -> Place:  # noqa: C901
    """A new, empty place; skipped where its server cannot be had."""
    have = request.getfixturevalue
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    if kind == "files":
        return Files(folder)
    if kind in STORES:
        return Stored(folder, have("store_of")(kind), monkeypatch)
    if kind == "kafka":
        if kafka.jars() is None:
            pytest.skip(f"no Apache Kafka: {kafka.JARS} names no folder with its jars")
        return Kafka(have("broker"), have("topic"))
    if kind == "nats":
        return Nats(have("nats_server"), f"s{abs(hash(folder))}")
    if kind == "sse":
        return Sse(have("events_server"), f"s{abs(hash(folder))}", monkeypatch)
    if kind == "delta":
        return Delta(folder)
    if kind == "iceberg":
        return Iceberg(have("catalog"))
    if kind == "postgres_changes":
        return Changes(folder, have("server"), monkeypatch)
    return Database(kind, folder, have("server") if kind == "postgres" else None, monkeypatch)


def words_of(error: BaseException) -> str:
    """All that is told of an error."""
    told = []
    found: BaseException | None = error
    while found is not None:
        told.append(f"{found!r} {found}")
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return os.linesep.join(told)
