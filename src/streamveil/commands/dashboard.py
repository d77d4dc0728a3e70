"""streamveil dashboard: one web page of what was released and spent."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from streamveil.commands.common import Releases, Sql, query_of, writing
from streamveil.terminal import say


def dashboard(
    source: Releases,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("dashboard.html"),
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger, when SOURCE is a sink's folder.")
    ] = None,
    sql: Sql = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Writes a web page: charts with intervals, the largest groups, what changed, the ledger.

    One self-contained file without scripts; it holds released numbers and the ledger only, so it
    may be shown to whoever may see the releases. Run it again to bring it up to date.
    """
    from streamveil.dashboard import write

    with writing(out):
        path = write(source, out, ledger, query_of(sql)).absolute()
    say(f"page: {path}")
    if show:
        webbrowser.open(path.as_uri())
