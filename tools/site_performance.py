"""Tables of the page on performance, made from result files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tools.site_results import kept, part, table

SMALL, FULL, LOOK = (f"{users} users, clumpy 0.0" for users in (400_000, 10_000_000, 1_000_000))
RATE = "records per CPU second"
WAYS = {
    "read only": "reading only", "floor": "exact counts, compiled, nothing kept (the floor)",
    "duckdb rebuild": "DuckDB, counted anew each time", "duckdb upsert": "DuckDB, added up",
    "private, C=32": "private, 32 rows a unit",
    "private, quadratic B=128": "private, quadratic bound",
}  # fmt: skip
BY_ITSELF = {
    "private, C=32, with its look": "private, 32 rows a unit, with its look",
    "duckdb once, own reader": "DuckDB, its own reader",
    "duckdb once, own reader, bounded": "DuckDB, bounded to 32 rows a unit",
    "polars once": "Polars, its own reader", "polars once, bounded": "Polars, bounded the same way",
}  # fmt: skip


def throughput() -> str:
    """Millions of records per CPU second, without a look."""
    found = kept("throughput")
    streams = [(name, kind) for name in (SMALL, FULL) for kind in ("int", "text")]
    rows = [
        [told, *(f"{found[s][k]['found'][way][RATE] / 1e6:.1f}" for s, k in streams)]
        for way, told in WAYS.items()
    ]
    head = ["millions of records per CPU second", "2.4M, integers", "2.4M, text", "59M, integers"]
    return table([*head, "59M, text"], rows)


def looked() -> str:
    """The same for jobs that look first, beside others' own readers and bounding."""
    found = kept("throughput")[LOOK]["int"]["found"]
    rows = [[told, f"{found[way][RATE] / 1e6:.1f}"] for way, told in BY_ITSELF.items()]
    return table(("5.9M records of 1M units, ten micro-batches", "millions a CPU second"), rows)


def stages() -> str:
    """Where the CPU of a job as a user runs it goes, the largest part first."""
    found = kept("where")["as a user"]
    ways = {name: found[name] for name in ("default", "32 rows")}
    every = {part: [one["ns per record"].get(part, 0.0) for one in ways.values()]
             for part in ways["default"]["ns per record"]}  # fmt: skip
    parts = sorted(every.items(), key=lambda one: -one[1][0])
    rows = [[name, *(f"{took:.0f}" for took in each)] for name, each in parts if max(each) >= 1]
    rows.append(["together", *(f"{one['total']:.0f}" for one in ways.values())])
    return table(["nanoseconds of CPU a record", "default settings", "32 rows a unit"], rows)


def growth() -> str:
    """How the cost of a job grows with what it counts."""
    rows = [
        [what, *(f"{size:,}: {took:.2f}" for size, took in
                 zip(one["sizes"], one["seconds of CPU"], strict=True)), f"{one['exponent']:.2f}"]
        for what, one in kept("growth").items()
    ]  # fmt: skip
    return table(("seconds of CPU by the number of", "", "", "", "exponent"), rows)


SCALE = {
    "CPU for 500,000 records, ms": ("ms of CPU per batch of 500,000", 1, "{:.0f}"),
    "CPU for 100 records, ms": ("ms of CPU per batch of 100", 1, "{:.1f}"),
    "bytes for a unit": ("bytes per user, one row each", 1, "{:.1f}"),
    "bytes for a group": ("bytes per key", 1, "{:.0f}"),
    "restart, CPU seconds": ("restart, s of CPU", 1, "{:.2f}"),
    "peak of memory, MB": ("peak memory, bytes", 1e6, "{:,.0f}"),
}  # fmt: skip


def scale() -> str:
    """Cost and memory by the number of units."""
    found = kept("scale")["C=32"]
    head = ["32 rows a unit", *(f"{int(users):,} units" for users in found)]
    rows = [
        [told, *(text.format(found[users][name] / by) for users in found)]
        for told, (name, by, text) in SCALE.items()
    ]
    return table(head, rows)


def sources() -> str:
    """Each source against the bare client of its system."""
    rows = [
        [one["against"], part(one["share"]), part(one["share_of_cpu"])]
        for one in kept("sources")["cases"]
    ]
    return table(("against", "share of its rows a second", "share per CPU second"), rows)


def wakeup() -> str:
    """Two ways to test hidden groups."""
    head = ("triggers", "sweep, ns a group", "lazy, µs a touch", "threshold, sweep", "lazy")
    return table(
        head,
        ([f"{row['horizon']:,}", f"{row['sweep_ns_per_key']:.0f}", part(row["lazy_us_per_touch"]),
          f"{row['threshold_blt']:.1f}", f"{row['threshold_haar']:.1f}"] for row in largest()),
    )  # fmt: skip


def largest() -> Iterator[dict[str, Any]]:
    """The row of the most groups for each number of triggers."""
    rows = kept("wakeup")["rows"]
    for horizon in sorted({row["horizon"] for row in rows}):
        yield max((r for r in rows if r["horizon"] == horizon), key=lambda row: row["keys"])


def replay() -> str:
    """Reading by the event clock."""
    ways = kept("replay")["ways"].items()
    return table(
        ("59M records with their times", "CPU seconds", "ns a record", "peak, MB"),
        ([way, f"{one['cpu']:.1f}", f"{one['ns of CPU a record']:.0f}", f"{one['peak MB']:,.0f}"]
         for way, one in ways),
    )  # fmt: skip
