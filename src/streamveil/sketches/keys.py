"""What a sketch may count: integers, text and byte strings, as NumPy, Arrow or Python iterables.

Every key becomes one 64-bit word by a public rule, the same for every container. Integers below
2^32 keep their value, so the hash families are provably universal on them; other words are mixed,
which is treated as ideal. Text is taken as its UTF-8 bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from streamveil.compiled import njit
from streamveil.core.noise.bulk.lanes import load_word
from streamveil.dataflow.hashing import text_buffers
from streamveil.dataflow.keys import from_cells
from streamveil.errors import PlanError, require_between, whole
from streamveil.types import Array, Int32, Int64, UInt8, UInt32, UInt64

Keys: TypeAlias = "Array | pa.Array | pa.ChunkedArray | Iterable[int] | Iterable[str | bytes]"
Words: TypeAlias = "UInt32[Array, ' keys'] | UInt64[Array, ' keys']"
SMALL = 2**32
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
WHOLE_WORDS = sys.byteorder == "little"  # bytes are joined lowest first, everywhere
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
WRONG = "keys must be integers, text or bytes"
NULLS = "keys hold nulls; drop them first"


def key_words(keys: Keys) -> Words:
    """One word per key; 32-bit unsigned input stays 32-bit, and both forms hash alike.

    >>> key_words([7, 8]).tolist(), key_words(np.array([7, 8], np.int16)).tolist()
    ([7, 8], [7, 8])
    >>> bool((key_words(["a", "b"]) == key_words(pa.array([b"a", b"b"]))).all())
    True
    """
    if isinstance(keys, np.ndarray):
        return _from_numpy(keys)
    if isinstance(keys, pa.ChunkedArray):
        if keys.num_chunks == 1:
            return _from_arrow(keys.chunk(0))
        return _from_arrow(keys.combine_chunks())
    if isinstance(keys, pa.Array):
        return _from_arrow(keys)
    return _from_python(keys)


def integer_words(keys: Keys, bits: int) -> UInt32[Array, " keys"] | UInt64[Array, " keys"]:
    """Integers of at most `bits` bits, not mixed: for sketches that are searched.

    >>> integer_words([5], 32).tolist()
    [5]
    """
    words = np.asarray(keys) if not isinstance(keys, np.ndarray) else keys
    if words.size == 0:
        return np.zeros(0, np.uint32)
    if words.ndim != 1 or words.dtype.kind not in "iu":
        raise PlanError(f"a searchable sketch counts integers of {bits} bits; see text_words")
    if (words.dtype.kind == "i" and words.min() < 0) or int(words.max()) >> bits:
        raise PlanError(f"every key must be from 0 to 2^{bits} - 1")
    kind = np.uint32 if words.dtype.itemsize <= 4 else np.uint64
    return np.ascontiguousarray(words, kind)


def text_words(keys: Keys, length: int = 8) -> UInt64[Array, " keys"]:
    """The first `length` (at most 8) bytes of texts as integers that sort like the texts.

    No character is divided: a text ends before one that does not fit. Bytes are cut anywhere.

    Args:
        keys: texts or bytes, in a list, a NumPy array or an Arrow array.
        length: bytes that count, 1 to 8.

    Raises:
        PlanError: the keys are not texts, one is missing, or the length is out of its range.

    >>> [hex(word) for word in text_words(["ab", "ac"], 2).tolist()]
    ['0x6162', '0x6163']
    """
    require_between(1, 8, length=whole("length", length))
    column = text_column(keys)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = cut_texts(column, length)
    data, offsets = _buffers(column)
    return prefixes(data, offsets, length)


def words_text(words: UInt64[Array, " keys"], length: int = 8) -> list[str]:
    """The inverse of `text_words` up to the length; undecodable bytes are replaced.

    Args:
        words: what `text_words` gave.
        length: the length that was given there.

    >>> words_text(text_words(["ab", "c"]))
    ['ab', 'c']
    """
    return [row.decode(errors="replace") for row in words_bytes(words, length)]


def words_bytes(words: UInt64[Array, " keys"], length: int) -> list[bytes]:
    """The bytes of words from `text_words`, without the zeros that pad them."""
    raw = np.asarray(words, np.uint64).astype(">u8").tobytes()
    return [raw[at - length : at].rstrip(b"\0") for at in range(8, len(raw) + 1, 8)]


def cut_texts(keys: pa.Array, length: int) -> pa.Array:
    """Texts as binary cells of at most `length` bytes; no character of UTF-8 is divided.

    >>> cut_texts(pa.array(["grün", "grünes"]), 3).to_pylist()
    [b'gr', b'gr']
    """
    data, offsets = text_buffers(keys)
    starts, ends = offsets[:-1], np.minimum(offsets[1:], offsets[:-1] + length)
    for _ in range(3):  # a character has at most three further bytes
        over = np.flatnonzero(ends < offsets[1:])
        inside = over[data[ends[over]] & 0xC0 == 0x80]
        ends[inside] -= 1
    ends = np.maximum(ends, starts)
    sizes = ends - starts
    places = np.cumsum(sizes)
    index = np.repeat(starts - (places - sizes), sizes) + np.arange(int(sizes.sum()))
    return from_cells(data[index], places)


def is_utf8(text: bytes) -> bool:
    """Whether bytes are text."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def weight_words(weights: Any, count: int, largest: int) -> Int32[Array, " keys"]:
    """Validated weights: integers from 0 to `largest`; an empty array stands for all ones."""
    if weights is None:
        return np.zeros(0, np.int32)
    array = np.asarray(weights)
    if array.shape != (count,):
        raise PlanError("weights must be one number per key")
    if array.dtype.kind not in "iub":
        raise PlanError("weights must be integers")
    if count and (int(array.min()) < 0 or int(array.max()) > largest):
        raise PlanError(f"every weight must be from 0 to max_weight = {largest}")
    return array.astype(np.int32)


