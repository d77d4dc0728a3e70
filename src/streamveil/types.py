"""Names for arrays and exact numbers, shared by every layer."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float64, Int32, Int64, UInt8, UInt16, UInt32, UInt64

Array: TypeAlias = np.ndarray[Any, Any]
Exact: TypeAlias = int | Fraction  # a privacy number that is never rounded

__all__ = [
    "Array",
    "Bool",
    "Exact",
    "Float64",
    "Int32",
    "Int64",
    "UInt8",
    "UInt16",
    "UInt32",
    "UInt64",
]
