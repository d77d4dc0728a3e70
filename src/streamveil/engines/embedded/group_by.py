"""The group-by in one process: any number of units, within a memory limit if one is given.

Few units live in one table. From `LARGE` units on (before rows that bring so many), or when
doubling that table would pass the limit, they are divided into partitions, which grow one at a time
and of which as many stay in memory as the limit allows (`engines.embedded.tables`). No release
depends on where a unit lives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from streamveil.batch import Batch
from streamveil.core.noise.keyed import Noise
from streamveil.dataflow.bounding import Passed, UnitRows, UnitTable
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.release_tables import DrawnRelease
from streamveil.dataflow.state import State
from streamveil.dataflow.unit_kernels import WORDS
from streamveil.engines.embedded.tables import NEVER, PARTS, PartedTable, Room, unseen
from streamveil.errors import PlanError
from streamveil.types import Array

LARGE = 1 << 15  # units from which on a table is divided
WORK = 200 << 20  # bytes for micro-batches being read, folded and written
HELD = "held"  # names the last micro-batch that a saved partition holds
Portion = Callable[[], dict[str, Array]]
SMALLEST_SHARE = 16 << 20  # bytes of units below which a limit is refused


@dataclass(frozen=True, kw_only=True)
class EmbeddedGroupBy(GroupBy):
    """`GroupBy` with its units in one table or, when they are many, in partitions.

    Memory: with a limit, `Room.limit` is what the limit leaves for units: less what the process had
        before, `WORK`, and twice the keys with their counters (their tables double).
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
        """Whether a table is too large to be one: it may double while it takes these rows."""
        tables = [table, *state.units.values()]
        held = sum(one.nbytes for one in tables if isinstance(one, UnitTable))
        doubled = held + table.nbytes + 2 * rows * table.nbytes // table.capacity
        return table.units >= LARGE or not self.room.holds(doubled)

    def _fills(self, table: UnitTable, rows: UnitRows) -> bool:
        """Whether these rows bring so many units that a table would be divided right after them."""
        if self.room.limit is not None or table.units + len(rows.unit) < LARGE:
            return False
        heads = np.array(table.head, np.int64)
        return table.units + unseen(rows.unit, heads, WORDS[table.shape.layout]) >= LARGE

    def _make_room(self, state: State) -> None:
        """Gives the units what the keys leave."""
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
        """One partition: a map of a file where a copy would pass the limit; nothing once over."""
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
        parted.ahead[:] = NEVER  # what a scope had not saved when it was over
        for part in range(PARTS):
            start = place(period, part)
            if f"{start}/{HELD}" in arrays:
                parted.ahead[part] = arrays[f"{start}/{HELD}"]
            if f"{start}/{UnitTable.NAMES[0]}" in arrays:
                parted.put(part, table_of(arrays, start).copied())
        return parted


def place(period: int, part: int) -> str:
    """How the arrays of one partition are named in a checkpoint."""
    return f"unit{period}.{part}"


def table_of(arrays: Mapping[str, Array], start: str) -> UnitTable:
    """The unit table under a name, without a copy."""
    return UnitTable(*(arrays[f"{start}/{name}"] for name in UnitTable.NAMES))


def embedded(operator: GroupBy, room: Room, available: int | None = None) -> EmbeddedGroupBy:
    """The same group-by, keeping its units in a room."""
    settings = {f.name: getattr(operator, f.name) for f in fields(operator) if f.init}
    return EmbeddedGroupBy(**settings, room=room, available=available)


def within(operator: GroupBy, memory: int | None, used: int, scratch: Path) -> EmbeddedGroupBy:
    """The same group-by in a process that has `used` bytes and may have `memory` (None: any)."""
    if memory is None:
        return embedded(operator, Room(None, scratch))
    available = memory - used - WORK
    if available < SMALLEST_SHARE:
        least = used + WORK + SMALLEST_SHARE
        raise PlanError(
            f"a memory limit of {memory / 2**20:,.0f} MiB leaves nothing for state: program and"
            f" micro-batches take {(used + WORK) / 2**20:,.0f} MiB.\n"
            f"  to fix  give at least {least / 2**20:,.0f} MiB"
        )
    return embedded(operator, Room(available, scratch), available)
