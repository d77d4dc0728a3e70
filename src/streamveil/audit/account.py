"""The exact account of a query: the real loss of one unit, from the inputs of each mechanism.

Two runs on neighbouring inputs (`laid_open`) differ by what one unit's rows bring. From that
difference follows the realised loss of every mechanism, in the currency of its claim:

- Gaussian counters: given the transcript, a step is a Gaussian about a centre that moves by what
  the difference leaves in the counter. So mu^2 is the Mahalanobis distance of the difference, under
  the covariance of the noise that is really drawn, over the released steps only.
- Coins: the unit adds exactly one to some groups that are not published; each is one key of the
  certified table, whose coins must be those that are flipped.
- Groups that only this unit has, and totals that only it lifts to the floor of a test: the chance
  that one is published at all.

Nothing here uses bounds, reaches, shares or horizons: it judges them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest
from math import sqrt
from typing import Any

import mpmath
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import ndtr

from streamveil.audit.laid_open import Key, Seen, Stream, Taken, Transcript
from streamveil.core.accounting.coin_table import CoinTable
from streamveil.core.release import weighted_loss
from streamveil.core.selection.coins import CoinSelection
from streamveil.core.selection.gaussian import FINE, GaussianSelection
from streamveil.core.sensitivity import lane_move
from streamveil.dataflow.group_by import GroupBy
from streamveil.types import Array, Float64

SLACK = 1 + 1e-9
COIN = 2**64
TOGETHER = "all counters together"
SURE = 1e-30  # chances below it count as 0


@dataclass(frozen=True)
class MechanismLoss:
    """The realised and the claimed loss of one mechanism of a query, in one currency."""

    name: str
    currency: str  # 'mu^2', 'groups' or 'delta'
    realised: float
    claimed: float

    @property
    def tightness(self) -> float:
        """The part of the claim that was realised; above 1 the claim is false."""
        if self.claimed:
            return self.realised / self.claimed
        return float("inf") if self.realised > SURE else 0.0

    @property
    def stands(self) -> bool:
        """Whether the claim covers what was realised."""
        return self.realised <= self.claimed * SLACK + SURE


@dataclass
class QueryAccount:
    """The account of one pair of neighbours: all losses, and faults that no loss covers."""

    parts: list[MechanismLoss] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def stands(self) -> bool:
        """Whether every claim holds on this pair."""
        return not self.faults and all(part.stands for part in self.parts)

    @property
    def tightness(self) -> float:
        """The tightness of the part that is nearest to its claim."""
        return max((part.tightness for part in self.parts), default=0.0)

    @property
    def mu_squared(self) -> float:
        """The realised mu^2 of all Gaussian parts together."""
        return next(part.realised for part in self.parts if part.name == TOGETHER)

    def broken(self) -> list[str]:
        """The claims that do not hold, and the faults, in words."""
        over = [
            f"{part.name}: {part.realised:.6g} of {part.claimed:.6g} {part.currency}"
            for part in self.parts
            if not part.stands
        ]
        return sorted({*self.faults}) + over


@dataclass(frozen=True)
class Claims:
    """The claimed losses of a query, by mechanism."""

    lanes: tuple[str, ...]  # the name of each
    counters: dict[str, float]  # mu^2
    together: float
    selection: float  # delta
    test: float  # delta


def claims_of(operator: GroupBy) -> Claims:
    """The claims that the operator itself makes."""
    lanes = lane_names(operator)
    counters = {name: float(claim) for name, claim in claimed(operator, lanes).items()}
    together = float(operator.loss.gaussian)
    return Claims(lanes, counters, together, claimed_delta(operator), test_delta(operator))


def account(
    operator: GroupBy, one: Seen, other: Seen, script: Transcript, claims: Claims | None = None
) -> QueryAccount:
    """The account of the two runs of a pair of neighbours; the first has the unit's rows.

    It does not include a look before the first release.
    """
    if operator.look is not None:
        operator = replace(operator, design=replace(operator.design, look=None))
    found = QueryAccount(faults=faults_of_runs(operator, one, other))
    judge_parts(operator, claims or claims_of(operator), (one, other), script, found)
    return found


def faults_of_runs(operator: GroupBy, one: Seen, other: Seen) -> list[str]:
    """The faults of two runs that are of no single group."""
    found = [*one.faults, *other.faults]
    if not same_tables(one, other):
        found.append("releases differ although noise and transcript are the same")
    if isinstance(operator.aggregation.selection, CoinSelection):
        found += faults_of_coins(operator, (one, other))
    return found


def judge_parts(
    operator: GroupBy, claims: Claims, pair: tuple[Seen, Seen], script: Transcript,
    found: QueryAccount,
) -> None:  # fmt: skip
    """Adds the losses of one unit in every mechanism."""
    (one, other), lost = pair, defaultdict[str, float](float)
    for stream in {*one.steps, *other.steps}:
        name = part_of(claims.lanes, stream)
        lost[name] += stream_loss(operator, stream, one, other)
    found.parts = [
        MechanismLoss(name, "mu^2", lost.pop(name, 0.0), claim)
        for name, claim in claims.counters.items()
    ]
    found.parts += [MechanismLoss(name, "mu^2", mu, 0.0) for name, mu in lost.items() if mu]
    found.faults += [
        f"{stream[0]}: the noise of a group depends on when its units came"
        for stream, groups in one.steps.items()
        for key, steps in groups.items()
        if not same_times(steps, other.steps.get(stream, {}).get(key, {}))
    ]
    total = sum(part.realised for part in found.parts)
    found.parts.append(MechanismLoss(TOGETHER, "mu^2", total, claims.together))
    selection = operator.aggregation.selection
    if isinstance(selection, CoinSelection):
        judge_coins(operator, script, (one, other), found)
    if isinstance(selection, GaussianSelection):
        alone = published_alone(one, other)
        found.parts.append(MechanismLoss("groups of one unit", "delta", alone, claims.selection))
    if operator.aggregation.test is not None:
        lifted = lifted_alone(operator, one, other)
        found.parts.append(
            MechanismLoss("totals that one unit lifts", "delta", lifted, claims.test)
        )


# ---- claims


def claimed(operator: GroupBy, names: tuple[str, ...]) -> dict[str, Any]:
    """The mu^2 that each mechanism is charged, as `GroupBy.loss` adds them up."""
    aggregation, found = operator.aggregation, {}
    for place, (lane, counter) in enumerate(
        zip(aggregation.lanes, aggregation.counters, strict=True)
    ):
        if place != aggregation.shared and lane.place == 0:
            moved = lane_move(lane, operator.bounds)
            loss = weighted_loss(counter, *moved, aggregation.rule)
            found[names[place]] = loss.gaussian
    if aggregation.cut is not None:
        found["cut rows"] = aggregation.cut.loss.gaussian
    if isinstance(aggregation.selection, GaussianSelection):
        found["selection"] = aggregation.selection.loss.gaussian
    return found


def claimed_delta(operator: GroupBy) -> float:
    """The claimed delta of the selection."""
    selection = operator.aggregation.selection
    return 0.0 if selection is None else float(selection.loss.delta)


def test_delta(operator: GroupBy) -> float:
    """The delta that the loss adds for the test of totals."""
    test, selection = operator.aggregation.test, operator.aggregation.selection
    rest = 0.0 if selection is None else float(selection.loss.delta)
    return 0.0 if test is None else float(operator.loss.delta) - rest


def lane_names(operator: GroupBy) -> tuple[str, ...]:
    """The name of each lane, or of the tree level whose node it is."""
    found, levels = [], dict[Any, int]()
    for place, lane in enumerate(operator.aggregation.lanes):
        if lane.kind == "node":
            level = lane.value, lane.low, lane.high, lane.level, lane.fan
            first = levels.setdefault(level, place) if lane.place == 0 else levels[level]
            found.append(f"lane {first} (level {lane.level})")
        else:
            found.append(f"lane {place} ({lane.kind})")
    return tuple(found)


def part_of(lanes: tuple[str, ...], stream: Stream) -> str:
    """The mechanism that a counter belongs to."""
    purpose, path = stream
    if purpose == "group-by/lane":
        return lanes[int(path[1])]
    return {"group-by/cut": "cut rows", "group-by/select": "selection"}.get(purpose, purpose)


# ---- counters


def same_times(a: dict[int, Taken], b: dict[int, Taken]) -> bool:
    """Whether both runs draw noise at the same steps, up to the end of the shorter one."""
    last = min(max(a, default=0), max(b, default=0))
    return {t for t in a if t <= last} == {t for t in b if t <= last}


def stream_loss(operator: GroupBy, stream: Stream, one: Seen, other: Seen) -> float:
    """The mu^2 of one counter in one window, over all groups."""
    a, b = one.steps.get(stream, {}), other.steps.get(stream, {})
    moved = tested_moves(operator, stream, one, other)
    return sum(
        group_loss(a.get(key, {}), b.get(key, {}), moved.get(key, {})) for key in {*a, *b, *moved}
    )


def tested_moves(
    operator: GroupBy, stream: Stream, one: Seen, other: Seen
) -> dict[Key, dict[int, int]]:
    """The differences of totals that both runs tested before their group was published."""
    test = operator.aggregation.test
    if test is None or stream[0] != "group-by/lane" or stream[1][1] != test.place:
        return {}
    window = stream[1][2]
    a, b = one.tested.get(window, {}), other.tested.get(window, {})
    return {
        key: {
            t: a[key][t] - b[key][t]
            for t in a[key]
            if t in b[key] and min(a[key][t], b[key][t]) >= test.floor
        }
        for key in {*a} & {*b}
    }


def group_loss(a: dict[int, Taken], b: dict[int, Taken], tested: dict[int, int]) -> float:
    """The mu^2 of one group's counter: its difference under the covariance of its noise."""
    if (
        not tested
        and len(a) == len(b)
        and all(t in b and step.entered == b[t].entered for t, step in a.items())
    ):
        return 0.0
    times = sorted({*a, *b})
    steps = [
        a[t] if t in a and a[t].released >= (t in b and b[t].released) else b[t] for t in times
    ]
    moves = [(a[t].entered if t in a else 0) - (b[t].entered if t in b else 0) for t in times]
    seen = [t in a and t in b and a[t].released and b[t].released for t in times]
    if not any(moves) and not any(tested.values()):
        return 0.0
    if all(seen) and not tested:
        return fed_back(steps, moves)
    path = np.cumsum(np.array(moves, np.float64))
    shown = np.array(seen)
    for place, t in enumerate(times):
        if t in tested and not shown[place]:
            path[place], shown[place] = tested[t], True
    spread = responses(steps)[shown]
    return float(path[shown] @ np.linalg.solve(spread @ spread.T, path[shown]))


