"""Rows between two steps of post-processing, and joins of the rows of several SELECTs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.errors import PlanError
from streamveil.expressions.dialect import parse_text, shown
from streamveil.plan import KEPT, RESERVED, PostJoin
from streamveil.plan.combine import numbered, plain
from streamveil.plan.joins import matches
from streamveil.release_metadata import UNHELD, Facts
from streamveil.results.answer_sums import REPEATED, Answered, names_in

SHOWN_PAIRS = (
    "rows are joined if both groups are published: nothing is known of groups that one answer hides"
)


@dataclass(frozen=True)
class PostRows:
    """Rows between two steps of post-processing, with the facts on their answers, and notes."""

    answered: Answered
    facts: Facts | None
    notes: tuple[str, ...] = ()
    parts: tuple[PostRows, ...] = ()  # all answers of a statement, where it holds several
    told: Mapping[str, Facts] = field(default_factory=dict)  # what no interval holds, by column
    moment: Mapping[str, Any] = field(default_factory=dict)  # of the release: what its rows carry

    @property
    def table(self) -> pa.Table:
        """The rows."""
        return self.answered.table

    def with_table(self, table: pa.Table, *notes: str) -> PostRows:
        """Some of the rows, or in another order."""
        return replace(
            self,
            answered=replace(self.answered, table=table),
            notes=tuple(dict.fromkeys([*self.notes, *notes])),
        )

    def told_of(self, expression: str) -> Facts:
        """The bias that no interval holds, of the answers that an expression reads."""
        read = (self.told.get(name, {}) for name in names_in(parse_text(expression)))
        return all_told(read)


def all_told(some: Iterable[Facts]) -> Facts:
    """The bias of a number that is made of others, each sentence once.

    >>> all_told([{"clamped": "as 9"}, {"bias": "cut"}, {"clamped": "as 7"}, {"clamped": "as 9"}])
    {'bias': 'cut', 'clamped': 'as 9; as 7'}
    """
    some = list(some)
    texts = {about: [one[about] for one in some if about in one] for about in UNHELD}
    return {about: "; ".join(dict.fromkeys(found)) for about, found in texts.items() if found}


def unsaid(rows: PostRows) -> PostRows:
    """Rows without facts on hidden groups: a group that a filter dropped may be published."""
    return replace(rows, facts=rows.facts and {**rows.facts, "hidden": {}})


def joined(join: PostJoin, left: PostRows, right: PostRows) -> PostRows:
    """Rows of one SELECT joined with those of another, in the order of the left.

    Proof: numbers of different answers have independent noise, like those of different lanes of one
        answer. A number that meets several rows is one draw in all of them: it is marked
        (`REPEATED`), and the worst correlation with itself is assumed; so it is for every number
        where both sides may hold the same one.
    """
    at = paired(join, left.table, right.table)
    found, answers, told = dict[str, Any](), dict[str, Facts](), dict[str, Facts]()
    follow = set[str]()
    lanes = [set[str]().union(*map(lanes_of, side.answered.answers.values()))
             for side in (left, right)]  # fmt: skip
    for side, names, places, often in (
        (left, join.left_names, at.rows, at.left_often),
        (right, join.right_names, at.others, at.right_often),
    ):
        for was, now in names:
            if was not in side.table.column_names:
                continue
            found[now] = side.table.column(was).combine_chunks().take(places)
            facts = side.answered.answers.get(was)
            if facts:
                again = often or not lanes_of(facts).isdisjoint(lanes[0] & lanes[1])
                facts = facts | ({REPEATED: True} if again else {})
            answers |= {} if facts is None else {now: facts}
            told[now] = side.told.get(was, {})
            follow |= {now} if was in side.answered.follow else set()
    for name, other in join.using:
        theirs = right.table.column(other).combine_chunks().take(at.others)
        found[name] = pc.coalesce(*one_type(found[name], theirs, name))
    kept = {name: constant_of(left, right, name, len(at.rows)) for name in KEPT}
    found |= {name: column for name, column in kept.items() if column is not None}
    answered = replace(
        left.answered, table=pa.table(found).replace_schema_metadata(left.table.schema.metadata),
        is_correlated=left.answered.is_correlated or right.answered.is_correlated, answers=answers,
        holds_cut_rows=left.answered.holds_cut_rows or right.answered.holds_cut_rows, lanes=(),
        follow=frozenset(follow),
    )  # fmt: skip
    notes = tuple(dict.fromkeys([*left.notes, *right.notes, SHOWN_PAIRS]))
    return unsaid(replace(left, answered=answered, notes=notes, told=told))


def lanes_of(facts: Facts) -> set[str]:
    """The totals that a number is made of."""
    return {str(lane) for lane in facts.get("lanes") or (None,)}


def constant_of(left: PostRows, right: PostRows, name: str, count: int) -> Any:
    """A column that is the same in all rows of a release, for other rows; None where it is not."""
    tables = [one.table for one in (left, right) if name in one.table.column_names]
    for table in tables:
        if table.num_rows:
            return pa.repeat(table.column(name)[0], count)
    return pa.nulls(count, tables[0].schema.field(name).type) if tables else None


def united(branches: list[PostRows]) -> PostRows:
    """The rows of several SELECTs, under the names of the first."""
    branches = [one.with_table(without(one.table)) for one in branches]
    first, tables = branches[0], list[pa.Table]()
    names = first.table.column_names
    for one in branches:
        fits = one.table.num_columns == len(names) and all(
            own == their or pa.null() in (own, their) or {own, their} == BOTH_NUMBERS
            for own, their in zip(first.table.schema.types, one.table.schema.types, strict=True)
        )
        if not fits:
            raise PlanError(
                "UNION ALL of SELECTs with different columns.\n"
                "  to fix  select the same number of columns of the same types, noisy numbers "
                "beside noisy numbers; CAST where they differ"
            )
        tables.append(one.table.rename_columns(names).replace_schema_metadata(None))
    table = pa.concat_tables(tables, promote_options="permissive").replace_schema_metadata(
        first.table.schema.metadata
    )
    notes = tuple(dict.fromkeys(note for one in branches for note in one.notes))
    answered = replace(
        first.answered, table=table, is_correlated=True,
        answers={name: {} for name in first.answered.answers},
        follow=frozenset(
            names[place] for one in branches for place, name in enumerate(one.table.column_names)
            if name in one.answered.follow
        ),
    )  # fmt: skip
    told = {
        name: all_told(one.told.get(one.table.column_names[place], {}) for one in branches)
        for place, name in enumerate(names)
    }
    return unsaid(replace(first, answered=answered, notes=notes, told=told))


def without(table: pa.Table) -> pa.Table:
    """The table without facts on single groups."""
    told_of = [name for name in RESERVED if name in table.column_names and name not in KEPT]
    return table.drop_columns(told_of)


BOTH_NUMBERS = {pa.int64(), pa.float64()}


class Paired(NamedTuple):
    """Places of rows of both sides, null where a side has none; whether some stand twice."""

    rows: pa.Array
    others: pa.Array
    left_often: bool
    right_often: bool


def paired(join: PostJoin, left: pa.Table, right: pa.Table) -> Paired:
    """The rows that stand together, in the order of the left; those of the right alone last.

    >>> names = ((("day", "day"),), ())
    >>> join = PostJoin(left=(), right=(), how="full", on=(("day", "at"),), left_names=names[0],
    ...                 right_names=names[1])
    >>> found = paired(join, pa.table({"day": [1, 2, None]}), pa.table({"at": [2, 2, 5]}))
    >>> found.rows.to_pylist(), found.others.to_pylist(), found.left_often
    ([0, 1, 1, 2, None], [None, 0, 1, None, 2], True)
    """
    count, others = left.num_rows, right.num_rows
    codes = np.zeros(count + others, np.int64)
    if join.on:
        both = [pa.concat_arrays(one_type(left.column(one), right.column(two), two))
                for one, two in join.on]  # fmt: skip
        codes = numbered(both)
        empty = np.logical_or.reduce([np.asarray(column.is_null()) for column in both])
        codes[empty] = np.where(np.arange(count + others) < count, -1, -2)[empty]
    rows, places = matches(codes[:count], codes[count:], max(1, others))
    own, their = np.arange(count), np.arange(others)
    left_alone = np.setdiff1d(own, rows) if join.how in ("left", "full") else own[:0]
    right_alone = np.setdiff1d(their, places) if join.how in ("right", "full") else their[:0]
    first = np.concatenate([rows, left_alone, np.full(len(right_alone), count)])
    second = np.concatenate([places, np.full(len(left_alone), others), right_alone])
    order = np.argsort(first, kind="stable")
    first, second = first[order], second[order]
    return Paired(
        pa.array(first, mask=first == count), pa.array(second, mask=second == others),
        len(np.unique(rows)) < len(rows), len(np.unique(places)) < len(places),
    )  # fmt: skip


def one_type(one: Any, two: Any, name: str) -> list[Any]:
    """Two columns that are compared, in one type."""
    columns = [plain(one), plain(two)]
    types = {column.type for column in columns}
    if len(types) == 1:
        return columns
    if types == BOTH_NUMBERS:
        return [column.cast(pa.float64()) for column in columns]
    raise PlanError(
        f"'{shown(name)}' is {columns[0].type} on one side of the join and {columns[1].type} on the"
        " other.\n  to fix  CAST one of them in a SELECT"
    )
