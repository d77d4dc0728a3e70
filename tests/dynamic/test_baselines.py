"""Counters and baselines: exact in silence, sensitivities by brute force, budgets, coverage."""

import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose

from benchmarks.papers.snapshots import SnapshotDelta, TriggeredSnapshots
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.dynamic import Changes, InsertionOnly, LiveTable
from streamveil.dynamic.baselines import Rerun, TwoStream
from streamveil.dynamic.continual_mwem import ContinualMwem
from streamveil.dynamic.pack import pack
from streamveil.dynamic.signed_counter import (
    SignedCounter,
    TreeCounter,
    exact_sum,
    root_coefficients,
    root_sensitivity,
)
from streamveil.errors import HorizonError
from streamveil.linear import Marginals, Mwem, Place, Residuals, Share, noisy_queries
from streamveil.linear.strategies import Direct, Points
from tests.dynamic.streams import Plain, arrays, random_stream
from tests.statistics import DETECTABLE, assert_fits, assert_rejects, gaussian

CELLS = Marginals((2, 3), ((0, 1), (1,)))
PURE, ZCDP = Share("pure", Fraction(1)), Share("zcdp", Fraction(1, 40))
NOISY = noisy_queries(CELLS)


def exact_mechanisms():
    yield TwoStream(static=NOISY, share=PURE, horizon=100)
    yield TwoStream(static=NOISY, share=ZCDP, horizon=None)
    yield Rerun(static=NOISY, share=PURE, steps=100)
    yield Rerun(static=NOISY, share=PURE, retention=5)
    yield SignedCounter(strategy=Residuals(CELLS), share=ZCDP, horizon=100)
    yield SignedCounter(strategy=Points(CELLS), share=ZCDP, horizon=100)
    yield TreeCounter(strategy=Residuals(CELLS), share=PURE, horizon=100)
    yield TreeCounter(strategy=Direct(CELLS), share=ZCDP, horizon=None)


@pytest.mark.parametrize("mechanism", list(exact_mechanisms()), ids=lambda m: type(m).__name__)
def test_without_noise_it_is_the_table(mechanism):
    table = LiveTable.open(mechanism, SilentNoise(), "t")
    plain = Plain()
    for updates in random_stream(3, 100, 6):
        for sign, rid, label in updates:
            (plain.insert if sign > 0 else plain.delete)(rid, label, ids=True)
        table.change(*arrays(updates))
        table.tick()
        exact = CELLS.exact(plain.histogram(6))
        rounding = 1e-9
        if isinstance(mechanism, SignedCounter):  # silence still rounds encoder outputs
            rounding = 0.5 * mechanism.strategy.rows * math.sqrt(100)
        assert_allclose(table.answers().values, exact, atol=rounding)
    kept_for_ever = getattr(mechanism, "retention", None) or mechanism.guarantee.horizon is None
    if not kept_for_ever:
        with pytest.raises(HorizonError):
            table.tick()


@pytest.mark.parametrize("mechanism", list(exact_mechanisms()), ids=lambda m: type(m).__name__)
def test_answers_hold_no_data_and_asking_changes_nothing(mechanism):
    table = LiveTable.open(mechanism, SeededNoise(1), "t")
    for updates in random_stream(2, 9, 6):
        table.change(*arrays(updates))
        table.tick()
    before = pack([table.state])
    answers = table.answers()
    assert all(not np.shares_memory(answers.values, part) for part in before.values())
    assert answers.values.dtype == np.float64
    assert answers.synthetic is None or answers.synthetic.dtype == np.float64
    answers.values[:] = -1
    table.error_bound()
    after = pack([table.state])
    assert all((before[name] == after[name]).all() for name in before)
    assert "labels" not in repr(answers)


@pytest.mark.parametrize("mechanism", list(exact_mechanisms()), ids=lambda m: type(m).__name__)
def test_the_guarantee_is_the_share(mechanism):
    loss = mechanism.guarantee.loss
    spent = float(loss.pure_total) if mechanism.share.kind == "pure" else loss.rho()
    assert float(mechanism.share.amount) * 0.999 < spent <= float(mechanism.share.amount) * 1.0001


