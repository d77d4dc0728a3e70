"""streamveil read, derive and dashboard: what was released, and what follows. Free of charge."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamveil.commands.common import (
    PATH,
    Commands,
    argument,
    at_least,
    out_file,
    print_release,
    print_rows,
    query_of,
    read_script,
    require_used,
    source,
    tables,
    wanted_query,
    write_rows,
    writing,
)
from streamveil.errors import PlanError
from streamveil.terminal import say

if TYPE_CHECKING:
    from streamveil.results.answers import Answers, Derived

MOST = 50  # rows shown
PAGE, HOST, PORT = Path("dashboard.html"), "127.0.0.1", 8765
DRAWN = (
    "these are the numbers as drawn; --sql QUERY computes the query's columns, and applies its"
    " HAVING, ORDER BY and LIMIT"
)

number = argument("name", "A number of the releases, such as n.")
query_sql = click.option(
    "--sql", type=PATH, help="The query; needed if metadata files of CSV or JSON are gone."
)
moment = click.option(
    "--at", help="WINDOW/TRIGGER (2026-01-01/4), WINDOW or TRIGGER. Default: the last release."
)
level = click.option(
    "--confidence", type=float,
    help="Confidence of the intervals; default: that of the releases.",
)  # fmt: skip


@click.group(
    "derive", cls=Commands, epilog="Example: streamveil derive last pages.veil n --triggers 4"
)
def app() -> None:
    """Differences, recent sums, ratios and top groups across releases, with correct intervals.

    Post-processing: nothing is drawn and nothing is charged.
    """


@click.command(epilog="Example: streamveil read pages.veil --trigger 2 --key url=/home")
@source
@click.option("--window", help="Its time (2026-01-01) or number. Default: the last.")
@click.option("--trigger", type=int, help="Default: the last.")
@click.option(
    "--key", multiple=True,
    help="column=value, or 'column IS NULL': the rows of one group. Repeatable.",
)  # fmt: skip
@click.option("--list", "listing", is_flag=True, help="List the releases instead.")
@click.option(
    "--sql", type=PATH, help="The query: computes its columns, HAVING, ORDER BY and LIMIT again."
)
@tables
@wanted_query
@out_file
def read(
    source: Path, window: str | None, trigger: int | None, key: tuple[str, ...], listing: bool,
    sql: Path | None, table: tuple[str, ...], name: str | None, out: Path | None,
) -> None:  # fmt: skip
    """A release that was made before: the same bytes, nothing drawn, nothing charged."""
    from streamveil.plan import Plan
    from streamveil.plan.joint import JointPlan
    from streamveil.results.post import post_processed
    from streamveil.runtime import published, store
    from streamveil.runtime.changed_query import read_by
    from streamveil.runtime.joint import releases_of

    if listing:
        others = {"--window": window, "--trigger": trigger, "--key": key, "--out": out}
        require_used("is for the rows of a release, and --list shows none", others)
    if sql is None:
        require_used("is for --sql, which is not given", {"--table": table, "--query": name})
    plan = None if sql is None else read_script(sql, table).named(name).plan
    together = plan if isinstance(plan, JointPlan) else None
    releases = published.opened(source) if together is None else releases_of(together, source)
    if listing:
        for place in releases.moments:
            known = releases.time(place)
            window = str(place.window) if known is None else known.name
            say(f"{place.trigger}" if window == "0" else f"{window}/{place.trigger}")
        return
    wanted = dict(pair(item) for item in key)
    if len(wanted) < len(key):
        raise PlanError("--key names a column twice: give one value for each")
    release = published.pick(releases, window, trigger, wanted)
    if isinstance(plan, Plan):
        release = post_processed(release, read_by(plan, source).post)
    if out is None:
        print_release(release, MOST)
    else:
        write_rows(release.table, out)
    drawn = [DRAWN] if sql is None and store.is_state(source) else []
    say_all([*release.notes, *drawn])


def pair(text: str) -> tuple[str, str | None]:
    """A column and a value; no value for the group of rows that have none.

    >>> pair("url=/home"), pair("url="), pair("url is null")
    (('url', '/home'), ('url', ''), ('url', None))
    """
    name, equals, value = text.partition("=")
    if name and equals:
        return name, value
    name, *rest = text.rsplit(maxsplit=2) or [""]
    if [word.upper() for word in rest] != ["IS", "NULL"]:
        raise PlanError("--key takes column=value, such as --key url=/home, or --key 'url IS NULL'")
    return name, None


Found = tuple["Derived", str]  # an answer and its title


def derived(ask: Callable[..., Found]) -> Callable[..., None]:
    """Adds the options that every question to releases has; shows the answer, or writes it."""

    @wraps(ask)
    def command(
        source: Path, at: str | None, sql: Path | None, out: Path | None, **asked: Any
    ) -> None:
        found, title = ask(opened(source, sql), at=place(at), **asked)
        show(found, title, out)

    return level(query_sql(out_file(command)))


@app.command(epilog="Example: streamveil derive difference pages.veil n --at 4 --since 1")
@source
@number
@moment
@click.option("--since", help="Default: the release before.")
@derived
def difference(answers: Answers, name: str, since: str | None, **asked: Any) -> Found:
    """How much a number changed between two releases: of a total, what arrived in between."""
    return answers.difference(name, since=place(since), **asked), f"change of {name}"


@app.command(epilog="Example: streamveil derive last pages.veil n --triggers 4")
@source
@number
@click.option("--triggers", type=int, required=True, help="How many triggers to look back.")
@moment
@derived
def last(answers: Answers, name: str, triggers: int, **asked: Any) -> Found:
    """A count or sum over the last triggers only, across windows that lie side by side."""
    return answers.last(name, triggers, **asked), f"{name} over the last {triggers} triggers"


@app.command(epilog="Example: streamveil derive moving pages.veil n --windows 7")
@source
@number
@click.option("--windows", type=int, required=True, help="How many windows, with the last.")
@moment
@derived
def moving(answers: Answers, name: str, windows: int, **asked: Any) -> Found:
    """The mean of a number over the last windows, each at its last release."""
    return answers.moving(name, windows, **asked), f"mean of {name} over {windows} windows"


@app.command(epilog="Example: streamveil derive ratio pages.veil seconds n --triggers 4")
@source
@argument("top", "The number to divide.")
@argument("bottom", "What to divide it by.")
@moment
@click.option("--to", help="The release of BOTTOM; default: --at.")
@click.option("--triggers", type=int, help="Take both over the last triggers only.")
@derived
def ratio(answers: Answers, top: str, bottom: str, to: str | None, **asked: Any) -> Found:
    """One number divided by another, with Fieller's interval."""
    return answers.ratio(top, bottom, to=place(to), **asked), f"{top} / {bottom}"


