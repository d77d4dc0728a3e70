"""Calls of the objects of growing and changing tables: what they cannot take is said in words."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from streamveil.core.accounting import Budget
from streamveil.core.noise import Place, SeededNoise, SilentNoise
from streamveil.dynamic import (
    Bag,
    BBImprover,
    BBScheduler,
    Changes,
    ContinualMwem,
    DisjointDoubling,
    FullyDynamic,
    GrowingClassifier,
    InsertionOnly,
    LivePmw,
    LiveTable,
    NoisyGradientDescent,
    OutputPerturbation,
    Pmwg,
    Rerun,
    Reruns,
    SignedCounter,
    TwoStream,
    Workload,
    choose,
    growing,
)
from streamveil.dynamic.signed_counter import TreeCounter
from streamveil.errors import HorizonError, PlanError, StoreError
from streamveil.linear import Marginals, Mwem, Residuals, Share, noisy_queries

PURE, BOTH, ALL = Budget(epsilon=1), Budget(epsilon=1, delta=1e-6), Share("pure", 1)
CELLS = Marginals.ways((2, 2), 1)
SUMS, OTHER = noisy_queries(CELLS), noisy_queries(Marginals.ways((2, 2), 2))
TABLE = Workload(queries=CELLS, size=1000, steps=4, updates=2000)
COUNTER = SignedCounter(strategy=Residuals(CELLS), share=Share("gdp", 1), horizon=4)
PMWG = Pmwg.practical(ALL, start=100, domain=4)
ROWS = np.eye(2)


def place():
    return Place(SilentNoise(), "calls")


def live(mechanism=COUNTER, noise=None, name="calls"):
    return LiveTable.open(mechanism, noise or SilentNoise(), name)


def grown(points):
    table, here = growing(Mwem(queries=CELLS), ALL, steps=4), place()
    table.step(table.init(here), Changes(born=points), here)


def arrived(points):
    here = place()
    state = PMWG.init(np.array([100, 0, 0, 0]), here)
    PMWG.arrive(state, points, here)
    return state.size


def reruns(kind, **settings):
    schedule = kind(start=10, budget=PURE)
    return Reruns(schedule, lambda data, *_: len(data), range, place(), **settings)


def classifier(**settings):
    schedule = DisjointDoubling(start=9, budget=BOTH)
    given = {"features": 2, "classes": (0, 1), "noise": SeededNoise(1), "schedule": schedule}
    return GrowingClassifier(**{**given, **settings})


def fitted(rows, labels):
    return classifier().partial_fit(rows, labels)


def with_histogram():
    """Answers with a synthetic histogram."""
    mwem = Mwem(queries=CELLS)
    return mwem.release(np.array([5, 6, 7, 8]), ALL, place(), 26.0)


def tuned(**settings):
    return BBScheduler.tuned(start=9, budget=PURE, **settings)


REFUSED = [
    ("0 to 3", lambda: grown([4])),
    ("0 to 3", lambda: grown([-1])),
    ("whole", lambda: grown([0.5])),
    ("whole", lambda: arrived([np.nan])),
    ("whole", lambda: arrived([True])),
    ("in a list", lambda: arrived([[1, 2]])),
    ("labels", lambda: Bag.of([0.5])),
    ("labels", lambda: Bag.of([-1]).histogram(4)),
    ("at least 0", lambda: PMWG.init([101, -1, 0, 0], place())),
    ("whole", lambda: PMWG.init([99.5, 0.5, 0, 0], place())),
    ("start", lambda: Pmwg.practical(ALL, start=0, domain=4)),
    ("halts", lambda: Pmwg.practical(ALL, start=9, domain=4, halts=0.5)),
    ("share", lambda: Pmwg.practical(5, start=9, domain=4)),
    ("`start`", lambda: PMWG.init([2**62] * 3 + [2**62 + 100], place())),  # wraps around to 100
    ("only_grows", lambda: replace(COUNTER, only_grows="no")),
    ("only_grows", lambda: LivePmw(share=ALL, start=9, domain=4, only_grows=1)),
    ("grows", lambda: replace(TABLE, grows="no")),
    ("replaced", lambda: noisy_queries(CELLS, replaced="no")),
    ("share", lambda: replace(COUNTER, share=5)),
    ("share", lambda: ContinualMwem(queries=CELLS, share=5, horizon=4)),
    ("power", lambda: BBScheduler(start=9, budget=PURE).error("x", 1)),
    ("query must be numbers", lambda: with_histogram()(list("abcd"))),
    ("query needs 4", lambda: with_histogram()([0.5])),
    ("beta", lambda: COUNTER.bound(COUNTER.init(place()), np.nan)),
    ("masked", lambda: arrived(np.ma.array([1, 2], mask=[0, 1]))),
    ("sign", lambda: Bag.of([1], sign=0.5)),
    ("domain", lambda: Bag.of([1]).histogram("abc")),
    ("public_steps", lambda: FullyDynamic.repaired(SUMS, ALL, horizon=4, public_steps="no")),
    ("budget", lambda: DisjointDoubling(start=9, budget=5)),
    ("loss", lambda: NoisyGradientDescent(loss="logistic")),
    ("loss", lambda: OutputPerturbation(loss="logistic")),
    ("mode", lambda: BBScheduler(start=9, budget=PURE, mode=None)),
    ("share", lambda: Rerun(static=SUMS, share=5, steps=4)),
    ("static", lambda: TwoStream(static=5, share=ALL, horizon=4)),
    ("size must", lambda: Workload(queries=CELLS, size=True, steps=4, updates=9)),
    ("size must", lambda: Workload(queries=CELLS, size=np.timedelta64(3, "D"), steps=4, updates=9)),
    ("too small", lambda: Pmwg.practical(Share("pure", 0), start=9, domain=4)),
    ("asked", lambda: Pmwg.theorem(ALL, start=9, domain=4, asked=0)),
    ("beta", lambda: PMWG.questions(0, 0)),
    ("epoch", lambda: PMWG.questions(-1)),
    ("beta", lambda: live().error_bound(0)),
    ("beta", lambda: live().error_bound(1)),
    ("query must be between 0 and 3", lambda: live().query(-1)),
    ("query must be between 0 and 3", lambda: live().query(4)),
    ("name must be text", lambda: live(name="\ud800")),
    ("mechanism", lambda: live(mechanism=None)),
    ("noise", lambda: live(noise=7)),
    ("name", lambda: live(name=3)),
    ("workload", lambda: choose(None, BOTH)),
    ("part", lambda: choose(TABLE, BOTH, part=2)),
    ("part", lambda: choose(TABLE, BOTH, part=float("nan"))),
    ("steps", lambda: Workload(queries=CELLS, size=9, steps=0, updates=9)),
    ("retention", lambda: Workload(queries=CELLS, size=9, steps=9, updates=9, retention=0)),
    ("steps", lambda: growing(Mwem(queries=CELLS), ALL, steps=0)),
    ("steps", lambda: growing(Mwem(queries=CELLS), ALL, steps=1.5)),
    ("arity", lambda: growing(Mwem(queries=CELLS), ALL, steps=9, arity=0)),
    ("static", lambda: growing(None, ALL, steps=9)),
    ("step", lambda: Mwem(queries=CELLS, step=1e9)),
    ("replays", lambda: Mwem(queries=CELLS, replays=-1)),
    ("size_share", lambda: Mwem(queries=CELLS, size_share=1.5)),
    ("step_size", lambda: ContinualMwem(queries=CELLS, share=ALL, horizon=4, step_size=1e9)),
    ("size_share", lambda: ContinualMwem(queries=CELLS, share=ALL, horizon=4, size_share=0)),
    *(
        ("Gaussian noise only", lambda made=made: made(Mwem(queries=CELLS), Share("gdp", 1)))
        for made in (
            lambda static, share: Rerun(static=static, share=share, steps=4),
            lambda static, share: TwoStream(static=static, share=share, horizon=4),
            lambda static, share: FullyDynamic.repaired(static, share, horizon=4),
            InsertionOnly.dense,
            lambda static, share: growing(static, share, steps=4),
            lambda _, share: ContinualMwem(queries=CELLS, share=share, horizon=4),
            lambda static, share: static.release(np.zeros(4, int), share, place()),  # too few
        )
    ),
    ("static", lambda: replace(FullyDynamic.repaired(SUMS, ALL, horizon=8), static=OTHER)),
    ("static", lambda: replace(InsertionOnly.dense(SUMS, ALL, 8), static=OTHER)),
    ("static", lambda: replace(growing(SUMS, ALL).inner, static=OTHER)),
    ("plan", lambda: replace(FullyDynamic.repaired(SUMS, ALL, horizon=8), plan="evenly")),
    ("gamma", lambda: BBScheduler(start=9, budget=PURE, gamma=1e-9)),
    ("beta", lambda: BBImprover(start=9, budget=PURE, beta=2)),
    ("beta", lambda: DisjointDoubling(start=9, budget=PURE, beta=1)),
    ("power", lambda: tuned(power=0, factor=1)),
    ("factor", lambda: tuned(power=1, factor=-1)),
    ("no run", lambda: BBScheduler(start=9, budget=PURE).run(10**6)),
    ("records", lambda: reruns(DisjointDoubling).arrive(1.5)),
    ("size", lambda: reruns(DisjointDoubling, size=-1)),
    ("features", lambda: classifier(features=1.5)),
    ("classes", lambda: classifier(classes=None)),
    ("classes", lambda: classifier(classes=(float("nan"), 1.0))),
    ("classes", lambda: classifier(classes=(0, "a"))),
    ("method", lambda: classifier(method=None)),
    ("a label each", lambda: fitted(ROWS, [[0], [1]])),
    ("must be numbers", lambda: fitted([["Ada", "2"]], [0])),
    ("must be numbers", lambda: fitted([[1], [1, 2]], [0, 1])),
    ("not \\(3, 3\\)", lambda: classifier().predict(np.eye(3))),
    ("not \\(2,\\)", lambda: classifier().predict([1.0, 2.0])),
    ("one row", lambda: classifier().score(ROWS[:0], [])),
    ("each row", lambda: classifier().score(ROWS, [1])),
]


@pytest.mark.parametrize(("says", "call"), REFUSED)
def test_what_cannot_be_taken_is_refused_in_words(says, call):
    with pytest.raises(PlanError, match=says) as refused:
        call()
    assert "Ada" not in str(refused.value)  # no value from the data


@pytest.mark.parametrize("index", [-1, 0.5, np.nan, None])
@pytest.mark.parametrize("kind", [BBScheduler, BBImprover, DisjointDoubling])
def test_a_run_has_a_whole_number(kind, index):
    with pytest.raises(PlanError, match="index"):
        kind(start=9, budget=PURE).run(index)


def test_nothing_may_arrive_and_lists_are_arrays():
    assert arrived([]) == 100
    assert arrived([3, 0]) == 102
    here = place()
    state = PMWG.init([100, 0, 0, 0], here)
    assert PMWG.ask(state, [1, 0, 0, 0], here).kind in ("EASY", "HARD")


def test_refused_rows_are_no_part_of_a_model():
    """Labels in rows of their own were kept before they were refused: all later runs failed."""
    model = classifier()
    with pytest.raises(PlanError):
        model.partial_fit(ROWS, [[0], [1]])
    model.partial_fit(np.tile(ROWS, (9, 1)), [0, 1] * 9)
    assert model.trained_on == 18


def test_a_growing_table_tells_of_all_its_steps():
    """It took one batch more than it said: the first is none of the later ones."""
    table, here = growing(SUMS, ALL, steps=3), place()
    state = table.init(here)
    for _ in range(4):
        table.step(state, Changes(born=np.array([0])), here)
    with pytest.raises(HorizonError, match="covers 4 steps"):
        table.step(state, Changes(), here)


MECHANISMS = [
    ContinualMwem(queries=CELLS, share=ALL, horizon=4),
    COUNTER,
    FullyDynamic.repaired(SUMS, ALL, horizon=4),
    InsertionOnly.dense(SUMS, ALL, 4),
    Rerun(static=SUMS, share=ALL, steps=4),
    SignedCounter(strategy=Residuals(CELLS), share=Share("gdp", 1), horizon=4, only_grows=True),
    TreeCounter(strategy=Residuals(CELLS), share=ALL, horizon=4),
    TwoStream(static=SUMS, share=ALL, horizon=4),
]
NAMED = {"ids": lambda mechanism: type(mechanism).__name__}


@pytest.mark.parametrize("mechanism", MECHANISMS, **NAMED)
def test_a_record_of_no_point_of_the_domain_is_not_taken_in(mechanism):
    """It stayed in the state: every later step was refused because of it."""
    (state, here), (other, there) = ((mechanism.init(one), one) for one in (place(), place()))
    for wrong in ([4], [-1], [0.5]):
        with pytest.raises(PlanError, match=r"must be (whole )?numbers"):
            mechanism.step(state, Changes(born=np.array(wrong)), here)
    for _ in range(4):
        mechanism.step(state, Changes(born=np.array([3])), here)
        mechanism.step(other, Changes(born=np.array([3])), there)
    assert np.array_equal(mechanism.answers(state).values, mechanism.answers(other).values)


@pytest.mark.parametrize("mechanism", MECHANISMS, **NAMED)
def test_a_step_that_was_cut_off_is_not_taken_again(mechanism, monkeypatch):
    """Given again, its records counted twice; left out, later answers lacked other records."""
    here, steps = place(), Changes(born=np.array([3]))
    state = mechanism.init(here)
    mechanism.step(state, steps, here)
    before = mechanism.answers(state).values
    with monkeypatch.context() as patch:
        patch.setattr(Place, "draws", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mechanism.step(state, steps, here)
    with pytest.raises(StoreError, match=r"was cut off(.|\n)*to fix"):
        mechanism.step(state, steps, here)
    assert len(mechanism.answers(state).values) == len(before)


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["arrive", "step"])
def test_records_whose_arrival_was_cut_off_are_given_again(kind, monkeypatch):
    """They counted twice."""
    here, many = place(), [1] * 100
    table = PMWG if kind == "arrive" else LivePmw(share=ALL, start=50, domain=4, only_grows=True)
    state = PMWG.init(np.array([100, 0, 0, 0]), here) if kind == "arrive" else table.init(here)

    def come():
        if kind == "arrive":
            table.arrive(state, many, here)
        else:
            table.step(state, Changes(born=np.array(many)), 100, here)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "draws", interrupted)
        with pytest.raises(KeyboardInterrupt):
            come()
    come()
    assert state.histogram[1] == 100
    assert (state.epoch > 0, state.run is not None) == (True, True), "the epoch has its own run"


def test_a_table_after_its_last_step_tells_how_many_there_were():
    table = live()
    for _ in range(4):
        table.tick()
    table.insert(1, rid=1)
    with pytest.raises(HorizonError):
        table.tick()
    assert table.t == 4
    assert len(table.pending) == 1


def test_a_copy_of_a_table_counts_nothing_twice():
    """Both ended a step with what was pending: a record counted as two, for the noise of one."""
    table = live()
    table.insert(3, rid=1)
    other = copy.copy(table)
    table.tick()
    other.tick()
    assert table.answers().values.max() == 1


def test_a_copy_of_a_table_takes_the_same_steps():
    """A copy counted steps of its own: records left from other buckets than they had come to."""
    table = live()
    other = copy.copy(table)
    table.tick()
    other.insert(3, rid=1)
    other.tick()
    table.delete(1)
    assert table.t == other.t == 2
    assert table.pending[0].birth.tolist() == [2]


def test_a_copy_of_a_model_has_its_records():
    """A copy's rows went to a list of its own, and the next training read one row of nine."""

    class Counts:
        def train(self, x, y, share, place):
            self.read = len(x)
            return np.zeros(3)

    model = classifier(method=Counts())
    for one in (model, copy.copy(model)):
        one.partial_fit(np.tile(ROWS, (5, 1)), [0, 1] * 5)
    assert model.trainer.read == 9


