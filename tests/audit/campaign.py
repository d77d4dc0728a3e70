"""The exact account at length, with new seeds; writes docs/account.md.

    python -m tests.audit.campaign --pairs 100000 [--seconds 3600] [--seed N] [--page]

All rooms take turns, by their shares of the pairs, until there are enough pairs or the time is
over. Campaigns add up in `benchmarks/results/account.json`; the page shows the tightness that
all of them saw. `--page` only writes the page again. A claim that is passed is kept with its seed,
and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamveil import terminal
from streamveil.audit.account import QueryAccount
from streamveil.audit.worst import accounts
from tests.audit import ledgers, library, looks, table_texts, test_rounds, test_sketches, texts
from tests.audit.queries import compiled
from tests.audit.test_ledgers import SLACK
from tests.audit.test_library import STEPS, pairs_of

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "account.json", ROOT / "docs" / "account.md"
PAIRS_OF_QUERY = 20
SAVED = 60.0  # seconds between two times at which what was found is written
PARTS = re.compile(r" (pure|zcdp|hidden steps|True|False|mwem|queries|small|tree|ways)\b")
Judged = tuple[dict[str, float], Any]  # tightness by mechanism, what is wrong


def of_account(found: QueryAccount) -> Judged:
    """The parts of one pair's account, by mechanism."""
    most: dict[str, float] = {}
    for part in found.parts:
        name = part.name.split("(")[-1].rstrip(")")
        most[name] = max(most.get(name, 0.0), part.tightness)
    return most, None if found.stands else found.broken()


def group_bys(seed: int) -> Iterator[Judged]:
    """Pairs of neighbours of one generated query."""
    _, operator = compiled(np.random.default_rng(seed))
    for one in accounts(operator, seed, PAIRS_OF_QUERY):
        yield of_account(one.account)


def jobs(seed: int) -> Iterator[Judged]:
    """Pairs of raw inputs of one job over the whole grammar of SQL."""
    for text, found in texts.judged(seed, PAIRS_OF_QUERY):
        parts, wrong = of_account(found)
        yield parts, wrong and [text, *wrong]


def rounds(seed: int) -> Iterator[Judged]:
    """Pairs of neighbours of one query of the preset dp-sqlp."""
    for one in test_rounds.judged(seed, PAIRS_OF_QUERY):
        yield of_account(one.account)


