"""Continual counters: running totals of integer streams, released privately after every step.

`COUNTERS` names every kind; `fit` gives a counter the least noise that keeps a budget. Each is
loaded when first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamveil.calibrate import fit
    from streamveil.core.counters import Counter, CounterState, CounterStream, skip
    from streamveil.core.counters.anytime import AnytimeBltCounter
    from streamveil.core.counters.blt import BltCounter
    from streamveil.core.counters.rational import Blt, best_blt
    from streamveil.counters.choice import CounterChoice, choose
    from streamveil.counters.kary import KaryTreeCounter
    from streamveil.counters.tree import HonakerCounter

_CORE, _HERE = "streamveil.core.counters", "streamveil.counters"
_HOMES = {
    "AnytimeBltCounter": f"{_CORE}.anytime",
    "Blt": f"{_CORE}.rational",
    "BltCounter": f"{_CORE}.blt",
    "Counter": _CORE,
    "CounterChoice": f"{_HERE}.choice",
    "CounterState": _CORE,
    "CounterStream": _CORE,
    "HonakerCounter": f"{_HERE}.tree",
    "KaryTreeCounter": f"{_HERE}.kary",
    "best_blt": f"{_CORE}.rational",
    "choose": f"{_HERE}.choice",
    "fit": "streamveil.calibrate",
    "skip": _CORE,
}
_KINDS = {
    "blt": "BltCounter",
    "anytime-blt": "AnytimeBltCounter",
    "honaker": "HonakerCounter",
    "k-ary-tree": "KaryTreeCounter",
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
        made: type[Counter] = __getattr__(_KINDS[kind])
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
        ValueError: the object is no counter of this package.

    >>> from streamveil.counters import BltCounter
    >>> kind_of(BltCounter(horizon=4, sigma=1))
    'blt'
    """
    named = type(counter).__name__
    found = [kind for kind, name in _KINDS.items() if name == named]
    if not found:
        raise ValueError(f"{named} is not a counter of this package: see COUNTERS")
    return found[0]


__all__ = [
    "COUNTERS", "AnytimeBltCounter", "Blt", "BltCounter", "Counter", "CounterChoice",
    "CounterState", "CounterStream", "HonakerCounter", "KaryTreeCounter", "best_blt", "choose",
    "fit", "kind_of", "skip",
]  # fmt: skip
