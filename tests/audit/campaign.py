"""The exact account at length, with new seeds; writes docs/account.md.

    python -m tests.audit.campaign --pairs 100000 [--seed N] [--page]

Six of ten pairs are of group-bys, one of sketches, three of the library's mechanisms. `--page` only
writes the page again. A claim that is passed is kept with its seed, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamveil import terminal
from streamveil.audit.worst import accounts
from tests.audit import library, test_sketches
from tests.audit.queries import compiled
from tests.audit.test_library import STEPS, pairs_of

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "account.json", ROOT / "docs" / "account.md"
PAIRS_OF_QUERY = 20
SHARES = {"group-by": 0.6, "sketch": 0.1, "library": 0.3}  # of all pairs
PARTS = re.compile(r" (pure|zcdp|hidden steps|True|False|mwem|queries|small|tree|ways)\b")
Judged = tuple[str, int, dict[str, float], str]  # room, seed, tightness by mechanism, what is wrong


def group_bys(seed: int) -> Iterator[Judged]:
    """Pairs of neighbours of one generated query."""
    _, operator = compiled(np.random.default_rng(seed))
    for one in accounts(operator, seed, PAIRS_OF_QUERY):
        most: dict[str, float] = {}
        for part in one.account.parts:
            name = part.name.split("(")[-1].rstrip(")")
            most[name] = max(most.get(name, 0.0), part.tightness)
        yield "group-by", seed, most, "" if one.account.stands else one.account.broken()


def sketches(seed: int) -> Iterator[Judged]:
    """Pairs of neighbours of one query that is answered by a sketch."""
    makes = (test_sketches.freq, test_sketches.windows, test_sketches.periods, test_sketches.finder)
    make = makes[seed % len(makes)]
    for one in accounts(make(), seed, PAIRS_OF_QUERY):
        wrong = "" if one.account.stands else one.account.broken()
        yield "sketch", seed, {make.__name__: one.account.tightness}, wrong


def mechanisms(seed: int) -> Iterator[Judged]:
    """A pair of neighbours for every configuration of every mechanism of the library."""
    for name, stands, tightness in pairs_of(seed, list(library.tables(STEPS))):
        wrong = "" if stands else f"{name}: {tightness}"
        yield "library", seed, {PARTS.sub("", name): tightness}, wrong


TITLES = {"group-by": "group-bys", "sketch": "sketches", "library": "the library's mechanisms"}
ROOMS = {"group-by": group_bys, "sketch": sketches, "library": mechanisms}


def campaign(pairs: int, seed: int) -> dict[str, Any]:
    """So many pairs, and how tight each claim was seen to be."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    tried, wrong = dict.fromkeys(ROOMS, 0), []
    for room, share in SHARES.items():
        at = seed
        while tried[room] < pairs * share:
            for _, _, parts, broken in ROOMS[room](at):
                tried[room] += 1
                for name, tightness in parts.items():
                    found[room][name].append(tightness)
                if broken:
                    wrong.append({"room": room, "seed": at, "broken": broken})
            at += 1
        terminal.say(f"{room}: {tried[room]:,} pairs, {len(wrong)} violations")
    tight = {
        room: {
            name: {"pairs": len(some), "median": float(np.median(some)), "worst": max(some)}
            for name, some in sorted(parts.items())
        }
        for room, parts in found.items()
    }
    return {"seed": seed, "pairs": tried, "violations": wrong, "tightness": tight}


def render(content: dict[str, Any]) -> str:
    """The page."""
    pairs, violations = content["pairs"], content["violations"]
    lines = [
        "# How tight the claims are",
        "The exact account compares what one unit really loses, on generated queries and"
        " neighbours, with what is claimed ([how it works](review-mechanisms.md)). A tightness of 1"
        " is a claim without slack; above 1 it is false.",
        "This page is written by `python -m tests.audit.campaign` from"
        f" `benchmarks/results/account.json` (seed {content['seed']}).",
        f"**{sum(pairs.values()):,} pairs of neighbours**: "
        + ", ".join(f"{number:,} of {TITLES[room]}" for room, number in pairs.items())
        + f". **Claims passed: {len(violations)}.**",
    ]
    for room, parts in content["tightness"].items():
        rows = [
            f"| {name} | {one['pairs']:,} | {one['median']:.3f} | {one['worst']:.3f} |"
            for name, one in parts.items()
        ]
        head = ["| mechanism | pairs | median | worst |", "|---|--:|--:|--:|"]
        lines += [f"## {TITLES[room].capitalize()}", "\n".join(head + rows)]
    return "\n\n".join(lines) + "\n"


def main() -> int:
    """Runs the campaign and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if not given.page:
        seed = given.seed or int(np.random.SeedSequence().entropy % 10**12)
        RESULTS.write_text(json.dumps(campaign(given.pairs, seed), indent=1) + "\n")
    content = json.loads(RESULTS.read_text())
    PAGE.write_text(render(content))
    return bool(content["violations"])


if __name__ == "__main__":
    sys.exit(main())