def _from_numpy(keys: Array) -> Words:
    if keys.ndim != 1:
        raise PlanError(f"keys must be one-dimensional, not {keys.ndim}-dimensional")
    kind = keys.dtype
    if kind.kind == "u" and kind.itemsize <= 4:
        return np.ascontiguousarray(keys, np.uint32)
    if kind.kind in "iu":
        words = np.ascontiguousarray(keys, np.int64 if kind.kind == "i" else np.uint64)
        return mix_large(words.view(np.uint64))
    if kind.kind in "USO":
        return _from_python(keys.tolist())
    if keys.size == 0:
        return np.zeros(0, np.uint32)
    raise PlanError(f"{WRONG}, not {kind}")


def _from_arrow(keys: pa.Array) -> Words:
    if keys.null_count:
        raise PlanError(NULLS)
    kind = keys.type
    if pa.types.is_dictionary(kind):
        words = key_words(keys.dictionary).astype(np.uint64)
        return np.asarray(words[np.asarray(keys.indices)])
    if pa.types.is_integer(kind):
        return _from_numpy(np.asarray(keys))
    if pa.types.is_null(kind):
        return np.zeros(0, np.uint32)
    try:
        data, offsets = _buffers(keys)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError):
        raise PlanError(f"{WRONG}, not {kind}") from None
    return hash_text(data, offsets)


def text_column(keys: Keys) -> pa.Array:
    """Keys that are texts or bytes as one Arrow array; any other Arrow array unchanged."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    if not isinstance(keys, pa.Array):
        items = _listed(keys)
        kinds = {kind if issubclass(kind, bytes) else str for kind in map(type, items)}
        if not all(isinstance(item, str | bytes) for item in items):
            raise PlanError("keys must be texts or bytes, and none missing")
        return _encoded(items, kinds)
    if keys.null_count:
        raise PlanError(NULLS)
    return keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys


def _listed(keys: Any) -> list[Any]:
    """Keys as a list; refuses a single text, and anything that is not iterable."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise PlanError(f"give an iterable of keys; {WRONG}")
    return keys.tolist() if isinstance(keys, np.ndarray) else list(keys)


