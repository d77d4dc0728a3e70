"""Resolves names to the columns that FROM brings into scope; refuses unsupported clauses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from streamveil.errors import PlanError, nearest
from streamveil.expressions.dialect import canonical, join_path, parse_text, shown
from streamveil.plan import SourceSpec, Window
from streamveil.plan.check import HABITS


@dataclass
class From:
    """What FROM brings into scope."""

    source: SourceSpec
    window: Window = field(default_factory=Window)
    where: list[str] = field(default_factory=list)
    columns: dict[str, exp.Expr] | None = None  # of a row-wise subquery; None: the table's own
    names: set[str] = field(default_factory=set)  # qualifiers that mean this table
    rest: bool = False  # whether all columns of the table are in scope besides `columns`
    sides: dict[str, str] = field(default_factory=dict)  # of a join: qualifier -> side it names
    same: frozenset[tuple[str, str]] = frozenset()  # (qualifier, column) of the unit, on no side
    parts: dict[str, frozenset[str]] = field(default_factory=dict)  # UNNEST column -> tables then

    def expression(self, text: str, what: str) -> str:
        """An expression of the clause, over columns of the source."""
        try:
            return row_text(parse_text(text, what), self)
        except PlanError as error:
            raise PlanError(f"{what}: {error}") from None

    def own_column(self, name: str, what: str) -> str:
        """The source's own name of a column by which rows are read.

        A column that a subquery computes is refused: it is known only after a row was read.
        """
        if self.columns is None:
            return name
        value = named_column(self, name, what)
        if not isinstance(value, exp.Column):
            raise PlanError(
                f"{what}: the subquery computes '{shown(name)}', and rows are read by the times "
                "that they come with.\n  to fix  select the column of the source as it is, or "
                "store the computed time"
            )
        return self._as_read(value.name)

    def _as_read(self, name: str) -> str:
        """A column of the source; the time of a join's first table by the name it is read with."""
        time = self.source.event_time
        if time is None or not self.source.combines:
            return name
        from streamveil.plan.own_rows import OwnRows  # loaded where rows are combined

        if not (isinstance(self.source, OwnRows) and self.source.row_by_row):
            return name
        read = self.source.as_read(name)
        return read if read is not None and read.lower() == time.lower() else name


INNER = {
    "distinct": HABITS["dedupe"],
    "order": HABITS["row-order"],
    "limit": HABITS["row-order"],
    "offset": HABITS["row-order"],
    "windows": HABITS["other-rows"],
    "laterals": HABITS["join"],
    "sample": HABITS["sample"],
    "pivots": "PIVOT.\n  to fix  COUNTIF(event = 'view') AS views, a column for each value",
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
    """The tables that a relation may name, and who is protected."""

    sources: Mapping[str, SourceSpec]
    named: Mapping[str, exp.Expr]  # by WITH
    unit: exp.Expr | None  # over the columns of the relation


def resolved(tree: exp.Expr, scope: From) -> exp.Expr:
    """The tree over columns of the source: without qualifiers, with subquery columns expanded."""
    copy = tree.copy()
    for column in list(copy.find_all(exp.Column)):
        if isinstance(column.parent, exp.Kwarg):
            continue  # a word, as in report_format => DEFAULT
        first, *field = column.parts
        join_path(column, first if field and first.name in scope.names else None)
        table = column.args.get("table")
        if table is not None:
            if table.name in scope.parts.get(column.name.lower(), ()):
                name, of = shown(column.name), shown(table.name)
                raise PlanError(
                    f"'{of}.{name}': {name} is what UNNEST makes, and no column of {of}.\n"
                    f"  to fix  {name} alone, or UNNEST(...) AS another name where {of} has such a"
                    " column"
                )
            column.set("table", None)
            if table.name in scope.sides and (table.name, column.name.lower()) not in scope.same:
                side = f"{scope.sides[table.name]}:{column.name}"
                column.set("this", exp.to_identifier(side, quoted=True))
        if scope.columns is None:
            continue
        value = named_column(scope, column.name).copy()
        new = value if isinstance(value, exp.Column | exp.Literal) else exp.Paren(this=value)
        if column is copy:
            copy = new
        else:
            column.replace(new)
    return copy


def named_column(scope: From, name: str, what: str = "") -> exp.Expr:
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
