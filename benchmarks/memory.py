"""What does this machine ask for memory? No engine goes below it, and it differs between machines.

A stream of many users visits lines of large tables in random order, and its tables grow into pages
that nobody touched before. Four figures say what both cost at least, whatever the program does:

- a line after another whose place the first one tells (a chain: the delay of memory), and lines
  whose places are known beforehand (the processor has many under way), only read or changed too;
  the same lines in the order of their places;
- a byte written to new pages, small and huge: to a gigabyte that nobody used lately, to pages that
  were given back a moment ago, and to the same pages again.

Expected: a chain waits 80 to 120 ns for memory on a machine of one's own; known places 5 to 10 ns,
in order less. New pages 0.1 to 0.3 ns a byte where the system only has to clear them, and many
times that where a host has taken them back and must map them again.

CPU time of one core, medians of nine; JSON in benchmarks/results/memory.json.

    python benchmarks/memory.py [--lines N] [--megabytes 1 24 240]
"""

from __future__ import annotations

import argparse
import mmap
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from saved import save
from streamveil.compiled import njit
from streamveil.dataflow.raw_memory import ask, load64, store64

RESULTS = Path(__file__).parent / "results" / "memory.json"
LINE = 64
HUGE = 2 << 20
AHEAD = 16  # lines between asking for one and using it
REPEATS = 9
NEW, UNUSED = 64 << 20, 1 << 30  # bytes of new pages
QUIET = 20  # seconds in which a host may take back what is free


@njit()
def chain(lines, start, steps):  # pragma: no cover
    at = start
    for _ in range(steps):
        at = np.int64(load64(lines + at))
    return at


@njit()
def read(lines, places):  # pragma: no cover
    total = np.uint64(0)
    for i in range(len(places)):
        ask(lines + places[min(i + AHEAD, len(places) - 1)])
        total += load64(lines + places[i])
    return total


@njit()
def change(lines, places):  # pragma: no cover
    for i in range(len(places)):
        ask(lines + places[min(i + AHEAD, len(places) - 1)])
        store64(lines + places[i], load64(lines + places[i]) ^ np.uint64(1))


def seconds(work: Callable[[], Any]) -> float:
    """Median CPU seconds."""
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        work()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def pages(size: int, *, huge: bool) -> np.ndarray:
    """Bytes of new pages, from the start of a huge one on."""
    held = mmap.mmap(-1, size + HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advice = "MADV_HUGEPAGE" if huge else "MADV_NOHUGEPAGE"
    if hasattr(mmap, advice):
        held.madvise(getattr(mmap, advice))
    found = np.frombuffer(held, np.uint8)
    start = -found.__array_interface__["data"][0] % HUGE
    return found[start : start + size]


def lines(megabytes: int, visits: int) -> dict[str, float]:
    """Of a table of that size in huge pages, in ns a line."""
    table = pages(megabytes << 20, huge=True)
    table[:] = 0
    start, rng = table.__array_interface__["data"][0], np.random.default_rng(1)
    known = rng.integers(0, len(table) // LINE, visits) * LINE
    ordered, firsts = np.sort(known), known[:0]
    read(start, firsts), change(start, firsts), chain(start, 0, 0)
    found = {
        "read": seconds(lambda: read(start, known)),
        "read and change": seconds(lambda: change(start, known)),
        "read and change, in order": seconds(lambda: change(start, ordered)),
    }
    ring = rng.permutation(len(table) // LINE) * LINE
    table.view(np.int64)[ring // 8] = np.roll(ring, -1)
    found["one after the other"] = seconds(lambda: chain(start, int(ring[0]), visits))
    return {name: taken / visits * 1e9 for name, taken in found.items()}


def written(table: np.ndarray) -> float:
    """CPU, in ns a byte."""
    start = time.thread_time()
    table[:] = 1
    return (time.thread_time() - start) / len(table) * 1e9


def touched(*, huge: bool) -> dict[str, float]:
    """Of pages, in ns a byte written to them."""
    lately, again = [], []
    unused = written(pages(UNUSED, huge=huge))
    for _ in range(REPEATS):
        table = pages(NEW, huge=huge)
        lately.append(written(table))
        again.append(written(table))
        del table
    found = {"unused": unused, "given back lately": statistics.median(lately)}
    return found | {"the same again": statistics.median(again)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=600_000, help="visited at a time")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 8, 24, 64, 240])
    options = parser.parse_args()
    about = {"cpus": os.cpu_count(), "machine": platform.machine(), "load": os.getloadavg()[0]}
    result: dict[str, Any] = {"machine": about, "ns a line": {}, "ns a byte of new pages": {}}
    for megabytes in options.megabytes:
        found = lines(megabytes, options.lines)
        result["ns a line"][f"{megabytes} MB"] = found
        print(f"{megabytes:5d} MB  " + ", ".join(f"{k} {v:.1f} ns" for k, v in found.items()))
    for kind, huge in (("small", False), ("huge", True)):
        time.sleep(QUIET)
        found = touched(huge=huge)
        result["ns a byte of new pages"][kind] = found
        print(f"{kind} pages  " + ", ".join(f"{k} {v:.2f} ns a byte" for k, v in found.items()))
    save(RESULTS, result, indent=2)


if __name__ == "__main__":
    main()
