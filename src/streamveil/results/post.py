"""Post-processing of releases: filters, order, limits and computed columns, on released rows alone.

Guarantee: none of its own, and it needs none. A release may leave; results computed from it and
    from the query may leave as well, at no cost (`core.noisy.post_process` takes nothing else).
Each release is processed alone: ORDER BY and LIMIT are within one trigger of one window.

A computed column that reads answers has NAME_sd, NAME_low and NAME_high, as answers have
(`results.combine_intervals`). Where there is no interval they are null, and a note says why.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from streamveil.batch import Moment, Release
from streamveil.core.noisy import Noisy, post_process
from streamveil.errors import PlanError
from streamveil.expressions import compile_expression, compile_key, compile_predicate
from streamveil.expressions.convert import KINDS
from streamveil.expressions.dialect import parse_text, shown
from streamveil.kinds import COUNTS, TOTALS
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
    TableSource,
)
from streamveil.plan.combine import numbered
from streamveil.plan.joint import JointPlan
from streamveil.plan.own_columns import OwnColumn
from streamveil.plan.own_rows import OwnWindows, column_text, windowed
from streamveil.release_metadata import (
    FACTS,
    NOTE,
    SUFFIXES,
    TIME,
    UNBOUNDED,
    Facts,
    numbers_of,
    read_facts,
    read_note,
    sentences,
)
from streamveil.results.answer_sums import (
    HALF,
    REPEATED,
    ROW,
    SHIFT,
    TOTAL,
    Answered,
    TotalParts,
    names_in,
)
from streamveil.results.combine_intervals import NoIntervalError, interval_of, possible
from streamveil.results.intervals import open_ends, reach_by
from streamveil.results.post_joins import PostRows, all_told, joined, united, unsaid
from streamveil.results.releases import Releases
from streamveil.types import Array

CHOSEN = (
    "rows were chosen by their noisy numbers, which favours high noise: each interval holds for its"
    " group before the choice, not among the chosen ones"
)
RANKED = "places follow noisy numbers and may be wrong; `top` of the answers says which are certain"
SHOWN_ONLY = "totals over released rows are of the published groups: they leave out hidden ones"
EARLIER = "earlier rows are those of the published groups: hidden ones are passed over"
INSTANT = pa.timestamp("us", tz="UTC")


def post_processed(release: Release, posts: tuple[Post, ...]) -> Release:
    """A release after the post-processing of its query."""
    if not posts:
        return release
    return replace(release, noisy=post_process(processed, release.noisy, posts))


def after_post(found: Releases, posts: tuple[Post, ...]) -> Releases:
    """Releases that are kept as they were made, after the post-processing of a query."""
    if not posts:
        return found

    def load(moment: Moment) -> Noisy[pa.Table]:
        return post_process(processed, found.noisy(moment), posts)

    return Releases(
        {moment: partial(load, moment) for moment in found.moments}, None, found.dropped
    )


def processed(table: pa.Table, posts: tuple[Post, ...]) -> pa.Table:
    """The table of a release after post-processing."""
    return with_metadata(reduce(step, posts, rows_of(table)), table.schema)


def processed_together(
    posts: tuple[Post, ...], names: tuple[str, ...], *tables: pa.Table
) -> pa.Table:
    """The result of a SELECT over releases of several answers, one of each, at the same time."""
    parts = tuple(map(part_rows, range(len(tables)), names, tables))
    made = reduce(step, posts, replace(parts[0], parts=parts))
    whose = {"hidden": {}, "job": " and ".join(names)}
    plain_facts = None if made.facts is None else {**made.facts, **whose}
    computed: dict[str, Facts] = {name: {} for name in made.answered.answers}
    made = replace(
        made, facts=plain_facts, answered=replace(made.answered, answers=computed),
        notes=tuple(dict.fromkeys([*(note for one in parts for note in one.notes), *made.notes])),
    )  # fmt: skip
    place = {TIME: text} if (text := (tables[0].schema.metadata or {}).get(TIME)) else {}
    return with_metadata(made, tables[0].schema.with_metadata(place))


def part_rows(place: int, name: str, table: pa.Table) -> PostRows:
    """The rows of one of several answers: its lanes are its own, and its notes name it."""
    rows = rows_of(table)
    answers = {
        column: facts and {**facts, "lanes": [[place, lane] for lane in facts.get("lanes", ())]}
        for column, facts in rows.answered.answers.items()
    }
    facts = rows.facts and {
        known: rows.facts[known] for known in ("version", "job", "confidence", "windows")
    } | {"rounds": True, "lanes": [], "counters": []}  # fmt: skip
    said = tuple(f"{name}: {note}" for note in sentences(table))
    answered = replace(rows.answered, answers=answers)
    return replace(rows, facts=facts, notes=said, answered=answered, told={})  # notes say it


def require_joint(joint: JointPlan, schemas: tuple[pa.Schema, ...]) -> None:
    """Refuses a SELECT that no releases of its answers could have, before anything is charged."""
    empty = [
        processed(empty_release(part, schema), part.post)
        for part, schema in zip(joint.parts, schemas, strict=True)
    ]
    processed_together(joint.post, tuple(part.name for part in joint.parts), *empty)


def rows_of(table: pa.Table) -> PostRows:
    """A release as post-processing takes it."""
    facts = read_facts(table.schema)
    outputs = {one["name"]: one for one in (facts or {}).get("outputs", ())}
    answered = Answered(
        table,
        {name: outputs.get(name, {}) for name in numbers_of(table.column_names)},
        float((facts or {}).get("confidence", 0.95)),
        bool((facts or {}).get("rounds", True)),
        bool((facts or {}).get("true_intervals")),
        tuple((facts or {}).get("lanes", ())),
    )  # fmt: skip
    told = {name: all_told([outputs.get(name, {})]) for name in answered.answers}
    moment = {"trigger": (facts or {}).get("trigger")}
    if table.num_rows:
        moment = {name: table[name][0] for name in KEPT if name in table.column_names}
    return PostRows(answered, facts, told=told, moment=moment)


def step(rows: PostRows, post: Post) -> PostRows:
    """One SELECT: WHERE, numbers of other rows, ORDER BY, LIMIT, then columns."""
    if post.branches:
        return united([reduce(step, steps, rows) for steps in post.branches])
    if post.part is not None:
        return replace(rows.parts[post.part], parts=rows.parts)
    if post.join is not None:
        both = (reduce(step, steps, rows) for steps in (post.join.left, post.join.right))
        return joined(post.join, *both)
    rows = reduce(totalled, post.totals, shifted(filtered(rows, post), post.shifts))
    if post.one_for == () and not rows.table.num_rows:
        rows = with_no_total(rows, post.totals)
    rows = one_of_each(placed(rows, post.places), post.one_for)
    rows = limited(ordered(rows, post.order), post)
    return rows if post.columns is None else selected(rows, post.columns)


def filtered(rows: PostRows, post: Post) -> PostRows:
    """The rows for which the condition holds."""
    if post.where is None:
        return rows
    passes = pc.fill_null(
        compile_predicate(post.where, rows.table.schema)(rows.table), fill_value=False
    )
    notes = chosen_by(rows, post.where)
    return unsaid(rows.with_table(rows.table.filter(passes), *notes))


def chosen_by(rows: PostRows, *expressions: str) -> list[str]:
    """Notes on rows that expressions chose; also where such an expression has no number."""
    if not is_noisy(rows, *expressions):
        return []
    none = all_told(map(rows.told_of, expressions)).get(UNBOUNDED)
    return [CHOSEN] if none is None else [CHOSEN, none]


def is_noisy(rows: PostRows, *expressions: str) -> bool:
    """Whether expressions read answers, or columns that follow from answers."""
    noisy = rows.answered.answers.keys() | rows.answered.ends
    return any(noisy & set(names_in(parse_text(text))) for text in expressions)


def following(rows: PostRows, *names: str) -> PostRows:
    """The rows with columns that follow from answers and have no interval."""
    follow = rows.answered.follow.union(names)
    return replace(rows, answered=replace(rows.answered, follow=follow))


def shifted(rows: PostRows, shifts: tuple[PostShift, ...]) -> PostRows:
    """The rows joined with numbers of other rows, as answers with their own intervals.

    Proof: groups of a release have independent noise, so that the covariance of numbers of
        different rows is 0, and that of one row is unchanged: each number records its row
        (`Answered.covariance`). Where a release does not state its noise, its numbers are no sums
        of known noise (only a single one has an interval); where it says that noise is correlated,
        the worst covariance is taken.
    """
    if not shifts:
        return rows
    table, answers, told = rows.table, dict(rows.answered.answers), dict(rows.told)
    table = table.append_column(ROW, pa.array(np.arange(table.num_rows)))
    for one in shifts:
        moved = {
            end: OwnColumn(
                name=one.name + end, function="LAG" if one.rows >= 0 else "LEAD",
                expression=column_text(one.column + end), by=one.by, order=one.order,
                distance=abs(one.rows),
            )
            for end in ("", *SUFFIXES) if one.column + end in table.column_names
        }  # fmt: skip
        of_row = replace(moved[""], name=one.row_column, expression=column_text(ROW))
        table = with_windows(table, *moved.values(), of_row)
        if one.filled:
            here = table[one.row_column].is_valid()  # a row whose number is missing is not filled
            for end in moved:
                place = table.column_names.index(one.name + end)
                cells = table[one.name + end]
                filled = pc.if_else(here, cells, pa.scalar(0, cells.type))
                table = table.set_column(place, one.name + end, filled)
            table = table.append_column(one.here_column, here.cast(pa.int64()))
        if one.column in answers:
            answers[one.name] = {**answers[one.column], SHIFT: one.row_column}
            told[one.name] = told.get(one.column, {})
    made = rows.with_table(table.replace_schema_metadata(rows.table.schema.metadata), EARLIER)
    made = following(made, *(one.name for one in shifts if one.column in rows.answered.ends))
    return replace(made, answered=replace(made.answered, answers=answers), told=told)


def with_windows(table: pa.Table, *columns: OwnColumn) -> pa.Table:
    """Rows that belong to no unit, with columns of window functions."""
    return windowed(OwnWindows(columns=columns), table, pa.repeat(0, table.num_rows))[0]


def totalled(rows: PostRows, total: PostTotal) -> PostRows:
    """The rows with a total over several of them, as an answer with an interval of its own.

    Proof: as in `shifted`, noise of different rows is independent, so that variances add up; where
        a release says that noise is correlated, deviations do. A total and the number of its own
        row share that row's noise (`Answered.covariance`). Groups that their own numbers showed
        are in the value, but of the ends only in the upper one (`Answered.ends_at`).
    """
    table, answered = rows.table, rows.answered
    by = [column_of(text, table) for text in total.by]
    group = numbered([pa.repeat(0, table.num_rows), *by])
    if total.column is None:
        count = np.bincount(group, minlength=1)[group] if len(group) else group
        return rows.with_table(table.append_column(total.name, pa.array(count, pa.int64())),
                               SHOWN_ONLY)  # fmt: skip
    whole = pa.types.is_integer(table.schema.field(total.column).type)
    if total.column + "_sd" not in table.column_names:  # a rank, or a number of rows
        cells = pa.array(summed(answered.column(total.column), group), from_pandas=True)
        cells = cells.cast(pa.int64()) if whole else cells
        made = rows.with_table(table.append_column(total.name, cells), SHOWN_ONLY)
        return following(made, total.name) if total.column in answered.ends else made
    facts = answered.answers.get(total.column, {})
    known = facts.get("function") in TOTALS
    together = answered.is_correlated or REPEATED in facts
    value, sd = (answered.column(total.column + end) for end in ("", "_sd"))
    chosen, centre = np.zeros(len(group), np.bool_), np.full(len(group), np.nan)
    if known:
        centre = answered.centre(total.column)
    if known and not together:
        chosen = answered.chosen(total.column)
    spread, least_sd = (
        summed(some, group) if together else np.sqrt(summed(some**2, group))
        for some in (sd, np.where(chosen, 0.0, sd))
    )
    parts = TotalParts(*(f"{total.name}_{part}" for part in TotalParts._fields))
    columns = {
        total.name: summed(value, group), total.name + "_sd": spread, parts.own: sd,
        parts.least: summed(np.where(chosen, 0.0, centre), group), parts.least_sd: least_sd,
        parts.most: summed(np.where(chosen, value + HALF, centre), group),
    }  # fmt: skip
    for name, cells in columns.items():
        column = pa.array(cells, from_pandas=True)
        column = column.cast(pa.int64()) if whole and name == total.name else column
        table = table.append_column(name, column)
    steps: Facts = {name: facts[name] for name in ("step", "room") if name in facts}
    if together:  # at worst one draw in every row, which takes multiples of all their steps
        reach = summed(reach_by(steps, sd, answered.z), group)
        reach = np.maximum(answered.z * spread, reach)
        ends = open_ends(columns[parts.least] - reach, columns[parts.least] + reach)
    else:
        by_name = {total.name: {**steps, TOTAL: parts}}
        ends = Answered(table, by_name).ends_at(total.name, answered.z)
    for end, cells in zip(("_low", "_high"), ends, strict=True):
        table = table.append_column(total.name + end, pa.array(cells))
    plain = {name: said for name, said in facts.items() if name != "non_negative"}
    answers = {**answered.answers, total.name: {**plain, TOTAL: parts} if known else {}}
    made = rows.with_table(table, SHOWN_ONLY)
    told = {**rows.told, total.name: rows.told.get(total.column, {})}
    return replace(made, answered=replace(made.answered, answers=answers), told=told)


def with_no_total(rows: PostRows, totals: tuple[PostTotal, ...]) -> PostRows:
    """The total of no rows: one row with 0 rows and no numbers."""
    known = {**rows.moment, **{one.name: 0 for one in totals if one.column is None}}
    columns = [
        pa.array([known.get(name)], kind)
        for name, kind in zip(rows.table.column_names, rows.table.schema.types, strict=True)
    ]
    return rows.with_table(pa.Table.from_arrays(columns, schema=rows.table.schema))


def summed(values: Array, group: Array) -> Array:
    """The sum of each row's group, by row."""
    found = np.zeros(int(group.max(initial=-1)) + 1)
    np.add.at(found, group, values)
    return np.asarray(found[group])


