"""A finished query: explain it, or run it. Every spelling gives one of these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamveil.queries.plan import Plan

if TYPE_CHECKING:
    from streamveil.batch import Release
    from streamveil.queries.explain import Explanation
    from streamveil.runtime.ask import Answer


@dataclass(frozen=True)
class Query:
    """A checked plan that can be explained and run."""

    plan: Plan

    def explain(self, *, forecast: bool = False) -> Explanation:
        """The promise in words, the plan, the noise and every default. Reads no data."""
        from streamveil.queries.explain import explain

        return explain(self.plan, forecast=forecast)

    def run(self, state: str, **options: Any) -> Iterator[Release]:
        """Runs or resumes the query with its durable state in the directory `state`.

        Options are those of `streamveil.runtime.run.run`: secret, noise, engine, ledger, rejects,
        insecure, progress, pace, keep_releases. With engine=streamveil.spark(session) it runs on
        Spark; options are then secret, noise, insecure, ledger, progress and once.
        """
        from streamveil.runtime.on_spark import SparkEngine
        from streamveil.runtime.run import run  # the runtime sits above the queries

        if isinstance(options.get("engine"), SparkEngine):
            spark = options.pop("engine")
            return iter(spark.start(self.plan, state=state, **options))
        releases: Iterator[Release] = run(self.plan, state=state, **options)
        return releases

    def ask(self, question: str, state: str, **options: Any) -> Answer:
        """A question to a changing table at rest: `COUNT(*) WHERE condition`, or all without WHERE.

        About the last closed step of the job in `state`. Options: secret, noise, insecure.
        """
        from streamveil.runtime.ask import ask  # the runtime sits above the queries

        return ask(self.plan, question, state=state, **options)
