"""Makes one item ahead in a thread, and no more: back-pressure by construction."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Queue
from typing import Generic, TypeVar

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Iterates over `items` with the next one being made, or waiting, meanwhile.

    At most two items exist at once if the caller drops one before it takes the next: the one in
    use and the next. So the memory of an item is free again when the next but one is made. An
    exception of the source is raised where its item would have been. `close` never blocks on a
    source that waits for data.

    >>> list(Prefetch(iter([1, 2, 3])))
    [1, 2, 3]
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._ready: Queue[tuple[T | None, BaseException | None, bool]] = Queue()
        self._taken = threading.Semaphore(0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(items,), daemon=True)
        self._thread.start()

    def _fill(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                self._ready.put((item, None, False))
                del item  # or it would be here while the next one is made
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
        self._taken.release()
        if last:
            self._stop.set()
            raise error or StopIteration
        return item  # type: ignore[return-value]  # None only where `last`

    def close(self) -> None:
        """Stops making items; one that waits is dropped."""
        self._stop.set()
        self._taken.release()
        with suppress(Empty):
            self._ready.get_nowait()


class PrefetchInBlocks(Generic[T]):
    """The same for small items, which are made and handed over some at a time.

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

    def close(self) -> None:
        """See `Prefetch.close`."""
        self._rest.clear()
        self._blocks.close()
