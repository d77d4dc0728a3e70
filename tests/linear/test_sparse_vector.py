"""The sparse vector technique: its privacy by exact enumeration, its filter, its noise."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.papers.pmw import Sparse
from streamveil.core.noise import Place, SeededNoise, SilentNoise
from streamveil.linear.budget_shares import Share
from streamveil.linear.sparse_vector import AboveThreshold, epoch_share
from tests.statistics import assert_rate, assert_rejects_rate

REACH = 400  # the threshold noise is summed over [-REACH, REACH]: what is cut off is below 1e-17


def at_least(m, epsilon):
    """P(Z >= m) for the discrete Laplace law of scale 1/epsilon."""
    r = np.exp(-epsilon)
    m = np.asarray(m, float)
    return np.where(
        m >= 1, r ** np.maximum(m, 1) / (1 + r), 1 - r ** np.maximum(1 - m, 1) / (1 + r)
    )


def halting_law(mechanism, counts, thresholds):
    """P(halt at each question, or never), by summing over the threshold noise."""
    offsets = np.arange(-REACH, REACH + 1)
    first, second = float(mechanism.epsilon1), float(mechanism.epsilon2) / mechanism.width
    mass = np.tanh(first / 2) * np.exp(-first * np.abs(offsets))
    alive, out = mass, []
    for count, threshold in zip(counts, thresholds, strict=True):
        above = at_least(threshold + offsets - count, second)
        out.append(float((alive * above).sum()))
        alive = alive * (1 - above)
    return np.array([*out, float(alive.sum())])


def worst_ratio(mechanism, pairs, thresholds):
    return max(
        float(
            np.abs(
                np.log(
                    halting_law(mechanism, a, thresholds) / halting_law(mechanism, b, thresholds)
                )
            ).max()
        )
        for a, b in pairs
    )


def general_pairs(n):
    for moves in itertools.product((-1, 0, 1), repeat=n):
        yield np.array([3, 1, 4, 2])[:n], np.array([3, 1, 4, 2])[:n] + np.array(moves)


def cumulative_pairs(n):
    base = np.array([0, 1, 1, 3])[:n]
    for start in range(n):
        yield base, base + (np.arange(n) >= start)


@pytest.mark.parametrize("split", [(0.5, 0.5), (0.3, 0.8), (0.8, 0.3)])
def test_no_general_neighbour_is_told_apart_by_more_than_epsilon(split):
    mechanism = AboveThreshold(epsilon1=split[0], epsilon2=split[1])
    worst = worst_ratio(mechanism, general_pairs(4), [2, 3, 3, 2])
    assert worst <= float(mechanism.epsilon) + 1e-9
    assert worst > 0.45 * float(mechanism.epsilon)  # and the bound is not idle


@pytest.mark.parametrize(
    ("split", "reference"), [((0.5, 0.5), 0.5), ((0.3, 0.8), 0.8), ((0.8, 0.3), 0.8)]
)
def test_cumulative_counts_cost_the_larger_part_only(split, reference):
    mechanism = AboveThreshold(epsilon1=split[0], epsilon2=split[1], assumption="cumulative")
    assert float(mechanism.epsilon) == reference
    worst = worst_ratio(mechanism, cumulative_pairs(4), [2, 3, 3, 2])
    assert worst <= reference + 1e-9
    assert worst > 0.7 * reference


def test_claiming_the_cumulative_cost_for_general_questions_is_caught():
    wrong = AboveThreshold(epsilon1=0.5, epsilon2=0.5, assumption="cumulative")
    assert worst_ratio(wrong, general_pairs(4), [2, 3, 3, 2]) > float(wrong.epsilon) + 0.05


def test_numeric_sparse_costs_its_run_by_enumeration():
    """Transcripts (where it halted, what it said): the measurement adds its own epsilon."""
    sparse = Sparse(share=Share("pure", Fraction(1)), halts=1)
    first, second, third = (float(part) for part in sparse.parts())
    mechanism = AboveThreshold(epsilon1=first, epsilon2=second)
    values = np.arange(-60, 70)
    worst = 0.0
    for one, other in general_pairs(4):
        laws = []
        for counts in (one, other):
            halt = halting_law(mechanism, counts, [2, 3, 3, 2])[:-1]
            said = np.tanh(third / 2) * np.exp(-third * np.abs(values[:, None] - counts[None, :]))
            laws.append(halt[None, :] * said)
        worst = max(worst, float(np.abs(np.log(laws[0] / laws[1])).max()))
    assert 0.6 < worst <= 1 + 1e-9


def test_the_code_halts_with_the_enumerated_probabilities():
    mechanism = AboveThreshold(epsilon1=Fraction(1, 2), epsilon2=Fraction(1, 2))
    counts, thresholds = np.array([3, 1, 4, 2]), np.array([2, 3, 3, 2])
    law = halting_law(mechanism, counts, thresholds)
    wrong = halting_law(AboveThreshold(epsilon1=0.9, epsilon2=0.9), counts, thresholds)
    seen = np.zeros(5, int)
    for i in range(6_000):
        place = Place(SeededNoise(0), "sv", (i,))
        seen[mechanism.ask_many(mechanism.init(place), counts, thresholds, place)] += 1
    for halted in range(5):
        assert_rate(seen[halted], 6_000, law[halted])
    assert_rejects_rate(seen[4], 6_000, wrong[4])


def test_asking_in_parts_equals_asking_at_once_in_silence():
    mechanism = AboveThreshold(epsilon1=Fraction(2, 5), epsilon2=Fraction(3, 5))
    place = Place(SilentNoise(), "t")
    counts = np.array([0, 1, 5, 0])
    parts, whole = mechanism.init(place), mechanism.init(place)
    said = [mechanism.ask(parts, int(count), 5, place) for count in counts[:3]]
    assert said == [False, False, True]
    assert mechanism.ask_many(whole, counts, np.full(4, 5), place) == 2
    with pytest.raises(ValueError, match="halted"):
        mechanism.ask(parts, 0, 5, place)


def test_sparse_answers_until_it_is_exhausted_and_never_overspends():
    for share in (Share("pure", Fraction(1)), Share("zcdp", Fraction(1, 10))):
        sparse = Sparse(share=share, halts=3)
        place = Place(SeededNoise(1), "s")
        state = sparse.init(place)
        answers = [sparse.ask(state, 10_000 * (i % 2), 5_000, place) for i in range(10)]
        kinds = [answer.kind for answer in answers]
        assert kinds == ["EASY", "HARD"] * 3 + ["EXHAUSTED"] * 4
        assert abs(answers[1].value - 10_000) < 2000
        assert 0.99 * share.amount < state.meter.spent <= share.amount
        assert "10" not in repr(state.run)


def test_epoch_shares_follow_the_size():
    pure = [float(epoch_share(Share("pure", 1), e, 0.5).amount) for e in range(3)]
    assert pure == pytest.approx([1, 2**-0.5, 0.5])
    zcdp = [float(epoch_share(Share("zcdp", 1), e, 0.5).amount) for e in range(3)]
    assert zcdp == pytest.approx([1, 0.5, 0.25])
    assert math.isfinite(sum(pure))
