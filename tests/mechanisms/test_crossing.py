"""The lazy crossing test: equal in law to simulating every step, and seen to differ when broken."""

from dataclasses import dataclass, replace

import mpmath
import numpy as np
import pytest

from streamveil.mechanisms import crossing, crossing_kernels
from streamveil.mechanisms.crossing import Crossing, CrossingState, Forward, bridges, smallest
from streamveil.privacy.noise import Place, SeededNoise, SilentNoise
from streamveil.privacy.samplers.quantiles import gaussian_quantile
from tests.statistics import (
    SAMPLES,
    assert_different_law,
    assert_fits,
    assert_rejects,
    assert_same_law,
    gaussian,
)

NOISE = SeededNoise(20261120)
IDS = np.random.default_rng(4).integers(0, 2**64, (6 * SAMPLES, 2), dtype=np.uint64)


@dataclass(frozen=True)
class Case:
    """A counter, thresholds low enough to be crossed, and public touches (time, count)."""

    of: Crossing
    touches: tuple


CASES = {
    "rising": Case(
        Crossing(
            top=4.0, spreads=(1.0, 1.3, 1.7, 2.2), thresholds=tuple(6.0 + 0.3 * np.arange(14))
        ),
        ((2, 1), (3, 2), (7, 3), (8, 4), (11, 5)),
    ),
    "flat": Case(
        Crossing(top=3.0, spreads=(1.5,) * 5, thresholds=(7.5,) * 32),
        ((1, 1), (5, 2), (16, 3), (17, 3), (30, 5)),
    ),
    "uneven": Case(
        Crossing(
            top=5.0,
            spreads=(2.0, 1.0, 0.5, 2.5, 1.0, 1.5),
            thresholds=tuple(9.0 + 3.0 * np.cos(np.arange(50))),
        ),
        ((3, 0), (4, 2), (33, 4), (40, 5)),
    ),
    "low": Case(  # bounds above one: midpoints and short simulations decide
        Crossing(top=2.0, spreads=(1.0,) * 6, thresholds=(5.5,) * 64),
        ((1, 0), (2, 1), (20, 2), (45, 4)),
    ),
    "once": Case(Crossing(top=1.0, spreads=(1.0,), thresholds=(1.5,)), ((1, 1),)),
}


def release_times(case, touch):
    """When each key is first seen to cross: 0 for never. `touch(state, t, counts, keys)`."""
    released = np.zeros(len(IDS), np.int64)
    wake = np.zeros(len(IDS), np.int64)
    for t, count in case.touches:
        past = (released == 0) & (wake > 0) & (wake < t)
        released[past] = wake[past]
        open_keys = np.flatnonzero(released == 0)
        wake[open_keys] = touch(t, np.full(len(open_keys), count), open_keys)
    return np.where(released > 0, released, wake)


def lazily(case, tamper=lambda state: state):
    held = [case.of.init(len(IDS))]

    def touch(t, counts, open_keys):
        changed = case.of.touch(
            held[0].take(open_keys), t, counts, Place(NOISE, "lazy"), IDS[open_keys]
        )
        held[0] = tamper(held[0].put(open_keys, changed))
        return changed.wake

    return release_times(case, touch)


def forward(case):
    oracle, draws = Forward(case.of), NOISE.at("forward")
    return release_times(case, lambda t, counts, keys: oracle.touch(t, counts, draws, IDS[keys]))


@pytest.mark.parametrize("name", CASES)
def test_release_times_have_the_law_of_forward_simulation(name):
    seen, truth = lazily(CASES[name]), forward(CASES[name])
    assert len(np.unique(truth)) > 1
    assert_same_law(seen, truth)


def without_marks(state: CrossingState) -> CrossingState:
    """The published flaw: what earlier tests revealed is forgotten."""
    points = state.points.copy()
    points[:, 1:, 2] = -np.inf
    return replace(state, points=points)


def test_forgetting_what_was_revealed_is_seen():
    case = CASES["low"]
    assert_different_law(lazily(case, tamper=without_marks), forward(case))


