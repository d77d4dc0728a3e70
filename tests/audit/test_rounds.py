"""The account of the preset dp-sqlp: no claim is passed, and planted faults are caught."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from streamveil.audit.worst import accounts
from streamveil.compiler.group_by import compile_plan
from streamveil.errors import BudgetError, PlanError
from streamveil.plan import Bounding, Clock, KeySet
from tests.audit.many import accounts_of_many
from tests.audit.queries import AGGREGATES, BESIDE, BOUNDINGS, BUDGETS, END, EVERY, WINDOWS, pick
from tests.dataflow.streams import plan_of
from tests.planting import forced

ADDED = tuple(one for one in AGGREGATES if one.function in ("count", "sum"))
CLOCK = Clock(kind="event", every=EVERY, start_us=0, end_us=END)


def rounds_drawn(rng):
    """A query of the preset, which may be refused."""
    chosen = rng.permutation(len(ADDED))[: int(rng.integers(1, 3))]
    while True:
        try:
            return compile_plan(plan_of(
                preset="dp-sqlp", clock=CLOCK, budget=pick(rng, BUDGETS[:2]),
                aggregates=tuple(ADDED[place] for place in chosen), window=pick(rng, WINDOWS),
                bounding=pick(rng, BOUNDINGS), key_set=KeySet(min_units=pick(rng, (1, 3))),
                period_us=pick(rng, (None, None, 20)),
            ))  # fmt: skip
        except (PlanError, BudgetError):
            continue


def judged(seed, runs, beside=BESIDE):
    """Accounts of one query of the preset: of a pair alone, and of many beside each other."""
    operator = rounds_drawn(np.random.default_rng(seed))
    yield from accounts(operator, seed, runs)
    yield from accounts_of_many(operator, seed, runs, beside)


def test_units_in_rounds_lose_no_more_than_is_claimed():
    most: dict[str, float] = {}
    for seed in range(12):
        for one in judged(seed, 1):
            assert one.account.stands, (seed, one.account.broken())
            for part in one.account.parts:
                most[part.name] = max(most.get(part.name, 0.0), part.tightness)
    assert max(part for name, part in most.items() if "(sum)" in name) > 0.999
    assert most["selection"] > 0.7  # a tree costs less than one of its levels each
    assert most["rounds of one unit"] > 0.7


QUERY = plan_of(preset="dp-sqlp", clock=CLOCK, budget=BUDGETS[0], aggregates=ADDED[:1],
                bounding=Bounding(max_rows=2, max_rows_per_group=1))  # fmt: skip


def selection(**changes):
    def change(one):
        made = forced(one.aggregation.selection, **changes)
        return forced(one, aggregation=forced(one.aggregation, selection=made))

    return change


def half_trees(one):
    return selection(noise=Fraction(one.aggregation.selection.noise) / 2)(one)


def half_releases(one):
    made = tuple(replace(c, sigma=Fraction(c.sigma) / 2) for c in one.aggregation.counters)
    return forced(one, aggregation=forced(one.aggregation, counters=made))


RUNS = {
    "half the noise of the trees that select": half_trees,
    "half the noise of the trees that release": half_releases,
    "thresholds of one trigger": selection(beta=2e-4),
    "bound on rows plus one": lambda one: forced(one, bounds=forced(one.bounds, max_rows=3)),
}


def caught(change=lambda one: one):
    operator = compile_plan(QUERY)
    return any(not one.account.stands for one in accounts(operator, 3, 24, change))


@pytest.mark.parametrize("name", RUNS)
def test_another_operator_than_the_claimed_one_is_caught(name):
    assert caught(RUNS[name])
