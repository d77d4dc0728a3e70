"""Tables of the site that are made from result files: no number of these is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def kept(name: str) -> Any:
    """A result file."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; numbers stand on the right."""
    line = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, line, *rows])


def large(number: float) -> str:
    """A count, with millions where it has them."""
    return f"{number / 1e6:.2f}M" if number >= 1e6 else f"{number:,.0f}"


def part(number: float) -> str:
    """A fraction, to two digits that count."""
    return f"{number:.2g}" if number < 0.1 else f"{number:.2f}"


PAPER_TABLE_1 = {  # printed by Zhang et al., Table 1: keys, l_inf, l_1, l_2
    100: (28_338, 1_391, 17_741_225, 50_039), 1_000: (22_280, 1_563, 19_395_721, 58_237),
}  # fmt: skip


def dp_sqlp() -> str:
    """The publication's first table: printed, remade, and with our defaults."""
    rows = [row for row in kept("dp_sqlp")["rows"]
            if row["experiment"] == "table" and row["stream"] == "plain"
            and row["users"] == 10_000_000]  # fmt: skip
    shown = []
    for triggers, printed in PAPER_TABLE_1.items():
        shown.append([f"printed, {triggers:,} releases", *map(large, printed), "1e-09 claimed"])
        for arm in ("dp-sqlp", "dp-sqlp-rigorous", "ours"):
            [row] = [r for r in rows if (r["arm"], r["triggers"]) == (arm, triggers)]
            numbers = [large(row["end"][name]["mean"]) for name in ("keys", "linf", "l1", "l2")]
            shown.append([f"`{arm}`", *numbers, f"{row['delta']:.1e}"])
    head = ("", "keys shown", "largest error", "sum of errors", "l2", "delta that holds")
    return table(head, shown)


SKETCHES = ("PunctualCMS, paper", "LazyCMS, paper", "LazyCMS, ours", "CMS (not private)")


def lazysketch() -> str:
    """Time and error of sketches in 24 KB."""
    found = kept("lazysketch")
    fast, small = (
        {name: dict(map(tuple, (point[:2] for point in found[figure][name])))[24.0]
         for name in SKETCHES} for figure in ("4a", "4b")
    )  # fmt: skip
    base = fast["CMS (not private)"]
    rows = [[name, f"{fast[name] / base:,.1f}", part(small[name])] for name in SKETCHES]
    return table(("24 KB, 2^20 arrivals", "time, Count-Min = 1", "relative error"), rows)


def dynamic() -> str:
    """Errors of mechanisms on a table that changes, against the number of releases."""
    rows = [*kept("dynamic_E1")["rows"], *kept("dynamic_E1_long")["rows"]]
    names = (
        "two streams", "interval tree, published", "interval tree, ours",
        "counter on residuals (default)", "static reference", "trivial",
    )  # fmt: skip
    steps = (16, 64, 256, 1_024)
    cells = {(row["mechanism"], row["steps"]): part(row["mean"]) for row in rows}
    return table(
        ("largest error / records", *(f"{step:,} releases" for step in steps)),
        ([name, *(cells.get((name, step), "") for step in steps)] for name in names),
    )


PEERS = {"streamveil": "streamveil", "opendp": "OpenDP", "pipelinedp": "PipelineDP",
         "tumult": "Tumult Analytics", "datasketches": "DataSketches"}  # fmt: skip


def peers(question: str) -> str:
    """Libraries beside one another, on one question."""
    found = kept("peers")
    timed = question == "once"
    head = ["", "groups shown", "sum of errors / rows", "median error, in flights", "lines", "runs"]
    rows = [
        [f"{PEERS[row['library']]} {row['version']}", f"{row['groups']:.0f}",
         f"{row['l1_share']:.1%}", f"{row['median']:,.0f}" if row["groups"] else "none shown",
         f"{row['lines']:.0f}", str(row["runs"]),
         *([f"{row['cpu']:.1f}" if row["cpu"] else "not seen"] if timed else [])]
        for row in found["rows"] if row["question"] == question
    ]  # fmt: skip
    made = table([*head, *(["CPU seconds"] if timed else [])], rows)
    return f"{made}\n\n*Of all rows, bounds on groups leave out {found['cut'][question]:.1%}.*"


def peer_sketches() -> str:
    """Count-Min in 24 KB, private and not."""
    found = [row for row in kept("peers")["rows"] if row["question"] == "sketch"]
    told = " (not private)", ""
    rows = [
        [f"{PEERS[row['library']]} {row['version']}{told[row['library'] == 'streamveil']}",
         f"{row['median']:,.0f}", f"{row['l1_share']:.0%}", f"{row['lines']:.0f}",
         f"{row['cpu']:.3f}"] for row in found
    ]  # fmt: skip
    head = ("", "median error, in flights", "sum of errors / flights", "lines", "CPU seconds")
    return table(head, rows)


def growing() -> str:
    """Errors on a growing table of 100,000 records at first, while it grows sixteenfold."""
    rows = [row for row in kept("growing_E7")["rows"] if row["n"] == 100_000]
    where = ("at n", "at 4n", "at 16n")
    return table(
        ("largest error / size", *(f"{place}" for place in where)),
        ([row["mechanism"], *(part(row[place]["mean"]) for place in where)] for row in rows),
    )


def classifiers() -> str:
    """How much worse than the best possible model, by the size of the first training."""
    rows = [row for row in kept("growing_E11")["rows"] if "mean" in row]
    sizes = sorted({row["n"] for row in rows})
    names = list(dict.fromkeys(row["mechanism"] for row in rows))
    cells = {(row["mechanism"], row["n"]): part(row["mean"]) for row in rows}
    return table(
        ("excess loss", *(f"n = {size:,}" for size in sizes)),
        ([name, *(cells.get((name, size), "") for size in sizes)] for name in names),
    )
