"""What a group-by is asked and how it keeps groups; public facts that travel with its releases.

Whoever reads two releases needs to know how their noise is correlated: which counter made it, on
which lattice, and (in the columns `opened` and `noise_weight`) from which trigger on and how
precisely each key was counted. All of it is public: it follows from the query alone, the trigger,
and what was released before. `streamveil.answers` reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import cycle
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from streamveil.batch import Batch
from streamveil.calendars import Cells
from streamveil.core.accounting import Neighbours
from streamveil.core.accounting.guarantee import Guarantee, Loss
from streamveil.core.counters import Counter
from streamveil.core.counters.blt import Blt, BltCounter
from streamveil.core.mechanism import Look, MechanismDesign
from streamveil.core.noise import Noise
from streamveil.core.release import blt_of
from streamveil.core.selection.coins import CoinSelection
from streamveil.core.selection.gaussian import FINE
from streamveil.core.selection.total_test import TotalsAlone
from streamveil.core.sensitivity import Bounds, Lane
from streamveil.counters import COUNTERS, kind_of
from streamveil.dataflow.aggregate import KeyTable, find_keys
from streamveil.dataflow.bounding import Firsts, Passed, UnitRows, UnitTable, unit_stage
from streamveil.dataflow.keys import Types, encode_keys
from streamveil.dataflow.outputs import Output
from streamveil.dataflow.release import AggregationPlan, WindowState, new_window, publish_keys
from streamveil.dataflow.rows import Bind, Prepared, RowProgram, names_of, prepare_batch
from streamveil.dataflow.state import BatchScratch, State, parts, to_bytes
from streamveil.dataflow.unit_kernels import COUNTED, NEW
from streamveil.dataflow.windows import Schedule, periods_apart, protected
from streamveil.errors import PlanError
from streamveil.kinds import VALUED
from streamveil.release_metadata import UNBOUNDED, VERSION, Facts, compact
from streamveil.types import Array, Bool, Int64, UInt64

GIVEN = ("rows", "units")  # lanes that follow from a row being accepted
LanePlaces = tuple[tuple[Array, Array, Array], Array]


class Default(NamedTuple):
    """A setting that the query left open: what was taken and why."""

    name: str
    value: Any
    reason: str


NONE_MADE: dict[str, Array] = {
    "made": np.zeros(0, np.int64),
    "public_names": np.zeros((0, 2), np.uint64),
    "public_ends": np.zeros(0, np.int64),
    "public_bytes": np.zeros(0, np.uint8),
}  # of windows, in a delta


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """What a group-by is asked and how it keeps groups and units: `group_by.GroupBy` runs it."""

    kind: str = "group-by"
    job: str
    unit: str
    bind: Bind = field(compare=False, repr=False)
    schedule: Schedule
    periods: Cells | None  # of units; None: the whole stream
    design: MechanismDesign
    key_names: tuple[str, ...]
    public: tuple[tuple[Any, ...], ...] | None  # None: keys are discovered
    outputs: tuple[Output, ...]
    confidence: float
    true_intervals: bool = False  # intervals cover the rows over the bound as well
    defaults: tuple[Default, ...] = ()
    omitted: tuple[str, ...] = field(default=(), compare=False)  # by steps before; for releases
    uncut: bool = field(default=False, compare=False)  # no bound can cut a row; for releases
    guessed: str = field(default="", compare=False)  # that settings were guessed; for releases

    def __post_init__(self) -> None:
        if (self.public is None) == (self.design.selection is None):
            raise ValueError("groups are either public or selected")
        if not 0 < self.confidence < 1:
            raise ValueError("confidence is above 0 and below 1")
        _ = self.aggregation.counters, self.aggregation.test  # refuses what cannot be sized

    @cached_property
    def aggregation(self) -> AggregationPlan:
        """The design over the triggers of a window: everything that noise depends on."""
        plan = AggregationPlan(design=self.design, triggers=self.schedule.triggers)
        if not plan.restarts:
            return plan
        from streamveil.dataflow.dp_sqlp import RoundPlan  # only the preset needs it

        return RoundPlan(design=plan.design, triggers=plan.triggers)

    @cached_property
    def bounds(self) -> Bounds:
        """How much one unit may contribute."""
        return self.aggregation.bounds

    @property
    def loss(self) -> Loss:
        """See `core.mechanism.Mechanism`."""
        return self.aggregation.loss

    @property
    def look(self) -> Look | None:
        """The look at the rows before the first release."""
        return self.design.look

    @property
    def max_units(self) -> int:
        """The most units whose fingerprints may collide."""
        return self.design.max_units

    @cached_property
    def protects(self) -> Neighbours:
        """All rows of one unit, within each of its periods."""
        return protected(self.unit, self.periods)

    @cached_property
    def trees(self) -> tuple[tuple[int, Lane, int], ...]:
        """First lane, a lane of it, levels; their nodes are the last lanes."""
        found, first = [], len(self.design.plain)
        for lane, levels in self.design.trees:
            found.append((first, lane, levels))
            first += sum(lane.fan**level for level in range(1, levels + 1))
        return tuple(found)

    @property
    def guarantee(self) -> Guarantee:
        """What all releases together promise."""
        steps, apart = self.schedule.steps, self.separate
        return Guarantee(self.protects, self.loss, steps, apart, given_past=True)

    @property
    def separate(self) -> bool:
        """Whether every period of a unit costs it the same: no window meets two of them.

        A look reads the rows of several periods at once, with noise for all of them (`Look`).
        """
        return periods_apart(self.schedule, self.periods)

    @cached_property
    def plain_lanes(self) -> tuple[Lane, ...]:
        """Lanes filled row by row (tree nodes are hit instead)."""
        units = (Lane(kind="units"),) if self.aggregation.tracks_units else ()
        return units + tuple(lane for lane in self.aggregation.lanes if lane.kind != "node")

    @cached_property
    def placed_trees(self) -> tuple[tuple[int, Lane, int], ...]:
        """The trees, each with the place of its first node in what is kept per key."""
        ahead = int(self.aggregation.tracks_units)
        return tuple((first + ahead, lane, levels) for first, lane, levels in self.trees)

    @cached_property
    def lane_places(self) -> LanePlaces:
        """Places of the lanes that count units (with their bits), of those of rows, of others."""
        lanes = self.plain_lanes
        given = np.array([p for p, lane in enumerate(lanes) if lane.kind == "rows"], np.int64)
        return (*unit_lanes(self), given), np.array(brought_lanes(lanes), np.int64)

    @cached_property
    def distinct_lanes(self) -> tuple[int, ...]:
        """Places of the plain lanes that count different values."""
        return tuple(p for p, lane in enumerate(self.plain_lanes) if lane.kind == "distinct")

    @cached_property
    def firsts(self) -> Firsts:
        """The keys for which it matters whether a unit is new.

        The table selection counts a key's units only until it shows the key. If no aggregate counts
        units, nothing depends on them afterwards.
        """
        aggregation = self.aggregation
        if all(lane.kind != "units" for lane in self.plain_lanes):
            return "none"
        counted = any(lane.kind == "units" for lane in aggregation.lanes)
        until_shown = (
            isinstance(aggregation.selection, CoinSelection) and aggregation.shared is None
        )
        return "hidden" if until_shown and not counted else "all"

    @cached_property
    def counts_units_alone(self) -> bool:
        """Whether a unit's further rows in a group change nothing."""
        return not self.trees and all(lane.kind == "units" for lane in self.plain_lanes)

    def program(self, schema: pa.Schema) -> RowProgram:
        """The row stage for rows of a schema, compiled once for each."""
        for known, program in self._programs:
            if known.equals(schema):
                return program
        self._programs.append((schema, self.bind(schema)))
        return self._programs[-1][1]

    @cached_property
    def _programs(self) -> list[tuple[pa.Schema, RowProgram]]:
        return []

    @cached_property
    def _public_names(self) -> dict[bytes, Any]:
        return {}

    @cached_property
    def _public_tables(self) -> dict[bytes, KeyTable]:
        return {}

    def _units(self, state: State, period: int) -> UnitTable:
        if period not in state.units:
            state.units[period] = UnitTable.empty(self.bounds, self.firsts)
        return state.units[period]

    def unit_table(self, state: State, period: int, unit: int) -> UnitTable | None:
        """The table that holds a unit in a scope, for the witness, who only reads."""
        return state.units.get(period)

    def bound(self, state: State, period: int, rows: UnitRows) -> Passed:
        """The unit stage of one scope; an engine may keep its units elsewhere."""
        return unit_stage(self._units(state, period), rows, self.bounds)

    def _public_columns(self, types: Types) -> list[pa.Array]:
        columns = list(zip(*(self.public or ()), strict=True)) or [()] * len(types)
        return [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]

    def key_types(self, schema: pa.Schema) -> Types:
        """The types of the key columns, for rows of a schema."""
        empty = schema.empty_table()
        return tuple(key(empty).type for key in self.program(schema).keys)

    def public_keys(
        self, types: Types, name_key: bytes
    ) -> tuple[UInt64[Array, "keys 2"], pa.Array]:
        """Names and bytes of the public keys; the empty group-by has exactly one."""
        known = self._public_names
        if name_key not in known:
            names = self.name_public(types, name_key)
            known[name_key] = names, encode_keys(self._public_columns(types), len(names))
        found: tuple[UInt64[Array, "keys 2"], pa.Array] = known[name_key]
        return found

    def name_public(self, types: Types, name_key: bytes) -> UInt64[Array, "keys 2"]:
        """Names of the public keys, not cached; PlanError where two keys are one value."""
        n = len(self.public or ()) if self.key_names else 1
        names = names_of(self._public_columns(types), n, name_key)
        if len(np.unique(names[:, 0])) < n and len(np.unique(names, axis=0)) < n:
            raise PlanError(
                "two public groups are the same value of the columns' types (NaN, an instant in"
                " two time zones): both would show the same noise.\n"
                "  to fix  list each group once"
            )
        return names

    def is_public(
        self, names: UInt64[Array, "rows 2"], types: Types, name_key: bytes
    ) -> Bool[Array, " rows"]:
        """Which names belong to public groups."""
        tables = self._public_tables
        if name_key not in tables:
            tables[name_key] = KeyTable.empty(0)
            tables[name_key].add_names(self.public_keys(types, name_key)[0])
        return np.asarray(find_keys(tables[name_key], np.ascontiguousarray(names)) >= 0)

    def make_windows(
        self, state: State, windows: Int64[Array, " pairs"], name_key: bytes
    ) -> dict[str, Array]:
        """Creates the windows that rows arrive in; returns their part of the delta."""
        made = [window for window, _ in parts(windows) if window not in state.windows]
        if not made:
            return dict(NONE_MADE)
        names, keys = self.open_windows(state, made, name_key)
        cells = keys.to_pylist()
        return {
            "made": np.array(made, np.int64),
            "public_names": names,
            "public_ends": np.cumsum([len(cell) for cell in cells], dtype=np.int64),
            "public_bytes": to_bytes(b"".join(cells)),
        }

    def open_windows(
        self, state: State, windows: Iterable[int], name_key: bytes, shard: tuple[int, int] = (0, 1)
    ) -> tuple[UInt64[Array, "keys 2"], pa.Array]:
        """Creates windows; returns their public keys, for a shard (number, count) only its own."""
        names, keys = np.zeros((0, 2), np.uint64), pa.array([], pa.large_binary())
        if self.aggregation.selection is None:
            names, keys = self.public_keys(state.types or (), name_key)
            number, shards = shard
            if shards > 1:
                mine = np.flatnonzero(names[:, 0] % np.uint64(shards) == number)
                names, keys = names[mine], keys.take(pa.array(mine))
        for window in windows:
            state.windows[window] = self.blank_window(names, keys)
        return names, keys

    def blank_window(self, names: UInt64[Array, "keys 2"], keys: pa.Array) -> WindowState:
        """A window before its first trigger; public keys are shown from then on."""
        held = new_window(self.aggregation, sum(output.monotone for output in self.outputs))
        if self.aggregation.selection is None:
            held.table.add_keys(names, keys)
            publish_keys(self.aggregation, held, np.arange(len(names), dtype=np.int64))
        return held


