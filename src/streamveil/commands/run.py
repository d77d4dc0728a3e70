"""`streamveil run`: runs or resumes a query, and shows how it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from streamveil.batch import Release
from streamveil.commands.common import (
    PATH,
    at_least,
    print_answer,
    print_explanation,
    print_release,
    query_file,
    read_script,
    secret,
    size_of,
    tables,
    time_text,
    wanted_query,
)
from streamveil.commands.stopping import stopping
from streamveil.errors import NOTHING_LEFT, PlanError, require_one_of
from streamveil.plan import Plan
from streamveil.plan.joint import JointPlan
from streamveil.release_metadata import look_sentence
from streamveil.sql.sql import PlannedJoint
from streamveil.terminal import Terminal, say

if TYPE_CHECKING:
    from streamveil.runtime.watch import Watch

ENGINES = ("embedded", "spark")
LOCAL = "local[*]"
STARTING = "starting"
ENDS = "nothing is left to do", "what is due is done"  # without --once, with it


@click.command(epilog="Example: streamveil run pages.sql --state pages.veil")
@query_file
@click.option(
    "--state", type=PATH, help="Directory of the job, always needed; created, or resumed."
)
@secret
@click.option(
    "--once", is_flag=True,
    help="Close the steps that are due, with the rows that are there, and stop.",
)  # fmt: skip
@tables
@wanted_query
@click.option("--quiet", is_flag=True, help="Show no progress.")
@click.option(
    "--memory",
    help="Memory of the process, such as 4GB; units beyond it live on disk. Not with Spark.",
)
@click.option(
    "--threads", type=int, callback=at_least(1),
    help="Threads that compute; default: all processors. Not with Spark.",
)  # fmt: skip
@click.option("--engine", default="embedded", help="embedded, or spark (the extra 'spark').")
@click.option("--master", help="Spark's master, with --engine spark; default: local[*].")
@click.option(
    "--shards", type=int, help="Partitions of a new state, with --engine spark; default: 8."
)
@click.option("--storage", help="URI of shard state, with --engine spark; default: in STATE.")
@click.option("--ledger", "shared", help="A ledger that several jobs share (ledger create).")
@click.option(
    "--rejects", type=PATH,
    help="Keep rows that cannot be used, as they came, in this directory. They are private.",
)  # fmt: skip
@click.option(
    "--keep-releases", type=int, callback=at_least(1),
    help="How many of the newest releases STATE keeps, at least; default: all.",
)  # fmt: skip
@click.option("--log", help="Log public facts on stderr instead of progress: text or json.")
@click.option(
    "--metrics", help="Serve /metrics and /health at PORT of this machine, or at HOST:PORT."
)
@click.option(
    "--exact-metrics", is_flag=True,
    help="With --metrics: exact counts too, which depend on people's rows.",
)  # fmt: skip
def run(
    query: Path, state: Path | None, secret: str | None, once: bool, table: tuple[str, ...],
    name: str | None, quiet: bool, memory: str | None, threads: int | None, engine: str,
    master: str | None, shards: int | None, storage: str | None, shared: str | None,
    rejects: Path | None, keep_releases: int | None, log: str | None, metrics: str | None,
    exact_metrics: bool,
) -> None:  # fmt: skip
    """Runs or resumes a query; releases go to its sink, progress to the terminal.

    Kill it at any moment and run the same command again: nothing is lost, nothing is counted
    twice, and every release has the same bytes. SIGTERM and Ctrl-C end it in order, within eight
    seconds, and say what is committed.
    """
    from streamveil.compiled import COMPILING, ON_COMPILING
    from streamveil.runtime.progress import tell_all
    from streamveil.runtime.run import Pace, of_fork
    from streamveil.runtime.run import run as start
    from streamveil.runtime.watch import Watch

    told_of = not quiet and log is None  # the time of compiling may depend on rows: never logged
    ON_COMPILING[:] = [lambda: say(COMPILING, err=True)] if told_of else []
    planned = read_script(query, table).named(name)
    size = None if memory is None else size_of(memory)
    pace = Pace(once=once, memory=size, threads=threads)
    plan: Any = (
        planned.plan
        if state is None or isinstance(planned.plan, JointPlan)  # which has no fork
        else of_fork(planned.plan, state)
    )
    told = Told(log, metrics, exact_metrics, first_words(plan, once=once), ENDS[once])
    if planned.explain:
        print_explanation(planned.plan, forecast=False, as_json=False)
        return
    state = state or without_state(query)
    own: dict[str, dict[str, Any]] = {
        "embedded": {"--memory": memory, "--threads": threads, "--keep-releases": keep_releases},
        "spark": {"--master": master, "--shards": shards, "--storage": storage},
    }
    require_read(engine, own)
    on = spark_with(master or LOCAL, shards, storage) if engine == "spark" else None
    if isinstance(planned, PlannedJoint):
        more = {"pace": pace, "keep_releases": keep_releases} if on is None else {"once": once}
        run_several(planned.plan, told, quiet=not told_of, state=state, secret=secret,
                    ledger=shared, spark=on, rejects=rejects, **more)  # fmt: skip
        return
    if planned.asks:
        require_answers(planned.plan, engine, once=once)
    last = None
    quiet = quiet or log is not None  # counts of rows are no log lines
    seen: list[Any] = []  # the last progress
    watch = Watch(plan, state, now=time.time)  # noqa: TID251  (an operator's clock)
    bar = progress_bar(told.begins, plan.clock.steps, seen, quiet=quiet)
    with told.of(plan.name, watch), stopping(seen), bar as show:
        listen = partial(tell_all, (show, watch.hear))
        common: dict[str, Any] = {
            "state": state, "secret": secret, "progress": listen, "ledger": shared,
            "rejects": rejects,
        }  # fmt: skip
        if on is not None:
            job: Any = on.start(planned.plan, once=once, **common)
        else:
            job = start(planned.plan, pace=pace, keep_releases=keep_releases, **common)
        watch.begin(closed := job.closed_steps)
        with job:
            for release in job:
                last = release
    if not quiet:
        say(seen[0].summary() if seen else idle(plan, closed), err=True)
        could = engine != "spark" and rejects is None
        show_unusable(seen, "--rejects DIR" if could else "")
    show_last(last, planned.plan, lines=log is None)
    for question in planned.asks:
        print_answer(planned.plan, question, state, secret)


def idle(plan: Plan, closed: int) -> str:
    """Why a run did nothing, after `closed` steps."""
    clock, step = plan.clock, closed + 1
    if not clock.is_over(closed) and clock.kind == "wall":
        return f"nothing to do yet: step {step:,} ends at {time_text(clock.due_us(step) / 1e6)}"
    if not clock.is_over(closed) and plan.source.is_endless:
        return f"nothing to do yet: step {step:,} has not all of its rows"
    return NOTHING_LEFT


def without_state(query: Path) -> NoReturn:
    """Refuses a run that keeps nothing: it could not resume, and its ledger would be lost."""
    name = "query" if str(query) == "-" else query.stem
    raise PlanError(
        "--state is missing: the directory that keeps the job's noise, ledger and releases.\n"
        f"  to fix  --state {name}.veil makes it; run again with it, and the job resumes"
    )


class Told(NamedTuple):
    """The reports of a run while it goes on: see the options of `run`."""

    log: str | None
    metrics: str | None
    exact: bool
    begins: str  # the first words of a run
    ends: str  # its last words

    @contextmanager
    def of(self, job: str, *watches: Watch) -> Iterator[None]:
        """Writes log lines and metrics of a job inside the block."""
        from streamveil.runtime.watch import logged, served

        if self.exact and self.metrics is None:
            raise PlanError("--exact-metrics adds to --metrics PORT.\n  to fix  give both")
        at = self.metrics
        serving = served(at, *watches, exact=self.exact) if at else nullcontext()
        several = len(watches) > 1
        with logged(self.log, job, self.begins, self.ends, several=several), serving:
            yield


def spark_with(master: str, shards: int | None, storage: str | None) -> Any:
    """The Spark engine."""
    from streamveil.runtime.on_spark import spark  # loaded where it is asked for

    return spark(master=master, shards=shards, storage=storage)


def run_several(plan: JointPlan, told: Told, *, quiet: bool, state: Path, **options: Any) -> None:
    """Runs several private answers, and shows the last result that combines their releases."""
    from streamveil.runtime.joint import run_joint
    from streamveil.runtime.watch import Watch

    watches = [Watch(part, state / part.name, now=time.time) for part in plan.parts]  # noqa: TID251
    last, seen = None, list[Any]()
    if told.begins != STARTING and not quiet:
        say(told.begins, err=True)

    def hear(progress: Any) -> None:
        seen[:] = [progress]

    with told.of(plan.name, *watches), stopping(seen):
        for release in run_joint(plan, state=state, watches=watches, progress=hear, **options):
            last = release
    if last is not None and not plan.sinks:
        print_release(last)
    if last is not None:
        for note in last.notes:
            say(f"{last.place}: {note}", err=True)


def require_answers(plan: Plan, engine: str, *, once: bool) -> None:
    """Refuses questions in a script that the run would not answer."""
    if not once and plan.clock.kind == "wall":
        raise PlanError(
            "ASK in a script is answered when the run ends, and this one never does.\n"
            "  to fix  --once, or `streamveil ask` while nothing runs"
        )
    if engine == "spark":
        raise PlanError("ASK is answered by the embedded engine only.\n  to fix  leave it out")


def require_read(engine: str, own: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses options that an engine would silently ignore; `own`: the options of each engine."""
    require_one_of("engine", engine, ENGINES)
    for other, options in own.items():
        for name, value in options.items():
            if other != engine and value is not None:
                raise PlanError(
                    f"{name} is for --engine {other}, and this is --engine {engine}.\n"
                    f"  to fix  leave it out, or give --engine {other}"
                )


