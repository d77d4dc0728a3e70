"""Small codecs of a group-by's state: what they write is what they read."""

import numpy as np
import pyarrow as pa
import pytest

from streamveil.dataflow.stages import packed_firsts, unpacked_firsts
from streamveil.dataflow.state import (
    chosen,
    constant,
    evened,
    is_constant,
    parts,
    repeated,
    spread_out,
    types_from_bytes,
    types_to_bytes,
)
from streamveil.dataflow.unit_kernels import COUNTED, NEW

SEVERAL = np.array([3, 5, 3, 7], np.int64)
EQUAL = np.full(4, 3, np.int64)
MANY = np.arange(300) * 7 % 200
COLUMNS = [
    SEVERAL,
    MANY,
    EQUAL,
    EQUAL[:1],
    EQUAL[:0],
    repeated(np.int64(3), 4),
    repeated(np.int64(3), 0),
]


@pytest.mark.parametrize("values", COLUMNS, ids=str)
def test_a_column_of_one_value_takes_no_memory_and_says_the_same(values):
    even = evened(values)
    np.testing.assert_array_equal(even, values)
    assert is_constant(values) == (len(set(values.tolist())) == 1)
    if is_constant(values):
        assert even.strides == (0,)
        assert len(constant(values)) == 1
    else:
        assert even is values
        assert constant(values) is values
    np.testing.assert_array_equal(spread_out(constant(values), len(values)), values)


@pytest.mark.parametrize("values", COLUMNS, ids=str)
def test_every_value_comes_once_with_the_places_that_hold_it(values):
    found = list(parts(values))
    assert [value for value, _ in found] == sorted(set(values.tolist()))
    for value, places in found:
        here = np.arange(len(values))[places]
        np.testing.assert_array_equal(here, np.flatnonzero(values == value))
    assert any(isinstance(places, slice) for _, places in found) == is_constant(values)


def test_many_values_are_not_searched_one_by_one(monkeypatch):
    """One person's rows may be of as many periods as there are rows."""
    searched = []
    monkeypatch.setattr(
        np, "flatnonzero", lambda found: searched.append(found) or np.nonzero(found)
    )
    assert len([*parts(MANY)]) == 200
    assert len(searched) < 50


@pytest.mark.parametrize("values", [SEVERAL, EQUAL, repeated(np.int64(3), 4)], ids=str)
def test_the_values_of_accepted_rows_stay_one_item_where_they_are(values):
    accepted = np.array([True, False, False, True])
    found = chosen(values, accepted, 2)
    np.testing.assert_array_equal(found, np.array(values)[accepted])
    assert (found.strides == (0,)) == (values.strides == (0,))


def test_types_come_back_from_their_bytes():
    types = (pa.string(), pa.timestamp("ms", "Asia/Tokyo"), pa.decimal128(9, 2), pa.null())
    assert types_from_bytes(types_to_bytes(types)) == types
    assert types_from_bytes(types_to_bytes(())) == ()


class Asks:
    """Of an operator: for which keys first rows matter, and whether hidden groups have slots."""

    def __init__(self, firsts, slots):
        self.firsts, self.bounds, self.slots = firsts, self, slots


@pytest.mark.parametrize("size", [0, 1, 8, 13])
@pytest.mark.parametrize(("firsts", "slots"), [("all", 2), ("all", None), ("hidden", 2)])
def test_bits_of_first_rows_come_back_as_far_as_they_are_asked_for(firsts, slots, size):
    rng = np.random.default_rng(size)
    new = rng.integers(0, 2, size).astype(np.uint8)
    both = firsts == "all" and slots is not None
    counted = new & rng.integers(0, 2, size).astype(np.uint8) if both else new
    first = NEW * new + COUNTED * counted
    packed = packed_firsts(Asks(firsts, slots), first)
    assert sorted(packed) == (["first", "new"] if both else ["first"])
    assert sum(len(bits) for bits in packed.values()) == len(packed) * -(-size // 8)
    np.testing.assert_array_equal(unpacked_firsts(packed, size), first)
