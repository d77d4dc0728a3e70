"""A counter without stored noise for streams without a known end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from streamveil.core.counters.anytime import FOREVER, root_squared_norm
from streamveil.counters.haar import (
    KeyedHaar,
    column_weights,
    variance_parts,
    weights_of_mean,
    weights_of_worst,
)
from streamveil.errors import require_positive
from streamveil.types import Array, Exact, Int64

LEVELS: Final = FOREVER.bit_length() - 1
LEADING = 7  # bits of a tested time that are tried in full


@dataclass(frozen=True, kw_only=True)
class AnytimeHaarCounter(KeyedHaar):
    """Running totals with noise drawn by address, whose horizon nobody knows.

    Algorithm: a weighted Haar basis (see `HaarCounter`) over 2^40 steps, with the level weights
        that minimise the largest ratio, over t up to `tuned`, to the square-root factorization
        made for horizon t.
    Protects: streams of a key that differ by d_t, through sum |d_t|; see `Counter`.
    Guarantee: mu-GDP, mu = moved * sensitivity / sigma, for 2^40 steps.
    Proof: as `HaarCounter`, which holds for any weights: the columns of all 2^40 steps have one
        norm, so a stream that ends early is protected no less.
    Error: at most 1.58 times the square-root factorization for known T = t up to 2^20 steps, 1.70
        times up to 2^30; beyond `tuned`, it grows like sqrt(t).
    Memory: 16 bytes per key: the exact total and a mark of the address.
    Numerics: as `HaarCounter`; a step draws up to 41 nodes.

    Raises:
        ValueError: a setting is out of its range, or increments are not one whole number per key.
        HorizonError: more than 2**40 steps.
        StoreError: `resume` is given arrays that are no state of such a counter.

    >>> counter = AnytimeHaarCounter(sigma=100, tuned=1000)
    >>> round(counter.sensitivity, 6), counter.needs_horizon
    (1.0, False)
    """

    sigma: Exact | float  # noise scale for sensitivity 1, quanta, > 0
    tuned: int = 2**20  # steps over which the error is near-optimal, 2 to 2**40

    def __post_init__(self) -> None:
        if not 2 <= self.tuned <= FOREVER:
            raise ValueError(f"tuned must be between 2 and 2**40 steps, not {self.tuned}")
        require_positive(sigma=self.sigma)

    @property
    def horizon(self) -> int:
        """2^40: not an end anyone reaches, but the basis needs one."""
        return FOREVER

    @property
    def levels(self) -> int:
        """40."""
        return LEVELS

    @property
    def weights(self) -> tuple[float, ...]:
        """w_0 (the whole), w_1 .. w_40."""
        return anytime_weights(self.tuned)

    @property
    def needs_horizon(self) -> bool:
        """Nothing depends on when the stream ends."""
        return False


@lru_cache(maxsize=16)
def anytime_weights(tuned: int) -> tuple[float, ...]:
    """Weights of column norm 1 with the least largest ratio at tested times up to `tuned`.

    Algorithm: as `best_weights`, each time's variance divided by its goal.
    """
    times = candidate_times(tuned)
    goals, norms = root_squared_norm(times) ** 2, np.array(column_weights(LEVELS))
    parts = [part / goals for part in variance_parts(times, LEVELS)]
    octaves = np.frexp(times.astype(float))[1]
    alike = [np.flatnonzero(octaves == octave) for octave in np.unique(octaves)]

    def worst(ratios: Array) -> set[int]:
        """That of every octave: all of them matter."""
        return {int(here[np.argmax(ratios[here])]) for here in alike}

    weights = weights_of_worst(parts, norms, weights_of_mean(parts, norms), worst, 1e-6)
    return tuple(map(float, weights / (weights @ norms)))


def candidate_times(tuned: int) -> Int64[Array, " times"]:
    """All short times; of long ones every start of `LEADING` bits, with tails that bend most.

    A tent is high where the bits below its level read 0111.. or 1000..; 0101.. serves all levels.
    """
    found = set(range(1, min(tuned, 2**LEADING) + 1)) | {tuned}
    for rest in range(1, tuned.bit_length() - LEADING + 1):
        full = 2**rest - 1
        tails = {0, 1, full // 3, full - full // 3, full // 2, full // 2 + 1, full}
        starts = range(2 ** (LEADING - 1), 2**LEADING)
        found |= {(start << rest) + tail for start in starts for tail in tails}
    return np.array(sorted(t for t in found if t <= tuned), np.int64)
