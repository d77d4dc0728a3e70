"""Makes the figures and tables of docs/papers anew: remake.py PAGE, or --draw for kept results.

Each page has its experiments here, so that one command remakes it. Results are JSON in
benchmarks/results; the site makes its tables from them. Nothing here measures: it names what does.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results"
STREAMS = ("--full", "--triggers", "100", "1000", "--streams", "plain", "clumpy")


@dataclass(frozen=True)
class Page:
    """What one page needs: commands that measure, commands that only draw, and how long."""

    measure: tuple[tuple[str, ...], ...]
    draw: tuple[tuple[str, ...], ...]
    takes: str


PAGES = {
    "group-by": Page(
        (
            ("dp_sqlp.py", "table", *STREAMS), ("dp_sqlp.py", "table2", "--full"),
            ("dp_sqlp.py", "figure10", "--scale", "0.03"), ("dp_sqlp.py", "figure9"),
        ),
        (("dp_sqlp_figures.py",),),
        "half an hour for each arm and seed at full size",
    ),
    "sketches": Page((("lazysketch.py",),), (), "an hour; figures are drawn while it measures"),
    "changing-tables": Page((("dynamic.py",),), (("dynamic_figures.py",),), "hours"),
    "growing-tables": Page((("growing.py",),), (("remake.py", "growing-drawn"),), "hours"),
}  # fmt: skip


def draw_growing() -> None:
    """Draws the figures of growing tables from kept results."""
    import growing

    for name, draw in (("E7", growing.draw_e7), ("E8", growing.draw_e8), ("E11", growing.draw_e11)):
        draw(json.loads((RESULTS / f"growing_{name}.json").read_text())["rows"])


def main() -> None:
    """Runs what the command line names, or says what there is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", nargs="?", choices=[*PAGES, "growing-drawn"])
    parser.add_argument("--draw", action="store_true", help="from kept results, in seconds")
    given = parser.parse_args()
    if given.page is None:
        for name, page in PAGES.items():
            print(f"{name:16} {page.takes}")
        return
    if given.page == "growing-drawn":
        draw_growing()
        return
    page = PAGES[given.page]
    for script, *options in (*(() if given.draw else page.measure), *page.draw):
        subprocess.run([sys.executable, str(HERE / script), *options], check=True)


if __name__ == "__main__":
    main()
