"""Messages of Avro, by the schema that they were written with.

No message may stop a job, or take more memory than its size allows. Three kinds of schema would
permit that: one that contains itself (a message chooses its depth), a list of items that take no
bytes (a message chooses its length), and types that take no bytes and are named again, twice in
each next type. All are refused, by the schema alone.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.connectors import times
from streamveil.connectors.json_lines import NO_TEXT, json_text, text_array
from streamveil.connectors.messages import Decoded, Decoder, decoded
from streamveil.connectors.schema_registry import RegisteredSchema
from streamveil.errors import SourceError, requires_extra

MOMENTS = {"millis": 1_000, "micros": 1, "nanos": 0}  # microseconds of one
LARGEST = 1 << 126  # of a decimal
EXACT = Context(prec=39, Emin=MIN_EMIN, Emax=MAX_EMAX)  # holds all digits of those below it
PLAIN = 38  # digits behind the point that are written out, without an exponent
DAYS = (1 << 31) - 1


@dataclass(frozen=True)
class NamedTypes:
    """The types of a schema that have a name, by their whole names and the last parts of these.

    `least`: by the last part, once a type has been read whole, the least bytes that a value takes.
    """

    schemas: dict[str, Any] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)


def compiled(schema: RegisteredSchema) -> tuple[Decoder, frozenset[str]]:
    """A decoder, and the fields that it knows."""
    with requires_extra("Avro", "schemas"):
        import fastavro
    named, known = NamedTypes(), dict[str, Any]()
    for text in texts_of(schema):
        written = json.loads(text)
        require_finite(written, named, ())
        parsed = fastavro.parse_schema(bare(written), known)
    fields = written.get("fields", ()) if isinstance(written, dict) else ()
    if not fields:
        raise SourceError("an Avro schema must be a record.\n  to fix  write records with fields")
    makers = {one["name"]: maker_of(resolved(one["type"], named)) for one in fields}
    read = partial(fastavro.schemaless_reader, writer_schema=parsed)
    return partial(columns, read, makers), frozenset(makers)


def texts_of(schema: RegisteredSchema) -> list[str]:
    """The schemas that a schema imports, each once, and then the schema itself."""
    found: dict[str, None] = {}
    for _, one in schema.references:
        found.update(dict.fromkeys(texts_of(one)))
    return [*found, schema.text]


def columns(
    read: Callable[..., Any], makers: dict[str, Any], messages: list[bytes], wanted: pa.Schema
) -> Decoded:
    """The wanted fields of messages; a field that the schema lacks is null."""
    rows: list[dict[str, Any]] = []
    malformed = []
    for place, message in enumerate(messages):
        source = io.BytesIO(message)
        try:
            row = read(source)
        except Exception:  # whatever the error, the message cannot be read
            row = None
        if row is None or source.tell() != len(message):
            malformed.append(place)
        else:
            rows.append(row)
    made = [
        makers[name]([row[name] for row in rows]) if name in makers else pa.nulls(len(rows))
        for name in wanted.names
    ]
    table = pa.table(made, wanted.names)
    return decoded(table, np.array(malformed, np.int64), len(messages), wanted)


def maker_of(schema: Any) -> Callable[[list[Any]], pa.Array]:
    """The function that makes a column from the values of a type."""
    if isinstance(schema, list):
        some = [one for one in schema if one != "null"]
        return maker_of(some[0]) if len(some) == 1 else of_texts
    kind, logical = (schema, None) if isinstance(schema, str) else (
        schema["type"], schema.get("logicalType")
    )  # fmt: skip
    if logical == "decimal":
        return partial(of_decimals, int(schema.get("scale", 0)))
    if logical == "date" and kind == "int":
        return of_days
    moment, _, unit = (logical or "").rpartition("timestamp-")
    if moment in ("", "local-") and unit in MOMENTS and kind == "long":
        return partial(of_moments, MOMENTS[unit])
    return MAKERS.get(kind, of_texts)


def of_texts(values: list[Any]) -> pa.Array:
    """Texts as they are; other values as JSON."""
    return text_array(
        [value if isinstance(value, str) else json_text(plain(value)) for value in values]
    )


def plain(value: Any) -> Any:
    """A value with bytes as Avro writes them in JSON."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def of_decimals(scale: int, values: list[bytes | None]) -> pa.Array:
    """Decimals as text, since their size has no bound; too large ones are not text."""
    form = "f" if scale <= PLAIN else ""
    made = [None if value is None else int.from_bytes(value, "big", signed=True)
            for value in values]  # fmt: skip
    return text_array([None if one is None else NO_TEXT if abs(one) >= LARGEST else
                       f"{Decimal(one).scaleb(-scale, EXACT):{form}}" for one in made])  # fmt: skip


