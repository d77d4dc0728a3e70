"""Private empirical risk minimisation: black boxes for classifiers whose data keep growing.

Rows are scaled into the unit ball (`bounded`) and losses have slopes of at most 1, so one record
moves the sum of gradients by at most 1 (present or absent) or 2 (replaced). The number of records
is public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from streamveil.core.accounting import take_numbers
from streamveil.core.accounting.guarantee import Guarantee
from streamveil.core.measure import about, sums_with_noise
from streamveil.core.noise import Noise, Place
from streamveil.core.noisy import values
from streamveil.dynamic.schedulers import Reruns, RunSchedule
from streamveil.errors import (
    PlanError,
    at_least,
    require_flag,
    require_one_of,
    require_positive,
    require_with,
)
from streamveil.linear.budget_shares import Share, require_share
from streamveil.linear.queries import reals
from streamveil.types import Array, Float64

GRID = 2.0**-30  # lattice of coefficients and of gradient sums
Rows = Float64[Array, "n d"]
Labels = Float64[Array, " n"]  # +1 or -1
Coefficients = Float64[Array, " d"]


@dataclass(frozen=True)
class Link:
    """A convex loss l(margin) with |l'| <= 1 and 0 <= l'' <= curvature; margin = label · score."""

    name: str
    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    curvature: float


def _huber(m: Array) -> Array:
    return np.where(m > 1.5, 0.0, np.where(m < 0.5, 1 - m, (1.5 - m) ** 2 / 2))


LOSSES = {
    "logistic": Link(
        "logistic", lambda m: np.logaddexp(0, -m), lambda m: -0.5 * (1 - np.tanh(m / 2)), 0.25
    ),
    "huber": Link("huber", _huber, lambda m: -np.clip(1.5 - m, 0.0, 1.0), 1.0),
}


def unit_rows(x: Rows, *, intercept: bool) -> Rows:
    """Rows inside the unit ball: longer ones are scaled down; an intercept column shares the norm.

    A row with a value that is not finite becomes a zero row, without influence.
    """
    x = shortened(x)
    return np.concatenate([x, np.ones((len(x), 1))], axis=1) / math.sqrt(2) if intercept else x


def shortened(x: Rows) -> Rows:
    """Rows scaled down to less than unit length, with room for rounding; shorter ones stay."""
    x = np.asarray(x, np.float64)
    x = np.where(np.isfinite(x).all(axis=1, keepdims=True), x, 0.0).clip(-1e150, 1e150)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x / np.maximum(norms * (1 + 2.0**-40), 1.0))


def bounded(x: Rows, y: Labels) -> tuple[Rows, Labels]:
    """Rows inside the unit ball and labels from -1 to 1, whatever came.

    The last gate before gradients, in every trainer. A label that is no number becomes 0.

    >>> x, y = bounded(np.array([[3.0, 4.0], [np.nan, 0.1]]), np.array([7.0, np.nan]))
    >>> x.round(6).tolist(), y.tolist()
    ([[0.6, 0.8], [0.0, 0.0]], [1.0, 0.0])
    """
    x, y = reals("x", x), reals("y", y)
    if x.ndim != 2 or y.shape != x.shape[:1]:
        raise PlanError(f"x must be rows, and y a number for each, not {x.shape} and {y.shape}")
    return shortened(x), np.clip(np.nan_to_num(y), -1.0, 1.0)


class Trainer(Protocol):
    """A black box: coefficients from rows and labels, at the cost of one share.

    >>> trainer: Trainer = NoisyGradientDescent(radius=5.0)
    >>> trainer.steps_for(n=10_000, d=20, rho=0.1)
    200
    """

    def train(self, x: Rows, y: Labels, share: Share, place: Place) -> Coefficients:
        """One private run.

        Args:
            x: a row of features for each record, of length at most 1.
            y: the label of each, 1 or -1.
            share: part of a budget (`Share`) that it may spend, above 0.
            place: where its noise is drawn, of this run alone.

        Raises:
            PlanError: the share is of a kind that it cannot spend, or records are too many.
            ArithmeticError: the solver of output perturbation did not reach its tolerance.
        """


