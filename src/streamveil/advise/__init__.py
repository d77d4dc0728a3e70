"""Explains the guarantee and the expected accuracy of a query, before any row is read.

Everything here is computed from the compiled mechanisms: the guarantee from their noise scales, the
noise of a release from their matrices, the thresholds from the selection. Nothing is typed in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING, Any

from streamveil.calendars import Cells, clock_of
from streamveil.compiler import is_sketched, require_ends
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.plan_forecast import (
    HEADING,
    answer_sd,
    forecast_rows,
    forecast_title,
    growth,
    lane_sd,
    noise_warning,
    published_chance,
    threshold,
)
from streamveil.core.accounting import float_above
from streamveil.core.accounting.guarantee import rounded_up
from streamveil.core.selection.gaussian import GaussianSelection
from streamveil.core.selection.total_test import TotalTest
from streamveil.core.sensitivity import Bounds
from streamveil.dataflow.bounding import Shape
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.windows import Schedule, better_start, periods_until
from streamveil.display import Explanation, Row, Section
from streamveil.kinds import RATIOS
from streamveil.plan import Clock, Plan, TableSource, Window, combined_plan, options
from streamveil.plan.look import (
    first_alone,
    gives_options,
    in_units,
    is_open,
    look_share,
    open_values,
    why_no_look,
    with_look,
)
from streamveil.plan.options import Option
from streamveil.release_metadata import ALLOWED, OF_KEPT

if TYPE_CHECKING:
    from streamveil.advise.explain_memory import Limit
    from streamveil.changing_tables.operator import ChangingTable
    from streamveil.sketches.operator import SketchQuery


FORECAST_UNITS = (30, 100, 300, 1_000, 10_000)  # privacy units of a group
FILL = 0.75  # share of a hash table in use, between two steps of its growth
KEY_BYTES = 50  # assumed for a key: a number with its index entry, or a text
MOST_LINE = "16,777,216"  # of the source 'files'


def explain(plan: Plan, *, forecast: bool = False, limit: Limit | None = None) -> Explanation:
    """Describes a plan. Compiles it, reads no data.

    Raises SourceError if a source or a sink refuses its options.
    """
    require_ends(plan)
    made = _explained(plan, forecast=forecast, limit=limit)
    steps = tuple((post.words,) for post in plan.post)
    if not steps:
        return made
    free = Section("POST-PROCESSING (of the rows of each release: it costs nothing)", steps)
    return replace(made, sections=(*made.sections, free))


def _explained(plan: Plan, *, forecast: bool, limit: Limit | None) -> Explanation:
    if isinstance(plan.source, TableSource):
        return of_table(plan)
    if is_sketched(plan):
        return of_sketch(plan)
    plan = with_look(plan)
    operator = compile_plan(combined_plan(in_units(plan)))
    triggers = shown_triggers(operator.schedule.triggers)
    sections = [
        Section("QUERY", query_rows(plan)),
        Section("MECHANISM", mechanism_rows(plan, operator)),
        noise_section(operator, triggers),
        Section("BIAS (not in the intervals)", bias_rows(operator)),
        Section("MEMORY", memory_rows(plan, operator, limit)),
        _defaults(plan, default_rows(plan, operator)),
    ]
    sections += idle_section(plan, operator)
    if forecast:
        sections.insert(3, forecast_section(operator, triggers))
        if rows := forecast_rows(plan, operator):
            sections.insert(4, Section(forecast_title(plan, operator), tuple(rows), HEADING))
    sections[:0] = warnings(plan, operator.schedule)
    if noise := noise_warning(plan, operator):
        sections.insert(0, Section("WARNING", ((noise,),)))
    return Explanation(promise(plan, operator), tuple(sections), facts(plan, operator, triggers))


def idle_section(plan: Plan, operator: GroupBy | SketchQuery) -> list[Section]:
    """The section on options without effect, if there are any."""
    if not gives_options(plan):
        return []
    from streamveil.compiler.idle_options import idle_options  # loaded where options are given

    idle = tuple(idle_options(plan, operator))
    return [Section("NOT USED (given, and decides nothing here)", idle)] if idle else []


def warnings(plan: Plan, schedule: Schedule) -> list[Section]:
    """Warnings of settings that cost noise for nothing."""
    better = better_start(schedule)
    if better is None:
        return []
    moved, most = better
    shown = moment(moved, plan.zone)
    text = (
        f"windows get up to {schedule.triggers} releases, and noise for each, because no window"
        f" begins at start; {most} would do.\n"
        f"  to fix  start = '{shown}', or windows with origin => (or week_start =>) where releases"
        " start"
    )
    return [Section("WARNING", ((text,),))]


def moment(us: int, zone: str = "") -> str:
    """A time in the time zone of the query."""
    shown = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock_of(us, zone))
    return shown.replace(tzinfo=None).isoformat(" ")


def of_table(plan: Plan) -> Explanation:
    """Describes a query over a changing table."""
    from streamveil.advise import explain_table as tables
    from streamveil.compiler.tables import Design

    design = Design(plan)
    triggers = shown_triggers(design.workload.steps)
    useless = tables.usefulness(design)
    sections = (
        *([Section("WARNING", ((useless,),))] if useless else []),
        Section("QUERY", tables.table_rows(plan, _clock(plan.clock), sinks_of(plan))),
        Section(f"MECHANISM (errors of the worst answer, in {design.counts})",
                tables.choice_rows(design),
                tables.CHOICE),
        Section("NOISE", tables.noise_rows(design, triggers), deviations_at(triggers)),
        Section("QUESTIONS", tables.question_rows(design)),
        Section("BIAS (not in the intervals)", tables.bias_rows(plan)),
        _defaults(plan, tables.default_rows(plan, design)),
    )  # fmt: skip
    delta, guarantee = plan.budget.quoted_delta, design.operator.guarantee
    facts = {
        "epsilon": guarantee.epsilon(delta), "delta": float(delta),
        "guarantee": guarantee.to_dict(), "mechanism": design.candidate.name,
        "expected": design.candidate.expected, "noise": tables.deviation_at(design, triggers),
        "useful": useless is None,
    }  # fmt: skip
    return Explanation(promise(plan, design.operator), sections, facts)


def of_sketch(plan: Plan) -> Explanation:
    """Describes a query that a sketch answers."""
    from streamveil.advise.explain_sketch import sketch_defaults, sketch_rows
    from streamveil.compiler.sketch import compile_sketch

    operator = compile_sketch(plan)
    triggers = shown_triggers(operator.schedule.triggers)
    title = "NOISE (collisions add to it)"
    noise = (operator.name, *(f"{operator.sd(trigger):.4g}" for trigger in triggers))
    sections = (
        *warnings(plan, operator.schedule),
        Section("QUERY", query_rows(plan)),
        Section("MECHANISM", sketch_rows(operator)),
        Section(title, (noise,), deviations_at(triggers)),
        _defaults(plan, sketch_defaults(plan)),
        *idle_section(plan, operator),
    )
    delta = plan.budget.quoted_delta
    facts = {"epsilon": operator.guarantee.epsilon(delta), "delta": float(delta),
             "guarantee": operator.guarantee.to_dict(), "bytes": operator.nbytes}  # fmt: skip
    return Explanation(promise(plan, operator), sections, facts)


def deviations_at(triggers: Iterable[int]) -> Row:
    """The heading of the table of noise at some releases."""
    return ("standard deviation at release", *(f"{t:,}" for t in triggers))


def shown_triggers(horizon: int | None) -> tuple[int, ...]:
    """Releases 1, 10 and T (or some far ones, if there is no last one)."""
    marks = {1, 10, horizon} if horizon else {1, 10, 100, 1_000}
    return tuple(sorted(t for t in marks if horizon is None or t <= horizon))


def promise(plan: Plan, operator: GroupBy | SketchQuery | ChangingTable) -> str:
    """The guarantee in words, and the loss of a unit that is always present."""
    guarantee, delta = operator.guarantee, plan.budget.quoted_delta
    words = [guarantee.sentence(delta)]
    if guarantee.protects.period is not None:
        epsilon, most = guarantee.lifetime("user-year").quoted(delta)
        found = f"epsilon = {rounded_up(epsilon)}" if epsilon < inf else "no finite epsilon"
        words.append(
            f"Present in every period of a year: {found}, delta = {rounded_up(float_above(most))}."
        )
        words += [] if epsilon < inf else ["So many periods add up to no promise for a whole year."]
    loss = guarantee.loss
    terms = [f"{rounded_up(loss.rho())}-zCDP"]
    terms += [f"{rounded_up(loss.mu())}-GDP"] if loss.mu() < inf else []
    aside = ", apart from what delta pays for" if loss.needs_delta else ""
    words.append(f"In other terms{aside}: {' and '.join(terms)}.")
    return " ".join(words)


def query_rows(plan: Plan) -> tuple[Row, ...]:
    """The query, as the plan has it."""
    keys = ", ".join(
        key.name if key.expression.strip("`") == key.name else f"{key.name} = {key.expression}"
        for key in plan.keys
    )
    public = plan.key_set.public
    least = plan.key_set.min_units
    groups = "discovered" if least == 1 else f"discovered, each well above {least:,} units"
    groups = groups if public is None else f"{len(public):,} public"
    period = "" if plan.periods is None else f", each {_one(plan.periods)}"
    rows = [
        ("job", plan.name),
        ("source", f"{plan.source.name} ({plan.source.kind})"),
        ("privacy unit", plan.unit + period),
        *_own_steps(plan),
        ("where", plan.where or "every row"),
        ("groups", f"{keys} ({groups})" if plan.keys else "none: one group"),
        *(("answer", _answer(agg)) for agg in plan.aggregates),
        ("window", _window(plan.window)),
        ("releases", _clock(plan.clock)),
        ("sinks", sinks_of(plan)),
    ]
    return tuple(rows)


def _own_steps(plan: Plan) -> list[tuple[str, str]]:
    """The steps that combine each unit's own rows, before anything else."""
    if not plan.source.combines:
        return []
    from streamveil.advise.explain_own_rows import steps_of, words_of  # where rows are combined

    return [("of each unit's rows", words_of(step)) for step in steps_of(plan.source)]


