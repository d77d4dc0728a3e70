"""One key, many containers, one word."""

import numpy as np
import pyarrow as pa
import pytest

from streamveil.mechanisms.sketches.keys import (
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
    with pytest.raises(TypeError, match=str(bad.type).split("<")[0]):
        key_words(bad)


def test_text_prefixes_sort_and_return():
    texts = ["", "a", "ab", "b", "zebra"]
    words = text_words(texts)
    assert (np.diff(words.astype(object)) > 0).all()
    assert words_text(words) == texts
    assert words_text(text_words(["streaming"], 8), 8) == ["streamin"]
    assert words_text(text_words(["abc"], 2), 2) == ["ab"]


def test_integer_words_check_the_range():
    assert integer_words(np.array([3], np.int64), 2).tolist() == [3]
    for bad in ([4], [-1]):
        with pytest.raises(ValueError, match="2\\^2"):
            integer_words(bad, 2)
    with pytest.raises(TypeError, match="text_words"):
        integer_words(["a"], 8)
