"""Answers across releases: differences, recent sums, ratios, top groups, with correct intervals."""

from streamveil.derived.answers import Answers, Derived, answers

__all__ = ["Answers", "Derived", "answers"]
