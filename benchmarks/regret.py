"""How far is the default from the best settings, on streams that nobody tuned on?

Every stream of `regret_streams.py` x number of releases x budget: the error of a count per
discovered key with the default settings, beside

- `covered`: the default with `intervals = 'true'`, which hold the rows over the bound too;
- `live`: the default as over live data, with a look at the rows of the first release alone;
- `blind`: the default without a look;
- `expected`: the same, told the true sizes of the stream;
- `preset`: the published system with thresholds that hold (`preset = 'dp-sqlp'`), its C the 99th
  percentile of rows per user;
- `gaussian-1`, `gaussian-c`: one Gaussian counter for selection and values, one row per user and
  key, and the best of several bounds;
- `flat`, `weighted`: a table of coins for selection, keys without and with weights, best bound;
- `grid`: the best of all settings tried, for each error by itself.

Errors are over all keys of the stream against the unbounded truth at the end; a key that is not
released counts as 0. Beside them: how many intervals of released keys hold the true count, how wide
they are, and what the default forecasts (geometric mean over what its looks leave possible).
Streams and noise are drawn anew at each run; seed and commit are in each row of the results.
Each setting is run with several draws of noise, and the default looks anew for each. A best setting
is chosen by the mean error over the first half of the draws and judged by the others, so that it
knows the stream and not the noise. With one draw it has the luck of that draw.
Expected: 'best of several' sees the data and the default does not, so the default is above 1 where
the shape of the stream decides; the goal is at most 1.05 times the best named alternative.

    python benchmarks/regret.py [--streams plain few ...] [--triggers 1 4 10 24 100 1000]
                                [--budgets 1,1e-6 6,1e-9] [--arms ...] [--draws 8] [--out FILE]
                                [--minutes 40] [--again default ...] [--seed N]

What the file holds already is kept and not measured again: a campaign that was cut off goes on
where it was, with the same streams. `--again` measures some arms anew, in the cells that are asked
for and no others, each when its turn comes, with the stream and the noise of the other arms of its
case; `--seed` begins anew.
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import subprocess
import time
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import streamveil as sv
from regret_streams import STREAMS, Stream, make
from saved import save
from streamveil.batch import Batch
from streamveil.compiler.first_release import of_all_releases
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.plan_forecast import forecasts
from streamveil.core.noise import SeededNoise
from streamveil.errors import PlanError
from streamveil.plan import Plan
from streamveil.plan.look import MOST_RELEASES, divided, told, with_look
from streamveil.runtime.survey import survey

RESULTS = Path(__file__).parent / "results" / "regret.json"
ERRORS = ("l1", "l2", "linf")
HIGHEST = 100  # of a value; the lower bound is 0
Arm = tuple[dict[str, Any], dict[str, Any]]  # options of the release, bounds

GAUSSIAN: dict[str, Any] = {"selection": "gaussian"}
OWN = ("default", "covered", "live", "blind", "expected")  # arms that choose settings themselves
SQUARED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024)


def arms(stream: Stream) -> dict[str, list[Arm]]:
    """The settings of each arm; the best of several counts."""
    tables = [
        ({"selection": "table", "entry_weight": weight, "hidden_groups": slots},
         {"max_squared_rows": squared})
        for squared, weight, slots in product((2, 4, 8, 16, 64), (1.0, 0.5), (2, 4))
    ]  # fmt: skip
    flat = [
        ({"selection": "table", "weights": "flat", "hidden_groups": slots},
         {"max_squared_rows": squared})
        for squared, slots in product((4, 16, 64, 256), (2, 4))
    ]  # fmt: skip
    once = [({**GAUSSIAN}, {"max_rows": rows, "max_rows_per_group": 1})
            for rows in sorted({1, 2, 4, 8, 16, stream.most})]  # fmt: skip
    return {
        "default": [({"look": "whole"}, {})],
        "covered": [({"look": "whole", "intervals": "true"}, {})],
        "live": [({"look": "first"}, {})],
        "blind": [({}, {})],
        "expected": [(dict(stream.expected), {})],
        "preset": [({"preset": "dp-sqlp"}, {"max_rows": stream.most})],
        "gaussian-1": [(GAUSSIAN, {"max_rows": stream.most, "max_rows_per_group": 1})],
        "gaussian-c": [*once, *[(GAUSSIAN, {"max_squared_rows": b}) for b in SQUARED]],
        "flat": flat,
        "weighted": tables,
    }  # fmt: skip


def planned(
    stream: Stream, arm: Arm, triggers: int, budget: tuple[float, float], seed: int | None = None
) -> Plan:
    """The query of one setting; the default looks at the rows, as `run` does.

    `seed`: of the look's noise; None: a new one.
    """
    release, bound = {name: value for name, value in arm[0].items() if name != "look"}, arm[1]
    answer = sv.count() if stream.values is None else sv.sum("x", bounds=(0, HIGHEST))
    grouped = (
        sv.memory(stream.table(0, 0)).protect(unit="user")
        .group_by("key", keys=sv.discover(min_units=1)).agg(n=answer)
    )  # fmt: skip
    query = (grouped.bound(**bound) if bound else grouped).release(
        every=sv.rows(10**9), steps=triggers,
        budget=sv.Budget(epsilon=budget[0], delta=budget[1]), **release,
    )  # fmt: skip
    releases = triggers if arm[0].get("look") == "first" else 1
    if "look" not in arm[0] or releases > MOST_RELEASES:
        return replace(query.plan, options={**query.plan.options, "look_share": 0})
    plan, ends = with_look(query.plan), len(stream.users) // releases
    noise = SeededNoise(secrets.randbelow(2**31) if seed is None else seed)
    learned, _ = survey(plan, stream.table(0, ends), divided(plan).looking, noise)
    known = learned.likely and of_all_releases(learned.likely, releases, learned.seen)
    return told(plan, known, [])


def last_release(stream: Stream, made: Any, triggers: int, seed: int) -> pa.Table:
    """What is released at the end of one run."""
    noise, state = SeededNoise(seed), made.init()
    edges = np.linspace(0, len(stream.users), triggers + 1).astype(int)
    for step, (a, b) in enumerate(pairwise(edges), start=1):
        made.fold(state, Batch(stream.table(a, b), step, True, "{}"), noise)
        [released] = made.release(state, step, noise)
    table: pa.Table = released.table
    return table


def errors_of(table: pa.Table, truth: np.ndarray) -> dict[str, float]:
    """Errors of a release over all keys, and how often its intervals hold the truth."""
    keys, estimate = table["key"].to_numpy(), np.zeros(len(truth))
    estimate[keys] = table["n"].to_numpy()
    error = np.abs(estimate - truth)
    low, high = table["n_low"].to_numpy(), table["n_high"].to_numpy()
    inside = (low <= truth[keys]) & (truth[keys] <= high)
    width = high - low
    return {
        "l1": float(error.sum()), "l2": float(np.sqrt((error**2).sum())),
        "linf": float(error.max()), "keys": float(len(keys)), "total": float(estimate.sum()),
        "coverage": float(inside.mean()) if len(keys) else 1.0,
        "width": float(np.median(width)) if len(keys) else 0.0,
    }  # fmt: skip


def measure(stream: Stream, name: str, settings: list[Arm], triggers: int,
            budget: tuple[float, float], seeds: list[int]) -> dict[str, Any]:  # fmt: skip
    """The best of an arm's settings for each error: chosen by some draws, judged by others.

    `first` in what is returned are the errors by which each was chosen.
    """
    start, found, refused, ahead = time.process_time(), [], "", []
    truth = stream.truth(len(stream.users))
    for setting in settings:
        looks, runs, made = "look" in setting[0], [], None
        try:
            for seed in seeds:
                if made is None or looks:
                    plan = planned(stream, setting, triggers, budget)
                    made = compile_plan(plan)
                    ahead += [one for _, one in forecasts(plan, made)] if name == "default" else []
                runs.append(errors_of(last_release(stream, made, triggers, seed), truth))
        except PlanError as error:
            refused = str(error).splitlines()[0]
            continue
        half = len(runs) // 2
        choosing, judging = runs[: max(half, 1)], runs if name in OWN else runs[half:]
        found.append((mean_of(choosing), mean_of(judging), setting))
    row: dict[str, Any] = {"stream": stream.name, "arm": name, "triggers": triggers,
                           "budget": list(budget), "rows": len(stream.users)}  # fmt: skip
    if not found:
        return {**row, "refused": refused}
    row |= {"draws": len(seeds), "first": {}}
    for error in ERRORS:
        first, judged, _ = min(found, key=lambda one: one[0][error])
        row[error], row["first"][error] = judged[error], first[error]
    _, best, setting = min(found, key=lambda one: one[0]["l1"])
    row |= {key: best[key] for key in ("keys", "total", "coverage", "width")}
    if ahead:
        logs = np.log([[getattr(one, error) for error in ERRORS] for one in ahead])
        row["forecast"] = dict(zip(ERRORS, np.exp(logs.mean(axis=0)).tolist(), strict=True))
    return {**row, "setting": list(setting), "seconds": time.process_time() - start}


def mean_of(runs: list[dict[str, float]]) -> dict[str, float]:
    """Each figure's mean over runs."""
    return {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}


