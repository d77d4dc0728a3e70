"""A fork: a second job of the same query, with noise, epoch, secret and charge of its own.

    fork.json         when it begins; beside `state.json`, there before it

It begins where the first job stands: at the end of the first step, not before the one that was last
begun, at which no window is open. That is a function of the query and a step number, so public.

Proof: the fork is a job of the query that differs in its start alone, in a directory of its own: so
    it has another epoch, under which no address is one of the first job's, and a secret of its own.
    It takes nothing from the first state but a step number. Its loss is that of the query (derived
    anew for the later start) and is charged when it is made, so both jobs together lose the sum of
    the two charges, whatever either reads.
Every window is in it as a whole: all windows that its steps release begin at its start or later
    (`boundary` checks those of its first step; later steps release no earlier ones, for a window is
    released at consecutive steps).

What it is for: a new noise key (the first job ends, and the fork goes on; `rekey` cannot do it); a
second consumer; and going on from a backup when nobody knows what the original published since. The
restored state would draw the same noise for other rows, which is forbidden; a fork does not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from streamveil import disk
from streamveil.compiler import operator_of
from streamveil.dataflow.windows import Schedule
from streamveil.errors import PlanError, StoreError
from streamveil.plan import Plan, combined_plan
from streamveil.plan.look import in_units
from streamveil.runtime import formats
from streamveil.runtime.changed_query import Kept, require_kept
from streamveil.runtime.inspect import inspect
from streamveil.runtime.store import FORK, require_empty, require_outside

MOST_STEPS = 100_000  # steps that are tried
SAYS_NOTHING = "to fix  run the query in a state of its own: it reads its source from the start"


def fork(plan: Plan, state: str | Path, new: str | Path) -> int:
    """Prepares a directory for a fork of a state's job; returns when it begins, in microseconds."""
    home, place = Path(state), Path(new)
    first = kept_of(plan, home)
    left = {FORK + disk.TEMPORARY}  # by a fork that was killed
    if place.is_file() or (place.is_dir() and {one.name for one in place.iterdir()} - left):
        raise StoreError(f"'{place.name}' exists already; a fork begins in a directory of its own")
    require_outside(place, home)
    clock = first.clock or first.plan.clock
    if not clock.timed:
        raise PlanError(f"a fork begins at a time, and the steps have none.\n  {SAYS_NOTHING}")
    if (plan.source.kind, plan.source.event_time) == ("postgres_changes", "pg_time"):
        raise PlanError(
            "a fork first reads the whole table, and that moment is the pg_time of all its rows:"
            " its first window would count them all.\n"
            "  to fix  fork a query whose event_time is a column of the table"
        )
    operator = operator_of(combined_plan(in_units(replace(first.plan, clock=clock))))
    step = boundary(getattr(operator, "schedule", None), inspect(home).step)
    require_empty(place)
    disk.make_directory(place)
    begins = clock.due_us(step) if step else int(clock.start_us or 0)
    skipped = step + told(home)["skipped"]
    formats.write(place / FORK, "fork", {"start_us": begins, "skipped": skipped})
    return begins


def told(state: Path) -> formats.Content:
    """A fork's note: when it begins, and how many steps of its query come before; 0 for others."""
    path = state / FORK
    return formats.read(path, "fork") if path.is_file() else {"skipped": 0}


def kept_of(plan: Plan, state: Path) -> Kept:
    """The plan that the job (or fork) of a state runs, given its query as somebody wrote it."""
    return require_kept(forked(plan, state), state)


def boundary(schedule: Schedule | None, begun: int) -> int:
    """The first step, at or after the one last begun, after which all windows are new.

    A changing table has no schedule: it holds every record since its beginning.
    """
    if schedule is None or schedule.whole or schedule.ticks is None:
        raise PlanError(
            "one window holds the whole stream, or a table all records: a fork would lack those.\n"
            f"  {SAYS_NOTHING}"
        )
    if schedule.steps is not None and begun >= schedule.steps:
        raise PlanError(
            "this job is at its end: nothing is left to fork.\n"
            "  to fix  give the query a later end: the fork begins where this job ended"
        )
    last = begun + MOST_STEPS if schedule.steps is None else schedule.steps - 1
    for step in range(begun, min(last, begun + MOST_STEPS) + 1):
        time = schedule.ticks.start(step)
        if all(schedule.bounds(window)[0] >= time for window in schedule.active(step + 1)):
            return step
    raise PlanError(
        "at every step until its end this query has a window that has begun, so a fork would hold a"
        f" part of it.\n  {SAYS_NOTHING}"
    )


def forked(plan: Plan, state: Path) -> Plan:
    """The plan that runs in a directory; for a fork, with its start."""
    found, clock = told(state), plan.clock
    begins = found.get("start_us")
    if begins is not None and not (clock.timed and clock.due_us(found["skipped"]) == begins):
        raise PlanError(
            f"'{state.name}' is a fork, and start or EMIT EVERY of its query changed: it would end"
            " too early or too late.\n"
            "  to fix  leave both as the first job's query has them: a fork begins later by itself"
        )
    if not found["skipped"]:
        return plan
    steps = None if clock.steps is None else clock.steps - found["skipped"]
    return replace(plan, clock=replace(clock, start_us=found["start_us"], steps=steps))
