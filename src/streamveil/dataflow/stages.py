"""One micro-batch through a group-by: from rows to a changed state, and again from the log.

Per row there is one look-up of its key (which gives all that bounding may know of the key), one
visit to its unit, and one addition. Usually all rows share one window and one period: then nothing
is split or copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch
from streamveil.core.mechanism import BANDS
from streamveil.core.noise import Noise
from streamveil.core.sensitivity import within_reach
from streamveil.dataflow import BOUNDED, count, repeated
from streamveil.dataflow.aggregate import (
    KINDS,
    KeyRows,
    Recognised,
    Strangers,
    add_counts,
    add_rows,
    enter,
    recognise_some,
)
from streamveil.dataflow.bounding import Passed, UnitRows
from streamveil.dataflow.cut_rows import CutUnits, HiddenRows, bands_in, cut_in
from streamveil.dataflow.grouping import (
    Grouping,
    asked_keys,
    brought_lanes,
    row_stage,
    waits_for_groups,
)
from streamveil.dataflow.integer_key_index import Lookup
from streamveil.dataflow.kernels import keep_rows
from streamveil.dataflow.keys import cells_of, encode_rows, from_cells
from streamveil.dataflow.rows import Prepared, groups_of, lane_hits, lane_quanta, leave_out
from streamveil.dataflow.state import (
    BatchScratch,
    Index,
    State,
    chosen,
    constant,
    evened,
    parts,
    spread_out,
    to_bytes,
    types_from_bytes,
    types_to_bytes,
)
from streamveil.dataflow.unit_kernels import COUNTED, NEW, REPEATED
from streamveil.dataflow.windows import EARLY, LATE, assign, far_ahead, still_taken
from streamveil.dataflow.witness import (
    check_after,
    check_apart,
    check_group,
    look_at_group,
    look_before,
)
from streamveil.errors import StoreError
from streamveil.types import Array, Bool, Int32, Int64, UInt8, UInt64

NEVER = "not a public key"
ROUND_MARK = 0x5851F42D4C957F2D  # keeps round numbers apart from window numbers


class Pairs(NamedTuple):
    """(row, window) pairs that may count, with their place in the unit's scope."""

    rows: Int64[Array, " pairs"]
    windows: Int64[Array, " pairs"]  # of one item, repeated, where all are equal
    periods: Int64[Array, " pairs"]  # the same


NONE_NEW: dict[str, Array] = {  # the part of a delta for keys met for the first time
    "new_window": np.zeros(0, np.int64),
    "new_names": np.zeros((0, 2), np.uint64),
    "new_ends": np.zeros(0, np.int64),
    "new_bytes": np.zeros(0, np.uint8),
}
Met = list[tuple[int, Strangers]]  # by window


class AcceptedPairs(NamedTuple):
    """The accepted pairs."""

    unit: UInt64[Array, " kept"]
    rows: Int32[Array, " kept"]  # of their key tables
    first: UInt8[Array, " kept"]


def fold(operator: Grouping, state: State, batch: Batch, noise: Noise) -> dict[str, Array]:
    """See `Operator.fold`."""
    prepared, pairs = arrive(operator, state, batch, noise)
    made = operator.make_windows(state, pairs.windows, prepared.name_key)
    delta = accept(operator, state, prepared, pairs) | made
    delta["reject_counts"] = to_bytes(json.dumps(prepared.reject_counts).encode())
    count(state.reject_counts, prepared.reject_counts)
    if batch.rows.num_columns:
        delta["types"] = types_to_bytes(state.types or ())
    return delta