def best_of(rows: list[dict[str, Any]], error: str) -> float:
    """The error of the arm that was best in the draws that chose settings, in the others."""
    return float(min(rows, key=lambda row: row.get("first", row)[error])[error])


def show(row: dict[str, Any]) -> None:
    """One line for the terminal."""
    head = f"{row['stream']:9} T={row['triggers']:<5} e={row['budget'][0]:<3} {row['arm']:11}"
    if "refused" in row:
        print(head, row["refused"][:90], flush=True)
        return
    print(f"{head} l1 {row['l1'] / row['rows']:7.4f}  l2 {row['l2']:9.0f}  linf {row['linf']:8.0f}"
          f"  keys {row['keys']:7.0f}  cover {row['coverage']:.2f}  {row['seconds']:5.1f} s"
          f"  {row['setting'] if len(str(row['setting'])) < 90 else ''}", flush=True)  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> None:
    """The default beside the best named alternative and beside all settings tried, per stream."""
    print(f"\n{'stream':9} {'T':>5} {'e':>3}   default / best alternative: l1, l2, linf")
    cells = sorted({place(row)[:3] for row in rows})
    ratios = []
    for cell in cells:
        here = {row["arm"]: row for row in rows if place(row)[:3] == cell}
        mine = here.get("default", {})
        others = [r for arm, r in here.items() if arm not in OWN and "l1" in r]
        if "l1" not in mine or not others:
            continue
        ratio = [mine[e] / best_of(others, e) for e in ERRORS]
        ratios.append(ratio)
        print(f"{cell[0]:9} {cell[1]:>5} {cell[2][0]:>3}   " + "  ".join(
            f"{r:6.2f}" for r in ratio))  # fmt: skip
    if ratios:
        print("median", np.round(np.median(ratios, axis=0), 3), "worst",
              np.round(np.max(ratios, axis=0), 3))  # fmt: skip


