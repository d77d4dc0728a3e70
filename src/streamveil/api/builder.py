"""The Python spelling: each step is a frozen value, the last one is a checked plan.

>>> import streamveil as sv
>>> clicks = sv.files("clicks/*.parquet", event_time="ts").protect(unit="user_id", per="1 day")
>>> pages = (clicks.window(sv.tumble("1 day"))
...                .group_by("url", keys=sv.discover(min_units=20))
...                .agg(n=sv.count(), ms=sv.sum("ms", bounds=(0, 60_000)))
...                .bound(max_rows=32, max_rows_per_group=1)
...                .release(every="15 min", start="2026-01-01", end="2026-02-01",
...                         budget=sv.Budget(epsilon=6, delta=1e-9)))
>>> pages.plan.window.size_us // pages.plan.clock.every
96
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Self

from streamveil.api import Query
from streamveil.api.query_parts import Keys, Measure, RowCount, outputs, require_first
from streamveil.batch import as_table
from streamveil.core.accounting import Budget
from streamveil.errors import PlanError, fitting, got, listed, nearest, require_budget
from streamveil.plan import Aggregate, KeyColumn, SinkSpec, SourceSpec, Window
from streamveil.plan import options as options_of
from streamveil.plan.check import require_known
from streamveil.plan.options import OPTIONS
from streamveil.sql.assemble import Draft, assemble
from streamveil.sql.parts import Duration, Length, Ticks, duration_us, length_of, quoted

if TYPE_CHECKING:
    from streamveil.plan.joins import How

OTHER_NAMES = {"filter": "where", "query": "where", "groupby": "group_by", "aggregate": "agg"}


class InTheMaking:
    """What any query in the making is asked: of which rows, and where releases go."""

    source: SourceSpec
    conditions: tuple[str, ...]
    sinks: tuple[SinkSpec, ...]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of '{self.source.name}': .release(...) makes it a query>"

    if not TYPE_CHECKING:  # who checks types knows what there is

        def __getattr__(self, name: str) -> Any:
            """Says what a step is called here: none has this name."""
            known = [one for one in dir(type(self)) if not one.startswith("_")]
            hint = nearest(OTHER_NAMES.get(name, name), known)
            raise AttributeError(f"a query in the making has no '{name}'{hint}")

    @fitting("where(\"ms > 0 AND url LIKE '/shop%'\")")
    def where(self, condition: str) -> Self:
        """Keeps rows for which a per-row SQL condition holds; several are joined by AND.

        Args:
            condition: SQL over the columns of one row.

        Raises:
            PlanError: at `release`, the condition cannot be read or asks for other rows.
        """
        both = (*self.conditions, condition)
        return replace(self, conditions=both)  # type: ignore[type-var]  # a dataclass

    @fitting('to("files", path="out/", format="csv")')
    def to(self, kind: str, name: str | None = None, **options: Any) -> Self:
        """Adds a sink for releases, such as "files" with path="out/" and format="parquet".

        Args:
            kind: "files", "delta", "console" ...: `sink` of CREATE SINK (docs/sql.md).
            name: of the first sink: the job in the ledger; the kind if left out.
            **options: settings of the sink, as in WITH (...) of CREATE SINK.

        Raises:
            PlanError: an argument is missing; at `release`, an option is unknown.
        """
        more = SinkSpec(name=kind if name is None else name, kind=kind, options=options)
        return replace(self, sinks=(*self.sinks, more))  # type: ignore[type-var]  # a dataclass


@dataclass(frozen=True, repr=False)
class Stream(InTheMaking):
    """A query in the making. Every method returns a new one; `release` ends with a `Query`.

    Raises:
        PlanError: an argument is missing or unknown; the message shows a call that works.

    >>> import streamveil as sv
    >>> query = (
    ...     sv.files("clicks/*.parquet", event_time="ts")
    ...     .protect(unit="user_id", per="1 day")
    ...     .where("ms > 0")
    ...     .window(sv.tumble("1 day"))
    ...     .group_by("url", keys=sv.discover(min_units=20))
    ...     .agg(n=sv.count())
    ...     .bound(max_rows=8)
    ...     .to("files", path="out/", format="csv")
    ...     .release(every="1 hour", start="2026-01-01", end="2026-01-08",
    ...              budget=sv.Budget(epsilon=1, delta=1e-9))
    ... )
    >>> query.plan.clock.steps
    168
    """

    source: SourceSpec
    unit: str | None = None
    period: Length | None = None
    conditions: tuple[str, ...] = ()
    shape: Window = field(default_factory=Window)
    groups: tuple[KeyColumn, ...] = ()
    keys: Keys = field(default_factory=Keys)
    sets: tuple[tuple[str, ...], ...] = ()
    measures: tuple[Aggregate, ...] = ()
    per_group: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)
    sinks: tuple[SinkSpec, ...] = ()

    @fitting('protect(unit="user_id", per="1 day")')
    def protect(self, unit: str, per: Duration | None = None) -> Stream:
        """Says who is protected: a column or expression, over the whole stream or per period.

        Args:
            unit: the column, or per-row SQL expression, that names the person.
            per: a length such as "1 day": each day of a person is then protected by itself, and
                somebody present on many days loses more. Left out, all rows of a person are
                protected together.

        Raises:
            PlanError: the length cannot be read, or this is a second call.
        """
        require_first("protect", self.unit is None)
        period = None if per is None else length_of(per, "per")
        return replace(self, unit=unit, period=period)

    @fitting('per_unit("day", total="SUM(minutes)")')
    def per_unit(self, *by: str, **named: str) -> Stream:
        """Combines each unit's own rows: into one row per unit and `by`, or into a further column.

        Totals (first="MIN(ts)") and expressions to group by (day="DATE(ts)") give one row for each
        unit and group. Window functions (k="ROW_NUMBER() OVER (ORDER BY ts)") add a column to the
        rows as they are. Groups and windows are always within one unit: do not name it.

        Args:
            *by: columns to group each unit's rows by.
            **named: new columns, in SQL.

        Raises:
            PlanError: `protect` has not been called, or rows of two units would meet.
        """
        unit = self._unit("per_unit")
        from streamveil.plan.own_rows import column_text  # loaded where rows are combined
        from streamveil.sql.own_rows import combine_named

        for column in by:
            quoted(column)  # refuses what names none
        made = combine_named(self.source, unit, self.conditions, by, named)
        return replace(self, source=made, unit=column_text(made.person), conditions=())

    @fitting('join(people, on="user_id")')
    def join(self, other: Stream, on: str | Iterable[str], how: How = "inner") -> Stream:
        """Joins each row with the same person's rows in another relation, or with a public table.

        A column that both have is read as `name:column`, in backquotes, unless it is one of `on`.

        Args:
            other: a stream in which `on` names the person too, or a table with public=True.
            on: columns that are equal on both sides. The privacy unit must be one of them, unless
                the other table is public.
            how: "inner", "left" (rows without a match stay, with nulls), "semi" (keeps only rows
                with a match) or "anti" (keeps only rows without a match).

        Raises:
            PlanError: `protect` has not been called, rows of two units would meet, or the other
                stream is more than rows.
        """
        unit = self._unit("join")
        if not isinstance(other, Stream):
            raise PlanError(
                f"join takes a stream, not {type(other).__name__}.\n"
                "  to fix  join(memory(table), on=...), with public=True where it is nobody's"
            )
        if other != replace(Stream(other.source), unit=other.unit, period=other.period,
                            conditions=other.conditions):  # fmt: skip
            raise PlanError(
                "join takes rows, and the other stream groups, counts or bounds them.\n"
                "  to fix  join first, then window, group_by, agg, bound and to; totals of each"
                " unit are per_unit(...)"
            )
        columns = [on] if isinstance(on, str) else listed("on", on, "columns such as ['user_id']")
        for column in columns:
            quoted(column)  # refuses what names none
        from streamveil.plan.own_rows import with_person
        from streamveil.sql.joins import join_named, require_one_unit

        require_one_unit(unit, other.unit)
        made = join_named(
            self.source, unit, self.conditions, other.source, other.conditions, columns, how
        )
        made, unit = with_person(made, unit)
        return replace(self, source=made, unit=unit, conditions=())

    @fitting('window(tumble("1 day"))')
    def window(self, shape: Window) -> Stream:
        """Tumbling, hopping or cumulating windows of event time.

        Args:
            shape: `tumble(...)`, `hop(...)` or `cumulate(...)`.

        Raises:
            PlanError: it is none of these, or this is a second call.
        """
        if not isinstance(shape, Window):
            raise PlanError(
                f"window takes tumble(...), hop(...) or cumulate(...), not {got(shape)}"
            )
        require_first("window", self.shape == Window())
        return replace(self, shape=shape)

    @fitting("unnest(tag=\"SPLIT(tags, ',')\")")
    def unnest(self, **named: str) -> Stream:
        """Makes a row of each part of a text, or of each element of a column of lists.

        Args:
            **named: the new column and the list it comes from: tag="SPLIT(tags, ',')".

        Raises:
            PlanError: `protect` has not been called, or the expression is no list.
        """
        unit = self._unit("unnest")
        from streamveil.sql.own_rows import unnest_named

        made, unit = unnest_named(self.source, unit, self.conditions, named)
        return replace(self, source=made, unit=unit, conditions=())

    def group_by(
        self, *columns: str, keys: Keys | None = None,
        sets: Iterable[Iterable[str]] | None = None, **named: str,
    ) -> Stream:  # fmt: skip
        """Groups by columns, and by named per-row expressions: hour="EXTRACT(HOUR FROM ts)".

        Args:
            *columns: columns to group by.
            keys: which groups may be published: `discover()` (the default) or `public(...)`.
            sets: several groupings at once, each by some of the names: [("city", "age"), ()] also
                gives totals. Bounds apply to each set; the losses of all sets are charged together.
            **named: computed groups, in SQL.

        Raises:
            PlanError: `keys` is something else, `sets` names what is no group, or this is a second
                call.
        """
        require_first("group_by", not self.groups)
        plain = [KeyColumn(name=column, expression=quoted(column)) for column in columns]
        computed = [KeyColumn(name=name, expression=text) for name, text in named.items()]
        if keys is not None and not isinstance(keys, Keys):
            raise PlanError(
                f"keys must be discover(min_units=...) or public([...]), not {got(keys)}"
            )
        groups = (*plain, *computed)
        given = listed("sets", () if sets is None else sets, 'sets such as [("url",)]')
        found = tuple(
            dict.fromkeys(tuple(listed("a set", one, 'groups such as ("url",)')) for one in given)
        )
        for name in itertools.chain.from_iterable(found):
            if name not in {key.name for key in groups}:
                known = [key.name for key in groups]
                raise PlanError(f"sets names '{name}', which is no group{nearest(name, known)}")
        return replace(self, groups=groups, keys=keys or Keys(), sets=found)

    @fitting('agg(n=count(), seconds=sum("ms / 1000.0", bounds=(0, 60)))')
    def agg(self, **measures: Measure) -> Stream:
        """Output columns: n=count(), ms=sum("ms", bounds=(0, 60_000)). A further call adds some.

        Args:
            **measures: an aggregate for each name.

        Raises:
            PlanError: one is not an aggregate.
        """
        return replace(
            self,
            measures=(*self.measures, *outputs(measures, "count() or sum(...)")),
            per_group=self.per_group.union(n for n, one in measures.items() if one.per_group),
        )

    @fitting("bound(max_rows=8)")
    def bound(
        self,
        max_rows: int | None = None,
        max_rows_per_group: int | None = None,
        *,
        max_groups: int | None = None,
        max_squared_rows: int | None = None,
    ) -> Stream:
        """Bounds what one unit may contribute (in its period, if it has one); other rows are cut.

        Tighter bounds mean less noise and more cut rows. Bounds that are left out are chosen from
        a forecast, or by a private look at the rows. A further call adds bounds, or replaces them.

        Args:
            max_rows: rows in all.
            max_rows_per_group: rows in one group of one window.
            max_groups: groups in which it may have `max_rows_per_group` rows (1 unless given). Its
                rows may lie in more groups, unless units are counted.
            max_squared_rows: instead of a bound per group, the sum of (rows per group)^2.

        Raises:
            PlanError: at `release`, one is not a whole number of at least 1, or they contradict.
        """
        limits = {
            options_of.MAX_ROWS.name: max_rows,
            options_of.MAX_PER_GROUP.name: max_rows_per_group,
            options_of.MAX_GROUPS.name: max_groups,
            options_of.MAX_SQUARED.name: max_squared_rows,
        }
        given = {name: most for name, most in limits.items() if most is not None}
        return replace(self, limits={**self.limits, **given})

    @fitting(
        'release(every="1 hour", start="2026-01-01", '
        'end="2026-02-01", budget=Budget(epsilon=1, delta=1e-9))'
    )
    def release(
        self, *, budget: Budget, every: Duration | RowCount | None = None, **options: Any
    ) -> Query:
        """Finishes the query: a release at every step, or one answer when `every` is left out.

        Args:
            budget: the most that one unit may lose to everything that is ever published.
            every: a length such as "1 hour", or `rows(n)`.
            **options: those of the SQL clause: start, end, steps, arrival, clock, lateness, preset,
                counter, name, non_negative, integer, monotone, confidence, ... (docs/sql.md).

        Raises:
            PlanError: the query cannot or must not run; the message says why, and the way out.
        """
        require_settings(budget, options)
        for name, value in options.items():
            if value is not None and options_of.OPTIONS[name].kind == "interval":
                options[name] = duration_us(value, name)
        values = {
            **options,
            **self.limits,
            **{name: getattr(budget, name) for name in options_of.BUDGETS},
            options_of.PRIVACY_UNIT.name: (stream := self._in_sets()).unit,
            options_of.UNIT_PERIOD.name: self.period,
            options_of.MIN_UNITS.name: self.keys.min_units,
            options_of.PUBLIC_GROUPS.name: self.keys.public,
        }
        draft = replace(stream._draft(every), copies=max(1, len(self.sets)))
        return Query(assemble(draft, values))

    def _unit(self, method: str) -> str:
        """Who is protected; PlanError where that has not been said."""
        if self.unit is None:
            raise PlanError(
                f"{method} needs to know who is protected.\n  to fix  protect(...) first"
            )
        return self.unit

    def _in_sets(self) -> Stream:
        """The stream whose rows are there once for each set of groups."""
        if not self.sets:
            return self
        from streamveil.sql.own_rows import with_sets

        source, keys, unit = with_sets(
            self.source, self.groups, self.sets, self.conditions, self.unit
        )
        return replace(self, source=source, groups=keys, unit=unit, conditions=())

    def _draft(self, every: Duration | RowCount | None) -> Draft:
        return Draft(
            source=self.source, aggregates=self.measures, where=self.conditions, keys=self.groups,
            window=self.shape, ticks=ticks_of(self.source, every), sinks=self.sinks,
            per_group=self.per_group,
        )  # fmt: skip


def require_settings(budget: Any, options: Mapping[str, Any]) -> None:
    """PlanError for what is no budget, or no option of a release."""
    for name in options:
        require_known(name, [*RELEASE_OPTIONS, "every", "budget"])
    require_budget(budget)


def ticks_of(source: SourceSpec, every: Duration | RowCount | None) -> Ticks:
    """When releases are: at every length of time, or number of rows."""
    if isinstance(every, RowCount):
        return Ticks(rows=every.n, unbounded=source.is_endless)
    time = Length() if every is None else length_of(every, "every")
    return Ticks(every_us=time.us or None, months=time.months or None, unbounded=source.is_endless)


ELSEWHERE = {  # options of the clause that have a method of their own
    *options_of.BUDGETS,
    *(option.name for option in options_of.OF_METHODS),
}
RELEASE_OPTIONS = sorted(OPTIONS.keys() - ELSEWHERE)


@fitting('files("clicks/*.parquet", event_time="ts")')
def files(
    path: str | PurePath | Sequence[str | PurePath],
    *,
    event_time: str | None = None,
    name: str | None = None,
    public: bool = False,
    **options: Any,
) -> Stream:
    """Rows of Parquet, CSV or JSON-lines files: a path, a glob or a directory.

    Args:
        path: a file, a folder, a pattern such as "clicks/*.parquet", or a list of them; text or
            `Path`.
        event_time: the column with each row's time; windows and releases by time need it.
        name: the source's name in messages and the ledger; the file's name if left out.
        public: it holds nobody's data, so rows of anybody may be joined with it.
        **options: settings of the connector, as in WITH (...) of CREATE STREAM (docs/sql.md).

    Raises:
        PlanError: the path is neither text nor a `Path`, or an argument is unknown.
        SourceError: when the query runs, files are missing or a column is not in them.

    >>> import streamveil as sv
    >>> clicks = sv.files("clicks/*.parquet", event_time="ts")
    """
    paths = [path] if isinstance(path, str | PurePath) else path
    if not (
        isinstance(paths, list | tuple)
        and paths
        and all(isinstance(one, str | PurePath) for one in paths)
    ):
        raise PlanError(
            f"files takes a path, a folder, a pattern or a list of them, not {got(path)}.\n"
            "  to fix  files('clicks/*.parquet', event_time='ts')"
        )
    first = PurePath(paths[0])
    stem = first.parent.name if "*" in first.stem else first.stem
    spec = SourceSpec(
        name=stem or "files" if name is None else name,
        kind="files",
        options={"path": path, **options},
        event_time=event_time,
        public=public,
    )
    return Stream(spec)


@fitting('memory(table, event_time="ts")')
def memory(
    table: Any, *, event_time: str | None = None, name: str = "memory", public: bool = False
) -> Stream:
    """Rows of a table: of Arrow, pandas, Polars, DuckDB, a dict of columns, or a list of dicts.

    Args:
        table: the rows.
        event_time: the column with each row's time; windows and releases by time need it.
        name: the source's name in messages and the ledger.
        public: it holds nobody's data, so rows of anybody may be joined with it.

    Raises:
        SourceError: `table` is none of these.
        PlanError: an argument is missing or unknown; the message shows a call that works.

    >>> import streamveil as sv
    >>> clicks = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"]})
    """
    rows = as_table(table)
    return Stream(
        SourceSpec(
            name=name, kind="memory", options={"table": rows}, event_time=event_time, public=public
        )
    )


@fitting('source("kafka", name="clicks", servers="broker:9092", topic="clicks")')
def source(kind: str, name: str, *, event_time: str | None = None, **options: Any) -> Stream:
    """Rows of any connector, by its name.

    Args:
        kind: "files", "kafka", "sqlite" ...: `source` of CREATE STREAM (docs/sql.md).
        name: the source's name in messages and the ledger.
        event_time: the column with each row's time; windows and releases by time need it.
        **options: settings of the connector, as in WITH (...) of CREATE STREAM.

    Raises:
        PlanError: an argument is unknown or missing.
        SourceError: when the query runs, there is no such connector, or it cannot be reached.

    >>> import streamveil as sv
    >>> clicks = sv.source("kafka", name="clicks", servers="broker:9092", topic="clicks")
    """
    return Stream(SourceSpec(name=name, kind=kind, options=options, event_time=event_time))
