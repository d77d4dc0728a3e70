"""From any plan to the operator that runs it; only what the plan needs is loaded."""

from __future__ import annotations

from streamveil.connectors import require_connectors, try_connectors
from streamveil.dataflow import Operator
from streamveil.kinds import SKETCHES
from streamveil.plan import Plan, TableSource


def operator_of(plan: Plan) -> Operator:
    """The operator of any plan: a changing table, a sketch query or a group-by."""
    if isinstance(plan.source, TableSource):
        from streamveil.compiler.tables import compile_table

        return compile_table(plan)
    if is_sketched(plan):
        from streamveil.compiler.sketch import compile_sketch

        return compile_sketch(plan)
    from streamveil.compiler.group_by import compile_plan

    return compile_plan(plan)


def is_sketched(plan: Plan) -> bool:
    """Whether an aggregate of the plan runs on a sketch."""
    return any(aggregate.function in SKETCHES for aggregate in plan.aggregates)


def require_ends(plan: Plan, *, there: bool = False) -> None:
    """SourceError unless the sources and sinks of a plan take their options. Reads no data.

    `there`: they must also be reachable; see `try_connectors`.
    """
    check = try_connectors if there else require_connectors
    check(
        [(one.kind, one.options) for one in plan.source.relations],
        [(one.kind, one.options) for one in plan.sinks],
    )
