"""What a query does with released rows: HAVING, ORDER BY, LIMIT, computed columns, outer SELECTs.

All of it becomes `plan.Post`s over the columns of a release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from streamveil.errors import INNER, PlanError, nearest
from streamveil.expressions import columns_of, normalize_expression
from streamveil.expressions.dialect import (
    canonical,
    key_name,
    parse_query,
    parse_text,
    place_of,
    shown,
    tokenize,
)
from streamveil.kinds import SKETCHES
from streamveil.plan import (
    KEPT,
    RESERVED,
    Plan,
    Post,
    PostColumn,
    PostPlace,
    PostShift,
    PostTotal,
    SortKey,
)
from streamveil.release_metadata import SUFFIXES
from streamveil.sql.aggregates import function_name, is_aggregate
from streamveil.sql.names import only
from streamveil.sql.options import positioned, sort_key, whole
from streamveil.sql.post_joins import Relation, Sides, ends, joined, named_relation, noisy
from streamveil.sql.script import PRIVATE, STAND_IN, stand_in

CLAUSES = {"expressions", "from_", "joins", "where", "order", "limit", "offset", "with_",
           "qualify", "group", "having"}  # fmt: skip
_AGAIN = (
    "released rows are added up by SUM, AVG and COUNT(*) alone.\n"
    "  to fix  ask for it in the private SELECT (its intervals are better than those of noisy"
    " groups), or read the releases into another program: that is free as well"
)
OUTER = {
    "laterals": "a join with LATERAL: join released rows by the columns of their groups",
    "distinct": "SELECT DISTINCT: groups are distinct already.\n  to fix  leave DISTINCT out",
}  # fmt: skip
Plans = tuple[Plan, ...]
Beside = PostShift | PostTotal | PostPlace  # columns that a step adds
ADDED_UP = ("SUM", "AVG", "COUNT")
PLACES = ("RANK", "DENSE_RANK", "ROW_NUMBER")


@dataclass(frozen=True)
class PostScope:
    """The columns of released rows, as expressions may name them."""

    columns: tuple[str, ...]
    sides: Sides = field(default_factory=dict)  # table -> its columns -> their names here
    stands_for: Mapping[str, exp.Expr] = field(default_factory=dict)  # text of a call -> its column
    aliases: Mapping[str, exp.Expr] = field(default_factory=dict)  # computed columns, in HAVING
    beside: dict[str, Beside] | None = None  # columns that a step adds; None: it may add none
    group: tuple[str, ...] | None = None  # GROUP BY: SUM and the like are over these

    def column(self, name: str) -> str | None:
        """The column of that name, in any case of letters if that is unambiguous."""
        added = (self.beside or {}).values()
        if name in self.columns or any(
            name in (one.name, getattr(one, "here_column", "")) for one in added
        ):
            return name
        same = [known for known in self.columns if known.lower() == name.lower()]
        return same[0] if len(same) == 1 else None

    @property
    def main(self) -> list[str]:
        """The columns of SELECT *: all but those of noise and intervals, and the reserved ones."""
        beside = {name + suffix for name in self.columns for suffix in SUFFIXES}
        return [name for name in self.columns if name not in {*beside, *RESERVED}]

    def rewritten(self, tree: exp.Expr) -> exp.Expr:
        """The tree over columns of the release.

        Raises:
            PlanError: it names another column.
        """
        place = self.column_of(tree)
        if place is not None:
            return place
        copy = tree.copy()
        for node in list(copy.iter_expressions()):
            node.replace(self.rewritten(node))
        return copy

    def column_of(self, tree: exp.Expr) -> exp.Expr | None:
        """The expression over released columns that replaces a whole tree; None: its parts do."""
        known = self.stands_for.get(canonical(tree))
        if known is not None:
            return known.copy()
        if isinstance(tree, exp.Window):
            return over(tree, self)
        if is_aggregate(tree):
            if self.group is None or function_name(tree) not in ADDED_UP:
                raise PlanError(f"{shown(canonical(tree))}: {_AGAIN}")
            return total(tree, self.group, self)
        if isinstance(tree, exp.Bracket) and isinstance(tree.this, exp.Column):
            one = exp.column(f"{tree.this.name}_{place_of(tree)}", quoted=True)  # of quantiles
            return self.column_of(one) if self.named(one) else None
        if not isinstance(tree, exp.Column):
            return None
        alias, name = self.aliases.get(tree.name.lower()), self.named(tree)
        if alias is not None and (name is None or tree.args.get("table") is None):
            return alias.copy() if isinstance(alias, exp.Column) else exp.Paren(this=alias.copy())
        if name is None:
            written = ".".join(part.name for part in tree.parts)
            raise PlanError(
                f"unknown column '{shown(written)}' of the released rows"
                f"{nearest(tree.name, self.columns)}"
            )
        return exp.column(name, quoted=True)

    def name_of(self, tree: exp.Expr | None) -> str | None:
        """The name of the column that an expression is; None for any other expression."""
        if tree is None:
            return None
        known = self.stands_for.get(canonical(tree))
        if known is None and isinstance(tree, exp.Column):
            return self.named(tree)
        return known.name if isinstance(known, exp.Column) else None

    def named(self, tree: exp.Column) -> str | None:
        """The column that a tree names; refuses a name that is in several tables."""
        table, name = tree.args.get("table"), tree.name.lower()
        if table is not None:
            if table.name.lower() not in self.sides:
                raise PlanError(f"'{shown(canonical(tree))}': no such table in FROM")
            return self.sides[table.name.lower()].get(name)
        known = self.column(tree.name)
        found = [one for one, columns in self.sides.items() if name in columns]
        if known is None and len(found) > 1 and name not in self.aliases:
            ways = " or ".join(f"{shown(one)}.{shown(tree.name)}" for one in found)
            raise PlanError(f"'{shown(tree.name)}' is in several answers.\n  to fix  write {ways}")
        return known

    def text(self, tree: exp.Expr) -> str:
        """A tree over columns of the release, as plans store it."""
        return normalize_expression(canonical(self.rewritten(tree)))

    def added(self, what: str, make: Callable[[int], Beside]) -> Any:
        """A column that a step adds, made once per `what`; its number makes its name unique."""
        assert self.beside is not None  # noqa: S101  (`over` looked)
        return self.beside.setdefault(what, make(len(self.beside) + 1))


OVER = (
    "LAG(x, n), LEAD(x, n), AVG(x) or SUM(x) with ROWS BETWEEN n PRECEDING AND CURRENT ROW or over "
    "a whole partition, COUNT(*), RANK, DENSE_RANK, ROW_NUMBER"
)
MOST_FRAME = 53  # rows, each of which becomes a column


def total(call: exp.Expr, by: tuple[str, ...], released: PostScope) -> exp.Expr:
    """SUM, AVG or COUNT(*) over rows of a release, as columns that a step adds."""
    name = function_name(call)
    [argument] = call.expressions if len(call.expressions) == 1 else [None]

    def added(column: str | None) -> exp.Expr:
        found = released.added(
            f"total {column} {by}",
            lambda n: PostTotal(name=f"{INNER}total {n}", column=column, by=by),
        )
        return exp.column(found.name, quoted=True)

    if name == "COUNT" and isinstance(argument, exp.Star):
        return added(None)
    column = released.name_of(argument)
    if name == "COUNT" or column is None:
        raise PlanError(f"{shown(canonical(call))}: {_AGAIN}")
    if column not in noisy(released.columns):
        raise PlanError(
            f"{shown(canonical(call))} adds up no noisy number: '{shown(column)}' is a column of"
            " groups.\n  to fix  SUM or AVG of an aggregate"
        )
    whole_sum = added(column)
    if name == "SUM":
        return whole_sum
    return exp.Paren(this=exp.Div(this=whole_sum, expression=added(None)))


def place(call: exp.Expr, node: exp.Expr, released: PostScope) -> exp.Expr:
    """RANK, DENSE_RANK or ROW_NUMBER over released rows, as a column that a step adds."""
    if call.expressions or node.args.get("spec") or not node.args.get("order"):
        raise PlanError(
            f"{shown(canonical(node))}: write {function_name(call)}() OVER (ORDER BY n)"
        )
    by, order = parts_of(node, released)
    name = function_name(call)
    found = released.added(
        f"{name} {by} {order}",
        lambda n: PostPlace(name=f"{INNER}place {n}", function=name, by=by, order=order),
    )
    return exp.column(found.name, quoted=True)


def parts_of(node: exp.Expr, released: PostScope) -> tuple[tuple[str, ...], tuple[SortKey, ...]]:
    """PARTITION BY and ORDER BY of a window."""
    by = tuple(released.text(part) for part in node.args.get("partition_by") or ())
    clause = node.args.get("order")
    items = clause.expressions if clause else ()
    return by, tuple(sort_key(one, released.text(one.this)) for one in items)


def over(node: exp.Expr, released: PostScope) -> exp.Expr:
    """A number of other rows of a release, as columns that a step adds: LAG, LEAD, AVG, SUM."""
    if released.beside is None:
        raise PlanError(
            "OVER stands in the columns of a SELECT and in QUALIFY, not in WHERE and HAVING.\n"
            "  to fix  compute it in a SELECT, and filter in one around that"
        )
    call = node.this
    name = function_name(call) if isinstance(call, exp.Anonymous) else ""
    if name in PLACES:
        return place(call, node, released)
    if name in ADDED_UP and not node.args.get("order") and not node.args.get("spec"):
        by, _ = parts_of(node, released)
        _require_groups(by, (), released)
        return total(call, by, released)
    if name not in ("LAG", "LEAD", "AVG", "SUM"):
        raise PlanError(
            f"'{shown(canonical(node))}' is not supported over released rows.\n  to fix  {OVER}"
        )
    first = call.expressions[0] if call.expressions else None
    column = released.name_of(first)
    if column is None:
        raise PlanError(f"{name} takes a column of the released rows: compute others in a SELECT")
    by, order = parts_of(node, released)
    if not order:
        raise PlanError(WITHOUT_ORDER)
    _require_groups(by, order, released)

    def shift(rows: int, *, filled: bool) -> PostShift:
        found: PostShift = released.added(
            f"{column} {rows} {by} {order} {filled}",
            lambda n: PostShift(name=f"{INNER}shift {n}", column=column, rows=rows, by=by,
                                order=order, filled=filled),
        )  # fmt: skip
        return found

    if name in ("LAG", "LEAD"):
        if node.args.get("spec") or len(call.expressions) > 2:
            raise PlanError(
                f"{name} takes a column and how many rows away, without a frame.\n"
                "  to fix  IFNULL(...) around it says what to put where there is no row"
            )
        rows = whole(call.expressions[1], f"rows of {name}") if call.expressions[1:] else 1
        return exp.column(shift(rows if name == "LAG" else -rows, filled=False).name, quoted=True)
    return framed(node, name, column, shift)


def framed(node: exp.Expr, name: str, column: str, shift: Callable[..., PostShift]) -> exp.Expr:
    """AVG or SUM over rows around each."""
    if len(node.this.expressions) > 1:
        raise PlanError(f"{name} takes one column")
    frame = _frame(node)
    parts = [shift(rows, filled=True) for rows in frame if rows]
    own = [f"`{column}`"] if 0 in frame else []
    added = " + ".join([*own, *(f"`{one.name}`" for one in parts)])
    there = " + ".join(["1" for _ in own] + [f"`{one.here_column}`" for one in parts])
    return parse_text(f"({added})" if name == "SUM" else f"(({added}) / ({there}))")


WITHOUT_ORDER = (
    "OVER (... ORDER BY ...) over released rows is by columns of their groups, such as a week.\n"
    "  to fix  ORDER BY the column of time"
)


def _require_groups(by: tuple[str, ...], order: tuple[SortKey, ...], released: PostScope) -> None:
    """Refuses an order of rows that noise alone would decide, or that nothing decides."""
    read = {name for text in (*by, *(one.expression for one in order)) for name in columns_of(text)}
    if read & (noisy(released.columns) | ends(released.columns)):
        raise PlanError(WITHOUT_ORDER)
    if read & {*RESERVED}:
        raise PlanError(
            "windows are released one by one, and OVER sees one release.\n"
            "  to fix  moving(...), difference(...) and ratio(...) of sv.answers, across releases; "
            "or ask once, with GROUP BY DATE_TRUNC(day, WEEK)"
        )


def _frame(node: exp.Expr) -> list[int]:
    """How far before the current row each row of a frame is, from the first to the last."""
    spec, ends = node.args.get("spec"), []
    for end in ("start", "end"):
        value = spec.args.get(end) if spec else None
        side = spec.args.get(f"{end}_side") if spec else None
        if value == "CURRENT ROW" or (value is None and spec is not None and end == "end"):
            ends.append(0)
        elif isinstance(value, exp.Literal) and side in ("PRECEDING", "FOLLOWING"):
            ends.append(whole(value, "rows of a frame") * (1 if side == "PRECEDING" else -1))
    fits = len(ends) == 2 and 0 <= ends[0] - ends[1] < MOST_FRAME
    if spec is None or spec.args.get("kind") != "ROWS" or not fits:
        raise PlanError(
            f"'{shown(canonical(node))}' needs a frame of at most {MOST_FRAME} rows.\n"
            "  to fix  ROWS BETWEEN 6 PRECEDING AND CURRENT ROW, or coarser groups"
        )
    return list(range(ends[0], ends[1] - 1, -1))


def released_columns(plan: Plan) -> tuple[str, ...]:
    """The columns of a plan's releases that expressions may name, after its post-processing."""
    names = [key.name for key in plan.keys]
    names += dict.fromkeys(name for some in plan.sets for name in some)
    names += [key_name(one.expression) for one in plan.aggregates if one.function in SKETCHES]
    names += [one.name + end for one in plan.aggregates for end in ("", *SUFFIXES)]
    found = (*names, *RESERVED)
    for post in plan.post:
        if post.columns is not None:
            found = after(post.columns, found)
    return found


