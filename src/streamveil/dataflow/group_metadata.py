"""Public facts that travel with every release, in the metadata of its schema.

Whoever reads two releases needs to know how their noise is correlated: which counter made it, on
which lattice, and (in the columns `opened` and `noise_weight`) from which trigger on and how
precisely each key was counted. All of it is public: it follows from the query alone, the trigger,
and what was released before. `streamveil.answers` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import cycle
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch
from streamveil.calendars import Cells
from streamveil.core.accounting.neighbours import Neighbours
from streamveil.core.counters.anytime import AnytimeBltCounter
from streamveil.core.counters.blt import BltCounter
from streamveil.core.counters.protocol import Counter
from streamveil.core.counters.rational import Blt
from streamveil.core.mechanism import Look
from streamveil.core.noise.keyed import Noise
from streamveil.core.selection.coins import CoinSelection
from streamveil.core.selection.gaussian import FINE
from streamveil.core.selection.total_test import TotalsAlone
from streamveil.core.sensitivity import Bounds, Lane
from streamveil.counters import COUNTERS, kind_of
from streamveil.dataflow.bounding import Firsts, Passed, UnitRows, UnitTable
from streamveil.dataflow.keys import Types
from streamveil.dataflow.outputs import Output
from streamveil.dataflow.release import AggregationPlan, WindowState
from streamveil.dataflow.rows import Prepared, RowProgram, prepare_batch
from streamveil.dataflow.state import BatchScratch, State
from streamveil.dataflow.windows import Schedule
from streamveil.release_metadata import VERSION, Facts
from streamveil.types import Array, Bool, Int64, UInt64

# ruff: noqa: D102  (the members of `Grouping` are described in `group_by.GroupBy`)


Tree = tuple[int, Lane, int]  # its first lane, a lane of it, its levels


class Grouping(Protocol):
    """A group-by (`group_by.GroupBy` is the one there is), as its stages see it."""

    @property
    def job(self) -> str: ...
    @property
    def schedule(self) -> Schedule: ...
    @property
    def periods(self) -> Cells | None: ...
    @property
    def separate(self) -> bool: ...
    @property
    def bounds(self) -> Bounds: ...
    @property
    def key_names(self) -> tuple[str, ...]: ...
    @property
    def public(self) -> tuple[tuple[Any, ...], ...] | None: ...
    @property
    def aggregation(self) -> AggregationPlan: ...
    @property
    def trees(self) -> tuple[Tree, ...]: ...
    @property
    def outputs(self) -> tuple[Output, ...]: ...
    @property
    def confidence(self) -> float: ...
    @property
    def protects(self) -> Neighbours: ...
    @property
    def max_units(self) -> int: ...
    @property
    def look(self) -> Look | None: ...
    @property
    def omitted(self) -> tuple[str, ...]: ...
    @property
    def true_intervals(self) -> bool: ...
    @property
    def uncut(self) -> bool: ...
    @property
    def plain_lanes(self) -> tuple[Lane, ...]: ...
    @property
    def placed_trees(self) -> tuple[Tree, ...]: ...
    @property
    def lane_places(self) -> tuple[tuple[Array, Array, Array], Array]: ...
    @property
    def distinct_lanes(self) -> tuple[int, ...]: ...
    @property
    def firsts(self) -> Firsts: ...
    def first_bit(self, place: int) -> int: ...

    @property
    def counts_units_alone(self) -> bool: ...
    def key_types(self, schema: pa.Schema) -> Types: ...
    def blank_window(self, names: UInt64[Array, "keys 2"], keys: pa.Array) -> WindowState: ...
    def program(self, schema: pa.Schema) -> RowProgram: ...
    def unit_table(self, state: State, period: int, unit: int) -> UnitTable | None: ...
    def bound(self, state: State, period: int, rows: UnitRows) -> Passed: ...
    def is_public(
        self, names: UInt64[Array, "rows 2"], types: Types, name_key: bytes
    ) -> Bool[Array, " rows"]: ...
    def make_windows(
        self, state: State, windows: Int64[Array, " pairs"], name_key: bytes
    ) -> dict[str, Array]: ...


# ---- preparing a micro-batch without the state

LARGE = 1 << 14  # rows from which on a thread of its own is worth its while


def row_stage(operator: Grouping, batch: Batch, noise: Noise, scratch: BatchScratch) -> Prepared:
    """A function of the rows and of public settings: it depends on no state."""
    program, most = operator.program(batch.rows.schema), batch.rows.num_rows
    room, unit_key = scratch.take("unit", most, np.uint64), noise.derive("group-by/units")
    prepared = prepare_batch(program, batch, unit_key, names_key(noise), room)
    if batch.prepared is None:
        prepared.room = scratch.take("names", 2 * most, np.uint64)
    return prepared


def names_key(noise: Noise) -> bytes:
    """The key under which groups are named."""
    return noise.derive("group-by/keys")


def asked_keys(operator: Grouping, prepared: Prepared) -> Array:
    """What tells the key of every row: the integer that it is, or else its name (two words)."""
    needs_names = operator.public is not None or operator.aggregation.restarts
    if needs_names or prepared.plain is None:
        return prepared.names
    return prepared.plain


def ahead(operator: Grouping, batches: Iterator[Batch], noise: Noise) -> Iterator[Batch]:
    """The same micro-batches, large ones with their row stage done.

    Whoever takes one does not use the one before it any more: each lies in the memory of the next
    but one, as in `runtime.prefetch`.
    """
    rooms = cycle((BatchScratch(), BatchScratch()))
    for batch in batches:
        made = batch
        if batch.block is None and batch.reject_notes is None and batch.rows.num_rows >= LARGE:
            prepared = row_stage(operator, batch, noise, next(rooms))
            asked_keys(operator, prepared)  # kept with it
            made = replace(batch, prepared=prepared)
            del prepared
        del batch  # or it would be here while the next one is made
        yield made
        del made


@runtime_checkable
class NoisyCount(Protocol):
    """A selection by a noisy count of units."""

    def threshold(self, trigger: int) -> float:
        """Units above which a key passes."""

    def deviation(self, trigger: int) -> float:
        """Standard deviation of the count, in units."""


FLAGS = ("non_negative", "integer", "monotone")


def facts_of(operator: Grouping) -> Facts:
    """What is the same for every release of a job."""
    aggregation, schedule = operator.aggregation, operator.schedule
    return {
        "version": VERSION,
        **({"look": list(operator.look.said)} if operator.look is not None else {}),
        **({"omitted": list(operator.omitted)} if operator.omitted else {}),
        **({"uncut": True} if operator.uncut else {}),
        **({"cut_of": "shown groups"} if waits_for_groups(operator) else {}),
        **({"true_intervals": True} if operator.true_intervals else {}),
        "job": operator.job,
        "keys": list(operator.key_names),
        "confidence": operator.confidence,
        "windows": {"whole": schedule.whole, "overlap": schedule.overlap},
        "rounds": aggregation.restarts,  # keys keep values in between
        "outputs": [output_facts(output) for output in operator.outputs],
        "lanes": lane_facts(operator),
        **test_facts(operator),
        "counters": [counter_facts(counter) for counter in distinct_counters(operator)],
    }


def waits_for_groups(operator: Grouping) -> bool:
    """Whether a cut row counts as such only once its group is shown."""
    return operator.aggregation.cut is not None and operator.aggregation.selection is not None


def output_facts(output: Any) -> Facts:
    """One aggregate; a quantile's many lanes are left out."""
    kept = {name: True for name in FLAGS if getattr(output, name)}
    lanes = [] if output.function == "quantile" else list(output.lanes)
    found = {"name": output.name, "function": output.function, "lanes": lanes, **kept}
    if output.function in ("avg", "variance", "stddev", "quantile"):
        found |= {"low": output.low, "high": output.high}
    said = {"bias": output.cut, "clamped": output.clamped}
    return found | {name: text for name, text in said.items() if text}


