"""Questions across the releases of one job, wherever they are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from streamveil.api import Query
from streamveil.api.script import JointQuery
from streamveil.batch import Release
from streamveil.compiler.group_by import compile_plan
from streamveil.errors import PlanError, fitting
from streamveil.plan import combined_plan
from streamveil.results.answers import Answers
from streamveil.results.releases import of_releases
from streamveil.runtime.joint import releases_of
from streamveil.runtime.published import opened


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
    operator = None
    if not isinstance(query, Query | JointQuery | None):
        raise PlanError(f"query must be the query that released them, not {type(query).__name__}")
    if isinstance(query, JointQuery):
        if not isinstance(source, str | Path):
            return Answers(of_releases(source))
        return Answers(releases_of(query.plan, source))
    if query is not None:
        operator = compile_plan(combined_plan(query.plan))
    if not isinstance(source, str | Path | Iterable):
        raise PlanError(
            "answers takes releases, the folder of a sink or a state directory, not "
            f"{type(source).__name__}"
        )
    if not isinstance(source, str | Path):
        return Answers(of_releases(source, operator))
    return Answers(opened(source, operator))