def unit_lanes(operator: Grouping) -> tuple[Int64[Array, " some"], Int64[Array, " some"]]:
    """The plain lanes that count units, and the bit of `Passed.first` that each of them counts.

    A lane counts all first rows where it is released, else those with a slot.
    """
    lanes = enumerate(operator.plain_lanes)
    places = np.array([place for place, lane in lanes if lane.kind == "units"], np.int64)
    return places, np.where((places == 0) & operator.aggregation.tracks_units, COUNTED, NEW)


def brought_lanes(lanes: tuple[Lane, ...]) -> list[int]:
    """Places of the lanes whose increments come with each row."""
    return [place for place, lane in enumerate(lanes) if lane.kind not in GIVEN]


# ---- preparing a micro-batch without the state

NAMES_KEY = "group-by/keys"  # under which groups are named
LARGE = 1 << 14  # rows from which on a thread of its own pays


def row_stage(operator: Grouping, batch: Batch, noise: Noise, scratch: BatchScratch) -> Prepared:
    """A function of the rows and of public settings: it depends on no state."""
    program, most = operator.program(batch.rows.schema), batch.rows.num_rows
    room, unit_key = scratch.take("unit", most, np.uint64), noise.derive("group-by/units")
    prepared = prepare_batch(program, batch, unit_key, noise.derive(NAMES_KEY), room)
    if batch.prepared is None:
        prepared.room = scratch.take("names", 2 * most, np.uint64)
    return prepared


