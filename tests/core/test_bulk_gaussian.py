"""The fast rounded Gaussian: always the integer of the precise formula, and of the right law."""

import mpmath as mp
import numpy as np
import pytest
from scipy import stats

from streamveil.compiled import njit
from streamveil.core.noise import SeededNoise
from streamveil.core.noise.bulk import gaussian, keystream, precise
from tests.statistics import (
    ALPHA,
    DETECTABLE,
    SAMPLES,
    assert_fits,
    assert_rejects,
    rounded_gaussian,
)

WORDS = SeededNoise(4).at("uniform").words(400)


def exact_gaussians(u, v):
    """The definition, with 200 bits."""
    with mp.workprec(200):
        r = mp.sqrt(-2 * mp.log((mp.mpf(u) + mp.mpf(1) / 2) / mp.mpf(2) ** 64))
        turn = (v << 2) % 2**64
        x = mp.mpf(turn - 2**64 if turn >> 63 else turn) * mp.pi / 4 / mp.mpf(2) ** 63
        c, s = mp.cos(x), mp.sin(x)
        if v >> 63:
            c = -c
        if (v >> 62) & 1:
            c, s = s, c
        return r * c, r * s


EDGES = [(0, 0), (1, 5), (2**64 - 1, 2**63 + 12345), (2**63, 2**62 + 99), (2**40 + 7, 2**64 - 3)]
PAIRS = EDGES + [(int(u), int(v)) for u, v in WORDS.reshape(-1, 2)]


def test_double_precision_stays_within_its_doubt():
    for u, v in PAIRS:
        expected = exact_gaussians(u, v)
        found = gaussian.exact_pair(np.uint64(u), np.uint64(v))
        for one, other in zip(found, expected, strict=True):
            assert abs(one - other) < gaussian.FINE_DOUBT / 16


def test_logarithms_hold_at_every_octave():
    for u in [0, *(2**k for k in range(64)), *(2**k - 1 for k in range(1, 65)),
              *(0xB504F333F9DE6484 + i for i in (-1, 0, 1))]:  # fmt: skip
        for found, expected in zip(
            gaussian.exact_pair(np.uint64(u), np.uint64(2**60)), exact_gaussians(u, 2**60),
            strict=True,
        ):  # fmt: skip
            assert abs(found - expected) < gaussian.FINE_DOUBT / 16


def test_double_double_precision_rounds_as_200_bits_do():
    sigma, centre = 1e12, 0.25  # so large that double precision would be wrong
    for u, v in PAIRS[:60]:
        for second, z in zip((False, True), exact_gaussians(u, v), strict=True):
            with mp.workprec(200):
                expected = int(mp.nint(sigma * z + centre))
            found = precise.precise_rounded(np.uint64(u), np.uint64(v), second, sigma, centre)
            assert found == expected


@pytest.mark.parametrize("whole", [0, 1, 7, -1, -4])
@pytest.mark.parametrize("angle", [1, 2, 2**62 - 1, 2**62 - 2])  # sines just above and below 0
def test_a_sum_nearer_to_a_boundary_than_double_precision_shows_is_rounded_right(whole, angle):
    """One draw in 2^54 was not: more, at a deviation below 16, than `distance` says."""
    for u in (1, 2**40 + 7, 2**63, 2**64 - 1):
        expected = whole + (angle < 2**61)
        found = precise.precise_rounded(np.uint64(u), np.uint64(angle), True, 1.0, whole + 0.5)
        assert found == expected


@njit()
def worst_single_precision(radii, angles, normal, words):
    """Largest difference between the fast and the precise Gaussian, lower words at both ends."""
    n = len(radii)
    for q in range(n):
        words[q], words[n + q] = radii[q], angles[q]
    gaussian.standard_pairs(words, n, n, normal)
    worst = 0.0
    for q in range(n):
        if np.isnan(normal[q]):
            continue
        for low in (np.uint64(0), np.uint64(2**64 - 1)):
            u = (np.uint64(radii[q]) << np.uint64(32)) | (low >> np.uint64(32))
            v = (np.uint64(angles[q]) << np.uint64(32)) | (low & np.uint64(0xFFFFFFFF))
            first, second = gaussian.exact_pair(u, v)
            worst = max(worst, abs(first - normal[q]), abs(second - normal[n + q]))
    return worst


def test_single_precision_stays_within_its_doubt_over_a_grid():
    rng = np.random.default_rng(0)
    octaves = [rng.integers(2**k, 2 ** (k + 1), 60_000) for k in range(17, 32)]
    near_one = 2**32 - rng.integers(1, 2**14, 60_000)
    cut = 0xB504F334 + rng.integers(-200, 200, 2_000)
    edge = 2**18 + rng.integers(0, 2_000, 20_000)
    radii = np.concatenate([*octaves, near_one, cut, edge]).astype(np.uint32)
    angles = rng.integers(0, 2**32, len(radii)).astype(np.uint32)
    n = len(radii)
    worst = worst_single_precision(
        radii, angles, np.zeros(2 * n, np.float32), np.zeros(2 * n, np.uint32)
    )
    assert 1e-8 < worst < gaussian.DOUBT  # the lower bound: the check does look at something


