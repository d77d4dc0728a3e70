"""Draws what `dp_sqlp.py` measured: errors beside the paper, latency, the choice of C.

python benchmarks/papers/dp_sqlp_figures.py [--results benchmarks/results/dp_sqlp.json]

It also prints the tables of docs/dp-sqlp.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[2]
METRICS = {"keys": "keys shown", "linf": "largest error", "l1": "sum of errors", "l2": "l2 error"}
PAPER = {  # Table 1 of the paper
    100: {"keys": 28_338, "linf": 1_391, "l1": 17_741_225, "l2": 50_039},
    1000: {"keys": 22_280, "linf": 1_563, "l1": 19_395_721, "l2": 58_237},
}
ORDER = ("one-shot", "increments", "dp-sqlp", "dp-sqlp-rigorous", "static", "ours", "tuned")
COLOURS = {"dp-sqlp": "tab:orange", "ours": "tab:blue", "dp-sqlp-rigorous": "tab:orange"}


def errors(rows: list[dict[str, Any]], triggers: int) -> None:
    """Four bars per arm on the full plain stream, the paper's figures as lines."""
    found = {
        row["arm"]: row["end"]
        for row in rows
        if row["experiment"] == "table" and row["stream"] == "plain" and row["users"] == 10_000_000
        and row["triggers"] == triggers
    }  # fmt: skip
    arms = [arm for arm in ORDER if arm in found]
    if not arms:
        return
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.4), sharey=True)
    for axis, (metric, title) in zip(axes, METRICS.items(), strict=True):
        lengths = [found[arm][metric]["mean"] for arm in arms]
        spreads = [found[arm][metric]["sd"] for arm in arms]
        colours = [COLOURS.get(arm, "tab:blue" if arm == "tuned" else "tab:gray") for arm in arms]
        bars = axis.barh(range(len(arms)), lengths, xerr=spreads, color=colours)
        axis.bar_label(bars, [shorten(length) for length in lengths], fontsize=8, padding=4)
        axis.axvline(PAPER[triggers][metric], color="black", linestyle="--", label="paper, Table 1")
        if metric != "keys":
            axis.set_xscale("log")
            axis.set_xlim(0.6 * min(lengths), 6 * max(lengths))
        else:
            axis.set_xlim(0, 1.3 * max(lengths))
        axis.set_title(title)
    axes[0].set_yticks(range(len(arms)), arms)
    axes[0].invert_yaxis()
    axes[0].legend(fontsize=8)
    figure.suptitle(f"59 million records, (6, 1e-9) per user, {triggers} triggers, end of day")
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "figures" / f"dp-sqlp-errors-{triggers}.png", dpi=110)
    plt.close(figure)


def latency(rows: list[dict[str, Any]]) -> None:
    """Figure 9: time per micro-batch against its size, and against workers on Spark."""
    if not any(row["experiment"] == "figure9" for row in rows):
        return
    figure, (axis, beside) = plt.subplots(1, 2, figsize=(11, 4))
    for arm in ("dp-sqlp-rigorous", "ours"):
        mine = [r for r in rows if r["experiment"] == "figure9" and r["arm"] == arm]
        mine.sort(key=lambda row: row["rows"])
        sizes = [row["rows"] for row in mine]
        for part, style in (("median_s", "o-"), ("p95_s", "o:")):
            name = f"{arm}, {'median' if part == 'median_s' else '95 %'}"
            axis.plot(sizes, [row[part] * 1e3 for row in mine], style, label=name,
                      color=COLOURS[arm])  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="records in a micro-batch",
             ylabel="milliseconds",
             title="embedded engine, one process")  # fmt: skip
    axis.legend(fontsize=8)
    for count, colour in ((1, "tab:gray"), (2, "tab:blue")):
        mine = [r for r in rows if r["experiment"] == "workers" and r["workers"] == count]
        mine.sort(key=lambda row: row["rows"])
        middle = [row["median_s"] for row in mine]
        spread = [[m - row["least_s"] for m, row in zip(middle, mine, strict=True)],
                  [row["most_s"] - m for m, row in zip(middle, mine, strict=True)]]  # fmt: skip
        beside.errorbar([row["rows"] for row in mine], middle, spread, marker="o", capsize=3,
                        label=f"workers: {count}", color=colour)  # fmt: skip
    beside.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
    beside.set(xlabel="records in a micro-batch", ylabel="seconds", ylim=(0, None),
               title="ours on Spark: median, least and most of 4 steps")  # fmt: skip
    beside.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "figures" / "dp-sqlp-latency.png", dpi=110)
    plt.close(figure)


def contributions(rows: list[dict[str, Any]]) -> None:
    """Figure 10: four metrics against C."""
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.4))
    for axis, (metric, title) in zip(axes, METRICS.items(), strict=True):
        for arm in ("dp-sqlp", "ours"):
            mine = [r for r in rows if r["experiment"] == "figure10" and r["arm"] == arm]
            mine.sort(key=lambda row: row["rows"])
            axis.errorbar(
                [row["rows"] for row in mine],
                [row["end"][metric]["mean"] for row in mine],
                [row["end"][metric]["sd"] for row in mine],
                marker="o", markersize=3, label=arm, color=COLOURS[arm],
            )  # fmt: skip
        axis.set(xlabel="C, rows of one user", title=title, ylim=(0, None))
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "figures" / "dp-sqlp-contributions.png", dpi=110)
    plt.close(figure)


def shorten(value: float) -> str:
    """A figure as the tables write it."""
    return f"{value / 1e6:.2f}M" if value >= 999_500 else f"{value:,.0f}"


def tables(rows: list[dict[str, Any]]) -> None:
    """The tables of the page, for the terminal: mean over seeds, largest deviation in words."""
    wanted = [row for row in rows if row["experiment"] in ("table", "table2")]
    places = sorted({(r["experiment"], r["users"], r["stream"], r["triggers"]) for r in wanted})
    for place in places:
        print("\n", *place)
        here = {r["arm"]: r for r in wanted
                if (r["experiment"], r["users"], r["stream"], r["triggers"]) == place}  # fmt: skip
        for arm in (arm for arm in ORDER if arm in here):
            row, end = here[arm], here[arm]["end"]
            worst = max(100 * part["sd"] / max(part["mean"], 1) for part in end.values())
            cells = [shorten(end[name]["mean"]) for name in METRICS]
            day = row["day"]
            cells += [f"{day['keys']['mean']:,.0f}", f"{day['relative_l1']['mean']:.3f}"]
            print(
                f"| `{arm}` | {' | '.join(cells)} |",
                f"{row['seeds']} seeds,"
                f" sd <= {worst:.1f} %, {row['seconds']:.0f} s, delta {row.get('delta') or 0:.2g}",
            )


def main() -> None:
    """Draws all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=ROOT / "benchmarks" / "results" / "dp_sqlp.json"
    )
    rows = json.loads(parser.parse_args().results.read_text())["rows"]
    for triggers in PAPER:
        errors(rows, triggers)
    latency(rows)
    contributions(rows)
    tables(rows)


if __name__ == "__main__":
    main()
