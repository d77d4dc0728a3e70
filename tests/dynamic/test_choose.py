"""The chooser: right at the sizes where the answer is known, honest where nothing helps."""

import math

import pytest

from streamveil.core.accounting import Budget
from streamveil.core.noise import Place, SilentNoise
from streamveil.dynamic import Changes, Workload, choose
from streamveil.dynamic.schedulers import BBImprover
from streamveil.linear import Marginals, Matrix, Share

CELLS = Marginals.ways((2,) * 9, 3)
APPROX, PURE = Budget(epsilon=1, delta=1e-6), Budget(epsilon=1)


def of(**changes):
    plain = {"queries": CELLS, "size": 3000.0, "steps": 1024, "updates": 1.5e6}
    return Workload(**{**plain, **changes})


def test_counting_uses_one_counter_and_never_the_interval_tree():
    one = Matrix.of([[1.0] * 4])
    for budget in (APPROX, PURE):
        choice = choose(of(queries=one), budget)
        assert choice.best.name == "counter"
        by_name = {c.name: c for c in choice.candidates}
        assert by_name["interval tree"].expected > 3 * choice.best.expected


def test_a_large_domain_without_structure_prefers_a_model_to_noise():
    import numpy as np

    rng = np.random.default_rng(0)
    wide = Matrix.of(rng.random((3000, 2048)) < 0.5)
    choice = choose(of(queries=wide, size=30_000, steps=64, updates=1e6), APPROX)
    assert choice.best.name != "counter"


@pytest.mark.parametrize("preset", ["practical", "theorem"])
def test_it_says_when_nothing_is_useful(preset):
    choice = choose(of(size=50, updates=1e5, steps=4096), APPROX, preset)
    assert not choice.useful
    assert "None of these is useful" in str(choice)


def test_both_errors_are_printed_and_the_presets_rank_by_their_own():
    practical, theorem = (choose(of(), APPROX, preset) for preset in ("practical", "theorem"))
    text = str(practical)
    assert "proved (95%)" in text
    assert "expected" in text
    assert text.count("\n") >= 6
    assert [c.expected for c in practical.candidates] == sorted(
        c.expected for c in practical.candidates
    )
    assert [c.proved for c in theorem.candidates] == sorted(c.proved for c in theorem.candidates)
    assert theorem.candidates[-1].name == "continual MWEM"
    assert math.isinf(theorem.candidates[-1].proved)


def test_the_published_order_of_proved_bounds():
    """By proof, rerunning beats the interval tree at few steps, and loses at very many."""
    few = {c.name: c.proved for c in choose(of(steps=64, size=1e9, updates=1e11), PURE).candidates}
    many = {
        c.name: c.proved for c in choose(of(steps=1 << 26, size=1e9, updates=1e16), PURE).candidates
    }
    assert few["rerun"] < few["interval tree"] < few["two streams"] * 10
    assert many["interval tree"] < many["rerun"]


@pytest.mark.parametrize("budget", [APPROX, PURE])
@pytest.mark.parametrize(
    "changes",
    [
        {"grows": True},
        {"steps": None},
        {"steps": None, "retention": 20},
        {"grows": True, "steps": None},
    ],
)
def test_every_workload_gets_a_mechanism_within_its_budget(budget, changes):
    choice = choose(of(**changes), budget)
    for candidate in choice.candidates:
        assert candidate.mechanism.guarantee.loss.fits(budget)
        assert candidate.expected > 0
        assert candidate.proved >= 0.5 * candidate.expected


@pytest.mark.parametrize("steps", [1, 7, 64, 511, None])
def test_the_proved_error_of_a_tree_covers_every_step(steps):
    """It was that of half of the blocks: after 511 steps three quarters of what is proved."""
    queries = Marginals.ways((2, 2), 1)
    found = choose(of(queries=queries, size=1e6, steps=steps), PURE).candidates
    counter = next(c for c in found if c.name == "counter")
    place = Place(SilentNoise(), "x")
    state, bounds = counter.mechanism.init(place), []
    for _ in range(steps or 600):
        counter.mechanism.step(state, Changes(), place)
        bounds.append(counter.mechanism.bound(state, 0.05))
    assert max(bounds) <= counter.proved * (1 + 1e-9)
    if steps:
        assert max(bounds) >= 0.99 * counter.proved
        assert counter.expected <= counter.proved


def test_impossible_workloads_are_refused():
    with pytest.raises(ValueError, match="size"):
        of(size=0)
    with pytest.raises(ValueError, match="preset"):
        choose(of(), APPROX, "best")


@pytest.mark.parametrize("wrong", [None, 1.0, "epsilon = 1", [1]])
def test_arguments_of_another_kind_are_named(wrong):
    table = Workload(queries=Marginals.ways((2, 2), 1), size=30, steps=4, updates=30)
    with pytest.raises(ValueError, match="budget must be a Budget such as"):
        choose(table, wrong)
    with pytest.raises(ValueError, match="budget must be a Budget such as"):
        Share.of(wrong)
    with pytest.raises(ValueError, match=r"preset must be one of|unknown preset"):
        choose(table, Budget(epsilon=1, delta=1e-6), preset=wrong)
    with pytest.raises(ValueError, match="start must be"):
        BBImprover(start=0 if wrong == 1.0 else wrong, budget=Budget(epsilon=1))