def distinct_counters(operator: Grouping) -> list[Counter]:
    """The counters of all lanes, each once."""
    found: list[Counter] = []
    for counter in operator.aggregation.counters:
        if counter not in found:
            found.append(counter)
    return found


def lane_facts(operator: Grouping) -> list[Facts]:
    """Lattice and counter of every lane up to the first quantile's.

    `most` is what one privacy unit adds to a key that is not shown, at most. `late` lanes are
    counted from a key's opening on; the others from the first trigger of the window.
    """
    aggregation, counters = operator.aggregation, distinct_counters(operator)
    rows = rows_in_hidden_key(operator)
    found: list[Facts] = []
    for place, lane in enumerate(aggregation.lanes):
        if lane.kind == "node":
            found.append({"kind": "node"})
            continue
        shared = place == aggregation.shared
        most = {"units": 1.0, "sum": rows * max(lane.high, 0.0)}.get(lane.kind, float(rows))
        found.append({
            "kind": lane.kind,
            "counter": counters.index(aggregation.counters[place]),
            "quantum": 1 / FINE if shared else float(lane.quantum),
            "late": not shared,
            "rounded": shared,  # the released number is rounded once more
            "most": most,
        })  # fmt: skip
    return found


def test_facts(operator: Grouping) -> Facts:
    """When noisy totals of hidden keys are tested, which uses noise of all their lanes."""
    test = operator.aggregation.test
    if test is None:
        return {}
    return {"tests": {"triggers": list(test.triggers), "weight": test.share or 1.0}}


