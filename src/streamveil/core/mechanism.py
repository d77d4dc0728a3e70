"""The one place that composes: from bounds, shapes and noise scales to a mechanism and its loss.

A compiler decides a `MechanismDesign`: what is summed, what limits a unit, how much noise each sum
gets, how groups are discovered. A `Mechanism` is that design over the triggers of a window.
Whatever noise depends on is derived here: how far one unit moves each sum and in how many groups,
for how many triggers each counter is made, in how many hidden groups a unit is counted, which sum
is read from the counter that discovers groups, and what all of it loses. None of these is a field.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

from streamveil.core.accounting import take_numbers
from streamveil.core.accounting.guarantee import Loss
from streamveil.core.accounting.sequel import Sequel
from streamveil.core.counters import Counter, check_noise, l2_loss
from streamveil.core.release import WeightRule, blt_of, weighted_loss
from streamveil.core.selection import Counted, Selection
from streamveil.core.selection.coins import CoinSelection
from streamveil.core.selection.gaussian import GaussianSelection
from streamveil.core.selection.total_test import TotalsAlone, TotalTest, TotalTesting
from streamveil.core.sensitivity import Bounds, Lane, is_units, lane_move, root_up
from streamveil.types import Exact

if TYPE_CHECKING:
    from streamveil.core.counters.restarting_trees import RestartingTrees

COLLISION_BITS = 64  # of the fingerprint of a unit
BASE, BANDS = 4, 6  # band j holds 4^j cut rows of a unit: 1, 4, 16, 64, 256, 1,024
REACH = BASE ** (BANDS - 1)  # quanta by which one unit moves any band: a row counts 4^(5 - j) in it
MOVED = REACH * root_up(Fraction(BANDS))  # in L2, of one unit over all bands and windows
MOST_CUT = (BASE**BANDS - 1) // (BASE - 1)  # cut rows of one unit that are counted: 1,365


class Discovery(Protocol):
    """How groups are discovered: settings that bounds and triggers do not imply."""

    @property
    def slots(self) -> int | None:
        """Hidden groups in which a unit is counted; None: as many as bounds let it enter."""

    def over(self, counted: Counted, bounds: Bounds, triggers: int | None) -> Selection:
        """The selection for these bounds and triggers; `counted` makes a counter for a noise."""


@dataclass(frozen=True)
class Look:
    """A survey of the rows that chose the settings of everything after it.

    Guarantee: `loss` and `after` together. What was chosen may lose less. That is not claimed: a
        guarantee is one statement for all answers of the survey, and only the largest loss holds
        for each of them.
    Proof: the survey is Gaussian and loses `loss` (`runtime.survey`, `plan.look.divided`). `after`
        is fixed before it, and a choice that loses more is refused. Where all it may choose is
        Gaussian but for a delta, `after` adds to `loss`, whatever the survey said (Dong, Roth & Su
        2019 compose mechanisms of one trade-off function each, whatever earlier ones said; that of
        `after` is a Gaussian's, less delta); else `Sequel` says what both lose. Where windows keep
        periods of a unit apart, the survey loses at most n times `loss` to a unit in n of them
        (`runtime.survey.Survey`). What it chose then runs once for each, and each is below the one
        curve of `after`: n of them are below the curve of n such pairs, to which the proof of
        `Sequel` applies as it does to one. So both lose n times what they lose to a unit in one
        period.
    """

    loss: Loss
    after: Loss | Sequel  # the most that anything after it may lose; no chance
    said: tuple[str, ...] = ()  # its numbers, each with an interval

    def before(self, rest: Loss) -> Loss:
        """The loss of the survey and anything it might have chosen; `rest` is what it chose."""
        after = self.after
        if isinstance(after, Sequel) and self.loss != Loss(gaussian=after.look**2):
            raise ValueError(f"the sequel is of a look that loses mu = {float(after.look):g}")
        if rest.group_size > 1 or not after.admits(replace(rest, chance=Fraction(0))):
            raise ValueError(f"more than was set aside for what follows the look: {rest}")
        most = after if isinstance(after, Loss) else Loss(tables=((after, 1),))
        return self.loss + most + Loss(chance=rest.chance)


@dataclass(frozen=True, kw_only=True)
class CutCounter:
    """A continual private count of cut rows, in bands of how many of its rows a unit lost.

    Algorithm: the i-th cut row of a unit (in its scope) belongs to band j with
        (4^j - 1) / 3 < i <= (4^(j+1) - 1) / 3, of the window that the row is in. A row counts
        4^(5 - j) quanta, so that a unit that fills a band moves it by `REACH`, whichever band: many
        units that lose a row and one unit that loses a thousand are both seen, each with the noise
        that hides one unit. There is one continual counter per band and window. The rows of a
        hidden group are added by the release that publishes it, and never if it stays hidden.
    Protects: all rows of one unit within its scope.
    Guarantee: that of the Gaussian `counter`, moved by MOVED in MOST_CUT streams.
    Proof: a unit's rows alone decide which of its rows are cut, given public outputs (`Bounds`),
        and its cut rows are numbered through all windows of its scope: it adds at most 4^j rows of
        4^(5 - j) quanta to band j over all windows and triggers, `REACH` in sum, in any order:
        that the noise of a selection decides when a row is added, and whether at all, makes the
        stream adaptive, as that of totals that start when a group is shown. So the streams of all
        bands and windows move by at most REACH sqrt(BANDS) in the norm of `Counter.loss`, and the
        bands compose with all other lanes as one Gaussian mechanism. Each cut row may be in another
        window, and each stream that a unit moves adds slack: so its cut rows beyond the 1,365th are
        not counted, and it moves at most so many streams.
    Error: band j has the counter's deviation / 4^(5 - j) rows.
    Memory: 16 bytes for each unit with a cut row, and for each band of a hidden group with one.
    Numerics: those of the counter.
    """

    counter: Counter

    @property
    def loss(self) -> Loss:
        """The loss of all bands."""
        return l2_loss(self.counter, MOVED, MOST_CUT)


@dataclass(frozen=True, kw_only=True)
class MechanismDesign:
    """What a compiler decides. No field follows from another."""

    limits: Bounds  # on rows and on squared rows; no slots and no scale, which follow
    plain: tuple[Lane, ...]  # sums that rows are added to
    trees: tuple[tuple[Lane, int], ...] = ()  # a node and the levels of each
    counter: Counter  # the shape of all counters, Gaussian, whatever its noise and its horizon
    noises: tuple[Exact, ...]  # one for each sum with a counter of its own, a tree level being one
    selection: Discovery | None = None  # None: groups are public
    rule: WeightRule | None = None
    cut: Exact | None = None  # noise of the count of cut rows
    test: TotalTesting | None = None
    look: Look | None = None  # at the rows, before the first release
    max_units: int

    def __post_init__(self) -> None:
        take_numbers(self)
        if (self.limits.slots, self.limits.scale, self.limits.heaviest) != (None, 1, None):
            raise ValueError("slots follow from the selection, the scale from the weights")
        l2_loss(self.counter)  # refuses pure noise
        if any(lane.kind == "node" for lane in self.plain):
            raise ValueError("nodes of trees are no plain lanes")
        if any(lane.kind != "node" or levels < 1 for lane, levels in self.trees):
            raise ValueError("a tree is made of nodes, in one level or more")
        if self.rule is not None and blt_of(self.counter) is None:
            raise ValueError("weights need a BLT: other counters do not draw noise by weight")
        rows_count = bool(self.trees) or any(lane.kind != "units" for lane in self.plain)
        if self.rule is not None and self.limits.per_group is not None and rows_count:
            raise ValueError("a group's limit adds up weights: it is no number of rows")
        if self.test is not None and (self.selection is None or self.test.place < 0):
            raise ValueError("totals of public groups are not tested, nor a lane before the first")
        if self.max_units < 1:
            raise ValueError("max_units is at least 1")


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A design over the triggers of a window: everything that noise depends on, and the loss.

    Protects: all rows of one unit within its scope.
    Guarantee: `loss`.
    Proof: one unit moves a lane by at most `lane_move` in L2 over all groups, windows and triggers
        of its scope, so each counter in `counters` is one Gaussian mechanism, charged by
        `weighted_loss` for exactly that move; the nodes of a tree level are one lane spread out,
        under one counter, and none is missing. Where groups restart, a lane is counted by one
        tree for each group, whose leaves are its releases, and the counter pays for it
        (`RestartingTrees.paid_by`); there a unit is new in every round, so no lane may count units.
        A lane that holds what the counter of the selection counts (`is_units`) is read from it and
        draws nothing, so it costs nothing more. Every counter is made for `triggers` steps, and
        releases happen at no others. The selection, the test of totals and the count of cut rows
        are sized from the same bounds, and prove their own losses. The parts are composed
        adaptively (`Loss`); that another unit has its fingerprint is a chance.
        `GroupBy` proves what its stages must keep for this.
    """

    design: MechanismDesign
    triggers: int | None  # of a window; None: no end

    def __post_init__(self) -> None:
        take_numbers(self)
        if (have := len(self.design.noises)) != len(self.charged):
            raise ValueError(f"{len(self.charged)} lanes draw noise, and {have} have some")
        if self.restarts and any(lane.kind == "units" for lane in self.lanes):
            raise ValueError("a unit is new in every round: rounds count no units")
        _ = self.restarts and self.release_trees  # refuses what charges less than it runs

    @cached_property
    def rule(self) -> WeightRule | None:
        """The rule for the weights of groups."""
        return self.design.rule

    @cached_property
    def bounds(self) -> Bounds:
        """The limits, with the slots of the selection and the scale of the weights."""
        chosen, limits, rule = self.design.selection, self.design.limits, self.rule
        slots = None if chosen is None else chosen.slots
        weights = {} if rule is None else {"scale": rule.scale, "heaviest": rule.entry}
        return replace(limits, slots=slots, **weights)

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        """All sums: plain lanes, then the nodes of trees, level by level."""
        nodes = (
            replace(node, level=level, place=place)
            for node, levels in self.design.trees
            for level in range(1, levels + 1)
            for place in range(node.fan**level)
        )
        return (*self.design.plain, *nodes)

    @cached_property
    def selection(self) -> Selection | None:
        """What decides which groups are published; None where they are public."""
        chosen = self.design.selection
        return None if chosen is None else chosen.over(self.counted, self.bounds, self.triggers)

    @property
    def restarts(self) -> bool:
        """Whether a unit counts anew in a group that was selected: the group's next round."""
        return self.selection is not None and self.selection.restarts

    @cached_property
    def test(self) -> TotalTest | None:
        """The test of totals, for these bounds, lanes and counters."""
        asked, blts = self.design.test, tuple(map(blt_of, self.counters))
        if asked is None:
            return None
        if None in blts or not isinstance(self.selection, CoinSelection | TotalsAlone):
            raise ValueError("totals are tested beside coins or alone, where counters are BLTs")
        return TotalTest(
            counter=cast(Any, blts[asked.place]),
            lane=self.lanes[asked.place],
            place=asked.place,
            bounds=self.bounds,
            rule=self.rule,
            tests=asked.tests,
            beta=asked.beta,
            least_units=self.selection.offset + 1,
        )

    @cached_property
    def shared(self) -> int | None:
        """The place of the lane that is read from the selection's counter of units."""
        if not isinstance(self.selection, GaussianSelection):
            return None
        found = (p for p, lane in enumerate(self.design.plain) if is_units(lane, self.bounds))
        return next(found, None)

    @cached_property
    def charged(self) -> tuple[int, ...]:
        """Places of the lanes that draw noise; of a tree level its first node."""
        return tuple(
            place
            for place, lane in enumerate(self.lanes)
            if lane.place == 0 and place != self.shared
        )

    @cached_property
    def counters(self) -> tuple[Counter, ...]:
        """One for each lane; all nodes of a tree level have the same."""
        noises = dict(zip(self.charged, self.design.noises, strict=True))
        found: list[Counter] = []
        for place in range(len(self.lanes)):
            if place == self.shared:
                found.append(cast(GaussianSelection, self.selection).counter)
            else:
                found.append(self.counted(noises[place]) if place in noises else found[-1])
        return tuple(found)

    @cached_property
    def release_trees(self) -> tuple[RestartingTrees, ...]:
        """The trees that count each lane where groups restart; its counter pays for them."""
        # only the preset needs them
        from streamveil.core.counters.restarting_trees import RestartingTrees

        return tuple(map(RestartingTrees.paid_by, self.counters))

    def counted(self, noise: Exact) -> Counter:
        """A counter of the design's shape, with such noise, for all triggers."""
        check_noise(noise * (1 if self.rule is None else self.rule.scale))  # of the lightest key
        shape: Any = self.design.counter
        if shape.needs_horizon and self.triggers is None:
            raise ValueError("this counter needs to know the number of triggers")
        known = {"horizon": self.triggers} if shape.needs_horizon else {}
        return cast(Counter, replace(shape, sigma=noise, **known))

    @cached_property
    def cut(self) -> CutCounter | None:
        """The count of rows over the bound; None where they are not counted."""
        noise = self.design.cut
        return None if noise is None else CutCounter(counter=self.counted(noise))

    @cached_property
    def loss(self) -> Loss:
        """The sum of all parts; see the class."""
        design = self.design
        parts = [one.loss for one in (self.cut, self.selection, self.test) if one is not None]
        for place in self.charged:
            moved = lane_move(self.lanes[place], self.bounds)
            parts.append(weighted_loss(self.counters[place], *moved, self.rule))
        rest = Loss(chance=Fraction(design.max_units, 2**COLLISION_BITS)).compose(*parts)
        return rest if design.look is None else design.look.before(rest)
