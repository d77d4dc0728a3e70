"""One-shot answers beside OpenDP: 40 discovered keys, the same bounds, budget and rows.

Question: is a first query worse here than in a library made for one-shot answers? Two queries, each
with the whole budget: COUNT(*) and SUM(x) by key, on `few` (40 keys, 30,000 users). OpenDP gets
rows that are bounded already (`max_rows` distinct keys of a user, one row each) and releases them
by `make_gaussian_threshold`, its thresholded Gaussian; noise and threshold are the smallest with
which its own map proves the budget, half of delta for the threshold. Ours reads the raw rows with
the same bounds, and pays its look and its count of cut rows from the same budget.
Expected: the same noise up to the few percent of the look; the goal is at most 1.1 times. Errors of
20 runs are known to 4%, so the deviations of the noise (`sd`) stand beside them.

Needs opendp==0.16.0: pip install 'streamveil[bench]' 'opendp==0.16.0'

    python benchmarks/one_shot_peer.py [--runs 20]
"""

from __future__ import annotations

import argparse
import platform
import secrets
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import opendp
import opendp.prelude as dp
import pyarrow as pa

import streamveil as sv
from regret_streams import make
from saved import save
from streamveil.batch import Batch
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import SeededNoise
from streamveil.plan.look import divided, look_share, told, with_look
from streamveil.runtime.survey import survey

RESULTS = Path(__file__).parent / "results" / "one_shot_peer.json"
HIGH = 100  # of a value; the lower bound is 0
BUDGETS = ((6.0, 1e-9), (1.0, 1e-6))
dp.enable_features("contrib")


def bounded(users: np.ndarray, keys: np.ndarray, most: int) -> np.ndarray:
    """Which rows stay: of each user the first row of each of the first `most` keys."""
    pairs = users.astype(np.int64) * (int(keys.max()) + 1) + keys
    first = np.zeros(len(users), bool)
    first[np.unique(pairs, return_index=True)[1]] = True
    rows = np.flatnonzero(first)
    order = rows[np.argsort(users[rows], kind="stable")]
    counts = np.unique(users[order], return_counts=True)[1]
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(order[rank < most])


def smallest(fits: Callable[[float], bool], high: float) -> float:
    """The least number that fits, by bisection."""
    low = 0.0
    while not fits(high):
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def peer(most: int, reach: int, budget: tuple[float, float]) -> Any:
    """OpenDP's thresholded Gaussian with the least noise that its map proves."""
    space = dp.map_domain(dp.atom_domain(T=int), dp.atom_domain(T=int))
    metric = dp.l02inf_distance(dp.absolute_distance(T=float))
    far = 2**30
    near = (most, reach * sqrt(most), float(reach))

    def made(scale: float, threshold: float) -> Any:
        return dp.m.make_gaussian_threshold(
            space, metric, scale=scale, threshold=max(reach, int(np.ceil(threshold)))
        )

    def lost(scale: float, threshold: float) -> tuple[float, float]:
        curve, delta = dp.c.make_zCDP_to_approxDP(made(scale, threshold)).map(near)
        return curve.epsilon(budget[1] / 2), delta

    scale = smallest(lambda s: lost(s, far)[0] <= budget[0], reach * sqrt(most))
    threshold = smallest(lambda t: lost(scale, t)[1] <= budget[1] / 2, reach + 10 * scale)
    return made(scale, threshold), scale, threshold


def ours(rows: pa.Table, most: int, budget: tuple[float, float], *, summed: bool, seed: int) -> Any:
    """The query as anybody writes it with these bounds, through look, compilation and release."""
    answer = sv.sum("x", bounds=(0, HIGH)) if summed else sv.count()
    query = (
        sv.memory(rows.slice(0, 0)).protect(unit="user")
        .group_by("key", keys=sv.discover(min_units=1)).agg(n=answer)
        .bound(max_rows=most, max_rows_per_group=1)
        .release(budget=sv.Budget(epsilon=budget[0], delta=budget[1]))
    )  # fmt: skip
    noise, plan = SeededNoise(seed), with_look(query.plan)
    if look_share(plan):
        looking = divided(plan).looking
        plan = told(plan, survey(plan, rows, looking, noise)[0].likely, [])
    made = compile_plan(replace(plan))
    state = made.init()
    made.fold(state, Batch(rows, 1, True, "{}"), noise)
    [released] = made.release(state, 1, noise)
    return released.table


def errors(
    keys: np.ndarray, answers: np.ndarray, truth: np.ndarray, deviation: float
) -> dict[str, float]:
    """Over all keys; one that is not released counts as 0. Beside them the deviation of noise."""
    found = np.zeros(len(truth))
    found[keys] = answers
    off = np.abs(found - truth)
    return {"l1": float(off.sum()), "l2": float(np.sqrt((off**2).sum())), "keys": float(len(keys)),
            "sd": deviation}  # fmt: skip


def measure(most: int, budget: tuple[float, float], runs: int, *, summed: bool) -> dict[str, Any]:
    """Mean errors of both against the answers over bounded rows, which bias neither."""
    stream = make("few", secrets.randbelow(2**31))
    value = np.random.default_rng(secrets.randbelow(2**31)).integers(0, HIGH + 1, len(stream.users))
    rows = pa.table({"user": stream.users, "key": stream.keys, "x": value})
    kept = bounded(stream.users, stream.keys, most)
    amount = value[kept] if summed else np.ones(len(kept), np.int64)
    truth = np.bincount(stream.keys[kept], amount, stream.size + 1)
    mechanism, scale, threshold = peer(most, HIGH if summed else 1, budget)
    exact = {int(key): int(truth[key]) for key in np.flatnonzero(truth)}
    found: dict[str, list[dict[str, float]]] = {"ours": [], "opendp": []}
    for seed in range(runs):
        table = ours(rows, most, budget, summed=summed, seed=seed)
        sd = float(np.sqrt(np.mean(table["n_sd"].to_numpy() ** 2)))
        found["ours"].append(errors(table["key"].to_numpy(), table["n"].to_numpy(), truth, sd))
        other = mechanism(exact)
        numbers = np.array(list(other.values()), float)
        found["opendp"].append(errors(np.array(list(other), np.int64), numbers, truth, scale))
    mean = {who: {name: float(np.mean([one[name] for one in all_])) for name in all_[0]}
            for who, all_ in found.items()}  # fmt: skip
    return {
        "answer": "sum" if summed else "count", "max_rows": most, "budget": list(budget),
        "runs": runs, **mean, "l1_ratio": mean["ours"]["l1"] / mean["opendp"]["l1"],
        "l2_ratio": mean["ours"]["l2"] / mean["opendp"]["l2"],
        "sd_ratio": mean["ours"]["sd"] / mean["opendp"]["sd"], "opendp_threshold": threshold,
    }  # fmt: skip


def main() -> None:
    """Both answers, two bounds, two budgets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    runs, rows = parser.parse_args().runs, []
    for most in (4, 16):
        for budget in BUDGETS:
            for summed in (False, True):
                rows.append(measure(most, budget, runs, summed=summed))
                print({name: one for name, one in rows[-1].items() if name != "budget"}, flush=True)
    content = {"opendp": opendp.__version__ if hasattr(opendp, "__version__") else "0.16.0",
               "machine": platform.machine(), "rows": rows}  # fmt: skip
    save(RESULTS, content)


if __name__ == "__main__":
    main()
