"""What the rows of a micro-batch say by themselves, in a thread that is ahead of the state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

import numpy as np

from streamveil.batch import Batch
from streamveil.core.noise.keyed import Noise
from streamveil.dataflow.grouping import Grouping
from streamveil.dataflow.rows import Prepared, prepare_batch
from streamveil.dataflow.state import BatchScratch
from streamveil.types import Array

LARGE = 1 << 14  # rows from which on a thread of its own is worth its while


def row_stage(operator: Grouping, batch: Batch, noise: Noise, scratch: BatchScratch) -> Prepared:
    """A function of the rows and of public settings: it depends on no state."""
    program, most = operator.program(batch.rows.schema), batch.rows.num_rows
    room, unit_key = scratch.take("unit", most, np.uint64), noise.derive("group-by/units")
    prepared = prepare_batch(program, batch, unit_key, names_key(noise), room)
    if batch.prepared is None:
        prepared.room = scratch.take("names", 2 * most, np.uint64)
    return prepared


def names_key(noise: Noise) -> bytes:
    """The key under which groups are named."""
    return noise.derive("group-by/keys")


def asked_keys(operator: Grouping, prepared: Prepared) -> Array:
    """What tells the key of every row: the integer that it is, or else its name (two words)."""
    needs_names = operator.public is not None or operator.aggregation.restarts
    if needs_names or prepared.plain is None:
        return prepared.names
    return prepared.plain


def ahead(operator: Grouping, batches: Iterator[Batch], noise: Noise) -> Iterator[Batch]:
    """The same micro-batches, large ones with their row stage done.

    Whoever takes one does not use the one before it any more: each lies in the memory of the next
    but one, as in `runtime.prefetch`.
    """
    rooms = cycle((BatchScratch(), BatchScratch()))
    for batch in batches:
        made = batch
        if batch.block is None and batch.reject_notes is None and batch.rows.num_rows >= LARGE:
            prepared = row_stage(operator, batch, noise, next(rooms))
            asked_keys(operator, prepared)  # kept with it
            made = replace(batch, prepared=prepared)
            del prepared
        del batch  # or it would be here while the next one is made
        yield made
        del made
