"""Numbers of rows that come a part at a time: from 0, in the order in which values appear."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.compiled import AHEAD, at_once, njit, prefetch
from streamveil.compiler.by_unit import ByUnit
from streamveil.compiler.numbered_rows import Columns, UsableRows, first_counted, firsts
from streamveil.compiler.unit_sample import LEVELS, UnitSample
from streamveil.dataflow.hashing import as_integers, is_text, name_column
from streamveil.dataflow.integer_key_index import mixed
from streamveil.dataflow.raw_memory import LARGE, lengthen, reserved
from streamveil.dataflow.unit_kernels import HIGH, home
from streamveil.expressions import compile_value, range_of
from streamveil.plan import Aggregate, Plan
from streamveil.plan.combine import plain
from streamveil.types import Array, Bool, Float64, Int64, UInt32, UInt64

SMALLEST = 1 << 12  # slots
LOAD = 0.65  # share of slots in use at which their number doubles
VALUES, ABSENT = 0, 1  # places of `counts`: how many values have a number; null's number plus one


NOWHERE = np.zeros(0, np.bool_)


class ValueWords(NamedTuple):
    """Words that tell the values of a column apart."""

    names: UInt64[Array, " words"]
    each: int  # words of a value
    absent: Bool[Array, " rows"] = NOWHERE  # where there is null; empty: nowhere

    @property
    def rows(self) -> int:
        """How many values there are."""
        return len(self.names) // self.each


class Numbering:
    """Numbers of rows by the values of several columns, equal where all are; null is a value.

    Algorithm: every column has a table of its values. For every further column there is a table of
        pairs: the number for the columns before, and the number in this one. An integer (a time, a
        float by its bits) stands for itself, other values for their 128-bit name under a secret of
        this table.
    Proof: whether rows share a number depends on these rows alone, unless two values share a name.
        The chance that a given value shares its name with one of n others is n / 2^128, below
        2^-88.
    Memory: 16 bytes a slot, at 0.32 to 0.65 values a slot; for text 8 more bytes a value.

    >>> import pyarrow as pa
    >>> rows = Numbering()
    >>> rows.numbers([pa.array(["b", "a", "b"]), pa.array([1, None, 2])]).tolist()
    [0, 1, 2]
    >>> rows.numbers([pa.array(["a", "c", "b"]), pa.array([None, 3, 1])]).tolist()
    [1, 3, 0]
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)
        self._values: list[_Words] = []
        self._pairs: list[_Words] = []

    def __len__(self) -> int:
        """How many numbers there are."""
        return len(self._pairs[-1] if self._pairs else self._values[-1]) if self._values else 0

    def numbers(self, columns: Sequence[Any]) -> UInt32[Array, " rows"]:
        """The number of every row; the same columns every time."""
        found = np.zeros(0, np.uint32)
        for place, column in enumerate(columns):
            if place == len(self._values):
                self._values.append(_Words())
                self._pairs += [_Words()] * (place > 0)
            new = self._values[place].numbers(*self.words(column))
            if place:
                pair = (found.astype(np.uint64) << HIGH) | new
                new = self._pairs[place - 1].numbers(pair)
            found = new
        return found

    def words(self, column: Any) -> ValueWords:
        """Words that are equal where values are; `ValueWords` are returned unchanged."""
        if isinstance(column, ValueWords):
            return column
        one = plain(column)
        if is_text(one.type):
            return ValueWords(name_column(one, self._key).reshape(-1), 2)
        absent = np.asarray(pc.is_null(one)) if one.null_count else NOWHERE
        return ValueWords(np.ascontiguousarray(as_integers(one)).view(np.uint64), 1, absent)


