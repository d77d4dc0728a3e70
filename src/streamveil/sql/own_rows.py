"""Subqueries that combine one person's own rows: GROUP BY, DISTINCT and OVER by the privacy unit.

A subquery that could combine rows of two people is refused here, with the reason. Every other one
becomes steps (`plan.own_rows`), which cannot name the unit and so cannot leave it out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from streamveil.errors import PlanError, nearest
from streamveil.expressions import conjunction, normalize_expression
from streamveil.expressions.dialect import canonical, parse_text, shown
from streamveil.plan import KeyColumn, SortKey, SourceSpec
from streamveil.plan.check import HABITS
from streamveil.plan.own_columns import MOVED, PLACES, RUNNING, TOTALS, OwnColumn
from streamveil.plan.own_rows import (
    SET,
    OwnGroup,
    OwnRows,
    OwnSets,
    OwnStep,
    OwnUnnest,
    OwnWindows,
    with_person,
    with_step,
)
from streamveil.sql.aggregates import function_name, is_aggregate
from streamveil.sql.options import NO_UNIT, sort_key, text, whole

CHOSEN = {"MIN_BY": False, "MAX_BY": True}  # whether the order by the second argument descends
CALLS = frozenset({*TOTALS, *CHOSEN, "COUNTIF"} - {"COUNT DISTINCT"})
WHOLE = ("UNBOUNDED", "PRECEDING", "UNBOUNDED", "FOLLOWING")  # frames: the partition, up to a row
SO_FAR = (("RANGE", *WHOLE[:2], None, None), ("RANGE", *WHOLE[:2], "CURRENT ROW", None))
COMBINING = ("group", "having", "qualify", "distinct")  # clauses of a subquery


@dataclass
class OwnScope:
    """A subquery that is being read: trees over columns of its table after the steps so far."""

    source: SourceSpec
    where: list[str]  # conditions that hold from here on
    unit: exp.Expr
    items: dict[str, exp.Expr]  # by output name
    group: list[exp.Expr] = field(default_factory=list)
    having: exp.Expr | None = None
    qualify: exp.Expr | None = None
    distinct: bool = False

    def trees(self) -> Iterator[exp.Expr]:
        """Everything that may still mention columns."""
        yield from (self.unit, *self.items.values(), *self.group)
        yield from (tree for tree in (self.having, self.qualify) if tree is not None)

    def rewritten(self, change: Callable[[exp.Expr], exp.Expr]) -> None:
        """Replaces nodes of every tree, from the top."""
        self.items = {name: tree.copy().transform(change) for name, tree in self.items.items()}
        self.unit = self.unit.copy().transform(change)
        for name in ("having", "qualify"):
            tree = getattr(self, name)
            setattr(self, name, tree and tree.copy().transform(change))

    def add(self, step: OwnStep, unit: exp.Expr) -> None:
        """Adds a step, which takes the conditions so far; `unit`: over the columns it reads."""
        where = conjunction(self.where) if self.where else None
        self.source = with_step(self.source, texts_of(unit), replace(step, where=where))
        self.where = []

    def named(self, tree: exp.Expr, stem: str, taken: set[str]) -> str:
        """A name for a new column: that of the item it computes, unless it is taken."""
        text = canonical(tree)
        own = [name for name, value in self.items.items() if canonical(value) == text]
        more = (f"{stem}_{place}" for place in itertools.count(2))
        name = next(n for n in itertools.chain(own, [stem], more) if n.lower() not in taken)
        taken.add(name.lower())
        return name


def combines(tree: exp.Expr) -> bool:
    """Whether a subquery does more than compute and filter row by row."""
    return any(tree.args.get(name) for name in COMBINING) or any(
        isinstance(node, exp.Window) or is_total(node)
        for item in tree.expressions
        for node in item.walk()
    )


def is_total(node: exp.Expr) -> bool:
    """Whether a node is a total over rows, and not a window function."""
    over = isinstance(node.parent, exp.Window) and node.arg_key == "this"
    return isinstance(node, exp.Anonymous) and not over and function_name(node) in CALLS


def unnamed_windows(tree: exp.Expr) -> exp.Expr:
    """A SELECT with its named windows written out where they are used."""
    named = {one.name.lower(): one for one in tree.args.get("windows") or ()}
    if not named:
        return tree
    copy = tree.copy()
    copy.set("windows", None)
    own = [one for one in copy.find_all(exp.Window) if one.parent_select is copy]  # not of others
    for window in own:
        for _ in named:  # a window may refer to another
            alias = window.args.get("alias")
            found = named.get(alias.name.lower()) if alias else None
            if found is None:
                break
            parts = found.copy().args
            for part in ("partition_by", "order", "spec"):
                window.set(part, window.args.get(part) or parts.get(part))
            window.set("alias", parts.get("alias"))
    return copy


def combined(scope: OwnScope) -> OwnScope:
    """All steps of a subquery, in the order of SQL: GROUP BY, HAVING, OVER, QUALIFY, DISTINCT."""
    time, earlier = scope.source.event_time, len(getattr(scope.source, "steps", ()))
    distinct, scope.distinct = scope.distinct, False
    if scope.group or scope.having or any(is_total(node) for node in nodes(scope)):
        group_rows(scope)
    if scope.having is not None:
        scope.where.append(texts_of(scope.having))
        scope.having = None
    if any(isinstance(node, exp.Window) for node in nodes(scope)):
        add_windows(scope)
    if scope.qualify is not None:
        scope.where.append(texts_of(scope.qualify))
        scope.qualify = None
    if distinct:
        scope.group, scope.distinct = list(scope.items.values()), True
        group_rows(scope)
    scope.source = replace(scope.source, event_time=time_of(scope, time, earlier))
    return scope


def time_of(scope: OwnScope, time: str | None, earlier: int) -> str | None:
    """The column of times after these steps: that of the same name, if steps kept it."""
    assert isinstance(scope.source, OwnRows)  # noqa: S101  (steps were just added)
    for name, tree in scope.items.items():
        if time and name.lower() == time.lower() and isinstance(tree, exp.Column):
            return str(tree.name)
    grouped = any(isinstance(step, OwnGroup) for step in scope.source.steps[earlier:])
    return None if grouped else time


def nodes(scope: OwnScope) -> Iterator[exp.Expr]:
    """All nodes of the selected items and of conditions on them."""
    for tree in (*scope.items.values(), scope.having, scope.qualify):
        if tree is not None:
            yield from tree.walk()


def require_unit(parts: Sequence[exp.Expr], unit: exp.Expr, clause: str) -> None:
    """Refuses groups that may hold rows of two people.

    Proof: rows that agree in the unit's expression, or in all columns that it reads, are one
        unit's.
    """
    texts = {texts_of(part) for part in parts}
    columns = {texts_of(column) for column in unit.find_all(exp.Column)}
    if texts_of(unit) in texts or (columns and columns <= texts):
        return
    habit = HABITS["dedupe" if clause == "DISTINCT" else "other-rows"]
    raise PlanError(
        f"refused: {habit.name}: {clause} without the privacy unit.\n  why     {habit.reason}\n"
        f"  to fix  {habit.way_out}: {clause} {shown(texts_of(unit))}"
    )


def group_rows(scope: OwnScope) -> None:
    """GROUP BY and its totals."""
    require_unit(scope.group, scope.unit, "DISTINCT" if scope.distinct else "GROUP BY")
    before = scope.unit
    taken = {name.lower() for name, tree in scope.items.items() if is_total(tree)}
    keys: dict[str, str] = {}  # text -> name
    for tree in scope.group:
        stem = tree.name if isinstance(tree, exp.Column) else "key"
        keys.setdefault(texts_of(tree), scope.named(tree, stem, taken))
    totals: dict[str, OwnColumn] = {}
    others: list[exp.Expr] = []  # columns of single rows

    def change(node: exp.Expr) -> exp.Expr:
        text = canonical(node)
        if is_total(node):
            own = {name.lower() for name, tree in scope.items.items() if canonical(tree) == text}
            if text not in totals:
                name = scope.named(node, "total", taken - own)
                taken.add(name.lower())
                totals[text] = total_of(node, name)
            return exp.column(totals[text].name, quoted=True)
        known = None if isinstance(node, exp.Identifier) else keys.get(text_or_none(node) or "")
        if known is None and isinstance(node, exp.Column):
            others.append(node)
        return node if known is None else exp.column(known, quoted=True)

    scope.rewritten(change)
    scope.group = []
    for tree in scope.trees():
        called = (function_name(call) for call in tree.walk() if is_aggregate(call))
        for function in (one for one in called if one not in CALLS):
            raise PlanError(
                f"{function} cannot combine one person's rows.\n"
                f"  to fix  {', '.join(sorted(CALLS))}; for the n-th row of each person"
                " ROW_NUMBER() OVER (PARTITION BY unit ORDER BY time) in QUALIFY, beside LEAD for"
                " those that follow"
            )
    if others:
        raise PlanError(
            f"'{shown(others[0].name)}' is neither in GROUP BY of the subquery nor in a total.\n"
            "  to fix  GROUP BY it too, or take MIN, MAX or ANY_VALUE of it"
        )
    columns = tuple(KeyColumn(name=name, expression=text) for text, name in keys.items())
    scope.add(OwnGroup(keys=columns, columns=tuple(totals.values())), before)


def add_windows(scope: OwnScope) -> None:
    """Functions with OVER."""
    taken = {c.name.lower() for tree in scope.trees() for c in tree.find_all(exp.Column)}
    made: dict[str, OwnColumn] = {}

    def change(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Window):
            return node
        text = canonical(node)
        if text not in made:
            made[text] = window_of(node, scope.named(node, "window", taken), scope.unit)
        return exp.column(made[text].name, quoted=True)

    scope.rewritten(change)
    scope.add(OwnWindows(columns=tuple(made.values())), scope.unit)


def total_of(call: Any, name: str) -> OwnColumn:
    """A total of one unit's rows."""
    function, arguments = function_name(call), list(call.expressions)
    if function == "ANY_VALUE" and arguments and isinstance(chosen := arguments[0], exp.HavingMax):
        function = "MAX_BY" if chosen.args.get("max") else "MIN_BY"
        arguments = [chosen.this, chosen.expression]
    if function in CHOSEN and len(arguments) == 2:
        value, by = map(texts_of, arguments)
        text = normalize_expression(f"IF({by} IS NULL, NULL, {value})")
        order = SortKey(expression=by, descending=CHOSEN[function], nulls_first=False)
        return OwnColumn(name=name, function="FIRST_VALUE", expression=text, order=(order,))
    if any(isinstance(argument, exp.Kwarg) for argument in arguments):
        raise PlanError(
            f"{function} in a subquery by the privacy unit is of one person's rows, and exact: it"
            " takes no bounds.\n  to fix  bound the values in the private SELECT around it"
        )
    if len(arguments) != 1:
        raise PlanError(f"{function} takes one argument, not {len(arguments)}")
    [argument] = arguments
    if function == "COUNT" and isinstance(argument, exp.Star):
        return OwnColumn(name=name, function="COUNT")
    if function == "COUNT" and isinstance(argument, exp.Distinct):
        if len(argument.expressions) != 1:
            raise PlanError("COUNT(DISTINCT x) takes one column")
        inside = texts_of(argument.expressions[0])
        return OwnColumn(name=name, function="COUNT DISTINCT", expression=inside)
    if isinstance(argument, exp.Distinct):
        raise PlanError(
            f"{function}(DISTINCT x): of the totals of a person's rows only COUNT takes DISTINCT.\n"
            "  to fix  SELECT DISTINCT the unit and x in a subquery inside"
        )
    text = texts_of(argument)
    if function == "COUNTIF":
        function, text = "COUNT", normalize_expression(f"IF({text}, TRUE, NULL)")
    return OwnColumn(name=name, function=function, expression=text)


