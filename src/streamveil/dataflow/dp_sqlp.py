"""The published system, kept for comparison: DP-SQLP's selection in rounds and release trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from scipy.special import ndtr, ndtri

from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters.protocol import Counter
from streamveil.core.counters.protocol import CounterState as CounterState
from streamveil.core.counters.restarting_trees import Grove, restart
from streamveil.core.noise.keyed import Address
from streamveil.core.noisy import Noisy, post_process, public, restored, values
from streamveil.core.portable import portable
from streamveil.core.selection.thresholds import SAFETY
from streamveil.core.sensitivity import Bounds
from streamveil.counters import HonakerCounter
from streamveil.dataflow.outputs import Totals
from streamveil.dataflow.release import (
    UNITS_LANE,
    AggregationPlan,
    Released,
    WindowState,
    open_keys,
)
from streamveil.types import Array, Exact, Float64, Int64, UInt64

Thresholds = Literal["rigorous", "published"]
FINE = 1024  # quanta per unit in a selection tree: rounding becomes negligible
WORDS = 1 << 22  # random words that are held at a time for keys that missed triggers


def grove_of(counter: HonakerCounter) -> Grove:
    """Trees of the shape and noise of a counter."""
    return Grove(levels=counter.levels, sigma=float(np.nextafter(float(counter.sigma), np.inf)))


def keep(last: Array, rows: Int64[Array, " some"], noisy: Noisy[Array]) -> None:
    """Notes what some keys release, in place: it is their answer until they release again."""
    last[rows] = values(noisy)


@dataclass(frozen=True, kw_only=True)
class RoundSelection:
    """Algorithm 2 of DP-SQLP: a Honaker tree on distinct units, restarted after every release.

    Algorithm: Zhang et al. (2023, arXiv:2303.18086), Algorithms 2 and 4. A key with units in its
        current round is selected when the tree's estimate exceeds a threshold that depends on the
        step of the round; then its buffer is released and a new round begins at the next trigger.
        Every trigger of every key is executed with the noise of its own address, so what
        Algorithm 4 would simulate ahead and what is used later are the same numbers.
    Protects: all rows of one unit, which adds at most 1 to a (key, round) and enters at most
        `rows` of them: `max_rows` of the bounds.
    Guarantee: a Gaussian of mu^2 = rows * levels / sigma^2 and delta = rows * (failure of a round).
    Proof: as `GaussianSelection`, with (key, round) in place of keys: which round it is, is public.
        A round that holds u alone has count 1; it is shown by chance with probability at most
        `beta` if the thresholds hold for all triggers together. Corrections to the publication:
        - `rigorous` thresholds hold for all triggers of a round together (beta / T each) and leave
          room for the unit's own count; the published ones hold for one trigger without it. `loss`
          adds up what all triggers cost with either: `failure`;
        - a key's earlier, untested units enter its tree (they are counted from the first);
        - all parts compose as one Gaussian mechanism instead of by advanced composition.
    """

    once: ClassVar[bool] = False
    restarts: ClassVar[bool] = True
    counter: HonakerCounter  # in quanta of 1 / FINE
    bounds: Bounds
    beta: float
    floor: int = 1
    thresholds: Thresholds = "rigorous"

    def __post_init__(self) -> None:
        if self.bounds.max_rows is None:
            raise ValueError("rounds need a bound on the rows of a unit")

    @property
    def rows(self) -> int:
        """(key, round) pairs that one unit enters, at most."""
        return self.bounds.max_rows or 0

    @property
    def loss(self) -> Loss:
        """See the class."""
        squared = self.counter.loss(FINE).gaussian * self.rows  # that many trees, one unit each
        return Loss(gaussian=squared, delta=self.rows * Fraction(self.failure))

    @cached_property
    def failure(self) -> float:
        """The chance that a round with one unit alone is shown at any trigger, rounded up.

        `Grove` rounds one draw a block about past estimates: no further than rounded nodes.
        """
        steps = np.arange(1, self.counter.horizon + 1)
        limits = np.array([self.threshold(int(step)) for step in steps])
        needed = (limits - 1) * FINE - self.counter.rounding(steps)  # from the Gaussian part alone
        return float(ndtr(-needed / self.counter.std(steps)).sum()) * (1 + 1e-9)

    def threshold(self, step: int) -> float:
        """Units that the estimate must exceed at a step of a round."""
        at = np.array([step])
        sd, rounding = (float(of(at)[0]) / FINE for of in (self.counter.std, self.counter.rounding))
        if self.thresholds == "published":
            return float(portable(self.floor - 1 - sd * float(ndtri(self.beta))))
        share = self.beta / self.counter.horizon
        above = self.floor + rounding - sd * float(ndtri(share * (1 - 1e-9)))
        return float(portable(above * SAFETY))

    def deviation(self, trigger: int) -> float:
        """Standard deviation of a tree's count in a round's first release, in units."""
        return float(portable(self.counter.std(np.array([trigger]))[0])) / FINE

    def init(self, trigger: int) -> dict[str, Array]:
        """No keys."""
        return grove_of(self.counter).init() | {
            "released": np.zeros(0, np.int64),  # leaves used in the release trees, as opened
            "last": np.zeros((0, 0)), "last_variance": np.zeros((0, 0)),
        }  # fmt: skip

    def step(
        self,
        state: dict[str, Array],
        units: Int64[Array, " keys"],
        names: UInt64[Array, "keys 2"],
        trigger: int,
        at: Address,
    ) -> tuple[dict[str, Array], Int64[Array, " passing"]]:
        """Runs every key's tree one step, in place; which keys are selected.

        New keys are caught up: the steps that they missed are executed without increments.
        """
        grove, known, n = grove_of(self.counter), int(state["keys"][0]), len(names)
        grove.add_keys(state, n - known)
        trees = state["whole"], state["real"]
        fresh = np.arange(known, n)
        if trigger > 1:
            draws, part = at.noise.at("dp-sqlp/missed", at.job, at.window), WORDS // trigger + 1
            for start in range(0, len(fresh), part):
                some = fresh[start : start + part]
                index, nothing = np.full(len(some), trigger - 1), np.zeros(len(some), np.int64)
                grove.advance(trees, some, index, nothing, (draws, names[some], trigger - 1))
        added = units * FINE
        state["units"][:n] += units
        units[:] = 0
        index = trigger - state["begun"][:n]
        draws = at.noise.at("dp-sqlp/select", at.job, at.window, trigger)
        estimate = grove.advance(trees, np.arange(n), index, added, (draws, names, 1))
        passes = (state["units"][:n] > 0) & (values(estimate) > self._limits[index])
        restart(state, passes, trigger)
        return state, np.flatnonzero(passes)

    @cached_property
    def _limits(self) -> Float64[Array, " steps"]:
        """Thresholds by step of a round, in quanta."""
        steps = range(1, self.counter.horizon + 1)
        return np.array([np.inf, *(self.threshold(t) for t in steps)]) * FINE


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """Rounds discover groups: what bounds and triggers do not imply."""

    noise: Exact  # of a tree
    beta: float
    floor: int = 1
    thresholds: Thresholds = "rigorous"

    @property
    def slots(self) -> None:
        """A unit is counted in every round that it enters."""

    def over(
        self, counted: Callable[[Exact], Counter], bounds: Bounds, triggers: int | None
    ) -> RoundSelection:
        """See `core.mechanism.Discovery`."""
        counter = counted(self.noise)
        if not isinstance(counter, HonakerCounter):
            raise ValueError("rounds are counted by Honaker's trees")
        return RoundSelection(
            counter=counter, bounds=bounds, beta=self.beta, floor=self.floor,
            thresholds=self.thresholds,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RoundPlan(AggregationPlan):
    """Algorithm 3: one Honaker tree per key and lane, whose leaves are the key's releases.

    Proof: a unit's rows in one (key, lane) sum to at most rows * reach, over all its keys together
        too, so the trees move by at most sqrt(levels) * rows * reach in L2. `Grove` runs them with
        one draw each, which tells no more.
    Error: keys between two releases keep the value of their last one.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(lane.kind == "units" for lane in self.lanes):
            raise ValueError("a unit is new in every round: rounds count no units")

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
        opened[state.open_rows] = True
        new = np.flatnonzero(passes & ~opened)
        open_keys(self, state, new)
        lanes, shown = len(self.lanes), len(state.open_rows)
        state.lanes = [lane.grow(shown - lane.keys) for lane in state.lanes]
        chosen = dict(chosen)
        chosen["released"] = np.append(chosen["released"], np.zeros(len(new), np.int64))
        for name in ("last", "last_variance"):
            wider = np.zeros((lanes, shown))
            wider[:, : shown - len(new)] = chosen[name] if chosen[name].size else 0.0
            chosen[name] = wider
        now = np.flatnonzero(passes[state.open_rows])
        rows = state.open_rows[now]
        chosen["released"][now] += 1
        leaf = chosen["released"][now]
        for place, lane in enumerate(self.lanes):
            counter = self.counters[place]
            assert isinstance(counter, HonakerCounter)  # noqa: S101  (a type narrowing)
            trees = state.lanes[place].whole.T.copy(), state.lanes[place].real.T.copy()
            draws = at.noise.at("dp-sqlp/release", at.job, place, at.window, trigger)
            noisy = grove_of(counter).advance(
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
        return Released(state.open_rows, post_process(Totals, *last))

    def rounds_of(self, state: WindowState, rows: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
        """See `AggregationPlan`."""
        known = int(state.selection["keys"][0])
        rounds = np.append(state.selection["round"][:known], np.zeros(1, np.int64))
        return np.asarray(rounds[np.where(rows < known, rows, -1)])
