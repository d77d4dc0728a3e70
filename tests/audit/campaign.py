"""The exact account at length, with new seeds; writes docs/account.md.

    python -m tests.audit.campaign --pairs 100000 --workers 2 [--seconds 1800] [--seed N]
    python -m tests.audit.campaign --page

All rooms take turns, by their shares of the pairs of queries, until each has its share or the time
is over. Campaigns add up in `benchmarks/results/account.json`, each with a digest of the code it
ran on; the page says how many pairs were made on the newest code, and what all campaigns saw.
`--page` only writes the page again. A claim that is passed is kept with its seed, and the exit code
is 1. The times of `--workers 2` and one worker differ, and so do their pairs: a seed names a room's
queries, not how many of them there is time for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamveil import terminal
from streamveil.audit.account import QueryAccount
from streamveil.audit.worst import accounts, accounts_of_many
from tests.audit import (
    ledgers,
    library,
    looks,
    sketch_texts,
    table_texts,
    test_rounds,
    test_sketches,
    texts,
)
from tests.audit.queries import BESIDE, compiled
from tests.audit.test_ledgers import SLACK
from tests.audit.test_library import STEPS, grids, pairs_of

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "account.json", ROOT / "docs" / "account.md"
SOURCE = ROOT / "src" / "streamveil"
ELSEWHERE = {  # parts of the package that see nothing private, or decide nothing
    "advise", "api", "audit", "commands", "connectors", "dashboard", "engines", "results",
}  # fmt: skip
ALONE, BESIDES, RUNS = 16, 6, 10  # pairs of a query, runs of many pairs, pairs of a text
RARELY = 10  # queries of one after whose look all is compiled again, for each thing it may say
SAVED = 30.0  # seconds between two times at which what was found is written
APART = 10**6  # seeds of two workers
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
    """Pairs of neighbours of two generated queries: one by one, and many beside each other."""
    _, operator = compiled(np.random.default_rng(seed))
    for one in accounts(operator, seed, ALONE):
        yield of_account(one.account)
    _, operator = compiled(np.random.default_rng(seed), BESIDE)
    for one in accounts_of_many(operator, seed, BESIDES, BESIDE):
        yield of_account(one.account)


def jobs(seed: int) -> Iterator[Judged]:
    """Pairs of raw inputs of one job over the whole grammar of SQL."""
    for text, found in texts.judged(seed, 2 * RUNS):
        parts, wrong = of_account(found)
        yield parts, wrong and [text, *wrong]


def rounds(seed: int) -> Iterator[Judged]:
    """Pairs of neighbours of one query of the preset dp-sqlp."""
    for one in test_rounds.judged(seed, 4):
        yield of_account(one.account)


def the_look(seed: int) -> Iterator[Judged]:
    """Pairs of raw inputs of one look."""
    for text, lost, claim, share in looks.judged(seed, RUNS):
        stands = lost.stands(claim) and claim.fits(share)
        yield {"look": lost.tightness(claim)}, None if stands else text
    if seed % RARELY:
        return
    for text, found, (epsilon, delta), claims in looks.sequels(seed, 1):
        broken = [one.broken() for one in found if not one.stands]
        part = 0.0
        if delta is not None:
            part = max(delta / one.delta_at(epsilon) for one in claims)
        yield {"look and what it chose": part}, [text, broken] if broken or part > 1 else None


def tables(seed: int) -> Iterator[Judged]:
    """Pairs of change data of one query over a changing table, with questions."""
    for text, operator, lost in table_texts.judged(seed, RUNS):
        claim = operator.guarantee.loss
        name = type(operator.mechanism).__name__ + " with questions" * bool(operator.adaptive)
        yield {name: lost.tightness(claim)}, None if lost.stands(claim) else text


def rules(seed: int) -> Iterator[Judged]:
    """One ledger, filled."""
    parts = dict(ledgers.judged(seed))
    yield parts, None if max(parts.values()) <= SLACK else parts


def sketches(seed: int) -> Iterator[Judged]:
    """Pairs of neighbours of two queries that are answered by a sketch, one as text."""
    makes = (test_sketches.freq, test_sketches.windows, test_sketches.periods, test_sketches.finder)
    make = makes[seed % len(makes)]
    for one in accounts(make(), seed, RUNS):
        wrong = None if one.account.stands else one.account.broken()
        yield {make.__name__: one.account.tightness}, wrong
    for text, found in sketch_texts.judged(seed, RUNS):
        wrong = None if found.stands else [text, *found.broken()]
        yield {"HEAVY_HITTERS" if "HEAVY" in text else "APPROX_FREQUENCY": found.tightness}, wrong


def mechanisms(seed: int) -> Iterator[Judged]:
    """A pair of neighbours for every configuration of every mechanism of the library."""
    for name, stands, tightness in pairs_of(seed, list(library.tables(STEPS))):
        yield {PARTS.sub("", name): tightness}, None if stands else f"{name}: {tightness}"


def exhaustive(seed: int) -> Iterator[Judged]:
    """Every change of short streams, for counters, comparisons and partitions."""
    for name, tightness in grids(seed):
        wrong = tightness > 1 + 1e-9
        yield {name: tightness}, f"{name}: {tightness}" if wrong else None


ONCE = 0.0  # all pairs there are, by the first worker
ROOMS = {  # name -> (title, pairs for one pair of queries asked for, what is judged)
    "group-by": ("group-bys", 0.65, group_bys),
    "job": ("jobs over raw rows, the whole grammar of SQL", 0.15, jobs),
    "look": ("looks at the rows", 0.05, the_look),
    "table": ("changing tables and questions to them", 0.05, tables),
    "rounds": ("the preset dp-sqlp", 0.06, rounds),
    "sketch": ("sketches", 0.04, sketches),
    "library": ("the library's mechanisms", 0.16, mechanisms),
    "grid": ("counters, comparisons and partitions: every short stream", ONCE, exhaustive),
    "ledger": ("ledgers, by their rules", 0.04, rules),
}
LIBRARY = ("library", "grid", "ledger")  # others are queries


@dataclass
class Found:
    """What was seen."""

    tried: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROOMS, 0))
    wrong: list[dict[str, Any]] = field(default_factory=list)
    parts: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def add(self, other: Found) -> None:
        """What another has seen besides."""
        self.wrong += other.wrong
        for room, count in other.tried.items():
            self.tried[room] += count
        for room, parts in other.parts.items():
            for name, some in parts.items():
                self.parts[room][name] += some


def work(pairs: float, seed: int, seconds: float, place: int = 0) -> Iterator[Found]:
    """One worker: what it has seen since it told last, until enough pairs or the time is over."""
    found, seeds = Found(), dict.fromkeys(ROOMS, seed + APART * place)
    done, tried = dict.fromkeys(ROOMS, 0.0), dict.fromkeys(ROOMS, 0)
    done["grid"] = float(place > 0)
    begun = told = time.monotonic()
    while time.monotonic() - begun < seconds:
        room = min(done, key=lambda name: done[name])
        if done[room] >= 1:
            break
        for parts, broken in ROOMS[room][2](seeds[room]):
            found.tried[room] += 1
            tried[room] += 1
            for name, tightness in parts.items():
                found.parts[room][name].append(tightness)
            if broken:
                found.wrong.append({"room": room, "seed": seeds[room], "broken": broken})
        seeds[room], share = seeds[room] + 1, ROOMS[room][1]
        done[room] = 1.0 if share == ONCE else tried[room] / (share * pairs)
        if time.monotonic() - told > SAVED:
            told = time.monotonic()
            yield found
            found = Found()
    yield found


def tell(queue: Any, *given: Any) -> None:
    """A worker in a process of its own."""
    for found in work(*given):
        plain = {room: dict(parts) for room, parts in found.parts.items()}
        queue.put((found.tried, found.wrong, plain))
    queue.put(None)


def together(pairs: int, seed: int, seconds: float, workers: int) -> Iterator[Found]:
    """What all workers have seen so far, again and again."""
    if workers == 1:
        whole = Found()
        for found in work(pairs, seed, seconds):
            whole.add(found)
            yield whole
        return
    spawn = multiprocessing.get_context("spawn")
    queue, whole = spawn.Queue(), Found()
    given = [(pairs / workers, seed, seconds, place) for place in range(workers)]
    made = [spawn.Process(target=tell, args=(queue, *one)) for one in given]
    for process in made:
        process.start()
    left = workers
    while left:
        said = queue.get()
        if said is None:
            left -= 1
            continue
        whole.add(Found(*said))
        yield whole
    for process in made:
        process.join()


def digest() -> str:
    """Of the source files that decide what is released."""
    made = hashlib.blake2b(digest_size=6)
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE)
        if place.parts[0] not in ELSEWHERE:
            made.update(str(place).encode() + b"\0" + path.read_bytes())
    return made.hexdigest()


def commit() -> str:
    """The commit of the work tree, with a + where files differ from it."""
    said = [
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "src"))
    ]
    return said[0].stdout.strip() + "+" * bool(said[1].stdout.strip())


def summed(code: dict[str, Any], seed: int, found: Found) -> dict[str, Any]:
    """One campaign, for the file of results."""
    tight = {
        room: {
            name: {"pairs": len(some), "median": float(np.median(some)), "worst": max(some)}
            for name, some in sorted(parts.items())
        }
        for room, parts in found.parts.items()
    }
    return {**code, "seed": seed, "pairs": dict(found.tried),
            "violations": list(found.wrong), "tightness": tight}  # fmt: skip


# ---- the page


def counted(campaigns: list[dict[str, Any]]) -> tuple[int, int]:
    """Pairs of queries, and of the library's mechanisms and ledgers."""
    rooms = [item for one in campaigns for item in one["pairs"].items()]
    library = sum(count for room, count in rooms if room in LIBRARY)
    return sum(count for _, count in rooms) - library, library


