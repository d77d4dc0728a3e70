"""JOIN, IN (SELECT ...) and UNION ALL of one person's rows, and JOIN with public tables.

Two relations are joined by the privacy unit, or if one of them is declared public; every other join
is refused (`HABITS["join"]`). Joins become steps (`plan.joins`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import PurePath
from typing import Any

import pyarrow as pa
from sqlglot import exp

from streamveil.errors import PlanError
from streamveil.expressions import conjunction, normalize_expression
from streamveil.expressions.dialect import canonical, shown
from streamveil.plan import KeyColumn, SourceSpec
from streamveil.plan.check import HABITS
from streamveil.plan.joins import How, Joined, OwnJoin, OwnLookup, OwnSelect, OwnUnion, digest_of
from streamveil.plan.own_rows import OwnRows, passing, with_step
from streamveil.sql.assemble import public_file
from streamveil.sql.names import From, InReach, resolved, row_text
from streamveil.sql.own_rows import texts_of

Relation = Callable[[exp.Expr, InReach], From]
Pair = tuple[exp.Expr, exp.Expr]  # equal in a join: over the rows so far, and over the added table
AMONG_OTHERS = (
    "EXISTS and IN (SELECT ...) stand alone in WHERE, or after AND and NOT.\n"
    "  to fix  LEFT JOIN (SELECT DISTINCT user_id FROM ...) AS s USING (user_id), and s.user_id IS"
    " NOT NULL in the condition"
)
NOT_EQUAL = (
    "it compares with rows outside by = alone.\n"
    "  to fix  JOIN (SELECT user_id, MAX(ts) AS latest FROM ... GROUP BY user_id) AS p ON"
    " p.user_id = v.user_id AND p.latest > v.ts: what decides it, one row of each person"
)


def with_join(join: Any, left: From, own: str, known: InReach, relation: Relation) -> From:
    """What FROM brings into scope after one more JOIN. `own`: the name of the rows so far."""
    how = how_of(join)
    name = name_of(join.this)
    if not (join.args.get("on") or join.args.get("using")):
        raise no_unit(join, left, known, relation)
    if name in left.names or not (name or join.args.get("using")):
        raise PlanError(
            f"a join needs two names: '{shown(name or own)}' is one.\n"
            "  to fix  FROM visits AS v JOIN people AS p ON v.user_id = p.user_id"
        )
    pairs, rest = equal(join, left, name)
    columns = [*needs_unit(known).find_all(exp.Column)]
    later = next((one for one in columns if one.table and one.table not in left.names), None)
    if later is not None:
        raise PlanError(
            f"the privacy unit, {shown(canonical(later))}, is not of the first table.\n"
            f"  to fix  privacy_unit_column = {shown(own)}.{shown(later.name)}, or what names the"
            " person there"
        )
    known_as = {column.name.lower(): column.name for column in columns}
    of_unit = left.same if left.sides else frozenset(product(left.names | {own}, known_as))
    same = (
        *(one.name for one, other in pairs if of_one_name(one, other)),
        *known_as.values(),
        *left.parts,
    )
    said: dict[str, Any] = {"how": how, "sides": ("" if left.sides else own, name), "same": same,
                            "time": left.source.event_time}  # fmt: skip
    table = None if name_in(join.this) in known.named else public_table(join.this, known.sources)
    if table is not None:
        step: OwnJoin | OwnLookup = OwnLookup(
            table=table, digest=digest_of(table), keys=keys_of(pairs, left), **said
        )
    else:
        at = unit_pair(pairs, left, known)
        if at is None:
            raise no_unit(join, left, known, relation)
        found = relation(join.this, replace(known, unit=pairs[at][1]))
        if how == "left":  # conditions on the added rows alone filter them before they match
            theirs = [part for part in rest if of_tables(part, {name})]
            rest = [part for part in rest if part not in theirs]
            found.where += [row_text(without_side(part), found) for part in theirs]
        if how == "inner" and of_one_name(*pairs[at]):
            of_unit |= {(name, pairs[at][0].name.lower())}
        other = as_relation(found, pairs[at][1])
        step = OwnJoin(other=other, keys=keys_of(pairs[:at] + pairs[at + 1 :], left), **said)
    source = materialized(left, needs_unit(known))
    where = [] if left.columns is not None else left.where
    step = replace(step, where=conjunction(where) if where else None)
    sides = {**(left.sides or dict.fromkeys(left.names, own)), name: name}
    unit = row_text(needs_unit(known), left)
    made = From(
        source, left.window,
        names=left.names | {name}, sides={side: to for side, to in sides.items() if side},
        same=of_unit, parts=left.parts,
    )  # fmt: skip
    conditions = [row_text(condition, made) for condition in rest]
    if how == "left" and conditions:
        step = replace(step, on=conjunction(conditions))
        return replace(made, source=with_step(source, unit, step))
    return replace(made, source=with_step(source, unit, step), where=conditions)


def of_one_name(one: exp.Expr, other: exp.Expr) -> bool:
    """Whether both are columns of the same name."""
    columns = isinstance(one, exp.Column) and isinstance(other, exp.Column)
    return columns and one.name.lower() == other.name.lower()


def how_of(join: exp.Expr) -> How:
    """Inner or left; other kinds are refused, with what to write instead."""
    side = str(join.args.get("side") or "").upper()
    if side in ("RIGHT", "FULL"):
        raise PlanError(
            f"{side} JOIN is not supported.\n  to fix  "
            + ("name the tables the other way round, with LEFT JOIN" if side == "RIGHT" else
               "UNION ALL of the rows of both, in a subquery")
        )  # fmt: skip
    return "left" if side == "LEFT" else "inner"


def name_of(node: Any) -> str:
    """The name of a relation: its alias, or the table's own name."""
    if node.alias:
        return str(node.alias)
    return PurePath(".".join(part.name for part in node.parts)).stem if is_table(node) else ""


