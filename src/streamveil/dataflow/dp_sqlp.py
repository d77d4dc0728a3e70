"""The published system, kept for comparison: DP-SQLP's release trees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamveil.core.accounting import portable
from streamveil.core.counters import CounterState as CounterState
from streamveil.core.noise import Address
from streamveil.core.noisy import Noisy, post_process, public, restored, values
from streamveil.core.selection.rounds import RoundSelection
from streamveil.dataflow.outputs import Totals
from streamveil.dataflow.release import (
    UNITS_LANE,
    AggregationPlan,
    Released,
    WindowState,
    publish_keys,
)
from streamveil.types import Array, Int64


def keep(last: Array, rows: Int64[Array, " some"], noisy: Noisy[Array]) -> None:
    """Stores the releases of some keys, in place: their answers until they release again."""
    last[rows] = values(noisy)


@dataclass(frozen=True, kw_only=True)
class RoundPlan(AggregationPlan):
    """Algorithm 3: one Honaker tree per key and lane, whose leaves are the key's releases.

    Proof: a unit's rows in one (key, lane) sum to at most rows * reach, over all its keys together
        too, so the trees move by at most sqrt(levels) * rows * reach in L2. `RestartingTrees` runs
        them with one draw each, which reveals no more.
    Error: keys between two releases keep the value of their last one.
    """

    def release(self, state: WindowState, at: Address) -> Released:
        """One trigger: selects, gives the buffers of selected keys to their trees."""
        trigger = state.trigger = state.trigger + 1
        table, chosen = state.table, state.selection
        assert isinstance(self.selection, RoundSelection)  # noqa: S101  (a type narrowing)
        pending = table.pending[: table.keys]
        chosen, passing = self.selection.step(
            chosen, pending[:, UNITS_LANE], table.names[: table.keys], trigger, at
        )
        passes, opened = np.zeros((2, table.keys), np.bool_)
        passes[passing] = True
        opened[state.published_rows] = True
        new = np.flatnonzero(passes & ~opened)
        publish_keys(self, state, new)
        lanes, shown = len(self.lanes), len(state.published_rows)
        state.lanes = [lane.grow(shown - lane.keys) for lane in state.lanes]
        chosen = dict(chosen)
        chosen["released"] = np.append(chosen["released"], np.zeros(len(new), np.int64))
        for name in ("last", "last_variance"):
            wider = np.zeros((lanes, shown))
            wider[:, : shown - len(new)] = chosen[name] if chosen[name].size else 0.0
            chosen[name] = wider
        now = np.flatnonzero(passes[state.published_rows])
        rows = state.published_rows[now]
        chosen["released"][now] += 1
        leaf = chosen["released"][now]
        for place, lane in enumerate(self.lanes):
            counter, grown = self.counters[place], self.release_trees[place]
            trees = state.lanes[place].whole.T.copy(), state.lanes[place].real.T.copy()
            draws = at.noise.at("dp-sqlp/release", at.job, place, at.window, trigger)
            noisy = grown.advance(
                trees, now, leaf, pending[rows, place + 1], (draws, table.names[rows], 1)
            )
            state.lanes[place] = CounterState(trigger, trees[0].T, trees[1].T)
            quantum = float(lane.quantum)
            keep(chosen["last"][place], now, post_process(np.multiply, noisy, quantum))
            if len(now):
                variance = public((portable(counter.std(leaf)) * quantum) ** 2)
                keep(chosen["last_variance"][place], now, variance)
        pending[rows, 1:] = 0
        state.selection = chosen
        last = restored(chosen["last"]), restored(chosen["last_variance"])
        return Released(state.published_rows, post_process(Totals, *last))

    def rounds_of(self, state: WindowState, rows: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
        """See `AggregationPlan`."""
        known = int(state.selection["keys"][0])
        rounds = np.append(state.selection["round"][:known], np.zeros(1, np.int64))
        return np.asarray(rounds[np.where(rows < known, rows, -1)])