def sinks_of(plan: Plan) -> str:
    """Where releases go."""
    return ", ".join(f"{one.name} ({one.kind})" for one in plan.sinks) or "none"


def _answer(agg: Any) -> str:
    inner = agg.expression or "*"
    bounds = "" if agg.low is None else f", clamped to [{agg.low:g}, {agg.high:g}]"
    if is_open(agg):
        bounds = ", clamped to bounds that a look chooses, null if it finds none"
        bounds += " (noise below: for (0, 1))"
    share = f" at {agg.options['q']:g}" if "q" in agg.options else ""
    return f"{agg.name} = {agg.function}({inner}){share}{bounds}"


def _window(window: Window) -> str:
    if window.kind == "whole":
        return "the whole stream"
    hops = window.slide_us or window.slide_months
    slide = f", one every {_cell(window.slide)}" if hops else ""
    late = f", open for another {_span(window.lateness_us)}" if window.lateness_us else ""
    begin = f", from {moment(window.origin_us)} on" if window.origin_us else ""
    return f"{window.kind} of {_cell(window.size)}{slide}{begin}{late}"


def _cell(cells: Cells) -> str:
    return cells.words or _span(cells.length_us)


def _one(cells: Cells) -> str:
    words = _cell(cells)
    return words[2:] if words.startswith("1 ") else f"period of {words}"


