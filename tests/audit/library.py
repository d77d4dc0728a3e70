"""The library's mechanisms as scripts: each takes an input and a source of noise and releases."""

from fractions import Fraction

import numpy as np

from benchmarks.papers.halfspaces import Halfspaces
from benchmarks.papers.pmw import Pmw, PmwRelease
from benchmarks.papers.qiu_yi import Squaring, published
from benchmarks.papers.snapshots import SnapshotDelta, TriggeredSnapshots
from streamveil.audit.laid_open_measures import Realised
from streamveil.core.accounting import Budget
from streamveil.core.accounting.convert import pure_zcdp
from streamveil.core.noise import Place
from streamveil.dynamic import (
    BBImprover,
    BBScheduler,
    ContinualMwem,
    DisjointDoubling,
    FullyDynamic,
    GrowingClassifier,
    Hybrid,
    InsertionOnly,
    LivePmw,
    LiveTable,
    NoisyGradientDescent,
    OutputPerturbation,
    Pmwg,
    Rerun,
    Reruns,
    SignedCounter,
    TreeCounter,
    TwoStream,
    growing,
)
from streamveil.dynamic.buckets import Repaired
from streamveil.dynamic.distinct import DistinctCounter
from streamveil.dynamic.erm import LOSSES
from streamveil.dynamic.pack import pack, unpack
from streamveil.dynamic.pmwg import PmwgState, first_share
from streamveil.linear import (
    Direct,
    Marginals,
    Matrix,
    Mwem,
    Points,
    Ranges,
    Residuals,
    Share,
    Sums,
    Through,
    noisy_histogram,
    noisy_queries,
)
from streamveil.linear.additive import Additive

N = 4
CELLS = Marginals((N,), ((0,),))
WAYS = Marginals.ways((2, 2), 2)
FRACTIONS = Matrix.of([[0.5, 1, 0, 0.25], [0, 0.125, 1, 1], [1, 1, 1, 1]], shift=3)
SUMS = Sums.of((2, 2), [((0,), np.array([1, 0, 1, 1], bool)), ((), np.array([1, 0, 0, 1], bool))])
PURE, ZCDP, GDP = Share("pure", 2), Share("zcdp", Fraction(1, 2)), Share("gdp", Fraction(1, 2))


# ---- tables that change


def table(mechanism, matching="ids"):
    """Releases after each step of updates (sign, id, label)."""

    def release(steps, noise):
        live = LiveTable.open(mechanism, noise, "t", matching=matching)
        found = []
        for updates in steps:
            columns = np.array(updates, np.int64).reshape(-1, 3).T
            live.change(*columns)
            live.tick()
            found.append(np.array(live.answers().values))
        return found

    return release


def updates(rng, steps, *, grows, most=4, stays=None):
    """Records that come and, unless the table grows only, go; ids are used once.

    Where they may stay for so many steps at most, they are gone by then.
    """
    alive, fresh, found = [], 0, []
    for t in range(steps):
        here = []
        if stays is not None and t >= stays:
            came = {rid for sign, rid, _ in found[t - stays] if sign > 0}
            here += [(-1, *one) for one in alive if one[0] in came]
            alive = [one for one in alive if one[0] not in came]
        for _ in range(int(rng.integers(0, most + 1))):
            if grows or not alive or rng.random() < 0.6:
                alive.append((fresh, int(rng.integers(N))))
                here.append((1, *alive[-1]))
                fresh += 1
            else:
                here.append((-1, *alive.pop(int(rng.integers(len(alive))))))
        found.append(here)
    return found


def neighbour(rng, steps, kind):
    """The stream without one record, one update or one insertion; or with a record replaced."""
    places = [(t, i) for t, here in enumerate(steps) for i in range(len(here))]
    t, i = places[int(rng.integers(len(places)))]
    one = steps[t][i]
    if kind == "record":
        return [[row for row in here if row[1] != one[1]] for here in steps]
    if kind == "event-change":
        other = (1, one[1], (one[2] + 1) % N)
        return [[other if row == one else row for row in here] for here in steps]
    return [[row for j, row in enumerate(here) if (s, j) != (t, i)] for s, here in enumerate(steps)]


def distinct(share, horizon, changes=2):
    """Whether there is any record, and whether there is one at each point."""
    groups = Marginals((N,), ((), (0,)))
    return DistinctCounter(cells=groups, share=share, horizon=horizon, changes=changes)


