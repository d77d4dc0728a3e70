"""Honaker trees: their loss and their error; many small trees that restart."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from streamveil.compiled import njit
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.counters import UP, Counter, gaussian_loss
from streamveil.core.noise import Draws
from streamveil.core.noise.samplers import Asked, gaussian_table, rounded_gaussian_word, settle
from streamveil.core.noisy import Noisy, drawn
from streamveil.core.sensitivity import within_64_bits
from streamveil.types import Array, Bool, Exact, Float64, Int64, UInt64

SMALLEST = 64  # rows of new arrays
ROUNDING = 1 / 12  # variance of rounding a draw to an integer


@dataclass(frozen=True, kw_only=True)
class RestartingTrees:
    """The trees of all keys, each at its own step, and the public numbers of one tree.

    Algorithm: Honaker's bottom-up estimates (see `HonakerCounter`), of which only the largest block
        that a step completes is computed: a smaller block that completes at the same step is never
        read, so its nodes' noise and the others' add up to one Gaussian. With the left neighbours'
        estimates e_l and exact sums b_l known, the block of level d has the estimate
        block + N(o_d, s_d^2), o_(l+1) = (1 - w) (o_l + e_l - b_l), s_(l+1)^2 = w^2 sigma^2 +
        (1 - w)^2 s_l^2, w = a_(l+1) of `refined_variances`, o_0 = 0, s_0 = sigma.
    Guarantee: at least that of `HonakerCounter` with the same sigma.
    Proof: the estimates are those of the tree, so the releases are a function of its nodes. Seen
        directly: given the past, step t is one Gaussian about a centre that is linear in the data,
        so the run is one Gaussian mechanism, whose mu^2 is the sum over steps of (what one
        increment moves the centre by / the deviation of the step)^2, and rounding each draw about
        its centre is post-processing.
    Error: that of `HonakerCounter`, less its rounding.
    Memory: 16 bytes for each level of a key.
    Numerics: block sums are exact integers; the offset o_d adds up past noise in float64, so its
        error is 2^-50 of that noise, whatever the sums are. For two levels and more, mu^2 sigma^2
        lies at least 3 % below the levels that are charged; with one level, the offset is 0.

    >>> trees = RestartingTrees(levels=7, sigma=100.0)
    >>> [round(float(s), 2) for s in trees.spreads[:3]]
    [100.0, 74.54, 65.47]
    """

    levels: int
    sigma: float

    @classmethod
    def over(cls, horizon: int, sigma: Exact | float) -> RestartingTrees:
        """Trees of at most `horizon` steps, with noise `sigma` in a node."""
        return cls(levels=levels_over(horizon), sigma=float(np.nextafter(float(sigma), np.inf)))

    @classmethod
    def paid_by(cls, counter: Counter) -> RestartingTrees:
        """Trees of a counter's horizon and noise, if the counter's loss covers theirs."""
        made = cls.over(counter.horizon, counter.sigma)
        if counter.loss(1).gaussian < tree_loss(made.sigma, made.levels, 1).gaussian:
            raise ValueError("this counter charges less than the trees of rounds cost")
        return made

    @property
    def weights(self) -> Float64[Array, " levels"]:
        """The weight of a block's own node in its estimate, by level."""
        return refined_variances(self.levels)

    @property
    def spreads(self) -> Float64[Array, " levels"]:
        """The deviation of the fresh noise of a block's estimate, by level."""
        squares = [1.0]
        for w in self.weights[1:]:
            squares.append(w**2 + (1 - w) ** 2 * squares[-1])
        return np.asarray(self.sigma * np.sqrt(squares) * (1 + 1e-15))

    def init(self) -> dict[str, Array]:
        """The state without keys. Arrays have spare rows; `keys` of them are in use."""
        empty = np.zeros(SMALLEST, np.int64)
        return {
            "keys": np.zeros(1, np.int64), "round": empty, "begun": empty.copy(),
            "units": empty.copy(), "whole": np.zeros((SMALLEST, self.levels), np.int64),
            "real": np.zeros((SMALLEST, self.levels), np.int64),
        }  # fmt: skip

    def add_keys(self, state: dict[str, Array], keys: int) -> None:
        """Rows for further keys; in new arrays if the old ones are full or not writeable."""
        rows = int(state["keys"][0]) + keys
        state["keys"] = np.array([rows])
        for name in ("round", "begun", "units", "whole", "real"):
            array = state[name]
            if len(array) < rows or not array.flags.writeable:
                size = len(array) if len(array) >= rows else max(rows, 2 * len(array))
                larger = np.zeros((size, *array.shape[1:]), np.int64)
                larger[: len(array)] = array
                state[name] = larger

    def advance(
        self,
        trees: tuple[Int64[Array, "all levels"], Int64[Array, "all levels"]],
        rows: Int64[Array, " keys"],
        index: Int64[Array, " keys"],
        increments: Int64[Array, " keys"],
        at: tuple[Draws, UInt64[Array, "keys 2"], int],
    ) -> Noisy[Int64[Array, " keys"]]:
        """Runs `steps` steps (the last of `at`) of some trees, in place; returns their estimates.

        `index` is the number of the last of these steps in each tree. The increments belong to it;
        the steps before have none. Every step needs words of its own.
        """
        draws, names, steps = at
        whole, real = trees
        n = len(rows)
        totals, stuck = np.zeros(n, np.int64), np.full(n, -1, np.int64)
        centre, settled = np.zeros(n), np.zeros(n, np.int64)
        shape = np.stack([self.weights, self.spreads])
        words = (
            np.zeros((n, steps), np.uint64)
            if draws.silent
            else np.ascontiguousarray(draws.words_for(names, steps))
        )
        todo = np.arange(n)
        while len(todo):
            grow(
                todo, rows, words, index, increments, whole, real, shape, gaussian_table(),
                draws.silent, settled, stuck, centre, totals,
            )  # fmt: skip
            todo = np.flatnonzero(stuck >= 0)
            if len(todo):
                asked = Asked(draws, names, steps)
                settled[todo] = self._settle(asked, words, index, (todo, stuck[todo], centre[todo]))
        return drawn(within_64_bits(totals))

    def _settle(
        self,
        asked: Asked,
        words: UInt64[Array, "keys steps"],
        index: Int64[Array, " keys"],
        which: tuple[Int64[Array, " some"], Int64[Array, " some"], Float64[Array, " some"]],
    ) -> Int64[Array, " some"]:
        """The draws that float64 could not decide: about one in 2^32."""
        keys, steps, centres = which
        places = keys * words.shape[1] + steps
        middle, scale = np.zeros(words.size), np.ones(words.size)
        number = index[keys] - (words.shape[1] - 1 - steps)
        level = [min((int(t) & -int(t)).bit_length() - 1, self.levels - 1) for t in number]
        middle[places], scale[places] = centres, self.spreads[level]
        return settle(asked, places, words.reshape(-1), middle, scale)