def arrive(operator: Grouping, state: State, batch: Batch, noise: Noise) -> tuple[Prepared, Pairs]:
    """The row stage and the windows: what may count, and reasons for the rest."""
    if state.types is None:
        state.types = operator.key_types(batch.rows.schema)
    prepared = row_stage(operator, batch, noise, state.scratch)
    if tuple(key.type for key in prepared.keys) != state.types:
        raise StoreError(
            "the columns that name groups have other types than when the state was made.\n"
            "  to fix  give the source their old types, or start a new state"
        )
    count(prepared.reject_counts, batch.rejected)
    every = state.scratch.count(len(prepared.unit))
    rows, windows, reject_counts = assign(
        operator.schedule, prepared.event_us, batch.step, every, batch.due, batch.reject_notes
    )
    count(prepared.reject_counts, reject_counts)
    pairs = Pairs(rows, windows, repeated(np.int64(0), len(rows)))
    if operator.periods is not None:
        pairs = pairs._replace(periods=operator.periods.numbers(prepared.event_us[rows]))
        if operator.schedule.whole:
            begun = max(batch.step, batch.due)
            ahead = far_ahead(operator.schedule, pairs.periods, operator.periods, begun)
            pairs = drop(pairs, ~ahead, EARLY, prepared)
        taken = still_taken(operator.schedule, pairs.periods, operator.periods, batch.step)
        pairs = drop(pairs, taken, LATE, prepared)
        if operator.separate:
            check_apart(operator.schedule, operator.periods, pairs[1:], batch.step)
    if operator.public is not None and operator.key_names:
        known = operator.is_public(prepared.names, state.types, prepared.name_key)
        pairs = drop(pairs, known[pairs.rows], NEVER, prepared)
    return prepared, Pairs(pairs.rows, evened(pairs.windows), evened(pairs.periods))


def accept(operator: Grouping, state: State, prepared: Prepared, pairs: Pairs) -> dict[str, Array]:
    """The unit stage, then the key stage; returns what they changed."""
    whole = operator.schedule.overlap == 1 and len(pairs.rows) == len(prepared.unit)
    source: Index = slice(None) if whole else pairs.rows
    unit, asked = prepared.unit[source], asked_keys(operator, prepared)[source]
    known, strangers = recognised(operator, state, asked, pairs.windows, prepared.name_key)
    passed = pass_witnessed(operator, state, known.of_units(unit), pairs.periods)
    fresh = enter_keys(state, prepared, pairs, strangers, (passed.accepted, known.rows))
    remember(state, asked, known, strangers)
    kept = keep(passed, unit, known.rows, state.scratch)
    over = len(unit) - len(kept.unit)
    count(prepared.reject_counts, {BOUNDED: over})
    windows, periods = (chosen(which, passed.accepted, len(kept.unit)) for which in pairs[1:])
    rows, cells = brought(operator, state, prepared, windows, (passed, pairs.rows))
    add(operator, state, windows, kept, rows)
    found = passed, known.rows, strangers
    lost = cut_rows(operator, state, unit, pairs, found) if over else {}
    return {
        "unit": kept.unit,
        "window": constant(windows),
        "period": constant(periods),
        "row": kept.rows,
        **packed_firsts(operator, kept.first),
        "lanes": rows.lanes,
        "hits": rows.hits,
        **fresh,
        **cells,
        **lost,
    }


