"""A learned distinguisher: trained on half of the trials, judged on the other half."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.special import betaincinv

from streamveil.audit.pipeline import STRIDE, Scenario, is_answer, unbroken
from streamveil.batch import Batch, Release
from streamveil.core.noise import Noise
from streamveil.dataflow import Operator
from streamveil.errors import require_between, require_positive
from streamveil.types import Array, Float64

# ---- confidence bounds on the privacy loss

DELTAS = (1e-6, 1e-3, 0.01, 0.03, 0.05, 0.08, 0.1, 0.2, 0.4)  # where a claimed curve is compared


def clopper_pearson(hits: int, trials: int, alpha: float) -> tuple[float, float]:
    """An interval that misses the true probability with probability at most `alpha`.

    Source: Clopper and Pearson (1934), doi:10.1093/biomet/26.4.404.

    >>> [round(x, 4) for x in clopper_pearson(0, 100, 0.05)]
    [0.0, 0.0362]
    """
    require_positive(trials=trials, alpha=alpha)
    require_between(0, trials, hits=hits)
    low = float(betaincinv(hits, trials - hits + 1, alpha / 2)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 1 - alpha / 2)) if hits < trials else 1.0
    return low, high


@dataclass(frozen=True)
class EventCounts:
    """How often one event, fixed before these trials, happened under two neighbouring inputs."""

    event: str
    with_unit: int  # hits with the unit's rows
    without_unit: int
    trials: int  # on each side
    alpha: float  # chance that any bound derived from this finding is wrong

    def epsilon(self, delta: float) -> float:
        """The largest lower bound on ε at this δ that the counts prove; 0 when they prove nothing.

        (ε, δ)-DP demands p <= e^ε q + δ in both directions for the probabilities p, q of the event
        (and of its complement), so ε >= ln((p_low - δ) / q_high).
        """
        bounds = [0.0]
        a = clopper_pearson(self.with_unit, self.trials, self.alpha / 2)
        b = clopper_pearson(self.without_unit, self.trials, self.alpha / 2)
        sides = [(a, b), (b, a)]
        sides += [((1 - p[1], 1 - p[0]), (1 - q[1], 1 - q[0])) for p, q in sides]
        for (p_low, _), (_, q_high) in sides:
            if p_low > delta and q_high > 0:
                bounds.append(math.log((p_low - delta) / q_high))
        return max(bounds)

    def violates(
        self, claim: Callable[[float], float], deltas: Iterable[float] = DELTAS
    ) -> list[tuple[float, float, float]]:
        """Points (δ, proven ε, claimed ε) where the proof exceeds the claim; empty when sound."""
        points = [(delta, self.epsilon(delta), claim(delta)) for delta in deltas]
        return [(delta, proven, claimed) for delta, proven, claimed in points if proven > claimed]


# ---- a learned distinguisher

MAX_EVENTS = 32  # events fixed on the training half; the error probability is shared among them


@dataclass(frozen=True)
class Audit:
    """All findings of one attack. Each event was fixed before the trials that judge it."""

    findings: tuple[EventCounts, ...]

    def epsilon(self, delta: float) -> float:
        """The best proven lower bound on ε."""
        return max(finding.epsilon(delta) for finding in self.findings)

    def violates(self, claim: Callable[[float], float]) -> list[tuple[str, float, float, float]]:
        """(event, δ, proven ε, claimed ε) for every point that refutes the claim."""
        return [
            (finding.event, *point)
            for finding in self.findings
            for point in finding.violates(claim)
        ]


def distinguish(
    with_unit: Float64[Array, "trials features"],
    without_unit: Float64[Array, "trials features"],
    alpha: float,
) -> Audit:
    """Attacks two samples of outputs; NaN marks a number that was not released.

    Features become values, squares and presence bits. Scores are the best linear one (Fisher's
    discriminant on the training half) and the features that differ most there, by themselves;
    events are the thresholds of a score that looked best on the training half, at several δ.
    """
    a, b = expand(with_unit), expand(without_unit)
    half = min(len(a), len(b)) // 2
    train_a, train_b, test_a, test_b = a[:half], b[:half], a[half:], b[half:]
    trials = min(len(test_a), len(test_b))
    events = choose_events(train_a, train_b)
    share = alpha / len(events)
    return Audit(
        tuple(
            EventCounts(name, int((test_a[:trials] @ w > cut).sum()),
                    int((test_b[:trials] @ w > cut).sum()), trials, share)
            for name, w, cut in events
        )
    )  # fmt: skip


def expand(x: Float64[Array, "trials features"]) -> Float64[Array, "trials wide"]:
    """Values (missing as 0), their squares, and presence bits."""
    missing = np.isnan(x)
    value = np.where(missing, 0.0, x)
    return np.concatenate([value, value**2, (~missing).astype(float)], axis=1)


def choose_events(
    a: Float64[Array, "trials wide"], b: Float64[Array, "trials wide"]
) -> list[tuple[str, Float64[Array, " wide"], float]]:
    """(name, weights, cut) of events that separate the training halves best."""
    directions = [("discriminant", fisher(a, b))]
    gap = np.abs(a.mean(0) - b.mean(0)) / (a.std(0) + b.std(0) + 1e-12)
    for feature in np.argsort(-gap)[:3]:
        directions.append((f"feature {feature}", np.eye(a.shape[1])[feature]))
    events = []
    for name, w in directions:
        signed = w if (a @ w).mean() >= (b @ w).mean() else -w
        scores_a, scores_b = a @ signed, b @ signed
        cuts = {best_cut(scores_a, scores_b, delta) for delta in DELTAS}
        events += [(f"{name} > {cut:.4g}", signed, cut) for cut in sorted(cuts)]
    return events[:MAX_EVENTS]


def fisher(
    a: Float64[Array, "trials wide"], b: Float64[Array, "trials wide"]
) -> Float64[Array, " wide"]:
    """Fisher's linear discriminant, regularised."""
    spread = np.cov(a, rowvar=False) + np.cov(b, rowvar=False)
    scale = np.sqrt(np.diag(np.atleast_2d(spread))) + 1e-9
    alike = spread / np.outer(scale, scale) + 1e-6 * np.eye(len(scale))
    weights: Array = np.linalg.solve(alike, (a.mean(0) - b.mean(0)) / scale) / scale
    return weights


