"""Tables of the pages that go into depth, made from result files."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from tools.site_results import PAPER_TABLE_1, kept, large, part, table

ARMS = ("one-shot", "increments", "dp-sqlp", "dp-sqlp-rigorous", "static", "ours", "tuned")
ERRORS = ("keys", "linf", "l1", "l2")
HEAD = ("", "keys", "l∞", "l1", "l2", "day: keys", "day: l1 / records", "seeds")


def dp_rows(streams: Sequence[str], users: int) -> str:
    """Errors at the end of the day and over it, of every arm at every number of triggers."""
    found = [row for row in kept("dp_sqlp")["rows"]
             if row["experiment"] in ("table", "table2") and row["users"] == users]  # fmt: skip
    shown = []
    for stream in streams:
        here = [row for row in found if row["stream"] == stream]
        for triggers in sorted({row["triggers"] for row in here}):
            if stream == "plain" and users == 10_000_000:
                printed = [large(number) for number in PAPER_TABLE_1[triggers]]
                shown.append([f"paper, T = {triggers:,}", *printed, "", "", "3"])
            arms = {row["arm"]: row for row in here if row["triggers"] == triggers}
            name = f"{stream}: " * (len(streams) > 1)
            shown += [[f"{name}`{arm}`, T = {triggers:,}", *dp_cells(arms[arm])]
                      for arm in ARMS if arm in arms]  # fmt: skip
    return table(HEAD, shown)


def dp_cells(row: dict[str, Any]) -> list[str]:
    """One line of such a table."""
    day = row["day"]
    ends = [large(row["end"][name]["mean"]) for name in ERRORS]
    share = f"{day['relative_l1']['mean']:.3f}"
    return [*ends, f"{day['keys']['mean']:,.0f}", share, str(row["seeds"])]


def dp_latency() -> str:
    """Milliseconds from a micro-batch in memory to its release."""
    rows = [row for row in kept("dp_sqlp")["rows"] if row["experiment"] == "figure9"]
    arms = ("dp-sqlp-rigorous", "ours")
    cells = {(row["arm"], row["rows"]): row for row in rows}
    lines = [
        [
            f"{size:,}",
            *(" to ".join(f"{1e3 * cells[arm, size][name]:.0f}" for name in SPANS) for arm in arms),
        ]
        for size in sorted({row["rows"] for row in rows})
    ]
    head = ("records in a micro-batch", *(f"`{arm}`: ms, median to 95%" for arm in arms))
    return table(head, lines)


SPANS = ("median_s", "p95_s")


def spark() -> str:
    """A private step beside Spark's own aggregation, in the same run before and after."""
    one = kept("spark")["local[2]"]
    mine, others = (
        one[f"seconds of every step [wall, CPU], {who}"] for who in ("private", "plain")
    )
    shares = one["share of plain speed [wall, CPU]"]
    small = [one[f"seconds of a small step [wall, CPU], {who}"] for who in ("private", "plain")]
    lines = [
        [f"{kind} seconds for a million rows", f"{median(step[at] for step in mine[1:]):.1f}",
         " and ".join(f"{median(step[at] for step in run[1:]):.1f}" for run in others),
         f"{shares[at]:.1f}"]
        for at, kind in ((1, "CPU"), (0, "wall"))
    ]  # fmt: skip
    lines += [
        ["CPU seconds of a step of 1,000 rows", *(f"{s[1]:.1f}" for s in small), ""],
        ["CPU seconds of the first step", f"{mine[0][1]:.0f}", f"{others[0][0][1]:.0f}", ""],
    ]
    head = ("warm steps", "private", "Spark's own, before and after", "share of its speed")
    return table(head, lines)  # fmt: skip


def spark_keys() -> str:
    """What a step costs by the number of keys in the state."""
    lines = []
    found = {name: one for name, one in kept("spark")["keys"].items() if name.isdigit()}
    for keys, one in found.items():
        steps = one["seconds of every step [wall, CPU]"]
        lines.append(
            [
                f"{int(keys):,}",
                f"{one['rows of every step'][0]:,}",
                f"{steps[4][1]:.1f}",
                f"{one['seconds of a small step [wall, CPU]'][1]:.1f}",
            ]
        )
    head = ("keys", "rows of a large step", "CPU seconds of it", "of a step of 1,000 rows")
    return table(head, lines)  # fmt: skip