def levels_over(horizon: int) -> int:
    """How many blocks a step can lie in. The two halves of 2^h steps are just added."""
    return max(1, (horizon - 1).bit_length())


def tree_loss(sigma: Exact | float, levels: int, moved: Exact | float) -> Loss:
    """The loss if one unit moves leaves by `moved` in L2: a leaf lies in one node per level."""
    return gaussian_loss(sigma, sqrt(levels) * UP, moved)


def blocks_of(t: Int64[Array, " times"], levels: int) -> Int64[Array, "levels times"]:
    """Blocks of each level that make up the first t steps; the top level may count two."""
    parts = (t >> np.arange(levels)[:, None]) & 1
    parts[-1] = t >> (levels - 1)
    return np.asarray(parts)


def tree_std(
    sigma: Exact | float, levels: int, t: Int64[Array, " times"]
) -> Float64[Array, " times"]:
    """Standard deviation of the estimate after t steps; nodes are rounded to integers."""
    variance = refined_variances(levels) @ blocks_of(t, levels)
    return np.asarray(np.sqrt(variance * (float(sigma) ** 2 + ROUNDING)))


def tree_rounding(levels: int, t: Int64[Array, " times"]) -> Float64[Array, " times"]:
    """The most that rounding every node to an integer moves the estimate after t steps."""
    roundings = [0.5]
    for weight in refined_variances(levels)[1:]:
        roundings.append(weight / 2 + (1 - weight) * 2 * roundings[-1])
    return np.asarray(np.array(roundings) @ blocks_of(t, levels))


def refined_variances(levels: int) -> Float64[Array, " levels"]:
    """a_l: the variance of a block's refined estimate for unit noise; also its own weight."""
    variances = [1.0]
    for _ in range(levels - 1):
        variances.append(1 / (1 + 1 / (2 * variances[-1])))
    return np.array(variances)


def restart(state: dict[str, Array], passes: Bool[Array, " keys"], trigger: int) -> None:
    """Begins a new round of the keys that passed: empty trees, whose first step is the next."""
    rows = np.flatnonzero(passes)
    state["round"][rows] += 1
    state["begun"][rows] = trigger
    for name in ("units", "whole", "real"):
        state[name][rows] = 0


@njit(cache=True)
def closes(t, most):  # type: ignore[no-untyped-def]
    """The level of the largest block that step t completes, at most `most`."""
    level = 0
    while level < most and (t >> level) & 1 == 0:
        level += 1
    return level


@njit(cache=True)
def grow(  # type: ignore[no-untyped-def]  # noqa: PLR0913  (one flat loop for numba)
    todo, rows, words, index, increments, whole, real, shape, table,
    silent, settled, stuck, centre, totals,
):  # fmt: skip
    """The loop of `RestartingTrees.advance`; a key with an undecided draw waits for `settled`."""
    top, steps = shape.shape[1] - 1, words.shape[1]
    for i in todo:
        row = rows[i]
        first = max(stuck[i], 0)
        for step in range(first, steps):
            t = index[i] - (steps - 1 - step)
            level = closes(t, top + 1)
            done = min(level, top)
            block = increments[i] if step == steps - 1 else 0
            offset = 0.0
            for inner in range(done):
                past = np.int64(real[row, inner]) - whole[row, inner]
                offset = (1 - shape[0, inner + 1]) * (offset + past)
                block += whole[row, inner]
            if silent:
                fresh = np.int64(np.rint(offset))
            elif stuck[i] == step:
                fresh = settled[i]
            else:
                fresh, sure = rounded_gaussian_word(words[i, step], offset, shape[1, done], table)
                if not sure:
                    stuck[i], centre[i] = step, offset
                    break
            stuck[i] = -1
            estimate = block + fresh
            for inner in range(done):
                whole[row, inner], real[row, inner] = 0, 0
            if level > top:  # the tree has no root: its two halves are added
                whole[row, done] += block
                real[row, done] += estimate
            else:
                whole[row, done], real[row, done] = block, estimate
        total = 0
        for level in range(top + 1):
            total += real[row, level]
        totals[i] = total
