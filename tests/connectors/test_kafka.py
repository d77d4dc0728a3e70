"""A topic is read once and in one order, whatever happens to readers, brokers and transactions."""

import json
import shutil
import socketserver
import time
from datetime import UTC, datetime, timedelta
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.connectors import FAR_US, open_sink
from streamveil.connectors.kafka import KafkaSource
from streamveil.connectors.kafka_rows import TopicRows
from streamveil.connectors.kafka_topic import Range, Topic, left
from streamveil.connectors.rejected_rows import MISFIT, traced
from streamveil.errors import SourceError
from streamveil.runtime.run import Pace, run
from tests.servers import kafka

COLUMNS = {"u": "INT64", "page": "STRING"}
needs_broker = pytest.mark.skipif(
    kafka.jars() is None, reason=f"no Apache Kafka: {kafka.JARS} names no folder with its jars"
)


def message(u):
    return json.dumps({"u": u, "page": "ab"[u % 2]}).encode()


def sent(users, partitions=2):
    return [(u % partitions, message(u)) for u in users]


def test_ranges_begin_with_the_partition_that_a_position_names():
    topic, ends = Topic(servers="", topic="t"), {0: (2, 5), 1: (3, 9), 2: (0, 0), 3: (0, 1)}
    assert [part.partition for part in left(topic, {}, ends, 1)] == [1, 3]
    assert list(left(topic, {0: 5, 1: 4}, ends, 0)) == [Range(1, 4, 9), Range(3, 0, 1)]


@pytest.fixture
def mock():
    """A broker within this process, and how to send rows of somebody to partitions of a topic."""
    client = pytest.importorskip("confluent_kafka")
    kept = client.Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1})
    [node] = kept.list_topics(timeout=20).brokers.values()

    def send(topic, *rows):
        for partition, u, page in rows:
            text = json.dumps({"u": u, "page": page}).encode()
            kept.produce(topic, text, partition=partition)
        kept.flush()

    return f"{node.host}:{node.port}", send


def test_the_order_of_somebodys_rows_does_not_follow_where_others_had_some(mock):
    """A read began with the partition in which the last one ended: others decided which it was."""
    servers, send = mock
    found, columns = [], {"u": "STRING", "page": "STRING"}
    for topic, more in ("with", [(2, "one more", "x")]), ("without", []):
        send(topic, (0, "other", "x"), (1, "another", "x"), *more)
        source = KafkaSource(servers, topic, columns)
        *_, last = source.read(None, 100)
        send(topic, (1, "me", "b"), (2, "me", "c"), (0, "me", "a"))
        chunks = list(source.read(last.position, 100))
        found.append([row["page"] for row in rows_of(chunks) if row["u"] == "me"])
        send(topic, (1, "me", "e"), (0, "me", "d"))
        ended = [one.position for one in chunks if one.rows.num_rows]
        for died_at in ended:  # what has come before it is left to the next read
            *_, again = source.read(died_at, 100)
            assert json.loads(again.position)["next"] == 0
    assert found == [["a", "b", "c"]] * 2


def test_what_comes_before_the_place_where_a_reader_died_is_in_the_next_read(mock):
    servers, send = mock
    send("t", *((p, "me", f"{p}{n}") for p in (0, 1, 2) for n in (0, 1)))
    source = KafkaSource(servers, "t", {"u": "STRING", "page": "STRING"})
    chunks = [one for one in source.read(None, 1) if one.rows.num_rows]
    send("t", (0, "me", "new"), (2, "me", "new too"))
    for place, died_at in enumerate(chunks):
        rest = list(source.read(died_at.position, 1))
        after = list(source.read(rest[-1].position, 1))
        seen = [row["page"] for row in rows_of([*chunks[: place + 1], *rest, *after])]
        assert sorted(seen) == sorted(["00", "01", "10", "11", "20", "21", "new", "new too"])
        assert [page for page in seen if len(page) == 2] == ["00", "01", "10", "11", "20", "21"]


