"""Continual counters: running totals of integer streams, released privately after every step.

`COUNTERS` names every kind; `fit` gives a counter the least noise that keeps a budget.
"""

from __future__ import annotations

from streamveil.mechanisms.counters.anytime import AnytimeBltCounter
from streamveil.mechanisms.counters.anytime_haar import AnytimeHaarCounter
from streamveil.mechanisms.counters.blt import BltCounter
from streamveil.mechanisms.counters.choose import Comparison, CounterChoice, choose, compare
from streamveil.mechanisms.counters.dense import DenseCounter
from streamveil.mechanisms.counters.fit import fit
from streamveil.mechanisms.counters.haar import HaarCounter
from streamveil.mechanisms.counters.hybrid import HybridCounter
from streamveil.mechanisms.counters.inputs import Quanta, VectorCounter
from streamveil.mechanisms.counters.kary import KaryTreeCounter
from streamveil.mechanisms.counters.participation import Participation, moved_by
from streamveil.mechanisms.counters.protocol import Counter, CounterState
from streamveil.mechanisms.counters.rational import Blt, best_blt
from streamveil.mechanisms.counters.skip import skip
from streamveil.mechanisms.counters.smooth import SmoothTreeCounter
from streamveil.mechanisms.counters.stream import CounterStream
from streamveil.mechanisms.counters.toeplitz import SqrtToeplitzCounter
from streamveil.mechanisms.counters.tree import BinaryTreeCounter, HonakerCounter

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
