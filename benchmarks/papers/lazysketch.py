"""The experiments of LazySketch (Holland 2025, arXiv:2507.03361v4), and what they leave open.

Figure 4: (a) CPU time and (b) error against memory, (c) error against depth, (d) against skew,
(e, f) against epsilon; heavy hitters of a trace against memory and epsilon. Expected: the paper's
ordering (lazy below punctual) at the paper's widths, our form ten times or more below both; error
that stops falling where noise rules; time that stays flat in memory but for punctual, which grows
with the width. New: throughput against slack, error against round length, counters, estimators, the
epsilon that textbook noise really needs, what noise costs; heavy hitters over 16 releases, against
the beam, over traces of other shapes, and beside references without privacy (`lazysketch_heavy`).

Streams: bounded Zipf, 2^20 arrivals over 10^6 ids. Errors: mean relative error of the true top 15,
averaged over 0.62, 0.81 and 1 of the stream, since at a power of two the paper's tree is at its
luckiest instant. Bars are standard errors over trials. The trace is synthetic (26.6 million
addresses, about 309 thousand distinct); `--trace FILE` takes a file of uint32 addresses instead.

    python -m benchmarks.papers.lazysketch [--trials 10] [--only NAME] [--trace FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections import deque
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.papers.lazysketch_heavy import HEAVY, Trace
from benchmarks.papers.lazysketch_plots import FIGURES, bars, draw, sweep
from benchmarks.plain_sketches import CountMin, CountSketch
from benchmarks.saved import save
from benchmarks.sketches import BUDGET, IDS, LENGTH, TIMES, TOP, lazy, trace, zipf
from streamveil.compiled import njit
from streamveil.core.accounting import Budget
from streamveil.core.counters.cell_kernels import finish
from streamveil.core.counters.cells import CellCounter
from streamveil.core.noise import SeededNoise
from streamveil.core.noise.bulk.gaussian import (
    PIECE,
    new_scratch,
    round_about,
    standard_pairs,
)
from streamveil.core.noise.bulk.keystream import GROUP, fill, key_schedule
from streamveil.sketches.cell_noise import row_norm

RESULTS = Path(__file__).parents[1] / "results" / "lazysketch.json"
KILOBYTES = (24, 72, 240, 720, 2400)
SKEWS = (1.05, 1.1, 1.3, 1.7, 2.1, 2.5)
EPSILONS = (0.05, 0.1, 0.3, 1.0, 3.0)
DEPTHS = (1, 2, 3, 5, 9)
# widths that the paper names at 24 KB; bytes per cell otherwise
LAZY_WIDTHS = {24: 55, 72: 150, 240: 588, 720: 1935, 2400: 8000}
PUNCTUAL_BYTES = 92  # a cell of our tree over 2^20 pushes
PUNCTUAL_WIDTHS = {24: 33, 72: 100, 240: 333, 720: 1000, 2400: 3333}


@lru_cache(maxsize=4)
def stream(skew: float, trial: int):
    """Keys and, at each of TIMES, the true top keys with their counts."""
    keys = zipf(skew, 100 + trial)
    tops = []
    for share in TIMES:
        counts = np.bincount(keys[: int(share * LENGTH)], minlength=IDS)
        names = np.argpartition(-counts, TOP)[:TOP].astype(np.uint32)
        tops.append((names, counts[names]))
    return keys, tops


def paper_lazy(kilobytes: int, seed: int, **options):
    """The paper's form, 55 columns at a time (the same law; a lag of at most one round)."""
    width = options.pop("width", LAZY_WIDTHS[kilobytes])
    return lazy(width, **(dict(round=width, block=width, seed=seed, counter="tree",
                               calibration="textbook") | options))  # fmt: skip


def paper_punctual(kilobytes: int, seed: int, **options):
    """Noise of the punctual tree at T pushes; see `punctual_error`."""
    return lazy(PUNCTUAL_WIDTHS[kilobytes], round=1, block=PUNCTUAL_WIDTHS[kilobytes], seed=seed,
                counter="tree-prf", calibration="textbook", **options)  # fmt: skip


