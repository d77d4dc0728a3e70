"""Keyed identities: 128-bit names of keys, fingerprints of privacy units, under a secret.

Integers (and what is stored as one: dates, timestamps, booleans) are enciphered as one AES-256
block each, so two different integers can never share a 128-bit name. Strings and byte strings go
through SipHash-2-4 with a 128-bit result (Aumasson and Bernstein 2012, the authors' 128-bit
variant). Several columns are chained: the concatenated names of the columns are hashed again.

Why 128 bits are enough: under a secret key nobody can aim at a collision, and among n different
keys the chance of any is at most n**2 / 2**129 (n = 2**40: 2**-49, and a collision would only give
two keys the same noise and the same row). A privacy unit keeps only the first 64 bits; the chance
of a collision of those is charged (`GroupBy.loss`, `SketchQuery.guarantee`).

SipHash runs on sixteen messages side by side.

One message is a chain of dependent operations that leaves most of a processor idle; sixteen
messages of equally many words advance together, one in each lane of a vector. The words of up to
`BLOCK` messages are first laid out lane by lane, so that the rounds themselves only load vectors.
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

from streamveil.compiled import cgutils, intrinsic, ir, njit, types
from streamveil.types import Array, Int32, Int64, UInt8, UInt64

LANES = 16  # two AVX-512 registers or four of AVX2: rounds of one hide the latency of another
BLOCK = 64  # messages laid out at a time
LAID_OUT = 16  # words of each message laid out at a time
MOST_WORDS = 64  # messages of at most so many words are sorted by length; longer ones are rare
V0, V1 = 0x736F6D6570736575, 0x646F72616E646F6D
V2, V3 = 0x6C7967656E657261, 0x7465646279746573
LONG, SECOND = 0xEE, 0xDD  # marks of the 128-bit variant
WORD = np.uint64(8)
Offsets = Int32[Array, " rows_plus_1"] | Int64[Array, " rows_plus_1"]


def siphash_many(
    data: UInt8[Array, " bytes"],
    offsets: Offsets,
    k0: np.uint64,
    k1: np.uint64,
    *,
    halves: int = 2,
    into: UInt64[Array, " words"] | None = None,
) -> UInt64[Array, "rows halves"]:
    """The hash of data[offsets[i]:offsets[i + 1]] for every i; `halves`=1: its first 64 bits."""
    n = len(offsets) - 1
    out = np.empty(n * halves, np.uint64) if into is None else into
    hash_lanes(data, offsets, by_words(offsets), k0, k1, halves, out)
    return out.reshape(n, halves)


@intrinsic
def _word_at(context: Any, array: Any, index: Any) -> Any:
    """Eight bytes of an array from an index on, as a little-endian word."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(64)
        place = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.load(builder.bitcast(place, wide.as_pointer()), align=1, typ=wide)

    return types.uint64(array, types.intp), codegen


word_at: Any = _word_at  # called with an array and an index


@intrinsic
def _put_word(context: Any, array: Any, index: Any, word: Any) -> Any:
    """Writes eight bytes of an array from an index on: the inverse of `word_at`."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(64)
        place = _pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store(arguments[2], builder.bitcast(place, wide.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.uint64), codegen


put_word: Any = _put_word  # called with an array, an index and a word


@intrinsic
def _begin(context: Any, state: Any, k0: Any, k1: Any) -> Any:
    """Sets the states of `LANES` messages: `state` holds four vectors."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        for at, (word, key) in enumerate(zip((V0, V1 ^ LONG, V2, V3), (1, 2, 1, 2), strict=True)):
            start = builder.xor(arguments[key], ir.Constant(ir.IntType(64), word))
            _store(context, builder, signature, arguments, at, _in_all_lanes(builder, start))
        return context.get_dummy_value()

    return types.void(state, types.uint64, types.uint64), codegen


begin: Any = _begin


