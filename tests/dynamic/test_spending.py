"""What one record really costs: every release that reads it is written down and added up."""

from fractions import Fraction

import numpy as np
import pytest

from benchmarks.papers.qiu_yi import published
from benchmarks.papers.snapshots import SnapshotDelta, TriggeredSnapshots
from streamveil.core.noise import SeededNoise
from streamveil.dynamic import (
    DynamicMechanism,
    FullyDynamic,
    InsertionOnly,
    LiveTable,
    Rerun,
    TwoStream,
)
from streamveil.linear import Marginals, Mwem, Share, StaticMechanism, noisy_queries

CELLS = Marginals((64,), ((0,),))
ZCDP = Share("zcdp", Fraction(1, 2))


class Written:
    """A static mechanism that writes down the share of every release that reads label 0."""

    def __init__(self, inner):
        self.inner, self.read, self.all = inner, [], 0

    queries = property(lambda self: self.inner.queries)
    error = property(lambda self: self.inner.error)
    adaptive = property(lambda self: self.inner.adaptive)
    covers = property(lambda self: self.inner.covers)

    def release(self, histogram, share, place, size_hat=None):
        self.all += 1
        if histogram[0]:
            self.read.append(Fraction(share.amount))
        return self.inner.release(histogram, share, place, size_hat)


def mechanisms(static, steps):
    yield FullyDynamic.repaired(static, ZCDP, horizon=steps)
    yield FullyDynamic.repaired(static, ZCDP, horizon=None)
    yield published(static, ZCDP)
    yield published(static, ZCDP, finite=True)
    yield TwoStream(static=static, share=ZCDP, horizon=steps)
    yield Rerun(static=static, share=ZCDP, steps=steps)
    yield SnapshotDelta(static=static, share=ZCDP, horizon=steps, every=5)
    yield InsertionOnly.dense(static, ZCDP)
    yield InsertionOnly.dense(static, ZCDP, steps)
    yield TriggeredSnapshots(static=static, share=ZCDP, most=9)


@pytest.mark.parametrize("which", range(10))
@pytest.mark.parametrize("adaptive", [False, True])
def test_one_record_never_costs_more_than_the_share(which, adaptive):
    steps, most = 31, Fraction(0)
    for turn, born in enumerate((2, 13) if adaptive else (1, 2, 8, 13)):
        for gone in ((None, born + 1, 24), (born, born + 5, 24))[turn % 2]:
            static = Written(Mwem(queries=CELLS, rounds=1) if adaptive else noisy_queries(CELLS))
            mechanism = list(mechanisms(static, steps))[which]
            assert isinstance(static, StaticMechanism)
            assert isinstance(mechanism, DynamicMechanism)
            if isinstance(mechanism, InsertionOnly) and gone:
                continue
            spend(mechanism, steps, born, gone)
            assert sum(static.read, Fraction(0)) <= ZCDP.amount
            assert static.all >= steps
            most = max(most, sum(static.read, Fraction(0)))
    if not (which == 2 or which == 3 or adaptive):  # published: series, and parts for counts
        assert most > 0.5 * ZCDP.amount  # and the budget is used


def spend(mechanism, steps, born, gone):
    """Many other records come and go, so that restarts happen; label 0 is the one we follow."""
    table = LiveTable.open(mechanism, SeededNoise(born), "t")
    grows = isinstance(mechanism, InsertionOnly)
    rng = np.random.default_rng(born)
    alive = []
    for t in range(1, steps + 1):
        fresh = np.arange(1000 * t, 1000 * t + 400)
        table.change(np.ones(400, np.int64), fresh, rng.integers(1, 64, 400))
        if not grows and alive:
            old = alive.pop(0)
            table.change(-np.ones(400, np.int64), old, np.zeros(400, np.int64))
        if t > 3:
            alive.append(fresh)
        if t == born:
            table.insert(0, rid=7)
        if t == gone:
            table.delete(7)
        table.tick()