def show_unusable(seen: list[Any], way: str) -> None:
    """Shows how many rows were rejected, if any; `way`: the option that keeps such rows."""
    for last in seen:
        if said := last.unusable_summary(way):
            say(said, err=True)


def show_last(last: Release | None, plan: Plan, *, lines: bool) -> None:
    """Shows the last release of a query without a sink; with `lines`, also the notes about it."""
    if last is None:
        return
    if not plan.sinks:
        print_release(last)
    if not lines:
        return
    look = look_sentence(last.table.schema)
    if look is not None:
        say(look, err=True)
    for sentence in last.notes:
        say(f"{last.place}: {sentence}", err=True)


def first_words(plan: Plan | JointPlan, *, once: bool) -> str:
    """The words of a run before anything is read."""
    now = time.time()  # noqa: TID251  (an operator's clock)
    clocks = [part.clock for part in (plan.parts if isinstance(plan, JointPlan) else (plan,))]
    live = [one for one in clocks if one.kind == "wall" and one.start_us is not None]
    due = max((clock.due_us(1) / 1e6 for clock in live), default=now)
    if once or due <= now:
        return STARTING
    return f"waits: the first release is due at {time_text(due)}"


@contextmanager
def progress_bar(begins: str, steps: int | None, last: list[Any], *, quiet: bool) -> Iterator[Any]:
    """A progress line on stderr; yields a job's listener, which keeps the last progress in `last`.

    Only on a terminal: in a log it would be clutter.
    """
    console = Terminal(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )
    with nullcontext() if bar.disable else bar:  # older rich leaves an empty line
        if bar.disable and not quiet and begins != STARTING:
            say(begins, err=True)
        task = bar.add_task(begins, total=steps, rate="")

        def listen(seen: Any) -> None:
            last[:] = [seen]
            bar.update(
                task,
                description=f"step {seen.step:,} · {seen.releases:,} releases",
                completed=seen.step,
                rate=f"{seen.rows_per_second:,.0f} rows/s · {seen.memory_bytes / 2**20:,.0f} MiB",
            )

        yield listen
