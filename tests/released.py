"""Releases for tests of what happens to them afterwards."""

import pyarrow as pa

from streamveil.batch import Release
from streamveil.core.noisy import public


def made(table: pa.Table, window: int = 0, trigger: int = 1, step: int = 1) -> Release:
    """A release of a table that nobody's rows are in."""
    return Release(public(table), window, trigger, step)
