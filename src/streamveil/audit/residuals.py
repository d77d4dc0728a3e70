"""A sequential test of the noise that a query draws, valid at any time.

The auditor made the rows, so the exact total of every lane is known: the released number less the
total is noise. Under the claim it is a Gaussian of at least the deviation that the query states. A
bettor stakes on less: the likelihood ratio of a Gaussian with part of the deviation, mixed over
`PARTS`. For noise as wide as claimed, or wider, the product of the ratios over independent groups
is a supermartingale that begins at 1, so it ever passes 1 / alpha with chance at most alpha (Ville
1939): the test may stop at any group.

Every lane is attacked by itself, at its first and its last trigger, so a lane without noise is seen
at any budget. Groups have more units than any selection needs, so the noise does not decide which
are published; the lane is read as it is, before anything clips or orders it. A lane whose lattice
is as coarse as its noise is not tested, and is reported as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log

import numpy as np

from streamveil.audit.pipeline import STRIDE, Scenario, is_answer, unbroken
from streamveil.audit.reduced import MOST_UNITS, STEP, STEPS, around, reduced
from streamveil.batch import Release
from streamveil.compiler.group_by import compile_plan
from streamveil.core.counters import CounterState
from streamveil.core.counters.blt import BltCounter
from streamveil.core.noise import KeyedNoise, Noise, SilentNoise
from streamveil.core.release import blt_of
from streamveil.core.selection.gaussian import GaussianSelection
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.outputs import Output
from streamveil.dataflow.release import WindowState
from streamveil.dataflow.state import State
from streamveil.plan import Plan
from streamveil.types import Array, Float64

PARTS = (0.5, 0.7, 0.85)  # parts of the claimed deviation on which the bettor stakes
COARSE = 2.0  # deviation, in steps of the lattice, below which noise is not like a Gaussian
GROUPS = 400  # independent draws of every lane
Cell = tuple[int, int, str]  # a trigger, a window and a lane
Cells = dict[Cell, tuple[Array, Array]]  # values and deviations of all copies
SURE = 12  # a group has this many times the units at which half of groups are published


@dataclass(frozen=True)
class NoiseTest:
    """The test of one lane: the largest stake, and after how many groups it passed 1 / alpha."""

    lane: str
    groups: int  # looked at
    growth: float  # the logarithm of the largest stake
    refuted_after: int | None  # groups

    @property
    def is_tested(self) -> bool:
        """Whether its noise is like a Gaussian, as the test requires."""
        return self.groups > 0

    @property
    def stands(self) -> bool:
        """Whether the noise may be as claimed."""
        return self.refuted_after is None


def bet(standard: Float64[Array, " n"], alpha: float, lane: str = "") -> NoiseTest:
    """Bets that noise, divided by the claimed deviation, has a deviation below 1.

    >>> bet(np.full(100, 0.3), 1e-6).refuted_after is not None
    True
    >>> bet(np.full(100, 1.5), 1e-6).stands
    True
    """
    parts = np.array(PARTS)[:, None]
    ratios = -np.log(parts) - standard[None, :] ** 2 / 2 * (1 / parts**2 - 1)
    return staked(ratios, alpha, lane)


def staked(ratios: Float64[Array, "others n"], alpha: float, lane: str) -> NoiseTest:
    """The test with equal stakes on some laws, given by the logarithms of likelihood ratios."""
    stakes = np.logaddexp.reduce(np.cumsum(ratios, axis=1), axis=0) - log(len(ratios))
    over = np.flatnonzero(stakes >= log(1 / alpha))
    most = float(stakes.max(initial=0.0))
    return NoiseTest(lane, ratios.shape[1], most, int(over[0]) + 1 if len(over) else None)


def bare(operator: GroupBy) -> GroupBy:
    """The query with its bare lanes as columns."""
    lanes = range(len(operator.aggregation.lanes))
    outputs = tuple(Output(name=f"lane{place}", function="sum", lanes=(place,)) for place in lanes)
    return replace(operator, outputs=outputs)


def crowded(operator: GroupBy) -> Scenario:
    """One group that is published whatever the noise, all of its units at the first trigger."""
    units = min(MOST_UNITS, SURE * around(operator))
    rows = tuple((unit, 0, 1, STEP - 1, 0.0) for unit in range(units))
    return Scenario(name="a crowd", background=rows, added=(), steps=STEPS)


def noise_tests(
    plan: Plan, alpha: float, change: Callable[[GroupBy], GroupBy] = lambda operator: operator
) -> list[NoiseTest]:
    """Tests every lane of the reduced query; each test errs with chance `alpha` at most.

    `change` may plant a fault in the running query. Presets other than the default have no such
    lanes.
    """
    if plan.preset != "default":
        return []
    claimed = compile_plan(reduced(plan, GROUPS))
    noises = KeyedNoise.fresh(), KeyedNoise.fresh()
    return list(lane_tests(claimed, change(claimed), noises, alpha))


def lane_tests(
    claimed: GroupBy, running: GroupBy, noises: tuple[Noise, Noise], alpha: float
) -> Iterator[NoiseTest]:
    """The tests of lanes; `noises`: for the run, and for a run with the claimed deviations."""
    crowd = crowded(claimed)
    expected = Expected.of(claimed, crowd, noises[1])
    yield from expected.tests(shown_cells(running, crowd, noises[0]), alpha)


def shown_cells(operator: GroupBy, crowd: Scenario, noise: Noise) -> Cells:
    """The lanes that a run of the crowd shows."""
    return cells_of(unbroken(bare(operator), crowd.batches(GROUPS, with_unit=False), noise))


@dataclass(frozen=True)
class Expected:
    """The exact lanes of the crowd, and their claimed deviations."""

    lanes: tuple[str, ...]
    exact: Cells
    claimed: Cells

    @classmethod
    def of(cls, operator: GroupBy, crowd: Scenario, noise: Noise) -> Expected:
        """The exact lanes from a run without noise, the deviations from an honest run."""
        kinds = tuple(f"{p} ({lane.kind})" for p, lane in enumerate(operator.aggregation.lanes))
        exact, honest = (shown_cells(operator, crowd, one) for one in (SilentNoise(), noise))
        return cls(kinds, exact, honest)

    def tests(self, found: Cells, alpha: float) -> Iterator[NoiseTest]:
        """Tests of every lane at its first and its last trigger, if these are shown."""
        for place, label in enumerate(self.lanes):
            name = f"lane{place}"
            known = self.exact.keys() & self.claimed.keys()
            cells = [cell for cell in found if cell[2] == name and cell in known]
            if not cells:
                yield NoiseTest(label, 0, 0.0, None)
                continue
            ends = sorted({min(cells), max(cells)})
            share = alpha / len(self.lanes) / len(ends)
            tests = [bet(self.standard(cell, found), share, label) for cell in ends]
            yield min(tests, key=lambda test: (test.stands, -test.growth))

    def standard(self, cell: Cell, found: Cells) -> Float64[Array, " n"]:
        """Noise over the claimed deviation; empty if the lattice is as coarse as the noise."""
        values, centre = found[cell][0], self.exact[cell][0][0]
        spread, steps = self.claimed[cell][1].min(), np.diff(np.unique(values))
        coarse = not len(steps) or spread < COARSE * steps.min()
        return np.asarray((values - centre)[: 0 if coarse else None] / spread)


def cells_of(releases: list[Release]) -> Cells:
    """The values and deviations of the crowded group of every copy, by trigger, window, lane."""
    found: Cells = {}
    for release in releases:
        table = release.table
        mine = table.column("key").to_numpy() % STRIDE == 0
        for name in [one for one in table.column_names if is_answer(one, table)]:
            values, spreads = (table.column(one).to_numpy()[mine] for one in (name, name + "_sd"))
            if mine.any():
                found[release.trigger, release.window, name] = values, spreads
    return found


# ---- the noise in a state directory, against its claim
#
# A continual counter keeps its noise in a few buffers, from which later noise is made. They are
# linear in all draws so far, so under the claim they are Gaussian with a covariance that follows
# from public numbers, whatever the rows were and however often the job was stopped, moved or
# upgraded. Divided by its root they are independent standard numbers, and `bet` stakes that they
# are narrower. Nothing is drawn, charged or written, and the result is a function of noise alone.
#
# The tests use groups that were shown at a window's first trigger (for a Gaussian selection, all).
# Groups with weights, and counters other than BLTs, are not tested, and are reported as such.

SINGULAR = 1e-9  # below it, a covariance is singular: some buffers follow from others


def running_tests(operator: GroupBy, state: State, alpha: float) -> Iterator[NoiseTest]:
    """Tests every lane of all open windows, and the selection; each errs with chance <= `alpha`."""
    aggregation = operator.aggregation
    windows = [held for held in state.windows.values() if held.trigger]
    share = alpha / (len(aggregation.spans) + 1)
    for number, (place, last) in enumerate(aggregation.spans):
        counter, label = blt_of(aggregation.counters[place]), f"{place} to {last - 1}"
        label = f"{place} ({aggregation.lanes[place].kind})" if last == place + 1 else label
        if place == aggregation.shared:
            continue
        if counter is None or aggregation.rule is not None:
            yield NoiseTest(label, 0, 0.0, None)
            continue
        found = [
            standard(counter, held.lanes[number], last - place, first_shown(held))
            for held in windows
        ]
        yield bet(np.concatenate([*found, np.zeros(0)]), share, label)
    chosen = aggregation.selection
    if isinstance(chosen, GaussianSelection) and (counter := blt_of(chosen.counter)) is not None:
        states = [CounterState.from_arrays(held.selection) for held in windows]
        found = [standard(counter, one, 1, one.keys) for one in states]
        yield bet(np.concatenate([*found, np.zeros(0)]), share, "selection")


def first_shown(held: WindowState) -> int:
    """The number of groups with noise from a window's first step on; they come first."""
    triggers, sizes = held.cohorts
    return int(sizes[0]) if len(sizes) and triggers[0] == 1 else 0


