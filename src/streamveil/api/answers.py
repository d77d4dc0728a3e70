"""Questions across the releases of one job, wherever they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streamveil.api import Query
from streamveil.api.script import JointQuery
from streamveil.batch import Release
from streamveil.compiler.group_by import compile_plan
from streamveil.errors import PlanError, fitting
from streamveil.plan import combined_plan
from streamveil.plan.look import in_units, look_share, with_look
from streamveil.release_metadata import read_facts
from streamveil.results.answers import Answers
from streamveil.results.releases import of_releases
from streamveil.runtime.joint import releases_of
from streamveil.runtime.published import opened

LOOKED = (
    "a look at the rows chose the noise of these releases, so that their query does not tell it.\n"
    "  to fix  give the state directory, or releases with the metadata files beside them; if they"
    " are of Spark, which takes no look, a query with look_share = 0; without a query, intervals"
    " are wide"
)


@fitting('answers("clicks.veil"), or answers(releases)')
def answers(
    source: Iterable[Release] | str | Path, *, query: Query | JointQuery | None = None
) -> Answers:
    """Questions across releases of one job: those in memory, a sink's folder, a state directory.

    Args:
        source: the releases, or the path of the folder.
        query: the query that released them. Releases usually carry what is needed, in the metadata
            of their schema or in a file beside them; give the query if both are missing, and to
            combine the states of several private answers.

    Raises:
        PlanError: the source is none of these, or lacks what combining releases needs.
        StoreError: the folder cannot be read, or holds no release yet.
        PlanError: `confidence` is not between 0 and 1.
        SourceError: there is no such folder, or no release in it.

    >>> import streamveil as sv
    >>> query = (sv.memory({"user": [1, 2, 3] * 40, "page": ["a", "b"] * 60}).protect("user")
    ...          .group_by("page", keys=sv.public(["a", "b"])).agg(n=sv.count()).bound(max_rows=40)
    ...          .release(budget=sv.Budget(epsilon=9, delta=1e-9), name="pages"))
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     found = sv.answers(list(query.run(state=f"{folder}/pages.veil")))
    >>> found.to_arrow().num_rows
    2
    """
    operator, looked = None, False
    if not isinstance(query, Query | JointQuery | None):
        raise PlanError(f"query must be the query that released them, not {type(query).__name__}")
    if isinstance(query, JointQuery):
        if not isinstance(source, str | Path):
            return Answers(of_releases(source))
        return Answers(releases_of(query.plan, source))
    if query is not None:
        asked = with_look(query.plan)
        operator, looked = compile_plan(combined_plan(in_units(asked))), bool(look_share(asked))
    if not isinstance(source, str | Path | Iterable):
        raise PlanError(
            "answers takes releases, the folder of a sink or a state directory, not "
            f"{type(source).__name__}"
        )
    make: Any = opened if isinstance(source, str | Path) else of_releases
    found = make(source, operator)
    if looked:
        found.operator = None  # a look chose other settings than these
        if read_facts(found.table(found.moments[0]).schema) is None:
            raise PlanError(LOOKED)
    return Answers(found)