def after(columns: Iterable[PostColumn], before: tuple[str, ...]) -> tuple[str, ...]:
    """The columns after a SELECT; those computed from columns of groups alone have no interval."""
    groups = {*before} - noisy(before) - ends(before)
    found = {one.name: not {*columns_of(one.expression)} <= groups for one in columns}
    return with_intervals(found)


def with_intervals(columns: Mapping[str, bool]) -> tuple[str, ...]:
    """Columns with those of the intervals of noisy ones, and the columns of every release."""
    names = [name + end for name, is_noisy in columns.items()
             for end in ("", *SUFFIXES[: is_noisy * len(SUFFIXES)])]  # fmt: skip
    return tuple(dict.fromkeys([*names, *KEPT]))


def clauses_of(
    tree: exp.Expr, clause: str, released: PostScope, items: Mapping[str, exp.Expr]
) -> Post:
    """WHERE or HAVING, ORDER BY, LIMIT and OFFSET; `items`: what SELECT lists, by name."""
    condition, order = tree.args.get(clause), tree.args.get("order")
    limit, offset = tree.args.get("limit"), tree.args.get("offset")
    aliased = replace(released, aliases={name.lower(): value for name, value in items.items()})
    filtered = replace(aliased if clause == "having" else released, beside=None, group=None)
    return Post(
        where=None if condition is None else filtered.text(condition.this),
        order=tuple(
            _order(one, aliased, [*items.values()]) for one in (order.expressions if order else ())
        ),
        limit=None if limit is None else _rows(limit, "LIMIT"),
        offset=0 if offset is None else _rows(offset, "OFFSET"),
    )


