"""Tables of other packages as Arrow tables, in the types that queries read.

What a frame calls a category, a view or an extension is a way to keep values. Here they become the
values: what follows knows dictionaries of plain values, and nothing else of the kind.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.errors import SourceError

STREAM = "__arrow_c_stream__"  # what pandas, Polars, DuckDB and others export a table by


def as_table(data: Any) -> pa.Table:
    """An Arrow table from a dict of columns, or whatever exports an Arrow table or batch.

    A stream that can be read once is read here, once.
    """
    if isinstance(data, dict):
        try:
            return plain(pa.table(data))
        except (pa.ArrowException, TypeError, ValueError, AttributeError):  # may show a value
            raise SourceError(
                "this dict cannot be read as a table.\n"
                "  to fix  give lists of one length, of one type: {'user': [1, 2], 'ms': [3, 4]}"
            ) from None
    if hasattr(data, STREAM):
        return plain(pa.table(data))
    if hasattr(data, "__arrow_c_array__"):
        return plain(pa.Table.from_batches([pa.record_batch(data)]))
    lazy = hasattr(data, "collect")
    raise SourceError(
        f"cannot read a {type(data).__name__} as an Arrow table.\n"
        f"  to fix  {'collect it first: .collect()' if lazy else 'give a frame, table or dict'}"
    )


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns with plain types."""
    return pa.schema([field.with_type(plain_type(field.type)) for field in schema])


def plain(table: pa.Table) -> pa.Table:
    """The same values in columns of plain types."""
    for place, field in enumerate(table.schema):
        kind = plain_type(field.type)
        if kind != field.type:
            column = pa.chunked_array([plain_array(c) for c in table.column(place).chunks], kind)
            table = table.set_column(place, field.with_type(kind), column)
    return table


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type that the values have.

    >>> plain_type(pa.dictionary(pa.uint32(), pa.string_view())), plain_type(pa.uuid())
    (DictionaryType(dictionary<values=large_string, indices=uint32, ordered=0>), \
FixedSizeBinaryType(fixed_size_binary[16]))
    """
    if pa.types.is_dictionary(kind):
        value = plain_type(kind.value_type)
        if pa.types.is_dictionary(value):
            return value
        return pa.dictionary(kind.index_type, value, kind.ordered)
    if pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    return pa.large_binary() if pa.types.is_binary_view(kind) else kind


def plain_array(array: pa.Array) -> pa.Array:
    """One piece of a column of plain type."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        values = plain_array(array.dictionary)
        if pa.types.is_dictionary(values.type):
            return values.take(array.indices)
        return pa.DictionaryArray.from_arrays(array.indices, values, ordered=kind.ordered)
    if pa.types.is_run_end_encoded(kind):
        return plain_array(pc.run_end_decode(array))
    if isinstance(kind, pa.BaseExtensionType):
        return plain_array(array.storage)
    return array.cast(plain_type(kind))
