"""One key's AboveThreshold with a table of coins: its exact laws and the bounds on its curves.

A key with S distinct units has the gap a = threshold + Z - S, Z geometric: P(Z = j) = (1-q) q^j
with q = e^-shift_epsilon. At every trigger it opens with probability pi(a), by a fresh coin.

`Coins` holds pi as exact 64-bit coins. `worst_openings` bounds how much likelier an extra unit can
make any set of opening times; `selection.TableSelection` proves what follows for a whole job.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
from numba import njit

from streamveil.errors import require_positive
from streamveil.mechanisms.pld import Points
from streamveil.types import Array, Float64, Int64

COIN = 1 << 64
STEEPEST = 6  # the largest fall of ln(pi) per gap
UP = 1 + 2.0**-49


@dataclass(frozen=True)
class Coins:
    """pi(a) = coins[a-1] / 2^64 for gaps a = 1..len; 1 below, 0 above. Falls with the gap.

    The threshold is len + 2: a key with at most one unit has a gap of at least len + 1, so it can
    never open, whatever Z is.

    >>> Coins((2**63, 2**60)).threshold
    4
    """

    coins: tuple[int, ...]

    def __post_init__(self) -> None:
        row = (COIN, *self.coins, 0)
        if not self.coins or any(a < b for a, b in pairwise(row)):
            raise ValueError("coins must fall from at most 2^64 to at least 0")
        if self.coins[0] == COIN or self.coins[-1] == 0:
            raise ValueError("a coin in the table must be above 0 and below 2^64")

    @property
    def threshold(self) -> int:
        """The units a key needs, before Z is added, to have gap 0."""
        return len(self.coins) + 2

    def chance(self, gap: int) -> Fraction:
        """pi(gap), exactly."""
        if gap <= 0:
            return Fraction(1)
        return Fraction(self.coins[gap - 1], COIN) if gap <= len(self.coins) else Fraction(0)

    @cached_property
    def chances(self) -> Float64[Array, " gaps"]:
        """pi(0), pi(1), ... , pi(len + 1) as floats, for forecasts only."""
        return np.array([float(self.chance(gap)) for gap in range(len(self.coins) + 2)])


@dataclass(frozen=True)
class TableShape:
    """A family of tables: ln(pi) falls by `slope` per gap, and faster where openings are rare.

    With rare = ln(1 / (horizon pi)) > 0 it falls by slope + bend * rare^power, at most by STEEPEST.
    The table ends with the first coin of at most floor / horizon. Every coin is rounded once to
    2^-64; the guarantee is computed from the rounded coins.
    """

    horizon: int  # tests of one key
    slope: Fraction
    bend: Fraction  # how fast the fall grows beyond that point
    power: Fraction
    floor: Fraction  # what an opening at the last gap may cost in delta

    def coins(self) -> Coins:
        """The table. Decimal arithmetic: the same on every machine."""
        with localcontext() as context:
            context.prec = 50
            horizon, slope, bend = Decimal(self.horizon), _decimal(self.slope), _decimal(self.bend)
            floor, power = _decimal(self.floor), _decimal(self.power)
            log_pi, coins = Decimal(0), []
            while True:
                rare = -(horizon.ln() + log_pi)  # ln(1 / (horizon pi))
                fall = slope + bend * rare**power if rare > 0 else slope
                log_pi -= min(Decimal(STEEPEST), fall)
                chance = log_pi.exp()
                coins.append(int(chance * COIN + Decimal("0.5")))
                if horizon * chance <= floor:
                    return Coins(tuple(coins))


def _decimal(number: Fraction) -> Decimal:
    return Decimal(number.numerator) / Decimal(number.denominator)


@lru_cache(maxsize=16)
def worst_openings(
    coins: Coins, horizon: int, step: float, reach: float
) -> Float64[Array, " nodes"]:
    """The worst advantage W(x_i), rounded up, for x_i = e^(-step i) down to e^-reach.

    W(x) is the largest sum over t of [x P1(t) - P0(t)]+ that any stream reaches; P0(t), P1(t) are
    the chances that a key opens at test t without and with one unit more, given Z; gamma W(1 /
    gamma) thus bounds the curve of (with, without) for every gamma >= 1.

    Algorithm: with r = (survival with) / (survival without) so far and gap a,
        V_t(r) = max over a of [r pi(a-1) - gamma pi(a)]+ + (1 - pi(a)) V_(t+1)(r rho_a),
        rho_a = (1 - pi(a-1)) / (1 - pi(a)), V_(horizon+1) = 0. As V is homogeneous in (r, gamma),
        one table W_t(x) = V_t(x gamma) / gamma serves all gamma.
    Proof: the units of others may follow any path, chosen with knowledge of everything released, so
        every gap is allowed at every test; not opening is likelier without the unit (pi falls), so
        it adds nothing when gamma >= 1. W is a maximum of convex functions of x with W(0) = 0, and
        does not fall: a chord between nodes lies above it, and so does a chord to 0 below the last.
    Numerics: upper bounds throughout. All terms are non-negative, six operations a step, raised by
        2^-49 each step; chord weights are raised by 1e-12; shifts are rounded to larger x.
    """
    require_positive(horizon=horizon, step=step, reach=reach)
    nodes = np.exp(-step * np.arange(int(np.ceil(reach / step)) + 1))
    gain = np.empty((len(coins.coins) + 1, len(nodes)))
    stay, weight, jump = (np.empty(len(gain)) for _ in range(3))
    for row, (more, less) in enumerate(pairwise((COIN, *coins.coins, 0))):
        gain[row] = nodes * (more / COIN) * (1 + 1e-15) - less / COIN * (1 - 1e-15)
        stay[row] = (COIN - less) / COIN * (1 + 1e-15)
        shrink = (COIN - more) / (COIN - less) * (1 + 1e-15)
        jump[row], weight[row] = _chord(shrink, step)
    gain = np.maximum(gain, 0.0) * (1 + 1e-15)
    beyond = np.exp(-step * np.arange(1, int(np.nanmax(jump)) + 3)) * (1 + 1e-12)
    worst = _iterate(horizon, gain, stay, weight, jump.astype(np.int64), beyond)
    worst.flags.writeable = False  # shared by all who ask
    return worst


def _chord(shrink: float, step: float) -> tuple[int, float]:
    """The node at or above e^(-s) = shrink, as a number of steps, and the weight it gets."""
    if shrink <= 0.0:
        return -1, 0.0  # the survivor with the unit more is gone: W(0) = 0
    place = max(0, int(np.floor(-np.log(shrink) * (1 - 1e-14) / step)))
    upper, lower = np.exp(-step * place), np.exp(-step * (place + 1))
    return place, float((shrink - lower) / (upper - lower)) + 1e-12


@njit(cache=True)
def _iterate(
    horizon: int,
    gain: Array,
    stay: Array,
    weight: Array,
    jump: Array,
    beyond: Array,
) -> Array:
    """See `worst_openings`."""
    nodes = gain.shape[1]
    worst, later = np.zeros(nodes + len(beyond)), np.zeros(nodes + len(beyond))
    for _ in range(horizon):
        later[:] = worst
        for row in range(len(stay)):
            place, w, s = jump[row], weight[row], stay[row]
            if place < 0:
                for i in range(nodes):
                    later[i] = max(later[i], gain[row, i] * (1 + 2.0**-49))
                continue
            upper, lower = worst[place : place + nodes], worst[place + 1 : place + 1 + nodes]
            for i in range(nodes):
                value = gain[row, i] + s * (w * upper[i] + (1 - w) * lower[i])
                later[i] = max(later[i], value * (1 + 2.0**-49))
        for j in range(len(beyond)):
            later[nodes + j] = later[nodes - 1] * beyond[j]
        worst, later = later, worst
    return worst[:nodes].copy()


def _thinned(nodes: int, shift_places: int) -> Int64[Array, " kept"]:
    """Fewer points where losses are large and rare; any subset of points is sound."""
    places: Array = np.arange(nodes)
    kept: Array = places[(places < 8 * shift_places) | (places % 8 == 0)]
    return kept


def curve_with(worst: Float64[Array, " nodes"], step: float, shift_places: int) -> Points:
    """Points above the curve of (with a unit, without it), q = e^(-step * shift_places).

    From gamma = 1 up: gamma W(1/gamma). Below, h(gamma) = 1 - gamma + gamma h'(1/gamma) with the
    reverse curve h' of `curve_without`; only its corner at q matters for the hull.
    """
    corner = np.exp(-step * shift_places)
    places = _thinned(len(worst), shift_places)
    gammas = np.exp(step * places) * (1 + 1e-14)  # W(1/gamma) <= W(x_i)
    heights = np.minimum(gammas * worst[places] * UP, 1.0)
    return Points(
        np.append(corner, gammas),
        np.append((1 - corner) * (1 + 1e-14) + 1e-15, heights),
        np.append(-shift_places, places),
    )


def curve_without(worst: Float64[Array, " nodes"], step: float, shift_places: int) -> Points:
    """Points above the curve of (without a unit, with it).

    From gamma = 1 up the curve is at most 1 - gamma q: a line, so its two ends do. Below,
    h(gamma) = 1 - gamma + gamma h'(1/gamma) = 1 - gamma + W(gamma).
    """
    places = _thinned(len(worst), shift_places)
    gammas = np.exp(-step * places) * (1 - 1e-14)  # W(gamma) <= W(x_i)
    heights = np.minimum((1 - gammas + worst[places]) * (1 + 1e-15), 1.0)
    corner = (1 - np.exp(-step * shift_places)) * (1 + 1e-14) + 2e-14  # at 1 - 1e-14
    heights[0] = min(heights[0], corner)
    return Points(
        np.append(gammas, np.exp(step * shift_places) * (1 + 1e-14)),
        np.append(heights, 0.0),
        np.append(-places, shift_places),
    )
