"""The group-by divided for Spark: three stages on Arrow rows, the same operators on partitions.

    rows -> admit (stateless) -> by unit: bound -> by key: gather and release

Each stage is a pure function of its shard's state and rows. Every decision depends on only one unit
or one key, and every order is that of source positions. So any number of shards gives the same
releases, bit for bit, as one process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch, Release
from streamveil.core.noise import Noise
from streamveil.core.noisy import post_process
from streamveil.core.sensitivity import within_reach
from streamveil.dataflow import BOUNDED
from streamveil.dataflow.aggregate import (
    KeyRows,
    KeyTable,
    Recognised,
    add_rows,
    key_stage,
    recognise,
)
from streamveil.dataflow.bounding import UnitRows
from streamveil.dataflow.distinct import recall, see
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.grouping import NAMES_KEY, unit_lanes
from streamveil.dataflow.keys import encode_keys, from_cells
from streamveil.dataflow.rows import Prepared, lane_hits, lane_quanta
from streamveil.dataflow.stages import (
    add_new_keys,
    arrive,
    counts_units,
    pass_units,
    pass_witnessed,
    told_apart,
)
from streamveil.dataflow.state import Index, State, parts
from streamveil.dataflow.witness import check_group, look_at_group
from streamveil.engines.spark.shuffle import BYTES, ENDS, Counts, Rows, key_columns
from streamveil.types import Array, Int32, Int64, UInt8, UInt64

Facts = dict[str, Array]  # of the published groups, all public: window, name, weight, round
Delta = dict[str, Array]  # the change of a shard in a step: enough to repeat it
LATER = ("rows", "units", "distinct")  # lanes that are filled when a row is accepted or gathered


def travelling(operator: GroupBy) -> list[int]:
    """The plain lanes whose increments a row carries from the start."""
    return [p for p, lane in enumerate(operator.plain_lanes) if lane.kind not in LATER]


class Bounded(NamedTuple):
    """The results of the unit stage for a step's rows."""

    rows: list[Rows]  # that count, by key shard
    reject_counts: Counts
    delta: Delta


def admit(
    operator: GroupBy, rows: pa.Table, step: int, noise: Noise, shards: int
) -> tuple[list[Rows], Counts]:
    """Per-row work: expressions, windows, names. Rows by unit shard, and counts of the others."""
    state = State()
    prepared, pairs = arrive(operator, state, Batch(rows, step, False, "{}"), noise)  # noqa: FBT003
    source: Index = pairs.rows
    n = len(pairs.rows)
    if n == len(prepared.unit) and operator.schedule.overlap == 1:
        source = slice(None)  # the pairs are simply all rows
    plain = operator.plain_lanes
    carried = tuple(plain[place] for place in travelling(operator))
    distinct = [plain[place].value for place in operator.distinct_lanes]
    columns = {
        "window": pairs.windows, "period": pairs.periods,
        "names": prepared.names[source], "unit": prepared.unit[source],
        "lanes": lane_quanta(carried, prepared, pairs.rows, np.ones(n, np.bool_)),
        "hits": lane_hits(operator.placed_trees, prepared, pairs.rows),
        **{f"cell{v}": prepared.cells[v][source] for v in distinct},
        **{f"has{v}": prepared.values[v][1][source] for v in distinct},
    }  # fmt: skip
    admitted = Rows(columns, key_cells(operator, prepared, pairs.rows))
    return admitted.by_shard(columns["unit"], shards), prepared.reject_counts


def key_cells(
    operator: GroupBy, prepared: Prepared, rows: Int64[Array, " pairs"]
) -> pa.Array | None:
    """The exact bytes of the rows' keys; None if keys are public."""
    if operator.public is not None:
        return None
    return encode_keys([key.take(pa.array(rows)) for key in prepared.keys], len(rows))


def bound(
    operator: GroupBy, state: State, rows: Rows, groups: PublishedGroups, shards: int
) -> Bounded:
    """The unit stage of one shard: which rows count. Updates the shard's units in place.

    Rows are summed per group before they go on if that loses nothing.
    """
    names, n = rows["names"], len(rows)
    known = groups.recognise(names, rows["window"])
    accepted, first = pass_witnessed(operator, state, known.of_units(rows["unit"]), rows["period"])
    kept = np.flatnonzero(accepted)
    lanes = np.ones((n, len(operator.plain_lanes)), np.int64)
    lanes[:, travelling(operator)] = rows["lanes"]
    units, asks = unit_lanes(operator)
    lanes[:, units] = counts_units(first, asks)
    moving = {name: rows[name] for name in rows.columns.keys() - {"unit", "period"}}
    counted = Rows(moving | {"lanes": within_reach(operator.plain_lanes, lanes)}, rows.keys)
    counted = counted if len(kept) == n else counted.take(kept)
    if not operator.trees and not operator.distinct_lanes:
        counted = combined(counted, state.step)
    reject_counts = {BOUNDED: n - len(kept)} if n > len(kept) else {}
    delta = {
        "unit": rows["unit"][kept], "period": rows["period"][kept], "group": known.group[kept],
        "weight": known.weight[kept], "hidden": known.hidden[kept].astype(np.uint8),
    }  # fmt: skip
    return Bounded(counted.by_shard(counted["names"][:, 0], shards), reject_counts, delta)