def name_in(node: Any) -> str:
    """The whole name of a table in small letters; '' for everything else."""
    return ".".join(part.name for part in node.parts).lower() if is_table(node) else ""


def is_table(node: Any) -> bool:
    """Whether a node is the name of a table."""
    return isinstance(node, exp.Table) and not isinstance(node.this, exp.Anonymous)


def equal(join: exp.Expr, left: From, name: str) -> tuple[list[Pair], list[exp.Expr]]:
    """The pairs that must be equal on both sides, and all other conditions."""
    using = join.args.get("using") or []
    if using:
        columns = [exp.column(one.name, quoted=True) for one in using]
        return [(one, one.copy()) for one in columns], []
    pairs, rest = list[Pair](), list[exp.Expr]()
    for part in conjuncts(join.args["on"]):
        ends = [part.this, part.expression] if isinstance(part, exp.EQ) else []
        sides = [side_of(end, left, name) for end in ends]
        if sorted(sides) == [0, 1]:
            one, other = sorted(ends, key=lambda end: side_of(end, left, name))
            pairs.append((one, without_side(other)))
        else:
            rest.append(part)
    return pairs, rest


def side_of(tree: exp.Expr, left: From, name: str) -> int:
    """Whose columns a tree has: 0 the rows so far, 1 the table that a join adds, 2 both or none."""
    found = set()
    for column in tree.find_all(exp.Column):
        side = column.args.get("table")
        if side is None and column.name.lower() in left.parts:
            found.add(0)
            continue
        if side is None:
            raise PlanError(
                f"'{shown(column.name)}' in ON: of which table?\n  to fix  write its name before "
                f"it, as in {shown(name)}.{shown(column.name)}, or USING ({shown(column.name)})"
            )
        if side.name not in {*left.names, name}:
            raise PlanError(f"'{shown(canonical(column))}' in ON: no such table in FROM")
        found.add(int(side.name == name))
    return found.pop() if len(found) == 1 else 2


def conjuncts(tree: exp.Expr) -> Iterator[exp.Expr]:
    """The conditions that AND connects."""
    tree = tree.unnest()
    if isinstance(tree, exp.And):
        yield from conjuncts(tree.this)
        yield from conjuncts(tree.expression)
    else:
        yield tree


def without_side(tree: exp.Expr) -> exp.Expr:
    """The tree with unqualified columns."""
    copy = tree.copy()
    for column in copy.find_all(exp.Column):
        column.set("table", None)
    return copy


def keys_of(pairs: list[Pair], left: From) -> tuple[KeyColumn, ...]:
    """Pairs as plans store them: the other table's expression is the name."""
    own = without_side if left.columns is not None else lambda tree: resolved(tree, left)
    return tuple(
        KeyColumn(name=texts_of(other), expression=texts_of(own(one))) for one, other in pairs
    )


