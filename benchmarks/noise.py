"""What does secure, exact noise cost?

Expected: one AES word (about 1 ns) and one table look-up with a polynomial (about 4 ns) per rounded
Gaussian, so below numpy's float Gaussian (8 ns, neither secure nor exact, the floor for comparison)
and a thousand times below exact samplers by rejection.

CPU time of one core, median of 5; JSON in benchmarks/results/noise.json.

    python benchmarks/noise.py [--samples N] [--only TEXT]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np

from saved import save
from streamveil.core.counters.blt import BltCounter
from streamveil.core.noise import KeyedNoise, Place, samplers
from streamveil.core.noise.samplers import choice, inverse

REPEATS = 5
OUT = Path(__file__).parent / "results" / "noise.json"


def cpu_seconds(work: Callable[[], object]) -> list[float]:
    work()  # compiles, builds tables
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return times


def row(name: str, n: int, times: list[float], unit: float = 1e9) -> dict[str, object]:
    each = [t / n * unit for t in times]
    word = "ns" if unit == 1e9 else "us"
    print(f"{name:<58}{statistics.median(each):>12.2f} {word}", flush=True)
    spread = [min(each), max(each)]
    return {"what": name, "n": n, f"{word}_each": statistics.median(each), "spread": spread}


def sources(n: int) -> dict[str, tuple[int, Callable[[], object]]]:
    draws = KeyedNoise.fresh().at("benchmark")
    ids = draws.words(2 * n).reshape(n, 2).copy()
    few = ids[:1000]
    return {
        "words: AES-256 counter mode, per word": (n, lambda: draws.words(n)),
        "words_for: 1 or 2 words per key, per key": (n, lambda: draws.words_for(ids, 1)),
        "words_for: 4 words per key, per key": (n, lambda: draws.words_for(ids, 4)),
        "words_for: 40 words per key, 1,000 keys, per key": (
            1000,
            lambda: draws.words_for(few, 40),
        ),
        "one new address": (1, lambda: draws.at("step", 1).words(1)),
        "os.urandom, per word": (n // 10, lambda: os.urandom(8 * (n // 10))),
        "numpy PCG64, per word": (n, lambda: np.random.default_rng(1).integers(0, 2**63, n)),
    }


def exact_samplers(n: int) -> dict[str, tuple[int, Callable[[], object]]]:
    draws = KeyedNoise.fresh().at("benchmark")
    ids = draws.words(2 * n).reshape(n, 2).copy()
    centre = samplers.rounded_gaussian(draws, np.zeros(n), 1e6) / 1024
    whole = np.rint(centre).astype(np.int64)
    cases: dict[str, tuple[int, Callable[[], object]]] = {}
    for sigma in (1, 10, 1000, 1e6):
        cases[f"rounded Gaussian, real centre, sigma {sigma:g}"] = (
            n,
            lambda sigma=sigma: samplers.rounded_gaussian(draws, centre, sigma),
        )
    cases |= {
        "rounded Gaussian, integer centre": (
            n, lambda: samplers.rounded_gaussian(draws, whole, 10)),
        "rounded Gaussian, a sigma each": (
            n, lambda: samplers.rounded_gaussian(draws, centre, np.full(n, 10.0))),
        "rounded Gaussian, keyed by id": (
            n, lambda: samplers.rounded_gaussian(draws, centre, 10, ids)),
        "rounded Laplace, scale 7": (n, lambda: samplers.rounded_laplace(draws, centre, 7)),
        "rounded Laplace, keyed by id": (
            n, lambda: samplers.rounded_laplace(draws, centre, 7, ids)),
    }  # fmt: skip
    for scale in (1, 10, 10**6):
        cases[f"discrete Laplace, scale {scale:,}"] = (
            n,
            lambda scale=scale: inverse.discrete_laplace(draws, scale, n),
        )
    return cases | {
        "exponential choice among 2^20, per score": (
            2**20, lambda: choice.exponential_choice(draws, np.resize(centre, 2**20), 1, 1)),
        "BLT step (d = 4): PRF + noise + state, per key-step": (n, blt_step(n, ids)),
    }  # fmt: skip


def blt_step(n: int, ids: np.ndarray) -> Callable[[], object]:
    counter = BltCounter(horizon=1000, sigma=10, d=4)
    state, ones, place = counter.init(n), np.ones(n, np.int64), Place(KeyedNoise.fresh(), "blt")
    return lambda: counter.step(state, ones, place.again(), ids)


def peers(n: int) -> dict[str, tuple[int, Callable[[], object]]]:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    rng, few, zeros = np.random.default_rng(1), max(n // 100, 100), [0] * max(n // 100, 100)
    ints = dp.vector_domain(dp.atom_domain(T=int))
    reals = dp.vector_domain(dp.atom_domain(T=float, nan=False))
    l1, l2, real_l2 = (
        dp.l1_distance(T=int), dp.l2_distance(T=float), dp.l2_distance(T=float),
    )  # fmt: skip
    cases: dict[str, tuple[int, Callable[[], object]]] = {
        "numpy float Gaussian": (n, lambda: rng.standard_normal(n)),
        "numpy float Gaussian, scaled and rounded": (
            n, lambda: np.rint(10 * rng.standard_normal(n)).astype(np.int64)),
        "numpy float Laplace": (n, lambda: rng.laplace(0, 7, n)),
    }  # fmt: skip
    for scale in (1.0, 10.0, 1e6):
        gauss = dp.m.make_gaussian(ints, l2, scale=scale)
        cases[f"OpenDP exact Gaussian, integers, scale {scale:g}"] = (
            few,
            lambda gauss=gauss: gauss(zeros),
        )
    laplace = dp.m.make_laplace(ints, l1, scale=10.0)
    real = dp.m.make_gaussian(reals, real_l2, scale=10.0)
    return cases | {
        "OpenDP exact Laplace, integers, scale 10": (few, lambda: laplace(zeros)),
        "OpenDP exact Gaussian, floats, scale 10": (few, lambda: real([0.0] * few)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    cases = sources(options.samples) | exact_samplers(options.samples) | peers(options.samples)
    rows = [
        row(name, n, cpu_seconds(work)) for name, (n, work) in cases.items() if options.only in name
    ]
    if options.only:
        return
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    head = {
        "commit": commit, "machine": platform.machine(), "cpus": os.cpu_count(),
        "load": os.getloadavg()[0], "python": platform.python_version(), "repeats": REPEATS,
    } | {name: version(name) for name in ("numpy", "numba", "cryptography", "opendp")}  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save(options.out, head | {"rows": rows})


if __name__ == "__main__":
    main()
