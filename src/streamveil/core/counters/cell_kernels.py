"""The cells of a sketch: pending counts become public with the change of the cells' noise.

The k-th push of column j adds to the shown count the pending one and the change of the noise:
shown += pending + (Z_k - Z_(k-1)). Exact parts telescope, so no exact total is ever kept. `cells`
says what the noise is and what one item moves.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamveil.compiled import njit
from streamveil.core.noise.bulk.gaussian import (
    PIECE,
    Scratch,
    new_scratch,
    round_about,
    rounded_piece,
    settle,
    standard_pairs,
)
from streamveil.core.noise.bulk.keystream import GROUP, fill
from streamveil.core.noise.bulk.lanes import shift_left, upper_product
from streamveil.core.noisy import Noisy, drawn
from streamveil.types import Array, Int64

LARGEST_SMALL = np.int32(2**30)  # 32-bit buffers are clamped to this


class Tables(NamedTuple):
    """The state as arrays. Pending and noise are secret, the rest is public."""

    pending: Array  # depth, width: exact counts since the last push
    noise: Array  # words, depth, width: buffers or tree totals
    shown: Array  # depth, width
    pushes: Array  # blocks: pushes so far
    pushed_at: Array  # blocks: clock of the last push
    clock: Array  # [time, scheduled pushes so far, flushes so far]


class Flat(NamedTuple):
    """The same cells as one line (and one line per word of noise)."""

    pending: Array
    noise: Array
    shown: Array


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
    bits: int  # binary places of a buffer
    decay: int  # (1 - theta) 2^32 if the only buffer has 32 bits; else 0
    unit: float  # buffer units in one count
    limit: float  # buffers are clamped to this


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
def flatten(tables: Tables) -> Flat:
    """Cells numbered along the rows."""
    cells = tables.shown.size
    return Flat(
        tables.pending.reshape(cells),
        tables.noise.reshape((len(tables.noise), cells)),
        tables.shown.reshape(cells),
    )


@njit(cache=True)
def push_block(
    tables: Tables,
    flat: Flat,
    law: Law,
    keys: Array,
    scratch: Scratch,
    block: int,
) -> None:
    """Pushes one block of columns; a block that is the whole table is one run of cells."""
    depth, width = tables.shown.shape
    push = tables.pushes[block] + 1
    first, last = block * law.block, min(width, (block + 1) * law.block)
    runs, length = (1, depth * width) if law.block == width else (depth, last - first)
    for row in range(runs):
        begin = row * width + first
        if law.decay and len(keys):
            push_one_buffer(flat, law, keys, (push, begin, begin + length), scratch)
        else:
            push_run(flat, law, keys, (push, begin, begin + length), scratch)
    tables.pushes[block] = push
    tables.pushed_at[block] = tables.clock[0]


@njit(cache=True, error_model="numpy")
def push_run(
    flat: Flat, law: Law, keys: Array, run: tuple[int, int, int], scratch: Scratch
) -> None:
    """Pushes a run of cells.

    Proof (no word serves twice): (push, cell) is written in mixed radix, so no two cells share a
        number, and a piece of n cells uses at most n groups of words from its first cell's on.
    """
    push, begin, stop = run
    for start in range(begin, stop, PIECE):
        end = min(stop, start + PIECE)
        shown, pending = flat.shown[start:end], flat.pending[start:end]
        if law.counter == 0:
            piece = (push * len(flat.shown) + start, start, end)
            rounded_piece(keys, piece, (law.sigmas[0], law.omega), flat.noise, scratch)
            for i in range(len(law.omega)):
                buffer = flat.noise[i, start:end]
                next_buffer(buffer, scratch.noise, law.theta[i], law.unit, law.limit)
            show(shown, pending, scratch.noise)
        else:
            change_of_tree(law, keys, (push, start, end), flat.noise, scratch)
            show(shown, pending, scratch.change)


@njit(inline="always")
def push_one_buffer(
    flat: Flat, law: Law, keys: Array, run: tuple[int, int, int], scratch: Scratch
) -> None:
    """`push_run` for one buffer, the usual case, with as little work as possible between loops."""
    push, begin, stop = run
    sigma, omega, omegas = law.sigmas[0], law.omega[0], law.omega
    words, normal, noise = scratch.words, scratch.normal, scratch.noise
    buffers, shown, pending = flat.noise, flat.shown, flat.pending
    cells, bits, decay = len(shown), np.int32(law.bits), np.int32(law.decay)
    for start in range(begin, stop, PIECE):
        end = min(stop, start + PIECE)
        group = push * cells + start
        pairs = (end - start + 1) // 2
        groups = (pairs + GROUP - 1) // GROUP
        buffer = buffers[0, start:end]
        fill(keys, group * (GROUP // 2), words, groups)
        standard_pairs(words, groups * GROUP, pairs, normal)
        if round_about(sigma, omega, normal, buffer, noise):
            settle(keys, (group, start, end), (sigma, omegas), buffers, scratch)
        finish(shown[start:end], pending[start:end], buffer, noise, decay, bits)


@njit(cache=True)
def finish(
    shown: Array, pending: Array, buffer: Array, noise: Array, decay: np.int32, bits: np.int32
) -> None:
    """`next_buffer` and `show` in 32-bit integers.

    Proof (no overflow): `SketchTable.law` gives a decay only where theta times the largest buffer
        plus the largest noise stays below 2^31.
    """
    for c in range(len(shown)):
        value, z = buffer[c], noise[c]
        lost = upper_product(value, decay)  # type: ignore[call-arg,var-annotated]  # intrinsic
        value = np.int32(value - lost + shift_left(z, bits))
        value = LARGEST_SMALL if value > LARGEST_SMALL else value
        buffer[c] = -LARGEST_SMALL if value < -LARGEST_SMALL else value
        shown[c] += pending[c] + z
        pending[c] = 0


@njit(cache=True, error_model="numpy")
def next_buffer(buffer: Array, noise: Array, theta: float, unit: float, limit: float) -> None:
    """Buffer = theta * buffer, rounded up, + noise, in units, clamped."""
    decay = 1.0 - theta
    for c in range(len(buffer)):
        old = np.float64(buffer[c])
        value = old - np.floor(decay * old) + np.float64(noise[c]) * unit
        value = -limit if value < -limit else value
        buffer[c] = limit if value > limit else value


@njit(cache=True)
def show(shown: Array, pending: Array, change: Array) -> None:
    """Publishes the pending counts, with the change of the noise."""
    for c in range(len(shown)):
        shown[c] += pending[c] + change[c]
        pending[c] = 0


@njit(cache=True)
def change_of_tree(
    law: Law,
    keys: Array,
    place: tuple[int, int, int],
    state: Array,
    scratch: Scratch,
) -> None:
    """scratch.change = Z_k - Z_(k-1) of a tree, with or without kept totals."""
    push, start, end = place
    cells = state.shape[1]
    begin = epoch_start(push, law)
    k = push - begin + 1
    gaussian = (law.sigmas[epoch_of(begin) if len(law.sigmas) > 1 else 0], law.omega)
    count = end - start
    change, noise = scratch.change, scratch.noise
    rounded_piece(keys, (push * cells + start, start, end), gaussian, state, scratch)
    for c in range(count):
        change[c] = noise[c]
    if law.counter == 1:
        keep_totals(state, start, end, change, k)
        return
    merged = k - 1  # the nodes that this push absorbs: the lowest ones of k - 1
    for _ in range(trailing_zeros(k)):
        group = (merged + begin - 1) * cells + start
        rounded_piece(keys, (group, start, end), gaussian, state, scratch)
        for c in range(count):
            change[c] -= noise[c]
        merged &= merged - 1


@njit(cache=True)
def keep_totals(totals: Array, start: int, end: int, change: Array, k: int) -> None:
    """Z_k from the total at the last push with the same higher bits; change becomes Z_k - Z_(k-1).

    totals[l] is Z at the latest push whose lowest set bit is l.
    """
    rest = k & (k - 1)
    level = trailing_zeros(k)
    base = trailing_zeros(rest) if rest else -1
    before = trailing_zeros(k - 1) if k > 1 else -1
    if base >= 0:
        add_line(change, totals[base, start:end], 1)
    for c in range(end - start):
        totals[level, start + c] = change[c]
    if before >= 0:  # not the level written: one of k and k - 1 is odd
        add_line(change, totals[before, start:end], -1)


@njit(cache=True)
def add_line(change: Array, line: Array, sign: int) -> None:
    """Change += sign * line."""
    for c in range(len(line)):
        change[c] += sign * np.int64(line[c])


@njit(cache=True)
def next_push(tables: Tables, law: Law) -> int:
    """The clock of the next scheduled push."""
    blocks = len(tables.pushes)
    number = tables.clock[1]
    within = ((number % blocks + 1) * law.round + blocks - 1) // blocks
    return int((number // blocks) * law.round + within)


@njit(cache=True)
def advance(tables: Tables, law: Law, keys: Array, time: int) -> None:
    """Moves the clock to `time` and does the pushes that fall due."""
    flat, scratch = flatten(tables), new_scratch()
    tables.clock[0] = time
    while next_push(tables, law) <= time:
        push_block(tables, flat, law, keys, scratch, tables.clock[1] % len(tables.pushes))
        tables.clock[1] += 1


@njit(cache=True)
def push_all(tables: Tables, law: Law, keys: Array) -> None:
    """Pushes every column now."""
    flat, scratch = flatten(tables), new_scratch()
    for block in range(len(tables.pushes)):
        push_block(tables, flat, law, keys, scratch, block)
    tables.clock[2] += 1


class ReleasedCells(NamedTuple):
    """The cells that pushes have made public."""

    shown: Int64[Array, "depth width"]
    pushes: Int64[Array, " blocks"]  # of each block of columns so far
    pushed_at: Int64[Array, " blocks"]  # clock of the last of them; 0: never
    time: int  # of the public clock


def released(tables: Tables) -> Noisy[ReleasedCells]:
    """A copy of what may be released: the counts shown, in which every push left its noise."""
    shown, pushes, at = tables.shown.astype(np.int64), tables.pushes.copy(), tables.pushed_at.copy()
    return drawn(ReleasedCells(shown, pushes, at, int(tables.clock[0])))
