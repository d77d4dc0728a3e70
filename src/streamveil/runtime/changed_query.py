"""A query that differs from the one its state was made with, where no noise depends on it.

Which changes are taken:

- another sink, or post-processing: they decide nothing that is drawn (`Plan.fingerprint`);
- other names of groups' columns, of aggregates, or of the job (by default that of its sink);
- a later end, if the old end cut no window.

Proof for names: the job runs the old plan, literally. The old names come from the charge in the
    state's ledger, and the plan with them must have the fingerprint that the state was made with;
    else the change is refused. So every draw, sum and address is that of the old plan, and the new
    names are given to columns of finished releases (`Post`): post-processing.
Proof for a later end: let M be the job with the later end, and the old plan's design. Loss is a
    function of the design and of the largest number of triggers of a window (`GroupBy.loss`); it is
    derived for both ends and must be equal, so M loses what was charged. Up to the last step that
    was made, the old job and M are one machine: the same windows are released at the same steps
    (`require_prefix` compares them), draws are addressed by job, window and trigger, and bounds of
    units are those of the state that goes on. So the old job's releases are a part of M's, and a
    decision to go on with M that depends on them is computed from M's releases. Windows after the
    old end have numbers, and so addresses, at which nothing was drawn. With a shorter M nothing
    more is lost: all that was released is a function of M's releases.
    The charge of the extension: nothing, under a key of its own, with the new number of steps. For
    a unit-period, the ledger holds the charge already; a unit that is present for longer loses
    more, which `ledger convert` counts by periods, as before.

Any other change is refused, as it would change noise that was drawn: so is an end that changes how
often a window is released. Also refused are an end before the last one that was charged, and one
with more windows than a bound allows for that was chosen to cut nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from streamveil.accounts.ledger import Charge, Ledger
from streamveil.core.accounting.guarantee import NOTHING
from streamveil.dataflow import Operator
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.windows import Schedule
from streamveil.errors import PlanError, StoreError
from streamveil.expressions.dialect import shown
from streamveil.plan import Clock, Plan, Post, PostColumn
from streamveil.plan.look import with_look
from streamveil.plan.options import MAX_GROUPS, MAX_ROWS
from streamveil.runtime import formats
from streamveil.runtime.account import asked
from streamveil.runtime.store import LEDGER, LOOK, Header, read_header, require_header
from streamveil.sql.parts import quoted


@dataclass(frozen=True)
class Kept:
    """The plan that a state was made with, and the changes that another query makes to it."""

    plan: Plan
    clock: Clock | None = None  # with a later end; None: the end is the old one


def kept_plan(plan: Plan, state: Path) -> Kept:
    """The plan to go on with in a state; the given plan if the state is absent or another job's.

    Reads no row and writes nothing.
    """
    header = read_header(state) if state.is_dir() else None
    if header is None or not header.ready or not (state / LEDGER).is_file():
        return Kept(plan)
    with Ledger.load(state / LEDGER) as ledger:
        charges = ledger.entries()
    until = last_end(charges, header.epoch)
    if fits(plan, header, state):
        if until is not None:
            raise StoreError(
                f"the job was given a later end: it goes on until step {until:,}.\n"
                "  to fix  run the query with that end, or a later one"
            )
        return Kept(plan)
    told = next((one.about for one in charges if one.key == header.epoch), None) or {}
    old = named_as(plan, told.get("query", {}), header.identity.job)
    if old is not None:
        if fits(old, header, state) and until is None:
            return Kept(old)
        if (kept := later(old, told["query"]["clock"], header, state, until)) is not None:
            return kept
    if with_look(plan).fingerprint != header.identity.plan:
        before = {part: told.get(part) for part in ASKED}
        changed = differences(before, asked(as_looked(plan, state)))
        if changed and told:
            raise StoreError(
                "the state directory was created for another job: the query changed."
                f"\n  changed {'; '.join(changed[:MOST_SHOWN])}"
                f"{', and more' if len(changed) > MOST_SHOWN else ''}\n"
                "  to fix  run the query it was created for, or give the changed one a state"
                " directory (and a budget) of its own"
            )
    return Kept(plan)


def as_looked(plan: Plan, state: Path) -> Plan:
    """The plan with the results of the look in a state, if there was one."""
    if not (state / LOOK).is_file():
        return plan
    from streamveil.runtime.look import with_found  # loaded where a changed query is refused

    return with_found(with_look(plan), formats.read(state / LOOK, "look"))


NAMES = {"fingerprint", "name"}  # may differ
ASKED = ("query", "options", "budget")
MOST_SHOWN = 4


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """The differences between two descriptions of a query, in words.

    >>> differences({"max_rows": 3, "keys": ["a"]}, {"max_rows": 4, "keys": []})
    ["keys was ['a'] and is []", 'max_rows was 3 and is 4']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        parts = [(one, old.get(one), new.get(one)) for one in sorted({*old, *new} - NAMES)]
    elif isinstance(old, list | tuple) and isinstance(new, list | tuple) and len(old) == len(new):
        parts = [(str(place), *both) for place, both in enumerate(zip(old, new, strict=True), 1)]
    else:
        return [] if old == new else [f"{name} was {shown(repr(old))} and is {shown(repr(new))}"]
    return [said for one, a, b in parts for said in differences(a, b, f"{name} {one}".strip())]


def require_kept(plan: Plan, state: Path) -> Kept:
    """The plan to go on with in a state; StoreError if the state is absent or another job's."""
    header, kept = require_header(state), kept_plan(plan, state)
    if not fits(kept.plan, header, state):
        raise StoreError(
            f"'{state.name}' was made for another query than this one.\n"
            "  to fix  give the query that its job runs"
        )
    return kept


