"""A broker of librdkafka's mock cluster in a process of its own, and a producer of live rows.

`python -m tests.engines.spark.broker ROWS SECONDS`: prints the address once the topic 't' has its
two partitions, then sends that many rows over so many seconds, and stays.
"""

from __future__ import annotations

import json
import sys
import time

PARTITIONS = 2


def row(place: int) -> dict[str, float]:
    """A row that follows from its place."""
    mixed = place * 2654435761 % 2**32
    return {"unit": mixed % 1500, "key": 1 + mixed // 151 % 5, "value": mixed % 1009 / 1009}


def rows_of(partition: int, start: int, stop: int) -> list[dict[str, float]]:
    """The rows at some offsets of a partition."""
    return [row(PARTITIONS * offset + partition) for offset in range(start, stop)]


def serve(rows: int, seconds: float) -> None:
    """See the module."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
    for place in range(PARTITIONS):
        send(producer, place)
    producer.flush()
    (found,) = producer.list_topics(timeout=20).brokers.values()
    sys.stdout.write(f"{found.host}:{found.port}\n")
    sys.stdout.flush()
    begin = time.monotonic()
    for place in range(PARTITIONS, rows):
        time.sleep(max(0.0, begin + seconds * place / rows - time.monotonic()))
        send(producer, place)
    producer.flush()
    sys.stdout.write("done\n")
    sys.stdout.flush()
    time.sleep(600)


def send(producer: object, place: int) -> None:
    """Sends one row to the partition of its place, in order."""
    message = json.dumps(row(place)).encode()
    producer.produce("t", message, partition=place % PARTITIONS)  # type: ignore[attr-defined]
    producer.poll(0)  # type: ignore[attr-defined]


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
