"""A private SELECT to a draft: FROM, WHERE, GROUP BY, the SELECT list and EMIT."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from streamveil.errors import PlanError, nearest
from streamveil.expressions import normalize_expression
from streamveil.expressions.dialect import canonical, parse_tokens, shown
from streamveil.expressions.functions import FUNCTIONS
from streamveil.plan import (
    RESERVED,
    Aggregate,
    KeyColumn,
    Post,
    PostColumn,
    SinkSpec,
    SourceSpec,
    TableSource,
    options,
)
from streamveil.plan.check import HABITS
from streamveil.plan.own_rows import SET, OwnRows, with_person
from streamveil.release_metadata import SUFFIXES
from streamveil.sql.aggregates import FORMS, decided, function_name, is_aggregate, read_aggregate
from streamveil.sql.assemble import Draft
from streamveil.sql.names import From, only, resolved, row_text
from streamveil.sql.options import length, positioned, whole
from streamveil.sql.own_rows import with_sets
from streamveil.sql.parts import Ticks
from streamveil.sql.post import PostScope, around_windows, is_nothing
from streamveil.sql.scope import read_from
from streamveil.sql.script import Cursor
from streamveil.sql.table import grouping_sets

WINDOW_COLUMNS = ("window_start", "window_end")


def read_select(
    tree: exp.Expr, sources: Mapping[str, SourceSpec], values: Mapping[str, Any],
    emit: list[Token], text: str, sinks: tuple[SinkSpec, ...],
) -> Draft:  # fmt: skip
    """The draft of one private SELECT; `values`: its options."""
    if not isinstance(tree, exp.Select):
        raise PlanError(
            "a private query is one SELECT; a UNION would publish one unit several "
            "times under one bound. Run them as separate queries"
        )
    allowed = {"expressions", "from_", "joins", "where", "group", "with_", "having", "order"}
    only(tree, allowed | {"limit", "offset", "qualify"}, _OUTER)
    scope = read_from(tree, sources, options.PRIVACY_UNIT.of(values))
    where = scope.where
    named = _named_columns(values, scope)
    unit_name = options.PRIVACY_UNIT.name
    if isinstance(scope.source, OwnRows):
        scope.source, named[unit_name] = with_person(scope.source, named[unit_name])
    chosen = _select_list(tree, scope, named.get(options.PRIVACY_UNIT.name))
    is_table = isinstance(scope.source, TableSource)
    sets = _table_sets(tree, scope) if is_table else ()
    keys, in_sets = ({}, ()) if is_table else _group_by(tree, scope, chosen)
    grouped = [name for names in sets for name in names] if is_table else list(keys)
    columns = tuple(KeyColumn(name=name, expression=text) for name, text in keys.items())
    source = scope.source
    if in_sets:
        source, columns, named[unit_name] = with_sets(
            source, columns, in_sets, where, named.get(unit_name)
        )
        where, grouped = [], [SET, *grouped]
    return Draft(
        source=source,
        aggregates=tuple(chosen.aggregates),
        where=tuple(where),
        keys=columns,
        copies=max(1, len(in_sets)),
        window=scope.window,
        ticks=read_emit(emit, text, scope.source),
        sinks=sinks,
        per_group=frozenset(chosen.per_group),
        sets=sets,
        named=named,
        post=own_steps(tree, chosen, grouped, scope),
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
    "distinct": "SELECT DISTINCT: groups are distinct already.\n  to fix  leave DISTINCT out",
}


@dataclass
class Chosen:
    """The items of a private SELECT: aggregates, plain columns, and computed columns."""

    unit: str
    aggregates: list[Aggregate] = field(default_factory=list)
    per_group: set[str] = field(default_factory=set)  # names of aggregates bounded per group
    calls: dict[str, list[str]] = field(default_factory=dict)  # text of a call -> its columns
    plain: dict[str, exp.Expr] = field(default_factory=dict)  # by output name
    computed: dict[str, exp.Expr] = field(default_factory=dict)  # by output name
    decisions: dict[str, exp.Expr] = field(default_factory=dict)  # text of LOGICAL_OR -> answer
    order: list[tuple[str, exp.Expr]] = field(default_factory=list)  # all items, as written

    def add(self, call: exp.Expr, scope: From, alias: str | None) -> None:
        """An aggregate, under its own or another name."""
        made, grouped = read_aggregate(resolved(call, scope), alias, self.unit)
        self.aggregates += made
        self.per_group |= {one.name for one in made} if grouped else set()
        self.calls.setdefault(canonical(call), [one.name for one in made])

    def add_unnamed(self, call: exp.Expr, scope: From) -> None:
        """An aggregate inside an expression: a number that others are computed from."""
        made, _ = read_aggregate(resolved(call, scope), None, self.unit)
        if len(made) != 1:
            raise PlanError(
                f"{shown(canonical(call))} has several columns.\n"
                "  to fix  select it under a name of its own, and compute in an outer SELECT"
            )
        taken = {one.name.lower() for one in self.aggregates} | {
            name.lower() for name, _ in self.order
        }
        stem = made[0].name
        free = next(name for name in _names(stem) if name.lower() not in taken)
        self.add(call, scope, free)
        decision = decided(function_name(call), free)
        if decision is not None:
            self.decisions[canonical(call)] = decision


def _names(stem: str) -> Iterator[str]:
    yield stem
    yield from (f"{stem}_{place}" for place in itertools.count(2))


def is_computed(value: exp.Expr) -> bool:
    """Whether an expression computes with aggregates."""
    if is_aggregate(value):
        return decided(function_name(value), "") is not None
    return value.find(exp.Window) is not None or any(aggregates_in(value))


def aggregates_in(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The aggregates of rows in an expression; functions with OVER read released groups instead."""
    for call in tree.find_all(exp.Anonymous):
        is_over = isinstance(call.parent, exp.Window) and call.arg_key == "this"
        if is_aggregate(call) and not is_over:
            yield call


