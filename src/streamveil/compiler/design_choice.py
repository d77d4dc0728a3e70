"""The design with the least forecast error: which selection, which bounds, which weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import inf, isqrt, sqrt
from typing import Any

from streamveil.compiler.error_forecast import ForecastNoise, Kind, Settings, forecast
from streamveil.compiler.expected_stream import ExpectedStream
from streamveil.core.selection.total_test import MOST_ROWS as MOST_TESTED
from streamveil.kept import kept

SQUARED = tuple(2.0 ** (place / 2) for place in range(63))  # squared rows: 1 to 2^31
LARGEST_WEIGHT = 127  # a row of the smallest weight costs one of so many squared quanta
WEIGHABLE = 31  # of these, up to 32,768: an entry weight has `LARGEST_WEIGHT` quanta at most
ROWS = tuple(sorted({round(2 ** (place / 6)) for place in range(121)}))  # 1, 2, 3, ... 2^20
REFERENCES = tuple(2.0 ** (place / 2) for place in range(-2, 13))  # times the opening
SHARES = (0.5, 0.55, 0.6, 0.64, 0.68, 0.72, 0.76, 0.8, 0.84, 0.88, 0.92)
SLOTS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
ENTERED = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, inf)  # groups of a unit
OPEN_BOUND = 2  # squared rows where a forecast sets the weights: only bound / weight^2 matters
UNKNOWN_OPENING = 8.0  # where every group is public: the unit of references
USUAL_SIZES = ((3e3, 30), (1e5, 30), (1e5, 1_000), (3e6, 1_000), (3e6, 30_000))
USUAL_STEEP, USUAL_REPEATS = (0.0, 1.4), (0.25,)
USUAL_ROWS = (1.5, 6.0, 30.0)  # of a unit on average, where nothing bounds them
FEWER_UNITS = 250  # drawn for each of many streams
MANY = 20  # in a family of so many streams, far steps try only some of them
FEW = 3  # one of so many streams is tried at far steps; coprime to the family's inner parts
WITHIN = 1.0  # weight of errors without cut rows, where every design cuts the same rows
BATCHES = 20.0  # assumed batches in which rows come; nobody knows how evenly (decision 5)
ROWS_OF_BOUND = 5.0  # a bound on rows is taken as the 99th percentile, five times the mean
Place = tuple[int, ...]  # in the grids of a design


@dataclass(frozen=True)
class Given:
    """The bounds that the query gives; None: open."""

    quadratic: float | None = None
    max_rows: float | None = None
    per_group: float | None = None
    groups: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether nothing bounds the rows of a unit."""
        return self.quadratic is None and self.max_rows is None

    @property
    def decides_rows(self) -> bool:
        """Whether every design cuts the same rows."""
        return self.quadratic is None and self.max_rows is not None


@dataclass(frozen=True)
class Problem:
    """The choice to be made, in public numbers alone."""

    family: tuple[ExpectedStream, ...]
    noise: ForecastNoise
    given: Given
    kinds: tuple[Kind, ...]
    weighted: bool  # whether groups may carry weights
    flat: bool = True  # whether they may carry none
    most_slots: int = 6  # hidden groups one unit is counted in, at most
    counted: bool = True  # one row of a unit in a group makes a unit there: one counter serves both
    single: bool = False  # there is one group alone
    groups: float = inf  # that there are, at most

    @property
    def heavy(self) -> bool:
        """Whether units may have more rows than the largest bound that weights can charge."""
        most = max(stream.most or ROWS_OF_BOUND * stream.rows for stream in self.family)
        return self.given.is_open and most**2 > SQUARED[WEIGHABLE - 1]

    @property
    def squared(self) -> tuple[float, ...]:
        """The bounds on squared rows that are tried."""
        return SQUARED if self.heavy else SQUARED[:WEIGHABLE]

    @property
    def weighable(self) -> tuple[float, ...]:
        """The same where groups carry weights, if they may."""
        return SQUARED[:WEIGHABLE] if self.weighted else self.squared

    @property
    def ways(self) -> tuple[Problem, ...]:
        """The problem with weights, if groups may carry them; without, if these allow few rows."""
        both = self.weighted and self.flat and self.heavy
        return (self, replace(self, weighted=False)) if both else (self,)

    @property
    def of_ratios(self) -> bool:
        """Whether means and quantiles are asked for, and nothing else."""
        return all(stream.ratio for stream in self.family)


def usual_family(given: Given) -> tuple[ExpectedStream, ...]:
    """The streams that a query without expectations may run on.

    They have 3,000 to 3 million units and 30 to 30,000 groups, all equal or with a long tail, and
    rows that rarely or often repeat a group of their unit. A bound tells roughly how many rows a
    unit has; without one, 1.5, 6 and 30 on average.
    """
    means: tuple[float, ...] = USUAL_ROWS
    if not given.is_open:
        most = given.max_rows or 2 * sqrt(given.quadratic or 1.0)
        means = (max(1.2, most / ROWS_OF_BOUND),)
    return tuple(
        ExpectedStream(
            units=units, rows=rows, groups=groups, steep=steep, repeats=repeats, drawn=FEWER_UNITS
        )
        for rows, (units, groups), steep, repeats in product(
            means, USUAL_SIZES, USUAL_STEEP, USUAL_REPEATS
        )
    )


