"""One question to a changing table whose job is at rest: answered from the last closed step.

The answer is durable before it is shown, so asking again after a crash gives the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

import pyarrow as pa

from streamveil.compiler import operator_of
from streamveil.connectors import open_sinks
from streamveil.core.noise import Noise
from streamveil.errors import PlanError, StoreError
from streamveil.expressions import conjunction
from streamveil.expressions.dialect import canonical
from streamveil.plan import Plan, TableSource
from streamveil.plan.options import NON_NEGATIVE
from streamveil.runtime.changed_query import kept_plan
from streamveil.runtime.formats import calibration
from streamveil.runtime.job import Job, Work
from streamveil.runtime.secret import Randomness
from streamveil.runtime.store import SPARK_HEADER, require_header
from streamveil.sql.script import read_question
from streamveil.sql.table import points_where


@dataclass(frozen=True)
class Answer:
    """The answer to a question. RELEASED and EASY cost nothing, HARD is paid for.

    EXHAUSTED: no budget is left for a comparison; `n` is a guess without an interval.
    """

    question: str
    kind: str
    n: float
    n_low: float | None  # with the confidence of the query, over all questions together
    n_high: float | None
    trigger: int  # the closed step it is about
    corrections_left: int | None  # about; None: nothing is set aside for questions

    def __str__(self) -> str:
        known = self.n_low is not None and self.n_high is not None
        reach = f"{self.n_low:,.0f} .. {self.n_high:,.0f}" if known else "no interval"
        about = f"{self.kind}; after release {self.trigger:,}"
        if self.corrections_left is not None:
            about += f"; about {self.corrections_left:,} corrections left"
        return f"{self.question} = {self.n:,.0f} ({reach})  {about}"

    def to_arrow(self) -> pa.Table:
        """As a table of one row."""
        return pa.table({name: [value] for name, value in vars(self).items()})


def ask(
    plan: Plan,
    question: str,
    *,
    state: str | Path,
    secret: bytes | str | None = None,
    noise: Noise | None = None,
    insecure: bool = False,
) -> Answer:
    """Answers `COUNT(*) WHERE condition` about the table of a plan, from its state directory."""
    source = plan.source
    if not isinstance(source, TableSource):
        raise PlanError("only a query over a changing table (changelog = ...) takes questions")
    condition = condition_of(question)
    points = points_where(source, condition)
    if (Path(state) / SPARK_HEADER).exists():
        raise StoreError(
            "this table's job runs on Spark, where no questions are answered.\n"
            "  to fix  run the query on the embedded engine, in a state of its own"
        )
    require_header(Path(state))
    plan = kept_plan(plan, Path(state)).plan
    operator = operator_of(plan)
    work = Work(
        name=plan.name, fingerprint=plan.fingerprint, calibration=calibration(operator),
        operator=operator, post=plan.post,
        feed=lambda _: iter(()), limit=plan.budget,
        sink=open_sinks([(one.kind, one.options) for one in plan.sinks]),
    )  # fmt: skip
    with Job(state, work, Randomness(secret, noise, insecure)) as job:
        asked = job.ask(points)
    least = 0.0 if NON_NEGATIVE.of(plan.options) else -inf
    known = isfinite(asked.reach)
    return Answer(
        question="COUNT(*)" + (f" WHERE {condition}" if condition else ""), kind=asked.kind,
        n=max(least, asked.value), n_low=max(least, asked.value - asked.reach) if known else None,
        n_high=max(least, asked.value + asked.reach) if known else None,
        trigger=asked.step, corrections_left=asked.left,
    )  # fmt: skip


def condition_of(question: str) -> str | None:
    """The condition of a question in canonical form; None: all records."""
    tree = read_question(question)
    return None if tree is None else conjunction([canonical(tree)])
