"""The private sketch in plain NumPy, slow and obvious: the oracle of the compiled loops."""

import numpy as np

from streamveil.core.counters.cells import CellCounter
from streamveil.core.noise.bulk.gaussian import PIECE
from streamveil.core.noise.bulk.keystream import GROUP, LOW_DOMAIN, key_schedule, one_block


def push_time(schedule, number):
    """The clock at which block `number` (counted over all rounds from 0) is pushed.

    >>> from streamveil.sketches.schedule import Schedule
    >>> plan = Schedule(width=10, clock="arrivals", round=8, block=4, horizon=16)
    >>> [push_time(plan, number) for number in range(6)]
    [3, 6, 8, 11, 14, 16]
    """
    rounds, block = divmod(number, schedule.blocks)
    return rounds * schedule.round - (-(block + 1) * schedule.round // schedule.blocks)


def push_times(schedule, time):
    """(clock, block) of every scheduled push up to a time."""
    number, out = 0, []
    while push_time(schedule, number) <= time:
        out.append((push_time(schedule, number), number % schedule.blocks))
        number += 1
    return out


def columns_of(schedule, block):
    return range(block * schedule.block, min(schedule.width, (block + 1) * schedule.block))


def increments(config, keys, times):
    """c: for every cell its increments by push, from keys with their (1-based) clock times."""
    layout, schedule = config.layout, config.schedule
    pushes = push_times(schedule, config.horizon)
    count = np.zeros((layout.depth, layout.width, config.cell.pushes), np.int64)
    places = layout.places(np.asarray(keys, np.uint32))
    for q, time in enumerate(times):
        for row in range(layout.depth):
            place = int(places[row, q])
            column, sign = (place >> 1, 1 - 2 * (place & 1)) if layout.signed else (place, 1)
            block = column // schedule.block
            later = [t for t, b in pushes if b == block]
            number = sum(t < time for t in later)  # pushed at t: items up to t are in
            if number < len(later):
                count[row, column, number] += sign
    return count


def standard(draws, group, cells):
    """The Gaussians of one piece in double precision, from the words of the source."""
    pairs = -(-cells // 2)
    groups = -(-pairs // GROUP)
    words = draws.words((group + groups) * GROUP)[group * GROUP :].view(np.uint32)
    half = groups * GROUP
    schedule = key_schedule(draws)
    low = np.empty(pairs + 1, np.uint64)
    for q in range(0, pairs, 2):
        two = np.zeros(2, np.uint64)
        one_block(schedule, LOW_DOMAIN, np.uint64(group * (GROUP // 2) + q // 2), two)
        low[q : q + 2] = two[: len(low[q : q + 2])]
    low = low[:pairs]
    u = (words[:pairs].astype(np.uint64) << np.uint64(32)) | (low >> np.uint64(32))
    v = (words[half : half + pairs].astype(np.uint64) << np.uint64(32)) | (
        low & np.uint64(2**32 - 1)
    )
    r = np.sqrt(-2 * np.log((u.astype(np.float64) + 0.5) / 2.0**64))
    x = (v << np.uint64(2)).astype(np.int64) * (np.pi / 4 / 2.0**63)
    c, s = np.cos(x), np.sin(x)
    c = np.where(v >> np.uint64(63), -c, c)
    turned = (v >> np.uint64(62)) & np.uint64(1) == 1
    return np.concatenate([r * np.where(turned, s, c), r * np.where(turned, c, s)])[:cells]


class Twin:
    """One table, arrival or tick clock, any counter."""

    def __init__(self, config, noise, name="sketch"):
        self.config = config
        table = config.table
        self.shape = (table.layout.depth, table.layout.width)
        self.pending = np.zeros(self.shape, np.int64)
        self.shown = np.zeros(self.shape, np.int64)
        self.buffers = np.zeros((max(table.counter.words, 1), *self.shape), np.int64)
        self.nodes = {}  # (push, cell) -> rounded noise
        self.pushes = np.zeros(table.schedule.blocks, int)
        self.time, self.number = 0, 0
        self.draws = noise.at("sketch", name.encode())

    def add(self, keys):
        layout = self.config.layout
        for place in layout.places(np.asarray(keys, np.uint32)).T:
            for row in range(layout.depth):
                p = int(place[row])
                column, sign = (p >> 1, 1 - 2 * (p & 1)) if layout.signed else (p, 1)
                self.pending[row, column] += sign

    def arrive(self, keys):
        for key in keys:
            self.add([key])
            self.advance(self.time + 1)

    def advance(self, time):
        schedule = self.config.schedule
        self.time = time
        while push_time(schedule, self.number) <= time:
            self.push(self.number % schedule.blocks)
            self.number += 1

    def push(self, block):
        schedule, (depth, width) = self.config.schedule, self.shape
        self.pushes[block] += 1
        columns = columns_of(schedule, block)
        runs = (
            [(0, depth * width)]
            if schedule.block == width
            else [(row * width + columns[0], len(columns)) for row in range(depth)]
        )
        for begin, length in runs:
            for start in range(begin, begin + length, PIECE):
                self.push_cells(start, min(begin + length, start + PIECE), self.pushes[block])

    def push_cells(self, start, end, push):
        table = self.config.table
        noise = standard(self.draws, push * table.layout.cells + start, end - start)
        if not self.draws.silent:
            assert np.abs(noise).max() < 10
        cells = slice(start, end)
        pending, shown = self.pending.reshape(-1)[cells], self.shown.reshape(-1)[cells]
        counter: CellCounter = table.counter
        if counter.is_tree:
            change = self.tree_change(start, end, push, noise)
        else:
            buffers = self.buffers.reshape(len(self.buffers), -1)[:, cells]
            omega, theta = counter.coefficients
            unit = 2.0**table.bits
            centre = -(omega[:, None] / unit * buffers).sum(axis=0)
            change = np.rint(table.sigma * noise + centre).astype(np.int64)
            for i, t in enumerate(theta):
                kept = buffers[i] - np.floor((1 - t) * buffers[i]).astype(np.int64)
                buffers[i] = kept + change * 2**table.bits
        shown += pending + change
        pending[:] = 0

    def tree_change(self, start, end, push, noise):
        table = self.config.table
        begin = 1
        if table.counter.pushes is None:
            while 2 * begin <= push:
                begin *= 2
        epoch = begin.bit_length() - 1 if table.counter.pushes is None else 0
        sigma = table.sigma * table.counter.epoch_factors[epoch]
        self.nodes[push, start] = np.rint(sigma * noise).astype(np.int64)

        def total(k):  # local push number
            out = np.zeros(end - start, np.int64)
            while k:
                out += self.nodes[begin + k - 1, start]
                k &= k - 1
            return out

        k = push - begin + 1
        return total(k) - total(k - 1)
