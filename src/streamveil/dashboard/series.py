"""What the page shows as tables: the last release, what changed, what was spent."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from streamveil.accounts.deployment import record
from streamveil.accounts.ledger import Ledger
from streamveil.errors import PlanError
from streamveil.results.answers import Answers
from streamveil.results.charts import tick

ROWS = 25  # of a table


def largest(answers: Answers) -> tuple[str, pa.Table, str]:
    """The largest groups of the last release that shows any: a heading, the groups, the number."""
    heading, table, _ = last_release(answers)
    return heading, table, answers.releases.answers[0]


def last_release(answers: Answers) -> tuple[str, pa.Table, tuple[str, ...]]:
    """The largest groups of the last release that shows any, by its first number.

    A heading, the groups, and notes.
    """
    name, releases, heading = answers.releases.answers[0], answers.releases, "Largest groups now"
    last = next((one for one in reversed(releases.moments) if releases.table(one).num_rows), None)
    if last not in (None, releases.moments[-1]):
        heading = f"Largest groups at {tick(releases, last)}: no release since then shows any"
    found = answers.top(name, ROWS, last)
    return heading, found.table.slice(0, ROWS), found.notes


def changes(answers: Answers) -> tuple[pa.Table, tuple[str, ...]] | None:
    """What changed most since the release before, beyond its interval first; None at the first."""
    name = answers.releases.answers[0]
    try:
        found = answers.difference(name)
    except PlanError:
        return None
    sd = np.maximum(found.table[name + "_sd"].to_numpy(), 1e-300)
    size = np.abs(found.table[name].to_numpy()) / sd
    order = np.argsort(-size, kind="stable")[:ROWS]
    return found.table.take(pa.array(order)), found.notes


def ledger_record(path: Path) -> dict[str, Any] | None:
    """The deployment record of a ledger, if there is one."""
    if not path.is_file():
        return None
    with Ledger.load(path) as ledger:
        found, delta = record(ledger), ledger.limit.quoted_delta
        for charge, loss in zip(found["charges"], ledger.so_far(), strict=True):
            epsilon = loss.epsilon(delta)
            charge["so_far"] = epsilon if isfinite(epsilon) else None
        return found
