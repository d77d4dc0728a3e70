"""A Kafka topic: where it is, which of its partitions are read, and the messages of a range."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from streamveil.connectors import settings_in
from streamveil.connectors.schema_registry import PREFIX, Registry
from streamveil.errors import PlanError, SourceError, requires_extra

WAIT = 30.0  # seconds without an answer before a read fails
FIRST = 3.0  # seconds after which it is heard whether they refuse
PAUSE = 60.0  # seconds in which brokers that did not tell a topic's identifier are not asked again
POLL = 0.1  # seconds between two looks at how far a range is read
AT_ONCE = 50_000  # messages
MOST = 1 << 31  # partitions
NONE = "A" * 22  # the identifier of no topic
QUIET = 2  # of librdkafka's log: it repeats the same error ten times a second
PLAIN = "PLAINTEXT broker listener"  # librdkafka's guess where a broker ends what begins as TLS
SILENT = "do not answer.\n  to fix  check the address and config"
REFUSED = {  # kinds of errors, and what they mean
    "_AUTHENTICATION": "refuse this user or its password.\n  to fix  check sasl.mechanism,"
    " sasl.username and sasl.password in config",
    "_SSL": "make no connection by TLS.\n  to fix  check security.protocol and the certificates"
    " that config names",
}
Format = Literal["json", "avro", "protobuf"]


@dataclass(frozen=True, kw_only=True)
class Topic:
    """Where the messages are. `config` names a JSON file of further librdkafka settings."""

    servers: str
    topic: str
    columns: dict[str, str] = field(default_factory=dict)
    config: str | None = None  # read where a task runs: credentials travel with no task
    format: Format = "json"
    registry: str | None = None  # of the schemas of Avro and Protobuf
    subject: str | None = None  # there
    partitions: str | None = None  # that are read; None: all
    heard: set[str] = field(default_factory=set, init=False, compare=False)  # kinds of errors
    untold: list[float] = field(default_factory=list, init=False, compare=False)  # see `identifier`

    def __post_init__(self) -> None:
        chosen(self.partitions)

    @classmethod
    def of(cls, options: dict[str, Any]) -> Topic:
        """From the options of a source that goes on."""
        for name in ("servers", "topic", "columns"):
            if not options.get(name):
                raise PlanError(
                    f"the source 'kafka' needs '{name}'.\n"
                    "  to fix  give it among its options, and columns by their names and types"
                )
        unknown = options.keys() - {one.name for one in fields(cls) if one.init}
        if unknown:
            raise PlanError(
                f"the source 'kafka' has no option '{sorted(unknown)[0]}' on Spark.\n"
                "  to fix  leave it out, or run on the embedded engine"
            )
        return cls(**options)

    def client(self) -> Any:
        """The package that talks to brokers."""
        with requires_extra("Kafka", "kafka"):
            import confluent_kafka
        return confluent_kafka

    def consumer(self, isolation: str = "read_committed") -> Any:
        """A consumer that never skips a lost range in silence.

        It asks for what is there: a broker that waits for more holds back the next partition.
        """
        return self.made(self.client().Consumer, {
            "fetch.wait.max.ms": 10, "log_level": QUIET, **self.settings(),
            "error_cb": lambda one: self.heard.add("_SSL" if PLAIN in str(one) else one.name()),
            "bootstrap.servers": self.servers, "group.id": "streamveil",
            "enable.auto.commit": False, "auto.offset.reset": "error",
            "enable.partition.eof": True, "isolation.level": isolation,
        })  # fmt: skip

    def made(self, client: Any, settings: dict[str, Any]) -> Any:
        """A client of brokers with settings. Raises SourceError where it does not take them."""
        try:
            return client(settings, logger=logging.getLogger("streamveil.kafka"))
        except self.client().KafkaException:
            raise SourceError(
                f"config='{self.config}' of 'kafka' holds a setting that librdkafka does not take,"
                " or names a file that is not there.\n  to fix  correct it where the job runs"
            ) from None

    def administrator(self) -> Any:
        """A client that asks what topics are, and makes them."""
        with requires_extra("Kafka", "kafka"):
            from confluent_kafka.admin import AdminClient

        settings = {"log_level": QUIET, **self.settings(), "bootstrap.servers": self.servers}
        return self.made(AdminClient, settings)

    def identifier(self, administrator: Any) -> str:
        """The brokers' identifier of the topic; empty if they have none, or do not answer now.

        Brokers have identifiers since Kafka 2.8. Those that name no controller let the question
        wait in vain, so it is not asked before every read.
        """
        if self.untold and time.monotonic() < self.untold[-1] + PAUSE:
            return ""
        kafka = self.client()
        asked = kafka.TopicCollection([self.topic])
        try:
            waiting = administrator.describe_topics(asked, request_timeout=min(FIRST, WAIT))
            found = str(waiting[self.topic].result(WAIT).topic_id)
        except (kafka.KafkaException, TimeoutError):
            self.untold[:] = [time.monotonic()]
            return ""
        return "" if found == NONE else found

    def require_whole(self, administrator: Any) -> None:
        """SourceError where one message can remove another that was not read yet.

        Then one person's row could remove another's. Brokers that do not say are trusted.
        """
        from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

        place = ConfigResource(ConfigResource.Type.TOPIC, self.topic)
        try:
            waiting = administrator.describe_configs([place], request_timeout=min(FIRST, WAIT))
            policy = waiting[place].result(WAIT)["cleanup.policy"].value
        except (self.client().KafkaException, TimeoutError):
            return
        if "compact" in policy:
            raise SourceError(
                f"the topic '{self.topic}' forgets messages when others with their key come, so a"
                " row could go before it was read.\n"
                "  to fix  set cleanup.policy = delete, or read a copy of the topic that has it"
            )

    def settings(self) -> dict[str, Any]:
        """The settings for brokers in the file of settings. They appear in no message."""
        more = self._configured().items()
        return {name: value for name, value in more if not name.startswith(PREFIX)}

    def schemas(self) -> Registry:
        """The registry of schemas, with its settings from the file of settings."""
        more = self._configured().items()
        own = {name[len(PREFIX) :]: str(value) for name, value in more if name.startswith(PREFIX)}
        return Registry(self.registry or "", own)

    def _configured(self) -> dict[str, Any]:
        return settings_in(self.config, "kafka", "librdkafka settings")

    def ends(self, consumer: Any) -> dict[int, tuple[int, int]]:
        """The first offset that is kept and the end of each partition, up to open transactions.

        Of the partitions that are read. Raises SourceError where the brokers do not answer, do not
        know the topic or have none of these.
        """
        from confluent_kafka import KafkaException, TopicPartition

        try:
            known = self._known(consumer)
            places = {p: TopicPartition(self.topic, p) for p in self._read(known.partitions)}
            found = self._edges(consumer, places)
        except KafkaException:
            raise SourceError(
                f"the brokers at '{self.servers}' {self._why(consumer) or SILENT}, then start"
                " again: the job goes on where it was"
            ) from None
        if known.error is not None or not found or None in found.values():
            raise SourceError(
                f"the brokers do not know the topic '{self.topic}', or a partition has no leader"
                " now.\n  to fix  create the topic, or start again when all partitions have one"
            )
        return found

    def _edges(self, consumer: Any, places: dict[int, Any]) -> dict[int, Any]:
        """Where partitions begin and end. Leaders that move, as a broker goes, are waited for."""
        from confluent_kafka import KafkaException

        until = time.monotonic() + WAIT
        while True:
            try:
                return {
                    p: consumer.get_watermark_offsets(place, timeout=WAIT / 3)
                    for p, place in places.items()
                }
            except KafkaException:
                if self._why(consumer) is not None or time.monotonic() > until:
                    raise
            time.sleep(POLL)

    def _known(self, consumer: Any) -> Any:
        """The brokers' metadata of the topic. A refusal is reported without a wait."""
        from confluent_kafka import KafkaException

        try:
            found = consumer.list_topics(self.topic, timeout=min(FIRST, WAIT))
        except KafkaException:
            if self._why(consumer) is not None:
                raise
            found = consumer.list_topics(self.topic, timeout=WAIT)
        return found.topics[self.topic]

    def _why(self, consumer: Any) -> str | None:
        """Why the brokers do not answer, in words, if known."""
        consumer.poll(0)  # hears it
        return next((words for name, words in REFUSED.items() if name in self.heard), None)

    def _read(self, known: Collection[int]) -> list[int]:
        """The partitions that are read, of those that exist."""
        wanted = chosen(self.partitions)
        found = [p for p in sorted(known) if any(p in some for some in wanted)]
        named = 0 if "of" in (self.partitions or "of") else sum(map(len, wanted))
        if known and (not found or len(found) < named):
            raise SourceError(
                f"partitions = '{self.partitions}' names some that the topic '{self.topic}' does"
                f" not have: it has 0 to {max(known)}.\n"
                "  to fix  name some of these, such as '0, 2-3', or a share of all, such as"
                " '1 of 2'"
            )
        return found


