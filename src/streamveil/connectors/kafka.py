"""A Kafka topic: every message one row, with its key, its headers, its time and its offset.

The place of a row is its partition and offset. Nothing is committed to the brokers: how far a job
has come is in its own state, so no group is joined and no rebalance can move a partition away.
Only messages of committed transactions are read.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa

from streamveil.connectors import avro, protobuf
from streamveil.connectors.base import Chunk, declared_schema, select
from streamveil.connectors.kafka_columns import (
    HEADER,
    OF_MESSAGE,
    OF_MESSAGES,
    headers_of,
    offsets_of,
)
from streamveil.connectors.messages import Part, chunk_of, kept, of_json
from streamveil.connectors.schema_registry import PREFIX, RegisteredMessages, Registry
from streamveil.errors import MissingExtraError, PlanError, SourceError, nearest

WAIT = 30.0  # seconds without an answer before a read fails
POLL = 0.1  # seconds between two looks at how far a range is read
AT_ONCE = 50_000  # messages
Format = Literal["json", "avro", "protobuf"]


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Where the messages are. `config` names a JSON file of further librdkafka settings."""

    servers: str
    topic: str
    columns: dict[str, str] = field(default_factory=dict)
    config: str | None = None  # read where a task runs: credentials travel with no task

    @classmethod
    def of(cls, options: dict[str, Any]) -> Topic:
        """From the options of a source."""
        for name in ("servers", "topic", "columns"):
            if not options.get(name):
                raise PlanError(f"the source 'kafka' needs '{name}'")
        for name in ("format", "registry", "subject"):
            if options.get(name, "json") != "json":
                raise PlanError(
                    f"'{name}' of a topic is for the embedded engine: Spark reads JSON.\n"
                    "  to fix  run on the embedded engine, or send JSON"
                )
        known = {name: value for name, value in options.items() if name != "format"}
        unknown = known.keys() - {"servers", "topic", "columns", "config"}
        if unknown:
            raise PlanError(f"the source 'kafka' has no option '{sorted(unknown)[0]}'")
        for name in known["columns"]:
            if name.startswith(HEADER):
                raise PlanError(
                    f"'{name}' is a header, which the embedded engine reads and Spark does not.\n"
                    "  to fix  run on the embedded engine, or leave it out"
                )
        return cls(**known)

    def client(self) -> Any:
        """The package that talks to brokers."""
        try:
            import confluent_kafka
        except ImportError:
            raise MissingExtraError("Kafka", "kafka") from None
        return confluent_kafka

    def consumer(self, isolation: str = "read_committed") -> Any:
        """A consumer that never skips a lost range in silence."""
        return self.client().Consumer({
            **self.settings(), "bootstrap.servers": self.servers, "group.id": "streamveil",
            "enable.auto.commit": False, "auto.offset.reset": "error",
            "enable.partition.eof": True, "isolation.level": isolation,
        }, logger=logging.getLogger("streamveil.kafka"))  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """What the file of settings says of brokers. Its content appears in no message."""
        more = self._configured().items()
        return {name: value for name, value in more if not name.startswith(PREFIX)}

    def registry(self, url: str) -> Registry:
        """The registry of schemas, with what the file of settings says of it."""
        more = self._configured().items()
        own = {name[len(PREFIX) :]: str(value) for name, value in more if name.startswith(PREFIX)}
        return Registry(url, own)

    def _configured(self) -> dict[str, Any]:
        try:
            more = {} if self.config is None else json.loads(Path(self.config).read_text())
        except (OSError, ValueError):
            more = None
        if not isinstance(more, dict):
            raise SourceError(
                f"config='{self.config}' of 'kafka' is no readable JSON object of librdkafka"
                " settings.\n"
                "  to fix  put that file where the driver and every executor can read it"
            )
        return more

    def ends(self, consumer: Any) -> dict[int, tuple[int, int]]:
        """The first offset that is kept and the end of each partition, up to open transactions.

        Raises SourceError where the brokers do not answer or do not know the topic.
        """
        from confluent_kafka import KafkaException, TopicPartition

        try:
            known = consumer.list_topics(self.topic, timeout=WAIT).topics[self.topic]
            places = {p: TopicPartition(self.topic, p) for p in sorted(known.partitions)}
            found = {
                p: consumer.get_watermark_offsets(place, timeout=WAIT)
                for p, place in places.items()
            }
        except KafkaException:
            raise SourceError(
                f"the brokers at '{self.servers}' do not answer.\n"
                "  to fix  check the address and config, then start again: the job"
                " goes on where it was"
            ) from None
        if known.error is not None or not found or None in found.values():
            raise SourceError(
                f"the brokers do not know the topic '{self.topic}', or a partition has no leader"
                " now.\n  to fix  create the topic, or start again when all partitions have one"
            )
        return found


