"""Joins by the privacy unit on live data: rows meet the rows of their unit that are still kept.

At each step the other relations are read first, then the stream. For each unit, the newest rows of
the other relation are kept, as many as the query declares (`joins.newest`); a row of the stream
meets these. Where both are streams of events (`within_us`), rows of the stream are kept likewise,
and a row of the other relation meets them when it comes: each pair is found once, by its later row.
Such rows are forgotten when a step begins twice the interval after their time. In a LEFT JOIN a row
that has met nothing comes out alone then, or as soon as newer rows of its unit take its place.

Proof: the rows that a relation keeps of a unit are a function of that unit's rows in it and of the
    times at which steps begin, which are public. The rows that a row meets are a function of its
    unit's rows: those that came in an earlier step, or in this step if their relation is read
    first. So without one unit all other rows come out as they were, in their order: neighbours stay
    neighbours, as in `plan.joins`, and later stages bound and charge pairs as rows of any source.
    No limit is shared: memory for one unit's rows never takes the place of another's. Rows of
    others may move the ends of chunks, but these decide nothing, not even which pairs of a unit
    come first and pass the bounding: the state after a relation was read is that of all its rows
    together, each row meets only kept rows, and its pairs stand together (`joins.near`). A row that
    has met nothing (`Waiting`) follows the pairs of the row that takes its place, which is of the
    same unit, or comes at the time at which a step begins, before all other rows.
Memory: so many rows of each unit and relation, in the columns after the relation's own steps. A row
    of the stream makes as many pairs at most.
Recovery: kept rows are in files of the job's state, one for each relation, which only grow. A row
    is durable there before a position counts on it, and a position says how many bytes count, with
    a hash of them. Bytes beyond, of a process that died, are overwritten. When most rows of a file
    are no longer kept, a new file is begun with those that are; the old one is removed once a
    position names the new one.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.connectors import Chunk, Source, decoded, hand_on, open_source
from streamveil.connectors.manifest import append, chained
from streamveil.connectors.rejected_rows import PLACE, beside, fit
from streamveil.disk import make_directory
from streamveil.errors import StoreError, require_outer
from streamveil.expressions import compile_unit
from streamveil.plan.combine import numbered, plain, wide
from streamveil.plan.joins import FAR_US, OwnJoin, joined, met, newest, side_by_side, times_of
from streamveil.plan.own_rows import (
    BESIDE,
    WITH_OTHERS,
    OwnRows,
    after_step,
    after_steps,
    nothing_else,
    passing,
)
from streamveil.types import Array, Int64

KEPT = "joined-{}"  # folder of a relation, in the job's state
NAMES = b"names"  # of the columns of an entry
SIZE_BYTES = 8  # before each entry of a file
LEAST_BYTES = 1 << 20  # of a file that may be followed by a shorter one
Rows = tuple[pa.Table, Any]  # with the unit of each


class LiveRows:
    """The rows of a stream after its steps, some of them joins: read and resumed as one source."""

    bounded = False

    def __init__(self, spec: OwnRows, inner: Source) -> None:
        self.spec, self.inner = spec, inner
        schema = inner.schema()
        self._names = schema.names  # of its columns now: a later file may tell others
        self._stages = stages(spec, schema.empty_table())
        self._ties = [
            tie_of(spec, place, rows) for place, rows in enumerate(self._stages[:-1])
            if isinstance(spec.steps[place], WITH_OTHERS)
        ]  # fmt: skip
        self._at: str | None = None  # of the stream
        self._reached: str | None = None
        self._folder: Path | None = None

    def schema(self) -> pa.Schema:
        """See `Source.schema`."""
        return self._named(self._stages[-1]).schema

    def keep_in(self, folder: Path) -> None:
        """Takes the folder of the job's state: each relation has a folder there."""
        self._folder = folder
        hand_on(self.inner, "keep_in", folder)
        for tie in self._ties:
            hand_on(tie.source, "keep_in", tie.home(folder))

    def committed(self, position: str | None) -> None:
        """Tells all sources what is durable."""
        if position is None:
            return
        at = json.loads(position)
        hand_on(self.inner, "committed", at["stream"])
        for tie, place in zip(self._ties, at["others"], strict=True):
            hand_on(tie.source, "committed", place["source"])
            if self._folder is not None:
                tie.clear(self._folder, place)

    def begin_step(self, start_us: int) -> None:
        """Forgets rows whose time is too far behind the time at which a step begins."""
        for tie in self._ties:
            tie.forget(start_us)

    def read(
        self, position: str | None, max_rows: int, columns: list[str] | None = None
    ) -> Iterator[Chunk]:
        """See `Source.read`; a chunk may hold more rows than asked for."""
        if position != self._reached or position is None:
            self._resume(position)
        for tie in self._ties:
            if isinstance(tie, LeftTie) and (alone := tie.passed())[0].num_rows:
                rows = self._rest(tie.place + 1, *alone)
                yield self._chunk(rows, columns, Chunk(rows[0], self._here()))
        for tie in self._ties:
            for chunk in tie.source.read(tie.at, max_rows, tie.names):
                fresh = tie.taken(decoded(chunk.rows.select(tie.names)))
                met = self._rest(tie.place + 1, *tie.met(fresh))
                tie.keep(fresh)
                tie.at = chunk.position
                yield self._chunk(met, columns, Chunk(chunk.rows, self._here(), chunk.rejected))
        for chunk in self.inner.read(self._at, max_rows, self._names):
            table = decoded(chunk.rows)
            units = plain(compile_unit(self.spec.unit, table.schema)(table))
            rows = self._rest(0, table, units)
            self._at = chunk.position
            yield self._chunk(rows, columns, replace(chunk, position=self._here()))

    def _chunk(self, rows: Rows, columns: list[str] | None, came: Chunk) -> Chunk:
        made = self._named(rows)
        if columns is not None:
            made = made.select([*columns, *({PLACE} & {*made.column_names})])
        told = tuple(beside(table, made.schema) for table in came.rejected_rows)
        return replace(came, rows=made, rejected_rows=told)

    def _rest(self, first: int, table: pa.Table, units: Any) -> Rows:
        """Rows that were just read, after all steps from `first` on."""
        ties = {tie.place: tie for tie in self._ties}
        for place, step in enumerate(self.spec.steps[first:], first):
            table, units = passing(step, table, units)
            if place in ties:
                ties[place].keep_own((table, units))
                table, units = ties[place].beside(table, units)
            else:
                later = self.spec.steps[place + 1 :]
                table, units = after_step(step, table, units, later)
        return table, units

    def _named(self, rows: Rows) -> pa.Table:
        table, units = rows
        columns = dict(zip(table.column_names, table.columns, strict=True))
        return pa.table({**columns, self.spec.person: units})

    def _here(self) -> str:
        """The position of all relations, and the size of the kept rows of each."""
        others = [tie.position() for tie in self._ties]
        self._reached = json.dumps({"stream": self._at, "others": others})
        return self._reached

    def _resume(self, position: str | None) -> None:
        at = json.loads(position or "{}")
        self._at, self._reached = at.get("stream"), position
        for tie, place in zip(self._ties, at.get("others", [{}] * len(self._ties)), strict=True):
            tie.resume(self._folder, place)


