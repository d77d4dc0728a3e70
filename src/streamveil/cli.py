"""The command line. Every command is a few lines over the library.

Exit codes: 0 done, 1 unexpected failure, 2 wrong use or a refused query, 3 over budget, 4 state or
ledger, 5 source, 6 an audit refuted the claim, 7 little is left in a ledger, 130 and 143 stopped by
Ctrl-C and by SIGTERM (what is committed stays; run again to resume).
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from errno import ENOMEM
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamveil import __version__
from streamveil.api.joint import JointQuery
from streamveil.batch import Release
from streamveil.commands import (
    answers,
    audit,
    ledger,
    tuning,
    verify_privacy,
)
from streamveil.commands.common import (
    QueryFile,
    Secret,
    StateFolder,
    Tables,
    Wanted,
    print_rows,
    read_query,
    read_script,
)
from streamveil.commands.stopping import Stopped, stop, stopping
from streamveil.errors import (
    INTERRUPTED,
    BudgetError,
    NoiseWarning,
    OperatorWarning,
    PlanError,
    SourceError,
    StoreError,
    StreamveilError,
    nearest,
)
from streamveil.plan import Plan
from streamveil.plan.joint import JointPlan
from streamveil.release_metadata import look_sentence
from streamveil.sql.sql import PlannedJoint
from streamveil.terminal import Terminal, label, say

if TYPE_CHECKING:
    from streamveil.advise import Explanation
    from streamveil.advise.explain_memory import Limit
    from streamveil.runtime.watch import Watch

CODES: dict[type[StreamveilError], int] = {
    PlanError: 2,
    BudgetError: 3,
    StoreError: 4,
    SourceError: 5,
}
MEMORY_SIGNS = ("cannot allocate memory", "failed to map segment", "can't start new thread",
                "could not find/load shared object")  # fmt: skip
NO_MEMORY = (
    "not enough memory for this process; what is committed stays.\n"
    "  to fix  give it more (a start needs about 1 GB), lower --memory, which bounds the state,"
    " or lift a limit on its address space (ulimit -v); then run again to resume.\n"
    "          If there is enough, a library cannot be loaded: install streamveil again"
)
DEBUG = "STREAMVEIL_DEBUG"  # set: show tracebacks, which may hold values from the data
ENGINES = ("embedded", "spark")
LOCAL = "local[*]"

app = typer.Typer(
    name="streamveil",
    help="Differentially private answers over data that never stops changing.",
    epilog="Start with `streamveil demo`. Exit codes: 0 done, 2 refused query, 3 over budget, "
    "4 state or ledger, 5 source, 6 refuted by an audit, 7 little is left in a ledger, "
    "130 interrupted, 143 stopped by SIGTERM.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    add_completion=False,
)


def main() -> None:
    """Runs the command line; every error on purpose is one block of text, without a traceback.

    A character that the terminal does not have (or a file's name that is no text) is spelled out;
    so is one that it would obey, in warnings of other packages as well.
    """
    warnings.showwarning = warned
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, stop)
    gc.freeze()  # what is loaded stays: no collection need look at it
    atexit.register(keep_garbage)
    try:
        app()
    except StreamveilError as error:
        fail(error)
    except Stopped as left:
        left.tell()
        raise
    except SystemExit as left:
        if left.code == INTERRUPTED:  # Ctrl-C: typer turns it into this
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one waits for no thread
            say("interrupted; what is committed stays. Run again to resume.", err=True)
        raise
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        if is_of_memory(error):
            say(NO_MEMORY, err=True)
            sys.exit(1)
        unexpected(error)


def keep_garbage() -> None:
    """The process ends: to look for what could be freed takes 0.3 s, and frees nothing of use.

    DuckDB counts what is left of its own, and prints all of it as leaks.
    """
    if "duckdb" not in sys.modules:
        gc.freeze()


def is_of_memory(error: BaseException | None) -> bool:
    """Whether something failed for lack of memory, however a library says it.

    >>> is_of_memory(MemoryError()), is_of_memory(OSError(12, "")), is_of_memory(OSError(2, ""))
    (True, True, False)
    """
    if error is None:
        return False
    words = str(error).lower() if isinstance(error, (ImportError, OSError, RuntimeError)) else ""
    told = any(sign in words for sign in MEMORY_SIGNS) or getattr(error, "errno", 0) == ENOMEM
    return told or isinstance(error, MemoryError) or is_of_memory(error.__cause__)


def warned(message: Warning | str, category: type[Warning], *place: Any, **_: Any) -> None:
    """Shows a warning; `place`: file and line."""
    if category in (NoiseWarning, OperatorWarning):  # of the job, not of a line of code
        say(f"warning: {message}", err=True)
        return
    say(warnings.formatwarning(message, category, *place[:2]), err=True, nl=False)


def unexpected(error: Exception) -> None:
    """Reports a bug by its type and place alone: its message might quote somebody's row."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{Path(f.filename).name}:{f.lineno}" for f in frames if "streamveil" in f.filename]
    Terminal(stderr=True, highlight=False, soft_wrap=True).print(
        f"[bold red]unexpected failure[/]: {type(error).__name__} at {' > '.join(places[-3:])}.\n"
        "  why     a bug; the message is withheld because it could hold a value from the data\n"
        f"  to fix  where that does not matter, set {DEBUG}=1 to see everything, and report it"
    )
    sys.exit(1)


def fail(error: StreamveilError) -> None:
    """Prints an error, unless a log line has said it, and leaves with its code."""
    if not getattr(error, "is_logged", False):
        console = Terminal(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"[bold red]{type(error).__name__}[/]: ", end="")
        console.print(str(error), markup=False)
    sys.exit(next((code for kind, code in CODES.items() if isinstance(error, kind)), 1))


@app.command(epilog="Example: streamveil run pages.sql --state pages.veil")
def run(
    query: QueryFile,
    state: Annotated[Path, typer.Option(help="Directory of the job; created, or resumed.")],
    secret: Secret = None,
    once: Annotated[
        bool, typer.Option("--once", help="Stop when all rows that are there are read.")
    ] = False,
    table: Tables = None,
    name: Wanted = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Memory of the process, such as 4GB; units beyond it live on disk. Not with Spark."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Threads that compute; default: all processors. Not with Spark.", min=1),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="embedded, or spark (the extra 'spark').")
    ] = "embedded",
    master: Annotated[
        str | None, typer.Option(help="Spark's master, with --engine spark; default: local[*].")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="Partitions of a new state, with --engine spark; default: 8.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="URI of shard state, with --engine spark; default: in STATE.")
    ] = None,
    shared: Annotated[
        str | None,
        typer.Option("--ledger", help="A ledger that several jobs share (ledger create)."),
    ] = None,
    rejects: Annotated[
        Path | None,
        typer.Option(
            help="Keep rows that cannot be used, as they came, in this directory. They are private."
        ),
    ] = None,
    keep_releases: Annotated[
        int | None,
        typer.Option(
            help="How many of the newest releases STATE keeps, at least; default: all.", min=1
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(help="Log public facts on stderr instead of progress: text or json."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(help="Serve /metrics and /health at PORT of this machine, or at HOST:PORT."),
    ] = None,
    exact_metrics: Annotated[
        bool,
        typer.Option(
            "--exact-metrics",
            help="With --metrics: exact counts too, which depend on people's rows.",
        ),
    ] = False,
) -> None:
    """Runs or resumes a query; releases go to its sink, progress to the terminal.

    Kill it at any moment and run the same command again: nothing is lost, nothing is counted
    twice, and every release has the same bytes. SIGTERM and Ctrl-C end it in order, within eight
    seconds, and say what is committed.
    """
    from streamveil.compiled import COMPILING, ON_COMPILING
    from streamveil.runtime.progress import tell_all
    from streamveil.runtime.run import Pace
    from streamveil.runtime.run import run as start
    from streamveil.runtime.watch import Watch

    told_of = not quiet and log is None  # when it compiles may depend on rows: no line of a log
    ON_COMPILING[:] = [lambda: say(COMPILING, err=True)] if told_of else []
    planned = read_script(query, table).named(name)
    size = None if memory is None else size_of(memory)
    pace, told = Pace(once=once, memory=size, threads=threads), Told(log, metrics, exact_metrics)
    if planned.explain:
        print_explanation(planned.plan, forecast=False, as_json=False)
        return
    if engine not in ENGINES:
        raise PlanError(f"unknown engine '{engine}'{nearest(engine, ENGINES)}")
    own: dict[str, dict[str, Any]] = {
        "embedded": {"--memory": memory, "--threads": threads, "--keep-releases": keep_releases},
        "spark": {"--master": master, "--shards": shards, "--storage": storage},
    }
    require_read(engine, own)
    on = spark_with(master or LOCAL, shards, storage) if engine == "spark" else None
    if isinstance(planned, PlannedJoint):
        more = {"pace": pace, "keep_releases": keep_releases} if on is None else {"once": once}
        run_several(planned.plan, told, state=state, secret=secret, ledger=shared, spark=on,
                    rejects=rejects, **more)  # fmt: skip
        return
    if planned.asks:
        require_answers(planned.plan, engine, once=once)
    last = None
    quiet = quiet or log is not None  # counts of rows are no log lines
    seen: list[Any] = []  # the last progress
    watch = Watch(planned.plan, state, now=time.time)  # noqa: TID251  (an operator's clock)
    bar = progress_bar(planned.plan, seen, quiet=quiet)
    with told.of(planned.plan.name, watch), stopping(seen), bar as show:
        listen = partial(tell_all, (show, watch.hear))
        common: dict[str, Any] = {
            "state": state, "secret": secret, "progress": listen, "ledger": shared,
            "rejects": rejects,
        }  # fmt: skip
        if on is not None:
            job: Any = on.start(planned.plan, once=once, **common)
        else:
            job = start(planned.plan, pace=pace, keep_releases=keep_releases, **common)
        watch.begin(job.closed_steps)
        with job:
            for release in job:
                last = release
    if not quiet:
        done = "nothing left to do: all releases were made before; rows that came since are in none"
        say(seen[0].summary() if seen else done, err=True)
        could = engine != "spark" and rejects is None
        show_unusable(seen, "--rejects DIR" if could else "")
    show_last(last, planned.plan, lines=log is None)
    for question in planned.asks:
        print_answer(planned.plan, question, state, secret)


class Told(NamedTuple):
    """What is told of a run while it goes on: see the options of `run`."""

    log: str | None
    metrics: str | None
    exact: bool

    @contextmanager
    def of(self, job: str, *watches: Watch) -> Iterator[None]:
        """Log lines of a job, and the metrics of what is watched."""
        from streamveil.runtime.watch import logged, served

        if self.exact and self.metrics is None:
            raise PlanError("--exact-metrics adds to --metrics PORT.\n  to fix  give both")
        at = self.metrics
        serving = served(at, *watches, exact=self.exact) if at else nullcontext()
        with logged(self.log, job, several=len(watches) > 1), serving:
            yield


def spark_with(master: str, shards: int | None, storage: str | None) -> Any:
    """The Spark engine."""
    from streamveil.runtime.on_spark import spark  # loaded where it is asked for

    return spark(master=master, shards=shards, storage=storage)


def run_several(plan: JointPlan, told: Told, *, state: Path, **options: Any) -> None:
    """Runs several private answers, and shows the last of what is made of their releases."""
    from streamveil.runtime.joint import run_joint
    from streamveil.runtime.watch import Watch

    watches = [Watch(part, state / part.name, now=time.time) for part in plan.parts]  # noqa: TID251
    last, seen = None, list[Any]()

    def hear(progress: Any) -> None:
        seen[:] = [progress]

    with told.of(plan.name, *watches), stopping(seen):
        for release in run_joint(plan, state=state, watches=watches, progress=hear, **options):
            last = release
    if last is not None and not plan.sinks:
        print_rows(last.table, f"{last.place} (CREATE SINK keeps them all)")
    if last is not None:
        for note in last.notes:
            say(f"{last.place}: {note}", err=True)


def require_answers(plan: Plan, engine: str, *, once: bool) -> None:
    """Refuses questions in a script that nobody would answer."""
    if not once and plan.clock.kind == "wall":
        raise PlanError(
            "ASK in a script is answered when the run ends, and this one never does.\n"
            "  to fix  --once, or `streamveil ask` while nothing runs"
        )
    if engine == "spark":
        raise PlanError("ASK is answered by the embedded engine only.\n  to fix  leave it out")


def require_read(engine: str, own: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuses options that an engine would pass over in silence; `own`: of each engine."""
    for other, options in own.items():
        for name, value in options.items():
            if other != engine and value is not None:
                raise PlanError(
                    f"{name} is for --engine {other}, and this is --engine {engine}.\n"
                    f"  to fix  leave it out, or give --engine {other}"
                )


def print_answer(plan: Plan, question: str, state: Path, secret: str | None) -> None:
    """Asks a changing table at rest, and shows what it says."""
    from streamveil.runtime.ask import ask as answer

    say(str(answer(plan, question, state=state, secret=secret)))


@app.command(
    epilog="Example: streamveil ask shop.sql \"COUNT(*) WHERE city = 'Oslo'\" --state shop.veil"
)
def ask(
    query: QueryFile,
    question: Annotated[str, typer.Argument(help="COUNT(*) WHERE condition")],
    state: Annotated[Path, typer.Option(help="State directory of a job that is not running.")],
    secret: Secret = None,
    table: Tables = None,
    name: Wanted = None,
) -> None:
    """Asks a changing table about its last closed step; the same question again is free.

    What follows from the releases, or what the synthetic table answers well, costs nothing; a
    correction is paid from the query's `ask_share`.
    """
    print_answer(read_query(query, table, name).plan, question, state, secret)


@app.command(epilog="Example: streamveil fork pages.sql pages.veil second.veil")
def fork(
    query: QueryFile,
    state: StateFolder,
    new: Annotated[Path, typer.Argument(help="A new directory, for the fork.")],
    table: Tables = None,
    name: Wanted = None,
) -> None:
    """A second job of a state's query, from where it stands, with noise and a charge of its own.

    It begins at the first time from which all its windows are new. Run it with the same query and
    `--state NEW`; it is charged then, to its own ledger and to the one it is given.
    """
    from datetime import UTC, datetime

    from streamveil.runtime.fork import fork as prepare

    begins = prepare(read_query(query, table, name).plan, state, new)
    time_of = datetime.fromtimestamp(begins / 1e6, UTC).isoformat(" ")
    say(f"it begins at {time_of}: streamveil run {query} --state {new}")


@app.command(epilog="Example: streamveil backup pages.veil pages.backup")
def backup(
    state: StateFolder,
    copy: Annotated[Path, typer.Argument(help="A new directory, for the copy.")],
) -> None:
    """Copies the state of a job that is not running, and verifies the copy.

    No job runs in a backup. It holds exact counts and maybe the secret: keep it as safe as STATE.
    """
    from streamveil.runtime.backup import backup as make

    make(state, copy)
    say(f"whole: {copy}")


@app.command(epilog="Example: streamveil restore pages.backup pages.veil")
def restore(
    copy: Annotated[Path, typer.Argument(help="What `streamveil backup` made.")],
    state: Annotated[Path, typer.Argument(help="A new directory, for the state.")],
) -> None:
    """Makes a state from a backup, at a place where nothing is yet.

    Only if the original is gone for good. Where it went on over rows that cannot be read again as
    they were (a live source under the wall clock), go on with `streamveil fork` instead.
    """
    from streamveil.runtime.backup import restore as make

    say(f"the state of {make(copy, state)}: {state}")


@app.command(epilog="Example: streamveil resend pages.sql pages.veil")
def resend(
    query: QueryFile,
    state: StateFolder,
    table: Tables = None,
    name: Wanted = None,
) -> None:
    """Gives the tables of a database releases that they have lost, from those that STATE keeps.

    For a database that was restored to an earlier moment. The job must not run meanwhile. What is
    there stays as it is; nothing is drawn and nothing is charged.
    """
    from streamveil.commands.resend import resend as send

    say(f"{send(read_query(query, table, name).plan, state):,} releases are there")


@app.command(epilog="Example: streamveil rekey pages.veil --new file:new.key")
def rekey(
    state: StateFolder,
    new: Annotated[str, typer.Option(help="env:NAME, command:PROGRAM or file:PATH.")],
    secret: Annotated[
        str | None, typer.Option(help="The old secret; default: the one kept in the state.")
    ] = None,
) -> None:
    """Gives a state another secret. The noise key that it opens stays: nothing is drawn anew.

    Destroy the old secret and old copies of STATE: together they still open the noise key.
    """
    from streamveil.runtime.rekey import rekey as change

    name = change(state, secret, new)
    say(
        f"the job '{name}' starts with the new secret from now on; old copies of its state need the"
        " old one"
    )


def show_unusable(seen: list[Any], way: str) -> None:
    """How many rows could not be used, where there are any. `way`: what keeps such rows."""
    for last in seen:
        if said := last.unusable_summary(way):
            say(said, err=True)


def show_last(last: Release | None, plan: Plan, *, lines: bool) -> None:
    """The last release, of a query without a sink; and in `lines` what no number of it holds."""
    if last is None:
        return
    if not plan.sinks:
        print_rows(last.table, f"{last.place} (CREATE SINK keeps them all)")
    if not lines:
        return
    look = look_sentence(last.table.schema)
    if look is not None:
        say(look, err=True)
    for sentence in last.notes:
        say(f"{last.place}: {sentence}", err=True)


@contextmanager
def progress_bar(plan: Plan, last: list[Any], *, quiet: bool) -> Iterator[Any]:
    """A progress line on stderr; yields the listener for a job, which keeps what it heard last.

    Only where somebody watches: in a log it would be noise.
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
    with bar:
        task = bar.add_task("starting", total=plan.clock.steps, rate="")

        def listen(seen: Any) -> None:
            last[:] = [seen]
            bar.update(
                task,
                description=f"step {seen.step:,} · {seen.releases:,} releases",
                completed=seen.step,
                rate=f"{seen.rows_per_second:,.0f} rows/s · {seen.memory_bytes / 2**20:,.0f} MiB",
            )

        yield listen


@app.command(epilog="Example: streamveil explain pages.sql --forecast")
def explain(
    query: QueryFile,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Errors and chances for groups of some sizes.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Numbers instead of text.")] = False,
    memory: Annotated[
        str | None, typer.Option(help="A limit such as 4GB: how many groups and units fit in it?")
    ] = None,
    groups: Annotated[
        int | None, typer.Option(help="Groups you expect; with --memory, whether they fit.", min=1)
    ] = None,
    units: Annotated[
        int | None, typer.Option(help="Privacy units you expect, such as 10000000.", min=1)
    ] = None,
    table: Tables = None,
    name: Wanted = None,
) -> None:
    """The promise in words, the plan, the noise and every default. Reads no data."""
    from streamveil.advise.explain_memory import Limit

    planned = read_script(query, table).named(name)
    limit = Limit(None if memory is None else size_of(memory), groups, units)
    print_explanation(planned.plan, forecast=forecast, as_json=as_json, limit=limit)


def size_of(text: str) -> int:
    """Bytes from a text such as 4GB, 500MB or 123456.

    >>> size_of("1.5 kb")
    1500
    """
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    number = text.strip().upper().rstrip("KMGTB")
    unit = text.strip().upper()[len(number) :]
    try:
        size = int(float(number) * units[unit])
    except (ValueError, KeyError, OverflowError):
        size = 0
    if size < 1:
        raise PlanError(f"--memory takes a number above 0 and a unit (4GB), not '{text[:20]}'")
    return size


def print_explanation(
    plan: Plan | JointPlan, *, forecast: bool, as_json: bool, limit: Limit | None = None
) -> None:
    """Text for people, or JSON for programs."""
    from streamveil.advise import explain as describe

    def made() -> Explanation:
        if isinstance(plan, JointPlan):
            return JointQuery(plan).explain(forecast=forecast)
        return describe(plan, forecast=forecast, limit=limit)

    console = Terminal(stderr=True)
    watched: AbstractContextManager[Any] = nullcontext()
    if console.is_terminal:
        watched = console.status("choosing the noise")  # seconds, for a small epsilon
    with watched:
        found = made()
    say(json.dumps(found.facts, indent=2) if as_json else str(found), nl=as_json)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Folder for data, state and picture.")] = Path(
        "demo-out"
    ),
) -> None:
    """Counts real flights privately, and draws a picture."""
    from streamveil.demo import main as show

    show(str(folder))