def fed_back(steps: list[Taken], moves: list[int]) -> float:
    """The mu^2 if every step is released: each is a Gaussian given those before it."""
    buffers, total = np.zeros(len(steps[0].keep)), 0.0
    for step, move in zip(steps, moves, strict=True):
        offset = -step.scale * float(step.drain @ buffers)
        centre = -move - offset
        total += (centre / step.spread) ** 2
        buffers = step.keep * buffers + centre / step.scale
    return total


def responses(steps: list[Taken]) -> Float64[Array, "steps draws"]:
    """The move of each estimate by a draw of one standard deviation at each step."""
    n = len(steps)
    found = np.zeros((n, n))
    for draw in range(n):
        buffers, estimate = np.zeros(len(steps[0].keep)), 0.0
        for place in range(draw, n):
            step = steps[place]
            offset = -step.scale * float(step.drain @ buffers)
            fresh = step.spread if place == draw else 0.0
            estimate += offset + fresh
            buffers = step.keep * buffers + fresh / step.scale
            found[place, draw] = estimate
    return found


# ---- selection


def judge_coins(
    operator: GroupBy, script: Transcript, pair: tuple[Seen, Seen], found: QueryAccount
) -> None:
    """Adds the number of groups whose coins the unit moves, and faults of these moves."""
    (table, times), *more = operator.loss.tables or ((None, 0),)
    if not isinstance(table, CoinTable) or more:
        found.faults.append("coins are flipped that are not charged")
        return
    one, other = pair
    published, entered = {**script.published, **script.by_test}, 0
    for window, groups in one.units.items():
        for key, counts in groups.items():
            without = other.units.get(window, {}).get(key, {})
            last = published.get((window, key), table.horizon)  # coins are flipped until then
            moves = [n - without.get(t, 0) for t, n in counts.items() if t <= last]
            entered += sum(map(abs, moves)) > 0
            if any(moves) and (max(moves) != 1 or sum(map(abs, moves)) > 1):
                found.faults.append("a unit moves the coins of a group by other than one, once")
            if max(counts) > table.horizon:
                found.faults.append("a group is tested more often than is charged")
    found.parts.append(MechanismLoss("coins", "groups", entered, table.keys_per_unit * times))