@pytest.mark.parametrize("known", [{0: 1}, {0: 6}, {4: 0}], ids=["deleted", "beyond", "no such"])
def test_what_is_gone_is_said(known):
    with pytest.raises(SourceError, match="topic 't' are gone"):
        list(left(Topic(servers="", topic="t"), known, {0: (2, 5)}, 0))


@pytest.mark.parametrize(
    "said", ["", "a", "-1", "3-1", "0,0", "0-4, 3", "0 of 2", "3 of 2", "1of2"]
)
def test_partitions_that_are_none_are_refused(said):
    with pytest.raises(SourceError, match=r"names no partitions, or one twice(.|\n)*to fix"):
        Topic(servers="", topic="t", partitions=said)


def test_a_declared_column_is_none_of_every_topic():
    with pytest.raises(SourceError, match="kafka_key"):
        KafkaSource("x:1", "t", {"kafka_key": "STRING"})


class OddMessage:
    """A message as a client gives it, with a key and a time that its producer made up."""

    def __init__(self, key, ms):
        self.told = key, ms

    def key(self):
        return self.told[0]

    def timestamp(self):
        return 1, self.told[1]

    def value(self):
        return message(3)

    def headers(self):
        return None

    def partition(self):
        return 0

    def offset(self):
        return 7


@pytest.mark.parametrize("ms", [2**63 - 1, 2**62, 1_500, -1, -(2**63)])
@pytest.mark.parametrize("key", [None, b"", b"\xff\xfe", "é".encode()])
def test_no_time_or_key_of_a_producer_stops_a_job(key, ms):
    made = TopicRows(Topic(servers="", topic="t", columns=COLUMNS))
    table = made.chunk([OddMessage(key, ms), OddMessage(b"k", 2_000)], made.schema, "{}").rows
    assert table["u"].to_pylist() == [3, 3]
    assert table["kafka_key"].to_pylist() == [{b"": "", "é".encode(): "é"}.get(key), "k"]
    us = table["kafka_time"].cast(pa.int64()).to_pylist()
    assert us == [ms * 1_000 if abs(ms) < 2**51 else FAR_US if ms > 0 else -FAR_US, 2_000_000]


def test_a_header_whose_name_is_no_text_stops_no_job():
    class Unreadable(OddMessage):
        def headers(self):
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "as confluent_kafka 2.16 says")

    class Readable(OddMessage):
        def headers(self):
            return [("n", b"4"), ("n", b"5"), ("", None)]

    columns = {**COLUMNS, "kafka_header_n": "INT64"}
    made = TopicRows(Topic(servers="", topic="t", columns=columns))
    found = made.chunk([Unreadable(b"", 1), Readable(b"", 1)], made.schema, "{}")
    assert found.rows["u"].to_pylist() == [3, 3]
    assert found.rows["kafka_header_n"].to_pylist() == [None, 5]
    assert found.rejected == {MISFIT: 1}


def test_brokers_that_do_not_answer_are_named(monkeypatch):
    pytest.importorskip("confluent_kafka")
    monkeypatch.setattr("streamveil.connectors.kafka_topic.WAIT", 0.3)
    port = kafka.free_port()
    with pytest.raises(SourceError, match=rf"127.0.0.1:{port}' do not answer"):
        list(KafkaSource(f"127.0.0.1:{port}", "t", COLUMNS).read(None, 10))


def test_brokers_that_speak_no_tls_are_told_soon(tmp_path):
    """It took 33 seconds, and the message was of an address that does not answer."""
    pytest.importorskip("confluent_kafka")
    config = tmp_path / "kafka.json"
    config.write_text('{"security.protocol": "SSL"}')

    class Ends(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(1)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Ends) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        servers, began = f"127.0.0.1:{server.server_address[1]}", time.monotonic()
        with pytest.raises(
            SourceError, match=r"make no connection by TLS.\n[^$]*security.protocol"
        ):
            list(KafkaSource(servers, "t", COLUMNS, str(config)).read(None, 10))
        assert time.monotonic() - began < 20
        server.shutdown()


