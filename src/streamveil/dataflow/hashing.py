"""Keyed identities: 128-bit names of keys, fingerprints of privacy units, under a secret.

Integers (and what is stored as one: dates, timestamps, booleans) are enciphered as one AES-256
block each, so two different integers can never share a 128-bit name. Strings and byte strings go
through SipHash-2-4 with a 128-bit result (Aumasson and Bernstein 2012, the authors' 128-bit
variant). Several columns are chained: the concatenated names of the columns are hashed again.

Why 128 bits are enough: under a secret key nobody can aim at a collision, and among n different
keys the chance of any is at most n**2 / 2**129 (n = 2**40: 2**-49, and a collision would only give
two keys the same noise and the same row). A privacy unit keeps only the first 64 bits; the chance
of a collision of those is charged (`GroupBy.loss`, `SketchQuery.guarantee`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from streamveil.compiled import njit
from streamveil.dataflow.siphash import Offsets, siphash_many
from streamveil.types import Array, Int64, UInt8, UInt64

PIECE = 8_192  # integers enciphered at a time
NULL_WORDS = (0x6E756C6C, 0xFFFFFFFFFFFFFFFF)  # the block that stands for a null


def name_columns(columns: list[pa.Array], key: bytes) -> UInt64[Array, "rows 2"]:
    """The 128-bit name of every row of one or more columns of equal length.

    >>> a = name_columns([pa.array([1, 2, 1])], bytes(32))
    >>> bool((a[0] == a[2]).all()), bool((a[0] == a[1]).any())
    (True, False)
    """
    names = [name_column(column, key, place) for place, column in enumerate(columns)]
    if len(names) == 1:
        return names[0]
    joined = np.ascontiguousarray(np.concatenate(names, axis=1))
    width = joined.shape[1] * 8
    offsets = np.arange(len(joined) + 1, dtype=np.int64) * width
    return siphash_many(joined.view(np.uint8).reshape(-1), offsets, *secret_words(key, b"join"))


def name_column(
    column: pa.Array, key: bytes, place: int = 0, into: UInt64[Array, " words"] | None = None
) -> UInt64[Array, "rows 2"]:
    """The 128-bit names of one column; equal values at one place have equal names.

    Those of text are written `into` an array of two words a row, if given.
    """
    kind = column.type
    if is_text(kind):
        names = siphash_many(*stored(column), *secret_words(key, b"text%d" % place), into=into)
    else:
        names = encipher(as_integers(column), key, place)
    if column.null_count:
        nulls = np.asarray(pc.is_null(column))
        block = np.array([NULL_WORDS], "<u8")
        names = np.where(nulls[:, None], _encrypt(block, key), names)
    return names


def first_words(
    column: pa.Array, key: bytes, into: UInt64[Array, " rows"] | None = None
) -> UInt64[Array, " rows"]:
    """The first 64 bits of the names of one column, 1 for 0; `into` an array if none is null."""
    if is_text(column.type) and not column.null_count:
        secret = secret_words(key, b"text0")
        words = siphash_many(*stored(column), *secret, halves=1, into=into)[:, 0]
        if not words.all():
            words[words == 0] = 1
        return words
    words = np.empty(len(column), np.uint64) if into is None else into
    if column.null_count:
        _take_firsts(name_column(column, key), words)
        return words
    for start, names in _pieces(as_integers(column), key, 0):
        _take_firsts(names, words[start : start + len(names)])
    return words


def is_text(kind: pa.DataType) -> bool:
    """Whether values are byte strings (hashed) rather than integers (enciphered)."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_decimal(kind)
    )


def is_nameable(kind: pa.DataType) -> bool:
    """Whether a column of this type can name keys or privacy units."""
    return is_text(kind) or bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_floating(kind)
        or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind))
    )


def as_integers(column: pa.Array) -> Int64[Array, " rows"]:
    """The values as int64 words; nulls become 0. Floats keep their bits: -0.0 is 0.0, NaN is NaN.

    >>> negative = np.array([0xFFF8 << 48], np.uint64).view(np.float64)  # what 0 / 0 is in C
    >>> bool(as_integers(pa.array(negative)) == as_integers(pa.array([float("nan")])))
    True
    """
    kind = column.type
    if column.null_count:
        column = pc.fill_null(column, _zero(kind))
    if pa.types.is_floating(kind):
        with np.errstate(invalid="ignore"):  # a NaN that signals says nothing here
            plain = np.asarray(column.cast(pa.float64())) + 0.0  # -0.0 + 0.0 == 0.0
        plain[np.isnan(plain)] = np.nan
        return cast("Array", plain.view(np.int64))
    if pa.types.is_boolean(kind):
        return np.asarray(column.cast(pa.int8())).astype(np.int64)
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return np.asarray(column.view(width)).astype(np.int64)
    if pa.types.is_uint64(kind):
        return np.asarray(column).view(np.int64)
    return np.asarray(column).astype(np.int64, copy=False)


