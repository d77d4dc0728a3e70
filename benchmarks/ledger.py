"""What does a charge cost, and does it stay constant?

Expected: a constant time per charge for the ledger (running totals), so 10,000 charges in well
under a second without the disk, and one fsync more per charge, or per group, with it; for OpenDP's
privacy filter a time that grows with the square of the number of charges, since each query adds up
all earlier losses. Measured: making the loss, the check, the journal line and its hash. OpenDP's
queries also answer: they draw one discrete Gaussian each (microseconds); it cannot be asked not to.

    python benchmarks/ledger.py [--full]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

from saved import save
from streamveil.accounts.ledger import Ledger
from streamveil.core.accounting import Budget, Neighbours
from streamveil.core.accounting.guarantee import Gdp, Zcdp

USER = Neighbours("user_id")
USER_DAY = Neighbours("user_id", period=timedelta(days=1))


def seconds(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median and spread of the wall time."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return {"median_s": statistics.median(times), "min_s": min(times), "max_s": max(times)}


def in_memory(n: int) -> None:
    ledger = Ledger.open(None, Budget(epsilon=6, delta=1e-9), USER)
    for number in range(n):
        ledger.charge("query", Gdp(0.005), key=f"{number}")


def ranged(n: int) -> None:
    ledger = Ledger.open(None, Budget(mu=1), USER_DAY)
    for number in range(n):
        ledger.charge("query", Gdp(0.005), range=(number, number + 3))


@contextmanager
def durable() -> Iterator[Ledger]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(Path(folder) / "l.jsonl", Budget(rho=1), USER) as ledger,
    ):
        yield ledger


def on_disk(n: int) -> None:
    with durable() as ledger:
        for number in range(n):
            ledger.charge("query", Zcdp("0.00001"), key=f"{number}")


def on_disk_grouped(n: int) -> None:
    with durable() as ledger:
        for start in range(0, n, 1000):
            numbers = range(start, min(n, start + 1000))
            ledger.charge_all([ledger.make_charge("q", Zcdp("0.00001")) for _ in numbers])


def opendp_filter(n: int) -> None:
    import opendp.prelude as dp

    dp.enable_features("contrib", "honest-but-curious")
    space = (dp.atom_domain(T=int), dp.absolute_distance(T=int))
    odometer = dp.c.make_fully_adaptive_composition(*space, dp.zero_concentrated_divergence())
    queryable = dp.c.make_privacy_filter(odometer, d_in=1, d_out=1.0)(5)
    measurement = dp.m.make_gaussian(*space, scale=1000.0)
    for _ in range(n):
        queryable(measurement)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="OpenDP with 10,000 charges, too")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/ledger.json")
    options = parser.parse_args()
    peer_sizes = [500, 1000, 2000] + ([10_000] if options.full else [])
    cases: list[tuple[str, Callable[[int], None], list[int], int]] = [
        ("streamveil, in memory", in_memory, [1000, 10_000], 5),
        ("streamveil, in memory, ranges of days", ranged, [1000, 10_000], 5),
        ("streamveil, durable, one sync per charge", on_disk, [1000], 5),
        ("streamveil, durable, one sync per 1,000", on_disk_grouped, [10_000], 5),
        ("opendp privacy filter", opendp_filter, peer_sizes, 1 if options.full else 5),
    ]
    rows = []
    for name, work, sizes, repeats in cases:
        for n in sizes:
            row = {"what": name, "charges": n, "repeats": repeats} | seconds(
                lambda work=work, n=n: work(n), repeats
            )
            row["us_per_charge"] = row["median_s"] / n * 1e6
            rows.append(row)
            print(
                f"{name:<42} {n:>6,} charges {row['median_s']:8.3f} s"
                f" {row['us_per_charge']:9.1f} us each"
            )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    machine = {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }
    made = {"commit": commit, **machine, "opendp": version("opendp"), "rows": rows}
    save(options.out, made)


if __name__ == "__main__":
    main()
