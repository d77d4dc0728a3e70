"""A Kafka topic: every message one row, with its key, its headers, its time and its offset.

The place of a row is its partition and offset. Nothing is committed to the brokers: how far a job
has come is in its own state, so no group is joined and no rebalance can move a partition away.
Only messages of committed transactions are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import pyarrow as pa

from streamveil.connectors import Chunk, select
from streamveil.connectors.kafka_rows import TopicRows
from streamveil.connectors.kafka_topic import (
    AT_ONCE,
    Format,
    Range,
    Topic,
    ends_of,
    left,
    made_anew,
    messages,
    resumed,
)
from streamveil.connectors.rejected_rows import TracedSource

LOWEST = 0  # the partition with which a read begins


class KafkaSource(TracedSource):
    """Messages of a topic in the order of partitions and offsets, as far as they are there now.

    Options: `servers`, `topic`, declared columns, `config` (a JSON file of librdkafka settings);
    `format`: json, or avro or protobuf with a `registry` of schemas and their `subject`;
    `partitions`: which are read, as numbers ('0, 4-7') or as a share of all ('1 of 3');
    `follow = FALSE` reads what is there and ends. A declared column `kafka_header_NAME` is the last
    header of that name. A read visits one partition after the other, in the order of their numbers,
    each up to its end as of the beginning of the read.

    A position holds the next offset of every partition and which of them comes next; behind all of
    them it names the lowest. Proof that reading goes on with the same rows in the same order: the
    rows after a position, up to the next one, are of the one partition that it names, and messages
    of a partition never change. New messages of an earlier partition are left to the next read, as
    they are without a restart. So each step has a person's rows in the order of partitions and
    offsets, whatever others' messages are, and wherever a process died.

    Offsets start again where a topic is deleted and made anew, so a position also holds the
    brokers' identifier of the topic, and a digest of the last message. A topic with another
    identifier is a copy on other brokers if it has that message at its offset; else it is refused.
    """

    at_hand = True

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
        self.rows, self.bounded = TopicRows(self.topic), not follow
        self.names: list[str] = []  # of the partitions that were read

    @cached_property
    def _administrator(self) -> Any:
        made = self.topic.administrator()
        self.topic.require_whole(made)
        return made

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        return self.rows.schema

    def try_out(self) -> None:
        """See `try_connectors`."""
        administrator = self.topic.administrator()  # takes the settings
        ends_of(self.topic)
        self.topic.require_whole(administrator)

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        wanted = select(self.schema(), columns, f"topic '{self.topic.topic}'")
        at: Any = json.loads(position) if position else {"offsets": {}, "next": LOWEST}
        offsets = {int(p): offset for p, offset in at["offsets"].items()}
        consumer = self.topic.consumer()
        try:
            ends = self.topic.ends(consumer)
            own = self.topic.identifier(self._administrator)
            making = Making(at.get("topic", ""), at.get("last"))
            making = making.as_now(own, consumer, self.topic, ends)
            parts = list(left(self.topic, offsets, ends, at["next"]))
            self.rows.refresh()  # after the ends: see the proof of `schema_registry`
            seen = max((part.partition + 1 for part in parts), default=0)
            self.names += [f"{self.topic.topic}/{p}" for p in range(len(self.names), seen)]
            following, known = at["next"], len(offsets)
            offsets = resumed(self.topic, offsets, ends)
            if len(offsets) > known:  # what is lost of a new partition is told from now on
                yield self._nothing(wanted, position_of(offsets, following, making))
            for part, later in zip_longest(parts, parts[1:]):
                here = part.partition
                if following != here:  # else the last position says it
                    following = here
                    yield self._nothing(wanted, position_of(offsets, here, making))
                behind = later.partition if later else LOWEST
                for found, after in messages(consumer, self.topic, part, min(max_rows, AT_ONCE)):
                    offsets[here] = after
                    following = behind if after == part.stop else here
                    making = making.behind(found[-1])
                    position = position_of(offsets, following, making)
                    yield self.rows.chunk(found, wanted, position, traced=self.traced)
            if following != LOWEST:
                yield self._nothing(wanted, position_of(offsets, LOWEST, making))
        finally:
            consumer.close()

    def _nothing(self, wanted: pa.Schema, position: str) -> Chunk:
        """No more than a position."""
        return self.rows.chunk([], wanted, position, traced=self.traced)


class Making(NamedTuple):
    """The identity of a topic among those of one name."""

    topic: str  # see `Topic.identifier`
    last: list[Any] | None  # partition, offset and digest of the last message that was read

    def behind(self, message: Any) -> Making:
        """The identity after a message."""
        here = [message.partition(), message.offset(), digest_of(message)]
        return self._replace(last=here)

    def as_now(
        self, own: str, consumer: Any, topic: Topic, ends: dict[int, tuple[int, int]]
    ) -> Making:
        """The present identity; SourceError if it is neither that topic nor a copy."""
        if own == self.topic != "":
            return self
        partition, offset, digest = self.last or (0, -1, "")
        low, high = ends.get(partition, (0, 0))
        seen = None
        if low <= offset < high:
            one = Range(partition, offset, offset + 1)
            some = (found for found, _ in messages(consumer, topic, one, 1))
            seen = next((digest_of(message) for found in some for message in found), None)
        untold = seen is None and "" in (own, self.topic)  # it was deleted since
        if seen != digest and not untold:
            raise made_anew(topic.topic)
        return self._replace(topic=own or self.topic)


def digest_of(message: Any) -> str:
    """A digest of one message."""
    _, when = message.timestamp()
    parts = (message.key() or b"", str(when).encode(), message.value() or b"")
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()


def position_of(offsets: dict[int, int], following: int, making: Making) -> str:
    """The position after which rows of a partition follow."""
    known = {str(p): offset for p, offset in sorted(offsets.items())}
    return json.dumps({"offsets": known, "next": following, **making._asdict()})
