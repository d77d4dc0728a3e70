"""streamveil audit: attacks a query the way its own tests do, and shows what that proves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamveil.commands.common import QueryFile, Tables, Wanted, print_whole, read_query
from streamveil.errors import PlanError
from streamveil.terminal import Terminal, say

if TYPE_CHECKING:
    from streamveil.audit.residuals import NoiseTest
    from streamveil.plan.plan import Plan

REFUTED = 6  # exit code: the claim does not stand


def audit(
    query: QueryFile,
    trials: Annotated[
        int, typer.Option(help="Copies of each scenario; more prove more.", min=1)
    ] = 10_000,
    alpha: Annotated[float, typer.Option(help="Chance that a bound shown is wrong.")] = 1e-6,
    plant: Annotated[
        bool, typer.Option("--plant", help="Halve the noise that runs: the audit must catch it.")
    ] = False,
    state: Annotated[
        Path | None, typer.Option(help="Test the noise that the job in this state holds instead.")
    ] = None,
    table: Tables = None,
    name: Wanted = None,
) -> None:
    """Attacks the query: can anyone who reads all releases tell whether one unit was there?

    The query is reduced to a few triggers and keys (same budget, bounding, aggregates, counter and
    selection; made-up data) and run thousands of times with and without one unit that tries to
    show. A learned test tells the two apart as well as it can; from how often it is right follows,
    by Clopper and Pearson, a lower bound on epsilon. It must stay below what the query claims.
    An audit finds mistakes; it is no proof. Where the claim is one epsilon at a tiny delta, as for
    groups found by the table of coins, an attack of this size stays far below it.
    Before that the noise of every lane, the chances with which groups are shown, and bounding are
    tested by themselves, each against its own claim: sequential tests, which see at any budget that
    noise is missing, and then end the audit. Presets are attacked as a whole alone.
    With --state nothing is attacked: the same test is made of the noise that a job at rest really
    drew and still holds, since its windows began, across all restarts and versions.
    """
    from streamveil.audit import reduced, residuals
    from streamveil.audit.shown import shown_tests

    if not 0 < alpha < 1:
        raise PlanError(f"--alpha is a chance above 0 and below 1, not {alpha:g}")
    plan = read_query(query, table, name).plan
    if state is not None:
        audit_state(plan, state, alpha)
        return
    change = reduced.halved if plant else (lambda operator: operator)
    tests = residuals.noise_tests(plan, alpha / 2, change)
    tests += shown_tests(plan, alpha / 2, change)
    print_lanes(tests)
    if any(not test.stands for test in tests):
        end(refuted=True, plant=plant)
        return
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Terminal(stderr=True), transient=True,
    )  # fmt: skip
    found = []
    with bar:
        scenes = 4 if reduced.extremes(plan)[1] is None else 5
        task = bar.add_task("compiling", total=scenes * len(reduced.RUNS))
        for verdict in reduced.attacks(
            plan, trials, alpha, change, lambda text: bar.update(task, description=text)
        ):
            found.append(verdict)
            bar.advance(task)
    refuted = any(not verdict.stands for verdict in found)
    shown = Table(title=f"lower bounds on epsilon, {trials:,} trials a side")
    for column in ("the added unit has", "run", "at delta", "proven at least", "claimed", ""):
        shown.add_column(column, justify="right" if column in ("at delta", "proven at least",
                                                               "claimed") else "left")  # fmt: skip
    for one in found:
        shown.add_row(
            one.scenario, one.run, f"{one.delta:g}", f"{one.proven:.3f}", f"{one.claimed:.3f}",
            "stands" if one.stands else "REFUTED",
        )  # fmt: skip
    print_whole(shown)
    end(refuted=refuted, plant=plant)


def audit_state(plan: Plan, state: Path, alpha: float) -> None:
    """The noise that a job at rest holds."""
    from streamveil.audit.residuals import running_tests
    from streamveil.dataflow.group_by import GroupBy
    from streamveil.runtime.at_rest import at_rest

    operator, held = at_rest(plan, state)
    if not isinstance(operator, GroupBy) or operator.aggregation.restarts:
        raise PlanError("only jobs with groups, of the default preset, hold noise that is tested")
    tests = list(running_tests(operator, held, alpha))
    print_lanes(tests)
    if not any(test.is_tested for test in tests):
        say("no noise to test: no window is open, or all groups have weights")
        return
    end(refuted=any(not test.stands for test in tests), plant=False)


def print_lanes(tests: list[NoiseTest]) -> None:
    """What was bet against what is claimed, and won."""
    shown = Table(title="noise of the lanes, selection and bounding, each against its claim")
    for column in ("lane", "groups", "stake grew to at most", ""):
        shown.add_column(column, justify="left" if column in ("lane", "") else "right")
    for one in tests:
        after = "" if one.stands else f" after {one.refuted_after} groups"
        shown.add_row(
            one.lane, str(one.groups), "" if one.lane == "bounding" else f"e^{one.growth:.1f}",
            ("stands" if one.stands else "REFUTED" + after) if one.is_tested
            else "not tested: as coarse as its lattice, or too large",
        )  # fmt: skip
    if tests:
        print_whole(shown)


def end(*, refuted: bool, plant: bool) -> None:
    """Says how it ended; exits with `REFUTED` where that is not what should be."""
    say(
        "the claim is refuted" + (", as it must be: half of the noise was taken away" if plant
                                  else "; please report this query")
        if refuted
        else "the claim stands"
        + (", although half of the noise was taken away: more --trials see more" if plant else "")
    )  # fmt: skip
    if refuted != plant:
        sys.exit(REFUTED)
