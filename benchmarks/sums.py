"""Sums by group as anybody asks for them: how far off are they, whatever bounds the query gives?

A SUM by discovered group, once, with the default settings: over values whose bound is their largest
(uniform), the 99th percentile of a law with a long tail, and twice the largest value of that law;
with bounds in the query, and without (a look chooses them). l1 is the sum of errors over all groups
by the sum of all groups; a group that is not shown counts as 0. Beside it the same query with
`selection = 'gaussian'`, which never has sums show groups.
Expected: the default is at most 1.1 times as far off; loose bounds cost noise, not all groups.

    python benchmarks/sums.py [--seed N] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import streamveil as sv
from saved import save

RESULTS = Path(__file__).parent / "results" / "sums.json"
ROWS, GROUPS, ROWS_OF_A_UNIT, EPSILONS = (20_000, 200_000), (10, 300), (1.3, 5.0), (1, 6)
LAWS = ("uniform", "percentile", "twice the largest")


def drawn(
    rows: int, groups: int, law: str, each: float, rng: np.random.Generator
) -> tuple[pd.DataFrame, float]:
    """Rows of users, groups and values, and the bound that the query declares."""
    weights = np.arange(1, groups + 1.0) ** -rng.choice([0.0, 1.0])
    made = pd.DataFrame(
        {
            "user": rng.integers(0, int(rows / each), rows),
            "page": rng.choice(groups, rows, p=weights / weights.sum()),
            "x": rng.uniform(0, 1, rows) if law == "uniform" else np.exp(rng.normal(3, 1.2, rows)),
        }
    )
    ends = {"uniform": 1.0, "percentile": made.x.quantile(0.99), LAWS[2]: 2 * made.x.max()}
    return made, float(ends[law])


def off(rows: pd.DataFrame, bound: float | None, epsilon: int, more: str) -> float:
    """The l1 error of one answer, over the sum of all groups."""
    ends = "" if bound is None else f", contribution_bounds_per_row => (0, {bound!r})"
    found = sv.sql(
        f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {epsilon}, delta = 1e-8,"
        f" privacy_unit_column = user{more}) page, SUM(x{ends}) AS s FROM t GROUP BY page",
        t=rows,
    ).to_pandas()
    truth = rows.groupby("page").x.sum()
    said = found.set_index("page").s.reindex(truth.index).fillna(0.0)
    return float((said - truth).abs().sum() / truth.sum())


def main() -> None:
    """Measures, prints and keeps."""
    about, text = (__doc__ or "").split("\n\n", 1)
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, epilog=text, formatter_class=how)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    rng, measured = np.random.default_rng(asked.seed), []
    for rows, groups, law, each in product(ROWS, GROUPS, LAWS, ROWS_OF_A_UNIT):
        table, bound = drawn(rows, groups, law, each, rng)
        for epsilon, given in product(EPSILONS, (bound, None)):
            row: dict[str, Any] = {
                "rows": rows, "groups": groups, "law": law, "each": each, "epsilon": epsilon,
                "bounds": given is not None, "default": off(table, given, epsilon, ""),
                "gaussian": off(table, given, epsilon, ", selection = 'gaussian'"),
            }  # fmt: skip
            measured.append(row)
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
    ratios = np.array([row["default"] / row["gaussian"] for row in measured])
    sys.stdout.write(
        f"default / gaussian: median {np.median(ratios):.3g}, most {ratios.max():.3g}\n"
    )
    save(asked.out, {"seed": asked.seed, "rows": measured})


if __name__ == "__main__":
    main()
