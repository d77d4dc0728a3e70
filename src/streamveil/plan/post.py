"""What is done with the rows of a release: filters, order, limits and computed columns.

Post-processing of a private answer costs nothing, so it is no part of a plan's fingerprint: it may
be changed while a job runs. Expressions are over the columns of the release.
"""

from __future__ import annotations

from dataclasses import dataclass

RESERVED = ("window_start", "window_end", "trigger", "opened", "noise_weight")
KEPT = RESERVED[:3]  # what every release carries, whatever is selected


@dataclass(frozen=True, kw_only=True)
class PostColumn:
    """A column of what is shown: a name and an expression over columns of the release."""

    name: str
    expression: str


@dataclass(frozen=True, kw_only=True)
class PostOrder:
    """One sort key. Rows that are equal in all of them stay in the order of the release."""

    expression: str
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, kw_only=True)
class Post:
    """One SELECT over released rows: WHERE, ORDER BY and LIMIT of each release, then columns."""

    where: str | None = None
    order: tuple[PostOrder, ...] = ()
    limit: int | None = None
    offset: int = 0
    columns: tuple[PostColumn, ...] | None = None  # None: all of the release

    @property
    def words(self) -> str:
        """What it does, for people."""
        parts = [] if self.where is None else [f"rows where {self.where}"]
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