def needs_unit(known: InReach) -> exp.Expr:
    """The privacy unit; refuses a join without one."""
    if known.unit is None:
        raise PlanError(
            "a join needs to know who is protected.\n"
            "  to fix  privacy_unit_column = user_id in the OPTIONS"
        )
    return known.unit


def unit_pair(pairs: list[Pair], left: From, known: InReach) -> int | None:
    """Which pair says that both rows are of one unit; a join without such a pair mixes people.

    Proof: one side is the unit of the rows so far, and the other becomes that of the added rows.
    """
    unit = texts_of(resolved(needs_unit(known), left))
    for place, (one, _) in enumerate(pairs):
        if texts_of(resolved(one, left)) == unit:
            return place
    return None


def no_unit(join: Any, left: From, known: InReach, relation: Relation) -> PlanError:
    """The error for a join that is not by the unit."""
    plain = name_in(join.this) not in known.named
    if plain and public_table(join.this, known.sources) is not None:
        name = shown(name_of(join.this))
        return PlanError(
            f"a join with the public table '{name}' needs ON or USING: what is equal.\n"
            f"  to fix  JOIN {name} ON v.country = {name}.country"
        )
    if left.source.public:
        return PlanError(
            f"'{shown(left.source.name)}' is public, and the table of people comes first.\n"
            "  to fix  name the tables of the join the other way round"
        )
    names = {name_in(table) for table in join.this.find_all(exp.Table)}
    public = {name.lower() for name, spec in known.sources.items() if spec.public}
    if isinstance(join.this, exp.Subquery) and names and names <= public:
        return PlanError(
            "a public table is joined as it is, not in a subquery.\n"
            "  to fix  JOIN the table itself, with the subquery's conditions after AND in ON; for"
            " DISTINCT or totals, give a table that holds their result"
        )
    if is_table(join.this):
        relation(join.this, known)  # raises if there is no such table
    return HABITS["join"].error()


def unit_before(joins: Sequence[Any], unit: exp.Expr) -> exp.Expr:
    """The unit as a column of the first relation, from one of any: `e.id` for `p.person`.

    Proof: the columns that an inner join equates are equal in all of its rows.
    """
    for join in reversed(joins):
        on = join.args.get("on")
        if on is None or str(join.args.get("side") or ""):
            continue
        for part in conjuncts(on):
            ends = [part.this, part.expression] if isinstance(part, exp.EQ) else []
            theirs = [one for one in ends if isinstance(one, exp.Column) and one == unit
                      and one.table == name_of(join.this)]  # fmt: skip
            unit = next((one for one in ends if theirs and one is not theirs[0]), unit)
    return unit


def as_relation(found: From, unit: exp.Expr) -> OwnRows:
    """Another relation as a source whose rows name their unit; its conditions are applied."""
    if found.window.kind != "whole":
        raise PlanError(
            "TUMBLE, HOP and CUMULATE go around the first table of a join.\n"
            "  to fix  JOIN the table itself, or a subquery of it"
        )
    source = materialized(found, unit)
    if found.columns is None and found.where:
        source = with_step(source, texts_of(unit), OwnSelect(
            keys=(), rest=True, where=conjunction(found.where)
        ))  # fmt: skip
    return source


def materialized(found: From, unit: exp.Expr) -> OwnRows:
    """A source with the columns that a subquery selects, under their names."""
    text = row_text(unit, found)
    if found.columns is None:
        return with_step(found.source, text)
    keys = tuple(KeyColumn(name=name, expression=texts_of(tree))
                 for name, tree in found.columns.items())  # fmt: skip
    where = conjunction(found.where) if found.where else None
    time = found.source.event_time
    plain = {name: tree.name for name, tree in found.columns.items()
             if isinstance(tree, exp.Column)}  # fmt: skip
    kept = (name for name, own in plain.items() if time and own.lower() == time.lower())
    rest = found.rest and time and time.lower() not in map(str.lower, found.columns)
    made = with_step(found.source, text, OwnSelect(keys=keys, rest=found.rest, where=where))
    return replace(made, event_time=next(kept, time if rest else None))


def public_table(node: Any, sources: Any) -> pa.Table | None:
    """The rows of a table that is declared public; None for every other relation."""
    name = name_in(node)
    spec = next((one for known, one in sources.items() if known.lower() == name), None)
    return rows_of(spec) if spec is not None and spec.public else None


