"""Micro-batches of sources and releases of jobs: Arrow tables with their place in the stream.

Tables of other packages become Arrow tables in the types that queries read.

Categories, views and extensions of a frame are ways to store values. Here they become the values:
later code knows dictionaries of plain values, and no other coding.

A release that is made again is the same up to last digits.

Keys, counts and times are exact, also keys that are real numbers: they are copied. All other real
numbers are computed from them and from public parameters; products of matrices, `exp` and `log`
round as the processor's vector instructions do. A job that goes on on another machine makes its
last releases again, with reals near the first ones; the first publication stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from math import hypot, isfinite, sqrt
from operator import getitem
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.core.noisy import Noisy, post_process, require_noisy, values
from streamveil.display import AnswerTable
from streamveil.errors import SourceError, got
from streamveil.release_metadata import FACTS, read_time, sentences
from streamveil.types import Array


@dataclass(repr=False)  # secret
class RejectNotes:
    """The rejected rows of a micro-batch, by reason; noted only on request.

    Cut rows are never noted: others' rows may have a part in that.

    >>> reject_notes = RejectNotes()
    >>> reject_notes.keep(np.array([True, False, True]))
    >>> reject_notes.add("late", np.array([1]))
    >>> reject_notes.found
    [('late', array([2]))]
    """

    found: list[tuple[str, Any]] = field(default_factory=list)  # reason, numbers in the micro-batch
    _at_hand: Any = None  # the remaining rows, as numbers in the micro-batch; None: all

    def add(self, reason: str, rows: Any) -> None:
        """Notes some remaining rows, by a mask or by ordered numbers, which may repeat."""
        rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        if len(rows):
            rows = rows[np.append(True, rows[1:] != rows[:-1])]
            self.found.append((reason, rows if self._at_hand is None else self._at_hand[rows]))

    def keep(self, mask: Any) -> None:
        """Keeps some of the remaining rows."""
        self._at_hand = np.flatnonzero(mask) if self._at_hand is None else self._at_hand[mask]


@dataclass(repr=False)  # secret: holds raw rows
class RowBlock:
    """The rows of several successive micro-batches, for functions of each row alone."""

    rows: pa.Table
    made: Any = None  # the results, made on the first request


@dataclass(frozen=True, repr=False)  # secret: holds raw rows
class Batch:
    """One micro-batch: rows of a single step, in canonical source order.

    The range decides the batch: reading `position` again gives the same rows in the same order,
    whoever reads it. `closes_step` marks the last micro-batch of a step; releases happen then.
    A step without records is one empty batch that closes it.
    """

    rows: pa.Table
    step: int  # public step number this batch belongs to, from 1
    closes_step: bool
    position: str  # JSON, opaque to all but the source: where to resume after this batch
    rejected: dict[str, int] = field(default_factory=dict)  # reason -> rows; operator-only
    rejected_rows: Iterable[pa.Table] = ()  # the rejected rows as they came, if requested
    reject_notes: RejectNotes | None = None  # where an operator notes further rejected rows
    block: RowBlock | None = None  # that its rows are a part of
    start: int = 0  # of its rows in the block
    prepared: Any = None  # its rows after the row stage, if that ran ahead; secret
    due: int = 0  # steps that had ended by the public clock when it was read; 0: no such clock

    def __repr__(self) -> str:
        return f"Batch(step={self.step}, closes_step={self.closes_step})"


@dataclass(frozen=True, repr=False)
class Release(AnswerTable):
    """Everything published at one trigger of one window. Rows are sorted by key bytes.

    It is made only of noisy numbers: see `streamveil.core.noisy`.

    `table` columns: the key columns, then for each aggregate NAME its value, NAME_sd (noise
    standard deviation), NAME_low and NAME_high (interval), then window_start, window_end
    (timestamps in UTC, absent for the whole stream), trigger (1..T within the window). A group-by
    adds `opened` (the first trigger that showed the key), `noise_weight` where keys have weights,
    and public facts in the schema's metadata: `streamveil.answers` combines releases by them.

    Raises:
        MissingExtraError: a picture is asked for, and matplotlib is not installed.
        PlanError: a column or a key that it does not have is asked for.

    >>> import streamveil as sv
    >>> query = (sv.memory({"user": [1, 2, 3] * 40}).protect("user").agg(n=sv.count())
    ...          .bound(max_rows=40).release(budget=sv.Budget(epsilon=9, delta=1e-9)))
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     release = next(query.run(state=f"{folder}/n.veil"))
    >>> release.trigger, release.to_arrow().column_names[:4]
    (1, ['n', 'n_sd', 'n_low', 'n_high'])
    """

    noisy: Noisy[pa.Table]
    window: int  # window number, 0 for the whole stream
    trigger: int  # within the window, from 1
    step: int  # of the job

    def __post_init__(self) -> None:
        require_noisy(self.noisy)

    @property
    def table(self) -> pa.Table:  # type: ignore[override]  # read only
        """The released rows."""
        return values(self.noisy)

    @property
    def identity(self) -> tuple[int, int, pa.Table]:
        """Window, trigger and rows: what a sink writes."""
        return self.window, self.trigger, self.table

    @property
    def place(self) -> str:
        """Its place in words: its window, by its time, and its trigger."""
        time = read_time(self.table.schema)
        window = str(self.window) if time is None else time.name
        whole = "window_start" not in self.table.column_names and not self.window
        return f"release {self.trigger}" if whole else f"window {window}, release {self.trigger}"

    @property
    def notes(self) -> list[str]:  # type: ignore[override]  # read only
        """Notes about the numbers: the share of cut rows, settings that a look chose."""
        return sentences(self.table)


@dataclass(frozen=True)
class ReleaseColumns:
    """The rows of some releases with the same columns, one release after the other."""

    fields: list[pa.Field]
    keys: list[tuple[pa.Array, ...]]  # the first columns, of each release
    others: list[pa.Array]  # of all releases: plain numbers and times, or nulls alone
    rows: list[int]  # of each release
    said: list[dict[bytes, bytes]]  # the metadata of each release

    def tables(self) -> list[pa.Table]:
        """Each release by itself, without copying numbers."""
        schema = pa.schema(self.fields)
        spans = zip(*(spans_of(column, self.rows) for column in self.others), strict=True)
        return [
            pa.Table.from_arrays([*keys, *own], schema=schema.with_metadata(said))
            for keys, own, said in zip(self.keys, spans, self.said, strict=True)
        ]


def spans_of(column: pa.Array, rows: Sequence[int]) -> list[pa.Array]:
    """A column in parts of the given numbers of rows, without a copy.

    No part holds a byte of its neighbours: `slice` may give these away.

    >>> [part.buffers()[1].size for part in spans_of(pa.array([1, 2, 3]), [1, 2])]
    [8, 16]
    """
    kind = column.type
    if column.null_count:  # in every row
        return [pa.nulls(n, kind) for n in rows]
    cells, width, made = column.buffers()[1], kind.bit_width // 8, list[pa.Array]()
    place = column.offset * width
    for n in rows:
        made.append(pa.Array.from_buffers(kind, n, [None, cells.slice(place, n * width)]))
        place += n * width
    return made


@dataclass(frozen=True)
class ReleaseRun:
    """Releases that were made together."""

    noisy: Noisy[ReleaseColumns]
    places: tuple[tuple[int, int, int], ...]  # window, trigger and step of each

    def releases(self, noisy: Noisy[list[pa.Table]] | None = None) -> list[Release]:
        """Each release by itself, with these tables or with its own."""
        tables = post_process(ReleaseColumns.tables, self.noisy) if noisy is None else noisy
        return [
            Release(post_process(getitem, tables, turn), *place)
            for turn, place in enumerate(self.places)
        ]


def require_release(release: Release) -> Release:
    """The argument of a sink, if it is a release; raises TypeError otherwise."""
    if not isinstance(release, Release):
        raise TypeError(
            f"a sink publishes releases, not {type(release).__name__}.\n"
            "  to fix  write what a job has released: sink.write(job, release)"
        )
    return release


def whole(column: pa.ChunkedArray) -> Any:
    """A column in one piece, if one array can hold it."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


