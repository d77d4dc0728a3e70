"""SIGTERM and Ctrl-C end a job in order: after a commit, with everything given back, and in words.

The first signal stops the job where it is: the micro-batch being committed is committed and
published; the next one is given up, and the next run reads it again. After `SECONDS` the job gives
up the rest too (a container is killed ten seconds after its stop signal): a kill at any moment
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
SIGNALED = 128  # plus the number of the signal: the exit code
LATE = "not all could be finished in time; what is committed stays. Run again to resume."


class Stopped(SystemExit):
    """Raised where a signal finds the process; the exit code is 143 or 130."""

    def __init__(self, number: int) -> None:
        super().__init__(SIGNALED + number)
        self.name = signal.Signals(number).name

    done = ""  # what a job has committed; empty for other commands
    is_logged = False  # whether a log line has said it

    def __str__(self) -> str:
        """The last words of the command."""
        said = f"stopped by {self.name}"
        return f"{said}: {self.done}. Run again to resume." if self.done else f"{said}. Run again."

    def tell(self) -> None:
        """Prints the last words on stderr, unless a log line has them."""
        if not self.is_logged:
            say(self, err=True)


@contextmanager
def stopping(seen: list[Progress]) -> Iterator[None]:
    """Ends the code in the block in order on a signal; `seen`: the last progress of the job."""
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
    """Starts a thread that notices signals and ends the process in time.

    The handler waits for the main thread, which may be inside a call that no signal interrupts: for
    minutes, if a store does not answer.
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
    """The committed part of a run in words, from the last progress.

    It tells only public facts: not the number of micro-batches in a step, which depends on rows.

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
