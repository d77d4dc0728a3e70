"""A counter without stored noise: any step of any key can be read at any time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np

from streamveil.compiled import njit
from streamveil.core import counters
from streamveil.core.accounting import float_above, take_numbers
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import (
    CounterState,
    Estimates,
    Ids,
    Increments,
    Stepping,
    checked_times,
    column,
    zeros,
)
from streamveil.core.noise import Draws, samplers
from streamveil.core.noise.samplers import gaussian_table
from streamveil.core.noise.samplers.quantiles import quantile_word
from streamveil.counters.kary import check_mark, mark_of
from streamveil.errors import require_one_of, require_positive
from streamveil.types import Array, Exact, Float64, Int64, UInt64

LARGEST_HORIZON = 2**24  # weights are optimised over every single step
ROUNDS = 60  # in which times join those that weights are chosen for
AIMS = ("max", "mean", "two-sided")
SIGN_SHIFT = np.uint64(63)


@dataclass(frozen=True, kw_only=True)
class HaarCounter(Stepping):
    """Running totals with noise from a weighted Haar basis (a dyadic bridge), drawn by address.

    Algorithm: N_t = sigma sum_j q_j tri_j(t) g(block of level j that holds t), tri_j the tent of
        height 1 over dyadic blocks of length 2^j and q_j = sqrt(2^(j-2) / w_j), plus the line
        top * t / 2^h; the total is released as round(S_t + N_t). Weights: optimised for the largest
        or the mean variance, or w_j proportional to 2^j - 1, which is the two-sided estimator of
        Honaker (2015) from the classical tree.
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = moved * sensitivity / sigma, also for increments that depend on earlier
        releases.
    Proof: the encoder's rows are sqrt(w_j) 2^(-j/2) times the Haar functions of level j, so every
        column has squared norm sum_j w_j 2^-j + w_0 2^-h. N depends on later blocks; but the law of
        N is that of L z with L L' = B B', L lower triangular, A = L (L^-1 A), and as the encoder is
        one solution of B C = A its columns are no shorter than those of the least one, L^-1 A. So
        the noise is that of a causal mechanism, which is a Gaussian at each step given the past.
    Error: variance sigma^2 (sum_j tri_j(t)^2 2^(j-2)/w_j + (t/2^h)^2 2^h/w_0) + 1/12.
    Memory: 16 bytes per key, whatever the horizon: the exact total and a mark of the address.
    Numerics: exact for the ideal real N_t that the address spells: float64 decides the rounding
        when its proved error allows, multiprecision otherwise. Nothing is added to the loss.

    Raises:
        ValueError: a setting is out of its range, or increments are not one whole number per key.
        HorizonError: a step after the last of `horizon`.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = HaarCounter(horizon=1000, sigma=100)
    >>> worst = counter.std(np.arange(1, 1001)).max() / 100
    >>> round(counter.sensitivity, 6), round(float(worst), 2)
    (1.0, 4.13)
    """

    keyed: ClassVar[bool] = True
    horizon: int  # steps the guarantee covers, >= 1
    sigma: Exact | float  # noise scale for sensitivity 1, quanta, > 0
    aim: Literal["max", "mean", "two-sided"] = "max"  # which error is least

    def __post_init__(self) -> None:
        take_numbers(self)
        if self.horizon > LARGEST_HORIZON:
            raise ValueError(f"horizon must be at most {LARGEST_HORIZON}, not {self.horizon}")
        require_positive(horizon=self.horizon, sigma=self.sigma)
        require_one_of("aim", self.aim, AIMS)

    @property
    def levels(self) -> int:
        """The h of the smallest 2^h that holds the horizon."""
        return levels_of(self.horizon)

    @property
    def weights(self) -> tuple[float, ...]:
        """w_0 (the whole), w_1 .. w_h."""
        return haar_weights(self.horizon, self.aim)

    @property
    def needs_horizon(self) -> bool:
        """A cap is needed; a generous one costs little."""
        return True

    @property
    def sensitivity(self) -> float:
        """See `Counter`."""
        return column_norm(self.weights)

    def loss(self, moved: Exact | float = 1, keys: int | None = None) -> Loss:
        """See `Counter.loss`."""
        return counters.gaussian_loss(self.sigma, self.sensitivity, moved, keys=keys)

    def std(self, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
        """See `Counter.std`."""
        return haar_std(checked_times(t, self.horizon), self.weights, self.sigma)

    @property
    def state_bytes(self) -> int:
        """See `Counter`."""
        return 16

    def init(self, keys: int, t: int = 0) -> CounterState:
        """See `Counter.init`."""
        return zeros(t, keys, whole=2, real=0)

    def _skipped(
        self, state: CounterState, steps: int, draws: Draws, ids: Ids | None
    ) -> CounterState:
        """See `Counter`. A block's noise is drawn when the block is first used."""
        return CounterState(state.t + steps, state.whole, state.real)

    def _advance(
        self, state: CounterState, increments: Increments, draws: Draws, ids: Ids | None
    ) -> tuple[Estimates, CounterState]:
        """See `Steppable`; `draws` have the same address at every step."""
        total = state.whole[0] + column(increments, state.keys)
        marks = check_mark(state.whole[1], mark_of(draws))
        t = state.t + 1
        return self._read(total, t, draws, ids), CounterState(
            t, np.stack([total, marks]), state.real
        )

    def _read(
        self, totals: Int64[Array, " keys"], t: int, draws: Draws, ids: Ids | None = None
    ) -> Int64[Array, " keys"]:
        """The release of step t from the exact totals alone: no state, no earlier step needed."""
        return haar_read((self.weights, float_above(self.sigma)), totals, t, draws, ids)