def asked_keys(operator: Grouping, prepared: Prepared) -> Array:
    """The key of every row: as an integer where it is one, else its name (two words)."""
    needs_names = operator.public is not None or operator.aggregation.restarts
    if needs_names or prepared.plain is None:
        return prepared.names
    return prepared.plain


def ahead(operator: Grouping, batches: Iterator[Batch], noise: Noise) -> Iterator[Batch]:
    """The same micro-batches, large ones with their row stage done.

    A caller must be done with a micro-batch before it takes the next: its memory is used for the
    one after that, as in `runtime.grouping.Prefetch`.
    """
    rooms = cycle((BatchScratch(), BatchScratch()))
    for batch in batches:
        made = batch
        if batch.block is None and batch.reject_notes is None and batch.rows.num_rows >= LARGE:
            prepared = row_stage(operator, batch, noise, next(rooms))
            asked_keys(operator, prepared)  # kept with it
            made = replace(batch, prepared=prepared)
            del prepared
        del batch  # or it would be kept while the next one is made
        yield made
        del made


@runtime_checkable
class NoisyCount(Protocol):
    """A selection by a noisy count of units."""

    def threshold(self, trigger: int) -> float:
        """Units above which a key passes."""

    def deviation(self, trigger: int) -> float:
        """Standard deviation of the count, in units."""


