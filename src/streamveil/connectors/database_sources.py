"""A table or a query of SQLite, DuckDB or PostgreSQL as a source: its present rows, once.

Rows are sorted by a hash of their values as text and of a number among equal rows, so every reading
gives the same order. Sorted by the values themselves, a bound on the rows of a unit would leave out
the last groups and the largest values first. A position is a number of rows and a digest of them. A
restart reads these rows again and raises an error if they have changed, as rows would be lost or
counted twice. Later rows are read as they are then.

An added or deleted row moves others, so steps may be those of time, not of rows (`plan.check`).

Types come from the database or from declared columns, never from values. A value that does not fit
is null and counted. A reading is one transaction, which writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache, cached_property
from tempfile import TemporaryDirectory
from typing import Any, ClassVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import sqlglot
from sqlglot import exp

from streamveil.connectors import (
    Chunk,
    absolute,
    as_declared,
    declared_schema,
    rounded,
    select,
    slices,
    unmarked,
)
from streamveil.connectors.databases import Database, plain_kind, require_file
from streamveil.connectors.postgres_server import WAIT, PostgresServer, copied
from streamveil.connectors.rejected_rows import (
    MISFIT,
    TIME,
    TracedSource,
    cast_or_null,
    fit,
    text_or_none,
)
from streamveil.connectors.sinks import as_text
from streamveil.disk import scratch_folder
from streamveil.errors import INNER, SourceError, requires_extra
from streamveil.types import ROUNDED

Block = tuple[pa.Table, dict[str, int]]  # rows of the wanted types, and what did not fit
AT_ONCE = 50_000  # rows
COPY = f"{INNER}copy"  # the number of a row among those that are equal to it
MOST_HASHED = 100  # columns that a function of SQLite takes; rows that differ in others tie


class DatabaseSource(Database, TracedSource):
    """The rows of the table `table`, or of the SELECT `query`."""

    bounded = True
    shown: ClassVar[str] = "{}"  # how a column is asked for
    text: ClassVar[str] = "{}"  # and one that is wanted as text
    sorted_by: ClassVar[str]  # a column as a text that two values share if they are equal

    def hashed(self, texts: list[str], copy: str) -> str:
        """A hash of these texts and a whole number, none of which makes it fail."""
        raise NotImplementedError

    def __init__(
        self, where: str, table: str | None, query: str | None, columns: dict[str, str] | None
    ) -> None:
        if (table is None) == (query is None):
            raise SourceError(
                f"the source '{self.dialect}' needs a table or a query, and not both.\n"
                "  to fix  table = 'visits', or a query of some of its rows and columns"
            )
        self.where, self.names, self.table = where, [where], table
        self.query = (
            require_rows(query, self.dialect) if query is not None
            else exp.select("*").from_(exp.to_identifier(str(table), quoted=True)).sql(self.dialect)
        )  # fmt: skip
        self.declared = declared_schema(columns or {})

    def known(self, connection: Any) -> pa.Schema:
        """Names and types of the columns, as the database tells them; no row is read."""
        raise NotImplementedError

    def blocks(self, connection: Any, query: str, wanted: pa.Schema) -> Iterator[Block]:
        """The rows of a query, in its order."""
        raise NotImplementedError

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        return self._schema

    @cached_property
    def _schema(self) -> pa.Schema:
        with self._connection() as connection:
            known = self.known(connection)
        return as_declared(known, self.declared, self.where)

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`."""
        wanted = unmarked(select(self.schema(), columns, self.where))
        at: Any = json.loads(position) if position else {"rows": 0, "digest": None}
        row, digest = 0, hashlib.blake2b(digest_size=16)
        with self._connection() as connection:
            for rows, rejected in self.blocks(connection, self._ordered(wanted), wanted):
                known = min(max(at["rows"] - row, 0), rows.num_rows)
                row += known
                add(digest, rows.slice(0, known))
                if known and row == at["rows"] and digest.hexdigest() != at["digest"]:
                    raise changed(self.where)
                new = rows.slice(known)
                for part in slices(new, min(max_rows, AT_ONCE)):
                    add(digest, part)
                    row += part.num_rows
                    place = json.dumps({"rows": row, "digest": digest.hexdigest()})
                    yield Chunk(self.placed(part, row), place, {} if known else rejected)
                    rejected = {}
        if row < at["rows"]:
            raise changed(self.where)

    def _ordered(self, wanted: pa.Schema) -> str:
        """The query in its order, of some columns."""
        names = [self.quoted(one.name) for one in wanted]
        forms = [self.text if pa.types.is_string(one.type) else self.shown for one in wanted]
        shown = ", ".join(form.format(name) for form, name in zip(forms, names, strict=True))
        texts = [self.sorted_by.format(name) for name in names]
        values, copy = ", ".join(texts), self.quoted(COPY)
        rows = f"SELECT {', '.join(names)}, ROW_NUMBER() OVER (PARTITION BY {values}) AS {copy}"
        rows = f"({rows} FROM {self._rows()}) AS streamveil_copies"
        return f"SELECT {shown} FROM {rows} ORDER BY {self.hashed(texts, copy)}, {values}"  # noqa: S608

    def _rows(self) -> str:
        return f"({self.query}) AS streamveil_rows"

    def _connection(self) -> AbstractContextManager[Any]:
        named = ""
        if "." in str(self.table):
            way = f"SELECT * FROM {self.table}"  # noqa: S608  (words for a person)
            named = f"; a table of a schema is named in a query: '{way}'"
        return self.connection(
            f"the source cannot read {self.where}",
            "check that the database is there, that this user may read it and that the query runs"
            f" there{named}",
        )


