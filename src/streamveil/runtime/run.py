"""From a plan to a running job: source and clock to micro-batches, plan to operator, sink."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.accounts.ledger import Where
from streamveil.batch import Batch
from streamveil.compiler import is_sketched, operator_of, require_ends
from streamveil.compiler.group_by import check_public, compile_plan
from streamveil.compiler.plan_forecast import noise_warning
from streamveil.compiler.sizing import require_counter
from streamveil.connectors import Source, is_at_hand, open_sinks, open_source
from streamveil.core.noise import Noise
from streamveil.dataflow import Operator
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.release_kernels import take_names
from streamveil.engines import within
from streamveil.errors import (
    NoiseWarning,
    OperatorWarning,
    SourceError,
    at_least,
    require_between,
    require_with,
    warn,
    whole,
)
from streamveil.plan import Clock, Plan, TableSource, Window, combined_plan
from streamveil.plan.check import longest
from streamveil.plan.look import first_alone, gives_options, in_any_case
from streamveil.runtime.account import MECHANISMS, describe
from streamveil.runtime.archive import require_most
from streamveil.runtime.formats import calibration
from streamveil.runtime.grouping import Together, together
from streamveil.runtime.job import Job, Work, require
from streamveil.runtime.look import (
    charged,
    keep,
    looked,
    of_first_release,
    remembered,
    settle,
    to_look,
)
from streamveil.runtime.progress import Listener, resident_bytes
from streamveil.runtime.rejects import Routing
from streamveil.runtime.schedule import MicroBatches, open_rows
from streamveil.runtime.secret import Randomness
from streamveil.runtime.store import BEFORE_LOOK, FORK, SCRATCH, epoch_of, is_ready
from streamveil.sql.schema import check_schema, needed_columns, time_named

Engine = Callable[[Plan], Operator]

BATCH_BYTES = 16 << 20  # of a micro-batch, about: amortises the cost of a commit and a step
LIMITED_BYTES = 6 << 20  # the same under a memory limit: `WORK` has room for these
FEWEST_ROWS, MOST_ROWS = 20_000, 1_000_000
MOST_THREADS = 1_024
TEXT_BYTES = 64  # taken for a value of unknown width


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How a job takes its input. Public numbers only, and nothing released depends on them."""

    max_rows: int | None = None  # of a micro-batch; None: from the width of a row
    once: bool = False  # stop at the end of what is there now
    memory: int | None = None  # bytes of the process; units beyond it are swept from disk
    threads: int | None = None  # that compute; None: as many as the process has processors

    def __post_init__(self) -> None:
        if self.threads is not None:
            require_between(1, MOST_THREADS, threads=whole("threads", self.threads))
        at_least(1, max_rows=1 if self.max_rows is None else self.max_rows)
        at_least(1, memory=1 if self.memory is None else self.memory)

    @cached_property
    def held(self) -> int:
        """The memory of the process when first asked, with that of compiled functions.

        They are loaded when one is called: so a small one is called here, before any row is read,
        as whether a limit leaves room must not depend on rows.
        """
        take_names(np.zeros(2, np.uint64), np.zeros(1, np.int64), np.zeros((1, 2), np.uint64))
        return resident_bytes()


def run(plan: Plan, *, state: str | Path, progress: Listener | None = None, **options: Any) -> Job:
    """Creates or resumes the job of a plan; iterating over it yields its releases.

    `options` are those of `prepared`; `progress` hears how far it is.
    """
    work, keys = prepared(plan, state=state, **options)
    return Job(state, work, keys, progress=progress)


