"""Which cells a key touches: public hash functions, fixed before any data is read.

Privacy holds for every fixed choice of hash functions, so the seed is public. The error bounds need
it independent of the data: choosing a seed after looking at the data would be a release of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from streamveil.compiled import njit
from streamveil.core.accounting import take_numbers
from streamveil.errors import PlanError, require_one_of
from streamveil.sketches.keys import Words
from streamveil.types import Array, UInt32, UInt64

Kind = Literal["count-min", "count-sketch"]
Family = Literal["multiply", "identity"]
KINDS: tuple[Kind, ...] = ("count-min", "count-sketch")
FAMILIES: tuple[Family, ...] = ("multiply", "identity")
WORD = 32
LARGEST_WIDTH = 2**30


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The shape of a table and its hash functions. All of it is public.

    Algorithm: `multiply`: h(x) = floor(r w / 2^32) with r the upper half of (a x + b) mod 2^64
        (Dietzfelbinger et al. 1997, multiply-shift), pairwise independent up to rounding on 32-bit
        keys; for Count Sketch one further bit is the sign. `identity`: the key itself, an exact
        table.

    Raises:
        PlanError: a setting is out of its range, or does not go with the others.

    >>> layout = Layout(kind="count-min", depth=3, width=1000, seed=7)
    >>> layout.columns(np.array([5, 5, 6], np.uint32)).shape
    (3, 3)
    """

    kind: Kind
    depth: int  # rows, >= 1
    width: int  # columns, 1 to 2**30
    seed: int = 0  # of the hash functions, public; any whole number
    family: Family = "multiply"  # of hash functions

    def __post_init__(self) -> None:
        take_numbers(self)
        require_one_of("kind", self.kind, KINDS)
        require_one_of("family", self.family, FAMILIES)
        for name, value, top in (("depth", self.depth, 64), ("width", self.width, LARGEST_WIDTH)):
            if not isinstance(value, int) or not 1 <= value <= top:
                raise PlanError(f"{name} must be an integer from 1 to {top}, not {value}")
        if self.family != "multiply" and self.kind == "count-sketch":
            raise PlanError(f"hash family '{self.family}' has no signs; use kind 'count-min'")
        if self.family == "identity" and self.depth != 1:
            raise PlanError("an exact table has depth 1")

    @property
    def signed(self) -> bool:
        """Whether keys have random signs (Count Sketch)."""
        return self.kind == "count-sketch"

    @property
    def cells(self) -> int:
        """Cells of the table."""
        return self.depth * self.width

    @cached_property
    def factors(self) -> UInt64[Array, "2 depth"]:
        """A (odd) and b of every row, from the public seed."""
        words = np.empty((2, self.depth), np.uint64)
        for row in range(self.depth):
            text = b"streamveil sketch %d row %d" % (self.seed, row)
            words[:, row] = np.frombuffer(hashlib.blake2b(text, digest_size=16).digest(), "<u8")
        words[0] |= np.uint64(1)
        return words

    @property
    def code(self) -> int:
        """The family and sign as a number for compiled loops."""
        return 3 if self.signed else FAMILIES.index(self.family)

    def places(self, words: Words) -> UInt32[Array, "depth keys"]:
        """Column of each key in each row; for Count Sketch twice the column plus the sign bit.

        Args:
            words: keys as words of 32 or 64 bits.

        Raises:
            PlanError: a key of an exact table is beyond its width.
        """
        out = np.empty((self.depth, len(words)), np.uint32)
        if self.family == "identity" and len(words) and int(words.max()) >= self.width:
            raise PlanError(f"every key of an exact table must be below its width {self.width}")
        find_places(words, self.code, self.width, self.factors, out)
        return out

    def columns(self, words: Words) -> UInt32[Array, "depth keys"]:
        """Column of each key in each row.

        Args:
            words: keys as words of 32 or 64 bits.
        """
        return self.places(words) >> np.uint32(self.signed)


@njit(cache=True)
def find_places(
    words: Words,
    code: int,
    width: int,
    factors: UInt64[Array, "2 depth"],
    out: UInt32[Array, "depth keys"],
) -> None:
    """`Layout.places` for compiled loops."""
    w = np.uint64(width)
    for row in range(len(out)):
        a, b = factors[0, row], factors[1, row]
        line = out[row]
        if code == 0:
            for q in range(len(words)):
                r = (a * np.uint64(words[q]) + b) >> np.uint64(32)
                line[q] = np.uint32((r * w) >> np.uint64(32))
        elif code == 3:
            for q in range(len(words)):
                v = a * np.uint64(words[q]) + b
                column = ((v >> np.uint64(33)) * w) >> np.uint64(31)
                line[q] = np.uint32(
                    (column << np.uint64(1)) | ((v >> np.uint64(32)) & np.uint64(1))
                )
        else:
            for q in range(len(words)):
                line[q] = np.uint32(words[q])