def placed(rows: PostRows, places: tuple[PostPlace, ...]) -> PostRows:
    """The rows with their places, which are noisy where noisy numbers decide the order."""
    table, noisy = rows.table, list[str]()
    for one in places:
        column = OwnColumn(name=one.name, function=one.function, by=one.by, order=one.order)
        table = with_windows(table, column)
        noisy += [one.name] if is_noisy(rows, *(key.expression for key in one.order)) else []
    if not places:
        return rows
    table = table.replace_schema_metadata(rows.table.schema.metadata)
    return following(rows.with_table(table, *[RANKED for _ in noisy]), *noisy)


def one_of_each(rows: PostRows, by: tuple[str, ...] | None) -> PostRows:
    """The first row of each group; without columns, all rows are one group."""
    if by is None:
        return rows
    keys = [column_of(text, rows.table) for text in by]
    group = numbered([pa.repeat(0, rows.table.num_rows), *keys])
    first = np.sort(np.unique(group, return_index=True)[1])
    return unsaid(rows.with_table(rows.table.take(pa.array(first))))


def ordered(rows: PostRows, order: tuple[SortKey, ...]) -> PostRows:
    """The rows by their keys; those that are equal in all of them stay in their order."""
    table = rows.table
    for one in reversed(order):  # a stable sort by each, the first one last
        column = column_of(one.expression, table)
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        places = np.asarray(
            pc.array_sort_indices(column, order="descending" if one.descending else "ascending")
        )
        empty = np.asarray(pc.is_null(column.take(places)))
        parts = [places[empty], places[~empty]]
        table = table.take(np.concatenate(parts if one.nulls_first else parts[::-1]))
    return rows.with_table(table)


