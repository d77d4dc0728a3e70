"""Independent trials: copies of one small scenario that one run of a query holds.

One run holds thousands of independent trials: a small scenario is copied with units and keys of its
own for each copy. Nothing a copy does can reach another (noise is keyed by the key, bounding by
the unit), so the releases of the copies are independent samples of the scenario's releases.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch, Release
from streamveil.core.noise import Noise
from streamveil.dataflow import Operator
from streamveil.errors import require_positive
from streamveil.types import Array, Float64

STRIDE = 1000  # units and keys of a scenario are numbers below this


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Background rows that everybody knows, and the rows of one more unit.

    Rows are tuples (unit, key, step, event time in microseconds, value); units and keys are
    numbers below 1000. The added unit's number appears in `added` only.
    """

    name: str
    background: tuple[tuple[int, int, int, int, float], ...]
    added: tuple[tuple[int, int, int, int, float], ...]
    steps: int

    def batches(self, copies: int, *, with_unit: bool) -> list[Batch]:
        """One micro-batch a step, with all copies of the scenario."""
        require_positive(copies=copies, steps=self.steps)
        rows = self.background + (self.added if with_unit else ())
        columns = np.array(rows, np.float64).reshape(-1, 5)
        return [
            Batch(self._copy(columns[columns[:, 2] == step], copies), step, True, "{}")  # noqa: FBT003
            for step in range(1, self.steps + 1)
        ]

    def _copy(self, columns: Float64[Array, "rows 5"], copies: int) -> pa.Table:
        offset = np.repeat(np.arange(copies, dtype=np.int64) * STRIDE, len(columns))

        def tiled(place: int) -> Array:
            return np.tile(columns[:, place], copies)

        return pa.table({
            "unit": offset + tiled(0).astype(np.int64),
            "key": offset + tiled(1).astype(np.int64),
            "at": pa.array(tiled(3).astype(np.int64), pa.timestamp("us", tz="UTC")),
            "value": tiled(4),
        })  # fmt: skip


def unbroken(operator: Operator, batches: Iterable[Batch], noise: Noise) -> list[Release]:
    """Runs all batches and collects every release."""
    state, releases = operator.init(), []
    for batch in batches:
        operator.fold(state, batch, noise)
        releases += operator.release(state, batch.step, noise)
    return releases


def is_answer(name: str, table: pa.Table) -> bool:
    """Whether a column of a release is a noisy number (and no key, interval or time)."""
    return name + "_sd" in table.column_names
