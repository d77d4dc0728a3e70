"""A Kafka topic: every message one row, with its key, its headers, its time and its offset.

The place of a row is its partition and offset. Nothing is committed to the brokers: how far a job
has come is in its own state, so no group is joined and no rebalance can move a partition away.
Only messages of committed transactions are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from streamveil.connectors.base import Chunk, select
from streamveil.connectors.kafka_rows import TopicRows
from streamveil.connectors.kafka_topic import AT_ONCE, Format, Topic, left, messages


class KafkaSource:
    """Messages of a topic in the order of partitions and offsets, as far as they are there now.

    Options: `servers`, `topic`, declared columns, `config` (a JSON file of librdkafka settings);
    `format`: json, or avro or protobuf with a `registry` of schemas and their `subject`;
    `partitions`: which are read, as numbers ('0, 4-7') or as a share of all ('1 of 3');
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
        partitions: str | None = None,
    ) -> None:
        self.topic = Topic(
            servers=servers, topic=topic, columns=columns, config=config, format=format,
            registry=registry, subject=subject, partitions=partitions,
        )  # fmt: skip
        self.rows = TopicRows(self.topic)
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
        return self.rows.schema

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
            self.rows.refresh()  # after the ends: see the proof of `schema_registry`
            self._partitions = max([self._partitions, *(part.partition + 1 for part in parts)])
            following = at["next"]
            for part, later in zip_longest(parts, parts[1:]):
                here = part.partition
                if following != here or here not in offsets:  # else the last position says it
                    offsets[here], following = part.start, here
                    yield self.rows.chunk([], wanted, position_of(offsets, here))
                for found, after in messages(consumer, self.topic, part, min(max_rows, AT_ONCE)):
                    offsets[here] = after
                    ends = after == part.stop and later is not None
                    following = later.partition if ends and later else here
                    position = position_of(offsets, following)
                    yield self.rows.chunk(found, wanted, position, traced=self.traced)
        finally:
            consumer.close()


def position_of(offsets: dict[int, int], following: int) -> str:
    """The position after which rows of a partition follow."""
    known = {str(p): offset for p, offset in sorted(offsets.items())}
    return json.dumps({"offsets": known, "next": following})
