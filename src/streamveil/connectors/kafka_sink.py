"""A Kafka topic as a sink: every row of a release one JSON message, a release one transaction.

Exactly once, for consumers that read committed messages. Proof: a release's messages and its mark,
in the topic `<topic>.releases`, are one transaction, so consumers see both or neither. All lives of
a job on a topic have one transactional id. A new life first initialises its producer: brokers then
fence every earlier life, which can commit nothing from then on, and end what it had left open. Only
then are the marks read, up to the end that the topic has by then, committed ones alone; so the set
of the job's marks is final, and it grows by what this life commits. A release is sent if and only
if its mark is not in that set. Where an answer to the commit is lost, the sink raises and forgets
its producer: what comes next initialises anew and reads whether the transaction was committed.

Marks are kept as long as the topic is: it is compacted, and every mark has a key of its own. What
is sent again has the bytes of the committed release: an aborted transaction shows no other noise.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from streamveil.batch import Release
from streamveil.connectors import in_words
from streamveil.connectors.kafka_topic import (
    FIRST,
    POLL,
    QUIET,
    WAIT,
    Range,
    Topic,
    ends_of,
    messages,
)
from streamveil.connectors.marks import ContentMark, MarkedSink
from streamveil.connectors.sinks import to_json as to_json_lines
from streamveil.display import rows_of
from streamveil.errors import SourceError
from streamveil.release_metadata import read_facts, sentences, to_json

AT_ONCE = 1_000  # marks
OPEN_MS = 20_000  # a transaction that is open for longer is aborted: less than readers wait
FENCED = ("_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
TOO_LARGE = "MSG_SIZE_TOO_LARGE"
Marks = dict[str, ContentMark]  # of a job's releases


class KafkaSink(MarkedSink):
    """Sends releases to a topic, each in one transaction.

    A message is one row as JSON. Its key is a JSON list of job, window and group; the same key in
    a later release is the same group's newer row. Headers tell job, window and trigger. `config`
    names a JSON file of further librdkafka settings.
    """

    def __init__(self, servers: str, topic: str, config: str | None = None) -> None:
        self.topic = Topic(servers=servers, topic=topic, config=config)
        self.marks = Topic(servers=servers, topic=f"{topic}.releases", config=config)
        self.topic.client()
        self._jobs: dict[str, tuple[Any, Marks]] = {}
        self.what = f"the topic '{topic}'"

    def writing(self) -> AbstractContextManager[None]:
        """Tells errors of brokers in words."""
        from confluent_kafka import KafkaException

        return in_words(
            (KafkaException, TimeoutError),
            f"the sink cannot write to {self.what}",
            "check that the brokers answer, know the topic and let this user write to it and to"
            f" '{self.marks.topic}', and that no other job of this name writes there, then start"
            " again: it is sent then",
            lambda error: (
                self.reason(error.args[0]) if isinstance(error, KafkaException) else "no answer"
            ),
        )

    def reason(self, error: Any) -> str:
        """What an error of brokers, or of the producer, says."""
        name: str = error.name()
        if name in FENCED:
            return f"{name}: another process writes under the job's name"
        if name != TOO_LARGE:
            return name
        limit = "message.max.bytes in config (1,000,000 if it is not there)"
        if error.txn_requires_abort():  # the producer let it go
            limit = f"max.message.bytes of '{self.topic.topic}' or '{self.marks.topic}'"
        return f"{name}, longer than {limit}; raise it"

    def try_out(self) -> None:
        """See `try_connectors`."""
        with self.writing():
            self._producer("")  # takes the settings
            ends_of(self.topic)

    @contextmanager
    def opened(self, job: str, release: Release) -> Iterator[tuple[Any, Marks]]:
        """A producer of the job, and the marks of its releases; forgotten where brokers fail."""
        from confluent_kafka import KafkaException

        with self.writing():
            try:
                if job not in self._jobs:
                    self._jobs[job] = self._begun(job)
                yield self._jobs[job]
            except KafkaException:
                self._jobs.pop(job, None)
                raise

    def kept(self, place: tuple[Any, Marks], job: str, release: Release) -> ContentMark | None:
        """See `MarkedSink`."""
        return place[1].get(name_of(job, release))

    def close(self) -> None:
        """Forgets the producers; nothing is pending."""
        self._jobs.clear()

    def _begun(self, job: str) -> tuple[Any, Marks]:
        """A producer that no earlier life can interfere with, and which releases are there."""
        ends_of(self.topic)  # it is there
        make_compacted(self.marks)
        producer = self._producer(job)
        producer.init_transactions(WAIT)  # in this order: see the proof
        return producer, read_marks(self.marks, job)

    def _producer(self, job: str) -> Any:
        return self.topic.made(self.topic.client().Producer, {
            "transaction.timeout.ms": OPEN_MS, "log_level": QUIET, **self.topic.settings(),
            "bootstrap.servers": self.topic.servers,
            "transactional.id": f"streamveil/{self.topic.topic}/{job}",
        })  # fmt: skip

    def put(self, place: tuple[Any, Marks], job: str, release: Release, mark: ContentMark) -> None:
        """See `MarkedSink`."""
        (producer, known), (window, trigger, table) = place, release.identity
        headers = {"job": job, "window": str(window), "trigger": str(trigger)}
        said = {
            **vars(mark), "rows": table.num_rows, "notes": sentences(table),
            "metadata": json.loads(to_json(table.schema) or b"{}"),
        }  # fmt: skip
        lines, name = bytes(to_json_lines(table)).splitlines(), name_of(job, release)
        producer.begin_transaction()
        for key, line in zip(keys_of(job, release), lines, strict=True):
            produce(producer, self.topic.topic, key, line, headers)
        produce(producer, self.marks.topic, name, json.dumps(said).encode(), headers)
        producer.commit_transaction(WAIT)
        known[name] = mark


def name_of(job: str, release: Release) -> str:
    """The key of a release's mark."""
    return json.dumps([job, release.window, release.trigger])


