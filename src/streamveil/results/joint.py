"""The joint noise of numbers in several releases, as far as their public facts determine it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamveil.batch import Moment
from streamveil.core.counters import ROUNDING, Counter
from streamveil.core.counters.blt import BltCounter
from streamveil.dataflow.grouping import FLAGS, counter_from
from streamveil.dataflow.release_tables import OPENED, WEIGHT
from streamveil.kinds import TOTALS
from streamveil.release_metadata import Facts
from streamveil.results.intervals import deviations, reach_by
from streamveil.results.noise import covariance, tested_covariance, weighted_covariance
from streamveil.results.releases import Releases
from streamveil.types import Array, Float64

CENTRED = (*TOTALS, "avg")  # functions whose error is noise about 0
HALF = 0.5  # by which rounding moves a number at most
NEARLY = 1e-3  # of its width by which an interval is wider than that of noise alone
Keys = Any  # an Arrow array of encoded keys
Slopes = dict[int, Array]  # lane -> how the number moves with that lane's total, per key


class Cell(NamedTuple):
    """One number of every key: which release, which column."""

    moment: Moment
    name: str


class Ends(NamedTuple):
    """A covariance that is known to lie between two ends; equal where it is known exactly."""

    low: Float64[Array, " keys"]
    high: Float64[Array, " keys"]


@dataclass(frozen=True, eq=False)
class Joint:
    """Numbers of some keys at several moments, and how their noise is correlated.

    Windows never share noise, nor do lanes. Within a lane and window, `results.noise` gives it. For
    a mean the delta method is used, as for its own deviation. Where nothing is known (variances,
    quantiles, the published preset, releases without facts), the covariance of a and b lies between
    - sd_a sd_b and sd_a sd_b, whatever the noise is. The error of a variance or a quantile is not
    centred at 0: its further end stands for its deviation, and in several windows it may be the
    same.
    """

    releases: Releases
    keys: Keys
    showing: Moment  # a release that shows all of them

    @property
    def labels(self) -> pa.Table:
        """The key columns."""
        table = self.releases.table(self.showing)
        places = pc.index_in(self.keys, value_set=self.releases.keys(self.showing))
        return table.select(self.releases.key_names).take(places)

    def at(self, moment: Moment, name: str) -> Float64[Array, " keys"]:
        """A column for the keys, in their order; NaN for keys that the release does not show."""
        places = pc.index_in(self.keys, value_set=self.releases.keys(moment))
        found = pc.is_valid(places).to_numpy(zero_copy_only=False)
        rows = pc.fill_null(places, 0).to_numpy()
        column = self.releases.column(moment, name)
        if not len(column):
            return np.full(len(rows), np.nan)
        return np.where(found, column[rows], np.nan)

    def value(self, cell: Cell) -> Float64[Array, " keys"]:
        """The noisy number before post-processing, as far as the release tells.

        The upper end of its interval is that of its noise alone, even where the lower end is not.
        Where the interval was cut at 0, the noisy number is at most the lower end of the rest, and
        that end is taken: it is nearer to the truth.
        """
        value = self.at(*cell)
        facts = self.output(cell.name)
        if not any(facts.get(flag) for flag in FLAGS):
            return value
        low, high = self.ends(cell)
        reach = self.reach(cell)
        if facts.get("integer") and facts["function"] in TOTALS:  # the middle is not rounded
            for middle in (low + reach, high - reach):
                value = np.where(np.abs(middle - value) <= HALF, middle, value)
        if not (facts.get("non_negative") or facts.get("monotone")):
            return value
        raised = low + reach  # to an earlier number, which is above all of its interval
        if facts.get("non_negative"):
            raised = np.where(low > 0, raised, np.maximum(value - reach, -reach))
        return np.where(high > value, np.minimum(value, high - reach), raised)

    def corrected(self, cell: Cell) -> int:
        """How many groups have a wider interval because this number may have shown them."""
        if self.output(cell.name).get("function") not in TOTALS or "true_intervals" in self.facts:
            return 0
        if self.releases.hidden(cell.moment) is None:  # groups are public
            return 0
        low, high = self.ends(cell)
        reach = self.reach(cell)
        return int((high - low > 2 * reach * (1 + NEARLY)).sum())

    def reach(self, cell: Cell) -> Float64[Array, " keys"]:
        """How far the uncorrected interval of a number reaches."""
        z = deviations(self.facts["confidence"])
        return reach_by(self.output(cell.name), self.sd(cell), z)

    def sd(self, cell: Cell) -> Float64[Array, " keys"]:
        """The deviation that the release states."""
        return self.at(cell.moment, cell.name + "_sd")

    def ends(self, cell: Cell) -> tuple[Float64[Array, " keys"], Float64[Array, " keys"]]:
        """The interval that the release states."""
        low, high = (self.at(cell.moment, cell.name + end) for end in ("_low", "_high"))
        return low, high

    def is_centred(self, cell: Cell) -> bool:
        """Whether its error is noise about 0; assumed for a number without facts."""
        output = self.output(cell.name)
        rounded = output.get("integer") and output["function"] not in TOTALS
        return output.get("function", "sum") in CENTRED and not rounded

    def spread(self, cell: Cell) -> Float64[Array, " keys"]:
        """Its deviation; of an error that is not centred at 0, the further end in deviations."""
        return self.sd(cell) if self.is_centred(cell) else np.maximum(*self.sides(cell))

    def sides(self, cell: Cell) -> tuple[Float64[Array, " keys"], Float64[Array, " keys"]]:
        """How far its interval reaches down and up, in deviations of a Gaussian."""
        value, (low, high) = self.at(*cell), self.ends(cell)
        z = deviations(self.facts["confidence"])
        return (value - low) / z, (high - value) / z

    def covariance(self, one: Cell, two: Cell) -> Ends:
        """The covariance of the noise of two numbers, for every key."""
        centred = self.is_centred(one) and self.is_centred(two)
        if one.moment.window != two.moment.window and centred:
            zero = np.zeros(len(self.keys))
            return Ends(zero, zero)
        left, right = self.slopes(one), self.slopes(two)
        total: Array | None = np.zeros(len(self.keys))
        if left is None or right is None:
            total = None
        else:
            for lane in left.keys() & right.keys():
                moved = self.lane_covariance(lane, one.moment, two.moment)
                total = None if moved is None or total is None else total + (
                    left[lane] * right[lane] * moved)  # fmt: skip
        if total is not None:
            return Ends(total, total)
        if one == two:
            square = self.spread(one) ** 2
            return Ends(square, square)
        widest = self.spread(one) * self.spread(two)
        return Ends(-widest, widest)

    def is_known(self, one: Cell, two: Cell) -> bool:
        """Whether a covariance is known exactly."""
        ends = self.covariance(one, two)
        return bool(np.array_equal(ends.low, ends.high, equal_nan=True))

    def slopes(self, cell: Cell) -> Slopes | None:
        """How a number moves with the totals it is made of; None when that is not known."""
        output = self.output(cell.name)
        if output.get("function") in TOTALS:
            factors = output.get("factors", (1.0,))
            every = np.ones(len(self.keys))
            return {lane: one * every for lane, one in zip(output["lanes"], factors, strict=True)}
        if output.get("function") != "avg" or not self.is_centred(cell):
            return None
        count, total = output["lanes"]
        share = self.at(*cell) - output.get("centre", (output["low"] + output["high"]) / 2)
        parts = [self.lane_covariance(lane, cell.moment, cell.moment) for lane in (count, total)]
        if parts[0] is None or parts[1] is None:
            return None
        rows = np.sqrt(parts[1] + share**2 * parts[0]) / self.sd(cell)  # what sd was divided by
        return {total: 1 / rows, count: -share / rows}

    def lane_covariance(self, lane: int, one: Moment, two: Moment) -> Array | None:
        """The covariance of one lane's totals at two moments of a window, in the lane's unit."""
        facts = self.facts
        if not facts or facts["rounds"]:
            return None
        about = facts["lanes"][lane]
        counter = self.counters[about["counter"]]
        t, s, square = one.trigger, two.trigger, about["quantum"] ** 2
        if about["late"] and facts.get("tests"):
            return self._tested(lane, one, two)
        if about["late"] and self.is_weighted(one):
            weights = self.weights(one.window, min(t, s))
            return None if weights is None else square * weighted_covariance(counter, t, s, weights)
        first = self.opened(one, two) if about["late"] else np.ones(len(self.keys), np.int64)
        rounding = ROUNDING if about["rounded"] and t == s else 0.0
        return np.asarray(square * covariance(counter, t, s, first) + rounding)

    def _tested(self, lane: int, one: Moment, two: Moment) -> Array | None:
        """As `lane_covariance` where totals of groups were tested before they were shown."""
        about, tests = self.facts["lanes"][lane], self.facts["tests"]
        counter, weights = self.counters[about["counter"]], None
        triggers = np.array(tests["triggers"], np.int64)
        if self.is_weighted(one):
            weights = self.weights(one.window, min(one.trigger, two.trigger))
            if weights is None:
                return None
            now = triggers[triggers <= len(weights)] - 1
            weights = weights.copy()
            weights[now] = np.where(np.isnan(weights[now]), tests["weight"], weights[now])
        assert isinstance(counter, BltCounter)  # noqa: S101  (no other is tested)
        found = tested_covariance(
            counter, (one.trigger, two.trigger), self.opened(one, two), triggers, weights
        )
        return np.asarray(about["quantum"] ** 2 * found)

    def opened(self, *moments: Moment) -> Array:
        """The first trigger that showed each key."""
        found = np.nanmax([self.at(moment, OPENED) for moment in moments], axis=0)
        return np.asarray(found, np.int64)

    def is_weighted(self, moment: Moment) -> bool:
        """Whether keys carry weights."""
        return WEIGHT in self.releases.table(moment).column_names

    def weights(self, window: int, last: int) -> Array | None:
        """Every key's weight at triggers 1 .. last; None when a release among them is missing."""
        moments = [Moment(window, trigger) for trigger in range(1, last + 1)]
        if not set(moments) <= set(self.releases.moments):
            return None
        rows = self._weights.setdefault(window, [])
        rows += [self.at(moment, WEIGHT) for moment in moments[len(rows) :]]
        return np.array(rows[:last])

    @cached_property
    def _weights(self) -> dict[int, list[Array]]:
        return {}

    @property
    def facts(self) -> Facts:
        """The facts in the releases; empty if there are none."""
        return self.releases.facts or {}

    @cached_property
    def counters(self) -> list[Counter]:
        """The counters of all lanes."""
        return [counter_from(facts) for facts in self.facts["counters"]]

    def output(self, name: str) -> Facts:
        """The facts of one aggregate."""
        return output_of(self.releases, name)


def output_of(releases: Releases, name: str) -> Facts:
    """The facts of releases on one of their numbers."""
    outputs = (releases.facts or {}).get("outputs", ())
    found: Facts = next((one for one in outputs if one["name"] == name), {})
    return found


def joint_at(releases: Releases, moments: list[Moment]) -> tuple[Joint, int]:
    """The keys that all of these releases show, in the order of the last; and how many do not."""
    first, *others = dict.fromkeys(reversed(moments))
    keys = releases.keys(first)
    kept = pa.array(np.ones(len(keys), np.bool_))
    for moment in others:
        kept = pc.and_(kept, pc.is_in(keys, value_set=releases.keys(moment)))
    found = keys.filter(kept)
    return Joint(releases, found, first), len(keys) - len(found)
