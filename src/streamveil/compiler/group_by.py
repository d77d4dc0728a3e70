"""From a plan to the operator that runs it: a pure function of the query, before any data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import floor, log2, sqrt
from typing import Any, cast

import pyarrow as pa

from streamveil.compiler.design_choice import OPEN_BOUND
from streamveil.compiler.sizing import Sizing, is_open
from streamveil.connectors import micros
from streamveil.core.accounting.guarantee import Gdp
from streamveil.core.accounting.sequel import Sequel
from streamveil.core.mechanism import Look, MechanismDesign
from streamveil.core.noise import SECRET_BYTES
from streamveil.core.selection.gaussian import FINE
from streamveil.core.sensitivity import LARGEST_ROWS, Bounds, Lane
from streamveil.dataflow import Operator
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.grouping import Default
from streamveil.dataflow.outputs import LaneBook, Output
from streamveil.dataflow.release import AggregationPlan, driver
from streamveil.dataflow.rows import Bind, RowFunction, RowProgram, require_number
from streamveil.dataflow.windows import Schedule, hopping, most_windows, periods_met
from streamveil.errors import PlanError, nearest, require_one_of
from streamveil.expressions import (
    column_named,
    compile_key,
    compile_predicate,
    compile_unit,
    compile_value,
    has_value,
)
from streamveil.kinds import COUNTS, MOMENTS, SQUARED, TOTALS, made_of
from streamveil.plan import Aggregate, Plan, TableSource, options
from streamveil.plan.check import check_compiled
from streamveil.plan.look import (
    GUESSED,
    LOOKED,
    clamped_in_words,
    divided,
    is_guessed,
    look_share,
    refuse_large_sums,
    ways_to_know,
    why_unbounded,
)
from streamveil.plan.options import Option

PRECISION_BITS = 24  # quanta between 0 and the largest absolute value: 2^24
SMALLEST = 2.0**-990  # sizes below it take its lattice: float64 has no exact step for theirs
MOST_LEVELS = 12
MOST_LOOKED = Fraction(1, 2)
BY_FORECAST = "the bound chosen by forecast"


def check_public(operator: Operator, schema: pa.Schema) -> None:
    """PlanError where two public groups are one value of their columns' types."""
    if isinstance(operator, GroupBy) and operator.public is not None:
        operator.name_public(operator.key_types(schema), bytes(SECRET_BYTES))


def compile_plan(plan: Plan) -> GroupBy:
    """Checks a plan and calibrates its mechanisms; raises PlanError with the way out."""
    if isinstance(plan.source, TableSource):
        raise PlanError(
            "a changing table runs on the embedded engine, without a memory limit, and is not tuned"
        )
    check_compiled(plan)
    return Compiler(plan).compile()


