"""Whether two commits release the same, bit by bit, from the same rows and the same secret.

    python -m tests.audit.same_releases REV [--to REV] [--jobs 500] [--spark 24] [--seed N]

Jobs are drawn once, from the generators of this tree: the whole grammar of SQL (6 of 10), looks,
changing tables, the preset dp-sqlp, sketches and combined rows. Both commits run them in processes
of their own, on the embedded engine and the first ones on Spark. `--to` is this tree as it is
unless it is given. The exit code is 1 where a release differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from streamveil import terminal
from tests.audit import looks, raw_rows, table_texts, texts
from tests.audit.raw_rows import PUBLIC, SECOND
from tests.engines.spark.asked import ASKED, LATE, TIMED, TUMBLE
from tests.engines.spark.streams import Case

ROOT = Path(__file__).parents[2]
RUNNER = Path(__file__).with_name("run_jobs.py")
BATCHES = (17, 60, 250, 10_000)  # rows of a micro-batch
ROUNDS = (
    "max_rows_contributed = 1", "max_rows_contributed = 3",
    "max_rows_contributed = 4, max_rows_per_group = 1", "max_rows_contributed = 2, mu_share = 0.6",
)  # fmt: skip
LARGER = {"epsilon = 2,": "epsilon = 20,", "epsilon = 6,": "epsilon = 40,", "mu = 0.5": "mu = 6",
          "rho = 0.125": "rho = 20", "delta = 1e-9": "delta = 1e-5"}  # fmt: skip
UNITS = 150
OWN_ROWS = ("PARTITION BY", "UNNEST", "JOIN", "UNION", "ROLLUP", "CUBE (k", "GROUPING SETS ((k",
            "ANY_VALUE", "NOT IN (SELECT", "MIN(kind)", "EMIT EVERY 60 ROWS")  # fmt: skip
Job = dict[str, Any]


# ---- drawing jobs


def of_text(rng, folder, name, draw) -> Job:
    """A query over raw rows, with so many units and so large a budget that groups are published."""
    text, *_, span = draw(rng)
    while f" {SECOND}" in text or f" {PUBLIC}" in text:  # a job here reads one relation
        text, *_, span = draw(rng)
    for small, large in LARGER.items():
        text = text.replace(small, large)
    plan = texts.plan_of(text)
    added, _ = raw_rows.protected_rows(plan, raw_rows.mine(rng, span), several=True)
    units = rng.integers(UNITS, size=int(rng.integers(200, 900))).tolist()
    others = [
        raw_rows.other_row(rng, span) | {"user": f"u{unit}", "number": unit, "real": unit / 2}
        for unit in units
    ]
    rows, _ = raw_rows.mixed(rng, others, added, plan)
    pq.write_table(raw_rows.table_of(rows), folder / f"{name}.parquet", row_group_size=40)
    return {"text": text, "stream": raw_rows.NAME, "event_time": "ts"}


def of_table(rng, folder, name) -> Job:
    """A query over a changing table."""
    text, *_ = table_texts.drawn(rng)
    plan = table_texts.plan_of(text, table_texts.rows_drawn(rng))
    pq.write_table(plan.source.options["table"], folder / f"{name}.parquet", row_group_size=20)
    return {"text": text, "stream": "rows", "event_time": None}


def of_stream(rng, folder, name, *, rounds: bool) -> Job:
    """A query of the preset dp-sqlp, or one of sketches, tables and combined rows."""
    seed = int(rng.integers(2**31))
    rows, text = int(rng.integers(300, 900)), bool(rng.integers(2))
    if not rounds:
        asked = ASKED[seed % len(ASKED)]
        data = asked.write(folder / name)
        return {"text": asked.script(data, None), "stream": None}
    data = Case(name=name, seed=seed, rows=rows, text=text).write(folder / name)
    over = raw_rows.pick(rng, ("s", TUMBLE))
    late = LATE if over != "s" and rng.random() < 0.5 else ""
    select = raw_rows.pick(rng, (
        "key, COUNT(*) AS n", "key, COUNT(*) AS n, SUM(value, contribution_bounds_per_row =>"
        " (-1, 1)) AS total"))  # fmt: skip
    budget = raw_rows.pick(rng, ("epsilon = 12", "epsilon = 3"))
    made = (
        f"CREATE STREAM s WITH (source = 'files', path = '{data}', event_time = ts); SELECT WITH"
        f" DIFFERENTIAL_PRIVACY OPTIONS (preset = 'dp-sqlp', {budget}, delta = 1e-6,"
        f" privacy_unit_column = unit, {raw_rows.pick(rng, ROUNDS)}{TIMED}{late})"
        f" {select} FROM {over} GROUP BY key EMIT EVERY INTERVAL 1 HOUR;"
    )
    return {"text": made, "stream": None}


def drawn(seed: int, nth: int, folder: Path) -> Job:
    """The job of a number."""
    rng, name, turn = np.random.default_rng([seed, nth]), f"job-{nth}", nth % 10
    if turn == 6:
        job = of_text(rng, folder, name, looks.looking_query)
    elif turn == 7:
        job = of_table(rng, folder, name)
    elif turn > 7:
        job = of_stream(rng, folder, name, rounds=turn == 8)
    else:
        job = of_text(rng, folder, name, texts.query_drawn)
    batch = int(raw_rows.pick(rng, BATCHES))
    return {"table": name, "files": bool(rng.integers(2)), "batch": batch, **job}


def draw(seed: int, count: int, folder: Path, engine: str = "") -> list[Job]:
    """Jobs with their rows, in a new folder."""
    folder.mkdir()
    every = (drawn(seed, nth, folder) for nth in itertools.count())
    jobs = list(itertools.islice((job for job in every if runs_on(job, engine)), count))
    (folder / "jobs.jsonl").write_text("".join(json.dumps(job) + "\n" for job in jobs))
    return jobs


def runs_on(job: Job, engine: str) -> bool:
    """Whether an engine takes a job; Spark takes no look and no subquery by the unit."""
    if not engine:
        return True
    job["text"] = job["text"].replace(", look_share = 0,", ",")
    return not any(word in job["text"] for word in ("look_share", "'looks'", *OWN_ROWS))


# ---- running and comparing


def tree_of(rev: str | None, folder: Path) -> Path:
    """A work tree of a commit with compiled functions; this one without a commit."""
    if rev is None:
        return ROOT
    tree = folder / f"tree-{rev.replace('/', '-')}"
    git = ["git", "-C", str(ROOT)]
    subprocess.run([*git, "worktree", "add", "-q", "--detach", str(tree), rev], check=True)
    package = Path("src", "streamveil")
    shutil.copytree(ROOT / package / "_kernels", tree / package / "_kernels", dirs_exist_ok=True)
    run_in(tree, ["-m", "streamveil.compiled"])  # those whose source differs
    return tree


def run_in(tree: Path, arguments: list[str]) -> None:
    """Python with the streamveil of a tree."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "STREAMVEIL_CACHE": "off"}
    subprocess.run([sys.executable, *arguments], env=environment, check=True)