def faults_of_coins(operator: GroupBy, pair: tuple[Seen, Seen]) -> list[str]:
    """Faults where coins are not those that are charged."""
    (table, _), *more = operator.loss.tables or ((None, 0),)
    if not isinstance(table, CoinTable) or more:
        return []
    found, laws = [], (expected_rates(table.coins), (float(table.shift_epsilon),))
    for seen in pair:
        if any(not law_is(rates, laws) for rates in {*seen.rates}):
            found.append("coins are flipped with other chances than are charged")
        gaps = {gap + units - shift for units, shift, gap in seen.gaps}
        if gaps - {len(table.coins) + 2}:
            found.append("coins belong to another number of units")
        most = max((sum(n.values()) for w in seen.units.values() for n in w.values()), default=0)
        if any(units > most for units, _, _ in seen.gaps):
            found.append("coins count units that have not come")
    return found


def law_is(rates: tuple[float, ...], laws: tuple[tuple[float, ...], ...]) -> bool:
    """Whether rates are one of the laws."""
    return any(
        all(a is not None and b is not None and (a == b or abs(a - b) <= 1e-12 * abs(b))
            for a, b in zip_longest(rates, law))
        for law in laws
    )  # fmt: skip


@lru_cache(maxsize=64)
def expected_rates(coins: tuple[int, ...]) -> tuple[float, ...]:
    """The rates of waits for coins: 0 units away a coin opens at once, beyond the table never."""
    with mpmath.workprec(200):
        inner = [float(-mpmath.log1p(-mpmath.mpf(coin) / COIN)) for coin in coins]
    return (float("inf"), *inner, 0.0)


