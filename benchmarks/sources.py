"""How fast is each source, against the bare client of its system?

Both read the same rows from the same real server on loopback, one after the other in an order that
changes; ours makes typed columns with places, positions and counts of what did not fit. Rows per
second of the clock, and per second of this process's CPU.

Expected: half of a client that hands over messages as they are is out of reach where making columns
costs as much as receiving (Kafka); against a client whose messages are also parsed, one by one as a
program does, the source is ahead, since it parses blocks. Files of an object store are copied
before they are read, the columns that are: one more pass over their bytes, 0.8 of the same on disk.

    python benchmarks/sources.py [--rows 200000] [--repeats 5] [--only kafka ...]

Servers as for the tests (STREAMVEIL_KAFKA_JARS, STREAMVEIL_NATS_SERVER, STREAMVEIL_S3_SERVER);
what is not there is left out and said.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.saved import save
from streamveil.connectors import open_source
from tests.servers import kafka, nats, postgres
from tests.servers.registry import USER, schema_registry
from tests.servers.s3 import S3Server

RESULTS = Path(__file__).parent / "results" / "sources.json"
COLUMNS = {"u": "INT64", "page": "STRING", "price": "FLOAT64", "ts": "TIMESTAMP"}
MAX_ROWS = 50_000
Read = Callable[[], int]  # how many rows were read
Case = tuple[str, Read, Read]  # what the other is, the other, ours


def table(rows: int) -> pa.Table:
    """Made-up rows."""
    drawn = np.random.default_rng(1)
    return pa.table({
        "u": drawn.integers(0, 100_000, rows), "page": drawn.integers(0, 1000, rows).astype(str),
        "price": drawn.random(rows).round(3),
        "ts": pa.array(np.arange(rows) * 1000, pa.timestamp("us", tz="UTC")),
    })  # fmt: skip


def as_json(rows: pa.Table) -> list[bytes]:
    return [
        json.dumps({**row, "ts": row["ts"].isoformat()}).encode() for row in rows.to_pylist()
    ]  # fmt: skip


def ours(kind: str, wanted: tuple[str, ...] = tuple(COLUMNS), **options: Any) -> Read:
    """Reads a source from its beginning to its end; `wanted`: these of its columns."""

    def read() -> int:
        source = open_source(kind, options)
        if hasattr(source, "keep_in"):
            source.keep_in(Path(tempfile.mkdtemp()))
        return sum(chunk.rows.num_rows for chunk in source.read(None, MAX_ROWS, [*wanted]))

    return read


@contextmanager
def of_kafka(rows: pa.Table, home: Path) -> Iterator[list[Case]]:
    if kafka.jars() is None:
        yield []
        return
    from confluent_kafka import Consumer, Producer, TopicPartition

    broker = kafka.Broker(home / "kafka")
    producer = Producer({"bootstrap.servers": broker.servers, "linger.ms": 50,
                         "queue.buffering.max.messages": 1_000_000})  # fmt: skip

    def send(topic: str, messages: list[bytes]) -> None:
        broker.make(topic, 2)
        for place, message in enumerate(messages):
            producer.produce(topic, message, partition=place % 2)
            if place % 10_000 == 0:
                producer.poll(0)
        producer.flush(60)

    def bare(topic: str, parse: Callable[[bytes], Any] | None) -> Read:
        def read() -> int:
            consumer = Consumer({
                "bootstrap.servers": broker.servers, "group.id": "bare",
                "enable.auto.commit": False, "enable.partition.eof": True,
                "isolation.level": "read_committed",
            })  # fmt: skip
            consumer.assign([TopicPartition(topic, place, 0) for place in range(2)])
            found, ended = 0, 0
            while ended < 2:
                for message in consumer.consume(MAX_ROWS, timeout=0.1):
                    if message.error():
                        ended += 1
                        continue
                    found += 1
                    if parse is not None:
                        parse(message.value())
            consumer.close()
            return found

        return read

    with schema_registry() as registry:
        import fastavro

        schema = {"type": "record", "name": "Row", "fields": [
            {"name": "u", "type": "long"}, {"name": "page", "type": "string"},
            {"name": "price", "type": "double"},
            {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        ]}  # fmt: skip
        number = registry.register("avro-value", json.dumps(schema))
        written = fastavro.parse_schema(schema)
        avro = []
        for row in rows.to_pylist():
            made = io.BytesIO()
            fastavro.schemaless_writer(made, written, row)
            avro.append(b"\0" + number.to_bytes(4, "big") + made.getvalue())
        send("json", as_json(rows))
        send("avro", avro)
        config = home / "kafka.json"
        config.write_text(json.dumps({"schema.registry.basic.auth.user.info": USER}))
        plain = {"servers": broker.servers, "columns": COLUMNS}

        def parse_avro(message: bytes) -> Any:
            return fastavro.schemaless_reader(io.BytesIO(message[5:]), written)

        read_json = ours("kafka", topic="json", **plain)
        read_avro = ours("kafka", topic="avro", format="avro", registry=registry.url,
                         config=str(config), **plain)  # fmt: skip
        yield [
            ("kafka, JSON: client alone, nothing parsed", bare("json", None), read_json),
            ("kafka, JSON: client and json.loads", bare("json", json.loads), read_json),
            ("kafka, Avro: client alone, nothing parsed", bare("avro", None), read_avro),
            ("kafka, Avro: client and fastavro", bare("avro", parse_avro), read_avro),
        ]
    broker.stop()


@contextmanager
def of_nats(rows: pa.Table, home: Path) -> Iterator[list[Case]]:
    if nats.program() is None:
        yield []
        return
    from nats.js.api import AckPolicy, ConsumerConfig

    server = nats.NatsServer(home / "nats")
    server.make("rows")
    messages = as_json(rows.slice(0, len(rows) // 4))

    async def send(context: Any) -> None:
        for place, message in enumerate(messages):
            await context.publish_async("rows.a", message)
            if place % 1_000 == 999:
                await context.publish_async_completed()
        await context.publish_async_completed()

    server.ask(send)

    def bare() -> int:
        async def read(context: Any) -> int:
            made = await context.add_consumer("rows", ConsumerConfig(ack_policy=AckPolicy.NONE))
            consumer = await context.pull_subscribe_bind(made.name, "rows")
            found = 0
            while found < len(messages):
                for message in await consumer.fetch(5_000):
                    json.loads(message.data)
                    found += 1
            return found

        return int(server.ask(read))

    read = ours("nats", servers=server.servers, stream="rows", columns=COLUMNS,
                config=server.config)  # fmt: skip
    yield [("nats: client and json.loads", bare, read)]
    server.stop()


@contextmanager
def of_postgres(rows: pa.Table, home: Path) -> Iterator[list[Case]]:
    if postgres.binaries() is None:
        yield []
        return
    import psycopg

    os.environ["PGPASSWORD"] = postgres.PASSWORD
    server = postgres.Postgres()
    server.ask("CREATE TABLE visits (u bigint, page text, price float8, ts timestamptz)")
    server.ask("CREATE TABLE later (LIKE visits); ALTER TABLE later REPLICA IDENTITY FULL")
    server.ask("CREATE PUBLICATION p FOR TABLE later")
    server.ask("SELECT pg_create_logical_replication_slot('bare', 'pgoutput')")
    with psycopg.connect(server.url) as connection, connection.cursor() as cursor:
        for name in ("visits", "later"):
            with cursor.copy(f"COPY {name} FROM STDIN") as copy:
                for row in rows.to_pylist():
                    copy.write_row((row["u"], row["page"], row["price"], row["ts"]))

    def bare() -> int:
        with psycopg.connect(server.url) as connection, connection.cursor("c") as cursor:
            cursor.itersize = MAX_ROWS
            cursor.execute("SELECT u, page, price, ts FROM visits ORDER BY 1, 2, 3, 4")
            return sum(1 for _ in cursor)

    def copied() -> int:
        with psycopg.connect(server.url) as connection, connection.cursor() as cursor:
            found = 0
            with cursor.copy("COPY later TO STDOUT") as copy:
                for _ in copy.rows():
                    found += 1
            return found

    changes = ours("postgres_changes", url=server.url, table="later", publication="p")

    def first() -> int:
        found = changes()
        until = time.monotonic() + 5
        while time.monotonic() < until:
            try:
                server.ask("SELECT pg_drop_replication_slot('p')")
                break
            except psycopg.Error:
                time.sleep(0.05)
        return found

    yield [
        ("postgres, a table sorted: client", bare, ours("postgres", url=server.url,
                                                        table="visits")),
        ("postgres_changes, first rows: client and COPY", copied, first),
    ]  # fmt: skip
    server.remove()


@contextmanager
def of_files(rows: pa.Table, home: Path) -> Iterator[list[Case]]:
    delta = home / "delta"
    found: list[Case] = []
    if nats.program(S3Server.program) is not None:
        os.environ.update(S3Server.keys)
        server = S3Server(home / "s3")
        for times, size in ((4, ""), (16, ", four times as large")):
            folder = home / f"files{times}"
            folder.mkdir()
            for number in range(8):
                file = folder / f"{number}.parquet"
                pq.write_table(pa.concat_tables([rows] * times), file)
                server.put(f"{folder.name}/{file.name}", file.read_bytes())
            for wanted, name in ((tuple(COLUMNS), ""), (("ts",), ", one column of four")):
                found.append((
                    f"object store (S3): the same Parquet on disk{size}{name}",
                    ours("files", wanted, path=str(folder)),
                    ours("files", wanted, path=server.address(folder.name)),
                ))  # fmt: skip
    import deltalake

    deltalake.write_deltalake(delta, pa.concat_tables([rows] * 8))

    def bare() -> int:
        scanner = deltalake.DeltaTable(delta).to_pyarrow_dataset().scanner(use_threads=False)
        return sum(batch.num_rows for batch in scanner.to_batches())

    found.append(("delta: client, one thread", bare, ours("delta", path=str(delta))))
    yield found
    if nats.program(S3Server.program) is not None:
        server.stop()


CASES = {"kafka": of_kafka, "nats": of_nats, "postgres": of_postgres, "files": of_files}


def timed(read: Read) -> tuple[float, float]:
    """Rows per second, and per second of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    rows = read()
    return rows / (time.perf_counter() - wall), rows / (time.process_time() - cpu)


