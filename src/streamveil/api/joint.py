"""A statement of several private answers: explain it, or run it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamveil.api import spark_of
from streamveil.batch import Release
from streamveil.errors import fitting
from streamveil.plan.joint import JointPlan

if TYPE_CHECKING:
    from streamveil.advise import Explanation
    from streamveil.results.answers import Answers


@dataclass(frozen=True)
class JointQuery:
    """A checked statement over several private answers, each with a budget of its own.

    >>> import streamveil as sv
    >>> rows = {"user": list(range(900)), "page": ["a", "b", "c"] * 300, "bought": [1, 0, 0] * 300}
    >>> private = "WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 4, delta = 1e-9, " + (
    ...     "privacy_unit_column = user, public_groups = ['a', 'b', 'c'], max_rows_contributed = 1)"
    ... )
    >>> found = sv.sql(f'''
    ...     WITH seen AS (SELECT {private} page, COUNT(*) AS n FROM t GROUP BY page),
    ...       bought AS (SELECT {private} page, COUNT(*) AS n FROM t WHERE bought = 1 GROUP BY page)
    ...     SELECT page, bought.n / seen.n AS share FROM seen JOIN bought USING (page)''', t=rows)
    >>> found.to_arrow()["page"].to_pylist()
    ['a', 'b', 'c']
    """

    plan: JointPlan

    def __repr__(self) -> str:
        return f"JointQuery('{self.plan.name}': {', '.join(one.name for one in self.plan.parts)})"

    @fitting("explain()")
    def explain(self, *, forecast: bool = False) -> Explanation:
        """What all answers together promise and what each one does. Reads no data.

        Args:
            forecast: adds the errors that are expected, of each answer.

        Raises:
            PlanError: the budget of one cannot pay for what is asked.
        """
        from streamveil.advise import explain_joint
        from streamveil.runtime.joint import guarantee_of

        return explain_joint(self.plan, guarantee_of(self.plan.parts), forecast=forecast)

    @fitting('run(state="both.veil")')
    def run(self, state: str, **options: Any) -> Iterator[Release]:
        """Runs or resumes all answers, with a state of each inside the directory `state`.

        Args:
            state: the directory; made at the first run, and taken up again at every later one.
            **options: those of `Query.run`; on Spark (engine=streamveil.spark(...)) no ledger.

        Raises:
            PlanError: an option is unknown, or the answers do not fit together.
            BudgetError: the ledger refused, before anything was drawn.
            StoreError: a state is of another query, damaged, or in use by another process.
        """
        from streamveil.runtime.joint import run_joint

        return run_joint(self.plan, state=state, spark=spark_of(options), **options)

    @fitting('answer(state="both.veil"), or answer() for jobs in memory')
    def answer(self, state: str | None = None, **options: Any) -> Answers:
        """Runs everything to the end of its data and gives all that was put together.

        Args:
            state: a directory: with it the same answers come again at no further cost.
            **options: those of `run`.

        Raises:
            StreamveilError: as `run`.
        """
        from streamveil.disk import scratch_folder
        from streamveil.results.answers import Answers
        from streamveil.results.releases import of_releases

        if state is not None:
            return Answers(of_releases(self.run(state, **options)))
        with scratch_folder() as folder:
            return Answers(of_releases(self.run(str(Path(folder) / "state"), **options)))
