"""How much lower is the error than the published DP-SQLP, at the same guarantee?

Regenerates Table 1, Figure 10 and the day averages of Zhang et al. (2023, arXiv:2303.18086) on the
synthetic click stream, at (6, 1e-9) per user over the whole stream with a release at every trigger:

- `one-shot`: every trigger answers the whole data set again with its share of the budget;
- `increments`: every trigger answers its own micro-batch alone, and answers are added up;
- `dp-sqlp`: the published system, preset of this library;
- `ours`: the default, with bounds from public knowledge only (rows per user at the 99th percentile).

Errors are over all keys of the universe against the unbounded truth; an unreleased key counts as 0.
Expected from theory: one counter for all keys, exact Gaussian accounting and per-group bounding cut
the noise of selection and values by about sqrt(32) against 32-fold composition, so several
times the keys and less than half the l1.

    python benchmarks/papers/dp_sqlp.py [--full] [--triggers 100 1000] [--arms ours dp-sqlp ...]
                                        [--seeds 3] [--stream plain clumpy skewed] [--rows-per-user]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.stats import norm

from streamveil.batch import Batch
from streamveil.datasets import Clicks
from streamveil.engines.compile import compile_plan
from streamveil.privacy.budget import Budget
from streamveil.privacy.calibrate import gaussian_mu
from streamveil.privacy.noise import SeededNoise
from streamveil.queries import builder as sv

RESULTS = Path(__file__).parents[1] / "results"
FIGURES = Path(__file__).parents[2] / "docs" / "figures"
EPSILON, DELTA = 6, 1e-9
PAPER = {  # Table 1 of the paper: keys, l_inf, l_1, l_2
    ("dp-sqlp", 100): (28_338, 1_391, 17_741_225, 50_039),
    ("dp-sqlp", 1000): (22_280, 1_563, 19_395_721, 58_237),
}
STREAMS = {
    "plain": {},
    "clumpy": {"clumpy": 0.5},
}


@dataclass(frozen=True)
class Stream:
    """The records of one day, as codes, and the true counts."""

    users: np.ndarray
    keys: np.ndarray
    size: int  # keys of the universe

    def truth(self, upto: int) -> np.ndarray:
        return np.bincount(self.keys[:upto], minlength=self.size + 1)


def load(name: str, users: int, keys: int) -> Stream:
    made = Clicks(users=users, keys=keys, **STREAMS[name]).arrays()
    return Stream(made[0].astype(np.int64), made[1].astype(np.int64), keys)


def batches(stream: Stream, triggers: int) -> Iterator[tuple[int, Batch]]:
    """(records so far, micro-batch) for every trigger."""
    edges = np.linspace(0, len(stream.users), triggers + 1).astype(int)
    for step, (a, b) in enumerate(zip(edges[:-1], edges[1:], strict=True), start=1):
        rows = pa.table({"user": stream.users[a:b], "key": stream.keys[a:b]})
        yield int(b), Batch(rows, step, True, "{}")


def metrics(estimate: np.ndarray, shown: int, truth: np.ndarray) -> dict[str, float]:
    error = np.abs(estimate - truth)
    return {
        "keys": float(shown), "linf": float(error.max()), "l1": float(error.sum()),
        "l2": float(np.sqrt((error**2).sum())), "relative_l1": float(error.sum() / max(truth.sum(), 1)),
    }  # fmt: skip


def checkpoints(triggers: int) -> set[int]:
    return {int(t) for t in np.unique(np.linspace(0.04 * triggers, triggers, 11).round())}


# ---- arms: each yields (trigger, estimates by key code, number of shown keys) at checkpoints


def operator_arm(stream: Stream, triggers: int, seed: int, release: dict[str, Any],
                 bound: dict[str, Any]) -> Iterator[tuple[int, np.ndarray, int]]:  # fmt: skip
    empty = pa.schema([("user", pa.int64()), ("key", pa.int64())]).empty_table()
    query = (
        sv.memory(empty).protect(unit="user").group_by("key", keys=sv.discover(min_units=1))
        .agg(n=sv.count()).bound(**bound)
        .release(every=sv.rows(10**9), steps=triggers, budget=Budget(epsilon=EPSILON, delta=DELTA),
                 **release)
    )  # fmt: skip
    operator = compile_plan(query.plan)
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


def ours(stream: Stream, triggers: int, seed: int, **_: Any) -> Iterator[Any]:
    return operator_arm(stream, triggers, seed, {}, {"max_squared_rows": 4})


def static(stream: Stream, triggers: int, seed: int, **_: Any) -> Iterator[Any]:
    """Design S: one Gaussian counter for selection and values, at most one row per user and key."""
    return operator_arm(stream, triggers, seed, {"selection": "gaussian"},
                        {"max_rows": 32, "max_rows_per_group": 1})  # fmt: skip


def dp_sqlp(stream: Stream, triggers: int, seed: int, **_: Any) -> Iterator[Any]:
    return operator_arm(stream, triggers, seed, {"preset": "dp-sqlp"}, {"max_rows": 32})


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
    limit, keep = 32, bounded(stream, 32)
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


ARMS: dict[str, Callable[..., Iterator[Any]]] = {
    "one-shot": lambda s, t, seed: repeated(s, t, seed, fresh=True),
    "increments": lambda s, t, seed: repeated(s, t, seed, fresh=False),
    "dp-sqlp": dp_sqlp,
    "static": static,
    "ours": ours,
}


def measure(stream: Stream, arm: str, triggers: int, seed: int) -> dict[str, Any]:
    edges = np.linspace(0, len(stream.users), triggers + 1).astype(int)
    start, day = time.process_time(), []
    for t, estimate, shown in ARMS[arm](stream, triggers, seed):
        day.append(metrics(estimate, shown, stream.truth(int(edges[t]))))
    return {
        "end": day[-1], "seconds": time.process_time() - start,
        "day": {name: float(np.mean([point[name] for point in day])) for name in day[0]},
    }  # fmt: skip


def summary(rows: list[dict[str, Any]], part: str) -> dict[str, dict[str, float]]:
    return {
        name: {"mean": float(np.mean([row[part][name] for row in rows])),
               "sd": float(np.std([row[part][name] for row in rows], ddof=len(rows) > 1))}
        for name in rows[0][part]
    }  # fmt: skip


def show(stream: str, arm: str, triggers: int, found: dict[str, Any]) -> None:
    end, day = found["end"], found["day"]
    print(f"{stream:7} {arm:11} T={triggers:<5} keys {end['keys']['mean']:>9,.0f}"
          f"  linf {end['linf']['mean']:>7,.0f}  l1 {end['l1']['mean']:>12,.0f}"
          f"  l2 {end['l2']['mean']:>9,.0f} | day: keys {day['keys']['mean']:>9,.0f}"
          f"  l1/n {day['relative_l1']['mean']:.3f}   {found['seconds']:.0f} cpu s", flush=True)  # fmt: skip
    if (arm, triggers) in PAPER:
        keys, linf, l1, l2 = PAPER[arm, triggers]
        print(f"        (paper)     T={triggers:<5} keys {keys:>9,}  linf {linf:>7,}  l1 {l1:>12,}"
              f"  l2 {l2:>9,}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="59 million records instead of 5.9")
    parser.add_argument("--triggers", nargs="+", type=int, default=[100])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--streams", nargs="+", default=list(STREAMS), choices=list(STREAMS))
    parser.add_argument("--out", default=str(RESULTS / "dp_sqlp.json"))
    given = parser.parse_args()
    users, keys = (10_000_000, 1_000_000) if given.full else (1_000_000, 100_000)
    results: dict[str, Any] = {
        "machine": platform.machine(), "python": platform.python_version(), "users": users,
        "keys": keys, "epsilon": EPSILON, "delta": DELTA, "seeds": given.seeds, "rows": [],
    }  # fmt: skip
    for name in given.streams:
        stream = load(name, users, keys)
        for triggers in given.triggers:
            for arm in given.arms:
                runs = [measure(stream, arm, triggers, seed) for seed in range(given.seeds)]
                found = {"end": summary(runs, "end"), "day": summary(runs, "day"),
                         "seconds": float(np.mean([run["seconds"] for run in runs]))}  # fmt: skip
                show(name, arm, triggers, found)
                results["rows"].append({"stream": name, "arm": arm, "triggers": triggers, **found})
    Path(given.out).parent.mkdir(exist_ok=True)
    Path(given.out).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
