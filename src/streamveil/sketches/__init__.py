"""Private frequency sketches: the names of `sv.sketches`."""

from streamveil.sketches.hashing import Layout
from streamveil.sketches.heavy_hitters import HeavyHitters, HeavyKeys, PublishedHierarchy
from streamveil.sketches.heavy_texts import HeavyTexts, HeavyTextsFound, PublishedTexts
from streamveil.sketches.keys import text_words, words_text
from streamveil.sketches.lazy import LazySketch
from streamveil.sketches.levels import LiveSketch
from streamveil.sketches.published import PublishedSketch, SketchErrorBound

__all__ = [
    "HeavyHitters", "HeavyKeys", "HeavyTexts", "HeavyTextsFound", "Layout", "LazySketch",
    "LiveSketch", "PublishedHierarchy", "PublishedSketch", "PublishedTexts", "SketchErrorBound",
    "text_words", "words_text",
]  # fmt: skip