def measured(case: Case, repeats: int) -> dict[str, Any]:
    """Medians of both, and our share."""
    name, other, own = case
    other(), own()  # warm
    rates: dict[str, list[tuple[float, float]]] = {"other": [], "own": []}
    for _ in range(repeats):
        turns = [("other", other), ("own", own)]
        random.shuffle(turns)
        for who, read in turns:
            rates[who].append(timed(read))
    wall = {who: statistics.median(one[0] for one in some) for who, some in rates.items()}
    cpu = {who: statistics.median(one[1] for one in some) for who, some in rates.items()}
    ratios = [own[0] / other[0] for own, other in zip(rates["own"], rates["other"], strict=True)]
    return {
        "against": name, "rows_per_second": wall["own"], "share": wall["own"] / wall["other"],
        "least": min(ratios), "most": max(ratios), "share_of_cpu": cpu["own"] / cpu["other"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    given = parser.parse_args()
    random.seed(1)
    rows, found = table(given.rows), []
    for name in given.only:
        with tempfile.TemporaryDirectory() as home, CASES[name](rows, Path(home)) as cases:
            if not cases:
                print(f"{name}: no server here, left out")
            for case in cases:
                one = measured(case, given.repeats)
                found.append(one)
                print(f"{one['against']:50} {one['rows_per_second']:12,.0f} rows/s"
                      f"  share {one['share']:.2f} ({one['least']:.2f} to {one['most']:.2f})"
                      f"  of CPU {one['share_of_cpu']:.2f}", flush=True)  # fmt: skip
    told = {"rows": given.rows, "repeats": given.repeats, "load": os.getloadavg()[0]}
    known = {one["against"]: one for one in json.loads(RESULTS.read_text())["cases"]}
    known |= {one["against"]: one | told for one in found}  # those of other runs stay
    save(RESULTS, {"cases": [*known.values()]})


if __name__ == "__main__":
    main()
