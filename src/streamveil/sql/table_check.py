"""Validates queries over changing tables: what they may say, and what they must say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from streamveil.errors import PlanError, nearest
from streamveil.expressions.dialect import shown
from streamveil.expressions.kernels import INT_MAX, INT_MIN
from streamveil.plan import Aggregate, Bounding, KeySet, Plan, TableSource, Window, options
from streamveil.plan.check import (
    TABLE_ONLY,
    check_clock,
    check_delta,
    check_ends,
    check_horizon,
    check_names,
    check_options,
)

MOST_CELLS = 1 << 22
MOST_POINTS = 1 << 20  # of the product of all domains
LEAST_TO_ASK = 1e-12  # epsilon or rho of all questions
FORM = "write CHECK (city IN ('a', 'b')) or CHECK (age BETWEEN 0 AND 99)"
Domain = tuple[str, tuple[Any, ...]]


def check_table(plan: Plan) -> None:
    """Raises PlanError with the first thing that is wrong."""
    source = plan.source
    assert isinstance(source, TableSource)  # noqa: S101  (the caller looked)
    rules = (
        check_ends(plan), check_delta(plan),
        check_domains(source.domains), check_names(plan), _shape(plan),
        _aggregates(plan), _unit(plan, source), check_options(plan), _options(plan),
        check_clock(plan), check_horizon(plan),
    )  # fmt: skip
    for rule in rules:
        for complaint in rule:
            raise complaint if isinstance(complaint, PlanError) else PlanError(complaint)


def check_domains(domains: Sequence[Domain]) -> Iterator[str]:
    """The complaints about the domains of a table."""
    if not domains:
        yield (
            "a changing table needs columns with public values: they are the points that queries "
            f"count.\n  to fix  {FORM}"
        )
    for column, values in domains:
        kinds = {type(value) for value in values}
        if not kinds <= {int, str, bool, float}:
            yield f"the values of '{shown(column)}' must be texts, numbers or TRUE and FALSE"
        elif not values or len(set(values)) != len(values) or len(kinds) != 1:
            yield f"'{shown(column)}' needs different values of one type: {FORM}"
        elif kinds == {int} and not all(INT_MIN <= value <= INT_MAX for value in values):
            yield f"the values of '{shown(column)}' must be INT64: {FORM}"
    points = prod(max(len(values), 1) for _, values in domains)
    if points > MOST_POINTS:
        yield (
            f"the domains have {points:,} points together, more than {MOST_POINTS:,}.\n"
            "  to fix  declare the columns you ask about only, and coarser values"
        )


def _shape(plan: Plan) -> Iterator[str]:
    if plan.window != Window():
        yield "a changing table has no windows: its answers are about the records there now"
    if plan.bounding != Bounding() or plan.key_set != KeySet() or plan.periods is not None:
        yield (
            "bounds, discovered or listed groups and periods belong to streams of events; a "
            "changing table protects one record and its groups are public"
        )
    sizes = dict(plan.source.domains) if isinstance(plan.source, TableSource) else {}
    cells = sum(prod(len(sizes[name]) for name in names) for names in plan.sets)
    if cells * len(plan.aggregates) > MOST_CELLS:
        yield f"the query has {cells:,} groups, more than {MOST_CELLS:,}"
    if plan.counter != "auto":
        yield "counter belongs to streams of events; a changing table takes mechanism = 'counter'"


def _aggregates(plan: Plan) -> Iterator[str]:
    distinct = any(one.function == "count_distinct" for one in plan.aggregates)
    grows = isinstance(plan.source, TableSource) and plan.source.changelog == "insert"
    if options.MAX_CHANGES.name in plan.options and (grows or not distinct):
        yield "max_changes belongs to COUNT(DISTINCT x) of a table that deletes: leave it out"
    for one in plan.aggregates:
        if one.function == "count_distinct":
            yield from _distinct(plan, one)
        elif one.function != "count" or one.low is not None:
            yield (
                f"'{shown(one.name)}': a changing table answers COUNT(*), COUNT(x), "
                "COUNTIF(condition) and COUNT(DISTINCT x).\n"
                "  to fix  count in classes of the value: COUNTIF(age BETWEEN 20 AND 29)"
            )


def _distinct(plan: Plan, one: Aggregate) -> Iterator[str]:
    """The complaints about COUNT(DISTINCT x): what bounds how often one record moves it."""
    name, text = shown(one.name), shown(one.expression or "x")
    alone = f"SELECT ... COUNT(DISTINCT {text}) AS {name}"
    source = plan.source
    assert isinstance(source, TableSource)  # noqa: S101  (the caller looked)
    deletes = source.changelog == "insert-delete"
    if len(plan.aggregates) > 1:
        yield (
            f"'{name}': different values are counted by a statement of their own, which has a "
            f"budget of its own.\n  to fix  {alone} in one statement, the other columns in a second"
        )
    elif options.ASK_SHARE.of(plan.options):
        yield (
            "questions are about records, and so of a statement that counts them.\n"
            "  to fix  ask_share and COUNT(*) in a statement of its own"
        )
    elif source.record is None:
        yield f"'{name}': different values are those of records with an id.\n  to fix  id = column"
    elif deletes and plan.clock.kind != "once" and not options.MAX_CHANGES.given_in(plan.options):
        yield (
            f"'{name}': how often may a value come or go? max_changes has no default.\n"
            "  why     a record moves this number again whenever the others of its value come or go"
            "\n  to fix  max_changes = 4; a value that comes or goes more often counts as it was "
            "then.\n          Or count values whose noisy count stands out: COUNT(*) over"
            f" (SELECT ... {text}, COUNT(*) AS n ... GROUP BY {text}) WHERE n > 20"
        )


def _unit(plan: Plan, source: TableSource) -> Iterator[str]:
    record = source.record
    if plan.unit not in ("", record, f"`{record}`"):
        yield (
            f"a changing table protects one record ({record or 'a row'}), not "
            f"'{shown(plan.unit)}'.\n"
            "  why     nothing bounds how many records one of them has\n"
            "  to fix  leave privacy_unit_column out; if a person has at most k records, divide "
            "epsilon by k (without a delta), or rho by k * k"
        )


def _options(plan: Plan) -> Iterator[str]:
    given = plan.options
    for name in given:
        if name not in options.of_query(options.TABLE) | {"horizon"}:
            yield f"option '{name}' does not apply to a changing table{nearest(name, TABLE_ONLY)}"
    if not options.EXPECTED_SIZE.given_in(given):
        yield (
            "how many records (or different values, where those are counted) will there be, "
            "about? expected_size has no default.\n"
            "  why     it chooses the mechanism and forecasts the error; it is public and need not "
            "be exact\n"
            "  to fix  expected_size = 20000"
        )
    yield from _questions(plan)
    if plan.preset not in ("default", "theorem"):
        yield f"unknown preset of a table{nearest(str(plan.preset)[:30], ['default', 'theorem'])}"


def _questions(plan: Plan) -> Iterator[str]:
    """The complaints about the part of the budget for questions."""
    share = options.ASK_SHARE.of(plan.options)
    if share and not any(one.expression is None for one in plan.aggregates):
        yield "questions need the number of records: add COUNT(*) AS n to the SELECT list"
    elif share and plan.budget.mu is not None:
        yield "ask_share needs a budget in epsilon or rho: questions are not Gaussian noise"
    elif 0 < share * (plan.budget.epsilon or plan.budget.rho or 1) < LEAST_TO_ASK:
        yield (
            f"ask_share = {share:g} of {plan.budget} leaves nothing to answer questions with.\n"
            "  to fix  a larger share, or none"
        )
