"""Memory by address, for loops over tables that each grow in memory of their own.

A compiled loop cannot take a list of arrays; it takes their addresses. Whoever passes an address
keeps the array alive and as long as the loop assumes.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from streamveil.compiled import cgutils, intrinsic, ir, types
from streamveil.types import Array

LINE = 64  # bytes of a line of the cache
LARGE = 1 << 17  # bytes from which on memory is asked for from the system, with room to grow
HUGE = 2 << 20  # bytes behind which pages are huge: the last may be half used
ROOM = 16  # times the size that is mapped: to touch new pages costs most, those never touched none


def address(array: Array) -> int:
    """The address at which an array begins."""
    return int(array.__array_interface__["data"][0])


def reserved(items: int, kind: type[np.generic]) -> Array:
    """At least so many zeros, from the start of a cache line on; large memory has room to grow.

    >>> len(reserved(3, np.uint64)), len(reserved(1 << 20, np.uint64)) >= 2 << 20
    (3, True)
    """
    each = np.dtype(kind).itemsize
    size = items * each
    if size < LARGE:
        held = np.zeros(items + LINE // each, kind)
        start = -address(held) % LINE // each
        return held[start : start + items]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, -(-ROOM * size // mmap.PAGESIZE) * mmap.PAGESIZE, flags=flags)
    start = 0 if size >= HUGE else HUGE
    if hasattr(mmap, "MADV_HUGEPAGE") and start < len(memory):
        memory.madvise(mmap.MADV_HUGEPAGE, start, len(memory) - start)
    return np.frombuffer(memory, kind)


def lengthen(owner: Any, name: str, items: int, least: int = 0) -> None:
    """Adds zeros to an array of an owner, in place where there is room for them.

    `owner.room`: by name, the longer arrays that its arrays begin. A new one has at least `least`.
    """
    held, room = getattr(owner, name), owner.room
    if name not in room or len(room[name]) < items:
        longer = reserved(max(items, least), held.dtype.type)
        longer[: len(held)] = held
        room[name] = longer
    setattr(owner, name, room[name][:items])


def _word(builder: Any, place: Any, bits: int) -> Any:
    return builder.inttoptr(place, ir.IntType(bits).as_pointer())


@intrinsic
def _load64(context: Any, place: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_word(builder, arguments[0], 64))

    return types.uint64(types.int64), codegen


@intrinsic
def _load32(context: Any, place: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_word(builder, arguments[0], 32))

    return types.uint32(types.int64), codegen


@intrinsic
def _store64(context: Any, place: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _word(builder, arguments[0], 64))
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), codegen


@intrinsic
def _store32(context: Any, place: Any, word: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], _word(builder, arguments[0], 32))
        return context.get_dummy_value()

    return types.void(types.int64, types.uint32), codegen


@intrinsic
def _ask(context: Any, place: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        call = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, call, "llvm.prefetch.p0")
        read, keep, data = word(0), word(3), word(1)
        builder.call(function, [_word(builder, arguments[0], 8), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def _equal(context: Any, place: Any, word: Any) -> Any:
    lanes = ir.VectorType(ir.IntType(64), 4)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        held = builder.load(builder.inttoptr(arguments[0], lanes.as_pointer()), align=8)
        wanted = ir.Constant(lanes, ir.Undefined)
        for lane in range(4):
            wanted = builder.insert_element(wanted, arguments[1], ir.IntType(32)(lane))
        same = builder.bitcast(builder.icmp_unsigned("==", held, wanted), ir.IntType(4))
        return builder.zext(same, ir.IntType(64))

    return types.int64(types.int64, types.uint64), codegen


@intrinsic
def _lowest(context: Any, bits: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.int64(types.int64), codegen


load64: Any = _load64  # called with an address
load32: Any = _load32
store64: Any = _store64  # called with an address and a word
store32: Any = _store32
ask: Any = _ask  # prefetches what lies at an address, whatever the address
equal: Any = _equal  # which of the four words at an address are the given one, a bit for each
lowest: Any = _lowest  # the number of the lowest bit that is set
