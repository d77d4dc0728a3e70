"""From the pieces a query names to its plan. Both spellings end here.

The options of a query arrive by the names of `options.OPTIONS`, in SQL and in Python. Defaults of
the plan that depend on another option are decided here. Defaults that also depend on the mechanism
are decided by `compiler.group_by`, with their reasons (`GroupBy.defaults`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from streamveil.batch import with_fields
from streamveil.calendars import DAY, Cells, require_zone
from streamveil.core.accounting import Budget
from streamveil.errors import PlanError
from streamveil.expressions import compile_expression, conjunction
from streamveil.expressions.dialect import shown
from streamveil.plan import (
    Aggregate,
    Bounding,
    KeyColumn,
    KeySet,
    Plan,
    Post,
    SinkSpec,
    SourceSpec,
    TableSource,
    Window,
    options,
)
from streamveil.plan.check import MOST_BOUND
from streamveil.plan.look import is_open, whole_range
from streamveil.sql.options import NO_UNIT, own_values
from streamveil.sql.parts import Length, Ticks, finish, origin_us, quoted

PUBLIC_FILES = (".parquet", ".csv")
WHOLE, ONE_SHOT = Window(), Ticks()


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The parts of a query other than its options."""

    source: SourceSpec
    aggregates: tuple[Aggregate, ...]
    where: tuple[str, ...] = ()
    keys: tuple[KeyColumn, ...] = ()
    window: Window = WHOLE
    ticks: Ticks = ONE_SHOT
    sinks: tuple[SinkSpec, ...] = ()
    per_group: frozenset[str] = frozenset()  # aggregates whose bounds are per unit and group
    sets: tuple[tuple[str, ...], ...] = ()  # GROUPING SETS of a changing table
    copies: int = 1  # of a row, one for each of several sets of groups
    named: Mapping[str, str] = field(default_factory=dict)  # options that name columns, resolved
    post: tuple[Post, ...] = ()  # steps over released rows


def assemble(draft: Draft, values: Mapping[str, Any]) -> Plan:
    """The checked plan of a draft and its option values."""
    values = own_values(values)
    unit = options.PRIVACY_UNIT.of(values)
    if unit is None and isinstance(draft.source, TableSource):
        unit = draft.source.record or ""  # '': a row of a table that only grows
    if unit is None:
        raise PlanError(NO_UNIT)
    draft, values = _group_bounds(draft, values)
    late, zone = options.LATENESS.of(values) or 0, _zone(draft.window, values)
    window = replace(draft.window, lateness_us=late, zone=zone)
    return finish(
        Plan(
            name=options.NAME.of(values) or (draft.sinks[0].name if draft.sinks else "query"),
            source=_with_limits(draft.source, values),
            unit=unit,
            **_periods(window, options.UNIT_PERIOD.of(values)),
            where=conjunction(draft.where) if draft.where else None,
            keys=draft.keys,
            key_set=_key_set(draft, values),
            aggregates=_within(draft, values),
            window=window,
            clock=replace(_ticks(draft, values), zone=window.zone).clock(),
            bounding=_bounding(draft, values),
            budget=_budget(values),
            preset=options.PRESET.of(values) or "default",
            counter=options.COUNTER.of(values) or "auto",
            sinks=draft.sinks,
            options=_options(values),
            sets=draft.sets,
            post=draft.post,
        )
    )


def _zone(window: Window, values: Mapping[str, Any]) -> str:
    """The one time zone of a query; '' for UTC, which needs no rules."""
    given = {zone for zone in (window.zone, options.TIME_ZONE.of(values)) if zone}
    if len(given) > 1:
        raise PlanError(f"a query has one time zone, not {' and '.join(sorted(given))}")
    zone = require_zone(given.pop()) if given else ""
    return "" if zone == "UTC" else zone


def _periods(window: Window, length: Length | int | None) -> dict[str, Any]:
    """The unit-periods of a length; they begin where windows do, so that no window spans two.

    Weeks that consist of whole windows begin on Mondays: so all queries of a ledger that protect
    weeks protect the same ones.
    """
    if length is None:
        return {}
    if isinstance(length, int):
        length = Length(length)
    within = window.origin_us % DAY
    if length.months:
        origin = window.origin_us if window.size_months else within
        return {"period_months": length.months, "period_origin_us": origin}
    origin = origin_us(length)
    weeks = Cells(length_us=length.us, origin_us=origin, zone=window.zone)
    if window.kind != "whole" and not (length.weeks and window.size.refines(weeks)):
        origin = within if window.size_months else window.origin_us
    return {"period_us": length.us, "period_origin_us": origin % length.us}


