"""Messages as rows, in every format of a topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from streamveil.connectors import Chunk, declared_beside
from streamveil.connectors.json_lines import json_messages
from streamveil.connectors.rejected_rows import (
    MALFORMED,
    MISFIT,
    TracedSource,
    fit,
    misfits,
    rejected_lines,
    with_places,
)
from streamveil.types import Array, Int64

Places = Int64[Array, " some"]
T = TypeVar("T")
Own = Mapping[str, tuple[pa.DataType, Callable[[Any], Any]]]  # how columns are made of a message


def schema_of(own: Own) -> pa.Schema:
    """The columns that every message has."""
    return pa.schema([(name, kind) for name, (kind, _) in own.items()])


def told_of(own: Own, found: list[Any], wanted: pa.Schema) -> dict[str, Any]:
    """Those of them that are wanted, of some messages."""
    return {
        name: pa.array([take(one) for one in found], kind)
        for name, (kind, take) in own.items() if name in wanted.names
    }  # fmt: skip


def only_text(text: str | None) -> str | None:
    r"""A text that was read with signs in place of bytes that are none: null if it has such a sign.

    Two texts that differ in these bytes would look alike, and two people count as one. A text that
    truly has the sign is null too, as it looks the same.

    >>> only_text("visits.7"), only_text("visits.\ufffd")
    ('visits.7', None)
    """
    return None if text is None or "\ufffd" in text else text


class Messages(TracedSource):
    """A source of JSON messages: each is a row of its declared fields, and of what is known of it.

    `own` says the columns that every message has, and how each is made of one.
    """

    own: ClassVar[Own]
    at_hand = True

    def __init__(self, columns: dict[str, str], name: str, *, follow: bool = True) -> None:
        self.declared = declared_beside(columns, self.own)
        self.names, self.bounded = [name], not follow

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        return pa.schema([*self.declared, *schema_of(self.own)])

    def chunk(
        self, found: list[Any], texts: list[bytes], numbers: Places, wanted: pa.Schema, at: Any
    ) -> Chunk:
        """Rows of messages with these texts and numbers in the source; `at`: behind the last."""
        made = of_json(texts, pa.schema([one for one in wanted if one.name not in self.own]))
        told = told_of(self.own, kept(found, made.malformed), wanted)
        part = Part(texts, numbers, 0, self.names[0])
        return chunk_of(part, made, told, wanted, json.dumps(at), traced=self.traced)


class Decoded(NamedTuple):
    """Some messages: every one is a row or malformed."""

    rows: pa.Table  # of the wanted types
    malformed: Places  # messages that are no rows, from 0
    rejected: dict[str, int]  # reason -> fields or messages
    misfit: Places  # messages with a field that did not fit


class Part(NamedTuple):
    """Which messages some are."""

    texts: list[bytes]
    numbers: Places  # where each is in the part of the source that holds them
    file: int  # which part that is
    name: str  # what it is called


Decoder = Callable[[list[bytes], pa.Schema], Decoded]


def of_json(messages: list[bytes], wanted: pa.Schema) -> Decoded:
    """The wanted fields of JSON objects.

    >>> found = of_json([b'{"n": "x"}', b" ", b'{"n": 2}'], pa.schema([("n", pa.int64())]))
    >>> found.rows["n"].to_pylist(), found.malformed.tolist(), found.misfit.tolist()
    ([None, 2], [1], [0])
    """
    lines = json_messages(messages, wanted)
    return decoded(lines.rows, lines.malformed, len(messages), wanted)


def decoded(rows: pa.Table, malformed: Places, of: int, wanted: pa.Schema) -> Decoded:
    """Rows as the wanted types."""
    fitted, rejected = fit(rows, wanted)
    misfit = np.zeros(0, np.int64)
    if rejected:
        misfit = np.delete(np.arange(of), malformed)[misfits(rows, fitted)]
    if len(malformed):
        rejected = {**rejected, MALFORMED: len(malformed)}
    return Decoded(fitted, malformed, rejected, misfit)


def kept(found: list[T], malformed: Places) -> list[T]:
    """The messages without the malformed ones."""
    if not len(malformed):
        return found
    return [found[i] for i in np.delete(np.arange(len(found)), malformed)]


def chunk_of(
    part: Part,
    made: Decoded,
    told: Mapping[str, Any],
    wanted: pa.Schema,
    position: str,
    *,
    traced: bool,
) -> Chunk:
    """Rows of messages: the fields of their values, and `told`, what else is known of each."""
    columns = [told[one.name] if one.name in told else made.rows.column(one.name) for one in wanted]
    table = pa.table(columns, wanted)
    if not traced:
        return Chunk(table, position, made.rejected)
    odd = tuple(
        rejected_lines(wanted, part.name, reason, part.numbers[some], [part.texts[i] for i in some])
        for reason, some in ((MALFORMED, made.malformed), (MISFIT, made.misfit)) if len(some)
    )  # fmt: skip
    table = with_places(table, part.file, np.delete(part.numbers, made.malformed))
    return Chunk(table, position, made.rejected, odd)
