"""Frequent texts of any length: found as they are, charged for all that they touch."""

import numpy as np
import pyarrow as pa
import pytest

from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.errors import PlanError
from streamveil.sketches import HeavyTexts
from streamveil.sketches.heavy_texts import GOLDEN, extended
from streamveil.sketches.keys import cut_texts

BUDGET = Budget(epsilon=2, delta=1e-8)
LENGTHS = (0, 1, 2, 3, 7, 8, 9, 21, 64, 119, 199, 200, 230)
NONE = np.zeros(0, np.int32)  # weights: all one
ALPHABETS = ("abc/._-", "é", "日x", "\0a", "😀")


def finder(length=200, **fields):
    usual = {"length": length, "width": 1500, "horizon": 3, "budget": BUDGET,
             "protects": Neighbours(relation="event")}  # fmt: skip
    return HeavyTexts(**(usual | fields))


def text_of(size, letters, rng):
    """A text of so many bytes in UTF-8, or a few less."""
    made = "".join(rng.choice(list(letters), size))
    return made.encode()[:size].decode(errors="ignore")


def cut(text, length):
    return text.encode()[:length].decode(errors="ignore")


@pytest.mark.parametrize("length", [200, 30, 2, 1])
def test_planted_texts_of_any_length_are_found_among_many_others(length):
    rng = np.random.default_rng(length)
    planted = {
        text_of(size, ALPHABETS[i % 5], rng): 1500 + 90 * i for i, size in enumerate(LENGTHS)
    }
    others = [f"/user/{rng.integers(10**9)}{'y' * int(rng.integers(0, 60))}" for _ in range(9_000)]
    truth = {}
    for text, count in [*planted.items(), *((text, 1) for text in others)]:
        truth[cut(text, length)] = truth.get(cut(text, length), 0) + count
    config = finder(length)
    assert config.guarantee.epsilon(1e-8) <= 2
    live = config.open(SeededNoise(length))
    live.tick([text for text, count in planted.items() for _ in range(count)] + others)
    found = live.published().top(30)
    estimates = dict(zip(found.keys.tolist(), found.estimates.tolist(), strict=True))
    large = {text: count for text, count in truth.items() if count > 1000}
    assert set(estimates) >= set(large)
    for text, count in large.items():
        assert abs(estimates[text] - count) < 6 * found.sd + 0.02 * count
    unknown = set(estimates) - set(truth)  # what nobody sent, by chance
    assert len(unknown) <= 1


def cells_of(config, text):
    """What one text adds to every table."""
    tables = [np.zeros((one.depth, one.width), np.int64) for one in config.layouts]
    for number, words, weights in config.counted(config.items(pa.array([text])), NONE):
        each = weights if len(weights) else np.ones(len(words), np.int64)
        for row, column in enumerate(config.layouts[number].columns(words)):
            np.add.at(tables[number][row], column, each)
    return tables


@pytest.mark.parametrize("relation", ["event", "event-change"])
def test_a_text_moves_no_more_than_is_charged_and_a_long_one_as_much(relation):
    config = finder(12, width=400, protects=Neighbours(relation=relation), horizon=1)
    rng, worst = np.random.default_rng(0), 0
    texts = [text_of(size, letters, rng) for size in range(16) for letters in ALPHABETS] * 3
    for one, other in zip(texts, texts[3:] + texts[:3], strict=True):
        moved = cells_of(config, one)
        if relation == "event-change":
            moved = [b - a for a, b in zip(moved, cells_of(config, other), strict=True)]
        moved = sum(int((table**2).sum()) for table in moved)
        worst = max(worst, moved)
        assert moved <= config.noise.change
    assert worst == config.noise.change


def test_levels_count_the_texts_that_reach_them_and_the_last_one_all():
    config, rng = finder(9), np.random.default_rng(1)
    texts = [text_of(int(size), "ab", rng) for size in rng.integers(0, 14, 400)]
    counted = list(config.counted(config.items(pa.array(texts)), NONE))
    assert [one.number for one in counted] == list(range(9))
    for one in counted[1:-1]:
        heads = [text[: one.number + 2] for text in texts if len(text) >= one.number + 2]
        assert len(one.words) == len(heads)
        assert len(set(one.words.tolist())) == len(set(heads))
    assert len(counted[-1].words) == len(texts)
    assert set(counted[-1].weights.tolist()) == {config.weight}


def test_hashes_tell_texts_apart_that_differ_in_zeros_or_length():
    def hashed(text):
        found = np.array([GOLDEN])
        for byte in text:
            found = extended(found, np.array([byte], np.uint8))
        return int(found[0])

    texts = [b"", b"\0", b"\0\0", b"a", b"a\0", b"\0a", b"aa"]
    assert len({hashed(text) for text in texts}) == len(texts)


@pytest.mark.parametrize("length", range(1, 9))
def test_texts_are_cut_between_characters(length):
    texts = ["", "a", "aé", "日本語", "😀😀", "x😀", "abcdefghi"]
    column = pa.array(["before", *texts, "after"]).slice(1, len(texts))
    assert [text.decode() for text in cut_texts(column, length).to_pylist()] == [
        cut(text, length) for text in texts
    ]


def test_a_long_text_is_estimated_as_it_is_counted():
    live = finder(8, horizon=1).open(SilentNoise())
    live.tick(["a long text"] * 50)
    assert live.published().estimate(["a long text"]).tolist() == [50]


def test_nothing_is_found_where_nothing_came_and_nothing_of_a_text_is_kept():
    live = finder(40, horizon=1).open(SeededNoise(3))
    assert len(live.published().top(20).keys) == 0
    live.tick()
    assert len(live.published().top(20).keys) == 0
    live = finder(40, horizon=1).open(SilentNoise())
    live.tick(["a secret text of one person"] * 3)
    saved = b"".join(np.ascontiguousarray(one).tobytes() for one in live.save().values())
    assert b"secret" not in saved


def test_it_goes_on_with_the_same_noise():
    config = finder(20)
    whole, part = config.open(SeededNoise(1)), config.open(SeededNoise(1))
    for tick in range(3):
        rows = [f"/page/{tick}", "/a/long/path"] * 2_000
        whole.tick(rows)
        part.tick(rows)
        part = config.resume(part.save(), SeededNoise(1))
    ours, theirs = whole.published().top(5), part.published().top(5)
    assert ours.keys.tolist() == theirs.keys.tolist()
    assert "/a/long/path" in ours.keys.tolist()
    assert (ours.estimates == theirs.estimates).all()


def test_estimates_hardly_depend_on_the_length():
    short, long = (finder(length, horizon=24) for length in (16, 256))
    assert long.noise.sigma / long.weight < 1.2 * short.noise.sigma / short.weight
    assert finder(256).noise.change < 1.5 * sum(one.depth for one in finder(256).layouts[:-1])


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"length": 0}, "length must be from 1 to 1024"), ({"length": 1025}, "not 1025"),
     ({"width": 0}, "width"), ({"depth": 0}, "depth"), ({"max_weight": 0}, "max_weight")],
)  # fmt: skip
def test_bad_settings_are_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        finder(**{"length": 20, **fields})


def test_bad_questions_and_keys_are_refused():
    live = finder(20).open(SilentNoise())
    for wrong in ([3, 4], ["a", None], pa.array(["a", None]), "ab", 7, ["a\ud800"]):
        with pytest.raises(PlanError, match=r"text|nulls"):
            live.tick(wrong)
    live.tick()
    assert live.published().levels[-1].total == 0
    with pytest.raises(ValueError, match="beam"):
        live.published().top(10, beam=5)
