"""What a window remembers between triggers, and the release at each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.core.counters import CounterState as CounterState
from streamveil.core.mechanism import Mechanism
from streamveil.core.noise import Address, Place
from streamveil.core.noisy import Noisy, post_process, public, restored, values
from streamveil.core.release import blt_of, count, count_weighted, lanes_start
from streamveil.core.selection.coins import withdrawn
from streamveil.core.selection.gaussian import GaussianSelection, join
from streamveil.core.selection.total_test import TotalsAlone, TotalTest
from streamveil.core.sensitivity import Lane
from streamveil.dataflow.aggregate import KeyTable
from streamveil.dataflow.cut_rows import CutBands
from streamveil.dataflow.keys import Types
from streamveil.dataflow.outputs import Totals
from streamveil.dataflow.published_keys import KeyCache, Spread
from streamveil.dataflow.release_kernels import take_lanes
from streamveil.types import Array, Float64, Int32, Int64, UInt8

UNITS_LANE = 0  # the first lane counts distinct units for the selection, when there is one
COUNTING = ("rows", "valid", "units")


def driver(lanes: tuple[Lane, ...]) -> int:
    """The lane that measures the size of a key; -1 if none does.

    A count of all rows comes first: others leave out rows by a condition or for lack of a value.

    >>> driver((Lane(kind="valid", value=0), Lane(kind="units"), Lane(kind="rows")))
    2
    """
    kinds = [lane.kind for lane in lanes]
    counting = [p for p, one in enumerate(lanes) if one.kind in COUNTING and not one.of_all]
    found = [*(place for place in counting if kinds[place] == "rows"), *counting]
    return found[0] if found else kinds.index("sum") if "sum" in kinds else -1


@dataclass(frozen=True)
class KeySize:
    """The size of a key by its released totals, in rows: weights follow from it."""

    place: int  # of the lane
    largest: float  # value of a row
    caution: float  # deviations by which totals are taken too low
    rows: bool = field(default=True, compare=False)  # all; else units, values or some of them

    def of(self, totals: Totals) -> Float64[Array, " shown"]:
        """Post-processing: rows of every key."""
        total, variance = totals.estimate[self.place], totals.variance[self.place]
        return np.asarray((np.abs(total) - self.caution * np.sqrt(variance)) / self.largest)


@dataclass(frozen=True, kw_only=True)
class AggregationPlan(Mechanism):
    """How the lanes of a query are counted and when keys are shown: a mechanism as it runs.

    `selection` None means public keys: all shown from the first trigger. With `shared`, that lane
    is read from the selection's own counter, which then gets its whole budget. With `rule`, keys
    carry weights, which follow from the totals of `driver`; a sum is divided by the largest value
    of a row, as keys have at least that many rows. With `test`, hidden keys are also shown by the
    noisy total of a lane.
    """

    @property
    def selected_by(self) -> str:
        """How groups are discovered, in the option's words; 'public' where they are not."""
        if self.selection is None:
            return "public"
        if isinstance(self.selection, TotalsAlone):
            return "totals"
        return "table" if self.selection.once else "gaussian"

    def rounds_of(self, state: WindowState, rows: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
        """The current round of some keys by row number; -1 (a key never seen) is in round 0."""
        return np.zeros_like(rows)

    def release(self, state: WindowState, at: Address) -> Released:
        """One trigger of one window: selects, feeds the counters. In place."""
        return release_stage(self, state, at)

    @property
    def tracks_units(self) -> bool:
        """Whether a lane of newly counted units precedes the value lanes."""
        return self.selection is not None

    @property
    def width(self) -> int:
        """Lanes kept per key between triggers."""
        return len(self.lanes) + self.tracks_units

    @cached_property
    def quanta(self) -> tuple[float, ...]:
        """The quantum of every lane."""
        return tuple(float(lane.quantum) for lane in self.lanes)

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Lanes [first, last) that step together: nodes of trees in a row with one counter."""
        found: list[tuple[int, int]] = []
        for place, (lane, counter) in enumerate(zip(self.lanes, self.counters, strict=True)):
            first, last = found[-1] if found else (0, -1)
            if (
                last == place
                and lane.kind == self.lanes[first].kind == "node"
                and blt_of(counter) is not None
                and (counter, lane.quantum) == (self.counters[first], self.lanes[first].quantum)
            ):
                found[-1] = first, place + 1
            else:
                found.append((place, place + 1))
        return tuple(found)

    @cached_property
    def size_of_keys(self) -> KeySize:
        """How large a key is by its released totals."""
        place = driver(self.lanes)
        lane = self.lanes[place]
        largest = 1.0 if lane.kind in COUNTING else float(lane.reach * float(lane.quantum))
        caution = 0.0 if self.rule is None else float(self.rule.caution)
        return KeySize(place, largest, caution, lane.kind == "rows")


@dataclass(repr=False)  # secret
class WindowState:
    """One window: its keys, the selection, the shown keys in the order they were shown."""

    table: KeyTable
    selection: dict[str, Array]
    lanes: list[CounterState]  # by span, of the keys that were shown at the last release
    spread: Spread
    published_rows: Int64[Array, " published"]
    cohorts: Int64[Array, "2 cohorts"]  # trigger and size of each run of keys first shown together
    weights: UInt8[Array, " shown"]  # quanta, in force until the next release
    shown: Noisy[Float64[Array, "outputs shown"]]  # last values of monotone outputs
    trigger: int = 0  # releases made
    cut: CutBands | None = None
    keys: KeyCache = field(default_factory=KeyCache)  # cache

    def to_arrays(self) -> dict[str, Array]:
        """Everything but caches."""
        arrays = {f"table/{name}": getattr(self.table, name) for name in KeyTable.NAMES}
        arrays |= {f"selection/{name}": value for name, value in self.selection.items()}
        for number, span in enumerate(self.lanes):
            arrays |= {f"lanes{number}/{name}": value for name, value in span.to_arrays().items()}
        if self.cut is not None:
            arrays |= {f"cut/{name}": value for name, value in self.cut.to_arrays().items()}
        return arrays | {
            "spread": self.spread.rows,
            "rounding": self.spread.rounding,
            "open_rows": self.published_rows,
            "cohorts": self.cohorts,
            "weights": self.weights,
            "shown": values(self.shown),
            "trigger": np.array(self.trigger, np.int64),
        }

    @classmethod
    def from_arrays(
        cls, arrays: dict[str, Array], spans: int, own: Callable[[Array], Array] = np.copy
    ) -> WindowState:
        """The inverse of `to_arrays`. `own` gives arrays that may be changed in place."""

        def part(prefix: str) -> dict[str, Array]:
            return {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}

        table = {name: own(value) for name, value in part("table/").items()}
        return cls(
            KeyTable(**table),
            {name: own(value) for name, value in part("selection/").items()},
            [CounterState.from_arrays(part(f"lanes{number}/")) for number in range(spans)],
            Spread(own(arrays["spread"]), own(arrays["rounding"])),
            arrays["open_rows"],
            arrays["cohorts"],
            arrays["weights"],
            restored(own(arrays["shown"])),
            int(arrays["trigger"]),
            CutBands.from_arrays(part("cut/")) if "cut/pending" in arrays else None,
        )


class Released(NamedTuple):
    """Noisy totals of the shown keys, in the order they were shown."""

    rows: Int64[Array, " shown"]
    totals: Noisy[Totals]
    share: Noisy[Float64[Array, " shown"]] | None = None  # in full, where keys have weights


def new_window(aggregation: AggregationPlan, monotone: int) -> WindowState:
    """A window without keys, before its first trigger; `monotone` outputs may not fall."""
    return WindowState(
        KeyTable.empty(aggregation.width),
        {} if aggregation.selection is None else aggregation.selection.init(1),
        [empty_span(aggregation, first, last) for first, last in aggregation.spans],
        Spread.empty(aggregation.counters[0]),
        np.zeros(0, np.int64),
        np.zeros((2, 0), np.int64),
        np.zeros(0, np.uint8),
        public(np.zeros((monotone, 0))),
        cut=None if aggregation.cut is None else CutBands.empty(aggregation.cut),
    )


def empty_span(aggregation: AggregationPlan, first: int, last: int) -> CounterState:
    """The state of lanes that step together, without keys."""
    blt, counter = blt_of(aggregation.counters[first]), aggregation.counters[first]
    return counter.init(0) if blt is None else lanes_start(blt, last - first, 0)


def publish_keys(
    aggregation: AggregationPlan, state: WindowState, rows: Int64[Array, " new"]
) -> None:
    """Makes keys public; their counters start with all they have gathered, at the next release."""
    if len(rows) == 0:
        return
    entry, test = 1 if aggregation.rule is None else aggregation.rule.entry, aggregation.test
    state.published_rows = np.concatenate([state.published_rows, rows])
    cohort = np.array([[max(1, state.trigger)], [len(rows)]], np.int64)
    state.cohorts = np.concatenate([state.cohorts, cohort], axis=1)
    state.weights = np.concatenate([state.weights, np.full(len(rows), entry, np.uint8)])
    start = None
    if test is not None:
        start = Spread.after(test.counter, test.before(state.trigger), test.share)
    state.spread.grow(1 if aggregation.rule is None else len(rows), start)
    state.shown = post_process(with_lowest, state.shown, len(rows))


def with_lowest(
    shown: Float64[Array, "outputs known"], more: int
) -> Float64[Array, "outputs shown"]:
    """The last values, and -inf for further keys, which have no last value."""
    return np.concatenate([shown, np.full((len(shown), more), -np.inf)], axis=1)


def release_stage(aggregation: AggregationPlan, state: WindowState, at: Address) -> Released:
    """One trigger of one window: selects, feeds the counters, returns noisy totals. In place.

    A pure function of (state, address) on any set of keys: every key's noise and decisions depend
    on that key alone, so any partition of the keys gives the same totals.
    """
    trigger = state.trigger = state.trigger + 1
    table, selection = state.table, aggregation.selection
    if selection is not None:
        keys = table.keys
        units, names = table.pending[:keys, UNITS_LANE], table.names[:keys]
        state.selection, passing = selection.step(state.selection, units, names, trigger, at)
        publish_keys(aggregation, state, passing if selection.once else _hidden(state, passing))
        if aggregation.test is not None:
            _tested(aggregation, aggregation.test, state, at)
    rows = state.published_rows
    increments = np.empty((len(aggregation.lanes), len(rows)), np.int64)
    first, width = int(aggregation.tracks_units), table.pending.shape[1]
    take_lanes(table.pending.reshape(-1), rows, first, width, increments)
    totals = _advance(aggregation, state, increments, at)
    if aggregation.rule is None:
        return Released(rows, totals)
    weights = restored(state.weights)  # in force since the last release
    share = post_process(np.divide, weights, aggregation.rule.scale)
    over = trigger / (aggregation.triggers or trigger)
    sizes = post_process(aggregation.size_of_keys.of, totals)
    state.weights = values(post_process(aggregation.rule.next, weights, sizes, over))
    return Released(rows, totals, share)


def _hidden(state: WindowState, rows: Int64[Array, " some"]) -> Int64[Array, " hidden"]:
    """The key rows that are not shown, in order."""
    hidden = np.zeros(state.table.keys, np.bool_)
    hidden[rows] = True
    hidden[state.published_rows] = False
    return np.flatnonzero(hidden)


def _tested(aggregation: AggregationPlan, test: TotalTest, state: WindowState, at: Address) -> None:
    """Shows hidden keys whose noisy totals pass the test; catches up all keys shown now."""
    trigger, table = state.trigger, state.table
    if trigger in test.triggers:
        hidden = _hidden(state, np.arange(table.keys))
        lane = test.place + int(aggregation.tracks_units)
        passing = test.passing(table.pending[hidden, lane], table.names[hidden], trigger, at)
        found = hidden[passing]
        if aggregation.selected_by == "table":
            state.selection = withdrawn(state.selection, found, trigger)
        publish_keys(aggregation, state, found)
    new = state.published_rows[state.lanes[0].keys :]
    if len(new) and test.before(trigger):
        names = table.names[new]
        for number, span in enumerate(aggregation.spans):
            blt = blt_of(aggregation.counters[span[0]])
            if blt is not None:
                late = test.noise(blt, span, names, (trigger, at))
                state.lanes[number] = join(state.lanes[number], late)


def _advance(
    aggregation: AggregationPlan,
    state: WindowState,
    increments: Int64[Array, "lanes shown"],
    at: Address,
) -> Noisy[Totals]:
    """Feeds every value lane of the shown keys."""
    trigger, shown, rule = state.trigger, len(state.published_rows), aggregation.rule
    names = state.keys.names_of(state.table, state.published_rows)
    share = None if rule is None else state.weights / rule.scale
    state.spread.step(aggregation.counters[0], trigger, share)
    estimates, variances = list[Noisy[Array]](), list[Noisy[Array]]()
    for number, (place, last) in enumerate(aggregation.spans):
        if place == aggregation.shared:
            noisy, variance = _shared(aggregation, state)
            estimates.append(noisy)
            variances.append(variance)
            continue
        counter = aggregation.counters[place]
        blt, counted = blt_of(counter), state.lanes[number]
        address = Place(at.noise, "group-by/lane", (at.job, place, at.window))
        if blt is None:  # `weighted_loss` refuses a rule without BLT
            counted = counted.grow(shown - counted.keys)
            noisy, after = count(counter, counted, increments[place], address, names)
        else:
            came = increments[place:last]
            noisy, after = count_weighted(blt, counted, came, (address, names), share)
        state.lanes[number] = after
        estimates.append(noisy)
        variances.append(public(state.spread.variances(counter, trigger, state.cohorts[1])))
    quanta = tuple(
        1.0 if place == aggregation.shared else aggregation.quanta[place]
        for place, _ in aggregation.spans
    )
    return post_process(to_totals, aggregation.spans, quanta, shown, *estimates, *variances)


def to_totals(
    spans: tuple[tuple[int, int], ...], quanta: tuple[float, ...], keys: int, *columns: Array
) -> Totals:
    """Totals in the lanes' own units, from quanta: estimates of all spans, then variances."""
    estimate, variance = np.empty((2, spans[-1][1], keys))
    for number, ((first, last), quantum) in enumerate(zip(spans, quanta, strict=True)):
        np.multiply(columns[number], quantum, out=estimate[first:last])
        np.multiply(columns[len(spans) + number], quantum**2, out=variance[first:last])
    return Totals(estimate, variance)


def _shared(aggregation: AggregationPlan, state: WindowState) -> tuple[Noisy[Array], Noisy[Array]]:
    """The selection's noisy counts at this trigger, as the total of a lane."""
    selection = aggregation.selection
    assert isinstance(selection, GaussianSelection)  # noqa: S101  (a type narrowing, never data)
    counts = selection.counts(state.selection, state.published_rows)
    sd = selection.deviation(state.trigger)
    return post_process(np.rint, counts), public(np.array(sd**2 + 1 / 12))  # an integer is released


class PublishedKeys(NamedTuple):
    """The keys of a release and their public facts, in the order of their bytes."""

    columns: tuple[pa.Array, ...]
    order: Int32[Array, " shown"]  # numbers in the order in which they were shown
    opened: Int64[Array, " shown"]  # the trigger that showed each first


def published_keys(state: WindowState, types: Types) -> Noisy[PublishedKeys]:
    """The keys of a window that are public or published by the selection."""
    shown = state.keys
    shown.sort(state.table, state.published_rows, state.cohorts, types)
    return public(PublishedKeys(tuple(shown.columns or ()), shown.order, shown.opened))
