"""Neighbours, losses, their composition and conversion. Here: a budget, as exact numbers."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TypeAlias

from streamveil.errors import fitting

Number: TypeAlias = int | float | Fraction | Decimal | str


def exact(name: str, value: Number) -> Fraction:
    """The number a person meant: a float or a text is read as the decimal it prints.

    >>> exact("epsilon", 0.1), exact("delta", "1e-9")
    (Fraction(1, 10), Fraction(1, 1000000000))
    """
    if type(value) is Fraction:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction | Decimal | str):
        raise ValueError(f"{name} must be a number, not {type(value).__name__}")
    if isinstance(value, int | Fraction):
        return Fraction(value)
    try:
        decimal = Decimal(repr(float(value)) if isinstance(value, float) else value)
        return Fraction(decimal)
    except (InvalidOperation, ValueError, OverflowError):
        raise ValueError(f"{name} must be a finite number, not {value}") from None


def exact_between(name: str, value: Number, low: Fraction | int, high: Fraction | int) -> Fraction:
    """`exact`, and strictly between the two ends."""
    number = exact(name, value)
    if not low < number < high:
        raise ValueError(f"{name} must be above {low} and below {high}, not {value}")
    return number


@dataclass(frozen=True, init=False)
class Budget:
    """The most that one privacy unit may lose to everything published. No defaults.

    Either (epsilon, delta); or epsilon alone (pure); or rho (zCDP); or mu (GDP). With rho or mu a
    delta may be added: it pays for what is not zCDP or GDP, such as the threshold of discovered
    keys. Floats are read as the decimals they print, so Budget(epsilon=0.3) is exactly 3/10.

    Args:
        epsilon: the privacy loss, above 0.
        delta: the probability that epsilon does not hold, between 0 and 1.
        rho: the loss in zero-concentrated differential privacy, above 0.
        mu: the loss in Gaussian differential privacy, above 0.

    Raises:
        ValueError: none or several of epsilon, rho and mu are given, or one is out of range.
        PlanError: an argument is missing or unknown; the message shows a call that works.

    >>> Budget(epsilon=6, delta=1e-9)
    Budget(epsilon=6, delta=1e-09)
    >>> Budget(epsilon=1, rho=1)
    Traceback (most recent call last):
    ...
    ValueError: a budget is epsilon (with or without delta), rho or mu; not epsilon and rho together
    """

    epsilon: Fraction | None
    delta: Fraction | None
    rho: Fraction | None
    mu: Fraction | None

    @fitting("Budget(epsilon=1, delta=1e-9), or rho=..., or mu=...")
    def __init__(
        self,
        *,
        epsilon: Number | None = None,
        delta: Number | None = None,
        rho: Number | None = None,
        mu: Number | None = None,
    ) -> None:
        given = {"epsilon": epsilon, "rho": rho, "mu": mu}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            fault = f"not {' and '.join(names)} together" if names else "none was given"
            raise ValueError(f"a budget is epsilon (with or without delta), rho or mu; {fault}")
        for name, value in given.items():
            number = None if value is None else exact_between(name, value, 0, 10**6)
            object.__setattr__(self, name, number)
        share = None if delta is None else exact_between("delta", delta, 0, 1)
        object.__setattr__(self, "delta", share)

    @property
    def quoted_delta(self) -> Fraction:
        """The delta at which losses are shown as an epsilon: its own, else 1e-9."""
        return self.delta or Fraction(1, 10**9)

    @property
    def is_pure(self) -> bool:
        """Whether only pure epsilon differential privacy fits."""
        return self.epsilon is not None and self.delta is None

    def __repr__(self) -> str:
        return f"Budget({self})"

    def __str__(self) -> str:
        named = {"epsilon": self.epsilon, "rho": self.rho, "mu": self.mu, "delta": self.delta}
        return ", ".join(f"{k}={float(v):.12g}" for k, v in named.items() if v is not None)

    def to_dict(self) -> dict[str, str]:
        """Exact numbers as text, for durable records."""
        named = {"epsilon": self.epsilon, "delta": self.delta, "rho": self.rho, "mu": self.mu}
        return {name: str(value) for name, value in named.items() if value is not None}

    @classmethod
    def from_dict(cls, saved: dict[str, str]) -> Budget:
        """The inverse of `to_dict`."""
        return cls(**{name: Fraction(value) for name, value in saved.items()})