def around_windows(
    tree: exp.Expr, early: str, late: tuple[str, ...], released: PostScope,
    items: Mapping[str, exp.Expr],
) -> tuple[tuple[Post, ...], Post]:  # fmt: skip
    """The steps of a SELECT except its columns, in the order of SQL.

    `early` clauses filter the rows that OVER sees; `late` ones filter afterwards, in another step.
    """
    post = clauses_of(tree, early, released, items)
    aliased = replace(released, aliases={name.lower(): value for name, value in items.items()})
    conditions = [tree.args[clause].this for clause in late if tree.args.get(clause)]
    later = " AND ".join(f"({aliased.text(one)})" for one in conditions) or None
    found = list((released.beside or {}).values())
    post = replace(
        post, one_for=released.group,
        shifts=tuple(one for one in found if isinstance(one, PostShift)),
        totals=tuple(one for one in found if isinstance(one, PostTotal)),
        places=tuple(one for one in found if isinstance(one, PostPlace)),
    )  # fmt: skip
    if later is None:
        return (), post
    before = replace(post, order=(), limit=None, offset=0)
    return (before,), Post(where=later, order=post.order, limit=post.limit, offset=post.offset)


def _rows(tree: exp.Expr, what: str) -> int:
    number = whole(tree.expression, what)
    if number < 0:
        raise PlanError(f"{what} is a number of rows, and cannot be {number}")
    return number