@pytest.mark.parametrize("steps", [1, 2, 3, 17, 64])
def test_the_root_sensitivity_is_the_worst_pair_of_columns(steps):
    c = root_coefficients(steps)
    encoder = np.array([[c[i - j] if i >= j else 0 for j in range(steps)] for i in range(steps)])
    running = np.tril(np.ones((steps, steps)))
    assert_allclose(encoder @ encoder, running, atol=1e-9)
    columns = encoder.T
    alone = max(np.linalg.norm(column) for column in columns)
    pairs = max(
        [alone, *(np.linalg.norm(a - b) for i, a in enumerate(columns) for b in columns[:i])]
    )
    assert_allclose(root_sensitivity(steps, paired=False), alone, rtol=1e-8)
    assert_allclose(root_sensitivity(steps, paired=True), pairs, rtol=1e-7)
    assert root_sensitivity(steps, paired=True) >= pairs


@pytest.mark.parametrize(
    "mechanism",
    [
        SignedCounter(strategy=Direct(CELLS), share=Share("zcdp", 6), horizon=3),
        TreeCounter(strategy=Direct(CELLS), share=Share("pure", 8), horizon=3),
    ],
)
def test_deviations_contain_the_rounding_where_noise_is_small(mechanism):
    errors = []
    for seed in range(4000):
        here = Place(SeededNoise(1), "c", (seed,))
        state = mechanism.init(here)
        for _ in range(3):
            mechanism.step(state, Changes(), here)
        errors.append(mechanism.answers(state).values)
    assert_allclose(np.std(errors, axis=0).max(), mechanism.deviations(state).max(), rtol=0.06)


@pytest.mark.parametrize("size", [10, 10**6, 10**9])
def test_the_centres_of_neighbours_are_apart_by_a_column_exactly(size):
    """In floating point they are not: at 10^9 changes a step, by 1.4e-6 of the sensitivity."""
    c = root_coefficients(40)
    changes = np.random.default_rng(size).integers(-size, size, (40, 3))
    more = changes.copy()
    more[0] += 1
    for t in (1, 2, 17, 40):
        whole, rest = exact_sum(c[:t][::-1], changes[:t])
        other, others = exact_sum(c[:t][::-1], more[:t])
        for row in range(3):
            pairs = zip(c[:t][::-1], changes[:t, row], strict=True)
            exact = sum(Fraction(a) * int(b) for a, b in pairs)
            assert int(whole[row]) + Fraction(rest[row]) == exact
            moved = int(other[row]) - int(whole[row]) + Fraction(others[row]) - Fraction(rest[row])
            assert moved == Fraction(c[t - 1])


def test_the_counter_has_the_noise_it_declares_in_every_answer():
    mechanism = SignedCounter(strategy=Residuals(CELLS), share=ZCDP, horizon=3)
    errors = []
    for seed in range(5000):
        state = mechanism.init(Place(SeededNoise(0), "c", (seed,)))
        for _ in range(3):
            mechanism.step(state, Changes(), Place(SeededNoise(0), "c", (seed,)))
        errors.append(mechanism.answers(state).values)
    deviations = np.std(errors, axis=0)
    assert_allclose(deviations.max(), mechanism.deviation(3), rtol=0.05)
    worst = int(np.argmax(deviations))
    column = np.array(errors)[:, worst]
    assert_fits(column, gaussian(mechanism.deviation(3)))
    assert_rejects(column, gaussian(DETECTABLE * mechanism.deviation(3)))


@pytest.mark.parametrize(
    "mechanism",
    [
        SignedCounter(strategy=Residuals(CELLS), share=ZCDP, horizon=20),
        TreeCounter(strategy=Direct(CELLS), share=PURE, horizon=20),
        TwoStream(static=NOISY, share=PURE, horizon=20),
        SnapshotDelta(static=NOISY, share=PURE, horizon=20, every=6),
        Rerun(static=NOISY, share=ZCDP, steps=20),
        TriggeredSnapshots(static=NOISY, share=ZCDP, most=3),
        InsertionOnly.dense(NOISY, PURE),
        InsertionOnly.dense(NOISY, PURE, horizon=20),
    ],
    ids=lambda m: type(m).__name__,
)
def test_bounds_cover_and_are_not_idle(mechanism):
    missed, worst = 0, 0.0
    grows = isinstance(mechanism, InsertionOnly)
    for seed in range(100):
        place = Place(SeededNoise(seed), "b")
        state = mechanism.init(place)
        labels = np.random.default_rng(seed).integers(0, 6, (20, 5))
        for t in range(20):
            gone = labels[t - 1][:3] if t and not grows else np.zeros(0, np.int64)
            birth = np.full(len(gone), t)
            mechanism.step(state, Changes(labels[t], gone, birth, 8), place)
        there = labels if grows else np.concatenate([labels[:-1, 3:].ravel(), labels[-1]])
        exact = CELLS.exact(np.bincount(np.ravel(there), minlength=6).astype(np.int64))
        error = np.abs(mechanism.answers(state).values - exact).max()
        bound = mechanism.bound(state, 0.05)
        missed += error > bound
        worst = max(worst, error / bound)
    assert missed <= 15
    assert worst > 0.4


