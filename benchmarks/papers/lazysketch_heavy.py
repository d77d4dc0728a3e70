"""Heavy hitters of a trace: against memory, epsilon, beam and shape, and along the stream.

Truth is the exact top 256 of the prefix, or (`threshold`) all keys with at least N/256 arrivals.
References without privacy: a Count-Min of the same memory asked about every key that occurred, and
DataSketches' frequent items at the largest size that fits. Expected: recall near one once
collisions are below the 256th count, at any epsilon above 0.1; the references a little better at
equal memory, since one flat table serves them and they keep the keys.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property

import numpy as np

from benchmarks.papers.lazysketch_plots import draw, sweep
from benchmarks.plain_sketches import CountMin
from benchmarks.sketches import finder, judge, trace
from streamveil.core.noise import SeededNoise
from streamveil.sketches import HeavyKeys

K, RELEASES, BLOCK = 256, 16, 2**20
MEGABYTES = (1.0, 1.5, 2.0, 2.6, 4.0, 8.0)
TITLE = "Top 256 of 26.6 million addresses"
ITEM_BYTES = 18  # of a slot of frequent items: key, count, state


class Trace:
    """Keys with the exact counts of every prefix that is released."""

    def __init__(self, keys: np.ndarray) -> None:
        self.keys = keys
        self.ends = [len(keys) * (i + 1) // RELEASES for i in range(RELEASES)]

    @cached_property
    def names(self) -> np.ndarray:
        """Distinct keys."""
        return np.unique(self.keys)

    @cached_property
    def counts(self) -> list[np.ndarray]:
        """Counts of the names at every release."""
        total, start, out = np.zeros(len(self.names), np.int64), 0, []
        for end in self.ends:
            places = np.searchsorted(self.names, self.keys[start:end])
            total = total + np.bincount(places, minlength=len(self.names))
            out.append(total)
            start = end
        return out

    @cached_property
    def blocks(self) -> list[tuple[list[int], list[int]]]:
        """The whole stream in counted blocks."""
        return blocks_of(self.keys)

    def judge(self, found, release: int = -1) -> dict[str, float]:
        """Precision, recall and error against the exact top K."""
        counts = self.counts[release]
        top = np.argpartition(-counts, K)[:K]
        return judge(found, self.names[top], counts[top])

    def judge_above(self, found, release: int = -1) -> dict[str, float]:
        """The same against all keys with at least N/K arrivals."""
        counts = self.counts[release]
        true = np.flatnonzero(counts >= self.ends[release] / K)
        return judge(found, self.names[true], counts[true])


def blocks_of(keys: np.ndarray) -> list[tuple[list[int], list[int]]]:
    """Keys and their counts, block by block."""
    out = []
    for start in range(0, len(keys), BLOCK):
        names, counts = np.unique(keys[start : start + BLOCK], return_counts=True)
        out.append((names.tolist(), counts.tolist()))
    return out


def width_of(megabytes: float) -> int:
    """Columns of the two sketched levels: 10 or 12 bytes a cell, beside two exact levels."""
    return (int(megabytes * 1e6) // 12 - 65_792) // 6


def candidates(sketch, traced: Trace, release: int = -1) -> HeavyKeys:
    """The K largest of all keys so far, as a sketch without privacy counts them."""
    names = traced.names[traced.counts[release] > 0]
    values = sketch.estimate(names)
    top = np.argpartition(-values, K)[:K]
    return HeavyKeys(names[top].astype(np.uint64), values[top], 0.0)


class FrequentItems:
    """DataSketches' frequent items, fed with the counts of blocks."""

    def __init__(self, megabytes: float) -> None:
        from datasketches import frequent_items_error_type, frequent_items_sketch

        size = int(np.log2(megabytes * 1e6 / ITEM_BYTES))
        self.sketch, self.kind = frequent_items_sketch(size), frequent_items_error_type

    def update(self, counted: list[tuple[list[int], list[int]]]) -> None:
        for names, counts in counted:
            deque(map(self.sketch.update, names, counts), maxlen=0)

    def top(self) -> HeavyKeys:
        rows = self.sketch.get_frequent_items(self.kind.NO_FALSE_NEGATIVES)[:K]
        names = np.array([row[0] for row in rows], np.uint64)
        return HeavyKeys(names, np.array([row[1] for row in rows], np.float64), 0.0)


def private(config, trial: int, traced: Trace) -> dict[str, float]:
    """Both kinds of truth at the end of the stream."""
    live = config.open(SeededNoise(trial))
    live.update(traced.keys)
    shown = live.published()
    least = len(traced.keys) / K
    above = traced.judge_above(shown.top(K, threshold=least))
    return traced.judge(shown.top(K)) | {
        "precision, threshold": above["precision"], "recall, threshold": above["recall"],
    }  # fmt: skip