@app.command(epilog="Example: streamveil derive top pages.veil n -k 10")
@source
@number
@click.option("-k", type=int, default=10, help="How many.")
@moment
@click.option("--since", help="An earlier release: says who entered, left or stayed.")
@click.option(
    "--hidden", type=int, default=1_000_000, callback=at_least(0),
    help="How many hidden groups there may be.",
)  # fmt: skip
@derived
def top(answers: Answers, name: str, k: int, since: str | None, **asked: Any) -> Found:
    """The groups that may be among the k largest, and which of them certainly are."""
    found = answers.top(name, k, since=place(since), **asked)
    return found, f"possibly among the {k} largest by {name}"


def opened(source: Path, sql: Path | None) -> Answers:
    """Everything that was released."""
    from streamveil.api.answers import answers

    return answers(source, query=query_of(sql))


def place(text: str | None) -> Any:
    """The release that a user named."""
    if text is None:
        return None
    window, slash, trigger = text.rpartition("/")
    if text and not slash and not text.isdigit():
        return text
    if not trigger.isdigit() or "/" in window or text.startswith("/"):
        raise PlanError("a release is WINDOW/TRIGGER, WINDOW or TRIGGER, such as 2026-01-01/4 or 4")
    return (window, int(trigger)) if window else int(trigger)


def show(found: Derived, title: str, out: Path | None) -> None:
    """Shows the rows and the notes about them, or writes them to a file."""
    if out is None:
        print_rows(found.table, f"{title} ({100 * found.confidence:.4g}% intervals)", MOST)
    else:
        write_rows(found.table, out)
    say_all(found.notes)


def say_all(notes: Sequence[str]) -> None:
    """Prints the notes about the numbers above."""
    for note in notes:
        say(f"note: {note}")


@click.command(epilog="Example: streamveil dashboard pages.veil --open")
@source
@click.option("--out", type=PATH, default=PAGE, help="The page to write.")
@click.option("--ledger", type=PATH, help="A ledger, when SOURCE is a sink's folder.")
@query_sql
@click.option("--open", "show", is_flag=True, help="Open it in a browser.")
@click.option("--serve", is_flag=True, help="Serve it and keep it up to date, until interrupted.")
@click.option(
    "--host", default=HOST,
    help="With --serve: the address to listen on; others cannot reach this.",
)  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65535), default=PORT,
    help="With --serve: the port; 0 for any that is free.",
)  # fmt: skip
def dashboard(
    source: Path,
    out: Path,
    ledger: Path | None,
    sql: Path | None,
    show: bool,
    serve: bool,
    host: str,
    port: int,
) -> None:
    """Writes a web page: charts with intervals, the largest groups, what changed, the ledger.

    One self-contained file that loads nothing; it holds released numbers and the ledger only, so it
    may be shown to whoever may see the releases. Run it again to bring it up to date, or serve it.
    """
    from streamveil.dashboard import server_of, write
    from streamveil.runtime.published import require_one

    query = query_of(sql)
    if serve:
        require_used("is for a page in a file, and --serve writes none", {"--out": out != PAGE})
        if sql is None:
            require_one(source)  # a server waits for the first release instead
        with server_of(source, ledger, query, host=host, port=port) as server:
            say(f"page: {server.url} (interrupt to stop)")
            if show:
                webbrowser.open(server.url)
            with suppress(KeyboardInterrupt):
                server.serve_forever()
        return
    others = {"--host": host != HOST, "--port": port != PORT}
    require_used("is for --serve, which is not given", others)
    with writing(out):
        path = write(source, out, ledger, query).absolute()
    say(f"page: {path}")
    if show:
        webbrowser.open(path.as_uri())
