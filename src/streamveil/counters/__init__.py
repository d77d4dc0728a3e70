"""Continual counters: running totals of integer streams, released privately after every step.

`COUNTERS` names every kind; `fit` gives a counter the least noise that keeps a budget.
"""

from __future__ import annotations

from streamveil.core.counters.anytime import AnytimeBltCounter
from streamveil.core.counters.blt import BltCounter
from streamveil.core.counters.fit import fit
from streamveil.core.counters.inputs import Quanta, VectorCounter
from streamveil.core.counters.protocol import Counter, CounterState
from streamveil.core.counters.rational import Blt, best_blt
from streamveil.core.counters.stream import CounterStream
from streamveil.core.counters.toeplitz import SqrtToeplitzCounter
from streamveil.counters.anytime_haar import AnytimeHaarCounter
from streamveil.counters.choose import Comparison, CounterChoice, choose, compare
from streamveil.counters.dense import DenseCounter
from streamveil.counters.haar import HaarCounter
from streamveil.counters.hybrid import HybridCounter
from streamveil.counters.kary import KaryTreeCounter
from streamveil.counters.participation import Participation, moved_by
from streamveil.counters.skip import skip
from streamveil.counters.smooth import SmoothTreeCounter
from streamveil.counters.tree import BinaryTreeCounter, HonakerCounter

COUNTERS: dict[str, type[Counter]] = {
    "blt": BltCounter,
    "anytime-blt": AnytimeBltCounter,
    "anytime-haar": AnytimeHaarCounter,
    "binary-tree": BinaryTreeCounter,
    "honaker": HonakerCounter,
    "hybrid": HybridCounter,
    "dense": DenseCounter,
    "smooth-tree": SmoothTreeCounter,
    "haar": HaarCounter,
    "k-ary-tree": KaryTreeCounter,
    "sqrt-toeplitz": SqrtToeplitzCounter,
}

__all__ = [
    "COUNTERS",
    "AnytimeBltCounter",
    "AnytimeHaarCounter",
    "BinaryTreeCounter",
    "Blt",
    "BltCounter",
    "Comparison",
    "Counter",
    "CounterChoice",
    "CounterState",
    "CounterStream",
    "DenseCounter",
    "HaarCounter",
    "HonakerCounter",
    "HybridCounter",
    "KaryTreeCounter",
    "Participation",
    "Quanta",
    "SmoothTreeCounter",
    "SqrtToeplitzCounter",
    "VectorCounter",
    "best_blt",
    "choose",
    "compare",
    "fit",
    "moved_by",
    "skip",
]