def _clock(clock: Clock) -> str:
    if clock.kind == "once":
        return "one, when everything is read"
    end = "" if clock.steps is None else f", {clock.steps:,} steps"
    if clock.kind == "rows":
        return f"every {clock.every:,} source rows (row positions are public){end}"
    start = "" if clock.start_us is None else f" from {moment(clock.start_us)} UTC"
    kind = "replay" if clock.kind == "event" else "wall clock"
    every = _cell(clock.ticks) if clock.timed else _span(clock.every)
    cut = ""
    if clock.timed and clock.steps and clock.end_us and clock.end_us < clock.due_us(clock.steps):
        cut = f"; the last is cut: rows before {moment(clock.end_us)} UTC count"
    return f"every {every}{start}{end} ({kind}){cut}"


def _span(micros: int) -> str:
    for name, size in (
        ("week", 604_800_000_000), ("day", 86_400_000_000), ("hour", 3_600_000_000),
        ("minute", 60_000_000), ("second", 1_000_000),
    ):  # fmt: skip
        if micros % size == 0 and micros:
            count = micros // size
            return f"{count:,} {name}{'s' if count > 1 else ''}"
    return f"{micros / 1e6:g} seconds"


def mechanism_rows(plan: Plan, operator: GroupBy) -> tuple[Row, ...]:
    """The noise of each mechanism, and the cost of each part."""
    bounds, aggregation = operator.bounds, operator.aggregation
    rows: list[Row] = [
        ("bounding", _bounding(plan, bounds)),
        (
            "sensitivity",
            f"one unit moves sqrt({bounds.l2_squared:,}) rows at most, in L2 over all groups",
        ),
    ]
    if operator.look is not None:
        share, said = float(look_share(plan)), "; ".join(operator.look.said)
        what = "how many rows units have"
        if open_values(plan):
            what += f", and how large the values of {', '.join(open_values(plan))} are"
        asks = f"{share:.0%} of mu^2 pays for a look at {what}; it chooses what follows"
        if first_alone(plan):
            asks += "; it sees the rows of the first release"
        within = periods_until(
            operator.schedule, operator.periods, 1 if first_alone(plan) else operator.schedule.steps
        )
        if within is not None and within[0] < within[1]:
            asks += f"; its noise hides a unit in all of its {within[1] - within[0] + 1:,} periods"
        asks += f": {said}" if said else "; Spark takes no look"
        rows.insert(0, ("before the first release", asks))
        if not said:
            rows.insert(1, ("", "until then, the numbers here are a forecast for usual rows"))
    elif why := why_no_look(plan):
        rows.insert(0, ("before the first release", f"no look at the rows: {why}"))
        rows.insert(1, ("", EXPECT))
    rows += selection_rows(operator)
    for place, (lane, counter) in enumerate(
        zip(aggregation.lanes, aggregation.counters, strict=True)
    ):
        if place == aggregation.shared or lane.place > 0:
            continue
        kind = type(counter).__name__.removesuffix("Counter")
        steps = "no horizon"
        if counter.horizon is not None:
            steps = f"{counter.horizon:,} trigger{'s' * (counter.horizon != 1)}"
        rows.append((
            f"sums of {lane.kind}",
            f"{kind} counter over {steps}, sigma = {float(counter.sigma) * float(lane.quantum):.5g}"
            f", quantum {float(lane.quantum):.4g}",
        ))  # fmt: skip
    return tuple(rows)


