"""What is the same in one release wherever it is made again, and what may differ in a last digit.

Keys, counts and times are exact, also keys that are real numbers: they are copied. All other real
numbers are computed from them and from public parameters; products of matrices, `exp` and `log`
round as the processor's vector instructions do. A job that goes on on another machine makes its
last releases again with reals that are near the first ones; what was published first stays.
"""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from functools import lru_cache
from math import hypot

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.release_metadata import FACTS
from streamveil.types import Array

NEAR = 1e-9  # relative, of norms: far above rounding
ROUNDING = 1e-12  # relative to the size of a column; seen: 4e-16


def computed(schema: pa.Schema) -> frozenset[int]:
    """Which columns of a release are real numbers, but no keys; by their places."""
    real = [place for place, kind in enumerate(schema.types) if is_real(kind)]
    facts = (schema.metadata or {}).get(FACTS)
    if facts is None or not any(schema.field(place).nullable for place in real):
        return frozenset(real)  # answers of a release with facts are never null
    keys = json.loads(facts).get("keys", ())
    return frozenset(place for place in real if schema.field(place).name not in keys)


def exact_columns(table: pa.Table, real: AbstractSet[int]) -> pa.Table:
    """A release without the facts of its schema, and of real numbers only which ones are null."""
    columns = [
        column.is_null() if place in real else bits(column)
        for place, column in enumerate(table.columns)
    ]
    return pa.Table.from_arrays(columns, names=table.column_names)


def bits(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of real numbers as integers with the same bits, NaN equal to itself; or as it is."""
    if not is_real(column.type):
        return column
    kind = pa.from_numpy_dtype(f"i{column.type.bit_width // 8}")
    return pa.chunked_array([chunk.view(kind) for chunk in column.chunks], kind)


def norm(table: pa.Table) -> float:
    """The square root of the sum of the squares of all real numbers that are finite."""
    return hypot(*(length(numbers(table.column(place))) for place in computed(table.schema)))


def length(values: Array) -> float:
    """The norm of the numbers that are finite."""
    with np.errstate(over="ignore"):
        square = float(np.square(values).sum())
    if np.isfinite(square):
        return float(np.sqrt(square))
    finite = values[np.isfinite(values)]
    scale = float(np.abs(finite).max(initial=0)) or 1.0
    return scale * float(np.sqrt(np.square(finite / scale).sum()))


def is_near(first: float, second: float) -> bool:
    """Whether two norms may be of one release, made on two processors."""
    return bool(np.isclose(first, second, rtol=NEAR, atol=NEAR, equal_nan=True))


def alike(first: pa.Table, second: pa.Table) -> bool:
    """Whether two tables are one release, made on two processors."""
    if first.schema.remove_metadata() != second.schema.remove_metadata():
        return False
    real = computed(second.schema)
    if not exact_columns(first, real).equals(exact_columns(second, real)):
        return False
    return all(
        are_near(numbers(first.column(place)), numbers(second.column(place))) for place in real
    )


def are_near(first: Array, second: Array) -> bool:
    """Whether two columns differ by no more than rounding."""
    finite = np.abs(first[np.isfinite(first)])
    return np.allclose(first, second, 0, ROUNDING * float(finite.max(initial=0)), equal_nan=True)


def numbers(column: pa.ChunkedArray) -> Array:
    """A column of real numbers, nulls as 0."""
    found = pc.fill_null(column, 0.0) if column.null_count else column
    return np.asarray(found.to_numpy(), np.float64)


@lru_cache(64)
def is_real(kind: pa.DataType) -> bool:
    """Whether a column holds real numbers."""
    return bool(pa.types.is_floating(kind))
