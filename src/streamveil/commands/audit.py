"""streamveil audit: bets against the noise, selection and bounding of a query."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from streamveil.commands.common import (
    PATH,
    checked_plans,
    print_whole,
    query_file,
    read_query,
    tables,
    wanted_query,
)
from streamveil.errors import PlanError
from streamveil.terminal import say

if TYPE_CHECKING:
    from streamveil.audit.residuals import NoiseTest
    from streamveil.plan import Plan

REFUTED = 6  # exit code: a claim is refuted
PRIVATE = (
    "do not publish this: groups that stay hidden are counted in it, and the stakes follow from the"
    " noise that hides rows"
)


@click.command(epilog="Example: streamveil audit pages.sql --plant")
@query_file
@click.option(
    "--alpha", type=float, default=1e-6, help="Chance that one of the bounds shown is wrong."
)
@click.option("--plant", is_flag=True, help="Halve the noise that runs: the audit must catch it.")
@click.option("--state", type=PATH, help="Test the noise that the job in this state holds.")
@tables
@wanted_query
def audit(
    query: Path, alpha: float, plant: bool, state: Path | None, table: tuple[str, ...],
    name: str | None,
) -> None:  # fmt: skip
    """Tests the noise, the selection and the bounding of a query, each against its own claim.

    The query is reduced to a few triggers and keys (same budget, bounding, aggregates, counter and
    selection; made-up rows) and run on many independent copies. Sequential tests bet that the noise
    of a lane is less than claimed, or that groups appear with other probabilities: they notice
    missing noise at any budget. Arithmetic tests the bounding. An audit finds mistakes; it is
    not a proof. Presets are not audited: `verify-privacy` accounts for them exactly.

    With --state the same tests run on the noise that a job at rest really drew and still holds,
    since its windows began, across all restarts and versions. Their output is for the operator
    alone: it follows from rows and from the noise that hides them.
    """
    from streamveil.audit import reduced, residuals
    from streamveil.audit.shown import shown_tests

    if not 0 < alpha < 1:
        raise PlanError(f"--alpha is a chance above 0 and below 1, not {alpha:g}")
    plan = read_query(query, table, name).plan
    if state is not None:
        audit_state(plan, state, alpha)
        return
    checked_plans(plan)
    change = reduced.halved if plant else (lambda operator: operator)
    if plan.preset != "default":
        raise PlanError(
            "presets are not audited by their noise.\n"
            "  to fix  streamveil verify-privacy QUERY, the exact account of what they lose"
        )
    tests = list(residuals.noise_tests(plan, alpha / 2, change))
    tests += shown_tests(plan, alpha / 2, change)
    print_lanes(tests)
    end(refuted=any(not test.stands for test in tests), plant=plant)


def audit_state(plan: Plan, state: Path, alpha: float) -> None:
    """Tests the noise that a job at rest holds."""
    from streamveil.audit.residuals import running_tests
    from streamveil.dataflow.group_by import GroupBy
    from streamveil.runtime.fork import kept_of
    from streamveil.runtime.job import Job
    from streamveil.runtime.look import remembered
    from streamveil.runtime.run import engine_for, work_of

    kept = kept_of(plan, state)
    work = work_of(remembered(kept.plan, state), engine_for(None, state), clock=kept.clock)
    work = replace(work, feed=lambda _: iter(()))
    with Job(state, work) as job:  # nothing is read or released
        operator, held = work.operator, job.held
    if not isinstance(operator, GroupBy) or operator.aggregation.restarts:
        raise PlanError("only jobs with groups, of the default preset, hold noise that is tested")
    tests = list(running_tests(operator, held, alpha))
    print_lanes(tests)
    say(PRIVATE)
    if not any(test.is_tested for test in tests):
        say("no noise to test: no window is open, or all groups have weights")
        return
    end(refuted=any(not test.stands for test in tests), plant=False)


def print_lanes(tests: list[NoiseTest]) -> None:
    """Prints the bets against each claim, and their results."""
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
    """Says how the audit ended; exits with `REFUTED` if it should have ended otherwise."""
    say(
        "the claim is refuted" + (", as it must be: half of the noise was taken away" if plant
                                  else "; please report this query")
        if refuted
        else "the claim stands"
        + (", although half of the noise was taken away" if plant else "")
    )  # fmt: skip
    if refuted != plant:
        sys.exit(REFUTED)
