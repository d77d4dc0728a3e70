"""A SQL script from Python: its only query, or a statement of several private answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from streamveil.api import Query, spark_of
from streamveil.api.builder import Stream, memory
from streamveil.batch import Release
from streamveil.core.accounting import exact
from streamveil.core.accounting.guarantee import Guarantee, rounded_up
from streamveil.display import Explanation, Section
from streamveil.errors import PlanError, fitting, require_flag, require_path
from streamveil.plan import Plan
from streamveil.plan.joint import JointPlan
from streamveil.sql.post import read_over
from streamveil.sql.sql import parse_script

if TYPE_CHECKING:
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
        """Explains what all answers together promise, and each one. Reads no row.

        Args:
            forecast: adds the expected errors of each answer.

        Raises:
            PlanError: as for `Query.explain`.
        """
        from streamveil.runtime.joint import guarantee_of  # loaded where it is asked for

        require_flag(forecast=forecast)
        return explain_joint(self.plan, guarantee_of(self.plan.parts), forecast=forecast)

    @fitting('run(state="both.veil")')
    def run(self, state: str, **options: Any) -> Iterator[Release]:
        """Runs or resumes all answers, each with a state inside the directory `state`.

        Args:
            state: the directory; the first run makes it, later runs resume from it.
            **options: those of `Query.run`; on Spark (engine=streamveil.spark(...)) no ledger.

        Raises:
            PlanError: an option is unknown, or the answers do not fit together.
            BudgetError: the ledger refused, before anything was drawn.
            StoreError: a state is of another query, damaged, or in use by another process.
        """
        from streamveil.runtime.job import Turns
        from streamveil.runtime.joint import run_joint

        require_path("state", state)
        return Turns(run_joint(self.plan, state=state, spark=spark_of(options), **options))

    @fitting('answer(state="both.veil"), or answer() for jobs in memory')
    def answer(self, state: str | None = None, **options: Any) -> Answers:
        """Runs everything to the end of its data and returns the combined releases.

        Args:
            state: a directory: with it the same call gives the same answers, at no further cost.
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


@overload
def sql(text: str, tables: Mapping[str, Any] | None = None) -> Query: ...


@overload
def sql(
    text: str, tables: None = None, *, state: str | None = None, ledger: str | None = None,
    **frames: Any,
) -> Answers: ...  # fmt: skip


def sql(
    text: str,
    tables: Mapping[str, Any] | None = None,
    *,
    state: str | None = None,
    ledger: str | None = None,
    **frames: Any,
) -> Query | JointQuery | Answers:
    """Makes a query of a SQL script with one query; with frames by name, runs it at once.

    Args:
        text: the script; docs/sql.md lists what it may contain.
        tables: streams or tables in memory, by their names in the query; returns a `Query`. Or
            queries: the text is then a SELECT over their releases, at no cost.
        state: a directory; with it the same call gives the same answers again, at no further cost.
            Without it every call draws new noise and spends the budget once more.
        ledger: a ledger that is charged.
        **frames: tables by their names in the query, which then runs and returns `Answers`.

    Raises:
        PlanError: the script cannot or must not run; the message says why, and the way out.
        BudgetError: the ledger refused, before anything was drawn.
        SourceError: a frame cannot be read as a table.

    >>> import streamveil as sv
    >>> found = sv.sql('''SELECT WITH DIFFERENTIAL_PRIVACY
    ...                   OPTIONS (epsilon = 9, delta = 1e-9, privacy_unit_column = user,
    ...                            max_rows_contributed = 40, public_groups = ['a', 'b'])
    ...                   page, COUNT(*) AS n FROM clicks GROUP BY page''',
    ...                clicks={"user": [1, 2, 3] * 40, "page": ["a", "b"] * 60})
    >>> found.to_arrow()["page"].to_pylist()
    ['a', 'b']
    """
    if tables is not None and (frames or not isinstance(tables, Mapping)):
        raise PlanError(
            "tables maps the names in the query to streams or tables.\n"
            "  to fix  sql(text, {'clicks': table}) for a query, or sql(text, clicks=table) for its"
            " answers"
        )
    asked = {name: t for name, t in (tables or frames).items() if isinstance(t, Query)}
    bare = {
        id(t): t if isinstance(t, Stream) else memory(t)
        for t in (tables or frames).values() if not asked
    }  # fmt: skip
    if any(stream != Stream(stream.source) for stream in bare.values()):
        raise PlanError(
            "the text says who is protected and which rows count: it takes bare streams.\n"
            "  to fix  files(...) or memory(...) as they are, with WHERE and the rest in the text"
        )
    known = {name: replace(bare[id(t)].source, name=name)
             for name, t in (tables or frames).items() if not asked}  # fmt: skip
    if asked:
        query = over_answers(text, asked, len(tables or frames))
    else:
        query = query_of(parse_script(text, known).named(None).plan)
    if frames:
        return query.answer(state, **({} if ledger is None else {"ledger": ledger}))
    if state is not None or ledger is not None:
        raise PlanError(
            "sql without frames gives a query, which has no state or ledger yet.\n"
            "  to fix  sql(text).answer(state='clicks.veil')"
        )
    return query


def query_of(plan: Plan | JointPlan) -> Query | JointQuery:
    """A plan, to be explained or run."""
    return Query(plan) if isinstance(plan, Plan) else JointQuery(plan)


def over_answers(text: str, asked: Mapping[str, Query], number: int) -> Query | JointQuery:
    """A query, or several, whose releases a SELECT without a privacy clause goes over."""
    if number > len(asked):
        raise PlanError(
            "a SELECT over private answers reads nothing but these.\n"
            "  to fix  join a table with the rows that are asked for, in the private SELECT"
        )
    plans = {name: query.plan for name, query in asked.items()}
    steps = read_over(text, plans)
    if len(plans) > 1:
        named = tuple(replace(plan, name=name, sinks=()) for name, plan in plans.items())
        return query_of(JointPlan(name="_".join(plans), parts=named, post=steps))
    [plan] = plans.values()
    return Query(replace(plan, post=(*plan.post, *steps)))


def explain_joint(joint: JointPlan, together: Guarantee, *, forecast: bool = False) -> Explanation:
    """Describes every answer, and before them what all of them come to."""
    from streamveil.advise import explain  # loaded where it is asked for
    from streamveil.runtime.run import check_at_hand

    for part in joint.parts:
        check_at_hand(part)
    each = [explain(part, forecast=forecast) for part in joint.parts]
    delta = sum(exact("delta", part.budget.quoted_delta) for part in joint.parts)
    costs = [(part.name, made.facts["epsilon"], made.facts["delta"])
             for part, made in zip(joint.parts, each, strict=True)]  # fmt: skip
    total = together.epsilon(delta)
    rows = [(name, f"epsilon = {rounded_up(epsilon)}, delta = {rounded_up(lost)}")
            for name, epsilon, lost in (*costs, ("all together", total, float(delta)))]  # fmt: skip
    sections = [Section("PRIVATE ANSWERS (each is charged for itself)", tuple(rows))]
    for part, made in zip(joint.parts, each, strict=True):
        sections += [replace(one, title=f"{part.name}: {one.title}") for one in made.sections]
    words = tuple((post.words,) for post in joint.post)
    free = "POST-PROCESSING (of the releases of all answers: it costs nothing)"
    sections += [Section(free, words)] if words else []
    facts = {
        "epsilon": total, "delta": float(delta), "guarantee": together.to_dict(),
        "parts": {part.name: made.facts for part, made in zip(joint.parts, each, strict=True)},
    }  # fmt: skip
    return Explanation(together.sentence(delta), tuple(sections), facts)
