"""What FROM brings into scope: a source, its windows, and subqueries computed row by row.

A subquery of columns and WHERE is the same as computing them where they are used. The columns that
the clause names (privacy unit, time of windows, arrival) are looked up as in SQL: among the columns
of the subquery, not among those of its source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from sqlglot import exp

from streamveil.errors import PlanError, nearest
from streamveil.expressions.dialect import canonical, parse_text, shown
from streamveil.plan import SourceSpec
from streamveil.plan.own_rows import OwnRows, with_step
from streamveil.sql import own_rows
from streamveil.sql.joins import name_of, union_of, unit_before, with_join, with_members
from streamveil.sql.names import INNER, From, InReach, only, resolved, row_text
from streamveil.sql.options import instant, interval, length, positioned, unknown_argument, word
from streamveil.sql.parts import window_of

FILES = (".parquet", ".csv", ".json", ".jsonl", ".ndjson")
WINDOWS: dict[str, tuple[str, str | None]] = {  # function -> (kind, name of the second length)
    "TUMBLE": ("tumble", None),
    "HOP": ("hop", "slide"),
    "CUMULATE": ("cumulate", "step"),
}


PLACED: dict[str, Callable[[exp.Expr, str], Any]] = {  # where windows begin
    "origin": instant,
    "offset": interval,
    "week_start": word,
}


def read_from(tree: exp.Expr, sources: Mapping[str, SourceSpec], unit: str | None = None) -> From:
    """What the FROM of a query, with its WITH, brings into scope."""
    clause = tree.args.get("from_")
    if clause is None:
        raise PlanError("FROM is missing: name a stream, a table or a file")
    with_ = tree.args.get("with_")
    named: dict[str, exp.Expr] = {}
    for cte in with_.expressions if with_ else ():
        if cte.alias.lower() in named:
            raise PlanError(f"WITH declares '{shown(cte.alias)}' twice")
        named[cte.alias.lower()] = cte.this
    protected = None if unit is None else parse_text(unit, "the privacy unit")
    known = within(tree, InReach(sources, named, protected))
    return filtered(tree, _with_joins(tree, _relation(clause.this, known), known), known)


def within(tree: exp.Expr, known: InReach) -> InReach:
    """The tables in reach of the first relation of a SELECT."""
    if known.unit is None:
        return known
    return replace(known, unit=unit_before(tree.args.get("joins") or (), known.unit))


def filtered(tree: exp.Expr, inner: From, known: InReach) -> From:
    """The scope after WHERE; conditions on units in another relation become steps."""
    clause = tree.args.get("where")
    inner, condition = with_members(clause.this if clause else None, inner, known, _relation)
    if condition is not None:
        inner = replace(inner, where=[*inner.where, row_text(condition, inner)])
    return inner


def _relation(node: exp.Expr, known: InReach) -> From:
    if isinstance(node, exp.Subquery):
        only(node, {"this", "alias"}, INNER)
        return _subquery(node.this, node.alias, known)
    if not isinstance(node, exp.Table):
        raise PlanError(f"FROM '{shown(canonical(node))}' is not a table")
    only(node, {"this", "db", "catalog", "alias"}, INNER)
    if isinstance(node.this, exp.Anonymous):
        return _windowed(node, known)
    name = ".".join(part.name for part in node.parts)
    if name.lower() in known.named:
        rest = {key: value for key, value in known.named.items() if key != name.lower()}
        inner = known.named[name.lower()]
        return _subquery(inner, node.alias or name, replace(known, named=rest))
    names = {node.alias} if node.alias else {name, PurePath(name).stem}
    return From(_source(name, known.sources), names=names)


def _source(name: str, sources: Mapping[str, SourceSpec]) -> SourceSpec:
    for known, spec in sources.items():
        if known.lower() == name.lower():
            return spec
    path = PurePath(name)
    if path.suffix.lower() in FILES or "/" in name or "*" in name:
        stem = path.stem if "*" not in path.stem else path.parent.name
        return SourceSpec(name=stem or "files", kind="files", options={"path": name})
    last = name.rpartition(".")[2]
    if "." in name and last.lower() in map(str.lower, sources):
        raise PlanError(
            f"unknown table '{shown(name)}': tables have no project and no data set.\n"
            f"  to fix  FROM {shown(last)}"
        )
    raise PlanError(
        f"unknown table '{shown(name)}'{nearest(name, sources) if sources else '.'}\n"
        "  to fix  CREATE STREAM name WITH (source = 'files', path = '...'), or write the path of "
        "a file or folder in quotes ('clicks.csv', 'clicks/')"
    )


def _subquery(tree: exp.Expr, alias: str, known: InReach) -> From:
    """The scope of a subquery: of columns and WHERE, or one that combines rows (`own_rows`)."""
    if not isinstance(tree, exp.Select):
        return union_of(tree.unnest(), alias, known, _subquery)
    tree = own_rows.unnamed_windows(tree)
    only(tree, {"expressions", "from_", "where", "joins", *own_rows.COMBINING}, INNER)
    clause = tree.args.get("from_")
    if clause is None:
        raise PlanError(
            "FROM is missing in the subquery.\n"
            "  to fix  FROM a stream, a table or a file; to list public groups, public_groups = "
            "['a', 'b'] in OPTIONS"
        )
    unit = None if known.unit is None else _unit_within(known.unit, tree.expressions)
    inside = within(tree, replace(known, unit=unit))
    inner = filtered(tree, _with_joins(tree, _relation(clause.this, inside), inside), inside)
    where = list(inner.where)
    columns, rest = _columns(tree.expressions, inner)
    made = From(inner.source, inner.window, where, columns, {alias} if alias else set(), rest)
    return _combined(tree, inner, made, inside.unit) if own_rows.combines(tree) else made


def _unit_within(unit: exp.Expr, items: list[exp.Expr]) -> exp.Expr:
    """The privacy unit over the FROM of a subquery, given the unit over the subquery's columns."""
    selected = {item.alias_or_name.lower(): item.unalias() for item in items if not item.is_star}

    def change(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column) or node.name.lower() not in selected:
            return node
        value = selected[node.name.lower()].copy()
        return value if isinstance(value, exp.Column | exp.Literal) else exp.Paren(this=value)

    inside = unit.copy().transform(change)
    if any(isinstance(node, exp.Window) or own_rows.is_total(node) for node in inside.walk()):
        raise PlanError(
            f"the privacy unit '{shown(canonical(unit))}' is made of several rows in the subquery: "
            "it would be no one person.\n  to fix  select the column that names a person as it is"
        )
    return inside


