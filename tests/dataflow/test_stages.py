"""Integer keys are found by value: the same deltas and releases, bit for bit, as by name."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise
from streamveil.dataflow import stages
from streamveil.dataflow.state import BatchScratch
from streamveil.errors import StoreError
from streamveil.plan import Bounding
from tests.dataflow.streams import AGGREGATES, BOUNDINGS, LOOSE, ROWS, WINDOWS, batches
from tests.dataflow.test_group_by import assert_same, compiled

TABLE = Budget(epsilon=20, delta=0.4)
BYTES = pa.binary()
CUTS = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)
CODES = {key: code for code, key in enumerate("abcd")}


def numbered(batch, null):
    """The same rows with integers for keys; in some batches one of the keys is null."""
    codes = [None if key == null else CODES[key] - 1 for key in batch.rows["k"].to_pylist()]
    place = batch.rows.schema.get_field_index("k")
    return replace(batch, rows=batch.rows.set_column(place, "k", pa.array(codes, pa.int64())))


def numbered_stream(rows, cuts):
    for number, batch in enumerate(batches(rows, cuts)):
        yield numbered(batch, "b" if number % 3 == 1 else None)


def followed(operator, stream):
    """Every delta, every release and the state at the end; resumed from its arrays half-way."""
    state, deltas, releases = operator.init(), [], []
    for number, batch in enumerate(stream):
        deltas.append(operator.fold(state, batch, SeededNoise(7)))
        if batch.closes_step:
            releases += operator.release(state, batch.step, SeededNoise(7))
            if number == 5:
                state = operator.load({k: v.copy() for k, v in operator.save(state).items()})
    return deltas, [one.table for one in releases], operator.save(state)


@settings(max_examples=25)
@given(ROWS, WINDOWS, BOUNDINGS, CUTS, st.sampled_from(["counter", "table"]))
def test_values_and_names_give_the_same_bytes(rows, window, bounding, cuts, kind):
    changes = {} if kind == "counter" else {"options": {"selection": "table"}, "budget": TABLE}
    if kind == "counter":
        changes = {"window": window, "budget": LOOSE}
    aggregates = AGGREGATES[:1] + AGGREGATES[3:]
    operator = compiled(bounding=bounding, aggregates=aggregates, **changes)
    by_value = followed(operator, numbered_stream(rows, cuts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "asked_keys", lambda operator, prepared: prepared.names)
        by_name = followed(operator, numbered_stream(rows, cuts))
    for one, other in zip(by_value[0], by_name[0], strict=True):
        assert_same(one, other)
    assert by_value[1] == by_name[1]
    assert_same(by_value[2], by_name[2])


def test_a_key_that_is_known_is_not_named_again(monkeypatch):
    named = []
    real = stages.Lookup.find
    monkeypatch.setattr(
        stages.Lookup, "find", lambda *given: named.append(out := real(*given)) or out
    )
    operator = compiled(bounding=Bounding(max_rows=100))
    rows = [(unit, key, 1, 5, 0) for unit in range(12) for key in "abcd"]
    followed(operator, numbered_stream(rows + [(u, k, v, 15, 0) for u, k, v, *_ in rows], (1,)))
    assert [len(met.places) for met in named if len(met.places)] == [48]


def test_scratch_is_the_same_memory_until_more_is_needed():
    scratch = BatchScratch()
    small, large = scratch.take("a", 10, np.int32), scratch.take("a", 5, np.int32)
    assert np.shares_memory(small, large)
    assert not np.shares_memory(small, scratch.take("b", 10, np.int32))
    assert not np.shares_memory(small, scratch.take("a", 11, np.int32))
    assert scratch.count(7).tolist() == list(range(7))
    with pytest.raises(ValueError, match="read-only"):
        scratch.count(3)[0] = 1


def test_no_delta_lies_in_memory_that_is_used_again():
    """A delta is written by another thread while the next micro-batch is folded."""
    rows = [(unit, key, 1, 5, 0) for unit in range(12) for key in "abcd"]
    for batch in (next(numbered_stream(rows, (1,))), next(iter(batches(rows)))):
        operator = compiled(aggregates=AGGREGATES)
        state = operator.init()
        delta = operator.fold(state, batch, SeededNoise(7))
        assert pc.sum(batch.rows["v"]).as_py() == len(rows)
        held = state.scratch._held.values()
        for name, array in delta.items():
            assert not any(np.shares_memory(array, room) for room in held), name


def stored_as(batch, kind, number):
    """The same rows, their keys and users stored otherwise, and from some place of an array on."""
    table = pa.concat_tables([batch.rows.slice(0, number % 2), batch.rows]).slice(number % 2)
    for name in ("k", "u"):
        place = table.schema.get_field_index(name)
        if pa.types.is_string(table.schema.field(name).type):
            cast = table.column(name).combine_chunks().cast(kind)
            table = table.set_column(place, name, cast)
    return replace(batch, rows=table.combine_chunks())


@settings(max_examples=15)
@given(ROWS, BOUNDINGS, CUTS, st.sampled_from([
    pa.large_string(), pa.string(), pa.dictionary(pa.int32(), pa.string()),
]))  # fmt: skip
def test_text_folds_to_the_same_bytes_whatever_its_storage(rows, bounding, cuts, kind):
    operator = compiled(bounding=bounding, aggregates=AGGREGATES[:1])
    plain = followed(operator, batches(rows, cuts))
    stored = (stored_as(batch, kind, n) for n, batch in enumerate(batches(rows, cuts)))
    found = followed(operator, stored)
    for one, other in zip(found[0], plain[0], strict=True):
        assert_same(one, other)
    assert found[1] == plain[1]
    assert_same(found[2], plain[2])


@pytest.mark.parametrize("change", [lambda b: numbered(b, None), lambda b: stored_as(b, BYTES, 0)])
def test_a_state_keeps_the_types_of_its_keys(change):
    operator = compiled(bounding=Bounding(max_rows=4), aggregates=AGGREGATES[:1])
    batch = next(batches([(1, "a", 1, 1, 0), (2, "b", 1, 1, 0)]))
    state = operator.init()
    operator.fold(state, batch, SeededNoise(7))
    before = {name: array.copy() for name, array in operator.save(state).items()}
    with pytest.raises(StoreError, match="other types"):
        operator.fold(state, change(batch), SeededNoise(7))
    assert_same(operator.save(state), before)
