"""Ranges of a topic with offsets that hold no message: markers, aborted and compacted messages.

The stand-in does what Apache Kafka 3.9 and librdkafka 2.16 were seen to do: markers give no message
but move the position, aborted messages are passed over, and the end of the partition is told.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pyarrow as pa
import pytest

from streamveil.connectors.kafka_topic import Range, Topic
from streamveil.engines.spark.kafka import KafkaReading
from streamveil.errors import SourceError

MESSAGE, MARKER, NOTHING = "message", "marker", "nothing"
COMMITTED = [MESSAGE] * 3 + [MARKER]
ABORTED = [NOTHING] * 3 + [MARKER]
END, LOST = -191, 1  # codes


class Failure:
    """An error of librdkafka."""

    _PARTITION_EOF = END

    def __init__(self, code):
        self.code = lambda: code


class Message:
    """A message whose value is its offset, or what is told instead of one."""

    def __init__(self, offset, code=None):
        self.offset, self.partition = lambda: offset, lambda: 0
        self.error = lambda: None if code is None else Failure(code)
        self.value = lambda: json.dumps({"u": offset}).encode()


class Partition:
    """A consumer of one partition. `waited`: seconds for messages that do not come."""

    def __init__(self, log, lost=()):
        self.log, self.lost, self.waited = log, lost, 0.0

    def __call__(self, settings, **_):
        self.ends = settings.get("enable.partition.eof", False)
        return self

    def assign(self, places):
        self.at, self.known, self.told = places[0].offset, -1001, False

    def position(self, _):
        return [SimpleNamespace(offset=self.known)]

    def consume(self, number, timeout):
        found = []
        while len(found) < number and self.at < len(self.log):
            kind = self.log[self.at]
            if self.at in self.lost:
                found.append(Message(self.at, LOST))
            elif kind == MESSAGE:
                found.append(Message(self.at))
            self.at += 1
            self.known = self.known if kind == NOTHING else self.at
        if len(found) < number and self.ends and not self.told:
            self.told = True
            found.append(Message(self.at, END))
        self.waited += timeout * (len(found) < number)
        return found

    def close(self):
        pass


@pytest.fixture
def read(monkeypatch):
    """Reads a range of a log: the values of its rows, and the seconds waited."""
    now = SimpleNamespace(partition=None)
    clock = SimpleNamespace(monotonic=lambda: now.partition.waited)
    monkeypatch.setattr("streamveil.connectors.kafka_topic.time", clock, raising=False)

    def rows(log, start, stop, lost=()):
        now.partition = Partition(log, lost)
        stand_in = SimpleNamespace(
            Consumer=now.partition, KafkaError=Failure,
            TopicPartition=lambda _topic, _number, offset: SimpleNamespace(offset=offset),
        )  # fmt: skip
        monkeypatch.setitem(sys.modules, "confluent_kafka", stand_in)
        topic = Topic(servers="x:1", topic="t", columns={"u": "BIGINT"})
        reading = KafkaReading(topic, pa.schema([("u", pa.int64())]))
        found = reading.rows(json.dumps(asdict(Range(0, start, stop))), 1)
        return found.table["u"].to_pylist(), now.partition.waited

    return rows


@pytest.mark.parametrize(
    "log",
    [
        COMMITTED, ABORTED, COMMITTED + ABORTED, ABORTED + COMMITTED, [MESSAGE, NOTHING, NOTHING],
        COMMITTED * 2 + [MESSAGE],
    ],
)  # fmt: skip
def test_no_range_waits_for_messages_that_do_not_exist(log, read):
    for stop in range(1, len(log) + 1):
        for start in range(stop):
            rows, waited = read(log, start, stop)
            assert rows == [place for place in range(start, stop) if log[place] == MESSAGE]
            assert waited < 1  # seconds


def test_a_range_beyond_what_the_brokers_have_is_an_error(read):
    with pytest.raises(SourceError, match="do not answer"):
        read(COMMITTED, 0, 5)


def test_a_lost_message_is_an_error(read):
    with pytest.raises(SourceError, match="retention"):
        read(COMMITTED, 0, 4, lost={1})
