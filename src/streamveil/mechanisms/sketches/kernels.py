"""The compiled loops of the private sketches: count, push, and both along the arrival clock.

A push of column j for the k-th time adds to the shown count what is pending and the change of the
noise: shown += pending + (Z_k - Z_(k-1)). Exact parts telescope, so no exact total is ever kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32
from numba import njit

from streamveil.mechanisms.sketches.gaussian import PIECE, rounded_piece
from streamveil.mechanisms.sketches.keys import Words
from streamveil.mechanisms.sketches.linear import add_keys, add_weighted
from streamveil.types import Array


class Tables(NamedTuple):
    """The state as arrays. Pending and noise are secret, the rest is public."""

    pending: Array  # depth, width: exact counts since the last push
    noise: Array  # words, depth, width: buffers or tree totals
    shown: Array  # depth, width
    pushes: Array  # blocks: pushes so far
    pushed_at: Array  # blocks: clock of the last push
    clock: Array  # [time, scheduled pushes so far, flushes so far]


class Law(NamedTuple):
    """The numbers of a sketch, for compiled loops."""

    counter: int
    code: int  # of the hash family
    factors: Array
    block: int
    round: int
    sigmas: Array  # by epoch of an unbounded tree, else one
    omega: Array  # in units of the buffers
    theta: Array
    unit: float  # buffer units in one count
    limit: float  # buffers are clamped to this


class Scratch(NamedTuple):
    """Work space of a push."""

    normal: Array
    words: Array
    doubtful: Array
    centre: Array
    noise: Array
    change: Array


@njit(cache=True)
def new_scratch() -> Scratch:
    """Empty work space."""
    return Scratch(
        np.empty(PIECE, np.float32), np.empty(PIECE, np.uint64), np.zeros(PIECE, np.uint8),
        np.zeros(PIECE, np.float64), np.empty(PIECE, np.int32), np.empty(PIECE, np.int64),
    )  # fmt: skip


@njit(inline="always")
def trailing_zeros(k: int) -> int:
    """Trailing zero bits of k > 0."""
    zeros = 0
    while not k & 1:
        k >>= 1
        zeros += 1
    return zeros


@njit(inline="always")
def epoch_start(k: int, law: Law) -> int:
    """The first push of the open epoch of an unbounded tree; 1 otherwise."""
    if len(law.sigmas) == 1:
        return 1
    start = 1
    while 2 * start <= k:
        start *= 2
    return start


@njit(inline="always")
def epoch_of(start: int) -> int:
    """The number of the epoch that starts at a power of two."""
    epoch = 0
    while start > 1:
        start >>= 1
        epoch += 1
    return epoch


@njit(cache=True)
def draw(
    keys: Array, group: int, sigma: float, count: int, scratch: Scratch
) -> None:
    """Noise of `count` cells about scratch.centre, from the words of `group` on."""
    rounded_piece(
        keys, group, sigma, scratch.centre[:count], scratch.noise[:count], scratch.normal,
        scratch.words, scratch.doubtful,
    )  # fmt: skip


@njit(inline="always")
def group_of(tables: Tables, push: int, row: int, column: int) -> int:
    """Where a piece of a push begins in the keystream.

    Proof: (push, row, column) is written in mixed radix, so no two cells share a number; a piece of
        n columns uses at most n groups of words from its first column's on. No word serves twice.
    """
    depth, width = tables.shown.shape
    return (push * depth + row) * width + column


@njit(cache=True)
def push_block(tables: Tables, law: Law, keys: Array, block: int, scratch: Scratch) -> None:
    """Pushes one block of columns."""
    depth, width = tables.shown.shape
    push = tables.pushes[block] + 1
    first, last = block * law.block, min(width, (block + 1) * law.block)
    for row in range(depth):
        for start in range(first, last, PIECE):
            end = min(last, start + PIECE)
            if law.counter == 0:
                push_blt(tables, law, keys, (push, row, start, end), scratch)
            else:
                push_tree(tables, law, keys, (push, row, start, end), scratch)
    tables.pushes[block] = push
    tables.pushed_at[block] = tables.clock[0]


@njit(cache=True, error_model="numpy")
def push_blt(
    tables: Tables, law: Law, keys: Array, place: tuple[int, int, int, int], scratch: Scratch
) -> None:
    """One row of a block: the buffered Toeplitz recurrence."""
    push, row, start, end = place
    count = end - start
    centre, noise = scratch.centre[:count], scratch.noise[:count]
    pending = tables.pending[row, start:end]
    shown = tables.shown[row, start:end]
    for i in range(len(law.omega)):
        buffer = tables.noise[i, row, start:end]
        weight = law.omega[i]
        if i == 0:
            for c in range(count):
                centre[c] = -weight * buffer[c]
        else:
            for c in range(count):
                centre[c] -= weight * buffer[c]
    draw(keys, group_of(tables, push, row, start), law.sigmas[0], count, scratch)
    for i in range(len(law.omega)):
        buffer = tables.noise[i, row, start:end]
        theta, unit, limit = law.theta[i], law.unit, law.limit
        for c in range(count):
            value = np.rint(theta * buffer[c]) + noise[c] * unit
            buffer[c] = np.int64(min(max(value, -limit), limit))
    for c in range(count):
        shown[c] += pending[c] + noise[c]
        pending[c] = 0


@njit(cache=True)
def push_tree(
    tables: Tables, law: Law, keys: Array, place: tuple[int, int, int, int], scratch: Scratch
) -> None:
    """One row of a block: the change of the tree's total, with or without kept totals."""
    push, row, start, end = place
    count = end - start
    begin = epoch_start(push, law)
    k = push - begin + 1
    sigma = law.sigmas[epoch_of(begin) if len(law.sigmas) > 1 else 0]
    change, noise = scratch.change[:count], scratch.noise[:count]
    draw(keys, group_of(tables, push, row, start), sigma, count, scratch)
    for c in range(count):
        change[c] = noise[c]
    if law.counter == 1:
        keep_totals(tables.noise[:, row, start:end], change, k)
    else:
        merged = k - 1  # the nodes that this push absorbs: the lowest ones of k - 1
        for _ in range(trailing_zeros(k)):
            group = group_of(tables, merged + begin - 1, row, start)
            draw(keys, group, sigma, count, scratch)
            for c in range(count):
                change[c] -= noise[c]
            merged &= merged - 1
    pending = tables.pending[row, start:end]
    shown = tables.shown[row, start:end]
    for c in range(count):
        shown[c] += pending[c] + change[c]
        pending[c] = 0