def _combined(tree: exp.Expr, inner: From, made: From, unit: exp.Expr | None) -> From:
    """The scope of a subquery that combines rows of one person."""
    if unit is None:
        raise PlanError(
            "a subquery that groups needs to know who is protected.\n"
            "  to fix  privacy_unit_column = user_id in the OPTIONS around it"
        )
    if inner.window.kind != "whole":
        raise PlanError(
            "TUMBLE, HOP and CUMULATE go around a subquery that groups, not inside.\n  to fix  "
            "WITH s AS (SELECT ...) SELECT ... FROM TUMBLE(TABLE s, DESCRIPTOR(time_column), ...)"
        )
    items, rest = made.columns or {}, made.columns is None or made.rest
    if rest and (tree.args.get("group") or tree.args.get("distinct")):
        raise PlanError("SELECT * with GROUP BY or DISTINCT.\n  to fix  name the columns")

    def own(clause: str) -> exp.Expr | None:
        """HAVING or QUALIFY, which may name items of the SELECT list."""
        given = tree.args.get(clause)
        if not given:
            return None
        tied = given.this.copy().transform(
            lambda node: _aliased(node, tree.expressions), copy=False
        )
        return resolved(tied, inner)

    scope = own_rows.combined(
        own_rows.OwnScope(
            source=inner.source, where=made.where, unit=resolved(unit, inner), items=items,
            group=[resolved(item, inner) for item in _grouped(tree)],
            having=own("having"), qualify=own("qualify"), distinct=bool(tree.args.get("distinct")),
        )
    )  # fmt: skip
    return replace(made, source=scope.source, where=scope.where, columns=scope.items, rest=rest)


def _with_joins(tree: exp.Expr, inner: From, known: InReach) -> From:
    """JOIN by the unit or with a public table, and UNNEST: a row for each element."""
    own = name_of(tree.args["from_"].this)
    for join in tree.args.get("joins") or ():
        if isinstance(join.this, exp.Unnest):
            inner = _with_list(join, inner, known.unit)
        else:
            inner = with_join(join, inner, own, known, _relation)
    return inner


def _with_list(join: Any, inner: From, unit: exp.Expr | None) -> From:
    """FROM t, UNNEST(...) AS x."""
    node = join.this
    plain = not (join.side or join.args.get("on") or join.args.get("using"))
    alias = node.args.get("alias")
    names = [*alias.columns, *filter(None, [alias.this])] if alias else []
    if not plain or len(names) != 1 or len(node.expressions) != 1 or node.args.get("offset"):
        raise PlanError(
            "UNNEST stands after a comma, and gives its parts a name, without OFFSET.\n"
            "  to fix  FROM t, UNNEST(SPLIT(column, ',')) AS part"
        )
    if unit is None:
        raise PlanError(
            "UNNEST needs to know who is protected.\n"
            "  to fix  privacy_unit_column = user_id in the OPTIONS"
        )
    step = own_rows.unnest_of(resolved(node.expressions[0], inner), names[0].name, inner.where)
    source = with_step(inner.source, row_text(unit, inner), step)
    columns = inner.columns
    if columns is not None:
        columns = {**columns, step.name: exp.column(step.name, quoted=True)}
    parts = {**inner.parts, step.name.lower(): frozenset(inner.names)}
    return replace(inner, source=source, where=[], columns=columns, parts=parts)


