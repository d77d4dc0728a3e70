"""SipHash-2-4 with 128-bit results (Aumasson and Bernstein 2012), eight messages side by side.

One message is a chain of dependent operations that leaves most of a processor idle; eight
messages of equally many words advance together, one in each lane of a vector register.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # comes with numba, without types
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from streamveil.types import Array, Int64, UInt8, UInt64

LANES = 8
MOST_WORDS = 64  # messages up to so many words are sorted by length; longer ones are rare
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
V0, V1 = np.uint64(0x736F6D6570736575), np.uint64(0x646F72616E646F6D)
V2, V3 = np.uint64(0x6C7967656E657261), np.uint64(0x7465646279746573)
LONG, SECOND = np.uint64(0xEE), np.uint64(0xDD)  # marks of the 128-bit variant


def siphash_many(
    data: UInt8[Array, " bytes"],
    offsets: Int64[Array, " rows_plus_1"],
    k0: np.uint64,
    k1: np.uint64,
    *,
    halves: int = 2,
) -> UInt64[Array, "rows halves"]:
    """The hash of data[offsets[i]:offsets[i + 1]] for every i; `halves`=1: its first 64 bits."""
    out = np.empty((len(offsets) - 1, halves), np.uint64)
    hash_lanes(data, offsets, by_words(offsets), k0, k1, halves, out.reshape(-1))
    return out


@intrinsic
def _word_at(context: Any, array: Any, index: Any) -> Any:
    """Eight bytes of an array from any place on, as a little-endian word."""
    utils: Any = cgutils  # numba is untyped

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, wide = signature.args[0], ir.IntType(64)
        held = context.make_array(kind)(context, builder, arguments[0])
        place = utils.get_item_pointer(
            context, builder, kind, held, [arguments[1]], wraparound=False
        )
        return builder.load(builder.bitcast(place, wide.as_pointer()), align=1, typ=wide)

    return types.uint64(array, types.intp), codegen


word_at: Any = _word_at  # called with an array and an index


@njit(cache=True)
def by_words(offsets: Int64[Array, " rows_plus_1"]) -> Int64[Array, " order"]:
    """Rows in the order of their lengths in words; nothing where that is the order they have."""
    n = len(offsets) - 1
    counts = np.zeros(MOST_WORDS + 2, np.int64)
    for i in range(n):
        counts[min((offsets[i + 1] - offsets[i]) >> 3, MOST_WORDS) + 1] += 1
    if counts.max() == n:
        return np.empty(0, np.int64)
    for i in range(MOST_WORDS):
        counts[i + 1] += counts[i]
    order = np.empty(n, np.int64)
    for i in range(n):
        words = min((offsets[i + 1] - offsets[i]) >> 3, MOST_WORDS)
        order[counts[words]] = i
        counts[words] += 1
    return order


@njit(cache=True)
def _rotate(x: Any, b: int) -> Any:
    return np.uint64((x << np.uint64(b)) | (x >> np.uint64(64 - b)))


@njit(cache=True)
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 = np.uint64(v0 + v1)
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 = np.uint64(v2 + v3)
    v3 = _rotate(v3, 16) ^ v2
    v0 = np.uint64(v0 + v3)
    v3 = _rotate(v3, 21) ^ v0
    v2 = np.uint64(v2 + v1)
    v1 = _rotate(v1, 17) ^ v2
    return v0, v1, _rotate(v2, 32), v3


@njit(cache=True)
def _tail(data: Any, place: int, size: int) -> Any:
    """The last word of a message: what is left of it, and its length."""
    rest = size & 7
    word = np.uint64(size & 0xFF) << np.uint64(56)
    if rest > 0 and place + 8 <= len(data):
        return word | (
            word_at(data, place) & ((np.uint64(1) << np.uint64(8 * rest)) - np.uint64(1))
        )
    for byte in range(rest):
        word |= np.uint64(data[place + byte]) << np.uint64(8 * byte)
    return word


@njit(cache=True)
def hash_lanes(  # noqa: PLR0913, C901 (one loop that keeps all lanes in registers)
    data: UInt8[Array, " bytes"],
    offsets: Int64[Array, " rows_plus_1"],
    order: Int64[Array, " order"],
    k0: np.uint64,
    k1: np.uint64,
    halves: int,
    out: UInt64[Array, " words"],
) -> None:
    """See `siphash_many`. Lanes of shorter messages wait: `active` keeps their state."""
    n = len(offsets) - 1
    v = np.empty(4 * LANES, np.uint64)
    word, active = np.empty(LANES, np.uint64), np.empty(LANES, np.uint64)
    start, size = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    row = np.empty(LANES, np.int64)
    for first in range(0, n, LANES):
        most, least = np.int64(0), np.int64(1) << 60
        for j in range(LANES):
            place = min(first + j, n - 1)  # the last row again where lanes are left over
            row[j] = order[place] if len(order) else place
            start[j], size[j] = offsets[row[j]], offsets[row[j] + 1] - offsets[row[j]]
            most, least = max(most, size[j] >> 3), min(least, size[j] >> 3)
            v[j], v[LANES + j] = V0 ^ k0, V1 ^ k1 ^ LONG
            v[2 * LANES + j], v[3 * LANES + j] = V2 ^ k0, V3 ^ k1
        for w in range(least):
            for j in range(LANES):
                word[j] = word_at(data, start[j] + 8 * w)
            for j in range(LANES):
                m = word[j]
                v0, v1, v2, v3 = v[j], v[LANES + j], v[2 * LANES + j], v[3 * LANES + j] ^ m
                v0, v1, v2, v3 = _round(v0, v1, v2, v3)
                v0, v1, v2, v3 = _round(v0, v1, v2, v3)
                v[j], v[LANES + j], v[2 * LANES + j], v[3 * LANES + j] = v0 ^ m, v1, v2, v3
        for w in range(least, most + 1):
            for j in range(LANES):
                full, place = size[j] >> 3, start[j] + 8 * w
                active[j] = ALL if w <= full else np.uint64(0)
                word[j] = np.uint64(0)
                if w < full:
                    word[j] = word_at(data, place)
                elif w == full:
                    word[j] = _tail(data, place, size[j])
            for j in range(LANES):
                m, go = word[j], active[j]
                a0, a1, a2, a3 = v[j], v[LANES + j], v[2 * LANES + j], v[3 * LANES + j]
                v0, v1, v2, v3 = _round(a0, a1, a2, a3 ^ m)
                v0, v1, v2, v3 = _round(v0, v1, v2, v3)
                v0 ^= m
                v[j], v[LANES + j] = a0 ^ ((a0 ^ v0) & go), a1 ^ ((a1 ^ v1) & go)
                v[2 * LANES + j] = a2 ^ ((a2 ^ v2) & go)
                v[3 * LANES + j] = a3 ^ ((a3 ^ v3) & go)
        for half in range(halves):
            for j in range(LANES):
                v0, v1, v2, v3 = v[j], v[LANES + j], v[2 * LANES + j], v[3 * LANES + j]
                v1 ^= SECOND * np.uint64(half)
                v2 ^= LONG * np.uint64(1 - half)
                v0, v1, v2, v3 = _round(v0, v1, v2, v3)
                v0, v1, v2, v3 = _round(v0, v1, v2, v3)
                v0, v1, v2, v3 = _round(v0, v1, v2, v3)
                v0, v1, v2, v3 = _round(v0, v1, v2, v3)
                v[j], v[LANES + j], v[2 * LANES + j], v[3 * LANES + j] = v0, v1, v2, v3
                word[j] = v0 ^ v1 ^ v2 ^ v3
            for j in range(min(LANES, n - first)):
                out[halves * row[j] + half] = word[j]
