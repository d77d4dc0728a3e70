"""A job at rest: its state as the last commit left it, opened to be looked at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from streamveil.dataflow.protocol import Operator
from streamveil.errors import StoreError
from streamveil.plan.plan import Plan
from streamveil.runtime.job import Job
from streamveil.runtime.look import remembered
from streamveil.runtime.run import engine_for, work_of
from streamveil.runtime.store import read_header


def at_rest(plan: Plan, state: str | Path) -> tuple[Operator, Any]:
    """The operator of a job and the state that it would go on with. Nothing is read or released."""
    home = Path(state)
    if not home.is_dir() or read_header(home) is None:
        raise StoreError(
            f"'{home.name}' is not a state directory of the embedded engine.\n"
            "  to fix  run the query first, or name its state"
        )
    plan = remembered(plan, home)
    work = replace(work_of(plan, engine_for(None, home)), feed=lambda _: iter(()))
    with Job(home, work) as job:
        return work.operator, job.held
