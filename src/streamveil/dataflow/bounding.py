"""Contribution bounding: which rows of a privacy unit count. The unit stage of the dataflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import isqrt
from typing import Literal, NamedTuple

import numpy as np

from streamveil.core.sensitivity import LARGEST_ROWS, Bounds
from streamveil.dataflow.raw_memory import LARGE, address, lengthen, reserved
from streamveil.dataflow.unit_kernels import (
    ALL,
    BUCKET,
    CLASSES,
    COMPACT,
    GRANULE,
    GROW_POOL,
    GROW_TABLE,
    HEAD,
    HIDDEN,
    INLINE,
    INLINE_GROUPS,
    LOOKED_AT,
    NOTHING,
    ROWS,
    SQUARES,
    SUMS,
    UNLIMITED,
    WIDE,
    WORDS,
    bound_inline,
    bound_pooled,
)
from streamveil.dataflow.unit_layout import spread
from streamveil.errors import StoreError
from streamveil.types import Array, Bool, Int64, UInt8, UInt16, UInt32, UInt64

Firsts = Literal["none", "hidden", "all"]  # for which groups `Passed.first` is asked
SMALLEST = 64  # slots of a new table, granules of a new pool
FULL = 880  # of 1,000 slots: how many are in use when a table grows
GROWTH = 25  # percent by which a table that is alone grows, and every pool
ROOMY = 1 << 14  # bytes from which on a table has room to grow in place
FEWEST = 16  # slots for each granule by which a pool grows at least: about a byte a unit
LARGEST_GROUPS = 2**16 - 1  # of one unit in a compact slot; the unit enters no more
LARGEST_BLOCK = 2**26


class UnitRows(NamedTuple):
    """What the unit stage sees of each row, in canonical order."""

    unit: UInt64[Array, " rows"]  # fingerprint, never 0
    group: UInt16[Array, " rows"]  # of (window, key)
    weight: UInt8[Array, " rows"]  # quanta of the public weight of the row's group
    hidden: Bool[Array, " rows"]  # whether the group is not yet public

    def part(self, which: Array | slice) -> UnitRows:
        """Some of the rows."""
        return UnitRows(*(column[which] for column in self))


class Passed(NamedTuple):
    """The unit stage's answer for each row."""

    accepted: Bool[Array, " rows"]
    first: UInt8[Array, " rows"]  # NEW, COUNTED, REPEATED; of groups that matter (`Firsts`)

    @classmethod
    def none(cls, rows: int) -> Passed:
        """No row passes."""
        return cls(np.zeros(rows, np.bool_), np.zeros(rows, np.uint8))


class Shape(NamedTuple):
    """How the units of one scope are laid out: what follows from the bounds alone."""

    layout: int  # INLINE, COMPACT or WIDE
    remembered: int  # NOTHING, HIDDEN or ALL: the groups that later decisions depend on
    width: int  # bytes of a sum of weights; 0: not kept
    lanes: int = 0  # groups that a compact slot holds itself
    total: int = ROWS  # what such a slot keeps: ROWS, or sums whose SUMS or SQUARES are its total
    growth: int = GROWTH  # percent by which a table grows

    @classmethod
    def of(cls, bounds: Bounds, firsts: Firsts) -> Shape:
        """The smallest layout that serves these bounds."""
        grouped = bounds.quadratic is not None or bounds.limits_groups
        remembered = NOTHING if bounds.slots is None else HIDDEN
        numbered = firsts == "hidden" and bounds.slots is None
        if grouped or firsts == "all" or numbered or bounds.groups is not None:
            remembered = ALL
        limit = _or_largest(bounds.quadratic, bounds.scale**2)
        largest = min(
            _or_largest(bounds.per_group, bounds.scale),
            _or_largest(bounds.max_rows, bounds.scale),
            isqrt(limit),
        )
        width = 0 if not grouped or (bounds.quadratic is None and largest == 1) else _width(largest)
        slots, rows = bounds.slots or 0, bounds.max_rows
        if remembered != ALL and rows is not None and rows < 2**14 and slots <= INLINE_GROUPS:
            return cls(layout=INLINE, remembered=remembered, width=0)
        totals = [total for total in (rows, limit) if total is not None and total < UNLIMITED]
        if len(totals) > 1 or totals[0] >= 2**16 or slots >= 2**4:
            return cls(layout=WIDE, remembered=remembered, width=width)
        total = ROWS if width == 0 else SUMS if bounds.quadratic is None else SQUARES
        lanes = 3 if (totals[0] < 2**12 if total == ROWS else largest < 2**4) else 2
        derived = total != SUMS or (bounds.scale == 1 and largest < 2**14)
        lanes = lanes if derived and remembered != NOTHING else 0
        return cls(COMPACT, remembered, width, lanes, total)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return 8 * WORDS[self.layout]

    @property
    def group_bytes(self) -> int:
        """Bytes of one remembered group, outside the slot."""
        return 0 if self.layout == INLINE or self.remembered == NOTHING else 2 + self.width