def results_of(tree: Path, folder: Path, name: str, engine: str = "") -> list[dict[str, Any]]:
    """What each job released with the code of a tree."""
    out = folder / f"{name}.jsonl"
    run_in(tree, [str(RUNNER), str(folder), str(out), engine])
    return [json.loads(line) for line in out.read_text().splitlines()]


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """In what two outcomes of a job differ, in words."""
    if before["error"] != after["error"]:
        yield f"ended with {before['error']}, now with {after['error']}"
    counts = [len(one["releases"]) for one in (before, after)]
    if counts[0] != counts[1]:
        yield f"{counts[0]} releases, now {counts[1]}"
    for (*place, old), (*now, new) in zip(before["releases"], after["releases"], strict=False):
        if place != now:
            yield f"[window, trigger, step, rows] {place}, now {now}"
        names = [name for name in old | new if old.get(name) != new.get(name)]
        if names:
            yield f"window {place[0]}, trigger {place[1]}: {', '.join(names)}"


def compared(jobs: list[Job], before, after, engine: str) -> int:
    """How many jobs differ; says which."""
    wrong = 0
    for nth, (job, one, other) in enumerate(zip(jobs, before, after, strict=False)):
        found = list(differences(one, other))
        if found:
            wrong += 1
            terminal.say(f"job {nth} ({engine}): {'; '.join(found[:3])}\n  {job['text']}")
    ends = Counter(one["error"] or "released" for one in after)
    made = [release for one in after for release in one["releases"]]
    rows = sum(release[3] for release in made)
    terminal.say(
        f"{engine}: {len(after)} jobs {dict(ends)}, {len(made)} releases of {rows} rows,"
        f" {wrong} jobs differ"
    )
    return wrong


def main() -> int:
    """Compares two commits; 1 where a release differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rev")
    parser.add_argument("--to")
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--spark", type=int, default=0)
    parser.add_argument("--seed", type=int, default=20261124)
    asked = parser.parse_args()
    with TemporaryDirectory(prefix="same-releases-") as made:
        folder, wrong = Path(made), 0
        try:
            trees = [tree_of(asked.rev, folder), tree_of(asked.to, folder)]
            for engine, count in (("", asked.jobs), ("spark", asked.spark)):
                if not count:
                    continue
                rows = folder / (engine or "embedded")
                jobs = draw(asked.seed, count, rows, engine)
                before, after = (
                    results_of(tree, rows, name, engine)
                    for tree, name in zip(trees, ("before", "after"), strict=True)
                )
                wrong += compared(jobs, before, after, engine or "embedded")
        finally:
            for tree in folder.glob("tree-*"):
                remove = ["git", "-C", str(ROOT), "worktree", "remove", "--force", str(tree)]
                subprocess.run(remove, check=False)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
