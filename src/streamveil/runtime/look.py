"""The look at the data before a job's first release: made once, kept in the state, never repeated.

    look.json         the results of the look; next to `state.json`

Exactly once: the results of a look are used when they are durable, and from then on read from the
state. A look that was cut off before that has shown nothing, and is made anew. Its loss is part of
the job's charge. A shared ledger is charged before any row is read (`charged`); the state's own
ledger, which always has room, before anything is published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil import disk
from streamveil.batch import Batch
from streamveil.compiler.group_by import Compiler, compile_plan
from streamveil.connectors import Source, micros
from streamveil.core.noise import Noise
from streamveil.dataflow.windows import periods_until
from streamveil.disk import Lock
from streamveil.errors import BudgetError, PlanError, SourceError, StoreError
from streamveil.expressions import column_named
from streamveil.kinds import SQUARED
from streamveil.plan import Plan, combined_plan
from streamveil.plan.look import (
    CLAMPED,
    CLAMPED_VARIANCE,
    CONCENTRATION,
    HISTOGRAM,
    LAWS,
    LOOKED,
    MEAN_ROWS,
    NO_BOUNDS,
    UNSEEN,
    VALUES,
    divided,
    first_alone,
    in_any_case,
    is_open,
    look_share,
    open_values,
    releases_told,
    share_beyond,
    told,
    unseen_values,
    with_look,
)
from streamveil.plan.options import EXPECTED_ROWS
from streamveil.runtime import formats
from streamveil.runtime.formats import Content
from streamveil.runtime.grouping import Prefetch
from streamveil.runtime.job import Work, begin, require
from streamveil.runtime.schedule import open_rows
from streamveil.runtime.secret import Randomness
from streamveil.runtime.store import LOOK, Store, discard, read_header, require_empty
from streamveil.sql.schema import check_schema, needed_columns

if TYPE_CHECKING:
    from streamveil.compiler.value_sizes import Clamping
    from streamveil.dataflow.group_by import GroupBy
    from streamveil.runtime.noisy_bins import Learned

KIND = "look"
CHUNK = 500_000  # rows


def to_look(plan: Plan, state: Path) -> Plan | None:
    """The plan of a look that is still to be made; None where there is none. Writes nothing."""
    home = state.absolute()
    header = read_header(home)
    if (home / LOOK).exists() or not (header is None or header.before_look):
        return None
    if header is None:
        require_empty(home)
    wanted = with_look(plan)
    return wanted if look_share(wanted) else None


def looked(
    wanted: Plan, noise: Noise, threads: int = 1, rows: Iterator[pa.Table] | None = None
) -> tuple[Plan, Content]:
    """The plan with the results of a look, and the content to `keep`. Writes nothing.

    The look reads `rows`, those of the first release, or else all rows of the plan.
    """
    learned = look(wanted, noise, threads, rows)
    given = EXPECTED_ROWS.name in wanted.options and open_values(wanted)  # looked for bounds alone
    known = {} if given else learned.likely
    releases, met = releases_told(wanted)
    first = known and first_alone(wanted) and releases > 1
    if first:
        from streamveil.compiler.first_release import of_all_releases  # loaded when a job looks

        known = of_all_releases(known, releases, learned.seen, met)
    made = told(wanted, known, [], learned.ends | learned.bounds)
    operator, found = fitting(made), {}
    if operator is None:
        known = {}
    elif learned.bounds:
        from streamveil.compiler.value_sizes import clamped  # loaded when a job looks

        opened = [one for one in wanted.aggregates if is_open(one)]
        found = clamped(made, operator, opened, learned.sizes)
    if learned.ends:
        from streamveil.compiler.value_sizes import within_ends  # likewise

        found = within_ends(found, learned.ends)
    squared = {agg.expression for agg in wanted.aggregates if agg.function in SQUARED}
    if found:
        beyond = {text: one.beyond for text, one in found.items()}
        unseen = {text: one.unseen for text, one in found.items() if one.unseen}
        spread = {text: one.variance for text, one in found.items() if text in squared}
        known = known and known | {CLAMPED: beyond, UNSEEN: unseen, CLAMPED_VARIANCE: spread}
    said = [] if given else in_words(learned, groups=LAWS in known or not first)
    if first:
        said.append(releases_in_words(known, releases))
    said += [
        bounds_in_words(text, found.get(text), squared=text in squared)
        for text in open_values(wanted)
    ]
    made = told(wanted, known, said, {text: (one.low, one.high) for text, one in found.items()})
    ends = {text: [one.low, one.high] for text, one in found.items()}
    return made, {"plan": wanted.fingerprint, "looked": {**made.options[LOOKED], "bounds": ends}}


def charged(work: Work, state: Path, keys: Randomness) -> Noise:
    """Makes the state of a job that will look, and charges its shared ledger; returns its noise.

    Proof: the charge covers the look and whatever it chooses (`Look`), so nothing later needs more
        room. A job killed after the charge finds its epoch in the state and its charge in the
        ledger, and draws the same look: nobody saw one that was not kept. Where the ledger refuses,
        nothing was drawn, and a new state is removed.
    """
    made = not state.exists()
    require(work, state)
    try:
        epoch, noise = begin(state, work, keys)
        work.account.charge_shared(epoch)
    except BudgetError:
        if made:
            discard(state)
        raise
    return noise


def settle(state: Path, work: Work) -> None:
    """Writes into the state of a job, charged before its look, the mechanisms that it chose."""
    header = read_header(state)
    if header is None or not header.before_look:
        return
    with closing(Store(state)) as store:
        store.settle(work.identity)


def keep(state: Path, made: Content) -> None:
    """Writes the results of a look, once: from now on the state has them."""
    home = state.absolute()
    disk.make_directory(home)
    with closing(Lock(home)):
        if (home / LOOK).exists():
            raise StoreError(
                "another process has begun this job.\n  to fix  run again when it has ended"
            )
        formats.write(home / LOOK, KIND, made)


def remembered(plan: Plan, state: Path) -> Plan:
    """The plan with the results of its state's look, if there was one."""
    path = state.absolute() / LOOK
    if not path.exists():
        return plan
    content, wanted = formats.read(path, KIND), with_look(plan)
    if content["plan"] != wanted.fingerprint:
        raise StoreError(
            "the state directory was created for another job: the query changed.\n"
            "  to fix  run the query it was created for, or give the changed one a state directory"
            " (and a budget) of its own"
        )
    return with_found(wanted, content)