def node_words(
    draws: Draws, ids: Ids | None, keys: int, level: int, index: int
) -> UInt64[Array, " keys"]:
    """One word per key for one node of a tree."""
    node = draws.at("node", level, index)
    return node.words(keys) if ids is None else node.words_for(ids, 1)[:, 0]


@dataclass(frozen=True)
class HaarNode:
    """A node on the path of a step: its noise enters with `height` times its level's scale."""

    level: int  # 0: the whole
    index: int  # which block of its level
    height: Fraction  # exact: tent height times 2^((level-2)/2), or t / 2^(h/2), squared

    def to_float(self, weights: tuple[float, ...], sigma: float) -> float:
        """The coefficient of this node's Gaussian, within a few roundings."""
        return float(sigma * np.sqrt(float(self.height) / weights[self.level]))

    def to_exact(self, weights: tuple[float, ...], sigma: float) -> samplers.Number:
        """The coefficient at the context's precision."""
        square = self.height / Fraction(weights[self.level]) * Fraction(sigma) ** 2
        return samplers.context().sqrt(samplers.exact(square))

    def tail(self, draws: Draws, ids: Ids | None, key: int) -> samplers.Tail:
        """Further bits of one key's draw at this node."""
        node = draws.at("node", self.level, self.index)
        return samplers.tail_at(node, key) if ids is None else samplers.tail_for(node, ids[key], 0)


def haar_path(t: int, levels: int) -> list[HaarNode]:
    """The nodes with a part in N_t."""
    path = [HaarNode(0, 0, Fraction(t * t, 2**levels))]
    for level in range(1, levels + 1):
        inside, length = t % 2**level, 2**level
        if inside:
            tent = Fraction(2 * min(inside, length - inside), length)
            path.append(HaarNode(level, t >> level, tent**2 * Fraction(length, 4)))
    return path


