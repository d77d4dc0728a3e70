"""A mis-sized group-by cannot be written down, is refused, or its loss follows what is there."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from fractions import Fraction
from functools import cache

import pyarrow as pa
import pytest

import streamveil as sv
from streamveil.calendars import Cells
from streamveil.compiler.group_by import compile_plan
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.mechanism import CutCounter
from streamveil.core.release import weighted_loss
from streamveil.core.sensitivity import Bounds, Lane
from streamveil.counters import COUNTERS, HonakerCounter

ROWS = pa.schema(
    [("u", pa.int64()), ("k", pa.int64()), ("t", pa.timestamp("us", tz="UTC")), ("v", pa.float64())]
).empty_table()
DELTA = Fraction(1, 10**9)
ONE = Bounds(max_rows=1)


def operator(period=None, keys=None, bounds=None, measures=None, steps=100, **options):
    scope = {"per": period} if period else {}
    stream = sv.memory(ROWS, event_time="t").protect(unit="u", **scope)
    if period:
        stream = stream.window(sv.tumble(period))
    measures = measures or {"n": sv.count(), "s": sv.sum("v", bounds=(-1, 1))}
    timed = {"every": "1 hour", "start": "1970-01-01", "steps": 48}
    every = timed if period else {"every": sv.rows(10**6), "steps": steps}
    query = (
        stream.group_by("k", keys=keys or sv.discover(min_units=1)).agg(**measures)
        .bound(**(bounds or {"max_rows": 6}))
        .release(**every, budget=sv.Budget(epsilon=1, delta=1e-9), look_share=0, **options)
    )  # fmt: skip
    return compile_plan(query.plan)


def later(**options):
    """An operator that the first test to need it compiles, not who collects the tests."""
    return cache(lambda: operator(**options))


TABLE = later(selection="table")
GAUSSIAN = later(selection="gaussian")
SHARED = later(selection="gaussian", bounds={"max_rows": 6, "max_rows_per_group": 1},
                  measures={"n": sv.count()})  # fmt: skip
PUBLIC = later(keys=sv.public([1, 2, 3]))
ROUNDS = later(preset="dp-sqlp")
TREES = later(keys=sv.public([1]), measures={"q": sv.median("v", bounds=(0, 1))})
DAILY = later(period="1 day", selection="gaussian")
WEIGHTED = later(selection="table", bounds={"max_squared_rows": 8}, entry_weight=0.5,
                    weight_reference=100.0)  # fmt: skip
COUNTED = later(selection="gaussian", measures={"d": sv.count_distinct("v"), "n": sv.count()})


def design(made, **changes):
    return replace(made, design=replace(made.design, **changes))


def limits(made, **changes):
    return design(made, limits=replace(made.design.limits, **changes))


def settings(made, **changes):
    return design(made, selection=replace(made.design.selection, **changes))


# ---- what nobody can say

DERIVED = {
    "the bounds that run": lambda: (GAUSSIAN(), "bounds", ONE),
    "the loss": lambda: (GAUSSIAN(), "loss", Loss()),
    "what is counted": lambda: (PUBLIC(), "aggregation", GAUSSIAN().aggregation),
    "the places of trees": lambda: (TREES(), "trees", ()),
    "who is protected": lambda: (DAILY(), "protects", replace(DAILY().protects, period=None)),
    "the units that may meet": lambda: (PUBLIC(), "max_units", 1),
    "the look at the rows": lambda: (PUBLIC(), "look", None),
    "groups of a unit": lambda: (GAUSSIAN().design.selection, "groups", 1),
    "hidden groups of a unit": lambda: (GAUSSIAN().design.selection, "hidden", 1),
    "slots of a count of units": lambda: (GAUSSIAN().design.selection, "slots", 1),
    "rows of a round": lambda: (ROUNDS().design.selection, "rows", 1),
    "triggers of rounds": lambda: (ROUNDS().design.selection, "horizon", 50),
    "the trees of rounds": lambda: (ROUNDS().aggregation.selection, "trees", None),
    "what rounds cost": lambda: (ROUNDS().aggregation.selection, "loss", Loss()),
    "what rounds fail with": lambda: (ROUNDS().aggregation.selection, "failure", 0.0),
    "the trees of releases": lambda: (ROUNDS().aggregation, "release_trees", ()),
    "whether groups restart": lambda: (ROUNDS().aggregation, "restarts", False),
    "triggers of a table": lambda: (TABLE().design.selection, "horizon", 50),
    "keys of a unit in a table": lambda: (TABLE().design.selection, "keys_per_unit", 1),
    "the counter of a selection": lambda: (GAUSSIAN().design.selection, "counter", None),
    "triggers of a test": lambda: (TABLE().design.test, "triggers", (1, 100)),
    "bounds of a test": lambda: (TABLE().design.test, "bounds", ONE),
    "the lane of a test": lambda: (TABLE().design.test, "lane", Lane(kind="rows")),
    "the counter of a test": lambda: (TABLE().design.test, "counter", None),
    "the weights of a test": lambda: (WEIGHTED().design.test, "rule", None),
    "which triggers are tested": lambda: (TABLE().aggregation.test, "triggers", (100,)),
    "the noise of a test": lambda: (TABLE().aggregation.test, "deviation", 1.0),
    "what a unit may add to a hidden group": lambda: (TABLE().aggregation.test, "most", 1),
    "the least total that is tested": lambda: (TABLE().aggregation.test, "floor", 1),
    "what a test costs": lambda: (TABLE().aggregation.test, "loss", Loss()),
    "the test of a mechanism": lambda: (TABLE().aggregation, "test", None),
    "how far a row reaches": lambda: (PUBLIC().design.plain[1], "reach", 1),
    "the ends of an increment": lambda: (PUBLIC().design.plain[1], "ends", (0, 1)),
    "which lanes share noise": lambda: (SHARED().aggregation, "shared", None),
    "which lanes are charged": lambda: (PUBLIC().aggregation, "charged", (0,)),
    "the counters": lambda: (PUBLIC().aggregation, "counters", ()),
    "all lanes": lambda: (TREES().aggregation, "lanes", ()),
    "the bounds of a mechanism": lambda: (PUBLIC().aggregation, "bounds", ONE),
    "the selection of a mechanism": lambda: (GAUSSIAN().aggregation, "selection", None),
    "the count of cut rows": lambda: (PUBLIC().aggregation, "cut", None),
    "the loss of a mechanism": lambda: (PUBLIC().aggregation, "loss", Loss()),
}  # fmt: skip


@pytest.mark.parametrize("derived", DERIVED.values(), ids=DERIVED.keys())
def test_what_follows_is_no_setting(derived):
    part, name, value = derived()
    assert name not in {field.name for field in fields(part)}
    with pytest.raises((TypeError, ValueError), match=f"'{name}'|{name} is declared with init"):
        replace(part, **{name: value})


# ---- what is refused


class HalfPaid(HonakerCounter):
    """Trees that charge for half of what a unit moves."""

    def loss(self, moved=1, keys=None):
        return super().loss(Fraction(moved) / 2, keys)


LAPLACE = COUNTERS["k-ary-tree"](horizon=10, sigma=100)

REFUSED = {
    "slots beside a selection": ("slots follow", lambda: limits(TABLE(), slots=9)),
    "slots of public groups": ("slots follow", lambda: limits(PUBLIC(), slots=1)),
    "quanta of weight beside the weights": ("slots follow", lambda: limits(WEIGHTED(), scale=7)),
    "a lane without noise": (
        "2 lanes draw noise, and 1",
        lambda: design(PUBLIC(), noises=PUBLIC().design.noises[:1]),
    ),
    "noise without a lane": (
        "2 lanes draw noise, and 3",
        lambda: design(PUBLIC(), noises=(*PUBLIC().design.noises, 1)),
    ),
    "noise of its own for a lane that is shared": (
        "0 lanes draw noise, and 1",
        lambda: design(SHARED(), noises=(Fraction(1),)),
    ),
    "a shared lane under more than one row a group": (
        "1 lanes draw noise, and 0",
        lambda: limits(SHARED(), per_group=None),
    ),
    "a level of a tree without noise": (
        "4 lanes draw noise, and 3",
        lambda: design(TREES(), noises=TREES().design.noises[1:]),
    ),
    "a node alone": (
        "no plain lanes",
        lambda: design(
            PUBLIC(),
            plain=(*PUBLIC().design.plain, TREES().aggregation.lanes[-1]),
            noises=(*PUBLIC().design.noises, 1),
        ),
    ),
    "a tree of rows": ("made of nodes", lambda: design(TREES(), trees=((Lane(kind="rows"), 1),))),
    "a tree without levels": (
        "made of nodes",
        lambda: design(TREES(), trees=((TREES().aggregation.lanes[0], 0),)),
    ),
    "no noise": (
        "sigma must",
        lambda: design(PUBLIC(), noises=(0, *PUBLIC().design.noises[1:])).loss,
    ),
    "an entry weight above full": (
        "quanta of weight",
        lambda: replace(WEIGHTED().design.rule, entry=10**6),
    ),
    "an entry weight of nothing": (
        "quanta of weight",
        lambda: replace(WEIGHTED().design.rule, entry=0),
    ),
    "weights over a counter that draws otherwise": (
        "weights need a BLT",
        lambda: design(WEIGHTED(), test=None, counter=ROUNDS().design.counter),
    ),
    "rows of a group limited by weight": (
        "no number of rows",
        lambda: limits(WEIGHTED(), per_group=2),
    ),
    "weights under a count of units": (
        "has no weights",
        lambda: (
            design(limits(GAUSSIAN(), max_rows=None, quadratic=8), rule=WEIGHTED().design.rule).loss
        ),
    ),
    "weights in rounds": ("weights need", lambda: design(ROUNDS(), rule=WEIGHTED().design.rule)),
    "units in rounds": (
        "count no units",
        lambda: design(ROUNDS(), plain=(Lane(kind="units"),), noises=ROUNDS().design.noises[:1]),
    ),
    "rounds of another counter": (
        "charges less",
        lambda: design(ROUNDS(), counter=PUBLIC().design.counter),
    ),
    "rounds without a bound on rows": (
        "rounds need a bound",
        lambda: limits(ROUNDS(), max_rows=None, quadratic=9),
    ),
    "rounds of trees that charge half": (
        "charges less",
        lambda: design(ROUNDS(), counter=HalfPaid(horizon=1, sigma=1)),
    ),
    "rounds of Laplace noise": (
        "asks for L1",
        lambda: design(ROUNDS(), counter=COUNTERS["k-ary-tree"](horizon=1, sigma=1)),
    ),
    "Laplace noise for what a unit moves in L2": (  # in 100 groups, ten times what that says
        "asks for L1",
        lambda: design(
            limits(PUBLIC(), max_rows=100, per_group=1),
            counter=COUNTERS["k-ary-tree"](horizon=1, sigma=1),
        ),
    ),
    "a selection by hand with Laplace noise": (
        "asks for L1",
        lambda: replace(GAUSSIAN().aggregation.selection, counter=LAPLACE).loss,
    ),
    "thresholds of Laplace noise": (
        "asks for L1",
        lambda: replace(GAUSSIAN().aggregation.selection, counter=LAPLACE).threshold(1),
    ),
    "cut rows with Laplace noise": ("asks for L1", lambda: CutCounter(counter=LAPLACE).loss),
    "a lane by hand with Laplace noise": (
        "asks for L1",
        lambda: weighted_loss(LAPLACE, 10, 100, None),
    ),
    "rounds without an end": (
        "number of triggers",
        lambda: replace(ROUNDS(), schedule=replace(ROUNDS().schedule, steps=None)),
    ),
    "rounds that never fail": ("beta must", lambda: settings(ROUNDS(), beta=0.0)),
    "rounds of no unit": ("floor must", lambda: settings(ROUNDS(), floor=0)),
    "rounds without noise": ("noise must", lambda: settings(ROUNDS(), noise=0)),
    "a test at no trigger": (
        "at least 1",
        lambda: design(TABLE(), test=replace(TABLE().design.test, tests=0)),
    ),
    "a test of a lane before the first": (  # its noise would be another than is released
        "before the first",
        lambda: design(TABLE(), test=replace(TABLE().design.test, place=-1)),
    ),
    "an entry weight that is not whole": (
        "entry must be a whole",
        lambda: replace(WEIGHTED().design.rule, entry=2.5),
    ),
    "a test that never fails": (
        "beta must",
        lambda: design(TABLE(), test=replace(TABLE().design.test, beta=Fraction(0))),
    ),
    "coins without an end": (
        "number of triggers",
        lambda: replace(TABLE(), schedule=replace(TABLE().schedule, steps=None)),
    ),
    "a counter of a horizon without one": (
        "number of triggers",
        lambda: replace(PUBLIC(), schedule=replace(PUBLIC().schedule, steps=None)),
    ),
    "coins that begin below no unit": ("some slots", lambda: settings(TABLE(), offset=-1)),
    "no slots for coins": ("keys_per_unit", lambda: settings(TABLE(), slots=0).loss),
    "public groups beside a selection": (
        "public or selected",
        lambda: replace(GAUSSIAN(), public=PUBLIC().public),
    ),
    "neither public groups nor a selection": (
        "public or selected",
        lambda: replace(PUBLIC(), public=None),
    ),
    "a test of public totals": (
        "public groups are not tested",
        lambda: design(PUBLIC(), test=TABLE().design.test),
    ),
    "a test of totals beside thresholds": (
        "beside coins",
        lambda: design(GAUSSIAN(), test=TABLE().design.test),
    ),
    "a test of what falls": (
        "one unit from many",
        lambda: design(TABLE(), test=replace(TABLE().design.test, place=1)),
    ),
    "noise that 64 bits do not hold": (
        "2e\\+15 quanta",
        lambda: design(PUBLIC(), noises=tuple(2e15 for _ in PUBLIC().design.noises)).loss,
    ),
    "noise that 64 bits do not hold of a light key": (
        "[0-9]e\\+1[67] quanta",
        lambda: design(WEIGHTED(), noises=tuple(1e15 for _ in WEIGHTED().design.noises)).loss,
    ),
    "no unit at all": ("max_units", lambda: design(PUBLIC(), max_units=0)),
    "a confidence of one": ("confidence", lambda: replace(PUBLIC(), confidence=1.0)),
    "a selection of other bounds without slots": (
        "some slots",
        lambda: replace(TABLE().aggregation.selection, bounds=ONE),
    ),
}


@pytest.mark.parametrize(("why", "planted"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_sized_cannot_be_made(why, planted):
    with pytest.raises(ValueError, match=why):
        planted()


# ---- what follows


def longer(made):
    return replace(made, schedule=replace(made.schedule, steps=1000))


@pytest.mark.parametrize("made", [TABLE, GAUSSIAN, PUBLIC, ROUNDS, TREES, SHARED])
def test_every_counter_is_made_for_the_triggers_of_a_window(made):
    for steps in (1, 5, 1000):
        other = replace(made(), schedule=replace(made().schedule, steps=steps)).aggregation
        counters = [*other.counters]
        if other.cut is not None:
            counters.append(other.cut.counter)
        if hasattr(other.selection, "counter"):
            counters.append(other.selection.counter)
        if hasattr(other.selection, "horizon"):
            assert other.selection.horizon == steps
        assert {counter.horizon for counter in counters} == {steps}
        assert other.test is None or other.test.triggers[-1] == steps


@pytest.mark.parametrize("made", [TABLE, GAUSSIAN, PUBLIC, ROUNDS, TREES, SHARED])
def test_more_triggers_are_charged(made):
    assert epsilon(longer(made())) > epsilon(made())


def test_a_shape_of_another_horizon_changes_nothing():
    shape = replace(PUBLIC().design.counter, horizon=5, sigma=7)
    assert design(PUBLIC(), counter=shape).loss == PUBLIC().loss


def test_all_parts_know_the_bounds_that_run():
    for made in (TABLE(), GAUSSIAN(), ROUNDS(), WEIGHTED()):
        more = limits(made, max_rows=7, quadratic=None, per_group=None).aggregation
        assert more.selection.bounds == more.bounds
        assert more.test is None or more.test.bounds == more.bounds
    assert limits(GAUSSIAN(), max_rows=7).aggregation.selection.groups == 7
    assert settings(TABLE(), slots=9).aggregation.selection.table.keys_per_unit == 9
    assert TABLE().bounds.slots == TABLE().design.selection.slots
    assert WEIGHTED().bounds.scale == WEIGHTED().design.rule.scale > 1


def test_lanes_that_are_read_twice_draw_and_cost_nothing_more():
    shared = SHARED().aggregation
    assert shared.shared == 0
    assert shared.charged == SHARED().design.noises == ()
    assert shared.counters == (shared.selection.counter,)
    assert GAUSSIAN().aggregation.shared is None  # six rows in a group are not one unit
    assert COUNTED().aggregation.shared is None


def test_a_level_of_a_tree_has_one_noise_and_all_its_nodes():
    made = TREES().aggregation
    (first, node, levels), found = TREES().trees[0], {}
    assert first == 0
    for lane, counter in zip(made.lanes, made.counters, strict=True):
        found.setdefault(lane.level, []).append((lane.place, counter))
    assert sorted(found) == list(range(1, levels + 1))
    for level, nodes in found.items():
        assert [place for place, _ in nodes] == list(range(node.fan**level))
        assert len({id(counter) for _, counter in nodes}) == 1


def test_periods_say_who_is_protected():
    hours = Cells(length_us=DAILY().periods.length_us // 24)
    assert replace(DAILY(), periods=hours).protects.period == timedelta(hours=1)
    assert replace(DAILY(), periods=None).protects.period is None


def epsilon(made):
    return made.guarantee.epsilon(DELTA)


def noises(made, place, times):
    """The noise of one charged lane, as many times as large."""
    some = list(made.design.noises)
    some[place] = Fraction(some[place]) * times
    return design(made, noises=tuple(some))


def sums(made, **changes):
    return design(made, test=None, plain=tuple(
        replace(lane, **{name: change(lane) for name, change in changes.items()})
        if lane.kind == "sum" else lane for lane in made.design.plain
    ))  # fmt: skip


HALF = {
    "a counter with half its noise": lambda: noises(PUBLIC(), 1, Fraction(1, 2)),
    "bounds of twice the values": lambda: sums(
        PUBLIC(), low=lambda lane: 2 * lane.low, high=lambda lane: 2 * lane.high
    ),
    "a finer lattice": lambda: sums(PUBLIC(), quantum=lambda lane: lane.quantum / 2),
    "more rows of a unit": lambda: limits(PUBLIC(), max_rows=24),
}  # fmt: skip


@pytest.mark.parametrize("planted", HALF.values(), ids=HALF.keys())
def test_the_loss_follows_what_is_there(planted):
    assert epsilon(planted()) > 1.15 * epsilon(PUBLIC())


@pytest.mark.parametrize("made", [TABLE, GAUSSIAN, SHARED, ROUNDS, WEIGHTED, COUNTED, DAILY])
def test_less_noise_anywhere_is_charged(made):
    made = made()
    less = [noises(made, place, Fraction(1, 3)) for place in range(len(made.design.noises))]
    if hasattr(made.design.selection, "noise"):
        less.append(settings(made, noise=made.design.selection.noise / 3))
    for other in less:
        assert other.loss.gaussian + other.loss.zcdp > made.loss.gaussian + made.loss.zcdp
    assert less


def test_less_noise_of_cut_rows_is_charged():
    made = operator(keys=sv.public([1]), cut_share=0.2)
    assert design(made, cut=made.design.cut / 2).loss.gaussian > made.loss.gaussian


def test_chances_are_charged():
    assert design(PUBLIC(), max_units=10**10).loss.chance > PUBLIC().loss.chance
    test = replace(TABLE().design.test, beta=TABLE().design.test.beta * 2)
    assert design(TABLE(), test=test).loss.delta > TABLE().loss.delta
    assert settings(GAUSSIAN(), beta=1e-3).loss.delta > GAUSSIAN().loss.delta


def test_what_is_compiled_keeps_its_budget():
    """And nothing above is refused for another reason."""
    budget = sv.Budget(epsilon=1, delta=1e-9)
    for made in (
        TABLE(),
        GAUSSIAN(),
        SHARED(),
        PUBLIC(),
        ROUNDS(),
        TREES(),
        DAILY(),
        WEIGHTED(),
        COUNTED(),
    ):
        assert replace(made) == made
        assert made.loss.fits(budget)
