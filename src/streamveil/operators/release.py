"""What a window remembers between triggers, and the release at each of them."""

from __future__ import annotations

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
from streamveil.operators.spread import Spread
from streamveil.types import Array, Float64, Int64

UNITS_LANE = 0  # the first lane counts distinct units for the selection, when there is one


@dataclass(frozen=True, kw_only=True)
class Totalling:
    """How the lanes of a query are counted and when keys are shown.

    `selection` None means public keys: all shown from the first trigger. With `shared`, the first
    value lane is read from the selection's own counter, which then holds the whole of its budget.
    """

    lanes: tuple[Lane, ...]
    counters: tuple[Counter, ...]  # one for each lane; unused for a shared lane
    selection: Selection | None
    shared: int | None  # the lane that the selection's counter serves

    @property
    def tracks_units(self) -> bool:
        """Whether a lane of newly counted units precedes the value lanes."""
        return self.selection is not None

    @property
    def width(self) -> int:
        """Lanes kept per key between triggers."""
        return len(self.lanes) + self.tracks_units


@dataclass(repr=False)  # secret
class WindowState:
    """One window: its keys, the selection, the shown keys in the order they were shown."""

    table: KeyTable
    selection: dict[str, Array]
    lanes: list[CounterState]
    open_rows: Int64[Array, " shown"]
    opened_at: Int64[Array, " shown"]  # trigger
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
            "open_rows": self.open_rows,
            "opened_at": self.opened_at,
            "shown": self.shown,
            "trigger": np.array(self.trigger, np.int64),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array], lanes: int) -> WindowState:
        """The inverse of `to_arrays`."""

        def part(prefix: str) -> dict[str, Array]:
            return {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}

        table = {name: value.copy() for name, value in part("table/").items()}
        return cls(
            KeyTable(**table),
            part("selection/"),
            [CounterState.from_arrays(part(f"lane{place}/")) for place in range(lanes)],
            arrays["open_rows"],
            arrays["opened_at"],
            arrays["shown"],
            int(arrays["trigger"]),
        )


class Released(NamedTuple):
    """Noisy totals of the shown keys, in the order they were shown."""

    rows: Int64[Array, " shown"]
    totals: Totals


def new_window(totalling: Totalling, outputs: int, trigger: int) -> WindowState:
    """A window without keys, before its given trigger."""
    table = KeyTable.empty(totalling.width)
    selection = {} if totalling.selection is None else totalling.selection.init(trigger)
    none = np.zeros(0, np.int64)
    lanes = [counter.init(0, trigger - 1) for counter in totalling.counters]
    return WindowState(table, selection, lanes, none, none, np.zeros((outputs, 0)), trigger - 1)


def open_keys(state: WindowState, rows: Int64[Array, " new"], trigger: int) -> None:
    """Makes keys public from this trigger on; their counters start with all they have gathered."""
    if len(rows) == 0:
        return
    state.open_rows = np.concatenate([state.open_rows, rows])
    state.opened_at = np.concatenate([state.opened_at, np.full(len(rows), trigger, np.int64)])
    state.lanes = [lane.grow(len(rows)) for lane in state.lanes]
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
        open_keys(state, np.flatnonzero(passes), trigger)
    rows = state.open_rows
    increments = pending[rows, skip:]
    pending[rows, skip:] = 0
    names = table.names[rows]
    estimate = np.empty((len(totalling.lanes), len(rows)))
    variance = np.empty_like(estimate)
    for place, (lane, counter) in enumerate(zip(totalling.lanes, totalling.counters, strict=True)):
        if place == totalling.shared:
            estimate[place], variance[place] = _shared(totalling, state, trigger)
            continue
        draws = at.noise.at("group-by/lane", at.job, place, at.window, trigger)
        noisy, state.lanes[place] = counter.step(
            state.lanes[place], increments[:, place], draws, names
        )
        quantum = float(lane.quantum)
        estimate[place] = noisy * quantum
        sd = Spread(counter).late(state.opened_at, trigger)
        variance[place] = (sd * quantum) ** 2
    return Released(rows, Totals(estimate, variance))


def _shared(totalling: Totalling, state: WindowState, trigger: int) -> tuple[Array, float]:
    selection = totalling.selection
    assert isinstance(selection, GaussianSelection)  # noqa: S101  (a type narrowing, never data)
    counts = selection.counts(state.selection)[state.open_rows]
    sd = float(selection.counter.std(np.array([trigger]))[0]) / FINE
    return np.rint(counts), sd**2 + 1 / 12


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
            whole = output.is_integer and not suffix
            sorted_cells = cells[order]
            arrays.append(
                pa.array(np.rint(sorted_cells).astype(np.int64) if whole else sorted_cells)
            )
            note = {b"bias": output.bias.encode()} if output.bias and not suffix else None
            fields.append(pa.field(output.name + suffix, arrays[-1].type, metadata=note))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _rising(state: WindowState, place: int, answer: Answer) -> Answer:
    value = np.maximum(state.shown[place], answer.value)
    state.shown[place] = value
    return Answer(value, answer.sd, answer.low, np.maximum(answer.high, value))