def tie_of(spec: OwnRows, place: int, before: Rows) -> Tie:
    """The `Tie` of a step whose other relation is live."""
    step: Any = spec.steps[place]
    waits = isinstance(step, OwnJoin) and step.how == "left" and step.within_us is not None
    return (LeftTie if waits else Tie)(spec, place, before)


class Tie:
    """A step whose other relation is live: its source, and the rows kept for pairs."""

    def __init__(self, spec: OwnRows, place: int, before: Rows) -> None:
        step: Any = spec.steps[place]
        other: OwnRows = step.other
        self.place, self.step, self.other = place, step, other
        self.later = spec.steps[place + 1 :]
        self.source = open_source(other.kind, other.options, other.event_time)
        schema = self.source.schema()
        self.names = schema.names
        self.before = before
        empty = self.taken(self.nothing())
        self.within: int | None = getattr(step, "within_us", None)
        self.kept = list[NewestRows]()
        if isinstance(step, OwnJoin):
            self.kept.append(NewestRows("others", empty, other.event_time, step.kept))
        if self.within is not None:
            kind = Waiting if step.how == "left" else NewestRows
            self.kept.append(kind("own", before, step.time, step.kept))
        self.at: str | None = None

    def home(self, folder: Path) -> Path:
        """The folder of its files in a job's state; made when first needed."""
        made = folder / KEPT.format(self.place)
        if not made.exists():  # an existing one is durable since the state was opened
            make_directory(made)
        return made

    def taken(self, table: pa.Table) -> Rows:
        """Rows of the other relation, after its own steps."""
        return after_steps(self.other, table, nothing_else, self.later)

    def met(self, fresh: Rows) -> Rows:
        """The results of new rows of the other relation: pairs, or rows of both (a union)."""
        if self.within is not None:
            return joined(self.step, *self.kept[1].rows, fresh, late=True)
        return BESIDE[type(self.step)](self.step, *self.before, fresh)

    def beside(self, table: pa.Table, units: Any) -> Rows:
        """Rows of the stream, joined with the kept rows of the other relation."""
        theirs = self.kept[0].rows if self.kept else self.taken(self.nothing())
        return BESIDE[type(self.step)](self.step, table, units, theirs)

    def nothing(self) -> pa.Table:
        """No row of the other relation."""
        return decoded(self.source.schema().empty_table())

    def keep(self, fresh: Rows) -> None:
        """Keeps rows of the other relation."""
        for kept in self.kept[:1]:
            kept.add(fresh)

    def keep_own(self, rows: Rows) -> None:
        """Keeps rows of the stream, if later rows of the other relation can meet them."""
        for kept in self.kept[1:]:
            kept.add(rows)

    def forget(self, start_us: int) -> None:
        """Forgets rows of times that are long past."""
        for kept in self.kept:
            if self.within is not None:
                kept.forget(start_us - 2 * self.within)

    def position(self) -> dict[str, Any]:
        """How far the relation is read, and the size of its kept rows."""
        return {"source": self.at, "kept": [kept.size._asdict() for kept in self.kept]}

    def resume(self, folder: Path | None, at: dict[str, Any]) -> None:
        """Goes on from a position."""
        self.at = at.get("source")
        sizes = at.get("kept", [{}] * len(self.kept))
        for kept, size in zip(self.kept, sizes, strict=True):
            kept.resume(None if folder is None else self.home(folder), Size(**size))

    def clear(self, folder: Path, at: dict[str, Any]) -> None:
        """Removes files that no durable position counts on."""
        for kept, size in zip(self.kept, at["kept"], strict=True):
            kept.clear(self.home(folder), size["number"])


