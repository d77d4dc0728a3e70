"""streamveil dashboard: one web page of what was released and spent."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from streamveil.commands.common import Releases, Sql, query_of, require_one, writing
from streamveil.terminal import say


def dashboard(
    source: Releases,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("dashboard.html"),
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger, when SOURCE is a sink's folder.")
    ] = None,
    sql: Sql = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve it and keep it up to date, until interrupted.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="With --serve: the address to listen on; others cannot reach this.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="With --serve: the port; 0 for any that is free.")
    ] = 8765,
) -> None:
    """Writes a web page: charts with intervals, the largest groups, what changed, the ledger.

    One self-contained file that loads nothing; it holds released numbers and the ledger only, so it
    may be shown to whoever may see the releases. Run it again to bring it up to date, or serve it.
    """
    from streamveil.dashboard import server_of, write

    require_one(source)
    if serve:
        with server_of(source, ledger, query_of(sql), host=host, port=port) as server:
            say(f"page: {server.url} (interrupt to stop)")
            if show:
                webbrowser.open(server.url)
            with suppress(KeyboardInterrupt):
                server.serve_forever()
        return
    with writing(out):
        path = write(source, out, ledger, query_of(sql)).absolute()
    say(f"page: {path}")
    if show:
        webbrowser.open(path.as_uri())
