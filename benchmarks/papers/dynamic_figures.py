"""Pictures of the experiments on changing tables, drawn from the saved results."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "docs" / "figures"
STYLE = {
    "trivial": ("0.6", ":"), "static reference": ("0.2", ":"),
    "static reference, residuals": ("0.2", "-."), "two streams": ("C3", "-"),
    "interval tree, published": ("C1", "--"), "interval tree, ours": ("C1", "-"),
    "rerun": ("C4", "-"), "snapshot+delta": ("C5", "-"),
    "snapshot+delta, triggered": ("C5", "--"), "continual MWEM": ("C0", "-"),
    "counter on the histogram": ("C2", "--"), "counter on the queries": ("C2", ":"),
    "counter on residuals (default)": ("C2", "-"),
}  # fmt: skip


def rows(name: str) -> list[dict]:
    return json.loads((ROOT / f"benchmarks/results/dynamic_{name}.json").read_text())["rows"]


def lines(axes, data: list[dict], x: str) -> None:
    for name, (color, dash) in STYLE.items():
        part = [r for r in data if r["mechanism"] == name]
        if part:
            axes.errorbar(
                [r[x] for r in part], [r["mean"] for r in part], [r.get("sd", 0) for r in part],
                color=color, ls=dash, marker="o", ms=3, capsize=2, label=name,
            )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(alpha=0.3, which="both", lw=0.4)


def turnover() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True)
    lines(left, rows("E1") + rows("E1_long"), "steps")
    left.set(xlabel="steps (a quarter of the table replaced in each)",
             ylabel="largest error / records", title="3,000 records")  # fmt: skip
    left.set_xticks([16, 64, 256, 1024], ["16", "64", "256", "1,024"])
    more = [r for r in rows("E1") if r["steps"] == 256] + rows("E1_sizes")
    more = [r for r in more if r["domain"] == 512]
    lines(right, sorted(more, key=lambda r: r["n"]), "n")
    right.set(xlabel="records", title="256 steps")
    at = sorted({r["n"] for r in more})
    right.set_xticks(at, [f"{n:,}" for n in at])
    right.minorticks_off()
    right.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(OUT / "dynamic-turnover.png", dpi=130)


def sparse() -> None:
    data = rows("E4")
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.8), sharey=True)
    styles = {
        "trivial (0)": ("0.6", ":"), "dense hybrid": ("C1", "--"), "dense 16-ary": ("C4", "--"),
        "published": ("C3", "-"), "ours": ("C2", "-"),
        "static reference": ("0.2", ":"),
    }  # fmt: skip
    for ax, n in zip(axes, (300, 3000, 30_000), strict=True):
        for name, (color, dash) in styles.items():
            part = [r for r in data if r["n"] == n and r["mechanism"] == name]
            x = [int(r["steps"][2:]) for r in part]
            ax.semilogy(
                x, [r["rmse"] for r in part], color=color, ls=dash, marker="o", ms=3, label=name
            )
        ax.set(title=f"{n:,} events", xlabel="log2 of the number of steps")
        ax.grid(alpha=0.3, which="both", lw=0.4)
    axes[0].set_ylabel("root mean square error of the count")
    axes[2].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(OUT / "dynamic-sparse.png", dpi=130)


def phases() -> None:
    data = rows("E2")
    names = [name for name in STYLE if any(r["mechanism"] == name for r in data)]
    figure, axes = plt.subplots(figsize=(9, 4))
    for i, phase in enumerate(("first", "low", "last")):
        part = {r["mechanism"]: r for r in data if r["phase"] == phase}
        at = [x + 0.27 * (i - 1) for x in range(len(names))]
        label = {"first": "30,000 records", "low": "1,500", "last": "30,000 again"}[phase]
        axes.bar(at, [part[n]["mean"] for n in names], 0.26, yerr=[part[n]["sd"] for n in names],
                 label=label, color=("C0", "C1", "C2")[i], capsize=2)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize=8)
    axes.set_ylabel("largest error, records")
    axes.grid(alpha=0.3, axis="y", which="both", lw=0.4)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(OUT / "dynamic-phases.png", dpi=130)


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    turnover()
    sparse()
    phases()
