"""Lazy and punctual sketches: exact without noise, equal to the slow twin with it."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.plain_sketches import LinearSketch, PunctualSketch
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.noise import KeyedNoise, SeededNoise, SilentNoise
from streamveil.errors import HorizonError, PlanError, StoreError
from streamveil.sketches import LazySketch
from tests.sketches.twin import Twin, columns_of, push_times

COUNTERS = ["blt-1", "blt-2", "tree", "tree-prf"]
BUDGET = Budget(epsilon=1, delta=1e-6)


def lazy(**fields):
    usual = dict(kind="count-min", width=10, horizon=100, protects=Neighbours(relation="event"),
                 budget=BUDGET)  # fmt: skip
    return LazySketch(**(usual | fields))


def exact_at(config, keys, time):
    """The exact table of the first `time` keys."""
    sketch = LinearSketch(config.layout)
    sketch.update(np.asarray(keys[:time], np.uint32))
    return sketch.table


@settings(deadline=None, max_examples=30)
@given(
    kind=st.sampled_from(["count-min", "count-sketch"]), depth=st.integers(1, 4),
    width=st.integers(1, 12), length=st.integers(1, 40), block=st.integers(1, 12),
    counter=st.sampled_from(COUNTERS), seed=st.integers(0, 9), cut=st.integers(0, 60),
)  # fmt: skip
def test_without_noise_every_column_is_exact_as_of_its_last_push(
    kind, depth, width, length, block, counter, seed, cut
):
    config = lazy(kind=kind, depth=depth, width=width, round=length, block=min(block, width),
                  counter=counter, seed=seed)  # fmt: skip
    keys = np.random.default_rng(seed).integers(0, 20, 60).astype(np.uint32)
    live = config.open(SilentNoise())
    live.update(keys[:cut])
    live.update(keys[cut:])
    shown = live.published()
    last = dict.fromkeys(range(width), 0)
    for time, number in push_times(config.schedule, 60):
        for column in columns_of(config.schedule, number):
            last[column] = time
    for column, time in last.items():
        assert shown.pushed_at[column] == time
        assert (shown.table[:, column] == exact_at(config, keys, time)[:, column]).all()


@settings(deadline=None, max_examples=25)
@given(
    width=st.integers(1, 9), length=st.integers(1, 12), block=st.integers(1, 9),
    counter=st.sampled_from(COUNTERS), ticks=st.lists(st.integers(0, 5), max_size=20),
)  # fmt: skip
def test_without_noise_ticks_are_exact_too(width, length, block, counter, ticks):
    config = lazy(width=width, clock="ticks", round=length, block=min(block, width),
                  counter=counter)  # fmt: skip
    live, rng = config.open(SilentNoise()), np.random.default_rng(1)
    history = [np.zeros((3, width), int)]
    seen = []
    for items in ticks:
        keys = rng.integers(0, 30, items).astype(np.uint32)
        live.tick(keys)
        seen += keys.tolist()
        history.append(exact_at(config, seen, len(seen)))
    shown = live.published()
    assert shown.time == len(ticks)
    for column in range(width):
        expected = history[int(shown.pushed_at[column])][:, column]
        assert (shown.table[:, column] == expected).all()


@pytest.mark.parametrize("counter", COUNTERS)
def test_after_a_flush_schedules_do_not_matter_without_noise(counter):
    keys = np.random.default_rng(0).integers(0, 50, 77).astype(np.uint32)
    tables = []
    for length, block in ((1, 10), (7, 3), (50, 1), (100, 10)):
        live = lazy(round=length, block=block, counter=counter, flushes=2).open(SilentNoise())
        live.update(keys[:40])
        live.flush()
        live.update(keys[40:])
        live.flush()
        tables.append(live.published().table)
        assert live.published().lag == 0
        with pytest.raises(HorizonError):
            live.flush()
    assert all((table == tables[0]).all() for table in tables)
    assert (tables[0] == exact_at(lazy(), keys, 77)).all()


CASES = [
    dict(round=7, block=10), dict(round=9, block=3), dict(round=3, block=1),
    dict(round=20, block=10, width=700, depth=4),  # several pieces
    dict(kind="count-sketch", round=5, block=4, depth=2),
    dict(horizon=None, round=4, block=10), dict(horizon=None, round=2, block=5),
]  # fmt: skip


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_with_noise_it_equals_the_slow_twin(counter, case):
    config = lazy(counter=counter, **case)
    keys = np.random.default_rng(3).integers(0, 40, 90).astype(np.uint32)
    noise = SeededNoise(5)
    live, twin = config.open(noise), Twin(config, noise)
    for start in range(0, 90, 17):
        live.update(keys[start : start + 17])
        twin.arrive(keys[start : start + 17])
        assert (live.published().table == twin.shown).all()
    assert live.published().pushed_at.max() > 0


def test_kept_and_recomputed_tree_noise_are_the_same():
    keys = np.arange(100, dtype=np.uint32) % 7
    tables = []
    for counter in ("tree", "tree-prf"):
        live = lazy(counter=counter, round=5, block=4).open(SeededNoise(2))
        live.update(keys)
        tables.append(live.published().table)
    assert (tables[0] == tables[1]).all()


def test_punctual_pushes_everything_at_every_arrival():
    config = PunctualSketch(kind="count-min", width=8, horizon=30,
                            protects=Neighbours(relation="event"), budget=BUDGET)  # fmt: skip
    live = config.open(SilentNoise())
    for t in range(1, 31):
        live.update([t % 3])
        assert live.published().lag == 0
        assert (live.published().table.sum(axis=1) == t).all()


@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("clock", ["arrivals", "ticks"])
def test_save_and_resume_anywhere_changes_nothing(counter, clock):
    config = lazy(counter=counter, clock=clock, round=4, block=5)
    keys = np.random.default_rng(1).integers(0, 30, 60).astype(np.uint32)
    noise = SeededNoise(8)

    def feed(live, part):
        for key in part:
            live.tick([int(key)]) if clock == "ticks" else live.update([int(key)])

    whole = config.open(noise)
    feed(whole, keys)
    for cut in (0, 1, 13, 40, 60):
        first = config.open(noise)
        feed(first, keys[:cut])
        second = config.resume(first.save(), noise)
        feed(second, keys[cut:])
        assert (second.published().table == whole.published().table).all()
        assert all((a == b).all() for a, b in zip(
            second.save().values(), whole.save().values(), strict=True))  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [{"width": 11}, {"seed": 1}, {"kind": "count-sketch"}, {"round": 5}, {"horizon": 10**6},
     {"budget": Budget(epsilon=0.1, delta=1e-6)}, {"max_weight": 2}],
)  # fmt: skip
def test_a_saved_state_of_other_settings_is_refused(other):
    """Other hashes read other cells, and another budget was stated for the noise that was drawn."""
    saved = lazy().open(SilentNoise()).save()
    lazy().resume(saved, SilentNoise())
    with pytest.raises(StoreError, match="other settings"):
        lazy(**other).resume(saved, SilentNoise())


@pytest.mark.parametrize("clock", ["arrivals", "ticks"])
def test_the_horizon_is_kept(clock):
    live = lazy(clock=clock, horizon=10, round=3).open(SilentNoise())
    keys = np.zeros(10, np.uint32)
    if clock == "arrivals":
        live.update(keys)
        with pytest.raises(HorizonError):
            live.update(keys[:1])
    else:
        live.tick(keys, ticks=10)
        with pytest.raises(HorizonError):
            live.tick()
    assert (live.published().table.sum(axis=1) == 10).sum() == 0 or clock == "ticks"


def test_weights_count_and_blanks_only_take_time():
    live = lazy(max_weight=5, round=6, block=10).open(SilentNoise())
    live.update([1, 2, 3, 1, 1, 9], np.array([5, 1, 0, 2, 0, 0]))
    shown = live.published()
    assert shown.time == 6
    assert (shown.table.sum(axis=1) == 8).all()
    assert shown.estimate([1], "min")[0] >= 7


@pytest.mark.filterwarnings("ignore:delta")
def test_types_are_as_narrow_as_public_bounds_allow():
    assert lazy(horizon=2**20, round=2**13, width=800).nbytes == 3 * 800 * 10
    assert lazy(horizon=2**20, round=2**13, counter="tree-prf").table.cell_bytes == 6
    assert lazy(horizon=2**20, round=2**15).table.cell_bytes == 12
    assert lazy(clock="ticks").table.cell_bytes == 20
    assert lazy(horizon=2**31, round=2**12).table.cell_bytes == 20


def test_pending_counts_cannot_overflow():
    config = lazy(horizon=2**17, round=2**15 - 1, width=4)
    live = config.open(SilentNoise())
    live.update(np.zeros(2**16, np.uint32))
    assert live.published().estimate([0], "min")[0] == 2 * (2**15 - 1)


def test_the_default_key_is_fresh_every_time():
    config = lazy(round=5)
    shown = []
    for _ in range(2):
        live = config.open()
        live.update(np.zeros(50, np.uint32))
        shown.append(live.published().table)
    assert (shown[0] != shown[1]).any()
    assert KeyedNoise.fresh().secret != KeyedNoise.fresh().secret


def test_states_and_sketches_never_show_data():
    live = lazy().open(SilentNoise())
    live.update([123456] * 30)
    assert "123456" not in repr(live)
    assert repr(live) == "LiveSketch(time=30)"


BAD = [
    (dict(kind="count-med"), "did you mean"), (dict(width=0), "width"), (dict(depth=65), "depth"),
    (dict(width=2.5), "width"), (dict(round=0), "round"), (dict(block=11), "block"),
    (dict(horizon=0), "horizon"), (dict(flushes=-1), "flushes"), (dict(max_weight=0), "max_weight"),
    (dict(counter="btl-1"), "did you mean"), (dict(clock="tick"), "did you mean"),
    (dict(horizon=None), "round length"), (dict(calibration="textbook"), "below 1"),
    (dict(calibration="text-book"), "did you mean"),
    (dict(protects=Neighbours(relation="record")), "protects one of"),
    (dict(protects=None), "protects"), (dict(budget=None), "budget"), (dict(clock=[]), "clock"),
    (dict(budget=Budget(epsilon=1)), "delta"), (dict(budget=Budget(rho=1)), "epsilon and delta"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "words"), BAD, ids=str)
def test_bad_settings_are_refused_with_a_reason(fields, words):
    with pytest.raises(ValueError, match=words):
        lazy(**fields)


@pytest.mark.parametrize(
    "fields",
    [dict(epsilon=0), dict(epsilon=-1), dict(epsilon=1, delta=0), dict(epsilon=1, delta=1.5),
     dict(epsilon=float("nan"))],
)  # fmt: skip
def test_bad_budgets_are_refused(fields):
    with pytest.raises(ValueError, match=r"epsilon|delta"):
        lazy(budget=Budget(**fields))


def test_a_large_delta_is_warned_about():
    with pytest.warns(UserWarning, match="publishes a record outright"):
        lazy(budget=Budget(epsilon=1, delta=0.02))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lazy()


BAD_INPUT = [
    ([1.5], None), ([[1]], None), ([None], None), (["a", 1], None), (7, None),
    (np.array([0.5]), None), (np.array([np.nan]), None), (np.zeros((2, 2), int), None),
    ([2**70], None), ([True], None), ("text", None), ([1], [-1]), ([1], [2]), ([1], [np.nan]),
    ([1], [1, 1]), ([1], [0.5]),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "weights"), BAD_INPUT, ids=str)
def test_bad_keys_and_weights_are_refused_and_change_nothing(keys, weights):
    live = lazy(round=1).open(SilentNoise())
    with pytest.raises(PlanError, match=r"key|weight"):
        live.update(keys, weights)
    assert live.published().time == 0
    assert live.published().table.sum() == 0


def test_time_runs_forward_only_and_by_the_right_clock():
    with pytest.raises(ValueError, match="backwards"):
        lazy(clock="ticks").open(SilentNoise()).tick(ticks=-1)
    with pytest.raises(ValueError, match="by itself"):
        lazy().open(SilentNoise()).tick()


@pytest.mark.parametrize("ticks", [-1, 1.5, None, 10**6])
def test_keys_of_a_tick_that_is_refused_do_not_count(ticks):
    """They did, and counted twice where the tick was made again: twice what is charged."""
    live = lazy(clock="ticks", round=1).open(SilentNoise())
    with pytest.raises((PlanError, HorizonError), match=r"ticks|horizon"):
        live.tick([7], ticks=ticks)
    live.tick()
    assert live.published().table.sum() == 0


def test_the_noise_is_what_the_budget_asks_for():
    config = lazy(kind="count-sketch", protects=Neighbours(relation="event-change"))
    assert config.noise.change == 12
    assert config.guarantee.epsilon(1e-6) <= 1
    assert config.guarantee.epsilon(1e-6) > 0.999


def test_an_epsilon_beyond_all_floats_is_refused_in_words():
    with pytest.raises(ValueError, match="a smaller epsilon"):
        lazy(budget=Budget(epsilon=900_000, delta=1e-9))


def test_masked_keys_are_refused():
    """They were counted all the same."""
    live = lazy().open(SilentNoise())
    with pytest.raises(PlanError, match="nulls"):
        live.update(np.ma.array([1, 2], mask=[0, 1]))
    live.update(np.ma.array([1, 2], mask=[0, 0]))
