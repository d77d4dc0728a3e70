"""A private SELECT to a draft: FROM, WHERE, GROUP BY, the SELECT list and EMIT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from streamveil.errors import PlanError, nearest
from streamveil.expressions.dialect import canonical, parse_tokens, shown
from streamveil.expressions.expr import normalize_expression
from streamveil.expressions.functions import FUNCTIONS
from streamveil.plan import options
from streamveil.plan.check import HABITS
from streamveil.plan.plan import Aggregate, KeyColumn, SinkSpec, SourceSpec, TableSource
from streamveil.sql.aggregates import FORMS, is_aggregate, read_aggregate
from streamveil.sql.assemble import Draft
from streamveil.sql.options import length, whole
from streamveil.sql.parts import Ticks
from streamveil.sql.scope import From, only, read_from, resolved, row_text
from streamveil.sql.script import Cursor
from streamveil.sql.table import grouping_sets

WINDOW_COLUMNS = ("window_start", "window_end")


def read_select(
    tree: exp.Expr, sources: Mapping[str, SourceSpec], values: Mapping[str, Any],
    emit: list[Token], text: str, sink: SinkSpec | None,
) -> Draft:  # fmt: skip
    """The draft of one private SELECT; `values`: its options."""
    if not isinstance(tree, exp.Select):
        raise PlanError(
            "a private query is one SELECT; UNION and friends would publish one unit several "
            "times under one bound. Run them as separate queries"
        )
    only(tree, {"expressions", "from_", "where", "group", "with_"}, _OUTER)
    scope = read_from(tree, sources)
    where = scope.where + (
        [row_text(tree.args["where"].this, scope)] if tree.args.get("where") else []
    )
    named = _named_columns(values, scope)
    aggregates, per_group, plain = _select_list(tree, scope, named.get(options.PRIVACY_UNIT.name))
    sets = _table_sets(tree, scope, plain) if isinstance(scope.source, TableSource) else ()
    return Draft(
        source=scope.source,
        aggregates=tuple(aggregates),
        where=tuple(where),
        keys=() if sets else tuple(_group_by(tree, scope, plain)),
        window=scope.window,
        ticks=read_emit(emit, text, scope.source),
        sink=sink,
        per_group=frozenset(per_group),
        sets=sets,
        named=named,
    )


def _named_columns(values: Mapping[str, Any], scope: From) -> dict[str, str]:
    """The options that name columns, over columns of the source: who is protected, and arrival."""
    named: dict[str, str] = {}
    unit, arrival = options.PRIVACY_UNIT.of(values), options.ARRIVAL.of(values)
    if unit is not None:
        unit_name = options.PRIVACY_UNIT.name
        named[unit_name] = scope.expression(unit, unit_name)
    if arrival is not None:
        named[options.ARRIVAL.name] = scope.own_column(arrival, options.ARRIVAL.name)
    return named


_OUTER = {
    "having": "HAVING on released numbers is post-processing: filter the releases you read, or "
    "raise min_privacy_units_per_group",
    "order": "ORDER BY: releases are sorted by group, so that order says nothing; sort what you "
    "read",
    "limit": "LIMIT: every public group is in every release; cut what you read",
    "offset": "OFFSET: cut what you read",
    "distinct": "SELECT DISTINCT: groups are distinct already",
    "qualify": "QUALIFY: window functions are not available in a private query",
}


def _select_list(
    tree: exp.Expr, scope: From, unit: str | None
) -> tuple[list[Aggregate], set[str], dict[str, exp.Expr]]:
    """Aggregates, the names of those bounded per group, and the plain columns by output name."""
    aggregates: list[Aggregate] = []
    per_group: set[str] = set()
    plain: dict[str, exp.Expr] = {}
    known_unit = "" if unit is None else normalize_expression(unit)
    for place, item in enumerate(tree.expressions, start=1):
        value, alias = item.unalias(), item.alias or None
        if isinstance(value, exp.Star):
            raise PlanError("SELECT * is not available in a private query: name the columns")
        if is_aggregate(value):
            made, grouped = read_aggregate(resolved(value, scope), alias, known_unit)
            aggregates += made
            per_group |= {one.name for one in made} if grouped else set()
        elif any(is_aggregate(node) for node in value.find_all(exp.Anonymous)):
            raise PlanError(
                f"item {place} of SELECT computes with an aggregate: that is post-processing.\n"
                "  to fix  select each aggregate under its own name and compute when reading "
                "(AVG is available)"
            )
        else:
            plain[alias or value.alias_or_name or f"key_{place}"] = value
    return aggregates, per_group, plain


def _group_by(tree: exp.Expr, scope: From, plain: Mapping[str, exp.Expr]) -> list[KeyColumn]:
    group = tree.args.get("group")
    items = list(group.expressions) if group else []
    if group:
        only(group, {"expressions", "all"}, {})
        if group.args.get("all"):
            items = [exp.column(name, quoted=True) for name in plain]
    keys: dict[str, str] = {}
    windows: set[str] = set()
    for item in items:
        name, value = _group_item(item, tree, plain)
        if value.name in WINDOW_COLUMNS and isinstance(value, exp.Column):
            windows.add(value.name)
            continue
        keys[name] = row_text(value, scope)
    _check_selected(plain, keys, windows, scope)
    return [KeyColumn(name=name, expression=text) for name, text in keys.items()]


def _table_sets(
    tree: exp.Expr, scope: From, plain: Mapping[str, exp.Expr]
) -> tuple[tuple[str, ...], ...]:
    """The sets of columns a changing table is grouped by; none at all is one: ()."""
    assert isinstance(scope.source, TableSource)  # noqa: S101  (the caller looked)
    known = [name for name, _ in scope.source.domains]
    group = tree.args.get("group")
    items = [resolved(item, scope) for item in group.expressions] if group else []
    sets = grouping_sets(items, known)
    used = {name.lower() for names in sets for name in names}
    for name in plain:
        if name.lower() not in used:
            raise not_grouped(name, plain[name])
    return sets


def not_grouped(name: str, value: exp.Expr) -> PlanError:
    """The error for an output that is no answer; a misspelled aggregate is named."""
    called = str(value.this) if isinstance(value, exp.Anonymous) else ""
    if called and called.upper() not in FUNCTIONS:
        return PlanError(f"unknown aggregate '{shown(called)}'{nearest(called, FORMS)}")
    return PlanError(
        f"'{shown(name)}' is neither in GROUP BY nor an aggregate; it would publish rows"
    )


def _group_item(
    item: exp.Expr, tree: exp.Expr, plain: Mapping[str, exp.Expr]
) -> tuple[str, exp.Expr]:
    """The output name and expression of one item of GROUP BY."""
    if isinstance(item, exp.Literal):
        place = whole(item, "a position in GROUP BY")
        if not 1 <= place <= len(tree.expressions):
            raise PlanError(f"GROUP BY position must be between 1 and {len(tree.expressions)}")
        item = tree.expressions[place - 1].unalias()
        if is_aggregate(item):
            raise PlanError("GROUP BY names an aggregate")
    if isinstance(item, exp.Column) and not item.args.get("table"):
        for name, value in plain.items():
            if name.lower() == item.name.lower():
                return name, value
    text = canonical(item)
    for name, value in plain.items():
        if canonical(value) == text:
            return name, value
    return item.alias_or_name or f"key_{len(plain) + 1}", item


def _check_selected(
    plain: Mapping[str, exp.Expr], keys: Mapping[str, str], windows: set[str], scope: From
) -> None:
    for name, value in plain.items():
        if isinstance(value, exp.Column) and value.name in WINDOW_COLUMNS:
            if scope.window.kind == "whole":
                raise PlanError(f"{value.name} needs a window: FROM TUMBLE(TABLE t, ...)")
            continue
        if name not in keys:
            raise not_grouped(name, value)
        if row_text(value, scope) != keys[name]:
            raise PlanError(
                f"'{shown(name)}' is selected as {shown(canonical(value))}, and another value of "
                "that name is grouped by.\n  to fix  GROUP BY what is selected, or select it under "
                "another name"
            )
    if windows and scope.window.kind == "whole":
        raise PlanError("GROUP BY window_start needs a window: FROM TUMBLE(TABLE t, ...)")


def read_emit(tokens: list[Token], text: str, source: SourceSpec) -> Ticks:
    """EMIT EVERY INTERVAL n UNIT, EMIT EVERY n ROWS, or nothing: a one-shot query."""
    unbounded = source.options.get("follow") is True or source.kind == "kafka"
    if not tokens:
        return Ticks(unbounded=unbounded)
    cursor = Cursor(tokens, text)
    if cursor.peek() in ("CHANGES", "ON", "FINAL"):
        habit = "max-event-time" if "WATERMARK" in {t.text.upper() for t in tokens} else ""
        raise HABITS[habit or "emit-on-change"].error()
    if cursor.peek() in ("AFTER", "WITHOUT") or "WATERMARK" in {t.text.upper() for t in tokens}:
        raise HABITS["max-event-time"].error()
    if cursor.peek() in ("WHEN", "IF"):
        raise HABITS["data-trigger"].error()
    cursor.need("EVERY")
    if cursor.peek() == "INTERVAL":
        written = parse_tokens(tokens[cursor.at :], text, "EMIT EVERY")
        found = length(written, "EMIT EVERY")
        return Ticks(every_us=found.us or None, months=found.months or None, unbounded=unbounded)
    if cursor.peek(1) in ("ROWS", "ROW") and len(tokens) == cursor.at + 2:
        count = parse_tokens([tokens[cursor.at]], text, "EMIT EVERY")
        return Ticks(rows=whole(count, "EMIT EVERY n ROWS"), unbounded=unbounded)
    if cursor.peek(1) in ("GROUPS", "UNITS", "USERS", "KEYS", "CHANGES"):
        raise HABITS["data-trigger"].error()
    raise PlanError(f"EMIT EVERY is followed by INTERVAL n UNIT or n ROWS{cursor.place()}")