def haar_read(
    sizes: tuple[tuple[float, ...], float],
    totals: Int64[Array, " keys"],
    t: int,
    draws: Draws,
    ids: Ids | None,
) -> Int64[Array, " keys"]:
    """round(total + N_t) per key, the noise given by `sizes`: the weights and sigma."""
    if draws.silent or not len(totals):
        return totals.copy()
    path = haar_path(t, len(sizes[0]) - 1)
    scales = np.array([node.to_float(*sizes) for node in path])
    words = np.stack([node_words(draws, ids, len(totals), node.level, node.index) for node in path])
    noise, sure = np.empty(len(totals), np.int64), np.empty(len(totals), np.bool_)
    _path_sum(words, scales, gaussian_table(), noise, sure)
    for key in np.flatnonzero(~sure).tolist():
        tails = [node.tail(draws, ids, key) for node in path]
        noise[key] = settle(path, sizes, words[:, key], tails)
    return np.asarray(totals + noise)


def settle(
    path: list[HaarNode],
    sizes: tuple[tuple[float, ...], float],
    words: UInt64[Array, " nodes"],
    tails: list[samplers.Tail],
) -> int:
    """round(N_t) in multiprecision, with as many bits of every node as it takes."""
    mp, more = samplers.context(), 0
    while True:
        with samplers.LOCK, mp.workprec(64 * (more + 2) + 4 * samplers.GUARD):
            low = high = mp.mpf(0)
            slack = mp.mpf(2) ** (samplers.GUARD - mp.prec)
            for node, word, tail in zip(path, words, tails, strict=True):
                least, most = gaussian_between(int(word), tail(more) if more else words[:0])
                size = node.to_exact(*sizes)
                low += size * (least - slack * (1 + abs(least)))
                high += size * (most + slack * (1 + abs(most)))
            if mp.isfinite(low + high) and mp.floor(low + 0.5) == mp.floor(high + 0.5):
                return int(mp.floor(low + 0.5))
        more = 2 * more or 1


def gaussian_between(
    word: int, more: UInt64[Array, " n"]
) -> tuple[samplers.Number, samplers.Number]:
    """The ends of what a Gaussian spelled by these bits can be."""
    mp = samplers.context()
    uniform = samplers.Uniform.of(word).refined(more)
    scale = mp.mpf(2) ** -uniform.bits
    least = samplers.GAUSSIAN.quantile((uniform.low + 1) * scale)
    most = samplers.GAUSSIAN.quantile(uniform.low * scale) if uniform.low else mp.inf
    return (-most, -least) if word >> 63 else (least, most)


@njit(cache=True)  # type: ignore[misc]  # numba is untyped
def _path_sum(words, sizes, table, out, sure):  # type: ignore[no-untyped-def]
    """round(sum of sizes * Gaussians) per key, and whether float64 decides it.

    A term is off by size * bound and, for its size and product, 6 u of itself; sums of n terms by
    n u of their absolute sum: less than 2^-53 (n + 8) times that sum. The last factor covers the
    rounding of the bound itself.
    """
    nodes = len(sizes)
    for key in range(words.shape[1]):
        total = spread = error = 0.0
        known = True
        for i in range(nodes):
            x, bound, tabulated = quantile_word(words[i, key], table)
            sign = 1 - 2 * np.int64(words[i, key] >> SIGN_SHIFT)
            total += sign * (sizes[i] * x)
            spread += abs(sizes[i] * x)
            error += sizes[i] * bound
            known &= tabulated
        whole = np.rint(total)
        error = (error + (nodes + 8) * 2.0**-53 * (spread + 1.0)) * (1 + 2.0**-30)
        out[key] = np.int64(whole)
        sure[key] = known & (abs(total - whole) < 0.5 - error) & (abs(total) < 2.0**50)


def levels_of(horizon: int) -> int:
    """The least h with 2^h >= horizon."""
    return (horizon - 1).bit_length()


def column_weights(levels: int) -> list[float]:
    """The squared entry of a column in rows of each level, for weight 1."""
    return [2.0**-levels] + [2.0**-level for level in range(1, levels + 1)]


def column_norm(weights: tuple[float, ...]) -> float:
    """The norm of every column of the encoder, rounded up."""
    norms = column_weights(len(weights) - 1)
    square = sum(Fraction(w) * Fraction(c) for w, c in zip(weights, norms, strict=True))
    return float(np.sqrt(float(square))) * counters.UP


