"""Contribution bounding: which rows of a privacy unit count. The unit stage of the dataflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import isqrt
from typing import Literal, NamedTuple

import numpy as np

from streamveil.dataflow.probing import GROW_POOL, GROW_TABLE
from streamveil.dataflow.raw_memory import LARGE, address, lengthen, reserved
from streamveil.dataflow.unit_kernels import (
    ALL,
    BUCKET,
    CLASSES,
    COMPACT,
    GRANULE,
    HIDDEN,
    INLINE,
    INLINE_GROUPS,
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
from streamveil.dataflow.unit_lookup import HEAD
from streamveil.errors import PlanError, StoreError
from streamveil.types import Array, Bool, Int64, UInt8, UInt16, UInt32, UInt64

Firsts = Literal["none", "hidden", "all"]  # for which groups `Passed.first` is asked
SMALLEST = 64  # slots of a new table, granules of a new pool
FULL = 880  # of 1,000 slots: how many are in use when a table grows
GROWTH = 25  # percent by which one that is alone grows, and every pool
ROOMY = 1 << 14  # bytes from which on it has room to grow in place
FEWEST = 16  # slots for each granule by which a pool grows at least: about a byte a unit
LARGEST_ROWS = 2**32 - 1
LARGEST_GROUPS = 2**16 - 1  # of one unit in a compact slot; it enters no more
LARGEST_BLOCK = 2**26


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much one privacy unit may contribute within its scope.

    Algorithm: a row of weight w in group k passes when all of these still hold after it: at most
        `max_rows` rows; at most `per_group` rows in k; sum over groups of (sum of weights)**2 at
        most `quadratic`. The first rows in canonical order pass. Of the hidden groups that a unit
        enters, the first `slots` get a slot, never given back, and the selection counts it there;
        its rows in others pass all the same. Groups are (window, key) pairs, so the allowance spans
        all windows of a scope.
    Protects: the L2 reach of one unit over all groups together; and how many hidden groups the
        selection counts it in.
    Proof: with n_k rows (or weight) of the unit in group k, every lane of group k moves by at most
        n_k times its reach per row, spread over triggers in any way; `l2_squared` bounds the sum
        over k of n_k**2. What passes depends on the unit's own rows and on public outputs only, so
        rows of every other unit pass identically with and without it. A unit remembers groups by
        16 bits. Two groups that share them are charged as one, (a + b)**2 >= a**2 + b**2, so a
        unit is never charged less; and it is not new to the second, so it counts as a unit in, and
        takes a slot for, the first alone. Values and selection pay apart: `l2_squared` bounds every
        accepted row, with a slot or without, and the selection sees those with a slot alone, each
        unit once a group and in at most `slots` groups. Groups are forgotten where nothing depends
        on them: without `per_group` and `quadratic`, only groups with a slot are remembered (a unit
        whose slots are taken finds none later either); a group that is shown stays shown.
    Memory: 16 bytes a slot, at 0.70 to 0.88 units a slot (0.59 to 0.88, and 0.71 of all parts
        together, in a table that is divided): 18 to 23 bytes a unit. That is all for
        `max_rows` below 2**14 with at most 3 `slots`, and for units of at most 3 groups (2 where a
        group may weigh 16 or more). A unit of more groups takes 2 or 3 bytes for each, in blocks
        of 4, 8, 12, 16, 24 ... groups. With more than one limit, or one from 2**16 on, a slot has
        32 bytes and every group is in a block.

    >>> Bounds(max_rows=32, per_group=1).l2_squared
    32
    >>> Bounds(max_rows=10, per_group=4).l2_squared, Bounds(max_rows=10).l2_squared
    (36, 100)
    """

    max_rows: int | None = None  # C
    per_group: int | None = None  # c
    quadratic: int | None = None  # B, in rows**2
    slots: int | None = None  # hidden groups in which the selection counts a unit
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
        """In how many groups not yet public the selection counts one unit."""
        return self.units_l2_squared if self.slots is None else self.slots

    def most_in_group(self, weight: int | None = None) -> int:
        """The most rows that one unit may have in a group whose rows weigh so many quanta."""
        limits = [self.max_rows, self.per_group]
        if self.quadratic is not None:
            limits.append(isqrt(self.quadratic * self.scale**2 // (weight or self.scale) ** 2))
        return min(limit for limit in limits if limit is not None)

    def most_groups(self, weight: int | None = None) -> int:
        """The most groups, whose rows weigh so many quanta, that one unit may have rows in."""
        limits = [] if self.max_rows is None else [self.max_rows]
        if self.quadratic is not None:
            limits.append(self.quadratic * self.scale**2 // (weight or self.scale) ** 2)
        return min(limits)

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
    first: UInt8[Array, " rows"]  # of NEW and COUNTED; of groups that matter (`Firsts`)

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
        if len(totals) > 1 or totals[0] >= 2**16 or slots >= 2**4:
            return cls(layout=WIDE, remembered=remembered, width=width)
        total = ROWS if width == 0 else SUMS if bounds.quadratic is None else SQUARES
        lanes = 3 if (totals[0] < 2**12 if total == ROWS else largest < 2**4) else 2
        derived = total != SUMS or (bounds.scale == 1 and largest < 2**14)
        lanes = lanes if derived and remembered != NOTHING else 0
        return cls(COMPACT, remembered, width, lanes, total)

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
        """No unit yet."""
        return cls.of(Shape.of(bounds, firsts), SMALLEST)

    @classmethod
    def of(cls, shape: Shape, slots: int) -> UnitTable:
        """No unit yet, in so many slots."""
        words = slots * WORDS[shape.layout]
        return cls(
            reserved(words, np.uint64)[:words],
            reserved(SMALLEST * shape.group_bytes, np.uint32),
            np.array([0] * (2 + CLASSES) + list(shape), np.int64),
        )

    @property
    def shape(self) -> Shape:
        """How it is laid out."""
        return Shape(*self.meta[2 + CLASSES :].tolist())

    @property
    def named(self) -> UInt64[Array, "buckets slots"]:
        """The fingerprints of all slots, a view; 0 in a free one."""
        words = WORDS[self.shape.layout]
        return self.slots.reshape(-1, words * BUCKET)[:, :BUCKET]

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

    @property
    def head(self) -> list[int]:
        """What compiled loops must know; it holds until something grows."""
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
        """How many units are in it when it grows."""
        return FULL * self.capacity // 1000

    def lengthen(self, name: str, items: int) -> None:
        """Adds zeros to slots or pool, in place where there is room for them."""
        each = getattr(self, name).itemsize
        lengthen(self, name, items, LARGE // each if items * each >= ROOMY else 0)

    def copied(self) -> UnitTable:
        """The same in memory of its own, where lines of the cache begin at buckets."""
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
    """The same for 2^k tables, of which the low bits of a fingerprint choose one.

    `heads` has their heads (and is kept true as they grow), `metas` is the memory of their `meta`.
    """
    n, shape = len(rows.unit), tables[0].shape
    accepted, first = passed = Passed.none(n)
    limits, settings = _settings(shape, bounds)
    at = 0
    while at < n:
        if shape.layout == INLINE:
            at, full, part = bound_inline(
                rows.unit, rows.group, rows.hidden, at, limits, shape.remembered, heads, metas,
                accepted, first,
            )  # fmt: skip
        else:
            at, full, part = bound_pooled(
                *rows, at, limits, settings, heads, metas, accepted, first
            )
        if at < n:
            tables[part].grow(full)
            heads[HEAD * part : HEAD * (part + 1)] = tables[part].head
    return passed


@lru_cache
def _settings(shape: Shape, bounds: Bounds) -> tuple[Int64[Array, " 4"], Int64[Array, " 7"]]:
    """The limits, and what `bound_pooled` must know of the shape."""
    limits = [
        _or_largest(bounds.max_rows),
        _or_largest(bounds.per_group, bounds.scale),
        _or_largest(bounds.quadratic, bounds.scale**2),
        _or_largest(bounds.slots),
    ]
    layout, remembered, width, lanes, total, _ = shape
    most_groups = LARGEST_GROUPS if layout == COMPACT else LARGEST_ROWS
    counts_rows = layout == COMPACT and bounds.max_rows is not None
    settings = [layout, remembered, counts_rows, width, most_groups, lanes, total]
    return np.array(limits, np.int64), np.array(settings, np.int64)


def grow_table(table: UnitTable, units: int = 0) -> None:
    """Makes room for more units: one step of growth, or at once as many as so many units need."""
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