def selection_rows(operator: GroupBy) -> list[Row]:
    """The selection of discovered groups."""
    selection: Any = operator.aggregation.selection
    if selection is None:
        return []
    if isinstance(selection, GaussianSelection):
        shared = operator.aggregation.shared is not None
        serves = "; the same counter answers the count" if shared else ""
        loss = selection.loss
        cost = f"mu = {loss.mu():.4g}, delta {float(loss.delta):.3g} for thresholds"
        return [("groups", f"Gaussian threshold on counts of units{serves}"), ("", cost)]
    if operator.aggregation.selected_by == "totals":
        return [("groups", "the totals themselves"), *tests("published", operator.aggregation.test)]
    if not hasattr(selection, "usual"):  # the published system
        cost = f"thresholds {selection.thresholds}: delta {float(selection.loss.delta):.3g}"
        again = "a tree counter of units; a group is selected anew in every round"
        return [("groups", again), ("", cost)]
    cost = f"of groups with {selection.usual:,.3g} units, half are published by the last release"
    return [
        ("groups", "a selection table: a coin for each exact number of units (AboveThreshold)"),
        ("", cost),
        *tests("also published", operator.aggregation.test),
    ]


def tests(shown: str, test: TotalTest | None) -> list[Row]:
    """The total tests that publish groups."""
    if test is None:
        return []
    at = ", ".join(f"{trigger:,}" for trigger in test.triggers)
    releases = "release" if len(test.triggers) == 1 else "releases"
    level = test.threshold(test.triggers[-1]) * float(test.lane.quantum)
    kind = {"rows": "rows", "valid": "values", "units": "units"}.get(test.lane.kind, "sum")
    return [
        ("", f"{shown} if the noisy number of {kind} is large, tested at {releases} {at}"),
        ("", f"(at the last: above {level:,.4g}); delta {float(test.beta):.3g}"),
    ]