def limited(rows: PostRows, post: Post) -> PostRows:
    """The first rows."""
    if post.limit is None and not post.offset:
        return rows
    notes = chosen_by(rows, *(one.expression for one in post.order))
    return unsaid(rows.with_table(rows.table.slice(post.offset, post.limit), *notes))


def selected(rows: PostRows, columns: tuple[PostColumn, ...]) -> PostRows:
    """The columns of a SELECT, with intervals where they read answers, and those of all releases.

    Facts on the correlation with other releases are dropped. A bias that no interval of an answer
    holds is noted at every number that reads it.
    """
    before, found, notes = rows.answered, dict[str, Any](), list[str]()
    named = {column.name for column in columns}  # by the SELECT itself
    answers, told, follow = dict[str, Facts](), dict[str, Facts](), set[str]()
    for column in columns:
        made, note = with_interval(column, before)
        if len(made) == 1 and is_noisy(rows, column.expression):
            follow.add(column.name)
        if len(made) > 1:
            same = before.answers.get(column.expression.strip("`"), {})
            same = {} if SHIFT in same or TOTAL in same else same
            answers[column.name] = {**same, "name": column.name} if same else {}
            told[column.name] = rows.told_of(column.expression)
        notes += [] if note is None else [f"{column.name} has no interval: {note}"]
        for name, cells in made.items():
            if name in found and (name == column.name or name not in named):
                raise PlanError(
                    f"two columns are called '{shown(name)}'.\n"
                    "  to fix  give one another name with AS"
                )
            found.setdefault(name, cells)
    found |= {name: rows.table[name] for name in KEPT
              if name in rows.table.column_names and name not in found}  # fmt: skip
    notes_of = {column.name: metadata_of(column.expression, before.table) for column in columns}
    fields = [pa.field(name, cells.type, metadata=notes_of.get(name))
              for name, cells in found.items()]  # fmt: skip
    table = pa.Table.from_arrays([*found.values()], schema=pa.schema(fields))
    answered = replace(before, table=table, answers=answers, follow=frozenset(follow))
    made_rows = replace(rows, answered=answered, notes=tuple([*rows.notes, *notes]), told=told)
    return replace(made_rows, facts=rows.facts and {**rows.facts, "rounds": True})


