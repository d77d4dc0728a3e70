"""The exact account of the preset dp-sqlp: the inputs of the trees of every group and round.

As for other group-bys (`laid_open`), two runs on neighbouring inputs follow one transcript: which
groups are selected at which trigger, and what their trees release. A tree shows its exact sum plus
noise that is linear in its draws, so the loss of a unit in one tree is the Mahalanobis distance of
the difference of its sums under the covariance of that noise. A round in which the unit is alone is
in no common transcript: the chance that it is shown is charged to delta.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.special import ndtr

from streamveil.audit.account import (
    TOGETHER,
    Claims,
    MechanismLoss,
    QueryAccount,
    claims_of,
    same_tables,
)
from streamveil.audit.laid_open import Key, OpenNoise, Transcript, keys_of, played, spied
from streamveil.batch import Batch
from streamveil.core.counters.restarting_trees import RestartingTrees, closes
from streamveil.core.noisy import post_process
from streamveil.core.selection.rounds import FINE, RoundSelection
from streamveil.dataflow.group_by import GroupBy
from streamveil.types import Array, Float64

SELECT, MISSED = "dp-sqlp/select", "dp-sqlp/missed"
ALWAYS = 1 << 60  # an estimate that passes every threshold
Tree = tuple[str, int, int, Key, int]  # purpose, lane, window, group, trigger at which it began


@dataclass
class RoundsSeen:
    """The inputs of the trees of one run, by the number of their step."""

    entered: dict[Tree, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    noise: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    limits: Array = field(default_factory=lambda: np.zeros(0))  # by step of a round, in quanta
    tables: list[pa.Table] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass
class RoundsTold:
    """The selections and releases of the first of two runs."""

    selected: dict[tuple[int, int], set[Key]] = field(default_factory=dict)  # window, trigger
    totals: dict[tuple[Any, ...], int] = field(default_factory=dict)


def run_rounds(
    operator: GroupBy, batches: Iterable[Batch], script: Transcript, told: RoundsTold, seed: int
) -> RoundsSeen:
    """Runs the preset; the first run of a script leads, a later one follows."""
    spy = RoundSpy(RoundsSeen(), script, told)
    with spied(RestartingTrees, "advance", spy.advance), spied(RoundSelection, "step", spy.step):
        spy.seen.tables += [one.table for one in played(operator, batches, OpenNoise(seed))]
    script.leads = False
    return spy.seen


class RoundSpy:
    """The functions that note."""

    def __init__(self, seen: RoundsSeen, script: Transcript, told: RoundsTold) -> None:
        self.seen, self.script, self.told = seen, script, told

    def step(self, honest: Any, selection: Any, *given: Any) -> Any:
        """Notes one trigger of all selections; the follower selects the leader's groups."""
        _, _, names, trigger, at = given
        steps = range(len(self.seen.limits), selection.horizon + 1)
        limits = [selection.threshold(t) * FINE if t else np.inf for t in steps]
        self.seen.limits = np.append(self.seen.limits, limits)
        state, passing = honest(*given)
        if self.script.leads:
            self.told.selected[at.window, trigger] = {*keys_of(names[passing], len(passing))}
        return state, passing

    def advance(self, honest: Any, trees: RestartingTrees, *given: Any) -> Any:
        """Notes a step of some trees."""
        (_, real), rows, index, increments, (draws, names, steps) = given
        made = honest(*given)
        if draws.silent:
            self.seen.faults.append("a tree steps without noise")
        if draws.purpose == MISSED or not len(rows):
            return made
        laws = tuple(trees.weights.tolist()), tuple(trees.spreads.tolist())
        lane, window, trigger = self._place(draws)
        if self.seen.noise.setdefault(f"{draws.purpose} {lane}", laws) != laws or steps != 1:
            self.seen.faults.append(f"{draws.purpose}: the noise of trees changes")
        keys = keys_of(names, len(rows))
        for key, step, entered in zip(keys, index.tolist(), increments.tolist(), strict=True):
            begun = trigger - step if draws.purpose == SELECT else 0
            tree = self.seen.entered[draws.purpose, lane, window, key, begun]
            if step in tree:
                self.seen.faults.append(f"{draws.purpose}: one draw serves two releases")
            tree[step] = entered
        if draws.purpose == SELECT:
            found = self._decided(keys, window, trigger)
        else:
            own = {
                (lane, window, trigger, key): total
                for key, total in zip(keys, real[rows].sum(axis=1).tolist(), strict=True)
            }
            if self.script.leads:
                self.told.totals |= own
            found = tuple(self.told.totals.get(place, total) for place, total in own.items())
        return post_process(instead_of, made, found)

    def _place(self, draws: Any) -> tuple[int, int, int]:
        _, *path = draws.path
        return (0, *path) if draws.purpose == SELECT else tuple(path)  # type: ignore[return-value]

    def _decided(self, keys: list[Key], window: int, trigger: int) -> tuple[int, ...]:
        if self.script.leads:
            chosen = [self.script.at(window, key) <= trigger for key in keys]
        else:
            known = self.told.selected.get((window, trigger), set())
            chosen = [key in known for key in keys]
        return tuple(ALWAYS if one else -ALWAYS for one in chosen)


