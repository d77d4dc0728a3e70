"""Joins of released rows by the columns of their groups: of several private answers, or of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from sqlglot import exp

from streamveil.errors import PlanError, nearest
from streamveil.expressions.dialect import canonical, shown
from streamveil.plan import KEPT, RESERVED, Post, PostJoin
from streamveil.release_metadata import SUFFIXES
from streamveil.sql.names import only

Sides = Mapping[str, Mapping[str, str]]
How = Literal["inner", "left", "right", "full"]
HOWS: dict[str, How] = {"": "inner", "LEFT": "left", "RIGHT": "right", "FULL": "full"}


class Relation(NamedTuple):
    """Rows in FROM: the steps that make them, their columns, and the columns of each table name."""

    steps: tuple[Post, ...]
    columns: tuple[str, ...]
    sides: Sides


def named_relation(steps: tuple[Post, ...], columns: tuple[str, ...], name: str) -> Relation:
    """Rows under one name; without a name their columns have no qualifier."""
    own = {column.lower(): column for column in columns}
    return Relation(steps, columns, {name.lower(): own} if name else {})


def joined(left: Relation, right: Relation, join: exp.Join) -> Relation:
    """Pairs of rows with equal columns of groups; without such columns, all pairs."""
    only(join, {"this", "side", "kind", "using", "on"}, {"method": "NATURAL JOIN: write USING"})
    how = HOWS.get(join.side.upper())
    if how is None or join.kind.upper() not in ("", "INNER", "OUTER", "CROSS"):
        raise PlanError(
            f"{shown(join.side)} {shown(join.kind)} JOIN of released rows is not supported.\n"
            "  to fix  JOIN, LEFT JOIN, RIGHT JOIN, FULL JOIN or CROSS JOIN"
        )
    written = [one.name for one in join.args.get("using") or ()]
    using = [name for name in written if name.lower() not in KEPT]  # those are equal anyway
    on = [(_find(left, name), _find(right, name)) for name in using]
    on += _equal(join.args.get("on"), left, right)
    if how != "inner" and not on and not written:
        raise PlanError(f"{shown(join.side)} JOIN needs USING (day) or ON a.day = b.day")
    for column, relation in [(pair[at], (left, right)[at]) for pair in on for at in (0, 1)]:
        if column in noisy(relation.columns) or column in ends(relation.columns):
            raise PlanError(
                f"'{shown(column)}' is a noisy number: rows are joined by columns of groups.\n"
                "  to fix  JOIN ... USING (day)"
            )
    shared = {pair[1] for pair in on[: len(using)]}
    names = _names(left, right, shared)
    made = PostJoin(
        left=left.steps, right=right.steps, how=how, on=tuple(on),
        left_names=tuple(names[0].items()), right_names=tuple(names[1].items()),
        using=tuple((names[0][one], other) for one, other in on[: len(using)]),
    )  # fmt: skip
    sides = {}
    for relation, own in zip((left, right), names, strict=True):
        for table, known in relation.sides.items():
            if table in sides:
                raise PlanError(
                    f"two tables are called '{shown(table)}'.\n  to fix  give one a name with AS"
                )
            sides[table] = {was: own[now] for was, now in known.items() if now in own}
    for one, other in on[: len(using)]:
        for table, known in right.sides.items():
            sides[table] |= {was: names[0][one] for was, now in known.items() if now == other}
    columns = tuple(dict.fromkeys([*names[0].values(), *names[1].values(), *KEPT]))
    return Relation((Post(join=made),), columns, sides)


def noisy(columns: tuple[str, ...]) -> set[str]:
    """Columns that have an interval beside them, as far as a plan shows."""
    return {name for name in columns if name + SUFFIXES[0] in columns}


def ends(columns: tuple[str, ...]) -> set[str]:
    """The columns beside noisy numbers."""
    return {name + end for name in noisy(columns) for end in SUFFIXES}


def _find(relation: Relation, name: str) -> str:
    found = [column for column in relation.columns if column.lower() == name.lower()]
    if len(found) != 1:
        raise PlanError(
            f"'{shown(name)}' is not a column of both answers{nearest(name, relation.columns)}"
        )
    return found[0]


def _equal(on: Any, left: Relation, right: Relation) -> Iterator[tuple[str, str]]:
    """The pairs of `a.x = b.y AND ...`."""
    if on is None:
        return
    for part in on.unnest().flatten() if isinstance(on.unnest(), exp.And) else [on.unnest()]:
        part = part.unnest()
        pair = (part.this, part.expression) if isinstance(part, exp.EQ) else ()
        places = [_place(one, left, right) for one in pair]
        if sorted(side for side, _ in places) != [0, 1]:
            raise PlanError(
                f"ON {shown(canonical(part))}: released rows are joined by equal columns.\n"
                "  to fix  ON a.day = b.day, and other conditions in WHERE"
            )
        (_, one), (_, other) = sorted(places)
        if one in KEPT and one == other:  # only rows of the same window and trigger are joined
            continue
        if one in KEPT or other in KEPT:
            raise PlanError(
                f"ON {shown(canonical(part))}: rows of one window and trigger meet, no others.\n"
                "  to fix  leave the window out, or join by columns of groups"
            )
        yield one, other


def _place(tree: exp.Expr, left: Relation, right: Relation) -> tuple[int, str]:
    """The side of a column, and its name there; -1: neither or both."""
    if isinstance(tree, exp.Column):
        table = tree.args.get("table")
        found = []
        for side, relation in enumerate((left, right)):
            if table is not None:
                own = relation.sides.get(table.name.lower(), {})
            else:
                own = {name.lower(): name for name in relation.columns}
            found += [(side, own[tree.name.lower()])] if tree.name.lower() in own else []
        if len(found) == 1:
            return found[0]
    return -1, ""


def _names(left: Relation, right: Relation, shared: set[str]) -> tuple[dict[str, str], ...]:
    """The names of the columns of both sides: their own names where those are unambiguous."""
    kept = [[c for c in one.columns if c not in RESERVED] for one in (left, right)]
    kept[1] = [column for column in kept[1] if column not in shared]
    bases = [{_base(c, one.columns).lower() for c in own} for one, own in
             zip((left, right), kept, strict=True)]  # fmt: skip
    taken = {column.lower() for own in kept for column in own}
    made = []
    for side, (relation, own) in enumerate(zip((left, right), kept, strict=True)):
        names = {}
        for column in own:
            base = _base(column, relation.columns)
            names[column] = column
            if base.lower() in bases[1 - side]:
                before = _table_of(relation, column)
                while f"{before}_{base}".lower() in taken:
                    before += "_"
                names[column] = f"{before}_{column}"
        made.append(names)
    return tuple(made)


def _table_of(relation: Relation, column: str) -> str:
    found = [table for table, own in relation.sides.items() if column in own.values()]
    if not found:
        raise PlanError(
            f"both answers have a column '{shown(column)}'.\n"
            "  to fix  give both a name: FROM (...) AS a JOIN (...) AS b"
        )
    return found[0]


def _base(column: str, columns: tuple[str, ...]) -> str:
    """The noisy number to whose noise or interval a column belongs; else the column itself."""
    return next((column.removesuffix(end) for end in SUFFIXES if column.endswith(end)
                 and column.removesuffix(end) in noisy(columns)), column)  # fmt: skip
