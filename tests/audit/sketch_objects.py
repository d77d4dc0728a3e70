"""Sketches as Python has them: every kind, clock, counter and neighbour, by the account.

A run is given its items one by one, or tick by tick, and what it shows is kept after each push.
Two runs with the same noise differ by what one unit moved; a run without items shows the noise, and
its covariance over the pushes is measured over all cells (`streamveil.audit.laid_open_sketches`).
"""

import itertools
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from benchmarks.plain_sketches import PunctualSketch
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.noise import SeededNoise
from streamveil.sketches import HeavyHitters, HeavyTexts, LazySketch
from streamveil.types import Array
from tests.audit.raw_rows import pick

CELLS, MOST_RUNS, TOO_LARGE, ALIKE = 30_000, 24, 1e-12, 0.5
LONG = 12  # ticks or arrivals of a run
TEXTS = ("a", "ab", "abc", "abd", "xyz", "é", "", "long" * 20, "long" * 9)
RELATIONS = ("event", "add-remove", "event-change", "change-one")


def settings(rng):
    """What all kinds of sketches take."""
    protects = Neighbours("user", bound=int(pick(rng, (1, 1, 2, 3))), relation=pick(rng, RELATIONS))
    budget = Budget(epsilon=pick(rng, (0.5, 1, 4)), delta=pick(rng, (1e-3, 1e-4, 1e-9)))
    return {
        "horizon": pick(rng, (LONG, LONG, 2 * LONG, None)), "protects": protects, "budget": budget,
        "counter": pick(rng, ("blt-1", "blt-2", "tree", "tree-prf")),
        "max_weight": int(pick(rng, (1, 1, 2, 9))), "seed": int(rng.integers(100)),
    }  # fmt: skip


