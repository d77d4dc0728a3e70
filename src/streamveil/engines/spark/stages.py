"""The group-by cut for Spark: three stages on Arrow rows, the same operators on hash partitions.

    rows -> admit (stateless) -> by unit: bound -> by key: gather and release

Each stage is a pure function of its shard's state and rows. Every decision depends on one unit or
one key alone and every order is that of source positions, so any number of shards gives the same
releases, bit for bit, as one process does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch, Release
from streamveil.operators.aggregate import KeyRows, add_rows, key_stage
from streamveil.operators.bounding import UnitRows, unit_stage
from streamveil.operators.group_by import GroupBy
from streamveil.operators.keys import encode_keys
from streamveil.operators.rows import Prepared, groups_of, lane_hits, lane_quanta
from streamveil.operators.state import State, parts
from streamveil.privacy.noise import Noise
from streamveil.types import Array, Bool, Int64, UInt8, UInt64

Facts = dict[str, Array]  # of the shown groups, all public: window, name, weight
WORD = pa.int64()
GIVEN = ("rows", "units")  # lanes that follow from a row being accepted: they do not travel


class Sums(NamedTuple):
    """Rows on their way to the key stage: combined per group where nothing is lost by it."""

    position: Int64[Array, " rows"]
    window: Int64[Array, " rows"]
    names: UInt64[Array, "rows 2"]
    keys: pa.Array  # bytes; null for public keys, which every shard knows
    lanes: Int64[Array, "rows lanes"]
    hits: Int64[Array, "rows levels"]


def admitted_schema(operator: GroupBy) -> pa.Schema:
    """Columns between the row stage and the unit stage."""
    lanes = [f"lane{place}" for place in travelling(operator)]
    return schema_of(operator, ["unit", "period", *lanes], "unit_shard")


def bounded_schema(operator: GroupBy) -> pa.Schema:
    """Columns between the unit stage and the key stage."""
    lanes = [f"lane{place}" for place in range(len(operator.plain_lanes))]
    return schema_of(operator, lanes, "key_shard")


def schema_of(operator: GroupBy, own: list[str], shard: str) -> pa.Schema:
    """Flat columns only: Spark turns lists into objects one by one, which costs more than all."""
    levels = sum(levels for _, _, levels in operator.trees)
    words = ["position", "window", "name0", "name1", *own, *(f"hit{i}" for i in range(levels))]
    fields = [*((name, WORD) for name in words), ("key", pa.large_binary()), (shard, pa.int32())]
    return pa.schema(fields)


def travelling(operator: GroupBy) -> list[int]:
    """The plain lanes whose increments a row carries."""
    return [p for p, lane in enumerate(operator.plain_lanes) if lane.kind not in GIVEN]


def admit(
    operator: GroupBy, rows: pa.Table, position: Int64[Array, " rows"], step: int,
    noise: Noise, shards: int,
) -> tuple[pa.Table, dict[str, int]]:  # fmt: skip
    """Per-row work: expressions, windows, names. Returns rows, and counts of those turned away."""
    state = State()
    prepared, pairs = operator.arrive(state, Batch(rows, step, False, "{}"), noise)  # noqa: FBT003
    first = np.ones(len(pairs.rows), np.bool_)
    lanes = lane_quanta(operator.plain_lanes, prepared, pairs.rows, first)
    hits = lane_hits(operator.trees, prepared, pairs.rows)
    names, unit = prepared.names[pairs.rows], prepared.unit[pairs.rows]
    columns = {
        "position": pa.array(position[prepared.places][pairs.rows]),
        "window": pa.array(pairs.windows),
        "name0": signed(names[:, 0]), "name1": signed(names[:, 1]),
        "unit": signed(unit), "period": pa.array(pairs.periods),
        **{f"lane{place}": word(lanes[:, place]) for place in travelling(operator)},
        **{f"hit{level}": word(hits[:, level]) for level in range(hits.shape[1])},
        "key": key_cells(operator, prepared, pairs.rows),
        "unit_shard": shard_of(unit, shards),
    }  # fmt: skip
    return pa.table(columns, schema=admitted_schema(operator)), prepared.turned


def key_cells(operator: GroupBy, prepared: Prepared, rows: Int64[Array, " pairs"]) -> pa.Array:
    """The exact bytes of the rows' keys; nothing where keys are public."""
    if operator.public is not None:
        return pa.nulls(len(rows), pa.large_binary())
    return encode_keys([key.take(pa.array(rows)) for key in prepared.keys], len(rows))