def keys_of(job: str, release: Release) -> list[str | None]:
    """The keys of messages; None where a release does not tell its groups."""
    table = release.table
    names = (read_facts(table.schema) or {}).get("keys")
    if names is None or not set(names) <= set(table.column_names):
        return [None] * table.num_rows
    rows = rows_of(table.select(names)) if names else [{}] * table.num_rows
    return [json.dumps([job, release.window, *row.values()], default=str) for row in rows]


def produce(
    producer: Any, topic: str, key: str | None, value: bytes, headers: dict[str, str]
) -> None:
    """Hands a message to the producer, when it has room."""
    told = {f"streamveil_{name}": text for name, text in headers.items()}
    while True:
        try:
            producer.produce(topic, value, key=key, headers=told)
        except BufferError:
            producer.poll(0.1)  # a message that cannot be sent leaves in time, and fails the commit
        else:
            producer.poll(0)
            return


def make_compacted(topic: Topic) -> None:
    """Makes the topic of marks where it is missing; refuses one that forgets."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, NewTopic  # type: ignore[attr-defined]

    client = topic.administrator()
    wanted = NewTopic(topic.topic, 1, config={"cleanup.policy": "compact"})
    try:
        client.create_topics([wanted])[topic.topic].result(WAIT)
    except (KafkaException, TimeoutError):  # it is there, or may not be made: the next look tells
        pass
    else:
        wait_for(topic)
    place = ConfigResource(ConfigResource.Type.TOPIC, topic.topic)
    until = time.monotonic() + FIRST
    while True:
        try:
            policy = client.describe_configs([place])[place].result(WAIT)["cleanup.policy"].value
            break
        except KafkaException:  # another broker than the one that made it may be asked
            if time.monotonic() > until:
                raise
        time.sleep(POLL)
    if policy != "compact":
        raise SourceError(
            f"the topic '{topic.topic}' would forget which releases were sent: its cleanup.policy "
            f"is '{policy}'.\n  to fix  set cleanup.policy = compact"
        )


def wait_for(topic: Topic) -> None:
    """Waits until a new topic can be read."""
    until = time.monotonic() + WAIT
    while True:
        try:
            ends_of(topic)
        except SourceError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def read_marks(topic: Topic, job: str) -> Marks:
    """The committed marks of a job."""
    found: Marks = {}
    ends = ends_of(topic)
    consumer = topic.consumer()
    try:
        for partition, (low, high) in ends.items():
            for some, _ in messages(consumer, topic, Range(partition, low, high), AT_ONCE):
                for message in some:
                    name = message.key().decode()
                    if json.loads(name)[0] == job:
                        said = json.loads(message.value())
                        found[name] = ContentMark(said["digest"], said["norm"])
    finally:
        consumer.close()
    return found
