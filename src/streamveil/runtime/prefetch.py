"""Reads one item ahead in a thread, and no more: back-pressure by construction."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import Generic, TypeVar

T = TypeVar("T")
POLL_SECONDS = 0.2


class Prefetch(Generic[T]):
    """Iterates over `items` with the next one being made meanwhile.

    At most three items exist at once: the one in use, the one that waits, the one being made. An
    exception of the source is raised where its item would have been. `close` never blocks on a
    source that waits for data.

    >>> list(Prefetch(iter([1, 2, 3])))
    [1, 2, 3]
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._ready: Queue[tuple[T | None, BaseException | None, bool]] = Queue(maxsize=1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(items,), daemon=True)
        self._thread.start()

    def _fill(self, items: Iterator[T]) -> None:
        try:
            for item in items:
                if not self._put((item, None, False)):
                    return
            self._put((None, None, True))
        except BaseException as error:
            self._put((None, error, True))

    def _put(self, entry: tuple[T | None, BaseException | None, bool]) -> bool:
        while not self._stop.is_set():
            try:
                self._ready.put(entry, timeout=POLL_SECONDS)
            except Full:
                continue
            return True
        return False

    @property
    def waiting(self) -> bool:
        """Whether the next item is not there yet."""
        return self._ready.empty()

    def __iter__(self) -> Iterator[T]:
        while not self._stop.is_set():
            item, error, last = self._ready.get()
            if error is not None:
                raise error
            if last:
                return
            yield item  # type: ignore[misc]  # None only with `error` or `last`

    def close(self) -> None:
        """Stops reading ahead; an item that waits is dropped."""
        self._stop.set()
        with suppress(Empty):
            self._ready.get_nowait()
