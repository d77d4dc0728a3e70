"""The polar Gaussian in double-double arithmetic, for draws that double precision cannot decide.

A number is the exact sum of two floats. Sums and products follow Dekker (1971) and Knuth; series
run until their terms are below 2^-110. Slow, and reached about once in 10^12 draws.
"""

from __future__ import annotations

import math

import numpy as np

from streamveil.compiled import njit

PI_QUARTER = (0.7853981633974483, 3.061616997868383e-17)
LN2 = (0.6931471805599453, 2.3190468138462996e-17)
TERMS = 40


@njit(cache=True, error_model="numpy")
def add(a: float, b: float, c: float, d: float) -> tuple[float, float]:
    """(a + b) + (c + d)."""
    s = a + c
    t = s - a
    e = (a - (s - t)) + (c - t) + b + d
    high = s + e
    return high, e - (high - s)


@njit(cache=True, error_model="numpy")
def multiply(a: float, b: float, c: float, d: float) -> tuple[float, float]:
    """(a + b) * (c + d)."""
    x, y = a * 134217729.0, c * 134217729.0
    a1, c1 = x - (x - a), y - (y - c)
    a2, c2 = a - a1, c - c1
    p = a * c
    e = ((a1 * c1 - p) + a1 * c2 + a2 * c1) + a2 * c2 + a * d + b * c
    high = p + e
    return high, e - (high - p)


@njit(cache=True, error_model="numpy")
def divide(a: float, b: float, c: float, d: float) -> tuple[float, float]:
    """(a + b) / (c + d), by two corrections."""
    q = a / c
    high, low = q, 0.0
    for _ in range(2):
        p, r = multiply(high, low, c, d)
        p, r = add(a, b, -p, -r)
        high, low = add(high, low, p / c, 0.0)
    return high, low


@njit(cache=True, error_model="numpy")
def root(a: float, b: float) -> tuple[float, float]:
    """The square root of a + b > 0, by two Newton steps."""
    high, low = math.sqrt(a), 0.0
    for _ in range(2):
        p, r = divide(a, b, high, low)
        p, r = add(high, low, p, r)
        high, low = p / 2, r / 2
    return high, low


@njit(cache=True, error_model="numpy")
def whole(word: np.uint64) -> tuple[float, float]:
    """A 64-bit word, exactly."""
    return add(
        np.float64(word >> np.uint64(32)) * 4294967296.0, 0.0,
        np.float64(word & np.uint64(0xFFFFFFFF)), 0.0,
    )  # fmt: skip


@njit(cache=True, error_model="numpy")
def logarithm(word: np.uint64) -> tuple[float, float]:
    """log((word + 1/2) / 2^64)."""
    high, low = whole(word)
    high, low = add(high, low, 0.5, 0.0)
    octaves = 64
    while octaves and high < 2.0**63 * 1.414:
        high, low, octaves = 2 * high, 2 * low, octaves - 1  # value = m 2^(octaves - 128)
    m, n = high * 2.0**-64, low * 2.0**-64
    x, y = add(m, n, -1.0, 0.0)
    z, t = add(m, n, 1.0, 0.0)
    s, r = divide(x, y, z, t)
    square, rest = multiply(s, r, s, r)
    total, small = 0.0, 0.0
    for k in range(TERMS, -1, -1):  # atanh series: |s| <= 0.18
        one, tiny = divide(1.0, 0.0, 2.0 * k + 1.0, 0.0)
        total, small = multiply(total, small, square, rest)
        total, small = add(total, small, one, tiny)
    total, small = multiply(total, small, 2 * s, 2 * r)
    x, y = multiply(LN2[0], LN2[1], np.float64(octaves - 64), 0.0)
    return add(total, small, x, y)


@njit(cache=True, error_model="numpy")
def sine_cosine(x: float, y: float) -> tuple[float, float, float, float]:
    """Sine and cosine of x + y, at most a quarter of pi in size, by their series."""
    square, rest = multiply(x, y, x, y)
    s, t, c, d = 0.0, 0.0, 0.0, 0.0
    for k in range(TERMS // 2, -1, -1):
        p, q = multiply(s, t, square, rest)
        p, q = divide(p, q, -(2.0 * k + 2.0) * (2.0 * k + 3.0), 0.0)
        s, t = add(1.0, 0.0, p, q)
        p, q = multiply(c, d, square, rest)
        p, q = divide(p, q, -(2.0 * k + 1.0) * (2.0 * k + 2.0), 0.0)
        c, d = add(1.0, 0.0, p, q)
    s, t = multiply(s, t, x, y)
    return s, t, c, d


@njit(cache=True, error_model="numpy")
def precise_rounded(
    u: np.uint64,
    v: np.uint64,
    second: bool,  # noqa: FBT001 (compiled loops take no keywords)
    sigma: float,
    centre: float,
) -> int:
    """The nearest integer to sigma z + centre; z is the first or the second of the pair (u, v)."""
    a, b = logarithm(u)
    a, b = root(-2 * a, -2 * b)
    angle = np.int64(v << np.uint64(2))
    sign = 1.0
    if angle < 0:
        sign, angle = -1.0, -angle
    x, y = whole(np.uint64(angle))
    x, y = multiply(x * 2.0**-63, y * 2.0**-63, PI_QUARTER[0], PI_QUARTER[1])
    s, t, c, d = sine_cosine(x, y)
    s, t = sign * s, sign * t
    if v >> np.uint64(63):
        c, d = -c, -d
    turned = ((v >> np.uint64(62)) & np.uint64(1)) != 0
    if second != turned:
        c, d = s, t
    a, b = multiply(a, b, c, d)
    a, b = multiply(a, b, sigma, 0.0)
    a, b = add(a, b, centre, 0.0)
    nearest = np.rint(a)
    rest = a - nearest
    if rest == 0.5 and b > 0.0:  # their sum, rounded, would hide b
        nearest += 1.0
    elif rest == -0.5 and b < 0.0:
        nearest -= 1.0
    return int(nearest)
