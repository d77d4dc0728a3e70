"""The engines: one process (here) or Spark, with the same operators; here within a memory limit.

Few units live in one table. From `LARGE` units on (before rows that bring so many), or when
doubling that table would exceed the limit, units are divided into partitions. Partitions grow one
at a time, and as many stay in memory as the limit allows. No release depends on where a unit lives.

The low bits of a unit's fingerprint choose its partition, so the rows of a micro-batch fall into
partitions that never meet. Without a limit one loop visits rows as they come, each in its own
table. With a limit, each partition is bounded in turn. Either way a unit's rows keep their order
and no unit sees rows of another, so the answer is the same, bit for bit.

With several threads, each visits the rows of its own partitions.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any, cast

import numpy as np

from streamveil.batch import Batch
from streamveil.compiled import at_once
from streamveil.core.noise import Noise
from streamveil.core.sensitivity import Bounds
from streamveil.dataflow.bounding import (
    SMALLEST,
    Passed,
    Shape,
    UnitRows,
    UnitTable,
    decide,
    grow_table,
    unit_stage,
)
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.release_tables import DrawnRelease
from streamveil.dataflow.state import BatchScratch, State
from streamveil.dataflow.unit_kernels import BUCKET, HEAD, WORDS
from streamveil.dataflow.unit_layout import (
    count_unseen,
    deal,
    measure_parts,
    put_together,
    take_share,
)
from streamveil.errors import PlanError, StoreError
from streamveil.types import Array, Int64, UInt64

# ---- dividing a unit table

GROWTH = 50  # percent by which a part grows
SAMPLE = 13  # units are counted in about 2^13 to 2^14 rows


def split(table: UnitTable, parts: int) -> list[UnitTable]:
    """The units of a table in `parts` tables, by the low bits of their fingerprints."""
    shape = table.shape
    words, link = WORDS[shape.layout], 2 + shape.width
    kind = np.array([shape.layout, words, link], np.int64)
    sizes = np.zeros((parts, 2), np.int64)
    measure_parts(table.slots, kind, sizes)
    made = [part_of(shape, (part + 1) / parts) for part in range(parts)]
    for new, (units, granules) in zip(made, sizes.tolist(), strict=True):
        make_room(new, units)
        new.lengthen("pool", max(SMALLEST, granules) * shape.group_bytes)
        new.meta[:2] = units, granules
    heads = np.array([new.head for new in made], np.int64).reshape(-1)
    deal(table.slots, table.pool, kind, heads, np.zeros(words * BUCKET, np.uint64))
    return made


def part_of(shape: Shape, share: float) -> UnitTable:
    """An empty part of a set, of a size of its own; `share` in (0, 1] of the set.

    The sizes of a set cover one growth evenly, and still do when all have grown: so at any time
    only a few tables are about to grow.
    """
    slots = int(4 * SMALLEST * (1 + GROWTH / 100) ** share) // BUCKET * BUCKET
    return UnitTable.of(shape._replace(growth=GROWTH), slots)


def make_room(table: UnitTable, units: int) -> None:
    """Grows a table in one go until it can take `units` units."""
    if units > table.most:
        grow_table(table, units)


def unseen(unit: UInt64[Array, " rows"], heads: Int64[Array, " cells"], words: int) -> int:
    """How many units of some rows are in none of the tables with these heads; a low estimate.

    Fingerprints are uniform, so those with some bits zero are a fair sample. The sample's deviation
    is subtracted, so that memory is not reserved in vain; if it was too little, a few parts grow
    again.
    """
    bits = max(0, len(unit).bit_length() - SAMPLE - 1)
    met = np.zeros(2 * BUCKET * (1 + (len(unit) >> bits) // BUCKET), np.uint64)
    found = count_unseen(unit, bits, heads, words, met)
    return min(len(unit), (found - isqrt(found) if bits else found) << bits)


def share_of(rows: UnitRows, share: int, shares: int, scratch: BatchScratch) -> UnitRows:
    """The rows of every `shares`-th partition from number `share` on, in order."""
    n = len(rows.unit)
    room = tuple(
        scratch.take(name, n + 1, column.dtype.type)
        for name, column in zip(UnitRows._fields, rows, strict=True)
    )
    n = take_share(tuple(rows), room, np.uint64(shares - 1), np.uint64(share))
    return UnitRows(*(column[:n] for column in room))


def together(unit: UInt64[Array, " rows"], found: list[Passed]) -> Passed:
    """The answers for all rows, from those for the rows of each share."""
    passed = Passed(np.empty(len(unit), np.bool_), np.empty(len(unit), np.uint8))
    accepted, first = (np.concatenate(some) for some in zip(*found, strict=True))
    starts = np.cumsum([0, *(len(some.accepted) for some in found[:-1])])
    put_together(unit, starts, (accepted, first), (passed.accepted, passed.first))
    return passed


# ---- the units of one scope in hash partitions

PARTS = 32
WORTH_THREADS = 1 << 14  # rows of a micro-batch from which on threads divide them
MANY = 4  # new units are counted first if a table has fewer units than so many times the rows
NEVER = np.iinfo(np.int64).max  # a partition is no longer needed
PRIVATE = 0o600
ALIGNMENT = 8
Layout = list[tuple[str, np.dtype[Any], int, int]]  # name, dtype, first and last byte in the file


@dataclass(repr=False)
class Room:
    """How many bytes of unit tables may stay in memory (None: any number), and how many do."""

    limit: int | None
    scratch: Path
    threads: int = 1  # that visit partitions without a limit, at most
    resident: int = 0
    counters: int = 0  # bytes of the counters of all keys, after the last release

    def holds(self, more: int) -> bool:
        """Whether `more` bytes may stay in memory, too."""
        return self.limit is None or self.resident + more <= self.limit


class PartedTable:
    """The units of one scope in `PARTS` tables, some of them on disk.

    A sweep visits them in order. When memory is full, the table just left is written out: it will
    be needed last, so the tables in memory stay there, and the others stream past. Partitions grow
    one after the other, each at a fill of its own, so that no micro-batch waits for all of them.
    The files are a cache, not the state: log and checkpoint survive a crash.
    """

    def __init__(self, room: Room, empty: UnitTable) -> None:
        self.room = room
        self.tables: list[UnitTable | None] = [None] * PARTS
        self.stored: list[Layout | None] = [None] * PARTS
        self.sizes = [0] * PARTS
        self.ahead = np.full(PARTS, -1)  # the last micro-batch that each held when it was loaded
        self._metas = np.zeros((PARTS, len(empty.meta)), np.int64)  # of all, as compiled loops need
        self._heads = np.zeros((PARTS, HEAD), np.int64)
        self._empty = empty
        shares = 1 << (min(room.threads, PARTS).bit_length() - 1)
        self._own = [BatchScratch() for _ in range(shares)]  # of each thread
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def of(cls, table: UnitTable, room: Room, empty: UnitTable) -> PartedTable:
        """The units of one table, divided."""
        parted = cls(room, empty)
        for part, held in enumerate(split(table, PARTS)):
            if held.units:
                parted.put(part, held)
        return parted

    @property
    def units(self) -> int:
        """Units with at least one accepted row."""
        return int(self._metas[:, 0].sum())

    @property
    def nbytes(self) -> int:
        """Bytes of all tables, wherever they are."""
        return sum(self.sizes)

    def bound(self, rows: UnitRows, bounds: Bounds) -> Passed:
        """Decides every row and charges its unit."""
        one_by_one = self.room.limit is not None
        return self._sweep(rows, bounds) if one_by_one else self._visit(rows, bounds)

    def catch_up(self, rows: UnitRows, bounds: Bounds, batch: int) -> Passed:
        """Charges the units of a logged micro-batch in partitions that lacked it when loaded.

        The answer is valid only for the rows of these units; the log has the answers for others.
        """
        behind = self.ahead[rows.unit % np.uint64(PARTS)] < batch
        passed = Passed.none(len(behind))
        here = self.bound(rows.part(behind), bounds)
        passed.accepted[behind], passed.first[behind] = here
        return passed

    def _visit(self, rows: UnitRows, bounds: Bounds) -> Passed:
        """Decides rows in one loop over all partitions, or one over those of each thread.

        Partitions are grown before the loop as far as needed.
        """
        for part, table in enumerate(self.tables):
            if table is None:
                self.put(part, self.take(part))
        tables, before = [t for t in self.tables if t is not None], self._heads.copy()
        heads, metas = self._heads.reshape(-1), self._metas.reshape(-1)
        shares, coming = len(self._own) if len(rows.unit) >= WORTH_THREADS else 1, 0
        if len(rows.unit) * MANY > self.units:
            coming = unseen(rows.unit, heads, WORDS[self._empty.shape.layout])

        def visited(share: int) -> Passed:
            for part in range(share, PARTS, shares) if coming else ():
                make_room(tables[part], tables[part].units + coming // PARTS)
                self._heads[part] = tables[part].head
            own = rows if shares == 1 else share_of(rows, share, shares, self._own[share])
            return decide(tables, heads, metas, own, bounds)

        found = at_once([partial(visited, share) for share in range(shares)])
        passed = found[0] if shares == 1 else together(rows.unit, found)
        for part in np.flatnonzero((before != self._heads).any(axis=1)).tolist():
            self.room.resident += tables[part].nbytes - self.sizes[part]
            self.sizes[part] = tables[part].nbytes
        return passed

    def _sweep(self, rows: UnitRows, bounds: Bounds) -> Passed:
        """Decides rows, one partition after the other."""
        passed = Passed.none(len(rows.unit))
        homes = (rows.unit % np.uint64(PARTS)).astype(np.uint8)
        order = np.argsort(homes, kind="stable")
        ends = np.cumsum(np.bincount(homes, minlength=PARTS))
        for part, at in enumerate(np.split(order, ends[:-1])):
            if len(at):
                held = self.take(part)
                here = unit_stage(held, rows.part(at), bounds)
                passed.accepted[at], passed.first[at] = here
                self.put(part, held)
        return passed

    def take(self, part: int) -> UnitTable:
        """The table of a partition, from memory or from disk; it counts as not resident."""
        table = self.tables[part]
        if table is not None:
            self.room.resident -= self.sizes[part]
            self.tables[part] = None
            return table
        arrays = self.mapped(part)
        if not arrays:
            return part_of(self._empty.shape, (part + 1) / PARTS)
        return UnitTable(*(arrays[name] for name in UnitTable.NAMES)).copied()

    def put(self, part: int, table: UnitTable) -> None:
        """Keeps a table in memory if there is room, else on disk."""
        self._metas[part], self._heads[part] = table.meta, table.head
        table.meta, self.sizes[part] = self._metas[part], table.nbytes
        if self.room.holds(table.nbytes):
            self.room.resident += table.nbytes
            self.tables[part] = table
        else:
            self._store(part, table)

    def shed(self) -> None:
        """Moves tables to disk, the last first, until the rest fits."""
        for part in reversed(range(PARTS)):
            if self.room.holds(0):
                return
            if self.tables[part] is not None:
                self._store(part, self.take(part))

    def _store(self, part: int, table: UnitTable) -> None:
        self.stored[part] = write(self._path(part), table)

    def arrays(self, part: int, *, from_disk: bool = False) -> dict[str, Array]:
        """The arrays of a partition; those on disk are maps of files that never change."""
        table = self.tables[part]
        if table is None:
            return self.mapped(part)
        if from_disk:
            self._store(part, table)
            return self.mapped(part)
        return {name: getattr(table, name) for name in UnitTable.NAMES}

    def holder(self, unit: int) -> UnitTable | None:
        """The partition of a unit, read-only, wherever it is; None if it has no units yet."""
        part = unit % PARTS
        table = self.tables[part]
        if table is not None:
            return table
        arrays = self.mapped(part)
        return UnitTable(*(arrays[name] for name in UnitTable.NAMES)) if arrays else None

    def mapped(self, part: int) -> dict[str, Array]:
        """The arrays of a partition on disk; none if it was never stored."""
        layout = self.stored[part]
        if layout is None:
            return {}
        data = np.memmap(self._path(part), np.uint8, "r")
        return {name: data[start:end].view(kind) for name, kind, start, end in layout}

    def __del__(self) -> None:
        """The scope is over: its memory is free again, its files go with the folder."""
        kept = zip(self.tables, self.sizes, strict=True)
        self.room.resident -= sum(size for table, size in kept if table is not None)

    def _path(self, part: int) -> Path:
        if self._folder is None:
            self.room.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = tempfile.TemporaryDirectory(
                dir=self.room.scratch, ignore_cleanup_errors=True
            )  # the next start removes the rest
        return Path(self._folder.name) / f"{part}.units"


def write(path: Path, table: UnitTable) -> Layout:
    """Replaces a file by a new one; processes that have mapped the old file keep it."""
    partial = path.with_suffix(".partial")
    layout, at = [], 0
    try:
        with os.fdopen(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE), "wb"
        ) as file:
            for name in UnitTable.NAMES:
                array = np.ascontiguousarray(getattr(table, name))
                layout.append((name, array.dtype, at, at + array.nbytes))
                file.write(array.view(np.uint8).data)
                file.write(bytes(-array.nbytes % ALIGNMENT))
                at += array.nbytes + -array.nbytes % ALIGNMENT
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write swept state to disk: {error.strerror}") from error
    return layout


# ---- the group-by over them

LARGE = 1 << 15  # units from which on a table is divided
WORK = 200 << 20  # bytes for micro-batches being read, folded and written
HELD = "held"  # name of the number of the last micro-batch that a saved partition holds
Portion = Callable[[], dict[str, Array]]
SMALLEST_SHARE = 16 << 20  # bytes of units below which a limit is refused


@dataclass(frozen=True, kw_only=True)
class EmbeddedGroupBy(GroupBy):
    """`GroupBy` with its units in one table or, if they are many, in partitions.

    Memory: with a limit, `Room.limit` is the part of it that is left for units: without the memory
        of the process before, `WORK`, and twice the keys with their counters (their tables double).
    """

    room: Room = field(compare=False, repr=False)
    available: int | None = field(default=None, compare=False, repr=False)  # for all of the state

    def unit_table(self, state: State, period: int, unit: int) -> UnitTable | None:
        """See `GroupBy.unit_table`."""
        table: Any = state.units.get(period)
        return table.holder(unit) if isinstance(table, PartedTable) else table

    def bound(self, state: State, period: int, rows: UnitRows) -> Passed:
        """See `GroupBy.bound`."""
        self._make_room(state)
        table: Any = state.units.get(period)
        if table is None:
            table = self._units(state, period)
        if isinstance(table, UnitTable) and (
            self._divides(state, table, len(rows.unit)) or self._fills(table, rows)
        ):
            table = PartedTable.of(table, self.room, self._no_units())
            state.units[period] = cast(UnitTable, table)
        if isinstance(table, PartedTable):
            if state.folds <= table.ahead.max():
                return table.catch_up(rows, self.bounds, state.folds)
            return table.bound(rows, self.bounds)
        return super().bound(state, period, rows)

    def _divides(self, state: State, table: UnitTable, rows: int) -> bool:
        """Whether a table is too large to stay whole: it may double while it takes these rows."""
        if self.room.limit is None:
            return table.units >= LARGE
        tables = [table, *state.units.values()]
        held = sum(one.nbytes for one in tables if isinstance(one, UnitTable))
        doubled = held + table.nbytes + 2 * rows * table.nbytes // table.capacity
        return table.units >= LARGE or not self.room.holds(doubled)

    def _fills(self, table: UnitTable, rows: UnitRows) -> bool:
        """Whether these rows bring so many units that the table would be divided right after."""
        if self.room.limit is not None or table.units + len(rows.unit) < LARGE:
            return False
        heads = np.array(table.head, np.int64)
        return table.units + unseen(rows.unit, heads, WORDS[table.shape.layout]) >= LARGE

    def _make_room(self, state: State) -> None:
        """Gives units the memory that keys leave."""
        if self.available is None:
            return
        keys = sum(held.table.nbytes for held in state.windows.values())
        keys += sum(known.nbytes for known in state.seen.values()) + self.room.counters
        quick = sum(lookup.nbytes for lookup in state.lookups.values())
        self.room.limit = max(0, self.available - 2 * keys - quick)
        for table in state.units.values():
            if isinstance(table, PartedTable):
                table.shed()

    def _no_units(self) -> UnitTable:
        return self._units(State(), 0)

    def draw(self, state: State, step: int, noise: Noise) -> list[DrawnRelease]:
        """See `GroupBy.draw`."""
        made = super().draw(state, step, noise)
        if self.available is not None:
            arrays = [held.to_arrays().values() for held in state.windows.values()]
            tables = sum(held.table.nbytes for held in state.windows.values())
            self.room.counters = sum(a.nbytes for one in arrays for a in one) - tables
        return made

    def fold(self, state: State, batch: Batch, noise: Noise) -> dict[str, Array]:
        """See `Operator.fold`."""
        state.folds += 1
        return super().fold(state, batch, noise)

    def apply(self, state: State, delta: Mapping[str, Array]) -> None:
        """See `Operator.apply`."""
        state.folds += 1
        super().apply(state, delta)

    def save(self, state: State) -> dict[str, Array]:
        """See `Operator.save`."""
        arrays, later = self.portions(state)
        for portion in later:
            arrays |= portion()
        return arrays

    def portions(self, state: State) -> tuple[dict[str, Array], list[Portion]]:
        """See `Operator`: partitions of units are saved one after the other."""
        plain = {k: v for k, v in state.units.items() if isinstance(v, UnitTable)}
        arrays = super().save(replace(state, units=plain))
        arrays["periods"] = np.array(list(state.units), np.int64)
        parted = [period for period in state.units if period not in plain]
        parts = [(period, part) for period in parted for part in range(PARTS)]
        return arrays, [partial(self._portion, state, *where) for where in parts]

    def _portion(self, state: State, period: int, part: int) -> dict[str, Array]:
        """One partition: mapped if a copy would exceed the limit; nothing after the scope's end."""
        table: Any = state.units.get(period)
        if table is None:
            return {}
        held = table.arrays(part, from_disk=not self.room.holds(table.sizes[part]))
        held[HELD] = np.array(state.folds, np.int64)
        return {f"{place(period, part)}/{name}": held[name] for name in held}

    def load(self, arrays: Mapping[str, Array]) -> State:
        """See `Operator.load`."""
        state = super().load({**arrays, "periods": np.zeros(0, np.int64)})
        self._make_room(state)
        for period in arrays["periods"].tolist():
            state.units[period] = self._loaded(state, arrays, period)
        return state

    def _loaded(self, state: State, arrays: Mapping[str, Array], period: int) -> Any:
        """The units of a scope, whether they were saved as one table or in partitions."""
        if f"unit{period}/{UnitTable.NAMES[0]}" in arrays:
            table = table_of(arrays, f"unit{period}")
            if self._divides(state, table, 0):
                return PartedTable.of(table, self.room, self._no_units())
            return table.copied()
        parted = PartedTable(self.room, self._no_units())
        parted.ahead[:] = NEVER  # partitions that were not saved: their scope was over
        for part in range(PARTS):
            start = place(period, part)
            if f"{start}/{HELD}" in arrays:
                parted.ahead[part] = arrays[f"{start}/{HELD}"]
            if f"{start}/{UnitTable.NAMES[0]}" in arrays:
                parted.put(part, table_of(arrays, start).copied())
        return parted


