"""Sums over all steps so far from static releases over disjoint blocks of steps.

`Tree` serves a known number of steps, `Hybrid` any number. Both work with every static mechanism:
they only ever add released answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

from streamveil.core.accounting import take_numbers
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.noise import Place
from streamveil.dynamic.protocol import Bag
from streamveil.errors import HorizonError, PlanError, require_between, require_positive
from streamveil.linear.budget_shares import Share
from streamveil.linear.protocol import Part, QueryAnswers, StaticMechanism, combine, require_choices
from streamveil.types import Exact

LAST_EPOCH = 62


@dataclass(repr=False)  # secret: holds raw counts of its block
class TreeNode:
    """A released block of steps that may still become part of a larger one."""

    level: int
    bag: Bag
    answers: QueryAnswers


@dataclass(repr=False)  # secret
class TreeState:
    """The released blocks that cover all steps so far, longest first."""

    t: int = 0  # steps taken
    nodes: list[TreeNode] = field(default_factory=list)


@runtime_checkable
class Accumulator(Protocol):
    """Answers about the union of the batches of all steps so far."""

    @property
    def static(self) -> StaticMechanism:
        """What answers about one batch."""

    @property
    def loss(self) -> Loss:
        """The loss for one record in one batch."""

    def init(self) -> Any:
        """The state before the first step."""

    def step(self, state: Any, bag: Bag, place: Place) -> None:
        """Adds the batch of one step.

        Args:
            state: what `init` returned.
            bag: records of the step.
            place: where its noise is drawn, the same at every step and of no other run.

        Raises:
            HorizonError: all steps are over.
        """

    def answers(self, state: Any) -> QueryAnswers:
        """The answers about all batches; `state`: what `init` returned."""

    def parts(self, state: Any) -> list[Share]:
        """The shares of the releases whose sum is the answer; `state`: what `init` returned."""


def released(
    static: StaticMechanism, bag: Bag, share: Share, place: Place, size_hat: float | None = None
) -> QueryAnswers:
    """One release about a bag, without its synthetic histogram (only sums of answers are kept)."""
    histogram = bag.histogram(static.queries.domain)
    return QueryAnswers(static.release(histogram, share, place, size_hat).noisy)


def levels(horizon: int, arity: int) -> int:
    """The least number of levels whose tree has more than `horizon` leaves."""
    count = 1
    while arity**count <= horizon:
        count += 1
    return count


def require_tree(horizon: int | None, arity: int) -> None:
    """Raises PlanError unless the horizon and the arity can make a tree."""
    if horizon is not None:
        require_positive(horizon=horizon)
    if arity < 2:
        raise PlanError(f"arity must be at least 2, not {arity}")


@dataclass(frozen=True)
class Tree:
    """A tree of static releases over a known number of steps.

    Algorithm: the binary mechanism of Chan, Shi & Song (2011) with any arity and any static
        mechanism; a step releases the highest block that ends with it, and needs no other.
    Protects: streams whose batches differ in one record.
    Guarantee: the share.
    Proof: the blocks of one level are disjoint, so one record is in at most one release per level,
        each of share / levels. A release draws nothing before its block is complete: it loses that
        share after any past, also when batches react to releases (`accounts.ledger`).
    Error: a sum of at most (arity - 1) * levels releases.
    Memory: their raw counts and answers.

    Raises:
        PlanError: a setting is out of its range.
        HorizonError: a step after the last of `horizon`.

    >>> from streamveil.linear import Marginals, noisy_queries
    >>> tree = Tree(
    ...     static=noisy_queries(Marginals((2, 2), ((0,),))), share=Share("pure", 1), horizon=64)
    >>> str(tree.loss), tree.node.amount
    ('epsilon=1', Fraction(1, 4))
    """

    static: StaticMechanism  # what answers about one fixed table
    share: Share
    horizon: int  # steps that the guarantee covers, >= 1
    arity: int = 4  # children of a node of its tree, >= 2

    def __post_init__(self) -> None:
        take_numbers(self)
        require_tree(self.horizon, self.arity)
        require_choices(self.static, self.share)

    @property
    def loss(self) -> Loss:
        """See `Accumulator`."""
        return self.share.loss

    @property
    def node(self) -> Share:
        """What one release spends."""
        return self.share.scale(Fraction(1, levels(self.horizon, self.arity)))

    def init(self) -> TreeState:
        """See `Accumulator`."""
        return TreeState()

    def step(self, state: TreeState, bag: Bag, place: Place) -> None:
        """See `Accumulator`."""
        if state.t >= self.horizon:
            raise HorizonError(self.horizon)
        state.t += 1
        level, rest = 0, state.t
        while rest % self.arity == 0:
            level, rest = level + 1, rest // self.arity
        merged = [bag]
        while state.nodes and state.nodes[-1].level < level:
            merged.append(state.nodes.pop().bag)
        whole = Bag.sum(merged)
        answers = released(self.static, whole, self.node, place.inside(b"node", state.t))
        state.nodes.append(TreeNode(level, whole, answers))

    def answers(self, state: TreeState) -> QueryAnswers:
        """See `Accumulator`."""
        return combine([(1.0, node.answers) for node in state.nodes], self.static.queries.size)

    def parts(self, state: TreeState) -> list[Share]:
        """See `Accumulator`."""
        return [self.node] * len(state.nodes)


@dataclass(repr=False)  # secret
class HybridState:
    """One release per finished epoch, and the tree inside the current one."""

    t: int = 0  # steps taken
    roots: list[QueryAnswers] = field(default_factory=list)
    bag: Bag = field(default_factory=Bag)  # of the current epoch
    tree: TreeState = field(default_factory=TreeState)


@dataclass(frozen=True)
class Hybrid:
    """A tree of static releases over any number of steps.

    Algorithm: the hybrid mechanism of Chan, Shi & Song (2011): epoch e holds steps 2^e .. 2^(e+1)-1
        in a tree of its own for part 1 - r of the share; when it ends, one release of the whole
        epoch for part r replaces the tree. Published r = 1/2; a smaller r is better for long
        streams, about 1 / (1 + e^(2/3)).
    Protects: streams whose batches differ in one record.
    Guarantee: the share: a record lies in one epoch, in its tree and in its root.
    Error: a sum of e roots and at most (arity - 1) e nodes.

    Raises:
        PlanError: a setting is out of its range.
        HorizonError: a step after the last of `horizon`.

    >>> from streamveil.linear import Marginals, noisy_queries
    >>> tree = Hybrid(static=noisy_queries(Marginals((2, 2), ((0,),))), share=Share("pure", 1))
    >>> str(tree.loss), tree.tree(3).horizon
    ('epsilon=1', 7)
    """

    static: StaticMechanism  # what answers about one fixed table
    share: Share
    root: Exact = Fraction(1, 5)  # part of the share for the sum of a past epoch, in (0, 1)
    arity: int = 4  # children of a node of its tree, >= 2

    def __post_init__(self) -> None:
        take_numbers(self)
        require_tree(None, self.arity)
        require_choices(self.static, self.share)
        require_positive(root=self.root)
        if self.root >= 1:
            raise PlanError(f"root must be below 1, not {self.root}")

    @property
    def loss(self) -> Loss:
        """See `Accumulator`."""
        return self.share.loss

    def init(self) -> HybridState:
        """See `Accumulator`."""
        return HybridState()

    def tree(self, epoch: int) -> Tree:
        """The tree inside an epoch, without the epoch's last step, which the root answers.

        Args:
            epoch: doublings so far, from 0.

        Raises:
            PlanError: the epoch is beyond its range.
        """
        require_between(0, LAST_EPOCH, epoch=epoch)
        inner = self.share.scale(1 - Fraction(self.root))
        return Tree(self.static, inner, max(2**epoch - 1, 1), self.arity)

    def step(self, state: HybridState, bag: Bag, place: Place) -> None:
        """See `Accumulator`."""
        state.t += 1
        epoch = state.t.bit_length() - 1
        state.bag = Bag.sum([state.bag, bag])
        if state.t + 1 == 2 ** (epoch + 1):  # the epoch ends with this step
            share = self.share.scale(self.root)
            state.roots.append(
                released(self.static, state.bag, share, place.inside(b"root", epoch))
            )
            state.bag, state.tree = Bag(), TreeState()
        else:
            self.tree(epoch).step(state.tree, bag, place.inside(b"epoch", epoch))

    def answers(self, state: HybridState) -> QueryAnswers:
        """See `Accumulator`."""
        parts: Sequence[QueryAnswers] = [*state.roots, *(node.answers for node in state.tree.nodes)]
        return combine([(1.0, part) for part in parts], self.static.queries.size)

    def parts(self, state: HybridState) -> list[Share]:
        """See `Accumulator`."""
        epoch = max(state.t, 1).bit_length() - 1
        node = self.tree(epoch).node
        roots = [self.share.scale(self.root)] * len(state.roots)
        return roots + [node] * len(state.tree.nodes)


def accumulator(
    static: StaticMechanism, share: Share, horizon: int | None, arity: int
) -> Accumulator:
    """A tree if the number of steps is known, else a hybrid."""
    if horizon is None:
        return Hybrid(static, share, arity=arity)
    return Tree(static, share, horizon, arity)


@dataclass(frozen=True)
class Difference:
    """Insertions less deletions, added up separately: the `born` and the `gone` of a state."""

    side: Accumulator  # for insertions, and for deletions

    @property
    def loss(self) -> Loss:
        """The loss for one record, which enters each side once."""
        return self.side.loss + self.side.loss

    def step(self, state: Any, born: Bag, gone: Bag, place: Place) -> None:
        """Adds the insertions and deletions of one step."""
        self.side.step(state.born, born, place.inside(b"born"))
        self.side.step(state.gone, gone, place.inside(b"gone"))

    def answers(self, state: Any) -> QueryAnswers:
        """The answers about all insertions less all deletions."""
        born, gone = self.side.answers(state.born), self.side.answers(state.gone)
        return combine([(1.0, born), (-1.0, gone)], len(born.values))

    def parts(self, state: Any) -> list[Share]:
        """The shares of the releases of both sides."""
        return self.side.parts(state.born) + self.side.parts(state.gone)


def error_of(
    static: StaticMechanism, parts: Sequence[Share], beta: float, size: float = math.inf
) -> float:
    """The error of a sum of releases on disjoint parts of together `size` records.

    Infinite if the error grows with the size, and the size is private and was not paid for.
    """
    if static.adaptive and math.isinf(size):
        return math.inf
    if not parts:
        return 0.0
    if static.adaptive:
        return static.error.spread(parts, size, beta)
    nothing: list[Part] = [(share, 0.0) for share in parts]
    return static.error.union(nothing, beta)