@dataclass(frozen=True)
class Range:
    """The messages [start, stop) of a partition."""

    partition: int
    start: int
    stop: int


class KafkaSource:
    """Messages of a topic in the order of partitions and offsets, as far as they are there now.

    Options: `servers`, `topic`, declared columns, `config` (a JSON file of librdkafka settings);
    `format`: json, or avro or protobuf with a `registry` of schemas and their `subject`;
    `follow = FALSE` reads what is there and ends. A declared column `kafka_header_NAME` is the last
    header of that name. A read visits one partition after the other, each up to its end as of the
    beginning of the read.

    A position holds the next offset of every partition and which of them comes next. Proof that
    reading goes on with the same rows in the same order: rows follow a position within one
    partition, the one that it names, up to the next position; and messages of a partition never
    change. What another partition has got meanwhile comes after the next position.
    """

    def __init__(  # noqa: PLR0913  (options of SQL, given by name)
        self,
        servers: str,
        topic: str,
        columns: dict[str, str],
        config: str | None = None,
        follow: bool = True,  # noqa: FBT001,FBT002
        format: Format = "json",
        registry: str | None = None,
        subject: str | None = None,
    ) -> None:
        self.topic = Topic(servers=servers, topic=topic, columns=columns, config=config)
        self.schemas = schemas_of(self.topic, format, registry, subject)
        self.declared = declared_schema(columns)
        for name in self.declared.names:
            if name in OF_MESSAGES.names:
                raise SourceError(
                    f"every topic has the column '{name}'.\n  to fix  leave it out of the declared"
                    " columns"
                )
        self.follow, self.traced = follow, False

    @property
    def bounded(self) -> bool:
        """See `Source`."""
        return not self.follow

    @property
    def names(self) -> list[str]:
        """Of the partitions, for whoever looks at rejected rows; made without asking brokers."""
        return [f"{self.topic.topic}/{p}" for p in range(self._partitions)]

    _partitions = 0  # seen so far

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        return pa.schema([*self.declared, *OF_MESSAGES])

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        wanted = select(self.schema(), columns, f"topic '{self.topic.topic}'")
        at: Any = json.loads(position) if position else {"offsets": {}, "next": 0}
        offsets = {int(p): offset for p, offset in at["offsets"].items()}
        consumer = self.topic.consumer()
        try:
            parts = list(left(self.topic, offsets, self.topic.ends(consumer), at["next"]))
            if self.schemas is not None:  # after the ends: see its proof
                self.schemas.refresh(self._fields(self.declared).names)
            self._partitions = max([self._partitions, *(part.partition + 1 for part in parts)])
            following = at["next"]
            for part, later in zip_longest(parts, parts[1:]):
                here = part.partition
                if following != here or here not in offsets:  # else the last position says it
                    offsets[here], following = part.start, here
                    yield Chunk(self._chunk([], wanted, "").rows, position_of(offsets, here))
                for found, after in messages(consumer, self.topic, part, min(max_rows, AT_ONCE)):
                    offsets[here] = after
                    ends = after == part.stop and later is not None
                    following = later.partition if ends and later else here
                    yield self._chunk(found, wanted, position_of(offsets, following))
        finally:
            consumer.close()

    def _fields(self, wanted: pa.Schema) -> pa.Schema:
        """The columns that are fields of a message's value."""
        return pa.schema([one for one in wanted if one.name in self.declared.names
                          and not one.name.startswith(HEADER)])  # fmt: skip

    def _chunk(self, found: list[Any], wanted: pa.Schema, position: str) -> Chunk:
        """Rows of some messages of a partition."""
        texts = [message.value() or b"" for message in found]
        read = of_json if self.schemas is None else self.schemas.read
        made = read(texts, self._fields(wanted))
        good = kept(found, made.malformed)
        headers, lost = headers_of(good, wanted)
        told = {name: OF_MESSAGE[name](good) for name in wanted.names if name in OF_MESSAGE}
        told |= {name: headers.column(name) for name in headers.column_names}
        made = made._replace(rejected=dict(Counter(made.rejected) + Counter(lost)))
        partition = found[0].partition() if found else 0
        part = Part(texts, offsets_of(found), partition, f"{self.topic.topic}/{partition}")
        return chunk_of(part, made, told, wanted, position, traced=self.traced)