def made(rng):
    """One sketch, which may be refused."""
    some = settings(rng)
    name = pick(rng, ("lazy", "lazy", "punctual", "hitters", "texts"))
    if name == "texts":
        return HeavyTexts(length=int(pick(rng, (1, 2, 3, 40))), width=400, **some)
    some |= {
        "clock": pick(rng, ("arrivals", "ticks")), "flushes": int(pick(rng, (0, 0, 1))),
        "depth": int(pick(rng, (1, 2, 3))),
    }  # fmt: skip
    if name == "hitters":
        how = {"bits": 12, "digit": 5, "exact_cells": int(pick(rng, (4, 2**13)))}
        return HeavyHitters(width=4096, round=int(pick(rng, (1, 3))), **how, **some)
    some |= {"kind": pick(rng, ("count-min", "count-sketch")), "width": int(pick(rng, (200, 4000)))}
    if name == "punctual":
        return PunctualSketch(**some)
    block = max(1, some["width"] // int(pick(rng, (1, 2, 3))))
    calibration = pick(rng, ("analytic", "textbook")) if some["budget"].epsilon < 1 else "analytic"
    return LazySketch(round=int(pick(rng, (1, 3, 4))), block=block, calibration=calibration, **some)


def drawn(rng):
    """A sketch that is not refused."""
    while True:
        try:
            return made(rng)
        except ValueError:
            continue


def stream(rng, sketch):
    """(key, weight) of every item, by the tick or place that it comes at."""
    keys = TEXTS if isinstance(sketch, HeavyTexts) else tuple(range(2**12 - 5, 2**12))
    one = lambda: (pick(rng, keys), int(rng.integers(sketch.max_weight + 1)))  # noqa: E731
    if sketch.clock == "arrivals":
        return [[one()] for _ in range(LONG)]
    return [[one() for _ in range(int(rng.integers(1, 4)))] for _ in range(LONG)]


def pair(rng, sketch):
    """Two streams in which the items of one unit differ."""
    first = stream(rng, sketch)
    places = [(t, i) for t, here in enumerate(first) for i in range(len(here))]
    chosen = [places[n] for n in rng.permutation(len(places))[: int(sketch.protects.bound)]]
    key, other = stream(rng, sketch)[0][0][0], stream(rng, sketch)[-1][0][0]
    changed = sketch.protects.relation in ("event-change", "change-one")
    second = [list(here) for here in first]
    for t, i in chosen:
        first[t][i] = key, sketch.max_weight
        second[t][i] = (other, sketch.max_weight) if changed else (key, 0)  # blanked
    return first, second


def parts_of(live):
    """The tables of a live sketch."""
    return live._state if hasattr(live, "_state") else [live._tables]


def run(sketch, items, seed, leaves=None):
    """What every table shows after each step, and how often each block was pushed by then."""
    live, found = sketch.open(SeededNoise(seed)), []
    flush = getattr(sketch, "flushes", 0)
    for t, here in enumerate(items):
        keys, weights = [key for key, _ in here], np.array([w for _, w in here], np.int64)
        keys = keys if isinstance(sketch, HeavyTexts) else np.array(keys, np.uint32)
        if len(here):
            live.update(keys, weights)
        if sketch.clock == "ticks":
            live.tick()
        if flush and t == LONG // 2:
            found.append([(one.shown.copy(), one.pushes.copy()) for one in parts_of(live)])
            live.flush()
        found.append([(one.shown.copy(), one.pushes.copy()) for one in parts_of(live)])
        if leaves == t:  # kept and taken up again
            live = sketch.resume(live.save(), SeededNoise(seed))
    return found


def series(shown):
    """For each table, the value of every cell at each push that was seen: [cells, pushes]."""
    found = []
    for number, (first, _) in enumerate(shown[0]):
        pushes = np.stack([step[number][1] for step in shown])
        values = np.stack([step[number][0] for step in shown])
        width = first.shape[1]
        block = -(-width // pushes.shape[1])
        found += [
            values[:, :, column : column + block]
            .reshape(len(shown), -1)[
                np.flatnonzero(np.diff(pushes[:, column // block], prepend=0) > 0)
            ]
            .T.astype(np.float64)
            for column in range(0, width, block)
        ]
    return found


class CellNoise(NamedTuple):
    """What is shown without items: its covariance over pushes, and a bound that it is too small."""

    covariance: Array
    sure: float
    faults: list[str]

    @classmethod
    def of(cls, sketch, items, seed):
        """Over all cells and as many runs as `CELLS` takes."""
        blank = [
            [(key, 0) for key, _ in here] if sketch.clock == "arrivals" else [] for here in items
        ]
        first = run(sketch, blank, seed)
        cells = sum(one.size for one, _ in first[0])
        runs = min(MOST_RUNS, -(-CELLS // cells))
        quiet = [series(first), *(series(run(sketch, blank, seed + n)) for n in range(1, runs))]
        pushes = max(part.shape[1] for part in quiet[0])
        noise = np.concatenate([one for made in quiet for one in made if one.shape[1] == pushes])
        covariance = noise.T @ noise / len(noise)
        faults = alike(quiet[0])
        if np.linalg.eigvalsh(covariance)[0] <= 0:
            faults.append("a cell shows its count without noise")
        sure = float(chi2.ppf(TOO_LARGE, len(noise) - pushes + 1)) / len(noise)
        return cls(covariance, sure, faults)


def lost(sketch, sides, noise, seed):
    """(mu^2 that two streams lose, what is wrong)."""
    faults, total = list(noise.faults), 0.0
    if faults:
        return np.inf, faults
    one, other = (
        series(run(sketch, side, seed, leaves))
        for side, leaves in zip(sides, (None, LONG // 3), strict=True)
    )
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape:
            faults.append("when columns are pushed depends on the items")
            continue
        moved, few = b - a, a.shape[1]
        inverse = np.linalg.inv(noise.covariance[:few, :few])
        total += float(np.einsum("cp,pq,cq->", moved, inverse, moved)) * noise.sure
    return total, faults


def alike(parts):
    """Faults where blocks or tables draw the same noise."""
    lines = [part[:, 0] for part in parts if len(part) >= 1000]
    for one, other in itertools.combinations(lines, 2):
        cells = min(len(one), len(other))
        if abs(np.corrcoef(one[:cells], other[:cells])[0, 1]) > ALIKE:
            return ["one draw serves two cells"]
    return []


def name_of(sketch):
    """What is drawn, for the list of what was tried."""
    name = getattr(sketch, "kind", "hitters" if isinstance(sketch, HeavyHitters) else "texts")
    return f"{name} {sketch.clock}"


def judged(seed, pairs):
    """(sketch, the part of its claim that was lost, what is wrong) of pairs of one sketch."""
    rng = np.random.default_rng(seed)
    sketch = drawn(rng)
    claim, fits = sketch.guarantee.loss, sketch.guarantee.loss.fits(sketch.budget)
    noise = CellNoise.of(sketch, stream(rng, sketch), seed)
    for _ in range(pairs):
        found, faults = lost(sketch, pair(rng, sketch), noise, seed)
        yield (
            sketch,
            found / float(claim.gaussian),
            [*faults, *["the budget is not kept"] * (not fits)],
        )
