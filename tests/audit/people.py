"""Queries over two tables that name people in two columns, and what one person moves in them.

Columns that name people are computed, renamed, mapped by a public table, compared with one another.
Whatever is accepted is judged by its rows: without all rows of one person, in all tables, the rows
of all others must be as they were, in their order. And by its losses: what that person moves in the
sums of each answer, by the exact account, against what the answer claims. Whose a row is, is what
the query says: by `protect` in Python, in a text by what it protects and joins by.

Statements of two answers that protect days (`of_days`) are judged by their losses alone: without
the rows of one person in one day, by the times that the first answer reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import streamveil as sv
from streamveil.errors import StreamveilError
from streamveil.expressions import compile_unit
from streamveil.plan import Plan, check_own_rows
from streamveil.plan.own_rows import OwnRows, own_rows
from tests.audit import texts
from tests.audit.raw_rows import DAY, Neighbours, holding, pick

NAMES = ("a", "A", "b", "c", "d", None)
COLUMNS = ("id", "friend", "x", "city", "tags")
PEOPLE = ("id", "id", "friend")
MAPPED = pa.table({"city": ["a", "a", "b", "c"], "boss": ["b", "c", "c", "a"]})
VALUES = ("{p}", "{p}", "{p}", "{p}", "LOWER({p})", "COALESCE({p}, {q})", "CONCAT({p}, '')",
          "IF({q} = 'a', {p}, {q})", "CAST({p} AS STRING)")  # fmt: skip
OTHERS = "x, city, tags FROM {one} AS v"
RELATIONS = (  # each has all columns again
    "SELECT {value} AS id, {q} AS friend, " + OTHERS,
    "SELECT {value} AS id, {q} AS friend, " + OTHERS + " WHERE {p} IN (SELECT {r} FROM {other})",
    "SELECT {p} AS id, {q} AS friend, " + OTHERS + " WHERE {r} NOT IN (SELECT {s} FROM {other})",
    "SELECT {p} AS id, {q} AS friend, " + OTHERS
    + " WHERE EXISTS (SELECT 1 FROM {other} AS w WHERE w.{r} = v.{s} AND w.x > 1)",
    "SELECT {p} AS id, {q} AS friend, MAX(x) AS x, ANY_VALUE(city) AS city, MIN(tags) AS tags"
    " FROM {one} AS v GROUP BY {r}, {s}",
    "SELECT {p} AS id, LAG({q}) OVER (PARTITION BY {r} ORDER BY x) AS friend, " + OTHERS,
    "SELECT {p} AS id, {q} AS friend, x, city, tags FROM {one} AS v,"
    " UNNEST(SPLIT(v.tags, ',')) AS {q}",
    "SELECT v.{p} AS id, w.{q} AS friend, w.x AS x, v.city AS city, w.tags AS tags"
    " FROM {one} AS v {join} {other} AS w ON v.{r} = w.{s}",
    "SELECT v.{p} AS id, m.boss AS friend, v.x AS x, m.boss AS city, v.tags AS tags"
    " FROM {one} AS v {join} mapped AS m ON v.{r} = m.city",
    "SELECT m.boss AS id, v.{p} AS friend, v.x AS x, v.city AS city, v.tags AS tags"
    " FROM {one} AS v JOIN mapped AS m ON v.{r} = m.city AND v.{s} = m.boss",
    "SELECT {p} AS id, {q} AS friend, " + OTHERS
    + " UNION ALL SELECT {r}, {s}, x, city, tags FROM {other}",
)  # fmt: skip
PRIVATE = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, look_share = 0,"
    " max_rows_contributed = 2, privacy_unit_column = {unit}) {answer}"
)
ANSWERS = (
    "COUNT(*) AS n FROM {rows}", "COUNT(DISTINCT {unit}) AS n FROM {rows}",
    "city, COUNT(*) AS n FROM {rows} GROUP BY city",
    "city, SUM(x, contribution_bounds_per_row => (-1, 3)) AS n FROM {rows} GROUP BY city",
)  # fmt: skip
OF_A_DAY = (
    "SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, look_share = 0,"
    " max_rows_contributed = 1, privacy_unit_column = id, privacy_unit_period = INTERVAL 1 DAY,"
    " start = '1970-01-01', end = '1970-01-04', public_groups = ['a', 'b', 'c', 'd']) city,"
    " COUNT(*) AS n"
    " FROM TUMBLE(TABLE {}, DESCRIPTOR({}), size => INTERVAL 1 DAY) GROUP BY city, window_start"
    " EMIT EVERY INTERVAL 1 DAY"
)
TIMES, DAYS = ("ts", "seen"), 3
DATED = (  # the rows of an answer, of any time
    "SELECT id, city, {time} AS day FROM {one}",
    "SELECT id, part AS city, {time} AS day FROM {one}, UNNEST(SPLIT(tags, ',')) AS part",
    "SELECT id, boss AS city, {time} AS day FROM {one} JOIN mapped USING (city)",
    "SELECT id, boss AS city, day FROM (SELECT id, city, {time} AS day FROM {one})"
    " JOIN mapped USING (city)",
)  # fmt: skip


class Drawn(NamedTuple):
    """What was asked, the plan of each answer, and what names people in each table."""

    text: str
    plans: tuple[Plan, ...]
    said: dict[str, set[str]]


def table_of(rng, rows: int) -> pa.Table:
    """Rows that name two people each."""
    found = {name: [pick(rng, NAMES) for _ in range(rows)] for name in ("id", "friend", "city")}
    tags = [pick(rng, ("a,b", "b", "c,a,d", None)) for _ in range(rows)]
    times = {name: pa.array(rng.integers(0, DAYS * DAY, rows), pa.timestamp("us", "UTC"))
             for name in TIMES}  # fmt: skip
    return pa.table({**found, "x": rng.integers(0, 4, rows), "tags": tags, **times})


def relation(rng, depth: int) -> str:
    """A table, or a subquery of some."""
    if depth == 0 or rng.random() < 0.3:
        return str(pick(rng, ("t", "u")))
    named = {letter: pick(rng, PEOPLE) for letter in "pqrs"}
    made = pick(rng, RELATIONS).format(
        **named, value=pick(rng, VALUES).format(**named), join=pick(rng, ("JOIN", "LEFT JOIN")),
        one=relation(rng, depth - 1), other=relation(rng, depth - 1),
    )  # fmt: skip
    return f"({made})"


def of_text(rng, given: Mapping[str, Any]) -> Drawn:
    """A text."""
    unit, rows = pick(rng, PEOPLE), relation(rng, int(rng.integers(1, 4)))
    text = PRIVATE.format(unit=unit, answer=pick(rng, ANSWERS).format(unit=unit, rows=rows))
    plan = sv.sql(text, dict(given)).plan
    said: dict[str, set[str]] = {}
    for one, protects in check_own_rows.relations_of(plan):
        said.setdefault(one.name, set()).add(protects)
    return Drawn(text, (plan,), said)


def of_days(rng, given: Mapping[str, Any]) -> Drawn:
    """A text of two answers, whose days follow the times of rows; these say who is who."""
    own, read, said = [], [], dict[str, set[str]]()
    for place, name in enumerate(("a", "b")):
        table, time = pick(rng, ("t", "u")), pick(rng, TIMES)
        if rng.random() < 0.3:
            read.append(OF_A_DAY.format(table, time))
        else:
            own.append(f"own{place} AS ({pick(rng, DATED).format(one=table, time=time)})")
            read.append(OF_A_DAY.format(f"own{place}", "day"))
        said.setdefault(table, {time})
        own.append(f"{name} AS ({read[-1]})")
    text = f"WITH {', '.join(own)} SELECT a.city, a.n, b.n AS m FROM a JOIN b ON a.city = b.city"
    return Drawn(text, sv.sql(text, dict(given)).plan.parts, said)


def chain(rng, given: Mapping[str, Any], name: str, said: dict[str, set[str]], depth: int) -> Any:
    """A stream to which several things are done, in any order."""
    unit = pick(rng, PEOPLE)
    made = given[name].protect(unit)
    for _ in range(int(rng.integers(1, 4))):
        way, column = int(rng.integers(6)), pick(rng, PEOPLE)
        if way == 0:
            made = made.unnest(**{pick(rng, ("part", "friend")): "SPLIT(tags, ',')"})
        elif way == 1:
            made = made.per_unit(pick(rng, COLUMNS), column, k="COUNT(*)", tags="MIN(tags)")
        elif way == 2:
            made = made.per_unit(k=f"LAG({column}) OVER (ORDER BY x)")
        elif way == 3:
            made = made.join(given["mapped"], on="city", how=pick(rng, ("inner", "left")))
        elif way == 4 and depth:
            other = chain(rng, given, "u" if name == "t" else "t", said, 0)
            made = made.join(other, on=unit, how=pick(rng, ("inner", "left", "semi", "anti")))
        else:
            unit = column
            made = replace(made, unit=unit)  # a second `protect` is refused before all else
    said.setdefault(name, set()).add(unit)
    return made


def of_python(rng, given: Mapping[str, Any]) -> Drawn:
    """The same of calls."""
    said: dict[str, set[str]] = {}
    made = chain(rng, given, "t", said, 1).agg(n=sv.count()).bound(max_rows=2)
    plan = made.release(budget=sv.Budget(epsilon=1, delta="1e-6"), look_share=0).plan
    return Drawn(f"{plan.source}", (plan,), said)


def of_others(plan: Plan, tables: Mapping[str, pa.Table], person: Any) -> list[dict[str, Any]]:
    """What a query makes of tables, without the rows of a person."""
    rows = own_rows(plan.source, tables[plan.source.name], lambda one: tables[one.name])
    return [row for row in rows.to_pylist() if row[plan.source.person] != person]


def without(tables: Mapping[str, pa.Table], said, person: Any) -> dict[str, pa.Table]:
    """The tables without all rows of a person."""
    less = dict(tables)
    for name, units in said.items():
        for unit in units:
            own = compile_unit(unit, less[name].schema)(less[name]).to_pylist()
            less[name] = less[name].filter(pa.array([one != person for one in own], pa.bool_()))
    return less


def without_day(tables: Mapping[str, pa.Table], said, person: Any) -> dict[str, pa.Table]:
    """The tables without the rows of a person's first day."""
    less = dict(tables)
    for name, (time,) in said.items():
        day = np.asarray(less[name][time].cast(pa.int64())) // DAY
        own = np.array([one != person for one in less[name]["id"].to_pylist()])
        less[name] = less[name].filter(pa.array(own | (day != 0)))
    return less


