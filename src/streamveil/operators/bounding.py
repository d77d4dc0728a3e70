"""Contribution bounding: which rows of a privacy unit count. The unit stage of the dataflow."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Literal, NamedTuple

import numpy as np

from streamveil.errors import PlanError, StoreError
from streamveil.operators.probing import GROW_POOL, GROW_TABLE
from streamveil.operators.unit_kernels import (
    ALL,
    CLASSES,
    COMPACT,
    GRANULE,
    HIDDEN,
    INLINE,
    INLINE_GROUPS,
    NOTHING,
    UNLIMITED,
    WIDE,
    WORDS,
    bound_inline,
    bound_pooled,
    resettle,
)
from streamveil.types import Array, Bool, Int64, UInt8, UInt16, UInt32, UInt64

Firsts = Literal["none", "hidden", "all"]  # for which groups `Passed.first` is asked
SMALLEST = 64  # slots of a new table, granules of a new pool
LARGEST_ROWS = 2**32 - 1
LARGEST_GROUPS = 2**16 - 1  # of one unit in a compact slot; it enters no more
LARGEST_BLOCK = 2**28


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much one privacy unit may contribute within its scope.

    Algorithm: a row of weight w in group k passes when all of these still hold after it: at most
        `max_rows` rows; at most `per_group` rows in k; sum over groups of (sum of weights)**2 at
        most `quadratic`; at most `slots` groups entered while hidden. The first rows in canonical
        order pass. Groups are (window, key) pairs, so the allowance spans all windows of a scope.
    Protects: the L2 reach of one unit over all groups together.
    Proof: with n_k rows (or weight) of the unit in group k, every lane of group k moves by at most
        n_k times its reach per row, spread over triggers in any way; `l2_squared` bounds the sum
        over k of n_k**2. What passes depends on the unit's own rows and on public outputs only, so
        rows of every other unit pass identically with and without it. A unit remembers groups by
        16 bits. Two groups that share them are charged as one, (a + b)**2 >= a**2 + b**2, so a
        unit is never charged less; and it is not new to the second, so it counts as a unit in, and
        takes a slot for, the first alone. Groups are forgotten where nothing depends on them:
        without `per_group` and `quadratic`, only hidden groups are remembered, of which there are
        at most `slots`; a group that is shown stays shown.
    Memory: 16 bytes a slot, at 0.64 to 0.8 units a slot; for `max_rows` below 2**14 with at most 3
        `slots` that is all. Else 2 or 3 bytes for each of a unit's groups, in blocks of 4, 8, 12,
        16, 24 ... groups (32 bytes a slot with more than one limit, or one from 2**16 on).

    >>> Bounds(max_rows=32, per_group=1).l2_squared
    32
    >>> Bounds(max_rows=10, per_group=4).l2_squared, Bounds(max_rows=10).l2_squared
    (36, 100)
    """

    max_rows: int | None = None  # C
    per_group: int | None = None  # c
    quadratic: int | None = None  # B, in rows**2
    slots: int | None = None  # hidden groups a unit may enter
    scale: int = 1  # quanta of weight that make one row; weights are integers 1..scale

    def __post_init__(self) -> None:
        for name, bound in (
            ("max_rows", self.max_rows),
            ("quadratic", self.quadratic),
            ("max_rows_per_group", self.per_group),
        ):
            if bound is not None and not 1 <= bound <= LARGEST_ROWS:
                raise PlanError(f"{name} must be between 1 and {LARGEST_ROWS}, not {bound}")
        if self.max_rows is None and self.quadratic is None:
            raise PlanError(
                "nothing bounds how much one privacy unit contributes.\n"
                "  to fix  set max_rows (and max_rows_per_group), or quadratic"
            )
        if self.quadratic is not None and self.quadratic * self.scale**2 > LARGEST_ROWS:
            raise PlanError(f"quadratic must be at most {LARGEST_ROWS // self.scale**2}")

    @property
    def l2_squared(self) -> int:
        """The largest sum over groups of (rows of one unit)**2."""
        ways = [] if self.quadratic is None else [self.quadratic]
        if self.max_rows is not None:
            per_group = min(self.per_group or self.max_rows, self.max_rows)
            full, rest = divmod(self.max_rows, per_group)
            ways.append(full * per_group**2 + rest**2)
        return min(ways)

    @property
    def units_l2_squared(self) -> int:
        """The same when a unit counts once per group: how many groups one unit can be counted in.

        With the quadratic filter and weights below one there may be more groups, but their
        weighted reach still sums to at most `quadratic`.
        """
        return min(bound for bound in (self.max_rows, self.quadratic) if bound is not None)

    @property
    def hidden_groups(self) -> int:
        """How many groups not yet public one unit can enter."""
        return self.units_l2_squared if self.slots is None else self.slots

    @property
    def limits_groups(self) -> bool:
        """Whether there is a limit for each group that `max_rows` does not imply."""
        return (self.per_group or LARGEST_ROWS) < (self.max_rows or LARGEST_ROWS)


class UnitRows(NamedTuple):
    """What the unit stage sees of each row, in canonical order."""

    unit: UInt64[Array, " rows"]  # fingerprint, never 0
    group: UInt16[Array, " rows"]  # of (window, key)
    weight: UInt8[Array, " rows"]  # quanta of the public weight of the row's group
    hidden: Bool[Array, " rows"]  # whether the group is not yet public


class Passed(NamedTuple):
    """The unit stage's answer for each row."""

    accepted: Bool[Array, " rows"]
    first: Bool[Array, " rows"]  # accepted, the unit's first in its group; of groups that matter