def _zero(kind: pa.DataType) -> Any:
    return (
        pa.scalar(0, pa.int64()).cast(pa.int32()).cast(kind)
        if (pa.types.is_temporal(kind) and kind.bit_width == 32)
        else pa.scalar(0).cast(kind)
    )


def text_buffers(column: pa.Array) -> tuple[UInt8[Array, " bytes"], Int64[Array, " rows_plus_1"]]:
    """The bytes and the offsets of a string-like column, without copying the bytes if possible."""
    data, offsets = stored(column)
    return data, offsets.astype(np.int64, copy=False)


def stored(column: pa.Array) -> tuple[UInt8[Array, " bytes"], Offsets]:
    """As `text_buffers`, with the offsets as wide as they are stored: of 32 or of 64 bits.

    >>> data, offsets = stored(pa.array(["to", None, "be"]).slice(1))
    >>> bytes(data[offsets[1] : offsets[2]]), offsets.dtype
    (b'be', dtype('int32'))
    """
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.string())
    if not is_plain_text(column.type):
        column = column.cast(pa.large_binary())
    if column.null_count:
        column = pc.fill_null(column, pa.scalar(b"", pa.binary()).cast(column.type))
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    kind: type = np.int64 if wide else np.int32
    _, offsets, data = column.buffers()
    if not len(column):
        return np.zeros(1, np.uint8), np.zeros(1, kind)
    start = column.offset * np.dtype(kind).itemsize
    places: Array = np.frombuffer(offsets, kind, len(column) + 1, start)
    if data is None or data.size == 0:
        return np.zeros(1, np.uint8), places
    return np.frombuffer(data, np.uint8), places


def is_plain_text(kind: pa.DataType) -> bool:
    """Whether values lie one after the other, with offsets."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_large_binary(kind)
    )


def encipher(values: Int64[Array, " rows"], key: bytes, place: int) -> UInt64[Array, "rows 2"]:
    """One AES-256 block per integer: a secret permutation, so names never collide."""
    names = np.empty((len(values), 2), "<u8")
    for start, piece in _pieces(values, key, place):
        names[start : start + len(piece)] = piece
    return names


def _pieces(
    values: Int64[Array, " rows"], key: bytes, place: int
) -> Iterator[tuple[int, UInt64[Array, "piece 2"]]]:
    """The names of a few values at a time, in memory that is used again: it stays in the cache."""
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 (see _encrypt)
    rows = min(len(values), PIECE)
    blocks, names = np.empty((rows, 2), "<u8"), np.empty((rows + 1, 2), "<u8")
    blocks[:, 1] = place
    for start in range(0, len(values), PIECE):
        part = values[start : start + PIECE]
        _lay_blocks(part, blocks)
        encryptor.update_into(blocks[: len(part)].reshape(-1).data.cast("B"), names.data.cast("B"))
        yield start, names[: len(part)]


@njit(cache=True, nogil=True)
def _lay_blocks(values: Int64[Array, " piece"], blocks: UInt64[Array, "rows 2"]) -> None:
    """Values as the first words of blocks."""
    for row in range(len(values)):
        blocks[row, 0] = np.uint64(values[row])


@njit(cache=True, nogil=True)
def _take_firsts(names: UInt64[Array, "rows 2"], words: UInt64[Array, " rows"]) -> None:
    """The first words of names; 0 becomes 1."""
    for row in range(len(words)):
        words[row] = max(names[row, 0], np.uint64(1))


def _encrypt(blocks: UInt64[Array, "rows 2"], key: bytes) -> UInt64[Array, "rows 2"]:
    # distinct blocks under one key: ECB is the block cipher itself, used as a permutation
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305
    return np.frombuffer(encryptor.update(blocks.tobytes()), "<u8").reshape(-1, 2)


@lru_cache(64)  # a cipher costs more than the few rows of a small micro-batch
def secret_words(key: bytes, purpose: bytes) -> tuple[np.uint64, np.uint64]:
    """Two secret words for one use of a key."""
    block = np.frombuffer(purpose.ljust(16, b"\0"), "<u8").reshape(1, 2)
    low, high = struct.unpack("<QQ", _encrypt(block, key).tobytes())
    return np.uint64(low), np.uint64(high)
