"""Whether files can hold any row of a replay, by their names and statistics: no row is read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.connectors.files import FilesSource


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
    low, high = (datetime.fromtimestamp(at / 1e6, UTC) for at in (start_us, end_us))
    known = [end for end in ends if end is not None]
    if min(known) < high and max(known) >= low:
        return None
    return "no file holds a time between start and end"


def times_of(path: Path, column: str | None) -> Iterator[datetime | None]:
    """The first and last time of every part of a Parquet file; None where it does not tell."""
    try:
        found = pq.read_metadata(path) if path.suffix == ".parquet" else None
    except (OSError, pa.ArrowInvalid):
        found = None
    if found is None or column not in found.schema.names:
        yield None
        return
    place = found.schema.names.index(column)
    for group in range(found.num_row_groups):
        told: Any = found.row_group(group).column(place).statistics
        ends = (told.min, told.max) if told is not None and told.has_min_max else (None,)
        for end in ends:
            if isinstance(end, datetime):
                yield end if end.tzinfo else end.replace(tzinfo=UTC)
            else:
                yield None
