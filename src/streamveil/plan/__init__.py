"""Plans of queries: one frozen value that every spelling builds and every engine runs.

A plan knows schemas and numbers, never rows. Its `fingerprint` names the query in durable state: a
state directory refuses a plan whose fingerprint differs from the one it was created with. Steps
over the rows of a release (filters, order, limits, computed columns) cost nothing, are not part of
the fingerprint, and may change while a job runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from pathlib import PurePath
from typing import Any, ClassVar, Literal
from uuid import UUID

import numpy as np

from streamveil.calendars import Cells, clock_of, digest, follows_clocks
from streamveil.core.accounting import Budget
from streamveil.errors import require_file_name, require_flag, require_outer, require_text
from streamveil.kinds import AGGREGATES, SOURCES, Function, SourceKind
from streamveil.types import own

RESERVED = ("window_start", "window_end", "trigger", "opened", "noise_weight")
KEPT = RESERVED[:3]  # columns of every release, whatever is selected


@dataclass(frozen=True, kw_only=True)
class PostColumn:
    """A column that is shown: a name and an expression over columns of the release."""

    name: str
    expression: str

    def __post_init__(self) -> None:
        require_outer([self.name])


@dataclass(frozen=True, kw_only=True)
class SortKey:
    """One key by which rows are sorted. Rows that are equal in all keys stay in their order."""

    expression: str
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True, kw_only=True)
class PostShift:
    """A released number some rows earlier in the same release, with its interval: LAG, LEAD.

    For frames (AVG, SUM) it is 0 if there is no such row; `here_column` then says if there is one.
    """

    name: str
    column: str
    rows: int  # how many before; below 0: after
    by: tuple[str, ...] = ()
    order: tuple[SortKey, ...] = ()
    filled: bool = False

    @property
    def here_column(self) -> str:
        """The name of the column that is 1 if the row exists, else 0."""
        return self.name + "_here"

    @property
    def row_column(self) -> str:
        """The name of the column that holds the row of the release it comes from."""
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
    """A join of the rows of two SELECTs; columns that are not named are dropped."""

    left: tuple[Post, ...]
    right: tuple[Post, ...]
    how: Literal["inner", "left", "right", "full"]
    on: tuple[tuple[str, str], ...]  # columns of groups that must match; none: all rows match
    left_names: tuple[tuple[str, str], ...]  # a column, and its name afterwards
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
    shifts: tuple[PostShift, ...] = ()  # numbers of other rows that columns are computed from
    totals: tuple[PostTotal, ...] = ()
    places: tuple[PostPlace, ...] = ()
    one_for: tuple[str, ...] | None = None  # GROUP BY: only the first row of each group stays
    branches: tuple[tuple[Post, ...], ...] = ()  # UNION ALL of their results, and nothing else
    part: int | None = None  # the private answer of this number, and nothing else
    join: PostJoin | None = None  # of the results of two pipelines, and nothing else

    @property
    def words(self) -> str:
        """A description for people."""
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


UNKNOWN = SourceKind("")
LATER = {"unsaid": True}  # a field unknown to older states: left out while it has its default
ClockKind = Literal["event", "rows", "wall", "once"]
WindowKind = Literal["whole", "tumble", "hop", "cumulate"]


def own_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """A connector's options as a plan keeps them: numbers and texts of Python's classes, no paths.

    >>> own_options({"path": [PurePath("b.csv")], "follow": True})
    {'path': ['b.csv'], 'follow': True}
    """
    return {
        name: [*map(_plain, value)] if isinstance(value, list | tuple) else _plain(value)
        for name, value in given.items()
    }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else own(value)


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """Where rows come from. `kind` names a file in `connectors`; options are its own."""

    name: str  # in the ledger and in messages
    kind: str  # 'files', 'memory', 'kafka', ...
    options: dict[str, Any] = field(default_factory=dict, repr=False)  # may hold a table of rows
    event_time: str | None = None  # column; required by windows and by the 'event' clock
    public: bool = False  # its rows are declared public: it may name groups
    combines: ClassVar[bool] = False  # whether it has steps over each unit's rows (`own_rows`)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", own_options(self.options))
        require_text(name=self.name)
        require_flag(public=self.public)

    @property
    def omitted(self) -> tuple[str, ...]:
        """The rows that its steps may leave out of every number, in words. Public."""
        return ()

    @property
    def relations(self) -> Sequence[SourceSpec]:
        """This source, and all others that its steps read."""
        return [self]

    @property
    def known(self) -> SourceKind:
        """The facts of its kind; empty ones if the kind is unknown."""
        return SOURCES.get(self.kind, UNKNOWN)

    @property
    def is_endless(self) -> bool:
        """Whether more rows may always come."""
        return self.options.get("follow", self.known.follows) is True

    @property
    def has_one_row_each(self) -> bool:
        """Whether its steps leave at most one row of every unit."""
        return False


Changelog = Literal["insert", "insert-delete"]


@dataclass(frozen=True, kw_only=True)
class TableSource(SourceSpec):
    """Change data: its rows insert and delete the records of a table."""

    changelog: Changelog
    domains: tuple[tuple[str, tuple[Any, ...]], ...]  # columns with their public values, in order
    operation: str | None = None  # column that says what a row does; None: every row inserts
    record: str | None = None  # column that names a record; required where rows delete
    lives: int = 1  # how often one id may be inserted; an update takes a life

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read in addition to those of expressions."""
        named = (self.operation, self.record)
        return (*(name for name in named if name), *(name for name, _ in self.domains))


