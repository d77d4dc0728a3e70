"""Fixed queries over a table that only grows, in batches of public sizes: the default for them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from streamveil.core.accounting.guarantee import Loss
from streamveil.core.noise import Place
from streamveil.dynamic.insertion_only import InsertionOnly
from streamveil.dynamic.protocol import Bag
from streamveil.dynamic.schedulers import PUBLIC_SIZES
from streamveil.dynamic.trees import Accumulator, accumulator, released
from streamveil.errors import require_positive, require_with
from streamveil.linear.additive import Additive
from streamveil.linear.budget_shares import Share
from streamveil.linear.protocol import ErrorBound, QueryAnswers, StaticMechanism, combine
from streamveil.linear.queries import Queries
from streamveil.types import Array, Int64


@dataclass(frozen=True)
class PublicSizes:
    """A static mechanism that is told how many records it reads.

    Protects: tables that differ in one record replaced: their size is the same, hence public.
    Guarantee: that of the mechanism, which no longer pays for the size.
    """

    static: StaticMechanism

    @property
    def queries(self) -> Queries:
        """See `StaticMechanism`."""
        return self.static.queries

    @property
    def error(self) -> ErrorBound:
        """See `StaticMechanism`."""
        return self.static.error

    @property
    def adaptive(self) -> bool:
        """See `StaticMechanism`."""
        return self.static.adaptive

    def release(
        self,
        histogram: Int64[Array, " N"],
        share: Share,
        place: Place,
        size_hat: float | None = None,
    ) -> QueryAnswers:
        """See `StaticMechanism`; `size_hat` is not needed and not read."""
        return self.static.release(histogram, share, place, float(histogram.sum()))


@dataclass(repr=False)  # secret: `rest` holds raw counts
class FoundedState:
    """What is known of the first batch, and the accumulator of the others."""

    rest: Any
    first: QueryAnswers | None = None


@dataclass(frozen=True)
class Founded:
    """A release of the first batch by itself, and an accumulator over all later batches.

    Protects: streams whose batches differ in one record.
    Guarantee: the share, which `rest` must cost as well.
    Proof: a record lies in the first batch or in a later one, never in both: the releases about
        the first batch and those of `rest` read disjoint data.
    Error: that of `rest` plus one release with the whole share: the table one starts with is
        often as large as all that follows, and a plain tree would give it one level's part.
    """

    static: StaticMechanism
    share: Share
    rest: Accumulator

    def __post_init__(self) -> None:
        if self.rest.loss != self.share.loss:
            raise ValueError("the accumulator must cost the same share as the first release")

    @property
    def loss(self) -> Loss:
        """See `Accumulator`."""
        return self.share.loss

    def init(self) -> FoundedState:
        """See `Accumulator`."""
        return FoundedState(self.rest.init())

    def step(self, state: FoundedState, bag: Bag, place: Place) -> None:
        """See `Accumulator`."""
        if state.first is None:
            state.first = released(self.static, bag, self.share, place.inside(b"first"))
        else:
            self.rest.step(state.rest, bag, place.inside(b"rest"))

    def answers(self, state: FoundedState) -> QueryAnswers:
        """See `Accumulator`."""
        first = [] if state.first is None else [(1.0, state.first)]
        rest = (1.0, self.rest.answers(state.rest))
        return combine([*first, rest], self.static.queries.size)

    def parts(self, state: FoundedState) -> list[Share]:
        """See `Accumulator`."""
        first = [] if state.first is None else [self.share]
        return first + self.rest.parts(state.rest)


def growing(
    static: StaticMechanism, share: Share, *, steps: int | None = None, arity: int | None = None
) -> InsertionOnly:
    """The default for fixed queries over a growing table: the table there is, then batches.

    The first step brings the table one starts with, each later one a batch. Neighbours replace one
    record; sizes are public.

    Args:
        static: what answers about one fixed table.
        share: the budget of all steps together.
        steps: later batches at most; None: any number.
        arity: children of a node of the tree; `best_arity` if left out.

    Raises:
        ValueError: `steps` is below 1.

    >>> from streamveil.linear import Marginals, Mwem
    >>> table = growing(Mwem(queries=Marginals.ways((2, 2), 1)), Share("pure", 1), steps=12)
    >>> print(table.guarantee.protects.relation)
    event-change
    """
    require_with("share", share, "loss", 'a share such as Share("pure", 1)')
    if steps is not None:
        require_positive(steps=steps)
    if isinstance(static, Additive):
        static = replace(static, replaced=True)
    told = PublicSizes(static)
    arity = arity or (4 if steps is None else best_arity(steps))
    inner = Founded(told, share, accumulator(told, share, steps, arity))
    return InsertionOnly(inner=inner, static=told, protects=PUBLIC_SIZES)


def best_arity(steps: int) -> int:
    """The arity of a tree of releases over so many batches: few levels against few releases.

    A sum of (arity - 1) L releases with a share of 1/L each has a proved error in proportion to
    ((arity - 1) L^2)^(1/3) when that of one release grows like size^(2/3) / share^(1/3); this is
    minimised over the smallest arity for every number L of levels; fewer levels win ties.

    >>> best_arity(1), best_arity(64), best_arity(10**6)
    (2, 9, 4)
    """
    choices: list[tuple[int, int, int]] = []
    for count in range(1, max(2, steps.bit_length() + 1)):
        arity = max(2, math.floor(steps ** (1 / count)))
        while arity**count <= steps:
            arity += 1
        choices.append(((arity - 1) * count**2, count, arity))
    return min(choices)[2]
