"""Pairs of neighbouring inputs for any query: rows of many units, and those of one more unit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch
from streamveil.calendars import Cells
from streamveil.core.sensitivity import Lane
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.grouping import rows_in_hidden_key
from streamveil.dataflow.rows import RowProgram
from streamveil.sketches import HeavyTexts
from streamveil.sketches.operator import SketchQuery

FAR = 1e9  # times beyond every bound
MOST = 1500  # rows of the added unit
BEYOND = 12  # groups that nobody else has rows in
TAKEN = 7.0  # a value of several units, so that one unit takes over another's value
STRIDE = 1_000  # distance between the group numbers of two pairs
HOUR = 3_600_000_000
Examined: TypeAlias = GroupBy | SketchQuery  # what is laid open


class MadeUpRow(tuple[Any, ...]):
    """(step, unit, event time, key number, values): one row of a made-up stream."""

    __slots__ = ()


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Rows in both inputs, and the rows of one unit that are in one input only."""

    shared: tuple[MadeUpRow, ...]
    added: tuple[MadeUpRow, ...]
    ahead: bool  # the unit's rows come first in each micro-batch, else last
    steps: int

    def batches(self, world: World, *, with_unit: bool) -> Iterator[Batch]:
        """The micro-batches, one a step."""
        parts = [self.added, self.shared] if self.ahead else [self.shared, self.added]
        if not with_unit:
            parts = [self.shared]
        for step in range(1, self.steps + 1):
            rows = [row for part in parts for row in part if row[0] == step]
            yield Batch(world.table(rows), step, True, "")  # noqa: FBT003


