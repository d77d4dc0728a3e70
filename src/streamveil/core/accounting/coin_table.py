"""The loss of a table of coins: the exact laws of one key's AboveThreshold, and of all keys.

A key with S distinct units has the gap a = threshold + Z - S, Z geometric: P(Z = j) = (1-q) q^j
with q = e^-shift_epsilon. At every trigger it opens with probability pi(a), by a fresh coin.

`Coins` holds pi as exact 64-bit coins. `worst_openings` bounds how much likelier an extra unit can
make any set of opening times; `selection.SelectionTable` proves what follows for a whole job.
`near` in a name: approximately the same, in floats, for a search whose result is then certified.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from math import exp
from typing import Any, TypeAlias

import mpmath
import numpy as np

from streamveil.compiled import njit
from streamveil.core.accounting import convert, float_above
from streamveil.core.accounting.convert import CurvePoints, LossLaw, law_under
from streamveil.core.accounting.sequel import Sequel
from streamveil.errors import require_positive
from streamveil.types import Array, Float64, Int64, UInt64

COIN = 1 << 64
EACH, ALIKE, TRIES = 1024, 128, 8  # tests computed one by one; later a run has (t - EACH) / ALIKE
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
    Runs: the map from W_t to W_(t+1) is monotone and convex, being a maximum of affine maps with
        weights of at least 0. So let U = W_t + k D lie k tests ahead, where one test raises W_t by
        at most D, and U by at most D: then it raises all tables between them by at most D, and by
        induction W_(t+j) <= W_t + j D for j up to k. Late tests are much alike, and D is tried as
        what one test adds, then as what U needs; after `TRIES` in vain one test is computed. U must
        not fall with x either: a raised chord weight would else lower a value.
    Numerics: upper bounds throughout. All terms are non-negative, six operations a step, raised by
        2^-49 each step; chord weights are raised by 1e-12; shifts are rounded to larger x.
    """
    require_positive(horizon=horizon, step=step, reach=reach)
    rows = [
        (more / COIN, less / COIN, (COIN - less) / COIN, (COIN - more) / (COIN - less))
        for more, less in pairwise((COIN, *coins.coins, 0))
    ]
    worst = _worst(np.array(rows), horizon, step, reach)
    worst.flags.writeable = False  # shared by all who ask
    return worst


def worst_near(
    chances: Float64[Array, " gaps"], horizon: int, step: float, reach: float
) -> Float64[Array, " nodes"]:
    """`worst_openings` approximately, from `Coins.chances`: one of several like gaps is tried."""
    more, less = chances[:-1], chances[1:]
    logit = np.log(more[1:]) - np.log1p(-more[1:])
    kept = np.concatenate([[True, True], np.diff(np.floor(logit * THIN)) != 0])
    kept[-1] = True
    more, less = more[kept], less[kept]
    rows = np.stack([more, less, 1 - less, (1 - more) / (1 - less)], axis=1)
    return _worst(rows, horizon, step, reach)


def reach_of(chances: Float64[Array, " gaps"], step: float, most: float) -> float:
    """How far `worst_openings` must look for losses up to `most`: W is a line beyond the rest.

    Proof: let x be below pi(a) / pi(a-1) at every gap a of the table. There [x pi(a-1) - pi(a)]+
        is 0 but at the last gap, whose pi(a) is 0, and what follows is asked of W at smaller x: by
        induction W(x) = c x. Eight steps more, for rounding. Any reach is sound, as a chord to 0
        lies above W: a shorter one would only be less tight.
    """
    fall = float(np.max(np.log(chances[:-2] / chances[1:-1])))
    return min(most, fall + 8 * step)