@dataclass(frozen=True, kw_only=True)
class NoisyGradientDescent:
    """Full gradients with noise; the default.

    Algorithm: projected gradient descent on the mean loss with Gaussian noise on the sum of
        gradients, the average of all iterates returned (Bassily, Smith & Thakurta 2014,
        arXiv:1405.7085, in its full-gradient form).
    Protects: data sets of public size n that differ in one replaced record.
    Guarantee: the share; a pure share is refused, as Gaussian noise is never pure.
    Proof: each record's gradient is slope · row with |slope| <= 1 and ||row|| <= 1, truncated
        towards zero to the lattice, which never lengthens it; replacing a record moves the integer
        sum by at most 2/GRID in L2. Steps compose adaptively: rho = steps · 4 / (2 sigma^2 GRID^2).
    Error: expected excess risk at most radius sqrt(2 d / rho) / n + curvature radius^2 / 2 steps:
        the losses are smooth, so a step of 1 / (curvature + sqrt(steps d) s / radius), with s the
        noise of a mean gradient, pays for the noise alone and not for the slope (Lan 2012,
        doi:10.1007/s10107-010-0434-y). The number of steps makes both terms equal, up to a cap.
    Numerics: sums are exact int64 (n below 2^30), noise is a rounded Gaussian; exact.

    Raises:
        PlanError: a setting is out of its range, the share is pure, or there are 2**30 records or
            more.

    >>> from streamveil.core.noise import SeededNoise
    >>> x = np.random.default_rng(1).normal(size=(5000, 2)) / 5
    >>> x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    >>> y = np.where(x[:, 0] > 0, 1.0, -1.0)
    >>> trainer = NoisyGradientDescent()
    >>> w = trainer.train(x, y, Share("zcdp", 1), Place(SeededNoise(1), "doc"))
    >>> bool(np.mean(np.sign(x @ w) == y) > 0.9)
    True
    """

    loss: Link = LOSSES["logistic"]  # of the linear model: convex and smooth
    radius: float = 10.0  # coefficients stay in this ball, > 0
    max_steps: int = 200  # of descent at most, >= 1

    def __post_init__(self) -> None:
        take_numbers(self)
        require_positive(radius=self.radius, max_steps=self.max_steps)
        require_with("loss", self.loss, "curvature", 'one such as LOSSES["logistic"]')

    def steps_for(self, n: int, d: int, rho: float) -> int:
        """The number of steps, from public numbers: more would add more noise than they gain.

        Args:
            n: records, at least 1.
            d: features, at least 1.
            rho: budget of the training in zCDP, above 0.

        Raises:
            PlanError: a number is beyond its range.

        >>> NoisyGradientDescent().steps_for(500, 10, 0.02), NoisyGradientDescent().max_steps
        (20, 200)
        """
        at_least(1, n=n, d=d)
        require_positive(rho=rho)
        even = self.loss.curvature * self.radius * n * math.sqrt(rho / (8 * d))
        return max(1, min(self.max_steps, math.ceil(even)))

    def require(self, share: Share) -> None:
        """Refuses a share that it cannot spend.

        Args:
            share: part of a budget.

        Raises:
            PlanError: it is pure, or no share.
        """
        require_share(share)
        if share.kind != "zcdp":
            raise PlanError(
                "noisy gradient descent needs a budget with delta (or rho).\n"
                "  to fix  give a delta, or take method='output' (`OutputPerturbation`)"
            )

    def train(self, x: Rows, y: Labels, share: Share, place: Place) -> Coefficients:
        """See `Trainer`."""
        self.require(share)
        x, y = bounded(x, y)
        n, d = x.shape
        if n >= 1 << 30:
            raise PlanError("at most 2**30 records a run: their exact sum must fit 64 bits")
        steps = self.steps_for(n, d, float(share.amount))
        part = share.scale(Fraction(1, steps))
        quanta = round(1 / GRID)
        sigma = np.nextafter(float(part.spread(2 * quanta, 4 * quanta**2)), np.inf)
        spread = float(sigma) * GRID / n
        rate = 1 / (self.loss.curvature + math.sqrt(steps * d) * spread / self.radius)
        theta, total, nothing = np.zeros(d), np.zeros(d), np.zeros(d)
        for step in range(steps):
            slopes = self.loss.slope(y * (x @ theta)) * y
            exact = np.trunc(slopes[:, None] * x / GRID).astype(np.int64).sum(axis=0)
            noisy = values(sums_with_noise(exact, nothing, np.full(d, sigma), place.draws(step)))
            theta = project(theta - rate * noisy * GRID / n, self.radius)
            total += theta
        average: Coefficients = total / steps
        return average


