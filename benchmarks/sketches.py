"""How fast and how accurate are private sketches beside sketches without privacy?

Expected: the lazy sketch costs depth/s draws of about a nanosecond each on top of counting (s keys
per pushed column), so beside a Count-Min of the same memory about nine tenths of its rate at s = 16
and three tenths at s = 1; less beside the narrowest Count-Min, which is easier on the cache. About
as fast as the same loops in C++; thousands of times faster than pushing every cell at each arrival.
Error at equal memory well below the paper's form.

All times are CPU times of one thread, smallest of interleaved repetitions in one process (the C++
program runs in its own). Noise is exact and from the keyed cipher throughout.

    python benchmarks/sketches.py [--quick] [--speed]
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.plain_sketches import CountMin, LinearSketch, PunctualSketch
from benchmarks.saved import save
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.noise import SeededNoise
from streamveil.sketches import (
    HeavyHitters,
    Layout,
    LazySketch,
)
from streamveil.sketches.linear import add_keys

HERE = Path(__file__).parent
LENGTH, IDS, TOP = 2**20, 10**6, 15
EVENT = Neighbours(relation="event-change")
BUDGET = Budget(epsilon=0.3, delta=1e-3)
COPY = ", again"
ERRORS = "mean relative error of the top 15, 24 KB"
HEAVY = "heavy hitters, k = 256"
TIMES = (0.62, 0.81, 1.0)
CPP = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math"]


def zipf(skew: float, seed: int, length: int = LENGTH) -> np.ndarray:
    """A bounded Zipf stream over IDS ids."""
    shares = np.arange(1, IDS + 1) ** -float(skew)
    cdf = np.cumsum(shares / shares.sum())
    draws = np.random.default_rng(seed).random(length)
    return np.minimum(np.searchsorted(cdf, draws), IDS - 1).astype(np.uint32)


def lazy(width: int, **options) -> LazySketch:
    usual = dict(kind="count-min", width=width, horizon=LENGTH, protects=EVENT, budget=BUDGET)
    return LazySketch(**(usual | options))


def smallest(tasks: dict, repeats: int, between=lambda number: None) -> dict[str, float]:
    """CPU ns per key of each task, smallest over interleaved repetitions.

    A task may be a `Fresh`, which opens a sketch before the clock starts (0.1 ms, once a stream).
    """
    for task, _ in tasks.values():
        prepared(task)()
    best = dict.fromkeys(tasks, np.inf)
    for number in range(repeats):
        between(number)
        for name, (task, keys) in tasks.items():
            ready = prepared(task)
            start = time.thread_time_ns()
            ready()
            best[name] = min(best[name], (time.thread_time_ns() - start) / keys)
    return best


@dataclass(frozen=True)
class Fresh:
    """Counting keys in a newly opened sketch."""

    config: LazySketch
    keys: np.ndarray

    def open(self):
        live = self.config.open(SeededNoise(1))
        return lambda: live.update(self.keys)


def prepared(task):
    """What is timed."""
    return task.open() if isinstance(task, Fresh) else task


def speed(repeats: int) -> tuple[dict, dict]:
    """Ours and, in between, the C++ program; smallest times of both.

    Two floors without privacy: the fastest Count-Min in the same 24 KB, and the fastest of the run,
    whatever its size: a narrow table and 16-bit cells (what the lazy sketch counts into) are easier
    on the cache. Each is the best of two tables, since the place of a table in memory matters too.
    """
    keys = zipf(1.3, 1)
    tasks = {}
    for name, layout in (
        ("count-min, w=2000, 24 KB", Layout(kind="count-min", depth=3, width=2000)),
        ("count-min, w=2048, 24 KB", Layout(kind="count-min", depth=3, width=2048)),
        ("count-min, w=1024", Layout(kind="count-min", depth=3, width=1024)),
        ("count-min, w=800", Layout(kind="count-min", depth=3, width=800)),
        ("count-sketch, w=2000", Layout(kind="count-sketch", depth=3, width=2000)),
    ):  # fmt: skip
        for copy in range(2):
            plain = LinearSketch(layout)
            tasks[f"{name}{COPY * copy}"] = (lambda plain=plain: plain.update(keys), LENGTH)
    narrow, cells = Layout(kind="count-min", depth=3, width=800), np.zeros((3, 800), np.int16)
    tasks["count-min, w=800, 16-bit cells that wrap"] = (
        lambda: add_keys(keys, narrow.code, narrow.factors, cells), LENGTH)  # fmt: skip
    for s in (1, 2, 4, 8, 16, 32):
        tasks[f"lazy count-min blt-1, w=800, s={s}"] = (
            Fresh(lazy(800, round=800 * s, block=800), keys), LENGTH)  # fmt: skip
        tasks[f"lazy count-min blt-2, w=571, s={s}"] = (
            Fresh(lazy(571, round=571 * s, block=571, counter="blt-2"), keys), LENGTH)  # fmt: skip
        tasks[f"lazy count-min tree-prf, w=1333, s={s}"] = (
            Fresh(lazy(1333, round=1333 * s, block=1333, counter="tree-prf"), keys),
            LENGTH,
        )
    tasks["lazy count-sketch blt-1, w=800, s=16"] = (
        Fresh(lazy(800, round=12_800, block=800, kind="count-sketch"), keys), LENGTH)  # fmt: skip
    few = keys[: 2**14]
    punctual = PunctualSketch(kind="count-min", width=33, horizon=LENGTH, protects=EVENT,
                              budget=BUDGET)  # fmt: skip
    tasks["punctual count-min tree, w=33"] = (Fresh(punctual, few), len(few))
    paper = lazy(55, round=55, block=1, counter="tree", calibration="textbook")
    tasks["lazy count-min tree, paper's schedule, w=55"] = (Fresh(paper, few), len(few))
    peer: dict[str, float] = {}

    def between(number):
        if number % 5 == 0:
            for name, value in cpp_speed().items():
                peer[name] = min(value, peer.get(name, np.inf))

    times: dict[str, float] = {}
    for name, value in smallest(tasks, repeats, between).items():
        label = name.removesuffix(COPY)
        times[label] = min(value, times.get(label, np.inf))
    return times, peer


def containers_speed() -> dict[str, float]:
    """Count-Min of 2000 columns by what holds the keys, and DataSketches (one call a key).

    Its fastest loop is a `map` that a deque swallows; there is no call for many keys.
    """
    keys = zipf(1.3, 1, 2**18)
    texts = [f"user-{key}" for key in keys.tolist()]
    sketch = CountMin(width=2000)
    tasks = {
        name: (lambda held=held: sketch.update(held), len(keys))
        for name, held in (
            ("NumPy uint32", keys), ("NumPy int64", keys.astype(np.int64)),
            ("Arrow text", pa.array(texts)), ("Arrow text, dictionary",
             pa.array(texts).dictionary_encode()), ("list of int", keys.tolist()),
            ("list of str", texts), ("list of bytes", [text.encode() for text in texts]),
        )
    }  # fmt: skip
    try:
        from datasketches import count_min_sketch
    except ImportError:
        return smallest(tasks, 5)
    peer = count_min_sketch(3, 2000)

    def one_by_one(held):
        for key in held:
            peer.update(key)

    for name, held in (("list of int", keys.tolist()), ("list of str", texts)):
        tasks[f"DataSketches, {name}, loop"] = (lambda held=held: one_by_one(held), len(keys))
        tasks[f"DataSketches, {name}, map"] = (
            lambda held=held: deque(map(peer.update, held), maxlen=0), len(keys))  # fmt: skip
    return smallest(tasks, 5)


def cpp_speed() -> dict[str, float]:
    """The peer program, or nothing where no compiler (or no such processor) is present."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        program, keys = Path(folder) / "peer", Path(folder) / "keys.bin"
        zipf(1.3, 1).tofile(keys)
        source = HERE / "sketches_peer.cpp"
        built = subprocess.run([compiler, *CPP, "-o", program, source], capture_output=True)
        if built.returncode:
            return {}
        run = subprocess.run([program, keys], capture_output=True, text=True)
    return {line.split()[0]: float(line.split()[1]) for line in run.stdout.splitlines()}