@app.command()
def inspect(
    state: StateFolder,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    files: Annotated[
        str | None, typer.Option(help="Files as the query names them: says which were read.")
    ] = None,
) -> None:
    """What a state directory holds: job, place, sizes, what was spent. No row is shown."""
    from streamveil.runtime.inspect import inspect as describe

    if files is not None:
        from streamveil.connectors.manifest import shown
        from streamveil.runtime.inspect import files_read

        found = dict(files_read(state, files))
        for name, how in found.items() if not as_json else ():
            say(f"{how:8}{shown(name)}")
        if as_json:
            say(json.dumps({shown(name): how for name, how in found.items()}, indent=2))
        return
    summary = describe(state)
    if as_json:
        say(json.dumps(summary.to_dict(), indent=2))
        return
    table = Table(show_header=False, box=None)
    for row in summary.rows():
        table.add_row(*(label(text) for text in row))
    Terminal(soft_wrap=True, highlight=False).print(table)


app.add_typer(ledger.app, name="ledger")
app.command("tune", epilog="Example: streamveil tune q.sql --sample public.parquet")(tuning.tune)
app.command("what-if", epilog="Example: streamveil what-if q.sql --units 500")(tuning.what_if)
app.command("verify", epilog="Example: streamveil verify pages.veil")(verify_privacy.verify)
app.add_typer(answers.app, name="derive")
app.command("read", epilog="Example: streamveil read pages.veil --trigger 2 --key url=/home")(
    answers.read
)
app.command("audit", epilog="Example: streamveil audit pages.sql --plant")(audit.audit)
app.command("verify-privacy", epilog="Example: streamveil verify-privacy pages.sql --seconds 60")(
    verify_privacy.verify_privacy
)
app.command("dashboard", epilog="Example: streamveil dashboard pages.veil --open")(
    answers.dashboard
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"streamveil {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Differentially private answers over data that never stops changing."""