def cut_rows(
    operator: Grouping,
    state: State,
    unit: UInt64[Array, " pairs"],
    pairs: Pairs,
    found: tuple[Passed, Int32[Array, " pairs"], Met],
) -> dict[str, Array]:
    """Counts the rows over the bound, by how many their unit lost; returns what that changed.

    Where only units are counted, a further row of a unit in the same group is no loss. Rows of a
    hidden group wait until the group is published.

    Sensitivity: that of `CutCounter`. Which rows of a unit are counted follows from its own rows
        and from public facts, as do which of them pass and which groups are shown.
    """
    passed, rows, strangers = found
    lost = ~passed.accepted
    if operator.counts_units_alone:
        lost &= (passed.first & REPEATED) == 0
    if operator.aggregation.cut is None or not lost.any():
        return {}
    places, scopes = np.flatnonzero(lost), []
    bands, windows = np.empty(len(places), np.int64), pairs.windows[places]
    for period, mine in parts(pairs.periods[places]):
        known = state.cut.setdefault(period, CutUnits())
        bands[mine], (units, counts) = bands_in(known, unit[places[mine]])
        scopes.append((period, units, counts))
    groups = np.zeros(len(places), np.uint64)
    if waits_for_groups(operator):
        groups = hidden_groups(state, pairs.windows, places, rows, strangers)
    counted, hidden = {}, {}
    for window, mine in parts(windows):
        own, band = groups[mine], bands[mine]
        waits = (own != 0) & (band < BANDS)
        counted[window] = cut_in(band[own == 0])
        hidden[window] = HiddenRows.of(own[waits], band[waits])
    add_bands(state, counted, hidden)
    return {
        "cut_period": np.repeat([p for p, _, _ in scopes], [len(u) for _, u, _ in scopes]),
        "cut_unit": np.concatenate([units for _, units, _ in scopes]),
        "cut_rows": np.concatenate([counts for _, _, counts in scopes]),
        "cut_window": np.array(list(counted), np.int64),
        "cut_bands": np.stack(list(counted.values())),
        "cut_waits": np.array([len(some.rows) for some in hidden.values()], np.int64),
        "cut_waits_cells": np.concatenate([some.cells for some in hidden.values()]),
        "cut_waits_rows": np.concatenate([some.rows for some in hidden.values()]),
    }


def hidden_groups(
    state: State,
    windows: Int64[Array, " pairs"],
    places: Int64[Array, " cut"],
    rows: Int32[Array, " pairs"],
    strangers: Met,
) -> UInt64[Array, " cut"]:
    """The first word of each pair's group name; 0 where the group is shown."""
    names = np.zeros(len(rows), np.uint64)
    for _, met in strangers:
        names[met.places] = met.names[met.at, 0]
    found = names[places]
    for window, mine in parts(windows[places]):
        held = state.windows[window]
        shown = np.zeros(held.table.keys, np.bool_)
        shown[held.published_rows] = True
        own, some = rows[places][mine], found[mine]
        known = own >= 0
        some[known] = np.where(shown[own[known]], 0, held.table.names[own[known], 0])
        found[mine] = some
    return found


def add_bands(
    state: State, counted: Mapping[int, Int64[Array, " bands"]], hidden: Mapping[int, HiddenRows]
) -> None:
    """Adds cut rows to the bands of their windows; those of hidden groups wait there."""
    for window, more in counted.items():
        held = state.windows[window].cut
        if held is not None:
            held.pending += more
            if window in hidden:
                held.hide(hidden[window])


def recognised(
    operator: Grouping, state: State, asked: Array, windows: Int64[Array, " pairs"], name_key: bytes
) -> tuple[Recognised, Met]:
    """The facts on every pair's key for the unit stage: all but the key rows are public."""
    n, rule = len(asked), operator.aggregation.rule
    entry = 1 if rule is None else rule.entry
    room = [state.scratch.take(f"known{at}", n, kind) for at, kind in enumerate(KINDS)]
    known, strangers = Recognised(*room), []
    for window, mine in parts(windows):
        here = asked[mine]
        table, lookup = state.windows[window].table, weighed(operator, state, window)
        some = known if isinstance(mine, slice) else Recognised.empty(len(here))
        into = some, missing_room(state, len(here))
        if asked.ndim == 1:
            met = lookup.find(table, here, (window, entry), name_key, into)
        else:
            met = recognise_some(table, here, (window, entry), lookup.weights, into)
        if not isinstance(mine, slice):
            for column, values in zip(known, some, strict=True):
                column[mine] = values
            met = met._replace(
                places=mine[met.places].astype(np.int32),
                at=met.at.copy(),
                firsts=mine[met.firsts].astype(np.int32),
            )
        strangers.append((window, met))
    return in_rounds(operator, state, known, asked, windows), strangers