@lru_cache(maxsize=64)
@kept(Settings)
def choose(problem: Problem) -> Settings:
    """The settings with the least mean cost over the family: for each design, descent on a grid.

    Algorithm: `Errors.cost` is a mean of logarithms, so a percent counts the same in every stream,
        and the least mean cost is the least mean regret. If every design cuts the same rows, these
        would hide how designs differ: so the cost without the cut rows of shown groups counts
        `WITHIN` times as much as the cost with all.
    """
    noise = problem.noise
    beside = {False: 1.0, True: WITHIN} if problem.given.decides_rows else {False: 1.0}

    @lru_cache(maxsize=4096)
    def cost(settings: Settings, every: int = 1) -> float:
        family = problem.family[::every] if len(problem.family) > MANY else problem.family
        made = {
            one: sum(
                part * forecast(one, settings, noise, bounded=bounded).cost
                for bounded, part in beside.items()
            )
            for one in dict.fromkeys(family)
        }
        return sum(made[one] for one in family) / len(family)  # more likely ones are there twice

    bounded = noise.people and problem.given.is_open and problem.given.groups is None
    grids = (entering_few(grid, problem.groups) if bounded else grid for grid in designs(problem))
    return min((descended(grid, cost) for grid in grids), key=cost)


@dataclass(frozen=True)
class Grid:
    """Settings by their places in some lists."""

    sizes: tuple[int, ...]
    start: Place
    at: Callable[[Place], Settings]
    moves: tuple[Place, ...]  # ways in which places are varied


