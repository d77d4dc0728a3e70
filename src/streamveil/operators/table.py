"""A table that changes, as an operator: change data in, answers to linear queries out.

Rows are inserts and deletes of records (`+`/`-`, `I`/`D`, Debezium's `c`/`u`/`d`). Columns with
public domains place a record at a point of their product; a dynamic mechanism answers the queries
of its class after every step. Nothing but those answers is ever released.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import Batch, Release
from streamveil.errors import PlanError, StoreError, nearest
from streamveil.mechanisms.dynamic.live import together
from streamveil.mechanisms.dynamic.pack import pack, unpack
from streamveil.mechanisms.dynamic.protocol import Changes, DynamicMechanism
from streamveil.mechanisms.dynamic.records import Records, RecordsState
from streamveil.mechanisms.linear.shares import Place
from streamveil.mechanisms.linear.structured import Marginals
from streamveil.operators.hashing import name_column
from streamveil.privacy.guarantee import Guarantee
from streamveil.privacy.noise import Noise, SilentNoise
from streamveil.types import Array, Bool, Int64

Arrays = dict[str, Array]

OPERATIONS: dict[str, tuple[int, ...]] = {
    "+": (1,), "I": (1,), "INSERT": (1,), "C": (1,), "R": (1,),
    "-": (-1,), "D": (-1,), "DELETE": (-1,),
    "U": (-1, 1), "UPDATE": (-1, 1),
}  # fmt: skip  # what a row does, in any case of letters; R is a row of a first snapshot
REASONS = ("operation", "id", "domain")


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


@dataclass(frozen=True, kw_only=True)
class ChangingTable:
    """Answers to linear queries about the records that are there, after every step.

    Protects: one record with its insertion and its deletion, identified by `id_column`; an id may
        live `lives` times in all (an update is a deletion and an insertion). Without ids, one
        update, and a deletion takes the last copy of its values.
    Guarantee: the mechanism's, for a group of `lives` lives.
    Proof: a row is read on its own; matching keeps records apart (see `records.py`); what is
        released is a function of the mechanism's answers and of public numbers.
    Numerics: ids are 64-bit fingerprints under the job's secret; two of n ids share one with chance
        below n^2 / 2^65, and such a pair would be protected as one record.
    """

    kind: ClassVar[str] = "changing-table"
    version: ClassVar[int] = 1

    mechanism: DynamicMechanism
    attributes: tuple[Attribute, ...]
    id_column: str | None = None
    operation_column: str | None = None  # None: every row is an insertion
    lives: int = 1
    name: str = "n"  # of the released column
    confidence: float = 0.95

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
        if not by_record and self.lives != 1:
            raise PlanError("`lives` belongs to records with ids")

    @property
    def records(self) -> Records:
        """How deletions find their record."""
        relation = self.mechanism.guarantee.protects.relation
        return Records(
            matching="labels" if self.id_column is None else "ids",
            domain=self.mechanism.queries.domain,
            counts_no_ops=relation == "update",
            lives=self.lives,
        )

    @property
    def guarantee(self) -> Guarantee:
        """See `Operator`."""
        one = self.mechanism.guarantee
        unit = one.protects.unit if self.id_column is None else self.id_column
        return replace(
            one, loss=one.loss.group(self.lives), protects=replace(one.protects, unit=unit)
        )

    def init(self) -> TableState:
        """See `Operator`."""
        return TableState(None, self.records.init())

    def fold(self, state: TableState, batch: Batch, noise: Noise) -> Arrays:
        """See `Operator`."""
        signs, ids, labels, rejected = self._read(batch.rows, noise)
        delta = {"signs": signs, "ids": ids, "labels": labels, "rejected": rejected}
        self.apply(state, delta)
        return delta

    def apply(self, state: TableState, delta: Mapping[str, Array]) -> None:
        """See `Operator`. Matching is deterministic, so the updates themselves are the delta."""
        changes, _ = self.records.step(
            state.records, delta["signs"].astype(np.int64), delta["ids"], delta["labels"],
            state.t + 1,
        )  # fmt: skip
        state.pending.append(changes)
        state.rejected = state.rejected + delta["rejected"]

    def _read(self, rows: pa.Table, noise: Noise) -> tuple[Array, Array, Array, Array]:
        """Signs, ids, labels of the rows that can be used, and why the others cannot."""
        first, second = self._operations(rows)
        ids, named = self._ids(rows, noise)
        labels, inside = self._labels(rows)
        by_id = self.id_column is not None
        known = (first != 0) & (by_id | (second == 0))  # an update without id: of which record?
        outside = known & named & ~inside & ((first > 0) | (second > 0) | (not by_id))
        used = known & named & (~outside | (second > 0))  # an update to outside is a deletion
        counts = [(~known).sum(), (known & ~named).sum(), outside.sum()]
        at = np.flatnonzero(used)
        order = np.repeat(at, 1 + ((second > 0) & inside)[at])
        again = np.concatenate(([False], order[1:] == order[:-1])) if len(order) else order > 0
        signs = np.where(again, 1, first[order]).astype(np.int8)
        return signs, ids[order], np.where(inside, labels, 0)[order], np.array(counts, np.int64)

    def _ids(self, rows: pa.Table, noise: Noise) -> tuple[Int64[Array, " n"], Bool[Array, " n"]]:
        """Fingerprints of record ids, and which rows have one."""
        if self.id_column is None:
            return np.zeros(rows.num_rows, np.int64), np.ones(rows.num_rows, bool)
        column = _column(rows, self.id_column)
        words = name_column(column, noise.derive("changing-table ids"))
        ids = np.ascontiguousarray(words[:, 0]).view(np.int64)
        return ids, np.asarray(pc.is_valid(column))

    def _operations(self, rows: pa.Table) -> tuple[Int64[Array, " n"], Int64[Array, " n"]]:
        """What each row does first, and then; 0: nothing."""
        if self.operation_column is None:
            return np.ones(rows.num_rows, np.int64), np.zeros(rows.num_rows, np.int64)
        column = pc.utf8_upper(_column(rows, self.operation_column).cast(pa.string()))
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
            column = _column(rows, attribute.name)
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
        self.mechanism.step(state.inner, together(state.pending), place)
        state.pending = []
        table = self.answers(state)
        trigger = pa.array(np.full(table.num_rows, state.t, np.int64))
        return [Release(table.append_column("trigger", trigger), 0, state.t, step)]

    def answers(self, state: TableState) -> pa.Table:
        """All answers as of the last closed step (or segment): post-processing.

        The interval holds for all queries at once with probability `confidence`; without a proved
        bound its ends are null.
        """
        values = self.mechanism.answers(state.inner).values
        bound = self.mechanism.bound(state.inner, 1 - self.confidence)
        reach = np.full(len(values), bound if np.isfinite(bound) else np.nan)
        low, high = np.maximum(values - reach, 0), np.maximum(values + reach, 0)
        known = {
            self.name: pa.array(values),
            f"{self.name}_low": pa.array(low, from_pandas=True),
            f"{self.name}_high": pa.array(high, from_pandas=True),
        }
        return pa.table({**self._labels_of_queries, **known})

    @cached_property
    def _labels_of_queries(self) -> dict[str, pa.Array]:
        """Public columns that name each query: the group's values, null where not grouped."""
        queries = self.mechanism.queries
        if not isinstance(queries, Marginals):
            return {"query": pa.array([queries.label(i) for i in range(queries.size)])}
        cells = [dict(zip(*queries.cell(i), strict=True)) for i in range(queries.size)]
        return {
            attribute.name: attribute.domain.take(
                pa.array([cell.get(a) for cell in cells], pa.int64())
            )
            for a, attribute in enumerate(self.attributes)
        }

    def save(self, state: TableState) -> Arrays:
        """See `Operator`."""
        inner = {f"inner/{name}": array for name, array in pack([state.inner]).items()}
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
        inner = unpack(groups["inner"], list)[0]
        wanted = type(self.mechanism.init(Place(SilentNoise(), "none")))
        if inner is not None and type(inner) is not wanted:
            raise StoreError("the saved table belongs to another mechanism")
        return TableState(
            inner, self.records.load(groups["records"]), unpack(groups["pending"], list),
            int(groups[""]["t"][0]), np.array(groups[""]["rejected"]),
        )  # fmt: skip

    def counters(self, state: TableState) -> dict[str, int]:
        """See `Operator`."""
        refused = dict(zip(REASONS, (int(count) for count in state.rejected), strict=True))
        return {
            "records": state.records.alive,
            **{f"ignored_{name}": count for name, count in state.records.ignored.items()},
            **{f"rejected_{name}": count for name, count in refused.items()},
        }


def _column(rows: pa.Table, name: str) -> pa.Array:
    """One column in one piece; names the nearest when there is none."""
    if name not in rows.column_names:
        raise PlanError(f"there is no column '{name}'{nearest(name, rows.column_names)}")
    column = rows.column(name).combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
