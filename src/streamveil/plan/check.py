"""The validator: what a streaming query must not do when every output may be about a person.

Each rule refuses with the reason and the way out. `HABITS` are things other streaming systems do
by default and that leak; the rest are plans that could not run or whose sums could overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from math import isfinite, ulp
from numbers import Real

from sqlglot import exp

from streamveil.calendars import DAY, END_US, Cells
from streamveil.errors import SURROGATE, PlanError, nearest, require_outer, visible
from streamveil.expressions import times
from streamveil.expressions.dialect import canonical, key_name, plain_names, shown
from streamveil.kinds import MOMENTS, SINKS, SKETCHES, SOURCES, SQUARED, VALUED
from streamveil.plan import RESERVED, Aggregate, Clock, Plan, Window, combined_plan, options
from streamveil.plan.look import cannot_choose_bounds, is_open, reach_of, refuse_large_sums
from streamveil.plan.options import OPTIONS, TABLE
from streamveil.release_metadata import SUFFIXES

LARGEST = 1e140  # a bound, and 1 / the least distance of two: squares of noise stay in 1e±308
COARSE = 2**16  # roundings of values between their bounds, at least
LARGEST_DELTA = 0.1
MOST_BOUND = 10**9  # rows of a unit or of its group that a query may allow
MOST_SQUARED = 2**31  # squared rows, the most that may be chosen for a query without bounds
SAY_BOUNDS = (
    "say which values are plausible before looking at the data: "
    "contribution_bounds_per_row => (low, high), in Python bounds=(low, high)"
)
MOST_TRIGGERS = 1_000_000  # that a counter is sized for within seconds
MOST_COINS = 100_000  # that a table of coins is designed for
TABLE_ONLY = {name for name, option in OPTIONS.items() if option.part_of == (TABLE,)}


@dataclass(frozen=True)
class Habit:
    """A streaming habit that is a privacy bug: what it is, why, and what to do instead."""

    name: str
    reason: str
    way_out: str

    def error(self) -> PlanError:
        """The refusal."""
        return PlanError(
            f"refused: {self.name}.\n  why     {self.reason}\n  to fix  {self.way_out}"
        )


HABITS: dict[str, Habit] = {
    "max-event-time": Habit(
        "a watermark made from the largest event time seen",
        "one person's clock would decide which rows of all others are late, and when windows close",
        "leave it out: windows close by the public clock; allow slow rows with lateness",
    ),
    "emit-on-change": Habit(
        "releasing whenever a result changes",
        "the time of a release would tell that somebody's row just arrived, and silence that none "
        "did",
        "EMIT EVERY INTERVAL n UNIT, or EMIT EVERY n ROWS: triggers fixed before the data",
    ),
    "data-trigger": Habit(
        "a trigger fired by values or counts of the data",
        "when the release happens would depend on single rows, outside of any budget",
        "EMIT EVERY INTERVAL n UNIT; to be told when a count passes a level, use a sparse-vector "
        "question, which pays for its answer time",
    ),
    "rerun-on-growth": Habit(
        "running again each time the data has grown enough",
        "the size of the data would set the time of release, and every run spends the whole budget "
        "again",
        "EMIT EVERY n ROWS with steps where the number of rows is public, or EMIT EVERY INTERVAL: "
        "one continual counter pays for all releases once",
    ),
    "dedupe": Habit(
        "removing duplicates before contribution bounding",
        "which of two equal rows stays depends on other people's rows, so one unit could move "
        "another's",
        "SELECT DISTINCT the privacy unit too, or drop it: bounding already limits each unit; "
        "to count each unit once per group use COUNT(DISTINCT unit) or max_rows_per_group = 1",
    ),
    "join": Habit(
        "a join before contribution bounding",
        "rows of one person could match, multiply or remove rows of another, beyond every bound",
        "join by the privacy unit (v JOIN p ON v.user_id = p.user_id), or with a table that is "
        "declared public (CREATE TABLE p WITH (..., public = TRUE)): JOIN such a table in place "
        "of IN or EXISTS; to name the groups use public_groups",
    ),
    "row-order": Habit(
        "LIMIT, OFFSET or ORDER BY on rows before bounding",
        "which rows stay would depend on how many rows other people have",
        "limit rows per unit with max_rows_contributed; sort and cut releases after they are made",
    ),
    "sample": Habit(
        "TABLESAMPLE before contribution bounding",
        "the sample's size and membership tie people's rows together, and it amplifies nothing "
        "here: no such claim is proven",
        "drop it; a smaller max_rows_contributed lowers the noise as well",
    ),
    "other-rows": Habit(
        "a subquery or window function over other rows before bounding",
        "its value for one person's row depends on other people's rows",
        "write WHERE and computed columns as per-row expressions, or combine each person's own "
        "rows in a subquery, by the privacy unit",
    ),
    "budget-refresh": Habit(
        "a budget that refreshes while the same people stay",
        "after n refreshes a person present all along has lost n budgets, not one",
        "set privacy_unit_period to the same length: then the promise is for each unit-period and "
        "says so, or give one budget for the whole horizon",
    ),
    "reopen": Habit(
        "late rows that re-open a released window",
        "a correction shows the late person's row against the earlier release, outside of the "
        "budget",
        "a larger lateness: within it late rows enter the window's remaining triggers; what comes "
        "later is rejected, and counted for the operator",
    ),
    "exact-metrics": Habit(
        "exact counters of rows or groups in logs or metrics",
        "a dashboard of exact counts is a release without noise",
        "leave it out; `streamveil inspect` shows the operator how far a job is and how large",
    ),
}

HABITUAL = {  # options of other systems that stand for a habit
    "watermark": "max-event-time", "late_data": "reopen", "metrics": "exact-metrics",
    "rerun_on_growth": "rerun-on-growth", "budget_refresh": "budget-refresh",
}  # fmt: skip


def require_known(name: str, known: Collection[str]) -> None:
    """Refuses an unknown option; if it stands for a habit, with the habit's reason."""
    if name in HABITUAL:
        raise HABITS[HABITUAL[name]].error()
    if name not in known:
        raise PlanError(f"unknown option '{shown(name)}'{nearest(name, known)}")


