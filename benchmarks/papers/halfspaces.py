"""Halfspaces of a grid, as a class of linear queries whose structure replaces a matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamveil.linear.structured import Shape, check_shape
from streamveil.types import Array, Float64, Int64

CUTS = 1 << 27  # entries of the table of cut positions: half a gigabyte


@dataclass(frozen=True, eq=False)
class Halfspaces:
    """Points of a grid with normal . point >= offset. Coordinates are 0..size-1.

    Algorithm: along the longest axis a halfspace is a prefix or a suffix of every line of the grid,
        so one cumulative sum answers all; k * N / (longest axis) look-ups instead of k * N.

    >>> Halfspaces.of((2, 2), [[1.0, 1.0]], [1.0]).exact(np.array([1, 2, 3, 4]))
    array([9])
    """

    shape: Shape  # sizes of the axes of the domain
    normals: Float64[Array, "k d"]  # one row for each halfspace
    offsets: Float64[Array, " k"]  # where each begins, along its normal
    cuts: Array  # [k, lines] of int32: position along the axis where the halfspace begins
    shift: int = 0  # weights are multiples of 2**-shift, >= 0

    def __post_init__(self) -> None:
        lines = math.prod(self.shape) // max(self.shape)
        inside = np.all((self.cuts >= 0) & (self.cuts <= max(self.shape)))
        if self.cuts.shape != (len(self.offsets), lines) or not inside:
            raise ValueError("cuts are a position on each line: leave them to Halfspaces.of")

    @classmethod
    def of(cls, shape: Sequence[int], normals: object, offsets: object) -> Halfspaces:
        """From normals and offsets, all finite."""
        sizes = check_shape(shape)
        across = np.atleast_2d(np.asarray(normals, np.float64))
        start = np.asarray(offsets, np.float64).reshape(-1)
        if across.shape != (len(start), len(sizes)) or not len(start):
            raise ValueError(f"normals need one row of {len(sizes)} numbers per offset")
        if not (np.all(np.isfinite(across)) and np.all(np.isfinite(start))):
            raise ValueError("normals and offsets must be finite")
        lines = math.prod(sizes) // max(sizes)
        if lines * len(start) > CUTS:
            raise ValueError(f"{len(start)} halfspaces over {sizes} are too many: use fewer")
        return cls(sizes, across, start, cut_positions(sizes, across, start))

    @property
    def axis(self) -> int:
        """The longest axis."""
        return int(np.argmax(self.shape))

    @property
    def size(self) -> int:
        """See `Queries`."""
        return len(self.offsets)

    @property
    def domain(self) -> int:
        """See `Queries`."""
        return math.prod(self.shape)

    @property
    def l1(self) -> int:
        """At most all of them: a bound, rarely far off for halfspaces in all directions."""
        return self.size

    @property
    def l2_squared(self) -> int:
        """Weights are 0 or 1."""
        return self.l1

    @cached_property
    def upward(self) -> Array:
        """Whether the halfspace is a suffix of the lines of the longest axis."""
        return self.normals[:, self.axis] >= 0

    def exact(self, histogram: Int64[Array, " N"]) -> Int64[Array, " k"]:
        """See `Queries`."""
        return self._sums(histogram)

    def answers(self, histogram: Float64[Array, " N"]) -> Float64[Array, " k"]:
        """See `Queries`."""
        return self._sums(np.asarray(histogram, np.float64))

    def weights(self, index: int) -> Float64[Array, " N"]:
        """See `Queries`."""
        place = np.arange(self.shape[self.axis])[None, :]
        after = place >= self.cuts[index][:, None]
        lines = after if self.upward[index] else ~after
        other = [size for axis, size in enumerate(self.shape) if axis != self.axis]
        grid = np.moveaxis(lines.reshape([*other, -1]), -1, self.axis)
        return np.ascontiguousarray(grid).reshape(-1).astype(np.float64)

    def label(self, index: int) -> str:
        """See `Queries`."""
        return f"halfspace {index}"

    def _sums(self, histogram: Array) -> Array:
        lines = np.moveaxis(histogram.reshape(self.shape), self.axis, -1)
        lines = lines.reshape(-1, self.shape[self.axis])
        before = np.zeros((len(lines), lines.shape[1] + 1), histogram.dtype)
        np.cumsum(lines, axis=1, out=before[:, 1:])
        flat = before.reshape(-1)
        start = np.arange(len(lines)) * before.shape[1]
        below = np.empty(self.size, histogram.dtype)
        for at in range(0, self.size, 256):
            below[at : at + 256] = flat[start + self.cuts[at : at + 256]].sum(axis=1)
        return np.where(self.upward, histogram.sum() - below, below)


def cut_positions(shape: Shape, normals: Array, offsets: Array) -> Array:
    """For each halfspace and line: how many points of the line come before its boundary."""
    axis = int(np.argmax(shape))
    other = [np.arange(size) for a, size in enumerate(shape) if a != axis]
    across = np.delete(normals, axis, axis=1)
    grid = (
        np.stack([g.reshape(-1) for g in np.meshgrid(*other, indexing="ij")], axis=1)
        if other
        else np.zeros((1, 0))
    )
    length = shape[axis]
    cuts = np.empty((len(offsets), len(grid)), np.int32)
    for row, (normal, offset) in enumerate(zip(normals[:, axis], offsets, strict=True)):
        missing = offset - grid @ across[row]
        if normal == 0:
            cuts[row] = np.where(missing <= 0, 0, length)
        else:
            ratio = missing / normal
            edge = np.ceil(ratio) if normal > 0 else np.floor(ratio) + 1
            cuts[row] = np.clip(edge, 0, length)
    return cuts
