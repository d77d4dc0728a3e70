"""streamveil verify: whether everything in a state directory is whole."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from streamveil.commands.common import states_in
from streamveil.terminal import Terminal, say

DAMAGED = 4  # exit code


def verify(
    state: Annotated[Path, typer.Argument(help="State directory of a job that is not running.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Reads everything in a state directory and says what is whole and what is damaged.

    Identity, secret, ledger, checkpoint, log, every release and every rejected row, each against
    its checksum and against what must agree with it. Changes nothing. Exit code 4: something is
    damaged, and a backup of one moment is needed.
    """
    from streamveil.runtime.verify import verify as examine

    several = states_in(state)  # of the private answers of one statement
    findings = [] if several else examine(state)
    for place in several:
        findings += [replace(one, part=f"{place.name}, {one.part}") for one in examine(place)]
    if as_json:
        say(json.dumps([asdict(one) for one in findings], indent=2))
    else:
        console = Terminal(soft_wrap=True, highlight=False)
        for one in findings:
            mark = "[green]whole[/]  " if one.is_whole else "[bold red]damaged[/]"
            console.print(f"{mark}  {one.part}: {escape(one.words)}")
    if not all(one.is_whole for one in findings):
        raise typer.Exit(DAMAGED)
