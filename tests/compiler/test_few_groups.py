"""Units are counted with noise for the groups that there are, where that number is public."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import product
from math import sqrt

import pytest

import streamveil as sv
from streamveil.compiler.group_by import compile_plan
from streamveil.compiler.plan_forecast import forecasts, lane_sd
from streamveil.core.reference import UnitLimits, UnitMemory, UnitRow, bound_unit
from streamveil.core.sensitivity import Bounds

DAYS, USERS, KEYS = 4, 60, ("a", "b", "c")
START = datetime(2026, 1, 1, tzinfo=UTC)
BUDGET = sv.Budget(epsilon=1e5, delta=1e-6)  # next to no noise: nothing may be cut


def rows():
    """Every user is there twice with every key on every day, from midnight to midnight."""
    each = [(user, key, day, hour) for day in range(DAYS) for hour in (0, 23)
            for user in range(USERS) for key in KEYS]  # fmt: skip
    user, key, day, hour = zip(*each, strict=True)
    at = [START + timedelta(days=d, hours=h) for d, h in zip(day, hour, strict=True)]
    return sv.memory({"user": user, "key": key, "at": at}, event_time="at")


def query(*, per=None, window=None, keys=None, every="1 day", **bounds):
    made = rows().protect("user", per=per)
    made = made if window is None else made.window(window)
    made = made.group_by("key", keys=sv.public(list(keys))) if keys else made
    made = made.agg(users=sv.count_units(), n=sv.count()).bound(**bounds)
    end = START + timedelta(days=DAYS)
    return made.release(every=every, start=START, end=end, budget=BUDGET)


CASES = {
    "no groups": (dict(max_rows=100), 1),
    "public groups": (dict(max_rows=100, keys=KEYS), 3),
    "windows": (dict(max_rows=100, window=sv.tumble("1 day")), DAYS),
    "windows of a period": (dict(max_rows=100, window=sv.tumble("1 day"), per="1 day"), 1),
    "half-days of a day": (
        dict(max_rows=100, window=sv.tumble("12 hours"), per="1 day", every="12 hours"),
        3,
    ),
    "public groups in windows": (
        dict(max_rows=100, window=sv.tumble("2 days"), keys=KEYS),
        2 * len(KEYS),
    ),
    "squares": (dict(max_squared_rows=10_000, keys=KEYS), 3),
    "fewer rows than groups": (dict(max_rows=2, keys=KEYS), None),
    "windows that overlap": (dict(max_rows=100, window=sv.hop("2 days", "1 day")), None),
}


@pytest.mark.parametrize("name", CASES)
def test_bounds_hold_as_many_groups_as_there_are(name):
    options, groups = CASES[name]
    assert compile_plan(query(**options).plan).bounds.groups == groups


@pytest.mark.parametrize("name", [name for name, (_, groups) in CASES.items() if groups])
def test_the_bound_of_groups_cuts_no_row(name, tmp_path):
    made = query(**CASES[name][0])
    last = {}
    for release in made.run(state=str(tmp_path / "job.veil")):
        for row in release.to_arrow().to_pylist():
            last[release.window, row.get("key")] = row["users"], row["n"]
    assert {users for users, _ in last.values()} == {USERS}
    assert sum(n for _, n in last.values()) == pytest.approx(DAYS * 2 * USERS * len(KEYS), abs=9)


def test_a_count_of_units_has_noise_for_one_unit_and_not_for_its_rows():
    """Beside a count of rows, which needs 32 times as much and has four fifths of the budget."""
    beside = compile_plan(query(max_rows=32).plan)
    units, counted = beside.design.noises
    assert float(counted / units) == pytest.approx(32 / sqrt(4), rel=0.01)


SIZES = {"expected_rows": 60.0, "expected_units": 1_000, "expected_groups": 12}


def by_forecast(*, keys=None, **measures):
    made = rows().protect("user").group_by("key", keys=keys or sv.discover()).agg(**measures)
    budget, every = sv.Budget(epsilon=3, delta=1e-8), sv.rows(10**6)
    plan = made.release(every=every, steps=1, budget=budget, **SIZES).plan
    return plan, compile_plan(plan)


def test_units_beside_rows_have_little_more_noise_than_alone():
    """A forecast bounds the groups of a unit: with its rows alone, noise would be many times it."""
    _, alone = by_forecast(users=sv.count_units())
    both = by_forecast(users=sv.count_units(), n=sv.count())
    counted = by_forecast(n=sv.count())
    assert both[1].bounds.groups is not None
    assert lane_sd(both[1], 0, 1) < 3 * lane_sd(alone, 0, 1)
    errors = [sum(one.l1 for _, one in forecasts(*asked)) for asked in (both, counted)]
    assert errors[0] < 2 * errors[1]


def test_no_more_groups_are_chosen_than_there_are():
    keys = sv.public([str(place) for place in range(5)])
    _, made = by_forecast(keys=keys, users=sv.count_units(), n=sv.count())
    assert made.bounds.groups == 5


@pytest.mark.parametrize("heaviest", [1, 2, 3])
def test_units_move_no_further_than_weights_allow(heaviest):
    """Every order of six rows in four groups whose public weights may fall; the most is reached."""
    limits, most = UnitLimits(quadratic=2, groups=3, scale=3), Fraction(0)
    bounds = Bounds(quadratic=2, groups=3, scale=3, heaviest=heaviest)
    for groups in product(range(4), repeat=5):
        for weights in product(range(1, heaviest + 1), repeat=4):
            memory = UnitMemory()
            some = [UnitRow(group=group, weight=weights[group]) for group in groups]
            decided = zip(some, bound_unit(memory, some, limits), strict=True)
            moved = sum(row.weight**2 for row, made in decided if made.first)
            most = max(most, Fraction(moved, 3**2))
    assert most <= bounds.units_moved
    assert most == bounds.units_moved or heaviest == 3  # there the squares of rows bound it
    more = [UnitRow(group=group, weight=heaviest) for group in range(4)]
    free = bound_unit(UnitMemory(), more, replace(limits, groups=4))
    assert sum(one.first for one in free) * Fraction(heaviest, 3) ** 2 > bounds.units_moved or (
        heaviest == 3
    )


def test_discovered_groups_are_no_public_number():
    made = (
        rows().protect("user").group_by("key").agg(users=sv.count_units(), n=sv.count())
        .bound(max_rows=100).release(budget=sv.Budget(epsilon=1, delta=1e-6))
    )  # fmt: skip
    assert compile_plan(made.plan).bounds.groups is None


WITHIN = {"max_groups": 2, "max_rows_per_group": 3}


def found(count, *, keys=None, **bounds):
    made = (
        rows()
        .protect("user")
        .group_by("key", keys=sv.public(list(keys)) if keys else sv.discover())
    )
    return made.agg(**count).bound(**bounds).release(budget=BUDGET)


UNITS_TOO = {"users": sv.count_units(), "n": sv.count()}


@pytest.mark.parametrize("keys", [None, KEYS])
def test_a_query_that_says_how_many_groups_counts_units_in_no_more(keys):
    said = compile_plan(found(UNITS_TOO, keys=keys, **WITHIN).plan)
    unsaid = compile_plan(found(UNITS_TOO, max_rows=6, max_rows_per_group=3).plan)
    assert (said.bounds.units_l2_squared, unsaid.bounds.units_l2_squared) == (2, 6)
    assert said.bounds.l2_squared == unsaid.bounds.l2_squared
    assert "max_groups = 2" in said.outputs[0].cut


def test_rows_beyond_these_groups_are_cut(tmp_path):
    [release] = found(UNITS_TOO, keys=KEYS, **WITHIN).run(state=str(tmp_path / "job.veil"))
    shown = release.to_arrow().to_pylist()
    assert sum(row["users"] for row in shown) == pytest.approx(2 * USERS, abs=1)
    assert sum(row["n"] for row in shown) == pytest.approx(2 * 3 * USERS, abs=1)


def test_rows_alone_may_lie_in_more_groups():
    """A count of rows would have the same noise."""
    assert compile_plan(found({"n": sv.count()}, **WITHIN).plan).bounds.groups is None
