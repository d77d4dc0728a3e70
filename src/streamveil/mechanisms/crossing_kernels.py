# ruff: noqa: PLR0913  (kernels take flat arrays)
"""Numba kernels of `crossing`: coins, bridges and the touch of one key.

A block is a dyadic interval (l, r), r - l = 2^j, with known noise at both ends. Noise x crosses at
t, at count s, when x + s > the threshold at t. The `mark` of a block is the largest count for which
its interior is known not to cross (-inf: nothing is known).

`world` holds the public tables in one array of 12 sizes (passing several costs more than using
them): from 0 the thresholds at t = 0..size; from 2 size, at node 2^(h-j) + k, the smallest one
inside block k of 2^j steps; from 4 size, at 2^j + i, the deviation of a bridge over 2^j steps after
i; from 6 size and from 7 size, at j, its deviation in the middle and its largest; from 8 size and
10 size, at a node, the smallest threshold in deviations when 0, or half of it, is subtracted.

The kernels allocate nothing, so `_nrt` switches off the counting of references to arrays, which
would take most of the time of a coin.

Words are spelled from left to right out of one row; a kernel that runs out of them sets its cursor
beyond the row, and its result must be thrown away and computed again from a longer row.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from scipy.special import erfc

from streamveil.privacy.samplers.quantiles import leading_zeros, quantile_word

kernel = njit(cache=True, _nrt=False)  # type: ignore[call-overload]  # see above

NO, YES, SPLIT = 0, 1, 2
SHORT = 8  # blocks up to this length are simulated when the bound is of no use
LIMIT = 1.0  # the largest union bound a coin can have
GRID = 16.0  # entries of TAILS per deviation
TAILS = erfc(np.arange(32 * int(GRID) + 1) / GRID / 2**0.5) / 2 * (1 + 1e-9)
SIGN_SHIFT = np.uint64(63)
MASK = np.uint64(2**63 - 1)


@kernel
def next_word(words, cursor):  # type: ignore[no-untyped-def]
    """The next word; beyond the end, a fixed one and a cursor that says so."""
    at = cursor[0]
    cursor[0] = at + 1
    return words[at] if at < len(words) else np.uint64(2**62 + 2**40)


@kernel
def ran_out(words, cursor):  # type: ignore[no-untyped-def]
    """Whether the result so far is void."""
    return cursor[0] > len(words)


@kernel
def uniform(words, cursor):  # type: ignore[no-untyped-def]
    """A uniform number in (0, 1], fine near 0."""
    return (np.float64(next_word(words, cursor)) + 0.5) * 2.0**-64


@kernel
def normal(words, cursor, table):  # type: ignore[no-untyped-def]
    """A standard Gaussian."""
    word = next_word(words, cursor)
    x, _, tabulated = quantile_word(word, table)
    if not tabulated:
        x = upper_quantile((np.float64(word & MASK) + 0.5) * 2.0**-64)
    return x if word >> SIGN_SHIFT == 0 else -x


@kernel
def upper_tail(x):  # type: ignore[no-untyped-def]
    """P(G > x)."""
    return 0.5 * math.erfc(x * 0.7071067811865476)


@kernel
def tail_bound(x):  # type: ignore[no-untyped-def]
    """A number that is at least P(G > x), at half the price."""
    return TAILS[np.int64(max(0.0, min(32.0, x)) * GRID)] if x >= 0.0 else 1.0


@kernel
def upper_quantile(p):  # type: ignore[no-untyped-def]
    """The x with P(G > x) = p, by Newton's method on the logarithm of the tail."""
    mirrored = p > 0.5
    if mirrored:
        p = 1.0 - p
    x = math.sqrt(max(0.0, -2.0 * math.log(2.0 * p)))
    for _ in range(60):
        tail = upper_tail(x)
        slope = 0.3989422804014327 * math.exp(-0.5 * x * x) / tail
        step = math.log(tail / p) / slope
        x += step
        if abs(step) < 1e-14 * (1.0 + x):
            break
    return -x if mirrored else x


@kernel
def level_of(length):  # type: ignore[no-untyped-def]
    """log2 of a power of two."""
    zeros = leading_zeros(np.uint64(length))  # type: ignore  # a numba intrinsic
    return np.int64(63) - np.int64(zeros)


@kernel
def crosses(path, length, world, left, count):  # type: ignore[no-untyped-def]
    """How many interior points of a path cross, and the first of them (0 if none)."""
    total, first = 0, 0
    for i in range(1, length):
        if path[i] + count > world[left + i]:
            total += 1
            if first == 0:
                first = left + i
    return total, first