def test_a_leader_that_moves_when_a_broker_goes_is_waited_for():
    """The job stopped within a second, and said to check the address."""
    client = pytest.importorskip("confluent_kafka")
    said = iter(["_DESTROY_BROKER", "NOT_LEADER_FOR_PARTITION", "OFFSET_NOT_AVAILABLE"])

    class Moving:
        def list_topics(self, *_, timeout):
            return SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions=[0])})

        def get_watermark_offsets(self, *_, timeout):
            if (name := next(said, None)) is not None:
                raise client.KafkaException(client.KafkaError(getattr(client.KafkaError, name)))
            return 2, 5

        def poll(self, _):
            pass

    assert Topic(servers="", topic="t").ends(Moving()) == {0: (2, 5)}


def rows_of(chunks):
    return [row for chunk in chunks for row in chunk.rows.to_pylist()]


def places(rows):
    return [(row["kafka_partition"], row["kafka_offset"]) for row in rows]


@needs_broker
def test_every_position_goes_on_with_the_same_rows(broker, topic):
    broker.send(topic, sent(range(20)))
    broker.send(topic, sent(range(-9, 0)), "aborted")
    broker.send(topic, [*sent(range(20, 30)), (0, b"no row"), (1, b"[]")], "committed")
    source = KafkaSource(broker.servers, topic, COLUMNS)
    chunks = list(source.read(None, 4))
    rows = rows_of(chunks)
    assert sorted(row["u"] for row in rows) == list(range(30)), "aborted messages are no rows"
    assert sum(chunk.rejected.get("malformed row", 0) for chunk in chunks) == 2
    assert {row["kafka_key"] for row in rows} == {str(len(message(u))) for u in range(30)}
    broker.send(topic, [(0, message(99))])  # comes after every position of what was there before
    for at, chunk in enumerate(chunks):
        most = (1, 100)[at % 2]
        follows = rows_of(source.read(chunk.position, most))
        after = places(rows_of(chunks[at + 1 :]))
        mine = [place for place in places(follows) if place in set(after)]
        assert mine == after
        following = places(rows_of(chunks[at + 1 : at + 2]))
        assert places(follows)[: min(len(following), most)] == following[:most]
        *_, last = source.read(chunk.position, most)
        later = rows_of(source.read(last.position, most))  # of partitions that were read before
        assert len(follows) + len(later) == len(after) + 1


@needs_broker
def test_partitions_are_chosen_and_shares_of_a_group_are_the_whole_topic(broker, topic):
    wide = f"{topic}.wide"
    broker.make(wide, 5)
    broker.send(wide, sent(range(50), 5))

    def users(partitions):
        source = KafkaSource(broker.servers, wide, COLUMNS, partitions=partitions)
        chunks = list(source.read(None, 4))
        middle = len(chunks) // 2
        assert rows_of(source.read(chunks[middle].position, 9)) == rows_of(chunks[middle + 1 :])
        return sorted(row["u"] for row in rows_of(chunks))

    assert users("1, 3-4") == [u for u in range(50) if u % 5 in (1, 3, 4)]
    assert sorted(users("1 of 2") + users("2 of 2")) == users("0-4") == users(None)
    for none in ("4-5", "7", "6 of 9"):
        with pytest.raises(SourceError, match=r"has 0 to 4(.|\n)*to fix"):
            users(none)


@needs_broker
def test_an_open_transaction_is_not_read_and_not_waited_for(broker, topic):
    from confluent_kafka import Producer

    broker.send(topic, sent(range(6)))
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, message(100), partition=0)
    producer.flush()
    source = KafkaSource(broker.servers, topic, COLUMNS)
    chunks = list(source.read(None, 50))
    assert sorted(row["u"] for row in rows_of(chunks)) == list(range(6))
    producer.commit_transaction(30)
    found, until = [], time.monotonic() + 20  # the broker marks what is committed a moment later
    while not found and time.monotonic() < until:
        found = rows_of(source.read(chunks[-1].position, 50))
    assert [row["u"] for row in found] == [100]


