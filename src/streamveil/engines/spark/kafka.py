"""A Kafka topic of JSON messages, read by Spark's tasks through librdkafka: no jar is needed.

A step takes, of every partition, the messages whose broker timestamp lies before the step's public
time (Kafka's own look-up by time), up to what has arrived when the step is planned. The ranges go
to Spark's log before any message is read. The canonical order is (partition, offset).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from streamveil.connectors.fit import fit
from streamveil.connectors.json_lines import json_messages
from streamveil.connectors.rejected_rows import MALFORMED
from streamveil.engines.spark.source_offsets import PIECE, Read, Seen
from streamveil.errors import MissingExtraError, PlanError, SourceError
from streamveil.plan.plan import Clock

PARTITION_BITS = 44  # of an offset in a place: 2^44 messages a partition
WAIT = 30.0  # seconds without an answer before a step fails, to be repeated
POLL = 0.1  # seconds between two looks at how far a range is read
AT_ONCE = 50_000  # messages


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
        unknown = options.keys() - {"servers", "topic", "columns", "config"}
        if unknown:
            raise PlanError(f"the source 'kafka' has no option '{sorted(unknown)[0]}'")
        return cls(**options)

    def consumer(self) -> Any:
        """A consumer that never skips a lost range in silence."""
        try:
            from confluent_kafka import Consumer
        except ImportError:
            raise MissingExtraError("reading Kafka", "kafka") from None
        return Consumer({
            **self._settings(), "bootstrap.servers": self.servers, "group.id": "streamveil",
            "enable.auto.commit": False, "auto.offset.reset": "error",
            "enable.partition.eof": True,
        })  # fmt: skip

    def _settings(self) -> dict[str, Any]:
        """What the file of settings says. Its content appears in no message."""
        try:
            more = {} if self.config is None else json.loads(Path(self.config).read_text())
        except (OSError, ValueError):
            more = None
        if not isinstance(more, dict):
            raise SourceError(
                f"config='{self.config}' of the source 'kafka' is no readable JSON object of"
                " librdkafka settings.\n"
                "  to fix  put that file where the driver and every executor can read it"
            )
        return more


@dataclass(frozen=True)
class Range:
    """The messages [start, stop) of a partition."""

    partition: int
    start: int
    stop: int


@dataclass(frozen=True)
class KafkaFeed:
    """See `Feed`. What is seen: for every partition, where a step starts and stops."""

    topic: Topic
    clock: Clock

    def nothing(self) -> Seen:
        """See `Feed`."""
        return {"ranges": {}}

    def seen(self, before: Seen, due: float) -> Seen:
        """See `Feed`."""
        from confluent_kafka import KafkaException, TopicPartition

        consumer = self.topic.consumer()
        try:
            known = consumer.list_topics(self.topic.topic, timeout=WAIT)
            there = known.topics[self.topic.topic]
            partitions = sorted(there.partitions)
            places = [TopicPartition(self.topic.topic, p) for p in partitions]
            ends = [consumer.get_watermark_offsets(place, timeout=WAIT) for place in places]
            asked = [TopicPartition(self.topic.topic, p, int(due * 1000)) for p in partitions]
            found = consumer.offsets_for_times(asked, timeout=WAIT)
        except KafkaException:
            raise SourceError("the brokers do not answer; the step will be planned again") from None
        finally:
            consumer.close()
        if there.error is not None or any(one.error is not None for one in found):
            raise SourceError("the brokers do not know the topic, or a partition has no leader now")
        later = {one.partition: one.offset for one in found}
        ranges = {}
        for p, (low, high) in zip(partitions, ends, strict=True):
            start = before["ranges"].get(str(p), [0, low])[1]
            stop = later[p] if later[p] >= 0 else high
            ranges[str(p)] = [start, max(start, stop)]
        return {"ranges": ranges}

    def has(self, seen: Seen, step: int) -> bool:
        """See `Feed`; a topic has no end."""
        return True

    def splits(self, before: Seen, seen: Seen, step: int) -> Iterator[list[str]]:
        """See `Feed`."""
        found = [
            [json.dumps(asdict(Range(int(p), low, min(low + PIECE, stop))))]
            for p, (start, stop) in sorted(seen["ranges"].items(), key=lambda item: int(item[0]))
            for low in range(start, stop, PIECE)
        ]
        yield from found or [[]]


@dataclass(frozen=True)
class KafkaReading:
    """See `Reading`."""

    topic: Topic
    schema: pa.Schema  # of the wanted columns

    def rows(self, split: str, step: int) -> Read:
        """See `Reading`. A message that is no JSON object is counted."""
        part = Range(**json.loads(split))
        lines = json_messages(list(self._messages(part)), self.schema)
        table, rejected = fit(lines.rows, self.schema)
        if len(lines.malformed):
            rejected = {**rejected, MALFORMED: len(lines.malformed)}
        return Read(table, (part.partition << PARTITION_BITS) + part.start, rejected)

    def _messages(self, part: Range) -> Iterator[bytes]:
        """The values of a range.

        Not every offset holds a message: markers of transactions, aborted and compacted messages
        do not. So a range ends when the consumer's position, which moves past markers, or the
        partition's end has reached its stop, not when so many messages have come.
        """
        from confluent_kafka import TopicPartition

        consumer = self.topic.consumer()
        try:
            here = TopicPartition(self.topic.topic, part.partition, part.start)
            consumer.assign([here])
            place, late = part.start, time.monotonic() + WAIT
            while place < part.stop:
                messages = consumer.consume(min(AT_ONCE, part.stop - place), timeout=POLL)
                yield from (
                    message.value() or b"null"
                    for message in messages
                    if not at_end(message) and message.offset() < part.stop
                )
                reached = max(
                    consumer.position([here])[0].offset,  # negative before the first message
                    *(message.offset() for message in messages if at_end(message)),
                    place,
                )
                if reached > place:
                    place, late = reached, time.monotonic() + WAIT
                elif time.monotonic() > late:
                    raise SourceError("the brokers do not answer; the step will be repeated")
        finally:
            consumer.close()


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
