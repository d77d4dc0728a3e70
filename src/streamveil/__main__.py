"""`python -m streamveil` and `streamveil` are the command line.

It takes up to a second to load. Nothing is begun by then, so Ctrl-C ends the process at once.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from streamveil.errors import INTERRUPTED


def main() -> None:
    """Loads the command line and runs it."""
    asked = signal.getsignal(signal.SIGINT)
    if asked is signal.default_int_handler:  # else whoever started it decides: `nohup`, a test
        signal.signal(signal.SIGINT, leave)
    from streamveil.cli import main as run

    try:
        signal.signal(signal.SIGINT, asked)
        run()
    except KeyboardInterrupt:  # outside of what `run` answers by itself
        sys.exit(INTERRUPTED)


def leave(*_: int | FrameType | None) -> None:
    """Ends the process: an exception would pass through half-loaded modules."""
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
