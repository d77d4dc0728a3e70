"""Outside systems: where rows come from and where releases go. One file, one line in `kinds`.

A source and a sink are the protocols below.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import Release
from streamveil.calendars import Cells
from streamveil.errors import PlanError, SourceError, StreamveilError, nearest
from streamveil.kinds import SINKS, SOURCES
from streamveil.types import EXACT_DIGITS, ROUNDED, Array, Bool, Int64


@dataclass(frozen=True, repr=False)  # secret: holds raw rows
class Chunk:
    """Rows as they came, and where to go on after them."""

    rows: pa.Table
    position: str  # JSON; reading from here gives what follows, always in the same order
    rejected: dict[str, int] = field(default_factory=dict)  # reason -> rows that were no rows
    rejected_rows: tuple[pa.Table, ...] = ()  # as they came, where a source is traced


@runtime_checkable
class Source(Protocol):
    """Rows in a canonical order that never changes: the position of a row decides its place."""

    @property
    def bounded(self) -> bool:
        """Whether the source ends: after its last row there will never be more."""

    def schema(self) -> pa.Schema:
        """Column names and types, without reading rows where the format allows."""

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """Chunks of at most `max_rows` rows from `position` on, until nothing more is there now."""


def changed() -> SourceError:
    """The error for rows that changed after a part of them was read."""
    return SourceError(
        "the rows of a step that was taken in part are no longer the same: some would be lost or "
        "counted twice.\n  to fix  restore the source as it was when the job started"
    )


def decoded(table: pa.Table) -> pa.Table:
    """The table with dictionaries written out: those of several chunks may differ."""
    for place, one in enumerate(table.schema):
        if pa.types.is_dictionary(one.type):
            plain = table.column(place).cast(one.type.value_type)
            table = table.set_column(place, one.name, plain)
    return table


def hand_on(source: Source, what: str, said: Any) -> None:
    """Calls the named method of a source, if it has one."""
    hear = getattr(source, what, None)
    if hear is not None:
        hear(said)


@runtime_checkable
class Sink(Protocol):
    """A place for releases. Writing the same release again leaves the same content."""

    def write(self, job: str, release: Release) -> None:
        """Publishes one release under its identity (job, window, trigger).

        Only a `Release` is accepted, which no exact table can become.
        """

    def close(self) -> None:
        """Flushes pending releases."""


@contextmanager
def in_words(
    errors: type[Exception] | tuple[type[Exception], ...],
    what: str,
    fix: str,
    why: Callable[[Any], str] = lambda error: type(error).__name__,
) -> Iterator[None]:
    """Replaces a client's error by one of ours: the client's text may hold a row or a password.

    >>> with in_words(OSError, "the source cannot be read", "start again"):
    ...     raise ConnectionResetError("row 7: Ann")
    Traceback (most recent call last):
    ...
    streamveil.errors.SourceError: the source cannot be read: ConnectionResetError.
      to fix  start again
    """
    try:
        yield
    except StreamveilError:
        raise
    except errors as error:
        told = f"{what}: {why(error)}.\n  to fix  {fix}"
        raise SourceError(told) from None


def write_all(sink: Sink, job: str, releases: Sequence[Release]) -> None:
    """Publishes releases in order; all at once where a sink has a `write_together`."""
    together = getattr(sink, "write_together", None)
    if together is not None and len(releases) > 1:
        together(job, releases)
        return
    for release in releases:
        sink.write(job, release)


TYPES: dict[str, pa.DataType] = {
    "INT64": pa.int64(),
    "BIGINT": pa.int64(),
    "INT": pa.int64(),
    "INTEGER": pa.int64(),
    "FLOAT64": pa.float64(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float64(),
    "NUMERIC": pa.float64(),
    "BOOL": pa.bool_(),
    "BOOLEAN": pa.bool_(),
    "STRING": pa.string(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "DATETIME": pa.timestamp("us", tz="UTC"),
}

FAR_US = 1 << 61  # 73,000 years from 1970
TEXTS = pa.string(), pa.large_string(), pa.binary(), pa.large_binary()
MOST_BYTES = 1 << 30  # of the rows of a chunk: a column of text holds twice as much
MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def declared_schema(columns: dict[str, str]) -> pa.Schema:
    """An Arrow schema from column names and SQL type names."""
    for name, word in columns.items():
        if word.upper() not in TYPES:
            raise SourceError(f"column '{name}' has unknown type '{word}'{nearest(word, TYPES)}")
    return pa.schema([(name, TYPES[word.upper()]) for name, word in columns.items()])


def declared_beside(columns: dict[str, str], own: Collection[str]) -> pa.Schema:
    """Declared columns, besides a source's own ones; SourceError if one of those is declared.

    >>> declared_beside({"n": "INT64"}, ["kafka_key"])
    n: int64
    """
    for name in columns:
        if name in own:
            raise SourceError(
                f"the source itself gives every row the column '{name}'.\n"
                "  to fix  leave it out of the declared columns"
            )
    return declared_schema(columns)


def rounded(name: str, exact: str, digits: int | None) -> pa.Field:
    """A column of decimals that is read as reals of 64 bits; of many digits it names no unit."""
    told_apart = digits is not None and digits <= EXACT_DIGITS
    return pa.field(name, pa.float64(), metadata=None if told_apart else {ROUNDED: exact})


def unmarked(schema: pa.Schema) -> pa.Schema:
    """Names and types alone, as rows have them."""
    return pa.schema([(field.name, field.type) for field in schema])


def as_declared(known: pa.Schema, declared: pa.Schema, where: str) -> pa.Schema:
    """Known columns with their declared types; SourceError where a declared column is missing."""
    select(known, declared.names, where)
    names = {*declared.names}
    return pa.schema([declared.field(one.name) if one.name in names else one for one in known])


def settings_in(config: str | None, kind: str, what: str = "settings") -> dict[str, Any]:
    """The content of a file of settings, a JSON object. It appears in no message."""
    try:
        found = {} if config is None else json.loads(Path(config).read_text())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise SourceError(
            f"config='{config}' of '{kind}' cannot be read as a JSON object of {what}.\n"
            "  to fix  give a JSON object, in a file that every process of the job can read"
        )
    return found


def select(schema: pa.Schema, columns: list[str] | None, where: str) -> pa.Schema:
    """The wanted columns of a schema, or SourceError naming the missing one."""
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise SourceError(f"column '{name}' is not in {where}{nearest(name, schema.names)}")
        if schema.names.count(name) > 1:
            raise SourceError(
                f"{where} has {schema.names.count(name)} columns called '{name}'.\n"
                "  to fix  give each a name of its own"
            )
    return pa.schema([schema.field(name) for name in columns])


def slices(table: pa.Table, max_rows: int) -> Iterator[pa.Table]:
    """The rows in order, at most `max_rows` at a time and no more than an array can hold.

    >>> [part.num_rows for part in slices(pa.table({"n": [1, 2, 3]}), 2)]
    [2, 1]
    """
    rows = table.num_rows
    if 0 < rows <= max_rows and rows * table.get_total_buffer_size() <= MOST_BYTES:
        yield table  # it is small, also with its dictionaries written out
        return
    for row in range(0, rows, max_rows):
        part = table.slice(row, max_rows)
        if part.nbytes + coded_bytes(part) > MOST_BYTES and part.num_rows > 1:
            yield from slices(part, part.num_rows // 2)
        else:
            yield part


def coded_bytes(table: pa.Table) -> int:
    """Bytes of dictionary-encoded texts once they are written out for each row.

    >>> coded_bytes(pa.table({"s": pa.array(["abc", None, "abc"]).dictionary_encode()}))
    6
    """
    found = 0
    for column in table.columns:
        if pa.types.is_dictionary(column.type) and column.type.value_type in TEXTS:
            for chunk in column.chunks:
                sizes = pc.binary_length(chunk.dictionary).take(chunk.indices)
                found += pc.sum(sizes.cast(pa.int64())).as_py() or 0
    return found


def micros(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A time column as microseconds since 1970 UTC (int64, nulls kept), rounded down.

    Times beyond `FAR_US` become `FAR_US`, so order is kept and sums of two times fit 64 bits.
    Raises SourceError when the column is no timestamp or date; never because of a value.
    """
    kind = column.type
    if pa.types.is_timestamp(kind):
        values = as_they_lie(column)
        return floored(values, 1_000) if kind.unit == "ns" else times(values, MICROS[kind.unit])
    if pa.types.is_date64(kind):  # milliseconds, which need not be whole days
        return times(as_they_lie(column), MICROS["ms"])
    if pa.types.is_date(kind):
        days = column.cast(pa.int32()).cast(pa.int64())
        return times(days, 86_400_000_000)
    if pa.types.is_int64(kind):
        return times(column, 1)  # microseconds already
    raise SourceError(
        f"column '{name}' must hold timestamps or dates, not {kind}.\n"
        "  to fix  declare its type, or name another column"
    )