# What a query may hold: expressions of one row that fail for no value, since one person's row must
# not decide whether a job goes on. Hence no arithmetic, casts of columns, cuts of texts and regular
# expressions: the query that streamveil answers may have them, and failures there are null.
PARTS = (
    exp.Select, exp.From, exp.Where, exp.Table, exp.TableAlias, exp.Alias, exp.Column, exp.Star,
    exp.Identifier, exp.Literal, exp.Neg, exp.Null, exp.Boolean, exp.Paren, exp.And, exp.Or,
    exp.Not, exp.Is, exp.In, exp.Between, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE,
    exp.Like, exp.ILike, exp.Lower, exp.Upper, exp.Trim, exp.Length, exp.Cast, exp.DataType,
)  # fmt: skip
COMPARED = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.In, exp.Between)


def never_fails(part: Any) -> bool:
    """Whether a part of a query, apart from its own parts, fails on no value of a column."""
    if isinstance(part, exp.Cast):  # of a constant to a time: numbers may not fit into others
        constant = type(part) is exp.Cast and isinstance(part.this, exp.Literal)
        return constant and part.to.this in exp.DataType.TEMPORAL_TYPES
    if isinstance(part, (exp.Like, exp.ILike)):  # a pattern must not end in its escape
        pattern = part.expression
        return isinstance(pattern, exp.Literal) and not str(pattern.this).endswith("\\")
    if isinstance(part, exp.Neg):
        return isinstance(part.this, exp.Literal)
    if isinstance(part, COMPARED):  # two columns of two types may be cast to a third
        return sum(one.find(exp.Column) is not None for one in part.iter_expressions()) <= 1
    return isinstance(part, PARTS)


def require_rows(query: str, dialect: str) -> str:
    """The query, if each of its rows comes from one row of one table, so that no two people mix.

    >>> require_rows("SELECT u, LOWER(page) AS page FROM shop.visits WHERE amount > 0", "sqlite")
    'SELECT u, LOWER(page) AS page FROM shop.visits WHERE amount > 0'
    """
    try:
        found = sqlglot.parse(query, read=dialect)
        (tree,) = [one for one in found if one is not None and not isinstance(one, exp.Semicolon)]
    except (sqlglot.errors.SqlglotError, ValueError):
        tree = None
    if not isinstance(tree, exp.Select) or not is_of_rows(tree):
        raise SourceError(
            "the query of a source is SELECT columns FROM one table WHERE columns compare with "
            "constants: what joins, sums, ranks or limits rows mixes people before "
            "their contributions are bounded, and what computes or casts may fail on one row.\n"
            "  to fix  write that into the query that streamveil answers; or make a view of rows "
            "that each belong to one person, and give table = 'its name'"
        )
    if dialect == "duckdb":  # which casts columns by itself to compare them
        for part in filter(None, [*tree.expressions, tree.find(exp.Where)]):
            inner = part.this if isinstance(part, (exp.Alias, exp.Where)) else part
            if part is not inner or not isinstance(inner, (exp.Column, exp.Star)):
                whole = exp.and_(inner, "TRUE") if isinstance(part, exp.Where) else inner.copy()
                inner.replace(exp.func("TRY", whole))
    return tree.sql(dialect)


