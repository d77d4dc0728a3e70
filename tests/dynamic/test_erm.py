import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize

from streamveil.core.accounting import Budget
from streamveil.core.noise import Place, SeededNoise, SilentNoise
from streamveil.core.noisy import public
from streamveil.dynamic import erm
from streamveil.dynamic.erm import (
    GRID,
    LOSSES,
    GrowingClassifier,
    NoisyGradientDescent,
    OutputPerturbation,
    minimiser,
    unit_rows,
)
from streamveil.dynamic.schedulers import BBScheduler, DisjointDoubling
from streamveil.errors import PlanError
from streamveil.linear.budget_shares import Share

RNG = np.random.default_rng(5)


def data(n=400, d=3, rng=RNG):
    x = unit_rows(rng.normal(size=(n, d)), intercept=False)
    return x, np.where(x[:, 0] + 0.3 * rng.normal(size=n) > 0, 1.0, -1.0)


def quiet(*path):
    return Place(SilentNoise(), "test", path)


def loud(*path):
    return Place(SeededNoise(1), "test", path)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=lambda loss: loss.name)
def test_slopes_and_curvature_are_what_is_declared(loss):
    m = np.linspace(-6, 6, 4001)
    slope = loss.slope(m)
    numeric = np.gradient(loss.value(m), m)
    assert np.abs(slope - numeric)[1:-1].max() < 2e-3
    assert np.abs(slope).max() <= 1
    bend = np.diff(slope) / np.diff(m)
    assert bend.min() >= -1e-12
    assert bend.max() <= loss.curvature * (1 + 1e-9)


def test_rows_never_leave_the_unit_ball_and_bad_rows_vanish():
    x = np.array([[3.0, 4.0], [0.1, 0.1], [np.nan, 1.0], [np.inf, 0.0], [1e300, 1e300]])
    for intercept in (False, True):
        rows = unit_rows(x, intercept=intercept)
        assert np.isfinite(rows).all()
        assert np.linalg.norm(rows, axis=1).max() <= 1
    assert (unit_rows(x, intercept=False)[2:4] == 0).all()


@pytest.mark.parametrize(
    ("trainer", "share"),
    [(NoisyGradientDescent(max_steps=5), Share("zcdp", 1)), (OutputPerturbation(strength=0.1),
                                                              Share("pure", 2))],
)  # fmt: skip
def test_trainers_bound_rows_and_labels_that_nobody_bounded(trainer, share):
    x, y = data()
    long, far = x * 50, y * 9
    x[0], y[1] = 0, 0
    long[0], far[1] = np.nan, np.nan
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    inside = x / np.maximum(lengths, 1e-9) * np.minimum(50 * lengths, 1)
    given = trainer.train(long, far, share, quiet())
    assert_allclose(given, trainer.train(inside, y, share, quiet()), atol=1e-6)


def test_sums_of_gradients_are_whole_numbers_until_they_have_noise(monkeypatch):
    """In floating point the sums of more than 2**23 records would be rounded before."""
    seen = []

    def spied(whole, rest, *given):
        seen.append((whole.dtype, rest.any()))
        return honest(whole, rest, *given)

    honest = erm.sums_with_noise
    monkeypatch.setattr(erm, "sums_with_noise", spied)
    NoisyGradientDescent(max_steps=3).train(*data(), Share("zcdp", 1), loud())
    assert seen == [(np.dtype(np.int64), False)] * 3


def test_one_record_moves_the_lattice_gradient_by_at_most_two():
    x, y = data()
    for loss in LOSSES.values():
        for theta in RNG.normal(size=(20, 3)) * 5:
            slopes = loss.slope(y * (x @ theta)) * y
            each = np.trunc(slopes[:, None] * x / GRID)
            assert np.linalg.norm(each, axis=1).max() <= 1 / GRID
            pairs = np.linalg.norm(each[:, None] - each[None, :50], axis=2)
            assert pairs.max() <= 2 / GRID