def window_of(node: exp.Expr, name: str, unit: exp.Expr) -> OwnColumn:
    """A function over a window of one unit's rows."""
    call, parts = node.this, list(node.args.get("partition_by") or [])
    function = function_name(call) if isinstance(call, exp.Anonymous) else ""
    if node.args.get("alias"):
        raise PlanError(
            f"'{shown(node.args['alias'].name)}' is not a window that the subquery names.\n"
            "  to fix  WINDOW name AS (PARTITION BY unit ORDER BY time), after FROM and WHERE"
        )
    if call.find(exp.IgnoreNulls, exp.RespectNulls):
        raise PlanError(
            f"'{shown(canonical(node))}': nulls cannot be skipped here.\n  to fix  leave out"
            " IGNORE NULLS and RESPECT NULLS, and rows with nulls by WHERE, in a subquery inside"
        )
    require_unit(parts, unit, "PARTITION BY")
    if function == "LAST_VALUE" and not node.args.get("spec"):
        raise PlanError(
            "LAST_VALUE without a frame is that of the row itself or a tie.\n  to fix  add ROWS"
            " BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING, or FIRST_VALUE with DESC"
        )
    if function not in {*CALLS, *PLACES, *MOVED, "LAST_VALUE"}:
        known = nearest(function, sorted({*CALLS, *PLACES, *MOVED}))
        raise PlanError(f"'{shown(canonical(node))}' is not a window function of a subquery{known}")
    by = tuple(text for text in map(texts_of, parts) if text != texts_of(unit))
    clause = node.args.get("order")
    items = clause.expressions if clause else ()
    order = tuple(sort_key(item, texts_of(item.this)) for item in items)
    if is_whole(node):
        function, order = of_whole(function, order)
    made = OwnColumn(name=name, function=function)
    if function in CALLS:
        made = total_of(call, name)
        if order and made.function not in RUNNING:
            raise PlanError(
                f"{function} with ORDER BY inside OVER is not supported: running totals are COUNT"
                " and SUM.\n  to fix  leave out ORDER BY, for the whole partition"
            )
    elif function in MOVED:
        made = moved_of(function, list(call.expressions), name)
    elif call.expressions:
        raise PlanError(f"{function} takes no argument")
    return replace(made, by=by, order=order or made.order)