def as_they_lie(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The integers that a column of times holds. A cast of few rows would cost four times more."""
    return pa.chunked_array([part.view(pa.int64()) for part in column.chunks], pa.int64())


def times(values: pa.ChunkedArray, factor: int) -> pa.ChunkedArray:
    """`values` * `factor`, no further from 0 than `FAR_US`."""
    most, ends = FAR_US // factor, pc.min_max(values)
    if (ends["max"].as_py() or 0) > most or (ends["min"].as_py() or 0) < -most:
        values = pc.min_element_wise(values, most, skip_nulls=False)
        values = pc.max_element_wise(values, -most, skip_nulls=False)
    return values if factor == 1 else pc.multiply(values, factor)


def floored(values: pa.ChunkedArray, each: int) -> pa.ChunkedArray:
    """Numbers divided by `each`, rounded down."""
    whole = pc.divide(values, each)  # towards 0
    below = pc.less(values, pc.multiply(whole, each))
    return pc.subtract(whole, below.cast(pa.int64()))


def signed(table: pa.Table) -> pa.Table:
    """The table for systems without unsigned 64-bit integers: these become decimals of 20 digits.

    >>> signed(pa.table({"id": pa.array([2**64 - 1], pa.uint64())})).schema.field("id").type
    Decimal128Type(decimal128(20, 0))
    """
    kinds = [
        part.with_type(pa.decimal128(20, 0)) if pa.types.is_uint64(part.type) else part
        for part in table.schema
    ]
    return table.cast(pa.schema(kinds, table.schema.metadata))


OUTSIDE = "arrival outside the schedule"


class Arrivals(NamedTuple):
    """The steps of rows, and the reasons why some have none."""

    step: Int64[Array, " rows"]  # where `inside`
    inside: Bool[Array, " rows"]
    outside: dict[str, Bool[Array, " rows"]]  # reason -> which rows have none

    @property
    def left_out(self) -> dict[str, int]:
        """How many rows have no step, by reason."""
        return {reason: int(rows.sum()) for reason, rows in self.outside.items() if rows.any()}


def arrivals(rows: pa.Table, column: str, span: tuple[int, int], ticks: Cells) -> Arrivals:
    """Steps, the cells of `ticks` from 1 on, from the start of `span` to before its end.

    >>> rows = pa.table({"seen": [5, 10, 29, 30, None]})
    >>> found = arrivals(rows, "seen", (10, 30), Cells(length_us=15, origin_us=10))
    >>> found.step[found.inside].tolist(), found.left_out
    ([1, 2], {'null in seen': 1, 'arrival outside the schedule': 2})
    """
    start, end = span
    time = micros(rows.column(column), column)
    known = np.asarray(pc.is_valid(time))
    us = np.asarray(pc.fill_null(time, start - 1))
    inside = known & (us >= start) & (us < end)
    outside = {f"null in {column}": ~known, OUTSIDE: known & ~inside}
    return Arrivals(ticks.numbers(us) + 1, inside, outside)


class SeveralSinks(Sink):
    """Writes to one sink after the other: each gets every release.

    Exactly once each. Proof: a job sends a release again until its own state says that it was sent,
        which happens only once the last sink has it; and writing the same release again changes no
        sink. So wherever a process, a server or a disk fails, the next life writes to all sinks,
        and those that have the release stay as they are. Each gets it after those before it.
    """

    def __init__(self, sinks: list[Sink]) -> None:
        self.sinks = sinks
        keeper = next((sink for sink in sinks if getattr(sink, "keeps", False)), None)
        self.keeps = keeper is not None  # whether releases can be read back from one
        self.path = getattr(keeper, "path", None)  # where that one is

    def write(self, job: str, release: Release) -> None:
        """See `Sink.write`."""
        for sink in self.sinks:
            sink.write(job, release)

    def write_together(self, job: str, releases: Sequence[Release]) -> None:
        """Publishes releases in their order, to one sink after the other."""
        for sink in self.sinks:
            write_all(sink, job, releases)

    def close(self) -> None:
        """Closes all sinks, even if one fails."""
        with ExitStack() as stack:
            for sink in self.sinks:
                stack.callback(sink.close)


def made_by() -> dict[str, str]:
    """The class of each kind of source."""
    return {name: one.made_by for name, one in SOURCES.items()}


def open_source(kind: str, options: dict[str, Any], *times: str | None) -> Source:
    """The source of a plan; unknown kinds and options fail with the nearest known name.

    `times`: columns that the query reads as times, so that files of text need not declare them.
    """
    source: Source = opened("source", made_by(), kind, options)
    hand_on(source, "read_as_times", [name for name in times if name is not None])
    return source


def open_sink(kind: str, options: dict[str, Any]) -> Sink:
    """The sink of a plan; unknown kinds and options fail with the nearest known name."""
    sink: Sink = opened("sink", SINKS, kind, options)
    return sink


def open_sinks(asked: Sequence[tuple[str, dict[str, Any]]]) -> Sink | None:
    """The sinks of a plan, by kinds and options, as one sink; None if there are none."""
    sinks = [open_sink(kind, options) for kind, options in asked]
    if len(sinks) < 2:
        return next(iter(sinks), None)
    return SeveralSinks(sinks)


def opened(what: str, known: Mapping[str, str], kind: str, options: dict[str, Any]) -> Any:
    """Builds one connector from its registry."""
    made = class_of(what, known, kind)
    require_options(what, kind, made, options)
    try:
        return made(**options)
    except PlanError as error:
        raise SourceError(f"{what} '{kind}': {error}") from None


def absolute(path: str) -> str:
    """A path that stays the same wherever this process works later; an address as it is."""
    return path if "://" in path else str(Path(path).absolute())


def require_connectors(
    sources: Iterable[tuple[str, dict[str, Any]]], sinks: Iterable[tuple[str, dict[str, Any]]]
) -> None:
    """SourceError unless connectors take the options that a query gives, by kind and options.

    No file, server or driver is touched; errors that only a server finds come when a job starts.
    The options in a connector's attribute `is_explained_without` may be missing for now; one that
    `looks_at_options_alone` is made.
    """
    for what, known, asked in (("source", made_by(), sources), ("sink", SINKS, sinks)):
        for kind, options in asked:
            made = class_of(what, known, kind)
            later = getattr(made, "is_explained_without", ())
            require_options(what, kind, made, {**dict.fromkeys(later), **options})
            if getattr(made, "looks_at_options_alone", False):
                opened(what, known, kind, options)


def is_at_hand(kind: str, options: dict[str, Any]) -> bool:
    """Whether a source knows its columns without a server: see its attribute `at_hand`."""
    known = made_by()
    made = class_of("source", known, kind)
    return hasattr(made, "at_hand") and bool(opened("source", known, kind, options).at_hand)


def try_connectors(
    sources: Iterable[tuple[str, dict[str, Any]]], sinks: Iterable[tuple[str, dict[str, Any]]]
) -> None:
    """SourceError unless connectors can be reached; called before a new job begins.

    Reads no row and writes nothing. A connector without a method `try_out` fails when it is first
    used; nothing is lost then.
    """
    for what, known, asked in (("source", made_by(), sources), ("sink", SINKS, sinks)):
        for kind, options in asked:
            if hasattr(class_of(what, known, kind), "try_out"):
                opened(what, known, kind, options).try_out()


def class_of(what: str, known: Mapping[str, str], kind: str) -> Callable[..., Any]:
    """The class of a kind of connector, which is loaded."""
    if kind not in known:
        raise SourceError(f"unknown {what} '{kind}'{nearest(kind, known)}")
    module, name = known[kind].split(".")
    made: Callable[..., Any] = getattr(import_module(f"streamveil.connectors.{module}"), name)
    return made


def require_options(
    what: str, kind: str, made: Callable[..., Any], options: dict[str, Any]
) -> None:
    """SourceError unless a connector takes the options, by name and type."""
    types = {n: t for n, t in made.__init__.__annotations__.items() if n != "return"}  # type: ignore[misc]
    for given, value in options.items():
        if given not in types:
            raise SourceError(f"{what} '{kind}' has no option '{given}'{nearest(given, types)}")
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and any("\0" in str(text) for text in texts):
            raise SourceError(
                f"{what} '{kind}': the option '{given}' holds a NUL character, which no path, table"
                " or address can.\n  to fix  take it out"
            )
        if wanted := mistaken(types[given], value):
            raise SourceError(f"{what} '{kind}': the option '{given}' is {wanted}")
    asked = signature(made).parameters.values()
    missing = [f"'{p.name}'" for p in asked if p.default is p.empty and p.name not in options]
    if missing:
        raise SourceError(
            f"{what} '{kind}' needs {', '.join(missing)}.\n"
            "  to fix  give them among its options, and columns by their names and types"
        )


def mistaken(declared: Any, value: Any) -> str | None:
    """The words for what an option must be, if its value is of another type; None if it is right.

    `declared`: the type in the signature, which may be written as text.

    >>> mistaken("bool", "no"), mistaken("int | None", 3), mistaken(float, 3), mistaken("str", 3)
    ("TRUE or FALSE, without quotes, not 'no'", None, None, 'a text in quotes, not 3')
    >>> mistaken("str | list[str]", [1])
    'a text in quotes or a list of texts, not [1]'
    """
    text = declared if isinstance(declared, str) else getattr(declared, "__name__", "")
    allowed = {one.partition("[")[0] for one in text.split(" | ")}
    own = "None" if value is None else type(value).__name__
    if not {own, *allowed} <= {*WORDS, "None"}:
        return None
    texts = value if own == "list" else value.values() if own == "dict" else ()
    as_float = own == "int" and "float" in allowed
    if (own in allowed or as_float) and all(isinstance(one, str) for one in texts):
        return None
    return f"{' or '.join(WORDS[one] for one in WORDS if one in allowed)}, not {value!r:.22}"


WORDS = {
    "bool": "TRUE or FALSE, without quotes",
    "int": "a whole number",
    "float": "a number",
    "str": "a text in quotes",
    "list": "a list of texts",
    "dict": "names of columns with their types, as {'user': 'STRING'}",
}