def bound(operator: GroupBy, state: State, rows: pa.Table, facts: Facts, shards: int) -> pa.Table:
    """The unit stage of one shard: which rows count. Updates the shard's units in place."""
    rows = in_source_order(operator, rows)
    names = joined(rows)
    window, period = rows["window"].to_numpy(), rows["period"].to_numpy()
    weight, hidden = look_up(operator, facts, names, window)
    unit = rows["unit"].to_numpy().view(np.uint64)
    n = len(unit)
    all_rows = UnitRows(unit, groups_of(names, window), weight, hidden)
    accepted, first = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    for number, mine in parts(period):
        accepted[mine], first[mine] = unit_stage(
            operator._units(state, number),
            UnitRows(*(column[mine] for column in all_rows)), operator.bounds,
        )  # fmt: skip
    kept = np.flatnonzero(accepted)
    lanes = np.ones((len(kept), len(operator.plain_lanes)), np.int64)
    for place, lane in enumerate(operator.plain_lanes):
        if lane.kind == "units":
            lanes[:, place] = first[kept]
        elif lane.kind not in GIVEN:
            lanes[:, place] = rows[f"lane{place}"].to_numpy()[kept]
    sums = Sums(
        rows["position"].to_numpy()[kept], window[kept], names[kept],
        whole(rows["key"]).take(pa.array(kept)), lanes, matrix(rows, "hit")[kept],
    )  # fmt: skip
    return to_rows(operator, sums if operator.trees else combined(sums), shards)


def in_source_order(operator: GroupBy, rows: pa.Table) -> pa.Table:
    """Rows by position and then window. Where a row has one window, runs of sorted rows help."""
    position = rows["position"].to_numpy()
    if operator.schedule.overlap == 1:
        order = np.argsort(position, kind="stable")
    else:
        order = np.lexsort((rows["window"].to_numpy(), position))
    return rows.take(pa.array(order)).combine_chunks()


def combined(rows: Sums) -> Sums:
    """One row per (window, key), in their order: exact sums of integers, in any order the same."""
    if not len(rows.window):
        return rows
    if (rows.window == rows.window[0]).all():  # 64 uniform bits tell keys apart; were two equal,
        order = np.argsort(rows.names[:, 0], kind="stable")  # a key would get two rows, no harm
    else:
        order = np.lexsort((rows.names[:, 1], rows.names[:, 0], rows.window))
    window, names = rows.window[order], rows.names[order]
    changes = (window[1:] != window[:-1]) | (names[1:] != names[:-1]).any(axis=1)
    starts = np.concatenate([[0], np.flatnonzero(changes) + 1])
    first = order[starts]
    return Sums(
        rows.position[first], window[starts], names[starts], rows.keys.take(pa.array(first)),
        np.add.reduceat(rows.lanes[order], starts, axis=0), rows.hits[first],
    )  # fmt: skip


def to_rows(operator: GroupBy, sums: Sums, shards: int) -> pa.Table:
    """As Spark carries them."""
    columns = {
        "position": pa.array(sums.position), "window": pa.array(sums.window),
        "name0": signed(sums.names[:, 0]), "name1": signed(sums.names[:, 1]),
        **{f"lane{place}": word(lane) for place, lane in enumerate(sums.lanes.T)},
        **{f"hit{level}": word(hits) for level, hits in enumerate(sums.hits.T)},
        "key": sums.keys, "key_shard": shard_of(sums.names[:, 0], shards),
    }  # fmt: skip
    return pa.table(columns, schema=bounded_schema(operator))


def from_rows(rows: pa.Table) -> Sums:
    """The inverse of `to_rows`, in an order that does not depend on who sent what first."""
    order = np.lexsort((rows["window"].to_numpy(), rows["position"].to_numpy()))
    rows = rows.take(pa.array(order)).combine_chunks()
    return Sums(
        rows["position"].to_numpy(), rows["window"].to_numpy(), joined(rows), whole(rows["key"]),
        matrix(rows, "lane"), matrix(rows, "hit"),
    )  # fmt: skip


def gather(
    operator: GroupBy, state: State, rows: pa.Table, noise: Noise, place: tuple[int, int, int]
) -> None:
    """The key stage of one shard: exact sums per group, in place. `place`: shard, shards, step."""
    sums = from_rows(rows)
    if not operator.trees:
        sums = combined(sums)
    shard, shards, step = place
    windows = {*np.unique(sums.window).tolist(), *operator.schedule.active(step)}
    open_windows(operator, state, windows, noise.derive("group-by/keys"), (shard, shards))
    for number, mine in parts(sums.window):
        table = state.windows[number].table
        start = table.keys
        met = key_stage(table, np.ascontiguousarray(sums.names[mine]))
        if len(met.fresh):
            keys = sums.keys.take(pa.array(np.arange(len(sums.window))[mine][met.fresh]))
            table.name_keys(start, keys)
        add_rows(table, met.rows, KeyRows(sums.lanes[mine], sums.hits[mine]))


