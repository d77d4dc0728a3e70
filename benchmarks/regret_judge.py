"""Judges a change of the default: errors and forecasts on streams of random shape, drawn anew.

Choose by a few streams of `regret_streams.py`; then judge here, once, with a fresh `--seed`. Run it
with the same seed on both versions and compare: the geometric mean of the ratios of each error, and
how far each was from its forecast.

    python benchmarks/regret_judge.py --seed 5 --out new.json [--streams 12] [--looks 2]
                                      [--told look|live|sizes|nothing] [--given]
                                      [--set streamveil.compiler.design_choice.FEW=5 ...]
    python benchmarks/regret_judge.py --compare old.json new.json

`--set`: constants of modules, changed before anything is measured.

`--told`: a query knows what its look says (by default), one at the rows of its first release alone
(`live`), public sizes of its stream (units, groups, rows of a unit, in the mean and at most), or
nothing.

A stream has 1,000 to 20,000 users with 2 to 30 rows each on average (Poisson, geometric, or one in
a hundred with many), 10 to 10,000 keys of weight (k + keys / 1000)^-steep with steep 0 to 1.6;
in five of nine, users stay with a key, keys die, or a user's first rows or some are keys of its
own.

`--given`: queries bound the rows of a unit at a quarter to twice of their mean, one of two also to
one row in a group, and one of two sums values. Errors are told twice: against the answers over all
rows, and against those over the rows within the bounds, which no choice cuts. These streams have
300 to 20,000 users of log-normal activity, 5 to 3,000 keys of log-normal weights of deviation 0 to
2 or, in one of three, of two sizes.
"""

from __future__ import annotations

import argparse
import json
import os
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np

from regret import ERRORS, HIGHEST, errors_of, last_release, planned
from regret_streams import Stream, laid_out, zipf
from saved import save
from streamveil.compiler.error_forecast import admit
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.plan_forecast import forecasts

BUDGETS = ((6.0, 1e-9), (1.0, 1e-6))


