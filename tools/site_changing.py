"""Tables of the page on tables that change, made from result files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tools.site_results import kept, part, table

Row = dict[str, Any]


def pivot(
    rows: Sequence[Row], line: str, column: str, cell: Callable[[Row], str],
    head: Callable[[Any], str] = str,
) -> str:  # fmt: skip
    """One line for each value of a field, one column for each of another."""
    lines, columns = (list(dict.fromkeys(row[name] for row in rows)) for name in (line, column))
    cells = {(row[line], row[column]): cell(row) for row in rows}
    return table(
        ("", *map(head, columns)),
        ([str(one), *(cells.get((one, place), "") for place in columns)] for one in lines),
    )


def spread(row: Row) -> str:
    """A mean with its spread over seeds."""
    return f"{part(row['mean'])} ± {part(row['sd'])}" if "sd" in row else part(row["mean"])


def whole(row: Row) -> str:
    """The same of numbers of records."""
    return f"{row['mean']:,.0f} ± {row['sd']:,.0f}" if "sd" in row else f"{row['mean']:,.0f}"


def named(mark: str, form: str) -> Callable[[Any], str]:
    """A head of a column."""
    return lambda value: form.format(**{mark: value})


def turnover() -> str:
    """Errors by the number of steps."""
    rows = [*kept("dynamic_E1")["rows"], *kept("dynamic_E1_long")["rows"]]
    return pivot(rows, "mechanism", "steps", spread, named("n", "{n:,} steps"))


def sizes() -> str:
    """Errors by the number of records."""
    rows = kept("dynamic_E1_sizes")["rows"]
    return pivot(rows, "mechanism", "n", lambda row: part(row["mean"]), named("n", "{n:,} records"))


def phases() -> str:
    """Errors in records while the table shrinks and grows again."""
    return pivot(kept("dynamic_E2")["rows"], "mechanism", "phase", whole)


def restarts() -> str:
    """Errors by the rounds of a bucket."""
    rows = kept("dynamic_E3")["rows"]
    return pivot(rows, "most_rounds", "n", spread, named("n", "{n:,} records"))


def segments() -> str:
    """What partitions make of sparse streams."""
    rows = kept("dynamic_E5")["rows"]
    return table(
        ("steps, events", "partition", "segments", "empty", "largest"),
        ([f"{row['steps']}, {row['n']:,}", row["partition"], f"{row['segments']:,.0f}",
          f"{row['empty']:.1f}", f"{row['largest']:.0f}"] for row in rows),
    )  # fmt: skip


def counters() -> str:
    """Deviations of counts, over all steps and at most."""
    rows = kept("dynamic_E6")["rows"]
    return pivot(rows, "mechanism", "steps", lambda row: f"{row['rms']:.1f} / {row['largest']:.1f}",
                 named("n", "{n:,} steps"))  # fmt: skip


def steps_of_mwem() -> str:
    """Errors by the step of MWEM."""
    rows = kept("dynamic_E10")["rows"]
    return pivot(rows, "step", "n", spread, named("n", "{n:,} records"))


def smallest() -> str:
    """The smallest table with a useful proof."""
    rows = [row for row in kept("dynamic_E13")["rows"] if row["mechanism"] != "static reference"]
    return pivot(rows, "mechanism", "steps", least, named("n", "{n:,} steps"))


def least(row: Row) -> str:
    """A number of records, or that none is enough."""
    size = row["smallest"]
    if math.isinf(size):
        return "> 10^16"
    return f"{size:,.0f}" if size < 1e6 else f"{size:.1e}"


def count_errors() -> str:
    """Errors of one count."""
    return pivot(
        kept("dynamic_E14")["rows"], "mechanism", "steps", whole, named("n", "{n:,} steps")
    )


def costs() -> str:
    """Microseconds for each update, average so far."""
    rows = kept("dynamic_cost")["rows"]
    return pivot(rows, "mechanism", "updates", lambda row: f"{row['us']:.2f}",
                 named("n", "{n:,} updates"))  # fmt: skip


SPARSE = {
    "dense hybrid": "every step, unknown end", "dense 16-ary": "every step, known end, 16-ary tree",
    "published": "published partition and hybrid", "ours": "`TimeVarying` and an 8-ary tree",
    "trivial (0)": "trivial (answer 0)", "static reference": "static reference",
}  # fmt: skip


SHORTER = (("2^20", 3_000), ("2^30", 3_000))  # streams that are shown, beside the longest


def sparse() -> str:
    """Errors of counts of few events in many steps."""
    rows = [{**row, "mechanism": SPARSE[row["mechanism"]], "stream": (row["steps"], row["n"])}
            for row in kept("dynamic_E4")["rows"]
            if row["steps"] == "2^40" or (row["steps"], row["n"]) in SHORTER]  # fmt: skip
    return pivot(
        rows, "mechanism", "stream", missed, lambda one: f"{one[0]} steps, {one[1]:,} events"
    )


def missed(row: Row) -> str:
    """A root mean square error, and what is not counted yet on average."""
    waits = row["mechanism"] in (SPARSE["published"], SPARSE["ours"])
    return f"{row['rmse']:,.0f}" + (f" ({row['undercount']:,.0f})" if waits else "")


def large_classes() -> str:
    """Errors and costs of static mechanisms on classes of many queries."""
    lines = [
        [f"{row['k']:,} {row['queries']}", row["mechanism"], part(row["mean"]),
         f"{row['seconds']:.1f}" if "seconds" in row else ""]
        for row in kept("dynamic_large")["rows"]
    ]  # fmt: skip
    return table(("queries", "mechanism", "error / records", "CPU seconds"), lines)


ALL = (
    turnover, sizes, phases, restarts, segments, counters, steps_of_mwem, smallest,
    count_errors, costs, sparse, large_classes,
)  # fmt: skip
