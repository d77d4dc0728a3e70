"""Tables that turn one 64-bit word into a real draw with a proved error, in basic arithmetic only.

A word is a sign (top bit) and v, its other 63 bits: the first bits of a tail probability
p = (v + theta) / 2^64 in (0, 1/2), theta in (0, 1) being bits not drawn yet. The draw is +-x(p)
for a decreasing quantile function x: the standard Gaussian's, or the Laplace's -ln(2p).

(0, 1/2) is cut into octaves, octaves into 64 equal rows. A row holds a polynomial of degree 6 in
t = (p - centre) / half-width in [-1, 1], and a bound on everything that can go wrong, so the
kernels call no library function whose accuracy would have to be believed.

Proof of the bound (u = 2^-53; x^(8) is the eighth derivative, h the half-width of a row):

- truncation: the Taylor polynomial of degree 7 about the centre is off by at most
  |x^(8)| h^8 / 8! somewhere in the row. For both laws |x^(n)| falls with p (Laplace: (n-1)!/p^n.
  Gaussian: x'' = x x'^2, so by induction x^(n) = P(x) x'^n, P a polynomial with coefficients >= 0,
  and both x >= 0 and |x'| fall with p): its value at the lower end of the octave serves all rows.
  Replacing t^7 by (112 t^5 - 56 t^3 + 7 t) / 64 costs at most |a_7| / 64 more (Chebyshev).
- coefficients: rounding c_i costs u sum |c_i|. They are computed with 40 decimal digits; the error
  of that, below 1e-25, is covered by the last factor.
- Horner: the final addition costs u |x|; all other operations act on sums of c_1..c_6 and cost at
  most 12 u / (1 - 12 u) * S, S = sum_(i>=1) |c_i|.
- bits: t is converted with relative error u, and theta moves it by at most 2^(L-56), L the number
  of leading zeros of v; x moves by |x'| h (at the lower end of the octave) times that at most.

The stored bound is the sum of these, times 1 + 2^-20. Rows of p < 2^-40 are not tabulated: their
words, one in 2^39, are always settled in multiprecision (`settle`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import mpmath
import numpy as np

from streamveil.compiled import leading_zeros, ndtri, njit
from streamveil.types import Array, Float64

OCTAVES = 39  # tail probabilities down to 2^-40
ROWS = 64  # rows per octave
DEGREE = 7  # of the Taylor polynomial, before one Chebyshev step down
DIGITS = 40  # decimal digits of the table's construction
U = 2.0**-53

MASK = np.uint64(2**63 - 1)
ROW_MASK = np.uint64(ROWS - 1)
REST_MASK = np.uint64(2**57 - 1)
FIRST_TABULATED = np.uint64(1 << (63 - OCTAVES))
ONE, SIGN_SHIFT, ROW_SHIFT = np.uint64(1), np.uint64(63), np.uint64(57)

Taylor = Callable[[mpmath.MPContext, mpmath.mpf, mpmath.mpf, int], list[mpmath.mpf]]


@njit(cache=True)
def quantile_word(word, table):  # type: ignore[no-untyped-def]
    """(x, bound, tabulated): |x(p)| of one word, with |x - x(p)| <= bound when tabulated."""
    v = word & MASK
    tabulated = v >= FIRST_TABULATED
    v |= FIRST_TABULATED * np.uint64(not tabulated)  # stay inside the table; the result is not used
    zeros = leading_zeros(v)
    u = v << zeros
    row = table[((zeros - ONE) << np.uint64(6)) + ((u >> ROW_SHIFT) & ROW_MASK)]
    t = (np.int64(u & REST_MASK) - np.int64(2**56)) * 2.0**-56
    x = row[1] + t * (row[2] + t * (row[3] + t * (row[4] + t * (row[5] + t * row[6]))))
    return row[0] + t * x, row[7], tabulated


FILE = Path(__file__).with_name("quantiles.npz")


@cache
def gaussian_table() -> Float64[Array, "rows 8"]:
    """Rows of the standard Gaussian quantile x(p), P(G > x) = p."""
    return kept("gaussian")


@cache
def laplace_table() -> Float64[Array, "rows 8"]:
    """Rows of the standard Laplace quantile x(p) = -ln(2p)."""
    return kept("laplace")


def kept(name: str) -> Float64[Array, "rows 8"]:
    """A table from the file beside this module, which a test builds again and compares.

    `python -m streamveil.core.noise.samplers.quantiles` writes the file anew.
    """
    with np.load(FILE, allow_pickle=False) as tables:
        table: Float64[Array, "rows 8"] = tables[name]
    table.setflags(write=False)
    return table


def write_tables() -> None:
    """Builds both tables and writes them to their file."""
    np.savez_compressed(FILE, gaussian=build(gaussian_taylor), laplace=build(laplace_taylor))


def gaussian_taylor(mp: mpmath.MPContext, p: mpmath.mpf, h: mpmath.mpf, n: int) -> list[mpmath.mpf]:
    """Coefficients of x(p + h t) in t up to t^n, from x'' = x x'^2."""
    x = gaussian_quantile(mp, p)
    a = [x, -h * mp.sqrt(2 * mp.pi) * mp.exp(x * x / 2)]
    slopes, squares = [a[1]], [a[1] ** 2]  # coefficients of x' and x'^2
    for k in range(n - 1):
        a.append(sum(a[i] * squares[k - i] for i in range(k + 1)) / ((k + 2) * (k + 1)))
        slopes.append((k + 2) * a[k + 2])
        squares.append(sum(slopes[i] * slopes[k + 1 - i] for i in range(k + 2)))
    return a


