"""A topic on Spark, on the mock broker of librdkafka: the releases of the same rows in files."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamveil.core.noise import SeededNoise
from streamveil.engines.spark.kafka import KafkaReading, Topic
from streamveil.engines.spark.source import feed_of
from streamveil.engines.spark.source_offsets import options_for
from streamveil.errors import MissingExtraError, PlanError, SourceError
from streamveil.plan import Clock, SourceSpec
from streamveil.runtime.run import run
from streamveil.runtime.spark import as_on_spark
from tests.engines.spark.streams import CASES

COLUMNS = {"unit": "BIGINT", "key": "BIGINT", "value": "DOUBLE"}
MISSING = [
    name for name in ("pyspark", "confluent_kafka") if importlib.util.find_spec(name) is None
]
needs_all = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
SECOND = 1_000_000


@pytest.fixture
def broker():
    """A topic of two partitions: 300 good rows and two messages that are none."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
    found = producer.list_topics(timeout=20).brokers[1]
    rng = np.random.default_rng(3)
    rows = {
        "unit": rng.integers(0, 60, 300), "key": rng.integers(1, 5, 300),
        "value": rng.normal(size=300),
    }  # fmt: skip
    for place in range(300):
        row = {name: column[place].item() for name, column in rows.items()}
        producer.produce("t", json.dumps(row).encode(), partition=int(place >= 170))
    for odd in (b"{broken", None):
        producer.produce("t", odd, partition=1)
    producer.flush()
    yield f"{found.host}:{found.port}", pa.table(rows)
    del producer


def clock(steps):
    start = (int(time.time()) - 100) * SECOND
    return Clock(kind="wall", every=10 * SECOND, start_us=start, steps=steps)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingExtraError, match=r"streamveil\[kafka\]"):
        Topic(servers="x:1", topic="t").consumer()


def test_options_are_checked():
    with pytest.raises(PlanError, match=r"needs .topic.\.\n  to fix  give it among"):
        Topic.of({"servers": "x:1"})
    with pytest.raises(PlanError, match="no option 'group'"):
        Topic.of({"servers": "x:1", "topic": "t", "columns": COLUMNS, "group": "g"})


@pytest.mark.parametrize("content", [None, "secret=1", "[1]"])
def test_unusable_settings_are_named_and_not_shown(content, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", SimpleNamespace(Consumer=dict))
    path = tmp_path / "kafka.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SourceError, match="read as a JSON object") as error:
        Topic(servers="x:1", topic="t", config=str(path)).consumer()
    assert "kafka.json" in str(error.value)
    assert "secret" not in str(error.value)


@needs_all
def test_a_step_has_the_rows_of_its_ranges_and_a_replay_the_same(broker):
    servers, rows = broker
    source = {"servers": servers, "topic": "t", "columns": COLUMNS}
    feed = feed_of(options_for("kafka", source, clock(2), None))
    start = {"step": 0, **feed.nothing()}
    seen = {"step": 1, **feed.seen(start, time.time())}
    wanted = pa.schema([(name, rows.schema.field(name).type) for name in COLUMNS])
    reading = KafkaReading(Topic.of(source), wanted)
    for _ in range(2):
        parts = [reading.rows(split, 1) for piece in feed.splits(start, seen, 1) for split in piece]
        parts.sort(key=lambda part: part.place)
        assert pa.concat_tables(part.table for part in parts).equals(rows)
        assert [part.rejected for part in parts] == [{}, {"malformed row": 2}]
    after = {"step": 2, **feed.seen(seen, time.time())}
    assert list(feed.splits(seen, after, 2)) == [[]]


@needs_all
def test_a_logged_step_is_not_read_from_a_topic_that_was_made_anew(broker, monkeypatch):
    """After a kill the logged ranges were read from the new topic, which was told a step later."""
    servers, _ = broker
    source = {"servers": servers, "topic": "t", "columns": COLUMNS}
    feed = feed_of(options_for("kafka", source, clock(2), None))
    told = ["first"]
    monkeypatch.setattr(Topic, "identifier", lambda *_: told[-1])
    seen = {"step": 1, **feed.seen(feed.nothing(), time.time())}
    assert [*feed.splits(feed.nothing(), seen, 1)]
    told.append("")  # where brokers do not tell it now
    assert [*feed.splits(feed.nothing(), seen, 1)]
    told.append("second")
    with pytest.raises(SourceError, match="deleted and made anew"):
        [*feed.splits(feed.nothing(), seen, 1)]


@needs_all
@pytest.mark.parametrize("place", ["topic", "partition"])
def test_an_error_of_one_partition_does_not_end_its_range_elsewhere(place, broker, monkeypatch):
    from confluent_kafka import Consumer, KafkaError

    failed = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)

    class Failing(Consumer):
        def list_topics(self, *given, **named):
            known = super().list_topics(*given, **named)
            known.topics["t"].error = failed if place == "topic" else None
            return known

        def offsets_for_times(self, *given, **named):
            found = super().offsets_for_times(*given, **named)
            told = [
                SimpleNamespace(partition=one.partition, offset=one.offset, error=one.error)
                for one in found
            ]
            if place == "partition":
                told[1].offset, told[1].error = -1001, failed
            return told

    servers, _ = broker
    monkeypatch.setattr("confluent_kafka.Consumer", Failing)
    source = {"servers": servers, "topic": "t", "columns": COLUMNS}
    feed = feed_of(options_for("kafka", source, clock(2), None))
    with pytest.raises(SourceError, match="no leader"):
        feed.seen(feed.nothing(), time.time())