def bound_again(operator: GroupBy, state: State, delta: Delta, step: int) -> None:
    """Repeats `bound` and the end of a step on a unit shard; rejected rows change nothing."""
    if delta:
        hidden = delta["hidden"].astype(np.bool_)
        rows = UnitRows(delta["unit"], delta["group"], delta["weight"], hidden)
        pass_units(operator, state, rows, delta["period"])
    operator.expire(state, step)


def combined(rows: Rows, turn: int) -> Rows:
    """One row per (window, key): exact sums of integers, the same in any order."""
    windows, names, lanes, first = [], [], [], []
    for number, mine in parts(rows["window"]):
        table = KeyTable.empty(rows["lanes"].shape[1])
        met = key_stage(table, np.ascontiguousarray(rows["names"][mine]))
        add_witnessed(table, met.rows, KeyRows(rows["lanes"][mine], rows["hits"][mine]), turn)
        windows.append(np.full(table.keys, number))
        names.append(table.names[: table.keys])
        lanes.append(table.pending[: table.keys])
        first.append(np.arange(len(rows))[mine][met.fresh])
    if not windows:
        return rows
    places = np.concatenate(first)
    columns = {
        "window": np.concatenate(windows), "names": np.concatenate(names),
        "lanes": np.concatenate(lanes), "hits": rows["hits"][places],
    }  # fmt: skip
    return Rows(columns, None if rows.keys is None else rows.keys.take(pa.array(places)))


def add_witnessed(table: KeyTable, found: Int32[Array, " rows"], rows: KeyRows, turn: int) -> None:
    """Adds rows to their groups, under the witness, who checks the group that `turn` selects."""
    look = look_at_group(table, found, turn)
    add_rows(table, found, rows)
    if look is not None:
        check_group(look, table, rows.lanes[look.places], rows.hits[look.places])


def gather(
    operator: GroupBy, state: State, rows: Rows | None, noise: Noise, place: tuple[int, int, int]
) -> Delta:
    """The key stage of one shard: exact sums per group, in place. `place`: shard, shards, step."""
    step = place[-1]
    windows = {*operator.schedule.active(step)}
    if rows is not None:
        windows |= {*np.unique(rows["window"]).tolist()}
    make_windows(operator, state, windows, noise, place)
    delta: Delta = {"windows": np.array(sorted(windows), np.int64)}
    if rows is None:
        return delta
    lanes, where = rows["lanes"], rows["window"]
    values = {p: operator.plain_lanes[p].value for p in operator.distinct_lanes}
    seen, cells = see(
        state.seen, {p: (rows[f"has{v}"], rows[f"cell{v}"]) for p, v in values.items()}, where
    )
    for lane, new in seen.items():
        lanes[:, lane] = new
    found, places = np.empty(len(rows), np.int32), []
    for number, mine in parts(where):
        table = state.windows[number].table
        start = table.keys
        met = key_stage(table, np.ascontiguousarray(rows["names"][mine]))
        found[mine] = met.rows
        places.append(np.arange(len(rows))[mine][met.fresh])
        if len(met.fresh) and rows.keys is not None:
            table.name_keys(start, rows.keys.take(pa.array(places[-1])))
        add_witnessed(table, met.rows, KeyRows(lanes[mine], rows["hits"][mine]), step)
    new = np.concatenate([np.zeros(0, np.int64), *places])
    delta |= {"row": found, "window": where, "lanes": lanes, "hits": rows["hits"], **cells}
    if rows.keys is not None:
        delta |= {"new_window": where[new], "new_names": rows["names"][new]}
        delta |= key_columns(rows.keys.take(pa.array(new)))
    return delta


def gather_again(
    operator: GroupBy, state: State, delta: Delta, noise: Noise, place: tuple[int, int, int]
) -> None:
    """Repeats `gather` and the release of a step on a key shard."""
    make_windows(operator, state, {*delta["windows"].tolist()}, noise, place)
    if "row" in delta:
        recall(state.seen, delta)
        if ENDS in delta:
            keys = from_cells(delta[BYTES], np.cumsum(delta[ENDS]))
            add_new_keys(state, delta["new_window"], delta["new_names"], keys)
        for number, mine in parts(delta["window"]):
            increments = KeyRows(delta["lanes"][mine], delta["hits"][mine])
            add_rows(state.windows[number].table, delta["row"][mine], increments)
    operator.release(state, place[-1], noise)


def make_windows(
    operator: GroupBy, state: State, windows: set[int], noise: Noise, place: tuple[int, int, int]
) -> None:
    """Creates missing windows, with the public keys of the shard."""
    made, name_key = sorted(windows - state.windows.keys()), noise.derive(NAMES_KEY)
    operator.open_windows(state, made, name_key, place[:2])


