"""How far is COUNT(DISTINCT x) of a changing table from the truth, by `max_changes`?

Expected from theory: deviations of the noise grow with the square root of `max_changes`, and values
that change more often are counted as they were, which no interval holds; a recount at each step
pays for every step with a part of the budget. Items come to 20 shops and are sold: 2,000 records a
step of 3,000 products, few of which are frequent, each there for 8 steps on average, 64 steps.

`python benchmarks/dynamic_distinct.py` writes benchmarks/results/dynamic_distinct.json.
"""

from __future__ import annotations

import json
import math
import platform
from fractions import Fraction
from pathlib import Path

import numpy as np

from saved import save
from streamveil.core.accounting import Budget
from streamveil.core.noise import Place, SeededNoise
from streamveil.dynamic import Changes
from streamveil.dynamic.distinct import DistinctCounter
from streamveil.linear import Marginals, Share

OUT = Path(__file__).resolve().parent / "results" / "dynamic_distinct.json"
SHOPS, PRODUCTS, STEPS, BORN, LIFE = 20, 3_000, 64, 2_000, 8
CELLS = Marginals((SHOPS,), ((), (0,)))  # all shops, each shop
BUDGET = Budget(epsilon=1, delta=1e-6)
LIMITS, SEEDS = (1, 2, 4, 8, 16, 32, 64), 5


def stream(seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Of each step the records that come and those that go, as product * shops + shop."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, PRODUCTS + 1)
    alive, found = np.zeros(0, np.int64), []
    for _ in range(STEPS):
        leaves = rng.random(len(alive)) < 1 / LIFE
        products = rng.choice(PRODUCTS, BORN, p=frequency / frequency.sum())
        born = products * SHOPS + rng.integers(0, SHOPS, BORN)
        found.append((born, alive[leaves]))
        alive = np.concatenate([alive[~leaves], born])
    return found


def truth(steps: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """The products in all shops and in each shop, after every step."""
    records, found = np.zeros((PRODUCTS, SHOPS), np.int64), []
    for born, gone in steps:
        np.add.at(records, np.divmod(born, SHOPS), 1)
        np.subtract.at(records, np.divmod(gone, SHOPS), 1)
        found.append([(records.sum(axis=1) > 0).sum(), *(records > 0).sum(axis=0)])
    return np.array(found)


def errors(limit: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Released less true, the deviations that are told with it, and values at their limit."""
    steps = stream(seed)
    table = DistinctCounter(
        cells=CELLS, share=Share.for_noise(BUDGET), horizon=STEPS, changes=limit
    )
    place = Place(SeededNoise(1_000 + seed), "distinct")
    state, shown, told = table.init(place), [], []
    for born, gone in steps:
        table.step(state, Changes(born, gone), place)
        shown.append(table.answers(state).values)
        told.append(table.deviations(state))
    stuck = float(np.mean((state.records > 0) != state.shown))
    return np.array(shown) - truth(steps), np.array(told), stuck


def row(limit: int) -> dict[str, float]:
    """What a limit costs: root mean squares over steps, streams and, of shops, groups."""
    found = [errors(limit, seed) for seed in range(SEEDS)]
    error, told = (np.array([one[part] for one in found]) for part in (0, 1))
    inside = np.abs(error) <= 1.96 * told
    total, shops = error[:, :, 0], error[:, :, 1:]
    return {
        "max_changes": limit,
        "deviation": float(told.mean()),
        "total_rmse": math.sqrt(np.mean(total**2)),
        "shop_rmse": math.sqrt(np.mean(shops**2)),
        "shop_bias": float(shops.mean()),
        "total_bias": float(total.mean()),
        "wrong_values": float(np.mean([one[2] for one in found])),  # stand as they were
        "covered": float(inside.mean()),
    }


def recount() -> float:
    """The deviation of a fresh count at each step, every step paid with its part of the budget."""
    part = Share.for_noise(BUDGET).scale(Fraction(1, STEPS))
    return part.deviation(len(CELLS.sets), len(CELLS.sets))


def main() -> None:
    true = np.concatenate([truth(stream(seed)) for seed in range(SEEDS)])
    out = {
        "budget": str(BUDGET), "steps": STEPS, "seeds": SEEDS, "shops": SHOPS,
        "machine": platform.platform(), "total": float(true[:, 0].mean()),
        "shop": float(true[:, 1:].mean()), "recount_deviation": recount(),
        "rows": [row(limit) for limit in LIMITS],
    }  # fmt: skip
    save(OUT, out)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
