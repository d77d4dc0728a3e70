"""The choice of a mechanism for a table by proved or expected errors, and whether it is useful.

Everything here is computed from public numbers before any data is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from streamveil.core.accounting import Budget, take_numbers
from streamveil.dynamic.baselines import Rerun, TwoStream
from streamveil.dynamic.buckets import Repaired
from streamveil.dynamic.continual_mwem import ContinualMwem
from streamveil.dynamic.insertion_only import InsertionOnly
from streamveil.dynamic.interval_tree import FullyDynamic
from streamveil.dynamic.protocol import DynamicMechanism
from streamveil.dynamic.signed_counter import SignedCounter, TreeCounter, counter_of
from streamveil.dynamic.trees import Accumulator, Hybrid, accumulator, levels
from streamveil.errors import (
    require_between,
    require_flag,
    require_one_of,
    require_positive,
    require_with,
)
from streamveil.linear.budget_shares import Share
from streamveil.linear.mwem import Mwem
from streamveil.linear.protocol import size_tail
from streamveil.linear.queries import Queries, require_queries
from streamveil.linear.sums import best_strategy
from streamveil.types import Exact

Preset = Literal["practical", "theorem"]
USELESS = 0.25  # an error above this part of all records says less than guessing
BETA = 0.05
UNKNOWN = 1 << 20  # steps that stand for an unknown horizon in forecasts


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Public facts about a table before it is read. Expected numbers need not be exact.

    Raises:
        PlanError: a setting is out of its range.

    >>> from streamveil.linear import Marginals
    >>> cells = Marginals.ways((2, 2), 1)
    >>> table = Workload(queries=cells, size=3000, steps=1024, updates=1_500_000)
    >>> table.horizon, table.turnover
    (1024, 250.0)
    """

    queries: Queries  # the class of queries to answer
    size: float  # records in the table at the time that matters most, > 0
    steps: int | None  # public steps, >= 1; None: unknown
    updates: float  # insertions and deletions over all steps, > 0
    grows: bool = False  # nothing is ever deleted
    retention: int | None = None  # steps within which every record is deleted, >= 1

    def __post_init__(self) -> None:
        take_numbers(self)
        require_queries(self.queries)
        require_positive(size=self.size, updates=self.updates)
        require_flag(grows=self.grows)
        if self.steps is not None:
            require_positive(steps=self.steps)
        if self.retention is not None:
            require_positive(retention=self.retention)

    @property
    def horizon(self) -> int:
        """The number of steps that forecasts assume."""
        return self.steps or UNKNOWN

    @property
    def turnover(self) -> float:
        """How often the whole table was replaced."""
        return self.updates / (2 * self.size)


@dataclass(frozen=True)
class Candidate:
    """A mechanism with its errors, in records: the worst over all queries, late in the stream."""

    name: str
    mechanism: Any
    proved: float  # with probability 0.95, in any step; inf: nothing is proved
    expected: float  # measured on synthetic tables and scaled; not a promise
    why: str


