"""streamveil ledger: what was spent, by what, and what it means."""

from __future__ import annotations

import json
import sys

import click
from rich.table import Table

from streamveil.commands.common import (
    Commands,
    argument,
    at_least,
    ledger_place,
    open_ledger,
    print_whole,
)
from streamveil.errors import PlanError, StoreError
from streamveil.terminal import Terminal, label, say

LITTLE_LEFT = 7  # exit code
DIVIDED = "the first charge divided the limit among kinds of loss, so spent and left do not add up"
ADDED = "selection tables count by their own epsilon, so spent and left do not add up"

head_noted = click.option("--head", help="A hash noted earlier: checks that nothing was cut off.")


@click.group("ledger", cls=Commands, epilog="Example: streamveil ledger show pages.veil")
def app() -> None:
    """What was spent, by what, and what it means."""


@app.command("create", epilog="Example: streamveil ledger create clicks.ledger --unit user_id "
             "--per '1 day' --epsilon 8 --delta 1e-7")  # fmt: skip
@argument("place", "A new file, or postgresql://user@host/database#name.")
@click.option("--unit", required=True, help="The privacy unit, as the queries name it.")
@click.option("--epsilon", help="The limit, with --delta.")
@click.option("--delta", help="With --epsilon: a chance far below 1 / number of units.")
@click.option("--rho", help="The limit as zCDP instead of epsilon.")
@click.option(
    "--per",
    help="The period of a unit, such as '1 day'; default: all of its time. Weeks begin on Mondays,"
    " 7 days do not.",
)
def create(
    place: str, unit: str, epsilon: str | None, delta: str | None, rho: str | None, per: str | None
) -> None:
    """A ledger whose limit several jobs over the same data share.

    Give it to each job with `streamveil run … --ledger FILE`. A job that would exceed the limit
    is refused before it reads anything. Jobs on several hosts share a ledger of a database.
    """
    from streamveil.accounts.ledger import Ledger, journal_at
    from streamveil.calendars import Cells
    from streamveil.core.accounting import Budget
    from streamveil.dataflow.windows import protected
    from streamveil.sql.parts import length_of, origin_us

    journal = journal_at(place)
    if journal.exists():
        raise StoreError(
            f"the ledger '{journal.name}' exists already; a limit is never changed.\n"
            "  to fix  name a new one for other people; over the same people, both limits add up"
        )
    length = None if per is None else length_of(per, "--per")
    periods = length and Cells(
        length_us=length.us, months=length.months, origin_us=origin_us(length)
    )
    limit = Budget(epsilon=epsilon, delta=delta, rho=rho)
    if not unit.strip():
        raise PlanError("--unit is empty; name the privacy unit as the queries do")
    with Ledger.open(place, limit, protected(unit, periods)) as ledger:
        say(f"limit {ledger.limit}, {ledger.protects.phrase}: {place}")


@app.command("show", epilog="Example: streamveil ledger show pages.veil")
@ledger_place
def show(place: str) -> None:
    """Every charge, what is spent and what is left."""
    from streamveil.accounts.deployment import measured
    from streamveil.core.accounting.guarantee import rounded_up

    with open_ledger(place) as ledger:
        table = Table(title=label(f"limit {ledger.limit}, {ledger.protects.phrase}"))
        for column in ("charge", "loss", "range"):
            table.add_column(column)
        for entry in ledger.entries():
            table.add_row(label(entry.name), label(str(entry.loss)), "all" if entry.range is None
                          else f"periods {entry.range[0]} to {entry.range[1] - 1}")  # fmt: skip
        console = Terminal(soft_wrap=True)
        print_whole(table)
        delta = ledger.limit.quoted_delta
        spent = rounded_up(ledger.spent().epsilon(delta))
        console.print(f"spent: epsilon = {spent} at delta = {float(delta):g}")
        measure, left = measured(ledger)
        console.print(f"left:  {measure} = {left:.4g} (as a loss: {ledger.left()})")
        if measure == "epsilon" and ledger.caps is not None and not ledger.caps.pure:
            console.print(DIVIDED)
        elif sum(bool(entry.loss.tables) for entry in ledger.entries()) > 1:
            console.print(ADDED)


