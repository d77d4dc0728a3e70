"""Joins of one person's rows with the same person's rows elsewhere, and with public tables.

A join by the privacy unit lets rows of one unit meet, and no others: what it makes of a unit is a
function of that unit's rows in all relations. Neighbours have or lack a unit's rows in all of them.
A public table is nobody's: every row is joined with it alone, as if it were computed from the row.

Proof: codes compare the unit first (`matches`), so rows that match are one unit's. What is made of
    a unit's rows stands where these rows stood in the first relation, in their order, and what
    is added from another (`OwnUnion`) comes after all of them, in the order there: without one
    unit all other rows come out as they were. A row without a unit matches nothing.
Live data: `newest` says which rows of a unit a join keeps; `runtime.live_joins` runs it.
Bound: each row meets only the first `MATCHES` rows that match it. Rows that were made of one row
    share this limit: in all steps together one row becomes at most `MATCHES` rows (`in_room`). In
    each step, the texts and lists that all of these repeat, or get from the other relation, take
    about `MOST_REPEATED` bytes at most (`fitting`). So a join holds at most `MATCHES` times the
    rows of its first relation, whatever the data are. `explain` says so.

>>> matches(np.array([0, 1, 1]), np.array([1, 2, 1, 1]), most=2)
(array([1, 1, 2, 2]), array([0, 2, 0, 2]))
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from streamveil.errors import INNER, PlanError
from streamveil.expressions import (
    column_named,
    compile_key,
    compile_predicate,
    kind_of,
    read_column,
)
from streamveil.expressions.dialect import canonical, shown
from streamveil.plan import LATER, KeyColumn, SourceSpec
from streamveil.plan.combine import MOST_REPEATED, bytes_of, numbered, plain, wide
from streamveil.types import Array, Bool, Int64

MATCHES = 1000  # most rows that one row is joined with
ORIGIN = f"{INNER}origin"  # column with the row of the first relation of which a row was made
FAR_US = 1 << 61  # beyond every time
How = Literal["inner", "left", "semi", "anti"]


@dataclass(frozen=True, kw_only=True)
class OwnSelect:
    """The same rows with other columns, each computed from one row."""

    keys: tuple[KeyColumn, ...]
    rest: bool = False  # whether all other columns stay
    where: str | None = None
    columns: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Joined:
    """The fields of all joins. Columns of both sides have their own names, and `side:name` too."""

    keys: tuple[KeyColumn, ...] = ()  # columns of these rows that must match, by the names there
    how: How = "inner"
    sides: tuple[str, str] = ("", "")  # names of the relations; '': columns carry their sides
    same: tuple[str, ...] = ()  # columns that need no side: the unit and those that must match
    time: str | None = None  # the column of times of these rows, which keeps its name
    where: str | None = None
    on: str | None = field(default=None, metadata=LATER)  # condition that pairs must meet to match
    columns: tuple[Any, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OwnJoin(Joined):
    """A join with rows of the same unit elsewhere. `how`: semi and anti only keep or drop rows."""

    other: SourceSpec  # each of its rows names its unit (`own_rows.OwnRows`)
    kept: int | None = field(default=None, metadata=LATER)  # rows of a unit, on live data
    within_us: int | None = field(default=None, metadata=LATER)  # between rows that meet, likewise


@dataclass(frozen=True, kw_only=True)
class OwnLookup(Joined):
    """A join of each row with the matching rows of a public table."""

    table: pa.Table = field(repr=False)
    digest: str  # of its rows: a job continues only with the same table

    def __post_init__(self) -> None:
        if not self.keys:
            raise PlanError(
                "a join with a public table asks for columns that are equal.\n"
                "  to fix  ON v.country = r.country, and other conditions after AND"
            )


@dataclass(frozen=True, kw_only=True)
class OwnUnion:
    """The rows, then those of another relation, whose columns correspond by place."""

    other: SourceSpec
    where: str | None = None
    keys: tuple[KeyColumn, ...] = ()
    columns: tuple[Any, ...] = ()


def digest_of(table: pa.Table) -> str:
    """A digest of rows, whatever their layout in memory."""
    found = hashlib.blake2b(digest_size=16)
    for batch in table.combine_chunks().to_batches():
        found.update(batch.serialize())
    return found.hexdigest()


def selected(step: OwnSelect, table: pa.Table, units: Any) -> tuple[pa.Table, Any]:
    """Columns computed row by row."""
    made = dict(zip(table.column_names, table.columns, strict=True)) if step.rest else {}
    for key in step.keys:
        made[key.name] = plain(compile_key(key.expression, table.schema)(table))
    return pa.table(made), units


class SharedRoom(NamedTuple):
    """For each row, how many rows may be made in all of the one that it was made of."""

    origin: Int64[Array, " rows"]  # equal for rows that were made of one row
    rows: Int64[Array, " rows"]  # the least limit of rows of the same origin


class Side(NamedTuple):
    """One side of a join."""

    table: pa.Table
    codes: Int64[Array, " rows"]  # equal for rows that match
    room: SharedRoom | None = None  # for pairs; None: `MATCHES` of each row


def looked_up(step: OwnLookup, table: pa.Table, units: Any) -> tuple[pa.Table, Any]:
    """Rows joined with those of a public table."""
    left, right = codes(step, table, step.table)
    room = room_beside(table, text_bytes(step.table).max(initial=0))
    return put_together(step, Side(table, left, room), Side(step.table, right), units)


def joined(
    step: OwnJoin, table: pa.Table, units: Any, other: tuple[pa.Table, Any], *, late: bool = False
) -> tuple[pa.Table, Any]:
    """Rows joined with those of the same unit. `late`: the others came later and give the order."""
    theirs, persons = other
    pair = of_one_kind(units, persons, "privacy unit")
    left, right = codes(step, table, theirs, [pair])
    own = Side(table, left, room_beside(table, largest_of(pair, text_bytes(theirs))))
    return put_together(step, own, Side(theirs, right), units, late=late)


def largest_of(persons: tuple[Any, Any], sizes: Int64[Array, " others"]) -> Int64[Array, " rows"]:
    """For each row, the largest size among the other relation's rows of its unit."""
    unit = numbered([pa.concat_arrays(persons)])
    own, other = np.split(unit, [len(persons[0])])
    largest = np.zeros(len(unit), np.int64)
    np.maximum.at(largest, other, sizes)
    return np.asarray(largest[own])