def with_found(wanted: Plan, content: dict[str, Any]) -> Plan:
    """The plan with the results of a look."""
    found = content["looked"]
    bounds = {text: (low, high) for text, (low, high) in found.get("bounds", {}).items()}
    return told(wanted, found["options"], found["said"], bounds)


def look(
    plan: Plan, noise: Noise, threads: int = 1, rows: Iterator[pa.Table] | None = None
) -> Learned:
    """Surveys all rows, or `rows`; with several threads, one of them reads."""
    from streamveil.runtime.survey import survey  # loaded when a job looks

    def all_rows() -> Iterator[pa.Table]:
        return ahead(rows_of(plan), threads)

    some = all_rows if rows is None else ahead(rows, threads)
    within = periods_seen(plan)
    return survey(plan, some, divided(plan).looking, noise, threads=threads, within=within)[0]


def periods_seen(plan: Plan) -> tuple[int, int] | None:
    """The unit-periods that a look reads, where windows keep them apart; None: all of them."""
    if plan.periods is None:
        return None
    schedule = Compiler(plan).schedule()
    return periods_until(schedule, plan.periods, 1 if first_alone(plan) else schedule.steps)


def ahead(rows: Iterator[pa.Table], threads: int) -> Iterator[pa.Table]:
    """Rows in parts, the next of which is read meanwhile where there are several threads."""
    if threads == 1:
        yield from rows
        return
    with closing(Prefetch(rows)) as coming:
        yield from coming


def of_first_release(batches: Iterable[Batch]) -> Iterator[pa.Table]:
    """The rows of the first release, in parts; waits until it is due.

    Proof: which rows these are follows from the public clock and from the times at which files,
        rows of a table or messages came, as for the release itself. A unit changes its own rows
        among them and no others, which is all that the proof of `Survey` needs. The job reads them
        again for the release, if the source still has them.
    """
    for batch in batches:
        yield batch.rows
        if batch.closes_step:
            return
    raise SourceError(
        "the first release is not due yet, and a look at its rows chooses the settings.\n"
        "  to fix  run again when it is, leave --once out (in Python, Pace(once=True)), or give"
        " look_share = 0 and expected_rows and a new state directory, for which a shared ledger is"
        " charged again: nothing is looked at then"
    )


def releases_in_words(known: dict[str, Any], releases: int) -> str:
    """The sentence on the rows of all releases for which settings are chosen."""
    rows = known.get(MEAN_ROWS, [known[EXPECTED_ROWS.name]])
    return (
        f"these are of the first release alone: settings are chosen for {releases:,} times as many"
        f" rows, {between(rows, '.3g')} of a unit"
    )


def bounds_in_words(expression: str, found: Clamping | None, *, squared: bool) -> str:
    """The sentence on the chosen bounds of values, or on their absence."""
    if found is None:
        return NO_BOUNDS.format(expression)
    said = f"values of {expression} from {found.low:.4g} to {found.high:.4g}"
    part = share_beyond(found.beyond, found.low, found.high)
    spread = f", and {share_beyond(found.variance, found.low, found.high)} of their variance"
    more = f"{spread if squared else ''}{unseen_values(found.unseen)}"
    return f"{said}, beyond which {part} of what they add up to lies{more}"


