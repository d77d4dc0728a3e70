"""Errors a caller can handle. No message ever holds a value taken from the data."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches


class StreamveilError(Exception):
    """Base of every error this package raises on purpose."""


class PlanError(StreamveilError, ValueError):
    """A query that cannot be run, or must not be: says what, why and the way out."""


class BudgetError(StreamveilError):
    """A charge that would overspend a ledger; nothing was drawn."""

    def __init__(self, message: str, *, asked: object = None, left: object = None) -> None:
        super().__init__(message)
        self.asked = asked  # losses, when the ledger refused
        self.left = left


class HorizonError(StreamveilError):
    """More steps than the guarantee covers."""

    def __init__(self, horizon: int) -> None:
        super().__init__(
            f"the guarantee covers {horizon} steps and all are taken.\n"
            "  to fix  open the mechanism with a larger horizon, or one that needs none"
        )
        self.horizon = horizon


class ReusedNoiseError(StreamveilError, ValueError):
    """Noise asked for a second time at one address; nothing was drawn."""

    def __init__(self, purpose: str, path: Iterable[int | bytes]) -> None:
        parts = (
            part.decode("ascii", "ignore") if isinstance(part, bytes) else part for part in path
        )
        super().__init__(
            f"the noise at address {'/'.join(map(str, (purpose, *parts)))} was drawn before: two"
            " releases with the same noise reveal the difference of their data.\n"
            "  to fix  pass on the state that the last step returned, or use a place of its own for"
            " each run"
        )


class StoreError(StreamveilError):
    """Durable state that cannot be read, written or trusted."""


class SourceError(StreamveilError):
    """A source that cannot be read: missing files, missing columns, wrong types."""


class MissingExtraError(StreamveilError, ImportError):
    """A feature whose optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the extra '{extra}'.\n  to fix  pip install 'streamveil[{extra}]'"
        )
        self.extra = extra


def require_positive(**numbers: object) -> None:
    """Raises ValueError naming the first argument that is not a finite number above zero."""
    for name, value in numbers.items():
        if not (isinstance(value, int | float) or hasattr(value, "numerator")):
            raise ValueError(f"{name} must be a number above 0, not {type(value).__name__}")
        if not 0 < value < float("inf"):  # type: ignore[operator]
            raise ValueError(f"{name} must be a finite number above 0, not {value}")


def require_between(low: float, high: float, **numbers: float) -> None:
    """Raises ValueError naming the first argument outside the closed interval [low, high]."""
    for name, value in numbers.items():
        if not low <= value <= high:
            raise ValueError(f"{name} must be between {low} and {high}, not {value}")


def require_one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Raises ValueError with the nearest known name when `value` is not one of `known`."""
    known = list(known)
    if value not in known:
        raise ValueError(f"unknown {name} '{value}'{nearest(value, known)}")


def nearest(word: str, known: Collection[str]) -> str:
    """A sentence end: '; did you mean X?' or the list of what is known."""
    spelled = {name.lower(): name for name in sorted(known)}
    close = get_close_matches(word.lower(), spelled, n=1, cutoff=0.6)
    if close:
        return f"; did you mean '{spelled[close[0]]}'?"
    return f"; known: {', '.join(sorted(known))}"
