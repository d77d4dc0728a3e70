"""Heavy hitters from published tables: right, complete, and unable to see a raw key."""

import inspect
import typing

import numpy as np
import pytest

from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.errors import PlanError, StoreError
from streamveil.sketches import HeavyHitters, PublishedHierarchy, PublishedSketch
from streamveil.sketches import heavy_hitters as module

pytestmark = pytest.mark.filterwarnings("ignore:delta")
LENGTH = 2**17
RANKS = np.arange(1, 20_001)
SHARES = RANKS**-1.2 / (RANKS**-1.2).sum()


def stream(seed, bits=16, length=LENGTH):
    rng = np.random.default_rng(seed)
    names = rng.permutation(2**bits)[: len(RANKS)] if bits <= 20 else rng.integers(
        0, 2**bits, len(RANKS), np.uint64)  # fmt: skip
    return names[rng.choice(len(RANKS), length, p=SHARES)].astype(np.uint64)


def finder(**options):
    usual = dict(bits=16, width=2048, horizon=LENGTH, round=1024, exact_cells=2**8,
                 protects=Neighbours(relation="event-change"),
                 budget=Budget(epsilon=1, delta=1e-6))  # fmt: skip
    return HeavyHitters(**(usual | options))


def true_top(keys, k):
    names, counts = np.unique(keys, return_counts=True)
    order = np.argsort(-counts)[:k]
    return names[order], counts[order]


def test_candidate_code_takes_published_objects_only():
    searches = [PublishedHierarchy.top, module.largest]
    for search in searches:
        first = next(iter(inspect.signature(search).parameters))
        kind = typing.get_type_hints(search).get(first, PublishedHierarchy)
        assert kind in (PublishedHierarchy, PublishedSketch) or search is module.largest
    # published types hold numbers about the table; nothing in them can hold a list of keys
    hints = typing.get_type_hints(PublishedHierarchy)
    assert hints == {"levels": tuple[PublishedSketch, ...], "level_bits": tuple[int, ...]}


@pytest.mark.parametrize(
    "options",
    [dict(), dict(bits=32), dict(bits=30, digit=7), dict(bits=64, digit=8, width=4096),
     dict(counter="tree-prf")],
    ids=str,
)  # fmt: skip
def test_the_largest_keys_are_found(options):
    config = finder(**options)
    keys = stream(1, min(config.bits, 30))
    live = config.open(SeededNoise(3))
    live.update(keys)
    found = live.published().top(20)
    names, _ = true_top(keys, 20)
    assert len(set(found.keys.tolist()) & set(names.tolist())) >= 18
    assert (np.diff(found.estimates) <= 0).all()


def test_everything_well_above_the_threshold_is_found_in_almost_all_runs():
    threshold, missed = 1500.0, 0
    for seed in range(12):
        keys = stream(seed)
        config = finder(seed=seed)
        live = config.open(SeededNoise(seed))
        live.update(keys)
        published = live.published()
        last = published.levels[-1]
        slack = last.error_bound(0.1 / (512 * 256)).below
        names, counts = np.unique(keys, return_counts=True)
        found = set(published.top(200, threshold=threshold).keys.tolist())
        missed += not set(names[counts >= threshold + slack].tolist()) <= found
    assert missed <= 3


def test_an_empty_stream_shows_no_key_beyond_chance():
    live = finder(width=2048, bits=24, depth=4).open(SeededNoise(7))
    live.update(np.zeros(LENGTH, np.uint32), np.zeros(LENGTH, np.int32))
    assert len(live.published().top(20).keys) <= 2


def test_no_key_is_found_before_anything_is_pushed():
    """Keys 0, 1, 2 were, with 0 rows and a deviation of 0."""
    live = finder().open(SeededNoise(1))
    assert len(live.published().top(3).keys) == 0
    live.update(np.full(LENGTH, 7))
    assert live.published().top(3).keys.tolist() == [7]


def test_one_budget_covers_all_levels():
    config = finder(bits=32, exact_cells=2**16)
    assert [layout.family for layout in config.layouts] == ["identity"] * 2 + ["multiply"] * 2
    assert config.noise.change == 2 + 2 + 6 + 6  # 4 + 4 d, replaced item
    assert config.guarantee.epsilon(1e-6) <= 1


def test_levels_do_not_share_noise():
    live = finder(exact_cells=1, width=64, digit=8).open(SeededNoise(1))
    live.update(np.zeros(LENGTH, np.uint32), np.zeros(LENGTH, np.int32))
    first, second = live.published().levels
    assert np.corrcoef(first.table.ravel(), second.table.ravel())[0, 1] < 0.4


def test_save_and_resume_and_ticks():
    config = finder(clock="ticks", horizon=20, round=1)
    keys = stream(4, length=4000)
    whole = config.open(SeededNoise(1))
    part = config.open(SeededNoise(1))
    for tick in range(20):
        whole.tick(keys[200 * tick : 200 * (tick + 1)])
        part.tick(keys[200 * tick : 200 * (tick + 1)])
        part = config.resume(part.save(), SeededNoise(1))
    ours, theirs = whole.published().top(5), part.published().top(5)
    assert (ours.keys == theirs.keys).all()
    assert (ours.estimates == theirs.estimates).all()


def test_flushes_reach_every_level():
    live = finder(flushes=1).open(SilentNoise())
    live.update(stream(1)[:500])
    live.flush()
    assert all(level.lag == 0 for level in live.published().levels)
    assert live.published().levels[0].total == 500


@pytest.mark.parametrize(
    ("options", "words"),
    [(dict(bits=65), "bits .*, not 65"), (dict(digit=0), "digit .*, not 0")],
)  # fmt: skip
def test_bad_settings_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        finder(**options)


def test_bad_keys_and_questions_are_refused():
    live = finder().open(SilentNoise())
    with pytest.raises(ValueError, match="searchable"):
        live.update(["a"])
    with pytest.raises(ValueError, match="2\\^16"):
        live.update([2**16])
    with pytest.raises(ValueError, match="beam"):
        live.published().top(10, beam=5)
    for name, wrong in (("k", 1.5), ("beam", None), ("threshold", np.nan), ("threshold", "9")):
        with pytest.raises(PlanError, match=name):
            live.published().top(**{"k": 3, name: wrong})


def test_a_sketch_that_was_cut_off_counts_no_further(monkeypatch):
    """Keys that were given again counted twice in some tables, for the noise of one."""
    live = finder().open(SilentNoise())
    live.update([7])
    kind, taken = type(live.config.tables[0]), []
    count = kind.count

    def interrupted(*given):
        taken.append(count(*given))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind, "count", interrupted)
        with pytest.raises(KeyboardInterrupt):
            live.update([7])
    assert len(taken) == 1
    for again in (lambda: live.update([7]), live.save, live.flush):
        with pytest.raises(StoreError, match=r"cut off(.|\n)*to fix"):
            again()
    live.published()
