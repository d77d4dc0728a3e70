"""A learned distinguisher: trained on half of the trials, judged on the other half."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streamveil.audit.bounds import DELTAS, EventCounts
from streamveil.types import Array, Float64

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