def rows_of(spec: SourceSpec) -> pa.Table:
    """All rows of a public table."""
    name = spec.name
    held, path = spec.options.get("table"), spec.options.get("path")
    if isinstance(held, pa.Table):
        return held
    of_csv = "columns", "delimiter", "allow_quoted_newlines"
    more = {key: spec.options[key] for key in of_csv if key in spec.options}
    return public_file(path, f"the public table '{shown(name)}'", **more)


def with_members(
    tree: exp.Expr | None, inner: From, known: InReach, relation: Relation
) -> tuple[From, exp.Expr | None]:
    """WHERE unit [NOT] IN (SELECT ...) as steps, and the rest of the condition."""
    rest = list[exp.Expr]()
    for part in conjuncts(tree) if tree is not None else ():
        plain = part.this.unnest() if isinstance(part, exp.Not) else part
        if isinstance(plain, exp.Exists):
            query, pairs = those_that_exist(plain, inner)
        elif isinstance(plain, exp.In) and plain.args.get("query") is not None:
            query, pairs = members_of(plain)
        else:
            if any(isinstance(node, exp.Exists) or node.args.get("query") for node in part.walk()):
                raise PlanError(f"'{shown(canonical(part))}': {AMONG_OTHERS}")
            rest.append(part)
            continue
        at, unit = unit_pair(pairs, inner, known), texts_of(resolved(needs_unit(known), inner))
        if at is None:
            raise HABITS["join"].error()
        theirs = pairs.pop(at)[1]
        subquery = exp.Subquery(this=query, alias=exp.TableAlias(this=exp.to_identifier("members")))
        other = as_relation(relation(subquery, replace(known, unit=theirs)), theirs)
        how: How = "anti" if isinstance(part, exp.Not) else "semi"
        where = conjunction(inner.where) if inner.where else None
        keys = tuple(KeyColumn(name=texts_of(their), expression=texts_of(resolved(own, inner)))
                     for own, their in pairs)  # fmt: skip
        step = OwnJoin(other=other, how=how, where=where, keys=keys)
        inner = replace(inner, source=with_step(inner.source, unit, step), where=[])
    if not rest:
        return inner, None
    return inner, exp.and_(*(part.copy() for part in rest), copy=False)


def members_of(tree: exp.Expr) -> tuple[exp.Expr, list[Pair]]:
    """The SELECT of an IN, and the pairs that must be equal."""
    query = tree.args["query"].unnest()
    items = query.expressions if isinstance(query, exp.Select) else []
    if len(items) != 1 or items[0].is_star:
        raise PlanError(
            f"{shown(canonical(tree))}: the subquery must be of one column, the privacy unit"
        )
    return query, [(tree.this, exp.column(items[0].alias_or_name, quoted=True))]


def those_that_exist(tree: exp.Expr, outside: From) -> tuple[exp.Expr, list[Pair]]:
    """The SELECT of an EXISTS, which lists what must equal columns outside; and the pairs."""
    query, pairs, rest = tree.this.unnest().copy(), list[Pair](), list[exp.Expr]()
    where, clause = query.args.get("where"), query.args.get("from_")
    out = outside.names - ({name_of(clause.this)} if clause is not None else set())
    for part in conjuncts(where.this) if where is not None else ():
        ends = [part.this, part.expression] if isinstance(part, exp.EQ) else []
        ends.sort(key=lambda end: of_tables(end, out), reverse=True)
        if [of_tables(end, out) for end in ends] == [True, False]:
            pairs.append((ends[0], ends[1]))
        else:
            rest.append(part)
    beyond = next((part for part in rest for column in part.find_all(exp.Column)
                   if column.table in out), None)  # fmt: skip
    if beyond is not None:
        raise PlanError(f"EXISTS and '{shown(canonical(beyond))}': {NOT_EQUAL}")
    if not pairs:
        raise PlanError(
            "EXISTS must say that the rows are of one person.\n"
            "  to fix  WHERE p.user_id = v.user_id in it, with the names of both tables, or"
            " user_id IN (SELECT user_id FROM ...), by the privacy unit"
        )
    names = [exp.to_identifier(f"equal_{place}") for place in range(len(pairs))]
    query.set("expressions", [exp.alias_(their.copy(), name, quoted=True)
                              for name, (_, their) in zip(names, pairs, strict=True)])  # fmt: skip
    query.set("where", exp.Where(this=exp.and_(*rest, copy=True)) if rest else None)
    return query, [(own, exp.column(name, quoted=True))
                   for name, (own, _) in zip(names, pairs, strict=True)]  # fmt: skip


