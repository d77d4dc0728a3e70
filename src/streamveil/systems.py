"""The kinds of sources and sinks: one line for each, and one file of `connectors`."""

from __future__ import annotations

from typing import NamedTuple


class SourceKind(NamedTuple):
    """What is known of a source before it is opened."""

    made_by: str  # module and class, loaded when a query names it
    # options that say where it lies: what a job is does not depend on it
    places: tuple[str, ...] = ()
    follows: bool = False  # it goes on, unless follow = FALSE
    is_whole: bool = False  # all rows are there at the start, unless it follows
    is_sorted: bool = False  # its rows are sorted by what they hold
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