def standard(
    counter: BltCounter, held: CounterState, lanes: int, keys: int
) -> Float64[Array, " n"]:
    """Independent standard numbers from the buffers of `keys` groups."""
    covariance = buffer_covariance(counter, held.t)
    buffers = held.real.reshape(len(covariance), lanes, -1)[:, :, :keys]
    kept = independent(covariance)
    root = np.linalg.cholesky(covariance[np.ix_(kept, kept)])
    moved = buffers[kept].reshape(len(kept), -1)
    return np.asarray(np.linalg.solve(root, moved).T.reshape(-1))


def independent(covariance: Float64[Array, "n n"]) -> list[int]:
    """Buffers such that none follows from the others."""
    scale = np.sqrt(np.maximum(np.diag(covariance), np.finfo(float).tiny))
    alike, kept = covariance / np.outer(scale, scale), [0]
    for place in range(1, len(covariance)):
        some = [*kept, place]
        if np.linalg.eigvalsh(alike[np.ix_(some, some)])[0] > SINGULAR:
            kept = some
    return kept


def buffer_covariance(counter: BltCounter, steps: int) -> Float64[Array, "n n"]:
    """The covariance of the buffers after `steps` steps, by the law of each step."""
    plan = counter.schedule
    keep = np.asarray(plan.keep)
    through, ones, found = np.diag(keep), np.ones(len(keep)), np.zeros((len(keep), len(keep)))
    for _ in range(steps):
        found = through @ found @ through.T + counter.noise_scale**2 * np.outer(ones, ones)
    return found