def instead_of(_: Array, told: tuple[int, ...]) -> Array:
    """The told groups, in place of the drawn ones."""
    return np.array(told, np.int64)


def account_of_rounds(operator: GroupBy, one: RoundsSeen, other: RoundsSeen) -> QueryAccount:
    """The account of the two runs of a pair of neighbours; the first has the unit's rows."""
    found = QueryAccount(faults=faults_of_rounds(one, other))
    judge_rounds(operator, claims_of(operator), (one, other), found)
    return found


def faults_of_rounds(one: RoundsSeen, other: RoundsSeen) -> list[str]:
    """The faults of two runs that are of no single group."""
    found = [*one.faults, *other.faults]
    if not same_tables(one, other):  # type: ignore[arg-type]  # of which only tables are read
        found.append("releases differ although noise and transcript are the same")
    return found


def judge_rounds(
    operator: GroupBy, claims: Claims, pair: tuple[RoundsSeen, RoundsSeen], found: QueryAccount
) -> None:
    """Adds the losses of one unit in every mechanism."""
    (one, other), lost, alone = pair, defaultdict[str, float](float), 0.0
    selection = operator.aggregation.selection
    assert isinstance(selection, RoundSelection)  # noqa: S101  (a type narrowing)
    for tree in {*one.entered, *other.entered}:
        purpose, lane, *_ = tree
        laws = one.noise.get(f"{purpose} {lane}") or other.noise[f"{purpose} {lane}"]
        a, b = one.entered.get(tree, {}), other.entered.get(tree, {})
        name = "selection" if purpose == SELECT else claims.lanes[lane]
        lost[name] += tree_loss(a, b, laws)
        if purpose == SELECT:
            alone += published_alone(one.limits, a, b, laws)
    counters = claims.counters | {"selection": float(selection.loss.gaussian)}
    found.parts = [
        MechanismLoss(name, "mu^2", lost.get(name, 0.0), claim) for name, claim in counters.items()
    ]
    total = sum(part.realised for part in found.parts)
    found.parts.append(MechanismLoss(TOGETHER, "mu^2", total, claims.together))
    found.parts.append(MechanismLoss("rounds of one unit", "delta", alone, claims.selection))


Laws = tuple[tuple[float, ...], tuple[float, ...]]


def tree_loss(a: dict[int, int], b: dict[int, int], laws: Laws) -> float:
    """The mu^2 of one tree, over the steps that both runs show."""
    last = max((*a, *b))
    moves = [a.get(t, 0) - b.get(t, 0) for t in range(1, last + 1)]
    if not any(moves):
        return 0.0
    shown = [t - 1 for t in range(1, last + 1) if t in a and t in b]
    path, noise = np.cumsum(np.array(moves, np.float64)), tree_noise(laws, last)
    root, seen = noise[shown], path[shown]
    return float(seen @ np.linalg.solve(root @ root.T, seen)) if len(shown) else 0.0


def published_alone(limits: Array, a: dict[int, int], b: dict[int, int], laws: Laws) -> float:
    """The chance that a round is shown while only this unit is in it."""
    chance, total, without = 0.0, 0, 0
    for t in sorted(a):
        total, without = total + a[t], without + b.get(t, 0)
        if total and not without:
            spread = tree_noise(laws, t)[-1]
            chance += float(ndtr((total - limits[t]) / sqrt(float(spread @ spread))))
    return chance


@lru_cache(maxsize=256)
def tree_noise(laws: Laws, steps: int) -> Float64[Array, "steps draws"]:
    """The move of each estimate by a draw of one standard deviation at each step."""
    return np.stack([_one_draw(laws, steps, place) for place in range(steps)], axis=1)


def _one_draw(laws: Laws, steps: int, drawn_at: int) -> Float64[Array, " steps"]:
    """The estimates from one draw alone, as `RestartingTrees` adds up blocks."""
    weights, spreads = laws
    top, held = len(weights) - 1, np.zeros(len(weights))
    found = np.zeros(steps)
    for place in range(steps):
        level = int(closes(place + 1, top + 1))
        done, offset = min(level, top), 0.0
        for inner in range(done):
            offset = (1 - weights[inner + 1]) * (offset + held[inner])
        noise = offset + (spreads[done] if place == drawn_at else 0.0)
        held[:done] = 0.0
        held[done] = held[done] + noise if level > top else noise
        found[place] = held.sum()
    return found
