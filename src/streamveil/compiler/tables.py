"""From a plan over a changing table to its operator: which mechanism, why, and how good."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial

from streamveil.changing_tables.operator import Attribute, ChangingTable
from streamveil.core.accounting import Budget
from streamveil.dynamic.choose import (
    Candidate,
    MechanismChoice,
    Preset,
    Workload,
    choose,
    counter_candidate,
)
from streamveil.dynamic.distinct import DistinctCounter
from streamveil.dynamic.live_pmw import LivePmw
from streamveil.errors import PlanError
from streamveil.expressions import compile_key, compile_predicate
from streamveil.linear.budget_shares import Share
from streamveil.linear.queries import Queries
from streamveil.linear.structured import Marginals
from streamveil.linear.sums import Sums
from streamveil.plan import Plan, TableSource
from streamveil.plan.options import (
    ACCEPT_ERROR,
    ASK_SHARE,
    CONFIDENCE,
    EXPECTED_SIZE,
    EXPECTED_UPDATES,
    INTEGER,
    MAX_CHANGES,
    MECHANISM,
    NON_NEGATIVE,
)
from streamveil.sql.table import counted_points

CLEARLY = 0.5  # a mechanism without proved intervals must be this much better
MIXED = 0.05  # times the part of the table that a step replaces, by forecast; see `LivePmw.mixing`


def compile_table(plan: Plan) -> ChangingTable:
    """The operator of a plan; PlanError when no mechanism is useful for its sizes."""
    made = Design(plan)
    best = made.candidate
    if best.expected >= made.worth and not ACCEPT_ERROR.of(plan.options):
        raise PlanError(
            "no mechanism is useful for this table: its worst answer would be wrong by "
            f"{best.expected / made.workload.size:.0%} of all {made.counts} ({best.name}).\n"
            f"  to fix  fewer steps, fewer or coarser groups, more {made.counts}, a larger budget; "
            "or accept_error = TRUE"
        )
    return made.operator


@dataclass(frozen=True)
class Design:
    """Everything that follows from a plan over a changing table, before any row is read."""

    plan: Plan

    @property
    def source(self) -> TableSource:
        """The table."""
        assert isinstance(self.plan.source, TableSource)  # noqa: S101  (only such plans come here)
        return self.plan.source

    @cached_property
    def cells(self) -> Marginals:
        """The rows of a release."""
        names = tuple(name for name, _ in self.source.domains)
        sizes = tuple(len(values) for _, values in self.source.domains)
        at = {name: place for place, name in enumerate(names)}
        return Marginals(sizes, tuple(tuple(at[n] for n in some) for some in self.plan.sets), names)

    @property
    def total(self) -> int | None:
        """The output that counts all records."""
        counts = [place for place, one in enumerate(self.plan.aggregates) if one.expression is None]
        return counts[0] if counts else None

    @property
    def distinct(self) -> str | None:
        """The expression whose different values are counted; None: records are counted."""
        one = self.plan.aggregates[0]
        return one.expression if one.function == "count_distinct" else None

    @property
    def counts(self) -> str:
        """The things that the answers count, in a word."""
        return "records" if self.distinct is None else "values"

    @cached_property
    def queries(self) -> Queries:
        """The queries, one for each row and output."""
        if self.distinct is not None:
            return self.cells
        if len(self.plan.aggregates) == 1 and self.total == 0:
            return self.cells
        counted = [counted_points(self.plan, one.expression) for one in self.plan.aggregates]
        if not any(points.any() for points in counted):
            raise PlanError(
                "no record can be counted: none of the declared values meets a condition.\n"
                "  to fix  correct the conditions of COUNTIF, or the values in CHECK"
            )
        wanted = [(group, points) for points in counted for group in self.cells.sets]
        return Sums.of(self.cells.shape, wanted)

    @cached_property
    def workload(self) -> Workload:
        """The public facts about the table."""
        given, clock = self.plan.options, self.plan.clock
        grows = self.source.changelog == "insert"
        size = EXPECTED_SIZE.of(given)
        return Workload(
            queries=self.queries, size=size, steps=1 if clock.kind == "once" else clock.steps,
            updates=given.get(EXPECTED_UPDATES.name, size if grows else 2 * size), grows=grows,
        )  # fmt: skip

    @property
    def ask_share(self) -> Fraction:
        """The part of the budget that is for questions."""
        return Fraction(str(ASK_SHARE.of(self.plan.options)))

    @property
    def life(self) -> Fraction:
        """The part of the budget that one life of a record may cost, in epsilon or rho."""
        lives = self.source.lives
        return Fraction(1, lives if self.plan.budget.is_pure else lives * lives)

    @cached_property
    def choice(self) -> MechanismChoice:
        """All mechanisms for the released answers, best first."""
        budget, ask = self.plan.budget, self.ask_share
        preset: Preset = "theorem" if self.plan.preset == "theorem" else "practical"
        if self.distinct is not None:
            return MechanismChoice(self.workload, preset, (self._of_values,))
        if ask and not budget.is_pure:  # questions add to noise as zCDP, not as mu
            budget = Budget(rho=Fraction(Share.of(budget).amount))
        return choose(self.workload, budget, preset, self.life * (1 - ask))

    @property
    def _of_values(self) -> Candidate:
        """The one mechanism for different values, which change once a step, or once in all."""
        w = self.workload
        changes = 1 if w.grows or w.steps == 1 else MAX_CHANGES.of(self.plan.options)
        mechanism = DistinctCounter(
            cells=self.cells, share=Share.for_noise(self.plan.budget).scale(self.life),
            horizon=w.steps, changes=min(changes, w.steps or changes),
        )  # fmt: skip
        why = f"noise only, for {mechanism.changes:,} change(s) of a value in each set of groups"
        return counter_candidate(mechanism.counter, mechanism, why)

    @property
    def candidate(self) -> Candidate:
        """The mechanism that runs: the one the query names, or the best one.

        A counter has proved intervals, so only a mechanism with less than half of its error
        replaces it.
        """
        wanted = MECHANISM.of(self.plan.options)
        found = {one.name.lower().replace(" ", "_"): one for one in self.choice.candidates}
        best, counter = self.choice.best, found["counter"]
        if wanted == "auto":
            return best if best.expected < CLEARLY * counter.expected else counter
        if wanted not in found:
            raise PlanError(
                f"mechanism = '{wanted}' does not fit this table; candidates: {', '.join(found)}"
            )
        return found[wanted]

    @property
    def worth(self) -> float:
        """The error from which on answers are useless, in counted things."""
        return self.choice.limit

    @cached_property
    def adaptive(self) -> LivePmw | None:
        """The mechanism for questions."""
        if not self.ask_share:
            return None
        w, share = self.workload, Share.of(self.plan.budget).scale(self.ask_share * self.life)
        replaced = 0.0 if w.grows else w.updates / (2 * w.horizon * w.size)
        return LivePmw(
            share=share, start=int(w.size), domain=self.cells.domain, only_grows=w.grows,
            mixing=min(1.0, MIXED * replaced),
        )  # fmt: skip

    @cached_property
    def operator(self) -> ChangingTable:
        """The operator that runs."""
        source, plan = self.source, self.plan
        return ChangingTable(
            mechanism=self.candidate.mechanism,
            attributes=tuple(Attribute(name, values) for name, values in source.domains),
            id_column=source.record,
            operation_column=source.operation,
            lives=source.lives,
            outputs=tuple(one.name for one in plan.aggregates),
            cells=self.cells,
            condition=None if plan.where is None else partial(compile_predicate, plan.where),
            value=None if self.distinct is None else partial(compile_key, self.distinct),
            adaptive=self.adaptive,
            total=self.total,
            confidence=float(CONFIDENCE.of(plan.options)),
            non_negative=bool(NON_NEGATIVE.of(plan.options)),
            integer=bool(INTEGER.of(plan.options)),
        )
