import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.pmw import Pmw
from streamveil.core.noise import Place, SeededNoise, SilentNoise
from streamveil.dynamic.pack import pack, unpack
from streamveil.dynamic.pmwg import Pmwg, PmwgState, first_share
from streamveil.linear.budget_shares import Meter, Share
from streamveil.linear.queries import LARGEST, counted

QUIET, PURE, ZCDP = Place(SilentNoise(), "t"), Share("pure", 1), Share("zcdp", Fraction(1, 50))


def entropy(x, y):
    some = x > 0
    return float((x[some] * np.log(x[some] / y[some])).sum())


@pytest.mark.parametrize("share", [PURE, ZCDP])
@pytest.mark.parametrize("power", [0.0, 0.5, 0.9])
def test_the_plan_of_all_epochs_costs_the_share(share, power):
    halts, later = 7, 3
    first = first_share(share, halts, later, power)
    factor = 2.0 ** (-(1 - power) * (1 if share.kind == "pure" else 2))
    prices = [float(first.amount) * factor**epoch for epoch in range(2000)]
    planned = halts * prices[0] + later * sum(prices[1:])
    assert planned == pytest.approx(float(share.amount), rel=1e-9)
    assert planned <= float(share.amount) * (1 + 1e-9)


@given(st.integers(0, 2**32))
def test_mixing_adds_at_most_ln_n_to_the_potential(seed):
    rng = np.random.default_rng(seed)
    n, points, t = 6, rng.integers(0, 6, 3), int(rng.integers(5, 50))
    pmwg = Pmwg.practical(PURE, start=t, domain=n)
    start = rng.multinomial(t, rng.dirichlet(np.ones(n)))
    state = pmwg.init(start, QUIET)
    state.weights = rng.dirichlet(np.ones(n)) + 1e-9
    state.weights /= state.weights.sum()
    for point in points:
        before = state.size * entropy(state.histogram / state.size, state.weights)
        pmwg.arrive(state, np.array([point]), QUIET)
        after = state.size * entropy(state.histogram / state.size, state.weights)
        assert after - before <= math.log(n) + 1e-9
        assert state.weights.sum() == pytest.approx(1)


def drive(pmwg, place, rounds=60, seed=1, batch=40):
    """Growing data that drifts, with questions that follow the current error."""
    rng = np.random.default_rng(seed)
    n = pmwg.domain
    state = pmwg.init(rng.multinomial(pmwg.start, np.ones(n) / n), place)
    answers = []
    for i in range(rounds):
        pmwg.arrive(state, (rng.zipf(1.5, batch) + i) % n, place)
        for _ in range(5):
            query = (rng.random(n) < 0.5).astype(float)
            answer = pmwg.ask(state, query, place)
            answers.append((answer.kind, answer.value, float(query @ state.histogram), state.size))
    return state, answers


def test_without_noise_every_promised_answer_is_within_the_threshold():
    pmwg = Pmwg.practical(PURE, start=500, domain=32, halts=400, threshold=0.05)
    _, answers = drive(pmwg, QUIET)
    kinds = {kind for kind, *_ in answers}
    assert kinds == {"EASY", "HARD"}
    for kind, value, truth, size in answers:
        assert abs(value - truth) <= (0 if kind == "HARD" else 0.05 * size + 1)


def test_the_share_is_never_passed_and_exhaustion_shows():
    for share in (PURE, ZCDP):
        pmwg = Pmwg.practical(share, start=200, domain=16, halts=3, threshold=0.001)
        state, answers = drive(pmwg, Place(SeededNoise(1), "t"))
        assert state.meter.spent <= share.amount
        assert answers[-1][0] == "EXHAUSTED"


@pytest.mark.parametrize("cut", range(4))
def test_after_a_cut_off_question_the_next_one_is_answered(cut, monkeypatch):
    """All later ones were refused: noise drawn before, or a run that has halted."""
    pmwg, here = Pmwg.practical(Share("pure", 9), start=100, domain=2), Place(SeededNoise(1), "t")
    state, question = pmwg.init(np.array([100, 0]), here), np.array([1.0, 0])
    draws, given = Place.draws, []

    def interrupted(place, *more):
        found = draws(place, *more)
        given.append(more)
        if len(given) == cut + 1:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Place, "draws", interrupted)
        with pytest.raises(KeyboardInterrupt):
            [pmwg.ask(state, question, here) for _ in range(50)]
    spent = state.meter.spent
    assert pmwg.ask(state, question, here).kind in ("EASY", "HARD")
    assert spent <= state.meter.spent <= 9


def test_corrections_stay_below_the_bound_of_the_potential():
    pmwg = Pmwg.practical(PURE, start=500, domain=32, halts=10**6, threshold=0.05)
    state, answers = drive(pmwg, QUIET, rounds=200)
    sizes = [size for kind, _, _, size in answers if kind == "HARD"]
    # silent noise: a correction has a gap of at least the threshold and a step of twice the gap,
    # which lowers the entropy by at least 3/2 gap^2 (2 e g - e^2 / 2 at e = 2 g is 2 g^2)
    assert sum(sizes) <= state.size * math.log(32) / (2 * 0.05**2 * 0.75)