def is_of_rows(tree: exp.Select) -> bool:
    """Whether a query has only parts of one row each, none of which can fail."""
    source = tree.find(exp.From)
    return (
        source is not None and given(tree) <= {"expressions", source.arg_key, "where"}
        and isinstance(source.this, exp.Table) and isinstance(source.this.this, exp.Identifier)
        and given(source.this) <= {"this", "db", "catalog", "alias"}
        and len(list(tree.find_all(exp.Query))) == 1
        and all(never_fails(one) for one in tree.walk())
    )  # fmt: skip


def given(part: exp.Expression) -> set[str]:
    """The names of the parts that a part of a query has."""
    return {name for name, one in part.args.items() if one}


def add(digest: Any, rows: pa.Table) -> None:
    """Adds rows to a digest, which does not depend on how they are divided."""
    out = pa.BufferOutputStream()
    pyarrow.csv.write_csv(as_text(rows), out, pyarrow.csv.WriteOptions(include_header=False))
    digest.update(out.getvalue())


def changed(where: str) -> SourceError:
    """The error for rows that changed after they were read."""
    return SourceError(
        f"what this job read from {where} has changed since.\n"
        "  to fix  restore it, read a copy, or start a new state, which is charged"
    )


class SqliteSource(DatabaseSource):
    """A file of SQLite. All columns are declared: SQLite has types of values, not of columns."""

    dialect = "sqlite"
    at_hand = True
    error = sqlite3.Error
    sorted_by = "quote({0}) || hex({0})"  # a text is quoted up to a null character in it alone

    def __init__(
        self,
        path: str,
        table: str | None = None,
        query: str | None = None,
        columns: dict[str, str] | None = None,
    ) -> None:
        if not columns:
            raise SourceError(
                "the source 'sqlite' needs the types of its columns: SQLite keeps none.\n"
                "  to fix  CREATE STREAM visits (user_id INT64, page STRING) WITH (...)"
            )
        super().__init__(f"'{require_file(path)}'", table, query, columns)
        self.path = absolute(path)

    def connect(self) -> Any:
        """See `DatabaseSource`."""
        place = f"file:{quote(self.path)}?mode=ro"
        made = sqlite3.connect(place, uri=True, timeout=WAIT, check_same_thread=False)
        made.create_function("streamveil_hash", -1, hash_of, deterministic=True)
        return made

    def hashed(self, texts: list[str], copy: str) -> str:
        """See `DatabaseSource`. Bytes, as SQLite does not check texts."""
        parts = ", ".join(f"CAST({one} AS BLOB)" for one in [copy, *texts[:MOST_HASHED]])
        return f"streamveil_hash({parts})"

    def known(self, connection: Any) -> pa.Schema:
        """See `DatabaseSource`."""
        found = connection.execute(f"SELECT * FROM {self._rows()} LIMIT 0")  # noqa: S608
        names = [one[0] for one in found.description]
        return select(self.declared, [name for name in self.declared.names if name in names], "")

    def blocks(self, connection: Any, query: str, wanted: pa.Schema) -> Iterator[Block]:
        """See `DatabaseSource`."""
        connection.text_factory = as_utf8
        found = connection.execute(query)
        while rows := found.fetchmany(AT_ONCE):
            columns = [
                of_any(column, one.type)
                for column, one in zip(zip(*rows, strict=True), wanted, strict=True)
            ]
            lost = sum(lost for _, lost in columns)
            yield (
                pa.table([column for column, _ in columns], wanted),
                {MISFIT: lost} if lost else {},
            )

    def detail(self, error: Exception) -> str:
        """See `DatabaseSource`."""
        return f" ({error})" if str(error).startswith("no such ") else ""


