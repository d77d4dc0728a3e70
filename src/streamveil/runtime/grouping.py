"""How micro-batches flow: one is made ahead in a thread, small ones are published together.

A job over live data publishes every release at its trigger. In a replay of history all triggers
are past: nobody waits for one of them, so the costs of each (a sync of the log, a file and its
name) are paid once for several consecutive ones.

Guarantee: where a group of releases ends is a function of the clock's public number of steps, the
    step number, and how many rows the releases of the group have; those are public once the group
    is. So file names, the releases in a file and the order in which files appear reveal nothing
    beyond the releases. Nor do log lines, figures and what a reader finds in the state.
Proof: `Together.ends` uses nothing else. It is called at the end of each step, which every replay
    has with or without rows. A restart calls it again for the same releases, or finds the answer
    in the log; the rest of a group that a crash cut in two is computed and published as it would
    have been. The log takes parts of a group when they are large, so where these end depends on
    rows: an incomplete group is shown to nobody (`Progress.unpublished`, `published.led_to`).
    When a file appears depends on how long the steps took, as it does without groups: see
    docs/weaknesses.md.

`Prefetch` holds one item ahead, and no more: back-pressure by construction. A group is many small
releases of a replay, published in one commit and one file.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, Queue
from typing import Generic, TypeVar

import pyarrow as pa

from streamveil.batch import Batch, RowBlock
from streamveil.plan import Clock

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Iterates over `items`; the next one is made, or waits, while one is in use.

    At most two items exist at once, the one in use and the next, if the caller drops an item before
    it takes the next or calls `done`. So the memory of an item is free again when the next but one
    is made. An exception of the source is raised where its item would have been.
    `close` never blocks on a source that waits for data.

    >>> list(Prefetch(iter([1, 2, 3])))
    [1, 2, 3]
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._ready: Queue[tuple[T | None, BaseException | None, bool]] = Queue()
        self._taken = threading.Semaphore(0)
        self._done = False  # with the item in use
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(items,), daemon=True)
        self._thread.start()

    def _fill(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                self._ready.put((item, None, False))
                del item  # or it would be kept while the next one is made
                self._taken.acquire()
                if self._stop.is_set():
                    return
            self._ready.put((None, None, True))
        except BaseException as error:
            self._ready.put((None, error, True))
        finally:  # an error's traceback may hold `items`, and those a server's connection
            getattr(items, "close", lambda: None)()

    @property
    def waiting(self) -> bool:
        """Whether the next item is not there yet."""
        return self._ready.empty()

    def __iter__(self) -> Prefetch[T]:
        return self

    def __next__(self) -> T:
        if self._stop.is_set():
            raise StopIteration
        item, error, last = self._ready.get()
        self.done()
        self._done = False
        if last:
            self._stop.set()
            raise error or StopIteration
        return item  # type: ignore[return-value]  # None only where `last`

    def done(self) -> None:
        """Ends the use of the current item, so that the next but one can be made."""
        if not self._done:
            self._done = True
            self._taken.release()

    def close(self) -> None:
        """Stops making items; one that waits is dropped."""
        self._stop.set()
        self._taken.release()
        with suppress(Empty):
            self._ready.get_nowait()


class PrefetchInBlocks(Generic[T]):
    """`Prefetch` for small items, which are made and handed over in blocks.

    >>> list(PrefetchInBlocks(iter([[1, 2], [3]])))
    [1, 2, 3]
    """

    def __init__(self, blocks: Iterator[list[T]]) -> None:
        self._blocks, self._rest = Prefetch(blocks), deque[T]()

    @property
    def waiting(self) -> bool:
        """Whether the next item is not there yet."""
        return not self._rest and self._blocks.waiting

    def __iter__(self) -> PrefetchInBlocks[T]:
        return self

    def __next__(self) -> T:
        while not self._rest:
            block = next(self._blocks)
            self._rest.extend(block)
            block.clear()  # whoever made it may hold it
        return self._rest.popleft()

    def done(self) -> None:
        """See `Prefetch.done`."""
        if not self._rest:
            self._blocks.done()

    def close(self) -> None:
        """See `Prefetch.close`."""
        self._rest.clear()
        self._blocks.close()


FEWEST = 64  # a replay publishes at least so often, to show how far it has come
MOST_STEPS = 96
BLOCK_ROWS = 4_096  # of small micro-batches, whose rows are prepared together
MOST_ROWS = 50_000  # released rows, of several groups of keys: more are a file of their own size


@dataclass(frozen=True)
class Together:
    """Steps of a replay that are published together."""

    steps: int
    last: int  # step of the replay

    def ends(self, step: int, rows: int) -> bool:
        """Whether a group whose releases have so many rows ends with this step."""
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
    """The same micro-batches, small ones in blocks, each with the rows of its block."""
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
    rows = (batch.rows for batch in batches)  # where there are none, those of places are missing
    block = RowBlock(pa.concat_tables(rows, promote_options="default").combine_chunks())
    found, start = list[Batch](), 0
    for batch in batches:
        size = batch.rows.num_rows
        rows = block.rows.slice(start, size)
        found.append(replace(batch, rows=rows, block=block, start=start))
        start += size
    return found
