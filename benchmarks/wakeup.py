"""Keys without new records: what does it cost to test all of them at every trigger?

A hidden key without new rows may still be shown at any later trigger, when its noise lifts it over
the threshold, so the counter of every hidden key takes a step at every trigger (*sweep*). Expected:
one AES block, one table look-up and d buffers per key, 15 to 20 ns, whatever T; for few keys the
0.05 ms of a call. Last: what a key costs that comes late (the triggers it missed are run with its
own noise).

CPU time of one core, median of 5; JSON in benchmarks/results/wakeup.json.

    python benchmarks/wakeup.py [--largest N]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
from pathlib import Path

import numpy as np

from noise import cpu_seconds
from saved import save
from streamveil.core.counters import skip_with
from streamveil.core.noise import Address, SeededNoise
from streamveil.core.selection.gaussian import FINE, GaussianSelection
from streamveil.core.sensitivity import Bounds
from streamveil.counters import BltCounter

HORIZONS = (16, 100, 1000, 10_000)
BETA = 1e-9
OUT = Path(__file__).parent / "results" / "wakeup.json"
AT = Address(SeededNoise(1), b"benchmark", 0)


def names(keys: int) -> np.ndarray:
    return SeededNoise(2).at("names").words(2 * keys).reshape(keys, 2).copy()


def sweep(horizon: int, keys: int) -> float:
    """CPU seconds of one trigger that tests all keys; none of them has new rows."""
    counter = BltCounter(horizon=horizon, sigma=5 * FINE)
    chosen = GaussianSelection(counter=counter, bounds=Bounds(max_rows=1), beta=BETA)
    own, nothing = names(keys), np.zeros(keys, np.int64)
    state, _ = chosen.step(chosen.init(1), nothing, own, 1, AT)
    repeat = max(1, 20_000 // keys)

    def work() -> None:
        for _ in range(repeat):
            chosen.step(state, nothing, own, 2, AT)

    return statistics.median(cpu_seconds(work)) / repeat


def late(horizon: int, keys: int) -> float:
    """CPU seconds for keys whose first row comes at the last trigger."""
    counter, own = BltCounter(horizon=horizon, sigma=5 * FINE), names(keys)
    draws = AT.noise.at("late")
    return statistics.median(
        cpu_seconds(lambda: skip_with(counter, counter.init(keys), horizon - 1, draws, own))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--largest", type=int, default=1_000_000, help="keys swept, at most")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    rows = []
    print(f"{'T':>6} {'K':>9} {'sweep, ms':>10} {'ns a key':>9}")
    for horizon in HORIZONS:
        for keys in (1000, 10_000, 100_000, 1_000_000):
            if keys > options.largest:
                continue
            spent = sweep(horizon, keys)
            rows.append({
                "horizon": horizon, "keys": keys, "sweep_ms": spent * 1e3,
                "sweep_ns_per_key": spent / keys * 1e9,
                "sweep_bytes_per_key": BltCounter(horizon=horizon, sigma=1).state_bytes,
            })  # fmt: skip
            print(f"{horizon:>6,} {keys:>9,} {spent * 1e3:>10.2f} {spent / keys * 1e9:>9.1f}",
                  flush=True)  # fmt: skip
    came = [
        {"horizon": horizon, "keys": keys, "late_us_per_key": late(horizon, keys) / keys * 1e6}
        for horizon in (100, 1000)
        for keys in (1, 100, 10_000)
    ]
    for one in came:
        print(f"late: T = {one['horizon']:,}, {one['keys']:,} new keys: "
              f"{one['late_us_per_key']:.1f} us a key")  # fmt: skip
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    head = {"commit": commit, "machine": platform.machine(), "load": os.getloadavg()[0]}
    save(options.out, head | {"rows": rows, "late": came})


if __name__ == "__main__":
    main()
