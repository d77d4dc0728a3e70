"""The default counter: parameters, hot loop, and the derived slack of its float64 offsets."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from streamveil.core.counters import U, kernels
from streamveil.core.counters.blt import buffers_for, prepare
from streamveil.core.noise import Place, SeededNoise, SilentNoise
from streamveil.core.noise.samplers import Asked
from streamveil.counters import Blt, BltCounter, best_blt

# (1 - theta), omega, (1 - theta_hat), beta, sensitivity: computed independently by autodiff
KNOWN = {
    (100, 3): (
        [0.007387179736, 0.09541484571, 0.4800845066],
        [0.1135121217, 0.1756026304, 0.2091333664],
        [0.03370026152, 0.2286016072, 0.8188327818],
        [0.05364194753, 0.1405650352, 0.2817518033, 0.5240412139],
        1.590774,
    ),
    (1000, 4): (
        [0.0007869070245, 0.01129541489, 0.07907059765, 0.4391812722],
        [0.03753347722, 0.06939972209, 0.1603281747, 0.229560899],
        [0.003716511874, 0.03054760607, 0.195740833, 0.7971515139],
        [0.01742406289, 0.04795497999, 0.1094526234, 0.2734963969, 0.5516719368],
        1.806717,
    ),
    (10_000, 4): (
        [0.0001015427147, 0.002035754166, 0.02542029372, 0.2750542735],
        [0.01391972256, 0.03686324968, 0.1245878192, 0.3048037322],
        [0.0005398199629, 0.0072610216, 0.08692611465, 0.6880594315],
        [0.006165242634, 0.02078066668, 0.06873164648, 0.2371576138, 0.6671648304],
        1.997564,
    ),
    (100_000, 5): (
        [9.962416966e-6, 0.0001946462097, 0.002354199358, 0.02772810158, 0.2854963095],
        [0.004349322175, 0.01124790537, 0.03814690556, 0.1275618111, 0.3008071109],
        [5.245995765e-5, 0.0006815253374, 0.008109335568, 0.09256301165, 0.6964899417],
        [0.001933423524, 0.006414047301, 0.02069367971, 0.07116045629, 0.2403916298, 0.6594067634],
        2.173300,
    ),
}


@pytest.mark.parametrize(("horizon", "d"), KNOWN)
def test_optimised_parameters_are_the_known_ones(horizon, d):
    p, omega, q, beta, sensitivity = KNOWN[horizon, d]
    found = best_blt(horizon, d)
    np.testing.assert_allclose(found.p, p, rtol=2e-5)
    np.testing.assert_allclose(found.q, q, rtol=2e-5)
    np.testing.assert_allclose(found.omega(), omega, rtol=2e-5)
    np.testing.assert_allclose(found.beta(), beta, rtol=2e-5)
    counter = BltCounter(horizon=horizon, sigma=1, d=d)
    assert counter.sensitivity == pytest.approx(sensitivity, abs=3e-6)  # rates have 20 bits


@pytest.mark.parametrize("d", range(1, 7))
@pytest.mark.parametrize("horizon", [1, 2, 3, 10, 365, 10**4, 2**20, 10**7])
def test_parameters_are_found_for_any_horizon(horizon, d):
    blt = best_blt(horizon, d)
    error = float(np.sqrt(blt.squared_norm(horizon) * blt.variance(horizon)))
    fewer = best_blt(horizon, max(1, d - 1))
    assert error <= 1.0001 * float(np.sqrt(fewer.squared_norm(horizon) * fewer.variance(horizon)))
    assert error >= np.log(horizon) / np.pi + 0.70  # no factorization is better


def test_encoder_decoder_and_closed_forms_agree():
    blt = best_blt(300, 4)
    c, b = blt.encoder(300), blt.decoder(300)
    np.testing.assert_allclose(np.convolve(c, b)[:300], 1, atol=1e-12)
    np.testing.assert_allclose(blt.squared_norm(np.arange(1, 301)), np.cumsum(c**2), rtol=1e-12)
    np.testing.assert_allclose(blt.variance(np.arange(1, 301)), np.cumsum(b**2), rtol=1e-12)


def test_rates_must_be_interlaced():
    with pytest.raises(ValueError, match="interlaced"):
        Blt((0.1, 0.2), (0.3, 0.4))
    with pytest.raises(ValueError, match="between 1 and 8"):
        best_blt(10, 9)
    with pytest.raises(ValueError, match="did you mean 'columns'"):
        BltCounter(horizon=4, sigma=1, weighting="column")
    with pytest.raises(ValueError, match="3 but the factors have 2"):
        BltCounter(horizon=4, sigma=1, d=3, factors=best_blt(4, 2))


@pytest.mark.parametrize("horizon", [10, 1000])
def test_a_schedule_equalises_every_column(horizon):
    counter = BltCounter(horizon=horizon, sigma=1)
    c = counter.blt.encoder(horizon)
    scales = counter.schedule.scales(1, horizon)
    columns = [np.sqrt(np.sum(c[: horizon - j] ** 2)) / scales[j] for j in range(horizon)]
    assert max(columns) <= counter.sensitivity
    np.testing.assert_allclose(columns[0], columns, rtol=1e-9)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("d", [1, 2, 4, 6])
def test_the_compiled_step_has_the_bits_of_the_plain_one(d, named):
    keys, rng = 3000, np.random.default_rng(d)
    ids = rng.integers(0, 2**63, (keys, 2)).astype(np.uint64) if named else None
    plan = BltCounter(horizon=50, sigma=3, d=d).schedule
    total, real = rng.integers(-9, 99, keys), rng.normal(0, 20, (d, keys))
    increments = rng.integers(-5, 5, keys)
    for t in (1, 17, 50):
        step = kernels.Coefficients(plan.keep, plan.drain, plan.scale(t), 2.75)
        draws = SeededNoise(2).at("x", t)
        fresh, after = kernels.plain_step(real, step, draws, ids)
        (totals,), buffers = kernels.blt_step(total[None], real, increments[None], step, draws, ids)
        np.testing.assert_array_equal(totals, total + increments + fresh)
        np.testing.assert_array_equal(buffers, after)
        total, real = totals, buffers


def test_draws_the_kernel_is_not_sure_about_are_settled_exactly(monkeypatch):
    keys = 64
    plan = BltCounter(horizon=50, sigma=3).schedule
    real = np.random.default_rng(0).normal(0, 20, (plan.keep.size, keys))
    step = kernels.Coefficients(plan.keep, plan.drain, 1.0, 2.75)
    draws = SeededNoise(2).at("x")
    expected = kernels.plain_step(real, step, draws, None)
    compiled, asked = kernels._advance, []

    def doubtful(*args):
        compiled(*args)
        args[-1][::5] = False  # as if every fifth draw were too close to call
        args[-3][::5] = -(10**9)
        args[-2][:, ::5] = np.nan

    def settle(source, index, *rest):
        asked.append(index)
        assert isinstance(source, Asked)
        return kernels_settle(source, index, *rest)

    kernels_settle = kernels.settle
    monkeypatch.setattr(kernels, "_advance", doubtful)
    monkeypatch.setattr(kernels, "settle", settle)
    zero = np.zeros((1, keys), np.int64)
    (totals,), after = kernels.blt_step(zero, real, zero, step, draws, None)
    np.testing.assert_array_equal(asked[0], np.arange(0, keys, 5))
    np.testing.assert_array_equal(totals, expected[0])
    np.testing.assert_array_equal(after, expected[1])


@pytest.mark.parametrize("weighting", ["none", "columns"])
@pytest.mark.parametrize("horizon", [6, 200])
def test_float_offsets_stay_within_the_derived_slack(horizon, weighting, monkeypatch):
    """Replays fixed outputs on two neighbouring streams and compares the centres' moves.

    The ideal move is column 2 of C D^-1, from 50-digit arithmetic on the same coefficients.
    """
    sigma = 20.0
    counter = BltCounter(horizon=horizon, sigma=sigma, weighting=weighting)
    rng = np.random.default_rng(1)
    first = rng.integers(0, 5, horizon)
    second = first.copy()
    second[1] += 3
    released = np.cumsum(first) + np.rint(rng.normal(0, 3 * sigma, horizon)).astype(int)
    moves = centres(counter, second, released, monkeypatch) - centres(
        counter, first, released, monkeypatch
    )
    ideal = 3 * exact_column(counter, 1)
    deviation = np.abs(moves - ideal).max()
    allowed = counter.slack(3) / np.sqrt(horizon)
    assert deviation <= allowed
    assert allowed < 1e-8  # and the slack is nothing to speak of
    assert np.abs(moves).max() > 1  # the replay moved something
    assert np.linalg.norm(moves) <= 3 * counter.sensitivity + counter.slack(3)


def centres(counter, stream, released, monkeypatch) -> np.ndarray:
    """Centre of every step divided by D_t when the outputs are forced to be `released`."""
    found = []

    def forced(draws, ids, offset, spread):
        t = len(found)
        before = released[t - 1] if t else 0
        fresh = np.array([released[t] - before - stream[t]])
        found.append((offset[0] - fresh[0]) * float(counter.sigma) / spread)
        return fresh

    monkeypatch.setattr(kernels, "gaussian_about", forced)
    state, place = counter.init(1), Place(SilentNoise(), "x")
    for t, increment in enumerate(stream):
        estimates, state = counter.step(state, np.array([increment]), place)
        assert estimates[0] == released[t]
    return np.array(found)


def exact_column(counter: BltCounter, j: int) -> np.ndarray:
    """Column j of C D^-1 by running the recursion with 50 digits."""
    plan = counter.schedule
    with mpmath.workdps(50):
        keep = [mpmath.mpf(float(x)) for x in plan.keep]
        drain = [mpmath.mpf(float(x)) for x in plan.drain]
        buffers = [mpmath.mpf(0)] * len(keep)
        out = []
        for t in range(1, counter.horizon + 1):
            z = (1 / mpmath.mpf(plan.scale(t)) if t - 1 == j else 0) + sum(
                a * s for a, s in zip(drain, buffers, strict=True)
            )
            buffers = [k * s + z for k, s in zip(keep, buffers, strict=True)]
            out.append(float(z))
    return np.array(out)


def test_slack_grows_with_horizon_and_is_part_of_the_loss():
    small, large = BltCounter(horizon=100, sigma=5), BltCounter(horizon=10**6, sigma=5)
    assert U < small.slack(1) < large.slack(1) < 1e-4
    bare = (large.sensitivity / 5) ** 2
    assert float(large.loss(1).gaussian) > bare * (1 + large.slack(1) / 5)
    assert large.loss(10, keys=1).gaussian < large.loss(10).gaussian


def test_column_scales_have_few_roundings():
    """The scales against 40-digit arithmetic: the margin covers their error and is all there is."""
    counter = BltCounter(horizon=2**20, sigma=1)
    plan = counter.schedule
    with mpmath.workdps(40):
        p = [mpmath.mpf(x) for x in plan.p]
        omega = [mpmath.mpf(x) for x in plan.omega]

        def square(n):
            return 1 + sum(
                wa * wb * (1 - ((1 - a) * (1 - b)) ** (n - 1)) / (a + b - a * b)
                for a, wa in zip(p, omega, strict=True)
                for b, wb in zip(p, omega, strict=True)
            )

        for t in (1, 2, 1000, 2**19, 2**20 - 1, 2**20):
            exact = mpmath.sqrt(square(2**20 - t + 1) / square(2**20))
            assert 0 < plan.scale(t) / exact - 1 < 1.1e-12


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("known", [0, 700, 1024, 2500])
def test_keys_beyond_the_state_start_from_zero(known, shared):
    """Also across the blocks of the kernel, and with the noise of each key divided by its share."""
    keys, rng = 2500, np.random.default_rng(known)
    ids = rng.integers(0, 2**63, (keys, 2)).astype(np.uint64)
    plan = BltCounter(horizon=50, sigma=3, d=3).schedule
    total, real = rng.integers(-9, 99, keys), rng.normal(0, 20, (3, keys))
    total[known:], real[:, known:] = 0, 0.0
    increments = rng.integers(-5, 5, keys)
    share = rng.integers(1, 5, keys) / 4 if shared else None
    step = kernels.Coefficients(plan.keep, plan.drain, plan.scale(3), 2.75, share)
    draws = SeededNoise(2).at("x")
    fresh, after = kernels.plain_step(real, step, draws, ids)
    held = total[None, :known], real[:, :known].copy()
    came = increments[None]
    (totals,), buffers = kernels.blt_step(*held, came, step, draws, ids)
    np.testing.assert_array_equal(totals, total + increments + fresh)
    np.testing.assert_array_equal(buffers, after)
    (silent,), _ = kernels.blt_step(*held, came, step, SilentNoise().at("x"), ids)
    assert len(silent) == keys
    if shared:  # a step without shares is told apart
        plain = kernels.Coefficients(plan.keep, plan.drain, plan.scale(3), 2.75)
        assert (kernels.blt_step(*held, came, plain, draws, ids)[0] != totals).any()


class OneWord:
    """The draws of one lane of several: word `lane` of every key."""

    silent = False

    def __init__(self, draws, lane, lanes):
        self.draws, self.lane, self.lanes = draws, lane, lanes

    def words_for(self, ids, n):
        assert n == 1
        return self.draws.words_for(ids, self.lanes)[:, [self.lane]]

    def words(self, n):
        return self.draws.words(n * self.lanes)[self.lane :: self.lanes]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("doubt", [True, False])
def test_lanes_that_step_together_are_those_that_step_alone(named, shared, doubt, monkeypatch):
    lanes, known, keys = 5, 7, 11
    rng = np.random.default_rng(4)
    plan = BltCounter(horizon=50, sigma=3).schedule
    ids = rng.integers(0, 2**63, (keys, 2)).astype(np.uint64) if named else None
    share = rng.uniform(0.1, 1, keys) if shared else None
    step = kernels.Coefficients(plan.keep, plan.drain, plan.scale(3), 2.75, share)
    total = rng.integers(0, 9, (lanes, known))
    real = rng.normal(0, 20, (plan.keep.size, lanes, known))
    increments, draws = rng.integers(0, 5, (lanes, keys)), SeededNoise(2).at("x")
    alone = [
        kernels.blt_step(
            total[[i]], real[:, i], increments[[i]], step, OneWord(draws, i, lanes), ids
        )
        for i in range(lanes)
    ]
    compiled = kernels._advance

    def doubtful(*args):
        compiled(*args)
        args[-1][::3] = False
        args[-3][::3], args[-2][:, ::3] = -(10**9), np.nan

    if doubt:
        monkeypatch.setattr(kernels, "_advance", doubtful)
    held = total, real.reshape(-1, known)
    totals, after = kernels.blt_step(*held, increments, step, draws, ids)
    np.testing.assert_array_equal(totals, [one[0] for one, _ in alone])
    np.testing.assert_array_equal(
        after.reshape(-1, lanes, keys), np.stack([rows for _, rows in alone], axis=1)
    )
    some = np.array([1, 4, 9])
    if named and not shared and not doubt:  # keys apart, as the shards of a cluster hold them
        first = total[:, [1, 4]], real[:, :, [1, 4]].reshape(-1, 2)
        part, _ = kernels.blt_step(*first, increments[:, some], step, draws, ids[some])
        np.testing.assert_array_equal(part, totals[:, some])
    silent, _ = kernels.blt_step(*held, increments, step, SilentNoise().at("x"), ids)
    assert silent.shape == (lanes, keys)


@pytest.mark.parametrize("steps", [1000, 2**20, 2**30])
def test_what_runs_decodes_as_its_rates_do(steps):
    """Thresholds follow from the variance of the rates, and are raised by 1e-7 of themselves."""
    blt, mp = best_blt(steps, buffers_for(steps)), mpmath.MPContext()
    mp.dps = 60
    schedule = prepare(blt, steps, "none")
    keep, drain = ([mp.mpf(float(one)) for one in of] for of in (schedule.keep, schedule.drain))
    p, q = [mp.mpf(one) for one in blt.p], [mp.mpf(0), *map(mp.mpf, blt.q)]
    beta = [
        mp.fprod(one - q[i] for one in p) / mp.fprod(q[j] - q[i] for j in range(len(q)) if j != i)
        for i in range(len(q))
    ]
    for k in sorted({int(one) for one in np.geomspace(1, steps, 50)}):
        runs = 1 - sum(d * (1 - a**k) / (1 - a) for a, d in zip(keep, drain, strict=True))
        rates = sum(b * (1 - one) ** k for b, one in zip(beta, q, strict=True))
        assert abs(runs / rates - 1) < 1e-10
    exact = sum((sum(b * (1 - x) ** k for b, x in zip(beta, q, strict=True))) ** 2
                for k in range(500))  # fmt: skip
    assert abs(float(blt.variance(500)) / exact - 1) < 1e-12