def test_theorem_settings_satisfy_their_own_conditions():
    for share in (PURE, ZCDP):
        pmwg = Pmwg.theorem(share, start=10**6, domain=64, asked=100)
        assert pmwg.holds(100, 0.05)
        assert pmwg.questions(10) > pmwg.questions(0)  # more questions as the table grows
        larger = Pmwg.theorem(share, start=10**8, domain=64, asked=100)
        assert larger.alpha < pmwg.alpha
    assert Pmwg.theorem(PURE, start=10**6, domain=64, asked=100).alpha == pytest.approx(
        0.2, rel=0.5
    )


def test_saving_anywhere_changes_nothing():
    pmwg = Pmwg.practical(PURE, start=200, domain=16, halts=20, threshold=0.02)
    place, replayed = Place(SeededNoise(4), "t"), Place(SeededNoise(4), "t")
    rng = np.random.default_rng(0)
    state = pmwg.init(rng.multinomial(200, np.ones(16) / 16), place)
    for _ in range(30):
        twin = unpack(pack(state), PmwgState)
        points = rng.integers(0, 4, 25)
        query = (rng.random(16) < 0.5).astype(float)
        for one, at in ((state, place), (twin, replayed)):
            pmwg.arrive(one, points, at)
        assert pmwg.ask(state, query, place) == pmwg.ask(twin, query, replayed)
        np.testing.assert_array_equal(state.weights, twin.weights)


@pytest.mark.parametrize(
    ("name", "value"),
    [("step", -1.0), ("step", np.nan), ("step", 1e9), ("least", -1.0), ("least", np.inf)],
)
def test_settings_are_checked(name, value):
    with pytest.raises(ValueError, match=name):
        replace(Pmwg.practical(PURE, start=4, domain=4), **{name: value})


def test_a_share_for_gaussian_noise_alone_pays_for_no_comparisons():
    """It stated the loss of a Gaussian mechanism, which comparisons do not have."""
    with pytest.raises(ValueError, match="Gaussian noise only"):
        replace(Pmwg.practical(PURE, start=4, domain=4), share=Share("gdp", 1))


def test_bad_input_names_the_argument():
    pmwg = Pmwg.practical(PURE, start=4, domain=4)
    with pytest.raises(ValueError, match="start"):
        pmwg.init(np.array([1, 0, 0, 0]), QUIET)
    state = pmwg.init(np.array([1, 1, 1, 1]), QUIET)
    with pytest.raises(ValueError, match="points must be numbers from 0 to 3"):
        pmwg.arrive(state, np.array([4]), QUIET)
    with pytest.raises(ValueError, match="weights of a question"):
        pmwg.ask(state, np.array([2.0, 0, 0, 0]), QUIET)


@pytest.mark.parametrize("kind", [Pmwg, Pmw])
def test_quanta_never_overflow_so_neighbours_are_one_record_apart(kind):
    """A sum of 2^63 quanta or more would be read as a negative one: neighbours far apart."""
    ask = np.array([1.0, 0.0])

    def answer(first, shift):
        table = np.array([first, 2**23 + 5 - first])
        if kind is Pmwg:
            pmw = Pmwg.practical(PURE, start=int(table.sum()), domain=2, shift=shift)
        else:
            pmw = Pmw.practical(PURE, int(table.sum()), 2, 20, shift)
        return pmw.ask(pmw.init(table, QUIET), ask, QUIET).value

    for first in (2**23 - 1, 2**23):
        assert answer(first, 30) == first
        with pytest.raises(ValueError, match="smaller shift"):
            answer(first, 40)


def test_a_table_that_outgrows_its_quanta_is_refused_before_it_changes():
    pmwg = Pmwg.practical(PURE, start=2**10, domain=2, shift=50)
    state = PmwgState(np.array([2**10, 0]), np.full(2, 0.5), 2**10, Meter(PURE))
    with pytest.raises(ValueError, match="smaller shift"):
        pmwg.arrive(state, np.zeros(2**10, np.int64), QUIET)
    assert state.size == state.histogram.sum() == 2**10


@pytest.mark.parametrize("kind", [Pmwg, Pmw])
def test_a_question_between_the_quanta_is_refused(kind):
    if kind is Pmwg:
        pmw = Pmwg.practical(PURE, start=100, domain=2)
    else:
        pmw = Pmw.practical(PURE, 100, 2, 20)
    state = pmw.init(np.array([100, 0]), QUIET)
    for weights, words in (
        ([0.4, 0.4], "multiples"), ([np.nan, 0], "finite"), ([1.2, 0], r"in \[0, 1\]"),
        ([1.0], "one weight"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            pmw.ask(state, np.array(weights), QUIET)


@given(st.lists(st.integers(0, 2**30), min_size=1, max_size=4), st.integers(0, 49), st.data())
def test_answers_in_quanta_are_exact_or_cut_at_one_number(counts, shift, data):
    quanta = [data.draw(st.integers(0, 2**shift)) for _ in counts]
    exact = sum(q * c for q, c in zip(quanta, counts, strict=True))
    assert counted(np.array(quanta), np.array(counts)) == min(exact, LARGEST)