def errors(published, names, truth, **options) -> float:
    """Mean relative error over the given keys."""
    return float(np.mean(np.abs(published.estimate(names, **options) / truth - 1)))


def mean_error(config, skew: float, trial: int, readings: dict) -> dict[str, float]:
    """Mean relative error of the true top keys, averaged over TIMES, by reading."""
    keys = zipf(skew, 100 + trial)
    live = config.open(SeededNoise(trial)) if hasattr(config, "open") else config
    totals, at = dict.fromkeys(readings, 0.0), 0
    for share in TIMES:
        until = int(share * LENGTH)
        live.update(keys[at:until])
        at = until
        counts = np.bincount(keys[:until], minlength=IDS)
        names = np.argsort(-counts, kind="stable")[:TOP].astype(np.uint32)
        shown = live.published() if hasattr(live, "published") else live
        for label, options in readings.items():
            totals[label] += errors(shown, names, counts[names], **options) / len(TIMES)
    return totals


OURS = {"calibrated": {}, "calibrated, lag": {"lag_corrected": True}}


def accuracy(trials: int) -> dict:
    """24 KB: ours, the paper's form and Count-Min without privacy."""
    out: dict = {}
    for skew in (1.1, 1.3, 2.1):
        for name, config, readings in (
            ("ours blt-1 w=800", lambda i: lazy(800, round=2**12, seed=i), OURS),
            ("ours blt-2 w=571", lambda i: lazy(571, round=2**12, seed=i, counter="blt-2"), OURS),
            ("ours tree-prf w=1333",
             lambda i: lazy(1333, round=2**13, seed=i, counter="tree-prf"), OURS),
            ("paper's lazy w=55", lambda i: lazy(55, round=55, block=55, seed=i, counter="tree",
             calibration="textbook"), {"min": {"method": "min"}}),
            ("count-min w=2000, not private", lambda i: CountMin(width=2000, seed=i), {"min": {}}),
        ):  # fmt: skip
            rows = [mean_error(config(i), skew, i, readings) for i in range(trials)]
            for label in readings:
                values = np.array([row[label] for row in rows])
                out[f"skew {skew}, {name}, {label}"] = {
                    "mean": float(values.mean()),
                    "standard error": float(values.std(ddof=1) / np.sqrt(trials)),
                }
    return out


