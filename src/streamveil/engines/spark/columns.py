"""Named columns as bytes, for the shuffle and for the state of shards.

`head size u32 · crc32 u32 · head | columns`, each part padded to 8 bytes; the checksum starts from
the head's size and covers all that follows. The head is JSON: facts about the whole, and for each
column its name, dtype, shape, and how it is stored. A column of equal items is stored as one item,
integers in a narrow range as their distances from the least. Reading does not copy columns that
were stored unchanged.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

import numpy as np

from streamveil.disk import crc32
from streamveil.errors import StoreError
from streamveil.types import Array

PREFIX = struct.Struct("<II")
ALIGNMENT = 8
KINDS = "biuf"  # numbers only: nothing is ever unpickled
SAMPLE = 64  # items to check before all of them are


class Head(NamedTuple):
    """The contents of the first bytes."""

    facts: dict[str, Any]
    tag: int  # checksum of all
    size: int  # bytes of all


class Stored(NamedTuple):
    """How a column is stored: `items` of `dtype`, to which `least` is added."""

    items: Array
    least: int = 0


def pack(facts: dict[str, Any], columns: dict[str, Array]) -> list[memoryview]:
    """The bytes of facts and columns, as parts to write one after the other.

    >>> data = b"".join(pack({"n": 1}, {"a": np.array([5, 5]), "b": np.arange(3)}))
    >>> facts, columns = unpack(data)
    >>> facts, columns["a"].tolist(), columns["b"].tolist()
    ({'n': 1}, [5, 5], [0, 1, 2])
    """
    stored = {name: narrow(column) for name, column in columns.items()}
    layout = [
        [name, column.dtype.str, column.shape, stored[name].items.dtype.str, stored[name].least,
         stored[name].items.size]
        for name, column in columns.items()
    ]  # fmt: skip
    text = json.dumps({"facts": facts, "columns": layout}, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + PREFIX.size) % ALIGNMENT)
    parts, crc = [memoryview(text)], crc32(text, len(text))
    for column in stored.values():
        data = np.ascontiguousarray(column.items).reshape(-1).view(np.uint8).data
        for part in (data, memoryview(bytes(-len(data) % ALIGNMENT))):
            crc = crc32(part, crc)
            parts.append(part)
    return [memoryview(PREFIX.pack(len(text), crc)), *parts]


def unpack(data: bytes | bytearray | memoryview) -> tuple[dict[str, Any], dict[str, Array]]:
    """The facts and columns; StoreError if the bytes are not as they were packed."""
    whole = memoryview(data)
    if len(whole) < PREFIX.size:
        raise StoreError("packed columns are cut short")
    size, crc = PREFIX.unpack(whole[: PREFIX.size])
    if crc32(whole[PREFIX.size :], size) != crc:
        raise StoreError("packed columns do not match their checksum")
    head = json.loads(bytes(whole[PREFIX.size : PREFIX.size + size]))
    place, columns = PREFIX.size + size, {}
    for name, dtype, shape, kept, least, items in head["columns"]:
        if np.dtype(dtype).kind not in KINDS or np.dtype(kept).kind not in KINDS:
            raise StoreError("packed columns hold a dtype that is never written")
        part = np.frombuffer(whole, kept, items, place)
        columns[name] = widen(Stored(part, least), np.dtype(dtype), shape)
        place += part.nbytes + -part.nbytes % ALIGNMENT
    return head["facts"], columns


def tag_of(parts: list[memoryview]) -> int:
    """The checksum at the start of packed parts."""
    return int(PREFIX.unpack(parts[0][: PREFIX.size])[1])


def head_of(data: bytes) -> Head | None:
    """The contents of prefix and head, unchecked; None if they are cut short.

    >>> data = b"".join(pack({"n": 1}, {"a": np.arange(9)}))
    >>> head_of(data[:150]).facts, head_of(data[:150]).size == len(data), head_of(data[:20])
    ({'n': 1}, True, None)
    """
    size, tag = PREFIX.unpack(data[: PREFIX.size]) if len(data) >= PREFIX.size else (0, 0)
    text = data[PREFIX.size : PREFIX.size + size]
    if not size or len(text) < size:
        return None
    try:
        head = json.loads(text)
        sizes = [items * np.dtype(kept).itemsize for *_, kept, _, items in head["columns"]]
        whole = PREFIX.size + size + sum(n + -n % ALIGNMENT for n in sizes)
        return Head(head["facts"], tag, whole)
    except (ValueError, TypeError, KeyError):
        raise StoreError("packed columns have no head") from None


def narrow(column: Array) -> Stored:
    """The same items in fewer bytes, if they are equal or close together."""
    if column.size < 2 or column.dtype.kind not in "iu":
        return Stored(column)
    flat = column.reshape(-1)
    sample = flat[:: 1 + flat.size // SAMPLE]
    if fitting(int(sample.min()), int(sample.max())).itemsize >= column.dtype.itemsize:
        return Stored(column)  # a cheap no, for fingerprints and the like
    low, high = int(flat.min()), int(flat.max())
    if low == high:
        return Stored(flat[:1])
    kind = fitting(low, high)
    if kind.itemsize >= column.dtype.itemsize:
        return Stored(column)
    return Stored((flat - column.dtype.type(low)).astype(kind), low)


def fitting(low: int, high: int) -> np.dtype[Any]:
    """The smallest unsigned dtype that holds every distance from `low`."""
    return np.min_scalar_type(high - low)


def widen(stored: Stored, dtype: np.dtype[Any], shape: list[int]) -> Array:
    """The inverse of `narrow`."""
    if stored.items.size == 1:
        return np.full(shape, stored.items[0], dtype)
    if stored.items.dtype == dtype:
        return stored.items.reshape(shape)
    wide = stored.items.astype(dtype)
    if stored.least:
        wide += dtype.type(stored.least)
    return wide.reshape(shape)
