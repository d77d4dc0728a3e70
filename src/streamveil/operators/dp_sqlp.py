"""The published system, kept for comparison: DP-SQLP's selection in rounds and release trees."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from scipy.special import ndtri

from streamveil.mechanisms.counters import HonakerCounter
from streamveil.mechanisms.counters.protocol import State as CounterState
from streamveil.mechanisms.counters.tree import refined_variances
from streamveil.operators.outputs import Totals
from streamveil.operators.release import UNITS_LANE, Released, Totalling, WindowState, open_keys
from streamveil.operators.selection import Address
from streamveil.privacy.guarantee import Loss
from streamveil.privacy.noise import Draws
from streamveil.privacy.samplers import rounded_gaussian_for
from streamveil.types import Array, Bool, Float64, Int64, UInt64

Thresholds = Literal["rigorous", "published"]
FINE = 1024  # quanta per unit in a selection tree: rounding becomes negligible


@dataclass(frozen=True, kw_only=True)
class RoundSelection:
    """Algorithm 2 of DP-SQLP: a Honaker tree on distinct units, restarted after every release.

    Algorithm: Zhang et al. (2023, arXiv:2303.18086), Algorithms 2 and 4. A key with units in its
        current round is selected when the tree's estimate exceeds a threshold that depends on the
        step of the round; then its buffer is released and a new round begins at the next trigger.
        Every trigger of every key is executed with the noise of its own address, so what
        Algorithm 4 would simulate ahead and what is used later are the same numbers.
    Protects: all rows of one unit, which adds at most 1 to a (key, round) and enters at most
        `rows` of them.
    Guarantee: a Gaussian of mu^2 = rows * levels / sigma^2 and delta = rows * (failure of a round).
    Proof: as `GaussianSelection`, with (key, round) in place of keys: which round it is, is public.
        A round that holds u alone has count 1; it is shown by chance with probability at most
        `beta` if the thresholds hold for all triggers together. Corrections to the publication:
        - `rigorous` thresholds hold for all triggers of a round together (beta / T each) and leave
          room for the unit's own count; the published ones hold for one trigger, so that the delta
          of all triggers is T times larger, which `loss` then says;
        - a key's earlier, untested units enter its tree (they are counted from the first);
        - all parts compose as one Gaussian mechanism instead of by advanced composition.
    """

    counter: HonakerCounter  # in quanta of 1 / FINE
    rows: int  # C
    beta: float
    floor: int = 1
    thresholds: Thresholds = "rigorous"

    @property
    def loss(self) -> Loss:
        """See the class."""
        tests = self.counter.horizon if self.thresholds == "published" else 1
        squared = self.counter.loss(FINE).gaussian * self.rows  # that many trees, one unit each
        return Loss(gaussian=squared, delta=Fraction(self.rows) * Fraction(self.beta) * tests)

    def threshold(self, step: int) -> float:
        """Units that the estimate must exceed at a step of a round."""
        sd = float(self.counter.std(np.array([step]))[0]) / FINE
        if self.thresholds == "published":
            return self.floor - 1 - sd * float(ndtri(self.beta))
        share = self.beta / self.counter.horizon
        return (self.floor - sd * float(ndtri(share * (1 - 1e-9)))) * (1 + 1e-9)

    def init(self, trigger: int) -> dict[str, Array]:
        """No keys."""
        levels = self.counter.levels
        none = np.zeros(0, np.int64)
        return {
            "round": none, "begun": none, "units": none,
            "whole": np.zeros((levels, 0), np.int64), "real": np.zeros((levels, 0)),
            "released": none,  # leaves used in the release trees, by order of opening
            "last": np.zeros((0, 0)), "last_variance": np.zeros((0, 0)),
        }  # fmt: skip

    def step(
        self,
        state: dict[str, Array],
        units: Int64[Array, " keys"],
        names: UInt64[Array, "keys 2"],
        trigger: int,
        at: Address,
    ) -> tuple[dict[str, Array], Bool[Array, " keys"]]:
        """Runs every key's tree one step; which keys are selected. New keys are caught up."""
        known, n = len(state["round"]), len(names)
        levels = self.counter.levels
        pad = np.zeros(n - known, np.int64)
        rounds, begun = np.append(state["round"], pad), np.append(state["begun"], pad)
        count = np.append(state["units"], pad) + units
        whole = np.concatenate([state["whole"], np.zeros((levels, n - known), np.int64)], axis=1)
        real = np.concatenate([state["real"], np.zeros((levels, n - known))], axis=1)
        fresh = np.arange(known, n)
        late = whole[:, fresh], real[:, fresh]
        for past in range(1, trigger if len(fresh) else 1):
            tree_step(self.counter, late, np.full(len(fresh), past), pad,
                      (self._draws(past, at), names[fresh]))  # fmt: skip
        whole[:, fresh], real[:, fresh] = late
        index = trigger - begun
        estimate = tree_step(
            self.counter, (whole, real), index, units * FINE, (self._draws(trigger, at), names)
        )
        limits = np.array([np.inf, *(self.threshold(t) for t in range(1, trigger + 1))]) * FINE
        passes = (count > 0) & (estimate > limits[index])
        rounds[passes] += 1
        begun[passes] = trigger
        count[passes] = 0
        whole[:, passes], real[:, passes] = 0, 0.0
        after = {**state, "round": rounds, "begun": begun, "units": count,
                 "whole": whole, "real": real}  # fmt: skip
        return after, passes

    def _draws(self, trigger: int, at: Address) -> Draws:
        """Every key runs each trigger once, in whatever round, so the trigger is address enough."""
        return at.noise.at("dp-sqlp/select", at.job, at.window, trigger)


