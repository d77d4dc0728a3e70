"""The witness: samples are computed again by the specification while a job runs.

In every micro-batch, a difference in one of these stops the job before its commit:

- What the compiled unit stage passed, counted and remembered for sampled units is compared with
  `core.reference`, starting from what the unit table held before.
- The new total of one group, in all lanes, is compared with the old one and the group's rows.
- Where the guarantee says that no window meets two periods of a unit, the periods at the begin and
  at the end of some rows' windows are compared with the rows' own.

A row's columns are witnessed where they are made (`dataflow.rows`).

Units sampled: those whose keyed fingerprint has some bits zero, one in `ONE_IN`. The fingerprint
    is made with the job's secret, so that nobody who lacks it can tell who is sampled, and a unit
    is sampled in every micro-batch or in none. Where many units are sampled, a micro-batch checks
    some of them, of up to `MOST` rows (or one unit), and the next step checks others: a check needs
    only the state before it.
Groups: in each window, the group of one row of the micro-batch, which its step number selects.
Releases: the witness reads and never writes; it draws no noise and takes no address. Releases are
    the same with and without it.
Stopping: both sides are functions of the same rows and the same state, and equal by definition. So
    a difference is a fault of the program or of memory, never a property of the data. Whether a
    fault that exists is met does depend on the data: see docs/weaknesses.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import numpy as np

from streamveil.calendars import Cells
from streamveil.core.reference import Decision, UnitLimits, UnitMemory, UnitRow, bound_unit, total
from streamveil.core.sensitivity import MOST_QUANTA, Bounds
from streamveil.dataflow.aggregate import KeyTable
from streamveil.dataflow.bounding import Passed, Shape, UnitRows, UnitTable, most_remembered
from streamveil.dataflow.unit_kernels import (
    ALL,
    BUCKET,
    COMPACT,
    COUNTED,
    GRANULE,
    HIDDEN,
    INLINE,
    INLINE_GROUPS,
    NEW,
    NOTHING,
    ROWS,
    WORDS,
)
from streamveil.dataflow.windows import Schedule
from streamveil.errors import WitnessError
from streamveil.types import Array, Int32, Int64, UInt64

# ---- reading one unit from a unit table
#
# `unit_kernels` describes the words of a slot. This reader shares no code with its loops.


class UnitEntry(NamedTuple):
    """One unit: totals (rows and spent, or the only one kept), slots taken, group -> sum.

    A sum is None where none is kept.
    """

    totals: tuple[int, ...]
    taken: int
    groups: dict[int, int | None]


def find_entry(table: UnitTable, unit: int) -> UnitEntry | None:
    """The entry of a unit, None where it has none."""
    words = WORDS[table.shape.layout] * BUCKET
    buckets = len(table.slots) // words
    bucket = (unit >> 32) * buckets >> 32
    for _ in range(buckets):
        start = bucket * words
        names = table.slots[start : start + BUCKET].tolist()
        if unit in names:
            return entry_at(table, bucket, names.index(unit))
        if 0 in names:
            return None
        bucket = (bucket + 1) % buckets
    return None


def entry_at(table: UnitTable, bucket: int, lane: int) -> UnitEntry:
    """The entry in one slot."""
    shape, words = table.shape, WORDS[table.shape.layout]
    start = bucket * words * BUCKET
    slot = table.slots[start : start + words * BUCKET].tolist()[lane::BUCKET]
    word = slot[1]
    if shape.layout == INLINE:
        held = {word >> 16 + 16 * i & 0xFFFF: None for i in range(word >> 14 & INLINE_GROUPS)}
        return UnitEntry((word & 0x3FFF,), word >> 14 & 3, dict(held))
    if shape.layout == COMPACT and word & 3:
        return _inside(word, table)
    if shape.layout == COMPACT:
        totals: tuple[int, ...] = (word >> 2 & 0xFFFF,)
        used, taken, block = word >> 18 & 0xFFFF, word >> 34 & 0xF, word >> 38
    else:
        totals, block = (word & 2**32 - 1, word >> 32), slot[3]
        used, taken = slot[2] & 2**32 - 1, slot[2] >> 32
    return UnitEntry(totals, taken, _pooled(table, block, used))


def _inside(word: int, table: UnitTable) -> UnitEntry:
    """A compact slot that holds its groups itself."""
    shape = table.shape
    used, taken, start = word & 3, word >> 2 & 3, 64 - 16 * shape.lanes
    sums, bits = (word & 2**start - 1) >> 4, {2: 14, 3: 4}[shape.lanes]
    groups: dict[int, int | None] = {}
    for i in range(used):
        held = sums >> bits * i & 2**bits - 1 if shape.width else None
        groups[word >> start + 16 * i & 0xFFFF] = held
    if shape.total == ROWS:
        return UnitEntry((sums,), taken, groups)
    return UnitEntry((sum((held or 0) ** shape.total for held in groups.values()),), taken, groups)


def _pooled(table: UnitTable, block: int, used: int) -> dict[int, int | None]:
    """The groups of a unit in its block of the pool."""
    width, groups = table.shape.width, {}
    words = 2 + width  # of a granule
    end = block + -(-used // GRANULE)
    data = table.pool[words * block : words * end].astype("<u4").tobytes()
    for i in range(used):
        start, lane = 4 * words * (i // GRANULE), i % GRANULE
        at, cell = start + 2 * lane, start + 8 + width * lane
        group = int.from_bytes(data[at : at + 2], "little")
        groups[group] = int.from_bytes(data[cell : cell + width], "little") if width else None
    return groups


# ---- the witness

ONE_IN = 1 << 10  # units
MOST = 64  # rows of units that one micro-batch checks
PAIRS = 8  # pairs whose windows and periods one micro-batch checks
LARGEST_GROUP = 1 << 10  # rows of a group in one micro-batch; larger groups are not checked
UNCUT = 1 << 64  # quanta
STRIDE = 0x9E3779B1  # spreads steps over rows
DRAWN = 1 if sys.byteorder == "little" else 2  # of a fingerprint's four 16-bit words; see `part`
TableOf = Callable[[int], UnitTable | None]  # of a unit


class Witnessed(NamedTuple):
    """The rows of sampled units in one scope, and the memory of each unit before them."""

    rows: dict[int, list[int]]  # unit -> places of its rows, in order
    before: dict[int, UnitEntry | None]


def sampled(unit: UInt64[Array, " rows"], batch: int) -> Int64[Array, " some"]:
    """The rows of the units that one micro-batch checks."""
    drawn = np.ascontiguousarray(unit).view(np.uint16)[DRAWN::4] < (1 << 16) // ONE_IN
    places = np.flatnonzero(drawn)
    if len(places) <= MOST:
        return places
    units, sizes = np.unique(unit[places], return_counts=True)
    turn = batch * MOST % len(units)
    order = np.roll(np.arange(len(units)), -turn)
    several = int((np.cumsum(sizes[order]) <= MOST).sum())
    fitting = order[: max(1, several)]  # one unit may have more rows than that
    return places[np.isin(unit[places], units[fitting])]


def look_before(table_of: TableOf, unit: UInt64[Array, " rows"], batch: int) -> Witnessed:
    """Notes the sampled units of a micro-batch before the unit stage sees its rows."""
    rows: dict[int, list[int]] = {}
    places = sampled(unit, batch)
    for place, name in zip(places.tolist(), unit[places].tolist(), strict=True):
        rows.setdefault(name, []).append(place)
    return Witnessed(rows, {name: entry_of(table_of, name) for name in rows})


def check_after(
    witnessed: Witnessed, table_of: TableOf, rows: UnitRows, passed: Passed, bounds: Bounds
) -> None:
    """Bounds the sampled units by the specification; refuses any difference."""
    every = [place for places in witnessed.rows.values() for place in places]
    seen_rows = zip(*(column[every].tolist() for column in (*rows[1:], *passed)), strict=True)
    for unit, places in witnessed.rows.items():
        table = table_of(unit)
        if table is None:
            raise WitnessError("the unit table of a scope is missing")
        shape = table.shape
        mine = list(islice(seen_rows, len(places)))
        own = [UnitRow(*one[:-2]) for one in mine]
        memory = memory_of(witnessed.before[unit], bounds)
        known = set(memory.groups)
        decisions = bound_unit(memory, own, limits_of(bounds, shape))
        for row, decision, (*_, accepted, bits) in zip(own, decisions, mine, strict=True):
            if accepted != decision.passes:
                raise WitnessError("a row passed the contribution bound that must be cut, or a row"
                                   " was cut that must pass")  # fmt: skip
            if not agrees(bits, row, decision, shape):
                raise WitnessError("a unit was counted in a group that it does not count in, or"
                                   " was not where it does")  # fmt: skip
        for row, decision in zip(own, decisions, strict=True):
            if shape.remembered == ALL and decision.first:
                known.add(row.group)
            if shape.remembered == HIDDEN and decision.counted and row.hidden:
                known.add(row.group)
        present = witnessed.before[unit] is not None or any(d.passes for d in decisions)
        wanted = entry_from(memory, known, bounds) if present else None
        found = entry_of(table_of, unit)
        if (found is None) != (wanted is None) or (
            found is not None and wanted is not None and seen(found, shape, bounds) != wanted
        ):
            raise WitnessError("what is remembered of a unit is not what its rows made of it")


def agrees(bits: int, row: UnitRow, decision: Decision, shape: Shape) -> bool:
    """Whether those bits of a row that are used agree with the specification."""
    if shape.remembered == NOTHING or (shape.remembered == HIDDEN and not row.hidden):
        return True
    counted = bool(bits & COUNTED) == decision.counted
    return counted and (shape.remembered == HIDDEN or bool(bits & NEW) == decision.first)


def limits_of(bounds: Bounds, shape: Shape) -> UnitLimits:
    """The bounds in the form of the specification."""
    return UnitLimits(
        max_rows=bounds.max_rows,
        per_group=bounds.per_group,
        quadratic=bounds.quadratic,
        slots=bounds.slots,
        scale=bounds.scale,
        groups=most_remembered(shape, bounds) if shape.remembered == ALL else None,
    )


def memory_of(entry: UnitEntry | None, bounds: Bounds) -> UnitMemory:
    """The memory that the specification starts from; a group without a sum has one row or any."""
    if entry is None:
        return UnitMemory()
    rows = entry.totals[0] if bounds.max_rows is not None else 0
    spent = entry.totals[-1] if bounds.quadratic is not None else 0
    groups = {group: 1 if held is None else held for group, held in entry.groups.items()}
    return UnitMemory(rows, spent, entry.taken if bounds.slots is not None else 0, groups)


Remembered = tuple[int | None, int | None, int | None, dict[int, int] | set[int]]


def entry_from(memory: UnitMemory, known: set[int], bounds: Bounds) -> Remembered:
    """What must be remembered of a unit: only what later decisions use."""
    grouped = bounds.quadratic is not None or bounds.limits_groups
    sums = grouped and not (bounds.quadratic is None and bounds.per_group == bounds.scale == 1)
    return (
        None if bounds.max_rows is None else memory.rows,
        None if bounds.quadratic is None else memory.spent,
        None if bounds.slots is None else memory.taken,
        {group: memory.groups[group] for group in known} if sums else known,
    )


def seen(entry: UnitEntry, shape: Shape, bounds: Bounds) -> Remembered:
    """What is remembered of a unit, in the same form."""
    sums = {group: held for group, held in entry.groups.items() if held is not None}
    return (
        None if bounds.max_rows is None else entry.totals[0],
        None if bounds.quadratic is None else entry.totals[-1],
        None if bounds.slots is None else entry.taken,
        sums if shape.width else set(entry.groups),
    )


def entry_of(table_of: TableOf, unit: int) -> UnitEntry | None:
    """The entry of a unit, wherever its table is."""
    table = table_of(unit)
    return None if table is None else find_entry(table, unit)


class GroupLook(NamedTuple):
    """One group before a micro-batch is added to it."""

    row: int  # of its key table
    places: Int64[Array, " some"]  # of its rows among those that are added
    before: list[int]  # quanta, by lane


def look_at_group(table: KeyTable, found: Int32[Array, " rows"], batch: int) -> GroupLook | None:
    """The group of one of the rows that are about to be added; `found`: rows of the key table."""
    if not len(found):
        return None
    row = int(found[batch * STRIDE % len(found)])
    places = np.flatnonzero(found == row)
    before = table.pending[row].tolist()
    may_be_cut = max(map(abs, before), default=0) > MOST_QUANTA // 2  # a sum, at the end of 64 bits
    if may_be_cut or len(places) > LARGEST_GROUP:
        return None
    return GroupLook(row, places, before)


def check_group(look: GroupLook, table: KeyTable, lanes: Array, hits: Array) -> None:
    """Adds the group's rows again, one by one; refuses any difference.

    `lanes`: what each row brings to the plain lanes, quanta, already cut to its reach; `hits`:
    nodes it adds one to, or -1.
    """
    rows = ((look.row, own) for own in lanes.tolist())
    sums, wanted = total(rows, [UNCUT] * lanes.shape[1])[look.row], list(look.before)
    for lane, more in enumerate(sums):
        wanted[lane] += more
    for nodes in hits.tolist():
        for node in nodes:
            if node >= 0:
                wanted[node] += 1
    if table.pending[look.row].tolist() != wanted:
        raise WitnessError("the total of a group is not what its rows add up to")


def check_apart(
    schedule: Schedule,
    periods: Cells,
    pairs: tuple[Int64[Array, " pairs"], Int64[Array, " pairs"]],
    batch: int,
) -> None:
    """Refuses a row whose window meets another period than the row's own; checks some rows.

    `pairs`: the windows and periods in which the rows count.
    """
    windows, numbers = pairs
    turns = range(batch * PAIRS, batch * PAIRS + min(PAIRS, len(windows)))
    places = [turn * STRIDE % len(windows) for turn in turns]
    for window, number in {(int(windows[place]), int(numbers[place])) for place in places}:
        begin, end = schedule.bounds(window)
        if not periods.number(begin) == number == periods.number(end - 1):
            raise WitnessError("a window takes rows of two periods of a unit, which the guarantee"
                               " keeps apart")  # fmt: skip