@njit(cache=True)
def keep_totals(totals: Array, change: Array, k: int) -> None:
    """Z_k from the total at the last push with the same higher bits; change becomes Z_k - Z_(k-1).

    totals[l] is Z at the latest push whose lowest set bit is l.
    """
    rest = k & (k - 1)
    level = trailing_zeros(k)
    base = trailing_zeros(rest) if rest else -1
    before = trailing_zeros(k - 1) if k > 1 else -1
    for c in range(len(change)):
        total = change[c] + (totals[base, c] if base >= 0 else 0)
        change[c] = total - (totals[before, c] if before >= 0 else 0)
        totals[level, c] = total


@njit(cache=True)
def next_push(tables: Tables, law: Law) -> int:
    """The clock of the next scheduled push."""
    blocks = len(tables.pushes)
    number = tables.clock[1]
    return (number // blocks) * law.round + (number % blocks + 1) * law.round // blocks


@njit(cache=True)
def advance(tables: Tables, law: Law, keys: Array, time: int) -> None:
    """Moves the clock to `time` and pushes what falls due."""
    scratch = new_scratch()
    tables.clock[0] = time
    while next_push(tables, law) <= time:
        push_block(tables, law, keys, tables.clock[1] % len(tables.pushes), scratch)
        tables.clock[1] += 1


@njit(cache=True)
def push_all(tables: Tables, law: Law, keys: Array) -> None:
    """Pushes every column now."""
    scratch = new_scratch()
    for block in range(len(tables.pushes)):
        push_block(tables, law, keys, block, scratch)
    tables.clock[2] += 1


@njit(cache=True)
def count(tables: Tables, law: Law, words: Words, weights: Int32[Array, " keys"]) -> None:
    """Adds keys to the pending counts."""
    if len(weights):
        add_weighted(words, weights, law.code, law.factors, tables.pending)
    else:
        add_keys(words, law.code, law.factors, tables.pending)


@njit(cache=True)
def arrive(
    tables: Tables, law: Law, keys: Array, words: Words, weights: Int32[Array, " keys"]
) -> None:
    """Adds keys one tick of the clock each, pushing along the way."""
    scratch = new_scratch()
    at = 0
    while at < len(words):
        due = next_push(tables, law) - tables.clock[0]
        take = min(due, len(words) - at)
        if take:
            count(tables, law, words[at : at + take], weights[at : at + take])
            tables.clock[0] += take
            at += take
        if take == due:
            push_block(tables, law, keys, tables.clock[1] % len(tables.pushes), scratch)
            tables.clock[1] += 1
