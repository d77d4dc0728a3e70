"""Groups selected again and again: the published system's rounds, with corrected thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from streamveil.compiled import ndtr, ndtri
from streamveil.core.accounting import exact_between, portable
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters.restarting_trees import (
    RestartingTrees,
    restart,
    tree_loss,
    tree_rounding,
    tree_std,
)
from streamveil.core.noise import Address
from streamveil.core.noisy import values
from streamveil.core.selection import Counted, Held, Names, PerKey, Stepped
from streamveil.core.selection.gaussian import SAFETY
from streamveil.core.sensitivity import Bounds
from streamveil.errors import require_one_of, require_positive
from streamveil.types import Array, Exact, Float64

Thresholds = Literal["rigorous", "published"]
FINE = 1024  # quanta per unit in a selection tree: rounding becomes negligible
WORDS = 1 << 22  # random words that are held at a time for keys that missed triggers


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
    Proof: as `GaussianSelection`, with (key, round) in place of keys: the round is public.
        A round that holds u alone has count 1; it is published by chance with probability at most
        `beta` if the thresholds hold for all triggers together. Corrections to the publication:
        - `rigorous` thresholds hold for all triggers of a round together (beta / T each) and leave
          room for the unit's own count; the published ones hold for one trigger without it. `loss`
          adds up what all triggers cost with either: `failure`;
        - a key's earlier, untested units enter its tree (they are counted from the first);
        - all parts compose as one Gaussian mechanism instead of by advanced composition.
    """

    once: ClassVar[bool] = False
    restarts: ClassVar[bool] = True
    horizon: int  # triggers of a window: no round is longer
    noise: Exact  # of a node, in quanta of 1 / FINE
    bounds: Bounds
    beta: float
    floor: int = 1
    thresholds: Thresholds = "rigorous"

    def __post_init__(self) -> None:
        require_positive(horizon=self.horizon, noise=self.noise, floor=self.floor)
        require_one_of("thresholds", self.thresholds, ("rigorous", "published"))
        if self.bounds.max_rows is None:
            raise ValueError("rounds need a bound on the rows of a unit")
        exact_between("beta", self.beta, 0, 1)

    @cached_property
    def trees(self) -> RestartingTrees:
        """One for each key and round."""
        return RestartingTrees.over(self.horizon, self.noise)

    @property
    def rows(self) -> int:
        """(key, round) pairs that one unit enters, at most."""
        return self.bounds.max_rows or 0

    @property
    def loss(self) -> Loss:
        """See the class."""
        one = tree_loss(self.noise, self.trees.levels, FINE)
        squared = one.gaussian * self.rows  # that many trees, one unit each
        return Loss(gaussian=squared, delta=self.rows * Fraction(self.failure))

    @cached_property
    def failure(self) -> float:
        """The chance that a round with one unit alone is published at any trigger, rounded up.

        `RestartingTrees` rounds one draw a block about past estimates: no further than nodes.
        """
        steps, levels = np.arange(1, self.horizon + 1), self.trees.levels
        limits = np.array([self.threshold(int(step)) for step in steps])
        needed = (limits - 1) * FINE - tree_rounding(levels, steps)  # from the Gaussian part alone
        return float(ndtr(-needed / tree_std(self.noise, levels, steps)).sum()) * (1 + 1e-9)

    def threshold(self, step: int) -> float:
        """Units that the estimate must exceed at a step of a round."""
        at, levels = np.array([step]), self.trees.levels
        sd = float(tree_std(self.noise, levels, at)[0]) / FINE
        rounding = float(tree_rounding(levels, at)[0]) / FINE
        if self.thresholds == "published":
            return float(portable(self.floor - 1 - sd * float(ndtri(self.beta))))
        share = self.beta / self.horizon
        above = self.floor + rounding - sd * float(ndtri(share * (1 - 1e-9)))
        return float(portable(above * SAFETY))

    def deviation(self, trigger: int) -> float:
        """Standard deviation of a tree's count in a round's first release, in units."""
        sd = tree_std(self.noise, self.trees.levels, np.array([trigger]))
        return float(portable(sd[0])) / FINE

    def init(self, trigger: int) -> Held:
        """No keys."""
        return self.trees.init() | {
            "released": np.zeros(0, np.int64),  # leaves used in the release trees, as opened
            "last": np.zeros((0, 0)), "last_variance": np.zeros((0, 0)),
        }  # fmt: skip

    def step(self, state: Held, units: PerKey, names: Names, trigger: int, at: Address) -> Stepped:
        """Runs every key's tree one step, in place; which keys are selected.

        New keys are caught up: the steps that they missed are executed without increments.
        """
        trees, known, n = self.trees, int(state["keys"][0]), len(names)
        trees.add_keys(state, n - known)
        held = state["whole"], state["real"]
        fresh = np.arange(known, n)
        if trigger > 1:
            draws, part = at.noise.at("dp-sqlp/missed", at.job, at.window), WORDS // trigger + 1
            for start in range(0, len(fresh), part):
                some = fresh[start : start + part]
                index, nothing = np.full(len(some), trigger - 1), np.zeros(len(some), np.int64)
                trees.advance(held, some, index, nothing, (draws, names[some], trigger - 1))
        added = units * FINE
        state["units"][:n] += units
        units[:] = 0
        index = trigger - state["begun"][:n]
        draws = at.noise.at("dp-sqlp/select", at.job, at.window, trigger)
        estimate = trees.advance(held, np.arange(n), index, added, (draws, names, 1))
        passes = (state["units"][:n] > 0) & (values(estimate) > self._limits[index])
        restart(state, passes, trigger)
        return state, np.flatnonzero(passes)

    @cached_property
    def _limits(self) -> Float64[Array, " steps"]:
        """Thresholds by step of a round, in quanta."""
        steps = range(1, self.horizon + 1)
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

    def over(self, counted: Counted, bounds: Bounds, triggers: int | None) -> RoundSelection:
        """See `core.mechanism.Discovery`."""
        if triggers is None:
            raise ValueError("rounds need to know the number of triggers")
        return RoundSelection(
            horizon=triggers, noise=self.noise, bounds=bounds, beta=self.beta, floor=self.floor,
            thresholds=self.thresholds,
        )  # fmt: skip
