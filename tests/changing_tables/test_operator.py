"""The changing table as an operator: change data in, answers out, resumed anywhere."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose

from benchmarks.papers.qiu_yi import published
from streamveil.batch import Batch
from streamveil.changing_tables.operator import Attribute, ChangingTable
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.dataflow import Operator
from streamveil.dynamic import FullyDynamic, InsertionOnly
from streamveil.dynamic.baselines import Rerun, TwoStream
from streamveil.dynamic.continual_mwem import ContinualMwem
from streamveil.dynamic.signed_counter import SignedCounter, TreeCounter
from streamveil.errors import PlanError, StoreError
from streamveil.linear import Marginals, Mwem, Ranges, Residuals, Share, noisy_queries
from streamveil.linear.strategies import Direct

PURE, ZCDP = Share("pure", Fraction(5)), Share("zcdp", Fraction(1, 2))
CELLS = Marginals((2, 3), ((0,), (0, 1)), ("sex", "age"))
COLUMNS = (Attribute("sex", ("f", "m")), Attribute("age", (0, 1, 2)))
NOISY = noisy_queries(CELLS)


def table_of(mechanism, **settings):
    return ChangingTable(
        mechanism=mechanism, attributes=COLUMNS, id_column="id", operation_column="op", **settings
    )


def batch(rows, step=1):
    columns = list(zip(*rows, strict=True)) if rows else [[], [], [], []]
    return Batch(
        pa.table(
            {
                "op": pa.array(columns[0], pa.string()),
                "id": pa.array(columns[1], pa.int64()),
                "sex": pa.array(columns[2], pa.string()),
                "age": pa.array(columns[3], pa.int64()),
            }
        ),
        step,
        closes_step=True,
        position="",
    )


def run(operator, batches, noise, reload_every=0):
    state, out = operator.init(), []
    for step, one in enumerate(batches, start=1):
        delta = operator.fold(state, one, noise)
        if reload_every and step % reload_every == 0:
            arrays = {name: np.array(part) for name, part in operator.save(state).items()}
            state = operator.load(arrays)
        assert set(delta) == {"signs", "ids", "labels", "rejected"}
        out += operator.release(state, step, noise)
    return out, state


def random_batches(steps, seed=0):
    rng = np.random.default_rng(seed)
    alive, fresh = [], 0
    for step in range(1, steps + 1):
        rows = []
        for _ in range(rng.integers(0, 8)):
            if rng.random() < 0.6 or not alive:
                rows.append(("+", fresh, str(rng.choice(["f", "m"])), int(rng.integers(0, 3))))
                alive.append(fresh)
                fresh += 1
            else:
                gone = alive.pop(int(rng.integers(0, len(alive))))
                rows.append(("-", gone, None, None))
        yield batch(rows, step)


def expected(batches):
    there = {}
    for one in batches:
        for op, rid, sex, age in zip(
            *(one.rows[c].to_pylist() for c in ("op", "id", "sex", "age")), strict=True
        ):
            if op == "+":
                there[rid] = ("fm".index(sex), age)
            else:
                there.pop(rid, None)
    histogram = np.zeros(6, np.int64)
    for sex, age in there.values():
        histogram[sex * 3 + age] += 1
    return CELLS.exact(histogram)


def mechanisms():
    mwem = Mwem(queries=CELLS)
    yield FullyDynamic.repaired(NOISY, PURE, horizon=40)
    yield FullyDynamic.repaired(mwem, ZCDP, horizon=None)
    yield FullyDynamic.repaired(NOISY, Share("pure", 60), horizon=None, public_steps=False)
    yield published(mwem, ZCDP)
    yield TwoStream(static=NOISY, share=PURE, horizon=40)
    yield Rerun(static=mwem, share=ZCDP, steps=40)
    yield ContinualMwem(queries=CELLS, share=ZCDP, horizon=40)
    yield SignedCounter(strategy=Residuals(CELLS), share=ZCDP, horizon=40)
    yield TreeCounter(strategy=Direct(CELLS), share=PURE, horizon=None)


@pytest.mark.parametrize("mechanism", list(mechanisms()))
def test_saving_and_loading_at_any_step_changes_nothing(mechanism):
    operator = table_of(mechanism)
    assert isinstance(operator, Operator)
    batches = list(random_batches(30))
    whole, _ = run(operator, batches, SeededNoise(1))
    for every in (1, 7):
        resumed, state = run(operator, batches, SeededNoise(1), reload_every=every)
        assert all(a.table.equals(b.table) for a, b in zip(whole, resumed, strict=True))
    assert operator.counters(state)["rejected_domain"] == 0


@pytest.mark.parametrize("mechanism", list(mechanisms()))
def test_a_replayed_delta_gives_the_same_state(mechanism):
    operator = table_of(mechanism)
    noise = SeededNoise(2)
    one, two = operator.init(), operator.init()
    for step, part in enumerate(random_batches(12), start=1):
        operator.apply(two, operator.fold(one, part, noise))
        first, second = (operator.release(s, step, noise)[0] for s in (one, two))
        assert first.table.equals(second.table)


def test_without_noise_it_is_the_table_by_sql_means():
    batches = list(random_batches(40))
    released, state = run(
        table_of(FullyDynamic.repaired(NOISY, PURE, horizon=40)), batches, SilentNoise()
    )
    assert_allclose(released[-1].table["n"].to_pylist(), expected(batches), atol=1e-9)
    names = released[-1].table.column_names
    assert names == ["sex", "age", "n", "n_sd", "n_low", "n_high", "trigger"]
    assert released[-1].table["sex"].to_pylist()[:2] == ["f", "m"]
    assert released[-1].table["age"].to_pylist()[:4] == [None, None, 0, 1]
    assert released[-1].trigger == 40
    assert state.records.alive == expected(batches)[:2].sum()


@pytest.mark.parametrize(
    ("rows", "there", "counts"),
    [
        ([("I", 1, "f", 0), ("D", 1, "f", 0)], 0, {}),
        ([("c", 1, "f", 0), ("r", 2, "m", 0), ("d", 1, None, None)], 1, {}),
        ([("c", 1, "f", 0), ("u", 1, "m", 2)], 1, {}),
        ([("c", 1, "f", 0), ("u", 1, "m", 9)], 0, {"rejected_domain": 1}),
        ([("+", 1, "f", 0), ("+", 1, "m", 0)], 1, {"ignored_insert": 1}),
        ([("-", 5, "f", 0)], 0, {"ignored_delete": 1}),
        ([("?", 5, "f", 0), (None, 5, "f", 0)], 0, {"rejected_operation": 2}),
        ([("+", None, "f", 0)], 0, {"rejected_id": 1}),
        ([("+", 1, "x", 0), ("+", 2, None, 0), ("+", 3, "f", -1)], 0, {"rejected_domain": 3}),
    ],
)
def test_every_dialect_and_every_bad_row(rows, there, counts):
    operator = table_of(FullyDynamic.repaired(NOISY, PURE, horizon=4), lives=2)
    released, state = run(operator, [batch(rows)], SilentNoise())
    assert sum(released[0].table["n"].to_pylist()[:2]) == there
    expected_counts = {"records": there, **counts}
    found = operator.counters(state)
    assert {name: found[name] for name in expected_counts} == expected_counts
    assert sum(v for k, v in found.items() if k != "records") == sum(counts.values())


def test_lives_are_paid_for_as_a_group():
    mechanism = FullyDynamic.repaired(NOISY, PURE, horizon=4)
    assert table_of(mechanism).guarantee.epsilon(0) == pytest.approx(5)
    assert table_of(mechanism, lives=3).guarantee.epsilon(0) == pytest.approx(15)
    assert table_of(mechanism).guarantee.protects.unit == "id"


def test_labels_without_ids_and_other_query_classes():
    ranges = Ranges.prefixes(3)
    operator = ChangingTable(
        mechanism=FullyDynamic.repaired(noisy_queries(ranges), PURE, horizon=9, matching="labels"),
        attributes=(Attribute("age", (0, 1, 2)),),
        operation_column="op",
    )
    rows = [
        ("+", 0, None, 0),
        ("+", 0, None, 2),
        ("-", 0, None, 2),
        ("-", 0, None, 1),
        ("u", 0, None, 1),
    ]
    released, state = run(operator, [batch(rows)], SilentNoise())
    assert released[0].table["n"].to_pylist() == [1, 1, 1]
    assert released[0].table["query"].to_pylist() == ["[0,1)", "[0,2)", "[0,3)"]
    assert operator.counters(state)["rejected_operation"] == 1


def test_an_insert_only_table_needs_no_operation():
    operator = ChangingTable(mechanism=InsertionOnly.dense(NOISY, PURE), attributes=COLUMNS)
    released, _ = run(operator, [batch([("x", 1, "f", 0), ("x", 1, "f", 0)])], SilentNoise())
    assert released[0].table["n"].to_pylist()[:2] == [2, 0]
    assert released[0].table["n_high"].null_count == 0


@pytest.mark.parametrize("kind", ["float16", "float32", "int8", "decimal32", "decimal64"])
def test_columns_of_every_width_have_domains(kind):
    if not hasattr(pa, kind):
        pytest.skip("older pyarrow")
    size = {"decimal32": (5, 2), "decimal64": (12, 2)}.get(kind, ())
    ages = Attribute("age", ("0", "1", "2") if size else (0, 1, 2))
    operator = ChangingTable(
        mechanism=InsertionOnly.dense(NOISY, PURE), attributes=(COLUMNS[0], ages)
    )
    age = pa.array([1, None, 2], pa.int8()).cast(getattr(pa, kind)(*size))
    rows = pa.table({"sex": ["f", "f", "m"], "age": age})
    released, _ = run(operator, [Batch(rows, 1, closes_step=True, position="")], SilentNoise())
    assert released[0].table["n"].to_pylist()[:2] == [1, 1]


@pytest.mark.parametrize("static", [NOISY, Mwem(queries=CELLS)], ids=["proved", "not proved"])
def test_a_release_says_where_it_has_no_intervals(static):
    operator = table_of(Rerun(static=static, share=ZCDP, steps=4))
    table = run(operator, [batch([("+", 1, "f", 0)])], SeededNoise(1))[0][0].table
    note = (table.schema.metadata or {}).get(b"streamveil.note", b"")
    assert (b"no intervals" in note) == (table["n_low"].null_count > 0) == static.adaptive


def moved_by(operator, rows, others):
    """How far apart, in deviations, two streams put the centres of a counter's noise."""
    mechanism, exact = operator.mechanism, []
    for stream in (rows, others):
        batches = [batch(part, step) for step, part in enumerate(stream, start=1)]
        exact.append(run(operator, batches, SilentNoise())[1].inner.exact[: len(stream)])
    change, weights = exact[0] - exact[1], mechanism.coefficients
    centres = [weights[: t + 1][::-1] @ change[: t + 1] for t in range(len(change))]
    return float(np.sqrt(((np.array(centres) / mechanism.scales) ** 2).sum()))


