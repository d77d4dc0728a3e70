"""Rounded Gaussian noise at memory speed: single precision decides, more precision when in doubt.

Algorithm: the polar method of Box & Muller (1958) on 64-bit uniforms u and v gives the Gaussian
    pair r cos(a), r sin(a) with r = sqrt(-2 ln u). What a sketch needs is only the nearest integer
    to sigma times that plus a known centre. The upper 32 bits of u and v decide it in single
    precision on vector registers, unless the result lies within `DOUBT` sigma of a rounding
    boundary or u is in an end zone; then, once in some thousand draws, the lower halves are drawn
    too and double precision decides; within `FINE_DOUBT` sigma of a boundary double-double
    precision does. So the integers are those of the formula in double-double precision, always.
Numerics: the distance of one draw from the ideal rounded Gaussian is at most `distance(sigma)`.
Proof: put continuous uniforms and their 64-bit midpoints side by side. They are within 2^-65, which
    moves sigma z by at most sigma 2^-65 |dz/du| + sigma 2^-65 |dz/dv|; on average that is at most
    sigma 2^-65 (9.5 + 7.9), because the integral of 1/(u r) du down to 2^-64 is r <= 9.5 and
    E|dz/dv| is at most 2 pi E r = 7.9; arithmetic adds less than sigma 2^-90. The integers differ
    only when a boundary lies between the two; boundaries are 1 apart and sigma is at least 1/2, so
    that has at most four times the mean move as probability. u below 2^-64 is missed with
    probability 2^-64. That single and double precision stay within their doubts is tested over
    exponents, mantissas and angles.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from streamveil.compiled import leading_zeros, njit
from streamveil.core.noise.bulk.keystream import GROUP, LOW_DOMAIN, fill, one_block
from streamveil.core.noise.bulk.lanes import shift_left
from streamveil.core.noise.bulk.precise import precise_rounded
from streamveil.errors import PlanError
from streamveil.types import Array, Float32, UInt32, UInt64

PIECE = 1024  # cells noised together: their work space is small for a first-level cache
DOUBT = 2e-6  # bound on the error of a single-precision standard Gaussian (largest seen 1e-6)
FINE_DOUBT = 2.0**-40  # bound on the error of one in double precision (largest seen 2^-50)
LOW_EDGE, HIGH_EDGE = 2**18, 2**12  # upper words of u so near 0 or 2^32 go to double precision
LARGEST_NORMAL = 4.5  # above all values of `standard_pairs` outside the end zones of u
UNSURE = np.int32(-(2**31))  # in place of an integer that single precision cannot decide
SMALLEST_SIGMA = 0.5
LOW_HALF = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)

_LOG = (1.0, -0.49999988079071045, 0.33333322405815125, -0.25001588463783264, 0.20002083480358124,
        -0.16609050333499908, 0.1417977511882782, -0.13241209089756012, 0.12916399538516998,
        -0.07640460878610611)  # fmt: skip  # log(1+f)/f on [-0.293, 0.4143], relative error 5e-9
_SIN = (1.0, -0.16666650772094727, 0.008332036435604095, -0.0001950396253960207)  # sin(x)/x in x^2
_COS = (1.0, -0.5, 0.04166661575436592, -0.0013886619126424193, 2.4379880414926447e-05)
L0, L1, L2, L3, L4, L5, L6, L7, L8, L9 = (np.float32(c) for c in _LOG)
S1, S2, S3 = (np.float32(c) for c in _SIN[1:])
C1, C2, C3, C4 = (np.float32(c) for c in _COS[1:])
LN2_64 = math.log(2)
LN2 = np.float32(LN2_64)
D2, D4, D6, D8, D10, D12, D14, D16 = ((-1) ** (k // 2) / math.factorial(k) for k in range(2, 17, 2))
D3, D5, D7, D9, D11, D13, D15 = ((-1) ** (k // 2) / math.factorial(k) for k in range(3, 16, 2))
ONE_64, TOP_64, ROOT_HALF_64 = np.uint64(1), np.uint64(2**63), np.uint64(0xB504F333F9DE6484)
TURN = np.float32(math.pi / 4 / 2**31)
ONE = np.float32(1)
MINUS_TWO = np.float32(-2)
NOT_A_NUMBER = np.float32(np.nan)
SMALL32 = np.float32(2.0**-32)
SMALL31 = np.float32(2.0**-31)
MIDDLE = np.uint32(2**32 - LOW_EDGE - HIGH_EDGE)
ROOT_HALF = np.uint32(0xB504F334)  # sqrt(1/2) * 2^32


class Scratch(NamedTuple):
    """Work space of one piece."""

    normal: Array
    words: Array
    noise: Array
    change: Array
    shift: Array
    size: Array
    block: Array


@njit(cache=True)
def new_scratch() -> Scratch:
    """Empty work space.

    The arrays lie in one block at distances that are not near a multiple of 4096: a processor takes
    a load for dependent on a recent store when their addresses agree in the low 12 bits.
    """
    raw = np.zeros(12 * PIECE + 1024, np.uint8)
    base = (64 - raw.ctypes.data % 64) % 64
    second, third = base + 4 * PIECE + 320, base + 8 * PIECE + 640
    noise = raw[third : third + 4 * PIECE].view(np.int32)
    return Scratch(
        raw[second : second + 4 * PIECE].view(np.float32),
        raw[base : base + 4 * PIECE + 256].view(np.uint32),
        noise,
        np.empty(PIECE, np.int64),
        np.empty(PIECE, np.float32),
        np.empty(PIECE, np.float32),
        np.empty(2, np.uint64),
    )


def distance(sigma: float) -> Fraction:
    """An upper bound on the total-variation distance of one draw from the rounded Gaussian."""
    if sigma < SMALLEST_SIGMA:
        raise PlanError(f"sigma must be at least {SMALLEST_SIGMA}, not {sigma}")
    return Fraction(sigma) / 2**58 + Fraction(1, 2**63)


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def standard_pairs(
    words: UInt32[Array, " words"], half: int, pairs: int, normal: Float32[Array, " cells"]
) -> None:
    """Approximate standard Gaussians; NaN in the end zones of u.

    Pair q comes from words q (radius) and half + q (angle) and goes to cells q and pairs + q.
    """
    angles = words[half : half + pairs]  # slices, as sums of indices would not vectorise
    first, second = normal[:pairs], normal[pairs : 2 * pairs]
    for q in range(pairs):
        a = words[q]
        zeros = leading_zeros(np.uint32(a))
        m = shift_left(np.uint32(a), zeros)
        large = m >= ROOT_HALF
        f = (
            np.float32(np.int32(m)) * SMALL32
            if large
            else np.float32(np.int32(m ^ np.uint32(0x80000000))) * SMALL31
        )
        octaves = np.float32(np.int32(zeros)) if large else np.float32(np.int32(zeros) + 1)
        p = L8 + f * L9
        p = L7 + f * p
        p = L6 + f * p
        p = L5 + f * p
        p = L4 + f * p
        p = L3 + f * p
        p = L2 + f * p
        p = L1 + f * p
        p = L0 + f * p
        r = np.sqrt(MINUS_TWO * (f * p - octaves * LN2))
        b = angles[q]
        x = np.float32(np.int32(np.uint32(b << np.uint32(2)))) * TURN
        y = x * x
        s = x + x * y * (S1 + y * (S2 + y * S3))
        c = ONE + y * (C1 + y * (C2 + y * (C3 + y * C4)))
        c = -c if b & np.uint32(0x80000000) else c
        r = r if np.uint32(a - np.uint32(LOW_EDGE)) < MIDDLE else NOT_A_NUMBER
        turned = (b & np.uint32(0x40000000)) != 0
        first[q] = r * (s if turned else c)
        second[q] = r * (c if turned else s)


@njit(inline="always")
def logarithm(u: np.uint64) -> float:
    """log((u + 1/2) / 2^64): octaves apart, twice the series of the inverse tangent."""
    if not u:
        return -65.0 * LN2_64
    zeros = leading_zeros(u)
    m, half = u << zeros, 0.5 * np.float64(ONE_64 << zeros)
    if m >= ROOT_HALF_64:
        f, octaves = (half - 1.0 - np.float64(~m)) * 2.0**-64, np.float64(zeros)
    else:
        f, octaves = (np.float64(m - TOP_64) + half) * 2.0**-63, np.float64(zeros) + 1.0
    s = f / (2.0 + f)
    y = s * s
    p = 1 / 21
    for odd in (19, 17, 15, 13, 11, 9, 7, 5, 3):
        p = 1.0 / odd + y * p
    return 2.0 * (s + s * y * p) - octaves * LN2_64


@njit(cache=True, error_model="numpy")
def exact_pair(u: np.uint64, v: np.uint64) -> tuple[float, float]:
    """The Gaussian pair of two 64-bit words in double precision."""
    r = np.sqrt(-2.0 * logarithm(u))
    x = np.float64(np.int64(v << np.uint64(2))) * (math.pi / 4 * 2.0**-63)
    y = x * x
    s = x * (1 + y * (D3 + y * (D5 + y * (D7 + y * (D9 + y * (D11 + y * (D13 + y * D15)))))))
    c = 1 + y * (D2 + y * (D4 + y * (D6 + y * (D8 + y * (D10 + y * (D12 + y * (D14 + y * D16)))))))
    if v >> np.uint64(63):
        c = -c
    if (v >> np.uint64(62)) & np.uint64(1):
        s, c = c, s
    return r * c, r * s


@njit(cache=True, error_model="numpy")
def careful_draw(
    keys: UInt64[Array, "16 8"],
    place: tuple[int, int, int],
    law: tuple[float, float],
    words: UInt32[Array, " words"],
    block: UInt64[Array, " 2"],
) -> int:
    """The rounded Gaussian of one cell of a piece in double precision, or more when in doubt.

    `place` is (group, cell, cells of the piece), `law` is (sigma, centre), `words` are the upper
    words of the piece.
    """
    group, cell, cells = place
    sigma, centre = law
    pairs = (cells + 1) // 2
    second = cell >= pairs
    q = cell - pairs if second else cell
    half = (pairs + GROUP - 1) // GROUP * GROUP
    a, b = np.uint64(words[q]), np.uint64(words[half + q])
    one_block(keys, LOW_DOMAIN, np.uint64(group * (GROUP // 2) + q // 2), block)
    low = block[q % 2]
    u, v = (a << HALF) | (low >> HALF), (b << HALF) | (low & LOW_HALF)
    pair = exact_pair(u, v)
    x = sigma * (pair[1] if second else pair[0]) + centre
    nearest = np.rint(x)
    if np.abs(x - nearest) < 0.5 - FINE_DOUBT * (sigma + np.abs(x) + np.abs(centre)):
        return int(nearest)
    return precise_rounded(u, v, second, sigma, centre)


@njit(inline="always")
def centre_of(omega: Array, buffers: Array, cell: int) -> float:
    """The centre about which the noise of a cell is rounded, in double precision."""
    centre = 0.0
    for i in range(len(omega)):
        centre -= omega[i] * np.float64(buffers[i, cell])
    return centre


@njit(cache=True, error_model="numpy")
def rounded_piece(
    keys: UInt64[Array, "16 8"],
    place: tuple[int, int, int],
    law: tuple[float, Array],
    buffers: Array,
    scratch: Scratch,
) -> None:
    """scratch.noise[c] = nearest integer to sigma * (Gaussian of cell c) - sum omega * buffers[c].

    `place` is (group, start, end): cells start..end of the buffers, at most PIECE, and words from
    `group` on. `law` is (sigma, omega), omega being empty for a tree.
    """  # fmt: skip
    group, start, end = place
    if len(keys) == 0:
        round_silently(law[1], buffers, start, end, scratch.noise)
        return
    pairs = (end - start + 1) // 2
    groups = (pairs + GROUP - 1) // GROUP
    fill(keys, group * (GROUP // 2), scratch.words, groups)
    standard_pairs(scratch.words, groups * GROUP, pairs, scratch.normal)
    if round_all(law, buffers, start, end, scratch):
        settle(keys, place, law, buffers, scratch)


@njit(cache=True)
def round_silently(omega: Array, buffers: Array, start: int, end: int, noise: Array) -> None:
    """The rounded centres, without noise."""
    for c in range(end - start):
        noise[c] = np.int64(np.rint(centre_of(omega, buffers, start + c)))


@njit(inline="always")
def settle(
    keys: UInt64[Array, "16 8"],
    place: tuple[int, int, int],
    law: tuple[float, Array],
    buffers: Array,
    scratch: Scratch,
) -> None:
    """Decides the doubtful cells of a piece with more precision."""  # fmt: skip
    group, start, end = place
    cells, noise, words = end - start, scratch.noise, scratch.words
    doubts, at = 0, 0  # their number and the sum of their places: for one doubt, its place
    for c in range(cells):
        doubts += noise[c] == UNSURE
        at += c if noise[c] == UNSURE else 0
    first, last = (at, at + 1) if doubts == 1 else (0, cells)
    for c in range(first, last):
        if noise[c] == UNSURE:
            gauss = (law[0], centre_of(law[1], buffers, start + c))
            noise[c] = careful_draw(keys, (group, c, cells), gauss, words, scratch.block)


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def round_about(sigma: float, omega: float, normal: Array, buffer: Array, noise: Array) -> bool:
    """Rounds in single precision about one buffer; says whether some integers are `UNSURE`.

    Proof: besides `DOUBT`, the scaled Gaussian goes through three roundings and the centre through
        four, of 2^-24 of their size each, and the comparison through two of less than 1/2.
    """
    scale, weight = np.float32(sigma), np.float32(-omega)
    bound = np.float32(0.5 - 2.0**-23 - (DOUBT + 3 * 2.0**-24 * LARGEST_NORMAL) * sigma)
    relative = np.float32(2.0**-22)
    least = np.int32(0)
    for c in range(len(buffer)):
        shift = weight * np.float32(buffer[c])
        x = scale * normal[c] + shift
        nearest = np.rint(x)
        sure = np.abs(x - nearest) + relative * np.abs(shift) < bound
        z = np.int32(nearest) if sure else UNSURE
        noise[c] = z
        least = z if z < least else least
    return bool(least == UNSURE)


@njit(cache=True, fastmath={"contract"}, error_model="numpy")
def round_all(
    law: tuple[float, Array], buffers: Array, start: int, end: int, scratch: Scratch
) -> bool:
    """`round_about` for any number of buffers, none for a tree.

    Proof: besides `DOUBT`, the scaled Gaussian goes through two roundings, the sum through one, and
        the centre through three and one for each buffer, of 2^-24 of their size each: the Gaussian
        is at most the sum and the sizes of all shifts together.
    """
    sigma, omega = law
    normal, shifts, sizes = scratch.normal, scratch.shift, scratch.size
    cells = end - start
    for c in range(cells):
        shifts[c] = np.float32(0)
        sizes[c] = np.float32(0)
    for i in range(len(omega)):
        weight, buffer = np.float32(-omega[i]), buffers[i, start:end]
        for c in range(cells):
            shift = weight * np.float32(buffer[c])
            shifts[c] += shift
            sizes[c] += np.abs(shift)
    scale = np.float32(sigma)
    bound = np.float32(0.5 - 2.0**-23 - DOUBT * sigma)
    relative = np.float32((6 + len(omega)) * 2.0**-24)
    noise = scratch.noise
    least = np.int32(0)
    for c in range(cells):
        x = scale * normal[c] + shifts[c]
        nearest = np.rint(x)
        sure = np.abs(x - nearest) + relative * (np.abs(x) + sizes[c]) < bound
        z = np.int32(nearest) if sure else UNSURE
        noise[c] = z
        least = z if z < least else least
    return bool(least == UNSURE)