@dataclass(repr=False)  # secret
class UnitTable:
    """Open addressing by the high bits of the fingerprint; see `unit_kernels` for a slot's words.

    Buckets are in fingerprint order up to probing, so growing is one sequential pass, in place
    where the memory has room to grow. `meta` holds: units, granules of the pool in use, the first
    free block of each size, then the shape.
    """

    slots: UInt64[Array, " words"]
    pool: UInt32[Array, " words"]
    meta: Int64[Array, " cells"]
    room: dict[str, Array] = field(init=False, default_factory=dict)  # longer ones they begin

    NAMES = ("slots", "pool", "meta")

    @classmethod
    def empty(cls, bounds: Bounds, firsts: Firsts = "none") -> UnitTable:
        """A table without units."""
        return cls.of(Shape.of(bounds, firsts), SMALLEST)

    @classmethod
    def of(cls, shape: Shape, slots: int) -> UnitTable:
        """A table of so many slots, without units."""
        words = slots * WORDS[shape.layout]
        return cls(
            reserved(words, np.uint64)[:words],
            reserved(SMALLEST * shape.group_bytes, np.uint32),
            np.array([0] * (2 + CLASSES) + list(shape), np.int64),
        )

    @cached_property
    def shape(self) -> Shape:
        """The layout of the table, which never changes."""
        return Shape(*self.meta[2 + CLASSES :].tolist())

    @property
    def units(self) -> int:
        """Units with at least one accepted row."""
        return int(self.meta[0])

    @property
    def capacity(self) -> int:
        """The number of slots, free ones included."""
        return len(self.slots) // WORDS[self.shape.layout]

    @property
    def granules(self) -> tuple[int, int]:
        """Granules of the pool: those in use (with free blocks), and all."""
        words = self.shape.group_bytes  # of a granule: as many as a group has bytes
        return int(self.meta[1]), len(self.pool) // words if words else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(getattr(self, name).nbytes for name in self.NAMES)

    @property
    def head(self) -> list[int]:
        """The addresses and sizes for compiled loops; valid until something grows."""
        granules = self.granules[1]
        return [
            address(self.slots),
            self.capacity // BUCKET,
            self.most,
            address(self.pool),
            granules,
        ]

    @property
    def most(self) -> int:
        """The number of units at which the table grows."""
        return FULL * self.capacity // 1000

    def lengthen(self, name: str, items: int) -> None:
        """Adds zeros to slots or pool, in place where there is room for them."""
        each = getattr(self, name).itemsize
        lengthen(self, name, items, LARGE // each if items * each >= ROOMY else 0)

    def copied(self) -> UnitTable:
        """A copy in memory of its own, aligned so that buckets begin at cache lines."""
        new = UnitTable(self.slots, self.pool, np.array(self.meta))
        new.lengthen("slots", len(self.slots))
        new.lengthen("pool", len(self.pool))
        return new

    def grow(self, what: int) -> None:
        """Makes room for more units, or for more groups."""
        if what == GROW_TABLE:
            grow_table(self)
        elif what == GROW_POOL:
            grow_pool(self)


def unit_stage(table: UnitTable, rows: UnitRows, bounds: Bounds) -> Passed:
    """Decides every row and charges its unit, in place. Any split by unit gives the same answer."""
    return decide([table], np.array(table.head, np.int64), table.meta, rows, bounds)


def decide(
    tables: list[UnitTable],
    heads: Int64[Array, " cells"],
    metas: Int64[Array, " cells"],
    rows: UnitRows,
    bounds: Bounds,
) -> Passed:
    """Does the same for 2^k tables: the low bits of a fingerprint choose the table.

    `heads` has the `head` of each table (updated on growth), `metas` the memory of each `meta`.
    """
    n, shape = len(rows.unit), tables[0].shape
    accepted, first = passed = Passed.none(n)
    limits, settings = _settings(shape, bounds)
    rows = rows._replace(unit=np.ascontiguousarray(rows.unit))  # read by address
    found, at = np.empty(LOOKED_AT, np.int64), 0
    while at < n:
        if shape.layout == INLINE:
            at, full, part = bound_inline(
                rows.unit, rows.group, rows.hidden, at, limits, shape.remembered, heads, metas,
                found, accepted, first,
            )  # fmt: skip
        else:
            at, full, part = bound_pooled(
                *rows, at, limits, settings, heads, metas, found, accepted, first
            )
        if at < n:
            tables[part].grow(full)
            heads[HEAD * part : HEAD * (part + 1)] = tables[part].head
    return passed


@lru_cache
def _settings(shape: Shape, bounds: Bounds) -> tuple[Int64[Array, " 4"], Int64[Array, " 7"]]:
    """The limits, and the parts of the shape that `bound_pooled` needs."""
    limits = [
        _or_largest(bounds.max_rows),
        _or_largest(bounds.per_group, bounds.scale),
        _or_largest(bounds.quadratic, bounds.scale**2),
        _or_largest(bounds.slots),
    ]
    layout, remembered, width, lanes, total, _ = shape
    most_groups = most_remembered(shape, bounds)
    counts_rows = layout == COMPACT and bounds.max_rows is not None
    settings = [layout, remembered, counts_rows, width, most_groups, lanes, total]
    return np.array(limits, np.int64), np.array(settings, np.int64)


def most_remembered(shape: Shape, bounds: Bounds) -> int:
    """How many groups a unit may enter, where all are remembered."""
    most = LARGEST_GROUPS if shape.layout == COMPACT else LARGEST_ROWS
    return most if bounds.groups is None else min(most, bounds.groups)


def grow_table(table: UnitTable, units: int = 0) -> None:
    """Makes room for more units: by one step of growth, or at once for so many units."""
    shape, before = table.shape, table.capacity
    words, slots = WORDS[shape.layout], before
    while slots == before or FULL * slots // 1000 < units:
        slots += max(SMALLEST, slots * shape.growth // 100) // BUCKET * BUCKET
    table.lengthen("slots", words * slots)
    moving = np.zeros(words * BUCKET, np.uint64)
    spread(address(table.slots), words, before // BUCKET, slots // BUCKET, moving)


def grow_pool(table: UnitTable) -> None:
    """Makes room for more groups."""
    words, (_, granules) = table.shape.group_bytes, table.granules
    granules += max(SMALLEST, table.capacity // FEWEST, granules * GROWTH // 100)
    if granules >= LARGEST_BLOCK:
        raise StoreError(
            f"the privacy units of one scope have entered more than {LARGEST_BLOCK * GRANULE:,}"
            " groups, which is all that one table can hold.\n"
            "  to fix  bound units more tightly, give a unit period, or set a memory limit"
        )
    table.lengthen("pool", granules * words)


def _width(largest: int) -> int:
    return 1 if largest < 2**8 else 2 if largest < 2**16 else 4


def _or_largest(bound: int | None, scale: int = 1) -> int:
    return UNLIMITED if bound is None else bound * scale
