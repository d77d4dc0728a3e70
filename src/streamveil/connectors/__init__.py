"""Outside systems: where rows come from and where releases go. One file, one line in `systems`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import signature
from typing import Any

from streamveil.connectors.base import Chunk, Sink, Source
from streamveil.errors import SourceError, nearest
from streamveil.systems import SINKS, SOURCES


def open_source(kind: str, options: dict[str, Any], *times: str | None) -> Source:
    """The source of a plan; unknown kinds and options fail with the nearest known name.

    `times`: columns that the query reads as times, so that files of text need not declare them.
    """
    made = opened("source", {name: one.made_by for name, one in SOURCES.items()}, kind, options)
    if kind == "files":
        made.times = tuple(name for name in times if name is not None)
    source: Source = made
    return source


def open_sink(kind: str, options: dict[str, Any]) -> Sink:
    """The sink of a plan; unknown kinds and options fail with the nearest known name."""
    sink: Sink = opened("sink", SINKS, kind, options)
    return sink


def open_sinks(asked: Sequence[tuple[str, dict[str, Any]]]) -> Sink | None:
    """The sinks of a plan, of each kind and options, as one; None if there are none."""
    sinks = [open_sink(kind, options) for kind, options in asked]
    if len(sinks) < 2:
        return next(iter(sinks), None)
    from streamveil.connectors.sinks import SeveralSinks  # loaded where there are some

    return SeveralSinks(sinks)


def opened(what: str, known: Mapping[str, str], kind: str, options: dict[str, Any]) -> Any:
    """Builds one connector from its registry."""
    if kind not in known:
        raise SourceError(f"unknown {what} '{kind}'{nearest(kind, known)}")
    module, name = known[kind].split(".")
    made = getattr(import_module(f"streamveil.connectors.{module}"), name)
    allowed = made.__init__.__annotations__.keys() - {"return"}
    for given in options:
        if given not in allowed:
            raise SourceError(f"{what} '{kind}' has no option '{given}'{nearest(given, allowed)}")
        texts = [options[given]] if isinstance(options[given], str) else options[given]
        if isinstance(texts, list) and any("\0" in str(text) for text in texts):
            raise SourceError(
                f"{what} '{kind}': the option '{given}' holds a NUL character, which no path, table"
                " or address can.\n  to fix  take it out"
            )
    asked = signature(made).parameters.values()
    missing = [f"'{p.name}'" for p in asked if p.default is p.empty and p.name not in options]
    if missing:
        raise SourceError(
            f"{what} '{kind}' needs {', '.join(missing)}.\n"
            "  to fix  give them among its options, and columns by their names and types"
        )
    return made(**options)


__all__ = ["Chunk", "Sink", "Source", "open_sink", "open_sinks", "open_source"]
