"""Progress of a job in a notebook: a bar that is gone when the job is done.

Only public facts are shown, steps and releases and seconds, and no number of rows: outputs of a
notebook are saved with it and shared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamveil.plan import Clock
    from streamveil.runtime.progress import Progress

PAUSE = 0.2  # seconds between two pictures


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def bar_for(clock: Clock) -> Bar | None:
    """A bar for a job with that clock; None outside of notebooks."""
    return Bar(1 if clock.kind == "once" else clock.steps) if in_notebook() else None


class Bar:
    """What a job tells, as a bar in the output of a cell: a listener of `run(progress=...)`."""

    def __init__(self, steps: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.steps, self.clock, self.last = steps, clock, -PAUSE
        self.handle: Any = None

    def __call__(self, seen: Progress) -> None:
        """Shows how far the job is, not too often; nothing any more at its end."""
        now, done = self.clock(), self.steps is not None and seen.closed_steps >= self.steps
        if done and self.handle is not None:
            self.show("")
        elif not done and now - self.last >= PAUSE:
            self.last = now
            self.show(html_of(seen.closed_steps, self.steps, seen.releases, seen.seconds))

    def show(self, text: str) -> None:
        """Replaces what stands in the cell."""
        display: Any = import_module("IPython.display")
        if self.handle is None:
            self.handle = display.display(display.HTML(text), display_id=True)
        else:
            self.handle.update(display.HTML(text))


def html_of(step: int, steps: int | None, releases: int, seconds: float) -> str:
    """The bar.

    >>> html_of(3, 12, 3, 4.2)
    '<progress value="3" max="12"></progress> step 3 of 12 · 3 releases · 4 s'
    >>> html_of(3, None, 3, 4.2)
    '<progress></progress> step 3 · 3 releases · 4 s'
    """
    bar = "<progress></progress>" if steps is None else (
        f'<progress value="{step}" max="{steps}"></progress>'
    )  # fmt: skip
    of = "" if steps is None else f" of {steps:,}"
    return f"{bar} step {step:,}{of} · {releases:,} releases · {seconds:,.0f} s"
