"""Names for arrays and exact numbers, and numbers that are the same on every processor.

Additions, products, quotients and square roots have the same bits everywhere; `exp`, `log`, powers
and products of matrices do not: they use the vector instructions that there are, and differ in the
last digits. Whatever is computed with them and decides what a job publishes is kept with fewer
digits than differ, so that a job may go on on another machine.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
Exact: TypeAlias = int | Fraction  # a privacy number that is never rounded

if TYPE_CHECKING:
    from jaxtyping import (
        Bool,
        Float32,
        Float64,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
    )
else:  # names for readers and type checkers: jaxtyping is slow to load

    class _Shaped:
        """An array of one kind of number."""

        def __class_getitem__(cls, shape: Any) -> Any:
            return Array

    Bool = Float32 = Float64 = Int32 = Int64 = UInt8 = UInt16 = UInt32 = UInt64 = _Shaped

__all__ = [
    "Array",
    "Bool",
    "Exact",
    "Float32",
    "Float64",
    "Int32",
    "Int64",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
]


BITS = 24  # of last digits that differ by one in 2^50, one number in 2^26 is rounded otherwise


def portable(values: Array | float, bits: int = BITS) -> Array:
    """The nearest numbers of so many significant binary digits.

    >>> float(portable(0.1, 8)), float(portable(3.0))
    (0.10009765625, 3.0)
    """
    parts, powers = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(parts, bits)), powers - bits))