def _bounding(plan: Plan, bounds: Bounds) -> str:
    combined = plan.bounding.combine
    parts = ["all rows of a unit in one group are one contribution"] if combined else []
    if bounds.max_rows is not None:
        parts.append(f"the first {bounds.max_rows:,} rows of a unit")
    if bounds.per_group is not None:
        parts.append(f"at most {bounds.per_group:,} in one group")
    said = plan.bounding.max_groups is not None or plan.bounding.max_rows is None
    if bounds.groups is not None and said:
        parts.append(f"in at most {bounds.groups:,} groups")
    if bounds.quadratic is not None:
        most = f"{bounds.quadratic:,}"
        parts.append(f"while the sum of squared rows per group, weighted, is at most {most}")
    scope = "" if plan.periods is None else f", in each {_one(plan.periods)}"
    return ", ".join(parts) + scope


def noise_section(operator: GroupBy, triggers: tuple[int, ...]) -> Section:
    """Noise of every number, and the threshold, at some releases."""
    rows: list[Row] = []
    for output in operator.outputs:
        if output.is_total:
            cells = (f"{answer_sd(operator, output, t):,.4g}" for t in triggers)
            rows.append((output.name, *cells))
            continue
        for place, lane in _parts(operator, output):
            cells = (f"{lane_sd(operator, place, t):,.4g}" for t in triggers)
            rows.append((f"{output.name}: {lane}", *cells))
    if threshold(operator, 1) is not None:
        cells = (f"{threshold(operator, t) or 0:,.4g}" for t in triggers)
        rows.append(("units that publish a new group", *cells))
    if operator.aggregation.rule is not None and operator.schedule.triggers != 1:
        rows.append(("large groups: noise grows as", "the cube root of their total"))
    return Section("NOISE", tuple(rows), deviations_at(triggers))


def _parts(operator: GroupBy, output: Any) -> list[tuple[int, str]]:
    """The lanes of an output, with a word for each; for a tree only its first node."""
    words = {
        "valid": "its count",
        "rows": "the rows of its group",
        "sum": "its centred sum",
        "square": "its squares",
        "node": "each node of its tree",
    }
    lanes = operator.aggregation.lanes
    return [
        (place, words[lanes[place].kind])
        for nth, place in enumerate(output.lanes)
        if lanes[place].kind != "node" or nth == 0
    ]