def read_by(plan: Plan, state: Path) -> Plan:
    """The plan with a state's names, to read its releases; StoreError if another query made them.

    Numbers of another query could have the names that this one computes with. A folder that is no
    state is not checked.
    """
    header = read_header(state)
    fitting = header is None or fits(plan, header, state)
    return plan if fitting else require_kept(plan, state).plan


def last_end(charges: list[Charge], epoch: str) -> int | None:
    """The last step of a job whose end was moved; None where it was not."""
    ends = [one.horizon for one in charges if (one.key or "").startswith(f"{epoch}:")]
    return max((end for end in ends if end is not None), default=None)


def fits(plan: Plan, header: Header, state: Path) -> bool:
    """Whether a state was made with a plan, or with a look for it."""
    if plan.fingerprint == header.identity.plan:
        return True
    if not (state / LOOK).is_file():
        return header.before_look and with_look(plan).fingerprint == header.identity.plan
    made_for: str = formats.read(state / LOOK, "look")["plan"]
    return made_for == with_look(plan).fingerprint


def named_as(plan: Plan, query: dict[str, Any], job: str) -> Plan | None:
    """The plan with the names of a query in a ledger; new names come last, as post-processing."""
    keys, aggregates = query.get("keys", ()), query.get("aggregates", ())
    if (len(keys), len(aggregates)) != (len(plan.keys), len(plan.aggregates)):
        return None
    new = [*(one.name for one in plan.keys), *(one.name for one in plan.aggregates)]
    old = [str(one["name"]) for one in (*keys, *aggregates)]
    post = plan.post
    if new != old:
        columns = (PostColumn(name=a, expression=quoted(b)) for a, b in zip(new, old, strict=True))
        post = (Post(columns=tuple(columns)), *post)
    renamed = dict(zip(new, old, strict=True))
    return replace(
        plan, name=job, post=post,
        keys=tuple(replace(one, name=renamed[one.name]) for one in plan.keys),
        aggregates=tuple(replace(one, name=renamed[one.name]) for one in plan.aggregates),
        sets=tuple(tuple(renamed.get(name, name) for name in one) for one in plan.sets),
    )  # fmt: skip


def later(
    plan: Plan, clock: dict[str, Any], header: Header, state: Path, until: int | None
) -> Kept | None:
    """The plan with the end it had when it was charged; None if more than the end differs."""
    first = replace(plan.clock, end_us=clock["end_us"], steps=clock["steps"])
    old = replace(plan, clock=first)
    if not fits(old, header, state):
        return None
    before, now = steps_of(first), steps_of(plan.clock)
    if before is None or now is None or now < (until or before):
        raise StoreError(
            f"the job goes on until step {until or before}, and the query ends at step {now}.\n"
            "  to fix  only a later end may be given"
        )
    return Kept(old, plan.clock)


def steps_of(clock: Clock) -> int | None:
    """How many steps a clock has."""
    if clock.kind == "event" and clock.start_us is not None and clock.end_us is not None:
        whole = clock.steps_until(clock.end_us)
        return whole if clock.steps is None else min(whole, clock.steps)
    return clock.steps


def extended(operator: Operator, clock: Clock, plan: Plan) -> GroupBy:
    """The same mechanisms until a later end; refuses an end that would change noise already drawn.

    `plan`: with the end that it was charged with.
    """
    if not isinstance(operator, GroupBy):
        raise PlanError(
            "only a group-by may be given a later end.\n"
            "  to fix  run the query from there in a state of its own, with a charge of its own"
        )
    longer = replace(operator.schedule, steps=steps_of(clock))
    require_prefix(operator.schedule, longer)
    if bounded_by_windows(operator, plan):
        raise PlanError(
            "a privacy unit counts in as many windows as there were until the first end: in later"
            " ones, those that were there before would be missing.\n"
            "  to fix  run the query from there in a state of its own, with a charge of its own"
        )
    made = replace(operator, schedule=longer)
    if made.guarantee.loss != operator.guarantee.loss:
        raise changed()
    return made


def bounded_by_windows(operator: GroupBy, plan: Plan) -> bool:
    """Whether a bound follows from the number of windows until the end; see `Compiler`.

    It does not if the query states the bound or a forecast chose it.
    """
    chosen = {default.name for default in operator.defaults}
    rows = plan.counts_once and MAX_ROWS.name in chosen
    groups = operator.bounds.groups not in (None, plan.bounding.max_groups)
    groups = groups and MAX_GROUPS.name not in chosen
    return operator.periods is None and (rows or groups) and not operator.uncut


def require_prefix(short: Schedule, long: Schedule) -> None:
    """Refuses a short schedule that is not the beginning of the long one, window by window."""
    if short.whole or short.steps is None or short.triggers != long.triggers:
        raise changed()
    for window in short.active(short.steps):
        if short.last_step(window) != long.last_step(window):
            raise changed()


def changed() -> PlanError:
    """The error for an end that cannot be moved."""
    return PlanError(
        "with this end a window that has begun would be released more often than its noise was made"
        " for.\n"
        "  to fix  let the first end, and this one, be the end of a window (with its lateness); or"
        " run the query from there in a state of its own, with a charge of its own"
    )


def extension(name: str, epoch: str, operator: GroupBy) -> Charge:
    """The charge of a later end: nothing more for a unit-period; it records the new end."""
    guarantee = operator.guarantee
    return Charge(
        f"{name} until step {guarantee.horizon}", NOTHING, key=f"{epoch}:{guarantee.horizon}",
        separate=guarantee.separate, horizon=guarantee.horizon, given_past=guarantee.given_past,
    )  # fmt: skip
