"""The Gaussian selection: thresholds over all triggers, keys that come late, restarts."""

import numpy as np
import pytest

from streamveil.core.counters import kernels as blt_kernels
from streamveil.core.counters import skip_with
from streamveil.core.noise import Address, Place, SeededNoise
from streamveil.core.selection.gaussian import FINE, GaussianSelection
from streamveil.core.sensitivity import Bounds
from streamveil.counters import (
    AnytimeBltCounter,
    BltCounter,
    Counter,
    HonakerCounter,
)
from tests.counters.oracle import factors
from tests.statistics import DETECTABLE, SAMPLES, assert_rate, assert_rejects_rate

HORIZON, BETA = 6, 0.3
IDS = np.random.default_rng(3).integers(0, 2**63, (SAMPLES, 2)).astype(np.uint64)
COUNTERS = {
    "blt": BltCounter(horizon=HORIZON, sigma=20 * FINE),
    "tree": HonakerCounter(horizon=HORIZON, sigma=20 * FINE),
    "anytime": AnytimeBltCounter(sigma=20 * FINE, tuned=HORIZON, d=2),
}


def selection(counter: Counter) -> GaussianSelection:
    return GaussianSelection(counter=counter, bounds=Bounds(max_rows=1), beta=BETA)


def run(chosen: GaussianSelection, arrivals: list[int], seed: int = 5, save: bool = False):
    """(estimates, passes) by trigger, for SAMPLES keys of one unit that come at these triggers.

    The keys of each arrival are a block of their own; before it, its rows are missing.
    """
    at, state = Address(SeededNoise(seed), b"job", 0), chosen.init(1)
    order, estimates, passes = np.argsort(arrivals, kind="stable"), [], []
    come = np.sort(arrivals)
    for trigger in range(1, HORIZON + 1):
        here = int(np.searchsorted(come, trigger, side="right"))
        units = (come[:here] == trigger).astype(np.int64)
        if save:
            state = {name: part.copy() for name, part in state.items()}
        state, passing = chosen.step(state, units, IDS[order][:here], trigger, at)
        assert not units.any()  # taken
        estimates.append(state["estimate"].copy())
        passes.append(np.isin(np.arange(here), passing))
    return estimates, passes


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("arrival", [1, 4, HORIZON])
def test_a_key_of_one_unit_passes_each_trigger_with_its_share(name, arrival):
    chosen = selection(COUNTERS[name])
    _, passes = run(chosen, [arrival] * SAMPLES)
    for trigger in range(arrival, HORIZON + 1):
        share = chosen.thresholds.share(trigger)
        seen = int(passes[trigger - 1].sum())
        assert_rate(seen, SAMPLES, share * (1 - 2**-10))
        if share > 0.02:
            assert_rejects_rate(seen, SAMPLES, share * 1.35)
    ever = np.any(passes[arrival - 1 :], axis=0).sum()
    assert ever <= BETA * SAMPLES + 6 * np.sqrt(BETA * SAMPLES)


@pytest.mark.parametrize("name", COUNTERS)
def test_late_keys_have_the_noise_of_keys_that_were_always_there(name):
    """Joint law over triggers, from every arrival on: that of the dense decoder."""
    counter = COUNTERS[name]
    decoder = factors(counter, HORIZON)[0] * float(counter.sigma)
    for arrival in (1, 3, HORIZON):
        estimates, _ = run(selection(counter), [arrival] * SAMPLES)
        noise = np.array(estimates[arrival - 1 :]) - FINE
        expected = (decoder @ decoder.T)[arrival - 1 :, arrival - 1 :]
        found = noise @ noise.T / SAMPLES
        scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
        assert (np.abs(found - expected) / scale).max() < 8 * np.sqrt(2 / SAMPLES)
        faulty = expected * DETECTABLE**2
        assert (np.abs(found - faulty) / scale).max() > 8 * np.sqrt(2 / SAMPLES)
        assert np.abs(noise.mean(axis=1) / np.sqrt(np.diag(expected))).max() < 6.2 / SAMPLES**0.5