def hash_of(*parts: bytes) -> bytes:
    """A hash of values as SQLite quotes them: none is empty."""
    return hashlib.blake2b(b"\0".join(parts), digest_size=8).digest()


def as_utf8(raw: bytes) -> str | bytes:
    """A text, which SQLite does not check; bytes if it is not UTF-8, which fit no text column."""
    text = text_or_none(raw)
    return raw if text is None else text


NATIVE: dict[pa.DataType, tuple[type, ...]] = {
    pa.int64(): (int,), pa.float64(): (int, float), pa.string(): (str,), pa.binary(): (bytes,),
}  # fmt: skip


def of_any(values: Sequence[Any], kind: pa.DataType) -> tuple[pa.ChunkedArray, int]:
    """Values of mixed types as one type. Those that do not fit are null; how many is counted.

    >>> of_any([1, "2", 2.5, None, b"3"], pa.int64())[0].to_pylist()
    [1, 2, None, None, None]
    """
    native = NATIVE.get(kind, ())
    plain: list[Any] = [value if isinstance(value, native) else None for value in values]
    if float in native:  # else Arrow refuses, and quotes, whole numbers that these do not hold
        plain = [None if value is None else float(value) for value in plain]
    texts = [
        None if value is None or isinstance(value, (*native, bytes)) else str(value)
        for value in values
    ]
    read = cast_or_null(pa.chunked_array([pa.array(texts, pa.string())]), kind)
    column = pc.coalesce(pa.chunked_array([pa.array(plain, kind)]), read)
    return column, column.null_count - sum(value is None for value in values)


# Times that DuckDB can show. Arrow and pandas may hand it others, which it keeps: a cast of one to
# text ends the reading of all rows, also in `TRY`. For us they are null.
EARLIEST = "TIMESTAMP '290309-12-22 (BC) 00:00:00'"
IN_REACH = f"TRY_CAST({{0}} AS TIMESTAMP) >= {EARLIEST} OR {{0}} = '-infinity'"
SHOWN = {
    **dict.fromkeys(("TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP"), IN_REACH),
    **{one: f"{{0}} BETWEEN {one} '00:00:00' AND {one} '24:00:00'" for one in ("TIME", "TIME_NS")},
}


def readable(kind: Any, name: str) -> str | None:
    """How a column of DuckDB is read; None: as it is."""
    if kind.id == "uhugeint":  # whose values from 2^127 on Arrow gets as negative ones
        return f"CAST({name} AS VARCHAR)"
    return (condition := in_reach(kind, name)) and f"CASE WHEN {condition} THEN {name} END"


def in_reach(kind: Any, value: str, depth: int = 0) -> str | None:
    """The condition under which DuckDB can show a value of a type; None: it always can.

    A list, map, struct, tuple or union can be shown if everything in it can. The type VARIANT does
    not say what its values hold.
    """
    found: list[str | None] = []
    if kind.id == "variant":
        raise SourceError(
            "a column of VARIANT may hold times that DuckDB cannot show, and one of them would end"
            " the reading of all rows.\n"
            "  to fix  name the other columns in a query: query = 'SELECT user_id FROM visits'"
        )
    if kind.id in ("struct", "tuple", "union"):
        take = "union_extract" if kind.id == "union" else "struct_extract"
        for place, (name, one) in enumerate(kind.children):  # a union's first is its tag
            field = str(place + 1) if kind.id == "tuple" else exp.Literal.string(name).sql("duckdb")
            if name or kind.id == "tuple":
                found.append(in_reach(one, f"{take}({value}, {field})", depth))
    elif kind.id in ("list", "array", "map"):
        sides = [f"map_keys({value})", f"map_values({value})"] if kind.id == "map" else [value]
        for side, (_, one) in zip(sides, kind.children, strict=False):  # an array's size is a child
            if inside := in_reach(one, f"each{depth}", depth + 1):
                every = f"list_bool_and([{inside} FOR each{depth} IN {side}])"
                found.append(f"coalesce({every}, TRUE)")
    elif str(kind) in SHOWN:
        found.append(f"({value} IS NULL OR coalesce({SHOWN[str(kind)].format(value)}, FALSE))")
    return " AND ".join(filter(None, found)) or None