@dataclass
class Compiler:
    """One compilation; collects the defaults it had to take."""

    plan: Plan

    def __post_init__(self) -> None:
        self.defaults: list[Default] = []
        self.book = LaneBook()
        self.trees: list[tuple[int, Lane, int]] = []
        self.values: list[str] = []

    def compile(self) -> GroupBy:
        """The operator."""
        guessed = f"{GUESSED}; to end that: {ways_to_know(self.plan)}"
        guessed = guessed if is_guessed(self.plan) else ""
        look = self._look()
        plan = self.plan
        for word in sorted(set(plan.options) - {LOOKED}):
            require_one_of("option", word, options.of_query(options.GROUP_BY))
        if plan.bounding.combine:
            raise PlanError(
                "combining a unit's rows per group before bounding is not supported here.\n"
                "  to fix  bound values per row (contribution_bounds_per_row)"
            )
        schedule = self.schedule()
        plan = self.plan = self._counted_once(plan, schedule)
        bounds = Bounds(
            max_rows=plan.bounding.max_rows,
            per_group=plan.bounding.max_rows_per_group,
            quadratic=OPEN_BOUND if is_open(plan) else plan.bounding.quadratic,
        )
        outputs = self._in_order([self._output(aggregate) for aggregate in plan.aggregates])
        public = self._public()
        bounds = self._in_few_groups(bounds, schedule, public)
        sizing = Sizing(
            plan=plan, lanes=tuple(self.book.lanes), uses=tuple(self.book.uses), bounds=bounds,
            trees=tuple((lane, levels) for _, lane, levels in self.trees),
            horizon=schedule.triggers, max_units=int(self._option(options.MAX_UNITS)),
            windows=periods_met(schedule, plan.periods), setting=self._option,
            sequel=look.after if look is not None and isinstance(look.after, Sequel) else None,
        )  # fmt: skip
        if plan.preset == "dp-sqlp":
            design = sizing.published()
        elif public is None:
            design = sizing.discovered()
        else:
            design = sizing.public()
        if is_open(plan):
            self._note_bound(design.limits)
            if design.limits.groups != bounds.groups:
                why = "of one unit, so that the count of units has less noise: by forecast"
                self._note(options.MAX_GROUPS.name, design.limits.groups, why)
        largest = max((lane.reach for lane in self.book.lanes), default=1)
        refuse_large_sums(max(largest, FINE))
        confidence = float(self._option(options.CONFIDENCE))
        made = GroupBy(
            job=plan.name,
            unit=plan.unit,
            bind=binder(plan, tuple(self.values), self._adds(), self._named()),
            schedule=schedule,
            periods=plan.periods,
            design=replace(design, look=look),
            key_names=tuple(key.name for key in plan.keys),
            public=public,
            outputs=outputs,
            confidence=confidence,
            true_intervals=self._true_intervals(outputs, design),
            defaults=tuple(self.defaults),
            omitted=plan.source.omitted,
            uncut=nothing_cut(plan),
            guessed=guessed,
        )
        return replace(made, outputs=tuple(with_room(one, made.aggregation) for one in outputs))

    def _counted_once(self, plan: Plan, schedule: Schedule) -> Plan:
        """A bound of one row of a unit for each window or group, where that cuts nobody.

        Privacy does not rest on the number of windows: bounding enforces the bounds set here.
        """
        open_bound = is_open(plan) and plan.preset == "default"
        windows = most_windows(schedule, plan.periods)
        if open_bound and plan.counts_units and plan.keys and not plan.counts_once:
            if plan.bounding.max_rows_per_group is not None:
                return plan
            self._note(options.MAX_PER_GROUP.name, 1, "a unit counts once in a group")
            return replace(plan, bounding=replace(plan.bounding, max_rows_per_group=1))
        if not (open_bound and plan.counts_once and windows):
            return plan
        why = "a unit counts once in each window that its rows can fall into: nothing is cut"
        if plan.has_one_row_each:
            why = "each unit has one row: nothing is cut"
        self._note(options.MAX_ROWS.name, windows, why)
        once = replace(
            plan.bounding, max_rows=windows, max_rows_per_group=None if windows == 1 else 1
        )
        return replace(plan, bounding=once, options={options.CUT_SHARE.name: 0, **plan.options})

    def _in_few_groups(
        self, bounds: Bounds, schedule: Schedule, public: tuple[tuple[Any, ...], ...] | None
    ) -> Bounds:
        """Bounds to a number of groups, where units are counted: their count has less noise.

        The number is the query's, or that of all groups, which cuts nobody. Privacy does not rest
        on how many there are: bounding enforces the bounds set here.
        """
        plan, windows = self.plan, most_windows(schedule, self.plan.periods)
        if not (plan.window.side_by_side and any(one.kind == "units" for one in self.book.lanes)):
            return bounds
        every = None if public is None or windows is None else len(public) * windows
        known = [most for most in (every, plan.bounding.max_groups) if most is not None]
        most = LARGEST_ROWS if is_open(plan) else bounds.units_l2_squared
        groups = min([*known, most])
        return replace(bounds, groups=groups) if groups < most else bounds

    def _look(self) -> Look | None:
        """The look at the rows; takes its cost from the budget of the plan."""
        share = look_share(self.plan)
        if not 0 <= share <= MOST_LOOKED:
            given = options.LOOK_SHARE.of(self.plan.options)
            raise PlanError(f"look_share must be between 0 and {float(MOST_LOOKED):g}, not {given}")
        if not share:
            return None
        division = divided(self.plan)
        self._note(options.LOOK_SHARE.name, float(share), "of mu^2, for the look at the rows")
        said = tuple(self.plan.options.get(LOOKED, {}).get("said", ()))
        self.plan = replace(self.plan, budget=division.rest)
        return Look(Gdp(division.looking.mu or 0), division.after, said)

    def _true_intervals(self, outputs: tuple[Output, ...], design: MechanismDesign) -> bool:
        """Whether intervals cover the rows over the bound; refuses what they cannot cover."""
        if self._option(options.INTERVALS) == "noise":
            return False
        for output in outputs:
            if output.function not in TOTALS or (output.low < 0 < output.high):
                raise PlanError(
                    f"intervals = 'true' does not cover '{output.name}' ({output.function}): which"
                    " way the rows over the bound would move it is not known.\n"
                    "  to fix  ask for counts and sums of one sign, or intervals = 'noise'"
                )
        if design.cut is None or driver(design.plain) < 0:
            raise PlanError(
                "intervals = 'true' needs the private count of cut rows.\n"
                "  to fix  give cut_share, a part of the budget, and ask for a count or sum"
            )
        return True

    # ---- windows and time

    def schedule(self) -> Schedule:
        """The public calendar: steps, windows and their triggers."""
        window, clock = self.plan.window, self.plan.clock
        steps = clock.steps
        if clock.kind == "once":
            steps = 1
        elif clock.kind == "event" and clock.start_us is not None and clock.end_us is not None:
            whole = clock.steps_until(clock.end_us)
            steps = whole if steps is None else min(steps, whole)
        if window.kind == "whole" and (self.plan.periods is None or not clock.timed):
            return Schedule(steps=steps)
        if self.plan.source.event_time is None:
            raise PlanError("windows and unit periods need the event_time of the source")
        timed = Schedule(ticks=clock.ticks, steps=steps, lateness_us=window.lateness_us)
        if window.kind == "whole":
            return timed
        if window.kind != "cumulate":
            parts, stride, cells = hopping(window.size, window.slide)
            return replace(timed, cells=cells, parts=parts, stride=stride)
        return replace(timed, cells=window.slide, spans=window.size)

    # ---- aggregates

    def _in_order(self, outputs: list[Output]) -> tuple[Output, ...]:
        """The outputs, with the lanes of trees moved behind all others (`GroupBy`)."""
        new = self.book.nodes_last()
        self.trees = [(new[start], lane, levels) for start, lane, levels in self.trees]
        made = tuple(replace(one, lanes=tuple(new[old] for old in one.lanes)) for one in outputs)
        if self._counts_rows:
            self._give_to_rows(made)
        return made

    def _give_to_rows(self, outputs: tuple[Output, ...]) -> None:
        """Moves budget to the number of rows from the m lanes that are read together with it.

        Error: all m lanes read it. If it gets the part f of their common budget and each of them
            (1 - f) / m, a count of values has v / 4 (1 / f + m / (1 - f)), least at f = 1 / (1 +
            sqrt(m)): sqrt(m) times as much as one of them. They have m + 1 parts, as before.
        """
        rows = self.book.lanes.index(Lane(kind="rows"))
        beside = {one.lanes[1] for one in outputs if one.lanes[0] == rows and len(one.lanes) > 1}
        part = 0.0 if not beside else (sqrt(len(beside)) - 1) / len(beside)
        for lane in beside:
            self.book.uses[rows] += part * self.book.uses[lane]
            self.book.uses[lane] *= 1 - part

    def _output(self, aggregate: Aggregate) -> Output:
        makers: dict[str, Callable[[Aggregate], Output]] = {
            **dict.fromkeys(COUNTS, self._count),
            "sum": self._sum,
            **dict.fromkeys(MOMENTS, self._moments),
            **dict.fromkeys(made_of("order"), self._quantile),
        }
        if aggregate.function not in makers:
            raise PlanError(
                f"'{aggregate.function}' is not an aggregate of the group-by"
                f"{nearest(aggregate.function, makers)}"
            )
        given = self.plan.options
        output = makers[aggregate.function](aggregate)
        limits = [*self._limits(), *[BY_FORECAST] * is_open(self.plan)]
        rises = output.function in COUNTS or (
            output.function == "sum" and (aggregate.low or 0) >= 0
        )
        return replace(
            output,
            cut=f"rows of one unit beyond {', '.join(limits)} are not counted",
            clamped=clamped_in_words(self.plan, aggregate),
            unbounded=why_unbounded(self.plan, aggregate),
            non_negative=bool(options.NON_NEGATIVE.of(given)) and rises,
            integer=bool(options.INTEGER.of(given) or options.INTEGER.of(aggregate.options)),
            monotone=bool(options.MONOTONE.of(given)) and rises,
            step=float(self.book.lanes[output.lanes[-1]].quantum) if output.is_total else 0.0,
        )

    def _count(self, aggregate: Aggregate) -> Output:
        if aggregate.function == "count_units":
            return self._alone(aggregate, Lane(kind="units"))
        if aggregate.function == "count_distinct":
            value = self._value(aggregate.expression)
            return self._alone(aggregate, Lane(kind="distinct", value=value))
        lane = self._rows_of(aggregate.expression)
        read = any(
            one.function in ("sum", *MOMENTS) and one.expression == aggregate.expression
            for one in self.plan.aggregates
        )
        if lane.kind == "rows" or read or not self._counts_rows:
            return self._alone(aggregate, lane)
        half = replace(lane, high=1.0, centre=0.5, quantum=Fraction(1, 2), of_all=True)
        return self._beside_rows(aggregate, half)

    def _rows_of(self, expression: str | None) -> Lane:
        """The count of rows with a value: of all rows, if by the expression all have one."""
        if self._is_filled(expression):
            return Lane(kind="rows")
        return Lane(kind="valid", value=self._value(expression))

    @cached_property
    def _counts_rows(self) -> bool:
        """Whether the number of all rows is asked for."""
        return any(
            one.function == "count" and self._is_filled(one.expression)
            for one in self.plan.aggregates
        )

    def _is_filled(self, expression: str | None) -> bool:
        return expression is None or has_value(expression, self.plan.where)

    def _beside_rows(self, aggregate: Aggregate, lane: Lane, **more: Any) -> Output:
        """A sum over all rows, from a centre, and the number of rows, which moves it back.

        Error: of values within [0, 1], a row moves the sum from their middle by 1/2. With noise of
            variance v for one of k equal lanes, it has k v / 4, and k v / 4 from half the count: k
            v / 2 for the k v of a lane of its own. A share of rows p has k v (1/4 + (p - 1/2)^2) /
            count^2 for k v (1 + p^2) / count^2. No other lane has less for it.
        """
        lanes = self.book.use(Lane(kind="rows"), 0), self.book.use(lane)
        return Output(
            name=aggregate.name, function=aggregate.function, lanes=lanes, centre=lane.centre,
            **more,
        )  # fmt: skip

    def _alone(self, aggregate: Aggregate, lane: Lane, **more: Any) -> Output:
        """An output that is one lane."""
        lanes = (self.book.use(lane),)
        return Output(name=aggregate.name, function=aggregate.function, lanes=lanes, **more)

    def _sum(self, aggregate: Aggregate) -> Output:
        """A sum: a lane of its own, or a centred one and a count of values that is asked for too.

        Error: with noise of variance v for one of k equal lanes, k v max(low^2, high^2) by itself.
            From the middle of its bounds k v (low^2 + high^2) / 2, never more, where the count is
            asked for as well; 2/3 of that where a mean reads both lanes, each of which then has
            half of what its own would have had. No other lane has less for it. Beside the number of
            all rows, bounds hold the 0 of a row without a value too (`_beside_rows`).
        """
        low, high, value = self._bounded(aggregate)
        alike = [one for one in self.plan.aggregates if one.expression == aggregate.expression]
        same = (aggregate.low, aggregate.high, aggregate.quantum)
        averaged = any(
            one.function in MOMENTS and (one.low, one.high, one.quantum) == same for one in alike
        )
        counted = any(one.function == "count" for one in alike)
        if low + high and (averaged or counted):
            lanes = self._centred(aggregate, (0.5, 0.5) if averaged else (0.0, 1.0))
            centre = self.book.lanes[lanes[1]].centre
            return Output(
                name=aggregate.name, function="sum", lanes=lanes, low=low, high=high, centre=centre
            )
        widest = min(low, 0.0), max(high, 0.0)
        if sum(widest) and self._counts_rows:
            lane = Lane(
                kind="sum", value=value, low=low, high=high, of_all=True,
                centre=middle_of(*widest, aggregate.quantum),
                quantum=self._quantum(aggregate, (widest[1] - widest[0]) / 2),
            )  # fmt: skip
            return self._beside_rows(aggregate, lane, low=low, high=high)
        quantum = self._quantum(aggregate, max(abs(low), abs(high)))
        lane = Lane(kind="sum", value=value, low=low, high=high, quantum=quantum)
        return self._alone(aggregate, lane, low=low, high=high)

    def _centred(
        self, aggregate: Aggregate, reads: tuple[float, float] = (1, 1)
    ) -> tuple[int, int]:
        """The lanes of a count of values and of their sum from the middle of their bounds."""
        low, high, value = self._bounded(aggregate)
        total = Lane(
            kind="sum", value=value, low=low, high=high,
            centre=middle_of(low, high, aggregate.quantum),
            quantum=self._quantum(aggregate, (high - low) / 2),
        )  # fmt: skip
        count = self._rows_of(aggregate.expression)
        if count.kind == "rows" and self._counts_rows and reads == (1, 1):
            reads = 0, 1  # a mean beside the number of rows
        return self.book.use(count, reads[0]), self.book.use(total, reads[1])

    def _moments(self, aggregate: Aggregate) -> Output:
        low, high, _ = self._bounded(aggregate)
        lanes: tuple[int, ...] = self._centred(aggregate)
        centre = self.book.lanes[lanes[1]].centre
        if aggregate.function in SQUARED:
            quantum = power_of_two(max(high - centre, centre - low) ** 2)
            square = replace(self.book.lanes[lanes[1]], kind="square", quantum=quantum)
            lanes = *lanes, self.book.use(square)
        return Output(
            name=aggregate.name, function=aggregate.function, lanes=lanes, low=low, high=high,
            centre=centre,
        )  # fmt: skip

    def _quantile(self, aggregate: Aggregate) -> Output:
        low, high, value = self._bounded(aggregate)
        options = dict(aggregate.options)
        q, fan = float(options.pop("q", 0.5)), int(options.pop("fan", 4))
        levels = int(options.pop("levels", 4))
        for word in sorted(options):
            require_one_of("option", word, ["q", "fan", "levels"])
        if fan < 2 or not 1 <= levels <= MOST_LEVELS:
            raise PlanError(f"a quantile needs fan >= 2 and 1 <= levels <= {MOST_LEVELS}")
        nodes = [
            Lane(kind="node", value=value, low=low, high=high, level=level, place=place, fan=fan)
            for level in range(1, levels + 1)
            for place in range(fan**level)
        ]
        places = tuple(self.book.use(node) for node in nodes)
        tree = (places[0], nodes[0], levels)
        if any(one[1] == nodes[0] and one[2] != levels for one in self.trees):
            raise PlanError(
                f"'{aggregate.name}' shares the tree of a quantile whose levels are others.\n"
                "  why     a row would count twice in the levels of both\n"
                "  to fix  give both the same number of levels, or other bounds"
            )
        if tree not in self.trees:
            self.trees.append(tree)
        return Output(
            name=aggregate.name, function="quantile", lanes=places, low=low, high=high, q=q,
            levels=levels, fan=fan,
        )  # fmt: skip

    def _bounded(self, aggregate: Aggregate) -> tuple[float, float, int]:
        """Its bounds, finite and in order (by `check_compiled`), and its value function."""
        low, high = cast(float, aggregate.low), cast(float, aggregate.high)
        return float(low), float(high), self._value(aggregate.expression)

    def _value(self, expression: str | None) -> int:
        assert expression is not None  # noqa: S101  (`check_compiled`)
        if expression not in self.values:
            self.values.append(expression)
        return self.values.index(expression)

    def _quantum(self, aggregate: Aggregate, largest: float) -> Fraction:
        if aggregate.quantum is not None:
            return Fraction(aggregate.quantum)
        quantum, why = power_of_two(largest), "2^-24 of the largest absolute value, a power of two"
        self._note(f"{aggregate.name}.quantum", float(quantum), why)
        return quantum

    def _adds(self) -> dict[int, str]:
        """Value functions that must be numbers, with the aggregate that needs them."""
        return {
            lane.value: self.values[lane.value]
            for lane in self.book.lanes
            if lane.kind in ("sum", "square", "node")
        }

    def _named(self) -> tuple[int, ...]:
        """Value functions whose different results are counted."""
        return tuple(lane.value for lane in self.book.lanes if lane.kind == "distinct")

    def _limits(self) -> list[str]:
        bounding = self.plan.bounding
        return [
            f"{name} = {bound}"
            for name, bound in (
                ("max_rows", bounding.max_rows),
                (options.MAX_PER_GROUP.name, bounding.max_rows_per_group),
                ("quadratic", bounding.quadratic),
                ("max_groups", bounding.max_groups),
            )
            if bound is not None
        ]

    # ---- keys

    def _public(self) -> tuple[tuple[Any, ...], ...] | None:
        public = self.plan.key_set.public
        if not self.plan.keys:
            return ((),)
        return None if public is None else tuple(public)

    def _option(self, option: Option, default: Any = None, reason: str = "") -> Any:
        """The query's value of an option, or a default that is noted with its reason."""
        if option.name in self.plan.options:
            return self.plan.options[option.name]
        value = option.value if default is None else default
        self._note(option.name, value, reason or option.reason)
        return value

    def _note_bound(self, limits: Bounds) -> None:
        """The bound on a unit's rows that the forecast chose."""
        if limits.quadratic is None:
            each = " a row of each group" if limits.per_group == 1 else ""
            self._note(options.MAX_ROWS.name, limits.max_rows, f"of one unit{each}: by forecast")
        else:
            why = "of rows times weights: by forecast"
            self._note(options.MAX_SQUARED.name, limits.quadratic, why)

    def _note(self, name: str, value: Any, reason: str) -> None:
        if all(known.name != name for known in self.defaults):
            self.defaults.append(Default(name, value, reason))


