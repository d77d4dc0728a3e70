"""Planted faults, each in the code that runs and not in what it claims: every one is caught."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from streamveil.audit.worst import accounts
from streamveil.compiler import sizing
from streamveil.compiler.group_by import compile_plan
from streamveil.core import mechanism
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import kernels
from streamveil.core.counters.blt import BltCounter, BltSchedule
from streamveil.core.noise import Place, SilentNoise
from streamveil.core.selection.coins import SelectionTable
from streamveil.core.selection.gaussian import GaussianSelection, GaussianThresholds
from streamveil.core.selection.total_test import TotalsAlone, TotalTest
from streamveil.core.sensitivity import Bounds
from streamveil.dataflow import cut_rows, group_by, release, rows, stages
from streamveil.dataflow.bounding import UnitRows
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.unit_kernels import COUNTED, NEW
from streamveil.errors import PlanError, ReusedNoiseError
from streamveil.plan import Aggregate, Bounding, Clock, KeySet, Window
from tests.audit.queries import BUDGETS, EVERY, KEYS
from tests.dataflow.streams import plan_of
from tests.planting import forced

PAIRS = 24
CLOCK = Clock(kind="event", every=EVERY, start_us=0, end_us=4 * EVERY)
LANES = (
    Aggregate(name="n", function="count"),
    Aggregate(name="s", function="sum", expression="v", low=-1.0, high=9.0),
    Aggregate(name="people", function="count_units"),
)
TREE = (Aggregate(name="q", function="quantile", expression="v", low=0.0, high=4.0,
                  options={"fan": 2, "levels": 2}),)  # fmt: skip
SQUARES = (Aggregate(name="m", function="variance", expression="v", low=2.0, high=6.0),)


def query(**changes):
    settings = {
        "budget": BUDGETS[0], "clock": CLOCK, "aggregates": LANES,
        "key_set": KeySet(public=KEYS), "bounding": Bounding(max_rows=4, max_rows_per_group=1),
    }  # fmt: skip
    return lambda: compile_plan(plan_of(**{**settings, **changes}))


PUBLIC = query()
DEEP = query(bounding=Bounding(max_rows=6, max_rows_per_group=3))
QUADRATIC = query(bounding=Bounding(quadratic=6), options={"weights": "flat"})
WEIGHTED = query(aggregates=LANES[:1], bounding=Bounding(quadratic=9), key_set=KeySet(),
                 options={"selection": "table", "entry_weight": 0.5})  # fmt: skip
TABLE = query(key_set=KeySet(), bounding=Bounding(quadratic=6), options={"weights": "flat",
              "selection": "table", "hidden_groups": 2})  # fmt: skip
THRESHOLD = query(key_set=KeySet(), options={"selection": "gaussian"})
TOTALS = query(key_set=KeySet(min_units=2), bounding=Bounding(quadratic=6), options={
               "selection": "totals"})  # fmt: skip
HOPS = query(window=Window(kind="hop", size_us=20, slide_us=10))
DAYS = query(window=Window(kind="tumble", size_us=20), period_us=20)
LATE = query(window=Window(kind="tumble", size_us=20, lateness_us=10), period_us=20)
CUT = query(options={"cut_share": 0.2})
WHOLE_PERIOD = query(period_us=20)
FEW = query(bounding=Bounding(max_rows=9))  # fewer groups than rows
FEW_FOUND = query(aggregates=LANES[::2], key_set=KeySet(), options={"selection": "table"},
                  bounding=Bounding(max_rows=6, max_rows_per_group=3, max_groups=2))  # fmt: skip
LIGHT = query(aggregates=LANES[::2], bounding=Bounding(max_groups=3), key_set=KeySet(),
              options={"selection": "table", "entry_weight": 0.25})  # fmt: skip


def caught(operator, change=lambda one: one, pairs=PAIRS, seed=3):
    """What the account says of a fault; None if it sees none."""
    for one in accounts(operator, seed, pairs, change):
        if not one.account.stands:
            return one.account.broken()
    return None


# ---- faults in the operator that runs: (query, what runs instead)


def totals(**changes):
    return lambda one: forced(one, aggregation=forced(one.aggregation, **changes))


def counters(place, factor):
    def change(one):
        made = list(one.aggregation.counters)
        made[place] = replace(made[place], sigma=Fraction(made[place].sigma) * factor)
        return totals(counters=tuple(made))(one)

    return change


def bounds(**changes):
    def change(one):
        more = {name: getattr(one.bounds, name) + by for name, by in changes.items()}
        return forced(one, bounds=forced(one.bounds, **more))

    return change


def selection(make):
    return lambda one: totals(selection=make(one.aggregation.selection))(one)


def lower_thresholds(one):
    return forced(one, beta=one.beta * 100)


def half_noise(one):
    return forced(one, counter=replace(one.counter, sigma=Fraction(one.counter.sigma) / 2))


def coins_of(shift):
    def change(one):
        coins = one.coins
        made = forced(coins, coins=tuple(min(2 * coin + shift, 2**64) for coin in coins.coins))
        return forced(one, coins=made)

    return change


def flatter_shift(one):
    return forced(one, shift_epsilon=one.shift_epsilon * 2)


def cut_noise(one):
    cut = one.aggregation.cut
    less = replace(cut.counter, sigma=Fraction(cut.counter.sigma) / 2)
    return totals(cut=forced(cut, counter=less))(one)


def lanes(**changes):
    def change(one):
        made = tuple(
            forced(lane, **changes) if lane.kind == "sum" else lane
            for lane in one.aggregation.lanes
        )
        return totals(lanes=made)(one)

    return change


RUNS = {
    "half the noise of the first lane": (PUBLIC, counters(0, Fraction(1, 2))),
    "half the noise of the last lane": (PUBLIC, counters(2, Fraction(1, 2))),
    "one percent less noise in one lane": (PUBLIC, counters(1, Fraction(99, 100))),
    "half the noise of a lane beside coins": (TABLE, counters(1, Fraction(1, 2))),
    "half the noise of a lane with weights": (WEIGHTED, counters(0, Fraction(1, 2))),
    "half the noise in hopping windows": (HOPS, counters(0, Fraction(1, 2))),
    "a tenth less noise of units in few groups": (FEW, counters(2, Fraction(9, 10))),
    "bound on groups plus one": (FEW_FOUND, bounds(groups=1)),
    "a tenth less noise of units at light weights": (LIGHT, counters(1, Fraction(9, 10))),
    "bound on groups plus one at light weights": (LIGHT, bounds(groups=1)),
    "half the noise of the cut rows": (CUT, cut_noise),
    "half the noise of the selection": (THRESHOLD, selection(half_noise)),
    "bound on rows plus one": (PUBLIC, bounds(max_rows=1)),
    "bound on rows of a group plus one": (DEEP, bounds(per_group=1)),
    "quadratic bound plus one": (QUADRATIC, bounds(quadratic=1)),
    "one group more that coins count": (TABLE, bounds(slots=1)),
    "thresholds too low": (THRESHOLD, selection(lower_thresholds)),
    "coins twice as likely": (TABLE, selection(coins_of(0))),
    "coins a little likelier": (TABLE, selection(coins_of(2**40))),
    "a shift of half the length": (TABLE, selection(flatter_shift)),
    "bounds of values ten times as wide": (PUBLIC, lanes(high=90.0)),
    "periods half as long": (
        WHOLE_PERIOD,
        lambda one: forced(one, periods=replace(one.periods, length_us=10)),
    ),
    "periods of windows half as long": (
        DAYS,
        lambda one: forced(one, periods=replace(one.periods, length_us=10)),
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_another_operator_than_the_claimed_one_is_caught(name):
    make, change = RUNS[name]
    assert caught(make(), change)


# ---- faults in the code


def silent_test(patch):
    honest = TotalTest.noise
    quiet = SilentNoise()
    patch.setattr(TotalTest, "noise", lambda self, counter, place, names, when: honest(
        self, counter, place, names, (when[0], replace(when[1], noise=quiet))))  # fmt: skip


def every_batch_forgets(patch):
    honest = GroupBy.bound

    def bound(self, state, period, some):  # fmt: skip
        state.units.clear()
        return honest(self, state, period, some)

    patch.setattr(GroupBy, "bound", bound)


def rows_weigh_one(patch):
    honest = GroupBy.bound

    def bound(self, state, period, some):  # fmt: skip
        light = UnitRows(some.unit, some.group, np.ones_like(some.weight), some.hidden)
        return honest(self, state, period, light)

    patch.setattr(GroupBy, "bound", bound)


def always_new(patch):
    honest = GroupBy.bound

    def bound(self, state, period, some):  # fmt: skip
        passed = honest(self, state, period, some)
        passed.first[:] = NEW | COUNTED
        return passed

    patch.setattr(GroupBy, "bound", bound)


def nothing_is_bounded(patch):
    honest = GroupBy.bound

    def bound(self, state, period, some):  # fmt: skip
        passed = honest(self, state, period, some)
        passed.accepted[:] = True
        return passed

    patch.setattr(GroupBy, "bound", bound)


def one_bound_for_all(patch):
    honest = GroupBy.bound

    def bound(self, state, period, some):  # fmt: skip
        same = UnitRows(np.ones_like(some.unit), some.group, some.weight, some.hidden)
        return honest(self, state, period, same)

    patch.setattr(GroupBy, "bound", bound)


def forgotten_before_late_rows(patch):
    honest = group_by.is_over
    patch.setattr(group_by, "is_over", lambda *given: honest(*given[:-1], given[-1] + 1))


def every_window_bounds_alone(patch):
    honest = GroupBy.bound

    def bound(self, state, period, some):  # fmt: skip
        mixed = UnitRows(some.unit ^ some.group.astype(np.uint64), *some[1:])
        return honest(self, state, period, mixed)

    patch.setattr(GroupBy, "bound", bound)


def never_clamped(patch):
    patch.setattr(
        rows.Lane,
        "quanta",
        lambda lane, values: np.rint(
            (np.clip(values, -1e6, 1e6) - lane.centre) / float(lane.quantum)
        ).astype(np.int64),
    )
    patch.setattr(stages, "within_reach", lambda _, columns: columns)


def never_centred(patch):
    patch.setattr(
        rows.Lane,
        "quanta",
        lambda lane, values: np.rint(
            np.clip(values, lane.low, lane.high) / float(lane.quantum)
        ).astype(np.int64),
    )
    patch.setattr(stages, "within_reach", lambda _, columns: columns)


def two_nodes_of_a_level(patch):
    honest = stages.lane_hits
    patch.setattr(stages, "lane_hits", lambda *given: np.hstack([honest(*given)] * 2))


def one_address_for_all_lanes(patch):
    patch.setattr(release, "Place", lambda noise, purpose, path: Place(
        noise, purpose, (path[0], 0, path[2])))  # fmt: skip


def one_address_for_all_windows(patch):
    patch.setattr(
        release, "Place", lambda noise, purpose, path: Place(noise, purpose, (*path[:2], 0))
    )


def one_address_for_all_triggers(patch):
    from streamveil.core import release as core

    patch.setattr(core, "draws_at", lambda counter, place, t: place.again().draws(1))


def quieter_later(patch):
    honest = BltSchedule.scale
    patch.setattr(BltSchedule, "scale", lambda self, t: honest(self, t) / (2 if t > 1 else 1))


def weights_do_not_count_in_noise(patch):
    patch.setattr(kernels.Coefficients, "spreads", property(
        lambda self: np.array([self.spread * 0.5])))  # fmt: skip


def no_shift(patch):
    patch.setattr(SelectionTable, "shift", lambda self, draws, ids: np.zeros(len(ids), np.int64))


def coins_one_unit_early(patch):
    honest = SelectionTable.next_opening_from
    patch.setattr(SelectionTable, "next_opening_from",
                  lambda self, words, gap, step: honest(self, words, gap - 1, step))  # fmt: skip


def thresholds_are_ignored(patch):
    patch.setattr(GaussianSelection, "threshold", lambda self, trigger: 0.0)


def thresholds_for_one_trigger(patch):
    honest = GaussianThresholds.threshold
    patch.setattr(GaussianThresholds, "threshold", lambda self, t: honest(self, t) * 0.8)


def late_groups_start_afresh(patch):
    patch.setattr(GaussianSelection, "_catch_up", lambda self, names, trigger, at: (
        self.counter.init(len(names), trigger - 1)))  # fmt: skip


def units_count_twice(patch):
    honest = GaussianSelection.step

    def step(self, state, units, names, trigger, at):  # fmt: skip
        units *= 2
        return honest(self, state, units, names, trigger, at)

    patch.setattr(GaussianSelection, "step", step)


def every_group_is_published(patch):
    honest = release.publish_keys

    def opened(aggregation, state, _):  # fmt: skip
        honest(aggregation, state, release._hidden(state, np.arange(state.table.keys)))

    patch.setattr(release, "publish_keys", opened)


def totals_show_every_group(patch):
    patch.setattr(TotalsAlone, "step", lambda self, state, units, names, trigger, at: (
        state, np.arange(len(units)) if trigger == 1 else np.zeros(0, np.int64)))  # fmt: skip


def no_floor(patch):
    honest = TotalTest.threshold
    patch.setattr(TotalTest, "floor", 1)
    patch.setattr(TotalTest, "threshold", lambda self, trigger: honest(self, trigger) // 4)


def low_totals_pass(patch):
    patch.setattr(TotalTest, "threshold", lambda self, trigger: self.floor)


def cut_rows_without_end(patch):
    honest = cut_rows.bands_of
    patch.setattr(cut_rows, "bands_of", lambda places: np.minimum(honest(places), 5))


def cut_rows_of_one_worth(patch):
    honest = stages.cut_in
    patch.setattr(stages, "cut_in", lambda bands: honest(bands) * 2)


def cut_rows_are_counted_anew(patch):
    honest = cut_rows.CutUnits.add
    patch.setattr(cut_rows.CutUnits, "add", lambda self, units, counts: (
        honest(self, units, counts) * 0))  # fmt: skip


def metadata_tells_rows(patch):
    honest = group_by.heading

    def heading(*given):  # fmt: skip
        return honest(*given) + f',"rows":{ROWS_SEEN[0]}'.encode()

    def arrive(operator, state, batch, noise):  # fmt: skip
        ROWS_SEEN[0] += batch.rows.num_rows
        return arrived(operator, state, batch, noise)

    arrived = stages.arrive
    patch.setattr(stages, "arrive", arrive)
    patch.setattr(group_by, "heading", heading)


ROWS_SEEN = [0]
CODE = {
    "the state of units is lost after each micro-batch": (PUBLIC, every_batch_forgets),
    "units are forgotten before late rows come": (LATE, forgotten_before_late_rows),
    "every group has a bound of its own": (HOPS, every_window_bounds_alone),
    "rows are bounded without their weights": (WEIGHTED, rows_weigh_one),
    "a unit is new with every row": (DEEP, always_new),
    "a unit enters coins with every row": (TABLE, always_new),
    "nothing is bounded": (QUADRATIC, nothing_is_bounded),
    "all units share one bound": (PUBLIC, one_bound_for_all),
    "values are never clamped": (PUBLIC, never_clamped),
    "squares are of values that are not centred": (query(aggregates=SQUARES), never_centred),
    "a row hits two nodes of a level": (query(aggregates=TREE), two_nodes_of_a_level),
    "all lanes draw at one address": (PUBLIC, one_address_for_all_lanes),
    "all windows draw at one address": (HOPS, one_address_for_all_windows),
    "all triggers draw at one address": (PUBLIC, one_address_for_all_triggers),
    "noise is halved after the first trigger": (PUBLIC, quieter_later),
    "the noise of a group ignores its weight": (WEIGHTED, weights_do_not_count_in_noise),
    "the shift of a group is not drawn": (TABLE, no_shift),
    "coins fall one unit early": (TABLE, coins_one_unit_early),
    "estimates pass whatever the threshold": (THRESHOLD, thresholds_are_ignored),
    "thresholds a fifth lower": (THRESHOLD, thresholds_for_one_trigger),
    "late groups have less noise": (THRESHOLD, late_groups_start_afresh),
    "units count twice in the selection": (THRESHOLD, units_count_twice),
    "every group is published with the first": (THRESHOLD, every_group_is_published),
    "every group is published without a test": (TOTALS, totals_show_every_group),
    "totals alone pass at the floor": (TOTALS, low_totals_pass),
    "totals alone are tested without noise": (TOTALS, silent_test),
    "totals of one unit are tested": (TOTALS, no_floor),
    "totals pass at the floor": (TABLE, low_totals_pass),
    "totals are tested without noise": (TABLE, silent_test),
    "cut rows count without end": (CUT, cut_rows_without_end),
    "cut rows count twice": (CUT, cut_rows_of_one_worth),
    "cut rows are numbered anew in each micro-batch": (CUT, cut_rows_are_counted_anew),
    "metadata tell how many rows came": (PUBLIC, metadata_tells_rows),
}


@pytest.mark.parametrize("name", CODE)
def test_a_fault_in_the_code_is_caught(name, monkeypatch):
    make, plant = CODE[name]
    operator = make()
    assert operator.loss
    plant(monkeypatch)
    assert caught(operator)


# ---- faults in what is claimed


def no_gaussian(honest):
    return property(lambda self: replace(honest.fget(self), gaussian=Fraction(0)))


CLAIMS = {
    "the cut counter is free": (CUT, lambda patch: patch.setattr(
        cut_rows.CutCounter, "loss", property(lambda self: Loss()))),
    "the selection's counter is free": (THRESHOLD, lambda patch: patch.setattr(
        GaussianSelection, "loss", no_gaussian(GaussianSelection.loss))),
    "the test of totals is free": (TABLE, lambda patch: patch.setattr(
        TotalTest, "loss", property(lambda self: Loss()))),
    "the test of totals alone is free": (TOTALS, lambda patch: patch.setattr(
        TotalTest, "loss", property(lambda self: Loss()))),
    "groups of one unit are free": (THRESHOLD, lambda patch: patch.setattr(
        GaussianSelection, "loss", property(lambda self: self.counter.loss(
            Fraction(1024) * 2, self.groups)))),
    "the last rows of a bound are forgotten": (
        query(bounding=Bounding(max_rows=7, max_rows_per_group=3)), lambda patch: patch.setattr(
        Bounds, "l2_squared", property(lambda self: 18))),
    "a unit counts in one group": (PUBLIC, lambda patch: patch.setattr(
        Bounds, "units_moved", property(lambda self: Fraction(1)))),
    "a column is shorter than it is": (PUBLIC, lambda patch: patch.setattr(
        BltCounter, "sensitivity", property(lambda self: self.schedule.norm * 0.9))),
    "a unit moves one group": (DEEP, lambda patch: [patch.setattr(
        module, "lane_move", lambda lane, bounds: (Fraction(lane.reach), 1))
        for module in (sizing, mechanism)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_that_leaves_something_out_is_caught(name, monkeypatch):
    make, plant = CLAIMS[name]
    plant(monkeypatch)
    try:
        operator = make()
    except (PlanError, ValueError, ReusedNoiseError):
        return  # by construction
    assert caught(operator)


@pytest.mark.parametrize(
    "make",
    [
        PUBLIC,
        DEEP,
        QUADRATIC,
        WEIGHTED,
        TABLE,
        THRESHOLD,
        TOTALS,
        HOPS,
        DAYS,
        LATE,
        CUT,
        WHOLE_PERIOD,
        FEW,
        FEW_FOUND,
    ],
)
def test_nothing_is_said_of_the_honest_code(make):
    assert caught(make()) is None


def test_the_page_for_reviewers_lists_every_fault():
    page = (Path(__file__).parents[2] / "docs" / "review-mechanisms.md").read_text()
    names = [*RUNS, *CODE, *CLAIMS]
    assert len(names) >= 55
    assert [name for name in names if f"| {name} |" not in page] == []
