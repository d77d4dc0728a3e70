"""A release is in a topic once, for readers of committed messages, whatever dies."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from streamveil.connectors import kafka_sink, open_sink, open_source
from streamveil.errors import MissingExtraError, SourceError, StoreError
from streamveil.release_metadata import ReleaseTime, kept_time, noted
from streamveil.runtime.job import Job
from tests.connectors.test_databases import OTHER, TABLE, TWICE, Killed, send
from tests.connectors.test_kafka import needs_broker
from tests.connectors.test_sinks import ODD
from tests.released import made
from tests.runtime.toy import Stream, work
from tests.servers.kafka import free_port

EFFECTS = ("init_transactions", "begin_transaction", "produce", "commit_transaction")


def opened(broker, topic):
    return open_sink("kafka", {"servers": broker.servers, "topic": topic})


def test_brokers_that_do_not_tell_how_marks_are_kept_are_named(monkeypatch):
    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr(kafka_sink, "WAIT", 0.01)
    monkeypatch.setattr(kafka_sink, "ends_of", lambda _: {})  # the topic is there
    sink = open_sink("kafka", {"servers": f"127.0.0.1:{free_port()}", "topic": "t"})
    with pytest.raises(SourceError, match=r"cannot write to the topic 't': no answer[^$]*to fix"):
        sink.write("job", made(TABLE, 0, 1, 1))


def rows(broker, topic):
    """Of each message, which release it is of, and its row."""
    return Counter((*dict(one.headers()).values(), one.value()) for one in broker.read(topic))


def once(broker, topic, which=(*TWICE, (1, 1))):
    """Whether every release is there with its three rows and its mark, and each of them once."""
    sent = rows(broker, topic)
    found = Counter(one[:3] for one in sent.elements())
    marks = [json.loads(one.key()) for one in broker.read(f"{topic}.releases")]
    return (
        max(sent.values()) == 1
        and found == {(b"job", b"%d" % w, b"%d" % t): 3 for w, t in which}
        and sorted(marks) == [["job", *one] for one in which]
    )


class Dying:
    """A producer that calls `step` after each effect; every message is with the broker then."""

    def __init__(self, inner, step):
        self._inner, self._step = inner, step

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name not in EFFECTS:
            return found

        def effect(*arguments, **named):
            found(*arguments, **named)
            if name == "produce":
                self._inner.flush(30)
            self._step(name)

        return effect


def watched(monkeypatch, step):
    import confluent_kafka

    plain = confluent_kafka.Producer
    monkeypatch.setattr(
        confluent_kafka, "Producer", lambda *some, **more: Dying(plain(*some, **more), step)
    )


@needs_broker
def test_a_kill_after_any_effect_neither_loses_nor_doubles(broker, topic, monkeypatch):
    effects, lives = [], []  # a killed process closes nothing: its producers stay as they are
    with monkeypatch.context() as patch:
        watched(patch, effects.append)
        send(opened(broker, topic), TWICE)
    release = ["begin_transaction", *["produce"] * 4, "commit_transaction"]
    assert effects == ["init_transactions", *release, *release]
    for number in (0, 1, 2, 5, 6, 11, 12):  # of equal ones in a row the first and the last
        name, left = f"{topic}.{number}", [number]
        broker.make(name)
        lives.append(opened(broker, name))

        def step(_, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        with monkeypatch.context() as patch:
            watched(patch, step)
            with pytest.raises(Killed):
                send(lives[-1], TWICE)
        before = Counter(one[:3] for one in rows(broker, name).elements())
        assert set(before.values()) <= {3}  # never a part
        assert len(before) == effects[: number + 1].count("commit_transaction")
        send(opened(broker, name), TWICE)
        assert once(broker, name, TWICE)


@needs_broker
def test_an_earlier_life_that_wakes_up_sends_nothing(broker, topic):
    old, new = opened(broker, topic), opened(broker, topic)
    send(old, [(0, 1)])
    send(new, TWICE)
    with pytest.raises(SourceError, match=r"another process(.|\n)*no other job of this name"):
        send(old, [(0, 2)])
    assert once(broker, topic, TWICE)
    send(old, TWICE)  # now it is the new life, and asks first
    with pytest.raises(SourceError):
        send(new, [(1, 1)])
    assert once(broker, topic, TWICE)


HARD = """
import os, sys
from tests.connectors.test_kafka_sink import opened
from tests.connectors.test_databases import send
from types import SimpleNamespace
sink = opened(SimpleNamespace(servers=sys.argv[1]), sys.argv[2])
plain = sink.put
def cut_off(place, *others):
    producer, known = place
    class Cut:
        def __getattr__(self, name):
            return getattr(producer, name)
        def commit_transaction(self, *_):
            if sys.argv[3] == "after":
                producer.commit_transaction(30)
            else:
                producer.flush(30)
            os._exit(9)
    plain((Cut(), known), *others)
