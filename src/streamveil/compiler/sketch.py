"""From a plan with a sketch aggregate to the operator that runs it in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from streamveil.compiler.group_by import Compiler, binder
from streamveil.connectors.base import declared_schema
from streamveil.core.accounting.budget import Budget
from streamveil.core.accounting.neighbours import Neighbours
from streamveil.core.sensitivity import Bounds
from streamveil.dataflow.windows import protected
from streamveil.errors import PlanError
from streamveil.expressions.names import key_name
from streamveil.plan.check import check_compiled
from streamveil.plan.options import MAX_UNITS
from streamveil.plan.own_rows import omitted
from streamveil.plan.plan import KeyColumn, Plan
from streamveil.sketches import HeavyHitters, LazySketch
from streamveil.sketches.operator import COLLISION_BITS, SketchQuery
from streamveil.sql.schema import check_searched

MEMORY = 4 << 20  # bytes of one window, when the query says nothing
BITS = 32  # of integer keys


def compile_sketch(plan: Plan) -> SketchQuery:
    """The sketch query of a plan: one aggregate, no GROUP BY, max_rows as the only bound."""
    check_compiled(plan)
    declared = plan.source.options.get("columns")
    if declared:  # of others the types are known when the source is there
        check_searched(plan, declared_schema(declared))
    aggregate = plan.aggregates[0]
    if len(plan.aggregates) > 1 or plan.keys:
        raise PlanError(
            f"{aggregate.function.upper()} stands alone: no GROUP BY and no other aggregate.\n"
            "  to fix  ask for it in a query of its own"
        )
    bounding = plan.bounding
    if bounding.max_rows is None or bounding.max_rows_per_group or bounding.quadratic:
        raise PlanError("a sketch is bounded by max_rows_contributed, and by nothing else")
    schedule = Compiler(plan).schedule()
    protects = protected(plan.unit, plan.periods, bounding.max_rows)
    options = dict(aggregate.options)
    memory = int(options.pop("memory", MEMORY))
    searched = aggregate.function == "heavy_hitters"
    length = int(options.pop("text_length", 0))
    bits = 8 * length or int(options.pop("bits", BITS))
    known = tuple(row[0] for row in plan.key_set.public or ())
    if not searched and not known:
        raise PlanError(
            "APPROX_FREQUENCY shows given keys only: a sketch does not know which keys it holds.\n"
            "  to fix  declare them with public_groups, or ask for HEAVY_HITTERS"
        )
    units = int(MAX_UNITS.of(plan.options))
    budget = without_collisions(plan.budget, units)
    sized = {"memory": memory, "protects": protects, "budget": budget,
             "triggers": schedule.triggers}  # fmt: skip
    try:
        sketch = sized_finder(**sized, bits=bits) if searched else sized_sketch(**sized)  # type: ignore[arg-type]
    except ValueError as error:  # of settings: no row was read
        raise PlanError(str(error)) from None
    key = KeyColumn(name=key_name(aggregate.expression), expression=aggregate.expression or "")
    return SketchQuery(
        job=plan.name,
        bind=binder(replace(plan, keys=(key,)), (), {}),
        schedule=schedule,
        periods=plan.periods,
        bounds=Bounds(max_rows=bounding.max_rows),
        sketch=sketch,
        name=aggregate.name,
        key_name=key.name,
        keys=() if searched else known,
        k=int(options.pop("k", 100)) if searched else 0,
        text_length=length if searched else 0,
        max_units=units,
        omitted=omitted(plan.source),
    )


def sized_sketch(
    *,
    memory: int,
    protects: Neighbours,
    budget: Budget,
    triggers: int | None,
    depth: int = 3,
    seed: int = 0,
) -> LazySketch:
    """The widest sketch of one window within `memory` bytes, for `SketchQuery`.

    >>> sketch = sized_sketch(memory=10**6, triggers=96, protects=Neighbours("user", bound=4),
    ...     budget=Budget(epsilon=1, delta=1e-9))
    >>> sketch.nbytes <= 10**6, sketch.width
    (True, 16666)
    """  # fmt: skip
    trial = LazySketch(
        kind="count-min", width=1, depth=depth, horizon=triggers, clock="ticks", round=1,
        protects=protects, budget=budget, seed=seed,
    )  # fmt: skip
    width = memory // trial.nbytes
    if width < 1:
        raise PlanError(f"a sketch needs at least {trial.nbytes} bytes, not {memory}")
    return replace(trial, width=width)


def sized_finder(
    *,
    memory: int,
    protects: Neighbours,
    budget: Budget,
    triggers: int | None,
    bits: int = 32,
    seed: int = 0,
) -> HeavyHitters:
    """The widest heavy-hitter finder of one window within `memory` bytes."""  # fmt: skip
    trial = HeavyHitters(
        width=1, bits=bits, horizon=triggers, clock="ticks", round=1, protects=protects,
        budget=budget, seed=seed,
    )  # fmt: skip
    sketched = [t for t in trial.tables if t.layout.family == "multiply"]
    fixed = trial.nbytes - sum(table.nbytes for table in sketched)
    each = sum(table.nbytes for table in sketched)
    width = (memory - fixed) // each if each else 1
    if width < 1:
        raise PlanError(f"a finder of {bits}-bit keys needs {fixed + each} bytes, not {memory}")
    return replace(trial, width=width)


def without_collisions(budget: Budget, units: int) -> Budget:
    """What is left for the sketch when the chance of equal unit fingerprints is set aside."""
    collision = Fraction(units, 2**COLLISION_BITS)
    if budget.delta is None or budget.delta <= collision:
        raise PlanError(
            f"a sketch needs a delta above {float(collision):.2g}, the chance that two of "
            "max_units units share a fingerprint"
        )
    return Budget(epsilon=budget.epsilon, delta=budget.delta - collision, rho=budget.rho,
                  mu=budget.mu)  # fmt: skip
