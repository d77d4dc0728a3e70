"""The exact account at length, with new seeds; writes docs/account.md.

    python -m tests.audit.campaign --pairs 100000 --workers 2 [--seconds 1800] [--seed N]
    python -m tests.audit.campaign --page

All rooms take turns, by their shares of the pairs of queries, until each has its share or the time
is over. Campaigns add up in `benchmarks/results/account.json`, each with a digest of the code it
ran on: one that was stopped is started again for the pairs that its code still lacks. The page says
how many pairs were made on the newest code, and what all campaigns saw. `--page` only writes it
again. A claim that is passed is kept with its seed, and so is an error; a query that is refused is
counted by its reason. The exit code is 1 where a claim was passed, a draw failed, or more than 3 in
100 draws were refused: then the generators no longer draw the grammar. A seed names what a room
draws, not how many draws there is time for: that differs with the number of workers.
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
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np

from benchmarks.saved import save
from streamveil import terminal
from streamveil.audit.account import QueryAccount
from streamveil.audit.ledger_account import SLACK
from streamveil.audit.worst import accounts
from streamveil.errors import BudgetError, PlanError
from tests.audit import (
    ledgers,
    library,
    looks,
    sketch_objects,
    sketch_texts,
    table_texts,
    test_rounds,
    test_sketches,
    texts,
)
from tests.audit.account_page import counted, render, rooms_tried
from tests.audit.many import accounts_of_many
from tests.audit.queries import BESIDE, compiled
from tests.audit.test_library import STEPS, grids, pairs_of

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "account.json", ROOT / "docs" / "account.md"
SOURCE = ROOT / "src" / "streamveil"
ELSEWHERE = {  # parts of the package that see nothing private, or decide nothing
    "advise", "api", "audit", "commands", "connectors", "dashboard", "engines", "results",
}  # fmt: skip
ALONE, BESIDES, RUNS = 8, 8, 10  # pairs of a query, runs of many pairs, pairs of a text
RARELY = 10  # queries of one after whose look all is compiled again, for each thing it may say
FEW_REFUSED, MOST_REFUSED = 3, 0.03  # draws refused: as many, or this part of them, are no fault
MOST_IN_VAIN = 20  # draws of a room, one after another, that come to no end: it is given up
LISTENED = 1.0  # seconds that one worker is listened to
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
    for text, found in texts.judged(seed, 3 * RUNS):
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
        if len(claims) > 1:
            broken.append("what is claimed depends on what the look said")
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
    """Pairs of neighbours of two queries that a sketch answers, one as text; and of a sketch."""
    makes = (test_sketches.freq, test_sketches.windows, test_sketches.periods, test_sketches.finder)
    make = makes[seed % len(makes)]
    for one in accounts(make(), seed, 2 * RUNS):
        wrong = None if one.account.stands else one.account.broken()
        yield {make.__name__: one.account.tightness}, wrong
    for text, found in sketch_texts.judged(seed, 2 * RUNS):
        wrong = None if found.stands else [text, *found.broken()]
        yield {"HEAVY_HITTERS" if "HEAVY" in text else "APPROX_FREQUENCY": found.tightness}, wrong
    for sketch, part, faults in sketch_objects.judged(seed, 2 * RUNS):
        wrong = None if part <= 1 and not faults else [repr(sketch), part, *faults]
        yield {sketch_objects.name_of(sketch): part}, wrong


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
ROOMS = {  # name -> (pairs for one pair of queries asked for, what is judged)
    "group-by": (0.65, group_bys),
    "job": (0.15, jobs),
    "look": (0.05, the_look),
    "table": (0.05, tables),
    "rounds": (0.06, rounds),
    "sketch": (0.04, sketches),
    "library": (0.28, mechanisms),
    "grid": (ONCE, exhaustive),
    "ledger": (0.04, rules),
}


@dataclass
class Found:
    """What was seen."""

    tried: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ROOMS, 0))
    draws: int = 0
    wrong: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    parts: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        """What another has seen besides."""
        self.draws += other.draws
        self.wrong += other.wrong
        self.failed += other.failed
        self.refused += other.refused
        for room, count in other.tried.items():
            self.tried[room] += count
        for room, parts in other.parts.items():
            for name, some in parts.items():
                self.parts.setdefault(room, {}).setdefault(name, []).extend(some)

    def draw(self, room: str, seed: int) -> bool:
        """Judges what one seed draws in a room; whether it came to its end.

        A query that is refused is a draw without further pairs. Another error is kept with its
        seed. Pairs before either count.
        """
        self.draws += 1
        known = self.parts.setdefault(room, {})
        try:
            for parts, broken in ROOMS[room][1](seed):
                self.tried[room] += 1
                for name, tightness in parts.items():
                    known.setdefault(name, []).append(tightness)
                if broken:
                    self.wrong.append({"room": room, "seed": seed, "broken": broken})
        except (PlanError, BudgetError) as error:
            self.refused[f"{room}: {str(error).splitlines()[0]}"] += 1
        except Exception:
            self.failed.append({"room": room, "seed": seed, "error": traceback.format_exc()})
        else:
            return True
        return False

    @property
    def rotten(self) -> bool:
        """Whether so many draws are refused that what is tried is no longer the grammar."""
        return self.refused.total() > max(FEW_REFUSED, MOST_REFUSED * self.draws)

    @property
    def stands(self) -> bool:
        """Whether nothing was wrong, with the code or with the campaign."""
        return not (self.wrong or self.failed or self.rotten)


def work(
    pairs: float, seed: int, seconds: float, had: dict[str, float], place: int = 0
) -> Iterator[Found]:
    """One worker: what it has seen since it told last, until enough pairs or the time is over."""
    found, seeds = Found(), dict.fromkeys(ROOMS, seed + APART * place)
    tried, vain = dict.fromkeys(ROOMS, 0.0) | had, dict.fromkeys(ROOMS, 0)
    done = {room: tried[room] / max(share * pairs, 1) for room, (share, _) in ROOMS.items()}
    done["grid"] = float(place > 0 or tried["grid"] > 0)
    begun = told = time.monotonic()
    while time.monotonic() - begun < seconds:
        room = min(done, key=lambda name: done[name])
        if done[room] >= 1:
            break
        before, share = found.tried[room], ROOMS[room][0]
        vain[room] = 0 if found.draw(room, seeds[room]) else vain[room] + 1
        tried[room] += found.tried[room] - before
        seeds[room] += 1
        over = share == ONCE or vain[room] == MOST_IN_VAIN
        done[room] = 1.0 if over else tried[room] / (share * pairs)
        if time.monotonic() - told > SAVED:
            told = time.monotonic()
            yield found
            found = Found()
    yield found


def tell(queue: Any, *given: Any) -> None:
    """A worker in a process of its own."""
    for found in work(*given):
        queue.put(found)
    queue.put(None)


def together(
    pairs: int, seed: int, seconds: float, had: dict[str, int], workers: int
) -> Iterator[Found]:
    """What all workers have seen so far, again and again; a worker that dies is a failure."""
    spawn = multiprocessing.get_context("spawn")
    whole, parts = Found(), {room: count / workers for room, count in had.items()}
    queues = [spawn.Queue() for _ in range(workers)]
    made = [
        spawn.Process(target=tell, args=(queue, pairs / workers, seed, seconds, parts, place))
        for place, queue in enumerate(queues)
    ]
    for process in made:
        process.start()
    left = dict(zip(queues, made, strict=True))
    while left:
        for queue, process in list(left.items()):
            alive = process.is_alive()
            try:
                said = queue.get(timeout=LISTENED)
            except Empty:
                if alive:
                    continue
                said = None
                error = f"a worker ended with exit code {process.exitcode}"
                whole.failed.append({"room": "", "seed": seed, "error": error})
            if said is None:
                del left[queue]
            else:
                whole.add(said)
            yield whole


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
            "violations": list(found.wrong), "tightness": tight, "draws": found.draws,
            "refused": dict(found.refused.most_common()), "failed": found.failed}  # fmt: skip


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
    found = Found()
    if not given.page:
        seed = given.seed or int(np.random.SeedSequence().entropy % 10**12)
        code = {"digest": digest(), "commit": commit()}
        had = rooms_tried([one for one in before if one.get("digest") == code["digest"]])
        for found in together(given.pairs, seed, given.seconds, had, given.workers):
            one = summed(code, seed, found)
            queries, others = counted([one])
            terminal.say(
                f"{queries:,} pairs of queries, {others:,} of the library, {len(found.wrong)}"
                f" violations; of {found.draws:,} draws {found.refused.total()} refused,"
                f" {len(found.failed)} failed"
            )
            save(RESULTS, {"campaigns": [*before, one]})
        for reason, times in found.refused.most_common():
            terminal.say(f"refused {times} times, {reason}")
        for failure in found.failed:
            terminal.say(f"{failure['room']}, seed {failure['seed']}: {failure['error']}")
    PAGE.write_text(render(json.loads(RESULTS.read_text())["campaigns"]))
    return int(not found.stands)


if __name__ == "__main__":
    sys.exit(main())
