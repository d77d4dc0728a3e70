"""What one privacy unit may contribute, and how far that moves what is counted: exactly.

Integers and fractions from the bound on; what is rounded is rounded up.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Protocol

from streamveil.core.accounting.calibrate import root_up
from streamveil.errors import PlanError

LARGEST_ROWS = 2**32 - 1


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


class Summed(Protocol):
    """What is summed per group."""

    @property
    def kind(self) -> str:
        """The kind: "units" counts a unit once per group, "node" is one of a tree level."""

    @property
    def reach(self) -> int:
        """The most, in quanta, that one row adds or takes away."""


def lane_move(lane: Summed, bounds: Bounds) -> tuple[Fraction, int]:
    """How far one unit moves a lane in L2 over all groups (rounded up), and how many groups.

    A unit counts once in a group. The nodes of one tree level are one lane spread out: a row adds
    to one of them, so together they move no further, over at most as many (group, node) pairs as
    there are rows.
    """
    groups = bounds.units_l2_squared
    squared = groups if lane.kind == "units" else bounds.l2_squared
    touched = bounds.l2_squared if lane.kind == "node" else groups
    if bounds.scale > 1:  # a group costs one squared quantum of weight or more
        touched = bounds.l2_squared * bounds.scale**2
    return Fraction(lane.reach) * root_up(Fraction(squared)), touched