@dataclass(frozen=True, kw_only=True)
class OutputPerturbation:
    """The minimiser of the regularised risk, plus noise.

    Algorithm: Chaudhuri, Monteleoni & Sarwate (2011, arXiv:0912.0071), sensitivity method; Laplace
        noise on each coordinate for pure budgets, Gaussian otherwise.
    Protects: data sets of public size n that differ in one replaced record.
    Guarantee: the share.
    Proof: the risk is lam-strongly convex, so the minimiser moves by at most 2 / (lam n) in L2.
        The solver's point is within `tolerance` of it: its gradient norm is checked to be at
        most lam · tolerance. So the centre moves by at most 2/(lam n) + 2 tolerance in L2, and by
        sqrt(d) times that in L1.
    Numerics: rounded noise about a floating-point centre; the check of the gradient allows for
        rounding by a factor of two.

    Raises:
        PlanError: a setting is out of its range.
        ArithmeticError: the solver did not reach `tolerance`.

    >>> from streamveil.core.noise import SeededNoise
    >>> x = np.random.default_rng(1).normal(size=(5000, 2)) / 5
    >>> x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    >>> y = np.where(x[:, 0] > 0, 1.0, -1.0)
    >>> trainer = OutputPerturbation()
    >>> w = trainer.train(x, y, Share("zcdp", 1), Place(SeededNoise(1), "doc"))
    >>> bool(np.mean(np.sign(x @ w) == y) > 0.9)
    True
    """

    loss: Link = LOSSES["logistic"]  # of the linear model: convex and smooth
    strength: float | None = None  # lam, > 0; None: from n, d, radius and the share
    radius: float = 10.0  # of the ball that holds all models, > 0
    tolerance: float = 1e-6  # most distance of the solver from the minimum, > 0

    def __post_init__(self) -> None:
        require_positive(radius=self.radius, tolerance=self.tolerance)
        require_with("loss", self.loss, "curvature", 'one such as LOSSES["logistic"]')
        if self.strength is not None:
            require_positive(strength=self.strength)

    def train(self, x: Rows, y: Labels, share: Share, place: Place) -> Coefficients:
        """See `Trainer`."""
        x, y = bounded(x, y)
        n, d = x.shape
        unit = float(share.epsilon)
        lam = self.strength or 2 * math.sqrt(d / (n * unit)) / self.radius
        theta = minimiser(self.loss, x, y, lam, lam * self.tolerance / 2)
        moved = 2 / (lam * n) + 2 * self.tolerance
        return perturbed(theta, moved, share, place)


TRAINERS: dict[str, type[NoisyGradientDescent | OutputPerturbation]] = {
    "gradient": NoisyGradientDescent,
    "output": OutputPerturbation,
}


def trainer(name: str) -> Trainer:
    """A black box by name, with its defaults."""
    require_one_of("method", name, TRAINERS)
    return TRAINERS[name]()


def perturbed(theta: Coefficients, moved: float, share: Share, place: Place) -> Coefficients:
    """Noisy coefficients, for a centre that moves by at most `moved` in L2."""
    quanta = moved / GRID
    l1, l2 = math.ceil(quanta * math.sqrt(len(theta)) + 1), math.ceil(quanta + 1)
    scale = float(np.nextafter(float(share.spread(l1, l2**2)), np.inf))
    drawn = about(theta / GRID, scale, place.draws(), laplace=share.kind == "pure")
    noisy: Coefficients = values(drawn) * GRID
    return noisy


