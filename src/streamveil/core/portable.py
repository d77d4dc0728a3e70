"""Numbers that are the same on every processor, though what they are computed with is not.

Additions, products, quotients and square roots have the same bits everywhere; `exp`, `log`, powers
and products of matrices do not: they use the vector instructions that there are, and differ in the
last digits. Whatever is computed with them and decides what a job publishes is kept with fewer
digits than differ, so that a job may go on on another machine.
"""

from __future__ import annotations

import numpy as np

from streamveil.types import Array

BITS = 24  # of last digits that differ by one in 2^50, one number in 2^26 is rounded otherwise


def portable(values: Array | float, bits: int = BITS) -> Array:
    """The nearest numbers of so many significant binary digits.

    >>> float(portable(0.1, 8)), float(portable(3.0))
    (0.10009765625, 3.0)
    """
    parts, powers = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(parts, bits)), powers - bits))