def room_beside(table: pa.Table, beside: int | Int64[Array, " rows"]) -> SharedRoom | None:
    """The room of pairs that add at most `beside` bytes; None: `MATCHES` for each row."""
    room = room_of(table, np.minimum(MATCHES, MOST_REPEATED // (1 + text_bytes(table) + beside)))
    alone = len(room.origin) == 0 or np.bincount(room.origin).max() == 1
    return None if alone and (room.rows >= MATCHES).all() else room


def room_of(table: pa.Table, each: Int64[Array, " rows"]) -> SharedRoom:
    """The room of rows, from how many rows `each` allows by itself.

    >>> room_of(pa.table({ORIGIN: [0, 0, 4]}), np.array([9, 7, 5])).rows.tolist()
    [7, 7, 5]
    """
    live = ORIGIN not in table.column_names
    origin = np.arange(table.num_rows) if live else np.asarray(table.column(ORIGIN))
    least = np.full(origin.max(initial=-1) + 1, each.max(initial=0))
    np.minimum.at(least, origin, each)
    return SharedRoom(origin, least[origin])


def in_room(found: Int64[Array, " rows"], room: SharedRoom) -> Int64[Array, " rows"]:
    """How many rows each row becomes, of the `found` ones: one each, and more while room is left.

    Rows that were made of one row share its room, and take it in order.
    Proof: the room, and what others take of it, is decided by rows that were made of the same one,
        and by those of its unit that these were joined with.

    >>> in_room(np.array([3, 1, 3, 3]), SharedRoom(np.array([0, 0, 0, 1]), np.array([5, 5, 5, 5])))
    array([3, 1, 1, 3])
    """
    more, order = np.maximum(found - 1, 0), np.argsort(room.origin, kind="stable")
    ranked = room.origin[order]
    before = np.cumsum(more[order]) - more[order]
    before -= before[np.searchsorted(ranked, ranked)]  # of the same origin
    left = np.maximum(room.rows - np.bincount(room.origin)[room.origin], 0)
    left[order] -= before
    return np.asarray(np.minimum(found, 1) + np.clip(left, 0, more))


def fitting(origin: Int64[Array, " pairs"], sizes: Int64[Array, " pairs"]) -> Bool[Array, " pairs"]:
    """Which pairs stay: those of an origin until the texts beside them pass `MOST_REPEATED` bytes.

    >>> fitting(np.array([0, 1, 0, 0]), np.array([9, 0, MOST_REPEATED, 1])).tolist()
    [True, True, True, False]
    """
    order = np.argsort(origin, kind="stable")
    ranked, sizes = origin[order], sizes[order]
    before = np.cumsum(sizes) - sizes
    fits = np.empty(len(order), np.bool_)
    fits[order] = before - before[np.searchsorted(ranked, ranked)] <= MOST_REPEATED
    return fits


def text_bytes(table: pa.Table) -> Int64[Array, " rows"]:
    """Bytes of the texts and lists of each row.

    >>> text_bytes(pa.table({"a": ["xyz", None], "b": [1, 2]})).tolist()
    [3, 0]
    """
    sizes: Int64[Array, " rows"] = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        sizes += bytes_of(wide(column))
    return sizes


def added(
    step: OwnUnion, table: pa.Table, units: Any, other: tuple[pa.Table, Any]
) -> tuple[pa.Table, Any]:
    """The rows of one relation, then those of the other."""
    theirs, persons = other
    if theirs.num_columns != table.num_columns:
        raise PlanError(
            f"UNION ALL of SELECTs with {table.num_columns} and {theirs.num_columns} columns.\n"
            "  to fix  select the same columns in both, in the same order"
        )
    made = {}
    for own, their in zip(table.column_names, theirs.column_names, strict=True):
        made[own] = pa.concat_arrays(in_one_type(table, own, theirs, their))
    return pa.table(made), pa.concat_arrays(of_one_kind(units, persons, "privacy unit"))


def in_one_type(table: pa.Table, own: str, theirs: pa.Table, their: str) -> list[Any]:
    """Two columns in one type, which depends on their types alone."""
    columns = [wide(table.column(own)), wide(theirs.column(their))]
    types = [column.type for column in columns]
    if types[0] == types[1] and not pa.types.is_dictionary(types[0]):  # whose codes may run out
        return columns
    kinds = {kind_of(one) for one in types}
    if kinds == {"int", "float"}:
        return [read_column(*one).cast(pa.float64(), safe=False)
                for one in ((table, own), (theirs, their))]  # fmt: skip
    if "null" in kinds:
        wanted = types[0] if kind_of(types[1]) == "null" else types[1]
        return [pa.nulls(len(one), wanted) if kind_of(one.type) == "null" else one
                for one in columns]  # fmt: skip
    if len(kinds) == 1 and None not in kinds:
        return [read_column(table, own), read_column(theirs, their)]
    raise two_kinds(own, *types)


def codes(
    step: Joined, table: pa.Table, other: pa.Table, first: list[tuple[Any, Any]] | None = None
) -> tuple[Int64[Array, " rows"], Int64[Array, " others"]]:
    """Numbers that are equal for rows that match; -1 and -2 match nothing."""
    pairs = list(first or [])
    for key in step.keys:
        own = plain(compile_key(key.expression, table.schema)(table))
        their = plain(compile_key(key.name, other.schema)(other))
        pairs.append(of_one_kind(own, their, key.name))
    found = numbered([pa.concat_arrays([own, their]) for own, their in pairs])
    sides = []
    for place, (some, missing) in enumerate(
        ((found[: table.num_rows], -1), (found[table.num_rows :], -2))
    ):
        lacks = np.zeros(len(some), np.bool_)
        for pair in pairs:  # NaN is not equal to itself
            lacks |= np.asarray(pair[place].is_null(nan_is_null=True))
        sides.append(np.where(lacks, missing, some))
    return sides[0], sides[1]


def of_one_kind(own: Any, their: Any, name: str) -> tuple[Any, Any]:
    """Two columns of the same kind in one type, whatever their values.

    Both are values of expressions, so a kind has one type; texts have two, as rows of a join hold
    the wider one.
    """
    if own.type == their.type:
        return own, their
    if "null" in (kind_of(own.type), kind_of(their.type)):
        return own, pa.nulls(len(their), own.type)
    if wide(own).type == wide(their).type:
        return wide(own), wide(their)
    raise two_kinds(name, own.type, their.type)


def two_kinds(name: str, own: Any, their: Any) -> PlanError:
    """The error for columns whose types have no common type."""
    return PlanError(
        f"'{shown(name)}' is {own} on one side and {their} on the other.\n"
        "  to fix  CAST one of them in a subquery; declare codes in CSV, such as 007, as STRING"
    )


def matches(
    left: Int64[Array, " rows"],
    right: Int64[Array, " others"],
    most: int | Int64[Array, " rows"] = MATCHES,
) -> tuple[Int64[Array, " pairs"], Int64[Array, " pairs"]]:
    """Places of rows that match, in the order of the left, then of the right."""
    order = np.argsort(right, kind="stable")
    ranked = right[order]
    first = np.searchsorted(ranked, left, "left")
    count = np.minimum(np.searchsorted(ranked, left, "right") - first, most)
    rows = np.repeat(np.arange(len(left)), count)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    return rows, order[np.repeat(first, count) + place]


def met(
    step: OwnJoin, own: tuple[pa.Table, Any], other: tuple[pa.Table, Any], *, late: bool
) -> tuple[Int64[Array, " pairs"], Int64[Array, " pairs"]]:
    """Places of rows of one unit that meet; each side is a table and the unit of each row."""
    (table, units), (theirs, persons) = own, other
    left, right = codes(step, table, theirs, [of_one_kind(units, persons, "privacy unit")])
    return meeting(step, Side(table, left), Side(theirs, right), late=late)


def meeting(
    step: Joined, own: Side, other: Side, *, late: bool
) -> tuple[Int64[Array, " pairs"], Int64[Array, " pairs"]]:
    """Places of rows that meet and fulfil the join's condition."""
    rows, places = near(step, own, other, late=late)
    if step.on is None:
        return rows, places
    pairs = side_by_side(step, (own.table, pa.array(rows)), (other.table, pa.array(places)))
    said = compile_predicate(step.on, pairs.schema)(pairs)
    holds = np.asarray(pc.fill_null(said, fill_value=False))
    return rows[holds], places[holds]


def near(
    step: Joined, own: Side, other: Side, *, late: bool
) -> tuple[Int64[Array, " pairs"], Int64[Array, " pairs"]]:
    """Places of rows that match; on live data, of all kept rows if their times are close.

    All pairs of a row that has just come stand together, whatever it came with. So the order of a
    unit's rows decides which of its pairs are the first.
    """
    (table, left, room), (theirs, right, _) = own, other
    if not isinstance(step, OwnJoin) or step.kept is None:
        if room is None:
            return matches(left, right)
        ranked = np.sort(right)
        found = np.searchsorted(ranked, left, "right") - np.searchsorted(ranked, left, "left")
        rows, places = matches(left, right, in_room(found, room))
        fit = fitting(room.origin[rows], text_bytes(theirs)[places])
        return rows[fit], places[fit]
    rows, places = matches(left, right, max(1, len(right)))
    if late:
        order = np.argsort(places, kind="stable")
        rows, places = rows[order], places[order]
    if step.within_us is None:
        return rows, places
    apart = times_of(table, step.time)[rows] - times_of(theirs, step.other.event_time)[places]
    close = np.abs(apart) <= step.within_us
    return rows[close], places[close]


def newest(units: Any, times: Int64[Array, " rows"], most: int) -> Bool[Array, " rows"]:
    """Which rows stay if each unit keeps `most`: those with the latest times, then the last ones.

    Proof: whether a row stays is decided by the rows of its unit, by their times and their order.
        A row that goes has `most` later ones of its unit before it in that order, and so it goes
        in any set that holds these: what is kept does not depend on how rows came in portions.

    >>> newest(pa.array([1, 2, 1, 1]), np.array([5, 5, 9, 5]), most=2).tolist()
    [False, True, True, True]
    """
    group = numbered([units])
    order = np.lexsort((times, group))
    ranked = group[order]
    behind = np.searchsorted(ranked, ranked, "right") - np.arange(len(ranked))
    stays = np.empty(len(ranked), np.bool_)
    stays[order] = behind <= most
    return stays


def times_of(table: pa.Table, name: str | None) -> Int64[Array, " rows"]:
    """Event times in microseconds; a row without one gets a time before all others."""
    if name is None:
        return np.zeros(table.num_rows, np.int64)
    name = column_named(table.schema, name)
    column = canonical(exp.column(name, quoted=True))
    text = column if pa.types.is_int64(table.schema.field(name).type) else f"UNIX_MICROS({column})"
    times = plain(compile_key(text, table.schema)(table)).cast(pa.int64())
    micros: Int64[Array, " rows"] = np.asarray(pc.fill_null(times, -FAR_US))
    return np.clip(micros, -FAR_US, FAR_US)


def put_together(
    step: Joined, own: Side, other: Side, units: Any, *, late: bool = False
) -> tuple[pa.Table, Any]:
    """The rows that a join makes, from both tables and their codes."""
    (table, left, _), (theirs, right, _) = own, other
    if step.how in ("semi", "anti"):
        kept = pa.array(np.isin(left, right) == (step.how == "semi"))
        return table.filter(kept), units.filter(kept)
    rows, places = meeting(step, own, other, late=late)
    missing: Bool[Array, " rows"] = np.zeros(len(rows), np.bool_)
    if step.how == "left":
        alone = np.setdiff1d(np.arange(len(left)), rows)
        at = np.argsort(np.concatenate([rows, alone]), kind="stable")
        rows = np.concatenate([rows, alone])[at]
        places = np.concatenate([places, np.zeros(len(alone), np.int64)])[at]
        missing = np.concatenate([missing, np.ones(len(alone), np.bool_)])[at]
    own_rows = pa.array(rows)
    made = side_by_side(step, (table, own_rows), (theirs, pa.array(places, mask=missing)))
    return made, wide(units).take(own_rows)


def side_by_side(step: Joined, own: tuple[pa.Table, Any], other: tuple[pa.Table, Any]) -> pa.Table:
    """The columns of a join, from the rows of both tables at some places."""
    made = {}
    for name, (side, column) in names_of(step, own[0], other[0]).items():
        table, places = (own, other)[side]
        made[name] = wide(table.column(column)).take(places)
    return pa.table(made)


def names_of(step: Joined, table: pa.Table, theirs: pa.Table) -> dict[str, tuple[int, str]]:
    """The columns of a join: by name if only one side has it, and by side and name."""
    tables = (table, theirs)
    lower = [{name.lower() for name in one.column_names} for one in tables]
    same = {name.lower() for name in (*step.same, *filter(None, [step.time]))}
    if not step.sides[0]:  # 'u:k' and 'v:k' of the tables before: a later k is no plain k either
        lower[0] |= {name.lower().partition(":")[2] for name in table.column_names}
    made: dict[str, tuple[int, str]] = {}
    for side, one in enumerate(tables):
        for name in one.column_names:
            unclear = name.lower() in lower[1 - side]
            if not unclear or (side == 0 and name.lower() in same):
                made[name] = (side, name)
            if step.sides[side]:
                made[f"{step.sides[side]}:{name}"] = (side, name)
    return made