class LeftTie(Tie):
    """A LEFT JOIN of two relations of events: rows that met nothing come out once they are old."""

    @property
    def waiting(self) -> Waiting:
        """The kept rows of the stream."""
        kept = self.kept[1]
        assert isinstance(kept, Waiting)  # noqa: S101  (`Tie`)
        return kept

    def met(self, fresh: Rows) -> Rows:
        """See `Tie`."""
        rows, places = met(self.step, self.waiting.rows, fresh, late=True)
        made = self._made(self.waiting.rows, rows, fresh, pa.array(places))
        self.waiting.meet(rows)
        return made

    def beside(self, table: pa.Table, units: Any) -> Rows:
        """See `Tie`; rows that met nothing come after the row that takes their place."""
        fresh = decoded(table.select([name for name in table.column_names if name != PLACE])), units
        rows, places = met(self.step, fresh, self.kept[0].rows, late=False)
        (alone, who), by = self.waiting.come(fresh, rows)
        order = np.argsort(np.concatenate([2 * rows, 2 * by + 1]), kind="stable")
        missing = np.concatenate([np.zeros(len(rows), np.bool_), np.ones(len(by), np.bool_)])
        own = np.concatenate([rows, table.num_rows + np.arange(len(by))])[order]
        their = np.concatenate([places, np.zeros(len(by), np.int64)])[order]
        both = pa.concat_tables([fresh[0], alone]), pa.concat_arrays([wide(units), wide(who)])
        return self._made(both, own, self.kept[0].rows, pa.array(their, mask=missing[order]))

    def keep_own(self, rows: Rows) -> None:
        """See `Tie`: `beside` keeps them."""

    def passed(self) -> Rows:
        """Rows of the stream that come out alone because a step began."""
        own = self.waiting.passed()
        count = own[0].num_rows
        nothing = pa.nulls(count, pa.int64())
        return self._made(own, np.arange(count), self.taken(self.nothing()), nothing)

    def position(self) -> dict[str, Any]:
        """See `Tie`; also the time up to which rows have come out."""
        return super().position() | {"told": self.waiting.since}

    def resume(self, folder: Path | None, at: dict[str, Any]) -> None:
        """See `Tie`."""
        self.waiting.since = at.get("told")
        super().resume(folder, at)

    def _made(self, own: Rows, rows: Int64[Array, " pairs"], other: Rows, places: Any) -> Rows:
        at = pa.array(rows)
        return side_by_side(self.step, (own[0], at), (other[0], places)), wide(own[1]).take(at)