@kernel
def build_path(path, length, fixed, value, world, table, words, cursor):  # type: ignore[no-untyped-def]
    """Fills the interior of a path between its ends; `fixed` > 0 makes path[fixed] = value.

    The node variables g are independent; those above `fixed` are conditioned on their weighted sum
    by the Gaussian correction, then the midpoints are built from the top down.
    """
    spread = 6 * (len(world) // 12)
    for i in range(1, length):
        path[i] = normal(words, cursor, table)
    if fixed > 0:
        mean = path[0] + (path[length] - path[0]) * (fixed / length)
        shift, variance = value - mean, 0.0
        for turn in range(2):
            start, size, level = 0, length, level_of(length)
            while size > 1:
                inside = fixed - start
                weight = 2.0 * min(inside, size - inside) / size * world[spread + level]
                if turn == 0:
                    shift -= weight * path[start + size // 2]
                    variance += weight * weight
                else:
                    path[start + size // 2] += weight * shift / variance
                size //= 2
                level -= 1
                if inside == size:
                    break
                if inside > size:
                    start += size
    size, level = length, level_of(length)
    while size > 1:
        for start in range(0, length, size):
            middle = start + size // 2
            path[middle] = (
                0.5 * (path[start] + path[start + size]) + world[spread + level] * path[middle]
            )
        size //= 2
        level -= 1


@kernel
def nearest(world, node, level, at):  # type: ignore[no-untyped-def]
    """At most the smallest (threshold - at) / deviation inside a block, or negative if that is.

    As a function of `at` that is concave, so between tabulated points it is above the chord; below
    the first, every line falls at least as fast as 1 / (the largest deviation).
    """
    size = len(world) // 12
    lowest, widest = world[2 * size + node], world[7 * size + level]
    if not 0.0 < lowest < np.inf:
        return (lowest - at) / widest
    half, first, second = 0.5 * lowest, world[8 * size + node], world[10 * size + node]
    if at >= half:
        return second * (lowest - at) / half
    return second + (first - second) * (half - at) / half if at >= 0.0 else first - at / widest


@kernel
def coin(block, count, mark, world, table, words, cursor, path):  # type: ignore[no-untyped-def]
    """NO, YES or SPLIT: does the interior of a block cross at `count`, given its mark?

    NO: it does not. YES: it does, and `path` (its first r - l + 1 entries) is a draw of the whole
    block given that. SPLIT: undecided, nothing was revealed. Exactness: see `crossing`.

    Short, so that it is compiled into its callers; `contest` is the rare rest.
    """
    left, right, low, high = block
    length, size = right - left, len(world) // 12
    if length == 1:
        return NO
    level = level_of(length)
    each = tail_bound(nearest(world, (size + left) >> level, level, count + max(low, high)))
    draw = 0.0
    if each * (length - 1) <= LIMIT:
        draw = uniform(words, cursor)
        if draw >= each * (length - 1):
            return NO
    elif length > SHORT:
        return SPLIT
    bounds = (draw, each)
    return contest(block, bounds, (count, mark), world, table, words, cursor, path)


@kernel
def contest(block, bounds, levels, world, table, words, cursor, path):  # type: ignore[no-untyped-def]
    """The rest of `coin`: a candidate, or a simulated path, as often as the mark asks for."""
    left, right, low, high = block
    draw, each = bounds
    count, mark = levels
    length, size = right - left, len(world) // 12
    bound = each * (length - 1)
    while not ran_out(words, cursor):
        inside, x = np.int64(0), 0.0
        if bound <= LIMIT:
            inside = 1 + min(length - 2, np.int64(draw / bound * (length - 1)))
            mean = low + (high - low) * (inside / length)
            deviation = world[4 * size + length + inside]
            tail = upper_tail((world[left + inside] - count - mean) / deviation)
            if uniform(words, cursor) * each >= tail:
                return NO
            x = mean + deviation * upper_quantile(tail * uniform(words, cursor))
        path[0], path[length] = low, high
        build_path(path, length, inside, x, world, table, words, cursor)
        total, _ = crosses(path, length, world, left, count)
        if total == 0 or (inside > 0 and uniform(words, cursor) * total >= 1.0):
            return NO
        if mark == -np.inf or crosses(path, length, world, left, mark)[0] == 0:
            return YES
        if bound <= LIMIT:
            draw = uniform(words, cursor)
            if draw >= bound:
                return NO
    return NO


@kernel
def middle_of(block, world, table, words, cursor):  # type: ignore[no-untyped-def]
    """(time, noise) in the middle of a block of which nothing is known."""
    left, right, low, high = block
    spread = world[6 * (len(world) // 12) + level_of(right - left)]
    return (left + right) // 2, 0.5 * (low + high) + spread * normal(words, cursor, table)


@kernel
def clear(block, count, world, table, words, cursor, path, times, values):  # type: ignore[no-untyped-def]
    """Whether the interior of a fresh bridge does not cross at `count`; nothing else is kept."""
    answer = coin(block, count, -np.inf, world, table, words, cursor, path)
    if answer != SPLIT:
        return answer == NO
    times[1], times[0], values[1], values[0] = block
    top = 2  # the points still to visit, from right to left: the last two are the next piece
    while top > 1 and not ran_out(words, cursor):
        piece = (times[top - 1], times[top - 2], values[top - 1], values[top - 2])
        answer = coin(piece, count, -np.inf, world, table, words, cursor, path)
        if answer == YES:
            return False
        if answer == NO:
            top -= 1
            continue
        middle, x = middle_of(piece, world, table, words, cursor)
        if x + count > world[middle]:
            return False
        times[top], values[top] = times[top - 1], values[top - 1]
        times[top - 1], values[top - 1] = middle, x
        top += 1
    return True


@kernel
def midpoint(block, mark, world, table, words, cursor, path, times, values):  # type: ignore[no-untyped-def]
    """(time, noise) in the middle of a block, given that the interior does not cross at `mark`."""
    left, right, low, high = block
    while True:
        middle, x = middle_of(block, world, table, words, cursor)
        if mark == -np.inf or ran_out(words, cursor):
            return middle, x
        if x + mark > world[middle]:
            continue
        if not clear(
            (left, middle, low, x), mark, world, table, words, cursor, path, times, values
        ):
            continue
        if clear((middle, right, x, high), mark, world, table, words, cursor, path, times, values):
            return middle, x


@kernel
def copy_row(to, i, source, j):  # type: ignore[no-untyped-def]
    """Row i of `to` becomes row j of `source`."""
    for column in range(3):
        to[i, column] = source[j, column]


@kernel
def reach(blocks, size, t, world, table, words, cursor, path, times, values, todo):  # type: ignore[no-untyped-def]
    """(noise at t, blocks to do): descends to t; `todo` gets the blocks after t, nearest last.

    `blocks` are rows (end, value, mark) from left to right, the first of them starting at the
    previous touch, which is passed as row 0.
    """
    at = 1
    while blocks[at, 0] < t:
        at += 1
    n = 0
    for i in range(size - 1, at, -1):
        copy_row(todo, n, blocks, i)
        n += 1
    left, low = np.int64(blocks[at - 1, 0]), blocks[at - 1, 1]
    right, high, mark = np.int64(blocks[at, 0]), blocks[at, 1], blocks[at, 2]
    while right > t and not ran_out(words, cursor):
        block = (left, right, low, high)
        middle, x = midpoint(block, mark, world, table, words, cursor, path, times, values)
        if middle < t:
            left, low = middle, x
        else:
            todo[n, 0], todo[n, 1], todo[n, 2] = right, high, mark
            n += 1
            right, high = middle, x
    return high, n


@kernel
def keep(out, n, end, value, count):  # type: ignore[no-untyped-def]
    """Appends a block that does not cross at `count` and merges what became whole; row 0 starts."""
    out[n, 0], out[n, 1], out[n, 2] = end, value, count
    while n >= 2 and out[n - 1, 2] == count:
        length = out[n, 0] - out[n - 1, 0]
        if out[n - 1, 0] - out[n - 2, 0] != length or out[n - 2, 0] % (2 * length) != 0:
            break
        copy_row(out, n - 1, out, n)
        n -= 1
    return n + 1


@kernel
def unfold(path, block, first, count, out, n):  # type: ignore[no-untyped-def]
    """Keeps of a path the dyadic points up to its first crossing; returns the new size of out."""
    left, right, _, _ = block
    start, size = left, right - left
    while size > 1:
        size //= 2
        if first > start + size:
            start += size
            n = keep(out, n, start, path[start - left], count)
        elif first == start + size:
            break
    return keep(out, n, first, path[first - left], count)


@kernel
def touch(blocks, size, t, count, world, table, words, cursor, path, times, values, out, todo):  # type: ignore[no-untyped-def]
    """(rows of out, wake): one touch of one key; see `Crossing.touch`.

    What is after the wake is forgotten: counts only grow, so the key never gets there untold.
    """
    x, m = reach(blocks, size, t, world, table, words, cursor, path, times, values, todo)
    out[0, 0], out[0, 1], out[0, 2] = t, x, count
    n, wake = 1, np.int64(0)
    if x + count > world[t]:
        wake = t
    while m > 0 and wake == 0 and not ran_out(words, cursor):
        m -= 1
        left, low = np.int64(out[n - 1, 0]), out[n - 1, 1]
        right, high, mark = np.int64(todo[m, 0]), todo[m, 1], todo[m, 2]
        block = (left, right, low, high)
        answer = coin(block, count, mark, world, table, words, cursor, path)
        if answer == SPLIT:
            middle, x = midpoint(block, mark, world, table, words, cursor, path, times, values)
            todo[m + 1, 0], todo[m + 1, 1], todo[m + 1, 2] = middle, x, mark
            m += 2
        elif answer == YES:
            _, wake = crosses(path, right - left, world, left, count)
            n = unfold(path, block, wake, count, out, n)
        else:
            n = keep(out, n, right, high, count)
            if high + count > world[right]:
                wake = right
    return n, wake
