"""What every registered counter must do."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest

from streamveil.core.accounting import Budget
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.noise import KeyedNoise, Noise, Place, SeededNoise, SilentNoise
from streamveil.counters import (
    COUNTERS,
    BltCounter,
    Counter,
    CounterState,
    HonakerCounter,
    KaryTreeCounter,
    fit,
    skip,
)
from streamveil.counters.kary import blocks_of
from streamveil.errors import HorizonError, PlanError, StoreError
from tests.counters.examples import NAMES, examples
from tests.counters.oracle import factors
from tests.statistics import (
    DETECTABLE,
    SAMPLES,
    Table,
    assert_fits,
    assert_rejects,
    rounded_gaussian,
    rounded_laplace,
)

HORIZON = 21
RELEASES = {  # of the first version with all counters
    "blt": "f8962e1dda23e5af",
    "blt d=1 plain": "aa775808c0f6620a",
    "anytime-blt": "0f2dd6cbe7b6ac84",
    "honaker": "9126bbcac2fdb1ee",
    "k-ary-tree": "6455dbf9b32b4205",
    "k-ary-tree 3": "acc368aedfe33e21",
}


def run(counter: Counter, streams: np.ndarray, noise: Noise, ids=None, state=None) -> np.ndarray:
    state = state or counter.init(streams.shape[1])
    released, place = [], Place(noise, "counter")
    for increments in streams[state.t :]:
        estimates, state = counter.step(state, increments, place, ids)
        released.append(estimates)
    return np.array(released)


def streams(keys: int, horizon: int = HORIZON) -> np.ndarray:
    made = np.random.default_rng(5).integers(-4, 50, size=(horizon, keys))
    made.setflags(write=False)
    return made


def some_ids(keys: int) -> np.ndarray:
    return np.random.default_rng(8).integers(0, 2**63, (keys, 2)).astype(np.uint64)


def frozen(state: CounterState) -> CounterState:
    state.whole.setflags(write=False)
    state.real.setflags(write=False)
    return state


def test_every_registered_counter_has_an_example():
    assert {type(counter) for counter in examples(4).values()} == set(COUNTERS.values())
    assert all(isinstance(counter, Counter) for counter in examples(4).values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("horizon", [1, 2, 8, 9, HORIZON])
def test_without_noise_it_is_a_running_sum(name, horizon):
    xs = streams(5, horizon)
    counter = examples(horizon)[name]
    np.testing.assert_array_equal(run(counter, xs, SilentNoise()), np.cumsum(xs, axis=0))


@pytest.mark.parametrize("name", NAMES)
def test_save_and_resume_at_every_step_equals_the_unbroken_run(name):
    counter, xs, noise = examples(HORIZON)[name], streams(4), SeededNoise(3)
    unbroken = run(counter, xs, noise)
    state, place = counter.init(4), Place(noise, "counter")
    for t in range(HORIZON):
        again = CounterState.from_arrays({k: v.copy() for k, v in state.to_arrays().items()})
        np.testing.assert_array_equal(run(counter, xs, noise, state=again), unbroken[t:])
        released, state = counter.step(frozen(state), xs[t], place)
        np.testing.assert_array_equal(released, unbroken[t])


@pytest.mark.parametrize("name", NAMES)
def test_the_noise_of_a_key_depends_on_its_id_and_not_on_its_column(name):
    counter, xs, ids = examples(HORIZON)[name], streams(6), some_ids(6)
    whole = run(counter, xs, SeededNoise(3), ids)
    order = np.array([4, 0, 3])
    part = run(counter, xs[:, order], SeededNoise(3), ids[order])
    np.testing.assert_array_equal(part, whole[:, order])


@pytest.mark.parametrize("name", NAMES)
def test_keys_may_leave_and_may_start_late(name):
    counter, xs, ids = examples(HORIZON)[name], streams(6), some_ids(6)
    noise = SeededNoise(3)
    whole = run(counter, xs, noise, ids)
    state, place = counter.init(6), Place(noise, "counter")
    for t in range(9):
        _, state = counter.step(state, xs[t], place, ids)
    kept = np.array([5, 2])
    later = state.take(kept).grow(1)
    np.testing.assert_array_equal(later.take(np.array([2])).whole, counter.init(1, t=9).whole)
    column = np.concatenate([xs[:, kept], xs[:, :1]], axis=1)
    after = run(counter, column, noise, np.concatenate([ids[kept], ids[:1]]), later)
    np.testing.assert_array_equal(after[:, :2], whole[9:, kept])
    silent = run(counter, column[:, 2:], SilentNoise(), state=counter.init(1, t=9))
    np.testing.assert_array_equal(silent, np.cumsum(column[9:, 2:], axis=0))


@pytest.mark.parametrize("name", NAMES)
def test_no_step_is_taken_beyond_the_horizon(name):
    counter = examples(3)[name]
    assert counter.horizon == 3 or not counter.needs_horizon
    with pytest.raises(HorizonError):
        counter.step(
            counter.init(1, t=counter.horizon), np.zeros(1, np.int64), Place(SilentNoise(), "x")
        )


@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_the_caller_are_no_part_of_a_stream(name):
    told = []
    for careless in (False, True):
        stream, mine = examples(HORIZON)[name].stream(2, SeededNoise(3)), np.zeros(2, np.int64)
        for step in range(6):
            mine[:] = 5, step
            totals = stream.step(mine)
            told.append(totals.copy())
            if careless:
                totals[:], mine[:] = 0, 99
    assert np.array_equal(told[:6], told[6:])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("horizon", [1, 2, 3, 4, 5, 8])
def test_no_neighbour_moves_the_encoder_further_than_declared(name, horizon):
    """All differences with sum |d| <= 2 on short horizons: the extreme ones are enough beyond."""
    counter = examples(horizon)[name]
    decoder, encoder = factors(counter, horizon)
    np.testing.assert_allclose(decoder @ encoder, np.tril(np.ones((horizon, horizon))), atol=1e-9)
    moved = []
    for difference in product(range(-2, 3), repeat=min(horizon, 5)):
        total = sum(map(abs, difference))
        if 0 < total <= 2:
            padded = np.zeros(horizon)
            padded[-len(difference) :] = difference
            moved.append(norm(counter, encoder @ padded) / total)
            moved.append(norm(counter, encoder @ padded[::-1]) / total)
    assert max(moved) <= counter.sensitivity
    if counter.needs_horizon:  # and no further than needed
        assert max(moved) >= counter.sensitivity * (1 - 1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("horizon", [7, 64, 100])
def test_sensitivity_is_the_largest_column_norm(name, horizon):
    counter = examples(horizon)[name]
    columns = [norm(counter, column) for column in factors(counter, horizon)[1].T]
    assert max(columns) <= counter.sensitivity
    if counter.needs_horizon:
        assert counter.sensitivity <= max(columns) * (1 + 1e-9)


def norm(counter: Counter, moved: np.ndarray) -> float:
    """In the norm of the counter's noise."""
    return float(np.abs(moved).sum() if counter.loss().pure else np.sqrt((moved**2).sum()))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("horizon", [1, 12, 100])
