"""Keys without new records: is it cheaper to step all of them, or to ask each when it will wake?

A hidden key without new rows may still be shown at any later trigger, when its noise lifts it over
the threshold. Two ways to find it, both exact in law for the noise they use:

- sweep: step the counter of every hidden key at every trigger. Expected: one AES block, one table
  look-up and d buffers per key, 15 to 20 ns, whatever T; for few keys the 0.05 ms of a call.
- lazy: the crossing test (`mechanisms.crossing`), once when a key is touched. Expected: 0.5 to 2
  microseconds that grow with log T, and the 0.1 ms that a trigger with few touches costs; nothing
  for other keys.

So lazy wins where a smaller share of the hidden keys than sweep / lazy, about one in a hundred, is
touched per trigger. It needs dyadic noise, whose deviation is larger than a BLT's: the thresholds
of both, for the same guarantee, are compared too, and the bytes they keep per key. Last: what a
key costs that comes late (the triggers it missed are run with its own noise).

CPU time of one core, median of 5; JSON in benchmarks/results/wakeup.json.

    python benchmarks/wakeup.py [--largest N] [--keys N]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
from pathlib import Path

import numpy as np

from noise import RHO, cpu_seconds, crossing_test, lazily, touches
from streamveil.mechanisms.counters import BltCounter, HaarCounter
from streamveil.mechanisms.counters.skip import skip_with
from streamveil.mechanisms.thresholds import GaussianThresholds
from streamveil.operators.selection import FINE, Address, GaussianSelection
from streamveil.privacy.noise import Place, SeededNoise

HORIZONS = (16, 100, 1000, 10_000)
BETA = 1e-9
OUT = Path(__file__).parent / "results" / "wakeup.json"
AT = Address(SeededNoise(1), b"benchmark", 0)


def names(keys: int) -> np.ndarray:
    return SeededNoise(2).at("names").words(2 * keys).reshape(keys, 2).copy()


def sweep(horizon: int, keys: int) -> float:
    """CPU seconds of one trigger that tests all keys; none of them has new rows."""
    counter = BltCounter(horizon=horizon, sigma=5 * FINE)
    chosen = GaussianSelection(counter=counter, groups=1, hidden=1, beta=BETA)
    own, nothing = names(keys), np.zeros(keys, np.int64)
    state, _ = chosen.step(chosen.init(1), nothing, own, 1, AT)
    repeat = max(1, 20_000 // keys)

    def work() -> None:
        for _ in range(repeat):
            chosen.step(state, nothing, own, 2, AT)

    return statistics.median(cpu_seconds(work)) / repeat


def lazy(horizon: int, keys: int) -> tuple[float, float]:
    """(CPU seconds per touch, bytes per key that are in use) over a window of Zipf touches."""
    of = crossing_test(horizon)
    work = touches(horizon, keys)
    lazily(of, work[:50], keys)
    runs = [lazily(of, work, keys) for _ in range(5)]
    state = of.init(keys)
    for t, touched, increments in work[: len(work) // 2]:
        quiet = (state.wake[touched] == 0) | (state.wake[touched] > t)
        some = state.take(touched[quiet])
        changed = of.touch(
            some,
            t,
            some.counts + increments[quiet],
            Place(AT.noise, "m"),
            names(keys)[: len(some.rows)],
        )
        for name in ("rows", "points", "counts", "wake"):
            getattr(state, name)[touched[quiet]] = getattr(changed, name)
    used = state.rows[state.rows > 0]
    return statistics.median(spent / n for n, spent in runs), float(24 * used.mean() + 24)


def thresholds(horizon: int) -> tuple[float, float]:
    """The highest threshold, in units, with a BLT and with Haar noise at rho = 0.1."""
    sigma, t = FINE * (2 * RHO) ** -0.5, np.unique(np.geomspace(1, horizon, 200).astype(int))
    found = []
    for kind in (BltCounter, HaarCounter):
        counter = kind(horizon=horizon, sigma=1)
        scaled = kind(horizon=horizon, sigma=sigma * counter.sensitivity)
        test = GaussianThresholds(counter=scaled, beta=BETA, quanta=FINE, last=1 / max(2, horizon))
        found.append(max(test.threshold(int(one)) for one in t))
    return found[0], found[1]


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
    parser.add_argument("--keys", type=int, default=30_000, help="keys of the lazy test")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    rows = []
    print(f"{'T':>6} {'K':>9} {'sweep, ms':>10} {'ns a key':>9} {'lazy, us a touch':>17} "
          f"{'lazy wins below':>16}")  # fmt: skip
    for horizon in HORIZONS:
        touch, bytes_used = lazy(horizon, options.keys if horizon <= 1000 else options.keys // 4)
        blt, haar = thresholds(horizon)
        for keys in (1000, 10_000, 100_000, 1_000_000):
            if keys > options.largest:
                continue
            spent = sweep(horizon, keys)
            share = spent / keys / touch
            rows.append({
                "horizon": horizon, "keys": keys, "sweep_ms": spent * 1e3,
                "sweep_ns_per_key": spent / keys * 1e9, "lazy_us_per_touch": touch * 1e6,
                "break_even_share_of_keys_touched": share, "lazy_bytes_per_key": bytes_used,
                "sweep_bytes_per_key": BltCounter(horizon=horizon, sigma=1).state_bytes,
                "threshold_blt": blt, "threshold_haar": haar,
            })  # fmt: skip
            print(f"{horizon:>6,} {keys:>9,} {spent * 1e3:>10.2f} {spent / keys * 1e9:>9.1f} "
                  f"{touch * 1e6:>17.2f} {share:>15.2%}", flush=True)  # fmt: skip
        print(f"{'':>6} thresholds {blt:.1f} (BLT) and {haar:.1f} (Haar) units; "
              f"{rows[-1]['sweep_bytes_per_key']} and {bytes_used:.0f} bytes per key")  # fmt: skip
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
    options.out.write_text(json.dumps(head | {"rows": rows, "late": came}, indent=1) + "\n")


if __name__ == "__main__":
    main()
