"""How a plan is divided into stages of tasks: which stages it has, and which keep state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamveil.changing_tables.operator import ChangingTable
from streamveil.dataflow import Operator
from streamveil.engines.spark import combining, sketches, tables, tasks
from streamveil.plan import Plan
from streamveil.sketches.operator import SketchQuery

Stage = Callable[[tasks.Setup, int], tasks.Task]


@dataclass(frozen=True)
class StagePlan:
    """The stages of an operator, with a shuffle between neighbours."""

    stages: tuple[Stage, ...]
    keeps: tuple[str, ...]  # stages with state
    alone: bool = False  # whether the last stage is one task, with all of its state in one shard

    def shards(self, shards: int) -> dict[str, int]:
        """How many shards each stage with state has in a job of `shards` shards."""
        last = self.keeps[-1]
        return {stage: 1 if self.alone and stage == last else shards for stage in self.keeps}

    def tasks(self, tasks: int) -> list[int]:
        """How many tasks run each stage after the first in a job of `tasks` tasks."""
        counts = [tasks] * (len(self.stages) - 1)
        return [*counts[:-1], 1 if self.alone else tasks]


def spread_of(plan: Plan, operator: Operator) -> StagePlan:
    """The stages of a plan's operator."""
    if isinstance(operator, ChangingTable):
        return StagePlan((tables.read_task, tables.release_task), (tables.LAST,), alone=True)
    if isinstance(operator, SketchQuery):
        stages = sketches.admit_task, sketches.bound_task, sketches.release_task
        return StagePlan(stages, ("unit", sketches.LAST), alone=True)
    if plan.bounding.combine:
        first = combining.Combining(plan)
        stages = first.split_task, first.bound_task, tasks.release_task
        return StagePlan(stages, ("unit", "key"))
    return StagePlan((tasks.admit_task, tasks.bound_task, tasks.release_task), ("unit", "key"))
