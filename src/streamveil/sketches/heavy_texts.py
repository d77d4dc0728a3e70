"""Frequent texts, however long they are, found from published tables alone.

As in `heavy_hitters`, no text is kept: its bytes only add to noisy cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from streamveil.core.accounting import Budget, Neighbours, take_numbers
from streamveil.dataflow.hashing import is_text
from streamveil.dataflow.keys import cells_of
from streamveil.errors import PlanError, require_between
from streamveil.sketches.hashing import LARGEST_WIDTH, Layout
from streamveil.sketches.keys import GOLDEN, cut_texts, is_utf8, text_column
from streamveil.sketches.levels import BEAM, Levels, LevelWords, require_search
from streamveil.sketches.published import PublishedSketch
from streamveil.sketches.schedule import PushSchedule
from streamveil.types import Array, Float64, UInt64

LONGEST_TEXT = 1024  # bytes
SEEN = 5.0  # standard deviations of a cell at which a text is found, collisions aside
FIRST = 2  # bytes that the first level counts, exactly
LIKELY = 2.0  # standard deviations of noise that a prefix must show to be searched on
GUARD = 4.0  # standard deviations of noise that a text must show to be found


class HeavyTextsFound(NamedTuple):
    """Texts in order of estimated weight, largest first.

    >>> texts = np.array(["/home", "/"], object)
    >>> found = HeavyTextsFound(texts, np.array([120.0, 80.0]), sd=4.0)
    >>> dict(zip(found.keys, found.estimates.tolist()))
    {'/home': 120.0, '/': 80.0}
    """

    keys: Array  # of Python texts
    estimates: Float64[Array, " found"]
    sd: float  # standard deviation of the noise of an estimate


@dataclass(frozen=True, kw_only=True)
class HeavyTexts(Levels):
    """The most frequent texts of up to `length` bytes at any time, without a list of candidates.

    Algorithm: level l, from 2 on, counts the first l bytes of every text of at least l bytes: the
        first level exactly, others in a sketch of a public hash. One more sketch counts whole
        texts, `weight` times each. The search keeps the `beam` largest prefixes of a level, looks
        at all their children, and looks up in the last sketch whether a text ends at any of them.
        Longer texts are cut to `length` bytes or a little less: no character of UTF-8 is divided.
    Protects: as `LazySketch`, on the tick clock.
    Guarantee: one budget for all tables: a text adds to one cell in every row of its levels, and
        `weight` to one cell in every row of the last sketch.
    Proof: `NoisePlan` on the concatenation of all tables, with the last one's part. A text shorter
        than `length` touches fewer cells. The search reads published tables only.
    Error: noise of an estimate is that of a cell over `weight`. A text is found where each of its
        prefixes shows `LIKELY` deviations of a cell and is among the `beam` largest. Collisions
        add, as in a Count-Min sketch.
    Memory: `nbytes`, however many texts there are and however long.

    Raises:
        PlanError: a setting is out of its range.
        PlanError: keys are no texts.
        StoreError: `resume` is given arrays of another configuration.

    >>> from streamveil.core.noise import SeededNoise
    >>> finder = HeavyTexts(length=40, width=1024, horizon=10,
    ...     protects=Neighbours(relation="event"), budget=Budget(epsilon=1, delta=1e-6))
    >>> live = finder.open(SeededNoise(1))
    >>> live.tick(["/the/longest/path/of/all"] * 9_000 + ["/"] * 8_000)
    >>> live.published().top(2).keys.tolist()
    ['/the/longest/path/of/all', '/']
    """

    horizon: int | None  # ticks covered, >= 1; None: unknown
    protects: Neighbours
    budget: Budget
    length: int  # bytes of a text that count, 1 to 1,024
    width: int  # columns of each level, >= 1
    whole_width: int | None = None  # columns of the sketch of whole texts, >= 1; None: 4 * width
    depth: int = 2  # rows of each level, >= 1
    whole_depth: int = 3  # rows of the sketch of whole texts, >= 1
    counter: Literal["blt-1", "blt-2", "tree", "tree-prf"] = "blt-1"  # of a cell
    max_weight: int = 1  # of one item, >= 1
    seed: int = 0  # public, any whole number; choose it before seeing data

    clock = "ticks"
    round = 1
    most_levels = 2 * LONGEST_TEXT

    def __post_init__(self) -> None:
        take_numbers(self)
        if not isinstance(self.length, int) or not 1 <= self.length <= LONGEST_TEXT:
            raise PlanError(f"length must be from 1 to {LONGEST_TEXT} bytes, not {self.length}")
        require_between(1, 64, whole_depth=self.whole_depth)
        if self.whole_width is not None:
            require_between(1, LARGEST_WIDTH, whole_width=self.whole_width)
        _ = self.layouts, self.noise.loss, self.tables  # every setting is checked now

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """One layout per level, and the one of whole texts."""
        sketched = [
            self.layout_of("multiply", self.depth, self.width, number)
            for number in range(FIRST + 1, self.length + 1)
        ]
        first = [self.layout_of("identity", 1, 256**FIRST, FIRST)] if self.length >= FIRST else []
        wide = 4 * self.width if self.whole_width is None else self.whole_width
        return (*first, *sketched, self.layout_of("multiply", self.whole_depth, wide, 0))

    @property
    def weight(self) -> int:
        """The number that a text adds to a cell of the last sketch, whose rows so take a quarter.

        They then raise the noise of the levels by a seventh, and the noise of an estimate, in
        texts, hardly depends on `length`.
        """
        levels = sum(layout.depth for layout in self.layouts[:-1])
        return max(1, round(math.sqrt(levels / (3 * self.whole_depth))))

    def schedule_of(self, width: int) -> PushSchedule:
        """All columns at every tick.

        Args:
            width: columns of the table, at least 1.

        Raises:
            PlanError: an argument is beyond its range.
        """
        return PushSchedule(width=width, clock="ticks", round=1, block=width, horizon=self.horizon)

    @property
    def parts(self) -> tuple[int, ...]:
        """See `Levels`."""
        return (1,) * (len(self.layouts) - 1) + (self.weight,)

    def items(self, keys: Any) -> pa.Array:
        """Texts as they are counted: binary, of `length` bytes at most.

        Args:
            keys: texts or bytes.

        Raises:
            PlanError: they are something else.
        """
        return cut_texts(column_of(keys), self.length)

    def counted(self, items: pa.Array, weights: Array) -> Iterator[LevelWords]:
        """The words of some texts that every table counts: hashes of their first bytes, and of all.

        Args:
            items: what `items` returned.
            weights: how often each counts, at least 0; empty: once.
        """
        data, ends = cells_of([items])
        sizes = np.diff(ends, prepend=0)
        order = np.argsort(-sizes, kind="stable")  # the texts of a level come first
        starts, sizes = (ends - sizes)[order], sizes[order]
        amounts = weights[order] if len(weights) else weights
        hashes = np.full(len(sizes), GOLDEN, np.uint64)
        for number in range(1, min(self.length, int(sizes.max(initial=0))) + 1):
            long = int(np.searchsorted(-sizes, -number, side="right"))
            hashes[:long] = extended(hashes[:long], data[starts[:long] + (number - 1)])
            if number < FIRST:
                continue
            words = hashes[:long].copy()
            if number == FIRST:
                head = data[starts[:long, None] + np.arange(FIRST)].astype(np.uint64)
                words = head[:, 0] << np.uint64(8) | head[:, 1]
            yield LevelWords(number - FIRST, words, amounts[:long])
        each = amounts if len(amounts) else np.ones(len(sizes), np.int32)
        yield LevelWords(len(self.layouts) - 1, hashes, each * np.int32(self.weight))

    def shown(self, levels: tuple[PublishedSketch, ...]) -> PublishedTexts:
        """Published tables, ready for a search; `levels`: the published tables, in order."""
        return PublishedTexts(levels, self.weight)


@dataclass(frozen=True)
class PublishedTexts:
    """Public snapshots of all tables of a `HeavyTexts`. Holds no text.

    Raises:
        PlanError: k is below 1, or the beam below k.

    >>> from streamveil.core.noise import SeededNoise
    >>> finder = HeavyTexts(length=3, width=64, horizon=1,
    ...     protects=Neighbours(relation="event"), budget=Budget(epsilon=1, delta=1e-6))
    >>> live = finder.open(SeededNoise(1))
    >>> live.tick(["abc"] * 9_000)
    >>> public = live.published()
    >>> bool(abs(public.estimate(["abc"])[0] - 9_000) < 200), public.weight
    (True, 1)
    """

    levels: tuple[PublishedSketch, ...]  # of prefixes, and last of whole texts
    weight: int  # the number that a text adds to a cell of the last level, >= 1

    @property
    def sd(self) -> float:
        """The largest standard deviation of the noise of an estimate."""
        return self.levels[-1].sd / self.weight

    def estimate(self, keys: Any) -> Float64[Array, " keys"]:
        """Estimated weight of any texts, cut in the same way as counted texts.

        Args:
            keys: texts or bytes.

        Raises:
            PlanError: they are something else.
        """
        data, ends = cells_of([cut_texts(column_of(keys), len(self.levels))])
        return self._whole(
            np.array([hashed(data[a:b]) for a, b in zip(ends - np.diff(ends, prepend=0), ends,
                                                        strict=True)], np.uint64)
        )  # fmt: skip

    def _whole(self, hashes: UInt64[Array, " keys"]) -> Float64[Array, " keys"]:
        return self.levels[-1].estimate_words(hashes) / self.weight

    def top(self, k: int, *, threshold: float | None = None, beam: int = BEAM) -> HeavyTextsFound:
        """At most k texts with the largest estimates of at least `threshold`.

        Without a threshold, `GUARD` standard deviations of the noise, and no text before the first
        tick. The beam should be at least twice k; a wider one finds more and takes longer.

        Args:
            k: texts at most, at least 1.
            threshold: the least estimate of a text.
            beam: how many prefixes the search follows at each length, at least k.

        Raises:
            PlanError: k is below 1, the beam is below k, or the threshold is no number.
        """
        require_search(k, beam, threshold)
        least = (GUARD * self.sd or math.inf) if threshold is None else threshold
        texts: list[bytes] = []
        estimates: list[float] = []
        for reached in self._reached(beam):
            values = self._whole(reached.hashes)
            for place in np.flatnonzero(values >= least):
                texts.append(reached.text(int(place)))
                estimates.append(float(values[place]))
        valid = [place for place, text in enumerate(texts) if is_utf8(text)]
        best = sorted(valid, key=lambda place: (-estimates[place], texts[place]))[:k]
        return HeavyTextsFound(
            np.array([texts[place].decode() for place in best], object),
            np.array([estimates[place] for place in best], np.float64),
            self.sd,
        )

    def _reached(self, beam: int) -> Iterator[Reached]:
        """The prefixes that the search follows at each level, by their smallest estimate so far."""
        here = Reached.root()
        yield here
        for size in range(1, len(self.levels) + FIRST - 1):
            here = here.children()
            if size >= FIRST:
                level = self.levels[size - FIRST]
                exact = np.arange(256**FIRST, dtype=np.uint32)
                words = exact if size == FIRST else here.hashes
                scores = np.minimum(here.scores, level.estimate_words(words))
                likely = np.flatnonzero(scores >= LIKELY * level.sd)
                kept = likely[np.argsort(-scores[likely], kind="stable")][:beam]
                here = here.of(kept, scores[kept])
            yield here


@dataclass(frozen=True)
class Reached:
    """Prefixes of one length: their hashes, and the last byte and the parent of each."""

    hashes: UInt64[Array, " prefixes"]
    scores: Float64[Array, " prefixes"]
    before: Reached | None
    parents: Array  # places in `before`
    letters: Array  # bytes

    @classmethod
    def root(cls) -> Reached:
        """The empty text."""
        none = np.zeros(1, np.int64)
        return cls(np.array([GOLDEN]), np.full(1, np.inf), None, none, none.astype(np.uint8))

    def children(self) -> Reached:
        """Every prefix followed by every byte."""
        parents = np.repeat(np.arange(len(self.hashes)), 256)
        added = np.tile(np.arange(256, dtype=np.uint8), len(self.hashes))
        hashes = extended(self.hashes[parents], added)
        return Reached(hashes, self.scores[parents], self, parents, added)

    def of(self, places: Array, scores: Float64[Array, " some"]) -> Reached:
        """Some of the prefixes, with new scores."""
        return Reached(
            self.hashes[places], scores, self.before, self.parents[places], self.letters[places]
        )

    def text(self, place: int) -> bytes:
        """The bytes of one prefix."""
        letters: list[int] = []
        here = self
        while here.before is not None:
            letters.append(int(here.letters[place]))
            place, here = int(here.parents[place]), here.before
        return bytes(reversed(letters))


def extended(hashes: UInt64[Array, " keys"], added: Array) -> UInt64[Array, " keys"]:
    """The public hashes of prefixes extended by a byte (SplitMix64 over their bytes)."""
    mixed = hashes ^ (added.astype(np.uint64) + np.uint64(1))
    mixed ^= mixed >> np.uint64(30)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return np.asarray(mixed + GOLDEN)


def hashed(text: Array) -> np.uint64:
    """The public hash of one text, given by its bytes."""
    found = np.array([GOLDEN])
    for byte in text:
        found = extended(found, np.array([byte]))
    return np.uint64(found[0])


def column_of(keys: Any) -> pa.Array:
    """Texts as an Arrow column."""
    column = text_column(keys)
    if not (len(column) == 0 or is_text(column.type)):
        raise PlanError(f"a finder of texts counts texts, not {column.type}")
    return column.cast(pa.large_string()) if len(column) == 0 else column
