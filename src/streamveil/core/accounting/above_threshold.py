"""One key's AboveThreshold with a table of coins: its exact laws and the bounds on its curves.

A key with S distinct units has the gap a = threshold + Z - S, Z geometric: P(Z = j) = (1-q) q^j
with q = e^-shift_epsilon. At every trigger it opens with probability pi(a), by a fresh coin.

`Coins` holds pi as exact 64-bit coins. `worst_openings` bounds how much likelier an extra unit can
make any set of opening times; `selection.SelectionTable` proves what follows for a whole job.
`near` in a name: about the same in floats, for a search whose result is then certified.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from streamveil.compiled import njit
from streamveil.core.accounting.pld import CurvePoints
from streamveil.errors import require_positive
from streamveil.types import Array, Float64, Int64

COIN = 1 << 64
THIN = 8  # rows kept per unit of ln(pi / (1 - pi)), where a search compares tables
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
        """pi(0), pi(1), ... , pi(len + 1) as floats, for forecasts and searches."""
        return np.array([float(self.chance(gap)) for gap in range(len(self.coins) + 2)])

    def reach(self, step: float, most: float) -> float:
        """See `reach_of`."""
        return reach_of(self.chances, step, most)


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
        it adds nothing when gamma >= 1. A gap whose opening gains nothing is passed over: there
        (1 - pi(a)) V_(t+1)(r rho_a) <= V_(t+1)(r), as rho_a <= 1 and V does not fall with r. W is a
        maximum of convex functions of x with W(0) = 0, and does not fall: a chord between nodes
        lies above it, and so does a chord to 0 below the last.
    Numerics: upper bounds throughout. All terms are non-negative, six operations a step, raised by
        2^-49 each step; chord weights are raised by 1e-12; shifts are rounded to larger x.
    """
    require_positive(horizon=horizon, step=step, reach=reach)
    pairs = list(pairwise((COIN, *coins.coins, 0)))
    rows = GapChoices(
        more=np.array([more / COIN for more, _ in pairs]),
        less=np.array([less / COIN for _, less in pairs]),
        stay=np.array([(COIN - less) / COIN for _, less in pairs]),
        shrink=np.array([(COIN - more) / (COIN - less) for more, less in pairs]),
    )
    worst = _worst(rows, horizon, step, reach)
    worst.flags.writeable = False  # shared by all who ask
    return worst


def worst_near(
    chances: Float64[Array, " gaps"], horizon: int, step: float, reach: float
) -> Float64[Array, " nodes"]:
    """About `worst_openings`, from `Coins.chances`: of gaps that are much alike, one is tried."""
    more, less = chances[:-1], chances[1:]
    logit = np.log(more[1:]) - np.log1p(-more[1:])
    kept = np.concatenate([[True, True], np.diff(np.floor(logit * THIN)) != 0])
    kept[-1] = True
    more, less = more[kept], less[kept]
    return _worst(GapChoices(more, less, 1 - less, (1 - more) / (1 - less)), horizon, step, reach)


def reach_of(chances: Float64[Array, " gaps"], step: float, most: float) -> float:
    """How far `worst_openings` must look for losses up to `most`: W is a line beyond the rest.

    Proof: let x be below pi(a) / pi(a-1) at every gap a of the table. There [x pi(a-1) - pi(a)]+
        is 0 but at the last gap, whose pi(a) is 0, and what follows is asked of W at smaller x: by
        induction W(x) = c x. Eight steps more, for rounding. Any reach is sound, as a chord to 0
        lies above W: a shorter one would only be less tight.
    """
    fall = float(np.max(np.log(chances[:-2] / chances[1:-1])))
    return min(most, fall + 8 * step)


@dataclass(frozen=True, eq=False)
class GapChoices:
    """What an adversary chooses from: one gap each, correctly rounded but for `worst_near`."""

    more: Float64[Array, " rows"]  # pi with the unit more
    less: Float64[Array, " rows"]  # pi without it
    stay: Float64[Array, " rows"]  # 1 - less
    shrink: Float64[Array, " rows"]  # (1 - more) / (1 - less)