def check_plan(plan: Plan) -> None:
    """Raises PlanError with the first fault of a plan that somebody asks for."""
    _raise(plan, RULES)


def check_compiled(plan: Plan) -> None:
    """Raises PlanError if bounds or shapes do not allow correct sums and noise.

    Every compilation calls this, so that no unchecked plan runs. It does not check whether the plan
    is intended and wise: `check_plan` did, and the options that confirm it are no longer there.
    """
    _raise(plan, RULES_OF_SUMS)


def _raise(plan: Plan, rules: Iterable[Callable[[Plan], Complaints]]) -> None:
    for rule in rules:
        for complaint in rule(plan):
            raise complaint if isinstance(complaint, PlanError) else PlanError(complaint)


Complaints = Iterator[str | PlanError]


def check_ends(plan: Plan) -> Complaints:
    """Where rows come from, where releases go, and what the job is called."""
    if plan.source.kind not in SOURCES:
        yield f"unknown source '{plan.source.kind}'{nearest(str(plan.source.kind), SOURCES)}"
    for sink in plan.sinks:
        if sink.kind not in SINKS:
            yield f"unknown sink '{sink.kind}'{nearest(str(sink.kind), SINKS)}"
    if plan.source.known.is_sorted and plan.clock.kind not in ("once", "event"):
        yield (
            f"the source '{plan.source.kind}' gives rows sorted by their values: a step that counts"
            " rows, or takes what has come, would tell more than its numbers.\n"
            "  to fix  ask once, or replay by event time: EMIT EVERY INTERVAL with start and end"
        )
    if plan.source.known.is_sorted and getattr(plan.source, "operation", None) is not None:
        yield (
            f"the source '{plan.source.kind}' keeps no order of changes, which inserts and deletes"
            " need.\n  to fix  read them from files or a topic"
        )
    time = plan.source.event_time
    if time is not None and not (isinstance(time, str) and time):
        yield "event_time must be the name of a column, as a text"
    if not (isinstance(plan.name, str) and plan.name):
        yield "the name of a query is a text that is not empty"


def check_own_rows(plan: Plan) -> Complaints:
    """Rows may be combined only if all are there, and all are one unit's."""
    if plan.source.combines:
        from streamveil.plan.check_own_rows import complaints  # loaded where rows are combined

        yield from complaints(plan)


def check_delta(plan: Plan) -> Complaints:
    """Budgets that promise nothing."""
    delta = plan.budget.delta
    if delta is not None and delta > LARGEST_DELTA:
        yield (
            f"delta = {float(delta):g} is no protection.\n"
            "  why     with probability delta everything about a unit may be published\n"
            "  to fix  a delta far below 1 / number of units, such as 1e-9"
        )


