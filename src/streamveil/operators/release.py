"""What a window remembers between triggers, and the release at each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.mechanisms.counters.protocol import Counter
from streamveil.mechanisms.counters.protocol import State as CounterState
from streamveil.operators.aggregate import KeyTable
from streamveil.operators.keys import Types, decode_keys, sort_keys
from streamveil.operators.outputs import Answer, Output, Totals
from streamveil.operators.rows import Lane
from streamveil.operators.selection import FINE, Address, GaussianSelection, Selection
from streamveil.operators.weighted import Spread, WeightRule, blt_of, weighted_step
from streamveil.types import Array, Float64, Int64, UInt8

UNITS_LANE = 0  # the first lane counts distinct units for the selection, when there is one
COUNTING = ("rows", "valid", "units")
OPENED, WEIGHT = "opened", "noise_weight"  # public facts that a release carries for each key


def driver(lanes: tuple[Lane, ...]) -> int:
    """The lane that tells how large a key is; -1 if none does."""
    kinds = [lane.kind for lane in lanes]
    counting = [place for place, kind in enumerate(kinds) if kind in COUNTING]
    return counting[0] if counting else kinds.index("sum") if "sum" in kinds else -1


@dataclass(frozen=True, kw_only=True)
class Totalling:
    """How the lanes of a query are counted and when keys are shown.

    `selection` None means public keys: all shown from the first trigger. With `shared`, that lane
    is read from the selection's own counter, which then holds the whole of its budget. With `rule`,
    keys carry weights; the totals of the first counting lane decide them, or, where nothing is
    counted, those of the first sum, in largest rows: keys have at least that many.
    """

    lanes: tuple[Lane, ...]
    counters: tuple[Counter, ...]  # one for each lane
    selection: Selection | None
    shared: int | None = None
    rule: WeightRule | None = None
    horizon: int | None = None  # triggers of a window

    @property
    def tracks_units(self) -> bool:
        """Whether a lane of newly counted units precedes the value lanes."""
        return self.selection is not None

    @property
    def width(self) -> int:
        """Lanes kept per key between triggers."""
        return len(self.lanes) + self.tracks_units

    def sizes(self, totals: Totals) -> Float64[Array, " shown"]:
        """The released totals that decide the weights, in rows."""
        place = driver(self.lanes)
        lane, total = self.lanes[place], totals.estimate[place]
        largest = 1.0 if lane.kind in COUNTING else lane.reach * float(lane.quantum)
        caution = 0.0 if self.rule is None else self.rule.caution
        return np.asarray((np.abs(total) - caution * np.sqrt(totals.variance[place])) / largest)


@dataclass(repr=False)  # secret
class WindowState:
    """One window: its keys, the selection, the shown keys in the order they were shown."""

    table: KeyTable
    selection: dict[str, Array]
    lanes: list[CounterState]
    spread: Spread
    open_rows: Int64[Array, " shown"]
    opened: Int64[Array, " shown"]  # the first trigger of each shown key: public
    weights: UInt8[Array, " shown"]  # quanta, in force until the next release
    shown: Float64[Array, "outputs shown"]  # last values, for monotone outputs
    trigger: int = 0  # releases made
    order: Any = None  # cache: the shown keys in order of their bytes, and their columns

    def to_arrays(self) -> dict[str, Array]:
        """Everything but caches."""
        arrays = {f"table/{name}": getattr(self.table, name) for name in KeyTable.NAMES}
        arrays |= {f"selection/{name}": value for name, value in self.selection.items()}
        for place, lane in enumerate(self.lanes):
            arrays |= {f"lane{place}/{name}": value for name, value in lane.to_arrays().items()}
        return arrays | {
            "spread": self.spread.rows,
            "open_rows": self.open_rows,
            "opened": self.opened,
            "weights": self.weights,
            "shown": self.shown,
            "trigger": np.array(self.trigger, np.int64),
        }

    @classmethod
    def from_arrays(
        cls, arrays: dict[str, Array], lanes: int, own: Callable[[Array], Array] = np.copy
    ) -> WindowState:
        """The inverse of `to_arrays`. `own` gives arrays that may be changed in place."""

        def part(prefix: str) -> dict[str, Array]:
            return {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}

        table = {name: own(value) for name, value in part("table/").items()}
        return cls(
            KeyTable(**table),
            part("selection/"),
            [CounterState.from_arrays(part(f"lane{place}/")) for place in range(lanes)],
            Spread(own(arrays["spread"])),
            arrays["open_rows"],
            arrays["opened"],
            arrays["weights"],
            own(arrays["shown"]),
            int(arrays["trigger"]),
        )


class Released(NamedTuple):
    """Noisy totals of the shown keys, in the order they were shown."""

    rows: Int64[Array, " shown"]
    totals: Totals
    share: Float64[Array, " shown"] | None = None  # of full precision, where keys carry weights


def new_window(totalling: Totalling, outputs: int) -> WindowState:
    """A window without keys, before its first trigger."""
    return WindowState(
        KeyTable.empty(totalling.width),
        {} if totalling.selection is None else totalling.selection.init(1),
        [counter.init(0) for counter in totalling.counters],
        Spread.empty(totalling.counters[0]),
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        np.zeros(0, np.uint8),
        np.zeros((outputs, 0)),
    )


def open_keys(totalling: Totalling, state: WindowState, rows: Int64[Array, " new"]) -> None:
    """Makes keys public; their counters start with all they have gathered."""
    if len(rows) == 0:
        return
    entry = 1 if totalling.rule is None else totalling.rule.entry
    state.open_rows = np.concatenate([state.open_rows, rows])
    first = np.full(len(rows), max(1, state.trigger), np.int64)
    state.opened = np.concatenate([state.opened, first])
    state.weights = np.concatenate([state.weights, np.full(len(rows), entry, np.uint8)])
    state.lanes = [lane.grow(len(rows)) for lane in state.lanes]
    state.spread.grow(len(rows))
    start = np.full((len(state.shown), len(rows)), -np.inf)
    state.shown = np.concatenate([state.shown, start], axis=1)
    state.order = None


def release_stage(totalling: Totalling, state: WindowState, at: Address) -> Released:
    """One trigger of one window: selects, feeds the counters, returns noisy totals. In place.

    A pure function of (state, address) on any set of keys: every key's noise and decisions depend
    on that key alone, so any partition of the keys gives the same totals.
    """
    trigger = state.trigger = state.trigger + 1
    table = state.table
    pending = table.pending[: table.keys]
    skip = int(totalling.tracks_units)
    if totalling.selection is not None:
        state.selection, passes = totalling.selection.step(
            state.selection, pending[:, UNITS_LANE].copy(), table.names[: table.keys], trigger, at
        )
        pending[:, UNITS_LANE] = 0
        passes = passes.copy()
        passes[state.open_rows] = False
        open_keys(totalling, state, np.flatnonzero(passes))
    rows = state.open_rows
    increments = pending[rows, skip:]
    pending[rows, skip:] = 0
    totals = _advance(totalling, state, increments, at)
    if totalling.rule is None:
        return Released(rows, totals)
    share = state.weights / totalling.rule.scale
    over = trigger / (totalling.horizon or trigger)
    state.weights = totalling.rule.next(state.weights, totalling.sizes(totals), over)
    return Released(rows, totals, share)


def _advance(
    totalling: Totalling, state: WindowState, increments: Int64[Array, "shown lanes"], at: Address
) -> Totals:
    """Feeds every value lane of the shown keys."""
    trigger, names = state.trigger, state.table.names[state.open_rows]
    scale = 1 if totalling.rule is None else totalling.rule.scale
    share = state.weights / scale
    estimate = np.empty((len(totalling.lanes), len(names)))
    variance = np.empty_like(estimate)
    unit = state.spread.step(totalling.counters[0], trigger, share)
    for place, (lane, counter) in enumerate(zip(totalling.lanes, totalling.counters, strict=True)):
        if place == totalling.shared:
            estimate[place], variance[place] = _shared(totalling, state)
            continue
        draws = at.noise.at("group-by/lane", at.job, place, at.window, trigger)
        blt, counted = blt_of(counter), state.lanes[place]
        if totalling.rule is None or blt is None:  # `weighted_loss` refuses a rule without BLT
            noisy, after = counter.step(counted, increments[:, place], draws, names)
        else:
            noisy, after = weighted_step(blt, counted, increments[:, place], (draws, names), share)
        state.lanes[place] = after
        quantum = float(lane.quantum)
        estimate[place] = noisy * quantum
        variance[place] = unit * (float(counter.sigma) * quantum) ** 2
    return Totals(estimate, variance)


def _shared(totalling: Totalling, state: WindowState) -> tuple[Array, float]:
    selection = totalling.selection
    assert isinstance(selection, GaussianSelection)  # noqa: S101  (a type narrowing, never data)
    counts = selection.counts(state.selection)[state.open_rows]
    sd = float(selection.counter.std(np.array([state.trigger]))[0]) / FINE
    return np.rint(counts), sd**2 + 1 / 12  # the rounding of the released integer


def to_table(
    state: WindowState,
    released: Released,
    outputs: tuple[Output, ...],
    confidence: float,
    keys: tuple[tuple[str, ...], Types],
) -> pa.Table:
    """Post-processing: aggregates with intervals, key columns, rows sorted by key bytes."""
    names, types = keys
    if state.order is None:
        encoded = state.table.key_bytes(released.rows)
        order = sort_keys(encoded)
        columns = decode_keys(encoded.take(pa.array(order)), types) if names else []
        state.order = order, columns
    order, columns = state.order
    fields = [pa.field(name, kind) for name, kind in zip(names, types, strict=True)]
    arrays = list(columns)
    for place, output in enumerate(outputs):
        answer = output.answer(released.totals, confidence)
        if output.monotone:
            answer = _rising(state, place, answer)
        for suffix, cells in (
            ("", answer.value),
            ("_sd", answer.sd),
            ("_low", answer.low),
            ("_high", answer.high),
        ):
            column = cells[order]
            if output.is_integer and not suffix:
                column = np.rint(column).astype(np.int64)
            note = {b"bias": output.bias.encode()} if output.bias and not suffix else None
            arrays.append(pa.array(column))
            fields.append(pa.field(output.name + suffix, arrays[-1].type, metadata=note))
    facts = {OPENED: state.opened} | ({} if released.share is None else {WEIGHT: released.share})
    for name, fact in facts.items():
        arrays.append(pa.array(fact[order]))
        fields.append(pa.field(name, arrays[-1].type))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _rising(state: WindowState, place: int, answer: Answer) -> Answer:
    value = np.maximum(state.shown[place], answer.value)
    state.shown[place] = value
    return Answer(value, answer.sd, answer.low, np.maximum(answer.high, value))