def trace(skew: float = 1.15, seed: int = 0) -> np.ndarray:
    """A synthetic trace like the paper's: 26.6 million addresses, about 309 thousand distinct."""
    rng = np.random.default_rng(seed)
    ranks = np.arange(1, 312_001)
    shares = (ranks + 4.0) ** -skew
    counts = rng.multinomial(26_600_000, shares / shares.sum())
    names = rng.choice(2**32, 312_000, replace=False).astype(np.uint32)
    keys = np.repeat(names, counts)
    rng.shuffle(keys)
    return keys


def finder(width: int, length: int, epsilon: float = 0.3, **options) -> HeavyHitters:
    usual = dict(bits=32, width=width, horizon=length, round=-(-length // 128), protects=EVENT,
                 budget=Budget(epsilon=epsilon, delta=1e-6))  # fmt: skip
    return HeavyHitters(**(usual | options))


def judge(found, names: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Precision, recall and mean relative error over true positives."""
    truth = dict(zip(names.tolist(), counts.tolist(), strict=True))
    hits = [
        (estimate, truth[key])
        for key, estimate in zip(found.keys.tolist(), found.estimates.tolist(), strict=True)
        if key in truth
    ]
    relative = [abs(estimate / count - 1) for estimate, count in hits]
    return {
        "precision": len(hits) / max(len(found.keys), 1),
        "recall": len(hits) / len(names),
        "error": float(np.mean(relative)) if relative else float("nan"),
    }


def heavy_hitters(trials: int) -> dict:
    keys = trace()
    names, counts = np.unique(keys, return_counts=True)
    top = np.argsort(-counts)[:256]
    rows, config = [], None
    for trial in range(trials):
        config = finder(26_000, len(keys), seed=trial)
        live = config.open(SeededNoise(trial))
        start = time.thread_time()
        live.update(keys)
        spent = time.thread_time() - start
        start = time.thread_time()
        found = live.published().top(256)
        rows.append(judge(found, names[top], counts[top])
                    | {"ingest s": spent, "query s": time.thread_time() - start})  # fmt: skip
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return mean | {"bytes": config.nbytes, "trials": trials}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--speed", action="store_true", help="times only; errors stay as they were")
    options = parser.parse_args()
    quick, saved = options.quick, HERE / "results" / "sketches.json"
    warnings.simplefilter("ignore")
    times, peer = speed(10 if quick else 25)
    result = {
        "machine": platform.processor() or platform.machine(),
        "cpu ns per key": times,
        "c++ cpu ns per key": peer,
        "cpu ns per key by container": containers_speed(),
    }
    if options.speed:
        result |= {name: json.loads(saved.read_text())[name] for name in (ERRORS, HEAVY)}
    else:
        result |= {ERRORS: accuracy(3 if quick else 10), HEAVY: heavy_hitters(1 if quick else 3)}
    counting = {name: value for name, value in times.items() if name.startswith("count-min")}
    same = {name: value for name, value in counting.items() if name.endswith("24 KB")}
    for label, floor in (
        ("share of the fastest count-min in the same 24 KB", min(same.values())),
        ("share of the fastest count-min of any size", min(counting.values())),
    ):
        result[label] = {name: floor / t for name, t in times.items() if "lazy" in name}
    result["time over that of the C++ loop"] = {
        f"s={s}": times[f"lazy count-min blt-1, w=800, s={s}"] / peer[f"lazy-{s}"]
        for s in (1, 4, 8, 16, 32) if peer
    }  # fmt: skip
    result["C++ times of the paper's forms over ours at s=16"] = {
        name: peer[name] / times["lazy count-min blt-1, w=800, s=16"]
        for name in ("paper-lazy", "paper-punctual") if peer
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    saved.parent.mkdir(exist_ok=True)
    save(saved, result)


if __name__ == "__main__":
    main()
