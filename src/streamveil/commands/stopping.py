"""SIGTERM and Ctrl-C end a job in order: after a commit, with everything given back, and in words.

The first one stops the job where it is: the micro-batch being committed is committed and published,
the one after it is given up and read again by the next run. What takes longer than `SECONDS` is
given up too (a container is killed ten seconds after it was told to stop): a kill at any moment
loses nothing that was committed. A second Ctrl-C ends the process at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from streamveil.terminal import say

if TYPE_CHECKING:
    from streamveil.runtime.progress import Progress

SECONDS = 8.0
SIGNALED = 128  # and the number of the signal: the exit code
LATE = "not all could be finished in time; what is committed stays. Run again to resume."


class Stopped(SystemExit):
    """Raised where a signal finds the process; the exit code is 143 or 130."""

    def __init__(self, number: int) -> None:
        super().__init__(SIGNALED + number)
        self.name = signal.Signals(number).name

    done = ""  # what a job has committed; nothing is known of other commands
    is_logged = False  # whether a log line has said it

    def __str__(self) -> str:
        """What to say at the end."""
        said = f"stopped by {self.name}"
        return f"{said}: {self.done}. Run again to resume." if self.done else f"{said}. Run again."

    def tell(self) -> None:
        """Says it on stderr, unless a log line has."""
        if not self.is_logged:
            say(self, err=True)


@contextmanager
def stopping(seen: list[Progress]) -> Iterator[None]:
    """Ends in order what runs inside, and knows what is committed; `seen`: the last progress."""
    before = {one: signal.signal(one, stop) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except Stopped as stopped:
        stopped.done = committed(seen)
        before = {}
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop(number: int, _: FrameType | None) -> None:
    """The handler of the first signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise Stopped(number)


def count_down() -> None:
    """Has a thread hear signals and end the process in time.

    The handler waits for the main thread, which may be within a call that hears nothing: to a store
    that does not answer, for minutes.
    """
    heard, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=give_up, args=(heard,), daemon=True).start()


def give_up(heard: int) -> None:
    """Ends the process some time after a signal, without waiting for anything."""
    number = 0
    while number not in (signal.SIGTERM, signal.SIGINT) or (
        signal.getsignal(number) is signal.default_int_handler  # no job runs
    ):
        number = os.read(heard, 1)[0]
    time.sleep(SECONDS)
    say(LATE, err=True)
    os._exit(SIGNALED + number)


def committed(seen: list[Progress]) -> str:
    """What stays, from the last progress.

    Public facts alone: how many micro-batches a step has depends on its rows.

    >>> committed([])
    'this run closed no step'
    """
    if not seen or not seen[0].closed_steps:
        return "this run closed no step"
    last = seen[0]
    return (
        f"step {last.closed_steps:,} is the last one closed, and {last.releases:,} releases of this"
        " run are published"
    )