def _select_list(tree: exp.Expr, scope: From, unit: str | None) -> Chosen:
    """The items of SELECT, and the aggregates of HAVING and ORDER BY.

    Aggregates inside expressions come after those with names, in the order of their texts: so the
    private query does not depend on what is computed from them.
    """
    chosen = Chosen("" if unit is None else normalize_expression(unit))
    for place, item in enumerate(tree.expressions, start=1):
        value, alias = item.unalias(), item.alias or None
        if isinstance(value, exp.Star):
            raise PlanError("SELECT * is not available in a private query: name the columns")
        if is_aggregate(value) and not is_computed(value):
            before = len(chosen.aggregates)
            chosen.add(value, scope, alias)
            added = chosen.aggregates[before:]
            chosen.order += [(one.name, exp.column(one.name, quoted=True)) for one in added]
            continue
        computed = is_computed(value)
        name = alias or value.alias_or_name or f"{'answer' if computed else 'key'}_{place}"
        (chosen.computed if computed else chosen.plain)[name] = value
        chosen.order.append((name, value))
    clauses = [tree.args[name] for name in ("having", "qualify", "order") if tree.args.get(name)]
    inside = {
        canonical(call): call
        for part in (*chosen.computed.values(), *clauses)
        for call in aggregates_in(part)
    }
    for text in sorted(inside.keys() - chosen.calls.keys()):
        chosen.add_unnamed(inside[text], scope)
    return chosen


