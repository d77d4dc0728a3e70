"""What parts of a group-by imply of each other, and refusals where they disagree.

`GroupBy.loss` composes what its parts say of themselves: a counter of its triggers, a selection of
the groups that one unit enters. Whoever puts an operator together says these things in several
places. An operator whose parts contradict each other cannot be made.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from streamveil.core.selection.coins import TableOpening
from streamveil.core.selection.gaussian import GaussianSelection
from streamveil.core.sensitivity import Bounds, Lane, is_units
from streamveil.dataflow.dp_sqlp import RoundSelection, RoundTotalling
from streamveil.dataflow.grouping import Grouping
from streamveil.dataflow.release import Totalling


def require_agreement(operator: Grouping) -> None:
    """Raises ValueError with the first contradiction."""
    for complaint in contradictions(operator):
        raise ValueError(f"the parts of this query's operator disagree: {complaint}")


def contradictions(operator: Grouping) -> Iterator[str]:
    """Each in a sentence."""
    totalling, bounds = operator.totalling, operator.bounds
    yield from scopes(operator)
    yield from counted(totalling, operator.schedule.triggers)
    yield from selected(totalling, bounds, operator.schedule.triggers)
    yield from read_twice(totalling, bounds)
    yield from weighed(totalling, bounds)
    yield from levels(totalling)


def scopes(operator: Grouping) -> Iterator[str]:
    """Who is protected, and whose rows are bounded together."""
    period, periods = operator.protects.period, operator.periods
    shortest = None if periods is None else periods.shortest_us
    if period != (None if shortest is None else timedelta(microseconds=shortest)):
        yield f"rows are bounded in each {shortest} microseconds, and {period} is protected"
    if (operator.public is None) == (operator.totalling.selection is None):
        yield "groups are either public or selected"
    if operator.max_units < 1:
        yield "max_units is at least 1"
    if not 0 < operator.confidence < 1:
        yield "confidence is above 0 and below 1"


def counted(totalling: Totalling, triggers: int | None) -> Iterator[str]:
    """Every counter is made for all triggers of a window, and there is one for each lane."""
    if len(totalling.counters) != len(totalling.lanes):
        yield f"{len(totalling.lanes)} lanes have {len(totalling.counters)} counters"
    if totalling.horizon != triggers:
        yield f"a window has {triggers} triggers and is released {totalling.horizon} times"
    cut, selection = totalling.cut, totalling.selection
    found: list[Any] = [*totalling.counters, *([cut.counter] if cut is not None else [])]
    if isinstance(selection, GaussianSelection | RoundSelection):
        found.append(selection.counter)
    for counter in found:
        steps = counter.horizon  # more than there are triggers cost nothing
        if steps is not None and triggers is not None and steps < triggers:
            yield f"a counter takes {steps} steps where a window has {triggers} triggers"


def selected(totalling: Totalling, bounds: Bounds, triggers: int | None) -> Iterator[str]:
    """A selection counts a unit in as many groups as bounding lets it."""
    selection: Any = totalling.selection
    if isinstance(selection, TableOpening):
        if selection.bounds != bounds:
            yield "the table is made for other bounds"
        if selection.horizon != triggers:
            yield f"the table is for {selection.horizon} triggers, not {triggers}"
        return
    if bounds.slots is not None:
        yield "hidden groups have slots with a table alone"
    if isinstance(selection, GaussianSelection | RoundSelection) and selection.bounds != bounds:
        yield "the selection is made for other bounds"
    if isinstance(selection, RoundSelection) != isinstance(totalling, RoundTotalling):
        yield "rounds select and count together"


def read_twice(totalling: Totalling, bounds: Bounds) -> Iterator[str]:
    """A lane that the selection's counter answers holds what that counter counts: units."""
    place = totalling.shared
    if place is None:
        return
    selection, lanes = totalling.selection, totalling.lanes
    if not isinstance(selection, GaussianSelection) or not 0 <= place < len(lanes):
        yield "there is no counter to read a lane from"
        return
    if not is_units(lanes[place], bounds):
        yield f"a lane of {lanes[place].kind} is read from a counter of units"
    if totalling.counters[place] != selection.counter:
        yield "a lane is read from another counter than the selection's"


def weighed(totalling: Totalling, bounds: Bounds) -> Iterator[str]:
    """Weights are counted in the quanta that bounding counts them in."""
    rule = totalling.rule
    if (1 if rule is None else rule.scale) != bounds.scale:
        yield f"bounding has {bounds.scale} quanta of weight, and totals have another number"
    if rule is not None and not 1 <= rule.entry <= rule.scale:
        yield f"a group enters with {rule.entry} of {rule.scale} quanta of weight"
    if rule is not None and isinstance(totalling, RoundTotalling):
        yield "rounds know no weights"


def levels(totalling: Totalling) -> Iterator[str]:
    """The nodes of a tree's level are charged as one lane: all are there, under one counter."""
    found: dict[tuple[Any, ...], list[tuple[Lane, Any]]] = {}
    for lane, counter in zip(totalling.lanes, totalling.counters, strict=False):
        if lane.kind == "node":
            level = lane.value, lane.low, lane.high, lane.fan, lane.level
            found.setdefault(level, []).append((lane, counter))
    for nodes in found.values():
        lane, counter = nodes[0]
        places = [node.place for node, _ in nodes]
        if sorted(places) != list(range(lane.fan**lane.level)):
            yield f"level {lane.level} of a tree lacks nodes, or has one twice"
        if any(other != counter for _, other in nodes):
            yield f"nodes of level {lane.level} of a tree have different noise"