def check_names(plan: Plan) -> Complaints:
    """Names of the columns of a release."""
    if not plan.aggregates:
        yield "nothing is aggregated: add COUNT(*) or another aggregate"
    taken: set[str] = set()
    grouped = dict.fromkeys(name for names in plan.sets for name in names)  # of a changing table
    for name in [
        *(key.name for key in plan.keys),
        *(key_name(agg.expression) for agg in plan.aggregates if agg.function in SKETCHES),
        *grouped,
        *(agg.name for agg in plan.aggregates),
    ]:
        if name in taken:
            yield f"two output columns are called '{name}'; give one another name with AS"
        if name in RESERVED and (name not in grouped or name == "trigger"):
            yield f"'{name}' is a column of every release; give yours another name with AS"
        if SURROGATE.search(name):
            yield f"'{visible(name)}' is no Unicode: give another name to it"
        require_outer([name])
        taken.add(name)
    for agg in plan.aggregates:
        for suffix in SUFFIXES:
            if agg.name + suffix in taken:
                yield f"'{agg.name}{suffix}' is the name of a column that goes with '{agg.name}'"


def _bounds_given(plan: Plan, why: str = "") -> Complaints:
    """Bounds of a plan that runs: a look has chosen those that were left out."""
    for agg in plan.aggregates:
        if is_open(agg):
            yield (
                f"'{agg.name}' has no contribution bounds.\n"
                f"  why     without bounds one unit can move the result by any amount{why}\n"
                f"  to fix  {SAY_BOUNDS}"
            )


def _bounds_or_look(plan: Plan) -> Complaints:
    """Bounds of a plan that is asked for: they may be left out if a look can choose them."""
    why = cannot_choose_bounds(plan)
    if why is not None:
        yield from _bounds_given(plan, f"; {why}")


def _aggregates(plan: Plan) -> Complaints:
    for agg in plan.aggregates:
        yield from _bounds(agg, combined=plan.bounding.combine)
        q = agg.options.get("q", 0.5)
        if agg.function == "quantile" and not (isinstance(q, Real) and 0 <= float(q) <= 1):
            yield f"the quantile of '{agg.name}' must be a number between 0 and 1"
        needs = (*VALUED, *SKETCHES, "count_distinct")
        if agg.function in needs and agg.expression is None:
            yield f"{agg.function} '{agg.name}' needs a column or expression"
        if agg.quantum is not None and not (isfinite(agg.quantum) and agg.quantum > 0):
            yield f"the quantum of '{agg.name}' must be a number above 0"
        if agg.quantum is not None and agg.function in SQUARED:
            yield (
                f"{agg.function} '{agg.name}' takes no quantum, as it does not round values alike"
                " in their sum and in their squares.\n"
                "  to fix  leave it out, or round the values in the query"
            )


def _sums(plan: Plan) -> Complaints:
    """Sums of the values that enter totals; if a unit's rows are combined, of its totals."""
    for agg in combined_plan(plan).aggregates:
        bounded = agg.low is not None and agg.high is not None
        if agg.function in VALUED and agg.quantum is not None and bounded:
            yield from _overflow(agg)


def _bounds(agg: Aggregate, *, combined: bool) -> Complaints:
    valued = agg.function in VALUED or (combined and agg.function == "count")
    if combined and agg.function == "count" and agg.low is None:
        yield f"'{agg.name}' has no contribution bounds.\n  to fix  {SAY_BOUNDS}"
    if agg.low is None or agg.high is None:
        return
    if not valued:
        yield f"{agg.function} '{agg.name}' adds no values: it takes no bounds"
    if not (isfinite(agg.low) and isfinite(agg.high) and agg.low < agg.high):
        given = f"({agg.low:g}, {agg.high:g})"
        yield f"bounds of '{agg.name}' must be two finite numbers, the lower one first, not {given}"
    largest = LARGEST**0.5 if agg.function in SQUARED else LARGEST
    if max(abs(agg.low), abs(agg.high)) > largest:
        yield f"bounds of '{agg.name}' must lie between {-largest:g} and {largest:g}"
    if 0 < agg.high - agg.low < 1 / largest:
        yield (
            f"bounds of '{agg.name}' must be at least {1 / largest:g} apart, not"
            f" {agg.high - agg.low:g}.\n"
            "  why     the square of so little noise is 0 in floating point\n"
            "  to fix  another unit: multiply the values and their bounds"
        )
    rounded = ulp(max(abs(agg.low), abs(agg.high)))
    if 0 < agg.high - agg.low < COARSE * rounded and agg.function != "sum":
        yield (
            f"bounds of '{agg.name}' must be at least {COARSE * rounded:g} apart at this size, not"
            f" {agg.high - agg.low:g}.\n"
            f"  why     floating point rounds values there to multiples of {rounded:g}\n"
            "  to fix  subtract a number from the values and their bounds"
        )
    if agg.quantum is not None and agg.quantum > LARGEST:
        yield f"the quantum of '{agg.name}' must be at most {LARGEST:g}, not {agg.quantum:g}"


