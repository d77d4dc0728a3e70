"""Tables that grow keep every unit where a look-up finds it; memory by address is memory."""

import ast
import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.compiled import njit
from streamveil.core.sensitivity import Bounds
from streamveil.dataflow import unit_kernels, unit_layout
from streamveil.dataflow.bounding import UnitTable, grow_table, unit_stage
from streamveil.dataflow.raw_memory import LARGE, address, equal, load32, lowest, reserved, store32
from tests.dataflow.test_bounding import make_rows
from tests.dataflow.twins import named, remembered

RULES = [
    Bounds(max_rows=9, slots=3),
    Bounds(quadratic=60),
    Bounds(quadratic=20, scale=8),
    Bounds(max_rows=2**17, per_group=400),
]
CROWDED = {
    "spread": lambda names: names,
    "one home": lambda names: (names >> np.uint64(20)) | (np.uint64(0xABC) << np.uint64(52)),
    "the last home": lambda names: names | (np.uint64(0xFFFFFF) << np.uint64(40)),
}


def assert_can_be_found(table):
    """Every bucket from the one a unit would like up to the one it is in is full before it."""
    names = named(table)
    buckets = len(names)
    used = (names != 0).sum(axis=1)
    for row, count in zip(names, used, strict=True):
        assert (row[:count] != 0).all(), "filled from the left"
        assert (row[count:] == 0).all()
    for bucket in range(buckets):
        for name in names[bucket][: used[bucket]].tolist():
            at = (name >> 32) * buckets >> 32
            while at != bucket:
                assert used[at] == 4
                at = (at + 1) % buckets


@pytest.mark.parametrize("crowd", CROWDED)
@pytest.mark.parametrize("bounds", RULES)
def test_a_table_that_grew_holds_the_same_units(bounds, crowd):
    rows = make_rows(4, 3_000, 400, 30, bounds.scale)
    rows = rows._replace(unit=CROWDED[crowd](rows.unit))
    table = UnitTable.empty(bounds, "all")
    unit_stage(table, rows, bounds)
    before = remembered(table)
    assert_can_be_found(table)
    for _ in range(4):
        grow_table(table)
        assert remembered(table) == before
        assert_can_be_found(table)
    free = table.slots.reshape(-1, table.shape.slot_bytes // 8, 4)
    assert not free.transpose(0, 2, 1)[named(table) == 0].any(), "a free slot says nothing"


@pytest.mark.parametrize("bounds", RULES[:2])
def test_large_tables_grow_in_place(bounds):
    rows = make_rows(4, 120_000, 100_000, 30, bounds.scale)
    table, places = UnitTable.empty(bounds, "hidden"), []
    for start in range(0, 120_000, 2_000):
        unit_stage(table, type(rows)(*(column[start : start + 2_000] for column in rows)), bounds)
        places.append((address(table.slots), table.capacity))
    large = [place for place, slots in places if slots * 16 >= LARGE]
    assert len(set(large)) <= 2, "memory has room for 16 times as much"
    assert len({slots for _, slots in places[-len(large) :]}) > 1, "and it did grow"
    assert_can_be_found(table)
    copy = table.copied()
    assert address(copy.slots) % 64 == 0
    assert remembered(copy) == remembered(table)


@given(st.integers(1, 70_000), st.sampled_from([np.uint32, np.uint64]))
def test_reserved_memory_is_zero_and_aligned(items, kind):
    held = reserved(items, kind)
    assert len(held) >= items
    assert address(held) % 64 == 0
    assert not held.any()
    held[:] = 1


@njit()
def looked_up(place, word):
    store32(place, np.uint32(load32(place)))
    return equal(place, word), lowest(equal(place, word) | 256)


@given(st.lists(st.integers(0, 3), min_size=4, max_size=4), st.integers(0, 3))
def test_four_words_are_compared_at_once(words, wanted):
    held = np.array(words, np.uint64)
    bits = [word == wanted for word in words]
    found, first = looked_up(address(held), np.uint64(wanted))
    assert found == sum(bit << i for i, bit in enumerate(bits))
    assert first == (bits.index(True) if any(bits) else 8)
    np.testing.assert_array_equal(held, words)


@pytest.mark.parametrize("module", [unit_kernels, unit_layout])
def test_addresses_of_own_arrays_are_not_kept(module):
    """Compiled code frees an array after the last use of its name, whoever has its address."""
    for function in ast.parse(inspect.getsource(module)).body:
        if not isinstance(function, ast.FunctionDef):
            continue
        given = {argument.arg for argument in function.args.args}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and ".ctypes.data" in ast.unparse(node.value):
                held = ast.unparse(node.value).split(".ctypes.data")[0].split("(")[-1]
                assert held in given, f"{function.name} keeps the address of its own {held}"
