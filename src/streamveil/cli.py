"""The command line. Every command is a few lines over the library.

Exit codes: 0 done, 1 unexpected failure, 2 wrong use or a refused query, 3 over budget, 4 state or
ledger, 5 source, sink or database, 6 an audit refuted the claim, 7 little is left in a ledger, 130
and 143 stopped by Ctrl-C and by SIGTERM (what is committed stays; run again to resume).
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import shlex
import signal
import sys
import traceback
import warnings
from errno import ENAMETOOLONG, ENOMEM
from importlib.abc import MetaPathFinder
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from rich.table import Table

from streamveil import __version__
from streamveil.commands import answers, audit, ledger, run, tuning, verify_privacy
from streamveil.commands.common import (
    PATH,
    Commands,
    argument,
    at_least,
    print_answer,
    print_explanation,
    query_file,
    read_query,
    read_script,
    require_used,
    secret,
    size_of,
    state_folder,
    tables,
    time_text,
    wanted_query,
)
from streamveil.commands.stopping import Stopped, count_down, stop
from streamveil.disk import NO_ROOM
from streamveil.errors import (
    INTERRUPTED,
    PACKAGE,
    BudgetError,
    NoiseWarning,
    OperatorWarning,
    PlanError,
    SourceError,
    StoreError,
    StreamveilError,
)
from streamveil.terminal import Terminal, label, say

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
DEBUG = "STREAMVEIL_DEBUG"  # if set, show tracebacks, which may hold values from the data

PANELS = {  # of the help, with their commands in the order in which people need them
    "Questions and answers": ("demo", "explain", "run", "read", "derive", "dashboard", "ask"),
    "Settings": ("tune", "what-if"),
    "Promises": ("ledger", "audit", "verify-privacy"),
    "States": ("inspect", "verify", "backup", "restore", "fork", "rekey"),
}


@click.group(
    "streamveil",
    cls=Commands,
    panels=PANELS,
    epilog="Start with `streamveil demo`. Exit codes: 0 done, 1 another failure, "
    "2 refused query, 3 over budget, 4 state or ledger, 5 source, sink or database, 6 refuted "
    "by an audit, 7 little is left in a ledger, 130 interrupted, 143 stopped by SIGTERM.",
    context_settings={"show_default": True},
)
@click.version_option(
    __version__, message="streamveil %(version)s", help="Show the version and exit."
)
def app() -> None:
    """Differentially private answers over data that never stops changing."""


class HiddenPandas(MetaPathFinder):
    """Imports as if pandas were not installed."""

    def find_spec(self, fullname: str, *_: Any) -> None:
        """See `MetaPathFinder.find_spec`."""
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def spare_pandas() -> None:
    """Keeps Arrow from loading pandas, which takes longer than most commands.

    Arrow looks for pandas when it makes its first value, and remembers the result. No command gives
    it a frame.
    """
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, hidden := HiddenPandas())
    pa.scalar(0)
    sys.meta_path.remove(hidden)


def main() -> None:
    """Runs the command line; every error on purpose is one block of text, without a traceback.

    Characters that the terminal lacks, file names that are not text, and characters that it would
    obey are spelled out, in warnings of other packages as well.
    """
    warnings.showwarning = warned
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, stop)
    count_down()
    spare_pandas()
    gc.freeze()  # loaded objects stay: no collection needs to look at them
    atexit.register(keep_garbage)
    try:
        app()
    except StreamveilError as error:
        fail(error)
    except Stopped as left:
        left.tell()
        raise
    except SystemExit as left:
        if left.code == INTERRUPTED:  # Ctrl-C: `Commands.main` turns it into this
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one waits for no thread
            say("interrupted; what is committed stays. Run again to resume.", err=True)
        raise
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        if words := of_the_machine(error):
            say(words, err=True)
            sys.exit(1)
        unexpected(error)


def keep_garbage() -> None:
    """Skips garbage collection at the end of the process, which takes 0.3 s for no use.

    DuckDB counts its remaining objects, and would print them all as leaks.
    """
    if "duckdb" not in sys.modules:
        gc.freeze()


def of_the_machine(error: Exception) -> str | None:
    """The message if memory or the output's disk ran out, or a name is too long; else None."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return (
            f"the output cannot be written: {os.strerror(error.errno)}.\n"
            "  to fix  make room there, or send it elsewhere, then run again"
        )
    if isinstance(error, OSError) and error.errno == ENAMETOOLONG:
        return (
            f"the path '{error.filename!s:.50}...' has a name longer than file systems take.\n"
            "  to fix  give a shorter one"
        )
    return NO_MEMORY if is_of_memory(error) else None


