"""How much lower is the error than the published DP-SQLP, at the same guarantee?

Regenerates Table 1, Figures 9 and 10 and day averages of Zhang et al. (2023, arXiv:2303.18086) on
the synthetic click stream, at (6, 1e-9) per user over the whole stream, a release at every trigger:

- `one-shot`: every trigger answers the whole data set again with its share of the budget;
- `increments`: every trigger answers its own micro-batch alone, and answers are added up;
- `dp-sqlp`: the published system, preset of this library, with thresholds as printed (they hold for
  one trigger: its true delta, shown in the results, is larger than 1e-9);
- `dp-sqlp-rigorous`: the same with thresholds that hold for all triggers together;
- `static`: one Gaussian counter for selection and values, at most one row per user and key;
- `ours`: the default: no bound and no setting is given, only what is publicly said of the stream
  (users, keys, mean and 99th percentile of rows per user; the paper's C is the latter);
- `tuned`: options chosen by the experiment `settings` on a sample of the public law.

Errors are over all keys of the universe against the unbounded truth; an unreleased key counts as 0.
Expected from theory: one counter for all keys, exact Gaussian accounting and per-group bounding cut
the noise of selection and values by about sqrt(32) against 32-fold composition, so several
times the keys and less than half the l1.

    python benchmarks/papers/dp_sqlp.py table [--full] [--triggers 100 1000] [--arms ours dp-sqlp]
                                              [--seeds 3] [--streams plain clumpy other bursty]
    python benchmarks/papers/dp_sqlp.py table2 [--stream FILE.parquet --unit NAME --key NAME]
    python benchmarks/papers/dp_sqlp.py figure9 | workers | figure10 | settings

Rows are merged into the results file: a later run replaces the rows that it makes again. With
`--runs FILE` every single run is kept there as well, and one that is found there is not run again:
a long experiment can be stopped and resumed, or be given more seeds.
`dp_sqlp_figures.py` draws them.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from dp_sqlp_streams import CODES, FULL, STREAMS, Stream, load, read, sample
from scipy.stats import norm

import streamveil as sv
from benchmarks.saved import save
from streamveil.batch import Batch
from streamveil.calibrate import gaussian_mu
from streamveil.compiler.group_by import compile_plan
from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise

RESULTS = Path(__file__).parents[1] / "results"
EPSILON, DELTA = 6, 1e-9


def batches(stream: Stream, triggers: int) -> Iterator[tuple[int, Batch]]:
    """(records so far, micro-batch) for every trigger."""
    edges = np.linspace(0, len(stream.users), triggers + 1).astype(int)
    for step, (a, b) in enumerate(pairwise(edges), start=1):
        columns = {"user": stream.users[a:b], "key": stream.keys[a:b]}
        if stream.values is not None:
            columns["v"] = stream.values[a:b]
        rows = pa.table({name: column.astype(np.int64) for name, column in columns.items()})
        yield int(b), Batch(rows, step, True, "{}")


def metrics(estimate: np.ndarray, shown: int, truth: np.ndarray) -> dict[str, float]:
    error = np.abs(estimate - truth)
    return {
        "keys": float(shown), "linf": float(error.max()), "l1": float(error.sum()),
        "l2": float(np.sqrt((error**2).sum())),
        "relative_l1": float(error.sum() / max(truth.sum(), 1)),
    }  # fmt: skip


def checkpoints(triggers: int) -> set[int]:
    return {int(t) for t in np.unique(np.linspace(0.04 * triggers, triggers, 11).round())}


# ---- arms: each yields (trigger, estimates by key code, number of shown keys) at checkpoints


def compiled(stream: Stream, triggers: int, release: dict[str, Any], bound: dict[str, Any]) -> Any:
    """The operator of one query over the stream's columns."""
    kinds = [("user", pa.int64()), ("key", pa.int64()), ("v", pa.int64())]
    counted = sv.count() if stream.values is None else sv.sum("v", bounds=(0, CODES))
    if bound.get("max_rows") == AS_SAID:
        bound = {**bound, "max_rows": stream.said[1]}
    if not bound:
        release = {**stream.expected, **release}
    grouped = (
        sv.memory(pa.schema(kinds).empty_table()).protect(unit="user")
        .group_by("key", keys=sv.discover(min_units=1)).agg(n=counted)
    )  # fmt: skip
    query = (
        (grouped.bound(**bound) if bound else grouped)
        .release(every=sv.rows(10**9), steps=triggers, budget=Budget(epsilon=EPSILON, delta=DELTA),
                 **release)
    )  # fmt: skip
    return compile_plan(query.plan)


