"""`streamveil tune`: which settings give the least error, from a public sample or a paid survey."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa
from rich.table import Table

from streamveil.commands.common import (
    PATH,
    SHOWN_ROWS,
    at_least,
    checked_plans,
    print_whole,
    query_file,
    read_query,
    require_used,
    tables,
    wanted_query,
    writing,
)
from streamveil.errors import PlanError, SourceError, require_one_of
from streamveil.plan import Plan
from streamveil.plan.own_rows import OwnRows, own_rows
from streamveil.terminal import Terminal, say

if TYPE_CHECKING:
    from streamveil.core.accounting import Budget


public_sample = click.option("--sample", help="A PUBLIC sample: it is read without any noise.")
fraction_of_units = click.option(
    "--fraction", type=float, default=1.0, help="Share of the units that the sample holds."
)


@click.command(epilog="Example: streamveil what-if q.sql --units 500")
@query_file
@click.option(
    "--units", type=int, default=100, callback=at_least(1),
    help="People in the group that is forecast.",
)  # fmt: skip
@click.option("--epsilon", type=float, multiple=True, help="An epsilon to try; repeatable.")
@click.option("--max-rows", type=int, multiple=True, help="A bound to try; repeatable.")
@click.option(
    "--releases", type=int, multiple=True, help="A number of releases to try; repeatable."
)
@public_sample
@fraction_of_units
@click.option("--plot", type=PATH, help="Draw errors over settings into this .png, .svg or .pdf.")
@tables
@wanted_query
def what_if(
    query: Path, units: int, epsilon: tuple[float, ...], max_rows: tuple[int, ...],
    releases: tuple[int, ...], sample: str | None, fraction: float, plot: Path | None,
    table: tuple[str, ...], name: str | None,
) -> None:  # fmt: skip
    """Errors and odds under other settings, before anything is spent. Reads no private row."""
    from streamveil.advise.what_if import what_if as forecast_settings

    if sample is None:
        require_used(NO_SAMPLE, {"--fraction": fraction != 1})
    if plot is not None and plot.suffix not in PICTURES:
        raise PlanError(f"--plot must end in {', '.join(PICTURES)}, not '{plot.suffix}'")
    [plan] = checked_plans(read_query(query, table, name).plan)
    found = forecast_settings(
        plan, units=units, epsilons=epsilon or None, max_rows=max_rows or None,
        releases=releases or None, fraction=fraction,
        sample=None if sample is None else raw_rows_of(plan, sample),
    )  # fmt: skip
    shown = Table()
    for column in found.table.column_names:
        shown.add_column(column, justify="right", no_wrap=True)
    for row in found.table.to_pylist():
        cells = ("" if v is None else v if isinstance(v, str) else f"{v:,.4g}"
                 for v in row.values())  # fmt: skip
        shown.add_row(*cells)
    print_whole(shown)
    for note in found.notes:
        Terminal(soft_wrap=True).print(f"- {note}", markup=False)
    if plot is not None:
        with writing(plot):
            found.plot().savefig(plot)
        say(f"plot: {plot}")


PICTURES = (".png", ".svg", ".pdf")
BOUNDS = ("max rows", "per group", "squared")
EPSILON, DELTA = "0.1", "1e-10"  # of a survey
NO_SURVEY = (
    "is for a survey of --private, which is not given.\n"
    "  to fix  leave it out; what-if --epsilon compares budgets of the query"
)
NO_SAMPLE = "is for --sample, which is not given.\n  to fix  leave it out, or give a public sample"


@click.command(epilog="Example: streamveil tune q.sql --sample public.parquet")
@query_file
@public_sample
@fraction_of_units
@click.option(
    "--metric",
    default="l1",
    help="l1 (sum of errors), l2, linf (the largest) or keys (groups published).",
)
@click.option(
    "--target", type=float,
    help="Find the epsilon with this error: of --metric or, with --units, a share.",
)  # fmt: skip
@click.option(
    "--units", type=int,
    help="Without a sample: how many people are in the group that errs by --target.",
)  # fmt: skip
@click.option("--private", help="PRIVATE rows to survey with noise, paid by --epsilon.")
@click.option("--epsilon", default=EPSILON, help="What the survey may cost.")
@click.option("--delta", default=DELTA, help="The delta of the survey.")
@click.option("--ledger", help="The ledger that pays for the survey.")
@tables
@wanted_query
def tune(
    query: Path, sample: str | None, fraction: float, metric: str, target: float | None,
    units: int | None, private: str | None, epsilon: str, delta: str, ledger: str | None,
    table: tuple[str, ...], name: str | None,
) -> None:  # fmt: skip
    """Forecasts the error under several bounds, or finds the epsilon that an error takes."""
    from streamveil.advise.tune import METRICS
    from streamveil.core.accounting import Budget

    [plan] = checked_plans(read_query(query, table, name).plan)
    if private is not None and sample is not None:
        raise PlanError("--sample is public and --private is not: give one of them")
    if private is not None and (target is not None or units is not None):
        raise PlanError(
            "a survey of --private finds bounds and sizes, and no epsilon for an error.\n"
            "  to fix  leave --target and --units out, or leave --private out"
        )
    if plan.bounding.combine and (private or sample) is not None:
        raise PlanError(
            "tune finds bounds on rows, and contribution_bounds_per_group makes one of all rows of"
            " a unit in a group.\n  to fix  `streamveil what-if --sample` with --max-rows tries"
            " numbers of groups for max_groups_contributed, on a public sample"
        )
    require_one_of("--metric", metric, METRICS)
    if sample is None:
        require_used(NO_SAMPLE, {"--fraction": fraction != 1, "--metric": metric != "l1"})
    else:
        require_used("is for a forecast without --sample", {"--units": units})
    if private is None:
        of_survey = {"--ledger": ledger, "--epsilon": epsilon != EPSILON, "--delta": delta != DELTA}
        require_used(NO_SURVEY, of_survey)
    price = Budget(epsilon=epsilon, delta=delta)
    if private is not None:
        survey_rows(plan, rows_of(plan, private), price, ledger)
    elif sample is None:
        solve_without_rows(plan, target, units)
    else:
        from_sample(plan, rows_of(plan, sample), (fraction, metric), target)


# options of the source that also apply to its sample
SAME = (
    "format", "columns", "max_line_bytes", "delimiter", "allow_quoted_newlines", "folder_columns"
)  # fmt: skip


def rows_of(plan: Plan, path: str) -> pa.Table:
    """All rows of the files at a path, combined per unit if the query does that."""
    rows = raw_rows_of(plan, path)
    return own_rows(plan.source, rows) if isinstance(plan.source, OwnRows) else rows


def raw_rows_of(plan: Plan, path: str) -> pa.Table:
    """All rows of the files at a path, read as the query reads its own."""
    from streamveil.connectors import open_source

    given = plan.source.options if plan.source.kind == "files" else {}
    options = {key: value for key, value in given.items() if key in SAME}
    times = plan.source.event_time, plan.clock.arrival
    source: Any = open_source("files", {**options, "path": path}, *times)
    if getattr(source, "on_disk", False) and not source.files():
        raise SourceError(f"no file matches {path}.\n  to fix  check the path")
    chunks = [chunk.rows for chunk in source.read(None, 1_000_000)]
    return pa.concat_tables([source.schema().empty_table(), *chunks])


def from_sample(plan: Plan, rows: pa.Table, asked: tuple[float, str], target: float | None) -> None:
    """Forecasts on a public sample."""
    from streamveil.advise import tune as tuner

    fraction, metric = asked
    if target is not None:
        least, made = tuner.solve_epsilon(plan, rows, target, fraction=fraction, metric=metric)
        say(f"epsilon = {least:.4g} forecasts {metric} = {abs(made.cost(metric)):,.4g}")
        return
    print_tuning(tuner.tune(plan, rows, fraction=fraction, metric=metric))


def solve_without_rows(plan: Plan, target: float | None, units: int | None) -> None:
    """The epsilon for an error in groups of some size."""
    from streamveil.advise.tune import epsilon_for

    if target is None or units is None:
        raise PlanError("tune needs --sample, or --private, or --target with --units")
    least = epsilon_for(plan, units, target)
    say(f"epsilon = {least:.4g} forecasts an error of {target:.2%} at {units:,} units")


def survey_rows(plan: Plan, rows: pa.Table, budget: Budget, ledger: str | None) -> None:
    """Noisy histograms over units, and the settings they recommend."""
    from dataclasses import replace

    from streamveil.accounts.ledger import Ledger
    from streamveil.advise import short
    from streamveil.compiler.group_by import compile_plan
    from streamveil.core.noise import KeyedNoise
    from streamveil.kinds import SKETCHES
    from streamveil.plan import Bounding, TableSource
    from streamveil.plan.look import in_units, with_bounds
    from streamveil.plan.options import EXPECTED_ROWS
    from streamveil.runtime.look import shortly
    from streamveil.runtime.survey import survey

    sketched = any(one.function in SKETCHES for one in plan.aggregates)
    if sketched or isinstance(plan.source, TableSource) or plan.preset != "default":
        raise PlanError(
            "a survey finds what a forecast chooses bounds by, and none is chosen for a sketch, a"
            " changing table or the preset 'dp-sqlp'.\n"
            "  to fix  leave --private out, and give bounds by what is publicly known"
        )
    unbound = replace(plan, bounding=Bounding())
    expected = plan.options | {EXPECTED_ROWS.name: 1.0}
    compile_plan(in_units(replace(unbound, options=expected)))  # refuses before anything is paid
    paid = None if ledger is None else Ledger.load(ledger)
    learned, promise = survey(plan, rows, budget, KeyedNoise.fresh(), paid)
    say(promise.sentence(budget.delta or 0))
    say("charged to the ledger" if paid else "not charged to any ledger: add it yourself")
    for name, found in learned.numbers:
        ends = f"{shortly(found.low)} to {shortly(found.high)}"
        say(f"  {name} = {shortly(found.value)} (95%: {ends})")
    bounds = learned.ends | learned.bounds
    for text, (low, high) in bounds.items():
        say(f"  contribution_bounds_per_row of {text} => ({low:.4g}, {high:.4g})")
    if learned.cap is not None:
        say(f"  (rows of a unit beyond {learned.cap:g} are not in its average)")
    if not learned.sure:
        say(
            "the noise is too large to choose from: nothing is recommended.\n"
            "  to fix  a larger --epsilon, more rows, or expected_rows by what is publicly known"
        )
        return
    tried = with_bounds(replace(unbound, options=plan.options | learned.options), bounds)
    say("with these options and no bound, the forecast chooses")
    for default in compile_plan(tried).defaults:
        if "forecast" in default.reason:
            say(f"  {default.name} = {short(default.value)}")


def print_tuning(tuning: Any) -> None:
    """The forecasts, best first, and the recommendation."""
    shown = Table(title=f"forecast at the last release, least {tuning.metric} first")
    for column in (*BOUNDS, "rows kept", "groups published", "l1", "l2", "linf", "noise"):
        shown.add_column(column, justify="right", no_wrap=True)
    for one in tuning.forecasts[:SHOWN_ROWS]:
        bounds = (one.bounding.max_rows, one.bounding.max_rows_per_group, one.bounding.quadratic)
        first = ["" if b is None else f"{b:,}" for b in bounds]
        if not any(first):
            first[-1] = "forecast"
        shown.add_row(
            *first, f"{one.kept:.1%}", f"{one.keys:,.0f}",
            *(f"{v:,.4g}" for v in (one.l1, one.l2, one.linf, one.sd)),
        )  # fmt: skip
    print_whole(shown)
    Terminal(soft_wrap=True).print(f"The first line {tuning.reason}.")
