"""Sequential tests of selection and of bounding, each against its own claim.

Selection: a stated law decides which groups are shown at the first trigger. It has a chance for
every number of units, by Gaussian thresholds or a certified table of coins. A bettor stakes on
other chances (noise of another width, thresholds elsewhere): the product of the likelihood ratios
over independent groups is a martingale that begins at 1, so it ever passes 1 / alpha with chance at
most alpha (Ville 1939).

Bounding is not random: without noise, a unit with far more rows than its bound moves the exact
total of every lane by no more than the bound says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from scipy.special import ndtr, ndtri

from streamveil.audit.pipeline import STRIDE, Scenario, unbroken
from streamveil.audit.reduced import MOST_ADDED, MOST_UNITS, STEP, around, reduced
from streamveil.audit.residuals import GROUPS, SURE, NoiseTest, bare, staked
from streamveil.compiler.group_by import compile_plan
from streamveil.core.noise import KeyedNoise, Noise, SilentNoise
from streamveil.core.selection.coins import CoinSelection
from streamveil.core.selection.gaussian import GaussianSelection
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.grouping import rule_entry
from streamveil.plan import Plan
from streamveil.plan.options import SELECTION, TOTAL_TESTS
from streamveil.types import Array, Bool, Float64, Int64

WANTED = (0.1, 0.3, 0.5, 0.7, 0.9)  # chances of the groups that are tested
WIDTHS, SHIFTS = (0.5, 0.7, 0.85, 1.5), (-1.0, -0.4, 0.4, 1.0)  # of noise; of thresholds
BEYOND = 1e9  # a value far beyond usual bounds
MOST_SHIFT = 60  # sums over waits end after this many mean waits
COIN = 2.0**64


def selection_chance(operator: GroupBy, units: int) -> float:
    """The claimed chance that a group with `units` units is shown at the first trigger."""
    chosen = operator.aggregation.selection
    if isinstance(chosen, GaussianSelection):
        return float(ndtr((units - chosen.threshold(1)) / chosen.deviation(1)))
    test = operator.aggregation.test
    if operator.aggregation.selected_by == "totals" and test is not None:
        counted = 1 in test.triggers and test.lane.kind != "sum"  # values are 0 here
        passed = units - test.threshold(1) - 0.5  # totals are integers
        return float(ndtr(passed / test.deviation(1))) if counted else 0.0
    assert isinstance(chosen, CoinSelection)  # noqa: S101  (a type narrowing)
    coins = np.array([*chosen.coins.coins], np.float64) / COIN
    decay = np.exp(-float(chosen.shift_epsilon))
    shift = np.arange(int(MOST_SHIFT / float(chosen.shift_epsilon)) + 2)
    gap = chosen.table.threshold + shift - (units - chosen.offset)
    inside = np.where(gap <= len(coins), coins[np.clip(gap - 1, 0, len(coins) - 1)], 0.0)
    return float((np.where(gap <= 0, 1.0, inside) * (1 - decay) * decay**shift).sum())


def levels(operator: GroupBy) -> list[tuple[int, float]]:
    """Numbers of units at which a group is sometimes shown, and the chance of each."""
    most = min(MOST_UNITS, 4 * around(operator) + 50)
    chances = np.array([selection_chance(operator, units) for units in range(1, most + 1)])
    places = {int(np.abs(chances - wanted).argmin()) for wanted in WANTED}
    found, room = [], MOST_UNITS
    for place in sorted(places):
        units, chance = place + 1, float(chances[place])
        if 0.01 < chance < 0.99 and units <= room:
            found.append((units, chance))
            room -= units
    return found


def bet_on(shown: Bool[Array, " n"], chances: Float64[Array, " n"], alpha: float) -> NoiseTest:
    """Bets that groups are shown with other chances than claimed.

    >>> chances = np.full(400, 0.1)
    >>> bet_on(np.arange(400) % 10 == 0, chances, 1e-6).stands
    True
    >>> bet_on(np.arange(400) % 3 == 0, chances, 1e-6).stands
    False
    """
    level = ndtri(chances)
    others = [*(level / width for width in WIDTHS), *(level + shift for shift in SHIFTS)]
    ratios = [
        np.where(shown, np.log(ndtr(one) / chances), np.log(ndtr(-one) / (1 - chances)))
        for one in others
    ]
    return staked(np.array(ratios), alpha, "selection")


def selection_test(claimed: GroupBy, running: GroupBy, noise: Noise, alpha: float) -> NoiseTest:
    """One test over groups of several sizes, in turns."""
    sizes = levels(claimed)
    if not sizes:
        return NoiseTest("selection", 0, 0.0, None)
    shown = which_are_shown(running, sizes, noise)
    chances = np.tile([chance for _, chance in sizes], GROUPS)
    return bet_on(shown, chances, alpha)


def which_are_shown(
    operator: GroupBy, sizes: list[tuple[int, float]], noise: Noise
) -> Bool[Array, " n"]:
    """Whether the group of each size is shown at the first trigger, copy by copy."""
    batches = sized(sizes).batches(GROUPS, with_unit=False)
    first, *_ = unbroken(operator, batches, noise)
    keys: Int64[Array, " n"] = first.table.column("key").to_numpy()
    found = np.zeros((GROUPS, len(sizes)), np.bool_)
    found[keys // STRIDE, keys % STRIDE] = True
    return found.reshape(-1)


def sized(sizes: list[tuple[int, float]]) -> Scenario:
    """A group of each size, with units of its own."""
    starts = np.cumsum([0, *(units for units, _ in sizes)])
    rows = tuple(
        (int(start) + unit, key, 1, STEP - 1, 0.0)
        for key, (start, (units, _)) in enumerate(zip(starts, sizes, strict=False))
        for unit in range(units)
    )
    return Scenario(name="groups that are sometimes shown", background=rows, added=(), steps=1)


def bounding_test(claimed: GroupBy, running: GroupBy) -> NoiseTest:
    """Tests whether a unit far beyond its bound moves the exact totals no further than it may.

    This is arithmetic: one group is enough, and nothing is drawn. If groups have weights, rows
    weigh least in a group that is not shown yet, so most rows may pass there.
    """
    most = claimed.bounds.most_in_group(rule_entry(claimed))
    if 2 * most + 5 > MOST_ADDED:
        return NoiseTest("bounding", 0, 0.0, None)
    crowd = tuple(
        (unit, 0, 1, STEP - 1, 0.0) for unit in range(min(MOST_UNITS, SURE * around(claimed)))
    )
    bound = largest_moves(claimed, most) * (1 + 1e-9)
    for value in (BEYOND, -BEYOND):
        added = tuple((999, 0, 1, STEP - 1, value) for _ in range(2 * most + 5))
        scenario = Scenario(name="far beyond", background=crowd, added=added, steps=1)
        one, other = (exact_totals(running, scenario, with_unit=own) for own in (True, False))
        if (np.abs(one - other) > bound).any():
            return NoiseTest("bounding", 1, np.inf, 1)
    return NoiseTest("bounding", 1, 0.0, None)


def exact_totals(
    operator: GroupBy, scenario: Scenario, *, with_unit: bool
) -> Float64[Array, " lanes"]:
    """The totals of the one group, without noise."""
    found = unbroken(bare(operator), scenario.batches(1, with_unit=with_unit), SilentNoise())
    names = [f"lane{place}" for place in range(len(operator.aggregation.lanes))]
    return np.array([found[0].table.column(name)[0].as_py() for name in names], np.float64)


def largest_moves(operator: GroupBy, rows: int) -> Float64[Array, " lanes"]:
    """The most that `rows` rows may move each released lane."""
    found = []
    for lane in operator.aggregation.lanes:
        one = max(map(abs, lane.ends)) * float(lane.quantum) if lane.kind != "units" else 1.0
        found.append(one * (1 if lane.kind == "units" else rows))
    return np.array(found)


def shown_tests(
    plan: Plan, alpha: float, change: Callable[[GroupBy], GroupBy] = lambda operator: operator
) -> Iterator[NoiseTest]:
    """Tests selection and bounding of the reduced query; `change` may plant a fault in it."""
    if plan.preset != "default":
        return
    alone = compile_plan(reduced(plan, GROUPS))
    untested = {**plan.options, TOTAL_TESTS.name: 0}
    if untested.get(SELECTION.name) == "totals":
        del untested[SELECTION.name]  # bounding does not depend on the selection
    claimed = compile_plan(reduced(replace(plan, options=untested), GROUPS))
    tested = alone if alone.aggregation.selected_by == "totals" else claimed
    if tested.aggregation.selection is not None:
        yield selection_test(tested, change(tested), KeyedNoise.fresh(), alpha)
    yield bounding_test(claimed, change(claimed))
