"""Which mechanisms a group-by runs and how much noise each adds: from public numbers only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import inf, sqrt
from typing import Any, Protocol

from streamveil.calibrate import fit, gaussian_mu, least_sigma, root_down, spread_of, zcdp_rho
from streamveil.compiler.design_choice import (
    BATCHES,
    UNKNOWN_OPENING,
    Given,
    Problem,
    choose,
    usual_family,
    weight_quanta,
)
from streamveil.compiler.error_forecast import CAUTION, ForecastNoise, Kind, Settings
from streamveil.compiler.expected_stream import expected_stream, public_groups
from streamveil.compiler.plan_forecast import clamped_share, sizing_lane, value_shares
from streamveil.compiler.table_design import NoTableError, about_half, design_selection
from streamveil.core.accounting import Budget, float_above
from streamveil.core.accounting.sequel import Sequel
from streamveil.core.mechanism import COLLISION_BITS, MOST_CUT, MOVED, Discovery, MechanismDesign
from streamveil.core.release import WeightRule, blt_of
from streamveil.core.selection.coins import TableSettings
from streamveil.core.selection.gaussian import FINE, LEAST_NOISE, GaussianSettings
from streamveil.core.selection.total_test import TotalsAlone, TotalTesting, can_test
from streamveil.core.sensitivity import Bounds, Lane, is_units, lane_move, root_up
from streamveil.counters import COUNTERS
from streamveil.dataflow.release import AggregationPlan, driver
from streamveil.errors import PlanError, require_one_of
from streamveil.plan import Plan, options
from streamveil.plan.look import STEEPEST, expectations, of_kept_rows
from streamveil.plan.options import EXPECTED_REPEATS, Option
from streamveil.types import Exact

FAR = 1_000  # releases of a query without end, for forecasts
TEST_SHARE = Fraction(1, 20)  # of delta, for them
WIDENING_SHARE = 0.1  # of mu squared, for the count of cut rows that widens intervals
FEW_SLOTS = 6
USUAL_REPEATS = 0.3  # of rows, a group of their unit
MOST_APART = 8.0
MOST_SLOTS = 16  # hidden groups of one unit beyond which a table costs more than a counter


class ReadOption(Protocol):
    """Reads an option of the query."""

    def __call__(self, option: Option, default: Any = None, reason: str = "") -> Any:
        """The query's value, or a default that is noted with its reason; else the option's own."""


def require_counter(plan: Plan) -> None:
    """Refuses an unknown counter, and names those that a group-by takes."""
    if plan.counter not in (*COUNTERS, "auto"):
        usable = [kind for kind, made in COUNTERS.items() if not made.keyed]
        require_one_of("counter", plan.counter, (*usable, "auto"))


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """The question: lanes and how often each is read, bounds, triggers, budget, options."""

    plan: Plan
    lanes: tuple[Lane, ...]  # the nodes of trees last
    trees: tuple[tuple[Lane, int], ...]
    uses: tuple[float, ...]
    bounds: Bounds
    horizon: int | None
    max_units: int
    windows: int | None  # windows that one scope of a unit meets; None: no end
    setting: ReadOption
    sequel: Sequel | None = None  # the losses that a look left room for

    def __post_init__(self) -> None:
        require_counter(self.plan)

    @property
    def collision(self) -> Fraction:
        """The chance that one unit shares its fingerprint with another."""
        return Fraction(self.max_units, 2**COLLISION_BITS)

    def public(self) -> MechanismDesign:
        """The design with all keys shown from the start: the whole budget goes to the values."""
        mu = self._mu(Fraction(0))
        stream = expected_stream(self.plan, self.windows)
        forecast = stream is not None or is_open(self.plan)
        chosen = self._chosen(("public",)) if forecast else None
        by_rows = chosen is not None and is_open(self.plan) and chosen.max_rows < inf
        weighable = self._asks_for_weights if chosen is None else not by_rows
        rule = self._rule(UNKNOWN_OPENING, chosen) if weighable else None
        rule = None if rule is None else replace(rule, caution=CAUTION)
        limits = self._bounds(rule, chosen)
        noises = self._noises(self.lanes, weighing(limits, rule), mu**2, rule)
        return replace(self._design(limits, noises), rule=rule, cut=self._cut(mu**2))

    def discovered(self) -> MechanismDesign:
        """The design with keys shown by a private test."""
        if self.plan.budget.delta is None:
            raise PlanError(
                "discovered keys need a delta: it bounds the chance of showing a key that one"
                " unit alone holds.\n  to fix  add a delta to the budget, or declare public keys"
            )
        wanted = self.setting(options.SELECTION)
        every: tuple[Kind, ...] = ("table", "gaussian")
        if self.plan.budget.epsilon is None or self.horizon is None:
            every = ("gaussian",)  # no table fits
        if self.horizon == 1 and self._testable and len(self._value_shares) == 1:
            every = (*every, "totals")  # with more releases they show groups late
        kinds = every if wanted == "auto" else (wanted,)
        most = FEW_SLOTS if (self.windows or FAR) <= 2 else MOST_SLOTS  # they span all windows
        of_table = options.HIDDEN_GROUPS, options.MU_SHARE
        settled = any(option.given_in(self.plan.options) for option in of_table)
        makers = {"totals": self._by_totals, "table": self._by_table}
        while True:  # where no table fits so many hidden groups, one may fit half of them
            chosen = self._chosen(kinds, most)
            made = makers[chosen.kind](chosen) if chosen.kind in makers else None
            if made is not None:
                return made
            most = min(most, chosen.slots) // 2
            if chosen.kind != "table" or not most or settled:
                break
        if wanted == "table":
            raise PlanError(
                "no table fits: it needs a known number of triggers, a budget in epsilon and delta"
                " that leaves room for one, also after a look, at most 16 hidden_groups and a"
                " mu_share that leaves it some.\n"
                "  to fix  use selection = 'gaussian', or look_share = 0"
            )
        if wanted == "totals":
            raise PlanError(
                "no total of this query shows groups: it needs a count, or a sum of values that are"
                " never below 0, total_tests of 1 or more, and a known number of triggers.\n"
                "  to fix  use selection = 'gaussian'"
            )
        return self._by_counter(chosen)

    # ---- the published system

    def published(self) -> MechanismDesign:
        """DP-SQLP: half of epsilon each for selection and values, a third of delta for values."""
        budget, rows = self.plan.budget, self.bounds.max_rows
        if budget.epsilon is None or budget.delta is None or self.horizon is None or rows is None:
            raise PlanError(
                "preset 'dp-sqlp' needs epsilon, delta, max_rows and a known number of triggers"
            )
        if self.plan.key_set.public is not None or not self.plan.keys:
            raise PlanError("preset 'dp-sqlp' discovers its keys; use the default for public keys")
        if any(lane.kind == "units" for lane in self.lanes):
            raise PlanError(
                "preset 'dp-sqlp' forgets who is in a group after each release of it: a count of"
                " different units would count them again.\n"
                "  to fix  count rows, or use the default preset"
            )
        thresholds = self.setting(options.THRESHOLDS)
        from streamveil.core.selection.rounds import RoundSettings  # only the preset needs them
        from streamveil.counters.tree import HonakerCounter

        half, third = budget.epsilon / 2, budget.delta / 3
        rho = Fraction(zcdp_rho(Budget(epsilon=half, delta=third)))
        limits = replace(self.bounds, per_group=None, quadratic=None)
        tree = HonakerCounter(horizon=self.horizon, sigma=1)
        per_tree = Budget(mu=root_down(2 * rho / rows))
        selection = RoundSettings(
            noise=Fraction(fit(tree, per_tree, FINE, 1).sigma),
            beta=float(third / rows) * (1 - 1e-12),
            floor=max(1, self.plan.key_set.min_units),
            thresholds=thresholds,
        )
        charged = [lane for lane in self.lanes if lane.place == 0]  # a tree level is one
        per_lane = Budget(mu=root_down(2 * rho / len(charged)))
        noises = [Fraction(fit(tree, per_lane, *lane_move(lane, limits)).sigma) for lane in charged]
        return replace(self._design(limits, tuple(noises)), counter=tree, selection=selection)

    # ---- one Gaussian counter of units for selection, and for release where it is the answer

    def _by_counter(self, chosen: Settings) -> MechanismDesign:
        if chosen.kind != "gaussian":
            chosen = self._chosen(("gaussian",))
        bounds, lanes = self._bounds(None, chosen), self.lanes
        threshold = self._left(Fraction(0)) * Fraction(self.setting(options.DELTA_SHARE))
        mu = self._mu(threshold)
        beta = float(threshold / bounds.hidden_groups) * (1 - 1e-12)
        shared = next((p for p, lane in enumerate(lanes) if is_units(lane, bounds)), None)
        rest = tuple(lane for place, lane in enumerate(lanes) if place != shared)
        forecast = None if chosen.share == 1 else 1 - chosen.share
        part = Fraction(1) if not rest else self._selection_share(shared, len(rest), forecast)
        groups = bounds.units_l2_squared
        moved = Fraction(FINE) * root_up(Fraction(groups))
        noise = self._fitted(moved, groups, mu**2 * part * (1 - self._cut_share), None)
        selection = GaussianSettings(
            noise=self._at_least(noise), beta=beta, floor=max(1, self.plan.key_set.min_units)
        )
        noises = self._noises(rest, bounds, mu**2 * (1 - part), None)
        return replace(self._design(bounds, noises), cut=self._cut(mu**2), selection=selection)

    def _selection_share(self, shared: int | None, others: int, forecast: float | None) -> Fraction:
        default = 0.5 if shared is None else 1 / (1 + others)
        reason = options.SELECTION_SHARE.reason
        by_forecast = shared is None or self._people is not None
        if by_forecast and forecast is not None:
            default, reason = round(forecast, 3), f"{reason}: by forecast"
        return Fraction(self.setting(options.SELECTION_SHARE, default, reason))

    # ---- no selection beside a test of the totals that are released

    @property
    def _testable(self) -> bool:
        """Whether a total is released that can only grow."""
        counter, wanted = self._unscaled(), options.TOTAL_TESTS.of(self.plan.options) != 0
        return wanted and any(can_test(counter, lane, self.bounds, None) for lane in self.lanes)

    def _by_totals(self, chosen: Settings) -> MechanismDesign | None:
        """Groups shown by their noisy totals alone, if any total can."""
        tests = int(self.setting(options.TOTAL_TESTS))
        share = Fraction(self.setting(options.DELTA_SHARE))
        if self.horizon is None or not tests:
            return None
        beta = self._left(Fraction(0)) * share
        mu, bounds = self._mu(beta), self._bounds(None, chosen)
        design = replace(self._design(bounds, self._noises(self.lanes, bounds, mu**2, None)),
                         cut=self._cut(mu**2))  # fmt: skip
        settings = TotalsAlone(offset=max(1, self.plan.key_set.min_units) - 1)
        test = self._test(design, settings, tests, beta)
        return None if test is None else replace(design, selection=settings, test=test)

    # ---- a table of coins for selection, weighted counters for release

    def _by_table(self, chosen: Settings) -> MechanismDesign | None:
        """The table design, if the budget allows one."""
        budget = self.plan.budget
        if budget.epsilon is None or self.horizon is None:
            return None
        part = Fraction(chosen.share).limit_denominator(1000)
        slots = int(self.setting(options.HIDDEN_GROUPS, chosen.slots))
        if slots > MOST_SLOTS:
            return None
        if slots == 1 and self.sequel is not None:  # else the curve of one table is too steep
            part = max(part, STEEPEST)
        share = self.setting(options.MU_SHARE, part)
        tests = int(self.setting(options.TOTAL_TESTS))
        beta = self._left(Fraction(0)) * (TEST_SHARE if tests else 0)
        left = Budget(epsilon=budget.epsilon, delta=self._left(beta))
        try:
            design = design_selection(self.horizon, left, slots, Fraction(share), self.sequel)
        except NoTableError:
            return None
        rule = self._rule(float(design.half), chosen)
        limits = self._bounds(rule, chosen)
        bounds = weighing(replace(limits, slots=slots), rule)
        selection = TableSettings(
            slots=slots,
            coins=design.selection.coins,
            shift_epsilon=design.selection.shift_epsilon,
            epsilon=budget.epsilon,
            offset=max(1, self.plan.key_set.min_units) - 1,
            half=design.half,
            places=design.places,
        )
        noises = self._noises(self.lanes, bounds, design.mu**2, rule)
        made = replace(self._design(limits, noises), cut=self._cut(design.mu**2))
        made = replace(made, rule=rule)
        test = self._test(made, selection, tests, beta)
        return replace(made, selection=selection, test=test)

    def _test(
        self, design: MechanismDesign, selection: Discovery, tests: int, beta: Fraction
    ) -> TotalTesting | None:
        """The test of totals on the lane with the lowest threshold; None: no lane can be tested.

        Among equal lanes a count of all rows comes first: every row counts in it.
        """
        asked = TotalTesting(place=0, tests=tests, beta=beta)
        design = replace(design, selection=selection, test=asked)
        made = AggregationPlan(design=design, triggers=self.horizon)
        found = {
            place: replace(made, design=replace(design, test=replace(asked, place=place))).test
            for place, (lane, counter) in enumerate(zip(made.lanes, made.counters, strict=True))
            if tests and can_test(counter, lane, made.bounds, made.rule)
        }
        every = [test for test in found.values() if test is not None]
        counting, last = [test for test in every if test.lane.kind != "sum"] or every, self.horizon
        if not counting:
            return None
        best = min(
            counting,
            key=lambda test: (
                test.threshold(last or 1) / test.lane.reach,
                test.lane.kind != "rows",
            ),
        )
        return TotalTesting(place=best.place, tests=tests, beta=beta)

    def _rule(self, opening: float, chosen: Settings | None) -> WeightRule | None:
        """Weights, where they make sense."""
        quadratic = self.bounds.quadratic
        if quadratic is None or not self._weighable:
            return None
        flat = chosen is not None and chosen.reference == inf and is_open(self.plan)
        if self.setting(options.WEIGHTS) == "flat" or flat:
            return None
        scale = weight_quanta(quadratic)
        start, after, why = 0.5, 3 * opening, "set by the size at which keys are published"
        if chosen is not None:
            start, after = min(1.0, sqrt(quadratic / chosen.quadratic)), chosen.reference
            why = "by forecast"
        about = f"{options.ENTRY_WEIGHT.reason}: {why}"
        entry = float(self.setting(options.ENTRY_WEIGHT, round(start, 5), about))
        if not 0 < entry <= 1:
            raise PlanError(f"entry_weight must be above 0 and at most 1, not {entry:g}")
        about = f"{options.WEIGHT_REFERENCE.reason}: {why}"
        reference = float(self.setting(options.WEIGHT_REFERENCE, round(after, 1), about))
        return WeightRule(scale=scale, entry=max(1, round(entry * scale)), reference=reference)

    # ---- what is expected

    def _chosen(self, kinds: tuple[Kind, ...], most_slots: int = FEW_SLOTS) -> Settings:
        """The settings with the least forecast error on expected streams, or on usual ones."""
        bounds, most = self.bounds, public_groups(self.plan, self.windows)
        given = Given(per_group=bounds.per_group, groups=self.plan.bounding.max_groups)
        if not is_open(self.plan):
            given = Given(bounds.quadratic, bounds.max_rows, bounds.per_group, bounds.groups)
        stream, once = expected_stream(self.plan, self.windows), self.plan.counts_units
        lost = clamped_share(self.plan, self.lanes)
        shares = self._value_shares if self._people is None else self._value_shares[-2:][:1]
        family = tuple(
            replace(
                one,
                value=share,
                clamped=lost,
                once=once,
                ratio=of_kept_rows(self.plan),
                batches=BATCHES,
            )
            for share in shares
            for one in (usual_family(given) if stream is None else stream.family())
        )
        noise = self._noise(self._half() if "table" in kinds else None)
        if "table" in kinds and not noise.half:
            kinds = ("gaussian",)
        weighted = self._weighable and options.WEIGHTS.of(self.plan.options) != "flat"
        counted = any(lane.kind in ("rows", "units") for lane in self.lanes)
        alone = most == 1 and not self._asks_for_weights
        single = stream is not None and alone  # else the family is one of many groups
        return choose(Problem(
            family, noise, given, kinds, weighted, not self._asks_for_weights, most_slots, counted,
            single, float(most or inf),
        ))  # fmt: skip

    @property
    def _asks_for_weights(self) -> bool:
        """Whether the query itself says how rows are weighed."""
        asked = options.ENTRY_WEIGHT, options.WEIGHT_REFERENCE
        return any(option.given_in(self.plan.options) for option in asked)

    @cached_property
    def _value_shares(self) -> tuple[float, ...]:
        return value_shares(self.plan, self.lanes)

    def _noise(self, half: float | None) -> ForecastNoise:
        """The public numbers that a forecast needs."""
        triggers = self.horizon or FAR
        spread = spread_of(self._unscaled(), triggers)
        left = float(self._left(Fraction(0))) / 2
        parts, people = self._parts(None), self._people
        return ForecastNoise(
            mu=shown_digits(float(self._mu(Fraction(0)))),
            part=round(self._part(parts), 4),
            people=0.0 if people is None else round(parts[people], 4),
            beside=shown_digits(float(self._mu(self._left(Fraction(0)) / 2))),
            spread=round(spread, 4),
            triggers=triggers,
            half=round(half or 0.0, 2),
            delta=float(f"{left:.3g}"),
            offset=max(1, self.plan.key_set.min_units) - 1,
        )

    def _part(self, parts: dict[int, float]) -> float:
        """The part of mu squared for the total that is forecast.

        A quantile has no total. It reads ranks, each a sum of one node per level: a rank is as
        noisy as one total with the part of a level divided by the number of levels.
        """
        place = sizing_lane(self.lanes)
        if place >= 0 or not self.trees:
            return parts.get(place, 1.0)
        return min(parts.values()) / max(levels for _, levels in self.trees)

    def _half(self) -> float | None:
        """Units that show half of all groups with two slots and 2/3 of mu; None: no such table."""
        budget = self.plan.budget
        if budget.epsilon is None or self.horizon is None:
            return None
        left = Budget(epsilon=budget.epsilon, delta=self._left(Fraction(0)))
        return about_half(self.horizon, left, 2)

    @property
    def _people(self) -> int | None:
        """The lane of units next to the forecast lane, if a unit may enter few groups."""
        if not self.plan.window.side_by_side or sizing_lane(self.lanes) < 0:
            return None
        found = [place for place, lane in enumerate(self.lanes) if lane.kind == "units"]
        return found[0] if found and found[0] != sizing_lane(self.lanes) else None

    @property
    def _weighable(self) -> bool:
        """Whether the quadratic filter can charge weights, and sizes are released.

        Only a BLT draws its noise in proportion to weights; another counter would add too little. A
        limit for a group adds up weights: it is allowed only where each unit counts once, since
        rows do not matter there.
        """
        once = all(lane.kind == "units" for lane in self.lanes)
        filtered = self.bounds.quadratic is not None and (once or self.bounds.per_group is None)
        return filtered and driver(self.lanes) >= 0 and blt_of(self._unscaled()) is not None

    def _bounds(self, rule: WeightRule | None, chosen: Settings | None) -> Bounds:
        """The bounds that the query gives, or that the forecast chose, with weights or without."""
        if chosen is None or not is_open(self.plan):
            return self.bounds
        groups = self.bounds.groups if chosen.entered == inf else round(chosen.entered)
        if rule is not None:
            return replace(self.bounds, groups=groups)
        if chosen.max_rows < inf:
            rows, each = round(chosen.max_rows), chosen.per_group
            limits = each == 1 or each < rows
            return Bounds(max_rows=rows, per_group=round(each) if limits else None, groups=groups)
        return replace(self.bounds, quadratic=round(chosen.quadratic), groups=groups)

    # ---- rows over the bound

    @cached_property
    def _cut_share(self) -> Fraction:
        """The part of mu squared for the private count of cut rows."""
        usual = WIDENING_SHARE if options.INTERVALS.of(self.plan.options) == "true" else None
        return Fraction(self.setting(options.CUT_SHARE, usual)).limit_denominator(10**6)

    def _cut(self, mu_squared: Fraction) -> Exact | None:
        """The noise of the count of cut rows, from the mu squared of all lanes."""
        if not self._cut_share:
            return None
        part = mu_squared * self._cut_share
        return self._fitted(Fraction(MOVED), MOST_CUT, part, None)

    # ---- counters

    def _noises(
        self, lanes: tuple[Lane, ...], bounds: Bounds, mu_squared: Fraction, rule: WeightRule | None
    ) -> tuple[Exact, ...]:
        """The noise of each lane; a tree level is one."""
        charged = [lane for lane in lanes if lane.place == 0]
        parts = self._parts(bounds)
        weights = [Fraction(parts[self.lanes.index(lane)]) for lane in charged]
        total, left = sum(weights, Fraction(0)), mu_squared * (1 - self._cut_share)
        return tuple(
            self._fitted(*lane_move(lane, bounds), left * weight / total, rule)
            for lane, weight in zip(charged, weights, strict=True)
        )

    def _parts(self, bounds: Bounds | None) -> dict[int, float]:
        """The part of mu squared for each lane, by its place; for a tree level its first node.

        Parts are in proportion to how often a lane is read. Errors fall as the root of a part, so
        the sum of relative errors is least where parts are in proportion to the relative errors of
        an even division, to the power of 2/3. For units next to rows these are roughly known, from
        the `bounds` (None: not chosen yet) and from how many rows repeat a group of their unit. One
        is taken to be at most `MOST_APART` times the other.
        """
        weights = {
            place: float(self.uses[place])
            for place, lane in enumerate(self.lanes)
            if lane.place == 0
        }
        for place in weights:
            if self.lanes[place].kind == "units" and len(weights) > 1 and bounds is not None:
                again = EXPECTED_REPEATS.of(expectations(self.plan.options))
                units = 1 - (USUAL_REPEATS if again is None else float(again))
                share = sqrt(bounds.units_moved / bounds.l2_squared) / units
                weights[place] *= min(max(share, 1 / MOST_APART), MOST_APART) ** (2 / 3)
        whole = sum(weights.values())
        return {place: weight / whole for place, weight in weights.items()}

    def _at_least(self, noise: Exact) -> Exact:
        """The noise, or as much as thresholds need: less than a hundredth of a unit."""
        scaled = Fraction(self._unscaled().sensitivity) * Fraction(LEAST_NOISE)
        return max(Fraction(noise), Fraction(float_above(scaled)))

    def _fitted(
        self, moved: Fraction, groups: int, mu_squared: Fraction, rule: WeightRule | None
    ) -> Exact:
        return least_sigma(self._unscaled(), moved, groups, mu_squared, rule)

    def _unscaled(self) -> Any:
        kind = self.plan.counter
        if kind == "auto":
            kind = "anytime-blt" if self.horizon is None else "blt"
        make: Any = COUNTERS[kind]
        if make.keyed:
            raise PlanError(
                f"the counter '{kind}' draws at one address for all triggers, which a group-by"
                " cannot give it.\n  to fix  use counter = 'auto'; use it directly from sv.counters"
            )
        if "horizon" not in make.__dataclass_fields__:
            return make(sigma=1)
        if self.horizon is None:
            raise PlanError(
                f"the counter '{kind}' needs to know the number of triggers.\n"
                "  to fix  give the clock an end or a number of steps, or use counter = 'auto'"
            )
        return make(horizon=self.horizon, sigma=1)

    def _design(self, limits: Bounds, noises: tuple[Exact, ...]) -> MechanismDesign:
        """A design of public groups, without weights."""
        plain = tuple(lane for lane in self.lanes if lane.kind != "node")
        return MechanismDesign(
            limits=limits, plain=plain, trees=self.trees, counter=self._unscaled(), noises=noises,
            max_units=self.max_units,
        )  # fmt: skip

    # ---- budget

    def _mu(self, threshold: Fraction) -> Fraction:
        """The largest Gaussian parameter that leaves a delta for thresholds."""
        budget = self.plan.budget
        if budget.is_pure:
            raise PlanError(
                "the group-by needs a delta, whatever its noise: two privacy units look alike with"
                f" probability {float(self.collision):g}.\n"
                "  to fix  give a delta, for example one far below 1 / (number of units)"
            )
        if budget.delta is None:
            raise PlanError(
                "a budget in rho or mu also needs a small delta here: two privacy units look alike"
                f" with probability {float(self.collision):g}.\n  to fix  add delta to the budget"
            )
        left = self._left(threshold)
        if budget.epsilon is not None:
            budget = Budget(epsilon=budget.epsilon, delta=left)
        return Fraction(gaussian_mu(budget))

    def _left(self, threshold: Fraction) -> Fraction:
        """The part of delta that Gaussian mechanisms may use."""
        left = (self.plan.budget.delta or Fraction(0)) - self.collision - threshold
        if left <= 0:
            raise PlanError(
                "delta is below the chance that two of max_units privacy units look alike"
                f" ({float(self.collision):g}).\n  to fix  lower max_units, or raise delta"
            )
        return left


def weighing(limits: Bounds, rule: WeightRule | None) -> Bounds:
    """The limits, with the weights of a rule as the core derives them."""
    return limits if rule is None else replace(limits, scale=rule.scale, heaviest=rule.entry)


def shown_digits(number: float) -> float:
    """A number with four digits after the point, or if it is small, four significant ones.

    >>> shown_digits(0.123456), shown_digits(1.23456e-6)
    (0.1235, 1.235e-06)
    """
    return round(number, 4) or float(f"{number:.4g}")


def is_open(plan: Plan) -> bool:
    """Whether the query leaves the bound on a unit's rows to the forecast."""
    return plan.bounding.max_rows is None and plan.bounding.quadratic is None
