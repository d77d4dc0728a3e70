"""The noise that a job at rest holds, against what is claimed: the same tests, on a real state.

A continual counter keeps its noise in a few buffers, from which later noise is made. They are
linear in all draws so far, so under the claim they are Gaussian with a covariance that follows from
public numbers, whatever the rows were and however often the job was stopped, moved or upgraded.
Divided by its root they are independent standard numbers, on which `bet` stakes that they are
narrower. Nothing is drawn, charged or written, and what is told is a function of noise alone.

Groups that were shown at a window's first trigger are looked at (of a Gaussian selection, all).
Groups with weights, and counters other than BLTs, are not tested, and it is said.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamveil.audit.residuals import NoiseTest, bet
from streamveil.core.counters.blt import BltCounter
from streamveil.core.counters.protocol import CounterState
from streamveil.core.counters.weights import blt_of
from streamveil.core.selection.gaussian import GaussianSelection
from streamveil.dataflow.group_by import GroupBy
from streamveil.dataflow.release import WindowState
from streamveil.dataflow.state import State
from streamveil.types import Array, Float64

SINGULAR = 1e-9  # of a covariance: buffers that say the same


def running_tests(operator: GroupBy, state: State, alpha: float) -> Iterator[NoiseTest]:
    """Every lane over all open windows, and the selection; any errs with chance `alpha` at most."""
    aggregation = operator.aggregation
    windows = [held for held in state.windows.values() if held.trigger]
    share = alpha / (len(aggregation.spans) + 1)
    for number, (place, last) in enumerate(aggregation.spans):
        counter, label = blt_of(aggregation.counters[place]), f"{place} to {last - 1}"
        label = f"{place} ({aggregation.lanes[place].kind})" if last == place + 1 else label
        if place == aggregation.shared:
            continue
        if counter is None or aggregation.rule is not None:
            yield NoiseTest(label, 0, 0.0, None)
            continue
        found = [
            standard(counter, held.lanes[number], last - place, first_shown(held))
            for held in windows
        ]
        yield bet(np.concatenate([*found, np.zeros(0)]), share, label)
    chosen = aggregation.selection
    if isinstance(chosen, GaussianSelection) and (counter := blt_of(chosen.counter)) is not None:
        states = [CounterState.from_arrays(held.selection) for held in windows]
        found = [standard(counter, one, 1, one.keys) for one in states]
        yield bet(np.concatenate([*found, np.zeros(0)]), share, "selection")


def first_shown(held: WindowState) -> int:
    """How many groups have noise from a window's first step on: the first of those shown."""
    triggers, sizes = held.cohorts
    return int(sizes[0]) if len(sizes) and triggers[0] == 1 else 0


def standard(
    counter: BltCounter, held: CounterState, lanes: int, keys: int
) -> Float64[Array, " n"]:
    """Independent standard numbers of the buffers of so many groups."""
    covariance = buffer_covariance(counter, held.t)
    buffers = held.real.reshape(len(covariance), lanes, -1)[:, :, :keys]
    kept = independent(covariance)
    root = np.linalg.cholesky(covariance[np.ix_(kept, kept)])
    moved = buffers[kept].reshape(len(kept), -1)
    return np.asarray(np.linalg.solve(root, moved).T.reshape(-1))


def independent(covariance: Float64[Array, "n n"]) -> list[int]:
    """Buffers of which none follows from the others."""
    scale = np.sqrt(np.maximum(np.diag(covariance), np.finfo(float).tiny))
    alike, kept = covariance / np.outer(scale, scale), [0]
    for place in range(1, len(covariance)):
        some = [*kept, place]
        if np.linalg.eigvalsh(alike[np.ix_(some, some)])[0] > SINGULAR:
            kept = some
    return kept


def buffer_covariance(counter: BltCounter, steps: int) -> Float64[Array, "n n"]:
    """Of the buffers after so many steps, by the law that each step follows."""
    plan = counter.schedule
    keep = np.asarray(plan.keep)
    through, ones, found = np.diag(keep), np.ones(len(keep)), np.zeros((len(keep), len(keep)))
    for t in range(1, steps + 1):
        _, noise = plan.scales(t)
        fresh = counter.noise_scale * noise
        found = through @ found @ through.T + fresh**2 * np.outer(ones, ones)
    return found