def _worst(rows: GapChoices, horizon: int, step: float, reach: float) -> Float64[Array, " nodes"]:
    """See `worst_openings`."""
    nodes = np.exp(-step * np.arange(int(np.ceil(reach / step)) + 1))
    jump, weight = _chords(rows.shrink * (1 + 1e-15), step)
    beyond = np.exp(-step * np.arange(1, int(np.max(jump)) + 3)) * (1 + 1e-12)
    more, less, stay = rows.more * (1 + 1e-15), rows.less * (1 - 1e-15), rows.stay * (1 + 1e-15)
    table = np.stack([more, less, stay, weight], axis=1)
    worst: Array = _iterate(horizon, nodes, table, jump, beyond)
    return worst


def _chords(
    shrink: Float64[Array, " rows"], step: float
) -> tuple[Int64[Array, " rows"], Float64[Array, " rows"]]:
    """The node at or above e^(-s) = shrink, as a number of steps, and the weight it gets.

    -1 and 0 where the survivor with the unit more is gone: W(0) = 0.
    """
    gone = shrink <= 0.0
    logs = np.log(np.where(gone, 1.0, shrink))
    place = np.maximum(0, np.floor(-logs * (1 - 1e-14) / step)).astype(np.int64)
    upper, lower = np.exp(-step * place), np.exp(-step * (place + 1))
    weight = (shrink - lower) / (upper - lower) + 1e-12
    return np.where(gone, -1, place), np.where(gone, 0.0, weight)


@njit(cache=True)
def _iterate(horizon: int, nodes: Array, rows: Array, jump: Array, beyond: Array) -> Array:
    """See `worst_openings`; each of `rows` is a gap's more, less, stay and weight."""
    count = len(nodes)
    more, less, stay, weight = rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3]
    ends = np.zeros(len(stay), np.int64)  # nodes, from the first, at which an opening gains
    for row in range(len(stay)):
        while ends[row] < count and nodes[ends[row]] * more[row] > less[row]:
            ends[row] += 1
    worst, later = np.zeros(count + len(beyond)), np.zeros(count + len(beyond))
    for _ in range(horizon):
        later[:] = worst
        for row in range(len(stay)):
            with_it, without, s, w = more[row], less[row], stay[row], weight[row]
            place, end = jump[row], ends[row]
            if place < 0:
                for i in range(end):
                    gain = (nodes[i] * with_it - without) * (1 + 1e-15)
                    later[i] = max(later[i], gain * (1 + 2.0**-49))
                continue
            upper, lower = worst[place : place + end], worst[place + 1 : place + 1 + end]
            for i in range(end):
                gain = (nodes[i] * with_it - without) * (1 + 1e-15)
                value = gain + s * (w * upper[i] + (1 - w) * lower[i])
                later[i] = max(later[i], value * (1 + 2.0**-49))
        for j in range(len(beyond)):
            later[count + j] = later[count - 1] * beyond[j]
        worst, later = later, worst
    return worst[:count].copy()


def curve_with(worst: Float64[Array, " nodes"], step: float, shift_places: int) -> CurvePoints:
    """Points above the curve of (with a unit, without it), q = e^(-step * shift_places).

    From gamma = 1 up: gamma W(1/gamma). Below, h(gamma) = 1 - gamma + gamma h'(1/gamma) with the
    reverse curve h' of `curve_without`; only its corner at q matters for the hull.
    """
    corner = np.exp(-step * shift_places)
    places = np.arange(len(worst))
    gammas = np.exp(step * places) * (1 + 1e-14)  # W(1/gamma) <= W(x_i)
    heights = np.minimum(gammas * worst * UP, 1.0)
    return CurvePoints(
        np.append(corner, gammas),
        np.append((1 - corner) * (1 + 1e-14) + 1e-15, heights),
        np.append(-shift_places, places),
    )


def curve_without(worst: Float64[Array, " nodes"], step: float, shift_places: int) -> CurvePoints:
    """Points above the curve of (without a unit, with it).

    From gamma = 1 up the curve is at most 1 - gamma q: a line, so its two ends do. Below,
    h(gamma) = 1 - gamma + gamma h'(1/gamma) = 1 - gamma + W(gamma).
    """
    places = np.arange(len(worst))
    gammas = np.exp(-step * places) * (1 - 1e-14)  # W(gamma) <= W(x_i)
    heights = np.minimum((1 - gammas + worst) * (1 + 1e-15), 1.0)
    corner = (1 - np.exp(-step * shift_places)) * (1 + 1e-14) + 2e-14  # at 1 - 1e-14
    heights[0] = min(heights[0], corner)
    return CurvePoints(
        np.append(gammas, np.exp(step * shift_places) * (1 + 1e-14)),
        np.append(heights, 0.0),
        np.append(-places, shift_places),
    )
