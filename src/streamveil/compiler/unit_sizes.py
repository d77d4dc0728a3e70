"""How many rows units have, beyond what stands out of the noise of a look."""

from __future__ import annotations

from functools import lru_cache
from math import expm1, sqrt
from typing import Any

import numpy as np

from streamveil.compiler.design_choice import USUAL_ROWS
from streamveil.compiler.expected_stream import MOST_ROWS
from streamveil.plan.look import CONCENTRATION, LAWS, MEAN_ROWS, VALUES
from streamveil.plan.options import EXPECTED_ROWS, EXPECTED_UNITS
from streamveil.types import Array, Float64, Int64

ROW_EDGES = np.unique(np.round(2.0 ** (np.arange(0, 41) / 2)))  # 1, 2, 3, 4, 6, 8, 11, ... 2^20
ROW_ENDS = np.append(ROW_EDGES[1:] - 1, 2 * ROW_EDGES[-1])
HEAVY = (3.0, 3.5, 4.0, 5.0, 6.5, 9.0, 14.0, 30.0)  # powers of laws that are fitted
EVEN = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 13.0, 17.0, 25.0, 60.0)  # gamma laws
SIZES = np.geomspace(0.1, 3_000, 80)  # b of powers
MEANS = np.geomspace(1, 400, 160)  # of gamma laws, about
MISFIT = 0.05  # share by which a bin may differ from every law that is fitted
MOSTLY_OWN = 0.5  # share of rows in groups of their own that makes a first release tell no others


def fitted_units(noisy: Int64[Array, " bins"], sigma: float) -> Float64[Array, " bins"]:
    """Units in each bin of rows by the law that fits noisy bins best: post-processing.

    Algorithm: of powers (n + b)^-heavy and gamma laws n^(even - 1) e^-cn, the one of the largest
        likelihood of all bins, those of noise alone too, given the number of units that fits it
        best, with Gaussian noise, the spread of a draw and `MISFIT` of the bin.

    >>> exact = 30_000 * bins_of_laws()[300]
    >>> fitted = fitted_units(np.round(exact).astype(np.int64), 50.0)
    >>> bool(np.abs(fitted - exact).max() < 1)
    True
    """
    laws = bins_of_laws()
    units = np.maximum(laws @ noisy, 0.0) / (laws**2).sum(axis=1)
    expected = units[:, None] * laws
    spread = sigma**2 + expected + (MISFIT * expected) ** 2
    fit = ((noisy - expected) ** 2 / spread + np.log(spread)).sum(axis=1)
    return np.asarray(expected[int(np.argmin(fit))])


@lru_cache(maxsize=1)
def bins_of_laws() -> Float64[Array, "laws bins"]:
    """The share of units in each bin, by each law that is fitted."""
    n = np.arange(1, MOST_ROWS + 1)
    place = np.searchsorted(ROW_EDGES, n, side="right") - 1
    first = np.searchsorted(place, np.arange(len(ROW_EDGES)))
    inside = first < MOST_ROWS
    logs = [-heavy * np.log((n + size) / (1 + size)) for heavy in HEAVY for size in SIZES]
    logs += [(even - 1) * np.log(n) - n / size for even in EVEN for size in MEANS / even]
    laws = np.exp(np.array(logs) - np.max(logs, axis=1)[:, None])
    laws /= laws.sum(axis=1)[:, None]
    found = np.zeros((len(laws), len(ROW_EDGES)))
    found[:, inside] = np.add.reduceat(laws, first[inside], axis=1)
    return found


def of_all_releases(known: dict[str, Any], releases: int, met: int | None = None) -> dict[str, Any]:
    """What a look at the rows of the first of some releases says of those of all of them.

    As many rows come in each, by the same law of groups. A law by which most of these rows are in
    groups of their own says nothing of other groups, which may be what later rows are in: where
    all do, groups are any usual ones. Of units it tells less: others may come in
    each release, or the same ones come back, at one rate each. At a rate of x in a release,
    x / (1 - exp(-x)) rows are expected of a unit that is there. Rows of a unit are these, those, or
    in between, as far as they are usual (`USUAL_ROWS`), and any usual ones where none of these is:
    a look at few units sees none that is there twice. Where a first release alone has more, units
    are devices rather than visitors: these, those and in between may all be, in groups as
    concentrated. The rows of one unit, in its period, come into `met` of these releases at most:
    into one, and it tells all of units, which are then others in each.

    >>> known = {"expected_units": 1000.0, "expected_rows": 1.7}
    >>> for name, value in of_all_releases(known, 10).items():
    ...     print(name, value)
    expected_units 1450.0
    expected_rows 11.8
    mean_rows [1.7, 4.47, 11.8]
    >>> of_all_releases(known, 1) == known
    True
    >>> of_all_releases(known, 10, met=1)
    {'expected_units': 10000.0, 'expected_rows': 1.7}
    """
    if releases == 1:
        return known
    laws = [law for law in known.get(LAWS, ()) if law.single < MOSTLY_OWN]
    kept = {name: told for name, told in {LAWS: laws, VALUES: known.get(VALUES)}.items() if told}
    units, rows = known[EXPECTED_UNITS.name], known[EXPECTED_ROWS.name]
    if met == 1:
        more = {EXPECTED_UNITS.name: float(f"{units * releases:.3g}")}
        return {name: told for name, told in known.items() if name != LAWS} | more | kept
    low, high = 0.0, rows
    for _ in range(60):
        rate = (low + high) / 2
        low, high = (rate, high) if rate / -expm1(-rate) < rows else (low, rate)
    again = max(rows, rate * (met or releases))
    every = (rows, sqrt(rows * again), again)
    least, most = USUAL_ROWS[0], USUAL_ROWS[-1]
    usual = [mean for mean in every if least <= mean <= most]
    usual = usual or [*(every if rows > most else USUAL_ROWS)]
    if rows > most and CONCENTRATION in known:
        kept[CONCENTRATION] = known[CONCENTRATION]
    found = {
        EXPECTED_UNITS.name: float(f"{units * rows * releases / usual[-1]:.3g}"),
        EXPECTED_ROWS.name: float(f"{usual[-1]:.3g}"),
        MEAN_ROWS: [float(f"{mean:.3g}") for mean in usual],
    }
    return found | kept