def gaussian_quantile(mp: mpmath.MPContext, p: mpmath.mpf) -> mpmath.mpf:
    """X with P(G > x) = p, by Newton's method from a float64 start; p in (0, 1/2]."""
    x = mp.mpf(float(start(float(p)))) if p > 1e-300 else mp.sqrt(-2 * mp.log(p))
    goal, root = mp.mpf(2) ** (-mp.prec // 2 - 4), mp.sqrt(2)
    for _ in range(200):
        step = (mp.erfc(x / root) / 2 - p) * mp.sqrt(2 * mp.pi) * mp.exp(x * x / 2)
        x += step
        if abs(step) < goal:  # quadratic: the next step would be below the precision
            break
    return x


def start(p: float) -> float:
    """A float64 quantile to start from; its accuracy does not matter."""
    return -float(ndtri(p))


def laplace_taylor(mp: mpmath.MPContext, p: mpmath.mpf, h: mpmath.mpf, n: int) -> list[mpmath.mpf]:
    """Coefficients of -ln(2 (p + h t)) in t up to t^n."""
    ratio = -h / p
    return [-mp.log(2 * p), *(ratio**k / k for k in range(1, n + 1))]


def build(taylor: Taylor) -> Float64[Array, "rows 8"]:
    """All rows of one quantile function: c_0..c_6 and the bound of the module's proof."""
    mp = mpmath.MPContext()
    mp.dps = DIGITS
    table = np.empty((OCTAVES * ROWS, 8))
    for octave in range(OCTAVES):
        zeros = octave + 1
        low, h = mp.mpf(2) ** (-1 - zeros), mp.mpf(2) ** (-8 - zeros)
        edge = taylor(mp, low, h, DEGREE + 1)  # where every derivative is largest
        for j in range(ROWS):
            a = taylor(mp, low + (2 * j + 1) * h, h, DEGREE)
            table[octave * ROWS + j] = row_of(a, edge, zeros)
    table.setflags(write=False)
    return table


def row_of(a: list[mpmath.mpf], edge: list[mpmath.mpf], zeros: int) -> list[float]:
    """Coefficients after one Chebyshev step, and their bound."""
    a7 = a[DEGREE]
    c = [*a[:DEGREE]]
    for power, weight in ((5, 112), (3, -56), (1, 7)):
        c[power] = c[power] + a7 * weight / 64
    tail = sum(abs(x) for x in c[1:])
    bound = (
        abs(edge[DEGREE + 1])
        + abs(a7) / 64
        + U * (abs(c[0]) + tail)
        + U * (abs(c[0]) + tail)
        + 13 * U * tail
        + abs(edge[1]) * (U + 2.0 ** (zeros - 56))
    )
    return [*map(float, c), float(bound * (1 + 2.0**-20))]


if __name__ == "__main__":
    write_tables()
