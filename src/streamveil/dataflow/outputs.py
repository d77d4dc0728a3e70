"""From noisy lane totals to the columns of a release: post-processing, free of privacy cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from streamveil.compiled import ndtr, ndtri
from streamveil.core.accounting import portable
from streamveil.core.sensitivity import Lane
from streamveil.dataflow.release_kernels import plain_cells
from streamveil.kinds import COUNTS, TOTALS
from streamveil.types import Array, Float64, Int32, Int64

TINY = 1e-300
SHARES = (0.85, 0.1, 0.05)  # of a variance's chance of errors: for its ratio, the mean, the count
OF_POPULATIONS = ("var_pop", "stddev_pop")  # the others are of samples
PLACES = 9  # points of a mean's interval that are tried
AT_ONCE = 1 << 20  # leaves of quantile trees, of several keys, that are searched together


@dataclass(frozen=True)
class Totals:
    """Noisy totals of all lanes for the keys of one release, in the lanes' own units."""

    estimate: Float64[Array, "lanes keys"]
    variance: Float64[Array, "lanes keys"]


@dataclass(frozen=True)
class Estimate:
    """One aggregate for every key: value, standard deviation of its noise, interval."""

    value: Float64[Array, " keys"]
    sd: Float64[Array, " keys"]
    low: Float64[Array, " keys"]
    high: Float64[Array, " keys"]


@dataclass(frozen=True, kw_only=True)
class Output:
    """One aggregate of the query and the lanes it is made of.

    The interval covers the noise with probability `confidence`, key by key. It does not cover the
    bias of bounding: rows dropped and values clamped, which `bias` names.
    """

    name: str
    function: str
    lanes: tuple[int, ...]
    low: float = 0.0
    high: float = 0.0
    q: float = 0.5
    levels: int = 0
    fan: int = 0
    # which rows are dropped and which values clamped; ignored when states are compared
    cut: str = field(default="", compare=False)
    clamped: str = field(default="", compare=False)
    # why nothing is known of its values, so that it has no number; likewise
    unbounded: str = field(default="", compare=False)
    # the second of several lanes is summed from here: each row of the first adds this much to a sum
    centre: float = field(default=0.0, compare=False)
    # all possible values of a count or sum are multiples of this; 0: not known
    step: float = field(default=0.0, compare=False)
    # how much further its interval reaches for the coarse steps of the count that moves it back
    room: float = field(default=0.0, compare=False)
    non_negative: bool = False
    integer: bool = False
    monotone: bool = False

    @property
    def bias(self) -> str:
        """What no interval of this output covers, in words; empty where it covers everything."""
        return "; ".join(filter(None, (self.cut, self.clamped)))

    @property
    def is_integer(self) -> bool:
        """Whether the released column holds integers."""
        return self.integer or self.function in COUNTS

    @property
    def is_total(self) -> bool:
        """Whether it is a count or sum: lanes times `factors`."""
        return FUNCTIONS[self.function] is total

    @property
    def factors(self) -> tuple[float, ...]:
        """The factors of the lanes of a count or sum: a sum from a centre is moved back.

        The sum of x over n values is that of x - centre, plus centre * n.
        """
        return (1.0,) if len(self.lanes) == 1 else (self.centre, 1.0)

    @property
    def least(self) -> float:
        """The least that a value or an end of an interval may be."""
        return 0.0 if self.non_negative else -np.inf

    def answer(self, totals: Totals, confidence: float) -> Estimate:
        """The columns of this aggregate."""
        lanes = list(self.lanes)
        return self._answer(totals.estimate[lanes], totals.variance[lanes], confidence)

    def in_order(self, totals: Totals, order: Int32[Array, " keys"], confidence: float) -> Estimate:
        """The columns of this aggregate with its keys in another order.

        Values of a plain count are integers already where the column holds integers.
        """
        if not self.is_total or len(self.lanes) > 1:
            cells = np.ix_(np.array(self.lanes), order)
            estimate, variance = totals.estimate[cells], totals.variance[cells]
            return self._answer(estimate, variance, confidence)
        whole = self.is_integer and self.function != "sum" and not self.monotone
        lane = self.lanes[0]
        value = np.empty(len(order), np.int64 if whole else np.float64)
        rest = np.empty((3, len(order)))
        plain_cells(
            totals.estimate[lane], totals.variance[lane], order, quantile_of(confidence),
            self.step, self.least, whole, value, rest,
        )  # fmt: skip
        return Estimate(value, *rest)

    def _answer(self, estimate: Array, variance: Array, confidence: float) -> Estimate:
        found = FUNCTIONS[self.function](self, estimate, variance, quantile_of(confidence))
        if not self.non_negative:
            return found
        value, low, high = (np.maximum(one, 0) for one in (found.value, found.low, found.high))
        return Estimate(value, found.sd, low, high)