@dataclass(frozen=True, kw_only=True)
class Clock:
    """When triggers happen. All of it is public and fixed before any row is read.

    event: a replay of bounded data. A row arrives at its own arrival column (event time when none
        is named); step i covers arrivals in [start + (i-1) every, start + i every). A function of
        each row alone, so no row moves another's step. Rows outside [start, end) are counted.
    rows: step i is the i-th run of `every` source rows. Row positions are public (neighbours blank
        a unit's rows, they do not close the gap).
    wall: step i ends at wall-clock time start + i every.
    once: one step that reads everything: a one-shot query.
    """

    kind: ClockKind
    every: int = 0  # microseconds ('event', 'wall') or rows ('rows')
    start_us: int | None = None  # microseconds since 1970 UTC
    end_us: int | None = None
    steps: int | None = None  # number of steps covered by the guarantee; None: unknown horizon
    arrival: str | None = None  # column; 'event' only
    months: int = field(default=0, metadata=LATER)  # calendar months, instead of microseconds
    zone: str = field(default="", metadata=LATER)  # time zone of steps of days or longer

    @property
    def timed(self) -> bool:
        """Whether steps have a time."""
        return self.kind in ("event", "wall") and self.start_us is not None

    @property
    def ticks(self) -> Cells:
        """The steps of a clock with a time: step i is cell i - 1."""
        zone = self.zone if self.months or follows_clocks(self.every) else ""
        origin = clock_of(self.start_us or 0, zone)
        return Cells(length_us=self.every, months=self.months, origin_us=origin, zone=zone)

    def steps_until(self, end_us: int) -> int:
        """How many steps there are from the start to a time; the last may be shorter."""
        return self.ticks.number(end_us - 1) + 1

    def due_us(self, step: int) -> int:
        """When a step ends."""
        return self.ticks.start(step)

    def due(self, now: float) -> int:
        """How many steps of the job have ended at a time (seconds since 1970).

        >>> Clock(kind="wall", every=3_600_000_000, start_us=0, steps=24).due(5.5 * 3600)
        5
        """
        ended = max(0, self.ticks.number(int(now * 1e6)))
        return ended if self.steps is None else min(ended, self.steps)

    def is_over(self, closed: int) -> bool:
        """Whether no step is left after `closed` closed ones.

        >>> Clock(kind="once").is_over(1), Clock(kind="rows", every=10).is_over(1)
        (True, False)
        """
        return closed == (1 if self.kind == "once" else self.steps)


