"""Messages of a topic as rows: the fields of their values, and what is known of each message."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from streamveil.connectors import FAR_US, Chunk, avro, declared_beside, protobuf
from streamveil.connectors.kafka_topic import Format, Topic
from streamveil.connectors.messages import Own, Part, chunk_of, kept, of_json, schema_of, told_of
from streamveil.connectors.rejected_rows import MISFIT, TIME, fit
from streamveil.connectors.schema_registry import RegisteredMessages
from streamveil.errors import SourceError, nearest

HEADER = "kafka_header_"  # begins the name of a column that is a header
UNREAD: dict[str, bytes | None] = {"": None}  # headers that the client cannot read


def headers_of(found: list[Any], wanted: pa.Schema) -> tuple[pa.Table, dict[str, int]]:
    """The wanted headers of messages, and how many do not fit. The last one of a name counts."""
    columns = pa.schema([one for one in wanted if one.name.startswith(HEADER)])
    if not columns.names:
        return pa.table({}), {}
    told = [headers_in(message) for message in found]
    arrays = [
        pa.array([one.get(name.removeprefix(HEADER)) for one in told], pa.binary())
        for name in columns.names
    ]
    table, lost = fit(pa.table(arrays, columns.names), columns)
    unread = sum(one is UNREAD for one in told)
    return table, {MISFIT: lost.get(MISFIT, 0) + unread} if unread else lost


def headers_in(message: Any) -> dict[str, bytes | None]:
    """The headers of a message; one of a name that is no text takes all others with it."""
    try:
        return dict(message.headers() or ())
    except (UnicodeDecodeError, SystemError):  # as a client finds it
        return UNREAD


def key_of(message: Any) -> str | None:
    """A key as text; None where there is none, or one that is no text."""
    try:
        return None if message.key() is None else str(message.key(), "utf-8")
    except UnicodeDecodeError:
        return None


def time_of(message: Any) -> int:
    """When a message came, or was made, in microseconds: a producer may have named any time."""
    return max(-FAR_US, min(FAR_US, int(message.timestamp()[1]) * 1000))


OF_MESSAGE: Own = {  # columns that every topic has, besides those declared
    "kafka_key": (pa.string(), key_of),
    "kafka_time": (TIME, time_of),
    "kafka_partition": (pa.int64(), lambda message: message.partition()),
    "kafka_offset": (pa.int64(), lambda message: message.offset()),
}


class TopicRows:
    """Makes rows of the messages of a topic."""

    def __init__(self, topic: Topic) -> None:
        self.topic, self.schemas = topic, schemas_of(topic)
        self.declared = declared_beside(topic.columns, OF_MESSAGE)

    @property
    def schema(self) -> pa.Schema:
        """All columns."""
        return pa.schema([*self.declared, *schema_of(OF_MESSAGE)])

    def refresh(self) -> None:
        """Asks for the schemas of all messages that are there now."""
        if self.schemas is not None:
            self.schemas.refresh(self._fields(self.declared).names)

    def chunk(
        self, found: list[Any], wanted: pa.Schema, position: str, *, traced: bool = False
    ) -> Chunk:
        """Rows of some messages of a partition."""
        texts = [message.value() or b"" for message in found]
        read = of_json if self.schemas is None else self.schemas.read
        made = read(texts, self._fields(wanted))
        good = kept(found, made.malformed)
        headers, lost = headers_of(good, wanted)
        told = told_of(OF_MESSAGE, good, wanted)
        told |= {name: headers.column(name) for name in headers.column_names}
        made = made._replace(rejected=dict(Counter(made.rejected) + Counter(lost)))
        partition = found[0].partition() if found else 0
        offsets = np.fromiter((message.offset() for message in found), np.int64, len(found))
        part = Part(texts, offsets, partition, f"{self.topic.topic}/{partition}")
        return chunk_of(part, made, told, wanted, position, traced=traced)

    def _fields(self, wanted: pa.Schema) -> pa.Schema:
        """The columns that are fields of a message's value."""
        return pa.schema([one for one in wanted if one.name in self.declared.names
                          and not one.name.startswith(HEADER)])  # fmt: skip


def schemas_of(topic: Topic) -> RegisteredMessages | None:
    """What reads messages with registered schemas; None for JSON."""
    format, registry, subject = topic.format, topic.registry, topic.subject
    if format not in get_args(Format):
        raise SourceError(
            f"format = '{format}' cannot be read from a topic{nearest(format, get_args(Format))}.\n"
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
        topic.schemas(), subject or f"{topic.topic}-value", format.upper(), made
    )
