"""Several sinks of one job: each gets every release.

Exactly once each. Proof: a job sends a release again until its own state says that it was sent,
which it says when the last sink has it; and writing the same release again changes none of them.
So wherever a process, a server or a disk fails, the next life writes to all of them, and those
that have the release stay as they are. None gets a release before those in front of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from streamveil.batch import Release
from streamveil.connectors.base import Sink, write_all


class SeveralSinks(Sink):
    """Writes to one sink after the other."""

    def __init__(self, sinks: list[Sink]) -> None:
        self.sinks = sinks
        keeper = next((sink for sink in sinks if getattr(sink, "keeps", False)), None)
        self.keeps = keeper is not None  # whether one gives back what it was given
        self.path = getattr(keeper, "path", None)  # where that one is

    def write(self, job: str, release: Release) -> None:
        """See `Sink.write`."""
        for sink in self.sinks:
            sink.write(job, release)

    def write_together(self, job: str, releases: Sequence[Release]) -> None:
        """Publishes releases in their order, to one sink after the other."""
        for sink in self.sinks:
            write_all(sink, job, releases)

    def close(self) -> None:
        """Closes all, also where one of them fails."""
        with ExitStack() as stack:
            for sink in self.sinks:
                stack.callback(sink.close)
