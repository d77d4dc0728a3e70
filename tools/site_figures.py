"""Numbers within sentences of the pages, made from result files.

In a page `5<!-- = counters worst -->` is a number and the name under which it is made here. The
page can be read as it is; `python -m tools.site_figures` writes every such number again, and a test
holds that nothing would change. Whole tables are made when the site is built (`site_results`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from math import ceil, floor, log10
from pathlib import Path
from typing import Any

from tools import site_derived
from tools.site_performance import FULL, LOOK, RATE, SMALL
from tools.site_results import PAPER_TABLE_1, kept, table

ROOT = Path(__file__).parents[1]
FIGURE = re.compile(r"([\d.,]+(?:e-?\d+)?)<!-- = ([\w ]+) -->")
HORIZONS = (100, 1_000, 10_000, 100_000, 1_048_576)
COUNTERS = {"binary tree": "binary tree", "honaker": "Honaker", "haar": "Haar",
            "blt + columns": "BLT, the default", "lower bound": "lower bound"}  # fmt: skip

BOUNDED = {"duckdb": "duckdb once, own reader, bounded", "polars": "polars once, bounded"}
TIMED = {
    "blt d=2": "two", "blt d=6": "six",
    "numpy float Gaussian alone": "numpy", "opendp exact Gaussian alone": "opendp",
}  # fmt: skip


def short(number: float, digits: int = 2) -> str:
    """A number with so many digits that count, without an exponent."""
    places = max(0, digits - 1 - floor(log10(abs(number))))
    return f"{round(number, digits - 1 - floor(log10(abs(number)))):,.{places}f}"


def largest_sd() -> dict[tuple[str, int], float]:
    """The largest standard deviation of each counter at each horizon."""
    return {(row["row"], row["T"]): row["found"] for row in kept("counters")["max"]}


def counter_errors() -> str:
    """Error of counters by the number of releases, for the page of counters."""
    found = largest_sd()
    lines = [
        [told, *(f"{found[name, T]:.3f}" if (name, T) in found else "" for T in HORIZONS)]
        for name, told in COUNTERS.items()
    ]
    head = ("largest sd at sensitivity 1", *(f"T = {T:,}" for T in HORIZONS))
    return table(head, lines)


def of_counters() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/counters.py`."""
    all_of, sd = kept("counters"), largest_sd()
    excess = {row["T"]: row["ratio to bound"] - 1 for row in all_of["default"]}
    yield "worst", str(ceil(100 * max(excess.values())))
    yield "above bound", f"{100 * excess[1_000]:.0f}"
    yield "honaker variance", short((sd["honaker", 1_000] / sd["blt + columns", 1_000]) ** 2)
    ratios = {row["row"]: row["found"] for row in all_of["anytime"] if row["table"] == "A5 ratio"}
    yield "anytime blt", f"{ceil(100 * ratios['anytime blt 2^20']) / 100}"
    yield "anytime haar", f"{ceil(100 * ratios['anytime haar 2^20']) / 100}"
    yield "haar ratio", f"{ratios['anytime haar 2^20']:.3f}"
    yield "haar ratio long", f"{ratios['anytime haar 2^30']:.3f}"
    yield "sqrt hybrid", short(ratios["hybrid, sqrt toeplitz"], 3)
    epochs = "hybrid, binary tree, epochs of 1, 2, 4"
    [at_16] = [one["found"] for one in all_of["anytime"] if (one["row"], one["T"]) == (epochs, 16)]
    yield "first epochs", short(at_16, 3)
    seen = all_of["verdicts"]
    names = {"equal": "equal", "better": "better", "near": "near", "DIFFERS": "differ"}
    yield "compared", str(sum(seen[name] for name in names))
    yield from ((told, str(seen[name])) for name, told in names.items())
    times = {row["name"]: row["ns_median"] for row in all_of["times"]}
    yield from ((f"ns of {told}", short(times[name])) for name, told in TIMED.items())
    slack = {row["T"]: row["slack / sigma"] for row in all_of["default"]}
    yield "slack short", f"{slack[100]:.0e}"
    yield "slack long", f"{slack[1_048_576]:.0e}"


