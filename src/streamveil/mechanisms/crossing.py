"""When will an untouched key cross its threshold? An exact answer in O(1) per quiet block.

A key with count S is published at the first trigger t with S + N_t > threshold_t, N the noise of a
Haar counter (dyadic bridges). While the key is not touched S is fixed, so its next crossing can be
found when it is touched. Simulating every later step at each touch costs O(T) and must reuse the
noise that was already looked at; here only the *information* is kept that was revealed: the noise
at a few dyadic points, and for each block between them the count up to which its interior is known
not to cross. One coin usually answers for a whole block.

Algorithm: a coin for "the bridge inside a block crosses at count S":
    1. W = (points) * Q(smallest gap / largest deviation) bounds the probability; a uniform number
       >= W says no. If W is large, the midpoint is drawn and the halves are asked.
    2. Otherwise one point t', uniform; it stays with probability Q_t' / W', its noise is drawn from
       the normal tail, the path around it from the bridge given it, and the path stays with
       probability 1 / K, K the number of crossings (Adler, Blanchet & Liu 2012, arXiv:1009.4205,
       for the idea). A path that stays says yes; else no.
    A later touch descends to its time by midpoints, each drawn again until both halves agree with
    what is known, then asks the coins at the larger count, again until a path agrees.
Proof: P(yes) = sum_t P(A_t) E[1/K | A_t] = P(union of A_t), and a path that stays has the law given
    the union. Given the ends and "no", the inside of a block is independent of everything used so
    far, so it may be forgotten. After the first crossing w nothing is needed: counts only grow, so
    the key is published at w or before. "No crossing at S" implies the same at every smaller
    count, so the newest answer replaces the older ones. Repeating a draw until it agrees with a
    certificate samples the conditional law.
Error: none in law for real Gaussians; see Numerics.
Memory: 24 bytes a block, at most log2(horizon) + 1 blocks for a key that expects no crossing.
Numerics: float64. A comparison can differ from that of the real numbers only when they are within
    the rounding of the noise: measured against multiprecision, 2^-44 of the largest number. With
    the 40 words that hardly a touch exceeds, a density of at most 1 / (spread sqrt(2 pi)) and
    numbers of some ten spreads that is about 2^-36, `SLACK`: declared, not proved. A union over
    everything a touch might compare (all levels of all steps) comes to about 10^-6 at 1,000 steps
    and is no use. Noise kept on an integer lattice, with doubtful coins decided in
    multiprecision, would make every comparison exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit

from streamveil.errors import require_positive
from streamveil.mechanisms import crossing_kernels as kernels
from streamveil.privacy.noise import Draws, Place, require_place
from streamveil.privacy.samplers import gaussian_table
from streamveil.types import Array, Float64, Int64, UInt64

SLACK = 2.0**-36  # declared chance that rounding changes the outcome of one touch, for delta
FIRST_WORDS = 40  # words per key drawn at first; keys that need more get 4 times as many

Ids = UInt64[Array, "keys 2"]


@dataclass(frozen=True, repr=False)  # secret: a state is stored, never shown
class CrossingState:
    """What is known of the noise of each key: rows (time, noise, mark), the last touch first.

    The mark of a row is the count up to which the interior of the block that ends there is known
    not to cross; -inf when nothing is known. Unused rows are zero.
    """

    rows: Int64[Array, " keys"]  # used rows of each key
    points: Float64[Array, "keys rows 3"]
    counts: Int64[Array, " keys"]  # at the last touch
    wake: Int64[Array, " keys"]  # the next crossing; 0: none up to the horizon

    def take(self, keys: Int64[Array, " some"]) -> CrossingState:
        """The state of some keys."""
        return CrossingState(self.rows[keys], self.points[keys], self.counts[keys], self.wake[keys])

    def put(self, keys: Int64[Array, " some"], changed: CrossingState) -> CrossingState:
        """A copy with the state of some keys replaced."""
        fresh = [part.copy() for part in (self.rows, self.points, self.counts, self.wake)]
        new = (changed.rows, changed.points, changed.counts, changed.wake)
        for part, rows in zip(fresh, new, strict=True):
            part[keys] = rows
        return CrossingState(*fresh)


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Haar noise and the thresholds it is compared with.

    >>> from streamveil.privacy.noise import Place, SeededNoise
    >>> test = Crossing(top=4.0, spreads=(1.0, 1.0, 1.0), thresholds=(9.0,) * 8)
    >>> ids = np.arange(6, dtype=np.uint64).reshape(3, 2)
    >>> state = test.init(3)
    >>> state = test.touch(state, 2, np.array([1, 5, 19]), Place(SeededNoise(1), "doc"), ids)
    >>> state.wake
    array([0, 0, 2])
    """

    top: float  # standard deviation of the noise at the end of the last level
    spreads: tuple[float, ...]  # of the midpoint of a block of 2^1, 2^2, ... steps given its ends
    thresholds: tuple[float, ...]  # at t = 1, 2, ..., horizon

    def __post_init__(self) -> None:
        require_positive(top=self.top, **{f"spread_{i}": q for i, q in enumerate(self.spreads)})
        if not 1 <= len(self.thresholds) <= 1 << len(self.spreads):
            raise ValueError(
                f"{len(self.spreads)} levels serve 1 to {1 << len(self.spreads)} thresholds, "
                f"not {len(self.thresholds)}"
            )

    @property
    def horizon(self) -> int:
        """Triggers with a threshold."""
        return len(self.thresholds)

    @property
    def size(self) -> int:
        """Steps of the whole dyadic tree."""
        return 1 << len(self.spreads)

    @cached_property
    def world(self) -> Float64[Array, " entries"]:
        """The public tables of the kernels, as `crossing_kernels` wants them."""
        size, levels = self.size, len(self.spreads) + 1
        world = np.full((12, size), np.inf)
        cut = world[:2].reshape(-1)
        cut[1 : self.horizon + 1] = self.thresholds
        spread = np.array([0.0, *self.spreads])
        bridge = bridges(spread)
        world[2:4] = smallest(cut[: size + 1]).reshape(2, size)
        world[4:6] = bridge.reshape(2, size)
        world[6, :levels] = spread
        world[7, :levels] = [bridge[1 << j : 2 << j].max() for j in range(levels)]
        for row, part in ((8, 0.0), (10, 0.5)):
            world[row : row + 2] = deviations(cut, world[2:4].ravel(), bridge, part).reshape(2, -1)
        return world.reshape(-1)

    @property
    def width(self) -> int:
        """Rows that are enough for any key: a dyadic decomposition from one time to another."""
        return 2 * len(self.spreads) + 4

    def init(self, keys: int) -> CrossingState:
        """Keys that were never touched."""
        rows, counts, wake = np.zeros((3, keys), np.int64)
        return CrossingState(rows, np.zeros((keys, self.width, 3)), counts, wake)

    def touch(
        self, state: CrossingState, t: int, counts: Int64[Array, " keys"], place: Place, ids: Ids
    ) -> CrossingState:
        """The keys' counts became `counts` at trigger t; finds their next crossing, t included.

        `place` is the same at every trigger, which draws at its own number, where a key is touched
        at most once. A replay of a touch with the same state gives the same state.
        """
        counts = np.asarray(counts, np.int64)
        last = np.where(state.rows > 0, state.points[:, 0, 0], 0)
        if not 1 <= t <= self.horizon or (len(last) and last.max() >= t):
            raise ValueError(f"t must be after the last touch and at most {self.horizon}, not {t}")
        if bool(np.any((state.wake > 0) & (state.wake < t))) or bool(np.any(counts < state.counts)):
            raise ValueError("keys that have crossed cannot be touched, and counts only grow")
        draws = require_place(place).draws(t)
        if draws.silent:
            return self._silent(t, counts)
        out = CrossingState(
            np.zeros_like(state.rows), np.zeros_like(state.points), counts, state.wake.copy()
        )
        todo, n = np.arange(len(counts)), FIRST_WORDS
        while len(todo):
            words = draws.words_for(ids[todo], n)
            void = np.zeros(len(todo), np.bool_)
            touch_all(
                (state.rows, state.points), (todo, t, counts, self.top), self.world,
                gaussian_table(), words, (out.rows, out.points, out.wake), void,
            )  # fmt: skip
            todo, n = todo[void], 4 * n
        return out

    def _silent(self, t: int, counts: Int64[Array, " keys"]) -> CrossingState:
        """No noise: nothing is known, and a key wakes where its count is above the threshold."""
        state, above = self.init(len(counts)), counts[:, None] > self.world[t : self.size + 1]
        state.points[:, :2, 0] = t, self.size
        state.points[:, 1, 2] = -np.inf
        wake = np.where(above.any(axis=1), above.argmax(axis=1) + t, 0)
        return CrossingState(np.full(len(counts), 2), state.points, counts, wake)


