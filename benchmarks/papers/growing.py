"""Tables that grow: when to look again, what each look costs, and what the answers are worth.

E7: fixed queries over a drifting table; E8: power laws; E9: hard questions of PMWG against their
bound; E11: a classifier on a growing stream. Expected from theory: a stale answer gets worse, PMWG
stays at its threshold, re-runs stay bounded, an accumulator over batches improves with size; for
independent records, training on the last doubling alone beats every schedule of re-runs.
Run all: `python benchmarks/papers/growing.py`; one: `... growing.py E7`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from tables import FIGURES, Table, named, spread

from streamveil.core.accounting import Budget
from streamveil.core.noise import SeededNoise, SilentNoise
from streamveil.dynamic import (
    BBImprover,
    BBScheduler,
    Changes,
    DisjointDoubling,
    NoisyGradientDescent,
    Pmwg,
    Reruns,
    growing,
)
from streamveil.dynamic.erm import LOSSES, minimiser, unit_rows
from streamveil.linear import (
    Additive,
    Marginals,
    Matrix,
    Mwem,
    Place,
    Residuals,
    Share,
    noisy_queries,
)

SEEDS = (0, 1, 2)
PURE, APPROX = Budget(epsilon=1), Budget(epsilon=1, delta=1e-6)


# --- E7 -------------------------------------------------------------------------------------------

BITS, FINE, EACH, GROWTH = 8, 1024, 16, 16  # fine steps of arrival; a checkpoint every EACH
CELLS = Marginals.ways((2,) * BITS, 2)
MWEM = Mwem(queries=CELLS, replays=1)  # one replay of all measurements a round costs no privacy
SOME = 4  # the static reference is asked at every fourth checkpoint only
NEAR = {"at n": slice(0, 2), "at 4n": slice(11, 15), "at 16n": slice(62, 65)}  # checkpoints


@dataclass(frozen=True)
class Growth:
    """A drifting table: histograms after every fine step, and the true fractions of checkpoints."""

    n: int
    histograms: np.ndarray  # [FINE + 1, N]

    @classmethod
    def make(cls, n: int, seed: int) -> Growth:
        """Bits are independent given a hidden class; their bias drifts from high to low."""
        rng = np.random.default_rng(1000 + seed)
        first = rng.uniform(0.62, 0.78, (2, BITS))
        last = rng.uniform(0.18, 0.34, (2, BITS))
        bits = (np.arange(2**BITS)[:, None] >> np.arange(BITS)[::-1]) & 1
        parts = [rng.multinomial(n, law(bits, first))]
        for step in range(FINE):
            bias = first + (last - first) * (step / FINE) ** 0.5
            parts.append(rng.multinomial((GROWTH - 1) * n // FINE, law(bits, bias)))
        return cls(n, np.cumsum(parts, axis=0))

    @property
    def checkpoints(self) -> np.ndarray:
        return self.histograms[::EACH]

    @property
    def truth(self) -> np.ndarray:
        counts = np.array([CELLS.exact(h) for h in self.checkpoints], float)
        return counts / self.checkpoints.sum(axis=1, keepdims=True)

    def batches(self):
        """The points that arrive before each checkpoint, as labels."""
        for new in np.diff(self.checkpoints, axis=0, prepend=np.zeros_like(self.histograms[:1])):
            yield np.repeat(np.arange(2**BITS), new)


def law(bits: np.ndarray, bias: np.ndarray) -> np.ndarray:
    each = np.where(bits[None] == 1, bias[:, None], 1 - bias[:, None]).prod(axis=2)
    return each.mean(axis=0)


def errors(growth: Growth, fractions) -> np.ndarray:
    return np.abs(np.asarray(fractions) - growth.truth).max(axis=1)


def trivial(growth: Growth, seed: int) -> np.ndarray:
    even = CELLS.answers(np.full(CELLS.domain, 1 / CELLS.domain))
    return errors(growth, np.tile(even, (FINE // EACH + 1, 1)))


def static(growth: Growth, seed: int, stale: bool = False) -> np.ndarray:
    """A release with the whole budget at every checkpoint (not private together), or only first."""
    out: list[np.ndarray] = []
    for i, histogram in enumerate(growth.checkpoints):
        if out and (stale or i % SOME):
            out.append(out[0] if stale else np.full(CELLS.size, np.nan))
            continue
        size = float(histogram.sum())
        place = Place(SeededNoise(seed), "static").inside(i)
        answers = MWEM.release(histogram, Share.of(PURE), place, size)
        out.append(answers.values / size)
    return errors(growth, out)


def scheduled(growth: Growth, seed: int, gamma: float, mode: str) -> np.ndarray:
    sizes = growth.histograms.sum(axis=1)

    def run(histogram, share, place):
        size = float(histogram.sum())
        return MWEM.release(histogram, share, place, size).values / size

    plan = BBScheduler(start=growth.n, budget=PURE, gamma=gamma, mode=mode)
    runs = Reruns(
        plan, run, lambda _, stop: growth.histograms[np.searchsorted(sizes, stop)],
        Place(SeededNoise(seed), "runs"),
    )  # fmt: skip
    out = []
    for step, new in enumerate(np.diff(sizes, prepend=0)):
        runs.arrive(int(new))
        if step % EACH == 0:
            out.append(runs.answer)
    assert runs.guarantee.epsilon(0) <= 1
    return errors(growth, out)


def accumulated(growth: Growth, seed: int, table) -> np.ndarray:
    place = Place(SeededNoise(seed), "tree")
    state = table.init(place)
    out = []
    for batch, histogram in zip(growth.batches(), growth.checkpoints, strict=True):
        table.step(state, Changes(born=batch, updates=len(batch)), place)
        out.append(table.answers(state).values / histogram.sum())
    assert table.guarantee.epsilon(0) <= 1
    return errors(growth, out)


QUESTIONS = [CELLS.weights(i).astype(float).reshape(-1) for i in range(CELLS.size)]


def asked(growth: Growth, seed: int, pmwg: Pmwg) -> tuple[np.ndarray, dict]:
    """Every cell is asked at every checkpoint."""
    place = Place(SeededNoise(seed), "pmwg")
    state, out, left = None, [], None
    for batch, histogram in zip(growth.batches(), growth.checkpoints, strict=True):
        if state is None:
            state = pmwg.init(np.bincount(batch, minlength=CELLS.domain), place)
        else:
            pmwg.arrive(state, batch, place)
        answers = [pmwg.ask(state, query, place) for query in QUESTIONS]
        if any(answer.kind == "EXHAUSTED" for answer in answers):
            left = left or state.size / growth.n
        out.append([answer.value / histogram.sum() for answer in answers])
    assert state.meter.spent <= 1
    return errors(growth, out), {"corrections": state.hard, "exhausted_at": left}


TUNED = {10_000: (15, 0.10, 0.5), 100_000: (50, 0.035, 0.2), 1_000_000: (100, 0.012, 0.1)}


def contenders(n: int) -> dict[str, Callable[[Growth, int], object]]:
    halts, threshold, gamma = TUNED[n]
    share, domain, steps = Share.of(PURE), CELLS.domain, FINE // EACH
    proved = Pmwg.theorem(share, start=n, domain=domain, asked=CELLS.size * steps)
    tuned = Pmwg.practical(share, start=n, domain=domain, halts=halts, threshold=threshold)
    default = growing(MWEM, share, steps=steps)
    counter = growing(noisy_queries(CELLS), share, steps=steps)
    residuals = growing(Additive(Residuals(CELLS)), share, steps=steps)
    return {
        "trivial": trivial,
        "static reference": static,
        "static at n, then stale": lambda g, s: static(g, s, stale=True),
        f"PMWG, theorem (alpha {proved.alpha:.2f})": lambda g, s: asked(g, s, proved),
        f"PMWG, tuned ({halts}, {threshold})": lambda g, s: asked(g, s, tuned),
        f"BBScheduler, paper ({gamma})": lambda g, s: scheduled(g, s, gamma, "paper"),
        f"BBScheduler, plus ({gamma})": lambda g, s: scheduled(g, s, gamma, "plus"),
        "Laplace tree on the queries": lambda g, s: accumulated(g, s, counter),
        "Laplace tree on residuals": lambda g, s: accumulated(g, s, residuals),
        "tree of MWEM (default)": lambda g, s: accumulated(g, s, default),
    }


def e7(sizes=(10_000, 100_000, 1_000_000)) -> None:
    table = Table("growing", "E7", {"domain": CELLS.domain, "queries": CELLS.size, "growth": GROWTH,
                         "epsilon": 1, "checkpoints": FINE // EACH + 1})  # fmt: skip
    for n in sizes:
        data = [Growth.make(n, seed) for seed in SEEDS]
        for name, run in contenders(n).items():
            began, curves, extra = time.perf_counter(), [], []
            for seed, growth in zip(SEEDS, data, strict=True):
                out = run(growth, seed)
                curve, more = out if isinstance(out, tuple) else (out, {})
                curves.append(curve)
                extra.append(more)
            row = {"n": n, "mechanism": name.split(" (")[0], "setting": name}
            for where, window in NEAR.items():
                row[where] = spread([np.nanmean(curve[window]) for curve in curves])
            row["worst"] = spread([np.nanmax(curve) for curve in curves])
            if extra[0]:
                row |= {key: [more[key] for more in extra] for key in extra[0]}
            row["seconds"] = round(time.perf_counter() - began, 2)
            row["curve"] = [None if np.isnan(x) else round(x, 5) for x in np.mean(curves, axis=0)]
            table.rows.append(row)
            three = "  ".join(f"{row[k]['mean']:.4f} ±{row[k]['sd']:.4f}" for k in NEAR)
            tail = {k: row[k] for k in ("corrections", "exhausted_at") if k in row}
            print(f"  {n:>9} {name:38} {three}  {row['seconds']} s {tail or ''}", flush=True)
        table.save()
    draw_e7(table.rows)


STYLE = {
    "trivial": ("0.6", ":"), "static reference": ("0.2", ":"),
    "static at n, then stale": ("0.4", "--"), "PMWG, theorem": ("C3", ":"),
    "PMWG, tuned": ("C3", "-"), "BBScheduler, paper": ("C1", "--"),
    "BBScheduler, plus": ("C1", "-"), "Laplace tree on the queries": ("C2", "-"),
    "Laplace tree on residuals": ("C2", "--"), "tree of MWEM": ("C0", "-"),
}  # fmt: skip


def draw_e7(rows: list[dict]) -> None:
    sizes = sorted({row["n"] for row in rows})
    figure, all_axes = plt.subplots(1, len(sizes), figsize=(4 * len(sizes) + 2, 4.2), sharey=True)
    x = 1 + (GROWTH - 1) * np.arange(FINE // EACH + 1) * EACH / FINE
    for axes, n in zip(np.atleast_1d(all_axes), sizes, strict=True):
        for row in rows:
            if row["n"] == n:
                color, dash = STYLE[row["mechanism"]]
                at = [i for i, value in enumerate(row["curve"]) if value is not None]
                axes.plot(
                    x[at],
                    [row["curve"][i] for i in at],
                    color=color,
                    ls=dash,
                    label=row["mechanism"],
                )
        axes.set(xscale="log", yscale="log", title=f"{n:,} records at first",
                 xlabel="size / first size")  # fmt: skip
        axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
        axes.minorticks_off()
        axes.grid(alpha=0.3, lw=0.4)
    np.atleast_1d(all_axes)[0].set_ylabel("largest error / size")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(FIGURES / "growing-drift.png", dpi=130)


# --- E8 -------------------------------------------------------------------------------------------

TEN = 10


def laplace_box(counts: np.ndarray, share: Share, place: Place) -> np.ndarray:
    """Ten disjoint counts plus Laplace noise, as fractions: p = 1."""
    queries = Matrix.of(np.eye(TEN))
    static = noisy_queries(queries, replaced=True)
    return static.release(counts, share, place, float(counts.sum())).values / counts.sum()


def worst_over_time(plan: BBScheduler, growth: int, seed: int) -> float:
    """Between runs all arrivals take one value, another each time: the largest staleness."""
    counts = np.zeros(TEN, np.int64)
    counts[:] = plan.start // TEN
    counts[0] += plan.start - counts.sum()
    runs = Reruns(plan, laplace_box, lambda _, __: counts, Place(SeededNoise(seed), "e8"))
    runs.arrive(int(counts.sum()))
    worst, turn = 0.0, 0
    while runs.size < growth * plan.start:
        size = plan.run(runs.next_index).size
        counts[turn % TEN] += size - runs.size
        turn += 1
        stale = runs.answer - counts / counts.sum()  # just before the run; the last record is in
        runs.arrive(size - runs.size)
        fresh = runs.answer - counts / counts.sum()
        worst = max(worst, np.abs(stale).max(), np.abs(fresh).max())
    return worst


def e8() -> None:
    table = Table("growing", "E8", {"queries": TEN, "growth": 64, "epsilon": 1})
    sizes = [10**k for k in range(3, 8)]
    for mode, expected in (("paper", -1 / 3), ("plus", -1 / 2)):
        means = []
        for n in sizes:
            plan = BBScheduler.tuned(start=n, budget=PURE, power=1, factor=4, mode=mode)
            values = [worst_over_time(plan, 64, seed) for seed in SEEDS]
            means.append(np.mean(values))
            table.add(what=mode, n=n, gamma=plan.gamma, bound=plan.error(1, 4), **spread(values))
        slope = float(np.polyfit(np.log(sizes), np.log(means), 1)[0])
        table.add(what=f"{mode}: slope", slope=slope, predicted=expected)
    improver(table)
    best_mwem(table)
    table.save()
    draw_e8(table.rows)


def improver(table: Table) -> None:
    """Error of run t of BBImprover over the Laplace box, far out: the answer in force at size t."""
    plan = BBImprover(start=1000, budget=APPROX)
    ts, means = [10**k for k in range(3, 10)], []
    for t in ts:
        counts = np.full(TEN, t // TEN)
        run = plan.run(t - plan.start)
        values = []
        for seed in range(10):
            place = Place(SeededNoise(seed), "e8i").inside(t)
            values.append(np.abs(laplace_box(counts, run.share, place) - counts / t).max())
        means.append(np.mean(values))
        table.add(what="improver", n=t, **spread(values))
    slope = float(np.polyfit(np.log(ts), np.log(means), 1)[0])
    table.add(what="improver: slope", slope=slope, predicted=-0.5)


def best_mwem(table: Table) -> None:
    """Static MWEM at its best number of rounds: how far the proved n^(-1/3) is from practice."""
    domain, many = 1024, 1024
    sizes, means = (300, 1000, 3000, 10_000, 30_000, 100_000, 300_000), []
    for n in sizes:
        by_rounds: dict[int, list[float]] = {}
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            queries = Matrix.of(rng.integers(0, 2, (many, domain)))
            support = rng.choice(domain, 64, replace=False)
            histogram = np.bincount(rng.choice(support, n), minlength=domain)
            for rounds in (1, 4, 16, 64):
                mwem = Mwem(queries=queries, rounds=rounds, most_rounds=rounds, replays=1)
                place = Place(SeededNoise(seed), "e8m").inside(n, rounds)
                values = mwem.release(histogram, Share.of(PURE), place, float(n)).values
                gap = np.abs(values - queries.exact(histogram)).max() / n
                by_rounds.setdefault(rounds, []).append(gap)
        rounds, values = min(by_rounds.items(), key=lambda item: np.mean(item[1]))
        bound = Mwem(queries=queries).bound(Share.of(PURE), n, 0.05) / n
        means.append(np.mean(values))
        table.add(what="static MWEM", n=n, rounds=rounds, bound=bound, **spread(values))
    local = np.diff(np.log(means)) / np.diff(np.log(sizes))
    table.add(what="static MWEM: local slopes", slope=[round(float(s), 2) for s in local],
              predicted=-1 / 3)  # fmt: skip


def draw_e8(rows: list[dict]) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    for what, color in (("paper", "C1"), ("plus", "C0"), ("improver", "C4")):
        part = [row for row in rows if row["what"] == what]
        slope = next(row["slope"] for row in rows if row["what"] == f"{what}: slope")
        name = {"paper": "BBScheduler, paper", "plus": "BBScheduler, plus",
                "improver": "BBImprover (at size t)"}[what]  # fmt: skip
        left.errorbar(
            [r["n"] for r in part],
            [r["mean"] for r in part],
            [r["sd"] for r in part],
            color=color,
            marker="o",
            ms=3,
            label=f"{name}: slope {slope:.2f}",
        )
        if what != "improver":
            left.plot([r["n"] for r in part], [r["bound"] for r in part], color=color, ls=":")
    left.set(xlabel="first size n (BBImprover: t)", ylabel="worst error over time / size",
             title="ten counts; dotted: proved")  # fmt: skip
    part = [row for row in rows if row["what"] == "static MWEM"]
    x = [r["n"] for r in part]
    right.errorbar(x, [r["mean"] for r in part], [r["sd"] for r in part], marker="o", ms=3,
                   label="MWEM, best number of rounds")  # fmt: skip
    right.plot(x, [r["bound"] for r in part], "C0:", label="proved (a third-power law)")
    right.set(xlabel="records", ylabel="largest error / records", title="1,024 random queries")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log")
        axes.grid(alpha=0.3, lw=0.4)
        axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(FIGURES / "growing-powers.png", dpi=130)


# --- E9 -------------------------------------------------------------------------------------------


def paper_count(n: int, t: int, domain: int, alpha: float) -> float:
    """The paper's own bound on hard questions by size t."""
    tau = np.arange(n + 1, t + 1, dtype=float)
    terms = math.log(domain) / tau + np.log(tau - 1) / tau + np.log(tau / (tau - 1))
    return 36 / alpha**2 * (math.log(domain) + float(terms.sum()))