def test_std_is_that_of_the_dense_decoder(name, horizon):
    counter = examples(horizon)[name]
    decoder, _ = factors(counter, horizon)
    exact = np.sqrt((decoder**2).sum(axis=1)) * spread(counter)
    stated = counter.std(np.arange(1, horizon + 1))
    # rounding adds 1/12 per draw, weighted slightly differently where draws have other scales
    np.testing.assert_allclose(stated, exact, rtol=0.004)
    with pytest.raises(ValueError, match="t must be"):
        counter.std(np.array([0]))


def spread(counter: Counter) -> float:
    variance = float(counter.sigma) ** 2 * (2 if counter.loss().pure else 1)
    return (variance + 1 / 12) ** 0.5


@pytest.mark.parametrize("name", NAMES)
def test_noise_has_the_covariance_of_the_dense_decoder(name):
    counter = examples(HORIZON)[name]
    xs = np.broadcast_to(streams(1), (HORIZON, SAMPLES))
    errors = run(counter, xs, SeededNoise(12)) - np.cumsum(xs, axis=0)
    decoder, _ = factors(counter, HORIZON)
    expected = decoder @ decoder.T * spread(counter) ** 2
    found = errors @ errors.T / SAMPLES
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    # an entry has a standard deviation of at most sqrt(2/n) of its scale (Gaussian, kurtosis 3) or
    # sqrt(5/n) (Laplace, kurtosis 6); 0.004 is for the rounding of draws of other scales
    tolerance = 8 * np.sqrt((5 if counter.loss().pure else 2) / SAMPLES) + 0.004
    assert (np.abs(found - expected) / scale).max() < tolerance
    assert (np.abs(found - DETECTABLE**2 * expected) / scale).max() > tolerance


