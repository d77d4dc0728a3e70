"""Checksummed frames: one JSON head and plain arrays. Logs and checkpoints are written in them.

(The head of a state directory is a note, `runtime.formats`; a ledger is a journal of JSON lines.)

A frame is `prefix | head | body`, little-endian, every part padded to 8 bytes. The prefix holds

    magic 4s · version u32 · head size u64 · body size u64 · body crc32 u32 · head crc32 u32

where the head's checksum covers the prefix before it too. The head is JSON and lists each array's
name, dtype, shape and stored dtype and each blob's length; the body is their bytes. Integers are
stored in the fewest bytes that hold them all, and a constant array as one item: a log of deltas
shrinks to a third for one pass over memory. Nothing is ever unpickled: a dtype outside `DTYPES` is
refused when written and when read.

Frames that follow each other form a chain: a head names the hash of all frames before its own
(`BEFORE`), so that none can be changed, dropped, repeated, reordered or come from another job
unseen. The last hash must be known from elsewhere, and a file may end in a torn frame: bytes that
were being written when a process died. Bytes that fail their check and are followed by a whole
frame are damage (`heads`).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from streamveil.disk import KEPT_BYTES, LARGE_BYTES, crc32, room, to_block
from streamveil.errors import StoreError
from streamveil.types import Array, UInt8

Buffer: TypeAlias = bytes | bytearray | memoryview
Head: TypeAlias = dict[str, Any]

MAGIC = b"SVfr"
VERSION = 1
SIZES = struct.Struct("<4sIQQI")  # all of the prefix but the head's checksum
CRC = struct.Struct("<I")
PREFIX_SIZE = SIZES.size + CRC.size
ALIGNMENT = 8
HASH_BYTES = 16
BEFORE = "before"  # in a head: the hash of the frames before it
SAMPLE = 64  # items tried before all of them
MAPPED_BYTES = 1 << 20  # arrays below this are read, not mapped
PIECE_BYTES = 1 << 18  # copied at once: less than a cache
GATHERED_BYTES = KEPT_BYTES // 4  # a larger body is not copied to be written
DTYPES = frozenset(
    ["|b1", "|i1", "|u1"]
    + [f"<{kind}{size}" for kind in "iu" for size in (2, 4, 8)]
    + ["<f4", "<f8"]
)


class TornFrameError(StoreError):
    """Bytes that are not one whole frame: cut short, or changed since they were written."""


@dataclass(frozen=True, repr=False)  # secret: holds private state
class Frame:
    """One frame as read. Every array has memory of its own."""

    head: Head
    arrays: dict[str, Array]
    blobs: list[memoryview]
    size: int  # bytes of the whole frame
    prefix: bytes


@dataclass(frozen=True)
class Sizes:
    """The numbers in a prefix."""

    head: int
    body: int
    body_crc: int
    prefix: bytes

    @property
    def frame(self) -> int:
        """Bytes of the whole frame."""
        return PREFIX_SIZE + self.head + self.body


def encode(
    head: Head, arrays: dict[str, Array], blobs: Sequence[Buffer] = (), *, start: int = 0
) -> list[memoryview]:
    """The frame as a list of buffers, ready for `write_all`; arrays are not copied.

    A large frame, which begins at `start` in its file, ends at the end of a block, so that the next
    frame may be written past the page cache; its head is padded with blanks.

    >>> from io import BytesIO
    >>> stored = b"".join(encode({"batch": 1}, {"count": np.arange(3)}, [b"abc"]))
    >>> frame = read(BytesIO(stored), len(stored))
    >>> frame.head["batch"], frame.arrays["count"].tolist(), bytes(frame.blobs[0])
    (1, [0, 1, 2], b'abc')
    """
    return seal(*laid_out(head, arrays, blobs), start=start)


def laid_out(
    head: Head, arrays: dict[str, Array], blobs: Sequence[Buffer] = ()
) -> tuple[Head, list[memoryview]]:
    """The full head, with the layout of arrays and blobs, and the body."""
    layout, parts = pack(arrays)
    content = {**head, "arrays": layout, "blobs": [len(blob) for blob in blobs]}
    return content, list(padded(parts + [memoryview(blob) for blob in blobs]))


def pack(arrays: dict[str, Array]) -> tuple[list[Any], list[memoryview]]:
    """The entries of arrays in a head, and the stored bytes of each; copied where narrowed."""
    stored = {name: narrow(array) for name, array in arrays.items()}
    layout = [
        [name, storable(name, array), list(array.shape), stored[name].dtype.str, stored[name].size]
        for name, array in arrays.items()
    ]
    return layout, [flat_bytes(array) for array in stored.values()]


def padded(parts: Sequence[memoryview]) -> Iterator[memoryview]:
    """Every part, and the zeros that follow it in a body."""
    for part in parts:
        yield part
        yield memoryview(bytes(padding(len(part))))


def seal(
    content: Head,
    body: list[memoryview],
    crc: int | None = None,
    *,
    start: int = 0,
    large: int = LARGE_BYTES,
) -> list[memoryview]:
    """A frame of a head and a body; from `large` bytes on it ends with a block of its file."""
    size = sum(map(len, body))
    text = to_text(content, size, start, large)
    if crc is None:
        crc = 0
        for piece in body:
            crc = crc32(piece, crc)
    return [memoryview(opening(text, size, crc)), *body]


@contextmanager
def gathered(
    content: Head, body: list[memoryview], *, start: int = 0
) -> Iterator[list[memoryview]]:
    """As `seal`; a large frame is put together in memory that is kept, to be written at once."""
    size = sum(map(len, body))
    if not LARGE_BYTES <= size <= GATHERED_BYTES:
        yield seal(content, body, start=start)
        return
    text = to_text(content, size, start, LARGE_BYTES)
    first = PREFIX_SIZE + len(text)
    with room(first + size) as own:
        _, crc = put(body, np.frombuffer(own, np.uint8)[first:])
        own[:first] = opening(text, size, crc)
        yield [own[: first + size]]


def put(body: Iterable[memoryview], into: UInt8[Array, " bytes"]) -> tuple[int, int]:
    """Copies a body; its size and checksum. Every piece is summed while it is in the cache."""
    at, crc = 0, 0
    for part in body:
        for first in range(0, len(part), PIECE_BYTES):
            piece = np.frombuffer(part[first : first + PIECE_BYTES], np.uint8)
            copy = into[at : at + len(piece)]
            copy[:] = piece
            crc = crc32(copy, crc)
            at += len(piece)
    return at, crc


def to_text(content: Head, size: int, start: int, large: int) -> bytes:
    """A head as it is stored, with blanks up to where a body of this size begins."""
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * padding(len(text))
    return text if size < large else text + b" " * to_block(start + PREFIX_SIZE + len(text) + size)


def opening(text: bytes, size: int, crc: int) -> bytes:
    """Prefix and head of a frame whose body has this size and checksum."""
    sizes = SIZES.pack(MAGIC, VERSION, len(text), size, crc)
    return sizes + CRC.pack(crc32(text, crc32(sizes))) + text


def read(file: BinaryIO, available: int, *, mapped: bool = False) -> Frame:
    """The next frame of a file with `available` bytes left; raises `TornFrameError`.

    With `mapped`, large arrays are private maps of the file, which must then never be cut.
    """
    head, sizes = read_head(file, available)
    arrays: dict[str, Array] = {}
    crc = 0
    for name, dtype, shape, kept, size in head.pop("arrays"):
        if not {dtype, kept} <= DTYPES:
            raise StoreError(
                f"the stored array '{name}' has a dtype that this version never writes"
            )
        if mapped and size * np.dtype(kept).itemsize >= MAPPED_BYTES:
            part = map_next(file, kept, size)
            crc = skim(file, part, crc)
        else:
            part = np.empty(size, kept)
            crc = fill(file, flat_bytes(part), crc)
        arrays[name] = widen(part, dtype, shape)
    blobs = [memoryview(bytearray(size)) for size in head.pop("blobs")]
    for blob in blobs:
        crc = fill(file, blob, crc)
    if crc != sizes.body_crc:
        raise TornFrameError("a frame does not match its checksum")
    return Frame(head, arrays, blobs, sizes.frame, sizes.prefix)


def read_head(file: BinaryIO, available: int) -> tuple[Head, Sizes]:
    """Prefix and head of the next frame, checked; the file is left at the body."""
    prefix = file.read(PREFIX_SIZE)
    if len(prefix) < PREFIX_SIZE:
        raise TornFrameError("a frame is cut short")
    magic, version, head_size, body_size, body_crc = SIZES.unpack(prefix[: SIZES.size])
    sizes = Sizes(head_size, body_size, body_crc, prefix)
    if magic != MAGIC or sizes.frame > available:
        raise TornFrameError("a frame is cut short or damaged")
    text = file.read(head_size)
    if crc32(text, crc32(prefix[: SIZES.size])) != CRC.unpack(prefix[SIZES.size :])[0]:
        raise TornFrameError("a frame does not match its checksum")
    require_version("frame", version, VERSION)
    head: Head = json.loads(text)
    return head, sizes


def heads(file: BinaryIO) -> Iterator[tuple[int, Head, Sizes]]:
    """Where each frame starts, its head and its sizes, up to a torn tail. Bodies are not read.

    Raises `TornFrameError` where a whole frame follows bytes that fail their check.
    """
    size, offset = os.fstat(file.fileno()).st_size, 0
    while offset < size:
        file.seek(offset)
        try:
            head, sizes = read_head(file, size - offset)
        except TornFrameError:
            require_torn(file, offset)
            return
        yield offset, head, sizes
        offset += sizes.frame


def require_torn(file: BinaryIO, offset: int) -> None:
    """Raises `TornFrameError` if a checked head lies beyond an offset: no process died there."""
    file.seek(offset + 1)
    rest = file.read()
    found = rest.find(MAGIC)
    while found >= 0:
        with suppress(TornFrameError):
            read_head(BytesIO(rest[found:]), len(rest) - found)
            break
        found = rest.find(MAGIC, found + 1)
    else:
        return
    raise TornFrameError("a frame is damaged, and whole ones follow it")


def chain(before: str, prefix: Buffer) -> str:
    """The hash of all frames up to the one with this prefix; `before`: the hash before that frame.

    A prefix holds the checksums of its head and body, and the head holds `before`.
    """
    whole = bytes.fromhex(before) + bytes(prefix[:PREFIX_SIZE])
    return hashlib.blake2b(whole, digest_size=HASH_BYTES).hexdigest()


def first_hash(epoch: str) -> str:
    """The hash before the first frame of a job."""
    return hashlib.blake2b(epoch.encode(), digest_size=HASH_BYTES).hexdigest()


def fill(file: BinaryIO, target: memoryview, crc: int) -> int:
    """Reads a padded part into `target`; returns the running checksum."""
    if file.readinto(target) != len(target):  # type: ignore[attr-defined]  # typing.BinaryIO lacks it
        raise TornFrameError("a frame is cut short")
    return crc32(file.read(padding(len(target))), crc32(target, crc))


def narrow(array: Array) -> Array:
    """The same integers in fewer bytes, or one item when all are equal; see `widen`.

    >>> narrow(np.array([3, 250])).dtype.str, narrow(np.full(9, 7)), narrow(np.array([-1, 9])).dtype
    ('|u1', array([7]), dtype('int8'))
    """
    if array.dtype.kind not in "iu" or array.size < 2 or isinstance(array, np.memmap):
        return array  # a map of a file is passed on without a copy in memory
    flat = array.reshape(-1)
    if flat.size > SAMPLE:
        sample = flat[:: 1 + flat.size // SAMPLE]
        if smallest(sample).itemsize == array.dtype.itemsize and (sample != sample[0]).any():
            return array  # cheap refusal, for fingerprints and the like
    fits = smallest(flat)
    if flat[0] == flat[-1] and (flat == flat[0]).all():
        return flat[:1]
    return array.astype(fits) if fits.itemsize < array.dtype.itemsize else array


def smallest(array: Array) -> np.dtype[Any]:
    """The smallest integer dtype that holds every item."""
    low, high = int(array.min()), int(array.max())
    return np.min_scalar_type(high if low >= 0 else min(low, -1 - high))


def widen(stored: Array, dtype: str, shape: list[int]) -> Array:
    """The array as it was before `narrow`."""
    if stored.size == 1:
        return np.full(shape, stored[0], dtype)
    return stored.astype(dtype, copy=False).reshape(shape)


def map_next(file: BinaryIO, dtype: str, size: int) -> Array:
    """An array at the file's place, left on disk until it is touched; writing to it is private."""
    start = file.tell()
    array = np.memmap(file, dtype, "c", start, (size,))
    file.seek(start + array.nbytes)
    return array


def skim(file: BinaryIO, array: Array, crc: int) -> int:
    """The running checksum over a mapped part and its padding, piece by piece."""
    data = flat_bytes(array)
    for start in range(0, len(data), MAPPED_BYTES):
        crc = crc32(data[start : start + MAPPED_BYTES], crc)
    return crc32(file.read(padding(len(data))), crc)


def storable(name: str, array: Array) -> str:
    """The dtype as written in a head; raises for one that is never stored."""
    if array.dtype.str not in DTYPES:
        raise StoreError(
            f"the array '{name}' has the dtype '{array.dtype}', which is never stored"
            "; use fixed-size little-endian numbers"
        )
    return str(array.dtype.str)


def flat_bytes(array: Array) -> memoryview:
    """The bytes of an array in C order, without a copy where it is already contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def require_version(what: str, found: object, known: int) -> None:
    """Refuses a format this code does not know, newer or older."""
    if found != known:
        raise StoreError(
            f"the {what} has format version {found}; this streamveil reads version {known}.\n"
            "  to fix  use the streamveil version that wrote it, or start a new state directory"
        )


def padding(size: int) -> int:
    """Bytes up to the next multiple of `ALIGNMENT`."""
    return -size % ALIGNMENT
