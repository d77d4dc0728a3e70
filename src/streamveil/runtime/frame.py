"""Checksummed frames: one JSON head and plain arrays, the only format durable state is written in.

A frame is `prefix | head | body`, little-endian, every part padded to 8 bytes. The prefix holds

    magic 4s · version u32 · head size u64 · body size u64 · body crc32 u32 · head crc32 u32

where the head's checksum covers the prefix before it too. The head is JSON and lists each array's
name, dtype and shape and each blob's length; the body is their bytes. Nothing is ever unpickled:
a dtype outside `DTYPES` is refused when written and when read.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from streamveil.errors import StoreError
from streamveil.types import Array

Buffer: TypeAlias = bytes | bytearray | memoryview
Head: TypeAlias = dict[str, Any]

MAGIC = b"SVfr"
VERSION = 1
SIZES = struct.Struct("<4sIQQI")  # all of the prefix but the head's checksum
CRC = struct.Struct("<I")
PREFIX_SIZE = SIZES.size + CRC.size
ALIGNMENT = 8
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


@dataclass(frozen=True)
class Sizes:
    """What a prefix says."""

    head: int
    body: int
    body_crc: int

    @property
    def frame(self) -> int:
        """Bytes of the whole frame."""
        return PREFIX_SIZE + self.head + self.body


def encode(head: Head, arrays: dict[str, Array], blobs: Sequence[Buffer] = ()) -> list[memoryview]:
    """The frame as a list of buffers, ready for `os.writev`; arrays are not copied.

    >>> frame = decode(b"".join(encode({"batch": 1}, {"count": np.arange(3)}, [b"abc"])))
    >>> frame.head["batch"], frame.arrays["count"].tolist(), bytes(frame.blobs[0])
    (1, [0, 1, 2], b'abc')
    """
    layout = [[name, storable(name, array), list(array.shape)] for name, array in arrays.items()]
    content = {**head, "arrays": layout, "blobs": [len(blob) for blob in blobs]}
    text = json.dumps(content, separators=(",", ":")).encode()
    text += b" " * padding(len(text))
    body: list[memoryview] = []
    crc = 0
    for part in [flat_bytes(array) for array in arrays.values()] + [memoryview(b) for b in blobs]:
        for piece in (part, memoryview(bytes(padding(len(part))))):
            crc = zlib.crc32(piece, crc)
            body.append(piece)
    sizes = SIZES.pack(MAGIC, VERSION, len(text), sum(map(len, body)), crc)
    prefix = sizes + CRC.pack(zlib.crc32(text, zlib.crc32(sizes)))
    return [memoryview(prefix + text), *body]


def decode(data: Buffer) -> Frame:
    """The frame that some bytes start with."""
    return read(BytesIO(data), len(data))


def read(file: BinaryIO, available: int) -> Frame:
    """The next frame of a file with `available` bytes left; raises `TornFrameError`."""
    head, sizes = read_head(file, available)
    arrays: dict[str, Array] = {}
    crc = 0
    for name, dtype, shape in head.pop("arrays"):
        if dtype not in DTYPES:
            raise StoreError(
                f"the stored array '{name}' has the dtype '{dtype}', which this"
                " version never writes"
            )
        arrays[name] = np.empty(shape, dtype)
        crc = fill(file, flat_bytes(arrays[name]), crc)
    blobs = [memoryview(bytearray(size)) for size in head.pop("blobs")]
    for blob in blobs:
        crc = fill(file, blob, crc)
    if crc != sizes.body_crc:
        raise TornFrameError("a frame does not match its checksum")
    return Frame(head, arrays, blobs, sizes.frame)


def read_head(file: BinaryIO, available: int) -> tuple[Head, Sizes]:
    """Prefix and head of the next frame, checked; the file is left at the body."""
    prefix = file.read(PREFIX_SIZE)
    if len(prefix) < PREFIX_SIZE:
        raise TornFrameError("a frame is cut short")
    magic, version, head_size, body_size, body_crc = SIZES.unpack(prefix[: SIZES.size])
    sizes = Sizes(head_size, body_size, body_crc)
    if magic != MAGIC or sizes.frame > available:
        raise TornFrameError("a frame is cut short or damaged")
    text = file.read(head_size)
    if zlib.crc32(text, zlib.crc32(prefix[: SIZES.size])) != CRC.unpack(prefix[SIZES.size :])[0]:
        raise TornFrameError("a frame does not match its checksum")
    require_version("frame", version, VERSION)
    head: Head = json.loads(text)
    return head, sizes


def fill(file: BinaryIO, target: memoryview, crc: int) -> int:
    """Reads a padded part into `target`; returns the running checksum."""
    if file.readinto(target) != len(target):  # type: ignore[attr-defined]  # typing.BinaryIO lacks it
        raise TornFrameError("a frame is cut short")
    return zlib.crc32(file.read(padding(len(target))), zlib.crc32(target, crc))


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