def _budget(values: Mapping[str, Any]) -> Budget:
    given = {name: values[name] for name in options.BUDGETS if values.get(name) is not None}
    if not given.keys() - {options.DELTA.name}:
        raise PlanError(
            "how much may a unit lose? epsilon has no default.\n"
            "  to fix  epsilon = 1, delta = 1e-9 (or rho, or mu)"
        )
    if _is_zero(options.DELTA.of(given)):
        given.pop(options.DELTA.name)
    return Budget(**given)


def _is_zero(value: Any) -> bool:
    try:
        return value is not None and Fraction(str(value)) == 0
    except ValueError:
        return False


def _ticks(draft: Draft, values: Mapping[str, Any]) -> Ticks:
    return replace(
        draft.ticks,
        kind=options.CLOCK.of(values),
        start=options.START.of(values),
        end=options.END.of(values),
        steps=options.STEPS.of(values),
        arrival=options.ARRIVAL.of(values),
    )


def _with_limits(source: SourceSpec, values: Mapping[str, Any]) -> SourceSpec:
    """The source, with limits on the rows that its joins keep on live data."""
    rows, within_us = options.JOIN_ROWS.of(values), options.JOIN_WITHIN.of(values)
    if rows is None and within_us is None:
        return source
    from streamveil.plan.own_rows import with_limits  # loaded where live data are joined

    return with_limits(source, rows, within_us)


def _group_bounds(draft: Draft, values: dict[str, Any]) -> tuple[Draft, dict[str, Any]]:
    """Bounds on a unit's total in a group, expressed as bounds that the pipeline has.

    Proof: a COUNT(*) clamped to (0, k) per unit and group is a COUNT of at most k rows per group,
        as every row counts; so is any COUNT if no more rows are admitted. With at most one row per
        group, the total of a unit in a group is that row's value.
    """
    if not draft.per_group:
        return draft, values
    bounded = [agg for agg in draft.aggregates if agg.name in draft.per_group]
    ends = [end for agg in bounded if agg.function == "count" for end in (agg.low, agg.high)]
    if any(end is None or end % 1 for end in ends):  # NaN too
        raise PlanError(
            "contribution_bounds_per_group of COUNT are whole numbers of rows of a unit"
        )
    counts = {agg.high for agg in bounded if agg.function == "count"}
    only_counts = all(agg.function == "count" and agg.low == 0 for agg in bounded)
    each = options.MAX_PER_GROUP.of(values)
    every_row = all(agg.expression is None for agg in bounded)
    if only_counts and len(counts) == 1 and (every_row or each is not None):
        most = next(iter(counts)) or 0
        if not 1 <= most <= MOST_BOUND or most != int(most) or each not in (None, int(most)):
            raise PlanError(
                "contribution_bounds_per_group of COUNT is (0, k) with a whole number k >= 1, "
                "and max_rows_per_group, if given, is the same k"
            )
        values[options.MAX_PER_GROUP.name] = int(most)
        return _without_count_bounds(draft), values
    if each == 1:
        return _without_count_bounds(draft), values
    for agg in draft.aggregates:
        if agg.name not in draft.per_group and agg.function != "count_units":
            raise PlanError(
                f"'{agg.name}' has no contribution_bounds_per_group, and bounds per row and per "
                "group do not mix in one query.\n"
                "  to fix  give it bounds per group (COUNT: (0, k)), or ask in two queries"
            )
    return draft, {**values, "combine": True}


def _within(draft: Draft, values: Mapping[str, Any]) -> tuple[Aggregate, ...]:
    """The aggregates, bounded by the known ends of values without bounds, such as IF(x, 1, 0)."""
    if isinstance(draft.source, TableSource) or values.get("combine"):
        return draft.aggregates
    return tuple(
        replace(one, low=ends[0], high=ends[1])
        if is_open(one) and (ends := whole_range(one)) is not None
        else one
        for one in draft.aggregates
    )


def _without_count_bounds(draft: Draft) -> Draft:
    kept = tuple(
        replace(agg, low=None, high=None) if agg.function == "count" else agg
        for agg in draft.aggregates
    )
    return replace(draft, aggregates=kept)