def options(kind, share, steps):
    """Settings that are no default, and other static mechanisms."""
    queries, hidden = noisy_queries(CELLS), {"horizon": None, "public_steps": False}
    half = share.scale(Fraction(1, 2))
    once = Repaired(static=queries, most_rounds=1, arity=2)
    found = {
        "rerun while records stay": Rerun(static=queries, share=share, retention=2),
        "published hidden steps": published(queries, share, public_steps=False),
        "fully dynamic one round": FullyDynamic(
            static=queries, share=share, horizon=None, bucket=once
        ),
        "fully dynamic of pmw": FullyDynamic.repaired(
            PmwRelease(queries=CELLS, halts=2), share, **hidden
        ),
        "two streams for ever": TwoStream(static=queries, share=share, horizon=None),
        "two streams of points": TwoStream(
            static=noisy_histogram(WAYS), share=share, horizon=steps, arity=2
        ),
        "snapshots at every step": SnapshotDelta(
            static=queries, share=share, horizon=steps, every=1
        ),
        "one triggered snapshot": TriggeredSnapshots(static=queries, share=share, most=1, arity=2),
        "sparse insertions of few segments": InsertionOnly.sparse(queries, share, steps),
        "squaring insertions": InsertionOnly(
            inner=Hybrid(queries, half, Fraction(1, 2), 2), static=queries,
            partition=Squaring(epsilon=half.epsilon),
        ),
        "growing for ever": growing(queries, share, arity=2),
        "growing of pmw": growing(PmwRelease(queries=CELLS, halts=2), share, steps=steps),
        "growing by interactions": growing(Additive(Residuals(WAYS)), share, steps=steps),
        "continual mwem once a step": ContinualMwem(
            queries=FRACTIONS, share=share, horizon=steps, rounds=1, mixing=0.0
        ),
        "tree counter for ever": TreeCounter(
            strategy=Through(SUMS), share=share, horizon=None, arity=2
        ),
    }  # fmt: skip
    for name, mechanism in found.items():
        yield f"{name} {kind}", (mechanism, "ids")
    yield f"tree counter labels {kind}", (
        TreeCounter(strategy=Direct(CELLS), share=share, horizon=steps), "labels",
    )  # fmt: skip


def tables(steps):
    """Name -> (mechanism, how updates are matched)."""
    for kind, share in (("pure", PURE), ("zcdp", ZCDP)):
        statics = {
            "queries": noisy_queries(CELLS), "ways": noisy_queries(WAYS),
            "mwem": Mwem(queries=CELLS, rounds=2),
        }  # fmt: skip
        for name, static in statics.items():
            known = f"{name} {kind}"
            for public in (True, False):
                seen = "" if public else " hidden steps"
                for horizon in (steps, None):
                    yield (
                        f"fully dynamic {horizon} {known}{seen}",
                        (
                            FullyDynamic.repaired(
                                static, share, horizon=horizon, public_steps=public
                            ),
                            "ids",
                        ),
                    )
                yield (
                    f"fully dynamic labels {known}{seen}",
                    (
                        FullyDynamic.repaired(
                            static, share, horizon=None, public_steps=public, matching="labels"
                        ),
                        "labels",
                    ),
                )
            yield f"published {known}", (published(static, share), "ids")
            yield f"published finite {known}", (
                published(static, share, finite=True), "ids",
            )  # fmt: skip
            yield (
                f"two streams {known}",
                (TwoStream(static=static, share=share, horizon=steps), "ids"),
            )
            yield f"rerun {known}", (Rerun(static=static, share=share, steps=steps), "ids")
            yield f"snapshots {known}", (
                SnapshotDelta(static=static, share=share, horizon=steps, every=3), "ids",
            )  # fmt: skip
            yield f"triggered {known}", (
                TriggeredSnapshots(static=static, share=share, most=3), "ids",
            )  # fmt: skip
            yield f"insertions {known}", (InsertionOnly.dense(static, share, steps), "ids")
            yield f"insertions for ever {known}", (InsertionOnly.dense(static, share), "ids")
            yield f"sparse insertions {known}", (InsertionOnly.sparse(static, share), "ids")
            yield f"growing {known}", (growing(static, share, steps=steps), "ids")
        yield f"continual mwem {kind}", (
            ContinualMwem(queries=CELLS, share=share, horizon=steps), "ids",
        )  # fmt: skip
        for horizon in (steps, None):
            yield f"distinct {kind} {horizon}", (distinct(share, horizon), "ids")
        for only in (False, True):
            yield (
                f"tree counter {kind} {only}",
                (
                    TreeCounter(
                        strategy=Direct(CELLS), share=share, horizon=steps, only_grows=only
                    ),
                    "ids",
                ),
            )
        yield from options(kind, share, steps)
    yield "distinct gdp", (distinct(GDP, steps), "ids")
    for strategy in (Points(WAYS), Residuals(WAYS), Through(SUMS)):
        yield f"signed counter by {type(strategy).__name__}", (
            SignedCounter(strategy=strategy, share=GDP, horizon=steps), "ids",
        )  # fmt: skip
    yield "signed counter labels", (
        SignedCounter(strategy=Direct(CELLS), share=GDP, horizon=steps), "labels",
    )  # fmt: skip
    for only in (False, True):
        yield f"signed counter {only}", (
            SignedCounter(strategy=Direct(CELLS), share=GDP, horizon=steps, only_grows=only), "ids",
        )  # fmt: skip