def prepared(  # noqa: PLR0913  (the options of a job, by name)
    plan: Plan,
    *,
    state: str | Path,
    secret: bytes | str | None = None,
    noise: Noise | None = None,
    engine: Engine | None = None,
    insecure: bool = False,
    pace: Pace | None = None,
    ledger: Where | None = None,
    rejects: str | Path | None = None,
    keep_releases: int | None = None,
    look: bool = True,
) -> tuple[Work, Randomness]:
    """The work of a plan's job and its randomness: all that comes before its state is charged.

    `state` is a directory of the job's own, created when absent. `secret` says where the job's
    secret is kept when not there (see `secret.given`). `noise` other than keyed noise is refused
    unless `insecure` is set, and then announced. `ledger` is what `ledger create` made,
    a file or a server's address with a name, whose limit several jobs over the same data share: a
    new job is charged there too, or refused; one that looks has paid it here. Without `look` it has
    not looked, and the work is what it is charged for.
    `rejects` is a directory for rows that cannot be used, as they came, with the reason and their
    place in the source (`docs/rejects.md`). It is private: whoever reads it sees people's rows.
    `keep_releases` bounds the archive of releases in the state to the newest ones: at least so many
    are there, at most twice as many. It may differ at every start; nothing released depends on it.
    """
    if pace is not None:
        require_with("pace", pace, "max_rows", "a Pace such as Pace(threads=2)")
    keys, home = Randomness(secret, noise, insecure), Path(state)
    is_new = epoch_of(home) is None
    if is_new:
        require_ends(plan, there=True)
        warn_of_nothing(plan)
    clock = None
    plan = of_fork(plan, home)
    if not is_new:
        from streamveil.runtime.changed_query import kept_plan  # loaded where a job goes on

        kept = kept_plan(plan, home)
        plan, clock = kept.plan, kept.clock
    made = partial(
        work_of, engine=engine or engine_for(pace, state), pace=pace, rejects=rejects,
        ledger=ledger, keep_releases=keep_releases,
    )  # fmt: skip
    if engine is not None:
        return made(plan, clock=clock), keys
    fresh, wanted = None, to_look(plan, home)
    if wanted is None:
        work = made(plan := remembered(plan, home), clock=clock)
    else:
        require_before_look(wanted, home, keys, rejects, keep_releases)
        drawing, rows = keys.once(), rows_of_first(wanted, pace)
        shared = not (ledger is None and is_new and rows is None)
        limited = pace is not None and pace.memory is not None
        known = in_any_case(wanted)
        first = before_look(wanted, made(known)) if shared or limited else None
        if first and shared:
            if not look:
                return first, keys
            drawing = charged(first, home, keys)
        plan, fresh = looked(wanted, drawing, threads_of(pace), rows)
        work = made(plan)
    if fresh is not None:
        require(work, home)
        keep(home, fresh)
    settle(home, work)
    if not is_ready(home):
        warn_of_noise(plan, work.operator)
        warn_of_future(plan)
    return work, keys


def require_before_look(
    plan: Plan, state: Path, keys: Randomness, rejects: str | Path | None, keep_releases: int | None
) -> None:
    """Refuses everything that can be refused without rows: a look may read for hours."""
    require_ends(plan)
    require_counter(plan)
    require_most(keep_releases)
    if keys.noise is None:
        keys.given_secret  # noqa: B018  (raises)
    schema = checked_rows(plan).schema()
    if rejects is not None:
        columns = pa.schema([schema.field(name) for name in needed_columns(plan, schema)])
        Routing(directory=Path(rejects), columns=columns).require(state, epoch_of(state))


def rows_of_first(plan: Plan, pace: Pace | None) -> Iterator[pa.Table] | None:
    """The rows of the first release, if a look reads only those; waits for them when read."""
    if not first_alone(plan):
        return None
    source = open_rows(plan.source, plan.clock.arrival)
    return of_first_release(feed_of(plan, source, pace or Pace())(None))


def before_look(plan: Plan, work: Work) -> Work:
    """The work as charged before a look chooses its mechanisms: only its claim is final."""
    told = {name: said for name, said in work.about().items() if name != MECHANISMS}
    return replace(work, fingerprint=plan.fingerprint, calibration=BEFORE_LOOK, about=lambda: told)


def warn_of_nothing(plan: Plan) -> None:
    """Warns the operator, before a new job is charged, that there is nothing to release.

    It does not refuse: whether a job runs must not depend on rows, and an input without rows is a
    neighbour of one with a row.
    """
    if plan.source.combines:
        return
    if plan.source.kind == "files":
        nothing = nothing_in_files(plan)
    else:
        table = plan.source.options.get("table") if plan.source.kind == "memory" else None
        nothing = None if table is None or len(table) else "the table has no rows"
    if nothing is not None:
        more = ", unless files come later" if plan.source.options.get("follow") else ""
        warn(
            f"{nothing}: the budget of this job is spent on releases without rows{more}",
            OperatorWarning,
        )


