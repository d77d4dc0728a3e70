"""Contribution bounding: which rows of a privacy unit count. The unit stage of the dataflow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from streamveil.errors import PlanError
from streamveil.operators.kernels import (
    GROW_POOL,
    GROW_TABLE,
    bound_rows,
    settle_names,
    spread,
)
from streamveil.types import Array, Bool, Int64, UInt8, UInt16, UInt64

SMALLEST = 64  # slots of a new table, entries of a new pool
CLASSES = 20  # block sizes 4 * 2**class
LARGEST_ROWS = 2**32 - 1


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
        16 bits: two groups that share them are charged as one, which only charges more.
    Memory: about 17 bytes a unit and 3 to 4 bytes for each of its groups, before table slack.

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
    def groups_matter(self) -> bool:
        """Whether passing depends on the group of a row."""
        return (
            self.quadratic is not None
            or self.slots is not None
            or (self.per_group or LARGEST_ROWS) < (self.max_rows or LARGEST_ROWS)
        )


class UnitRows(NamedTuple):
    """What the unit stage sees of each row, in canonical order."""

    unit: UInt64[Array, " rows"]  # fingerprint, never 0
    group: UInt16[Array, " rows"]  # of (window, key)
    weight: UInt8[Array, " rows"]  # quanta of the public weight of the row's group
    hidden: Bool[Array, " rows"]  # whether the group is not yet public


class Passed(NamedTuple):
    """The unit stage's answer for each row."""

    accepted: Bool[Array, " rows"]
    first: Bool[Array, " rows"]  # accepted, and the unit's first accepted row in its group


@dataclass(repr=False)  # secret
class UnitTable:
    """Open addressing by the high bits of the fingerprint; groups of a unit in pooled blocks.

    Slots are in fingerprint order up to probing, so rows visited in that order touch memory in
    order, and growing is one sequential pass. `meta` holds: units, entries of the pool in use,
    then the head of the free list of each block size.
    """

    unit: Array
    rows: Array  # empty when nothing limits rows
    spent: Array  # quanta**2; empty without the quadratic filter
    slots: Array  # empty without slots
    used: Array
    block: Array
    pool_group: Array
    pool_sum: Array
    meta: Array

    NAMES = ("unit", "rows", "spent", "slots", "used", "block", "pool_group", "pool_sum", "meta")

    @classmethod
    def empty(cls, bounds: Bounds, *, by_group: bool) -> UnitTable:
        """No unit yet. `by_group`: remember groups even if only to tell first rows."""
        entries = SMALLEST if by_group or bounds.groups_matter else 0
        limit = (bounds.quadratic or 0) * bounds.scale**2
        largest = min(
            bounds.per_group or LARGEST_ROWS,
            bounds.max_rows or LARGEST_ROWS,
            int(limit**0.5) if limit else LARGEST_ROWS,
        )
        return cls(
            np.zeros(SMALLEST, np.uint64),
            np.zeros(SMALLEST if bounds.max_rows else 0, _word(bounds.max_rows or 0)),
            np.zeros(SMALLEST if limit else 0, _word(limit)),
            np.zeros(0 if bounds.slots is None else SMALLEST, np.uint16),
            np.zeros(SMALLEST if entries else 0, np.uint16),
            np.zeros(SMALLEST if entries else 0, np.uint32),
            np.zeros(entries, np.uint16),
            np.zeros(entries, np.uint8 if largest < 2**8 else _word(largest)),
            np.concatenate([np.zeros(2, np.int64), np.full(CLASSES, -1, np.int64)]),
        )

    @property
    def units(self) -> int:
        """Units with at least one accepted row."""
        return int(self.meta[0])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(getattr(self, name).nbytes for name in self.NAMES)


def unit_stage(table: UnitTable, rows: UnitRows, bounds: Bounds) -> Passed:
    """Decides every row and charges its unit, in place. Any split by unit gives the same answer."""
    n = len(rows.unit)
    accepted, first = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    order = visiting_order(rows.unit, len(table.unit))
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
        at, full = bound_rows(
            *rows,
            order,
            at,
            limits,
            table.unit,
            table.rows,
            table.spent,
            table.slots,
            table.used,
            table.block,
            table.pool_group,
            table.pool_sum,
            table.meta,
            accepted,
            first,
        )
        if full == GROW_TABLE:
            _grow_table(table)
        elif full == GROW_POOL:
            _grow_pool(table)
    return Passed(accepted, first)


def visiting_order(names: UInt64[Array, " rows"], capacity: int) -> Int64[Array, " rows"]:
    """Rows in table order, so that memory is visited in pieces that fit the cache.

    Depends on the state's size, never on the batch's: a replay visits in the same order.
    """
    bits = min(max(capacity.bit_length() - 15, 0), 11)
    if bits == 0:
        return np.arange(len(names), dtype=np.int64)
    return spread(names, bits)


def _grow_table(table: UnitTable) -> None:
    old = table.unit
    filled = np.flatnonzero(old)
    capacity = 2 * len(old)
    places = np.zeros(capacity, np.uint64)
    target = settle_names(old[filled], places)
    table.unit = places
    for name in ("rows", "spent", "slots", "used", "block"):
        column = getattr(table, name)
        if len(column):
            larger = np.zeros(capacity, column.dtype)
            larger[target] = column[filled]
            setattr(table, name, larger)


def _grow_pool(table: UnitTable) -> None:
    for name in ("pool_group", "pool_sum"):
        column = getattr(table, name)
        setattr(table, name, np.concatenate([column, np.zeros_like(column)]))


def _word(largest: int) -> type[np.unsignedinteger]:
    return np.uint16 if largest < 2**16 else np.uint32


def _or_largest(bound: int | None, scale: int = 1) -> int:
    return 2**62 if bound is None else bound * scale
