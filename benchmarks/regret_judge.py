"""Judges a change of the default: errors and forecasts on streams of random shape, drawn anew.

Choose by a few streams of `regret_streams.py`; then judge here, once, with a fresh `--seed`. Run it
with the same seed on both versions and compare: the geometric mean of the ratios of each error, and
how far each was from its forecast.

    python benchmarks/regret_judge.py --seed 5 --out new.json [--streams 12] [--looks 2]
                                      [--told look|live|sizes|nothing]
    python benchmarks/regret_judge.py --compare old.json new.json

`--told`: a query knows what its look says (by default), one at the rows of its first release alone
(`live`), public sizes of its stream (units, groups, rows of a unit, in the mean and at most), or
nothing.

A stream has 1,000 to 20,000 users with 2 to 30 rows each on average (Poisson, geometric, or one in
a hundred with many), 10 to 10,000 keys of weight (k + keys / 1000)^-steep with steep 0 to 1.6;
in one of three, users stay with a key, keys die, or a user's first rows are keys of its own.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

import numpy as np

from regret import ERRORS, planned, run
from regret_streams import Stream, laid_out, zipf
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
    return Stream(f"{users} users {len(who)} rows {keys} keys ^-{steep:.2f} {twist}", who, which)


def measured(given: argparse.Namespace) -> None:
    """The errors of the default, geometric means over some looks and runs, each with its forecast.

    A forecast is the geometric mean over the streams that a look leaves possible.
    """
    found = {}
    for number in range(given.streams):
        stream = shaped(given.seed, number)
        sizes = {name: size for name, size in stream.expected.items() if "repeats" not in name}
        options = {
            "look": {"look": "whole"},
            "live": {"look": "first"},
            "sizes": sizes,
            "nothing": {},
        }[given.told]
        for steps, budget in product(given.triggers, BUDGETS):
            logs = []
            for place in range(given.looks):
                plan = planned(stream, (options, {}), steps, budget)
                made = compile_plan(plan)
                errors = run(stream, made, steps, place)
                ahead = [[getattr(one, error) for error in ERRORS]
                         for _, one in forecasts(plan, made)]  # fmt: skip
                logs.append([np.log([errors[error] for error in ERRORS]),
                             np.log(ahead or [[np.nan] * 3]).mean(axis=0)])  # fmt: skip
            means = np.exp(np.mean(logs, axis=0))
            misses = np.exp(np.nanmean(np.abs(np.diff(logs, axis=1)), axis=(0, 1)))
            name = f"{number} T={steps} e={budget[0]:g} {stream.name}"
            found[name] = {"error": [*means[0]], "forecast": [*means[1]], "misses": [*misses]}
            print(name, *(f"{a:.0f} ({b:.0f})" for a, b in means.T), flush=True)
            if given.out:
                given.out.write_text(json.dumps(found, indent=1) + "\n")


def compare(old: Path, new: Path) -> None:
    """The ratios of the errors of two files, and how far each was from its forecasts."""
    before, after = (json.loads(path.read_text()) for path in (old, new))
    names = [name for name in before if name in after]
    ratio = np.array([np.divide(after[n]["error"], before[n]["error"]) for n in names])
    for place in np.argsort(ratio[:, 0]):
        print(*(f"{part:5.2f}" for part in ratio[place]), names[place])
    print("geometric mean of", ERRORS, np.exp(np.log(ratio).mean(axis=0)).round(3))
    print(f"l1 better by 5 % in {(ratio[:, 0] < 0.95).sum()}, worse in {(ratio[:, 0] > 1.05).sum()}"
          f" of {len(names)}")  # fmt: skip
    for which, file in (("old", before), ("new", after)):
        off = np.array([file[n]["misses"] for n in names])
        mean = np.exp(np.nanmean(np.log(off), axis=0)).round(3)
        near = (off < 1.25).mean(axis=0).round(2)
        print(f"{which} forecasts: off by a factor of {mean}, within 1.25 in {near}")


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
    parser.add_argument("--compare", nargs=2, type=Path)
    given = parser.parse_args()
    if given.compare:
        compare(*given.compare)
        return
    measured(given)


if __name__ == "__main__":
    main()
