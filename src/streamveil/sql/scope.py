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
from streamveil.plan.plan import SourceSpec, Window
from streamveil.sql.aggregates import is_aggregate
from streamveil.sql.options import instant, interval, length, word
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
        value = _named(self.columns, name, what)
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
    "group": HABITS["other-rows"],
    "having": HABITS["other-rows"],
    "qualify": HABITS["other-rows"],
    "windows": HABITS["other-rows"],
    "joins": HABITS["join"],
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


def read_from(tree: exp.Expr, sources: Mapping[str, SourceSpec]) -> From:
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
    return _relation(clause.this, sources, named)


def _relation(
    node: exp.Expr, sources: Mapping[str, SourceSpec], named: Mapping[str, exp.Expr]
) -> From:
    if isinstance(node, exp.Subquery):
        only(node, {"this", "alias"}, INNER)
        return _subquery(node.this, node.alias, sources, named)
    if not isinstance(node, exp.Table):
        raise PlanError(f"FROM '{shown(canonical(node))}' is not a table")
    only(node, {"this", "db", "catalog", "alias"}, INNER)
    if isinstance(node.this, exp.Anonymous):
        return _windowed(node, sources, named)
    name = ".".join(part.name for part in node.parts)
    if name.lower() in named:
        rest = {key: value for key, value in named.items() if key != name.lower()}
        return _subquery(named[name.lower()], node.alias or name, sources, rest)
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
        f"unknown table '{shown(name)}'{nearest(name, sources) if sources else '.'}\n"
        "  to fix  CREATE STREAM name WITH (source = 'files', path = '...'), or write the path of "
        "a file or folder in quotes ('clicks.csv', 'clicks/')"
    )


def _subquery(
    tree: exp.Expr, alias: str, sources: Mapping[str, SourceSpec], named: Mapping[str, exp.Expr]
) -> From:
    """A row-wise subquery (columns and WHERE) is the same as computing them here."""
    if not isinstance(tree, exp.Select):
        raise HABITS["other-rows"].error()
    only(tree, {"expressions", "from_", "where"}, INNER)
    clause = tree.args.get("from_")
    if clause is None:
        raise PlanError("FROM is missing in the subquery")
    inner = _relation(clause.this, sources, named)
    where = list(inner.where)
    if tree.args.get("where"):
        where.append(row_text(tree.args["where"].this, inner))
    columns = _columns(tree.expressions, inner)
    return From(inner.source, inner.window, where, columns, {alias} if alias else set())


def _columns(items: list[exp.Expr], inner: From) -> dict[str, exp.Expr] | None:
    """The columns of a subquery by name; None: all those of the table itself."""
    if len(items) == 1 and isinstance(items[0], exp.Star) and not any(items[0].args.values()):
        return inner.columns
    columns: dict[str, exp.Expr] = {}
    for item in items:
        if item.is_star:
            raise PlanError(
                f"'{shown(canonical(item))}' in a subquery: only SELECT * alone stands for all "
                "columns.\n  to fix  name the columns"
            )
        if is_aggregate(item.unalias()):
            raise HABITS["other-rows"].error()
        name = item.alias_or_name
        if name.lower() in {known.lower() for known in columns if known}:
            raise PlanError(
                f"two columns of the subquery are called '{shown(name)}'.\n"
                "  to fix  give one another name with AS"
            )
        columns[name] = resolved(item.unalias(), inner)
    return columns


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
        exp.Table(this=exp.to_identifier(".".join(p.name for p in parts if p))), sources, named
    )
    time = inner.own_column(_descriptor(plain[1], name), f"DESCRIPTOR of {name}")
    known = inner.source.event_time or time
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
        value = _named(scope.columns, column.name).copy()
        new = value if isinstance(value, exp.Column | exp.Literal) else exp.Paren(this=value)
        if column is copy:
            copy = new
        else:
            column.replace(new)
    return copy


def _named(columns: Mapping[str, exp.Expr], name: str, what: str = "") -> exp.Expr:
    """A column of a subquery, by its name in any case."""
    known = {one.lower(): value for one, value in columns.items()}
    if name.lower() not in known:
        where = f"{what}: " if what else ""
        raise PlanError(f"{where}unknown column '{shown(name)}'{nearest(name, columns)}")
    return known[name.lower()]


def row_text(tree: exp.Expr, scope: From) -> str:
    """An expression over columns of the source, as plans store it."""
    return canonical(resolved(tree, scope))