def of_tables(tree: exp.Expr, names: set[str]) -> bool:
    """Whether a tree names columns, and only those of these tables."""
    columns = [*tree.find_all(exp.Column)]
    return bool(columns) and all(column.table in names for column in columns)


def union_of(tree: Any, alias: str, known: InReach, subquery: Callable[..., From]) -> From:
    """Rows of several SELECTs, one after the other."""
    if not isinstance(tree, exp.Union) or tree.args.get("distinct"):
        raise HABITS["dedupe" if isinstance(tree, exp.Union) else "other-rows"].error()
    for clause in ("order", "limit", "offset"):
        if tree.args.get(clause):
            raise HABITS["row-order"].error()
    unit = needs_unit(known)
    first = subquery(tree.left, alias, known)
    names = list(first.columns or {})
    theirs = names_of(tree.right)
    if first.columns is None or first.rest or "*" in theirs:
        raise PlanError("UNION ALL of SELECT *.\n  to fix  name the same columns in both SELECTs")
    place = next((at for at, name in enumerate(names) if name.lower() == unit.name.lower()), None)
    if not isinstance(unit, exp.Column) or place is None or place >= len(theirs):
        raise PlanError(
            f"UNION ALL without the privacy unit {shown(canonical(unit))}.\n"
            "  to fix  select it in both, at the same place and under its name in the first"
        )
    person = exp.column(theirs[place], quoted=True)
    other = as_relation(subquery(tree.right, alias, replace(known, unit=person)), person)
    source = with_step(materialized(first, unit), texts_of(unit), OwnUnion(other=other))
    columns: dict[str, exp.Expr] = {name: exp.column(name, quoted=True) for name in names}
    return From(source, first.window, columns=columns, names={alias} if alias else set())


def names_of(tree: exp.Expr) -> list[str]:
    """The columns of a SELECT, or of the first of several."""
    while isinstance(tree, exp.Union | exp.Subquery):
        tree = tree.this
    items = tree.expressions if isinstance(tree, exp.Select) else []
    return ["*" if item.is_star else item.alias_or_name for item in items]


def require_one_unit(unit: str, theirs: str | None) -> None:
    """Refuses a join with a relation that protects another column, or was combined by another."""
    if theirs is not None and normalize_expression(theirs) != normalize_expression(unit):
        raise PlanError(
            f"the join is by {shown(unit)}, and the other relation protects {shown(theirs)}.\n"
            "  to fix  protect the same column in both: it names the person there"
        )


def join_named(  # noqa: PLR0913  (two relations, each with its conditions, and how)
    source: SourceSpec, unit: str, where: Sequence[str], other: SourceSpec,
    theirs: Sequence[str], on: Sequence[str], how: How,
) -> OwnRows:  # fmt: skip
    """The steps of `Stream.join`: columns of the same names must be equal, with the unit."""
    if not isinstance(how, str) or how not in ("inner", "left", "semi", "anti"):
        raise PlanError(f"how must be 'inner', 'left', 'semi' or 'anti', not '{shown(str(how))}'")
    texts = [texts_of(exp.column(name, quoted=True)) for name in on]
    person = normalize_expression(unit)
    before = source.steps if isinstance(source, OwnRows) else ()
    named = any(isinstance(step, Joined) for step in before)
    said: dict[str, Any] = {
        "how": how, "sides": ("" if named else source.name, other.name), "same": tuple(on),
        "time": source.event_time,
        "where": conjunction(list(where)) if where else None,
    }  # fmt: skip
    if other.public:
        only = OwnSelect(keys=(), where=conjunction(list(theirs)) if theirs else None)
        table, _ = passing(only, table := rows_of(other), table)
        keys = tuple(KeyColumn(name=text, expression=text) for text in texts)
        return with_step(source, person, OwnLookup(
            table=table, digest=digest_of(table), keys=keys, **said
        ))  # fmt: skip
    if person not in texts:
        raise HABITS["join"].error()
    keys = tuple(KeyColumn(name=text, expression=text) for text in texts if text != person)
    more = [OwnSelect(keys=(), rest=True, where=conjunction(list(theirs)))] if theirs else []
    made = with_step(other, person, *more)
    return with_step(source, person, OwnJoin(other=made, keys=keys, **said))