@dataclass(frozen=True)
class Forward:
    """The oracle: simulate every step (Algorithm 4 of Zhang et al. 2023) and keep the noise.

    The noise of a key is drawn at its own address, so each touch looks at the same values; a touch
    costs O(size) draws. Equal in law to `Crossing` with the same numbers.
    """

    of: Crossing

    def path(self, draws: Draws, ids: Ids) -> Float64[Array, "keys times"]:
        """The noise at times 0..size of every key."""
        words = draws.words_for(ids, self.of.size)
        paths = np.empty((len(ids), self.of.size + 1))
        build_all(paths, self.of.top, self.of.world, gaussian_table(), words)
        return paths

    def touch(
        self, t: int, counts: Int64[Array, " keys"], draws: Draws, ids: Ids
    ) -> Int64[Array, " keys"]:
        """The next crossing at `counts`, t included; 0 when there is none up to the horizon."""
        above = self.path(draws, ids)[:, t:] + counts[:, None] > self.of.world[t : self.of.size + 1]
        return np.where(above.any(axis=1), above.argmax(axis=1) + t, 0)


def bridges(spread: Float64[Array, " levels"]) -> Float64[Array, " entries"]:
    """Entry 2^j + i: the deviation of a bridge over 2^j steps, i steps after its start."""
    variance = np.zeros(2 << (len(spread) - 1))
    for level in range(1, len(spread)):
        half = 1 << (level - 1)
        inner = np.tile(variance[half : 2 * half], 2)
        steps = np.arange(2 * half)
        weight = np.minimum(steps, 2 * half - steps) / half
        variance[2 * half : 4 * half] = inner + (weight * spread[level]) ** 2
    return np.sqrt(variance)