@dataclass(frozen=True, kw_only=True)
class RoundTotalling(Totalling):
    """Algorithm 3: one Honaker tree per key and lane, whose leaves are the key's releases.

    Proof: a unit's rows in one (key, lane) sum to at most rows * reach, over all its keys together
        too, so the trees move by at most sqrt(levels) * rows * reach in L2.
    Error: keys between two releases keep the value of their last one.
    """

    def release(self, state: WindowState, at: Address) -> Released:
        """One trigger: selects, gives the buffers of selected keys to their trees."""
        trigger = state.trigger = state.trigger + 1
        table, chosen = state.table, state.selection
        assert isinstance(self.selection, RoundSelection)  # noqa: S101  (a type narrowing)
        pending = table.pending[: table.keys]
        chosen, passes = self.selection.step(
            chosen, pending[:, UNITS_LANE].copy(), table.names[: table.keys], trigger, at
        )
        pending[:, UNITS_LANE] = 0
        opened = np.zeros(table.keys, np.bool_)
        opened[state.open_rows] = True
        new = np.flatnonzero(passes & ~opened)
        open_keys(self, state, new)
        lanes, shown = len(self.lanes), len(state.open_rows)
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
            counted = state.lanes[place]
            part = counted.whole[:, now], counted.real[:, now]
            draws = at.noise.at("dp-sqlp/release", at.job, place, at.window, trigger)
            noisy = tree_step(counter, part, leaf, pending[rows, place + 1],
                              (draws, table.names[rows]))  # fmt: skip
            whole, real = counted.whole.copy(), counted.real.copy()
            whole[:, now], real[:, now] = part
            state.lanes[place] = CounterState(trigger, whole, real)
            quantum = float(lane.quantum)
            chosen["last"][place, now] = noisy * quantum
            if len(now):
                chosen["last_variance"][place, now] = (counter.std(leaf) * quantum) ** 2
        pending[rows, 1:] = 0
        state.selection = chosen
        return Released(state.open_rows, Totals(chosen["last"], chosen["last_variance"]))

    def rounds_of(self, state: WindowState, rows: Int64[Array, " rows"]) -> Int64[Array, " rows"]:
        """The current round of some keys by row number; -1 (a key never seen) is in round 0."""
        rounds = np.append(state.selection["round"], np.zeros(1, np.int64))
        return np.asarray(rounds[np.where(rows < len(rounds) - 1, rows, -1)])


def tree_step(
    counter: HonakerCounter,
    tree: tuple[Int64[Array, "levels keys"], Float64[Array, "levels keys"]],
    index: Int64[Array, " keys"],
    increments: Int64[Array, " keys"],
    at: tuple[Draws, UInt64[Array, "keys 2"]],
) -> Float64[Array, " keys"]:
    """`HonakerCounter.step` for keys that are at different steps, in place."""
    whole, real = tree
    draws, names = at
    top = counter.levels - 1
    level = np.zeros(len(index), np.int64)
    for bit in range(1, top + 2):
        level[index % (1 << bit) == 0] = bit
    done = np.minimum(level, top)
    weights, sigma = refined_variances(counter.levels), float(counter.sigma)
    noise = np.zeros((top + 1, len(index)))
    most = int(done.max(initial=0)) + 1
    if len(index):
        drawn = rounded_gaussian_for(draws, names, np.zeros((len(index), most)), sigma)
        noise[:most] = drawn.T
    block = increments.copy()
    estimate = block + noise[0]
    for inner in range(most - 1):
        closes = np.flatnonzero(done > inner)
        block[closes] += whole[inner, closes]
        inside = estimate[closes] + real[inner, closes]
        weight = weights[inner + 1]
        whole_estimate = block[closes] + noise[inner + 1, closes]
        estimate[closes] = weight * whole_estimate + (1 - weight) * inside
        whole[inner, closes], real[inner, closes] = 0, 0.0
    keys, again = np.arange(len(index)), level > top
    whole[done, keys] = np.where(again, whole[done, keys] + block, block)
    real[done, keys] = np.where(again, real[done, keys] + estimate, estimate)
    return np.asarray(real.sum(axis=0))