class Campaign:
    """The rows of a file of results, those that are still to be measured, and the time for them."""

    def __init__(self, out: Path, seed: int | None, minutes: float) -> None:
        kept = json.loads(out.read_text()) if out.exists() and seed is None else {}
        self.out, self.ends = out, time.monotonic() + 60 * minutes
        self.seed: int = kept.get("seed", secrets.randbelow(2**31) if seed is None else seed)
        self.rows = {place(row): row for row in kept.get("rows", [])}
        self.commit = subprocess.run(
            ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.ends

    def seed_of(self, cell: tuple[Any, ...]) -> int:
        """The seed that the arms of a case were measured with; the file's where none was."""
        return next((row["seed"] for at, row in self.rows.items() if at[:3] == cell), self.seed)

    def add(self, row: dict[str, Any], seed: int) -> None:
        """Keeps a row at once: whatever is measured survives a stop."""
        self.rows[place(row)] = {**row, "seed": seed, "commit": self.commit}
        show(row)
        rows = [*self.rows.values()]
        content = {"seed": self.seed, "machine": platform.machine(), "rows": rows}
        part = self.out.with_suffix(".part")
        save(part, content)
        part.replace(self.out)


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    """What was measured."""
    return row["stream"], row["triggers"], tuple(row["budget"]), row["arm"]


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--streams", nargs="+", default=list(STREAMS), choices=list(STREAMS))
    parser.add_argument("--triggers", nargs="+", type=int, default=[1, 24, 100, 4, 10, 1000])
    parser.add_argument("--budgets", nargs="+", default=["6,1e-9", "1,1e-6"])
    parser.add_argument("--arms", nargs="+", default=[])
    parser.add_argument("--draws", type=int, default=8, help="of the noise, for each setting")
    parser.add_argument("--seed", type=int, help="of the streams; default: the file's, or a new")
    parser.add_argument("--again", nargs="+", default=[], help="arms that are measured anew")
    parser.add_argument("--minutes", type=float, default=np.inf, help="no cell begins after them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    """Measures what is asked for and not there yet, one number of releases after the other."""
    given = arguments()
    campaign = Campaign(given.out, given.seed, given.minutes)
    budgets = [tuple(float(part) for part in text.split(",")) for text in given.budgets]
    made: dict[tuple[str, int], Stream] = {}
    for triggers, budget, name in product(given.triggers, budgets, given.streams):
        if campaign.late:
            break
        seed = campaign.seed_of((name, triggers, budget))
        stream = made[name, seed] = made.get((name, seed)) or make(name, seed)
        for arm, settings in arms(stream).items():
            known = (name, triggers, budget, arm) in campaign.rows and arm not in given.again
            if known or (given.arms and arm not in given.arms):
                continue
            seeds = [seed + 1 + number for number in range(given.draws)]
            campaign.add(measure(stream, arm, settings, triggers, budget, seeds), seed)
    summary([*campaign.rows.values()])


if __name__ == "__main__":
    main()