@dataclass
class World:
    """The made-up table that a query reads: columns for its unit, time, groups and values."""

    operator: Examined
    keys: int  # groups that rows may name
    lanes: tuple[Lane, ...] = ()
    public: tuple[tuple[Any, ...], ...] | None = None
    values: int = 0
    named: tuple[int, ...] = ()
    types: tuple[pa.DataType, ...] = field(default_factory=tuple)
    blocks: int = 1  # pairs that share public groups

    @classmethod
    def of(cls, operator: Examined, keys: int, blocks: int = 1) -> World:
        """The columns that an operator needs, with public groups for `blocks` pairs."""
        if isinstance(operator, SketchQuery):
            kind = pa.string() if operator.text_length else pa.int64()
            return cls(operator, keys, types=(kind,))
        lanes = operator.aggregation.lanes
        values = 1 + max([lane.value for lane in lanes], default=-1)
        named = tuple(sorted({lane.value for lane in lanes if lane.kind == "distinct"}))
        count = len(operator.key_names)
        if operator.public is None or not count:
            types = (pa.int64(),) * count
        else:
            columns = zip(*operator.public, strict=True)
            types = tuple(pa.array(column).type for column in columns)
            keys = min(keys, len(operator.public) // blocks)
        return cls(operator, keys, lanes, operator.public, values, named, types, blocks)

    @property
    def width(self) -> int:
        """Public groups of one pair."""
        return len(self.public or ()) // self.blocks

    def bind(self, schema: pa.Schema) -> RowProgram:
        """The row functions: each reads its column."""
        return RowProgram(
            unit=column("unit"),
            event_us=column("at"),
            where=None,
            keys=tuple(column(f"key{i}") for i in range(len(self.types))),
            values=tuple(column(f"value{i}") for i in range(self.values)),
            named=self.named,
        )

    def table(self, rows: list[MadeUpRow]) -> pa.Table:
        """Rows as the operator reads them."""
        keys = [self.key(int(row[3])) for row in rows]
        columns: dict[str, pa.Array] = {
            "unit": pa.array([row[1] for row in rows], pa.int64()),
            "at": pa.array([row[2] for row in rows], pa.int64()),
        }
        for i, kind in enumerate(self.types):
            columns[f"key{i}"] = pa.array([key[i] for key in keys], kind)
        for i in range(self.values):
            values = [row[4][i] for row in rows]
            columns[f"value{i}"] = pa.array(values, pa.float64())
        return pa.table(columns)

    def key(self, number: int) -> tuple[Any, ...]:
        """The values of a group, by its number among those of its pair."""
        if self.public is not None and self.types:
            place, key = divmod(number, STRIDE)
            return self.public[place * self.width + key % self.width]
        return tuple(self.text(number) if kind == pa.string() else number for kind in self.types)

    def text(self, number: int) -> str:
        """A text by its number; if a sketch cuts long texts, one that it has to cut."""
        sketch = self.operator.sketch if isinstance(self.operator, SketchQuery) else None
        if not isinstance(sketch, HeavyTexts):
            return str(number)
        return str(number).ljust(sketch.length, "e") + "é"


def column(name: str) -> Any:
    """The function that reads a column."""

    def read(table: pa.Table) -> pa.Array:
        found = table.column(name)
        return found.chunk(0) if found.num_chunks == 1 else found.combine_chunks()

    return read


def ends_of(lanes: tuple[Lane, ...], value: int) -> list[float | None]:
    """Values at the bounds of the lanes that read a value, far beyond them, and none."""
    found: list[float | None] = [0.0, TAKEN]
    for lane in lanes:
        if lane.value == value and lane.kind in ("sum", "square", "node"):
            wide = lane.high - lane.low
            found += [lane.low, lane.high, lane.low - FAR * wide, lane.high + FAR * wide]
            found += [(lane.low + lane.high) / 2]
    return found


def drawn(world: World, rng: np.random.Generator, steps: int) -> Pair:
    """A pair: others' rows at random, the unit's rows as one of several attacks."""
    times = instants(world.operator, steps)
    shared = [
        row_of(world, rng, times, (step, 1 + unit, key))
        for key in range(world.keys)
        for unit in range(int(rng.integers(0, 5)))
        for step in [int(rng.integers(1, steps + 1))]
    ]
    pair = Pair(shared=tuple(shared), added=(), ahead=False, steps=steps)
    return with_another_unit(world, rng, pair)


def with_another_unit(world: World, rng: np.random.Generator, pair: Pair) -> Pair:
    """The same rows of others, and those of another unit."""
    attack = ATTACKS[int(rng.integers(len(ATTACKS)))]
    added = attack(world, rng, instants(world.operator, pair.steps))
    added = in_one_period(world.operator, added)[:MOST]
    return replace(pair, added=tuple(added), ahead=bool(rng.random() < 0.5))


Times = dict[int, list[int]]  # step -> event times that rows of it may have


def instants(operator: Examined, steps: int) -> Times:
    """Event times for the rows of every step: at its start or end, in earlier windows, or late."""
    schedule, periods = operator.schedule, operator.periods
    ticks, cells = schedule.ticks or Cells(length_us=HOUR), schedule.cells
    found = {}
    for step in range(1, steps + 1):
        start, end = ticks.start(step - 1), ticks.start(step)
        choice = [start, end - 1, start + (end - start) // 2]
        if cells is not None:
            near = cells.number(start)
            moved = (-schedule.stride, -schedule.parts, schedule.stride)
            choice += [start + cells.start(near + by) - cells.start(near) for by in moved]
            choice += [start - schedule.lateness_us]
        if periods is not None:
            number = periods.number(start)
            choice += [periods.start(number - 1), periods.start(number)]
        found[step] = [max(time, ticks.start(0)) for time in choice]
    return found


def row_of(
    world: World, rng: np.random.Generator, times: Times, place: tuple[int, int, int]
) -> MadeUpRow:
    """A row of a step, unit and group."""
    step, unit, key = place
    lanes = world.lanes
    choices = [ends_of(lanes, value) for value in range(world.values)]
    values = [choice[int(rng.integers(len(choice)))] for choice in choices]
    if rng.random() < 0.05 and values:
        values[0] = None
    time = times[step][int(rng.integers(3))]
    return MadeUpRow((step, unit, time, key, tuple(values)))


def largest(world: World, place: tuple[int, int, int], time: int, *, beyond: bool) -> MadeUpRow:
    """A row that moves every lane as far as one row can, at its bound or far beyond it."""
    step, unit, key = place
    values: list[float | None] = []
    for value in range(world.values):
        lanes = [
            lane for lane in world.lanes
            if lane.value == value and lane.kind in ("sum", "square", "node")
        ]  # fmt: skip
        lane = max(lanes, key=lambda one: max(map(abs, one.ends)), default=None)
        if lane is None:
            values.append(TAKEN)
            continue
        low, high = lane.ends
        end = lane.high if abs(high) >= abs(low) else lane.low
        values.append(end * 1 + (FAR * (1 if end == lane.high else -1) if beyond else 0))
    return MadeUpRow((step, unit, time, key, tuple(values)))


def scattered(world: World, rng: np.random.Generator, times: Times) -> list[MadeUpRow]:
    """Rows anywhere, in new and old groups."""
    count, steps = int(rng.integers(1, 80)), len(times)
    keys = world.keys + 5
    return [
        row_of(world, rng, times,
               (int(rng.integers(1, steps + 1)), 0, int(rng.integers(keys))))
        for _ in range(count)
    ]  # fmt: skip


def most_light(operator: Examined) -> int:
    """The most rows of one unit in a group whose rows weigh least: while it is hidden."""
    if isinstance(operator, SketchQuery):
        return operator.bounds.most_in_group()
    return rows_in_hidden_key(operator)


def at_once(world: World, rng: np.random.Generator, times: Times) -> list[MadeUpRow]:
    """As many rows as can be in every group, group by group, at one step."""
    step, bounds = int(rng.integers(1, len(times) + 1)), world.operator.bounds
    light = most_light(world.operator)
    each = int(rng.choice([1, bounds.most_in_group(), light, light + 3]))
    each = max(1, min(each, MOST // world.keys))
    time = times[step][int(rng.choice([0, 0, 0, len(times[step]) - 1]))]
    beyond = bool(rng.random() < 0.5)
    order = rng.permutation(world.keys)
    return [
        largest(world, (step, 0, int(key)), time, beyond=beyond)
        for key in order
        for _ in range(each)
    ]


def spread_out(world: World, rng: np.random.Generator, times: Times) -> list[MadeUpRow]:
    """The same rows at every step, so that early rows leave no room for later ones."""
    keys = rng.permutation(world.keys)[: int(rng.integers(1, 4))]
    return [
        largest(world, (step, 0, int(key)), times[step][0], beyond=False)
        for step in times
        for key in keys
        for _ in range(int(rng.integers(1, 4)))
    ]


def again_late(world: World, rng: np.random.Generator, times: Times) -> list[MadeUpRow]:
    """Rows with one event time at every step, in every group: in time, then late."""
    here = times[int(rng.integers(1, len(times) + 1))]
    time = here[int(rng.integers(len(here)))]
    return [
        largest(world, (step, 0, int(key)), time, beyond=False)
        for step in times
        for key in rng.permutation(world.keys)
    ]


def in_every_window(world: World, rng: np.random.Generator, times: Times) -> list[MadeUpRow]:
    """Rows of one group at every event time that a step takes."""
    key, steps = int(rng.integers(world.keys)), list(times)
    return [
        largest(world, (step, 0, key), time, beyond=False) for step in steps for time in times[step]
    ]


def far_over(world: World, rng: np.random.Generator, times: Times) -> list[MadeUpRow]:
    """Far more rows at once than any bound lets pass, in few groups."""
    step, count = int(rng.integers(1, len(times) + 1)), int(rng.integers(1, 3))
    keys = rng.permutation(world.keys)[:count]
    one = [largest(world, (step, 0, int(key)), times[step][0], beyond=True) for key in keys]
    return one * (MOST // count)


def in_groups_of_its_own(world: World, rng: np.random.Generator, times: Times) -> list[MadeUpRow]:
    """Rows of groups that nobody else has, and some that others have."""
    step = int(rng.integers(1, len(times) + 1))
    each = int(rng.integers(1, 1 + min(MOST // 20, most_light(world.operator))))
    return [
        largest(world, (step, 0, key), times[step][0], beyond=False)
        for key in range(world.keys + BEYOND, max(world.keys - 4, -1), -1)
        for _ in range(each)
    ]


def varied(world: World, rng: np.random.Generator, pair: Pair) -> Pair:
    """A pair with a part of the unit's rows moved to another step and time."""
    times = instants(world.operator, pair.steps)
    start, stop = sorted(rng.integers(0, len(pair.added) + 1, 2).tolist())
    step = int(rng.integers(1, pair.steps + 1))
    time = times[step][int(rng.integers(len(times[step])))]
    rows = [
        MadeUpRow((step, row[1], time, *row[3:])) if start <= place < stop else row
        for place, row in enumerate(pair.added)
    ]
    rows.sort(key=lambda row: row[0])
    return replace(pair, added=tuple(in_one_period(world.operator, rows)))


ATTACKS = (
    at_once,
    at_once,
    at_once,
    scattered,
    spread_out,
    again_late,
    in_every_window,
    far_over,
    in_groups_of_its_own,
)


def in_one_period(operator: Examined, rows: list[MadeUpRow]) -> list[MadeUpRow]:
    """The rows of the period with most rows: a unit is protected for one period."""
    if operator.periods is None or not rows:
        return rows
    periods = operator.periods.numbers(np.array([row[2] for row in rows], np.int64))
    numbers, counts = np.unique(periods, return_counts=True)
    chosen = numbers[counts.argmax()]
    return [row for row, period in zip(rows, periods, strict=True) if period == chosen]