def haar_std(
    times: Int64[Array, " times"], weights: tuple[float, ...], sigma: Exact | float
) -> Float64[Array, " times"]:
    """Standard deviation of the rounded noise of these weights."""
    unit = variance_parts(times, len(weights) - 1)
    variance = sum(part / w for part, w in zip(unit, weights, strict=True))
    return np.asarray(np.sqrt(float(sigma) ** 2 * variance + 1 / 12))


def variance_parts(t: Int64[Array, " times"], levels: int) -> list[Float64[Array, " times"]]:
    """What each level adds to the variance at t, for weight 1."""
    parts = [t.astype(float) ** 2 * 2.0**-levels]
    for level in range(1, levels + 1):
        inside = t & (2**level - 1)
        parts.append(np.minimum(inside, 2**level - inside).astype(float) ** 2 * 2.0**-level)
    return parts


@lru_cache(maxsize=64)
def haar_weights(horizon: int, aim: str) -> tuple[float, ...]:
    """Weights with column norm 1 (to rounding)."""
    levels = levels_of(horizon)
    if aim == "two-sided":
        raw = np.array([2.0 ** (levels + 1) - 1] + [2.0**j - 1 for j in range(1, levels + 1)])
    else:
        raw = best_weights(horizon, aim)
    return tuple(map(float, raw / (raw * column_weights(levels)).sum()))


def best_weights(horizon: int, aim: str) -> Float64[Array, " levels+1"]:
    """Weights of least mean or least maximal variance over 1..horizon.

    Algorithm: for a distribution over times the best weights are sqrt(mean part / column part); the
        maximum is minimised over a growing set of times, the worst of all times joining each round.
    """
    levels = levels_of(horizon)
    parts, norms = (
        variance_parts(np.arange(1, horizon + 1), levels),
        np.array(column_weights(levels)),
    )
    start = weights_of_mean(parts, norms)
    if aim == "mean":
        return start
    weights, times = start, set[int]()
    for _ in range(ROUNDS):
        total = sum(part / w for part, w in zip(parts, weights, strict=True))
        if times and total.max() <= (1 + 1e-7) * max(total[i] for i in times):
            break
        times.add(int(np.argmax(total)))
        chosen = np.array([[part[i] for part in parts] for i in sorted(times)])
        weights = least_maximum(chosen, norms, weights)
    return weights


def weights_of_mean(parts: Sequence[Array], norms: Array) -> Float64[Array, " levels+1"]:
    """Weights of norm 1 with the least mean over times; `parts`: of each level, at all times."""
    weights = np.sqrt(np.array([part.mean() for part in parts]) / norms)
    return np.asarray(weights / (weights @ norms))


def least_maximum(parts: Array, norms: Array, start: Array) -> Float64[Array, " levels+1"]:
    """Weights of norm 1 with the least maximum of parts @ (1 / w); convex in log w."""

    def total(x: Array) -> Array:
        return np.asarray((parts @ np.exp(-x[:-1])) * (norms @ np.exp(x[:-1])))

    def slopes(x: Array) -> Array:
        inverse, norm = parts * np.exp(-x[:-1]), norms * np.exp(x[:-1])
        rows = -inverse * norm.sum() + inverse.sum(axis=1)[:, None] * norm
        return np.hstack([-rows / total(x)[:, None], np.ones((len(parts), 1))])

    last = np.append(np.zeros(len(norms)), 1.0)
    first = np.append(np.log(start), 0.0)
    first[-1] = np.log(total(first).max())
    from scipy.optimize import minimize  # slow to load

    found = minimize(
        lambda x: x[-1],
        first,
        jac=lambda _: last,
        method="SLSQP",
        constraints=[{"type": "ineq", "fun": lambda x: x[-1] - np.log(total(x)), "jac": slopes}],
        options={"ftol": 1e-12, "maxiter": 300},
    ).x
    weights = np.exp(found[:-1])
    return np.asarray(weights / (weights @ norms))