def moves_others(drawn: Drawn, tables: Mapping[str, pa.Table], person: Any) -> bool:
    """Whether rows of others change, come or go with those of one person in all tables."""
    less = without(tables, drawn.said, person)
    return any(
        of_others(plan, tables, person) != of_others(plan, less, object())
        for plan in drawn.plans if isinstance(plan.source, OwnRows)
    )  # fmt: skip


def loses_more(drawn: Drawn, tables: Mapping[str, pa.Table], person: Any) -> bool:
    """Whether a person, or her first day, loses more in an answer than it claims."""
    taken = without if drawn.plans[0].periods is None else without_day
    less = taken(tables, drawn.said, person)
    pairs = (Neighbours((holding(one, tables), holding(one, less)), 1) for one in drawn.plans)
    return not all(texts.account_of(pair, 1).stands for pair in pairs)


def judged(
    seed: int, queries: int, ways: Sequence[Any] = (of_text, of_python), by: Any = moves_others
) -> Iterator[tuple[str, bool]]:
    """Queries that are accepted, and whether some person moves what she should not."""
    rng = np.random.default_rng(seed)
    tables = {"t": table_of(rng, 24), "u": table_of(rng, 20)}
    given = {name: sv.memory(one, name=name) for name, one in tables.items()}
    given["mapped"] = sv.memory(MAPPED, name="mapped", public=True)
    for nth in range(queries):
        try:
            drawn = ways[nth % len(ways)](rng, given)
            yield drawn.text, any(by(drawn, tables, one) for one in NAMES[:-1])
        except StreamveilError:  # of what is refused; of types, when rows are read
            continue
