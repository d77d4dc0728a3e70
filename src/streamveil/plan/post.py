"""What is done with the rows of a release: filters, order, limits and computed columns.

Post-processing of a private answer costs nothing, so it is no part of a plan's fingerprint: it may
be changed while a job runs. Expressions are over the columns of the release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RESERVED = ("window_start", "window_end", "trigger", "opened", "noise_weight")
KEPT = RESERVED[:3]  # what every release carries, whatever is selected


@dataclass(frozen=True, kw_only=True)
class PostColumn:
    """A column of what is shown: a name and an expression over columns of the release."""

    name: str
    expression: str


@dataclass(frozen=True, kw_only=True)
class SortKey:
    """One key by which rows are sorted. Rows that are equal in all keys stay in their order."""

    expression: str
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, kw_only=True)
class PostShift:
    """A released number some rows earlier in the same release, with its interval: LAG, LEAD.

    Of a frame (AVG, SUM) with 0 where there is no such row; `here_column` then says where there is.
    """

    name: str
    column: str
    rows: int  # how many before; below 0: after
    by: tuple[str, ...] = ()
    order: tuple[SortKey, ...] = ()
    filled: bool = False

    @property
    def here_column(self) -> str:
        """1 where the row is there, 0 where not."""
        return self.name + "_here"

    @property
    def row_column(self) -> str:
        """Of which row of the release it is."""
        return self.name + "_row"


@dataclass(frozen=True, kw_only=True)
class PostTotal:
    """The sum of a released number over rows of the same release, with its interval.

    Without a column: how many rows there are.
    """

    name: str
    column: str | None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PostPlace:
    """The place of a row among those of its release: RANK, DENSE_RANK, ROW_NUMBER."""

    name: str
    function: str
    by: tuple[str, ...] = ()
    order: tuple[SortKey, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PostJoin:
    """Rows of one SELECT beside those of another; columns that are not named are dropped."""

    left: tuple[Post, ...]
    right: tuple[Post, ...]
    how: Literal["inner", "left", "right", "full"]
    on: tuple[tuple[str, str], ...]  # columns of groups that must match; none: every row does
    left_names: tuple[tuple[str, str], ...]  # a column, and what it is called afterwards
    right_names: tuple[tuple[str, str], ...]
    using: tuple[tuple[str, str], ...] = ()  # a column afterwards, and the right one that fills it


@dataclass(frozen=True, kw_only=True)
class Post:
    """One SELECT over released rows: WHERE, ORDER BY and LIMIT of each release, then columns."""

    where: str | None = None
    order: tuple[SortKey, ...] = ()
    limit: int | None = None
    offset: int = 0
    columns: tuple[PostColumn, ...] | None = None  # None: all of the release
    shifts: tuple[PostShift, ...] = ()  # numbers of other rows that columns compute with
    totals: tuple[PostTotal, ...] = ()
    places: tuple[PostPlace, ...] = ()
    one_for: tuple[str, ...] | None = None  # GROUP BY: the first row of each is left
    branches: tuple[tuple[Post, ...], ...] = ()  # UNION ALL of what each makes, and nothing else
    part: int | None = None  # begins with that one of several private answers, and nothing else
    join: PostJoin | None = None  # of what two pipelines make, and nothing else

    @property
    def words(self) -> str:
        """What it does, for people."""
        if self.branches:
            return " and ".join(
                "; ".join(one.words for one in steps) or "all" for steps in self.branches
            )
        if self.part is not None:
            return f"answer {self.part + 1}"
        if self.join is not None:
            both = (self.join.left, self.join.right)
            sides = ["; ".join(one.words for one in steps) or "all" for steps in both]
            equal = ", ".join(f"{left} = {right}" for left, right in self.join.on) or "every row"
            return f"{sides[0]} beside {sides[1]} ({self.join.how}: {equal})"
        parts = [] if self.where is None else [f"rows where {self.where}"]
        if self.one_for is not None:
            parts.append(f"totals by {', '.join(self.one_for) or 'nothing'}")
        if self.order:
            keys = (f"{one.expression}{' DESC' if one.descending else ''}" for one in self.order)
            parts.append(f"ordered by {', '.join(keys)}")
        if self.limit is not None:
            parts.append(f"the first {self.limit:,} of each release")
        if self.offset:
            parts.append(f"without the first {self.offset:,}")
        if self.columns is not None:
            parts.append(f"columns {', '.join(column.name for column in self.columns)}")
        return "; ".join(parts) or "nothing"