@needs_all
def test_a_step_ends_where_the_broker_says_that_its_time_does(broker, monkeypatch):
    from confluent_kafka import Consumer

    asked = []

    class Timed(Consumer):  # the mock broker itself cannot look up by time
        def offsets_for_times(self, places, **_):
            asked.append([place.offset for place in places])
            first = {0: 40}  # message from that time on; -1: none yet
            return [
                SimpleNamespace(partition=p, offset=first.get(p, -1), error=None)
                for p in (place.partition for place in places)
            ]

    servers, rows = broker
    monkeypatch.setattr("confluent_kafka.Consumer", Timed)
    source = {"servers": servers, "topic": "t", "columns": COLUMNS}
    feed = feed_of(options_for("kafka", source, clock(2), None))
    first = feed.seen(feed.nothing(), 1_700_000_000.25)
    assert set(asked[0]) == {1_700_000_000_250}  # milliseconds
    assert first["ranges"]["0"] == [0, 40]
    assert first["ranges"]["1"] == [0, rows.num_rows - 170 + 2]
    second = feed.seen(first, 1_700_000_010.0)
    assert second["ranges"]["0"] == [40, 40]  # an earlier answer takes nothing back


@needs_all
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:insecure noise")
def test_releases_are_those_of_the_same_rows_in_files(broker, session, tmp_path):
    from streamveil.runtime.on_spark import spark

    servers, rows = broker
    pq.write_table(rows, tmp_path / "a.parquet")
    plan = CASES[5].plan(tmp_path)
    options = {"servers": servers, "topic": "t", "columns": COLUMNS}
    source = SourceSpec(name="s", kind="kafka", options=options)
    live = replace(plan, source=source, clock=clock(2))
    start = {"noise": SeededNoise(1), "insecure": True}
    told = []
    with spark(session, shards=2).start(
        live, state=tmp_path / "spark", once=True, progress=told.append, **start
    ) as running:
        found = list(running)
    files = replace(plan.source, event_time=None)
    again = replace(plan, source=files, clock=clock(2))
    wanted = list(run(as_on_spark(again), state=tmp_path / "embedded", **start))
    assert [(r.window, r.trigger) for r in found] == [(r.window, r.trigger) for r in wanted]
    assert all(a.table.equals(b.table) for a, b in zip(found, wanted, strict=True))
    assert told[-1].rejected["malformed row"] == 2
    assert told[-1].rows == rows.num_rows
