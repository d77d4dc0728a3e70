"""Questions to a changing table between its steps: free where possible, paid where not.

A question is a set of points of the domain; its answer, how many records lie there.

RELEASED: it follows from the last release (sums of cells of a marginal): post-processing. Taken
where its proved error is not above that of an EASY answer.
EASY, HARD, EXHAUSTED: from `LivePmw`. A question that was answered since the last step is answered
again with the same number, in whatever words it comes. The noise of an answer is that of its
question and its step below a place that is the answer's own (`ChangingTable.ask`): what a restored
copy of a state is asked, then or later, does not come with the noise of another answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any

import numpy as np

from streamveil.core.noise import Place
from streamveil.core.noisy import Noisy, restored, values
from streamveil.dynamic.live_pmw import LivePmw
from streamveil.dynamic.pack import pack, unpack
from streamveil.dynamic.pmwg import PmwgState
from streamveil.dynamic.protocol import Changes
from streamveil.errors import PlanError
from streamveil.linear.structured import Marginals
from streamveil.types import Array, Bool, Float64

SPREAD = 0.01  # of each released marginal, when the synthetic table is fitted to it
FITTED = 1 << 24  # products of a fit: beyond, only the first marginal is used
TINY = 1e-300
QUESTION = "question/skeleton"  # in the delta of a question
Arrays = dict[str, Array]
Closed = tuple[int, Float64[Array, " k"], Float64[Array, " k"]]  # step, its answers, their reach


@dataclass(frozen=True, init=False)
class QuestionAnswer:
    """An answer: made of a number that may leave."""

    kind: str  # RELEASED, EASY, HARD or EXHAUSTED
    value: float
    reach: float  # with the confidence of the query, over all questions; inf: nothing is proved
    step: int  # the closed step it is about
    left: int | None  # about how many corrections are still paid for; None: no such budget

    def __init__(
        self, kind: str, found: Noisy[float], reach: float, step: int, left: int | None = None
    ) -> None:
        given = (kind, values(found), reach, step, left)
        for part, one in zip(fields(self), given, strict=True):
            object.__setattr__(self, part.name, one)


@dataclass(repr=False)  # secret: the records
class Asking:
    """The synthetic table, the last closed step and what was asked about it."""

    inner: PmwgState | None  # None: nothing but released answers
    t: int
    values: Float64[Array, " k"]
    reach: Float64[Array, " k"]
    count: int = 0  # questions compared since the beginning
    known: list[list[Any]] = field(default_factory=list)  # digest, kind, value, reach; this step

    def save(self) -> list[Any]:
        """As plain values and states that `pack` knows."""
        return [getattr(self, part.name) for part in fields(self)]


@dataclass(frozen=True)
class Questions:
    """What may be asked about a table whose release has rows `cells`."""

    cells: Marginals | None
    total: int | None  # the output that counts all records
    adaptive: LivePmw | None
    confidence: float

    def step(self, state: Asking | None, changes: Changes, closed: Closed, place: Place) -> Asking:
        """Ends a public step: new answers, and no question has been asked about it."""
        t, values, reach = closed
        inner = None if state is None else state.inner
        if self.adaptive is not None and self.total is not None and self.cells is not None:
            inner = self.adaptive.init(place) if inner is None else inner
            first = self.total * self.cells.size
            size = float(values[first : first + int(self.cells.starts[1])].sum())
            self.adaptive.step(inner, changes, size, place)
            cells = values[first : first + self.cells.size]
            inner.weights = fitted(inner.weights, self.cells, cells)
        return Asking(inner, t, values, reach, 0 if state is None else state.count)

    def ask(
        self, state: Asking, question: Bool[Array, " N"], place: Place
    ) -> tuple[QuestionAnswer, Arrays | None]:
        """One question, in place; also what changed, None when nothing did."""
        digest = hashlib.blake2b(np.packbits(question).tobytes(), digest_size=16).hexdigest()
        for known, kind, value, reach in state.known:
            if known == digest:
                found = restored(value)
                return QuestionAnswer(kind, found, reach, state.t, self._left(state)), None
        follows = self._released(state, question)
        if follows is not None and follows[1] <= self._easy(state):
            return QuestionAnswer("RELEASED", restored(follows[0]), follows[1], state.t), None
        if self.adaptive is None or state.inner is None:
            raise PlanError(
                "this question does not follow from what was released, and nothing is set aside "
                "for others.\n"
                "  to fix  give a part of the budget to questions (ask_share = 0.5), or add the "
                "question's columns to GROUP BY"
            )
        return self._adaptive(state, digest, question, place)

    def _easy(self, state: Asking) -> float:
        """The reach of the next answer that costs nothing but is not released: all public."""
        if self.adaptive is None or state.inner is None or state.inner.run is None:
            return inf
        return self.adaptive.reach(state.inner, "EASY", state.count + 1, 1 - self.confidence)

    def _left(self, state: Asking) -> int | None:
        """About how many corrections are still paid for; None: no such budget."""
        if self.adaptive is None or state.inner is None:
            return None
        return self.adaptive.left(state.inner)

    def _adaptive(
        self, state: Asking, digest: str, question: Bool[Array, " N"], place: Place
    ) -> tuple[QuestionAnswer, Arrays | None]:
        adaptive, inner = self.adaptive, state.inner
        assert adaptive is not None  # noqa: S101  (checked by `ask`)
        assert inner is not None  # noqa: S101
        before, here = inner.weights, place.inside(b"question", state.t, bytes.fromhex(digest))
        answer = adaptive.ask(inner, question.astype(np.float64), here)
        state.count += 1
        reach = adaptive.reach(inner, answer.kind, state.count, 1 - self.confidence)
        found = restored(float(answer.value or 0.0))
        value = values(found)
        state.known.append([digest, answer.kind, value, reach])
        moved = None if inner.weights is before else inner.weights
        changed = [
            state.known[-1], state.count, inner.run, inner.started, inner.hard, inner.meter, moved,
        ]  # fmt: skip
        delta = {f"question/{name}": array for name, array in pack(changed).items()}
        asked = QuestionAnswer(answer.kind, found, reach, state.t, adaptive.left(inner))
        return asked, delta

    def apply(self, state: Asking, delta: Mapping[str, Array]) -> None:
        """Repeats what `ask` did, from its delta."""
        arrays = {name.removeprefix("question/"): array for name, array in delta.items()}
        known, state.count, run, started, hard, meter, moved = unpack(arrays, list)
        state.known.append(known)
        inner = state.inner
        assert inner is not None  # noqa: S101  (only adaptive questions have a delta)
        inner.run, inner.started, inner.hard, inner.meter = run, started, hard, meter
        inner.weights = inner.weights if moved is None else moved

    def _released(self, state: Asking, question: Bool[Array, " N"]) -> tuple[float, float] | None:
        """The answer as a sum of released cells, and its reach: the sum of theirs."""
        cells = self.cells
        if cells is None or self.total is None:
            return None
        first = self.total * cells.size
        best: tuple[float, float] | None = None
        for place, attributes in enumerate(cells.sets):
            wanted = projected(question.reshape(cells.shape), attributes)
            if wanted is None:
                continue
            span = slice(first + int(cells.starts[place]), first + int(cells.starts[place + 1]))
            value = float(state.values[span][wanted].sum())
            reach = float(state.reach[span][wanted].sum())
            if best is None or reach < best[1]:
                best = value, reach
        return best


def fitted(
    weights: Float64[Array, " N"], cells: Marginals, values: Float64[Array, " cells"]
) -> Float64[Array, " N"]:
    """A distribution moved towards released marginals, one after another: post-processing.

    Algorithm: iterative proportional fitting (Deming & Stephan 1940). A little of each marginal is
        spread evenly, so that noise below zero takes no point out of the distribution for good.

    >>> both = Marginals((2, 2), ((0,), (1,)))
    >>> fitted(np.full(4, 0.25), both, np.array([100.0, 0, 50, 50])).round(4).tolist()
    [0.4975, 0.4975, 0.0025, 0.0025]
    """
    table = weights.reshape(cells.shape)
    used = len(cells.sets) if len(cells.sets) * len(weights) <= FITTED else 1
    for place, attributes in enumerate(cells.sets[:used]):
        wanted = np.maximum(values[cells.starts[place] : cells.starts[place + 1]], 0)
        if not wanted.any():
            continue
        wanted = (1 - SPREAD) * wanted / wanted.sum() + SPREAD / len(wanted)
        others = tuple(a for a in range(table.ndim) if a not in attributes)
        now = table.sum(axis=others, keepdims=True)
        table = table * (wanted.reshape(now.shape) / np.maximum(now, TINY))
    return np.asarray((table / table.sum()).reshape(-1))


def projected(mask: Bool[Array, "*shape"], attributes: tuple[int, ...]) -> Array | None:
    """The cells of a marginal that make up a set of points, or None when none do.

    >>> projected(np.array([[True, True], [False, False]]), (0,))
    array([ True, False])
    """
    others = tuple(a for a in range(mask.ndim) if a not in attributes)
    corner = tuple(slice(0, 1) if a in others else slice(None) for a in range(mask.ndim))
    return mask[corner].reshape(-1) if np.all(mask == mask[corner]) else None
