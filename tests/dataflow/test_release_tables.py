"""Releases whose tables are made together are what each is by itself, to the last bit and mark."""

from __future__ import annotations

import numpy as np
import pytest

from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise
from streamveil.plan import Aggregate, Bounding, Window
from streamveil.runtime.tables import made_of, settled
from tests.dataflow.streams import AGGREGATES, PUBLIC, batches, compiled

MEDIAN = Aggregate(name="median", function="quantile", expression="v", low=-3, high=12)
QUERIES = {
    "public groups": {"key_set": PUBLIC, "aggregates": (*AGGREGATES, MEDIAN)},
    "coins, windows": {"window": Window(kind="tumble", size_us=20)},
    "counts that do not fall": {"options": {"monotone": True}},
    "a count that discovers groups": {"options": {"selection": "gaussian"}},
    "totals that discover groups": {"options": {"selection": "totals"}},
    "weights": {"options": {"selection": "table", "weight_reference": 8, "entry_weight": 0.7},
                "bounding": Bounding(quadratic=6), "budget": Budget(epsilon=30, delta=0.01)},
    "cut rows": {"options": {"cut_share": 0.5, "intervals": "true"}},
}  # fmt: skip
ROOMY = Budget(epsilon=60, delta=0.2)


def drawn_by(operator):
    """What a small stream makes public, before it is tables."""
    rng, state, noise = np.random.default_rng(4), operator.init(), SeededNoise(2)
    columns = (
        rng.integers(0, 40, 300), np.array([*"abcd"])[rng.geometric(0.5, 300).clip(1, 4) - 1],
        rng.integers(-3, 12, 300), rng.integers(0, 60, 300), rng.integers(0, 9, 300),
    )  # fmt: skip
    drawn = []
    for batch in batches(list(zip(*(column.tolist() for column in columns), strict=True))):
        operator.fold(state, batch, noise)
        drawn += operator.draw(state, batch.step, noise)
    return drawn


@pytest.mark.parametrize("name", QUERIES)
def test_tables_made_together_are_those_made_one_by_one(name):
    operator = compiled(**{"budget": ROOMY, "aggregates": AGGREGATES, **QUERIES[name]})
    drawn = drawn_by(operator)
    together = made_of(operator, drawn)
    assert len(together) == len(drawn) >= 6
    assert sum(release.table.num_rows for release, _ in together) > 6
    for one, (release, mark) in zip(drawn, together, strict=True):
        [[alone, known]] = made_of(operator, [one])
        [run] = operator.releases_of([one])
        [plain] = run.releases()
        for other, wanted in ((alone, known), settled(plain)):
            assert release.table.equals(other.table, check_metadata=True)
            assert mark.agrees(wanted)
            assert (mark.crc, mark.size) == (wanted.crc, wanted.size)
