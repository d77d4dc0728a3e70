"""One key, many containers, one word."""

import numpy as np
import pyarrow as pa
import pytest

from streamveil.errors import PlanError
from streamveil.sketches.keys import (
    integer_words,
    key_words,
    text_words,
    words_text,
)

SMALL = [0, 1, 255, 2**31, 2**32 - 1]
LARGE = [2**32, 2**40, 2**63 - 1]


@pytest.mark.parametrize("keys", [SMALL, LARGE, [-1, -(2**63)]])
def test_integers_have_one_word_whatever_holds_them(keys):
    expected = key_words(keys).tolist()
    assert key_words(np.array(keys, np.int64)).tolist() == expected
    assert key_words(pa.array(keys)).tolist() == expected
    assert (
        key_words(pa.chunked_array([pa.array(keys[:1]), pa.array(keys[1:])])).tolist() == expected
    )
    assert key_words(iter(keys)).tolist() == expected
    assert key_words(np.array(keys, object)).tolist() == expected
    assert key_words(pa.array(keys).dictionary_encode()).tolist() == expected
    if min(keys) >= 0:
        assert key_words(np.array(keys, np.uint64)).tolist() == expected
    if keys is SMALL:
        assert key_words(np.array(keys, np.uint32)).tolist() == expected == SMALL
    else:
        assert min(expected) >= 2**32
    assert len(set(expected)) == len(keys)


TEXTS = ["", "a", "b", "ab", "abcdefgh", "abcdefghi", "é", "a\0", "x" * 1000]


def test_texts_have_one_word_whatever_holds_them():
    expected = key_words(TEXTS).tolist()
    raw = [text.encode() for text in TEXTS]
    for holder in (
        raw, pa.array(TEXTS), pa.array(raw), pa.array(TEXTS, pa.large_string()),
        pa.array(TEXTS, pa.string_view()), pa.array(TEXTS).dictionary_encode(),
        pa.chunked_array([TEXTS[:3], TEXTS[3:]]), pa.array(["skip", *TEXTS]).slice(1),
        np.array(TEXTS, object), (text for text in TEXTS),
    ):  # fmt: skip
        assert key_words(holder).tolist() == expected
    assert len(set(expected)) == len(TEXTS)
    assert min(expected) >= 2**32  # never taken for an integer


def test_texts_spread_evenly():
    words = key_words([f"user-{i}" for i in range(20_000)])
    assert len(set(words.tolist())) == 20_000
    bits = (words[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert abs(bits[:, :63].mean(axis=0) - 0.5).max() < 6 * 0.5 / np.sqrt(20_000)


@pytest.mark.parametrize("empty", [[], np.array([]), pa.array([], pa.string()), pa.array([])])
def test_nothing_is_no_key(empty):
    assert len(key_words(empty)) == 0


@pytest.mark.parametrize("bad", [pa.array([1, None]), pa.array(["a", None])])
def test_nulls_are_refused(bad):
    with pytest.raises(ValueError, match="nulls"):
        key_words(bad)


@pytest.mark.parametrize("bad", [pa.array([1.5]), pa.array([[1]]), pa.array([True])])
def test_other_arrow_types_are_refused_by_name(bad):
    with pytest.raises(ValueError, match=str(bad.type).split("<")[0]):
        key_words(bad)


def test_text_prefixes_sort_and_return():
    texts = ["", "a", "ab", "b", "zebra"]
    words = text_words(texts)
    assert (np.diff(words.astype(object)) > 0).all()
    assert words_text(words) == texts
    assert words_text(text_words(["streaming"], 8), 8) == ["streamin"]
    assert words_text(text_words(["abc"], 2), 2) == ["ab"]
    for length in (0, 9, 2.5):
        with pytest.raises(PlanError, match="length"):
            text_words(["abc"], length)
    for missing in (["a", None], pa.array([None, "a"])):
        with pytest.raises(PlanError, match=r"missing|nulls"):
            text_words(missing)


def test_integer_words_check_the_range():
    assert integer_words(np.array([3], np.int64), 2).tolist() == [3]
    for bad in ([4], [-1]):
        with pytest.raises(ValueError, match="2\\^2"):
            integer_words(bad, 2)
    with pytest.raises(ValueError, match="text_words"):
        integer_words(["a"], 8)


def slow_hash(raw):
    """The rule for byte strings, one byte at a time."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    h = (golden + len(raw)) & mask
    for at in range(0, len(raw), 8):
        h = (mix(h ^ int.from_bytes(raw[at : at + 8], "little")) + golden) & mask
    h = mix(h)
    return h if h >= 2**32 else h | 2**63


def test_byte_strings_of_every_length_follow_the_public_rule():
    rng = np.random.default_rng(1)
    rows = [rng.bytes(length) for length in range(40)] + [b"\0" * 9, b"\xff" * 16]
    for part in (rows, rows[::-1], rows[5:6], rows[9:10]):  # ends of the buffer too
        assert key_words(pa.array(part)).tolist() == [slow_hash(raw) for raw in part]
        assert key_words(part).tolist() == [slow_hash(raw) for raw in part]


def test_broken_text_is_refused_without_showing_it():
    texts = ["fine", "secret\ud800"]
    for bad in (texts, [b"x", "secret\ud800"], np.array(texts)):
        with pytest.raises(ValueError, match="valid Unicode") as caught:
            key_words(bad)
        assert "secret" not in str(caught.value)


def test_prefixes_of_texts_end_before_a_character_that_does_not_fit():
    assert words_text(text_words(["grün", "größe", "né"], 3), 3) == ["gr", "gr", "né"]
    assert words_text(text_words(pa.array(["😀x", "aé"]).dictionary_encode(), 2), 2) == [
        "",
        "aé"[:1],
    ]
    assert text_words([b"a\xc3\xa9"], 2).tolist() == [0x61C3], "bytes are no text"