def sketch_speed() -> str:
    """Nanoseconds a key by arrivals for each pushed column."""
    found = kept("sketches")
    python, compiled = found["cpu ns per key"], found["c++ cpu ns per key"]
    plain = min(
        ns for name, ns in python.items() if name.startswith("count-min") and "24 KB" in name
    )
    lines = [["Count-Min, 24 KB, not private", f"{plain:.2f}", "", f"{compiled['count-min']:.2f}"]]
    for s in (1, 4, 8, 16, 32):
        ns = python[f"lazy count-min blt-1, w=800, s={s}"]
        lines.append(
            [f"private, s = {s}", f"{ns:.2f}", part(plain / ns), f"{compiled[f'lazy-{s}']:.2f}"]
        )
    for name, told in (
        ("paper-lazy", "the paper's lazy form"),
        ("paper-punctual", "punctual form"),
    ):
        lines.append([told, "", "", f"{compiled[name]:,.0f}"])
    return table(("", "ns a key", "share of Count-Min's speed", "the same loop in C++, ns"), lines)


CONTAINERS = {
    "NumPy uint32": None, "NumPy int64": None, "Arrow text": None, "Arrow text, dictionary": None,
    "list of int": "DataSketches, list of int, map",
    "list of str": "DataSketches, list of str, map", "list of bytes": None,
}  # fmt: skip


def sketch_containers() -> str:
    """Count-Min by what the keys come in."""
    found = kept("sketches")["cpu ns per key by container"]
    lines = [[name, f"{found[name]:.1f}", f"{found[other]:.0f}" if other else "no such call"]
             for name, other in CONTAINERS.items()]  # fmt: skip
    return table(("keys in", "ours, ns a key", "DataSketches, ns a key"), lines)


def growing_sizes() -> str:
    """Errors on growing tables of three sizes, near n, 4 n and 16 n."""
    rows = kept("growing_E7")["rows"]
    sizes = sorted({row["n"] for row in rows})
    names = list(dict.fromkeys(row["mechanism"] for row in rows))
    cells = {(row["mechanism"], row["n"]): " / ".join(
        part(row[at]["mean"]) for at in ("at n", "at 4n", "at 16n")) for row in rows}  # fmt: skip
    head = ("largest error / size, near n / 4 n / 16 n", *(f"n = {size:,}" for size in sizes))
    return table(head, ([name, *(cells[name, size] for size in sizes)] for name in names))


def growing_powers() -> str:
    """Worst errors of re-runs by the size at the start, beside what is proved."""
    rows = kept("growing_E8")["rows"]
    cells = {(row["what"], row["n"]): row for row in rows if "n" in row}
    slopes = {row["what"].removesuffix(": slope"): row for row in rows if "slope" in row}
    names = ("paper", "plus")
    lines = [
        [
            f"{size:,}",
            *(part(cells[name, size][what]) for name in names for what in ("mean", "bound")),
        ]
        for size in sorted({size for name, size in cells if name == "paper"})
    ]
    ends = [f"{slopes[name][what]:.2f}" for name in names for what in ("slope", "predicted")]
    return table(("n", "`paper`", "proved", "`plus`", "proved"), [*lines, ["slope", *ends]])


def growing_worst(mechanism: str, sizes: str) -> str:
    """Errors of one mechanism by the size of the table."""
    rows = [row for row in kept("growing_E8")["rows"] if row["what"] == mechanism and "n" in row]
    heads, lines = (sizes, "largest error / size"), [[f"{r['n']:,}", part(r["mean"])] for r in rows]
    if "rounds" in rows[0]:
        heads = (*heads, "best number of rounds", "proved")
        lines = [[*line, str(row["rounds"]), part(row["bound"])]
                 for line, row in zip(lines, rows, strict=True)]  # fmt: skip
    return table(heads, lines)


def dp_workers() -> str:
    """Median seconds of a step on Spark, by rows and workers."""
    rows = [row for row in kept("dp_sqlp")["rows"] if row["experiment"] == "workers"]
    cells = {(row["workers"], row["rows"]): row["median_s"] for row in rows}
    lines = [
        [f"{size:,}", *(f"{cells[workers, size]:.2f}" for workers in (1, 2))]
        for size in sorted({size for _, size in cells})
    ]
    return table(("records in a step", "1 worker: s", "2 workers: s"), lines)