class Moment(NamedTuple):
    """The name of a release: trigger 1, 2, ... of a window."""

    window: int
    trigger: int


STREAM = "__arrow_c_stream__"  # pandas, Polars, DuckDB and others export tables by this method
FORM = "memory({'user': [1, 2], 'ms': [120, 80]})"


def as_table(data: Any) -> pa.Table:
    """An Arrow table from a dict of columns, a list of dicts, or an object that exports one.

    A stream that can be read once is read here, once.

    >>> as_table([{"user": 1}, {"user": 2, "ms": 3}]).to_pydict()
    {'user': [1, 2], 'ms': [None, 3]}
    """
    if isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
        names = dict.fromkeys(name for row in data for name in row)
        data = {name: [row.get(name) for row in data] for name in names}
    if isinstance(data, dict) or hasattr(data, STREAM):
        require_own_values(data)
    if isinstance(data, dict):
        with without_values(
            data, "give lists of one length, of one type: {'user': [1], 'ms': [3]}"
        ):
            return plain(with_fields(pa.table(data)))
    if hasattr(data, STREAM) or hasattr(data, "__arrow_c_array__"):
        way = "give each column one type: frame.astype({'page': 'string'}) of pandas"
        with without_values(data, way):
            if hasattr(data, STREAM):
                return plain(with_fields(pa.table(data)))
            return plain(with_fields(pa.Table.from_batches([pa.record_batch(data)])))
    lazy = hasattr(data, "collect")
    raise SourceError(
        f"rows in memory must be a frame, an Arrow table, a dict of columns or a list of dicts, not"
        f" {got(data)}.\n  to fix  {'collect it first: .collect()' if lazy else FORM}"
    )