@cache
def spill_folder() -> TemporaryDirectory[str]:
    """Where DuckDB keeps rows while it sorts more than memory holds, for this user only.

    By itself it would keep them beside the database, readable to all, where a kill leaves them.
    """
    return scratch_folder()


class DuckdbSource(DatabaseSource):
    """A file of DuckDB, which no job that reads it writes to."""

    dialect = "duckdb"
    at_hand = True
    text = "CAST({} AS VARCHAR)"
    sorted_by = "encode(CAST({} AS VARCHAR))"  # bytes: by a collation, others' texts would be equal

    def __init__(
        self,
        path: str,
        table: str | None = None,
        query: str | None = None,
        columns: dict[str, str] | None = None,
    ) -> None:
        with requires_extra("the source 'duckdb'", "duckdb", least=("duckdb", "2.0")):
            import duckdb
        super().__init__(f"'{require_file(path)}'", table, query, columns)
        self.path, self._duckdb, self.error = absolute(path), duckdb, duckdb.Error
        self._replaced: list[str] = []  # columns that are not read as they are

    def connect(self) -> Any:
        """See `DatabaseSource`."""
        connection = self._duckdb.connect(self.path, read_only=True)
        connection.execute("SET TimeZone = 'UTC'")
        with suppress(self._duckdb.NotImplementedException):  # this process has spilled elsewhere
            place = exp.Literal.string(spill_folder().name).sql("duckdb")
            connection.execute(f"SET temp_directory = {place}")
        return connection

    def hashed(self, texts: list[str], copy: str) -> str:
        """See `DatabaseSource`. MD5, since DuckDB's own hash is another one in each version."""
        return f"md5(concat({copy}, {', '.join(f'md5({one})' for one in texts)}))"

    def known(self, connection: Any) -> pa.Schema:
        """See `DatabaseSource`."""
        query = f"SELECT * FROM {super()._rows()} LIMIT 0"  # noqa: S608
        result = connection.sql(query)
        self._replaced = [
            f"{value} AS {name}"
            for name, kind in zip(map(self.quoted, result.columns), result.types, strict=True)
            if (value := readable(kind, name))
        ]
        found = pa.RecordBatchReader.from_stream(result)
        return pa.schema([
            rounded(one.name, str(one.type), one.type.precision) if pa.types.is_decimal(one.type)
            else pa.field(one.name, kind_of(one.type), metadata=lost_digits(one.type))
            for one in found.schema
        ])  # fmt: skip

    def _rows(self) -> str:
        """See `DatabaseSource`."""
        rows = super()._rows()
        if not self._replaced:
            return rows
        return f"(SELECT * REPLACE ({', '.join(self._replaced)}) FROM {rows}) AS streamveil_times"  # noqa: S608

    def blocks(self, connection: Any, query: str, wanted: pa.Schema) -> Iterator[Block]:
        """See `DatabaseSource`."""
        for batch in pa.RecordBatchReader.from_stream(connection.sql(query)):
            table = pa.Table.from_batches([batch]).rename_columns(wanted.names)
            yield fit(table, wanted)

    def detail(self, error: Exception) -> str:
        """See `DatabaseSource`."""
        told = (
            self._duckdb.CatalogException, self._duckdb.BinderException,
            self._duckdb.ParserException,
        )  # fmt: skip
        return f" ({str(error).splitlines()[0]})" if isinstance(error, told) else ""


SAME = {pa.int64(), pa.float64(), pa.bool_(), pa.binary(), pa.date32()}


def lost_digits(kind: pa.DataType) -> dict[bytes, str] | None:
    """The metadata that marks times whose last digits are not kept."""
    return {ROUNDED: str(kind)} if pa.types.is_timestamp(kind) and kind.unit == "ns" else None


