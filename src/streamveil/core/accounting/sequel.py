"""A look at the data, and what it chose: what both lose, whichever choice it made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from math import ceil
from typing import Any

import numpy as np

from streamveil.core.accounting import convert, float_above, float_below
from streamveil.core.accounting.convert import CurvePoints, LossLaw, law_under
from streamveil.types import Array, Float64

NODES = np.array(
    [2**62, 32, 28, 24, 20, *range(16, -1, -1)]
)  # steps below epsilon, a quarter of the look
STEPS = 4  # in the look's mu, or more
SLACK = 1e-9  # relative, of heights: for floats


@dataclass(frozen=True)
class Sequel:
    """One curve above that of everything a look may choose, and the look's own loss.

    Algorithm: the curve is `delta` at `epsilon` and beyond. Below, at some nodes, it is that of a
        Gaussian of mu `steepest`, moved by a constant so that it has `delta` at `epsilon`. All of
        it is decided before the look.
    Protects: what the look and its sequel protect.
    Guarantee: (`epsilon`, `joint`); a `Loss` holds the look's mu and the sequel's law among tables.
    Proof: Let the look be mu-GDP and y what it says, and let d(y) run then. Write H_d(x) for the
        least upper bound of P_d(E) - e^x Q_d(E) over events E and both directions of neighbours,
        and h for the greatest H_d of all d that `admits` lets pass. As a function of e^x each H_d
        is convex, falls, starts at 1 and is at least 1 - e^x; so is h, which is therefore the curve
        of a pair of laws that dominates every d(y) (Zhu, Dong & Wang 2022, arXiv:2106.08567, who
        also prove that pairs compose where the second mechanism is chosen by what the first said).
        For a look with densities p and q this is one line: the integral over y of p(y) times the
        supremum of P_d(y)(E) - e^(x - l(y)) Q_d(y)(E), with l = log(p / q), is at most the mean of
        h(x - l), however y and d(y) hang together. What runs after the look may be interactive: P_d
        and Q_d are laws of its whole transcript. A maximum over d of means would not do: d may be
        flat where l is low and steep where it is high.
        *From the nodes to the curve.* `admits` compares at the nodes alone. h is convex in e^x and
        so below the hull of the heights there, of (0, 1), and of `delta` beyond the last: the curve
        of `law_under`, a pair that dominates the pair of h. `joint` is its product with the look.
        The chance of a loss is taken away first, once for the look and the sequel. Below the look's
        reach there is one more node, at 0, so that bounds at smaller epsilons are valid but coarse.
        It is left out where it would promise less than `delta`, and exclude what has that delta.
    Numerics: d is compared at a slightly lower epsilon than the node's, heights are raised by SLACK
        and are floats; the rest is that of `convert`.

    >>> sequel = Sequel(*(Fraction(text) for text in ("1", "5e-7", "0.03", "0.15")))
    >>> from streamveil.core.accounting.guarantee import Gdp
    >>> sequel.joint < 1e-6, sequel.admits(Gdp(0.22)), sequel.admits(Gdp(0.25))
    (True, True, False)
    """

    epsilon: Fraction
    delta: Fraction  # of what follows, at epsilon
    look: Fraction  # mu
    steepest: Fraction  # mu; what falls faster below epsilon must lie lower there

    distance = tilt = rare = Fraction(0)  # see `CoinTable`: this holds for what runs

    def __post_init__(self) -> None:
        if min(self.epsilon, self.look, self.steepest) <= 0 or not 0 < self.delta < 1:
            raise ValueError("a sequel needs numbers above 0, and a delta below 1")

    @cached_property
    def curve(self) -> tuple[CurvePoints, float]:
        """The curve that nothing that follows may exceed, and the step of its lattice."""
        places = ceil(STEPS * self.epsilon / self.look)
        step = float(self.epsilon) / places
        nodes = np.unique([0, *np.maximum(places - NODES, 0)])
        delta, at = float_above(self.delta), float_below(self.epsilon)
        gaussian = partial(convert.gaussian_delta, mu=float(self.steepest))
        reached = convert.smallest_epsilon(delta, lambda x: float(gaussian(np.array([x]))[0]))
        heights = np.maximum(gaussian(nodes * step - (at - reached)), delta) * (1 + SLACK)
        told = (nodes > 0) | (heights < 1 - delta)
        nodes, heights = nodes[told], np.minimum(heights[told], 1.0)
        return CurvePoints(np.exp(nodes * step), heights, nodes), step

    def admits(self, rest: Any) -> bool:
        """Whether a mechanism of this `Loss`, which has no chance, may follow."""
        return _admitted(self, rest)

    @cached_property
    def joint(self) -> float:
        """A delta of the look and anything that may follow, at epsilon, rounded up."""
        look = partial(convert.gaussian_delta, mu=float_above(self.look))
        return self.laws()[0].delta_at(float_below(self.epsilon), look)

    def laws(self) -> tuple[LossLaw, LossLaw]:
        """The loss laws of what follows, without the look, in both directions."""
        return (law_under(*self.curve),) * 2

    def to_dict(self) -> dict[str, Any]:
        """Exact numbers, for durable records."""
        return {name: str(value) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return f"what a look with mu={float(self.look):g} chose"


@lru_cache(maxsize=256)
def _admitted(sequel: Sequel, rest: Any) -> bool:
    """See `Sequel`."""
    points, step = sequel.curve
    least: Float64[Array, " nodes"] = points.places * step * (1 - 1e-12)
    pairs = zip(least[::-1].tolist(), points.heights[::-1].tolist(), strict=True)
    return all(rest.delta_at(at) <= high for at, high in pairs)
