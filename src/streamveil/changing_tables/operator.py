"""A table that changes, as an operator: change data in, answers to linear queries out.

Rows are inserts and deletes of records (`+`/`-`, `I`/`D`, Debezium's `c`/`u`/`d`). Columns with
public domains place a record at a point of their product; a dynamic mechanism answers the queries
of its class after every step. Nothing but those answers is ever released, and answers to questions
(`ask`) that are put between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import Batch, RejectNotes, Release
from streamveil.changing_tables.questions import QUESTION, Asking, QuestionAnswer, Questions
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.noise import Noise, Place, SilentNoise
from streamveil.core.noisy import Noisy, post_process, public, values
from streamveil.dataflow.hashing import name_column
from streamveil.dynamic.distinct import DistinctCounter
from streamveil.dynamic.live import together
from streamveil.dynamic.live_pmw import LivePmw
from streamveil.dynamic.pack import pack, unpack
from streamveil.dynamic.protocol import Changes, DynamicMechanism
from streamveil.dynamic.records import Records, RecordsState, protected
from streamveil.dynamic.signed_counter import SignedCounter, TreeCounter
from streamveil.errors import PlanError, StoreError, nearest
from streamveil.linear.protocol import QueryAnswers
from streamveil.linear.structured import Marginals
from streamveil.release_metadata import NOTE
from streamveil.types import Array, Bool, Float64, Int64

Arrays = dict[str, Array]
Bind = Callable[[pa.Schema], Callable[[pa.Table], Any]]  # a condition, compiled for some columns

OPERATIONS: dict[str, tuple[int, ...]] = {
    "+": (1,), "I": (1,), "INSERT": (1,), "C": (1,), "R": (1,),
    "-": (-1,), "D": (-1,), "DELETE": (-1,),
    "U": (-1, 1), "UPDATE": (-1, 1),
}  # fmt: skip  # what a row does, in any case of letters; R is a row of a first snapshot
REASONS = {"operation": "unknown operation", "id": "null id", "domain": "outside the domain"}


@dataclass(frozen=True)
class Attribute:
    """A column and its public domain, in order. Rows with other values are counted and left out."""

    name: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) != len(self.values):
            raise PlanError(f"column '{self.name}' needs a public list of different values")

    @cached_property
    def domain(self) -> pa.Array:
        """The values as Arrow has them."""
        return pa.array(self.values)


@dataclass(repr=False)  # secret
class TableState:
    """The mechanism's state, the living records, the changes of the open step."""

    inner: Any  # None until the first release: it needs the job's noise
    records: RecordsState
    pending: list[Changes] = field(default_factory=list)
    t: int = 0  # steps closed
    rejected: Int64[Array, " reasons"] = field(
        default_factory=lambda: np.zeros(len(REASONS), np.int64)
    )
    asking: Asking | None = None  # None: no step was closed


