"""The Python spelling of queries over changing tables.

>>> import streamveil as sv
>>> people = sv.table(sv.files("changes.parquet"), id="id", operation="op",
...                   domains={"city": ["Oslo", "Rome"], "age": range(100)})
>>> query = people.marginals(ways=1).agg(n=sv.count()).release(every=sv.rows(1000), steps=50,
...     expected_size=20_000, budget=sv.Budget(epsilon=1, delta=1e-6))
>>> query.plan.sets, query.plan.source.changelog
((('city',), ('age',)), 'insert-delete')
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamveil.api import Query
from streamveil.api.builder import InTheMaking, Stream, require_settings, ticks_of
from streamveil.api.query_parts import Measure, RowCount, outputs, require_first
from streamveil.core.accounting import Budget
from streamveil.errors import PlanError, fitting, got, listed, nearest, visible, whole
from streamveil.plan import Aggregate, SinkSpec, TableSource
from streamveil.plan.options import BUDGETS
from streamveil.sql.assemble import Draft, assemble
from streamveil.sql.parts import Duration
from streamveil.sql.table import table_source
from streamveil.sql.table_check import MOST_POINTS
from streamveil.types import own


@dataclass(frozen=True, repr=False)
class Table(InTheMaking):
    """A query over a changing table in the making. Every method returns a new one.

    Raises:
        PlanError: an argument is missing or unknown; the message shows a call that works.

    >>> import streamveil as sv
    >>> people = sv.table(sv.files("changes.csv"), id="id", operation="op",
    ...                   domains={"age": range(100)})
    >>> query = people.group_by("age").agg(n=sv.count()).release(
    ...     every=sv.rows(1000), steps=24, expected_size=20_000,
    ...     budget=sv.Budget(epsilon=1, delta=1e-6))
    >>> query.plan.clock.steps
    24
    """

    source: TableSource
    conditions: tuple[str, ...] = ()
    sets: tuple[tuple[str, ...], ...] = ()
    measures: tuple[Aggregate, ...] = ()
    sinks: tuple[SinkSpec, ...] = ()

    def group_by(self, *columns: str) -> Table:
        """Groups by columns with a public domain: every combination of their values.

        Args:
            *columns: columns named in `domains`.

        Raises:
            PlanError: a column has no public values, or this is a second call.
        """
        return self.marginals(columns)

    def marginals(self, *sets: Iterable[str], ways: int | None = None) -> Table:
        """Several groupings at once: sets of columns, or all sets of `ways` columns.

        Args:
            *sets: sets of columns named in `domains`.
            ways: adds all sets of this many columns.

        Raises:
            PlanError: a column has no public values, or this is a second call.
        """
        require_first("group_by or marginals", not self.sets)
        known = [name for name, _ in self.source.domains]
        if ways is not None and whole("ways", ways) not in range(1, len(known) + 1):
            raise PlanError(
                f"ways must be a whole number from 1 to {len(known)}, the columns with public"
                f" values, not {ways!r}"
            )
        wanted = [*sets, *(itertools.combinations(known, ways) if ways is not None else ())]
        found: dict[tuple[str, ...], None] = {}
        for one in wanted:
            names = [one] if isinstance(one, str) else listed("a set", one, "columns: ('city',)")
            for name in names:
                if name not in known:
                    raise PlanError(f"'{name}' has no public values{nearest(str(name), known)}")
            found[tuple(name for name in known if name in names)] = None
        return replace(self, sets=tuple(found))

    @fitting("agg(n=count())")
    def agg(self, **measures: Measure) -> Table:
        """Output columns: n=count(), young=count_if("age < 30"); or one count_distinct("plan").

        A further call adds some.

        Args:
            **measures: a count for each name.

        Raises:
            PlanError: one is not an aggregate.
        """
        return replace(self, measures=(*self.measures, *outputs(measures, "count()")))

    @fitting("release(every=rows(1000), steps=24, expected_size=10_000, budget=Budget(rho=1))")
    def release(
        self, *, budget: Budget, every: Duration | RowCount | None = None, **options: Any
    ) -> Query:
        """Finishes the query: a release at every step, or one answer when `every` is left out.

        Args:
            budget: the most that one record may lose to everything that is ever published.
            every: a length such as "1 hour", or `rows(n)`.
            **options: `expected_size` (the approximate number of records) is required. Others are
                those of the SQL clause: steps, start, end, arrival, clock, expected_updates,
                max_changes, ask_share, mechanism, confidence, ... (docs/sql.md).

        Raises:
            PlanError: the query cannot or must not run; the message says why, and the way out.
        """
        require_settings(budget, options)
        draft = Draft(
            source=self.source, aggregates=self.measures, where=self.conditions,
            ticks=ticks_of(self.source, every), sinks=self.sinks, sets=self.sets or ((),),
        )  # fmt: skip
        named = {name: getattr(budget, name) for name in BUDGETS}
        return Query(assemble(draft, {**options, **named}))


@fitting('table(rows, domains={"city": ["a", "b"]})')
def table(
    rows: Stream,
    *,
    domains: Mapping[str, Iterable[Any]],
    id: str | None = None,
    operation: str | None = None,
    lives: int = 1,
    name: str | None = None,
) -> Table:
    """A table that the rows of a source insert into, and with `operation` also delete from.

    Args:
        rows: a bare source, such as `files(...)`.
        domains: the columns that may be asked about, each with its public values.
        id: the column that names records.
        operation: the column that says what a row does: insert, delete or update.
        lives: how often an id may be inserted; the guarantee is for all its lives.
        name: the table's name in messages and the ledger; the source's name if left out.

    Raises:
        PlanError: the source is more than a source, or a setting does not fit.

    >>> import streamveil as sv
    >>> people = sv.table(sv.files("changes.csv"), id="id", operation="op",
    ...                   domains={"city": ["Oslo", "Rome"], "age": range(100)})
    """
    if not isinstance(rows, Stream) or rows != Stream(rows.source):
        raise PlanError("table takes a bare source, such as files(...) or memory(...)")
    settings = {
        "changelog": "insert" if operation is None else "insert-delete",
        "operation": operation, "id": id, "lives": lives,
    }  # fmt: skip
    if not isinstance(domains, Mapping):
        raise PlanError(
            f"domains maps columns to their public values, and is not {type(domains).__name__}.\n"
            '  to fix  table(rows, domains={"city": ["a", "b"]})'
        )
    given = [(column, public_values(column, values)) for column, values in domains.items()]
    return Table(
        table_source(rows.source.name if name is None else name, rows.source, settings, given)
    )


def public_values(column: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """The public values of a column.

    Raises:
        PlanError: they are one text, whose letters nobody means, or none; or they are too many.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise PlanError(
            f"domains needs the public values of '{visible(str(column))}' in a list, not"
            f" {got(values)}.\n"
            '  to fix  table(rows, domains={"city": ["a", "b"]})'
        )
    if getattr(values, "ndim", 1) != 1:
        raise PlanError(f"the public values of '{visible(str(column))}' must be in one list")
    found = tuple(itertools.islice(values, MOST_POINTS + 1))
    if len(found) > MOST_POINTS:
        raise PlanError(
            f"'{visible(str(column))}' has more than {MOST_POINTS:,} public values.\n"
            "  to fix  use a coarser column"
        )
    return tuple(map(own, found))