def _order(tree: exp.Expr, released: PostScope, items: list[exp.Expr]) -> SortKey:
    """One key of ORDER BY; as in GoogleSQL nulls are the least values."""
    value = positioned(tree.this, items, "ORDER BY")
    descending = bool(tree.args.get("desc"))
    return SortKey(
        expression=released.text(value), descending=descending,
        nulls_first=bool(tree.args.get("nulls_first", not descending)),
    )  # fmt: skip


def is_nothing(post: Post) -> bool:
    """Whether a step leaves rows as they are."""
    return post == Post()


# ---- SELECT over a private answer


def read_over(text: str, plans: Mapping[str, Plan]) -> tuple[Post, ...]:
    """The steps of a SELECT whose tables are the private answers of plans, by name."""
    tree = parse_query(tokenize(text, "the query"), text, "the query")
    texts = [STAND_IN] if len(plans) == 1 else [stand_in(part) for part in range(len(plans))]
    answers = [parse_query(tokenize(one, "the answer"), one, "the answer") for one in texts]
    named = dict(zip(map(str.lower, plans), answers, strict=True))
    return read_outer(tree, tuple(plans.values()), named)


def read_outer(
    tree: exp.Expr, plan: Plan | Plans, known: Mapping[str, exp.Expr] | None = None
) -> tuple[Post, ...]:
    """The steps of an outer SELECT over the answers of plans, the innermost first."""
    plans = plan if isinstance(plan, tuple) else (plan,)
    return _select(tree, plans, _with_names(tree, known or {}))[0]