def own_steps(tree: exp.Expr, chosen: Chosen, grouped: list[str], scope: From) -> tuple[Post, ...]:
    """HAVING, ORDER BY, LIMIT and computed columns of a private SELECT, over its releases."""
    columns = [*grouped, *(one.name + end for one in chosen.aggregates for end in ("", *SUFFIXES))]
    beside = RESERVED if scope.window.kind != "whole" else RESERVED[2:]
    released = PostScope(
        (*columns, *beside),
        {one.lower(): {n.lower(): n for n in (*columns, *beside)} for one in scope.names},
        {
            text: exp.column(names[0], quoted=True)
            for text, names in chosen.calls.items()
            if len(names) == 1
        }
        | chosen.decisions
        | {
            canonical(chosen.plain[name]): exp.column(name, quoted=True)
            for name in grouped
            if name in chosen.plain
        },
        beside={},
    )
    items = dict[str, exp.Expr]()
    for name, value in chosen.order:
        if name in items:
            raise PlanError(
                f"two output columns are called '{shown(name)}'; give one another name with AS"
            )
        called = function_name(value) if isinstance(value, exp.Anonymous) else ""
        if called and name in chosen.plain and name not in grouped and called not in FUNCTIONS:
            raise not_grouped(name, value)  # a misspelled aggregate
        try:
            items[name] = released.rewritten(
                exp.column(name, quoted=True) if name in grouped else value
            )
        except PlanError:
            if name in chosen.plain:
                raise not_grouped(name, value) from None
            raise
    before, post = around_windows(tree, "having", ("qualify",), released, items)
    unnamed = len(chosen.aggregates) > len([*named_calls(tree, chosen)])
    if unnamed or released.beside or any(is_new(name, value) for name, value in items.items()):
        which = exp.column(SET, quoted=True)
        told = [released.text(value) for value in items.values()]
        if SET in grouped and released.text(which) not in told:
            items = {SET: which, **items}  # without it a total would look like the group of NULL
        made = (PostColumn(name=name, expression=released.text(value))
                for name, value in items.items())  # fmt: skip
        post = replace(post, columns=tuple(made))
    return before if is_nothing(post) else (*before, post)


def is_new(name: str, value: exp.Expr) -> bool:
    """Whether a column of SELECT is not simply a column of the release with the same name."""
    return not (isinstance(value, exp.Column) and value.name.lower() == name.lower())


def named_calls(tree: exp.Expr, chosen: Chosen) -> Iterator[str]:
    """The columns of the aggregates that are selected themselves."""
    for item in tree.expressions:
        if is_aggregate(item.unalias()) and not is_computed(item.unalias()):
            yield from chosen.calls[canonical(item.unalias())]


def _group_by(
    tree: exp.Expr, scope: From, chosen: Chosen
) -> tuple[dict[str, str], tuple[tuple[str, ...], ...]]:
    """The expressions of groups, by name, and the sets of names of ROLLUP and the like.

    Plain columns that follow from groups become computed.
    """
    plain = chosen.plain
    group = tree.args.get("group")
    items = list(group.expressions) if group else []
    if group:
        only(group, {"expressions", "all"}, {})
        if group.args.get("all"):
            items = [exp.column(name, quoted=True) for name in plain]
    keys: dict[str, str] = {}
    windows: set[str] = set()
    several = any(isinstance(item, SETS) for item in items)
    named = [_named_sets(item, tree, plain) for item in items] if several else []
    for item in [leaf for one in items for leaf in _leaves(one)] if several else items:
        name, value = _group_item(item, tree, plain)
        read = {column.name for column in value.find_all(exp.Column)}
        if read and read <= {*WINDOW_COLUMNS} and scope.window.kind != "whole":
            windows |= read  # also for keys computed from it
            continue
        keys[name] = row_text(value, scope)
    _check_selected(plain, keys, windows, scope)
    if not several:
        return keys, ()
    within = [found for item in named for found in _without(item, windows)]
    return keys, grouping_sets(within, list(keys))


def _without(item: exp.Expr, windows: set[str]) -> list[exp.Expr]:
    """An item of GROUP BY without the columns of windows, which every release has anyway."""
    if not isinstance(item, (*SETS, exp.Tuple)):
        return [] if item.name in windows else [item]
    copy = item.copy()
    parts = [found for part in item.expressions for found in _without(part, windows)]
    if isinstance(item, exp.GroupingSets):  # a set of windows alone is one group per window
        parts = [
            exp.Tuple(expressions=_without(part, windows)) if isinstance(part, exp.Tuple)
            else one for part in item.expressions
            for one in (_without(part, windows) or [exp.Tuple(expressions=[])])
        ]  # fmt: skip
    copy.set("expressions", parts)
    return [copy]


SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)


def _leaves(item: exp.Expr) -> list[exp.Expr]:
    """The expressions that an item of GROUP BY groups by, in any of its sets."""
    if not isinstance(item, (*SETS, exp.Tuple)):
        return [item.unnest()]
    return [leaf for part in item.expressions for leaf in _leaves(part)]


def _named_sets(item: exp.Expr, tree: exp.Expr, plain: Mapping[str, exp.Expr]) -> exp.Expr:
    """The item with the names of groups instead of their expressions."""
    if not isinstance(item, (*SETS, exp.Tuple)):
        return exp.column(_group_item(item.unnest(), tree, plain)[0], quoted=True)
    copy = item.copy()
    copy.set("expressions", [_named_sets(part, tree, plain) for part in item.expressions])
    return copy


def _table_sets(tree: exp.Expr, scope: From) -> tuple[tuple[str, ...], ...]:
    """The sets of columns that a changing table is grouped by; without any, the one set ()."""
    assert isinstance(scope.source, TableSource)  # noqa: S101  (the caller looked)
    known = [name for name, _ in scope.source.domains]
    group = tree.args.get("group")
    items = [resolved(item, scope) for item in group.expressions] if group else []
    return grouping_sets(items, known)


def not_grouped(name: str, value: exp.Expr) -> PlanError:
    """The error for an output that is no answer; it names a misspelled aggregate."""
    called = str(value.this) if isinstance(value, exp.Anonymous) else ""
    if called and called.upper() not in FUNCTIONS:
        return PlanError(f"unknown aggregate '{shown(called)}'{nearest(called, FORMS)}")
    return PlanError(
        f"'{shown(name)}' is neither in GROUP BY nor an aggregate; it would publish rows.\n"
        "  to fix  GROUP BY it too, or leave it out"
    )


def _group_item(
    item: exp.Expr, tree: exp.Expr, plain: Mapping[str, exp.Expr]
) -> tuple[str, exp.Expr]:
    """The output name and expression of one item of GROUP BY."""
    item = positioned(item, tree.expressions, "GROUP BY")
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
        if name in keys and row_text(value, scope) != keys[name]:
            raise PlanError(
                f"'{shown(name)}' is selected as {shown(canonical(value))}, and another value of "
                "that name is grouped by.\n  to fix  GROUP BY what is selected, or select it under "
                "another name"
            )
    if windows and scope.window.kind == "whole":
        raise PlanError("GROUP BY window_start needs a window: FROM TUMBLE(TABLE t, ...)")


def read_emit(tokens: list[Token], text: str, source: SourceSpec) -> Ticks:
    """EMIT EVERY INTERVAL n UNIT, EMIT EVERY n ROWS, or nothing: a one-shot query."""
    unbounded = source.is_endless
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
    if cursor.peek(1) in ("ROWS", "ROW"):
        count = parse_tokens([tokens[cursor.at]], text, "EMIT EVERY")
        cursor.at += 2
        if cursor.at < len(tokens):
            raise PlanError(
                f"EMIT EVERY n ROWS ends a query{cursor.place()}.\n"
                "  to fix  say among the OPTIONS how long it runs: steps = n, or 'unbounded'"
            )
        return Ticks(rows=whole(count, "EMIT EVERY n ROWS"), unbounded=unbounded)
    if cursor.peek(1) in ("GROUPS", "UNITS", "USERS", "KEYS", "CHANGES"):
        raise HABITS["data-trigger"].error()
    raise PlanError(f"EMIT EVERY is followed by INTERVAL n UNIT or n ROWS{cursor.place()}")