def test_silent_training_minimises_the_risk():
    x, y = data(2000)

    def risk(theta):
        return np.logaddexp(0, -y * (x @ theta)).mean()

    best = minimize(risk, np.zeros(3)).fun
    theta = NoisyGradientDescent(max_steps=2000).train(x, y, Share("zcdp", 10), quiet())
    assert risk(theta) < best + 0.03
    theta = OutputPerturbation(strength=1e-3).train(x, y, Share("pure", 1), quiet())
    assert risk(theta) < best + 0.03


@pytest.mark.parametrize("loss", LOSSES.values(), ids=lambda loss: loss.name)
def test_the_minimiser_moves_no_further_than_the_proof_says(loss):
    x, y = data(24)
    lam, tolerance = 0.05, 1e-8
    base = minimiser(loss, x, y, lam, lam * tolerance)
    for i in range(len(x)):
        for row, label in ((-x[i], y[i]), (x[i], -y[i]), (np.array([0.0, 0.0, 1.0]), 1.0)):
            x2, y2 = x.copy(), y.copy()
            x2[i], y2[i] = row, label
            moved = minimiser(loss, x2, y2, lam, lam * tolerance) - base
            assert np.linalg.norm(moved) <= 2 / (lam * len(x)) + 2 * tolerance


def test_output_noise_has_the_scale_of_the_proof(monkeypatch):
    seen = {}

    def watch(centre, scale, draws, *, laplace):
        assert laplace
        seen["scale"] = scale
        return public(np.zeros(len(centre)))

    monkeypatch.setattr(erm, "about", watch)
    x, y = data(100)
    OutputPerturbation(strength=0.1, tolerance=1e-9).train(x, y, Share("pure", 2), loud())
    l1 = np.sqrt(3) * (2 / (0.1 * 100) + 2e-9)
    assert seen["scale"] * GRID == pytest.approx(l1 / 2, rel=1e-6)


def test_the_gradient_noise_pays_for_all_steps(monkeypatch):
    seen = []

    def watch(whole, rest, sigmas, draws):
        seen.append(float(sigmas.min()))
        return public(whole)

    monkeypatch.setattr(erm, "sums_with_noise", watch)
    x, y = data(200)
    NoisyGradientDescent(max_steps=17).train(x, y, Share("zcdp", 1), loud())
    rho = sum((2 / GRID) ** 2 / (2 * sigma**2) for sigma in seen)
    assert len(seen) == 17
    assert 0.999 < rho <= 1


@pytest.mark.parametrize("loss", LOSSES.values(), ids=lambda loss: loss.name)
@pytest.mark.parametrize("n", [200, 5000])
def test_the_excess_risk_of_gradient_descent_stays_below_its_bound(loss, n):
    d, rho, radius = 3, 0.05, 4.0
    x, y = data(n, d, np.random.default_rng(n))
    train = NoisyGradientDescent(loss=loss, radius=radius)

    def risk(theta):
        return loss.value(y * (x @ theta)).mean()

    inside = {"type": "ineq", "fun": lambda theta: radius**2 - theta @ theta}
    best = minimize(risk, np.zeros(d), constraints=inside, method="SLSQP").fun
    found = [risk(train.train(x, y, Share("zcdp", rho), loud(i))) - best for i in range(20)]
    noise = radius * np.sqrt(2 * d / rho) / n
    finish = loss.curvature * radius**2 / (2 * train.steps_for(n, d, rho))
    assert np.mean(found) <= noise + finish
    assert np.mean(found) <= (risk(np.zeros(d)) - best) / 2  # and it learns something


def stream(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4))
    return x, (x[:, 0] - x[:, 1] + 0.2 * rng.normal(size=n) > 0).astype(int)