def is_of_memory(error: BaseException | None) -> bool:
    """Whether an error means that memory ran out, whatever the library's own error.

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
    ours = category is UserWarning and str(place[0]).startswith(PACKAGE)
    if ours or category in (NoiseWarning, OperatorWarning):  # of the job, not of a line of code
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


@app.command(
    epilog="Example: streamveil ask shop.sql \"COUNT(*) WHERE city = 'Oslo'\" --state shop.veil"
)
@query_file
@argument("question", "COUNT(*) WHERE condition")
@click.option(
    "--state", type=PATH, required=True, help="State directory of a job that is not running."
)
@secret
@tables
@wanted_query
def ask(
    query: Path, question: str, state: Path, secret: str | None, table: tuple[str, ...],
    name: str | None,
) -> None:  # fmt: skip
    """Asks a changing table about its last closed step; the same question again is free.

    What follows from the releases, or what the synthetic table answers well, costs nothing; a
    correction is paid from the query's `ask_share`.
    """
    print_answer(read_query(query, table, name).plan, question, state, secret)


@app.command(epilog="Example: streamveil fork pages.sql pages.veil second.veil")
@query_file
@state_folder
@argument("new", "A new directory, for the fork.", type=PATH)
@tables
@wanted_query
def fork(query: Path, state: Path, new: Path, table: tuple[str, ...], name: str | None) -> None:
    """A second job of a state's query, from where it stands, with noise and a charge of its own.

    It begins at the first time from which all its windows are new. Run it with the same query and
    `--state NEW`; it is charged then, to its own ledger and to the one that `--ledger` names.
    """
    from streamveil.runtime.fork import fork as prepare

    plan = read_query(query, table, name).plan
    begins = prepare(plan, state, new)
    command = shlex.join(["streamveil", "run", str(query), "--state", str(new)])
    say(f"it begins at {time_text(begins / 1e6)}: {command}")
    if plan.sinks:
        sinks = ", ".join(one.name for one in plan.sinks)
        say(f"if the first job goes on, give {sinks} a path or table of its own for the fork: both"
            " release the same windows, and a sink refuses the second")  # fmt: skip


@app.command(epilog="Example: streamveil backup pages.veil pages.backup")
@state_folder
@argument("copy", "A new directory, for the copy.", type=PATH)
def backup(state: Path, copy: Path) -> None:
    """Copies the state of a job that is not running, and verifies the copy.

    No job runs in a backup. It holds exact counts and maybe the secret: keep it as safe as STATE.
    """
    from streamveil.runtime.backup import backup as make

    make(state, copy)
    say(f"whole: {copy}")


@app.command(epilog="Example: streamveil restore pages.backup pages.veil")
@argument("copy", "What `streamveil backup` made.", type=PATH)
@argument("state", "A new directory, for the state.", type=PATH)
def restore(copy: Path, state: Path) -> None:
    """Makes a state from a backup, at a place where nothing is yet.

    Only if the original is gone for good. Where it went on over rows that cannot be read again as
    they were (a live source under the wall clock), go on with `streamveil fork` instead.
    """
    from streamveil.runtime.backup import restore as make

    say(f"the state of {make(copy, state)}: {state}")


@app.command(epilog="Example: streamveil rekey pages.veil --new file:new.key")
@state_folder
@click.option("--new", required=True, help="env:NAME, command:PROGRAM or file:PATH.")
@click.option("--secret", help="The old secret; default: the one kept in the state.")
def rekey(state: Path, new: str, secret: str | None) -> None:
    """Gives a state another secret. The noise key that it opens stays: nothing is drawn anew.

    Destroy the old secret and old copies of STATE: together they still open the noise key.
    """
    from streamveil.runtime.rekey import rekey as change

    name = change(state, secret, new)
    say(
        f"the job '{name}' starts with the new secret from now on; old copies of its state need the"
        " old one"
    )


@app.command(epilog="Example: streamveil explain pages.sql --forecast")
@query_file
@click.option("--forecast", is_flag=True, help="Errors and chances for groups of some sizes.")
@click.option("--json", "as_json", is_flag=True, help="Numbers instead of text.")
@click.option("--memory", help="A limit such as 4GB: how many groups and units fit in it?")
@click.option(
    "--groups", type=int, callback=at_least(1),
    help="Groups you expect; with --memory, whether they fit.",
)  # fmt: skip
@click.option(
    "--units", type=int, callback=at_least(1), help="Privacy units you expect, such as 10000000."
)
@tables
@wanted_query
def explain(
    query: Path, forecast: bool, as_json: bool, memory: str | None, groups: int | None,
    units: int | None, table: tuple[str, ...], name: str | None,
) -> None:  # fmt: skip
    """The promise in words, the plan, the noise and every default. Reads no row."""
    from streamveil.advise.explain_memory import Limit

    sizes = {"--memory": memory, "--groups": groups, "--units": units}
    if as_json:
        others = {"--forecast": forecast, **sizes}
        require_used("is for text, and the numbers of --json do not have it", others)
    if memory is None:
        require_used("is asked about --memory, which is not given", {"--groups": groups})
    planned = read_script(query, table).named(name)
    limit = Limit(None if memory is None else size_of(memory), groups, units)
    print_explanation(planned.plan, forecast=forecast, as_json=as_json, limit=limit)


@app.command()
@click.option("--folder", type=PATH, default="demo-out", help="Folder for data, state and picture.")
def demo(folder: Path) -> None:
    """Counts real flights privately, and draws a picture."""
    from streamveil.demo import main as show

    show(str(folder))


@app.command()
@state_folder
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--files", help="Files as the query names them: says which were read.")
def inspect(state: Path, as_json: bool, files: str | None) -> None:
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


for command in (
    run.run, tuning.tune, tuning.what_if, ledger.app, answers.app, answers.read, answers.dashboard,
    audit.audit, verify_privacy.verify, verify_privacy.verify_privacy,
):  # fmt: skip
    app.add_command(command)