def minimiser(loss: Link, x: Rows, y: Labels, lam: float, gradient: float) -> Coefficients:
    """Minimises mean loss + lam/2 |theta|^2 until the gradient norm is small enough.

    L-BFGS comes close, then damped Newton steps (the risk is smooth and strongly convex, so they
    converge from anywhere) reach the demanded gradient. Should they not, an error is raised: an
    answer whose noise is too small is worse than none.
    """
    n = len(x)

    def objective(theta: Coefficients) -> tuple[float, Coefficients]:
        margins = y * (x @ theta)
        value = loss.value(margins).mean() + lam / 2 * theta @ theta
        slope = x.T @ (loss.slope(margins) * y) / n + lam * theta
        return float(value), slope

    from scipy.optimize import minimize  # slow to load

    theta: Coefficients = minimize(
        objective, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B",
        options={"maxiter": 2000, "ftol": 1e-15, "gtol": gradient / 10},
    ).x  # fmt: skip
    for _ in range(200):
        value, slope = objective(theta)
        if np.linalg.norm(slope) <= gradient:
            return theta
        margins = y * (x @ theta)
        bend = (loss.slope(margins + 1e-6) - loss.slope(margins - 1e-6)) / 2e-6
        hessian = (x.T * np.maximum(bend, 0)) @ x / n + lam * np.eye(len(theta))
        move = np.linalg.solve(hessian, slope)
        pace = 1.0
        while pace > 1e-9 and objective(theta - pace * move)[0] > value + 1e-15:
            pace /= 2
        theta = theta - pace * move
    raise ArithmeticError("the solver did not reach its tolerance; use a larger strength")


def project(theta: Coefficients, radius: float) -> Coefficients:
    """The nearest point of the ball."""
    inside: Coefficients = theta * min(1.0, radius / max(float(np.linalg.norm(theta)), 1e-300))
    return inside


# ---- a classifier that keeps improving as records arrive

Data = tuple[Array, Array]


def two_labels(classes: object) -> Array:
    """An array of two labels, with neither converted.

    Raises:
        PlanError: they are not two different labels of one type.
    """
    known = list(classes) if isinstance(classes, Sequence | np.ndarray) else []
    if len(known) == 2 and known[0] != known[1]:
        found = np.array(known)
        if found.tolist() == known:
            return found
    raise PlanError("classes must be two different labels of one type, such as ('no', 'yes')")