def rows_in_hidden_key(operator: Grouping) -> int:
    """How many rows of one unit (in its period) a key that is not shown may hold."""
    return operator.bounds.most_in_group(rule_entry(operator))


def counter_facts(counter: Counter) -> Facts:
    """A counter's kind and fields, enough to know its noise. The inverse: `counter_from`."""
    if isinstance(counter, AnytimeBltCounter):
        counter = counter.inner
    kind = kind_of(counter)
    values = {field.name: getattr(counter, field.name) for field in fields(counter)}  # type: ignore[arg-type]  # every counter is a dataclass
    if isinstance(counter, BltCounter):
        values |= {"d": None, "factors": {"p": counter.blt.p, "q": counter.blt.q}}
    values["sigma"] = float(counter.sigma)
    return {"kind": kind, **{name: v for name, v in values.items() if v is not None}}


def counter_from(facts: Facts) -> Counter:
    """The counter of `counter_facts`."""
    values = {name: value for name, value in facts.items() if name != "kind"}
    if "factors" in values:
        values["factors"] = Blt(*(tuple(values["factors"][side]) for side in "pq"))
    made: Counter = COUNTERS[facts["kind"]](**values)
    return made


def hidden_facts(operator: Grouping, trigger: int) -> Facts | None:
    """What keeps a key hidden at a trigger; None when keys are public, nothing if that is unknown.

    units: an estimate of its units, of deviation `sd`, has not exceeded `threshold`.
    lane: the same of its total in a lane. A table that does not count all units of a key says
    nothing of its total; where it does, units are below `threshold` plus a geometric number, P(it
    reaches j) = exp(-rate j).
    """
    selection, test = operator.aggregation.selection, operator.aggregation.test
    if selection is None:
        return None
    if isinstance(selection, CoinSelection | TotalsAlone):
        if isinstance(
            selection, CoinSelection
        ) and operator.bounds.hidden_groups >= operator.bounds.most_groups(rule_entry(operator)):
            rate = float(selection.table.shift_epsilon)
            return {"threshold": selection.threshold(trigger), "rate": rate}
        if test is None or trigger not in test.triggers:
            return {}
        quantum = float(test.lane.quantum)
        threshold, sd = test.threshold(trigger) + 0.5, test.deviation(trigger)  # noise is rounded
        return {"threshold": threshold * quantum, "sd": sd * quantum, "lane": test.place}
    if isinstance(selection, NoisyCount):
        return {"threshold": selection.threshold(trigger), "sd": selection.deviation(trigger)}
    return None


def rule_entry(operator: Grouping) -> int | None:
    """The weight of hidden keys in quanta, if there are weights."""
    return None if operator.aggregation.rule is None else operator.aggregation.rule.entry


def constant_facts(operator: Grouping) -> str:
    """`facts_of` as text that lacks its last brace."""
    return json.dumps(facts_of(operator), separators=(",", ":"))[:-1]


def heading(operator: Grouping, place: tuple[int, int, int], constant: str) -> bytes:
    """The facts of a release without their last brace. `place`: window, trigger, step."""
    now: Facts = dict(zip(("window", "trigger", "step"), place, strict=True))
    now["hidden"] = hidden_facts(operator, place[1])
    return f"{constant},{json.dumps(now, separators=(',', ':'))[1:-1]}".encode()