def best_cut(a: Float64[Array, " trials"], b: Float64[Array, " trials"], delta: float) -> float:
    """The threshold whose empirical ln((p - δ) / q) is largest, pessimistic by 3 deviations."""
    cuts = np.unique(np.quantile(np.concatenate([a, b]), np.linspace(0, 1, 101)))
    n = len(a)
    p = 1 - np.searchsorted(np.sort(a), cuts, side="right") / n
    q = 1 - np.searchsorted(np.sort(b), cuts, side="right") / n
    p_low = p - 3 * np.sqrt(p * (1 - p) / n + 1 / n**2)
    q_high = q + 3 * np.sqrt(q * (1 - q) / n + 1 / n**2)
    value = np.where(p_low > delta, np.log(np.maximum(p_low - delta, 1e-300) / q_high), -np.inf)
    return float(cuts[int(np.argmax(value))])


# ---- a whole query under attack: bounding, selection, counters, windows and restarts


def restarted(operator: Operator, batches: Iterable[Batch], noise: Noise) -> list[Release]:
    """As `unbroken`, but saved and loaded between any two steps; every step is released twice.

    What a reader who saw both sides of a crash has: the releases before it and their repetition.
    """
    state, releases = operator.init(), []
    for batch in batches:
        before = {name: np.array(array) for name, array in operator.save(state).items()}
        operator.fold(state, batch, noise)
        releases += operator.release(state, batch.step, noise)
        state = operator.load(before)
        operator.fold(state, batch, noise)
        releases += operator.release(state, batch.step, noise)
    return releases


def audit(
    operator: Operator,
    scenario: Scenario,
    noises: tuple[Noise, Noise],
    copies: int,
    *,
    alpha: float = 1e-9,
    run: Callable[[Operator, Iterable[Batch], Noise], list[Release]] = unbroken,
) -> Audit:
    """Attacks the sequence of all releases; compare with `operator.guarantee.epsilon`.

    `noises` are independent sources for the two inputs. The query must group by `key`, protect
    `unit` and take its time from `at`.
    """
    sides = [
        features(run(operator, scenario.batches(copies, with_unit=with_unit), noise), copies)
        for noise, with_unit in zip(noises, (True, False), strict=True)
    ]
    cells = sorted(set(sides[0]) | set(sides[1]), key=str)
    if not cells:
        cells = [("nothing",)]
    a, b = (
        np.stack([side.get(cell, np.full(copies, np.nan)) for cell in cells], axis=1)
        for side in sides
    )
    return distinguish(a, b, alpha)


def features(
    releases: list[Release], copies: int
) -> dict[tuple[Any, ...], Float64[Array, " copies"]]:
    """Every number of every copy: {(key, window, trigger, column, time seen): value or NaN}."""
    found: dict[tuple[Any, ...], Float64[Array, " copies"]] = {}
    seen: dict[tuple[int, int], int] = {}
    for release in releases:
        place = (release.window, release.trigger)
        seen[place] = seen.get(place, 0) + 1
        names = [name for name in release.table.column_names if is_answer(name, release.table)]
        keys = release.table.column("key").to_numpy()
        copy, key = keys // STRIDE, keys % STRIDE
        for name in names:
            values = pc.cast(release.table.column(name), pa.float64()).to_numpy()
            for number in np.unique(key).tolist():
                cell = found.setdefault(
                    (int(number), *place, name, seen[place]), np.full(copies, np.nan)
                )
                mine = (key == number) & (copy < copies)  # public keys are named for more copies
                cell[copy[mine]] = values[mine]
    return found