def test_what_a_trainer_writes_reaches_no_other_run_and_no_answer():
    """A trainer that centred its rows in place changed all rows of the next run, so that one record
    moved every one of them; and what it kept of its answer was shown while it trained again."""

    class Writes:
        def __init__(self):
            self.read, self.theta = [], np.zeros(3)

        def train(self, x, y, share, place):
            self.read.append(x.copy())
            self.theta += x.sum(axis=0)
            if len(self.read) > 1:
                raise ArithmeticError
            x -= x.mean(axis=0)
            y[:] = 1
            return self.theta

    schedule = BBScheduler(start=10, budget=Budget(epsilon=1), gamma=1.0)
    model = classifier(method=Writes(), schedule=schedule)
    model.partial_fit(np.tile(ROWS, (5, 1)), [0, 1] * 5)
    shown = model.coef_
    with pytest.raises(ArithmeticError):
        model.partial_fit(np.tile(ROWS, (5, 1)), [0, 1] * 5)
    first, second = model.trainer.read
    assert np.array_equal(first, second[:10])
    assert np.array_equal(shown, model.coef_)


@pytest.mark.parametrize("records", [1, 7, 10**3, 10**9])
@pytest.mark.parametrize("kind", [BBScheduler, BBImprover, DisjointDoubling])
def test_the_last_run_that_is_due_is_made_however_many_records_come(kind, records):
    """All runs between were made out one by one: some thousand million records took hours."""
    runs = reruns(kind)
    for _ in range(30):
        before = runs.next_index
        came = runs.arrive(records)
        after = runs.next_index
        assert runs.schedule.run(after).size > runs.size
        assert came == (after > before)
        assert not came or runs.schedule.run(after - 1).size <= runs.size


@pytest.mark.parametrize("labels", [("no", "yes"), [3, 7], np.array(["b", "a"]), np.unique([1, 0])])
def test_classes_are_two_labels_in_any_sequence(labels):
    model = classifier(classes=labels).partial_fit(ROWS, list(labels))
    assert model.classes_.tolist() == list(labels)
