"""What one privacy unit may contribute, and how far that moves what is counted: exactly.

Integers and fractions from the bound on; what is rounded is rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import isfinite, isqrt
from typing import Literal

import numpy as np

from streamveil.core.accounting import take_numbers
from streamveil.errors import PlanError
from streamveil.types import Array, Float64, Int64

LARGEST_ROWS = 2**32 - 1
LaneKind = Literal["rows", "units", "valid", "sum", "square", "node", "distinct"]
FIRSTS = 2  # one first appearance more at a step, one less later; see `dataflow.distinct`
ADDED = ("sum", "square")  # lanes whose increments are values; those of all others are 0 or 1
MOST_QUANTA = 2**62  # no increment reaches it, nothing gathered for a release passes it
MOST_TOTAL = 2**60  # quanta; no released total reaches it: see `within_64_bits`


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much one privacy unit may contribute within its scope.

    Algorithm: a row of weight w in group k passes when all of these still hold after it: at most
        `max_rows` rows; at most `per_group` rows in k; sum over groups of (sum of weights)**2 at
        most `quadratic`; rows in at most `groups` groups. The first rows in canonical order pass.
        Of the hidden groups that a unit enters, the first `slots` get a slot, never given back, and
        the selection counts it there; its rows in others pass all the same. Groups are (window,
        key) pairs, so the allowance spans all windows of a scope.
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
        on them: without `per_group`, `quadratic` and `groups`, only groups with a slot are
        remembered (a unit whose slots are taken finds none later either); a group that is shown
        stays shown.
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
    >>> Bounds(max_rows=10, groups=2).units_l2_squared
    2
    """

    max_rows: int | None = None  # C
    per_group: int | None = None  # c
    quadratic: int | None = None  # B, in rows**2
    groups: int | None = None  # most groups with rows of one unit, each moved by 1 in a unit count
    slots: int | None = None  # hidden groups in which the selection counts a unit
    scale: int = 1  # quanta of weight that make one row; weights are integers 1..scale
    heaviest: int | None = None  # quanta that no weight exceeds; None: the scale

    def __post_init__(self) -> None:
        take_numbers(self)
        limits = {"max_rows": self.max_rows, "max_rows_per_group": self.per_group}
        limits |= {"quadratic": self.quadratic, "groups": self.groups}
        for name, bound in limits.items():
            if bound is not None and not 1 <= bound <= LARGEST_ROWS:
                raise PlanError(f"{name} must be between 1 and {LARGEST_ROWS}, not {bound}")
        if self.max_rows is None and self.quadratic is None:
            raise PlanError(
                "nothing bounds how much one privacy unit contributes.\n"
                "  to fix  set max_rows (and max_rows_per_group), or quadratic"
            )
        if self.quadratic is not None and self.quadratic * self.scale**2 > LARGEST_ROWS:
            raise PlanError(f"quadratic must be at most {LARGEST_ROWS // self.scale**2}")
        if not 1 <= (self.heaviest or self.scale) <= self.scale:
            raise ValueError(f"a weight has 1 to {self.scale} quanta, not {self.heaviest}")

    @property
    def l2_squared(self) -> int:
        """The largest sum over groups of (rows of one unit)**2."""
        ways = [] if self.quadratic is None else [self.quadratic]
        if self.max_rows is not None:
            per_group = min(self.per_group or self.max_rows, self.max_rows)
            full, rest = divmod(self.max_rows, per_group)
            ways.append(full * per_group**2 + rest**2)
            ways += [] if self.groups is None else [self.groups * per_group**2]
        return min(ways)

    @property
    def units_l2_squared(self) -> int:
        """The same when a unit counts once per group: how many groups one unit can be counted in.

        With the quadratic filter and weights below one there may be more groups, but their
        weighted reach still sums to at most `quadratic`.
        """
        limits = self.max_rows, self.quadratic, self.groups
        return min(limit for limit in limits if limit is not None)

    @property
    def units_moved(self) -> Fraction:
        """The largest sum over groups of (weight)**2, where a unit counts once per group.

        Proof: a unit counts in a group at the weight of its first row there, w of `heaviest` quanta
            at most. So the squares add up to at most (heaviest / scale)**2 for each group that it
            may enter; and to no more than those of its rows, which the filter bounds.

        >>> Bounds(quadratic=2, groups=20, scale=100, heaviest=10).units_moved
        Fraction(1, 5)
        """
        most = Fraction(self.heaviest or self.scale, self.scale) ** 2
        limits = [limit * most for limit in (self.max_rows, self.groups) if limit is not None]
        return min([*limits, *([] if self.quadratic is None else [Fraction(self.quadratic)])])

    @property
    def hidden_groups(self) -> int:
        """In how many groups not yet public the selection counts one unit."""
        return self.units_l2_squared if self.slots is None else self.slots

    def most_in_group(self, weight: int | None = None) -> int:
        """The most rows that one unit may have in a group whose rows weigh so many quanta."""
        each = None if self.per_group is None else self.per_group * self.scale
        limits = [self.max_rows, each and each // (weight or self.scale)]
        if self.quadratic is not None:
            limits.append(isqrt(self.quadratic * self.scale**2 // (weight or self.scale) ** 2))
        return min(limit for limit in limits if limit is not None)

    def most_groups(self, weight: int | None = None) -> int:
        """The most groups, whose rows weigh so many quanta, that one unit may have rows in."""
        limits = [limit for limit in (self.max_rows, self.groups) if limit is not None]
        if self.quadratic is not None:
            limits.append(self.quadratic * self.scale**2 // (weight or self.scale) ** 2)
        return min(limits)

    @property
    def limits_groups(self) -> bool:
        """Whether there is a limit for each group that `max_rows` does not imply."""
        return (self.per_group or LARGEST_ROWS) < (self.max_rows or LARGEST_ROWS)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One integer that is summed per group. A row moves its stream by at most `reach` quanta.

    Proof: `ends` are computed in fractions from the numbers that `quanta` clamps to, and `quanta`
        cuts what it computed in float64 to them, as integers. So an increment is inside, however
        float64 rounds, overflows or casts.

    >>> lane = Lane(kind="sum", value=0, low=0.0, high=60_000.0, quantum=Fraction(1))
    >>> lane.reach, lane.quanta(np.array([-7.0, 2.5, 1e300])).tolist()
    (60000, [0, 2, 60000])
    >>> Lane(kind="valid", high=1.0, centre=0.5, quantum=Fraction(1, 2), of_all=True).ends
    (-1, 1)
    """

    kind: LaneKind
    value: int = -1  # which value function; -1: none
    low: float = 0.0
    high: float = 0.0
    centre: float = 0.0  # subtracted before summing
    quantum: Fraction = Fraction(1)
    # a row without a value counts as 0, centred like others, and not as none
    of_all: bool = field(default=False, metadata={"unsaid": True})
    level: int = 0  # of a quantile tree, 1 below the root; its `place`-th of `fan`**level nodes
    place: int = 0
    fan: int = 0

    def __post_init__(self) -> None:
        take_numbers(self)
        if not (isfinite(self.low) and isfinite(self.high) and isfinite(self.centre)):
            raise PlanError("bounds must be finite numbers")
        if self.low > self.high or self.quantum <= 0:
            raise PlanError("a lane needs low <= high and a quantum above 0")
        if self.of_all and self.kind not in ("sum", "valid"):
            raise ValueError("only sums and counts of values take rows without one for 0")
        if self.kind == "valid" and (self.low, self.high) != (0, int(self.of_all)):
            raise ValueError("a count of values has no bounds; one of all rows those of 0 and 1")
        if self.kind != "node" and (self.level or self.place or self.fan):
            raise ValueError("only nodes of trees have a level and a place")
        placed = self.level >= 1 and self.fan > 1 and 0 <= self.place < self.fan**self.level
        if self.kind == "node" and not (placed and self.low < self.high):
            raise ValueError("a node of a tree has a level, a place in it and bounds")
        if (self.kind in ADDED or self.of_all) and self.reach >= MOST_QUANTA:
            raise PlanError(
                f"the bounds ({self.low:g}, {self.high:g}) are 2**62 quanta of"
                f" {float(self.quantum):g} or more.\n"
                "  to fix  tighter bounds, or a coarser quantum"
            )

    @cached_property
    def ends(self) -> tuple[int, int]:
        """The least and the largest increment of a row, quanta."""
        if self.kind not in ADDED and not self.of_all:
            return 0, 1
        counted = (self.low, self.high, *[0.0] * self.of_all)
        low, high = (Fraction(end) - Fraction(self.centre) for end in (min(counted), max(counted)))
        if self.kind == "square":
            inside = Fraction(0) if low <= 0 <= high else min(low**2, high**2)
            low, high = inside, max(low**2, high**2)
        return round(low / self.quantum), round(high / self.quantum)

    @cached_property
    def reach(self) -> int:
        """How far one row moves the stream of its key, the sum over time of the differences.

        Mostly its increment; where it takes over a first appearance, two (`dataflow.distinct`).
        """
        if self.kind == "distinct":
            return FIRSTS
        return max(1, *(abs(end) for end in self.ends))

    @cached_property
    def absent(self) -> int:
        """The increment of a row without a value, quanta."""
        return round(-Fraction(self.centre) / self.quantum) if self.of_all else 0

    def quanta(self, values: Float64[Array, " rows"]) -> Int64[Array, " rows"]:
        """Clamped, centred (and squared) values on the lattice; monotone in |value - centre|."""
        moved = np.minimum(np.maximum(values, self.low), self.high) - self.centre
        scaled = (moved * moved if self.kind == "square" else moved) / float(self.quantum)
        return whole(np.rint(scaled), *self.ends)


def whole(numbers: Float64[Array, "*shape"], low: int, high: int) -> Int64[Array, "*shape"]:
    """Float64 as int64, cut to two integers below 2**62: whatever the number is, the cast is safe.

    >>> whole(np.array([-np.inf, 1.7, 1e300, np.nan]), -(2**61), 5).tolist()
    [-2305843009213693952, 1, 5, -2305843009213693952]
    """
    inside = np.fmin(np.fmax(numbers, float(low)), float(high)).astype(np.int64)
    return np.minimum(np.maximum(inside, low), high)


def within_64_bits(totals: Array) -> Array:
    """Noisy totals that are right; PlanError where one has `MOST_TOTAL` quanta or more.

    Proof that no wrong total is released: an increment is below `MOST_QUANTA`, and what a key
        gathers between two releases is cut to it after each row, so adding never wraps around. A
        total was below `MOST_TOTAL` at the last release, and so is all noise in one
        (`core.counters.check_noise`). Noise aside it was below twice that. So where a sum was cut
        and no row brought it back, the total is at least MOST_QUANTA - 3 MOST_TOTAL = MOST_TOTAL
        now, whatever its noise is: it is refused. None is beyond MOST_QUANTA + 3 MOST_TOTAL <
        2**63. If rows of the other sign follow before the release, they bring the sum back too
        far, and no released number shows it. That takes MOST_QUANTA / reach rows at a bound first:
        2**38 with the default quantum.
    Proof that neither leaks: cutting moves no two sums apart, so one unit moves what is gathered by
        at most what it did. Whether the job stops follows from totals that may leave.
    """
    if totals.size and (totals.max() >= MOST_TOTAL or totals.min() <= -MOST_TOTAL):
        raise PlanError(
            "a sum has reached 2**60 quanta, and 64 bits hold no more safely: nothing more is"
            " released.\n"
            "  to fix  a new job, with tighter bounds, a coarser quantum or shorter windows"
        )
    return totals


def within_reach(
    lanes: Sequence[Lane], columns: Int64[Array, "rows lanes"]
) -> Int64[Array, "rows lanes"]:
    """Cuts the increments of accepted rows, in place, to what noise is charged for.

    The last gate before totals, in every engine: it does not depend on how increments were made.
    Only lanes of ADDED values need it: all others choose one of two `ends` by a bool, or count
    nodes by their places (`lane_hits`).

    >>> within_reach([Lane(kind="sum", high=3.0)], np.array([[-(2**62)], [2]])).tolist()
    [[-3], [2]]
    """
    for place, lane in enumerate(lanes):
        if lane.kind in ADDED:
            columns[:, place] = np.minimum(np.maximum(columns[:, place], -lane.reach), lane.reach)
    return columns


def root_up(square: Fraction) -> Fraction:
    """A fraction not below the square root, within 2^-60 of its size.

    >>> root_up(Fraction(9, 4))
    Fraction(3, 2)
    """
    shift = max(0, 64 - (square.numerator.bit_length() - square.denominator.bit_length()) // 2)
    scaled = square * 4**shift
    whole = -(-scaled.numerator // scaled.denominator)
    root = isqrt(whole)
    return Fraction(root + (root * root < whole), 2**shift)


def histograms_move(full: int, lighter: Sequence[int] = (), periods: int | None = None) -> Fraction:
    """How far one unit moves noisy histograms, in L2 and in units of their noise; rounded up.

    A unit adds at most 1 to one bin of each. `full` of them have noise of one scale; `lighter` has
    how many times as much each other one has. `periods` is how many unit-periods are counted, where
    each is to lose no more than a unit without periods does.

    Proof: a histogram with w times the noise is moved by 1 / w of it, and moves of different
        histograms add up in squares. A unit in n periods moves all of them by n times as much, by
        the triangle inequality, and loses n^2 mu^2: one mechanism reads all periods. Where windows
        keep periods apart, what follows loses n times what one period does, and so must this. Rows
        of P public unit-periods alone are counted, and noise is sqrt(P) times as large. As n <= P,
        whatever the unit does, n^2 mu^2 / P is at most n mu^2. One period alone loses only
        mu^2 / P, which is not used.

    >>> histograms_move(3, (2, 2, 2, 2)), histograms_move(1, periods=4)
    (Fraction(2, 1), Fraction(2, 1))
    """
    squared = full + sum((Fraction(1, times**2) for times in lighter), Fraction(0))
    return root_up(squared * (periods or 1))


def is_units(lane: Lane, bounds: Bounds) -> bool:
    """Whether a lane holds what a count of distinct units holds: a unit has one row in a group."""
    once = bounds.scale == 1 and (bounds.per_group == 1 or bounds.l2_squared == 1)
    return lane.kind == "units" or (lane.kind == "rows" and once)


def lane_move(lane: Lane, bounds: Bounds) -> tuple[Fraction, int]:
    """How far one unit moves a lane in L2 over all groups (rounded up), and how many groups.

    A unit counts once in a group. The nodes of one tree level are one lane spread out: a row adds
    to one of them, so together they move no further, over at most as many (group, node) pairs as
    there are rows.
    """
    groups = bounds.units_l2_squared
    squared = bounds.units_moved if lane.kind == "units" else bounds.l2_squared
    touched = bounds.l2_squared if lane.kind == "node" else groups
    if bounds.scale > 1:  # a group costs one squared quantum of weight or more
        touched = bounds.l2_squared * bounds.scale**2
    return Fraction(lane.reach) * root_up(Fraction(squared)), touched


def presence_moves(changes: int, sets: int, *, pure: bool) -> int:
    """How many lives of one record move a counter as far as one life moves counts of values.

    A value is shown as there or not, and at most `changes` changes of that are passed on; then it
    stays as shown. A life belongs to one value, which has such a series in each of `sets` groups.
    The factor multiplies epsilon (`pure`), or squares: rho and mu^2.

    Proof: p and q are the series of the value with and without the life, 0 or 1 at every step with
        at most w changes. So d = p - q is in {-1, 0, 1}, starts at 0, and its changes x add up to
        at most 2 w in absolute value. d is 1 or -1 on stretches of steps. Each takes a change to
        begin and, but for the last, one to end: n of them take 2 n - 1 or more, so n is at most w.
        On each, x is what a record adds (or, negative, takes away) that is there for these steps.
        Every other value has the same series in both.
        *Laplace noise.* Lives add up, whatever reads them: w.
        *A tree.* A block moves by the difference of d at its ends, by at most 2; the blocks of a
        level move by at most 2 w together, so their squares by at most 4 w. For one life it is 2,
        that is a factor of 2 w; at w = 1 there is one stretch, and the factor is 1. In trees one
        after another, blocks of any one level of each are apart too.
        *A lower triangular encoder* whose columns are one row c_0, c_1, ... moved down, where c
        falls and is convex (`root_coefficients`). For stretches [s, e) before [s', e') of one sign
        the product of what both move is -(sum over t of A_t B_t) from s' on, where A_t = c_(t-e) -
        c_(t-s) is positive and falls, and B_t = c_(t-s') - c_(t-e') has partial sums of at least 0
        (c is 0 before 0); so it is at most 0, by summation by parts, wherever the steps end. So n
        stretches of one sign move by at most sqrt(n) lives, those of both by sqrt(n) + sqrt(w - n),
        at most sqrt(2 w).
        Sets have numbers of their own: squares add up over them, and so do absolute values.
        `tests/dynamic/test_distinct.py` tries all series of up to 6 steps.

    >>> presence_moves(1, 1, pure=False), presence_moves(3, 2, pure=False)
    (1, 12)
    >>> presence_moves(3, 2, pure=True)
    6
    """
    return sets * changes * (1 if pure or changes == 1 else 2)
