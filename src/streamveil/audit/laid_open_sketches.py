"""The account of a sketch query: the moves of its cells by one unit, under the noise they draw.

A cell shows its running count plus noise that does not depend on the rows, so the moves by one unit
are the differences of two runs with the same noise. A run without rows shows the noise alone: its
covariance over the triggers of a window is measured over the cells of each level, and gives the
Mahalanobis distance of the difference, with a known chance of being too large (`TOO_LARGE`). The
noise of different cells, levels and windows has to be independent, or their losses would not add
up: equal draws are a fault.

The account does not see the loss by collisions of fingerprints, nor by the sampler's distance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from scipy.stats import chi2

from streamveil.audit.account import TOGETHER, MechanismLoss, QueryAccount
from streamveil.audit.laid_open import replaced
from streamveil.audit.neighbours import Pair, World
from streamveil.batch import Batch
from streamveil.core.counters.cell_kernels import ReleasedCells, Tables
from streamveil.core.noise import SeededNoise
from streamveil.core.noisy import Noisy
from streamveil.sketches import table
from streamveil.sketches.operator import SketchQuery
from streamveil.types import Array, Float64

Level = tuple[int, int]  # a window and the number of one of its tables
CELLS = 50_000  # cells over which a covariance is measured
MOST_RUNS = 24  # for tables with few cells
TOO_LARGE = 1e-12  # the chance that a loss is stated too large
ALIKE = 0.5  # correlation that independent noise does not reach
CHECKED = 1_000  # cells whose noise is compared, at least
FEWEST = 200  # least cells for comparing noise: fewer are alike by chance


@dataclass
class CellsSeen:
    """The cells that one run of a sketch query showed."""

    shown: dict[Level, list[Array]] = field(default_factory=dict)  # at each trigger
    answers: list[pa.Table] = field(default_factory=list)


def run_sketch(
    operator: SketchQuery, batches: Iterable[Batch], seed: int, leader: CellsSeen | None = None
) -> CellsSeen:
    """Runs a sketch query; a follower answers from the cells that its leader showed."""
    seen, noise, state = CellsSeen(), SeededNoise(seed), operator.init()
    honest: Callable[[Tables], Noisy[ReleasedCells]] = vars(table)["released"]
    places: Iterator[Level] = iter(())

    def released(tables: Tables) -> Noisy[ReleasedCells]:
        place = next(places)
        mine = seen.shown.setdefault(place, [])
        mine.append(tables.shown.copy())
        known = leader.shown.get(place, []) if leader else []
        told = known[len(mine) - 1] if len(mine) <= len(known) else mine[-1]
        return honest(tables._replace(shown=told))

    with replaced(table, "released", released):
        for batch in batches:
            operator.fold(state, batch, noise)
            if batch.closes_step:
                windows = operator.schedule.active(batch.step)
                places = itertools.product(windows, range(len(operator.tables)))
                releases = operator.release(state, batch.step, noise)
                seen.answers += [release.table for release in releases]
    return seen


@dataclass
class CellNoise:
    """The noise of the cells of every window and level, as it was measured without rows."""

    roots: dict[Level, Float64[Array, "triggers triggers"]] = field(default_factory=dict)
    sure: dict[Level, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, runs: SketchQuery, world: World, steps: int) -> CellNoise:
        """Measures the noise over the steps of the longest pair."""
        silent = Pair(shared=(), added=(), ahead=True, steps=steps)
        cells = min(one.layout.cells for one in runs.tables)
        made = [
            run_sketch(runs, silent.batches(world, with_unit=False), seed).shown
            for seed in range(min(MOST_RUNS, -(-CELLS // cells)))
        ]
        found = cls()
        series = {
            place: np.concatenate(
                [np.stack([one.reshape(-1) for one in run[place]], axis=1) for run in made]
            ).astype(np.float64)
            for place in made[0]
        }
        for place, noise in series.items():
            cells, triggers = noise.shape
            covariance = noise.T @ noise / cells
            if np.linalg.eigvalsh(covariance)[0] <= 0:
                found.faults.append("a cell shows its count without noise")
                continue
            found.roots[place] = np.linalg.cholesky(np.linalg.inv(covariance))
            found.sure[place] = float(chi2.ppf(TOO_LARGE, cells - triggers + 1)) / cells
        found.faults += alike({place: series[place][:, 0] for place in found.roots}, runs)
        return found

    def loss(self, place: Level, moved: Float64[Array, "cells triggers"]) -> float:
        """The mu^2 of the differences of two runs in the cells of one level."""
        if place not in self.roots or not moved.any():
            return 0.0
        triggers = moved.shape[1]
        root = self.roots[place]
        if triggers < len(root):  # the window was cut short: only those triggers count
            whole = np.linalg.inv(root @ root.T)[:triggers, :triggers]
            root = np.linalg.cholesky(np.linalg.inv(whole))
        return float(((moved @ root) ** 2).sum()) * self.sure[place]


def alike(first: dict[Level, Float64[Array, " cells"]], runs: SketchQuery) -> list[str]:
    """Faults where rows of a table, levels or windows draw the same noise."""
    lines: list[Array] = []
    for (_, number), noise in first.items():
        layout = runs.tables[number].layout
        lines += list(noise[: layout.cells].reshape(layout.depth, layout.width))
        lines += [noise[1 : layout.cells], noise[layout.cells :]]
    pairs = [
        *itertools.combinations(lines, 2),
        *itertools.combinations(first.values(), 2),  # of levels with few cells: over all runs
    ]
    for one, other in pairs:
        cells = min(len(one), len(other))
        if (
            cells >= max(FEWEST, min(CHECKED, len(lines[0])))
            and abs(np.corrcoef(one[:cells], other[:cells])[0, 1]) > ALIKE
        ):
            return ["one draw serves two cells"]
    return []


def sketch_account(
    operator: SketchQuery, sides: tuple[CellsSeen, CellsSeen], noise: CellNoise
) -> QueryAccount:
    """The account of the two runs of a pair of neighbours; the first leads."""
    led, followed = sides
    found = QueryAccount(faults=list(noise.faults))
    if led.answers != followed.answers:
        found.faults.append("releases differ although noise and transcript are the same")
    lost = 0.0
    for place in {*led.shown, *followed.shown}:
        one, other = led.shown.get(place, []), followed.shown.get(place, [])
        if len(one) != len(other):
            found.faults.append("a unit moves when a window is released")
            continue
        moved = np.stack([(b - a).reshape(-1) for a, b in zip(one, other, strict=True)], axis=1)
        lost += noise.loss(place, moved.astype(np.float64))
    claim = float(operator.guarantee.loss.gaussian)
    found.parts.append(MechanismLoss(TOGETHER, "mu^2", lost, claim))
    return found
