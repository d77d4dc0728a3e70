"""A Kafka topic of JSON messages, read by Spark's tasks through librdkafka: no jar is needed.

A step takes, of every partition, the messages whose broker timestamp lies before the step's public
time (Kafka's own look-up by time), up to what has arrived when the step is planned. The ranges go
to Spark's log before any message is read. The canonical order is (partition, offset).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pyarrow as pa

from streamveil.connectors.fit import fit
from streamveil.connectors.json_lines import json_messages
from streamveil.connectors.kafka import AT_ONCE, WAIT, Range, Topic, messages
from streamveil.connectors.rejected_rows import MALFORMED
from streamveil.engines.spark.source_offsets import PIECE, Read, Seen
from streamveil.errors import SourceError
from streamveil.plan.plan import Clock

PARTITION_BITS = 44  # of an offset in a place: 2^44 messages a partition


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
        """The values of a range."""
        consumer = self.topic.consumer()
        try:
            for found, _ in messages(consumer, self.topic, part, AT_ONCE):
                yield from (message.value() or b"null" for message in found)
        finally:
            consumer.close()
