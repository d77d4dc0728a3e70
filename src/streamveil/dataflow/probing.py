"""What all compiled loops over hash tables share: a name's place, and memory asked for early."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]  # comes with numba, without types
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from streamveil.compiled import njit

DONE, GROW_TABLE, GROW_POOL = 0, 1, 2
LOAD = 0.8  # share of slots in use at which a table grows
MOST_PROBES = 512  # names that arrive sorted fill a table from one end: grow where it is crowded
AHEAD = 48  # rows between asking for a slot and reading it
SOON = 16  # rows between asking for what a slot points to and reading it
WORD = np.uint64(32)


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


@njit(cache=True)
def home(name: np.uint64, capacity: np.uint64) -> Any:  # pragma: no cover (compiled)
    """The first slot to try: slots are in the order of names, for any capacity below 2^32."""
    return np.int64(((name >> WORD) * capacity) >> WORD)