def delete_before(broker, topic, offset):
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": broker.servers})
    places = [TopicPartition(topic, p, offset) for p in range(2)]
    for done in client.delete_records(places).values():
        done.result(30)


@needs_broker
def test_messages_that_retention_deleted_unread_stop_the_job_in_words(broker, topic):
    broker.send(topic, sent(range(10)))
    source = KafkaSource(broker.servers, topic, COLUMNS)
    position = next(chunk for chunk in source.read(None, 2) if chunk.rows.num_rows).position
    delete_before(broker, topic, 4)
    with pytest.raises(SourceError, match="retention deleted them"):
        list(source.read(position, 2))


@needs_broker
@pytest.mark.parametrize("began", [range(0), range(0, 6, 2)], ids=["both", "one"])
def test_messages_of_a_partition_that_was_empty_are_not_lost_in_silence(broker, topic, began):
    """No position named such a partition: the job began wherever the partition did then."""
    source = KafkaSource(broker.servers, topic, COLUMNS)
    broker.send(topic, sent(began))
    position = list(source.read(None, 9))[-1].position
    broker.send(topic, sent(range(len(began) * 2, 6)) + sent(range(1, len(began) * 2, 2)))
    assert len(rows_of(source.read(position, 9))) == 6 - len(began)
    delete_before(broker, topic, 3)
    with pytest.raises(SourceError, match="retention deleted them"):
        list(KafkaSource(broker.servers, topic, COLUMNS).read(position, 9))


@needs_broker
def test_a_topic_in_which_one_message_removes_another_is_refused(broker, topic):
    """Somebody's row took another's away that had its key, and nobody was told."""
    broker.make(f"{topic}.c", cleanup_policy="compact,delete")
    source = KafkaSource(broker.servers, f"{topic}.c", COLUMNS)
    for ask in (source.try_out, lambda: list(source.read(None, 2))):
        with pytest.raises(SourceError, match=r"forgets messages when others(.|\n)*to fix"):
            ask()


def made_again(broker, topic, partitions=2):
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": broker.servers})
    for done in client.delete_topics([topic]).values():
        done.result(30)
    while topic in client.list_topics(timeout=10).topics:
        time.sleep(0.1)
    broker.make(topic, partitions)


@needs_broker
@pytest.mark.parametrize("users", [range(6), range(10), range(50, 90)], ids=["fewer", "as", "more"])
def test_a_topic_that_was_made_anew_is_told_however_many_messages_it_has(broker, topic, users):
    broker.send(topic, sent(range(10)))
    source = KafkaSource(broker.servers, topic, COLUMNS)
    positions = [chunk.position for chunk in source.read(None, 2)]
    made_again(broker, topic)
    broker.send(topic, sent(users))
    for again in (source, KafkaSource(broker.servers, topic, COLUMNS)):
        for position in positions:
            with pytest.raises(SourceError, match=r"deleted and made anew(.|\n)*to fix"):
                list(again.read(position, 2))
    assert len(rows_of(source.read(None, 100))) == len(users), "a new state reads all of it"


@needs_broker
@pytest.mark.parametrize("known", ["another", "", None])
def test_a_copy_of_a_topic_on_other_brokers_goes_on_and_so_does_an_older_position(
    broker, topic, known
):
    """A copy has the same messages at the same offsets, and brokers tell it by another name."""
    broker.send(topic, sent(range(10)))
    broker.send(topic, sent(range(-9, 0)), "aborted")
    source = KafkaSource(broker.servers, topic, COLUMNS)
    position = json.loads(list(source.read(None, 100))[-1].position)
    broker.send(topic, sent(range(10, 14)))
    if known is None:
        del position["topic"], position["last"]
    else:
        position["topic"] = known
    follows = list(source.read(json.dumps(position), 100))
    assert sorted(row["u"] for row in rows_of(follows)) == [10, 11, 12, 13]
    assert json.loads(follows[-1].position)["topic"] not in ("another", "")
    if known is not None:
        for last in (None, [0, 1, "other digest"]):
            with pytest.raises(SourceError, match="made anew"):
                list(source.read(json.dumps({**position, "topic": "b", "last": last}), 100))