def nothing_in_files(plan: Plan) -> str | None:
    """The warning where files hold no row within a query's time; None where later ones may."""
    clock = plan.clock
    ends = clock.start_us, clock.end_us
    span = None if ends[0] is None or ends[1] is None else (ends[0], ends[1])
    # loaded where files are read
    from streamveil.connectors.file_reader import not_there, nothing_to_read

    column = clock.arrival or plan.source.event_time
    source = open_source(plan.source.kind, plan.source.options, column)
    if span is None and clock.kind != "once":
        gone = not_there(source)
        return f"no file is there yet{gone}" if gone else None
    return nothing_to_read(source, column, span)


def warn_of_noise(plan: Plan, operator: Operator) -> None:
    """Warns everybody that a new job will answer little but noise, if a forecast says so.

    Also warns of options that decide nothing in it.
    Proof: decided by public expectations and by the results of a look, which its budget paid for.
    """
    if isinstance(operator, GroupBy) and (noise := noise_warning(plan, operator)):
        warn(noise, NoiseWarning)
    if (isinstance(operator, GroupBy) or is_sketched(plan)) and gives_options(plan):
        from streamveil.compiler.idle_options import idle_warning  # loaded where options are given

        if idle := idle_warning(plan, operator):
            warn(idle, NoiseWarning)


def warn_of_future(plan: Plan) -> None:
    """Warns everybody that a new job releases future times at once.

    A source that is read once and to its end does not wait: later rows are in no release.
    Proof: decided by the query and the clock on the wall.
    """
    end_us, now_us = plan.clock.end_us or 0, time.time_ns() // 1_000
    is_open = plan.source.kind != "memory"  # more rows may come to where it lies
    if is_open and plan.clock.kind == "event" and end_us > now_us:
        warn(
            "the end of this replay is yet to come: all releases are made now, from the rows that"
            " are there, and later rows will be in none.\n"
            "  to fix  follow = TRUE, in Python follow=True, makes each release when it is due;"
            " or an end in the past",
            NoiseWarning,
        )


def tell(committed: Callable[[str | None], None] | None, position: str | None) -> None:
    """Tells a source how much of it is durable."""
    if committed is not None and position is not None:
        committed(json.loads(position).get("source"))


def engine_for(pace: Pace | None, state: str | Path) -> Engine:
    """The embedded engine: a group-by keeps its units within the memory limit, if there is one."""
    memory = pace.memory if pace else None

    def engine(plan: Plan) -> Operator:
        if is_sketched(plan) or isinstance(plan.source, TableSource):
            return operator_of(plan)  # bounded by itself
        scratch = Path(state).absolute() / SCRATCH
        made, held = compile_plan(plan), pace.held if pace and memory else 0
        return within(made, memory, held, scratch, threads_of(pace))

    return engine


def of_fork(plan: Plan, state: Path) -> Plan:
    """The plan with the calendar of the job in a state, which begins later in a fork."""
    if not (state / FORK).is_file():
        return plan
    from streamveil.runtime.fork import forked  # loaded where a fork runs

    return forked(plan, state)


def work_of(  # noqa: PLR0913  (the options of a job, by name)
    plan: Plan,
    engine: Engine | None = None,
    pace: Pace | None = None,
    rejects: str | Path | None = None,
    clock: Clock | None = None,
    ledger: Where | None = None,
    keep_releases: int | None = None,
) -> Work:
    """Everything a job does, from its plan. Opens the source but reads no row.

    `clock`: with a later end than the plan was charged with. The others are as for `prepared`.
    """
    inner = combined_plan(plan)
    operator: Operator = (engine or operator_of)(inner)
    source = opened = checked_rows(plan, trace=rejects is not None)
    if inner is not plan:
        from streamveil.plan.combine import combine_rows  # loaded where totals are bounded
        from streamveil.runtime.combined import CombinedSource

        source = CombinedSource(source, partial(combine_rows, plan))
    feed = feed_of(replace(inner, clock=clock or inner.clock), source, pace or Pace())
    known = source.schema()
    columns = pa.schema([known.field(name) for name in needed_columns(inner, known)])
    check_public(operator, columns)
    work = Work(
        name=plan.name, fingerprint=plan.fingerprint, calibration=calibration(operator),
        operator=operator, post=plan.post,
        feed=feed, limit=plan.budget, ledger=ledger, keep_releases=keep_releases,
        sink=open_sinks([(one.kind, one.options) for one in plan.sinks]),
        about=lambda: describe(plan, operator, time.time()),  # noqa: TID251
        committed=partial(tell, getattr(opened, "committed", None)),
        keep_in=getattr(opened, "keep_in", lambda _: None),
        together=groups(clock or inner.clock, source, operator),
        threads=threads_of(pace),
        rejects=None if rejects is None else Routing(
            directory=Path(rejects), columns=columns,
            files=lambda: getattr(opened, "names", []),
        ),
    )  # fmt: skip  # the date of a charge is the runtime's to tell
    return work if clock is None else going_on(work, clock, inner)


