"""The exact bytes of a key: an encoding that sorts as SQL does and reads back to typed columns.

Each column writes a tag (0 null, 1 value), then 8 big-endian bytes for integers, times, booleans
and floats (mapped so that bytes sort as values), or the text itself. Text that is not the last
column has its zero bytes escaped and ends in two of them, so no key is a prefix of another.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.compiled import AHEAD, njit, prefetch
from streamveil.dataflow.hashing import (
    as_integers,
    is_text,
    put_word,
    stored,
    text_buffers,
    word_at,
)
from streamveil.types import Array, Int64, UInt8, UInt64

Types = tuple[pa.DataType, ...]
WORD = 8
SIGN = np.uint64(1 << 63)
TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
FEW = 32  # keys that are decoded one by one


def encode_keys(columns: list[pa.Array], rows: int) -> pa.Array:
    """One byte string per row (large_binary); no column at all is the one empty key.

    >>> keys = encode_keys([pa.array([2, -1, None])], 3)
    >>> [k.as_py().hex() for k in keys]
    ['018000000000000002', '017fffffffffffffff', '00']
    """
    if not columns:
        return pa.array([b""] * rows, pa.large_binary())
    if len(columns) == 1:
        return _tagged(columns[0])
    last = len(columns) - 1
    parts = [
        _terminated(_tagged(column)) if is_text(column.type) and place < last else _tagged(column)
        for place, column in enumerate(columns)
    ]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def encode_rows(columns: list[pa.Array], rows: Int64[Array, " some"]) -> pa.Array:
    r"""`encode_keys` of some rows.

    >>> encode_rows([pa.array(["a", "bc", "d"])], np.array([2, 1])).to_pylist()
    [b'\x01d', b'\x01bc']
    """
    if len(columns) == 1 and is_text(columns[0].type) and columns[0].null_count == 0:
        data, offsets = stored(columns[0])
        ends = np.empty(len(rows), np.int64)
        return from_cells(_tag(data, offsets, rows, ends), ends)
    places = pa.array(rows)
    return encode_keys([column.take(places) for column in columns], len(rows))


@njit(cache=True)
def _tag(data: Any, offsets: Any, rows: Any, ends: Any) -> Any:  # pragma: no cover (compiled)
    """The texts at `rows`, each preceded by a 1; sets where each ends."""
    end = 0
    for i in range(len(rows)):
        end += 1 + offsets[rows[i] + 1] - offsets[rows[i]]
        ends[i] = end
    out, at = np.empty(end, np.uint8), 0
    for i in range(len(rows)):
        if i + AHEAD < len(rows):
            prefetch(data, np.int64(offsets[rows[i + AHEAD]]))
        out[at] = 1
        start, size = np.int64(offsets[rows[i]]), ends[i] - at - 1
        for byte in range(0, size - WORD, WORD):
            put_word(out, at + 1 + byte, word_at(data, start + byte))
        if size >= WORD:  # the last eight bytes; some were copied already
            put_word(out, ends[i] - WORD, word_at(data, start + size - WORD))
        else:
            for byte in range(size):
                out[at + 1 + byte] = data[start + byte]
        at = ends[i]
    return out


def decode_keys(keys: pa.Array, types: Types) -> list[pa.Array]:
    """The typed columns of encoded keys."""
    if len(types) == 1:
        return [_untagged(keys, types[0])]
    rows = [k.as_py() for k in keys]
    columns = []
    for place, kind in enumerate(types):
        cells = [_cut(row, kind, last=place == len(types) - 1) for row in rows]
        columns.append(_untagged(pa.array([cell for cell, _ in cells], pa.large_binary()), kind))
        rows = [rest for _, rest in cells]
    return columns


def cells_of(keys: list[pa.Array]) -> tuple[UInt8[Array, " bytes"], Int64[Array, " keys"]]:
    """The concatenated bytes of all keys, and where each ends."""
    if len(keys) == 1:  # without copying
        data, offsets = text_buffers(keys[0])
        return data[offsets[0] : offsets[-1]], offsets[1:] - offsets[0]
    pieces, ends, start = [np.zeros(0, np.uint8)], [np.zeros(0, np.int64)], 0
    for part in keys:
        data, offsets = text_buffers(part)
        pieces.append(data[offsets[0] : offsets[-1]])
        ends.append(offsets[1:] - offsets[0] + start)
        start += len(pieces[-1])
    return np.concatenate(pieces), np.concatenate(ends)


def from_cells(data: UInt8[Array, " bytes"], ends: Int64[Array, " keys"]) -> pa.Array:
    r"""The inverse of `cells_of`, as one array.

    >>> from_cells(*cells_of([encode_keys([pa.array(["a", "bc"])], 2)])).to_pylist()
    [b'\x01a', b'\x01bc']
    """
    return from_offsets(data, np.concatenate([np.zeros(1, np.int64), ends]))


def from_offsets(data: UInt8[Array, " bytes"], offsets: Int64[Array, " keys_plus_1"]) -> pa.Array:
    """Byte strings from concatenated bytes: from each offset to the next."""
    buffers = [None, *(pa.py_buffer(np.ascontiguousarray(part)) for part in (offsets, data))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def sort_keys(keys: pa.Array) -> Int64[Array, " rows"]:
    """The order of keys by their bytes."""
    return np.asarray(pc.sort_indices(keys)).astype(np.int64)


def _tagged(column: pa.Array) -> pa.Array:
    if is_text(column.type):
        tag, between = (pa.scalar(text, pa.large_binary()) for text in (b"\1", b""))
        tagged = pc.binary_join_element_wise(tag, from_offsets(*text_buffers(column)), between)
    else:
        cells = np.empty((len(column), 1 + WORD), np.uint8)
        words = _sortable(as_integers(column), column.type).astype("<u8", copy=False)
        _lay_cells(words.byteswap(), cells.reshape(-1))
        tagged = from_offsets(cells, np.arange(len(cells) + 1, dtype=np.int64) * (1 + WORD))
    if column.null_count:
        tagged = pc.if_else(pc.is_null(column), pa.scalar(b"\0", pa.large_binary()), tagged)
    return tagged


@njit(cache=True)
def _lay_cells(words: Any, cells: Any) -> None:  # pragma: no cover (compiled)
    """Writes words, each preceded by a 1, into cells."""
    for i in range(len(words)):
        cells[(1 + WORD) * i] = 1
        put_word(cells, (1 + WORD) * i + 1, words[i])


def _sortable(values: Int64[Array, " rows"], kind: pa.DataType) -> UInt64[Array, " rows"]:
    words = values.view(np.uint64)
    if pa.types.is_uint64(kind):
        return words
    if pa.types.is_floating(kind):
        return np.where(values < 0, ~words, words | SIGN)
    return cast("Array", words ^ SIGN)


def _unsortable(words: UInt64[Array, " rows"], kind: pa.DataType) -> Int64[Array, " rows"]:
    if pa.types.is_uint64(kind):
        return words.view(np.int64)
    if pa.types.is_floating(kind):
        return np.where(words & SIGN, words & ~SIGN, ~words).view(np.int64)
    return (words ^ SIGN).view(np.int64)


def _terminated(tagged: pa.Array) -> pa.Array:
    cells = [
        cell if cell == b"\0" else cell[:1] + cell[1:].replace(b"\0", b"\0\xff") + b"\0\0"
        for cell in tagged.to_pylist()
    ]
    return pa.array(cells, pa.large_binary())


def _cut(row: bytes, kind: pa.DataType, *, last: bool) -> tuple[bytes, bytes]:
    if row[:1] == b"\0":
        return row[:1], row[1:]
    if last:
        return row, b""
    if not is_text(kind):
        return row[: 1 + WORD], row[1 + WORD :]
    at = 1
    while row[at : at + 2] != b"\0\0":
        at += 2 if row[at] == 0 else 1
    return row[:1] + row[1:at].replace(b"\0\xff", b"\0"), row[at + 2 :]


def _untagged(keys: pa.Array, kind: pa.DataType) -> pa.Array:
    if len(keys) <= FEW and kind in TEXTS:
        return _few_texts(keys.to_pylist(), kind)
    null = pc.equal(keys, pa.scalar(b"\0", pa.large_binary()))
    mask = np.asarray(null)
    if is_text(kind):
        body = _without_tags(keys)
        plain = body.cast(kind) if kind in TEXTS[2:] else _as_text(body).cast(kind)
        return pc.if_else(null, pa.scalar(None, kind), plain) if mask.any() else plain
    data, offsets = text_buffers(keys)
    if len(keys) and not mask.any():  # then all are of one length
        cells = data[offsets[0] : offsets[-1]].reshape(len(keys), 1 + WORD)[:, 1:]
        return _typed(
            _unsortable(cells.copy().view(">u8")[:, 0].astype(np.uint64), kind), mask, kind
        )
    words = np.zeros(len(keys), np.uint64)
    starts = offsets[:-1][~mask]
    places = starts[:, None] + np.arange(1, 1 + WORD)
    words[~mask] = data[places].reshape(-1, WORD).view(">u8").reshape(-1) if len(starts) else 0
    return _typed(_unsortable(words, kind), mask, kind)


def _few_texts(cells: list[bytes], kind: pa.DataType) -> pa.Array:
    r"""The texts of a few cells, without Arrow: a call of it would cost more than they do.

    >>> _few_texts([b"\1one", b"\0"], pa.string()).to_pylist()
    ['one', None]
    """
    texts: list[Any] = [None if cell == b"\0" else cell[1:] for cell in cells]
    if kind not in TEXTS[2:]:
        texts = [None if text is None else text.decode(errors="replace") for text in texts]
    return pa.array(texts, kind)


def _as_text(body: pa.Array) -> pa.Array:
    """Text from its bytes; bytes that are not valid text show replacement characters."""
    try:
        return body.cast(pa.large_string())
    except pa.ArrowInvalid:
        shown = [cell.decode(errors="replace") for cell in body.to_pylist()]
        return pa.array(shown, pa.large_string())


def _without_tags(keys: pa.Array) -> pa.Array:
    data, offsets = text_buffers(keys)
    kept = np.ones(len(data), np.bool_)
    kept[offsets[:-1]] = False
    body = data[offsets[0] : offsets[-1]][kept[offsets[0] : offsets[-1]]]
    return from_offsets(body, offsets - offsets[0] - np.arange(len(offsets)))


def _typed(values: Int64[Array, " rows"], null: Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):
        return pa.array(values.view(np.float64), mask=null).cast(kind)
    if pa.types.is_uint64(kind):
        return pa.array(values.view(np.uint64), mask=null)
    if pa.types.is_boolean(kind):
        return pa.array(values != 0, mask=null)
    if pa.types.is_temporal(kind) and kind.bit_width == 32:
        return pa.array(values.astype(np.int32), mask=null).view(kind)
    column = pa.array(values, mask=null)
    return column.view(kind) if pa.types.is_temporal(kind) else column.cast(kind)
