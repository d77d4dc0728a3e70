"""The Python spelling: each step is a frozen value, the last one is a checked plan.

>>> clicks = files("clicks/*.parquet", event_time="ts").protect(unit="user_id", per="1 day")
>>> pages = (clicks.window(tumble("1 day"))
...                .group_by("url", keys=discover(min_units=20))
...                .agg(n=count(), ms=sum("ms", bounds=(0, 60_000)))
...                .bound(max_rows=32, max_rows_per_group=1)
...                .release(every="15 min", start="2026-01-01", end="2026-02-01",
...                         budget=Budget(epsilon=6, delta=1e-9)))
>>> pages.plan.window.size_us // pages.plan.clock.every
96
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Self, overload

from streamveil.api import Query
from streamveil.batch import as_table
from streamveil.core.accounting import Budget
from streamveil.errors import PlanError, fitting, nearest
from streamveil.plan import Aggregate, KeyColumn, Plan, SinkSpec, SourceSpec, Window
from streamveil.plan import options as options_of
from streamveil.plan.check import require_known
from streamveil.plan.options import OPTIONS
from streamveil.sql.assemble import Draft, assemble
from streamveil.sql.parts import (
    Duration,
    Instant,
    Length,
    Ticks,
    duration_us,
    length_of,
    make_aggregate,
    quoted,
    window_of,
)

if TYPE_CHECKING:
    from streamveil.api.joint import JointQuery
    from streamveil.plan.joins import How
    from streamveil.plan.joint import JointPlan
    from streamveil.results.answers import Answers

OTHER_NAMES = {"filter": "where", "query": "where", "groupby": "group_by", "aggregate": "agg"}
Ends = tuple[float, float]  # the least and the largest value that counts as it is


@dataclass(frozen=True)
class Keys:
    """Which groups may be shown."""

    min_units: int | None = None
    public: tuple[tuple[Any, ...], ...] | str | None = None


@dataclass(frozen=True)
class RowCount:
    """A number of source rows, as a distance between releases."""

    n: int


@dataclass(frozen=True)
class Measure:
    """An aggregate that has no name yet."""

    function: str
    expression: str | None = None
    bounds: tuple[float, float] | None = None
    quantum: float | None = None
    per_group: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def named(self, name: str) -> Aggregate:
        """The aggregate of one output column."""
        return make_aggregate(
            name,
            self.function,
            self.expression,
            bounds=self.bounds,
            quantum=self.quantum,
            options=self.options,
        )


class InTheMaking:
    """What any query in the making is asked: of which rows, and where releases go."""

    conditions: tuple[str, ...]
    sinks: tuple[SinkSpec, ...]

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
        more = SinkSpec(name=name or kind, kind=kind, options=options)
        return replace(self, sinks=(*self.sinks, more))  # type: ignore[type-var]  # a dataclass


@dataclass(frozen=True)
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
    limits: Mapping[str, int | None] = field(default_factory=dict)
    sinks: tuple[SinkSpec, ...] = ()

    @fitting('protect(unit="user_id", per="1 day")')
    def protect(self, unit: str, per: Duration | None = None) -> Stream:
        """Who is protected: a column or expression, over the whole stream or per period.

        Args:
            unit: the column, or per-row SQL expression, that names the person.
            per: a length such as "1 day": each person-day is then protected by itself, and who is
                there on many days loses more. Left out, all rows of a person are one.

        Raises:
            PlanError: the length cannot be read.
        """
        period = None if per is None else length_of(per, "per")
        return replace(self, unit=unit, period=period)

    @fitting('per_unit("day", total="SUM(minutes)")')
    def per_unit(self, *by: str, **named: str) -> Stream:
        """Rows made of each unit's own: one per unit and `by`, or each with a column more.

        Totals (first="MIN(ts)") and expressions to group by (day="DATE(ts)") give one row for each
        unit and group; functions of windows (k="ROW_NUMBER() OVER (ORDER BY ts)") stand beside the
        rows as they are. Groups and windows are of one unit, which need not be said.

        Args:
            *by: columns to group each unit's rows by.
            **named: new columns, in SQL.

        Raises:
            PlanError: `protect` has not been called, or rows of two units would meet.
        """
        unit = self._unit("per_unit")
        from streamveil.plan.own_rows import column_text  # loaded where rows are combined
        from streamveil.sql.own_rows import combine_named

        made = combine_named(self.source, unit, self.conditions, by, named)
        return replace(self, source=made, unit=column_text(made.person), conditions=())

    @fitting('join(people, on="user_id")')
    def join(self, other: Stream, on: str | Iterable[str], how: How = "inner") -> Stream:
        """Each row beside the same person's rows in another relation, or those of a public table.

        Columns that both have are read as `name:column`, in backquotes; of `on` they are the same.

        Args:
            other: a stream of which `on` names the person too, or a table with public=True.
            on: columns that are equal on both sides; the privacy unit is one, unless the other
                table is public.
            how: "inner", "left" (rows without a match stay, beside nulls), "semi" (only keeps
                rows that have one) or "anti" (only those that have none).

        Raises:
            PlanError: `protect` has not been called, or rows of two units would meet.
        """
        unit = self._unit("join")
        if not isinstance(other, Stream):
            raise PlanError(
                f"join takes a stream, not {type(other).__name__}.\n"
                "  to fix  join(memory(table), on=...), with public=True where it is nobody's"
            )
        columns = [on] if isinstance(on, str) else [*on]
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
            PlanError: it is none of these.
        """
        if not isinstance(shape, Window):
            raise PlanError("window takes tumble(...), hop(...) or cumulate(...)")
        return replace(self, shape=shape)

    @fitting("unnest(tag=\"SPLIT(tags, ',')\")")
    def unnest(self, **named: str) -> Stream:
        """A row for each part of a text, or each element of a column of lists.

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
            keys: which groups may be shown: `discover()`, unless given, or `public(...)`.
            sets: several groupings at once, each by some of the names: [("city", "age"), ()] also
                gives totals. Bounds are of one set; what all sets lose is charged together.
            **named: computed groups, in SQL.

        Raises:
            PlanError: `keys` is something else, or `sets` names what is no group.
        """
        plain = [KeyColumn(name=column, expression=quoted(column)) for column in columns]
        computed = [KeyColumn(name=name, expression=text) for name, text in named.items()]
        if keys is not None and not isinstance(keys, Keys):
            raise PlanError("keys must be discover(min_units=...) or public([...])")
        groups = (*plain, *computed)
        found = tuple(dict.fromkeys(tuple(some) for some in sets or ()))
        for name in itertools.chain.from_iterable(found):
            if name not in {key.name for key in groups}:
                known = [key.name for key in groups]
                raise PlanError(f"sets names '{name}', which is no group{nearest(name, known)}")
        return replace(self, groups=groups, keys=keys or Keys(), sets=found)

    @fitting('agg(n=count(), seconds=sum("ms / 1000.0", bounds=(0, 60)))')
    def agg(self, **measures: Measure) -> Stream:
        """Output columns: n=count(), ms=sum("ms", bounds=(0, 60_000)).

        Args:
            **measures: an aggregate for each name.

        Raises:
            PlanError: one is not an aggregate.
        """
        for name, measure in measures.items():
            if not isinstance(measure, Measure):
                raise PlanError(f"'{name}' must be an aggregate such as count() or sum(...)")
        return replace(
            self,
            measures=tuple(measure.named(name) for name, measure in measures.items()),
            per_group=frozenset(name for name, measure in measures.items() if measure.per_group),
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
        """How much one unit may contribute (in its period, if it has one); the rest is left out.

        Tighter bounds mean less noise and more rows that are cut. What is left out is chosen from a
        forecast, or from a private look at the rows.

        Args:
            max_rows: rows in all.
            max_rows_per_group: rows in one group of one window.
            max_groups: groups in which it may have `max_rows_per_group` rows (1 unless given). Its
                rows may lie in more groups, but not where units are counted.
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
        return replace(self, limits=limits)

    @fitting(
        'release(every="1 hour", start="2026-01-01", '
        'end="2026-02-01", budget=Budget(epsilon=1, delta=1e-9))'
    )
    def release(
        self, *, budget: Budget, every: Duration | RowCount | None = None, **options: Any
    ) -> Query:
        """The finished query: a release at every step, or one answer when `every` is left out.

        Args:
            budget: the most that one unit may lose to everything that is ever published.
            every: a length such as "1 hour", or `rows(n)`.
            **options: those of the SQL clause: start, end, steps, arrival, clock, lateness, preset,
                counter, name, non_negative, integer, monotone, confidence, ... (docs/sql.md).

        Raises:
            PlanError: the query cannot be run or must not be: the message says why and the way out.
        """
        require_settings(budget, options)
        for name, value in options.items():
            if value is not None and options_of.OPTIONS[name].kind == "interval":
                options[name] = duration_us(value, name)
        values = {
            **options,
            **{name: value for name, value in self.limits.items() if value is not None},
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
    if not isinstance(budget, Budget):
        raise PlanError("budget must be a Budget, such as Budget(epsilon=1, delta=1e-9)")


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
    path: str | list[str],
    *,
    event_time: str | None = None,
    name: str | None = None,
    public: bool = False,
    **options: Any,
) -> Stream:
    """Rows of Parquet, CSV or JSON-lines files: a path, a glob or a directory.

    Args:
        path: a file, a folder, a pattern such as "clicks/*.parquet", or a list of them.
        event_time: the column with each row's time; windows and releases by time need it.
        name: what messages and the ledger call the source; the file's name if left out.
        public: nobody's data are in it, so that rows of others may be joined with it.
        **options: settings of the connector, as in WITH (...) of CREATE STREAM (docs/sql.md).

    Raises:
        PlanError: the path is not text, or an argument is unknown.
        SourceError: when the query runs, files are missing or a column is not in them.

    >>> import streamveil as sv
    >>> clicks = sv.files("clicks/*.parquet", event_time="ts")
    """
    paths = [str(path)] if isinstance(path, str | PurePath) else path
    if not (isinstance(paths, list | tuple) and paths and all(isinstance(p, str) for p in paths)):
        raise PlanError(
            "files takes a path, a folder, a pattern or a list of them.\n"
            "  to fix  files('clicks/*.parquet', event_time='ts')"
        )
    first = PurePath(paths[0])
    stem = first.parent.name if "*" in first.stem else first.stem
    spec = SourceSpec(
        name=name or stem or "files",
        kind="files",
        options={"path": str(path) if isinstance(path, PurePath) else path, **options},
        event_time=event_time,
        public=public,
    )
    return Stream(spec)


@fitting('memory(table, event_time="ts")')
def memory(
    table: Any, *, event_time: str | None = None, name: str = "memory", public: bool = False
) -> Stream:
    """Rows of a table: of Arrow, pandas, Polars, DuckDB, or a dict of columns.

    Args:
        table: the rows.
        event_time: the column with each row's time; windows and releases by time need it.
        name: what messages and the ledger call the source.
        public: nobody's data are in it, so that rows of others may be joined with it.

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
        name: what messages and the ledger call the source.
        event_time: the column with each row's time; windows and releases by time need it.
        **options: settings of the connector, as in WITH (...) of CREATE STREAM.

    Raises:
        PlanError: an argument is unknown or missing.
        SourceError: when the query runs, there is no such connector, or it cannot be reached.

    >>> import streamveil as sv
    >>> clicks = sv.source("kafka", name="clicks", servers="broker:9092", topic="clicks")
    """
    return Stream(SourceSpec(name=name, kind=kind, options=options, event_time=event_time))


@fitting('tumble("1 month", tz="Europe/Berlin")')
def tumble(
    size: Duration,
    *,
    tz: str = "",
    origin: Instant | None = None,
    offset: Duration | None = None,
    week_start: str | None = None,
) -> Window:
    """Windows side by side, of one length: "1 day", "1 week", "1 month", "1 quarter".

    By the clocks of a time zone, which is that of the whole query. They begin at midnight of
    1970-01-01, weeks on Mondays or on `week_start`; or at `origin`, a time on those clocks; or
    later by `offset`.

    Args:
        size: the length, "15 min", "1 day", "1 month", or a timedelta.
        tz: a time zone such as "Europe/Berlin"; UTC if left out.
        origin: a time on the zone's clocks at which a window begins.
        offset: how much later windows begin than they would.
        week_start: the weekday on which weeks begin, such as "sunday"; Monday if left out.

    Raises:
        PlanError: a length cannot be read, or lengths do not go together.

    >>> import streamveil as sv
    >>> sv.tumble("1 month", tz="Europe/Berlin").size_months
    1
    """
    return window_of(
        "tumble", length_of(size, "size"), zone=tz, origin=origin, offset=offset,
        week_start=week_start,
    )  # fmt: skip


@fitting('hop("1 day", "1 hour")')
def hop(size: Duration, slide: Duration, *, tz: str = "", origin: Instant | None = None) -> Window:
    """Overlapping windows: one of `size` starts every `slide`. A row counts in each that holds it.

    Args:
        size: the length, "15 min", "1 day", "1 month", or a timedelta.
        slide: the distance between starts, likewise.
        tz: a time zone such as "Europe/Berlin"; UTC if left out.
        origin: a time on the zone's clocks at which a window begins.

    Raises:
        PlanError: a length cannot be read, or lengths do not go together.

    >>> import streamveil as sv
    >>> sv.hop("1 day", "1 hour").slide_us // 1_000_000  # seconds
    3600
    """
    lengths = length_of(size, "size"), length_of(slide, "slide")
    return window_of("hop", *lengths, zone=tz, origin=origin)


@fitting('cumulate("1 day", "1 hour")')
def cumulate(
    size: Duration, step: Duration, *, tz: str = "", origin: Instant | None = None
) -> Window:
    """Windows that share a start and grow by `step` up to `size`.

    Args:
        size: the length of the last, "15 min", "1 day", "1 month", or a timedelta.
        step: the length of the first, and by how much each is longer.
        tz: a time zone such as "Europe/Berlin"; UTC if left out.
        origin: a time on the zone's clocks at which a window begins.

    Raises:
        PlanError: a length cannot be read, or lengths do not go together.

    >>> import streamveil as sv
    >>> sv.cumulate("1 day", "6 hours").kind
    'cumulate'
    """
    lengths = length_of(size, "size"), length_of(step, "step")
    return window_of("cumulate", *lengths, zone=tz, origin=origin)


@fitting("discover(min_units=20)")
def discover(min_units: int = 1) -> Keys:
    """Groups appear by a private threshold, well above `min_units` privacy units.

    Args:
        min_units: the number of units, at least 1, of which a group must certainly have more.

    Raises:
        PlanError: an argument is unknown.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"]}).protect("user_id")
    >>> query = visits.group_by("url", keys=sv.discover(min_units=20))
    """
    return Keys(min_units=min_units)


@fitting('public(["a", "b"])')
def public(groups: Iterable[Any] | str) -> Keys:
    """Groups that are public anyway: values (tuples for several columns), or a file of them.

    Each is shown in every release, also where nobody is in it. Never take them from private rows.

    Args:
        groups: the values, or the path of a file of them.

    Raises:
        PlanError: this is no list, or a group is not a value or a tuple of values.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"]}).protect("user_id")
    >>> query = visits.group_by("url", keys=sv.public(["/a", "/b", "/c"]))
    """
    if isinstance(groups, str):
        return Keys(public=groups)
    if not isinstance(groups, Iterable) or isinstance(groups, bytes | Mapping):
        raise PlanError(
            "public takes a list of groups, or the path of a file of them.\n"
            "  to fix  public(['a', 'b']), for two columns public([('a', 1), ('b', 1)])"
        )
    found = tuple(tuple(g) if isinstance(g, tuple | list) else (g,) for g in groups)
    for value in itertools.chain.from_iterable(found):
        if not isinstance(value, Hashable):
            raise PlanError(
                f"a public group is a value, or a tuple of one for each column, not a "
                f"{type(value).__name__}.\n  to fix  public([('a', 1), ('b', 1)])"
            )
    return Keys(public=found)


@fitting("rows(1000)")
def rows(n: int) -> RowCount:
    """A release every n source rows. It says that row positions are public.

    Args:
        n: rows between releases, at least 1.

    Raises:
        PlanError: n is not a whole number of at least 1.

    >>> import streamveil as sv
    >>> sv.rows(1000)
    RowCount(n=1000)
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise PlanError("rows takes a whole number of at least 1")
    return RowCount(n)


@fitting('count(), or count("column")')
def count(column: str | None = None, *, per_unit: tuple[float, float] | None = None) -> Measure:
    """Rows, or rows where a column is not null.

    Args:
        column: counts rows where this column or per-row expression is not null; all if left out.
        per_unit: the most rows of one unit that count in a group, as (0, k).

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.count())
    """
    return Measure("count", column, per_unit, per_group=per_unit is not None)


@fitting('count_if("ms > 100")')
def count_if(condition: str) -> Measure:
    """Rows for which a per-row SQL condition holds.

    Args:
        condition: SQL over the columns of one row.

    Raises:
        PlanError: the condition is not text.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.count_if('ms > 100'))
    """
    if not isinstance(condition, str):
        raise PlanError("count_if takes a condition as SQL text, such as count_if('ms > 100')")
    return Measure("count", f"IF({condition}, TRUE, NULL)")


@fitting("count_units()")
def count_units() -> Measure:
    """How many different privacy units.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.count_units())
    """
    return Measure("count_units")


@fitting('count_distinct("url")')
def count_distinct(column: str) -> Measure:
    """How many different values; of other columns than the unit with twice the noise.

    Of a changing table: the values that its records have now, with `max_changes` in `release`.

    Args:
        column: a column or a per-row SQL expression.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.count_distinct("url"))
    """
    return Measure("count_distinct", column)


@fitting('sum("ms", bounds=(0, 60_000))')
def sum(  # reads as streamveil.sum
    column: str, *, bounds: Ends | None = None, quantum: float | None = None
) -> Measure:
    """The sum of values clamped to the bounds.

    Args:
        column: a column or a per-row SQL expression.
        bounds: least and largest value, in the unit of the column; values beyond count as these.
            Left out, a look at the rows that the budget pays for chooses them, where all rows are
            there when the job begins.
        quantum: the step to which values are rounded, in the unit of the column; chosen
            from the bounds if left out.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.sum("ms / 1000.0", bounds=(0, 60)))
    """
    return Measure("sum", column, bounds, quantum)


@fitting('avg("ms", bounds=(0, 60_000))')
def avg(column: str, *, bounds: Ends | None = None, quantum: float | None = None) -> Measure:
    """The mean of values clamped to the bounds.

    Args:
        column: a column or a per-row SQL expression.
        bounds: least and largest value, in the unit of the column, as for `sum`.
        quantum: the step to which values are rounded, in the unit of the column, as for `sum`.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.avg("ms", bounds=(0, 60_000)))
    """
    return Measure("avg", column, bounds, quantum)


@fitting('variance("ms", bounds=(0, 60_000))')
def variance(column: str, *, bounds: Ends | None = None, quantum: float | None = None) -> Measure:
    """The sample variance of values clamped to the bounds, in the column's unit squared.

    Args:
        column: a column or a per-row SQL expression.
        bounds: least and largest value, in the unit of the column, as for `sum`.
        quantum: the step to which values are rounded, in the unit of the column, as for `sum`.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.variance("ms", bounds=(0, 60_000)))
    """
    return Measure("variance", column, bounds, quantum)


@fitting('stddev("ms", bounds=(0, 60_000))')
def stddev(column: str, *, bounds: Ends | None = None, quantum: float | None = None) -> Measure:
    """The standard deviation of values clamped to the bounds, in the column's unit.

    Args:
        column: a column or a per-row SQL expression.
        bounds: least and largest value, in the unit of the column, as for `sum`.
        quantum: the step to which values are rounded, in the unit of the column, as for `sum`.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.stddev("ms", bounds=(0, 60_000)))
    """
    return Measure("stddev", column, bounds, quantum)


@fitting('quantile("ms", 0.5, bounds=(0, 60_000))')
def quantile(column: str, q: float, *, bounds: Ends | None = None) -> Measure:
    """The value below which a share q of the values lies, in the column's unit.

    Args:
        column: a column or a per-row SQL expression.
        q: the share, between 0 and 1.
        bounds: least and largest value, in the unit of the column, as for `sum`.

    Raises:
        PlanError: q is not a number.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.quantile("ms", 0.9, bounds=(0, 60_000)))
    """
    if isinstance(q, bool) or not isinstance(q, int | float):
        raise PlanError(f"q of quantile is a share between 0 and 1, not {type(q).__name__}")
    return Measure("quantile", column, bounds, options={"q": float(q)})


@fitting('median("ms", bounds=(0, 60_000))')
def median(column: str, *, bounds: Ends | None = None) -> Measure:
    """The value in the middle, in the column's unit: `quantile` at 0.5.

    Args:
        column: a column or a per-row SQL expression.
        bounds: least and largest value, in the unit of the column, as for `sum`.

    Raises:
        PlanError: an argument is unknown or missing.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.median("ms", bounds=(0, 60_000)))
    """
    return quantile(column, 0.5, bounds=bounds)


@fitting('heavy_hitters("url", k=100)')
def heavy_hitters(column: str, k: int = 100, **sizes: int) -> Measure:
    """The k most frequent values, in bounded memory; stands alone in its query.

    Args:
        column: a column or a per-row SQL expression.
        k: how many, at least 1.
        **sizes: `memory` (bytes of one window), `bits` (of integer values) or `text_length` (bytes
            of texts that count, at most 1,024; fewer mean less noise).

    Raises:
        PlanError: a size is unknown or not a whole number of at least 1.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.heavy_hitters("url", k=10))
    """
    return Measure("heavy_hitters", column, options=sketch_sizes({"k": k, **sizes}))


@fitting('approx_frequency("url")')
def approx_frequency(column: str, **sizes: int) -> Measure:
    """How often given public values occur, in bounded memory; stands alone in its query.

    Args:
        column: a column or a per-row SQL expression.
        **sizes: `memory` (bytes of one window), `bits` (of integer values) or `text_length` (bytes
            of texts that count, at most 1,024; fewer mean less noise).

    Raises:
        PlanError: a size is unknown or not a whole number of at least 1.

    >>> import streamveil as sv
    >>> visits = sv.memory({"user_id": [1, 2], "url": ["/a", "/b"], "ms": [120, 80]})
    >>> query = visits.protect("user_id").agg(answer=sv.approx_frequency("url", memory=1 << 20))
    """
    return Measure("approx_frequency", column, options=sketch_sizes(sizes))


def sketch_sizes(sizes: dict[str, int]) -> dict[str, int]:
    """Checked sizes of a sketch, in the order that makes equal plans equal."""
    known = ("k", "memory", "bits", "text_length")
    for name, value in sizes.items():
        if name not in known:
            raise PlanError(f"unknown size '{name}'{nearest(name, known)}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise PlanError(f"{name} must be a whole number of at least 1")
    return dict(sizes)


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
    """The only query of a SQL script; with frames by name, its answers at once.

    Args:
        text: the script; docs/sql.md lists what it may say.
        tables: streams or tables in memory by their names in the query; gives a `Query`. Or a
            query, over whose releases the text is then a SELECT, at no cost.
        state: a directory; with it the same call gives the same answers again, at no further cost.
            Without it every call draws new noise and spends the budget once more.
        ledger: a file with a limit, on which the budget is spent.
        **frames: tables by their names in the query, which then runs and gives `Answers`.

    Raises:
        PlanError: the script cannot be run or must not be: the message says why and the way out.
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
    from streamveil.sql.sql import parse_script  # a query in Python needs no grammar of SELECT

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
    if isinstance(plan, Plan):
        return Query(plan)
    from streamveil.api.joint import JointQuery  # loaded where there are several answers

    return JointQuery(plan)


def over_answers(text: str, asked: Mapping[str, Query], number: int) -> Query | JointQuery:
    """A query, or several, whose releases a SELECT without a privacy clause goes over."""
    from streamveil.sql.post import read_over

    if number > len(asked):
        raise PlanError(
            "a SELECT over private answers reads nothing but these.\n"
            "  to fix  join a table with the rows that are asked for, in the private SELECT"
        )
    plans = {name: query.plan for name, query in asked.items()}
    steps = read_over(text, plans)
    if len(plans) > 1:
        named = tuple(replace(plan, name=name, sinks=()) for name, plan in plans.items())
        from streamveil.plan.joint import JointPlan

        return query_of(JointPlan(name="_".join(plans), parts=named, post=steps))
    [plan] = plans.values()
    return Query(replace(plan, post=(*plan.post, *steps)))
