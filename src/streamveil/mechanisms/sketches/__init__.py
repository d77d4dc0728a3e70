"""Private frequency sketches: what `sv.sketches` shows."""

from streamveil.mechanisms.sketches.hashing import Layout
from streamveil.mechanisms.sketches.heavy_hitters import (
    HeavyHitters,
    HeavyKeys,
    LiveHeavyHitters,
    PublishedHierarchy,
)
from streamveil.mechanisms.sketches.keys import text_words, words_text
from streamveil.mechanisms.sketches.lazy import LazySketch, LiveSketch, PunctualSketch
from streamveil.mechanisms.sketches.linear import CountMin, CountSketch, LinearSketch
from streamveil.mechanisms.sketches.published import PublishedSketch, SketchErrorBound

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