def newest(campaigns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the code of the last campaign."""
    code = campaigns[-1].get("digest")
    return [one for one in campaigns if one.get("digest") == code and code]


def render(campaigns: list[dict[str, Any]]) -> str:
    """The page."""
    last, violations = newest(campaigns), sum(len(one["violations"]) for one in campaigns)
    queries, others = counted(last)
    table = [
        "| code | seed | of queries | of the library | claims passed |",
        "|---|---|--:|--:|--:|",
    ]
    for one in campaigns:
        code = f"{one['digest']} ({one['commit']})" if "digest" in one else f"core {one['code']}"
        of_queries, of_library = counted([one])
        table.append(f"| {code} | {one['seed']} | {of_queries:,} | {of_library:,} |"
                     f" {len(one['violations'])} |")  # fmt: skip
    lines = [
        "# How tight the claims are",
        "The exact account compares what one unit really loses, on generated queries and"
        " neighbours, with what is claimed ([how it works](review-mechanisms.md)). A tightness of 1"
        " is a claim without slack; above 1 it is false.",
        "This page is written by `python -m tests.audit.campaign` from"
        " `benchmarks/results/account.json`. Code is named by a digest of the source files that"
        " decide what is released, and by its commit (in earlier campaigns: by git's name of the"
        " core's folder).",
    ]
    if last:
        lines.append(
            f"**On the code {last[-1]['digest']}: {queries:,} pairs of neighbours of queries and"
            f" {others:,} of the library's mechanisms. Claims passed:"
            f" {sum(len(one['violations']) for one in last)}.**"
        )
    lines += [
        f"All campaigns together: {sum(counted(campaigns)):,} pairs, claims passed: {violations}.",
        "\n".join(table),
        "Below: of the newest code where it was tried there, else of earlier code (marked)."
        if last else "Worst and median of the campaign that tried the mechanism most.",
    ]  # fmt: skip
    for room, (title, *_) in ROOMS.items():
        rows = [
            f"| {name} | {pairs:,} | {median:.3f} | {worst:.3f} |"
            for name, pairs, median, worst in seen_in(campaigns, last, room)
        ]
        if not rows:
            continue
        tried = sum(one["pairs"].get(room, 0) for one in last)
        head = ["| mechanism | pairs | median | worst |", "|---|--:|--:|--:|"]
        lines += [f"## {title[0].upper()}{title[1:]}",
                  f"{tried:,} pairs on the newest code.", "\n".join(head + rows)]  # fmt: skip
    return "\n\n".join(lines) + "\n"


def seen_in(
    campaigns: list[dict[str, Any]], last: list[dict[str, Any]], room: str
) -> Iterator[tuple[str, int, float, float]]:
    """(mechanism, pairs, median, worst); the median is of the campaign that tried it most."""
    new = [one["tightness"].get(room, {}) for one in last]
    old = [one["tightness"].get(room, {}) for one in campaigns if one not in last]
    known = {name for parts in new for name in parts}
    for name in sorted({name for parts in (*new, *old) for name in parts}):
        some = [parts[name] for parts in (new if name in known else old) if name in parts]
        most = max(some, key=lambda one: one["pairs"])
        label = name if name in known or not last else f"{name} (earlier code)"
        yield label, sum(one["pairs"] for one in some), most["median"], max(
            one["worst"] for one in some)  # fmt: skip


def main() -> int:
    """Runs the campaign and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000, help="of queries")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    before = json.loads(RESULTS.read_text())["campaigns"] if RESULTS.exists() else []
    if not given.page:
        seed = given.seed or int(np.random.SeedSequence().entropy % 10**12)
        code = {"digest": digest(), "commit": commit()}
        for found in together(given.pairs, seed, given.seconds, given.workers):
            one = summed(code, seed, found)
            queries, others = counted([one])
            terminal.say(f"{queries:,} pairs of queries, {others:,} of the library,"
                         f" {len(one['violations'])} violations")  # fmt: skip
            RESULTS.write_text(json.dumps({"campaigns": [*before, one]}, indent=1) + "\n")
    campaigns = json.loads(RESULTS.read_text())["campaigns"]
    PAGE.write_text(render(campaigns))
    return bool(campaigns[-1]["violations"])


if __name__ == "__main__":
    sys.exit(main())
