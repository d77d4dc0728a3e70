"""A private SELECT to a draft: FROM, WHERE, GROUP BY, the SELECT list and EMIT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token

from streamveil.errors import PlanError, nearest
from streamveil.queries.aggregates import FORMS, is_aggregate, read_aggregate
from streamveil.queries.assemble import Draft
from streamveil.queries.check import HABITS
from streamveil.queries.dialect import canonical, parse_tokens, shown
from streamveil.queries.expr import normalize_expression
from streamveil.queries.options import interval, whole, word
from streamveil.queries.parts import Ticks
from streamveil.queries.plan import Aggregate, KeyColumn, SinkSpec, SourceSpec, TableSource, Window
from streamveil.queries.script import Cursor
from streamveil.queries.table import grouping_sets

FILES = (".parquet", ".csv", ".json", ".jsonl", ".ndjson")
WINDOW_COLUMNS = ("window_start", "window_end")
WINDOWS: dict[str, tuple[str, str | None]] = {  # function -> (kind, name of the second length)
    "TUMBLE": ("tumble", None),
    "HOP": ("hop", "slide"),
    "CUMULATE": ("cumulate", "step"),
}


@dataclass
class From:
    """What FROM brings into scope."""

    source: SourceSpec
    window: Window = field(default_factory=Window)
    where: list[str] = field(default_factory=list)
    columns: dict[str, exp.Expr] | None = None  # of a row-wise subquery; None: the table's own
    names: set[str] = field(default_factory=set)  # qualifiers that mean this table


def read_select(
    tree: exp.Expr, sources: Mapping[str, SourceSpec], unit: str | None, emit: list[Token],
    text: str, sink: SinkSpec | None,
) -> Draft:  # fmt: skip
    """The draft of one private SELECT."""
    if not isinstance(tree, exp.Select):
        raise PlanError(
            "a private query is one SELECT; UNION and friends would publish one unit several "
            "times under one bound. Run them as separate queries"
        )
    _only(tree, {"expressions", "from_", "where", "group", "with_"}, _OUTER)
    scope = _from(tree, sources)
    where = scope.where + ([_row(tree.args["where"].this, scope)] if tree.args.get("where") else [])
    aggregates, per_group, plain = _select_list(tree, scope, unit)
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
    )


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
_INNER = {
    "distinct": HABITS["dedupe"],
    "order": HABITS["row-order"],
    "limit": HABITS["row-order"],
    "offset": HABITS["row-order"],
    "group": HABITS["other-rows"],
    "having": HABITS["other-rows"],
    "qualify": HABITS["other-rows"],
    "windows": HABITS["other-rows"],
    "joins": HABITS["join"],
    "laterals": HABITS["join"],
    "sample": HABITS["sample"],
}


def _only(tree: exp.Expr, allowed: set[str], reasons: Mapping[str, Any]) -> None:
    """Refuses every clause that is present and not allowed."""
    for name, value in tree.args.items():
        if not value or name in allowed:
            continue
        reason = reasons.get(name, _INNER.get(name))
        if reason is None:
            raise PlanError(f"'{name.rstrip('_').upper()}' is not available in a private query")
        raise reason.error() if hasattr(reason, "error") else PlanError(f"not available: {reason}")


def _from(tree: exp.Expr, sources: Mapping[str, SourceSpec]) -> From:
    clause = tree.args.get("from_")
    if clause is None:
        raise PlanError("FROM is missing: name a stream, a table or a file")
    with_ = tree.args.get("with_")
    named = {cte.alias: cte.this for cte in with_.expressions} if with_ else {}
    return _relation(clause.this, sources, named)


def _relation(
    node: exp.Expr, sources: Mapping[str, SourceSpec], named: Mapping[str, exp.Expr]
) -> From:
    if isinstance(node, exp.Subquery):
        _only(node, {"this", "alias"}, _INNER)
        return _subquery(node.this, node.alias, sources, named)
    if not isinstance(node, exp.Table):
        raise PlanError(f"FROM '{shown(canonical(node))}' is not a table")
    _only(node, {"this", "db", "catalog", "alias"}, _INNER)
    if isinstance(node.this, exp.Anonymous):
        return _windowed(node, sources, named)
    name = ".".join(part.name for part in node.parts)
    if name in named:
        rest = {key: value for key, value in named.items() if key != name}
        return _subquery(named[name], node.alias or name, sources, rest)
    return From(_source(name, sources), names={node.alias or name, PurePath(name).stem})


def _source(name: str, sources: Mapping[str, SourceSpec]) -> SourceSpec:
    for known, spec in sources.items():
        if known.lower() == name.lower():
            return spec
    path = PurePath(name)
    if path.suffix.lower() in FILES or "/" in name or "*" in name:
        stem = path.stem if "*" not in path.stem else path.parent.name
        return SourceSpec(name=stem or "files", kind="files", options={"path": name})
    raise PlanError(
        f"unknown table '{shown(name)}'{nearest(name, sources)}\n"
        "  to fix  CREATE STREAM name WITH (source = 'files', path = '...'), or write the path of "
        "a file in quotes"
        if sources
        else f"unknown table '{shown(name)}'.\n"
        "  to fix  CREATE STREAM name WITH (source = 'files', path = '...'), or write the path of "
        "a file in quotes"
    )


def _subquery(
    tree: exp.Expr, alias: str, sources: Mapping[str, SourceSpec], named: Mapping[str, exp.Expr]
) -> From:
    """A row-wise subquery (columns and WHERE) is the same as computing them here."""
    if not isinstance(tree, exp.Select):
        raise HABITS["other-rows"].error()
    _only(tree, {"expressions", "from_", "where"}, _INNER)
    clause = tree.args.get("from_")
    if clause is None:
        raise PlanError("FROM is missing in the subquery")
    inner = _relation(clause.this, sources, named)
    where = list(inner.where)
    if tree.args.get("where"):
        where.append(_row(tree.args["where"].this, inner))
    columns: dict[str, exp.Expr] | None = {}
    for item in tree.expressions:
        if isinstance(item, exp.Star):
            if len(tree.expressions) > 1:
                raise PlanError("SELECT *, ... in a subquery: name the columns")
            columns = inner.columns
            break
        if is_aggregate(item.unalias()):
            raise HABITS["other-rows"].error()
        assert columns is not None  # noqa: S101  # only a star, which ends the loop, makes it None
        columns[item.alias_or_name] = _resolved(item.unalias(), inner)
    return From(inner.source, inner.window, where, columns, {alias} if alias else set())


def _windowed(
    node: exp.Expr, sources: Mapping[str, SourceSpec], named: Mapping[str, exp.Expr]
) -> From:
    """TUMBLE, HOP or CUMULATE over a table, with named lengths."""
    call = node.this
    name = str(call.this).upper()
    if name not in WINDOWS:
        raise PlanError(f"unknown table function '{shown(name)}'{nearest(name.lower(), _LOWER)}")
    kind, second = WINDOWS[name]
    plain = [part for part in call.expressions if not isinstance(part, exp.Kwarg)]
    given = {
        part.this.name.lower(): part for part in call.expressions if isinstance(part, exp.Kwarg)
    }
    wanted = ["size", *([second] if second else [])]
    for argument in given:
        if argument not in wanted:
            raise PlanError(
                f"{name} has no argument '{shown(argument)}'{nearest(argument, wanted)}"
            )
    missing = [argument for argument in wanted if argument not in given]
    if len(plain) != 2 or missing:
        form = ", ".join(f"{argument} => INTERVAL n UNIT" for argument in wanted)
        raise PlanError(f"write {name}(TABLE t, DESCRIPTOR(time_column), {form})")
    lengths = {key: interval(part.expression, f"{key} of {name}") for key, part in given.items()}
    table = plain[0]
    if not isinstance(table, exp.Column) or not isinstance(table.this, exp.Identifier):
        raise PlanError(f"the first argument of {name} is TABLE name")
    parts = [table.args.get("catalog"), table.args.get("db"), table.args.get("table"), table.this]
    inner = _relation(
        exp.Table(this=exp.to_identifier(".".join(p.name for p in parts if p))), sources, named
    )
    time = _descriptor(plain[1], name)
    if inner.source.event_time not in (None, time):
        raise PlanError(
            f"DESCRIPTOR({shown(time)}) is not the event_time of '{inner.source.name}'; windows "
            "and lateness follow one time"
        )
    inner.source = replace(inner.source, event_time=time)
    slide = lengths.get(second or "", 0)
    inner.window = Window(kind=kind, size_us=lengths["size"], slide_us=slide)  # type: ignore[arg-type]  # from WINDOWS
    inner.names |= {node.alias} if node.alias else set()
    return inner


_LOWER = [name.lower() for name in WINDOWS]


def _descriptor(tree: exp.Expr, name: str) -> str:
    is_call = isinstance(tree, exp.Anonymous) and str(tree.this).upper() == "DESCRIPTOR"
    if not is_call or len(tree.expressions) != 1:
        raise PlanError(f"the second argument of {name} is DESCRIPTOR(time_column)")
    return word(tree.expressions[0], "the column of DESCRIPTOR")


def _resolved(tree: exp.Expr, scope: From) -> exp.Expr:
    """The tree over columns of the source: qualifiers dropped, subquery columns put in."""
    copy = tree.copy()
    for column in list(copy.find_all(exp.Column)):
        if isinstance(column.parent, exp.Kwarg):
            continue  # a word, as in report_format => DEFAULT
        table = column.args.get("table")
        if table is not None:
            if column.args.get("db") or table.name not in scope.names:
                raise PlanError(
                    f"'{shown(canonical(column))}': no such table in FROM, and fields of "
                    "structures cannot be read"
                )
            column.set("table", None)
        if scope.columns is None:
            continue
        known = {name.lower(): value for name, value in scope.columns.items()}
        if column.name.lower() not in known:
            raise PlanError(
                f"unknown column '{shown(column.name)}'{nearest(column.name, scope.columns)}"
            )
        value = known[column.name.lower()].copy()
        new = value if isinstance(value, exp.Column | exp.Literal) else exp.Paren(this=value)
        if column is copy:
            copy = new
        else:
            column.replace(new)
    return copy


def _row(tree: exp.Expr, scope: From) -> str:
    return canonical(_resolved(tree, scope))


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
            made, grouped = read_aggregate(_resolved(value, scope), alias, known_unit)
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
        _only(group, {"expressions", "all"}, {})
        if group.args.get("all"):
            items = [exp.column(name, quoted=True) for name in plain]
    keys: dict[str, str] = {}
    windows: set[str] = set()
    for item in items:
        name, value = _group_item(item, tree, plain)
        if value.name in WINDOW_COLUMNS and isinstance(value, exp.Column):
            windows.add(value.name)
            continue
        keys[name] = _row(value, scope)
    _check_selected(plain, keys, windows, scope)
    return [KeyColumn(name=name, expression=text) for name, text in keys.items()]


def _table_sets(
    tree: exp.Expr, scope: From, plain: Mapping[str, exp.Expr]
) -> tuple[tuple[str, ...], ...]:
    """The sets of columns a changing table is grouped by; none at all is one: ()."""
    assert isinstance(scope.source, TableSource)  # noqa: S101  (the caller looked)
    known = [name for name, _ in scope.source.domains]
    group = tree.args.get("group")
    items = [_resolved(item, scope) for item in group.expressions] if group else []
    sets = grouping_sets(items, known)
    used = {name.lower() for names in sets for name in names}
    for name in plain:
        if name.lower() not in used:
            raise not_grouped(name, plain[name])
    return sets


def not_grouped(name: str, value: exp.Expr) -> PlanError:
    """The error for an output that is no answer; a misspelled aggregate is named."""
    if isinstance(value, exp.Anonymous):
        called = str(value.this)
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
    if windows and scope.window.kind == "whole":
        raise PlanError("GROUP BY window_start needs a window: FROM TUMBLE(TABLE t, ...)")


def read_emit(tokens: list[Token], text: str, source: SourceSpec) -> Ticks:
    """EMIT EVERY INTERVAL n UNIT, EMIT EVERY n ROWS, or nothing: a one-shot query."""
    unbounded = source.options.get("follow") is True or source.kind in ("kafka", "postgres")
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
        length = parse_tokens(tokens[cursor.at :], text, "EMIT EVERY")
        return Ticks(every_us=interval(length, "EMIT EVERY"), unbounded=unbounded)
    if cursor.peek(1) in ("ROWS", "ROW") and len(tokens) == cursor.at + 2:
        count = parse_tokens([tokens[cursor.at]], text, "EMIT EVERY")
        return Ticks(rows=whole(count, "EMIT EVERY n ROWS"), unbounded=unbounded)
    if cursor.peek(1) in ("GROUPS", "UNITS", "USERS", "KEYS", "CHANGES"):
        raise HABITS["data-trigger"].error()
    raise PlanError(f"EMIT EVERY is followed by INTERVAL n UNIT or n ROWS{cursor.place()}")
