"""Sums whose bounds nobody gave: does the choice by forecast error beat bounds that hold all seen?

One-shot SUMs by discovered group over values of nine laws, drawn anew: each query runs twice,
with the bounds that `least_error` chooses and with the outermost ones that a look can see.
l1 is what is expected of each answer, over the sum of all groups, from the bias of its bounds
and the noise of its intervals, so that luck of single draws does not count; a group that is not
shown counts as 0. Rows over the bound of a unit, which both cut, are left out. Looks differ.
With `--function VARIANCE`, the errors of single draws are added up: the answer against the truth.
Expected: less error with large groups and long tails (wider bounds) and with small groups
(narrower ones), the same where values end.

    python benchmarks/value_bounds.py [--function SUM] [--seed N] [--minutes 10] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import erf

import streamveil as sv
from saved import save
from streamveil.compiler import value_sizes

RESULTS = Path(__file__).parent / "results" / "value_bounds.json"
ROWS, GROUPS, EPSILONS = (20_000, 200_000), (10, 300), (1, 6)
LAWS = ("log-normal 1", "log-normal 2", "exponential", "Pareto 1.5", "Pareto 2.5", "uniform",
        "prices", "mostly zero", "normal")  # fmt: skip
Z = 1.96  # deviations from the middle of an interval to its end
CHOSEN = value_sizes.least_error


def drawn(rng: np.random.Generator, law: str, n: int) -> np.ndarray:
    """Values of a law."""
    u = rng.uniform(0, 1, n)
    found = {
        "log-normal 1": np.exp(rng.normal(3, 1, n)), "log-normal 2": np.exp(rng.normal(0, 2, n)),
        "exponential": rng.exponential(50, n), "Pareto 1.5": u ** (-1 / 1.5),
        "Pareto 2.5": 10 * (u ** (-1 / 2.5) - 1), "uniform": 7 * u,
        "prices": rng.choice([1.0, 5, 10, 20, 100], n, p=[0.5, 0.2, 0.2, 0.09, 0.01]),
        "mostly zero": np.where(u < 0.7, 0, np.exp(rng.normal(2, 1.5, n))),
        "normal": rng.normal(2, 5, n),
    }  # fmt: skip
    return found[law]


def table_of(rng: np.random.Generator, law: str, rows: int, groups: int) -> pd.DataFrame:
    """Rows of users, 1.3 or 5 each, in even groups or in a long tail of them."""
    weights = np.arange(1, groups + 1.0) ** -rng.choice([0.0, 1.0])
    return pd.DataFrame({
        "user": rng.integers(0, int(rows / rng.choice([1.3, 5.0])), rows),
        "page": rng.choice(groups, rows, p=weights / weights.sum()),
        "x": drawn(rng, law, rows),
    })  # fmt: skip


def off(rows: pd.DataFrame, epsilon: int, function: str, choose: Any) -> tuple[float, Any]:
    """The l1 of one answer over the sum of all groups, and its bounds, if it has any.

    Of a sum it is the expected one.
    """
    made: list[Any] = []

    def noted(*given: Any) -> Any:
        made.append(choose(*given))
        return made[-1]

    value_sizes.least_error = noted
    answer = sv.sql(
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {epsilon}, delta = 1e-8,"
        f" privacy_unit_column = user) page, {function}(x) AS s FROM t GROUP BY page", t=rows,
    ).to_pandas().set_index("page")  # fmt: skip
    groups = rows.groupby("page").x
    truth = groups.var() if function == "VARIANCE" else groups.sum()
    if not made:
        return 1.0, None
    if function == "VARIANCE":
        error = (answer.s.reindex(truth.index) - truth).abs()
        return float(error.fillna(truth).sum() / truth.sum()), made[-1]
    inside = rows.assign(x=rows.x.clip(made[-1].low, made[-1].high))
    bias = (truth - inside.groupby("page").x.sum()).abs()
    sd = ((answer.s_high - answer.s_low) / (2 * Z)).reindex(truth.index)
    error = sd * np.sqrt(2 / np.pi) * np.exp(-(bias**2) / (2 * sd**2)) + bias * erf(
        bias / (sd * np.sqrt(2))
    )
    return float(error.fillna(truth.abs()).sum() / truth.abs().sum()), made[-1]


def main() -> None:
    """Measures in random order, prints and keeps."""
    about, text = (__doc__ or "").split("\n\n", 1)
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, epilog=text, formatter_class=how)
    parser.add_argument("--function", choices=("SUM", "VARIANCE"), default="SUM")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--minutes", type=float, default=np.inf, help="no case begins after them")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    rng, ends = np.random.default_rng(asked.seed), time.monotonic() + 60 * asked.minutes
    cases, measured = [*product(LAWS, ROWS, GROUPS, EPSILONS)], []
    for place in rng.permutation(len(cases)):
        law, rows, groups, epsilon = cases[place]
        if time.monotonic() > ends:
            break
        table = table_of(rng, law, rows, groups)
        (before, outer), (after, found) = (
            off(table, epsilon, asked.function, way) for way in (value_sizes.as_it_is, CHOSEN)
        )
        if outer is None or found is None:  # of one look: too few units to bound the values
            continue
        inside = table.x.clip(found.low, found.high)
        if asked.function == "VARIANCE":
            said, beyond = found.variance, 1 - inside.var() / table.x.var()
        else:
            said, beyond = found.beyond, (table.x - inside).abs().sum() / table.x.abs().sum()
        measured.append({
            "law": law, "rows": rows, "groups": groups, "epsilon": epsilon, "outermost": before,
            "chosen": after, "outermost bound": outer.high, "chosen bound": found.high,
            "beyond, said": said, "beyond, true": float(beyond),
        })  # fmt: skip
        sys.stdout.write(json.dumps(measured[-1]) + "\n")
        sys.stdout.flush()
        save(asked.out, {"seed": asked.seed, "rows": measured})
    ratios = np.array([row["chosen"] / row["outermost"] for row in measured])
    sys.stdout.write(
        f"chosen / outermost: geometric mean {np.exp(np.log(ratios).mean()):.3f} of {len(ratios)},"
        f" better by 5 % in {(ratios < 0.95).sum()}, worse in {(ratios > 1.05).sum()},"
        f" from {ratios.min():.2f} to {ratios.max():.2f}\n"
    )


if __name__ == "__main__":
    main()