def metadata_of(expression: str, table: pa.Table) -> dict[bytes, bytes] | None:
    """The metadata of a column on its bias, if an expression is that column."""
    tree = parse_text(expression).unnest()
    is_column = isinstance(tree, exp.Column) and tree.name in table.column_names
    return table.schema.field(tree.name).metadata if is_column else None


def with_interval(column: PostColumn, answered: Answered) -> tuple[dict[str, Any], str | None]:
    """A column and, where it is a number that reads answers, its interval; or why there is none."""
    table, name = answered.table, column.name
    tree = parse_text(column.expression)
    cells = column_of(column.expression, table)
    kind, note = cells.type, None
    if not answered.reads(tree) or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return {name: cells}, None
    try:
        span = interval_of(tree, answered)
        parts = [span.sd, span.low, span.high]
    except NoIntervalError as error:
        parts, note = [None, None, None], str(error)
    if (whole := possible(tree, answered)) is not None:
        low, high = (pa.array(end, pa.float64()) for end in (whole.low, whole.high))
        inside = pc.max_element_wise(cells.cast(pa.float64()), low, skip_nulls=False)
        inside = pc.min_element_wise(inside, high, skip_nulls=False)
        cells = pc.if_else(pc.equal(inside, cells), cells, inside.cast(kind))
    here = pc.is_valid(cells)
    ends = {
        name + suffix: pa.nulls(len(cells), pa.float64()) if part is None
        else pc.if_else(here, pa.array(part, pa.float64(), from_pandas=True), None)
        for suffix, part in zip(SUFFIXES, parts, strict=True)
    }  # fmt: skip
    return {name: cells, **ends}, note


