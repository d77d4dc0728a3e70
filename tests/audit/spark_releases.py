"""Whether Spark releases what the embedded engine does, bit by bit, over generated jobs.

    python -m tests.audit.spark_releases --jobs 200 [--seconds 1200] [--seed N]

Jobs are those of `tests.audit.same_releases` that Spark takes: the grammar of SQL without looks and
subqueries by the unit, changing tables, the preset dp-sqlp, sketches, combined rows. Each has a
secret of its own and runs once on either engine, on Spark in one session, cut into 1 to 4 shards.

Why this is an account. What a job releases is a function of its rows and its secret alone, on both
engines. Where the functions are one, so are the laws of what is released, on every input and so on
neighbours: what the exact account says of the embedded engine then holds on Spark, with nothing
between. A released number is a total plus a draw, of a scale and at an address; another total,
scale, address, step or bound on either side gives other bits, unless errors happen to cancel. Of
groups that stay hidden only the decision is seen: each secret asks once whether the coins agree.

Runs add up in `benchmarks/results/spark_releases.json`, which docs/account.md tells.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.saved import save
from streamveil import terminal
from streamveil.core.noise import SeededNoise
from streamveil.runtime.run import run
from streamveil.runtime.secret import Randomness
from streamveil.runtime.spark import SparkJob, as_on_spark
from streamveil.runtime.spark_state import SparkLayout
from tests.audit.account_page import SPARK
from tests.audit.run_jobs import query_of, releases_of
from tests.audit.same_releases import Job, differences, draw

SHARDS = 4
REFUSED = ("PlanError", "BudgetError")


def both(job: Job, folder: Path, seed: int, session: Any) -> list[dict[str, Any]]:
    """What a job releases on the embedded engine and on Spark."""
    plan = query_of(job, folder, files=True).plan
    noise, layout = SeededNoise(seed), SparkLayout(shards=1 + seed % SHARDS)

    def embedded(state: Path) -> Iterator[Any]:
        return iter(run(as_on_spark(plan), state=state, noise=noise, insecure=True))

    def on_spark(state: Path) -> Iterator[Any]:
        keys = Randomness(noise=noise, insecure=True)
        with SparkJob(plan, state=state, session=session, layout=layout, keys=keys) as made:
            yield from made

    found = []
    for engine in (embedded, on_spark):
        with TemporaryDirectory() as state, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found.append(releases_of(engine, Path(state, "state")))
    return found


def tried(jobs: list[Job], folder: Path, seed: int, session: Any) -> Iterator[dict[str, Any]]:
    """What came of each job. One that Spark refuses before it runs is none that it takes."""
    for nth, job in enumerate(jobs):
        one, other = both(job, folder, seed + nth, session)
        refused = other["error"] in REFUSED and not other["releases"]
        wrong = [] if refused else [*differences(one, other)]
        rows = 0 if refused else sum(made[3] for made in one["releases"])
        yield {
            "jobs": int(not refused),
            "refused": int(refused),
            "silent": int(not refused and not rows),
            "releases": 0 if refused else len(one["releases"]),
            "rows": rows,
            "differ": [[*wrong, job["text"]]] if wrong else [],
        }


def main() -> int:
    """Compares; 1 where a release differs."""
    from streamveil.engines.spark.session import session
    from tests.audit.campaign import commit, digest
    from tests.engines.spark.lives import fast

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=None)
    asked = parser.parse_args()
    seed = asked.seed or int(np.random.SeedSequence().entropy % 10**9)
    before = json.loads(SPARK.read_text()) if SPARK.exists() else []
    one: dict[str, Any] = {"digest": digest(), "commit": commit(), "seed": seed}
    with TemporaryDirectory(prefix="spark-releases-") as made:
        folder = Path(made)
        jobs, spark = (
            draw(seed, asked.jobs, folder / "jobs", "spark"),
            session("local[2]", **fast(folder / "home")),
        )
        begun = time.monotonic()
        for found in tried(jobs, folder / "jobs", seed, spark):
            one |= {name: one[name] + more if name in one else more for name, more in found.items()}
            save(SPARK, [*before, one])
            for wrong in found["differ"]:
                terminal.say("; ".join(wrong))
            if time.monotonic() - begun > asked.seconds:
                break
        spark.stop()
    terminal.say(f"{one['jobs']} jobs, {one['silent']} of them without a row, {one['releases']:,}"
                 f" releases, {one['rows']:,} rows, {len(one['differ'])} jobs differ;"
                 f" Spark refused {one['refused']} more")  # fmt: skip
    return int(bool(one["differ"]))


if __name__ == "__main__":
    sys.exit(main())
