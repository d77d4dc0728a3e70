"""streamveil verify-privacy: what one unit really loses in a query, against what it claims."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamveil.commands.audit import REFUTED
from streamveil.commands.common import (
    PATH,
    argument,
    at_least,
    checked_plans,
    open_ledger,
    print_whole,
    query_file,
    read_script,
    tables,
    wanted_query,
)
from streamveil.terminal import Terminal, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streamveil.audit.worst import Tried, WorstFound
    from streamveil.core.noise import Noise
    from streamveil.plan import Plan


@click.command(epilog="Example: streamveil verify-privacy pages.sql --seconds 60")
@query_file
@click.option(
    "--seconds", type=float, default=10.0, callback=at_least(0.1),
    help="How long to look for a worse pair of inputs.",
)  # fmt: skip
@click.option(
    "--seed", type=int, default=1, callback=at_least(0), help="Another seed tries other inputs."
)
@tables
@wanted_query
def verify_privacy(
    query: Path, seconds: float, seed: int, table: tuple[str, ...], name: str | None
) -> None:
    """Looks for the inputs on which the query loses most, and compares that with its claim.

    The query runs as it is compiled on made-up rows with and without one unit, which has far more
    rows than any bound counts, values far beyond every bound, and rows in many groups, windows and
    steps; a look at the rows runs as well, and a changing table on made-up changes, with questions
    after each step. The noise is laid open: what the unit moves in every counter, coin, test, cell,
    measurement and comparison is compared with the noise that is really drawn there. This is
    arithmetic, not statistics, so a bound off by one or a lane with too little noise shows at once.
    Reads no data and spends nothing. At the end it says what it does not cover.

    QUERY may also be a ledger, or the state directory of a job. Then the joint loss of its charges
    is computed anew, each as a mechanism that loses the whole charge, and compared with the limit.

    mu^2 is the loss of a Gaussian mechanism; epsilon and rho are those of a table; groups are those
    whose coins the unit moves; delta is the chance of publishing something that only the unit has.
    100% of a claim means that the claim cannot be smaller. Exit code 6: a loss exceeds its claim.
    """
    if is_ledger(query):
        account_of_ledger(query)
        return
    parts = checked_plans(read_script(query, table).named(name).plan)
    titles = [f"{part.name}: " if len(parts) > 1 else "" for part in parts]
    found = [
        verified(part, seconds / len(parts), seed, title)
        for part, title in zip(parts, titles, strict=True)
    ]
    if not all(found):
        say("the claim is refuted; please report this query")
        sys.exit(REFUTED)


def verified(plan: Plan, seconds: float, seed: int, title: str) -> bool:
    """Searches for the worst inputs of one private answer, and tells whether its claim stands."""
    from streamveil.audit.worst import WorstFound, watched
    from streamveil.plan.look import with_look

    plan = with_look(plan)
    rooms, worst = [*rooms_of(plan, seed)], WorstFound()
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
        console=Terminal(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task("compiling", total=seconds)
        for tries in rooms:
            for _ in watched(tries, worst, seconds / len(rooms)):
                bar.update(task, description=so_far(worst), completed=min(worst.seconds, seconds))
    print_whole(shown(worst, title))
    whose = "" if worst.pair is None else f"; the worst: {worst.words}"
    say(f"{title}{worst.pairs:,} pairs of inputs tried{whose}")
    for words in uncovered(plan):
        say(f"not in this search: {words}")
    if worst.stands:
        say(f"{title}the claim stands: {in_all(worst)}")
    for fault in worst.broken:
        say(f"NOT COVERED: {fault}")
    return worst.stands


def is_ledger(path: Path) -> bool:
    """Whether a path is a state directory or the file of a ledger, rather than a query."""
    if path.is_dir() or not path.is_file():
        return path.is_dir()
    with path.open("rb") as file:
        return b'"ledger"' in file.readline(4096)


def account_of_ledger(path: Path) -> None:
    """Says whether the charges of a ledger keep its limit, and what it converts to."""
    from streamveil.audit.ledger_account import SLACK, judged, unjudged

    with open_ledger(str(path)) as ledger:
        found, less = [*judged(ledger)], unjudged(ledger)
        charges = len(ledger.entries())
    for rule, part in found:
        say(f"{rule}: {part:.1%} of the claimed delta is used (charges: {charges:,})")
    if less:
        say(
            f"counted as nothing here: coins and looks (charges: {len(less):,}); no attack is known"
            " that uses up all that is claimed for them"
        )
    if all(part <= SLACK for _, part in found):
        say("the limit stands")
        return
    say("the limit is refuted; please report this ledger's charges")
    sys.exit(REFUTED)


def in_all(worst: WorstFound) -> str:
    """The largest loss, in a line."""
    if worst.tightness:
        return f"all counters together lose {worst.tightness:.1%} of the claimed mu"
    parts = sorted(worst.parts.values(), key=lambda part: part.tightness)
    return "; ".join(
        f"{part.name} loses {part.tightness:.1%} of the claimed {part.currency}" for part in parts
    )


def so_far(worst: WorstFound) -> str:
    """The findings of a search so far, in a line."""
    most = max((part.tightness for part in worst.parts.values()), default=0.0)
    return f"{worst.pairs:,} pairs, at most {most:.1%} of a claim"


def rooms_of(plan: Plan, seed: int) -> Iterator[Iterator[Tried]]:
    """Searches of all parts of a query: its look and its operator."""
    from streamveil.audit.laid_open_look import look_accounts
    from streamveil.audit.laid_open_tables import table_accounts
    from streamveil.audit.worst import AGAIN, MOST_PAIRS, Tried, accounts, require_laid_open
    from streamveil.compiler import operator_of
    from streamveil.expressions import columns_of
    from streamveil.plan import Clock, TableSource, combined_plan
    from streamveil.plan.look import divided, first_alone, look_share, told
    from streamveil.runtime.look import periods_seen, rows_of
    from streamveil.runtime.survey import survey

    if isinstance(plan.source, TableSource):
        texts = [one.expression for one in plan.aggregates if one.function == "count_distinct"]
        counted = [name for text in texts for name in columns_of(text or "")]
        found = table_accounts(operator_of(plan), plan.source, seed, counted)
        yield (Tried(None, one) for one in found)
        return
    if look_share(plan):
        live = first_alone(plan)  # made-up rows are those of the first release
        within = periods_seen(plan)

        def look(made: Plan, noise: Noise) -> Any:
            once = replace(made, clock=Clock(kind="once"))
            rows = rows_of(once) if live else partial(rows_of, made)
            return survey(made, rows, divided(made).looking, noise, within=within)

        looked = look_accounts(plan, look, seed)
        yield (Tried(None, one) for one in looked)
        plan = told(plan, {}, [])
    operator = require_laid_open(operator_of(combined_plan(plan)))
    yield accounts(operator, seed, MOST_PAIRS, again=AGAIN)


def uncovered(plan: Plan) -> Iterator[str]:
    """The parts that the search does not cover, each with the reason."""
    from streamveil.plan import TableSource
    from streamveil.plan.look import look_share
    from streamveil.plan.own_rows import OwnRows

    if isinstance(plan.source, TableSource):
        yield "ids of text, and the source: changes are made up from the domains of the columns"
    elif isinstance(plan.source, OwnRows):
        yield "expressions, subqueries, joins, UNNEST and the source: rows are made up behind them"
    else:
        yield "expressions, conditions and the source: rows are made up behind them"
    if look_share(plan):
        yield (
            "settings for other things that the look may say: each is refused where it loses more"
            " than was set aside for all of them"
        )
    yield "noise whose law is not what its scale says: `streamveil audit` tests it"


def shown(worst: WorstFound, title: str) -> Table:
    """One line for each mechanism."""
    made = Table(title=f"{title}the most that one unit was seen to lose")
    for place, column in enumerate(("mechanism", "in", "found", "claimed", "of the claim")):
        made.add_column(column, justify="left" if place < 2 else "right")
    for part in worst.parts.values():
        made.add_row(
            part.name, part.currency, f"{part.realised:.6g}", f"{part.claimed:.6g}",
            f"{part.tightness:.1%}",
        )  # fmt: skip
    return made


# ---- streamveil verify

DAMAGED = 4  # exit code


@click.command(epilog="Example: streamveil verify pages.veil")
@argument("state", "State directory of a job that is not running.", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def verify(state: Path, as_json: bool) -> None:
    """Reads everything in a state directory and says what is whole and what is damaged.

    Identity, secret, ledger, checkpoint, log, every release and every rejected row, each against
    its checksum and against what must agree with it. Changes nothing. Exit code 4: something is
    damaged, and a backup of one moment is needed.
    """
    from streamveil.runtime.store import states_in
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
        sys.exit(DAMAGED)