def of_days(values: list[int | None]) -> pa.Array:
    """Days since 1970. A message may hold more than 32 bits."""
    days = pc.min_element_wise(pa.array(values, pa.int64()), DAYS, skip_nulls=False)
    days = pc.max_element_wise(days, -DAYS, skip_nulls=False)
    return days.cast(pa.int32()).cast(pa.date32())


def of_moments(factor: int, values: list[int | None]) -> pa.Array:
    """Times since 1970."""
    if not factor:
        return pa.array(values, pa.int64()).cast(pa.timestamp("ns", tz="UTC"))
    moments = times(pa.chunked_array([pa.array(values, pa.int64())]), factor)
    return moments.combine_chunks().cast(pa.timestamp("us", tz="UTC"))


def of_type(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Values as they are."""
    return pa.array(values, kind)


MAKERS: dict[Any, Callable[[list[Any]], pa.Array]] = {
    "int": partial(of_type, pa.int64()), "long": partial(of_type, pa.int64()),
    "float": partial(of_type, pa.float64()), "double": partial(of_type, pa.float64()),
    "boolean": partial(of_type, pa.bool_()), "bytes": partial(of_type, pa.binary()),
    "fixed": partial(of_type, pa.binary()), "string": of_texts, "enum": of_texts,
}  # fmt: skip


def bare(schema: Any) -> Any:
    """A schema without logical types: values come as they were written."""
    if isinstance(schema, list):
        return [bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: [{**one, "type": bare(one["type"])} for one in value] if name == "fields"
        else bare(value) if name in ("type", "items", "values") else value
        for name, value in schema.items() if name != "logicalType"
    }  # fmt: skip


def resolved(schema: Any, named: NamedTypes) -> Any:
    """The type that a name stands for."""
    if isinstance(schema, list):
        return [resolved(one, named) for one in schema]
    if isinstance(schema, dict) and isinstance(schema.get("type"), dict | list):
        return resolved(schema["type"], named)
    if isinstance(schema, str) and schema not in PRIMITIVE:
        return named.schemas.get(schema) or named.schemas.get(last_part(schema), schema)
    return schema


PRIMITIVE = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1,
             "string": 1}  # type -> least bytes of a value  # fmt: skip


def require_finite(schema: Any, named: NamedTypes, within: tuple[str, ...]) -> int:
    """The least bytes that a value takes; SourceError for types that messages could make endless.

    `named` learns every type with a name; `within` are the last parts of those it is a part of.
    """
    if isinstance(schema, list):
        return 1 + min((require_finite(one, named, within) for one in schema), default=0)
    if isinstance(schema, str):
        return PRIMITIVE[schema] if schema in PRIMITIVE else of_named(schema, named, within)
    kind = schema["type"]
    if kind in ("array", "map"):
        least = require_finite(schema["items" if kind == "array" else "values"], named, within)
        if least == 0 and kind == "array":
            raise SourceError(
                "an Avro schema has a list of items that take no bytes, so one message could be of"
                " any length.\n  to fix  write rows without it"
            )
        return 1
    if kind not in ("record", "error", "enum", "fixed"):
        return require_finite(kind, named, within)
    own = last_part(schema["name"])
    if named.schemas.get(own, schema) != schema:
        raise SourceError(
            f"an Avro schema has two types called '{own}'.\n  to fix  give each a name of its own"
        )
    named.schemas[own] = named.schemas[schema["name"]] = schema
    if kind in ("enum", "fixed"):
        least = 1 if kind == "enum" else int(schema["size"])
    else:
        fields = schema["fields"]
        least = sum(require_finite(one["type"], named, (*within, own)) for one in fields)
    named.least[own] = least
    return least


def of_named(name: str, named: NamedTypes, within: tuple[str, ...]) -> int:
    """The least bytes of a type that is named again."""
    own = last_part(name)
    if own in within:
        raise SourceError(
            f"the type '{name}' of an Avro schema contains itself, so one message could be of"
            " any depth.\n  to fix  write rows of a type that ends"
        )
    least = named.least.get(own)  # None: the name of no type, which fastavro refuses
    if least == 0:
        raise SourceError(
            f"an Avro schema names the type '{name}' again, which takes no bytes, so one"
            " message could be far larger than it is.\n  to fix  write rows without it"
        )
    return least or 0


def last_part(name: str) -> str:
    """The name of a type without its namespace."""
    return name.rpartition(".")[2]
