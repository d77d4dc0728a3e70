"""Memory asked for early, for compiled loops over tables that are larger than the cache."""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # comes with numba, without types
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

AHEAD = 48  # rows between asking for a slot and reading it


@intrinsic
def _prefetch(context: Any, array: Any, index: Any) -> Any:
    """Asks the processor for `array[index]`, whatever the index; returns nothing at once.

    A table of all units is far larger than the cache: without it every row waits for memory.
    """
    utils: Any = cgutils  # numba is untyped

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        held = context.make_array(kind)(context, builder, arguments[0])
        place = utils.get_item_pointer(
            context, builder, kind, held, [arguments[1]], wraparound=False
        )
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        call = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = utils.get_or_insert_function(builder.module, call, "llvm.prefetch.p0")
        read, keep, data = word(0), word(3), word(1)
        builder.call(function, [builder.bitcast(place, byte), read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


prefetch: Any = _prefetch  # called with an array and an index
