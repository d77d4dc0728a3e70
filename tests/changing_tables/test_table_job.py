"""The changing table under the real job loop: durable, resumed anywhere, the same bytes."""

import warnings
from fractions import Fraction

import pyarrow.compute as pc
import pytest

from streamveil.batch import Batch
from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise
from streamveil.dynamic import FullyDynamic, SignedCounter
from streamveil.dynamic.distinct import DistinctCounter
from streamveil.errors import BudgetError
from streamveil.linear import Mwem, Residuals, Share
from streamveil.runtime.job import Job, Work
from streamveil.runtime.secret import Randomness
from streamveil.runtime.store import CheckpointPolicy
from tests.changing_tables.test_operator import CELLS, random_batches, table_of

KEYS = Randomness(None, SeededNoise(5), True)
OFTEN = CheckpointPolicy(log_bytes=2000, log_per_state=0)
STEPS = 12


def feed(position):
    """Every step in two micro-batches; the position says how many were taken."""
    taken = int(position or 0)
    at = 0
    for step, whole in enumerate(random_batches(STEPS, seed=4), start=1):
        half = whole.rows.num_rows // 2
        for part, closes in ((whole.rows[:half], False), (whole.rows[half:], True)):
            at += 1
            if at > taken:
                yield Batch(part, step, closes, str(at))


def work(mechanism, limit):
    return Work(
        name="shop", fingerprint="f", operator=operator_of(mechanism), feed=feed, limit=limit
    )


def operator_of(mechanism):
    if isinstance(mechanism, DistinctCounter):  # of the last digit of the ids
        return table_of(mechanism, value=lambda _: lambda rows: pc.bit_wise_and(rows["id"], 3))
    return table_of(mechanism)


def mechanisms():
    share = Share("zcdp", Fraction(1, 2))
    yield FullyDynamic.repaired(Mwem(queries=CELLS), share, horizon=STEPS)
    yield FullyDynamic.repaired(Mwem(queries=CELLS), share, horizon=None, public_steps=False)
    for horizon in (STEPS, None):
        yield DistinctCounter(cells=CELLS, share=share, horizon=horizon, changes=2)
    yield SignedCounter(strategy=Residuals(CELLS), share=share, horizon=STEPS)


@pytest.mark.parametrize("mechanism", list(mechanisms()), ids=lambda m: type(m).__name__)
def test_a_job_stopped_after_any_release_goes_on_with_the_same_bytes(mechanism, tmp_path):
    warnings.simplefilter("ignore")
    limit = Budget(rho=Fraction(1, 2))
    with Job(tmp_path / "whole", work(mechanism, limit), KEYS, policy=OFTEN) as job:
        whole = {(r.window, r.trigger): r.table for r in job}
    assert sorted(trigger for _, trigger in whole) == list(range(1, STEPS + 1))
    for stop in (1, 5, 11):
        folder, seen = tmp_path / f"stop{stop}", {}
        for most in (stop, STEPS):
            with Job(folder, work(mechanism, limit), KEYS, policy=OFTEN) as job:
                for count, release in enumerate(job, start=1):
                    seen[release.window, release.trigger] = release.table
                    if count == most and most < STEPS:
                        break
        assert seen.keys() == whole.keys()
        assert all(seen[key].equals(whole[key]) for key in whole)


def test_a_budget_that_does_not_cover_the_table_is_refused_before_any_row(tmp_path):
    warnings.simplefilter("ignore")
    with pytest.raises(BudgetError):
        Job(tmp_path / "j", work(next(mechanisms()), Budget(rho=Fraction(1, 3))), KEYS)