def quantile_of(confidence: float) -> float:
    """How many deviations an interval of this confidence reaches to each side."""
    return float(portable(ndtri((1 + confidence) / 2)))


def reach_of(sd: Array, z: float, step: float | Array, room: float = 0.0) -> Array:
    """How far the interval of a total reaches to each side: z deviations, in whole steps.

    `room` is added, for steps of parts of the total: see `results.intervals.room_of`.

    Proof: noise that takes multiples of the step alone is within m steps with the chance, nearly,
        that a Gaussian is within m + 1/2 of them. Rounded to the nearest number of steps, m + 1/2
        of them are at least z deviations. Tests add up the exact chances.

    >>> reach_of(np.array([0.3, 1.5, 100.0]), 1.96, 1.0).tolist()
    [1.0, 3.0, 196.0]
    """
    reach, whole = z * sd, np.where(np.asarray(step) > 0, step, 1.0)
    return np.where(np.asarray(step) > 0, whole * np.floor(reach / whole + 0.5), reach) + room


Function = Callable[..., Estimate]  # of output, estimates, variances and deviations
Fewest = Callable[[float], Array]  # a lower bound of a count; its chance of error in deviations


def total(output: Output, estimate: Array, variance: Array, z: float) -> Estimate:
    """A lane as it is, or the sum of lanes times their factors: their noise is independent."""
    if len(output.lanes) == 1:
        value, sd = estimate[0], np.sqrt(variance[0])
    else:
        factors = np.array(output.factors)[:, None]
        value, sd = in_turn(factors * estimate), np.sqrt(in_turn(factors**2 * variance))
    reach = reach_of(sd, z, output.step, output.room)
    return Estimate(value, sd, value - reach, value + reach)


def average(
    output: Output, estimate: Array, variance: Array, z: float, fewest: Fewest | None = None
) -> Estimate:
    """Centre + sum / count, inside the bounds of the values; its interval: see `ratio_between`.

    The standard deviation is that of the delta method.
    """
    count, centre = np.maximum(estimate[0], 1), output.centre
    share = estimate[1] / count
    sd = np.sqrt(variance[1] + share**2 * variance[0]) / count
    parts = (estimate[1], variance[1]), (estimate[0], variance[0])
    low, high = ratio_between(*parts, z, fewest)
    found = Estimate(share, sd, np.minimum(low, share), np.maximum(high, share))
    moved = Estimate(found.value + centre, sd, found.low + centre, found.high + centre)
    return clip(moved, output.low, output.high)


def fieller(
    top: tuple[Array, Array], bottom: tuple[Array, Array], cov: Array, z: float
) -> tuple[Array, Array]:
    """The ends of {r: (y - r x)^2 <= z^2 v(r)}, or infinite ones when it is not an interval.

    For a ratio y / x of Gaussian numbers, each given as (value, variance); v(r) = var y - 2 r cov +
    r^2 var x. At the true ratio y - r x has mean 0 and variance v(r): the set holds it with the
    confidence of z, however small x is (Fieller 1954).
    """
    (y, y_var), (x, x_var), square = top, bottom, z * z
    a, b, c = x**2 - square * x_var, x * y - square * cov, y**2 - square * y_var
    bounded = a > 0
    root = np.sqrt(np.maximum(b**2 - a * c, 0.0))
    safe = np.where(bounded, a, 1.0)
    low = np.where(bounded, (b - root) / safe, -np.inf)
    high = np.where(bounded, (b + root) / safe, np.inf)
    return low, high