def missing_room(state: State, rows: int) -> tuple[Array, Array, Array]:
    """Room to list rows whose keys are not known."""
    first, second, third = state.scratch.take("missing", 3 * rows, np.int32).reshape(3, rows)
    return first, second, third


def weighed(operator: Grouping, state: State, window: int) -> Lookup:
    """The look-up of a window with its present weights: 0 where bounding needs none."""
    held = state.windows[window]
    if window not in state.lookups:
        state.lookups[window] = Lookup()
    lookup = state.lookups[window]
    asks = operator.aggregation.rule is not None or operator.bounds.slots is not None
    shown = (
        (held.published_rows, held.weights) if asks else (held.published_rows[:0], held.weights[:0])
    )
    lookup.weigh(held.table, shown, (held.trigger, len(held.published_rows)))
    return lookup


def remember(state: State, asked: Array, known: Recognised, strangers: Met) -> None:
    """Stores integers that were named and now have rows, to be found by value."""
    if asked.ndim > 1:
        return
    for window, met in strangers:
        if len(met.firsts):
            state.lookups[window].keep(asked, met, known)


def in_rounds(
    operator: Grouping,
    state: State,
    known: Recognised,
    names: Array,
    windows: Int64[Array, " pairs"],
) -> Recognised:
    """Tells rounds of a key apart where the selection restarts: a unit counts in each."""
    if not operator.aggregation.restarts:
        return known
    rounds = np.zeros(len(names), np.int64)
    for window, mine in parts(windows):
        rounds[mine] = operator.aggregation.rounds_of(state.windows[window], known.rows[mine])
    return told_apart(known, names, windows, rounds)


def told_apart(
    known: Recognised,
    names: UInt64[Array, "pairs 2"],
    windows: Int64[Array, " pairs"],
    rounds: Int64[Array, " pairs"],
) -> Recognised:
    """The same keys, each round of a key a group of its own."""
    return known._replace(group=groups_of(names, windows + rounds * ROUND_MARK))


def pass_witnessed(
    operator: Grouping, state: State, rows: UnitRows, periods: Int64[Array, " pairs"]
) -> Passed:
    """The unit stage, with sampled units bounded again by the specification."""
    watched = []
    for period, mine in parts(periods):
        table_of = partial(operator.unit_table, state, period)
        watched.append((mine, table_of, look_before(table_of, rows.unit[mine], state.step)))
    passed = pass_units(operator, state, rows, periods)
    for mine, table_of, witnessed in watched:
        if witnessed.rows:
            own = rows.part(mine)
            answer = Passed(passed.accepted[mine], passed.first[mine])
            check_after(witnessed, table_of, own, answer, operator.bounds)
    return passed


def pass_units(
    operator: Grouping, state: State, rows: UnitRows, periods: Int64[Array, " pairs"]
) -> Passed:
    """The unit stage in every scope that pairs fall into."""
    found = [
        (mine, operator.bound(state, period, rows.part(mine))) for period, mine in parts(periods)
    ]
    if len(found) == 1 and isinstance(found[0][0], slice):
        return found[0][1]
    passed = Passed.none(len(rows.unit))
    for mine, some in found:
        passed.accepted[mine], passed.first[mine] = some
    return passed


def enter_keys(
    state: State,
    prepared: Prepared,
    pairs: Pairs,
    strangers: Met,
    found: tuple[Bool[Array, " pairs"], Int32[Array, " pairs"]],
) -> dict[str, Array]:
    """Gives a row to every key met for the first time; completes the rows of accepted pairs."""
    accepted, rows = found
    made: list[tuple[int, Array, pa.Array]] = []
    for window, met in strangers:
        if not len(met.places):
            continue
        table = state.windows[window].table
        start = table.keys
        fresh = enter(table, met.names, accepted, rows, met)
        if len(fresh):
            encoded = encode_rows(prepared.keys, pairs.rows[met.places[fresh]])
            table.name_keys(start, encoded)
            made.append((window, table.names[start : table.keys], encoded))
    if not made:
        return dict(NONE_NEW)
    data, ends = cells_of([encoded for _, _, encoded in made])
    sizes = [len(new) for _, new, _ in made]
    return {
        "new_window": np.repeat(np.array([w for w, _, _ in made], np.int64), sizes),
        "new_names": np.concatenate([new for _, new, _ in made]),
        "new_ends": ends,
        "new_bytes": data,
    }