class Size(NamedTuple):
    """A file, and how many of its bytes count."""

    number: int = 0
    size: int = 0
    hash: str = ""


class NewestRows:
    """The newest rows of each unit of one relation, in memory and in a file.

    The kept rows are a function of all rows that came and of the last step that began, so they are
    the same after a restart: no row that comes later or again brings back a forgotten one
    (`newest`), and a row of a time long past ranks behind all kept rows.
    """

    lead = 2  # columns before the relation's own: unit and time

    def __init__(self, name: str, empty: Rows, time: str | None, most: int | None) -> None:
        self.name, self.time, self.most = name, time, most or 0
        self.size = Size()
        self.since: int | None = None  # rows of earlier times are not kept
        self._folder: Path | None = None
        self._columns = [*empty[0].column_names]
        self._empty = self._held = self._entry(empty)
        self._shortest = 0  # bytes of the file when it began

    @property
    def rows(self) -> Rows:
        """The kept rows, in the order in which they came."""
        return self._rows(self._held)

    def _rows(self, held: pa.Table) -> Rows:
        columns = dict(zip(self._columns, held.columns[self.lead :], strict=True))
        return pa.table(columns), plain(held.column(0))

    def add(self, rows: Rows) -> None:
        """Keeps rows, durably, and forgets those that are no longer among the newest."""
        self._add(self._entry(rows))

    def _add(self, entry: pa.Table) -> None:
        entry = entry.filter(entry.column(0).is_valid())
        if not entry.num_rows:
            return
        self._held = self._newest(pa.concat_tables([self._held, entry]))
        self._keep(entry)

    def _keep(self, entry: pa.Table) -> None:
        """Makes rows durable."""
        if self.size.size > max(LEAST_BYTES, 4 * self._shortest):
            self.size = Size(self.size.number + 1)
            self._write(self._held)
            self._shortest = self.size.size
        else:
            self._write(entry)

    def forget(self, before_us: int) -> None:
        """Forgets rows of earlier times; the next file leaves them out."""
        self.since = before_us
        self._held = self._newest(self._held)

    def resume(self, folder: Path | None, size: Size) -> None:
        """Loads the rows that were kept at a position."""
        self._folder, self.size, self._shortest = folder, size, 0
        self._held = self._newest(self._latest(pa.concat_tables([self._empty, *self._entries()])))

    def clear(self, folder: Path, number: int) -> None:
        """Removes the files before this number."""
        for path in folder.glob(f"{self.name}-*"):
            if int(path.name.rpartition("-")[2]) < number:
                path.unlink(missing_ok=True)

    def _entry(self, rows: Rows) -> pa.Table:
        """Rows as they are kept: unit, time, and the columns by their places."""
        table, units = rows
        plain_table = decoded(table.select([name for name in table.column_names if name != PLACE]))
        self._columns = [*plain_table.column_names]
        times, more = pa.array(times_of(table, self.time)), self._more(table.num_rows)
        columns = [units, times, *more, *plain_table.columns]
        return pa.table(columns, names=[str(place) for place in range(len(columns))])

    def _more(self, count: int) -> list[Any]:
        """Further kept columns of new rows, besides unit and time."""
        return []

    def _latest(self, entries: pa.Table) -> pa.Table:
        """Each row as it was kept last."""
        return entries

    def _newest(self, table: pa.Table) -> pa.Table:
        """The rows to keep. Rows of times long past may be dropped first or last: no difference."""
        if self.since is not None:
            table = table.filter(pa.array(np.asarray(table.column(1)) >= self.since))
        times = np.asarray(table.column(1))
        return table.filter(pa.array(newest(plain(table.column(0)), times, self.most)))

    def _path(self) -> Path | None:
        folder = self._folder
        return None if folder is None else folder / f"{self.name}-{self.size.number}"

    def _write(self, entry: pa.Table) -> None:
        out = pa.BufferOutputStream()
        schema = entry.schema.with_metadata({NAMES: json.dumps(self._columns)})
        with pa.ipc.new_stream(out, schema) as writer:
            writer.write_table(entry.cast(schema))
        data = out.getvalue().to_pybytes()
        data = len(data).to_bytes(SIZE_BYTES, "little") + data
        path, (number, size, hash) = self._path(), self.size
        if path is not None:
            append(path, size, data)
        self.size = Size(number, size + len(data), chained(hash, data))

    def _entries(self) -> Iterator[pa.Table]:
        path = self._path()
        if not self.size.size:
            return
        data = b""
        if path is not None:
            with suppress(OSError), path.open("rb") as file:
                data = file.read(self.size.size)
        entries, at = [], 0
        while at < len(data):
            end = at + SIZE_BYTES + int.from_bytes(data[at : at + SIZE_BYTES], "little")
            entries.append(data[at:end])
            at = end
        if at != self.size.size or reduce(chained, entries, "") != self.size.hash:
            raise lost()
        for entry in entries:
            yield self._as_now(pa.ipc.open_stream(pa.py_buffer(entry[SIZE_BYTES:])).read_all())

    def _as_now(self, entry: pa.Table) -> pa.Table:
        """Kept rows with today's columns: another first file may give other undeclared ones."""
        told = (entry.schema.metadata or {}).get(NAMES)
        names = self._columns if told is None else json.loads(told)
        own = dict(zip(names, entry.columns[self.lead :], strict=True))
        absent = pa.nulls(entry.num_rows)
        columns = [*entry.columns[: self.lead], *(own.get(name, absent) for name in self._columns)]
        return fit(pa.table(columns, names=self._empty.column_names), self._empty.schema)[0]