@dataclass(frozen=True)
class MechanismChoice:
    """All candidates, best first.

    >>> from streamveil.linear import Marginals
    >>> cells = Marginals((2, 2), ((0,), (1,)))
    >>> found = choose(Workload(queries=cells, size=1e5, steps=24, updates=2e5), Budget(rho=0.5))
    >>> found.best is found.candidates[0], found.useful
    (True, True)
    """

    workload: Workload  # what was asked for
    preset: Preset  # 'theorem': ranked by proved errors; 'practical': by expected ones
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The recommended one."""
        return self.candidates[0]

    @property
    def useful(self) -> bool:
        """Whether the best error is below a quarter of the records."""
        return self._error(self.best) < self.limit

    @property
    def limit(self) -> float:
        """The error from which on answers are useless, in records."""
        return USELESS * self.workload.size

    def _error(self, candidate: Candidate) -> float:
        return candidate.proved if self.preset == "theorem" else candidate.expected

    def __str__(self) -> str:
        w = self.workload
        steps = f"{w.steps:,}" if w.steps else "unknown"
        lines = [
            f"{w.queries.size:,} queries over {w.queries.domain:,} points, about {w.size:,.0f} "
            f"records, {steps} steps, the table replaced {w.turnover:,.1f} times",
            f"{'mechanism':<20}{'proved (95%)':>14}{'expected':>12}{'of records':>12}  why",
        ]
        for c in self.candidates:
            proved = f"{c.proved:,.0f}" if c.proved < w.size else "> all of them"
            proved = "none" if math.isinf(c.proved) else proved
            part = c.expected / w.size
            lines.append(f"{c.name:<20}{proved:>14}{c.expected:>12,.0f}{part:>12.1%}  {c.why}")
        if not self.useful:
            lines.append(
                "None of these is useful here: the error is a quarter of the records or more. "
                "To fix: fewer steps, fewer or coarser queries, more records, or a larger budget."
            )
        return "\n".join(lines)


def choose(
    workload: Workload, budget: Budget, preset: Preset = "practical", part: Exact = 1
) -> MechanismChoice:
    """Recommends a mechanism and says why; 'theorem' ranks by what is proved.

    Args:
        workload: the queries, the size of the table, the releases and the updates.
        budget: what one record (or what the mechanism protects) may lose, over all releases.
        preset: 'practical' ranks by expected errors, 'theorem' by proved ones.
        part: fraction of the budget that mechanisms spend, in epsilon or rho (mu squared); above 0
            and at most 1.

    Raises:
        PlanError: the preset is unknown, or another argument is beyond its range.

    >>> from streamveil.linear import Marginals
    >>> cells = Marginals.ways((2,) * 9, 3)
    >>> table = Workload(queries=cells, size=3000, steps=1024, updates=1_500_000)
    >>> choice = choose(table, Budget(epsilon=1, delta=1e-6))
    >>> choice.best.name, choice.useful
    ('counter', True)
    """
    require_with("workload", workload, "queries", "a Workload")
    require_one_of("preset", preset, ("practical", "theorem"))
    require_positive(part=part)
    require_between(0, 1, part=float(part))
    found = [_counter(workload, Share.for_noise(budget).scale(part))]
    if budget.mu is None:  # what chooses or compares is not Gaussian
        share = Share.of(budget).scale(part)
        others = _growing if workload.grows else _changing
        found += others(workload, share, preset)
    best = sorted(found, key=lambda c: c.proved if preset == "theorem" else c.expected)
    return MechanismChoice(workload, preset, tuple(best))


def static_error(queries: Queries, size: float, share: Share, amount: float) -> float:
    """Expected worst error of `Mwem` at this budget: the theorem's shape, measured constants.

    The constants are medians over tables of 10^3 to 10^5 records drawn from mixtures (0.2 to 0.32
    and 0.12 to 0.18 were seen). The error is never above that of answers without any data, about
    0.35 of all records.
    """
    n, k = math.log(max(queries.domain, 2)), math.log(max(queries.size, 2))
    if share.kind == "pure":
        raw = 0.15 * size ** (2 / 3) * (n * k / amount) ** (1 / 3)
    else:
        raw = 0.25 * math.sqrt(size * math.sqrt(n) * k / math.sqrt(amount))
    return float(min(raw, 0.35 * size))


def _counter(w: Workload, share: Share) -> Candidate:
    """Signed changes through one counter, in the strategy with the least error."""
    strategy = best_strategy(w.queries, share.kind)
    mechanism = counter_of(strategy, share, w.steps, only_grows=w.grows)
    why = f"noise only ({type(strategy).__name__.lower()}), whatever the number of records"
    return counter_candidate(mechanism, mechanism, why)


def counter_candidate(
    counter: SignedCounter | TreeCounter, mechanism: DynamicMechanism, why: str
) -> Candidate:
    """A mechanism whose errors are those of a counter."""
    queries, kind = counter.queries.size, counter.share.kind
    if isinstance(counter, SignedCounter):
        deviation = counter.deviation(counter.horizon)
        proved = deviation * math.sqrt(2 * math.log(2 * queries / BETA))
    else:
        parts = most_parts(counter.inner, counter.horizon or UNKNOWN)
        node, count = _tree_parts(counter, counter.horizon or UNKNOWN)
        count = min(count, len(parts))
        deviation = node.deviation(1, 1) * counter.strategy.unit(kind) * math.sqrt(count)
        proved = mechanism_error(counter).union([(part, 0.0) for part in parts], BETA)
    expected = deviation * math.sqrt(2 * math.log(max(queries, 2)))
    return Candidate("counter", mechanism, proved, expected, why)


def mechanism_error(mechanism: TreeCounter) -> Any:
    """The error function of the noise inside a tree counter."""
    inner: Any = mechanism.inner
    return inner.static.error


def _tree_parts(mechanism: TreeCounter, steps: int) -> tuple[Share, int]:
    """The share of one released block, and how many blocks make an answer."""
    inner: Any = mechanism.inner
    depth = levels(steps, mechanism.arity)
    share = inner.share if mechanism.horizon else inner.share.scale(Fraction(4, 5))
    extra = 0 if mechanism.horizon else steps.bit_length()
    return share.scale(Fraction(1, depth)), (mechanism.arity - 1) * depth // 2 + extra + 1


def most_parts(inner: Accumulator, steps: int) -> list[Share]:
    """The shares of the releases in the answer that adds up most of them, of all up to a step."""
    if isinstance(inner, Hybrid):
        epoch = (steps + 1).bit_length() - 2  # the last one that is whole
        return [inner.share.scale(inner.root)] * epoch + most_parts(inner.tree(epoch), 2**epoch - 1)
    tree: Any = inner
    return [tree.node] * most_blocks(steps, tree.arity)


def most_blocks(steps: int, arity: int) -> int:
    """The most blocks that cover a number of steps up to this one: the largest sum of digits.

    >>> most_blocks(1, 8), most_blocks(511, 8), most_blocks(512, 8), most_blocks(100_000, 8)
    (1, 21, 21, 37)
    """
    powers: list[int] = [arity**place for place in range(1, levels(steps, arity))]
    ends = [steps, *(steps // power * power - 1 for power in powers)]
    return max(sum(end // power % arity for power in [1, *powers]) for end in ends)


def _growing(w: Workload, share: Share, preset: Preset) -> list[Candidate]:
    """A tree of static releases over disjoint batches."""
    static = Mwem(queries=w.queries, preset=preset)
    mechanism = InsertionOnly.dense(static, share, w.steps)
    depth = levels(w.horizon, 4)
    node = share.scale(Fraction(1, depth))
    proved = static.error.spread(most_parts(mechanism.inner, w.horizon), w.size, BETA)
    # blocks are geometric: the largest holds most records, with the budget of one level
    expected = 1.3 * static_error(w.queries, w.size, share, float(node.amount))
    why = "releases of disjoint batches add up; improves with the table"
    return [Candidate("tree of MWEM", mechanism, proved, expected, why)]


def _changing(w: Workload, share: Share, preset: Preset) -> list[Candidate]:
    static = Mwem(queries=w.queries, preset=preset)
    whole = float(share.amount)
    q, n = w.queries, w.size
    out = []
    releases = min(w.horizon, w.retention or w.horizon)
    if w.steps is not None or w.retention is not None:
        rerun = Rerun(
            static=static, share=share, retention=w.retention,
            steps=None if w.retention else w.steps,
        )  # fmt: skip
        out.append(Candidate(
            "rerun", rerun, static.error.alpha(rerun.part, n, BETA),
            static_error(q, n, share, whole / releases), f"{releases:,} releases share the budget",
        ))  # fmt: skip
    if w.steps is not None:
        rounds = 2
        continual = ContinualMwem(queries=q, share=share, horizon=w.steps, rounds=rounds)
        seen = static_error(q, n, share, whole * min(1.0, 5 / w.steps))
        out.append(Candidate(
            "continual MWEM", continual, math.inf, seen, "keeps its model; nothing is proved",
        ))  # fmt: skip
    tree = FullyDynamic.repaired(static, share, horizon=w.steps)
    depth = w.horizon.bit_length()
    seen = static_error(q, n, share, whole / (0.8 * max(depth, 1) ** 2.8))
    out.append(Candidate(
        "interval tree", tree, proved_tree(tree, n, w.horizon), seen,
        "error follows the records there are, not the updates",
    ))  # fmt: skip
    both = TwoStream(static=static, share=share, horizon=w.steps)
    half = share.scale(Fraction(1, 2 * levels(w.horizon, both.arity)))
    side = accumulator(static, share.scale(Fraction(1, 2)), w.steps, both.arity)
    pieces = 2 * most_parts(side, w.horizon)
    out.append(Candidate(
        "two streams", both, static.error.spread(pieces, max(w.updates, 1.0), BETA),
        math.sqrt(2) * static_error(q, w.updates / 2, share, float(half.amount)),
        "error of all updates so far",
    ))  # fmt: skip
    return out


def proved_tree(tree: FullyDynamic, size: float, steps: int) -> float:
    """The proved error of the interval tree when one bucket of each level is alive.

    Sizes: the releases behind an answer read at most 3 size + 3 (estimates + tests) records; see
    `Repaired`. Assumed: no bucket has lost more than half of its records in its last round, which
    no test ends.
    """
    bucket = tree.bucket
    assert isinstance(bucket, Repaired)  # noqa: S101  (built by `repaired`)
    parts, slack = [], 0.0
    depth = steps.bit_length()
    for level in range(1, depth + 1):
        share = tree.tree_share.scale(Fraction(2, 3 * depth))
        if tree.horizon:
            share = tree.level_share(level, depth)
        life = 2 ** (level - 1) - 1
        if not life:
            parts.append(share)
            continue
        weights = [Fraction(part) for part in bucket.split]
        first, base, gone, test = share.split(*weights)
        inner = levels(life, bucket.arity)
        parts.append(base.scale(Fraction(1, bucket.most_rounds)))
        parts += [gone.scale(Fraction(1, inner))] * ((bucket.arity - 1) * inner)
        chance = BETA / (4 * depth * life)
        slack += size_tail(first, chance) - 2 * 2 * math.log(chance) / float(test.epsilon)
    return tree.static.error.spread(parts, 3 * size + 3 * slack, BETA / 2)