def smallest(cut: Float64[Array, " times"]) -> Float64[Array, " nodes"]:
    """Entry 2^(h-j) + k: the smallest threshold inside block k of 2^j steps, ends excluded."""
    size = len(cut) - 1
    least = np.full(2 * size, np.inf)
    for node in range(size - 1, 0, -1):
        length = size >> (node.bit_length() - 1)
        middle = (node * length - size) + length // 2
        least[node] = min(least[2 * node], least[2 * node + 1], cut[middle])
    return least


def deviations(
    cut: Float64[Array, " times"],
    least: Float64[Array, " nodes"],
    bridge: Float64[Array, " entries"],
    part: float,
) -> Float64[Array, " nodes"]:
    """Entry 2^(h-j) + k: the smallest (threshold - part * the smallest one) / deviation inside."""
    size = len(least) // 2
    found = np.full(2 * size, np.inf)
    for level in range(1, size.bit_length()):
        length = 1 << level
        nodes = slice(size >> level, 2 * size >> level)
        low = part * np.where(np.isfinite(least[nodes]), least[nodes], 0.0)
        inside = cut[:size].reshape(-1, length)[:, 1:] - low[:, None]
        found[nodes] = (inside / bridge[length + 1 : 2 * length]).min(axis=1)
    return found


@njit(cache=True)
def touch_all(state, touched, world, table, words, out, void):  # type: ignore[no-untyped-def]  # noqa: PLR0913  (flat arrays for numba)
    """`kernels.touch` for keys `todo`; those whose words did not suffice are marked void."""
    rows, points = state
    todo, t, counts, top = touched
    new_rows, new_points, wake = out
    size = len(world) // 12
    width = points.shape[1]
    path, times, values = np.empty(size + 1), np.empty(size + 2, np.int64), np.empty(size + 2)
    fresh, done, waiting = np.zeros((2, 3)), np.zeros((width, 3)), np.zeros((3 * width, 3))
    cursor = np.zeros(1, np.int64)
    for i in range(len(todo)):
        key = todo[i]
        cursor[0] = 0
        if rows[key] == 0:
            fresh[1, 0], fresh[1, 2] = size, -np.inf
            fresh[1, 1] = top * kernels.normal(words[i], cursor, table)
        before = fresh if rows[key] == 0 else points[key]
        n, woken = kernels.touch(
            before, max(2, rows[key]), t, counts[key], world, table, words[i], cursor,
            path, times, values, done, waiting,
        )  # fmt: skip
        void[i] = kernels.ran_out(words[i], cursor)
        if not void[i]:
            new_rows[key], wake[key] = n, woken
            new_points[key] = 0.0
            new_points[key, :n] = done[:n]


@njit(cache=True)
def build_all(paths, top, world, table, words):  # type: ignore[no-untyped-def]
    """The noise of every key at all times, from its own words."""
    cursor = np.zeros(1, np.int64)
    for key in range(len(paths)):
        cursor[0] = 0
        paths[key, 0] = 0.0
        paths[key, -1] = top * kernels.normal(words[key], cursor, table)
        kernels.build_path(paths[key], len(world) // 12, 0, 0.0, world, table, words[key], cursor)