@pytest.mark.parametrize("name", COUNTERS)
def test_a_restart_at_every_trigger_changes_nothing(name):
    arrivals = (np.arange(SAMPLES) % HORIZON + 1).tolist()
    whole, saved = (run(selection(COUNTERS[name]), arrivals, save=s) for s in (False, True))
    for one, other in zip(whole[0], saved[0], strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_keys_noise_depends_on_its_name_and_not_on_who_else_is_new():
    """Partitions of the keys (Spark's shards) give the same estimates."""
    chosen, at = selection(COUNTERS["blt"]), Address(SeededNoise(1), b"job", 3)
    late, nothing = IDS[:500], np.zeros(500, np.int64)
    whole, _ = chosen.step(chosen.init(5), nothing, late, 5, at)
    some = np.array([400, 7, 33])
    part, _ = chosen.step(chosen.init(5), nothing[some], late[some], 5, at)
    np.testing.assert_array_equal(part["estimate"], whole["estimate"][some])


def test_the_noise_before_the_first_row_is_used_once():
    """Late keys share no words with other windows, jobs, or the triggers after them."""
    chosen = selection(COUNTERS["blt"])

    def missed(job: bytes, window: int) -> np.ndarray:
        return chosen._catch_up(IDS, 5, Address(SeededNoise(1), job, window)).whole[0]

    base, live = missed(b"job", 0), run(chosen, [1] * SAMPLES, seed=1)[0][3] - FINE
    for other in (missed(b"job", 1), missed(b"other", 0), live):
        assert abs(np.corrcoef(base, other)[0, 1]) < 6.2 / SAMPLES**0.5
    np.testing.assert_array_equal(base, missed(b"job", 0))


# ---- passing over steps in one compiled run (`kernels.blt_run`)


class OneWordEach:
    """The i-th word of every key at an address: what step i of a run must use."""

    silent = False

    def __init__(self, draws, i, steps):
        self.draws, self.i, self.steps = draws, i, steps

    def words_for(self, ids, n):
        return self.draws.words_for(ids, self.steps)[:, self.i : self.i + 1]

    def words(self, n):
        return self.draws.words(n * self.steps).reshape(n, -1)[:, self.i].copy()


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "counter",
    [
        BltCounter(horizon=60, sigma=900),
        AnytimeBltCounter(sigma=40, tuned=60, d=3),
    ],
    ids=["columns", "anytime"],
)
def test_a_run_has_the_bits_of_its_steps(counter, named, monkeypatch):
    monkeypatch.setattr(blt_kernels, "WORDS", 1000)  # several parts
    keys, steps, draws = 70, 31, SeededNoise(8).at("run")
    ids = IDS[:keys] if named else None
    _, begun = counter.step(
        counter.init(keys), np.arange(keys), Place(SeededNoise(8), "first"), ids
    )
    state = begun
    for i in range(steps):
        each = OneWordEach(draws, i, steps)
        _, state = counter._advance(state, np.zeros(keys, np.int64), each, ids)
    found = skip_with(counter, begun, steps, draws, ids)
    np.testing.assert_array_equal(found.whole, state.whole)
    np.testing.assert_array_equal(found.real, state.real)
    assert found.t == state.t


@pytest.mark.parametrize("named", [True, False])
def test_a_run_settles_what_float64_cannot_decide(named, monkeypatch):
    """Every draw is called unsure: multiprecision must find the same integers."""
    counter, draws, keys = BltCounter(horizon=9, sigma=50), SeededNoise(2).at("run"), 3
    ids = IDS[:keys] if named else None
    plain = skip_with(counter, counter.init(keys), 8, draws, ids)
    honest, calls = blt_kernels._run, []

    def doubtful(*arguments):
        honest(*arguments)
        arguments[-1][:] = False

    def asked(*arguments):
        calls.append(1)
        return settle(*arguments)

    settle, word = blt_kernels.settle, blt_kernels.rounded_gaussian_word
    monkeypatch.setattr(blt_kernels, "_run", doubtful)
    monkeypatch.setattr(blt_kernels, "settle", asked)
    monkeypatch.setattr(blt_kernels, "rounded_gaussian_word", lambda *a: (word(*a)[0] + 99, False))
    settled = skip_with(counter, counter.init(keys), 8, draws, ids)
    assert len(calls) == 8 * keys
    np.testing.assert_array_equal(settled.whole, plain.whole)
    np.testing.assert_array_equal(settled.real, plain.real)
