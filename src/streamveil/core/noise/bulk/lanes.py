"""Machine operations that plain compiled loops lack.

Most keep 32-bit integers at their width, so that sixteen of them fit a vector register; plain
compiled arithmetic widens them to 64 bits before a shift or a product.
"""

from __future__ import annotations

from typing import Any

from streamveil.compiled import intrinsic, ir, types


@intrinsic
def shift_left(context: Any, word: Any, places: Any) -> Any:
    """A word shifted left by fewer places than it has; `places` is of the same type."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.shl(*args)

    return word(word, word), codegen


@intrinsic
def upper_product(context: Any, first: Any, second: Any) -> Any:
    """The product of two signed 32-bit integers over 2^32, rounded down."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        wide = [builder.sext(arg, ir.IntType(64)) for arg in args]
        half = builder.ashr(builder.mul(*wide), ir.IntType(64)(32))
        return builder.trunc(half, ir.IntType(32))

    return types.int32(types.int32, types.int32), codegen


@intrinsic
def load_word(context: Any, address: Any) -> Any:
    """The eight bytes at an address as one word, in the machine's order."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(pointer, align=1)

    return types.uint64(types.intp), codegen