def of_noise() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/noise.py`: nanoseconds each."""
    found = {row["what"]: row["ns_each"] for row in kept("noise")["rows"]}
    gaussian = [ns for what, ns in found.items() if what.startswith("rounded Gaussian, real")]
    yield "word", short(found["words: AES-256 counter mode, per word"])
    yield "gaussian least", short(min(gaussian))
    yield "gaussian most", short(max(gaussian))
    yield "laplace", short(found["rounded Laplace, scale 7"])
    yield "numpy", short(found["numpy float Gaussian"])
    yield "blt", short(found["BLT step (d = 4): PRF + noise + state, per key-step"])
    yield "opendp", short(found["OpenDP exact Gaussian, integers, scale 10"])


def of_audits() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/audit_power.py`."""
    found = kept("audit_power")
    faults = [item for query in found["queries"].values() for item in query["faults"].items()]
    for told, start in {"half": "half", "quarter": "three quarters"}.items():
        rows = [row for name, row in faults if name.startswith(start)]
        yield f"{told} caught", str(sum(row["refuted"] for row in rows))
        yield f"{told} tried", str(sum(row["of"] for row in rows))
        yield f"{told} least", str(min(row["groups"] for row in rows))
        yield f"{told} most", str(max(row["groups"] for row in rows))
    yield "honest", f"{found['honest']['audits']:,}"
    yield "alarms", str(found["honest"]["alarms"])


def of_jobs() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/as_run.py` and `benchmarks/throughput.py`."""
    found = kept("as_run")
    start, run = found["start"], found["10000000 users"]
    yield "import", f"{start['import streamveil']['cpu']:.2f}"
    yield "readme", f"{start['README']['cpu']:.1f}"
    yield "readme by line", f"{start['README, command line']['cpu']:.1f}"
    yield "many releases", f"{start['explain of 86,400 releases']['cpu']:.1f}"
    yield "many by line", f"{start['explain of 86,400 releases, command line']['cpu']:.1f}"
    for told, name in {
        "looked": "default, 2 processors",
        "bounded": "32 rows, 2 processors",
    }.items():
        yield told, f"{run[name]['ns of CPU a record'] / 1e3:.2f}"
    yield "memory", f"{run['default, 2 processors']['peak MB'] / 1e3:.1f}"
    alone, both = (run[f"32 rows, {n} processors"]["wall"] for n in (1, 2))
    yield "second processor", f"{alone / both:.1f}"
    parts = kept("where")["as a user"]
    busy = max(way["one thread"] / way["total"] for way in (parts["default"], parts["32 rows"]))
    yield "decoding", f"{parts['reading alone']:.0f}"
    yield "one thread", f"{busy:.1f}"
    yield "two processors", f"{1 / busy:.1f}"
    jobs = [
        found["ratios"]
        for name, kinds in kept("throughput").items() if name in (SMALL, FULL)
        for kind, found in kinds.items() if kind in ("int", "text")
    ]  # fmt: skip
    beside = kept("throughput")[LOOK]["int"]
    looked, rate = beside["ratios"], {way: one[RATE] for way, one in beside["found"].items()}
    yield "bounding", f"{rate['duckdb once, own reader'] / rate[BOUNDED['duckdb']]:.1f}"
    yield "bounding polars", f"{rate['polars once'] / rate[BOUNDED['polars']]:.1f}"
    yield "of bare", f"{looked['of duckdb once, own reader']:.1f}"
    yield "of bounded", f"{looked['of duckdb once, own reader, bounded alike']:.1f}"
    for other in ("floor", "DuckDB"):
        shares = [ratios[f"of {other}"] for ratios in jobs]
        yield f"least of {other}", f"{min(shares):.1f}"
        yield f"most of {other}", f"{max(shares):.1f}"


def of_steps() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/triggers.py`: CPU of a step."""
    found = kept("triggers")
    yield "count", f"{found['ms a step']['count']:.1f}"
    names = {"median": "quantile", "more rows": "rows", "alone": "alone"}
    yield from ((told, f"{found['of count'][name]:.1f}") for told, name in names.items())


def of_waits() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/latency.py`: milliseconds from a row to its release."""
    ways = {"followed": "a followed folder", "alone": "without waiting"}
    for told, name in ways.items():
        yield f"{told} median", f"{kept('latency')[name]['p50 ms']:.0f}"
        yield f"{told} most", f"{kept('latency')[name]['p99 ms']:.0f}"


def of_memory() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/memory.py`: nanoseconds a line."""
    yield "large table", short(kept("memory")["ns a line"]["240 MB"]["read and change"], 1)