def chosen(partitions: str | None) -> list[range]:
    """Partitions as their numbers ('0, 4-7'), or as a share of all of them ('1 of 3').

    >>> chosen("0, 4-7"), [p for p in range(9) if p in chosen("2 of 3")[0]]
    ([range(0, 1), range(4, 8)], [1, 4, 7])
    """
    if partitions is None:
        return [range(MOST)]
    if share := re.fullmatch(r"\s*(\d{1,9}) of (\d{1,9})\s*", partitions):
        part, of = int(share[1]), int(share[2])
        if 1 <= part <= of:
            return [range(part - 1, MOST, of)]
    numbers = [re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", one)
               for one in partitions.split(",")]  # fmt: skip
    found = [range(int(one[1]), int(one[2] or one[1]) + 1) for one in numbers if one]
    if len(found) < len(numbers) or not all(found) or overlap(found):
        raise SourceError(
            f"partitions = '{partitions}' names no partitions, or one twice.\n"
            "  to fix  give their numbers, such as '0, 4-7', or a share of all, such as '1 of 3'"
        )
    return found


def overlap(ranges: list[range]) -> bool:
    """Whether a number is in two of them."""
    by_start = sorted(ranges, key=lambda one: one.start)
    return any(one.stop > after.start for one, after in itertools.pairwise(by_start))


