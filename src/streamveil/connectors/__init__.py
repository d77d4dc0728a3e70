"""Outside systems: where rows come from and where releases go. One file, one line here."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar

from streamveil.connectors.base import Chunk, Sink, Source
from streamveil.connectors.database_sources import DuckdbSource, PostgresSource, SqliteSource
from streamveil.connectors.databases import DuckdbSink, PostgresSink, SqliteSink
from streamveil.connectors.delta import DeltaSink
from streamveil.connectors.delta_source import DeltaSource
from streamveil.connectors.files import FilesSource
from streamveil.connectors.iceberg import IcebergSink
from streamveil.connectors.iceberg_source import IcebergSource
from streamveil.connectors.kafka import KafkaSource
from streamveil.connectors.kafka_sink import KafkaSink
from streamveil.connectors.memory import MemorySource
from streamveil.connectors.postgres_changes import PostgresChanges
from streamveil.connectors.rate import RateSource
from streamveil.connectors.sinks import ConsoleSink, FilesSink, MemorySink
from streamveil.errors import SourceError, nearest

SOURCES: dict[str, Callable[..., Source]] = {
    "delta": DeltaSource,
    "duckdb": DuckdbSource,
    "files": FilesSource,
    "iceberg": IcebergSource,
    "kafka": KafkaSource,
    "memory": MemorySource,
    "postgres": PostgresSource,
    "postgres_changes": PostgresChanges,
    "rate": RateSource,
    "sqlite": SqliteSource,
}
SINKS: dict[str, Callable[..., Sink]] = {
    "files": FilesSink,
    "console": ConsoleSink,
    "delta": DeltaSink,
    "duckdb": DuckdbSink,
    "iceberg": IcebergSink,
    "kafka": KafkaSink,
    "postgres": PostgresSink,
    "sqlite": SqliteSink,
    "memory": MemorySink,
}


def open_source(kind: str, options: dict[str, Any], *times: str | None) -> Source:
    """The source of a plan; unknown kinds and options fail with the nearest known name.

    `times`: columns that the query reads as times, so that files of text need not declare them.
    """
    source = opened("source", SOURCES, kind, options)
    if isinstance(source, FilesSource):
        source.times = tuple(name for name in times if name is not None)
    return source


def open_sink(kind: str, options: dict[str, Any]) -> Sink:
    """The sink of a plan; unknown kinds and options fail with the nearest known name."""
    return opened("sink", SINKS, kind, options)


T = TypeVar("T")


def opened(what: str, known: dict[str, Callable[..., T]], kind: str, options: dict[str, Any]) -> T:
    """Builds one connector from its registry."""
    if kind not in known:
        raise SourceError(f"unknown {what} '{kind}'{nearest(kind, known)}")
    allowed = known[kind].__init__.__annotations__.keys() - {"return"}
    for name in options:
        if name not in allowed:
            raise SourceError(f"{what} '{kind}' has no option '{name}'{nearest(name, allowed)}")
    asked = signature(known[kind]).parameters.values()
    missing = [f"'{p.name}'" for p in asked if p.default is p.empty and p.name not in options]
    if missing:
        raise SourceError(
            f"{what} '{kind}' needs {', '.join(missing)}.\n"
            "  to fix  give them among its options, and columns by their names and types"
        )
    return known[kind](**options)


__all__ = ["SINKS", "SOURCES", "Chunk", "FilesSource", "Sink", "Source", "open_sink", "open_source"]