def ours(kilobytes: int, seed: int, **options):
    """10 bytes a cell; rounds of a 256th of the stream."""
    depth = options.get("depth", 3)
    width = options.pop("width", kilobytes * 1000 // (10 * depth))
    return lazy(width, **(dict(round=LENGTH // 256, block=width, seed=seed) | options))


def run(make, skew: float, trial: int, readings: dict) -> dict[str, float]:
    """Mean relative error by reading, for one run of a sketch."""
    keys, tops = stream(skew, trial)
    config = make(trial)
    live = config.open(SeededNoise(trial)) if hasattr(config, "open") else config
    totals, at = dict.fromkeys(readings, 0.0), 0
    for share, (names, counts) in zip(TIMES, tops, strict=True):
        live.update(keys[at : int(share * LENGTH)])
        at = int(share * LENGTH)
        shown = live.published() if hasattr(live, "published") else live
        for label, options in readings.items():
            error = np.abs(shown.estimate(names, **options) / counts - 1).mean()
            totals[label] += float(error) / len(TIMES)
    return totals


def run_punctual(config, skew: float, trial: int) -> dict[str, float]:
    """The punctual sketch at TIMES: exact table plus tree noise of its exact law.

    Its table is exact as of now; the noise of push t is a sum of popcount(t) rounded Gaussians,
    drawn here directly instead of a million times.
    """
    keys, tops = stream(skew, trial)
    exact = CountMin(depth=config.depth, width=config.width, seed=config.seed)
    rng = np.random.default_rng(trial)
    total, at = 0.0, 0
    for share, (names, counts) in zip(TIMES, tops, strict=True):
        until = int(share * LENGTH)
        exact.update(keys[at:until])
        at = until
        nodes = int(until).bit_count()
        noise = np.rint(rng.normal(0, config.sigma, (nodes, *exact.table.shape))).sum(axis=0)
        noisy = CountMin(depth=config.depth, width=config.width, seed=config.seed)
        noisy.table = exact.table + noise.astype(np.int64)
        total += float(np.abs(noisy.estimate(names) / counts - 1).mean()) / len(TIMES)
    return {"min": total}


READ_PAPER = {"min": {"method": "min"}}
READ_OURS = {"ours": {}, "lag": {"lag_corrected": True}}


def compare(skew: float, trial: int, kilobytes: int, *, depth: int = 3, budget: Budget = BUDGET,
            fixed_width: bool = False) -> dict[str, float]:  # fmt: skip
    """One trial of every sketch at one setting."""
    fields = dict(depth=depth, budget=budget)
    textbook = budget.epsilon < 1
    paper = fields if textbook else fields | {"calibration": "analytic"}
    width = {} if not fixed_width else {"width": kilobytes * 1000 // 30}
    mine = run(lambda i: ours(kilobytes, i, **fields, **width), skew, trial, READ_OURS)
    signed = run(lambda i: ours(kilobytes, i, kind="count-sketch", **fields, **width), skew, trial,
                 {"ours": {}})  # fmt: skip
    wide = int(kilobytes * 1000 // 12) if fixed_width else int(kilobytes * 1000 // (4 * depth))
    return {
        "CMS (not private)": run(lambda i: CountMin(depth=depth, width=wide, seed=i), skew, trial,
                                 {"min": {}})["min"],
        "CS (not private)": run(lambda i: CountSketch(depth=depth, width=wide, seed=i), skew, trial,
                                {"min": {}})["min"],
        "PunctualCMS, paper": run_punctual(
            _analytic(paper_punctual, kilobytes, trial, paper), skew, trial)["min"],
        "LazyCMS, paper": run(lambda i: paper_lazy(kilobytes, i, **paper), skew, trial,
                              READ_PAPER)["min"],
        "LazyCMS, ours": mine["ours"],
        "LazyCMS, ours, lag": mine["lag"],
        "LazyCS, ours": signed["ours"],
    }  # fmt: skip


def _analytic(make, kilobytes, trial, fields):
    fields = dict(fields)
    if fields.pop("calibration", None):
        config = make(kilobytes, trial, depth=fields["depth"])
        return replace(config, budget=fields["budget"], calibration="analytic")
    return make(kilobytes, trial, **fields)


ERROR = "mean relative error, top 15"


@njit(cache=True)
def stack_update(exact, noise, sizes, times, cell, count, sigma) -> None:
    """The paper's counter: a stack of noisy nodes, a normal for the leaf and for every merge."""
    times[cell] += 1
    top = sizes[cell]
    exact[cell, top], noise[cell, top] = count, np.random.normal(0.0, sigma)  # noqa: NPY002 (compiled)
    t = times[cell]
    while not t & 1:
        top -= 1
        exact[cell, top] += exact[cell, top + 1]
        noise[cell, top] = np.random.normal(0.0, sigma)  # noqa: NPY002 (compiled)
        t >>= 1
    sizes[cell] = top + 1


@njit(cache=True)
def paper_stream(places, width, punctual, sigma) -> float:
    """The paper's lazy or punctual sketch over a stream, as it is written."""
    depth, length = places.shape
    cells = depth * width
    exact, noise = np.zeros((cells, 24), np.int64), np.zeros((cells, 24))
    sizes, times = np.zeros(cells, np.int64), np.zeros(cells, np.int64)
    pending = np.zeros(cells, np.int64)
    for t in range(length):
        for row in range(depth):
            pending[row * width + places[row, t]] += 1
        first, last = (0, width) if punctual else (t % width, t % width + 1)
        for row in range(depth):
            for column in range(first, last):
                cell = row * width + column
                stack_update(exact, noise, sizes, times, cell, pending[cell], sigma)
                pending[cell] = 0
    return noise.sum() + exact.sum()


def one_by_one(width: int, keys: np.ndarray) -> dict[str, float]:
    """DataSketches, called once a key."""
    try:
        from datasketches import count_min_sketch
    except ImportError:
        return {}
    sketch, held = count_min_sketch(3, width), keys.tolist()
    start = time.thread_time()
    deque(map(sketch.update, held), maxlen=0)
    return {"DataSketches (not private)": (time.thread_time() - start) * LENGTH / len(held)}


def figure_4a(trials: int) -> dict:
    def one(kilobytes, trial):
        keys = stream(1.3, 0)[0]
        kept = {
            "CMS (not private)": CountMin(width=kilobytes * 1000 // 12),
            "CS (not private)": CountSketch(width=kilobytes * 1000 // 12),
            "LazyCMS, ours": ours(kilobytes, 0).open(SeededNoise(0)),
            "LazyCS, ours": ours(kilobytes, 0, kind="count-sketch").open(SeededNoise(0)),
        }
        out = one_by_one(kilobytes * 1000 // 12, keys[: 2**14])
        for name, sketch in kept.items():
            start = time.thread_time()
            sketch.update(keys)
            out[name] = time.thread_time() - start
        for name, config, length in (
            ("LazyCMS, paper", paper_lazy(kilobytes, 0), 2**16),
            ("PunctualCMS, paper", paper_punctual(kilobytes, 0), 2**8),
            ("PunctualCS, paper", paper_punctual(kilobytes, 0, kind="count-sketch"), 2**8),
        ):
            places = config.layout.columns(keys[:length]).astype(np.int64)
            start = time.thread_time()
            paper_stream(places, config.width, int(name.startswith("Punctual")), config.sigma)
            out[name] = (time.thread_time() - start) * LENGTH / length
        width = kilobytes * 1000 // (3 * PUNCTUAL_BYTES)
        live = lazy(width, round=1, block=width, counter="tree").open(SeededNoise(0))
        start = time.thread_time()
        live.update(keys[: 2**8])
        out["PunctualCMS, ours"] = (time.thread_time() - start) * LENGTH / 2**8
        return out

    one(24, 0)
    lines = sweep(KILOBYTES, one, max(3, trials // 2))
    draw(lines, "4a", "memory, KB", "CPU seconds for 2^20 keys",
         "4a: time (the paper's forms scaled up from a part of the stream)")  # fmt: skip
    return lines


def figure_4b(trials: int) -> dict:
    lines = sweep(KILOBYTES, lambda kb, i: compare(1.3, i, kb), trials)
    draw(lines, "4b", "memory, KB", ERROR, "4b: epsilon 0.3, skew 1.3")
    return lines


def figure_4c(trials: int) -> dict:
    lines = sweep(DEPTHS, lambda d, i: compare(1.3, i, 24, depth=d, fixed_width=True), trials)
    same = sweep(DEPTHS, lambda d, i: {"LazyCMS, ours, 24 KB": run(
        lambda s: ours(24, s, depth=d), 1.3, i, READ_OURS)["ours"]}, trials)  # fmt: skip
    draw(lines | same, "4c", "depth at the width of 24 KB and depth 3", ERROR,
         "4c: epsilon 0.3, skew 1.3")  # fmt: skip
    return lines | same


def figure_4d(trials: int) -> dict:
    lines = sweep(SKEWS, lambda skew, i: compare(skew, i, 24), trials)
    draw(lines, "4d", "skew", ERROR, "4d: 24 KB, epsilon 0.3", logs="y")
    return lines


def figure_4e(trials: int, skew: float = 1.1, name: str = "4e") -> dict:
    lines = sweep(EPSILONS, lambda e, i: compare(
        skew, i, 24, budget=Budget(epsilon=e, delta=1e-3)), trials)  # fmt: skip
    draw(lines, name, "epsilon", ERROR, f"{name}: 24 KB, skew {skew}")
    return lines


def figure_4f(trials: int) -> dict:
    return figure_4e(trials, 2.1, "4f")


def figure_rounds(trials: int) -> dict:
    rounds = [2**k for k in range(9, 17)]

    def one(length, trial):
        return {f"skew {skew}, {label}": value for skew in (1.1, 1.3, 2.1) for label, value in run(
            lambda i: ours(24, i, round=length), skew, trial, READ_OURS).items()}  # fmt: skip

    lines = sweep(rounds, one, trials)
    draw(lines, "rounds", "arrivals in a round", ERROR, "Noise against lag, 24 KB, epsilon 0.3")
    return lines


def figure_counters(trials: int) -> dict:
    sizes = [2**k for k in range(5, 15)]
    lines = {
        name: [(n, float(CellCounter(name, n).column_norm * row_norm(
            CellCounter(name, n), np.arange(1, n + 1)).max()), 0.0) for n in sizes]
        for name in ("tree", "blt-1", "blt-2")
    }  # fmt: skip
    draw(lines, "counters", "pushes of a cell", "largest sd / noise of one release",
         "What a counter in a cell costs")  # fmt: skip
    shown = {"blt-1": 800, "blt-2": 571, "tree-prf": 1333}

    def make(name):
        return lambda i: lazy(
            shown[name], round=LENGTH // 256, block=shown[name], seed=i, counter=name
        )

    def one(skew, trial):
        return {
            f"{name}, w={width}": run(make(name), skew, trial, READ_OURS)["lag"]
            for name, width in shown.items()
        }

    errors = sweep((1.1, 1.3, 1.7, 2.1), one, trials)
    draw(errors, "counters_error", "skew", ERROR, "Counters at 24 KB, lag corrected", logs="y")
    return {"norms": lines, "errors": errors}


def figure_estimators(trials: int) -> dict:
    readings = {"min": {"method": "min"}, "median": {"method": "median"}, "calibrated": {},
                "calibrated, lag corrected": {"lag_corrected": True}}  # fmt: skip
    lines = sweep(SKEWS, lambda skew, i: run(lambda s: ours(24, s), skew, i, readings), trials)
    draw(lines, "estimators", "skew", ERROR, "One published sketch, four readings", logs="y")
    return lines


def figure_slack(trials: int) -> dict:
    keys, floor = stream(1.3, 0)[0], CountMin(width=2000)

    def cpu(task):
        start = time.thread_time()
        task()
        return (time.thread_time() - start) / LENGTH * 1e9

    def one(slack, trial):
        out = {"CMS (not private)": cpu(lambda: floor.update(keys))}
        for label, width, counter in (("LazyCMS, ours", 800, "blt-1"), ("blt-2", 571, "blt-2"),
                                      ("tree-prf", 1333, "tree-prf")):  # fmt: skip
            live = lazy(width, round=int(slack) * width, block=width, counter=counter).open(
                SeededNoise(1))  # fmt: skip
            out[label] = cpu(lambda live=live: live.update(keys))
        return {name: 1e3 / value for name, value in out.items()}

    one(8, 0)
    lines = sweep((1, 2, 4, 8, 16, 32), one, max(trials, 10))
    draw(lines, "slack", "arrivals per pushed column", "million keys per CPU second",
         "Throughput at 24 KB, skew 1.3, exact noise included", logs="x")  # fmt: skip
    return lines


def figure_spent(trials: int) -> dict:
    """The epsilon that textbook noise really gives at delta = 1e-3."""
    points = []
    for epsilon in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9):
        config = paper_lazy(24, 0, budget=Budget(epsilon=epsilon, delta=1e-3))
        points.append((epsilon, config.guarantee.epsilon(1e-3), 0.0))
    lines = {"textbook": points, "analytic": [(e, e, 0.0) for e, _, _ in points]}
    draw(lines, "spent", "epsilon asked for", "epsilon needed", "Textbook noise is too large")
    return lines


@njit(cache=True)
def repeated(stage, keys, tables, scratch, times) -> None:
    """One stage of a push, again and again, on a piece of cells."""
    pending, buffer, shown = tables
    for number in range(times):
        if stage == 0:
            fill(keys, 32 * number, scratch.words, PIECE // 2 // GROUP)
        elif stage == 1:
            standard_pairs(scratch.words, PIECE // 2, PIECE // 2, scratch.normal)
        elif stage == 2:
            round_about(26.8, 2.0**-20, scratch.normal, buffer, scratch.noise)
        else:
            finish(shown, pending, buffer, scratch.noise, np.int32(2**26), np.int32(10))


def figure_noise_cost(trials: int) -> dict:
    """CPU ns of one noised cell by stage, beside ready-made normals."""
    keys = key_schedule(SeededNoise(1).at("cost"))
    scratch, times = new_scratch(), 2000
    tables = np.zeros(PIECE, np.int16), np.zeros(PIECE, np.int32), np.zeros(PIECE, np.int32)
    rng, fast = np.random.default_rng(1), np.random.Generator(np.random.SFC64(1))
    many, single = np.empty(2**18), np.empty(2**18, np.float32)
    stages = ("AES-256 in counter mode", "Gaussian pairs", "rounding about a buffer",
              "buffer, shown, pending")  # fmt: skip
    tasks = {name: (lambda stage=stage: repeated(stage, keys, tables, scratch, times),
                    PIECE * times) for stage, name in enumerate(stages)}  # fmt: skip
    tasks |= {
        "ready normals, PCG64, double": (lambda: rng.standard_normal(out=many), many.size),
        "ready normals, PCG64, single": (
            lambda: rng.standard_normal(dtype=np.float32, out=single), many.size),
        "ready normals, SFC64, single": (
            lambda: fast.standard_normal(dtype=np.float32, out=single), many.size),
        "os.urandom, 8 bytes": (lambda: os.urandom(2**18), 2**15),
    }  # fmt: skip
    rows = {name: [] for name in tasks}
    for number in range(2 * trials + 1):
        for name, (task, draws) in tasks.items():
            start = time.thread_time_ns()
            task()
            if number:  # the first round compiles
                rows[name].append((time.thread_time_ns() - start) / draws)
    bars(rows, "noise_cost", "CPU ns a draw", "What the noise of one cell costs", stages)
    return rows


FIGURES_BY_NAME = {
    "4a": figure_4a, "4b": figure_4b, "4c": figure_4c, "4d": figure_4d, "4e": figure_4e,
    "4f": figure_4f, "rounds": figure_rounds, "counters": figure_counters,
    "estimators": figure_estimators, "slack": figure_slack, "spent": figure_spent,
    "noise_cost": figure_noise_cost,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--only", nargs="*", choices=[*FIGURES_BY_NAME, *HEAVY])
    parser.add_argument("--trace", help="a file of uint32 addresses")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    FIGURES.mkdir(parents=True, exist_ok=True)
    saved = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    traced = None
    for name in options.only or [*FIGURES_BY_NAME, *HEAVY]:
        start = time.perf_counter()
        if name in HEAVY:
            if traced is None:
                keys = np.fromfile(options.trace, np.uint32) if options.trace else trace()
                traced = Trace(keys)
            saved[name] = HEAVY[name](min(options.trials, 3), traced)
        else:
            saved[name] = FIGURES_BY_NAME[name](options.trials)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        save(RESULTS, saved)


if __name__ == "__main__":
    main()