@dataclass(frozen=True)
class Range:
    """The messages [start, stop) of a partition."""

    partition: int
    start: int
    stop: int


def left(
    topic: Topic, offsets: dict[int, int], ends: dict[int, tuple[int, int]], first: int
) -> Iterator[Range]:
    """The ranges left to read of the named partition and of those after it, in order.

    Raises SourceError where messages that were not read yet are gone.

    >>> topic = Topic(servers="", topic="t")
    >>> list(left(topic, {0: 5}, {0: (2, 5), 1: (0, 9)}, 0))
    [Range(partition=1, start=0, stop=9)]
    """
    for p, start in sorted(resumed(topic, offsets, ends).items()):
        if p >= first and start < ends[p][1]:
            yield Range(p, start, ends[p][1])


def resumed(
    topic: Topic, offsets: dict[int, int], ends: dict[int, tuple[int, int]]
) -> dict[int, int]:
    """Where each partition is read on; SourceError where messages not read yet are gone.

    A partition that is new to a job began at 0, behind the job's first look.
    """
    starts = {p: offsets.get(p, 0 if offsets else low) for p, (low, _) in ends.items()}
    gone = sorted(offsets.keys() - ends.keys())
    lost = [p for p, (low, high) in ends.items() if not low <= starts[p] <= high]
    if gone or lost:
        raise SourceError(
            f"messages of partition {(gone or lost)[0]} of the topic '{topic.topic}' are gone that"
            " this job had not read: retention deleted them, or the topic was made anew.\n"
            "  to fix  keep messages for longer than a job may be stopped; to go on without"
            " them, start a new state"
        )
    return starts


def made_anew(topic: str) -> SourceError:
    """The error for another topic of the same name."""
    return SourceError(
        f"the topic '{topic}' is not the one that this job has read: it was deleted and made anew,"
        " and its offsets start again.\n"
        "  to fix  let the job read a topic of another name, or start a new state, which is charged"
    )


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
        "  to fix  keep messages for longer than a job may be stopped"
    )


def ends_of(topic: Topic) -> dict[int, tuple[int, int]]:
    """Where partitions begin and end, behind transactions that are open. Raises SourceError."""
    consumer = topic.consumer("read_uncommitted")
    try:
        return topic.ends(consumer)
    finally:
        consumer.close()