@intrinsic
def _absorb(context: Any, state: Any, words: Any, first: Any, count: Any) -> Any:
    """Absorbs `count` words of `LANES` messages, which stand in `words` from column `first` on."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held = [
            cgutils.alloca_once_value(builder, _load(context, builder, signature, arguments, at))
            for at in range(4)
        ]
        laid, first, count = arguments[1:]
        with cgutils.for_range(builder, count) as loop:
            row = builder.mul(loop.index, ir.Constant(first.type, BLOCK))
            place = _pointer(context, builder, signature.args[1], laid, builder.add(row, first))
            word = builder.load(
                builder.bitcast(place, _lanes().as_pointer()), align=8, typ=_lanes()
            )
            v0, v1, v2, v3 = (builder.load(cell) for cell in held)
            v0, v1, v2, v3 = _rounds(builder, (v0, v1, v2, builder.xor(v3, word)), 2)
            for cell, value in zip(held, (builder.xor(v0, word), v1, v2, v3), strict=True):
                builder.store(value, cell)
        for at, cell in enumerate(held):
            _store(context, builder, signature, arguments, at, builder.load(cell))
        return context.get_dummy_value()

    return types.void(state, words, types.intp, types.intp), codegen


absorb: Any = _absorb


@intrinsic
def _finish(context: Any, state: Any, mark1: Any, mark2: Any) -> Any:
    """Marks v1 and v2 and does four more rounds; the hash is stored behind the states."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        v = [_load(context, builder, signature, arguments, at) for at in range(4)]
        for at in (1, 2):
            v[at] = builder.xor(v[at], _in_all_lanes(builder, arguments[at]))
        v = list(_rounds(builder, tuple(v), 4))
        mixed = builder.xor(builder.xor(v[0], v[1]), builder.xor(v[2], v[3]))
        for at, value in enumerate((*v, mixed)):
            _store(context, builder, signature, arguments, at, value)
        return context.get_dummy_value()

    return types.void(state, types.uint64, types.uint64), codegen


finish: Any = _finish  # leaves the hashes behind the states


def _lanes() -> Any:
    """The type of a vector with one word of each message."""
    return ir.VectorType(ir.IntType(64), LANES)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    held = context.make_array(kind)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, kind, held, [index], wraparound=False)


def _vector(context: Any, builder: Any, signature: Any, arguments: Any, at: int) -> Any:
    index = ir.Constant(ir.IntType(64), at * LANES)
    place = _pointer(context, builder, signature.args[0], arguments[0], index)
    return builder.bitcast(place, _lanes().as_pointer())


def _load(context: Any, builder: Any, signature: Any, arguments: Any, at: int) -> Any:
    place = _vector(context, builder, signature, arguments, at)
    return builder.load(place, align=8, typ=_lanes())


def _store(context: Any, builder: Any, signature: Any, arguments: Any, at: int, value: Any) -> None:
    builder.store(value, _vector(context, builder, signature, arguments, at), align=8)


def _in_all_lanes(builder: Any, word: Any) -> Any:
    place, lanes = ir.IntType(32), ir.VectorType(ir.IntType(32), LANES)
    one = builder.insert_element(ir.Constant(_lanes(), ir.Undefined), word, place(0))
    return builder.shuffle_vector(
        one, ir.Constant(_lanes(), ir.Undefined), ir.Constant(lanes, None)
    )


def _rotate(builder: Any, x: Any, by: int) -> Any:
    left, right = (ir.Constant(_lanes(), [shift] * LANES) for shift in (by, 64 - by))
    return builder.or_(builder.shl(x, left), builder.lshr(x, right))


def _rounds(builder: Any, v: tuple[Any, ...], times: int) -> tuple[Any, ...]:
    v0, v1, v2, v3 = v
    for _ in range(times):
        v0 = builder.add(v0, v1)
        v1 = builder.xor(_rotate(builder, v1, 13), v0)
        v0 = _rotate(builder, v0, 32)
        v2 = builder.add(v2, v3)
        v3 = builder.xor(_rotate(builder, v3, 16), v2)
        v0 = builder.add(v0, v3)
        v3 = builder.xor(_rotate(builder, v3, 21), v0)
        v2 = builder.add(v2, v1)
        v1 = builder.xor(_rotate(builder, v1, 17), v2)
        v2 = _rotate(builder, v2, 32)
    return v0, v1, v2, v3


@njit(cache=True)
def by_words(offsets: Offsets) -> Int64[Array, " order"]:
    """Rows in the order of their lengths in words; empty if they are in that order already."""
    n = len(offsets) - 1
    low = high = (offsets[1] - offsets[0]) >> 3 if n else 0
    for i in range(n):
        words = (offsets[i + 1] - offsets[i]) >> 3
        low, high = min(low, words), max(high, words)
    if low == high:
        return np.empty(0, np.int64)
    counts = np.zeros(MOST_WORDS + 2, np.int64)
    for i in range(n):
        counts[min((offsets[i + 1] - offsets[i]) >> 3, MOST_WORDS) + 1] += 1
    for i in range(MOST_WORDS):
        counts[i + 1] += counts[i]
    order = np.empty(n, np.int64)
    for i in range(n):
        words = min((offsets[i + 1] - offsets[i]) >> 3, MOST_WORDS)
        order[counts[words]] = i
        counts[words] += 1
    return order


@njit(cache=True)
def _tail(data: Any, start: Any, size: Any) -> Any:  # pragma: no cover (compiled)
    """The last word of a message: its remaining bytes and its length."""
    word = np.uint64(size & 0xFF) << np.uint64(56)
    rest = np.uint64(size & 7)
    if size >= 8:  # the last eight bytes, without those that have been taken
        last = word_at(data, start + size - 8)
        return word | ((last >> (np.uint64(56) - WORD * rest)) >> WORD)
    for byte in range(size):
        word |= np.uint64(data[start + byte]) << np.uint64(8 * byte)
    return word


