"""Tables that change: does the error follow the records that are there, and what is best?

Expected from theory: two streams err by all updates so far; the interval tree by the records there
and a power of log(segments); a single signed counter by log(steps) alone, in the strategy that
costs least. Run all: `python benchmarks/papers/dynamic.py`; one: `... dynamic.py E1`.
Each table has at least three seeds, the trivial answer and a static reference with all the budget.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.papers.dynamic_streams import Stream, drifting  # noqa: E402
from benchmarks.papers.halfspaces import Halfspaces  # noqa: E402
from benchmarks.papers.pmw import PmwRelease  # noqa: E402
from benchmarks.papers.qiu_yi import published  # noqa: E402
from benchmarks.papers.snapshots import SnapshotDelta, TriggeredSnapshots  # noqa: E402
from benchmarks.papers.tables import Table, named, spread  # noqa: E402
from streamveil.core.accounting import Budget  # noqa: E402
from streamveil.core.noise import SeededNoise  # noqa: E402
from streamveil.dynamic import (  # noqa: E402
    Changes,
    ContinualMwem,
    FullyDynamic,
    Rerun,
    SignedCounter,
    Tree,
    TreeCounter,
    TwoStream,
)
from streamveil.dynamic.choose import Workload, choose  # noqa: E402
from streamveil.linear import (  # noqa: E402
    Additive,
    Direct,
    Marginals,
    Matrix,
    Mwem,
    Place,
    Points,
    Ranges,
    Residuals,
    Share,
    noisy_queries,
)

SEEDS = (0, 1, 2)
BUDGET = Budget(epsilon=1, delta=1e-6)
RHO, GDP = Share.of(BUDGET), Share.for_noise(BUDGET)
CELLS = Marginals.ways((2,) * 9, 3)


def errors_of(mechanism, stream: Stream, seed: int) -> np.ndarray:
    """The largest error over all queries after every step, in records."""
    place = Place(SeededNoise(seed), "bench")
    state = mechanism.init(place)
    out = []
    for change, truth in zip(stream.changes, stream.truth, strict=True):
        mechanism.step(state, change, place)
        out.append(np.abs(mechanism.answers(state).values - truth).max())
    assert mechanism.guarantee.epsilon(1e-6) <= 1
    return np.array(out)


def trivial_errors(queries, stream: Stream) -> np.ndarray:
    """Answering the (exact) size spread evenly."""
    even = queries.answers(np.full(queries.domain, 1 / queries.domain))
    return np.array(
        [np.abs(t - n * even).max() for t, n in zip(stream.truth, stream.sizes, strict=True)]
    )


def static_errors(queries, stream: Stream, seed: int, steps, noise=False) -> np.ndarray:
    """A fresh static release with the whole budget at each of these steps: not private together.

    MWEM, or with `noise` the matrix mechanism.
    """
    static = Additive(Residuals(queries)) if noise else Mwem(queries=queries)
    share = GDP if noise else RHO
    there = np.zeros(stream.domain, np.int64)
    out = []
    for step, change in enumerate(stream.changes, start=1):
        np.add.at(there, change.born, 1)
        np.subtract.at(there, change.gone, 1)
        if step in steps:
            place = Place(SeededNoise(seed), "static", (step,))
            found = static.release(there, share, place).values
            out.append(np.abs(found - stream.truth[step - 1]).max())
    return np.array(out)


def contenders(queries, steps: int) -> dict:
    """Every mechanism of the comparison, each with the whole budget."""
    static = Mwem(queries=queries)
    return {
        "two streams": TwoStream(static=static, share=RHO, horizon=steps),
        "interval tree, published": published(static, RHO, finite=True),
        "interval tree, ours": FullyDynamic.repaired(static, RHO, horizon=steps),
        "rerun": Rerun(static=static, share=RHO, steps=steps),
        "snapshot+delta": SnapshotDelta(
            static=static, share=RHO, horizon=steps, every=max(2, min(steps // 8, 16))
        ),
        "snapshot+delta, triggered": TriggeredSnapshots(
            static=static, share=RHO, most=max(2, steps)
        ),
        "continual MWEM": ContinualMwem(queries=queries, share=RHO, horizon=steps),
        "counter on the histogram": SignedCounter(
            strategy=Points(queries), share=GDP, horizon=steps
        ),
        "counter on the queries": SignedCounter(
            strategy=Direct(queries), share=GDP, horizon=steps
        ),
        "counter on residuals (default)": SignedCounter(
            strategy=Residuals(queries), share=GDP, horizon=steps
        ),
    }  # fmt: skip


def compare(table: Table, queries, bits: int, n: int, steps: int, slow: bool = True) -> None:
    """All contenders on one kind of stream: largest error / n, mean over the second half."""
    half = slice(steps // 2, None)
    streams = {seed: drifting(seed, queries, bits, [n] * steps) for seed in SEEDS}
    base = {"n": n, "steps": steps, "updates": streams[0].updates, "domain": queries.domain}
    late = set(np.linspace(steps // 2 + 1, steps, 6).astype(int).tolist())
    found = [trivial_errors(queries, s)[half].mean() / n for s in streams.values()]
    table.add(**base, mechanism="trivial", **spread(found))
    for name, noise in (("static reference", False), ("static reference, residuals", True)):
        found = [
            static_errors(queries, s, seed, late, noise).mean() / n for seed, s in streams.items()
        ]
        table.add(**base, mechanism=name, **spread(found))
    for name, mechanism in contenders(queries, steps).items():
        if not slow and name in ("two streams", "snapshot+delta"):
            continue
        found = [errors_of(mechanism, s, seed)[half].mean() / n for seed, s in streams.items()]
        table.add(**base, mechanism=name, **spread(found))
    work = Workload(queries=queries, size=n, steps=steps, updates=streams[0].updates)
    chosen = choose(work, BUDGET).best
    table.add(**base, mechanism=f"choose(): {chosen.name}, forecast", mean=chosen.expected / n)


def e1() -> Table:
    """The error follows the records that are there (n = 3,000), not the updates so far."""
    table = Table("dynamic", "E1", {"n": 3000, "queries": "672 cells of 3-way marginals of 9 bits"})
    for steps in (16, 64, 256):
        compare(table, CELLS, 9, 3000, steps)
    return table


def e1_long() -> Table:
    """The same over 1,024 steps."""
    table = Table("dynamic", "E1_long", {"n": 3000, "queries": "as in E1"})
    compare(table, CELLS, 9, 3000, 1024)
    return table


def e1_sizes() -> Table:
    """Other sizes at 256 steps, and a larger domain."""
    table = Table("dynamic", "E1_sizes", {"steps": 256})
    for n in (1000, 10_000, 30_000):
        compare(table, CELLS, 9, n, 256)
    compare(table, Marginals.ways((2,) * 12, 3), 12, 3000, 256, slow=False)
    return table


def e2() -> Table:
    """The error follows the size when it falls to a twentieth and comes back."""
    table = Table("dynamic", "E2", {"sizes": "30000 -> 1500 -> 30000", "steps": 256, "churn": 0.1})
    third = 85
    sizes = [30_000] * third + [1500] * (256 - 2 * third) + [30_000] * third
    phases = {"first": slice(40, 85), "low": slice(110, 171), "last": slice(211, 256)}
    streams = {seed: drifting(seed, CELLS, 9, sizes, churn=0.1) for seed in SEEDS}

    def put(name, found):
        for phase, part in phases.items():
            table.add(mechanism=name, phase=phase, **spread([f[part].mean() for f in found]))

    put("trivial", [trivial_errors(CELLS, s) for s in streams.values()])
    put("static reference", [static_all(s, seed) for seed, s in streams.items()])
    for name, mechanism in contenders(CELLS, 256).items():
        put(name, [errors_of(mechanism, s, seed) for seed, s in streams.items()])
    return table


def static_all(stream: Stream, seed: int) -> np.ndarray:
    steps = list(range(10, 257, 20))
    values = static_errors(CELLS, stream, seed, set(steps))
    return np.interp(np.arange(1, 257), steps, values)


def e3() -> Table:
    """Restarts: one round is not enough, and their number should follow the size."""
    table = Table("dynamic", "E3", {"steps": 256})
    for n in (3000, 30_000):
        streams = {seed: drifting(seed, CELLS, 9, [n] * 256) for seed in SEEDS}
        found = [trivial_errors(CELLS, s)[128:].mean() / n for s in streams.values()]
        table.add(n=n, most_rounds="trivial", **spread(found))
        found = [
            static_errors(CELLS, s, seed, {150, 200, 256}).mean() / n for seed, s in streams.items()
        ]
        table.add(n=n, most_rounds="static reference", **spread(found))
        for rounds in (1, 2, 3, 4):
            mechanism = FullyDynamic.repaired(
                Mwem(queries=CELLS), RHO, horizon=256, most_rounds=rounds
            )
            found = [errors_of(mechanism, s, seed)[128:].mean() / n for seed, s in streams.items()]
            table.add(n=n, most_rounds=rounds, **spread(found))
    return table


def dlap(rng, epsilon: float, size=None):
    """Fast noise for simulations (numpy): the law of the exact sampler."""
    p = 1 - math.exp(-epsilon)
    return rng.geometric(p, size) - rng.geometric(p, size)


def tail(m: float, epsilon: float) -> float:
    """P(discrete Laplace >= m)."""
    r = math.exp(-epsilon)
    return r**m / (1 + r) if m >= 1 else 1 - r ** (1 - m) / (1 + r)


def segments(rng, arrivals: np.ndarray, last: int, kind: str, epsilon: float, kappa: float = 0.5):
    """Closing times and sizes of the segments of a partition up to `last`, event by event.

    Between two events the chance to close in a step is constant while the public threshold is, so
    the closing time is geometric there: the same law as step by step, at any number of steps.
    """
    ours = kind == "ours"
    first, second = (epsilon, epsilon) if ours else (epsilon / 2, epsilon / 4)
    t, j, opened, count, at = 0, 1, 0, 0, 0
    offset = dlap(rng, first)
    out = []
    while t < last:
        until = max(opened * opened, 2)
        if ours:
            tails = 2 * math.log(math.pi**2 / 0.15) + 2 * math.log(t + 1) + 2 * math.log(j)
            theta = 1 + math.ceil(kappa / epsilon * tails)
            stay = math.exp((epsilon / kappa * (theta - 1) - tails) / 2)  # until theta moves
            change = max(t + 2, int((t + 1) * stay) + 1)
        else:
            beta = 6 * 0.05 / (math.pi * j) ** 2
            theta = math.ceil(7 / epsilon * math.log(2 * until / beta))
            change = until
        end = min(change, last + 1)
        while at < len(arrivals) and arrivals[at] <= t + 1:
            count, at = count + 1, at + 1
        nearest = int(arrivals[at]) if at < len(arrivals) else last + 1
        quiet = max(min(end, nearest) - 1 - t, 1)  # steps t+1 .. t+quiet see this count
        p = tail(theta + offset - count, second)
        wait = rng.geometric(p) if p > 1e-18 else quiet + 1
        forced = not ours and t + quiet >= until
        if wait <= quiet or forced:
            t += min(wait, quiet)
            out.append((t, count))
            j, opened, count, offset = j + 1, t, 0, dlap(rng, first)
        else:
            t += quiet
    return out, count


def tree_deviation(steps: int, epsilon: float, arity: int, horizon: int) -> float:
    """Of a Laplace tree after `steps` steps."""
    depth, digits, q = 1, 0, steps
    while arity**depth <= horizon:
        depth += 1
    while q:
        digits, q = digits + q % arity, q // arity
    return depth / epsilon * math.sqrt(2 * digits)


def hybrid_deviation(steps: int, epsilon: float, root: float, arity: int = 2) -> float:
    """Of the hybrid over an unknown number of steps."""
    epoch = max(steps, 1).bit_length() - 1
    inner = steps - 2**epoch + 1
    var = epoch * 2 / (root * epsilon) ** 2
    if inner:
        var += tree_deviation(inner, (1 - root) * epsilon, arity, max(2**epoch - 1, 1)) ** 2
    return math.sqrt(var)


NAMES = ("dense hybrid", "dense 16-ary", "published", "ours")


def e4() -> Table:
    """Counting a sparse stream: error by the events, not by the steps."""
    table = Table("dynamic", "E4", {"epsilon": 1, "arrivals": "uniform", "seeds": 60})
    for exponent in (14, 20, 30, 40):
        steps = 2**exponent
        for n in (300, 3000, 30_000):
            if n > steps / 4:
                continue
            found = {name: [] for name in NAMES}
            hidden = {name: [] for name in NAMES[2:]}
            for seed in range(60):
                rng = np.random.default_rng([exponent, n, seed])
                at = int(rng.integers(steps // 2, steps))
                arrivals = np.unique(np.sort(rng.integers(1, steps + 1, n)))
                before = arrivals[arrivals <= at]
                found["dense hybrid"].append(hybrid_deviation(at, 1.0, 0.5) * rng.normal())
                found["dense 16-ary"].append(tree_deviation(at, 1.0, 16, steps) * rng.normal())
                cut, left = segments(rng, before, at, "published", 0.5)
                noise = hybrid_deviation(len(cut), 0.5, 0.5) * rng.normal() if cut else 0.0
                found["published"].append(noise - left)
                hidden["published"].append(left)
                cut, left = segments(rng, before, at, "ours", 0.3)
                noise = tree_deviation(len(cut), 0.7, 8, 4095) * rng.normal() if cut else 0.0
                found["ours"].append(noise - left)
                hidden["ours"].append(left)
            for name, errors in found.items():
                late = float(np.mean(hidden[name])) if name in hidden else 0.0
                rms = float(np.sqrt(np.mean(np.square(errors))))
                table.add(steps=f"2^{exponent}", n=n, mechanism=name, rmse=rms, undercount=late)
            table.add(steps=f"2^{exponent}", n=n, mechanism="trivial (0)", rmse=n * 0.75)
            table.add(steps=f"2^{exponent}", n=n, mechanism="static reference", rmse=math.sqrt(2))
    return table


def e5() -> Table:
    """Segments: how many, how large, how many empty (epsilon = 1, beta = 0.05)."""
    table = Table("dynamic", "E5", {"epsilon": 1, "beta": 0.05, "seeds": 5})
    for exponent, n in ((20, 3000), (30, 30_000), (40, 30_000)):
        for kind, kappa in (("published", 1.0), ("ours", 1.0), ("ours", 0.5)):
            rows = []
            for seed in range(5):
                rng = np.random.default_rng([exponent, seed])
                arrivals = np.unique(np.sort(rng.integers(1, 2**exponent + 1, n)))
                cut, _ = segments(rng, arrivals, 2**exponent, kind, 1.0, kappa)
                sizes = np.array([c for _, c in cut])
                rows.append((len(cut), (sizes == 0).sum(), sizes.max(), sizes[sizes > 0].mean()))
            mean = np.mean(rows, axis=0)
            table.add(
                steps=f"2^{exponent}",
                n=n,
                partition=f"{kind} kappa={kappa}",
                segments=float(mean[0]),
                empty=float(mean[1]),
                largest=float(mean[2]),
                mean_size=float(mean[3]),
            )
    return table


def e6() -> Table:
    """Counters: standard deviation of a running count, by theory and by the mechanism's noise."""
    table = Table("dynamic", "E6", {"epsilon": 1, "delta": 1e-6, "protects": "one insertion"})
    one, seeds = Matrix.of([[1.0]]), range(200)
    budgets = {"pure": Share("pure", Fraction(1)), "Gaussian": GDP}
    for exponent in (6, 10, 14):
        steps = 2**exponent - 1
        at = np.unique(np.rint(np.linspace(1, steps, 40)).astype(int))
        for kind, share in budgets.items():
            kinds = {
                f"{kind}, {arity}-ary tree": TreeCounter(
                    strategy=Direct(one), share=share, horizon=steps, arity=arity, only_grows=True
                )
                for arity in (2, 4, 8, 16)
            }
            kinds[f"{kind}, unknown end"] = TreeCounter(
                strategy=Direct(one), share=share, horizon=None, arity=2, only_grows=True
            )
            if kind == "Gaussian":
                kinds["Gaussian, square root"] = SignedCounter(
                    strategy=Direct(one), share=share, horizon=steps, only_grows=True
                )
            for name, mechanism in kinds.items():
                theory = declared(mechanism, at)
                row = {"rms": math.sqrt((theory**2).mean()), "largest": float(theory.max())}
                seen = observed(mechanism, steps, seeds) if steps < 100 else None
                table.add(steps=steps, mechanism=name, **row, at_the_end=float(theory[-1]),
                          measured_at_the_end=seen)  # fmt: skip
        table.add(steps=steps, mechanism="static reference", rms=math.sqrt(2), largest=math.sqrt(2))
        table.add(steps=steps, mechanism="trivial (0)", rms=steps / math.sqrt(3), largest=steps)
    return table


