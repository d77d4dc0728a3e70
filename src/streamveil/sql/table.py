"""Changing tables in SQL: CREATE TABLE ... WITH (changelog = ...), GROUPING SETS, questions.

The public domain of a column is a CHECK constraint: values listed, or a range of whole numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from streamveil.errors import PlanError, nearest, require_between, require_text, whole
from streamveil.expressions import compile_expression, compile_predicate
from streamveil.expressions.dialect import canonical, shown
from streamveil.plan import Changelog, Plan, SourceSpec, TableSource
from streamveil.sql.options import CHANGES, constant
from streamveil.sql.table_check import FORM, MOST_POINTS, Domain
from streamveil.types import Array, Bool

CHANGELOGS: tuple[Changelog, ...] = ("insert", "insert-delete")


def table_source(
    name: str, source: SourceSpec, values: Mapping[str, Any], domains: Sequence[Domain]
) -> TableSource:
    """A changing table over the rows of a source, from its settings (by the names of SQL)."""
    for word in values:
        if word not in CHANGES:
            raise PlanError(f"unknown setting '{shown(word)}' of a table{nearest(word, CHANGES)}")
    changelog = values.get("changelog")
    if changelog not in CHANGELOGS:
        word = shown(str(changelog))
        raise PlanError(f"unknown changelog '{word}'{nearest(word, CHANGELOGS)}")
    operation, record = values.get("operation"), values.get("id")
    given = {"operation": operation, "id": record}
    require_text(**{name: one for name, one in given.items() if one is not None})
    if changelog == "insert-delete" and not (operation and record):
        raise PlanError(
            "rows that delete must say so, and which record they mean.\n"
            "  to fix  operation = op (a column with '+' or '-', 'I' or 'D', Debezium's 'c', 'u' "
            "or 'd') and id = column"
        )
    if changelog == "insert" and operation:
        raise PlanError("changelog = 'insert' has no operation column: every row inserts")
    lives = whole("lives", values.get("lives", 1))
    require_between(1, 10**6, lives=lives)
    if lives > 1 and not record:
        raise PlanError("lives belongs to records with an id")
    return TableSource(
        name=name, kind=source.kind, options=source.options, event_time=source.event_time,
        changelog=changelog, domains=tuple(domains), operation=operation, record=record,
        lives=lives,
    )  # fmt: skip


def domain_of(column: str, check: exp.Expr) -> Domain:
    """The public values of a column, from its CHECK."""
    tree = check.this if isinstance(check, exp.Paren) else check
    named = tree.this if isinstance(tree, exp.In | exp.Between) else None
    parts = named.parts if isinstance(named, exp.Column) else ()
    if ".".join(part.name for part in parts).lower() != column.lower():
        raise PlanError(f"CHECK of '{shown(column)}' says nothing about its values: {FORM}")
    what = f"CHECK of '{shown(column)}'"
    if isinstance(tree, exp.In):
        return column, tuple(constant(part, what) for part in tree.expressions)
    low, high = (constant(tree.args[end], what) for end in ("low", "high"))
    if not (type(low) is int and type(high) is int and low <= high):
        raise PlanError(f"{what}: BETWEEN takes two whole numbers, the lower one first")
    if high - low >= MOST_POINTS:
        raise PlanError(f"{what} allows more than {MOST_POINTS:,} values; use a coarser column")
    return column, tuple(range(low, high + 1))


def grouping_sets(items: Sequence[exp.Expr], known: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """GROUP BY a, CUBE(b, c), GROUPING SETS (...): all sets of columns, each in table order."""
    factors = [_alternatives(item, known) for item in items]
    found: dict[tuple[str, ...], None] = {}
    for chosen in itertools.product(*factors):
        names = {name for part in chosen for name in part}
        found[tuple(name for name in known if name in names)] = None
    return tuple(found)


def _alternatives(item: exp.Expr, known: Sequence[str]) -> list[list[str]]:
    if isinstance(item, exp.GroupingSets):
        return [one for part in item.expressions for one in _alternatives(part, known)]
    parts = [_columns(part, known) for part in item.expressions]
    if isinstance(item, exp.Cube):
        sizes = range(len(parts), -1, -1)
        chosen = [some for size in sizes for some in itertools.combinations(parts, size)]
    elif isinstance(item, exp.Rollup):
        chosen = [tuple(parts[:size]) for size in range(len(parts), -1, -1)]
    else:
        return [_columns(item, known)]
    return [[name for part in some for name in part] for some in chosen]


def _columns(item: exp.Expr, known: Sequence[str]) -> list[str]:
    """The columns of one element: a, (a, b) or ()."""
    if isinstance(item, exp.Tuple):
        return [name for part in item.expressions for name in _columns(part, known)]
    tree = item.this if isinstance(item, exp.Paren) else item
    spelled = {name.lower(): name for name in known}
    if not isinstance(tree, exp.Column) or tree.name.lower() not in spelled:
        text = tree.name if isinstance(tree, exp.Column) else canonical(tree)
        raise PlanError(
            f"'{shown(text)}' has no public values: a changing table is grouped by columns with a "
            f"CHECK{nearest(text[:40], known)}"
        )
    return [spelled[tree.name.lower()]]


def domain_table(source: TableSource) -> pa.Table:
    """A row for every point of the domain, in C order."""
    sizes = [len(values) for _, values in source.domains]
    places = np.unravel_index(np.arange(prod(sizes)), sizes)
    return pa.table({
        name: pa.array(values).take(pa.array(at))
        for (name, values), at in zip(source.domains, places, strict=True)
    })  # fmt: skip


def points_where(source: TableSource, condition: str | None) -> Bool[Array, " N"]:
    """The points at which a condition over the table's columns holds."""
    points = domain_table(source)
    if condition is None:
        return np.ones(points.num_rows, bool)
    passes = pc.fill_null(compile_predicate(condition, points.schema)(points), fill_value=False)
    return np.array(passes, bool)


def counted_points(plan: Plan, expression: str | None) -> Bool[Array, " N"]:
    """The points whose records an aggregate counts: COUNT(*), COUNT(x), COUNTIF(condition)."""
    assert isinstance(plan.source, TableSource)  # noqa: S101  (plans of tables only)
    points = domain_table(plan.source)
    if expression is None:
        return np.ones(points.num_rows, bool)
    return np.array(pc.is_valid(compile_expression(expression, points.schema)(points)), bool)