def facts_matter(operator: GroupBy) -> bool:
    """Whether bounding needs the published groups; if not, nothing about them is written."""
    return operator.bounds.slots is not None or not facts_last(operator)


def facts_last(operator: GroupBy) -> bool:
    """Whether the facts on a published group never change after it was published."""
    return operator.aggregation.rule is None and not operator.aggregation.restarts


def published_facts(operator: GroupBy, state: State, known: dict[int, int] | None = None) -> Facts:
    """The facts on a shard's published groups for other stages: all of them were released.

    `known`: how many groups of each window to leave out.
    """
    windows, names, weights, rounds = [], [], [], []
    for number, held in state.windows.items():
        start = (known or {}).get(number, 0)
        rows = held.published_rows[start:]
        windows.append(np.full(len(rows), number, np.int64))
        names.append(held.table.names[rows])
        weights.append(held.weights[start:])
        rounds.append(operator.aggregation.rounds_of(held, rows))
    return {
        "window": np.concatenate([np.zeros(0, np.int64), *windows]),
        "name": np.concatenate([np.zeros((0, 2), np.uint64), *names]),
        "weight": np.concatenate([np.zeros(0, np.uint8), *weights]),
        "round": np.concatenate([np.zeros(0, np.int64), *rounds]),
    }


PublishedTable = tuple[KeyTable, UInt8[Array, " published_plus_1"], Int64[Array, " published"]]


def nothing() -> PublishedTable:
    """A table without groups."""
    return KeyTable.empty(0), np.zeros(1, np.uint8), np.zeros(0, np.int64)


@dataclass(frozen=True)
class PublishedGroups:
    """The facts on groups of all shards for bounding, by window: place, weight and round."""

    windows: dict[int, PublishedTable]
    entry: int  # weight of a group that is not published
    restarts: bool

    @classmethod
    def of(cls, operator: GroupBy, facts: Facts) -> PublishedGroups:
        """The groups, ready for look-ups."""
        rule = operator.aggregation.rule
        made = cls({}, 1 if rule is None else rule.entry, operator.aggregation.restarts)
        made.add(operator, facts)
        return made

    def add(self, operator: GroupBy, facts: Facts) -> None:
        """Adds groups that were not published before."""
        weighed = operator.aggregation.rule is not None or operator.bounds.slots is not None
        for window, mine in parts(facts["window"]):
            table, weights, rounds = self.windows.get(window, nothing())
            table.add_names(np.ascontiguousarray(facts["name"][mine]))
            more = facts["weight"][mine] * np.uint8(weighed)
            weights = np.concatenate([weights[:-1], more, np.zeros(1, np.uint8)])
            self.windows[window] = table, weights, np.append(rounds, facts["round"][mine])

    def forget(self, operator: GroupBy, step: int) -> None:
        """Drops windows that take no more rows after a step."""
        for window in list(self.windows):
            last = operator.schedule.last_step(window)
            if last is not None and last <= step:
                del self.windows[window]

    def recognise(
        self, names: UInt64[Array, "rows 2"], windows: Int64[Array, " rows"]
    ) -> Recognised:
        """As `dataflow.stages.recognised`, without the key rows, which other shards hold."""
        n = len(names)
        known = Recognised(
            np.empty(n, np.int64), np.empty(n, np.uint8), np.empty(n, np.bool_),
            np.empty(n, np.uint16),
        )  # fmt: skip
        rounds_of = np.zeros(n if self.restarts else 0, np.int64)
        unknown = nothing()
        for window, mine in parts(windows):
            table, weights, rounds = self.windows.get(window, unknown)
            own = np.ascontiguousarray(names[mine])
            some = recognise(table, own, window, weights, self.entry)
            for column, values in zip(known, some, strict=True):
                column[mine] = values
            if self.restarts:
                rounds_of[mine] = np.append(rounds, np.int64(0))[some.rows]  # -1 reads the zero
        return told_apart(known, names, windows, rounds_of) if self.restarts else known


def merged(releases: list[Release], keys: int) -> list[Release]:
    """The releases of all shards as one per window, rows sorted by the bytes of their keys.

    `keys`: the number of columns that name groups, which come first.
    """
    found: dict[int, list[Release]] = {}
    for release in releases:
        found.setdefault(release.window, []).append(release)
    return [one(parts, keys) for _, parts in sorted(found.items())]


def one(parts: list[Release], keys: int) -> Release:
    """One release of the parts that shards made of a window."""
    table = post_process(in_key_order, keys, *(part.noisy for part in parts))
    return replace(parts[0], noisy=table)


def in_key_order(keys: int, *tables: pa.Table) -> pa.Table:
    """The rows of all tables, sorted by the bytes of their keys."""
    table = pa.concat_tables(tables)
    named = [table.column(place).combine_chunks() for place in range(keys)]
    order = pa.compute.sort_indices(encode_keys(named, table.num_rows))
    return table.take(order).combine_chunks()