def split(results: dict, name: str, x: str, title: str = TITLE, logs: str = "x") -> dict:
    """Two pictures: shares, and errors."""
    shares = {label: points for label, points in results.items() if "error" not in label}
    errors = {label: points for label, points in results.items() if "error" in label}
    draw(shares, name, x, "share", title, logs=logs)
    draw(errors, f"{name}_error", x, "mean relative error of the found", title,
         logs=logs + "y")  # fmt: skip
    return results


def figure_memory(trials: int, traced: Trace) -> dict:
    def one(megabytes, trial):
        out = private(finder(width_of(megabytes), len(traced.keys), seed=trial), trial, traced)
        plain = CountMin(width=int(megabytes * 1e6) // 12, seed=trial)
        plain.update(traced.keys)
        known = traced.judge(candidates(plain, traced))
        out |= {"CMS and all keys (not private)": known["recall"],
                "error, CMS (not private)": known["error"]}  # fmt: skip
        if trial == 0:  # the same at every trial
            items = FrequentItems(megabytes)
            items.update(traced.blocks)
            frequent[megabytes] = traced.judge(items.top())
        return out | {
            "DataSketches (not private)": frequent[megabytes]["recall"],
            "error, DataSketches (not private)": frequent[megabytes]["error"],
        }

    frequent: dict = {}
    return split(sweep(MEGABYTES, one, trials), "heavy_memory", "memory, MB")


def figure_epsilon(trials: int, traced: Trace) -> dict:
    def one(epsilon, trial):
        return private(finder(25_000, len(traced.keys), epsilon, seed=trial), trial, traced)

    return split(sweep((0.05, 0.1, 0.3, 1.0, 2.0), one, trials), "heavy_epsilon",
                 "epsilon (2.6 MB, delta 1e-6)")  # fmt: skip


def figure_releases(trials: int, traced: Trace) -> dict:
    """What is published at 16 times along the stream, under one budget for all of them."""
    rows: dict[str, list[list[float]]] = {}
    for trial in range(trials):
        live = finder(25_000, len(traced.keys), seed=trial).open(SeededNoise(trial))
        plain = CountMin(width=int(2.6e6) // 12, seed=trial)
        items = FrequentItems(2.6) if trial == 0 else None
        start = 0
        for release, end in enumerate(traced.ends):
            fresh = traced.keys[start:end]
            start = end
            live.update(fresh)
            plain.update(fresh)
            judged = {"": traced.judge(live.published().top(K), release),
                      ", CMS and all keys (not private)":
                      traced.judge(candidates(plain, traced, release), release)}  # fmt: skip
            if items is not None:
                items.update(blocks_of(fresh))
                judged[", DataSketches (not private)"] = traced.judge(items.top(), release)
            for label, values in judged.items():
                for name, value in values.items():
                    if name != "precision" or not label:
                        rows.setdefault(name + label, [[] for _ in traced.ends])[release].append(
                            value)  # fmt: skip
    results = {
        name: [
            (end / 1e6, float(np.mean(values)),
             float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0)
            for end, values in zip(traced.ends, cells, strict=True)
        ]
        for name, cells in rows.items()
    }  # fmt: skip
    return split(results, "heavy_releases", "million arrivals",
                 "16 releases, epsilon 0.3 for all of them, 2.6 MB", logs="")  # fmt: skip


def figure_beam(trials: int, traced: Trace) -> dict:
    """The beam, with the table growing with it as 2 beam columns, and with the table fixed."""

    def one(beam, trial):
        out = {}
        for label, width in (("w = 2 beam", 2 * int(beam)), ("w = 25,000", 25_000)):
            live = finder(width, len(traced.keys), seed=trial).open(SeededNoise(trial))
            live.update(traced.keys)
            judged = traced.judge(live.published().top(K, beam=int(beam)))
            out |= {f"{name}, {label}": judged[name] for name in ("precision", "recall", "error")}
        return out

    return split(sweep([2**b for b in range(8, 14)], one, trials), "heavy_beam",
                 "beam (prefixes kept at each level)")  # fmt: skip


def figure_shape(trials: int, _traced: Trace) -> dict:
    """Synthetic traces with flatter and steeper shares."""
    traces: dict[float, Trace] = {}

    def one(exponent, trial):
        if exponent not in traces:
            traces.clear()
            traces[exponent] = Trace(trace(exponent))
        traced = traces[exponent]
        return private(finder(25_000, len(traced.keys), seed=trial), trial, traced)

    return split(sweep((1.0, 1.15, 1.3), one, trials), "heavy_shape",
                 "exponent of the shares (2.6 MB, epsilon 0.3)", logs="")  # fmt: skip


HEAVY = {
    "heavy_memory": figure_memory, "heavy_epsilon": figure_epsilon,
    "heavy_releases": figure_releases, "heavy_beam": figure_beam, "heavy_shape": figure_shape,
}  # fmt: skip
