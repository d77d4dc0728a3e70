"""Messages of Protobuf, by a descriptor that the schema registry compiled.

Which message of its file one is comes before it, as a list of numbers: the first one is a row, all
others are malformed. How deep a message may nest
is bounded by the package that parses it; a message that it refuses is malformed.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.connectors import FAR_US
from streamveil.connectors.json_lines import NO_TEXT, text_array
from streamveil.connectors.messages import Decoded, Decoder, decoded
from streamveil.connectors.schema_registry import RegisteredSchema
from streamveil.errors import SourceError, requires_extra

Maker = Callable[[list[Any]], pa.Array]
WELL_KNOWN = "google.protobuf."
WRAPPERS = ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
MOST_INDEX = 64  # numbers before a message
FIRST = (0,)


class Field(NamedTuple):
    """How a column is made."""

    take: Callable[[Any], Any]  # the value of a row
    made: Maker  # of the values of all


ABSENT = Field(lambda _: None, lambda values: pa.nulls(len(values)))


def compiled(schema: RegisteredSchema) -> tuple[Decoder, frozenset[str]]:
    """A decoder, and the fields of the first message of the file."""
    with requires_extra("Protobuf", "schemas"):
        from google.protobuf import descriptor_pool, message_factory
    pool = descriptor_pool.DescriptorPool()
    try:
        file = added(pool, "streamveil.proto", schema)
    except (TypeError, ValueError, KeyError):
        raise SourceError(
            "a Protobuf schema cannot be read as the registry gives it (format=serialized).\n"
            "  to fix  register it with all that it imports"
        ) from None
    messages = list(file.message_types_by_name.values())
    if not messages:
        raise SourceError("a Protobuf schema has no message.\n  to fix  register one that has")
    makers = {name: field_of(name, one) for name, one in messages[0].fields_by_name.items()}
    made = message_factory.GetMessageClass(messages[0])
    return partial(columns, made.FromString, makers), frozenset(makers)


def added(pool: Any, name: str, schema: RegisteredSchema) -> Any:
    """A file with all that it imports, in a pool."""
    from google.protobuf import descriptor_pb2

    for imported, one in schema.references:
        added(pool, imported, one)
    file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.text))
    file.name = name
    for needed in file.dependency:
        if needed.startswith("google/protobuf/"):
            known(pool, needed)
    pool.AddSerializedFile(file.SerializeToString())
    return pool.FindFileByName(name)


def known(pool: Any, name: str) -> None:
    """Adds a file that comes with Protobuf."""
    from google.protobuf import (  # noqa: F401  (these are what the default pool then knows)
        any_pb2,
        descriptor_pool,
        duration_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )

    found = descriptor_pool.Default().FindFileByName(name)
    pool.AddSerializedFile(found.serialized_pb)


def columns(
    read: Callable[[bytes], Any], makers: dict[str, Field], messages: list[bytes], wanted: pa.Schema
) -> Decoded:
    """The wanted fields of messages; a field that the schema lacks is null."""
    fields = [makers.get(name, ABSENT) for name in wanted.names]
    rows: list[list[Any]] = []
    malformed = []
    for place, message in enumerate(messages):
        try:
            path, begin = index_of(message)
            row = read(message[begin:]) if path == FIRST else None
            values = None if row is None else [field.take(row) for field in fields]
        except Exception:  # whatever bytes do: it is a message that cannot be read
            values = None
        if values is None:
            malformed.append(place)
        else:
            rows.append(values)
    arrays = [
        field.made([values[at] for values in rows]) for at, field in enumerate(fields)
    ]  # fmt: skip
    table = pa.table(arrays, wanted.names)
    return decoded(table, np.array(malformed, np.int64), len(messages), wanted)


def index_of(message: bytes) -> tuple[tuple[int, ...], int]:
    r"""Which message of the file one is, and where it begins: (0,) is written as one zero.

    >>> index_of(b"\0\x08"), index_of(b"\x04\x02\x00\x08")
    (((0,), 1), ((1, 0), 3))
    """
    count, at = varint(message, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= MOST_INDEX:
        raise ValueError
    path = []
    for _ in range(count):
        number, at = varint(message, at)
        path.append(number)
    return tuple(path), at


def varint(message: bytes, at: int) -> tuple[int, int]:
    """A whole number (zigzag), and what follows it."""
    value = shift = 0
    while shift < 64:
        byte = message[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError


def field_of(name: str, field: Any) -> Field:
    """How a column is made of a field. One that can be absent is null where it is."""
    if is_repeated(field):
        return Field(partial(as_json, name), text_array)
    if field.message_type is None:
        is_text = field.type == field.TYPE_STRING
        change = of_enum(field) if field.enum_type else as_text if is_text else None
        take = present if field.has_presence else plain
        return Field(partial(take, name, change), maker_of(field))
    whole = field.message_type.full_name
    if whole == f"{WELL_KNOWN}Timestamp":
        return Field(partial(present, name, microseconds), moments)
    if whole in {f"{WELL_KNOWN}{one}Value" for one in WRAPPERS}:
        inner = field.message_type.fields_by_name["value"]
        return Field(partial(present, name, lambda one: one.value), maker_of(inner))
    return Field(partial(as_json, name), text_array)


def is_repeated(field: Any) -> bool:
    """Whether a field is a list or a map; older packages tell it by a label."""
    said = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if said is None else said)


def present(name: str, change: Callable[[Any], Any] | None, row: Any) -> Any:
    """A field that is there, or None."""
    return plain(name, change, row) if row.HasField(name) else None


def plain(name: str, change: Callable[[Any], Any] | None, row: Any) -> Any:
    """A field."""
    value = getattr(row, name)
    return value if change is None else change(value)


def as_text(value: str | bytes) -> str:
    """A text. Bytes that are no UTF-8, which proto2 allows, become half characters."""
    return value if isinstance(value, str) else value.decode(errors="surrogateescape")


def of_enum(field: Any) -> Callable[[int], str]:
    """The name of a value, or its number where it has none."""
    names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
    return lambda number: names.get(number, str(number))


def microseconds(value: Any) -> int:
    """Of a timestamp, whatever it holds, since 1970."""
    us = int(value.seconds) * 1_000_000 + int(value.nanos) // 1_000
    return max(-FAR_US, min(FAR_US, us))


def moments(values: list[int | None]) -> pa.Array:
    """Times."""
    return pa.array(values, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def as_json(name: str, row: Any) -> str | None:
    """A list or a message as JSON; None where it has none, no text where JSON cannot hold it."""
    from google.protobuf import json_format

    value = type(row)()
    value.CopyFrom(row)
    for field, _ in row.ListFields():
        if field.is_extension:
            value.ClearExtension(field)
        elif field.name != name:
            value.ClearField(field.name)
    if not value.ListFields():
        return None
    try:
        text: str = json_format.MessageToJson(  # sorted: each process has maps in another order
            value, preserving_proto_field_name=True, indent=None, sort_keys=True
        )
    except Exception:  # an `Any` of a type that the schema lacks, a time that no calendar has
        return NO_TEXT
    return text[text.index(":") + 1 : -1].strip()


def maker_of(field: Any) -> Maker:
    """What makes a column of a scalar field."""
    if field.enum_type is not None or field.cpp_type == field.CPPTYPE_STRING:
        return partial(pa.array, type=pa.binary()) if (
            field.type == field.TYPE_BYTES
        ) else text_array  # fmt: skip
    kinds = {
        field.CPPTYPE_BOOL: pa.bool_(), field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float64(), field.CPPTYPE_UINT64: pa.uint64(),
    }  # fmt: skip
    return partial(pa.array, type=kinds.get(field.cpp_type, pa.int64()))
