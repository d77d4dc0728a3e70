"""A query, reduced to a size at which thousands of copies of it can be attacked.

The reduced query keeps the budget, the bounding, the aggregates, the counter, the selection and the
kind of windows; its columns are those of `audit.pipeline`, its triggers few and its keys small. It
is compiled by the same code and its guarantee is computed from its own noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, copysign, isqrt
from typing import Any

import pyarrow as pa

from streamveil.audit.attack import DELTAS, Audit
from streamveil.audit.pipeline import STRIDE, Run, Scenario, audit, restarted, unbroken
from streamveil.compiler.compile import is_sketched
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise.keyed import KeyedNoise
from streamveil.core.selection.gaussian import GaussianSettings
from streamveil.core.selection.total_test import TotalsAlone
from streamveil.dataflow.group_by import GroupBy
from streamveil.errors import PlanError
from streamveil.plan.combine import combined_plan
from streamveil.plan.options import SELECTION
from streamveil.plan.plan import Aggregate, Clock, KeyColumn, Plan, SourceSpec, Window

STEP = 3_600_000_000  # microseconds
STEPS, WINDOW = 6, 3  # triggers of the job, and of a window where there are windows
MOST_KEYS = 8  # that the added unit enters
MOST_UNITS = 990  # in the background; numbers below 1000 are one copy's
MOST_ROWS = 4_000_000  # of one run, all copies together
FEWEST = 1000  # copies of a scenario that are run in any case
MOST_ADDED = MOST_ROWS // FEWEST // 2  # rows of the added unit, beside those of the background
LEVELS = 2  # of a quantile's tree
RUNS: dict[str, Run] = {"unbroken": unbroken, "restarted": restarted}


@dataclass(frozen=True)
class Verdict:
    """One attack: what it proved against what was claimed, at the budget's delta or worse.

    Where the claim does not stand, at the delta at which it is missed by most.
    """

    scenario: str
    run: str
    proven: float  # lower bound on epsilon at `delta`
    claimed: float
    delta: float
    violations: int

    @property
    def stands(self) -> bool:
        """Whether nothing refutes the claim."""
        return not self.violations


def reduced(plan: Plan, copies: int) -> Plan:
    """The small query."""
    if is_sketched(plan) or not isinstance(plan.source, SourceSpec):
        raise PlanError("only group-by queries can be audited from the command line")
    plan = combined_plan(plan)
    public = plan.key_set.public is not None or not plan.keys
    keys = tuple((copy * STRIDE + key,) for copy in range(copies) for key in range(MOST_KEYS))
    return replace(
        plan,
        source=SourceSpec(name="audit", kind="memory", options={"table": EMPTY}, event_time="at"),
        unit="unit",
        where=None,
        period_us=None if plan.periods is None else STEPS * STEP,
        period_months=0,
        period_origin_us=0,
        keys=(KeyColumn(name="key", expression="key"),),
        key_set=replace(plan.key_set, public=keys if public else None),
        aggregates=tuple(small(aggregate) for aggregate in plan.aggregates),
        window=window_of(plan.window),
        clock=Clock(kind="event", every=STEP, start_us=0, end_us=STEPS * STEP),
        sinks=(),
        options={**plan.options, **same_selection(plan)},
    )


def same_selection(plan: Plan) -> dict[str, str]:
    """The selection that the whole query runs: with few triggers another could be better."""
    if plan.key_set.public is not None or not plan.keys or plan.preset != "default":
        return {}
    whole = compile_plan(plan)
    return {SELECTION.name: whole.aggregation.selected_by}


EMPTY = pa.schema([
    ("unit", pa.int64()), ("key", pa.int64()), ("at", pa.timestamp("us", tz="UTC")),
    ("value", pa.float64()),
]).empty_table()  # fmt: skip


def small(aggregate: Aggregate) -> Aggregate:
    """The aggregate over the value column; quantiles get a small tree."""
    options = dict(aggregate.options)
    if aggregate.function == "quantile":
        options |= {"levels": min(LEVELS, int(options.get("levels", LEVELS)))}
    expression = None if aggregate.expression is None else "value"
    return replace(aggregate, expression=expression, options=options)


def window_of(window: Window) -> Window:
    """A window of the same kind and a few triggers."""
    if window.kind == "whole":
        return Window()
    size, slide = WINDOW * STEP, STEP if window.kind != "tumble" else 0
    lateness = STEP if window.lateness_us else 0
    return Window(kind=window.kind, size_us=size, slide_us=slide, lateness_us=lateness)


def scenarios(plan: Plan, operator: GroupBy) -> list[Scenario]:
    """Where one more unit could show: on many keys, on one, on keys of its own, late.

    Its values are at the end of the bounds that is farther from zero, and once at the other. It has
    as many rows as bounds let in, up to what a run can hold: fewer prove less, and nothing false.
    """
    bounding = plan.bounding
    rows = min(bounding.max_rows or isqrt(bounding.quadratic or 1), MOST_ADDED)
    far, near = extremes(plan)
    crowd = min(around(operator), MOST_UNITS)
    many = range(min(rows, MOST_KEYS, bounding.quadratic or rows, max(1, MOST_UNITS // crowd)))
    own = [(key, 2) for key in range(MOST_KEYS - min(rows, 4), MOST_KEYS)]
    both = [(0, step) for step in range(1, STEPS + 1) for _ in range(-(-rows // STEPS))]

    def scenario(
        name: str, units: int, added: list[tuple[int, int]], value: float = far,
        others: float = 0.0,
    ) -> Scenario:  # fmt: skip
        away = copysign(1.0, value - others)  # beyond the bounds: values are different, and clamped
        return Scenario(
            name=name, steps=STEPS,
            background=background(sorted({key for key, _ in added}), units, others),
            added=tuple((999, key, step, step * STEP - 1, value + away * nth)
                        for nth, (key, step) in enumerate(added)),
        )  # fmt: skip

    found = [
        scenario("one row on each of many keys", crowd, [(key, 2) for key in many]),
        scenario("all rows on one key", crowd, [(0, 2)] * rows),
        scenario("rows at every trigger", crowd, both[:rows]),
        replace(scenario("keys that nobody else has", 1, own), background=()),
    ]
    found += beside_junk(operator, rows, far)
    if near is not None:
        name = "all rows on one key, at the other bound"
        found.append(scenario(name, crowd, [(0, 2)] * rows, near, far))
    return found


def beside_junk(operator: GroupBy, rows: int, value: float) -> list[Scenario]:
    """A key that no coin can show, about as large as its total must be, where there is room.

    Every unit has its first rows on keys that take its slots, then one on the key that matters. The
    others' slots are in keys that soon are shown; the added unit's are in keys of its own.
    """
    test, slots = operator.aggregation.test, operator.bounds.slots or 0
    last = STEPS if operator.schedule.whole else WINDOW
    room = min(rows, operator.bounds.most_groups(None if test is None else test.entry))
    if test is None or test.lane.kind == "sum" or room <= slots or 2 * slots >= MOST_KEYS:
        return []
    units = min(test.threshold(last), MOST_UNITS)
    others = [
        (unit, key, step, step * STEP - 1, value)
        for key, step in [*((key, 1) for key in range(1, slots + 1)), (0, last)]
        for unit in range(units)
    ]
    mine = [(999, MOST_KEYS - 1 - nth, 1, STEP - 1, value) for nth in range(slots)]
    mine += [(999, 0, last, last * STEP - 1, value)] * (room - slots)
    return [
        Scenario(
            name="rows without a slot", steps=STEPS, background=tuple(others), added=tuple(mine)
        )
    ]


def extremes(plan: Plan) -> tuple[float, float | None]:
    """The bound of the values that is farthest from zero, and the one at the other end."""
    highs = [one.high for one in plan.aggregates if one.high is not None]
    lows = [one.low for one in plan.aggregates if one.low is not None]
    if not (highs and lows):
        return 1.0, None
    high, low = max(highs), min(lows)
    return (high, low) if high >= -low else (low, high)


def halved(operator: GroupBy) -> GroupBy:
    """The same query with half of its noise: what an audit must catch."""
    design, chosen = operator.design, operator.design.selection
    if isinstance(chosen, GaussianSettings):
        chosen = replace(chosen, noise=Fraction(chosen.noise, 2))
    noises = tuple(Fraction(noise, 2) for noise in design.noises)
    return replace(operator, design=replace(design, noises=noises, selection=chosen))


def around(operator: GroupBy) -> int:
    """Units with which a key is about as likely shown as not: where one more matters most."""
    selection, test = operator.aggregation.selection, operator.aggregation.test
    if isinstance(selection, TotalsAlone) and test is not None:
        return min(max(1, ceil(test.threshold(test.triggers[0]) / test.lane.reach)), MOST_UNITS)
    return 1 if selection is None else max(1, ceil(selection.threshold(1)) - 1)


def background(
    keys: list[int], units: int, value: float = 0.0
) -> tuple[tuple[int, int, int, int, float], ...]:
    """Units of their own on every key, at the first steps."""
    return tuple(
        (units * key + unit, key, 1 + unit % 2, (1 + unit % 2) * STEP - 1, value)
        for key in keys
        for unit in range(units)
    )


def attacks(
    plan: Plan,
    copies: int,
    alpha: float,
    change: Callable[[GroupBy], GroupBy] = lambda operator: operator,
    tell: Callable[[str], Any] = print,
) -> Iterator[Verdict]:
    """Attacks every scenario, unbroken and restarted. `change` may plant a fault in what runs."""
    small_plan = reduced(plan, copies)
    operator = compile_plan(small_plan)
    running = change(operator)
    claim = operator.guarantee.epsilon
    delta = max(float(plan.budget.delta or 0), min(DELTAS))
    for scenario in scenarios(small_plan, operator):
        rows = len(scenario.background) + len(scenario.added)
        some = min(copies, max(FEWEST, MOST_ROWS // max(rows, 1)))
        for name, run in RUNS.items():
            tell(f"{scenario.name}, {name}")
            noises = KeyedNoise.fresh(), KeyedNoise.fresh()
            found: Audit = audit(running, scenario, noises, some, alpha=alpha, run=run)
            missed = found.violates(claim)
            at = max(missed, key=lambda one: one[2] - one[3])[1] if missed else delta
            yield Verdict(scenario.name, name, found.epsilon(at), claim(at), at, len(missed))
