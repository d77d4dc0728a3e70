"""The figures of docs/counters.md, drawn by `python benchmarks/counters.py --plots`."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.papers.haar import HaarCounter
from benchmarks.papers.other_counters import AnytimeHaar, BinaryTreeCounter, SquareRoot
from streamveil.core.accounting import Budget
from streamveil.core.counters.anytime import root_squared_norm
from streamveil.counters import (
    AnytimeBltCounter,
    BltCounter,
    HonakerCounter,
    KaryTreeCounter,
    fit,
)

SIGMA = 2.0**24
COLOURS = {
    "binary tree": "#9aa0a6",
    "Honaker": "#5f6368",
    "Haar": "#1a73e8",
    "BLT": "#d93025",
    "anytime BLT": "#f29900",
    "anytime Haar": "#12b5cb",
    "square root": "#188038",
    "k-ary, Laplace": "#8430ce",
    "bound": "black",
}


def curve(counter, times: np.ndarray) -> np.ndarray:
    return counter.std(times) / SIGMA * counter.sensitivity


def draw(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update(
        {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "figure.dpi": 110}
    )
    over_time(folder / "counters-over-time.png")
    over_horizon(folder / "counters-over-horizon.png")
    memory(folder / "counters-memory.png")
    unknown(folder / "counters-unknown-end.png")
    pure(folder / "counters-pure.png")


def over_time(path: Path) -> None:
    """What one release costs, release by release."""
    t = np.arange(1, 1001)
    counters = {
        "binary tree": BinaryTreeCounter(horizon=1000, sigma=SIGMA),
        "Honaker": HonakerCounter(horizon=1000, sigma=SIGMA),
        "Haar": HaarCounter(horizon=1000, sigma=SIGMA),
        "BLT": BltCounter(horizon=1000, sigma=SIGMA),
    }
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    for name, counter in counters.items():
        axes.plot(t, curve(counter, t), color=COLOURS[name], lw=1.1)
    for name, y in {"binary tree": 9.6, "Honaker": 6.6, "Haar": 4.35, "BLT": 2.95}.items():
        axes.text(1010, y - 0.35, name, color=COLOURS[name], va="center")
    axes.axhline(2.9541, color="black", lw=0.8, ls="--")
    axes.text(600, 2.2, "dashed: no factorization has a smaller maximum", fontsize=8, va="top")
    axes.set(xlim=(0, 1000), ylim=(0, 10.2), xlabel="release t of 1,000")
    axes.set_title("Standard deviation of release t, at sensitivity 1", loc="left", fontsize=10)
    save(figure, path)


def over_horizon(path: Path) -> None:
    """The largest error against the horizon, relative to the bound."""
    horizons = np.unique(np.rint(np.geomspace(4, 2**18, 18)).astype(int))
    kinds = {
        "binary tree": BinaryTreeCounter,
        "Honaker": HonakerCounter,
        "Haar": HaarCounter,
        "BLT": BltCounter,
    }
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    for name, kind in kinds.items():
        worst = [
            curve(kind(horizon=int(T), sigma=SIGMA), np.arange(1, T + 1)).max() for T in horizons
        ]
        axes.plot(horizons, worst, color=COLOURS[name], marker="o", ms=3)
        axes.text(horizons[-1] * 1.15, worst[-1], name, color=COLOURS[name], va="center")
    root = np.sqrt([(root_squared_norm(np.array([T])) ** 2)[0] for T in horizons])
    axes.plot(horizons, root, color=COLOURS["square root"], lw=1, ls=":")
    axes.text(5, 0.3, "dotted: square root (O(T) memory); dashed: lower bound", fontsize=8)
    axes.plot(horizons, np.log(horizons) / np.pi + 0.701, color="black", lw=0.8, ls="--")
    axes.set(xscale="log", xlabel="horizon T", ylim=(0, 19), xlim=(4, 2**18))
    axes.set_title("Largest standard deviation, at sensitivity 1", loc="left", fontsize=10)
    save(figure, path)


def memory(path: Path) -> None:
    """Error against bytes per key at T = 1000."""
    T = 1000
    points = {
        "binary tree": BinaryTreeCounter(horizon=T, sigma=SIGMA),
        "Honaker": HonakerCounter(horizon=T, sigma=SIGMA),
        "Haar": HaarCounter(horizon=T, sigma=SIGMA),
        "anytime BLT": AnytimeBltCounter(sigma=SIGMA, tuned=T),
        "anytime Haar": AnytimeHaar(sigma=SIGMA, tuned=T),
        "square root": SquareRoot(horizon=T, sigma=SIGMA),
    }
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    t = np.arange(1, T + 1)
    for name, counter in points.items():
        error = curve(counter, t).max()
        axes.plot(counter.state_bytes, error, "o", color=COLOURS[name])
        left = name == "square root"
        axes.annotate(
            name,
            (counter.state_bytes, error),
            xytext=(-7 if left else 7, -9 if name == "Haar" else 4),
            textcoords="offset points",
            color=COLOURS[name],
            ha="right" if left else "left",
        )
    blts = [BltCounter(horizon=T, sigma=SIGMA, d=d) for d in range(1, 6)]
    x, y = [b.state_bytes for b in blts], [curve(b, t).max() for b in blts]
    axes.plot(x, y, "o-", color=COLOURS["BLT"], lw=1)
    axes.annotate(
        "BLT, d = 1 .. 5",
        (x[0], y[0]),
        xytext=(-6, -38),
        textcoords="offset points",
        color=COLOURS["BLT"],
    )
    axes.axhline(2.9541, color="black", lw=0.8, ls="--")
    axes.set(xscale="log", xlabel="bytes of state per key", ylim=(2, 10.5), xlim=(10, 12_000))
    axes.set_title("Largest standard deviation over 1,000 releases", loc="left", fontsize=10)
    save(figure, path)


def unknown(path: Path) -> None:
    """What not knowing the end costs."""
    t = np.unique(np.rint(np.geomspace(1, 10**6, 700)).astype(np.int64))
    best = root_squared_norm(t)
    counters = {
        "anytime Haar": AnytimeHaar(sigma=SIGMA),
        "anytime BLT": AnytimeBltCounter(sigma=SIGMA),
        "BLT": BltCounter(horizon=2**20, sigma=SIGMA),
    }
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    for name, counter in counters.items():
        width = 0.6 if "Haar" in name else 1.2
        axes.plot(t, curve(counter, t) / best, color=COLOURS[name], lw=width)
    axes.text(70, 1.62, "anytime Haar, no stored noise", color=COLOURS["anytime Haar"])
    axes.text(1.1, 1.2, "anytime BLT, tuned to 2^20", color=COLOURS["anytime BLT"])
    axes.text(1.9, 2.2, "BLT made for 2^20", color=COLOURS["BLT"])
    axes.axhline(1, color="black", lw=0.8, ls="--")
    axes.set(xscale="log", xlabel="release t", ylim=(0.8, 2.5), xlim=(1, 10**6))
    axes.set_title(
        "Standard deviation relative to a square-root counter made for exactly t releases",
        loc="left",
        fontsize=10,
    )
    save(figure, path)


def pure(path: Path) -> None:
    """Pure against approximate differential privacy."""
    horizons = np.unique(np.rint(np.geomspace(4, 10**5, 14)).astype(int))
    figure, axes = plt.subplots(figsize=(7.5, 4.2))
    laplace = [
        fit(KaryTreeCounter(horizon=int(T), sigma=1), Budget(epsilon=1))
        .std(np.arange(1, T + 1))
        .max()
        for T in horizons
    ]
    axes.plot(horizons, laplace, color=COLOURS["k-ary, Laplace"], marker="o", ms=3)
    axes.text(horizons[-1], laplace[-1] + 1, "k-ary tree, pure", ha="right", color="#8430ce")
    for delta, shade in ((1e-12, 1.0), (1e-9, 0.7), (1e-6, 0.45)):
        worst = [
            fit(BltCounter(horizon=int(T), sigma=1), Budget(epsilon=1, delta=delta))
            .std(np.arange(1, T + 1))
            .max()
            for T in horizons
        ]
        axes.plot(horizons, worst, color=COLOURS["BLT"], alpha=shade, marker="o", ms=3)
        axes.text(
            horizons[-1] * 1.15, worst[-1], f"BLT, delta {delta:g}", color="#d93025", va="center"
        )
    axes.set(xscale="log", xlabel="horizon T", ylim=(0, 40), xlim=(4, 10**5))
    axes.set_title(
        "Largest standard deviation at epsilon = 1, one row per person", loc="left", fontsize=10
    )
    save(figure, path)


def save(figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