@njit(cache=True)
def _lay(data: Any, start: Any, rows: int, span: Any, words: Any) -> None:
    """Lays out words span[0]:span[1] of messages from `start` on, one message in each column."""
    for w in range(span[0], span[1]):
        line = words[BLOCK * (w - span[0]) : BLOCK * (w - span[0]) + rows]
        for column in range(rows):
            line[column] = word_at(data, start[column] + 8 * w)


@njit(cache=True)
def hash_lanes(  # noqa: PLR0913, C901 (one loop over runs; calls would copy its arrays)
    data: UInt8[Array, " bytes"],
    offsets: Offsets,
    order: Int64[Array, " order"],
    k0: np.uint64,
    k1: np.uint64,
    halves: int,
    out: UInt64[Array, " words"],
) -> None:
    """See `siphash_many`. A run is up to `BLOCK` neighbours, in order, of equally many words."""
    n = len(offsets) - 1
    words, states = np.zeros(LAID_OUT * BLOCK, np.uint64), np.empty(5 * BLOCK, np.uint64)
    start, size = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.int64)
    first = 0
    while first < n:
        rows = 0
        while rows < min(BLOCK, n - first):
            row = order[first + rows] if len(order) else first + rows
            start[rows] = offsets[row]
            size[rows] = offsets[row + 1] - offsets[row]
            if size[rows] >> 3 != size[0] >> 3:
                break
            rows += 1
        full = size[0] >> 3
        for lane in range(0, rows, LANES):
            begin(states[5 * lane :], k0, k1)
        for w in range(0, full + 1, LAID_OUT):
            span = (w, min(w + LAID_OUT, full))
            _lay(data, start, rows, span, words)
            if w + LAID_OUT > full:
                for column in range(rows):
                    words[BLOCK * (full - w) + column] = _tail(data, start[column], size[column])
            for lane in range(0, rows, LANES):
                absorb(states[5 * lane :], words, lane, min(LAID_OUT, full + 1 - w))
        for half in range(halves):
            mark = np.uint64(LONG) * np.uint64(1 - half)
            for lane in range(0, rows, LANES):
                finish(states[5 * lane :], np.uint64(SECOND) * np.uint64(half), mark)
            for column in range(rows):
                row = order[first + column] if len(order) else first + column
                lane = column % LANES
                out[halves * row + half] = states[5 * (column - lane) + 4 * LANES + lane]
        first += rows


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

    The names of text are written `into` an array of two words a row, if given.
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
    """The first 64 bits of names, 1 for 0; into the array `into` unless a text is null."""
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
        with np.errstate(invalid="ignore"):  # a signalling NaN is no error here
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
    """As `text_buffers`, with offsets as they are stored: 32 or 64 bits wide.

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
    """The names of a few values at a time, in memory that is reused and so stays in the cache."""
    encryptor = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()  # noqa: S305 (see _encrypt)
    rows = min(len(values), PIECE)
    blocks, names = np.empty((rows, 2), "<u8"), np.empty((rows + 1, 2), "<u8")
    blocks[:, 1] = place
    for start in range(0, len(values), PIECE):
        part = values[start : start + PIECE]
        _lay_blocks(part, blocks)
        encryptor.update_into(blocks[: len(part)].reshape(-1).data.cast("B"), names.data.cast("B"))
        yield start, names[: len(part)]


@njit(cache=True)
def _lay_blocks(values: Int64[Array, " piece"], blocks: UInt64[Array, "rows 2"]) -> None:
    """Values as the first words of blocks."""
    for row in range(len(values)):
        blocks[row, 0] = np.uint64(values[row])


@njit(cache=True)
def _take_firsts(names: UInt64[Array, "rows 2"], words: UInt64[Array, " rows"]) -> None:
    """The first words of names; 0 becomes 1."""
    for row in range(len(words)):
        words[row] = max(names[row, 0], np.uint64(1))


def _encrypt(blocks: UInt64[Array, "rows 2"], key: bytes) -> UInt64[Array, "rows 2"]:
    # distinct blocks under one key: ECB is the block cipher itself, used as a permutation
    encryptor = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()  # noqa: S305
    return np.frombuffer(encryptor.update(blocks.tobytes()), "<u8").reshape(-1, 2)


@lru_cache(64)  # a cipher costs more than the few rows of a small micro-batch
def secret_words(key: bytes, purpose: bytes) -> tuple[np.uint64, np.uint64]:
    """Two secret words for one use of a key."""
    block = np.frombuffer(purpose.ljust(16, b"\0"), "<u8").reshape(1, 2)
    low, high = struct.unpack("<QQ", _encrypt(block, key).tobytes())
    return np.uint64(low), np.uint64(high)