def _buffers(keys: pa.Array) -> tuple[UInt8[Array, " bytes"], Int64[Array, " keys_plus_1"]]:
    kind = keys.type
    if pa.types.is_dictionary(kind):
        keys = keys.dictionary_decode()
        kind = keys.type
    if not (
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind)
    ):  # fmt: skip
        raise PlanError(f"{WRONG}, not {kind}")
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        keys = keys.cast(pa.large_string())
    keys = keys.cast(pa.large_binary())
    _, offsets, data = keys.buffers()
    places = np.frombuffer(offsets, np.int64, len(keys) + 1, keys.offset * 8)
    empty = data is None or data.size == 0
    return np.zeros(1, np.uint8) if empty else np.frombuffer(data, np.uint8), places


def _from_python(keys: Any) -> Words:
    items = _listed(keys)
    kinds = set(map(type, items))
    if kinds <= {int} or all(issubclass(kind, int | np.integer) for kind in kinds):
        if bool in kinds:
            raise PlanError(f"{WRONG}, not bool")
        try:
            return mix_large(np.array(items, np.int64).view(np.uint64))
        except OverflowError:
            pass
        try:
            return mix_large(np.array(items, np.uint64))
        except OverflowError:
            raise PlanError("integer keys must fit 64 bits") from None
    if kinds <= {str, bytes}:
        return _from_arrow(_encoded(items, kinds))
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise PlanError(f"{WRONG}, all of one kind; not {names}")


def _encoded(items: list[Any], kinds: set[type]) -> pa.Array:
    """Texts and byte strings as one Arrow column."""
    try:
        if len(kinds) == 1:
            return pa.array(items, pa.large_string() if str in kinds else pa.large_binary())
        items = [item.encode() if isinstance(item, str) else item for item in items]
    except (UnicodeError, pa.ArrowException):
        raise PlanError("text keys must be valid Unicode") from None
    return pa.array(items, pa.large_binary())


@njit(inline="always")
def _mix(x: np.uint64) -> np.uint64:
    """A public permutation of 64-bit words (the finaliser of SplitMix64, Steele et al. 2014)."""
    x ^= x >> np.uint64(30)
    x *= _M1
    x ^= x >> np.uint64(27)
    x *= _M2
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def mix_large(words: UInt64[Array, " keys"]) -> UInt64[Array, " keys"]:
    """Words below 2^32 unchanged, others mixed."""
    out = np.empty(len(words), np.uint64)
    for i in range(len(words)):
        x = words[i]
        out[i] = x if x < np.uint64(SMALL) else _mix(x)
    return out


@njit(cache=True)
def hash_text(
    data: UInt8[Array, " bytes"], offsets: Int64[Array, " keys_plus_1"]
) -> UInt64[Array, " keys"]:
    """A public 64-bit hash of byte strings: mixed words of eight bytes, then the length."""
    out = np.empty(len(offsets) - 1, np.uint64)
    base = data.ctypes.data
    for i in range(len(out)):
        at, end = offsets[i], offsets[i + 1]
        h = GOLDEN + np.uint64(end - at)
        while at < end:
            left, word = end - at, np.uint64(0)
            if WHOLE_WORDS and at + 8 <= len(data):
                word = load_word(base + at)  # type: ignore[call-arg]  # an intrinsic
                if left < 8:
                    word &= (np.uint64(1) << np.uint64(8 * left)) - np.uint64(1)
            else:
                for j in range(min(8, left)):
                    word |= np.uint64(data[at + j]) << np.uint64(8 * j)
            h = _mix(h ^ word) + GOLDEN
            at += 8
        h = _mix(h)
        out[i] = h if h >= np.uint64(SMALL) else h | (np.uint64(1) << np.uint64(63))
    return out


@njit(cache=True)
def prefixes(
    data: UInt8[Array, " bytes"], offsets: Int64[Array, " keys_plus_1"], length: int
) -> UInt64[Array, " keys"]:
    """The first bytes of each string, most significant first, padded with zeros."""
    out = np.empty(len(offsets) - 1, np.uint64)
    for i in range(len(out)):
        word = np.uint64(0)
        for j in range(length):
            at = offsets[i] + j
            byte = np.uint64(data[at]) if at < offsets[i + 1] else np.uint64(0)
            word = (word << np.uint64(8)) | byte
        out[i] = word
    return out
