"""The row stage: per-row expressions to units, event times, keys and integer quanta.

Everything here is a function of one row; `prepare` checks that on one row of each micro-batch. A
row is counted by reason and left out if its unit or event time is missing, or if a value to be
added up is not a finite number. A null value is left out of its own aggregate only, as in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import Batch, RejectNotes
from streamveil.core.sensitivity import Lane, whole
from streamveil.dataflow import NOT_FINITE, count, repeated
from streamveil.dataflow.hashing import (
    as_integers,
    first_words,
    is_nameable,
    is_text,
    name_column,
    name_columns,
)
from streamveil.dataflow.kernels import MIX
from streamveil.errors import PlanError, SourceError, WitnessError
from streamveil.types import Array, Bool, Float64, Int64, UInt16, UInt64

WITNESSED = 1 << 10  # fingerprints that choose the row that is run again
RowFunction = Callable[[pa.Table], pa.Array]


@dataclass(frozen=True)
class RowProgram:
    """The expressions of a query, compiled for one schema."""

    unit: RowFunction
    event_us: RowFunction | None
    where: RowFunction | None
    keys: tuple[RowFunction, ...]
    values: tuple[RowFunction, ...]
    named: tuple[int, ...] = ()  # values that are compared, not added up
    added: tuple[int, ...] | None = None  # values that are added up, so must be finite; None: all


Bind = Callable[[pa.Schema], RowProgram]


@dataclass(repr=False)  # secret
class Prepared:
    """Rows that may count, in canonical order."""

    unit: UInt64[Array, " rows"]
    event_us: Int64[Array, " rows"]
    keys: list[pa.Array]
    name_key: bytes
    values: list[tuple[Float64[Array, " rows"], Bool[Array, " rows"]]]  # value, whether present
    reject_counts: dict[str, int] = field(default_factory=dict)  # reason -> rows left out
    cells: dict[int, UInt64[Array, "rows 2"]] = field(default_factory=dict)  # names of (key, value)
    room: UInt64[Array, " words"] | None = None  # for the names
    reject_notes: RejectNotes | None = None  # where rows are noted that the next stages leave out
    named: tuple[Prepared, slice] | None = None  # other rows whose names include these, and where

    @cached_property
    def names(self) -> UInt64[Array, "rows 2"]:
        """128-bit names of the keys."""
        if self.named is not None:
            whole, own = self.named
            return whole.names[own]
        return names_of(self.keys, len(self.unit), self.name_key, self.room)

    @cached_property
    def plain(self) -> Int64[Array, " rows"] | None:
        """The integer that each key is and that its name is made of; None for other keys.

        >>> unit, time = np.ones(2, np.uint64), np.zeros(2, np.int64)
        >>> Prepared(unit, time, [pa.array([3, 4])], b"", []).plain
        array([3, 4])
        """
        if len(self.keys) != 1 or self.keys[0].null_count or is_text(self.keys[0].type):
            return None
        return as_integers(self.keys[0])


def prepare(
    program: RowProgram,
    table: pa.Table,
    unit_key: bytes,
    name_key: bytes,
    into: UInt64[Array, " rows"] | None = None,
    reject_notes: RejectNotes | None = None,
) -> Prepared:
    """Runs the row stage on one micro-batch; `into`: room for the fingerprints of units.

    One row that counts, chosen by fingerprints, is run again without the others and must give the
    same result: an expression in which rows see one another stops the job (see `dataflow.witness`).

    Raises:
        WitnessError: The result of a row depends on other rows.
    """
    return _witnessed(program, table, unit_key, name_key, into, reject_notes)[0]


def _witnessed(
    program: RowProgram,
    table: pa.Table,
    unit_key: bytes,
    name_key: bytes,
    into: UInt64[Array, " rows"] | None,
    reject_notes: RejectNotes | None,
) -> tuple[Prepared, list[Bool[Array, " rows"]]]:
    """`prepare`, and the masks that chose the rows, one after the other."""
    prepared, masks = _prepare(program, table, unit_key, name_key, into, reject_notes)
    rows = len(prepared.unit)
    if rows and table.num_rows > 1:
        place = at = int(prepared.unit[:WITNESSED].sum()) % rows
        for mask in reversed(masks):
            at = int(np.flatnonzero(mask)[at])
        alone, _ = _prepare(program, table.slice(at, 1), unit_key, name_key)
        if len(alone.unit) != 1 or not _is_row(prepared, place, alone):
            raise WitnessError("what a row comes to depends on other rows")
    return prepared, masks


def prepare_batch(
    program: RowProgram,
    batch: Batch,
    unit_key: bytes,
    name_key: bytes,
    into: UInt64[Array, " rows"] | None = None,
) -> Prepared:
    """`prepare` of a micro-batch. The rows of a block are prepared once, and witnessed once.

    So one row of some thousands is run again, however small micro-batches are.
    """
    if batch.prepared is not None:
        prepared: Prepared = batch.prepared
        return prepared
    block = batch.block
    if block is None or batch.reject_notes is not None:
        return prepare(program, batch.rows, unit_key, name_key, into, batch.reject_notes)
    if block.made is None:
        block.made = _prepare_block(program, block.rows, unit_key, name_key)
    made: PreparedBlock = block.made
    return made.part(batch.start, batch.start + batch.rows.num_rows)


@dataclass(frozen=True, repr=False)  # secret
class PreparedBlock:
    """The rows of a block that may count; their places in the block, and those of the others."""

    whole: Prepared
    kept: Int64[Array, " kept"]
    rejected: list[tuple[str, Int64[Array, " some"]]]

    def part(self, start: int, end: int) -> Prepared:
        """The result of `prepare` for some consecutive rows of the block."""
        whole, (first, last) = self.whole, np.searchsorted(self.kept, (start, end)).tolist()
        own, counts = slice(first, last), dict[str, int]()
        for reason, rows in self.rejected:
            before, until = np.searchsorted(rows, (start, end)).tolist()
            count(counts, {reason: until - before})
        made = Prepared(
            whole.unit[own],
            whole.event_us[own],
            [key.slice(first, last - first) for key in whole.keys],
            whole.name_key,
            [(value[own], present[own]) for value, present in whole.values],
            counts,
            {place: names[own] for place, names in whole.cells.items()},
        )
        made.named = whole, own
        return made


def _prepare_block(
    program: RowProgram, table: pa.Table, unit_key: bytes, name_key: bytes
) -> PreparedBlock:
    notes = RejectNotes()
    whole, masks = _witnessed(program, table, unit_key, name_key, None, notes)
    kept = np.arange(table.num_rows)
    for mask in masks:
        kept = kept[mask]
    whole.reject_notes = None
    return PreparedBlock(whole, kept, notes.found)


def _is_row(whole: Prepared, place: int, alone: Prepared) -> bool:
    """Whether a row of a micro-batch is the same without the others, bit for bit."""
    arrays = [(whole.unit, alone.unit), (whole.event_us, alone.event_us)]
    for of, one in zip(whole.values, alone.values, strict=True):
        arrays += zip(of, one, strict=True)
    arrays += [(names, alone.cells[value]) for value, names in whole.cells.items()]
    keys = names_of([key.slice(place, 1) for key in whole.keys], 1, whole.name_key)
    same = (of[place].tobytes() == one[0].tobytes() for of, one in arrays)
    return all(same) and (keys == alone.names).all()


def _prepare(
    program: RowProgram,
    table: pa.Table,
    unit_key: bytes,
    name_key: bytes,
    into: UInt64[Array, " rows"] | None = None,
    reject_notes: RejectNotes | None = None,
) -> tuple[Prepared, list[Bool[Array, " rows"]]]:
    """The rows that may count, and the masks that chose them, in order."""
    reject_counts: dict[str, int] = {}
    masks = []
    if program.where is not None:
        passes = np.asarray(pc.fill_null(program.where(table), False))  # noqa: FBT003 (Arrow's way)
        table = table if passes.all() else table.filter(pa.array(passes))
        masks.append(passes)
        if reject_notes is not None:
            reject_notes.keep(passes)
    unit = program.unit(table)
    checks = [("null unit", _valid(unit))]
    event = None if program.event_us is None else program.event_us(table)
    if event is not None:
        checks.append(("null event time", _valid(event)))
    values = [value(table) for value in program.values]
    added = range(len(values)) if program.added is None else program.added
    checks += [(NOT_FINITE, _finite(values[place])) for place in added]
    good = _all_good(checks, table.num_rows, reject_counts, reject_notes)
    keys = [key(table) for key in program.keys]
    if good is not None:
        mask = pa.array(good)
        masks.append(good)
        unit, event = unit.filter(mask), None if event is None else event.filter(mask)
        keys, values = [k.filter(mask) for k in keys], [v.filter(mask) for v in values]
    for column in keys:
        _check(column.type, "a key column")
    n = len(unit)
    prepared = Prepared(
        fingerprints(unit, unit_key, None if into is None else into[:n]),
        repeated(np.int64(0), n)
        if event is None
        else np.asarray(event).astype(np.int64, copy=False),
        keys,
        name_key,
        [_split(value, place in added) for place, value in enumerate(values)],
        reject_counts,
        {place: _cells(keys, values[place], name_key) for place in program.named},
        reject_notes=reject_notes,
    )
    return prepared, masks


def _all_good(
    checks: list[tuple[str, Bool[Array, " rows"] | None]],
    rows: int,
    reject_counts: dict[str, int],
    reject_notes: RejectNotes | None,
) -> Bool[Array, " rows"] | None:
    """Which rows pass all checks, None where all do; others are counted by their first fault."""
    good = None
    for reason, fine in checks:
        if fine is None or fine.all():
            continue
        good = np.ones(rows, np.bool_) if good is None else good
        bad = good & ~fine
        count(reject_counts, {reason: int(bad.sum())})
        if reject_notes is not None and bad.any():
            reject_notes.add(reason, bad)
        good &= fine
    if reject_notes is not None and good is not None:
        reject_notes.keep(good)
    return good


def fingerprints(
    units: pa.Array, key: bytes, into: UInt64[Array, " rows"] | None = None
) -> UInt64[Array, " rows"]:
    """64-bit keyed fingerprints of privacy units; 0 is kept free."""
    _check(units.type, "the privacy unit")
    return first_words(units, key, into)


def names_of(
    keys: list[pa.Array], rows: int, key: bytes, into: UInt64[Array, " words"] | None = None
) -> UInt64[Array, "rows 2"]:
    """128-bit keyed names of keys; without key columns all rows share one.

    One column of text is named `into` an array if given, of two words a row or more.
    """
    if not keys:
        return np.repeat(name_column(pa.array([0]), key), rows, axis=0)
    for column in keys:
        _check(column.type, "a key column")
    if into is not None and len(keys) == 1:
        return name_column(keys[0], key, into=into[: 2 * rows])
    return name_columns(keys, key)


def groups_of(
    names: UInt64[Array, "rows 2"], window: Int64[Array, " rows"]
) -> UInt16[Array, " rows"]:
    """16-bit fingerprints of (window, key), by which a unit remembers where it contributed."""
    word = names[:, 1] + window.view(np.uint64) * MIX
    word = (word ^ (word >> np.uint64(32))) * MIX
    return np.asarray((word >> np.uint64(48)).astype(np.uint16))


def lane_quanta(
    lanes: tuple[Lane, ...],
    prepared: Prepared,
    rows: Int64[Array, " pairs"],
    first: Bool[Array, " pairs"],
    seen: Mapping[int, Bool[Array, " pairs"]] | None = None,
) -> Int64[Array, "pairs lanes"]:
    """The quanta that each accepted (row, window) pair adds to the plain lanes (no tree nodes).

    `seen`: for each lane of distinct values, which pairs bring a value for the first time.
    """
    columns = np.empty((len(rows), len(lanes)), np.int64)
    for place, lane in enumerate(lanes):
        if lane.kind == "rows":
            columns[:, place] = 1
        elif lane.kind == "units":
            columns[:, place] = first
        elif lane.kind == "distinct":
            if seen is None:
                raise PlanError(
                    "COUNT(DISTINCT x) needs all rows of a group in one place, which this engine"
                    " does not provide.\n  to fix  use the embedded engine"
                )
            columns[:, place] = seen[place]
        else:
            value, present = prepared.values[lane.value]
            here = present[rows]
            counted = lane.kind == "valid"
            one = lane.ends[1] if counted else lane.quanta(np.where(here, value[rows], 0.0))
            columns[:, place] = np.where(here, one, lane.absent)
    return columns


def lane_hits(
    trees: tuple[tuple[int, Lane, int], ...], prepared: Prepared, rows: Int64[Array, " pairs"]
) -> Int64[Array, "pairs levels"]:
    """Which tree nodes each pair adds one to; a tree: place of its first node, a lane, levels.

    >>> tree = (3, Lane(kind="node", value=0, high=4.0, level=1, fan=2), 2)
    >>> values = [(np.array([0.5, 3.9]), np.array([True, True]))]
    >>> row = Prepared(np.ones(2, np.uint64), np.zeros(2, np.int64), [], b"", values)
    >>> lane_hits((tree,), row, np.arange(2)).tolist()
    [[3, 5], [4, 8]]
    """
    columns = []
    for start, lane, levels in trees:
        value, present = prepared.values[lane.value]
        leaves = lane.fan**levels
        share = (np.clip(value[rows], lane.low, lane.high) - lane.low) / (lane.high - lane.low)
        leaf = whole(np.where(present[rows], share, 0.0) * leaves, 0, leaves - 1)
        base = start
        for level in range(1, levels + 1):
            node = base + leaf // lane.fan ** (levels - level)
            columns.append(np.where(present[rows], node, -1))
            base += lane.fan**level
    return np.stack(columns, axis=1) if columns else np.zeros((len(rows), 0), np.int64)


def _cells(keys: list[pa.Array], value: pa.Array, key: bytes) -> UInt64[Array, "rows 2"]:
    """128-bit keyed names of (key, value)."""
    if pa.types.is_null(value.type):
        value = value.cast(pa.int64())
    return name_columns([*keys, value], key)


def _valid(column: pa.Array) -> Bool[Array, " rows"] | None:
    if column.null_count == 0:
        return None
    return np.asarray(pc.is_valid(column))


def _finite(column: pa.Array) -> Bool[Array, " rows"] | None:
    if not pa.types.is_floating(column.type):
        return None
    return np.asarray(pc.fill_null(pc.is_finite(column), True))  # noqa: FBT003 (Arrow's way)


def _split(
    column: pa.Array,
    added: bool,  # noqa: FBT001
) -> tuple[Float64[Array, " rows"], Bool[Array, " rows"]]:
    kind = column.type
    valid = _valid(column)
    present = np.ones(len(column), np.bool_) if valid is None else valid
    if not added or not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    ):
        return np.zeros(len(column)), present  # only the presence of values matters
    numbers = column.cast(pa.int8()) if pa.types.is_boolean(kind) else column
    filled = pc.fill_null(numbers.cast(pa.float64(), safe=False), 0.0)
    return np.asarray(filled), present


def _check(kind: pa.DataType, what: str) -> None:
    if not is_nameable(kind) and not pa.types.is_null(kind):
        raise SourceError(
            f"{what} has the type {kind}, which names no unit and no group.\n"
            "  to fix  CAST it to text or to an integer"
        )


def require_number(kind: pa.DataType, name: str) -> None:
    """Raises PlanError unless values of this type can be added up."""
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)
    if not numeric:
        raise PlanError(
            f"'{name}' adds up values of type {kind}.\n  to fix  CAST the expression to a number"
        )


def leave_out(prepared: Prepared, reason: str, rows: Array) -> None:
    """Counts rows that cannot be used, and notes which they are where notes are kept."""
    count(prepared.reject_counts, {reason: len(rows)})
    if prepared.reject_notes is not None:
        prepared.reject_notes.add(reason, rows)
