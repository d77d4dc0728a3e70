"""Several private answers in one SELECT: a join, a union, or WITH clauses of both.

Each answer has a budget, a job and a state of its own. They are released together, at the same
windows and triggers, and the rows of one such time are combined. That is post-processing: it costs
nothing in addition to the answers, whose losses add up as if they were asked one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from streamveil.errors import PlanError, require_file_name
from streamveil.expressions.dialect import shown
from streamveil.plan import Plan, Post, SinkSpec, TableSource
from streamveil.plan.options import CONFIDENCE


@dataclass(frozen=True, kw_only=True)
class JointPlan:
    """Private answers with one schedule over one privacy unit, and the SELECT over all of them."""

    name: str
    parts: tuple[Plan, ...]
    post: tuple[Post, ...]
    sinks: tuple[SinkSpec, ...] = ()

    def __post_init__(self) -> None:
        require_file_name("query", self.name)
        first, names = self.parts[0], [part.name for part in self.parts]
        for name in names:
            if names.count(name) > 1:
                raise PlanError(
                    f"two private answers are called '{shown(name)}'.\n"
                    "  to fix  name them: WITH a AS (...), b AS (...)"
                )
        for part in self.parts:
            require_together(first, part)
        require_one_person(self.parts)
        read = {*parts_read(self.post)}
        for place, name in enumerate(names):
            if place not in read:
                raise PlanError(
                    f"'{shown(name)}' is a private answer that nothing reads, and it is charged.\n"
                    "  to fix  leave it out"
                )


def require_one_person(parts: tuple[Plan, ...]) -> None:
    """Refuses answers that attribute the same rows to different people or periods."""
    from streamveil.plan import check_own_rows  # loaded where there are several answers

    relations = [one for part in parts for one in check_own_rows.relations_of(part)]
    complaints = [check_own_rows.of_two_people(relations)]
    if parts[0].periods is not None:
        complaints.append(check_own_rows.of_two_times([part.source for part in parts]))
    for complaint in chain(*complaints):
        raise PlanError(complaint)


def parts_read(posts: Iterable[Post]) -> Iterator[int]:
    """The numbers of the answers that steps begin with."""
    for post in posts:
        if post.part is not None:
            yield post.part
        inner = [*post.branches, *((post.join.left, post.join.right) if post.join else ())]
        for steps in inner:
            yield from parts_read(steps)


def require_together(first: Plan, other: Plan) -> None:
    """Refuses answers that protect different units, or are not released at the same times."""
    if isinstance(other.source, TableSource):
        raise PlanError(
            "a changing table stands alone: its answers are not put together with others.\n"
            "  to fix  read its releases into another program and join there: it costs no budget"
        )
    if (first.unit, first.periods) != (other.unit, other.periods):
        raise PlanError(
            f"'{shown(first.name)}' protects {shown(first.unit)} and '{shown(other.name)}' "
            f"{shown(other.unit)}, or other periods: nobody could say what both together promise.\n"
            "  to fix  give both the same privacy_unit_column and privacy_unit_period; a subquery "
            "may rename a column"
        )
    if (first.clock, first.window) != (other.clock, other.window):
        raise PlanError(
            f"'{shown(first.name)}' and '{shown(other.name)}' are released at different times.\n"
            "  to fix  the same window, start, end and EMIT for all private answers of a statement"
        )
    if CONFIDENCE.of(first.options) != CONFIDENCE.of(other.options):
        raise PlanError(
            f"confidence differs between '{shown(first.name)}' and '{shown(other.name)}'.\n"
            "  to fix  give all the same one, or leave it out"
        )
