"""Continual counters: running totals of integer streams, released privately after every step.

`COUNTERS` names every kind; `fit` gives a counter the least noise that keeps a budget. Each is
loaded when first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from streamveil.errors import PlanError

if TYPE_CHECKING:
    from streamveil.calibrate import fit
    from streamveil.core.counters import Counter, CounterState, CounterStream, skip
    from streamveil.core.counters.anytime import AnytimeBltCounter
    from streamveil.core.counters.blt import Blt, BltCounter, best_blt
    from streamveil.counters.choice import CounterChoice, choose
    from streamveil.counters.kary import KaryTreeCounter
    from streamveil.counters.tree import HonakerCounter

_CORE, _HERE = "streamveil.core.counters", "streamveil.counters"
_KINDS = {  # class and module by the name in a query
    "blt": ("BltCounter", f"{_CORE}.blt"),
    "anytime-blt": ("AnytimeBltCounter", f"{_CORE}.anytime"),
    "honaker": ("HonakerCounter", f"{_HERE}.tree"),
    "k-ary-tree": ("KaryTreeCounter", f"{_HERE}.kary"),
}
_HOMES = {
    **dict(_KINDS.values()),
    **dict.fromkeys(("Counter", "CounterState", "CounterStream", "skip"), _CORE),
    **dict.fromkeys(("Blt", "best_blt"), f"{_CORE}.blt"),
    **dict.fromkeys(("CounterChoice", "choose"), f"{_HERE}.choice"),
    "fit": "streamveil.calibrate",
}


def __getattr__(name: str) -> Any:
    """Loads what is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'streamveil.counters' has no attribute '{name}'")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """What there is, also where nothing has asked for it yet."""
    return __all__


class _Registry(Mapping[str, "type[Counter]"]):
    """Kinds of counters by name, each loaded when it is read."""

    def __getitem__(self, kind: str) -> type[Counter]:
        made: type[Counter] = __getattr__(_KINDS[kind][0])
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(_KINDS)

    def __len__(self) -> int:
        return len(_KINDS)


COUNTERS: Mapping[str, type[Counter]] = _Registry()
"""Every kind of counter by its name, as `counter = 'blt'` of a query gives it."""


def kind_of(counter: Counter) -> str:
    """The name of a counter's kind in `COUNTERS`.

    Raises:
        PlanError: the object is no counter of this package.

    >>> from streamveil.counters import BltCounter
    >>> kind_of(BltCounter(horizon=4, sigma=1))
    'blt'
    """
    named = type(counter).__name__
    found = [kind for kind, (name, _) in _KINDS.items() if name == named]
    if not found:
        raise PlanError(f"{named} is not a counter of this package: see COUNTERS")
    return found[0]


__all__ = [
    "COUNTERS", "AnytimeBltCounter", "Blt", "BltCounter", "Counter", "CounterChoice",
    "CounterState", "CounterStream", "HonakerCounter", "KaryTreeCounter", "best_blt", "choose",
    "fit", "kind_of", "skip",
]  # fmt: skip