class Waiting(NewestRows):
    """The newest rows of the stream of a LEFT JOIN, and whether each has met a row.

    Each has a number, in the order in which they came. A row that meets one for the first time is
    kept again under its number.
    """

    lead = 4  # also the number, and whether it met a row

    def __init__(self, name: str, empty: Rows, time: str | None, most: int | None) -> None:
        self._next = 0
        self._until: int | None = None
        super().__init__(name, empty, time, most)

    def come(self, rows: Rows, meets: Int64[Array, " pairs"]) -> tuple[Rows, Int64[Array, " rows"]]:
        """Keeps rows; returns the rows that met nothing and are replaced, and after which new row.

        A row of no unit, or of a time that has passed, replaces itself.
        """
        entry, count = self._entry(rows), rows[0].num_rows
        self._next += count
        entry = entry.set_column(3, "3", pa.array(np.isin(np.arange(count), meets)))
        both = pa.concat_tables([self._held, entry])
        who = numbered([plain(both.column(0))])
        both = both.filter(pa.array(np.isin(who, who[len(who) - count :])))  # of units that come
        by = replaced(plain(both.column(0)), np.asarray(both.column(1)), self.most, self.since)
        alone = (by >= 0) & ~np.asarray(both.column(3))
        self._add(entry)
        return self._rows(both.filter(pa.array(alone))), by[alone] - (both.num_rows - count)

    def meet(self, rows: Int64[Array, " pairs"]) -> None:
        """Marks kept rows, by their places, as having met a row."""
        found = np.asarray(self._held.column(3))
        new = np.setdiff1d(rows, np.flatnonzero(found))
        if not len(new):
            return
        after = np.isin(np.arange(len(found)), new) | found
        self._held = self._held.set_column(3, "3", pa.array(after))
        self._keep(self._held.take(pa.array(new)))

    def forget(self, before_us: int) -> None:
        """Marks rows of earlier times to come out: see `passed`."""
        self._until = before_us

    def passed(self) -> Rows:
        """Forgets rows of times that are long past; returns those that met nothing."""
        held, self.since = self._held, self._until
        self._held = self._newest(held)
        gone = np.asarray(held.column(1)) < (-FAR_US if self.since is None else self.since)
        return self._rows(held.filter(pa.array(gone & ~np.asarray(held.column(3)))))

    def _more(self, count: int) -> list[Any]:
        return [pa.array(self._next + np.arange(count)), pa.array(np.zeros(count, np.bool_))]

    def _latest(self, entries: pa.Table) -> pa.Table:
        numbers = np.asarray(entries.column(2))
        self._next = int(numbers.max(initial=-1)) + 1
        _, last = np.unique(numbers[::-1], return_index=True)
        return entries.take(pa.array(len(numbers) - 1 - last))


