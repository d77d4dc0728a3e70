"""The public snapshot of a private sketch, and everything that may be computed from it.

A `PublishedSketch` holds public numbers only, so all of this module is post-processing: it costs no
privacy and cannot reach a key, an exact count or a noise variable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.compiled import bdtrc, ndtri
from streamveil.core.accounting import exact_between
from streamveil.dataflow.outputs import reach_of
from streamveil.errors import PlanError, require_between, require_flag, require_one_of, require_with
from streamveil.sketches.hashing import Layout
from streamveil.sketches.keys import Keys, key_words, mix_large
from streamveil.sketches.linear import read_rows, require_same
from streamveil.types import Array, Float64, Int64

Method = Literal["calibrated", "min", "median"]
METHODS: tuple[Method, ...] = ("calibrated", "min", "median")
FAKES = 4096  # cell tuples of keys that nobody has, to estimate an absent key


class SketchErrorBound(NamedTuple):
    """Bounds on an error: with the stated probability, estimate - truth is in [-below, above].

    >>> SketchErrorBound(below=20.0, above=35.0).above
    35.0
    """

    below: float
    above: float


@dataclass(frozen=True, eq=False)
class PublishedSketch:
    """One public snapshot of a sketch: the table shown, and the public facts about it.

    Raises:
        PlanError: an unknown method, a beta or confidence out of (0, 1) or out of reach of this
            depth, or sketches to merge that differ.

    >>> from streamveil.sketches import LazySketch
    >>> from streamveil.core.accounting import Budget
    >>> from streamveil.core.accounting import Neighbours
    >>> from streamveil.core.noise import SeededNoise
    >>> live = LazySketch(kind="count-min", width=500, horizon=2**16,
    ...     protects=Neighbours(relation="event"), budget=Budget(epsilon=1, delta=1e-6),
    ... ).open(SeededNoise(1))
    >>> live.update(np.repeat([3, 4], [40_000, 20_000]))
    >>> public = live.published()
    >>> low, high = public.interval(public.estimate([3]))
    >>> bool(low[0] < 40_000 < high[0]), public.time
    (True, 60000)
    """

    layout: Layout  # shape and hash functions
    table: Int64[Array, "depth width"]  # read-only
    time: int  # of the public clock, >= 0
    pushed_at: Int64[Array, " width"]  # clock at each column's last push; 0: never
    sds: Float64[Array, " width"]  # standard deviation of the noise shown in each column
    brings: float | None = 1  # most weight in a unit of the clock, >= 0; None (ticks): any

    def __post_init__(self) -> None:
        for array in (self.table, self.pushed_at, self.sds):
            array.setflags(write=False)

    @property
    def sd(self) -> float:
        """The largest standard deviation of the noise in a cell."""
        return float(self.sds.max())

    @property
    def lag(self) -> int:
        """The most clock time that has passed since a column was pushed."""
        return int(self.time - self.pushed_at.min())

    @property
    def total(self) -> float:
        """Weight counted so far as the table shows it (Count-Min)."""
        return float(self.table.sum(axis=1).mean())

    def cells(self, words: Array, *, lag_corrected: bool = False) -> Float64[Array, "depth keys"]:
        """The cells of keys given as words, signs undone; optionally scaled up for their lag.

        The correction multiplies by time / (time of the last push): right for a stationary stream
        only, wrong after an abrupt change.

        Args:
            words: keys as words.
            lag_corrected: scale cells up to the time since their last push: for streams that do not
                change.

        Raises:
            PlanError: `lag_corrected` is neither True nor False.
        """
        require_flag(lag_corrected=lag_corrected)
        rows = read_rows(self.layout, self.table, words)
        if not lag_corrected:
            return rows
        scale = self.time / np.maximum(self.pushed_at, 1)
        return rows * scale[self.layout.columns(words)]

    def estimate(
        self, keys: Keys, method: Method | None = None, *, lag_corrected: bool = False
    ) -> Float64[Array, " keys"]:
        """Estimated weight of each key, however rare.

        'calibrated' (default for Count-Min) is the smallest row minus the usual smallest row of an
        absent key, which removes collisions and the bias of a minimum of noisy rows; 'min' is the
        smallest row; 'median' (default for Count Sketch) is the median row.

        Args:
            keys: integers or texts.
            method: 'calibrated', 'min' or 'median'; chosen by the kind of sketch if left out.
            lag_corrected: scale cells up to the time since their last push: for streams that do not
                change.

        Raises:
            PlanError: this kind of sketch has no such method.
        """
        return self.estimate_words(key_words(keys), method, lag_corrected=lag_corrected)

    def estimate_words(
        self, words: Array, method: Method | None = None, *, lag_corrected: bool = False
    ) -> Float64[Array, " keys"]:
        """`estimate` for keys that are words already.

        Args:
            words: keys as words.
            method: as for `estimate`.
            lag_corrected: scale cells up to the time since their last push: for streams that do not
                change.

        Raises:
            PlanError: this kind of sketch has no such method.
        """
        usual = "median" if self.layout.signed else "calibrated"
        chosen = usual if method is None else method
        require_one_of("method", chosen, METHODS)
        rows = self.cells(words, lag_corrected=lag_corrected)
        if chosen == "median":
            return np.asarray(np.median(rows, axis=0))
        if self.layout.signed:
            raise PlanError(f"method '{chosen}' needs kind 'count-min'; use 'median'")
        smallest = rows.min(axis=0)
        if chosen == "min" or self.layout.family == "identity":
            return np.asarray(smallest)
        return np.asarray(smallest - self.background(lag_corrected=lag_corrected))

    def background(self, *, lag_corrected: bool = False) -> float:
        """The median estimate by `min` over keys nobody has.

        Args:
            lag_corrected: scale cells up to the time since their last push: for streams that do not
                change.
        """
        fakes = mix_large(np.arange(2**40, 2**40 + FAKES, dtype=np.uint64))
        if self.layout.family != "multiply":
            fakes = fakes >> np.uint64(32)
        return float(np.median(self.cells(fakes, lag_corrected=lag_corrected).min(axis=0)))

    def interval(
        self, estimates: Float64[Array, " keys"], confidence: float = 0.95
    ) -> tuple[Float64[Array, " keys"], Float64[Array, " keys"]]:
        """Estimates plus and minus the noise alone: it does not cover collisions and lag.

        Args:
            estimates: what `estimate` returned without `lag_corrected`; see `to_arrow`.
            confidence: with which the interval covers the noise, above 0 and below 1.

        Raises:
            PlanError: the confidence is beyond its range.
        """
        exact_between("confidence", confidence, 0, 1)
        z, found = float(ndtri((1 + float(confidence)) / 2)), np.asarray(estimates, np.float64)
        whole = reach_of(np.array(self.sd), z, 1.0)  # noise is; estimates may be scaled for lag
        half = np.maximum(z * self.sd, whole)
        return found - half, found + half

    def error_bound(
        self, beta: float, arrivals: float | None = None, late: float | None = None
    ) -> SketchErrorBound:
        """A bound on the error of an estimate by any method, for one key fixed in advance.

        Error: Count-Min, `min`: a row's collisions have mean at most N/w, so
            all d rows exceed x with probability at most (N/(w x))^d (Markov); the noise of d cells
            stays within sd sqrt(2 ln(4 d/beta)); each event gets beta/2. `calibrated` is less by
            the `background`, a public number, and both are covered. Count Sketch: a row errs
            with variance at most F2/w + sd^2, so beyond x with probability p = variance/x^2
            (Chebyshev), and the median fails when half the rows do (binomial tail); F2 is read off
            the published table, so this one is an estimate of a bound. The lag adds at most what
            arrived since the last push, from below (either side for Count Sketch). `arrivals` is N,
            a bound on the weight of all keys so far, `late` on the weight within the lag. With the
            arrival clock both follow from it and `max_weight`; with ticks N must be given, and all
            of it may be late unless `late` says otherwise.

        Args:
            beta: chance that it fails, above 0 and below 1.
            arrivals: the weight of all keys so far, at most.
            late: the weight within the lag, at most.

        Raises:
            PlanError: beta or a weight is beyond its range, or the weight of all keys is not known.
        """
        exact_between("beta", beta, 0, 1)
        require_between(1e-300, 1.0, beta=beta)
        beta = float(beta)  # a fraction has no logarithm in NumPy
        total, lag = self._weights(arrivals, late)
        depth, width = self.layout.depth, self.layout.width
        if self.layout.signed:
            second = max(float((self.table.astype(float) ** 2).sum(axis=1).max()), 0.0)
            low, high = 0.0, 0.5
            for _ in range(60):
                p = (low + high) / 2
                fails = float(bdtrc((depth - 1) // 2, depth, p))
                low, high = (p, high) if fails <= beta else (low, p)
            if low == 0.0:
                raise PlanError(f"depth {depth} cannot give beta = {beta}; use more rows")
            reach = float(np.sqrt((second / width + self.sd**2) / low))
            return SketchErrorBound(reach + lag, reach + lag)
        noise = self.sd * float(np.sqrt(2 * np.log(4 * depth / beta)))
        if self.layout.family == "identity":
            return SketchErrorBound(noise + lag, noise)
        load, less = total / width * (2 / beta) ** (1 / depth), self.background()
        return SketchErrorBound(noise + lag + max(less, 0.0), load + noise + max(-less, 0.0))

    def _weights(self, arrivals: float | None, late: float | None) -> tuple[float, float]:
        """The most weight so far, and since the oldest push."""
        if arrivals is None and self.brings is None:
            raise PlanError(
                "with ticks the number of items is private: no bound follows from the clock.\n"
                "  to fix  give a bound on the weight of all keys so far: arrivals = N"
            )
        for name, weight in (("arrivals", arrivals), ("late", late)):
            if weight is not None:
                require_between(0, math.inf, **{name: weight})
        brings = np.inf if self.brings is None else self.brings
        total = float(self.time * brings) if arrivals is None else float(arrivals)
        if not self.lag:
            return total, 0.0
        return total, min(float(self.lag * brings) if late is None else float(late), total)

    def merge(self, other: PublishedSketch) -> PublishedSketch:
        """The snapshot of both streams: tables add up, noise variances too.

        Args:
            other: a snapshot of the same layout, of other people.

        Raises:
            PlanError: the layouts differ, or the other is no snapshot.
        """
        require_with("other", other, "layout", "a published sketch")
        require_same(self.layout, other.layout)
        unknown = self.brings is None or other.brings is None
        return replace(
            self,
            table=self.table + other.table,
            time=self.time + other.time,
            pushed_at=self.pushed_at + other.pushed_at,
            sds=np.sqrt(self.sds**2 + other.sds**2),
            brings=None if unknown else max(self.brings or 0, other.brings or 0),
        )

    def to_arrow(self, keys: Keys, **options: Any) -> pa.Table:
        """Keys with n, n_sd, n_low and n_high.

        Args:
            keys: integers or texts.
            **options: those of `estimate`.

        Raises:
            PlanError: this kind of sketch has no such method.
        """
        keys = list(keys) if isinstance(keys, Iterator) else keys  # they are gone through twice
        words = key_words(keys)
        estimates = self.estimate_words(words, **options)
        sds = deviations(self, words, lag_corrected=options.get("lag_corrected", False))
        half = self.interval(np.zeros(1))[1] * (sds / self.sd if self.sd else 1.0)
        low, high = estimates - half, estimates + half
        column = key_column(keys)
        return pa.table({"key": column, "n": estimates, "n_sd": sds, "n_low": low, "n_high": high})


def deviations(
    sketch: PublishedSketch, words: Array, *, lag_corrected: bool
) -> Float64[Array, " keys"]:
    """The largest deviation of the noise in the cells of each key, scaled up as the cells are."""
    if not lag_corrected:
        return np.full(len(words), sketch.sd)
    scaled = sketch.sds * (sketch.time / np.maximum(sketch.pushed_at, 1))
    return np.asarray(scaled[sketch.layout.columns(words)].max(axis=0))


def key_column(keys: Any) -> pa.Array | pa.ChunkedArray:
    """Keys as they are shown: one column of Arrow.

    >>> key_column([7, 2**63]).type
    DataType(uint64)
    """
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return keys
    listed = not isinstance(keys, np.ndarray)
    large = listed and any(isinstance(key, int) and key >= 2**63 for key in keys)
    return pa.array(keys, pa.uint64() if large else None)
