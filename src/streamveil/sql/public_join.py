"""GoogleSQL's way to name public groups: RIGHT JOIN with a list or a public table.

    FROM t RIGHT JOIN (SELECT DISTINCT item FROM UNNEST(['a', 'b']) AS item) USING (item)
    FROM t RIGHT JOIN (SELECT DISTINCT item FROM catalogue) USING (item)

Such a join adds no row of anybody: it says which groups to show. The table must be declared public.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from streamveil.errors import PlanError, nearest
from streamveil.expressions.dialect import shown
from streamveil.plan import SourceSpec
from streamveil.plan.check import HABITS
from streamveil.plan.options import PUBLIC_GROUPS
from streamveil.sql.assemble import Draft, read_groups
from streamveil.sql.options import constant

Groups = tuple[str, tuple[tuple[Any, ...], ...]]  # the column, and one tuple per group


def take_public_join(tree: exp.Expr, sources: Mapping[str, SourceSpec]) -> Groups | None:
    """Removes a join with public groups from a SELECT and returns them; other joins stay."""
    joins = tree.args.get("joins") or []
    if len(joins) != 1 or joins[0].side != "RIGHT":
        return None
    join = joins[0]
    using = join.args.get("using") or []
    if len(using) != 1:
        raise PlanError(
            "RIGHT JOIN names public groups, and ends with USING (column).\n  to fix  for a join by"
            " the privacy unit name the tables the other way round, with LEFT JOIN"
        )
    column = str(using[0].name)
    groups = _groups(join.this, column, sources)
    tree.set("joins", None)
    return column, groups


def _groups(
    node: exp.Expr, column: str, sources: Mapping[str, SourceSpec]
) -> tuple[tuple[Any, ...], ...]:
    if isinstance(node, exp.Subquery):
        inner = node.this
        allowed = {"expressions", "from_", "distinct", "kind"}
        plain = isinstance(inner, exp.Select) and not any(
            value for name, value in inner.args.items() if name not in allowed
        )
        named = [item.alias_or_name for item in inner.expressions] if plain else []
        if named != [column] or inner.args.get("from_") is None:
            raise PlanError(
                f"public groups of '{shown(column)}' are a subquery with that column alone: "
                "DISTINCT, without WHERE"
            )
        return _groups(inner.args["from_"].this, column, sources)
    if isinstance(node, exp.Unnest) and len(node.expressions) == 1:
        values = node.expressions[0]
        if isinstance(values, exp.Array):
            return tuple((constant(item, "a public group"),) for item in values.expressions)
    if isinstance(node, exp.Table):
        return _from_table(".".join(part.name for part in node.parts), column, sources)
    raise HABITS["join"].error()


def _from_table(
    name: str, column: str, sources: Mapping[str, SourceSpec]
) -> tuple[tuple[Any, ...], ...]:
    spec = sources.get(name)
    if spec is None:
        raise PlanError(f"unknown table '{shown(name)}'{nearest(name, sources) if sources else ''}")
    if not spec.public:
        raise PlanError(
            f"'{shown(name)}' is not declared public, so it cannot name groups.\n"
            "  why     which groups appear would depend on its rows\n"
            f"  to fix  CREATE TABLE {shown(name)} WITH (..., public = TRUE), if nobody's data "
            "is in it"
        )
    return read_groups(spec.options.get("path"), [column])


def only_groups(
    groups: Groups, draft: Draft, values: Mapping[str, Any]
) -> tuple[tuple[Any, ...], ...]:
    """The groups, when they are those of the query."""
    column, found = groups
    names = [key.name.lower() for key in draft.keys]
    plain = [key.expression.strip("`").lower() for key in draft.keys]
    if len(names) != 1 or column.lower() not in (names[0], plain[0]):
        raise PlanError(f"public groups of '{shown(column)}' need GROUP BY {shown(column)} alone")
    if values.get(PUBLIC_GROUPS.name) is not None:
        raise PlanError("public groups are given twice: by public_groups and by a join")
    return tuple(dict.fromkeys(found))