@pytest.mark.parametrize("fault", ["top", "spreads", "thresholds"])
def test_a_tenth_more_is_seen(fault):
    case = CASES["rising"]
    numbers = getattr(case.of, fault)
    more = numbers * 1.1 if fault == "top" else tuple(1.1 * number for number in numbers)
    wrong = Case(replace(case.of, **{fault: more}), case.touches)
    assert_different_law(lazily(wrong), forward(case))


def test_the_oracles_noise_is_the_haar_noise():
    of = CASES["uneven"].of
    paths = Forward(of).path(NOISE.at("paths"), IDS[:SAMPLES])
    size, bridge = of.size, bridges(np.array([0.0, *of.spreads]))[of.size :]
    for t in (1, 13, 32, 47, size):
        deviation = np.hypot(bridge[t] if t < size else 0.0, of.top * t / size)
        assert_fits(paths[:, t], gaussian(deviation))
        assert_rejects(paths[:, t], gaussian(1.1 * deviation))
    middle = paths[:, 8] - (paths[:, 0] + paths[:, 16]) / 2  # a node of level 4
    assert_fits(middle, gaussian(of.spreads[3]))
    assert abs(np.corrcoef(middle, paths[:, 16])[0, 1]) < 6.2 / SAMPLES**0.5


@pytest.mark.parametrize("fixed", [1, 4, 5, 7])
def test_a_path_through_a_point_has_the_conditional_law(fixed):
    """Drawing the value from its own law first must give back the unconditional path."""
    of = Crossing(top=1.0, spreads=(1.0, 0.7, 1.4), thresholds=(1.0,) * 8)
    path, words = np.empty(9), NOISE.at("fixed", fixed).words(9 * SAMPLES).reshape(SAMPLES, 9)
    table, cursor = crossing.gaussian_table(), np.zeros(1, np.int64)
    deviation, seen = bridges(np.array([0.0, *of.spreads]))[8 + fixed], np.empty((SAMPLES, 9))
    for i in range(SAMPLES):
        cursor[0] = 0
        path[0], path[8] = 1.0, 3.0
        value = 1.0 + fixed / 4 + deviation * crossing_kernels.normal(words[i], cursor, table)
        crossing_kernels.build_path(path, 8, fixed, value, of.world, table, words[i], cursor)
        assert path[fixed] == pytest.approx(value, abs=1e-12)
        seen[i] = path
    nodes = {4: (0, 8, 1.4), 2: (0, 4, 0.7), 6: (4, 8, 0.7), 1: (0, 2, 1.0), 7: (6, 8, 1.0)}
    for at, (left, right, spread) in nodes.items():
        assert_fits(seen[:, at] - (seen[:, left] + seen[:, right]) / 2, gaussian(spread))


@pytest.mark.parametrize("fixed", [0, 1, 11])
def test_float64_paths_stay_near_those_of_multiprecision(fixed):
    """The measured side of `SLACK`: how far rounding moves what is compared with a threshold.

    Ends and values are large against the spreads, spreads uneven: the worst for cancellation.
    """
    of = Crossing(top=40.0, spreads=(0.5, 3.0, 0.7, 9.0), thresholds=(60.0,) * 16)
    mp, table, cursor = mpmath.mp.clone(), crossing.gaussian_table(), np.zeros(1, np.int64)
    mp.prec = 200
    words = NOISE.at("near", fixed).words(20 * 15).reshape(20, 15).copy()
    words[0, :] = np.uint64(2**62)  # the middle of the law, as often as possible
    worst, spreads = 0.0, [mp.mpf(q) for q in of.spreads]
    for row in words:
        path = np.empty(17)
        path[0], path[16], value, cursor[0] = 431.7, -389.1, 77.3, 0
        ends, goal = (mp.mpf(path[0]), mp.mpf(path[16])), mp.mpf(value)
        crossing_kernels.build_path(path, 16, fixed, value, of.world, table, row, cursor)
        draws = [spelled(mp, int(word)) for word in row]
        exact = exact_path(mp, ends, draws, spreads, fixed, goal)
        worst = max(worst, max(abs(float(mp.mpf(a) - b)) for a, b in zip(path, exact, strict=True)))
    assert worst < 2.0**-44 * 430  # of the largest number
    assert worst > 0