def _overflow(agg: Aggregate) -> Complaints:
    if agg.quantum is None or agg.low is None or agg.high is None:
        return
    low, high = agg.low, agg.high
    if agg.function in MOMENTS:  # summed from the middle
        low, high = (low - high) / 2, (high - low) / 2
    try:
        refuse_large_sums(reach_of(low, high, agg.quantum))
    except PlanError as error:
        yield PlanError(f"'{agg.name}' with bounds ({agg.low:g}, {agg.high:g}): {error}")


def _bounding(plan: Plan) -> Complaints:
    bounding = plan.bounding
    rows, each, squares = bounding.max_rows, bounding.max_rows_per_group, bounding.quadratic
    most = f"{options.MAX_ROWS} (or {options.MAX_GROUPS})"
    named = (
        (most, rows, MOST_BOUND),
        (options.MAX_PER_GROUP, each, MOST_BOUND),
        (options.MAX_SQUARED, squares, MOST_SQUARED),
    )
    for name, value, largest in named:
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
            yield f"{name} must be a whole number between 1 and {largest:,}, not {value}"
    if rows is None and squares is None and not _may_be_open(plan):
        yield (
            "nothing limits how much one unit contributes.\n"
            "  why     noise can only hide a bounded contribution\n"
            "  to fix  max_rows_contributed = C, in Python .bound(max_rows=C); "
            "`streamveil tune` proposes C from a public sample"
        )
    if rows is not None and each is not None and each > rows:
        yield "max_rows_per_group is larger than max_rows_contributed; it would never apply"
    if each is not None and squares is not None:
        yield "give max_rows_per_group or max_squared_rows, not both"
    weights = [o.name for o in (options.ENTRY_WEIGHT, options.WEIGHT_REFERENCE)
               if o.given_in(plan.options)]  # fmt: skip
    if each is not None and weights:
        yield (
            f"max_rows_per_group and {weights[0]} do not go together: rows that weigh less than one"
            " are not limited one by one.\n"
            f"  to fix  leave out {weights[0]}, and rows weigh one; or leave out max_rows_per_group"
        )
    if plan.bounding.combine and plan.periods is not None:
        yield "contribution_bounds_per_group and privacy_unit_period do not go together"
    if plan.bounding.combine and plan.clock.kind != "once":
        yield (
            "contribution_bounds_per_group clamps the total of a unit in a group, which is known "
            "only when all rows are there.\n"
            "  to fix  in a continual query give contribution_bounds_per_row and max_rows_per_group"
        )


def _may_be_open(plan: Plan) -> bool:
    """Whether a forecast may choose the bound, as in the default group-by."""
    return plan.preset == "default" and not any(one.function in SKETCHES for one in plan.aggregates)


def check_clock(plan: Plan) -> Complaints:
    """When releases happen."""
    clock = plan.clock
    if clock.kind == "once":
        return
    unit = "rows" if clock.kind == "rows" else "time"
    if not clock.months and not 1 <= clock.every < 2**62:
        yield f"EMIT EVERY needs a positive number of {unit}"
    if clock.steps is not None and not 1 <= clock.steps <= 10**9:
        yield f"steps must be between 1 and 1,000,000,000, not {clock.steps}"
    if clock.kind == "event":
        yield from _check_replay(plan)
    if clock.kind == "wall" and clock.start_us is None:
        yield (
            "a live query needs a public start: step i ends at start + i times the interval.\n"
            "  to fix  start = '2026-01-01 00:00:00'"
        )
    if clock.kind != "event" and clock.arrival is not None:
        yield "arrival belongs to a replay (clock = 'event')"