def pieces(keys, sigma, omega, buffers, group):
    scratch = gaussian.new_scratch()
    gaussian.rounded_piece(keys, (group, 0, buffers.shape[1]), (sigma, omega), buffers, scratch)
    return scratch.noise[: buffers.shape[1]].copy()


@pytest.mark.parametrize("sigma", [0.5, 27.3, 3000.0, 1e6])
@pytest.mark.parametrize("cells", [1, 2, 63, 129, gaussian.PIECE])
def test_every_integer_is_that_of_the_careful_formula(sigma, cells):
    rng = np.random.default_rng(cells)
    keys = keystream.key_schedule(SeededNoise(1).at("x", cells))
    omega = np.array([0.25, 2.0**-9])
    buffers = rng.integers(-1000, 1000, (2, cells)).astype(np.int32)
    found = pieces(keys, sigma, omega, buffers, 77)
    centres = -(omega[:, None] * buffers).sum(axis=0)
    pairs = -(-cells // 2)
    groups = -(-pairs // keystream.GROUP)
    words, block = np.zeros(2 * groups * keystream.GROUP, np.uint32), np.zeros(2, np.uint64)
    keystream.fill(keys, 77 * keystream.GROUP // 2, words, groups)
    expected = [
        gaussian.careful_draw(keys, (77, c, cells), (sigma, centres[c]), words, block)
        for c in range(cells)
    ]
    assert found.tolist() == expected


@pytest.mark.parametrize("sigma", [0.5, 27.3, 3000.0])
def test_one_buffer_is_rounded_as_any_number_of_buffers(sigma):
    rng = np.random.default_rng(5)
    keys = keystream.key_schedule(SeededNoise(2).at("one"))
    cells = gaussian.PIECE
    buffers = rng.integers(-(2**30), 2**30, (1, cells)).astype(np.int32)
    omega = 0.25 * 2.0**-20
    expected = pieces(keys, sigma, np.array([omega]), buffers, 5)
    found = one_buffer(keys, sigma, omega, buffers, 5)
    assert found.tolist() == expected.tolist()


@njit()
def one_buffer(keys, sigma, omega, buffers, group):
    scratch = gaussian.new_scratch()
    cells = buffers.shape[1]
    pairs, groups = cells // 2, cells // 2 // keystream.GROUP
    keystream.fill(keys, group * (keystream.GROUP // 2), scratch.words, groups)
    gaussian.standard_pairs(scratch.words, groups * keystream.GROUP, pairs, scratch.normal)
    if gaussian.round_about(sigma, omega, scratch.normal, buffers[0], scratch.noise):
        law = (sigma, np.array([omega]))
        gaussian.settle(keys, (group, 0, cells), law, buffers, scratch)
    return scratch.noise


def test_the_law_is_the_rounded_gaussian_and_a_wrong_scale_is_seen():
    keys = keystream.key_schedule(SeededNoise(9).at("law"))
    for sigma in (1.5, 26.8):
        empty = np.zeros((1, gaussian.PIECE), np.int32)
        many = -(-SAMPLES // gaussian.PIECE)
        draws = np.concatenate(
            [pieces(keys, sigma, np.zeros(1), empty, i * gaussian.PIECE) for i in range(many)]
        )[:SAMPLES]
        assert_fits(draws, rounded_gaussian(sigma), ALPHA)
        assert_rejects(draws, rounded_gaussian(sigma * DETECTABLE), ALPHA)


@pytest.mark.slow
def test_the_variance_is_right_to_a_thousandth():
    keys = keystream.key_schedule(SeededNoise(10).at("variance"))
    sigma, total, count = 27.0, 0.0, 0
    empty = np.zeros((1, gaussian.PIECE), np.int32)
    for i in range(20_000):
        draws = pieces(keys, sigma, np.zeros(1), empty, i * gaussian.PIECE).astype(float)
        total, count = total + float((draws**2).sum()), count + len(draws)
    expected = sigma**2 + 1 / 12
    z = (total / count / expected - 1) / np.sqrt(2 / count)
    assert abs(z) < stats.norm.isf(ALPHA / 2)
    assert abs(total / count / expected - 1) < 1e-3 * 1.7


def test_the_distance_is_tiny_and_grows_with_sigma():
    assert gaussian.distance(27.0) < gaussian.distance(270.0) < 2**-48
    with pytest.raises(ValueError, match="sigma"):
        gaussian.distance(0.1)
