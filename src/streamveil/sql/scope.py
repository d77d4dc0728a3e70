"""What FROM brings into scope: a source, its windows, and subqueries computed row by row.

A subquery of columns and WHERE is the same as computing them where they are used. What the clause
names by column (who is protected, the time of windows, arrival) is looked up as SQL does: among
the columns of the subquery, not behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from sqlglot import exp

from streamveil.errors import PlanError, nearest
from streamveil.expressions.dialect import canonical, parse_text, shown
from streamveil.plan.check import HABITS
from streamveil.plan.own_rows import OwnRows, with_step
from streamveil.plan.plan import SourceSpec, Window
from streamveil.sql import own_rows
from streamveil.sql.options import instant, interval, length, whole, word
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


@dataclass
class From:
    """What FROM brings into scope."""

    source: SourceSpec
    window: Window = field(default_factory=Window)
    where: list[str] = field(default_factory=list)
    columns: dict[str, exp.Expr] | None = None  # of a row-wise subquery; None: the table's own
    names: set[str] = field(default_factory=set)  # qualifiers that mean this table
    rest: bool = False  # whether all columns of the table are there besides `columns`

    def expression(self, text: str, what: str) -> str:
        """An expression of the clause, over columns of the source."""
        if self.columns is None:
            return text
        try:
            return row_text(parse_text(text, what), self)
        except PlanError as error:
            raise PlanError(f"{what}: {error}") from None

    def own_column(self, name: str, what: str) -> str:
        """A column by which rows are read: of the source, under whatever name.

        What a subquery computes is known only after a row was read.
        """
        if self.columns is None:
            return name
        value = _named(self, name, what)
        if not isinstance(value, exp.Column):
            raise PlanError(
                f"{what}: the subquery computes '{shown(name)}', and rows are read by the times "
                "that they come with.\n  to fix  select the column of the source as it is, or "
                "store the computed time"
            )
        return value.name


INNER = {
    "distinct": HABITS["dedupe"],
    "order": HABITS["row-order"],
    "limit": HABITS["row-order"],
    "offset": HABITS["row-order"],
    "windows": HABITS["other-rows"],
    "laterals": HABITS["join"],
    "sample": HABITS["sample"],
}


def only(tree: exp.Expr, allowed: set[str], reasons: Mapping[str, Any]) -> None:
    """Refuses every clause that is present and not allowed."""
    for name, value in tree.args.items():
        if not value or name in allowed:
            continue
        reason = reasons.get(name, INNER.get(name))
        if reason is None:
            raise PlanError(f"'{name.rstrip('_').upper()}' is not available in a private query")
        raise reason.error() if hasattr(reason, "error") else PlanError(f"not available: {reason}")


@dataclass(frozen=True)
class InReach:
    """What a relation may name, and who is protected."""

    sources: Mapping[str, SourceSpec]
    named: Mapping[str, exp.Expr]  # by WITH
    unit: exp.Expr | None  # over the columns of the relation


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
    inner = _relation(clause.this, InReach(sources, named, protected))
    return _with_lists(tree, inner, protected)


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
    return From(_source(name, known.sources), names={node.alias or name, PurePath(name).stem})


def _source(name: str, sources: Mapping[str, SourceSpec]) -> SourceSpec:
    for known, spec in sources.items():
        if known.lower() == name.lower():
            return spec
    path = PurePath(name)
    if path.suffix.lower() in FILES or "/" in name or "*" in name:
        stem = path.stem if "*" not in path.stem else path.parent.name
        return SourceSpec(name=stem or "files", kind="files", options={"path": name})
    raise PlanError(
        f"unknown table '{shown(name)}'{nearest(name, sources) if sources else '.'}\n"
        "  to fix  CREATE STREAM name WITH (source = 'files', path = '...'), or write the path of "
        "a file or folder in quotes ('clicks.csv', 'clicks/')"
    )


def _subquery(tree: exp.Expr, alias: str, known: InReach) -> From:
    """A subquery of columns and WHERE is the same as computing them here; more is `own_rows`."""
    if not isinstance(tree, exp.Select):
        raise HABITS["other-rows"].error()
    only(tree, {"expressions", "from_", "where", "joins", *own_rows.COMBINING}, INNER)
    clause = tree.args.get("from_")
    if clause is None:
        raise PlanError("FROM is missing in the subquery")
    unit = None if known.unit is None else _unit_within(known.unit, tree.expressions, alias)
    inner = _with_lists(tree, _relation(clause.this, replace(known, unit=unit)), unit)
    where = list(inner.where)
    if tree.args.get("where"):
        where.append(row_text(tree.args["where"].this, inner))
    columns, rest = _columns(tree.expressions, inner)
    made = From(inner.source, inner.window, where, columns, {alias} if alias else set(), rest)
    return _combined(tree, inner, made, unit) if own_rows.combines(tree) else made


def _unit_within(unit: exp.Expr, items: list[exp.Expr], alias: str) -> exp.Expr:
    """The privacy unit over what a subquery selects from, from that over what it selects."""
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
    """A subquery in which rows of one person meet."""
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
        """HAVING and QUALIFY, which may name what is selected."""
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


def _with_lists(tree: exp.Expr, inner: From, unit: exp.Expr | None) -> From:
    """FROM t, UNNEST(...) AS x: a row for each element; any other join is refused."""
    for join in tree.args.get("joins") or ():
        node = join.this
        plain = not (join.side or join.args.get("on") or join.args.get("using"))
        if not isinstance(node, exp.Unnest) or not plain:
            raise HABITS["join"].error()
        alias = node.args.get("alias")
        names = [*alias.columns, *filter(None, [alias.this])] if alias else []
        if len(names) != 1 or len(node.expressions) != 1 or node.args.get("offset"):
            raise PlanError("write FROM t, UNNEST(SPLIT(column, ',')) AS name, without OFFSET")
        if unit is None:
            raise PlanError(
                "UNNEST needs to know who is protected.\n"
                "  to fix  privacy_unit_column = user_id in the OPTIONS"
            )
        step = own_rows.unnest_of(resolved(node.expressions[0], inner), names[0].name, inner.where)
        unit_text = row_text(unit, inner)
        source = with_step(inner.source, unit_text, step)
        columns = inner.columns
        if columns is not None:
            columns = {**columns, step.name: exp.column(step.name, quoted=True)}
        inner = replace(inner, source=source, where=[], columns=columns)
    return inner


def _aliased(node: exp.Expr, items: list[exp.Expr]) -> exp.Expr:
    """A name of the SELECT list as what it stands for."""
    if not isinstance(node, exp.Column) or node.args.get("table"):
        return node
    for item in items:
        if isinstance(item, exp.Alias) and item.alias.lower() == node.name.lower():
            return exp.Paren(this=item.this.copy())
    return node


def _grouped(tree: exp.Expr) -> list[exp.Expr]:
    """What GROUP BY of a subquery names, as expressions."""
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
            raise PlanError("ROLLUP, CUBE and GROUPING SETS go into the private SELECT")
        if isinstance(item, exp.Literal):
            place = whole(item, "a position in GROUP BY")
            if not 1 <= place <= len(plain):
                raise PlanError(f"GROUP BY position must be between 1 and {len(plain)}")
            found.append(plain[place - 1])
        else:
            found.append(_aliased(item, tree.expressions).unnest())
    return found


def _columns(items: list[exp.Expr], inner: From) -> tuple[dict[str, exp.Expr] | None, bool]:
    """The columns of a subquery by name, None for those of the table; and whether those go on."""
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
            raise PlanError(
                f"{name} has no argument '{shown(argument)}'{nearest(argument, arguments)}"
            )
    missing = [argument for argument in wanted if argument not in given]
    if len(plain) != 2 or missing:
        form = ", ".join(f"{argument} => INTERVAL n UNIT" for argument in wanted)
        raise PlanError(f"write {name}(TABLE t, DESCRIPTOR(time_column), {form})")
    lengths = {key: length(given[key].expression, f"{key} of {name}") for key in wanted}
    placed = {key: PLACED[key](given[key].expression, key) for key in PLACED if key in given}
    table = plain[0]
    if not isinstance(table, exp.Column) or not isinstance(table.this, exp.Identifier):
        raise PlanError(f"the first argument of {name} is TABLE name")
    parts = [table.args.get("catalog"), table.args.get("db"), table.args.get("table"), table.this]
    inner = _relation(
        exp.Table(this=exp.to_identifier(".".join(p.name for p in parts if p))), scope
    )
    time = inner.own_column(_descriptor(plain[1], name), f"DESCRIPTOR of {name}")
    combined = isinstance(inner.source, OwnRows) and not inner.source.row_by_row
    known = time if combined else inner.source.event_time or time
    if known.lower() != time.lower():
        raise PlanError(
            f"DESCRIPTOR({shown(time)}) is not the event_time of '{inner.source.name}'; windows "
            "and lateness follow one time"
        )
    inner.source = replace(inner.source, event_time=known)
    inner.window = window_of(kind, lengths["size"], lengths.get(second or ""), **placed)
    inner.names |= {node.alias} if node.alias else set()
    return inner


_LOWER = [name.lower() for name in WINDOWS]


def _descriptor(tree: exp.Expr, name: str) -> str:
    is_call = isinstance(tree, exp.Anonymous) and str(tree.this).upper() == "DESCRIPTOR"
    if not is_call or len(tree.expressions) != 1:
        raise PlanError(f"the second argument of {name} is DESCRIPTOR(time_column)")
    return word(tree.expressions[0], "the column of DESCRIPTOR")


def resolved(tree: exp.Expr, scope: From) -> exp.Expr:
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
        value = _named(scope, column.name).copy()
        new = value if isinstance(value, exp.Column | exp.Literal) else exp.Paren(this=value)
        if column is copy:
            copy = new
        else:
            column.replace(new)
    return copy


def _named(scope: From, name: str, what: str = "") -> exp.Expr:
    """A column of a subquery, by its name in any case."""
    columns = scope.columns or {}
    known = {one.lower(): value for one, value in columns.items()}
    if name.lower() in known:
        return known[name.lower()]
    if scope.rest:
        return exp.column(name, quoted=True)
    where = f"{what}: " if what else ""
    raise PlanError(f"{where}unknown column '{shown(name)}'{nearest(name, columns)}")


def row_text(tree: exp.Expr, scope: From) -> str:
    """An expression over columns of the source, as plans store it."""
    return canonical(resolved(tree, scope))