def _check_replay(plan: Plan) -> Complaints:
    """When a replay makes releases, all at once."""
    clock = plan.clock
    if plan.source.event_time is None and clock.arrival is None:
        yield (
            "a query by time needs event_time (of the source) or arrival.\n"
            "  to fix  CREATE STREAM name WITH (source = ..., event_time = 'column'); in "
            "Python event_time='column'"
        )
    if plan.source.is_endless:
        yield (
            f"a source with follow = TRUE ({plan.source.kind}) waits for rows, and clock = 'event'"
            " makes all releases at once from the rows that are there: later ones would be in"
            " none.\n"
            "  to fix  leave clock out, and each release is made when it is due; or follow = FALSE"
        )
    if clock.start_us is None or clock.end_us is None:
        yield (
            "a replay needs a public start and end: they fix when triggers happen.\n"
            "  why     taking them from the data would let one row move every trigger\n"
            "  to fix  start = '2026-01-01', end = '2026-02-01' (or steps = n); for live data "
            "clock = 'wall'"
        )
    elif clock.end_us <= clock.start_us:
        yield "end must be later than start"


def _calendar(plan: Plan) -> Complaints:
    """How far calendars are known."""
    cells = (plan.clock.ticks if plan.clock.timed else None, plan.periods,
             None if plan.window.kind == "whole" else plan.window.size)  # fmt: skip
    known = all(one is None or one.fixed for one in cells)
    if not known and max(plan.clock.start_us or 0, plan.clock.end_us or 0) > END_US:
        yield "calendars and time zones are known up to the year 2200; end the query before"


def check_horizon(plan: Plan) -> Complaints:
    """How many releases the guarantee covers."""
    if plan.clock.kind == "once":
        return
    endless = plan.options.get("horizon") == "unbounded"
    if plan.window.kind == "whole" and plan.clock.steps is None and not endless:
        yield (
            "how many releases does the guarantee cover? There is no default.\n"
            "  to fix  steps = n, or steps = 'unbounded' for counters without a horizon "
            "(more noise)"
        )