def replaced(
    units: Any, times: Int64[Array, " rows"], most: int, since: int | None
) -> Int64[Array, " rows"]:
    """For each row, the place of the row that pushes it out of its unit's newest; or -1.

    >>> replaced(pa.array([1, 2, 1, 1, None]), np.array([5, 5, 9, 7, 8]), 2, None).tolist()
    [3, -1, -1, -1, 4]
    """
    found = np.full(len(times), -1)
    heaps = defaultdict[int, list[tuple[int, int]]](list)
    who, known = numbered([units]).tolist(), np.asarray(units.is_valid()).tolist()
    for place, (unit, time) in enumerate(zip(who, times.tolist(), strict=True)):
        if not known[place] or (since is not None and time < since):
            found[place] = place
            continue
        heappush(heaps[unit], (time, place))
        if len(heaps[unit]) > most:
            found[heappop(heaps[unit])[1]] = place
    return found


def stages(spec: OwnRows, table: pa.Table) -> list[Rows]:
    """Empty rows with the columns before each step (after its condition), and after the last."""
    table = decoded(table)
    rows = table, plain(compile_unit(spec.unit, table.schema)(table))
    found = []
    for place, step in enumerate(spec.steps, 1):
        rows = passing(step, *rows)
        found.append(rows)
        if isinstance(step, WITH_OTHERS):
            other: Any = step.other
            schema = open_source(other.kind, other.options, other.event_time).schema()
            require_outer(schema.names)
            theirs = after_steps(
                other, decoded(schema.empty_table()), nothing_else, spec.steps[place:]
            )
            rows = BESIDE[type(step)](step, *rows, theirs)
        else:
            rows = after_step(step, *rows, spec.steps[place:])
    return [*found, rows]


def lost() -> StoreError:
    """The error for kept rows that differ from those of a position."""
    return StoreError(
        "the rows that a join keeps in the state directory are lost or of another moment.\n"
        "  to fix  restore the whole directory from a backup of one moment"
    )
