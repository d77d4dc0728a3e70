"""A group-by whose unit table may be larger than memory: hash partitions swept one after the other.

Every unit belongs to one partition by the low bits of its fingerprint, so the rows of a micro-batch
fall apart into rows of partitions that never meet. Each is bounded in turn against its own table,
which is read from disk and written back when memory does not hold them all. A unit's rows keep
their order and no unit sees another's, so every release is the same, bit for bit.

The files are a cache, not the state: log and checkpoint are what survives a crash.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from streamveil.errors import StoreError
from streamveil.operators.bounding import Passed, UnitRows, UnitTable, unit_stage
from streamveil.operators.group_by import GroupBy, Pairs
from streamveil.operators.rows import groups_of
from streamveil.operators.state import State, parts
from streamveil.types import Array, UInt64

PARTS = 32
PRIVATE = 0o600
KIND = "swept-group-by"


@dataclass(repr=False)  # secret
class Budgeted:
    """How many bytes of unit tables may stay in memory, and how many do."""

    limit: int
    scratch: Path
    resident: int = 0


class PartedTable:
    """The units of one scope in `PARTS` tables, some of them on disk.

    A sweep visits them in order. When memory is full the table just left is the one written out:
    it is the one needed last, so what stays, stays, and the rest streams past.
    """

    def __init__(self, room: Budgeted) -> None:
        self.room = room
        self.tables: list[UnitTable | None] = [None] * PARTS
        self.stored = [False] * PARTS
        self.unit_counts = [0] * PARTS
        self.sizes = [0] * PARTS
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def units(self) -> int:
        """Units with at least one accepted row."""
        return sum(self.unit_counts)

    @property
    def nbytes(self) -> int:
        """Bytes of all tables, wherever they are."""
        return sum(self.sizes)

    def take(self, part: int) -> UnitTable | None:
        """The table of a partition, from memory or from disk; it counts as not resident."""
        table = self.tables[part]
        if table is not None:
            self.room.resident -= self.sizes[part]
            self.tables[part] = None
            return table
        if not self.stored[part]:
            return None
        return UnitTable(*(array.copy() for array in self.mapped(part).values()))

    def put(self, part: int, table: UnitTable) -> None:
        """Keeps a table in memory if there is room, else on disk."""
        self.unit_counts[part], self.sizes[part] = table.units, table.nbytes
        if self.room.resident + table.nbytes <= self.room.limit:
            self.room.resident += table.nbytes
            self.tables[part] = table
            return
        for name in UnitTable.NAMES:
            write(self._path(part, name), getattr(table, name))
        self.stored[part] = True

    def arrays(self, part: int) -> dict[str, Array]:
        """The arrays of a partition; those on disk are maps of files that never change."""
        table = self.tables[part]
        if table is not None:
            return {name: getattr(table, name) for name in UnitTable.NAMES}
        return self.mapped(part) if self.stored[part] else {}

    def mapped(self, part: int) -> dict[str, Array]:
        """The arrays of a partition on disk."""
        return {name: np.load(self._path(part, name), mmap_mode="r") for name in UnitTable.NAMES}

    def __del__(self) -> None:
        """The scope is over: its memory is free again, its files go with the folder."""
        kept = zip(self.tables, self.sizes, strict=True)
        self.room.resident -= sum(size for table, size in kept if table is not None)

    def _path(self, part: int, name: str) -> Path:
        if self._folder is None:
            self.room.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder = tempfile.TemporaryDirectory(dir=self.room.scratch)
        return Path(self._folder.name) / f"{part}-{name}.npy"


def write(path: Path, array: Array) -> None:
    """A new file in place of the old one: whoever has mapped the old one keeps it."""
    partial = path.with_suffix(".partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT, PRIVATE), "wb") as file:
            np.save(file, array, allow_pickle=False)
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write swept state to disk: {error.strerror}") from error


@dataclass(frozen=True, kw_only=True)
class SweptGroupBy(GroupBy):
    """`GroupBy` with its unit tables in swept partitions. Keys and windows stay in memory."""

    room: Budgeted = field(compare=False, repr=False)

    def _pass_units(
        self,
        state: State,
        pairs: Pairs,
        names: UInt64[Array, "pairs 2"],
        unit: UInt64[Array, " pairs"],
    ) -> Passed:
        weight, hidden = self.public_facts(state, names, pairs.windows)
        rows = UnitRows(unit, groups_of(names, pairs.windows), weight, hidden)
        passed = Passed(np.zeros(len(unit), np.bool_), np.zeros(len(unit), np.bool_))
        for period, mine in parts(pairs.periods):
            table = self._parted(state, period)
            homes = (unit[mine] % np.uint64(PARTS)).astype(np.uint8)
            order = np.arange(len(unit))[mine][np.argsort(homes, kind="stable")]
            ends = np.cumsum(np.bincount(homes, minlength=PARTS))
            for part, at in enumerate(np.split(order, ends[:-1])):
                if len(at):
                    here = UnitRows(*(column[at] for column in rows))
                    passed.accepted[at], passed.first[at] = self._visit(table, part, here)
        return passed

    def _visit(self, table: PartedTable, part: int, rows: UnitRows) -> Passed:
        by_group = any(lane.kind == "units" for lane in self.plain_lanes)
        held = table.take(part) or UnitTable.empty(self.bounds, by_group=by_group)
        passed = unit_stage(held, rows, self.bounds)
        table.put(part, held)
        return passed

    def _parted(self, state: State, period: int) -> PartedTable:
        units: dict[int, Any] = state.units
        return cast(PartedTable, units.setdefault(period, PartedTable(self.room)))

    def save(self, state: State) -> dict[str, Array]:
        """See `Operator.save`."""
        arrays = super().save(replace(state, units={}))
        arrays["periods"] = np.array(list(state.units), np.int64)
        for period in state.units:
            for part in range(PARTS):
                held = self._parted(state, period).arrays(part)
                arrays |= {f"unit{period}.{part}/{name}": held[name] for name in held}
        return arrays

    def load(self, arrays: Mapping[str, Array]) -> State:
        """See `Operator.load`."""
        state = super().load({**arrays, "periods": np.zeros(0, np.int64)})
        for period in arrays["periods"].tolist():
            table = self._parted(state, period)
            for part in range(PARTS):
                start = f"unit{period}.{part}/"
                if f"{start}unit" in arrays:
                    table.put(part, UnitTable(*(arrays[start + n].copy() for n in UnitTable.NAMES)))
        return state


def swept(operator: GroupBy, memory: int, scratch: Path) -> SweptGroupBy:
    """The same group-by with at most about `memory` bytes of unit tables in memory."""
    settings = {f.name: getattr(operator, f.name) for f in fields(operator) if f.init}
    room = Budgeted(memory, scratch)
    return SweptGroupBy(**{**settings, "kind": KIND, "room": room})