def is_whole(node: exp.Expr) -> bool:
    """Whether a function's frame is the whole partition, or equivalent to it.

    Raises PlanError for a frame that is neither the whole partition nor the default one.
    """
    spec, function = node.args.get("spec"), function_name(node.this)
    if spec is None:
        return False
    ends = tuple(spec.args.get(part) for part in ("start", "start_side", "end", "end_side"))
    if ends == WHOLE or (ends[:2] == WHOLE[:2] and function == "FIRST_VALUE"):
        return True
    if (spec.args.get("kind"), *ends) in SO_FAR and function in CALLS:
        return False
    raise PlanError(
        f"'{shown(canonical(node))}' has a frame that is not supported.\n"
        "  to fix  leave out ROWS and RANGE: with ORDER BY a total is up to the row and its ties,"
        " without it over the whole partition; ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED"
        " FOLLOWING is supported too"
    )


def of_whole(function: str, order: tuple[SortKey, ...]) -> tuple[str, tuple[SortKey, ...]]:
    """A function over a whole partition as one without a frame, and its order."""
    if function in CALLS:
        return function, ()
    if function != "LAST_VALUE":
        return function, order
    turned = (
        replace(one, descending=not one.descending, nulls_first=not one.nulls_first)
        for one in order
    )
    return "FIRST_VALUE", tuple(turned)