class Shape(NamedTuple):
    """How the units of one scope are laid out: what follows from the bounds alone."""

    layout: int  # INLINE, COMPACT or WIDE
    remembered: int  # NOTHING, HIDDEN or ALL: the groups that later decisions depend on
    width: int  # bytes of a sum of weights; 0: not kept
    growth: int = 100  # percent by which a full table grows

    @classmethod
    def of(cls, bounds: Bounds, firsts: Firsts) -> Shape:
        """The smallest layout that serves these bounds."""
        grouped = bounds.quadratic is not None or bounds.limits_groups
        remembered = NOTHING if bounds.slots is None else HIDDEN
        if grouped or firsts == "all" or (firsts == "hidden" and bounds.slots is None):
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
        small = len(totals) == 1 and totals[0] < 2**16 and slots < 2**4
        return cls(layout=COMPACT if small else WIDE, remembered=remembered, width=width)

    @property
    def slot_bytes(self) -> int:
        """Of one slot."""
        return 8 * WORDS[self.layout]

    @property
    def group_bytes(self) -> int:
        """Of one remembered group, outside the slot."""
        return 0 if self.layout == INLINE or self.remembered == NOTHING else 2 + self.width


@dataclass(repr=False)  # secret
class UnitTable:
    """Open addressing by the high bits of the fingerprint; see `unit_kernels` for a slot's words.

    Slots are in fingerprint order up to probing, so growing is one sequential pass. `meta` holds:
    units, granules of the pool in use, the first free block of each size, then the shape.
    """

    slots: UInt64[Array, " words"]
    pool: UInt32[Array, " words"]
    meta: Int64[Array, " cells"]

    NAMES = ("slots", "pool", "meta")

    @classmethod
    def empty(cls, bounds: Bounds, firsts: Firsts = "none") -> UnitTable:
        """No unit yet."""
        shape = Shape.of(bounds, firsts)
        return cls(
            np.zeros(SMALLEST * WORDS[shape.layout], np.uint64),
            np.zeros(SMALLEST * shape.group_bytes, np.uint32),
            np.array([0] * (2 + CLASSES) + list(shape), np.int64),
        )

    @property
    def shape(self) -> Shape:
        """How it is laid out."""
        return Shape(*self.meta[2 + CLASSES :].tolist())

    @property
    def units(self) -> int:
        """Units with at least one accepted row."""
        return int(self.meta[0])

    @property
    def capacity(self) -> int:
        """Slots, free ones too."""
        return len(self.slots) // WORDS[self.shape.layout]

    @property
    def granules(self) -> tuple[int, int]:
        """Granules of the pool: in use (with free blocks), and there are."""
        words = self.shape.group_bytes  # of a granule: as many as a group has bytes
        return int(self.meta[1]), len(self.pool) // words if words else 0

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(getattr(self, name).nbytes for name in self.NAMES)


def unit_stage(table: UnitTable, rows: UnitRows, bounds: Bounds) -> Passed:
    """Decides every row and charges its unit, in place. Any split by unit gives the same answer."""
    n, shape = len(rows.unit), table.shape
    accepted, first = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    limits = np.array(
        [
            _or_largest(bounds.max_rows),
            _or_largest(bounds.per_group, bounds.scale),
            _or_largest(bounds.quadratic, bounds.scale**2),
            _or_largest(bounds.slots),
        ],
        np.int64,
    )
    at = 0
    while at < n:
        if shape.layout == INLINE:
            at, full = bound_inline(
                rows.unit, rows.group, rows.hidden, at, limits, shape.remembered,
                table.slots, table.meta, accepted, first,
            )  # fmt: skip
        else:
            at, full = bound_pooled(
                *rows, at, limits, _settings(shape, bounds), table.slots, table.pool, table.meta,
                accepted, first,
            )  # fmt: skip
        if full == GROW_TABLE:
            grow_table(table)
        elif full == GROW_POOL:
            grow_pool(table)
    return Passed(accepted, first)


def _settings(shape: Shape, bounds: Bounds) -> Int64[Array, " 5"]:
    """What `bound_pooled` must know of the shape."""
    most_groups = LARGEST_GROUPS if shape.layout == COMPACT else LARGEST_ROWS
    counts_rows = shape.layout == COMPACT and bounds.max_rows is not None
    return np.array(
        [shape.layout, shape.remembered, counts_rows, shape.width, most_groups], np.int64
    )


def grow_table(table: UnitTable) -> None:
    """Makes room for more units."""
    words, capacity = WORDS[table.shape.layout], table.capacity
    more = max(SMALLEST, capacity * table.shape.growth // 100)
    larger = np.zeros(words * (capacity + more), np.uint64)
    resettle(table.slots, larger, words)
    table.slots = larger


def grow_pool(table: UnitTable) -> None:
    """Makes room for more groups."""
    words, (_, granules) = table.shape.group_bytes, table.granules
    granules += max(16 * SMALLEST, granules * table.shape.growth // 100)
    if granules >= LARGEST_BLOCK:
        raise StoreError(
            f"the privacy units of one scope have entered more than {LARGEST_BLOCK * GRANULE:,}"
            " groups, which is all that one table can hold.\n"
            "  to fix  bound units more tightly, give a unit period, or set a memory limit"
        )
    larger = np.zeros(granules * words, np.uint32)
    larger[: len(table.pool)] = table.pool
    table.pool = larger


def _width(largest: int) -> int:
    return 1 if largest < 2**8 else 2 if largest < 2**16 else 4


def _or_largest(bound: int | None, scale: int = 1) -> int:
    return UNLIMITED if bound is None else bound * scale