def _with_names(tree: exp.Expr, known: Mapping[str, exp.Expr]) -> dict[str, exp.Expr]:
    """The subqueries that names stand for, with those of WITH."""
    with_ = tree.args.get("with_")
    return {**known} | {cte.alias.lower(): cte.this for cte in (with_.expressions if with_ else ())}


Steps = tuple[tuple[Post, ...], tuple[str, ...]]  # and the columns after them


def _select(tree: exp.Expr, plans: Plans, named: Mapping[str, exp.Expr]) -> Steps:
    if isinstance(tree, exp.Union):
        return _union(tree, plans, named)
    if not isinstance(tree, exp.Select):
        raise PlanError(f"'{shown(canonical(tree))}' is no SELECT over a private answer")
    only(tree, CLAUSES, OUTER)
    clause = tree.args.get("from_")
    if clause is None:
        raise PlanError("FROM is missing in the outer SELECT")
    found_rows = _relation(clause.this, plans, named)
    for join in tree.args.get("joins") or ():
        found_rows = joined(found_rows, _relation(join.this, plans, named), join)
    steps, columns, sides = found_rows
    released = PostScope(columns, sides, beside={})
    group = _group(tree, released)
    if group is not None:
        released = replace(released, group=group)
    items = dict(_items(tree.expressions, released))
    before, post = around_windows(tree, "where", ("qualify", "having"), released, items)
    whole = all(item.is_star for item in tree.expressions)
    made = tuple(
        PostColumn(name=name, expression=released.text(value)) for name, value in items.items()
    )
    found = list((released.beside or {}).values())
    if group is not None:
        _require_grouped(made, group, found)
    steps = (*steps, *before)
    if whole and not found:
        return ((*steps, post) if not is_nothing(post) else steps), columns
    return (*steps, replace(post, columns=made)), after(made, columns)


def _group(tree: exp.Expr, released: PostScope) -> tuple[str, ...] | None:
    """The columns of GROUP BY; () for a SELECT of totals alone; None if rows are not grouped."""
    clause = tree.args.get("group")
    adds = any(
        is_aggregate(node) and not (isinstance(node.parent, exp.Window) and node.arg_key == "this")
        for item in tree.expressions for node in item.find_all(exp.Anonymous)
    )  # fmt: skip
    if clause is None:
        return () if adds else None
    only(clause, {"expressions"}, {})
    found = list[str]()
    for item in clause.expressions:
        item = positioned(item, tree.expressions, "GROUP BY")
        for listed in tree.expressions:
            if isinstance(item, exp.Column) and listed.alias.lower() == item.name.lower():
                item = listed.unalias()
        found.append(released.text(item))
    read = {name for text in found for name in columns_of(text)}
    if read & (noisy(released.columns) | ends(released.columns)):
        raise PlanError(
            "GROUP BY a noisy number: every row has its own.\n"
            "  to fix  GROUP BY columns of groups, or CASE WHEN n > 100 ... in the SELECT"
        )
    return tuple(found)


