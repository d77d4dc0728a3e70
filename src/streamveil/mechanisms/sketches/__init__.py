"""Private frequency sketches: what `sv.sketches` shows."""

from streamveil.mechanisms.sketches.hashing import Layout
from streamveil.mechanisms.sketches.heavy_hitters import (
    Found,
    HeavyHitters,
    LiveHeavyHitters,
    PublishedHierarchy,
)
from streamveil.mechanisms.sketches.keys import text_words, words_text
from streamveil.mechanisms.sketches.lazy import LazySketch, LiveSketch, PunctualSketch
from streamveil.mechanisms.sketches.linear import CountMin, CountSketch, LinearSketch
from streamveil.mechanisms.sketches.published import ErrorBound, PublishedSketch

__all__ = [
    "CountMin",
    "CountSketch",
    "ErrorBound",
    "Found",
    "HeavyHitters",
    "Layout",
    "LazySketch",
    "LinearSketch",
    "LiveHeavyHitters",
    "LiveSketch",
    "PublishedHierarchy",
    "PublishedSketch",
    "PunctualSketch",
    "text_words",
    "words_text",
]  # fmt: skip