def forecast_section(operator: GroupBy, triggers: tuple[int, ...]) -> Section:
    """The chance of being published and the relative error of counts, for groups of some sizes."""
    counted = next(
        (place for place, lane in enumerate(operator.aggregation.lanes)
         if lane.kind in ("rows", "units", "valid")),
        None,
    )  # fmt: skip
    rows: list[Row] = []
    for units in FORECAST_UNITS:
        cells = []
        for trigger in triggers:
            chance = published_chance(operator, units, trigger)
            parts = [] if chance is None else [f"published {chance:.1%}"]
            if counted is not None:
                sd = lane_sd(operator, counted, trigger) * growth(operator, trigger, units)
                parts.append(f"count ± {sd / units:.1%}")
            cells.append(", ".join(parts))
        rows.append((f"{units:,} units by then", *cells))
    heading = ("a group with", *(f"release {t:,}" for t in triggers))
    title = "FORECAST (one row per unit and group; counts ± one standard deviation)"
    return Section(title, tuple(rows), heading)


EXPECT = (
    "to fix  expected_units, expected_rows and expected_groups, where they are publicly known;"
    " `streamveil tune` reads them off a public sample"
)
ONE_ROW = "each unit has one row, which every bound lets in"


def bias_rows(operator: GroupBy) -> tuple[Row, ...]:
    """The errors that the noise interval does not cover."""
    notes: dict[str, list[str]] = {}
    for output in operator.outputs:
        cut = "" if operator.uncut else output.cut
        note = "; ".join(part for part in (cut, output.clamped) if part)
        notes.setdefault(note or ONE_ROW, []).append(output.name)
    rows = [(", ".join(names), note) for note, names in notes.items()]
    if operator.aggregation.cut is not None and not operator.uncut:
        rows.append(("published with each release", "a private count of the rows over the bound"))
    means = [output.name for output in operator.outputs if output.function in RATIOS]
    if means and not operator.uncut:
        rows.append((", ".join(means), OF_KEPT))
    if operator.true_intervals:
        rows.append(("intervals = 'true'", ALLOWED))
    return tuple(rows)


def memory_rows(plan: Plan, operator: GroupBy, limit: Limit | None) -> tuple[Row, ...]:
    """Bytes of state per privacy unit and per group, and advice if groups would not fit."""
    unit, entry, inside = unit_bytes(operator)
    seen, shown = 60 + 10 * operator.aggregation.width, group_bytes(operator)
    scope = "" if plan.periods is None else f" in each open {_one(plan.periods)}"
    rows = [
        ("per unit" + scope, f"about {unit} bytes" + (
            f", and {entry} per group it is in" if entry else "")
         + (f" if in more than {inside}" if entry and inside else "")),
        ("per seen group and window", f"about {seen} bytes + its key (about 50 for a number)"),
        ("per published group and window", f"another {shown:,} bytes for its counters"),
        ("1M units, 100k published groups",
         f"about {(1e6 * unit + 1e5 * (seen + KEY_BYTES + shown)) / 2**20:,.0f} MiB in one window"),
    ]  # fmt: skip
    if operator.distinct_lanes:
        rows.append(("per different value of a group", "20 to 60 bytes (COUNT(DISTINCT x))"))
    if plan.source.combines:
        from streamveil.advise.explain_own_rows import kept_rows

        rows += kept_rows(plan.source)
    if limit is None:
        return tuple(rows)
    from streamveil.advise.explain_memory import MemorySizes, unit_rows  # only if somebody asks

    sizes = MemorySizes(unit, entry, seen + KEY_BYTES + shown, inside)
    if limit.memory is not None:
        fits = sizes.groups_in(limit.memory)
        rows.append(
            (f"groups in {limit.memory / 2**20:,.0f} MiB", f"about {fits:,}, all published")
        )
        if limit.groups is not None and limit.groups > fits and plan.keys:
            rows.append(
                (f"{limit.groups:,} groups do not fit", "ask for HEAVY_HITTERS("
                 f"{plan.keys[0].name}, k => 100, memory => {limit.memory}) in a query of its own: "
                 "bounded memory, the same promise")
            )  # fmt: skip
    rows += unit_rows(sizes, limit)
    return tuple(rows)