sink.put = cut_off
send(sink)
"""


@needs_broker
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_dies_at_the_commit_is_made_good_by_the_next(broker, topic, when):
    done = subprocess.run(
        [sys.executable, "-c", HARD, broker.servers, topic, when],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 9, done.stderr
    assert sum(rows(broker, topic).values()) == (3 if when == "after" else 0)
    send(opened(broker, topic))
    assert once(broker, topic)


@needs_broker
def test_a_broker_that_dies_at_the_commit_loses_and_doubles_nothing(broker, topic):
    sink = opened(broker, topic)
    send(sink, [(0, 1)])
    plain = sink.put

    def cut_off(place, *others):
        producer, known = place

        class Cut(Dying):
            def commit_transaction(self, *_):
                broker.stop()
                producer.commit_transaction(0.5)

        plain((Cut(producer, lambda _: None), known), *others)

    sink.put = cut_off
    with pytest.raises(SourceError, match=f"write to the topic '{topic}'.*\n.*start again"):
        send(sink, TWICE)
    del sink.put
    broker.start()
    send(sink, TWICE)
    send(opened(broker, topic))
    assert once(broker, topic)


@needs_broker
def test_a_job_that_is_killed_after_the_commit_goes_on(broker, topic, tmp_path, monkeypatch):
    sink, left = opened(broker, topic), [3]
    plain = type(sink).write

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
    with Job(tmp_path / "s", replace(work(Stream(batches=24)), sink=opened(broker, topic))) as job:
        list(job)
    found = rows(broker, topic)
    assert max(found.values()) == 1
    assert sorted(Counter(one[2] for one in found)) == sorted(b"%d" % t for t in range(1, 13))
    assert len(found) == 12 * 8
    assert len(broker.read(f"{topic}.releases")) == 12


@needs_broker
def test_another_release_under_its_name_is_refused(broker, topic):
    send(opened(broker, topic), [(0, 1)])
    for sink in (opened(broker, topic),) * 2:
        with pytest.raises(StoreError, match="holds another release") as caught:
            sink.write("job", made(OTHER))
        assert "7.5" not in str(caught.value)
    sink.write("another", made(OTHER))  # jobs share a topic
    assert sum(rows(broker, topic).values()) == 6


@needs_broker
def test_what_no_number_holds_stands_beside_the_release(broker, topic):
    note = "about 12 rows were over the bound"
    opened(broker, topic).write(
        "job", made(noted(TABLE, note, kept_time(ReleaseTime(0, "2026-01-01", None))))
    )
    (mark,) = broker.read(f"{topic}.releases")
    assert json.loads(mark.value())["notes"] == [note]
    assert json.loads(mark.value())["rows"] == 3


@needs_broker
@pytest.mark.parametrize("key", ODD)
def test_no_group_stops_a_publication(broker, topic, key):
    table = pa.table({key: ODD[key], "n": [1.5, float("nan"), None]})
    for _ in range(2):
        opened(broker, topic).write("job", made(table))
    assert sum(rows(broker, topic).values()) == 3


@needs_broker
def test_a_message_that_is_too_long_names_the_limit(broker, topic, tmp_path):
    """'Check that the brokers answer' was all that was said."""
    long = made(pa.table({"key": ["x" * 1_100_000], "n": [1.5]}))
    with pytest.raises(SourceError, match=r"longer than message.max.bytes in config"):
        opened(broker, topic).write("job", long)
    (tmp_path / "more.json").write_text('{"message.max.bytes": 9000000}')
    more = {"servers": broker.servers, "topic": topic, "config": str(tmp_path / "more.json")}
    with pytest.raises(SourceError, match=rf"longer than max.message.bytes of '{topic}' or"):
        open_sink("kafka", more).write("job", long)
    assert not rows(broker, topic)
    opened(broker, topic).write("job", made(TABLE))


@needs_broker
def test_a_place_that_cannot_keep_marks_is_refused(broker, topic):
    with pytest.raises(SourceError, match="do not know the topic"):
        send(opened(broker, "nowhere"))
    broker.make(f"{topic}.releases", cleanup_policy="delete")
    with pytest.raises(SourceError, match=r"would forget.*\n.*cleanup.policy = compact"):
        send(opened(broker, topic))
    assert not rows(broker, topic)


def test_a_missing_package_names_the_extra(monkeypatch):
    for name in ("confluent_kafka", "confluent_kafka.admin"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"streamveil\[kafka\]"):
        open_sink("kafka", {"servers": "h:1", "topic": "t"})
    source = open_source("kafka", {"servers": "h:1", "topic": "t", "columns": {"n": "INT64"}})
    with pytest.raises(MissingExtraError, match=r"streamveil\[kafka\]"):
        source.try_out()  # the first thing that a job does with it