def _require_grouped(
    made: tuple[PostColumn, ...], group: tuple[str, ...], found: Iterable[Beside]
) -> None:
    """Refuses columns that differ within a group."""
    known = {name for text in group for name in columns_of(text)} | {one.name for one in found}
    for column in made:
        if column.expression not in group and not set(columns_of(column.expression)) <= known:
            raise PlanError(
                f"'{shown(column.name)}' is neither in GROUP BY nor SUM, AVG or COUNT(*).\n"
                "  to fix  GROUP BY it too, or add it up"
            )


def _union(tree: Any, plans: Plans, named: Mapping[str, exp.Expr]) -> Steps:
    """Rows of several SELECTs over private answers, under the names of the first."""
    if tree.args.get("distinct"):
        raise PlanError("UNION DISTINCT of noisy numbers.\n  to fix  UNION ALL")
    named = _with_names(tree, named)
    (first, columns), (second, others) = (
        _select(side.unnest(), plans, named) for side in (tree.left, tree.right)
    )
    own, theirs = PostScope(columns).main, PostScope(others).main
    if len(own) != len(theirs):
        raise PlanError(
            "UNION ALL of SELECTs with different columns.\n"
            "  to fix  select the same number of columns, of the same kinds"
        )
    post = Post(branches=(first, second))
    columns = with_intervals({name: name in noisy(columns) or other in noisy(others)
                              for name, other in zip(own, theirs, strict=True)})  # fmt: skip
    released = PostScope(columns)
    last = clauses_of(tree, "none", released, {n: exp.column(n, quoted=True) for n in own})
    return ((post,) if is_nothing(last) else (post, last)), columns


def _items(items: list[exp.Expr], released: PostScope) -> Iterable[tuple[str, exp.Expr]]:
    """Name and expression of every column of a SELECT list."""
    taken: set[str] = set()
    for place, item in enumerate(items, start=1):
        if item.is_star:
            found: list[tuple[str, exp.Expr]] = [
                (name, exp.column(name, quoted=True)) for name in released.main
            ]
        else:
            value = released.rewritten(item.unalias())
            found = [(item.alias_or_name or f"column_{place}", value)]
        for name, value in found:
            if name.lower() in taken:
                raise PlanError(
                    f"two columns are called '{shown(name)}'.\n"
                    "  to fix  give one another name with AS"
                )
            taken.add(name.lower())
            yield name, value


def _relation(node: exp.Expr, plans: Plans, named: Mapping[str, exp.Expr]) -> Relation:
    if isinstance(node, exp.Subquery):
        only(node, {"this", "alias"}, OUTER)
        return named_relation(*_select(node.this, plans, named), node.alias)
    if not isinstance(node, exp.Table):
        raise PlanError(f"FROM '{shown(canonical(node))}' is not a private answer")
    only(node, {"this", "db", "catalog", "alias"}, OUTER)
    if node.name == PRIVATE:
        return named_relation((), released_columns(plans[0]), "")
    if node.name.startswith(f"{PRIVATE} "):
        place = int(node.name.removeprefix(PRIVATE))
        return named_relation((Post(part=place),), released_columns(plans[place]), "")
    if node.name.lower() not in named:
        raise PlanError(
            f"'{shown(node.name)}' is not a private answer, and an outer SELECT reads nothing else"
            f"{nearest(node.name, named) if named else ''}"
        )
    rest = {key: value for key, value in named.items() if key != node.name.lower()}
    return named_relation(*_select(named[node.name.lower()], plans, rest), node.alias or node.name)


def read_step(items: str, clauses: str, plan: Plan) -> tuple[Post, ...]:
    """The step of `SELECT items FROM it clauses` over the releases of a plan."""
    text = f"SELECT {items} FROM `{PRIVATE}` {clauses}"  # noqa: S608  (no database)
    return read_outer(parse_query(tokenize(text, "the step"), text, "the step"), plan)
