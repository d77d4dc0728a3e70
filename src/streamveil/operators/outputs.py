"""From noisy lane totals to the columns of a release: post-processing, free of privacy cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtri

from streamveil.operators.release_kernels import plain_cells
from streamveil.operators.rows import Lane
from streamveil.types import Array, Float64, Int32

TINY = 1e-300


@dataclass(frozen=True)
class Totals:
    """Noisy totals of all lanes for the keys of one release, in the lanes' own units."""

    estimate: Float64[Array, "lanes keys"]
    variance: Float64[Array, "lanes keys"]


@dataclass(frozen=True)
class Answer:
    """One aggregate for every key: value, standard deviation of its noise, interval."""

    value: Float64[Array, " keys"]
    sd: Float64[Array, " keys"]
    low: Float64[Array, " keys"]
    high: Float64[Array, " keys"]


@dataclass(frozen=True, kw_only=True)
class Output:
    """One aggregate of the query and the lanes it is made of.

    The interval covers the noise with probability `confidence`, key by key. It does not cover the
    bias of bounding (rows dropped, values clamped), which `bias` names.
    """

    name: str
    function: str
    lanes: tuple[int, ...]
    low: float = 0.0
    high: float = 0.0
    q: float = 0.5
    levels: int = 0
    fan: int = 0
    bias: str = ""
    non_negative: bool = False
    integer: bool = False
    monotone: bool = False

    @property
    def is_integer(self) -> bool:
        """Whether the released column holds integers."""
        return self.integer or self.function in ("count", "count_units", "count_distinct")

    @property
    def least(self) -> float:
        """No value or end of an interval is below."""
        return 0.0 if self.non_negative else -np.inf

    def answer(self, totals: Totals, confidence: float) -> Answer:
        """The columns of this aggregate."""
        lanes = list(self.lanes)
        return self._answer(totals.estimate[lanes], totals.variance[lanes], confidence)

    def in_order(self, totals: Totals, order: Int32[Array, " keys"], confidence: float) -> Answer:
        """The columns of this aggregate with its keys in another order.

        Values of a plain count are integers already where the column holds integers.
        """
        if FUNCTIONS[self.function] is not total:
            estimate, variance = (
                np.stack([lanes[lane][order] for lane in self.lanes])
                for lanes in (totals.estimate, totals.variance)
            )
            return self._answer(estimate, variance, confidence)
        whole = self.is_integer and self.function != "sum" and not self.monotone
        lane = self.lanes[0]
        value = np.empty(len(order), np.int64 if whole else np.float64)
        rest = np.empty((3, len(order)))
        plain_cells(
            totals.estimate[lane], totals.variance[lane], order, quantile_of(confidence),
            self.least, whole, value, rest,
        )  # fmt: skip
        return Answer(value, *rest)

    def _answer(self, estimate: Array, variance: Array, confidence: float) -> Answer:
        found = FUNCTIONS[self.function](self, estimate, variance, quantile_of(confidence))
        if self.non_negative:
            found = Answer(
                *(np.maximum(found.value, 0), found.sd),
                np.maximum(found.low, 0),
                np.maximum(found.high, 0),
            )
        return found


def quantile_of(confidence: float) -> float:
    """How many deviations an interval reaches to each side."""
    return float(ndtri((1 + confidence) / 2))


Function = Callable[[Output, Array, Array, float], Answer]


def total(output: Output, estimate: Array, variance: Array, z: float) -> Answer:
    """A lane as it is."""
    return normal(estimate[0], np.sqrt(variance[0]), z)


def average(output: Output, estimate: Array, variance: Array, z: float) -> Answer:
    """Centre + sum / count, with the delta method; inside the bounds of the values."""
    count, share = np.maximum(estimate[0], 1), None
    share = estimate[1] / count
    sd = np.sqrt(variance[1] + share**2 * variance[0]) / count
    return clip(normal(share + (output.low + output.high) / 2, sd, z), output.low, output.high)


def variance_of(output: Output, estimate: Array, variance: Array, z: float) -> Answer:
    """The sample variance from sums of centred values and squares, with the delta method."""
    count = np.maximum(estimate[0], 1)
    mean, square = estimate[1] / count, estimate[2] / count
    value = square - mean**2
    slope = square - 2 * mean**2
    sd = np.sqrt(variance[2] + 4 * mean**2 * variance[1] + slope**2 * variance[0]) / count
    bessel = count / np.maximum(count - 1, 1)
    most = (output.high - output.low) ** 2 / 4
    return clip(normal(value * bessel, sd * bessel, z), 0.0, most * bessel)


def deviation(output: Output, estimate: Array, variance: Array, z: float) -> Answer:
    """The square root of the variance, and of the ends of its interval."""
    found = variance_of(output, estimate, variance, z)
    value = np.sqrt(found.value)
    sd = np.where(value > 0, found.sd / np.maximum(2 * value, TINY), np.sqrt(found.sd))
    return Answer(value, sd, np.sqrt(found.low), np.sqrt(found.high))


def quantile(output: Output, estimate: Array, variance: Array, z: float) -> Answer:
    """Walks the tree to the wanted rank; the interval repeats the walk at the ends of the rank."""
    top = estimate[: output.fan]
    count = np.maximum(in_turn(np.maximum(top, 0)), 1)
    mean = in_turn(variance) / len(variance)
    noise = np.sqrt(mean * output.levels * output.fan / 2) / count
    value = walk(output, estimate, np.full(len(count), output.q))
    low = walk(output, estimate, np.clip(output.q - z * noise, 0, 1))
    high = walk(output, estimate, np.clip(output.q + z * noise, 0, 1))
    return Answer(value, (high - low) / (2 * z), low, high)


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

    `sum` adds in another order when there is only one key, and a key's answer must not depend,
    not even in its last bit, on which keys are beside it: shards of keys give equal answers.
    """
    return np.asarray(np.cumsum(rows, axis=0)[-1])


def normal(value: Array, sd: Array, z: float) -> Answer:
    """A value with the interval of Gaussian noise."""
    return Answer(value, sd, value - z * sd, value + z * sd)


def clip(answer: Answer, low: float, high: float | Float64[Array, " keys"]) -> Answer:
    """Value and interval inside bounds, each key's own."""
    return Answer(
        np.clip(answer.value, low, high),
        answer.sd,
        np.clip(answer.low, low, high),
        np.clip(answer.high, low, high),
    )


FUNCTIONS: dict[str, Function] = {
    "count": total,
    "count_units": total,
    "count_distinct": total,
    "sum": total,
    "avg": average,
    "variance": variance_of,
    "stddev": deviation,
    "quantile": quantile,
}


@dataclass
class LaneBook:
    """Collects the lanes that a query's aggregates need, each once."""

    lanes: list[Lane] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)  # how many aggregates read each lane

    def use(self, lane: Lane) -> int:
        """The number of a lane, added when it is new."""
        if lane not in self.lanes:
            self.lanes.append(lane)
            self.uses.append(0)
        place = self.lanes.index(lane)
        self.uses[place] += 1
        return place
