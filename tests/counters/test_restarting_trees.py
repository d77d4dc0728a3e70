"""Many small trees in one pass: the estimates of the Honaker counter, with one draw each."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm

from streamveil.core.accounting import Budget
from streamveil.core.counters.restarting_trees import (
    RestartingTrees,
    refined_variances,
    restart,
    tree_rounding,
    tree_std,
)
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.core.noise.samplers import rounded_gaussian
from streamveil.core.noisy import values
from streamveil.counters import HonakerCounter
from streamveil.plan import Bounding, Clock
from tests.dataflow.test_dp_sqlp import published
from tests.statistics import ALPHA, DETECTABLE, SAMPLES, assert_fits, assert_rejects


def planted(grove, keys):
    state = grove.init()
    grove.add_keys(state, keys)
    return state


def step(grove, state, t, x, at, steps=1):
    rows = np.arange(len(x))
    trees = state["whole"], state["real"]
    return values(grove.advance(trees, rows, np.full(len(x), t), np.asarray(x), (*at, steps)))


class Twin:
    """One tree of plain lists: the estimate of the largest closed block, drawn as it is defined."""

    def __init__(self, grove):
        self.grove, self.whole, self.real = grove, {}, {}

    def step(self, t, x, draws, name):
        top = self.grove.levels - 1
        level = next(bit for bit in range(top + 2) if bit > top or (t >> bit) & 1)
        done, block, middle, variance = min(level, top), x, float(x), self.grove.sigma**2
        for inner in range(done):
            w = self.grove.weights[inner + 1]
            block += self.whole.pop(inner)
            middle = w * block + (1 - w) * (middle + self.real.pop(inner))
            variance = w**2 * self.grove.sigma**2 + (1 - w) ** 2 * variance
        assert self.grove.spreads[done] == pytest.approx(np.sqrt(variance))
        [found] = rounded_gaussian(draws, np.array([middle]), self.grove.spreads[done], name)
        self.whole[done] = block + (self.whole.get(done, 0) if level > top else 0)
        self.real[done] = int(found) + (self.real.get(done, 0) if level > top else 0)
        return sum(self.real.values())


@given(st.integers(1, 33), st.integers(0, 2**32))
def test_it_is_the_definition_key_by_key(horizon, seed):
    grove = RestartingTrees.paid_by(HonakerCounter(horizon=horizon, sigma=50))
    names = np.random.default_rng(seed).integers(0, 2**63, (3, 2)).astype(np.uint64)
    state, twins, noise = planted(grove, 3), [Twin(grove) for _ in names], SeededNoise(seed)
    for t in range(1, horizon + 1):
        draws, x = noise.at("t", t), np.arange(3) * t
        found = step(grove, state, t, x, (draws, names))
        wanted = [
            twin.step(t, int(more), draws, names[[i]])
            for i, (twin, more) in enumerate(zip(twins, x, strict=True))
        ]
        assert_array_equal(found, wanted)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=40))
def test_without_noise_it_is_a_running_sum(xs):
    grove = RestartingTrees.paid_by(HonakerCounter(horizon=len(xs), sigma=1000))
    names, silent = np.zeros((1, 2), np.uint64), SilentNoise().at("t")
    state = planted(grove, 1)
    found = [int(step(grove, state, t, [x], (silent, names))[0]) for t, x in enumerate(xs, 1)]
    assert_array_equal(found, np.cumsum(xs))


@pytest.mark.parametrize("t", [1, 6, 7, 8, 12, 16])
def test_its_error_is_that_of_the_tree(t):
    counter = HonakerCounter(horizon=16, sigma=1000)
    grove, noise = RestartingTrees.paid_by(counter), SeededNoise(t)
    names = np.arange(2 * SAMPLES, dtype=np.uint64).reshape(-1, 2)
    state, none = planted(grove, SAMPLES), np.zeros(SAMPLES, np.int64)
    for past in range(1, t + 1):
        errors = step(grove, state, past, none, (noise.at("t", past), names))
    sd = float(counter.std(np.array([t]))[0])
    assert_fits(errors, norm(0, sd), alpha=ALPHA)
    assert_rejects(errors, norm(0, DETECTABLE * sd), alpha=ALPHA)


def test_missed_steps_are_steps_without_increments():
    grove, noise = RestartingTrees(levels=4, sigma=500.0), SeededNoise(5)
    names = np.arange(20, dtype=np.uint64).reshape(-1, 2)
    at_once, one_by_one = planted(grove, 10), planted(grove, 10)
    nothing = np.zeros(10, np.int64)
    step(grove, at_once, 11, nothing, (noise.at("t"), names), steps=11)
    words = noise.at("t").words_for(names, 11)
    for t in range(1, 12):
        step(grove, one_by_one, t, nothing, (Given(words[:, [t - 1]]), names))
    for name in ("whole", "real"):
        assert_array_equal(at_once[name], one_by_one[name])


@dataclass
class Given:
    """Words made for a test; further bits come from a seed."""

    table: np.ndarray
    silent: bool = False

    def words_for(self, ids, n):
        more = SeededNoise(1).at("more").words_for(ids, n)
        width = self.table.shape[1]
        rows = ids[:, 0].astype(np.int64) // 2
        more[:, : min(n, width)] = self.table[rows, : min(n, width)]
        return more

    def at(self, purpose, *path):
        return SeededNoise(2).at(purpose, *path)


def test_draws_beyond_the_table_are_settled_and_the_key_goes_on():
    grove = RestartingTrees(levels=3, sigma=100.0)
    names = np.arange(8, dtype=np.uint64).reshape(-1, 2)
    plain = SeededNoise(3).at("t").words_for(names, 5).copy()
    rare = plain.copy()
    rare[1, [2, 4]] = 0  # the far end of the tail: not in the table of quantiles
    states = [planted(grove, 4) for _ in range(2)]
    found = [
        step(grove, state, 5, np.zeros(4, np.int64), (Given(words), names), steps=5)
        for state, words in zip(states, (plain, rare), strict=True)
    ]
    same = found[0] == found[1]
    assert same.tolist() == [True, False, True, True]
    assert found[1][1] > 7 * grove.sigma  # two draws from the tail, not undrawn zeros


def test_no_increment_moves_the_run_further_than_declared():
    for levels in (1, 2, 3, 5):
        grove, horizon = RestartingTrees(levels=levels, sigma=1.0), 1 << levels
        moved = [reach_by_steps(grove, place, horizon) for place in range(horizon)]
        assert max(moved) <= levels * (1 if levels == 1 else 0.91)


def reach_by_steps(grove, place, horizon):
    """Every step, the estimates so far being known and the leaf one more."""
    whole, total, top = {}, 0.0, grove.levels - 1
    for t in range(1, horizon + 1):
        level = next(bit for bit in range(top + 2) if bit > top or (t >> bit) & 1)
        done, block = min(level, top), float(t == place + 1)
        moved = block
        for inner in range(done):
            block += whole.pop(inner, 0.0)
            moved = grove.weights[inner + 1] * block + (1 - grove.weights[inner + 1]) * moved
        whole[done] = block + (whole.get(done, 0.0) if level > top else 0.0)
        total += (moved / grove.spreads[done]) ** 2
    return total


def test_a_restart_empties_trees_and_keeps_the_others():
    grove = RestartingTrees(levels=3, sigma=10.0)
    state = planted(grove, 3)
    for name in ("units", "whole", "real"):
        state[name][:3] = 5
    restart(state, np.array([False, True, False]), 4)
    assert state["round"][:3].tolist() == [0, 1, 0]
    assert state["begun"][:3].tolist() == [0, 4, 0]
    assert state["real"][1].tolist() == [0, 0, 0]
    assert state["whole"][2].tolist() == [5, 5, 5]


def test_room_for_keys_grows_and_keeps_what_is_there():
    grove = RestartingTrees(levels=2, sigma=10.0)
    state = planted(grove, 60)
    state["units"][:60] = np.arange(60)
    grove.add_keys(state, 1000)
    assert int(state["keys"][0]) == 1060
    assert len(state["real"]) >= 1060
    assert_allclose(state["units"][:60], np.arange(60))


def test_one_rounded_draw_a_block_moves_an_estimate_as_far_as_rounded_nodes():
    weights, offset, moved = refined_variances(9), 0.0, []
    for level in range(9):
        if level:
            offset = (1 - weights[level]) * (offset + moved[-1])
        moved.append(0.5 + offset)  # the offset adds up estimates that were rounded before
    assert_allclose(moved, tree_rounding(9, 2 ** np.arange(9)))


def test_thresholds_for_one_trigger_fail_at_all_of_them_and_the_guarantee_says_so():
    budget, clock = Budget(epsilon=6, delta=1e-9), Clock(kind="rows", every=1, steps=1000)
    deltas = {}
    for thresholds in ("published", "rigorous"):
        operator = published(
            budget=budget, clock=clock, bounding=Bounding(max_rows=32),
            options={"thresholds": thresholds},
        )  # fmt: skip
        deltas[thresholds] = operator.guarantee.loss.delta_at(6)
        selection = operator.aggregation.selection
        steps = np.arange(1, 1001)
        above = np.array([selection.threshold(int(t)) for t in steps]) - 1  # the unit itself
        sd = tree_std(selection.noise, selection.trees.levels, steps) / 1024
        tails = float(norm.sf(above / sd).sum())
        assert (
            tails * (1 - 1e-6) < selection.failure < tails * 1.01
        )  # more by what rounding may add
    assert deltas["rigorous"] <= 1e-9
    assert deltas["published"] > 3.0e-7  # 300 times what it claims


def test_arrays_that_may_not_be_written_are_copied_first():
    grove = RestartingTrees(levels=2, sigma=10.0)
    state = planted(grove, 3)
    for array in state.values():
        array.flags.writeable = False
    grove.add_keys(state, 1)
    step(grove, state, 1, [1, 2, 3, 4], (SeededNoise(1).at("t"), np.zeros((4, 2), np.uint64)))
    assert int(state["keys"][0]) == 4
    assert state["whole"][:4, 0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("levels", [1, 3])
def test_huge_sums_are_exact(levels):
    """The same noise beside sums beyond the integers of float64: estimates differ by the sums."""
    grove, steps = RestartingTrees(levels=levels, sigma=1000.0), 1 << (levels - 1)
    huge = 2**58 + 1

    def totals(first):
        trees = np.zeros((1, levels), np.int64), np.zeros((1, levels), np.int64)
        names, row = np.array([[3, 4]], np.uint64), np.zeros(1, np.int64)
        found = []
        for t in range(1, steps + 1):
            draws = SeededNoise(2).at("huge", t)
            x = np.array([first if t == 1 else 0])
            [total] = values(grove.advance(trees, row, np.array([t]), x, (draws, names, 1)))
            found.append(int(total))
        return np.array(found)

    assert_array_equal(totals(huge) - totals(0), np.full(steps, huge))
