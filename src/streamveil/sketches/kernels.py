"""The compiled loops of the private sketches: count, and push along the arrival clock."""

from __future__ import annotations

import numpy as np

from streamveil.compiled import njit
from streamveil.core.counters.cell_kernels import (
    Law,
    Tables,
    flatten,
    next_push,
    push_block,
    push_one_buffer,
)
from streamveil.core.noise.bulk.gaussian import new_scratch
from streamveil.sketches.keys import Words
from streamveil.sketches.linear import CHUNK, add_chunks, add_keys, add_weighted
from streamveil.types import Array, Int32


@njit(cache=True)
def count(tables: Tables, law: Law, words: Words, weights: Int32[Array, " keys"]) -> None:
    """Adds keys to the pending counts."""
    if len(weights):
        add_weighted(words, weights, law.code, law.factors, tables.pending)
    else:
        add_keys(words, law.code, law.factors, tables.pending)


@njit(cache=True, error_model="numpy")
def arrive_fast(tables: Tables, law: Law, keys: Array, words: Words) -> None:
    """`arrive` for the usual case."""
    flat, scratch = flatten(tables), new_scratch()
    pending, clock, pushes, pushed_at = (
        tables.pending,
        tables.clock,
        tables.pushes,
        tables.pushed_at,
    )
    depth, width = pending.shape
    places = np.empty((depth, CHUNK), np.uint32)
    at, blocks = 0, len(pushes)
    due = next_push(tables, law)
    while at < len(words):
        take = min(due - clock[0], len(words) - at)
        add_chunks(words[at : at + take], law.code, law.factors, pending, places)
        clock[0] += take
        at += take
        while due == clock[0]:
            block = clock[1] % blocks
            pushes[block] += 1
            pushed_at[block] = clock[0]
            first, last = block * law.block, min(width, (block + 1) * law.block)
            runs, length = (1, depth * width) if law.block == width else (depth, last - first)
            for row in range(runs):
                begin = row * width + first
                push_one_buffer(flat, law, keys, (pushes[block], begin, begin + length), scratch)
            clock[1] += 1
            due = next_push(tables, law)


@njit(cache=True)
def arrive(
    tables: Tables, law: Law, keys: Array, words: Words, weights: Int32[Array, " keys"]
) -> None:
    """Adds keys one tick of the clock each, pushing along the way."""
    if law.decay and len(keys) and not len(weights):
        arrive_fast(tables, law, keys, words)
        return
    flat, scratch = flatten(tables), new_scratch()
    pending, clock, blocks = tables.pending, tables.clock, len(tables.pushes)
    places = np.empty((len(pending), CHUNK), np.uint32)
    code, factors = law.code, law.factors
    at = 0
    due = next_push(tables, law)
    while at < len(words):
        take = min(due - clock[0], len(words) - at)
        if len(weights):
            add_weighted(words[at : at + take], weights[at : at + take], code, factors, pending)
        else:
            add_chunks(words[at : at + take], code, factors, pending, places)
        clock[0] += take
        at += take
        while due == clock[0]:
            push_block(tables, flat, law, keys, scratch, clock[1] % blocks)
            clock[1] += 1
            due = next_push(tables, law)
