"""Sources as steps use them: how far a source reaches now, and which rows belong to a step.

What a source has seen goes to Spark's log as a part of the offset, before any row is read; a replay
gets the same rows or is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from streamveil.connectors.files import FilesSource
from streamveil.engines.spark.splits import (
    Group,
    Split,
    changed,
    digest,
    footers,
    last_step,
    plan_step,
    rows_of,
)
from streamveil.plan import Clock

Seen = dict[str, Any]  # JSON
PIECE = 250_000  # about so many rows go to one task; row groups are never cut


class Read(NamedTuple):
    """The rows of a split that belong to a step, in source order."""

    table: pa.Table
    place: int  # of the split in its step; it orders the rows of different splits
    rejected: dict[str, int]  # reason -> rows that could not be read


class Feed(Protocol):
    """A source as the driver sees it."""

    def nothing(self) -> Seen:
        """Before the first step."""

    def seen(self, before: Seen, due: float) -> Seen:
        """The source as the next step will read it; `due` is its public time, in seconds."""

    def has(self, seen: Seen, step: int) -> bool:
        """Whether a source without a wall clock reaches a step."""

    def splits(self, before: Seen, seen: Seen, step: int) -> Iterator[list[str]]:
        """The splits of a step as text, in runs for one task each; at least one run."""


class Reading(Protocol):
    """A source as tasks see it."""

    def rows(self, split: str, step: int) -> Read:
        """The rows of a step in a split."""


@dataclass(frozen=True)
class FilesFeed:
    """Parquet files. It sees the number of row groups, and a digest of them."""

    source: FilesSource
    clock: Clock
    arrival: str | None

    def nothing(self) -> Seen:
        """See `Feed`."""
        return {"groups": 0, "digest": digest([])}

    def seen(self, before: Seen, due: float) -> Seen:
        """See `Feed`."""
        groups = self._groups(before)
        return {"groups": len(groups), "digest": digest(groups)}

    def has(self, seen: Seen, step: int) -> bool:
        """See `Feed`."""
        return step <= last_step(self._groups(seen)[: seen["groups"]], self.clock)

    def splits(self, before: Seen, seen: Seen, step: int) -> Iterator[list[str]]:
        """See `Feed`."""
        groups = self._groups(seen)[: seen["groups"]]
        if self.clock.kind == "wall":
            groups = groups[before["groups"] :]
        return pieces(plan_step(groups, self.clock, step, before["groups"]))

    def _groups(self, seen: Seen) -> list[Group]:
        """The row groups now, which must begin with those seen before."""
        groups = footers(self.source, self.arrival)
        if digest(groups[: seen["groups"]]) != seen["digest"]:
            raise changed()
        return groups


@dataclass(frozen=True)
class FilesReading:
    """The settings with which tasks read row groups. Rows of no step are counted once."""

    schema: pa.Schema  # of the wanted columns
    clock: Clock
    arrival: str | None  # column that decides the step; 'event' clock only

    def rows(self, split: str, step: int) -> Read:
        """See `Reading`."""
        part = Split.parse(split)
        table, rejected = rows_of(part, self.schema, self.clock, (self.arrival, step))
        return Read(table, part.base + part.skip, rejected)


def pieces(splits: list[Split]) -> Iterator[list[str]]:
    """Splits in runs of about `PIECE` rows; at least one run."""
    held: list[str] = []
    rows = 0
    for split in splits:
        if held and rows + split.rows > PIECE:
            yield held
            held, rows = [], 0
        held.append(split.text())
        rows += split.rows
    yield held


def options_for(
    kind: str, source: dict[str, Any], clock: Clock, arrival: str | None
) -> dict[str, str]:
    """The options that name a source, as Spark wants them; `source.feed_of` reads them."""
    return {
        "kind": kind, "from": json.dumps(source), "clock": json.dumps(asdict(clock)),
        "arrival": arrival or "",
    }  # fmt: skip