def place(period: int, part: int) -> str:
    """The prefix of the names of one partition's arrays in a checkpoint."""
    return f"unit{period}.{part}"


def table_of(arrays: Mapping[str, Array], start: str) -> UnitTable:
    """The unit table under a name, without a copy."""
    return UnitTable(*(arrays[f"{start}/{name}"] for name in UnitTable.NAMES))


def embedded(operator: GroupBy, room: Room, available: int | None = None) -> EmbeddedGroupBy:
    """The same group-by with its units in a room."""
    settings = {f.name: getattr(operator, f.name) for f in fields(operator) if f.init}
    return EmbeddedGroupBy(**settings, room=room, available=available)


def within(
    operator: GroupBy, memory: int | None, used: int, scratch: Path, threads: int = 1
) -> EmbeddedGroupBy:
    """The same group-by in a process that uses `used` bytes and may use `memory` (None: any)."""
    if memory is None:
        return embedded(operator, Room(None, scratch, threads))
    available = memory - used - WORK
    if available < SMALLEST_SHARE:
        least = used + WORK + SMALLEST_SHARE
        raise PlanError(
            f"a memory limit of {memory / 2**20:,.0f} MiB leaves nothing for state: program and"
            f" micro-batches take {(used + WORK) / 2**20:,.0f} MiB.\n"
            f"  to fix  give at least {least / 2**20:,.0f} MiB"
        )
    return embedded(operator, Room(available, scratch), available)
