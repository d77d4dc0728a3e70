"""The exact account of a look: the loss of one unit in the survey that chooses settings.

The query looks at made-up rows: its unit, groups and values are columns of their own, so that rows
can have any value that its expressions could give. Budget, bounds, periods and aggregates are its.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.audit.account import MechanismLoss, QueryAccount
from streamveil.audit.laid_open import OpenDraws, OpenNoise
from streamveil.audit.laid_open_measures import lost_by
from streamveil.audit.neighbours import FAR
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Noise
from streamveil.plan import KeyColumn, Plan, SourceSpec
from streamveil.plan.look import divided

UNITS, GROUPS, MOST_GROUPS, STEPS = 12, 6, 50, 4
MOST = (1, 4, 12, 60)  # most rows of the unit that is in one input only
DAY = 86_400_000_000
Surveyed = Callable[[Plan, Noise], tuple[Any, Guarantee]]  # the results of a look; its guarantee
Row = dict[str, Any]


class Column(NamedTuple):
    """A made-up column: its type, and the values that rows may have."""

    kind: pa.DataType
    values: list[Any]


Columns = dict[str, Column]


class OneWord(OpenNoise):
    """Gives all units one word to choose their row, and all groups one word to choose their bucket.

    Words are independent of the rows: given those of others, a unit's own can be any word, and
    groups may have different numbers in each input if each keeps its word.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rng = np.random.default_rng(seed)
        self.word = rng.integers(0, 2**63, dtype=np.uint64) * np.uint64(2)

    def at(self, purpose: str, *path: Any) -> OpenDraws:
        """See `Noise`."""
        draws: Any = super().at(purpose, *path)
        if purpose in ("rows to survey", "buckets to survey"):
            draws.words = lambda n: np.full(n, self.word, np.uint64)
        return draws  # type: ignore[no-any-return]


def look_accounts(plan: Plan, surveyed: Surveyed, seed: int) -> Iterator[QueryAccount]:
    """Accounts of pairs of neighbours that a query looks at, without end."""
    rng, share = np.random.default_rng(seed), divided(plan).looking
    made, columns = over_made_up_columns(plan)
    while True:
        added, others = rows_of_one(rng, made, columns), rows_of_others(rng, made, columns)
        _, guarantee = surveyed(holding(made, [], columns), OpenNoise(1))
        claim, once = guarantee.loss, int(rng.integers(2**32))

        held = periods_of(made, added)
        claim = claim if held == 1 else guarantee.over(held).loss

        def release(rows: list[Row], _: Noise, once: int = once) -> list[Any]:
            said = surveyed(holding(made, rows, columns), OneWord(once))[0]
            return [np.array(repr(said))]

        gap = dict.fromkeys(columns)  # positions are public
        blank = [gap] * len(added) if made.clock.kind == "rows" else []
        lost = lost_by(release, ([*added, *others], [*blank, *others]), seed=once)
        found = QueryAccount([MechanismLoss("the look", *lost.beside(claim))], [*lost.faults])
        if not guarantee.loss.fits(share):
            found.faults.append("the look costs more than its share of the budget")
        yield found


def over_made_up_columns(plan: Plan) -> tuple[Plan, Columns]:
    """The plan over made-up columns, and these columns."""
    values = {one.expression: "" for one in plan.aggregates if one.expression is not None}
    values = {text: f"value{place}" for place, text in enumerate(values)}
    keys = tuple(
        KeyColumn(name=key.name, expression=f"key{place}") for place, key in enumerate(plan.keys)
    )
    timed = plan.source.event_time is not None or plan.clock.kind == "event"
    public = [*zip(*(plan.key_set.public or ()), strict=True)]
    columns = {
        "unit": Column(pa.int64(), []),
        **({"at": Column(pa.timestamp("us", tz="UTC"), [])} if timed else {}),
        **{
            key.expression: groups_of(public[place] if public else range(GROUPS))
            for place, key in enumerate(keys)
        },
        **dict.fromkeys(values.values(), Column(pa.float64(), values_of(plan))),
    }
    aggregates = tuple(
        replace(one, expression=values.get(one.expression or "")) for one in plan.aggregates
    )
    source = SourceSpec(
        name="made up", kind="memory", options={}, event_time="at" if timed else None
    )
    made = replace(
        plan, source=source, unit="unit", where=None, keys=keys, aggregates=aggregates, sinks=(),
        clock=replace(plan.clock, arrival=None),
    )  # fmt: skip
    return made, columns


def holding(plan: Plan, rows: list[Row], columns: Columns) -> Plan:
    """The plan over some rows."""
    table = pa.table({
        name: pa.array([row[name] for row in rows], column.kind)
        for name, column in columns.items()
    })  # fmt: skip
    return replace(plan, source=replace(plan.source, options={"table": table}))


def row_of(rng: np.random.Generator, plan: Plan, columns: Columns, unit: int) -> Row:
    """A row of a unit: any group, time and values."""
    row: Row = {"unit": unit}
    for name, column in columns.items():
        if name == "at":
            row[name] = time_of(rng, plan)
        elif column.values:
            row[name] = column.values[int(rng.integers(len(column.values)))]
    return row


def time_of(rng: np.random.Generator, plan: Plan) -> int:
    """A time while the job runs."""
    start = plan.clock.start_us or 0
    end = plan.clock.end_us or start + STEPS * (plan.clock.every or DAY)
    first, last = start, max(start + 1, end)
    return int(first + (last - first) * int(rng.integers(STEPS)) // STEPS)


def groups_of(values: Iterable[Any]) -> Column:
    """A column of groups."""
    some = list(dict.fromkeys(values))[:MOST_GROUPS]
    return Column(pa.array(some).type, [*some, None])


def values_of(plan: Plan) -> list[float | None]:
    """The ends of all bounds, values far beyond them, NaN and null."""
    found: list[float | None] = [0.0, 1.0, -3.5, FAR, -FAR, 1e-320, nan, inf, None]
    for one in plan.aggregates:
        found += [end for end in (one.low, one.high) if end is not None]
    return found


def rows_of_others(rng: np.random.Generator, plan: Plan, columns: Columns) -> list[Row]:
    """Rows that are in both inputs."""
    return [
        row_of(rng, plan, columns, 1 + int(rng.integers(UNITS)))
        for _ in range(int(rng.integers(60)))
    ]


def rows_of_one(rng: np.random.Generator, plan: Plan, columns: Columns) -> list[Row]:
    """Rows of one unit, all alike or all different, in one of its periods or in all."""
    first = row_of(rng, plan, columns, 0)
    alike, count = rng.random() < 0.5, int(rng.choice(MOST))
    rows = [first if alike else row_of(rng, plan, columns, 0) for _ in range(count)]
    if plan.periods is None or "at" not in columns:
        return rows
    if rng.random() < 0.5:
        return [{**row, "at": time_of(rng, plan)} for row in rows]
    numbers = plan.periods.numbers(np.array([row["at"] for row in rows], np.int64)).tolist()
    return [row for row, number in zip(rows, numbers, strict=True) if number == numbers[0]]


def periods_of(plan: Plan, rows: list[Row]) -> int:
    """The number of periods in which a unit has rows."""
    if plan.periods is None or not rows or "at" not in rows[0]:
        return 1
    return len(np.unique(plan.periods.numbers(np.array([row["at"] for row in rows], np.int64))))
