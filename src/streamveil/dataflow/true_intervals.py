"""Intervals for what is true of all rows: noise, selection and the rows over the bound together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.special import log_ndtr

from streamveil.core.portable import portable
from streamveil.dataflow.outputs import Estimate, Output
from streamveil.types import Array, Bool, Float64

UNEVEN = 3.0  # times as many rows as on average that a group may have lost; chosen by measurement
FARTHEST = 60.0  # deviations below an estimate at which the search for its end begins
COVERED = ("count", "count_units", "count_distinct", "sum")


def with_cut(answer: Estimate, output: Output, odds: float | Float64[Array, " keys"]) -> Estimate:
    """An interval that also holds the rows that contribution bounding cut.

    `odds`: cut rows per row that was kept, at most, over all groups. Which groups lost them is not
    known: the interval allows each `UNEVEN` times its share. Sums of values of one sign only.
    """
    more = UNEVEN * odds
    rises = output.function != "sum" or output.low >= 0
    if rises:
        return replace(answer, high=answer.high + more * np.maximum(answer.high, 0.0))
    return replace(answer, low=answer.low + more * np.minimum(answer.low, 0.0))


def since_published(
    answer: Estimate,
    fresh: Bool[Array, " keys"],
    thresholds: Float64[Array, " keys"],
    confidence: float,
) -> Estimate:
    """The intervals of groups that their own noisy totals show for the first time, corrected.

    Proof: such a total is only seen because it is above the threshold t, so it has the law of a
        Gaussian given that it is. P(X >= x | X > t) = Phi((m - x) / sd) / Phi((m - t) / sd) rises
        with the mean m, so the means at which it is alpha / 2 and 1 - alpha / 2 are the ends of an
        interval that holds the true mean with the confidence. That the total was below the
        thresholds of earlier triggers is not used.
    """
    rows = np.flatnonzero(fresh & (answer.sd > 0))
    if not len(rows):
        return answer
    x, sd = answer.value[rows].astype(np.float64), answer.sd[rows]
    low, high = answer.low.copy(), answer.high.copy()
    miss = (1 - confidence) / 2
    above = thresholds[rows]
    low[rows] = mean_above(x, above, sd, miss)
    high[rows] = np.maximum(mean_above(x, above, sd, 1 - miss), low[rows])
    return replace(answer, low=low, high=high)


def mean_above(
    x: Float64[Array, " keys"],
    threshold: float | Float64[Array, " keys"],
    sd: Float64[Array, " keys"],
    chance: float,
) -> Float64[Array, " keys"]:
    """The mean of a Gaussian that, seen above the threshold, is at least x with this chance.

    >>> float(mean_above(np.array([100.0]), 0.0, np.array([1.0]), 0.5)[0])
    100.0
    """
    low, high = x - FARTHEST * sd, x + FARTHEST * sd
    seen = np.maximum(x, threshold)
    for _ in range(60):
        middle = (low + high) / 2
        found = log_ndtr((middle - seen) / sd) - log_ndtr((middle - threshold) / sd)
        above = found > np.log(chance)
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return np.asarray(portable(high))