def of_spark() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/spark.py`, on two cores."""
    found = kept("spark")["local[2]"]
    parts = found["operators alone, one core"]
    rows = found["rows per step"] / 1e6
    stages = {"bounding": ("bound",), "reading": ("read", "admit", "to bytes", "from bytes"),
              "key stage": ("gather", "release", "write deltas")}  # fmt: skip
    for told, names in stages.items():
        yield told, short(sum(parts[name] for name in names) / rows)
    unit, key = parts["bytes of deltas"]
    yield "unit", f"{parts['bytes per unit']:.0f}"
    yield "key", f"{parts['bytes per key']:.0f}"
    yield "shard", f"{parts['bytes per key'] / 800:.1f}"
    yield "unit delta", f"{unit / found['rows per step']:.0f}"
    yield "key delta", f"{key / parts['rows to key stage']:.0f}"
    wall, cpu = found["seconds of a small step [wall, CPU], private"]
    yield "small wall", f"{wall:.1f}"
    yield "small", f"{cpu:.1f}"


def of_regret() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/regret.py` and `regret_judge.py`."""
    cells: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in kept("regret")["rows"]:
        cells.setdefault((row["stream"], row["triggers"], *row["budget"]), {})[row["arm"]] = row
    whole = {"default", "preset", "gaussian-1", "gaussian-c", "flat", "weighted"}
    cells = {cell: arms for cell, arms in cells.items() if whole <= set(arms)}
    least: dict[str, float] = {}
    for cell, arms in cells.items():
        if "coverage" in arms.get("covered", {}):
            least[cell[0]] = min(least.get(cell[0], 1.0), arms["covered"]["coverage"])
    yield "streams", str(len(least))
    yield "covered streams", str(sum(share >= 0.9 for share in least.values()))
    told = "few", "small", "flights", "reddit"
    yield from ((f"{name} least", percent(least[name])) for name in told)
    yield "noise least", percent(min(arms["default"]["coverage"] for arms in cells.values()))
    wider = [arms["covered"]["width"] / arms["default"]["width"]
             for arms in cells.values() if "coverage" in arms.get("covered", {})]  # fmt: skip
    yield "wider", f"{max(wider):.0f}"
    ahead = [arms["default"]["forecast"]["l1"] / arms["default"]["l1"]
             for arms in cells.values() if "forecast" in arms["default"]]  # fmt: skip
    yield "forecasts", str(len(ahead))
    yield "forecasts off", str(sum(not 0.8 <= one <= 1.25 for one in ahead))
    untold: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in kept("regret")["rows"]:
        if "l1" in row:
            place = row["stream"], row["triggers"], *row["budget"]
            untold.setdefault(place, {})[row["arm"]] = row["l1"]
    worse = [arms["blind"] / arms["expected"] for arms in untold.values()
             if {"blind", "expected"} <= set(arms)]  # fmt: skip
    yield "live worst", f"{max(worse):.0f}"
    looks = [one for name, found in kept("regret_judge")["after"].items() if "e=1 " in name
             for one in found["misses"]]  # fmt: skip
    yield "look worst", f"{max(looks):.0f}"


def percent(share: float) -> str:
    """A share in whole percent."""
    return f"{100 * share:.0f}"


def of_changing() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/papers/dynamic.py`."""
    opened = {row["matching"]: row["buckets"] for row in kept("dynamic_E12")["rows"]
              if row["steps"] == 256}  # fmt: skip
    yield "oldest first", str(opened["first in, first out"])
    [once] = [row for row in kept("dynamic_E13")["rows"] if row["mechanism"] == "static reference"]
    yield "static", f"{once['smallest']:,.0f}"


def of_distinct() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/dynamic_distinct.py`: errors of counts of different values."""
    found = kept("dynamic_distinct")
    yield "steps", str(found["steps"])
    yield "shop", f"{found['shop']:.0f}"
    yield "recount", f"{found['recount_deviation']:.0f}"
    for row in (one for one in found["rows"] if one["max_changes"] in (2, 8, 16)):
        yield f"at {row['max_changes']}", f"{row['shop_rmse']:.0f}"
        yield f"covered {row['max_changes']}", percent(row["covered"])


def of_scale() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/scale.py`: how many times as much a record costs with more units."""
    found = kept("scale")["C=32"].values()
    cost = [one["ms of CPU per batch of 500,000"] for one in found]
    yield "slower", f"{cost[-1] / cost[0]:.1f}"


def of_growing() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/papers/growing.py`: hard questions of PMWG."""
    hard = kept("growing_E9")["rows"]
    yield "hard least", str(min(row["hard"] for row in hard))
    yield "hard most", str(max(row["hard"] for row in hard))
    yield "hard bound", f"{hard[0]['bound']:,.0f}"
    yield "hard bound of paper", f"{hard[0]['paper']:,.0f}"
    yield "hard sum", f"{max(row['sum_over_bound'] for row in hard):.2f}"


