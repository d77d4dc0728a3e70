"""Pictures of the sketch experiments, all with error bars over trials."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

mpl.use("Agg")

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
STYLES = {
    "CMS (not private)": ("k", "s", ":"), "CS (not private)": ("0.5", "D", ":"),
    "PunctualCMS, paper": ("C3", "v", "--"), "LazyCMS, paper": ("C1", "o", "--"),
    "LazyCMS, ours": ("C0", "o", "-"), "LazyCMS, ours, lag": ("C2", "^", "-"),
    "PunctualCS, paper": ("C6", "<", "--"), "PunctualCMS, ours": ("C7", "v", "-"),
    "DataSketches (not private)": ("C8", "d", ":"), "LazyCS, ours": ("C4", "P", "-"),
    "recall": ("C0", "o", "-"), "precision": ("C1", "x", "--"),
    "recall, threshold": ("C2", "s", "-"), "precision, threshold": ("C3", "+", "--"),
    "LazyCMS, ours, 24 KB": ("C5", "X", "-"),
}  # fmt: skip


def sweep(values, one, trials: int) -> dict:
    """{line: [(value, mean, standard error), ...]}."""
    out: dict = {}
    for value in values:
        rows = [one(value, trial) for trial in range(trials)]
        for name in rows[0]:
            cells = np.array([row[name] for row in rows])
            spread = float(cells.std(ddof=1) / np.sqrt(trials)) if trials > 1 else 0.0
            out.setdefault(name, []).append((float(value), float(cells.mean()), spread))
    return out


def draw(lines: dict, name: str, x: str, y: str, title: str, *, logs: str = "xy") -> None:
    """One picture with error bars."""
    figure, axes = plt.subplots(figsize=(7.4, 4.2))
    for number, (label, points) in enumerate(lines.items()):
        at, mean, bar = np.array(points).T
        colour, marker, dash = STYLES.get(label, (f"C{number}", "o", "-"))
        axes.errorbar(at, mean, yerr=bar, label=label, color=colour, marker=marker, ls=dash, ms=5,
                      capsize=3, lw=1.3, zorder=2 if dash == "-" else 3)  # fmt: skip
    if "x" in logs:
        axes.set_xscale("log")
        ticks = sorted({p[0] for points in lines.values() for p in points})
        axes.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axes.minorticks_off()
    if "y" in logs:
        axes.set_yscale("log")
    axes.set(xlabel=x, ylabel=y, title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1))
    figure.tight_layout()
    figure.savefig(FIGURES / f"sketches_{name}.png", dpi=110)
    plt.close(figure)


def bars(
    rows: dict[str, list[float]], name: str, x: str, title: str, stages: tuple[str, ...]
) -> None:
    """Means with standard errors: the stages beside each other, and their sum beside the rest."""
    means = {label: float(np.mean(values)) for label, values in rows.items()}
    errors = {label: standard_error(values) for label, values in rows.items()}
    whole = "ours, all stages"
    means[whole] = sum(means[label] for label in stages)
    errors[whole] = float(np.hypot.reduce([errors[label] for label in stages]))
    others = [whole, *(label for label in rows if label not in stages)]
    figure, panels = plt.subplots(1, 2, figsize=(9.6, 3.2))
    for axes, labels in zip(panels, (list(stages), others), strict=True):
        axes.barh(labels, [means[label] for label in labels], color="C0",
                  xerr=[errors[label] for label in labels], capsize=3)  # fmt: skip
        for at, label in enumerate(labels):
            axes.text(means[label] + errors[label], at, f" {means[label]:.2f}", va="center",
                      fontsize=8)  # fmt: skip
        axes.invert_yaxis()
        axes.margins(x=0.15)
        axes.set_xlabel(x)
        axes.grid(alpha=0.3, axis="x")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(FIGURES / f"sketches_{name}.png", dpi=110)
    plt.close(figure)


def standard_error(values: list[float]) -> float:
    """Of the mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