def unit_bytes(operator: GroupBy) -> tuple[int, int, int]:
    """Bytes of a unit, bytes of each of its groups, and the most groups that take no bytes.

    Bytes are those at the usual fill of the tables.
    """
    shape = Shape.of(operator.bounds, operator.firsts)
    return round(shape.slot_bytes / FILL), round(shape.group_bytes / FILL), shape.lanes


def group_bytes(operator: GroupBy) -> int:
    """Counter state of one shown group."""
    aggregation = operator.aggregation
    total = sum(counter.state_bytes for counter in aggregation.counters)
    counter = getattr(aggregation.selection, "counter", None)
    if aggregation.shared is None and counter is not None:
        total += counter.state_bytes
    return int(total)


def default_rows(plan: Plan, operator: GroupBy) -> list[Row]:
    """Every setting that the query left open, its value, and why."""
    rows: list[Row] = [(d.name, short(d.value), d.reason) for d in operator.defaults]
    quiet: list[tuple[bool, Option, str, str]] = [
        (plan.counter == "auto", options.COUNTER,
         next((type(one).__name__ for one in operator.aggregation.counters), "none"),
         "least error for this horizon"),
        (plan.preset == "default", options.PRESET, "default",
         "least error with the same guarantee"),
        (plan.bounding.max_rows_per_group is None and bool(plan.keys), options.MAX_PER_GROUP,
         "no bound", "one unit may bring all its rows to one group; a bound lowers the noise when "
         "units rarely repeat groups"),
        (plan.key_set.public is None and plan.key_set.min_units == 1 and bool(plan.keys),
         options.MIN_UNITS, "1", "no group is held back beyond what delta needs"),
        (plan.window.kind != "whole" and not plan.window.lateness_us, options.LATENESS, "0",
         "a window takes no rows after its last release"),
        (plan.periods is None, options.UNIT_PERIOD, "whole stream",
         "the stronger promise: a unit's whole history"),
        (not options.NON_NEGATIVE.of(plan.options), options.NON_NEGATIVE, "off",
         "keeps numbers unbiased (integer and monotone likewise); turn on for display"),
        (plan.clock.kind == "event" and plan.clock.arrival is None, options.ARRIVAL,
         plan.source.event_time or "", "no arrival column: rows arrive at event time"),
        (plan.source.options.get("follow") is not True and plan.clock.kind == "event",
         options.CLOCK, "event", "a bounded source is replayed by its own times"),
    ]  # fmt: skip
    rows += [(option.name, value, why) for holds, option, value, why in quiet if holds]
    return rows


def _defaults(plan: Plan, rows: Iterable[Row]) -> Section:
    return Section("DEFAULTS", (*rows, *source_defaults(plan)), ("setting", "value", "why"))


def source_defaults(plan: Plan) -> list[Row]:
    """The settings that the query left open for reading rows."""
    given, path = plan.source.options, plan.source.options.get("path")
    text = given.get("format") != "parquet" and not str(path).endswith(".parquet")
    if plan.source.kind != "files" or not text or "max_line_bytes" in given:
        return []
    return [("max_line_bytes", MOST_LINE, "longer lines of CSV and JSON are counted, not read")]


def short(value: Any) -> str:
    """The value of a setting, for people."""
    return f"{value:,.6g}" if isinstance(value, int | float) else str(value)


def facts(plan: Plan, operator: GroupBy, triggers: tuple[int, ...]) -> dict[str, Any]:
    """The explanation as numbers, for programs."""
    delta = plan.budget.quoted_delta
    return {
        "epsilon": operator.guarantee.epsilon(delta),
        "delta": float(delta),
        "guarantee": operator.guarantee.to_dict(),
        "triggers": operator.schedule.triggers,
        "noise": {
            output.name: {
                t: answer_sd(operator, output, t)
                if output.is_total
                else lane_sd(operator, output.lanes[0], t)
                for t in triggers
            }
            for output in operator.outputs
        },
        "threshold": {t: threshold(operator, t) for t in triggers},
        "group_bytes": group_bytes(operator),
    }
