"""A person's own rows, combined before anything is bounded: subqueries by the privacy unit.

First and last events, new and returning users, sums of a person's day, sessions: such a row is a
function of one unit's rows. A step describes what is done with the rows of one unit, and never
names the unit. Every group and every partition is of one unit by construction, so no step can mix
two units. All rows must be there: the input ends, and is held in memory. (Joins of live data keep a
declared number of rows of each unit: `runtime.live_joins`.)

Steps may also make several rows of one (`OwnUnnest`, `OwnSets`), or join each row with a public
table (`joins.OwnLookup`). Such steps need no other row, so they also run on endless input, and
contribution bounds count the new rows like any others. Their number is limited for each original
row by itself (`unnested`, `MATCHES` of `joins`) and in all steps together (`joins.in_room`), so
that no single row can fill the memory or an array. `joins` also joins a person's rows with rows of
the same person elsewhere.

Proof: a step maps the rows of each unit, in their order, to rows of that unit, and puts the results
    in the order of the rows they begin with (`OwnGroup`) or come from (`OwnWindows`). Without one
    unit all other rows come out as they were, in the same order: neighbours stay neighbours at any
    number of steps, and what follows bounds and charges them as rows of any source (of joins see
    `joins`). That holds to the last bit: totals are added up in the order of the unit's rows alone,
    running sums are of integers, and ranks compare rows of one unit. A row without a unit stays
    without one and is left out, as any such row; a unit's period is no unit (rows of two periods
    would meet), so that protecting periods is refused (`plan.check`), as are inputs without an end.
Memory: the rows of the source, in the columns that the query reads, once more for each step.

>>> rows = pa.table({"user": [1, 2, 1], "day": [5, 5, 6]})
>>> first = OwnGroup(columns=(OwnColumn(name="first", function="MIN", expression="day"),))
>>> source = OwnRows(name="t", kind="memory", unit="user", person="user", steps=(first,))
>>> own_rows(source, rows).to_pylist()
[{'first': 5, 'user': 1}, {'first': 5, 'user': 2}]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from streamveil.core.accounting import duration
from streamveil.errors import PlanError
from streamveil.expressions import (
    column_named,
    columns_of,
    compile_key,
    compile_predicate,
    compile_unit,
    compile_value,
    kind_of,
    normalize_expression,
)
from streamveil.expressions.dialect import canonical, parse_text, shown
from streamveil.plan import KeyColumn, SourceSpec
from streamveil.plan.combine import MOST_REPEATED, bytes_of, numbered, plain, wide
from streamveil.plan.joins import (
    MATCHES,
    ORIGIN,
    Joined,
    OwnJoin,
    OwnLookup,
    OwnSelect,
    OwnUnion,
    added,
    in_room,
    joined,
    looked_up,
    room_of,
    selected,
)
from streamveil.plan.own_columns import TOTALS, Ordered, OwnColumn, total
from streamveil.types import Array, Int64

MOST_PARTS = 1_000  # most rows that UNNEST makes of one row


@dataclass(frozen=True, kw_only=True)
class OwnGroup:
    """One row per unit and keys, in the order of their first rows."""

    where: str | None = None
    keys: tuple[KeyColumn, ...] = ()
    columns: tuple[OwnColumn, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OwnWindows:
    """The same rows, with a column for each window function."""

    columns: tuple[OwnColumn, ...]
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class OwnUnnest:
    """A row for each part of a text, or each element of a list, with a column that holds it."""

    name: str
    expression: str  # a text, or a column of lists
    separator: str | None = None  # of a text
    where: str | None = None
    columns: tuple[OwnColumn, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OwnSets:
    """A row for each set of keys, in which other keys are null; a column names the set.

    Contribution bounds are given for one set, and `sql.assemble` multiplies them by the number of
    sets. So the loss of all sets together follows from bounds, as for any groups.
    """

    keys: tuple[KeyColumn, ...]
    sets: tuple[tuple[int, ...], ...]  # places of keys
    where: str | None = None
    columns: tuple[OwnColumn, ...] = ()

    def column(self, place: int) -> str:
        """The name of the column of a key."""
        return f"{SET}_{place}"

    def words(self, chosen: tuple[int, ...]) -> str:
        """The name of a set."""
        return "(" + ", ".join(self.keys[place].name for place in chosen) + ")"


SET = "grouping_set"  # the column that tells sets apart
OwnStep = OwnGroup | OwnWindows | OwnUnnest | OwnSets | OwnSelect | OwnLookup | OwnJoin | OwnUnion
ALONE = (OwnUnnest, OwnSets, OwnSelect, OwnLookup)  # steps that look at one row
WITH_OTHERS = (OwnJoin, OwnUnion)  # steps that read another relation
Load = Callable[["OwnRows"], pa.Table]  # reads all rows of a source, as they came


@dataclass(frozen=True, kw_only=True)
class OwnRows(SourceSpec):
    """Rows of a source, combined per unit: a plan sees the rows after the last step."""

    combines: ClassVar[bool] = True
    unit: str  # per-row expression of the privacy unit, over columns of the source
    person: str = ""  # the column of the unit in the combined rows, which is the plan's unit
    steps: tuple[OwnStep, ...]

    def reads(self, schema: pa.Schema, later: Sequence[str] | None = None) -> list[str]:
        """The columns of the source that are needed: all that steps do not drop.

        `later`: the columns that are read after the last step, if known.
        """
        if any(isinstance(step, OwnLookup | OwnJoin | OwnUnion) for step in self.steps):
            return list(schema.names)
        kept = schema.names if later is None else later
        if any(isinstance(step, OwnGroup) for step in self.steps):
            kept = []
        texts = [self.unit]
        for step in self.steps:
            texts += [step.where or "TRUE", *(key.expression for key in keys_of(step))]
            for column in step.columns:
                texts += [column.expression or "TRUE", *column.by]
                texts += [order.expression for order in column.order]
            texts += [step.expression] if isinstance(step, OwnUnnest) else []
        mentioned = {name.lower() for text in texts for name in columns_of(text)}
        return [name for name in schema.names if name.lower() in mentioned or name in kept]

    @property
    def row_by_row(self) -> bool:
        """Whether each row is used alone, so that the input may be endless."""
        return all(isinstance(step, ALONE) for step in self.steps)

    @property
    def keeps_rows(self) -> bool:
        """Whether joins keep a limited number of rows per unit, so that input may be endless."""
        return all(
            isinstance(step, ALONE)
            or (
                isinstance(step, OwnJoin | OwnUnion)
                and isinstance(step.other, OwnRows)
                and step.other.row_by_row
                and (isinstance(step, OwnUnion) or step.kept is not None)
            )
            for step in self.steps
        )

    def as_read(self, name: str) -> str | None:
        """The column of the source that a column after all steps is; None if a step makes it.

        Only for steps that use each row alone, and joins.
        """
        for step in reversed(self.steps):
            if isinstance(step, Joined):
                own, other = step.sides
                if other and name.startswith(f"{other}:"):
                    return None
                name = name.removeprefix(f"{own}:") if own else name
            elif isinstance(step, OwnSelect):
                made = [key.expression for key in step.keys if key.name.lower() == name.lower()]
                column = parse_text(made[0], "a column") if made else exp.column(name)
                if not isinstance(column, exp.Column) or not (made or step.rest):
                    return None
                name = column.name
            elif isinstance(step, OwnUnnest) and step.name.lower() == name.lower():
                return None
        return name

    @property
    def has_one_row_each(self) -> bool:
        """Whether the first step leaves one row of each unit, and no later step adds any."""
        first, *later = self.steps
        grouped = isinstance(first, OwnGroup) and {key.expression for key in first.keys} <= {
            self.unit
        }
        return grouped and all(isinstance(step, OwnSelect | OwnWindows) for step in later)

    @property
    def words(self) -> str:
        """The steps that combine the rows, in words."""
        if any(isinstance(step, OwnJoin) for step in self.steps):
            return "a join by the privacy unit"
        if any(isinstance(step, OwnUnion) for step in self.steps):
            return "UNION ALL of rows"
        return "a subquery by the privacy unit"

    @property
    def others(self) -> list[OwnRows]:
        """The other relations that steps read."""
        found = [step.other for step in self.steps if isinstance(step, WITH_OTHERS)]
        return [one for one in found if isinstance(one, OwnRows)]

    @property
    def relations(self) -> list[OwnRows]:
        """This relation and all others that it reads, at any depth."""
        return [self, *(one for other in self.others for one in other.relations)]

    @property
    def omitted(self) -> tuple[str, ...]:
        """See `SourceSpec`: the rows that steps leave out, stated with each release."""
        found = [words for other in self.others for words in other.omitted]
        for step in self.steps:
            if isinstance(step, OwnUnnest):
                found.append(f"UNNEST makes at most {MOST_PARTS:,} rows of one: further parts"
                             " are in no number and no interval")  # fmt: skip
            elif isinstance(step, OwnJoin) and step.kept is not None:
                found.append(kept_words(step))
            elif isinstance(step, OwnJoin | OwnLookup) and step.how in ("inner", "left"):
                found.append(f"a row is joined with the first {MATCHES:,} rows that match it, and"
                             " becomes at most so many in all joins together: further pairs are in"
                             " no number and no interval")  # fmt: skip
        return tuple(dict.fromkeys(found))


def kept_words(step: OwnJoin) -> str:
    """The rows that a join on live data keeps, and those that are therefore in no number.

    >>> step = OwnJoin(other=SourceSpec(name="people", kind="files"), kept=1)
    >>> kept_words(step).partition(":")[0]
    "a row meets the newest row that is kept of its person in 'people' when it comes"
    """
    rows = "row that is" if step.kept == 1 else f"{step.kept:,} rows that are"
    where = f"'{step.other.name}'" if step.within_us is None else "the other relation"
    late = "" if step.within_us is None else (
        f", at most {duration(timedelta(microseconds=step.within_us))} apart; one that comes later"
        " than that after its time may meet nothing"
    )  # fmt: skip
    if late and step.how == "left":
        late += "; one that meets nothing comes alone, once twice that time has passed"
    return (
        f"a row meets the newest {rows} kept of its person in {where} when it comes{late}:"
        " further pairs are in no number and no interval"
    )


def keys_of(step: OwnStep) -> tuple[KeyColumn, ...]:
    """The keys of a step that groups."""
    return step.keys if isinstance(step, OwnGroup | OwnSets | OwnSelect) else ()


def nothing_else(source: OwnRows) -> pa.Table:
    """Refuses to load another relation: only the rows of this one are given."""
    raise PlanError(
        f"the query joins '{source.name}', and a sample is of one relation.\n"
        "  to fix  leave the sample out, or store joined rows first and query these"
    )


def own_rows(source: OwnRows, table: pa.Table, load: Load = nothing_else) -> pa.Table:
    """All rows of a source, combined; their unit column is the unit of the rows they come from."""
    made, units = after_steps(source, table, load)
    columns = dict(zip(made.column_names, made.columns, strict=True))
    return pa.table({**columns, source.person: units})


def after_steps(
    source: OwnRows, table: pa.Table, load: Load, later: Sequence[OwnStep] = ()
) -> tuple[pa.Table, Any]:
    """The rows after all steps, and the unit of each. `later`: steps that follow elsewhere."""
    for place, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):  # dictionaries of chunks may not fit into one
            table = table.set_column(place, table.column_names[place], wide(column))
    units = plain(compile_unit(source.unit, table.schema)(table))
    for place, step in enumerate(source.steps, 1):
        table, units = passing(step, numbered_rows(table), units)
        origin, then = table.column(ORIGIN), (*source.steps[place:], *later)
        if isinstance(step, OwnUnion):
            table = without_origin(table)
        if isinstance(step, WITH_OTHERS):
            assert isinstance(step.other, OwnRows)  # noqa: S101  (a type narrowing, never data)
            theirs = after_steps(step.other, load(step.other), load, then)
            table, units = BESIDE[type(step)](step, table, units, theirs)
        else:
            table, units = after_step(step, table, units, then)
        if isinstance(step, OwnSelect) and not step.rest:  # the same rows
            table = table.append_column(ORIGIN, origin)
    return without_origin(table), units


def numbered_rows(table: pa.Table) -> pa.Table:
    """The rows with their origin; rows without one are their own origins."""
    if ORIGIN in table.column_names:
        return table
    return table.append_column(ORIGIN, pa.array(np.arange(table.num_rows)))


def without_origin(table: pa.Table) -> pa.Table:
    """The columns that a query may name."""
    return table.select([name for name in table.column_names if not name.endswith(ORIGIN)])


def after_step(
    step: OwnStep, table: pa.Table, units: Any, later: Sequence[OwnStep]
) -> tuple[pa.Table, Any]:
    """The rows that a step without another relation makes of those that it takes."""
    if isinstance(step, OwnUnnest):
        return unnested(step, table, units, again=any(map(unnests_lists, later)))
    return RUN[type(step)](step, table, units)


def unnests_lists(step: OwnStep) -> bool:
    """Whether a step reads a column of lists: no other step does, and no expression."""
    return isinstance(step, OwnUnnest) and step.separator is None


def passing(step: OwnStep, table: pa.Table, units: Any) -> tuple[pa.Table, Any]:
    """The rows that a step takes."""
    if step.where is None:
        return table, units
    passes = pc.fill_null(compile_predicate(step.where, table.schema)(table), fill_value=False)
    return table.filter(passes), units.filter(passes)


def grouped(step: Any, table: pa.Table, units: Any) -> tuple[pa.Table, Any]:
    """One row per unit and keys."""
    keys = [plain(compile_key(key.expression, table.schema)(table)) for key in step.keys]
    group = numbered([units, *keys])
    rows = pa.array(np.flatnonzero(np.diff(np.maximum.accumulate(group), prepend=-1)))  # firsts
    columns = {key.name: held.take(rows) for key, held in zip(step.keys, keys, strict=True)}
    for column in step.columns:
        columns[column.name] = total(column, table, group)
    made = pa.table(columns) if columns else pa.table({"": rows}).select([])
    return made, units.take(rows)


def windowed(step: Any, table: pa.Table, units: Any) -> tuple[pa.Table, Any]:
    """The rows with a new column for each window function."""
    made = dict(zip(table.column_names, table.columns, strict=True))
    for column in step.columns:
        by = [plain(compile_key(text, table.schema)(table)) for text in column.by]
        group = numbered([units, *by])
        if column.order or column.function not in TOTALS:
            made[column.name] = Ordered.of(column, table, group).values(column, table)
        else:
            made[column.name] = wide(total(column, table, group)).take(pa.array(group))
    return pa.table(made), units


def unnested(
    step: OwnUnnest, table: pa.Table, units: Any, *, again: bool = False
) -> tuple[pa.Table, Any]:
    """Each row once for each of its first parts, in order; no row for a null list.

    A row has at most `MOST_PARTS`. It has fewer if the repeated columns would take more than
    `MOST_REPEATED` bytes, or if it shares its room with other rows made of the same row
    (`in_room`): this depends on that row alone. Lists are repeated if a later step unnests some
    (`again`), and are null otherwise.
    """
    lists = lists_of(step, table)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    repeated = {
        name: wide(column)
        for name, column in columns.items()
        if again or kind_of(column.type) is not None
    }
    parts = np.asarray(pc.fill_null(pc.list_value_length(lists), 0))  # a null list has no parts
    place = np.repeat(np.arange(len(parts)), parts)
    most = in_room(parts, room_of(table, most_parts([*repeated.values(), wide(units)])))
    first = np.arange(len(place)) - np.searchsorted(place, place) < most[place]
    rows = pa.array(place[first])
    made = {
        name: repeated[name].take(rows) if name in repeated else pa.nulls(len(rows), column.type)
        for name, column in columns.items()
    }
    made[step.name] = pc.list_flatten(lists).filter(pa.array(first))
    return pa.table(made), wide(units).take(rows)


def lists_of(step: OwnUnnest, table: pa.Table) -> Any:
    """The list of each row; a list split from text may have one part more than are used."""
    if step.separator is None:
        lists = wide(table.column(column_named(table.schema, parse_text(step.expression).name)))
        if pa.types.is_large_list(lists.type):
            return lists
        raise PlanError(
            f"UNNEST({step.expression}): the column holds {lists.type}, and no lists.\n"
            "  to fix  UNNEST(SPLIT(column, ',')) for texts"
        )
    compiled = compile_value(step.expression, table.schema)
    if compiled.kind not in ("string", "null"):
        raise PlanError(f"SPLIT({step.expression}) takes text, not {compiled.kind}")
    texts = plain(compiled(table)).cast(pa.string())
    return pc.split_pattern(texts, step.separator, max_splits=MOST_PARTS)


def most_parts(columns: Sequence[Any]) -> Int64[Array, " rows"]:
    """How many rows may be made of each row, by the bytes of its own texts and lists.

    >>> most_parts([pa.array(["a", "b" * 2**23, None])]).tolist()
    [1000, 2, 1000]
    """
    sizes = 1 + sum(bytes_of(column) for column in columns)
    return np.asarray(np.clip((MOST_REPEATED + sizes - 1) // sizes, 1, MOST_PARTS))


def in_sets(step: Any, table: pa.Table, units: Any) -> tuple[pa.Table, Any]:
    """Each row once for each set of keys; copies follow each other."""
    keys = [wide(compile_key(key.expression, table.schema)(table)) for key in step.keys]
    number, count = len(step.sets), table.num_rows
    rows = pa.array(np.repeat(np.arange(count), number))
    which = np.tile(np.arange(number), count)
    made = {name: wide(table.column(name)).take(rows) for name in table.column_names}
    names = wide(pa.array([step.words(chosen) for chosen in step.sets]))
    made[SET] = names.take(pa.array(which))
    for place, held in enumerate(keys):
        inside = np.array([place in chosen for chosen in step.sets])[which]
        empty = pa.scalar(None, held.type)
        made[step.column(place)] = pc.if_else(pa.array(inside), held.take(rows), empty)
    return pa.table(made), wide(units).take(rows)


RUN: dict[type, Callable[[Any, pa.Table, Any], tuple[pa.Table, Any]]] = {
    OwnGroup: grouped, OwnWindows: windowed, OwnSets: in_sets, OwnSelect: selected,
    OwnLookup: looked_up,
}  # fmt: skip
BESIDE: dict[type, Callable[..., tuple[pa.Table, Any]]] = {OwnJoin: joined, OwnUnion: added}


def with_step(source: SourceSpec, unit: str, *steps: OwnStep) -> OwnRows:
    """A source with more steps over the same unit after those it has."""
    names = {step.name.lower() for step in steps if isinstance(step, OwnUnnest)}
    for name in columns_of(unit):
        if name.lower() in names:
            raise PlanError(
                f"UNNEST calls its parts '{shown(name)}', as the privacy unit does a column: whose"
                " a row is would be unclear.\n  to fix  give the parts another name; the unit is a"
                " column that rows come with"
            )
    if isinstance(source, OwnRows):
        if source.person:
            require_person(source, unit)
        return replace(source, steps=(*source.steps, *steps))
    if type(source) is not SourceSpec:
        raise PlanError(
            "rows of a changing table come and go: they are counted, and not combined per person.\n"
            "  to fix  read its changes as a stream, without changelog"
        )
    said = {name: getattr(source, name) for name in ("name", "kind", "options", "event_time")}
    return OwnRows(**said, unit=unit, steps=steps)


def column_text(name: str) -> str:
    """A column name as plans write it."""
    return normalize_expression(canonical(exp.column(name, quoted=True)))


def require_person(source: OwnRows, unit: str) -> None:
    """Refuses a unit other than that by which rows were combined."""
    if unit != column_text(source.person):
        raise PlanError(
            f"the privacy unit is {unit}, and rows were combined by {source.unit}.\n"
            "  to fix  protect the same unit that subqueries group by"
        )


def with_limits(source: SourceSpec, rows: int | None, within_us: int | None) -> SourceSpec:
    """The source with limits of its joins on live data; `within_us` is for timed relations."""
    if rows is None or not (
        isinstance(source, OwnRows) and any(isinstance(step, OwnJoin) for step in source.steps)
    ):
        raise PlanError(
            "join_rows says what a join by the privacy unit keeps of each person's rows on live"
            " data, and join_within goes with it.\n"
            "  to fix  give join_rows with a join by the unit, or leave both out"
        )
    made = [
        replace(step, kept=rows, within_us=within_us if step.other.event_time else None)
        if isinstance(step, OwnJoin) else step
        for step in source.steps
    ]  # fmt: skip
    if within_us is not None and not any(getattr(step, "within_us", None) for step in made):
        raise PlanError(
            "join_within is for relations of events, and the one that is joined has no times.\n"
            "  to fix  event_time = 'ts' where it is declared, or leave join_within out"
        )
    return replace(source, steps=tuple(made))


def with_person(source: OwnRows, unit: str) -> tuple[OwnRows, str]:
    """The source with its unit in the column that a query protects, and that column's text."""
    tree = parse_text(unit, "the privacy unit").unnest()
    if source.row_by_row and normalize_expression(unit) == source.unit:
        name = tree.name if isinstance(tree, exp.Column) else "privacy_unit"
        return replace(source, person=name), column_text(name)
    if not isinstance(tree, exp.Column):
        raise PlanError(
            f"the privacy unit {shown(unit)} is computed from combined rows.\n"
            "  to fix  compute it in the subquery under a name (LOWER(user) AS person), group by "
            "it, and protect that name"
        )
    return replace(source, person=tree.name), column_text(tree.name)