@needs_broker
def test_brokers_that_give_topics_no_identifier_are_asked_for_the_last_message(
    broker, topic, monkeypatch
):
    monkeypatch.setattr(Topic, "identifier", lambda *_: "")
    broker.send(topic, sent(range(10)))
    source = KafkaSource(broker.servers, topic, COLUMNS)
    position = list(source.read(None, 100))[-1].position
    assert list(source.read(position, 2)) == []
    delete_before(broker, topic, 5)
    assert list(source.read(position, 2)) == [], "nobody can tell, and nothing is refused"
    made_again(broker, topic)
    broker.send(topic, sent(range(50, 80)))
    with pytest.raises(SourceError, match="made anew"):
        list(source.read(position, 2))


def test_brokers_that_do_not_tell_an_identifier_are_not_asked_before_every_read(monkeypatch):
    client = pytest.importorskip("confluent_kafka")
    asked = []

    class Silent:
        def describe_topics(self, topics, **_):
            asked.append(topics)
            raise client.KafkaException(client.KafkaError(client.KafkaError._TIMED_OUT))

    place = Topic(servers="", topic="t")
    assert [place.identifier(Silent()) for _ in range(3)] == ["", "", ""]
    assert len(asked) == 1, "each question may wait for seconds"
    monkeypatch.setattr(time, "monotonic", lambda: place.untold[-1] + 61)
    assert place.identifier(Silent()) == ""
    assert len(asked) == 2, "they may tell it later"


@needs_broker
def test_rejected_messages_are_kept_with_their_offsets(broker, topic):
    broker.send(topic, [(0, message(1)), (0, b"no row"), (1, b'{"u": "x", "page": "a"}')])
    chunks = list(traced(KafkaSource(broker.servers, topic, COLUMNS)).read(None, 50))
    pa.concat_tables([chunk.rows for chunk in chunks])  # as a UNION ALL does
    kept = pa.concat_tables([table for chunk in chunks for table in chunk.rejected_rows])
    assert kept["file"].to_pylist() == [f"{topic}/0", f"{topic}/1"]
    assert kept["number"].to_pylist() == [1, 0]
    assert kept["line"].to_pylist()[0] == b"no row"


def query(broker, topic, **more):
    return (
        sv.source("kafka", topic, servers=broker.servers, topic=topic, columns=COLUMNS,
                  follow=more.pop("follow", True))
        .protect("u").group_by("page", keys=sv.public(["a", "b"])).agg(n=sv.count())
        .bound(max_rows=1).release(budget=sv.Budget(epsilon=2000, delta=1e-9), **more)
    )  # fmt: skip


@needs_broker
def test_a_topic_answers_one_question(broker, topic):
    broker.send(topic, sent(range(500)))
    assert counts(query(broker, topic, follow=False).answer().table) == {"a": 250, "b": 250}


def counts(table):
    return dict(zip(table["page"].to_pylist(), np.rint(table["n"]).astype(int), strict=True))


@needs_broker
def test_a_job_that_is_cut_off_at_any_commit_counts_every_message_once(
    broker, topic, tmp_path, monkeypatch
):
    """Stopped after each commit, while messages come and the broker dies: as if never stopped."""
    asked = query(broker, topic, every=sv.rows(40), steps=5)
    found, users, state = [], iter(range(10_000)), str(tmp_path / "s")
    for turn in range(60):
        broker.send(topic, [(turn % 2, message(next(users))) for _ in range(7)])
        if turn in (20, 40):
            broker.stop()
            monkeypatch.setattr("streamveil.connectors.kafka_topic.WAIT", 1.0)
            cut_off = run(asked.plan, state=state, pace=Pace(max_rows=3, once=True))
            with pytest.raises(SourceError):
                list(cut_off)
            monkeypatch.undo()
            broker.start()
        job = run(asked.plan, state=state, pace=Pace(max_rows=3, once=True))
        for _ in range(2):  # commits
            release = next(job, None)
            found += [release] if release is not None else []
        job.close()
        if len({one.step for one in found}) == 5:
            break
    by_step = {one.step: sum(counts(one.table).values()) for one in found}
    assert by_step == {1: 40, 2: 80, 3: 120, 4: 160, 5: 200}
    shutil.rmtree(tmp_path / "s")