@pytest.mark.parametrize("name", [n for n in NAMES if "k-ary" not in n])
def test_every_coordinate_has_the_declared_scale(name):
    counter = examples(HORIZON)[name]
    xs = np.broadcast_to(streams(1), (HORIZON, SAMPLES))
    ids = some_ids(SAMPLES)
    errors = run(counter, xs, SeededNoise(4), ids) - np.cumsum(xs, axis=0)
    stated = counter.std(np.arange(1, HORIZON + 1))
    for t in range(HORIZON):
        whole = np.rint(errors[t])
        assert_fits(whole, rounded_gaussian(np.sqrt(stated[t] ** 2 - 1 / 12)))
        assert_rejects(whole, rounded_gaussian(DETECTABLE * stated[t]))


@pytest.mark.parametrize("name", [n for n in NAMES if "k-ary" in n])
def test_every_coordinate_of_laplace_counters_has_its_law(name):
    """A release is a signed sum of rounded Laplace draws, one per block: by convolution."""
    counter = examples(HORIZON)[name]
    xs, ids = np.broadcast_to(streams(1), (HORIZON, SAMPLES)), some_ids(SAMPLES)
    errors = run(counter, xs, SeededNoise(4), ids) - np.cumsum(xs, axis=0)
    assert errors.dtype == np.int64
    for t in range(HORIZON):
        blocks = len(blocks_of(t + 1, counter.arity, counter.levels))
        assert_fits(errors[t], laplace_sum(blocks, float(counter.sigma)))
        assert_rejects(errors[t], laplace_sum(blocks, DETECTABLE * float(counter.sigma)))


def laplace_sum(n: int, scale: float) -> Table:
    reach = int(40 * scale)
    one = np.diff(rounded_laplace(scale).cdf(np.arange(-reach - 1, reach + 1)))
    masses = one
    for _ in range(n - 1):
        masses = np.convolve(masses, one)
    return Table.of(dict(enumerate((masses / masses.sum()).tolist(), start=-n * reach)))


@pytest.mark.parametrize("name", NAMES)
def test_known_releases(name):
    """Pinned: a change of these numbers breaks jobs that resume an older state."""
    counter = examples(HORIZON)[name]
    released = run(counter, streams(5), SeededNoise(20261120), some_ids(5))
    digest = hashlib.sha256(np.ascontiguousarray(released, "<f8").tobytes()).hexdigest()
    assert digest[:16] == RELEASES.get(name)


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_as_large_as_stated(name):
    counter = examples(HORIZON)[name]
    arrays = counter.init(1000).to_arrays()
    assert sum(a.nbytes for key, a in arrays.items() if key != "t") == 1000 * counter.state_bytes


@pytest.mark.parametrize("name", NAMES)
def test_fit_is_inside_the_budget_and_not_wasteful(name):
    counter = examples(HORIZON)[name]
    pure = bool(counter.loss().pure)
    for budget in [Budget(epsilon=1)] if pure else [Budget(rho=0.1), Budget(epsilon=2, delta=1e-8)]:
        for moved in (1, 7):
            fitted = fit(counter, budget, moved)
            assert fitted.loss(moved).fits(budget)
            smaller = replace(fitted, sigma=float(fitted.sigma) * (1 - 1e-6))
            assert not smaller.loss(moved).fits(budget)


@pytest.mark.parametrize("name", NAMES)
def test_loss_is_never_smaller_than_enumeration_finds(name):
    horizon = 6
    counter = examples(horizon)[name]
    _, encoder = factors(counter, horizon)
    loss = counter.loss(2)
    worst = 2 * max(norm(counter, column) for column in encoder.T) / float(counter.sigma)
    stated = float(loss.pure_total) if loss.pure else float(loss.gaussian) ** 0.5
    assert worst <= stated
    if counter.needs_horizon:
        assert stated <= worst * (1 + 1e-8)
    assert counter.loss(0) == Loss()


