"""The whole query under attack: claims stand, and each planted fault is found."""

from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.audit.pipeline import Scenario, unbroken
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import SeededNoise
from streamveil.core.selection.gaussian import GaussianSelection, GaussianThresholds
from streamveil.dataflow import rows
from tests.audit.attack import audit, restarted
from tests.planting import forced

COPIES = 20_000
HOUR = 3_600_000_000
NOISES = SeededNoise(11), SeededNoise(12)

EMPTY = pa.schema([
    ("unit", pa.int64()), ("key", pa.int64()), ("at", pa.timestamp("us", tz="UTC")),
    ("value", pa.float64()),
]).empty_table()  # fmt: skip


def query(
    budget, *, steps=6, keys=None, max_rows=4, per_group=1, window=None, measures=None, **options
):
    stream = sv.memory(EMPTY, event_time="at").protect(unit="unit")
    if window is not None:
        stream = stream.window(window)
    measures = measures or {"n": sv.count(), "s": sv.sum("value", bounds=(-1, 1))}
    timed = {"every": "1 hour", "start": "1970-01-01", "steps": steps}
    every = timed if window is not None else {"every": sv.rows(10**9), "steps": steps}
    finished = (
        stream.group_by("key", keys=keys or sv.discover(min_units=1))
        .agg(**measures)
        .bound(max_rows=max_rows, max_rows_per_group=per_group)
        .release(budget=budget, **every, **options)
    )
    return compile_plan(finished.plan)


def crowd(keys, units, step=1):
    """`units` background units on each key, arriving from `step` on."""
    return tuple(
        (100 * key + u, key, step + u % 2, (step + u % 2) * HOUR - 1, 0.5)
        for key in keys
        for u in range(units)
    )


def lone(*places, value=1.0):
    """Rows of the added unit: (key, step)."""
    return tuple((999, key, step, step * HOUR - 1, value) for key, step in places)


MANY_KEYS = Scenario(
    name="one row on each of four keys", steps=6, background=crowd(range(4), 14),
    added=lone((0, 2), (1, 2), (2, 2), (3, 2)),
)  # fmt: skip
ONE_KEY = Scenario(
    name="all rows on one key", steps=6, background=crowd([0], 14),
    added=lone((0, 1), (0, 1), (0, 2), (0, 3)),
)  # fmt: skip
NEW_KEYS = Scenario(
    name="keys nobody else has", steps=6, background=(), added=lone((5, 1), (6, 1), (7, 1), (8, 1))
)
LATE = Scenario(
    name="late rows and window edges", steps=10, background=crowd([0, 1], 14),
    added=((999, 0, 5, 4 * HOUR - 1, 1.0), (999, 0, 9, 1, 1.0), (999, 1, 4, 4 * HOUR, 1.0),
           (999, 1, 5, 4 * HOUR, 1.0)),
)  # fmt: skip
BUDGET = sv.Budget(epsilon=2, delta=0.05)  # a large delta, so that failures of it can be seen


@pytest.mark.parametrize("run", [unbroken, restarted])
@pytest.mark.parametrize("scenario", [MANY_KEYS, ONE_KEY, NEW_KEYS], ids=lambda s: s.name)
def test_the_claim_stands_for_discovered_keys(scenario, run):
    operator = query(BUDGET)
    found = audit(operator, scenario, NOISES, COPIES, run=run)
    assert not found.violates(operator.guarantee.epsilon)


@pytest.mark.parametrize("units", [4, 8, 16])
def test_the_claim_stands_for_the_table_of_coins(units):
    operator = query(sv.Budget(epsilon=4, delta=0.001), selection="table")
    scenario = replace(MANY_KEYS, background=crowd(range(4), units))
    found = audit(operator, scenario, NOISES, COPIES)
    assert not found.violates(operator.guarantee.epsilon)


def test_the_claim_stands_for_public_keys_late_rows_and_window_edges():
    keys = sv.public([1000 * copy + key for copy in range(COPIES) for key in (0, 1)])
    operator = query(BUDGET, keys=keys, window=sv.tumble("4 hours"), steps=10)
    found = audit(operator, LATE, NOISES, COPIES)
    assert not found.violates(operator.guarantee.epsilon)
    assert found.epsilon(0.05) > 0.1  # and the attack is no blank


def test_halved_noise_is_found():
    claim = query(sv.Budget(mu=0.5, delta=0.01)).guarantee.epsilon
    halved = query(sv.Budget(mu=1, delta=0.01))
    assert audit(halved, MANY_KEYS, NOISES, COPIES).violates(claim)


def test_a_sensitivity_without_the_root_of_the_number_of_rows_is_found():
    operator = query(BUDGET, max_rows=1, total_tests=0)
    faulty = forced(operator, bounds=replace(operator.bounds, max_rows=9))
    scenario = replace(
        MANY_KEYS, background=crowd(range(9), 14), added=lone(*[(k, 2) for k in range(9)])
    )
    assert audit(faulty, scenario, NOISES, COPIES).violates(operator.guarantee.epsilon)