def published_alone(one: Seen, other: Seen) -> float:
    """The chance that a group is published while only this unit has rows in it."""
    chance = 0.0
    for stream, groups in one.steps.items():
        if stream[0] != "group-by/select":
            continue
        window = stream[1][1]
        limits, without = one.estimates[window], other.estimates.get(window, {})
        for key, steps in groups.items():
            times = [t for t in limits[key] if t not in without.get(key, {})]
            if times:
                chance += passing_chance(steps, {t: limits[key][t] * FINE for t in times})
    return chance


def passing_chance(steps: dict[int, Taken], limits: dict[int, float]) -> float:
    """A bound on the chance that an estimate passes any of some limits."""
    order = sorted(steps)
    spread = responses([steps[t] for t in order])
    total, chance = 0, 0.0
    for place, t in enumerate(order):
        total += steps[t].entered
        if t in limits:
            sd = sqrt(float(spread[place] @ spread[place]))
            chance += float(ndtr((total - limits[t]) / sd))
    return chance


def lifted_alone(operator: GroupBy, one: Seen, other: Seen) -> float:
    """The chance that a total that only this unit lifts to the floor passes its test."""
    test, chance = operator.aggregation.test, 0.0
    assert test is not None  # noqa: S101  (a type narrowing)
    for window, groups in one.tested.items():
        stream = ("group-by/lane", (operator.job.encode(), test.place, window))
        noise = one.steps.get(stream, {})
        for key, totals in groups.items():
            without = other.tested.get(window, {}).get(key, {})
            for t, total in totals.items():
                if total >= test.floor and without.get(t, 0) < test.floor:
                    drawn = {e: step for e, step in noise.get(key, {}).items() if e <= t}
                    if t not in drawn:
                        return 1.0  # tested without noise
                    spread = responses([drawn[e] for e in sorted(drawn)])[-1]
                    sd = sqrt(float(spread @ spread))
                    chance += float(ndtr((total - test.threshold(t)) / sd))
    return chance


def same_tables(one: Seen, other: Seen) -> bool:
    """Whether all releases are equal, with their metadata."""
    pairs = zip_longest(one.tables, other.tables)
    return all(a is not None and b is not None and same_table(a, b) for a, b in pairs)


def same_table(one: pa.Table, other: pa.Table) -> bool:
    """Whether two releases are equal, also if a group is named NaN, which Arrow finds unequal.

    >>> nan, zero = pa.table({"k": [float("nan"), None]}), pa.table({"k": [0.0, None]})
    >>> nan.equals(nan), same_table(nan, nan), same_table(nan, zero)
    (False, True, False)
    """
    columns = zip(one.columns, other.columns, strict=False)
    return one.schema.equals(other.schema, check_metadata=True) and all(
        a.equals(b) or (pa.types.is_floating(a.type) and without_nan(a) == without_nan(b))
        for a, b in columns
    )


def without_nan(column: Any) -> tuple[Any, Any]:
    """The places of NaN, and the other numbers."""
    nan = pc.is_nan(column)
    return nan, pc.if_else(nan, pa.scalar(None, column.type), column)