NO_TABLE = pa.ArrowException, ArithmeticError, AttributeError, OSError, TypeError, ValueError


@contextmanager
def without_values(data: Any, way: str) -> Iterator[None]:
    """Replaces Arrow's errors, which quote values, by one without values; `way`: the way out."""
    try:
        yield
    except NO_TABLE:
        what = f"this {type(data).__name__} cannot be read as a table"
        names = [*(data if isinstance(data, dict) else getattr(data, "columns", ()))]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            what, way = f"{what}: two columns are called '{twice}'", "rename one of them"
        elif odd := next(unreadable(data, names), None):
            what += f": its column '{odd}' has values of several types, or of none that is known"
        raise SourceError(f"{what}.\n  to fix  {way}") from None


def unreadable(data: Any, names: list[Any]) -> Iterator[Any]:
    """The names of columns that Arrow cannot read even alone."""
    for name in names:
        try:
            pa.table({name: data[name]} if isinstance(data, dict) else data[[name]])
        except NO_TABLE:
            yield name


def require_own_values(data: Any) -> None:
    """Refuses columns whose values Arrow would read as others.

    Objects in a frame of Polars come as addresses in memory: a person named by equal objects would
    count as several, and a group would show an address. The largest whole numbers of DuckDB come as
    negative ones.
    """
    if type(data).__name__ == "DuckDBPyRelation":
        for name, kind in zip(data.columns, data.types, strict=True):
            if kind.id == "uhugeint":
                raise SourceError(
                    f"column '{name}' has the type UHUGEINT, whose largest values would be read as"
                    " negative ones.\n  to fix  CAST it AS DOUBLE, or AS VARCHAR, in the relation"
                )
    known = getattr(data, "schema", None)
    if isinstance(data, dict):
        known = {name: getattr(column, "dtype", None) for name, column in data.items()}
    for name, kind in known.items() if isinstance(known, Mapping) else ():
        if str(kind) == "Object":
            raise SourceError(
                f"column '{name}' has the type Object of Polars, whose values are no data.\n"
                "  to fix  give it another type: a column of UUIDs as text, for instance"
            )


def with_fields(table: pa.Table) -> pa.Table:
    """The fields of structures as columns of their own: `user.id` is the field `id` of `user`.

    A field of a structure that is null is null.

    >>> rows = pa.table({"user": [{"id": 7}, None], "at": [1, 2]})
    >>> with_fields(rows).to_pydict()
    {'user.id': [7, None], 'at': [1, 2]}
    """
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns with plain types."""
    return pa.schema([field.with_type(plain_type(field.type)) for field in schema])


def plain(table: pa.Table) -> pa.Table:
    """A table with its columns in plain types."""
    for place, column in enumerate(table.schema):
        if getattr(column.type, "extension_name", "") == "pandas.period":  # Arrow sees numbers
            raise SourceError(
                f"column '{column.name}' has periods, which would be read as numbers.\n"
                "  to fix  frame[name].dt.to_timestamp(), or .astype(str)"
            )
        if pa.types.is_union(column.type):
            raise SourceError(
                f"column '{column.name}' has values of several types (a union).\n"
                "  to fix  leave it out, or store it as text or as numbers"
            )
        kind = plain_type(column.type)
        if kind != column.type:
            parts = [plain_array(c) for c in table.column(place).chunks]
            table = table.set_column(place, column.with_type(kind), pa.chunked_array(parts, kind))
    return table


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The plain type of values, without their coding.

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


NEAR = 1e-9  # relative, of norms: far above rounding
ROUNDING = 1e-12  # relative to the size of a column; seen: 4e-16


def computed(schema: pa.Schema) -> frozenset[int]:
    """The places of columns of a release that are real numbers, but not keys."""
    real = [place for place, kind in enumerate(schema.types) if is_real(kind)]
    facts = (schema.metadata or {}).get(FACTS)
    if facts is None or not any(schema.field(place).nullable for place in real):
        return frozenset(real)  # answers of a release with facts are never null
    keys = json.loads(facts).get("keys", ())
    return frozenset(place for place in real if schema.field(place).name not in keys)


def exact_columns(table: pa.Table, real: AbstractSet[int]) -> pa.Table:
    """A release without the facts of its schema; of real numbers it keeps only which are null."""
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
    return norm_of([numbers(table.column(place)) for place in computed(table.schema)])


@np.errstate(over="ignore")
def norm_of(columns: Iterable[Array]) -> float:
    """The `norm` of columns of real numbers."""
    return hypot(*map(length, columns))


def length(values: Array) -> float:
    """The norm of the numbers that are finite."""
    square = float(np.square(values).sum())
    if isfinite(square):
        return sqrt(square)
    finite = values[np.isfinite(values)]
    scale = float(np.abs(finite).max(initial=0)) or 1.0
    return scale * float(np.sqrt(np.square(finite / scale).sum()))


def is_near(first: float, second: float) -> bool:
    """Whether two norms may come from one release, made on two processors."""
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