def moved_of(function: str, arguments: list[exp.Expr], name: str) -> OwnColumn:
    """LAG, LEAD and FIRST_VALUE."""
    if not 1 <= len(arguments) <= 1 + (function != "FIRST_VALUE"):
        raise PlanError(
            f"{function} takes a column"
            + (" and how many rows away" if function != "FIRST_VALUE" else "")
            + ".\n  to fix  IFNULL(...) around it says what to put where there is no row"
        )
    distance = whole(arguments[1], f"the distance of {function}") if arguments[1:] else 1
    if distance < 1:
        raise PlanError(
            f"the distance of {function} must be at least 1, not {distance}.\n"
            "  to fix  the column itself is its value 0 rows away"
        )
    return OwnColumn(
        name=name, function=function, expression=texts_of(arguments[0]), distance=distance
    )


def unnest_of(tree: exp.Expr, name: str, where: list[str]) -> OwnUnnest:
    """UNNEST of a split text, or of a column of lists."""
    condition = conjunction(where) if where else None
    if isinstance(tree, exp.Column):
        return OwnUnnest(name=name, expression=texts_of(tree), where=condition)
    if not isinstance(tree, exp.Anonymous) or function_name(tree) != "SPLIT":
        raise PlanError(f"UNNEST({shown(canonical(tree))}): UNNEST takes SPLIT(...) or a column")
    if len(tree.expressions) not in (1, 2):
        raise PlanError("SPLIT takes a text and what it is split at: SPLIT(tags, ',')")
    between = text(tree.expressions[1], "what SPLIT cuts at") if tree.expressions[1:] else ","
    if not between:
        raise PlanError("SPLIT at the empty text.\n  to fix  name what is between the parts")
    return OwnUnnest(
        name=name, expression=texts_of(tree.expressions[0]), separator=between, where=condition
    )


