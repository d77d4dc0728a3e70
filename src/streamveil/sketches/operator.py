"""Frequencies of given keys and the most frequent keys of a stream, in bounded memory.

`APPROX_FREQUENCY(key)` and `HEAVY_HITTERS(key, k => ...)` run this: one sketch per window, advanced
at every public trigger. Memory is chosen in advance and does not depend on the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import Batch, Release
from streamveil.calendars import Cells
from streamveil.core.accounting.guarantee import Guarantee, Loss
from streamveil.core.counters.cell_kernels import Tables
from streamveil.core.noise import Noise
from streamveil.core.noise.bulk.keystream import key_schedule
from streamveil.core.noisy import post_process, public
from streamveil.core.sensitivity import Bounds
from streamveil.dataflow import BOUNDED, count
from streamveil.dataflow.bounding import UnitRows, UnitTable, unit_stage
from streamveil.dataflow.outputs import quantile_of, reach_of
from streamveil.dataflow.rows import Bind, Prepared, RowProgram, leave_out, prepare
from streamveil.dataflow.state import constant, parts, spread_out, to_bytes
from streamveil.dataflow.windows import (
    EARLY,
    LATE,
    Schedule,
    assign,
    far_ahead,
    is_over,
    periods_apart,
    still_taken,
)
from streamveil.dataflow.witness import check_apart
from streamveil.errors import PlanError, StoreError
from streamveil.release_metadata import noted
from streamveil.sketches import HeavyHitters, HeavyTexts, LazySketch, text_words, words_text
from streamveil.sketches.cell_noise import row_norm
from streamveil.sketches.items import Items, chosen, packed, unpacked
from streamveil.sketches.keys import is_utf8, key_words, words_bytes
from streamveil.sketches.levels import WIDEST_BEAM
from streamveil.sketches.published import PublishedSketch, key_column
from streamveil.sketches.table import SketchTable
from streamveil.types import Array, Bool, Int64, UInt64

Arrays = dict[str, Array]
NULL_KEY = "null key"
OUT_OF_RANGE = "key out of range"
COLLISION_BITS = 64
UNHELD = (
    "{:.4g}% intervals of a sketch cover its noise, not its collisions; rows over the contribution"
    " bound are not counted"
)
RARE = (  # where keys are searched
    "keys of few rows are missing; those found were chosen by their noisy numbers: of many keys"
    " alike the search finds those with high noise, and fewer of their intervals hold than stated"
)
ONES = np.zeros(0, np.int32)  # keys count one
NO_NOISE = np.zeros((0, 8), np.uint64)  # of counting: noise comes when columns are pushed


class Arrived(NamedTuple):
    """Rows that may count, in canonical order."""

    unit: UInt64[Array, " rows"]
    items: Items
    window: Int64[Array, " rows"]
    period: Int64[Array, " rows"]
    reject_counts: dict[str, int]  # reason -> rows left out


@dataclass(repr=False)  # secret
class SketchState:
    """Everything a sketch query remembers. Mutable; never shown."""

    units: dict[int, UnitTable] = field(default_factory=dict)  # period -> table
    windows: dict[int, list[Tables]] = field(default_factory=dict)  # window -> its levels
    reject_counts: dict[str, int] = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class SketchQuery:
    """One sketch aggregate as a streaming operator.

    Algorithm: bound rows per unit (`Bounds`), count their keys in one sketch per window on the tick
        clock, push every column at each trigger, and answer from the published tables.
    Protects: all rows of one unit (within each period, if there is one), added or removed.
    Guarantee: that of the sketch for C = max_rows items, over all windows of a unit's scope
        together, plus the chance that two units share a 64-bit fingerprint.
    Proof: at most C rows of a unit pass over all windows; each moves the tables of one window by at
        most the sketch's reach for one item, and windows are further cells of one Gaussian
        mechanism, so all together move by at most C times that (triangle inequality). A window's
        noise has an address of its own.
    Error: `sd`; collisions add to it (`PublishedSketch.error_bound`).
    Memory: `nbytes`, however many keys or rows there are; and about 17 bytes a unit.
    """

    kind: str = "sketch"
    job: str
    bind: Bind = field(compare=False, repr=False)  # one key expression
    schedule: Schedule
    periods: Cells | None  # of units; None: the whole stream
    bounds: Bounds  # max_rows alone
    sketch: LazySketch | HeavyHitters | HeavyTexts  # on the tick clock, bound = max_rows
    name: str  # of the output column
    key_name: str
    keys: tuple[Any, ...] = ()  # approx_frequency: the public keys to show
    k: int = 0  # heavy_hitters: how many to show
    text_length: int = 0  # heavy_hitters over text: leading bytes that count as the key
    confidence: float = 0.95  # of each interval
    max_units: int = 10**8
    omitted: tuple[str, ...] = field(default=(), compare=False)  # by steps before; for releases

    def __post_init__(self) -> None:
        searched = not isinstance(self.sketch, LazySketch)
        if searched == bool(self.keys) or searched != bool(self.k):
            raise PlanError("a sketch query shows given keys, or the k most frequent ones")
        if self.sketch.clock != "ticks" or self.sketch.round != 1:
            raise PlanError("a sketch query pushes at every trigger: clock 'ticks', round 1")
        if self.sketch.protects.bound != self.bounds.max_rows:
            raise PlanError("the sketch must be sized for max_rows items per unit")
        if self.sketch.horizon != self.schedule.triggers:
            raise PlanError("the sketch's horizon must be the number of triggers of a window")
        sketch = self.sketch
        counts = sketch.length if isinstance(sketch, HeavyTexts) else getattr(sketch, "bits", 0) / 8
        if self.text_length and self.text_length != counts:
            raise PlanError("text_length must be the bytes that the finder counts")
        if self.schedule.overlap != 1:
            raise PlanError("a sketch query takes whole-stream or tumbling windows")
        if self.k > WIDEST_BEAM // 2:
            raise PlanError(
                f"HEAVY_HITTERS finds {WIDEST_BEAM // 2:,} keys at most, not {self.k:,}.\n"
                f"  to fix  k => {WIDEST_BEAM // 2}, or fewer"
            )
        if None in self.keys:
            raise PlanError(
                "APPROX_FREQUENCY counts rows that have a key, and NULL is none.\n"
                "  to fix  leave NULL out of public_groups"
            )
        key_words(self.keys)  # refuses keys that cannot be counted, before anything is paid

    @property
    def guarantee(self) -> Guarantee:
        """See `Operator.guarantee`."""
        loss = self.sketch.guarantee.loss + Loss(chance=Fraction(self.max_units, 2**COLLISION_BITS))
        apart = periods_apart(self.schedule, self.periods)
        return Guarantee(self.sketch.protects, loss, self.schedule.steps, apart)

    @property
    def tables(self) -> tuple[SketchTable, ...]:
        """The levels of one window."""
        return self.sketch.tables

    @property
    def nbytes(self) -> int:
        """Most bytes of sketches at any time: open windows times one window's."""
        return self.sketch.nbytes * self.schedule.open_windows

    def sd(self, trigger: int) -> float:
        """Standard deviation of the noise shown at a trigger."""
        norms = row_norm(self.tables[0].counter, trigger)
        return float(self.tables[0].sigma * norms[0]) / self._weight

    @property
    def _weight(self) -> int:
        """The number that a row adds to a cell that is shown."""
        return self.sketch.weight if isinstance(self.sketch, HeavyTexts) else 1

    # ---- the operator protocol

    def init(self) -> SketchState:
        """See `Operator.init`."""
        return SketchState()

    def fold(self, state: SketchState, batch: Batch, noise: Noise) -> Arrays:
        """See `Operator.fold`."""
        came = self.arrive(batch, noise)
        accepted = self.accept(state, came.unit, came.period)
        count(came.reject_counts, {BOUNDED: int((~accepted).sum())})
        delta = {
            "unit": came.unit[accepted],
            **packed(chosen(came.items, np.flatnonzero(accepted))),
            "window": constant(came.window[accepted]),
            "period": constant(came.period[accepted]),
            "reject_counts": to_bytes(json.dumps(came.reject_counts).encode()),
        }
        self._add(state, delta)
        return delta

    def arrive(self, batch: Batch, noise: Noise) -> Arrived:
        """The rows of a micro-batch that may count: a function of each row alone."""
        program: RowProgram = self.bind(batch.rows.schema)
        unit_key, name_key = noise.derive("sketch/units"), noise.derive("sketch/keys")
        prepared = prepare(program, batch.rows, unit_key, name_key, reject_notes=batch.reject_notes)
        count(prepared.reject_counts, batch.rejected)
        items, good = self._items(prepared)
        rows, windows, reject_counts = assign(
            self.schedule, prepared.event_us, batch.step, None, batch.due, batch.reject_notes
        )
        count(prepared.reject_counts, reject_counts)
        periods = self._periods(prepared.event_us[rows])
        keep = good[rows]
        if self.periods is not None:
            ahead = keep & far_ahead(
                self.schedule, periods, self.periods, max(batch.step, batch.due)
            )
            leave_out(prepared, EARLY, rows[ahead])
            keep &= ~ahead
        still = still_taken(self.schedule, periods, self.periods, batch.step)
        leave_out(prepared, LATE, rows[keep & ~still])
        keep &= still
        if self.periods is not None and periods_apart(self.schedule, self.periods):
            check_apart(self.schedule, self.periods, (windows[keep], periods[keep]), batch.step)
        rows = rows[keep]
        return Arrived(
            prepared.unit[rows], chosen(items, rows), windows[keep], periods[keep],
            prepared.reject_counts,
        )  # fmt: skip

    def accept(
        self, state: SketchState, unit: UInt64[Array, " rows"], periods: Int64[Array, " rows"]
    ) -> Bool[Array, " rows"]:
        """The unit stage, in place: the first max_rows rows of each unit."""
        n = len(unit)
        accepted = np.zeros(n, np.bool_)
        rows = UnitRows(unit, np.zeros(n, np.uint16), np.ones(n, np.uint8), np.ones(n, np.bool_))
        for period, mine in parts(periods):
            if period not in state.units:
                state.units[period] = UnitTable.empty(self.bounds)
            part = rows.part(mine)
            accepted[mine] = unit_stage(state.units[period], part, self.bounds).accepted
        return accepted

    def apply(self, state: SketchState, delta: Mapping[str, Array]) -> None:
        """See `Operator.apply`."""
        self.accept(state, delta["unit"], spread_out(delta["period"], len(delta["unit"])))
        self._add(state, delta)

    def release(self, state: SketchState, step: int, noise: Noise) -> list[Release]:
        """See `Operator.release`."""
        releases = []
        for window in self.schedule.active(step):
            levels = self._window(state, window)
            for number, (table, tables) in enumerate(zip(self.tables, levels, strict=True)):
                address = noise.at("sketch", self.job.encode(), window, number)
                table.tick(tables, 1, key_schedule(address))
            trigger = self.schedule.trigger(window, step)
            shown = (t.published(state) for t, state in zip(self.tables, levels, strict=True))
            answer = post_process(SketchQuery._answer, public(self), window, trigger, *shown)
            releases.append(Release(answer, window, trigger, step))
            if self.schedule.last_step(window) == step:
                del state.windows[window]
        self.expire(state, step)
        state.step = step
        return releases

    def expire(self, state: SketchState, step: int) -> None:
        """Forgets the units of periods that take no more rows after a step."""
        for period in [p for p in state.units if is_over(self.schedule, p, self.periods, step)]:
            del state.units[period]

    def cells(self, items: Items) -> tuple[Int64[Array, " hit"], Int64[Array, " hit"]]:
        """The cells that some keys fall into, over all levels of a window, and the count of each.

        A window's counts are a sum over rows: they can be counted in parts, and these added.
        """
        places, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        first = np.cumsum([0] + [table.layout.cells for table in self.tables])
        for number, words, weights in self.sketch.counted(items, ONES):
            table = self.tables[number]
            tables = table.init()
            table.count(tables, words, weights, NO_NOISE)
            pending = tables.pending.reshape(-1)
            hit = np.flatnonzero(pending)
            places.append(hit + first[number])
            counts.append(pending[hit].astype(np.int64))
        return np.concatenate(places), np.concatenate(counts)

    def add_cells(
        self,
        state: SketchState,
        window: int,
        places: Int64[Array, " hit"],
        counts: Int64[Array, " hit"],
    ) -> None:
        """Adds counts of `cells` in place. A place may occur several times."""
        base = 0
        for tables in self._window(state, window):
            pending = tables.pending.reshape(-1)
            mine = (places >= base) & (places < base + len(pending))
            np.add.at(pending, places[mine] - base, counts[mine])
            base += len(pending)

    def save(self, state: SketchState) -> Arrays:
        """See `Operator.save`."""
        arrays: Arrays = {
            "reject_counts": to_bytes(json.dumps(state.reject_counts).encode()),
            "step": np.array(state.step, np.int64),
            "periods": np.array(list(state.units), np.int64),
            "windows": np.array(list(state.windows), np.int64),
        }
        for period, units in state.units.items():
            arrays |= {f"unit{period}/{name}": getattr(units, name) for name in UnitTable.NAMES}
        for window, levels in state.windows.items():
            for number, tables in enumerate(levels):
                for name, array in tables._asdict().items():
                    arrays[f"window{window}/{number}/{name}"] = array
        return arrays

    def load(self, arrays: Mapping[str, Array]) -> SketchState:
        """See `Operator.load`."""
        try:
            reject_counts = json.loads(bytes(arrays["reject_counts"]))
            state = SketchState(reject_counts=reject_counts, step=int(arrays["step"]))
            for period in arrays["periods"].tolist():
                state.units[period] = UnitTable(
                    *(arrays[f"unit{period}/{name}"].copy() for name in UnitTable.NAMES)
                )
            for window in arrays["windows"].tolist():
                state.windows[window] = [
                    table.load(_inside(arrays, f"window{window}/{number}/"))
                    for number, table in enumerate(self.tables)
                ]
        except (KeyError, ValueError, TypeError):
            raise StoreError("the saved arrays are not the state of this sketch query") from None
        return state

    def counters(self, state: SketchState) -> dict[str, int]:
        """See `Operator.counters`."""
        units = state.units.values()
        return {
            **state.reject_counts,
            "units": sum(table.units for table in units),
            "bytes": len(state.windows) * self.sketch.nbytes + sum(t.nbytes for t in units),
        }

    # ---- helpers

    def _items(self, prepared: Prepared) -> tuple[Items, Array]:
        """Every row's key and whether it can count; bad keys are counted by reason."""
        column = prepared.keys[0]
        good = np.asarray(pc.is_valid(column))
        leave_out(prepared, NULL_KEY, np.flatnonzero(~good))
        if isinstance(self.sketch, LazySketch):
            blank = pc.fill_null(column, 0 if pa.types.is_integer(column.type) else "")
            return key_words(blank).astype(np.uint64), good
        if isinstance(self.sketch, HeavyTexts):
            return self.sketch.items(pc.fill_null(column, "")), good
        if self.text_length:
            return text_words(pc.fill_null(column, ""), self.text_length), good
        if not pa.types.is_integer(column.type):
            raise PlanError("heavy hitters over text need the option text_length")
        values = np.asarray(pc.fill_null(column, 0))
        words = values.astype(np.uint64)
        fits = (values >= 0) & (words >> np.uint64(self.sketch.bits - 1) <= np.uint64(1))
        leave_out(prepared, OUT_OF_RANGE, np.flatnonzero(good & ~fits))
        return words, good & fits

    def _add(self, state: SketchState, delta: Mapping[str, Array]) -> None:
        """Counts accepted keys."""
        count(state.reject_counts, json.loads(bytes(delta["reject_counts"])))
        items = unpacked(delta)
        for window, mine in parts(spread_out(delta["window"], len(delta["unit"]))):
            levels = self._window(state, window)
            for number, words, weights in self.sketch.counted(chosen(items, mine), ONES):
                self.tables[number].count(levels[number], words, weights, NO_NOISE)

    def _window(self, state: SketchState, window: int) -> list[Tables]:
        if window not in state.windows:
            state.windows[window] = [table.init() for table in self.tables]
        return state.windows[window]

    def _answer(self, window: int, trigger: int, *shown: PublishedSketch) -> pa.Table:
        """The columns of a release, sorted by key: post-processing of published tables."""
        if not isinstance(self.sketch, LazySketch):
            found = self.sketch.shown(shown).top(self.k, beam=max(2 * self.k, 512))
            order = self._possible(found.keys, np.argsort(found.keys))
            values, sd = found.estimates[order], found.sd
            keys = self._found(found.keys[order])
        else:
            keys = key_column(self.keys)
            keys = keys.take(pc.sort_indices(keys))
            values, sd = shown[0].estimate(keys), shown[0].sd
        sds = np.full(len(values), sd)
        reach = reach_of(sds, quantile_of(self.confidence), 1 / self._weight)
        columns = {
            self.key_name: keys,
            self.name: values,
            f"{self.name}_sd": sds,
            f"{self.name}_low": values - reach,
            f"{self.name}_high": values + reach,
        }
        n = len(values)
        if not self.schedule.whole:
            kind = pa.timestamp("us", "UTC")
            for label, edge in zip(
                ("window_start", "window_end"), self.schedule.bounds(window), strict=True
            ):
                columns[label] = pa.array(np.full(n, edge), pa.int64()).cast(kind)
        columns["trigger"] = pa.array(np.full(n, trigger, np.int64))
        place = self.schedule.release_time(window, self.schedule.first_step(window) + trigger - 1)
        covered = UNHELD.format(100 * self.confidence)
        told = (covered, *[RARE] * bool(self.k), *self.omitted)
        return noted(pa.table(columns), "; ".join(told), place)

    def _possible(self, keys: Any, order: Array) -> Array:
        """The places of found keys that rows may have: words that are not text are noise."""
        if not self.text_length or isinstance(self.sketch, HeavyTexts):
            return order
        texts = words_bytes(keys, self.text_length)
        return order[[is_utf8(texts[place]) for place in order]] if len(order) else order

    def _found(self, keys: Any) -> pa.Array:
        """Found keys as values of their column."""
        if isinstance(self.sketch, HeavyTexts):
            return pa.array(keys, pa.string())
        if self.text_length:
            return pa.array(words_text(keys, self.text_length), pa.string())
        small = isinstance(self.sketch, HeavyHitters) and self.sketch.bits < 64
        return pa.array(keys.astype(np.int64) if small else keys)

    def _periods(self, event_us: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
        if self.periods is None:
            return np.zeros(len(event_us), np.int64)
        return self.periods.numbers(event_us)


def _inside(arrays: Mapping[str, Array], prefix: str) -> Arrays:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