# ---- one table, once


def statics():
    """Name -> (mechanism, share, whether neighbours replace a record of a table of public size)."""
    boxes = Halfspaces.of((2, 2), [[1.0, 1.0], [-1.0, 0.5]], [1.0, -0.5])
    strategies = {
        "direct": Direct(FRACTIONS), "points": Points(Ranges.prefixes(N)), "boxes": Direct(boxes),
        "interactions": Residuals(WAYS), "through": Through(SUMS),
    }  # fmt: skip
    for share in (PURE, ZCDP, GDP):
        for replaced in (False, True):
            of = f"{'replaced ' * replaced}{share.kind}"
            for name, strategy in strategies.items():
                yield f"once {name} {of}", Additive(strategy, replaced), share, replaced
            if share is GDP:
                continue
            for about, queries in (("fractions", FRACTIONS), ("sums", SUMS)):
                for preset in ("practical", "theorem"):
                    some = {"queries": queries, "preset": preset}
                    yield f"once MWEM {preset} {about} {of}", Mwem(**some), share, replaced
                    yield f"once PMW {preset} {about} {of}", PmwRelease(**some), share, replaced
                again = Mwem(queries=queries, rounds=2, replays=1)
                yield f"once MWEM again {about} {of}", again, share, replaced


def once(static, share, replaced):
    """One release; an input is its histogram."""

    def release(histogram, noise):
        size = float(np.sum(histogram)) if replaced else None
        place = Place(noise, "once")
        found = static.release(np.array(histogram, np.int64), share, place, size)
        return [np.array(found.values)]

    return share.loss, release


# ---- questions


def fractions(rng, count):
    """Questions with weights in quarters."""
    return rng.integers(0, 5, (count, N)) / 4


def questions(rng, count):
    return (rng.random((count, N)) < 0.5).astype(float)


def pmwg(share, asked=12, halts=3, *, kept=False):
    """A growing table that is asked between arrivals; an input is the points in their order.

    `kept`: the state is kept after each question, and goes on from there.
    """
    start = 8
    made = Pmwg(
        share=share, start=start, domain=N, first=first_share(share, halts, halts, 0.5),
        threshold=0.1, step=None,
    )  # fmt: skip

    def release(points, noise):
        rng, place, found = np.random.default_rng(5), Place(noise, "pmwg"), []
        state = made.init(np.bincount(points[:start], minlength=N), place)
        for at in range(start, len(points) + 1):
            for query in questions(rng, asked):
                answer = made.ask(state, query, place)
                found.append([len(answer.kind), answer.value])
                state = again(state) if kept else state
            if at < len(points):
                made.arrive(state, points[at : at + 1], place)
        return found

    return made.loss, release


def live_pmw(share, asked=4):
    """A changing table; an input is a histogram's births for every step."""
    made = LivePmw(share=share, start=8, domain=N, halts=3)

    def release(births, noise):
        from streamveil.dynamic import Changes

        rng, place, found = np.random.default_rng(5), Place(noise, "live"), []
        state = made.init(place)
        for step in births:
            made.step(state, Changes(np.array(step, np.int64)), 8, place)
            for query in questions(rng, asked):
                answer = made.ask(state, query, place)
                found.append([len(answer.kind), answer.value])
        return found

    return made.loss, release


def pmw(share, asked=30):
    """A static table; an input is its histogram."""
    made = Pmw.practical(share, 12, N, halts=3)

    def release(histogram, noise):
        rng, place = np.random.default_rng(5), Place(noise, "pmw")
        state = made.init(np.array(histogram, np.int64), place)
        answers = [made.ask(state, query, place) for query in questions(rng, asked)]
        return [[len(one.kind), one.value] for one in answers]

    return share.loss, release


def again(state):
    """A state that was kept, and goes on."""
    kept = unpack(pack(state), PmwgState)
    assert kept.run == state.run
    kept.run = state.run  # a run is told by its identity
    return kept


