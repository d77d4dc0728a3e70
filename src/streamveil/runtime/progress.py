"""A running job's reports to its operator. Never published: the numbers depend on private rows."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from streamveil.connectors.rejected_rows import MISFIT
from streamveil.dataflow import BOUNDED

STATM = Path("/proc/self/statm")
SIZES = {"units", "keys", "shown keys", "bytes", "records", "bases"}  # of the state
NO_FAULTS = {BOUNDED, "ignored_"}  # rows that are as they should be


@dataclass(frozen=True)
class Progress:
    """After one commit. `counters` are the operator's health numbers; no value of a row, ever."""

    batch: int  # micro-batches committed, over all runs
    step: int  # of the last one
    rows: int  # read by this run
    releases: int  # published by this run
    seconds: float  # since this run started
    log_bytes: int  # since the last checkpoint
    checkpoint_bytes: int
    rejected: dict[str, int] = field(default_factory=dict)  # rows by reason, over all runs
    counters: dict[str, int] = field(default_factory=dict)
    unpublished: int = 0  # steps that are open, or in a group that is not whole

    @property
    def closed_steps(self) -> int:
        """How many steps are closed and published: public, unlike the number of commits."""
        return self.step - self.unpublished

    @property
    def rows_per_second(self) -> float:
        """The speed of this run."""
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def unusable(self) -> dict[str, int]:
        """Rows that could not be used, by reason, over all runs: those `rejects` would keep.

        >>> Progress(1, 1, 9, 0, 1.0, 0, 0, {"malformed row": 2}, {"units": 7, "late": 1}).unusable
        {'malformed row': 2, 'late': 1}
        """
        counted = {**self.rejected, **self.counters}
        other = {name for name in counted if name.startswith(tuple(NO_FAULTS))} | SIZES
        return {name: rows for name, rows in counted.items() if rows and name not in other}

    def unusable_summary(self, way: str = "") -> str:
        """One line on rows that could not be used, without any content of a row; '' if none.

        The row of a field that was read as null may count, so fields are listed apart from rows.
        `way`: what keeps such rows.

        >>> Progress(1, 1, 9, 0, 1.0, 0, 0, {"malformed row": 2}).unusable_summary("--rejects DIR")
        'rows that could not be used: malformed row (2) (--rejects DIR keeps such rows)'
        >>> Progress(1, 1, 9, 0, 1.0, 0, 0, {MISFIT: 3}).unusable_summary()
        'fields of the wrong type, read as null: 3 (in no sum or mean; their rows may count)'
        """
        found = dict(self.unusable)
        fields = found.pop(MISFIT, 0)
        rows = ", ".join(f"{reason} ({count:,})" for reason, count in found.items())
        parts = [f"rows that could not be used: {rows}"] if rows else []
        if fields:
            parts.append(
                f"fields of the wrong type, read as null: {fields:,}"
                " (in no sum or mean; their rows may count)"
            )
        kept = f" ({way} keeps such rows)" if way and parts else ""
        return "; ".join(parts) + kept

    @property
    def memory_bytes(self) -> int:
        """The largest resident memory of this process so far."""
        return peak_bytes()

    def summary(self) -> str:
        """One line for the operator's terminal; sizes are rounded, no count of units or groups.

        >>> Progress(batch=3, step=2, rows=900, releases=2, seconds=1.5, log_bytes=1 << 20,
        ...          checkpoint_bytes=0).summary().split("; memory")[0]
        '3 micro-batches, 900 rows in 1.5 s (600 rows/s), 2 releases'
        """
        state = self.counters.get("bytes")
        kept = "" if state is None else f", {state / 2**20:,.1f} MiB of it state"
        disk = (self.log_bytes + self.checkpoint_bytes) / 2**20
        return (
            f"{counted(self.batch, 'micro-batch', 'es')}, {counted(self.rows, 'row')} in"
            f" {self.seconds:,.1f} s ({self.rows_per_second:,.0f} rows/s),"
            f" {counted(self.releases, 'release')}; memory at most"
            f" {self.memory_bytes / 2**20:,.0f} MiB{kept}; on disk {disk:,.1f} MiB"
        )


def counted(number: int, word: str, ending: str = "s") -> str:
    """A number of things in words.

    >>> counted(1, "release"), counted(2_000, "micro-batch", "es")
    ('1 release', '2,000 micro-batches')
    """
    return f"{number:,} {word}{ending * (number != 1)}"


def peak_bytes() -> int:
    """The largest resident memory of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def resident_bytes() -> int:
    """The resident memory of this process now; where unknown, its largest so far."""
    try:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return peak_bytes()


Listener = Callable[[Progress], None]


def silent(_: Progress) -> None:
    """Ignores a report."""


def tell_all(listeners: Sequence[Listener], seen: Progress) -> None:
    """Passes a report to each listener."""
    for listener in listeners:
        listener(seen)
