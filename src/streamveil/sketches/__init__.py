"""Private frequency sketches: what `sv.sketches` shows."""

from streamveil.sketches.hashing import Layout
from streamveil.sketches.heavy_hitters import (
    HeavyHitters,
    HeavyKeys,
    LiveHeavyHitters,
    PublishedHierarchy,
)
from streamveil.sketches.keys import text_words, words_text
from streamveil.sketches.lazy import LazySketch, LiveSketch, PunctualSketch
from streamveil.sketches.linear import CountMin, CountSketch, LinearSketch
from streamveil.sketches.published import PublishedSketch, SketchErrorBound

__all__ = [
    "CountMin",
    "CountSketch",
    "HeavyHitters",
    "HeavyKeys",
    "Layout",
    "LazySketch",
    "LinearSketch",
    "LiveHeavyHitters",
    "LiveSketch",
    "PublishedHierarchy",
    "PublishedSketch",
    "PunctualSketch",
    "SketchErrorBound",
    "text_words",
    "words_text",
]  # fmt: skip
