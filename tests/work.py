"""Counts of work: a bound on it says the same on a busy machine as on a quiet one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import streamveil

OURS = str(Path(streamveil.__file__).parent)


@contextmanager
def at_most(calls: float) -> Iterator[None]:
    """Fails as soon as functions of ours have been called more often than that.

    Imports and compiling by other packages, which depend on what ran before, are not counted.
    """
    done = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal done
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            done += 1
            assert done <= calls, f"more than {calls:,} calls"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert done <= calls, f"more than {calls:,} calls"  # also where an error was caught
