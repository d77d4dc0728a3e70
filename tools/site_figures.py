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

from tools.site_results import kept, table

ROOT = Path(__file__).parents[1]
FIGURE = re.compile(r"([\d.,]+(?:e-?\d+)?)<!-- = ([\w ]+) -->")
HORIZONS = (100, 1_000, 10_000, 100_000, 1_048_576)
COUNTERS = {"binary tree": "binary tree", "honaker": "Honaker", "haar": "Haar",
            "blt + columns": "BLT, the default", "blt + both": "BLT, noise schedule too",
            "lower bound": "lower bound"}  # fmt: skip

TIMED = {
    "blt d=2": "two", "blt d=6": "six", "haar T=1000": "haar", "haar T=2^20": "long haar",
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
    gains = [1 - sd["blt + both", T] / sd["blt + columns", T] for T in HORIZONS[:4]]
    yield "least gain", f"{max(1, floor(100 * min(gains)))}"
    yield "most gain", f"{ceil(100 * max(gains))}"
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


ABOUT: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "counters": of_counters, "noise": of_noise, "audits": of_audits,
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


if __name__ == "__main__":
    for page in pages():
        page.write_text(filled(page.read_text(), figures()))