@pytest.mark.parametrize("name", NAMES)
def test_noise_that_64_bits_might_not_hold_is_refused(name):
    counter = examples(8)[name]
    assert replace(counter, sigma=2**50).loss()
    with pytest.raises(PlanError, match="64 bits"):
        replace(counter, sigma=2**50 + 1)


@pytest.mark.parametrize("name", NAMES)
def test_bad_arguments_are_named(name):
    counter = examples(4)[name]
    place = Place(SilentNoise(), "x")
    with pytest.raises(ValueError, match="sigma"):
        type(counter)(**{**vars(counter), "sigma": 0})
    with pytest.raises(ValueError, match="integers"):
        counter.step(counter.init(2), np.zeros(2), place)
    with pytest.raises(ValueError, match="one entry per key"):
        counter.step(counter.init(2), np.zeros(3, np.int64), place)
    for wrong, fault in (
        (lambda: counter.init(1, t=-1), "t must be"),  # more steps than the guarantee covers
        (lambda: counter.init(-1), "keys must be"),
        (lambda: counter.stream(keys=0), "keys must be"),
        (lambda: counter.stream(noise="x"), "noise must be"),
        (lambda: skip(counter, counter.init(1), 1.5, place), "steps must be"),
        (lambda: counter.std(np.array([1.5])), "whole numbers between 1 and"),
        (lambda: counter.loss(float("nan")), "moved must be"),
        (lambda: counter.loss("x"), "moved must be"),
        (lambda: fit(counter, Budget(epsilon=1, delta=1e-6), 1, 2.5), "keys must be"),
    ):
        with pytest.raises(PlanError, match=fault):
            wrong()


@pytest.mark.parametrize("kind", [BltCounter, HonakerCounter, KaryTreeCounter])
@pytest.mark.parametrize("horizon", [2**40 + 1, 2**63, 10**400])
def test_horizons_beyond_the_last_step_are_refused(kind, horizon):
    """They ended in errors of Python, or in a deviation of NaN."""
    with pytest.raises(PlanError, match="horizon must be between 1 and 1,099,511,627,776"):
        kind(horizon=horizon, sigma=1)
    longest = kind(horizon=2**40, sigma=1)
    assert longest.loss().epsilon(1e-9) > 0
    assert longest.stream(noise=SilentNoise()).step([3]) == 3


def test_what_counters_of_many_steps_cannot_do_is_said():
    with pytest.raises(PlanError, match="weighting='none'"):
        BltCounter(horizon=2**31, sigma=1).std(np.array([1]))
    with pytest.raises(PlanError, match="k must be odd"):
        KaryTreeCounter(horizon=9, sigma=1, k=2**63 + 1)


@pytest.mark.parametrize("name", NAMES)
def test_what_64_bits_do_not_hold_is_refused_with_either_sign(name):
    for number, fault in ((2**63, "below"), (-(2**63), "64 bits"), (2**63 - 1, "64 bits")):
        with pytest.raises(PlanError, match=fault):
            examples(4)[name].stream(noise=SilentNoise()).step([number])


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_is_resumed_by_the_counter_that_saved_it_alone(name):
    """Under another sigma or horizon the same draws meet other totals."""
    counter, noise = examples(4)[name], KeyedNoise.fresh()
    saved = counter.stream(noise=noise).save()
    assert counter.resume(saved, noise).t == 0
    for other in [replace(counter, sigma=99), *examples(5).values()]:
        if other != counter:
            with pytest.raises(
                StoreError, match=f"to fix  resume it with {type(counter).__name__}"
            ):
                other.resume(saved, noise)


@pytest.mark.parametrize("name", NAMES)
def test_the_state_of_another_counter_is_refused(name):
    """A compiled step reads as many rows as its own counter has."""
    counter = examples(4)[name]
    for other in examples(40).values():
        state = other.init(2)
        if rows_of(state) != rows_of(counter.init(2)):
            for step in (counter.step, partial(skip, counter)):
                with pytest.raises(StoreError, match="no state of"):
                    step(state, 1, Place(KeyedNoise.fresh(), "x"))


def rows_of(state):
    """How many of either kind."""
    return len(state.whole), len(state.real)