class GrowingClassifier:
    """A linear two-class model, retrained by a public schedule; scikit-learn's method names.

    Protects: streams of records that differ in one replaced record; sizes are public.
    Guarantee: that of the schedule, over everything ever predicted.
    Proof: labels and rows are read by the black box only, whose runs the schedule pays for;
        predictions are post-processing of its coefficients.

    The number of features and both labels are declared: taking them from data would leak them.
    Every model draws at addresses of its own; for that, seeded models (tests) need different
    `name`s. With `intercept`, a constant is fitted too.

    Raises:
        PlanError: a setting is out of its range, or rows and labels do not fit the model.
        PlanError: `fit` on a model that already has records.

    >>> from streamveil.dynamic.schedulers import DisjointDoubling
    >>> from streamveil.core.accounting import Budget
    >>> from streamveil.core.noise import SeededNoise
    >>> plan = DisjointDoubling(start=500, budget=Budget(rho=1))
    >>> model = GrowingClassifier(features=2, classes=(0, 1), schedule=plan, noise=SeededNoise(1))
    >>> x = np.random.default_rng(1).normal(size=(2000, 2))
    >>> for part in np.split(x, 20):
    ...     _ = model.partial_fit(part, part[:, 0] > 0)
    >>> bool(model.score(x, x[:, 0] > 0) > 0.9), model.trained_on
    (True, 2000)
    """

    def __init__(  # noqa: PLR0913 (its settings, as scikit-learn has them)
        self, *, features: int, classes: tuple[object, object], schedule: RunSchedule, noise: Noise,
        method: str | Trainer = "gradient", intercept: bool = True,
        name: str = "growing-classifier",
    ) -> None:  # fmt: skip
        at_least(1, features=features)
        require_flag(intercept=intercept)
        require_with("noise", noise, "secure", "noise such as KeyedNoise.fresh()")
        require_with("name", name, "encode", "a text")
        self.features, self.intercept = features, intercept
        self.classes_ = two_labels(classes)
        self.trainer = trainer(method) if isinstance(method, str) else method
        require_with("method", self.trainer, "train", "'gradient', 'output' or a trainer")
        width = features + intercept
        self._parts: list[Data] = [(np.zeros((0, width)), np.zeros(0))]
        place = Place.opened(noise, name)
        self._reruns: Reruns[Data] = Reruns(schedule, self._train, self._slice, place)
        if isinstance(self.trainer, NoisyGradientDescent):
            self.trainer.require(self._reruns.meter.limit)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee for everything ever predicted."""
        return self._reruns.guarantee

    @property
    def trained_on(self) -> int:
        """The number of records the current model was trained on (public); 0 before the first."""
        return self._reruns.answered_at

    @property
    def coef_(self) -> Float64[Array, " d"]:
        """The current private coefficients; zeros before the first run. A copy."""
        answer = self._reruns.answer
        return np.zeros(self._parts[0][0].shape[1]) if answer is None else answer.copy()

    def partial_fit(self, x: Array, y: Array) -> GrowingClassifier:
        """Adds records; retrains when the schedule says so. Records with other labels do not count.

        If training fails, the records are there all the same: do not add them again.

        Args:
            x: a row of features for each record.
            y: the label of each.

        Raises:
            PlanError: they are not of one shape, or features are no numbers.
        """
        x, y = self._rows(x), np.asarray(y)
        if y.shape != x.shape[:1]:
            raise PlanError(
                f"x must be (records, {self.features}), y a label each; not {x.shape} and {y.shape}"
            )
        sign = (y == self.classes_[1]).astype(float) - (y == self.classes_[0])
        rows = unit_rows(x, intercept=self.intercept) * (sign != 0)[:, None]
        with self._reruns.place.drawn.turn():
            self._parts.append((rows, sign))
            self._reruns.arrive(len(x))
        return self

    def fit(self, x: Array, y: Array) -> GrowingClassifier:
        """The first records. A model that has records refuses: its budget is already promised.

        Args:
            x: a row of features for each record.
            y: the label of each.

        Raises:
            PlanError: the model has records already.
            PlanError: they are not of one shape.
        """
        if self._reruns.size:
            raise PlanError(
                "this model already has records; fit would forget them but not what they cost.\n"
                "  to fix  use partial_fit, or a new model with a budget of its own"
            )
        return self.partial_fit(x, y)

    def decision_function(self, x: Array) -> Float64[Array, " n"]:
        """Scores; positive means the second class.

        Args:
            x: a row of features for each record.

        Raises:
            PlanError: rows are of another width, or features are no numbers.
        """
        scores: Float64[Array, " n"] = (
            unit_rows(self._rows(x), intercept=self.intercept) @ self.coef_
        )
        return scores

    def predict(self, x: Array) -> Array:
        """The likelier class of every row; `x`: a row of features for each record.

        Raises:
            PlanError: rows are of another width, or features are no numbers.
        """
        labels: Array = self.classes_[(self.decision_function(x) > 0).astype(int)]
        return labels

    def score(self, x: Array, y: Array) -> float:
        """Share of rows whose class is predicted right.

        Args:
            x: a row of features for each record.
            y: the label of each.

        Raises:
            PlanError: there is no row, or they are not of one shape, or features are no numbers.
        """
        right = self.predict(x)
        if np.shape(y) != right.shape or not len(right):
            raise PlanError("y must be a label for each row of x, and x one row at least")
        return float(np.mean(right == np.asarray(y)))

    def _rows(self, x: Array) -> Rows:
        """Rows of features as numbers; errors show none of their values."""
        rows = reals("features", x)
        if rows.ndim != 2 or rows.shape[1] != self.features:
            raise PlanError(f"x must be (records, {self.features}), not {rows.shape}")
        return rows

    def _slice(self, start: int, stop: int) -> Data:
        rows, labels = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
        self._parts[:] = [(rows, labels)]  # of copies as well
        return rows[start:stop].copy(), labels[start:stop].copy()  # the trainer may write to them

    def _train(self, data: Data, share: Share, place: Place) -> Array:
        wanted = data[0].shape[1:]
        given = reals("coefficients", self.trainer.train(*data, share, place))
        if given.shape != wanted:
            raise PlanError(f"a trainer gives coefficients of shape {wanted}, not {given.shape}")
        if not np.isfinite(given).all():
            raise PlanError("a trainer gives finite coefficients; one of these is not")
        return given.copy()  # the trainer may go on with its own