def shortly(value: float) -> str:
    """A number with three significant digits.

    >>> shortly(9263.7), shortly(0.5613)
    ('9,260', '0.561')
    """
    return f"{float(f'{value:.3g}'):,.10g}"


def between(numbers: Sequence[float], form: str) -> str:
    """The least and the largest of some numbers in words; one number if both look the same.

    >>> between([37.6, 38.2], ",.0f"), between([0.1, 0.25], ".0%")
    ('38', '10% to 25%')
    """
    ends = [f"{end(numbers):{form}}" for end in (min, max)]
    return " to ".join(dict.fromkeys(ends))


def in_words(learned: Learned, *, groups: bool) -> list[str]:
    """The results of a look in words, each number with its interval, if noise leaves one.

    `groups`: whether settings are chosen by its numbers on groups.
    """
    ends = {
        name: f" (95%: {shortly(found.low)} to {shortly(found.high)})"
        for name, found in learned.numbers
        if found.sure
    }
    said = [
        f"{name} = {value:,.10g}{ends.get(name, '')}"
        for name, value in learned.likely.items()
        if name not in (LAWS, HISTOGRAM, CONCENTRATION, VALUES)
    ]
    sizes = learned.likely.get(VALUES, {})
    said += [
        f"the absolute value of {text} is about {shortly(size)} on average"
        for text, size in sizes.items()
    ]
    if LAWS in learned.likely and groups:
        counts, _, single, _ = zip(*learned.likely[LAWS], strict=True)
        said.append(
            f"settings are chosen for {between(counts, ',.0f')} groups, with"
            f" {between(single, '.0%')} of the rows in groups of a single row"
        )
    return said or ["too little to choose settings from"]


def rows_of(plan: Plan) -> Iterator[pa.Table]:
    """The columns that a plan reads, of all rows within its schedule: none of them, then parts."""
    source = open_rows(plan.source, plan.clock.arrival)
    schema = source.schema()
    check_schema(plan, schema)
    every = all_within(plan, source, schema)
    wanted = needed_columns(plan, schema, scheduled=not every)
    yield schema.empty_table().select(wanted)
    clock, seen = plan.clock, 0
    for chunk in source.read(None, CHUNK, wanted):
        rows = chunk.rows.select(wanted)
        if clock.kind == "rows":
            rows = rows.slice(0, max(clock.every * (clock.steps or 0) - seen, 0))
            seen += rows.num_rows
        yield rows if every else within(plan, rows)
        if clock.kind == "rows" and rows.num_rows < chunk.rows.num_rows:
            return


def all_within(plan: Plan, source: Source, schema: pa.Schema) -> bool:
    """Whether all rows are within the schedule, by the footers of Parquet files.

    Proof: if footers state the first and last time of their rows correctly, reading the rows would
        give the same answer: the same rows are used. If not, one more row may change which rows of
        others are used: no reader of such files knows their rows (docs/weaknesses.md).
    """
    name = arrival_of(plan)
    if name is None:
        return True
    row_groups = getattr(source, "row_groups", None)  # of files
    groups = row_groups(column_named(schema, name)) if row_groups else ()
    start, end = plan.clock.start_us or 0, plan.clock.end_us or 0
    return bool(groups) and all(
        group.complete and group.span and start <= group.span[0] and group.span[1] < end
        for group in groups
    )


def arrival_of(plan: Plan) -> str | None:
    """The column with the arrival of a row, where the schedule needs it."""
    if plan.clock.kind in ("rows", "once"):
        return None
    return plan.clock.arrival or plan.source.event_time


def within(plan: Plan, rows: pa.Table) -> pa.Table:
    """Rows that arrive while the job runs, by its public schedule."""
    clock, name = plan.clock, arrival_of(plan)
    if name is None:
        return rows
    name = column_named(rows.schema, name)
    at = micros(rows[name], name)
    ends = pc.min_max(at)
    first, last = ends["min"].as_py(), ends["max"].as_py()
    if first is not None and not at.null_count and clock.start_us <= first <= last < clock.end_us:
        return rows
    return rows.filter(pc.and_(pc.greater_equal(at, clock.start_us), pc.less(at, clock.end_us)))


def fitting(plan: Plan) -> GroupBy | None:
    """The operator with the settings that the look leads to; None where it leads to none.

    The alternative does not depend on the look: the settings of a query that knows nothing.
    """
    try:
        return compile_plan(combined_plan(in_any_case(plan)))
    except (PlanError, BudgetError):
        return None
