"""Answers across releases: differences, recent sums, ratios, top groups, with correct intervals."""

from streamveil.results.answers import Answers, Derived

__all__ = ["Answers", "Derived"]
