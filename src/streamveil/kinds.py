"""The kinds of sources, sinks and aggregates: one line for each, with its properties.

A source or a sink is also one file of `connectors`, an aggregate one formula of `dataflow.outputs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias


class SourceKind(NamedTuple):
    """The properties of a source that are known before it is opened."""

    made_by: str  # module and class, loaded when a query names it
    # options for the place of the source, on which a job's identity does not depend
    places: tuple[str, ...] = ()
    follows: bool = False  # it goes on, unless follow = FALSE
    is_whole: bool = False  # all rows are there at the start, unless it follows
    is_sorted: bool = False  # its rows are sorted by their content
    keeps: bool = False  # messages that were read can be read again


SOURCES = {
    "delta": SourceKind("delta_source.DeltaSource", ("path",)),
    "duckdb": SourceKind("database_sources.DuckdbSource", ("path",), is_whole=True, is_sorted=True),
    "files": SourceKind("files.FilesSource", ("path",), is_whole=True),
    "iceberg": SourceKind("iceberg.IcebergSource", ("catalog", "table")),
    "kafka": SourceKind(
        "kafka.KafkaSource", ("config", "registry", "servers"), follows=True, keeps=True
    ),
    "memory": SourceKind("memory.MemorySource", is_whole=True),
    "nats": SourceKind("nats.NatsSource", ("config", "servers"), follows=True, keeps=True),
    "postgres": SourceKind(
        "database_sources.PostgresSource", ("url",), is_whole=True, is_sorted=True
    ),
    "postgres_changes": SourceKind("postgres_changes.PostgresChanges", ("url",), follows=True),
    "sqlite": SourceKind("database_sources.SqliteSource", ("path",), is_whole=True, is_sorted=True),
    "sse": SourceKind("sse.SseSource", ("config", "url"), follows=True),
}
SINKS = {  # kind -> module and class
    "files": "sinks.FilesSink",
    "console": "sinks.ConsoleSink",
    "delta": "delta.DeltaSink",
    "duckdb": "databases.DuckdbSink",
    "iceberg": "iceberg.IcebergSink",
    "kafka": "kafka_sink.KafkaSink",
    "postgres": "databases.PostgresSink",
    "sqlite": "databases.SqliteSink",
    "memory": "sinks.MemorySink",
}

Function: TypeAlias = Literal[
    "count", "count_units", "count_distinct", "sum", "avg", "variance", "stddev", "var_pop",
    "stddev_pop", "quantile", "approx_frequency", "heavy_hitters",
]  # fmt: skip


class AggregateKind(NamedTuple):
    """The properties of an aggregate of a query."""

    made_of: Literal["count", "sum", "moments", "order", "sketch"]
    sql: tuple[str, ...] = ()  # its names, if SQL gives it one column and no other argument
    squares: bool = False  # it also adds squares of values
    combines: str = ""  # over the totals of units in groups; empty: it does not take these


AGGREGATES: Mapping[Function, AggregateKind] = {
    "count": AggregateKind("count", combines="sum"),
    "count_units": AggregateKind("count"),
    "count_distinct": AggregateKind("count"),
    "sum": AggregateKind("sum", ("SUM",), combines="sum"),
    "avg": AggregateKind("moments", ("AVG",), combines="avg"),
    "variance": AggregateKind("moments", ("VARIANCE", "VAR_SAMP"), squares=True),
    "stddev": AggregateKind("moments", ("STDDEV", "STDDEV_SAMP"), squares=True),
    "var_pop": AggregateKind("moments", ("VAR_POP",), squares=True),
    "stddev_pop": AggregateKind("moments", ("STDDEV_POP",), squares=True),
    "quantile": AggregateKind("order"),
    "approx_frequency": AggregateKind("sketch"),
    "heavy_hitters": AggregateKind("sketch"),
}


def made_of(*parts: str) -> tuple[Function, ...]:
    """The aggregates that are made of one of these parts.

    >>> made_of("count", "sum")
    ('count', 'count_units', 'count_distinct', 'sum')
    """
    return tuple(name for name, kind in AGGREGATES.items() if kind.made_of in parts)


COUNTS = made_of("count")  # they give whole numbers
TOTALS = made_of("count", "sum")  # each number is one total plus Gaussian noise
MOMENTS = made_of("moments")  # of a number of values, their sum, and that of their squares
RATIOS = made_of("moments", "order")  # they do not grow with rows
VALUED = made_of("sum", "moments", "order")  # they add or order values, which need bounds
SQUARED = tuple(name for name, kind in AGGREGATES.items() if kind.squares)  # of values
SKETCHES = made_of("sketch")  # each stands alone in its query; its values are a column