def ratio_between(
    top: tuple[Array, Array], bottom: tuple[Array, Array], z: float, fewest: Fewest | None
) -> tuple[Array, Array]:
    """The ends of an interval for sum / count, whose noise is drawn apart.

    Fieller's. For a group that is shown because its count passed a threshold, `fewest` is a lower
    bound of the count, with the chance of errors that a number of deviations leaves to one side.

    Proof for such a group: let r = S / N be the true ratio, 0 or above; below 0 the ends change
        sides. Given that the group is shown, the noise of the count tends to be larger, and that of
        y - r x smaller. So r is below Fieller's low end at most as often as without this condition.
        It is above (y + z' sd) / n only if S is above y + z' sd or N is below n: each happens with
        half of the chance that the upper side has.
    """
    low, high = fieller(top, bottom, np.zeros(len(top[0])), z)
    if fewest is None:
        return low, high
    each = apart(z, 0.5)
    least, reach = np.maximum(fewest(each), 1), each * np.sqrt(top[1])
    return np.minimum(low, (top[0] - reach) / least), np.maximum(high, (top[0] + reach) / least)


def variance_of(
    output: Output, estimate: Array, variance: Array, z: float, fewest: Fewest | None = None
) -> Estimate:
    """The variance from sums of centred values and squares; see `spread_between`.

    The variance of a sample is n / (n - 1) times that of the values. The standard deviation is that
    of the delta method.
    """
    count = np.maximum(estimate[0], 1)
    mean, square = estimate[1] / count, estimate[2] / count
    value = square - mean**2
    slope = square - 2 * mean**2
    sd = np.sqrt(variance[2] + 4 * mean**2 * variance[1] + slope**2 * variance[0]) / count
    bessel, most = bessel_of(output, count), (output.high - output.low) ** 2 / 4
    value = np.clip(value * bessel, 0.0, most * bessel)
    low, high = spread_between(output, estimate, variance, z, fewest)
    return Estimate(value, sd * bessel, np.minimum(low, value), np.maximum(high, value))


def bessel_of(output: Output, count: Array) -> Array:
    """The factor by which the variance of so many values is multiplied."""
    if output.function in OF_POPULATIONS:
        return np.ones_like(count, np.float64)
    return np.asarray(count / np.maximum(count - 1, 1))


def spread_between(
    output: Output, estimate: Array, variance: Array, z: float, fewest: Fewest | None = None
) -> tuple[Array, Array]:
    """The ends of an interval for the variance; `fewest` as in `ratio_between`.

    Proof: with m the true mean, the squared distances from m have the sum q - 2 m s + m^2 n, whose
        ratio to the count n is the variance: (q - 2 m s) / n + m^2, an interval at m holds it.
        Unless the interval of the mean fails, m is one of its places, so the union over them holds
        the variance; and unless that of the count fails, n / (n - 1), of a sample, is between the
        factors at its ends. The three share the chance of errors.
    Error: the union is taken at `PLACES` of the mean and where the sum is least; tests measure that
        what lies between is covered as well.
    """
    spread, about, some = (apart(z, share) for share in SHARES)
    half, none = (output.high - output.low) / 2, np.zeros(estimate.shape[1])
    within = output.low - output.centre, output.high - output.centre
    (n, s, q), (n_var, s_var, q_var) = estimate, variance
    mean = ratio_between((s, s_var), (n, n_var), about, fewest)
    ends = [np.clip(end, *within) for end in mean]
    places = [ends[0] + (ends[1] - ends[0]) * place for place in np.linspace(0, 1, PLACES)]
    low, high = none + np.inf, none - np.inf
    for m in [np.clip(s / np.maximum(n, 1), *ends), *places]:
        beside = q - 2 * m * s, q_var + 4 * m**2 * s_var
        first, last = ratio_between(beside, (n, n_var), spread, fewest)
        low, high = np.minimum(low, first + m**2), np.maximum(high, last + m**2)
    least = n - some * np.sqrt(n_var) if fewest is None else fewest(some)
    ends = [np.maximum(end, 2) for end in (least, n + some * np.sqrt(n_var))]
    low, high = (np.clip(end, 0.0, half**2) for end in (low, high))
    return low * bessel_of(output, ends[1]), high * bessel_of(output, ends[0])