@app.command("check", epilog="Example: streamveil ledger check clicks.ledger --warn-below 0.5")
@ledger_place
@click.option(
    "--warn-below", type=float, required=True, callback=at_least(0),
    help="Warn when less is left, in the measure of the limit.",
)  # fmt: skip
@head_noted
def check(place: str, warn_below: float, head: str | None) -> None:
    """For cron: whether the ledger is whole, and whether enough of its limit is left.

    What is left is what a charge for all rows could still take, as epsilon at the limit's delta,
    rho or mu. Exit code 7: less than that is left. Exit code 4: the ledger is not whole. Exit code
    5: its database cannot be reached.
    """
    from streamveil.accounts.deployment import measured

    with open_ledger(place) as ledger:
        hash_of_all = ledger.verify(head)
        measure, left = measured(ledger)
        say(f"left: {measure} = {left:.4g} of {ledger.limit}, hash {hash_of_all}")
        if left < warn_below:
            say(f"less than {warn_below:g} is left in the ledger '{ledger.name}'", err=True)
            sys.exit(LITTLE_LEFT)


@app.command("verify", epilog="Example: streamveil ledger verify pages.veil --head 3f2a…")
@ledger_place
@head_noted
def verify(place: str, head: str | None) -> None:
    """Reads the whole file again and checks every record; prints the hash that vouches for it.

    Note the hash somewhere else: given as --head later, it shows that no record was cut off.
    """
    with open_ledger(place) as ledger:
        say(ledger.verify(head))
        say("every record is whole; the hash above vouches for all of them", err=True)


@app.command("convert", epilog="Example: streamveil ledger convert pages.veil --to user-year")
@ledger_place
@click.option("--to", default="user-year", help="user-week, user-month or user-year.")
def convert(place: str, to: str) -> None:
    """What one unit may lose in a longer time, from what was charged per unit-period."""
    with open_ledger(place) as ledger:
        guarantee = ledger.convert(to)
        _, delta = guarantee.quoted(ledger.limit.quoted_delta)
        say(guarantee.sentence(delta))


@app.command("export", epilog="Example: streamveil ledger export pages.veil > deployment.json")
@ledger_place
def export(place: str) -> None:
    """The deployment as a JSON record for registries and audits (see docs/ledger.md)."""
    from streamveil.accounts.deployment import record

    with open_ledger(place) as ledger:
        say(json.dumps(record(ledger), indent=2, allow_nan=False))


@app.command("register", epilog="Example: docs/ledger.md")
@ledger_place
@click.option("--name", required=True, help="Name of the data product.")
@click.option("--about", required=True, help="What is published, in a sentence or two.")
@click.option("--use", required=True, help="What it is for.")
@click.option(
    "--curator", multiple=True, required=True, help="Who publishes it; may be given again."
)
@click.option("--region", required=True, help="Which region the data are about.")
@click.option("--published", required=True, help="Day of the first publication, YYYY-MM-DD.")
@click.option(
    "--author", multiple=True, required=True, help="Who writes this entry; may be given again."
)
@click.option("--sector", default="Technology", help="Sector of the data.")
@click.option("--sources", default="", help="Links: a paper, the data, the code.")
def register(
    place: str, name: str, about: str, use: str, curator: tuple[str, ...], region: str,
    published: str, author: tuple[str, ...], sector: str, sources: str,
) -> None:  # fmt: skip
    """A draft of tier 3 for OpenDP's public registry of deployments, as JSON, which is YAML too.

    The unit, the budget, mechanisms, bounds and versions are those of the ledger; the options say
    what it cannot know. Read it before you send it: it says what was asked, in full.
    """
    from streamveil.accounts.registry import Publisher, entry

    told = Publisher(
        name=name, description=about, intended_use=use, curators=curator, region=region,
        published=published, authors=author, sector=sector, sources=sources,
    )  # fmt: skip
    with open_ledger(place) as ledger:
        say(json.dumps(entry(ledger, told), indent=2, allow_nan=False))