def _triggers(plan: Plan) -> Complaints:
    """How many releases one window gets: noise is sized for each of them."""
    clock, window = plan.clock, plan.window
    number = clock.steps or 0
    if window.kind != "whole" and (clock.every > 0 or clock.months):
        number = -(-(longest(window.size) + window.lateness_us) // _shortest(clock))
    tabled = plan.keys and plan.key_set.public is None and plan.preset == "default"
    tabled = tabled and options.SELECTION.of(plan.options) != "gaussian"
    most = MOST_COINS if tabled and not plan.options.get("horizon") else MOST_TRIGGERS
    if number > most:
        what = "the whole stream" if window.kind == "whole" else "one window"
        yield (
            f"{number:,} releases of {what} are "
            f"more than {most:,}: sizing the noise for them would take hours.\n"
            "  to fix  a longer time between releases, or windows, which count anew"
            + ("; or selection = 'gaussian'" if tabled else "; or steps = 'unbounded'")
        )


def start_of_window(window: Window, column: str) -> str:
    """The expression of the start of a window that holds a time.

    >>> week = Window(kind="tumble", size_us=7 * times.UNIT_US["DAY"], zone="Europe/Berlin")
    >>> start_of_window(week, "at time")
    "TIMESTAMP_TRUNC(`at time`, WEEK(THURSDAY), 'Europe/Berlin')"
    """
    units = {**times.UNIT_US, **{one: -months for one, months in times.UNIT_MONTHS.items()}}
    size = window.size_us or -window.size_months
    unit = next((one for one, length in units.items() if length == size), "DAY")
    if unit == "WEEK":  # which begins on Sunday if nothing is said
        unit = f"WEEK({times.WEEKDAYS[(window.origin_us // times.UNIT_US['DAY'] + 4) % 7]})"
    zone = f", '{shown(window.zone)}'" if window.zone else ""
    name = canonical(plain_names(exp.column(shown(column), quoted=True)))
    return f"TIMESTAMP_TRUNC({name}, {unit}{zone})"


def _windows(plan: Plan) -> Complaints:
    window, clock = plan.window, plan.clock
    if window.kind == "whole":
        yield from _whole(window)
        return
    if plan.source.event_time is None:
        yield f"a {window.kind} window needs the event_time column of the source"
    if clock.kind not in ("event", "wall"):
        yield (
            "windows of event time need triggers by time: EMIT EVERY INTERVAL n UNIT.\n"
            "  to fix  for a one-shot answer, FROM the table itself and GROUP BY"
            f" {start_of_window(window, plan.source.event_time or 'ts')}"
        )
    if window.lateness_us < 0 or (window.size_us > 0) == (window.size_months > 0):
        yield "a window needs a size above zero, and a lateness of zero or more"
        return
    if window.kind == "tumble":
        if window.slide_us or window.slide_months:
            yield "tumbling windows lie side by side: they have no slide"
    elif (window.slide_us > 0) == (window.slide_months > 0):
        yield "slide (step) must be above zero and at most the size of the window"
        return
    yield from _slides(window)
    if _shortest(clock) > longest(window.size) + window.lateness_us > 0:
        yield "the window is shorter than the time between triggers: some would never be released"


def _whole(window: Window) -> Complaints:
    """One window."""
    if window.size_us or window.slide_us:
        yield "the whole stream is one window: it has no size"
    if window.lateness_us:
        yield "the whole stream is one window, which takes all rows: lateness does not apply"


def _slides(window: Window) -> Complaints:
    """Windows that hop or grow."""
    size, slide = longest(window.size), longest(window.slide)
    if slide > size:
        yield "slide (step) must be above zero and at most the size of the window"
    if window.kind == "cumulate" and not window.slide.refines(window.size):
        yield (
            "the size of a cumulating window must be a multiple of its step, on the same clocks.\n"
            "  to fix  days for months (weeks do not divide them), hours that divide a day"
        )
    if window.kind == "hop" and size > 1_000 * slide:
        yield "a row would count in more than 1,000 windows; use a longer slide"


def longest(cells: Cells) -> int:
    """The most microseconds of a cell, apart from hours that clocks show twice."""
    return cells.length_us or 31 * DAY * cells.months


def _shortest(clock: Clock) -> int:
    return clock.every or 28 * DAY * clock.months


def _keys(plan: Plan) -> Complaints:
    key_set = plan.key_set
    if isinstance(key_set.min_units, bool) or not 1 <= key_set.min_units <= 10**12:
        yield (
            "min_privacy_units_per_group must be a whole number between 1 and 1,000,000,000,000,"
            f" not {key_set.min_units!r}"
        )
    if key_set.min_units > 1 and not plan.keys:
        yield (
            "without GROUP BY there is one number, which is always shown:"
            " min_privacy_units_per_group does not apply"
        )
    if key_set.public is None and plan.keys and plan.budget.delta is None:
        yield (
            "groups are discovered in the data, which needs a delta above 0.\n"
            "  to fix  give delta, or name the groups with public_groups"
        )


def _public_groups(plan: Plan) -> Complaints:
    key_set = plan.key_set
    if key_set.public is None:
        return
    if not plan.keys:
        if not any(agg.function == "approx_frequency" for agg in plan.aggregates):
            yield "public groups are given, but nothing is grouped by"
        elif any(len(group) != 1 for group in key_set.public):
            yield "every public group of APPROX_FREQUENCY is one value"
        return
    if key_set.min_units > 1:
        yield "public groups are always shown: min_privacy_units_per_group does not apply"
    if len(set(key_set.public)) != len(key_set.public):
        yield "a public group is listed twice"
    if not key_set.public:
        yield "the list of public groups is empty"
    for group in key_set.public:
        if len(group) != len(plan.keys):
            yield f"every public group needs {len(plan.keys)} value(s), one per GROUP BY column"


def _choices(plan: Plan) -> Complaints:
    if plan.preset not in ("default", "dp-sqlp"):
        yield f"unknown preset{nearest(str(plan.preset)[:30], ['default', 'dp-sqlp'])}"
    if plan.periods is not None and plan.source.event_time is None:
        yield "privacy_unit_period needs the event_time column of the source"
    if plan.period_us is not None and plan.period_us <= 0:
        yield "privacy_unit_period must be longer than zero"
    for name in TABLE_ONLY & plan.options.keys():
        yield f"{name} belongs to a changing table: CREATE TABLE ... WITH (changelog = ...)"


def check_options(plan: Plan) -> Complaints:
    """Options whose values are not as declared: out of range, or an unknown word."""
    for name, value in plan.options.items():
        within = OPTIONS[name].within if name in OPTIONS else None
        if within is not None and not within.holds(value):
            yield f"{name} must be {within}, not {value!r:.40}"


RULES: tuple[Callable[[Plan], Complaints], ...] = (
    check_ends,
    check_own_rows,
    check_delta,
    check_names,
    _bounds_or_look,
    _aggregates,
    _bounding,
    _sums,
    check_clock,
    check_horizon,
    _windows,
    _calendar,
    _triggers,
    _keys,
    _public_groups,
    _choices,
    check_options,
)
RULES_OF_SUMS = (
    check_own_rows,
    check_names,
    _bounds_given,
    _aggregates,
    _bounding,
    _sums,
    check_clock,
    _windows,
    _keys,
    _public_groups,
    check_options,
)