def operator_arm(release: dict[str, Any], bound: dict[str, Any], stream: Stream, triggers: int,
                 seed: int) -> Iterator[tuple[int, np.ndarray, int]]:  # fmt: skip
    """One day of an operator, releasing at every trigger."""
    operator = compiled(stream, triggers, release, bound)
    if release.get("thresholds") != "published":
        assert operator.guarantee.epsilon(DELTA) <= EPSILON
    noise, state = SeededNoise(seed), operator.init()
    wanted = checkpoints(triggers)
    for _, batch in batches(stream, triggers):
        operator.fold(state, batch, noise)
        [released] = operator.release(state, batch.step, noise)
        if batch.step in wanted:
            estimate = np.zeros(stream.size + 1)
            keys = released.table["key"].to_numpy()
            estimate[keys] = released.table["n"].to_numpy()
            yield batch.step, estimate, len(keys)


def bounded(stream: Stream, limit: int) -> np.ndarray:
    """Which records are among the first `limit` of their user."""
    order = np.argsort(stream.users, kind="stable")
    ranks = np.empty(len(order), np.int64)
    sorted_users = stream.users[order]
    starts = np.flatnonzero(np.r_[True, sorted_users[1:] != sorted_users[:-1]])
    lengths = np.diff(np.r_[starts, len(order)])
    ranks[order] = np.arange(len(order)) - np.repeat(starts, lengths)
    return ranks < limit


def repeated(stream: Stream, triggers: int, seed: int, *, fresh: bool) -> Iterator[Any]:
    """Baselines 1 and 2: a one-shot Gaussian release with a threshold, again at every trigger.

    fresh: of the whole data so far, with mu / sqrt(triggers) each. Otherwise of the micro-batch
    alone with the whole mu (users may come back, so mu is shared as well), answers added up.
    """
    rng = np.random.default_rng(seed)
    limit = stream.said[1]
    keep = bounded(stream, limit)
    mu = gaussian_mu(Budget(epsilon=EPSILON, delta=DELTA / 2))
    sigma = limit / (mu / np.sqrt(triggers if fresh else 1))
    beta = DELTA / 2 / limit / triggers
    threshold = 1 + sigma * norm.isf(beta)
    total = np.zeros(stream.size + 1)
    kept = np.flatnonzero(keep)
    edges = np.linspace(0, len(stream.users), triggers + 1).astype(int)
    counts = np.zeros(stream.size + 1, np.int64)
    wanted = checkpoints(triggers)
    for t in range(1, triggers + 1):
        a, b = np.searchsorted(kept, [edges[t - 1], edges[t]])
        new = np.bincount(stream.keys[kept[a:b]], minlength=stream.size + 1)
        counts = counts + new
        if fresh and t not in wanted:
            continue
        exact = counts if fresh else new
        noisy = exact + rng.normal(0, sigma, len(exact))
        passes = (noisy > threshold) & (exact > 0)
        total = np.where(passes, noisy, 0.0) if fresh else total + np.where(passes, noisy, 0.0)
        if t in wanted:
            yield t, total.copy(), int((total != 0).sum())


PRESET = {"preset": "dp-sqlp"}
COUNTS = {"max_squared_rows": 2}  # with an entry weight of 1/2, small keys are charged 1/4 a row
AS_SAID = 0  # the 99th percentile of rows per user that is said of the stream, as in the paper
SAID_ROWS = {"max_rows": AS_SAID}
OPEN: dict[str, int] = {}  # bounds and settings by forecast, from what is said of the stream
OPERATORS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dp-sqlp": ({**PRESET, "thresholds": "published"}, SAID_ROWS),
    "dp-sqlp-rigorous": (PRESET, SAID_ROWS),
    "static": ({"selection": "gaussian"}, {**SAID_ROWS, "max_rows_per_group": 1}),
    "ours": ({}, OPEN),
    "tuned": ({"mu_share": 0.72, "weight_reference": 65}, COUNTS),
}
ARMS: dict[str, Callable[..., Iterator[Any]]] = {
    "one-shot": partial(repeated, fresh=True),
    "increments": partial(repeated, fresh=False),
    **{name: partial(operator_arm, *setting) for name, setting in OPERATORS.items()},
}


def measure(stream: Stream, arm: Callable[..., Iterator[Any]], triggers: int,
            seed: int) -> dict[str, Any]:  # fmt: skip
    """One run: errors at the end and their means over the day."""
    edges = np.linspace(0, len(stream.users), triggers + 1).astype(int)
    for t in checkpoints(triggers):  # the truth is not part of the time
        stream.truth(int(edges[t]))
    start, day = time.process_time(), []
    for t, estimate, shown in arm(stream, triggers, seed):
        day.append(metrics(estimate, shown, stream.truth(int(edges[t]))))
    return {
        "end": day[-1], "seconds": time.process_time() - start,
        "day": {name: float(np.mean([point[name] for point in day])) for name in day[0]},
    }  # fmt: skip