MOST_TEXTS = 1 << 12  # of triggers, that are remembered
FLAGS = ("non_negative", "integer", "monotone")


def looked(operator: Grouping) -> list[str]:
    """The look's own numbers, and the bounds that hold since then."""
    assert operator.look is not None  # noqa: S101  (asked of jobs that looked only)
    bounds = operator.bounds
    most = (
        (bounds.max_rows, "rows of a unit"),
        (bounds.per_group, "rows of a unit in one group"),
        (bounds.groups, "groups of a unit"),
    )
    held = [f"{what} that count: at most {number:,}" for number, what in most if number is not None]
    if bounds.quadratic is not None:
        held.append(
            "rows of a unit count while the weighted sum of its squared rows per group is at most"
            f" {bounds.quadratic:,}"
        )
    return [*operator.look.said, *held]


def facts_of(operator: Grouping) -> Facts:
    """The facts that are the same for every release of a job."""
    aggregation, schedule = operator.aggregation, operator.schedule
    return {
        "version": VERSION,
        **({"look": looked(operator)} if operator.look is not None else {}),
        **({"omitted": list(operator.omitted)} if operator.omitted else {}),
        **({"guessed": operator.guessed} if operator.guessed else {}),
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
    """One aggregate; a quantile's many lanes are left out.

    A count or sum is its lane, or its lanes times their `factors`.
    """
    kept = {name: True for name in FLAGS if getattr(output, name)}
    lanes = [] if output.function == "quantile" else list(output.lanes)
    found = {"name": output.name, "function": output.function, "lanes": lanes, **kept}
    if output.function in VALUED:
        found |= {"low": output.low, "high": output.high}
        if not output.is_total and output.centre != (output.low + output.high) / 2 and lanes:
            found |= {"centre": output.centre}
    if output.is_total:
        found |= {"step": output.step} | ({"room": output.room} if output.room else {})
        found |= {"factors": list(output.factors)} if len(lanes) > 1 else {}
    said = {"bias": output.cut, "clamped": output.clamped, UNBOUNDED: output.unbounded}
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

    `value` numbers the expressions. `most` is the most that one privacy unit adds to a hidden key
    (to a sum: before the middle of its bounds is subtracted). `late` lanes are counted from a key's
    opening on; the others from the first trigger of the window.
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
            **({"value": lane.value} if lane.value >= 0 else {}),
            "counter": counters.index(aggregation.counters[place]),
            "quantum": 1 / FINE if shared else float(lane.quantum),
            "late": not shared,
            "rounded": shared,  # the released number is rounded once more
            "most": most,
        })  # fmt: skip
    return found