def test_ids_of_a_table_that_grows_protect_all_their_rows_and_not_one_of_them():
    """An id comes twice: without its first row its second counts. One record goes, one comes."""
    counter = SignedCounter(strategy=Direct(CELLS), share=ZCDP, horizon=8, only_grows=True)
    operator = ChangingTable(mechanism=counter, attributes=COLUMNS, id_column="id")
    first, second, nothing = [("+", 7, "f", 0)], [("+", 7, "m", 1)], []
    both = [first, nothing, nothing, second, *[nothing] * 4]
    claimed = float(operator.guarantee.loss.mu())
    assert moved_by(operator, both, [nothing, *both[1:]]) > 1.35 * claimed  # one row
    assert moved_by(operator, both, [nothing] * 8) <= claimed  # all rows of the id
    assert operator.guarantee.protects.relation == "record"
    assert replace(operator, id_column=None).guarantee.protects.relation == "event"


def test_ids_that_share_half_of_their_names_are_two_records(monkeypatch):
    names = np.array([[1, 1], [1, 2]], np.uint64)
    monkeypatch.setattr(
        "streamveil.changing_tables.operator.name_column", lambda column, key: names
    )
    operator = table_of(FullyDynamic.repaired(NOISY, PURE, horizon=4))
    rows = [("+", 1, "f", 0), ("+", 2, "f", 0)]
    released, state = run(operator, [batch(rows)], SilentNoise())
    assert released[0].table["n"].to_pylist()[0] == 2 == state.records.alive