def of_sqlp() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/papers/dp_sqlp.py` at full size."""
    found = {
        (row["stream"], row["arm"], row["triggers"]): row for row in kept("dp_sqlp")["rows"]
        if row["experiment"] == "table" and row["users"] == 10_000_000
    }  # fmt: skip
    metrics = ("keys", "linf", "l1", "l2")

    def over_printed(arm: str, metric: str) -> list[float]:
        at = metrics.index(metric)
        return [found["plain", arm, steps]["end"][metric]["mean"] / printed[at]
                for steps, printed in PAPER_TABLE_1.items()]  # fmt: skip

    off = [abs(ratio - 1) for name in metrics for ratio in over_printed("dp-sqlp", name)]
    yield "reproduced", f"{ceil(100 * max(off))}"
    keys = over_printed("ours", "keys")
    yield "least keys", short(min(keys))
    yield "most keys", short(max(keys))
    yield from ((name, f"{100 * max(over_printed('ours', name)):.0f}") for name in ("l1", "l2"))
    kept_keys = [
        found["clumpy", "ours", steps]["end"]["keys"]["mean"]
        / found["plain", "ours", steps]["end"]["keys"]["mean"] for steps in PAPER_TABLE_1
    ]  # fmt: skip
    yield "keys lost", f"{100 * (1 - min(kept_keys)):.0f}"
    for told, steps in {"seconds": 100, "more seconds": 1_000}.items():
        yield told, f"{found['plain', 'ours', steps]['seconds']:.0f}"


def of_sketches() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/sketches.py`: what privacy takes of the speed of Count-Min."""
    share = kept("sketches")["share of the fastest count-min in the same 24 KB"]
    for pushed in (8, 16):
        yield (
            f"slower at {pushed}",
            f"{100 * (1 - share[f'lazy count-min blt-1, w=800, s={pushed}']):.0f}",
        )


def of_peers() -> Iterator[tuple[str, str]]:
    """Figures of `benchmarks/peers.py`, seconds until Tumult answered, and `one_shot_peer.py`."""
    for row in kept("peers")["rows"]:
        if row["library"] == "tumult":
            yield f"tumult {row['question']}", f"{row['seconds']:.0f}"
    for answer in ("count", "sum"):
        rows = [row for row in kept("one_shot_peer")["rows"] if row["answer"] == answer]
        yield f"{answer} most", f"{max(row['sd_ratio'] for row in rows):.2f}"


ABOUT: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "counters": of_counters, "noise": of_noise, "audits": of_audits,
    "jobs": of_jobs, "steps": of_steps, "waits": of_waits, "memory": of_memory,
    "spark": of_spark, "regret": of_regret, "growing": of_growing, "sqlp": of_sqlp,
    "sketches": of_sketches, "peers": of_peers, "changing": of_changing, "distinct": of_distinct,
    "scale": of_scale,
    "space": site_derived.of_strategies, "cells": site_derived.of_cells,
    "bets": site_derived.of_bets,
}  # fmt: skip


def figures() -> dict[str, str]:
    """Every number with its name."""
    return {f"{page} {name}": text for page, made in ABOUT.items() for name, text in made()}


def pages() -> list[Path]:
    """Pages that may hold numbers."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def filled(text: str, known: dict[str, str]) -> str:
    """A page with its numbers as the results have them."""
    return FIGURE.sub(lambda found: f"{known[found[2]]}<!-- = {found[2]} -->", text)


def put(page: Path, text: str) -> None:
    """Writes a page as a whole: whoever ends this halfway leaves the old one."""
    draft = page.with_name(f".{page.name}.new")
    draft.write_text(text)
    draft.replace(page)


def main() -> None:
    """Writes every number of the pages again."""
    known = figures()
    for page in pages():
        old = page.read_text()
        if (new := filled(old, known)) != old:
            put(page, new)


if __name__ == "__main__":
    main()