def given(made):
    """What a dataclass was made from."""
    return {part.name: getattr(made, part.name) for part in fields(made) if part.init}


def test_a_threshold_without_the_union_over_triggers_is_found():
    operator = query(sv.Budget(epsilon=0.1, delta=0.05), steps=64, max_rows=1, selection="gaussian")
    selection = operator.aggregation.selection
    assert isinstance(selection, GaussianSelection)

    class Each(GaussianThresholds):
        def share(self, trigger):
            return self.beta

    class OneTrigger(GaussianSelection):
        @property
        def thresholds(self):
            honest = selection.thresholds
            return Each(**given(honest))

    wrong = OneTrigger(**given(selection))
    faulty = forced(operator, aggregation=forced(operator.aggregation, selection=wrong))
    scenario = replace(NEW_KEYS, added=lone((5, 1)), steps=64)
    assert not audit(operator, scenario, NOISES, 4000).violates(operator.guarantee.epsilon)
    assert audit(faulty, scenario, NOISES, 4000).violates(operator.guarantee.epsilon)


def test_noise_drawn_again_after_a_restart_is_found():
    keys = sv.public([1000 * copy for copy in range(COPIES)])
    operator = query(
        sv.Budget(epsilon=1, delta=0.01), keys=keys, steps=2, per_group=4,
        measures={"n": sv.count()},
    )  # fmt: skip

    def again(operator, batches, noise):
        base = int(noise.at("again").words(1)[0] % 997)
        sources = [noise, *[SeededNoise(base + i) for i in range(3)]]
        return [r for source in sources for r in unbroken(operator, batches, source)]

    scenario = replace(ONE_KEY, steps=2, added=lone(*[(0, 1)] * 4))
    assert not audit(operator, scenario, NOISES, COPIES).violates(operator.guarantee.epsilon)
    found = audit(operator, scenario, NOISES, COPIES, run=again)
    assert found.violates(operator.guarantee.epsilon)


def test_a_state_created_with_fresh_noise_is_found(monkeypatch):
    """A key whose counter starts at its first row shows when that row came."""
    operator = query(sv.Budget(epsilon=0.5, delta=0.05), steps=16, max_rows=1,
                     measures={"n": sv.count_units()}, selection="gaussian")  # fmt: skip
    scenario = Scenario(
        name="first by fifteen steps", steps=16, background=crowd([0], 60, step=15),
        added=lone((0, 1)),
    )  # fmt: skip
    assert not audit(operator, scenario, NOISES, COPIES).violates(operator.guarantee.epsilon)

    def fresh(self, names, trigger, at):
        return self.counter.init(len(names), trigger - 1)

    monkeypatch.setattr(GaussianSelection, "_catch_up", fresh)
    assert audit(operator, scenario, NOISES, COPIES).violates(operator.guarantee.epsilon)


def test_a_filter_shared_between_units_is_found(monkeypatch):
    """Rows of one unit that use up a shared allowance drop the rows of others."""
    copies = 6000
    public = sv.public([1000 * copy for copy in range(copies)])
    operator = query(
        sv.Budget(epsilon=1, delta=0.01), steps=2, keys=public, per_group=4,
        measures={"s": sv.sum("value", bounds=(-1, 1))},
    )  # fmt: skip
    scenario = Scenario(
        name="first in line", steps=2, background=crowd([0], 6), added=lone(*[(0, 1)] * 4, value=-1)
    )
    scenario = replace(scenario, background=tuple((*r[:4], 1.0) for r in scenario.background))
    scenario = replace(scenario, background=tuple((*r[:2], 2, *r[3:]) for r in scenario.background))
    assert not audit(operator, scenario, NOISES, copies).violates(operator.guarantee.epsilon)
    honest = rows.fingerprints
    monkeypatch.setattr(
        rows, "fingerprints",
        lambda units, *rest: honest(pa.array(units.to_numpy() // 1000), *rest),
    )  # fmt: skip
    assert audit(operator, scenario, NOISES, copies).violates(operator.guarantee.epsilon)


def test_copies_are_independent_of_each_other():
    """A scenario gives one copy the releases it would have alone."""
    operator = query(BUDGET)
    few = unbroken(operator, MANY_KEYS.batches(3, with_unit=True), NOISES[0])
    many = unbroken(operator, MANY_KEYS.batches(50, with_unit=True), NOISES[0])
    for a, b in zip(few, many, strict=True):
        inside = np.isin(b.table["key"].to_numpy() // 1000, [0, 1, 2])
        assert a.table.equals(b.table.filter(pa.array(inside)).combine_chunks())
