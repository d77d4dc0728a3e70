"""Which rows of which files belong to a step: plans for Spark's tasks, made from footers alone.

Every row has a global position: the rows of earlier files (in order of their paths) plus its number
in its own file. The embedded engine reads rows in the same order. It does not matter which task
reads a row.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from streamveil.batch import plain, with_fields
from streamveil.connectors import arrivals, micros, select
from streamveil.connectors.file_reader import columns_in, parquet_file
from streamveil.connectors.files import FilesSource
from streamveil.connectors.manifest import footer, guarded
from streamveil.connectors.rejected_rows import fit, whole_or_null
from streamveil.errors import PlanError, SourceError
from streamveil.plan import Clock

ALL = 2**62  # more than there are


@dataclass(frozen=True)
class Group:
    """One row group of a Parquet file; `low` and `high` bound its arrival times, if known."""

    path: str
    group: int
    base: int  # global position of its first row
    rows: int
    low: int | None = None  # microseconds
    high: int | None = None
    nulls: int | None = None  # rows without an arrival, if known
    mark: str = ""  # a digest that stands for the content of the file


@dataclass(frozen=True)
class Split:
    """Rows [skip, skip + rows) of a row group, for one task."""

    path: str
    group: int
    base: int  # global position of the group's first row
    skip: int
    rows: int
    counts: bool = True  # whether to count rows that belong to no step: once for each row group
    mark: str = ""  # of the file when the split was planned

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Split:
        """The inverse of `text`."""
        return cls(**json.loads(text))


def footers(source: FilesSource, arrival: str | None) -> list[Group]:
    """Every row group of a source in canonical order. Reads footers, no rows."""
    groups: list[Group] = []
    require_parquet(source)
    files = source.files()
    read = source.schema().field(arrival) if arrival is not None and files else None
    for path in files:
        base = groups[-1].base + groups[-1].rows if groups else 0
        own = groups_in(str(path), read, version_of(path))
        groups += [replace(group, base=group.base + base) for group in own]
    return groups


def require_parquet(source: FilesSource) -> None:
    """Refuses files that cannot be cut into row groups, or whose columns are not all in them."""
    if source.folders:
        raise SourceError(
            "Spark reads no columns from names of folders (folder_columns).\n"
            "  to fix  run on the embedded engine, or write the column into all files"
        )
    if source.fill_missing:
        raise SourceError(
            "Spark does not fill columns that a file lacks (fill_missing).\n"
            "  to fix  run on the embedded engine, or write the column into all files"
        )
    for path in source.files():
        if path.suffix.lower() != ".parquet" and source.format != "parquet":
            raise SourceError(
                f"Spark reads Parquet in parallel; '{path.name}' is of another format.\n"
                "  to fix  convert it, or run on the embedded engine"
            )


def require_columns(source: FilesSource, names: list[str]) -> None:
    """Refuses declared columns that the first file lacks."""
    for path in source.files()[:1]:
        held = guarded(path, partial(pq.read_schema, path))
        select(columns_in(held), names, f"'{path.name}'")


@lru_cache(maxsize=100_000)
def groups_in(path: str, read: pa.Field | None, version: tuple[int, int]) -> tuple[Group, ...]:
    """The row groups of one file, positions from 0. A new `version` means reading it again.

    `read`: the column of arrivals as it is read. Statistics are about times as they are stored, so
    they are used only if reading does not change times.
    """
    data = guarded(Path(path), lambda: pq.read_metadata(path))
    names = [data.schema.column(i).path for i in range(data.num_columns)]
    place = None
    if read is not None and read.name in names and keeps_times(data.schema.to_arrow_schema(), read):
        place = names.index(read.name)
    mark = guarded(Path(path), lambda: mark_of(path, version))
    groups, base = [], 0
    for number in range(data.num_row_groups):
        part = data.row_group(number)
        facts = None if place is None else part.column(place).statistics
        nulls = facts.null_count if facts is not None and facts.has_null_count else None
        groups.append(Group(path, number, base, part.num_rows, *times(facts), nulls, mark))
        base += part.num_rows
    return tuple(groups)


def keeps_times(stored: pa.Schema, read: pa.Field) -> bool:
    """Whether times keep their meaning when they are read as another type: a date does not."""
    kind = columns_in(stored).field(read.name).type
    return bool(
        kind == read.type or (pa.types.is_timestamp(kind) and pa.types.is_timestamp(read.type))
    )


@lru_cache(maxsize=100_000)
def mark_of(path: str, version: tuple[int, int]) -> str:
    """A digest of a file's size and footer. A new `version` means reading it again.

    The footer holds the sizes, places and statistics of all columns. So most files with other
    content have another mark, and a copy of a file has the same mark, whatever its date.
    """
    with Path(path).open("rb") as file:
        end = footer(file) or b""
        return hashlib.blake2b(b"%d|" % file.seek(0, os.SEEK_END) + end, digest_size=16).hexdigest()


def version_of(path: str | Path) -> tuple[int, int]:
    """Facts on a file that change when it is written again."""
    facts = Path(path).stat()
    return facts.st_mtime_ns, facts.st_size


def digest(groups: list[Group]) -> str:
    """A digest of names, sizes and footers of files: a replay must find the same, in any folder."""
    known = [[os.path.basename(g.path), g.group, g.rows, g.mark] for g in groups]
    text = json.dumps(known)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def changed() -> SourceError:
    """The error for rows that cannot be read again as they were."""
    return SourceError(
        "the files already read changed, or a new one sorts before them.\n"
        "  to fix  give new files names that sort after the old ones, and keep the old ones"
    )


def times(statistics: pq.Statistics | None) -> tuple[int | None, int | None]:
    """The least and the largest arrival of a row group, if its footer gives them."""
    if statistics is None or not statistics.has_min_max:
        return None, None
    try:
        ends = pa.chunked_array([pa.array([statistics.min, statistics.max])])
        low, high = micros(ends, "arrival").to_pylist()
    except (SourceError, OverflowError, ValueError):  # beyond the years 1 to 9999, for one
        return None, None
    return low, high


def plan_step(groups: list[Group], clock: Clock, step: int, met: int = ALL) -> list[Split]:
    """The splits that can hold rows of a step. Pure; the same for every replay.

    `met`: how many groups there were at the step before. In newer groups, rows that belong to no
    step are counted now if an earlier step would have counted them.
    """
    if clock.kind == "event":
        begin, end = ends(clock)
        first = begin if step == 1 else clock.due_us(step - 1)
        stop = min(clock.due_us(step), end)
        found = []
        for place, g in enumerate(groups):
            counting = first_step(g, clock)
            counts = step == counting or (step > counting and place >= met)
            if counts or meets(g, first, stop):
                found.append(Split(g.path, g.group, g.base, 0, g.rows, counts, g.mark))
        return found
    if clock.kind == "rows":
        return list(between(groups, (step - 1) * clock.every, step * clock.every))
    return list(between(groups, 0, ALL))


def ends(clock: Clock) -> tuple[int, int]:
    """The start and the end of a replay."""
    if clock.start_us is None or clock.end_us is None:
        raise PlanError("a replay needs a public start and end")
    return clock.start_us, clock.end_us


def first_step(group: Group, clock: Clock) -> int:
    """The step that counts the rows of a group that belong to no step.

    It is the first step that reads the group, or step 1 if such rows cannot be ruled out.
    """
    begin, end = ends(clock)
    if group.low is None or group.high is None or group.nulls != 0:
        return 1
    if group.low < begin or group.high >= end:
        return 1
    return clock.ticks.number(group.low) + 1


def meets(group: Group, begin: int, end: int) -> bool:
    """Whether a row group can hold arrivals in [begin, end)."""
    if group.low is None or group.high is None:
        return True
    return group.low < end and group.high >= begin


def between(groups: list[Group], start: int, stop: int) -> Iterator[Split]:
    """The splits of positions [start, stop)."""
    for g in groups:
        low, high = max(start, g.base), min(stop, g.base + g.rows)
        if low < high:
            yield Split(g.path, g.group, g.base, low - g.base, high - low, mark=g.mark)


def last_step(groups: list[Group], clock: Clock) -> int:
    """The number of steps that a clock makes of a bounded source."""
    if clock.kind == "once":
        return 1
    if clock.kind == "event":
        return clock.steps_until(ends(clock)[1])
    total = groups[-1].base + groups[-1].rows if groups else 0
    steps = -(-total // clock.every)
    return steps if clock.steps is None else min(steps, clock.steps)


def rows_of(
    split: Split, schema: pa.Schema, clock: Clock, at: tuple[str | None, int]
) -> tuple[pa.Table, dict[str, int]]:
    """The rows of a split that belong to a step, and counts of those that belong to none.

    Unreadable fields are counted, too, by reason. `at`: the column of arrivals (for the 'event'
    clock) and the step.
    """
    table = plain(guarded(Path(split.path), lambda: read_group(split, schema.names)))
    table, rejected = fit(table.slice(split.skip, split.rows), schema, whole_or_null)
    rows, left_out = of_step(table, clock, at)
    return rows, {**rejected, **left_out} if split.counts else {}


def of_step(
    table: pa.Table, clock: Clock, at: tuple[str | None, int]
) -> tuple[pa.Table, dict[str, int]]:
    """The rows that belong to a step, and how many belong to none. `at`: see `rows_of`."""
    arrival, step = at
    if clock.kind != "event" or arrival is None:
        return table, {}
    came = arrivals(table, arrival, ends(clock), clock.ticks)
    mine = came.inside & (came.step == step)
    return table if mine.all() else table.filter(pa.array(mine)), came.left_out


def read_group(split: Split, names: list[str]) -> pa.Table:
    """Some columns of a whole row group, if its file is as it was planned."""
    if mark_of(split.path, version_of(split.path)) != split.mark:
        raise changed()
    file = parquet_file(Path(split.path))
    select(columns_in(file.schema_arrow), names, f"'{Path(split.path).name}'")
    return with_fields(file.read_row_group(split.group, columns=names)).select(names)
