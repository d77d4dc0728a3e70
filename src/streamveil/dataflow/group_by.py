"""The private continual group-by: the operator behind every GROUP BY over a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch, Release, ReleaseRun
from streamveil.core.noise import Address, Noise
from streamveil.core.noisy import Noisy, post_process
from streamveil.core.selection.gaussian import GaussianSelection
from streamveil.dataflow import stages
from streamveil.dataflow.cut_rows import Deviations
from streamveil.dataflow.grouping import NAMES_KEY, Grouping, HiddenTexts, ahead, facts_of, heading
from streamveil.dataflow.keys import Types
from streamveil.dataflow.release import Released, WindowState, driver, published_keys
from streamveil.dataflow.release_tables import (
    DrawnRelease,
    ReleasePoint,
    ReleaseShape,
    Stamp,
    floors_after,
    to_columns,
)
from streamveil.dataflow.rows import Prepared
from streamveil.dataflow.state import State
from streamveil.dataflow.windows import is_over
from streamveil.release_metadata import compact
from streamveil.types import Array

INSTANT = pa.timestamp("us", "UTC")


@dataclass(frozen=True, kw_only=True)
class GroupBy(Grouping):
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
        increment, and a late start never lengthens a column. Which keys are shown: see
        `GaussianSelection` and `SelectionTable`, to which `TotalTest` adds a delta. Weights of
        keys: `weighted_loss`. That a unit's fingerprint equals another's (probability at most
        max_units / 2^64 under the secret, which nothing else depends on) is a chance. All else is
        post-processing.
        *Rows that react to releases*: all bounds above hold on every path, so each Gaussian
        mechanism has a shift that is known given the past and bounded in L2 whatever the past was:
        mu-GDP against an adversary that writes the stream (Denisov et al. 2022, arXiv:2202.08312),
        and may choose as late as it likes in which period the unit's rows come. The windows of
        other periods then have the same law for both streams, so periods in windows of their own
        cost the maximum, not the sum: the loss still to come after any past is at most `loss`, but
        for the chance (`given_past`, see `accounts.ledger`). The same argument covers each key.
    Error: `std` and `threshold`; every released number carries its standard deviation.
    Memory: `memory`.
    Numerics: exact integers up to the counters, whose numerics are their own.
    """

    # ---- the operator protocol

    def init(self) -> State:
        """See `Operator.init`."""
        return State()

    def fold(self, state: State, batch: Batch, noise: Noise) -> dict[str, Array]:
        """See `Operator.fold`."""
        return stages.fold(self, state, batch, noise)

    def ahead(self, batches: Iterator[Batch], noise: Noise) -> Iterator[Batch]:
        """The same micro-batches, with the work that needs no state done in the calling thread."""
        return ahead(self, batches, noise)

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
            self.make_windows(state, np.array(new, np.int64), noise.derive(NAMES_KEY))
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
        return drawn

    def releases_of(self, drawn: Sequence[DrawnRelease]) -> list[ReleaseRun]:
        """See `Operator`. Uses only what was drawn and public numbers."""
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
        """The drawn parts of a release; notes for the window's next release what it needs."""
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
        """The columns of a release."""
        if types not in self._shapes:
            fields = tuple(pa.field(*key) for key in zip(self.key_names, types, strict=True))
            size = None if driver(self.aggregation.lanes) < 0 else self.aggregation.size_of_keys
            made = ReleaseShape(fields, self.outputs, self.confidence, size, self.true_intervals)
            self._shapes[types] = post_process(as_it_is, made)
        return self._shapes[types]

    def _moment(self, place: tuple[int, int, int]) -> ReleasePoint:
        """The public facts of a release; its intervals cover noise, selection, cut rows."""
        aggregation, (window, trigger, step) = self.aggregation, place
        test, selection, coins = aggregation.test, aggregation.selection, False
        shared, above, least, unit = None, 0.0, 0, 1.0  # totals are released in whole units
        if test is not None and (tested := test.before(trigger + 1)):
            coins, unit = aggregation.selected_by == "table", float(test.lane.quantum)
            shared = None if coins and tested[-1] < trigger else test.place
            above, least = test.threshold(tested[-1]) + 0.5, test.floor  # noise is rounded
        elif aggregation.shared is not None and isinstance(selection, GaussianSelection):
            shared = aggregation.shared
            above, least = selection.threshold(trigger), selection.floor
        said = heading(place, self._facts, self._hidden), self.schedule.release_time(window, step)
        spread = 0.0 if aggregation.cut is None else self._cut_deviations[trigger]
        stamps = self._stamps(window, trigger)
        ends = above * unit, least * unit, unit / 2
        return ReleasePoint(trigger, shared, *ends, coins, spread, stamps, *said)

    def expire(self, state: State, step: int) -> None:
        """Ends a step: forgets the units of periods that take no more rows after it."""
        state.step = step
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

    @cached_property
    def _shapes(self) -> dict[Types, Noisy[ReleaseShape]]:
        return {}

    @cached_property
    def _cut_deviations(self) -> Deviations:
        assert self.aggregation.cut is not None  # noqa: S101  (asked where rows are counted)
        return Deviations(self.aggregation.cut.counter)

    @cached_property
    def _facts(self) -> str:
        return compact(facts_of(self))[:-1]  # without the last brace

    @cached_property
    def _hidden(self) -> HiddenTexts:
        return HiddenTexts(self)

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