def keep(
    passed: Passed,
    unit: UInt64[Array, " pairs"],
    rows: Int32[Array, " pairs"],
    scratch: BatchScratch,
) -> AcceptedPairs:
    """The accepted pairs, gathered."""
    n = int(np.count_nonzero(passed.accepted))
    first = scratch.take("first", n + 1, np.uint8)
    room = np.empty(n + 1, np.uint64), np.empty(n + 1, np.int32), first
    keep_rows(passed.accepted, unit, rows, passed.first, *room)
    return AcceptedPairs(*(column[:n] for column in room))


def brought(
    operator: Grouping,
    state: State,
    prepared: Prepared,
    windows: Int64[Array, " kept"],
    found: tuple[Passed, Int64[Array, " pairs"]],
) -> tuple[KeyRows, dict[str, Array]]:
    """The increments that accepted pairs bring to their keys, and the values seen first."""
    places = brought_lanes(operator.plain_lanes)
    if not places and not operator.trees:
        nothing = np.zeros((len(windows), 0), np.int64)
        return KeyRows(nothing, nothing.astype(np.int32)), {}
    (accepted, first), rows = found
    kept = np.flatnonzero(accepted)
    source, columns = rows[kept], {}
    seen, cells = dict[int, Array](), dict[str, Array]()
    for place in operator.distinct_lanes:
        value = operator.plain_lanes[place].value
        columns[place] = prepared.values[value][1][source], prepared.cells[value][source]
    if columns:
        from streamveil.dataflow.distinct import see  # loaded where different values are counted

        seen, cells = see(state.seen, columns, windows)
    firsts = {at: seen[place] for at, place in enumerate(places) if place in seen}
    own = tuple(operator.plain_lanes[place] for place in places)
    lanes = within_reach(own, lane_quanta(own, prepared, source, (first[kept] & NEW) != 0, firsts))
    hits = lane_hits(operator.placed_trees, prepared, source)
    return KeyRows(lanes, hits.astype(np.int32)), cells


def counts_units(
    first: UInt8[Array, " rows"], asks: Int64[Array, " some"]
) -> Bool[Array, "rows some"]:
    """Which rows count one unit more, for each lane of `unit_lanes`."""
    return np.asarray((first[:, None] & asks) != 0)


def add(
    operator: Grouping,
    state: State,
    windows: Int64[Array, " kept"],
    kept: AcceptedPairs,
    rows: KeyRows,
) -> None:
    """Adds accepted pairs to their keys, under the witness; `rows`: the lanes not given."""
    (units, asks, given), brought = operator.lane_places
    for window, mine in parts(windows):
        table, found, first = state.windows[window].table, kept.rows[mine], kept.first[mine]
        own = KeyRows(rows.lanes[mine], rows.hits[mine])
        look = look_at_group(table, found, state.step)
        add_counts(table, found, first, (units, asks, given))
        add_rows(table, found, own, brought)
        if look is not None:
            some = np.zeros((len(look.places), len(operator.plain_lanes)), np.int64)
            some[:, given] = 1
            some[:, units] = counts_units(first[look.places], asks)
            some[:, brought] = own.lanes[look.places]
            check_group(look, table, some, own.hits[look.places])


