"""Which releases of a replay are published together: many small ones in one commit and one file.

A job over live data publishes every release at its trigger. A replay of history has all of its
triggers behind it: nobody waits for one of them, so what each costs by itself (a sync of the log, a
file and its name) is paid once for some of them in a row.

Guarantee: where a group of releases ends is a function of the clock's public number of steps, the
    number of the step, and how many rows the releases of the group have, which are public once it
    is. So file names, the releases in a file and the order in which files appear tell nothing that
    the releases do not tell.
Proof: `Together.ends` takes nothing else. It is asked at the end of each step, which every replay
    has with or without rows. A restart asks it again about the same releases, or finds the answer
    in the log; the rest of a group that a crash cut in two is computed and published as it would
    have been. When a file appears depends on how long the steps took, as it does without groups:
    see docs/weaknesses.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from streamveil.batch import Batch, RowBlock
from streamveil.plan.plan import Clock

FEWEST = 64  # times that a replay publishes, at least: so it shows how far it has come
MOST_STEPS = 96
BLOCK_ROWS = 4_096  # of small micro-batches, whose rows are prepared together
MOST_ROWS = 50_000  # released rows, of several groups of keys: more are a file of their own size


@dataclass(frozen=True)
class Together:
    """Steps of a replay that are published together."""

    steps: int
    last: int  # step of the replay

    def ends(self, step: int, rows: int) -> bool:
        """Whether a group ends with a step, its releases having so many rows."""
        return step % self.steps == 0 or step >= self.last or rows >= MOST_ROWS


def together(clock: Clock, bounded: bool, triggers: int | None) -> Together | None:  # noqa: FBT001
    """How releases are grouped under a clock; None: each is published by itself.

    `triggers` of a window: groups end where windows do, if several fit into one.

    >>> year = Clock(kind="event", every=3_600_000_000, start_us=0, end_us=8760 * 3_600_000_000)
    >>> together(year, True, 24), together(year, True, 8760)
    (Together(steps=96, last=8760), Together(steps=96, last=8760))
    >>> together(Clock(kind="wall", every=3_600_000_000, start_us=0), True, 24)
    """
    if clock.kind != "event" or not bounded or clock.start_us is None or clock.end_us is None:
        return None
    last = clock.steps_until(clock.end_us)
    steps = min(MOST_STEPS, last // FEWEST)
    if triggers and triggers <= steps:
        steps -= steps % triggers
    return Together(steps, last) if steps > 1 else None


def in_blocks(batches: Iterator[Batch]) -> Iterator[list[Batch]]:
    """The same micro-batches, small ones some at a time, with the block of all their rows."""
    held, rows = list[Batch](), 0
    try:
        for batch in batches:
            held.append(batch)
            rows += batch.rows.num_rows
            if rows >= BLOCK_ROWS or len(held) >= MOST_STEPS:
                large = [held.pop()] if batch.rows.num_rows >= BLOCK_ROWS else []
                del batch  # its memory is free before the next but one is made
                yield from filter(None, (blocked(held), large))
                held, rows = [], 0
    except Exception:  # what was read before it goes on first
        yield held
        raise
    yield blocked(held)


def blocked(batches: list[Batch]) -> list[Batch]:
    """Micro-batches with the block of all their rows."""
    if len(batches) < 2:
        return batches
    block = RowBlock(pa.concat_tables([batch.rows for batch in batches]).combine_chunks())
    found, start = list[Batch](), 0
    for batch in batches:
        size = batch.rows.num_rows
        rows = block.rows.slice(start, size)
        found.append(replace(batch, rows=rows, block=block, start=start))
        start += size
    return found
