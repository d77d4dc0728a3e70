"""streamveil verify-privacy: what one unit really loses in a query, against what it claims."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamveil.commands.audit import REFUTED
from streamveil.commands.common import QueryFile, Tables, Wanted, print_whole, read_query
from streamveil.terminal import Terminal, say

if TYPE_CHECKING:
    from streamveil.audit.worst import WorstFound


def verify_privacy(
    query: QueryFile,
    seconds: Annotated[
        float, typer.Option(help="How long to look for a worse pair of inputs.", min=0.1)
    ] = 10.0,
    seed: Annotated[int, typer.Option(help="Another seed tries other inputs.")] = 1,
    table: Tables = None,
    name: Wanted = None,
) -> None:
    """Looks for the inputs on which the query loses most, and compares that with its claim.

    The query, with groups or a sketch, runs as it is compiled on made-up rows with and without one
    unit, which has far more rows than any bound counts, values far beyond every bound, and rows in
    many groups, windows and steps. The noise is laid open: what the unit moves in every counter,
    coin, test and cell is measured against the noise that is really drawn there. This is
    arithmetic, not statistics, so a bound off by one or a lane with too little noise shows at once.
    Reads no data and spends nothing.

    mu^2 is what a Gaussian mechanism loses; groups are those whose coins the unit moves; delta is
    the chance that something is published which only the unit has. 100 % of a claim means that it
    is as small as it can be. Exit code 6: a claim was passed.
    """
    from streamveil.audit.worst import WorstFound, require_laid_open, search
    from streamveil.compiler.compile import operator_of
    from streamveil.plan.combine import combined_plan

    operator = require_laid_open(operator_of(combined_plan(read_query(query, table, name).plan)))
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        console=Terminal(stderr=True), transient=True,
    )  # fmt: skip
    worst = WorstFound(operator)
    with bar:
        task = bar.add_task("compiling", total=seconds)
        for worst in search(operator, seconds, seed):
            done = f"{worst.pairs:,} pairs, at most {worst.tightness:.1%} of the claimed mu"
            bar.update(task, description=done, completed=min(worst.seconds, seconds))
    print_whole(shown(worst))
    say(f"{worst.pairs:,} pairs of inputs tried; the worst: {worst.words}")
    if worst.stands:
        say(f"the claim stands: all counters together lose {worst.tightness:.1%} of the claimed mu")
        return
    for fault in worst.broken:
        say(f"NOT COVERED: {fault}")
    say("the claim is refuted; please report this query")
    sys.exit(REFUTED)


def shown(worst: WorstFound) -> Table:
    """One line for each mechanism."""
    made = Table(title="the most that one unit was seen to lose")
    for place, column in enumerate(("mechanism", "in", "found", "claimed", "of the claim")):
        made.add_column(column, justify="left" if place < 2 else "right")
    for part in worst.parts.values():
        made.add_row(
            part.name, part.currency, f"{part.realised:.6g}", f"{part.claimed:.6g}",
            f"{part.tightness:.1%}",
        )  # fmt: skip
    return made