def pmwg_kept(share, theorem):
    """Questions in quarters, arrivals of several records, and a state kept after each of them."""
    start = 8
    made = Pmwg.practical(share, start=start, domain=N, halts=3, shift=2)
    if theorem:
        made = Pmwg.theorem(share, start=start, domain=N, asked=5, shift=2)

    def release(points, noise):
        rng, place, found = np.random.default_rng(5), Place(noise, "pmwg"), []
        state = made.init(np.bincount(points[:start], minlength=N), place)
        for at in range(start, len(points) + 1, 4):
            for query in fractions(rng, 6):
                answer = made.ask(state, query, place)
                found.append([len(answer.kind), answer.value])
            made.arrive(state, points[at : at + 4], place)
            state = again(state)
        return found

    return made.loss, release


def live_growing(share, *, only_grows):
    """Questions while records come and, unless the table grows only, go."""
    made = LivePmw(share=share, start=4, domain=N, halts=3, only_grows=only_grows, mixing=0.1)

    def release(steps, noise):
        from streamveil.dynamic import Changes

        rng, place, found = np.random.default_rng(5), Place(noise, "live"), []
        state = made.init(place)
        for size, (born, gone) in enumerate(steps, start=2):
            made.step(state, Changes(np.array(born, int), np.array(gone, int)), 2 * size, place)
            for query in questions(rng, 4):
                answer = made.ask(state, query, place)
                found.append([len(answer.kind), answer.value])
        return found

    return made.loss, release


# ---- reruns and training


def reruns(schedule):
    """A released histogram at each scheduled size; an input is the points in their order."""

    def release(points, noise):
        def black_box(data, share, place):
            histogram = np.bincount(data, minlength=N)
            return noisy_queries(CELLS, replaced=True).release(histogram, share, place).values

        made = Reruns(schedule, black_box, lambda a, b: points[a:b], Place(noise, "reruns"))
        return [np.array(made.answer) for _ in points if made.arrive()]

    return schedule.whole.loss, release


def reruns_of_many(schedule, together=7):
    """The same where records arrive together."""

    def release(points, noise):
        def black_box(data, share, place):
            histogram = np.bincount(data, minlength=N)
            return noisy_queries(CELLS, replaced=True).release(histogram, share, place).values

        made = Reruns(schedule, black_box, lambda a, b: points[a:b], Place(noise, "reruns"))
        ran = [made.arrive(together) for _ in range(len(points) // together)]
        return [np.array(ran), np.array(made.answer)]

    return schedule.whole.loss, release


def of_paper():
    """The schedule as it was published."""
    for budget in (Budget(epsilon=1), Budget(rho=Fraction(1, 2))):
        yield BBScheduler(start=4, budget=budget, gamma=0.5, mode="paper")


def classifier(schedule, method):
    """Coefficients after each batch; an input is rows of any length, with any labels."""

    def release(data, noise):
        x, y = data
        model = GrowingClassifier(
            features=x.shape[1], classes=(0, 1), schedule=schedule, noise=noise, method=method
        )
        return [
            np.array(model.partial_fit(x[at : at + 5], y[at : at + 5]).coef_)
            for at in range(0, len(x), 5)
        ]

    return schedule.whole.loss, release


def schedules():
    for budget in (Budget(epsilon=1), Budget(rho=Fraction(1, 2))):
        yield BBScheduler.tuned(start=4, budget=budget, power=0.5, factor=1.0)
        yield BBImprover(start=4, budget=budget)
        yield DisjointDoubling(start=4, budget=budget)


def training(trainer, share):
    """Coefficients; an input is rows with labels."""

    def release(data, noise):
        x, y = data
        return [trainer.train(x, y, share, Place(noise, "train"))]

    return share.loss, release


TRAINERS = (
    (NoisyGradientDescent(max_steps=5), ZCDP),
    (NoisyGradientDescent(loss=LOSSES["huber"], max_steps=3), ZCDP),
    (OutputPerturbation(strength=0.1), PURE),
    (OutputPerturbation(strength=0.1), ZCDP),
)


def at_worst(seen):
    """What one transcript of comparisons and measurements may cost at worst, whatever the inputs.

    For mechanisms in which a neighbour moves every number by at most one: each run of comparisons
    costs what its noise allows (`AboveThreshold` proves it, and every small input reaches most of
    it), each number one move under its noise. So a charge that is left out shows although no pair
    of inputs loses all of it on one transcript.
    """
    runs = [1 / run.scale + 2 / min(run.scales) for run in seen.runs.values() if run.scales]
    runs += [float((1 / one.scale).sum()) for one in seen.draws.values() if one.law == "laplace"]
    return Realised(sum(runs), sum(map(pure_zcdp, runs)), 0.0, tuple(seen.faults))
