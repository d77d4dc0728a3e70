"""What does one update cost, as a table lives through 10^4 to 10^7 of them?

Expected from theory: amortised polylogarithmic in the number of updates N for every mechanism: each
record is merged O(log N) times and a step makes O(log N) static releases; the root counter's steps
grow with their number, which is why it ends at 2^14 steps. Matching ids is included. Steps bring
4,096 updates to a table of 30,000 records (512 points, 672 queries).

`python benchmarks/dynamic_cost.py [N]` writes benchmarks/results/dynamic_cost.json and the figure.
"""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.papers.snapshots import SnapshotDelta, TriggeredSnapshots  # noqa: E402
from benchmarks.saved import save  # noqa: E402
from streamveil.core.accounting import Budget  # noqa: E402
from streamveil.core.noise import SeededNoise  # noqa: E402
from streamveil.dynamic import (  # noqa: E402
    ContinualMwem,
    FullyDynamic,
    InsertionOnly,
    LiveTable,
    Rerun,
    SignedCounter,
    TreeCounter,
    TwoStream,
)
from streamveil.linear import (  # noqa: E402
    Marginals,
    Mwem,
    Residuals,
    Share,
    noisy_queries,
)

CELLS = Marginals.ways((2,) * 9, 3)
BUDGET = Budget(epsilon=1, delta=1e-6)
RHO, GDP = Share.of(BUDGET), Share.for_noise(BUDGET)
STEP, SIZE = 4096, 30_000
MARKS = (10**4, 10**5, 10**6, 3 * 10**6, 10**7)


def mechanisms(steps: int) -> dict:
    noisy, mwem = noisy_queries(CELLS), Mwem(queries=CELLS)
    return {
        "interval tree (noise)": FullyDynamic.repaired(noisy, RHO, horizon=steps),
        "interval tree (noise), endless": FullyDynamic.repaired(noisy, RHO, horizon=None),
        "interval tree (MWEM)": FullyDynamic.repaired(mwem, RHO, horizon=steps),
        "two streams (noise)": TwoStream(static=noisy, share=RHO, horizon=steps),
        "snapshot+delta (noise)": SnapshotDelta(static=noisy, share=RHO, horizon=steps, every=16),
        "triggered snapshots (noise)": TriggeredSnapshots(
            static=noisy, share=RHO, most=2 * steps
        ),
        "rerun (MWEM)": Rerun(static=mwem, share=RHO, steps=steps),
        "continual MWEM": ContinualMwem(queries=CELLS, share=RHO, horizon=steps),
        "root counter (residuals)": SignedCounter(
            strategy=Residuals(CELLS), share=GDP, horizon=steps
        ),
        "tree counter (residuals)": TreeCounter(
            strategy=Residuals(CELLS), share=RHO, horizon=None
        ),
        "insertions only (noise)": InsertionOnly.dense(noisy, RHO),
    }  # fmt: skip


def run(mechanism, most: int, seed: int) -> dict[int, float]:
    """CPU seconds per update when each mark is passed; making the stream is not timed."""
    rng = np.random.default_rng(seed)
    table = LiveTable.open(mechanism, SeededNoise(seed), "cost")
    grows = isinstance(mechanism, InsertionOnly)
    alive, fresh, done, spent = np.zeros(0, np.int64), 0, 0, 0.0
    found: dict[int, float] = {}
    while done < most:
        n = STEP if grows or len(alive) < SIZE else STEP // 2
        ids = np.arange(fresh, fresh + n)
        fresh += n
        gone = np.zeros(0, np.int64)
        if n < STEP:
            place = rng.choice(len(alive), n, replace=False)
            gone = alive[place]
            alive = np.delete(alive, place)
        alive = ids[:0] if grows else np.concatenate([alive, ids])
        signs = np.concatenate([np.ones(n, np.int64), -np.ones(len(gone), np.int64)])
        labels = np.concatenate([rng.integers(0, 512, n), np.zeros(len(gone), np.int64)])
        both = np.concatenate([ids, gone])
        start = time.process_time()
        table.change(signs, both, labels)
        table.tick()
        spent += time.process_time() - start
        done += len(both)
        for mark in MARKS:
            if done >= mark and mark not in found:
                found[mark] = spent / done
    return found


def main() -> None:
    most = int(float(sys.argv[1])) if len(sys.argv) > 1 else 10**7
    steps = most // STEP + 16
    rows = []
    for name, mechanism in mechanisms(steps).items():
        run(mechanism, 20_000, 0)  # compile
        repeats = [run(mechanism, min(most, 10**6), seed) for seed in range(3)]
        long = run(mechanism, most, 3) if most > 10**6 else {}
        for mark in MARKS:
            seen = [one[mark] * 1e6 for one in [*repeats, long] if mark in one]
            if seen:
                rows.append(
                    {"mechanism": name, "updates": mark, "us": float(np.median(seen)),
                     "least": min(seen), "most": max(seen), "runs": len(seen)}
                )  # fmt: skip
                print(rows[-1], flush=True)
    out = {
        "clock": "CPU", "machine": platform.machine(), "python": platform.python_version(),
        "steps": steps, "per_step": STEP, "table": SIZE, "rows": rows,
    }  # fmt: skip
    (ROOT / "benchmarks/results").mkdir(exist_ok=True)
    save(ROOT / "benchmarks/results/dynamic_cost.json", out)
    draw(out)


def draw(out: dict) -> None:
    rows = out["rows"]
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8.2, 4.6))
    for style, name in zip(
        ["-", "--", "-."] * 9, dict.fromkeys(r["mechanism"] for r in rows), strict=False
    ):
        part = [r for r in rows if r["mechanism"] == name]
        axes.loglog([r["updates"] for r in part], [r["us"] for r in part], style, marker="o",
                    ms=3, label=name)  # fmt: skip
    at = np.geomspace(1e4, 1e7, 30)
    axes.loglog(at, 0.2 * (np.log2(at) / np.log2(1e4)) ** 2, ":", color="0.3", label="log² N")
    axes.set(
        xlabel="updates so far, N",
        ylabel="microseconds per update (average so far)",
        title=out["clock"],
    )
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "0.5", "1", "2", "5"])
    axes.minorticks_off()
    axes.grid(alpha=0.3, which="both", lw=0.4)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(ROOT / "docs/figures/dynamic-cost.png", dpi=130)


if __name__ == "__main__":
    main()
