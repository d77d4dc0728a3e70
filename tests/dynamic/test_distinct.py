"""Distinct values: every short series by exhaustion, the plain count, and what is kept."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from streamveil.core.noise import Place, SeededNoise, SilentNoise
from streamveil.core.sensitivity import presence_moves
from streamveil.dynamic.distinct import DistinctCounter
from streamveil.dynamic.pack import pack, unpack
from streamveil.dynamic.protocol import Changes
from streamveil.dynamic.signed_counter import LONGEST, root_coefficients, root_sensitivity
from streamveil.linear import Marginals, Share

ALL = Marginals((1,), ((),))  # one cell: all records
SILENT = Place(SilentNoise(), "test")


def changes_between(counts):
    """What happens in each step to a value that so many records have at its end."""
    net = np.diff(np.concatenate([[0], counts]))
    return [Changes(np.zeros(max(n, 0), np.int64), np.zeros(max(-n, 0), np.int64)) for n in net]


def shown(counts, changes):
    """The series that the code passes on, of one value with so many records."""
    table = DistinctCounter(cells=ALL, share=Share("gdp", 1), horizon=len(counts), changes=changes)
    state = table.init(SILENT)
    for one in changes_between(counts):
        table.step(state, one, SILENT)
    return tuple(np.cumsum(state.inner.exact[: len(counts), 0]).tolist())


def differences(steps, changes):
    """How two shown series of one value may differ: others come and go, and one life is more."""
    series = list(itertools.product((0, 1), repeat=steps))
    passed = {
        counts: shown(counts, changes) for counts in itertools.product((0, 1, 2), repeat=steps)
    }
    for others, (begin, end) in itertools.product(
        series, itertools.combinations(range(steps + 1), 2)
    ):
        more = tuple(n + (begin <= t < end) for t, n in enumerate(others))
        yield np.subtract(passed[more], passed[others])


@pytest.mark.parametrize("changes", [1, 2])
@pytest.mark.parametrize("steps", [2, 4, 6])
def test_no_life_moves_a_counter_further_than_is_charged(steps, changes):
    """All neighbours; all cuts of time into blocks, so trees of every arity; the root counter."""
    found = {tuple(one) for one in differences(steps, changes)}
    c, one_life = root_coefficients(steps), root_sensitivity(steps, paired=True)
    encoder = np.array([[c[t - s] if s <= t else 0 for s in range(steps)] for t in range(steps)])
    cuts = [
        (*some, steps)
        for size in range(steps)
        for some in itertools.combinations(range(1, steps), size)
    ]
    pure = presence_moves(changes, 1, pure=True)
    squared = presence_moves(changes, 1, pure=False)
    most = [0.0, 0.0]
    for one in found:
        level = np.concatenate([[0], one])
        moved = np.diff(level)
        assert set(one) <= {-1, 0, 1}
        assert np.abs(moved).sum() <= 2 * changes
        root = float(((encoder @ moved) ** 2).sum())
        assert root <= squared * one_life**2
        for ends in cuts:
            blocks = np.diff(level[[0, *ends]])
            assert np.abs(blocks).max() <= 2
            most[0] = max(most[0], np.abs(blocks).sum() / 2)  # one life moves a level by 2
            most[1] = max(most[1], float((blocks**2).sum()) / 2)
    assert most[0] <= pure
    assert most[1] <= squared
    if steps == 6:  # what is charged is needed: for Laplace noise all of it
        assert most[0] == pure
        assert most[1] == {1: 1, 2: 3}[changes]


@pytest.mark.parametrize("changes", [1, 2])
def test_any_two_series_of_few_changes_are_within_the_bound(changes):
    """What the proof uses of two series, and no more: each has at most so many changes."""
    steps = 6
    c, one_life = root_coefficients(steps), root_sensitivity(steps, paired=True)
    encoder = np.array([[c[t - s] if s <= t else 0 for s in range(steps)] for t in range(steps)])
    few = [
        np.array(p)
        for p in itertools.product((0, 1), repeat=steps)
        if np.abs(np.diff([0, *p])).sum() <= changes
    ]
    worst = max(float(((encoder @ np.diff([0, *(p - q)])) ** 2).sum()) for p in few for q in few)
    assert worst <= presence_moves(changes, 1, pure=False) * one_life**2


@pytest.mark.parametrize("steps", [3, 100, LONGEST])
def test_the_coefficients_of_the_root_fall_and_are_convex(steps):
    c = root_coefficients(steps)
    assert (np.diff(c) < 0).all()
    assert (np.diff(c, 2) > 0).all()


@pytest.mark.parametrize("share", [Share("pure", 1), Share("zcdp", 1), Share("gdp", 1)])
@pytest.mark.parametrize("horizon", [12, None])
def test_many_changes_make_it_the_plain_count(share, horizon):
    cells = Marginals((2, 3), ((), (0,), (0, 1)))
    table = DistinctCounter(cells=cells, share=share, horizon=horizon, changes=10**6)
    state, rng, there = table.init(SILENT), np.random.default_rng(5), []
    for _ in range(12):
        gone = [there.pop(int(rng.integers(len(there)))) for _ in range(min(len(there), 3))]
        born = (rng.integers(0, 5, 6) * cells.domain + rng.integers(0, 6, 6)).tolist()
        there += born
        table.step(state, Changes(np.array(born, int), np.array(gone, int)), SILENT)
        values, points = np.divmod(np.array(there), cells.domain)
        seen = [set(values), *(set(values[points // 3 == a]) for a in range(2)),
                *(set(values[points == p]) for p in range(6))]  # fmt: skip
        counted = np.bincount(state.keys[state.shown] % cells.size, minlength=cells.size)
        assert_array_equal(counted, [len(some) for some in seen])
        assert np.abs(table.answers(state).values - counted).max() < 4  # encoders are rounded


def test_after_its_changes_a_value_stays_as_it_was_shown():
    assert shown((1, 0, 3, 0, 1, 0), 3) == (1, 0, 1, 1, 1, 1)
    assert shown((1, 0, 3, 0, 1, 0), 1) == (1,) * 6
    assert shown((1, 2, 1, 3, 1, 1), 1) == (1,) * 6


def test_a_step_counts_by_its_end():
    table = DistinctCounter(cells=ALL, share=Share("gdp", 1), horizon=3, changes=1)
    state = table.init(SILENT)
    table.step(state, Changes(np.array([5]), np.array([5])), SILENT)
    assert (len(state.keys), table.answers(state).values) == (0, [0.0])


@pytest.mark.parametrize("kind", ["pure", "zcdp", "gdp"])
@pytest.mark.parametrize("changes", [1, 2, 7])
def test_the_share_is_spent_and_not_exceeded(kind, changes):
    share = Share(kind, Fraction(1, 3))
    cells = Marginals((2, 2), ((), (0,), (1,)))
    for horizon in (50, None):
        loss = DistinctCounter(
            cells=cells, share=share, horizon=horizon, changes=changes
        ).guarantee.loss
        rho = float(loss.gaussian) / 2 + float(loss.zcdp)
        whole = loss.epsilon(0) if kind == "pure" else rho
        assert 0.999999 / 3 < whole <= 1 / 3 * (1 + 1e-12)


def test_a_kept_state_goes_on_with_the_same_answers():
    cells = Marginals((4,), ((), (0,)))
    table = DistinctCounter(cells=cells, share=Share("zcdp", 1), horizon=9, changes=2)
    places, rng = [Place(SeededNoise(1), "test") for _ in range(2)], np.random.default_rng(2)
    states = [table.init(place) for place in places]
    for _ in range(9):
        one = Changes(rng.integers(0, 40, 9), rng.integers(0, 40, 4))
        states[1] = unpack(pack(states[1]), type(states[1]))
        for state, place in zip(states, places, strict=True):
            table.step(state, one, place)
        assert_array_equal(*(table.answers(state).values for state in states))
