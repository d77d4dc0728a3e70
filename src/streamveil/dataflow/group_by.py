"""The private continual group-by: the operator behind every GROUP BY over a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch, Release, ReleaseRun
from streamveil.calendars import Cells
from streamveil.core.accounting.guarantee import Guarantee, Loss
from streamveil.core.accounting.neighbours import Neighbours
from streamveil.core.mechanism import Look, MechanismDesign
from streamveil.core.noise.keyed import Address, Noise
from streamveil.core.noisy import Noisy, post_process
from streamveil.core.selection.coins import CoinSelection
from streamveil.core.sensitivity import Bounds, Lane
from streamveil.dataflow import group_metadata, stages
from streamveil.dataflow.aggregate import KeyTable, find_keys
from streamveil.dataflow.bounding import Firsts, Passed, UnitRows, UnitTable, unit_stage
from streamveil.dataflow.cut_rows import Deviations
from streamveil.dataflow.group_metadata import constant_facts, heading
from streamveil.dataflow.keys import Types, encode_keys
from streamveil.dataflow.outputs import Output
from streamveil.dataflow.release import (
    AggregationPlan,
    Released,
    WindowState,
    driver,
    new_window,
    publish_keys,
    published_keys,
)
from streamveil.dataflow.release_tables import (
    DrawnRelease,
    ReleasePoint,
    ReleaseShape,
    Stamp,
    floors_after,
    to_columns,
)
from streamveil.dataflow.rows import Bind, Prepared, RowProgram, names_of
from streamveil.dataflow.state import (
    State,
    parts,
    to_bytes,
)
from streamveil.dataflow.unit_kernels import COUNTED, NEW
from streamveil.dataflow.windows import Schedule, is_over, periods_apart, protected
from streamveil.errors import PlanError
from streamveil.types import Array, Bool, Int64, UInt64

INSTANT = pa.timestamp("us", "UTC")


class Default(NamedTuple):
    """A setting that the query left open: what was taken and why."""

    name: str
    value: Any
    reason: str


NONE_MADE: dict[str, Array] = {
    "made": np.zeros(0, np.int64),
    "public_names": np.zeros((0, 2), np.uint64),
    "public_ends": np.zeros(0, np.int64),
    "public_bytes": np.zeros(0, np.uint8),
}  # of windows, in a delta


@dataclass(frozen=True, kw_only=True)
class GroupBy:
    """Counts, sums and more per key and window, released at every public trigger.

    Algorithm: the dataflow of DP-SQLP (Zhang et al. 2023, arXiv:2303.18086) with one Gaussian
        mechanism over all keys: bound what each unit contributes, sum exactly per (window, key),
        and at each trigger feed continual counters, show keys that pass a private test, and decode.
    Protects: all rows of one unit (within each period, if there is one), added or removed; steps,
        triggers and source ranges fixed.
    Guarantee: `core.mechanism.Mechanism.loss`: the sum of the losses of the selection and of every
        lane's counter, plus the chance that two units share a 64-bit fingerprint.
    Proof: A unit moves lane l of group k by at most reach_l n_k over all triggers, and
        sum over k of n_k^2 is at most `bounds.l2_squared` over all windows of the unit's scope
        (`Bounds`), so the streams of lane l move by at most reach_l sqrt(l2_squared) in the norm of
        `Counter.loss`: one Gaussian mechanism per lane over all groups together, composed
        adaptively. Why `reach` is 2 for COUNT(DISTINCT x): `dataflow.distinct`. When a lane's
        counters start at a key's opening, which is public, what the key has gathered enters as one
        increment, and a late start never lengthens a column. Keys shown
        at all: see `GaussianSelection` and `SelectionTable`, to which `TotalTest` adds a delta.
        Weights of keys: `weighted_loss`. That
        a unit's fingerprint equals another's (probability at most max_units / 2^64 under the
        secret, which nothing else depends on) is a chance. All else is post-processing.
        *Rows that react to releases*: all bounds above hold on every path, so each Gaussian
        mechanism has a shift that is known given the past and bounded in L2 whatever the past was:
        mu-GDP against an adversary that writes the stream (Denisov et al. 2022, arXiv:2202.08312),
        who may also choose late in which period the unit's rows come. The windows of other periods
        then have one law, so periods in windows of their own cost the maximum, not the sum: what is
        left to lose after any past is at most `loss`, but for the chance (`given_past`, see
        `accounts.ledger`). Keys are covered by the same argument, key by key.
    Error: `std` and `threshold`; every released number carries its standard deviation.
    Memory: `memory`.
    Numerics: exact integers up to the counters, whose numerics are their own.
    """

    kind: str = "group-by"
    version: int = 1  # of its state
    job: str
    unit: str
    bind: Bind = field(compare=False, repr=False)
    schedule: Schedule
    periods: Cells | None  # of units; None: the whole stream
    design: MechanismDesign
    key_names: tuple[str, ...]
    public: tuple[tuple[Any, ...], ...] | None  # None: keys are discovered
    outputs: tuple[Output, ...]
    confidence: float
    true_intervals: bool = False  # intervals cover the rows over the bound as well
    defaults: tuple[Default, ...] = ()
    omitted: tuple[str, ...] = field(default=(), compare=False)  # by steps before; for releases
    uncut: bool = field(default=False, compare=False)  # no bound can cut a row; for releases

    def __post_init__(self) -> None:
        if (self.public is None) == (self.design.selection is None):
            raise ValueError("groups are either public or selected")
        if not 0 < self.confidence < 1:
            raise ValueError("confidence is above 0 and below 1")
        _ = self.aggregation.counters, self.aggregation.test  # refuses what cannot be sized

    @cached_property
    def aggregation(self) -> AggregationPlan:
        """The design over the triggers of a window: all that noise depends on."""
        plan = AggregationPlan(design=self.design, triggers=self.schedule.triggers)
        if not plan.restarts:
            return plan
        from streamveil.dataflow.dp_sqlp import RoundPlan  # only the preset needs it

        return RoundPlan(design=plan.design, triggers=plan.triggers)

    @cached_property
    def bounds(self) -> Bounds:
        """How much one unit may contribute."""
        return self.aggregation.bounds

    @property
    def loss(self) -> Loss:
        """See `core.mechanism.Mechanism`."""
        return self.aggregation.loss

    @property
    def look(self) -> Look | None:
        """At the rows, before the first release."""
        return self.design.look

    @property
    def max_units(self) -> int:
        """Units whose fingerprints may meet, at most."""
        return self.design.max_units

    @cached_property
    def protects(self) -> Neighbours:
        """All rows of one unit, within each of its periods."""
        return protected(self.unit, self.periods)

    @cached_property
    def trees(self) -> tuple[tuple[int, Lane, int], ...]:
        """First lane, a lane of it, levels; their nodes are the last lanes."""
        found, first = [], len(self.design.plain)
        for lane, levels in self.design.trees:
            found.append((first, lane, levels))
            first += sum(lane.fan**level for level in range(1, levels + 1))
        return tuple(found)

    @property
    def guarantee(self) -> Guarantee:
        """What all releases together promise."""
        steps, apart = self.schedule.steps, self.separate
        return Guarantee(self.protects, self.loss, steps, apart, given_past=True)

    @property
    def separate(self) -> bool:
        """Whether every period of a unit enters mechanisms of its own: no window meets two of them.

        A look reads the rows of all periods at once: then they share a mechanism.
        """
        return self.look is None and periods_apart(self.schedule, self.periods)

    @cached_property
    def plain_lanes(self) -> tuple[Lane, ...]:
        """Lanes filled row by row (tree nodes are hit instead)."""
        units = (Lane(kind="units"),) if self.aggregation.tracks_units else ()
        return units + tuple(lane for lane in self.aggregation.lanes if lane.kind != "node")

    @cached_property
    def placed_trees(self) -> tuple[tuple[int, Lane, int], ...]:
        """The trees, each with the place of its first node in what is kept per key."""
        ahead = int(self.aggregation.tracks_units)
        return tuple((first + ahead, lane, levels) for first, lane, levels in self.trees)

    @cached_property
    def lane_places(self) -> stages.LanePlaces:
        """See `stages.lane_places`."""
        return stages.lane_places(self)

    @cached_property
    def distinct_lanes(self) -> tuple[int, ...]:
        """Places of the plain lanes that count different values."""
        return tuple(p for p, lane in enumerate(self.plain_lanes) if lane.kind == "distinct")

    @cached_property
    def firsts(self) -> Firsts:
        """For which keys it matters that a unit is new to them.

        The table selection counts units only until it shows a key. If no aggregate counts them,
        nothing depends on them afterwards.
        """
        aggregation = self.aggregation
        if all(lane.kind != "units" for lane in self.plain_lanes):
            return "none"
        counted = any(lane.kind == "units" for lane in aggregation.lanes)
        until_shown = (
            isinstance(aggregation.selection, CoinSelection) and aggregation.shared is None
        )
        return "hidden" if until_shown and not counted else "all"

    @cached_property
    def counts_units_alone(self) -> bool:
        """Whether a unit's further rows in a group change nothing."""
        return not self.trees and all(lane.kind == "units" for lane in self.plain_lanes)

    def first_bit(self, place: int) -> int:
        """Which first rows a lane of units counts: all where it is released, else with a slot."""
        return COUNTED if place == 0 and self.aggregation.tracks_units else NEW

    # ---- the operator protocol

    def init(self) -> State:
        """See `Operator.init`."""
        return State()

    def fold(self, state: State, batch: Batch, noise: Noise) -> dict[str, Array]:
        """See `Operator.fold`."""
        return stages.fold(self, state, batch, noise)

    def ahead(self, batches: Iterator[Batch], noise: Noise) -> Iterator[Batch]:
        """The same micro-batches with what depends on no state done, in the thread that asks."""
        return group_metadata.ahead(self, batches, noise)

    def arrive(self, state: State, batch: Batch, noise: Noise) -> tuple[Prepared, stages.Pairs]:
        """The row stage and the windows: what may count, and reasons for the rest."""
        return stages.arrive(self, state, batch, noise)

    def apply(self, state: State, delta: Mapping[str, Array]) -> None:
        """See `Operator.apply`."""
        stages.replay(self, state, delta)

    def release(self, state: State, step: int, noise: Noise) -> list[Release]:
        """See `Operator.release`."""
        runs = self.releases_of(self.draw(state, step, noise))
        return [release for run in runs for release in run.releases()]

    def draw(self, state: State, step: int, noise: Noise) -> list[DrawnRelease]:
        """See `Operator`."""
        drawn = []
        active = self.schedule.active(step)
        new = [window for window in active if window not in state.windows]
        if new:
            self.make_windows(state, np.array(new, np.int64), noise.derive("group-by/keys"))
        for window in active:
            held = state.windows[window]
            at = Address(noise, self.job.encode(), window)
            before = len(held.published_rows)
            released = self.aggregation.release(held, at)
            if held.cut is not None:
                held.cut.show(held.table.names[held.published_rows[before:], 0])
            place = window, held.trigger, step
            drawn.append(self._drawn(held, released, place, state.types or (), at))
            if self.schedule.last_step(window) == step:
                state.forget(window)
        self.expire(state, step)
        state.step = step
        return drawn

    def releases_of(self, drawn: Sequence[DrawnRelease]) -> list[ReleaseRun]:
        """See `Operator`. A function of what was drawn and of public numbers."""
        runs = []
        for shape, some in groupby(drawn, attrgetter("shape")):
            mine = list(some)
            moments = tuple(one.moment for one in mine)
            numbers = (part for one in mine for part in one.numbers)
            columns = post_process(to_columns, shape, moments, *numbers)
            runs.append(ReleaseRun(columns, tuple(one.place for one in mine)))
        return runs

    def _drawn(
        self,
        held: WindowState,
        released: Released,
        place: tuple[int, int, int],
        types: Types,
        at: Address,
    ) -> DrawnRelease:
        """What a release is made of, and what the next one of its window must know of it."""
        aggregation, lost = self.aggregation, None
        if held.cut is not None and aggregation.cut is not None:
            lost = held.cut.release(aggregation.cut, at)
        types = types if self.key_names else ()
        keys, shape, floors = published_keys(held, types), self._shape(types), held.shown
        if self.rises:
            held.shown = post_process(floors_after, shape, released.totals, floors)
        moment = self._moment(place)
        numbers = keys, released.totals, floors, released.share, lost
        lanes = len(aggregation.lanes)
        return DrawnRelease(place, len(released.rows), lanes, shape, moment, numbers)

    @cached_property
    def rises(self) -> bool:
        """Whether an output may not fall."""
        return any(output.monotone for output in self.outputs)

    def _shape(self, types: Types) -> Noisy[ReleaseShape]:
        """What the columns of a release are."""
        if types not in self._shapes:
            fields = tuple(pa.field(*key) for key in zip(self.key_names, types, strict=True))
            size = None if driver(self.aggregation.lanes) < 0 else self.aggregation.size_of_keys
            made = ReleaseShape(fields, self.outputs, self.confidence, size, self.true_intervals)
            self._shapes[types] = post_process(as_it_is, made)
        return self._shapes[types]

    def _moment(self, place: tuple[int, int, int]) -> ReleasePoint:
        """What is public of a release; its intervals cover noise, selection, cut rows."""
        aggregation, (window, trigger, step) = self.aggregation, place
        test, shared, above = aggregation.test, None, 0.0
        if test is not None and aggregation.selected_by == "totals" and trigger in test.triggers:
            shared, above = test.place, test.threshold(trigger) * float(test.lane.quantum)
        elif aggregation.shared is not None and aggregation.selection is not None:
            shared, above = aggregation.shared, aggregation.selection.threshold(trigger)
        said = heading(self, place, self._facts), self.schedule.release_time(window, step)
        spread = 0.0 if aggregation.cut is None else self._cut_deviations[trigger]
        return ReleasePoint(trigger, shared, above, spread, self._stamps(window, trigger), *said)

    def expire(self, state: State, step: int) -> None:
        """Forgets the units of periods that take no more rows after a step."""
        for period in [p for p in state.units if is_over(self.schedule, p, self.periods, step)]:
            del state.units[period]
            state.cut.pop(period, None)

    def save(self, state: State) -> dict[str, Array]:
        """See `Operator.save`."""
        return state.to_arrays()

    def load(self, arrays: Mapping[str, Array]) -> State:
        """See `Operator.load`."""
        return State.from_arrays(arrays, len(self.aggregation.spans), self.aggregation.width)

    def counters(self, state: State) -> dict[str, int]:
        """See `Operator.counters`."""
        return {
            **state.reject_counts,
            "units": sum(table.units for table in state.units.values()),
            "keys": sum(held.table.keys for held in state.windows.values()),
            "shown keys": sum(len(held.published_rows) for held in state.windows.values()),
            "bytes": sum(table.nbytes for table in state.units.values())
            + sum(held.table.nbytes for held in state.windows.values())
            + sum(table.nbytes for table in state.seen.values())
            + sum(lookup.nbytes for lookup in state.lookups.values()),
        }

    # ---- helpers

    def program(self, schema: pa.Schema) -> RowProgram:
        """The row stage for rows of a schema, compiled once for each."""
        for known, program in self._programs:
            if known.equals(schema):
                return program
        self._programs.append((schema, self.bind(schema)))
        return self._programs[-1][1]

    @cached_property
    def _programs(self) -> list[tuple[pa.Schema, RowProgram]]:
        return []

    @cached_property
    def _shapes(self) -> dict[Types, Noisy[ReleaseShape]]:
        return {}

    @cached_property
    def _cut_deviations(self) -> Deviations:
        assert self.aggregation.cut is not None  # noqa: S101  (asked where rows are counted)
        return Deviations(self.aggregation.cut.counter)

    @cached_property
    def _facts(self) -> str:
        return constant_facts(self)

    @cached_property
    def _public_names(self) -> dict[bytes, Any]:
        return {}

    @cached_property
    def _public_tables(self) -> dict[bytes, KeyTable]:
        return {}

    def _units(self, state: State, period: int) -> UnitTable:
        if period not in state.units:
            state.units[period] = UnitTable.empty(self.bounds, self.firsts)
        return state.units[period]

    def unit_table(self, state: State, period: int, unit: int) -> UnitTable | None:
        """The table that holds a unit in a scope, for the witness, who only reads."""
        return state.units.get(period)

    def bound(self, state: State, period: int, rows: UnitRows) -> Passed:
        """The unit stage of one scope; an engine may keep its units elsewhere."""
        return unit_stage(self._units(state, period), rows, self.bounds)

    def _public_columns(self, types: Types) -> list[pa.Array]:
        columns = list(zip(*(self.public or ()), strict=True)) or [()] * len(types)
        return [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]

    def key_types(self, schema: pa.Schema) -> Types:
        """The types of the key columns, for rows of a schema."""
        empty = schema.empty_table()
        return tuple(key(empty).type for key in self.program(schema).keys)

    def public_keys(
        self, types: Types, name_key: bytes
    ) -> tuple[UInt64[Array, "keys 2"], pa.Array]:
        """Names and bytes of the public keys; the empty group-by has exactly one."""
        known = self._public_names
        if name_key not in known:
            names = self.name_public(types, name_key)
            known[name_key] = names, encode_keys(self._public_columns(types), len(names))
        found: tuple[UInt64[Array, "keys 2"], pa.Array] = known[name_key]
        return found

    def name_public(self, types: Types, name_key: bytes) -> UInt64[Array, "keys 2"]:
        """Names of the public keys; PlanError where two are one value. Nothing of it is kept."""
        n = len(self.public or ()) if self.key_names else 1
        names = names_of(self._public_columns(types), n, name_key)
        if len(np.unique(names[:, 0])) < n and len(np.unique(names, axis=0)) < n:
            raise PlanError(
                "two public groups are the same value of the columns' types (NaN, an instant in"
                " two time zones): both would show the same noise.\n"
                "  to fix  list each group once"
            )
        return names

    def is_public(
        self, names: UInt64[Array, "rows 2"], types: Types, name_key: bytes
    ) -> Bool[Array, " rows"]:
        """Which names are of public groups."""
        tables = self._public_tables
        if name_key not in tables:
            tables[name_key] = KeyTable.empty(0)
            tables[name_key].add_names(self.public_keys(types, name_key)[0])
        return np.asarray(find_keys(tables[name_key], np.ascontiguousarray(names)) >= 0)

    def make_windows(
        self, state: State, windows: Int64[Array, " pairs"], name_key: bytes
    ) -> dict[str, Array]:
        """Creates the windows that rows arrive in; returns their part of the delta."""
        made = [window for window, _ in parts(windows) if window not in state.windows]
        if not made:
            return dict(NONE_MADE)
        names, keys = self.open_windows(state, made, name_key)
        cells = keys.to_pylist()
        return {
            "made": np.array(made, np.int64),
            "public_names": names,
            "public_ends": np.cumsum([len(cell) for cell in cells], dtype=np.int64),
            "public_bytes": to_bytes(b"".join(cells)),
        }

    def open_windows(
        self, state: State, windows: Iterable[int], name_key: bytes, shard: tuple[int, int] = (0, 1)
    ) -> tuple[UInt64[Array, "keys 2"], pa.Array]:
        """Creates windows; returns their public keys: those of a shard (its number, how many)."""
        names, keys = np.zeros((0, 2), np.uint64), pa.array([], pa.large_binary())
        if self.aggregation.selection is None:
            names, keys = self.public_keys(state.types or (), name_key)
            number, shards = shard
            if shards > 1:
                mine = np.flatnonzero(names[:, 0] % np.uint64(shards) == number)
                names, keys = names[mine], keys.take(pa.array(mine))
        for window in windows:
            state.windows[window] = self.blank_window(names, keys)
        return names, keys

    def blank_window(self, names: UInt64[Array, "keys 2"], keys: pa.Array) -> WindowState:
        """A window before its first trigger; public keys are shown from then on."""
        held = new_window(self.aggregation, sum(output.monotone for output in self.outputs))
        if self.aggregation.selection is None:
            held.table.add_keys(names, keys)
            publish_keys(self.aggregation, held, np.arange(len(names), dtype=np.int64))
        return held

    def _stamps(self, window: int, trigger: int) -> tuple[Stamp, ...]:
        """The columns that are the same in all rows of a release."""
        stamps = (("trigger", trigger, pa.int64()),)
        if self.schedule.whole:
            return stamps
        start, end = self.schedule.bounds(window)
        return (("window_start", start, INSTANT), ("window_end", end, INSTANT), *stamps)


def as_it_is(shape: ReleaseShape) -> ReleaseShape:
    """A setting that has been looked at once."""
    return shape
