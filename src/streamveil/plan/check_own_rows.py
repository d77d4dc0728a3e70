"""Rules of rows combined per unit: all must be there, or the query limits how many are kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from os.path import abspath

import pyarrow as pa
from sqlglot import exp

from streamveil.calendars import DAY, HOUR
from streamveil.expressions import columns_of
from streamveil.expressions.dialect import canonical, parse_text, shown
from streamveil.plan import Clock, Plan, SourceSpec
from streamveil.plan.joins import MATCHES, OwnJoin, OwnLookup, OwnSelect
from streamveil.plan.own_rows import OwnRows, OwnUnnest, require_person

PLACED = ("stream", "table", "topic", "query", "url")  # options that say which rows, beside `path`


def complaints(plan: Plan) -> Iterator[str]:
    """The complaints about a plan whose source combines rows."""
    source = plan.source
    assert isinstance(source, OwnRows)  # noqa: S101  (`SourceSpec.combines`)
    require_person(source, plan.unit)
    yield from of_two_people(relations_of(plan))
    if source.row_by_row:
        if plan.periods is not None and may_have_several_times(source):
            yield (
                f"the times of rows, '{shown(source.event_time or '')}', come from UNNEST or from a"
                " public table: one row would be of several periods, each protected alone.\n"
                "  to fix  take the times that rows come with, or leave out privacy_unit_period"
            )
        if plan.clock.kind == "rows":
            yield (
                "EMIT EVERY n ROWS counts rows of the source, and here one may become several.\n"
                "  to fix  EMIT EVERY INTERVAL n UNIT, or ask once"
            )
        return
    live = source.is_endless and source.others and plan.clock.kind == "wall"
    yield from _live_joins(plan, source) if live else _all_there(plan, source)
    if plan.periods is not None:
        yield (
            f"{source.words} combines rows of several periods, and"
            " privacy_unit_period protects each alone.\n  to fix  leave out privacy_unit_period"
        )


def may_have_several_times(source: OwnRows) -> bool:
    """Whether rows that are made of one row may differ in their times.

    Proof: a column in `several` may differ among them; every other one is that of the row, or
        computed from such columns.
    """
    several = set[str]()
    for step in source.steps:
        if isinstance(step, OwnUnnest):
            several.add(step.name.lower())
        elif isinstance(step, OwnLookup):
            names = {name.lower() for name in step.table.column_names}
            several |= {f"{step.sides[1]}:{name}".lower() for name in names}
            several |= names - {name.lower() for name in (*step.same, step.time or "")}
        elif isinstance(step, OwnSelect):
            made = {key.name.lower(): {one.lower() for one in columns_of(key.expression)}
                    for key in step.keys}  # fmt: skip
            kept = several - made.keys() if step.rest else set()
            several = kept | {name for name, read in made.items() if read & several}
    return (source.event_time or "").lower() in several


def relations_of(plan: Plan) -> list[tuple[SourceSpec, str]]:
    """The sources that a plan reads, each with the unit of its rows."""
    source = plan.source
    if isinstance(source, OwnRows):
        return [(one, one.unit) for one in source.relations]
    return [(source, plan.unit)]


def of_two_people(relations: Iterable[tuple[SourceSpec, str]]) -> Iterator[str]:
    """The complaints about relations of the same rows that name different columns as the unit.

    Proof: such a row belongs to two units. If one of them is removed, the other loses the row, too,
        and nothing bounds how many rows a unit shares with others.
    """
    for (one, unit), (other, theirs) in combinations(relations, 2):
        if _rows_of(one) & _rows_of(other) and _in_one_case(unit) != _in_one_case(theirs):
            name = shown(one.name)
            yield (
                f"each row of '{name}' would be of two people: {shown(unit)} and {shown(theirs)}.\n"
                "  why     without the rows of one person, other rows change, beyond every bound"
                f"\n  to fix  protect one of both wherever '{name}' is read; the other is a column"
                " like any"
            )


def of_two_times(sources: Iterable[SourceSpec]) -> Iterator[str]:
    """The complaints about the same rows whose periods follow from different times.

    Proof: a period by one time meets any number of periods by the other. So without its rows an
        answer that protects each of those alone changes in all of them.
    """
    for one, other in combinations(sources, 2):
        times = [time_of(source) for source in (one, other)]
        if _rows_of(one) & _rows_of(other) and times[0] != times[1]:
            first, second = (shown(time).replace("`", "") for time in times)
            yield (
                f"each row of '{shown(one.name)}' would be of two periods: by {first} and by"
                f" {second}.\n"
                "  why     without the rows of one period, answers for several others change\n"
                "  to fix  take the same times for all answers, or leave out privacy_unit_period"
            )


def time_of(source: SourceSpec) -> str:
    """The times of rows as an expression over the columns of the source."""
    tree: exp.Expr = exp.column(source.event_time or "", quoted=True)
    for step in reversed(source.steps if isinstance(source, OwnRows) else ()):
        if isinstance(step, OwnSelect):
            made = {key.name.lower(): parse_text(key.expression) for key in step.keys}
            tree = tree.transform(lambda node, made=made: _as_made(node, made))
        elif isinstance(step, OwnLookup):
            side = f"{step.sides[0]}:".lower()
            made = {f"{side}{name}": exp.column(name, quoted=True)
                    for name in (column.name.lower().removeprefix(side)
                                 for column in tree.find_all(exp.Column))}  # fmt: skip
            tree = tree.transform(lambda node, made=made: _as_made(node, made))
    return _in_one_case(canonical(tree))


def _as_made(node: exp.Expr, made: dict[str, exp.Expr]) -> exp.Expr:
    """A column as the expression that made it."""
    found = made.get(node.name.lower()) if isinstance(node, exp.Column) else None
    return node if found is None else found.copy()


def _rows_of(source: SourceSpec) -> set[str]:
    """The facts that identify the rows of a source: its name, or their place, however read."""
    held, paths = source.options.get("table"), source.options.get("path")
    if isinstance(held, pa.Table):
        parts = (chunk.buffers() for column in held.columns for chunk in column.chunks)
        lies = {f"at {one.address}" for some in parts for one in some if one and one.size}
    elif paths:
        paths = paths if isinstance(paths, list | tuple) else [paths]
        more = source.options.get("query") or held
        lies = {f"{abspath(str(path))} {more}".lower() for path in paths}
    else:
        lies = {str([source.options.get(name) for name in PLACED]).lower()}
    return {source.name.lower(), *lies}


def _in_one_case(unit: str) -> str:
    """The unit with the names of its columns in small letters, all quoted."""
    tree = parse_text(unit)
    for column in tree.find_all(exp.Column):
        column.this.replace(exp.to_identifier(column.name.lower(), quoted=True))
    return canonical(tree)


def _all_there(plan: Plan, source: OwnRows) -> Iterator[str]:
    """Steps that need all rows of a unit."""
    if any(isinstance(step, OwnJoin) and step.kept is not None for step in source.steps):
        yield (
            "join_rows is for live data, and here a join has all rows.\n  to fix  leave join_rows"
            " and join_within out, or follow the first relation with a wall clock: follow = TRUE,"
            " clock = 'wall'"
        )
    endless = any(one.is_endless for one in (source, *source.others))
    if endless or plan.clock.kind not in ("once", "event"):
        yield (
            f"{source.words} needs all rows of a person, and here more may come.\n"
            "  why     everybody's rows would be kept for good, and what was counted would change "
            "with the next row\n"
            "  to fix  ask once, or replay files with a start and an end (EMIT EVERY INTERVAL); on "
            + (
                "live data follow the first relation under a wall clock (follow = TRUE, clock = "
                "'wall') and give join_rows, or join with a public table"
                if source.others
                else "live data max_rows_contributed = 1 counts each person's first row alone (new "
                "people), and COUNT(DISTINCT unit) in windows those who came"
            )
        )


def _live_joins(plan: Plan, source: OwnRows) -> Iterator[str]:
    """Joins on live data: the query must say how many rows of each unit are kept."""
    joins = [step for step in source.steps if isinstance(step, OwnJoin)]
    rest = replace(source, steps=tuple(replace(step, kept=1) if isinstance(step, OwnJoin) else step
                                       for step in source.steps))  # fmt: skip
    if not rest.keeps_rows:
        yield (
            "a subquery by the privacy unit needs all rows of a person, and here more may come.\n"
            "  why     what was counted would change with the next row\n"
            "  to fix  join the relation itself, or a subquery of columns and WHERE"
        )
    for step in joins:
        if step.kept is None or not 1 <= step.kept <= MATCHES:
            yield (
                "a join on live data keeps rows of each person: say how many, from 1 to"
                f" {MATCHES:,}.\n"
                "  to fix  join_rows = 1 for a table with a row for each person; for events also"
                " join_within = INTERVAL 1 HOUR"
            )
    for other in source.others:
        if other.known.is_sorted:
            yield (
                f"'{other.kind}' is read once, sorted by what it holds, and here more may come.\n"
                "  to fix  store its rows in a file, or follow its changes as a stream"
            )
    yield from _paired(plan, joins)


def _paired(plan: Plan, joins: list[OwnJoin]) -> Iterator[str]:
    """Joins of two relations of events, whose times decide which rows meet."""
    paired = [step for step in joins if step.within_us is not None]
    if any(step.how in ("semi", "anti") for step in paired):
        yield (
            "join_within is for a JOIN or LEFT JOIN of two relations of events.\n"
            "  to fix  leave join_within out: then IN asks for rows that came before; or JOIN them"
        )
    if len(paired) > 1:
        yield (
            "join_within is for one join of a query.\n"
            "  why     a pair comes late, when what it would meet next is no longer kept\n"
            "  to fix  declare further relations without event_time, as tables, or leave"
            " join_within out: then rows meet those that came before"
        )
    within = max((step.within_us or 0 for step in paired), default=0)
    if paired and plan.source.event_time is None:
        yield (
            "join_within compares times, and the first relation has none.\n"
            "  to fix  event_time = 'ts' where it is declared"
        )
    waits = any(step.how == "left" for step in paired)
    late = 2 * within + longest_step(plan.clock) if waits else within
    if plan.window.kind != "whole" and plan.window.lateness_us < late:
        what = (
            "a row that meets nothing comes when a step begins twice join_within after its time"
            if waits else
            "a pair comes with its later row, join_within after the time of its first one at most"
        )  # fmt: skip
        fix = "twice join_within and the time between releases" if waits else "join_within is"
        yield (
            f"{what}: then its window may be closed, and it would be dropped.\n"
            f"  to fix  a lateness as long as {fix}, or longer"
        )


def longest_step(clock: Clock) -> int:
    """The most microseconds of a step: a day may have 25 hours."""
    return (clock.every or 31 * DAY * clock.months) + HOUR * bool(clock.zone)