def test_continual_mwem_follows_a_table_that_turns_over():
    queries = Marginals.ways((2,) * 6, 2)
    mechanism = ContinualMwem(
        queries=queries, share=Share("zcdp", 1), horizon=60, rounds=4, step_size=2.0
    )
    place = Place(SeededNoise(0), "c")
    state = mechanism.init(place)
    rng = np.random.default_rng(0)
    old, births = np.zeros(0, np.int64), np.zeros(0, np.int64)
    errors = []
    for t in range(1, 61):
        low = 0 if t < 30 else 48
        fresh = rng.integers(low, low + 16, 4000)
        mechanism.step(state, Changes(fresh, old, births, 8000), place)
        old, births = fresh, np.full(4000, t)
        exact = queries.exact(np.bincount(fresh, minlength=64).astype(np.int64))
        errors.append(np.abs(mechanism.answers(state).values - exact).max() / 4000)
    assert np.mean(errors[20:29]) < 0.05
    assert errors[29] > 0.15
    assert np.mean(errors[-5:]) < 0.05
    assert mechanism.guarantee.loss.rho() <= 1.000001
    assert mechanism.bound(state, 0.05) >= 4000


def test_insertion_only_in_silence_with_and_without_partition():
    for mechanism in (
        InsertionOnly.dense(NOISY, PURE),
        InsertionOnly.dense(NOISY, PURE, horizon=200),
        InsertionOnly.sparse(NOISY, Share("pure", 40)),
    ):
        place = Place(SilentNoise(), "i")
        state = mechanism.init(place)
        total, closed = np.zeros(6, np.int64), np.zeros(6, np.int64)
        steps = 0
        for t in range(200):
            labels = np.arange(t % 4) % 6
            np.add.at(total, labels, 1)
            mechanism.step(state, Changes(born=labels, updates=len(labels)), place)
            if state.steps > steps:
                steps, closed = state.steps, total.copy()
            assert_allclose(mechanism.answers(state).values, CELLS.exact(closed), atol=1e-9)
        assert steps > 20
        with pytest.raises(ValueError, match="only grows"):
            mechanism.step(state, Changes(gone=np.zeros(1, np.int64)), place)
    assert InsertionOnly.sparse(NOISY, PURE).guarantee.epsilon(0) == pytest.approx(1)
    assert InsertionOnly.dense(Mwem(queries=CELLS), PURE).bound(
        InsertionOnly.dense(Mwem(queries=CELLS), PURE).init(Place(SilentNoise(), "i")), 0.1
    ) == float("inf")


def test_settings_without_a_bound_are_refused():
    with pytest.raises(ValueError, match="retention"):
        Rerun(static=NOISY, share=PURE)
    with pytest.raises(ValueError, match="TreeCounter"):
        SignedCounter(strategy=Points(CELLS), share=PURE, horizon=9)
    with pytest.raises(ValueError, match="TreeCounter"):
        SignedCounter(strategy=Points(CELLS), share=ZCDP, horizon=10**6)


@pytest.mark.parametrize("counter", [
    SignedCounter(strategy=Direct(CELLS), share=ZCDP, horizon=8, only_grows=True),
    TreeCounter(strategy=Direct(CELLS), share=PURE, horizon=8, only_grows=True),
])  # fmt: skip
def test_noise_for_insertions_alone_is_no_noise_for_deletions(counter):
    """By ids such a table would promise a record with its deletion, at half the noise."""
    table = LiveTable.open(counter, SilentNoise(), "t")
    table.insert(3, 7)
    table.tick()
    table.delete(7)
    with pytest.raises(ValueError, match="only grows"):
        table.tick()
