"""Columns that a topic's messages have besides the fields of their values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.batch import whole
from streamveil.connectors.fit import cast_or_null, fit
from streamveil.types import Array, Int64

HEADER = "kafka_header_"  # begins the name of a column that is a header
OF_MESSAGES = pa.schema([  # columns that every topic has, besides those declared
    ("kafka_key", pa.string()), ("kafka_time", pa.timestamp("us", tz="UTC")),
    ("kafka_partition", pa.int64()), ("kafka_offset", pa.int64()),
])  # fmt: skip


def headers_of(found: list[Any], wanted: pa.Schema) -> tuple[pa.Table, dict[str, int]]:
    """The wanted headers of messages, and how many do not fit. The last one of a name counts."""
    columns = pa.schema([one for one in wanted if one.name.startswith(HEADER)])
    if not columns.names:
        return pa.table({}), {}
    told = [dict(message.headers() or ()) for message in found]
    arrays = [
        pa.array([one.get(name.removeprefix(HEADER)) for one in told], pa.binary())
        for name in columns.names
    ]
    return fit(pa.table(arrays, columns.names), columns)


def offsets_of(found: list[Any]) -> Int64[Array, " messages"]:
    """Where messages are in their partition."""
    return np.fromiter((message.offset() for message in found), np.int64, len(found))


def keys_of(found: list[Any]) -> pa.Array:
    """Keys as text; null where there is none, or one that is no text."""
    keys = pa.array([message.key() for message in found], pa.binary())
    return whole(cast_or_null(pa.chunked_array([keys]), pa.string()))


def times_of(found: list[Any]) -> pa.Array:
    """When messages came, or were made: what the topic keeps."""
    times = [message.timestamp()[1] * 1000 for message in found]
    return pa.array(times, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def partitions_of(found: list[Any]) -> pa.Array:
    """The partitions of messages."""
    return pa.array([message.partition() for message in found], pa.int64())


OF_MESSAGE: dict[str, Callable[[list[Any]], pa.Array]] = {
    "kafka_key": keys_of, "kafka_time": times_of,
    "kafka_partition": partitions_of, "kafka_offset": lambda found: pa.array(offsets_of(found)),
}  # fmt: skip
