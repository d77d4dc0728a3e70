"""An account kept outside the mechanisms: it sees every draw, its address and its scale.

It knows nothing of shares, meters and guarantees. What a draw costs follows from its law, its scale
and how far one record moves what the draw protects, which the address says. Meant for runs in which
one record is in everything that is drawn about.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

import numpy as np

from streamveil.core.noise import Draws, Noise, SeededNoise

LIBRARY = tuple(
    f"streamveil.{room}"
    for room in (
        "counters",
        "dynamic",
        "linear",
        "sketches",
        "core.counters",
        "core.measure",
        "core.selection",
    )
)
LAWS = ("discrete_laplace", "rounded_laplace", "rounded_gaussian", "exponential_choice")
SLACK = 1 + 1e-9


class OverspentError(AssertionError):
    """The draws so far cost more than the claim."""


class Heard:
    """Draws that know their address."""

    silent = False

    def __init__(self, inner: Draws, path: tuple) -> None:
        self.inner, self.path = inner, path
        self.words, self.words_for = inner.words, inner.words_for

    def at(self, purpose: str, *path: int | bytes) -> Heard:
        return Heard(self.inner.at(purpose, *path), self.path)


class Hearing:
    """Seeded noise whose draws know their address."""

    secure = False

    def __init__(self, seed: int) -> None:
        self.inner: Noise = SeededNoise(seed)

    def at(self, purpose: str, *path: int | bytes) -> Heard:
        return Heard(self.inner.at(purpose, *path), path)


@dataclass
class Account:
    """What the draws of a run cost one record, in the currency of the claim."""

    kind: str  # 'pure' or 'zcdp'
    claim: float
    unit: int = 1  # quanta of one record
    rows: Callable[[tuple, np.ndarray], float] | None = None  # cost of a vector, from its scales
    runs: dict[tuple, float] = field(default_factory=dict)  # epsilon of each sparse-vector run
    asked: set[tuple] = field(default_factory=set)  # runs of which a question was asked
    single: float = 0.0  # everything else

    @property
    def spent(self) -> float:
        """All draws so far."""
        return self.single + sum(self.of(epsilon) for epsilon in self.runs.values())

    def of(self, epsilon: float) -> float:
        """A pure mechanism in the currency of the claim."""
        return epsilon if self.kind == "pure" else epsilon**2 / 2

    def hear(self, law: str, path: tuple, scale: np.ndarray, sensitivity: float) -> None:
        """One draw; raises OverspentError as soon as the claim is passed."""
        if b"threshold" in path:
            run = path[: path.index(b"threshold")]
            self.runs[run] = self.runs.get(run, 0.0) + self.unit / float(scale)
        elif b"questions" in path:  # all of a run together cost one halt, which moves by two
            run = path[: path.index(b"questions")]
            if run not in self.asked:
                self.asked.add(run)
                self.runs[run] = self.runs.get(run, 0.0) + 2 * self.unit / float(scale)
        elif law == "exponential_choice":  # scale: epsilon at this sensitivity; a record moves 1
            epsilon = float(scale) / sensitivity
            self.single += epsilon if self.kind == "pure" else epsilon**2 / 8
        elif self.rows is not None and (np.ndim(scale) or is_vector(path)):
            self.single += self.rows(path, np.asarray(scale, float))
        elif law == "rounded_gaussian":
            self.single += self.unit**2 / (2 * float(scale) ** 2)
        else:
            self.single += self.of(self.unit / float(scale))
        if self.spent > self.claim * SLACK:
            raise OverspentError(f"{self.spent:.6g} of {self.claim:.6g}")


def is_vector(path: tuple) -> bool:
    """Whether a draw of one scale is about a vector."""
    return b"rows" in path or b"step" in path or isinstance(path[-1], int)


@contextmanager
def listening(account: Account):
    """Every sampler that a mechanism calls tells the account first."""

    def spy(law: str, honest: Callable) -> Callable:
        def draw(draws, *arguments, **named):
            place = {"exponential_choice": 1, "discrete_laplace": 0}.get(law, 1)
            sensitivity = float(arguments[2]) if law == "exponential_choice" else 1.0
            account.hear(law, draws.path, np.asarray(arguments[place], float), sensitivity)
            return honest(draws, *arguments, **named)

        return draw

    patches = [
        mock.patch.object(module, law, spy(law, getattr(module, law)))
        for name, module in list(sys.modules.items())
        if name.startswith(LIBRARY)
        for law in LAWS
        if hasattr(module, law)
    ]
    for patch in patches:
        patch.start()
    try:
        yield account
    finally:
        for patch in patches:
            patch.stop()
