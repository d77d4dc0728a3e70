"""Keyed names: the published SipHash vector, and one name per value whatever its storage."""

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamveil.dataflow import hashing
from streamveil.dataflow.hashing import (
    first_words,
    name_column,
    name_columns,
    secret_words,
    siphash_many,
)
from tests.dataflow.twins import sip128

KEY = bytes(range(32))


def sip(message: bytes) -> bytes:
    k0, k1 = struct.unpack("<QQ", bytes(range(16)))
    data = np.frombuffer(message or b"\0", np.uint8)
    offsets = np.array([0, len(message)])
    return siphash_many(data, offsets, np.uint64(k0), np.uint64(k1)).tobytes()


def test_siphash_matches_the_authors_first_vector():
    # vectors_sip128[0] of the reference implementation: empty message, key 00..0f
    assert sip(b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    # vectors_sip128[1]: message 00
    assert sip(b"\0").hex() == "da87c1d86b99af44347659119b22fc45"


@given(st.lists(st.binary(max_size=40), max_size=60), st.integers(0, 3), st.booleans())
def test_all_lanes_equal_the_plain_twin(messages, long, padded):
    messages = [*messages, *[bytes(range(256)) * 3] * long]
    data = b"".join(messages) + bytes(8) * padded  # with and without room behind the last one
    offsets = np.cumsum([0, *(len(message) for message in messages)])
    found = siphash_many(
        np.frombuffer(data or b"\0", np.uint8), offsets, np.uint64(3), np.uint64(2**64 - 5)
    )
    wanted = [sip128(message, 3, 2**64 - 5) for message in messages]
    np.testing.assert_array_equal(found, np.array(wanted, np.uint64).reshape(-1, 2))


@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), min_size=1))
def test_first_words_are_those_of_the_names(values):
    numbers = [None if value is None else len(value) for value in values]
    for column in (pa.array(values, pa.string()), pa.array(numbers, pa.int64())):
        names = name_column(column, KEY)
        np.testing.assert_array_equal(first_words(column, KEY), names[:, 0])


def test_no_first_word_is_zero():
    names, words = np.array([[0, 5], [7, 0], [2**64 - 1, 3]], np.uint64), np.empty(3, np.uint64)
    hashing._take_firsts(names, words)
    assert words.tolist() == [1, 7, 2**64 - 1]


def test_pieces_make_no_difference():
    values = np.arange(20_000) ** 3
    names = name_column(pa.array(values), KEY)
    np.testing.assert_array_equal(first_words(pa.array(values), KEY), names[:, 0])
    np.testing.assert_array_equal(
        name_column(pa.array(values[8_190:8_195]), KEY), names[8_190:8_195]
    )


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_never_collide(values):
    names = name_column(pa.array(values, pa.int64()), KEY)
    assert len({row.tobytes() for row in names}) == len(set(values))


@given(st.lists(st.one_of(st.none(), st.text(max_size=20)), min_size=1))
def test_text_and_nulls_have_their_own_names(values):
    plain = name_column(pa.array(values, pa.string()), KEY)
    large = name_column(pa.array(values, pa.large_string()), KEY)
    np.testing.assert_array_equal(plain, large)
    assert len({row.tobytes() for row in plain}) == len(set(values))


def test_a_slice_has_the_names_of_the_whole():
    column = pa.array(["a", None, "ccc", "", "a"])
    np.testing.assert_array_equal(name_column(column.slice(2), KEY), name_column(column, KEY)[2:])


def test_columns_are_joined_without_ambiguity():
    left = name_columns([pa.array(["ab", "a"]), pa.array(["c", "bc"])], KEY)
    assert not (left[0] == left[1]).any()
    swapped = name_columns([pa.array([1, 2]), pa.array([2, 1])], KEY)
    assert not (swapped[0] == swapped[1]).any()


def test_every_storage_of_a_word_is_accepted():
    for column in [
        pa.array([0, 1], pa.uint8()),
        pa.array([True, False]),
        pa.array([0.5, -0.0]),
        pa.array([1, None], pa.timestamp("us")),
        pa.array([1, 2], pa.date32()),
        pa.array([2**64 - 1, 0], pa.uint64()),
        pa.array([None, 3], pa.date32()),
    ]:
        assert len({row.tobytes() for row in name_column(column, KEY)}) == 2
    minus, plus = (name_column(pa.array([value]), KEY) for value in (-0.0, 0.0))
    np.testing.assert_array_equal(minus, plus)


@pytest.mark.parametrize("words", [0, 1, 15, 16, 17, 40, 80])
def test_blocks_and_pieces_of_equal_texts_equal_the_plain_twin(words):
    """More texts than stand side by side, of more words than are laid out at a time."""
    rng = np.random.default_rng(words)
    messages = [rng.bytes(8 * words + i % 8) for i in range(150 if words < 40 else 70)]
    offsets = np.cumsum([0, *(len(message) for message in messages)]).astype(np.int32)
    data = np.frombuffer(b"".join(messages), np.uint8)
    found = siphash_many(data, offsets, np.uint64(3), np.uint64(5))
    wanted = [sip128(message, 3, 5) for message in messages]
    np.testing.assert_array_equal(found, np.array(wanted, np.uint64))
    room = np.zeros(len(messages), np.uint64)
    halves = siphash_many(data, offsets, np.uint64(3), np.uint64(5), halves=1, into=room)
    np.testing.assert_array_equal(halves[:, 0], found[:, 0])
    np.testing.assert_array_equal(room, found[:, 0])


STORED = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
]


@given(st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=80), st.integers(0, 5))
def test_text_has_one_name_whatever_its_storage_and_place(values, start):
    values = [None if value is None else value.encode() for value in values]
    for kind in STORED:
        column = pa.array([b"before"] * start + values, pa.binary()).cast(kind).slice(start)
        wanted = [
            None if value is None else sip128(value, *map(int, secret_words(KEY, b"text0")))
            for value in values
        ]
        names, first = name_column(column, KEY), first_words(column, KEY)
        room = name_column(column, KEY, into=np.zeros(2 * len(values), np.uint64))
        np.testing.assert_array_equal(room, names)
        np.testing.assert_array_equal(first, names[:, 0])
        for name, expected in zip(names.tolist(), wanted, strict=True):
            assert expected is None or name == list(expected)


def test_a_nan_that_signals_is_named_in_silence():
    """NumPy warned of it, once in a process: a line that one row wrote."""
    nans = np.array([0x7FF0000000000001, 0xFFF8 << 48], np.uint64).view(np.float64)
    assert len({*hashing.as_integers(pa.array(nans)).tolist()}) == 1