def replay(operator: Grouping, state: State, delta: Mapping[str, Array]) -> None:
    """See `Operator.apply`."""
    if "types" in delta and state.types is None:
        state.types = types_from_bytes(delta["types"])
    count(state.reject_counts, json.loads(bytes(delta["reject_counts"])))
    public = from_cells(delta["public_bytes"], delta["public_ends"])
    for window in delta["made"].tolist():
        state.windows[window] = operator.blank_window(delta["public_names"], public)
    if "seen" in delta:
        from streamveil.dataflow.distinct import recall

        recall(state.seen, delta)
    keys = from_cells(delta["new_bytes"], delta["new_ends"])
    add_new_keys(state, delta["new_window"], delta["new_names"], keys)
    found = delta["row"]
    windows = spread_out(delta["window"], len(found))
    known = remembered(operator, state, found, windows)
    periods = spread_out(delta["period"], len(found))
    pass_units(operator, state, known.of_units(delta["unit"]), periods)
    kept = AcceptedPairs(delta["unit"], found, unpacked_firsts(delta, len(found)))
    if "cut_unit" in delta:
        add_cut(state, delta)
    add(operator, state, windows, kept, KeyRows(delta["lanes"], delta["hits"]))


def add_cut(state: State, delta: Mapping[str, Array]) -> None:
    """Repeats what `cut_rows` did, from the log."""
    windows = delta["cut_window"].tolist()
    for period, mine in parts(delta["cut_period"]):
        lost = state.cut.setdefault(period, CutUnits())
        lost.add(delta["cut_unit"][mine], delta["cut_rows"][mine])
    ends = np.cumsum(delta["cut_waits"])[:-1]
    columns = (np.split(np.array(delta[f"cut_waits_{name}"]), ends) for name in HiddenRows._fields)
    hidden = dict(zip(windows, map(HiddenRows, *columns), strict=True))
    add_bands(state, dict(zip(windows, delta["cut_bands"], strict=True)), hidden)


def add_new_keys(
    state: State, windows: Int64[Array, " new"], names: UInt64[Array, "new 2"], keys: pa.Array
) -> None:
    """Gives rows to keys again (replay), in the order in which their windows met them."""
    for window, mine in parts(windows):
        own = keys.take(pa.array(np.arange(len(keys))[mine]))
        state.windows[window].table.add_keys(names[mine], own)


def packed_firsts(operator: Grouping, first: UInt8[Array, " kept"]) -> dict[str, Array]:
    """A bit for each accepted pair; a second bit where a released lane counts units as well."""
    packed = {"first": np.packbits(first & COUNTED)}
    if operator.firsts == "all" and operator.bounds.slots is not None:
        packed["new"] = np.packbits(first & NEW)
    return packed


def unpacked_firsts(delta: Mapping[str, Array], n: int) -> UInt8[Array, " kept"]:
    """The inverse of `packed_firsts`."""
    counted = np.unpackbits(delta["first"], count=n)
    new = np.unpackbits(delta["new"], count=n) if "new" in delta else counted
    return np.asarray(NEW * new + COUNTED * counted, np.uint8)


def remembered(
    operator: Grouping, state: State, found: Int32[Array, " rows"], windows: Int64[Array, " rows"]
) -> Recognised:
    """The result of `recognised`, rebuilt from the key rows."""
    n, rule = len(found), operator.aggregation.rule
    names, weight = np.empty((n, 2), np.uint64), np.empty(n, np.uint8)
    for window, mine in parts(windows):
        names[mine] = state.windows[window].table.names[found[mine]]
        weight[mine] = weighed(operator, state, window).weights[found[mine]]
    hidden = weight == 0
    weight[hidden] = 1 if rule is None else rule.entry
    known = Recognised(found, weight, hidden, groups_of(names, windows))
    return in_rounds(operator, state, known, names, windows)


def drop(pairs: Pairs, keep: Bool[Array, " pairs"], reason: str, prepared: Prepared) -> Pairs:
    """Leaves pairs out and counts them."""
    if keep.all():
        return pairs
    leave_out(prepared, reason, pairs.rows[~keep])
    return Pairs(*(column[keep] for column in pairs))