def declared(mechanism, at) -> np.ndarray:
    """Standard deviations after these many steps."""
    if isinstance(mechanism, SignedCounter):
        return np.array([mechanism.deviation(int(t)) for t in at])
    inner, out = mechanism.inner, []
    for t in at:
        if isinstance(inner, Tree):
            parts = [inner.node] * digit_sum(int(t), inner.arity)
        else:  # roots of finished epochs, nodes of the open one
            epoch = int(t + 1).bit_length() - 1
            rest = int(t) - (2**epoch - 1)
            parts = [inner.share.scale(inner.root)] * epoch
            parts += [inner.tree(epoch).node] * digit_sum(rest, inner.arity)
        out.append(math.sqrt(sum(part.deviation(1, 1) ** 2 for part in parts)))
    return np.array(out)


def digit_sum(number: int, base: int) -> int:
    return number % base + (digit_sum(number // base, base) if number else 0)


def observed(mechanism, steps: int, seeds) -> float:
    """The standard deviation at the end, over runs on an empty stream."""
    ends = []
    for seed in seeds:
        place = Place(SeededNoise(seed), "e6")
        state = mechanism.init(place)
        for _ in range(steps):
            mechanism.step(state, Changes(), place)
        ends.append(mechanism.answers(state).values[0])
    return float(np.std(ends))


def e10() -> Table:
    """The step of MWEM: 4 instead of 1/2."""
    table = Table("dynamic", "E10", {"rounds": 30, "replays": 0})
    for n in (3000, 30_000):
        for step in (0.5, 1.0, 2.0, 4.0, 8.0):
            found = []
            for seed in range(5):
                stream = drifting(seed, CELLS, 9, [n] * 5)
                there = np.zeros(512, np.int64)
                for change in stream.changes:
                    np.add.at(there, change.born, 1)
                    np.subtract.at(there, change.gone, 1)
                mechanism = Mwem(queries=CELLS, rounds=30, step=step, replays=0)
                released = mechanism.release(there, RHO, Place(SeededNoise(seed), "e10"), float(n))
                found.append(np.abs(released.values - stream.truth[-1]).max() / n)
            table.add(n=n, step=step, **spread(found))
        stream = drifting(0, CELLS, 9, [n] * 5)
        table.add(n=n, step="trivial", mean=float(trivial_errors(CELLS, stream)[-1] / n))
    return table


def e12() -> Table:
    """Which copy a deletion removes decides how many buckets of one level a single update moves."""
    from tests.dynamic.test_interval_tree import fifo, lifo

    table = Table(
        "dynamic", "E12", {"stream": "one surplus copy, then insert, delete, insert, delete, ..."}
    )
    for steps in (16, 64, 256):
        stream = ((1, 0), *(((1, 0), (-1, 0)) * (steps // 2)))[:steps]
        for name, match in (("first in, first out", fifo), ("last in, first out", lifo)):
            moved = first_update(stream, match)
            table.add(steps=steps, matching=name, buckets=moved)
    return table


def first_update(stream, match) -> int:
    """Buckets of one level that differ when the first insertion is removed."""
    from tests.dynamic.test_interval_tree import buckets_of, difference

    one, other = buckets_of(stream, match), buckets_of(((0, 0), *stream[1:]), match)
    levels: dict[int, int] = {}
    for key, (inside, gone) in one.items():
        if difference(inside, other[key][0]) or difference(gone, other[key][1]):
            level = (key[1] - key[0]).bit_length()
            levels[level] = levels.get(level, 0) + 1
    return max(levels.values(), default=0)


def e13() -> Table:
    """Smallest table whose proved error is at most half of it (pure, epsilon 1)."""
    table = Table("dynamic", "E13", {"queries": "672 cells of 9 bits", "beta": 0.05})
    budget = Budget(epsilon=1)
    for steps in (64, 1024, 65536):
        for name in ("counter", "rerun", "interval tree", "two streams"):
            smallest = math.inf
            for exponent in np.arange(2, 16, 0.25):
                size = 10.0**exponent
                work = Workload(queries=CELLS, size=size, steps=steps, updates=size * steps / 2)
                proved = {c.name: c.proved for c in choose(work, budget, "theorem").candidates}
                if proved[name] <= size / 2:
                    smallest = size
                    break
            table.add(steps=steps, mechanism=name, smallest=smallest)
    share = Share("pure", 1)
    for exponent in np.arange(2, 12, 0.25):
        if Mwem(queries=CELLS).error.alpha(share, 10.0**exponent, 0.05) <= 10.0**exponent / 2:
            table.add(steps=1, mechanism="static reference", smallest=10.0**exponent)
            break
    return table


def e14() -> Table:
    """Counting a table: one signed counter, not the interval tree (pure, epsilon 1)."""
    table = Table(
        "dynamic", "E14", {"epsilon": 1, "error": "root mean square over the last quarter"}
    )
    one = Matrix.of([[1.0]])
    share = Share("pure", Fraction(1))
    for steps in (63, 1023):
        sizes = [1000] * steps
        streams = {seed: drifting(seed, one, 0, sizes) for seed in SEEDS}
        mechanisms = {
            "interval tree, published": published(noisy_queries(one), share),
            "interval tree, ours": FullyDynamic.repaired(noisy_queries(one), share, horizon=steps),
            "two streams": TwoStream(static=noisy_queries(one), share=share, horizon=steps),
            "signed counter, pure": TreeCounter(
                strategy=Direct(one), share=share, horizon=steps, arity=8
            ),
        }
        for name, mechanism in mechanisms.items():
            found = [
                math.sqrt((errors_of(mechanism, s, seed)[-steps // 4 :] ** 2).mean())
                for seed, s in streams.items()
            ]
            table.add(steps=steps, mechanism=name, **spread(found))
        table.add(steps=steps, mechanism="static reference", mean=math.sqrt(2))
        table.add(steps=steps, mechanism="trivial (0)", mean=1000.0)
    return table


def large() -> Table:
    """2^20 points and about 10,000 queries: CPU seconds per release, error / records."""
    table = Table("dynamic", "large", {"points": 1 << 20, "records": 300_000})
    n = 300_000
    rng = np.random.default_rng(0)
    corners = np.sort(rng.integers(0, 1025, (10_000, 2, 2)), axis=1)
    classes = {
        "3-way marginals of 20 bits": Marginals.ways((2,) * 20, 3),
        "boxes of 1024 x 1024": Ranges.of((1024, 1024), corners[:, 0], corners[:, 1]),
        "halfspaces of 1024 x 1024": Halfspaces.of(
            (1024, 1024), rng.normal(size=(10_000, 2)), rng.normal(size=10_000) * 300
        ),
    }
    for name, queries in classes.items():
        chance = rng.random(20) * 0.6
        mechanisms = {"MWEM": Mwem(queries=queries), "PMW": PmwRelease(queries=queries)}
        if isinstance(queries, Marginals):
            mechanisms["matrix mechanism"] = Additive(Residuals(queries))
        found: dict = {m: ([], []) for m in ["trivial", *mechanisms]}
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            labels = (rng.random((n, 20)) < chance) @ (1 << np.arange(20)[::-1])
            there = np.bincount(labels, minlength=1 << 20).astype(np.int64)
            truth = queries.exact(there)
            even = queries.answers(np.full(1 << 20, n / (1 << 20)))
            found["trivial"][0].append(np.abs(truth - even).max() / n)
            for kind, mechanism in mechanisms.items():
                start = time.process_time()
                values = mechanism.release(there, RHO, Place(SeededNoise(seed), "large")).values
                found[kind][1].append(time.process_time() - start)
                found[kind][0].append(np.abs(values - truth).max() / n)
        for kind, (errors, seconds) in found.items():
            taken = {"seconds": float(np.median(seconds))} if seconds else {}
            table.add(queries=name, k=queries.size, mechanism=kind, **spread(errors), **taken)
    return table


EXPERIMENTS: dict[str, Callable[[], Table]] = {
    "E1": e1, "E1_long": e1_long, "E1_sizes": e1_sizes, "E2": e2, "E3": e3, "E4": e4, "E5": e5,
    "E6": e6, "E10": e10, "E12": e12, "E13": e13, "E14": e14, "large": large,
}  # fmt: skip


def main() -> None:
    for name in named(EXPERIMENTS, __doc__):
        start = time.monotonic()
        print(f"{name}: {EXPERIMENTS[name].__doc__}", flush=True)
        EXPERIMENTS[name]().save()
        print(f"   {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