def entering_few(grid: Grid, most: float) -> Grid:
    """The grid with a further dimension: how many groups a unit may enter, at most `most`."""
    tried = [*(groups for groups in ENTERED if groups < most), most]

    def at(place: Place) -> Settings:
        return replace(grid.at(place[:-1]), entered=tried[place[-1]])

    moves = (*((*move, 0) for move in grid.moves), (*(0 for _ in grid.sizes), 1))
    return Grid((*grid.sizes, len(tried)), (*grid.start, len(tried) // 2), at, moves)


def descended(grid: Grid, cost: Callable[[Settings, int], float]) -> Settings:
    """A place without a better one near it: far steps use some streams, near steps all."""
    place = grid.start
    for step, every in ((8, FEW), (4, FEW), (2, FEW), (1, 1)):

        def worse(at: Place, every: int = every) -> float:
            return cost(grid.at(at), every)

        best = min(near(grid, place, step), key=worse, default=place)
        while worse(best) < worse(place):
            place = best
            best = min(near(grid, place, step), key=worse, default=place)
    return grid.at(place)


def near(grid: Grid, place: Place, step: int) -> Iterator[Place]:
    """Places near one, both ways along every move."""
    for move in grid.moves:
        for way in (-step, step):
            found = tuple(at + way * by for at, by in zip(place, move, strict=True))
            if all(0 <= at < size for at, size in zip(found, grid.sizes, strict=True)):
                yield found


def designs(problem: Problem) -> Iterator[Grid]:
    """The designs that the query allows, each with its grid."""
    given, noise = problem.given, problem.noise
    bounds = Settings(
        kind="public", quadratic=given.quadratic or inf, max_rows=given.max_rows or inf,
        per_group=given.per_group or inf, entered=given.groups or inf,
    )  # fmt: skip
    ways = problem.ways
    if "table" in problem.kinds and noise.half:
        yield from (tabled(way, bounds) for way in ways)
    if "public" in problem.kinds:
        if given.is_open and problem.single:  # no other groups: weights would do what rows do
            yield Grid((len(ROWS),), (8,), lambda p: replace(bounds, max_rows=ROWS[p[0]]), ((1,),))
        else:
            yield from (public(way, bounds) for way in ways)
    if "gaussian" in problem.kinds:
        if not (given.is_open and problem.counted and given.per_group == 1):
            yield gaussian(bounds, problem.squared, counted=problem.counted)
        if given.is_open and problem.counted:
            yield Grid((len(problem.squared),), (8,), lambda p: Settings(
                kind="gaussian", max_rows=round(SQUARED[p[0]]), per_group=1), ((1,),))  # fmt: skip
    if "totals" in problem.kinds:
        same = problem.counted and given.per_group == 1  # as Gaussian, by the same counter
        if not same or "gaussian" not in problem.kinds:
            yield alone(bounds, problem.squared)
        if given.is_open and not problem.counted:
            yield alone(bounds, problem.squared, once=True)
    yield from one_row_each(problem, bounds)


def one_row_each(problem: Problem, bounds: Settings) -> Iterator[Grid]:
    """Designs without weights, with one row of a unit in a group: a mean needs no more."""
    if not (problem.given.is_open and problem.of_ratios):
        return
    table = "table" in problem.kinds and problem.noise.half and not problem.weighted

    def made(at: Place, **more: Any) -> Settings:
        return replace(bounds, max_rows=round(SQUARED[at[0]]), per_group=1, **more)

    if "public" in problem.kinds and not problem.single:
        yield Grid((len(problem.squared),), (8,), made, ((1,),))
    if "gaussian" in problem.kinds:
        yield Grid(
            (len(problem.squared), len(SHARES)), (8, 0),
            lambda at: made(at, kind="gaussian", share=SHARES[at[1]]), ((0, 1), (1, 0)),
        )  # fmt: skip
    if table:
        slots = sum(slots <= problem.most_slots for slots in SLOTS)
        yield Grid(
            (len(problem.squared), len(SHARES), slots), (8, 4, 1),
            lambda at: made(at, kind="table", share=SHARES[at[1]], slots=SLOTS[at[2]]),
            ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
        )  # fmt: skip


def tabled(problem: Problem, bounds: Settings) -> Grid:
    """Coins, with weights or without."""
    noise, is_open = problem.noise, problem.given.is_open

    def at(place: Place) -> Settings:
        rows, reference, share, slots = place
        made = replace(bounds, kind="table", slots=SLOTS[slots], share=SHARES[share])
        return weighed(made, rows, REFERENCES[reference] * noise.coins(SLOTS[slots], SHARES[share]))

    def weighed(made: Settings, rows: int, reference: float) -> Settings:
        if not problem.weighted:
            return replace(made, quadratic=SQUARED[rows]) if is_open else made
        return entering(made, problem.given, rows, reference)

    ways = [(0, 0, 1, 0), (0, 0, 0, 1)]
    if is_open or problem.weighted:
        ways += [(1, 0, 0, 0)]
    if problem.weighted:
        ways += [(0, 1, 0, 0), (1, 1, 0, 0), (1, 2, 0, 0)]
    slots = sum(slots <= problem.most_slots for slots in SLOTS)
    sizes = (len(problem.weighable), len(REFERENCES), len(SHARES), slots)
    return Grid(sizes, (6 if is_open else 0, 5, 4, 1), at, tuple(ways))


def entering(made: Settings, given: Given, rows: int, reference: float) -> Settings:
    """Settings with an entry weight for so many squared rows, and weights that fall beyond."""
    bound = round(given.quadratic or OPEN_BOUND)
    quadratic = max(SQUARED[rows] * (1.0 if given.is_open else bound), bound)
    whole = weight_quanta(bound)
    entry = max(1, round(whole * sqrt(bound / quadratic)))
    return replace(made, quadratic=bound * (whole / entry) ** 2, reference=reference, entry=entry)


def weight_quanta(bound: int) -> int:
    """The quanta of weight one under a bound on squared rows, so that a unit's sums fit a byte."""
    fits = max(0, 2**16 // bound - 1)
    return max(1, min(LARGEST_WEIGHT, isqrt(fits), 255 // (isqrt(bound) + 1)))


def public(problem: Problem, bounds: Settings) -> Grid:
    """No selection."""
    is_open = problem.given.is_open

    def at(place: Place) -> Settings:
        rows, reference = place
        if not problem.weighted:
            return replace(bounds, quadratic=SQUARED[rows]) if is_open else bounds
        return entering(bounds, problem.given, rows, REFERENCES[reference] * UNKNOWN_OPENING)

    ways = [(1, 0)] * (is_open or problem.weighted)
    ways += [(0, 1), (1, 1), (1, 2)] * problem.weighted
    return Grid(
        (len(problem.weighable), len(REFERENCES)), (6 if is_open else 0, 5), at, tuple(ways)
    )


def alone(bounds: Settings, squared: tuple[float, ...], *, once: bool = False) -> Grid:
    """The totals that are released, tested; `once`: with one row of a unit in a group."""
    whole, is_open = replace(bounds, kind="totals"), bounds.groups == inf
    testable = [size for size in squared if once or size <= MOST_TESTED**2]
    sizes = [round(size) for size in testable] if is_open else [0]

    def at(place: Place) -> Settings:
        size = sizes[place[0]]
        if once:
            return replace(whole, max_rows=size, per_group=1)
        return replace(whole, quadratic=size) if is_open else whole

    return Grid((len(sizes),), (8 if is_open else 0,), at, ((1,),))


def gaussian(bounds: Settings, squared: tuple[float, ...], *, counted: bool) -> Grid:
    """One counter of units beside one of rows, or for both where a unit has one row in a group."""
    if counted and (bounds.per_group == 1 or bounds.quadratic == 1):
        return Grid((1,), (0,), lambda _: replace(bounds, kind="gaussian"), ())
    is_open = bounds.groups == inf

    def at(place: Place) -> Settings:
        rows, share = place
        made = replace(bounds, kind="gaussian", share=SHARES[share])
        return replace(made, quadratic=SQUARED[rows]) if is_open else made

    return Grid((len(squared), len(SHARES)), (8, 0), at, ((0, 1), (1, 0)) if is_open else ((0, 1),))