@pytest.mark.parametrize("method", ["gradient", "output"])
def test_a_classifier_improves_as_records_arrive(method):
    x, y = stream(20_000)
    test_x, test_y = stream(2000, seed=1)
    budget = Budget(rho="0.125") if method == "gradient" else Budget(epsilon=2)
    schedule = DisjointDoubling(start=300, budget=budget)
    model = GrowingClassifier(
        features=4, classes=(0, 1), schedule=schedule, noise=SeededNoise(3), method=method
    )
    scores = []
    for part in np.array_split(np.arange(len(x)), 50):
        model.partial_fit(x[part], y[part])
        scores.append(model.score(test_x, test_y))
    assert scores[-1] > 0.9
    assert model.trained_on == 300 * 2**6


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (np.zeros(4), r"gives coefficients of shape \(5,\), not"),
        ([[0.0] * 5], "gives coefficients of shape"),
        (None, "gives coefficients of shape"),
        ([0, 0, 0, 0, np.nan], "gives finite coefficients"),  # put every row in one class
        ([0, 0, 0, 0, -np.inf], "gives finite coefficients"),
        (["a"] * 5, "coefficients must be numbers"),  # came back in `coef_`
        ([1j] * 5, "coefficients must be numbers"),
    ],
)
def test_a_trainer_of_ones_own_that_gives_other_coefficients_is_named(made, words):
    class Own:
        def train(self, *_):
            return made

    schedule = DisjointDoubling(start=300, budget=Budget(epsilon=1))
    model = GrowingClassifier(
        features=4, classes=(0, 1), schedule=schedule, noise=SeededNoise(3), method=Own()
    )
    with pytest.raises(PlanError, match=words):
        model.partial_fit(*stream(300))
    assert model.trained_on == 0


def test_batches_of_any_size_give_the_same_model():
    x, y = stream(900)

    def train(parts):
        schedule = BBScheduler(start=300, budget=Budget(rho=1), gamma=1.0)
        model = GrowingClassifier(
            features=4, classes=(0, 1), schedule=schedule, noise=SeededNoise(3)
        )
        for part in np.array_split(np.arange(900), parts):
            model.partial_fit(x[part], y[part])
        return model.coef_

    np.testing.assert_array_equal(train(3), train(9))


def test_bad_input_is_refused_or_ignored():
    schedule = DisjointDoubling(start=10, budget=Budget(rho=1))
    make = {"features": 2, "classes": (0, 1), "schedule": schedule, "noise": SeededNoise(1)}
    with pytest.raises(ValueError, match="did you mean 'gradient'"):
        GrowingClassifier(**make, method="gradientt")
    model = GrowingClassifier(**make)
    with pytest.raises(ValueError, match="x must be"):
        model.partial_fit(np.zeros((3, 5)), np.zeros(3))
    model.partial_fit(np.full((10, 2), np.nan), np.full(10, 7))
    assert np.isfinite(model.coef_).all()
    with pytest.raises(PlanError, match="partial_fit"):
        model.fit(np.zeros((1, 2)), np.zeros(1))
    pure = DisjointDoubling(start=10, budget=Budget(epsilon=1))
    with pytest.raises(ValueError, match="needs a budget with delta"):
        GrowingClassifier(**{**make, "schedule": pure})


def test_coefficients_are_handed_out_as_a_copy():
    schedule = DisjointDoubling(start=10, budget=Budget(rho=1))
    model = GrowingClassifier(features=2, classes=(0, 1), schedule=schedule, noise=SeededNoise(1))
    model.partial_fit(np.ones((20, 2)), np.arange(20) % 2)
    before = model.coef_.copy()
    assert before.any()
    model.coef_[:] = 7
    np.testing.assert_array_equal(model.coef_, before)


def test_models_of_different_names_share_no_noise():
    """With no records that count, coefficients are noise alone."""

    def coefficients(name):
        schedule = DisjointDoubling(start=10, budget=Budget(rho=1))
        model = GrowingClassifier(
            features=4, classes=(0, 1), schedule=schedule, noise=SeededNoise(3), name=name
        )
        return model.partial_fit(np.zeros((10, 4)), np.full(10, 7)).coef_

    np.testing.assert_array_equal(coefficients("one"), coefficients("one"))
    assert (coefficients("one") != coefficients("two")).all()