def _bounding(draft: Draft, values: Mapping[str, Any]) -> Bounding:
    rows, groups = options.MAX_ROWS.of(values), options.MAX_GROUPS.of(values)
    each, squares = options.MAX_PER_GROUP.of(values), options.MAX_SQUARED.of(values)
    combine = bool(values.get("combine"))
    if rows is not None and groups is not None:
        raise PlanError("give max_rows_contributed or max_groups_contributed, not both")
    if groups is not None and groups < 1:
        raise PlanError(f"max_groups_contributed must be at least 1, not {groups}")
    if rows is None and squares is None and groups is None and combine:
        groups = 1  # GoogleSQL's default; without `combine` a forecast chooses
    if combine and each not in (None, 1):
        raise PlanError(
            "with contribution_bounds_per_group the rows of a unit in a group are one contribution;"
            " leave out max_rows_per_group"
        )
    if groups is not None:
        each = each or 1
        rows = groups * each
        counted = any(agg.function == "count_units" for agg in draft.aggregates)
        if not (counted and each > 1 and draft.window.side_by_side):
            groups = None  # it would cut rows without reducing any noise
    elif combine:
        each = 1
    if draft.copies > 1:  # bounds are given for one set, in which each row counts once
        each = each or rows
        rows = None if rows is None else rows * draft.copies
        groups = None if groups is None else groups * draft.copies
        squares = None if squares is None else squares * draft.copies
    return Bounding(
        max_rows=rows,
        max_rows_per_group=None if each == rows else each,
        quadratic=squares,
        combine=combine,
        max_groups=groups,
    )


def all_groups(draft: Draft, values: Mapping[str, Any]) -> int:
    """max_groups_contributed = NULL: the number of groups, if it is public."""
    if draft.window.kind == "whole" and not draft.keys:
        return 1
    public = _key_set(draft, values).public
    if draft.window.kind != "whole" or not public:
        raise PlanError(
            "max_groups_contributed = NULL bounds nothing here.\n"
            "  why     a unit that is in every group moves every number, and how many groups there"
            " are is known for public groups without windows only\n"
            "  to fix  a number such as max_groups_contributed = 4, or public_groups = [...]"
        )
    return len(public)


def _key_set(draft: Draft, values: Mapping[str, Any]) -> KeySet:
    public = options.PUBLIC_GROUPS.of(values)
    strategy = options.STRATEGY.of(values)
    if strategy == "PUBLIC_GROUPS" and public is None:
        raise PlanError(
            "group_selection_strategy = PUBLIC_GROUPS needs the list.\n"
            "  to fix  public_groups = ['a', 'b'], or the path of a public file of groups"
        )
    if public is not None and draft.copies > 1:
        raise PlanError(
            "public_groups name groups of one set, and here are several.\n"
            "  to fix  leave public_groups out: groups are found, also those of totals"
        )
    if isinstance(public, str):
        rows = public_file(public, f"the file of public groups '{shown(public)}'")
        public = groups_of(rows, [key.name for key in draft.keys])
    if public is not None:  # decimals are read as the nearest floats, from columns too
        public = tuple(
            tuple(float(v) if isinstance(v, Decimal) else v for v in group) for group in public
        )
    least = options.MIN_UNITS.of(values)
    return KeySet(min_units=1 if least is None else least, public=public)


def public_file(path: object, what: str, **options: Any) -> pa.Table:
    """All rows of a public file. `what`: its name in messages. `options`: see `declared_csv`."""
    kind = Path(path).suffix.lower() if isinstance(path, str) else None
    if kind not in PUBLIC_FILES:
        raise PlanError(f"{what} must be one .parquet or .csv file")
    try:
        if kind == ".parquet":
            read = pa.parquet.read_table(str(path), coerce_int96_timestamp_unit="us")
            return with_fields(read)
        return declared_csv(str(path), **options)
    except (OSError, pa.ArrowInvalid):
        raise PlanError(f"{what} cannot be read") from None


def declared_csv(
    path: str,
    columns: Mapping[str, str] | None = None,
    delimiter: str = ",",
    *,
    allow_quoted_newlines: bool = False,
) -> pa.Table:
    """Rows of CSV; declared columns have their declared types, and empty fields there are null."""
    declared, newlines = columns or {}, allow_quoted_newlines
    table = pa.csv.read_csv(
        path,
        parse_options=pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=newlines),
        convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(declared, pa.string())),
    )  # fmt: skip
    for name in (one for one in table.column_names if one in declared):
        text = f"SAFE_CAST(NULLIF({quoted(name)}, '') AS {declared[name]})"
        cells = compile_expression(text, table.schema)(table)
        table = table.set_column(table.column_names.index(name), name, cells)
    return table


def groups_of(table: pa.Table, names: list[str]) -> tuple[tuple[Any, ...], ...]:
    """Public groups from a public table: its columns of those names, else all if as many."""
    if names and set(names) <= set(table.column_names):
        table = table.select(names)
    elif table.num_columns != max(1, len(names)):  # a sketch has no names, and one column
        wanted = f"the column(s) {', '.join(names)}" if names else "one column, and no more"
        raise PlanError(f"the file of public groups needs {wanted}")
    rows = dict.fromkeys(tuple(row.values()) for row in table.to_pylist())
    return tuple(rows)


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values for Plan.options; a value equal to its default is left out."""
    kept = dict(options.kept(values))
    if options.STEPS.of(values) == "unbounded":
        kept["horizon"] = "unbounded"
    return kept
