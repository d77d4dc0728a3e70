"""A look at the data before the first release: how many rows units have, for a share of the budget.

Settings that fit the data halve the error, but nobody knows the shape of their data well enough to
give them. Noisy histograms over units show it (`survey`): over all rows if they are there when a
job begins, else over those of the first release. If all rows are there, a look also chooses bounds
of values that were left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import floor, log10
from typing import Any

from streamveil.calendars import DAY, never_meet
from streamveil.calibrate import gaussian_mu, root_down
from streamveil.core.accounting import Budget, exact, float_below
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.accounting.sequel import Sequel
from streamveil.core.mechanism import COLLISION_BITS
from streamveil.core.sensitivity import MOST_TOTAL
from streamveil.errors import PlanError
from streamveil.expressions import range_of
from streamveil.kinds import MOMENTS, RATIOS, SKETCHES, SQUARED, VALUED
from streamveil.plan import Aggregate, Bounding, Plan, TableSource
from streamveil.plan.options import (
    DELTA_SHARE,
    EXPECTED_ROWS,
    INTEGER,
    INTERVALS,
    LOOK_SHARE,
    MAX_UNITS,
    SELECTION,
)

# ---- sums of quanta stay below 2**60

MAX_ROWS = 2**34  # rows that one group must have room for: 17 billion


def refuse_large_sums(reach: int) -> None:
    """PlanError if MAX_ROWS rows of one group, each of `reach` quanta, could end the job.

    If more rows come, no sum wraps around: the job stops (`within_64_bits` of `core.sensitivity`).
    """
    if reach * MAX_ROWS >= MOST_TOTAL:
        raise PlanError(
            "the bounds allow sums of 2**60 quanta or more, which 64 bits cannot hold safely.\n"
            "  why     noise has to hide the whole bound, however small the values are\n"
            "  to fix  tighter bounds (plausible values, not the largest of a type), or a coarser"
            " quantum (the noise hides far more than it; left out, it is 2^-24 of the bounds)"
        )


def reach_of(low: float, high: float, quantum: float) -> int:
    """The most quanta of a value clamped to [low, high], after rounding."""
    widest = max(abs(Fraction(low)), abs(Fraction(high))) / Fraction(quantum)
    return -(-widest.numerator // widest.denominator)


# ---- values without given bounds

LEAST, MOST = -40, 63  # a value counts as one of 2^LEAST to 2^MOST, either sign
WIDEST = (-(2.0**MOST), 2.0**MOST)
FAR = 2.0**31
NO_BOUNDS = (
    "no number for {}: a look found no bounds, since too few units have values other than 0; give"
    " contribution_bounds_per_row => (low, high), in Python bounds=(low, high)"
)
Bounds = Mapping[str, tuple[float, float]]  # expression -> bounds to which its values are clamped


def of_kept_rows(plan: Plan) -> bool:
    """Whether every answer is a mean or quantile of kept rows, which does not show their number."""
    return all(agg.function in RATIOS for agg in plan.aggregates)


def is_open(aggregate: Aggregate) -> bool:
    """Whether an aggregate adds or orders values without given bounds."""
    return aggregate.function in VALUED and (aggregate.low is None or aggregate.high is None)


def open_values(plan: Plan) -> tuple[str, ...]:
    """The expressions whose bounds are to be chosen, each once."""
    open_ = (agg.expression for agg in plan.aggregates if is_open(agg))
    return tuple(dict.fromkeys(text for text in open_ if text is not None))


def whole_range(aggregate: Aggregate) -> tuple[float, float] | None:
    """Bounds of every value of an expression that follow from its form alone: IF(x, 1, 0).

    None if they depend on columns, or if values may be so large that a look had better see them.
    """
    if aggregate.function not in VALUED or aggregate.expression is None:
        return None
    found = range_of(aggregate.expression)
    if found is not None and found[0] == found[1]:
        found = min(found[0], 0.0), max(found[1], 0.0)
    return found if found and found[0] < found[1] and max(map(abs, found)) <= FAR else None


def with_bounds(plan: Plan, found: Bounds) -> Plan:
    """The plan with bounds for values that have none; those of a sum include 0, as for no row.

    The noise of a sum hides the larger of both ends, so the other one may as well be 0. A mean and
    the like are centred, and gain from close bounds. A sum beside a mean has the mean's bounds and
    is answered from the same lanes.
    """
    if not open_values(plan):
        return plan
    centred = {agg.expression for agg in plan.aggregates if agg.function in MOMENTS}
    made = [_bounded(agg, found, centred) if is_open(agg) else agg for agg in plan.aggregates]
    return replace(plan, aggregates=tuple(made))


def in_units(plan: Plan) -> Plan:
    """The plan with bounds (0, 1) that a look will replace: `explain` shows noise relative to them.

    The account does not depend on bounds: noise is a multiple of the larger one.
    """
    return with_bounds(plan, dict.fromkeys(open_values(plan), (0.0, 1.0)))


def in_any_case(plan: Plan) -> Plan:
    """The plan with bounds that hold every value, and answers of only noise: `why_unbounded`."""
    return with_bounds(plan, dict.fromkeys(open_values(plan), WIDEST))


def why_unbounded(plan: Plan, aggregate: Aggregate) -> str:
    """Why a number is left out if a look should have chosen its bounds and found none.

    With bounds that hold every value, such a number would be nothing but noise.
    """
    text, bounds = aggregate.expression, (aggregate.low, aggregate.high)
    none = text in plan.options.get(LOOKED, {}).get(NOT_FOUND, ()) and bounds == WIDEST
    return NO_BOUNDS.format(text) if none else ""


def refusals(plan: Plan) -> Iterator[str]:
    """Why bounds cannot be left out, even with all rows there and a budget that allows a look."""
    if plan.bounding.combine:
        yield "other bounds are per unit and group, and those of a look are per row"
    if INTERVALS.of(plan.options) != INTERVALS.value:
        yield "intervals = 'true' need bounds that are known beforehand"
    if any(is_open(agg) and agg.quantum is not None for agg in plan.aggregates):
        yield "a quantum needs bounds that are known beforehand"


def share_beyond(share: float, low: float, high: float) -> str:
    """The share of the total of values that lies beyond bounds, in words.

    If an end is the last size that a look can see, values beyond it may be of any size.

    >>> share_beyond(0.02, 0.0, 512.0), share_beyond(0.163, 0.0, WIDEST[1])
    ('about 2.0%', 'at least about 16.3%')
    """
    endless = share and 2.0**MOST in (-low, high)
    return f"{'at least ' if endless else ''}about {share:.1%}"


def unseen_values(units: float) -> str:
    """A warning that a few units may have values far beyond bounds; empty if none can.

    >>> unseen_values(140.0)
    '; a look does not see values, however large, that fewer than about 140 units have'
    """
    few = f"fewer than about {units:,.0f} units have"
    return f"; a look does not see values, however large, that {few}" if units else ""


def clamped_in_words(plan: Plan, aggregate: Aggregate) -> str:
    """How clamping and rounding change the values of an aggregate, in words; empty if nothing."""
    values = "totals of a unit in a group" if plan.bounding.combine else "values"
    parts = []
    if not (aggregate.low is None or why_unbounded(plan, aggregate) or _holds_all(plan, aggregate)):
        ends = f"[{aggregate.low:g}, {aggregate.high:g}]"
        share = _beyond(plan, aggregate)
        parts.append(f"{values} beyond {ends} count as the nearer end{share}")
    if aggregate.quantum is not None and not INTEGER.of(aggregate.options):
        parts.append(f"{values} count as the nearest multiple of {aggregate.quantum:g}")
    return ", and ".join(parts)  # a quantum by default is far below the noise


def _beyond(plan: Plan, aggregate: Aggregate) -> str:
    """The share beyond bounds according to a look, in words; empty if it says nothing."""
    told, text = expectations(plan.options), aggregate.expression
    squares = aggregate.function in SQUARED
    whole, shares = (
        ("their variance", CLAMPED_VARIANCE) if squares else ("what values add up to", CLAMPED)
    )
    share = told.get(shares, {}).get(text)
    if share is None:
        return ""
    part = share_beyond(share, aggregate.low or 0.0, aggregate.high or 0.0)
    return f" ({part} of {whole}{unseen_values(told.get(UNSEEN, {}).get(text, 0.0))})"


def _holds_all(plan: Plan, aggregate: Aggregate) -> bool:
    """Whether its bounds hold every value that its expression can have."""
    found = None if plan.bounding.combine else whole_range(aggregate)
    low, high = aggregate.low or 0.0, aggregate.high or 0.0
    return found is not None and low <= found[0] and found[1] <= high


def _bounded(aggregate: Aggregate, found: Bounds, centred: Set[str | None]) -> Aggregate:
    low, high = found.get(aggregate.expression or "", WIDEST)
    if aggregate.function == "sum" and aggregate.expression not in centred:
        low, high = min(low, 0.0), max(high, 0.0)
    return replace(aggregate, low=low, high=high)


DEFAULT_SHARE = Fraction(1, 20)
MOST_EPSILON = Fraction(600)  # a larger one is divided as if it were this: e^710 exceeds all floats
SHARE_WITH_BOUNDS = Fraction(1, 10)  # of a look that also chooses the bounds of values
FOR_THRESHOLDS = Fraction(1, 10)  # of delta: more would promise less over several periods
STEEPEST = Fraction(18, 25)  # of mu: tables whose releases have less must lie lower after a look
MOST_RELEASES = 100  # that the first release can represent: with more, it has too few rows
PRECISION_OF_LOOK = Fraction(1, 1000)
LOOKED = "looked"  # option of a plan with the results of a look; no user writes it
LAWS = "laws"  # of groups, among the results of a look
HISTOGRAM = "histogram"  # of the rows of units, likewise: from, to, share of units
MANY_ROWS = 63  # of a unit; beyond, logarithms measure how far rows keep to few groups
CONCENTRATION = "concentration"  # of rows in groups of their unit, likewise; and its deviation
MEAN_ROWS = "mean_rows"  # possible mean rows of a unit, if the number of units is not known
STREAMS = "streams"  # that a first release leaves possible, equally likely, likewise
WAYS_OF_UNITS = "ways"  # possible histograms of the rows of units, likewise
VALUES = "values"  # that are summed, likewise: expression and mean size
NOT_FOUND = "not_found"  # likewise: expressions for which a look found no bounds
UNSEEN = "unseen"  # likewise: expression and how many units may have values that a look misses
CLAMPED = "clamped"  # likewise: expression and share of its total that lies beyond bounds
CLAMPED_VARIANCE = "clamped_variance"  # likewise, share of its variance, if a query asks for that


def look_share(plan: Plan) -> Fraction:
    """The part of the budget that a look takes; 0 without one."""
    return exact(LOOK_SHARE.name, LOOK_SHARE.of(plan.options))


def with_look(plan: Plan) -> Plan:
    """The plan with a look, if one would help and there are rows to look at.

    If bounds of values are left out and may be (`cannot_choose_bounds`), there is always a look.
    Otherwise there is none by default if it would weaken the promise over many periods
    (`blurs_periods`).
    """
    if LOOK_SHARE.name in plan.options:
        if look_share(plan) and not can_look(plan):
            raise PlanError(
                "look_share asks rows for their shape before the first release: they must all be"
                " there, or come in a known number of releases to files, tables or topics that can"
                " be read again.\n"
                "  to fix  leave it out and give expected_rows, if that is known"
            )
        return plan
    if open_values(plan):
        chosen = cannot_choose_bounds(plan) is None
        more = {LOOK_SHARE.name: SHARE_WITH_BOUNDS} if chosen else {}
        return replace(plan, options={**plan.options, **more})
    settled = EXPECTED_ROWS.name in plan.options
    bounded = plan.bounding.max_rows is not None or plan.bounding.quadratic is not None
    public = plan.key_set.public is not None or not plan.keys
    late = not all_there(plan) and releases_told(plan)[0] > MOST_RELEASES
    settled = settled or (public and bounded) or plan.counts_once or blurs_periods(plan)
    if settled or late or not can_look(plan):
        return plan
    return replace(plan, options={**plan.options, LOOK_SHARE.name: DEFAULT_SHARE})


def cannot_choose_bounds(plan: Plan) -> str | None:
    """Why a look cannot choose the bounds of values; None if it can."""
    if LOOK_SHARE.name in plan.options and not look_share(plan):
        return "look_share = 0 leaves nothing of the budget to choose them with"
    if plan.budget.is_pure:
        return "a private look at the rows chooses them where the budget has a delta, such as 1e-6"
    if not all_there(plan) or not can_look(plan):
        return (
            "a private look chooses them only where all rows are there at the start (files, a table"
            " in memory)"
        )
    return next(refusals(plan), None)


def can_look(plan: Plan) -> bool:
    """Whether there are rows to look at before a release, and the budget allows Gaussian noise."""
    functions = {agg.function for agg in plan.aggregates}
    return (
        (all_there(plan) or first_alone(plan))
        and functions.isdisjoint(SKETCHES)
        and not isinstance(plan.source, TableSource)
        and plan.preset == "default"
        and not plan.budget.is_pure
    )  # fmt: skip


def all_there(plan: Plan) -> bool:
    """Whether all rows are there when the job begins."""
    clock = plan.clock
    ends = clock.kind in ("event", "once") or (clock.kind == "rows" and clock.steps is not None)
    return ends and plan.source.known.is_whole and not plan.source.options.get("follow")


def first_alone(plan: Plan) -> bool:
    """Whether a look sees only the rows of the first release, which the job will read again."""
    source, clock = plan.source, plan.clock
    again = (source.known.is_whole or source.known.keeps) and source.is_endless
    ends = clock.kind in ("rows", "wall") and bool(clock.steps) and plan.window.kind == "whole"
    return again and (ends or by_period(plan)) and not source.combines


def keeps_apart(plan: Plan) -> bool:
    """Whether no window meets two periods of a unit, so that each period has a loss of its own."""
    window = plan.window
    return never_meet(window.size if window.kind == "tumble" else None, plan.periods)


def needs_no_table(plan: Plan) -> bool:
    """Whether groups are discovered without a table: by totals or counts with Gaussian noise.

    This is so if a query says it, or if periods are apart and windows are released once.
    """
    window, asked = plan.window, SELECTION.of(plan.options)
    if asked != "auto" or not keeps_apart(plan) or window.lateness_us or not plan.clock.timed:
        return asked in ("gaussian", "totals")
    return plan.clock.ticks.refines(window.size) and window.size.refines(plan.clock.ticks)


def blurs_periods(plan: Plan) -> bool:
    """Whether a bound on everything that a look may choose would promise too little over periods.

    The one curve that covers tables would; a budget in mu or rho covers no table.
    """
    known = plan.key_set.public is not None or not plan.keys
    by_mu = known or plan.budget.epsilon is None or needs_no_table(plan)
    return keeps_apart(plan) and not by_mu


def by_period(plan: Plan) -> bool:
    """Whether each window is a period of every unit, and time alone says when it is released."""
    periods, window = plan.periods, plan.window
    if periods is None or window.kind != "tumble" or plan.clock.kind != "wall":
        return False
    return window.size.refines(periods) and periods.refines(window.size)


def releases_told(plan: Plan) -> tuple[int, int]:
    """How many releases the first one represents, and how many of these have rows of one unit.

    If windows are periods, it represents only its own window. Months count as 30 days.
    """
    clock, periods = plan.clock, plan.periods
    every = clock.steps or 1
    if periods is None or not clock.timed:
        return every, every
    longest = periods.length_us or 30 * DAY * periods.months
    met = -(-longest // (clock.every or 30 * DAY * clock.months))
    met = min(met, clock.steps or met)
    return (met if by_period(plan) else every), met


@dataclass(frozen=True)
class Division:
    """The loss of a look, and the rest after it: as a budget, and as a loss."""

    looking: Budget  # in mu
    rest: Budget
    after: Loss | Sequel  # a loss if all that follows is Gaussian: squares of mu add up


def divided(plan: Plan) -> Division:
    """A budget divided between a look and the rest: the look takes at most a share of mu squared.

    Proof: whatever the look says, what follows keeps what is left. Gaussian privacy adds up in
        squares, also where the second part is chosen by what the first said; rho is half a square.
        Where groups are discovered under (epsilon, delta), the rest keeps epsilon and a smaller
        delta, and `Sequel` certifies the sum of both.
        Where the rest is mu or rho, thresholds may fail with `delta_share` of what delta leaves, as
        without a look: that is set aside, and what is chosen may lose no more (`core.mechanism`).
        So n periods of a unit lose n such parts and sqrt(n) mu, as they would without a look.
        The one curve of `Sequel` for all designs, including tables, promises little for a person in
        several periods. If periods are apart and no table is needed, a part of delta is therefore
        set aside for thresholds, and the rest is mu, which states the whole loss; then no table
        follows.
    """
    known = plan.key_set.public is not None or not plan.keys
    alone = known or SELECTION.of(plan.options) in ("gaussian", "totals")
    chance = Fraction(int(MAX_UNITS.of(plan.options)), 2**COLLISION_BITS)
    budget, part = plan.budget, Fraction(0 if known else DELTA_SHARE.of(plan.options))
    if not known and keeps_apart(plan) and needs_no_table(plan):
        budget = in_mu(budget, chance, part)
    return _divided(budget, look_share(plan), chance, part, known=known, alone=alone)


def in_mu(budget: Budget, chance: Fraction, part: Fraction) -> Budget:
    """A budget in mu that is worth at most (epsilon, delta); other budgets unchanged.

    Proof: let delta' be what `chance` leaves of delta. Thresholds get a tenth of delta': `part` of
        the new budget's delta beyond `chance`. At epsilon, mu gets the other nine tenths. Deltas
        add up (`Loss`).
    """
    if budget.epsilon is None or budget.delta is None or budget.delta <= chance or not part:
        return budget
    beside = (budget.delta - chance) * FOR_THRESHOLDS
    rest = budget.delta - chance - beside
    mu = Fraction(gaussian_mu(Budget(epsilon=budget.epsilon, delta=rest)))
    return Budget(mu=mu, delta=beside / part + chance)


@lru_cache(maxsize=64)
def _divided(
    budget: Budget, share: Fraction, chance: Fraction, part: Fraction, *, known: bool, alone: bool
) -> Division:
    """`part`: of delta, for thresholds beside what is left in mu or rho."""
    if budget.epsilon is not None:  # a smaller epsilon is the stronger promise
        budget = replace(budget, epsilon=min(budget.epsilon, MOST_EPSILON))
    delta, left = budget.delta, 1 - share
    slack = part * max((delta or Fraction(0)) - chance, Fraction(0))
    if budget.rho is not None:
        looking, rest = Budget(mu=root_down(2 * budget.rho * share)), budget.rho * left
        return Division(looking, Budget(rho=rest, delta=delta), Loss(2 * rest, delta=slack))
    square = budget.mu**2 if budget.mu is not None else None
    if square is None and delta is not None and delta > chance:
        assert budget.epsilon is not None  # noqa: S101  (a budget has exactly one of the three)
        square = Fraction(gaussian_mu(Budget(epsilon=budget.epsilon, delta=delta - chance))) ** 2
        if not known:
            mu, steepest = root_down(square * left), 1 if alone else STEEPEST
            return _followed(Budget(epsilon=budget.epsilon, delta=delta), chance, mu, mu * steepest)
    if square is None:
        raise PlanError(
            "delta is below the chance that two of max_units privacy units look alike"
            f" ({float(chance):g}).\n  to fix  lower max_units, or raise delta"
        )
    looking, mu = Budget(mu=root_down(square * share)), root_down(square * left)
    return Division(looking, Budget(mu=mu, delta=delta), Loss(mu**2, delta=slack))


def _followed(budget: Budget, chance: Fraction, mu: Fraction, steepest: Fraction) -> Division:
    """A rest that is worth `mu`, and the largest look that it leaves room for."""
    epsilon, delta = budget.epsilon or Fraction(0), (budget.delta or Fraction(0)) - chance
    part = short_below(Loss(gaussian=mu**2).delta_at(float_below(epsilon)))
    steepest = short_below(float(steepest))

    def fits(look: Fraction) -> bool:
        return Fraction(Sequel(epsilon, part, look, steepest).joint) <= delta

    low, high = Fraction(0), mu
    while high - low > PRECISION_OF_LOOK * high:
        middle = short_below(float((low + high) / 2))
        if not low < middle < high:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    if not low:
        raise PlanError(f"look_share leaves too little of delta = {float(delta):g} for a look")
    rest = Budget(epsilon=epsilon, delta=part + chance)
    return Division(Budget(mu=low), rest, Sequel(epsilon, part, low, steepest))


def short_below(number: float) -> Fraction:
    """A fraction of four digits, not above a number, that people can read.

    >>> short_below(0.123456), short_below(2.0)
    (Fraction(617, 5000), Fraction(2, 1))
    """
    grain = Fraction(10) ** (3 - floor(log10(number)))
    return floor(Fraction(number) * grain) / grain


def told(plan: Plan, known: dict[str, Any], said: list[str], bounds: Bounds | None = None) -> Plan:
    """The plan with the results of a look: expectations as options, bounds, and words."""
    found = bounds or {}
    none = [text for text in open_values(plan) if text not in found]
    content = {"options": known, "said": said} | ({NOT_FOUND: none} if none else {})
    return with_bounds(replace(plan, options={**plan.options, LOOKED: content}), found)


def gives_options(plan: Plan) -> bool:
    """Whether a query gives options of its mechanisms."""
    return bool(plan.options.keys() - {LOOKED, LOOK_SHARE.name})


def expectations(options: Any) -> dict[str, Any]:
    """The options of a query, with the results of a look."""
    return {**options, **options.get(LOOKED, {}).get("options", {})}


GUESSED = (
    "nothing is known of the rows, so bounds are chosen for rows of any shape: errors may be many"
    " times those of bounds that fit"
)


def is_guessed(plan: Plan) -> bool:
    """Whether bounds are chosen without any expectation of the rows and without a look."""
    known = EXPECTED_ROWS.given_in(plan.options) or plan.bounding != Bounding() or look_share(plan)
    return not known and not plan.counts_once and plan.preset == "default"


def ways_to_know(plan: Plan) -> str:
    """How a user can replace a guess by knowledge."""
    more = "; or look_share = 0.05: 'explain' says what it costs" if can_look(plan) else ""
    return (
        "max_rows_contributed, as many rows as most units have in a period or window; or"
        f" expected_rows and expected_units, if they are publicly known{more}"
    )


def why_no_look(plan: Plan) -> str | None:
    """Why no look finds how many rows units have; None if one does, or would change nothing."""
    given, source = plan.options, plan.source
    bounded = plan.bounding.max_rows is not None or plan.bounding.quadratic is not None
    known = plan.key_set.public is not None or not plan.keys
    settled = EXPECTED_ROWS.given_in(given) or (bounded and known) or plan.counts_once
    if settled or look_share(plan) or plan.preset != "default":
        return None
    if LOOK_SHARE.given_in(given):
        return "look_share is 0"
    if can_look(plan):
        if blurs_periods(plan):
            return "it would weaken the promise for units present in many periods (see look_share)"
        return f"of more than {MOST_RELEASES} releases the first one tells too little"
    if any(agg.function in SKETCHES for agg in plan.aggregates):
        return "no look is made for sketches"
    if plan.window.kind != "whole":
        return "they come later, and in windows"
    if source.combines:
        return "they come later, and are made of several rows of a unit"
    if not (source.known.is_whole or source.known.keeps):
        return "they come later, and are not read twice"
    return "they come later, in no known number of releases"