def summary(rows: list[dict[str, Any]], part: str) -> dict[str, dict[str, float]]:
    """Mean and spread over seeds."""
    return {
        name: {"mean": float(np.mean([row[part][name] for row in rows])),
               "sd": float(np.std([row[part][name] for row in rows], ddof=len(rows) > 1))}
        for name in rows[0][part]
    }  # fmt: skip


def remembered(path: Path | None, name: dict[str, Any], run: Callable[[], Any]) -> Any:
    """The result of a run, from the file of runs if it is there, else made and appended."""
    if path is None:
        return run()
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        known = json.loads(line)
        if known["name"] == name:
            return known["run"]
    found = run()
    with path.open("a") as file:
        file.write(json.dumps({"name": name, "run": found}) + "\n")
    return found


def repeat(stream: Stream, name: str, triggers: int, seeds: int, runs: Path | None = None,
           arm: Callable[..., Iterator[Any]] | None = None) -> dict[str, Any]:  # fmt: skip
    """One arm over some seeds of noise."""
    found_runs = [
        remembered(
            runs,
            {"stream": stream.name, "records": len(stream.users), "arm": name,
             "triggers": triggers, "seed": seed},
            partial(measure, stream, arm or ARMS[name], triggers, seed),
        )
        for seed in range(seeds)
    ]  # fmt: skip
    found = {
        "arm": name, "triggers": triggers, "seeds": seeds, "records": len(stream.users),
        "end": summary(found_runs, "end"), "day": summary(found_runs, "day"),
        "seconds": float(np.mean([run["seconds"] for run in found_runs])),
    }  # fmt: skip
    if name in OPERATORS and arm is None:
        promise = compiled(stream, triggers, *OPERATORS[name]).guarantee
        found["delta"] = promise.loss.delta_at(EPSILON)
    return found


def show(stream: str, found: dict[str, Any]) -> None:
    """One line for the terminal."""
    end, day = found["end"], found["day"]
    print(f"{stream:7} {found['arm']:17} T={found['triggers']:<5} keys {end['keys']['mean']:>9,.0f}"
          f"  linf {end['linf']['mean']:>7,.0f}  l1 {end['l1']['mean']:>12,.0f}"
          f"  l2 {end['l2']['mean']:>9,.0f} | day: keys {day['keys']['mean']:>9,.0f}"
          f"  l1/n {day['relative_l1']['mean']:.3f}"
          f"   {found['seconds']:.0f} cpu s", flush=True)  # fmt: skip


