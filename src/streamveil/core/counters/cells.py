"""The continual counter inside every cell of a private sketch.

A cell receives one increment per push and shows its running total plus correlated noise. The noise
of push k is B z with z a Gaussian vector and B C the matrix of prefix sums; what one item can move
is the column norm of C. Chosen by name from `COUNTERS`:

    tree      binary tree (Chan, Shi & Song 2011; Dwork et al. 2010), one draw per push: exact node
              sums telescope away, so a cell keeps one noise total per level
    tree-prf  the same numbers; nodes are drawn again from their address instead of being kept
    blt-1/2   buffered linear Toeplitz (Dvijotham, McMahan, Pillutla, Steinke & Thakurta 2024,
              arXiv:2404.16706) with one or two buffers, fitted to the number of pushes
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np

from streamveil.errors import PlanError, require_one_of
from streamveil.types import Array, Float64

COUNTERS = ("blt-1", "blt-2", "tree", "tree-prf")
GRID = 2**20  # omega and theta are multiples of 1/GRID, so their products with states are exact
DESIGN = 1024  # pushes that an unbounded sketch is fitted to
LONGEST = 2**20  # pushes that an unbounded sketch may take
UP = 1 + 1e-12  # floats on the private path are rounded up by more than their error

# pushes: (omega, theta) of one buffer and of two, times GRID; minimises the largest error
FITS: dict[int, tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]] = {
    4: (((516281,), (825204,)), ((261137, 263151), (523280, 1047571))),
    8: (((480939,), (897055,)), ((182114, 341813), (442585, 972696))),
    16: (((437876,), (945787,)), ((238219, 284147), (557511, 1000739))),
    32: (((389698,), (980477,)), ((289578, 227205), (669483, 1020205))),
    64: (((336314,), (1004829,)), ((325327, 178896), (762413, 1032040))),
    128: (((282614,), (1021020,)), ((344202, 140567), (833463, 1038926))),
    256: (((233119,), (1031367,)), ((349492, 111008), (885699, 1042896))),
    512: (((190080,), (1037847,)), ((345387, 88122), (924002, 1045215))),
    1024: (((153901,), (1041877,)), ((334781, 69875), (952972, 1046596))),
    2048: (((124029,), (1044384,)), ((319246, 55038), (975480, 1047423))),
    4096: (((99616,), (1045949,)), ((300044, 43007), (993022, 1047911))),
    8192: (((79800,), (1046928,)), ((278451, 33371), (1006577, 1048196))),
    16384: (((63798,), (1047541,)), ((255655, 25751), (1016943, 1048359))),
    32768: (((50924,), (1047925,)), ((232645, 19791), (1024802, 1048453))),
    65536: (((40599,), (1048167,)), ((210171, 15166), (1030726, 1048506))),
}


@dataclass(frozen=True)
class CellCounter:
    """One counter of a cell, for `pushes` pushes or (None) for any number up to `LONGEST`.

    Error: push k has standard deviation `sigma` times `sketches.cell_noise.row_norm` of k, sigma
        being `column_norm` times the noise that a single release would need.
    Memory: `words` integers per cell besides the pending and the shown count.

    >>> round(CellCounter("tree", 128).column_norm ** 2, 9)
    8.0
    >>> round(CellCounter("blt-1", 128).column_norm, 3)
    1.549
    """

    name: str
    pushes: int | None

    def __post_init__(self) -> None:
        require_one_of("counter", self.name, COUNTERS)
        if self.pushes is not None and not 1 <= self.pushes <= LONGEST:
            raise PlanError(f"a cell takes from 1 to {LONGEST} pushes, not {self.pushes}")

    @property
    def is_tree(self) -> bool:
        """Whether noise sits on the nodes of a binary tree."""
        return self.name.startswith("tree")

    @property
    def code(self) -> int:
        """The counter as a number for compiled loops."""
        return {"blt-1": 0, "blt-2": 0, "tree": 1, "tree-prf": 2}[self.name]

    @property
    def levels(self) -> int:
        """Most published tree nodes over one push (known horizon), or levels ever kept."""
        return (LONGEST if self.pushes is None else self.pushes).bit_length()

    @property
    def words(self) -> int:
        """Integers of state per cell."""
        return {"blt-1": 1, "blt-2": 2, "tree": self.levels, "tree-prf": 0}[self.name]

    @cached_property
    def coefficients(self) -> tuple[Float64[Array, " buffers"], Float64[Array, " buffers"]]:
        """Omega and theta of the fit nearest from above."""
        wanted = DESIGN if self.pushes is None else self.pushes
        size = next((n for n in FITS if n >= wanted), max(FITS))
        omega, theta = FITS[size][self.words - 1]
        return np.array(omega) / GRID, np.array(theta) / GRID

    @cached_property
    def column_norm(self) -> float:
        """s(C): how much further than a single release one unit change moves the encoder.

        Proof: tree: a leaf lies under at most bit_length(n) published nodes. BLT: the first column
            of C is 1, then sum_i omega_i theta_i^(k-1); its norm increases with length, and all
            other columns are shifted starts of it. Unbounded: the geometric series for BLT; for the
            tree every epoch scales its own sigma (see `epoch_factors`), so 1.
        """
        if self.is_tree:
            return (
                1.0 if self.pushes is None else sqrt(self.levels) * (UP if self.levels > 1 else 1)
            )
        omega, theta = self.coefficients
        products = omega[:, None] * omega[None, :]
        ratios = theta[:, None] * theta[None, :]
        series = products / (1 - ratios)
        if self.pushes is not None:
            series = products * (1 - ratios ** (self.pushes - 1)) / (1 - ratios)
        return sqrt(1 + float(series.sum())) * UP

    @cached_property
    def epoch_factors(self) -> Float64[Array, " epochs"]:
        """Noise of each epoch relative to sigma: one epoch when the horizon is known.

        An unbounded tree starts anew at pushes 1, 2, 4, 8, ...: the tree of 2^e pushes has e + 1
        levels. One item lies in one epoch, so the budget is not divided.
        """
        if not self.is_tree or self.pushes is not None:
            return np.ones(1)
        return np.sqrt(np.arange(1, LONGEST.bit_length() + 1)) * UP

    def rounding_norm(self, unit: float) -> float:
        """Largest extra change of the encoder in one cell because buffers are kept in units.

        Proof: two runs that differ in one increment share all later noise. A buffer is replaced by
            theta times itself, rounded up to a unit, plus the noise; clamping moves no two values
            apart. Their difference beyond the exact one thus grows by at most one unit a step (two
            without a horizon, where buffers are so long that the product is rounded as well),
            while it shrinks by theta: at most unit/(1 - theta). The encoder reads omega times it,
            in each of the remaining pushes. (1 + 2^-16) covers the rounding of the
            double-precision centre.
        """
        if self.is_tree:
            return 0.0
        omega, theta = self.coefficients
        each = float((omega * unit / (1 - theta)).sum()) * (1 + 2.0**-16)
        each *= 1 if self.pushes else 2
        return sqrt(self.pushes or LONGEST) * each * UP
