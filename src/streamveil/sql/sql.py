"""SQL text to plans: GoogleSQL's differential-privacy clause and the streaming words.

>>> script = parse_script('''
...     CREATE STREAM clicks WITH (source = 'files', path = 'clicks/*.parquet', event_time = 'ts');
...     SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9,
...         privacy_unit_column = user_id, max_rows_contributed = 4, steps = 24)
...       url, COUNT(*) AS n
...     FROM clicks GROUP BY url EMIT EVERY 1000 ROWS;
... ''')
>>> script.query.plan.aggregates[0].function, script.query.plan.clock.kind
('count', 'rows')
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from streamveil.errors import PlanError, nearest
from streamveil.expressions import conjunction
from streamveil.expressions.dialect import canonical, shown, spelled
from streamveil.plan import Plan, SinkSpec, SourceSpec, TableSource
from streamveil.plan.check import HABITS
from streamveil.plan.joint import JointPlan
from streamveil.plan.options import MAX_GROUPS, NAME, PRIVACY_UNIT, PUBLIC_GROUPS
from streamveil.sql.assemble import Draft, all_groups, assemble, groups_of
from streamveil.sql.joins import rows_of
from streamveil.sql.options import (
    ALL_GROUPS,
    CHANGES,
    constant,
    flag,
    read_options,
    refuse_options,
    text,
    word,
)
from streamveil.sql.post import read_outer
from streamveil.sql.script import Ask, Create, Private, PrivateSelects, split_script, values_of
from streamveil.sql.select import read_select
from streamveil.sql.table import domain_of, points_where, table_source

MOST_NAME = 60  # characters of the name of a statement, made of the names of its answers


@dataclass(frozen=True)
class Planned:
    """One private query of a script."""

    plan: Plan
    explain: bool = False  # EXPLAIN PRIVACY: describe it, do not run it
    asks: tuple[str, ...] = ()  # ASK: questions to its table, for the end of a run

    @property
    def name(self) -> str:
        """Its name in its script: that of its first sink, else that of its job."""
        return self.plan.sinks[0].name if self.plan.sinks else self.plan.name


@dataclass(frozen=True)
class PlannedJoint:
    """One statement of several private SELECTs."""

    plan: JointPlan
    explain: bool = False

    @property
    def name(self) -> str:
        """Its name in its script."""
        return self.plan.sinks[0].name if self.plan.sinks else self.plan.name


NAMED = (
    "names come from INSERT INTO, or OPTIONS (name = '...'); a view is asked by SELECT * FROM view"
)


@dataclass(frozen=True)
class Script:
    """The sources, sinks and private queries of a script."""

    sources: Mapping[str, SourceSpec]
    sinks: Mapping[str, SinkSpec]
    queries: tuple[Planned, ...]
    joints: tuple[PlannedJoint, ...] = ()  # statements of several private SELECTs

    @property
    def query(self) -> Planned:
        """The only query; PlanError when there are none or several."""
        if self.joints:
            raise PlanError(
                f"'{self.joints[0].name}' is made of several private answers, and this is for one"
                " query.\n  to fix  run, explain, read, derive, dashboard, verify-privacy and"
                " sv.sql take it; for the rest, make each private SELECT a statement of its own"
            )
        if len(self.queries) != 1:
            names = ", ".join(query.name for query in self.queries) or "none"
            raise PlanError(
                f"the script holds {len(self.queries)} queries ({names}); exactly one is wanted.\n"
                f"  to fix  --query NAME; {NAMED}"
            )
        return self.queries[0]

    def named(self, wanted: str | None) -> Planned | PlannedJoint:
        """The query or statement of a name; without a name, the only one."""
        joints = [one for one in self.joints if wanted in (None, one.name, one.plan.name)]
        if len(joints) == 1 and (wanted is not None or not self.queries):
            return joints[0]
        if wanted is None:
            return self.query
        named = [query for query in self.queries if wanted in (query.name, query.plan.name)]
        found = [query for query in named if query.name == wanted] or named
        if len(found) != 1:
            all_of_them: tuple[Planned | PlannedJoint, ...] = (*self.queries, *self.joints)
            known = ", ".join(one.name for one in all_of_them)
            raise PlanError(
                f"the script has no single query '{shown(wanted)}'; it has: {known or 'none'}.\n"
                f"  to fix  {NAMED}"
            )
        return found[0]


def parse_script(source: str, tables: Mapping[str, SourceSpec] | None = None) -> Script:
    """Reads a whole script. `tables` are known before its first statement.

    Raises PlanError, and nothing else, for every text that is not a valid script.
    """
    sources: dict[str, SourceSpec] = dict(tables or {})
    sinks: dict[str, SinkSpec] = {}
    queries: list[Planned] = []
    joints: list[PlannedJoint] = []
    asks: list[tuple[str, str]] = []
    for statement in split_script(source):
        if isinstance(statement, Create):
            _declare(statement, sources, sinks)
        elif isinstance(statement, Ask):
            asks.append(_asked(statement, sources))
        elif isinstance(statement, PrivateSelects):
            joints.append(_joint(statement, source, sources, sinks))
        else:
            queries.append(_planned(statement, source, sources, sinks))
    return Script(sources, sinks, tuple(_with_asks(queries, asks)), tuple(joints))


def _with_asks(queries: list[Planned], asks: list[tuple[str, str]]) -> Iterator[Planned]:
    """Every query with the questions to its table."""
    for table, _ in asks:
        if [one.plan.source.name for one in queries].count(table) != 1:
            raise PlanError(
                f"ASK {shown(table)} needs exactly one SELECT over that table in the script: it "
                "says when steps close and what is paid"
            )
    for one in queries:
        own = tuple(text for table, text in asks if table == one.plan.source.name)
        yield replace(one, asks=own)


def _asked(statement: Ask, sources: Mapping[str, SourceSpec]) -> tuple[str, str]:
    source = sources.get(statement.name)
    if not isinstance(source, TableSource):
        raise PlanError(
            f"ASK {shown(statement.name)}: no changing table of that name.\n"
            "  to fix  CREATE TABLE name (...) WITH (source = ..., changelog = 'insert-delete')"
        )
    condition = statement.condition
    text = None if condition is None else conjunction([canonical(condition)])
    points_where(source, text)  # unknown columns are refused here
    return statement.name, "COUNT(*)" if text is None else f"COUNT(*) WHERE {text}"


def _joint(
    statement: PrivateSelects,
    source: str,
    sources: Mapping[str, SourceSpec],
    sinks: Mapping[str, SinkSpec],
) -> PlannedJoint:
    parts = tuple(_planned(part, source, sources, {}).plan for part in statement.parts)
    made = JointPlan(
        name="_".join(part.name for part in parts)[:MOST_NAME], parts=parts,
        post=read_outer(statement.outer, parts), sinks=_chosen(statement.sinks, sinks),
    )  # fmt: skip
    return PlannedJoint(made, statement.explain)


def _chosen(names: tuple[str, ...], sinks: Mapping[str, SinkSpec]) -> tuple[SinkSpec, ...]:
    """The sinks that INSERT INTO names."""
    for name in names:
        if name not in sinks:
            hint = nearest(name, sinks) if sinks else "; declare it with CREATE SINK"
            raise PlanError(f"unknown sink '{shown(name)}'{hint}")
        if names.count(name) > 1:
            raise PlanError(f"INSERT INTO names the sink '{shown(name)}' twice")
    return tuple(sinks[name] for name in names)


def _planned(
    statement: Private,
    source: str,
    sources: Mapping[str, SourceSpec],
    sinks: Mapping[str, SinkSpec],
) -> Planned:
    chosen = _chosen(statement.sinks, sinks)
    values = read_options(statement.pairs)
    if statement.view is not None and NAME.of(values) is None:
        values[NAME.name] = statement.view
    if (unit := PRIVACY_UNIT.of(values)) is not None:
        values[PRIVACY_UNIT.name] = spelled(unit, statement.tree)
    groups = take_public_join(statement.tree, sources)
    draft = read_select(statement.tree, sources, values, statement.emit, source, chosen)
    values |= draft.named
    if groups is not None:
        values[PUBLIC_GROUPS.name] = only_groups(groups, draft, values)
    if values.pop(ALL_GROUPS, False):
        values[MAX_GROUPS.name] = all_groups(draft, values)
    plan = assemble(draft, values)
    if statement.outer is not None:
        plan = replace(plan, post=(*plan.post, *read_outer(statement.outer, plan)))
    return Planned(plan, statement.explain)


def _declare(create: Create, sources: dict[str, SourceSpec], sinks: dict[str, SinkSpec]) -> None:
    """CREATE STREAM, TABLE or SINK."""
    values = values_of(create.pairs, _setting)
    name = create.name
    if name in sources or name in sinks:
        raise PlanError(f"'{shown(name)}' is declared twice")
    if create.kind == "SINK":
        kind = values.pop("sink", None)
        if not isinstance(kind, str) or create.columns:
            why = "has columns, which releases bring" if create.columns else "says no kind of sink"
            raise PlanError(
                f"the sink '{shown(name)}' {why}.\n"
                f"  to fix  CREATE SINK {shown(name)} WITH (sink = 'files', path = 'out/')"
            )
        sinks[name] = SinkSpec(name=name, kind=kind, options=values)
        return
    table = _table_settings(create, values)
    kind = values.pop("source", None)
    if not isinstance(kind, str):
        raise PlanError(
            f"'{shown(name)}' says no kind of source.\n"
            f"  to fix  CREATE {create.kind} {shown(name)} WITH (source = 'files', path = '...')"
        )
    event_time = values.pop("event_time", None)
    if event_time is not None and not isinstance(event_time, str):
        raise PlanError("event_time is the name of a column")
    if "watermark" in values:
        raise PlanError(
            "a source has no watermark here: leave it out. Windows close by the public clock; "
            "slow rows are allowed for with lateness"
        )
    refuse_options(values, name)
    if "columns" in values:
        raise PlanError(
            f"columns of '{shown(name)}' are declared after its name.\n"
            f"  to fix  CREATE {create.kind} {shown(name)} (user STRING, n INT64) WITH (...)"
        )
    public = values.pop("public", False)
    if not isinstance(public, bool):
        raise PlanError("public is TRUE or FALSE")
    if create.columns:
        values["columns"] = dict(create.columns)
    spec = SourceSpec(name=name, kind=kind, options=values, event_time=event_time, public=public)
    sources[name] = _table(create, spec, table, sources) if table else spec


def _table_settings(create: Create, values: dict[str, Any]) -> dict[str, Any]:
    """Takes the settings of a changing table out of all; empty for a stream."""
    table = {word: values.pop(word) for word in CHANGES if word in values}
    said = "CHECK" if create.checks else next(iter(table), "")
    if said and "changelog" not in table:
        raise PlanError(f"{said} belongs to a changing table: give changelog = 'insert-delete'")
    return table


def _table(
    create: Create, rows: SourceSpec, settings: dict[str, Any], sources: Mapping[str, SourceSpec]
) -> TableSource:
    """A changing table over a connector, or over the rows of a known name."""
    given = sources.get(rows.kind)
    if given is not None and not isinstance(given, TableSource):
        if rows.options:
            raise PlanError(
                f"types of columns and settings of '{shown(given.name)}'"
                " belong where it is declared"
            )
        rows = replace(given, event_time=rows.event_time or given.event_time)
    domains = [domain_of(column, check) for column, check in create.checks]
    return table_source(create.name, rows, settings, domains)


def _setting(tree: Any, what: str) -> Any:
    """A value of WITH (...): text, number, TRUE or FALSE, or a list of them."""
    if tree.key == "array":
        return [_setting(part, what) for part in tree.expressions]
    if tree.key == "boolean":
        return flag(tree, what)
    if tree.key in ("column", "var"):
        return word(tree, what)
    if tree.key == "literal" and tree.is_string:
        return text(tree, what)
    return constant(tree, what)


# ---- GoogleSQL's way to name public groups: RIGHT JOIN with a list or a public table
#
#   FROM t RIGHT JOIN (SELECT DISTINCT item FROM UNNEST(['a', 'b']) AS item) USING (item)
#   FROM t RIGHT JOIN (SELECT DISTINCT item FROM catalogue) USING (item)
#
# Such a join adds nobody's rows: it says which groups to show. The table must be declared public.

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
    return groups_of(rows_of(spec), [column])


def only_groups(
    groups: Groups, draft: Draft, values: Mapping[str, Any]
) -> tuple[tuple[Any, ...], ...]:
    """The groups, if they are for the query's only key."""
    column, found = groups
    names = [key.name.lower() for key in draft.keys]
    plain = [key.expression.strip("`").lower() for key in draft.keys]
    if len(names) != 1 or column.lower() not in (names[0], plain[0]):
        raise PlanError(f"public groups of '{shown(column)}' need GROUP BY {shown(column)} alone")
    if values.get(PUBLIC_GROUPS.name) is not None:
        raise PlanError("public groups are given twice: by public_groups and by a join")
    return tuple(dict.fromkeys(found))