@dataclass(frozen=True, kw_only=True)
class Window:
    """Event time to windows. A row in several overlapping windows counts in each of them."""

    kind: WindowKind = "whole"
    size_us: int = 0
    slide_us: int = 0  # 'hop': distance of starts; 'cumulate': the step by which windows grow
    lateness_us: int = 0  # how long after its end a window still takes rows and triggers
    size_months: int = field(default=0, metadata=LATER)  # instead of size_us
    slide_months: int = field(default=0, metadata=LATER)
    zone: str = field(default="", metadata=LATER)  # time zone of long windows; '': UTC
    origin_us: int = field(default=0, metadata=LATER)  # clock time there at which windows begin

    @property
    def size(self) -> Cells:
        """Cells as long as a window. Windows consist of whole cells, unless they hop."""
        return Cells(
            length_us=self.size_us,
            months=self.size_months,
            origin_us=self.origin_us,
            zone=self.zone,
        )

    @property
    def side_by_side(self) -> bool:
        """Whether each row is in only one window."""
        return self.kind in ("whole", "tumble")

    @property
    def slide(self) -> Cells:
        """Cells as long as the distance between starts, or the step by which windows grow."""
        if not self.slide_us and not self.slide_months:
            return self.size
        return replace(self.size, length_us=self.slide_us, months=self.slide_months)


@dataclass(frozen=True, kw_only=True)
class KeyColumn:
    """One column of the group: a name and a per-row expression in SQL text."""

    name: str
    expression: str


@dataclass(frozen=True, kw_only=True)
class KeySet:
    """Which groups may be shown: discovered privately (public is None), or declared public."""

    min_units: int = 1  # 'discover': a group is shown only well above this many privacy units
    public: tuple[tuple[Any, ...], ...] | None = None  # one tuple of column values per group


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """One output column. `expression` is per-row SQL text, or None for COUNT(*)."""

    name: str
    function: Function
    expression: str | None = None
    low: float | None = None  # bounds per row (combined row, if the bounding combines); required
    high: float | None = None  # where a value is added
    quantum: float | None = None  # lattice step of the value; None: chosen from the bounds
    options: dict[str, Any] = field(default_factory=dict)  # e.g. {'q': 0.5}, {'k': 100}


@dataclass(frozen=True, kw_only=True)
class Bounding:
    """How much one privacy unit (in one scope) may contribute."""

    max_rows: int | None = None  # C: the first C rows pass
    max_rows_per_group: int | None = None  # c: of those, at most c per (window, key)
    quadratic: int | None = None  # B: instead of c, accept while sum over keys of (rows)^2 <= B
    combine: bool = False  # one-shot: a unit's rows in one group become one row before bounding
    max_groups: int | None = field(default=None, metadata=LATER)  # (window, key) pairs with rows


@dataclass(frozen=True, kw_only=True)
class SinkSpec:
    """Where releases go. `kind` names a file in `connectors`."""

    name: str
    kind: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", own_options(self.options))
        require_text(kind=self.kind, name=self.name)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A private continual group-by."""

    name: str  # the job; part of every noise address and ledger entry
    source: SourceSpec
    unit: str  # per-row expression of the privacy unit
    period_us: int | None = None  # unit-period scope; None: the whole stream, or months
    where: str | None = None  # per-row SQL predicate, before bounding
    keys: tuple[KeyColumn, ...] = ()
    key_set: KeySet = KeySet()
    aggregates: tuple[Aggregate, ...]
    window: Window = Window()
    clock: Clock
    bounding: Bounding
    budget: Budget
    preset: Literal["default", "dp-sqlp", "theorem"] = "default"
    counter: str = "auto"
    sinks: tuple[SinkSpec, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)  # post-processing and split, documented
    sets: tuple[tuple[str, ...], ...] = ()  # of a changing table: GROUPING SETS of its key columns
    period_months: int = 0  # instead of period_us
    period_origin_us: int = 0  # clock time at which periods begin
    post: tuple[Post, ...] = ()  # of every release; free, so no part of the fingerprint

    def __post_init__(self) -> None:
        require_file_name("query", self.name)

    @property
    def zone(self) -> str:
        """The time zone of windows, steps and periods; '': UTC."""
        return self.window.zone or self.clock.zone

    @property
    def periods(self) -> Cells | None:
        """The unit-periods; None: the whole stream is one."""
        if self.period_us is None and not self.period_months:
            return None
        return Cells(
            length_us=self.period_us or 0, months=self.period_months,
            origin_us=self.period_origin_us, zone=self.zone,
        )  # fmt: skip

    @property
    def asks_for_times(self) -> bool:
        """Whether windows or periods of units depend on the times of rows."""
        return self.window.kind != "whole" or self.periods is not None

    @property
    def counts_once(self) -> bool:
        """Whether only a unit's first row in each window can change an answer."""
        return self.has_one_row_each or (self.counts_units and not self.keys)

    @property
    def has_one_row_each(self) -> bool:
        """Whether every unit has at most one row, and there is only one window."""
        return self.source.has_one_row_each and self.window.kind == "whole"

    @property
    def counts_units(self) -> bool:
        """Whether only a unit's first row in each group of a window can change an answer."""
        counted = all(agg.function == "count_units" for agg in self.aggregates)
        return counted and self.window.side_by_side

    @cached_property
    def fingerprint(self) -> str:
        """A stable digest of everything that decides what is released.

        Sinks, post-processing and the place of the source do not. A reader itself checks that the
        files it read before are there: by names below that place, sizes and more.
        """
        later = ("sets", "period_months", "period_origin_us")  # older states do not know them
        unsaid = {"sinks", "post", *(name for name in later if not getattr(self, name))}
        content = {
            f.name: plain(getattr(self, f.name)) for f in fields(self) if f.name not in unsaid
        }
        unplaced(content["source"])
        if self.zone:  # other rules of the zone divide time differently
            content["rules"] = digest(self.zone)
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def unplaced(source: dict[str, Any]) -> None:
    """Removes the places of a source, and of all sources that it is joined with."""
    for place in SOURCES.get(source["kind"], UNKNOWN).places:
        source["options"].pop(place, None)
        source["name"] = ""  # which may come from the place
    for step in source.get("steps", ()):
        if step.get("other") is not None:
            unplaced(step["other"])