def nothing_cut(plan: Plan) -> bool:
    """Whether the rows that a bound cuts would change no answer: each unit counts once at most."""
    whole = plan.window.kind == "whole"  # elsewhere a bound is spent in several windows
    return plan.counts_once and whole and plan.bounding.quadratic is None


def with_room(output: Output, plan: AggregationPlan) -> Output:
    """Adds room for a count's steps to a sum that it moves back, where the sum has less noise.

    See `results.intervals.room_of`. Noise has the least deviation in keys that start last.
    """
    if not output.is_total or len(output.lanes) == 1:
        return output
    (count, own), counter = output.lanes, plan.counters[output.lanes[1]]
    half = abs(output.centre) * plan.quanta[count] / 2
    finer = float(counter.sigma) / counter.sensitivity * plan.quanta[own]
    return replace(output, room=half) if finer < half >= output.step else output


def power_of_two(largest: float) -> Fraction:
    """The lattice step 2^-24 of the next power of two below a size; never below float64's least."""
    return Fraction(2) ** (floor(log2(max(largest, SMALLEST))) - PRECISION_BITS)


def middle_of(low: float, high: float, quantum: float | None) -> float:
    """The centre that sums of values between two ends use: the middle, or a multiple of a quantum.

    So multiples of that quantum stay exact; from any other centre they would be rounded.

    >>> middle_of(0, 5, None), middle_of(0, 5, 1.0), middle_of(0, 0.75, 0.25)
    (2.5, 2.0, 0.5)
    """
    middle = (low + high) / 2
    if quantum is None:
        return middle
    step = Fraction(quantum)
    return float(round(Fraction(middle) / step) * step)


def binder(
    plan: Plan, values: tuple[str, ...], adds: dict[int, str], named: tuple[int, ...] = ()
) -> Bind:
    """The row functions of a plan, compiled once a schema is known."""
    time = plan.source.event_time

    def bind(schema: pa.Schema) -> RowProgram:
        functions = []
        for place, text in enumerate(values):
            function = (compile_key if place in named else compile_value)(text, schema)
            if place in adds:
                require_number(function(schema.empty_table()).type, text)
            functions.append(function)
        return RowProgram(
            unit=compile_unit(plan.unit, schema),
            event_us=None if time is None else event_time(column_named(schema, time)),
            where=None if plan.where is None else compile_predicate(plan.where, schema),
            keys=tuple(compile_key(key.expression, schema) for key in plan.keys),
            values=tuple(functions),
            named=named,
            added=tuple(adds),
        )

    return bind


def event_time(column: str) -> RowFunction:
    """Microseconds since 1970 UTC of a timestamp, date or integer column; nulls stay."""

    def time(table: pa.Table) -> pa.Array:
        return micros(table.column(column), column).combine_chunks()

    return time
