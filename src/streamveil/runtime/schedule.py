"""Turns a source and a public clock into micro-batches with public step numbers.

Which step a row belongs to depends on that row alone (its arrival column), on its position in the
source, or on the wall clock; never on other rows. Every step of the schedule closes, with or
without rows, so that the times of releases say nothing about the data.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch
from streamveil.connectors import (
    Arrivals,
    Chunk,
    Source,
    arrivals,
    changed,
    decoded,
    hand_on,
    micros,
    open_source,
    slices,
)
from streamveil.connectors.rejected_rows import PLACE, rejected_table, traced
from streamveil.dataflow import count, total
from streamveil.disk import crc32, in_scratch, scratch_folder
from streamveil.errors import PlanError, SourceError, require_outer
from streamveil.plan import Clock, SourceSpec
from streamveil.runtime.checkpoint import SpillBuffer
from streamveil.types import Array, Int64

if TYPE_CHECKING:  # not loaded where a query reads no files
    from streamveil.connectors.file_reader import RowGroup

LOG = logging.getLogger("streamveil.schedule")
PAUSE = 0.5  # seconds between two looks for more rows
MOST_WAITING = 1 << 22  # rows in memory whose step is to come, where files are in order
MISSTATED = (
    "the statistics of a Parquet file are not those of its rows, some of which would be lost.\n"
    "  to fix  write the file again, or without statistics"
)
SPILL_BYTES = 1 << 30  # a replay larger than this is sorted on disk


Stepped = tuple[pa.Table, Int64[Array, " rows"]]  # with the step of each


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of one job. `now` and `sleep` are used by the wall clock only."""

    source: Source
    clock: Clock
    columns: list[str] | None = None  # read only these
    event_time: str | None = None  # arrival of a replay that names no arrival column
    max_rows: int = 500_000  # rows of a micro-batch, at most
    now: Callable[[], float] | None = None  # seconds since 1970
    sleep: Callable[[float], None] | None = None
    once: bool = False  # stop at the end of what is there now

    def batches(self, position: str | None = None) -> Iterator[Batch]:
        """Micro-batches from `position` (of the last committed batch) on."""
        kinds = {"event": self._event, "rows": self._rows, "wall": self._wall, "once": self._rows}
        return kinds[self.clock.kind](json.loads(position) if position else {"step": 1})

    def _rows(self, at: dict[str, Any]) -> Iterator[Batch]:
        """Steps of `every` source rows; one step of all rows for the one-shot clock."""
        if self.clock.kind == "once" and at.get("done"):
            return  # there is one answer: rows that came later would change it under its own noise
        every = self.clock.every if self.clock.kind == "rows" else None
        last = self.clock.steps if every and self.clock.steps else inf
        step, taken = at["step"], at.get("taken", 0)
        place, skip = at.get("source"), at.get("skip", 0)
        passed = list[Chunk]()  # that a restart reads again; what they rejected is yet to be told
        for chunk in self._chunks(place):
            size = chunk.rows.num_rows
            if skip >= size and chunk.rejected:
                passed.append(chunk)
            if passed and skip == size == 0 and step <= last:
                after = json.dumps({"step": step, "taken": taken, "source": chunk.position})
                yield Batch(chunk.rows, step, False, after, *told(passed))  # noqa: FBT003
            while skip < size and step <= last:
                part = chunk.rows.slice(skip, every - taken if every else None)
                skip, taken = skip + part.num_rows, taken + part.num_rows
                closes = taken == every
                if closes:
                    step, taken = step + 1, 0
                whole = skip == size
                ends = {"source": chunk.position} if whole else {"source": place, "skip": skip}
                after = json.dumps({"step": step, "taken": taken, **ends})
                passed += [chunk] * (whole or step > last)
                yield Batch(part, step - closes, closes, after, *told(passed))
            place, skip = chunk.position, max(0, skip - size)  # a resumed read may cut finer
            if step > last:
                return
        if not self.source.bounded:
            return  # stopped for now: more rows may come, and a step is whole when it has all
        if taken or (every is None and not at.get("done")):
            after = json.dumps({"step": step + 1, "source": place, "done": True})
            yield Batch(self.nothing, step, True, after)  # noqa: FBT003

    def _chunks(self, place: str | None) -> Iterator[Chunk]:
        """The chunks of the source from a place on; of a source without end, also new ones."""
        while True:
            for chunk in self.source.read(place, self.max_rows, self.columns):
                place = chunk.position
                yield chunk
            if self.source.bounded or self.once or self.sleep is None:
                return
            self.sleep(PAUSE)

    def _event(self, at: dict[str, Any]) -> Iterator[Batch]:
        """A replay: rows in order of (step of their own arrival, position).

        The source is read again after a restart. A row's step depends on that row alone, so rows
        that were added or removed elsewhere move no other row. Within a step that was taken in
        part, positions decide which rows are left: the rows taken must still be there, with the
        same arrivals.
        """
        clock = self.clock
        if clock.start_us is None or clock.end_us is None:
            raise PlanError(
                "a replay needs a public start and end: they fix the number of triggers.\n"
                "  to fix  give start and end to the clock"
            )
        steps = clock.steps_until(clock.end_us)
        with replay_of(self, steps, at) as replay:
            for step in range(at["step"], steps + 1):
                rows = replay.rows(step)
                first = at.get("taken", 0) if step == at["step"] else 0
                rejected, rejected_rows = replay.rejected_at(step)
                mark, end, rest = 0, first, rows
                if first:
                    rejected, rejected_rows = {}, ()  # they came with the rows that were taken
                    mark, rest = replay.mark(rows.slice(0, first)), rows.slice(first)
                    if rows.num_rows < first or at.get("mark", mark) != mark:
                        raise changed()
                for part in slices(rest, self.max_rows) if rest.num_rows else [rest]:
                    end += part.num_rows
                    closes = end >= rows.num_rows
                    mark = 0 if closes else replay.mark(part, mark)
                    here = {"step": step, "taken": end, "mark": mark}
                    after = replay.way | ({"step": step + 1} if closes else here)
                    yield Batch(part, step, closes, json.dumps(after), rejected, rejected_rows)
                    rejected, rejected_rows = {}, ()

    def _wall(self, at: dict[str, Any]) -> Iterator[Batch]:
        """Step i closes once the wall clock has passed its end and all available rows are read.

        `once`: closes the steps that are due when it begins, however long that takes.
        """
        if self.now is None or self.sleep is None or self.clock.start_us is None:
            raise PlanError("a wall-clock schedule needs a start time and a running clock")
        step, place = at["step"], at.get("source")
        last = self.clock.due(self.now()) if self.once else self.clock.steps
        while last is None or step <= last:
            self._wait_for(step, self.now, self.sleep)
            hand_on(self.source, "begin_step", self.clock.due_us(step - 1))
            for chunk in self.source.read(place, self.max_rows, self.columns):
                place = chunk.position
                after = {"step": step, "source": place}
                due = self.clock.due(self.now())  # later than `step` in a job that was down
                what = chunk.rejected, chunk.rejected_rows
                yield Batch(chunk.rows, step, False, json.dumps(after), *what, due=due)  # noqa: FBT003
            after = {"step": step + 1, "source": place}
            yield Batch(self.nothing, step, True, json.dumps(after))  # noqa: FBT003
            step += 1

    def _wait_for(
        self, step: int, now: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        """Waits until a step ends by the wall clock; says so where that clock was set back."""
        begin, due = (self.clock.due_us(one) / 1e6 for one in (step - 1, step))
        told = step == 1  # a job may start before its first step
        while (left := due - now()) > 0:
            if not told and left > due - begin:
                told = True
                LOG.warning(
                    "the clock shows a time before step %d begins, though the step before it is"
                    " closed: it was set back, or was ahead, here or on another machine; the job"
                    " waits %d s, and rows of windows that closed too early are late; to fix:"
                    " correct the clock", step, left,
                )  # fmt: skip
            sleep(min(left, 1.0))

    @cached_property
    def nothing(self) -> pa.Table:
        """No rows. The schema is asked for once: a folder has to be listed for it."""
        schema = self.source.schema()
        names = self.columns if self.columns is not None else schema.names
        return pa.schema([schema.field(name) for name in names]).empty_table()


def told(chunks: list[Chunk]) -> tuple[dict[str, int], list[pa.Table]]:
    """The rejected rows of some chunks; clears the list, so that each is reported once.

    They are reported with the last row of a chunk, after which the chunk is never read again: a
    chunk that is read again, from its start, may hold more rows than before, or fewer.
    """
    found = total([one.rejected for one in chunks])
    rows = [table for one in chunks for table in one.rejected_rows]
    chunks.clear()
    return found, rows


def open_rows(spec: SourceSpec, arrival: str | None = None, *, trace: bool = False) -> Source:
    """The source of a plan; `trace`: keep rejected rows as they came."""
    source = open_source(spec.kind, spec.options, spec.event_time, arrival)
    require_outer(source.schema().names)
    source = traced(source) if trace else source
    if not spec.combines:
        return source
    from streamveil.runtime.combined import per_unit  # loaded where rows are combined

    source = per_unit(spec, source)
    require_outer(source.schema().names)
    return source


def replay_of(schedule: MicroBatches, steps: int, at: dict[str, Any]) -> Replay:
    """The way to replay: in one pass where row groups say that they are nearly in order.

    A job goes on in the way in which it began, so that rejected rows are counted once.
    """
    begins, row_groups = at["step"] == 1 and not at.get("taken"), None
    if begins or at.get("in_order"):
        row_groups = getattr(schedule.source, "row_groups", None)  # of files
    if row_groups is not None:
        made = InOrder(schedule, steps, row_groups)
        if made.proved:
            return made
    return Replay(schedule, steps)


class Replay:
    """The rows of a bounded source, grouped by the step of their arrival; large ones on disk."""

    way: ClassVar[dict[str, Any]] = {}  # of replaying, in positions

    def __init__(self, schedule: MicroBatches, steps: int) -> None:
        self.schedule, self.steps = schedule, steps
        self.seen = 0  # rows of the source, up to here
        self.rejected: dict[str, int] = {}
        self.rejected_rows = SpillBuffer()
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.width = steps  # steps per bucket: one bucket while everything fits in memory
        self.bucket = -1  # the one that is loaded
        self.table = schedule.nothing
        column = schedule.clock.arrival or schedule.event_time
        if column is None:
            raise PlanError("a replay needs an arrival or event_time column")
        self.column = column
        self.offsets: Int64[Array, " steps"] = np.zeros(steps + 2, np.int64)

    def __enter__(self) -> Replay:
        parts, size = [], 0
        reader = self._stepped()
        for table, step in reader:
            parts.append((table, step))
            size += table.nbytes
            if size > SPILL_BYTES:
                break
        else:
            self._adopt(0, parts)
            return self
        self._spill(parts, reader)
        return self

    def __exit__(self, *_: object) -> None:
        if self.folder is not None:
            self.folder.cleanup()

    def rejected_at(self, step: int) -> tuple[dict[str, int], Iterable[pa.Table]]:
        """Rows that came in no step, counted with the first one."""
        return (self.rejected, self.rejected_rows) if step == 1 else ({}, ())

    def mark(self, rows: pa.Table, before: int = 0) -> int:
        """A checksum of the arrivals of rows, continuing that of the rows before them."""
        if not rows.num_rows:
            return before
        times = micros(rows.column(self.column), self.column).combine_chunks()
        return crc32(np.ascontiguousarray(times), before)

    def rows(self, step: int) -> pa.Table:
        """Rows of one step, in source order."""
        bucket = (step - 1) // self.width
        if bucket != self.bucket:
            self._load(bucket)
        start, end = self.offsets[step - self._first : step - self._first + 2]
        return self.table.slice(int(start), int(end - start))

    @property
    def _first(self) -> int:
        return self.bucket * self.width + 1

    def _stepped(self) -> Iterator[Stepped]:
        """Chunks with the step of every row; rows outside the schedule are counted and left out."""
        schedule, clock = self.schedule, self.schedule.clock
        span = cast(int, clock.start_us), cast(int, clock.end_us)
        for chunk in schedule.source.read(None, schedule.max_rows, schedule.columns):
            rows = decoded(chunk.rows)
            self.seen += rows.num_rows
            came = arrivals(rows, self.column, span, clock.ticks)
            kept = rows if came.inside.all() else rows.filter(pa.array(came.inside))
            for some in (chunk.rejected, came.left_out):
                count(self.rejected, some)
            for table in (*chunk.rejected_rows, *self._left_out(rows, came)):
                self.rejected_rows.add(table)
            yield kept, came.step[came.inside]

    def _left_out(self, rows: pa.Table, came: Arrivals) -> Iterator[pa.Table]:
        """Rows in no step, if rejected rows are kept."""
        if PLACE in rows.column_names:
            files = getattr(self.schedule.source, "names", [])
            for reason, those in came.outside.items():
                yield rejected_table(reason, rows.filter(pa.array(those)), files)

    def _adopt(self, bucket: int, parts: list[Stepped]) -> None:
        """Makes the rows of one bucket current, sorted by step (stable: source order within)."""
        self.bucket = bucket
        tables = [table for table, _ in parts] or [decoded(self.schedule.nothing)]
        steps = np.concatenate([np.zeros(0, np.int64), *[step for _, step in parts]])
        table, steps = in_steps(pa.concat_tables(tables), steps)
        self.table = table.combine_chunks()
        edges = np.arange(self._first, self._first + self.width + 1)
        self.offsets = np.searchsorted(steps, edges)

    def _spill(self, parts: list[Stepped], rest: Iterator[Stepped]) -> None:
        """Writes every row to the file of its bucket of steps."""
        self.folder = scratch_folder()
        buckets = min(self.steps, 64)
        self.width = -(-self.steps // buckets)
        schema = parts[0][0].schema.append(pa.field("", pa.int64()))  # known by its place
        writers: dict[int, pa.ipc.RecordBatchFileWriter] = {}
        for source in (parts, rest):
            for table, step in source:
                whole = table.append_column("", pa.array(step))
                home = (step - 1) // self.width
                for bucket in np.unique(home):
                    with in_scratch("sort the replay"):
                        if bucket not in writers:
                            writers[bucket] = pa.ipc.new_file(self._path(bucket), schema)
                        writers[bucket].write(whole.filter(pa.array(home == bucket)))
        with in_scratch("sort the replay"):
            for writer in writers.values():
                writer.close()

    def _load(self, bucket: int) -> None:
        path = Path(self._path(bucket))
        if not path.exists():
            return self._adopt(bucket, [])
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        last = table.num_columns - 1
        steps = table.column(last).to_numpy()
        return self._adopt(bucket, [(table.remove_column(last), steps)])

    def _path(self, bucket: int) -> str:
        folder = cast("tempfile.TemporaryDirectory[str]", self.folder)
        return str(Path(folder.name) / f"{bucket:04d}.arrow")


def in_steps(table: pa.Table, steps: Int64[Array, " rows"]) -> Stepped:
    """Rows in order of their steps; those of one step in the order they had."""
    if not (np.diff(steps) < 0).any():
        return table, steps
    order = np.argsort(steps, kind="stable")
    return table.take(pa.array(order)), steps[order]


class InOrder(Replay):
    """A replay of row groups that are nearly in order, each read once, when a step needs it.

    Row groups state the first and last time of their rows. A row group is due at the first step
    that a row in it or in a later group may be in. So when all groups due at a step are read, so
    are all rows of the step: grouped by step, and in the order of the source within one, they are
    those that `Replay` finds. Rows of later steps wait in memory, which the stated times bound
    beforehand: where that would be much, or nothing is stated, `Replay` reads.
    """

    way: ClassVar[dict[str, Any]] = {"in_order": True}

    def __init__(
        self, schedule: MicroBatches, steps: int,
        row_groups: Callable[[str], list[RowGroup] | None],
    ) -> None:  # fmt: skip
        super().__init__(schedule, steps)
        clock = schedule.clock
        groups = row_groups(self.column) or []
        first, last = cast(int, clock.start_us), cast(int, clock.end_us) - 1
        spans = np.array([group.span or (first, last) for group in groups], object).reshape(-1, 2)
        within = np.clip(spans, first, last).astype(np.int64)
        due, ends = (clock.ticks.numbers(times) + 1 for times in within.T)
        self.due = np.minimum.accumulate(due[::-1])[::-1]
        self.ends = np.cumsum([group.rows for group in groups], dtype=np.int64)
        self.proved = bool(groups) and self._waits_little(groups, ends)
        self._waiting: list[Stepped] = []
        self._counted: dict[int, tuple[dict[str, int], SpillBuffer]] = {}

    def _waits_little(self, groups: list[RowGroup], ends: Int64[Array, " groups"]) -> bool:
        """Whether few rows wait for their steps at any time."""
        places = np.arange(len(groups))
        gone = np.maximum(np.searchsorted(self.due, ends, side="right") - 1, places + 1)
        for sizes, most in (("rows", MOST_WAITING), ("nbytes", SPILL_BYTES // 4)):
            held = np.zeros(len(groups) + 1, np.int64)
            size = np.array([getattr(group, sizes) for group in groups], np.int64)
            np.add.at(held, places, size)
            np.add.at(held, gone, -size)
            if np.cumsum(held).max() > most:
                return False
        return True

    def __enter__(self) -> InOrder:
        self._reader = self._stepped()
        return self

    def rows(self, step: int) -> pa.Table:
        """See `Replay`."""
        while (due := self._next_due()) <= step:
            part = next(self._reader, None)
            counted = self.rejected, self.rejected_rows
            self.rejected, self.rejected_rows = {}, SpillBuffer()
            self._count(due, *counted)
            if part is None:
                break
            self._waiting.append(self._by_step(*part, due))
        found, waiting = [], []
        for table, steps in self._waiting:
            first, end = np.searchsorted(steps, (step, step + 1))
            if first < end:
                found.append(table.slice(int(first), int(end - first)))
            if end < len(steps):
                waiting.append((table.slice(int(end)), steps[end:]))
        self._waiting = waiting
        return pa.concat_tables(found or [decoded(self.table)])

    def rejected_at(self, step: int) -> tuple[dict[str, int], Iterable[pa.Table]]:
        """Rows that came in no step, counted with the step at which they were due."""
        return self._counted.pop(step, ({}, ()))

    def _next_due(self) -> int:
        """When the row group that holds the next row is due; behind all of them, the last step."""
        group = int(np.searchsorted(self.ends, self.seen, side="right"))
        return int(self.due[group]) if group < len(self.due) else self.steps

    def _count(self, due: int, rejected: dict[str, int], rows: SpillBuffer) -> None:
        """Rejected rows of one chunk."""
        known, kept = self._counted.setdefault(due, ({}, SpillBuffer()))
        count(known, rejected)
        for table in rows:
            kept.add(table)

    def _by_step(self, table: pa.Table, steps: Int64[Array, " rows"], due: int) -> Stepped:
        """Rows of one chunk; SourceError if one is in a step before that at which it was due."""
        table, steps = in_steps(table, steps)
        if len(steps) and steps[0] < due:
            raise SourceError(MISSTATED)
        return table, steps