VALUES = (bytes, np.generic, time, timedelta, UUID)  # of groups: the JSON form tells them apart


def plain(value: Any) -> Any:
    """The JSON form of a part of a plan; for a table in memory only its columns and types.

    How Arrow addresses texts (`large_string`) is no part of a type: packages differ in it.

    >>> plain(np.int64(3)), plain(b"a"), plain(np.datetime64("2026-01-01"))
    (3, ['bytes', "b'a'"], ['datetime64', '2026-01-01'])
    """
    value = own(value)
    if isinstance(value, str | int | float | bool | None):
        return value
    if isinstance(value, Budget):
        return value.to_dict()
    if is_dataclass(value):
        said = {f.name: getattr(value, f.name) for f in fields(value)
                if not (f.metadata == LATER and getattr(value, f.name) == f.default)}  # fmt: skip
        return {name: plain(part) for name, part in said.items()}
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, date | Fraction | Decimal):
        return str(value)
    if isinstance(value, VALUES):
        return [type(value).__name__, str(value)]
    schema = getattr(value, "schema", None)
    columns = [] if schema is None else [(one.name, str(one.type)) for one in schema]
    described = [f"{name} {kind.replace('large_', '')}" for name, kind in columns]
    return [type(value).__name__, described]


def combined_plan(plan: Plan) -> Plan:
    """The plan over combined rows; any other plan unchanged."""
    if not plan.bounding.combine:
        return plan
    return replace(
        plan,
        unit=unit_column(plan),
        where=None,
        keys=tuple(
            KeyColumn(name=key.name, expression=f"key_{i}") for i, key in enumerate(plan.keys)
        ),
        aggregates=tuple(_planned(agg, i) for i, agg in enumerate(plan.aggregates)),
        source=replace(plan.source, event_time=None),
        bounding=replace(plan.bounding, combine=False),
    )


def unit_column(plan: Plan) -> str:
    """The name of the unit's column in combined rows: its own if the unit is a plain column."""
    taken = plan.unit.startswith(("key_", "value_"))
    return plan.unit if plan.unit.isidentifier() and not taken else "unit"


def _planned(agg: Aggregate, place: int) -> Aggregate:
    if agg.function == "count_units":
        return agg
    function: Any = AGGREGATES[agg.function].combines
    planned = replace(agg, function=function, expression=f"value_{place}")
    whole = agg.function == "count" and all(float(b or 0).is_integer() for b in (agg.low, agg.high))
    return replace(planned, quantum=1.0, options={"integer": True}) if whole else planned
