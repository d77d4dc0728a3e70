"""The specification of contribution bounding and of exact totals: plain, slow, obvious.

The compiled stages of the dataflow must do what this module says, bit for bit. Tests compare them
on every kind of bound, and the witness (`dataflow.witness`) compares them while a job runs. Here
are no arrays and no tables: one unit, one row at a time.

>>> memory, limits = UnitMemory(), UnitLimits(max_rows=2, slots=1)
>>> rows = [UnitRow(group=7), UnitRow(group=8), UnitRow(group=7)]
>>> [(d.passes, d.counted) for d in bound_unit(memory, rows, limits)]
[(True, True), (True, False), (False, False)]
>>> total([("a", (5, 1)), ("b", (-9, 1)), ("a", (2, 1))], reaches=(4, 1))
{'a': [6, 2], 'b': [-4, 1]}
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class UnitLimits:
    """How much one unit may contribute within its scope; None: no such limit."""

    max_rows: int | None = None  # rows
    per_group: int | None = None  # rows of weight `scale` in one group
    quadratic: int | None = None  # sum over groups of (sum of weights)**2, rows**2
    slots: int | None = None  # hidden groups in which the selection counts the unit
    scale: int = 1  # quanta of weight that make one row
    groups: int | None = None  # that it may enter, and its memory can hold


class UnitRow(NamedTuple):
    """What bounding may know of one row of a unit."""

    group: int  # of (window, key)
    weight: int = 1  # quanta, public
    hidden: bool = True  # whether the group is not yet public


class Decision(NamedTuple):
    """What happens to a row."""

    passes: bool  # it is added to the totals of its group
    first: bool = False  # it passes and is the unit's first in its group
    counted: bool = False  # and the selection counts the unit there


@dataclass(repr=False)  # secret
class UnitMemory:
    """What one unit has contributed in its scope so far."""

    rows: int = 0  # that passed
    spent: int = 0  # sum over groups of (sum of weights)**2, quanta**2
    taken: int = 0  # slots
    groups: dict[int, int] = field(default_factory=dict)  # group -> sum of weights, quanta


def bound_unit(memory: UnitMemory, rows: Iterable[UnitRow], limits: UnitLimits) -> list[Decision]:
    """Decides the rows of one unit in canonical order, and charges what passes to its memory."""
    return [bound_row(memory, row, limits) for row in rows]


def bound_row(memory: UnitMemory, row: UnitRow, limits: UnitLimits) -> Decision:
    """Decides one row: it passes if every limit still holds after it."""
    before = memory.groups.get(row.group, 0)
    after = before + row.weight
    spent = memory.spent + after**2 - before**2
    first = row.group not in memory.groups
    passes = (
        within(memory.rows + 1, limits.max_rows)
        and within(after, limits.per_group, limits.scale)
        and within(spent, limits.quadratic, limits.scale**2)
        and within(len(memory.groups) + first, limits.groups)
    )
    if not passes:
        return Decision(passes=False)
    counted = first and (not row.hidden or within(memory.taken + 1, limits.slots))
    memory.rows += 1
    memory.spent = spent
    memory.taken += counted and row.hidden
    memory.groups[row.group] = after
    return Decision(True, first, counted)  # noqa: FBT003 (a tuple of three answers)


def within(number: int, limit: int | None, scale: int = 1) -> bool:
    """Whether a number keeps a limit."""
    return limit is None or number <= limit * scale


def total(
    increments: Iterable[tuple[Key, Sequence[int]]], reaches: Sequence[int]
) -> dict[Key, list[int]]:
    """The sums of rows that passed, by group and lane; each increment is cut to its reach."""
    sums: dict[Key, list[int]] = {}
    for group, row in increments:
        lanes = sums.setdefault(group, [0] * len(reaches))
        for place, (increment, reach) in enumerate(zip(row, reaches, strict=True)):
            lanes[place] += max(-reach, min(reach, increment))
    return sums
