"""The witness is silent on what is right, and stops each planted fault at its first micro-batch."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil import engines
from streamveil.core.noise import SeededNoise
from streamveil.core.sensitivity import Bounds
from streamveil.dataflow import aggregate, bounding, grouping, stages, witness
from streamveil.dataflow.aggregate import KeyTable
from streamveil.dataflow.bounding import Passed, UnitTable, unit_stage
from streamveil.engines import PartedTable, Room, embedded
from streamveil.errors import WitnessError
from streamveil.plan import Aggregate, Window
from tests.dataflow.streams import batches, compile_plan, plan_of, run
from tests.dataflow.test_bounding import FIRSTS, cut, make_rows, rules

ROWS = Bounds(max_rows=3)
SLOTS = Bounds(max_rows=9, slots=2)
GROUPS = Bounds(max_rows=9, per_group=2)
SQUARES = Bounds(quadratic=12)
WEIGHTS = Bounds(quadratic=6, slots=2, scale=8)
WIDE = Bounds(max_rows=2**20, quadratic=40, slots=20)


@pytest.fixture
def everyone(monkeypatch):
    monkeypatch.setattr(witness, "ONE_IN", 1)
    monkeypatch.setattr(witness, "MOST", 10**9)


def staged(table, rows, bounds):
    """The unit stage of one micro-batch under the witness, as `stages.pass_witnessed` has it."""
    noted = witness.look_before(lambda unit: table, rows.unit, 0)
    passed = unit_stage(table, rows, bounds)
    witness.check_after(noted, lambda unit: table, rows, passed, bounds)
    return len(noted.rows)


@given(rules(), FIRSTS, st.integers(0, 2**32), st.integers(1, 300), st.integers(1, 80))
def test_is_silent_on_the_compiled_stage(bounds, firsts, seed, units, groups):
    rows, table = make_rows(seed, 400, units, groups, bounds.scale), UnitTable.empty(bounds, firsts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(witness, "ONE_IN", 1)
        patch.setattr(witness, "MOST", 10**9)
        for i in range(0, 400, 97):
            part = cut(rows, i, i + 97)
            assert staged(table, part, bounds) == len(set(part.unit.tolist()))


def test_samples_one_unit_in_so_many_and_no_more_rows_than_it_may():
    unit = np.random.default_rng(3).integers(1, 2**64, 2**20, np.uint64, endpoint=False)
    few = unit[: 2**15]
    places = witness.sampled(few, 0)
    assert 10 <= len(places) <= witness.MOST  # 32 expected
    np.testing.assert_array_equal(places, witness.sampled(few, 5))
    turns = [witness.sampled(unit, batch) for batch in range(40)]
    assert all(0 < len(places) <= witness.MOST for places in turns)
    assert len(set().union(*(p.tolist() for p in turns))) > 4 * witness.MOST  # by and by, others
    heavy = np.concatenate([np.repeat(few[places[:3]], 10**3), few])  # more rows than may be
    for batch in range(3):
        assert len(witness.sampled(heavy, batch)) >= 1


def before(change):
    """A kernel that is given something else than it should: `change` of its first four columns."""

    def plant(kernel):
        def faulty(*arguments):
            return kernel(*change(arguments))

        return faulty

    return plant


def after(change):
    """A kernel that leaves something else behind: `change(accepted, first)`, in place."""

    def plant(kernel):
        def faulty(*arguments):
            answer = kernel(*arguments)
            change(arguments[-2], arguments[-1])
            return answer

        return faulty

    return plant


def limit(place, by):
    """Another limit: of rows, a group, squares, slots."""

    def change(arguments):
        at = next(i for i, a in enumerate(arguments) if isinstance(a, np.ndarray) and len(a) == 4
                  and a.dtype == np.int64)  # fmt: skip
        other = arguments[at].copy()
        other[place] += by
        return (*arguments[:at], other, *arguments[at + 1 :])

    return before(change)


def column(place, change):
    """Another unit (0), group (1), weight (2) or bit that hides (2 or 3)."""
    return before(lambda a: (*a[:place], change(a[place]), *a[place + 1 :]))


def put(array, place, value):
    array[place] = value


def twice(kernel):
    def faulty(*arguments):
        kernel(*arguments)
        return kernel(*arguments)

    return faulty


def nothing_passes(kernel):
    return lambda unit, *rest: (len(unit), 0, 0)


def shifted(array):
    return np.roll(array, 1)


KERNELS = {
    "one row more": (ROWS, limit(0, 1)),
    "one row fewer": (ROWS, limit(0, -1)),
    "one row more in a group": (GROUPS, limit(1, 1)),
    "one row fewer in a group": (GROUPS, limit(1, -1)),
    "one square more": (SQUARES, limit(2, 1)),
    "twice the squares": (SQUARES, limit(2, 12)),
    "no limit of squares": (WEIGHTS, limit(2, 2**40)),
    "quanta for rows": (WEIGHTS, limit(2, 6 - 6 * 64)),
    "one slot more": (SLOTS, limit(3, 1)),
    "one slot fewer": (SLOTS, limit(3, -1)),
    "one slot more in a wide table": (Bounds(max_rows=2**20, slots=2), limit(3, 1)),
    "weights halved": (WEIGHTS, column(2, lambda w: (w + 1) // 2)),
    "weights of one": (WEIGHTS, column(2, np.ones_like)),
    "weights of the row before": (WEIGHTS, column(2, shifted)),
    "hidden is shown": (SLOTS, column(2, np.zeros_like)),
    "shown is hidden": (SLOTS, column(2, np.ones_like)),
    "hidden is shown, weighted": (WEIGHTS, column(3, np.zeros_like)),
    "groups of the row before": (GROUPS, column(1, shifted)),
    "groups in pairs": (SQUARES, column(1, lambda g: g >> np.uint16(1))),
    "one group for all": (SLOTS, column(1, np.zeros_like)),
    "units of the row before": (ROWS, column(0, shifted)),
    "units in pairs": (ROWS, column(0, lambda u: u | np.uint64(1 << 40))),
    "another name": (SQUARES, column(0, lambda u: u ^ np.uint64(1))),
    "all rows pass": (ROWS, after(lambda accepted, first: accepted.fill(1))),
    "no row passes": (ROWS, after(lambda accepted, first: accepted.fill(0))),
    "a charged row is lost": (WIDE, after(lambda accepted, first: put(accepted, 0, False))),
    "the last row is lost": (ROWS, after(lambda a, first: put(a, np.flatnonzero(a)[-1], False))),
    "answers one row late": (GROUPS, after(lambda a, first: put(a, slice(None), np.roll(a, 1)))),
    "no unit is new": (SLOTS, after(lambda accepted, first: first.fill(0))),
    "every row is new": (SLOTS, after(lambda accepted, first: first.fill(3))),
    "every row is new, wide": (WIDE, after(lambda accepted, first: first.fill(3))),
    "slots count twice": (WEIGHTS, after(lambda accepted, first: put(first, first == 1, 3))),
    "charged twice": (WIDE, twice),
    "nothing is done": (GROUPS, nothing_passes),
}


@pytest.mark.usefixtures("everyone")
@pytest.mark.parametrize(("bounds", "plant"), KERNELS.values(), ids=KERNELS)
def test_stops_a_fault_of_the_kernels(bounds, plant, monkeypatch):
    rows = make_rows(1, 200, 20, 6, bounds.scale)
    staged(UnitTable.empty(bounds, "all" if bounds.slots is None else "hidden"), rows, bounds)
    for kernel in ("bound_inline", "bound_pooled"):
        monkeypatch.setattr(bounding, kernel, plant(getattr(bounding, kernel)))
    table = UnitTable.empty(bounds, "all" if bounds.slots is None else "hidden")
    with pytest.raises(WitnessError, match="witness stopped the job before its commit"):
        staged(table, rows, bounds)


def forget_units(table, state_before):
    table.slots[:] = 0


def forget_groups(table, state_before):
    table.pool[:] = 0


def not_charged(table, state_before):
    table.slots[:] = state_before


def lose_low_bit(table, state_before):
    words = table.slots.reshape(-1, len(table.slots) * 4 // table.capacity)
    words[:, 4:8] &= ~np.uint64(1 << 4)


TABLES = {
    "forgets its units": (ROWS, forget_units),
    "forgets its groups": (Bounds(quadratic=2**10), forget_groups),
    "is not charged": (GROUPS, not_charged),
    "loses a bit of each unit": (SQUARES, lose_low_bit),
}


@pytest.mark.usefixtures("everyone")
@pytest.mark.parametrize(("bounds", "plant"), TABLES.values(), ids=TABLES)
def test_stops_a_fault_of_what_is_remembered(bounds, plant, monkeypatch):
    rows, table = make_rows(1, 200, 20, 12, bounds.scale), UnitTable.empty(bounds, "all")

    def faulty(*arguments):
        state_before = table.slots.copy()
        passed = bounding.unit_stage(*arguments)
        plant(table, state_before)
        return passed

    monkeypatch.setitem(globals(), "unit_stage", faulty)
    with pytest.raises(WitnessError, match="remembered"):
        staged(table, rows, bounds)


@pytest.mark.usefixtures("everyone")
def test_stops_a_table_that_loses_units_as_it_grows(monkeypatch):
    rows, grow = make_rows(1, 200, 150, 6, 1), bounding.grow_table

    def faulty(table, units=0):
        grow(table, units)
        table.slots[: len(table.slots) // 2] = 0

    monkeypatch.setattr(bounding, "grow_table", faulty)
    with pytest.raises(WitnessError):
        staged(UnitTable.empty(GROUPS, "all"), rows, GROUPS)


STREAM = [(u % 9, "abc"[u % 3], u % 5, u, 0) for u in range(50)]
NOISE = SeededNoise(7)


def folded(tmp_path, engine=True):
    operator, state = compile_plan(plan_of()), None
    operator = embedded(operator, Room(None, tmp_path)) if engine else operator
    state = operator.init()
    for batch in batches(STREAM):
        operator.fold(state, batch, NOISE)
    return state


@pytest.mark.usefixtures("everyone")
@pytest.mark.parametrize("large", [1, 1 << 15])
def test_is_silent_in_the_embedded_engine(tmp_path, monkeypatch, large):
    monkeypatch.setattr(engines, "LARGE", large)
    state = folded(tmp_path)
    assert isinstance(state.units[0], PartedTable) == (large == 1)


def everything(operator, state, rows, periods):
    return Passed(np.ones(len(rows.unit), bool), np.full(len(rows.unit), 3, np.uint8))


def elsewhere(operator, state, rows, periods):
    return PASS(operator, state, rows, periods + 1)


def neighbour(operator, state, rows, periods):
    return PASS(operator, state, rows._replace(unit=np.roll(rows.unit, 1)), periods)


def shared(operator, state, rows, periods):
    return PASS(operator, state, rows._replace(group=rows.group * 0), periods)


PASS = stages.pass_units


@pytest.mark.usefixtures("everyone")
@pytest.mark.parametrize("fault", [everything, elsewhere, neighbour, shared])
def test_stops_a_fault_of_the_pipeline(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(stages, "pass_units", fault)
    with pytest.raises(WitnessError):
        folded(tmp_path)


@pytest.mark.usefixtures("everyone")
def test_stops_a_division_that_loses_units(tmp_path, monkeypatch):
    empty = PartedTable.of
    monkeypatch.setattr(
        PartedTable, "of",
        lambda table, room, none: empty(UnitTable.of(table.shape, 64), room, none),
    )  # fmt: skip
    monkeypatch.setattr(
        engines.EmbeddedGroupBy,
        "_divides",
        lambda self, state, table, rows: table.units > 0,
    )
    with pytest.raises(WitnessError):
        folded(tmp_path)


def test_what_a_stop_says_names_no_data():
    assert not any(digit in str(WitnessError("a row was cut")) for digit in "0123456789")


# ---- rows that see one another, and totals


MIXED = plan_of(
    aggregates=(
        Aggregate(name="n", function="count"),
        Aggregate(name="people", function="count_units"),
        Aggregate(name="s", function="sum", expression="v", low=0.0, high=8.0),
        Aggregate(name="kinds", function="count_distinct", expression="v"),
        Aggregate(name="half", function="quantile", expression="v", low=0.0, high=4.0,
                  options={"fan": 2, "levels": 2}),
    )
)  # fmt: skip


def through(operator, stream=STREAM):
    run(operator, batches(stream), NOISE)


def neighbourly(part, change):
    """The operator with one of its row functions, of which every row sees the whole micro-batch."""

    def bind(schema):
        honest = operator.bind(schema)
        found = getattr(honest, part)
        if isinstance(found, tuple):
            return replace(honest, **{part: tuple(seeing(one, change) for one in found)})
        return replace(honest, **{part: seeing(found, change)})

    operator = compile_plan(MIXED)
    return replace(operator, bind=bind)


def seeing(function, change):
    return lambda table: change(pa.array(function(table)))


def of_the_row_before(column):
    return column.take(pa.array(np.roll(np.arange(len(column)), 1)))


def centred(column):
    return pc.subtract(column, pc.cast(pc.mean(column), column.type, safe=False))


def of_the_first_row(column):
    return column.take(pa.array(np.zeros(len(column), np.int64)))


SEEING = {
    "the unit of the row before": ("unit", of_the_row_before),
    "the unit of the first row": ("unit", of_the_first_row),
    "the key of the row before": ("keys", of_the_row_before),
    "the key of the first row": ("keys", of_the_first_row),
    "values about their mean": ("values", centred),
    "values of the row before": ("values", of_the_row_before),
    "times of the first row": ("event_us", of_the_first_row),
}


@pytest.mark.parametrize(("part", "change"), SEEING.values(), ids=SEEING)
def test_stops_rows_that_see_one_another(part, change):
    through(neighbourly(part, lambda column: column))
    stream = [(u, "abcd"[u % 4], u % 7, u, 0) for u in range(1, 40)]
    with pytest.raises(WitnessError, match="depends on other rows"):
        through(neighbourly(part, change), stream)


ODD = [
    pa.array([float("nan"), -0.0, 0.0, None, 1.5] * 8),
    pa.array([2**62, -(2**62), None, 0, 7] * 8, pa.timestamp("ns")),
    pa.array([2**62, -(2**62), None, 0, 7] * 8, pa.timestamp("s")),
    pa.array([2**31 - 1, -(2**31), None, 0, 7] * 8, pa.date32()),
    pa.array(["a", None, "", "\0", "b"] * 8),
]


@pytest.mark.parametrize("keys", ODD, ids=lambda keys: str(keys.type))
def test_is_silent_on_odd_groups(keys):
    operator = compile_plan(MIXED)

    def bind(schema):
        taken = lambda rows: keys.take(rows["u"].combine_chunks())  # noqa: E731
        return replace(operator.bind(schema), keys=(taken,))

    stream = [(u, "a", u % 7, u, 0) for u in range(1, 40)]
    through(replace(operator, bind=bind), stream)


def test_stops_a_condition_that_sees_other_rows():
    operator = compile_plan(MIXED)

    def bind(schema):
        return replace(
            operator.bind(schema), where=lambda t: pa.array([t.num_rows > 1] * t.num_rows)
        )

    with pytest.raises(WitnessError, match="depends on other rows"):
        through(replace(operator, bind=bind))


TOTALS = {
    "rows count twice": ("add_given", twice),
    "rows do not count": ("add_given", lambda kernel: lambda *_: None),
    "sums are added twice": ("add_lanes", twice),
    "sums are not added": ("add_lanes", lambda kernel: lambda *_: None),
    "sums go elsewhere": ("add_lanes", lambda kernel: lambda *a: kernel(*a[:3], a[3] - 1)),
    "nodes are hit twice": ("add_hits", twice),
    "nodes are not hit": ("add_hits", lambda kernel: lambda *_: None),
}  # fmt: skip


@pytest.mark.parametrize(("kernel", "plant"), TOTALS.values(), ids=TOTALS)
def test_stops_a_fault_of_totals(kernel, plant, monkeypatch):
    through(compile_plan(MIXED))
    monkeypatch.setattr(aggregate, kernel, plant(getattr(aggregate, kernel)))
    with pytest.raises(WitnessError, match="total of a group"):
        through(compile_plan(MIXED))


def test_groups_of_many_rows_are_not_looked_at(monkeypatch):
    table = KeyTable.empty(1)
    table.add_names(np.ones((1, 2), np.uint64))
    found = np.zeros(witness.LARGEST_GROUP + 1, np.int32)
    assert witness.look_at_group(table, found, 3) is None
    assert witness.look_at_group(table, found[1:], 3).before == [0]
    assert witness.look_at_group(table, found[:0], 3) is None


# ---- periods that the guarantee keeps apart

DAYS = {"window": Window(kind="tumble", size_us=20), "period_us": 20}
CLAIMED = {
    "windows that begin every half period": {"window": Window(kind="hop", size_us=20, slide_us=10)},
    "windows of two periods": {"period_us": 10},
    "windows beside periods": {"period_us": 30},
}


@pytest.mark.parametrize("changes", [{}, *CLAIMED.values()], ids=["none", *CLAIMED])
def test_stops_a_window_that_meets_two_periods_claimed_apart(changes, monkeypatch):
    """Planted: whatever the windows are, the guarantee says that they hold one period each."""
    rows = [(u, "a", 1, 3 * u % 60, 0) for u in range(200)]
    honest = compile_plan(plan_of(**(DAYS | changes)))
    run(honest, batches(rows), SeededNoise(1))
    assert honest.guarantee.separate == (not changes)
    monkeypatch.setattr(grouping, "periods_apart", lambda schedule, periods: True)
    planted = compile_plan(plan_of(**(DAYS | changes)))
    assert planted.guarantee.separate
    if not changes:
        run(planted, batches(rows), SeededNoise(1))
        return
    with pytest.raises(WitnessError, match="two periods"):
        run(planted, batches(rows), SeededNoise(1))
