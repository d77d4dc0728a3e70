"""Rows that do not count: how many for which reason, and which, where somebody asks."""

from __future__ import annotations

from collections.abc import Mapping

NOT_FINITE = "not a finite number"
BOUNDED = "over the contribution bound"  # as it should be: no fault of the row


def count(into: dict[str, int], more: Mapping[str, int]) -> None:
    """Adds counts by reason, of which there are any.

    >>> reject_counts = {"late": 1}
    >>> count(reject_counts, {"late": 2, "null unit": 0})
    >>> reject_counts
    {'late': 3}
    """
    for reason, rows in more.items():
        if rows:
            into[reason] = into.get(reason, 0) + rows