def texts_of(tree: exp.Expr) -> str:
    """A per-row expression as plans store it; PlanError for anything else."""
    return normalize_expression(canonical(tree.unnest()))


def text_or_none(tree: exp.Expr) -> str | None:
    """A per-row expression as plans store it; None for anything else."""
    try:
        return texts_of(tree)
    except PlanError:
        return None


def with_sets(
    source: SourceSpec, keys: tuple[KeyColumn, ...], sets: tuple[tuple[str, ...], ...],
    where: Sequence[str], unit: str | None,
) -> tuple[OwnRows, tuple[KeyColumn, ...], str]:  # fmt: skip
    """The source with each row once for each set of keys, the keys over its columns, the unit."""
    if unit is None:
        raise PlanError(NO_UNIT)
    if any(key.name.lower() == SET for key in keys):
        raise PlanError(f"'{SET}' is the column that tells sets apart.\n  to fix  another name")
    names = [key.name for key in keys]
    plain = (replace(key, expression=normalize_expression(key.expression)) for key in keys)
    step = OwnSets(
        where=conjunction(where) if where else None, keys=tuple(plain),
        sets=tuple(tuple(names.index(name) for name in chosen) for chosen in sets),
    )  # fmt: skip
    made, person = with_person(with_step(source, normalize_expression(unit), step), unit)
    own = (KeyColumn(name=name, expression=step.column(at)) for at, name in enumerate(names))
    return made, (KeyColumn(name=SET, expression=SET), *own), person


def unnest_named(
    source: SourceSpec, unit: str, where: Sequence[str], named: Mapping[str, str]
) -> tuple[OwnRows, str]:
    """The steps of `Stream.unnest`, and the unit after them."""
    if not named:
        raise PlanError("unnest needs a name: unnest(tag=\"SPLIT(tags, ',')\")")
    conditions, person = list(where), normalize_expression(unit)
    for name, written in named.items():
        step = unnest_of(parse_text(written, f"'{name}'"), name, conditions)
        source, person = with_person(with_step(source, person, step), person)
        conditions = []
    assert isinstance(source, OwnRows)  # noqa: S101  (a step was just added)
    return source, person


def combine_named(
    source: SourceSpec, unit: str, where: Sequence[str], by: Sequence[str], named: Mapping[str, str]
) -> OwnRows:
    """The steps of `Stream.per_unit`: totals and keys, or functions of windows."""
    person = parse_text(unit, "the privacy unit")
    items = {name: parse_text(text, f"'{name}'") for name, text in named.items()}
    over = [name for name, tree in items.items() if tree.find(exp.Window)]
    totals = [name for name, tree in items.items() if any(map(is_total, tree.walk()))]
    for name in (*over, *totals):
        if not (isinstance(items[name], exp.Window) or is_total(items[name])):
            raise PlanError(
                f"'{name}' must be one function, not a computation with functions.\n"
                "  to fix  name each function, and compute with the names afterwards"
            )
    if over and (totals or by or len(over) < len(items)):
        raise PlanError(
            "per_unit either groups rows or adds columns by OVER, not both at once.\n"
            "  to fix  call it twice, first for the one and then for the other"
        )
    for name in over:
        parts = items[name].args.get("partition_by") or []
        items[name].set("partition_by", [person.copy(), *parts])
    scope = OwnScope(source=source, where=list(where), unit=person, items=items)
    if not over:
        keys: dict[str, exp.Expr] = {name: exp.column(name, quoted=True) for name in by}
        keys |= {name: items[name] for name in items if name not in totals}
        scope.items = {**keys, **{name: items[name] for name in totals}}
        scope.group = [person.copy(), *keys.values()]
    made = combined(scope)
    assert isinstance(made.source, OwnRows)  # noqa: S101  (steps were just added)
    return with_person(made.source, texts_of(made.unit))[0]