def _worst(
    rows: Float64[Array, "gaps 4"], horizon: int, step: float, reach: float
) -> Float64[Array, " nodes"]:
    """See `worst_openings`; a row for each gap: pi with one unit more, pi, 1 - pi, rho."""
    nodes = np.exp(-step * np.arange(int(np.ceil(reach / step)) + 1))
    rows = rows * (1 + np.array([1e-15, -1e-15, 1e-15, 1e-15]))
    jump, rows[:, 3] = _chords(rows[:, 3], step)
    beyond = np.exp(-step * np.arange(1, int(np.max(jump)) + 3)) * (1 + 1e-12)
    worst: Array = _iterate(horizon, nodes, rows, jump, beyond)
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
    """See `worst_openings`; each of `rows` is a gap's more, less, stay and weight.

    The gain is -inf where an opening gains nothing, and in a row that only completes a pair.
    """
    count, paired = len(nodes), len(rows) + len(rows) % 2
    gains, ends = np.full((paired, count), -np.inf), np.zeros(paired, np.int64)
    kept, place = np.zeros((paired, 2)), np.zeros(paired, np.int64)
    for row in range(len(rows)):
        more, less = rows[row, 0], rows[row, 1]
        ends[row] = end = np.sum(nodes * more > less)  # nodes from the first on gain
        gains[row, :end] = (nodes[:end] * more - less) * (1 + 1e-15)
        if jump[row] >= 0:
            kept[row], place[row] = rows[row, 2:], jump[row]
    worst, tests = np.zeros(count + len(beyond)), 0
    while tests < horizon:
        now, run = worst[:count], min((tests - EACH) // ALIKE, horizon - tests)
        after = np.maximum(now, _next(worst, gains, ends, kept, place))
        rise, tests = after - now, tests + 1
        for _ in range(TRIES if run > 1 else 0):
            ahead = (now + run * rise) * UP
            needed = _next(np.append(ahead, ahead[-1] * beyond), gains, ends, kept, place) - ahead
            if np.all(needed <= rise) and np.all(ahead[1:] <= ahead[:-1]):
                after, tests = ahead, tests + run - 1
                break
            rise = np.where(needed <= rise, rise, needed * (1 + 1e-4))
        worst = np.append(after, after[-1] * beyond)
    return worst[:count].copy()


@njit(cache=True)
def _next(worst: Array, gains: Array, ends: Array, kept: Array, place: Array) -> Array:
    """The worst with one test more, raised. Rows go in pairs: nodes are read half as often.

    Raising only the largest value equals raising each, as rounding keeps order.
    """
    most = np.zeros(gains.shape[1])
    for a in range(0, len(gains), 2):
        b, end = a + 1, max(ends[a], ends[a + 1])
        best, gain_a, gain_b = most[:end], gains[a], gains[b]
        upper_a, upper_b = worst[place[a] :], worst[place[b] :]
        lower_a, lower_b = upper_a[1:], upper_b[1:]
        s_a, s_b, w_a, w_b = kept[a, 0], kept[b, 0], kept[a, 1], kept[b, 1]
        for i in range(end):
            one = gain_a[i] + s_a * (w_a * upper_a[i] + (1 - w_a) * lower_a[i])
            two = gain_b[i] + s_b * (w_b * upper_b[i] + (1 - w_b) * lower_b[i])
            best[i] = max(best[i], max(one, two))
    return most * UP


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


# ---- exact geometric waiting times
#
# `floor(-ln(U) / rate)` with U uniform on (0, 1) is geometric: it is at least n with chance
# e^(-rate n). So one draw replaces all the coins of a run of steps with the same chance
# 1 - e^(-rate), with the same law. It is memoryless: a run that ends early is simply forgotten.
#
# Numerics: U is read 64 bits at a time. A word leaves U an interval of width 2^-64; when both its
# ends, widened by 18 units in the last place, give the same result, that is the result, as for
# almost every word. Otherwise the remaining words are read and the ends computed with 200 spare
# bits. With w words the law is off by at most 2^(-64 w) for each value up to the horizon, see
# `doubt`.

NEVER = np.int64(2**62)
UNCLEAR = np.int64(-1)
EDGE = 4e-15  # above the error of the logs, the rate and the division together
WORDS = 2  # per draw: one AES block
PRECISION = 64 * WORDS + 200  # bits of a rate and of the ends when words must be read in full


def waits(
    words: UInt64[Array, "draws words"],
    rates: Float64[Array, " rates"],
    exact_rates: list[Any],  # multiprecision numbers
    which: Int64[Array, " draws"],
    horizon: int,
) -> Int64[Array, " draws"]:
    """Floor(-ln(U) / rate) for each row, NEVER when above the horizon.

    `rates` are `exact_rates` as floats. `which` is the place of each row's rate: places before the
    first mean the first, places behind the last mean the last. A rate of infinity waits 0, a rate
    of 0 for ever.
    """
    found = _fast(words, rates, which, horizon)
    for row in np.flatnonzero(found == UNCLEAR):
        place = min(max(int(which[row]), 0), len(rates) - 1)
        found[row] = _slow([int(word) for word in words[row]], exact_rates[place], horizon)
    return found


@njit(cache=True)
def _fast(words: Array, rates: Array, which: Array, horizon: int) -> Array:
    """The result if the first word decides it, else UNCLEAR."""
    found = np.empty(len(words), np.int64)
    for row in range(len(words)):
        rate = rates[min(max(which[row], 0), len(rates) - 1)]
        found[row] = wait_word(words[row, 0], rate, horizon)
    return found


@njit(inline="always")
def wait_word(word: np.uint64, rate: float, horizon: int) -> np.int64:
    """One draw from one word: for fused kernels, which hand UNCLEAR rows to `waits`."""
    if rate == np.inf:
        return np.int64(0)
    if rate == 0.0:
        return NEVER
    # -ln U >= 1 - U, which is at least this: no logarithm where it says enough, as it mostly does
    if np.float64(~np.uint64(word)) * 2.0**-64 * (1 - EDGE) >= rate * (horizon + 1.0) * (1 + EDGE):
        return NEVER
    if word == 0:
        return UNCLEAR
    if word >= np.uint64(1) << np.uint64(63):  # U near 1: work with 1 - U, which is exact
        low = -np.log1p(-(np.float64(~np.uint64(word)) * 2.0**-64))
    else:
        low = -np.log((np.float64(word) + 1.0) * 2.0**-64)
    high = low + 1.0 / np.float64(word)  # ln(word + 1) - ln(word) is less
    low, high = low / rate * (1 - EDGE), high / rate * (1 + EDGE)
    if low >= horizon + 1.0:
        return NEVER
    if high >= horizon + 1.0 or np.floor(low) != np.floor(high):
        return UNCLEAR
    return np.int64(low)


@cache
def context() -> mpmath.MPContext:
    """A context of `PRECISION` bits: no settings of others reach it, and no thread changes it."""
    mp = mpmath.MPContext()
    mp.prec = PRECISION
    return mp


def _slow(words: list[int], rate: Any, horizon: int) -> int:
    """The result from all words, in high precision."""
    bits = 64 * len(words)
    value = 0
    for word in words:
        value = (value << 64) | word
    mp = context()
    low = int(mp.floor(-mp.log(mp.mpf(value + 1) / 2**bits) / rate))
    return int(NEVER) if low > horizon else low


def doubt(values: int, draws: int) -> Fraction:
    """The distance of so many draws from exact ones, in total variation, for values below `values`.

    A draw is decided wrongly only when U's interval of width 2^(-64 WORDS) holds one of the
    thresholds e^(-rate n), n <= values; spare digits make the ends themselves certain.
    """
    return Fraction((values + 1) * draws, 1 << (64 * WORDS))


# ---- the loss of a coin table

DRAWS = 1 << 48  # shifts and waits that one deployment may draw; charged as distance
REACH = 4  # losses further than this above epsilon count as infinite
RARE = Fraction(1, 1 << 80)  # rarer outcomes of a draw are charged as such
Laws: TypeAlias = tuple[LossLaw, LossLaw]  # (with a unit, without it) and (without, with)
Tables: TypeAlias = "tuple[tuple[CoinTable | Sequel, int], ...]"  # and how often each runs


@dataclass(frozen=True)
class CoinTable:
    """The numbers from which the losses of one `SelectionTable` (`core.selection.coins`) follow.

    Guarantee: each of `keys_per_unit` keys has the curves of `SelectionTable`, whatever was
        released before the unit entered it.
    Proof: see `SelectionTable`, for exact draws. Draws of 128 bits are off by little, which is
        charged in one of two ways; both hold.
        *`distance`*: all draws of the deployment are replaced by exact ones, on both streams.
        *`tilt` and `rare`*: only draws of keys that the unit enters differ between two neighbours,
        one shift and at most one wait for each test of each key. Call an outcome of such a draw
        ({W = n} or {W >= n}) rare when it has at most RARE in the exact law of Q, the second of two
        neighbours. By `doubt`, outcomes that are not rare have at least 1 - 2^-127 / RARE
        of their exact probability. What runs, P_a and Q_a, thus has Q_a >= e^-tilt Q off rare
        outcomes, and P_a is within `doubt` of P: P_a(E) - e^eps Q_a(E) <= P(E, none rare) -
        e^(eps - tilt) Q(E, none rare) + P(some rare) + doubt. (With, without): at a coin c <= 1 /
        (2 horizon) without the unit no outcome is rare, as (1 - c)^n >= 1 / 2 and c is at least
        2^-64. At a larger coin one is rare only from an n on for which (1 - c)^n <= RARE / c; with
        the unit the coin is larger and waiting so long no likelier. Coins of 0 and 1 are drawn
        exactly; shifts have one law. (Without, with): after Z + 1 all waits have one law; a shift
        z + 1 is rare only where q^z <= RARE / (q (1 - q)). So the periods of a year together lose
        what is said here for each, where a distance would be multiplied by e^epsilon of the year.
    """

    horizon: int  # tests of one key
    keys_per_unit: int
    shift_epsilon: Fraction
    coins: tuple[int, ...]  # over 2^64
    places: int  # lattice steps per shift: all are sound, more are tighter
    epsilon: Fraction  # at which a job that runs it is stated, together with what is Gaussian

    @property
    def distance(self) -> Fraction:
        """How far all draws of a deployment are from exact ones, in total variation."""
        return doubt(self._values, DRAWS)

    @property
    def tilt(self) -> Fraction:
        """How much losses may grow because draws are not exact, apart from rare outcomes."""
        relative = Fraction(2, 1 << (64 * WORDS)) / RARE
        return 2 * relative * self._draws  # -log(1 - x) <= 2 x

    @property
    def rare(self) -> Fraction:
        """The chance of rare outcomes, plus the error of draws in total variation."""
        q = Fraction(exp(-self.shift_epsilon))
        spread = 2 * self.horizon + 1 + 2 / (q * (1 - q))  # 2 / ...: q is a float
        return self._draws * (RARE * spread + doubt(self._values, 1))

    @property
    def _values(self) -> int:
        return self.horizon + 2 + int(90 / self.shift_epsilon)

    @property
    def _draws(self) -> int:
        return self.keys_per_unit * (self.horizon + 1)

    def laws(self, reach: int | None = None) -> Laws:
        """The losses of all keys of one unit in one run."""
        return _laws(self, int(self.epsilon) + REACH if reach is None else reach)

    def to_dict(self) -> dict[str, Any]:
        """Exact numbers, for durable records."""
        return {
            "horizon": self.horizon,
            "keys_per_unit": self.keys_per_unit,
            "shift_epsilon": str(self.shift_epsilon),
            "coins": list(self.coins),
            "places": self.places,
            "epsilon": str(self.epsilon),
        }

    def __str__(self) -> str:
        return f"a table of coins for {self.keys_per_unit} group{'s' * (self.keys_per_unit > 1)}"


def table_from(saved: dict[str, Any]) -> CoinTable | Sequel:
    """The inverse of `to_dict`."""
    numbers = {name: Fraction(value) for name, value in saved.items() if isinstance(value, str)}
    if "look" in saved:
        return Sequel(**numbers)
    return CoinTable(**{**saved, **numbers, "coins": tuple(saved["coins"])})


@lru_cache(maxsize=256)
def _laws(table: CoinTable, reach: int) -> Laws:
    """The lattice step divides the shift's epsilon: q lies on the lattice."""
    step, coins = float(table.shift_epsilon / table.places), Coins(table.coins)
    worst = worst_openings(coins, table.horizon, step, coins.reach(step, reach))
    added = law_under(curve_with(worst, step, table.places), step)
    missing = law_under(curve_without(worst, step, table.places), step)
    keys = table.keys_per_unit
    return added.self_compose(keys), missing.self_compose(keys)


@lru_cache(maxsize=64)
def _composed(tables: Tables) -> Laws:
    """The losses of all runs of all tables."""
    if sum(times for _, times in tables) == 1:
        return tables[0][0].laws()
    added, missing = (
        _product([table.laws()[way].many(times) for table, times in tables]) for way in (0, 1)
    )
    return added, missing


def _product(laws: list[LossLaw]) -> LossLaw:
    step = max(law.step for law in laws)
    whole = laws[0].onto(step)
    for law in laws[1:]:
        whole = whole.compose(law.onto(whole.step)).shortened()
    return whole


def tables_delta(tables: Tables, epsilon: float, rest: convert.Curve) -> float:
    """H of all tables composed with a mechanism of curve `rest`, in both directions, rounded up.

    Proof: `CoinTable`, and composition as in `SelectionTable`.
    """
    laws = _composed(tables)
    found = max(law.delta_at(epsilon, rest) for law in laws)
    apart = sum((table.distance * times for table, times in tables), Fraction(0))
    by_distance = found + float_above(apart) * (1 + exp(min(epsilon, 700.0))) * (1 + 1e-12)
    if by_distance <= found * (1 + 1e-9):
        return min(1.0, by_distance * (1 + 1e-15))
    tilt = float_above(sum((one.tilt * times for one, times in tables), Fraction(0)))
    rare = float_above(sum((one.rare * times for one, times in tables), Fraction(0)))
    tilted = max(law.delta_at(epsilon - tilt, rest) for law in laws) + rare
    return min(1.0, by_distance * (1 + 1e-15), tilted * (1 + 1e-15))