def test_impossible_tables_are_refused():
    mechanism = FullyDynamic.repaired(NOISY, PURE, horizon=4)
    with pytest.raises(PlanError, match="need an id"):
        ChangingTable(mechanism=mechanism, attributes=COLUMNS, operation_column="op")
    with pytest.raises(PlanError, match="points"):
        ChangingTable(mechanism=mechanism, attributes=COLUMNS[:1], id_column="id")
    with pytest.raises(PlanError, match="different values"):
        Attribute("age", (1, 1))
    operator = table_of(mechanism)
    wrong = Batch(pa.table({"op": ["+"], "id": [1], "sex": ["f"], "agee": [3]}), 1, True, "")
    with pytest.raises(PlanError, match="no column 'age'; did you mean 'agee'"):
        operator.fold(operator.init(), wrong, SilentNoise())


def test_a_state_of_another_table_is_refused():
    operator = table_of(FullyDynamic.repaired(NOISY, PURE, horizon=4))
    other = table_of(Rerun(static=NOISY, share=PURE, steps=4))
    _, state = run(operator, [batch([("+", 1, "f", 0)])], SeededNoise(0))
    saved = operator.save(state)
    with pytest.raises(StoreError, match="another mechanism"):
        other.load(saved)
    with pytest.raises(StoreError):
        operator.load({name: part for name, part in saved.items() if name != "inner/skeleton"})
    with pytest.raises(StoreError):
        operator.load({**saved, "other/x": np.zeros(1)})
    assert "FullyDynamic" not in repr(state)