def the_look(seed: int) -> Iterator[Judged]:
    """Pairs of raw inputs of one look."""
    for text, lost, claim, share in looks.judged(seed, PAIRS_OF_QUERY // 2):
        stands = lost.stands(claim) and claim.fits(share)
        yield {"look": lost.tightness(claim)}, None if stands else text


def tables(seed: int) -> Iterator[Judged]:
    """Pairs of change data of one query over a changing table, with questions."""
    for text, operator, lost in table_texts.judged(seed, PAIRS_OF_QUERY // 2):
        claim = operator.guarantee.loss
        name = type(operator.mechanism).__name__ + " with questions" * bool(operator.adaptive)
        yield {name: lost.tightness(claim)}, None if lost.stands(claim) else text


def rules(seed: int) -> Iterator[Judged]:
    """One ledger, filled."""
    parts = dict(ledgers.judged(seed))
    yield parts, None if max(parts.values()) <= SLACK else parts


def sketches(seed: int) -> Iterator[Judged]:
    """Pairs of neighbours of one query that is answered by a sketch."""
    makes = (test_sketches.freq, test_sketches.windows, test_sketches.periods, test_sketches.finder)
    make = makes[seed % len(makes)]
    for one in accounts(make(), seed, PAIRS_OF_QUERY):
        wrong = None if one.account.stands else one.account.broken()
        yield {make.__name__: one.account.tightness}, wrong


def mechanisms(seed: int) -> Iterator[Judged]:
    """A pair of neighbours for every configuration of every mechanism of the library."""
    for name, stands, tightness in pairs_of(seed, list(library.tables(STEPS))):
        yield {PARTS.sub("", name): tightness}, None if stands else f"{name}: {tightness}"


ROOMS = {  # name -> (title, share of the pairs, what is judged)
    "group-by": ("group-bys", 0.30, group_bys),
    "job": ("jobs over raw rows, the whole grammar of SQL", 0.15, jobs),
    "look": ("looks at the rows", 0.04, the_look),
    "table": ("changing tables and questions to them", 0.05, tables),
    "rounds": ("the preset dp-sqlp", 0.05, rounds),
    "sketch": ("sketches", 0.05, sketches),
    "library": ("the library's mechanisms", 0.30, mechanisms),
    "ledger": ("ledgers, by their rules", 0.06, rules),
}


def campaign(pairs: int, seed: int, seconds: float) -> Iterator[dict[str, Any]]:
    """What was found so far, again and again, until enough pairs are tried or time is over."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    tried, seeds, wrong = dict.fromkeys(ROOMS, 0), dict.fromkeys(ROOMS, seed), []
    begun = saved = time.monotonic()
    while sum(tried.values()) < pairs and time.monotonic() - begun < seconds:
        room = min(ROOMS, key=lambda name: tried[name] / ROOMS[name][1])
        for parts, broken in ROOMS[room][2](seeds[room]):
            tried[room] += 1
            for name, tightness in parts.items():
                found[room][name].append(tightness)
            if broken:
                wrong.append({"room": room, "seed": seeds[room], "broken": broken})
        seeds[room] += 1
        if time.monotonic() - saved > SAVED:
            saved = time.monotonic()
            yield told(seed, tried, wrong, found)
    yield told(seed, tried, wrong, found)


def told(seed: int, tried: Any, wrong: Any, found: Any) -> dict[str, Any]:
    """One campaign, for the file of results; the code is named by git's hash of the core."""
    code = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD:src/streamveil/core"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    tight = {
        room: {
            name: {"pairs": len(some), "median": float(np.median(some)), "worst": max(some)}
            for name, some in sorted(parts.items())
        }
        for room, parts in found.items()
    }
    return {"seed": seed, "code": code.stdout.strip(), "pairs": dict(tried),
            "violations": list(wrong), "tightness": tight}  # fmt: skip


def render(campaigns: list[dict[str, Any]]) -> str:
    """The page."""
    whole = sum(sum(one["pairs"].values()) for one in campaigns)
    violations = sum(len(one["violations"]) for one in campaigns)
    lines = [
        "# How tight the claims are",
        "The exact account compares what one unit really loses, on generated queries and"
        " neighbours, with what is claimed ([how it works](review-mechanisms.md)). A tightness of 1"
        " is a claim without slack; above 1 it is false.",
        "This page is written by `python -m tests.audit.campaign` from"
        " `benchmarks/results/account.json`.",
        f"**{whole:,} pairs of neighbours in {len(campaigns)} campaigns. Claims passed:"
        f" {violations}.**",
        "\n".join(
            ["| core | seed | pairs | claims passed |", "|---|---|--:|--:|"]
            + [
                f"| {one['code']} | {one['seed']} | {sum(one['pairs'].values()):,} |"
                f" {len(one['violations'])} |"
                for one in campaigns
            ]
        ),
        "Worst: over all campaigns. Median: of the campaign that tried the mechanism most.",
    ]
    for room, (title, *_) in ROOMS.items():
        rows = [
            f"| {name} | {pairs:,} | {median:.3f} | {worst:.3f} |"
            for name, pairs, median, worst in together(campaigns, room)
        ]
        tried = sum(one["pairs"].get(room, 0) for one in campaigns)
        head = ["| mechanism | pairs | median | worst |", "|---|--:|--:|--:|"]
        lines += [f"## {title[0].upper()}{title[1:]}", f"{tried:,} pairs.", "\n".join(head + rows)]
    return "\n\n".join(lines) + "\n"


def together(campaigns: list[dict[str, Any]], room: str) -> Iterator[tuple[str, int, float, float]]:
    """(mechanism, pairs, median, worst) over all campaigns."""
    found = [one["tightness"].get(room, {}) for one in campaigns]
    for name in sorted({name for parts in found for name in parts}):
        some = [parts[name] for parts in found if name in parts]
        most = max(some, key=lambda one: one["pairs"])
        pairs = sum(one["pairs"] for one in some)
        yield name, pairs, most["median"], max(one["worst"] for one in some)


def main() -> int:
    """Runs the campaign and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    before = json.loads(RESULTS.read_text())["campaigns"] if RESULTS.exists() else []
    if not given.page:
        seed = given.seed or int(np.random.SeedSequence().entropy % 10**12)
        for one in campaign(given.pairs, seed, given.seconds):
            terminal.say(
                f"{sum(one['pairs'].values()):,} pairs, {len(one['violations'])} violations"
            )
            RESULTS.write_text(json.dumps({"campaigns": [*before, one]}, indent=1) + "\n")
    campaigns = json.loads(RESULTS.read_text())["campaigns"]
    PAGE.write_text(render(campaigns))
    return bool(campaigns[-1]["violations"])


if __name__ == "__main__":
    sys.exit(main())
