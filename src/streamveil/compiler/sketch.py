"""From a plan with a sketch aggregate to the operator that runs it in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from streamveil.compiler.group_by import Compiler, binder
from streamveil.connectors import declared_schema
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.sensitivity import Bounds
from streamveil.dataflow.windows import protected
from streamveil.errors import PlanError, at_least
from streamveil.expressions.dialect import key_name
from streamveil.plan import KeyColumn, Plan
from streamveil.plan.check import check_compiled
from streamveil.plan.options import CONFIDENCE, MAX_UNITS
from streamveil.sketches import HeavyHitters, HeavyTexts, LazySketch
from streamveil.sketches.heavy_texts import LONGEST_TEXT
from streamveil.sketches.operator import COLLISION_BITS, SketchQuery
from streamveil.sql.schema import check_searched

MEMORY = 4 << 20  # bytes of one window, when the query says nothing
BITS = 32  # of integer keys
SHORT = 8  # bytes of texts that are counted as integers; longer ones are counted by `HeavyTexts`
A_BYTE = 256 << 10  # bytes of memory for each byte of longer texts, when the query says nothing


def compile_sketch(plan: Plan) -> SketchQuery:
    """The sketch query of a plan: one aggregate, no GROUP BY, max_rows as the only bound."""
    check_compiled(plan)
    declared = plan.source.options.get("columns")
    if declared and not plan.source.combines:  # of others types are known once the source is there
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
    at_least(1, **options)
    searched = aggregate.function == "heavy_hitters"
    length = int(options.pop("text_length", 0))
    if length > LONGEST_TEXT:
        raise PlanError(
            f"text_length = {length} is too long: a sketch counts up to {LONGEST_TEXT} bytes.\n"
            f"  to fix  text_length => {LONGEST_TEXT}; texts that begin alike count as one"
        )
    memory = int(options.pop("memory", usual_memory(length)))
    bits = 8 * length or int(options.pop("bits", BITS))
    known = tuple(row[0] for row in plan.key_set.public or ())
    if not searched and not known:
        raise PlanError(
            "APPROX_FREQUENCY shows given keys only: a sketch does not know which keys it holds.\n"
            "  to fix  declare them with public_groups (in Python group_by(keys=sv.public([...]))),"
            " or ask for HEAVY_HITTERS"
        )
    units = int(MAX_UNITS.of(plan.options))
    budget = without_collisions(plan.budget, units)
    sized = {"memory": memory, "protects": protects, "budget": budget,
             "triggers": schedule.triggers}  # fmt: skip
    sketch: LazySketch | HeavyHitters | HeavyTexts
    if not searched:
        sketch = sized_sketch(**sized)  # type: ignore[arg-type]
    elif length > SHORT:
        sketch = sized_texts(**sized, length=length)  # type: ignore[arg-type]
    else:
        sketch = sized_finder(**sized, bits=bits)  # type: ignore[arg-type]
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
        confidence=float(CONFIDENCE.of(plan.options)),
        max_units=units,
        omitted=plan.source.omitted,
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
        raise PlanError(f"memory must be at least {trial.nbytes} bytes for a sketch, not {memory}")
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
    each = sum(table.nbytes for table in trial.tables if table.layout.family == "multiply")
    fixed = trial.nbytes - each
    width = (memory - fixed) // each if each else 1
    if width < 1:
        raise PlanError(
            f"memory must be at least {fixed + each} bytes to find {bits}-bit keys, not {memory}"
        )
    return replace(trial, width=width)


def usual_memory(length: int) -> int:
    """Bytes of one window where the query says nothing: more for texts of many bytes.

    >>> usual_memory(0) == usual_memory(16) == 4 << 20, usual_memory(100)
    (True, 26214400)
    """
    return max(MEMORY, A_BYTE * length)


def sized_texts(
    *,
    memory: int,
    protects: Neighbours,
    budget: Budget,
    triggers: int | None,
    length: int,
    seed: int = 0,
) -> HeavyTexts:
    """The widest finder of texts of one window within `memory` bytes: a quarter for whole ones.

    >>> finder = sized_texts(memory=10**7, triggers=96, protects=Neighbours("user", bound=4),
    ...     budget=Budget(epsilon=1, delta=1e-9), length=40)
    >>> finder.nbytes <= 10**7, finder.width, finder.whole_width
    (True, 4287, 36205)
    """  # fmt: skip
    trial = HeavyTexts(
        width=1, whole_width=1, length=length, horizon=triggers, protects=protects, budget=budget,
        seed=seed,
    )  # fmt: skip
    *levels, whole = trial.tables
    each = sum(table.nbytes for table in levels if table.layout.family == "multiply")
    fixed = sum(table.nbytes for table in levels) - each
    whole_width = (memory - fixed) // 4 // whole.nbytes
    width = (memory - fixed - whole_width * whole.nbytes) // each if each else 1
    if width < 1 or whole_width < 1:
        needed = fixed + max(4 * whole.nbytes, 2 * each)
        raise PlanError(
            f"memory must be at least {needed:,} bytes for texts of {length} bytes, not"
            f" {memory:,}.\n"
            f"  to fix  memory => {usual_memory(length)}, or leave it out"
        )
    return replace(trial, width=width, whole_width=whole_width)


def without_collisions(budget: Budget, units: int) -> Budget:
    """The budget that is left for the sketch after the chance of equal unit fingerprints."""
    collision = Fraction(units, 2**COLLISION_BITS)
    if budget.delta is None or budget.delta <= collision:
        raise PlanError(
            f"a sketch needs a delta above {float(collision):.2g}, the chance that two of "
            "max_units units share a fingerprint"
        )
    return Budget(epsilon=budget.epsilon, delta=budget.delta - collision, rho=budget.rho,
                  mu=budget.mu)  # fmt: skip