@needs_broker
def test_a_topic_that_is_not_there_is_told_when_a_job_begins(broker, tmp_path):
    """A live job said so at the end of its first step."""
    asked = query(broker, "nope", every="1 hour", start="2090-01-01", end="2090-01-03",
                  clock="wall")  # fmt: skip
    with pytest.raises(SourceError, match="do not know the topic 'nope'"):
        run(asked.plan, state=str(tmp_path / "s"))
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("what", "settings"),
    [("source", {"transactional.id": "word", "enable.idempotence": False}), ("sink", {"acks": 0})],
)
def test_settings_that_a_later_client_does_not_take_are_told_when_a_job_begins(
    what, settings, tmp_path
):
    """The client of topics' identifiers, or the producer, was made after the charge."""
    path = tmp_path / "kafka.json"
    path.write_text(json.dumps(settings))
    options = {"servers": "127.0.0.1:1", "topic": "t", "config": str(path)}
    opened = (
        open_sink("kafka", options) if what == "sink" else KafkaSource(**options, columns=COLUMNS)
    )
    with pytest.raises(SourceError, match="a setting that librdkafka does not take") as caught:
        opened.try_out()
    assert "word" not in str(caught.value)


def after_hours_of_2090(hours, monkeypatch):
    """Sets the clock of live jobs."""
    at = (datetime(2090, 1, 1, tzinfo=UTC) + timedelta(hours=hours)).timestamp()
    clock = SimpleNamespace(time=lambda: at, time_ns=lambda: int(at * 1e9), sleep=time.sleep)
    monkeypatch.setattr("streamveil.runtime.run.time", clock)


@needs_broker
def test_a_live_job_takes_what_is_there_when_a_step_closes(broker, topic, tmp_path, monkeypatch):
    asked = query(broker, topic, every="1 hour", start="2090-01-01", end="2090-01-03", clock="wall")
    totals = []
    for step in range(1, 4):
        broker.send(topic, sent(range(100 * step, 100 * step + 100)))
        after_hours_of_2090(step, monkeypatch)
        made = list(run(asked.plan, state=str(tmp_path / "s"), pace=Pace(once=True)))
        totals += [sum(counts(one.table).values()) for one in made if one.step == step]
    assert totals == [100, 200, 300]


@needs_broker
def test_a_live_job_looks_at_the_messages_of_its_first_release_and_counts_them(
    broker, topic, tmp_path, monkeypatch
):
    stream = sv.source(
        "kafka", topic, servers=broker.servers, topic=topic, columns=COLUMNS, follow=True
    ).protect(unit="u")
    asked = stream.group_by("page", keys=sv.public(["a", "b"])).agg(n=sv.count()).release(
        every="1 hour", start="2090-01-01", steps=3, clock="wall",
        budget=sv.Budget(epsilon=8, delta=1e-9),
    )  # fmt: skip
    totals = []
    for step in range(1, 4):
        broker.send(topic, sent(range(400 * step, 400 * step + 400)))
        after_hours_of_2090(step, monkeypatch)
        made = list(run(asked.plan, state=str(tmp_path / "s"), pace=Pace(once=True)))
        assert (tmp_path / "s" / "look.json").exists()
        totals += [sum(counts(one.table).values()) for one in made if one.step == step]
    assert all(abs(n - 400 * step) < 60 for step, n in enumerate(totals, start=1)), totals