def column_of(expression: str, table: pa.Table) -> Any:
    """The values of an expression; a column alone as it is."""
    tree = parse_text(expression).unnest()
    if isinstance(tree, exp.Column) and tree.name in table.column_names:
        return table.column(tree.name).combine_chunks()
    return compile_expression(expression, table.schema)(table)


def with_metadata(rows: PostRows, before: pa.Schema) -> pa.Table:
    """The table with the metadata of its release, facts of what is left of it, and notes."""
    metadata: dict[bytes, bytes] = dict(before.metadata or {})
    note = read_note(before)
    names = rows.table.column_names
    if rows.facts is not None:
        answers = rows.answered.answers
        beside = {*answers, *rows.answered.ends, *RESERVED}
        facts = {
            **rows.facts,
            "keys": [name for name in names if name not in beside],
            "outputs": [(facts or {"name": name, "function": "computed", "lanes": []})
                        | rows.told.get(name, {}) for name, facts in answers.items()],
        }  # fmt: skip
        metadata[FACTS] = json.dumps(facts, separators=(",", ":")).encode()
    notes = [*([] if note is None else [note]), *rows.notes]
    if notes:
        metadata[NOTE] = "; ".join(notes).encode()
    return rows.table.replace_schema_metadata(metadata)


def require_post(plan: Plan, schema: pa.Schema) -> None:
    """Refuses post-processing that no release of a plan could have, before anything is charged."""
    if plan.post:
        processed(empty_release(plan, schema), plan.post)


def empty_release(plan: Plan, schema: pa.Schema) -> pa.Table:
    """A release without rows, as far as it follows from a plan and its source's columns."""
    fields: dict[str, Any] = {}
    if isinstance(plan.source, TableSource):
        fields = {name: pa.array(values).type for name, values in plan.source.domains}
    for key in plan.keys:
        fields[key.name] = KINDS[compile_key(key.expression, schema).kind]
    for one in plan.aggregates:
        fields[one.name] = pa.int64() if one.function in COUNTS else pa.float64()
        fields |= {one.name + end: pa.float64() for end in SUFFIXES}
    if plan.window.kind != "whole":
        fields |= {"window_start": INSTANT, "window_end": INSTANT}
    return pa.schema([*fields.items(), ("trigger", pa.int64())]).empty_table()
