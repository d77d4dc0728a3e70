"""Which released rows of two SELECTs stand together in a join."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.errors import PlanError
from streamveil.expressions.dialect import shown
from streamveil.plan import PostJoin
from streamveil.plan.combine import numbered, plain
from streamveil.plan.joins import matches

BOTH_NUMBERS = {pa.int64(), pa.float64()}


class Paired(NamedTuple):
    """Places of rows of both sides, null where a side has none; whether some stand twice."""

    rows: pa.Array
    others: pa.Array
    left_often: bool
    right_often: bool


def paired(join: PostJoin, left: pa.Table, right: pa.Table) -> Paired:
    """The rows that stand together, in the order of the left; those of the right alone last.

    >>> names = ((("day", "day"),), ())
    >>> join = PostJoin(left=(), right=(), how="full", on=(("day", "at"),), left_names=names[0],
    ...                 right_names=names[1])
    >>> found = paired(join, pa.table({"day": [1, 2, None]}), pa.table({"at": [2, 2, 5]}))
    >>> found.rows.to_pylist(), found.others.to_pylist(), found.left_often
    ([0, 1, 1, 2, None], [None, 0, 1, None, 2], True)
    """
    count, others = left.num_rows, right.num_rows
    codes = np.zeros(count + others, np.int64)
    if join.on:
        both = [pa.concat_arrays(one_type(left.column(one), right.column(two), two))
                for one, two in join.on]  # fmt: skip
        codes = numbered(both)
        empty = np.logical_or.reduce([np.asarray(column.is_null()) for column in both])
        codes[empty] = np.where(np.arange(count + others) < count, -1, -2)[empty]
    rows, places = matches(codes[:count], codes[count:], max(1, others))
    own, their = np.arange(count), np.arange(others)
    left_alone = np.setdiff1d(own, rows) if join.how in ("left", "full") else own[:0]
    right_alone = np.setdiff1d(their, places) if join.how in ("right", "full") else their[:0]
    first = np.concatenate([rows, left_alone, np.full(len(right_alone), count)])
    second = np.concatenate([places, np.full(len(left_alone), others), right_alone])
    order = np.argsort(first, kind="stable")
    first, second = first[order], second[order]
    return Paired(
        pa.array(first, mask=first == count), pa.array(second, mask=second == others),
        len(np.unique(rows)) < len(rows), len(np.unique(places)) < len(places),
    )  # fmt: skip


def one_type(one: Any, two: Any, name: str) -> list[Any]:
    """Two columns that are compared, in one type."""
    columns = [plain(one), plain(two)]
    types = {column.type for column in columns}
    if len(types) == 1:
        return columns
    if types == BOTH_NUMBERS:
        return [column.cast(pa.float64()) for column in columns]
    raise PlanError(
        f"'{shown(name)}' is {columns[0].type} on one side of the join and {columns[1].type} on the"
        " other.\n  to fix  CAST one of them in a SELECT"
    )