def open_windows(
    operator: GroupBy, state: State, windows: set[int], name_key: bytes, place: tuple[int, int]
) -> None:
    """Creates windows; of public keys, those that belong to the shard."""
    names, keys = np.zeros((0, 2), np.uint64), pa.array([], pa.large_binary())
    if operator.totalling.selection is None:
        names, keys = operator._public_keys(state.types or (), name_key)
        mine = np.flatnonzero(names[:, 0] % np.uint64(place[1]) == place[0])
        names, keys = names[mine], keys.take(pa.array(mine))
    for window in sorted(windows - state.windows.keys()):
        state.windows[window] = operator._blank(names, keys)


def facts_matter(operator: GroupBy) -> bool:
    """Whether bounding asks which groups were shown; if not, nothing of them is written."""
    return operator.totalling.rule is not None or operator.bounds.slots is not None


def shown_facts(state: State) -> Facts:
    """What other stages may know of a shard's shown groups: all of it was released."""
    windows, names, weights = [], [], []
    for number, held in state.windows.items():
        windows.append(np.full(len(held.open_rows), number, np.int64))
        names.append(held.table.names[held.open_rows])
        weights.append(held.weights)
    return {
        "window": np.concatenate([np.zeros(0, np.int64), *windows]),
        "name": np.concatenate([np.zeros((0, 2), np.uint64), *names]),
        "weight": np.concatenate([np.zeros(0, np.uint8), *weights]),
    }


def look_up(
    operator: GroupBy, facts: Facts, names: UInt64[Array, "rows 2"], window: Int64[Array, " rows"]
) -> tuple[UInt8[Array, " rows"], Bool[Array, " rows"]]:
    """As `GroupBy.public_facts`, from the facts of all shards."""
    n, rule = len(names), operator.totalling.rule
    if not facts_matter(operator):
        return np.ones(n, np.uint8), np.ones(n, np.bool_)
    known = cells(facts["name"], facts["window"])
    order = np.argsort(known)
    asked = cells(names, window)
    place = np.searchsorted(known[order], asked)
    inside = place < len(known)
    hit = np.zeros(n, np.bool_)
    hit[inside] = known[order][place[inside]] == asked[inside]
    weight = np.full(n, 1 if rule is None else rule.entry, np.uint8)
    weight[hit] = facts["weight"][order][place[hit]]
    return weight, ~hit


def merged(releases: list[Release]) -> list[Release]:
    """The releases of all shards as one per window, rows sorted by key bytes."""
    found: dict[int, list[Release]] = {}
    for release in releases:
        found.setdefault(release.window, []).append(release)
    return [one(parts) for _, parts in sorted(found.items())]


def one(parts: list[Release]) -> Release:
    """One release of the parts that shards made of a window."""
    table = pa.concat_tables([part.table for part in parts])
    names = table.column_names
    answers = {name[:-3] for name in names if name.endswith("_sd")}
    stop = next((i for i, name in enumerate(names) if name in answers), len(names))
    keys = [table.column(i).combine_chunks() for i in range(stop)]
    encoded = encode_keys(keys, table.num_rows)
    order = pa.compute.sort_indices(encoded)
    first = parts[0]
    return Release(table.take(order).combine_chunks(), first.window, first.trigger, first.step)


def cells(names: UInt64[Array, "rows 2"], window: Int64[Array, " rows"]) -> Array:
    """(window, name) as one comparable value."""
    parts = np.empty((len(names), 3), np.uint64)
    parts[:, 0], parts[:, 1:] = window.view(np.uint64), names
    kinds = np.dtype([("window", np.uint64), ("low", np.uint64), ("high", np.uint64)])
    return parts.view(kinds).reshape(-1)


def shard_of(words: UInt64[Array, " rows"], shards: int) -> pa.Array:
    """The shard of keyed words, which are uniform."""
    return pa.array((words % np.uint64(shards)).astype(np.int32))


def joined(rows: pa.Table) -> UInt64[Array, "rows 2"]:
    """The 128-bit names."""
    both = [rows[name].to_numpy().view(np.uint64) for name in ("name0", "name1")]
    return np.stack(both, axis=1)


def signed(words: UInt64[Array, " rows"]) -> pa.Array:
    """Unsigned words as Spark's signed ones."""
    return pa.array(np.ascontiguousarray(words).view(np.int64))


def word(column: Int64[Array, " rows"]) -> pa.Array:
    """One column of a matrix."""
    return pa.array(np.ascontiguousarray(column, np.int64))


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    found = column.combine_chunks()
    if isinstance(found, pa.ChunkedArray):
        found = found.chunk(0) if found.num_chunks else pa.array([], column.type)
    return found


def matrix(rows: pa.Table, prefix: str) -> Int64[Array, "rows cells"]:
    """The columns PREFIX0, PREFIX1, ... side by side."""
    names = [name for name in rows.column_names if name.removeprefix(prefix).isdecimal()]
    columns = [rows[name].to_numpy() for name in names]
    return np.stack(columns, axis=1) if columns else np.zeros((rows.num_rows, 0), np.int64)
