"""Which step of a replay a row belongs to: a function of its own arrival and of public numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.calendars.cells import Cells
from streamveil.connectors.base import micros
from streamveil.types import Array, Bool, Int64

OUTSIDE = "arrival outside the schedule"


class Arrivals(NamedTuple):
    """The steps of rows, and why some have none."""

    step: Int64[Array, " rows"]  # where `inside`
    inside: Bool[Array, " rows"]
    outside: dict[str, Bool[Array, " rows"]]  # reason -> which rows have none

    @property
    def left_out(self) -> dict[str, int]:
        """How many rows have none, by reason."""
        return {reason: int(rows.sum()) for reason, rows in self.outside.items() if rows.any()}


def arrivals(rows: pa.Table, column: str, span: tuple[int, int], ticks: Cells) -> Arrivals:
    """Steps, the cells of `ticks` from 1 on, from the start of `span` to before its end.

    >>> rows = pa.table({"seen": [5, 10, 29, 30, None]})
    >>> found = arrivals(rows, "seen", (10, 30), Cells(length_us=15, origin_us=10))
    >>> found.step[found.inside].tolist(), found.left_out
    ([1, 2], {'null in seen': 1, 'arrival outside the schedule': 2})
    """
    start, end = span
    time = micros(rows.column(column), column)
    known = np.asarray(pc.is_valid(time))
    us = np.asarray(pc.fill_null(time, start - 1))
    inside = known & (us >= start) & (us < end)
    outside = {f"null in {column}": ~known, OUTSIDE: known & ~inside}
    return Arrivals(ticks.numbers(us) + 1, inside, outside)
