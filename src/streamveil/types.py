"""Names for arrays and exact numbers, and conversion of values to Python's own classes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Exact: TypeAlias = int | Fraction  # a privacy number that is never rounded

if TYPE_CHECKING:
    from jaxtyping import Bool, Float32, Float64, Int32, Int64, UInt8, UInt16, UInt32, UInt64
else:  # names for readers and type checkers: jaxtyping is slow to load

    class _Shaped:
        """An array of one kind of number."""

        def __class_getitem__(cls, shape: Any) -> Any:
            return Array

    Bool = Float32 = Float64 = Int32 = Int64 = UInt8 = UInt16 = UInt32 = UInt64 = _Shaped

__all__ = [
    "EXACT_DIGITS", "ROUNDED", "Array", "Bool", "Exact", "Float32", "Float64", "Int32", "Int64",
    "UInt8", "UInt16", "UInt32", "UInt64", "own",
]  # fmt: skip
EXACT_DIGITS = 15  # most digits of decimals that float64 tells apart
ROUNDED = b"streamveil rounded from"  # metadata of a field: the exact type in a database
OWN: tuple[tuple[type, Callable[[Any], Any]], ...] = (  # classes, and what makes them Python's
    (bool, bool), (np.bool_, bool), (int, int.__index__), (np.timedelta64, lambda span: span),
    (np.integer, int),
    (float, float.__float__), (np.floating, float), (str, str.__str__),
)  # fmt: skip


def own(value: Any) -> Any:
    """A number, truth value or text, of NumPy or a subclass, in Python's own classes.

    >>> own(np.int64(3)), own(np.True_), type(own(np.str_("x")))
    (3, True, <class 'str'>)
    """
    return next((make(value) for kind, make in OWN if isinstance(value, kind)), value)
