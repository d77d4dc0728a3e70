"""Whether files can hold any row of a replay, by their names and statistics: no row is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.connectors.files import FilesSource

A_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def nothing_to_read(source: object, column: str | None, start_us: int, end_us: int) -> str | None:
    """What to tell the operator where no file, or no file's time, lies in [start, end)."""
    if not isinstance(source, FilesSource) or not source.on_disk:
        return None
    files = source.files()
    if not files:
        return "no file is there yet"
    ends = [end for path in files for end in times_of(path, column)]
    if not ends or None in ends:
        return None  # a file that does not tell
    known = [end for end in ends if end is not None]
    if min(known) < end_us and max(known) >= start_us:
        return None
    return "no file holds a time between start and end"


def times_of(path: Path, column: str | None) -> Iterator[int | None]:
    """The first and last time of every part of a Parquet file, microseconds; None: it tells none.

    Times are read as the whole numbers that they are stored as: one that no calendar has stops
    nothing.
    """
    try:
        found = pq.read_metadata(path) if path.suffix == ".parquet" else None
    except (OSError, pa.ArrowInvalid):
        found = None
    if found is None or column not in found.schema.names:
        yield None
        return
    place, kind = (
        found.schema.names.index(column),
        found.schema.to_arrow_schema().field(column).type,
    )
    for group in range(found.num_row_groups):
        told: Any = found.row_group(group).column(place).statistics
        if told is None or not told.has_min_max or not pa.types.is_timestamp(kind):
            yield None
            continue
        for end in (told.min_raw, told.max_raw):
            yield end * 1_000_000 // A_SECOND[kind.unit]
