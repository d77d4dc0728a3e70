"""A Kafka topic, read by Spark's tasks through librdkafka: no jar is needed.

A step takes from every partition the messages that have arrived when the step is planned and whose
broker timestamp lies before the step's public time (Kafka's own look-up by time). The ranges go to
Spark's log before any message is read. The canonical order is (partition, offset).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass

import pyarrow as pa

from streamveil.connectors.kafka_rows import TopicRows
from streamveil.connectors.kafka_topic import (
    AT_ONCE,
    WAIT,
    Range,
    Topic,
    made_anew,
    messages,
    resumed,
)
from streamveil.engines.spark.source_offsets import PIECE, Read, Seen
from streamveil.errors import SourceError
from streamveil.plan import Clock

PARTITION_BITS = 44  # bits for the offset in a place: 2^44 messages a partition


@dataclass(frozen=True)
class KafkaFeed:
    """See `Feed`. It sees where a step starts and stops in every partition, and which topic."""

    topic: Topic
    clock: Clock

    def nothing(self) -> Seen:
        """See `Feed`."""
        return {"ranges": {}}

    def seen(self, before: Seen, due: float) -> Seen:
        """See `Feed`."""
        from confluent_kafka import KafkaException, TopicPartition

        consumer, name = self.topic.consumer(), self.topic.topic
        try:
            ends = self.topic.ends(consumer)
            known = self._identified(before.get("topic", ""))
            read = {int(p): stop for p, (_, stop) in before["ranges"].items()}
            starts = resumed(self.topic, read, ends)
            self.topic.require_whole(self.topic.administrator())
            asked = [TopicPartition(name, p, int(due * 1000)) for p in ends]
            found = consumer.offsets_for_times(asked, timeout=WAIT)
        except KafkaException:
            raise SourceError("the brokers do not answer; the step will be planned again") from None
        finally:
            consumer.close()
        if any(one.error is not None for one in found):
            raise SourceError("a partition has no leader now; the step will be planned again")
        later = {one.partition: one.offset for one in found}
        ranges = {}
        for p, start in starts.items():
            stop = later[p] if later[p] >= 0 else ends[p][1]
            ranges[str(p)] = [start, max(start, stop)]
        return {"ranges": ranges, "topic": known}

    def has(self, seen: Seen, step: int) -> bool:
        """See `Feed`; a topic has no end."""
        return True

    def splits(self, before: Seen, seen: Seen, step: int) -> Iterator[list[str]]:
        """See `Feed`. Ranges that Spark logged before a stop may belong to a deleted topic."""
        self._identified(seen.get("topic", ""))
        found = [
            [json.dumps(asdict(Range(int(p), low, min(low + PIECE, stop))))]
            for p, (start, stop) in sorted(seen["ranges"].items(), key=lambda item: int(item[0]))
            for low in range(start, stop, PIECE)
        ]
        yield from found or [[]]

    def _identified(self, known: str) -> str:
        """The brokers' id of the topic; SourceError if it is not the known one."""
        own = self.topic.identifier(self.topic.administrator())
        if own not in ("", known or own):
            raise made_anew(self.topic.topic)
        return known or own


@dataclass(frozen=True)
class KafkaReading:
    """See `Reading`."""

    topic: Topic
    schema: pa.Schema  # of the wanted columns

    def rows(self, split: str, step: int) -> Read:
        """See `Reading`. The range was planned before schemas are fetched: see their proof."""
        part, made = Range(**json.loads(split)), TopicRows(self.topic)
        made.refresh()
        with closing(self.topic.consumer()) as consumer:
            found = messages(consumer, self.topic, part, AT_ONCE)
            chunks = [made.chunk(some, self.schema, "") for some, _ in found]
        rows = pa.concat_tables([self.schema.empty_table(), *(chunk.rows for chunk in chunks)])
        rejected = sum((Counter(chunk.rejected) for chunk in chunks), Counter[str]())
        return Read(rows, (part.partition << PARTITION_BITS) + part.start, dict(rejected))