def table(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Table 1: every arm, number of triggers and stream asked for."""
    for name in given.streams:
        stream = load(name, *given.size, given.cache, given.stream_seed)
        for triggers in given.triggers:
            for arm in given.arms:
                found = repeat(stream, arm, triggers, given.seeds, given.runs)
                show(name, found)
                yield {"experiment": "table", "stream": name, "users": given.size[0], **found}


def table2(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Table 2: a real stream if one is given, else one of the shape of the paper's."""
    if given.stream is not None:
        stream = read(given.stream, given.unit, given.key, given.most)
    else:
        stream = load("reddit", *FULL, given.cache)
    print(f"{stream.name}: {len(stream.users):,} rows, {stream.said[2]:,} users, "
          f"{stream.size:,} keys, C = {stream.said[1]}")  # fmt: skip
    for triggers in given.triggers:
        for arm in given.arms:
            found = repeat(stream, arm, triggers, given.seeds, given.runs)
            show(stream.name, found)
            yield {"experiment": "table2", "stream": stream.name, "users": stream.said[2], **found}


def figure9(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time from a micro-batch's arrival to its release, against its size; one process."""
    stream = load("plain", *given.size, given.cache)
    for arm in ("dp-sqlp-rigorous", "ours"):
        for triggers in (400, 200, 100, 50, 20):
            operator = compiled(stream, triggers, *OPERATORS[arm])
            noise, state, walls = SeededNoise(0), operator.init(), []
            for _, batch in batches(stream, triggers):
                start = time.perf_counter()
                operator.fold(state, batch, noise)
                operator.release(state, batch.step, noise)
                walls.append(time.perf_counter() - start)
            last = walls[len(walls) // 2 :]  # most keys are known by then
            rows = len(stream.users) // triggers
            print(f"{arm:17} {rows:>8,} rows a batch: median {np.median(last) * 1e3:.1f} ms,"
                  f" 95 % {np.quantile(last, 0.95) * 1e3:.1f} ms", flush=True)  # fmt: skip
            yield {"experiment": "figure9", "arm": arm, "triggers": triggers, "rows": rows,
                   "users": given.size[0], "median_s": float(np.median(last)),
                   "p95_s": float(np.quantile(last, 0.95))}  # fmt: skip


def workers(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Time of a micro-batch against its size and the number of workers, on Spark."""
    from dp_sqlp_workers import STEPS, measure  # needs the extra `spark`

    stream = load("plain", *given.size, given.cache)
    sizes = [rows for rows in given.batches if rows * STEPS <= len(stream.users)]
    yield from measure(stream, sizes, given.workers)


def figure10(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Four metrics against the number of rows that one user may contribute."""
    stream = load("plain", *given.size, given.cache)
    for rows in given.contributions:
        for name, release, bound in (
            ("dp-sqlp", {**PRESET, "thresholds": "published"}, {"max_rows": rows}),
            ("ours", stream.expected, {"max_rows": rows, "max_squared_rows": 2}),
        ):
            arm = partial(operator_arm, release, bound)
            found = repeat(stream, name, 100, given.seeds, arm=arm)
            show(f"C={rows}", found)
            yield {"experiment": "figure10", "rows": rows, "users": given.size[0], **found}


def settings(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Which bound and weights: on a sample of its own seed, never on the streams of the table."""
    for name in ("plain", "clumpy"):
        stream = sample(name, *given.size, seed=1009)
        for setting in given.grid:
            bound, weight, share, reference = (float(part) for part in setting.split(","))
            release = {"entry_weight": weight, "mu_share": share}
            if reference:
                release["weight_reference"] = reference
            arm = partial(operator_arm, release, {"max_squared_rows": int(bound)})
            found = repeat(stream, setting, given.triggers[0], given.seeds, arm=arm)
            show(name, found)
            yield {"experiment": "settings", "stream": name, "users": given.size[0], **found}


EXPERIMENTS = {
    "table": table,
    "table2": table2,
    "figure9": figure9,
    "workers": workers,
    "figure10": figure10,
    "settings": settings,
}
GRID = [  # bound, entry weight, share of mu, reference of the weights (0: default)
    "4,0.7,0.667,0", "4,0.5,0.667,0", "3,0.5,0.667,0", "2,0.5,0.667,0", "2,0.5,0.75,0",
    "2,0.5,0.75,65", "2,0.5,0.72,65",
]  # fmt: skip
NAMES = ("experiment", "stream", "users", "arm", "triggers", "rows", "workers")


def merge(path: Path, row: dict[str, Any]) -> None:
    """Puts one row into the results file, in place of the row of the same names."""
    path.parent.mkdir(exist_ok=True)
    kept = json.loads(path.read_text()) if path.exists() else {"rows": []}
    kept |= {"machine": platform.machine(), "python": platform.python_version(),
             "epsilon": EPSILON, "delta": DELTA}  # fmt: skip
    name = [row.get(part) for part in NAMES]
    kept["rows"] = [old for old in kept["rows"] if [old.get(part) for part in NAMES] != name]
    kept["rows"].append(row)
    save(path, kept)


def main() -> None:
    """Runs one experiment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("experiment", nargs="?", default="table", choices=list(EXPERIMENTS))
    parser.add_argument("--full", action="store_true", help="59 million records instead of 5.9")
    parser.add_argument("--scale", type=float, default=0.1, help="part of the full size")
    parser.add_argument("--triggers", nargs="+", type=int, default=[100])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--streams", nargs="+", default=list(STREAMS), choices=STREAMS)
    parser.add_argument("--stream-seed", type=int, default=7, help="of the streams of the table")
    parser.add_argument("--grid", nargs="+", default=GRID)
    parser.add_argument("--contributions", nargs="+", type=int, help="C in figure10",
                        default=[1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 50])  # fmt: skip
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batches", nargs="+", type=int, default=[100_000, 250_000, 500_000])
    parser.add_argument("--stream", type=Path, help="table2: a Parquet file, in order of time")
    parser.add_argument("--unit", default="author", help="its column of users")
    parser.add_argument("--key", default="subreddit", help="its column of keys")
    parser.add_argument("--most", type=int, help="C of the preset; default: 99th percentile")
    parser.add_argument("--cache", type=Path, help="folder that keeps the generated streams")
    parser.add_argument("--runs", type=Path, help="file that keeps single runs, to resume")
    parser.add_argument("--out", type=Path, default=RESULTS / "dp_sqlp.json")
    given = parser.parse_args()
    scale = 1 if given.full else given.scale
    given.size = (int(FULL[0] * scale), int(FULL[1] * scale))
    for row in EXPERIMENTS[given.experiment](given):
        merge(given.out, row)


if __name__ == "__main__":
    main()