class _Words:
    """A table of words, or pairs of them, and their numbers."""

    def __init__(self) -> None:
        self._secret = np.frombuffer(secrets.token_bytes(16), np.uint64) | np.uint64(1)
        self.slots = reserved(2 * SMALLEST, np.uint64)[: 2 * SMALLEST]
        self.room: dict[str, Array] = {}  # longer arrays, the start of which is `slots`
        self._seconds = np.zeros(0, np.uint64)
        self._counts = np.zeros(2, np.int64)

    def __len__(self) -> int:
        return int(self._counts[VALUES])

    def numbers(
        self,
        words: UInt64[Array, " words"],
        each: int = 1,
        absent: Bool[Array, " rows"] = NOWHERE,
    ) -> UInt32[Array, " rows"]:
        """The number of every row; a row has `each` words."""
        found, row = np.empty(len(words) // each, np.uint32), 0
        if each > 1 and not len(self._seconds):
            self._seconds = np.zeros(SMALLEST, np.uint64)
        while True:
            held = self.slots, self._seconds, self._counts
            row = number_words(words, each, absent, self._secret, held, row, found)
            if row == len(found):
                return found
            self._grow()

    def _grow(self) -> None:
        before = len(self.slots) // 2
        lengthen(self, "slots", 4 * before, LARGE // self.slots.itemsize)
        spread_slots(self.slots, before)
        if len(self._seconds):
            self._seconds = np.append(self._seconds, np.zeros(len(self._seconds), np.uint64))


@njit(cache=True)
def number_words(  # noqa: C901, PLR0913 (one loop over structure-of-arrays state)
    words: UInt64[Array, " words"],
    each: int,
    absent: Bool[Array, " rows"],
    secret: UInt64[Array, " 2"],
    held: tuple[Array, Array, Array],
    start: int,
    found: UInt32[Array, " rows"],
) -> int:
    """Numbers rows from `start` on; returns the row before which there must be more slots.

    A slot is two words: a mixed value and its number plus one (0: free). Mixing can be undone. The
    second words of pairs are kept by number.
    """
    slots, seconds, counts = held
    capacity = len(slots) // 2
    wide, most = np.uint64(capacity), np.int64(LOAD * capacity)
    n, step = len(found), np.int64(each)
    for i in range(start, n):
        if i + AHEAD < n:
            prefetch(slots, 2 * home(mixed(words[step * (i + AHEAD)], secret), wide))
        if counts[VALUES] >= most:
            return i
        if len(absent) and absent[i]:
            if counts[ABSENT] == 0:
                counts[VALUES] += 1
                counts[ABSENT] = counts[VALUES]
            found[i] = counts[ABSENT] - 1
            continue
        word, last = mixed(words[step * i], secret), words[step * i + step - 1]
        slot = home(word, wide)
        while True:
            told = np.int64(slots[2 * slot + 1])
            if told == 0:
                told = counts[VALUES] + 1
                counts[VALUES] = told
                slots[2 * slot] = word
                slots[2 * slot + 1] = told
                if step > 1:
                    seconds[told - 1] = last
                break
            if slots[2 * slot] == word and (step == 1 or seconds[told - 1] == last):
                break
            slot += 1
            if slot == capacity:
                slot = 0
        found[i] = told - 1
    return n


@njit(cache=True)
def spread_slots(slots: UInt64[Array, " words"], before: int) -> None:
    """Moves the entries of the first `before` slots to their places in the longer table.

    It goes from the last slot to the first: an entry that only moves back finds room behind all
    that are still to be moved. The few others (they had overflowed) wait until all others are
    placed.
    """
    capacity, late = len(slots) // 2, 0
    waiting = np.zeros((64, 2), np.uint64)
    for place in range(before - 1, -1, -1):
        word, told = slots[2 * place], slots[2 * place + 1]
        if told == 0:
            continue
        slots[2 * place] = slots[2 * place + 1] = 0
        slot = home(word, np.uint64(capacity))
        fits = slot >= place
        while fits and slots[2 * slot + 1] != 0:
            slot += 1
            fits = slot < capacity
        if fits:
            slots[2 * slot], slots[2 * slot + 1] = word, told
            continue
        if late == len(waiting):
            longer = np.zeros((2 * late, 2), np.uint64)
            for one in range(late):
                longer[one, 0], longer[one, 1] = waiting[one, 0], waiting[one, 1]
            waiting = longer
        waiting[late, 0], waiting[late, 1] = word, told
        late += 1
    for one in range(late):
        slot = home(waiting[one, 0], np.uint64(capacity))
        while slots[2 * slot + 1] != 0:
            slot += 1
            if slot == capacity:
                slot = 0
        slots[2 * slot], slots[2 * slot + 1] = waiting[one, 0], waiting[one, 1]


# ---- the facts that a look keeps of each row


class NumberedUnits:
    """Units by number, in the order of their first row that was taken, and the level of each."""

    def __init__(self, sample: UnitSample | None) -> None:
        self._sample = sample
        self._numbers = Numbering() if sample is None else Numbering(sample.key)
        self._levels = np.zeros(0, np.uint8)
        self._known = 0
        self._held = np.zeros(LEVELS + 1, np.int64)  # units that have at least each level

    def __len__(self) -> int:
        """How many units have a number."""
        return len(self._numbers)

    def of(self, found: Columns) -> Columns:
        """Rows of units that are kept."""
        if self._sample is None or not self._sample.level:
            return found
        words = self._numbers.words(found.unit[0])
        rows = np.flatnonzero(self._sample.levels(words.names, words.each) >= self._sample.level)
        names = np.ascontiguousarray(words.names.reshape(-1, words.each)[rows]).reshape(-1)
        names.flags.writeable = words.names.flags.writeable  # one type for compiled functions
        places = pa.array(rows)
        cell = [plain(one).take(places) for one in found.cell]
        value = None if found.value is None else found.value[rows]
        return Columns([words._replace(names=names)], cell, value)

    def numbers(self, unit: Sequence[Any]) -> UInt32[Array, " rows"]:
        """The number of the unit of every row."""
        if self._sample is None:
            return self._numbers.numbers(unit)
        words = self._numbers.words(unit[0])
        numbers = self._numbers.numbers([words])
        new = len(self) - self._known
        if self._known + new > len(self._levels):
            room = np.zeros(2 * (self._known + new), np.uint8)
            room[: self._known] = self._levels[: self._known]
            self._levels = room
        if new:
            self._levels[numbers] = self._sample.levels(words.names, words.each)
            own = np.bincount(self._levels[self._known : len(self)], minlength=LEVELS + 1)
            self._held += np.cumsum(own[::-1])[::-1]
            self._known = len(self)
        return numbers

    def sampled(self) -> None:
        """Raises the level that is kept until few enough units have it."""
        sample = self._sample
        if sample is not None:
            while sample.level < sample.highest and self._held[sample.level] > sample.most:
                sample.level += 1

    @property
    def least(self) -> Int64[Array, " 1"]:
        """How many units are in the smallest sample."""
        return self._held[LEVELS:]

    def kept(self, level: int) -> Bool[Array, " units"] | slice:
        """By number, which units have at least a level."""
        return np.asarray(self._levels[: len(self)] >= level) if level else slice(None)


class GroupRows:
    """The group of every row that may count, by unit (in each period)."""

    def __init__(
        self, plan: Plan, schema: pa.Schema, threads: int, sample: UnitSample | None = None
    ) -> None:
        self._by_unit = ByUnit(np.uint32)
        self._numbered: tuple[Array, Array] | None = None  # unit and group of rows to put away
        self._threads = threads
        self._usable, self._groups = UsableRows(plan, schema), Numbering()
        self.units = NumberedUnits(sample)
        self._valued = first_counted(plan).function == "sum"
        self._first = [np.zeros(0)]

    def add(self, table: pa.Table) -> None:
        """Takes more rows: while their units are numbered, the rows before them are put away."""
        usable, known = self._usable.of(table), len(self.units)
        if usable is None:
            return
        found = self.units.of(usable)
        calls = partial(self.units.numbers, found.unit), partial(self._number_groups, found)
        unit, cell = at_once(calls) if self._threads > 1 else [call() for call in calls]
        self.units.sampled()
        self._numbered = unit, cell
        if self._valued:
            self._first.append(first_of_new(found, unit, known))

    def _number_groups(self, found: Columns) -> UInt32[Array, " rows"]:
        self._put_away()
        if not found.cell:
            first = found.unit[0]
            return np.zeros(first.rows if isinstance(first, ValueWords) else len(first), np.uint32)
        return self._groups.numbers(found.cell)

    def _put_away(self) -> None:
        numbered, self._numbered = self._numbered, None
        if numbered is not None:
            self._by_unit.add(*numbered)

    @property
    def rows(self) -> ByUnit[np.uint32]:
        """The group of every row, by unit."""
        self._put_away()
        return self._by_unit

    @property
    def groups(self) -> int:
        """How many groups have rows."""
        return len(self._groups) or min(self.rows.units, 1)

    @property
    def first(self) -> Float64[Array, " units"]:
        """The size of the value of each unit's first row, if there are values."""
        return np.concatenate(self._first)


def first_of_new(
    found: Columns, unit: UInt32[Array, " rows"], known: int
) -> Float64[Array, " new_units"]:
    """The size of the first value of each unit with a number from `known` on."""
    new = np.flatnonzero(unit >= known)
    values = np.ones(len(unit)) if found.value is None else found.value
    return np.abs(values[new[firsts(unit[new].astype(np.int64) - known)]])


class ValueRows:
    """The value of every row with one, by unit (in each period); 0 for null if only sums use it."""

    def __init__(
        self, plan: Plan, schema: pa.Schema, expression: str, sample: UnitSample | None
    ) -> None:
        every = Aggregate(name="value", function="sum", expression=expression, low=-inf, high=inf)
        self.rows = ByUnit(np.float64)
        self.ends = range_of(expression, schema)  # from its form and the types of columns
        self.whole = compile_value(expression, schema).kind in ("int", "uint")
        summed = all(one.function == "sum" for one in plan.aggregates
                     if one.expression == expression)  # fmt: skip
        valued = replace(plan, aggregates=(every,))
        self._usable = UsableRows(valued, schema, absent=0.0 if summed else nan)
        self.units = NumberedUnits(sample)

    def add(self, table: pa.Table) -> None:
        """Takes some more rows."""
        usable = self._usable.of(table)
        found = None if usable is None else self.units.of(usable)
        if found is not None and found.value is not None:
            self.rows.add(self.units.numbers(found.unit), found.value)


def taken(
    plan: Plan, counted: Plan, expressions: Iterable[str], parts: Iterable[pa.Table],
    threads: int = 1, sample: UnitSample | None = None,
) -> tuple[GroupRows, list[ValueRows]]:  # fmt: skip
    """In one pass over rows: their groups in `counted`, and the values of expressions in `plan`.

    The size of a sample follows from the units in `counted`.
    """
    some = iter(parts)
    part = next(some)
    groups = GroupRows(counted, part.schema, threads, sample)
    values = [ValueRows(plan, part.schema, text, sample) for text in expressions]
    takers: list[GroupRows | ValueRows] = [groups, *values]
    for rows in chain([part], some):
        for one in takers:
            one.add(rows)
    return groups, values