def kind_of(kind: pa.DataType) -> pa.DataType:
    """Our type for a column of DuckDB; text if there is none."""
    kind = plain_kind(kind)
    if pa.types.is_timestamp(kind):
        return TIME
    if pa.types.is_decimal(kind):
        return pa.float64()
    return kind if kind in SAME else pa.string()


OF_POSTGRES = {  # type -> ours; others are text
    16: pa.bool_(), 17: pa.binary(), 20: pa.int64(), 21: pa.int64(), 23: pa.int64(), 26: pa.int64(),
    700: pa.float64(), 701: pa.float64(), 1082: pa.date32(),
    1114: TIME, 1184: TIME,
}  # fmt: skip


NUMERIC = 1700


def schema_of(found: Any) -> pa.Schema:
    """The columns of a result of PostgreSQL."""
    return pa.schema([
        rounded(one.name, "numeric", one.precision) if one.type_code == NUMERIC
        else pa.field(one.name, OF_POSTGRES.get(one.type_code, pa.string()))
        for one in found.description
    ])  # fmt: skip


def with_bytes(rows: pa.Table, known: pa.Schema, wanted: pa.Schema) -> pa.Table:
    r"""Columns of bytes that are wanted as bytes: PostgreSQL sends them as hexadecimal text.

    >>> known = pa.schema([("b", pa.binary()), ("t", pa.string())])
    >>> wanted = pa.schema([("b", pa.binary()), ("t", pa.binary())])
    >>> with_bytes(pa.table({"b": ["\\x00ff"], "t": ["\\x00ff"]}), known, wanted).to_pylist()
    [{'b': b'\x00\xff', 't': '\\x00ff'}]
    """
    for place, name in enumerate(rows.column_names):
        if (
            name in wanted.names
            and known.field(name).type == wanted.field(name).type == pa.binary()
        ):
            texts = rows.column(name).to_pylist()
            found = [None if text is None else bytes.fromhex(text[2:]) for text in texts]
            rows = rows.set_column(place, name, pa.array(found, pa.binary()))
    return rows


class PostgresSource(DatabaseSource):
    """A database of PostgreSQL. `url`: see `PostgresServer`."""

    dialect = "postgres"
    shown = text = "CAST({} AS text)"
    sorted_by = 'CAST({} AS text) COLLATE "C"'

    def __init__(
        self,
        url: str,
        table: str | None = None,
        query: str | None = None,
        columns: dict[str, str] | None = None,
    ) -> None:
        self.server = PostgresServer(url, "source 'postgres'")
        self.error = self.server.error
        super().__init__("the database of PostgreSQL", table, query, columns)

    def connect(self) -> Any:
        """See `DatabaseSource`."""
        connection = self.server.connect_to_read()
        connection.read_only = True
        connection.execute(PLAIN_TEXT)
        return connection

    def hashed(self, texts: list[str], copy: str) -> str:
        """See `DatabaseSource`. The hashes of its partitions: not every server has MD5."""
        each = " # ".join(
            f"COALESCE(hashtextextended({one}, {seed}), 0)" for seed, one in enumerate(texts)
        )
        return f"hashint8extended({each} # hashint8extended({copy}, 0), 0)"

    def known(self, connection: Any) -> pa.Schema:
        """See `DatabaseSource`."""
        found = connection.execute(f"SELECT * FROM {self._rows()} LIMIT 0")  # noqa: S608
        return schema_of(found)

    def blocks(self, connection: Any, query: str, wanted: pa.Schema) -> Iterator[Block]:
        """See `DatabaseSource`."""
        known = self.known(connection)
        for rows in copied(connection, query, wanted.names):
            yield fit(with_bytes(rows, known, wanted), wanted)

    def detail(self, error: Exception) -> str:
        """See `DatabaseSource`."""
        return self.server.detail(error)


PLAIN_TEXT = (  # times, numbers and bytes in one form, whatever a server or a user has set
    "SELECT set_config('TimeZone', 'UTC', FALSE), set_config('DateStyle', 'ISO', FALSE), "
    "set_config('extra_float_digits', '3', FALSE), set_config('bytea_output', 'hex', FALSE)"
)