def spelled(mp, word):
    """The draw that a word spells, its further bits being in the middle."""
    p = (mp.mpf(word % 2**63) + 0.5) / 2**64
    return (1 - 2 * (word >> 63)) * gaussian_quantile(mp, p)


def exact_path(mp, ends, draws, spreads, fixed, goal):
    """`build_path` in multiprecision, by its definition."""
    size, nodes = len(draws) + 1, [mp.mpf(0), *draws, mp.mpf(0)]
    tents = {}
    for level, spread in enumerate(spreads, start=1):
        start = fixed >> level << level
        inside = fixed - start
        if fixed and inside:
            tent = mp.mpf(2 * min(inside, 2**level - inside)) / 2**level
            tents[start + 2**level // 2] = tent * spread
    if fixed:
        mean = ends[0] + (ends[1] - ends[0]) * fixed / size
        shift = goal - mean - sum(weight * nodes[i] for i, weight in tents.items())
        variance = sum(weight**2 for weight in tents.values())
        for i, weight in tents.items():
            nodes[i] += weight * shift / variance
    path = [ends[0], *nodes[1:size], ends[1]]
    for level in range(len(spreads), 0, -1):
        half = 2**level // 2
        for middle in range(half, size, 2 * half):
            mean = (path[middle - half] + path[middle + half]) / 2
            path[middle] = mean + spreads[level - 1] * nodes[middle]
    return path


def test_a_touch_makes_few_comparisons():
    """The other side of `SLACK`: words of a touch, each of which enters at most two comparisons."""
    of = Crossing(top=8.0, spreads=(2.0,) * 8, thresholds=(60.0,) * 256)
    ids, used = IDS[:2000], []
    state = of.init(2000)
    for t in (1, 30, 100, 101, 200):
        asked = Counting()
        state = of.touch(state, t, np.full(2000, t // 10), Place(asked, "words"), ids)
        used.append(asked.words / 2000)
    assert max(used) < 1.05 * crossing.FIRST_WORDS  # hardly any key needs a second helping


class Counting:
    """Noise that counts the words that are asked for."""

    silent, words = False, 0

    def at(self, *address):
        self.draws = NOISE.at(*address)
        return self

    def words_for(self, ids, n):
        self.words += len(ids) * n
        return self.draws.words_for(ids, n)


@pytest.mark.parametrize("p", [0.9, 0.5, 0.3, 1e-3, 1e-9, 1e-30, 1e-280])
def test_the_tail_is_inverted(p):
    assert crossing_kernels.upper_tail(crossing_kernels.upper_quantile(p)) == pytest.approx(p)


def test_the_cheap_bound_is_a_bound():
    for x in np.concatenate([np.linspace(-3, 34, 5000), [np.inf, 1e9]]):
        bound = crossing_kernels.tail_bound(x)
        assert bound >= crossing_kernels.upper_tail(x)
        assert bound <= 3 * crossing_kernels.upper_tail(x) or x < 0 or x > 16


@pytest.mark.parametrize("name", CASES)
def test_the_distance_to_the_thresholds_is_never_overestimated(name):
    of = CASES[name].of
    cut, size = of.world[: of.size + 1], of.size
    bridge = bridges(np.array([0.0, *of.spreads]))
    for level in range(1, len(of.spreads) + 1):
        length = 1 << level
        for left in range(0, size, length):
            deviation = bridge[length + 1 : 2 * length]
            for at in np.linspace(-10, 15, 41):
                truth = ((cut[left + 1 : left + length] - at) / deviation).min()
                found = crossing_kernels.nearest(of.world, (size + left) >> level, level, at)
                assert found <= truth + 1e-12 * (1 + truth) if truth >= 0 else found < 0


def test_tables_by_their_definition():
    cut = np.array([np.inf, 5, 3, 4, 9, 1, 7, 8, np.inf])
    least = smallest(cut)
    assert least[1] == 1
    assert (least[2], least[3]) == (3, 1)
    assert least[4:8].tolist() == [5, 4, 1, 8]
    bridge = bridges(np.array([0.0, 3.0, 4.0]))
    assert bridge[2:4].tolist() == [0.0, 3.0]
    assert bridge[4:].tolist() == pytest.approx([0.0, np.hypot(3, 2), 4.0, np.hypot(3, 2)])


def test_a_replay_draws_the_same_whatever_the_other_keys():
    of = CASES["flat"].of
    counts = np.arange(1000) % 5

    def run(keys):
        state = of.touch(of.init(len(keys)), 3, counts[keys], Place(NOISE, "split"), IDS[keys])
        quiet = np.flatnonzero(state.wake == 0)
        again = of.touch(
            state.take(quiet), 9, counts[keys][quiet] + 1, Place(NOISE, "split"), IDS[keys][quiet]
        )
        return state.put(quiet, again)

    everyone = np.arange(1000)
    whole = run(everyone)
    assert np.array_equal(whole.points, run(everyone).points)
    for keys in (everyone[:500], everyone[::-7]):
        part, same = run(keys), whole.take(keys)
        assert np.array_equal(part.points, same.points)
        assert np.array_equal(part.wake, same.wake)


def test_few_words_at_first_change_nothing(monkeypatch):
    of, keys = CASES["low"].of, IDS[:2000]
    counts, place = np.full(2000, 2), Place(NOISE, "few")
    plenty = of.touch(of.init(2000), 20, counts, place, keys)
    monkeypatch.setattr(crossing, "FIRST_WORDS", 3)
    again = of.touch(of.init(2000), 20, counts, place.again(), keys)
    assert np.array_equal(again.points, plenty.points)


def test_states_stay_small():
    """A key that expects no crossing keeps at most levels + 2 rows."""
    of = Crossing(top=8.0, spreads=(2.0,) * 8, thresholds=(60.0,) * 256)
    state, keys = of.init(300), IDS[:300]
    for t in range(1, 257, 3):
        state = of.touch(state, t, np.full(300, t // 40), Place(NOISE, "small"), keys)
        assert state.rows.max() <= 8 + 2
        used = state.points[np.arange(300), state.rows - 1]
        assert np.all(used[:, 0] == 256)
        assert np.all(state.points[:, 1:3, 2].max(axis=1) <= t // 40)
    assert not state.wake.any()


def test_silent_noise_crosses_where_the_count_does():
    of = Crossing(top=1.0, spreads=(1.0,) * 3, thresholds=(4.5,) * 8)
    state = of.touch(of.init(2), 1, np.array([4, 5]), Place(SilentNoise(), "x"), IDS[:2])
    assert state.wake.tolist() == [0, 1]
    assert not state.points[:, :, 1].any()


def test_what_cannot_be_is_refused():
    of = CASES["once"].of
    ids, place = IDS[:2], Place(NOISE, "refused")
    with pytest.raises(ValueError, match="t must be"):
        of.touch(of.init(2), 2, np.array([0, 0]), place, ids)
    flat = CASES["flat"].of
    state = flat.touch(flat.init(2), 3, np.array([2, 1]), place, ids)
    with pytest.raises(ValueError, match="t must be"):
        flat.touch(state, 3, np.array([2, 1]), place, ids)
    with pytest.raises(ValueError, match="counts only grow"):
        flat.touch(state, 4, np.array([1, 1]), place, ids)
    with pytest.raises(ValueError, match="levels serve"):
        Crossing(top=1.0, spreads=(1.0,), thresholds=(1.0,) * 3)
    with pytest.raises(ValueError, match="above 0"):
        Crossing(top=1.0, spreads=(0.0,), thresholds=(1.0,))
