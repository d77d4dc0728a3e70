"""The look at the data before a job's first release: made once, kept in the state, never repeated.

    look.json         what the look said; beside `state.json`

Exactly once: what a look says is used when it is durable, and it is read from there ever after. A
look that was cut off before has said nothing, and is made anew with fresh noise. Its loss is part
of the job's charge, which is made before anything is published.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from streamveil.accounts.ledger import Where
from streamveil.compiler.group_by import compile_plan
from streamveil.connectors.base import micros
from streamveil.core.noise.keyed import KeyedNoise, Noise
from streamveil.dataflow.protocol import Operator
from streamveil.errors import BudgetError, PlanError, StoreError
from streamveil.expressions.expr import column_named
from streamveil.plan.combine import combined_plan
from streamveil.plan.look import HISTOGRAM, LAWS, LOOKED, divided, look_share, told, with_look
from streamveil.plan.options import EXPECTED_ROWS
from streamveil.plan.plan import Plan
from streamveil.plan.value_bounds import Bounds, in_any_case, open_values
from streamveil.runtime import disk, notes
from streamveil.runtime.account import Account
from streamveil.runtime.lock import Lock
from streamveil.runtime.notes import Content
from streamveil.runtime.query_rows import needed_columns, open_rows
from streamveil.runtime.store import LOOK, epoch_of, require_empty
from streamveil.sql.schema import check_schema

if TYPE_CHECKING:
    from streamveil.runtime.survey import Learned

KIND = "look"
CHUNK = 500_000  # rows


def looked(
    plan: Plan, state: Path, noise: Noise | None, ledger: Where | None
) -> tuple[Plan, Content | None]:
    """The plan with what a look at its rows says, and what to `keep` of a look that was made now.

    Raises StoreError when the state holds a look for another query. Nothing is written.
    """
    home = state.absolute()
    if (home / LOOK).exists():
        return remembered(plan, home / LOOK), None
    if epoch_of(home) is not None:
        return plan, None
    require_empty(home)
    wanted = with_look(plan)
    if not look_share(wanted):
        return plan, None
    if ledger is not None:
        require_room(wanted, ledger)
    known, said, bounds = look(wanted, noise or KeyedNoise.fresh())
    made = told(wanted, known, said, bounds)
    if not fits(made, ledger):
        made, bounds = told(wanted, {}, said), {}
    ends = {text: list(pair) for text, pair in bounds.items()}
    return made, {"plan": wanted.fingerprint, "looked": {**made.options[LOOKED], "bounds": ends}}


def keep(state: Path, made: Content) -> None:
    """Writes what a look said, once: from now on the state has it."""
    home = state.absolute()
    disk.make_directory(home)
    lock = Lock(home)
    try:
        if (home / LOOK).exists():
            raise StoreError(
                "another process has begun this job.\n  to fix  run again when it has ended"
            )
        notes.write(home / LOOK, KIND, made)
    finally:
        lock.close()


def remembered(plan: Plan, path: Path) -> Plan:
    """The plan with what the look of its state said."""
    content, wanted = notes.read(path, KIND), with_look(plan)
    if content["plan"] != wanted.fingerprint:
        raise StoreError(
            "the state directory was created for another job: the query changed.\n"
            "  to fix  run the query it was created for, or give the changed one a state directory"
            " (and a budget) of its own"
        )
    found = content["looked"]
    bounds = {text: (low, high) for text, (low, high) in found.get("bounds", {}).items()}
    return told(wanted, found["options"], found["said"], bounds)


def look(plan: Plan, noise: Noise) -> tuple[dict[str, Any], list[str], Bounds]:
    """Reads all rows and asks for their shape; options, all numbers in words, and bounds."""
    from streamveil.runtime.survey import survey  # loaded when a job looks

    learned, _ = survey(plan, rows_of(plan), divided(plan).looking, noise)
    given = EXPECTED_ROWS.name in plan.options and open_values(plan)  # looked for bounds alone
    said = [] if given else in_words(learned)
    said += [bounds_in_words(text, learned.bounds) for text in open_values(plan)]
    return {} if given else learned.likely, said, learned.bounds


def bounds_in_words(expression: str, found: Bounds) -> str:
    """The bounds of values that were chosen, or that there are none that tell anything."""
    if expression in found:
        low, high = found[expression]
        return f"values of {expression} from {low:.4g} to {high:.4g}"
    return f"too few units to bound {expression}: give contribution_bounds_per_row, or it is noise"


def shortly(value: float) -> str:
    """A number with three digits that count.

    >>> shortly(9263.7), shortly(0.5613)
    ('9,260', '0.561')
    """
    return f"{float(f'{value:.3g}'):,.10g}"


def in_words(learned: Learned) -> list[str]:
    """What a look says, each number with its interval, if noise leaves one."""
    sure = {name: found for name, found in learned.numbers if found.sure}
    said = [
        f"{name} = {value:,.10g}"
        + (
            f" (95 %: {shortly(sure[name].low)} to {shortly(sure[name].high)})"
            if name in sure
            else ""
        )
        for name, value in learned.likely.items()
        if name not in (LAWS, HISTOGRAM)
    ]
    if LAWS in learned.likely:
        counts, _, single, _ = zip(*learned.likely[LAWS], strict=True)
        said.append(
            f"settings are chosen for {min(counts):,.0f} to {max(counts):,.0f} groups, beside"
            f" {min(single):.0%} to {max(single):.0%} of rows in groups of their own"
        )
    return said or ["too little to choose settings from"]


def rows_of(plan: Plan) -> Iterator[pa.Table]:
    """The columns that a plan reads, of all rows within its schedule: none of them, then parts."""
    source = open_rows(plan.source, plan.clock.arrival)
    schema = source.schema()
    check_schema(plan, schema)
    wanted = needed_columns(plan, schema)
    yield schema.empty_table().select(wanted)
    clock, seen = plan.clock, 0
    for chunk in source.read(None, CHUNK, wanted):
        rows = chunk.rows.select(wanted)
        if clock.kind == "rows":
            rows = rows.slice(0, max(clock.every * (clock.steps or 0) - seen, 0))
            seen += rows.num_rows
        yield within(plan, rows)
        if clock.kind == "rows" and rows.num_rows < chunk.rows.num_rows:
            return


def within(plan: Plan, rows: pa.Table) -> pa.Table:
    """Rows that arrive while the job runs, by its public schedule."""
    clock = plan.clock
    name = clock.arrival or plan.source.event_time
    if clock.kind in ("rows", "once") or name is None:
        return rows
    name = column_named(rows.schema, name)
    at = micros(rows[name], name)
    ends = pc.min_max(at)
    first, last = ends["min"].as_py(), ends["max"].as_py()
    if (
        not at.null_count
        and first is not None
        and clock.start_us <= first
        and (last < clock.end_us)
    ):
        return rows
    return rows.filter(pc.and_(pc.greater_equal(at, clock.start_us), pc.less(at, clock.end_us)))


def require_room(plan: Plan, ledger: Where | None) -> None:
    """Refuses what would be refused whatever the look said, before it is paid."""
    account(plan, compile_plan(combined_plan(in_any_case(plan))), ledger).require_room()


def fits(plan: Plan, ledger: Where | None) -> bool:
    """Whether there are settings for what the look said, and room for them in a shared ledger.

    What to do otherwise does not depend on the look: the settings of a query that knows nothing.
    """
    try:
        require_room(plan, ledger)
    except (PlanError, BudgetError):
        return False
    return True


def account(plan: Plan, operator: Operator, ledger: Where | None) -> Account:
    """What the job will pay."""
    return Account(
        name=plan.name, limit=plan.budget, guarantee=operator.guarantee, about=dict, shared=ledger
    )
