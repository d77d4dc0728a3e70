"""Items of rows by unit: more than fit in memory, read for a part of the units at a time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from functools import partial
from typing import IO, Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from streamveil.compiled import at_once, njit
from streamveil.disk import in_scratch
from streamveil.plan.look import MANY_ROWS
from streamveil.types import Array, Bool, Float64, Int64, UInt16, UInt32, UInt64

PART = 1 << 16  # units of a part, by number
BLOCK = 1 << 13  # rows of a part that are put away at once
KEPT_BYTES = 1 << 28  # of blocks in memory; further blocks go to an anonymous file
PLACES = 1 << 16  # places that tell items of a unit apart
HIGH = np.uint64(32)
ONE = 256  # one, as a logarithm is counted
Kind = TypeVar("Kind", bound=np.generic)


class SomeUnits(NamedTuple):
    """The rows of consecutive units, ordered by unit, and within a unit as they came."""

    first: int  # the number of the first unit
    starts: Int64[Array, " units_plus_1"]  # where the rows of each unit begin
    held: Array  # of every row

    @property
    def units(self) -> slice:
        """Their numbers."""
        return slice(self.first, self.first + len(self.starts) - 1)

    @property
    def rows(self) -> Int64[Array, " units"]:
        """How many rows each unit has."""
        return np.diff(self.starts)

    def at(self, place: Int64[Array, " units"]) -> Array:
        """The item of one row of each unit."""
        return np.asarray(self.held[self.starts[:-1] + place])


class UnitFacts(NamedTuple):
    """Facts on all rows of a unit together."""

    rows: UInt32[Array, " units"]
    entered: UInt32[Array, " units"]  # in how many groups they are; for many rows `even_groups`
    cell: UInt32[Array, " units"]  # the group of one of them


class ByUnit(Generic[Kind]):
    """One item of each row, by the number of its unit.

    Algorithm: rows go to the block of their part; a full block is put away, in memory or in a
        file. Each part is then ordered by counting.
    Memory: 2 bytes a row in addition to its item, up to KEPT_BYTES; then one block per PART units.

    >>> rows = ByUnit(np.uint32)
    >>> rows.add(np.array([0, 1, 0], np.uint32), np.array([7, 8, 9], np.uint32))
    >>> rows.add(np.array([2, 0], np.uint32), np.array([5, 7], np.uint32))
    >>> shape_of(rows, np.array([2**63, 0, 0], np.uint64)).rows.tolist()
    [3, 1, 1]
    >>> [part.held.tolist() for part in rows.parts()]
    [[7, 9, 7, 8, 5]]
    """

    def __init__(self, kind: type[Kind]) -> None:
        self.units = 0
        self._kind = np.dtype(kind)
        self._open = np.empty((1, BLOCK), np.uint16), np.empty((1, BLOCK), kind)
        self._rows = np.zeros(1, np.int64)  # in the open block of each part
        self._blocks: list[list[tuple[Array, Array] | int]] = [[]]
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def add(self, unit: UInt32[Array, " rows"], held: Array) -> None:
        """Takes rows; units are numbered from 0."""
        if not len(unit):
            return
        self.units = max(self.units, int(unit.max()) + 1)
        parts = -(-self.units // PART)
        if parts > len(self._rows):
            self._open_blocks(max(parts, 2 * len(self._rows)))
        row = 0
        while True:
            row = put_in_blocks(unit, held, *self._open, self._rows, row)
            if row == len(unit):
                return
            self._put_away(int(unit[row]) // PART)

    def _open_blocks(self, parts: int) -> None:
        more = parts - len(self._rows)
        self._open = tuple(  # type: ignore[assignment]  # two, as before
            np.concatenate([one, np.empty((more, BLOCK), one.dtype)]) for one in self._open
        )
        self._rows = np.append(self._rows, np.zeros(more, np.int64))
        self._blocks += [[] for _ in range(more)]

    def _put_away(self, part: int) -> None:
        """Empties a full block."""
        unit, held = (one[part] for one in self._open)
        size = unit.nbytes + held.nbytes
        if self._bytes + size <= KEPT_BYTES:
            self._bytes += size
            self._blocks[part].append((unit.copy(), held.copy()))
        else:
            self._blocks[part].append(self._written(unit, held))
        self._rows[part] = 0

    def _written(self, unit: Array, held: Array) -> int:
        """Where a block stands in the file."""
        with in_scratch("set rows aside"):
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="streamveil-")  # noqa: SIM115
            place = self._file.seek(0, 2)
            self._file.write(unit.tobytes() + held.tobytes())
        return place

    def _read(self, block: tuple[Array, Array] | int) -> tuple[Array, Array]:
        if isinstance(block, tuple):
            return block
        file = cast("IO[bytes]", self._file)  # a place in it was given
        data = os.pread(file.fileno(), BLOCK * (2 + self._kind.itemsize), block)
        unit = np.frombuffer(data, np.uint16, BLOCK)
        return unit, np.frombuffer(data, self._kind, BLOCK, unit.nbytes)

    def parts(self, first: int = 0, each: int = 1) -> Iterator[SomeUnits]:
        """Every `each`-th part from `first` on, in order; several threads may iterate at once.

        No rows may be added meanwhile.
        """
        if self._file is not None:
            with in_scratch("set rows aside"):
                self._file.flush()
        for number in range(first, -(-self.units // PART), each):
            rows, before = int(self._rows[number]), number * PART
            blocks = [self._read(block) for block in self._blocks[number]]
            blocks.append((self._open[0][number, :rows], self._open[1][number, :rows]))
            unit, held = (np.concatenate(some) for some in zip(*blocks, strict=True))
            starts = np.zeros(min(PART, self.units - before) + 1, np.int64)
            ordered = np.empty_like(held)
            order_by_unit(unit, held, starts, ordered)
            yield SomeUnits(before, starts, ordered)


def shape_of(
    groups: ByUnit[np.uint32], words: UInt64[Array, " units"], threads: int = 1
) -> UnitFacts:
    """The facts on each unit: its rows, their groups, and the group of one of them.

    That row is at place floor(word * rows / 2^64). Each thread reads its own parts.

    Proof: words are independent and uniform, one for each unit. Fix those of all other units: their
        chosen rows do not change when a unit is added with a word of its own.
    """
    found = UnitFacts(*(np.empty(groups.units, np.uint32) for _ in UnitFacts._fields))

    def some(first: int) -> None:
        for part in groups.parts(first, threads):
            rows = part.rows
            found.rows[part.units] = rows
            count_different(part.held, part.starts, found.entered[part.units])
            place = (words[part.units] / 2.0**64 * rows).astype(np.int64)
            found.cell[part.units] = part.at(np.minimum(place, rows - 1))

    at_once([partial(some, first) for first in range(threads)])
    return found


def by_rows(
    shape: UnitFacts, most: int, quanta: int
) -> tuple[Int64[Array, " sizes"], Int64[Array, " sizes"]]:
    """The numbers of units by their rows (at most `most`), and how far their rows repeat groups.

    For n rows in k groups, the latter is the share (n - k) / (n - 1) of rows after the first that
    repeat, in quanta, rounded down: it may be 1, however few rows there are. For units with more
    than `MANY_ROWS`, it is the mean of 1 and of their concentration 1 - log(k) / log(n), which
    tells few groups from hundreds whatever n is. Then k is the number of equal groups with the same
    sum of squares, n^2 / sum of squares, because bounds must allow for squares. As it is at least a
    half, it also shows that such units exist.

    >>> shape = UnitFacts(*np.array([[1, 3, 9], [1, 2, 3], [0, 0, 0]], np.uint32))
    >>> [some.tolist() for some in by_rows(shape, 4, 256)]
    [[0, 1, 0, 1, 1], [0, 0, 0, 128, 192]]
    >>> shape = UnitFacts(*np.array([[4096, 4096, 4096], [1, 64, 4096], [0, 0, 0]], np.uint32))
    >>> [int(by_rows(UnitFacts(*(some[i : i + 1] for some in shape)), 4096, 256)[1][-1])
    ...  for i in range(3)]
    [256, 192, 128]
    """
    units, shares = np.zeros(most + 1, np.int64), np.zeros(most + 1, np.int64)
    count_by_rows(shape.rows, shape.entered, quanta, units, shares)
    return units, shares


def even_groups(
    rows: Float64[Array, " some"], told: Float64[Array, " some"]
) -> Float64[Array, " some"]:
    """The number of equal groups of units with so many rows, from their share in `by_rows`.

    >>> even_groups(np.full(3, 4096.0), np.array([1.0, 0.75, 0.5])).tolist()
    [1.0, 64.0, 4096.0]
    """
    logs = (1 - np.clip(2 * told - 1, 0.0, 1.0)) * logarithm_of(rows.astype(np.int64)) / ONE
    whole = np.floor(logs)
    return np.asarray((1 + logs - whole) * 2.0**whole)


def logarithm_of(number: Array) -> Array:
    """`logarithm` of each number."""
    return np.array([logarithm(int(one)) for one in number], np.int64)


def middle_of_each(
    values: ByUnit[np.float64],
) -> tuple[Float64[Array, " units"], Bool[Array, " units"]]:
    """The value of the middle row of each unit (in each scope); also, whether a 0 was replaced.

    A value of 0 is replaced by that of the middle row among the unit's rows that are not 0, if any.

    Proof: which row it is, and its value, follow from that unit's rows alone, in their order.
    """
    found = [_middle_of_each(part) for part in values.parts()]
    sizes, other = zip(*found, strict=True) if found else ((), ())
    return np.concatenate([np.zeros(0), *sizes]), np.concatenate([np.zeros(0, np.bool_), *other])


def _middle_of_each(part: SomeUnits) -> tuple[Float64[Array, " units"], Bool[Array, " units"]]:
    found = np.array(part.at(part.rows // 2))
    if found.all():
        return found, np.zeros(len(found), np.bool_)
    upto = np.append(0, np.cumsum(part.held != 0))  # rows of other values
    before, beyond = upto[part.starts[:-1]], upto[part.starts[1:]]
    other = (found == 0) & (beyond > before)
    middle = (before + (beyond - before) // 2)[other] + 1  # of all such rows, from 1
    found[other] = part.held[np.searchsorted(upto, middle) - 1]
    return found, other


@njit(cache=True)
def put_in_blocks(
    unit: UInt32[Array, " rows"],
    held: Array,
    block_unit: UInt16[Array, "parts block"],
    block_held: Array,
    rows: Int64[Array, " parts"],
    start: int,
) -> int:
    """Puts rows into the blocks of their parts; returns the first row whose block is full."""
    for i in range(start, len(unit)):
        part = np.int64(unit[i]) // PART
        at = rows[part]
        if at == BLOCK:
            return i
        block_unit[part, at] = np.uint16(unit[i] & np.uint32(PART - 1))
        block_held[part, at] = held[i]
        rows[part] = at + 1
    return len(unit)


@njit(cache=True)
def order_by_unit(
    unit: UInt16[Array, " rows"], held: Array, starts: Int64[Array, " units_plus_1"], ordered: Array
) -> None:
    """Fills `starts` and `ordered`."""
    for i in range(len(unit)):
        starts[np.int64(unit[i]) + 1] += 1
    for one in range(1, len(starts)):
        starts[one] += starts[one - 1]
    place = starts.copy()
    for i in range(len(unit)):
        at = place[np.int64(unit[i])]
        ordered[at] = held[i]
        place[np.int64(unit[i])] = at + 1


@njit(cache=True)
def count_different(
    held: UInt32[Array, " rows"],
    starts: Int64[Array, " units_plus_1"],
    found: UInt32[Array, " units"],
) -> None:
    """How many different items the rows of each unit have; for many rows, how many equal groups.

    Every item has a place, which keeps the item last seen there and its unit. If two items of a
    unit share a place, its items are sorted instead.
    """
    seen, times = np.zeros(PLACES, np.uint64), np.zeros(PLACES, np.int64)
    for one in range(len(found)):
        start, end = starts[one], starts[one + 1]
        unit, shared = np.uint64(one + 1) << HIGH, np.int64(0)
        different: Any = np.int64(0)
        many, squares = end - start > MANY_ROWS, 0.0
        for i in range(start, end):
            place = np.int64(held[i]) % PLACES
            item = unit | np.uint64(held[i])
            differs = np.int64(seen[place] != item)
            shared += differs & np.int64((seen[place] ^ unit) >> HIGH == 0)
            different += differs
            seen[place] = item
            if many:
                times[place] = 1 if differs else times[place] + 1
                squares += 2.0 * times[place] - 1
        if shared:
            items = np.sort(held[start:end])
            run: Any = np.int64(1)
            different, squares = 1, 1.0
            for i in range(1, len(items)):
                differs = np.int64(items[i] != items[i - 1])
                different += differs
                run = 1 if differs else run + 1
                squares += 2.0 * run - 1
        if many:
            rows = float(end - start)
            different = np.int64(rows / (squares / rows) + 0.5)
        found[one] = different


@njit(cache=True)
def logarithm(number: Any) -> int:
    """The logarithm to base 2, in 256ths, linear between powers of two and rounded down.

    It uses whole numbers only, and so is the same on every machine.
    """
    power, rest = 0, number
    while rest > 1:
        rest >>= 1
        power += 1
    return int(power * ONE + ((number * ONE) >> power) - ONE)


@njit(cache=True)
def count_by_rows(
    rows: UInt32[Array, " units"],
    entered: UInt32[Array, " units"],
    quanta: int,
    units: Int64[Array, " sizes"],
    shares: Int64[Array, " sizes"],
) -> None:
    """Fills the counts of `by_rows`."""
    for one in range(len(rows)):
        n, k = np.int64(rows[one]), np.int64(entered[one])
        size: Any = min(n, len(units) - 1)
        units[size] += 1
        if n > MANY_ROWS:
            whole = logarithm(n)
            shares[size] += quanta * (2 * whole - logarithm(k)) // (2 * whole)
        elif n > 1:
            shares[size] += quanta * (n - k) // (n - 1)
