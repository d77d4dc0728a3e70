"""The group-by cut for Spark: three stages on Arrow rows, the same operators on hash partitions.

    rows -> admit (stateless) -> by unit: bound -> by key: gather and release

Each stage is a pure function of its shard's state and rows. Every decision depends on one unit or
one key alone and every order is that of source positions, so any number of shards gives the same
releases, bit for bit, as one process does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch, Release
from streamveil.engines.spark.source import POSITION, STEP
from streamveil.operators.aggregate import KeyRows, add_rows, key_stage
from streamveil.operators.bounding import UnitRows, unit_stage
from streamveil.operators.group_by import GroupBy
from streamveil.operators.keys import encode_keys
from streamveil.operators.rows import groups_of, lane_hits, lane_quanta
from streamveil.operators.state import State
from streamveil.privacy.noise import Noise
from streamveil.types import Array, Bool, Int64, UInt8, UInt64

ADMITTED = pa.schema([
    ("position", pa.int64()), ("unit", pa.int64()), ("period", pa.int64()),
    ("window", pa.int64()), ("name0", pa.int64()), ("name1", pa.int64()),
    ("key", pa.large_binary()), ("lanes", pa.list_(pa.int64())), ("hits", pa.list_(pa.int64())),
    ("unit_shard", pa.int32()),
])  # fmt: skip
BOUNDED = pa.schema([
    ("position", pa.int64()), ("window", pa.int64()), ("name0", pa.int64()), ("name1", pa.int64()),
    ("key", pa.large_binary()), ("lanes", pa.list_(pa.int64())), ("hits", pa.list_(pa.int64())),
    ("key_shard", pa.int32()),
])  # fmt: skip
Facts = dict[str, Array]  # of the shown groups, all public: window, name, weight


def admit(
    operator: GroupBy, rows: pa.Table, step: int, noise: Noise, shards: int
) -> tuple[pa.Table, dict[str, int]]:
    """Per-row work: expressions, windows, names. Returns rows, and counts of those turned away."""
    position = rows[POSITION].to_numpy()
    real = position >= 0
    state = State()
    plain = rows.drop_columns([POSITION, STEP]).filter(pa.array(real))
    prepared, pairs = operator.arrive(state, Batch(plain, step, False, "{}"), noise)  # noqa: FBT003
    places = position[real][prepared.places]
    first = np.ones(len(pairs.rows), np.bool_)
    lanes = lane_quanta(operator.plain_lanes, prepared, pairs.rows, first)
    hits = lane_hits(operator.trees, prepared, pairs.rows)
    names, unit = prepared.names[pairs.rows], prepared.unit[pairs.rows]
    taken = [key.take(pa.array(pairs.rows)) for key in prepared.keys]
    table = pa.Table.from_arrays([
        pa.array(places[pairs.rows]), signed(unit), pa.array(pairs.periods),
        pa.array(pairs.windows), signed(names[:, 0]), signed(names[:, 1]),
        encode_keys(taken, len(pairs.rows)), lists(lanes), lists(hits), shard_of(unit, shards),
    ], schema=ADMITTED)  # fmt: skip
    return table, prepared.turned


def bound(operator: GroupBy, state: State, rows: pa.Table, facts: Facts, shards: int) -> pa.Table:
    """The unit stage of one shard: which rows count. Updates the shard's units in place."""
    order = np.lexsort((rows["window"].to_numpy(), rows["position"].to_numpy()))
    rows = rows.take(pa.array(order))
    names = joined(rows)
    window, period = rows["window"].to_numpy(), rows["period"].to_numpy()
    weight, hidden = look_up(operator, facts, names, window)
    unit = rows["unit"].to_numpy().view(np.uint64)
    group = groups_of(names, window)
    n = len(group)
    accepted, first = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    for number in np.unique(period).tolist():
        mine = period == number
        passed = unit_stage(
            operator._units(state, number),
            UnitRows(unit[mine], group[mine], weight[mine], hidden[mine]), operator.bounds,
        )  # fmt: skip
        accepted[mine], first[mine] = passed
    lanes = matrix(rows["lanes"], n)
    for place, lane in enumerate(operator.plain_lanes):
        if lane.kind == "units":
            lanes[:, place] = first
    kept = np.flatnonzero(accepted)
    rows = rows.take(pa.array(kept))
    return pa.Table.from_arrays([
        rows["position"], rows["window"], rows["name0"], rows["name1"], rows["key"],
        lists(lanes[kept]), rows["hits"], shard_of(names[kept, 0], shards),
    ], schema=BOUNDED)  # fmt: skip


def gather(
    operator: GroupBy, state: State, rows: pa.Table, noise: Noise, place: tuple[int, int, int]
) -> None:
    """The key stage of one shard: exact sums per group, in place. `place`: shard, shards, step."""
    order = np.lexsort((rows["window"].to_numpy(), rows["position"].to_numpy()))
    rows = rows.take(pa.array(order)).combine_chunks()
    names, window = joined(rows), rows["window"].to_numpy()
    n = len(names)
    lanes, hits = matrix(rows["lanes"], n), matrix(rows["hits"], n)
    shard, shards, step = place
    open_windows(operator, state, {*window.tolist(), *operator.schedule.active(step)},
                 noise.derive("group-by/keys"), (shard, shards))  # fmt: skip
    keys = rows["key"].combine_chunks() if n else pa.array([], pa.large_binary())
    for number in np.unique(window).tolist():
        mine = np.flatnonzero(window == number)
        table = state.windows[number].table
        start = table.keys
        met = key_stage(table, names[mine])
        if len(met.fresh):
            table.name_keys(start, keys.take(pa.array(mine[met.fresh])))
        add_rows(table, met.rows, KeyRows(lanes[mine], hits[mine]))


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


def expire(operator: GroupBy, state: State, step: int) -> None:
    """Forgets the units of periods that take no more rows after a step."""
    for period in list(state.units):
        closes = operator._closes(period)
        if closes is not None and closes <= step:
            del state.units[period]


def look_up(
    operator: GroupBy, facts: Facts, names: UInt64[Array, "rows 2"], window: Int64[Array, " rows"]
) -> tuple[UInt8[Array, " rows"], Bool[Array, " rows"]]:
    """As `GroupBy.public_facts`, from the facts of all shards."""
    n, rule = len(names), operator.totalling.rule
    if rule is None and operator.bounds.slots is None:
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


def lists(values: Int64[Array, "rows cells"]) -> pa.Array:
    """Rows of a matrix as lists."""
    n, width = values.shape
    flat = pa.array(np.ascontiguousarray(values, np.int64).reshape(-1))
    offsets = pa.array(np.arange(n + 1, dtype=np.int32) * width)
    return pa.ListArray.from_arrays(offsets, flat)


def matrix(column: Any, rows: int) -> Int64[Array, "rows cells"]:
    """The inverse of `lists`."""
    if not rows:
        return np.zeros((0, 0), np.int64)
    chunks = [chunk.flatten().to_numpy() for chunk in column.chunks]
    return np.concatenate(chunks).reshape(rows, -1).copy()