def shaped(seed: int, number: int) -> Stream:
    """One stream of random shape."""
    rng = np.random.default_rng([seed, number])
    users, keys = int(10 ** rng.uniform(3, 4.3)), int(10 ** rng.uniform(1, 4))
    mean, steep = 2 * 15 ** rng.random(), rng.uniform(0, 1.6)
    rows = (rng.poisson(mean - 1, users) + 1, rng.geometric(1 / mean, users),
            np.where(rng.random(users) < 0.01, rng.poisson(40 * mean, users), 1) + 1,
            )[rng.integers(3)]  # fmt: skip
    who = laid_out(rng, rows)
    which = zipf(rng, keys, len(who), steep)
    twist = rng.integers(9)
    if twist == 0:
        stays = rng.random(len(who)) < 0.5
        which = np.where(stays, zipf(rng, keys, users, steep)[who - 1], which)
    elif twist == 1:
        which = which + keys * (np.arange(len(who)) * 8 // len(who))
    elif twist == 2:
        own = np.unique(who, return_index=True)[1]
        which[own] = keys + 1 + np.arange(users)
    elif twist in (3, 4):
        own = rng.random(len(who)) < rng.choice([0.1, 0.3, 0.6])
        if twist == 4:
            order, ends = np.argsort(who, kind="stable"), np.cumsum(np.bincount(who))[who - 1]
            own[order] = np.arange(len(who)) - ends[order] < rng.integers(2, 5)
        which[own] = keys + 1 + np.arange(own.sum())
    return Stream(f"{users} users {len(who)} rows {keys} keys ^-{steep:.2f} {twist}", who, which)


def bounded(seed: int, number: int) -> tuple[Stream, dict[str, int]]:
    """One stream of other random shapes, and bounds that a query gives."""
    rng = np.random.default_rng([seed, number, 1])
    users, keys = int(10 ** rng.uniform(2.5, 4.3)), int(5 * 600 ** rng.random())
    active = rng.lognormal(0, rng.uniform(0, 1.2), users)
    rows = rng.poisson(2 * 15 ** rng.random() * active / active.mean()) + 1
    who, spread = laid_out(rng, rows), rng.uniform(0, 2)
    weights = np.exp(spread * rng.standard_normal(keys))
    if rng.integers(3) == 0:
        weights = np.where(rng.random(keys) < 0.2, 10.0, 1.0)
    which = rng.choice(keys, len(who), p=weights / weights.sum()) + 1
    most = max(1, round(float(rows.mean()) * 2 ** rng.uniform(-2, 1)))
    bound = {"max_rows": most} | ({"max_rows_per_group": 1} if rng.integers(2) else {})
    values = None
    if rng.integers(2):
        sizes = rng.lognormal(np.log(HIGHEST * rng.uniform(0.02, 0.5)), 1, len(who))
        values = np.minimum(np.ceil(sizes), HIGHEST)
    what = f"{users} users {len(who)} rows {keys} keys {'counted' if values is None else 'summed'}"
    return Stream(f"{what} {bound}", who, which, values), bound


def within(stream: Stream, bound: dict[str, int]) -> np.ndarray:
    """The answers over the rows within the bounds."""
    order = np.argsort(stream.users, kind="stable")
    _, ends = np.unique(stream.users[order], return_index=True)
    pairs = stream.users[order].astype(np.int64) * (stream.size + 1) + stream.keys[order]
    _, first, back = np.unique(pairs, return_index=True, return_inverse=True)
    once = bound.get("max_rows_per_group", np.inf)
    limits = np.array([np.inf, np.inf, once, bound.get("max_rows", np.inf), np.inf])
    every = np.ones(len(order))
    ends = np.append(ends[1:], len(order))
    kept, _ = admit(ends, first[back], every, every > 0, every, limits)
    rows = order[kept > 0]
    values = None if stream.values is None else stream.values[rows]
    return np.bincount(stream.keys[rows], values, stream.size + 1)


def measured(given: argparse.Namespace) -> None:
    """The errors of the default, geometric means over some looks and runs, each with its forecast.

    A forecast is the geometric mean over the streams that a look leaves possible.
    """
    found = {}
    for number in range(given.streams):
        stream, bound = (bounded if given.given else unbounded)(given.seed, number)
        truths = [stream.truth(len(stream.users))] + [within(stream, bound)] * bool(bound)
        sizes = {name: size for name, size in stream.expected.items() if "repeats" not in name}
        options = {
            "look": {"look": "whole"},
            "live": {"look": "first"},
            "sizes": sizes,
            "nothing": {},
        }[given.told]
        for steps, budget in product(given.triggers, BUDGETS):
            logs, shown = [], []
            for place in range(given.looks):
                plan = planned(stream, (options, bound), steps, budget, place)
                made = compile_plan(plan)
                table = last_release(stream, made, steps, place)
                errors = [errors_of(table, truth)[one] for truth in truths for one in ERRORS]
                ahead = [[getattr(one, error) for error in ERRORS]
                         for _, one in forecasts(plan, made)]  # fmt: skip
                ahead = np.log(ahead or [[np.nan] * 3]).mean(axis=0)
                logs.append([np.log(errors), np.append(ahead, ahead * np.nan)[: len(errors)]])
                shown.append(len(table))
            means = np.exp(np.mean(logs, axis=0))
            misses = np.exp(np.nanmean(np.abs(np.diff(logs, axis=1)), axis=(0, 1)))[:3]
            name = f"{number} T={steps} e={budget[0]:g} {stream.name}"
            found[name] = {"error": [*means[0]], "forecast": [*means[1][:3]], "misses": [*misses],
                           "keys": float(np.mean(shown))}  # fmt: skip
            print(name, *(f"{a:.0f} ({b:.0f})" for a, b in means.T), np.mean(shown), flush=True)
            if given.out:
                save(given.out, found)


def unbounded(seed: int, number: int) -> tuple[Stream, dict[str, int]]:
    """A stream whose query leaves bounds to the forecast."""
    return shaped(seed, number), {}


def compare(old: Path, new: Path) -> None:
    """The ratios of the errors of two files, and how far each was from its forecasts."""
    before, after = (json.loads(path.read_text()) for path in (old, new))
    names = [name for name in before if name in after]
    ratio = np.array([np.divide(after[n]["error"], before[n]["error"]) for n in names])
    for place in np.argsort(ratio[:, 0]):
        keys = [file[names[place]].get("keys", np.nan) for file in (before, after)]
        print(*(f"{part:5.2f}" for part in ratio[place]), *keys, names[place])
    print("geometric mean of", ERRORS, np.exp(np.log(ratio).mean(axis=0)).round(3))
    for place in range(0, ratio.shape[1], len(ERRORS)):
        l1 = ratio[:, place]
        print(f"l1 better by 5 % in {(l1 < 0.95).sum()}, worse in {(l1 > 1.05).sum()}"
              f" of {len(names)}, at worst {l1.max():.2f} times"
              + " (of the rows within the bounds)" * (place > 0))  # fmt: skip
    for which, file in (("old", before), ("new", after)):
        off = np.array([file[n]["misses"] for n in names])
        mean = np.exp(np.nanmean(np.log(off), axis=0)).round(3)
        near = (off < 1.25).mean(axis=0).round(2)
        print(f"{which} forecasts: off by a factor of {mean}, within 1.25 in {near}")


def change(constants: list[str]) -> None:
    """Sets constants of modules; no search that is kept was made with them."""
    for text in constants:
        name, _, number = text.partition("=")
        place, _, constant = name.rpartition(".")
        module = import_module(place)
        kind = type(getattr(module, constant))
        setattr(module, constant, kind(float(number)))
        os.environ["STREAMVEIL_CACHE"] = "off"


def main() -> None:
    """Measures, or compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--looks", type=int, default=2)
    parser.add_argument("--told", choices=["look", "live", "sizes", "nothing"], default="look")
    parser.add_argument("--triggers", nargs="+", type=int, default=[1, 24])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--given", action="store_true")
    parser.add_argument("--set", nargs="+", default=[], help="constants of modules")
    parser.add_argument("--compare", nargs=2, type=Path)
    given = parser.parse_args()
    if given.compare:
        compare(*given.compare)
        return
    change(given.set)
    measured(given)


if __name__ == "__main__":
    main()