@dataclass(frozen=True, kw_only=True)
class ChangingTable:
    """Answers to linear queries about the records that are there, after every step.

    Protects: one record with its insertion and its deletion, identified by `id_column` (all rows of
        an id, not one of them: see `records.py`); an id may live `lives` times in all (an update is
        a deletion and an insertion). Without ids, one update, and a deletion takes the last copy.
    Guarantee: the mechanism's and that of `adaptive` questions, for a group of `lives` lives.
    Proof: a row is read on its own; matching keeps records apart (see `records.py`); what is
        released is a function of the mechanism's answers and of public numbers. `condition` looks
        at one row: a record that does not meet it is not in the table.
    Numerics: ids are told apart by 128-bit names under the job's secret, integers surely, two of n
        texts but for a chance of n^2 / 2^129, as the keys of a group-by are. Values that are
        counted have names of the bits that a label leaves, 39 or more: two may count as one, which
        no guarantee depends on.
    """

    kind: ClassVar[str] = "changing-table"

    mechanism: DynamicMechanism
    attributes: tuple[Attribute, ...]
    id_column: str | None = None
    operation_column: str | None = None  # None: every row is an insertion
    lives: int = 1
    outputs: tuple[str, ...] = ("n",)  # released columns; queries go through the rows of each
    cells: Marginals | None = None  # rows of a release; None: the queries, one after another
    condition: Bind | None = field(default=None, compare=False)  # which records are in the table
    value: Bind | None = field(default=None, compare=False)  # of a record, for a `DistinctCounter`
    adaptive: LivePmw | None = None
    total: int | None = None  # the output that counts every record: needed by `adaptive`
    confidence: float = 0.95
    non_negative: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        points = int(np.prod([len(a.values) for a in self.attributes], dtype=np.int64))
        if points != self.mechanism.queries.domain:
            raise PlanError(
                f"the columns have {points} points, the queries are about "
                f"{self.mechanism.queries.domain}"
            )
        by_record = self.mechanism.guarantee.protects.relation == "record"
        if by_record and self.operation_column is not None and self.id_column is None:
            raise PlanError(
                "deletions need an id column to protect records; or protect 'update', by labels"
            )
        _ = self.guarantee  # refuses what cannot be sized
        if self.distinct is not None and (self.id_column is None or self.value is None):
            raise PlanError("different values are counted of records that have an id")
        if self.id_column is None and self.lives != 1:
            raise PlanError("`lives` belongs to records with ids")
        if self.adaptive is not None and (self.total is None or self.cells is None):
            raise PlanError("adaptive questions need an output that counts all records")

    @property
    def records(self) -> Records:
        """How deletions find their record."""
        relation = self.mechanism.guarantee.protects.relation
        values = 1 if self.distinct is None else self.distinct.values
        return Records(
            matching="labels" if self.id_column is None else "ids",
            domain=self.mechanism.queries.domain * values,
            counts_no_ops=relation == "update",
            lives=self.lives,
        )

    @property
    def distinct(self) -> DistinctCounter | None:
        """The mechanism, where it counts different values."""
        return self.mechanism if isinstance(self.mechanism, DistinctCounter) else None

    @property
    def guarantee(self) -> Guarantee:
        """See `Operator`."""
        one = self.mechanism.guarantee
        protects = protected(one.protects, self.records.matching)
        unit = protects.unit if self.id_column is None else self.id_column
        loss = one.loss if self.adaptive is None else one.loss + self.adaptive.loss
        return replace(one, loss=loss.group(self.lives), protects=replace(protects, unit=unit))

    @cached_property
    def questions(self) -> Questions:
        """What may be asked between steps."""
        return Questions(self.cells, self.total, self.adaptive, self.confidence)

    def init(self) -> TableState:
        """See `Operator`."""
        return TableState(None, self.records.init())

    def fold(self, state: TableState, batch: Batch, noise: Noise) -> Arrays:
        """See `Operator`."""
        signs, ids, labels, rejected = self.read(batch.rows, noise, batch.reject_notes)
        delta = {"signs": signs, "ids": ids, "labels": labels, "rejected": rejected}
        self.apply(state, delta)
        return delta

    def apply(self, state: TableState, delta: Mapping[str, Array]) -> None:
        """See `Operator`. Matching is deterministic, so the updates themselves are the delta."""
        if QUESTION in delta and state.asking is not None:
            self.questions.apply(state.asking, delta)
            return
        changes, _ = self.records.step(
            state.records, delta["signs"].astype(np.int64), delta["ids"], delta["labels"],
            state.t + 1,
        )  # fmt: skip
        state.pending.append(changes)
        state.rejected = state.rejected + delta["rejected"]

    def read(
        self, rows: pa.Table, noise: Noise, reject_notes: RejectNotes | None = None
    ) -> tuple[Array, Array, Array, Array]:
        """Signs, ids, labels of the rows that can be used, and why the others cannot."""
        first, second = self._operations(rows)
        ids, named = self._ids(rows, noise)
        labels, inside = self._labels(rows)
        valid = inside
        if self.condition is not None:
            passes = pc.fill_null(self.condition(rows.schema)(rows), False)  # noqa: FBT003
            inside = inside & np.asarray(passes)
        if self.distinct is not None:
            numbers, has_value = self._numbers(rows, noise)
            labels = numbers * self.distinct.queries.domain + labels
            inside = inside & has_value
        by_id = self.id_column is not None
        known = (first != 0) & (by_id | (second == 0))  # an update without id: of which record?
        outside = known & named & ~inside & ((first > 0) | (second > 0) | (not by_id))
        used = known & named & (~outside | (second > 0))  # an update to outside is a deletion
        wrong = ~known, known & ~named, outside & ~valid
        counts = [which.sum() for which in wrong]
        if reject_notes is not None:
            for reason, which in zip(REASONS.values(), wrong, strict=True):
                reject_notes.add(reason, which)
        at = np.flatnonzero(used)
        order = np.repeat(at, 1 + ((second > 0) & inside)[at])
        again = np.concatenate(([False], order[1:] == order[:-1])) if len(order) else order > 0
        signs = np.where(again, 1, first[order]).astype(np.int8)
        return signs, ids[order], np.where(inside, labels, 0)[order], np.array(counts, np.int64)

    def _ids(self, rows: pa.Table, noise: Noise) -> tuple[Int64[Array, "n 2"], Bool[Array, " n"]]:
        """The names of record ids, and which rows have one."""
        if self.id_column is None:
            return np.zeros((rows.num_rows, 2), np.int64), np.ones(rows.num_rows, bool)
        column = _column(rows, self.id_column)
        words = name_column(column, noise.derive("changing-table ids"))
        return words.view(np.int64), np.asarray(pc.is_valid(column))

    def _numbers(
        self, rows: pa.Table, noise: Noise
    ) -> tuple[Int64[Array, " n"], Bool[Array, " n"]]:
        """The value of each record as a number, and which records have one."""
        assert self.value is not None  # noqa: S101  (checked when it was made)
        assert self.distinct is not None  # noqa: S101
        column = _plain(self.value(rows.schema)(rows))
        names = name_column(column, noise.derive("changing-table values"))
        numbers = names[:, 0] % np.uint64(self.distinct.values)
        return numbers.astype(np.int64), np.asarray(pc.is_valid(column))

    def _operations(self, rows: pa.Table) -> tuple[Int64[Array, " n"], Int64[Array, " n"]]:
        """What each row does first, and then; 0: nothing."""
        if self.operation_column is None:
            return np.ones(rows.num_rows, np.int64), np.zeros(rows.num_rows, np.int64)
        text = _column(rows, self.operation_column).cast(pa.string(), safe=False)
        column = pc.ascii_upper(text)  # takes any bytes: no row can stop the others
        at = pc.index_in(column, pa.array(list(OPERATIONS)))
        index = np.asarray(pc.fill_null(at, len(OPERATIONS)))
        first = np.array([signs[0] for signs in OPERATIONS.values()] + [0])
        second = np.array([sum(signs[1:]) for signs in OPERATIONS.values()] + [0])
        return first[index], second[index]

    def _labels(self, rows: pa.Table) -> tuple[Int64[Array, " n"], Bool[Array, " n"]]:
        """The point of each row, and whether all its values are in their domains."""
        labels = np.zeros(rows.num_rows, np.int64)
        inside = np.ones(rows.num_rows, bool)
        for attribute in self.attributes:
            column = _wide(_column(rows, attribute.name))
            try:
                domain = attribute.domain.cast(column.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise PlanError(
                    f"column '{attribute.name}' is {column.type}; its public values are not"
                ) from None
            at = pc.fill_null(pc.index_in(column, domain), -1)
            place = np.asarray(at).astype(np.int64)
            inside &= (place >= 0) & np.asarray(pc.is_valid(column))
            labels = labels * len(attribute.values) + np.maximum(place, 0)
        return labels, inside

    def release(self, state: TableState, step: int, noise: Noise) -> list[Release]:
        """See `Operator`."""
        place = Place(noise, "changing table")
        if state.inner is None:
            state.inner = self.mechanism.init(place)
        state.t += 1
        changes = together(state.pending)
        self.mechanism.step(state.inner, changes, place)
        state.pending = []
        found, reach = self._answers(state)
        state.asking = self.questions.step(
            state.asking, changes, (state.t, found.values, reach), place.inside(b"questions")
        )
        table = post_process(with_trigger, self._table(state, found, reach), state.t)
        return [Release(table, 0, state.t, step)]

    def ask(
        self, state: TableState, question: Bool[Array, " N"], noise: Noise
    ) -> tuple[QuestionAnswer, Arrays | None]:
        """One question about the last closed step: how many records lie at these points?

        In place. Also what `apply` needs to repeat it, None when nothing changed.

        Proof for copies of a state, such as a restored backup: nothing draws an answer again, so
        its noise has a name of its own, which no copy has, whatever rows the copies took. They
        share the offset of a run that a step opened. That it moves by 1 serves the comparisons of
        all of them (`AboveThreshold`), and each pays for the noise of its own answers.
        """
        if state.asking is None:
            raise PlanError("no step is closed yet: there is nothing to ask about")
        place = Place.opened(noise, "changing table", b"questions")
        return self.questions.ask(state.asking, question, place)

    def _answers(self, state: TableState) -> tuple[QueryAnswers, Array]:
        """All answers as of the last closed step (or segment), and how far they reach.

        The reach holds for all answers at once with probability `confidence`; it is infinite
        without a proved bound.
        """
        found = self.mechanism.answers(state.inner)
        bound = self.mechanism.bound(state.inner, 1 - self.confidence)
        counter, size = self._counter, len(found.values)
        return found, bound * (np.ones(size) if counter is None else counter.relative)

    @property
    def _counter(self) -> SignedCounter | TreeCounter | DistinctCounter | None:
        """The mechanism when its answers are data plus noise."""
        found = self.mechanism
        return found if isinstance(found, SignedCounter | TreeCounter | DistinctCounter) else None

    def answers(self, state: TableState) -> pa.Table:
        """A release: all answers as of the last closed step. Post-processing.

        `NAME_sd` is the deviation of the noise, null where answers are not data plus noise; the
        ends of an interval are null where no bound is proved.
        """
        return values(self._table(state, *self._answers(state)))

    def _table(
        self, state: TableState, found: QueryAnswers, reach: Float64[Array, " k"]
    ) -> Noisy[pa.Table]:
        """See `answers`. Reach and deviations are numbers of the noise and of what was released."""
        counter, sd = self._counter, np.full(len(found.values), np.nan)
        if counter is not None:
            sd = counter.deviations(state.inner)
        reach = np.where(np.isfinite(reach), reach, np.nan)
        settings = public(self), public(sd), public(reach)
        return post_process(ChangingTable._columns, *settings, found.noisy)

    def _columns(
        self, sd: Float64[Array, " k"], reach: Float64[Array, " k"], values: Float64[Array, " k"]
    ) -> pa.Table:
        """Post-processing: the columns of a release."""
        shown = np.rint(values) if self.integer else values
        low, high = values - reach, values + reach
        if self.integer:  # so are the true numbers: see `reach_of`
            low, high = np.ceil(low - 0.5), np.floor(high + 0.5)
        parts = {"": shown, "_sd": sd, "_low": low, "_high": high}
        if self.non_negative:
            parts |= {name: np.maximum(parts[name], 0) for name in ("", "_low", "_high")}
        columns = dict(self._labels_of_queries)
        for place, name in enumerate(self.outputs):
            for suffix, column in parts.items():
                part = column.reshape(len(self.outputs), -1)[place]
                columns[name + suffix] = pa.array(part, pa.float64(), from_pandas=True)
        return pa.table(columns).replace_schema_metadata(self._note(np.isnan(reach)))

    def _note(self, is_open: Bool[Array, " k"]) -> dict[bytes, str] | None:
        """That there are no intervals, or what none covers."""
        notes, made = [], self.distinct
        if is_open.any():
            notes.append("no intervals: how far these answers may be off is not proved")
        elif made and self.operation_column is not None and made.changes != made.horizon:
            notes.append(
                f"of each value only the first {made.changes:,} change(s) of whether there is a"
                " record with it count; afterwards it stays counted, or not, as it was: no interval"
                " holds what that changes"
            )
        if self.id_column is not None and self.operation_column is not None:
            notes.append(
                f"an id counts for its first {self.lives:,} insertion(s), those of updates"
                " included: later ones are in no number"
            )
        return {NOTE: "; ".join(notes)} if notes else None

    @cached_property
    def _labels_of_queries(self) -> dict[str, pa.Array]:
        """Public columns that name each query: the group's values, null where not grouped."""
        queries = self.cells or self.mechanism.queries
        if not isinstance(queries, Marginals):
            return {"query": pa.array([queries.label(i) for i in range(queries.size)])}
        cells = [dict(zip(*queries.cell(i), strict=True)) for i in range(queries.size)]
        used = {a for attributes in queries.sets for a in attributes}
        return {
            attribute.name: attribute.domain.take(
                pa.array([cell.get(a) for cell in cells], pa.int64())
            )
            for a, attribute in enumerate(self.attributes)
            if a in used
        }

    def save(self, state: TableState) -> Arrays:
        """See `Operator`."""
        both = [state.inner, None if state.asking is None else state.asking.save()]
        inner = {f"inner/{name}": array for name, array in pack(both).items()}
        pending = {f"pending/{name}": array for name, array in pack(state.pending).items()}
        records = {f"records/{k}": v for k, v in self.records.save(state.records).items()}
        facts = {"t": np.array([state.t], np.int64), "rejected": state.rejected}
        return {**inner, **pending, **records, **facts}

    def load(self, arrays: Mapping[str, Array]) -> TableState:
        """See `Operator`."""
        groups: dict[str, Arrays] = {"inner": {}, "pending": {}, "records": {}, "": {}}
        for name, array in arrays.items():
            group, _, rest = name.rpartition("/")
            if group not in groups:
                raise StoreError("the saved table has arrays that do not belong to it")
            groups[group][rest] = array
        if len(groups[""].get("rejected", ())) != len(REASONS) or "t" not in groups[""]:
            raise StoreError("the saved table lacks its counts")
        inner, asking = unpack(groups["inner"], list)
        wanted = type(self.mechanism.init(Place(SilentNoise(), "none")))
        if inner is not None and type(inner) is not wanted:
            raise StoreError("the saved table belongs to another mechanism")
        return TableState(
            inner, self.records.load(groups["records"]), unpack(groups["pending"], list),
            int(groups[""]["t"][0]), np.array(groups[""]["rejected"]),
            None if asking is None else Asking(*asking),
        )  # fmt: skip

    def counters(self, state: TableState) -> dict[str, int]:
        """See `Operator`."""
        refused = dict(zip(REASONS, (int(count) for count in state.rejected), strict=True))
        return {
            "records": state.records.alive,
            **{f"ignored_{name}": count for name, count in state.records.ignored.items()},
            **{f"rejected_{name}": count for name, count in refused.items()},
        }


def with_trigger(table: pa.Table, trigger: int) -> pa.Table:
    """A release with its number in every row."""
    return table.append_column("trigger", pa.array(np.full(table.num_rows, trigger, np.int64)))


def _column(rows: pa.Table, name: str) -> pa.Array:
    """One column in one piece; names the nearest when there is none."""
    if name not in rows.column_names:
        raise PlanError(f"there is no column '{name}'{nearest(name, rows.column_names)}")
    return _plain(rows.column(name))


def _wide(column: pa.Array) -> pa.Array:
    """The same numbers in a type in which Arrow finds them."""
    kind = column.type
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())
    if pa.types.is_decimal(kind) and kind.bit_width < 128:
        return column.cast(pa.decimal128(kind.precision, kind.scale))
    return column


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column written out, in one piece."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