def e9(n=2000, growth=32, domain=64, gap=0.1) -> None:
    """No noise, and the worst question at every size: where the synthetic table is too low."""
    table = Table("growing", "E9", {"n": n, "growth": growth, "domain": domain, "gap": gap})
    unlimited, alpha = Share("pure", 10**9), 1.5 * gap
    pmwg = Pmwg(share=unlimited, start=n, domain=domain, first=Share("pure", 1),
                threshold=gap, step=4 * gap, alpha=alpha)  # fmt: skip
    limit = math.log(domain) / (2 * gap**2)
    for seed in SEEDS:
        rng, place = np.random.default_rng(seed), Place(SilentNoise(), "e9")
        state = pmwg.init(np.bincount(rng.integers(0, domain, n), minlength=domain), place)
        total, most, count = 0, 0.0, 0
        while state.size < growth * n:
            rarest = int(
                np.argmin(state.weights)
            )  # the shift that the synthetic table expects least
            pmwg.arrive(state, np.full(max(1, state.size // 100), rarest), place)
            while True:
                low = state.weights < state.histogram / state.size
                if pmwg.ask(state, low.astype(float), place).kind != "HARD":
                    break
                total, count = total + state.size, count + 1
            most = max(most, total / (state.size * limit))
        table.add(seed=seed, hard=count, sum_over_bound=most,
                  bound=limit * (1 + math.log(state.size / n)),
                  paper=paper_count(n, state.size, domain, alpha))  # fmt: skip
        assert most <= 1
    table.save()


# --- E11 ------------------------------------------------------------------------------------------

D, RADIUS, STEPS = 10, 10.0, 200
LINK = LOSSES["logistic"]


def people(count: int, rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows in the unit ball and labels of a logistic model; the model itself is returned too."""
    x = unit_rows(rng.normal(size=(count, D)) / math.sqrt(D), intercept=False)
    model = 6 * np.ones(D) * (-1.0) ** np.arange(D) / math.sqrt(D)
    y = np.where(rng.random(count) < 1 / (1 + np.exp(-x @ model)), 1.0, -1.0)
    return x, y, model


def e11(starts=(500, 2000, 8000, 50_000), growth=12) -> None:
    """Excess population loss of the model in force when the table has grown twelvefold."""
    table = Table("growing", "E11", {"d": D, "growth": growth, "budget": "1, 1e-6", "steps": STEPS,
                          "radius": RADIUS})  # fmt: skip
    train = NoisyGradientDescent(radius=RADIUS, max_steps=STEPS).train
    held, labels, model = people(100_000, np.random.default_rng(99))

    def loss(theta) -> float:
        return float(LINK.value(labels * (held @ theta)).mean())

    best = loss(model)
    for n in starts:
        t = growth * n
        plans = {
            "BBImprover": BBImprover(start=n, budget=APPROX),
            "BBScheduler, paper": BBScheduler(start=n, budget=APPROX, gamma=0.3, mode="paper"),
            "BBScheduler, plus": BBScheduler(start=n, budget=APPROX, gamma=0.3),
            "DisjointDoubling": DisjointDoubling(start=n, budget=APPROX),
        }
        found: dict[str, list[float]] = {}
        for seed in SEEDS:
            x, y, _ = people(t, np.random.default_rng(seed))
            place = Place(SeededNoise(seed), "e11").inside(n)

            def note(name, theta, found=found):
                found.setdefault(name, []).append(loss(theta) - best)

            note("trivial", np.zeros(D))
            for i, (name, plan) in enumerate(plans.items()):
                run = last_run(plan, t)
                note(name, train(x[run.start : run.size], y[run.start : run.size], run.share,
                                 place.inside(i)))  # fmt: skip
            note("static reference", train(x, y, Share.of(APPROX), place.inside(9)))
            note("without privacy", minimiser(LINK, x, y, 1e-6, 1e-6))
        for name, values in found.items():
            table.add(n=n, t=t, mechanism=name, **spread(values))
    table.save()
    draw_e11(table.rows)


def last_run(plan, size: int):
    """The run whose answer stands when the table has this size."""
    if isinstance(plan, BBImprover):
        return plan.run(size - plan.start)
    index = 0
    while plan.run(index + 1).size <= size:
        index += 1
    return plan.run(index)


def draw_e11(rows: list[dict]) -> None:
    figure, axes = plt.subplots(figsize=(7.5, 4))
    styles = {
        "trivial": ("0.6", ":"), "static reference": ("0.2", ":"), "without privacy": ("0.2", "--"),
        "BBImprover": ("C4", "-"), "BBScheduler, paper": ("C1", "--"),
        "BBScheduler, plus": ("C1", "-"), "DisjointDoubling": ("C0", "-"),
    }  # fmt: skip
    for name, (color, dash) in styles.items():
        part = [row for row in rows if row["mechanism"] == name]
        axes.errorbar([r["n"] for r in part], [r["mean"] for r in part], [r["sd"] for r in part],
                      color=color, ls=dash, marker="o", ms=3, capsize=2, label=name)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="records at the first training",
             ylabel="excess population loss at 12 n")  # fmt: skip
    starts = sorted({row["n"] for row in rows})
    axes.set_xticks(starts, [f"{n:,}" for n in starts])
    axes.minorticks_off()
    axes.grid(alpha=0.3, lw=0.4)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.tight_layout()
    figure.savefig(FIGURES / "growing-classifier.png", dpi=130)


EXPERIMENTS = {"E7": e7, "E8": e8, "E9": e9, "E11": e11}


def main() -> None:
    for name in named(EXPERIMENTS, __doc__):
        print(name, flush=True)
        began = time.perf_counter()
        EXPERIMENTS[name]()
        print(f"   {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