def test_facts(operator: Grouping) -> Facts:
    """The triggers at which noisy totals of hidden keys are tested; all their lanes draw noise."""
    test = operator.aggregation.test
    if test is None:
        return {}
    return {"tests": {"triggers": list(test.triggers), "weight": test.share or 1.0}}


def rows_in_hidden_key(operator: Grouping) -> int:
    """The most rows of one unit (in its period) that a hidden key may hold."""
    return operator.bounds.most_in_group(rule_entry(operator))


def counter_facts(counter: Counter) -> Facts:
    """A counter's kind and fields, enough to know its noise. The inverse: `counter_from`."""
    counter = blt_of(counter) or counter
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
    """The facts that keep a key hidden at a trigger; None when keys are public, {} if unknown.

    units: an estimate of its units, of deviation `sd`, has not exceeded `threshold`.
    lane: the same for its total in a lane. A selection table that does not count all units of a key
    gives no bound on its total; where it does, units are below `threshold` plus a geometric number,
    P(it reaches j) = exp(-rate j).
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


class HiddenTexts(dict[int, str]):
    """`hidden_facts` as text, by trigger: the windows of a job share triggers."""

    def __init__(self, operator: Grouping) -> None:
        self.operator = operator

    def __missing__(self, trigger: int) -> str:
        if len(self) >= MOST_TEXTS:
            self.clear()
        return self.setdefault(trigger, compact(hidden_facts(self.operator, trigger)))


def heading(place: tuple[int, int, int], constant: str, hidden: HiddenTexts) -> bytes:
    """The facts of a release without their last brace. `place`: window, trigger, step."""
    window, trigger, step = place
    now = f'"window":{window},"trigger":{trigger},"step":{step},"hidden":{hidden[trigger]}'
    return f"{constant},{now}".encode()
