"""The Python library. Here: a finished query, to explain or to run, whoever wrote it."""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamveil.batch import Release
from streamveil.errors import (
    NOTHING_LEFT,
    NoiseWarning,
    OperatorWarning,
    PlanError,
    fitting,
    got,
    nearest,
    require_flag,
    require_path,
    require_text,
    warn,
    whole,
)
from streamveil.plan import Plan
from streamveil.sql.parts import quoted

if TYPE_CHECKING:
    from streamveil.display import Explanation
    from streamveil.results.answers import Answers
    from streamveil.runtime.ask import Answer
    from streamveil.runtime.progress import Progress


RUN_OPTIONS: dict[str, tuple[Any, str]] = {  # of what kind each is; of some is checked later
    "secret": (str | bytes, "text or 32 bytes"),
    "noise": (object, ""),
    "engine": (object, ""),
    "ledger": (str | PathLike, "the path of a ledger, or its address"),
    "rejects": (str | PathLike, "the path of a directory"),
    "insecure": (bool, "True or False"),
    "progress": (Callable, "a function"),
    "pace": (object, ""),
    "keep_releases": (Integral, "a whole number"),
}
ASK_OPTIONS = {"secret", "noise", "insecure"}


@dataclass(frozen=True)
class Query:
    """A checked plan that can be explained and run.

    Raises:
        PlanError: an argument is missing or unknown; the message shows a call that works.

    >>> import streamveil as sv
    >>> rows = {"user": [1, 2, 3] * 40, "page": ["a", "b"] * 60}
    >>> query = (sv.memory(rows).protect("user").group_by("page", keys=sv.public(["a", "b"]))
    ...          .agg(n=sv.count()).bound(max_rows=40)
    ...          .release(budget=sv.Budget(epsilon=9, delta=1e-9)))
    >>> query.having("n > 0").order_by("n DESC").limit(1).answer().to_arrow().num_rows
    1
    """

    plan: Plan

    def __repr__(self) -> str:
        asked = ", ".join(aggregate.name for aggregate in self.plan.aggregates)
        keys = "".join(f", {key.name}" for key in self.plan.keys)
        return f"Query('{self.plan.name}': {asked}{keys} of {self.plan.source.name})"

    @fitting('having("n > 100")')
    def having(self, condition: str) -> Query:
        """Keeps the rows of every release for which a condition over its columns holds, for free.

        Args:
            condition: SQL over released columns: "n > 100", "n_low > 0".

        Raises:
            PlanError: it names something that is not released.
        """
        require_text(condition=condition)
        return self._then(f"WHERE {condition}")

    @fitting('order_by("n DESC", "url")')
    def order_by(self, *keys: str) -> Query:
        """Sorts the rows of every release, for free.

        Args:
            *keys: released columns, with DESC for the largest first.

        Raises:
            PlanError: one is not released.
        """
        for key in keys:
            require_text(key=key)
        return self._then(f"ORDER BY {', '.join(keys)}")

    @fitting("limit(20)")
    def limit(self, rows: int, offset: int = 0) -> Query:
        """Keeps the first rows of every release, for free.

        Args:
            rows: how many.
            offset: how many to skip first.

        Raises:
            PlanError: one is not a whole number of at least 0.
        """
        return self._then(f"LIMIT {whole('rows', rows, 0)} OFFSET {whole('offset', offset, 0)}")

    @fitting('select("url", share="young / n")')
    def select(self, *columns: str, **computed: str) -> Query:
        """Selects columns of every release, and computes new ones with their intervals, for free.

        Args:
            *columns: released columns.
            **computed: new ones, in SQL: share="young / n".

        Raises:
            PlanError: an expression names something that is not released.
        """
        require_text(**computed)
        items = [*(quoted(column) for column in columns)]
        items += [f"{text} AS {quoted(name)}" for name, text in computed.items()]
        return self._then("", ", ".join(items))

    @fitting('read("clicks.veil")')
    def read(
        self, state: str, window: int | str | None = None, trigger: int | None = None
    ) -> Release:
        """Reads a release that was made before, and applies this query's post-processing, for free.

        Args:
            state: the directory of a job with the same private question.
            window: its time, as in "2026-01-01", or its number; the last if left out.
            trigger: the release within the window, from 1; the last if left out.

        Raises:
            StoreError: the directory is no state, or nothing was released yet.
            PlanError: there is no such release.
        """
        from streamveil.results.post import post_processed
        from streamveil.runtime.published import read  # loaded when it is needed

        release = read(state, window=window, trigger=trigger)
        return post_processed(release, self.plan.post)

    def _then(self, clauses: str, items: str = "*") -> Query:
        from streamveil.sql.post import read_step

        steps = read_step(items, clauses, self.plan)
        return Query(replace(self.plan, post=(*self.plan.post, *steps)))

    @fitting("explain(), or explain(forecast=True)")
    def explain(self, *, forecast: bool = False) -> Explanation:
        """Explains the promise in words, the plan, the noise and every default. Reads no row.

        Args:
            forecast: adds the error that is expected for streams of the expected shape.

        Raises:
            PlanError: the budget cannot pay for the query, or a column is missing in a table, a
                file or a stream (servers are not asked).
        """
        from streamveil.advise import explain
        from streamveil.runtime.run import check_at_hand

        require_flag(forecast=forecast)
        check_at_hand(self.plan)
        return explain(self.plan, forecast=forecast)

    @fitting('run(state="clicks.veil")')
    def run(self, state: str, **options: Any) -> Iterator[Release]:
        """Runs or resumes the query with its durable state in the directory `state`.

        Args:
            state: the directory; the first run makes it, later runs resume from it.
            **options: secret, noise, engine, ledger, rejects, insecure, progress, pace,
                keep_releases: see `streamveil.runtime.run.prepared`. With
                engine=streamveil.spark(session) it runs on Spark; options are then secret, noise,
                insecure, ledger, progress and once.

        Raises:
            PlanError: an option is unknown or does not fit.
            BudgetError: the ledger refused, before anything was drawn.
            SourceError: rows cannot be read.
            StoreError: the state is of another query, damaged, or in use by another process.
        """
        from streamveil.runtime.run import run  # loaded when it is needed

        require_path("state", state)
        if (spark := spark_of(options)) is not None:
            job: Any = spark.start(self.plan, state=state, **options)
        else:
            if "IPython" in sys.modules:
                from streamveil.api.notebook import bar_for

                options.setdefault("progress", bar_for(self.plan.clock))
            job = run(self.plan, state=state, **options)
        if self.plan.clock.is_over(job.closed_steps):
            warn(
                f"{NOTHING_LEFT}.\n"
                f"  to fix  for another answer give another state than '{state}', which is charged"
                " anew",
                NoiseWarning,
            )
        return iter(job)

    @fitting('answer(state="clicks.veil"), or answer() for a job in memory')
    def answer(self, state: str | None = None, **options: Any) -> Answers:
        """Runs the query to the end of its data and returns everything that it released.

        Args:
            state: a directory: with it a finished query gives the same answers again, at no
                further cost. Without it nothing is kept: every call draws new noise and spends
                the budget once more, from the `ledger` if one is given.
            **options: those of `run`.

        Raises:
            StreamveilError: as `run`.
            PlanError: an argument is missing or unknown; the message shows a call that works.

        >>> import streamveil as sv
        >>> rows = {"user": [1, 2, 3] * 40, "page": ["a", "b"] * 60}
        >>> query = (sv.memory(rows).protect("user").group_by("page", keys=sv.public(["a", "b"]))
        ...          .agg(n=sv.count()).bound(max_rows=40)
        ...          .release(budget=sv.Budget(epsilon=9, delta=1e-9)))
        >>> query.answer().to_arrow()["page"].to_pylist()
        ['a', 'b']
        """
        from streamveil.disk import scratch_folder
        from streamveil.results.answers import Answers
        from streamveil.results.post import after_post
        from streamveil.results.releases import of_releases
        from streamveil.runtime.published import of_state

        heard: collections.deque[Progress] = collections.deque(maxlen=1)
        if "engine" not in options and "IPython" not in sys.modules:  # notebooks are shared
            options.setdefault("progress", heard.append)
        if state is not None:
            collections.deque(self.run(state, **options), maxlen=0)
            found = Answers(after_post(of_state(state), self.plan.post))
        else:
            with scratch_folder() as folder:
                found = Answers(of_releases(self.run(str(Path(folder) / "state"), **options)))
        for last in heard:
            warn_of_unusable(last)
        return found

    @fitting('ask("COUNT(*) WHERE age < 30", state="people.veil")')
    def ask(self, question: str, state: str, **options: Any) -> Answer:
        """Asks a changing table about the last closed step of a job that is not running.

        Args:
            question: in SQL: `COUNT(*) WHERE condition`, or `COUNT(*)` for all records.
            state: the directory of the job.
            **options: secret, noise, insecure.

        Raises:
            PlanError: the query is not of a changing table, the question names unknown columns, or
                an option is unknown or of another kind.
            StoreError: the directory is no state of this query.
        """
        from streamveil.runtime.ask import ask  # loaded when it is needed

        require_text(question=question)
        require_path("state", state)
        for name in options.keys() - ASK_OPTIONS:
            raise PlanError(f"ask() has no option '{name}'{nearest(name, ASK_OPTIONS)}")
        spark_of(options)
        return ask(self.plan, question, state=state, **options)


def warn_of_unusable(last: Progress) -> None:
    """Tells the operator how many rows could not be used, where there are any."""
    said = last.unusable_summary("rejects='DIR'")
    if said:
        warn(said, OperatorWarning)


def spark_of(options: dict[str, Any]) -> Any:
    """What `streamveil.spark(...)` made, taken out of the options of a run; None: there is none.

    Raises:
        PlanError: without it, an option is unknown or of another kind, or the engine is none.
    """
    engine = options.get("engine")
    if hasattr(engine, "start"):
        return options.pop("engine")
    for name, value in options.items():
        if name not in RUN_OPTIONS:
            raise PlanError(f"run() has no option '{name}'{nearest(name, RUN_OPTIONS)}")
        kind, words = RUN_OPTIONS[name]
        if not (value is None or isinstance(value, kind)):
            raise PlanError(f"{name} must be {words}, not {got(value)}")
    if options.get("rejects") is not None:
        require_path("rejects", options["rejects"])
    if engine is not None and not callable(engine):
        raise PlanError(
            f"engine is not {type(engine).__name__}: leave it out, or give "
            "engine=streamveil.spark(session)"
        )
    return None