def _aliased(node: exp.Expr, items: list[exp.Expr]) -> exp.Expr:
    """A name of the SELECT list as its expression; in a total it is a column of FROM."""
    if not isinstance(node, exp.Column) or node.args.get("table") or _is_in_total(node):
        return node
    for item in items:
        if isinstance(item, exp.Alias) and item.alias.lower() == node.name.lower():
            return exp.Paren(this=item.this.copy())
    return node


def _is_in_total(node: exp.Expr) -> bool:
    """Whether a node is in the argument of a total."""
    return node.parent is not None and (own_rows.is_total(node.parent) or _is_in_total(node.parent))


def _grouped(tree: exp.Expr) -> list[exp.Expr]:
    """The expressions of a subquery's GROUP BY."""
    group = tree.args.get("group")
    if not group:
        return []
    only(group, {"expressions", "all"}, {})
    plain = [item.unalias() for item in tree.expressions]
    if group.args.get("all"):
        return [item for item in plain if not any(map(own_rows.is_total, item.walk()))]
    found = []
    for item in group.expressions:
        if isinstance(item, exp.Rollup | exp.Cube | exp.GroupingSets):
            raise PlanError(
                "ROLLUP, CUBE and GROUPING SETS go into the private SELECT.\n"
                "  to fix  GROUP BY all their columns in the subquery, and ROLLUP (...) around it"
            )
        named = positioned(item, tree.expressions, "GROUP BY")
        found.append(named if named is not item else _aliased(item, tree.expressions).unnest())
    return found


def _columns(items: list[exp.Expr], inner: From) -> tuple[dict[str, exp.Expr] | None, bool]:
    """The columns of a subquery by name, None for the table's own; and whether all those stay."""
    if len(items) == 1 and isinstance(items[0], exp.Star) and not any(items[0].args.values()):
        return inner.columns, inner.rest
    columns: dict[str, exp.Expr] = {}
    rest = False
    for item in items:
        if isinstance(item, exp.Star) and item is items[0] and not any(item.args.values()):
            columns |= inner.columns or {}
            rest = inner.columns is None or inner.rest
            continue
        if item.is_star:
            raise PlanError(
                f"'{shown(canonical(item))}' in a subquery: SELECT * stands for all columns, and "
                "comes first.\n  to fix  SELECT *, x AS y, or name the columns"
            )
        name = item.alias_or_name
        if name.lower() in {known.lower() for known in columns if known}:
            raise PlanError(
                f"two columns of the subquery are called '{shown(name)}'.\n"
                "  to fix  give one another name with AS"
            )
        columns[name] = resolved(item.unalias(), inner)
    return columns, rest


def _windowed(node: exp.Expr, scope: InReach) -> From:
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
    arguments = [*wanted, *PLACED]
    for argument in given:
        if argument not in arguments:
            raise unknown_argument(name, argument, arguments)
    missing = [argument for argument in wanted if argument not in given]
    if len(plain) != 2 or missing:
        form = ", ".join(f"{argument} => INTERVAL n UNIT" for argument in wanted)
        raise PlanError(f"write {name}(TABLE t, DESCRIPTOR(time_column), {form})")
    lengths = {key: length(given[key].expression, f"{key} of {name}") for key in wanted}
    placed = {key: PLACED[key](given[key].expression, key) for key in PLACED if key in given}
    inner = _relation(_table_of(plain[0], name), scope)
    written = _descriptor(plain[1], name)
    time = inner.own_column(written, f"DESCRIPTOR of {name}")
    combined = isinstance(inner.source, OwnRows) and not inner.source.row_by_row
    known = time if combined else inner.source.event_time or time
    if known.lower() != time.lower():
        raise PlanError(
            f"DESCRIPTOR({shown(written)}) is not the event_time of '{inner.source.name}'; windows "
            "and lateness follow one time.\n"
            f"  to fix  the column that is {shown(known)} there"
        )
    inner.source = replace(inner.source, event_time=known)
    inner.window = window_of(kind, lengths["size"], lengths.get(second or ""), **placed)
    inner.names = {node.alias} if node.alias else inner.names
    return inner


def _table_of(tree: exp.Expr, name: str) -> exp.Expr:
    """TABLE name, or TABLE 'path' of files."""
    if isinstance(tree, exp.Literal) and tree.is_string:
        return exp.Table(this=exp.to_identifier(tree.this, quoted=True))
    if not isinstance(tree, exp.Column) or not isinstance(tree.this, exp.Identifier):
        raise PlanError(f"the first argument of {name} is TABLE name")
    parts = [tree.args.get("catalog"), tree.args.get("db"), tree.args.get("table"), tree.this]
    return exp.Table(this=exp.to_identifier(".".join(part.name for part in parts if part)))


_LOWER = [name.lower() for name in WINDOWS]


def _descriptor(tree: exp.Expr, name: str) -> str:
    is_call = isinstance(tree, exp.Anonymous) and str(tree.this).upper() == "DESCRIPTOR"
    if not is_call or len(tree.expressions) != 1:
        raise PlanError(f"the second argument of {name} is DESCRIPTOR(time_column)")
    return word(tree.expressions[0], "the column of DESCRIPTOR")