def checked_rows(plan: Plan, *, trace: bool = False) -> Source:
    """The source of a plan, which has the columns that it asks for; no row is read."""
    source = open_rows(plan.source, plan.clock.arrival, trace=trace)
    check_schema(plan, source.schema())
    if plan.post:
        from streamveil.results.post import require_post  # loaded when there is some

        require_post(plan, source.schema())
    return source


def threads_of(pace: Pace | None) -> int:
    """How many threads compute."""
    return (pace.threads if pace else None) or processors()


def processors() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def groups(clock: Clock, source: Source, operator: Operator) -> Together | None:
    """Which releases are published together."""
    if getattr(operator, "ask", None) is not None:
        return None  # a question comes after the last release
    schedule = getattr(operator, "schedule", None)
    return together(clock, source.bounded, getattr(schedule, "triggers", None))


def going_on(work: Work, clock: Clock, plan: Plan) -> Work:
    """The same work until a later end, with the charge that says so."""
    from streamveil.runtime.changed_query import extended, extension

    operator = extended(work.operator, clock, plan)
    charge = partial(extension, work.name, operator=operator)
    return replace(work, operator=operator, extension=charge)


def check_at_hand(plan: Plan) -> None:
    """PlanError where a plan reads a missing column, as far as can be told without a server.

    No row is read. Sources that do not exist yet, or cannot be opened, are left to the job.
    """
    with suppress(SourceError):
        if all(is_at_hand(one.kind, one.options) for one in plan.source.relations):
            checked_rows(plan)


def feed_of(plan: Plan, source: Source, pace: Pace) -> Callable[[str | None], Iterator[Batch]]:
    """The micro-batches of a plan's source under its clock."""
    schema = source.schema()
    check_schema(plan, schema)
    columns = needed_columns(plan, schema)
    clock, time_column = plan.clock, time_named(schema, plan.source.event_time)
    if clock.arrival is not None:
        clock = replace(clock, arrival=time_named(schema, clock.arrival))
    schedule = MicroBatches(
        source, clock, columns=columns, event_time=time_column,
        max_rows=pace.max_rows or batch_rows(schema, columns, windows=windows_of_row(plan.window),
                                             limited=pace.memory is not None),
        now=time.time, sleep=time.sleep, once=pace.once,  # noqa: TID251
    )  # fmt: skip  # the clock of a live job belongs to the runtime
    return schedule.batches


def windows_of_row(window: Window) -> int:
    """About how many windows a row counts in."""
    return 1 if window.side_by_side else -(-longest(window.size) // longest(window.slide))


def batch_rows(
    schema: pa.Schema, columns: list[str], *, windows: int = 1, limited: bool = False
) -> int:
    """The rows of a micro-batch, from the schema and the memory limit, which are public.

    `windows`: how many windows a row counts in. It takes room in each.

    >>> batch_rows(pa.schema([("user", pa.int64()), ("page", pa.int32())]), ["user", "page"])
    1000000
    >>> batch_rows(pa.schema([("user", pa.string()), ("page", pa.string())]), ["user", "page"])
    131072
    """
    width = sum(value_bytes(schema.field(name).type) for name in columns)
    size = LIMITED_BYTES if limited else BATCH_BYTES
    rows = min(max(size // max(width, 1), FEWEST_ROWS), MOST_ROWS)
    return max(rows // windows, 1)


def value_bytes(kind: pa.DataType) -> int:
    """Bytes of one value in memory; a guess for text."""
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:
        return TEXT_BYTES
