"""The common parts of commands: arguments, reading queries, printing tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import pyarrow as pa
from rich.console import RenderableType
from rich.measure import Measurement

from streamveil.api import Query
from streamveil.api.script import JointQuery
from streamveil.connectors.sinks import WRITERS
from streamveil.errors import INTERRUPTED, PlanError, visible
from streamveil.plan import Plan, SourceSpec
from streamveil.plan.joint import JointPlan
from streamveil.release_metadata import read_facts
from streamveil.sql.sql import Planned, Script, parse_script
from streamveil.terminal import Terminal, say, table_of

if TYPE_CHECKING:
    from streamveil.advise.explain_memory import Limit
    from streamveil.batch import Release
    from streamveil.display import Explanation

SHOWN_ROWS = 10
WIDEST = 10_000  # characters of a table, so that wide ones are not cut
ENDINGS = ("csv", "json", "parquet", "arrow")

Command = TypeVar("Command", bound=Callable[..., Any])
Panels = Mapping[str, Sequence[str]]  # title -> names of commands

PATH = click.Path(path_type=Path)


class Positional(click.Argument):
    """A positional argument with a line in the help."""

    def __init__(self, declared: Sequence[str], *, about: str, **more: Any) -> None:
        super().__init__(declared, **more)
        self.help = about  # click before 8.5 has none

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """See `click.Parameter.get_help_record`."""
        return self.human_readable_name, str(self.help)


def argument(name: str, about: str, **more: Any) -> Callable[[Command], Command]:
    """The decorator of an argument; `more`: as of `click.argument`."""
    return click.argument(name, cls=Positional, about=about, **more)


query_file = argument("query", "A file with SQL; `-` reads standard input.", type=PATH)
source = argument(
    "source", "State directory of a job, or the folder that its sink wrote.", type=PATH
)
state_folder = argument("state", "State directory of a job.", type=PATH)
ledger_place = argument("place", "State directory, ledger file, or postgresql://user@host/db#name.")
tables = click.option(
    "--table", multiple=True, help="name=path: a table the query names, in files. Repeatable."
)
wanted_query = click.option(
    "--query", "name", help="Name of the query, when the script has several."
)
secret = click.option(
    "--secret", help="env:NAME, command:PROGRAM or file:PATH; default: kept in the state."
)
out_file = click.option(
    "--out", type=PATH, help="Write the rows to this file: .csv, .json, .parquet or .arrow."
)


class Commands(click.Group):
    """Commands in panels, each with its first paragraph; error texts without terminal commands."""

    def __init__(self, *arguments: Any, panels: Panels | None = None, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.panels = panels

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Group.format_commands`."""
        for title, names in (self.panels or {"Commands": tuple(self.commands)}).items():
            first = [(self.commands[name].help or "").split("\n\n")[0] for name in names]
            with formatter.section(title):
                formatter.write_dl([*zip(names, first, strict=True)])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`; without a command it gives the help, with exit code 2."""
        if not args:
            say(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def main(self, *arguments: Any, **more: Any) -> Any:
        """See `click.Command.main`; Ctrl-C ends with `INTERRUPTED`."""
        try:
            sys.exit(super().main(*arguments, **{**more, "standalone_mode": False}))
        except click.ClickException as error:
            if used := getattr(error, "ctx", None):
                say(f"{used.get_usage()}\nTry '{used.command_path} --help' for help.\n", err=True)
            say(f"Error: {visible(error.format_message())}", err=True)
            sys.exit(error.exit_code)
        except click.Abort as aborted:  # click's word for Ctrl-C, and for an EOFError
            if isinstance(aborted.__cause__, EOFError):
                raise aborted.__cause__ from None
            sys.exit(INTERRUPTED)


def at_least(least: float) -> Callable[[object, object, float | None], float | None]:
    """The check that an option is at least a number."""

    def check(_: object, __: object, value: float | None) -> float | None:
        if value is not None and not value >= least:
            raise click.BadParameter(f"it is at least {least:g}, not {value:g}")
        return value

    return check


def require_used(why: str, options: Mapping[str, object]) -> None:
    """Refuses options that a command would silently ignore; `why`: the reason.

    >>> require_used("is for --sample, which is not given", {"--fraction": False})
    """
    for option, given in options.items():
        if given:
            raise PlanError(f"{option} {why}")


def read_query(path: Path, tables: Sequence[str] = (), wanted: str | None = None) -> Planned:
    """The query of a file."""
    script = read_script(path, tables)
    found = script.query if wanted is None else script.named(wanted)
    return found if isinstance(found, Planned) else script.query


def read_script(path: Path, tables: Sequence[str] = ()) -> Script:
    """All statements of a file."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise PlanError(f"the query file '{path}' cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PlanError(f"the query file '{path}' cannot be read: it is no UTF-8 text") from None
    return parse_script(text, dict(_table(item) for item in tables))


def checked_plans(plan: Plan | JointPlan) -> tuple[Plan, ...]:
    """The private answers of a query; PlanError if one names a missing column.

    No row is read, and no server is asked.
    """
    from streamveil.runtime.run import check_at_hand

    parts = plan.parts if isinstance(plan, JointPlan) else (plan,)
    for part in parts:
        check_at_hand(part)
    return parts


def query_of(path: Path | None) -> Query | JointQuery | None:
    """The query of a file, if one was named."""
    from streamveil.api.script import query_of as made_of

    return None if path is None else made_of(read_script(path).named(None).plan)


def _table(item: str) -> tuple[str, SourceSpec]:
    name, equals, path = item.partition("=")
    if not (name and equals and path):
        raise PlanError(
            f"--table takes name=path, such as --table clicks='clicks/*.parquet', not '{item}'"
        )
    return name, SourceSpec(name=name, kind="files", options={"path": path})


def print_rows(table: pa.Table, title: str, most: int = SHOWN_ROWS) -> None:
    """The first rows of a table, and how many more there are."""
    print_whole(table_of(table, title, most))
    if table.num_rows > most:
        Terminal().print(f"… and {table.num_rows - most:,} more rows")


def print_release(release: Release, most: int = SHOWN_ROWS) -> None:
    """The rows of a release, under its place."""
    names = [name for name in release.table.column_names if name != "trigger"]  # the title has it
    level = (read_facts(release.table.schema) or {}).get("confidence")
    told = "" if level is None else f" ({100 * level:.4g}% intervals)"
    print_rows(release.table.select(names), release.place + told, most)


def print_whole(table: RenderableType) -> None:
    """Prints a table without cutting cells; a terminal folds lines that are too long for it."""
    console = Terminal()
    needs = Measurement.get(console, console.options.update_width(WIDEST), table).maximum
    console.width = max(console.width, needs)
    console.print(table)


def write_rows(table: pa.Table, path: Path) -> None:
    """Writes all rows and says so; the end of the name gives the format, a sink's or Arrow's."""
    kind = path.suffix.lstrip(".")
    if kind not in ENDINGS:
        raise PlanError(f"--out must end in {', '.join(ENDINGS)}, not '{path.suffix}'")
    with writing(path):
        if kind == "arrow":
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table)
        else:
            path.write_bytes(WRITERS[kind](table, None))
    say(f"{table.num_rows:,} row{'s' * (table.num_rows != 1)}: {path}")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a failure to write the file that a user named into an error that says why."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else "its folder is missing or closed to you"
        raise PlanError(f"'{path}' cannot be written: {why}") from None


def open_ledger(where: str) -> Any:
    """The ledger of a state directory, of a file, or of a server."""
    from streamveil.accounts.ledger import Ledger
    from streamveil.runtime.store import LEDGER, require_single

    path = Path(where)
    require_single(path)
    return Ledger.load(path / LEDGER if path.is_dir() else where)


def print_answer(plan: Plan, question: str, state: Path, secret: str | None) -> None:
    """Asks a changing table at rest, and shows its answer."""
    from streamveil.runtime.ask import ask as answer

    say(str(answer(plan, question, state=state, secret=secret)))


def time_text(seconds: float) -> str:
    """A time for an operator; `seconds` since 1970.

    >>> time_text(3600)
    '1970-01-01 01:00:00 UTC'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


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
        checked_plans(plan)
        return describe(plan, forecast=forecast, limit=limit)

    console = Terminal(stderr=True)
    watched: AbstractContextManager[Any] = nullcontext()
    if console.is_terminal:
        watched = console.status("choosing the noise")  # seconds, for a small epsilon
    with watched:
        found = made()
    say(json.dumps(found.facts, indent=2) if as_json else str(found), nl=as_json)