def apart(z: float, share: float) -> float:
    """Deviations of an interval that gets a share of the chance of errors of z."""
    return float(portable(-ndtri(share * ndtr(-z))))


def deviation(
    output: Output, estimate: Array, variance: Array, z: float, fewest: Fewest | None = None
) -> Estimate:
    """The square root of the variance, and of the ends of its interval."""
    found = variance_of(output, estimate, variance, z, fewest)
    value = np.sqrt(found.value)
    sd = np.where(value > 0, found.sd / np.where(value > 0, 2 * value, 1.0), np.sqrt(found.sd))
    return Estimate(value, sd, np.sqrt(found.low), np.sqrt(found.high))


def quantile(output: Output, estimate: Array, variance: Array, z: float) -> Estimate:
    """Walks the tree to the wanted rank; the interval ends with leaves, see `leaves_around`."""
    value = walk(output, estimate, np.full(estimate.shape[1], output.q))
    low, high = value.copy(), value.copy()
    leaves = output.fan**output.levels
    wide, keys = (output.high - output.low) / leaves, max(1, AT_ONCE // leaves)
    for start in range(0, len(value), keys):
        part = slice(start, start + keys)
        first, last = leaves_around(output, estimate[:, part], variance[:, part], z)
        low[part] = np.minimum(low[part], output.low + wide * first)
        high[part] = np.maximum(high[part], output.low + wide * (last + 1))
    return Estimate(value, (high - low) / (2 * z), low, np.minimum(high, output.high))


def leaves_around(
    output: Output, estimate: Array, variance: Array, z: float
) -> tuple[Int64[Array, " keys"], Int64[Array, " keys"]]:
    """The first and the last leaf that may hold the wanted rank, by the totals of each key.

    Proof: the leaf that holds the rank has at most a share q of all values below its left edge, and
        at least that below its right edge. The number of values below an edge, less q times all, is
        a weighted sum of totals: nodes of the first level below the edge have weight 1 - q, the
        others of that level -q, and further nodes down to the edge 1. So a leaf is ruled out by its
        left edge when that sum is above z of its deviations, and by its right edge when it is below
        -z. Each happens to the leaf that holds the rank with half of the chance left to errors.
        Otherwise the first leaf that its right edge does not rule out is this leaf or one before
        it, and the last that its left edge does not rule out is this leaf or one after it. The
        noise needs no other property: nodes below zero stay as they are.
    """
    fan, q, keys, base = output.fan, output.q, estimate.shape[1], 0
    below = -q * in_turn(estimate[:fan])[None, :]  # at the left edge of the root
    spread = q**2 * in_turn(variance[:fan])[None, :]
    for level in range(1, output.levels + 1):
        nodes = slice(base, base + fan**level)
        more = 1 - 2 * q if level == 1 else 1.0  # (1 - q)^2 below, no longer q^2
        below = at_edges(below, estimate[nodes].reshape(-1, fan, keys))
        spread = at_edges(spread, more * variance[nodes].reshape(-1, fan, keys))
        base += fan**level
    reach = z * np.sqrt(spread[1:])
    all_of_them = np.ones((1, keys), np.bool_)
    fits_right = np.concatenate([below[1:] >= -reach, all_of_them])
    fits_left = np.concatenate([all_of_them, below[1:] <= reach])
    return fits_right.argmax(axis=0), len(below) - 1 - fits_left[::-1].argmax(axis=0)


def at_edges(
    left: Float64[Array, "parents keys"], children: Float64[Array, "parents fan keys"]
) -> Float64[Array, "nodes keys"]:
    """Sums at the left edges of all children, from those at the left edges of their parents."""
    found = np.empty_like(children)
    for child in range(children.shape[1]):
        found[:, child] = left if child == 0 else found[:, child - 1] + children[:, child - 1]
    return found.reshape(-1, children.shape[2])


def walk(output: Output, estimate: Array, rank: Float64[Array, " keys"]) -> Float64[Array, " keys"]:
    """The value below which a share `rank` of each key's values lies, by the tree's totals."""
    fan, keys = output.fan, np.arange(estimate.shape[1])
    node, base = np.zeros(len(keys), np.int64), 0
    share = rank
    for level in range(1, output.levels + 1):
        children = base + node * fan + np.arange(fan)[:, None]
        weight = np.maximum(estimate[children, keys], 0) + TINY
        edges = np.cumsum(weight, axis=0) / in_turn(weight)
        child = np.minimum((edges < share).sum(axis=0), fan - 1)
        start = np.where(child > 0, edges[child - 1, keys], 0.0)
        width = np.maximum(edges[child, keys] - start, TINY)
        share = np.clip((share - start) / width, 0, 1)
        node, base = node * fan + child, base + fan**level
    return np.asarray(output.low + (output.high - output.low) * (node + share) / fan**output.levels)


def in_turn(rows: Float64[Array, "rows keys"]) -> Float64[Array, " keys"]:
    """The sum of all rows, first to last.

    `sum` adds in another order when there is only one key. But a key's answer must not depend on
    the other keys, not even in its last bit: shards of keys give equal answers.
    """
    return np.asarray(np.cumsum(rows, axis=0)[-1])


def clip(answer: Estimate, low: float, high: float | Float64[Array, " keys"]) -> Estimate:
    """Value and interval inside bounds, each key's own."""
    return Estimate(
        np.clip(answer.value, low, high),
        answer.sd,
        np.clip(answer.low, low, high),
        np.clip(answer.high, low, high),
    )


FUNCTIONS: dict[str, Function] = {  # those of moments also take a lower bound of the count
    **dict.fromkeys(TOTALS, total),
    "avg": average,
    **dict.fromkeys(("variance", "var_pop"), variance_of),
    **dict.fromkeys(("stddev", "stddev_pop"), deviation),
    "quantile": quantile,
}


@dataclass
class LaneBook:
    """Collects the lanes that a query's aggregates need, each once."""

    lanes: list[Lane] = field(default_factory=list)
    uses: list[float] = field(default_factory=list)  # how many aggregates read each lane

    def __post_init__(self) -> None:
        self._places = {lane: place for place, lane in enumerate(self.lanes)}

    def use(self, lane: Lane, reads: float = 1) -> int:
        """The number of a lane, added when it is new; `reads` may be a part of an aggregate."""
        place = self._places.setdefault(lane, len(self.lanes))
        if place == len(self.lanes):
            self.lanes.append(lane)
            self.uses.append(0.0)
        self.uses[place] += reads
        return place

    def nodes_last(self) -> list[int]:
        """Puts the nodes of trees behind all other lanes; returns the new number of each lane.

        >>> from streamveil.core.sensitivity import Lane
        >>> node = Lane(kind="node", high=1.0, level=1, fan=2)
        >>> book = LaneBook([node, Lane(kind="rows")], [1, 2])
        >>> book.nodes_last(), [lane.kind for lane in book.lanes], book.uses
        ([1, 0], ['rows', 'node'], [2, 1])
        """
        order = sorted(range(len(self.lanes)), key=lambda old: self.lanes[old].kind == "node")
        self.lanes = [self.lanes[old] for old in order]
        self.uses = [self.uses[old] for old in order]
        self.__post_init__()
        return [order.index(old) for old in range(len(order))]