def schemas_of(
    topic: Topic, format: Format, registry: str | None, subject: str | None
) -> RegisteredMessages | None:
    """What reads messages with registered schemas; None for JSON."""
    if format not in get_args(Format):
        raise SourceError(
            f"format = '{format}' is none of a topic{nearest(format, get_args(Format))}.\n"
            f"  to fix  give one of {', '.join(get_args(Format))}"
        )
    if (format == "json") != (registry is None) or (format == "json" and subject is not None):
        raise SourceError(
            "format = 'avro' and 'protobuf' need the registry of their schemas, and JSON has"
            " none.\n  to fix  give format and registry = 'http://...' together, or neither"
        )
    if registry is None:
        return None
    made = avro.compiled if format == "avro" else protobuf.compiled
    return RegisteredMessages(
        topic.registry(registry), subject or f"{topic.topic}-value", format.upper(), made
    )


def left(
    topic: Topic, offsets: dict[int, int], ends: dict[int, tuple[int, int]], first: int
) -> Iterator[Range]:
    """What is left to read of every partition, the named one first.

    Raises SourceError where messages that were not read yet are gone.

    >>> topic = Topic(servers="", topic="t")
    >>> list(left(topic, {0: 5}, {0: (2, 5), 1: (3, 9)}, 0))
    [Range(partition=1, start=3, stop=9)]
    """
    gone = sorted(offsets.keys() - ends.keys())
    lost = [p for p, (low, high) in ends.items() if not low <= offsets.get(p, low) <= high]
    if gone or lost:
        raise SourceError(
            f"messages of partition {(gone or lost)[0]} of the topic '{topic.topic}' are gone that"
            " this job had not read: retention deleted them, or the topic was made anew.\n"
            "  to fix  keep messages longer than a job may stand still; to go on without them,"
            " start a new state"
        )
    for p in sorted(ends, key=lambda p: (p < first, p)):
        low, high = ends[p]
        start = offsets.get(p, low)
        if start < high:
            yield Range(p, start, high)


def position_of(offsets: dict[int, int], following: int) -> str:
    """The position after which rows of a partition follow."""
    known = {str(p): offset for p, offset in sorted(offsets.items())}
    return json.dumps({"offsets": known, "next": following})


def messages(
    consumer: Any, topic: Topic, part: Range, most: int
) -> Iterator[tuple[list[Any], int]]:
    """The messages of a range, some at a time, each time with the offset that follows.

    Not every offset holds a message: markers of transactions, aborted and compacted messages do
    not. So a range ends when the consumer's position, which moves past markers, or the partition's
    end has reached its stop, not when so many messages have come.
    """
    from confluent_kafka import TopicPartition

    here = TopicPartition(topic.topic, part.partition, part.start)
    consumer.assign([here])
    place, late = part.start, time.monotonic() + WAIT
    while place < part.stop:
        found = consumer.consume(min(most, part.stop - place), timeout=POLL)
        reached = max(
            consumer.position([here])[0].offset,  # negative before the first message
            *(message.offset() for message in found if at_end(message)),
            place,
        )
        rows = [one for one in found if not at_end(one) and one.offset() < part.stop]
        if rows:
            yield rows, min(max(reached, rows[-1].offset() + 1), part.stop)
        if reached > place:
            place, late = reached, time.monotonic() + WAIT
        elif time.monotonic() > late:
            raise SourceError(
                "the brokers do not answer any more.\n"
                "  to fix  start again when they do: the job goes on where it was"
            )


def at_end(message: Any) -> bool:
    """Whether it tells, instead of a message, that the partition ends at its offset."""
    from confluent_kafka import KafkaError

    if not message.error():
        return False
    if message.error().code() == KafkaError._PARTITION_EOF:
        return True
    raise SourceError(
        "a range of the topic cannot be read; was it deleted by retention?\n"
        "  to fix  keep messages longer than a job may stand still"
    )
